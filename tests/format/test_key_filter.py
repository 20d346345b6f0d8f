"""Test key filters: comparison with a plain implementation of the specification, golden bytes and corruption."""

from __future__ import annotations

import hashlib
import random
import re
import struct
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from sparklog.errors import BadRequest, Corrupt
from sparklog.format import key_filter
from sparklog.format.batch_scan import scan_headers
from sparklog.format.crc32c import crc32c
from sparklog.format.encode import EncodeOptions, encode
from sparklog.format.key_filter import (
    BatchKeys,
    FilterBuilder,
    FilterPiece,
    KeyFilter,
    decode_filters,
    encode_filters,
    hashes_of,
)
from sparklog.format.record_batch import BatchHeaders, DataLocation, Payloads
from sparklog.limits import DEFAULTS
from tests.format.test_key_hash import plain_siphash
from tests.support.kernel_ways import both_ways

DOCUMENT = (Path(__file__).parents[2] / "docs" / "reference" / "format-key-filters.md").read_text()
SALTS = [int(salt, 16) for salt in re.findall("0x[0-9a-f]{8}", DOCUMENT)]


def slice_of(keys: list[bytes | None], codec: str = "none") -> bytes:
    key, value = pa.array(keys, pa.binary()), pa.array([b"v"] * len(keys), pa.binary())
    times = np.zeros(len(keys), np.int64)
    return encode(key, value, None, times, options=EncodeOptions(codec=codec, batch_bytes=2000)).data


def filters_of(keys: list[bytes | None], codec: str = "none") -> KeyFilter | None:
    data = slice_of(keys, codec)
    builder = FilterBuilder()
    builder.add(data, scan_headers(data))
    return builder.finish(7, len(data), 99)


def filter_of(keys: list[bytes | None], codec: str = "none") -> FilterPiece | None:
    """Return the filter of a slice that has a single piece."""
    made = filters_of(keys, codec)
    if made is None:
        return None
    (piece,) = made.pieces
    return piece


def plain_words(keys: list[bytes], blocks: int) -> np.ndarray:
    """Compute the filter according to the specification."""
    words = np.zeros((blocks, 8), np.uint32)
    for key in keys:
        hashed = int.from_bytes(plain_siphash(bytes(16), key)[:8], "little")
        block, low = (hashed >> 32) * blocks >> 32, hashed & 0xFFFFFFFF
        for word, salt in enumerate(SALTS):
            words[block, word] |= 1 << ((low * salt & 0xFFFFFFFF) >> 27)
    return words


@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_filter_matches_documentation(codec: str) -> None:
    keys = [b"key-%d" % i for i in range(200)] + [b"", b"\xff" * 300]
    made, same = both_ways(lambda: filter_of([*keys, None], codec))
    assert made is not None
    assert same is not None
    assert (made.words == same.words).all()
    data = slice_of([*keys, None], codec)
    assert (made.offset, made.nbytes, made.crc) == (0, len(data), crc32c(data))
    assert (made.words == plain_words(keys, len(made.words))).all()
    assert all(made.may_contain(hashes_of([key])) for key in keys)
    absent = [b"absent-%d" % i for i in range(1000)]
    hashes = hashes_of(absent)
    assert sum(made.may_contain(hashes[i : i + 1]) for i in range(1000)) < 10
    assert not made.may_contain(hashes[:0])
    assert made.may_contain(hashes_of([*absent[:3], keys[0]]))


def test_repeated_keys_reduce_filter_size() -> None:
    keys: list[bytes | None] = [b"key-%d" % (i % 50) for i in range(5000)]
    made = filter_of(keys)
    assert made is not None
    # The filter is halved to a fraction of the 313 blocks for as many distinct keys as records.
    assert len(made.words) < 16
    assert (made.words == plain_words([b"key-%d" % i for i in range(50)], len(made.words))).all()


