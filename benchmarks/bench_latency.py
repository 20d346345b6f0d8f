"""Latency and commit rate on a store as slow as S3: append to seen, and 16 writers on one topic.

Run: `python -m benchmarks latency [seen] [commits] [spark] [--store standard|express] [--appends N] [--slow-motion N]`.
The store is this process's memory behind `sparklog.testing.SlowStore`: its docstring has the figures and their sources.
Every process that a deployment has is a thread with a root of its own here; requests sleep for real.

`--slow-motion N` lets all time but the processor's pass N times as slowly, and divides what it measures by N: so a
machine that is busy with other work shows what an idle one would, and requests count rather than scheduling.

`spark`: records go through two streaming queries of one session, a local topic into the measured one and from there
into `foreachBatch`. The measured topic lies on the local disk or in a bucket (moto behind HTTP, `slow_bucket.py`);
input and checkpoints lie on the local disk. The difference between the two is the store's part.
"""

from __future__ import annotations

import argparse
import random
import shutil
import statistics
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from sparklog.clients.consumer.consumer import consumer
from sparklog.log.journal.clocks import SYSTEM, Env
from sparklog.log.topic.root import Root, open_root
from sparklog.storage.memory import MemoryStore
from sparklog.testing.slow_store import S3_EXPRESS, S3_STANDARD, Latencies, SlowStore
from sparklog.testing.wrapper_stores import CountingStore

STORES = {"standard": S3_STANDARD, "express": S3_EXPRESS}
PARTITIONS = 4
GAPS_S = {0.2: 1.0, 2.0: 0.25}
"""Seconds between two appends on average, at random moments; the share of `--appends` made so."""


class Time:
    """The clock of a run, in slow motion."""

    def __init__(self, slower: float) -> None:
        self.slower = slower

    def now_ms(self) -> float:
        return time.perf_counter() * 1000 / self.slower

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds * self.slower)

    def env(self) -> Env:
        begun = time.time() * 1000 - self.now_ms()
        return Env(lambda: int(begun + self.now_ms()), lambda: int(self.now_ms()), self.sleep, SYSTEM.random)


class Bucket:
    """A store in memory; each `root` is one more process, at the distance that `latencies` says."""

    def __init__(self, latencies: Latencies, clock: Time, seed: int, inline: int) -> None:
        self.latencies = latencies
        self.clock = clock
        self.seed = seed
        self.env = clock.env()
        self.memory = MemoryStore(self.env.wall_ms, f"bench-{seed}")
        self.stores: list[CountingStore] = []
        configs = {"inline.records.bytes": inline}
        open_root(self.memory, create=True, env=self.env).create_topic("t", partitions=PARTITIONS, configs=configs)

    def root(self) -> Root:
        self.stores.append(CountingStore(self.memory))
        source = random.Random(f"{self.seed}/{len(self.stores)}")
        return open_root(SlowStore(self.stores[-1], self.latencies, source, sleep=self.clock.sleep), env=self.env)

    def counts(self) -> Counter[str]:
        return sum((store.counts for store in self.stores), Counter())


def percentile(values: Sequence[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(len(values) * share))]


def line(values: Sequence[float]) -> str:
    return f"{statistics.median(values):7.0f} {percentile(values, 0.99):7.0f} {max(values):7.0f}"


def batch_of(number: int, rows: int = 16) -> pa.Table:
    """16 records of some 100 bytes over all partitions."""
    values = [b"%08d" % number + b"x" * 92] * rows
    return pa.table({"value": values, "partition": pa.array([row % PARTITIONS for row in range(rows)], pa.int32())})


