"""Maintenance of transactions: outcomes in quiet topics, timeouts, COMMITs to forget, idle ids, old entries.

Readers ask the decision log of an open transaction, and every commit to a topic records the outcomes of transactions
that are open there. Only a topic without writers waits for the pass here, to record outcomes and to time out.

Idle ids expire, by Kafka's `transactional.id.expiration.ms`, in three steps of as many passes:

1. An id that was idle for so long gets an entry, `expire`, which aborts the transaction that was to come. Only an id
   expires of which nothing is open and whose COMMITs all topics and groups have recorded.
2. That entry goes into a register (`sparklog.log.decisions.expired_ids`).
3. The objects of the id are deleted once the register has had that entry for a week: so long processes may know the
   state from before. Numbers up to that of the entry are never used again, so a pass that was stopped on its way may
   delete them whenever it goes on, and one that was killed leaves nothing behind that is read.

A later use of the id, if there is one, goes on with the next number.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from sparklog.common.reached import reached
from sparklog.errors import BadRequest, Conflict, Corrupt, NotFound, SparklogError
from sparklog.format import crc32c
from sparklog.groups.group_state import GROUPS, GroupState
from sparklog.log.decisions.decision import (
    DECISION_JSON,
    DECISIONS,
    EXPIRE,
    CommitDecision,
    Decisions,
    Prepared,
    PreparedGroup,
    expire,
    forget,
)
from sparklog.log.decisions.decision_log import DecisionLog, consistent_ends, consistent_snapshots, limited_to
from sparklog.log.decisions.expired_ids import OF_SPARKLOG, ONE_WRITE, REGISTER, entry_in, keep_newer, register_of
from sparklog.log.journal.chain import EntryChain, ids_of
from sparklog.log.journal.entry_log import KEEP_MS, Collected, collect_entries, collect_log
from sparklog.log.journal.journal import Journal
from sparklog.log.journal.names import CHECKPOINT_FOLDER, LOG_FOLDER, entry_number, id_folder
from sparklog.log.journal.seen_state import S
from sparklog.log.state.commit import Resolved
from sparklog.log.state.commit_intents import MaintainIntent
from sparklog.log.state.commit_log import LogState, no_topic
from sparklog.log.state.slice_table import Snapshot
from sparklog.log.topic.root import Root
from sparklog.log.topic.topic import Topic
from sparklog.storage.store import ObjectInfo, Store

FEW_COMMITS = 8
"""COMMITs that may wait before topics are asked whether they have recorded them."""


def check_not_one_write(transactional_id: str) -> str:
    if isinstance(transactional_id, str) and transactional_id.startswith(OF_SPARKLOG):
        prefix = transactional_id.partition(":")[0]
        raise BadRequest(f"transactional ids that begin with '{prefix}:' are sparklog's own; choose another one")
    return transactional_id


def resolve_topic(topic: Topic) -> tuple[Resolved, ...]:
    """Record the outcomes of open transactions in a topic, and abort those past their timeout."""
    state = topic.log.state()
    if not state.open:
        return ()
    resolved = tuple(topic.root.engine.decisions.resolve(topic.name, state))
    if resolved:
        try:
            topic.log.commit(MaintainIntent(state.topic_id, resolved=resolved), state)
        except Conflict:
            # Deleted and created again meanwhile: outcomes of the old topic's slices mean nothing here.
            reached("transactions: a topic is created again before outcomes are recorded in it")
            return ()
    return resolved


def visible_snapshot(topic: Topic) -> Snapshot:
    """Return a topic's newest snapshot that ends where a reader's does. `NotFound` if there is no topic.

    It ends before a transaction that is hidden here, or in a topic that shares transactions with this one, or with one
    that does. A rewritten slice no longer carries its transaction, so readers of both topics would see it here alone.
    """

    engine = topic.log.engine

    def take(name: str) -> Snapshot:
        return engine.log(name).snapshot()

    raw = {topic.name: topic.log.snapshot()}
    gone: set[str] = set()
    while True:
        # Outcomes count as recorded: a committed transaction is hidden also where its topic has not recorded it.
        shown, missing = consistent_snapshots(engine.decisions, raw, take)
        gone |= missing
        if topic.name not in raw:
            raise no_topic(topic.name, topic.root.location)
        further = {name for snapshot in shown.values() for name in snapshot.state.siblings} - raw.keys() - gone
        if not further:
            return limited_to(raw[topic.name], consistent_ends(shown)[topic.name])
        for name in sorted(further):
            try:
                raw[name] = take(name)
            except NotFound:
                gone.add(name)


def recorded_everywhere(root: Root, state: Decisions, *, ask: bool | None = None) -> set[int]:
    """Return the COMMITs that all have recorded. `ask`: by requests, else by known states; None: if many wait."""
    ask = len(state.commits) > FEW_COMMITS if ask is None else ask
    return {item.n for item in state.commits if _all_recorded(root, state.id, item, ask)}


def _all_recorded(root: Root, transactional_id: str, item: CommitDecision, ask: bool) -> bool:
    topics = (_topic_recorded(root, transactional_id, item.n, prepare, ask) for prepare in item.prepares)
    return all(topics) and all(_group_recorded(root, prepare, ask) for prepare in item.groups)


def _group_recorded(root: Root, prepare: PreparedGroup, ask: bool) -> bool:
    # Any state from the prepare on can tell.
    def settled(state: GroupState) -> bool:
        return state.number >= prepare.number and all(item.number != prepare.number for item in state.pending)

    return _shows(root.engine.entries(GROUPS, prepare.group), settled, ask)


def _topic_recorded(root: Root, transactional_id: str, n: int, prepare: Prepared, ask: bool) -> bool:
    key = transactional_id, n, prepare.version

    def recorded(state: LogState) -> bool:
        topic_state = state.topic_state
        if topic_state.version < prepare.version:
            return False
        if topic_state.deleted or topic_state.topic_id != prepare.topic_id:
            return True
        return not any((item.txn.id, item.txn.n, item.version) == key for item in topic_state.open)

    return _shows(root.engine.log(prepare.topic), recorded, ask)


def _shows(log: Journal[S, Any, Any], holds: Callable[[S], bool], ask: bool) -> bool:
    """True if `holds` of the state known or, with `ask`, of the newest one, which is made durable then."""
    state = log.known()
    if not ask and (state is None or not holds(state)):
        return False
    try:
        if (state is None or not holds(state)) and not holds(log.refresh()):
            return False
        log.make_durable()
        return True
    except (SparklogError, OSError):
        return False


def forget_recorded(root: Root, log: DecisionLog) -> int:
    state = log.refresh()
    recorded = recorded_everywhere(root, state, ask=True)
    if forget(state, recorded) is None:
        return 0
    return len(state.commits) - len(log.write(lambda base: forget(base, recorded)).commits)


@dataclass
class CollectedDecisions(Collected):
    """The outcome of a collection: ids, COMMITs forgotten, ids expired."""

    ids: int = 0
    forgotten: int = 0
    expired: int = 0


def transactional_ids(store: Store, failures: list[SparklogError] | None = None) -> list[str]:
    return ids_of(store, DECISIONS, failures)


def collect(
    root: Root, *, now_ms: int | None = None, expiration_ms: int | None = None, dry_run: bool = False
) -> CollectedDecisions:
    """Forget COMMITs that all topics have recorded, then delete old entries. `now_ms`: the store's clock.

    An entry or checkpoint is deleted when it is below the second newest checkpoint that can be read, and is seven
    days old. The journal of a single write is deleted once its topics have recorded it, when its newest entry is that
    old. Ids that were idle for longer than `expiration_ms` expire; None: none does.
    """
    now_ms = root.store.now_ms() if now_ms is None else now_ms
    done = CollectedDecisions()
    expiry = ExpiryPass(root, now_ms, expiration_ms, lambda state: recorded_everywhere(root, state, ask=True))

    def collect_one(transactional_id: str) -> None:
        log = root.engine.decisions.log(transactional_id)
        done.forgotten += 0 if dry_run else forget_recorded(root, log)
        is_over = transactional_id.startswith(ONE_WRITE) and _is_over(root, log)
        done.add((collect_log if is_over else collect_entries)(log, now_ms, dry_run=dry_run))
        if not dry_run and not is_over:
            expiry.visit(log)

    ids = transactional_ids(root.store, done.failures)
    done.collect_each(ids, collect_one)
    expiry.keep(done.failures)
    expiry.delete(done, dry_run=dry_run)
    done.ids, done.expired = len(ids), len(expiry.expired)
    return done


def _is_over(root: Root, log: DecisionLog) -> bool:
    state = log.refresh()
    undecided = state.prepared or state.prepared_groups
    return not undecided and all(_all_recorded(root, state.id, item, True) for item in state.commits)


Recorded = Callable[[Decisions], Collection[int]]
"""Returns the numbers of the COMMITs of a state that all topics and groups they name have recorded."""


@dataclass
class ExpiryPass:
    """A pass over the ids of a root. `now_ms`: the store's clock; `expiration_ms`: None: no id expires."""

    root: Root
    now_ms: int
    expiration_ms: int | None
    recorded: Recorded

    def __post_init__(self) -> None:
        self.expired: list[Decisions] = []
        self._in_use: frozenset[str] | None = None

    def visit(self, log: DecisionLog) -> None:
        """Expire an id if it is due; remember one that has expired for `keep`."""
        if self.expiration_ms is None or log.id.startswith(OF_SPARKLOG):
            return
        state = log.refresh()
        if state.op != EXPIRE and self._is_due(log, state, self.expiration_ms):
            reached("transactions: an idle id expires")
            number, recorded = state.number, self.recorded(state)
            state = log.write(lambda base: expire(base, number, recorded))
        # Without its entry it is in the register.
        if state.op == EXPIRE and self.root.store.stat(log.key(state.number)) is not None:
            log.write_checkpoint()
            self.expired.append(state)

    def _is_due(self, log: DecisionLog, state: Decisions, expiration_ms: int) -> bool:
        info = self.root.store.stat(log.key(state.number)) if state.number >= 0 else None
        if info is None or self.now_ms - info.modified_ms <= expiration_ms:
            return False
        if self._in_use is None:
            self._in_use = frozenset(_in_use(self.root))
        return state.id not in self._in_use

    def keep(self, failures: list[SparklogError]) -> None:
        """Put the entries of ids that have expired into their registers, where they are not yet."""
        registers: dict[str, dict[str, Decisions]] = {}
        for state in self.expired:
            if crc32c.crc32c(DECISION_JSON.encode(state)) != state.crc:
                key = self.root.engine.decisions.log(state.id).key(state.number)
                failures.append(Corrupt(f"the newest entry of '{state.id}' is not as sparklog writes it", file=key))
                continue
            registers.setdefault(register_of(state.id), {})[state.id] = state
        for name, entries in sorted(registers.items()):
            try:
                log = self.root.engine.decisions.log(name)
                before = log.refresh().number
                if log.write(partial(keep_newer, entries=entries)).number > before:
                    # Older entries are collected below the second newest checkpoint.
                    log.write_checkpoint()
            except SparklogError as error:
                failures.append(error)

    def delete(self, done: Collected, *, dry_run: bool) -> None:
        """Delete what registers have had for a week."""
        folders = set(self.root.store.list_folders(f"{DECISIONS.folder}/"))
        for name in (f"{REGISTER}{digit:x}" for digit in range(16)):
            if id_folder(name) not in folders:
                continue
            try:
                for info in _deletable(self.root, name, folders, self.now_ms):
                    done.add((1, info.size))
                    if not dry_run:
                        self.root.store.delete(info.key)
            except SparklogError as error:
                done.failures.append(error)


