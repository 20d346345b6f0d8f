"""A consistent cut: versions of topics and entries of decisions and group offsets that fit together.

States that are read one after the other do not fit. A COMMIT names prepares of topics that were read before these were
made; a group has read further than its topic. So logs are read in an order that leaves little to put right. Each is
then read on, entry by entry, as far as another one asks for and no further:

| an object says                                        | so the cut must have                                    |
|-------------------------------------------------------|---------------------------------------------------------|
| a topic names versions of its siblings                | these versions                                          |
| a commit to a topic recorded the outcome of a (id, n) | the decision of n                                       |
| a COMMIT, or a prepare that a job recorded            | the versions of topics and entries of groups it names   |
| a decided transaction is forgotten: all recorded it   | the record, in topics and groups where it is open       |
| an offset of a group                                  | the version at which the topic ends there or beyond     |

An object asks only for older ones. So this ends however busy writers are, and with the least such cut above the states
that were read first. In a live root a cache of names may hide an object for a while; then it is waited for.

Logs are read in this order: decisions, groups, topics, decisions again. All entries of the decisions between the two
count: the newest one does not name a COMMIT that all topics have recorded meanwhile. For the same reason all entries
count that are younger than caches last: a later read may show an older state there.
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
from sparklog.log.state.commit import Commit, decode_commit
from sparklog.log.state.slice_table import COMMITTED, SliceTable, Snapshot
from sparklog.log.state.topic_state import EMPTY, TopicState
from sparklog.log.topic.backup_manifest import LeftOut
from sparklog.log.topic.root import Root
from sparklog.storage.retries import SETTLE_MS
from sparklog.storage.store import Store
from sparklog.tools.backup.damaged_logs import DamagedLogs

Transaction = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Cut:
    """States that fit together, by name or id, deleted topics among them.

    `exact`: the topics are at just the versions that were asked for, and groups may have read further. `defaults`: the
    entry of the root's newest defaults, None if it has none.
    """

    topics: Mapping[str, TopicState]
    decisions: Mapping[str, Decisions]
    groups: Mapping[str, GroupState]
    left_out: tuple[LeftOut, ...] = ()
    exact: bool = False
    defaults: int | None = None

    def versions(self) -> dict[str, int]:
        """Return the versions of topics that exist."""
        return {name: state.version for name, state in self.topics.items() if state.exists}


@dataclass(frozen=True, slots=True)
class CutBounds:
    """The logs that a cut of earlier states is made of.

    `topics`: by name a state that is known, and the version wanted.
    """

    topics: Mapping[str, tuple[Snapshot, int]]
    decisions: Collection[EntrySpan[Decisions]]
    groups: Collection[EntrySpan[GroupState]]


@dataclass
class _Cutter:
    """States that were read, what they require of each other, and reading on until nothing is required."""

    store: Store
    chosen: Collection[str] | None
    damaged: DamagedLogs
    heads: dict[str, TopicState] = field(default_factory=dict)
    decisions: dict[str, Decisions] = field(default_factory=dict)
    groups: dict[str, GroupState] = field(default_factory=dict)
    versions: dict[str, int] = field(default_factory=dict)
    entries: dict[str, int] = field(default_factory=dict)
    decided: set[Transaction] = field(default_factory=set)
    undecided: set[Transaction] = field(default_factory=set)
    """Looked for to the end of their logs."""
    ended: set[object] = field(default_factory=set)
    """Looked for to the end of their logs: aborted, or of a topic that is not there."""
    writers: set[str] = field(default_factory=set)
    live: DecisionLogs | None = None
    """Decisions of a live root, where a cache may hide what exists; None in a repository, where nothing is added."""
    moved: bool = False

    def note_commit(self, commit: Commit) -> None:
        self.decided |= {(item.id, item.n) for item in commit.resolved}
        self.writers |= {item.id for item in commit.resolved}

    def note_decisions(self, state: Decisions) -> None:
        for item in [*state.prepared, *(item for commit in state.commits for item in commit.prepares)]:
            self.require_version(item.topic, item.version)
        for group in [*state.prepared_groups, *(item for commit in state.commits for item in commit.groups)]:
            if not self.is_damaged(GROUPS, group.group):
                self.entries[group.group] = max(group.number, self.entries.get(group.group, -1))

    def note_offsets(self, state: GroupState) -> None:
        """Take in the next state of a group, or its first: transactions that are pending no more are decided."""
        before = self.groups.get(state.id)
        if before is not None:
            waiting = {(item.txn, item.n) for item in before.pending}
            self.decided |= waiting - {(item.txn, item.n) for item in state.pending}
        self.groups[state.id] = state

    def require_version(self, topic: str, version: int) -> None:
        if self.chosen is None or topic in self.chosen:
            self.versions[topic] = max(version, self.versions.get(topic, -1))

    def is_damaged(self, kind: EntryKind[E], id_: str) -> bool:
        return kind.prefix(id_) in self.damaged.damage

    def next_commit(self, topic: str) -> bool:
        state = self._head(topic)
        key = commit_key(topic, state.version + 1)
        try:
            commit = decode_commit(self.store.get(key), key, state.version + 1)
        except NotFound:
            return False
        self.heads[topic] = state.apply(commit)
        self.note_commit(commit)
        self.moved = True
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
        self.moved = True
        return True

    def next_offsets(self, group: str) -> bool:
        state = self.groups.get(group, GroupState(group))
        entry = EntryChain(self.store, GROUPS, group, self.damaged.env).after(state)
        if entry is None:
            return False
        self.note_offsets(entry)
        self.moved = True
        return True

    def settle(self) -> Cut:
        """Read on until nothing is required. `Unavailable` if something that is required does not exist."""
        self.moved = True
        while self.moved:
            self.moved = False
            for state in list(self.heads.values()):
                for other, version in state.siblings.items():
                    self.require_version(other, version)
            for topic, version in list(self.versions.items()):
                while self._head(topic).version < version:
                    self._step(topic, self.next_commit)
            for group, number in list(self.entries.items()):
                while self._number(group) < number:
                    self._step(group, self.next_offsets)
            self._begin()
            self._decide()
            self._record()
            self._reach()
        return self.cut()

    def cut(self) -> Cut:
        """Return the present state. Raises the damage of a log that was left out, if it may concern the topics."""
        for state in self.heads.values():
            self.writers |= {transactional_id for transactional_id, _ in open_transactions(state)}
        if not self.damaged.strict:
            topics = {name: state.topic_id for name, state in self.heads.items()}
            self.damaged.check(topics, self.writers, self.groups.values())
        return Cut(dict(self.heads), dict(self.decisions), dict(self.groups), self.damaged.left_out())

    def _head(self, topic: str) -> TopicState:
        return self.heads.get(topic, EMPTY)

    def _number(self, group: str) -> int:
        return self.groups[group].number if group in self.groups else -1

    def _step(self, name: str, step: Callable[[str], bool]) -> None:
        if not self._awaited(partial(step, name)):
            raise Unavailable(f"a transaction names what '{name}' does not show; try again later")

    def _awaited(self, step: Callable[[], bool]) -> bool:
        """Read the next object of a log; False if there is none, in a live root after longer than caches last."""
        if step():
            return True
        if self.live is None:
            return False
        backoff = self.live.backoff()
        while backoff.wait():
            if step():
                return True
        return False

    def _begin(self) -> None:
        """Ask for the decisions before each open transaction: it was begun after them."""
        if self.live is not None:
            opened = {
                transaction for topic_state in self.heads.values() for transaction in open_transactions(topic_state)
            }
            opened |= {(item.txn, item.n) for state in self.groups.values() for item in state.pending}
            self.decided |= {(transactional_id, n - 1) for transactional_id, n in opened if n > 0}

    def _decide(self) -> None:
        """Read decisions on to what was recorded. A prepare that a later one of its group overtook may be undecided."""
        for transactional_id, n in sorted(self.decided - self.undecided):
            step = partial(self.next_decisions, transactional_id)
            while not self.decisions.get(transactional_id, Decisions(transactional_id)).decided(n):
                if not (step() if self.is_damaged(DECISIONS, transactional_id) else self._awaited(step)):
                    self.undecided.add((transactional_id, n))
                    break

    def _forgotten(self, transaction: Transaction) -> bool:
        state, n = self.decisions.get(transaction[0]), transaction[1]
        return state is not None and state.decided(n) and state.commit_of(n) is None and not state.surely_aborted(n)

    def _reads_record(
        self, transaction: Transaction, step: Callable[[], bool], is_named: Callable[[Decisions], bool]
    ) -> bool:
        """Read on to where the outcome of a transaction may be recorded; False: it was aborted.

        `is_named`: its COMMIT is about what is read; then the record is there, however long a cache hides it.
        """
        if step():
            return True
        if self.live is None:
            return False
        transactional_id, n = transaction
        log = self.live.log(transactional_id)
        log.deciding(n)
        outcome = log.outcome(n)
        if outcome is None and log.is_over(n):
            return step()
        if outcome is not None and outcome.decided(n) and not is_named(outcome):
            return False
        if self._awaited(step):
            return True
        what = "may be" if outcome is None else "is"
        raise Unavailable(
            f"transaction {n} of '{transactional_id}' {what} committed, and a topic or group that has recorded it does "
            "not show that; try again later"
        )

    def _record(self) -> None:
        """Record the outcome of open transactions whose decision is forgotten, or abort them."""
        for topic in list(self.heads):
            for transaction in open_transactions(self.heads[topic]):
                self._record_in_topic(topic, transaction)
        for group in list(self.groups):
            for item in self.groups[group].pending:
                self._record_in_group(group, item)

    def _record_in_topic(self, topic: str, transaction: Transaction) -> None:
        def is_open() -> bool:
            return transaction in open_transactions(self.heads[topic])

        def is_named(state: Decisions) -> bool:
            return bool(state.resolved(topic, self.heads[topic].topic_id, transaction[1]).committed)

        self._read_record((topic, transaction), transaction, is_open, partial(self.next_commit, topic), is_named)

    def _record_in_group(self, group: str, item: Pending) -> None:
        def is_open() -> bool:
            return any(pending.number == item.number for pending in self.groups[group].pending)

        def is_named(state: Decisions) -> bool:
            return state.commits_group(item.n, group, item.number)

        key, transaction = (group, item.txn, item.number), (item.txn, item.n)
        self._read_record(key, transaction, is_open, partial(self.next_offsets, group), is_named)

    def _read_record(
        self,
        key: object,
        transaction: Transaction,
        is_open: Callable[[], bool],
        step: Callable[[], bool],
        is_named: Callable[[Decisions], bool],
    ) -> None:
        while key not in self.ended and is_open() and self._forgotten(transaction):
            if not self._reads_record(transaction, step, is_named):
                self.ended.add(key)

    def _reach(self) -> None:
        """No group is beyond the end of its topic."""
        for state in list(self.groups.values()):
            for item in all_offsets(state):
                if self.chosen is None or item.topic in self.chosen:
                    for partition, offset in zip(item.partition, item.offset, strict=True):
                        self._reach_offset(item.topic, item.topic_id, partition, offset)

    def _reach_offset(self, topic: str, topic_id: str, partition: int, offset: int) -> None:
        key = (topic, topic_id, partition, offset)
        if key in self.ended or _ends_at(self._head(topic), topic_id, partition) >= offset:
            return
        # Any offset may be committed, also one that the topic never reaches: look ahead before reading on.
        ahead = _Cutter(self.store, self.chosen, self.damaged, heads=dict(self.heads))
        step = partial(ahead.next_commit, topic)
        while _ends_at(ahead._head(topic), topic_id, partition) < offset:
            if not step() and not (self._is_hidden(topic, ahead._head(topic)) and self._awaited(step)):
                self.ended.add(key)
                return
        self.require_version(topic, ahead._head(topic).version)
        self.moved = True

    def _is_hidden(self, topic: str, state: TopicState) -> bool:
        """True if a listing of a live root shows the next commit of a topic: a cache of names denies it for a while."""
        following = commit_key(topic, state.version + 1)
        listed = () if self.live is None else list_entries(self.store, topic, commit_key(topic, state.version))
        return any(info.key == following for info in listed)


def all_offsets(state: GroupState) -> list[TopicOffsets]:
    return [*state.offsets, *(offsets for waiting in state.pending for offsets in waiting.offsets)]


def _ends_at(state: TopicState, topic_id: str, partition: int) -> int:
    """The log end of a partition, -1 in another topic of the name."""
    if state.deleted or state.topic_id != topic_id or partition >= state.partitions:
        return -1
    return int(state.log_end[partition])


def cut_now(root: Root, chosen: Collection[str] | None = None) -> Cut:
    """A cut of a live root as it is now, of these topics (None: of all, deleted ones too) and of all groups.

    With `chosen`, damaged logs of ids and groups that have nothing to do with these are left out. `NotFound` if a
    chosen topic never was one; `Corrupt` if a log is damaged; `Unavailable`: try again.
    """
    store = root.store
    damaged = DamagedLogs(store, strict=chosen is None, env=root.env)
    since_ms = reading_clock_ms(store, root.env) - SETTLE_MS
    before: dict[str, Decisions] = {}
    for chain in damaged.chains(DECISIONS):
        state = damaged.read(chain.prefix, _before, chain, since_ms)
        if state is not None:
            before[chain.id] = state
    cutter = _Cutter(store, None if chosen is None else frozenset(chosen), damaged, live=root.engine.decisions)
    for offsets in damaged.chains(GROUPS):
        for group in damaged.read(offsets.prefix, _recent, offsets, since_ms) or ():
            cutter.note_offsets(group)
    folders = topic_names(store)
    for name in folders if chosen is None else chosen:
        topic_state = root.engine.log(name).refresh().topic_state
        if topic_state.version >= 0:
            cutter.heads[name] = topic_state
            for commit in _recent_commits(store, name, topic_state.version, since_ms):
                cutter.note_commit(commit)
        elif chosen is not None:
            root.topic(name)
    for name in sorted({*before, *(chain.id for chain in damaged.chains(DECISIONS))}):
        chain = EntryChain(store, DECISIONS, name, root.env)
        for state in damaged.read(chain.prefix, _since, chain, before.get(name)) or ():
            cutter.note_decisions(state)
            cutter.decisions[name] = state
    if damaged.damage:
        for name in cutter.heads:
            cutter.writers |= writers_in(root.engine.log(name).snapshot(refresh=False).slices)
    return cutter.settle()


def _before(chain: EntryChain[E], since_ms: int) -> E:
    """Return the newest state that no cache can hide: the store has had it since that time. Else the oldest."""
    newest = chain.latest()
    number = chain.latest_number_before(since_ms)
    number = chain.span().first if number is None else number
    state = None if number >= newest.number else chain.state_at(number)
    return newest if state is None else state


def _recent(chain: EntryChain[E], since_ms: int) -> list[E]:
    begin = _before(chain, since_ms)
    return [begin, *chain.walk(begin, chain.latest().number)]


def _recent_commits(store: Store, topic: str, version: int, since_ms: int) -> Iterator[Commit]:
    for info in list_entries(store, topic):
        number = entry_number(info.key)
        if info.modified_ms > since_ms and number is not None and number <= version:
            try:
                yield decode_commit(store.get(info.key), info.key, number)
            except NotFound:
                continue


def _since(chain: EntryChain[Decisions], begin: Decisions | None) -> list[Decisions]:
    """The states from one to the newest, or from the oldest there is; none if all of it went meanwhile."""
    newest = chain.latest()
    if newest.number < 0 or (begin is not None and newest.number < begin.number):
        # Every topic had recorded all of it a week ago.
        return []
    if begin is None:
        begin = chain.state_at(chain.span().first) or newest
    return [begin, *chain.walk(begin, newest.number)]


def _committed_in(table: SliceTable) -> set[Transaction]:
    """Transactions that a topic has recorded as committed, as far as its slices still say so."""
    rows = table.all()
    return {(rows.txn_id(row), int(rows.txn_n[row])) for row in np.flatnonzero(rows.status == COMMITTED).tolist()}


def writers_in(table: SliceTable) -> set[str]:
    rows = table.all()
    return {rows.txn_ids[code] for code in np.unique(rows.txn).tolist() if code >= 0}


def cut_between(store: Store, bounds: CutBounds, time_ms: int, damaged: DamagedLogs, *, exact: bool) -> Cut:
    """The least cut at or above the versions of topics and what ids and groups had written by a time.

    With `exact` topics stay at just these versions, and decisions that name newer ones do not count; groups may be
    beyond.
    """
    cutter = _Cutter(store, frozenset(bounds.topics), damaged)
    for name, (base, version) in bounds.topics.items():
        committed = _committed_in(base.slices)
        cutter.decided |= committed
        cutter.writers |= {transactional_id for transactional_id, _ in committed}
        cutter.heads[name] = base.state
        while cutter.heads[name].version < version:
            if not cutter.next_commit(name):
                raise NotFound(f"version {version} of topic '{name}' is no longer kept")
    for offsets in bounds.groups:
        state = damaged.read(offsets.chain.prefix, offsets.state_by, time_ms)
        if state is not None and state.number >= 0:
            cutter.groups[state.id] = state
    for decisions in bounds.decisions:
        for later in damaged.read(decisions.chain.prefix, decisions.states_by, time_ms) or ():
            if exact and _names_newer(cutter, later):
                break
            cutter.decisions[later.id] = later
            cutter.note_decisions(later)
    if not exact:
        return cutter.settle()
    # Topics are not read on: what was recorded is decided, and what a COMMIT names of groups is there.
    cutter._decide()
    for group, number in cutter.entries.items():
        while cutter._number(group) < number and cutter.next_offsets(group):
            pass
    return replace(cutter.cut(), exact=True)


def _names_newer(cutter: _Cutter, state: Decisions) -> bool:
    prepares = [item for commit in state.commits for item in commit.prepares]
    return any(item.topic in cutter.heads and item.version > cutter.heads[item.topic].version for item in prepares)
