r"""JSON objects of the log. Each kind of object has a table of its fields. Each object has canonical bytes and a
CRC-32C, and is validated strictly.

    {"format":1,...,"crc":305419896}\\n

`crc` is the CRC-32C of the bytes before `,"crc":`. It detects corruption even in the latest commit, which is not yet
covered by the `prevCrc` of a later commit. The bytes are canonical (fixed order of fields, no spaces, ASCII), so equal
values have equal bytes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Any, Generic, TypeVar

from sparklog.errors import BadRequest, Corrupt
from sparklog.format import crc32c
from sparklog.storage.store import MAX_DOCUMENT

FORMAT = 1
# Features that a log can require from its readers or writers, and that this release supports.
INLINE_RECORDS = "inlineRecords"
"""Commits may contain inline records, which are the bytes of an append file.

The path of a data file may therefore be the path of a commit.
"""
CARRIED_COMMITS = "carriedCommits"
"""Commits may contain copies of the documents of earlier commits, between their own document and their inline records.
"""
KAFKA_WRITERS = "kafkaWriters"
"""Commits may have several Kafka producers as writers. Releases that ignore this feature would write batches twice."""
GROUP_MEMBERS = "groupMembers"
"""Group entries may have members, which share the group's partitions."""
LISTED_OWNERS = "listedOwners"
"""The list of group members may contain an exclusive owner with other assignors, in addition to other members."""
CONSUMER_PROTOCOL = "consumerProtocol"
"""The list of group members may contain members that use the consumer protocol (KIP-848). A server assigns their
partitions.
"""
EXPIRED_IDS = "expiredIds"
"""Only the latest entry of an expired transactional id is kept, in an archive."""
ESCAPED_TOPICS = "escapedTopics"
"""A transactional id has committed to a topic with an escaped directory name, which older releases do not find."""
KNOWN_READ_FEATURES: frozenset[str] = frozenset(
    {
        *(INLINE_RECORDS, CARRIED_COMMITS, KAFKA_WRITERS, GROUP_MEMBERS, LISTED_OWNERS, CONSUMER_PROTOCOL),
        *(EXPIRED_IDS, ESCAPED_TOPICS),
    }
)
KNOWN_WRITE_FEATURES: frozenset[str] = KNOWN_READ_FEATURES
INT64_MAX = 2**63 - 1
INT64_MIN = -(2**63)
MAX_TEXT = 4096
FOLLOWING_PARTS = ("carried", "inline")
"""Fields of a commit's document that describe the parts after the document, in the order of the parts. Each field
contains `bytes` and `crc`.
"""
INT32_MAX = 2**31 - 1
UINT32_MAX = 2**32 - 1
T = TypeVar("T")
_OMITTED: tuple[object, ...] = (None, (), {}, [], frozenset())
"""Values of optional fields that are omitted."""
_parse = json.JSONDecoder().raw_decode
_text_of = json.JSONEncoder(separators=(",", ":"), ensure_ascii=True, allow_nan=False).encode
"""`raw_decode` and `encode` are called directly, because `json.loads` and `json.dumps` also check options and
encodings.
"""
_TRAILER = b',"crc":'
_TRAILER_BYTES = len(_TRAILER) + len("4294967295}\n")


def encode(document: Mapping[str, object]) -> bytes:
    """Return the canonical bytes of an object. The CRC-32C is the last field."""
    body = _text_of(document).encode("ascii")[:-1]
    if len(body) > MAX_DOCUMENT - _TRAILER_BYTES:
        size = len(body)
        raise BadRequest(
            f"the object size {size} exceeds the maximum {MAX_DOCUMENT}; write fewer records or changes in one commit"
        )
    return b"%s%s%d}\n" % (body, _TRAILER, crc32c.crc32c(body))


