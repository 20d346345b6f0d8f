"""Data files in the log of a Delta table: partition values and statistics, in the form that the Delta protocol defines.

Statistics are bounds: a reader skips a file if no value between the minimum and the maximum matches its filter. A value
that cannot be represented exactly in JSON is rounded, the minimum down and the maximum up, or is omitted.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

MAX_STRING_LENGTH = 64
"""Maximum length of a string in the statistics. The bounds of longer strings are omitted."""
MILLISECOND = timedelta(milliseconds=1)


def partition_text(value: Any) -> str | None:
    """Return a partition value as a string. The strings of null and of an empty string are the same."""
    if value is None or value == "":
        return None
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, datetime):
        return _in_utc(value).isoformat(sep=" ", timespec="microseconds")
    if isinstance(value, bytes):
        return value.decode("utf-8")
    return str(value)


def statistics(metadata: pq.FileMetaData, schema: pa.Schema) -> str:
    """Return the statistics of a file as JSON: the number of rows, and the bounds and the number of nulls of columns.

    Args:
        metadata: The footer of the file.
        schema: The schema of the file. Columns of columns are not included.
    """
    lower: dict[str, Any] = {}
    upper: dict[str, Any] = {}
    nulls: dict[str, int] = {}
    for index in range(metadata.num_columns):
        name = metadata.schema.column(index).path
        if name not in schema.names or pa.types.is_nested(schema.field(name).type):
            continue
        parts = [metadata.row_group(group).column(index).statistics for group in range(metadata.num_row_groups)]
        if not parts or any(part is None or not part.has_null_count for part in parts):
            continue
        nulls[name] = sum(part.null_count for part in parts)
        filled = [part for part in parts if part.num_values]
        if not filled or not all(part.has_min_max for part in filled):
            continue
        first, last = min(part.min for part in filled), max(part.max for part in filled)
        bounds = _bounds(first, last)
        if bounds is not None:
            lower[name], upper[name] = bounds
    document = {"numRecords": metadata.num_rows, "minValues": lower, "maxValues": upper, "nullCount": nulls}
    return json.dumps(document, separators=(",", ":"))


def _bounds(first: Any, last: Any) -> tuple[Any, Any] | None:
    if isinstance(first, datetime):
        bounds = _in_milliseconds(first, round_up=False), _in_milliseconds(last, round_up=True)
    else:
        to_json = next((convert for kind, convert in _CONVERSIONS if isinstance(first, kind)), None)
        bounds = (None, None) if to_json is None else (to_json(first), to_json(last))
    return None if None in bounds else bounds


def _number(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _short(value: str) -> str | None:
    return value if len(value) <= MAX_STRING_LENGTH else None


# Booleans are integers in Python, and have no bounds in Delta.
_CONVERSIONS: tuple[tuple[type, Callable[[Any], Any]], ...] = (
    (bool, lambda value: None),
    (int, lambda value: value),
    (float, _number),
    (str, _short),
    (date, date.isoformat),
    # A JSON number with more digits than a float can represent would be read as a different value.
    (Decimal, lambda value: float(value) if Decimal(float(value)) == value else None),
)


def _in_milliseconds(value: datetime, *, round_up: bool) -> str | None:
    utc = _in_utc(value)
    rounded = utc.replace(microsecond=utc.microsecond // 1000 * 1000)
    if round_up and rounded != utc:
        try:
            rounded += MILLISECOND
        except OverflowError:
            return None
    text = rounded.isoformat(timespec="milliseconds")
    return text if value.tzinfo is None else f"{text}Z"


def _in_utc(value: datetime) -> datetime:
    """Return the time in UTC without its zone. A time without a zone does not change."""
    return value if value.tzinfo is None else value.astimezone(timezone.utc).replace(tzinfo=None)
