"""Test the fields of located records against the decoder: same records, and same errors at the same positions."""

from __future__ import annotations

import random
import sys
import textwrap
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparklog.errors import BadRequest, Corrupt
from sparklog.format import payloads as payloads_module
from sparklog.format.batch_scan import scan_headers
from sparklog.format.compression import compress
from sparklog.format.decode import decode
from sparklog.format.payloads import RecordFields, check_batch, payloads, record_fields
from sparklog.format.record_batch import (
    CODECS,
    HEADER_BYTES,
    BatchHeader,
    BatchHeaders,
    DataLocation,
    Int64Array,
    Payloads,
)
from tests.format.batch_samples import (
    ALL,
    CODEC_NAMES,
    GOLDEN_BATCH,
    GOLDEN_HEADER,
    GOLDEN_RECORDS,
    START_MS,
    encode_sample,
)
from tests.format.plain_encoder import with_create_time
from tests.format.test_damage import damaged, resealed, samples
from tests.support.forked import outcome
from tests.support.kernel_ways import both_ways
from tests.support.odd_batches import odd_batch


def fields_of(data: bytes, headers: BatchHeaders | None = None, **place: object) -> tuple[Payloads, RecordFields]:
    found = scan_headers(data) if headers is None else headers
    plain = payloads(data, found, **place)  # type: ignore[arg-type]
    return plain, record_fields(plain, found, **place)  # type: ignore[arg-type]


def keys(plain: Payloads, fields: RecordFields) -> list[bytes | None]:
    memory = plain.data.tobytes()
    spans = zip(fields.key_start.tolist(), fields.key_length.tolist(), strict=True)
    return [None if length < 0 else memory[start : start + length] for start, length in spans]


def assert_like_decode(data: bytes, headers: BatchHeaders) -> int:
    """Compare all fields with the decoder, and check that each record's bytes begin with its length.

    Return the record count.
    """
    plain, fields = fields_of(data, headers)
    columns = decode(data, with_create_time(headers), columns=ALL)
    assert columns.key is not None
    assert columns.value is not None
    assert fields.offset.tolist() == columns.offset.tolist()
    assert fields.timestamp.tolist() == columns.timestamp.tolist()
    assert fields.batch.tolist() == columns.batch.tolist()
    assert fields.batch_rows.tolist() == columns.batch_rows.tolist() == headers.count.tolist()
    assert keys(plain, fields) == columns.key.to_pylist()
    assert fields.has_key.tolist() == columns.key.is_valid().to_pylist()
    assert fields.has_value.tolist() == columns.value.is_valid().to_pylist()
    ends = np.cumsum(fields.batch_rows)
    for batch, (low, high) in enumerate(zip((ends - fields.batch_rows).tolist(), ends.tolist(), strict=True)):
        bounds = [int(plain.start[batch]), *fields.end[low:high].tolist()]
        assert fields.start[low:high].tolist() == bounds[:-1]
        assert bounds[-1] == int(plain.stop[batch])
    return len(fields)


def test_golden_records() -> None:
    plain, fields = fields_of(GOLDEN_BATCH)
    assert fields.offset.tolist() == [100, 101, 103]
    assert fields.timestamp.tolist() == [START_MS, START_MS + 5, START_MS - 10]
    assert fields.start.tolist() == [61, 79, 88]
    assert fields.end.tolist() == [79, 88, 97]
    assert fields.has_key.tolist() == [True, False, True]
    assert fields.has_value.tolist() == [True, True, False]
    assert keys(plain, fields) == [b"k1", None, b"k3"]
    assert fields.key_length.tolist() == [2, -1, 2]
    assert (fields.batch.dtype, fields.key_length.dtype, fields.has_key.dtype) == (np.int32, np.int32, np.bool_)
    assert len(fields) == 3


def test_uncompressed_batches_are_not_copied() -> None:
    data = np.frombuffer(GOLDEN_BATCH * 3, np.uint8)
    plain = payloads(data, scan_headers(data))
    assert np.shares_memory(plain.data, data)
    assert plain.start.tolist() == [61, 158, 255]
    assert plain.stop.tolist() == [97, 194, 291]


def test_mixed_codecs_in_any_order() -> None:
    chance = random.Random(4)
    parts = [encode_sample(count, codec, batch_bytes=700).data for codec in CODEC_NAMES for count in (1, 20)]
    for _ in range(4):
        chance.shuffle(parts)
        data = b"".join(parts)
        assert assert_like_decode(data, scan_headers(data)) == 5 * 21


