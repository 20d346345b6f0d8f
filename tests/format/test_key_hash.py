"""Test the keyed hash of record keys against SipHash's reference vectors and a plain implementation
of its description.
"""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparklog.errors import BadRequest
from sparklog.format.kernels.hash_kernels import siphash_keys
from sparklog.format.key_hash import HashKey, key_hashes

SECRET = bytes(range(16))
MASK = 2**64 - 1


def rotated(word: int, by: int) -> int:
    return (word << by | word >> (64 - by)) & MASK


def plain_siphash(secret: bytes, data: bytes) -> bytes:
    """Return SipHash-2-4 with 16 bytes of output, computed as its authors describe."""
    low, high = (int.from_bytes(part, "little") for part in (secret[:8], secret[8:]))
    start = (b"somepseu", b"dorandom", b"lygenera", b"tedbytes")
    v0, v1, v2, v3 = (
        int.from_bytes(word, "big") ^ key for word, key in zip(start, (low, high, low, high), strict=True)
    )
    v1 ^= 0xEE

    def mix(times: int) -> None:
        nonlocal v0, v1, v2, v3
        for _ in range(times):
            v0, v2 = (v0 + v1) & MASK, (v2 + v3) & MASK
            v1, v3 = rotated(v1, 13) ^ v0, rotated(v3, 16) ^ v2
            v0 = rotated(v0, 32)
            v2, v0 = (v2 + v1) & MASK, (v0 + v3) & MASK
            v1, v3 = rotated(v1, 17) ^ v2, rotated(v3, 21) ^ v0
            v2 = rotated(v2, 32)

    padded = data + bytes(7 - len(data) % 8) + bytes([len(data) & 0xFF])
    for at in range(0, len(padded), 8):
        word = int.from_bytes(padded[at : at + 8], "little")
        v3 ^= word
        mix(2)
        v0 ^= word
    v2 ^= 0xEE
    mix(4)
    first = v0 ^ v1 ^ v2 ^ v3
    v1 ^= 0xDD
    mix(4)
    return first.to_bytes(8, "little") + (v0 ^ v1 ^ v2 ^ v3).to_bytes(8, "little")


def hashes(data: bytes, runs: list[tuple[int, int]], secret: bytes = SECRET) -> list[bytes]:
    """Return the hash of each (start, length)."""
    starts = np.array([start for start, _ in runs], np.int64)
    lengths = np.array([length for _, length in runs], np.int32)
    found = key_hashes(np.frombuffer(data, np.uint8), starts, lengths, HashKey.of(secret))
    assert found.shape == (len(runs), 2)
    assert found.dtype == np.uint64
    return [row.astype("<u8").tobytes() for row in found]


@pytest.mark.parametrize(
    ("length", "expected"),
    [
        (0, "a3817f04ba25a8e66df67214c7550293"),
        (1, "da87c1d86b99af44347659119b22fc45"),
        (63, "5150d1772f50834a503e069a973fbd7c"),
    ],
)
def test_reference_vectors(length: int, expected: str) -> None:
    data = bytes(range(64))
    assert hashes(data, [(0, length)]) == [bytes.fromhex(expected)]
    assert plain_siphash(SECRET, data[:length]).hex() == expected


@pytest.mark.parametrize(
    "lengths", [[5] * 9, [16] * 8, [8, 9, 15, 12, 8, 16, 8, 8, 8, 8], [24, -1, 24, 24, 24, 24, 25]]
)
def test_keys_hashed_together_have_separate_hashes(lengths: list[int]) -> None:
    data = bytes(number * 37 % 251 for number in range(400))
    runs = [(13 * place, length) for place, length in enumerate(lengths)]
    expected = [bytes(16) if n < 0 else plain_siphash(SECRET, data[start : start + n]) for start, n in runs]
    assert hashes(data, runs) == expected
    words, key = np.zeros(2 * len(runs), np.int64), HashKey.of(SECRET)
    arrays = np.array([start for start, _ in runs], np.int64), np.array(lengths, np.int32)
    assert siphash_keys.interpreted(np.frombuffer(data, np.uint8), *arrays, key.low, key.high, words) == -1
    assert words.tobytes() == b"".join(expected)
    for outside in range(len(runs)):
        if lengths[outside] >= 0:
            wrong = [*runs[:outside], (398, lengths[outside]), *runs[outside + 1 :]]
            with pytest.raises(BadRequest, match=f"key {outside} is not within"):
                hashes(data, wrong)


def test_keys_of_every_length_at_the_end_of_data() -> None:
    data = bytes((7 * index + 200) & 0xFF for index in range(300))
    runs = [(300 - length, length) for length in range(301)]
    assert hashes(data, runs) == [plain_siphash(SECRET, data[start:]) for start, _ in runs]


@settings(max_examples=150, deadline=None)
@given(st.binary(max_size=80), st.binary(min_size=16, max_size=16), st.data())
def test_random_keys_match_the_reference(data: bytes, secret: bytes, draw: st.DataObject) -> None:
    starts = draw.draw(st.lists(st.integers(0, len(data)), max_size=5))
    runs = [(start, draw.draw(st.integers(0, len(data) - start))) for start in starts]
    expected = [plain_siphash(secret, data[start : start + length]) for start, length in runs]
    assert hashes(data, runs, secret) == expected


def test_null_key_has_zero_hash() -> None:
    assert hashes(b"abc", [(10**9, -1), (0, 3)]) == [bytes(16), plain_siphash(SECRET, b"abc")]


@pytest.mark.parametrize("run", [(-1, 1), (0, 4), (3, 1), (4, 0), (2**62, 5), (0, 2**31 - 1)])
def test_key_outside_of_data_is_rejected(run: tuple[int, int]) -> None:
    with pytest.raises(BadRequest, match=r"key 1 is not within the 3 bytes"):
        hashes(b"abc", [(0, 3), run])


def test_hash_key_is_picklable_and_has_no_repr() -> None:
    for length in (0, 15, 17):
        with pytest.raises(BadRequest, match=f"16 bytes, found {length}"):
            HashKey.of(bytes(length))
    key = HashKey.of(b"\xff" * 16)
    assert pickle.loads(pickle.dumps(key)) == key
    assert repr(key) == "HashKey()"
    assert hashes(b"abc", [(0, 3)], b"\xff" * 16) != hashes(b"abc", [(0, 3)])


def test_positions_and_lengths_must_have_equal_length() -> None:
    with pytest.raises(BadRequest, match="found 1 and 2"):
        key_hashes(np.zeros(9, np.uint8), np.zeros(2, np.int64), np.zeros(1, np.int32), HashKey.of(SECRET))
