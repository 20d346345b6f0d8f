"""`sparklog.read` and `sparklog.read_stream`."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import Mock

import numpy as np
import pytest

import sparklog
from sparklog.datasource import dataframes
from tests.support.records import keyed_rows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Session:
    """The parts of a session that the functions use."""

    def __init__(self) -> None:
        self.streams, self.read, self.readStream, self._jsparkSession = Mock(), Mock(), Mock(), Mock()
        for reader in (self.read, self.readStream):
            reader.format.return_value = reader.options.return_value = reader
        self.plan_with(sys.executable)

    def plan_with(self, python: str | None) -> None:
        """Plan the format with a Python, or do not find it."""
        manager = self._jsparkSession.sessionState.return_value.dataSourceManager.return_value
        manager.dataSourceExists.side_effect = lambda name: name == "sparklog" and python is not None
        manager.lookupDataSource.return_value.dataSourceCls.return_value.pythonExec.return_value = python


class ConnectSession(Session):
    """A session that looks like one of Spark Connect."""

    __module__ = "pyspark.sql.connect.session"


def options_of(reader: Mock) -> dict[str, Any]:
    """Return the options of the only load, with its path."""
    (options,), (path,) = (call.call_args_list for call in (reader.options, reader.load))
    reader.format.assert_called_once_with("sparklog")
    return {**options.kwargs, "path": path.args[0]}


def session(kind: type[Session] = Session) -> tuple[Any, Mock, Mock]:
    """Return a session and the readers of its batches and streams."""
    spark = kind()
    return spark, spark.read, spark.readStream


def test_batch_reads_only_the_columns(spark: SparkSession, tmp_path: Path) -> None:
    root = sparklog.open(tmp_path / "log", create=True)
    for topic, rows in {"t": [("a", "1"), ("b", "2"), ("c", "3")], "other": [("z", "0")]}.items():
        root.create_topic(topic).append(keyed_rows(*rows))
    found = sparklog.read(
        spark, tmp_path / "log", topic="t", columns=["offset", "value"], startingOffsets='{"t":{"0":1}}'
    )
    assert found.columns == ["offset", "value"]
    assert [tuple(row) for row in found.sort("offset").collect()] == [(1, b"2"), (2, b"3")]
    every = sparklog.read(spark, str(tmp_path / "log" / "t"), minPartitions=np.int64(3), includeHeaders=True, keys=None)
    assert every.columns == [*spark.read.format("sparklog").load(str(tmp_path / "log" / "t")).columns, "headers"]
    assert (every.count(), every.rdd.getNumPartitions()) == (3, 3)


def test_stream_reads_only_the_columns(spark: SparkSession, tmp_path: Path) -> None:
    sparklog.open(tmp_path / "log", create=True).create_topic("t").append(keyed_rows(("a", "1"), ("b", "2")))
    frame = sparklog.read_stream(spark, tmp_path / "log", topic="t", columns=["value"], startingOffsets="earliest")
    assert frame.columns == ["value"]
    writer = frame.writeStream.format("memory").queryName("values_of_t").trigger(availableNow=True)
    query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
    query.awaitTermination()
    assert sorted(row.value for row in spark.table("values_of_t").collect()) == [b"1", b"2"]


def test_unknown_topic_and_column_are_one_line(spark: SparkSession, tmp_path: Path) -> None:
    sparklog.open(tmp_path / "log", create=True).create_topic("orders")
    with pytest.raises(sparklog.BadRequest, match=r"unknown column 'valeu'.*; the columns are key, value, topic, part"):
        sparklog.read(spark, tmp_path / "log", topic="orders", columns=["valeu"])
    with pytest.raises(Exception, match=r"There is no topic 'ordres' at .*did you mean 'orders'"):
        sparklog.read(spark, tmp_path / "log", topic="ordres").count()


def test_arguments_are_passed_as_options() -> None:
    spark, batch, stream = session()
    sparklog.read(spark, Path("/data"), topic="t", columns=["value", "key"], minPartitions=2, failOnDataLoss=False)
    expected = {"subscribe": "t", "columns": "value,key", "minPartitions": "2", "failOnDataLoss": "false"}
    assert options_of(batch) == {**expected, "path": "/data"}
    assert not stream.load.called
    sparklog.read_stream(spark, "s3://bucket/log", **{"kafka.group.id": "g", "subscribePattern": "t.*"})
    assert options_of(stream) == {"kafka.group.id": "g", "subscribePattern": "t.*", "path": "s3://bucket/log"}


@pytest.mark.parametrize(
    ("python", "is_kept"),
    [(sys.executable, True), (None, False), ("/usr/bin/another-python", False), ("no-python", False)],
)
def test_format_is_registered_if_spark_does_not_plan_it_with_this_python(
    monkeypatch: pytest.MonkeyPatch, python: str | None, is_kept: bool
) -> None:
    spark, batch, _ = session()
    spark.plan_with(python)
    registered: list[object] = []
    monkeypatch.setattr(dataframes, "register", registered.append)
    sparklog.read(spark, "/data/t")
    assert registered == ([] if is_kept else [spark])
    assert batch.load.called


def test_connect_server_checks_the_options(monkeypatch: pytest.MonkeyPatch) -> None:
    """`keysFile` is a file on the host of the server."""
    spark, batch, _ = session(ConnectSession)
    monkeypatch.setattr(dataframes, "register", lambda _: pytest.fail("registered"))
    sparklog.read(spark, "/data/t", keysFile="/server/keys")
    assert options_of(batch) == {"keysFile": "/server/keys", "path": "/data/t"}


READ, STREAM = sparklog.read, sparklog.read_stream


@pytest.mark.parametrize(
    ("call", "arguments", "says"),
    [
        (READ, {"spark": None}, "spark must be a SparkSession, found None"),
        (READ, {"columns": "value"}, "columns must be a list of strings or None, found 'value'; use ['value']"),
        (READ, {"columns": []}, "Option 'columns' must contain at least one column, found []; the columns are key, "),
        (READ, {"columns": ["key", "key"]}, "Option 'columns' contains 'key' twice: remove one of them"),
        (READ, {"column": ["key"]}, "Unknown option 'column': did you mean 'columns'?"),
        (READ, {"startingOffset": "earliest"}, "Unknown option 'startingOffset': did you mean 'startingOffsets'?"),
        (READ, {"startingOffsets": {"t": {"0": 5}}},
         "Option 'startingOffsets' must be a string, an integer or a boolean, found {'t': {'0': 5}}"),
        (READ, {"minPartitions": 0}, "Option 'minPartitions' must be an integer of at least 1, found '0'"),
        (READ, {"startingOffsets": "latest"}, "startingOffsets=latest applies only to streams"),
        (READ, {"asOfTimestamp": 5}, "Option 'asOfTimestamp' requires view=table"),
        (READ, {"txnAppId": "a"}, "Option 'txnAppId' applies only to writes: remove it from this read"),
        (READ, {"topic": "a", "subscribe": "b"}, "Set either 'topic' or 'subscribe', not both"),
        (STREAM, {"topic": "a", "SubscribePattern": "b"}, "Set either 'topic' or 'SubscribePattern', not both"),
        (STREAM, {"endingOffsets": "latest"}, "Option 'endingOffsets' applies only to batch reads"),
        (STREAM, {"view": "table"}, "Option 'view=table' applies only to batch reads"),
    ],
)  # fmt: skip
def test_invalid_arguments_are_rejected(call: Callable[..., object], arguments: dict[str, Any], says: str) -> None:
    spark, batch, stream = session()
    with pytest.raises(sparklog.BadRequest, match=f"^{re.escape(says)}"):
        call(**{"spark": spark, "path": "/data/log", **arguments})
    assert not batch.load.called
    assert not stream.load.called
