"""Conversion of records to the rows of a table.

The values of records become columns according to a payload format:

| payload       | columns                                                       |
|---------------|---------------------------------------------------------------|
| raw           | `key` and `value` as bytes, `_headers`                        |
| string        | `key` and `value` as strings, `_headers`                      |
| json          | the columns of the schema, and the key columns                |
| avro          | the fields of the record schema, and the key columns          |

Each row also contains the position of the record: `_topic`, `_partition_id`, `_offset` and `_timestamp`. A record that
does not match its format becomes a bad record with a reason, as in the Spark job `to-delta`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sparklog.errors import BadRequest, did_you_mean
from sparklog.format.arrow_numpy import fixed_array, fixed_values, valid_rows
from sparklog.format.values import ValueFormat, valid_step
from sparklog.formats import FORMATS, open_format, subject_of
from sparklog.log.state.record_schema import HEADERS_TYPE
from sparklog.tables.column_types import table_columns, table_fields
from sparklog.tables.ddl import parse_ddl, type_name
from sparklog.tables.json_values import JsonColumns
from sparklog.tables.option_names import option_name, option_value

TIMESTAMP = pa.timestamp("us", tz="UTC")
POSITION = (
    pa.field("_topic", pa.string(), nullable=False),
    pa.field("_partition_id", pa.int32(), nullable=False),
    pa.field("_offset", pa.int64(), nullable=False),
    pa.field("_timestamp", TIMESTAMP, nullable=False),
)
OLD_PARTITION = "_partition"
"""The name of the column `_partition_id` up to release 0.14."""
HEADERS = pa.field("_headers", HEADERS_TYPE)
BAD_RECORD_SCHEMA = pa.schema(
    [
        pa.field("topic", pa.string(), nullable=False),
        pa.field("partition", pa.int32(), nullable=False),
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("timestamp", TIMESTAMP, nullable=False),
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("reason", pa.string(), nullable=False),
    ]
)
"""The columns of a quarantine table."""
TOMBSTONE = "the record has no value; tombstones require the mode upsert"
NO_KEY = "the record has no key"
PREFIXED_KEY = "the key has the prefix of a schema registry, but it must be text"
PREFIX_BYTES = 5
"""The size of the prefix of a schema registry, which begins with a zero byte."""
UNTYPED = ("raw", "string")
MAX_MS = (2**63 - 1) // 1000


@dataclass(frozen=True)
class RowOptions:
    """The conversion of records to rows.

    Attributes:
        payload: raw, or the format of the values.
        upsert: True if a row is the latest record of a key, and a tombstone deletes the row of its key.
        schema: The columns of JSON values in DDL, or the schema of the format, as in `sparklog.formats.decode`.
        key_columns: The columns of the record key. A single column contains the key as text, several columns are the
            fields of a JSON object.
        headers: True if raw and string rows contain the headers.
        metadata: True if rows contain the position of the record.
        message: The full name of the Protobuf message type of the values. None is the type of the subject, or the first
            type in the schema.
    """

    payload: str = "raw"
    upsert: bool = False
    schema: Any = None
    key_columns: tuple[str, ...] = ()
    headers: bool = True
    metadata: bool = True
    message: str | None = None

    def __post_init__(self) -> None:
        if self.payload != "raw" and self.payload not in FORMATS:
            names = ("raw", *FORMATS)
            hint = did_you_mean(self.payload, names)
            raise BadRequest(f"expected a payload of {', '.join(names)}; found {self.payload!r}{hint}")
        if self.message is not None and self.payload != "protobuf":
            raise BadRequest(f"{option_name('message')} requires {option_value('payload', 'protobuf')}")
        if self.payload in UNTYPED:
            if self.schema is not None or self.key_columns:
                raise BadRequest(
                    f"{option_name('schema')} and {option_name('key_columns')} cannot be used with "
                    f"{option_value('payload', self.payload)}"
                )
            return
        if self.payload == "json" and self.schema is None:
            raise BadRequest(
                f"{option_value('payload', 'json')} requires {option_name('schema')}: columns such as 'id BIGINT, name "
                "STRING'"
            )
        if self.upsert and not self.key_columns:
            raise BadRequest(
                f"{option_value('mode', 'upsert')} requires {option_name('key_columns')}: the columns of the record key"
            )
        if len({name.lower() for name in self.key_columns}) < len(self.key_columns):
            raise BadRequest(f"{option_name('key_columns')} must be distinct, found {', '.join(self.key_columns)}")


class ValueColumns(Protocol):
    """A format of values that are records. `JsonColumns` and the formats with schemas implement it."""

    def decode_valid(self, column: pa.Array) -> tuple[pa.Array, dict[int, str]]: ...


@dataclass(frozen=True)
class DecodedRows:
    """The rows of a batch of records.

    Attributes:
        rows: One row per record. The row of a bad record may contain nulls.
        deleted: For each record, True if it deletes the row of its key. None if no record does.
        reasons: The reason for each bad record, by row.
    """

    rows: pa.RecordBatch
    deleted: pa.BooleanArray | None
    reasons: Mapping[int, str]

    def valid(self, records: pa.RecordBatch) -> tuple[pa.RecordBatch, pa.BooleanArray, pa.RecordBatch]:
        """Return the rows without bad records, which of them are deleted, and their records."""
        deleted = pa.repeat(pa.scalar(False), self.rows.num_rows) if self.deleted is None else self.deleted
        if not self.reasons:
            return self.rows, deleted, records
        mask = np.ones(self.rows.num_rows, np.bool_)
        mask[list(self.reasons)] = False
        is_valid = pa.array(mask)
        return self.rows.filter(is_valid), deleted.filter(is_valid), records.filter(is_valid)


@dataclass(frozen=True)
class RowDecoder:
    """Converts batches of records to rows."""

    options: RowOptions
    topic: str
    value_columns: ValueColumns | None = None
    key_types: Mapping[str, pa.DataType] = field(default_factory=dict)
    schema: pa.Schema = field(default_factory=lambda: pa.schema([]))
    """The columns of a new table."""

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns of records to read."""
        headers = ("headers",) if self._has_headers else ()
        return ("key", "value", *headers, "partition", "offset", "timestamp")

    @property
    def _has_headers(self) -> bool:
        return self.options.payload in UNTYPED and self.options.headers

    @property
    def keys(self) -> tuple[str, ...]:
        """The columns that identify a row. Empty unless the mode is upsert."""
        if not self.options.upsert:
            return ()
        return ("key",) if self.options.payload in UNTYPED else self.options.key_columns

    def decode(self, records: pa.RecordBatch) -> DecodedRows:
        """Convert a batch with the columns `columns`."""
        columns, reasons = self._value_columns(records)
        if self.options.upsert:
            reasons |= dict.fromkeys(_null_rows(records["key"]), NO_KEY)
            deleted = pc.is_null(records["value"]) if records["value"].null_count else None
        else:
            deleted = None
        if self._has_headers:
            columns["_headers"] = records["headers"]
        if self.options.metadata:
            count = records.num_rows
            columns["_topic"] = pa.repeat(pa.scalar(self.topic, pa.string()), count)
            columns["_partition_id"], columns["_offset"] = records["partition"], records["offset"]
            columns["_timestamp"] = to_microseconds(records["timestamp"])
        return DecodedRows(pa.RecordBatch.from_pydict(columns), deleted, reasons)

    def _value_columns(self, records: pa.RecordBatch) -> tuple[dict[str, pa.Array], dict[int, str]]:
        key, value = records["key"], records["value"]
        if self.options.payload == "raw":
            return {"key": key, "value": value}, {}
        if self.value_columns is None:
            text = ValueFormat("string")
            (keys, wrong_keys), (values, wrong) = text.decode_valid(key), text.decode_valid(value)
            wrong = dict.fromkeys(wrong, "the value is not UTF-8") | dict.fromkeys(wrong_keys, "the key is not UTF-8")
            return {"key": keys, "value": values}, wrong
        structs, reasons = self.value_columns.decode_valid(value)
        if not self.options.upsert:
            reasons |= dict.fromkeys(_null_rows(value), TOMBSTONE)
        fields = table_columns(structs)
        reasons |= self._null_columns(structs.type, fields, value, reasons)
        keys_of, wrong_keys = key_columns(key, self.key_types)
        before = {name: column for name, column in keys_of.items() if name not in fields}
        return before | fields | keys_of, reasons | wrong_keys

    def _null_columns(
        self, kind: pa.StructType, fields: Mapping[str, pa.Array], value: pa.Array, reasons: Mapping[int, str]
    ) -> dict[int, str]:
        """Return the rows in which a column is null although the schema does not allow it."""
        found: dict[int, str] = {}
        for item in reversed(list(kind)):
            # Key columns are taken from the record key instead of the record value.
            column = fields.get(item.name)
            if column is not None and column.null_count and not item.nullable and item.name not in self.key_types:
                rows = np.flatnonzero(~valid_rows(column) & valid_rows(value)).tolist()
                found |= {row: f"column {item.name} is null" for row in rows if row not in reasons}
        return found


