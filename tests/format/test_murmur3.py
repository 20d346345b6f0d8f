"""Test the hash of the buckets of Iceberg tables against values of the Iceberg specification and of mmh3."""

from __future__ import annotations

import random

import mmh3
import pyarrow as pa
import pytest

from sparklog.errors import BadRequest
from sparklog.format.key_hash import bucket_for_value
from tests.support.kernel_ways import both_ways

SPECIFICATION = [
    # Appendix B of the Iceberg specification: a value as bytes, and its 32-bit hash.
    ((34).to_bytes(8, "little"), 2017239379),
    (b"iceberg", 1210000089),
    (b"\x00\x01\x02\x03", -188683207),
    (b"\xf7\x9c\x3e\x09\x67\x7c\x4b\xbd\xa4\x79\x3f\x34\x9c\xb7\x85\xe7", 1488055340),
]


def bucket(hashed: int, buckets: int) -> int:
    return (hashed & 0x7FFFFFFF) % buckets


@pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary(), pa.binary_view()])
def test_values_of_the_specification(kind: pa.DataType) -> None:
    values = pa.array([b"before", *(value for value, _ in SPECIFICATION), None], kind)
    expected = [bucket(hashed, 2**31 - 1) for _, hashed in SPECIFICATION]
    assert bucket_for_value(values, 2**31 - 1).tolist()[1:] == [*expected, -1]


def test_any_bytes_hash_as_mmh3_in_both_ways() -> None:
    numbers = random.Random(5)
    values = [numbers.randbytes(length) for length in range(70)]

    def buckets() -> list[list[int]]:
        return [bucket_for_value(pa.array(values), count).tolist() for count in (1, 7, 16, 2**31 - 1)]

    found = both_ways(buckets)
    expected = [[bucket(mmh3.hash(value), count) for value in values] for count in (1, 7, 16, 2**31 - 1)]
    assert list(found) == [expected] * len(found)


def test_wrong_input() -> None:
    with pytest.raises(BadRequest, match="at least one bucket"):
        bucket_for_value(pa.array(["a"]), 0)
    assert bucket_for_value(pa.nulls(2), 3).tolist() == [-1, -1]
