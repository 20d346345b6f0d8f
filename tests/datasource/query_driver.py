"""A driver of its own, to be killed: `python -m tests.datasource.query_driver <folder> <root> <beside> <format>`.

Streams topic `in` to topic `out` until a file `<beside>.stop` appears and everything is read; with `TOPICS` in the
environment, each record to all of these topics. Its progress is in the consumer group `copier`.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from sparklog.storage.locations import join
from tests.datasource import spark_session
from tests.datasource.killing import JVM_FILE, TOPICS, CommitThenDieSource
from tests.datasource.streams import source

BATCH_RECORDS = 60
GROUP = "copier"


def main(folder: Path, root: str, beside: str, sink: str) -> None:
    spark = spark_session.start(folder)
    process = spark.sparkContext._gateway.proc
    Path(os.environ[JVM_FILE]).write_text(str(process.pid))
    spark.dataSource.register(CommitThenDieSource)
    group = {"kafka.group.id": GROUP, "maxOffsetsPerTrigger": BATCH_RECORDS}
    rows = source(spark, join(root, "in"), **group).select("key", "value")
    topics = os.environ.get(TOPICS, "")
    if topics:
        listed = ", ".join(f"'{topic}'" for topic in topics.split(","))
        rows = rows.selectExpr("key", "value", f"explode(array({listed})) AS topic")
    writer = rows.writeStream.format(sink).options(path=root, **{"num.partitions": 2})
    writer = writer.option("checkpointLocation", f"{beside}.checkpoint")
    query = (writer if topics else writer.option("topic", "out")).trigger(processingTime="0 seconds").start()
    while not os.path.exists(f"{beside}.stop"):
        if query.awaitTermination(0.1):
            return
    query.processAllAvailable()
    time.sleep(0.2)
    query.stop()
    Path(f"{beside}.done").touch()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3], sys.argv[4])
