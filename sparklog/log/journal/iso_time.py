"""Times in messages and tables: text that the commands take back (`--as-of`, `--to-datetime`)."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone


EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
LAST_MS = 253_402_300_799_999
"""The last ms of the year 9999, where Python's times end; Kafka's do not."""


def iso_time(ms: int) -> str:
    """Milliseconds since the epoch as `2026-01-31T12:00:00.000Z`; as a number if not of the years 1970 to 9999."""
    if not 0 <= ms <= LAST_MS:
        return str(ms)
    return (EPOCH + timedelta(milliseconds=ms)).isoformat(timespec="milliseconds").replace("+00:00", "Z")
