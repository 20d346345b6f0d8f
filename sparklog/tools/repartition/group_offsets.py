"""Offsets of consumer groups in a topic that `repartition` made, from those that they have committed in the old one.

The rule: in each new partition a group goes on from the smallest offset at which there may be a record that it has not
read in the old topic. Nothing is skipped; records after that offset may be read again.

The commits of the copy are the mapping. Each says up to which old offsets it copies, and how many records it adds to
each new partition. They are read from the newest back, down to one before which a group has read everything: of a group
that has read all, that is the newest. A commit counts as a whole: it is unread if a group has not read all of any old
partition's records in it. Within one old partition so at most the records of one commit are read again (64 MiB of the
old topic). A group that has read less of some old partitions than of others, in time, reads again what it has read of
the others after that. `again` is the bound for both.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sparklog.errors import Conflict, NotFound
from sparklog.groups.group import Group
from sparklog.groups.lag import Groups
from sparklog.log.state.commit import APPEND, Commit
from sparklog.log.state.history import History
from sparklog.log.topic.engine import TopicLog
from sparklog.storage.parallel_reads import read_each
from sparklog.tools.repartition.copying import Copying, Int64s, check_alone, copied_by


@dataclass(frozen=True, slots=True)
class MovedGroup:
    """A group of the old topic: offsets that it has in the new one now, and what was set.

    `again`: records that it reads again, at most. `problem`: why its offsets were not set.
    """

    group: str
    offsets: Mapping[int, int]
    again: int = 0
    problem: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class _Places:
    """By group: offsets in the new partitions, int64[groups, partitions]; records that it reads again, at most.

    `is_certain`: False where commits that tell are gone; bool[groups].
    """

    offsets: Int64s
    again: Int64s
    is_certain: npt.NDArray[np.bool_]


def set_offsets(copying: Copying) -> list[MovedGroup]:
    """Set offsets in the new topic for each group that has some in the old one; none goes back."""
    source, root = copying.source, copying.root
    groups = Groups(root)
    committed = read_each(root.store, lambda name: groups.group(name).committed(), groups.names(), None)
    names = [name for name, offsets in committed.items() if any(topic == source.topic for topic, _ in offsets)]
    if not names:
        return []
    read = np.zeros((len(names), source.head.partitions), np.int64)
    for row, name in enumerate(names):
        for (topic, partition), item in committed[name].items():
            # Of a partition that came a moment ago nothing is copied.
            if topic == source.topic and partition < source.head.partitions:
                read[row, partition] = item.offset
    places = _places(read, copying)
    moved = []
    for row, name in enumerate(names):
        before = {p: item.offset for (topic, p), item in committed[name].items() if topic == copying.name}
        moved.append(_move(groups.group(name), copying.name, before, places, row))
    return moved


def _move(group: Group, topic: str, before: Mapping[int, int], places: _Places, row: int) -> MovedGroup:
    if not places.is_certain[row]:
        problem = (
            f"the commits that copied what it has not read are no longer kept: sparklog groups reset {group.id} "
            f"--topic {topic} --to-datetime sets its offsets by time"
        )
        return MovedGroup(group.id, before, problem=problem)
    offsets = dict(enumerate(places.offsets[row].tolist()))
    further = {partition: offset for partition, offset in offsets.items() if offset > before.get(partition, -1)}
    if further:
        try:
            group.alter({topic: further})
        except Conflict as error:
            return MovedGroup(group.id, before, problem=str(error))
    return MovedGroup(group.id, {**offsets, **before, **further}, int(places.again[row]))


def _places(read: Int64s, copying: Copying) -> _Places:
    """Return where groups go on that have `read` so far in the old partitions, int64[groups, old partitions]."""
    total = ends = copying.log.head(refresh=False).log_end
    offsets, again = np.tile(ends, (len(read), 1)), np.zeros(len(read), np.int64)
    is_certain = np.zeros(len(read), np.bool_)
    after, added = copying.copied(), np.zeros_like(ends)
    is_newest = True
    for commit in _commits_back(copying.log):
        before = copied_by({writer.id: writer for writer in commit.writers}, copying.source.head)
        if before is not None:
            if is_newest:
                # What others have appended since is new to each group. Before it was the copy alone.
                check_alone(copying, ends, before)
                total, offsets[:] = ends, ends
            grown = after.records > before.records
            is_unread = np.any(grown & (after.offsets > read), axis=1)
            offsets = np.where(is_unread[:, None] & (added > 0), ends, offsets)
            is_whole = np.all(~grown | (before.offsets >= read), axis=1)
            again -= np.where(is_unread & is_whole, added.sum(), 0)
            is_certain = np.all((before.records == 0) | (before.offsets <= read), axis=1)
            if is_certain.all():
                break
            after, added, is_newest = before, np.zeros_like(ends), False
        of_commit = _appended(commit, len(ends))
        ends, added = ends - of_commit, added + of_commit
    again += (total - offsets).sum(axis=1)
    return _Places(offsets, again, is_certain)


def _commits_back(log: TopicLog) -> Iterator[Commit]:
    """Yield the commits of a topic from the newest one back, as far as they are kept."""
    head = log.head(refresh=False)
    history = History(log.store, log.topic, log.env)
    crc = head.crc
    for version in range(head.version, -1, -1):
        try:
            commit = history.commit(version)
        except NotFound:
            return
        if commit.crc != crc:
            # A stalled writer has used the number of one that was collected.
            return
        yield commit
        crc = commit.prev_crc


def _appended(commit: Commit, partitions: int) -> Int64s:
    """Return the number of offsets that a commit appends to each partition."""
    appended = np.zeros(partitions, np.int64)
    for file in commit.files if commit.op == APPEND else ():
        np.add.at(appended, np.array(file.partition), np.array(file.offsets))
    return appended
