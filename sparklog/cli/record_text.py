r"""Conversion of records to lines, and of lines to records, in the formats of Kafka's console tools.

An output line (`kafka-console-consumer`) contains the selected columns in this order, separated by the key separator:

    CreateTime:1700000000000  Partition:0  Offset:5  h1:v1,h2:null | NO_HEADERS  key  value

An input line (`kafka-console-producer`) is `[headers TAB] [key SEPARATOR] value`. The bytes of keys and values are not
converted. `consume --json` prints JSON lines, which `produce --json` reads:

    {"topic": "orders", "partition": 0, "offset": 5, "timestamp": 1700000000000, "timestampType": "CreateTime",
     "key": "k", "value": "v", "headers": [["name", "v"]]}

A key or value that is valid UTF-8 is a string, and other bytes are `{"base64": "..."}`. If a format is given, keys and
values are numbers or JSON. On input, only `value` is required, and `topic`, `offset` and `timestampType` are ignored.
`headers` may also be an object, `{"name": "v"}`.

The format string of `--format` has the syntax of kcat's `-f`. It must contain the separator between records:

    %t topic   %p partition   %o offset   %T timestamp (ms since the epoch)   %h headers (name=value,...)
    %k key     %K length of the key, -1 for null
    %s value   %S length of the value, -1 for null
    %% a percent sign; \n \t \r \0 \x1f in the text between
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sparklog.common.parsing import INT32_MAX, INT64_MAX
from sparklog.console.options import unescaped
from sparklog.errors import BadRequest
from sparklog.format.arrow_numpy import (
    bytes_array,
    bytes_scalar,
    fixed_array,
    fixed_values,
    int_scalar,
    text_array,
    valid_rows,
)
from sparklog.log.state.record_schema import HEADERS_TYPE
from sparklog.log.state.view import COLUMNS

if TYPE_CHECKING:
    from sparklog.format.values import ValueFormat

HEADERS_DELIMITER, HEADERS_SEPARATOR, HEADER_KEY_SEPARATOR, NO_HEADERS = b"\t", b",", b":", b"NO_HEADERS"
SHOWN_CHARACTERS = 60

# Kafka's formatter prints these prefixes before timestamps of the timestampType 0 and 1, and instead of a missing
# timestamp.
CREATE_TIME, LOG_APPEND_TIME, NO_TIMESTAMP = b"CreateTime:", b"LogAppendTime:", b"NO_TIMESTAMP"

POSITION = ("topic", "partition", "offset")


@dataclass(frozen=True)
class RecordValues:
    """The formats of keys and values. If a format is None, the bytes are not converted."""

    key: ValueFormat | None = None
    value: ValueFormat | None = None

    def __bool__(self) -> bool:
        return self.key is not None or self.value is not None

    def columns(self, shown: Sequence[str]) -> tuple[str, ...]:
        """Return the columns to read: the columns to print and, if there is a format, the position of the record for
        error messages.
        """
        return tuple(dict.fromkeys((*shown, *POSITION))) if self else tuple(shown)

    def show(self, records: pa.RecordBatch) -> pa.RecordBatch:
        """Convert keys and values from bytes to text."""
        from sparklog.formats import row_names

        for name, form in self._formats_in(records):
            records = _with(records, name, form.show(records.column(name), row_names(records, name)))
        return records

    def parse(self, records: pa.RecordBatch, lines: Sequence[int]) -> pa.RecordBatch:
        """Convert keys and values from text to bytes. `lines` contains the line number of each record."""
        for name, form in self._formats_in(records):
            where = partial(_line_and_name, lines, name)
            records = _with(records, name, form.parse(records.column(name), where))
        return records

    def unquoted(self, shown: bytes | None, name: str) -> Any:
        """Return a key or value for `--json`: a JSON value if the format produces JSON, otherwise a string."""
        form = getattr(self, name)
        text = None if shown is None else shown.decode()
        return json.loads(text, parse_constant=str) if text is not None and form.json_text else text

    def quoted(self, value: Any, name: str, line: int) -> bytes | None:
        """Return the text of a key or value that `produce --json` read."""
        if value is None:
            return None
        form = getattr(self, name)
        from sparklog.format.values import SCHEMA_FORMATS

        if form.json_text and not (isinstance(value, str) and form.name not in ("json", *SCHEMA_FORMATS)):
            return json.dumps(value, ensure_ascii=False).encode(errors="surrogatepass")
        if isinstance(value, str):
            return value.encode(errors="surrogatepass")
        raise BadRequest(f'line {line}: "{name}" must be a string or null, found {json.dumps(value)[:60]}')

    def _formats_in(self, records: pa.RecordBatch) -> list[tuple[str, ValueFormat]]:
        both = (("key", self.key), ("value", self.value))
        return [(name, form) for name, form in both if form is not None and name in records.schema.names]


def _line_and_name(lines: Sequence[int], name: str, row: int) -> str:
    return f"line {lines[row]}, {name}"


def _with(records: pa.RecordBatch, name: str, column: pa.Array) -> pa.RecordBatch:
    return records.set_column(records.schema.get_field_index(name), name, column)


@dataclass(frozen=True, slots=True)
class Layout:
    """The columns of an output line, and their separators."""

    timestamp: bool = False
    partition: bool = False
    offset: bool = False
    headers: bool = False
    key: bool = False
    value: bool = True
    key_separator: bytes = b"\t"
    line_separator: bytes = b"\n"
    headers_separator: bytes = HEADERS_SEPARATOR
    null_literal: bytes = b"null"

    def columns(self) -> tuple[str, ...]:
        """Return the columns to read. There is at least one column, so that the lines can be counted."""
        names = [name for name in ("partition", "offset", "headers", "key", "value") if getattr(self, name)]
        if self.timestamp:
            names += ["timestamp", "timestampType"]
        return tuple(names or ["offset"])

    def format(self, batch: pa.RecordBatch) -> bytes:
        """Return one line per record, or nothing if no columns are selected, as Kafka's formatter does."""
        parts: list[pa.Array] = []
        if self.timestamp:
            parts.append(_timestamps(batch.column("timestamp"), batch.column("timestampType")))
        for name in ("partition", "offset"):
            if getattr(self, name):
                text = batch.column(name).cast(pa.string()).cast(pa.binary())
                label = bytes_scalar(f"{name.capitalize()}:".encode())
                parts.append(pc.binary_join_element_wise(label, text, bytes_scalar(b"")))
        if self.headers:
            between = (HEADER_KEY_SEPARATOR, self.headers_separator)
            parts.append(joined_headers(batch.column("headers"), between, self.null_literal, NO_HEADERS))
        parts += [
            pc.fill_null(batch.column(name).cast(pa.binary()), bytes_scalar(self.null_literal))
            for name in ("key", "value")
            if getattr(self, name)
        ]
        if not parts or not batch.num_rows:
            return b""
        lines = pc.binary_join_element_wise(*parts, bytes_scalar(self.key_separator))
        return self.line_separator.join([*lines.to_pylist(), b""])


