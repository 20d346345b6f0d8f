"""`clone`: a new topic that names another one's files, and shares them until it has rewritten its own.

One commit creates it with all that it holds: the slices of the source at one version, at their offsets, under paths
that begin with `/`. Nothing is read or copied, whatever the size. Before that commit come the holds, in the source and
in whatever topics it shares files with itself, named after the clone, so no vacuum can get in between: it keeps what a
held version names, also once the topic is deleted.

Release is automatic: the vacuum of the topic that owns the files looks into the clone's log, and ends the hold once no
version of the clone that may still be read names a file of that topic. Until `expiresMs` of the hold the clone may not
be there yet, so it is not looked for. Before the vacuum ends the hold of a clone that is not there, it commits to the
log of the clone's name (see `GiveUpIntent`): a process that has slept since it took the hold expects that log as it was
then, and creates nothing.

A clone has its own topic id, no idempotency registry (a writer of the source is unknown there) and the next leader
epoch. Offsets, configs, log starts and Kafka's open transactions are the source's. Slices of transactions that are
aborted, or undecided by the time of the hold, are left out, which leaves gaps; what was committed since the version
that is cloned is in it, unless it went on after that version.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from sparklog.common.units import count
from sparklog.errors import BadRequest, Conflict, NotFound, SparklogError, Unavailable
from sparklog.format.slice_columns import SLICE_COLUMNS
from sparklog.log.decisions.decision_log import open_transactions, with_outcomes
from sparklog.log.journal.names import check_topic_name, file_key, is_topic_name, key_topic, topic_folder
from sparklog.log.journal.numbered_objects import STALE_MS
from sparklog.log.state.commit import CREATE, MAINTAIN, Edit, Resolved, VersionLease
from sparklog.log.state.commit_intents import DeleteIntent, Draft, MaintainIntent, Nothing
from sparklog.log.state.history import History
from sparklog.log.state.slice_table import ABORTED, OPEN, Slices, SliceTable, Snapshot
from sparklog.log.state.slices import FileSlices
from sparklog.log.state.topic_state import TopicState
from sparklog.log.topic.engine import TopicLog
from sparklog.log.topic.root import Root


@dataclass(frozen=True, slots=True)
class Cloned:
    """Report of a clone: the `version` of the source it shows, bytes and records it shares, slices left out.

    `log_starts` and `log_ends` are per partition. With `dry_run` nothing was created, and `topic_id` is empty.
    """

    source: str
    version: int
    topic: str
    topic_id: str
    partitions: int
    log_starts: tuple[int, ...]
    log_ends: tuple[int, ...]
    files: int
    nbytes: int
    records: int
    left_out: int
    time_ms: int


@dataclass(frozen=True, slots=True)
class CloneIntent:
    """Create a topic with what a snapshot of another one holds.

    `version`: of the name's log before the holds were taken: any commit since may say that the clone was given up. None
    where one of the holds is in that log itself: it must still be there.
    """

    topic_id: str
    source: Snapshot
    files: tuple[FileSlices, ...]
    version: int | None
    needs_table: ClassVar[bool] = False
    repeatable: ClassVar[bool] = False

    def draft(self, topic: str, state: TopicState, origin: TopicState, table: SliceTable | None) -> Draft | Nothing:
        if state.exists:
            number = count(state.partitions, "partition")
            raise Conflict(f"topic '{topic}' already exists, with {number}; choose another name for the clone")
        if self.version is None and clone_hold(topic, self.topic_id) not in state.holds:
            raise Conflict(f"the hold of the clone '{topic}' has ended while it was cloned; try again")
        if self.version is not None and state.version != self.version:
            raise Conflict(
                f"topic '{topic}' went from version {self.version} to {state.version} while it was cloned; try again"
            )
        source = self.source.state
        firsts: dict[int, int] = {}
        for file in self.files:
            for partition, base in zip(file.partition, file.base, strict=True):
                firsts[partition] = min(base, firsts.get(partition, base))
        starts, ends, cleaned = source.log_start.tolist(), source.log_end.tolist(), source.first_dirty_offset.tolist()
        edits = [
            Edit(p, min(starts[p], firsts.get(p, starts[p])), ends[p], cleaned[p] or None)
            for p in range(source.partitions)
            if ends[p] > 0
        ]
        return Draft(
            CREATE,
            topic_id=self.topic_id,
            leader_epoch=source.leader_epoch + 1,
            files=self.files,
            edits=tuple(edits),
            log_starts={partition: start for partition, start in enumerate(starts) if start > 0},
            configs=dict(source.configs.explicit),
            partitions=source.partitions,
            previous_partition_counts=source.previous_partition_counts,
            kafka_open=source.kafka_open,
        )


def clone_topic(
    root: Root, source: str, name: str, *, version: int | None = None, time_ms: int | None = None, dry_run: bool = False
) -> Cloned:
    """Create a topic that shows `source` as it is, was at a version, or at a time: see `sparklog.clone`."""
    check_topic_name(name)
    log = root.engine.log(check_topic_name(source))
    snapshot = _chosen(root, log, version, time_ms)
    before = root.engine.log(name).refresh().topic_state
    if before.exists:
        raise Conflict(f"topic '{name}' already exists; choose another name for the clone")
    if dry_run:
        _refuse_below_floor(log, snapshot)
        return _cloned(log, snapshot, name, "", _shared(source, snapshot))
    begun = root.env.now()
    topic_id = root.env.new_id()
    held = _hold(root, log, snapshot, clone_hold(name, topic_id))
    try:
        shown = _decided(log, snapshot)
        files = _shared(source, shown)
        version_before = None if any(log.topic == name for log in held) else before.version
        clone = root.engine.create(name, CloneIntent(topic_id, shown, files, version_before))
    except (BadRequest, Conflict, NotFound):
        # There is no such clone. After any other error there may be one.
        _release(held, clone_hold(name, topic_id))
        raise
    if root.env.elapsed_ms(begun) > STALE_MS:
        # The holds may have been found to be without a clone, and ended, before it was created.
        with suppress(Conflict, NotFound):
            clone.commit(DeleteIntent(topic_id))
        raise Unavailable(f"cloning topic '{source}' took more than an hour, and was given up; try again")
    return _cloned(log, shown, name, topic_id, files)


def _chosen(root: Root, log: TopicLog, version: int | None, time_ms: int | None) -> Snapshot:
    state = log.refresh().topic_state
    if state.version < 0 or (version is None and time_ms is None and state.deleted):
        root.topic(log.topic)
    if version is None and time_ms is None:
        return log.snapshot()
    history = History(root.store, log.topic, root.env)
    number = history.version_at(time_ms or 0) if version is None else version
    if number > state.version:
        raise NotFound(f"topic '{log.topic}' has versions up to {state.version}, found {number}")
    snapshot = history.at(number)
    if snapshot.state.deleted:
        raise NotFound(f"topic '{log.topic}' did not exist at version {number}; choose another version")
    return snapshot


def _refuse_below_floor(log: TopicLog, snapshot: Snapshot) -> None:
    state = log.current().topic_state
    if snapshot.version < state.floor and snapshot.version not in {hold.version for hold in state.holds.values()}:
        raise Conflict(
            f"version {snapshot.version} of topic '{log.topic}' is older than what the vacuum keeps; versions from "
            f"{state.floor} on can be cloned"
        )


def _hold(root: Root, log: TopicLog, snapshot: Snapshot, hold: str) -> list[TopicLog]:
    """Hold the version of the snapshot, and the versions of other topics whose files it shares; the topics held."""
    _refuse_below_floor(log, snapshot)
    versions = {log.topic: snapshot.version}
    hold_of_source = clone_hold(log.topic, snapshot.state.topic_id)
    owners = {owner for path in snapshot.slices.paths() if path.startswith("/") and (owner := key_topic(path[1:]))}
    for owner in sorted(owners - {log.topic}):
        held_version = root.engine.log(owner).refresh().topic_state.holds.get(hold_of_source)
        if held_version is None:
            raise Conflict(
                f"version {snapshot.version} of topic '{log.topic}' names files of topic '{owner}' that are held no "
                "longer; choose a newer version"
            )
        versions[owner] = held_version.version
    expires_ms = root.store.now_ms() + GRACE_MS
    logs: list[TopicLog] = []
    try:
        for owner, version in versions.items():
            log = root.engine.log(owner)
            topic_id = log.current().topic_state.topic_id
            log.commit(MaintainIntent(topic_id, holds={hold: VersionLease(version, expires_ms)}))
            logs.append(log)
    except SparklogError:
        _release(logs, hold)
        raise
    return logs


def _release(logs: Sequence[TopicLog], hold: str) -> None:
    # Where that fails, the vacuum ends them a day later.
    for log in logs:
        with suppress(SparklogError, OSError):
            log.commit(MaintainIntent(log.refresh().topic_state.topic_id, holds={hold: None}))


def _decided(log: TopicLog, snapshot: Snapshot) -> Snapshot:
    waiting = set(open_transactions(snapshot.state))
    if not waiting:
        return snapshot
    newest = log.refresh().topic_state
    resolved: list[Resolved] = []
    for _, commit in History(log.store, log.topic, log.env).walk(snapshot.state, newest.version):
        # One that went on after the snapshot would be in the clone in part.
        ended = [item for item in commit.resolved if max(item.committed, default=0) <= snapshot.version]
        resolved += [item for item in ended if (item.id, item.n) in waiting]
    return with_outcomes(snapshot, resolved)


def _shared(source: str, snapshot: Snapshot) -> tuple[FileSlices, ...]:
    rows = snapshot.slices.all()
    kept = rows[np.flatnonzero((rows.status != ABORTED) & (rows.status != OPEN))]
    return tuple(
        file if file.path.startswith("/") else replace(file, path=f"/{file_key(source, file.path)}")
        for file in file_slices(kept)
    )


def file_slices(rows: Slices) -> list[FileSlices]:
    """Return rows of a slice table as a commit lists them: by file, with all columns."""
    codes, of_row = np.unique(rows.file, return_inverse=True)
    # A file that a commit named again has a second code.
    paths = rows.paths.take(codes)
    numbers = {path: i for i, path in enumerate(sorted(set(paths)))}
    of_row = np.array([numbers[path] for path in paths], np.int64)[of_row]
    order = np.argsort(of_row, kind="stable")
    cuts = np.append(np.searchsorted(of_row[order], np.arange(len(numbers))), len(order))
    files = []
    for path, i in numbers.items():
        file_rows = rows[order[cuts[i] : cuts[i + 1]]]
        columns: dict[str, Any] = {
            column.commit.attribute: tuple(file_rows.columns[column.name].tolist())
            for column in SLICE_COLUMNS
            if column.commit
        }
        columns["offsets"] = tuple((file_rows.end - file_rows.base).tolist())
        if not file_rows.sealed().all():
            columns["index_crc"] = ()
        files.append(FileSlices(path, int(file_rows.file_size[0]), int(file_rows.footer_length[0]), **columns))
    return files


def _cloned(log: TopicLog, snapshot: Snapshot, name: str, topic_id: str, files: Sequence[FileSlices]) -> Cloned:
    state = snapshot.state
    return Cloned(
        log.topic,
        snapshot.version,
        name,
        topic_id,
        state.partitions,
        tuple(state.log_start.tolist()),
        tuple(state.log_end.tolist()),
        len({file.path for file in files}),
        sum(sum(file.nbytes) for file in files),
        sum(sum(file.records) for file in files),
        len(snapshot.slices) - sum(len(file) for file in files),
        state.made_ms,
    )


GRACE_MS = 86_400_000
"""How long a clone's hold stays without a clone: the process that was to create it has died."""
_PREFIX = "clone"
_GIVEN_UP = "given-up"


