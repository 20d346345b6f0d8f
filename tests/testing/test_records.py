"""The generated records are the same for a seed, and the expected results are correct."""

from __future__ import annotations

import pyarrow as pa
import pytest

from sparklog.log.topic.root import Root
from sparklog.testing.records import SCHEMA, RecordStream
from sparklog.testing.world import START_MS


def test_the_first_records_do_not_change() -> None:
    """Users may have stored the values."""
    rows = RecordStream(seed=7, keys=3, value_bytes=4, step_ms=1000).take(3)
    assert rows.schema == SCHEMA
    assert rows["key"].to_pylist() == [b"k1", b"k0", b"k2"]
    assert rows["value"].to_pylist() == [b"00000000-Tafy", b"00000001-JxNl", b"00000002-f1wM"]
    assert rows["timestamp"].cast(pa.int64()).to_pylist() == [START_MS, START_MS + 1000, START_MS + 2000]


@pytest.mark.parametrize("parts", [[100], [1, 99], [0, 50, 50], [33] * 3 + [1]])
def test_records_do_not_depend_on_the_batch_size(parts: list[int]) -> None:
    stream, other = (RecordStream(seed=1, tombstones=0.2, late_ms=50) for _ in range(2))
    tables = [stream.take(records) for records in parts]
    assert pa.concat_tables(tables) == other.take(100) == stream.taken()
    assert stream.latest() == other.latest()
    assert RecordStream(seed=2, tombstones=0.2, late_ms=50).take(100) != stream.taken()


def test_values_are_unique_and_fractions_are_approximate() -> None:
    table = RecordStream(keys=4, tombstones=0.25, late_ms=10, value_bytes=0).take(2000)
    values = [value for value in table["value"].to_pylist() if value is not None]
    assert len(set(values)) == len(values)
    assert 1400 <= len(values) <= 1600
    assert set(table["key"].to_pylist()) == {b"k0", b"k1", b"k2", b"k3"}
    late = [START_MS + n - ms for n, ms in enumerate(table["timestamp"].cast(pa.int64()).to_pylist())]
    assert set(late) == set(range(11))


def test_a_stream_without_keys_has_no_latest_values(sparklog_root: Root) -> None:
    stream = RecordStream(keys=0)
    sparklog_root.create_topic("t", partitions=3).append(stream.take(9))
    assert stream.latest() == {}
    assert sparklog_root.topic("t").scan().to_table()["key"].null_count == 9


def test_latest_values_agree_with_get(sparklog_root: Root) -> None:
    stream = RecordStream(keys=6, tombstones=0.4, seed=3)
    topic = sparklog_root.create_topic("t", partitions=2)
    topic.append(stream.take(40))
    looked_up = {f"k{number}".encode(): topic.get(f"k{number}") for number in range(6)}
    seen = {key: row["value"][0].as_py() for key, row in looked_up.items() if row is not None}
    assert {key: value for key, value in seen.items() if value is not None} == stream.latest() != {}
