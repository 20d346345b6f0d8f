"""The log of one topic: every commit and checkpoint, and the data files that must exist.

Commits are replayed from the beginning of what is kept; each checkpoint on the way must say what the replay says. Where
a commit is damaged the replay goes on from the next sound checkpoint.

**What must exist.** Of the log: every commit from the anchor on, which is the newest checkpoint that lies at or
below both the upload floor and the second newest checkpoint: the vacuum deletes commits below that alone, the oldest
first. Of data: what the state at the upload floor names, what any later version adds, and what a held version names: a
reader may have planned on any version that is not older than the floor, and the vacuum keeps just that.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace

import numpy as np
from crc32c import crc32c

from sparklog.errors import BadRequest, Conflict, Corrupt, NotFound
from sparklog.format.slice_columns import COLUMN_TYPES
from sparklog.log.journal.names import checkpoint_key, checkpoint_prefix, commit_key, file_key
from sparklog.log.state.checkpoint import Checkpoint, decode_checkpoint, decode_table
from sparklog.log.state.clone_holds import clone_of_hold
from sparklog.log.state.commit import Commit, Hold, Resolved, decode_commit
from sparklog.log.state.history import History
from sparklog.log.state.invariants import check_commit, check_state
from sparklog.log.state.slice_table import Slices, SliceTable, added
from sparklog.log.state.topic_state import EMPTY, HEAD_JSON, Head
from sparklog.storage.store import Store
from sparklog.tools.verification.entry_chain import log_end, missing, obstacles, read_object, unreached
from sparklog.tools.verification.findings import (
    CHAIN,
    CHECKPOINT,
    LOG,
    MISSING,
    RESTORE,
    RESTORE_BOTH,
    STATE,
    TWO_WINNERS,
    Counts,
    Finding,
)
from sparklog.tools.verification.slice_checks import Claim, DataFile

_CLAIM = tuple(each.name for each in fields(Claim) if each.name in COLUMN_TYPES)


@dataclass(slots=True)
class NamedFiles:
    """Data files by key, grown version by version; equal slices of two versions are kept once."""

    topic: str
    _files: dict[str, tuple[int, int, int, dict[Claim, None]]] = field(default_factory=dict)

    def add(self, rows: Slices) -> None:
        keys = {code: file_key(self.topic, rows.paths[code]) for code in np.unique(rows.file).tolist()}
        names = ("file", "file_size", "footer_length", "index_crc", *_CLAIM)
        columns = (rows.columns[name].tolist() for name in names)
        for code, size, footer_length, index_crc, *claim in zip(*columns, strict=True):
            *_, claims = self._files.setdefault(keys[code], (size, footer_length, index_crc, {}))
            claims[Claim(*claim)] = None

    def files(self) -> list[DataFile]:
        """Return all files, in the order of their keys."""
        return [
            DataFile(key, size, footer_length, tuple(claims), index_crc)
            for key, (size, footer_length, index_crc, claims) in sorted(self._files.items())
        ]


def differing_columns(left: SliceTable, right: SliceTable) -> list[str]:
    """Return the columns in which two tables differ; `rows` if their numbers of rows differ."""
    one, other = left.all(), right.all()
    if len(one) != len(other):
        return ["rows"]
    names = [*(name for name in COLUMN_TYPES if name not in ("file", "txn")), "file", "txn"]
    return [name for name in names if not np.array_equal(_column(one, name), _column(other, name))]


def _column(rows: Slices, name: str) -> np.ndarray:
    """Return a column, of texts themselves: two tables may number them differently."""
    if name not in ("file", "txn"):
        return rows.columns[name]
    codes, inverse = np.unique(rows.columns[name], return_inverse=True)
    texts = rows.paths if name == "file" else rows.txn_ids
    return np.array([texts[code] for code in codes.tolist()], object)[inverse]


def gaps(head: Head, table: SliceTable) -> int:
    """Return the number of offsets between log start and log end that lie in no slice."""
    if head.deleted:
        return 0
    rows = table.all()
    # Of several partitions an int64 has no room for the sums.
    whole: int = sum((head.log_end - head.log_start).tolist())
    within = np.minimum(rows.end, head.log_end[rows.partition]) - np.maximum(rows.base, head.log_start[rows.partition])
    covered: int = sum(np.maximum(within, 0).tolist())
    return whole - covered


DELETE_CHECKPOINT = "delete the checkpoint: the one before will do, opening takes longer until the next one"


@dataclass(slots=True)
class TopicLog:
    """Result of reading the log of a topic."""

    name: str
    head: Head | None = None  # None: no state could be rebuilt
    findings: list[Finding] = field(default_factory=list)
    counts: Counts = field(default_factory=Counts)
    files: list[DataFile] = field(default_factory=list)  # that must exist (see the module)
    first: int = 0  # the oldest version that was replayed
    newest: int = -1
    prepares: dict[int, tuple[str, str, int]] = field(default_factory=dict)  # commit id, transaction's id and number
    resolved: list[tuple[int, Resolved]] = field(default_factory=list)  # outcomes, with the version that records them
    objects: set[str] = field(default_factory=set)  # keys of the log that are accounted for


def read_topic(store: Store, name: str, now_ms: int) -> TopicLog:
    """Read the log of a topic whole, again if the vacuum deletes objects meanwhile; `now_ms`: the store's clock."""
    gone: NotFound | None = None
    for _ in range(store.limits.verify_tries):
        try:
            return _Replay(store, name, now_ms).run()
        except NotFound as error:
            gone = error
    log = TopicLog(name)
    log.findings.append(Finding(MISSING, f"{name}/_log", f"objects of the log are listed and not there: {gone}"))
    return log


