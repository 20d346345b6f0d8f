"""Choose what a vacuum deletes, as pure functions of listings: data files, commits and checkpoints, with reasons.

* The **retention floor** is the latest version older than `file.delete.delay.ms` by the store's clock, so every reader
  of an older version has had at least that long to finish. Once the floor is committed, uploads that are based on an
  older version are rejected.
* A data file is deleted if its writer had read a version below the floor, and if neither the state at the floor, nor a
  later commit, nor a leased version refers to it. Its index and filter are deleted with it. Files with other names than
  sparklog's are kept.
* Commits below the **anchor** are deleted. The anchor is the latest valid checkpoint that is not above any of
  these: the second latest valid checkpoint, the floor, and the oldest commit younger than max(7 days, twice the delay).
  So every version of that period can be rebuilt. A commit with inline records must also be
  unreferenced, like a data file.
* Of the checkpoints above the anchor that are older than an hour, the first one of each hour and the latest two remain.
* A leased version can be rebuilt: the checkpoint below it and the commits in between are kept.

The lease of a clone is in effect while the clone refers to files of the topic (`sparklog.log.topic.cloning`). A version
of the clone counts until `file.delete.delay.ms` after a later version exists, or while it is leased itself.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

import numpy as np

from sparklog.errors import Corrupt, NotFound, SparklogError
from sparklog.log.journal.names import commit_key, topic_folder
from sparklog.log.state.commit import DELETE
from sparklog.log.state.commit_intents import DeleteIntent
from sparklog.log.state.history import CommitFiles, History, start_after_last_gap
from sparklog.log.state.topic_state import TopicState
from sparklog.log.topic.cloning import AbandonCloneIntent, clone_of_lease_name, is_clone_abandoned, references_files_of
from sparklog.log.topic.engine import TopicLog
from sparklog.log.topic.topic import RootContext, Topic
from sparklog.maintenance.work_items import Settings
from sparklog.storage.store import ObjectInfo

APPEND, SEGMENT, INDEX, FILTER = "append file", "segment", "segment index", "key filter"
COMMIT, CHECKPOINT, TEMPORARY = "commit", "checkpoint", "temporary file"
KINDS = (APPEND, SEGMENT, INDEX, FILTER, COMMIT, CHECKPOINT, TEMPORARY)

HOUR_MS = 3_600_000
MIN_COMMIT_RETENTION_MS = 7 * 24 * HOUR_MS
"""Minimum retention of commits, so that a process that slept for less can find out whether its commit succeeded."""

_ID = r"[A-Za-z0-9_-]{1,64}"
_APPEND = re.compile(rf"(append/([0-9]{{20}})-{_ID})\.(slices|bloom)")
_SEALED = re.compile(
    rf"(sealed/[0-9]{{1,10}}/([0-9]{{20}})-{_ID}/[0-9]{{20}})\.(log|(?:time|txn)?index|snapshot|bloom)"
)

_KIND_OF = {"slices": APPEND, "log": SEGMENT, "bloom": FILTER}


@dataclass(frozen=True, slots=True)
class ListedFile:
    """A file in a data directory: its path in commits (an index has that of its segment), its writer's read version."""

    key: str
    path: str
    read_version: int
    kind: str
    size: int


@dataclass(frozen=True, slots=True)
class DeletionCandidate:
    """An object to delete: its kind (one of `KINDS`) and the reason as text."""

    key: str
    kind: str
    size: int
    reason: str


def data_file(info: ObjectInfo) -> ListedFile | None:
    """Return the data file of a listed object; None if its name does not have sparklog's form."""
    below = info.key.partition("/")[2]
    for pattern, suffix in ((_APPEND, "slices"), (_SEALED, "log")):
        if match := pattern.fullmatch(below):
            kind = _KIND_OF.get(match[3], INDEX)
            return ListedFile(info.key, f"{match[1]}.{suffix}", int(match[2]), kind, info.size)
    return None


def own_paths(topic: str, paths: set[str]) -> set[str]:
    """Return the paths below the topic's directory; the vacuum of another topic handles its files."""
    folder = f"/{topic_folder(topic)}/"
    return {path.removeprefix(folder) for path in paths if not path.startswith("/") or path.startswith(folder)}


