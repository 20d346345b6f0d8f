"""Determine a consistent cut. A consistent cut consists of versions of topics, and of decision and group entries, that
are consistent with each other.

States that are read one after the other may be inconsistent: a COMMIT may reference prepares that were written after
their topic was read, and a group may have progressed beyond the end of its topic. Logs are therefore read in an order
that avoids most inconsistencies. Each log is then read entry by entry until all requirements of the other logs are
satisfied:

| an object                                                  | requires                                             |
|------------------------------------------------------------|------------------------------------------------------|
| a topic that has recorded versions of other participants   | these versions                                       |
| a commit that recorded the outcome of transaction n        | the decision of n                                    |
| a COMMIT, or a prepare that a job recorded                 | the referenced versions of topics and group entries  |
| a decided transaction that was pruned, because all         | the recorded outcome, in topics and groups in which  |
| participants have recorded its outcome                     | the transaction is open                              |
| an offset of a group                                       | the version at which the topic's log end reaches it  |

An object requires only older objects, so the reads end even if writers are active. The result is the smallest
consistent cut above the states that were read first. In a live root, a directory cache may temporarily hide an object.
Therefore reads wait for missing objects.

Logs are read in this order: decisions, groups, topics, and decisions again. All decision entries between the two reads
are processed, because the latest entry no longer contains a COMMIT that all topics have recorded since the first read.
Entries that are younger than the lifetime of caches are also processed, because a later read may return an older state.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np

from sparklog.errors import NotFound, Unavailable
from sparklog.groups.group_state import GROUPS, GroupState, Pending, TopicOffsets
from sparklog.log.decisions.decision import DECISIONS, Decisions
from sparklog.log.decisions.decision_log import DecisionLogs, open_transactions
from sparklog.log.journal.chain import EntryChain, EntrySpan
from sparklog.log.journal.clocks import reading_clock_ms
from sparklog.log.journal.entry_log import E, EntryKind
from sparklog.log.journal.names import commit_key, entry_number, list_entries, topic_names
from sparklog.log.state.commit import Commit
from sparklog.log.state.commit_object import decode_commit
from sparklog.log.state.slice_table import COMMITTED, SliceTable, Snapshot
from sparklog.log.state.topic_state import EMPTY, TopicState
from sparklog.log.topic.backup_manifest import DamagedJournal
from sparklog.log.topic.root import Root
from sparklog.storage.retries import SETTLE_MS
from sparklog.storage.store import Store
from sparklog.tools.backup.damaged_logs import DamagedLogs

Transaction = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Cut:
    """Consistent states by name or id, including deleted topics.

    Attributes:
        exact: True if the topics have exactly the requested versions, so that groups may have progressed further.
        defaults: the latest entry of the root defaults, or None if there is no entry.
    """

    topics: Mapping[str, TopicState]
    decisions: Mapping[str, Decisions]
    groups: Mapping[str, GroupState]
    left_out: tuple[DamagedJournal, ...] = ()
    exact: bool = False
    defaults: int | None = None

    def versions(self) -> dict[str, int]:
        """Return the versions of topics that exist."""
        return {name: state.version for name, state in self.topics.items() if state.exists}


@dataclass(frozen=True, slots=True)
class CutBounds:
    """The logs from which a cut of earlier states is determined. `topics` contains a known state and the requested
    version of each topic.
    """

    topics: Mapping[str, tuple[Snapshot, int]]
    decisions: Collection[EntrySpan[Decisions]]
    groups: Collection[EntrySpan[GroupState]]


@dataclass
class _Cutter:
    """Reads logs until their states are consistent.

    Attributes:
        selected: the names of the topics in the cut, or None for all topics.
        versions: the required version of each topic.
        entries: the required entry of each group.
        decided: transactions whose decisions are required.
        undecided: transactions that have no decision up to the end of their log.
        ended: records and offsets that were not found up to the end of their log, because the transaction was aborted
            or the topic does not exist.
        writers: transactional ids that occur in the topics.
        live: the decisions of a live root, in which a cache may hide objects, or None for a repository.
        has_progressed: True if the last round has read an object.
    """

    store: Store
    selected: Collection[str] | None
    damaged: DamagedLogs
    topic_states: dict[str, TopicState] = field(default_factory=dict)
    decisions: dict[str, Decisions] = field(default_factory=dict)
    groups: dict[str, GroupState] = field(default_factory=dict)
    versions: dict[str, int] = field(default_factory=dict)
    entries: dict[str, int] = field(default_factory=dict)
    decided: set[Transaction] = field(default_factory=set)
    undecided: set[Transaction] = field(default_factory=set)
    ended: set[object] = field(default_factory=set)
    writers: set[str] = field(default_factory=set)
    live: DecisionLogs | None = None
    has_progressed: bool = False

    def note_commit(self, commit: Commit) -> None:
        self.decided |= {(resolved.id, resolved.n) for resolved in commit.resolved}
        self.writers |= {resolved.id for resolved in commit.resolved}

    def note_decisions(self, state: Decisions) -> None:
        for prepare in [*state.prepared, *(prepare for commit in state.commits for prepare in commit.prepares)]:
            self.require_version(prepare.topic, prepare.version)
        for group in [*state.prepared_groups, *(group for commit in state.commits for group in commit.groups)]:
            if not self.is_damaged(GROUPS, group.group):
                self.entries[group.group] = max(group.number, self.entries.get(group.group, -1))

    def note_offsets(self, state: GroupState) -> None:
        """Add the first or next state of a group. Transactions that are no longer pending must be decided."""
        before = self.groups.get(state.id)
        if before is not None:
            was_pending = {(pending.txn, pending.n) for pending in before.pending}
            self.decided |= was_pending - {(pending.txn, pending.n) for pending in state.pending}
        self.groups[state.id] = state

    def require_version(self, topic: str, version: int) -> None:
        if self.selected is None or topic in self.selected:
            self.versions[topic] = max(version, self.versions.get(topic, -1))

    def is_damaged(self, kind: EntryKind[E], id_: str) -> bool:
        return kind.prefix(id_) in self.damaged.damage

    def next_commit(self, topic: str) -> bool:
        state = self._topic_state(topic)
        key = commit_key(topic, state.version + 1)
        try:
            commit = decode_commit(self.store.get(key), key, state.version + 1)
        except NotFound:
            return False
        self.topic_states[topic] = state.apply(commit)
        self.note_commit(commit)
        self.has_progressed = True
        return True

    def next_decisions(self, transactional_id: str) -> bool:
        if self.is_damaged(DECISIONS, transactional_id):
            return False
        state = self.decisions.get(transactional_id, Decisions(transactional_id))
        entry = EntryChain(self.store, DECISIONS, transactional_id, self.damaged.env).after(state)
        if entry is None:
            return False
        self.decisions[transactional_id] = entry
        self.note_decisions(entry)
        self.has_progressed = True
        return True

    def next_offsets(self, group: str) -> bool:
        state = self.groups.get(group, GroupState(group))
        entry = EntryChain(self.store, GROUPS, group, self.damaged.env).after(state)
        if entry is None:
            return False
        self.note_offsets(entry)
        self.has_progressed = True
        return True

    def complete(self) -> Cut:
        """Read until all required objects have been read. Raises `Unavailable` if a required object does not exist."""
        self.has_progressed = True
        while self.has_progressed:
            self.has_progressed = False
            for state in list(self.topic_states.values()):
                for other, version in state.siblings.items():
                    self.require_version(other, version)
            for topic, version in list(self.versions.items()):
                while self._topic_state(topic).version < version:
                    self._step(topic, self.next_commit)
            for group, number in list(self.entries.items()):
                while self._number(group) < number:
                    self._step(group, self.next_offsets)
            self._require_previous_decisions()
            self._read_decisions()
            self._read_records()
            self._reach_offsets()
        return self.cut()

    def cut(self) -> Cut:
        """Return the states that have been read. If a damaged journal was skipped and may concern the topics, its error
        is raised.
        """
        for topic_state in self.topic_states.values():
            self.writers |= {transactional_id for transactional_id, _ in open_transactions(topic_state)}
        if not self.damaged.strict:
            topics = {name: state.topic_id for name, state in self.topic_states.items()}
            self.damaged.check(topics, self.writers, self.groups.values())
        return Cut(dict(self.topic_states), dict(self.decisions), dict(self.groups), self.damaged.left_out())

    def _topic_state(self, topic: str) -> TopicState:
        return self.topic_states.get(topic, EMPTY)

    def _number(self, group: str) -> int:
        return self.groups[group].number if group in self.groups else -1

    def _step(self, name: str, step: Callable[[str], bool]) -> None:
        if not self._step_or_wait(partial(step, name)):
            raise Unavailable(f"a transaction references an entry of '{name}' that does not exist; try again later")

    def _step_or_wait(self, step: Callable[[], bool]) -> bool:
        """Read the next object of a log. Return False if the object does not exist. In a live root, wait until caches
        have expired before returning False.
        """
        if step():
            return True
        if self.live is None:
            return False
        backoff = self.live.backoff()
        while backoff.wait():
            if step():
                return True
        return False

    def _require_previous_decisions(self) -> None:
        """For each open transaction, require the decision of the previous transaction of the same transactional id."""
        if self.live is not None:
            opened = {
                transaction
                for topic_state in self.topic_states.values()
                for transaction in open_transactions(topic_state)
            }
            opened |= {(pending.txn, pending.n) for state in self.groups.values() for pending in state.pending}
            self.decided |= {(transactional_id, n - 1) for transactional_id, n in opened if n > 0}

    def _read_decisions(self) -> None:
        """Read the required decisions. A prepare may be undecided if the group also has a later prepare."""
        for transactional_id, n in sorted(self.decided - self.undecided):
            step = partial(self.next_decisions, transactional_id)
            while not self.decisions.get(transactional_id, Decisions(transactional_id)).is_decided(n):
                if not (step() if self.is_damaged(DECISIONS, transactional_id) else self._step_or_wait(step)):
                    self.undecided.add((transactional_id, n))
                    break

    def _is_pruned(self, transaction: Transaction) -> bool:
        state, n = self.decisions.get(transaction[0]), transaction[1]
        return (
            state is not None and state.is_decided(n) and state.commit_of(n) is None and not state.is_known_aborted(n)
        )

    def _reads_record(
        self, transaction: Transaction, step: Callable[[], bool], is_named: Callable[[Decisions], bool]
    ) -> bool:
        """Read the next object of a log that may record the outcome of a transaction. Return False if the transaction
        was aborted.

        `is_named` returns True if the transaction's COMMIT references this log. The record then exists, but a cache may
        hide it.
        """
        if step():
            return True
        if self.live is None:
            return False
        transactional_id, n = transaction
        log = self.live.log(transactional_id)
        log.deciding(n)
        outcome = log.outcome(n)
        if outcome is None and log.has_expired(n):
            return step()
        if outcome is not None and outcome.is_decided(n) and not is_named(outcome):
            return False
        if self._step_or_wait(step):
            return True
        what = "may be" if outcome is None else "is"
        raise Unavailable(
            f"transaction {n} of '{transactional_id}' {what} committed, but the record in its topic or group is not "
            "visible; try again later"
        )

    def _read_records(self) -> None:
        """Read the recorded outcomes of open transactions whose decisions were pruned."""
        for topic in list(self.topic_states):
            for transaction in open_transactions(self.topic_states[topic]):
                self._record_in_topic(topic, transaction)
        for group in list(self.groups):
            for pending in self.groups[group].pending:
                self._record_in_group(group, pending)

    def _record_in_topic(self, topic: str, transaction: Transaction) -> None:
        def is_open() -> bool:
            return transaction in open_transactions(self.topic_states[topic])

        def is_named(state: Decisions) -> bool:
            return bool(state.resolved(topic, self.topic_states[topic].topic_id, transaction[1]).committed)

        self._read_record((topic, transaction), transaction, is_open, partial(self.next_commit, topic), is_named)

    def _record_in_group(self, group: str, pending: Pending) -> None:
        def is_open() -> bool:
            return any(other.number == pending.number for other in self.groups[group].pending)

        def is_named(state: Decisions) -> bool:
            return state.commits_group(pending.n, group, pending.number)

        key, transaction = (group, pending.txn, pending.number), (pending.txn, pending.n)
        self._read_record(key, transaction, is_open, partial(self.next_offsets, group), is_named)

    def _read_record(
        self,
        key: object,
        transaction: Transaction,
        is_open: Callable[[], bool],
        step: Callable[[], bool],
        is_named: Callable[[Decisions], bool],
    ) -> None:
        while key not in self.ended and is_open() and self._is_pruned(transaction):
            if not self._reads_record(transaction, step, is_named):
                self.ended.add(key)

    def _reach_offsets(self) -> None:
        """Read topics until no group offset is beyond the log end."""
        for state in list(self.groups.values()):
            for offsets in all_offsets(state):
                if self.selected is None or offsets.topic in self.selected:
                    for partition, offset in zip(offsets.partition, offsets.offset, strict=True):
                        self._reach_offset(offsets.topic, offsets.topic_id, partition, offset)

    def _reach_offset(self, topic: str, topic_id: str, partition: int, offset: int) -> None:
        key = (topic, topic_id, partition, offset)
        if key in self.ended or _ends_at(self._topic_state(topic), topic_id, partition) >= offset:
            return
        # A group may commit any offset, even an offset that the topic never reaches. Therefore first read ahead with a
        # copy of the state.
        ahead = _Cutter(self.store, self.selected, self.damaged, topic_states=dict(self.topic_states))
        step = partial(ahead.next_commit, topic)
        while _ends_at(ahead._topic_state(topic), topic_id, partition) < offset:
            if not step() and not (self._is_hidden(topic, ahead._topic_state(topic)) and self._step_or_wait(step)):
                self.ended.add(key)
                return
        self.require_version(topic, ahead._topic_state(topic).version)
        self.has_progressed = True

    def _is_hidden(self, topic: str, topic_state: TopicState) -> bool:
        """Return True if the next commit of a topic in a live root is listed, but temporarily hidden by a cache."""
        next_key = commit_key(topic, topic_state.version + 1)
        listed = () if self.live is None else list_entries(self.store, topic, commit_key(topic, topic_state.version))
        return any(info.key == next_key for info in listed)


def all_offsets(state: GroupState) -> list[TopicOffsets]:
    """Return the committed and pending offsets of a group."""
    return [*state.offsets, *(offsets for pending in state.pending for offsets in pending.offsets)]


def _ends_at(topic_state: TopicState, topic_id: str, partition: int) -> int:
    """Return the log end of a partition, or -1 if the topic has a different id or does not have the partition."""
    if topic_state.deleted or topic_state.topic_id != topic_id or partition >= topic_state.partitions:
        return -1
    return int(topic_state.log_end[partition])


def cut_now(root: Root, selected: Collection[str] | None = None) -> Cut:
    """Return a cut of a live root. It contains all groups, and the selected topics. If `topics` is None, it contains
    all topics, including deleted topics.

    If topics are selected, damaged journals of transactional ids and groups are skipped if they do not concern these
    topics.

    Raises:
        NotFound: If a selected topic has never existed.
        Corrupt: If a log is damaged.
        Unavailable: If an object is not visible yet. The call can be retried.
    """
    store = root.store
    damaged = DamagedLogs(store, strict=selected is None, env=root.env)
    since_ms = reading_clock_ms(store, root.env) - SETTLE_MS
    before: dict[str, Decisions] = {}
    for chain in damaged.chains(DECISIONS):
        state = damaged.read(chain.prefix, _earlier_state, chain, since_ms)
        if state is not None:
            before[chain.id] = state
    cutter = _Cutter(store, None if selected is None else frozenset(selected), damaged, live=root.engine.decisions)
    for offsets in damaged.chains(GROUPS):
        for group in damaged.read(offsets.prefix, _recent, offsets, since_ms) or ():
            cutter.note_offsets(group)
    folders = topic_names(store)
    for name in folders if selected is None else selected:
        topic_state = root.engine.log(name).refresh().topic_state
        if topic_state.version >= 0:
            cutter.topic_states[name] = topic_state
            for commit in _recent_commits(store, name, topic_state.version, since_ms):
                cutter.note_commit(commit)
        elif selected is not None:
            root.topic(name)
    for name in sorted({*before, *(chain.id for chain in damaged.chains(DECISIONS))}):
        chain = EntryChain(store, DECISIONS, name, root.env)
        for state in damaged.read(chain.prefix, _since, chain, before.get(name)) or ():
            cutter.note_decisions(state)
            cutter.decisions[name] = state
    if damaged.damage:
        for name in cutter.topic_states:
            cutter.writers |= writers_in(root.engine.log(name).snapshot(refresh=False).slices)
    return cutter.complete()


def _earlier_state(chain: EntryChain[E], since_ms: int) -> E:
    """Return the latest state before `since_ms`, which caches cannot hide. If there is no earlier state, return the
    oldest state.
    """
    latest = chain.latest()
    number = chain.latest_number_before(since_ms)
    number = chain.span().first if number is None else number
    state = None if number >= latest.number else chain.state_at(number)
    return latest if state is None else state


def _recent(chain: EntryChain[E], since_ms: int) -> list[E]:
    start = _earlier_state(chain, since_ms)
    return [start, *chain.walk(start, chain.latest().number)]


def _recent_commits(store: Store, topic: str, version: int, since_ms: int) -> Iterator[Commit]:
    for info in list_entries(store, topic):
        number = entry_number(info.key)
        if info.modified_ms > since_ms and number is not None and number <= version:
            try:
                yield decode_commit(store.get(info.key), info.key, number)
            except NotFound:
                continue


def _since(chain: EntryChain[Decisions], start: Decisions | None) -> list[Decisions]:
    """Return the states from `start` (or from the oldest state if `start` is None) to the latest state. The result is
    empty if the transactional id was deleted.
    """
    latest = chain.latest()
    if latest.number < 0 or (start is not None and latest.number < start.number):
        # The transactional id was deleted, which happens a week after all topics have recorded its decisions.
        return []
    if start is None:
        start = chain.state_at(chain.span().first) or latest
    return [start, *chain.walk(start, latest.number)]


def writers_in(table: SliceTable) -> set[str]:
    """Return the transactional ids in a slice table."""
    rows = table.all()
    return {rows.txn_ids[code] for code in np.unique(rows.txn).tolist() if code >= 0}


def cut_between(store: Store, bounds: CutBounds, time_ms: int, damaged: DamagedLogs, *, exact: bool) -> Cut:
    """Return the smallest cut at or above the given topic versions, with the decision and group entries at a time.

    If `exact` is True, topics have exactly the given versions, decisions that reference later versions are ignored, and
    groups may have progressed beyond the log ends.
    """
    cutter = _Cutter(store, frozenset(bounds.topics), damaged)
    for name, (base, version) in bounds.topics.items():
        rows = base.slices.all()
        is_committed = np.flatnonzero(rows.status == COMMITTED).tolist()
        # Earlier commits are not read, but their slices contain the transactions that were recorded as committed.
        committed = {(rows.txn_id(row), int(rows.txn_n[row])) for row in is_committed}
        cutter.decided |= committed
        cutter.writers |= {transactional_id for transactional_id, _ in committed}
        cutter.topic_states[name] = base.state
        while cutter.topic_states[name].version < version:
            if not cutter.next_commit(name):
                raise NotFound(f"version {version} of topic '{name}' has been deleted")
    for offsets in bounds.groups:
        state = damaged.read(offsets.chain.prefix, offsets.state_by, time_ms)
        if state is not None and state.number >= 0:
            cutter.groups[state.id] = state
    for decisions in bounds.decisions:
        for later in damaged.read(decisions.chain.prefix, decisions.states_by, time_ms) or ():
            if exact and _references_later(cutter, later):
                break
            cutter.decisions[later.id] = later
            cutter.note_decisions(later)
    if not exact:
        return cutter.complete()
    # The topic versions must not change. Only check that the recorded outcomes have been decided, and that the group
    # entries of each COMMIT exist.
    cutter._read_decisions()
    for group, number in cutter.entries.items():
        while cutter._number(group) < number and cutter.next_offsets(group):
            pass
    return replace(cutter.cut(), exact=True)


def _references_later(cutter: _Cutter, state: Decisions) -> bool:
    topic_states = cutter.topic_states
    prepares = [prepare for commit in state.commits for prepare in commit.prepares]
    return any(each.topic in topic_states and each.version > topic_states[each.topic].version for each in prepares)
