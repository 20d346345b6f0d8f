"""The decision log of one transactional id: a log of entries (`sparklog.log.journal.entry_log`) that decisions are
asked of.

The newest entry forgets a COMMIT once every topic and group that it names has recorded it. That is enough for who has
seen them record it. A reader whose host still believes that "commit v + 1 of the topic is not there", because a cache
of a network file system says so, has not: to it a forgotten COMMIT looks like an ABORT. So it asks the entry that
decided, which stays for a week. Where that entry is gone, or hidden as well, the outcome is unclear, and what is
unclear counts as open until it has been unclear for longer than any cache lasts (`SETTLE_MS`).

What is decided of the open transactions of a topic: for every commit, which records it, and for every reader.

A slice that a transaction holds open carries (id, n) and the version of its prepare; the decision log of the id says
what became of n. Who commits to a topic writes that down there (the COMMIT or ABORT marker of a native topic), and
aborts what is past its timeout by the store's clock. Who reads does not wait for that: `settle` shows snapshots as they
will be once it is written down, and makes those of several topics agree, so that they hold all of a transaction or
none of it.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from sparklog.errors import BadRequest, Corrupt, NotFound, SparklogError, Unavailable
from sparklog.log.decisions.decision import BY_TIMEOUT, DECISIONS, Decisions, abort
from sparklog.log.journal.clock import ClockGuard
from sparklog.log.journal.entry_log import EntryLog
from sparklog.log.journal.env import SETTLE_MS, SYSTEM, Backoff, Env
from sparklog.log.journal.names import commit_key
from sparklog.log.state.commit import Resolved
from sparklog.log.state.commit_log import CommitLog
from sparklog.log.state.slice_table import COMMITTED
from sparklog.log.state.snapshot import Newer, Snapshot
from sparklog.log.state.topic_state import Head, Prepare
from sparklog.storage.locks import ForkLock, ask_each
from sparklog.storage.store import Store

_LOG = logging.getLogger("sparklog.log")
REMEMBERED = 256
"""Outcomes of old transactions kept in memory: of those that some topic or group still shows open."""


class DecisionLog(EntryLog[Decisions]):
    """The decisions of one transactional id, with the newest state this process knows. Threads may share it."""

    def __init__(
        self, store: Store, transactional_id: str, env: Env, guard: ClockGuard, root_id: str | None = None
    ) -> None:
        super().__init__(store, DECISIONS, transactional_id, env, guard, root_id)
        self._outcomes: OrderedDict[int, Decisions] = OrderedDict()

    def deciding(self, n: int) -> Decisions:
        """The newest state, looked for only where the one that is known does not decide `n`."""
        state = self.current()
        return state if state.decided(n) else self.refresh()

    def outcome(self, n: int) -> Decisions | None:
        """A state that tells what became of a decided `n`: the newest, or the one that decided it.

        None while that is unclear: the newest has forgotten it and the entry that decided it is not to be seen.
        """
        state = self.current()
        if not state.decided(n) or state.is_clear(n):
            return state
        known = self._outcomes.get(n)
        if known is None:
            known = self._search(n)[0]
            if known is not None:
                self._outcomes[n] = known
                while len(self._outcomes) > REMEMBERED:
                    self._outcomes.popitem(last=False)
        return known

    def is_over(self, n: int) -> bool:
        """Whether a decided `n` has been unclear for longer than caches last: then it is recorded, or was aborted.

        By the store's clock, from the oldest entry that knows nothing of it any more. Whoever still sees it open in a
        look that began after this was asked knows that it was aborted there. False where the store cannot tell the
        time (a mount that is read-only).
        """
        info = self.store.stat(self.key(self._search(n)[1]))
        if info is None:
            return False
        try:
            return self.store.now_ms() - info.modified_ms > SETTLE_MS
        except (SparklogError, OSError):
            return False

    def abort(self, n: int, reason: str) -> Decisions:
        """ABORT `n` unless it is decided; the state says what it is now."""
        return self.write(lambda base: abort(base, n, reason))

    def _search(self, n: int) -> tuple[Decisions | None, int]:
        """The entry that decided `n`, if it can be seen, and the number of the oldest seen that decides `n` or more.

        `newest` grows along the log, so a few entries are read: in steps that double, then between two of them.
        """
        above, low, step = self.current(), 0, 1
        while low < above.number:
            at = max((low + above.number) // 2, above.number - step)
            entry, step = self._entry(at), step * 2
            if entry is None or not entry.decided(n):
                low = at + 1
                continue
            if entry.is_clear(n):
                after = above if above.number == at + 1 else self._entry(at + 1)
                if after is not None and after.prev_crc == entry.crc:
                    return entry, at
                # Not of this log: a sleeper has used a number again that was collected.
                low = at + 1
                continue
            above = entry
        return None, above.number

    def _entry(self, number: int) -> Decisions | None:
        """An entry as it lies in the store; None if it is collected, hidden or damaged."""
        data = self._numbered.read(number)
        if data is None:
            return None
        try:
            found = self.kind.decode(data, self.key(number), number)
        except (Corrupt, BadRequest) as error:
            _LOG.warning("passing over entry %s of %s: %s", number, self.title, error)
            return None
        return found if found.id == self.id else None


KEPT_LOGS = 1_024
DEFAULT_TIMEOUT_MS = 60_000
MAX_TIMEOUT_MS = 86_400_000
"""A day: commits and decisions are kept seven, so an open transaction never outlives what decides it."""

Take = Callable[[str], Snapshot]


class DecisionLogs:
    """The decision logs of a root that this process has met, the ones used last.

    Each is about a kilobyte, and a write of several topics without an id of its own makes one. What is dropped is
    opened anew if it is asked for again; whoever holds it goes on with it.
    """

    def __init__(self, store: Store, env: Env, guard: ClockGuard, root_id: str | None = None) -> None:
        self._store = store
        self._root_id = root_id
        self._env = env
        self._guard = guard
        self._logs: OrderedDict[str, DecisionLog] = OrderedDict()
        self._lock = ForkLock()

    def log(self, transactional_id: str) -> DecisionLog:
        """The log of an id, which may have no entries."""
        with self._lock:
            found = self._logs.get(transactional_id)
            if found is None:
                found = DecisionLog(self._store, transactional_id, self._env, self._guard, self._root_id)
                self._logs[transactional_id] = found
                while len(self._logs) > KEPT_LOGS:
                    self._logs.popitem(last=False)
            else:
                self._logs.move_to_end(transactional_id)
            return found

    def __len__(self) -> int:
        return len(self._logs)

    def drop(self, transactional_id: str) -> None:
        """Keep nothing in memory of an id that will not come back soon."""
        with self._lock:
            self._logs.pop(transactional_id, None)

    def backoff(self) -> Backoff:
        """Return the waits for what a cache may hide, as long as caches last."""
        return Backoff(self._env)

    def resolve(self, topic: str, head: Head) -> list[Resolved]:
        """Outcomes of what is open in the newest head of a topic; what is past its timeout is aborted.

        Never raises for a log that fails: what is not recorded by this commit is recorded by a later one.
        """
        found = []
        opened = open_transactions(head)
        for ((name, n), prepares), state in zip(opened.items(), self.deciding(list(opened)), strict=True):
            try:
                if isinstance(state, Exception):
                    raise state
                if not state.decided(n) and self.overdue(topic, prepares):
                    state = self.log(name).abort(n, BY_TIMEOUT)
                if state.decided(n):
                    self.log(name).make_durable()
            except (SparklogError, OSError) as error:
                _LOG.warning("transaction %s of '%s' stays open in topic %s: %s", n, name, topic, error)
                continue
            if state.decided(n):
                found.append(state.resolved(topic, head.topic_id, n))
        return found

    def deciding(self, wanted: Sequence[tuple[str, int]]) -> Iterator[Decisions | SparklogError | OSError]:
        """Of each (id, n) the newest state, looked for where the one that is known does not decide `n`; or why not.

        Several logs are asked at once where the store says `parallel_reads`: there each answer costs a round trip.
        """

        def look(item: tuple[str, int]) -> Decisions | SparklogError | OSError:
            try:
                return self.log(item[0]).deciding(item[1])
            except (SparklogError, OSError) as error:
                return error

        return ask_each(self._store, look, wanted)

    def overdue(self, topic: str, prepares: Sequence[Prepare], now_ms: int | None = None) -> bool:
        """Whether one of these prepares is older than its timeout; `now_ms`: the store's clock, asked if not given."""
        now = self._store.now_ms() if now_ms is None else now_ms
        return any(now - self.prepared_ms(topic, item) > timeout_of(item) for item in prepares)

    def prepared_ms(self, topic: str, prepare: Prepare) -> int:
        """When a prepare came to lie in the store, by the store's clock; its own time once its commit is collected."""
        info = self._store.stat(commit_key(topic, prepare.version))
        return prepare.time_ms if info is None else info.modified_ms


