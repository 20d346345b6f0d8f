"""Decision logs: the journal of each transactional id, and the outcomes of transactions that are open in topics.

A transaction over topics a and b, by Writer A:

1. A commits its slices to a and to b, as open slices. Each slice has the transactional id, the transaction's number n,
   and the version of its prepare.
2. A writes one entry to the journal of the id, which commits n.
3. The next commit to each topic, by any writer, records the outcome of n in the topic, like a marker in Kafka. It also
   aborts transactions that have exceeded their timeout according to the store's clock.

Readers do not have to wait for step 3: `consistent_snapshots` returns snapshots as if the outcomes were recorded, and
makes the snapshots of several topics consistent, so that they contain a transaction either completely or not at all.

A COMMIT is pruned from the latest entry of the journal when all participants have recorded it. If the cache of a mount
hides this record from a reader, a pruned COMMIT looks like an ABORT. Therefore, the reader searches for the entry that
decided the transaction. This entry is kept for a week. If that entry is deleted or hidden as well, the outcome is
unclear, and the transaction counts as open for a week (`KEEP_MS`). If a reader still finds it open after this time, it
was aborted.

The ends of a read of several partitions must also be consistent (`consistent_ends`). A transaction that is open in one
partition hides later transactions in this partition, because they are beyond the last stable offset, but does not hide
them in other partitions. A reader that reads each partition up to its last stable offset could therefore read only a
part of a later transaction. To prevent this, the ends of all partitions and topics are moved back to the start of such
a transaction, until no transaction is partially visible. An end is never below an end that was returned before for the
same topics.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from sparklog.common.reached import reached
from sparklog.errors import BadRequest, Corrupt, NotFound, SparklogError, Unavailable
from sparklog.limits import DEFAULT_TRANSACTION_TIMEOUT_MS
from sparklog.log.journal.clocks import SYSTEM, ClockReading
from sparklog.log.journal.entry_log import KEEP_MS, EntryLog, Step
from sparklog.log.journal.names import commit_key
from sparklog.log.journal.numbered_objects import EntryRef
from sparklog.log.journal.seen_state import Advance, RootAccess
from sparklog.log.state.commit import Txn, TxnDecision
from sparklog.log.state.commit_log import CommitLog
from sparklog.log.state.slice_table import COMMITTED, ReadLatest, Slices, Snapshot
from sparklog.log.state.topic_state import Offsets, Prepare, TopicState
from sparklog.storage.fork_safety import ForkLock
from sparklog.storage.parallel_reads import map_requests
from sparklog.storage.retries import SETTLE_MS, Backoff
from sparklog.storage.store import Store

if TYPE_CHECKING:
    from sparklog.log.decisions.decision import Decisions

_LOG = logging.getLogger("sparklog.log")
MAX_CACHED_OUTCOMES = 256
"""The maximum number of cached outcomes of old transactions that are still open in topics or groups. The number of
cached prepare times has the same maximum.
"""
MAX_CLOCK_ERROR_MS = 5_000
"""The maximum error of the estimate of the store's clock. The estimate is based on this host's clock and is checked
every ten minutes. If the estimate is closer to a timeout than this error, the store's clock is read.
"""

MIN_EXPIRED_AGE_MS = 86_400_000
"""The minimum age of the latest entry of an expired id. If the latest entry is younger, the id has not expired, so no
archive is read.
"""

ReadSnapshot = Callable[[str], Snapshot]


class DecisionLog(EntryLog["Decisions"]):
    """The journal of one transactional id. Threads may share an instance."""

    def __init__(self, root: RootAccess, transactional_id: str) -> None:
        from sparklog.log.decisions.decision import DECISIONS

        super().__init__(root, DECISIONS, transactional_id)
        self._root = root
        self._numbered = replace(self._numbered, archived=self._archived)
        self._outcomes: OrderedDict[int, Decisions] = OrderedDict()

    def deciding(self, n: int) -> Decisions:
        """Return the cached state if it decides transaction `n`. Otherwise, return the latest state."""
        state = self.current()
        return state if state.is_decided(n) else self.refresh()

    def outcome(self, n: int) -> Decisions | None:
        """Return a state that contains the outcome of the decided transaction `n`, or None if the outcome is unclear
        (see the module docstring).
        """
        state = self.current()
        if not state.is_decided(n) or state.is_clear(n):
            return state
        decided = self._outcomes.get(n)
        if decided is None:
            reached("transactions: a reader searches for an outcome that the latest entry has pruned")
            decided = self._search(n)[0]
            if decided is not None:
                self._outcomes[n] = decided
                if len(self._outcomes) > MAX_CACHED_OUTCOMES:
                    self._outcomes.popitem(last=False)
        return decided

    def has_expired(self, n: int) -> bool:
        """Return True if the entries after the decision on transaction `n` are a week old, so that the decision may
        have been deleted.

        If transaction `n` is still open in a later snapshot, `n` was aborted. Returns False if the store's clock cannot
        be read.
        """
        number = self._search(n)[1]
        info = self.store.stat(self.key(number))
        try:
            if info is not None:
                return self.store.now_ms() - info.modified_ms > KEEP_MS
            reached("transactions: the entry that decided was deleted")
            archived = self._archived_entry()
            return (
                archived is not None
                and archived.number >= number
                and self.store.now_ms() - archived.created_ms > KEEP_MS
            )
        except (SparklogError, OSError):
            return False

    def is_hidden(self) -> bool:
        """Return True if a listing contains entries that this process cannot read because the directory cache of a
        mount hides them.
        """
        number = self.current().number
        return self.store.hides_names and self._numbered.last_listed(number) > number

    def abort(self, n: int, reason: str) -> Decisions:
        from sparklog.log.decisions.decision import abort

        return self.write(lambda base: abort(base, n, reason))

    def write(self, step: Step[Decisions]) -> Decisions:
        from sparklog.log.decisions.decision import EXPIRE

        was_expired = False

        def checked_step(base: Decisions) -> Decisions | None:
            nonlocal was_expired
            was_expired = base.op == EXPIRE
            return step(base)

        state = super().write(checked_step)
        if was_expired and state.op != EXPIRE:
            reached("transactions: an expired id is used again")
            # Write a checkpoint, so that the next process does not have to read the archive.
            try:
                self.write_checkpoint()
            except (SparklogError, OSError) as error:
                _LOG.warning("cannot write a checkpoint of %s: %s", self.title, error)
        return state

    def _opened(self, checkpoints: Sequence[int], seen: ClockReading) -> Advance[Decisions, Decisions]:
        """Open the journal. If the id has expired, continue from its latest entry, which is stored in an archive.

        Maintenance deletes the objects up to this entry. If a stalled process creates some of these objects again, they
        are ignored.
        """
        opened, damage = None, None
        try:
            opened = super()._opened(checkpoints, seen)
        except Corrupt as error:
            damage = error
        if opened is not None:
            state = opened.latest.state
            if state.number >= 0 and abs(self.env.wall_ms() - state.created_ms) < MIN_EXPIRED_AGE_MS:
                return opened
        archived = self._archived_entry()
        if archived is not None and (opened is None or archived.number >= opened.latest.state.number):
            reached("transactions: an expired id is opened from its archive")
            return self._read_from(archived, seen)
        if opened is None:
            assert damage is not None
            raise damage
        return opened

    def _archived_entry(self) -> Decisions | None:
        """Read the latest entry of this id from the archive. Return None if the id has not expired."""
        from sparklog.log.decisions.expired_ids import archived_entry

        return archived_entry(self._root, self.id)

    def _archived(self) -> EntryRef | None:
        """Return the number and CRC-32C of the archived entry. This entry and earlier entries may have been deleted."""
        entry = self._archived_entry()
        return None if entry is None or entry.crc is None else (entry.number, entry.crc)

    def _search(self, n: int) -> tuple[Decisions | None, int]:
        """Search for the entry that decided transaction `n`. Also return the smallest entry number that was read and
        whose entry decides `n` or a later transaction.

        `newest` never decreases from one entry to the next, so few entries have to be read. The search reads backwards
        in doubling steps and then bisects.
        """
        above, low, step = self.current(), 0, 1
        while low < above.number:
            number = max((low + above.number) // 2, above.number - step)
            entry, step = self._entry(number), step * 2
            if entry is not None and entry.is_decided(n):
                if not entry.is_clear(n):
                    above = entry
                    continue
                after = above if above.number == number + 1 else self._entry(number + 1)
                if after is not None and after.prev_crc == entry.crc:
                    return entry, number
            # The entry is older, or a stalled process has recreated an entry whose number was deleted.
            if entry is not None and entry.is_decided(n):
                reached("transactions: an entry with a reused number is skipped")
            low = number + 1
        return None, above.number

    def _entry(self, number: int) -> Decisions | None:
        """Read an entry. Return None if the entry is deleted or hidden, or if it is damaged in two reads."""
        for is_last in (False, True):
            data = self._numbered.read(number)
            if data is None:
                return None
            try:
                return self._decode(data, self.key(number), number)
            except (Corrupt, BadRequest) as error:
                if is_last:
                    _LOG.warning("skipping entry %s of %s: %s", number, self.title, error)
        return None


class DecisionLogs:
    """The decision logs of a root that this process has used most recently.

    The number of logs is limited, because each write to several topics without a transactional id has its own log.
    """

    def __init__(self, root: RootAccess) -> None:
        self._root = root
        self._logs: OrderedDict[str, DecisionLog] = OrderedDict()
        self._prepared_ms: OrderedDict[tuple[str, int, str], int] = OrderedDict()
        self._lock = ForkLock()

    def log(self, transactional_id: str) -> DecisionLog:
        with self._lock:
            log = self._logs.pop(transactional_id, None) or DecisionLog(self._root, transactional_id)
            self._logs[transactional_id] = log
            if len(self._logs) > self._root.store.limits.decision_logs:
                self._logs.popitem(last=False)
            return log

    def __len__(self) -> int:
        return len(self._logs)

    def drop(self, transactional_id: str) -> None:
        """Evict an id that will not be used again soon."""
        with self._lock:
            self._logs.pop(transactional_id, None)

    def backoff(self) -> Backoff:
        return Backoff(self._root.env)

    def resolve(self, topic: str, topic_state: TopicState) -> list[TxnDecision]:
        """Return the outcomes of open transactions, and abort overdue transactions.

        If this fails, a later commit retries it.
        """
        from sparklog.log.decisions.decision import BY_TIMEOUT

        outcomes = []
        opened = open_transactions(topic_state)
        for ((name, n), prepares), state in zip(opened.items(), self.deciding(list(opened)), strict=True):
            try:
                if isinstance(state, Exception):
                    raise state
                if not state.is_decided(n) and self.overdue(topic, prepares):
                    reached("transactions: a transaction past its timeout is aborted by a writer of its topic")
                    state = self.log(name).abort(n, BY_TIMEOUT)
                if state.is_decided(n):
                    self.log(name).make_durable()
            except (SparklogError, OSError) as error:
                reached("transactions: a transaction stays open because its decisions cannot be read")
                _LOG.warning("transaction %s of '%s' stays open in topic %s: %s", n, name, topic, error)
                continue
            if state.is_decided(n):
                outcomes.append(state.resolved(topic, topic_state.topic_id, n))
        return outcomes

    def deciding(self, transactions: Sequence[tuple[str, int]]) -> Iterator[Decisions | SparklogError | OSError]:
        """Yield the result of `DecisionLog.deciding` for each (id, n), or the error that it raised.

        On a remote store, the requests are sent in parallel.
        """

        def read(transaction: tuple[str, int]) -> Decisions | SparklogError | OSError:
            try:
                return self.log(transaction[0]).deciding(transaction[1])
            except (SparklogError, OSError) as error:
                return error

        return map_requests(self._root.store, read, transactions)

    def overdue(self, topic: str, prepares: Sequence[Prepare], now_ms: int | None = None) -> bool:
        """Return True if one of these prepares is older than its timeout. The prepares are in version order.

        `now_ms` is the time of the store's clock. If it is None, the store's clock is read, unless this host's clock is
        sufficient.
        """
        oldest = {timeout_of(item): item for item in reversed(prepares)}
        due_ms = min(self.prepared_ms(topic, item) + timeout_ms for timeout_ms, item in oldest.items())
        if now_ms is None:
            self._root.guard.check()
            if self._root.guard.store_ms(self._root.env.wall_ms()) + MAX_CLOCK_ERROR_MS < due_ms:
                return False
            now_ms = self._root.store.now_ms()
        return now_ms > due_ms

    def prepared_ms(self, topic: str, prepare: Prepare) -> int:
        """Return the time of a prepare according to the store's clock, or its commit time if the commit was deleted."""
        key = topic, prepare.version, prepare.commit_id
        known = self._prepared_ms.get(key)
        if known is None:
            info = self._root.store.stat(commit_key(topic, prepare.version))
            if info is None:
                return prepare.time_ms
            with self._lock:
                known = self._prepared_ms[key] = info.modified_ms
                if len(self._prepared_ms) > MAX_CACHED_OUTCOMES:
                    self._prepared_ms.popitem(last=False)
        return known


