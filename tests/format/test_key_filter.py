"""Filters of keys: against a plain implementation of the document, their bytes, and what damage does."""

from __future__ import annotations

import hashlib
import random
import re
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from sparklog.errors import BadRequest, Corrupt
from sparklog.format import key_filter
from sparklog.format.batch_scan import scan_headers
from sparklog.format.encode import EncodeOptions, encode
from sparklog.format.key_filter import FilterBuilder, KeyFilter, decode_filters, encode_filters, hashes_of
from sparklog.format.record_batch import BatchHeaders
from sparklog.limits import DEFAULTS
from tests.format.test_key_hash import plain_siphash
from tests.support.kernel_ways import both_ways

DOCUMENT = (Path(__file__).parents[2] / "docs" / "reference" / "format-key-filters.md").read_text()
SALTS = [int(salt, 16) for salt in re.findall("0x[0-9a-f]{8}", DOCUMENT)]


def slice_of(keys: list[bytes | None], codec: str = "none") -> bytes:
    key, value = pa.array(keys, pa.binary()), pa.array([b"v"] * len(keys), pa.binary())
    times = np.zeros(len(keys), np.int64)
    return encode(key, value, None, times, options=EncodeOptions(codec=codec, batch_bytes=2000)).data


def filter_of(keys: list[bytes | None], codec: str = "none", records: int | None = None) -> KeyFilter | None:
    data = slice_of(keys, codec)
    builder = FilterBuilder(len(keys) if records is None else records)
    builder.add(data, scan_headers(data))
    return builder.finish(7, len(data), 99)


def plain_words(keys: list[bytes], blocks: int) -> np.ndarray:
    """The filter as the document has it."""
    words = np.zeros((blocks, 8), np.uint32)
    for key in keys:
        hashed = int.from_bytes(plain_siphash(bytes(16), key)[:8], "little")
        block, low = (hashed >> 32) * blocks >> 32, hashed & 0xFFFFFFFF
        for word, salt in enumerate(SALTS):
            words[block, word] |= 1 << ((low * salt & 0xFFFFFFFF) >> 27)
    return words


@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_a_filter_is_as_the_document_has_it(codec: str) -> None:
    keys = [b"key-%d" % i for i in range(200)] + [b"", b"\xff" * 300]
    made, same = both_ways(lambda: filter_of([*keys, None], codec))
    assert made is not None
    assert same is not None
    assert (made.words == same.words).all()
    assert (made.position, made.crc) == (7, 99)
    assert (made.words == plain_words(keys, len(made.words))).all()
    assert all(made.may_hold(hashes_of([key])) for key in keys)
    absent = [b"absent-%d" % i for i in range(1000)]
    hashes = hashes_of(absent)
    assert sum(made.may_hold(hashes[i : i + 1]) for i in range(1000)) < 50
    assert made.may_hold(hashes_of([*absent[:3], keys[0]]))


def test_repeated_keys_make_a_small_filter() -> None:
    keys: list[bytes | None] = [b"key-%d" % (i % 50) for i in range(5000)]
    made = filter_of(keys)
    assert made is not None
    # Halved down to some of the 196 blocks of as many keys as records.
    assert len(made.words) < 16
    assert (made.words == plain_words([b"key-%d" % i for i in range(50)], len(made.words))).all()
    # More records than were announced only make it less sharp.
    crowded = filter_of([b"%d" % i for i in range(500)], records=1)
    assert crowded is not None
    assert len(crowded.words) == 1


def test_there_is_no_filter_without_keys_or_for_records_that_cannot_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    assert filter_of([None] * 5) is None
    monkeypatch.setattr(key_filter, "TRIED_RECORDS", 100)
    for count in (99, 100, 150):
        data, more = slice_of([None] * count), slice_of([b"k"])
        builder = FilterBuilder(200)
        builder.add(data, scan_headers(data))
        builder.add(more, scan_headers(more))
        assert (builder.finish(0, 1, 2) is None) == (count >= 100)
    broken = bytearray(slice_of([b"key"] * 10))
    broken[61] ^= 0xFF
    builder = FilterBuilder(10)
    builder.add(broken, scan_headers(broken))
    assert builder.finish(0, 1, 2) is None


