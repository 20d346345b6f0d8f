"""The column `value` of a read according to its options: the format, and the schema in the options or in a registry."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sparklog.datasource.options import ReadOptions
from sparklog.datasource.value_columns import ValueColumn, spark_kind
from sparklog.errors import BadRequest
from sparklog.formats import ColumnFormats
from sparklog.opening import Location


def value_column(read: ReadOptions, location: Location) -> ValueColumn | None:
    """Return the column `value`, or None if values are read as bytes. The latest version of a schema is requested."""
    if read.value_format == "raw":
        return None
    schema: Any = read.value_schema
    if read.schema_registry_url is not None:
        schema = _registry(read).subject(read.value_subject or f"{_topic(read, location)}-value")
    formats = ColumnFormats.of_topic("", None, None, read.value_format, schema)
    kind = formats.formats["value"].arrow_type()
    assert kind is not None
    return ValueColumn(formats, spark_kind(kind))


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


def _topic(read: ReadOptions, location: Location) -> str:
    if location.topic is not None:
        return location.topic
    topics = () if read.subscription is None or read.subscription.pattern else read.subscription.topics
    if len(topics) != 1:
        raise BadRequest("Option 'valueSubject' is required to decode the values of several topics: set the subject")
    return topics[0]
