"""The latest record of each key of an interval."""

from __future__ import annotations

import random
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from sparklog.errors import Unavailable
from sparklog.tables import latest as latest_module
from sparklog.tables.latest import LatestRows
from sparklog.tables.rows import RowOptions, row_decoder
from sparklog.tables.target import rows_by_values

SCHEMA = pa.schema([pa.field("k", pa.binary(), nullable=False), pa.field("n", pa.int64()), pa.field("v", pa.int64())])


def add(latest: LatestRows, records: list[tuple[bytes, int, bool, int, int]]) -> None:
    key, value, deleted, partition, offset = (list(column) for column in zip(*records, strict=True))
    arrays = [pa.array(key, pa.binary()), pa.array([len(key)] * len(key)), pa.array(value, pa.int64())]
    rows = pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)
    latest.add(rows, pa.array(deleted), pa.array(partition, pa.int32()), pa.array(offset, pa.int64()))


def test_no_records() -> None:
    [changes] = LatestRows(["k"], SCHEMA, 1 << 20).changes()
    assert (changes.rows.num_rows, changes.deleted.num_rows) == (0, 0)
    assert changes.deleted.schema.names == ["k"]


@pytest.mark.parametrize("compact_each", [False, True])
def test_latest_record_by_offset_and_partition(compact_each: bool) -> None:
    source = random.Random(7)
    latest, expected = LatestRows(["k"], SCHEMA, 1 << 20), {}
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
            latest._compact()
            assert latest._nbytes < 20 * 100
    [changes] = latest.changes()
    assert changes.rows.schema == SCHEMA
    rows = dict(zip(changes.rows["k"].to_pylist(), changes.rows["v"].to_pylist(), strict=True))
    # Two records of a partition may have the same offset in this test, so values are compared by position only.
    assert rows.keys() | set(changes.deleted["k"].to_pylist()) == expected.keys()
    assert not rows.keys() & set(changes.deleted["k"].to_pylist())
    assert len(rows) == changes.rows.num_rows


def test_later_offset_wins() -> None:
    latest = LatestRows(["k"], SCHEMA, 1 << 20)
    add(latest, [(b"a", 1, False, 0, 5), (b"b", 2, False, 0, 6), (b"a", 3, True, 1, 4), (b"b", 4, True, 0, 7)])
    add(latest, [(b"c", 5, True, 0, 1), (b"c", 6, False, 0, 2), (b"d", 7, False, 1, 3), (b"d", 8, False, 0, 3)])
    [changes] = latest.changes()
    assert changes.rows.select(["k", "v"]).to_pylist() == [
        {"k": b"a", "v": 1},
        {"k": b"c", "v": 6},
        {"k": b"d", "v": 7},
    ]
    assert changes.deleted.to_pylist() == [{"k": b"b"}]


def by_last_digit(rows: pa.Table) -> dict[tuple[Any, ...], pa.Array]:
    return rows_by_values([pc.binary_slice(rows["k"].combine_chunks(), -1)], len(rows))


def test_changes_of_each_partition_of_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(latest_module, "BUFFER_BYTES", 3000)
    source, expected = random.Random(3), {}
    with LatestRows(["k"], SCHEMA, 1 << 20, by_last_digit) as latest:
        for first in range(0, 2000, 40):
            batch = [(b"%d" % source.randrange(600), first + n, source.random() < 0.3, 0, first + n) for n in range(40)]
            add(latest, batch)
            for key, value, deleted, _, _ in batch:
                expected[key] = None if deleted else value
        assert latest._nbytes <= 3000
        changes = latest.changes()
        for _ in range(2):
            found: dict[bytes, int | None] = {}
            digits = []
            for part in changes:
                assert part.rows.schema == SCHEMA
                rows = dict(zip(part.rows["k"].to_pylist(), part.rows["v"].to_pylist(), strict=True))
                found |= rows | dict.fromkeys(part.deleted["k"].to_pylist())
                assert len(part.keys) == len(set(part.keys["k"].to_pylist()))
                digits.append({key[-1:] for key in part.keys["k"].to_pylist()})
            assert found == expected
            assert sorted(digits, key=min) == [{b"%d" % digit} for digit in range(10)]


def test_full_disk_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(latest_module, "BUFFER_BYTES", 3000)
    full = partial(Path("/dev/full").open, "w+b")
    monkeypatch.setattr(tempfile, "TemporaryFile", lambda prefix: full())

    def write() -> None:
        with LatestRows(["k"], SCHEMA, 1 << 20, by_last_digit) as latest:
            for first in range(2000):
                add(latest, [(b"%d" % first, first, False, 0, first)])
            latest.changes()

    with pytest.raises(Unavailable, match=r"temporary file: .*No space left on device; free space, or set TMPDIR"):
        write()


def test_file_is_not_written_for_few_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(latest_module, "BUFFER_BYTES", 3000)
    monkeypatch.setattr(latest_module, "_RowFile", None)
    with LatestRows(["k"], SCHEMA, 1 << 20, by_last_digit) as latest:
        for first in range(0, 1000, 10):
            add(latest, [(b"%d" % number, first, False, 0, first + number) for number in range(10)])
        [changes] = latest.changes()
    assert changes.rows["v"].to_pylist() == [990] * 10


def test_keys_of_several_columns() -> None:
    options = RowOptions("json", upsert=True, schema="a INT, b STRING", key_columns=("a", "b"), metadata=False)
    decoder = row_decoder(options, "t")
    latest = LatestRows(decoder.keys, decoder.schema, 1 << 20)
    rows = pa.RecordBatch.from_arrays(
        [pa.array([1, 1, 1], pa.int32()), pa.array(["x", "y", "x"])], schema=decoder.schema
    )
    latest.add(rows, pa.array([False, False, True]), pa.array([0] * 3, pa.int32()), pa.array([0, 1, 2]))
    [changes] = latest.changes()
    assert changes.rows.to_pylist() == [{"a": 1, "b": "y"}]
    assert changes.deleted.to_pylist() == [{"a": 1, "b": "x"}]
