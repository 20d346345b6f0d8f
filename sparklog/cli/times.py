"""Points in time as people and scripts write them."""

from __future__ import annotations

import re
from datetime import datetime, timedelta, timezone

import typer

from sparklog.log.journal.clock import EPOCH

INT64_MAX = 2**63 - 1
VERSIONS = 10**10
"""A number below is a version, from it on a time: 10^10 ms after 1970 is April 1970."""
_ISO_TIME = re.compile(r"(\d{4}-\d\d-\d\d[T ]\d\d(?::\d\d(?::\d\d)?)?)(?:[.,](\d+))?(?:(Z)|([+-]\d\d)(?::?(\d\d))?)?")


def _spelt_out(text: str) -> str:
    """A time as Python 3.10 reads it, too: it knows no Z, +01, +0100, nor fractions of other than 3 or 6 digits."""
    found = _ISO_TIME.fullmatch(text)
    if found is None:
        return text
    moment, fraction, utc, hours, minutes = found.groups()
    zone = "+00:00" if utc else f"{hours}:{minutes or '00'}" if hours else ""
    return moment + (f".{fraction[:6]:0<6}" if fraction else "") + zone


def parse_time(text: str, option: str = "--from-timestamp") -> int:
    """Milliseconds since the epoch from `1700000000000` or ISO 8601 (UTC unless it names a zone); floored to them."""
    if text.isdecimal() and int(text) <= INT64_MAX:
        return int(text)
    try:
        moment = datetime.fromisoformat(_spelt_out(text))
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
