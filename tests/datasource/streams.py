"""Helpers for streaming tests: a source topic that is written without Spark, and queries that read the topic."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyspark
import pytest

import sparklog
from sparklog.datasource.spark_versions import READ_LIMITS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

WAIT_SECONDS = 400
"""A timeout that is much longer than any step takes, for hosts that run many other processes."""


SPARK = tuple(int(part) for part in pyspark.__version__.split(".")[:2])

needs_read_limits = pytest.mark.skipif(
    not READ_LIMITS, reason="Spark 4.0 and 4.1 run one micro-batch with availableNow, and report no newest offset"
)


def wait_for(condition: Callable[[], Any], seconds: float = WAIT_SECONDS) -> bool:
    """Return whether the condition became true in time."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.05)
    return True


def feed(root: str | Path, topic: str, values: range, *, partitions: int = 2) -> None:
    """Append numbers as keys and values. The key determines the partition."""
    opened = sparklog.open(str(root), create=True)
    texts = [str(value) for value in values]
    opened.ensure_topic(topic, partitions=partitions).append(pa.table({"key": texts, "value": texts}))


def values(root: str | Path, topic: str) -> list[int]:
    """Return all values of a topic, sorted. Asserts that offsets have no gaps after the log start."""
    opened = sparklog.open(str(root)).topic(topic)
    found: list[int] = []
    following: dict[int, int] = dict(enumerate(opened.log.state().log_start.tolist()))
    for batch in opened.scan(columns=["value", "partition", "offset"]):
        for row in batch.to_pylist():
            assert row["offset"] == following[row["partition"]]
            following[row["partition"]] += 1
            found.append(int(row["value"]))
    return sorted(found)


def source(spark: SparkSession, path: str | Path, **options: Any) -> DataFrame:
    given = {"startingOffsets": "earliest"} | options
    return spark.readStream.format("sparklog").options(**given).load(str(path))


def copy(df: DataFrame, root: str | Path, checkpoint: str | Path, *, topic: str = "out", **options: Any) -> Any:
    """Return a writer of key and value to a topic, to be started or configured with another trigger."""
    writer = df.select("key", "value").writeStream.format("sparklog").option("topic", topic)
    return writer.options(path=str(root), checkpointLocation=str(checkpoint), **options)


def insert(table: str, key: str, value: str, verb: str = "INSERT INTO") -> str:
    """Return the INSERT statement of a record, with the given columns or, in Spark 4.0, with all columns."""
    given = ", ".join(f"CAST('{text}' AS BINARY)" for text in (key, value))
    if SPARK == (4, 0):
        return f"{verb} {table} VALUES ({given}{', NULL' * 5})"
    return f"{verb} {table} (key, value) VALUES ({given})"


def finish(writer: Any) -> StreamingQuery:
    """Run to the end of the available records, and return the last run that read records. Raises the error of the
    query.
    """
    query = again = run(writer)
    while not READ_LIMITS and _moved(again):
        query, again = again, run(writer)
    return query


def _moved(query: StreamingQuery) -> bool:
    read = [] if query.lastProgress is None else query.lastProgress["sources"]
    return any(each["startOffset"] != each["endOffset"] for each in read)


def run(writer: Any) -> StreamingQuery:
    """Run the query once with availableNow."""
    query: StreamingQuery = writer.trigger(availableNow=True).start()
    try:
        done = query.awaitTermination(WAIT_SECONDS)
    finally:
        query.stop()
    assert done, "the query did not end in time"
    return query


def failure(writer: Any) -> str:
    """Return the error message of a query."""
    try:
        finish(writer)
    except Exception as error:  # noqa: BLE001  (whatever Spark raises is what is looked at)
        return str(error)
    raise AssertionError("the query ended without an error")


def stored_offset(checkpoint: str | Path, batch: int) -> dict[str, Any]:
    """Return the source offset in Spark's checkpoint after a batch."""
    lines = (Path(checkpoint) / "offsets" / str(batch)).read_text().splitlines()
    found: dict[str, Any] = json.loads(lines[-1])
    return found


def forget_commit(checkpoint: str | Path, batch: int) -> None:
    """Make Spark replay a batch, as if the driver had died between the commit of the sink and the commit of Spark."""
    for name in (str(batch), f".{batch}.crc"):
        (Path(checkpoint) / "commits" / name).unlink(missing_ok=True)