def timeout_of(prepare: Prepare) -> int:
    return DEFAULT_TRANSACTION_TIMEOUT_MS if prepare.txn.timeout_ms is None else prepare.txn.timeout_ms


def open_transactions(state: TopicState) -> dict[tuple[str, int], list[Prepare]]:
    """Return the prepares whose outcome has not been recorded yet, in version order for each (id, n)."""
    prepares: dict[tuple[str, int], list[Prepare]] = {}
    for item in state.open:
        prepares.setdefault((item.txn.id, item.txn.n), []).append(item)
    return prepares


@dataclass
class _ReadDecisions:
    """The decisions that one call of `consistent_snapshots` has read."""

    states: dict[str, Decisions | None] = field(default_factory=dict)
    has_expired: dict[tuple[str, str, int], bool] = field(default_factory=dict)
    """For each unclear (topic, id, n), the value of `DecisionLog.has_expired` before the topic was read again."""
    undecided: dict[tuple[str, int], set[str]] = field(default_factory=dict)
    """The topics in which each (id, n) counts as open."""


def consistent_snapshots(
    logs: DecisionLogs, raw: dict[str, Snapshot], read_snapshot: ReadSnapshot
) -> tuple[dict[str, Snapshot], set[str]]:
    """Return consistent snapshots of topics for readers, and the names of deleted topics.

    1. Decisions are read after the snapshots in `raw`, and one state is read per id.
    2. A snapshot is outdated if another snapshot or a COMMIT references a later version of its topic, or if another
       snapshot contains the COMMIT of a transaction that is open in the snapshot. `read_snapshot` reads an outdated
       snapshot again, for as long as caches may hide the later version.
    3. When no snapshot is outdated, the outcomes are applied to all of them.
    """
    decisions = _ReadDecisions()
    deleted: set[str] = set()
    backoff = logs.backoff()
    while True:
        _read_decisions(logs, raw, decisions)
        decisions.undecided.clear()
        unclear: set[str] = set()
        outcomes = {name: _outcomes(logs, name, snapshot.state, decisions, unclear) for name, snapshot in raw.items()}
        outdated = _outdated_topics(raw, decisions) | _outdated_by_merges(logs, raw, outcomes, decisions)
        required = _required_versions(raw, outcomes)
        if not (unclear or outdated or required):
            return {name: with_outcomes(snapshot, outcomes[name]) for name, snapshot in raw.items()}, deleted
        for name in sorted({*unclear, *outdated, *required}):
            version = raw[name].version
            try:
                raw[name] = read_snapshot(name)
            except NotFound:
                del raw[name]
                deleted.add(name)
                continue
            if raw[name].version > version:
                backoff.restart()
        late = outdated or {name for name, version in required.items() if name in raw and raw[name].version < version}
        if late:
            reached("transactions: a reader waits for a version that a cache hides")
            if not backoff.tries:
                seconds = SETTLE_MS // 1000
                _LOG.info("waiting for later versions of %s (up to %s s)", ", ".join(sorted(late)), seconds)
            if not backoff.wait():
                break
    raise Unavailable(
        f"cannot read versions of {', '.join(sorted(raw))} that a transaction references; retry later (topics that "
        "share transactions become inconsistent if one of them is restored or copied alone)"
    )


