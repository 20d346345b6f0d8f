"""What the examples share: a small local Spark, a folder of their own, records in and out of a topic, a stream's end.

An example is `main(spark, folder)`, which returns what it prints. Run as a program it gets a session and a new folder:

    python examples/streams/word_count.py [--folder FOLDER]

With SPARK_REMOTE in the environment (`sc://host`, or `local[2]`) it runs over Spark Connect.
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
    "spark.sql.shuffle.partitions": "1",  # for a few records: more would only be more files of state
}
LOG_SETTINGS = Path(__file__).resolve().parents[1] / "log4j2.properties"

Record = tuple[str | None, str | None, str]


def require(install: str, *packages: str) -> None:
    """Leave with one line, before Spark starts, if a package is missing that `pip install` of `install` brings."""
    missing = [name for name in packages if not any(importlib.metadata.distributions(name=name))]
    if missing:
        raise SystemExit(f"this example needs {', '.join(missing)}: pip install {install}")


def start(main: Callable[[SparkSession, str], str]) -> None:
    """Run an example in a session and a folder of its own, and print what it returns."""
    parser = argparse.ArgumentParser(description=main.__globals__["__doc__"].split("\n")[0])
    parser.add_argument("--folder", help="a new folder, which is kept; by default a temporary one")
    folder = parser.parse_args().folder
    spark = session()
    try:
        with tempfile.TemporaryDirectory(prefix="sparklog-") as temporary:
            print(main(spark, folder or temporary))
    finally:
        spark.stop()


def session() -> SparkSession:
    """A small local session, or one of Spark Connect."""
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
        root: the folder of all topics; it may be new.
        topic: a new one gets one partition, and keeps its records although they are old.
        records: key, value, and a time of 5 January 2026 in UTC, such as ("anna", "/home", "10:05").
    """
    rows = [{"key": key, "value": value, "timestamp": f"2026-01-05T{time}:00Z"} for key, value, time in records]
    schema = pa.schema([("key", pa.string()), ("value", pa.string()), ("timestamp", pa.string())])
    table = pa.Table.from_pylist(rows, schema)
    times = table["timestamp"].cast(pa.timestamp("ms", "UTC"))
    opened = sparklog.open(root, create=True).ensure_topic(topic, configs={"retention.ms": -1})
    opened.append(table.set_column(2, "timestamp", times))


def read(root: str, topic: str) -> list[str]:
    """Return keys and values of a topic as lines, in the order of their offsets, with plain Python."""
    rows = sparklog.open(root).topic(topic).scan(columns=["key", "value"]).to_table().to_pylist()
    return [" ".join("null" if item is None else item.decode() for item in row.values()) for row in rows]


def finish(writer: DataStreamWriter) -> StreamingQuery:
    """Run a streaming query over all that is in its topics now, and return it when it has ended."""
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    return query
