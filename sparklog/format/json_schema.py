"""Values in JSON with a JSON Schema, either plain or in the wire format of a schema registry.

The schema determines the Arrow type of a column, and values are validated before they are written. A column is read
without validation, so a value is invalid only if it does not have the type of its column.

| JSON Schema                                            | Arrow type                       |
|--------------------------------------------------------|----------------------------------|
| object with properties                                 | struct                           |
| object with additionalProperties, without properties   | map of strings                   |
| array with items                                       | list                             |
| string, integer, number, boolean, null                 | string, int64, double, bool, null |
| one of these and null                                  | the same                         |
| several types, no type, recursive references           | string that contains the JSON    |

jsonschema validates the values, and is imported on first use.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from importlib import import_module
from typing import Any
from urllib.parse import unquote, urljoin

import pyarrow as pa

from sparklog.common.lazy import install_command
from sparklog.errors import BadRequest
from sparklog.format.arrow_numpy import bytes_array
from sparklog.format.json_columns import JSON_TEXT, decode_json, dumps, loads, without_markers
from sparklog.format.registered import JSON_SCHEMA, RegisteredSchema, SchemaFormat

PLAIN_TYPES = {
    "null": pa.null(), "boolean": pa.bool_(), "integer": pa.int64(), "number": pa.float64(), "string": pa.string(),
}  # fmt: skip
DRAFT = "http://json-schema.org/draft-07/schema#"
"""The version of schemas that do not contain their version."""


class JsonSchemaFormat(SchemaFormat):
    """JSON values with the schemas of a `SchemaSource`, or with one schema."""

    schema_type, title = JSON_SCHEMA, "JSON"

    def parse_schema(self, schema: RegisteredSchema) -> JsonSchema:
        references = {name: _loaded(text) for name, text in schema.references}
        return JsonSchema(_loaded(schema.text), references)

    def schema_name(self, parsed: JsonSchema) -> str:
        document = parsed.document
        return str(document.get("title", document.get("$id", "JSON"))) if isinstance(document, dict) else "JSON"

    def type_of(self, parsed: JsonSchema) -> pa.DataType:
        return without_markers(parsed.shape)

    def decode_rows(
        self,
        data: bytes,
        rows: list[tuple[int, int] | None],
        schemas: list[Any],
        target: JsonSchema | None,
        kind: pa.DataType,
    ) -> pa.Array:
        values = bytes_array([None if row is None else data[row[0] : row[1]] for row in rows])
        return decode_json(values, target.shape if target is not None and kind == self.type_of(target) else kind)

    def text_of(self, body: bytes, schema: JsonSchema) -> bytes:
        loads(body.decode())
        # A line feed in JSON is insignificant whitespace. Replacing line feeds keeps each record on one line.
        return b" ".join(body.splitlines())

    def bytes_of(self, value: Any, schema: JsonSchema) -> bytes:
        written = schema.json_value(value)
        schema.validate(written)
        return dumps(written)

    def bytes_of_text(self, text: str, schema: JsonSchema) -> bytes:
        schema.validate(loads(text))
        return text.encode()


@dataclass
class JsonSchema:
    """A schema with the schemas that it refers to, by the names of the references."""

    document: Any
    references: Mapping[str, Any] = field(default_factory=dict)

    @cached_property
    def shape(self) -> pa.DataType:
        """The type of a column, with `JSON_TEXT` for values that have no single type."""
        try:
            return self._type(self.document, self.document, ())
        except BadRequest:
            raise
        except (AttributeError, KeyError, TypeError, ValueError):
            raise self._invalid("a keyword has a value of the wrong type") from None

    def _invalid(self, reason: str) -> BadRequest:
        return BadRequest(
            f"expected a JSON Schema, found {str(self.document)[:80]!r}: {' '.join(reason.split())[:200]}"
        )

    def validate(self, value: Any) -> None:
        """Raise `ValueError` if a value does not match the schema."""
        validator = self._validator
        try:
            error = import_module("jsonschema.exceptions").best_match(validator.iter_errors(value))
        except Exception as failure:  # noqa: BLE001  (references that cannot be resolved, invalid regular expressions)
            raise self._invalid(f"{type(failure).__name__} {failure}") from None
        if error is not None:
            message = " ".join(error.message.split())
            path = "".join(f"/{part}" for part in error.absolute_path)
            raise ValueError(f"{path or 'the value'}: {message[:200]}")

    @cached_property
    def _validator(self) -> Any:
        try:
            jsonschema, referencing = import_module("jsonschema"), import_module("referencing")
            specification = import_module("referencing.jsonschema").specification_with(DRAFT)
        except ImportError:
            raise BadRequest(f"the format json-schema requires jsonschema: {install_command('json-schema')}") from None
        resources = [
            (name, referencing.Resource.from_contents(document, default_specification=specification))
            for name, document in self.references.items()
        ]
        kind = jsonschema.validators.validator_for(self.document, default=jsonschema.Draft7Validator)
        try:
            kind.check_schema(self.document)
        except jsonschema.SchemaError as error:
            raise self._invalid(error.message) from None
        return kind(self.document, registry=referencing.Registry().with_resources(resources))

    def json_value(self, value: Any) -> Any:
        """Return the JSON value of an Arrow value: without null for missing members, and with parsed `JSON_TEXT`."""
        return self._json_value(value, self.document, self.document, self.shape)

    def _json_value(self, value: Any, schema: Any, document: Any, shape: pa.DataType) -> Any:
        if value is None:
            return None
        if shape == JSON_TEXT:
            return loads(value)
        schema, document = self._resolved(schema, document)
        if pa.types.is_struct(shape):
            if not isinstance(value, dict):
                return value
            properties, required = schema.get("properties", {}), schema.get("required", ())
            shapes = {each.name: each.type for each in shape}
            return {
                name: self._json_value(member, properties[name], document, shapes[name]) if name in shapes else member
                for name, member in value.items()
                if member is not None or name in required
            }
        if pa.types.is_map(shape) and isinstance(value, dict):
            inner = schema["additionalProperties"]
            return {name: self._json_value(item, inner, document, shape.item_type) for name, item in value.items()}
        if pa.types.is_list(shape) and isinstance(value, list):
            return [self._json_value(item, schema["items"], document, shape.value_type) for item in value]
        return value

    def _resolved(self, schema: Any, document: Any) -> tuple[Any, Any]:
        """Return a schema without references and without the alternative null, and the document that contains it."""
        visited: list[int] = []
        while isinstance(schema, dict) and id(schema) not in visited:
            visited.append(id(schema))
            if "$ref" in schema:
                schema, document = self._find(str(schema["$ref"]), document)
                continue
            several = schema.get("oneOf") or schema.get("anyOf")
            choices = [each for each in several or () if not (isinstance(each, dict) and each.get("type") == "null")]
            if len(choices) != 1 or schema.keys() & {"type", "properties"}:
                break
            schema = choices[0]
        return schema, document

    def _find(self, reference: str, document: Any) -> tuple[Any, Any]:
        """Return the schema of a `$ref`, and the document that contains it."""
        base, _, pointer = reference.partition("#")
        if base:
            own = str(document.get("$id", "")) if isinstance(document, dict) else ""
            ids = {str(each["$id"]).rstrip("#"): each for each in self._documents() if "$id" in each}
            for name in (base, urljoin(own, base)):
                found = self.references.get(name, ids.get(name))
                if found is not None:
                    document = found
                    break
            else:
                raise BadRequest(f"the JSON Schema refers to {base!r}, which is not one of its references")
        schema = document
        for part in pointer.strip("/").split("/") if pointer.strip("/") else ():
            key = unquote(part).replace("~1", "/").replace("~0", "~")
            try:
                schema = schema[int(key)] if isinstance(schema, list) else schema[key]
            except (KeyError, IndexError, ValueError, TypeError):
                raise BadRequest(f"the JSON Schema refers to {reference!r}, which does not exist") from None
        return schema, document

    def _documents(self) -> list[dict[str, Any]]:
        return [each for each in (self.document, *self.references.values()) if isinstance(each, dict)]

    def _type(self, schema: Any, document: Any, inside: tuple[int, ...]) -> pa.DataType:
        schema, document = self._resolved(schema, document)
        if not isinstance(schema, dict) or id(schema) in inside:
            return JSON_TEXT
        inside = (*inside, id(schema))
        declared = schema.get("type")
        kinds = [declared] if isinstance(declared, str) else list(declared or ())
        if len(kinds) > 1:
            kinds = [kind for kind in kinds if kind != "null"]
        if not kinds and "properties" in schema:
            kinds = ["object"]
        if not kinds and {type(value) for value in schema.get("enum", ())} == {str}:
            kinds = ["string"]
        if sorted(kinds) == ["integer", "number"]:
            kinds = ["number"]
        if len(kinds) != 1 or schema.keys() & {"oneOf", "anyOf", "allOf"}:
            return JSON_TEXT
        if kinds[0] == "array":
            items = schema.get("items")
            return pa.list_(self._type(items, document, inside)) if isinstance(items, dict) else JSON_TEXT
        if kinds[0] != "object":
            return PLAIN_TYPES.get(kinds[0], JSON_TEXT)
        properties, others = schema.get("properties"), schema.get("additionalProperties")
        if properties:
            return pa.struct([(name, self._type(each, document, inside)) for name, each in properties.items()])
        return pa.map_(pa.string(), self._type(others, document, inside)) if isinstance(others, dict) else JSON_TEXT


def _loaded(text: Any) -> Any:
    """Return a schema as a Python object. A string is JSON."""
    if not isinstance(text, str):
        return text
    try:
        return loads(text)
    except ValueError as error:
        raise BadRequest(f"expected a JSON Schema as JSON; the schema is invalid: {error}") from None
