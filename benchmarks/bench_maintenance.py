"""Maintenance: compaction, sealing, merging. Records a second of a task, MB/s of a core, memory, two tasks against one.

Run: `python benchmarks/bench_maintenance.py [--records N] [--rounds N] [--big-map N] [--no-spark] [--only-spark]`. The
data is that of Kafka's cleaner in docs/design/performance.md: 16-byte keys, 100-byte values, so that figures compare.
Wall seconds of the work itself (read, filter, write, fsync), local disk, page cache warm; a run prepares its topic
again, the median counts.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa

from sparklog.compaction.clean_plan import plan_cleaning
from sparklog.compaction.merge_plan import plan_merges
from sparklog.compaction.seal_plan import plan_sealing
from sparklog.format.kernels.warm import warm_up
from sparklog.format.record_batch import Codec
from sparklog.log.state.rewrites import RewriteIntent
from sparklog.log.topic.root import open_root
from sparklog.log.topic.topic import Topic
from sparklog.log.write.append_target import WriteOptions
from sparklog.maintenance.work_items import InProcess, Runner, Settings, Work, WorkResult
from sparklog.storage.local import LocalStore

VALUE_BYTES = 100
AT_ONCE = 500_000
START_MS = 1_700_000_000_000
MAP_PROGRAM = """
import resource, sys, time
import numpy as np
from sparklog.format.offset_map import OffsetMap
keys = int(sys.argv[1])
offsets = OffsetMap(int(keys / 0.9) + 2, 0.9)
began, done, chosen = time.perf_counter(), 0, np.random.default_rng(1)
while done < keys:
    n = min(1 << 20, keys - done)
    hashes = chosen.integers(0, 2**64, (n, 2), dtype=np.uint64)
    taken = offsets.put(hashes, np.arange(done, done + n))
    if taken != n:
        raise SystemExit(f"the map took {done + taken} keys of {keys}")
    done += n
