"""Parse and write the small text files of a Kafka log directory.

| file                                                                              | lines after `0` and the count |
|-----------------------------------------------------------------------------------|-------------------------------|
| `leader-epoch-checkpoint` (in each partition directory)                           | `<epoch> <start offset>`      |
| `replication-`, `recovery-point-`, `log-start-`, `cleaner-offset-checkpoint`      | `<topic> <partition> <offset>`|

The first line is the version, `0`, and the second line is the number of lines that follow. Each line ends with a
newline. A file that is empty or contains only the version has no entries.

`partition.metadata` has the lines `version: 0` and `topic_id: <22 characters>`. The id is a UUID in URL-safe base64
without padding. Kafka does not write a newline at the end of this file.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sparklog.errors import Corrupt

LEADER_EPOCHS_FILE = "leader-epoch-checkpoint"
HIGH_WATERMARKS_FILE = "replication-offset-checkpoint"
RECOVERY_POINTS_FILE = "recovery-point-offset-checkpoint"
LOG_STARTS_FILE = "log-start-offset-checkpoint"
CLEANER_OFFSETS_FILE = "cleaner-offset-checkpoint"
PARTITION_METADATA_FILE = "partition.metadata"
VERSION = 0

TopicPartition = tuple[str, int]


@dataclass(frozen=True, slots=True)
class LeaderEpoch:
    epoch: int
    start_offset: int


def parse_offsets(data: bytes, *, file: str | None = None) -> dict[TopicPartition, int]:
    """Return the offsets of an `*-offset-checkpoint` by (topic, partition).

    Raises `Corrupt` if the file is malformed.
    """
    offsets: dict[TopicPartition, int] = {}
    for number, fields in _lines(data, 3, file):
        partition, offset = _integers(fields[1:], number, file)
        offsets[fields[0], partition] = offset
    return offsets


def offsets_to_bytes(offsets: Mapping[TopicPartition, int]) -> bytes:
    """Return an `*-offset-checkpoint` with the entries in the order of the mapping. Kafka accepts any order."""
    return _file([f"{topic} {partition} {offset}" for (topic, partition), offset in offsets.items()])


def parse_leader_epochs(data: bytes, *, file: str | None = None) -> list[LeaderEpoch]:
    """Return the entries of a `leader-epoch-checkpoint`.

    Raises `Corrupt` if the file is malformed, epochs do not increase, or offsets decrease.
    """
    entries: list[LeaderEpoch] = []
    for number, fields in _lines(data, 2, file):
        epoch, start = _integers(fields, number, file)
        if entries and (epoch <= entries[-1].epoch or start < entries[-1].start_offset):
            raise Corrupt(
                f"leader epochs and their offsets must increase, but do not increase in line {number}", file=file
            )
        entries.append(LeaderEpoch(epoch, start))
    return entries


def leader_epochs_to_bytes(epochs: Sequence[LeaderEpoch]) -> bytes:
    return _file([f"{entry.epoch} {entry.start_offset}" for entry in epochs])


def parse_partition_metadata(data: bytes, *, file: str | None = None) -> str:
    """Return the topic id (22 characters) of a `partition.metadata`. Raises `Corrupt` if the id is missing or zero."""
    pairs = (line.split(":", 1) for line in _text(data, file).splitlines() if ":" in line)
    fields = {name.strip(): value.strip() for name, value in pairs}
    version, topic_id = fields.get("version", ""), fields.get("topic_id", "")
    if not version.isdigit() or not topic_id:
        raise Corrupt(
            "partition.metadata must have a version and a topic_id; restore the file from another replica", file=file
        )
    return checked_topic_id(topic_id, file=file)


def checked_topic_id(topic_id: str, *, file: str | None = None) -> str:
    """Return `topic_id`. Raises `Corrupt` if the id does not consist of 22 characters of base64, or is zero."""
    try:
        raw = base64.urlsafe_b64decode(topic_id + "==")
    except (binascii.Error, ValueError):
        raw = b""
    if len(raw) != 16 or len(topic_id) != 22 or not any(raw):
        raise Corrupt(f"topic_id must be 22 characters of base64 and not zero, found {topic_id!r}", file=file)
    return topic_id


def partition_metadata_to_bytes(topic_id: str) -> bytes:
    """Return the bytes of a `partition.metadata`. Like Kafka's file, it does not end with a newline."""
    return f"version: {VERSION}\ntopic_id: {topic_id}".encode()


def _lines(data: bytes, width: int, file: str | None) -> list[tuple[int, list[str]]]:
    """Return the line number and the fields of each entry, after validating the version and the count."""
    lines = _text(data, file).split("\n")
    if lines[-1] == "":
        lines.pop()
    if not lines:
        return []
    if lines[0].strip() != str(VERSION):
        raise Corrupt(f"expected checkpoint version {VERSION}, found {lines[0][:40]!r}", file=file)
    if len(lines) == 1:
        return []
    (count,) = _integers([lines[1]], 2, file)
    entries = [(number, line.split()) for number, line in enumerate(lines[2:], start=3)]
    if count != len(entries):
        raise Corrupt(f"expected {count} entries in the checkpoint, found {len(entries)}", file=file)
    for number, fields in entries:
        if len(fields) != width:
            raise Corrupt(f"expected {width} fields in line {number}, found {len(fields)}", file=file)
    return entries


def _integers(fields: Sequence[str], number: int, file: str | None) -> list[int]:
    try:
        return [int(field) for field in fields]
    except ValueError:
        raise Corrupt(f"expected integers in line {number}, found {' '.join(fields)[:80]!r}", file=file) from None


def _text(data: bytes, file: str | None) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        raise Corrupt("expected a text file in UTF-8", file=file) from None


def _file(entries: Sequence[str]) -> bytes:
    return "".join(f"{line}\n" for line in (str(VERSION), str(len(entries)), *entries)).encode()