def timeout_of(prepare: Prepare) -> int:
    """`transaction.timeout.ms` of a prepare."""
    return DEFAULT_TIMEOUT_MS if prepare.txn.timeout_ms is None else prepare.txn.timeout_ms


def open_transactions(head: Head) -> dict[tuple[str, int], list[Prepare]]:
    """(id, n) to its prepares not recorded yet, in the order of the log."""
    found: dict[tuple[str, int], list[Prepare]] = {}
    for item in head.open:
        found.setdefault((item.txn.id, item.txn.n), []).append(item)
    return found


@dataclass
class _Round:
    """What is known while snapshots are made to agree."""

    states: dict[str, Decisions | None] = field(default_factory=dict)
    over: dict[tuple[str, str, int], bool] = field(default_factory=dict)
    """(topic, id, n) whose outcome is unclear, to whether it had been for long before the topic was looked at again."""
    undecided: dict[tuple[str, int], set[str]] = field(default_factory=dict)
    """(id, n) that counts as open, to the topics where it is."""


def settle(logs: DecisionLogs, raw: dict[str, Snapshot], take: Take) -> tuple[dict[str, Snapshot], set[str]]:
    """Snapshots of topics as readers see them: decided transactions count, and none is older than another one names.

    `raw` (topic to its newest snapshot) is refreshed through `take` where that takes it. Also the names of topics that
    were found to be gone. Decisions are read after the snapshots they are used for, one state per id for all topics: of
    a transaction, all topics show all or nothing. What a cache hides is waited for, as long as caches last; what comes
    to be seen meanwhile may name more.
    """
    known = _Round()
    gone: set[str] = set()
    backoff = logs.backoff()
    while True:
        _read_decisions(logs, raw, known)
        known.undecided.clear()
        unclear: set[str] = set()
        seen = {name: _outcomes(logs, name, snapshot.head, known, unclear) for name, snapshot in raw.items()}
        behind = _behind(raw, known)
        needed = _needed(raw, seen)
        if not (unclear or behind or needed):
            return {name: settled(snapshot, seen[name]) for name, snapshot in raw.items()}, gone
        for name in sorted({*unclear, *behind, *needed}):
            version = raw[name].version
            try:
                raw[name] = take(name)
            except NotFound:
                del raw[name]
                gone.add(name)
                continue
            if raw[name].version > version:
                backoff.restart()
        late = behind or {name for name, version in needed.items() if name in raw and raw[name].version < version}
        if late:
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
    """The newest state of one topic as readers see it. `NotFound` if there is no topic."""
    seen, _ = settle(logs, {log.topic: log.snapshot()}, lambda name: log.snapshot())
    return seen.get(log.topic) or log.snapshot()