def test_no_filter_without_keys_or_with_unreadable_records(monkeypatch: pytest.MonkeyPatch) -> None:
    assert filter_of([None] * 5) is None
    monkeypatch.setattr(key_filter, "SAMPLED_RECORDS", 100)
    for count in (99, 100, 150):
        data, more = slice_of([None] * count), slice_of([b"k"])
        builder = FilterBuilder()
        builder.add(data, scan_headers(data))
        builder.add(more, scan_headers(more))
        assert (builder.finish(0, 1, 2) is None) == (count >= 100)
    broken = bytearray(slice_of([b"key"] * 10))
    broken[61] ^= 0xFF
    builder = FilterBuilder()
    builder.add(broken, scan_headers(broken))
    assert builder.finish(0, 1, 2) is None


@pytest.mark.parametrize("bound", [1, 2, 3, 7, 100])
def test_records_are_read_in_bounded_steps(monkeypatch: pytest.MonkeyPatch, bound: int) -> None:
    """Batches are added to a step while the number of records before them is below the next multiple of the bound."""
    monkeypatch.setattr(key_filter, "RECORDS_PER_STEP", bound)
    sizes = (3, 1, 2, 4, 1, 1, 6, 1)
    data = b"".join(slice_of([b"%d-%d" % (at, i) for i in range(size)]) for at, size in enumerate(sizes))
    builder, parts, groups_of = FilterBuilder(), list[list[int]](), key_filter.payload_groups

    def noted(data: np.ndarray, headers: BatchHeaders, place: DataLocation) -> Iterator[Payloads]:
        parts.append(headers.count.tolist())
        return groups_of(data, headers, place)

    monkeypatch.setattr(key_filter, "payload_groups", noted)
    builder.add(data, scan_headers(data))
    groups: dict[int, list[int]] = {}
    for at, size in enumerate(sizes):
        groups.setdefault(sum(sizes[:at]) // bound, []).append(size)
    assert parts == list(groups.values())
    made = builder.finish(0, 1, 2)
    assert made is not None
    (piece,) = made.pieces
    assert all(piece.may_contain(hashes_of([b"%d-%d" % (at, i)])) for at, size in enumerate(sizes) for i in range(size))


def test_filter_contains_keys_of_all_batches_and_codecs() -> None:
    """Adjacent batches of the same kind are decompressed together.

    These are three kinds of two batches, with different keys.
    """
    codecs = ("none", "none", "zstd", "gzip", "none", "none")
    parts = [[b"%s-%d-%d" % (codec.encode(), part, i) for i in range(5)] for part, codec in enumerate(codecs)]
    data = b"".join(slice_of(list(keys), codec) for keys, codec in zip(parts, codecs, strict=True))
    builder = FilterBuilder()
    builder.add(data, scan_headers(data))
    filters = builder.finish(0, 1, 2)
    assert filters is not None
    (made,) = filters.pieces
    assert (made.words == plain_words([key for keys in parts for key in keys], len(made.words))).all()
    assert all(made.may_contain(hashes_of([key])) for keys in parts for key in keys)


@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_pieces_consist_of_complete_batches(codec: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A piece has at most `PIECE_BYTES`, unless a single batch has more, regardless of how batches are added."""
    keys: list[bytes | None] = [b"key-%d" % i if i % 7 else None for i in range(1200)]
    data = slice_of(keys, codec)
    headers = scan_headers(data)
    for most in (1, 3000, 1 << 20):
        monkeypatch.setattr(key_filter, "PIECE_BYTES", most)
        made = []
        for step in (1, 3, len(headers)):
            builder, hashed = FilterBuilder(), FilterBuilder()
            for first in range(0, len(headers), step):
                some = headers[first : first + step]
                builder.add(data, some)
                rows = [key for key in keys[int(some.base_offset[0]) : int(some.next_offset[-1])] if key is not None]
                words = np.column_stack((hashes_of(rows), np.zeros(len(rows), np.uint64)))
                ranges = zip(some.base_offset.tolist(), some.next_offset.tolist(), strict=True)
                counts = [sum(key is not None for key in keys[low:high]) for low, high in ranges]
                hashed.add(data, some, BatchKeys(words, np.array(counts, np.int64)))
            for filled in (builder, hashed):
                filters = filled.finish(0, len(data), 1)
                assert filters is not None
                made.append(filters)
        pieces = made[0].pieces
        assert all(encode_filters([other]) == encode_filters([made[0]]) for other in made)
        starts = np.cumsum([0, *(piece.nbytes for piece in pieces)])
        assert starts[-1] == len(data)
        rows = np.searchsorted(headers.position, starts)
        assert (headers.position[rows[:-1]] == starts[:-1]).all(), "each begins with a batch"
        for row, piece in enumerate(pieces):
            first, last = rows[row], rows[row + 1]
            assert piece.nbytes <= most or last == first + 1
            assert last == len(headers) or piece.nbytes + int(headers.size[last]) > most, "one more would not fit"
            assert piece.offset == headers.base_offset[first]
            assert piece.crc == crc32c(data[starts[row] : starts[row + 1]])
            within = keys[piece.offset : int(headers.next_offset[last - 1])]
            assert (piece.words == plain_words([key for key in within if key], len(piece.words))).all()


def test_piece_without_keys_contains_no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_filter, "PIECE_BYTES", 1)
    parts = [slice_of([None] * 3), slice_of([b"a"]), slice_of([None])]
    builder = FilterBuilder()
    for part in parts:
        builder.add(part, scan_headers(part))
    made = builder.finish(0, sum(map(len, parts)), 2)
    assert made is not None
    (read,) = decode_filters(encode_filters([made]))
    assert read.may_contain(hashes_of([b"a"])).tolist() == [False, True, False]
    assert read.may_contain(hashes_of([b"b", b"a"])).tolist() == [False, True, False]


def test_is_contained_in_requires_all_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_filter, "PIECE_BYTES", 2500)
    keys: list[bytes | None] = [b"%d" % i for i in range(500)]
    other, data = filters_of(keys), slice_of(keys)
    assert other is not None
    assert len(other.pieces) > 2

    def within(data: bytes, other: KeyFilter) -> bool:
        builder = FilterBuilder(other)
        headers = scan_headers(data)
        for row in range(len(headers)):
            builder.add(data, headers[row : row + 1])
        return builder.is_contained_in(other)

    def with_piece(**changes: object) -> KeyFilter:
        first, second, *rest = other.pieces
        return replace(other, pieces=(first, replace(second, **changes), *rest))

    assert within(data, other)
    monkeypatch.setattr(key_filter, "PIECE_BYTES", 1 << 20)
    assert within(data, other), "pieces are as they were cut"
    assert within(data, with_piece(words=other.pieces[1].words | np.uint32(8)))
    less = other.pieces[1].words.copy()
    less[0] = 0
    second = other.pieces[1]
    for changes in ({"words": less}, {"crc": 1}, {"offset": second.offset + 1}, {"nbytes": second.nbytes + 1}):
        assert not within(data, with_piece(**changes))
    assert not within(data, replace(other, pieces=other.pieces[:-1]))
    assert not within(slice_of([*keys, b"more"]), other)
    # If the records cannot be read, their keys are unknown.
    assert within(data[:61] + bytes([data[61] ^ 0xFF]) + data[62:], other)


def test_filter_size_is_a_multiple_of_blocks() -> None:
    """A filter has at least 16 bits per key, and its size is a multiple of a power of two that is at most an eighth
    larger.
    """
    for records in (1, 16, 17, 32, 33, 204, 205, 230, 231, 1000, 5000):
        wanted = -(-records * 16 // 256)
        made = filter_of([b"%d" % i for i in range(records)])
        assert made is not None
        assert wanted <= len(made.words) <= max(wanted, wanted * 9 // 8)
        step = 1 << max(0, wanted.bit_length() - 4)
        assert len(made.words) % step == 0
        assert len(made.words) - wanted < step


def some_filters() -> list[KeyFilter]:
    made = filters_of([b"a", b"b"])
    assert made is not None
    blocks = np.arange(16, dtype=np.uint32).reshape(2, 8)
    return [made, KeyFilter(200, 300, 5, (FilterPiece(4, 100, 6, blocks[:0]), FilterPiece(9, 200, 7, blocks)))]


def test_bytes_of_filter_file() -> None:
    made, other = some_filters()
    data = encode_filters([made, other])
    assert data[:12] == b"SLBF" + bytes([0, 0, 0, 2, 0, 0, 0, 2])
    assert len(data) == 12 + 2 * 28 + 4 + 3 * 24 + 3 * 32
    assert data[-4:] == bytes([15, 0, 0, 0])
    assert hashlib.sha256(data).hexdigest()[:16] == "14b0b65e45724c71"
    assert decode_filters(encode_filters([])) == ()
    first, second = decode_filters(data)
    assert (first.pieces[0].words == made.pieces[0].words).all()
    assert (second.position, second.nbytes, second.crc) == (200, 300, 5)
    assert [(piece.offset, piece.nbytes, piece.crc, len(piece.words)) for piece in second.pieces] == [
        (4, 100, 6, 0),
        (9, 200, 7, 2),
    ]


def version_1(slices: list[tuple[int, int, int, np.ndarray]]) -> bytes:
    """Return a file of releases before 0.8, with the position and CRC-32C of slices and the blocks of their filters."""
    blocks = [words.astype("<u4").tobytes() for *_, words in slices]
    rows = [
        struct.pack(">qqIII", *place, len(data) // 32, crc32c(data))
        for (*place, _), data in zip(slices, blocks, strict=True)
    ]
    head = struct.pack(">4sII", b"SLBF", 1, len(slices)) + b"".join(rows)
    return b"".join((head, struct.pack(">I", crc32c(head)), *blocks))


def test_version_1_file_has_one_piece_per_slice() -> None:
    keys = [b"key-%d" % i for i in range(50)]
    words = plain_words(keys, 3)
    data = version_1([(7, 900, 5, words), (1000, 1 << 21, 6, words[:1])])
    first, second = decode_filters(data)
    assert (first.position, first.nbytes, first.crc) == (7, 900, 5)
    (piece,) = first.pieces
    assert (piece.offset, piece.nbytes, piece.crc) == (-1, 900, 5)
    assert (piece.words == words).all()
    assert all(first.may_contain(hashes_of([key])).all() for key in keys)
    assert (second.position, second.nbytes, second.pieces[0].words.shape) == (1000, 1 << 21, (1, 8))
    with pytest.raises(Corrupt, match="CRC-32C"):
        decode_filters(data[:-1] + b"x")


def test_damage_is_detected_and_located() -> None:
    data = encode_filters(some_filters())
    for at in range(len(data)):
        damaged = bytearray(data)
        damaged[at] ^= 1 << random.Random(at).randrange(8)
        with pytest.raises(Corrupt):
            decode_filters(bytes(damaged), file="f")
    for pieces in ((), some_filters()[1].pieces[:1]):
        with pytest.raises(Corrupt, match="do not have the size of their slice"):
            decode_filters(encode_filters([KeyFilter(200, 300, 5, pieces)]))
    for wrong in (b"", data[:5], data[:90], data[:-1], data + b"x"):
        with pytest.raises(Corrupt):
            decode_filters(wrong)


def test_newer_version_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(key_filter, "FORMAT_VERSION", 3)
        data = encode_filters(some_filters())
    with pytest.raises(BadRequest, match="has format version 3, but the latest supported version is 2: upgrade"):
        decode_filters(data, file="f")


def test_documentation_contains_tables_and_limits() -> None:
    for kind in (key_filter.TABLE_DTYPE, key_filter.PIECE_DTYPE):
        assert kind.fields is not None
        for name, (field, at, *_) in kind.fields.items():
            assert f"| {at} | {np.dtype(field).newbyteorder('=').name} | {name} |" in DOCUMENT
    sizes = (
        key_filter.HEADER.size,
        f"{key_filter.TABLE_DTYPE.itemsize} each",
        key_filter.CRC.size,
        f"{key_filter.PIECE_DTYPE.itemsize} each",
    )
    for part, size in zip(("header", "table", "crc", "pieces"), sizes, strict=True):
        assert f"| {part} | {size} |" in DOCUMENT
    assert f"of {DEFAULTS.filter_min_bytes} bytes or more" in DOCUMENT
    assert f"{key_filter.PIECE_BYTES} bytes, unless" in DOCUMENT
    assert f"first {key_filter.SAMPLED_RECORDS} records" in DOCUMENT
    assert tuple(SALTS) == key_filter.SALTS
