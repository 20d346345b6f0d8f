"""Options for the format of printed records, and functions that print records."""

# Do not import annotations from `__future__` (see `sparklog.console.options`).

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args

from click import BadParameter

from sparklog.common.parsing import INT32_MAX, is_digits
from sparklog.console.options import integer_option, unescaped
from sparklog.console.parameters import Option
from sparklog.console.schema_registry import (
    RegistryCacheOption,
    RegistryConfigOption,
    RegistryOption,
    open_registry,
)
from sparklog.console.terminal import read_text
from sparklog.output import write

if TYPE_CHECKING:
    import pyarrow as pa

    from sparklog.cli.record_text import Layout, RecordValues
    from sparklog.format.values import ValueFormat
    from sparklog.schemas.registry import SchemaRegistry


Format = Literal[
    "string", "short", "integer", "long", "float", "double", "json", "hex", "base64", "avro", "json-schema", "protobuf"
]
FORMAT_LIST = f"{', '.join(get_args(Format)[:-1])} or {get_args(Format)[-1]}"
SCHEMA_FORMATS = ("avro", "json-schema", "protobuf")

SCHEMA_HELP = "File with the schema of {}. If a schema registry was used, specify ID=FILE for each schema id."
MESSAGE_HELP = (
    "Full name of the Protobuf message type of {}. The message type in the prefix of a schema registry takes"
    " precedence when {} are read."
)


@dataclass
class Formats:
    """The formats of keys and values, and the location of their schemas."""

    key_format: Annotated[
        Format | None,
        Option(
            metavar="FORMAT",
            help=f"Format of keys: {FORMAT_LIST}. Numbers use the encoding of Kafka's serializers. Avro and Protobuf"
            " are printed as JSON.",
            show_default="bytes",
        ),
    ] = None
    value_format: Annotated[
        Format | None, Option(metavar="FORMAT", help="Format of values. See --key-format.", show_default="bytes")
    ] = None
    key_schema: Annotated[list[str] | None, Option(metavar="[ID=]FILE", help=SCHEMA_HELP.format("keys"))] = None
    value_schema: Annotated[list[str] | None, Option(metavar="[ID=]FILE", help=SCHEMA_HELP.format("values"))] = None
    key_message: Annotated[
        str | None,
        Option(metavar="NAME", help=MESSAGE_HELP.format("keys", "keys"), show_default="the first type in the schema"),
    ] = None
    value_message: Annotated[
        str | None,
        Option(
            metavar="NAME", help=MESSAGE_HELP.format("values", "values"), show_default="the first type in the schema"
        ),
    ] = None
    schema_registry: RegistryOption = None
    registry_config: RegistryConfigOption = None
    registry_cache: RegistryCacheOption = None

    def values(self) -> "RecordValues":
        """Return the formats for printing records."""
        from sparklog.cli.record_text import RecordValues

        registry = self.registry()
        return RecordValues(*(self._format(part, registry) for part in PARTS))

    def parse_key(self, text: str, topic: str | None) -> "tuple[bytes, RecordValues]":
        """Return the bytes of a key, and the formats for printing its record. If there is no format, keys are bytes."""
        from sparklog.cli.record_text import RecordValues
        from sparklog.format.text import parse_key

        registry = self.registry()
        name, value = self.key_format or "string", self._format("value", registry)
        check_message(name, self.key_message, "key")
        if name == "string" and not self.key_schema:
            return parse_key(text), RecordValues(None, value)
        key = one_format(name, self.key_schema, "key", registry, self.key_message)
        if registry is None or name not in SCHEMA_FORMATS:
            return parse_key(text, key or name), RecordValues(key, value)
        if topic is None:
            raise BadParameter("keys with schemas can be looked up in one topic only", param_hint="'--key'")
        return parse_key(text, self.format_to_write("key", registry, topic) or name), RecordValues(key, value)

    def registry(self) -> "SchemaRegistry | None":
        """Return the schema registry of the options."""
        registry = open_registry(self.schema_registry, self.registry_config, self.registry_cache)
        if registry is not None and not {self.key_format, self.value_format} & set(SCHEMA_FORMATS):
            names = ", ".join(SCHEMA_FORMATS)
            raise BadParameter(f"a schema registry requires --key-format or --value-format with one of {names}")
        return registry

    def _format(self, part: str, registry: "SchemaRegistry | None") -> "ValueFormat | None":
        name, files, message = (getattr(self, f"{part}_{option}") for option in ("format", "schema", "message"))
        return one_format(name, files, part, registry, message)

    def format_to_write(
        self,
        part: str,
        registry: "SchemaRegistry",
        topic: str,
        *,
        auto_register: bool = False,
        references: Sequence[tuple[str, str, int]] = (),
    ) -> "ValueFormat | None":
        """Return the format for writing keys or values (`part`) with a schema registry.

        A schema that is given as a file is registered in the subject `<topic>-value` or `<topic>-key`. If
        `auto_register` is False, the schema must be registered already. Without a file, the latest schema of the
        subject is used.

        Args:
            part: `key` or `value`.
            registry: The schema registry.
            topic: The topic.
            auto_register: True to register the schema.
            references: The name, the subject and the version of each schema that the schema in the file refers to.
        """
        name, files, message = (getattr(self, f"{part}_{option}") for option in ("format", "schema", "message"))
        if name not in SCHEMA_FORMATS:
            return one_format(name, files, part, registry, message)
        from sparklog.schemas.opening import subject_format

        check_message(name, message, part)
        if files is not None and (len(files) > 1 or "=" in files[0]):
            raise BadParameter("expected one FILE, because the registry has the id", param_hint=f"'--{part}-schema'")
        text = None if files is None else read_text(Path(files[0]), f"--{part}-schema")
        subject = registry.subject(f"{topic}-{part}", message=message)
        return subject_format(name, subject, text, auto_register=auto_register, references=references)


