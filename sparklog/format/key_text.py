"""Keys as a person types them: text, hex, base64, or a number as Kafka's serializers write it (big-endian).

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
import struct

from sparklog.errors import BadRequest


_NUMBERS = {"short": ">h", "integer": ">i", "long": ">q", "float": ">f", "double": ">d"}
KEY_FORMATS = ("string", "hex", "base64", *_NUMBERS)


def parse_key(text: str, kind: str = "string") -> bytes:
    """The bytes of a key given as text in one of `KEY_FORMATS`; `BadRequest` if it is none."""
    try:
        if kind == "string":
            return text.encode("utf-8", "surrogateescape")
        if kind == "hex":
            return bytes.fromhex(text.removeprefix("0x"))
        if kind == "base64":
            return base64.b64decode(text.replace("-", "+").replace("_", "/"), validate=True)
        if kind in _NUMBERS:
            code = _NUMBERS[kind]
            return struct.pack(code, float(text) if kind in ("float", "double") else int(text))
    except (ValueError, OverflowError, struct.error, binascii.Error):
        raise BadRequest(f"expected a key as {kind}, found {text!r}") from None
    raise BadRequest(f"expected a key format of {', '.join(KEY_FORMATS)}, found {kind!r}")