def joined_headers(headers: pa.ListArray, between: tuple[bytes, bytes], null: bytes, none: bytes) -> pa.Array:
    """Return the headers of each record as `h1:v1,h2:null`, or `none` if a record has no headers. `between` contains
    the colon and the comma.
    """
    flat = headers.flatten()
    pairs = pc.binary_join_element_wise(
        flat.field("key").cast(pa.binary()),
        flat.field("value").cast(pa.binary()),
        bytes_scalar(between[0]),
        null_handling="replace",
        null_replacement=null,
    )
    counts = np.where(valid_rows(headers), fixed_values(pc.list_value_length(headers), np.int32), 0)
    ends = np.zeros(len(counts) + 1, np.int32)
    np.cumsum(counts, out=ends[1:])
    joined = pc.binary_join(pa.ListArray.from_arrays(fixed_array(ends, pa.int32()), pairs), bytes_scalar(between[1]))
    empty = pc.equal(fixed_array(counts.astype(np.int64), pa.int64()), int_scalar(0))
    return pc.if_else(empty, bytes_scalar(none), joined)


def _timestamps(timestamps: pa.Array, kinds: pa.Array) -> pa.Array:
    millis = pc.cast(timestamps, pa.int64()).cast(pa.string()).cast(pa.binary())
    appended = pc.equal(kinds, int_scalar(1, kinds.type))
    labels = pc.if_else(appended, bytes_scalar(LOG_APPEND_TIME), bytes_scalar(CREATE_TIME))
    timed = pc.binary_join_element_wise(labels, millis, bytes_scalar(b""))
    return pc.if_else(pc.greater_equal(kinds, int_scalar(0, kinds.type)), timed, bytes_scalar(NO_TIMESTAMP))


