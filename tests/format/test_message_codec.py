"""Test the codec of Kafka's messages: rejected values and bytes, and the special rules of a client's header."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest

from sparklog.errors import BadRequest, Corrupt
from sparklog.kafka.messages.message_codec import (
    MessageBytes,
    decode,
    decode_prefix,
    encode,
    read_message,
    write_message,
)
from sparklog.kafka.messages.message_schema import Field, Struct, message
from sparklog.kafka.messages.message_source import reader_source, writer_source

INNER = Struct("Inner", (Field("number", "int32"),))
TEST = Struct(
    "Test",
    (
        Field("small", "int8"),
        Field("large", "int64"),
        Field("text", "string"),
        Field("later", "string", nullable=True, nullable_since=1),
        Field("numbers", "int16", array=True),
        Field("inner", INNER, nullable=True),
        Field("data", "bytes"),
        Field("id", "uuid"),
        Field("tagged", INNER, nullable=True, tag=0, since=1),
    ),
    highest=1,
    flexible=1,
)


@pytest.mark.parametrize(
    ("fields", "message_text"),
    [
        ({"other": 1}, "Test has no field 'other'"),
        ({"small": 128}, "field small must be of type int8, found 128"),
        ({"large": "x"}, "field large must be of type int64, found 'x'"),
        ({"text": None}, "field text must be of type string, found None"),
        ({"text": b"x"}, "field text must be of type string"),
        ({"later": None}, "field later must be of type string, found None"),
        ({"text": "ü" * 16_384}, "field text must have at most 32767 bytes of text, found 32768"),
        ({"numbers": 3}, "field numbers must be of type list, found 3"),
        ({"numbers": [1, None]}, "field numbers must be of type int16, found None"),
        ({"small": 1, "numbers": [1, 1 << 15]}, "field numbers must be of type int16, found 32768"),
        ({"inner": {"number": 1 << 31}}, "field number must be of type int32, found 2147483648"),
        ({"inner": [1]}, r"field inner must be of type Inner, found \[1\]"),
        ({"inner": {"numbers": 1}}, "Inner has no field 'numbers'"),
        ({"data": "x"}, "field data must be of type bytes, found 'x'"),
        ({"id": "short"}, "expected a UUID of 22 characters"),
        ({"id": None}, "expected a UUID of 22 characters"),
    ],
)
def test_invalid_value_is_rejected_with_its_field(fields: dict[str, Any], message_text: str) -> None:
    with pytest.raises(BadRequest, match=message_text):
        encode(TEST, 0, {"later": "", **fields})


def test_encoded_bytes_of_each_type() -> None:
    values = {"small": -1, "large": 2, "text": "ü", "later": None, "numbers": [3], "inner": {"number": 4}, "data": b"d"}
    id_ = "AAECAwQFBgcICQoLDA0ODw"
    fields = {**values, "id": id_, "tagged": None}
    ids = bytes(range(16)).hex()
    plain = f"ff 0000000000000002 0002c3bc 0000 00000001 0003 01 00000004 00000001 64 {ids}"
    flexible = f"ff 0000000000000002 03c3bc 00 02 0003 01 00000004 00 02 64 {ids} 01 00 01 00"
    absent = {"number": 0}
    assert encode(TEST, 0, {**fields, "later": "", "tagged": absent}) == bytes.fromhex(plain)
    assert decode(TEST, 0, bytes.fromhex(plain)) == {**fields, "later": "", "tagged": absent}
    assert encode(TEST, 1, fields) == bytes.fromhex(flexible)
    assert decode(TEST, 1, bytes.fromhex(flexible)) == fields
    present = {**fields, "inner": None, "tagged": {"number": 5}}
    assert encode(TEST, 1, present).endswith(bytes.fromhex(f"{ids} 01 00 06 01 00000005 00"))
    assert decode(TEST, 1, encode(TEST, 1, present)) == present


def test_later_version_is_decoded_as_the_highest_known_version() -> None:
    data = encode(TEST, 1, {"text": "t"})
    assert decode_prefix(TEST, 9, data + b"more") == (decode(TEST, 1, data), len(data))
    with pytest.raises(Corrupt, match="expected a Test of version 0 or more, found -1"):
        decode(TEST, -1, data)


def test_invalid_utf8_is_rejected_in_requests_and_replaced_in_records() -> None:
    data = encode(TEST, 0, {"text": "t", "later": ""}).replace(b"\x00\x01t", b"\x00\x01\xff")
    assert decode(TEST, 0, data)["text"] == "\ufffd"
    with pytest.raises(Corrupt, match="can't decode byte 0xff"):
        read_message(TEST, 0, data)


def test_long_strings_and_null_elements_are_rejected() -> None:
    texts = Struct("Texts", (Field("texts", "string", array=True, nullable=True),), flexible=0)
    assert decode(texts, 0, b"\x00\x00") == {"texts": None}
    with pytest.raises(Corrupt, match="field texts must not be null"):
        decode(texts, 0, b"\x02\x00\x00")
    with pytest.raises(Corrupt, match="field texts has 32768 bytes of text, but the maximum is 32767"):
        decode(texts, 0, b"\x02\x81\x80\x02" + b"x" * 32_768 + b"\x00")


def test_client_id_has_int16_length_in_every_version() -> None:
    header = message("protocol", "RequestHeader")
    fields = {"requestApiKey": 3, "requestApiVersion": 9, "correlationId": 7, "clientId": "me"}
    output = MessageBytes()
    write_message(header, 2, fields, output)
    data = b"".join(output.finish())
    assert data == bytes.fromhex("0003 0009 00000007 0002 6d65 00")
    assert read_message(header, 2, data) == (fields, len(data))


def test_records_are_not_copied() -> None:
    records = Struct("Records", (Field("records", "records", nullable=True), Field("after", "int8")))
    parts, output = [b"first", memoryview(b"second")], MessageBytes()
    write_message(records, 0, {"records": parts, "after": 1}, output)
    written = output.finish()
    assert written[1] is parts[0]
    assert written[2] is parts[1]
    fields, _ = read_message(records, 0, b"".join(written))
    assert isinstance(fields["records"], memoryview)
    assert bytes(fields["records"]) == b"firstsecond"


def test_unknown_tags_are_skipped_and_the_last_duplicate_wins() -> None:
    data = encode(TEST, 1, {"text": "t"})
    assert data[-1] == 0
    known, unknown = "00 06 01 00000007 00", "8101 03 ffffff"
    found = data[:-1] + bytes.fromhex(f"04 {unknown} 00 06 01 00000005 00 {known} 05 00")
    assert decode(TEST, 1, found) == decode(TEST, 1, data) | {"tagged": {"number": 7}}
    # A varint may be longer than necessary.
    assert decode(TEST, 1, data[:-1] + b"\x80\x00") == decode(TEST, 1, data)
    with pytest.raises(Corrupt, match="a tagged field ends after"):
        decode(TEST, 1, found[:-1] + b"\x01")
    with pytest.raises(Corrupt, match="more than 5 bytes"):
        decode(TEST, 1, data[:-1] + b"\xff" * 6)


def test_array_length_is_checked_before_its_elements() -> None:
    numbers = Struct("Numbers", tuple(Field(f"of{kind}", kind, array=True) for kind in ("bool", "uint16", "int64")))
    fields = {"ofbool": [True, False], "ofuint16": [65_535], "ofint64": [-1, 1 << 62]}
    data = encode(numbers, 0, fields)
    assert data == bytes.fromhex("00000002 0100 00000001 ffff 00000002 ffffffffffffffff 4000000000000000")
    assert decode(numbers, 0, data) == fields
    with pytest.raises(Corrupt, match="field ofbool has 99 elements, but only 28 bytes remain"):
        decode(numbers, 0, data.replace(b"\x02", b"\x63", 1))
    with pytest.raises(Corrupt, match="incomplete bytes"):
        decode(numbers, 0, data[:-1])


@pytest.mark.parametrize("version", [0, 1])
def test_field_names_may_equal_local_variable_names(version: int) -> None:
    names = (
        "data",
        "p",
        "n",
        "q",
        "size",
        "errors",
        "values",
        "output",
        "small",
        "names",
        "element",
        "given",
        "tag",
        "value",
    )
    inner = Struct("Inner", tuple(Field(name, "string") for name in names))
    tagged = Field("content", inner, array=True, tag=3, since=1)
    outer = Struct("Outer", (*(Field(name, inner, array=True) for name in names), tagged), highest=1, flexible=1)
    text = {name: f"{name} of inner" for name in names}
    fields = {name: [text, text | {"p": ""}] for name in (*names, "content")} | ({} if version else {"content": []})
    assert decode(outer, version, encode(outer, version, fields)) == fields


def calls(function: Callable[[], object]) -> list[str]:
    """Return the Python functions that a function calls."""
    called: list[str] = []

    def profile(frame: Any, event: str, _: object) -> None:
        if event == "call":
            called.append(frame.f_code.co_name)

    sys.setprofile(profile)
    try:
        function()
    finally:
        sys.setprofile(None)
    return called[1:]


def test_message_has_one_reader_and_one_writer() -> None:
    request, partition = message("protocol", "ProduceRequest"), {"index": 3, "records": [b"x" * 200]}
    values = {"acks": -1, "topicData": [{"name": "t", "partitionData": [partition, partition]}] * 3}
    output = MessageBytes()
    write_message(request, 9, values, output)
    data = b"".join(output.finish())
    read_message(request, 9, data)
    # A length of two bytes needs its own call.
    assert calls(lambda: read_message(request, 9, data)) == ["read_message", "read", *["_uvarint_at"] * 6]
    assert calls(lambda: write_message(request, 9, values, output)) == ["write_message", "write", *["uvarint"] * 6]


def test_generated_source() -> None:
    small = Struct(
        "Small", (Field("id", "int16"), Field("names", "string", array=True), Field("later", "bool", since=2))
    )
    assert (
        reader_source(small, 1)
        == """\