def row_decoder(options: RowOptions, topic: str) -> RowDecoder:
    """Open the format of the values. Raises `BadRequest` if its schema is not suitable for a table."""
    if options.payload == "raw" or options.payload == "string":
        kind = pa.binary() if options.payload == "raw" else pa.string()
        fields = [pa.field("key", kind, nullable=not options.upsert), pa.field("value", kind)]
        fields += [HEADERS] if options.headers else []
        return RowDecoder(options, topic, schema=_with_position(fields, options))
    value_columns, columns = _open_values(options, topic)
    types = key_types(columns, options.key_columns)
    keys = {name: pa.field(name, kind, nullable=not options.upsert) for name, kind in types.items()}
    values = {item.name: item for item in columns}
    columns_by_name = {name: keys[name] for name in keys if name not in values} | values | keys
    schema = _with_position(list(columns_by_name.values()), options)
    return RowDecoder(options, topic, value_columns, types, schema)


def _open_values(options: RowOptions, topic: str) -> tuple[ValueColumns, pa.Schema]:
    if options.payload == "json":
        schema = options.schema if isinstance(options.schema, pa.Schema) else parse_ddl(options.schema)
        return JsonColumns(schema), schema
    schema = subject_of(options.schema, topic, "value")
    opened = open_format(options.payload, schema, options.message)
    kind = opened.arrow_type()
    columns = table_fields(kind) if kind is not None and pa.types.is_struct(kind) else []
    if not columns:
        raise BadRequest(
            f"{option_value('payload', options.payload)} requires a record schema, because its fields become columns"
        )
    return opened, pa.schema(columns)


