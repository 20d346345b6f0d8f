"""Test that a single flipped bit is found by its effect on the CRC."""

from __future__ import annotations

import random

from crc32c import crc32c

from sparklog.format.checksums import flipped_bit


def test_single_flipped_bit_is_found() -> None:
    rng = random.Random(5)
    for nbytes in (1, 2, 5, 40, 300, 5000):
        data = rng.randbytes(nbytes)
        right = crc32c(data)
        for _ in range(40):
            at, bit = rng.randrange(nbytes), rng.randrange(8)
            wrong = bytearray(data)
            wrong[at] ^= 1 << bit
            assert flipped_bit(nbytes, crc32c(wrong), right) == (at, bit)


def test_other_damage_is_not_reported_as_flipped_bit() -> None:
    data = bytes(range(200))
    right = crc32c(data)
    for wrong in (data[:50] + b"\x00" * 40 + data[90:], data[:100] + bytes((data[100] ^ 3,)) + data[101:]):
        assert flipped_bit(len(data), crc32c(wrong), right) is None
    assert flipped_bit(len(data), right, right) is None
