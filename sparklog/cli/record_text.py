"""Records to lines and lines to records, the way Kafka's console tools write them.

Out (`kafka-console-consumer`): the columns that are switched on, in this order, between key separators:

    CreateTime:1700000000000  Partition:0  Offset:5  h1:v1,h2:null | NO_HEADERS  key  value

In (`kafka-console-producer`): `[headers TAB] [key SEPARATOR] value`. Keys and values are bytes and pass through as they
are. As JSON lines, what `consume --json` prints and `produce --json` takes:

    {"topic": "orders", "partition": 0, "offset": 5, "timestamp": 1700000000000, "timestampType": "CreateTime",
     "key": "k", "value": "v", "headers": [["name", "v"]]}

UTF-8 text is a string, any other bytes are `{"base64": "..."}`; with a format a number, JSON and Avro are themselves.
On input only `value` is required; `topic`, `offset` and `timestampType` are ignored. `headers` may also be an object,
`{"name": "v"}`.

In the format of a string, as kcat's `-f` takes it; a record ends where the format does:

    %t topic   %p partition   %o offset   %T timestamp (ms since the epoch)   %h headers (name=value,...)
    %k key     %K its length, -1 for null
    %s value   %S its length, -1 for null
    %% a percent sign; \\n \\t \\r \\0 \\x1f in what is between
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

# Kafka's formatter prints these in front of a time of timestampType 0 and 1, and where there is no time.
CREATE_TIME, LOG_APPEND_TIME, NO_TIMESTAMP = b"CreateTime:", b"LogAppendTime:", b"NO_TIMESTAMP"


PLACE = ("topic", "partition", "offset")


@dataclass(frozen=True)
class RecordValues:
    """The formats of key and value; None: bytes, as they are."""

    key: ValueFormat | None = None
    value: ValueFormat | None = None

    def __bool__(self) -> bool:
        return self.key is not None or self.value is not None

    def columns(self, shown: Sequence[str]) -> tuple[str, ...]:
        """Return the columns to read for these: an error names the place."""
        return tuple(dict.fromkeys((*shown, *PLACE))) if self else tuple(shown)

    def show(self, records: pa.RecordBatch) -> pa.RecordBatch:
        """Return records with text in place of bytes."""
        from sparklog.formats import place_in

        for name, form in self._formats_in(records):
            records = _with(records, name, form.show(records.column(name), place_in(records, name)))
        return records

    def parse(self, records: pa.RecordBatch, lines: Sequence[int]) -> pa.RecordBatch:
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

    def _formats_in(self, records: pa.RecordBatch) -> list[tuple[str, ValueFormat]]:
        both = (("key", self.key), ("value", self.value))
        return [(name, form) for name, form in both if form is not None and name in records.schema.names]


def _line_of(lines: Sequence[int], name: str) -> Callable[[int], str]:
    return lambda row: f"line {lines[row]}, {name}"


def _with(records: pa.RecordBatch, name: str, column: pa.Array) -> pa.RecordBatch:
    return records.set_column(records.schema.get_field_index(name), name, column)


@dataclass(frozen=True, slots=True)
class Layout:
    """Columns of a line, and what is between them."""

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
        """Columns of a `LogView` that must be read for it; at least one, since lines are counted."""
        names = [name for name in ("partition", "offset", "headers", "key", "value") if getattr(self, name)]
        if self.timestamp:
            names += ["timestamp", "timestampType"]
        return tuple(names or ["offset"])

    def format(self, batch: pa.RecordBatch) -> bytes:
        """One line per record; nothing at all if all columns are switched off, as Kafka's formatter does."""
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
    """Return `h1:v1,h2:null` per record (`between` are colon and comma), and `none` where there are no headers."""
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
    """Parts of a line of input next to the value. `ignore_error`: a part whose separator is missing is null."""

    key_separator: bytes | None = None
    headers: bool = False
    null_marker: bytes | None = None
    headers_delimiter: bytes = HEADERS_DELIMITER
    headers_separator: bytes = HEADERS_SEPARATOR
    headers_key_separator: bytes = HEADER_KEY_SEPARATOR
    ignore_error: bool = False

    def parse(self, data: bytes, first_line: int) -> pa.RecordBatch:
        """Return columns value and, as the format says, key and headers of whole lines; the last may lack its newline.

        `BadRequest` names a line without a separator; `first_line` (from 1) is the number of the first.
        """
        rest = _lines(data.replace(b"\r\n", b"\n").removesuffix(b"\n"))
        columns: dict[str, pa.Array] = {}
        if self.headers:
            delimiter = "a TAB" if self.headers_delimiter == HEADERS_DELIMITER else _shown(self.headers_delimiter)
            what = None if self.ignore_error else f"{delimiter} between headers and what follows"
            texts, rest = _split(rest, self.headers_delimiter, first_line, what)
            columns["headers"] = self._parse_headers(texts, first_line)
        if self.key_separator is not None:
            what = None if self.ignore_error else f"key separator {_shown(self.key_separator)}"
            keys, rest = _split(rest, self.key_separator, first_line, what)
            columns["key"] = self._nulled(keys)
        columns["value"] = self._nulled(rest)
        return pa.RecordBatch.from_pydict(columns)

    def _nulled(self, texts: pa.Array) -> pa.Array:
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
    """Headers of each record; None: it has none."""
    pairs = [pair for row in rows for pair in row or ()]
    ends = np.zeros(len(rows) + 1, np.int32)
    np.cumsum([len(row or ()) for row in rows], out=ends[1:])
    valid = np.array([row is not None for row in rows], np.bool_)
    cells = [text_array([name for name, _ in pairs]), bytes_array([value for _, value in pairs])]
    flat = pa.StructArray.from_arrays(cells, fields=list(HEADERS_TYPE.value_type))
    bits = pa.py_buffer(np.packbits(valid, bitorder="little"))
    return pa.ListArray.from_buffers(HEADERS_TYPE, len(rows), [bits, pa.py_buffer(ends)], children=[flat])


