"""Text and bytes: bytes as the text that Java makes of them, and keys as a person types them.

Java and Python agree on how many U+FFFD stand for bytes that are no UTF-8, but for one case: an encoded surrogate
(ED A0..BF and maybe one more byte) is one in Java and one for each byte in Python.

Keys are typed as text, or in another format of `sparklog.format.values`.
"""

from __future__ import annotations

import codecs
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sparklog.format.values import ValueFormat

_ERRORS = "sparklog.java"


def java_text(data: bytes) -> str:
    """Return Java's `new String(data, UTF_8)`."""
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


def parse_key(text: str, kind: str | ValueFormat = "string", place: str = "the key") -> bytes:
    """Return the bytes of a key given as text of a format. `BadRequest`, with its place, if it is not of it."""
    given = text.encode("utf-8", "surrogateescape")
    if kind == "string":
        return given
    from sparklog.format.values import binary_rows, value_format

    key = value_format(kind) if isinstance(kind, str) else kind
    parsed: bytes = key.parse(binary_rows([given]), lambda row: place)[0].as_py()
    return parsed
