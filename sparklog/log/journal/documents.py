"""JSON objects of the log: one table of members each, canonical bytes that end in their own CRC-32C, strict reading.

    {"format":1,...,"crc":305419896}\\n

`crc` is the CRC-32C of the bytes before `,"crc":`. It tells a damaged object at once, also the newest commit, which no
successor's `prevCrc` covers yet. Bytes are canonical (fixed order of members, no spaces, ASCII), so equal values are
equal bytes.

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
# Features a log may ask of its readers, or of its writers, that this release understands.
INLINE_RECORDS = "inlineRecords"
"""Commits may have a tail, an append file's bytes; paths of data files may be those of commits."""
CARRIED_COMMITS = "carriedCommits"
"""Commits may carry the documents of those before them, between their own and their records."""
KAFKA_WRITERS = "kafkaWriters"
"""Commits may have several writers, producers of Kafka's: software that does not know them would write twice."""
GROUP_MEMBERS = "groupMembers"
"""Entries of a group may have members that share its partitions."""
LISTED_OWNERS = "listedOwners"
"""An exclusive owner of a group may be in its list of members, with other assignors, and beside other members."""
EXPIRED_IDS = "expiredIds"
"""Of a transactional id that has expired the newest entry alone is kept, in a register."""
ESCAPED_TOPICS = "escapedTopics"
"""A transactional id has committed to a topic with an escaped folder name, which older releases do not find."""
KNOWN_READ_FEATURES: frozenset[str] = frozenset(
    {INLINE_RECORDS, CARRIED_COMMITS, KAFKA_WRITERS, GROUP_MEMBERS, LISTED_OWNERS, EXPIRED_IDS, ESCAPED_TOPICS}
)
KNOWN_WRITE_FEATURES: frozenset[str] = KNOWN_READ_FEATURES
INT64_MAX = 2**63 - 1
INT64_MIN = -(2**63)
MAX_TEXT = 4096
FOLLOWING = ("carried", "inline")
"""Members of a commit's document that say what follows it, in this order: `bytes` and `crc` of each part."""
INT32_MAX = 2**31 - 1
UINT32_MAX = 2**32 - 1
T = TypeVar("T")
_LEFT_OUT: tuple[object, ...] = (None, (), {}, [], frozenset())
"""Values of optional members that are not written."""
_parse = json.JSONDecoder().raw_decode
_text_of = json.JSONEncoder(separators=(",", ":"), ensure_ascii=True, allow_nan=False).encode
"""`json.loads` and `json.dumps`, without a look for options and other encodings."""
_TRAILER = b',"crc":'
_TRAILER_BYTES = len(_TRAILER) + len("4294967295}\n")


def encode(document: Mapping[str, object]) -> bytes:
    """Canonical bytes of an object, its own CRC last."""
    body = _text_of(document).encode("ascii")[:-1]
    if len(body) > MAX_DOCUMENT - _TRAILER_BYTES:
        size = len(body)
        raise BadRequest(f"an object of {size} bytes is not written, at most {MAX_DOCUMENT} are; write less at once")
    return b"%s%s%d}\n" % (body, _TRAILER, crc32c.crc32c(body))


def decode(data: bytes, key: str, what: str) -> Fields:
    """Return the object in `data`. `BadRequest` if a newer release wrote it; `Corrupt` naming `key` if damaged."""
    try:
        text = data.decode()
        document, end = _parse(text)
        if text[end:].strip():
            raise ValueError(text)
    except (ValueError, RecursionError):
        raise Corrupt(f"{what} is not the JSON it was written as; restore it", file=key) from None
    if not isinstance(document, dict):
        raise Corrupt(f"{what} should be a JSON object, found {type(document).__name__}; restore it", file=key)
    fields = Fields(document, key, what)
    version, is_sound = fields.integer("format", 0), checksum_holds(data)
    # A newer release may end its objects in another way. Else a wrong CRC comes first: the format may be the damage.
    if version != FORMAT and (is_sound or _TRAILER not in data):
        raise BadRequest(f"{what} {key} has format {version}, this sparklog reads format {FORMAT}; upgrade sparklog")
    if not is_sound:
        raise Corrupt(f"{what} does not match its own CRC-32C; restore it", file=key)
    features = fields.texts("readFeatures")
    if not KNOWN_READ_FEATURES.issuperset(features):
        unknown = ", ".join(sorted(set(features) - KNOWN_READ_FEATURES))
        raise BadRequest(f"{what} {key} needs the sparklog features {unknown} to be read; upgrade sparklog")
    return fields


def checksum_holds(data: bytes) -> bool:
    """True if an object's bytes, the last newline included, end in their own CRC-32C."""
    cut = data.rfind(_TRAILER)
    return cut >= 0 and data[cut:] == b"%s%d}\n" % (_TRAILER, crc32c.crc32c(data[:cut]))


