"""Values that are no text: Kafka's serializers and a few spellings of bytes, whole Arrow columns at a time.

A `ValueFormat` knows four ways, each from a column to one of the same length; null stays null.

    decode: bytes -> values     what a program reads        show: bytes -> text     what a shell prints
    encode: values -> bytes     what a program writes       parse: text -> bytes    what a shell reads

| format                               | bytes                              | values         | text             |
|--------------------------------------|------------------------------------|----------------|------------------|
| string                               | UTF-8 (StringSerializer)           | string         | as it is         |
| short, integer, long, float, double  | big-endian (ShortSerializer, ...)  | int16, ...     | digits           |
| json                                 | JSON in UTF-8                      | as Arrow infers| as it is, a line |
| hex, base64                          | any                                | string         | digits           |
| avro                                 | see `sparklog.format.avro`         | by the schema  | Avro's JSON      |

Numbers go through numpy and Arrow without a Python object per row. A wrong row is a `BadRequest` with the place of it.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sparklog.errors import BadRequest, did_you_mean
from sparklog.format.arrow_numpy import binary_array, bytes_array, fixed_array, fixed_values, valid_rows

Place = Callable[[int], str]
Step = Callable[[pa.Array], pa.Array]
SHOWN = 40
"""Bytes and characters of a wrong value that its error shows."""


NAMES = {"string": "text in UTF-8", "hex": "hexadecimal digits, two a byte", "json": "JSON"}


def row_of(row: int) -> str:
    """Name a row by its number alone."""
    return f"row {row}"


class ValueFormat:
    """A format by its name; `json_text`: what it shows is JSON."""

    json_text = False

    def __init__(self, name: str) -> None:
        self.name = name
        self.bytes_name = self.text_name = NAMES.get(name, name)

    def decode(self, column: pa.Array, place: Place = row_of, kind: pa.DataType | None = None) -> pa.Array:
        """Return the values of a binary column, of the Arrow type `kind` if it is given."""
        return applied(lambda part: self._decode(_binary(part), kind), column, place, self.bytes_name)

    def encode(self, column: pa.Array, place: Place = row_of) -> pa.Array:
        """Return a binary column of these values."""
        return applied(self._encode, column, place, self.text_name)

    def show(self, column: pa.Array, place: Place = row_of) -> pa.Array:
        """Return the text of a binary column, as a binary column of UTF-8."""
        return applied(lambda part: _binary(self._show(_binary(part))), column, place, self.bytes_name)

    def parse(self, column: pa.Array, place: Place = row_of) -> pa.Array:
        """Return the bytes that a column of text stands for."""
        text = applied(_text, column, place, NAMES["string"])
        return applied(self._parse, text, place, self.text_name)

    def _decode(self, column: pa.Array, kind: pa.DataType | None) -> pa.Array:
        return _cast(_text(column), kind)

    def _encode(self, column: pa.Array) -> pa.Array:
        return self._parse(column.cast(pa.string()))

    def _show(self, column: pa.Array) -> pa.Array:
        return self._decode(column, None)

    def _parse(self, column: pa.Array) -> pa.Array:
        return _binary(column)


def applied(step: Step, column: pa.Array | pa.ChunkedArray, place: Place, expected: str) -> pa.Array:
    """Take a step with a column, or with each chunk of it; `BadRequest` names the first row that it fails for."""
    if isinstance(column, pa.ChunkedArray):
        first, parts = 0, []
        for chunk in column.chunks or [pa.nulls(0, column.type)]:
            parts.append(applied(step, chunk, _moved(first, place), expected))
            first += len(chunk)
        return pa.chunked_array(parts)
    try:
        return step(column)
    except (ValueError, TypeError, pa.ArrowException) as error:
        if isinstance(error, BadRequest):
            raise
        whole = " ".join(str(error).split())
    low, high = 0, len(column)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if _failure(step, column.slice(low, middle - low)) is None else (low, middle)
    reason = _failure(step, column.slice(low, 1))
    if reason is None:
        raise BadRequest(f"{place(0)} and those after it: expected {expected}, all of one type: {whole[:200]}")
    raise BadRequest(f"{place(low)}: expected {expected}, found {_shown(column, low)}{reason}")


def _moved(first: int, place: Place) -> Place:
    return lambda row: place(first + row)


def _failure(step: Step, column: pa.Array) -> str | None:
    """Return why a step fails, None if it does not; Arrow's reasons only repeat the value."""
    try:
        step(column)
    except (ValueError, TypeError, pa.ArrowException) as error:
        plain = isinstance(error, pa.ArrowException) or not str(error)
        return "" if plain else f" ({' '.join(str(error).split())[:200]})"
    return None


def _shown(column: pa.Array, row: int) -> str:
    cell = column[row].as_py() if len(column) else None
    if not isinstance(cell, bytes):
        text = repr(cell)
        return text if len(text) <= 2 * SHOWN else text[: 2 * SHOWN] + "…"
    text = cell[:SHOWN].decode(errors="replace")
    start = repr(text) if "\ufffd" not in text and text.isprintable() else f"0x{cell[:SHOWN].hex()}"
    size = f"{len(cell)} byte{'' if len(cell) == 1 else 's'}"
    return f"{size}: {start}{'…' if len(cell) > SHOWN else ''}" if cell else size