spent = time.perf_counter() - began
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(peak / 2**20, offsets.nbytes / 2**30, keys / spent / 1e6)
"""


def rows(start: int, count: int, unique: int, chosen: np.random.Generator) -> pa.Table:
    """`count` records with 16-byte keys out of `unique` and 100-byte values that compress about 3:1."""
    ids = chosen.integers(0, unique, count)
    key = np.char.add(b"user-", np.char.zfill(ids.astype("S11"), 11)).astype("S16")
    noise = chosen.integers(97, 123, (count, 34), dtype=np.uint8)
    value = np.tile(noise, (1, 3))[:, :VALUE_BYTES]
    return pa.table(
        {
            "key": fixed(np.frombuffer(key.tobytes(), np.uint8), count, 16),
            "value": fixed(np.ascontiguousarray(value).reshape(-1), count, VALUE_BYTES),
            "timestamp": pa.array(START_MS + np.arange(start, start + count) // 50, pa.timestamp("ms", tz="UTC")),
        }
    )


def fixed(data: np.ndarray, count: int, width: int) -> pa.Array:
    """Bytes of equal lengths as a binary array."""
    offsets = pa.py_buffer(np.arange(0, (count + 1) * width, width, dtype=np.int32))
    return pa.Array.from_buffers(pa.binary(), count, [None, offsets, pa.py_buffer(data.tobytes())])


def filled(
    folder: Path, name: str, records: int, unique: int, *, codec: Codec, partitions: int = 1, **configs: object
) -> Topic:
    """A topic with `records` records in each partition, in commits of half a million."""
    root = open_root(LocalStore(str(folder), durable=True), create=True)
    names = {key.replace("_", "."): value for key, value in configs.items()}
    topic = root.create_topic(name, partitions=partitions, configs=names)
    chosen = np.random.default_rng(7)
    for start in range(0, records, AT_ONCE):
        table = rows(start, min(AT_ONCE, records - start), unique, chosen)
        for partition in range(partitions):
            table = table.append_column("partition", pa.array(np.full(len(table), partition, np.int32)))
            topic.append(table, options=WriteOptions(codec=codec))
            table = table.drop_columns("partition")
    return topic


def settings() -> Settings:
    """A clock beyond all records."""
    return Settings(START_MS + 30 * 86_400_000)


def run(topic: Topic, works: Sequence[Work], runner: Runner) -> tuple[float, list[WorkResult]]:
    """Run and commit; wall seconds, and what was done."""
    began = time.perf_counter()
    finished = []
    for work, done in runner.run(works):
        if not isinstance(done, WorkResult):
            raise SystemExit(f"{work.title}: {done}")
        topic.log.commit(RewriteIntent(work.op, work.topic_id, done.rewrites, done.files))
        finished.append(done)
    return time.perf_counter() - began, finished


def sealed(topic: Topic, runner: Runner) -> tuple[float, int]:
    """Seal all of it: seconds and bytes."""
    works = plan_sealing(topic.store, topic.log.snapshot(), settings(), roll=True)
    spent, done = run(topic, works, runner)
    return spent, sum(report.bytes_before for each in done for report in each.reports)


def bench_compaction(records: int, rounds: int) -> None:
    """One task over one partition: all of it dirty."""
    for codec in ("none", "lz4", "zstd"):
        for unique in (records // 10, records // 2):
            spent, left = [], 0
            for _ in range(rounds):
                with tempfile.TemporaryDirectory() as folder:
                    topic = filled(
                        Path(folder),
                        "t",
                        records,
                        unique,
                        codec=codec,
                        cleanup_policy="compact",
                        segment_bytes=256 << 20,
                    )
                    sealed(topic, InProcess())
                    works = plan_cleaning(topic.store, topic.log.snapshot(), settings())
                    seconds, done = run(topic, works, InProcess())
                    spent.append(seconds)
                    left = sum(report.records_after for each in done for report in each.reports)
            best = statistics.median(spent)
            print(
                f"compact  {codec:5} {records:>9,} records, {unique:>9,} keys  {best:6.2f} s  "
                f"{records / best / 1e6:5.2f} M records/s  {records * (VALUE_BYTES + 16) / best / 1e6:5.0f} MB/s  "
                f"{left:,} left",
                flush=True,
            )


def bench_linear(records: int) -> None:
    """Clean the same log with growing dirty parts: seconds beyond those of the clean part."""
    for share in (1, 2, 4):
        with tempfile.TemporaryDirectory() as folder:
            topic = filled(
                Path(folder), "t", records * share // 4, records, codec="none", cleanup_policy="compact",
                segment_bytes=64 << 20, min_cleanable_dirty_ratio=0.01,
            )  # fmt: skip
            sealed(topic, InProcess())
            seconds, _ = run(topic, plan_cleaning(topic.store, topic.log.snapshot(), settings()), InProcess())
            print(f"compact  none  {records * share // 4:>9,} dirty records  {seconds:6.2f} s", flush=True)


def bench_rewriting(records: int, rounds: int) -> None:
    """Sealing, and merging of many small appends."""
    for codec in ("none", "lz4"):
        spent, rates = [], []
        for _ in range(rounds):
            with tempfile.TemporaryDirectory() as folder:
                topic = filled(Path(folder), "t", records, records, codec=codec)
                seconds, nbytes = sealed(topic, InProcess())
                spent.append(seconds)
                rates.append(nbytes / seconds / 1e6)
        print(f"seal     {codec:5} {statistics.median(spent):6.2f} s  {statistics.median(rates):5.0f} MB/s", flush=True)
    rates = []
    for _ in range(rounds):
        with tempfile.TemporaryDirectory() as folder:
            root = open_root(LocalStore(folder, durable=False), create=True)
            topic = root.create_topic("t", partitions=16)
            chosen = np.random.default_rng(7)
            for start in range(0, records // 5, 20_000):
                topic.append(rows(start, 20_000, records, chosen), options=WriteOptions(codec="none"))
            works = plan_merges(LocalStore(folder), topic.log.snapshot(), settings())
            seconds, done = run(topic, works, InProcess())
            rates.append(sum(report.bytes_before for each in done for report in each.reports) / seconds / 1e6)
    print(
        f"merge    none  {records // 5 // 20_000} appends, 16 partitions  {statistics.median(rates):5.0f} MB/s",
        flush=True,
    )


def bench_big_map(keys: int) -> None:
    """Memory of a process whose map holds so many keys."""
    output = subprocess.run([sys.executable, "-c", MAP_PROGRAM, str(keys)], check=True, capture_output=True, text=True)
    process, size, rate = (float(word) for word in output.stdout.split())
    print(
        f"map      {keys:,} unique keys  {size:.2f} GiB, {process:.2f} GiB the process  {rate:.1f} M puts/s", flush=True
    )


def bench_two_tasks(records: int) -> None:
    """Two partitions in two Spark tasks at once, against the same two tasks one after the other."""
    from spark_session import benchmark_session

    from sparklog.maintenance.spark_runner import SparkRunner

    spark = benchmark_session()
    try:
        runner = SparkRunner(spark)
        # The first round warms up Spark's Python workers.
        two_tasks(runner, records, "none", together=True)
        for codec in ("none", "zstd"):
            seconds: dict[bool, list[float]] = {False: [], True: []}
            for together in (False, True) * 3:
                seconds[together].append(two_tasks(runner, records, codec, together=together))
            one, two = statistics.median(seconds[False]), statistics.median(seconds[True])
            print(
                f"compact  {codec:5} 2 partitions, Spark: {one:.2f} s one after the other, {two:.2f} s on 2 cores: "
                f"{one / two:.2f}x, {2 * records / two / 1e6:.2f} M records/s",
                flush=True,
            )
    finally:
        spark.stop()


def two_tasks(runner: Runner, records: int, codec: Codec, *, together: bool) -> float:
    """Compact two partitions of so many records, all of them dirty; seconds."""
    with tempfile.TemporaryDirectory() as folder:
        topic = filled(
            Path(folder), "t", records, records // 10, codec=codec, partitions=2, cleanup_policy="compact",
            segment_bytes=256 << 20,
        )  # fmt: skip
        sealed(topic, runner)
        works = plan_cleaning(topic.store, topic.log.snapshot(), settings())
        batches = [works] if together else [[work] for work in works]
        return sum(run(topic, batch, runner)[0] for batch in batches)


def main() -> None:
    """All of it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--records", type=int, default=5_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--big-map", type=int, default=50_000_000, help="unique keys of the memory test")
    parser.add_argument("--only-spark", action="store_true", help="the two Spark tasks alone")
    parser.add_argument("--no-spark", action="store_true", help="leave out the two Spark tasks")
    chosen = parser.parse_args()
    warm_up()
    if not chosen.only_spark:
        bench_compaction(chosen.records, chosen.rounds)
        bench_linear(chosen.records)
        bench_rewriting(chosen.records, chosen.rounds)
        bench_big_map(chosen.big_map)
    if not chosen.no_spark:
        bench_two_tasks(chosen.records)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(f"peak memory of this process {peak:.2f} GB", flush=True)


if __name__ == "__main__":
    main()
