"""Records in the format of a string, as kcat's `-f` takes it.

    %t topic   %p partition   %o offset   %T timestamp (ms since the epoch)   %h headers (name=value,...)
    %k key     %K its length, -1 for null
    %s value   %S its length, -1 for null
    %% a percent sign; \\n \\t \\r \\0 \\x1f in what is between

A record ends where the format does: a line feed is part of it, or there is none.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from sparklog.cli.options import unescaped
from sparklog.cli.record_text import HEADERS_SEPARATOR, joined_headers
from sparklog.errors import BadRequest
from sparklog.format.arrow_numpy import bytes_array, bytes_scalar, int_scalar

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
            return _text(pc.fill_null(pc.binary_length(column), int_scalar(-1, pa.int32())))
        if letter == "T":
            return _text(pc.cast(column, pa.int64()))
        if letter == "h":
            return joined_headers(column, (b"=", HEADERS_SEPARATOR), self.null_literal, b"")
        return pc.fill_null(_text(column), bytes_scalar(self.null_literal))


def _text(column: pa.Array) -> pa.Array:
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
