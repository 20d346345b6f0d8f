"""Reading the JSON objects of a log so that damage in one is named to the byte."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

from sparklog.errors import BadRequest, Corrupt
from sparklog.format.flipped_bit import flipped_bit
from sparklog.storage.store import Store
from sparklog.tools.verification.findings import Finding


_TRAILER = re.compile(rb'crc":([0-9]{1,10})\}\n\Z')
_MARK = b',"crc":'
T = TypeVar("T")


def read_object(
    store: Store, key: str, decode: Callable[[bytes], T], kind: str
) -> tuple[T | None, bytes, Finding | None]:
    """The decoded object, its bytes, and what is wrong with it. `NotFound` if it is not there.

    Read again before it is called damaged: a bit may flip on the way. An object of a newer sparklog is a finding, too.
    """
    try:
        data = store.get(key)
    except Corrupt as error:
        return None, b"", Finding.of(kind, error, key)
    try:
        return decode(data), data, None
    except (Corrupt, BadRequest):
        data = store.get(key)
    try:
        return decode(data), data, None
    except (Corrupt, BadRequest) as error:
        return None, data, _placed(Finding.of(kind, error, key), data)


def numbered(decode: Callable[[bytes, str, int], T], key: str, number: int) -> Callable[[bytes], T]:
    """`decode(data, key, number)` for the object of one number, which lies under `key`."""
    return lambda data: decode(data, key, number)


def _placed(finding: Finding, data: bytes) -> Finding:
    """With the place of the damage, as well as it can be told."""
    from crc32c import crc32c

    end = _TRAILER.search(data)
    cut = data.rfind(_MARK)
    if end is not None and cut >= 0 and cut + len(_MARK) == end.start(1):
        said = int(end[1])
        body = data[:cut]
        found = crc32c(body)
        at = flipped_bit(len(body), found, said) if said < 2**32 else None
        if at is not None:
            return replace(finding, position=at[0], bit=at[1])
        # A digit of the checksum itself, or more than one bit.
        return finding if found == said else replace(finding, position=cut + len(_MARK) if _near(said, found) else 0)
    odd = next((at for at, byte in enumerate(data[:-1]) if not 0x20 <= byte < 0x7F), None)
    # Nothing else is known to be odd: it is the checksum's own member, the last one.
    return replace(finding, position=odd if odd is not None else max(data.rfind(b","), 0))


def _near(said: int, found: int) -> bool:
    """Whether two numbers differ in one digit."""
    left, right = str(said), str(found)
    return len(left) == len(right) and sum(a != b for a, b in zip(left, right, strict=True)) == 1
