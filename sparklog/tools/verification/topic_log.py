"""Check the log of a topic: all commits and checkpoints, and the list of data files that must exist.

Commits are replayed from the first retained commit, and each checkpoint must equal the replayed state at its version.
If a commit is damaged, the replay continues from the next valid checkpoint.

**Commits that must exist:** all commits from the anchor on. The anchor is the latest checkpoint that is at or below
both the retention floor and the second latest checkpoint. The vacuum deletes only commits below the anchor, starting
with the oldest commit.

**Data files that must exist:** the files of the state at the retention floor, files that later versions add, and files
of leased versions. The vacuum retains exactly these files, because a reader may have planned a read of any version at
or above the floor.
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
from sparklog.log.state.commit import Commit, TxnDecision
from sparklog.log.state.commit_object import decode_commit
from sparklog.log.state.embedded_commits import BLOCK_COMMITS, decode_embedded, embedded_in
from sparklog.log.state.history import History, start_after_last_gap
from sparklog.log.state.invariants import check_commit, check_state
from sparklog.log.state.slice_table import Slices, SliceTable, added_slices
from sparklog.log.state.topic_state import EMPTY, TOPIC_STATE_JSON, TopicState
from sparklog.log.topic.cloning import clone_of_lease_name
from sparklog.log.topic.inventory import ReferencedFile, ReferencedFiles
from sparklog.retention.vacuum_plan import leased_versions
from sparklog.storage.store import Store
from sparklog.tools.verification.checked_logs import CheckedLog, log_end, read_again
from sparklog.tools.verification.findings import CHECKPOINT, LOG, MISSING, STATE, TWO_WINNERS, CheckCounts, Finding


def differing_columns(left: SliceTable, right: SliceTable) -> list[str]:
    """Return the names of the columns in which two tables differ, or `rows` if their numbers of rows differ."""
    left_rows, right_rows = left.all(), right.all()
    if len(left_rows) != len(right_rows):
        return ["rows"]
    names = [*(name for name in COLUMN_TYPES if name not in ("file", "txn")), "file", "txn"]
    return [name for name in names if not np.array_equal(_column(left_rows, name), _column(right_rows, name))]


def _column(rows: Slices, name: str) -> np.ndarray:
    """Return a column. Dictionary codes are replaced with their strings, because the codes of a string differ between
    tables.
    """
    if name not in ("file", "txn"):
        return rows.columns[name]
    codes, inverse = np.unique(rows.columns[name], return_inverse=True)
    texts = rows.paths if name == "file" else rows.txn_ids
    return np.array([texts[code] for code in codes.tolist()], object)[inverse]


def gaps(state: TopicState, table: SliceTable) -> int:
    """Return the number of offsets between log start and log end that are not in a slice."""
    if state.deleted:
        return 0
    rows = table.all()
    # The sum over several partitions may exceed int64, so add Python integers.
    total: int = sum((state.log_end - state.log_start).tolist())
    ends = np.minimum(rows.end, state.log_end[rows.partition])
    within = ends - np.maximum(rows.base, state.log_start[rows.partition])
    covered: int = sum(np.maximum(within, 0).tolist())
    return total - covered


RUN_REPAIR = "run sparklog repair, which rebuilds the commit from a copy in a later commit, or restore it from a backup"
DELETE_CHECKPOINT = (
    "delete the checkpoint; readers then use the previous checkpoint, and opening the topic takes longer"
)
State = tuple[TopicState, SliceTable]


class Outcome(NamedTuple):
    """The outcome of a transaction that is recorded in a commit. `topic_id` distinguishes a topic from a deleted topic
    with the same name.
    """

    version: int
    topic_id: str
    resolved: TxnDecision


class TopicPrepare(NamedTuple):
    """A commit that prepares a transaction: the commit id, the transactional id and the transaction number."""

    commit_id: str
    txn: str
    n: int


@dataclass(slots=True)
class CheckedTopic(CheckedLog):
    """The checked log of a topic.

    Attributes:
        state: the latest state, or None if no state can be rebuilt.
        files: the data files that must exist.
        first: the oldest version that was replayed.
        latest: the latest version that readers reach.
    """

    latest_checkpoint: int = -1
    state: TopicState | None = None
    files: list[ReferencedFile] = field(default_factory=list)
    first: int = 0
    latest: int = -1
    prepares: dict[int, TopicPrepare] = field(default_factory=dict)
    outcomes: list[Outcome] = field(default_factory=list)

    @property
    def name(self) -> str:
        return self.prefix


def read_topic(store: Store, name: str, now_ms: int) -> CheckedTopic:
    """Read the entire log of a topic, and read it again if the vacuum deletes objects during the read.

    `now_ms` is the time of the store's clock.
    """
    return read_again(lambda: _Replay(store, name, now_ms).run(), CheckedTopic(store, name, "commit", LOG))


def _without_records(data: bytes, key: str, version: int) -> Commit | None:
    """Return a commit whose document is intact although its inline records are corrupt, or None."""
    try:
        return decode_commit(data, key, version, check_sections=False)
    except (Corrupt, BadRequest):
        return None


class _Replay:
    """A replay of the log of a topic.

    Attributes:
        state: the replayed state, or None if the state is unknown because of corruption.
        added: the commits that added files after the retention floor.
        documents: the documents of the most recent commits.
    """

    def __init__(self, store: Store, name: str, now_ms: int) -> None:
        self.store = store
        self.name = name
        self.now_ms = now_ms
        self.history = History(store, name)
        self.log = CheckedTopic(store, name, "commit", LOG)
        self.state: State | None = None
        self.added: dict[int, Commit] = {}
        self.commit_ids: set[str] = set()
        self.documents: dict[int, bytes] = {}

    def run(self) -> CheckedTopic:
        self.log.find_obstacles()
        self.log.latest_checkpoint = max(self.history.checkpoints, default=-1)
        versions = self.history.commits.version
        if not len(versions):
            if self.history.checkpoints or self.history.tables:
                self.log.report(MISSING, commit_key(self.name, 0), "the topic has checkpoints, but no commits")
            return self.log
        versions = versions[versions <= self._end_of_log(versions.tolist())]
        self.log.latest = int(versions[-1])
        start = int(versions[start_after_last_gap(versions)])
        self.log.first = start
        if start == 0:
            self.state = EMPTY, SliceTable()
        elif start - 1 in self.history.checkpoints:
            self._checkpoint(start - 1, None)
        crc: int | None = None
        for version in range(start, self.log.latest + 1):
            crc = self._commit(version, crc)
            if version in self.history.checkpoints:
                self._checkpoint(version, crc)
        for version in sorted(number for number in self.history.checkpoints if number > self.log.latest):
            self._report_checkpoint_beyond(version)
        self._check_older(versions, start)
        self._finish()
        return self.log

    def _end_of_log(self, versions: list[int]) -> int:
        """Return the latest version that readers reach, and report commits beyond a gap."""
        end = log_end(versions, max(self.history.checkpoints, default=-1))
        if end not in versions:
            return versions[-1]
        self.log.find_unreachable(versions, end)
        beyond = next((number for number in versions if number > end), end + 1)
        self.log.find_missing(end + 1, beyond, (), RUN_REPAIR)
        for version in (number for number in versions if number > end):
            key = commit_key(self.name, version)
            self.log.objects.add(key)
            commit = read_object(self.store, key, decode_commit, version).value
            if commit is not None:
                self.log.objects |= {file_key(self.name, file.path) for file in commit.files}
        return end

    # -- commits

    def _commit(self, version: int, crc: int | None) -> int | None:
        """Replay a commit and return its CRC. `crc` is the CRC of the previous commit, or None if it is unknown."""
        key = commit_key(self.name, version)
        commit, data = self.log.read(key, version, decode_commit, CheckCounts(commits=1))
        commit = _without_records(data, key, version) if commit is None else commit
        if commit is None:
            self.state = None
            return None
        if commit.commit_id in self.commit_ids:
            self.log.report(LOG, key, f"commit id {commit.commit_id} is also the id of an earlier commit")
        self.commit_ids.add(commit.commit_id)
        self._check_embedded(commit, data, key)
        if not self.log.follows(version, commit.prev_crc, crc):
            self.state = None
        if commit.files:
            self.added[version] = commit
        if commit.floor is not None:
            self.added = {number: added for number, added in self.added.items() if number > commit.floor}
        if commit.txn is not None:
            self.log.prepares[version] = TopicPrepare(commit.commit_id, commit.txn.id, commit.txn.n)
        self.log.outcomes += [Outcome(version, commit.topic_id, resolved) for resolved in commit.resolved]
        if self.state is not None:
            self._apply(commit, key, *self.state)
        return commit.crc

    def _check_embedded(self, commit: Commit, data: bytes, key: str) -> None:
        """Compare the embedded commits of a commit with the original commits that were read."""
        self.documents.pop(commit.version - BLOCK_COMMITS, None)
        self.documents[commit.version] = data[: commit.nbytes]
        try:
            documents = decode_embedded(embedded_in(commit, data))
        except Corrupt:
            return  # The CRC-32C mismatch of the commit has already been reported.
        for version, document in enumerate(documents, commit.version - len(documents)):
            if self.documents.get(version, document) != document:
                self.log.report(LOG, key, f"the embedded copy of commit {version} differs from the commit")
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
        """Compare a checkpoint with the replayed state. If the state is unknown, continue from the checkpoint."""
        key, counts = checkpoint_key(self.name, version), CheckCounts(checkpoints=1)
        checkpoint, _ = self.log.read(
            key, version, decode_checkpoint, counts, kind=CHECKPOINT, remedy=DELETE_CHECKPOINT
        )
        if checkpoint is None:
            return
        table = self._table(checkpoint, version)
        if crc is not None and checkpoint.state.crc != crc:
            message = (
                f"the checkpoint follows a commit with CRC-32C {checkpoint.state.crc}, but commit {version} has {crc}"
            )
            self.log.report(CHECKPOINT, key, message, f"{DELETE_CHECKPOINT}; {TWO_WINNERS}")
        elif self.state is not None:
            self._compare(key, checkpoint, table, *self.state)
        elif table is not None:
            self.state = checkpoint.state, table

    def _report_checkpoint_beyond(self, version: int) -> None:
        """Report a checkpoint after the last commit. In this case, readers raise an error, because they would otherwise
        return an outdated state.
        """
        key, counts = checkpoint_key(self.name, version), CheckCounts(checkpoints=1)
        remedy = f"restore the commits up to {version}, or, if they never existed, move the checkpoint away"
        checkpoint, _ = self.log.read(key, version, decode_checkpoint, counts, kind=CHECKPOINT, remedy=remedy)
        if checkpoint is not None:
            self.log.objects.add(checkpoint_prefix(self.name) + checkpoint.table.name)
            message = f"checkpoint {version} exists, but commit {version} is missing"
            self.log.report(MISSING, commit_key(self.name, version), message, remedy)

    def _table(self, checkpoint: Checkpoint, version: int) -> SliceTable | None:
        ref = checkpoint.table
        key = checkpoint_prefix(self.name) + ref.name
        self.log.objects.add(key)
        document_key = checkpoint_key(self.name, version)
        try:
            data = self.store.get(key, 0, ref.size + 1)
        except NotFound:
            # The vacuum deletes the document of a checkpoint before the table.
            if self.store.stat(document_key) is None:
                raise
            message = f"checkpoint {version} references this table, which is missing"
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
            message = f"the checkpoint has {ref.unsealed} unsealed slices, but its table has {unsealed}"
            self.log.report(CHECKPOINT, document_key, message, DELETE_CHECKPOINT)
        return table

    def _compare(
        self, key: str, checkpoint: Checkpoint, table: SliceTable | None, state: TopicState, replayed: SliceTable
    ) -> None:
        if not checkpoint.state.previous_partition_counts:
            # The checkpoint may have been written by a version of sparklog that did not have this field.
            state = replace(state, previous_partition_counts=())
        differs = "the checkpoint differs from the replayed commits in: "
        if checkpoint.state != state:
            left, right = TOPIC_STATE_JSON.to_json(state), TOPIC_STATE_JSON.to_json(checkpoint.state)
            members = [name for name in {**left, **right} if left.get(name) != right.get(name)]
            self.log.report(CHECKPOINT, key, differs + (", ".join(members) or "features"), DELETE_CHECKPOINT)
        if table is not None and (columns := differing_columns(replayed, table)):
            file = checkpoint_prefix(self.name) + checkpoint.table.name
            self.log.report(CHECKPOINT, file, differs + ", ".join(columns), DELETE_CHECKPOINT)

    # -- the end

    def _check_older(self, versions: np.ndarray, start: int) -> None:
        """Check commits and checkpoints below `start`, the first version after the last missing commit."""
        checkpoints = sorted(self.history.checkpoints)
        floor = self.state[0].floor if self.state is not None else 0
        limit = min(floor, checkpoints[-2]) if len(checkpoints) > 1 else -1
        anchor = max((version for version in checkpoints if version <= limit), default=-1)
        if self.state is not None:
            self.log.find_missing(max(anchor, 0), start, versions.tolist(), RUN_REPAIR)
        for version in checkpoints:
            if version < start - 1:
                self.state, latest_state = None, self.state
                self._checkpoint(version, None)
                self.state = latest_state
        leased = set[int]() if self.state is None else self._leased_versions(self.state[0])
        last_leased = max(leased, default=-1)
        for version in versions[versions < start].tolist():
            # The commits of a leased version are required. The vacuum deletes all other commits below `start`.
            key = commit_key(self.name, version)
            self.log.read(key, version, decode_commit, CheckCounts(commits=1), accounted=version <= last_leased)

    def _finish(self) -> None:
        """Check the latest state and list the files that must exist."""
        named = ReferencedFiles(self.name)
        log = self.log
        if self.state is None:
            message = "no state can be rebuilt: no valid checkpoint is followed by all commits up to the latest"
            self.log.report(
                STATE, commit_key(self.name, log.latest), message, "restore the commits that are reported above"
            )
            for commit in self.added.values():
                named.add(added_slices(commit))
            log.files = named.files()
            return
        state, table = self.state
        log.state = state
        try:
            check_state(state, table)
        except Corrupt as error:
            log.findings.append(Finding.of(STATE, error, commit_key(self.name, state.version)))
        if (state.first_dirty_offset > state.log_end).any():
            self.log.report(
                STATE,
                commit_key(self.name, state.version),
                "the first dirty offset of a partition is beyond its log end",
            )
        named.add(table.all())
        for version, commit in self.added.items():
            if version > state.floor:
                named.add(added_slices(commit))
        versions = {version: "has a lease" for version in self._leased_versions(state) if version < state.version}
        if 0 < state.floor < state.version:
            versions[state.floor] = "is the retention floor"
        for version, why in sorted(versions.items()):
            try:
                named.add(self.history.at(version).slices.all())
            except (NotFound, Corrupt) as error:
                if isinstance(error, NotFound) and self.history.commits.has(version, version) and self._has_shrunk():
                    # The vacuum has deleted objects. Let the caller read the log again.
                    raise
                message = f"version {version}, which {why}, cannot be rebuilt: {error}"
                self.log.report(STATE, commit_key(self.name, version), message)
        log.files = named.files()
        log.counts += CheckCounts(topics=int(state.exists), gaps=gaps(state, table))

    def _leased_versions(self, state: TopicState) -> set[int]:
        # A clone's lease remains in effect for as long as the clone needs it, even after the lease has expired.
        return leased_versions(
            state, self.now_ms, [name for name in state.leases if clone_of_lease_name(name) is not None]
        )

    def _has_shrunk(self) -> bool:
        """Return True if objects of the log have been deleted since the log was listed."""
        now = History(self.store, self.name)
        deleted_commits = set(self.history.commits.version.tolist()) - set(now.commits.version.tolist())
        return bool(deleted_commits or set(self.history.checkpoints) - set(now.checkpoints))
