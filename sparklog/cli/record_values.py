"""Keys and values in the formats of `--key-format` and `--value-format`: bytes to text, and text to bytes."""

# Without `annotations` of the future: see `sparklog.cli.options`.
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from click import BadParameter

from sparklog.cli.parameters import Option
from sparklog.errors import BadRequest
from sparklog.parsing import INT32_MAX, is_digits

if TYPE_CHECKING:
    import pyarrow as pa

    from sparklog.format.values import ValueFormat

Format = Literal["string", "short", "integer", "long", "float", "double", "json", "hex", "base64", "avro"]
SCHEMA_HELP = "Avro schema of {}; ID=FILE: in a registry's frame, for each id that is read."
PLACE = ("topic", "partition", "offset")


@dataclass(frozen=True)
class RecordValues:
    """The formats of key and value; None: bytes, as they are."""

    key: "ValueFormat | None" = None
    value: "ValueFormat | None" = None

    def __bool__(self) -> bool:
        return self.key is not None or self.value is not None

    def columns(self, shown: Sequence[str]) -> tuple[str, ...]:
        """Return the columns to read for these: an error names the place."""
        return tuple(dict.fromkeys((*shown, *PLACE))) if self else tuple(shown)

    def show(self, records: "pa.RecordBatch") -> "pa.RecordBatch":
        """Return records with text in place of bytes."""
        from sparklog.formats import place_in

        for name, form in self._formats_in(records):
            records = _with(records, name, form.show(records.column(name), place_in(records, name)))
        return records

    def parse(self, records: "pa.RecordBatch", lines: Sequence[int]) -> "pa.RecordBatch":
        """Return records with bytes in place of text; `lines`: the number of each record's line."""
        for name, form in self._formats_in(records):
            records = _with(records, name, form.parse(records.column(name), _line_of(lines, name)))
        return records

    def unquoted(self, shown: bytes | None, name: str) -> Any:
        """Return a member of `--json`: what a format shows as JSON is no string, but that."""
        form = getattr(self, name)
        text = None if shown is None else shown.decode()
        return json.loads(text, parse_constant=str) if text is not None and form.json_text else text

    def quoted(self, member: Any, name: str, line: int) -> bytes | None:
        """Return the text that a member of `produce --json` means."""
        if member is None:
            return None
        form = getattr(self, name)
        if form.json_text and not (isinstance(member, str) and form.name not in ("json", "avro")):
            return json.dumps(member, ensure_ascii=False).encode(errors="surrogatepass")
        if isinstance(member, str):
            return member.encode(errors="surrogatepass")
        raise BadRequest(f'line {line}: "{name}" must be a string or null, found {json.dumps(member)[:60]}')

    def _formats_in(self, records: "pa.RecordBatch") -> "list[tuple[str, ValueFormat]]":
        both = (("key", self.key), ("value", self.value))
        return [(name, form) for name, form in both if form is not None and name in records.schema.names]


def _line_of(lines: Sequence[int], name: str) -> Callable[[int], str]:
    return lambda row: f"line {lines[row]}, {name}"


def _with(records: "pa.RecordBatch", name: str, column: "pa.Array") -> "pa.RecordBatch":
    return records.set_column(records.schema.get_field_index(name), name, column)


@dataclass
class Formats:
    """The options for the formats of keys and values."""

    key_format: Annotated[
        Format | None,
        Option(help="Of keys: numbers as Kafka's serializers have them, Avro as JSON.", show_default="bytes"),
    ] = None
    value_format: Annotated[Format | None, Option(help="Of values, likewise.", show_default="bytes")] = None
    key_schema: Annotated[list[str] | None, Option(metavar="[ID=]FILE", help=SCHEMA_HELP.format("keys"))] = None
    value_schema: Annotated[list[str] | None, Option(metavar="[ID=]FILE", help=SCHEMA_HELP.format("values"))] = None

    def values(self) -> RecordValues:
        return RecordValues(one_format(self.key_format, self.key_schema, "key"), self.of_value())

    def of_value(self) -> "ValueFormat | None":
        return one_format(self.value_format, self.value_schema, "value")

    def parse_key(self, text: str) -> tuple[bytes, RecordValues]:
        """Return the bytes of a key, and the formats to print its record in; text is printed as it is."""
        from sparklog.format.text import parse_key

        name, value = self.key_format or "string", self.of_value()
        if name == "string" and not self.key_schema:
            return parse_key(text), RecordValues(None, value)
        key = one_format(name, self.key_schema, "key")
        return parse_key(text, key or name), RecordValues(key, value)


def one_format(name: str | None, schemas: list[str] | None, part: str) -> "ValueFormat | None":
    """Return the format of one part, with its schemas read from their files."""
    option = f"'--{part}-schema'"
    if schemas and name != "avro":
        raise BadParameter(f"a schema needs --{part}-format avro", param_hint=option)
    if name is None:
        return None
    from sparklog.formats import open_format

    if name != "avro":
        return open_format(name)
    if not schemas:
        raise BadParameter(f"avro needs a schema: --{part}-schema FILE, or ID=FILE", param_hint=f"'--{part}-format'")
    parts = [schema.partition("=") for schema in schemas]
    framed = {
        int(number): Path(file) for number, _, file in parts if file and is_digits(number) and int(number) <= INT32_MAX
    }
    if len(framed) not in (0, len(schemas)) or (not framed and len(schemas) > 1):
        raise BadParameter(
            f"expected one FILE, or ID=FILE of different ids; found {' '.join(schemas)}", param_hint=option
        )
    return open_format(name, framed or Path(schemas[0]))
