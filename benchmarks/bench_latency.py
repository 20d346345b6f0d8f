"""Latency and commit rate on a store as slow as S3: append to seen, and 16 writers on one topic.

Run: `python -m benchmarks latency [seen] [commits] [--store standard|express] [--appends N] [--seconds N] [--seed N]`.
The store is this process's memory behind `sparklog.testing.SlowStore`, whose docstring has its figures and their
sources. Every process that a deployment has is a thread with a root of its own here; requests sleep for real.
"""

from __future__ import annotations

import argparse
import random
import statistics
import threading
import time
from collections import Counter
from collections.abc import Sequence

import pyarrow as pa

from sparklog.groups.consumer import consumer
from sparklog.log.topic.root import Root, open_root
from sparklog.storage.memory import MemoryStore
from sparklog.testing.slow_store import S3_EXPRESS, S3_STANDARD, Latencies, SlowStore
from sparklog.testing.wrapper_stores import CountingStore

STORES = {"standard": S3_STANDARD, "express": S3_EXPRESS}
PARTITIONS = 4
GAPS_S = (0.1, 1.0, 10.0)
"""Between two appends on average; at random moments."""


class Bucket:
    """A store in memory; each `root` is one more process, at the distance that `latencies` says."""

    def __init__(self, latencies: Latencies, seed: int) -> None:
        self.latencies = latencies
        self.seed = seed
        self.memory = MemoryStore(lambda: time.time_ns() // 1_000_000, f"bench-{seed}")
        self.stores: list[CountingStore] = []
        open_root(self.memory, create=True).create_topic("t", partitions=PARTITIONS)

    def root(self) -> Root:
        self.stores.append(CountingStore(self.memory))
        source = random.Random(f"{self.seed}/{len(self.stores)}")
        return open_root(SlowStore(self.stores[-1], self.latencies, source))

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


def bench_seen(name: str, latencies: Latencies, appends: int, gap_s: float, seed: int) -> None:
    """One writer, one reader that polls: milliseconds from the call of `append`, and from its return, to `poll`'s."""
    bucket = Bucket(latencies, seed)
    topic = bucket.root().topic("t")
    begun: dict[int, float] = {}
    acked: dict[int, float] = {}
    seen: dict[int, float] = {}
    reader = consumer(bucket.root(), "g", topics="t", auto_offset_reset="earliest", enable_auto_commit=False)
    last = appends - 1

    def read() -> None:
        while last not in seen:
            for batch in reader.poll(60.0):
                now = time.perf_counter()
                for value in batch.column("value").to_pylist():
                    seen.setdefault(int(value[:8]), now)

    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    pauses = random.Random(seed)
    for number in range(appends):
        time.sleep(pauses.expovariate(1 / gap_s))
        begun[number] = time.perf_counter()
        topic.append(batch_of(number))
        acked[number] = time.perf_counter()
    thread.join(60)
    # What the first appends pay once: imports, threads, code.
    counted = range(min(10, appends // 4), appends)
    for text, since in (("call", begun), ("return", acked)):
        spent = [max(0.0, seen[number] - since[number]) * 1000 for number in counted]
        print(f"seen     {name:9} every {gap_s:4.1f} s, from {text:7} p50, p99, max ms: {line(spent)}", flush=True)
    spent = [(acked[number] - begun[number]) * 1000 for number in counted]
    print(f"         {name:9} every {gap_s:4.1f} s, append itself p50, p99, max ms: {line(spent)}", flush=True)
    print(f"         requests: {dict(bucket.counts())} of {appends} appends")


def bench_commits(name: str, latencies: Latencies, writers: int, seconds: float, seed: int) -> None:
    """Writers that append as fast as they can to one topic."""
    bucket = Bucket(latencies, seed)
    topics = [bucket.root().topic("t") for _ in range(writers)]
    spent: list[float] = []
    ends: list[float] = []
    stop = time.perf_counter() + seconds

    def write(number: int) -> None:
        while (begun := time.perf_counter()) < stop:
            topics[number].append(batch_of(number))
            ends.append(time.perf_counter())
            spent.append((ends[-1] - begun) * 1000)

    began = time.perf_counter()
    threads = [threading.Thread(target=write, args=(number,)) for number in range(writers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    # The first seconds: all begin at once.
    quiet = [end for end in ends if began + seconds / 5 <= end <= stop]
    tries = sum(store.by_kind["create", "commit"] for store in bucket.stores)
    gets = bucket.counts()["get"]
    print(
        f"commits  {name:9} {writers} writers: {len(quiet) / (seconds * 4 / 5):6.1f} a second; an append p50, p99, max "
        f"ms: {line(spent)}; {tries / len(ends):.1f} creates, {gets / len(ends):.0f} GETs a commit",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="Append to seen, and commits a second, on a store as slow as S3")
    parser.add_argument("parts", nargs="*", default=["seen", "commits"])
    parser.add_argument("--store", choices=sorted(STORES), help="default: both")
    parser.add_argument("--appends", type=int, default=300)
    parser.add_argument("--seconds", type=float, default=30)
    parser.add_argument("--writers", type=int, default=16)
    parser.add_argument("--seed", type=int, default=1)
    chosen = parser.parse_args()
    stores = {name: STORES[name] for name in ([chosen.store] if chosen.store else ["standard", "express"])}
    for name, latencies in stores.items():
        if "seen" in chosen.parts:
            for gap_s in GAPS_S:
                bench_seen(name, latencies, max(20, int(chosen.appends * min(1, 0.3 / gap_s))), gap_s, chosen.seed)
        if "commits" in chosen.parts:
            bench_commits(name, latencies, chosen.writers, chosen.seconds, chosen.seed)


if __name__ == "__main__":
    main()
