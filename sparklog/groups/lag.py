"""How far groups are behind: per partition in records, and in seconds.

Lag in records is Kafka's: log end offset minus committed offset, whatever the isolation level of the consumer. Markers,
records of aborted transactions and offsets that compaction emptied count, as they do in `kafka-consumer-groups`. A
partition without a committed offset has no lag; like Kafka's tool, rows for such partitions are shown of groups that
are active.

Lag in seconds is how long the first record that the group has not read has been waiting: now minus its timestamp, 0
where there is none. That costs up to two requests per partition that lags.
"""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from sparklog.errors import NotFound, SparklogError
from sparklog.groups.group import STABLE, Group, GroupDescription
from sparklog.groups.groups import Groups
from sparklog.groups.offsets import TopicOffsets
from sparklog.log.lookup import first_records
from sparklog.log.root import Root
from sparklog.log.root_view import RootView
from sparklog.log.snapshot import Snapshot

__all__ = ["Lag", "lag"]

AT_ONCE = 32


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
    A topic that cannot be read has none, one whose unread records cannot be has no seconds, and the error is put into
    `failures`, or raised.
    """
    opened = root.root if isinstance(root, RootView) else root
    names = Groups(opened).names() if groups is None else list(groups)
    found: list[Lag] = []
    taken: dict[str, Snapshot | None] = {}
    # Topics are looked at after the offsets: what is committed meanwhile would seem to lie beyond their ends.
    groups_now = [(group, group.state()) for group in (Group(opened, name) for name in names)]
    for group, state in groups_now:
        description = group.description(state=state)
        every = description.state == STABLE if all_partitions is None else all_partitions
        for offsets in state.offsets:
            if offsets.topic not in taken:
                taken[offsets.topic] = _snapshot(opened, offsets.topic, failures)
            snapshot = taken[offsets.topic]
            if snapshot is not None and snapshot.head.topic_id == offsets.topic_id:
                waits = _waits(opened, snapshot, offsets, now_ms, failures) if seconds else None
                found += _rows(description, snapshot, offsets, waits, every)
    return found


def _snapshot(root: Root, topic: str, failures: list[SparklogError] | None) -> Snapshot | None:
    try:
        return root.topic_handle(topic).read_snapshot()
    except NotFound:
        return None
    except SparklogError as error:
        if failures is None:
            raise
        failures.append(error)
        return None


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
    if len(unread) > 1 and getattr(root.store, "parallel_reads", 1) > 1:
        with ThreadPoolExecutor(AT_ONCE, thread_name_prefix="sparklog-lag") as pool:
            answers = list(pool.map(lambda item: first_records(snapshot, dict([item]), newer=newer), unread.items()))
    else:
        answers = [first_records(snapshot, unread, newer=newer)]
    now = root.env.wall_ms() if now_ms is None else now_ms
    return {
        partition: max(0, now - answer.timestamp) / 1000 if answer.timestamp >= 0 else None
        for each in answers
        for partition, answer in each.items()
        if answer is not None
    }
