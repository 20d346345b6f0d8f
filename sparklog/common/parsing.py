"""Numbers in texts: digits of ASCII, in a range. Each caller words its own error.

Python's `int` takes `1_000`, blanks and digits of any script; whatever else reads the same text would not.
"""

from __future__ import annotations

import re

INT32_MAX, INT64_MAX, INT64_MIN = 2**31 - 1, 2**63 - 1, -(2**63)
MAX_DIGITS = 40
"""Of a number that some range may hold; Python's `int` refuses texts of more than 4300."""
_WHOLE = re.compile(r"[+-]?0*[0-9]{1,19}")
_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")


def whole_number(text: str, low: int = INT64_MIN, high: int = INT64_MAX) -> int:
    """Return the whole number of a text. Raises ValueError for any other text, and out of the range."""
    if not _WHOLE.fullmatch(text) or not low <= int(text) <= high:
        raise ValueError(text)
    return int(text)


def number(text: str) -> float:
    """Return the finite number of a text. Raises ValueError for any other text."""
    if not _NUMBER.fullmatch(text) or float(text) in (float("inf"), float("-inf")):
        raise ValueError(text)
    return float(text)


def is_digits(text: str) -> bool:
    """Return True for an offset, a version or milliseconds: digits without a sign."""
    return text.isascii() and text.isdecimal() and len(text) <= MAX_DIGITS


def is_utf8(text: str) -> bool:
    """Return True unless a text has lone surrogates, as words of a command line that are not UTF-8 have."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