def reader_of(store: Store, topic: str) -> Newer:
    """The same for a task, which has nothing but the store: what is read once is known at the next call."""
    guard = ClockGuard(store, SYSTEM)
    logs, log = DecisionLogs(store, SYSTEM, guard), CommitLog(store, topic, SYSTEM, guard)
    return lambda: read_snapshot(logs, log)


def settled(snapshot: Snapshot, outcomes: Sequence[Resolved]) -> Snapshot:
    """The snapshot as it would be with these outcomes recorded."""
    if not outcomes:
        return snapshot
    head = snapshot.head.settled(outcomes)
    return Snapshot(snapshot.topic, snapshot.store, head, snapshot.slices.settled(outcomes))


def _read_decisions(logs: DecisionLogs, raw: Mapping[str, Snapshot], known: _Round) -> None:
    """The state of each id that holds something open, new enough to decide what can be decided."""
    highest: dict[str, int] = {}
    for snapshot in raw.values():
        for item in snapshot.head.open:
            highest[item.txn.id] = max(item.txn.n, highest.get(item.txn.id, -1))
    for name, state in zip(highest, logs.deciding(list(highest.items())), strict=True):
        if not isinstance(state, Exception):
            known.states[name] = state
            continue
        if not isinstance(state, Corrupt | BadRequest) or len(raw) > 1:
            # Another topic may have recorded what this one cannot know: shown together they would be torn.
            raise state
        # What lies below the open slices can be read all the same.
        _LOG.warning("the transactions of '%s' count as open: %s", name, state)
        known.states[name] = None


