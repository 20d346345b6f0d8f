"""The codec of Kafka's messages: what it refuses to read and to write, and what a client's header has of its own."""

from __future__ import annotations

from typing import Any

import pytest

from sparklog.errors import BadRequest, Corrupt
from sparklog.format.coordinators.message_codec import (
    MessageBytes,
    decode,
    decode_prefix,
    encode,
    read_message,
    write_message,
)
from sparklog.format.coordinators.message_schema import Field, Struct, message

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
        ({"small": 128}, "field small takes a value of type int8, not 128"),
        ({"large": "x"}, "field large takes a value of type int64, not 'x'"),
        ({"text": None}, "field text takes a value of type string, not None"),
        ({"text": b"x"}, "field text takes a value of type string"),
        ({"later": None}, "field later takes a value of type string, not None"),
        ({"text": "ü" * 16_384}, "field text takes at most 32767 bytes of text, not 32768"),
        ({"numbers": 3}, "field numbers takes a value of type list, not 3"),
        ({"numbers": [1, None]}, "field numbers takes a value of type int16, not None"),
        ({"inner": [1]}, r"field inner takes a value of type Inner, not \[1\]"),
        ({"inner": {"numbers": 1}}, "Inner has no field 'numbers'"),
        ({"data": "x"}, "field data takes a value of type bytes, not 'x'"),
        ({"id": "short"}, "expected a UUID of 22 characters"),
        ({"id": None}, "expected a UUID of 22 characters"),
    ],
)
def test_values_that_do_not_fit_are_refused_with_the_field(fields: dict[str, Any], message_text: str) -> None:
    with pytest.raises(BadRequest, match=message_text):
        encode(TEST, 0, {"later": "", **fields})


def test_bytes_of_each_type() -> None:
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


def test_a_later_version_is_read_as_the_highest_and_one_below_zero_refused() -> None:
    data = encode(TEST, 1, {"text": "t"})
    assert decode_prefix(TEST, 9, data + b"more") == (decode(TEST, 1, data), len(data))
    with pytest.raises(Corrupt, match="expected a Test of version 0 or more, found -1"):
        decode(TEST, -1, data)


def test_text_that_is_not_utf_8_is_an_error_of_a_client_and_read_as_java_does_in_a_record() -> None:
    data = encode(TEST, 0, {"text": "t", "later": ""}).replace(b"\x00\x01t", b"\x00\x01\xff")
    assert decode(TEST, 0, data)["text"] == "\ufffd"
    with pytest.raises(Corrupt, match="can't decode byte 0xff"):
        read_message(TEST, 0, data)


def test_long_text_and_nulls_in_arrays_are_not_read() -> None:
    texts = Struct("Texts", (Field("texts", "string", array=True, nullable=True),), flexible=0)
    assert decode(texts, 0, b"\x00\x00") == {"texts": None}
    with pytest.raises(Corrupt, match="field texts is null, and must not be"):
        decode(texts, 0, b"\x02\x00\x00")
    with pytest.raises(Corrupt, match="field texts has 32768 bytes of text: at most 32767 are allowed"):
        decode(texts, 0, b"\x02\x81\x80\x02" + b"x" * 32_768 + b"\x00")


def test_the_id_of_a_client_has_a_length_of_two_bytes_in_every_version() -> None:
    header = message("protocol", "RequestHeader")
    fields = {"requestApiKey": 3, "requestApiVersion": 9, "correlationId": 7, "clientId": "me"}
    output = MessageBytes()
    write_message(header, 2, fields, output)
    data = b"".join(output.finish())
    assert data == bytes.fromhex("0003 0009 00000007 0002 6d65 00")
    assert read_message(header, 2, data) == (fields, len(data))


def test_records_are_neither_copied_when_they_are_read_nor_when_they_are_written() -> None:
    records = Struct("Records", (Field("records", "records", nullable=True), Field("after", "int8")))
    parts, output = [b"first", memoryview(b"second")], MessageBytes()
    write_message(records, 0, {"records": parts, "after": 1}, output)
    written = output.finish()
    assert written[1] is parts[0]
    assert written[2] is parts[1]
    fields, _ = read_message(records, 0, b"".join(written))
    assert isinstance(fields["records"], memoryview)
    assert bytes(fields["records"]) == b"firstsecond"