def commit_retention_ms(delay_ms: int) -> int:
    return max(MIN_COMMIT_RETENTION_MS, 2 * delay_ms)


def floor_version(commits: CommitFiles, head_version: int, now_ms: int, delay_ms: int) -> int:
    """Return the latest version such that it and all earlier ones are older than the delay; -1 if there is none."""
    return first_young_version(commits, head_version, now_ms, delay_ms) - 1


def first_young_version(commits: CommitFiles, head_version: int, now_ms: int, kept_ms: int) -> int:
    """Return the first version younger than `kept_ms`: 0 if no version is older, the next version if all are.

    Only commits without a gap up to the latest one count. Below a gap, a stalled writer may have created a commit again
    under a number that was deleted long ago.
    """
    version = commits.version[: int(np.searchsorted(commits.version, head_version, "right"))]
    if not len(version):
        return 0
    first = start_after_last_gap(version)
    young = np.flatnonzero(commits.modified_ms[first : len(version)] > now_ms - kept_ms)
    if not len(young):
        return int(version[-1]) + 1
    return 0 if young[0] == 0 else int(version[first + int(young[0])])


@dataclass(frozen=True, slots=True)
class Reasons:
    """The facts that explain why a file from below the floor is unreferenced.

    Attributes:
        floor: the retention floor.
        deleted: whether the topic was deleted.
        created: the version that created the topic.
        recent_paths: paths that some version since the last floor refers to.
    """

    floor: int
    deleted: bool
    created: int
    recent_paths: Collection[str]

    def of(self, file: ListedFile) -> str:
        if self.deleted or file.read_version < self.created:
            return "its topic was deleted"
        if file.path in self.recent_paths:
            return f"replaced or expired before version {self.floor}"
        return f"unreferenced: no commit near version {self.floor} refers to it"


def unreferenced_files(files: Iterable[ListedFile], kept: Collection[str], reasons: Reasons) -> list[DeletionCandidate]:
    """Choose data files from below the floor whose paths are not in `kept`."""
    candidates = (file for file in files if file.read_version < reasons.floor and file.path not in kept)
    return [DeletionCandidate(file.key, file.kind, file.size, reasons.of(file)) for file in candidates]


def old_commits(
    topic: str, commits: CommitFiles, anchor: int, leased: Sequence[tuple[int, int]], limit_ms: int
) -> list[DeletionCandidate]:
    """Choose commits below the anchor from before `limit_ms`, oldest first, except those in the `leased` ranges."""
    is_old = (commits.version < anchor) & (commits.modified_ms < limit_ms)
    for first, last in leased:
        is_old &= (commits.version < first) | (commits.version > last)
    reason = f"superseded by the checkpoint at version {anchor}"
    rows = np.flatnonzero(is_old)
    return [
        DeletionCandidate(commit_key(topic, version), COMMIT, size, reason)
        for version, size in zip(commits.version[rows].tolist(), commits.size[rows].tolist(), strict=True)
    ]


def without_records(topic: str, commits: Sequence[DeletionCandidate], kept: set[str]) -> list[DeletionCandidate]:
    """Return the candidates among commits whose inline records are not needed: their paths are not in `kept`."""
    prefix = f"{topic_folder(topic)}/"
    return [candidate for candidate in commits if candidate.key.removeprefix(prefix) not in kept]


def old_checkpoints(
    checkpoints: Mapping[int, ObjectInfo], needed: set[int], anchor: int, *, now_ms: int, limit_ms: int
) -> dict[int, str]:
    """Choose checkpoint headers to delete; return their versions with reasons.

    `needed` has the latest two valid checkpoints, the anchor, and those below leased versions. Below the anchor,
    headers older than `limit_ms` are deleted. Above it, all but the first one of each hour are deleted, except those
    younger than an hour.
    """
    reasons: dict[int, str] = {}
    hours: set[int] = set()
    for version, info in sorted(checkpoints.items()):
        hour = info.modified_ms // HOUR_MS
        first = hour not in hours
        if version in needed or version >= anchor:
            hours.add(hour)
        if version in needed:
            continue
        if version < anchor and info.modified_ms < limit_ms:
            reasons[version] = f"superseded by the checkpoint at version {anchor}"
        if version >= anchor and not first and info.modified_ms < now_ms - HOUR_MS:
            reasons[version] = "only the first checkpoint of each hour is kept"
    return reasons


