"""`bench_day --real`: Spark's micro-batches for real time, one a second, into sparklog, Delta and Iceberg in turns.

Each format has its time alone, the same rate (2,000 records a second), and its own maintenance four times: `compact`
and `retain`; OPTIMIZE and VACUUM; rewrite_data_files and expire_snapshots. What cannot be had is named: no release of
pyspark has Delta and Iceberg, so that a run with 4.2 and one with 4.1 are needed.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import bench_spark
from pyspark.sql import SparkSession
from spark_session import benchmark_session, tree

import sparklog
from sparklog.compaction.run import compact_root
from sparklog.jobs import delta
from sparklog.maintenance.work_items import InProcess, Settings
from sparklog.retention.retain import retain_root
from tests.datasource.live_delta import delta_jars, iceberg_jars
from tests.kafka_tools import Missing
from tests.support.inline_bytes import inline_records_of

RUNS = 4
"""Of maintenance; figures of the first and the last of these parts are compared."""
WARM_UP = 20
"""Batches before the first part: they start processes, make the table and compile code."""
PARTITIONS = "16"


@dataclass(frozen=True)
class Part:
    """Milliseconds of a batch (p95), and memory at the end."""

    p95: float
    memory: dict[str, float]


@dataclass(frozen=True)
class Format:
    """`place` has its files; `start` takes a writer and returns the query; `metadata` counts a file's bytes of it."""

    place: Path
    start: Callable[[Any], Any]
    maintain: Callable[[], object]
    metadata: Callable[[Path], int]


def run(seconds: int, only: str) -> None:
    """Print a line for each format, or for one."""
    jars, missing = [], []
    for name, fetch in (("delta", delta_jars), ("iceberg", iceberg_jars)):
        try:
            jars += [(name, str(jar)) for jar in fetch()]
        except Missing as reason:
            missing.append(f"{name}: {reason}")
    with tempfile.TemporaryDirectory(prefix="sparklog-day-") as folder:
        catalog = {
            "spark.sql.catalog.ice": "org.apache.iceberg.spark.SparkCatalog",
            "spark.sql.catalog.ice.type": "hadoop",
            "spark.sql.catalog.ice.warehouse": f"{folder}/iceberg",
        }
        peers = {name for name, _ in jars}
        settings = {"delta": {**delta.SETTINGS, "spark.databricks.delta.snapshotPartitions": "2"}, "iceberg": catalog}
        more = {"spark.jars": ",".join(jar for _, jar in jars)} if jars else {}
        for name in peers:
            more |= settings[name]
        spark = benchmark_session(**more)
        sparklog.register(spark)
        print(f"{seconds} s each, a trigger of 1 s, 2,000 records a second; maintenance {RUNS} times")
        print("format     batches  p95 first, last part     files  metadata KB  of data  MiB: driver, JVM, workers")
        for name, made in formats(spark, Path(folder), peers).items():
            if only not in ("", name):
                continue
            try:
                print(
                    f"{name:<10} {measured(spark, made, seconds / RUNS, Path(folder) / f'checkpoint-{name}')}",
                    flush=True,
                )
            except Exception as error:  # noqa: BLE001
                print(f"{name:<10} could not be measured: {' '.join(str(error).split())[:200]}", flush=True)
        spark.stop()
    print(*(f"could not be measured: {line}" for line in missing), sep="\n")


def formats(spark: SparkSession, folder: Path, peers: set[str]) -> dict[str, Format]:
    place = {name: folder / name for name in ("sparklog", "delta", "iceberg")}
    options = {"topic": "ticks", "num.partitions": PARTITIONS, "path": str(place["sparklog"])}

    def both_jobs() -> None:
        root, settings = sparklog.open(place["sparklog"]), Settings(time.time_ns() // 1_000_000)
        compact_root(root, settings, InProcess())
        retain_root(root, settings)

    def optimize() -> None:
        spark.sql(f"OPTIMIZE delta.`{place['delta']}`")
        spark.sql(f"VACUUM delta.`{place['delta']}`")

    def rewrite() -> None:
        spark.sql("CALL ice.system.rewrite_data_files('db.ticks')")
        spark.sql("CALL ice.system.expire_snapshots('db.ticks')")

    def iceberg(writer: Any) -> Any:
        spark.sql("CREATE TABLE ice.db.ticks (key BINARY, value BINARY) USING iceberg")
        return writer.format("iceberg").toTable("ice.db.ticks")

    made = {
        "sparklog": Format(
            place["sparklog"],
            lambda writer: writer.format("sparklog").options(**options).start(),
            both_jobs,
            log_metadata,
        ),
        "delta": Format(
            place["delta"],
            lambda writer: writer.format("delta").start(str(place["delta"])),
            optimize,
            lambda path: path.stat().st_size if "_delta_log" in path.parts else 0,
        ),
        "iceberg": Format(
            place["iceberg"],
            iceberg,
            rewrite,
            lambda path: path.stat().st_size if "metadata" in path.parts else 0,
        ),
    }
    return {name: made[name] for name in made if name == "sparklog" or name in peers}


def log_metadata(path: Path) -> int:
    """Count the bytes of a log's file that are metadata: of a commit all but the records in it."""
    if {"append", "sealed"} & {*path.parts}:
        return 0
    data = path.read_bytes()
    return len(data) - (len(inline_records_of(data)) if path.parent.name == "_log" and path.suffix == ".json" else 0)


def measured(spark: SparkSession, made: Format, part_s: float, checkpoint: Path) -> str:
    """Run one query for all parts, with maintenance at the end of each."""
    writer = bench_spark.ticks(spark).writeStream.option("checkpointLocation", str(checkpoint))
    query = made.start(writer.trigger(processingTime="1 second"))
    seen: dict[int, float] = {}
    parts: list[Part] = []
    try:
        while len(seen) < WARM_UP:
            look(query, seen)
        for _ in range(RUNS):
            before, until = set(seen), time.monotonic() + part_s
            while time.monotonic() < until:
                look(query, seen)
            batches = [seen[batch] for batch in seen.keys() - before]
            parts.append(Part(statistics.quantiles(batches, n=20)[-1], memory_mib()))
            made.maintain()
    finally:
        query.stop()
    files = [path for path in made.place.rglob("*") if path.is_file()]
    metadata = sum(map(made.metadata, files))
    data = sum(path.stat().st_size for path in files) - metadata
    first, last = parts[0], parts[-1]
    memory = "  ".join(f"{first.memory[kind]:,.0f}, {last.memory[kind]:,.0f}" for kind in ("driver", "jvm", "python"))
    return (
        f"{len(seen):7}  {first.p95:6.0f}, {last.p95:6.0f} ms {last.p95 / first.p95:5.2f}x  {len(files):6,}  "
        f"{metadata / 1e3:11,.0f}  {metadata / max(data, 1):7.1%}  {memory}"
    )


def look(query: Any, seen: dict[int, float]) -> None:
    """Wait a second, and add the milliseconds of each new batch with rows. Raises RuntimeError if the query ended."""
    if query.awaitTermination(1):
        raise RuntimeError(str(query.exception()))
    for progress in query.recentProgress:
        if progress["numInputRows"]:
            seen[progress["batchId"]] = progress["durationMs"]["triggerExecution"]


def memory_mib() -> dict[str, float]:
    """Resident MiB by kind of process."""
    total: defaultdict[str, float] = defaultdict(float)
    for process in tree().values():
        total[process.kind] += process.resident_mib
    return total
