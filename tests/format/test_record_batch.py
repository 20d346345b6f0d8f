"""Test batch headers: fields, scan rules, CRC and sequences."""

from __future__ import annotations

import numpy as np
import pytest
from crc32c import crc32c

from sparklog.errors import Corrupt
from sparklog.format import record_batch
from sparklog.format.batch_scan import JOINED_BATCH_BYTES, crc_after, crc_failures, scan_headers
from sparklog.format.record_batch import BatchHeader
from tests.format.batch_samples import GOLDEN_BATCH, GOLDEN_HEADER, GOLDEN_RECORDS, encode_sample


def test_golden_header_fields() -> None:
    headers = scan_headers(GOLDEN_BATCH)
    assert len(headers) == 1
    header = headers.row(0)
    assert (header.base_offset, header.leader_epoch, header.attributes, header.last_offset_delta) == (100, 0, 0, 3)
    assert (header.base_timestamp, header.max_timestamp) == (1_700_000_000_000, 1_700_000_000_005)
    assert (header.producer_id, header.producer_epoch, header.base_sequence, header.count) == (-1, -1, -1, 3)
    assert (header.size, header.crc) == (97, 0xB7BCE39C)
    assert header.pack(GOLDEN_RECORDS) == GOLDEN_BATCH


@pytest.mark.parametrize(
    ("changes", "crc"),
    [
        ({}, 0xB7BCE39C),
        ({"attributes": 0x10, "producer_id": 1000, "producer_epoch": 5, "base_sequence": 7}, 0xA476A61E),
        ({"attributes": 0x08, "max_timestamp": 1_700_000_009_999}, 0x66227081),
    ],
)
def test_golden_checksums(changes: dict[str, int], crc: int) -> None:
    fields = {name: getattr(GOLDEN_HEADER, name) for name in BatchHeader.__slots__}
    packed = BatchHeader(**{**fields, **changes}).pack(GOLDEN_RECORDS)
    assert scan_headers(packed).crc.tolist() == [crc]
    assert crc_failures(packed, scan_headers(packed)).tolist() == []


@pytest.mark.parametrize("size", [100, JOINED_BATCH_BYTES - 61, JOINED_BATCH_BYTES])
@pytest.mark.parametrize("count", [0, 1, 3])
def test_checksum_is_combined_from_batch_checksums(size: int, count: int) -> None:
    batches = [BatchHeader(base, 0, 1, base, base).pack(bytes([base]) * (size + base)) for base in range(count)]
    data = b"".join(batches)
    assert crc_after(data, scan_headers(data), crc32c(b"before")) == crc32c(b"before" + data)
    assert crc_after(data, scan_headers(data), 0) == crc32c(data)


def test_combined_checksum_detects_wrong_position() -> None:
    """The checksum of a batch does not cover its offset."""
    data = bytearray(BatchHeader(7, 0, 1, 0, 0).pack(bytes(JOINED_BATCH_BYTES)))
    whole = crc32c(data)
    data[7] ^= 1
    assert not len(crc_failures(data, scan_headers(data)))
    assert crc_after(data, scan_headers(data), 0) == crc32c(data) != whole


def test_golden_empty_batch() -> None:
    expected = bytes.fromhex(
        "0000000000000064000000310000000002f294ddc1001000000003ffffffffffffffff0000018bcfe56805"
        "00000000000003e800050000000700000000"
    )
    header = BatchHeader(
        base_offset=100, last_offset_delta=3, count=0, base_timestamp=-1, max_timestamp=1_700_000_000_005,
        attributes=0x10, leader_epoch=0, producer_id=1000, producer_epoch=5, base_sequence=7,
    )  # fmt: skip
    assert header.pack() == expected
    headers = scan_headers(expected)
    assert headers.next_offset.tolist() == [104]
    assert headers.last_sequence.tolist() == [10]
    assert headers.is_transactional.tolist() == [True]
    assert headers.is_control.tolist() == [False]


def test_sequence_wraps_to_zero() -> None:
    header = BatchHeader(0, 3, 4, 0, 0, producer_id=1, producer_epoch=0, base_sequence=2**31 - 2)
    assert scan_headers(header.pack(b"x" * 28)).last_sequence.tolist() == [1]


def test_attribute_properties() -> None:
    packed = BatchHeader(0, 0, 0, 5, 5, attributes=0x7C).pack()
    headers = scan_headers(packed)
    assert headers.codec.tolist() == [4]
    assert headers.is_log_append_time.all()
    assert headers.is_transactional.all()
    assert headers.is_control.all()
    assert headers.has_delete_horizon.all()