def read_snapshot(logs: DecisionLogs, log: CommitLog) -> Snapshot:
    """Return the latest snapshot of one topic for readers. Raises `NotFound` if the topic does not exist."""
    snapshots, _ = consistent_snapshots(logs, {log.topic: log.snapshot()}, lambda name: log.snapshot())
    return snapshots.get(log.topic) or log.snapshot()


def reader_of(store: Store, topic: str) -> ReadLatest:
    """Return a function that calls `read_snapshot`, for a task that only has a store. Later calls of the function read
    only later commits.
    """
    root = RootAccess(store, SYSTEM)
    logs, log = DecisionLogs(root), CommitLog(root, topic)
    return lambda: read_snapshot(logs, log)


def with_outcomes(snapshot: Snapshot, outcomes: Sequence[TxnDecision]) -> Snapshot:
    if not outcomes:
        return snapshot
    state = snapshot.state.with_decisions(outcomes)
    return Snapshot(snapshot.topic, snapshot.store, state, snapshot.slices.with_decisions(outcomes))


def _read_decisions(logs: DecisionLogs, raw: Mapping[str, Snapshot], decisions: _ReadDecisions) -> None:
    """Read a state of each id with open transactions. The state is recent enough for all decided transactions."""
    highest: dict[str, int] = {}
    for snapshot in raw.values():
        for item in snapshot.state.open:
            highest[item.txn.id] = max(item.txn.n, highest.get(item.txn.id, -1))
    for name, state in zip(highest, logs.deciding(list(highest.items())), strict=True):
        if not isinstance(state, Exception):
            decisions.states[name] = state
            continue
        if not isinstance(state, Corrupt | BadRequest) or len(raw) > 1:
            # Another topic may already have recorded the outcome, so a reader of both topics would see only a part of
            # the transaction.
            raise state
        # Offsets below the open slices can still be read.
        _LOG.warning("the transactions of '%s' are treated as open: %s", name, state)
        decisions.states[name] = None