def _lines(data: bytes) -> pa.Array:
    """Cut the lines, by Arrow: no Python object per line."""
    ends = pa.py_buffer(np.array([0, len(data)], np.int64))
    whole = pa.Array.from_buffers(pa.large_binary(), 1, [None, ends, pa.py_buffer(data)])
    return pc.split_pattern(whole, pattern=b"\n").flatten().cast(pa.binary())


def _split(texts: pa.Array, separator: bytes, first_line: int, what: str | None) -> tuple[pa.Array, pa.Array]:
    """Divide each text at the first `separator`; `BadRequest` names the first line that has none.

    Without `what` that is no error: the first part is null then, the second one the whole text.
    """
    pieces = pc.split_pattern(texts, pattern=separator, max_splits=1)
    missing = np.flatnonzero(fixed_values(pc.list_value_length(pieces), np.int32) < 2)
    if not len(missing):
        return pc.list_element(pieces, int_scalar(0)), pc.list_element(pieces, int_scalar(1))
    if what is not None:
        row = int(missing[0])
        raise BadRequest(f"line {first_line + row}: expected {what}, found none in {_shown(texts[row].as_py())}")
    is_whole = pc.less(pc.list_value_length(pieces), int_scalar(2, pa.int32()))
    after_separator = pc.binary_join_element_wise(bytes_scalar(b""), texts, bytes_scalar(separator))
    first, second = _split(pc.if_else(is_whole, after_separator, texts), separator, first_line, what)
    return pc.if_else(is_whole, bytes_scalar(None), first), second


def _shown(text: bytes) -> str:
    short = text.decode(errors="replace")
    return repr(short if len(short) <= SHOWN_CHARACTERS else short[:SHOWN_CHARACTERS] + "…")


TIMESTAMP_TYPES = {0: "CreateTime", 1: "LogAppendTime"}
NO_TIMESTAMP_TYPE = "NoTimestampType"


def format_json(batch: pa.RecordBatch, values: RecordValues | None = None) -> bytes:
    """One JSON object per record of a batch with all of `COLUMNS`, keys and values in the formats of `values`."""
    batch = values.show(batch) if values else batch
    millis = pc.cast(batch.column("timestamp"), pa.int64())
    columns = [(millis if name == "timestamp" else batch.column(name)).to_pylist() for name in COLUMNS]
    members = {
        name: partial(values.unquoted, name=name) if values and getattr(values, name) else _out
        for name in ("key", "value")
    }
    rows = (dict(zip(COLUMNS, row, strict=True)) for row in zip(*columns, strict=True))
    return b"".join(_record(row, members["key"], members["value"]) for row in rows)


def _record(record: dict[str, Any], key: Callable[[bytes | None], Any], value: Callable[[bytes | None], Any]) -> bytes:
    shown = {
        **{name: record[name] for name in ("topic", "partition", "offset", "timestamp")},
        "timestampType": TIMESTAMP_TYPES.get(record["timestampType"], NO_TIMESTAMP_TYPE),
        "key": key(record["key"]),
        "value": value(record["value"]),
        "headers": [[header["key"], _out(header["value"])] for header in record["headers"] or []],
    }
    return json.dumps(shown, ensure_ascii=False).encode() + b"\n"


def _out(data: bytes | None) -> str | dict[str, str] | None:
    if data is None:
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode()}


