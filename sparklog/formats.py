"""Decode and encode keys and values that are not strings: `from sparklog import formats`.

Records contain keys and values as bytes. These functions convert keys and values to Arrow columns and back, with the
formats of the command-line options `--key-format` and `--value-format`. docs/guides/values.md lists the formats.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, TypeGuard

import pyarrow as pa

from sparklog.common.lazy import lazy_names
from sparklog.errors import BadRequest
from sparklog.format.values import NAMES_OF_ALL, SCHEMA_FORMATS, RowName, ValueFormat, value_format

if TYPE_CHECKING:
    from sparklog.schemas.registry import SchemaRegistry, Subject

__all__ = ["FORMATS", "SchemaRegistry", "Subject", "decode", "decode_records", "encode", "encode_records"]

if not TYPE_CHECKING:
    __getattr__ = lazy_names(__name__, {"sparklog.schemas.registry": "SchemaRegistry Subject"})

FORMATS = NAMES_OF_ALL
POSITION = ("topic", "partition", "offset")
"""The columns that identify a record in error messages."""
SIGNED_TYPES = {
    pa.uint8(): pa.int16(),
    pa.uint16(): pa.int32(),
    pa.uint32(): pa.int64(),
    pa.uint64(): pa.decimal128(20, 0),
    pa.duration("us"): pa.int64(),
}
"""Types of Spark, Iceberg and Delta columns for values whose types these do not have."""
Schema: TypeAlias = "str | PathLike[str] | Mapping[str, Any] | list[Any] | SchemaRegistry | Subject"
Schemas: TypeAlias = "Schema | Mapping[int, Schema] | None"


def decode(
    column: pa.Array | pa.ChunkedArray, name: str, schema: Schemas = None, *, arrow_type: pa.DataType | None = None
) -> pa.Array | pa.ChunkedArray:
    r"""Decode a column of bytes to values.

    Args:
        column: Keys or values, as in a scan. Nulls remain null.
        name: One of `formats.FORMATS`. Numbers are big-endian, as in Kafka's serializers.
        schema: Schema of `avro`, `json-schema` or `protobuf`: a file name, the text of the schema, or a Python object
            instead of JSON. `{id: schema, ...}` decodes frames of a schema registry (a zero byte, the id, the encoded
            value). Values with an earlier schema are converted to the last schema. A `Subject` of a registry decodes
            frames to its latest schema, and a `SchemaRegistry` to the schema with the greatest id in the column.
        arrow_type: Type of the result. Default: the type of the format. For `json`, the type that Arrow infers.

    Returns:
        An Arrow column of the same length, for example int64 for `long` and a struct for a record of `avro`.

    Raises:
        BadRequest: If a value is not valid in this format. The error reports the first such row.

    Example:
        counts = pa.array([b"\x00\x00\x00\x00\x00\x00\x00\x2a"], pa.binary())
        assert formats.decode(counts, "long").to_pylist() == [42]
    """
    return open_format(name, schema).decode(column, kind=arrow_type)


def encode(column: pa.Array | pa.ChunkedArray, name: str, schema: Schemas = None) -> pa.Array | pa.ChunkedArray:
    r"""Encode a column of values to bytes.

    Args:
        column: Numbers, strings or structs. Nulls remain null. A null value is a tombstone.
        name: As in `decode`.
        schema: As in `decode`. `{id: schema, ...}` writes frames with the last schema, and a `Subject` with its latest
            schema.

    Returns:
        A column of bytes, to append as `key` or `value`.

    Raises:
        BadRequest: If a value cannot be encoded in this format. The error reports the first such row.

    Example:
        assert formats.encode(pa.array([42, None]), "integer").to_pylist() == [b"\x00\x00\x00\x2a", None]
    """
    return open_format(name, schema).encode(column)


def decode_records(
    records: pa.Table | pa.RecordBatch,
    key: str | None = None,
    value: str | None = None,
    *,
    key_schema: Schemas = None,
    value_schema: Schemas = None,
) -> pa.Table | pa.RecordBatch:
    """Decode the keys and values of records. Errors report the topic, partition and offset.

    Args:
        records: Result of a scan or a poll. The columns `topic`, `partition` and `offset` are used in error messages.
        key: Format of the column `key`. None leaves the column unchanged.
        value: Format of the column `value`. None leaves the column unchanged.
        key_schema: Schema of the keys, as in `decode`. If it is a `SchemaRegistry` and all records are of one topic,
            keys are decoded to the latest schema of the subject `<topic>-key`, if this subject exists.
        value_schema: Schema of the values. The subject is `<topic>-value`.

    Returns:
        The same columns in the same order, with keys and values decoded.

    Raises:
        BadRequest: If a key or a value is not valid in its format.

    Example:
        clicks = root.create_topic("clicks")
        clicks.append(formats.encode_records(pa.table({"key": ["anna"], "value": [3]}), value="long"))
        rows = formats.decode_records(clicks.scan().to_table(), key="string", value="long")
        assert rows["value"].to_pylist() == [3]
    """
    key_schema, value_schema = (
        schema_of_topic(schema, records, name) for name, schema in (("key", key_schema), ("value", value_schema))
    )
    formats = _open_formats(key, key_schema, value, value_schema)
    for name, opened_format in formats.items():
        records = _with(records, name, opened_format.decode(_column(records, name), row_names(records, name)))
    return records


def encode_records(
    records: pa.Table | pa.RecordBatch,
    key: str | None = None,
    value: str | None = None,
    *,
    key_schema: Schemas = None,
    value_schema: Schemas = None,
) -> pa.Table | pa.RecordBatch:
    """Encode the columns `key` and `value` of records, for `Topic.append`.

    Args:
        records: A table or a batch with a column `value`, and with a column `key` if `key` is given.
        key: Format of the column `key`. None leaves the column unchanged.
        value: Format of the column `value`. None leaves the column unchanged.
        key_schema: Schema of the keys, as in `encode`.
        value_schema: Schema of the values, as in `encode`.

    Returns:
        The same columns in the same order, with keys and values encoded.

    Raises:
        BadRequest: If a key or a value cannot be encoded. The error reports its column and row number.

    Example:
        rows = formats.encode_records(pa.table({"value": [{"page": "/home"}]}), value="json")
        assert rows["value"].to_pylist() == [b'{"page": "/home"}']
    """
    formats = _open_formats(key, key_schema, value, value_schema)
    for name, opened_format in formats.items():
        records = _with(records, name, opened_format.encode(_column(records, name), _numbered_rows(name)))
    return records


def open_format(name: str, schema: Schemas = None, message: str | None = None) -> ValueFormat:
    """Return a format, and read its schemas.

    Args:
        name: One of `FORMATS`.
        schema: As in `decode`.
        message: The full name of a Protobuf message type. Default: the type of the subject, or the first type.
    """
    if name not in SCHEMA_FORMATS:
        if schema is not None:
            names = f"{', '.join(SCHEMA_FORMATS[:-1])} and {SCHEMA_FORMATS[-1]}"
            raise BadRequest(f"only the formats {names} have schemas: omit the schema for the format {name}")
        return value_format(name)
    if schema is None:
        raise BadRequest(f"the format {name} requires a schema, or a schema for each id")
    from sparklog.schemas.opening import schema_format
    from sparklog.schemas.registry import SchemaRegistry, Subject

    def given(schema: Any) -> Any:
        parsed = read_schema(schema, name)
        return json.dumps(parsed) if isinstance(parsed, str) and name != "protobuf" else parsed

    if isinstance(schema, (SchemaRegistry, Subject)):
        return schema_format(name, schema, message)
    if isinstance(schema, Mapping) and bool(schema) and all(isinstance(number, int) for number in schema):
        return schema_format(name, {number: given(text) for number, text in schema.items()}, message)
    return schema_format(name, given(schema), message)


@dataclass(frozen=True)
class ColumnFormats:
    """The formats of the columns `key` and `value` that a reader decodes. Picklable.

    Each format has a type that is known before records are read.
    """

    formats: Mapping[str, ValueFormat]

    @classmethod
    def of_topic(
        cls, topic: str, key: str | None, key_schema: Schemas, value: str | None, value_schema: Schemas
    ) -> ColumnFormats:
        """Open the formats. If a schema is a `SchemaRegistry`, it is replaced with the subject `<topic>-key` or
        `<topic>-value`. Raises `BadRequest` for a format without a type.
        """
        key_schema, value_schema = subject_of(key_schema, topic, "key"), subject_of(value_schema, topic, "value")
        formats = _open_formats(key, key_schema, value, value_schema)
        for name, opened_format in formats.items():
            if opened_format.arrow_type() is None:
                raise BadRequest(
                    f"the format {opened_format.name} does not determine the type of the column {name}: read the"
                    " column as string, or use json-schema with a schema"
                )
        return cls(formats)

    def schema(self, records: pa.Schema) -> pa.Schema:
        """Return the schema of decoded records."""
        return pa.schema(
            [
                field.with_type(self.formats[field.name].arrow_type()) if field.name in self.formats else field
                for field in records
            ]
        )

    def columns_to_read(self, columns: Sequence[str]) -> list[str]:
        """Return the columns to read, so that errors in decoded columns report the topic, partition and offset."""
        position = POSITION if self.formats.keys() & set(columns) else ()
        return list(dict.fromkeys((*columns, *position)))

    def decode(self, records: Any) -> Any:
        """Decode the columns of a table or a batch that have a format."""
        for name, opened_format in self.formats.items():
            if name in records.schema.names:
                records = _with(records, name, opened_format.decode(records.column(name), row_names(records, name)))
        return records


SCHEMA_TITLES = {"avro": "an Avro schema", "json-schema": "a JSON Schema", "protobuf": "a Protobuf schema"}


def read_schema(schema: Any, name: str) -> Any:
    """Return a schema of the format `name` as a Python object, or as its text for Protobuf. It may be in a file.

    A string that starts like JSON, or that contains a brace for Protobuf, is not a file name.
    """
    title = SCHEMA_TITLES[name]
    if not isinstance(schema, (str, PathLike)):
        return schema
    text, source = str(schema), "the schema"
    is_text = "{" in text if name == "protobuf" else text.lstrip().startswith(("{", "[", '"'))
    if not isinstance(schema, str) or not is_text:
        source = text
        try:
            text = Path(text).read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or "the file is not UTF-8"
            raise BadRequest(f"the file {source} with {title} cannot be read: {reason}") from None
    if name == "protobuf":
        return text
    try:
        return json.loads(text)
    except ValueError as error:
        raise BadRequest(f"expected {title} as JSON; {source} is invalid: {error}") from None


def row_names(records: pa.Table | pa.RecordBatch, name: str) -> RowName:
    """Return a function that describes a row in error messages: by topic, partition and offset, if these
    columns exist.
    """
    columns = [column for column in POSITION if column in records.schema.names]

    def row_name(row: int) -> str:
        parts = [f"{column} {records.column(column)[row].as_py()}" for column in columns]
        return f"{name} of {', '.join(parts) or f'row {row}'}"

    return row_name


def schema_of_topic(schema: Schemas, records: pa.Table | pa.RecordBatch, name: str) -> Schemas:
    """Return the subject `<topic>-value` or `<topic>-key` instead of a registry, if all records are of one topic and
    the subject exists.
    """
    if not _is_registry(schema) or "topic" not in records.schema.names:
        return schema
    topics = records.column("topic").unique().to_pylist()
    subject = schema.subject(f"{topics[0]}-{name}") if len(topics) == 1 else None
    return subject if subject is not None and subject.exists() else schema


def subject_of(schema: Schemas, topic: str, name: str) -> Schemas:
    """Return the subject `<topic>-value` or `<topic>-key` instead of a registry."""
    return schema.subject(f"{topic}-{name}") if _is_registry(schema) else schema


def _is_registry(schema: Schemas) -> TypeGuard[SchemaRegistry]:
    from sparklog.schemas.registry import SchemaRegistry

    return isinstance(schema, SchemaRegistry)


def _numbered_rows(name: str) -> RowName:
    return lambda row: f"{name} of row {row}"


def _open_formats(
    key: str | None, key_schema: Schemas, value: str | None, value_schema: Schemas
) -> dict[str, ValueFormat]:
    formats = {}
    for column, name, schema in (("key", key, key_schema), ("value", value, value_schema)):
        if name is not None:
            formats[column] = open_format(name, schema)
        elif schema is not None:
            alternatives = " or ".join(f"{column}='{each}'" for each in SCHEMA_FORMATS)
            raise BadRequest(f"{column}_schema requires {alternatives}")
    return formats


def _column(records: pa.Table | pa.RecordBatch, name: str) -> pa.Array | pa.ChunkedArray:
    if name not in records.schema.names:
        raise BadRequest(f"expected a column {name}, found {', '.join(records.schema.names)}")
    return records.column(name)


def _with(records: pa.Table | pa.RecordBatch, name: str, column: Any) -> Any:
    return records.set_column(records.schema.get_field_index(name), name, column)