def _outdated_topics(raw: Mapping[str, Snapshot], decisions: _ReadDecisions) -> set[str]:
    """Return the topics in which a transaction is open that another topic has recorded as committed."""
    if not decisions.undecided or len(raw) < 2:
        return set()
    late: set[str] = set()
    numbers = [n for _, n in decisions.undecided]
    for snapshot in raw.values():
        rows = snapshot.slices.all()
        for row in np.flatnonzero((rows.status == COMMITTED) & np.isin(rows.txn_n, numbers)).tolist():
            late |= decisions.undecided.get((rows.txn_id(row), int(rows.txn_n[row])), set())
    return late


def _outdated_by_merges(
    logs: DecisionLogs,
    raw: Mapping[str, Snapshot],
    outcomes: Mapping[str, Sequence[TxnDecision]],
    decisions: _ReadDecisions,
) -> set[str]:
    """Return the topics that have an open transaction whose merged records may be visible in another topic.

    Merged slices no longer reference their transaction. However, the other topic still records the latest version of
    each participant of its committed transactions. If this version equals the version of an open prepare in this topic,
    the transaction is committed. If this version is later, the transaction may be committed, and its decision is hidden
    from this process.
    """
    latest_versions: dict[str, int] = {}
    for name, snapshot in raw.items() if decisions.undecided and len(raw) > 1 else ():
        for other, version in snapshot.state.with_decisions(outcomes[name]).siblings.items():
            latest_versions[other] = max(version, latest_versions.get(other, version))
    outdated: set[str] = set()
    for transaction, topics in decisions.undecided.items() if latest_versions else ():
        for name in topics & latest_versions.keys():
            latest = latest_versions[name]
            versions = {item.version for item in raw[name].state.open if (item.txn.id, item.txn.n) == transaction}
            may_be_committed = min(versions, default=latest) < latest
            if latest in versions or (may_be_committed and logs.log(transaction[0]).is_hidden()):
                outdated.add(name)
    return outdated


