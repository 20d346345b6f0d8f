"""Select the data files, commits and checkpoints that a vacuum deletes, with reasons. The functions are pure.

* The **retention floor** is the latest version that is older than `file.delete.delay.ms` according to the store's
  clock. Readers of older versions have had at least this delay to finish. After the floor has been committed, uploads
  that are based on an older version are rejected.
* A data file is deleted if its writer read a version below the floor, and neither the state at the floor, nor a later
  commit, nor a leased version references the file. Its indexes and filters are deleted with it. Files with unrecognized
  names are kept.
* Commits below the **anchor** are deleted. The anchor is the latest valid checkpoint that is at or below the second
  latest valid checkpoint, the floor, and the oldest commit that is younger than max(7 days, twice the delay). All
  versions of this period can therefore be rebuilt. A commit with inline records is only deleted if it is unreferenced,
  like a data file.
* Of the checkpoints above the anchor that are older than an hour, the first checkpoint of each hour is kept. The latest
  two checkpoints are always kept.
* Leased versions can be rebuilt, because the checkpoint below a leased version and the commits in between are kept.

The lease of a clone is in effect for as long as the clone references files of the topic (`sparklog.log.topic.cloning`).
A version of the clone references files until `file.delete.delay.ms` after a later version was committed, and for as
long as the version is leased.
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
"""Minimum retention of commits. A process that was suspended for less time can determine whether its commit succeeded.
"""

_ID = r"[A-Za-z0-9_-]{1,64}"
_APPEND = re.compile(rf"(append/([0-9]{{20}})-{_ID})\.(slices|bloom)")
_SEALED = re.compile(
    rf"(sealed/[0-9]{{1,10}}/([0-9]{{20}})-{_ID}/[0-9]{{20}})\.(log|(?:time|txn)?index|snapshot|bloom)"
)

_KIND_OF = {"slices": APPEND, "log": SEGMENT, "bloom": FILTER}


@dataclass(frozen=True, slots=True)
class ListedFile:
    """A listed file in a data directory.

    Attributes:
        path: the path of the data file in commits; an index has the path of its segment.
        read_version: the version that the writer had read.
    """

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
    """Return the data file of a listed object, or None if the name is unrecognized."""
    below = info.key.partition("/")[2]
    for pattern, suffix in ((_APPEND, "slices"), (_SEALED, "log")):
        if match := pattern.fullmatch(below):
            kind = _KIND_OF.get(match[3], INDEX)
            return ListedFile(info.key, f"{match[1]}.{suffix}", int(match[2]), kind, info.size)
    return None


def own_paths(topic: str, paths: set[str]) -> set[str]:
    """Return the paths below the topic's directory. Files of other topics are deleted by the vacuum of these topics."""
    folder = f"/{topic_folder(topic)}/"
    return {path.removeprefix(folder) for path in paths if not path.startswith("/") or path.startswith(folder)}


def commit_retention_ms(delay_ms: int) -> int:
    return max(MIN_COMMIT_RETENTION_MS, 2 * delay_ms)


def floor_version(commits: CommitFiles, head_version: int, now_ms: int, delay_ms: int) -> int:
    """Return the latest version for which this version and all earlier versions are older than the delay, or -1 if
    there is no such version.
    """
    return first_young_version(commits, head_version, now_ms, delay_ms) - 1


