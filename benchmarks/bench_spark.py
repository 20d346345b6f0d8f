"""Append, scan and micro-batch latency through Spark, as shares of the bare data source and of Parquet, in one run.

    python benchmarks/bench_spark.py [append] [scan] [drain] [tasks] [stream] [--records 2000000] [--value-bytes 104]
        [--rounds 3]

Variants take turns in each round (A B C, then C B A), so that a machine that drifts drifts for all of them. Rows name
the median wall seconds, records a second, the median of each round's ratio to `bare` (to `bare value` if the name ends
with `value`) by wall time and by CPU time, and CPU microseconds per record of all processes and of Spark's Python
processes.

`tasks` reads 1,000 partitions with one record each. By default, small partitions share a task. In the variants `in
1,000 tasks`, each task has one record. `range` measures 1,000 tasks that do not use Python.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import tempfile
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f
from spark_session import Timing, benchmark_session, timed

import sparklog

PARTITIONS = 16
SMALL = 1_000
CODECS = ("none", "lz4", "zstd")
COLUMNS = ("key", "value", "topic", "partition", "offset", "timestamp")
SIX = "key binary, value binary, topic string, partition int, offset long, timestamp timestamp"


def main() -> None:
    """Read the arguments and run what they name."""
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("parts", nargs="*", default=["append", "scan", "drain", "tasks", "stream"])
    arguments.add_argument("--records", type=int, default=2_000_000)
    arguments.add_argument("--value-bytes", type=int, default=104)
    arguments.add_argument("--rounds", type=int, default=3)
    arguments.add_argument("--batches", type=int, default=40, help="micro-batches measured by `stream`")
    chosen = arguments.parse_args()
    spark = benchmark_session()
    sparklog.register(spark)
    from bare_source import BareSource

    spark.dataSource.register(BareSource)
    folder = Path(tempfile.mkdtemp(prefix="sparklog-bench-"))
    try:
        if {"append", "scan", "drain"} & set(chosen.parts):
            append_and_scan(spark, folder, chosen)
        if "tasks" in chosen.parts:
            title = f"{SMALL:,} partitions of a record"
            show(title, compare(task_variants(spark, folder), chosen.rounds), SMALL)
        if "stream" in chosen.parts:
            stream(spark, folder, chosen.batches)
    finally:
        spark.stop()
        shutil.rmtree(folder, ignore_errors=True)


def append_and_scan(spark: SparkSession, folder: Path, chosen: argparse.Namespace) -> None:
    """Both tables; scans read what the appends wrote."""
    source = events(spark, folder, chosen.records, chosen.value_bytes)
    writers = append_variants(source, folder)
    label = f"{chosen.records:,} records of 16 + {chosen.value_bytes} bytes, {PARTITIONS} partitions"
    rounds = chosen.rounds if "append" in chosen.parts else 0
    results = compare(writers, rounds)
    if rounds:
        show(f"append: {label}", results, chosen.records)
    if "scan" in chosen.parts:
        show(f"scan: {label}", compare(scan_variants(spark, folder, chosen), chosen.rounds), chosen.records)
    if "drain" in chosen.parts:
        show(f"availableNow: {label}", compare(drain_variants(spark, folder, chosen), chosen.rounds), chosen.records)


def events(spark: SparkSession, folder: Path, records: int, value_bytes: int) -> DataFrame:
    """The input as uncompressed Parquet in the page cache: JSON-like events, as logs hold them, about 5x under zstd."""
    path = str(folder / "events.parquet")
    number = f.col("id").cast("string")
    kinds = f.array(*map(f.lit, ("view", "click", "order", "leave")))
    pieces = (
        ('{"user":"u', f.lpad(_draw(50_000, 0), 6, "0")),
        ('","event":"', f.element_at(kinds, _draw(4, 1).cast("int") + 1)),
        ('","page":"/item/', _draw(9_999, 2)),
        ('","ms":', f.lpad(_draw(99_999, 3), 5, "0")),
        (',"n":', number),
    )
    event = f.concat(*(part for name, column in pieces for part in (f.lit(name), column)), f.lit("}"))
    repeats = -(-value_bytes // 60)
    value = f.rpad(f.concat(*[event] * repeats), value_bytes, "x")
    frame = spark.range(0, records, 1, 2).select(
        f.encode(f.lpad(number, 16, "k"), "UTF-8").alias("key"), f.encode(value, "UTF-8").alias("value")
    )
    frame.write.option("compression", "none").mode("overwrite").parquet(path)
    return spark.read.parquet(path)


def _draw(below: int, seed: int) -> Column:
    """A number below `below` as text, the same for the same id and seed."""
    return f.pmod(f.xxhash64(f.col("id"), f.lit(seed)), f.lit(below)).cast("string")


def append_variants(source: DataFrame, folder: Path) -> dict[str, Callable[[], object]]:
    """noop is the cost of reading the source alone."""

    def parquet(codec: str) -> Callable[[], object]:
        path = str(folder / f"parquet-{codec}")
        return lambda: source.write.option("compression", codec).mode("overwrite").parquet(path)

    def log(codec: str) -> Callable[[], object]:
        options = {"topic": "events", "num.partitions": str(PARTITIONS), "compression.type": codec}
        root = folder / f"root-{codec}"

        def append() -> None:
            # As Parquet's overwrite does: what the run before wrote makes room for what this one writes.
            shutil.rmtree(root, ignore_errors=True)
            source.write.format("sparklog").mode("append").options(**options).save(str(root))

        return append

    return {
        "noop": lambda: source.write.format("noop").mode("overwrite").save(),
        "bare": lambda: source.write.format("bare").mode("append").save(),
        **{f"parquet-{codec}": parquet(codec) for codec in CODECS},
        **{f"sparklog-{codec}": log(codec) for codec in CODECS},
    }


def scan_variants(spark: SparkSession, folder: Path, chosen: argparse.Namespace) -> dict[str, Callable[[], object]]:
    """Six columns into noop; one fresh topic a codec so that every variant reads the same number of records."""
    root = str(folder / "scans")
    source = spark.read.parquet(str(folder / "events.parquet"))
    for codec in CODECS:
        options = {"topic": f"events-{codec}", "num.partitions": str(PARTITIONS), "compression.type": codec}
        source.write.format("sparklog").mode("append").options(**options).save(root)
        log = spark.read.format("sparklog").option("subscribe", f"events-{codec}").schema(SIX).load(root)
        log.write.option("compression", codec).mode("overwrite").parquet(str(folder / f"scan-{codec}"))

    def drain(frame: Callable[[], DataFrame]) -> Callable[[], object]:
        return lambda: frame().write.format("noop").mode("overwrite").save()

    def log_frame(codec: str, schema: str) -> Callable[[], DataFrame]:
        topic = f"events-{codec}"
        return lambda: spark.read.format("sparklog").option("subscribe", topic).schema(schema).load(root)

    def parquet_frame(codec: str) -> Callable[[], DataFrame]:
        return lambda: spark.read.parquet(str(folder / f"scan-{codec}"))

    def bare_frame(schema: str) -> Callable[[], DataFrame]:
        batch_rows = 10_000 if chosen.value_bytes < 500 else 2_000
        tasks, value_bytes = str(PARTITIONS), str(chosen.value_bytes)
        options = {"rows": str(chosen.records), "tasks": tasks, "valueBytes": value_bytes, "batchRows": str(batch_rows)}
        return lambda: spark.read.format("bare").options(**options).schema(schema).load()

    return {
        "bare": drain(bare_frame(SIX)),
        "bare value": drain(bare_frame("value binary")),
        **{f"parquet-{codec}": drain(parquet_frame(codec)) for codec in CODECS},
        **{f"sparklog-{codec}": drain(log_frame(codec, SIX)) for codec in CODECS},
        **{f"sparklog-{codec} value": drain(log_frame(codec, "value binary")) for codec in CODECS},
    }


def drain_variants(spark: SparkSession, folder: Path, chosen: argparse.Namespace) -> dict[str, Callable[[], object]]:
    """The bare source in one task a core, and in as many as the log has partitions; the log with each codec."""

    def drain(source: str, options: dict[str, str], path: str) -> Callable[[], object]:
        frame = spark.readStream.format(source).schema(SIX).options(**options).load(path)
        return partial(drain_stream, frame, folder / "drained", chosen.records)

    bare = {"rows": str(chosen.records), "valueBytes": str(chosen.value_bytes), "batchRows": "10000", "tasks": "2"}
    many = {**bare, "tasks": str(PARTITIONS)}
    read = {"subscribe": "events", "startingOffsets": "earliest"}
    variants = {"bare": drain("bare", bare, str(folder)), "bare in many tasks": drain("bare", many, str(folder))}
    for codec in CODECS:
        variants[f"sparklog-{codec}"] = drain("sparklog", read, str(folder / f"root-{codec}"))
    return variants


def task_variants(spark: SparkSession, folder: Path) -> dict[str, Callable[[], object]]:
    """Return reads of small partitions that share tasks, and reads with as many tasks as records."""
    path = folder / "small"
    topic = sparklog.open(path, create=True).create_topic("small", partitions=SMALL)
    topic.append(pa.table({"value": [b"x" * 100] * SMALL, "partition": pa.array(range(SMALL), pa.int32())}))

    def read(frame: Callable[[], DataFrame]) -> Callable[[], object]:
        return lambda: frame().write.format("noop").mode("overwrite").save()

    def log(**options: str) -> Callable[[], object]:
        reader = spark.read.format("sparklog").schema("value binary").options(**options)
        return read(lambda: reader.load(str(path / "small")))

    def bare(tasks: int) -> Callable[[], object]:
        options = {"rows": str(SMALL), "tasks": str(tasks), "batchRows": str(SMALL // tasks)}
        return read(lambda: spark.read.format("bare").schema("value binary").options(**options).load())

    return {
        "bare": bare(2),
        "sparklog": log(),
        "range in 1,000 tasks": read(lambda: spark.range(0, SMALL, 1, SMALL)),
        "bare in 1,000 tasks": bare(SMALL),
        "sparklog in 1,000 tasks": log(maxRecordsPerPartition="1"),
    }


def drain_stream(frame: DataFrame, checkpoint: Path, records: int) -> None:
    """Run a new query, which reads all that is there and ends; `noop` takes the rows."""
    shutil.rmtree(checkpoint, ignore_errors=True)
    writer = frame.writeStream.format("noop").option("checkpointLocation", str(checkpoint))
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    rows = sum(progress["numInputRows"] for progress in query.recentProgress)
    assert rows == records, f"{rows} rows"


def compare(variants: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, list[Timing]]:
    """One warm-up of each, then `rounds` rounds in alternating order."""
    results: dict[str, list[Timing]] = {name: [] for name in variants}
    order = list(variants)
    for number in range(rounds + 1):
        for name in order if number % 2 else reversed(order):
            timing = timed(variants[name])
            if number:
                results[name].append(timing)
    return results


def show(title: str, results: Mapping[str, list[Timing]], records: int) -> None:
    """Print one table."""
    columns = f"{'wall s':>8}{'M rec/s':>9}{'of bare':>9}{'by CPU':>8}{'CPU us/rec':>12}{'Python':>8}"
    print(f"\n{title}\n{'variant':<26}{columns}")
    for name, runs in results.items():
        wall = statistics.median(run.wall for run in runs)
        base = results["bare value" if name.endswith(" value") else "bare"]
        pairs = list(zip(runs, base, strict=True))
        share = statistics.median(bare.wall / run.wall for run, bare in pairs)
        cpu_share = statistics.median(bare.cpu / run.cpu for run, bare in pairs)
        cpu = statistics.median(run.cpu for run in runs) / records * 1e6
        python = statistics.median(run.by_process.get("python", 0.0) for run in runs) / records * 1e6
        rate = records / wall / 1e6
        print(f"{name:<26}{wall:>8.2f}{rate:>9.2f}{share:>9.0%}{cpu_share:>8.0%}{cpu:>12.2f}{python:>8.2f}", flush=True)


def stream(spark: SparkSession, folder: Path, batches: int) -> None:
    """Milliseconds of a small micro-batch: rate into a sink, and source into sink."""
    print(f"\nmicro-batch, {batches} batches after 10 of warm-up")
    print(f"{'source -> sink':<24}{'p50 ms':>8}{'p95 ms':>8}{'addBatch p50':>14}")
    root = str(folder / "streams")
    rows = ticks(spark)
    into = {"topic": "ticks", "num.partitions": "4"}
    bare = spark.readStream.format("bare").option("tasks", "4").load().select("key", "value")
    pairs = {
        "rate -> bare": rows.writeStream.format("bare"),
        "rate -> sparklog": rows.writeStream.format("sparklog").options(**into).option("path", root),
        "bare -> bare": bare.writeStream.format("bare"),
        "bare -> sparklog": bare.writeStream.format("sparklog")
        .options(topic="fed", **{"num.partitions": "4"})
        .option("path", root),
    }
    for name, writer in pairs.items():
        progress = run_query(writer, str(folder / "checkpoints" / name.replace(" -> ", "-")), batches)
        whole = sorted(p["durationMs"]["triggerExecution"] for p in progress)
        adding = statistics.median(p["durationMs"]["addBatch"] for p in progress)
        print(
            f"{name:<24}{statistics.median(whole):>8.0f}{whole[int(len(whole) * 0.95) - 1]:>8.0f}{adding:>14.0f}",
            flush=True,
        )


def ticks(spark: SparkSession, tasks: int = 2) -> DataFrame:
    """2,000 records a second of Spark's `rate` source."""
    options = {"rowsPerSecond": "2000", "numPartitions": str(tasks)}
    rate = spark.readStream.format("rate").options(**options).load()
    return rate.select(
        f.encode(f.col("value").cast("string"), "UTF-8").alias("key"),
        f.encode(f.rpad(f.col("value").cast("string"), 100, "x"), "UTF-8").alias("value"),
    )


def run_query(writer: Any, checkpoint: str, batches: int, warm_up: int = 10) -> list[dict[str, Any]]:
    """Progress of `batches` non-empty micro-batches after those of the warm-up."""
    seen: dict[int, dict[str, Any]] = {}
    query = writer.option("checkpointLocation", checkpoint).start()
    try:
        while len(seen) < batches + warm_up:
            for progress in query.recentProgress:
                if progress["numInputRows"]:
                    seen[progress["batchId"]] = progress
            if not query.isActive:
                raise SystemExit(f"the query ended: {query.exception()}")
            query.awaitTermination(1)
    finally:
        query.stop()
    return [seen[key] for key in sorted(seen)[warm_up : batches + warm_up]]


if __name__ == "__main__":
    main()