_LOG = logging.getLogger("sparklog.retention")


def delete_delay_ms(history: History, state: TopicState, settings: Settings) -> int:
    """Return `file.delete.delay.ms`; for a deleted topic its last value, if the log still has it."""
    configs = state.configs
    if state.deleted:
        with suppress(Corrupt, NotFound):
            # After a delete only maintenance commits to the log, so this loop is short.
            version = state.version
            while version > 0 and history.commit(version).op != DELETE:
                version -= 1
            configs = history.at(version - 1).state.configs
    return settings.configs_of(history.topic, configs).file_delete_delay_ms


def expired_leases(state: TopicState, now_ms: int, needed: Collection[str] = ()) -> list[str]:
    """Return the names of the version leases that have expired, without the `needed` ones."""
    return [
        name
        for name, lease in state.holds.items()
        if lease.expires_ms is not None and lease.expires_ms <= now_ms and name not in needed
    ]


def leased_versions(state: TopicState, now_ms: int, needed: Collection[str] = ()) -> set[int]:
    """Return the versions under a lease that has not expired or is one of the `needed` ones."""
    expired = expired_leases(state, now_ms, needed)
    return {lease.version for name, lease in state.holds.items() if name not in expired}


def abandon_clones(topic: Topic, state: TopicState, now_ms: int) -> frozenset[str]:
    """Abandon the clones that do not exist although their leases have expired, so that they can no longer be created.

    Returns the names of the leases for which this failed, which must stay in effect. A clone under the topic's own name
    is skipped, because its lease is in the same log.
    """

    def abandon(clone: str, topic_id: str) -> bool:
        if clone != topic.name:
            _abandon(topic.root.engine.log(clone), topic_id, now_ms)
        return False

    return _remaining_leases(topic, state, now_ms, abandon)


def _remaining_leases(
    topic: Topic, state: TopicState, now_ms: int, stays: Callable[[str, str], bool]
) -> frozenset[str]:
    """Return the expired leases of clones for which `stays` (name, topic id) returns True or fails."""
    names = set()
    for name in expired_leases(state, now_ms):
        clone = clone_of_lease_name(name)
        try:
            if clone is not None and stays(*clone):
                names.add(name)
        except (SparklogError, OSError) as error:
            _LOG.warning("lease %s of topic %s stays: %s", name, topic.name, error)
            names.add(name)
    return frozenset(names)


def _abandon(clone: TopicLog, topic_id: str, now_ms: int) -> None:
    state = clone.refresh().topic_state
    if not is_clone_abandoned(state, topic_id):
        state = clone.commit(AbandonCloneIntent(topic_id, now_ms)).state
    if is_clone_abandoned(state, topic_id) and state.exists and state.topic_id == topic_id:
        clone.commit(DeleteIntent(topic_id, state.version))


def needed_by_clones(topic: Topic, state: TopicState, settings: Settings, now_ms: int) -> frozenset[str]:
    """Return the expired leases whose clones still refer to files of the topic, or cannot be read."""
    return _remaining_leases(
        topic, state, now_ms, lambda clone, id_: _still_named(topic.root, clone, id_, topic.name, settings, now_ms)
    )


def _still_named(root: RootContext, clone: str, topic_id: str, owner: str, settings: Settings, now_ms: int) -> bool:
    history = History(root.store, clone, root.env)
    state = root.engine.log(clone).refresh().topic_state
    if state.version < 0 or (is_clone_abandoned(state, topic_id) and clone != owner):
        return False
    since = floor_version(history.commits, state.version, now_ms, delete_delay_ms(history, state, settings))
    versions = leased_versions(state, now_ms)
    if since < 0:
        # The clone is so young that all of its versions may still be read.
        return True
    return references_files_of(history, topic_id, owner, since, versions, state.version)
