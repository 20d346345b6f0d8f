"""Formats of keys and values: the formats of Kafka's serializers and some text forms of bytes, for entire Arrow
columns.

A `ValueFormat` has four conversions, each from one column to another column of the same length. Nulls remain null.

    decode: bytes -> values     for programs that read      show: bytes -> text     for commands that print
    encode: values -> bytes     for programs that write     parse: text -> bytes    for commands that read input

`decode_valid` is `decode` for programs that continue after invalid rows, which become null. `arrow_type` is the type of
the values.

| format                               | bytes                              | values         | text             |
|--------------------------------------|------------------------------------|----------------|------------------|
| string                               | UTF-8 (StringSerializer)           | string         | as it is         |
| short, integer, long, float, double  | big-endian (ShortSerializer, ...)  | int16, ...     | digits           |
| json                                 | JSON in UTF-8                      | inferred type  | JSON on one line |
| hex, base64                          | any                                | string         | digits           |
| avro                                 | see `sparklog.format.avro`         | by the schema  | Avro's JSON      |
| json-schema                          | see `sparklog.format.json_schema`  | by the schema  | JSON on one line |
| protobuf                             | see `sparklog.format.protobuf`     | by the schema  | Protobuf's JSON  |

Numbers are converted with numpy and Arrow, without a Python object per row. An invalid row raises `BadRequest` with the
name of the row.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sparklog.errors import BadRequest, did_you_mean
from sparklog.format.arrow_numpy import binary_array, bytes_array, fixed_array, fixed_values, valid_rows
from sparklog.format.json_columns import decode_json, dumps, loads

RowName = Callable[[int], str]
"""Function that returns the name of a row for error messages, given the index of the row."""
Step = Callable[[pa.Array], pa.Array]
MAX_SHOWN_BYTES = 40
"""Maximum number of bytes of an invalid value that an error message shows."""
RANGE_ROWS = 128
"""Number of rows that are searched for invalid rows together."""


NAMES = {"string": "a string in UTF-8", "hex": "hexadecimal digits, two per byte", "json": "JSON"}


def numbered_row(row: int) -> str:
    """Return the default name of a row."""
    return f"row {row}"


class ValueFormat:
    """A named format. This base class implements the format `string`. `json_text` is True if the text form is JSON."""

    json_text = False

    def __init__(self, name: str) -> None:
        self.name = name
        self.bytes_name = self.text_name = NAMES.get(name, name)

    def decode(self, column: pa.Array, row_name: RowName = numbered_row, kind: pa.DataType | None = None) -> pa.Array:
        """Return the values of a binary column. If `kind` is given, it is the Arrow type of the result."""
        return apply_step(lambda part: self._decode(_binary(part), kind), column, row_name, self.bytes_name)

    def decode_valid(self, column: pa.Array, kind: pa.DataType | None = None) -> tuple[pa.Array, dict[int, str]]:
        """Return the values of a binary column with null for each invalid row, and the reason for each invalid row.

        Rows that are null in the column are valid. Errors that do not depend on a row are raised as in `decode`.
        """
        return valid_step(lambda part: self._decode(_binary(part), kind), column, self.bytes_name)

    def arrow_type(self) -> pa.DataType | None:
        """Return the type of the values that `decode` returns, or None if the type depends on the values."""
        return pa.string()

    def encode(self, column: pa.Array, row_name: RowName = numbered_row) -> pa.Array:
        """Return the encoded values as a binary column."""
        return apply_step(self._encode, column, row_name, self.text_name)

    def show(self, column: pa.Array, row_name: RowName = numbered_row) -> pa.Array:
        """Return the text of a binary column, as a binary column of UTF-8."""
        return apply_step(lambda part: _binary(self._show(_binary(part))), column, row_name, self.bytes_name)

    def parse(self, column: pa.Array, row_name: RowName = numbered_row) -> pa.Array:
        """Return the bytes that the text in a column represents, as a binary column."""
        text = apply_step(_text, column, row_name, NAMES["string"])
        return apply_step(self._parse, text, row_name, self.text_name)

    def _decode(self, column: pa.Array, kind: pa.DataType | None) -> pa.Array:
        return _cast(_text(column), kind)

    def _encode(self, column: pa.Array) -> pa.Array:
        return self._parse(column.cast(pa.string()))

    def _show(self, column: pa.Array) -> pa.Array:
        return self._decode(column, None)

    def _parse(self, column: pa.Array) -> pa.Array:
        return _binary(column)


def apply_step(step: Step, column: pa.Array | pa.ChunkedArray, row_name: RowName, expected: str) -> pa.Array:
    """Apply a function to a column or to each of its chunks.

    If the function fails, raise `BadRequest` with the first invalid row.
    """
    if isinstance(column, pa.ChunkedArray):
        first, parts = 0, []
        for chunk in column.chunks or [pa.nulls(0, column.type)]:
            parts.append(apply_step(step, chunk, _names_after(first, row_name), expected))
            first += len(chunk)
        return pa.chunked_array(parts)
    try:
        return step(column)
    except BadRequest:
        raise
    except (ValueError, TypeError, pa.ArrowException) as error:
        message = " ".join(str(error).split())
    low, high = 0, len(column)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if _failure(step, column.slice(low, middle - low)) is None else (low, middle)
    reason = _failure(step, column.slice(low, 1))
    if reason is None:
        raise BadRequest(f"{row_name(0)} and later rows: expected {expected}, all of the same type: {message[:200]}")
    raise BadRequest(f"{row_name(low)}: {_expectation(column, low, expected, reason)}")


def valid_step(step: Step, column: pa.Array | pa.ChunkedArray, expected: str) -> tuple[pa.Array, dict[int, str]]:
    """Apply a function to the valid rows of a column. Return the results, and the reason for each invalid row.

    The function is applied once to a column without invalid rows. Otherwise, it is applied to ranges of the column, and
    the invalid rows of a range are found by bisection.
    """
    if isinstance(column, pa.ChunkedArray):
        first, parts = 0, []
        reasons: dict[int, str] = {}
        for chunk in column.chunks or [pa.nulls(0, column.type)]:
            values, invalid = valid_step(step, chunk, expected)
            reasons |= {first + row: reason for row, reason in invalid.items()}
            parts.append(values)
            first += len(chunk)
        return pa.chunked_array(parts), reasons
    try:
        return step(column), {}
    except BadRequest:
        raise
    except (ValueError, TypeError, pa.ArrowException):
        reasons = invalid_rows(step, column, expected)
    return apply_step(step, without_rows(column, reasons), numbered_row, expected), reasons


def invalid_rows(step: Step, column: pa.Array, expected: str) -> dict[int, str]:
    """Return the reason for each row of a column for which a function fails."""
    reasons = {}
    # Bisection of the entire column would apply the function several times to almost all rows.
    ranges = [(low, min(low + RANGE_ROWS, len(column))) for low in range(0, len(column), RANGE_ROWS)][::-1]
    while ranges:
        low, high = ranges.pop()
        if low == high or (reason := _failure(step, column.slice(low, high - low))) is None:
            continue
        if high - low == 1:
            reasons[low] = _expectation(column, low, expected, reason)
        else:
            middle = (low + high) // 2
            ranges += [(middle, high), (low, middle)]
    return reasons


def without_rows(column: pa.Array, rows: Iterable[int]) -> pa.Array:
    """Return a column with null in some rows."""
    is_valid = np.ones(len(column), np.bool_)
    is_valid[list(rows)] = False
    bits = pa.py_buffer(np.packbits(is_valid, bitorder="little"))
    mask = pa.Array.from_buffers(pa.bool_(), len(column), [None, bits])
    return pc.if_else(mask, column, pa.nulls(1, column.type)[0])


def _expectation(column: pa.Array, row: int, expected: str, reason: str) -> str:
    return f"expected {expected}, found {_describe_value(column, row)}{reason}"


def _names_after(first: int, row_name: RowName) -> RowName:
    return lambda row: row_name(first + row)


def _failure(step: Step, column: pa.Array) -> str | None:
    """Return the reason why a step fails, or None if it succeeds.

    Arrow's messages are omitted, because they repeat the value.
    """
    try:
        step(column)
    except BadRequest:
        raise
    except (ValueError, TypeError, pa.ArrowException) as error:
        is_omitted = isinstance(error, pa.ArrowException) or not str(error)
        return "" if is_omitted else f" ({' '.join(str(error).split())[:200]})"
    return None


def _describe_value(column: pa.Array, row: int) -> str:
    cell = column[row].as_py() if len(column) else None
    if not isinstance(cell, bytes):
        text = repr(cell)
        return text if len(text) <= 2 * MAX_SHOWN_BYTES else text[: 2 * MAX_SHOWN_BYTES] + "…"
    text = cell[:MAX_SHOWN_BYTES].decode(errors="replace")
    start = repr(text) if "\ufffd" not in text and text.isprintable() else f"0x{cell[:MAX_SHOWN_BYTES].hex()}"
    size = f"{len(cell)} byte{'' if len(cell) == 1 else 's'}"
    return f"{size}: {start}{'…' if len(cell) > MAX_SHOWN_BYTES else ''}" if cell else size


def _binary(column: pa.Array) -> pa.Array:
    if pa.types.is_string(column.type):
        return column.view(pa.binary())
    return column if pa.types.is_binary(column.type) else column.cast(pa.binary())


def _text(column: pa.Array) -> pa.Array:
    """Return a column as strings. The cast verifies that the bytes are UTF-8."""
    return column if pa.types.is_string(column.type) else column.cast(pa.string())


def _cast(column: pa.Array, kind: pa.DataType | None) -> pa.Array:
    return column if kind is None or kind == column.type else column.cast(kind)


def each_row(column: pa.Array, function: Callable[[Any], bytes]) -> pa.Array:
    """Apply a function to each row that is not null, and return the results as a binary column."""
    return bytes_array([None if cell is None else function(cell) for cell in column.to_pylist()])


class NumberFormat(ValueFormat):
    """Big-endian numbers of a fixed width, as written by Kafka's serializers and `DataOutput`."""

    json_text = True

    def __init__(self, name: str, kind: pa.DataType, layout: str) -> None:
        super().__init__(name)
        self.kind, self.layout = kind, np.dtype(layout)
        article = "an" if name == "integer" else "a"
        self.bytes_name, self.text_name = f"{self.layout.itemsize} bytes of {article} {name}", f"{article} {name}"

    def _decode(self, column: pa.Array, kind: pa.DataType | None) -> pa.Array:
        width, valid = self.layout.itemsize, valid_rows(column)
        _, offsets, data = column.buffers()
        cuts = np.frombuffer(offsets, np.int32)[column.offset :] if offsets else np.zeros(1, np.int32)
        ends = cuts[: len(column) + 1]
        starts = ends[:-1][valid]
        if bool((ends[1:][valid] - starts != width).any()):
            raise ValueError
        raw = np.frombuffer(data, np.uint8) if len(starts) else np.zeros(0, np.uint8)
        if len(starts) * width == ends[-1] - ends[0]:
            cells = raw[ends[0] : ends[-1]]
        else:  # The buffer contains bytes for null rows.
            cells = raw[starts[:, None] + np.arange(width)].reshape(-1)
        values = np.zeros(len(column), self.layout.newbyteorder("="))
        values[valid] = cells.view(self.layout)
        return _cast(fixed_array(values, self.kind, valid), kind)

    def arrow_type(self) -> pa.DataType | None:
        return self.kind

    def _encode(self, column: pa.Array) -> pa.Array:
        numbers = column.cast(self.kind)
        valid = valid_rows(numbers)
        values = fixed_values(numbers, self.layout.newbyteorder("="))
        return binary_array(valid * np.int64(self.layout.itemsize), values[valid].astype(self.layout), valid)

    def _show(self, column: pa.Array) -> pa.Array:
        text = self._decode(column, None).cast(pa.string())
        if self.layout.kind == "i":
            return text
        # Use Java's spelling, which is also JSON's spelling except for NaN and Infinity.
        for pattern, spelling in ((r"^(-?\d+)$", r"\1.0"), ("nan", "NaN"), ("inf", "Infinity")):
            text = pc.replace_substring_regex(text, pattern=pattern, replacement=spelling)
        return text

    def _parse(self, column: pa.Array) -> pa.Array:
        return self._encode(column)


