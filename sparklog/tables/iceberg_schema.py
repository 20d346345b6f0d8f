"""Schemas and partitions of Iceberg tables: the conversion from and to Arrow schemas, and the partition of each row.

Iceberg identifies columns by a number, the field id. Data files contain the ids in their schema, so a column keeps its
values if it is renamed. Arrow fields have the id in their metadata, under `FIELD_ID`.

pyiceberg computes partitions with a separate package of compiled code, or from one value at a time. Here, they are
computed with Arrow.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.io.pyarrow import UnsupportedPyArrowTypeException, pyarrow_to_schema, schema_to_pyarrow
from pyiceberg.partitioning import PARTITION_FIELD_ID_START, PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import (
    BucketTransform,
    DayTransform,
    HourTransform,
    IdentityTransform,
    MonthTransform,
    Transform,
    VoidTransform,
    YearTransform,
)
from pyiceberg.types import DoubleType, FloatType, IcebergType

from sparklog.errors import BadRequest
from sparklog.format.key_hash import bucket_for_value
from sparklog.tables.option_names import option_name
from sparklog.tables.target import PartitionBy, TableLayout

RESERVED_NAMES = ("_deleted", "_file", "_last_updated_sequence_number", "_partition", "_pos", "_row_id", "_spec_id")
"""Names of metadata columns in Iceberg's specification, which Spark adds to a table.