def _with_position(fields: Sequence[pa.Field], options: RowOptions) -> pa.Schema:
    fields = [*fields, *(POSITION if options.metadata else ())]
    check_names(fields)
    return pa.schema(fields)


def check_names(fields: Sequence[pa.Field]) -> None:
    """Raise `BadRequest` if the names of two columns, or of two fields of a struct, are the same, ignoring case."""
    if (duplicate := _duplicate_name(fields)) is not None:
        raise BadRequest(
            f"the rows would contain column {duplicate} twice, because names are compared without case: rename the "
            f"column in {option_name('schema')}"
        )


def _duplicate_name(fields: Sequence[pa.Field]) -> str | None:
    """Return the path of a field with the same name, ignoring case, as another field of the same struct, or None."""
    names: set[str] = set()
    for item in fields:
        if item.name.lower() in names:
            return str(item.name)
        names.add(item.name.lower())
    for item in fields:
        # Lists and maps also have fields, for their elements, keys and values. The names of these fields are fixed.
        if (inner := _duplicate_name([item.type.field(index) for index in range(item.type.num_fields)])) is not None:
            return f"{item.name}.{inner}"
    return None


def key_types(schema: pa.Schema, keys: tuple[str, ...]) -> Mapping[str, pa.DataType]:
    """Return the types of the key columns in the schema. A single column that is not in the schema is a string."""
    names = {name.lower() for name in schema.names}
    if len(keys) == 1 and keys[0].lower() not in names:
        return {keys[0]: pa.string()}
    for name in keys:
        if name not in schema.names:
            raise BadRequest(
                f"{option_name('key_columns')} contains {name}, which is not a column of the schema"
                f"{did_you_mean(name, schema.names)}"
            )
    types = {name: schema.field(name).type for name in keys}
    if len(keys) == 1 and pa.types.is_nested(types[keys[0]]):
        raise BadRequest(
            f"{option_name('key_columns')}: the text of a key cannot be converted to the column {keys[0]} "
            f"{type_name(types[keys[0]])}"
        )
    return types


