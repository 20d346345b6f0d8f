"""Test the text files of a Kafka log directory."""

from __future__ import annotations

from pathlib import Path

import pytest

from sparklog.errors import Corrupt
from sparklog.format import checkpoint_files as files


def test_leader_epochs_round_trip() -> None:
    epochs = [files.LeaderEpoch(0, 0), files.LeaderEpoch(4, 1)]
    assert files.parse_leader_epochs(b"0\n2\n0 0\n4 1\n") == epochs
    assert files.leader_epochs_to_bytes(epochs) == b"0\n2\n0 0\n4 1\n"


def test_offsets_round_trip() -> None:
    offsets = {("a.b-c", 0): 12, ("a.b-c", 10): 2**62}
    data = files.offsets_to_bytes(offsets)
    assert data == f"0\n2\na.b-c 0 12\na.b-c 10 {2**62}\n".encode()
    assert files.parse_offsets(data) == offsets
    assert files.parse_offsets(b"0\n1\nt \t 3    7") == {("t", 3): 7}


@pytest.mark.parametrize("data", [b"", b"0\n", b"0", b"0\n0\n"])
def test_files_without_entries(data: bytes) -> None:
    assert files.parse_offsets(data) == {}
    assert files.parse_leader_epochs(data) == []


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"1\n0\n", "version 0"),
        (b"0\nx\n", "integers in line 2"),
        (b"0\n2\nt 0 1\n", "expected 2 entries in the checkpoint, found 1"),
        (b"0\n1\nt 0 1\n\n", "expected 1 entries in the checkpoint, found 2"),
        (b"0\n1\nt 0\n", "expected 3 fields in line 3"),
        (b"0\n1\nt 0 x\n", "integers in line 3"),
        (b"\xff\xfe", "UTF-8"),
    ],
)
def test_malformed_offsets_are_corrupt(data: bytes, message: str) -> None:
    with pytest.raises(Corrupt, match=f"{message}.*file f"):
        files.parse_offsets(data, file="f")


def test_decreasing_leader_epochs_are_corrupt() -> None:
    with pytest.raises(Corrupt, match="line 4"):
        files.parse_leader_epochs(b"0\n2\n4 0\n3 1\n")


def test_partition_metadata_round_trip(fixtures: Path) -> None:
    data = (fixtures / "segments/data/seg-one-0/partition.metadata").read_bytes()
    topic_id = files.parse_partition_metadata(data)
    assert len(topic_id) == 22
    assert files.partition_metadata_to_bytes(topic_id) == data
    assert files.parse_partition_metadata(data + b"\n") == topic_id


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"version: 0",
        b"version: x\ntopic_id: " + b"B" * 22,
        b"version: 0\ntopic_id: AAAA",
        b"version: 0\ntopic_id: " + b"A" * 22,
    ],
)
def test_invalid_partition_metadata_is_corrupt(data: bytes) -> None:
    with pytest.raises(Corrupt):
        files.parse_partition_metadata(data)


def test_fixture_checkpoints_round_trip(fixtures: Path) -> None:
    epochs = offsets = 0
    for file in fixtures.glob("*/data/*-offset-checkpoint"):
        found = files.parse_offsets(file.read_bytes(), file=str(file))
        assert files.parse_offsets(files.offsets_to_bytes(found)) == found
        offsets += len(found)
    for file in fixtures.glob("*/data/*/leader-epoch-checkpoint"):
        data = file.read_bytes()
        assert files.leader_epochs_to_bytes(files.parse_leader_epochs(data, file=str(file))) == data
        epochs += 1
    assert offsets > 50
    assert epochs > 40