If a table has a column with such a name, Spark cannot read all columns and cannot change rows. If the name of the
column differs in case, a DELETE has no effect. Fields of structs can have these names.
"""
FIELD_ID = b"PARQUET:field_id"
"""The key of a field id in the metadata of an Arrow field. Parquet files contain the id as part of their schema."""


def table_schema(layout: TableLayout) -> Schema:
    """Return the Iceberg schema of a new table. The key columns are its identifier fields and are required.

    Raises `BadRequest` if Iceberg does not support a type or reserves a name.
    """
    keys = set(layout.key_columns)
    fields = [field.with_nullable(field.nullable and field.name not in keys) for field in layout.schema]
    schema = iceberg_schema(fields)
    # Iceberg does not allow floating-point numbers as identifiers.
    identifiers = [
        field.field_id
        for field in schema.fields
        if field.name in keys and not isinstance(field.field_type, FloatType | DoubleType)
    ]
    return Schema(*schema.fields, identifier_field_ids=identifiers if len(identifiers) == len(keys) else [])


def iceberg_schema(fields: Sequence[pa.Field]) -> Schema:
    """Convert new columns to an Iceberg schema with new field ids. The ids of the columns are 1, 2, ... in their order.

    Raises `BadRequest` if Iceberg does not support a type or reserves a name.
    """
    if reserved := [field.name for field in fields if field.name.lower() in RESERVED_NAMES]:
        raise BadRequest(
            f"an Iceberg table must not have a column {reserved[0]}, because Iceberg reserves the name and Spark "
            f"cannot read such a table: rename the field in {option_name('schema')}, or omit it"
        )
    numbered: list[pa.Field] = []
    next_id = len(fields) + 1

    def number() -> int:
        nonlocal next_id
        next_id += 1
        return next_id - 1

    for index, field in enumerate(fields):
        numbered.append(_with_id(field.with_type(_numbered(field.type, number)), index + 1))
    try:
        return pyarrow_to_schema(pa.schema(numbered))
    except (TypeError, ValueError, UnsupportedPyArrowTypeException) as error:
        column = next((field for field in fields if not _is_supported(field)), None)
        name = "a column" if column is None else f"column '{column.name}' of type {column.type}"
        raise BadRequest(f"Iceberg tables do not support {name}: {error}") from None


def _is_supported(field: pa.Field) -> bool:
    try:
        pyarrow_to_schema(pa.schema([_with_id(field.with_type(_numbered(field.type, lambda: 2)), 1)]))
    except (TypeError, ValueError, UnsupportedPyArrowTypeException):
        return False
    return True


def arrow_schema(schema: Schema) -> pa.Schema:
    """Return the Arrow schema of data files, with field ids. It has no types with 64-bit offsets."""
    return pa.schema([_small(field) for field in schema_to_pyarrow(schema)])


def _small(field: pa.Field) -> pa.Field:
    kind = field.type
    if pa.types.is_struct(kind):
        kind = pa.struct([_small(inner) for inner in kind])
    elif pa.types.is_map(kind):
        kind = pa.map_(_small(kind.key_field), _small(kind.item_field))
    elif pa.types.is_large_list(kind):
        kind = pa.list_(_small(kind.value_field))
    elif pa.types.is_large_string(kind):
        kind = pa.string()
    elif pa.types.is_large_binary(kind):
        kind = pa.binary()
    return field.with_type(kind)


def field_ids(schema: pa.Schema) -> dict[int, str]:
    """Return the name of the column with each field id."""
    return {
        int(field.metadata[FIELD_ID]): field.name for field in schema if field.metadata and FIELD_ID in field.metadata
    }


def _with_id(field: pa.Field, field_id: int) -> pa.Field:
    return field.with_metadata({FIELD_ID: str(field_id)})


def _numbered(kind: pa.DataType, number: Callable[[], int]) -> pa.DataType:
    def inner(field: pa.Field) -> pa.Field:
        field_id = number()
        return _with_id(field.with_type(_numbered(field.type, number)), field_id)

    if pa.types.is_struct(kind):
        return pa.struct([inner(field) for field in kind])
    if pa.types.is_map(kind):
        return pa.map_(inner(kind.key_field), inner(kind.item_field))
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return pa.list_(inner(kind.value_field))
    return kind


def partition_spec(partition_by: PartitionBy | None, schema: Schema) -> PartitionSpec:
    """Return the partitioning of a new table. `bucket` has one partition field for each column."""
    if partition_by is None:
        return PartitionSpec()
    transform: Transform[Any, Any]
    transform = DayTransform() if partition_by.transform == "day" else BucketTransform(partition_by.buckets)
    return PartitionSpec(
        *(
            PartitionField(
                schema.find_field(column).field_id,
                PARTITION_FIELD_ID_START + index,
                transform,
                f"{column}_{partition_by.transform}",
            )
            for index, column in enumerate(partition_by.columns)
        )
    )


def partition_values(spec: PartitionSpec, schema: Schema, rows: pa.RecordBatch) -> pa.RecordBatch:
    """Return the values of the partition fields for each row, in the representation that Iceberg stores.

    Raises `BadRequest` if the table uses a transform that is not supported.
    """
    columns = {}
    for field in spec.fields:
        name = schema.find_column_name(field.source_id)
        if name not in rows.schema.names:
            raise BadRequest(
                f"the table is partitioned by {field.transform}({name or field.source_id}), which is not a column of "
                "the rows: use a table that is partitioned by a column of the rows"
            )
        columns[field.name] = _stored(_transformed(field, schema.find_type(field.source_id), rows.column(name)))
    if not columns:
        # A batch without columns would have no rows.
        return pa.RecordBatch.from_arrays([], schema=pa.schema([]))
    return pa.RecordBatch.from_pydict(columns)


def source_columns(spec: PartitionSpec, schema: Schema) -> list[str]:
    """Return the columns from which the partition values are computed."""
    return [str(schema.find_column_name(field.source_id)) for field in spec.fields]


def _transformed(field: PartitionField, kind: IcebergType, column: pa.Array) -> pa.Array:
    transform = field.transform
    if isinstance(transform, IdentityTransform):
        return column
    if isinstance(transform, VoidTransform):
        return pa.nulls(len(column), pa.int32())
    if isinstance(transform, BucketTransform):
        return _buckets(transform, kind, column)
    if isinstance(transform, DayTransform):
        return column.cast(pa.date32(), safe=False)
    if isinstance(transform, HourTransform):
        hours = pc.floor_temporal(column, unit="hour").cast(pa.timestamp("s", column.type.tz)).cast(pa.int64())
        return pc.divide(hours, 3600).cast(pa.int32())
    if isinstance(transform, YearTransform | MonthTransform):
        years = pc.subtract(pc.year(column), 1970)
        if isinstance(transform, YearTransform):
            return years.cast(pa.int32())
        return pc.add(pc.multiply(years, 12), pc.subtract(pc.month(column), 1)).cast(pa.int32())
    raise BadRequest(
        f"the table is partitioned with the transform {transform}, which is not supported: use identity, year, month, "
        "day, hour or bucket"
    )


def _buckets(transform: BucketTransform[Any], kind: IcebergType, column: pa.Array) -> pa.Array:
    stored = _stored(column)
    if pa.types.is_integer(stored.type):
        # Integers of all widths are hashed as 64 bits, so that a column can be widened.
        words = stored.cast(pa.int64())
        stored = pa.Array.from_buffers(pa.binary(8), len(words), words.buffers(), words.null_count, words.offset)
    elif not (_is_binary(stored.type) or pa.types.is_fixed_size_binary(stored.type)):
        return _buckets_of_each_value(transform, kind, column)
    buckets = bucket_for_value(stored, transform.num_buckets)
    return pa.array(buckets, mask=np.asarray(buckets < 0))


def _buckets_of_each_value(transform: BucketTransform[Any], kind: IcebergType, column: pa.Array) -> pa.Array:
    """Compute the buckets of a type that is rarely used, such as decimals, once for each distinct value."""
    encoded = column.dictionary_encode()
    bucket = transform.transform(kind)
    return pa.array([bucket(value) for value in encoded.dictionary.to_pylist()], pa.int32()).take(encoded.indices)


def _is_binary(kind: pa.DataType) -> bool:
    return any(check(kind) for check in (pa.types.is_string, pa.types.is_large_string, pa.types.is_binary)) or bool(
        pa.types.is_large_binary(kind)
    )


def _stored(column: pa.Array) -> pa.Array:
    """Convert dates, times and timestamps to the integers that Iceberg stores."""
    if pa.types.is_timestamp(column.type):
        return column.cast(pa.timestamp("us", column.type.tz)).cast(pa.int64())
    if pa.types.is_date32(column.type):
        return column.cast(pa.int32())
    if pa.types.is_time64(column.type):
        return column.cast(pa.int64())
    return column
