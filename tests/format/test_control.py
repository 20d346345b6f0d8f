"""Test control records and end-of-transaction markers."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sparklog.errors import Corrupt
from sparklog.format.batch_scan import crc_failures, scan_headers
from sparklog.format.compression import compress
from sparklog.format.control import (
    ABORT,
    COMMIT,
    UNKNOWN,
    ControlRecord,
    control_types,
    coordinator_epochs,
    end_txn_marker,
    parse_control_record,
    parse_control_type,
)
from sparklog.format.record_batch import BatchHeader
from tests.format.batch_samples import GOLDEN_BATCH, decode_all, rows

COMMIT_MARKER = bytes.fromhex(
    "0000000000000068000000420000000302f256e20a0030000000000000018bcfe568640000018bcfe56864"
    "00000000000003e80005ffffffff00000001" + "20000000080000" + "00010c00000000000700"
)
MARKER_HEADER = BatchHeader(104, 0, 1, 5, 5, attributes=0x30, producer_id=1000, producer_epoch=5)


def marker(commit: bool) -> bytes:
    return end_txn_marker(
        commit=commit,
        offset=104,
        timestamp=1_700_000_000_100,
        producer_id=1000,
        producer_epoch=5,
        coordinator_epoch=7,
        leader_epoch=3,
    )


def test_golden_markers() -> None:
    assert marker(commit=True) == COMMIT_MARKER
    assert len(COMMIT_MARKER) == 78
    assert scan_headers(marker(commit=False)).crc.tolist() == [0x06683442]
    assert rows(decode_all(marker(commit=False)))[0][2:] == (bytes(4), bytes.fromhex("000000000007"), None)


def test_types_of_batches() -> None:
    emptied = replace(MARKER_HEADER, count=0).pack()
    data = GOLDEN_BATCH + marker(commit=False) + marker(commit=True) + emptied
    headers = scan_headers(data)
    assert control_types(data, headers).tolist() == [UNKNOWN, ABORT, COMMIT, UNKNOWN]
    assert control_types(data, headers[2:3]).tolist() == [COMMIT]
    assert crc_failures(data, headers).tolist() == []


def test_compressed_control_batch_is_decoded() -> None:
    payload = compress("zstd", marker(commit=True)[61:])
    data = replace(MARKER_HEADER, attributes=0x34).pack(payload)
    assert control_types(data, scan_headers(data)).tolist() == [COMMIT]


def test_scan_with_markers_of_all_forms() -> None:
    record = COMMIT_MARKER[61:]

    def shaped(start: str) -> bytes:
        return MARKER_HEADER.pack(bytes.fromhex(start) + record[len(bytes.fromhex(start)) :])

    parts = {
        shaped("20 00 00 00 08 0000 0006"): 6,
        shaped("20 00 00 00 08 0000 0007"): UNKNOWN,
        shaped("20 00 00 00 08 0000 0101"): UNKNOWN,
        shaped("20 00 00 00 08 0000 ffff"): UNKNOWN,
        shaped("20 00 00 00 08 0001 0001"): COMMIT,
        shaped("20 01 02 02 08 0000 0000"): ABORT,
        # As the cleaner writes it: the timestamp delta is relative to a delete horizon.
        MARKER_HEADER.pack(b"\x22\x00\xff\x01" + record[3:]): COMMIT,
        replace(MARKER_HEADER, attributes=0x31).pack(compress("gzip", marker(commit=False)[61:])): ABORT,
        marker(commit=False): ABORT,
    }
    data = b"".join(parts)
    headers = scan_headers(data)
    assert control_types(data, headers).tolist() == list(parts.values())
    assert control_types(data, headers[::-1]).tolist() == list(parts.values())[::-1]


def test_parse() -> None:
    record = parse_control_record(bytes.fromhex("00000001"), bytes.fromhex("000000000007"))
    assert record == ControlRecord(COMMIT, 7)
    later = parse_control_record(bytes.fromhex("00010000ffff"), bytes.fromhex("000300000009aabb"))
    assert later == ControlRecord(ABORT, 9)
    assert parse_control_record(bytes.fromhex("00000003"), None) == ControlRecord(3)
    assert parse_control_type(bytes.fromhex("00000007")) == UNKNOWN
    assert parse_control_type(bytes.fromhex("0000ffff")) == UNKNOWN


@pytest.mark.parametrize(("key", "value"), [("", "000000000000"), ("0000", None), ("ffff0001", None)])
def test_invalid_keys(key: str, value: str | None) -> None:
    with pytest.raises(Corrupt, match="key"):
        parse_control_record(bytes.fromhex(key), None if value is None else bytes.fromhex(value))
    with pytest.raises(Corrupt, match="key"):
        parse_control_type(None)


@pytest.mark.parametrize("value", [None, "", "0000000000", "ffff00000000"])
def test_invalid_values(value: str | None) -> None:
    with pytest.raises(Corrupt, match="value"):
        parse_control_record(bytes(4), None if value is None else bytes.fromhex(value))


@pytest.mark.parametrize(
    "payload", ["", "20", "2000", "20000000ffffffffff", "20000000080000", "1000000004ff", "20" + "80" * 12]
)
def test_damaged_control_batch_reports_its_position(payload: str) -> None:
    data = GOLDEN_BATCH + MARKER_HEADER.pack(bytes.fromhex(payload))
    with pytest.raises(Corrupt) as raised:
        control_types(data, scan_headers(data), file="x.log", file_position=10)
    assert (raised.value.file, raised.value.position, raised.value.offset) == ("x.log", 107, 104)


def test_coordinator_epochs_of_markers() -> None:
    """Plain markers, a marker with additional fields, and batches that are not markers."""
    plain = [
        end_txn_marker(
            commit=n % 2 == 0,
            offset=n,
            timestamp=5,
            producer_id=7,
            producer_epoch=0,
            coordinator_epoch=epoch,
        )
        for n, epoch in enumerate((0, 7, 2**31 - 1, 3))
    ]
    key, value = bytes.fromhex("00000001"), bytes.fromhex("000000000009") + b"more"
    body = bytes((0, 0, 0, 2 * len(key))) + key + bytes((2 * len(value),)) + value + b"\x00"
    longer = replace(MARKER_HEADER, base_offset=4).pack(bytes((2 * len(body),)) + body)
    emptied = replace(MARKER_HEADER, base_offset=5, count=0).pack(b"")
    data = b"".join([*plain, longer, emptied])
    assert coordinator_epochs(data, scan_headers(data)).tolist() == [0, 7, 2**31 - 1, 3, 9, -1]