def _behind(raw: Mapping[str, Snapshot], known: _Round) -> set[str]:
    """Topics that show open what another one has recorded as committed, and the decisions as read cannot tell."""
    if not known.undecided or len(raw) < 2:
        return set()
    behind: set[str] = set()
    numbers = [n for _, n in known.undecided]
    for snapshot in raw.values():
        rows = snapshot.slices.all()
        for row in np.flatnonzero((rows.status == COMMITTED) & np.isin(rows.txn_n, numbers)).tolist():
            behind |= known.undecided.get((rows.txn_id(row), int(rows.txn_n[row])), set())
    return behind


def _needed(raw: Mapping[str, Snapshot], seen: Mapping[str, Sequence[Resolved]]) -> dict[str, int]:
    """Topics that are older than another one names, to the version that it names."""
    needed: dict[str, int] = {}
    for name, snapshot in raw.items():
        for other, version in snapshot.head.settled(seen[name]).siblings.items():
            if other in raw and raw[other].version < version:
                needed[other] = max(version, needed.get(other, version))
    return needed


def _outcomes(logs: DecisionLogs, name: str, head: Head, known: _Round, unclear: set[str]) -> list[Resolved]:
    """What is decided of a topic's open transactions; what is not, or is unclear, counts as open.

    A COMMIT is forgotten once all topics have recorded it, and a snapshot that a cache has made old still shows it
    open. Where no decision can be seen any more the topic is put into `unclear`, to be looked at again once; if it
    still shows the transaction open then, it was aborted, provided that it had been over for long enough before.
    """
    found = []
    for transactional_id, n in open_transactions(head):
        state = known.states.get(transactional_id)
        if state is not None and state.decided(n):
            log, place = logs.log(transactional_id), (name, transactional_id, n)
            state = log.outcome(n)
            if state is not None and state.decided(n):
                found.append(state.resolved(name, head.topic_id, n))
                continue
            if state is None and known.over.get(place):
                found.append(Resolved(transactional_id, n))
                continue
            if state is None:
                is_first, known.over[place] = place not in known.over, log.is_over(n)
                if is_first or known.over[place]:
                    unclear.add(name)
        known.undecided.setdefault((transactional_id, n), set()).add(name)
    return found
