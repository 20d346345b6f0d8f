"""Serializers of keys and values, which convert Python objects to bytes."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeAlias

import pyarrow as pa

from sparklog.errors import BadRequest, SparklogError, shortened
from sparklog.format.json_columns import dumps
from sparklog.format.values import NAMES_OF_ALL, SCHEMA_FORMATS, ValueFormat, value_format
from sparklog.log.write.arrow_data import ArrowData, is_arrow
from sparklog.schemas.opening import schema_format

Serializer: TypeAlias = Callable[[Any], bytes | str | None] | str | tuple[str, Any]
"""A function, the name of a format, or the name and the schema of a format such as `("avro", schema)`."""
Serialize: TypeAlias = Callable[[Any], Any]
_PLAIN = {"str": "string", "bytes": "bytes"}
_LAYOUTS = {"short": ">h", "integer": ">i", "long": ">q", "float": ">f", "double": ">d"}


def serializer(option: str, given: Serializer | None) -> Serialize | None:
    """Return the function that serializes keys or values. Return None if the keys or values are already bytes or
    strings. A key or value of None is not serialized.

    The function raises `BadRequest` if a value cannot be serialized.

    Args:
        option: The name of the option, for errors.
        given: The value of the option. Raises `BadRequest` if the value is not a serializer.
    """
    if given is None:
        return None
    if isinstance(given, str):
        return _of_format(option, _PLAIN.get(given, given))
    if isinstance(given, tuple) and len(given) == 2 and given[0] in SCHEMA_FORMATS:
        return _by_column(option, schema_format(*given))
    call = getattr(given, "serialize", given)
    if not callable(call):
        formats = ", ".join(("str", "bytes", *NAMES_OF_ALL))
        raise BadRequest(
            f"{option} must be a function, ('avro', schema), or one of {formats}; found {shortened(given)}"
        )
    return _function(option, call)


def serialized_data(data: ArrowData, serializers: Mapping[str, Serialize]) -> ArrowData:
    """Serialize the cells of a dictionary of columns, or of dictionaries of rows, with the serializer of each column.

    Raises `BadRequest` for Arrow data, because serializers convert single Python objects.
    """
    rows = [data] if is_arrow(data) else data
    if not serializers or not isinstance(rows, Iterable):
        return data
    if isinstance(rows, Mapping):
        return {name: _serialized_column(serializers.get(name), cells) for name, cells in rows.items()}
    return [_serialized_row(serializers, row) for row in rows]


def _serialized_column(serialize: Serialize | None, cells: Any) -> Any:
    if serialize is None or isinstance(cells, (str, bytes)) or not isinstance(cells, Iterable):
        return cells
    cells = cells.to_pylist() if isinstance(cells, pa.Array | pa.ChunkedArray) else cells
    return [None if cell is None else serialize(cell) for cell in cells]


def _serialized_row(serializers: Mapping[str, Serialize], row: object) -> Mapping[str, Any]:
    if not isinstance(row, Mapping):
        raise BadRequest(
            f"a producer with a serializer sends only dictionaries, found {shortened(row)}: encode the columns with "
            "sparklog.formats.encode, and send them with a producer without a serializer"
        )
    return {
        name: serializers[name](cell) if name in serializers and cell is not None else cell
        for name, cell in row.items()
    }


def _function(option: str, call: Callable[[Any], Any]) -> Serialize:
    def serialize(value: Any) -> Any:
        try:
            return call(value)
        except SparklogError:
            raise
        except Exception as error:
            raise BadRequest(f"{option} failed for {shortened(value)}: {type(error).__name__}: {error}") from error

    return serialize


def _of_format(option: str, format_name: str) -> Serialize:
    if format_name in SCHEMA_FORMATS:
        raise BadRequest(f"the format {format_name} requires a schema: specify {option}=({format_name!r}, schema)")
    if format_name in ("bytes", "string"):
        return _instance(option, bytes if format_name == "bytes" else str)
    if format_name == "json":
        return _function(option, dumps)
    if format_name in _LAYOUTS:
        return _function(option, struct.Struct(_LAYOUTS[format_name]).pack)
    return _by_column(option, value_format(format_name))


def _instance(option: str, kind: type) -> Serialize:
    def serialize(value: Any) -> Any:
        if not isinstance(value, kind):
            raise BadRequest(f"{option} accepts only {kind.__name__}, found {shortened(value)}")
        return value

    return serialize


def _by_column(option: str, value_format: ValueFormat) -> Serialize:
    """Encode a value as a column with one row. This function is slower than the other serializers, but its result is
    the same as if a batch of values is encoded.
    """

    def serialize(value: Any) -> Any:
        try:
            column = pa.array([value])
        except (pa.ArrowException, TypeError, ValueError, OverflowError):
            raise BadRequest(f"{option} accepts only {value_format.text_name}, found {shortened(value)}") from None
        return value_format.encode(column, lambda _: option)[0].as_py()

    return serialize