@dataclass(frozen=True, slots=True)
class LineFormat:
    """The format of an input line: which parts precede the value, and their separators.

    If `ignore_error` is True and a separator is missing, the part is null.
    """

    key_separator: bytes | None = None
    headers: bool = False
    null_marker: bytes | None = None
    headers_delimiter: bytes = HEADERS_DELIMITER
    headers_separator: bytes = HEADERS_SEPARATOR
    headers_key_separator: bytes = HEADER_KEY_SEPARATOR
    ignore_error: bool = False

    def parse(self, data: bytes, first_line: int) -> pa.RecordBatch:
        """Return the column value and, depending on the format, the columns key and headers. The last line does not
        have to end with a newline.

        `first_line` is the number of the first line, counted from 1. Raises `BadRequest` for a line without a
        separator.
        """
        rest = _lines(data.replace(b"\r\n", b"\n").removesuffix(b"\n"))
        columns: dict[str, pa.Array] = {}
        if self.headers:
            delimiter = "a TAB" if self.headers_delimiter == HEADERS_DELIMITER else _shown(self.headers_delimiter)
            expected = None if self.ignore_error else f"{delimiter} after the headers"
            texts, rest = _split(rest, self.headers_delimiter, first_line, expected)
            columns["headers"] = self._parse_headers(texts, first_line)
        if self.key_separator is not None:
            expected = None if self.ignore_error else f"key separator {_shown(self.key_separator)}"
            keys, rest = _split(rest, self.key_separator, first_line, expected)
            columns["key"] = self._replace_null_markers(keys)
        columns["value"] = self._replace_null_markers(rest)
        return pa.RecordBatch.from_pydict(columns)

    def _replace_null_markers(self, texts: pa.Array) -> pa.Array:
        if self.null_marker is None:
            return texts
        marked = pc.equal(texts, bytes_scalar(self.null_marker))
        return pc.if_else(marked, bytes_scalar(None), texts)

    def _parse_headers(self, texts: pa.Array, first_line: int) -> pa.Array:
        rows: list[list[tuple[str, bytes | None]] | None] = []
        for line, text in enumerate(texts.to_pylist(), first_line):
            if not text or text == self.null_marker:
                rows.append(None)
                continue
            row: list[tuple[str, bytes | None]] = []
            for pair in text.split(self.headers_separator):
                name, colon, value = pair.partition(self.headers_key_separator)
                if not colon and not self.ignore_error:
                    form = self.headers_separator.join([b"name" + self.headers_key_separator + b"value"] * 2)
                    raise BadRequest(f"line {line}: expected headers as {_shown(form)}, found {_shown(pair)}")
                try:
                    row.append((name.decode(), None if not colon or value == self.null_marker else value))
                except UnicodeDecodeError:
                    raise BadRequest(f"line {line}: header names must be UTF-8, found {_shown(name)}") from None
            rows.append(row)
        return headers_array(rows)


def headers_array(rows: Sequence[Sequence[tuple[str, bytes | None]] | None]) -> pa.ListArray:
    """Convert the headers of each record (None if a record has no headers) to a column."""
    pairs = [pair for row in rows for pair in row or ()]
    ends = np.zeros(len(rows) + 1, np.int32)
    np.cumsum([len(row or ()) for row in rows], out=ends[1:])
    valid = np.array([row is not None for row in rows], np.bool_)
    cells = [text_array([name for name, _ in pairs]), bytes_array([value for _, value in pairs])]
    flat = pa.StructArray.from_arrays(cells, fields=list(HEADERS_TYPE.value_type))
    bits = pa.py_buffer(np.packbits(valid, bitorder="little"))
    return pa.ListArray.from_buffers(HEADERS_TYPE, len(rows), [bits, pa.py_buffer(ends)], children=[flat])


def _lines(data: bytes) -> pa.Array:
    """Split data into lines with Arrow, which does not create a Python object per line."""
    ends = pa.py_buffer(np.array([0, len(data)], np.int64))
    whole = pa.Array.from_buffers(pa.large_binary(), 1, [None, ends, pa.py_buffer(data)])
    return pc.split_pattern(whole, pattern=b"\n").flatten().cast(pa.binary())


def _split(texts: pa.Array, separator: bytes, first_line: int, expected: str | None) -> tuple[pa.Array, pa.Array]:
    """Split each text at the first `separator`. Raises `BadRequest` if a text does not contain the separator.

    If `expected` is None, no error is raised. The first part is then null, and the second part is the entire text.
    """
    parts = pc.split_pattern(texts, pattern=separator, max_splits=1)
    missing = np.flatnonzero(fixed_values(pc.list_value_length(parts), np.int32) < 2)
    if not len(missing):
        return pc.list_element(parts, int_scalar(0)), pc.list_element(parts, int_scalar(1))
    if expected is not None:
        row = int(missing[0])
        raise BadRequest(f"line {first_line + row}: expected {expected}, found none in {_shown(texts[row].as_py())}")
    is_missing = pc.less(pc.list_value_length(parts), int_scalar(2, pa.int32()))
    with_separator = pc.binary_join_element_wise(bytes_scalar(b""), texts, bytes_scalar(separator))
    first, second = _split(pc.if_else(is_missing, with_separator, texts), separator, first_line, expected)
    return pc.if_else(is_missing, bytes_scalar(None), first), second