class _Replay:
    """One pass over the log of a topic."""

    def __init__(self, store: Store, name: str, now_ms: int) -> None:
        self.store = store
        self.name = name
        self.now_ms = now_ms
        self.history = History(store, name)
        self.log = TopicLog(name)
        self.state: tuple[Head, SliceTable] | None = None
        self.added: dict[int, Commit] = {}  # commits with files since the upload floor, as far as it is known
        self.ids: set[str] = set()

    def run(self) -> TopicLog:
        self.log.findings += obstacles(self.store, self.name, "commit", LOG)
        versions = self.history.commits.version
        if not len(versions):
            if self.history.checkpoints or self.history.tables:
                self._report(MISSING, commit_key(self.name, 0), "checkpoints without any commit")
            return self.log
        versions = versions[versions <= self._end_of_log(versions.tolist())]
        self.log.newest = int(versions[-1])
        breaks = np.flatnonzero(np.diff(versions) != 1)
        start = int(versions[breaks[-1] + 1]) if len(breaks) else int(versions[0])
        self.log.first = start
        if start == 0:
            self.state = EMPTY, SliceTable()
        elif start - 1 in self.history.checkpoints:
            self._checkpoint(start - 1, None)
        crc: int | None = None
        for version in range(start, self.log.newest + 1):
            crc = self._commit(version, crc)
            if version in self.history.checkpoints:
                self._checkpoint(version, crc)
        self._older(versions, start)
        self._end()
        return self.log

    def _report(self, kind: str, file: str, message: str, remedy: str = RESTORE) -> None:
        self.log.findings.append(Finding(kind, file, message, remedy))

    def _end_of_log(self, versions: list[int]) -> int:
        """Return the newest version that readers reach; commits beyond a gap become findings."""
        end = log_end(versions, max(self.history.checkpoints, default=-1))
        if end not in versions:
            return versions[-1]
        self.log.findings += unreached(self.store, self.name, "commit", versions, end)
        for version in (each for each in versions if each > end):
            key = commit_key(self.name, version)
            self.log.objects.add(key)
            commit, _, _ = read_object(self.store, key, decode_commit, LOG, version)
            if commit is not None:
                self.log.objects |= {file_key(self.name, file.path) for file in commit.files}
        return end

    # -- commits

    def _commit(self, version: int, crc: int | None) -> int | None:
        """Take the next commit; `crc` of the one before, None if unknown. Returns the CRC of this one's bytes."""
        key = commit_key(self.name, version)
        self.log.objects.add(key)
        commit, data, damage = read_object(self.store, key, decode_commit, LOG, version)
        self.log.counts += Counts(commits=1, nbytes=len(data))
        self.log.findings += damage
        if commit is None:
            self.state = None
            return None
        if commit.commit_id in self.ids:
            self._report(LOG, key, f"commit id {commit.commit_id} is that of an earlier commit")
        self.ids.add(commit.commit_id)
        if crc is not None and commit.prev_crc != crc:
            broken = f"the chain is broken: commit {version} was made after one with CRC-32C {commit.prev_crc}"
            self._report(CHAIN, commit_key(self.name, version - 1), f"{broken}, this one has {crc}", RESTORE_BOTH)
            self.state = None
        if commit.files:
            self.added[version] = commit
        if commit.floor is not None:
            self.added = {number: each for number, each in self.added.items() if number > commit.floor}
        if commit.txn is not None:
            self.log.prepares[version] = commit.commit_id, commit.txn.id, commit.txn.n
        self.log.resolved += [(version, item) for item in commit.resolved]
        if self.state is not None:
            self._apply(commit, key, *self.state)
        return int(crc32c(data))

    def _apply(self, commit: Commit, key: str, head: Head, table: SliceTable) -> None:
        try:
            after = head.apply(commit)
            try:
                check_commit(head, commit, after)
            except BadRequest as error:
                self._report(STATE, key, str(error))
            self.state = after, table.apply(commit, after)
        except (Corrupt, Conflict) as error:
            self.log.findings.append(Finding.of(STATE, error, key))
            self.state = None

    # -- checkpoints

    def _checkpoint(self, version: int, crc: int | None) -> None:
        """Compare a checkpoint with the replay, or go on from it."""
        key = checkpoint_key(self.name, version)
        self.log.objects.add(key)
        checkpoint, data, damage = read_object(self.store, key, decode_checkpoint, CHECKPOINT, version)
        self.log.counts += Counts(checkpoints=1, nbytes=len(data))
        self.log.findings += [replace(finding, remedy=DELETE_CHECKPOINT) for finding in damage]
        if checkpoint is None:
            return
        table = self._table(checkpoint, version)
        if crc is not None and checkpoint.head.crc != crc:
            message = f"it follows a commit with CRC-32C {checkpoint.head.crc}, commit {version} has {crc}"
            self._report(CHECKPOINT, key, message, f"{DELETE_CHECKPOINT}; {TWO_WINNERS}")
            return
        if self.state is not None:
            self._compare(key, checkpoint, table, *self.state)
        elif table is not None:
            self.state = checkpoint.head, table

    def _table(self, checkpoint: Checkpoint, version: int) -> SliceTable | None:
        ref = checkpoint.table
        key = checkpoint_prefix(self.name) + ref.name
        self.log.objects.add(key)
        head = checkpoint_key(self.name, version)
        try:
            data = self.store.get(key, 0, ref.size + 1)
        except NotFound:
            # Heads are deleted before their tables: is it the vacuum?
            if self.store.stat(head) is None:
                raise
            self._report(MISSING, key, f"checkpoint {version} names this table, it is not there", DELETE_CHECKPOINT)
            return None
        self.log.counts += Counts(nbytes=len(data))
        try:
            table = decode_table(data, ref, key, version)
            check_state(checkpoint.head, table)
        except Corrupt as error:
            finding = Finding.of(CHECKPOINT, error, key, DELETE_CHECKPOINT)
            flipped = finding.at_flipped_bit(0, len(data), crc32c(data), ref.crc) if len(data) == ref.size else None
            self.log.findings.append(flipped or finding)
            return None
        unsealed = int(np.count_nonzero(~table.all().sealed()))
        if unsealed != ref.unsealed:
            message = f"it says {ref.unsealed} slices are not sealed, its table has {unsealed}"
            self._report(CHECKPOINT, head, message, DELETE_CHECKPOINT)
        return table

    def _compare(
        self, key: str, checkpoint: Checkpoint, table: SliceTable | None, head: Head, replayed: SliceTable
    ) -> None:
        if not checkpoint.head.earlier_partitions:
            # A checkpoint may be older than this member.
            head = replace(head, earlier_partitions=())
        if checkpoint.head != head:
            left, right = HEAD_JSON.to_json(head), HEAD_JSON.to_json(checkpoint.head)
            members = [name for name in {**left, **right} if left.get(name) != right.get(name)]
            wrong = ", ".join(members) or "features"
            self._report(CHECKPOINT, key, f"it differs from what the commits say in: {wrong}", DELETE_CHECKPOINT)
        columns = [] if table is None else differing_columns(replayed, table)
        if columns:
            file = checkpoint_prefix(self.name) + checkpoint.table.name
            message = f"it differs from what the commits say in: {', '.join(columns)}"
            self._report(CHECKPOINT, file, message, DELETE_CHECKPOINT)

    # -- the end

    def _older(self, versions: np.ndarray, start: int) -> None:
        """Check commits and checkpoints below the run that leads to the newest version."""
        checkpoints = sorted(self.history.checkpoints)
        floor = self.state[0].floor if self.state is not None else 0
        limit = min(floor, checkpoints[-2]) if len(checkpoints) > 1 else -1
        anchor = max((version for version in checkpoints if version <= limit), default=-1)
        if self.state is not None:
            self.log.findings += missing(self.name, "commit", max(anchor, 0), start, versions.tolist())
        for version in checkpoints:
            if version < start - 1:
                self.state, kept = None, self.state
                self._checkpoint(version, None)
                self.state = kept
        held = max((hold.version for hold in self._holds()), default=-1)
        for version in versions[versions < start].tolist():
            # Of a held version; else they lead nowhere, and the vacuum that left them here, or the next, deletes them.
            key = commit_key(self.name, version)
            if version <= held:
                self.log.objects.add(key)
            _, data, damage = read_object(self.store, key, decode_commit, LOG, version)
            self.log.counts += Counts(commits=1, nbytes=len(data))
            self.log.findings += damage

    def _end(self) -> None:
        """Check the newest state, and list the files that must exist."""
        named = NamedFiles(self.name)
        log = self.log
        if self.state is None:
            message = "no state can be rebuilt: no sound checkpoint has all commits up to the newest behind it"
            self._report(STATE, commit_key(self.name, log.newest), message, "restore the commits that are named above")
            for commit in self.added.values():
                named.add(added(commit))
            log.files = named.files()
            return
        head, table = self.state
        log.head = head
        try:
            check_state(head, table)
        except Corrupt as error:
            log.findings.append(Finding.of(STATE, error, commit_key(self.name, head.version)))
        if (head.cleaned_through > head.log_end).any():
            self._report(STATE, commit_key(self.name, head.version), "a partition is compacted beyond its log end")
        named.add(table.all())
        for version, commit in self.added.items():
            if version > head.floor:
                named.add(added(commit))
        versions = {hold.version: "is held" for hold in self._holds() if hold.version < head.version}
        if 0 < head.floor < head.version:
            versions[head.floor] = "is the upload floor"
        for version, why in sorted(versions.items()):
            try:
                named.add(self.history.at(version).slices.all())
            except (NotFound, Corrupt) as error:
                if isinstance(error, NotFound) and self.history.commits.has(version, version) and self._has_shrunk():
                    # Not damage that is named above, but the vacuum: the next look says so.
                    raise
                message = f"version {version}, which {why}, cannot be rebuilt: {error}"
                self._report(STATE, commit_key(self.name, version), message)
        log.files = named.files()
        log.counts += Counts(topics=int(head.exists), gaps=gaps(head, table))

    def _holds(self) -> list[Hold]:
        holds = {} if self.state is None else self.state[0].holds
        return [
            hold
            for name, hold in holds.items()
            # A clone's hold outlives its time for as long as the clone needs it.
            if hold.expires_ms is None or hold.expires_ms > self.now_ms or clone_of_hold(name) is not None
        ]

    def _has_shrunk(self) -> bool:
        """True if objects of the log were deleted since it was listed."""
        now = History(self.store, self.name)
        gone = set(self.history.commits.version.tolist()) - set(now.commits.version.tolist())
        return bool(gone or set(self.history.checkpoints) - set(now.checkpoints))
