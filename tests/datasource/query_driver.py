"""A driver of its own, to be killed: `python -m tests.datasource.query_driver <folder> <root> <checkpoint> [format]`.

Streams topic `in` to topic `out` until a file `<root>.stop` appears and everything is read.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from tests.datasource import spark_session
from tests.datasource.killing import JVM_FILE, CommitThenDieSource
from tests.datasource.streams import source

BATCH_RECORDS = 60


def main(folder: Path, root: str, checkpoint: str, sink: str) -> None:
    spark = spark_session.start(folder)
    process = spark.sparkContext._gateway.proc
    Path(os.environ[JVM_FILE]).write_text(str(process.pid))
    spark.dataSource.register(CommitThenDieSource)
    writer = source(spark, f"{root}/in", maxOffsetsPerTrigger=BATCH_RECORDS).select("key", "value").writeStream
    query = (
        writer.format(sink)
        .options(path=root, topic="out", checkpointLocation=checkpoint, **{"num.partitions": 2})
        .trigger(processingTime="0 seconds")
        .start()
    )
    while not os.path.exists(f"{root}.stop"):
        if query.awaitTermination(0.1):
            return
    query.processAllAvailable()
    time.sleep(0.2)
    query.stop()
    Path(f"{root}.done").touch()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3], sys.argv[4])
