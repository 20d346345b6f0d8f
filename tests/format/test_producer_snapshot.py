"""Test producer snapshots: round trips of Kafka's bytes, and invalid snapshots."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from crc32c import crc32c

from sparklog.errors import Corrupt
from sparklog.format.producer_snapshot import ProducerEntry, parse_snapshot, snapshot_to_bytes
from tests.fixture_data import fixture_tree

KAFKAS = bytes.fromhex(
    "0001 06c63e9b 00000002"
    "00000000000003e8 0005 0000000a 0000000000000067 00000003 0000018bcfe56805 00000007 0000000000000064"
    "00000000000003e9 0000 ffffffff ffffffffffffffff 00000000 0000018bcfe56864 ffffffff ffffffffffffffff"
)
ENTRIES = [
    ProducerEntry(1000, 5, 10, 103, 3, 1_700_000_000_005, 7, 100),
    ProducerEntry(1001, 0, -1, -1, 0, 1_700_000_000_100, -1, -1),
]


def test_snapshot_written_by_kafka_round_trips() -> None:
    assert parse_snapshot(KAFKAS) == ENTRIES
    assert snapshot_to_bytes(reversed(ENTRIES)) == KAFKAS


def test_snapshot_without_producers() -> None:
    assert snapshot_to_bytes([]) == struct.pack(">hIi", 1, crc32c(bytes(4)), 0)
    assert parse_snapshot(snapshot_to_bytes([])) == []


def snapshots() -> list[Path]:
    found = fixture_tree().glob("**/data*/*/*.snapshot")
    return sorted(path for path in found if "snapshots-damaged" not in path.parts)


def test_fixture_snapshots_round_trip() -> None:
    found = snapshots()
    assert len(found) > 50
    for path in found:
        data = path.read_bytes()
        entries = parse_snapshot(data, file=str(path))
        written = snapshot_to_bytes(entries)
        assert sorted(parse_snapshot(written), key=repr) == sorted(entries, key=repr)
        assert len(written) == len(data)


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        (b"", "at least 10 bytes, found 0"),
        (b"\x00\x02" + KAFKAS[2:], "version 1, found 2"),
        (KAFKAS[:-1] + b"\x00", "CRC-32C"),
        (KAFKAS[:-1], "CRC-32C"),
        (b"\x00\x01" + struct.pack(">I", crc32c(b"\x00\x00\x00\x09")) + b"\x00\x00\x00\x09", "expected 9 entries"),
    ],
)
def test_invalid_snapshot_is_corrupt(data: bytes, complaint: str) -> None:
    with pytest.raises(Corrupt, match=complaint) as raised:
        parse_snapshot(data, file="1.snapshot")
    assert raised.value.file == "1.snapshot"
