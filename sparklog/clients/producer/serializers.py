"""Serializers of keys and values: from what a program has to the bytes of a record."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import pyarrow as pa

from sparklog.errors import BadRequest, SparklogError, shortened
from sparklog.format.values import NAMES_OF_ALL, ValueFormat, dumps, value_format

Serializer: TypeAlias = Callable[[Any], bytes | str | None] | str | tuple[str, Any]
"""A function, the name of a format, or `("avro", schema)`."""
Serialize: TypeAlias = Callable[[Any], Any]
_PLAIN = {"str": "string", "bytes": "bytes"}
_LAYOUTS = {"short": ">h", "integer": ">i", "long": ">q", "float": ">f", "double": ">d"}


def serializer(name: str, given: Serializer | None) -> Serialize | None:
    """Return what makes bytes or a text of a key or value that is not None; None: they are bytes or texts already.

    `name`: of the option, for errors. `BadRequest` for what is no serializer; what it returns raises `BadRequest` for
    values that do not fit.
    """
    if given is None:
        return None
    if isinstance(given, str):
        return _of_format(name, _PLAIN.get(given, given))
    if isinstance(given, tuple) and len(given) == 2 and given[0] == "avro":
        return _by_column(name, _avro(given[1]))
    call = getattr(given, "serialize", given)
    if not callable(call):
        formats = ", ".join(("str", "bytes", *NAMES_OF_ALL))
        raise BadRequest(f"{name} is a function, ('avro', schema), or one of {formats}; found {shortened(given)}")
    return _function(name, call)


def _function(name: str, call: Callable[[Any], Any]) -> Serialize:
    def serialize(value: Any) -> Any:
        try:
            return call(value)
        except SparklogError:
            raise
        except Exception as error:
            raise BadRequest(f"{name} fails for {shortened(value)}: {type(error).__name__}: {error}") from error

    return serialize


def _of_format(name: str, format_name: str) -> Serialize:
    if format_name == "avro":
        raise BadRequest(f"the format avro needs a schema: give {name}=('avro', schema)")
    if format_name in ("bytes", "string"):
        return _instance(name, bytes if format_name == "bytes" else str)
    if format_name == "json":
        return _function(name, dumps)
    if format_name in _LAYOUTS:
        layout = struct.Struct(_LAYOUTS[format_name])
        return _function(name, layout.pack)
    return _by_column(name, value_format(format_name))


def _instance(name: str, kind: type) -> Serialize:
    def serialize(value: Any) -> Any:
        if not isinstance(value, kind):
            raise BadRequest(f"{name} takes {kind.__name__}, found {shortened(value)}")
        return value

    return serialize


def _by_column(name: str, value_format: ValueFormat) -> Serialize:
    """Encode a value as a column of one row: slower than the others, and the same bytes as `sparklog.formats`."""

    def serialize(value: Any) -> Any:
        try:
            column = pa.array([value])
        except (pa.ArrowException, TypeError, ValueError, OverflowError):
            raise BadRequest(f"{name} takes {value_format.text_name}, found {shortened(value)}") from None
        return value_format.encode(column, lambda _: name)[0].as_py()

    return serialize


def _avro(schema: Any) -> ValueFormat:
    from sparklog.format.avro import AvroFormat

    if isinstance(schema, str):
        try:
            schema = json.loads(schema)
        except ValueError as error:
            raise BadRequest(f"expected an Avro schema as JSON: {error}") from None
    if isinstance(schema, Mapping) and schema and all(isinstance(number, int) for number in schema):
        return AvroFormat(dict(schema), framed=True)
    return AvroFormat({0: schema}, framed=False)