def decode(data: bytes, key: str, what: str) -> Fields:
    """Decode the object in `data`. Raises `BadRequest` if the object requires a newer release, and `Corrupt` (with
    `key`) if it is damaged.
    """
    try:
        text = data.decode()
        document, end = _parse(text)
        if text[end:].strip():
            raise ValueError(text)
    except (ValueError, RecursionError):
        raise Corrupt(f"{what} is not valid JSON; restore it", file=key) from None
    if not isinstance(document, dict):
        raise Corrupt(f"{what} must be a JSON object, found {type(document).__name__}; restore it", file=key)
    fields = Fields(document, key, what)
    version, is_intact = fields.integer("format", 0), checksum_holds(data)
    # A newer format may end differently. For this format, the CRC-32C is checked first, because `format` may be
    # corrupt.
    if version != FORMAT and (is_intact or _TRAILER not in data):
        raise BadRequest(f"{what} {key} has format {version}, but this release reads format {FORMAT}; upgrade sparklog")
    if not is_intact:
        raise Corrupt(f"{what} does not match its CRC-32C; restore it", file=key)
    features = fields.texts("readFeatures")
    if not KNOWN_READ_FEATURES.issuperset(features):
        unknown = ", ".join(sorted(set(features) - KNOWN_READ_FEATURES))
        raise BadRequest(f"reading {what} {key} requires the sparklog features {unknown}; upgrade sparklog")
    return fields


def checksum_holds(data: bytes) -> bool:
    """Return True if the bytes of an object, including the final newline, end with their CRC-32C."""
    cut = data.rfind(_TRAILER)
    return cut >= 0 and data[cut:] == b"%s%d}\n" % (_TRAILER, crc32c.crc32c(data[:cut]))


@dataclass(slots=True)
class Fields:
    """Strict access to the fields of a JSON object. A missing field, or a field of the wrong type, raises `Corrupt`."""

    document: dict[str, Any]
    key: str
    what: str

    def bad(self, name: str, expected: str) -> Corrupt:
        """Return the error for an invalid field."""
        value = repr(self.document.get(name))[:60]
        return Corrupt(f"{self.what}: {name} must be {expected}, found {value}; restore it", file=self.key)

    def only(self, names: frozenset[str]) -> None:
        """Raise `Corrupt` if the object has unknown fields, because ignoring them could lose information."""
        if not self.document.keys() <= names:
            listed = ", ".join(sorted(self.document.keys() - names))[:200]
            raise Corrupt(f"{self.what}: unknown fields {listed}; upgrade sparklog", file=self.key)

    def integer(self, name: str, low: int = INT64_MIN, high: int = INT64_MAX) -> int:
        value = self.document.get(name)
        if type(value) is not int or not low <= value <= high:
            raise self.bad(name, f"an integer from {low} to {high}")
        return value

    def boolean(self, name: str) -> bool:
        value = self.document.get(name)
        if type(value) is not bool:
            raise self.bad(name, "true or false")
        return value

    def text(self, name: str) -> str:
        value = self.document.get(name)
        if not isinstance(value, str) or len(value) > MAX_TEXT:
            raise self.bad(name, f"a string of at most {MAX_TEXT} characters")
        return value

    def texts(self, name: str) -> tuple[str, ...]:
        values = self.document.get(name)
        if not isinstance(values, list) or not set(map(type, values)) <= {str}:
            raise self.bad(name, "a list of strings")
        return tuple(values)

    def integers(self, name: str, length: int | None, low: int, high: int = INT64_MAX) -> tuple[int, ...]:
        values = self.document.get(name)
        if not isinstance(values, list) or (length is not None and len(values) != length):
            raise self.bad(name, "a list of integers" if length is None else f"a list of {length} integers")
        if values and (set(map(type, values)) != {int} or min(values) < low or max(values) > high):
            raise self.bad(name, f"a list of integers from {low} to {high}")
        return tuple(values)

    def objects(self, name: str) -> list[Fields]:
        """Return a list of objects. The list is empty if the field is absent."""
        values = self.document.get(name, [])
        if not isinstance(values, list) or not set(map(type, values)) <= {dict}:
            raise self.bad(name, "a list of objects")
        return [Fields(value, self.key, f"{self.what}: {name}") for value in values]

    def object(self, name: str) -> Fields:
        value = self.document.get(name)
        if not isinstance(value, dict):
            raise self.bad(name, "an object")
        return Fields(value, self.key, f"{self.what}: {name}")

    def mapping(self, name: str) -> dict[str, Any]:
        """Return an object with arbitrary keys. The object is empty if the field is absent."""
        value = self.document.get(name, {})
        if not isinstance(value, dict):
            raise self.bad(name, "an object")
        return value

    def numbers_by_text(self, name: str, low: int = 0) -> dict[str, int]:
        """Return an object that maps strings to integers. The object is empty if the field is absent."""
        values = self.mapping(name)
        if any(type(value) is not int or not low <= value <= INT64_MAX for value in values.values()):
            raise self.bad(name, f"an object of integers of at least {low}")
        return values