def key_columns(key: pa.Array, types: Mapping[str, pa.DataType]) -> tuple[dict[str, pa.Array], dict[int, str]]:
    """Return the columns of the record key, and the reason for each key that does not contain them."""
    if not types:
        return {}, {}
    if len(types) == 1:
        ((name, kind),) = types.items()
        if pa.types.is_binary(kind):
            return {name: key}, {}
        values, invalid = valid_step(lambda part: part.cast(pa.string()).cast(kind), key, "a key")
        reasons = dict.fromkeys(invalid, f"the key does not match {name} {type_name(kind)}")
        has_prefix = pc.and_(pc.starts_with(key, pattern="\0"), pc.greater_equal(pc.binary_length(key), PREFIX_BYTES))
        return {name: values}, reasons | dict.fromkeys(pc.indices_nonzero(has_prefix).to_pylist(), PREFIXED_KEY)
    parsed = JsonColumns(pa.schema(list(types.items())))
    structs, invalid = parsed.decode_valid(key)
    columns = dict(zip(types, structs.flatten(), strict=True))
    is_valid = valid_rows(key)
    for column in columns.values():
        invalid |= dict.fromkeys(np.flatnonzero(~valid_rows(column) & is_valid).tolist(), "")
    return columns, dict.fromkeys(invalid, f"the key is not a JSON object with {', '.join(types)}")


def _null_rows(column: pa.Array) -> list[int]:
    return np.flatnonzero(~valid_rows(column)).tolist() if column.null_count else []


def to_microseconds(timestamps: pa.Array) -> pa.Array:
    """Return timestamps in ms as timestamps in µs. Timestamps outside the range of the type are clipped."""
    return fixed_array(fixed_values(timestamps, "int64").clip(-MAX_MS, MAX_MS) * 1000, TIMESTAMP)


def bad_records(records: pa.RecordBatch, reasons: Mapping[int, str], topic: str) -> pa.RecordBatch:
    """Return the rows of the quarantine table for the bad records of a batch."""
    rows = sorted(reasons)
    bad = records.take(pa.array(rows, pa.int64()))
    columns = {
        "topic": pa.repeat(pa.scalar(topic, pa.string()), len(rows)),
        "partition": bad["partition"],
        "offset": bad["offset"],
        "timestamp": to_microseconds(bad["timestamp"]),
        "key": bad["key"],
        "value": bad["value"],
        "reason": pa.array([reasons[row] for row in rows], pa.string()),
    }
    return pa.RecordBatch.from_arrays(list(columns.values()), schema=BAD_RECORD_SCHEMA)