def test_selecting_rows() -> None:
    headers = scan_headers(encode_sample(2000).data)
    assert len(headers) > 4
    assert headers[1:3].position.tolist() == headers.position.tolist()[1:3]
    mask = np.arange(len(headers)) % 2 == 0
    assert headers[mask].base_offset.tolist() == headers.base_offset.tolist()[::2]
    assert headers[np.array([3, 1])].size.tolist() == [int(headers.size[3]), int(headers.size[1])]


def test_scan_from_a_start_and_of_views() -> None:
    data = GOLDEN_BATCH * 3
    assert scan_headers(data, start=97).position.tolist() == [97, 194]
    for view in (bytearray(data), memoryview(data), np.frombuffer(data, np.uint8)):
        assert len(scan_headers(view)) == 3
    assert len(scan_headers(b"")) == 0


@pytest.mark.parametrize("cut", [1, 5, 17, 18, 60, 61, 96])
def test_incomplete_tail_ends_the_scan_or_is_corrupt(cut: int) -> None:
    data = GOLDEN_BATCH + GOLDEN_BATCH[:cut]
    headers = scan_headers(data, whole=False)
    assert (len(headers), headers.end, headers.stop) == (1, 97, "zeros" if cut in (1, 5) else "partial")
    with pytest.raises(Corrupt, match=r"file a\.log, position 1097"):
        scan_headers(data, file="a.log", file_position=1000)


@pytest.mark.parametrize("zeros", [1, 11, 17, 18, 500])
def test_zero_tail(zeros: int) -> None:
    headers = scan_headers(GOLDEN_BATCH + bytes(zeros), whole=False)
    assert (len(headers), headers.end, headers.stop) == (1, 97, "zeros")
    with pytest.raises(Corrupt, match="zeros"):
        scan_headers(GOLDEN_BATCH + bytes(zeros))


@pytest.mark.parametrize("length", [-(2**31), -1, 0, 13, 14, 48])
def test_impossible_lengths(length: int) -> None:
    bad = GOLDEN_BATCH[:8] + length.to_bytes(4, "big", signed=True) + GOLDEN_BATCH[12:]
    headers = scan_headers(GOLDEN_BATCH + bad, whole=False)
    assert (len(headers), headers.end, headers.stop) == (1, 97, "corrupt")
    assert str(length) in headers.reason
    with pytest.raises(Corrupt, match=f"length {length}"):
        scan_headers(bad)


def test_excessive_length_is_an_incomplete_batch() -> None:
    bad = GOLDEN_BATCH[:8] + (2**31 - 1).to_bytes(4, "big") + GOLDEN_BATCH[12:]
    headers = scan_headers(bad, whole=False)
    assert (len(headers), headers.stop) == (0, "partial")


@pytest.mark.parametrize(("magic", "text"), [(3, "magic is 3"), (255, "magic is -1")])
def test_other_magic(magic: int, text: str) -> None:
    bad = GOLDEN_BATCH[:16] + bytes([magic]) + GOLDEN_BATCH[17:]
    headers = scan_headers(GOLDEN_BATCH + bad, whole=False)
    assert (headers.stop, headers.end) == ("corrupt", 97)
    with pytest.raises(Corrupt, match=text):
        scan_headers(bad)


@pytest.mark.parametrize("magic", [0, 1])
def test_batch_with_old_magic_fails_its_checksum(magic: int) -> None:
    data = GOLDEN_BATCH + GOLDEN_BATCH[:16] + bytes([magic]) + GOLDEN_BATCH[17:] + GOLDEN_BATCH
    headers = scan_headers(data)
    assert headers.is_legacy.tolist() == [False, True, False]
    assert crc_failures(data, headers).tolist() == [1]


def test_crc_covers_all_following_bytes() -> None:
    data = GOLDEN_BATCH * 3
    headers = scan_headers(data)
    for position in range(97):
        damaged = bytearray(data)
        damaged[97 + position] ^= 0x10
        covered = position >= record_batch.CRC_START or 17 <= position < 21
        assert crc_failures(damaged, headers).tolist() == ([1] if covered and position >= 21 else [])
    changed = bytearray(data)
    changed[97 + 17] ^= 1
    assert crc_failures(changed, scan_headers(changed)).tolist() == [1]
