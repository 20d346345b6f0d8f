"""Text and bytes: bytes as the text that Java makes of them, and keys as a person types them.

Java and Python agree on how many U+FFFD stand for bytes that are no UTF-8, but for one case: an encoded surrogate
(ED A0..BF and maybe one more byte) is one in Java and one for each byte in Python.

Keys are typed as text, or in another format of `sparklog.format.values`.
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sparklog.format.values import ValueFormat

JAVA_ERRORS = "sparklog.java"


def java_text(data: bytes) -> str:
    """Return Java's `new String(data, UTF_8)`."""
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
    """Return the bytes of a key given as text of a format. `BadRequest` if it is not of that format."""
    return parse_keys([text], kind, "the key")[0]


def parse_keys(texts: Sequence[str], kind: str | ValueFormat, place: str) -> list[bytes]:
    """Return the bytes of keys given as texts of a format. `BadRequest`, with their place, if one is not."""
    encoded = [text.encode("utf-8", "surrogateescape") for text in texts]
    if kind == "string":
        return encoded
    from sparklog.format.arrow_numpy import bytes_array
    from sparklog.format.values import value_format

    keys = value_format(kind) if isinstance(kind, str) else kind
    parsed: list[bytes] = keys.parse(bytes_array(encoded), lambda row: place).to_pylist()
    return parsed
