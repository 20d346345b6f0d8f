"""Test the partition values and the statistics of files in the log of a Delta table."""

from __future__ import annotations

import io
import json
import math
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sparklog.tables.delta_files import partition_text, statistics

TIME = datetime(2026, 11, 29, 23, 59, 59, 999_001)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, None),
        ("", None),
        ("a b", "a b"),
        (True, "true"),
        (7, "7"),
        (date(2026, 11, 29), "2026-11-29"),
        (TIME, "2026-11-29 23:59:59.999001"),
        (TIME.replace(tzinfo=timezone(timedelta(hours=1))), "2026-11-29 22:59:59.999001"),
        (Decimal("1.50"), "1.50"),
    ],
)
def test_partition_values(value: Any, text: str | None) -> None:
    assert partition_text(value) == text


def statistics_of(values: list[Any], kind: pa.DataType) -> dict[str, Any]:
    output, table = io.BytesIO(), pa.table({"a": pa.array(values, kind)})
    with pq.ParquetWriter(output, table.schema) as writer:
        for row in range(len(table)):
            writer.write_table(table.slice(row, 1))
        writer.close()
    document: dict[str, Any] = json.loads(statistics(writer.writer.metadata, table.schema))
    return document


@pytest.mark.parametrize(
    ("values", "kind", "lower", "upper"),
    [
        ([3, 1, None, 2], pa.int32(), 1, 3),
        ([-1.5, 2.5], pa.float64(), -1.5, 2.5),
        (["b", "a"], pa.string(), "a", "b"),
        ([date(2026, 11, 30), date(2026, 11, 29)], pa.date32(), "2026-11-29", "2026-11-30"),
        ([Decimal("0.50"), Decimal("2.25")], pa.decimal128(9, 2), 0.5, 2.25),
        ([TIME, TIME], pa.timestamp("us", "UTC"), "2026-11-29T23:59:59.999Z", "2026-11-30T00:00:00.000Z"),
        ([TIME, TIME], pa.timestamp("us"), "2026-11-29T23:59:59.999", "2026-11-30T00:00:00.000"),
    ],
)
def test_bounds(values: list[Any], kind: pa.DataType, lower: Any, upper: Any) -> None:
    found = statistics_of(values, kind)
    assert found["numRecords"] == len(values)
    assert (found["minValues"], found["maxValues"]) == ({"a": lower}, {"a": upper})
    assert found["nullCount"] == {"a": values.count(None)}


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ([math.inf, 1.0], pa.float64()),
        (["x" * 65, "y"], pa.string()),
        ([True, False], pa.bool_()),
        ([b"a", b"b"], pa.binary()),
        ([Decimal("0.10"), Decimal("0.20")], pa.decimal128(9, 2)),
        ([datetime(9999, 12, 31, 23, 59, 59, 999_999)], pa.timestamp("us")),
        ([None, None], pa.int32()),
    ],
)
def test_values_that_json_cannot_represent_have_no_bounds(values: list[Any], kind: pa.DataType) -> None:
    found = statistics_of(values, kind)
    assert (found["minValues"], found["maxValues"]) == ({}, {})
    assert found["nullCount"] == {"a": values.count(None)}


def test_nested_columns_have_no_statistics() -> None:
    found = statistics_of([[1], [2]], pa.list_(pa.int32()))
    assert found == {"numRecords": 2, "minValues": {}, "maxValues": {}, "nullCount": {}}