def test_rows_in_any_order() -> None:
    data = b"".join(encode_sample(30, codec, batch_bytes=600).data for codec in ("none", "lz4", "none", "none"))
    headers = scan_headers(data)
    for rows in (slice(1, None, 2), slice(None, None, -1), np.arange(len(headers)) % 3 != 1, slice(0, 0)):
        found = headers[rows]
        assert assert_like_decode(data, found) == int(found.count.sum())


@pytest.mark.parametrize("attributes", [0, 3])
def test_emptied_batches_are_not_decompressed(attributes: int) -> None:
    empty = replace(GOLDEN_HEADER, count=0, attributes=attributes)
    data = GOLDEN_BATCH + empty.pack() + encode_sample(2, "zstd").data + empty.pack(b"junk") + GOLDEN_BATCH
    headers = scan_headers(data)
    plain, fields = fields_of(data)
    assert fields.batch_rows.tolist() == [3, 0, 2, 0, 3]
    assert (plain.stop - plain.start)[[1, 3]].tolist() == [0, 0]
    assert assert_like_decode(data, headers[np.array([0, 1, 2, 4])]) == 8


def test_no_batches() -> None:
    plain, fields = fields_of(b"")
    assert (len(plain), len(fields), len(fields.batch_rows)) == (0, 0, 0)


def test_every_fixture_batch(fixtures: Path) -> None:
    records = compressed = 0
    for name in ("codecs", "timestamps", "transactions", "compaction"):
        for path in sorted((fixtures / name).rglob("*.log")):
            data = path.read_bytes()
            headers = scan_headers(data, whole=False)
            records += assert_like_decode(data, headers)
            compressed += int((headers.codec != 0).sum())
    assert records > 15_000
    assert compressed > 200


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 60), st.sampled_from(CODEC_NAMES), st.integers(0, 400), st.integers(100, 3000))
def test_any_sizes(count: int, codec: str, value_bytes: int, batch_bytes: int) -> None:
    data = encode_sample(count, codec, batch_bytes=batch_bytes, value_bytes=value_bytes).data
    assert assert_like_decode(data, scan_headers(data)) == count


def refusal(work: object, data: bytes, headers: BatchHeaders) -> tuple[object, ...] | None:
    try:
        work(data, headers)  # type: ignore[operator]
    except Corrupt as error:
        return error.message, error.file, error.position, error.offset
    return None


def test_errors_match_those_of_decode() -> None:
    place = {"file": "x.log", "file_position": 1000}
    chance = random.Random(3)
    batches = samples()
    kinds: dict[str, int] = {}
    for _ in range(700):
        parts = [damaged(chance.choice(batches), chance), chance.choice(batches)]
        chance.shuffle(parts)
        data = b"".join(parts)
        headers = scan_headers(data, whole=False)
        expected = refusal(lambda d, h: decode(d, h, columns=ALL, location=DataLocation("x.log", 1000)), data, headers)
        assert refusal(lambda d, h: fields_of(d, h, **place), data, headers) == expected
        if expected is None:
            assert_like_decode(data, headers)
        kind = "fine" if expected is None else str(expected[0]).split(":")[0]
        kinds[kind] = kinds.get(kind, 0) + 1
    assert kinds.pop("fine") > 30
    assert len(kinds) >= 8, kinds
    assert sum(kinds.values()) > 200


def checked(data: bytes, headers: BatchHeaders) -> list[int]:
    """Return the result of a check of the first batch, interpreted and compiled."""
    header = headers.row(0)
    stored = memoryview(data)[HEADER_BYTES : header.size]

    def check() -> list[int] | Corrupt:
        try:
            return check_batch(stored, CODECS[header.attributes & 7], header.count, header.base_timestamp).tolist()
        except Corrupt as error:
            return error

    first, second = both_ways(check)
    assert str(first) == str(second)
    if isinstance(first, Corrupt):
        raise first
    return first


def times_of(times: Int64Array) -> list[int]:
    """Return the least and greatest non-negative time, and the least time that is not Kafka's "no timestamp"."""
    known, real = times[times >= 0], times[times != -1]
    least = int(known.min()) if len(known) else -1
    return [least, int(known.max(initial=-1)), int(real.min(initial=2**63 - 1))]


