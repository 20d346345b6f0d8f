"""The columns and types of reads and writes, which are the same as in Spark's Kafka connector.

A schema given by the user is a projection, which contains any subset of the columns in any order. Other columns are not
decoded. Spark compares the Arrow schema of batches exactly (order, types and nullability), so `to_spark` builds batches
with the schema that Spark derives from the columns.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from sparklog.errors import BadRequest, nearest

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import DataType, StructType

    from sparklog.datasource.decoded_columns import DecodedColumn

SPARK_TYPES = {
    "key": "binary",
    "value": "binary",
    "topic": "string",
    "partition": "int",
    "offset": "bigint",
    "timestamp": "timestamp",
    "timestampType": "int",
    "headers": "array<struct<key:string,value:binary>>",
}

COLUMNS = tuple(SPARK_TYPES)
"""The same columns as in `sparklog.log.state.view`, which imports numpy. The process that creates the data source does
not import numpy.
"""
_MAY_BE_NULL = frozenset(("key", "value", "headers"))

# The range of Spark's microseconds, in milliseconds.
MAX_MS = ((1 << 63) - 1) // 1000
MIN_MS = -MAX_MS

WRITE_TYPES = {
    "key": ("string", "binary"),
    "value": ("string", "binary"),
    "topic": ("string",),
    "partition": ("int",),
    "timestamp": ("timestamp",),
    "headers": ("array<struct<key:string,value:binary>>",),
}


def read_columns(include_headers: bool, selected: Sequence[str] | None = None) -> tuple[str, ...]:
    """Return the columns of a read in order. `selected` is the option `columns`, or None for all columns except
    headers.
    """
    names = tuple(name for name in COLUMNS if name != "headers") if selected is None else tuple(selected)
    return names if not include_headers or "headers" in names else (*names, "headers")


def read_schema(include_headers: bool, selected: Sequence[str] | None = None) -> str:
    return ", ".join(f"{name} {SPARK_TYPES[name]}" for name in read_columns(include_headers, selected))


def listed_columns(text: str) -> tuple[str, ...]:
    """Return the columns of a list like `value,timestamp`, as `check_listed` does."""
    return check_listed(tuple(name.strip() for name in text.split(",")))


def check_listed(names: Sequence[str]) -> tuple[str, ...]:
    """Return the columns to read. Raises BadRequest if there is none, or if a name is unknown or duplicate."""
    expected = f"the columns are {', '.join(COLUMNS)}"
    if not names:
        raise BadRequest(f"Option 'columns' must contain at least one column, found []; {expected}")
    for index, name in enumerate(names):
        if name not in SPARK_TYPES:
            near = nearest(name.lower(), COLUMNS, limit=1) if name else []
            hint = f" (did you mean {near[0]!r}?)" if near else ""
            raise BadRequest(f"Option 'columns' contains the unknown column {name!r}{hint}; {expected}")
        if name in names[:index]:
            raise BadRequest(f"Option 'columns' contains {name!r} twice: remove one of them")
    return tuple(names)


def check_selected(schema: StructType, selected: Sequence[str] | None, include_headers: bool) -> None:
    """Raise BadRequest if the option `columns` is given together with a schema of the user or of a table."""
    if selected is not None and tuple(schema.fieldNames()) != read_columns(include_headers, selected):
        raise BadRequest(
            f"Option 'columns' ({','.join(selected)}) conflicts with the schema ({','.join(schema.fieldNames())}) of "
            "the read or the table: remove one of them"
        )


@functools.cache
def _arrow_types() -> dict[str, pa.DataType]:
    import pyarrow as pa

    from sparklog.log.state.record_schema import RECORD_SCHEMA

    return {**{field.name: field.type for field in RECORD_SCHEMA}, "timestamp": pa.timestamp("us", tz="UTC")}


@dataclass(frozen=True)
class Projection:
    """The columns to read, in order, with the Arrow schema that Spark expects, and the columns to decode. Picklable."""

    columns: tuple[str, ...]
    arrow: pa.Schema
    decoded: tuple[DecodedColumn, ...] = ()

    @property
    def required_columns(self) -> tuple[str, ...]:
        """The columns that `to_spark` requires."""
        required = [name for column in self.decoded for name in column.formats.columns_to_read(self.columns)]
        return tuple(dict.fromkeys((*self.columns, *required)))

    def to_spark(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Convert the timestamps of a batch from milliseconds to microseconds, and clip them to the range of Spark.
        Decode the keys and values.
        """
        import pyarrow as pa

        columns = {name: batch.column(name) for name in self.columns}
        for column in self.decoded:
            columns[column.name] = column.decode(batch)
        microseconds = _arrow_types()["timestamp"]
        if "timestamp" in columns and columns["timestamp"].type != microseconds:
            # Use numpy, because importing `pyarrow.compute` would take a long time in each worker.
            from sparklog.format.arrow_numpy import fixed_array, fixed_values

            milliseconds = fixed_values(columns["timestamp"], "int64").clip(MIN_MS, MAX_MS)
            columns["timestamp"] = fixed_array(milliseconds * 1000, microseconds)
        return pa.RecordBatch.from_arrays(list(columns.values()), schema=self.arrow)