PARTS = ("key", "value")


def check_message(name: str | None, message: str | None, part: str) -> None:
    """Raise a usage error for a message type of a format other than Protobuf."""
    if message is not None and name != "protobuf":
        raise BadParameter(f"a message type requires --{part}-format protobuf", param_hint=f"'--{part}-message'")


def one_format(
    name: str | None,
    schemas: list[str] | None,
    part: str,
    registry: "SchemaRegistry | None" = None,
    message: str | None = None,
) -> "ValueFormat | None":
    """Return the format of the key or value (`part`). The schemas are in files, or in a registry."""
    option = f"'--{part}-schema'"
    check_message(name, message, part)
    if schemas and name not in SCHEMA_FORMATS:
        raise BadParameter(f"a schema requires --{part}-format {' or '.join(SCHEMA_FORMATS)}", param_hint=option)
    if name is None:
        return None
    from sparklog.formats import open_format

    if name not in SCHEMA_FORMATS:
        return open_format(name)
    if registry is not None:
        if schemas:
            raise BadParameter("omit the schema, because the registry contains the schemas", param_hint=option)
        return open_format(name, registry)
    if not schemas:
        raise BadParameter(
            f"{name} requires a schema: specify --{part}-schema FILE, or ID=FILE, or --schema-registry",
            param_hint=f"'--{part}-format'",
        )
    parts = [schema.partition("=") for schema in schemas]
    framed = {
        int(number): Path(file) for number, _, file in parts if file and is_digits(number) and int(number) <= INT32_MAX
    }
    if len(framed) not in (0, len(schemas)) or (not framed and len(schemas) > 1):
        raise BadParameter(
            f"expected one FILE, or ID=FILE with different ids, found {' '.join(schemas)}", param_hint=option
        )
    return open_format(name, framed or Path(schemas[0]), message)


Formatter = Callable[["pa.RecordBatch"], bytes]
FORMAT_HELP = (
    "Format of each record, as for -f of kcat. Supports %t %p %o %T %h %k %K %s %S and \\n. A null is printed as"
    " an empty string."
)
COLUMN_OPTIONS = (
    "--json --print-timestamp --print-partition --print-offset --print-headers --print-key --no-print-value "
    "--key-separator --line-separator --headers-separator"
)
COLUMN_REASON = "a format defines the entire output"
LimitOption = Annotated[int | None, integer_option("--max-messages", "-n", text="Stop after this many messages.")]