@dataclass(frozen=True, slots=True)
class MemberKind:
    """The type of a field.

    `read(item, name)` checks and returns the value. `write` converts the value to JSON. It is None if the value is
    written unchanged.

    `_read` reads most valid fields without calling `read`. If `plain` is `int`, these are integers from `low` to
    `high`. If `plain` is `str`, these are strings whose length is in this range. If `plain` is `list`, these are lists
    of one integer in this range. Other values are passed to `read`.
    """

    read: Callable[[Fields, str], Any]
    write: Callable[[Any], object] | None = None
    plain: type[Any] | None = None
    low: int = 0
    high: int = 0


TEXT = MemberKind(Fields.text, plain=str, high=MAX_TEXT)
TEXTS = MemberKind(Fields.texts, list)
BOOLEAN = MemberKind(Fields.boolean)


def whole(low: int = INT64_MIN, high: int = INT64_MAX) -> MemberKind:
    return MemberKind(lambda item, name: item.integer(name, low, high), None, int, low, high)


def wholes(low: int = INT64_MIN, high: int | None = INT64_MAX, like: str | None = None) -> MemberKind:
    """Return the type of a list of integers that has the same length as the list `like`.

    If `high` is None, `check` validates the maximum values.
    """
    max_value = INT64_MAX if high is None else high

    def read(item: Fields, name: str) -> tuple[int, ...]:
        return item.integers(name, None if like is None else len(item.document[like]), low, max_value)

    return MemberKind(read, None, list, low, max_value)


def one_of(*values: str, nullable: bool = False) -> MemberKind:
    """Return the type of a string that is one of `values`. If `nullable` is true, the field may be null."""

    def read(item: Fields, name: str) -> str:
        value = item.document.get(name)
        if value not in values:
            item.text(name)
            raise item.bad(name, f"{'null or ' if nullable else ''}one of {', '.join(values)}")
        return str(value)

    return MemberKind(read)


def _sorted(values: Mapping[str, Any]) -> dict[str, Any]:
    return dict(sorted(values.items()))


def numbers_by_text(low: int = 0) -> MemberKind:
    """Return the type of an object that maps strings to integers. The object is empty if the field is absent."""
    return MemberKind(lambda item, name: item.numbers_by_text(name, low), _sorted)


def numbers_by_partition(high: int) -> MemberKind:
    """Return the type of an object that maps partitions below `high` to integers. The object is empty if the field is
    absent.
    """

    def read(item: Fields, name: str) -> dict[int, int]:
        values = item.numbers_by_text(name)
        if any(not (key.isascii() and key.isdigit() and len(key) <= 10 and int(key) < high) for key in values):
            raise item.bad(name, f"an object whose keys are partitions below {high}")
        return {int(key): value for key, value in values.items()}

    return MemberKind(read, lambda values: {str(partition): value for partition, value in sorted(values.items())})


def texts_by_text(nullable: bool = False) -> MemberKind:
    """Return the type of an object that maps strings to strings. If `nullable` is true, values may be null."""

    def read(item: Fields, name: str) -> dict[str, str | None]:
        values = item.mapping(name)
        if not all(isinstance(value, str) or (nullable and value is None) for value in values.values()):
            raise item.bad(name, "an object of strings" + (" or nulls" if nullable else ""))
        return values

    return MemberKind(read, _sorted)


def object_of(table: Document[Any]) -> MemberKind:
    return MemberKind(lambda item, name: table.from_json(item.object(name)), table.to_json)


def objects_of(table: Document[Any]) -> MemberKind:
    """Return the type of a list of JSON objects. The list is empty if the field is absent."""
    return MemberKind(
        lambda item, name: tuple(map(table.from_json, item.objects(name))),
        lambda values: list(map(table.to_json, values)),
    )