def _shown(text: bytes) -> str:
    short = text.decode(errors="replace")
    return repr(short if len(short) <= SHOWN_CHARACTERS else short[:SHOWN_CHARACTERS] + "…")


TIMESTAMP_TYPES = {0: "CreateTime", 1: "LogAppendTime"}
NO_TIMESTAMP_TYPE = "NoTimestampType"


def format_json(batch: pa.RecordBatch, values: RecordValues | None = None) -> bytes:
    """Return one JSON object per record of a batch that has all `COLUMNS`. Keys and values have the formats of
    `values`.
    """
    batch = values.show(batch) if values else batch
    millis = pc.cast(batch.column("timestamp"), pa.int64())
    columns = [(millis if name == "timestamp" else batch.column(name)).to_pylist() for name in COLUMNS]
    converters = {
        name: partial(values.unquoted, name=name) if values and getattr(values, name) else _json_text
        for name in ("key", "value")
    }
    rows = (dict(zip(COLUMNS, row, strict=True)) for row in zip(*columns, strict=True))
    return b"".join(_record(row, converters["key"], converters["value"]) for row in rows)


def _record(record: dict[str, Any], key: Callable[[bytes | None], Any], value: Callable[[bytes | None], Any]) -> bytes:
    shown = {
        **{name: record[name] for name in ("topic", "partition", "offset", "timestamp")},
        "timestampType": TIMESTAMP_TYPES.get(record["timestampType"], NO_TIMESTAMP_TYPE),
        "key": key(record["key"]),
        "value": value(record["value"]),
        "headers": [[header["key"], _json_text(header["value"])] for header in record["headers"] or []],
    }
    return json.dumps(shown, ensure_ascii=False).encode() + b"\n"


def _json_text(data: bytes | None) -> str | dict[str, str] | None:
    if data is None:
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode()}


def parse_json(data: bytes, first_line: int, values: RecordValues | None = None) -> pa.RecordBatch:
    """Convert JSON lines to columns key, value, headers, timestamp (int64 ms; null for the current time) and partition
    (null for the partition of the key).

    Blank lines are skipped. `first_line` is the number of the first line, counted from 1. Raises `BadRequest` for an
    invalid line.
    """
    rows = list(_rows(data, first_line, values))
    lines, keys, cells, headers, timestamps, partitions = (
        (list(column) for column in zip(*rows, strict=True)) if rows else ([],) * 6
    )
    columns = {"key": bytes_array(keys), "value": bytes_array(cells), "headers": headers_array(headers)}
    # Omit a column if no line has a value for it. A column of nulls would have the same effect, but would be slower.
    if any(timestamp is not None for timestamp in timestamps):
        columns["timestamp"] = _numbers(timestamps)
    if any(partition is not None for partition in partitions):
        columns["partition"] = _numbers(partitions)
    batch = pa.RecordBatch.from_pydict(columns)
    return values.parse(batch, lines) if values else batch


def _numbers(cells: list[int | None]) -> pa.Array:
    valid = np.array([cell is not None for cell in cells], np.bool_)
    return fixed_array(np.array([cell or 0 for cell in cells], np.int64), pa.int64(), valid)


def _rows(data: bytes, first_line: int, values: RecordValues | None) -> Iterator[tuple[Any, ...]]:
    quoted = {name: values.quoted for name in ("key", "value") if values and getattr(values, name)}
    for line, text in enumerate(data.split(b"\n"), first_line):
        if not text.strip():
            continue
        try:
            record = json.loads(text)
        except ValueError as error:
            raise BadRequest(f"line {line}: expected one JSON object per line: {error}") from None
        except RecursionError:
            raise BadRequest(
                f"line {line}: expected one JSON object per line, found an object that is nested too deeply"
            ) from None
        if not isinstance(record, dict) or "value" not in record:
            raise BadRequest(f'line {line}: expected a JSON object with "value" (null for a tombstone)')
        yield (
            line,
            quoted.get("key", _bytes_of)(record.get("key"), "key", line),
            quoted.get("value", _bytes_of)(record["value"], "value", line),
            _headers(record.get("headers"), line),
            _number(record.get("timestamp"), "timestamp", INT64_MAX, line),
            _number(record.get("partition"), "partition", INT32_MAX, line),
        )


