"""Bytes as the text that Java makes of them: what is not UTF-8 becomes U+FFFD, as many as in Java.

Java and Python agree on how many replacement characters stand for bytes that are no UTF-8, but for one case: an encoded
surrogate (ED A0..BF and maybe one more byte) is one in Java and one for each byte in Python.
"""

from __future__ import annotations

import codecs


_ERRORS = "sparklog.java"


def java_text(data: bytes) -> str:
    """`new String(data, UTF_8)`."""
    return data.decode("utf-8", _ERRORS)


def _replace(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeDecodeError):
        raise error
    data, start = error.object, error.start
    if data[start] == 0xED and start + 1 < len(data) and 0xA0 <= data[start + 1] <= 0xBF:
        third = start + 2 < len(data) and data[start + 2] & 0xC0 == 0x80
        return "\ufffd", start + (3 if third else 2)
    return "\ufffd", error.end


codecs.register_error(_ERRORS, _replace)
