"""Spark's Kafka connector: the requests of `test_spark.py` in one driver. The arguments are a file with the request and
a file for the result.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

ROWS = (
    *("topic", "partition", "offset", "unix_millis(timestamp)", "timestampType"),
    *("base64(key)", "base64(value)", "transform(headers, h -> struct(h.key, base64(h.value)))"),
)


class Program:
    def __init__(self, spark: SparkSession, task: dict[str, Any]) -> None:
        self._spark = spark
        self._task = task
        self._server = {"kafka.bootstrap.servers": task["writable"]}

    def read(self, server: str, **options: Any) -> list[list[Any]]:
        """Return the records of a batch read in the format of `peer.py`."""
        reader = self._spark.read.format("kafka").option("kafka.bootstrap.servers", server)
        for name, value in {"includeHeaders": "true", **options}.items():
            reader = reader.option(name, value if isinstance(value, str) else json.dumps(value))
        rows = reader.load().selectExpr(*ROWS).collect()
        records = [[*row[:7], [list(header) for header in row[7] or ()]] for row in rows]
        return sorted(records, key=lambda record: record[:3])

    def write(self, topic: str, numbers: range) -> None:
        """Write numbers with keys and headers. The partition is the remainder of the number."""
        self._spark.range(numbers.start, numbers.stop).selectExpr(
            "CAST(id AS STRING) AS value",
            "IF(id % 5 = 0, NULL, CAST(CONCAT('k', id) AS BINARY)) AS key",
            "array(struct('h' AS key, CAST(CAST(id AS STRING) AS BINARY) AS value)) AS headers",
            "CAST(id % 3 AS INT) AS partition",
        ).write.format("kafka").options(**self._server, includeHeaders="true", topic=topic).save()

    def copy(self, source: str, sink: str, checkpoint: str) -> int:
        """Copy new records with a stream that ends. Return its micro-batches."""
        rows = self._spark.readStream.format("kafka").options(
            **self._server,
            subscribe=source,
            startingOffsets="earliest",
            includeHeaders="true",
            maxOffsetsPerTrigger="60",
        )
        chosen = rows.load().select("key", "value", "headers", "partition")
        query = (
            chosen.writeStream.format("kafka")
            .options(**self._server, topic=sink, checkpointLocation=checkpoint)
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        return len(query.recentProgress)

    def result(self) -> dict[str, Any]:
        task = self._task
        batches = {
            isolation: self.read(task["golden"], assign=task["places"], **{"kafka.isolation.level": isolation})
            for isolation in ("read_uncommitted", "read_committed")
        }
        some = self.read(task["golden"], **task["some"])
        by_time = self.read(task["golden"], **task["by_time"])
        steps = []
        for numbers in (range(150), range(150, 200)):
            self.write("in", numbers)
            steps.append(self.copy("in", "out", task["checkpoint"]))
        out = {topic: self.read(task["writable"], subscribe=topic) for topic in ("in", "out")}
        return {"batches": batches, "some": some, "by_time": by_time, "steps": steps, **out}


def main() -> None:
    task = json.loads(Path(sys.argv[1]).read_text())
    spark = SparkSession.builder.getOrCreate()
    Path(sys.argv[2]).write_text(json.dumps(Program(spark, task).result()))
    spark.stop()


main()
