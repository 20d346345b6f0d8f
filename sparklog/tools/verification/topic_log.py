"""The log of one topic: every commit and checkpoint, and the data files that must exist.

Commits are replayed from the beginning of what is kept; each checkpoint on the way must say what the replay says. Where
a commit is damaged the replay goes on from the next sound checkpoint.

**What must exist.** Of the log: every commit from the anchor on, which is the newest checkpoint that is at or
below both the upload floor and the second newest checkpoint: the vacuum deletes commits below that alone, the oldest
first. Of data: what the state at the upload floor names, what any later version adds, and what a held version names: a
reader may have planned on any version that is not older than the floor, and the vacuum keeps just that.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np

from sparklog.errors import BadRequest, Conflict, Corrupt, NotFound
from sparklog.format.crc32c import crc32c
from sparklog.format.slice_columns import COLUMN_TYPES
from sparklog.log.journal.names import checkpoint_key, checkpoint_prefix, commit_key, file_key
from sparklog.log.journal.stored_object import read_object
from sparklog.log.state.checkpoint import Checkpoint, decode_checkpoint, decode_table
from sparklog.log.state.commit import Commit, Resolved, decode_commit
from sparklog.log.state.embedded_commits import BLOCK_COMMITS, decode_embedded, embedded_in
from sparklog.log.state.history import History, first_of_run
from sparklog.log.state.invariants import check_commit, check_state
from sparklog.log.state.slice_table import Slices, SliceTable, added
from sparklog.log.state.topic_state import EMPTY, TOPIC_STATE_JSON, TopicState
from sparklog.log.topic.cloning import clone_of_hold
from sparklog.log.topic.inventory import NamedFile, NamedFiles
from sparklog.retention.vacuum_plan import held_versions
from sparklog.storage.store import Store
from sparklog.tools.verification.checked_logs import CheckedLog, log_end, read_again
from sparklog.tools.verification.findings import CHECKPOINT, LOG, MISSING, STATE, TWO_WINNERS, CheckCounts, Finding


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


def gaps(state: TopicState, table: SliceTable) -> int:
    """Return the number of offsets between log start and log end that are in no slice."""
    if state.deleted:
        return 0
    rows = table.all()
    # Of several partitions an int64 has no room for the sums.
    whole: int = sum((state.log_end - state.log_start).tolist())
    within = np.minimum(rows.end, state.log_end[rows.partition]) - np.maximum(
        rows.base, state.log_start[rows.partition]
    )
    covered: int = sum(np.maximum(within, 0).tolist())
    return whole - covered


BUILD_AGAIN = "sparklog repair builds it again if a later commit carries its copy; else restore it from a backup"
DELETE_CHECKPOINT = "delete the checkpoint: the one before will do, opening takes longer until the next one"
State = tuple[TopicState, SliceTable]


class Outcome(NamedTuple):
    """A transaction's outcome as a commit records it; `topic_id`: a name may have been given to several topics."""

    version: int
    topic_id: str
    resolved: Resolved


class TopicPrepare(NamedTuple):
    """A commit of a transaction: its id, and the transaction's id and number."""

    commit_id: str
    txn: str
    n: int


@dataclass(slots=True)
class CheckedTopic(CheckedLog):
    """The log of a topic. `first`: the oldest version that was replayed; `files`: those that must exist."""

    newest_checkpoint: int = -1

    state: TopicState | None = None  # None: no state could be rebuilt
    files: list[NamedFile] = field(default_factory=list)
    first: int = 0
    newest: int = -1
    prepares: dict[int, TopicPrepare] = field(default_factory=dict)
    outcomes: list[Outcome] = field(default_factory=list)

    @property
    def name(self) -> str:
        return self.prefix


def read_topic(store: Store, name: str, now_ms: int) -> CheckedTopic:
    """Read the log of a topic whole, again if the vacuum deletes objects meanwhile; `now_ms`: the store's clock."""
    return read_again(lambda: _Replay(store, name, now_ms).run(), CheckedTopic(store, name, "commit", LOG))


