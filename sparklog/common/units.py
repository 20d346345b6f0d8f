"""Format numbers, sizes, times and durations for people. Unknown values are formatted as a dash."""

from __future__ import annotations

from datetime import timedelta

from sparklog.common.parsing import is_digits
from sparklog.common.times import EPOCH, LAST_MS, span

HOUR_MS = 3_600_000
UNKNOWN = "–"


def number_text(number: float | None) -> str:
    """Return a number with separators: `1,234,567`."""
    return UNKNOWN if number is None else f"{number:,.0f}"


def count(number: int, one: str, many: str = "") -> str:
    """Return a number with a noun: `1 topic`, `2 topics`."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def size_text(nbytes: float | None) -> str:
    """Return a number of bytes in a suitable decimal unit: `1.5 MB` for 1,500,000."""
    if nbytes is None:
        return UNKNOWN
    for unit, scale in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if nbytes >= scale:
            return f"{nbytes / scale:,.1f} {unit}"
    return f"{nbytes:,.0f} B"


def rates(records: int, nbytes: int, seconds: float) -> str:
    """Return rates: `1.20 M records/s, 152.6 MB/s`. A time below a millisecond is treated as one millisecond."""
    seconds = max(seconds, 0.001)
    return f"{records / seconds / 1e6:,.2f} M records/s, {size_text(nbytes / seconds)}/s"


def time_text(ms: int | None, shape: str = "%Y-%m-%d %H:%M:%S") -> str:
    """Return a time in UTC: `2026-01-31 12:00:00`."""
    if ms is None:
        return UNKNOWN
    return (EPOCH + timedelta(milliseconds=ms)).strftime(shape) if 0 <= ms <= LAST_MS else f"{ms:,} ms"


def day_text(ms: int) -> str:
    """Return the UTC date of a time, such as `Jan 31`."""
    return time_text(ms, "%b %d")


def duration(ms: float | None) -> str:
    """Return a duration in the largest unit of which there are at least two: `3 h`."""
    if ms is None:
        return UNKNOWN
    for unit, scale in (("years", 365.25 * 86_400_000), ("days", 86_400_000), ("h", HOUR_MS), ("min", 60_000)):
        if abs(ms) >= 2 * scale:
            return f"{ms / scale:,.0f} {unit}"
    return f"{ms / 1000:,.0f} s"


def with_span(name: str, value: str) -> str:
    """Return the value of a config. If it is in milliseconds, it is followed by the period: `604800000 (7 days)`."""
    is_period = name.endswith(".ms") and is_digits(value) and 0 < int(value) < 2**53
    return f"{value} ({span(int(value))})" if is_period else value


def ago(ms: int | None, now_ms: int) -> str:
    """Return the time relative to now: `3 h ago`, `in 3 h`."""
    if ms is None:
        return UNKNOWN
    return f"{duration(now_ms - ms)} ago" if ms <= now_ms else f"in {duration(ms - now_ms)}"
