"""A topic as a table: plain Python and Spark's `view=table`, against `row_number` over a scan, in one run.

    python benchmarks/bench_table.py [--records 5000000] [--keys 500000] [--partitions 4] [--rounds 3] [--no-spark]

Records have 16-byte keys, drawn at random, and 100-byte values. Variants take turns in each round; rows name the median
wall and CPU seconds (JVM and Python). A scan of all records by plain Python shows what reading them costs.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import tempfile
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
from spark_session import Timing, benchmark_session, timed

import sparklog
from sparklog.format.kernels.warm import warm_up
from sparklog.log.topic.topic import Topic

COLUMNS = ("key", "value", "partition", "offset", "timestamp")
TYPES = "key binary, value binary, partition int, offset long, timestamp timestamp"
LATEST = """
SELECT key, value, partition, offset, timestamp FROM (
    SELECT *, row_number() OVER (PARTITION BY partition, key ORDER BY offset DESC) AS age FROM log WHERE key IS NOT NULL
) WHERE age = 1 AND value IS NOT NULL
"""


def main() -> None:
    """Read the arguments, append the records, and measure."""
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--records", type=int, default=5_000_000)
    arguments.add_argument("--keys", type=int, default=500_000)
    arguments.add_argument("--partitions", type=int, default=4)
    arguments.add_argument("--rounds", type=int, default=3)
    arguments.add_argument("--no-spark", action="store_true")
    chosen = arguments.parse_args()
    warm_up()
    folder = Path(tempfile.mkdtemp(prefix="sparklog-bench-"))
    try:
        topic = sparklog.open(folder / "log", create=True).create_topic("events", partitions=chosen.partitions)
        for seed in range(10):
            topic.append(events(chosen.records // 10, chosen.keys, seed))
        variants = plain_variants(topic)
        if not chosen.no_spark:
            variants |= spark_variants(topic)
        show(compare(variants, chosen.rounds))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def events(count: int, keys: int, seed: int) -> pa.Table:
    """Records with random keys, one in a hundred of them a tombstone."""
    rng = np.random.default_rng(seed)
    numbers = np.char.zfill(rng.integers(0, keys, count).astype("S11"), 11)
    note = b'","type":"cart","note":"refund-%05x click-%05x order-%05x view-%05x ship"}'
    notes = np.array([note % tuple(row) for row in rng.integers(0, 10**5, (1000, 4)).tolist()])
    ids = np.char.add(b'{"id":"', rng.integers(0, 10**9, count).astype("S10"))
    values = np.char.add(ids, notes[rng.integers(0, 1000, count)]).tolist()
    key = pa.array(np.char.add(b"user-", numbers).tolist(), pa.binary())
    return pa.table({"key": key, "value": pa.array(values, pa.binary(), mask=rng.random(count) < 0.01)})


def plain_variants(topic: Topic) -> dict[str, Callable[[], object]]:
    """In this process, with one thread and with two."""

    def drain(batches: Iterable[pa.RecordBatch]) -> int:
        return sum(batch.num_rows for batch in batches)

    expected = drain(topic.table())
    print(f"{topic.count().records:,} records, {expected:,} rows")
    return {
        "plain scan": lambda: drain(topic.scan(columns=COLUMNS)),
        "plain table": lambda: drain(topic.table(columns=COLUMNS)),
        "plain scan, 2 threads": lambda: drain(topic.scan(columns=COLUMNS, threads=2)),
        "plain table, 2 threads": lambda: drain(topic.table(columns=COLUMNS, threads=2)),
        "follow": lambda: len(topic.table(threads=2).follow()),
    }


def spark_variants(topic: Topic) -> dict[str, Callable[[], object]]:
    """Into noop: the table, and the same rows by a window over a scan."""
    spark = benchmark_session()
    sparklog.register(spark)
    root = topic.root.location
    read = spark.read.format("sparklog").option("subscribe", topic.name).schema(TYPES)
    read.load(root).createOrReplaceTempView("log")
    rows = {"view=table": read.option("view", "table").load(root), "row_number": spark.sql(LATEST)}
    counts = {name: frame.count() for name, frame in rows.items()}
    if len(set(counts.values())) > 1:
        raise SystemExit(f"the rows differ, nothing was measured: {counts}")

    def drain(name: str) -> None:
        rows[name].write.format("noop").mode("overwrite").save()

    return {f"Spark {name}": partial(drain, name) for name in rows}


def compare(variants: dict[str, Callable[[], object]], rounds: int) -> dict[str, list[Timing]]:
    """One warm-up of each, then `rounds` rounds in alternating order."""
    results: dict[str, list[Timing]] = {name: [] for name in variants}
    for number in range(rounds + 1):
        for name in list(variants) if number % 2 else reversed(list(variants)):
            timing = timed(variants[name])
            if number:
                results[name].append(timing)
    return results


def show(results: dict[str, list[Timing]]) -> None:
    """Print one table."""
    print(f"{'variant':<24}{'wall s':>8}{'CPU s':>8}")
    for name, runs in results.items():
        wall, cpu = (statistics.median(getattr(run, field) for run in runs) for field in ("wall", "cpu"))
        print(f"{name:<24}{wall:>8.2f}{cpu:>8.2f}")


if __name__ == "__main__":
    main()