def clone_hold(clone: str, topic_id: str) -> str:
    """Return the name of a clone's hold; topic names have no colon."""
    return f"{_PREFIX}:{clone}:{topic_id}"


def clone_of_hold(hold: str) -> tuple[str, str] | None:
    """Return name and topic id of the clone whose hold has this name, None for any other hold."""
    prefix, _, rest = hold.partition(":")
    name, colon, topic_id = rest.partition(":")
    return (name, topic_id) if prefix == _PREFIX and colon and is_topic_name(name) else None


@dataclass(frozen=True, slots=True)
class GiveUpIntent:
    """Commit to the log of a name, so that this clone cannot be created; an empty log gets a topic to be deleted."""

    topic_id: str
    now_ms: int
    needs_table: ClassVar[bool] = False
    repeatable: ClassVar[bool] = True

    def draft(self, topic: str, state: TopicState, origin: TopicState, table: SliceTable | None) -> Draft | Nothing:
        if state.exists or state.topic_id == self.topic_id:
            return Nothing("nothing changes", state.version)
        record = {f"{_GIVEN_UP}:{self.topic_id}": VersionLease(max(state.version, 0), self.now_ms)}
        if state.version < 0:
            return Draft(CREATE, topic_id=self.topic_id, leader_epoch=0, partitions=1, holds=record)
        return Draft(MAINTAIN, holds=record)


def is_given_up(state: TopicState, topic_id: str) -> bool:
    """True if a name's log says that no clone with this topic id will come."""
    return f"{_GIVEN_UP}:{topic_id}" in state.holds


def still_names(history: History, topic_id: str, owner: str, since: int, versions: set[int], newest: int) -> bool:
    """True if a clone names a file of `owner` at version `since` or later up to `newest`, or at one of `versions`.

    What had its name before and after (another `topic_id`) is not asked. `NotFound` or `Corrupt` if it cannot be told.
    """

    def has_any(of: str, paths: Iterable[str]) -> bool:
        return of == topic_id and any(path.startswith(f"/{topic_folder(owner)}/") for path in paths)

    for version in [*sorted(number for number in versions if number < since), since]:
        snapshot = history.at(version)
        if has_any(snapshot.state.topic_id, snapshot.slices.paths()):
            return True
    return any(
        commit.op == CREATE and has_any(commit.topic_id, (file.path for file in commit.files))
        for _, commit in history.walk(snapshot.state, newest)
    )
