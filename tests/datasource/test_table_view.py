"""`view=table`: options, tasks and the result of a task, without Spark's JVM."""

from __future__ import annotations

import pickle
import re
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

import sparklog
from sparklog.errors import BadRequest, NotFound, SparklogError
from sparklog.log.topic.engine import RootEngine
from sparklog.log.topic.root import Root

pytest.importorskip("pyspark")

from pyspark.sql.types import BinaryType, IntegerType, LongType, StringType, StructType, TimestampType

from sparklog.datasource.data_source import SparklogDataSource
from sparklog.datasource.reader import SparklogBatchReader, failing_stream_reader
from sparklog.datasource.spark_workers import HIDE_TRACEBACK

TYPES = {
    "key": BinaryType(),
    "value": BinaryType(),
    "topic": StringType(),
    "partition": IntegerType(),
    "offset": LongType(),
    "timestamp": TimestampType(),
    "timestampType": IntegerType(),
}
OFFSETS = '{"t":{"0":3,"1":-1}}'


@pytest.fixture(autouse=True)
def _keep_tracebacks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(HIDE_TRACEBACK, "")


@pytest.fixture
def root(tmp_path: Path) -> Root:
    opened = sparklog.open(tmp_path / "log", create=True)
    for name in ("t", "u"):
        topic = opened.create_topic(name, partitions=2)
        columns = {"key": ["a", "b", "a", "b"], "value": ["1", "2", "3", None], "partition": [0, 0, 0, 0]}
        topic.append(pa.table({**columns, "partition": pa.array(columns["partition"], pa.int32())}))
        topic.append(pa.table({"key": ["z"], "value": ["9"], "partition": pa.array([1], pa.int32())}))
    return opened


def schema(*columns: str) -> StructType:
    made = StructType()
    for name in columns or TYPES:
        made.add(name, TYPES[name])
    return made


def read(root: Root, *columns: str, **options: str) -> list[list[dict[str, object]]]:
    """Return the rows of each task."""
    source = SparklogDataSource({"path": root.location, "subscribe": "t", "view": "table", **options})
    source.schema()
    reader = source.reader(schema(*columns))
    assert isinstance(reader, SparklogBatchReader)
    tasks = pickle.loads(pickle.dumps(reader.partitions()))
    return [[row for batch in reader.read(task) for row in batch.to_pylist()] for task in tasks]


def test_a_table_has_the_latest_record_of_each_key(root: Root) -> None:
    (rows,) = read(root)
    assert [(row["key"], row["value"], row["offset"], row["partition"]) for row in rows] == [
        (b"a", b"3", 2, 0),
        (b"z", b"9", 0, 1),
    ]
    assert read(root, "value", subscribe="t,u") == [[{"value": value} for value in (b"3", b"9") * 2]]
    assert read(root, "key", minPartitions="2") == [[{"key": b"a"}], [{"key": b"z"}]]
    assert read(root, "offset", failOnDataLoss="false") == [[{"offset": 2}, {"offset": 0}]]
    assert read(root, "offset", asOfOffsets=OFFSETS) == [[{"offset": 2}, {"offset": 1}, {"offset": 0}]]
    assert read(root, "key", subscribe="u", asOfTimestamp="9000000000000", minPartitions="2")[1:] == [[{"key": b"z"}]]
    assert read(root, asOfTimestamp="2020-01-31T12:00:00") == []


@pytest.mark.parametrize("view", ["log", "table"])
def test_a_topic_deleted_after_listing_is_skipped(root: Root, view: str, monkeypatch: pytest.MonkeyPatch) -> None:
    listed = RootEngine.all_topics

    def deleted_at_once(self: RootEngine) -> Iterator[str]:
        names = list(listed(self))
        root.delete_topic("u")
        return iter(names)

    monkeypatch.setattr(RootEngine, "all_topics", deleted_at_once)
    source = SparklogDataSource({"path": root.location, "subscribePattern": "[tu]", "view": view})
    reader = source.reader(schema("topic"))
    batches = [batch for task in reader.partitions() for batch in reader.read(task)]
    assert {row["topic"] for batch in batches for row in batch.to_pylist()} == {"t"}


@pytest.mark.parametrize(
    ("options", "kind", "message"),
    [
        ({"view": "tabel"}, BadRequest, "Option 'view' must be log or table, found 'tabel'; did you mean"),
        ({"view": "log", "asOfTimestamp": "1"}, BadRequest, "'asOfTimestamp' requires view=table"),
        ({"asOfTimestamp": "noon"}, BadRequest, "Option 'asOfTimestamp' must be milliseconds or a time"),
        ({"asOfTimestamp": "1", "asOfOffsets": OFFSETS}, BadRequest, "either 'asOfTimestamp' or 'asOfOffsets'"),
        ({"asOfOffsets": "5"}, BadRequest, "Option 'asOfOffsets' must be JSON such as"),
        ({"asOfOffsets": '{"t":{"0":-2}}'}, BadRequest, "Option 'asOfOffsets' must be JSON such as"),
        ({"asOfOffsets": '{"t":{"0":1}}'}, BadRequest, "asOfOffsets must contain each partition that is read; missing"),
        ({"asOfOffsets": '{"t":{"0":1,"1":1,"7":1}}'}, BadRequest, "asOfOffsets contains partitions that are not read"),
        ({"asOfOffsets": '{"t":{"0":9,"1":1}}'}, NotFound, "offset 9 of t-0 is out of range: expected 0 to 4"),
        ({"startingOffsets": "earliest"}, BadRequest, "Option 'startingOffsets' applies only to view=log"),
        ({"endingTimestamp": "1700000000000"}, BadRequest, "Option 'endingTimestamp' applies only to view=log"),
        ({"maxRecordsPerPartition": "5"}, BadRequest, "a table reads each partition in one task"),
        ({"kafka.isolation.level": "read_uncommitted"}, BadRequest, "view=table is built from committed records"),
        ({"subscribe": "nothing"}, NotFound, "There is no topic 'nothing'"),
    ],
)
def test_invalid_options_are_rejected(
    root: Root, options: dict[str, str], kind: type[SparklogError], message: str
) -> None:
    with pytest.raises(Exception, match=re.escape(message)) as error:
        read(root, **options)
    assert type(error.value).__name__ == f"[{kind.code}]"
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("method", "arguments"),
    [
        ("initialOffset", ()),
        ("prepareForTriggerAvailableNow", ()),
        ("latestOffset", ({}, None)),
        ("reportLatestOffset", ()),
        ("partitions", ({}, {"t": {"0": 1}})),
        ("read", (None,)),
    ],
)
def test_a_reader_that_cannot_be_created_raises_the_reason(method: str, arguments: tuple[object, ...]) -> None:
    reader = failing_stream_reader(BadRequest("the reason"))
    reader.stop()
    tasks = [pickle.loads(pickle.dumps(reader))] if method == "read" else []
    for called in (reader, *tasks):
        with pytest.raises(Exception, match="the reason") as error:
            getattr(called, method)(*arguments)
        assert type(error.value).__name__ == f"[{BadRequest.code}]"


@pytest.mark.parametrize("options", [{"view": "table"}, {"asOfTimestamp": "1"}, {"asOfOffsets": OFFSETS}])
def test_a_stream_rejects_table_options(root: Root, options: dict[str, str]) -> None:
    pytest.importorskip("pyspark", "4.2")
    source = SparklogDataSource({"path": root.location, "subscribe": "t", **options})
    reader = source.streamReader(schema())
    with pytest.raises(
        Exception, match=f"Option '{next(iter(options))}.*' applies only to batch reads, because a stream returns every"
    ):
        reader.initialOffset()
