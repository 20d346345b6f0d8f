"""Types of columns that Iceberg and Delta tables support, for the values of each format.

| type of the values                         | type of the column            |
|--------------------------------------------|-------------------------------|
| uint8, uint16, uint32                      | int16, int32, int64           |
| uint64                                     | decimal(20, 0)                |
| duration                                   | int64, the microseconds       |
| time in milliseconds                       | time in microseconds          |
| struct without fields, null                | no column                     |

The same applies to the fields of structs and to the values of lists and maps. Spark also omits Protobuf messages
without fields, because Parquet files cannot contain them.
"""

from __future__ import annotations

import pyarrow as pa

from sparklog.formats import SIGNED_TYPES

COLUMN_TYPES = {**SIGNED_TYPES, pa.time32("ms"): pa.time64("us"), pa.null(): None}


def table_columns(values: pa.StructArray) -> dict[str, pa.Array]:
    """Return the fields of the values as columns of a table."""
    columns = {}
    for item, column in zip(values.type, values.flatten(), strict=True):
        kind = column_type(item.type)
        if kind is not None:
            columns[item.name] = column if kind == column.type else column.cast(kind)
    return columns


def table_fields(kind: pa.StructType) -> list[pa.Field]:
    """Return the columns of a table that contains the fields of a struct."""
    return [item.with_type(inner) for item in kind if (inner := column_type(item.type)) is not None]


def column_type(kind: pa.DataType) -> pa.DataType | None:
    """Return the type of a column for values of a type, or None if the values contain nothing."""
    if pa.types.is_struct(kind):
        fields = table_fields(kind)
        return pa.struct(fields) if fields else None
    if pa.types.is_list(kind):
        inner = column_type(kind.value_type)
        return None if inner is None else pa.list_(kind.value_field.with_type(inner))
    if pa.types.is_map(kind):
        key, inner = column_type(kind.key_type), column_type(kind.item_type)
        return None if key is None or inner is None else pa.map_(key, kind.item_field.with_type(inner))
    return COLUMN_TYPES.get(kind, kind)
