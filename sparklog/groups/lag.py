"""The consumer groups of a root, and their lag per partition, in records and in seconds.

The lag in records is computed as in Kafka: the log end offset minus the committed offset, regardless of the consumer's
isolation level. It includes transaction markers, aborted records and compacted offsets. As in Kafka's tool, active
groups also have rows for partitions without a committed offset. The lag in seconds is the age of the first unread
record. Computing the lag in seconds requires up to two requests for each partition with lag.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from sparklog.arguments import NAME, NAMES, checked
from sparklog.errors import NotFound, SparklogError
from sparklog.groups.group import Group, GroupDescription
from sparklog.groups.group_state import GROUPS, GroupState
from sparklog.log.journal.chain import ids_of
from sparklog.log.state.slice_table import Snapshot
from sparklog.log.topic.root import ROOT, Root, RootView, open_root
from sparklog.storage.parallel_reads import map_requests, read_each
from sparklog.storage.store import Store


class Groups:
    """The consumer groups of a root.

    Args:
        root: An open root, or its location.

    Example:
        groups = sparklog.Groups("/data/log")
        for name in groups.names():
            print(name, groups.group(name).committed())
    """

    @checked(root=ROOT)
    def __init__(self, root: Root | Store | str | os.PathLike[str]) -> None:
        self.root = root if isinstance(root, Root) else open_root(root)

    def __repr__(self) -> str:
        return f"Groups({self.root.location!r})"

    def names(self, failures: list[SparklogError] | None = None) -> list[str]:
        """List the groups. A few requests per group are required.

        Args:
            failures: A list to which the errors of unreadable groups are added. If None, the first error is raised.

        Returns:
            The sorted ids of the groups.
        """
        names = sorted(ids_of(self.root.store, GROUPS, failures))
        entries = self.root.engine.entries
        states = read_each(self.root.store, lambda name: entries(GROUPS, name).refresh(), names, failures)
        return [name for name, state in states.items() if state.exists]

    @checked(names=NAMES)
    def descriptions(
        self, names: Sequence[str], failures: list[SparklogError] | None = None
    ) -> dict[str, GroupDescription]:
        """Describe groups.

        Args:
            names: The ids of the groups.
            failures: A list to which the errors of unreadable groups are added. If None, the first error is raised.

        Returns:
            The description of each group: Kafka's name of its state, its generation, members and pending offsets.
        """
        return read_each(self.root.store, lambda name: self.group(name).description(), names, failures)

    def states(self, names: Sequence[str], failures: list[SparklogError] | None = None) -> dict[str, GroupState]:
        return read_each(self.root.store, lambda name: self.group(name).state(), names, failures)

    @checked(name=NAME)
    def group(self, name: str) -> Group:
        """Return a group, which may not exist yet.

        Args:
            name: The id of the group.

        Returns:
            A `Group`, which can read and change the committed offsets.

        Raises:
            BadRequest: If the id is invalid.
        """
        return Group(self.root, name)


Ages = dict[int, float | None]


@dataclass(frozen=True, slots=True)
class Lag:
    """The lag of a group in one partition."""

    group: str
    topic: str
    partition: int
    current_offset: int | None
    """The committed offset; None if no offset is committed."""
    log_start: int
    log_end: int
    lag: int | None
    """The number of unread offsets; None if no offset is committed."""
    seconds: float | None
    """The age of the first unread record.

    The age is None if no offset is committed, if the record does not have a timestamp (Kafka's oldest message format),
    or if the lag in seconds was not requested.
    """
    member: str | None
    """The id of the member that owns the partition, if the group is active."""


def lag(
    root: Root | RootView,
    groups: Iterable[str] | None = None,
    *,
    seconds: bool = True,
    all_partitions: bool | None = None,
    now_ms: int | None = None,
    failures: list[SparklogError] | None = None,
) -> list[Lag]:
    """Return the lag of groups, sorted by group, topic and partition.

    The result does not contain rows for groups that do not exist, or for groups and topics that cannot be read.
    `seconds` is None if the first unread record cannot be read.

    Args:
        groups: The ids of the groups, or None for all groups.
        seconds: Also compute the lag in seconds.
        all_partitions: If True, also return partitions of the group's topics without a committed offset. If None,
            return these partitions only if the group is active.
        now_ms: The time from which the ages of records are computed. If None, the current time is used.
        failures: A list to which read errors are added. If None, the first error is raised.
    """
    opened = root.root if isinstance(root, RootView) else root
    names = Groups(opened).names(failures) if groups is None else list(dict.fromkeys(groups))
    rows: list[Lag] = []
    # Read the topics after the offsets. Otherwise, offsets that were committed in between could exceed the log end.
    states = Groups(opened).states(names, failures)
    topics = {topic for state in states.values() for topic in _topics(state, state.partitions)}
    snapshots = _snapshots(opened, topics, failures)
    for name, state in states.items():
        description = Group(opened, name).description(state=state)
        include_all = description.is_active if all_partitions is None else all_partitions
        subscribed: Collection[str] = state.partitions if include_all else ()
        by_topic = {offsets.topic_and_id: offsets for offsets in state.offsets}
        for topic in _topics(state, subscribed):
            snapshot = snapshots.get(topic)
            if snapshot is None:
                continue
            offsets = by_topic.get((topic, snapshot.state.topic_id))
            if offsets is None and topic not in subscribed:
                continue
            committed: dict[int, int] = {}
            if offsets is not None:
                committed = {p: offset for _, p, offset in offsets.positions() if p < snapshot.state.partitions}
            ages = _ages(opened, snapshot, committed, now_ms, failures) if seconds else None
            rows += _rows(description, snapshot, committed, ages, include_all)
    return rows


def _topics(state: GroupState, subscribed: Collection[str]) -> list[str]:
    """Return the subscribed topics and the topics with committed offsets, sorted."""
    return sorted({*subscribed, *(offsets.topic for offsets in state.offsets)})


def _snapshots(root: Root, topics: Collection[str], failures: list[SparklogError] | None) -> dict[str, Snapshot]:
    def read(topic: str) -> Snapshot | None:
        with suppress(NotFound):
            return root.engine.log(topic).read_snapshot()
        return None

    snapshots = read_each(root.store, read, sorted(topics), failures)
    return {topic: snapshot for topic, snapshot in snapshots.items() if snapshot is not None}


def _rows(
    group: GroupDescription, snapshot: Snapshot, committed: dict[int, int], ages: Ages | None, include_all: bool
) -> list[Lag]:
    starts, ends = snapshot.state.log_start.tolist(), snapshot.state.log_end.tolist()
    rows = []
    for partition in range(len(ends)) if include_all else committed:
        offset = committed.get(partition)
        behind = None if offset is None else ends[partition] - offset
        age = None if offset is None or ages is None else ages.get(partition, 0.0)
        owner = group.owner(snapshot.topic, partition)
        rows.append(
            Lag(group.id, snapshot.topic, partition, offset, starts[partition], ends[partition], behind, age, owner)
        )
    return rows


def _ages(
    root: Root, snapshot: Snapshot, committed: dict[int, int], now_ms: int | None, failures: list[SparklogError] | None
) -> Ages | None:
    """Return the age in seconds of the first unread record, for each partition that has unread records.

    The age is None if the record has no timestamp. The result is None if the records cannot be read.
    """
    from sparklog.log.read.time_lookup import first_records

    unread = {
        partition: offset for partition, offset in committed.items() if offset < snapshot.state.log_end[partition]
    }
    newer = root.engine.log(snapshot.topic).read_snapshot
    targets = list(unread.items())
    chunk_size = max(1, -(-len(targets) // root.store.parallel_reads))
    chunks = [dict(targets[first : first + chunk_size]) for first in range(0, len(targets), chunk_size)]
    try:
        results = list(map_requests(root.store, lambda chunk: first_records(snapshot, chunk, newer=newer), chunks))
    except SparklogError as error:
        if failures is None:
            raise
        failures.append(error)
        return None
    now = root.env.wall_ms() if now_ms is None else now_ms
    return {
        partition: max(0, now - record.timestamp) / 1000 if record.timestamp >= 0 else None
        for records in results
        for partition, record in records.items()
        if record is not None
    }