def first_young_version(commits: CommitFiles, head_version: int, now_ms: int, kept_ms: int) -> int:
    """Return the first version younger than `kept_ms`. The result is 0 if no version is older, or the next version if
    all versions are older.

    Only the contiguous commits up to the latest commit are considered. Below a gap, a stalled writer may have created a
    commit with a number that was deleted long ago.
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
        deleted: True if the topic was deleted.
        created: the version that created the topic.
        recent_paths: paths that a version since the last floor references.
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
        return f"unreferenced by the commits near version {self.floor}"


def unreferenced_files(files: Iterable[ListedFile], kept: Collection[str], reasons: Reasons) -> list[DeletionCandidate]:
    """Select data files from below the floor whose paths are not in `kept`."""
    candidates = (file for file in files if file.read_version < reasons.floor and file.path not in kept)
    return [DeletionCandidate(file.key, file.kind, file.size, reasons.of(file)) for file in candidates]


def old_commits(
    topic: str, commits: CommitFiles, anchor: int, leased: Sequence[tuple[int, int]], limit_ms: int
) -> list[DeletionCandidate]:
    """Select commits below the anchor that are older than `limit_ms`, oldest first, except commits in the `leased`
    ranges.
    """
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
    """Return the commits whose inline records are not needed, that is, whose paths are not in `kept`."""
    prefix = f"{topic_folder(topic)}/"
    return [candidate for candidate in commits if candidate.key.removeprefix(prefix) not in kept]


def old_checkpoints(
    checkpoints: Mapping[int, ObjectInfo], needed: set[int], anchor: int, *, now_ms: int, limit_ms: int
) -> dict[int, str]:
    """Select checkpoint documents to delete. Return their versions with reasons.

    `needed` contains the latest two valid checkpoints, the anchor, and the checkpoints below leased versions. Below the
    anchor, documents older than `limit_ms` are deleted. Above the anchor, all documents older than an hour are deleted,
    except the first document of each hour.
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
    """Return `file.delete.delay.ms`, or its last value for a deleted topic if the log still contains it."""
    configs = state.configs
    if state.deleted:
        with suppress(Corrupt, NotFound):
            # After a topic was deleted, only maintenance commits to its log, so this loop is short.
            version = state.version
            while version > 0 and history.commit(version).op != DELETE:
                version -= 1
            configs = history.at(version - 1).state.configs
    return settings.configs_of(history.topic, configs).file_delete_delay_ms


def expired_leases(state: TopicState, now_ms: int, needed: Collection[str] = ()) -> list[str]:
    """Return the names of expired version leases that are not in `needed`."""
    return [
        name
        for name, lease in state.leases.items()
        if lease.expires_ms is not None and lease.expires_ms <= now_ms and name not in needed
    ]


def leased_versions(state: TopicState, now_ms: int, needed: Collection[str] = ()) -> set[int]:
    """Return the versions with a lease that has not expired or is in `needed`."""
    expired = expired_leases(state, now_ms, needed)
    return {lease.version for name, lease in state.leases.items() if name not in expired}


def abandon_clones(topic: Topic, state: TopicState, now_ms: int) -> frozenset[str]:
    """Abandon clones that do not exist although their leases have expired, so that they can no longer be created.

    Return the names of the leases for which this failed; these leases must remain in effect. A clone with the topic's
    own name is skipped, because its lease is in the same log.
    """

    def abandon(clone: str, topic_id: str) -> bool:
        if clone != topic.name:
            _abandon(topic.root.engine.log(clone), topic_id, now_ms)
        return False

    return _remaining_leases(topic, state, now_ms, abandon)


def _remaining_leases(
    topic: Topic, state: TopicState, now_ms: int, is_needed: Callable[[str, str], bool]
) -> frozenset[str]:
    """Return the expired leases of clones for which `is_needed` (name, topic id) returns True or raises an error."""
    names = set()
    for name in expired_leases(state, now_ms):
        clone = clone_of_lease_name(name)
        try:
            if clone is not None and is_needed(*clone):
                names.add(name)
        except (SparklogError, OSError) as error:
            _LOG.warning("lease %s of topic %s remains in effect: %s", name, topic.name, error)
            names.add(name)
    return frozenset(names)


def _abandon(clone: TopicLog, topic_id: str, now_ms: int) -> None:
    state = clone.refresh().topic_state
    if not is_clone_abandoned(state, topic_id):
        state = clone.commit(AbandonCloneIntent(topic_id, now_ms)).state
    if is_clone_abandoned(state, topic_id) and state.exists and state.topic_id == topic_id:
        clone.commit(DeleteIntent(topic_id, state.version))


def needed_by_clones(topic: Topic, state: TopicState, settings: Settings, now_ms: int) -> frozenset[str]:
    """Return the expired leases whose clones still reference files of the topic or cannot be read."""
    return _remaining_leases(
        topic, state, now_ms, lambda clone, id_: _is_referenced(topic.root, clone, id_, topic.name, settings, now_ms)
    )


def _is_referenced(root: RootContext, clone: str, topic_id: str, owner: str, settings: Settings, now_ms: int) -> bool:
    history = History(root.store, clone, root.env)
    state = root.engine.log(clone).refresh().topic_state
    if state.version < 0 or (is_clone_abandoned(state, topic_id) and clone != owner):
        return False
    since = floor_version(history.commits, state.version, now_ms, delete_delay_ms(history, state, settings))
    versions = leased_versions(state, now_ms)
    if since < 0:
        # The clone is recent, so readers may still use any of its versions.
        return True
    return references_files_of(history, topic_id, owner, since, versions, state.version)