@dataclass(slots=True)
class Fields:
    """Strict access to the members of one JSON object: one missing or of a wrong type is `Corrupt`."""

    document: dict[str, Any]
    key: str
    what: str

    def bad(self, name: str, expected: str) -> Corrupt:
        """The error for one member."""
        value = repr(self.document.get(name))[:60]
        return Corrupt(f"{self.what}: {name} should be {expected}, found {value}; restore it", file=self.key)

    def only(self, names: frozenset[str]) -> None:
        """Refuse members that are not known: they may mean something, and dropping them could lose it."""
        if not self.document.keys() <= names:
            listed = ", ".join(sorted(self.document.keys() - names))[:200]
            raise Corrupt(f"{self.what}: unknown members {listed}; upgrade sparklog", file=self.key)

    def integer(self, name: str, low: int = INT64_MIN, high: int = INT64_MAX) -> int:
        value = self.document.get(name)
        if type(value) is not int or not low <= value <= high:
            raise self.bad(name, f"a whole number from {low} to {high}")
        return value

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

    def texts(self, name: str) -> tuple[str, ...]:
        values = self.document.get(name)
        if not isinstance(values, list) or not set(map(type, values)) <= {str}:
            raise self.bad(name, "a list of texts")
        return tuple(values)

    def integers(self, name: str, length: int | None, low: int, high: int = INT64_MAX) -> tuple[int, ...]:
        values = self.document.get(name)
        if not isinstance(values, list) or (length is not None and len(values) != length):
            raise self.bad(name, "a list of whole numbers" if length is None else f"a list of {length} whole numbers")
        if values and (set(map(type, values)) != {int} or min(values) < low or max(values) > high):
            raise self.bad(name, f"a list of whole numbers from {low} to {high}")
        return tuple(values)

    def objects(self, name: str) -> list[Fields]:
        """A list of objects; absent is empty."""
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


@dataclass(frozen=True, slots=True)
class MemberKind:
    """The type of a member: `read(item, name)` checks and returns it, `write` makes JSON of it (None: as it is).

    Most members are good, and read without a call (`_read`): whole numbers from `low` to `high` where `plain` is `int`,
    texts of such a length (`str`), lists of one such number (`list`). `read` is asked for all others.
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
    """A list of whole numbers, as long as member `like`, a list before it. `high` None: `check` knows the limit."""
    most = INT64_MAX if high is None else high

    def read(item: Fields, name: str) -> tuple[int, ...]:
        return item.integers(name, None if like is None else len(item.document[like]), low, most)

    return MemberKind(read, None, list, low, most)


def one_of(*values: str, nullable: bool = False) -> MemberKind:
    """One of these texts; `nullable`: of a member that may be null."""

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
    """`{"text": number}`; absent is empty."""
    return MemberKind(lambda item, name: item.numbers_by_text(name, low), _sorted)


def numbers_by_partition(high: int) -> MemberKind:
    """`{"3": number}` with partitions below `high`; absent is empty."""

    def read(item: Fields, name: str) -> dict[int, int]:
        values = item.numbers_by_text(name)
        if any(not (key.isascii() and key.isdigit() and len(key) <= 10 and int(key) < high) for key in values):
            raise item.bad(name, f"an object whose keys are partitions below {high}")
        return {int(key): value for key, value in values.items()}

    return MemberKind(read, lambda values: {str(partition): value for partition, value in sorted(values.items())})


def texts_by_text(nullable: bool = False) -> MemberKind:
    """`{"text": "text"}`, or null where that may be."""

    def read(item: Fields, name: str) -> dict[str, str | None]:
        values = item.mapping(name)
        if not all(isinstance(value, str) or (nullable and value is None) for value in values.values()):
            raise item.bad(name, "an object of texts" + (" or nulls" if nullable else ""))
        return values

    return MemberKind(read, _sorted)


def object_of(table: Document[Any]) -> MemberKind:
    return MemberKind(lambda item, name: table.from_json(item.object(name)), table.to_json)


def objects_of(table: Document[Any]) -> MemberKind:
    """A list of JSON objects; absent is empty."""
    return MemberKind(
        lambda item, name: tuple(map(table.from_json, item.objects(name))),
        lambda values: list(map(table.to_json, values)),
    )


def objects_by_text(table: Document[Any], nullable: bool = False) -> MemberKind:
    """`{"text": object}`, or null where that may be; absent is empty."""

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
    """A member of a JSON object."""

    name: str
    kind: MemberKind
    attribute: str = ""  # of the data class; by default the name in snake case
    nullable: bool = False  # None is written as null
    optional: bool = False  # left out where it is None or empty, and then at its default


def members(kind: MemberKind, *names: str, nullable: bool = False, optional: bool = False) -> tuple[Member, ...]:
    """Return members of one kind that follow one another."""
    return tuple(Member(name, kind, nullable=nullable, optional=optional) for name in names)


_Readers = list[tuple[str, str, MemberKind]]
"""Of each attribute the member that it is in, and the kind of that."""
_Shape = tuple[_Readers, list[tuple[str, Callable[..., Any], _Readers]]]
"""How to read an object with certain members, all of them known: its attributes, and those that are inline objects."""
MOST_SHAPES = 256
"""Objects have few sets of members; damaged ones may have any."""


class Document(Generic[T]):
    """The table of a JSON object: its members, two or more, in the order in which they are written.

    Args:
        make: the data class, called with the attributes by name
        inline: attributes that are objects, whose members come last, all or (None) none of them
        parts: an object's attributes in the order of `members`, where they are not simply attributes
        check: reads members again whose range depends on others
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
        assert len(attributes) > 1, "attrgetter gives no tuple of one"
        self._make = make
        self._parts = parts or attrgetter(*attributes)
        self._check = check
        self._inline = tuple((inline or {}).items())
        # Plain tuples: an append and each look of a reader go through these.
        self._writers = [(member.name, member.kind.write, member.optional) for member in members]
        kinds = [_or_null(member.kind) if member.nullable else member.kind for member in members]
        self._members = list(zip(attributes, members, kinds, strict=True))
        self._shapes: dict[tuple[str, ...], _Shape] = {}
        """By the members of an object: most have more that are optional than they have members."""
        self.names = tuple(member.name for member in members)
        self.names += tuple(name for _, table in self._inline for name in table.names)
        self._known = frozenset(self.names)

    def to_json(self, value: T) -> dict[str, Any]:
        document: dict[str, Any] = {}
        for (name, write, optional), item in zip(self._writers, self._parts(value), strict=True):
            if not (optional and not item and item in _LEFT_OUT):
                document[name] = item if write is None or item is None else write(item)
        for attribute, table in self._inline:
            item = getattr(value, attribute)
            if item is not None:
                document.update(table.to_json(item))
        return document

    def from_json(self, item: Fields, **others: Any) -> T:
        """Return the value of a JSON object, with attributes that are `known` otherwise. `Corrupt` if it is damaged."""
        value = self._make(**others, **self.attributes(item))
        if self._check is not None:
            self._check(item, value)
        return value

    def attributes(self, item: Fields) -> dict[str, Any]:
        """Return the attributes in a JSON object, by name, for a caller that makes the value. `Corrupt`: damaged."""
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
        if len(self._shapes) >= MOST_SHAPES:
            self._shapes.clear()
        self._shapes[names] = shape = self._readers_of(names), inlined
        return shape

    def _readers_of(self, names: tuple[str, ...]) -> _Readers:
        wanted = [item for item in self._members if not item[1].optional or item[1].name in names]
        return [(attribute, member.name, kind) for attribute, member, kind in wanted]


