"""Numbers, sizes, times and durations as a person reads them."""

from __future__ import annotations

from datetime import timedelta

from sparklog.log.journal.clocks import EPOCH, LAST_MS
from sparklog.output import size_text

HOUR_MS = 3_600_000


def count(number: float | None) -> str:
    """Return `1,234,567`; a dash for an unknown number."""
    return "–" if number is None else f"{number:,.0f}"


def size(nbytes: float | None) -> str:
    """Return `1.5 MB`; a dash for an unknown number."""
    return "–" if nbytes is None else size_text(nbytes)


def time(ms: int | None) -> str:
    """Return `2026-01-31 12:00:00`, in UTC."""
    if ms is None:
        return "–"
    if not 0 <= ms <= LAST_MS:
        return f"{ms:,} ms"
    return (EPOCH + timedelta(milliseconds=ms)).strftime("%Y-%m-%d %H:%M:%S")


def day(ms: int) -> str:
    """Return `Jan 31`, in UTC."""
    return f"{(EPOCH + timedelta(milliseconds=ms)):%b %d}" if 0 <= ms <= LAST_MS else f"{ms:,} ms"


def duration(ms: float | None) -> str:
    """Return `3 h`: one unit, the largest that fits."""
    if ms is None:
        return "–"
    for unit, scale in (("years", 365.25 * 86_400_000), ("days", 86_400_000), ("h", 3_600_000), ("min", 60_000)):
        if abs(ms) >= 2 * scale:
            return f"{ms / scale:,.0f} {unit}"
    return f"{ms / 1000:,.0f} s"


def ago(ms: int | None, now_ms: int) -> str:
    """Return `3 h ago`, `in 3 h`; a dash without a time."""
    if ms is None:
        return "–"
    return f"{duration(now_ms - ms)} ago" if ms <= now_ms else f"in {duration(ms - now_ms)}"
