"""Text and bytes: bytes as the text that Java makes of them, and keys as a person types them.

Java and Python agree on how many U+FFFD stand for bytes that are no UTF-8, but for one case: an encoded surrogate
(ED A0..BF and maybe one more byte) is one in Java and one for each byte in Python.

Keys are typed as text, hex, base64, or a number as Kafka's serializers write it (big-endian).

| format  | bytes                         | Kafka's serializer |
|---------|-------------------------------|--------------------|
| string  | UTF-8                         | StringSerializer   |
| hex     | two digits each, `0x` allowed | -                  |
| base64  | standard or URL-safe          | -                  |
| short   | int16                         | ShortSerializer    |
| integer | int32                         | IntegerSerializer  |
| long    | int64                         | LongSerializer     |
| float   | IEEE 754, 4 bytes             | FloatSerializer    |
| double  | IEEE 754, 8 bytes             | DoubleSerializer   |
"""

from __future__ import annotations

import base64
import binascii
import codecs
import struct

from sparklog.errors import BadRequest

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
_NUMBERS = {"short": ">h", "integer": ">i", "long": ">q", "float": ">f", "double": ">d"}
KEY_FORMATS = ("string", "hex", "base64", *_NUMBERS)


def parse_key(text: str, kind: str = "string") -> bytes:
    """Return the bytes of a key given as text in one of `KEY_FORMATS`. `BadRequest` if it is not of that format."""
    try:
        if kind == "string":
            return text.encode("utf-8", "surrogateescape")
        if kind == "hex":
            return bytes.fromhex(text.removeprefix("0x"))
        if kind == "base64":
            return base64.b64decode(text.replace("-", "+").replace("_", "/"), validate=True)
        if kind in _NUMBERS:
            return struct.pack(_NUMBERS[kind], float(text) if kind in ("float", "double") else int(text))
    except (ValueError, OverflowError, struct.error, binascii.Error):
        raise BadRequest(f"expected a key as {kind}, found {text!r}") from None
    raise BadRequest(f"expected a key format of {', '.join(KEY_FORMATS)}, found {kind!r}")