def _read(item: Fields, readers: _Readers) -> dict[str, Any]:
    document, values, single = item.document, dict[str, Any](), True
    for attribute, name, kind in readers:
        if name not in document or type(value := document[name]) is not kind.plain:
            value = kind.read(item, name)
        elif kind.plain is list:
            # One partition, one slice: so are most lists. Those after the first are as long as that.
            single = single and len(value) == 1 and type(value[0]) is int and kind.low <= value[0] <= kind.high
            value = (value[0],) if single else kind.read(item, name)
        elif not kind.low <= (value if kind.plain is int else len(value)) <= kind.high:
            value = kind.read(item, name)
        values[attribute] = value
    return values


def _or_null(kind: MemberKind) -> MemberKind:
    return replace(kind, read=lambda item, name: None if item.document.get(name) is None else kind.read(item, name))


class StoredDocument(Document[T]):
    """The table of an object with bytes of its own; read features are none where they are not among the members."""

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
        """Return the value in `data`. `BadRequest` if it needs a newer sparklog; `Corrupt` naming `key` if damaged."""
        return self.from_json(self.fields(data, key))


def _snake_case(name: str) -> str:
    return re.sub("[A-Z]", lambda capital: "_" + capital[0].lower(), name)


def document_of(data: bytes) -> bytes:
    """Return the document of a commit: its first line. Documents that it carries and its records may follow."""
    end = data.find(b"\n") + 1
    return data[:end] if 0 < end < len(data) else data


def following(document: Mapping[str, Any]) -> list[tuple[int, int]]:
    """Return length and CRC-32C of each part that follows a document, as far as it says so."""
    parts = [part for name in FOLLOWING if isinstance(part := document.get(name), dict)]
    numbers = ((part.get("bytes"), part.get("crc")) for part in parts)
    return [(nbytes, crc) for nbytes, crc in numbers if type(nbytes) is int and nbytes > 0 and type(crc) is int]


def check_stored(data: bytes, key: str) -> None:
    """Raise `Corrupt` unless an object of a log is as it was written: a document, and the parts that it names."""
    text = document_of(data)
    start = len(text)
    for nbytes, crc in following(decode(text, key, "entry").document):
        if crc32c.crc32c(data[start : start + nbytes]) != crc:
            break
        start += nbytes
    else:
        if start == len(data):
            return
    raise Corrupt("what follows the document of a commit does not match its CRC-32C; restore it", file=key)


def peek_commit_id(data: bytes) -> str | None:
    """Read the commit id of bytes, without judging the rest; None also of a commit that lacks its end."""
    text = document_of(data)
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(document, dict):
        return None
    commit_id = document.get("commitId")
    is_whole = len(data) - len(text) == sum(nbytes for nbytes, _ in following(document))
    return commit_id if isinstance(commit_id, str) and is_whole else None