def parse_json(data: bytes, first_line: int, values: RecordValues | None = None) -> pa.RecordBatch:
    """JSON lines -> columns key, value, headers, timestamp (int64 ms, null: now) and partition (null: the partitioner).

    Blank lines are skipped. `BadRequest` names the line (`first_line` is the number of the first, from 1).
    """
    rows = list(_rows(data, first_line, values))
    lines, keys, cells, headers, timestamps, partitions = (
        (list(column) for column in zip(*rows, strict=True)) if rows else ([],) * 6
    )
    columns = {"key": bytes_array(keys), "value": bytes_array(cells), "headers": headers_array(headers)}
    # Left out where no line names one: a column of nulls would ask for the same thing more slowly.
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
            raise BadRequest(f"line {line}: expected one JSON object per line, found one nested too deeply") from None
        if not isinstance(record, dict) or "value" not in record:
            raise BadRequest(f'line {line}: expected a JSON object with "value" (null for a tombstone)')
        yield (
            line,
            quoted.get("key", _in)(record.get("key"), "key", line),
            quoted.get("value", _in)(record["value"], "value", line),
            _headers(record.get("headers"), line),
            _number(record.get("timestamp"), "timestamp", INT64_MAX, line),
            _number(record.get("partition"), "partition", INT32_MAX, line),
        )


def _in(member: Any, name: str, line: int) -> bytes | None:
    if member is None:
        return None
    if isinstance(member, str):
        try:
            return member.encode()
        except UnicodeEncodeError:
            raise BadRequest(
                f'line {line}: "{name}" has half a surrogate pair: give bytes as {{"base64": ...}}'
            ) from None
    if isinstance(member, dict) and list(member) == ["base64"] and isinstance(member["base64"], str):
        try:
            return base64.b64decode(member["base64"], validate=True)
        except (binascii.Error, ValueError):
            raise BadRequest(f'line {line}: "{name}" is not valid base64') from None
    kind = type(member).__name__
    raise BadRequest(f'line {line}: "{name}" must be a string, null or {{"base64": "..."}}, found {kind}: quote it')


def _headers(member: Any, line: int) -> list[tuple[str, bytes | None]] | None:
    if member is None or member == []:
        return None
    pairs = list(member.items()) if isinstance(member, dict) else member
    if not isinstance(pairs, list):
        raise BadRequest(f'line {line}: "headers" must be [["name", "value"], ...] or an object')
    row = []
    for pair in pairs:
        if not isinstance(pair, (list, tuple)) or len(pair) != 2 or not isinstance(pair[0], str):
            raise BadRequest(f'line {line}: each of "headers" must be ["name", value], found {json.dumps(pair)[:60]}')
        _in(pair[0], "headers", line)
        row.append((pair[0], _in(pair[1], f"headers.{pair[0]}", line)))
    return row or None


def _number(member: Any, name: str, largest: int, line: int) -> int | None:
    if member is None:
        return None
    if isinstance(member, bool) or not isinstance(member, int) or not 0 <= member <= largest:
        raise BadRequest(f'line {line}: "{name}" must be a whole number from 0 to {largest}, found {member!r}')
    return member


COLUMN_OF = {
    "t": "topic", "p": "partition", "o": "offset", "T": "timestamp", "h": "headers",
    "k": "key", "K": "key", "s": "value", "S": "value",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class RecordFormat:
    """A parsed format: literal bytes, and letters of `COLUMN_OF`."""

    parts: tuple[bytes | str, ...]
    null_literal: bytes = b""

    def columns(self) -> tuple[str, ...]:
        """Columns of a `LogView` that must be read for it; at least one, since records are counted."""
        return tuple(dict.fromkeys(COLUMN_OF[part] for part in self.parts if isinstance(part, str))) or ("offset",)

    def format(self, batch: pa.RecordBatch, shown: pa.RecordBatch) -> bytes:
        """Return the bytes of these records; `shown` are the same, with keys and values as text."""
        if not batch.num_rows or not self.parts:
            return b""
        cells = [
            bytes_scalar(part) if isinstance(part, bytes) else self._cells(part, batch if part in "KS" else shown)
            for part in self.parts
        ]
        # Literals alone would be one row.
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
    """Parse a format; `BadRequest` for a letter that means nothing."""
    parts: list[bytes | str] = []
    for number, piece in enumerate(re.split("%(.?)", text, flags=re.DOTALL)):
        if number % 2 == 0 or piece == "%":
            parts.append(unescaped(piece))
        elif piece in COLUMN_OF:
            parts.append(piece)
        else:
            letters = " ".join(f"%{letter}" for letter in COLUMN_OF)
            raise BadRequest(f"--format takes {letters} and %%, found '%{piece}'")
    return RecordFormat(tuple(part for part in parts if part), null_literal)
