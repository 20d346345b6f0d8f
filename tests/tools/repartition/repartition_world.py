"""A world with a topic to copy: each record has a unique name, so that any state of the copy can be checked."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache

import pyarrow as pa
from kafka.partitioner.default import murmur2

from sparklog.groups.group import Group
from sparklog.groups.lag import Groups
from sparklog.log.state.record_schema import HEADERS_TYPE
from sparklog.log.topic.root import Root
from sparklog.testing.world import World
from sparklog.tools.repartition import MovedGroup, Repartitioned, repartition

KEYS = [None, b"", *(b"key %d" % number for number in range(40))]
SMALL_STEPS = 900
"""Bytes of a step, which are a few dozen records."""


@cache
def partition_of(key: bytes, partitions: int) -> int:
    """Return the partition that kafka-python's default partitioner computes."""
    return int((murmur2(key) & 0x7FFFFFFF) % partitions)


@dataclass(frozen=True)
class Record:
    """A record without partition and offset. The first header is a unique name."""

    key: bytes | None
    value: bytes | None
    time_ms: int
    headers: tuple[tuple[str, bytes | None], ...]

    def partition(self, old: int, partitions: int) -> int:
        """Return the partition that kafka-python computes, or the documented partition of a record without a key."""
        return old % partitions if self.key is None else partition_of(self.key, partitions)


class RepartitionWorld(World):
    """A world with the topic `old`."""

    def __init__(self, partitions: int = 3, configs: Mapping[str, object] | None = None, seed: int = 0) -> None:
        super().__init__(seed=seed)
        self.names = 0
        self.root().create_topic("old", partitions=partitions, configs=configs)

    def rows(self, keys: Sequence[bytes | None], partition: int | None = None) -> pa.Table:
        """Return records with names; every fifth has no value. If `partition` is given, it is set explicitly."""
        numbers = range(self.names, self.names + len(keys))
        self.names += len(keys)
        columns = {
            "key": pa.array(keys, pa.binary()),
            "value": pa.array([None if number % 5 == 4 else b"value %d" % number for number in numbers], pa.binary()),
            "timestamp": [1_600_000_000_000 + 1_000 * (number * 7 % 91) for number in numbers],
            "headers": pa.array([[("name", b"%d" % number), ("null", None)] for number in numbers], HEADERS_TYPE),
        }
        return pa.table(columns if partition is None else {**columns, "partition": [partition] * len(keys)})

    def append(self, count: int = 40, *, by_hand: bool = False, topic: str = "old") -> None:
        """Append rows with alternating keys; with `by_hand`, all of them to partition 0."""
        keys = [KEYS[(self.names + number) * 5 % len(KEYS)] for number in range(count)]
        self.root().topic(topic).append(self.rows(keys, 0 if by_hand else None))

    def copy(
        self, partitions: int = 5, *, root: Root | None = None, groups: bool = False, step_bytes: int = SMALL_STEPS
    ) -> Repartitioned:
        return repartition(
            root or self.root(), "old", "new", partitions=partitions, move_groups=groups, step_bytes=step_bytes
        )

    def group(self, name: str, **offsets: Mapping[int, int]) -> Group:
        """Create a group with these offsets by topic."""
        group = Groups(self.root()).group(name)
        group.alter(offsets)
        return group


def records_of(root: Root, topic: str) -> dict[int, dict[int, Record]]:
    """Return the committed records by partition and offset."""
    records: dict[int, dict[int, Record]] = defaultdict(dict)
    for row in root.topic(topic).scan().to_table().to_pylist():
        headers = tuple((header["key"], header["value"]) for header in row["headers"] or ())
        time_ms = int(row["timestamp"].timestamp() * 1000)
        records[row["partition"]][row["offset"]] = Record(row["key"], row["value"], time_ms, headers)
    return records


def check_copy(root: Root, partitions: int) -> None:
    """Check that `new` has each record of `old` once in its partition, in order for one old partition and one key."""
    old, new = records_of(root, "old"), records_of(root, "new")
    before = {record: (partition, offset) for partition, rows in old.items() for offset, record in rows.items()}
    after = [(partition, record) for partition, rows in new.items() for _, record in sorted(rows.items())]
    assert len(after) == len(before)
    assert {record for _, record in after} == before.keys()
    newest: dict[tuple[int, int], int] = {}
    for partition, record in after:
        source, offset = before[record]
        assert partition == record.partition(source, partitions), record
        assert newest.get((source, partition), -1) < offset, record
        newest[source, partition] = offset


def check_group(root: Root, committed: Mapping[int, int], moved: MovedGroup) -> int:
    """Check that a group with these offsets in `old` skips nothing in `new`, and repeats only the reported records.

    A group that had read everything reads nothing. Return the number of unread records.
    """
    assert not moved.problem
    old, new = records_of(root, "old"), records_of(root, "new")
    unread = {
        record
        for partition, rows in old.items()
        for offset, record in rows.items()
        if offset >= committed.get(partition, 0)
    }
    to_read = {
        record
        for partition, rows in new.items()
        for offset, record in rows.items()
        if offset >= moved.offsets[partition]
    }
    assert unread <= to_read
    assert len(to_read) - len(unread) <= moved.again
    if not unread:
        assert not to_read
    return len(unread)
