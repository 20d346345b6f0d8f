"""The decoded columns of a read according to its options: formats, and schemas in the options or in a registry."""

from __future__ import annotations

from collections.abc import Container
from pathlib import Path
from typing import Any

from sparklog.datasource.decoded_columns import DecodedColumn, spark_kind
from sparklog.datasource.option_table import FORMATS_WITH_SCHEMA
from sparklog.datasource.options import ReadOptions
from sparklog.errors import BadRequest
from sparklog.formats import ColumnFormats
from sparklog.opening import Location


def decoded_columns(read: ReadOptions, location: Location, columns: Container[str]) -> dict[str, DecodedColumn]:
    """Return the columns to decode, by name. The latest versions of their schemas are requested.

    Args:
        read: The options.
        location: The source.
        columns: The columns of the read.
    """
    return {
        name: _decoded_column(read, location, name, decoded.format, decoded.schema, decoded.subject)
        for name, decoded in read.decoded.items()
        if name in columns
    }


def _decoded_column(
    read: ReadOptions, location: Location, name: str, format_name: str, schema: Any, subject: str | None
) -> DecodedColumn:
    if format_name in FORMATS_WITH_SCHEMA and schema is None:
        schema = _registry(read).subject(subject or f"{_topic(read, location, name)}-{name}")
    formats = ColumnFormats.of_topic("", None, None, format_name, schema)
    kind = formats.formats["value"].arrow_type()
    assert kind is not None
    return DecodedColumn(name, ColumnFormats({name: formats.formats["value"]}), spark_kind(kind))


def _registry(read: ReadOptions) -> Any:
    from sparklog.maintenance.registry_properties import registry_arguments
    from sparklog.schemas.registry import SchemaRegistry

    file = read.schema_registry_config
    if file is None:
        return SchemaRegistry(read.schema_registry_url)
    try:
        text = Path(file).read_text(encoding="utf-8-sig")
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8"
        raise BadRequest(f"Option 'schemaRegistryConfig' must be a properties file: {file!r}: {reason}") from None
    arguments: dict[str, Any] = dict(registry_arguments(text, file))
    return SchemaRegistry(read.schema_registry_url, **arguments)


def _topic(read: ReadOptions, location: Location, column: str) -> str:
    if location.topic is not None:
        return location.topic
    topics = () if read.subscription is None or read.subscription.pattern else read.subscription.topics
    if len(topics) != 1:
        raise BadRequest(
            f"Option '{column}Subject' is required to decode the {column}s of several topics: set the subject"
        )
    return topics[0]
