"""Open a format with its schemas, which are given by the caller or are in a registry."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from sparklog.errors import BadRequest
from sparklog.format.registered import FORMAT_NAMES, GivenSchemas, RegisteredSchema, SchemaFormat
from sparklog.schemas.registry import SchemaRegistry, Subject

TYPES = {name: schema_type for schema_type, name in FORMAT_NAMES.items()}


def schema_format(name: str, schema: Any, message: str | None = None) -> SchemaFormat:
    """Return a format that requires a schema.

    Args:
        name: `avro`, `json-schema` or `protobuf`.
        schema: A registry, a subject, a dictionary of schemas by id, or one schema for values without an id. A schema
            is its text or, if it is in JSON, a Python object.
        message: The full name of a Protobuf message type. Default: the type of the subject, or the first type.
    """
    schema_class, schema_type = _format_class(name), TYPES[name]
    if isinstance(schema, SchemaRegistry):
        return schema_class(schema, None)
    if isinstance(schema, Subject):
        latest = of_type(schema.schema(), name, schema.name)
        return schema_class(schema.registry, replace(latest, message=message or latest.message))
    if isinstance(schema, Mapping) and schema and all(isinstance(number, int) for number in schema):
        by_id = {
            int(number): RegisteredSchema(int(number), schema_type, text, message=message)
            for number, text in schema.items()
        }
        return schema_class(GivenSchemas(by_id), list(by_id.values())[-1])
    return schema_class(None, RegisteredSchema(0, schema_type, schema, message=message))


def subject_format(
    name: str,
    subject: Subject,
    text: str | None,
    *,
    auto_register: bool,
    references: Sequence[tuple[str, str, int]] = (),
) -> SchemaFormat:
    """Return a format that writes values with a schema of a subject.

    Args:
        name: `avro`, `json-schema` or `protobuf`.
        subject: The subject in a registry.
        text: The schema. None is the latest schema of the subject.
        auto_register: True to register the schema. If it is False and the subject does not have the schema, raises
            `NotFound`.
        references: The name, the subject and the version of each schema that the schema refers to.
    """
    schema_class = _format_class(name)
    if text is None:
        schema = of_type(subject.schema(), name, subject.name)
    else:
        # Report an invalid schema before the registry is changed.
        schema_class(None, subject.unregistered(text, TYPES[name], references))
        send = subject.register if auto_register else subject.find
        schema = send(text, TYPES[name], references=references)
    return schema_class(subject.registry, schema)


def of_type(schema: RegisteredSchema, name: str, subject: str) -> RegisteredSchema:
    """Return a schema if it belongs to a format. Otherwise, raises `BadRequest`."""
    if schema.type != TYPES[name]:
        found = FORMAT_NAMES.get(schema.type, schema.type)
        raise BadRequest(f"the subject {subject!r} has schemas of the format {found}, not {name}: use {found}")
    return schema


def _format_class(name: str) -> type[SchemaFormat]:
    if name == "avro":
        from sparklog.format.avro import AvroFormat

        return AvroFormat
    if name == "json-schema":
        from sparklog.format.json_schema import JsonSchemaFormat

        return JsonSchemaFormat
    from sparklog.format.protobuf import ProtobufFormat

    return ProtobufFormat
