"""Choose what a vacuum deletes, as pure functions of listings: data files, commits and checkpoints, each with a reason.

* The **floor** is the newest version older than `file.delete.delay.ms` by the store's clock: so long a reader of an
  older version has had. A writer that uploads for an older version is refused once the floor is committed.
* A data file goes if its writer had read a version below the floor, and neither the state at the floor, nor a later
  commit, nor a held version names it; its index and filter go with it. A file without a name of sparklog's stays.
* A commit goes below the **anchor**: the newest sound checkpoint at or below the second newest sound one, the floor,
  and the oldest commit younger than max(7 days, twice the delay): so every version of that time can be rebuilt.
  If records are in it, it also has to be unnamed, as a data file has.
* Of the checkpoints above the anchor that are older than an hour, the first of each hour stays, and the newest two.
* A held version stays rebuildable: the checkpoint below it and the commits between stay as well.

A clone's hold counts as long as the clone names files of the topic (`sparklog.log.topic.cloning`). A version of the
clone counts for `file.delete.delay.ms` after a newer one, or while a hold in the clone keeps it.
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
from sparklog.log.state.history import CommitFiles, History, first_of_run
from sparklog.log.state.topic_state import TopicState
from sparklog.log.topic.cloning import GiveUpIntent, clone_of_hold, is_given_up, still_names
from sparklog.log.topic.engine import TopicLog
from sparklog.log.topic.topic import RootContext, Topic
from sparklog.maintenance.work_items import Settings
from sparklog.storage.store import ObjectInfo

APPEND, SEGMENT, INDEX, FILTER = "append file", "segment", "segment index", "key filter"
COMMIT, CHECKPOINT, TEMPORARY = "commit", "checkpoint", "temporary file"
KINDS = (APPEND, SEGMENT, INDEX, FILTER, COMMIT, CHECKPOINT, TEMPORARY)

HOUR_MS = 3_600_000
LEAST_COMMITS_MS = 7 * 24 * HOUR_MS
"""Commits stay at least this long, so that a process that slept for less can still read the fate of its commit."""

_ID = r"[A-Za-z0-9_-]{1,64}"
_APPEND = re.compile(rf"(append/([0-9]{{20}})-{_ID})\.(slices|bloom)")
_SEALED = re.compile(
    rf"(sealed/[0-9]{{1,10}}/([0-9]{{20}})-{_ID}/[0-9]{{20}})\.(log|(?:time|txn)?index|snapshot|bloom)"
)

_KIND_OF = {"slices": APPEND, "log": SEGMENT, "bloom": FILTER}


@dataclass(frozen=True, slots=True)
class ListedFile:
    """A file in a data folder: `path` as commits name it (an index: its segment's), the version its writer had read."""

    key: str
    path: str
    read_version: int
    kind: str
    size: int


@dataclass(frozen=True, slots=True)
class DeletionCandidate:
    """An object to delete: its kind (one of `KINDS`) and the reason in words."""

    key: str
    kind: str
    size: int
    reason: str


def data_file(info: ObjectInfo) -> ListedFile | None:
    """Parse the name of an object below a topic's folder; None if it is not a name of sparklog's."""
    below = info.key.partition("/")[2]
    for pattern, suffix in ((_APPEND, "slices"), (_SEALED, "log")):
        if match := pattern.fullmatch(below):
            kind = _KIND_OF.get(match[3], INDEX)
            return ListedFile(info.key, f"{match[1]}.{suffix}", int(match[2]), kind, info.size)
    return None


def own_paths(topic: str, paths: set[str]) -> set[str]:
    """Return the paths below the topic's folder; files of other topics are theirs to vacuum."""
    folder = f"/{topic_folder(topic)}/"
    return {path.removeprefix(folder) for path in paths if not path.startswith("/") or path.startswith(folder)}


def kept_commits_ms(delay_ms: int) -> int:
    return max(LEAST_COMMITS_MS, 2 * delay_ms)


def floor_version(commits: CommitFiles, head_version: int, now_ms: int, delay_ms: int) -> int:
    """Return the newest version that is older than the delay, with all before it; -1 if there is none."""
    return oldest_young(commits, head_version, now_ms, delay_ms) - 1


def oldest_young(commits: CommitFiles, head_version: int, now_ms: int, kept_ms: int) -> int:
    """Return the first version that is not older than `kept_ms`, the one after the head if all are; 0 if none is.

    Only commits without a gap up to the head count: below a gap a stalled writer may have created a commit under a
    number that was collected long ago.
    """
    version = commits.version[: int(np.searchsorted(commits.version, head_version, "right"))]
    if not len(version):
        return 0
    first = first_of_run(version)
    young = np.flatnonzero(commits.modified_ms[first : len(version)] > now_ms - kept_ms)
    if not len(young):
        return int(version[-1]) + 1
    return 0 if young[0] == 0 else int(version[first + int(young[0])])


@dataclass(frozen=True, slots=True)
class Reasons:
    """What tells why a file that begins below the floor is named no more.

    `deleted`: the topic was deleted; `created`: the version that created it; `recently_named`: paths that a version
    since the last floor names.
    """

    floor: int
    deleted: bool
    created: int
    recently_named: Collection[str]

    def of(self, file: ListedFile) -> str:
        if self.deleted or file.read_version < self.created:
            return "its topic was deleted"
        if file.path in self.recently_named:
            return f"replaced or expired before version {self.floor}"
        return f"orphan: no commit near version {self.floor} names it"


def unnamed(files: Iterable[ListedFile], kept: Collection[str], reasons: Reasons) -> list[DeletionCandidate]:
    """Choose data files begun below the floor whose paths are not `kept`."""
    gone = (file for file in files if file.read_version < reasons.floor and file.path not in kept)
    return [DeletionCandidate(file.key, file.kind, file.size, reasons.of(file)) for file in gone]


def old_commits(
    topic: str, commits: CommitFiles, anchor: int, held: Sequence[tuple[int, int]], limit_ms: int
) -> list[DeletionCandidate]:
    """Choose commits below the anchor, made before `limit_ms`, oldest first; `held`: ranges of versions that stay."""
    goes = (commits.version < anchor) & (commits.modified_ms < limit_ms)
    for first, last in held:
        goes &= (commits.version < first) | (commits.version > last)
    reason = f"superseded by the checkpoint at version {anchor}"
    rows = np.flatnonzero(goes)
    return [
        DeletionCandidate(commit_key(topic, version), COMMIT, size, reason)
        for version, size in zip(commits.version[rows].tolist(), commits.size[rows].tolist(), strict=True)
    ]


def without_records(topic: str, commits: Sequence[DeletionCandidate], kept: set[str]) -> list[DeletionCandidate]:
    """Return the commits to delete whose records no version in `kept`, paths of data files, needs."""
    return [victim for victim in commits if victim.key.removeprefix(f"{topic_folder(topic)}/") not in kept]


def old_checkpoints(
    checkpoints: Mapping[int, ObjectInfo], needed: set[int], anchor: int, *, now_ms: int, limit_ms: int
) -> dict[int, str]:
    """Choose checkpoint heads to delete; return their versions with the reasons.

    `needed`: the newest two sound ones, the anchor and those below held versions. Below the anchor heads older than
    `limit_ms` go; above it all but the first of each hour, except those younger than an hour.
    """
    gone: dict[int, str] = {}
    hours: set[int] = set()
    for version, info in sorted(checkpoints.items()):
        hour = info.modified_ms // HOUR_MS
        first = hour not in hours
        if version in needed or version >= anchor:
            hours.add(hour)
        if version in needed:
            continue
        if version < anchor and info.modified_ms < limit_ms:
            gone[version] = f"superseded by the checkpoint at version {anchor}"
        if version >= anchor and not first and info.modified_ms < now_ms - HOUR_MS:
            gone[version] = "one an hour is enough"
    return gone


_LOG = logging.getLogger("sparklog.retention")


def delete_delay_ms(history: History, state: TopicState, settings: Settings) -> int:
    """Return `file.delete.delay.ms`; of a deleted topic its last value, if the log still has it."""
    configs = state.configs
    if state.deleted:
        with suppress(Corrupt, NotFound):
            # After a delete only maintenance commits, and few of them.
            version = state.version
            while version > 0 and history.commit(version).op != DELETE:
                version -= 1
            configs = history.at(version - 1).state.configs
    return settings.configs_of(history.topic, configs).file_delete_delay_ms


def ended_holds(state: TopicState, now_ms: int, needed: Collection[str] = ()) -> list[str]:
    ended = [name for name, hold in state.holds.items() if hold.expires_ms is not None and hold.expires_ms <= now_ms]
    return [name for name in ended if name not in needed]


def held_versions(state: TopicState, now_ms: int, needed: Collection[str] = ()) -> set[int]:
    """Return the versions whose files a hold keeps: it has not ended, or is one of the `needed` ones."""
    ended = ended_holds(state, now_ms, needed)
    return {hold.version for name, hold in state.holds.items() if name not in ended}


def give_up_clones(topic: Topic, state: TopicState, now_ms: int) -> frozenset[str]:
    """Give up the clones whose holds have expired by `now_ms` and that do not exist: none can be created any more.

    Return the names of the holds for which this failed: they must stay. A clone under the topic's name is left out: its
    hold is in the same log.
    """

    def give_up(clone: str, topic_id: str) -> bool:
        if clone != topic.name:
            _give_up(topic.root.engine.log(clone), topic_id, now_ms)
        return False

    return _staying_holds(topic, state, now_ms, give_up)


def _staying_holds(topic: Topic, state: TopicState, now_ms: int, stays: Callable[[str, str], bool]) -> frozenset[str]:
    """Return the names of the expired holds of clones (name, topic id) that stay, or cannot be asked about."""
    names = set()
    for name in ended_holds(state, now_ms):
        clone = clone_of_hold(name)
        try:
            if clone is not None and stays(*clone):
                names.add(name)
        except (SparklogError, OSError) as error:
            _LOG.warning("hold %s of topic %s stays: %s", name, topic.name, error)
            names.add(name)
    return frozenset(names)


def _give_up(clone: TopicLog, topic_id: str, now_ms: int) -> None:
    state = clone.refresh().topic_state
    if not is_given_up(state, topic_id):
        state = clone.commit(GiveUpIntent(topic_id, now_ms)).state
    if is_given_up(state, topic_id) and state.exists and state.topic_id == topic_id:
        clone.commit(DeleteIntent(topic_id, state.version))


def needed_by_clones(topic: Topic, state: TopicState, settings: Settings, now_ms: int) -> frozenset[str]:
    """Return the names of expired holds whose clones still name the topic's files, or cannot be read."""
    return _staying_holds(
        topic, state, now_ms, lambda clone, id_: _still_named(topic.root, clone, id_, topic.name, settings, now_ms)
    )


def _still_named(root: RootContext, clone: str, topic_id: str, owner: str, settings: Settings, now_ms: int) -> bool:
    history = History(root.store, clone, root.env)
    state = root.engine.log(clone).refresh().topic_state
    if state.version < 0 or (is_given_up(state, topic_id) and clone != owner):
        return False
    since = floor_version(history.commits, state.version, now_ms, delete_delay_ms(history, state, settings))
    versions = held_versions(state, now_ms)
    if since < 0:
        # The log is too young: all of its versions may still be read.
        return True
    return still_names(history, topic_id, owner, since, versions, state.version)