def objects_by_text(table: Document[Any], nullable: bool = False) -> MemberKind:
    """Return the type of an object that maps strings to objects. The object is empty if the field is absent.

    If `nullable` is true, values may be null.
    """

    def read(item: Fields, name: str) -> dict[str, Any]:
        members = Fields(item.mapping(name), item.key, f"{item.what}: {name}")
        return {
            text: None if nullable and value is None else table.from_json(members.object(text))
            for text, value in members.document.items()
        }

    def write(values: Mapping[str, Any]) -> dict[str, object]:
        return {text: None if value is None else table.to_json(value) for text, value in sorted(values.items())}

    return MemberKind(read, write)


@dataclass(frozen=True, slots=True)
class Member:
    """A field of a JSON object."""

    name: str
    kind: MemberKind
    attribute: str = ""  # attribute of the data class; the default is the name in snake case
    nullable: bool = False  # None is written as null
    optional: bool = False  # omitted if None or empty; if the field is absent, the attribute has its default


def members(kind: MemberKind, *names: str, nullable: bool = False, optional: bool = False) -> tuple[Member, ...]:
    """Return consecutive fields of one type."""
    return tuple(Member(name, kind, nullable=nullable, optional=optional) for name in names)


_Readers = list[tuple[str, str, MemberKind]]
"""The attribute, name and type of each field to read."""
_Shape = tuple[_Readers, list[tuple[str, Callable[..., Any], _Readers]]]
"""The fields to read from an object, and the attributes that are inline objects. A shape applies to all objects with
the same set of fields.
"""
MAX_SHAPES = 256
"""Maximum number of cached shapes. Valid objects have few different sets of fields, but corrupt objects may have any
set of fields.
"""


class Document(Generic[T]):
    """The fields of a kind of JSON object, in the order in which they are written. There must be at least two fields.

    Args:
        make: The data class, which is called with the attributes as keyword arguments.
        inline: Attributes that are objects. Their fields come last, and are absent if the attribute is None.
        parts: Returns the attributes of a value in the order of `members`. By default, the attributes are read by name.
        check: Checks fields whose valid range depends on other fields.
    """

    def __init__(
        self,
        make: Callable[..., T],
        *members: Member,
        inline: Mapping[str, Document[Any]] | None = None,
        parts: Callable[[T], Iterable[Any]] | None = None,
        check: Callable[[Fields, T], object] | None = None,
    ) -> None:
        attributes = [member.attribute or _snake_case(member.name) for member in members]
        assert len(attributes) > 1, "attrgetter returns no tuple for one attribute"
        self._make = make
        self._parts = parts or attrgetter(*attributes)
        self._check = check
        self._inline = tuple((inline or {}).items())
        # Plain tuples are used for speed, because each append and each poll of a reader uses them.
        self._writers = [(member.name, member.kind.write, member.optional) for member in members]
        kinds = [_or_null(member.kind) if member.nullable else member.kind for member in members]
        self._members = list(zip(attributes, members, kinds, strict=True))
        self._shapes: dict[tuple[str, ...], _Shape] = {}
        """Cached shapes by the field names of an object. Most objects have few field names, because most optional
        fields are absent.
        """
        self.names = tuple(member.name for member in members)
        self.names += tuple(name for _, table in self._inline for name in table.names)
        self._known = frozenset(self.names)

    def to_json(self, value: T) -> dict[str, Any]:
        document: dict[str, Any] = {}
        for (name, write, optional), item in zip(self._writers, self._parts(value), strict=True):
            if not (optional and not item and item in _OMITTED):
                document[name] = item if write is None or item is None else write(item)
        for attribute, table in self._inline:
            item = getattr(value, attribute)
            if item is not None:
                document.update(table.to_json(item))
        return document

    def from_json(self, item: Fields, **others: Any) -> T:
        """Return the value of a JSON object, with `others` as additional attributes.

        Raises `Corrupt` if the object is damaged.
        """
        value = self._make(**others, **self.attributes(item))
        if self._check is not None:
            self._check(item, value)
        return value

    def attributes(self, item: Fields) -> dict[str, Any]:
        """Return the attributes of a JSON object by name. The caller creates the value."""
        shape = self._shapes.get(tuple(item.document))
        if shape is None:
            item.only(self._known)
            shape = self._shape_of(tuple(item.document))
        readers, inlined = shape
        values = _read(item, readers)
        for attribute, make, readers in inlined:
            values[attribute] = make(**_read(item, readers))
        return values

    def _shape_of(self, names: tuple[str, ...]) -> _Shape:
        tables = [pair for pair in self._inline if not set(names).isdisjoint(pair[1].names)]
        inlined = [(attribute, table._make, table._readers_of(names)) for attribute, table in tables]
        if len(self._shapes) >= MAX_SHAPES:
            self._shapes.clear()
        self._shapes[names] = shape = self._readers_of(names), inlined
        return shape

    def _readers_of(self, names: tuple[str, ...]) -> _Readers:
        present = [item for item in self._members if not item[1].optional or item[1].name in names]
        return [(attribute, member.name, kind) for attribute, member, kind in present]


