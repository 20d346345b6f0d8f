"""One streaming query of `bench_day --real` in a process of its own, because each format requires another Spark.

Usage: `day_query.py FORMAT FOLDER`. The table and the checkpoint are created in FOLDER. A line `maintain` on stdin
starts the maintenance of the format, and the end of stdin stops the query. Each line of stdout is a JSON event:
`start`, `batch`, `maintenance` or `end`.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import pyspark
from bench_spark import ticks
from pyspark.sql import SparkSession
from spark_session import benchmark_session

import sparklog
from sparklog.jobs import delta
from tests.datasource.live_delta import DELTA_VERSION, ICEBERG_VERSION, delta_jars, iceberg_jars

RETENTION_MINUTES = 5
"""Delta and Iceberg delete files and snapshots that were replaced before this time. Their defaults are five and seven
days, so their metadata would grow during the whole benchmark."""
DELTA_PROPERTIES = {
    "delta.checkpointInterval": "100",
    "delta.dataSkippingNumIndexedCols": "0",
    "delta.deletedFileRetentionDuration": f"interval {RETENTION_MINUTES} minutes",
    "delta.logRetentionDuration": f"interval {RETENTION_MINUTES} minutes",
}
ICEBERG_PROPERTIES = {
    "write.metadata.delete-after-commit.enabled": "true",
    # The rewrite of data files fails if more versions are committed before it ends.
    "write.metadata.previous-versions-max": "200",
    "write.metadata.compression-codec": "gzip",
    "write.metadata.metrics.default": "none",
    "commit.manifest-merge.enabled": "true",
    # Otherwise, the maintenance loses against the commits of the query, and fails after four attempts.
    "commit.retry.num-retries": "50",
    "commit.retry.min-wait-ms": "20",
    "commit.retry.max-wait-ms": "500",
}
COMMON = {
    "spark.driver.memory": "2g",
    # Otherwise, micro-batches wait until all tasks of the maintenance have ended.
    "spark.scheduler.mode": "FAIR",
    # Hadoop starts fewer commands such as `chmod` for the files of a checkpoint.
    "spark.sql.streaming.checkpointFileManagerClass": "org.apache.spark.sql.execution.streaming.checkpointing."
    "FileSystemBasedCheckpointFileManager",
    # Otherwise, the heap grows until Spark has retained 1,000 jobs and stages.
    "spark.ui.retainedJobs": "50",
    "spark.ui.retainedStages": "50",
    "spark.ui.retainedTasks": "500",
    "spark.sql.ui.retainedExecutions": "50",
}


@dataclass(frozen=True)
class Format:
    """`settings` of the Spark session, `start` of the query, and statements or commands for the maintenance."""

    version: str
    settings: Callable[[Path], dict[str, str]]
    start: Callable[[SparkSession, Path, Any], Any]
    maintain: Callable[[SparkSession, Path], object]


def start_sparklog(spark: SparkSession, folder: Path, writer: Any) -> Any:
    sparklog.register(spark)
    properties = subprocess.run([_command(), "conf", "sparklog.properties"], capture_output=True, check=True).stdout
    (folder / "sparklog.properties").write_bytes(properties)
    options = {"topic": "ticks", "num.partitions": "16", "path": str(folder / "table")}
    return writer.format("sparklog").options(**options).start()


def compact_and_retain(_: SparkSession, folder: Path) -> None:
    for job in ("compact", "retain"):
        words = [_command(), job, "--root", folder / "table", "--properties", folder / "sparklog.properties"]
        ended = subprocess.run(words, capture_output=True, text=True, check=False)
        if ended.returncode:
            raise RuntimeError(f"{job}: {(ended.stderr or ended.stdout).strip()}")


def _command() -> str:
    return str(Path(sys.executable).with_name("sparklog"))


def start_delta(spark: SparkSession, folder: Path, writer: Any) -> Any:
    properties = _properties(DELTA_PROPERTIES)
    spark.sql(f"CREATE TABLE delta.`{folder / 'table'}` (key BINARY, value BINARY) USING delta {properties}")
    return writer.format("delta").start(str(folder / "table"))


def optimize_and_vacuum(spark: SparkSession, folder: Path) -> None:
    table = f"delta.`{folder / 'table'}`"
    run_all(spark, f"OPTIMIZE {table}", f"VACUUM {table} RETAIN {RETENTION_MINUTES / 60:.4f} HOURS")


def start_iceberg(spark: SparkSession, _: Path, writer: Any) -> Any:
    properties = _properties(ICEBERG_PROPERTIES)
    spark.sql(f"CREATE TABLE ice.table.ticks (key BINARY, value BINARY) USING iceberg {properties}")
    return writer.format("iceberg").toTable("ice.table.ticks")


def rewrite_and_expire(spark: SparkSession, _: Path) -> None:
    expiry = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(time.time() - 60 * RETENTION_MINUTES))
    snapshots = f"table => 'table.ticks', older_than => TIMESTAMP '{expiry}', retain_last => 1"
    run_all(
        spark,
        "CALL ice.system.rewrite_data_files('table.ticks')",
        "CALL ice.system.rewrite_manifests('table.ticks')",
        f"CALL ice.system.expire_snapshots({snapshots})",
    )


def run_all(spark: SparkSession, *statements: str) -> None:
    """Run all statements, even if some of them fail. Then raise the first error."""
    failures = []
    for statement in statements:
        try:
            spark.sql(statement)
        except Exception as failure:  # noqa: BLE001
            failures.append(failure)
    if failures:
        raise failures[0]


def _properties(values: dict[str, str]) -> str:
    return f"TBLPROPERTIES ({', '.join(f'{name!r} = {value!r}' for name, value in values.items())})"


def _delta_settings(_: Path) -> dict[str, str]:
    return {
        "spark.jars": ",".join(map(str, delta_jars())),
        **delta.SETTINGS,
        "spark.databricks.delta.snapshotPartitions": "1",
        # Delta reads its log with Spark jobs in each micro-batch. They take a fifth more CPU time with this setting.
        "spark.sql.adaptive.enabled": "false",
        # VACUUM starts as many tasks, 10,000 by default.
        "spark.sql.sources.parallelPartitionDiscovery.parallelism": "2",
        "spark.databricks.delta.retentionDurationCheck.enabled": "false",
    }


def _iceberg_settings(folder: Path) -> dict[str, str]:
    return {
        "spark.jars": ",".join(map(str, iceberg_jars())),
        "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
        "spark.sql.catalog.ice": "org.apache.iceberg.spark.SparkCatalog",
        "spark.sql.catalog.ice.type": "hadoop",
        "spark.sql.catalog.ice.warehouse": str(folder),
        "spark.sql.session.timeZone": "UTC",
    }


FORMATS = {
    "sparklog": Format(sparklog.__version__, lambda _: {}, start_sparklog, compact_and_retain),
    "delta": Format(DELTA_VERSION, _delta_settings, start_delta, optimize_and_vacuum),
    "iceberg": Format(ICEBERG_VERSION, _iceberg_settings, start_iceberg, rewrite_and_expire),
}


def main() -> None:
    name, folder = sys.argv[1], Path(sys.argv[2])
    kind = FORMATS[name]
    spark = benchmark_session(**COMMON, **kind.settings(folder))
    writer = ticks(spark, tasks=1).writeStream.option("checkpointLocation", str(folder / "checkpoint"))
    query = kind.start(spark, folder, writer.trigger(processingTime="1 second"))
    send("start", format=f"{name} {kind.version}", spark=pyspark.__version__)
    stopped = threading.Event()

    def maintain() -> None:
        spark.sparkContext.setLocalProperty("spark.scheduler.pool", "maintenance")
        kind.maintain(spark, folder)

    threading.Thread(target=obey, args=(maintain, stopped), daemon=True).start()
    last = -1
    while not stopped.is_set():
        ended = query.awaitTermination(1)
        for progress in query.recentProgress:
            if progress["numInputRows"] and progress["batchId"] > last:
                last = progress["batchId"]
                send("batch", ms=progress["durationMs"]["triggerExecution"], rows=progress["numInputRows"])
        if ended:
            send("end", error=_line(query.exception()))
            return
    query.stop()
    send("end", error="")
    spark.stop()


def obey(maintain: Callable[[], object], stopped: threading.Event) -> None:
    """Run the maintenance for each line of stdin. A failure is reported, and the query continues."""
    for _ in sys.stdin:
        begun, error = time.monotonic(), ""
        try:
            maintain()
        except Exception as failure:  # noqa: BLE001
            error = _line(failure)
        send("maintenance", seconds=round(time.monotonic() - begun, 2), error=error)
    stopped.set()


def send(event: str, **fields: Any) -> None:
    sys.stdout.write(json.dumps({"event": event, **fields}) + "\n")
    sys.stdout.flush()


def _line(error: object) -> str:
    """Return one line that describes an error. If Java has reported causes, the last cause is the line."""
    text = str(error)
    causes = [line for line in text.splitlines() if line.startswith("Caused by: ")]
    return " ".join((causes[-1] if causes else text).split())[:300]


if __name__ == "__main__":
    main()
