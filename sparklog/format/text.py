"""Convert bytes to strings like Java, and convert the keys that users enter to bytes.

Java and Python replace invalid UTF-8 with the same number of U+FFFD characters, except for an encoded surrogate (ED
A0..BF and possibly another byte). Java replaces an encoded surrogate with a single U+FFFD, and Python with one U+FFFD
for each byte.

Users enter keys as strings, or in another format of `sparklog.format.values`.
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sparklog.format.values import ValueFormat

JAVA_ERRORS = "sparklog.java"


def java_text(data: bytes) -> str:
    """Return the result of Java's `new String(data, UTF_8)`."""
    return data.decode("utf-8", JAVA_ERRORS)


def _replace(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeDecodeError):
        raise error
    data, start = error.object, error.start
    if data[start] == 0xED and start + 1 < len(data) and 0xA0 <= data[start + 1] <= 0xBF:
        third = start + 2 < len(data) and data[start + 2] & 0xC0 == 0x80
        return "\ufffd", start + (3 if third else 2)
    return "\ufffd", error.end


codecs.register_error(JAVA_ERRORS, _replace)


def parse_key(text: str, kind: str | ValueFormat = "string") -> bytes:
    """Encode a key that a user has entered as text, and return its bytes.

    Raises `BadRequest` if the key is invalid in that format.
    """
    return parse_keys([text], kind, "the key")[0]


def parse_keys(texts: Sequence[str], kind: str | ValueFormat, name: str) -> list[bytes]:
    """Encode keys that a user has entered as text, and return their bytes. Raises `BadRequest`, with `name`, if a key
    is invalid.
    """
    encoded = [text.encode("utf-8", "surrogateescape") for text in texts]
    if kind == "string":
        return encoded
    from sparklog.format.arrow_numpy import bytes_array
    from sparklog.format.values import value_format

    keys = value_format(kind) if isinstance(kind, str) else kind
    parsed: list[bytes] = keys.parse(bytes_array(encoded), lambda row: name).to_pylist()
    return parsed
