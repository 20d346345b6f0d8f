"""Decision logs: the journal of each transactional id, and what is decided of the open transactions of topics.

The newest entry forgets a COMMIT once every topic and group that it names has recorded it. A cache of a network file
system may hide that record from a reader: to it a forgotten COMMIT looks like an ABORT. So it reads the entry that
decided, which stays for a week. Where that is gone, or hidden as well, the outcome is unclear, and counts as open for
that week (`KEEP_MS`): who then still sees it open knows that it was aborted.

A slice that a transaction holds open carries (id, n) and the version of its prepare. A commit to a topic records the
outcome of n there (the marker of a native topic), and aborts transactions past their timeout by the store's clock.
Readers do not wait for that: `consistent_snapshots` returns snapshots as if the outcomes were recorded, and makes
those of several topics agree, so that they hold all of a transaction or none of it.

The ends of a read of several partitions do the same (`consistent_ends`). A transaction that is open in one partition
hides later ones there, after the last stable offset, and in no other partition. A reader that went up to that offset
everywhere would see such a transaction in part: it is cut. So ends are taken back to where a cut transaction begins, in
all its partitions and topics, until none is cut. No end goes below one that was returned before for the same topics.
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
from sparklog.log.state.commit import Resolved, Txn
from sparklog.log.state.commit_log import CommitLog
from sparklog.log.state.slice_table import COMMITTED, Newer, Slices, Snapshot
from sparklog.log.state.topic_state import Offsets, Prepare, TopicState
from sparklog.storage.fork_safety import ForkLock
from sparklog.storage.parallel_reads import map_requests
from sparklog.storage.retries import SETTLE_MS, Backoff
from sparklog.storage.store import Store

if TYPE_CHECKING:
    from sparklog.log.decisions.decision import Decisions

_LOG = logging.getLogger("sparklog.log")
REMEMBERED = 256
"""Outcomes of old transactions kept in memory: of those that some topic or group still shows open."""

SURE_MS = 86_400_000
"""An id whose newest entry is younger has not expired, for its objects stay longer than that: no register is read."""

Take = Callable[[str], Snapshot]


class DecisionLog(EntryLog["Decisions"]):
    """The journal of one transactional id. Threads may share it."""

    def __init__(self, root: RootAccess, transactional_id: str) -> None:
        from sparklog.log.decisions.decision import DECISIONS

        super().__init__(root, DECISIONS, transactional_id)
        self._root = root
        self._numbered = replace(self._numbered, archived=self._archived)
        self._outcomes: OrderedDict[int, Decisions] = OrderedDict()

    def deciding(self, n: int) -> Decisions:
        """Return the newest state, or the one that is known if it decides `n`."""
        state = self.current()
        return state if state.decided(n) else self.refresh()

    def outcome(self, n: int) -> Decisions | None:
        """Return a state that has the outcome of a decided `n`; None while that is unclear: see the module."""
        state = self.current()
        if not state.decided(n) or state.is_clear(n):
            return state
        decided = self._outcomes.get(n)
        if decided is None:
            reached("transactions: an outcome that the latest decisions have forgotten is searched for")
            decided = self._search(n)[0]
            if decided is not None:
                self._outcomes[n] = decided
                if len(self._outcomes) > REMEMBERED:
                    self._outcomes.popitem(last=False)
        return decided

    def is_over(self, n: int) -> bool:
        """True if the entry that decided an unclear `n` may be gone: the ones seen after it are a week old.

        Who sees it open in a later snapshot still knows that it was aborted. False if the store cannot tell the time.
        """
        number = self._search(n)[1]
        info = self.store.stat(self.key(number))
        try:
            if info is not None:
                return self.store.now_ms() - info.modified_ms > KEEP_MS
            reached("transactions: the entry that decided was deleted")
            kept = self._archived_entry()
            return kept is not None and kept.number >= number and self.store.now_ms() - kept.made_ms > KEEP_MS
        except (SparklogError, OSError):
            return False

    def is_hidden(self) -> bool:
        """Return True if a listing shows entries that a mount's cache of names denies to this process."""
        number = self.current().number
        return self.store.hides_names and self._numbered.last_listed(number) > number

    def abort(self, n: int, reason: str) -> Decisions:
        from sparklog.log.decisions.decision import abort

        return self.write(lambda base: abort(base, n, reason))

    def write(self, step: Step[Decisions]) -> Decisions:
        from sparklog.log.decisions.decision import EXPIRE

        is_back = False

        def judged(base: Decisions) -> Decisions | None:
            nonlocal is_back
            is_back = base.op == EXPIRE
            return step(base)

        state = super().write(judged)
        if is_back and state.op != EXPIRE:
            reached("transactions: an expired id is used again")
            # The id is in use again: this saves the next one a look into the register.
            try:
                self.write_checkpoint()
            except (SparklogError, OSError) as error:
                _LOG.warning("no checkpoint of %s: %s", self.title, error)
        return state

    def _opened(self, checkpoints: Sequence[int], seen: ClockReading) -> Advance[Decisions, Decisions]:
        """Open the journal or, of an id that has expired, go on from its newest entry, which a register keeps.

        Objects up to that entry are being deleted, and a stalled process may put some there. They are old.
        """
        opened, damage = None, None
        try:
            opened = super()._opened(checkpoints, seen)
        except Corrupt as error:
            damage = error
        if opened is not None:
            state = opened.latest.state
            if state.number >= 0 and abs(self.env.wall_ms() - state.made_ms) < SURE_MS:
                return opened
        kept = self._archived_entry()
        if kept is not None and (opened is None or kept.number >= opened.latest.state.number):
            reached("transactions: an expired id is opened from its register")
            return self._read_from(kept, seen)
        if opened is None:
            assert damage is not None
            raise damage
        return opened

    def _archived_entry(self) -> Decisions | None:
        """Look into the register for the newest entry of this id; None if it has not expired."""
        from sparklog.log.decisions.expired_ids import kept_entry

        return kept_entry(self._root, self.id)

    def _archived(self) -> EntryRef | None:
        """Return the place of the entry in the register: it and those before it may be deleted."""
        kept = self._archived_entry()
        return None if kept is None or kept.crc is None else (kept.number, kept.crc)

    def _search(self, n: int) -> tuple[Decisions | None, int]:
        """Search the entry that decided `n`; also return the number of the oldest one read that decides `n` or more.

        `newest` grows along the journal, so a few entries are read: in steps that double, then between two of them.
        """
        above, low, step = self.current(), 0, 1
        while low < above.number:
            number = max((low + above.number) // 2, above.number - step)
            entry, step = self._entry(number), step * 2
            if entry is not None and entry.decided(n):
                if not entry.is_clear(n):
                    above = entry
                    continue
                after = above if above.number == number + 1 else self._entry(number + 1)
                if after is not None and after.prev_crc == entry.crc:
                    return entry, number
            # Older, or not of this journal: a sleeper has used a number again that was collected.
            if entry is not None and entry.decided(n):
                reached("transactions: an entry under a number that was used again is passed over")
            low = number + 1
        return None, above.number

    def _entry(self, number: int) -> Decisions | None:
        """Read an entry; None if it is collected, hidden or damaged."""
        data = self._numbered.read(number)
        if data is None:
            return None
        try:
            return self._decode(data, self.key(number), number)
        except (Corrupt, BadRequest) as error:
            _LOG.warning("passing over entry %s of %s: %s", number, self.title, error)
            return None


class DecisionLogs:
    """The decision logs of a root that this process used last; each write of several topics without an id makes one."""

    def __init__(self, root: RootAccess) -> None:
        self._root = root
        self._logs: OrderedDict[str, DecisionLog] = OrderedDict()
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
        """Drop an id from memory that will not be used again soon."""
        with self._lock:
            self._logs.pop(transactional_id, None)

    def backoff(self) -> Backoff:
        return Backoff(self._root.env)

    def resolve(self, topic: str, topic_state: TopicState) -> list[Resolved]:
        """Return outcomes of open transactions; abort overdue ones. What fails is left to a later commit."""
        from sparklog.log.decisions.decision import BY_TIMEOUT

        outcomes = []
        opened = open_transactions(topic_state)
        for ((name, n), prepares), state in zip(opened.items(), self.deciding(list(opened)), strict=True):
            try:
                if isinstance(state, Exception):
                    raise state
                if not state.decided(n) and self.overdue(topic, prepares):
                    reached("transactions: a transaction past its timeout is aborted by a writer of its topic")
                    state = self.log(name).abort(n, BY_TIMEOUT)
                if state.decided(n):
                    self.log(name).make_durable()
            except (SparklogError, OSError) as error:
                reached("transactions: a transaction stays open because its decisions cannot be read")
                _LOG.warning("transaction %s of '%s' stays open in topic %s: %s", n, name, topic, error)
                continue
            if state.decided(n):
                outcomes.append(state.resolved(topic, topic_state.topic_id, n))
        return outcomes

    def deciding(self, transactions: Sequence[tuple[str, int]]) -> Iterator[Decisions | SparklogError | OSError]:
        """Yield the state of `DecisionLog.deciding` of each (id, n), or its error. Several at once (`map_requests`)."""

        def look(item: tuple[str, int]) -> Decisions | SparklogError | OSError:
            try:
                return self.log(item[0]).deciding(item[1])
            except (SparklogError, OSError) as error:
                return error

        return map_requests(self._root.store, look, transactions)

    def overdue(self, topic: str, prepares: Sequence[Prepare], now_ms: int | None = None) -> bool:
        """True if one of these prepares is older than its timeout; `now_ms`: the store's clock (None: ask it)."""
        now = self._root.store.now_ms() if now_ms is None else now_ms
        return any(now - self.prepared_ms(topic, item) > timeout_of(item) for item in prepares)

    def prepared_ms(self, topic: str, prepare: Prepare) -> int:
        """Return when a prepare was written, by the store's clock; its commit time once that is collected."""
        info = self._root.store.stat(commit_key(topic, prepare.version))
        return prepare.time_ms if info is None else info.modified_ms


def timeout_of(prepare: Prepare) -> int:
    return DEFAULT_TRANSACTION_TIMEOUT_MS if prepare.txn.timeout_ms is None else prepare.txn.timeout_ms


def open_transactions(state: TopicState) -> dict[tuple[str, int], list[Prepare]]:
    """Return the prepares whose outcome is not recorded yet, by (id, n), in the order of versions."""
    prepares: dict[tuple[str, int], list[Prepare]] = {}
    for item in state.open:
        prepares.setdefault((item.txn.id, item.txn.n), []).append(item)
    return prepares


@dataclass
class _Round:
    """Decisions read while snapshots are made to agree."""

    states: dict[str, Decisions | None] = field(default_factory=dict)
    over: dict[tuple[str, str, int], bool] = field(default_factory=dict)
    """(topic, id, n) whose outcome is unclear: True if it had been for long when the topic was read again."""
    undecided: dict[tuple[str, int], set[str]] = field(default_factory=dict)
    """(id, n) that counts as open, to the topics where it is."""


def consistent_snapshots(
    logs: DecisionLogs, raw: dict[str, Snapshot], take: Take
) -> tuple[dict[str, Snapshot], set[str]]:
    """Make snapshots of topics agree, as readers see them; also return the names of topics that are gone.

    No snapshot is older than the version that another one names: `raw` (topic to its newest) is refreshed by `take`,
    and what a cache hides is waited for. Decisions are read after the snapshots they are used for, one state per id.
    """
    decisions = _Round()
    deleted: set[str] = set()
    backoff = logs.backoff()
    while True:
        _read_decisions(logs, raw, decisions)
        decisions.undecided.clear()
        unclear: set[str] = set()
        seen = {name: _outcomes(logs, name, snapshot.state, decisions, unclear) for name, snapshot in raw.items()}
        behind = _behind(raw, decisions) | _behind_merges(logs, raw, seen, decisions)
        needed = _needed(raw, seen)
        if not (unclear or behind or needed):
            return {name: with_outcomes(snapshot, seen[name]) for name, snapshot in raw.items()}, deleted
        for name in sorted({*unclear, *behind, *needed}):
            version = raw[name].version
            try:
                raw[name] = take(name)
            except NotFound:
                del raw[name]
                deleted.add(name)
                continue
            if raw[name].version > version:
                backoff.restart()
        late = behind or {name for name, version in needed.items() if name in raw and raw[name].version < version}
        if late:
            reached("transactions: a version that a cache hides is waited for")
            if not backoff.tries:
                seconds = SETTLE_MS // 1000
                _LOG.info("%s: looking for newer versions for %s s at most", ", ".join(sorted(late)), seconds)
            if not backoff.wait():
                break
    raise Unavailable(
        f"{', '.join(sorted(raw))}: a transaction names versions that cannot be seen; try again later (restored or "
        "copied alone, topics that shared transactions fit together no longer)"
    )


def read_snapshot(logs: DecisionLogs, log: CommitLog) -> Snapshot:
    """Return the newest snapshot of one topic as readers see it. `NotFound` if there is no topic."""
    seen, _ = consistent_snapshots(logs, {log.topic: log.snapshot()}, lambda name: log.snapshot())
    return seen.get(log.topic) or log.snapshot()


def reader_of(store: Store, topic: str) -> Newer:
    """Return `read_snapshot` for a task, which has the store alone; later calls read only newer commits."""
    root = RootAccess(store, SYSTEM)
    logs, log = DecisionLogs(root), CommitLog(root, topic)
    return lambda: read_snapshot(logs, log)


def with_outcomes(snapshot: Snapshot, outcomes: Sequence[Resolved]) -> Snapshot:
    if not outcomes:
        return snapshot
    state = snapshot.state.with_decisions(outcomes)
    return Snapshot(snapshot.topic, snapshot.store, state, snapshot.slices.with_decisions(outcomes))


def _read_decisions(logs: DecisionLogs, raw: Mapping[str, Snapshot], decisions: _Round) -> None:
    """Read a state of each id with open transactions, new enough for all that are decided."""
    highest: dict[str, int] = {}
    for snapshot in raw.values():
        for item in snapshot.state.open:
            highest[item.txn.id] = max(item.txn.n, highest.get(item.txn.id, -1))
    for name, state in zip(highest, logs.deciding(list(highest.items())), strict=True):
        if not isinstance(state, Exception):
            decisions.states[name] = state
            continue
        if not isinstance(state, Corrupt | BadRequest) or len(raw) > 1:
            # Another topic may have recorded what this one cannot know: shown together they would be torn.
            raise state
        # Offsets below the open slices can be read all the same.
        _LOG.warning("the transactions of '%s' count as open: %s", name, state)
        decisions.states[name] = None


def _behind(raw: Mapping[str, Snapshot], decisions: _Round) -> set[str]:
    """Return topics that show a transaction open which another one has recorded as committed."""
    if not decisions.undecided or len(raw) < 2:
        return set()
    late: set[str] = set()
    numbers = [n for _, n in decisions.undecided]
    for snapshot in raw.values():
        rows = snapshot.slices.all()
        for row in np.flatnonzero((rows.status == COMMITTED) & np.isin(rows.txn_n, numbers)).tolist():
            late |= decisions.undecided.get((rows.txn_id(row), int(rows.txn_n[row])), set())
    return late


def _behind_merges(
    logs: DecisionLogs, raw: Mapping[str, Snapshot], seen: Mapping[str, Sequence[Resolved]], decisions: _Round
) -> set[str]:
    """Return topics that show a transaction open whose records another topic may show, and no longer whose they are.

    A merge drops that. What stays is the newest version of each topic that the other one's committed transactions name.
    If it is the version of an open prepare here, that transaction is committed. If it is a higher one, that may be, and
    then its decision is hidden from this process.
    """
    named: dict[str, int] = {}
    for name, snapshot in raw.items() if decisions.undecided and len(raw) > 1 else ():
        for other, version in snapshot.state.with_decisions(seen[name]).siblings.items():
            named[other] = max(version, named.get(other, version))
    late: set[str] = set()
    for (transactional_id, n), topics in decisions.undecided.items() if named else ():
        for name in topics & named.keys():
            transaction = (transactional_id, n)
            versions = {item.version for item in raw[name].state.open if (item.txn.id, item.txn.n) == transaction}
            may_be = min(versions, default=named[name]) < named[name]
            if named[name] in versions or (may_be and logs.log(transactional_id).is_hidden()):
                late.add(name)
    return late


def _needed(raw: Mapping[str, Snapshot], seen: Mapping[str, Sequence[Resolved]]) -> dict[str, int]:
    """Return topics that are older than the version which another one names, and that version."""
    needed: dict[str, int] = {}
    for name, snapshot in raw.items():
        for other, version in snapshot.state.with_decisions(seen[name]).siblings.items():
            if other in raw and raw[other].version < version:
                needed[other] = max(version, needed.get(other, version))
    return needed


def _outcomes(
    logs: DecisionLogs, name: str, topic_state: TopicState, decisions: _Round, unclear: set[str]
) -> list[Resolved]:
    """Return the outcomes of a topic's open transactions; an undecided or unclear one counts as open.

    Where a decision is gone the topic is put into `unclear`, to be read once more. A transaction that it still shows
    open then was aborted, provided that it had been over for long enough before.
    """
    outcomes = []
    for transactional_id, n in open_transactions(topic_state):
        state = decisions.states.get(transactional_id)
        if state is not None and state.decided(n):
            log, place = logs.log(transactional_id), (name, transactional_id, n)
            state = log.outcome(n)
            if state is not None and state.decided(n):
                outcomes.append(state.resolved(name, topic_state.topic_id, n))
                continue
            if state is None and decisions.over.get(place):
                outcomes.append(Resolved(transactional_id, n))
                continue
            if state is None:
                is_first, decisions.over[place] = place not in decisions.over, log.is_over(n)
                if is_first or decisions.over[place]:
                    unclear.add(name)
        decisions.undecided.setdefault((transactional_id, n), set()).add(name)
    return outcomes


Cut = tuple[str, int]


def consistent_ends(snapshots: Mapping[str, Snapshot]) -> dict[str, Offsets]:
    """Return the ends, per topic and partition, of a read_committed read of all these snapshots."""
    heads = {name: snapshot.state for name, snapshot in snapshots.items()}
    if not any(_hides(state) for state in heads.values()):
        return {name: state.last_stable() for name, state in heads.items()}
    return _whole(heads, {name: _committed(snapshot.slices.all()) for name, snapshot in snapshots.items()})


def own_consistent_ends(state: TopicState, slices: Slices) -> Offsets:
    """Return the same of one topic, from all its slices: maintenance leaves alone what comes after."""
    return _whole({"": state}, {"": _committed(slices)})[""] if _hides(state) else state.last_stable()


def _hides(state: TopicState) -> bool:
    """True if a transaction is open, also one that Kafka left open in an import."""
    stable = state.last_stable()
    return stable is not state.log_end and bool((stable < state.log_end).any())


def limited_to(snapshot: Snapshot, ends: Offsets) -> Snapshot:
    """Return the snapshot as if a transaction were open from these ends on: for planning, which leaves that alone."""
    state = snapshot.state
    below = np.flatnonzero(ends < state.last_stable()).tolist()
    if not below:
        return snapshot
    first = {partition: int(ends[partition]) for partition in below}
    last = {partition: int(state.log_end[partition]) for partition in below}
    hidden = Prepare(Txn("", 0), state.version, "", state.made_ms, first, last)
    return replace(snapshot, state=replace(state, open=(*state.open, hidden)))


def _whole(heads: Mapping[str, TopicState], rows: Mapping[str, Slices]) -> dict[str, Offsets]:
    ends = {name: state.last_stable().copy() for name, state in heads.items()}
    done: set[Cut] = set()
    while cuts := {cut for name, part in rows.items() for cut in _cut(part, ends[name])} - done:
        done |= cuts
        for name, part in rows.items():
            for row in np.flatnonzero(np.isin(part.txn_n, [n for _, n in cuts])).tolist():
                if (part.txn_id(row), int(part.txn_n[row])) in cuts:
                    partition = int(part.partition[row])
                    ends[name][partition] = min(ends[name][partition], int(part.base[row]))
    return {name: np.maximum(end, heads[name].log_start) for name, end in ends.items()}


def _committed(rows: Slices) -> Slices:
    """Return slices of committed transactions that no merge has taken up."""
    return rows[np.flatnonzero(rows.status == COMMITTED)]


def _cut(rows: Slices, ends: Offsets) -> set[Cut]:
    """Return transactions with a slice beyond the end of its partition."""
    beyond = np.flatnonzero(rows.end > ends[rows.partition]).tolist()
    return {(rows.txn_id(row), int(rows.txn_n[row])) for row in beyond}
