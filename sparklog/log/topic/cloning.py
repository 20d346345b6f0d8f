"""Clone a topic. A clone is a topic that references another topic's files until it has rewritten the records to its own
files.

Cloning topic `source` at version 7 as `clone`:

1. The cloning process leases version 7 in the log of `source`, and the versions of other topics whose files `source`
   shares. The leases (`holds` in the file format) are named after the clone. The vacuum keeps the files of leased
   versions, even if the topic is deleted.
2. The process creates `clone` with one commit that has the slices of `source` at version 7, with the same offsets.
   Their paths begin with `/`. No data is read or copied, regardless of the size of the topic.
3. Later, the vacuum of `source` reads the log of `clone`. When no readable version of `clone` references a file of
   `source`, the vacuum ends the lease.

Until `expiresMs` of the lease, the clone may not exist yet, so the vacuum does not check whether it exists. Before the
vacuum ends the lease of a clone that does not exist, it commits to the log of the clone's name (`AbandonCloneIntent`).
A cloning process that was stopped after step 1 then finds a changed log, and does not create the clone.

A clone has its own topic id and the next leader epoch. It has no idempotency registry, so the writers of the source are
unknown. Offsets, configs, log starts and open Kafka transactions are copied from the source. The slices of transactions
that are aborted, or undecided at the time of the lease, are excluded, which leaves gaps. A transaction that was
committed after the cloned version is included, unless it also has slices after that version.
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
from sparklog.log.state.commit import CREATE, MAINTAIN, Edit, TxnDecision, VersionLease
from sparklog.log.state.commit_intents import DeleteIntent, Draft, MaintainIntent, Nothing
from sparklog.log.state.history import History
from sparklog.log.state.slice_table import ABORTED, OPEN, Slices, SliceTable, Snapshot
from sparklog.log.state.slices import FileSlices
from sparklog.log.state.topic_state import TopicState
from sparklog.log.topic.engine import TopicLog
from sparklog.log.topic.root import Root


@dataclass(frozen=True, slots=True)
class Cloned:
    """The result of a clone. It contains the cloned `version` of the source, the number of shared bytes and records,
    and the number of excluded slices.

    `log_starts` and `log_ends` have one value per partition. A `dry_run` does not create the clone, and its `topic_id`
    is empty.
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
    """Create a topic with the contents of a snapshot of another topic.

    `version` is the version of the clone's log before the leases were created, because a later commit may have
    abandoned the clone. `version` is None if one of the leases is in the clone's own log. The lease must then still
    exist.
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
        if self.version is None and clone_lease_name(topic, self.topic_id) not in state.leases:
            raise Conflict(f"the lease of clone '{topic}' ended before the clone was created; retry")
        if self.version is not None and state.version != self.version:
            raise Conflict(
                f"topic '{topic}' changed from version {self.version} to {state.version} during the clone; retry"
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
    """Create a topic with the current contents of `source`, or with its contents at a version or a time (see
    `sparklog.clone`).
    """
    check_topic_name(name)
    if version is not None and time_ms is not None:
        raise BadRequest("expected either a version or a time to clone, found both")
    log = root.engine.log(check_topic_name(source))
    snapshot = _requested_snapshot(root, log, version, time_ms)
    before = root.engine.log(name).refresh().topic_state
    if before.exists:
        raise Conflict(f"topic '{name}' already exists; choose another name for the clone")
    if dry_run:
        _check_retained(log, snapshot)
        return _cloned(log, snapshot, name, "", _shared(source, snapshot))
    started_at = root.env.now()
    topic_id = root.env.new_id()
    leased = _lease(root, log, snapshot, clone_lease_name(name, topic_id))
    try:
        decided = _decided(log, snapshot)
        files = _shared(source, decided)
        version_before = None if any(log.topic == name for log in leased) else before.version
        clone = root.engine.create(name, CloneIntent(topic_id, decided, files, version_before))
    except (BadRequest, Conflict, NotFound):
        # The clone was not created. After any other error, it may exist.
        _release(leased, clone_lease_name(name, topic_id))
        raise
    if root.env.elapsed_ms(started_at) > STALE_MS:
        # A vacuum may have ended the leases before the clone was created.
        with suppress(Conflict, NotFound):
            clone.commit(DeleteIntent(topic_id))
        raise Unavailable(f"cloning topic '{source}' was aborted, because it took more than one hour; retry")
    return _cloned(log, decided, name, topic_id, files)


def _requested_snapshot(root: Root, log: TopicLog, version: int | None, time_ms: int | None) -> Snapshot:
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


def _check_retained(log: TopicLog, snapshot: Snapshot) -> None:
    state = log.current().topic_state
    if snapshot.version < state.floor and snapshot.version not in {lease.version for lease in state.leases.values()}:
        raise Conflict(
            f"version {snapshot.version} of topic '{log.topic}' has been vacuumed; choose a version from "
            f"{state.floor} on"
        )


def _lease(root: Root, log: TopicLog, snapshot: Snapshot, lease_name: str) -> list[TopicLog]:
    """Lease the snapshot's version, and the versions of other topics whose files it shares.

    Return the logs of these topics.
    """
    _check_retained(log, snapshot)
    versions = {log.topic: snapshot.version}
    source_lease = clone_lease_name(log.topic, snapshot.state.topic_id)
    owners = {owner for path in snapshot.slices.paths() if path.startswith("/") and (owner := key_topic(path[1:]))}
    for owner in sorted(owners - {log.topic}):
        lease = root.engine.log(owner).refresh().topic_state.leases.get(source_lease)
        if lease is None:
            raise Conflict(
                f"version {snapshot.version} of topic '{log.topic}' references files of topic '{owner}', whose lease "
                "has ended; choose a later version"
            )
        versions[owner] = lease.version
    expires_ms = root.store.now_ms() + GRACE_MS
    logs: list[TopicLog] = []
    try:
        for owner, version in versions.items():
            log = root.engine.log(owner)
            topic_id = log.current().topic_state.topic_id
            log.commit(MaintainIntent(topic_id, leases={lease_name: VersionLease(version, expires_ms)}))
            logs.append(log)
    except SparklogError:
        _release(logs, lease_name)
        raise
    return logs


def _release(logs: Sequence[TopicLog], lease_name: str) -> None:
    # If this fails, the vacuum ends the leases a day later.
    for log in logs:
        with suppress(SparklogError, OSError):
            log.commit(MaintainIntent(log.refresh().topic_state.topic_id, leases={lease_name: None}))


def _decided(log: TopicLog, snapshot: Snapshot) -> Snapshot:
    undecided = set(open_transactions(snapshot.state))
    if not undecided:
        return snapshot
    latest = log.refresh().topic_state
    resolved: list[TxnDecision] = []
    for _, commit in History(log.store, log.topic, log.env).walk(snapshot.state, latest.version):
        # If a transaction also has slices after the snapshot, the clone would contain only a part of it.
        ended = [item for item in commit.resolved if max(item.committed, default=0) <= snapshot.version]
        resolved += [item for item in ended if (item.id, item.n) in undecided]
    return with_outcomes(snapshot, resolved)


def _shared(source: str, snapshot: Snapshot) -> tuple[FileSlices, ...]:
    rows = snapshot.slices.all()
    committed = rows[np.flatnonzero((rows.status != ABORTED) & (rows.status != OPEN))]
    return tuple(
        file if file.path.startswith("/") else replace(file, path=f"/{file_key(source, file.path)}")
        for file in file_slices(committed)
    )


def file_slices(rows: Slices) -> list[FileSlices]:
    """Convert rows of a slice table to the form that a commit contains, with one entry per file and all columns."""
    codes, of_row = np.unique(rows.file, return_inverse=True)
    # A file that several commits reference has several codes.
    paths = rows.paths.at(codes)
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
        state.created_ms,
    )


GRACE_MS = 86_400_000
"""The time for which a lease is kept if its clone does not exist because the cloning process died."""
_PREFIX = "clone"
_GIVEN_UP = "given-up"


def clone_lease_name(clone: str, topic_id: str) -> str:
    """Return the name of a clone's lease. Topic names do not contain colons."""
    return f"{_PREFIX}:{clone}:{topic_id}"


