"""A driver process to be killed: `python -m tests.datasource.query_driver <folder> <root> <beside> <format>`.

It streams topic `in` to topic `out`. If `TOPICS` is set in the environment, each record is written to all of these
topics. Its progress is committed to the consumer group `copier`.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from sparklog.storage.locations import join
from tests.datasource import spark_session
from tests.datasource.killing import JVM_FILE, TOPICS, CommitThenDieSource
from tests.datasource.streams import source

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming import StreamingQuery

BATCH_RECORDS = 60
GROUP = "copier"


def start_copy(spark: SparkSession, root: str, beside: str, sink: str = "sparklog", topics: str = "") -> StreamingQuery:
    """Start the query, or resume it from its checkpoint."""
    group = {"kafka.group.id": GROUP, "maxOffsetsPerTrigger": BATCH_RECORDS}
    rows = source(spark, join(root, "in"), **group).select("key", "value")
    if topics:
        listed = ", ".join(f"'{topic}'" for topic in topics.split(","))
        rows = rows.selectExpr("key", "value", f"explode(array({listed})) AS topic")
    writer = rows.writeStream.format(sink).options(path=root, **{"num.partitions": 2})
    writer = writer.option("checkpointLocation", f"{beside}.checkpoint")
    return (writer if topics else writer.option("topic", "out")).trigger(processingTime="0 seconds").start()


def main(folder: Path, root: str, beside: str, sink: str) -> None:
    spark = spark_session.start(folder)
    process = spark.sparkContext._gateway.proc
    Path(os.environ[JVM_FILE]).write_text(str(process.pid))
    spark.dataSource.register(CommitThenDieSource)
    start_copy(spark, root, beside, sink, os.environ.get(TOPICS, "")).awaitTermination()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3], sys.argv[4])