def _required_versions(raw: Mapping[str, Snapshot], outcomes: Mapping[str, Sequence[TxnDecision]]) -> dict[str, int]:
    """Return the topics whose snapshots are older than a version that another topic or a COMMIT references.

    Also return these versions. A COMMIT references several versions of a topic if several jobs wrote to the topic, or
    if a Kafka client wrote to it with several requests.
    """
    required: dict[str, int] = {}
    for name, snapshot in raw.items():
        own = max((version for item in outcomes[name] for version in item.committed), default=-1)
        versions = {**snapshot.state.with_decisions(outcomes[name]).siblings, name: own}
        for other, version in versions.items():
            if other in raw and raw[other].version < version:
                required[other] = max(version, required.get(other, version))
    return required


def _outcomes(
    logs: DecisionLogs, name: str, topic_state: TopicState, decisions: _ReadDecisions, unclear: set[str]
) -> list[TxnDecision]:
    """Return the outcomes of a topic's open transactions. An undecided or unclear transaction counts as open.

    If a decision was deleted, the topic is added to `unclear`, so that it is read again. If the transaction is then
    still open in the topic, and `has_expired` was true before the topic was read again, the transaction was aborted.
    """
    outcomes = []
    for transactional_id, n in open_transactions(topic_state):
        state = decisions.states.get(transactional_id)
        if state is not None and state.is_decided(n):
            log, key = logs.log(transactional_id), (name, transactional_id, n)
            state = log.outcome(n)
            if state is not None and state.is_decided(n):
                outcomes.append(state.resolved(name, topic_state.topic_id, n))
                continue
            if state is None and decisions.has_expired.get(key):
                outcomes.append(TxnDecision(transactional_id, n))
                continue
            if state is None:
                is_first, decisions.has_expired[key] = key not in decisions.has_expired, log.has_expired(n)
                if is_first or decisions.has_expired[key]:
                    unclear.add(name)
        decisions.undecided.setdefault((transactional_id, n), set()).add(name)
    return outcomes


