"""The state of a topic, its decisions and groups in a restored root.

* A checkpoint of the version, and one commit after it, which is never seen as the newest elsewhere: it records what is
  decided of open transactions and moves the leader epoch on, for batches of the source that came later had the old one.
* Topic id, offsets, configs, registry and undecided transactions stay as they were.
* Holds go: they are of versions that are not here. Files of other topics, in a clone, become its own. Siblings that are
  not restored are forgotten: a topic of that name would never catch up with them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

import numpy as np

from sparklog.groups.group_state import GroupState
from sparklog.groups.offsets import NO_EPOCH, TopicOffsets, topic_offsets
from sparklog.log.decisions.decision import Decisions, Prepared, PreparedGroup
from sparklog.log.decisions.decision_log import open_transactions
from sparklog.log.journal.names import VERSION_DIGITS, local_path, path_read_version
from sparklog.log.state.commit import MAINTAIN, Commit, Resolved
from sparklog.log.state.commit_intents import Draft
from sparklog.log.state.slice_table import Slices, SliceTable, Snapshot, Texts
from sparklog.log.state.topic_state import Head
from sparklog.log.topic.cloning import file_slices
from sparklog.storage.store import Store
from sparklog.tools.backup.copying import DataFile, data_file

MAX_EPOCH = 2**31 - 1


def own_path(path: str, version: int) -> str:
    """The path of a file in the folder of the one topic that has it now; a clone's source may count higher versions."""
    if not path.startswith("/"):
        return path
    read_version = path_read_version(path) or 0
    return local_path(path).replace(f"{read_version:0{VERSION_DIGITS}d}-", f"{min(read_version, version):020d}-", 1)


def files_of(topic: str, snapshot: Snapshot) -> list[DataFile]:
    """The files of a topic, from where they lie to where `topic` has them."""
    return [
        data_file(snapshot.topic, file, f"{topic}/{own_path(file.path, snapshot.version)}")
        for file in file_slices(snapshot.slices.all())
    ]


def stand_alone(snapshot: Snapshot, store: Store, names: Mapping[str, str]) -> Snapshot:
    """The state of a topic in its new root; `names` are those of all topics restored, old to new."""
    version, rows = snapshot.version, snapshot.slices.all()
    codes, inverse = np.unique(rows.file, return_inverse=True)
    paths = Texts.of([own_path(path, version) for path in rows.paths.take(codes)])
    code_of = [paths.code(own_path(path, version)) for path in rows.paths.take(codes)]
    columns = dict(rows.columns)
    columns["file"] = np.array(code_of, np.int32)[inverse]
    columns["read_version"] = np.minimum(rows.read_version, version)
    part = Slices(columns, paths, rows.txn_ids)
    table = SliceTable(version, (part,) if len(part) else (), paths, rows.txn_ids)
    head = replace(snapshot.head, holds={}, siblings=_siblings(snapshot.head.siblings, names))
    return Snapshot(names[snapshot.topic], store, head, table)


def created_alone(commit: Commit) -> Commit:
    """Commit 0 of a topic, naming files in its own folder."""
    return replace(commit, files=tuple(replace(file, path=own_path(file.path, 0)) for file in commit.files))


def _siblings(siblings: Mapping[str, int], names: Mapping[str, str]) -> dict[str, int]:
    return {names[name]: version for name, version in siblings.items() if name in names}


def first_commit(
    head: Head, topic: str, decisions: Mapping[str, Decisions], names: Mapping[str, str], commit_id: str, time_ms: int
) -> Commit:
    """The commit after the version that was restored; `topic` is its name in the source."""
    resolved: list[Resolved] = []
    for transactional_id, n in open_transactions(head):
        state = decisions.get(transactional_id)
        if state is not None and state.decided(n):
            outcome = state.resolved(topic, head.topic_id, n)
            resolved.append(replace(outcome, siblings=_siblings(outcome.siblings, names)))
    # Nothing is kept of what came before: the floor says so.
    epoch = min(head.leader_epoch + 1, MAX_EPOCH)
    draft = Draft(MAINTAIN, leader_epoch=epoch, resolved=tuple(resolved), floor=head.version)
    return draft.commit(head, commit_id, time_ms)


def decisions_of(state: Decisions, names: Mapping[str, str], groups: Mapping[str, int]) -> Decisions:
    """Decisions in the restored root: of topics that are there, called as they are there, and of groups that are.

    `names`: of the topics, old to new; `groups`: the entry of each group that is restored. Of what is not there nobody
    would ever record an outcome.
    """

    def topics(items: tuple[Prepared, ...]) -> tuple[Prepared, ...]:
        return tuple(replace(item, topic=names[item.topic]) for item in items if item.topic in names)

    def known(items: tuple[PreparedGroup, ...]) -> tuple[PreparedGroup, ...]:
        return tuple(item for item in items if item.number <= groups.get(item.group, -1))

    return replace(
        state,
        prepared=topics(state.prepared),
        prepared_groups=known(state.prepared_groups),
        commits=tuple(
            replace(item, prepares=topics(item.prepares), groups=known(item.groups)) for item in state.commits
        ),
    )


def group_of(state: GroupState, names: Mapping[str, str], ids: Collection[str]) -> GroupState:
    """A group in the restored root, with its topics called as they are there; what is pending of other ids goes."""

    def renamed(items: tuple[TopicOffsets, ...]) -> tuple[TopicOffsets, ...]:
        moved = (replace(item, topic=names.get(item.topic, item.topic)) for item in items)
        return tuple(sorted(moved, key=lambda item: item.place))

    return replace(
        state,
        offsets=renamed(state.offsets),
        pending=tuple(replace(item, offsets=renamed(item.offsets)) for item in state.pending if item.txn in ids),
    )


@dataclass(frozen=True, slots=True)
class MovedOffset:
    """An offset of a group that lay beyond the end of a restored topic (by its name in the source), and that end."""

    group: str
    topic: str
    partition: int
    was: int
    now: int


def at_the_end(state: GroupState, heads: Mapping[str, Head]) -> tuple[GroupState, list[MovedOffset]]:
    """A group with no offset beyond the topics' ends: those that are there are set to the end.

    What lay between is not there, so nothing is skipped, and what is written next is read. A consumer of Kafka that
    finds its log cut off goes on likewise (KIP-320). The leader epoch was that of a record that is not there.
    """
    moved: list[MovedOffset] = []

    def cut_off(item: TopicOffsets) -> TopicOffsets:
        head = heads.get(item.topic)
        if head is None or head.topic_id != item.topic_id:
            return item
        rows = item.rows()
        for partition, (offset, time_ms, _, metadata) in rows.items():
            end = int(head.log_end[partition]) if partition < head.partitions else 0
            if offset > end:
                rows[partition] = end, time_ms, NO_EPOCH, metadata
                moved.append(MovedOffset(state.id, item.topic, partition, offset, end))
        return topic_offsets(item.topic, item.topic_id, rows)

    offsets = tuple(map(cut_off, state.offsets))
    shown = list(moved)
    pending = tuple(replace(each, offsets=tuple(map(cut_off, each.offsets))) for each in state.pending)
    return replace(state, offsets=offsets, pending=pending), shown