def projection(schema: StructType, decoded: Mapping[str, DecodedColumn] = MappingProxyType({})) -> Projection:
    """Return the projection for a schema. `decoded` contains the decoded columns. Raises BadRequest for unknown columns
    and wrong types.
    """
    import pyarrow as pa

    columns, fields, typed = [], [], []
    for column in schema.fields:
        name = column.name
        if name not in SPARK_TYPES:
            near = nearest(name.lower(), COLUMNS, limit=1)
            hint = f" (did you mean {near[0]!r}?)" if near else ""
            raise BadRequest(
                f"The schema contains the unknown column {name!r}{hint}; the columns are {', '.join(COLUMNS)}"
            )
        if name in columns:
            raise BadRequest(f"The schema contains the column {name!r} twice")
        kind, arrow = type_name(column.dataType), _arrow_types()[name]
        in_format = decoded.get(name)
        # A schema of the user, or a table that was created by an earlier version, may contain bytes.
        if in_format is not None and (kind != "binary" or type_name(in_format.spark_type) == kind):
            typed.append(in_format.with_type(column.dataType))
            arrow = typed[-1].kind
        elif kind != SPARK_TYPES[name]:
            raise BadRequest(
                f"Column {name!r} must have the type {SPARK_TYPES[name]}, but has the type {kind} in the schema"
            )
        if not column.nullable and name in _MAY_BE_NULL:
            raise BadRequest(f"Column {name!r} can contain nulls: declare the column nullable in the schema")
        columns.append(name)
        fields.append(pa.field(name, arrow, nullable=column.nullable))
    if not columns:
        raise BadRequest(f"The schema must contain at least one of the columns {', '.join(COLUMNS)}")
    return Projection(tuple(columns), pa.schema(fields), tuple(typed))


def type_name(kind: DataType) -> str:
    return str(kind.simpleString())


def write_columns(schema: StructType, topic_option: str | None) -> tuple[str, ...]:
    """Return the columns to write. Ignore other columns, as in Kafka's sink. Raises BadRequest for a wrong schema."""
    names: list[str] = []
    for column in schema.fields:
        name = column.name.lower()
        if name not in WRITE_TYPES or (name == "topic" and topic_option is not None):
            continue
        if name in names:
            raise BadRequest(f"There are two columns named {name!r}: drop or rename one of them")
        kind = type_name(column.dataType)
        if kind not in WRITE_TYPES[name]:
            types = " or ".join(WRITE_TYPES[name])
            raise BadRequest(f"Column {name!r} must be {types} but is {kind}: cast the column before writing")
        names.append(name)
    if "value" not in names:
        found_names = ", ".join(schema.fieldNames()) or "none"
        raise BadRequest(f"A column 'value' (string or binary) is required; the columns are {found_names}")
    if topic_option is None and "topic" not in names:
        raise BadRequest("No topic: set the option 'topic', add a column 'topic', or use the path of a topic directory")
    return tuple(names)


def pick(batch: pa.RecordBatch, names: Sequence[str]) -> dict[str, Any]:
    """Return these columns of a batch. Like Spark, ignore case."""
    positions: dict[str, int] = {}
    for index, name in enumerate(batch.schema.names):
        positions.setdefault(name.lower(), index)
    return {name: batch.column(positions[name]) for name in names}