Transaction = tuple[str, int]
"""The id and number of a transaction."""


def consistent_ends(snapshots: Mapping[str, Snapshot]) -> dict[str, Offsets]:
    """Return the end offsets of a read_committed read of all these snapshots, by topic and partition."""
    states = {name: snapshot.state for name, snapshot in snapshots.items()}
    if not any(_has_open_transaction(state) for state in states.values()):
        return {name: state.last_stable() for name, state in states.items()}
    return _ends_without_partial_transactions(
        states, {name: _committed_slices(snapshot.slices.all()) for name, snapshot in snapshots.items()}
    )


def own_consistent_ends(state: TopicState, slices: Slices) -> Offsets:
    """Return the end offsets of a read_committed read of one topic, given all its slices.

    Maintenance does not change records beyond these end offsets.
    """
    if not _has_open_transaction(state):
        return state.last_stable()
    return _ends_without_partial_transactions({"": state}, {"": _committed_slices(slices)})[""]


def _has_open_transaction(state: TopicState) -> bool:
    """Return True if a transaction is open. This includes transactions that were open in Kafka when the topic was
    imported.
    """
    stable = state.last_stable()
    return stable is not state.log_end and bool((stable < state.log_end).any())


def limited_to(snapshot: Snapshot, ends: Offsets) -> Snapshot:
    """Return the snapshot as if an open transaction started at these end offsets. Plans then exclude later records."""
    state = snapshot.state
    below = np.flatnonzero(ends < state.last_stable()).tolist()
    if not below:
        return snapshot
    first = {partition: int(ends[partition]) for partition in below}
    last = {partition: int(state.log_end[partition]) for partition in below}
    hidden = Prepare(Txn("", 0), state.version, "", state.created_ms, first, last)
    return replace(snapshot, state=replace(state, open=(*state.open, hidden)))


def _ends_without_partial_transactions(
    states: Mapping[str, TopicState], rows: Mapping[str, Slices]
) -> dict[str, Offsets]:
    """Move the last stable offsets back until no committed transaction is partially visible."""
    ends = {name: state.last_stable().copy() for name, state in states.items()}
    hidden: set[Transaction] = set()
    while (
        partial := {item for name, slices in rows.items() for item in _transactions_beyond(slices, ends[name])} - hidden
    ):
        hidden |= partial
        for name, slices in rows.items():
            for row in np.flatnonzero(np.isin(slices.txn_n, [n for _, n in partial])).tolist():
                if (slices.txn_id(row), int(slices.txn_n[row])) in partial:
                    partition = int(slices.partition[row])
                    ends[name][partition] = min(ends[name][partition], int(slices.base[row]))
    return {name: np.maximum(end, states[name].log_start) for name, end in ends.items()}


def _committed_slices(rows: Slices) -> Slices:
    """Return the unmerged slices of committed transactions."""
    return rows[np.flatnonzero(rows.status == COMMITTED)]


def _transactions_beyond(rows: Slices, ends: Offsets) -> set[Transaction]:
    """Return the transactions with a slice beyond the end of its partition."""
    beyond = np.flatnonzero(rows.end > ends[rows.partition]).tolist()
    return {(rows.txn_id(row), int(rows.txn_n[row])) for row in beyond}