def _bytes_of(value: Any, name: str, line: int) -> bytes | None:
    if value is None:
        return None
    if isinstance(value, str):
        try:
            return value.encode()
        except UnicodeEncodeError:
            raise BadRequest(
                f'line {line}: "{name}" contains a lone surrogate: encode bytes as {{"base64": ...}}'
            ) from None
    if isinstance(value, dict) and list(value) == ["base64"] and isinstance(value["base64"], str):
        try:
            return base64.b64decode(value["base64"], validate=True)
        except (binascii.Error, ValueError):
            raise BadRequest(f'line {line}: "{name}" is not valid base64') from None
    kind = type(value).__name__
    raise BadRequest(
        f'line {line}: "{name}" must be a string, null or {{"base64": "..."}}, found {kind}: quote the value'
    )


def _headers(value: Any, line: int) -> list[tuple[str, bytes | None]] | None:
    if value is None or value == []:
        return None
    pairs = list(value.items()) if isinstance(value, dict) else value
    if not isinstance(pairs, list):
        raise BadRequest(f'line {line}: "headers" must be [["name", "value"], ...] or an object')
    row = []
    for pair in pairs:
        if not isinstance(pair, (list, tuple)) or len(pair) != 2 or not isinstance(pair[0], str):
            raise BadRequest(
                f'line {line}: each element of "headers" must be ["name", value], found {json.dumps(pair)[:60]}'
            )
        _bytes_of(pair[0], "headers", line)
        row.append((pair[0], _bytes_of(pair[1], f"headers.{pair[0]}", line)))
    return row or None


def _number(value: Any, name: str, maximum: int, line: int) -> int | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= maximum:
        raise BadRequest(f'line {line}: "{name}" must be an integer from 0 to {maximum}, found {value!r}')
    return value


COLUMN_OF = {
    "t": "topic", "p": "partition", "o": "offset", "T": "timestamp", "h": "headers",
    "k": "key", "K": "key", "s": "value", "S": "value",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class RecordFormat:
    """A parsed format string: literal bytes, and letters of `COLUMN_OF`."""

    parts: tuple[bytes | str, ...]
    null_literal: bytes = b""

    def columns(self) -> tuple[str, ...]:
        """Return the columns to read. There is at least one column, so that the records can be counted."""
        return tuple(dict.fromkeys(COLUMN_OF[part] for part in self.parts if isinstance(part, str))) or ("offset",)

    def format(self, batch: pa.RecordBatch, shown: pa.RecordBatch) -> bytes:
        """Format records. `shown` contains the same records with keys and values as text."""
        if not batch.num_rows or not self.parts:
            return b""
        cells = [
            bytes_scalar(part) if isinstance(part, bytes) else self._cells(part, batch if part in "KS" else shown)
            for part in self.parts
        ]
        # If the format contains only literals, the column of empty cells determines the number of rows.
        rows = bytes_array([b""] * batch.num_rows)
        return b"".join(pc.binary_join_element_wise(rows, *cells, bytes_scalar(b"")).to_pylist())

    def _cells(self, letter: str, batch: pa.RecordBatch) -> pa.Array:
        column = batch.column(COLUMN_OF[letter])
        if letter in "KS":
            return _as_text(pc.fill_null(pc.binary_length(column), int_scalar(-1, pa.int32())))
        if letter == "T":
            return _as_text(pc.cast(column, pa.int64()))
        if letter == "h":
            return joined_headers(column, (b"=", HEADERS_SEPARATOR), self.null_literal, b"")
        return pc.fill_null(_as_text(column), bytes_scalar(self.null_literal))


def _as_text(column: pa.Array) -> pa.Array:
    return column if pa.types.is_binary(column.type) else column.cast(pa.string()).cast(pa.binary())


def parse_format(text: str, null_literal: bytes = b"") -> RecordFormat:
    """Parse a format string. Raises `BadRequest` for an unknown letter."""
    parts: list[bytes | str] = []
    for index, part in enumerate(re.split("%(.?)", text, flags=re.DOTALL)):
        if index % 2 == 0 or part == "%":
            parts.append(unescaped(part))
        elif part in COLUMN_OF:
            parts.append(part)
        else:
            letters = " ".join(f"%{letter}" for letter in COLUMN_OF)
            raise BadRequest(f"--format supports {letters} and %%, found '%{part}'")
    return RecordFormat(tuple(part for part in parts if part), null_literal)
