"""Parse numbers that consist of ASCII digits and are in a given range. Each caller has its own error message.

Python's `int` also accepts `1_000`, blanks and the digits of any script, which other programs would reject.
"""

from __future__ import annotations

import re

INT32_MAX, INT64_MAX, INT64_MIN = 2**31 - 1, 2**63 - 1, -(2**63)
MAX_DIGITS = 40
"""Maximum length of a number. It is larger than any range requires, and below the 4300 digits that Python's `int`
accepts.
"""
_INTEGER = re.compile(r"[+-]?0*[0-9]{1,19}")
_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")


def parse_integer(text: str, low: int = INT64_MIN, high: int = INT64_MAX) -> int:
    """Convert a string to an integer.

    Raises ValueError if the string is not an integer, or if the integer is out of range.
    """
    if not _INTEGER.fullmatch(text) or not low <= int(text) <= high:
        raise ValueError(text)
    return int(text)


def number(text: str) -> float:
    """Convert a string to a finite number. Raises ValueError if the string is not a number."""
    if not _NUMBER.fullmatch(text) or float(text) in (float("inf"), float("-inf")):
        raise ValueError(text)
    return float(text)


def is_digits(text: str) -> bool:
    """Return True if the string consists of digits without a sign, such as an offset, a version or milliseconds."""
    return text.isascii() and text.isdecimal() and len(text) <= MAX_DIGITS


def is_utf8(text: str) -> bool:
    """Return False if UTF-8 cannot encode a string.

    Command-line arguments that are not UTF-8 contain lone surrogates.
    """
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