def _in_use(root: Root) -> Iterator[str]:
    """Yield the ids with a transaction open in a topic, or pending offsets in a group."""
    for name in root.topics():
        yield from (item.txn.id for item in root.engine.log(name).state(refresh=False).open)
    for name in ids_of(root.store, GROUPS):
        yield from (item.txn for item in root.engine.entries(GROUPS, name).refresh().pending)


def _deletable(root: Root, register: str, folders: Collection[str], now_ms: int) -> Iterator[ObjectInfo]:
    """Yield objects of ids up to the entry that the register has had for a week, the lowest numbers first."""
    chain = EntryChain(root.store, DECISIONS, register, root.env)
    number = chain.latest_number_before(now_ms - KEEP_MS)
    state = None if number is None else chain.state_at(number)
    for name in () if state is None else state.expired:
        entry = None if state is None or id_folder(name) not in folders else entry_in(state, name)
        if entry is None:
            continue
        numbered: list[tuple[int, bool, ObjectInfo]] = []
        for info in root.store.list(f"{DECISIONS.prefix(name)}/{LOG_FOLDER}/"):
            number = entry_number(info.key)
            if number is not None and number <= entry.number:
                numbered.append((number, f"/{CHECKPOINT_FOLDER}/" in info.key, info))
        # The copy of the last entry goes last: until then it is a journal like any other.
        yield from (info for _, _, info in sorted(numbered, key=lambda item: item[:2]))
