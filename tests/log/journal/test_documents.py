"""Tables of JSON objects: written and omitted fields, decoding, and rejected objects."""

from __future__ import annotations

import json
from dataclasses import dataclass

import pytest

from sparklog.errors import BadRequest, Corrupt
from sparklog.log.journal.documents import (
    TEXT,
    TEXTS,
    Document,
    Fields,
    Member,
    StoredDocument,
    encode,
    objects_by_text,
    objects_of,
    one_of,
    whole,
    wholes,
)


@dataclass(frozen=True)
class Size:
    nbytes: int
    unit: str


@dataclass(frozen=True)
class Box:
    first_number: int
    last: int
    color: str | None = None
    parts: tuple[int, ...] = ()
    size: Size | None = None


SIZE_JSON = Document(Size, Member("bytes", whole(0), "nbytes"), Member("unit", TEXT))
BOX_JSON = Document(
    Box,
    Member("firstNumber", whole(0)),
    Member("last", whole(0)),
    Member("color", one_of("red", "blue", nullable=True), nullable=True),
    Member("parts", wholes(0, 9), optional=True),
    inline={"size": SIZE_JSON},
    check=lambda item, box: item.integer("last", box.first_number),
)


def read(document: dict[str, object]) -> Box:
    return BOX_JSON.from_json(Fields(document, "the-key", "box"))


@pytest.mark.parametrize(
    ("box", "document"),
    [
        (Box(1, 2), {"firstNumber": 1, "last": 2, "color": None}),
        (Box(1, 2, "red", (3,)), {"firstNumber": 1, "last": 2, "color": "red", "parts": [3]}),
        (Box(0, 0, size=Size(7, "B")), {"firstNumber": 0, "last": 0, "color": None, "bytes": 7, "unit": "B"}),
    ],
)
def test_a_value_survives_encoding_and_decoding(box: Box, document: dict[str, object]) -> None:
    assert json.loads(json.dumps(BOX_JSON.to_json(box))) == document
    assert list(BOX_JSON.to_json(box)) == list(document)
    assert read(document) == box


def test_names_are_the_fields_in_their_order() -> None:
    assert BOX_JSON.names == ("firstNumber", "last", "color", "parts", "bytes", "unit")
    stored = StoredDocument("box", Box, Member("firstNumber", whole()), Member("last", whole()))
    assert stored.names == ("format", "readFeatures", "firstNumber", "last", "crc")
    own = StoredDocument("box", Box, Member("readFeatures", TEXTS), Member("last", whole()))
    assert own.names == ("format", "readFeatures", "last", "crc")


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"firstNumber": -1}, "box: firstNumber must be an integer from 0 to 9223372036854775807, found -1"),
        ({"firstNumber": True}, "firstNumber must be an integer"),
        ({"last": 0}, "box: last must be an integer from 1 to"),
        ({"color": "green"}, "box: color must be null or one of red, blue, found 'green'"),
        ({"parts": [10]}, "box: parts must be a list of integers from 0 to 9"),
        ({"parts": None}, "box: parts must be a list of integers, found None"),
        ({"bytes": 7}, "box: unit must be a string of at most 4096 characters"),
        ({"width": 1}, "box: unknown fields width; upgrade sparklog"),
    ],
)
def test_an_invalid_field_is_reported_with_its_file(change: dict[str, object], expected: str) -> None:
    with pytest.raises(Corrupt) as error:
        read({"firstNumber": 1, "last": 2, "color": None, **change})
    assert expected in str(error.value)
    assert error.value.file == "the-key"


def test_fields_of_nested_objects_are_reported_with_their_path() -> None:
    boxes = Document(
        lambda **members: members,
        Member("list", objects_of(BOX_JSON)),
        Member("byName", objects_by_text(BOX_JSON, nullable=True)),
        parts=lambda members: members.values(),
    )
    document = boxes.to_json({"list": (Box(1, 2),), "byName": {"b": None, "a": Box(3, 4)}})
    assert list(document["byName"]) == ["a", "b"]
    assert boxes.from_json(Fields(document, "k", "boxes")) == {
        "list": (Box(1, 2),),
        "by_name": {"a": Box(3, 4), "b": None},
    }
    document["byName"]["a"]["last"] = "x"
    with pytest.raises(Corrupt, match=r"boxes: byName: a: last must be an integer"):
        boxes.from_json(Fields(document, "k", "boxes"))


def test_a_stored_object_has_a_format_and_its_crc() -> None:
    stored = StoredDocument("size", Size, Member("bytes", whole(0), "nbytes"), Member("unit", TEXT))
    data = stored.encode(Size(7, "B"))
    assert data == encode({"format": 1, "readFeatures": [], "bytes": 7, "unit": "B"})
    assert stored.decode(data, "k") == Size(7, "B")
    with pytest.raises(Corrupt, match="size does not match its CRC-32C"):
        stored.decode(data.replace(b"7", b"8"), "k")
    newer = encode({"format": 1, "readFeatures": ["tiers"], "bytes": 7, "unit": "B"})
    with pytest.raises(BadRequest, match="reading size k requires the sparklog features tiers"):
        stored.decode(newer, "k")
    for later in (encode({"format": 9}), b'{"format":9,"sum":"..."}\n'):
        with pytest.raises(BadRequest, match="size k has format 9, but this release reads format 1; upgrade sparklog"):
            stored.decode(later, "k")
    with pytest.raises(Corrupt, match="size does not match its CRC-32C"):
        stored.decode(data.replace(b'"format":1', b'"format":9'), "k")
