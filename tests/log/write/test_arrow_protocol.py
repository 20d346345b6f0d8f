"""Arrow's stream protocol in both directions: scans provide it, and appends accept it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import sparklog
from sparklog.errors import BadRequest, Corrupt
from sparklog.log.topic.topic import Topic
from tests.support.counted_root import CountedRoot
from tests.support.records import random_rows, small


class Stream:
    """A table of another library, which only has the protocol and counts the requested streams."""

    def __init__(self, table: pa.Table) -> None:
        self.table = table
        self.taken = 0

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        self.taken += 1
        return self.table.__arrow_c_stream__(requested_schema)


class Struct:
    """A struct array of another library."""

    def __init__(self, table: pa.Table) -> None:
        (self.batch,) = table.to_batches()

    def __arrow_c_array__(self, requested_schema: object | None = None) -> tuple[object, object]:
        pair: tuple[object, object] = self.batch.__arrow_c_array__(requested_schema)
        return pair


@pytest.fixture
def memory(tmp_path: Path) -> CountedRoot:
    return CountedRoot("memory", tmp_path)


@pytest.fixture
def topic(memory: CountedRoot) -> Topic:
    topic = memory.topic(2)
    topic.append(random_rows(500), options=small(batch_bytes=2_000))
    return topic


def test_a_scan_is_an_arrow_stream(topic: Topic) -> None:
    scan = topic.scan(batch_bytes=4_000)
    expected = scan.to_table()
    assert pa.table(scan) == expected
    reader = pa.RecordBatchReader.from_stream(scan)
    assert reader.schema == scan.schema
    assert sum(batch.num_rows for batch in reader) == 500
    assert pa.table(scan) == expected
    some = topic.scan(columns=["offset"], start="latest")
    assert pa.table(some) == pa.table({"offset": pa.array([], pa.int64())}).cast(some.schema)


def test_a_stream_consumer_can_request_types(topic: Topic) -> None:
    scan = topic.scan(columns=["key", "value"])
    wide = pa.schema([("key", pa.large_binary()), ("value", pa.large_binary())])
    assert pa.table(scan, schema=wide) == scan.to_table().cast(wide)


def test_a_stream_is_read_lazily(memory: CountedRoot) -> None:
    topic = memory.topic(1)
    for _ in range(20):
        topic.append(random_rows(150, value_bytes=1_000), options=small(batch_bytes=50_000))
    scan = topic.scan(batch_bytes=100_000)
    memory.store.reset()
    reader = pa.RecordBatchReader.from_stream(scan)
    assert memory.store.bytes_read == 0
    reader.read_next_batch()
    begun = memory.store.bytes_read
    assert reader.read_all().num_rows > 2_000
    assert 0 < begun < memory.store.bytes_read / 2


@pytest.mark.usefixtures("records_in_files")
def test_an_error_in_a_stream_keeps_its_message(memory: CountedRoot, topic: Topic) -> None:
    (key,) = memory.append_files()
    data = bytearray(memory.inner.get(key))
    data[100] ^= 1
    memory.inner.delete(key)
    memory.inner.create(key, bytes(data))
    with pytest.raises(Corrupt) as plain:
        topic.scan().to_table()
    with pytest.raises(Exception, match="batch") as streamed:
        pa.table(topic.scan())
    assert str(plain.value) in str(streamed.value)
    with pytest.raises(Corrupt):
        memory.topic(1, name="copy").append(topic.scan(columns=["key", "value"]))


def test_a_scan_is_not_an_arrow_array(topic: Topic) -> None:
    with pytest.raises(BadRequest, match="to_table"):
        np.asarray(topic.scan())
    pandas = pytest.importorskip("pandas")
    with pytest.raises(BadRequest, match="to_table"):
        pandas.DataFrame(topic.scan())


FORMS: dict[str, Callable[[pa.Table], object]] = {
    "stream": Stream,
    "array": Struct,
    "reader": lambda table: table.to_reader(max_chunksize=7),
    "list of streams": lambda table: [Stream(table.slice(0, 30)), Struct(table.slice(30))],
    "generator of all": lambda table: (form(table.slice(40 * i, 40)) for i, form in enumerate((Struct, Stream, _self))),
    "struct column": lambda table: table.to_struct_array(),
}


def _self(table: pa.Table) -> pa.Table:
    return table


@pytest.mark.parametrize("form", FORMS)
def test_an_append_accepts_arrow_protocol_objects(memory: CountedRoot, form: str) -> None:
    topic, table = memory.topic(1), random_rows(100)
    assert topic.append(FORMS[form](table)).records == 100
    assert topic.scan(columns=table.column_names).to_table().cast(table.schema) == table
    with sparklog.transactional(memory.root, "job").begin() as transaction:
        transaction.append("t", FORMS[form](table))
    assert topic.scan(columns=["value"]).to_table()["value"].to_pylist() == 2 * table["value"].to_pylist()


def test_a_stream_is_consumed_once(memory: CountedRoot) -> None:
    stream = Stream(random_rows(100))
    memory.topic(1).append(stream)
    assert stream.taken == 1


def test_a_scan_is_appended_to_another_topic(memory: CountedRoot, topic: Topic) -> None:
    copy = memory.topic(2, name="copy")
    columns = ["key", "value", "headers", "timestamp", "partition"]
    assert copy.append(topic.scan(columns=columns)).records == 500
    assert copy.scan(columns=columns).to_table() == topic.scan(columns=columns).to_table()


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (None, "found None"),
        (3, "found 3"),
        ({"v": [b"a"]}, "found 'v'"),
        ([pa.table({"value": ["a"]}), None], "found None"),
        (pa.array([1, 2]), "Int64Array"),
        (pa.chunked_array([[1]]), "ChunkedArray"),
        (Stream(pa.table({"value": ["a"], "offset": [1]})), "found offset; drop these columns"),
        (Stream(pa.table({"offset": pa.array([], pa.int64())})), "found offset; drop these columns"),
        (Stream(pa.table({"value": [1.5]})), "expected column value to be binary or string, found double"),
    ],
)
def test_unsupported_data_is_reported_and_not_published(memory: CountedRoot, data: object, message: str) -> None:
    topic = memory.topic(1)
    with pytest.raises(BadRequest, match=message):
        topic.append(data)  # type: ignore[arg-type]
    assert topic.scan().to_table().num_rows == 0
    assert memory.append_files() == []


def test_a_data_frame_is_appended(memory: CountedRoot) -> None:
    pandas = pytest.importorskip("pandas")
    topic = memory.topic(1)
    frame = pandas.DataFrame({"key": ["a", None], "value": [b"1", None]})
    assert topic.append(frame).records == 2
    assert topic.scan(columns=["key", "value"]).to_table().to_pylist() == [
        {"key": b"a", "value": b"1"},
        {"key": None, "value": None},
    ]
