"""JSON objects of the log: canonical bytes that end in their own CRC-32C, and strict typed access to their fields.

    {"format":1,...,"crc":305419896}\\n

`crc` is the CRC-32C of the bytes before `,"crc":`. It tells a damaged object at once, also the newest commit, which no
successor's `prevCrc` covers yet. Bytes are canonical (fixed field order, no spaces, ASCII), so equal values are equal
bytes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import crc32c

from sparklog.errors import BadRequest, Corrupt
from sparklog.storage.store import MAX_DOCUMENT

FORMAT = 1
KNOWN_READ_FEATURES: frozenset[str] = frozenset()
"""Features a log may ask of its readers that this release understands."""
KNOWN_WRITE_FEATURES: frozenset[str] = frozenset()
"""Features a log may ask of its writers that this release understands."""
INT64_MAX = 2**63 - 1
INT64_MIN = -(2**63)
MAX_TEXT = 4096
_TRAILER = b',"crc":'
_TRAILER_BYTES = len(_TRAILER) + len("4294967295}\n")


def encode(document: Mapping[str, object]) -> bytes:
    """Canonical bytes of an object, its own CRC last."""
    body = json.dumps(document, separators=(",", ":"), ensure_ascii=True, allow_nan=False).encode("ascii")[:-1]
    if len(body) > MAX_DOCUMENT - _TRAILER_BYTES:
        raise BadRequest(
            f"an object of {len(body)} bytes is not written, at most {MAX_DOCUMENT} are; write less at once"
        )
    return b"%s%s%d}\n" % (body, _TRAILER, crc32c.crc32c(body))


def decode(data: bytes, key: str, what: str) -> Fields:
    """The object in `data`, CRC and format version checked.

    `BadRequest` if a newer release wrote it (format version or read features); `Corrupt` naming `key` if it is damaged.
    """
    try:
        document = json.loads(data)
    except (ValueError, RecursionError):
        raise Corrupt(f"{what} is not the JSON it was written as; restore it", file=key) from None
    if not isinstance(document, dict):
        raise Corrupt(f"{what} should be a JSON object, found {type(document).__name__}; restore it", file=key)
    fields = Fields(document, key, what)
    version = fields.integer("format", 0)
    if version != FORMAT:
        raise BadRequest(f"{what} {key} has format {version}, this sparklog reads format {FORMAT}; upgrade sparklog")
    if not checksum_holds(data):
        raise Corrupt(f"{what} does not match its own CRC-32C; restore it", file=key)
    unknown = sorted(set(fields.texts("readFeatures")) - KNOWN_READ_FEATURES)
    if unknown:
        raise BadRequest(f"{what} {key} needs the sparklog features {', '.join(unknown)} to be read; upgrade sparklog")
    return fields


def checksum_holds(data: bytes) -> bool:
    """Whether an object's bytes end in their own CRC-32C. All of them count, the last newline too: the next commit's
    prevCrc covers them.
    """
    cut = data.rfind(_TRAILER)
    return cut >= 0 and data[cut:] == b"%s%d}\n" % (_TRAILER, crc32c.crc32c(data[:cut]))


class Fields:
    """Strict access to the members of one JSON object: one missing or of a wrong type is `Corrupt`."""

    __slots__ = ("document", "key", "what")

    def __init__(self, document: dict[str, Any], key: str, what: str) -> None:
        self.document = document
        self.key = key
        self.what = what

    def bad(self, name: str, expected: str) -> Corrupt:
        """The error for one member."""
        found = repr(self.document.get(name))[:60]
        return Corrupt(f"{self.what}: {name} should be {expected}, found {found}; restore it", file=self.key)

    def only(self, names: frozenset[str]) -> None:
        """Refuse members that are not known: they may mean something, and dropping them could lose it."""
        extra = self.document.keys() - names
        if extra:
            raise Corrupt(
                f"{self.what}: unknown members {', '.join(sorted(extra))[:200]}; upgrade sparklog", file=self.key
            )

    def has(self, name: str) -> bool:
        return name in self.document

    def integer(self, name: str, low: int = INT64_MIN, high: int = INT64_MAX) -> int:
        value = self.document.get(name)
        if type(value) is not int or not low <= value <= high:
            raise self.bad(name, f"a whole number from {low} to {high}")
        return value

    def optional(self, name: str, low: int = INT64_MIN, high: int = INT64_MAX) -> int | None:
        return None if self.document.get(name) is None else self.integer(name, low, high)

    def boolean(self, name: str) -> bool:
        value = self.document.get(name)
        if type(value) is not bool:
            raise self.bad(name, "true or false")
        return value

    def text(self, name: str) -> str:
        value = self.document.get(name)
        if not isinstance(value, str) or len(value) > MAX_TEXT:
            raise self.bad(name, f"text of at most {MAX_TEXT} characters")
        return value

    def optional_text(self, name: str) -> str | None:
        return None if self.document.get(name) is None else self.text(name)

    def texts(self, name: str) -> tuple[str, ...]:
        values = self.document.get(name)
        if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
            raise self.bad(name, "a list of texts")
        return tuple(values)

    def integers(
        self, name: str, length: int | None = None, low: int = INT64_MIN, high: int = INT64_MAX
    ) -> tuple[int, ...]:
        values = self.document.get(name)
        if not isinstance(values, list) or (length is not None and len(values) != length):
            raise self.bad(name, "a list of whole numbers" if length is None else f"a list of {length} whole numbers")
        if values and (set(map(type, values)) != {int} or min(values) < low or max(values) > high):
            raise self.bad(name, f"a list of whole numbers from {low} to {high}")
        return tuple(values)

    def objects(self, name: str) -> list[Fields]:
        """A list of objects; absent is empty."""
        values = self.document.get(name, [])
        if not isinstance(values, list) or not all(isinstance(value, dict) for value in values):
            raise self.bad(name, "a list of objects")
        return [Fields(value, self.key, f"{self.what}: {name}") for value in values]

    def object(self, name: str) -> Fields:
        value = self.document.get(name)
        if not isinstance(value, dict):
            raise self.bad(name, "an object")
        return Fields(value, self.key, f"{self.what}: {name}")

    def mapping(self, name: str) -> dict[str, Any]:
        """An object whose members are data; absent is empty."""
        value = self.document.get(name, {})
        if not isinstance(value, dict):
            raise self.bad(name, "an object")
        return value

    def numbers_by_text(self, name: str, low: int = 0) -> dict[str, int]:
        """`{"text": number}`; absent is empty."""
        values = self.mapping(name)
        if any(type(value) is not int or not low <= value <= INT64_MAX for value in values.values()):
            raise self.bad(name, f"an object of whole numbers of at least {low}")
        return values

    def numbers_by_partition(self, name: str, high: int) -> dict[int, int]:
        """`{"3": number}` with partitions below `high`; absent is empty."""
        values = self.numbers_by_text(name)
        if any(not (key.isascii() and key.isdigit() and len(key) <= 10 and int(key) < high) for key in values):
            raise self.bad(name, f"an object whose keys are partitions below {high}")
        return {int(key): value for key, value in values.items()}


def by_text(values: Mapping[int, int] | Sequence[tuple[int, int]]) -> dict[str, int]:
    """Partition numbers as the keys of a JSON object, in order."""
    pairs = values.items() if isinstance(values, Mapping) else values
    return {str(key): value for key, value in sorted(pairs)}


def peek_commit_id(data: bytes) -> str | None:
    """Read the commit id of bytes that may be a commit or an entry, without judging the rest. None if there is none."""
    try:
        document = json.loads(data)
    except (ValueError, RecursionError):
        return None
    found = document.get("commitId") if isinstance(document, dict) else None
    return found if isinstance(found, str) else None
