"""Test the conversion of schemas, and partition values against the transforms of pyiceberg."""

from __future__ import annotations

import random
from collections.abc import Callable
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.transforms import (
    BucketTransform,
    DayTransform,
    HourTransform,
    IdentityTransform,
    MonthTransform,
    Transform,
    TruncateTransform,
    VoidTransform,
    YearTransform,
)
from pyiceberg.types import DateType, IcebergType, TimestamptzType
from pyiceberg.utils.datetime import date_to_days, datetime_to_micros

from sparklog.errors import BadRequest
from sparklog.tables.iceberg_schema import RESERVED_NAMES, arrow_schema, iceberg_schema, partition_values, table_schema
from sparklog.tables.target import TableLayout

EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
NUMBERS = random.Random(3)
VALUES: dict[str, tuple[pa.DataType, Callable[[], Any]]] = {
    "binary": (pa.binary(), lambda: NUMBERS.randbytes(NUMBERS.randrange(20))),
    "string": (pa.string(), lambda: f"é{NUMBERS.random()}"),
    "int": (pa.int32(), lambda: NUMBERS.randrange(-(2**31), 2**31)),
    "long": (pa.int64(), lambda: NUMBERS.randrange(-(2**63), 2**63)),
    "decimal": (pa.decimal128(10, 2), lambda: Decimal(NUMBERS.randrange(-(10**6), 10**6)) / 100),
    "time": (pa.timestamp("us", "UTC"), lambda: EPOCH + timedelta(microseconds=NUMBERS.randrange(-(10**16), 10**16))),
    "date": (pa.date32(), lambda: EPOCH.date() + timedelta(days=NUMBERS.randrange(-9999, 9999))),
}
TIMES: tuple[Transform[Any, Any], ...] = (DayTransform(), MonthTransform(), YearTransform(), IdentityTransform())
TRANSFORMS: dict[str, tuple[Transform[Any, Any], ...]] = {
    **{name: (BucketTransform(16), VoidTransform()) for name in VALUES},
    "time": (BucketTransform(7), HourTransform(), *TIMES),
    "date": (BucketTransform(7), *TIMES),
}


def stored(kind: IcebergType, value: Any) -> Any:
    if isinstance(kind, TimestamptzType) and isinstance(value, datetime):
        return datetime_to_micros(value)
    return date_to_days(value) if isinstance(kind, DateType) and isinstance(value, date) else value


@pytest.mark.parametrize("column", VALUES)
def test_partition_values_are_those_of_pyiceberg(column: str) -> None:
    kind, value = VALUES[column]
    values = [None if NUMBERS.random() < 0.1 else value() for _ in range(300)]
    rows = pa.RecordBatch.from_pydict({column: pa.array(values, kind)})
    schema = iceberg_schema(list(rows.schema))
    field = schema.find_field(column)
    for transform in TRANSFORMS[column]:
        spec = PartitionSpec(PartitionField(field.field_id, 1000, transform, "part"))
        apply = transform.transform(field.field_type)
        for part in (rows, rows.slice(17, 100)):
            expected = [apply(stored(field.field_type, value)) for value in part.column(0).to_pylist()]
            assert partition_values(spec, schema, part).column(0).to_pylist() == expected, transform


def test_partitioning_that_cannot_be_computed_is_reported() -> None:
    rows = pa.RecordBatch.from_pydict({"name": ["anna"]})
    schema = iceberg_schema([pa.field("name", pa.string()), pa.field("country", pa.string())])
    with pytest.raises(BadRequest, match=r"transform truncate\[3\], which is not supported"):
        partition_values(PartitionSpec(PartitionField(1, 1000, TruncateTransform(3), "part")), schema, rows)
    with pytest.raises(BadRequest, match=r"partitioned by identity\(country\), which is not a column of the rows"):
        partition_values(PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "part")), schema, rows)


def test_nested_columns_have_distinct_ids_and_return_unchanged() -> None:
    inner = pa.struct([pa.field("key", pa.string(), nullable=False), pa.field("value", pa.binary())])
    columns = [pa.field("headers", pa.list_(inner)), pa.field("counts", pa.map_(pa.string(), pa.int32()))]
    schema = iceberg_schema(columns)
    assert sorted(schema.field_ids) == [1, 2, 3, 4, 5, 6, 7]
    found = arrow_schema(schema)
    assert found.field("counts").type == columns[1].type
    assert found.field("headers").type.value_type == inner


@pytest.mark.parametrize("name", [*RESERVED_NAMES, "_FILE"])
def test_reserved_names_are_rejected(name: str) -> None:
    column = pa.field(name, pa.string())
    with pytest.raises(BadRequest, match=f"must not have a column {name}, .*: rename the field in schema, or omit it"):
        iceberg_schema([pa.field("id", pa.int64()), column])
    iceberg_schema([pa.field("inner", pa.struct([column])), pa.field("_change_type", pa.string())])


def test_floating_point_keys_are_no_identifiers() -> None:
    schema = pa.schema([pa.field("id", pa.float64()), pa.field("name", pa.string())])
    assert table_schema(TableLayout(schema, "upsert", None, ("id",))).identifier_field_ids == []
    assert table_schema(TableLayout(schema, "upsert", None, ("name",))).identifier_field_ids == [2]