@pytest.mark.parametrize("times", [[-1], [-5], [-1, 7], [7, -1, 9], [-5, -1], [-(2**62), 3, -1], [0, -1], [-1, -1]])
def test_check_batch_ignores_negative_timestamps(times: list[int]) -> None:
    data = odd_batch(times)
    assert checked(data, scan_headers(data)) == [*times_of(np.array(times, np.int64)), 0]


def test_check_batch_agrees_with_record_fields() -> None:
    chance, kinds = random.Random(8), Counter[str]()
    batches = [encode_sample(count, codec, value_bytes=40).data for codec in CODEC_NAMES for count in (1, 9)]
    for number in range(500):
        batch = chance.choice(batches)
        data = resealed(damaged(batch, chance)) if number % 5 else batch
        headers = scan_headers(data, whole=False)
        fits = len(headers) == 1 and headers.count[0] == headers.last_offset_delta[0] + 1 and headers.count[0] > 0
        if not fits or headers.codec[0] >= len(CODECS) or headers.base_offset[0] < 0:
            continue
        words, *_ = refusal(fields_of, data, headers) or (None,)
        assert (refusal(checked, data, headers) or (None,))[0] == words
        kinds[str(words).split(":")[0]] += 1
        if words is None:
            _, fields = fields_of(data, headers)
            assert checked(data, headers) == [*times_of(fields.timestamp), (~fields.has_key).sum()]
    assert kinds["None"] > 100
    assert len(kinds) >= 5, kinds
    with pytest.raises(Corrupt, match="3 records do not fit into the batch"):
        check_batch(bytes(20), "none", 3, 0)


@pytest.mark.parametrize("codec", range(5))
def test_arbitrary_bytes_as_records(codec: int) -> None:
    chance = random.Random(6)
    refused = 0
    for _ in range(60):
        header = BatchHeader(0, 2**31 - 1, chance.choice([1, 2, 5, 1000, 2**31 - 1]), 0, 0, attributes=codec)
        data = header.pack(chance.randbytes(chance.randrange(200)))
        refused += refusal(fields_of, data, scan_headers(data)) is not None
    assert refused > 50


@pytest.mark.parametrize(
    ("record", "words"),
    [
        ("feffffff0f" + "00" * 50, "the length of a record exceeds"),
        ("50000000feffffff0f" + "00" * 60, "do not match its length"),
        ("500000000101feffffff0f" + "00" * 60, "do not match its length"),
        ("0e00000200010100", "do not match its length"),
        ("0c00000001010000", "continues after its last record"),
        ("0c000001010100", "offsets within the batch do not increase"),
        ("0c000002010100", "exceed its last offset"),
    ],
)
def test_hostile_records(record: str, words: str) -> None:
    header = replace(GOLDEN_HEADER, count=1, last_offset_delta=0)
    data = GOLDEN_BATCH + header.pack(bytes.fromhex(record))
    with pytest.raises(Corrupt, match=words) as raised:
        fields_of(data, file="y.log", file_position=5)
    assert raised.value.file == "y.log"
    assert raised.value.position is not None
    assert raised.value.position >= 5 + len(GOLDEN_BATCH)
    assert raised.value.offset == (101 if "continues" in words else 100)
    with pytest.raises(Corrupt, match=words):
        checked(header.pack(bytes.fromhex(record)), scan_headers(data)[1:])


def test_wrong_crc_is_corrupt_if_checked() -> None:
    data = bytearray(GOLDEN_BATCH * 2)
    data[97 + 20] ^= 1
    headers = scan_headers(data)
    with pytest.raises(Corrupt, match="CRC-32C") as raised:
        payloads(data, headers, file="z.log", file_position=3)
    assert (raised.value.file, raised.value.position, raised.value.offset) == ("z.log", 100, 100)
    assert len(record_fields(payloads(data, headers, check_crc=False), headers)) == 6


def test_decompression_bomb_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.format.test_compression import bomb

    good = encode_sample(50, "zstd").data
    data = good + replace(GOLDEN_HEADER, attributes=4).pack(bomb("zstd", 1 << 29))
    with pytest.raises(Corrupt, match=r"cannot be decompressed.*at most") as raised:
        payloads(data, scan_headers(data), file="x.log", file_position=7)
    assert (raised.value.file, raised.value.position, raised.value.offset) == ("x.log", 7 + len(good), 100)
    with pytest.raises(Corrupt, match=r"cannot be decompressed.*at most"):
        check_batch(bomb("zstd", 1 << 29), "zstd", 3, 0)
    monkeypatch.setattr(payloads_module, "CALL_LIMIT", 1000)
    with pytest.raises(BadRequest, match="fewer batches"):
        payloads(good, scan_headers(good))