class DigitsFormat(ValueFormat):
    """Bytes as a string of digits. `digits` converts bytes to digits, and `data` converts digits to bytes."""

    def __init__(self, name: str, digits: Callable[[bytes], bytes], data: Callable[[str], bytes]) -> None:
        super().__init__(name)
        self.digits, self.data = digits, data

    def _decode(self, column: pa.Array, kind: pa.DataType | None) -> pa.Array:
        return _cast(_text(each_row(column, self.digits)), kind)

    def _parse(self, column: pa.Array) -> pa.Array:
        return each_row(column, self.data)


def _from_base64(text: str) -> bytes:
    return base64.b64decode(text.replace("-", "+").replace("_", "/"), validate=True)


class JsonFormat(ValueFormat):
    """JSON, which is validated, but not changed."""

    json_text = True

    def decode(self, column: pa.Array, row_name: RowName = numbered_row, kind: pa.DataType | None = None) -> pa.Array:
        """Return the values as a column with one type.

        Arrow infers the type from the entire column, and not from each chunk.
        """
        if kind is None and isinstance(column, pa.ChunkedArray):
            return pa.chunked_array([self.decode(column.combine_chunks(), row_name)])
        return super().decode(column, row_name, kind)

    def decode_valid(self, column: pa.Array, kind: pa.DataType | None = None) -> tuple[pa.Array, dict[int, str]]:
        if kind is None and isinstance(column, pa.ChunkedArray):
            values, reasons = super().decode_valid(column.combine_chunks())
            return pa.chunked_array([values]), reasons
        return super().decode_valid(column, kind)

    def arrow_type(self) -> pa.DataType | None:
        return None

    def _decode(self, column: pa.Array, kind: pa.DataType | None) -> pa.Array:
        if kind is not None:
            return decode_json(column, kind)
        try:
            return pa.array([None if cell is None else loads(cell) for cell in _text(column).to_pylist()])
        except OverflowError as error:
            raise ValueError(str(error)) from None

    def _encode(self, column: pa.Array) -> pa.Array:
        return each_row(column, dumps)

    def _show(self, column: pa.Array) -> pa.Array:
        # A line feed in JSON is insignificant whitespace. Replacing line feeds keeps each record on one line.
        return pc.replace_substring_regex(self._parse(_text(column)), pattern=b"[\r\n]+", replacement=b" ")

    def _parse(self, column: pa.Array) -> pa.Array:
        for cell in column.to_pylist():
            if cell is not None:
                loads(cell)
        return _binary(column)


