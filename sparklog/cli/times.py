"""Points in time as people and scripts write them."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

import typer

from sparklog.log.iso_time import EPOCH

INT64_MAX = 2**63 - 1
VERSIONS = 10**10
"""A number below is a version, from it on a time: 10^10 ms after 1970 is April 1970."""


def parse_time(text: str, option: str = "--from-timestamp") -> int:
    """Milliseconds since the epoch from `1700000000000` or ISO 8601 (UTC unless it names a zone); floored to them."""
    if text.isdecimal() and int(text) <= INT64_MAX:
        return int(text)
    try:
        # Python 3.10 does not know the Z that everybody writes.
        moment = datetime.fromisoformat(text.removesuffix("Z") + ("+00:00" if text.endswith("Z") else ""))
    except ValueError:
        raise typer.BadParameter(
            f"expected milliseconds or a time such as 2026-01-31T12:00:00, found {text!r}", param_hint=f"'{option}'"
        ) from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=timezone.utc)
    millis = (moment - EPOCH) // timedelta(milliseconds=1)
    if millis < 0:
        raise typer.BadParameter(f"expected a time after 1970, found {text!r}", param_hint=f"'{option}'")
    return millis


def parse_as_of(text: str | None, option: str = "--as-of") -> tuple[int | None, int | None]:
    """Version and time (ms since the epoch), at most one of them."""
    if text is None:
        return None, None
    if text.isdecimal() and int(text) < VERSIONS:
        return int(text), None
    return None, parse_time(text, option)