@dataclass
class Columns:
    """The columns of a record to print, with the option names of Kafka's console consumer."""

    print_timestamp: Annotated[bool, Option(help="Print the timestamp as CreateTime:<ms>.")] = False
    print_partition: Annotated[bool, Option(help="Print the partition as Partition:<n>.")] = False
    print_offset: Annotated[bool, Option(help="Print the offset as Offset:<n>.")] = False
    print_headers: Annotated[bool, Option(help="Print the headers as name:value,... or NO_HEADERS.")] = False
    print_key: Annotated[bool, Option(help="Print the record key.")] = False

    def layout(self, value: bool) -> "Layout":
        from sparklog.cli.record_text import Layout

        shown = (self.print_timestamp, self.print_partition, self.print_offset, self.print_headers, self.print_key)
        return Layout(*shown, value)


@dataclass
class Printing(Columns):
    """The columns and separators of a printed record, or its format string."""

    print_value: Annotated[bool, Option(help="Print the record value.")] = True
    key_separator: Annotated[
        str,
        Option(
            may_be_blank=True,
            help=r"Separator between columns. It may contain escapes such as \0 and \x1f.",
            show_default="a tab",
        ),
    ] = "\t"
    line_separator: Annotated[
        str, Option(may_be_blank=True, help="Separator between records.", show_default="a new line")
    ] = "\n"
    headers_separator: Annotated[str, Option(may_be_blank=True, help="Separator between headers.")] = ","
    null_literal: Annotated[
        str | None, Option(may_be_blank=True, help="Text to print for a null key or value.", show_default="null")
    ] = None
    format_: Annotated[
        str | None,
        Option(
            "--format", metavar="TEXT", may_be_blank=True, excludes=COLUMN_OPTIONS, why=COLUMN_REASON, help=FORMAT_HELP
        ),
    ] = None

    def formatter(self, values: "RecordValues", as_json: bool) -> tuple[tuple[str, ...], Formatter]:
        """Return the columns to read, and the function that formats records."""
        from sparklog.cli.record_text import format_json, parse_format
        from sparklog.log.state.view import COLUMNS

        if as_json:
            return COLUMNS, lambda batch: format_json(batch, values)
        null = None if self.null_literal is None else unescaped(self.null_literal)
        if self.format_ is not None:
            parsed = parse_format(self.format_, null or b"")
            return values.columns(parsed.columns()), lambda batch: parsed.format(batch, values.show(batch))
        layout = replace(
            self.layout(self.print_value),
            key_separator=unescaped(self.key_separator),
            line_separator=unescaped(self.line_separator),
            headers_separator=unescaped(self.headers_separator),
        )
        layout = layout if null is None else replace(layout, null_literal=null)
        return values.columns(layout.columns()), lambda batch: layout.format(values.show(batch))


class Printer:
    """A context manager that prints at most `limit` records. On exit, it reports how many records were printed, even
    after an interrupt.
    """

    def __init__(self, formatter: Formatter, limit: int | None) -> None:
        self._formatter = formatter
        self._limit = limit
        self.count = 0

    def __enter__(self) -> "Printer":
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: Any) -> None:
        if error is None:
            print(f"Processed a total of {self.count} messages", file=sys.stderr)
        elif isinstance(error, KeyboardInterrupt):
            error.args = (f"processed a total of {self.count} messages",)

    def remaining(self) -> int | None:
        """Return the number of records that may still be printed, or None if there is no limit."""
        return None if self._limit is None else self._limit - self.count

    def print(self, batches: Iterator["pa.RecordBatch"]) -> None:
        while self.remaining() != 0 and (batch := next(batches, None)) is not None:
            batch = batch.slice(0, self.remaining())
            data = self._formatter(batch)
            # Count before writing, because an interrupt may arrive as soon as a reader sees the records.
            self.count += batch.num_rows
            write(data)