unpack_hi = Struct('>hi').unpack_from
unpack_h = Struct('>h').unpack_from
def read(data, p, errors, left):
    size = len(data)
    [id_1, n] = unpack_hi(data, p)
    p += 6
    if n < 0:
        raise Corrupt(f'field names must not be null')
    if n > size - p:
        raise Corrupt(f'field names has {n} elements, but only {size - p} bytes remain')
    left -= n
    if left < 0:
        raise Corrupt(f'the message has too many array elements or unknown fields')
    names_1 = []
    for _ in range(n):
        [n] = unpack_h(data, p)
        p += 2
        if n < 0:
            raise Corrupt(f'field names must not be null')
        q = p + n
        if q > size:
            raise Corrupt(f'field names has {n} bytes, but only {size - p} bytes remain')
        value = data[p:q].decode('utf-8', errors)
        p = q
        names_1.append(value)
    return {'id': id_1, 'names': names_1, 'later': 0}, p
"""
    )
    assert (
        writer_source(small, 1)
        == """\
names1 = frozenset(['id', 'names', 'later'])
pack_hi = Struct('>hi').pack
pack_h = Struct('>h').pack
def write(output, values):
    small = output.small
    if not names1.issuperset(values):
        raise BadRequest(f'Small has no field {min(values.keys() - names1)!r}')
    names_1 = values.get('names', [])
    if isinstance(names_1, list):
        n = len(names_1)
    else:
        raise BadRequest(f'field names must be of type list, found {names_1!r}')
    small += pack_hi(values.get('id', 0), n)
    for element1 in names_1:
        if isinstance(element1, str):
            element1 = element1.encode('utf-8', 'replace')
            n = len(element1)
            if n > 32767:
                raise BadRequest(f'field names must have at most 32767 bytes of text, found {n}')
        else:
            raise BadRequest(f'field names must be of type string, found {element1!r}')
        small += pack_h(n)
        small += element1
"""
    )