FORMATS: dict[str, Callable[[str], ValueFormat]] = {
    "string": ValueFormat,
    "short": lambda name: NumberFormat(name, pa.int16(), ">i2"),
    "integer": lambda name: NumberFormat(name, pa.int32(), ">i4"),
    "long": lambda name: NumberFormat(name, pa.int64(), ">i8"),
    "float": lambda name: NumberFormat(name, pa.float32(), ">f4"),
    "double": lambda name: NumberFormat(name, pa.float64(), ">f8"),
    "json": JsonFormat,
    # `hex` accepts the prefix `0x`, and `base64` accepts the URL-safe alphabet.
    "hex": lambda name: DigitsFormat(
        name, lambda data: data.hex().encode(), lambda text: bytes.fromhex(text.removeprefix("0x"))
    ),
    "base64": lambda name: DigitsFormat(name, base64.b64encode, _from_base64),
}
SCHEMA_FORMATS = ("avro", "json-schema", "protobuf")
"""Formats that require a schema (`sparklog.format.registered`)."""
NAMES_OF_ALL = (*FORMATS, *SCHEMA_FORMATS)


def value_format(name: str) -> ValueFormat:
    """Return a format that does not need a schema."""
    if name not in FORMATS:
        names = ", ".join(NAMES_OF_ALL)
        raise BadRequest(f"expected one of the formats {names}; found {name!r}{did_you_mean(str(name), NAMES_OF_ALL)}")
    return FORMATS[name](name)