def missing_columns(table: str, existing: pa.Schema, rows: pa.Schema) -> list[pa.Field]:
    """Return the columns of rows that a table does not have, and the wider types of columns whose type is too narrow.

    Raises `BadRequest` if the rows do not contain a column that must not be null, if a column has another type, if the
    name of a column differs only in case, or if the table was written by a release before 0.15.
    """
    missing = []
    names = {name.lower(): name for name in existing.names}
    for item in rows:
        index = existing.get_field_index(item.name)
        if index < 0:
            if (name := names.get(item.name.lower())) is not None:
                raise BadRequest(
                    f"the records contain column {item.name}, but table {table} has column {name}: use the same case, "
                    "because Spark compares names without case"
                )
            missing.append(pa.field(item.name, item.type))
        elif not can_cast(item.type, existing.field(index).type):
            if not can_cast(existing.field(index).type, item.type):
                types = type_name(existing.field(index).type), type_name(item.type)
                raise BadRequest(
                    f"column {item.name} of table {table} has the type {types[0]}, but the records have the type "
                    f"{types[1]}: use another table, or change the schema of the rows"
                )
            missing.append(pa.field(item.name, item.type))
    if OLD_PARTITION in existing.names and "_partition_id" in rows.names and "_partition_id" not in existing.names:
        raise BadRequest(
            f"table {table} was written by a release before 0.15, in which the column _partition_id had the name "
            f"{OLD_PARTITION}: rename the column (in an Iceberg table), or copy the topic to a new table"
        )
    for item in existing:
        if not item.nullable and item.name not in rows.names:
            raise BadRequest(f"column {item.name} of table {table} must not be null, but the records do not contain it")
    return missing


def can_cast(kind: pa.DataType, wider: pa.DataType) -> bool:
    """Return True if a cast from a type to another type preserves all values."""
    if pa.types.is_struct(kind) and pa.types.is_struct(wider):
        fields = {item.name: item.type for item in wider}
        return all(item.name in fields and can_cast(item.type, fields[item.name]) for item in kind)
    if pa.types.is_list(kind) and _is_list(wider):
        return can_cast(kind.value_type, wider.value_type)
    if pa.types.is_map(kind) and pa.types.is_map(wider):
        return can_cast(kind.key_type, wider.key_type) and can_cast(kind.item_type, wider.item_type)
    if pa.types.is_decimal(kind) and pa.types.is_decimal(wider):
        return bool(kind.scale == wider.scale and kind.precision <= wider.precision)
    integers = pa.types.is_signed_integer(kind) and pa.types.is_signed_integer(wider)
    floats = pa.types.is_floating(kind) and pa.types.is_floating(wider)
    if integers or floats:
        return bool(kind.bit_width <= wider.bit_width)
    if _is_text(kind) and _is_text(wider):
        return True
    if _is_bytes(wider):
        return _is_bytes(kind) or bool(pa.types.is_fixed_size_binary(kind))
    return bool(kind == wider) or _is_finer(kind, wider)


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind))


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _is_bytes(kind: pa.DataType) -> bool:
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))


def _is_finer(kind: pa.DataType, wider: pa.DataType) -> bool:
    if not (pa.types.is_timestamp(kind) and pa.types.is_timestamp(wider)):
        return False
    units = ("s", "ms", "us", "ns")
    return (kind.tz is None) == (wider.tz is None) and units.index(kind.unit) <= min(units.index(wider.unit), 2)


class NewColumns(Exception):  # noqa: N818
    """The rows have columns that the table does not have."""

    def __init__(self, schema: pa.Schema) -> None:
        super().__init__(schema)
        self.schema = schema


def conform(rows: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Return the rows with the schema of a table. Columns that the rows do not contain are null.

    Raises `NewColumns` if the rows have other columns, or columns with other types.
    """
    names = rows.schema.names
    if names != schema.names and not set(names) <= set(schema.names):
        raise NewColumns(rows.schema)
    columns = []
    for item in schema:
        index = rows.schema.get_field_index(item.name)
        column = pa.nulls(rows.num_rows, item.type) if index < 0 else rows.column(index)
        if column.type != item.type:
            if not can_cast(column.type, item.type):
                raise NewColumns(rows.schema)
            column = column.cast(item.type)
        columns.append(column)
    return pa.RecordBatch.from_arrays(columns, schema=schema)
