"""What a topic becomes in a restored root: its state at a version, made to stand alone.

* A checkpoint of the version, and one commit after it, which nobody else ever sees as the newest: it records what is
  decided of open transactions and moves the leader epoch on, for batches of the source that came later had the old one.
* Topic id, offsets, configs, registry and undecided transactions stay as they were.
* Holds go: they are of versions that are not here. Files of other topics, in a clone, become its own. Siblings that are
  not restored are forgotten: a topic of that name would never catch up with them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from sparklog.backup.copying import DataFile, data_file
from sparklog.groups.offsets import TopicOffsets
from sparklog.groups.state import GroupState
from sparklog.log.cloning import file_slices
from sparklog.log.commit import MAINTAIN, Commit, Resolved
from sparklog.log.conflicts import Draft
from sparklog.log.decision import Decisions, Prepared
from sparklog.log.decision_logs import open_transactions
from sparklog.log.head import Head
from sparklog.log.names import VERSION_DIGITS, local_path, path_read_version
from sparklog.log.slice_table import Slices, SliceTable, Texts
from sparklog.log.snapshot import Snapshot
from sparklog.storage.store import Store

__all__ = ["created_alone", "files_of", "first_commit", "renamed_decisions", "renamed_group", "stand_alone"]

MAX_EPOCH = 2**31 - 1


def own_path(path: str, version: int) -> str:
    """The path of a file in the folder of the one topic that has it now; a clone's source may count higher versions."""
    if not path.startswith("/"):
        return path
    read_version = path_read_version(path) or 0
    return local_path(path).replace(f"{read_version:0{VERSION_DIGITS}d}-", f"{min(read_version, version):020d}-", 1)


def files_of(topic: str, found: Snapshot) -> list[DataFile]:
    """The files of a topic, from where they lie to where `topic` has them."""
    return [
        data_file(found.topic, file, f"{topic}/{own_path(file.path, found.version)}")
        for file in file_slices(found.slices.all())
    ]


def stand_alone(found: Snapshot, store: Store, names: Mapping[str, str]) -> Snapshot:
    """The state of a topic in its new root; `names` are those of all topics restored, old to new."""
    version, rows = found.version, found.slices.all()
    codes, inverse = np.unique(rows.file, return_inverse=True)
    paths = Texts.of([own_path(path, version) for path in rows.paths.take(codes)])
    code_of = [paths.code(own_path(path, version)) for path in rows.paths.take(codes)]
    columns = dict(rows.columns)
    columns["file"] = np.array(code_of, np.int32)[inverse]
    columns["read_version"] = np.minimum(rows.read_version, version)
    part = Slices(columns, paths, rows.txn_ids)
    table = SliceTable(version, (part,) if len(part) else (), paths, rows.txn_ids)
    head = replace(found.head, holds={}, siblings=_siblings(found.head.siblings, names))
    return Snapshot(names[found.topic], store, head, table)


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
            found = state.resolved(topic, head.topic_id, n)
            resolved.append(replace(found, siblings=_siblings(found.siblings, names)))
    # Nothing is kept of what came before: the floor says so.
    epoch = min(head.leader_epoch + 1, MAX_EPOCH)
    draft = Draft(MAINTAIN, leader_epoch=epoch, resolved=tuple(resolved), floor=head.version)
    return draft.commit(head, commit_id, time_ms)


def renamed_decisions(state: Decisions, names: Mapping[str, str]) -> Decisions:
    """Decisions with the topics that they name called as in the restored root."""

    def renamed(items: tuple[Prepared, ...]) -> tuple[Prepared, ...]:
        return tuple(replace(item, topic=names.get(item.topic, item.topic)) for item in items)

    return replace(
        state,
        prepared=renamed(state.prepared),
        commits=tuple(replace(item, prepares=renamed(item.prepares)) for item in state.commits),
    )


def renamed_group(state: GroupState, names: Mapping[str, str]) -> GroupState:
    """A group with the topics that it reads called as in the restored root."""

    def renamed(items: tuple[TopicOffsets, ...]) -> tuple[TopicOffsets, ...]:
        found = (replace(item, topic=names.get(item.topic, item.topic)) for item in items)
        return tuple(sorted(found, key=lambda item: item.place))

    return replace(
        state,
        offsets=renamed(state.offsets),
        pending=tuple(replace(item, offsets=renamed(item.offsets)) for item in state.pending),
    )
