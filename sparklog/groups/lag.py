"""How far groups are behind: per partition in records, and in seconds.

Lag in records is Kafka's: log end offset minus committed offset, whatever the isolation level of the consumer. Markers,
records of aborted transactions and offsets that compaction emptied count, as they do in `kafka-consumer-groups`. A
partition without a committed offset has no lag; like Kafka's tool, rows for such partitions are shown of groups that
are active.

Lag in seconds is how long the first record that the group has not read has been waiting: now minus its timestamp, 0
where there is none. That costs up to two requests per partition that lags.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

import numpy as np

from sparklog.errors import NotFound, SparklogError
from sparklog.groups.group import STABLE, Group, GroupDescription
from sparklog.groups.groups import Groups
from sparklog.groups.offsets import TopicOffsets
from sparklog.log.read.time_lookup import first_records
from sparklog.log.state.snapshot import Snapshot
from sparklog.log.topic.root import Root
from sparklog.log.topic.root_view import RootView
from sparklog.storage.locks import ask_each


@dataclass(frozen=True, slots=True)
class Lag:
    """One partition of a group. `current_offset` and `lag` are None where nothing is committed.

    `seconds`: None where nothing is committed, where the record has no time (Kafka's oldest format), or where it was
    not asked for. `member`: the instance that has joined, while the group is active.
    """

    group: str
    topic: str
    partition: int
    current_offset: int | None
    log_start: int
    log_end: int
    lag: int | None
    seconds: float | None
    member: str | None


def lag(
    root: Root | RootView,
    groups: Iterable[str] | None = None,
    *,
    seconds: bool = True,
    all_partitions: bool | None = None,
    now_ms: int | None = None,
    failures: list[SparklogError] | None = None,
) -> list[Lag]:
    """Rows of groups (None: all), in the order of groups, topics and partitions.

    `all_partitions`: also those of the group's topics for which nothing is committed (None: if the group is active).
    `now_ms`: what seconds are counted from (default: the clock). A group that does not exist has no rows.
    A group or a topic that cannot be read has none, one whose unread records cannot be has no seconds, and the error is
    put into `failures`, or raised.
    """
    opened = root.root if isinstance(root, RootView) else root
    names = Groups(opened).names(failures) if groups is None else list(dict.fromkeys(groups))
    found: list[Lag] = []
    # Topics are looked at after the offsets: what is committed meanwhile would seem to lie beyond their ends.
    states = Groups(opened).states(names, failures)
    taken = _snapshots(opened, {each.topic for state in states.values() for each in state.offsets}, failures)
    for name, state in states.items():
        description = Group(opened, name).description(state=state)
        every = description.state == STABLE if all_partitions is None else all_partitions
        for offsets in state.offsets:
            snapshot = taken.get(offsets.topic)
            if snapshot is not None and snapshot.head.topic_id == offsets.topic_id:
                waits = _waits(opened, snapshot, offsets, now_ms, failures) if seconds else None
                found += _rows(description, snapshot, offsets, waits, every)
    return found


def _snapshots(root: Root, topics: Collection[str], failures: list[SparklogError] | None) -> dict[str, Snapshot]:
    def look(topic: str) -> Snapshot | SparklogError:
        try:
            return root.topic_handle(topic).read_snapshot()
        except SparklogError as error:
            return error

    found: dict[str, Snapshot] = {}
    names = sorted(topics)
    for name, one in zip(names, ask_each(root.store, look, names), strict=True):
        if isinstance(one, Snapshot):
            found[name] = one
        elif not isinstance(one, NotFound):
            if failures is None:
                raise one
            failures.append(one)
    return found


def _rows(
    group: GroupDescription,
    snapshot: Snapshot,
    offsets: TopicOffsets,
    waits: dict[int, float | None] | None,
    every: bool,
) -> list[Lag]:
    head = snapshot.head
    current = np.full(head.partitions, -1, np.int64)
    partitions = np.asarray(offsets.partition, np.int64)
    there = partitions < head.partitions
    current[partitions[there]] = np.asarray(offsets.offset, np.int64)[there]
    behind = head.log_end - current
    shown = np.arange(head.partitions) if every else np.flatnonzero(current >= 0)
    columns = (shown, current[shown], head.log_start[shown], head.log_end[shown], behind[shown])
    return [
        Lag(
            group.id,
            offsets.topic,
            partition,
            None if at < 0 else at,
            start,
            end,
            None if at < 0 else left,
            None if at < 0 or waits is None else waits.get(partition, 0.0),
            group.instance,
        )
        for partition, at, start, end, left in zip(*(column.tolist() for column in columns), strict=True)
    ]


def _waits(
    root: Root, snapshot: Snapshot, offsets: TopicOffsets, now_ms: int | None, failures: list[SparklogError] | None
) -> dict[int, float | None] | None:
    try:
        return _seconds(root, snapshot, offsets, now_ms)
    except SparklogError as error:
        if failures is None:
            raise
        failures.append(error)
        return None


def _seconds(root: Root, snapshot: Snapshot, offsets: TopicOffsets, now_ms: int | None) -> dict[int, float | None]:
    """Partition to seconds since its first unread record was written (None: it has no time), of those that have one."""
    head = snapshot.head
    unread = {
        partition: offset
        for partition, offset in zip(offsets.partition, offsets.offset, strict=True)
        if partition < head.partitions and offset < head.log_end[partition]
    }
    newer = root.topic_handle(snapshot.topic).read_snapshot
    if root.store.parallel_reads > 1:
        each = [{partition: offset} for partition, offset in unread.items()]
        answers = list(ask_each(root.store, lambda one: first_records(snapshot, one, newer=newer), each))
    else:
        answers = [first_records(snapshot, unread, newer=newer)]
    now = root.env.wall_ms() if now_ms is None else now_ms
    return {
        partition: max(0, now - answer.timestamp) / 1000 if answer.timestamp >= 0 else None
        for each in answers
        for partition, answer in each.items()
        if answer is not None
    }
