"""Format and parse times in ISO 8601, and warn about times in seconds where milliseconds are expected."""

from __future__ import annotations

import logging
import re
from datetime import datetime, timedelta, timezone
from operator import index
from typing import SupportsIndex

_LOG = logging.getLogger("sparklog.log")
EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
LAST_MS = 253_402_300_799_999
"""The last millisecond of the year 9999, which is Python's maximum. Kafka's times can be later."""


def iso_time(ms: int) -> str:
    """Format ms since the epoch as `2026-01-31T12:00:00.000Z`.

    Times outside of the years 1970 to 9999 are formatted as numbers.
    """
    if not 0 <= ms <= LAST_MS:
        return str(ms)
    return (EPOCH + timedelta(milliseconds=ms)).isoformat(timespec="milliseconds").replace("+00:00", "Z")


FIRST_SECONDS, LAST_SECONDS = 978_307_200, 9_999_999_999
"""Range of times in seconds from 2001 to 2286. If these numbers are milliseconds, the times are in early 1970."""


def seconds_warning(what: str, time_ms: int) -> str | None:
    """Return a warning if a time in ms seems to be in seconds. `what` describes the time."""
    if not FIRST_SECONDS <= time_ms <= LAST_SECONDS:
        return None
    warning = f"{what}: {time_ms} means {iso_time(time_ms)}, because times are in milliseconds"
    return f"{warning}; if the time is in seconds, use {time_ms}000 or {iso_time(time_ms * 1000)!r}"


def warn_of_seconds(**times: object) -> None:
    """Log a warning for each number that seems to be a time in seconds. The keywords are the names of arguments."""
    for name, time_ms in times.items():
        number = int(time_ms) if isinstance(time_ms, str) and time_ms.isdecimal() and len(time_ms) < 20 else time_ms
        # `index` also accepts numpy integers.
        warning = seconds_warning(name, index(number)) if isinstance(number, SupportsIndex) else None
        if warning is not None:
            _LOG.warning("%s", warning)


_ISO_TIME = re.compile(r"(\d{4}-\d\d-\d\d[T ]\d\d(?::\d\d(?::\d\d)?)?)(?:[.,](\d+))?(?:(Z)|([+-]\d\d)(?::?(\d\d))?)?")


def parse_iso_time(text: str) -> int:
    """Convert an ISO 8601 time to ms since the epoch, rounded down.

    The time zone defaults to UTC. Raises ValueError.
    """
    parsed = datetime.fromisoformat(_for_python_3_10(text))
    if parsed.tzinfo is None:
        parsed = parsed.replace(tzinfo=timezone.utc)
    return (parsed - EPOCH) // timedelta(milliseconds=1)


def _for_python_3_10(text: str) -> str:
    """Convert Z, +01, +0100, and fractions that do not have 3 or 6 digits to forms that Python 3.10 can parse."""
    match = _ISO_TIME.fullmatch(text)
    if match is None:
        return text
    local_time, fraction, utc, hours, minutes = match.groups()
    zone = "+00:00" if utc else f"{hours}:{minutes or '00'}" if hours else ""
    return local_time + (f".{fraction[:6]:0<6}" if fraction else "") + zone


def span(ms: int) -> str:
    """Return a period as a string with at most two units: `5 ms`, `1 day 12 h`, `7 days`, `1 min 30 s`."""
    parts: list[str] = []
    for unit, scale in (("days", 86_400_000), ("h", 3_600_000), ("min", 60_000), ("s", 1_000), ("ms", 1)):
        if ms >= scale and len(parts) < 2:
            number, ms = divmod(ms, scale)
            parts.append(f"{number:,} {'day' if (number, unit) == (1, 'days') else unit}")
    return " ".join(parts) or "0 ms"
