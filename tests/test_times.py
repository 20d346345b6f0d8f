"""Test the format of times in messages."""

from __future__ import annotations

import pytest

from sparklog.common.times import LAST_MS, iso_time
from sparklog.console.options import parse_time


def test_time_is_formatted_in_utc_with_milliseconds() -> None:
    assert iso_time(0) == "1970-01-01T00:00:00.000Z"
    assert iso_time(1_769_860_800_007) == "2026-01-31T12:00:00.007Z"
    assert iso_time(LAST_MS) == "9999-12-31T23:59:59.999Z"


@pytest.mark.parametrize("ms", [-1, LAST_MS + 1, 2**63 - 1])
def test_time_outside_of_the_calendar_is_formatted_as_a_number(ms: int) -> None:
    assert iso_time(ms) == str(ms)


@pytest.mark.parametrize("ms", [0, 1_769_860_800_007, LAST_MS, LAST_MS + 1, 2**63 - 1])
def test_formatted_time_can_be_parsed(ms: int) -> None:
    assert parse_time(iso_time(ms)) == ms
