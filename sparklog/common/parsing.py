"""Numbers in texts: digits of ASCII, in a range. Each caller words its own error.

Python's `int` takes `1_000`, blanks and digits of any script; whatever else reads the same text would not.
"""

from __future__ import annotations

import re

INT32_MAX, INT64_MAX, INT64_MIN = 2**31 - 1, 2**63 - 1, -(2**63)
_WHOLE = re.compile(r"[+-]?0*[0-9]{1,19}")


def whole_number(text: str, low: int = INT64_MIN, high: int = INT64_MAX) -> int:
    """Return the whole number of a text. Raises ValueError for any other text, and out of the range."""
    if not _WHOLE.fullmatch(text) or not low <= int(text) <= high:
        raise ValueError(text)
    return int(text)


def fraction(text: str, *, ends: bool) -> float:
    """Return the number of a text, from 0 to 1; `ends`: these two are in the range. Raises ValueError."""
    number = float(text)
    if not 0.0 <= number <= 1.0 or (number in (0.0, 1.0) and not ends):
        raise ValueError(text)
    return number


def positive_number(text: str) -> float:
    """Return the number of a text, above 0. Raises ValueError for any other text."""
    number = float(text)
    if not 0.0 < number < float("inf"):
        raise ValueError(text)
    return number


def is_digits(text: str) -> bool:
    """Return True for an offset, a version or milliseconds: digits without a sign."""
    return text.isascii() and text.isdecimal()
