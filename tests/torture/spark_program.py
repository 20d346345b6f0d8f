"""The Spark program of the torture test: a streaming query and concurrent batch appends, until it is killed.

    python -m tests.torture.spark_program FOLDER ROOT NAME [--finish]

The query reads two topics and writes each record to one of two others, in one transaction per micro-batch. With
`--finish`, it reads to the end and exits. A batch append of a killed program is repeated with its number.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import sparklog
from tests.torture.process import LedgerTail, Process, World
from tests.torture.writers import PLAIN, SEQUENCED

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming import StreamingQuery

STREAMED = ("streamed-0", "streamed-1")
BATCHED, BATCH_ROWS = "batched", 20
TRIGGER = "3 seconds"


def start_query(spark: SparkSession, folder: Path, root: str, finish: bool) -> StreamingQuery:
    rows = (
        spark.readStream.format("sparklog")
        .options(subscribe=f"{PLAIN},{SEQUENCED}", startingOffsets="earliest", maxOffsetsPerTrigger=3_000)
        .load(root)
    )
    topic = f"CASE WHEN hash(value) % 2 = 0 THEN '{STREAMED[0]}' ELSE '{STREAMED[1]}' END AS topic"
    writer = rows.selectExpr("key", "value", topic).writeStream.format("sparklog")
    writer = writer.option("path", root).option("checkpointLocation", str(folder / "checkpoint"))
    trigger = writer.trigger(availableNow=True) if finish else writer.trigger(processingTime=TRIGGER)
    return trigger.start()


def append_batch(spark: SparkSession, root: str, number: int) -> None:
    rows = spark.range(BATCH_ROWS).selectExpr(f"concat('batch-{number}/', id) AS value")
    writer = rows.write.format("sparklog").options(topic=BATCHED, txnAppId="torture", txnVersion=number)
    writer.mode("append").save(root)


def last_error(error: Exception) -> str:
    """Return the line with the cause: the last line with an error of Python, or else the first line."""
    lines = str(error).strip().splitlines()
    return next((line for line in reversed(lines) if "Error: " in line or line.startswith("sparklog.")), lines[0])


def start_spark(folder: Path) -> SparkSession:
    from pyspark.sql import SparkSession

    java = f"-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -Djava.io.tmpdir={folder} -Dlog4j2.level=error"
    settings = {
        "spark.ui.enabled": "false",
        "spark.driver.memory": "700m",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.extraJavaOptions": java,
        "spark.local.dir": str(folder),
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
    }
    builder = sparklog.configure(SparkSession.builder.master("local[2]").appName("torture"))
    for name, value in settings.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def main(folder: Path, root: str, name: str, finish: bool) -> None:
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import PySparkException

    world = World(**json.loads((folder / "world.json").read_text()) | {"folder": folder})
    process = Process(world, name, 0, Path(root))
    tried = [content[0] for kind, content in LedgerTail(world.ledger(name)).new() if kind == "try"]
    number = max(tried, default=0)
    spark = start_spark(folder / "spark")
    query = start_query(spark, folder, root, finish)
    process.log("started")
    while query.isActive:
        try:
            process.log("try", number)
            append_batch(spark, root, number)
            process.log("ack", number)
            number += 1
        except (PySparkException, Py4JJavaError) as error:
            process.log("error", type(error).__name__, last_error(error))
        if finish:
            query.awaitTermination()
        else:
            time.sleep(5)
    if failure := query.exception():
        process.log("error", "query", last_error(failure))
        sys.exit(1)
    process.log("finished")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3], finish="--finish" in sys.argv)
