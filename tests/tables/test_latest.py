"""The latest record of each key of an interval."""

from __future__ import annotations

import random

import pyarrow as pa
import pytest

from sparklog.tables.latest import LatestRows
from sparklog.tables.rows import RowOptions, row_decoder

SCHEMA = pa.schema([pa.field("k", pa.binary(), nullable=False), pa.field("n", pa.int64()), pa.field("v", pa.int64())])


def add(latest: LatestRows, records: list[tuple[bytes, int, bool, int, int]]) -> None:
    key, value, deleted, partition, offset = (list(column) for column in zip(*records, strict=True))
    arrays = [pa.array(key, pa.binary()), pa.array([len(key)] * len(key)), pa.array(value, pa.int64())]
    rows = pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)
    latest.add(rows, pa.array(deleted), pa.array(partition, pa.int32()), pa.array(offset, pa.int64()))


def test_no_records() -> None:
    changes = LatestRows(["k"], SCHEMA).changes()
    assert (changes.rows.num_rows, changes.deleted.num_rows) == (0, 0)
    assert changes.deleted.schema.names == ["k"]


@pytest.mark.parametrize("compact_each", [False, True])
def test_latest_record_by_offset_and_partition(compact_each: bool) -> None:
    source = random.Random(7)
    latest, expected = LatestRows(["k"], SCHEMA), {}
    for first in range(0, 300, 30):
        batch = [
            (b"%d" % source.randrange(20), first + n, source.random() < 0.3, source.randrange(2), first + n // 2)
            for n in range(30)
        ]
        source.shuffle(batch)
        add(latest, batch)
        for key, value, deleted, partition, offset in batch:
            expected[key] = max(expected.get(key, (-1, 0, 0, False)), (offset, partition, value, deleted))
        if compact_each:
            latest.compact()
            assert latest.nbytes < 20 * 100
    changes = latest.changes()
    assert changes.rows.schema == SCHEMA
    rows = dict(zip(changes.rows["k"].to_pylist(), changes.rows["v"].to_pylist(), strict=True))
    # Two records of a partition may have the same offset in this test, so values are compared by position only.
    assert rows.keys() | set(changes.deleted["k"].to_pylist()) == expected.keys()
    assert not rows.keys() & set(changes.deleted["k"].to_pylist())
    assert len(rows) == changes.rows.num_rows


def test_later_offset_wins() -> None:
    latest = LatestRows(["k"], SCHEMA)
    add(latest, [(b"a", 1, False, 0, 5), (b"b", 2, False, 0, 6), (b"a", 3, True, 1, 4), (b"b", 4, True, 0, 7)])
    add(latest, [(b"c", 5, True, 0, 1), (b"c", 6, False, 0, 2), (b"d", 7, False, 1, 3), (b"d", 8, False, 0, 3)])
    changes = latest.changes()
    assert changes.rows.select(["k", "v"]).to_pylist() == [
        {"k": b"a", "v": 1},
        {"k": b"c", "v": 6},
        {"k": b"d", "v": 7},
    ]
    assert changes.deleted.to_pylist() == [{"k": b"b"}]


def test_keys_of_several_columns() -> None:
    options = RowOptions("json", upsert=True, schema="a INT, b STRING", key_columns=("a", "b"), metadata=False)
    decoder = row_decoder(options, "t")
    latest = LatestRows(decoder.keys, decoder.schema)
    rows = pa.RecordBatch.from_arrays(
        [pa.array([1, 1, 1], pa.int32()), pa.array(["x", "y", "x"])], schema=decoder.schema
    )
    latest.add(rows, pa.array([False, False, True]), pa.array([0] * 3, pa.int32()), pa.array([0, 1, 2]))
    changes = latest.changes()
    assert changes.rows.to_pylist() == [{"a": 1, "b": "y"}]
    assert changes.deleted.to_pylist() == [{"a": 1, "b": "x"}]
