"""Shared code of the examples: start Spark, append and read records, run a query to its end.

An example is a function `main(spark, folder)` that returns its output. As a program, it runs in a new directory:

    python examples/streams/word_count.py [--folder FOLDER]

If SPARK_REMOTE is set in the environment (`sc://host`, or `local[2]`), the example runs over Spark Connect.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.streaming import DataStreamWriter, StreamingQuery

import sparklog

SETTINGS = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "1",  # enough for a few records; more partitions would only create more state files
}
LOG_SETTINGS = Path(__file__).resolve().parents[1] / "log4j2.properties"

Record = tuple[str | None, str | None, str]


def require(install: str, *packages: str) -> None:
    """Exit with a one-line message if a package is missing. `install` is the requirement that pip has to install."""
    missing = [name for name in packages if not any(importlib.metadata.distributions(name=name))]
    if missing:
        raise SystemExit(f"this example needs {', '.join(missing)}: pip install {install}")


def start(main: Callable[[SparkSession, str], str]) -> None:
    """Run an example in its own session and directory, and print its output."""
    parser = argparse.ArgumentParser(description=main.__globals__["__doc__"].split("\n")[0])
    parser.add_argument("--folder", help="directory for all files, which is kept; default: a temporary directory")
    folder = parser.parse_args().folder
    spark = session()
    try:
        with tempfile.TemporaryDirectory(prefix="sparklog-") as temporary:
            print(main(spark, folder or temporary))
    finally:
        spark.stop()


def session() -> SparkSession:
    """Return a small local session, or a Spark Connect session."""
    builder = sparklog.configure(SparkSession.builder.appName("sparklog example"))
    if "SPARK_REMOTE" not in os.environ:
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        builder.master("local[2]").config("spark.ui.enabled", "false").config("spark.ui.showConsoleProgress", "false")
        options = f'"-Dlog4j2.configurationFile={LOG_SETTINGS}" -Dderby.stream.error.file=/dev/null'
        builder.config("spark.driver.extraJavaOptions", options)
    else:
        require('".[spark,connect]"', "grpcio", "grpcio-status")
    for name, value in SETTINGS.items():
        builder.config(name, value)
    return builder.getOrCreate()


def append(root: str, topic: str, records: Iterable[Record]) -> None:
    """Append records to a topic with plain Python, as another program would.

    Args:
        root: the root directory, which is created if it does not exist.
        topic: the topic, which is created with one partition and without retention if it does not exist.
        records: key, value, and a time on 5 January 2026 in UTC, such as ("anna", "/home", "10:05").
    """
    rows = [{"key": key, "value": value, "timestamp": f"2026-01-05T{time}:00Z"} for key, value, time in records]
    schema = pa.schema([("key", pa.string()), ("value", pa.string()), ("timestamp", pa.string())])
    table = pa.Table.from_pylist(rows, schema)
    times = table["timestamp"].cast(pa.timestamp("ms", "UTC"))
    opened = sparklog.open(root, create=True).ensure_topic(topic, configs={"retention.ms": -1})
    opened.append(table.set_column(2, "timestamp", times))


def read(root: str, topic: str) -> list[str]:
    """Return the keys and values of a topic as lines, in offset order, with plain Python."""
    rows = sparklog.open(root).topic(topic).scan(columns=["key", "value"]).to_table().to_pylist()
    return [" ".join("null" if item is None else item.decode() for item in row.values()) for row in rows]


def finish(writer: DataStreamWriter) -> StreamingQuery:
    """Run a streaming query until it has processed all available records. Return the query."""
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    return query
