"""Serializers of a producer: errors report the option, and `send` does not serialize None."""

from __future__ import annotations

import pytest

from sparklog.clients.producer.serializers import serializer
from sparklog.errors import BadRequest


class WithMethod:
    """A serializer object, as in kafka-python."""

    def serialize(self, value: int) -> bytes:
        return b"%d" % value


def test_an_object_with_a_method_is_a_serializer() -> None:
    serialize = serializer("value_serializer", WithMethod())  # type: ignore[arg-type]
    assert serialize is not None
    assert serialize(5) == b"5"
    assert serializer("value_serializer", None) is None


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("str", b"x", "key_serializer accepts only str"),
        ("bytes", "x", "key_serializer accepts only bytes"),
        ("hex", "xy", "key_serializer: expected hexadecimal digits"),
        ("hex", object(), "key_serializer accepts only hexadecimal digits"),
        ("short", 40_000, "key_serializer failed for 40000"),
        ("json", {1, 2}, "key_serializer failed for"),
    ],
)
def test_an_unsupported_value_is_an_error(name: str, value: object, text: str) -> None:
    serialize = serializer("key_serializer", name)
    assert serialize is not None
    with pytest.raises(BadRequest, match=text) as refused:
        serialize(value)
    assert "\n" not in str(refused.value)
