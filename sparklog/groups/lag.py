"""The consumer groups of a root, and their lag: per partition in records, and in seconds.

Lag in records is Kafka's: log end offset minus committed offset, whatever the isolation level of the consumer. Markers,
records of aborted transactions and offsets that compaction emptied count. Like in Kafka's tool, rows for partitions
without a committed offset are shown of groups that are active. Lag in seconds is the age of the first record that the
group has not read: up to two requests per partition that lags.
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
    """Consumer groups of a root: an open one, or the path of one.

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
        """List the groups. Costs a few requests per group.

        Args:
            failures: takes the errors of groups that cannot be read; None: the first one is raised.

        Returns:
            Their names, sorted.
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
            names: of the groups.
            failures: as for `names`.

        Returns:
            By name: state in Kafka's words, generation, member, pending offsets.
        """
        return read_each(self.root.store, lambda name: self.group(name).description(), names, failures)

    def states(self, names: Sequence[str], failures: list[SparklogError] | None = None) -> dict[str, GroupState]:
        return read_each(self.root.store, lambda name: self.group(name).state(), names, failures)

    @checked(name=NAME)
    def group(self, name: str) -> Group:
        """Return a group, which may not exist yet.

        Args:
            name: its id.

        Returns:
            A `Group`: its committed offsets, and how to change them.

        Raises:
            BadRequest: no group can have this name.
        """
        return Group(self.root, name)


Ages = dict[int, float | None]


@dataclass(frozen=True, slots=True)
class Lag:
    """Lag of a group in one partition."""

    group: str
    topic: str
    partition: int
    current_offset: int | None  # None where no offset is committed
    log_start: int
    log_end: int
    lag: int | None  # likewise
    seconds: float | None  # likewise, and where the record has no time (Kafka's oldest format) or it was not asked for
    member: str | None  # the instance that has joined, while the group is active


def lag(
    root: Root | RootView,
    groups: Iterable[str] | None = None,
    *,
    seconds: bool = True,
    all_partitions: bool | None = None,
    now_ms: int | None = None,
    failures: list[SparklogError] | None = None,
) -> list[Lag]:
    """Return the lag of groups (None: all), in the order of groups, topics and partitions.

    A group that does not exist has no rows, nor has a group or a topic that cannot be read. Unread records that cannot
    be read have no seconds. These errors are put into `failures`, or raised. `all_partitions`: also of partitions of
    its topics without a committed offset (None: if it is active); `now_ms`: seconds are counted from it.
    """
    opened = root.root if isinstance(root, RootView) else root
    names = Groups(opened).names(failures) if groups is None else list(dict.fromkeys(groups))
    rows: list[Lag] = []
    # Topics are looked at after the offsets: what is committed meanwhile would seem to be beyond their ends.
    states = Groups(opened).states(names, failures)
    snapshots = _snapshots(opened, {offsets.topic for state in states.values() for offsets in state.offsets}, failures)
    for name, state in states.items():
        description = Group(opened, name).description(state=state)
        every = description.is_active if all_partitions is None else all_partitions
        for offsets in state.offsets:
            snapshot = snapshots.get(offsets.topic)
            if snapshot is None or snapshot.state.topic_id != offsets.topic_id:
                continue
            committed = {p: offset for _, p, offset in offsets.positions() if p < snapshot.state.partitions}
            ages = _ages(opened, snapshot, committed, now_ms, failures) if seconds else None
            rows += _rows(description, snapshot, committed, ages, every)
    return rows


def _snapshots(root: Root, topics: Collection[str], failures: list[SparklogError] | None) -> dict[str, Snapshot]:
    def read(topic: str) -> Snapshot | None:
        with suppress(NotFound):
            return root.engine.log(topic).read_snapshot()
        return None

    snapshots = read_each(root.store, read, sorted(topics), failures)
    return {topic: snapshot for topic, snapshot in snapshots.items() if snapshot is not None}


def _rows(
    group: GroupDescription, snapshot: Snapshot, committed: dict[int, int], ages: Ages | None, every: bool
) -> list[Lag]:
    starts, ends = snapshot.state.log_start.tolist(), snapshot.state.log_end.tolist()
    rows = []
    for partition in range(len(ends)) if every else committed:
        offset = committed.get(partition)
        behind = None if offset is None else ends[partition] - offset
        age = None if offset is None or ages is None else ages.get(partition, 0.0)
        place, limits = (snapshot.topic, partition), (starts[partition], ends[partition])
        rows.append(Lag(group.id, *place, offset, *limits, behind, age, group.owner(*place)))
    return rows


def _ages(
    root: Root, snapshot: Snapshot, committed: dict[int, int], now_ms: int | None, failures: list[SparklogError] | None
) -> Ages | None:
    """Return seconds since the first unread record, of partitions that have one; None: no time, or not readable."""
    from sparklog.log.read.time_lookup import first_records

    unread = {
        partition: offset for partition, offset in committed.items() if offset < snapshot.state.log_end[partition]
    }
    newer = root.engine.log(snapshot.topic).read_snapshot
    places = list(unread.items())
    share = max(1, -(-len(places) // root.store.parallel_reads))
    parts = [dict(places[first : first + share]) for first in range(0, len(places), share)]
    try:
        answers = list(map_requests(root.store, lambda part: first_records(snapshot, part, newer=newer), parts))
    except SparklogError as error:
        if failures is None:
            raise
        failures.append(error)
        return None
    now = root.env.wall_ms() if now_ms is None else now_ms
    return {
        partition: max(0, now - record.timestamp) / 1000 if record.timestamp >= 0 else None
        for answer in answers
        for partition, record in answer.items()
        if record is not None
    }