def clone_of_lease_name(lease_name: str) -> tuple[str, str] | None:
    """Return the name and topic id of the clone that a lease belongs to, or None if the lease does not belong to a
    clone.
    """
    prefix, _, rest = lease_name.partition(":")
    name, colon, topic_id = rest.partition(":")
    return (name, topic_id) if prefix == _PREFIX and colon and is_topic_name(name) else None


@dataclass(frozen=True, slots=True)
class AbandonCloneIntent:
    """Commit to the log of a clone's name, so that the clone can no longer be created.

    If the log is empty, the commit creates a topic, which the caller deletes.
    """

    topic_id: str
    now_ms: int
    needs_table: ClassVar[bool] = False
    repeatable: ClassVar[bool] = True

    def draft(self, topic: str, state: TopicState, origin: TopicState, table: SliceTable | None) -> Draft | Nothing:
        if state.exists or state.topic_id == self.topic_id:
            return Nothing("nothing changes", state.version)
        record = {f"{_GIVEN_UP}:{self.topic_id}": VersionLease(max(state.version, 0), self.now_ms)}
        if state.version < 0:
            return Draft(CREATE, topic_id=self.topic_id, leader_epoch=0, partitions=1, leases=record)
        return Draft(MAINTAIN, leases=record)


def is_clone_abandoned(state: TopicState, topic_id: str) -> bool:
    """Return True if the log of a clone's name records that the clone with this topic id was abandoned."""
    return f"{_GIVEN_UP}:{topic_id}" in state.leases


def references_files_of(
    history: History, topic_id: str, owner: str, since: int, versions: set[int], latest: int
) -> bool:
    """Return True if a clone references a file of `owner` at `versions`, or from version `since` to `latest`.

    Other topics with the same name but other ids are ignored. Raises `NotFound` or `Corrupt` if the log is incomplete.
    """

    def has_any(of: str, paths: Iterable[str]) -> bool:
        return of == topic_id and any(path.startswith(f"/{topic_folder(owner)}/") for path in paths)

    for version in [*sorted(number for number in versions if number < since), since]:
        snapshot = history.at(version)
        if has_any(snapshot.state.topic_id, snapshot.slices.paths()):
            return True
    return any(
        commit.op == CREATE and has_any(commit.topic_id, (file.path for file in commit.files))
        for _, commit in history.walk(snapshot.state, latest)
    )
