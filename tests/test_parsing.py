"""Test parsing numbers: ASCII digits, inclusive ranges, and strings that Python's `int` would accept."""

from __future__ import annotations

import re

import pytest

from sparklog.common.parsing import INT64_MAX, INT64_MIN, is_digits, parse_integer


@pytest.mark.parametrize("text", ["", " 1", "1_000", "1.0", "٣", "--1", "+-1", "1" * 20, "9223372036854775808", "1\n"])
def test_integer_consists_of_ascii_digits_with_one_sign(text: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(text)}$"):
        parse_integer(text)


def test_both_ends_are_in_the_range() -> None:
    assert (parse_integer("-2", -2, 3), parse_integer("+3", -2, 3), parse_integer("0" * 30 + "1")) == (-2, 3, 1)
    assert (parse_integer(str(INT64_MIN)), parse_integer(str(INT64_MAX))) == (INT64_MIN, INT64_MAX)
    for text in ("-3", "4"):
        with pytest.raises(ValueError, match=text):
            parse_integer(text, -2, 3)


def test_digits_have_no_sign() -> None:
    assert [is_digits(text) for text in ("0", "19", "", "-1", "٣", "1 ")] == [True, True, False, False, False, False]