def _without_records(data: bytes, key: str, version: int) -> Commit | None:
    """Return a commit whose records alone are damaged, else None."""
    try:
        return decode_commit(data, key, version, whole=False)
    except (Corrupt, BadRequest):
        return None


class _Replay:
    """One pass over the log of a topic."""

    def __init__(self, store: Store, name: str, now_ms: int) -> None:
        self.store = store
        self.name = name
        self.now_ms = now_ms
        self.history = History(store, name)
        self.log = CheckedTopic(store, name, "commit", LOG)
        self.state: State | None = None
        self.added: dict[int, Commit] = {}  # commits with files since the upload floor, as far as it is known
        self.ids: set[str] = set()
        self.documents: dict[int, bytes] = {}  # of the newest commits

    def run(self) -> CheckedTopic:
        self.log.find_obstacles()
        self.log.newest_checkpoint = max(self.history.checkpoints, default=-1)
        versions = self.history.commits.version
        if not len(versions):
            if self.history.checkpoints or self.history.tables:
                self.log.report(MISSING, commit_key(self.name, 0), "checkpoints without any commit")
            return self.log
        versions = versions[versions <= self._end_of_log(versions.tolist())]
        self.log.newest = int(versions[-1])
        start = int(versions[first_of_run(versions)])
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
        for version in sorted(number for number in self.history.checkpoints if number > self.log.newest):
            self._beyond(version)
        self._older(versions, start)
        self._end()
        return self.log

    def _end_of_log(self, versions: list[int]) -> int:
        """Return the newest version that readers reach; commits beyond a gap become findings."""
        end = log_end(versions, max(self.history.checkpoints, default=-1))
        if end not in versions:
            return versions[-1]
        self.log.find_unreached(versions, end)
        beyond = next((number for number in versions if number > end), end + 1)
        self.log.find_missing(end + 1, beyond, (), BUILD_AGAIN)
        for version in (number for number in versions if number > end):
            key = commit_key(self.name, version)
            self.log.objects.add(key)
            commit = read_object(self.store, key, decode_commit, version).value
            if commit is not None:
                self.log.objects |= {file_key(self.name, file.path) for file in commit.files}
        return end

    # -- commits

    def _commit(self, version: int, crc: int | None) -> int | None:
        """Take the next commit; `crc` of the one before, None if unknown. Returns the CRC of this one's bytes."""
        key = commit_key(self.name, version)
        commit, data = self.log.take(key, version, decode_commit, CheckCounts(commits=1))
        commit = _without_records(data, key, version) if commit is None else commit
        if commit is None:
            self.state = None
            return None
        if commit.commit_id in self.ids:
            self.log.report(LOG, key, f"commit id {commit.commit_id} is that of an earlier commit")
        self.ids.add(commit.commit_id)
        self._check_carried(commit, data, key)
        if not self.log.follows(version, commit.prev_crc, crc):
            self.state = None
        if commit.files:
            self.added[version] = commit
        if commit.floor is not None:
            self.added = {number: added for number, added in self.added.items() if number > commit.floor}
        if commit.txn is not None:
            self.log.prepares[version] = TopicPrepare(commit.commit_id, commit.txn.id, commit.txn.n)
        self.log.outcomes += [Outcome(version, commit.topic_id, item) for item in commit.resolved]
        if self.state is not None:
            self._apply(commit, key, *self.state)
        return commit.crc

    def _check_carried(self, commit: Commit, data: bytes, key: str) -> None:
        """Hold the documents that a commit carries against those of the commits themselves, as far as they are here."""
        self.documents.pop(commit.version - BLOCK_COMMITS, None)
        self.documents[commit.version] = data[: commit.nbytes]
        try:
            documents = decode_embedded(embedded_in(commit, data))
        except Corrupt:
            return  # Its CRC-32C has said so.
        for version, document in enumerate(documents, commit.version - len(documents)):
            if self.documents.get(version, document) != document:
                self.log.report(LOG, key, f"carries another document than that of commit {version}: it is not used")
                return

    def _apply(self, commit: Commit, key: str, state: TopicState, table: SliceTable) -> None:
        try:
            after = state.apply(commit)
            try:
                check_commit(state, commit, after)
            except BadRequest as error:
                self.log.report(STATE, key, str(error))
            self.state = after, table.apply(commit, after)
        except (Corrupt, Conflict) as error:
            self.log.findings.append(Finding.of(STATE, error, key))
            self.state = None

    # -- checkpoints

    def _checkpoint(self, version: int, crc: int | None) -> None:
        """Compare a checkpoint with the replay, or go on from it."""
        key, counts = checkpoint_key(self.name, version), CheckCounts(checkpoints=1)
        checkpoint, _ = self.log.take(
            key, version, decode_checkpoint, counts, kind=CHECKPOINT, remedy=DELETE_CHECKPOINT
        )
        if checkpoint is None:
            return
        table = self._table(checkpoint, version)
        if crc is not None and checkpoint.state.crc != crc:
            message = f"it follows a commit with CRC-32C {checkpoint.state.crc}, commit {version} has {crc}"
            self.log.report(CHECKPOINT, key, message, f"{DELETE_CHECKPOINT}; {TWO_WINNERS}")
        elif self.state is not None:
            self._compare(key, checkpoint, table, *self.state)
        elif table is not None:
            self.state = checkpoint.state, table

    def _beyond(self, version: int) -> None:
        """Report a checkpoint above the newest commit: readers refuse to take an older state for the newest."""
        key, counts = checkpoint_key(self.name, version), CheckCounts(checkpoints=1)
        remedy = f"restore the commits up to {version}, or move it away if there never were any"
        checkpoint, _ = self.log.take(key, version, decode_checkpoint, counts, kind=CHECKPOINT, remedy=remedy)
        if checkpoint is not None:
            self.log.objects.add(checkpoint_prefix(self.name) + checkpoint.table.name)
            self.log.report(
                MISSING, commit_key(self.name, version), f"checkpoint {version} is there, no commit", remedy
            )

    def _table(self, checkpoint: Checkpoint, version: int) -> SliceTable | None:
        ref = checkpoint.table
        key = checkpoint_prefix(self.name) + ref.name
        self.log.objects.add(key)
        state = checkpoint_key(self.name, version)
        try:
            data = self.store.get(key, 0, ref.size + 1)
        except NotFound:
            # Heads are deleted before their tables: is it the vacuum?
            if self.store.stat(state) is None:
                raise
            message = f"checkpoint {version} names this table, it is not there"
            self.log.report(MISSING, key, message, DELETE_CHECKPOINT)
            return None
        self.log.counts += CheckCounts(nbytes=len(data))
        try:
            table = decode_table(data, ref, key, version)
            check_state(checkpoint.state, table)
        except Corrupt as error:
            finding = Finding.of(CHECKPOINT, error, key, DELETE_CHECKPOINT)
            flipped = finding.at_flipped_bit(0, len(data), crc32c(data), ref.crc) if len(data) == ref.size else None
            self.log.findings.append(flipped or finding)
            return None
        unsealed = int(np.count_nonzero(~table.all().sealed()))
        if unsealed != ref.unsealed:
            message = f"it says {ref.unsealed} slices are not sealed, its table has {unsealed}"
            self.log.report(CHECKPOINT, state, message, DELETE_CHECKPOINT)
        return table

    def _compare(
        self, key: str, checkpoint: Checkpoint, table: SliceTable | None, state: TopicState, replayed: SliceTable
    ) -> None:
        if not checkpoint.state.previous_partition_counts:
            # A checkpoint may be older than this member.
            state = replace(state, previous_partition_counts=())
        differs = "it differs from what the commits say in: "
        if checkpoint.state != state:
            left, right = TOPIC_STATE_JSON.to_json(state), TOPIC_STATE_JSON.to_json(checkpoint.state)
            members = [name for name in {**left, **right} if left.get(name) != right.get(name)]
            self.log.report(CHECKPOINT, key, differs + (", ".join(members) or "features"), DELETE_CHECKPOINT)
        if table is not None and (columns := differing_columns(replayed, table)):
            file = checkpoint_prefix(self.name) + checkpoint.table.name
            self.log.report(CHECKPOINT, file, differs + ", ".join(columns), DELETE_CHECKPOINT)

    # -- the end

    def _older(self, versions: np.ndarray, start: int) -> None:
        """Check commits and checkpoints below the run that leads to the newest version."""
        checkpoints = sorted(self.history.checkpoints)
        floor = self.state[0].floor if self.state is not None else 0
        limit = min(floor, checkpoints[-2]) if len(checkpoints) > 1 else -1
        anchor = max((version for version in checkpoints if version <= limit), default=-1)
        if self.state is not None:
            self.log.find_missing(max(anchor, 0), start, versions.tolist(), BUILD_AGAIN)
        for version in checkpoints:
            if version < start - 1:
                self.state, kept = None, self.state
                self._checkpoint(version, None)
                self.state = kept
        held = set[int]() if self.state is None else self._held_versions(self.state[0])
        last_held_version = max(held, default=-1)
        for version in versions[versions < start].tolist():
            # Of a held version; else they lead nowhere, and the vacuum that left them here, or the next, deletes them.
            key = commit_key(self.name, version)
            self.log.take(key, version, decode_commit, CheckCounts(commits=1), accounted=version <= last_held_version)

    def _end(self) -> None:
        """Check the newest state, and list the files that must exist."""
        named = NamedFiles(self.name)
        log = self.log
        if self.state is None:
            message = "no state can be rebuilt: no sound checkpoint has all commits up to the newest after it"
            self.log.report(
                STATE, commit_key(self.name, log.newest), message, "restore the commits that are named above"
            )
            for commit in self.added.values():
                named.add(added(commit))
            log.files = named.files()
            return
        state, table = self.state
        log.state = state
        try:
            check_state(state, table)
        except Corrupt as error:
            log.findings.append(Finding.of(STATE, error, commit_key(self.name, state.version)))
        if (state.first_dirty_offset > state.log_end).any():
            self.log.report(STATE, commit_key(self.name, state.version), "a partition is compacted beyond its log end")
        named.add(table.all())
        for version, commit in self.added.items():
            if version > state.floor:
                named.add(added(commit))
        versions = {version: "is held" for version in self._held_versions(state) if version < state.version}
        if 0 < state.floor < state.version:
            versions[state.floor] = "is the upload floor"
        for version, why in sorted(versions.items()):
            try:
                named.add(self.history.at(version).slices.all())
            except (NotFound, Corrupt) as error:
                if isinstance(error, NotFound) and self.history.commits.has(version, version) and self._has_shrunk():
                    # Not damage that is named above, but the vacuum: the next look says so.
                    raise
                message = f"version {version}, which {why}, cannot be rebuilt: {error}"
                self.log.report(STATE, commit_key(self.name, version), message)
        log.files = named.files()
        log.counts += CheckCounts(topics=int(state.exists), gaps=gaps(state, table))

    def _held_versions(self, state: TopicState) -> set[int]:
        # A clone's hold outlives its time for as long as the clone needs it.
        return held_versions(state, self.now_ms, [name for name in state.holds if clone_of_hold(name) is not None])

    def _has_shrunk(self) -> bool:
        """True if objects of the log were deleted since it was listed."""
        now = History(self.store, self.name)
        gone = set(self.history.commits.version.tolist()) - set(now.commits.version.tolist())
        return bool(gone or set(self.history.checkpoints) - set(now.checkpoints))
