"""Convert rows in Python lists and dictionaries to the Arrow columns that `sparklog.log.write.rows` accepts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa

from sparklog.errors import BadRequest, did_you_mean, shortened
from sparklog.format.arrow_numpy import bytes_array, text_array
from sparklog.log.state.record_schema import HEADERS_TYPE
from sparklog.log.write.rows import ROW_COLUMNS

BATCH_ROWS = 65_536
"""The number of dictionaries per record batch."""
Header = tuple[str, bytes | None]


def batch_of_columns(columns: Mapping[str, Any]) -> pa.RecordBatch:
    """Return a record batch of lists, by column name. Raises `BadRequest` if a name, a length or a value is invalid."""
    _check_names(columns)
    arrays = {name: _column(name, values) for name, values in columns.items()}
    if len({len(array) for array in arrays.values()}) > 1:
        lengths = ", ".join(f"{name} {len(array)}" for name, array in arrays.items())
        raise BadRequest(f"expected columns of equal length, found {lengths}")
    return pa.RecordBatch.from_arrays(list(arrays.values()), names=list(arrays))


def batches_of_rows(rows: Iterable[object]) -> Iterator[pa.RecordBatch]:
    """Yield record batches of dictionaries, one dictionary per row. Missing columns are null."""
    pending: list[Mapping[str, Any]] = []
    for number, row in enumerate(rows):
        if not isinstance(row, Mapping):
            raise BadRequest(f"expected a dictionary per row, found {type(row).__name__} in row {number}")
        _check_names(row, f"row {number}: ")
        pending.append(row)
        if len(pending) == BATCH_ROWS:
            yield _batch_of_rows(pending)
            pending = []
    if pending:
        yield _batch_of_rows(pending)


def _batch_of_rows(rows: Sequence[Mapping[str, Any]]) -> pa.RecordBatch:
    names = ["value", *sorted(set(chain.from_iterable(rows)) - {"value"})]
    return batch_of_columns({name: [row.get(name) for row in rows] for name in names})


def _check_names(names: Iterable[object], context: str = "") -> None:
    for name in names:
        if name not in ROW_COLUMNS:
            hint = did_you_mean(str(name), ROW_COLUMNS)
            raise BadRequest(f"{context}expected columns of {', '.join(ROW_COLUMNS)}; found {name!r}{hint}")


def _column(name: str, values: Any) -> pa.Array:
    if isinstance(values, pa.ChunkedArray):
        return values.combine_chunks()
    if isinstance(values, pa.Array):
        return values
    if isinstance(values, (str, bytes)) or not isinstance(values, Iterable):
        raise BadRequest(f"expected column {name} to be a list, found {shortened(values)}")
    cells = list(values)
    if name in ("key", "value"):
        return bytes_array([cell if type(cell) is bytes else as_bytes(name, cell) for cell in cells])
    if name == "headers":
        return headers_array([as_headers(cell) for cell in cells])
    try:
        return pa.array(cells)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise BadRequest(f"column {name}: {' '.join(str(error).split())[:200]}") from None


def as_bytes(name: str, cell: object) -> bytes | None:
    """Return a key or value as bytes. Strings are encoded as UTF-8. Raises `BadRequest` for other types."""
    if cell is None or isinstance(cell, bytes):
        return cell
    if isinstance(cell, str):
        try:
            return cell.encode()
        except UnicodeEncodeError:
            raise BadRequest(f"cannot encode {name} {shortened(cell)} as UTF-8; use bytes") from None
    if isinstance(cell, (bytearray, memoryview)):
        return bytes(cell)
    raise BadRequest(f"expected {name} to be bytes, str or None, found {shortened(cell)}; encode the value first")


def as_headers(headers: object) -> list[Header] | None:
    """Convert a mapping, pairs, or dictionaries with `key` and `value` to (key, value) pairs. None remains None."""
    if headers is None:
        return None
    items: Iterable[Any] = headers.items() if isinstance(headers, Mapping) else headers  # type: ignore[assignment]
    pairs = []
    try:
        for item in items:
            key, value = (item["key"], item["value"]) if isinstance(item, Mapping) else item
            pairs.append((key, as_bytes("a header", value)))
    except (TypeError, ValueError, KeyError) as error:
        if isinstance(error, BadRequest):
            raise
        raise BadRequest(f"expected headers as pairs of str and bytes, found {shortened(headers)}") from None
    wrong = [key for key, _ in pairs if not isinstance(key, str)]
    if wrong:
        raise BadRequest(f"expected header keys to be str, found {shortened(wrong[0])}")
    return pairs


def headers_array(rows: Sequence[Sequence[Header] | None]) -> pa.Array:
    """Return a column of headers, given the pairs of each row. None becomes null."""
    if not any(rows):
        return pa.nulls(len(rows))
    pairs = list(chain.from_iterable(row or () for row in rows))
    flat = [text_array([key for key, _ in pairs]), bytes_array([value for _, value in pairs])]
    items = pa.StructArray.from_arrays(flat, fields=list(HEADERS_TYPE.value_type))
    ends = np.zeros(len(rows) + 1, np.int32)
    np.cumsum([len(row or ()) for row in rows], out=ends[1:])
    valid = np.array([row is not None for row in rows], np.bool_)
    bits = None if valid.all() else pa.py_buffer(np.packbits(valid, bitorder="little"))
    return pa.ListArray.from_buffers(HEADERS_TYPE, len(rows), [bits, pa.py_buffer(ends)], children=[items])