def bench_seen(name: str, bucket: Bucket, appends: int, gap_s: float) -> None:
    """One writer, one reader that polls: milliseconds from the call of `append`, and from its return, to `poll`'s."""
    clock = bucket.clock
    topic = bucket.root().topic("t")
    begun: dict[int, float] = {}
    acked: dict[int, float] = {}
    seen: dict[int, float] = {}
    reader = consumer(bucket.root(), "g", topics="t", auto_offset_reset="earliest", enable_auto_commit=False)

    def read() -> None:
        while appends - 1 not in seen:
            for batch in reader.poll(60.0):
                now = clock.now_ms()
                for value in batch.column("value").to_pylist():
                    seen.setdefault(int(value[:8]), now)

    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    pauses = random.Random(bucket.seed)
    for number in range(appends):
        clock.sleep(pauses.expovariate(1 / gap_s))
        begun[number] = clock.now_ms()
        topic.append(batch_of(number))
        acked[number] = clock.now_ms()
    thread.join()
    # The first appends pay once for imports and a look at the store's clock.
    counted = range(min(10, appends // 4), appends)
    for text, since, until in (
        ("call to seen", begun, seen),
        ("return to seen", acked, seen),
        ("append itself", begun, acked),
    ):
        spent = [max(0.0, until[number] - since[number]) for number in counted]
        print(f"seen     {name:9} an append every {gap_s} s, {text:14} p50, p99, max ms: {line(spent)}", flush=True)
    counts = bucket.counts()
    print(f"         {counts['get'] / appends:.0f} GETs an append, of both; the reader looks while it waits")


def bench_commits(name: str, bucket: Bucket, writers: int, seconds: float) -> None:
    """Writers that append as fast as they can to one topic."""
    clock = bucket.clock
    topics = [bucket.root().topic("t") for _ in range(writers)]
    spent: list[float] = []
    ends: list[float] = []
    began = clock.now_ms()
    stop = began + seconds * 1000

    def write(number: int) -> None:
        while (begun := clock.now_ms()) < stop:
            topics[number].append(batch_of(number))
            ends.append(clock.now_ms())
            spent.append(ends[-1] - begun)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(writers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    # Not the first seconds, in which all begin at once.
    quiet = [end for end in ends if began + seconds * 200 <= end <= stop]
    tries, gets = sum(store.by_kind["create", "commit"] for store in bucket.stores), bucket.counts()["get"]
    print(
        f"commits  {name:9} {writers} writers: {len(quiet) / (seconds * 0.8):6.1f} a second; an append p50, p99, max "
        f"ms: {line(spent)}; {tries / len(ends):.1f} creates, {gets / len(ends):.0f} GETs a commit",
        flush=True,
    )


def bench_spark(latencies: Latencies, name: str, appends: int, seed: int) -> None:
    """Milliseconds from the return of an append to the input topic to `foreachBatch` of the second query."""
    from slow_bucket import SlowBucket
    from spark_session import benchmark_session

    import sparklog

    bucket = SlowBucket(latencies, seed)
    folder = Path(tempfile.mkdtemp(prefix="sparklog-bench-"))
    spark = benchmark_session(**{"spark.driver.memory": "1g"})
    sparklog.register(spark)
    try:
        for place, root in (("disk", str(folder / "root")), (name, bucket.url)):
            spent = spark_to_spark(spark, folder / place, root, appends)
            print(f"spark    topic on {place:9} append to foreachBatch p50, p99, max ms: {line(spent)}", flush=True)
    finally:
        spark.stop()
        bucket.stop()
        shutil.rmtree(folder, ignore_errors=True)


def spark_to_spark(spark: Any, folder: Path, root: str, appends: int) -> list[float]:
    """Append to `in` at random moments about a second apart; how long each took through both queries."""
    acked: dict[int, float] = {}
    seen: dict[int, float] = {}
    source = open_root(folder / "input", create=True).create_topic("in")
    open_root(root, create=True).create_topic("out", partitions=PARTITIONS)

    def arrived(frame: Any, _: int) -> None:
        numbers = [int(row.value[:8]) for row in frame.select("value").collect()]
        now = time.perf_counter()
        for number in numbers:
            seen.setdefault(number, now)

    def read(path: str) -> Any:
        return spark.readStream.format("sparklog").option("startingOffsets", "earliest").load(path)

    copied = read(f"{folder}/input/in").select("value").writeStream.format("sparklog").option("topic", "out")
    writing = copied.option("checkpointLocation", f"{folder}/writing").start(root)
    # A bucket's URL ends in its query: the folder of a topic goes before it.
    path, mark, settings = root.partition("?")
    reading = read(f"{path}/out{mark}{settings}").writeStream.foreachBatch(arrived)
    reading = reading.option("checkpointLocation", f"{folder}/reading").start()
    pauses = random.Random(1)
    for number in range(appends + 5):
        source.append(batch_of(number).drop_columns("partition"))
        acked[number] = time.perf_counter()
        while number < 5 and number not in seen:  # sessions, processes and code are warm then
            time.sleep(0.1)
        time.sleep(0.5 + pauses.random())
    while len(seen) < len(acked):
        for query in (writing, reading):
            if not query.isActive:
                raise SystemExit(f"a query ended: {query.exception()}")
        time.sleep(0.1)
    for text, query in (("writing", writing), ("reading", reading)):
        batches = [each["durationMs"] for each in query.recentProgress[5:] if each["numInputRows"]]
        medians = {step: statistics.median(each.get(step, 0) for each in batches) for step in batches[-1]}
        print(f"         {text} query, median ms: {', '.join(f'{k} {v:.0f}' for k, v in medians.items())}", flush=True)
    writing.stop()
    reading.stop()
    return [(seen[number] - acked[number]) * 1000 for number in range(5, appends + 5)]


def main() -> None:
    parser = argparse.ArgumentParser(description="Append to seen, and commits a second, on a store as slow as S3")
    parser.add_argument("parts", nargs="*", default=["seen", "commits"])
    parser.add_argument("--store", choices=sorted(STORES), help="default: both")
    parser.add_argument("--appends", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--writers", type=int, default=16)
    parser.add_argument("--slow-motion", type=float, default=1)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--inline", type=int, default=128 << 10, help="inline.records.bytes of the topic")
    chosen = parser.parse_args()
    stores = {chosen.store: STORES[chosen.store]} if chosen.store else STORES
    for name, latencies in stores.items():

        def bucket(latencies: Latencies = latencies) -> Bucket:
            return Bucket(latencies, Time(chosen.slow_motion), chosen.seed, chosen.inline)

        if "seen" in chosen.parts:
            for gap_s, share in GAPS_S.items():
                bench_seen(name, bucket(), max(20, int(chosen.appends * share)), gap_s)
        if "commits" in chosen.parts:
            bench_commits(name, bucket(), chosen.writers, chosen.seconds)
        if "spark" in chosen.parts:
            bench_spark(latencies, name, min(chosen.appends, 40), chosen.seed)


if __name__ == "__main__":
    main()