@pytest.mark.parametrize("bound", [1, 2, 3, 7, 100])
def test_about_so_many_records_are_opened_at_once(monkeypatch: pytest.MonkeyPatch, bound: int) -> None:
    """Batches go on being added while the records before them are fewer than the next multiple of the bound."""
    monkeypatch.setattr(key_filter, "RECORDS_AT_ONCE", bound)
    sizes = (3, 1, 2, 4, 1, 1, 6, 1)
    data = b"".join(slice_of([b"%d-%d" % (at, i) for i in range(size)]) for at, size in enumerate(sizes))
    builder, parts, add = FilterBuilder(sum(sizes)), list[list[int]](), FilterBuilder._add

    def noted(self: FilterBuilder, data: bytes, headers: BatchHeaders) -> None:
        parts.append(headers.count.tolist())
        add(self, data, headers)

    monkeypatch.setattr(FilterBuilder, "_add", noted)
    builder.add(data, scan_headers(data))
    groups: dict[int, list[int]] = {}
    for at, size in enumerate(sizes):
        groups.setdefault(sum(sizes[:at]) // bound, []).append(size)
    assert parts == list(groups.values())
    made = builder.finish(0, 1, 2)
    assert made is not None
    assert all(made.may_hold(hashes_of([b"%d-%d" % (at, i)])) for at, size in enumerate(sizes) for i in range(size))


def test_keys_of_later_batches_and_of_every_codec_are_in_a_filter() -> None:
    """Neighbouring batches of one kind are opened at once: these are three times two, with other keys in each."""
    codecs = ("none", "none", "zstd", "gzip", "none", "none")
    parts = [[b"%s-%d-%d" % (codec.encode(), part, i) for i in range(5)] for part, codec in enumerate(codecs)]
    data = b"".join(slice_of(list(keys), codec) for keys, codec in zip(parts, codecs, strict=True))
    builder = FilterBuilder(30)
    builder.add(data, scan_headers(data))
    made = builder.finish(0, 1, 2)
    assert made is not None
    assert (made.words == plain_words([key for keys in parts for key in keys], len(made.words))).all()
    assert all(made.may_hold(hashes_of([key])) for keys in parts for key in keys)


def test_a_filter_is_within_another_if_it_has_all_keys() -> None:
    other = filter_of([b"%d" % i for i in range(50)])
    assert other is not None

    def within(keys: list[bytes | None], *, damaged: bool = False) -> bool:
        builder = FilterBuilder(len(keys), blocks=len(other.words))
        data = bytearray(slice_of(keys))
        data[61] ^= 0xFF * damaged
        builder.add(data, scan_headers(data))
        return builder.within(other)

    assert within([b"%d" % i for i in range(50)])
    assert within([b"7"])
    assert within([None])
    assert not within([b"7", b"absent"])
    # Of records that cannot be read nothing is known.
    assert within([b"absent"], damaged=True)


def test_a_filter_grows_by_whole_blocks() -> None:
    """At least ten bits to a key; a multiple of a power of two that is at most an eighth larger."""
    for records in (1, 25, 26, 51, 52, 204, 205, 230, 231, 1000, 5000):
        wanted = -(-records * 10 // 256)
        blocks = len(FilterBuilder(records)._words)
        assert wanted <= blocks <= max(wanted, wanted * 9 // 8)
        step = 1 << max(0, wanted.bit_length() - 4)
        assert blocks % step == 0
        assert blocks - wanted < step


def test_the_bytes_of_a_file() -> None:
    made = filter_of([b"a", b"b"])
    assert made is not None
    data = encode_filters([made, KeyFilter(200, 300, 5, np.arange(16, dtype=np.uint32).reshape(2, 8))])
    assert data[:12] == b"SLBF" + bytes([0, 0, 0, 1, 0, 0, 0, 2])
    assert len(data) == 12 + 2 * 28 + 4 + 3 * 32
    assert data[-4:] == bytes([15, 0, 0, 0])
    assert hashlib.sha256(data).hexdigest()[:16] == "249f480b646efa15"
    assert decode_filters(encode_filters([])) == ()
    first, second = decode_filters(data)
    assert (first.words == made.words).all()
    assert (second.position, second.nbytes, second.crc, second.words.shape) == (200, 300, 5, (2, 8))


def test_any_damage_is_named() -> None:
    made = filter_of([b"a", b"b"])
    assert made is not None
    data = encode_filters([made])
    for at in range(len(data)):
        damaged = bytearray(data)
        damaged[at] ^= 1 << random.Random(at).randrange(8)
        with pytest.raises(Corrupt):
            decode_filters(bytes(damaged), file="f")
    for wrong in (b"", data[:5], data[:-1], data + b"x"):
        with pytest.raises(Corrupt):
            decode_filters(wrong)


def test_a_newer_version_asks_for_an_upgrade(monkeypatch: pytest.MonkeyPatch) -> None:
    made = filter_of([b"a"])
    assert made is not None
    with monkeypatch.context() as patched:
        patched.setattr(key_filter, "FORMAT_VERSION", 2)
        data = encode_filters([made])
    with pytest.raises(BadRequest, match="has format 2, this sparklog reads 1: upgrade"):
        decode_filters(data, file="f")


def test_the_document_has_the_table_and_the_limits() -> None:
    fields = key_filter.TABLE_DTYPE.fields
    assert fields is not None
    for name, (kind, at, *_) in fields.items():
        assert f"| {at} | {np.dtype(kind).newbyteorder('=').name} | {name} |" in DOCUMENT
    sizes = (key_filter.HEAD.size, f"{key_filter.TABLE_DTYPE.itemsize} each", key_filter.CRC.size)
    for part, size in zip(("head", "table", "crc"), sizes, strict=True):
        assert f"| {part} | {size} |" in DOCUMENT
    assert f"of {DEFAULTS.filter_min_bytes} bytes or more" in DOCUMENT
    assert f"first {key_filter.TRIED_RECORDS} records" in DOCUMENT
    assert tuple(SALTS) == key_filter.SALTS