def test_payloads_of_other_headers_are_rejected() -> None:
    headers = scan_headers(GOLDEN_BATCH * 2)
    with pytest.raises(BadRequest, match="found 1 payloads for 2 headers"):
        record_fields(payloads(GOLDEN_BATCH, headers[:1]), headers)
    plain = payloads(GOLDEN_BATCH * 2, headers)
    for wrong in (replace(plain, data=plain.data[:-1]), replace(plain, start=plain.start - 62)):
        with pytest.raises(BadRequest, match="is outside of the"):
            record_fields(wrong, headers)


GUARDED = """
    import ctypes, mmap, random
    from contextlib import suppress
    from dataclasses import replace
    import numpy as np
    from sparklog.errors import Corrupt
    from sparklog.format.filter_batches import filter_batches
    from sparklog.format.key_hash import HashKey, key_hashes
    from sparklog.format.payloads import check_batch, payloads, record_fields
    from sparklog.format.batch_scan import scan_headers
    from tests.format.test_damage import damaged, resealed, samples

    ROOM, PAGE = 1 << 20, mmap.PAGESIZE
    region = mmap.mmap(-1, ROOM + PAGE)
    start = ctypes.addressof(ctypes.c_char.from_buffer(region))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mprotect(ctypes.c_void_p(start + ROOM), ctypes.c_size_t(PAGE), 0) != 0:
        raise OSError("mprotect failed")

    def at_the_end(data):
        "The bytes so that the next one behind them cannot be read."
        place = (ctypes.c_uint8 * len(data)).from_address(start + ROOM - len(data))
        ctypes.memmove(place, bytes(data), len(data))
        return np.frombuffer(place, np.uint8)

    chance = random.Random(10)
    batches = samples()
    read = 0
    for number in range(900):
        batch = chance.choice(batches)
        original = damaged(batch, chance) if number % 3 else batch
        data = at_the_end(original)
        headers = scan_headers(data, whole=False)
        try:
            plain = payloads(data, headers)
            if (headers.codec != 0).any():
                plain = replace(plain, data=at_the_end(plain.data))
                data = original
            for begin, end, count in zip(plain.start, plain.stop, headers.count.tolist(), strict=True):
                with suppress(Corrupt):
                    check_batch(plain.data[begin:end], "none", count, 0)
            fields = record_fields(plain, headers)
        except Corrupt:
            continue
        key_hashes(plain.data, fields.key_start, fields.key_length, HashKey.of(bytes(16)))
        keep = np.array([chance.random() < 0.7 for _ in range(len(fields))], np.bool_)
        no, never = np.zeros(len(headers), np.bool_), np.full(len(headers), -1)
        filter_batches(data, headers, plain, fields, keep=keep, drop=no, empty=no, horizon=never)
        read += len(fields)
    print("survived", read > 5000)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="needs mprotect")
@pytest.mark.parametrize("left", [-1, 1 << 60], ids=["compiled", "interpreted"])
def test_kernels_do_not_read_beyond_their_input(left: int) -> None:
    """The input ends at the end of readable memory. Reading one more byte would crash the process."""
    chosen = f"from sparklog.format.kernels.kernel_choice import choice\nchoice.left = {left}\n"
    assert outcome(chosen + textwrap.dedent(GUARDED)) == (0, "survived True\n")


def test_golden_payloads_of_every_codec() -> None:
    for codec in CODEC_NAMES[1:]:
        data = replace(GOLDEN_HEADER, attributes=CODEC_NAMES.index(codec)).pack(compress(codec, GOLDEN_RECORDS))
        plain = payloads(data, scan_headers(data))
        assert plain.data.tobytes() == GOLDEN_RECORDS
        assert (plain.start.tolist(), plain.stop.tolist()) == ([0], [len(GOLDEN_RECORDS)])


def test_any_negative_length_is_null() -> None:
    """Writers use -1, but readers also accept -5."""
    header = replace(GOLDEN_HEADER, count=1, last_offset_delta=0)
    _, fields = fields_of(header.pack(bytes.fromhex("0c000000090900")))
    assert (fields.has_key.tolist(), fields.has_value.tolist(), fields.key_length.tolist()) == ([False], [False], [-1])
