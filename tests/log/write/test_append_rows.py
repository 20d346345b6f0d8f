"""Rows of all Arrow types are converted to the types that the encoder accepts."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparklog.errors import BadRequest
from sparklog.format.arrow_numpy import fixed_array, fixed_values, repeated_text, text_array, valid_rows
from sparklog.log.state.record_schema import HEADERS_TYPE
from sparklog.log.write.rows import check_columns, rows_of

Header = tuple[str, bytes | None]
headers_lists = st.lists(
    st.none() | st.lists(st.tuples(st.text(max_size=4), st.none() | st.binary(max_size=4)), max_size=3), max_size=12
)


@given(given_headers=headers_lists, wide_list=st.booleans(), wide=st.booleans(), first=st.integers(0, 12))
@settings(max_examples=150, deadline=None)
def test_headers_of_every_shape(
    given_headers: list[list[Header] | None], wide_list: bool, wide: bool, first: int
) -> None:
    item = pa.struct(
        [
            pa.field("key", pa.large_string() if wide else pa.string(), nullable=not wide),
            pa.field("value", pa.large_binary() if wide else pa.binary()),
        ]
    )
    values = [None if cell is None else [{"key": k, "value": v} for k, v in cell] for cell in given_headers]
    array = pa.array(values, pa.large_list(item) if wide_list else pa.list_(item)).slice(first)
    batch = pa.record_batch([array, pa.nulls(len(array))], ["headers", "value"])
    check_columns(batch.schema)
    got = rows_of([batch, batch], 0).headers
    expected = values[first:] * 2
    if got is None:
        assert all(cell is None for cell in expected)
    else:
        got.validate(full=True)
        assert got.type == HEADERS_TYPE
        assert got.to_pylist() == expected


def test_items_of_a_null_list_are_excluded() -> None:
    item = pa.StructArray.from_arrays([pa.array(["a", None, "c"]), pa.array([b"1", b"2", b"3"])], ["key", "value"])
    valid = pa.py_buffer(bytes([0b101]))
    offsets = pa.py_buffer(np.array([0, 1, 2, 3], np.int32))
    array = pa.ListArray.from_buffers(pa.list_(item.type), 3, [valid, offsets], children=[item])
    for kind in (array.type, pa.large_list(item.type)):
        batch = pa.record_batch([array.cast(kind), pa.nulls(3)], ["headers", "value"])
        got = rows_of([batch], 0).headers
        assert got is not None
        assert got.to_pylist() == [[{"key": "a", "value": b"1"}], None, [{"key": "c", "value": b"3"}]]


def test_a_null_header_is_rejected() -> None:
    array = pa.array([[{"key": "a", "value": b"1"}, None]], HEADERS_TYPE)
    with pytest.raises(BadRequest, match="null header key"):
        rows_of([pa.record_batch([array, pa.nulls(1)], ["headers", "value"])], 0)


@given(
    values=st.lists(st.none() | st.integers(0, 2**40), max_size=20),
    unit=st.sampled_from(["s", "ms", "us", "ns"]),
    first=st.integers(0, 20),
)
@settings(max_examples=100, deadline=None)
def test_timestamps_of_every_unit(values: list[int | None], unit: str, first: int) -> None:
    array = pa.array(values, pa.timestamp(unit, tz="Europe/Berlin")).slice(first)
    batch = pa.record_batch([array, pa.nulls(len(array))], ["timestamp", "value"])
    scale = {"s": (1000, 1), "ms": (1, 1), "us": (1, 1000), "ns": (1, 1_000_000)}[unit]
    expected = [77 if value is None else value * scale[0] // scale[1] for value in values[first:]]
    assert rows_of([batch], 77).timestamp.tolist() == expected


def test_seconds_beyond_64_bit_milliseconds_are_rejected() -> None:
    batch = pa.record_batch([pa.array([2**62], pa.timestamp("s")), pa.nulls(1)], ["timestamp", "value"])
    with pytest.raises(BadRequest, match="exceeds the range of 64-bit"):
        rows_of([batch], 0)


def test_a_duplicate_column_is_rejected() -> None:
    with pytest.raises(BadRequest, match="one column key, found 2"):
        check_columns(pa.schema([("key", pa.binary()), ("value", pa.binary()), ("key", pa.binary())]))


@given(values=st.lists(st.none() | st.integers(-(2**31), 2**31 - 1), max_size=40), first=st.integers(0, 40))
@settings(max_examples=100, deadline=None)
def test_arrays_through_buffers(values: list[int | None], first: int) -> None:
    array = pa.array(values, pa.int32()).slice(first)
    valid = valid_rows(array)
    assert valid.tolist() == [value is not None for value in values[first:]]
    numbers = fixed_values(array, np.int32)
    assert numbers[valid].tolist() == [value for value in values[first:] if value is not None]
    again = fixed_array(numbers, pa.int32(), valid)
    again.validate(full=True)
    assert again.to_pylist() == values[first:]


def test_texts_through_buffers() -> None:
    assert text_array(["a", "", "äö"]).to_pylist() == ["a", "", "äö"]
    assert repeated_text("ab", 3).to_pylist() == ["ab"] * 3
    assert repeated_text("", 2).to_pylist() == ["", ""]
    assert text_array([]).to_pylist() == []


PROGRAM = """
import sys, time
import pyarrow as pa
from sparklog.log.topic.root import open_root
from sparklog.log.topic.root import RootView
from sparklog.storage.memory import MemoryStore

root = open_root(MemoryStore(lambda: time.time_ns() // 10**6), create=True)
topic = root.create_topic("t", partitions=3)
with open(sys.argv[1], "rb") as file:
    topic.append(list(pa.ipc.open_stream(file)))
assert sum(batch.num_rows for batch in topic.scan()) == 3
view = RootView(root)
view.refresh(["t"])
view.bounds("t")
topic.offset_for_timestamp(5)
print([name for name in ("pandas", "pyarrow.compute", "pyspark") if name in sys.modules])
"""


def test_tasks_import_neither_pandas_nor_arrows_compute_functions(tmp_path: Path) -> None:
    batch = pa.record_batch(
        {
            "key": [b"a", None, b"c"],
            "value": [b"x", b"y", None],
            "timestamp": pa.array([5, None, 7], pa.timestamp("us", tz="Europe/Paris")),
            "partition": pa.array([1, None, 2], pa.int32()),
            "headers": pa.array([[{"key": "h", "value": b"v"}], None, []], HEADERS_TYPE),
        }
    )
    with pa.OSFile(str(tmp_path / "rows"), "wb") as file, pa.ipc.new_stream(file, batch.schema) as stream:
        stream.write_batch(batch)
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path / "rows")],
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[3],
        check=False,
    )
    assert done.stdout.strip() == "[]", done.stderr
