"""Rows of plain Python for `Topic.append`: lists by column, or one dictionary per row."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timezone
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from sparklog.errors import BadRequest
from sparklog.log.write import python_rows
from sparklog.testing import World

MOMENT = datetime(2026, 1, 2, 3, 4, 5, tzinfo=timezone.utc)
MOMENT_MS = int(MOMENT.timestamp() * 1000)


def rows_after(*appended: Any) -> list[tuple[Any, ...]]:
    """Return the records of a topic with two partitions after these appends, without topic and offset."""
    topic = World().root().create_topic("t", partitions=2)
    for data in appended:
        topic.append(data)
    names = ("partition", "key", "value", "headers")
    rows = topic.scan().to_table().sort_by([("partition", "ascending"), ("offset", "ascending")]).to_pylist()
    return [(*(row[name] for name in names), int(row["timestamp"].timestamp() * 1000)) for row in rows]


def test_columns_and_rows_append_the_same() -> None:
    columns = {
        "key": ["a", b"b", None],
        "value": [b"1", "2", None],
        "headers": [{"h": b"x"}, [("h", "y"), ("i", None)], [{"key": "h", "value": b""}]],
        "timestamp": [MOMENT_MS, MOMENT_MS + 1, MOMENT_MS + 2],
        "partition": [0, 0, 1],
    }
    rows = [dict(zip(columns, cells, strict=True)) for cells in zip(*columns.values(), strict=True)]
    expected = rows_after(columns)
    assert [row[:3] for row in expected] == [(0, b"a", b"1"), (0, b"b", b"2"), (1, None, None)]
    assert [row[3] for row in expected] == [
        [{"key": "h", "value": b"x"}],
        [{"key": "h", "value": b"y"}, {"key": "i", "value": None}],
        [{"key": "h", "value": b""}],
    ]
    assert rows_after(rows) == rows_after(iter(rows)) == rows_after(*([row] for row in rows)) == expected


def test_timestamps_and_arrays_of_arrow_and_numpy() -> None:
    times = {"value": ["1"], "timestamp": [MOMENT], "partition": [1]}
    arrays = {"value": pa.chunked_array([["1"]]), "timestamp": np.array([MOMENT_MS]), "partition": pa.array([1])}
    assert rows_after(times) == rows_after(arrays) == [(1, None, b"1", rows_after(times)[0][3], MOMENT_MS)]


def test_rows_are_split_into_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(python_rows, "BATCH_ROWS", 10)

    def rows() -> Iterator[dict[str, Any]]:
        for number in range(25):
            yield {"value": f"{number}", "partition": 0} | ({"key": "k"} if number == 24 else {})

    assert [row[1:3] for row in rows_after(rows())] == [
        (b"k" if number == 24 else None, b"%d" % number) for number in range(25)
    ]


@pytest.mark.parametrize(
    ("data", "text"),
    [
        ({"valu": ["a"]}, "found 'valu'; did you mean 'value'?"),
        ({"value": "a"}, "expected column value to be a list, found 'a'"),
        ({"value": ["a", 5]}, "expected value to be bytes, str or None, found 5"),
        ({"value": ["a"], "key": ["a", "b"]}, "expected columns of equal length, found value 1, key 2"),
        ({"key": ["a"]}, "expected a column value"),
        ({"value": ["a"], "timestamp": ["now"]}, "expected column timestamp to be a timestamp"),
        ({"value": ["a", "b"], "partition": [1, "x"]}, "column partition:"),
        ({"value": ["a"], "headers": [5]}, "expected headers as pairs"),
        ({"value": ["a"], "headers": [{5: b""}]}, "expected header keys to be str"),
        ([{"value": "a"}, 5], "expected a dictionary per row, found int in row 1"),
        ([{"value": "a"}, {"value": "b", "tim": 5}], "row 1: expected columns of"),
        ([5], "or dictionaries, found 5"),
    ],
)
def test_an_error_for_invalid_rows_is_one_line(data: Any, text: str) -> None:
    with pytest.raises(BadRequest) as refused:
        rows_after(data)
    assert text in str(refused.value)
    assert "\n" not in str(refused.value)