def _read(item: Fields, readers: _Readers) -> dict[str, Any]:
    document, values, single = item.document, dict[str, Any](), True
    for attribute, name, kind in readers:
        if name not in document or type(value := document[name]) is not kind.plain:
            value = kind.read(item, name)
        elif kind.plain is list:
            # Most lists have one item, because most commits have one slice. All lists have the length of the first
            # list.
            single = single and len(value) == 1 and type(value[0]) is int and kind.low <= value[0] <= kind.high
            value = (value[0],) if single else kind.read(item, name)
        elif not kind.low <= (value if kind.plain is int else len(value)) <= kind.high:
            value = kind.read(item, name)
        values[attribute] = value
    return values


def _or_null(kind: MemberKind) -> MemberKind:
    return replace(kind, read=lambda item, name: None if item.document.get(name) is None else kind.read(item, name))


class StoredDocument(Document[T]):
    """The fields of a JSON document that is stored as a separate object.

    If there is no field `readFeatures`, an empty list is written.
    """

    def __init__(self, what: str, make: Callable[..., T], *members: Member, **options: Any) -> None:
        super().__init__(make, *members, **options)
        self.what = what
        self._first: dict[str, object] = {"format": FORMAT}
        if "readFeatures" not in self.names:
            self._first["readFeatures"] = []
        self.names = (*self._first, *self.names, "crc")
        self._known = frozenset(self.names)

    def encode(self, value: T) -> bytes:
        return encode({**self._first, **self.to_json(value)})

    def fields(self, data: bytes, key: str) -> Fields:
        return decode(data, key, self.what)

    def decode(self, data: bytes, key: str) -> T:
        """Decode the value in `data`. Raises the errors of the function `decode`."""
        return self.from_json(self.fields(data, key))


def _snake_case(name: str) -> str:
    return re.sub("[A-Z]", lambda capital: "_" + capital[0].lower(), name)


def document_of(data: bytes) -> bytes:
    """Return the document of a commit, which is its first line.

    Copies of earlier commits and inline records may follow.
    """
    end = data.find(b"\n") + 1
    return data[:end] if 0 < end < len(data) else data


def following(document: Mapping[str, Any]) -> list[tuple[int, int]]:
    """Return the length and CRC-32C of each part that follows a document, as described in the document."""
    parts = [part for name in FOLLOWING_PARTS if isinstance(part := document.get(name), dict)]
    numbers = ((part.get("bytes"), part.get("crc")) for part in parts)
    return [(nbytes, crc) for nbytes, crc in numbers if type(nbytes) is int and nbytes > 0 and type(crc) is int]


def check_stored(data: bytes, key: str) -> None:
    """Raise `Corrupt` if the document of a stored object, or a part that the document describes, is damaged."""
    text = document_of(data)
    start = len(text)
    for nbytes, crc in following(decode(text, key, "entry").document):
        if crc32c.crc32c(data[start : start + nbytes]) != crc:
            break
        start += nbytes
    else:
        if start == len(data):
            return
    raise Corrupt("the data after the document of a commit does not match its CRC-32C; restore it", file=key)


def peek_commit_id(data: bytes) -> str | None:
    """Return the commit id in `data` without validating the commit. Return None if there is no id or the commit is
    truncated.
    """
    text = document_of(data)
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(document, dict):
        return None
    commit_id = document.get("commitId")
    is_complete = len(data) - len(text) == sum(nbytes for nbytes, _ in following(document))
    return commit_id if isinstance(commit_id, str) and is_complete else None