def _binary(column: pa.Array) -> pa.Array:
    if pa.types.is_string(column.type):
        return column.view(pa.binary())
    return column if pa.types.is_binary(column.type) else column.cast(pa.binary())


def _text(column: pa.Array) -> pa.Array:
    """Check that a column is UTF-8, which Arrow's cast does."""
    return column if pa.types.is_string(column.type) else column.cast(pa.string())


def _cast(column: pa.Array, kind: pa.DataType | None) -> pa.Array:
    return column if kind is None or kind == column.type else column.cast(kind)


def each_row(column: pa.Array, function: Callable[[Any], bytes]) -> pa.Array:
    """Return the binary column of a function of each row that is not null."""
    return bytes_array([None if cell is None else function(cell) for cell in column.to_pylist()])


class NumberFormat(ValueFormat):
    """Big-endian numbers of a fixed width, as Kafka's serializers and `DataOutput` write them."""

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
        else:  # null rows that hold bytes
            cells = raw[starts[:, None] + np.arange(width)].reshape(-1)
        values = np.zeros(len(column), self.layout.newbyteorder("="))
        values[valid] = cells.view(self.layout)
        return _cast(fixed_array(values, self.kind, valid), kind)

    def _encode(self, column: pa.Array) -> pa.Array:
        numbers = column.cast(self.kind)
        valid = valid_rows(numbers)
        values = fixed_values(numbers, self.layout.newbyteorder("="))
        return binary_array(valid * np.int64(self.layout.itemsize), values[valid].astype(self.layout), valid)

    def _show(self, column: pa.Array) -> pa.Array:
        text = self._decode(column, None).cast(pa.string())
        if self.layout.kind == "i":
            return text
        # As Java spells them, and JSON but for the last two.
        for pattern, spelling in ((r"^(-?\d+)$", r"\1.0"), ("nan", "NaN"), ("inf", "Infinity")):
            text = pc.replace_substring_regex(text, pattern=pattern, replacement=spelling)
        return text

    def _parse(self, column: pa.Array) -> pa.Array:
        return self._encode(column)


class DigitsFormat(ValueFormat):
    """Any bytes as digits of text: two functions."""

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
    """JSON, checked; its bytes stay as they are."""

    json_text = True

    def decode(self, column: pa.Array, place: Place = row_of, kind: pa.DataType | None = None) -> pa.Array:
        """Return the values, all of one type: that which Arrow infers is of the whole column, not of each chunk."""
        if kind is None and isinstance(column, pa.ChunkedArray):
            return pa.chunked_array([self.decode(column.combine_chunks(), place)])
        return super().decode(column, place, kind)

    def _decode(self, column: pa.Array, kind: pa.DataType | None) -> pa.Array:
        return pa.array([None if cell is None else loads(cell) for cell in _text(column).to_pylist()], kind)

    def _encode(self, column: pa.Array) -> pa.Array:
        return each_row(column, dumps)

    def _show(self, column: pa.Array) -> pa.Array:
        # A line feed in JSON is white space between its parts: a record stays one line.
        return pc.replace_substring_regex(self._parse(_text(column)), pattern=b"[\r\n]+", replacement=b" ")

    def _parse(self, column: pa.Array) -> pa.Array:
        for cell in column.to_pylist():
            if cell is not None:
                loads(cell)
        return _binary(column)


def loads(text: str) -> Any:
    """Parse JSON; `ValueError` also for NaN and the like, and for what is nested too deeply."""
    try:
        return json.loads(text, parse_constant=_no_constant)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON")


def dumps(value: Any) -> bytes:
    """Return JSON of a value as Arrow gives it; `ValueError` for what JSON has no word for."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False).encode()


FORMATS: dict[str, Callable[[str], ValueFormat]] = {
    "string": ValueFormat,
    "short": lambda name: NumberFormat(name, pa.int16(), ">i2"),
    "integer": lambda name: NumberFormat(name, pa.int32(), ">i4"),
    "long": lambda name: NumberFormat(name, pa.int64(), ">i8"),
    "float": lambda name: NumberFormat(name, pa.float32(), ">f4"),
    "double": lambda name: NumberFormat(name, pa.float64(), ">f8"),
    "json": JsonFormat,
    # `0x` in front is allowed, and so are the letters of URLs.
    "hex": lambda name: DigitsFormat(
        name, lambda data: data.hex().encode(), lambda text: bytes.fromhex(text.removeprefix("0x"))
    ),
    "base64": lambda name: DigitsFormat(name, base64.b64encode, _from_base64),
}
NAMES_OF_ALL = (*FORMATS, "avro")


def value_format(name: str) -> ValueFormat:
    """Return a format that needs no schema."""
    if name not in FORMATS:
        names = ", ".join(NAMES_OF_ALL)
        raise BadRequest(f"expected a format of {names}, found {name!r}{did_you_mean(str(name), NAMES_OF_ALL)}")
    return FORMATS[name](name)
