"""Maintain transactions: record outcomes in idle topics, abort transactions after their timeout, prune COMMITs, expire
ids, and delete old entries.

Readers read the decision log of an open transaction, and each commit to a topic records the outcomes of transactions
that are open in the topic. This module is therefore only needed for topics without writers, in which it records
outcomes and aborts transactions after their timeout.

If an id has been idle for longer than Kafka's `transactional.id.expiration.ms`, it expires in three steps, each in a
later pass:

1. The id gets an `expire` entry, which aborts its next transaction. This requires that the id has no open transaction,
   and that all topics and groups have recorded its COMMITs.
2. The `expire` entry is archived (`sparklog.log.decisions.expired_ids`).
3. A week later, when no process can have the earlier state in its cache, the objects of the id are deleted. Their
   numbers are never reused, so an interrupted pass may delete them at any later time. Nothing reads the objects that a
   killed pass has not deleted.

If the id is used again, its journal continues with the next number.
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
    prune,
)
from sparklog.log.decisions.decision_log import DecisionLog, consistent_ends, consistent_snapshots, limited_to
from sparklog.log.decisions.expired_ids import ARCHIVE, ONE_WRITE, RESERVED, archive_newer, archive_of, entry_in
from sparklog.log.journal.chain import EntryChain, ids_of
from sparklog.log.journal.entry_log import KEEP_MS, Collected, collect_entries, collect_log
from sparklog.log.journal.journal import Journal
from sparklog.log.journal.names import CHECKPOINT_FOLDER, LOG_FOLDER, entry_number, id_folder
from sparklog.log.journal.seen_state import S
from sparklog.log.state.commit import TxnDecision
from sparklog.log.state.commit_intents import MaintainIntent
from sparklog.log.state.commit_log import LogState, no_topic
from sparklog.log.state.slice_table import Snapshot
from sparklog.log.topic.root import Root
from sparklog.log.topic.topic import Topic
from sparklog.storage.store import ObjectInfo, Store

FEW_COMMITS = 8
"""Maximum number of COMMITs of an id before their participants are read to find out whether they have recorded them."""


def check_not_one_write(transactional_id: str) -> str:
    if isinstance(transactional_id, str) and transactional_id.startswith(RESERVED):
        prefix = transactional_id.partition(":")[0]
        raise BadRequest(f"transactional ids that begin with '{prefix}:' are reserved; choose another id")
    return transactional_id


def resolve_topic(topic: Topic) -> tuple[TxnDecision, ...]:
    """Record the outcomes of open transactions in a topic, and abort transactions after their timeout."""
    state = topic.log.state()
    if not state.open:
        return ()
    resolved = tuple(topic.root.engine.decisions.resolve(topic.name, state))
    if resolved:
        try:
            topic.log.commit(MaintainIntent(state.topic_id, resolved=resolved), state)
        except Conflict:
            # The topic was deleted and recreated, so the outcomes of slices of the old topic are irrelevant.
            reached("transactions: a topic is recreated before outcomes are recorded in it")
            return ()
    return resolved


def visible_snapshot(topic: Topic) -> Snapshot:
    """Return the latest snapshot of a topic, limited to the records that readers see.

    Raises `NotFound` if it does not exist.

    The snapshot ends before a transaction that is not visible yet in this topic, or in a topic that shares transactions
    with this one, directly or through other topics. Rewritten slices no longer refer to their transaction. Therefore,
    if maintenance rewrote records above this end, readers of both topics would see only a part of the transaction.
    """
    engine = topic.log.engine

    def read(name: str) -> Snapshot:
        return engine.log(name).snapshot()

    raw = {topic.name: topic.log.snapshot()}
    deleted: set[str] = set()
    while True:
        # Outcomes count as recorded, so a committed transaction may not be visible even in a topic that has not
        # recorded it.
        visible, missing = consistent_snapshots(engine.decisions, raw, read)
        deleted |= missing
        if topic.name not in raw:
            raise no_topic(topic.name, topic.root.location)
        more_topics = {name for snapshot in visible.values() for name in snapshot.state.siblings} - raw.keys() - deleted
        if not more_topics:
            return limited_to(raw[topic.name], consistent_ends(visible)[topic.name])
        for name in sorted(more_topics):
            try:
                raw[name] = read(name)
            except NotFound:
                deleted.add(name)


def recorded_everywhere(root: Root, state: Decisions, *, refresh: bool | None = None) -> set[int]:
    """Return the COMMITs that have been recorded by all of their participants.

    If `refresh` is True, the latest states of the participants are read. If `refresh` is None, these states are read
    only if there are many COMMITs.
    """
    refresh = len(state.commits) > FEW_COMMITS if refresh is None else refresh
    return {item.n for item in state.commits if _all_recorded(root, state.id, item, refresh)}


def _all_recorded(root: Root, transactional_id: str, item: CommitDecision, refresh: bool) -> bool:
    topics = (_topic_recorded(root, transactional_id, item.n, prepare, refresh) for prepare in item.prepares)
    return all(topics) and all(_group_recorded(root, prepare, refresh) for prepare in item.groups)


def _group_recorded(root: Root, prepare: PreparedGroup, refresh: bool) -> bool:
    def recorded(state: GroupState) -> bool:
        return state.number >= prepare.number and all(item.number != prepare.number for item in state.pending)

    return _is_true_of(root.engine.entries(GROUPS, prepare.group), recorded, refresh)


def _topic_recorded(root: Root, transactional_id: str, n: int, prepare: Prepared, refresh: bool) -> bool:
    key = transactional_id, n, prepare.version

    def recorded(state: LogState) -> bool:
        topic_state = state.topic_state
        if topic_state.version < prepare.version:
            return False
        if topic_state.deleted or topic_state.topic_id != prepare.topic_id:
            return True
        return not any((item.txn.id, item.txn.n, item.version) == key for item in topic_state.open)

    return _is_true_of(root.engine.log(prepare.topic), recorded, refresh)


def _is_true_of(log: Journal[S, Any, Any], condition: Callable[[S], bool], refresh: bool) -> bool:
    """Return True if the condition holds for the cached state or, if `refresh` is true, for the latest state.

    Make the state durable.
    """
    state = log.known()
    try:
        if (state is None or not condition(state)) and not (refresh and condition(log.refresh())):
            return False
        log.make_durable()
        return True
    except (SparklogError, OSError):
        return False


def prune_recorded(root: Root, log: DecisionLog) -> int:
    state = log.refresh()
    recorded = recorded_everywhere(root, state, refresh=True)
    if prune(state, recorded) is None:
        return 0
    return len(state.commits) - len(log.write(lambda base: prune(base, recorded)).commits)


@dataclass
class CollectedDecisions(Collected):
    """The result of a collection. It contains the number of ids, pruned COMMITs and expired ids."""

    ids: int = 0
    forgotten: int = 0
    expired: int = 0


def transactional_ids(store: Store, failures: list[SparklogError] | None = None) -> list[str]:
    return ids_of(store, DECISIONS, failures)


def collect(
    root: Root, *, now_ms: int | None = None, expiration_ms: int | None = None, dry_run: bool = False
) -> CollectedDecisions:
    """Prune COMMITs that all topics have recorded, and delete old entries. `now_ms` is the time according to the
    store's clock.

    An entry or checkpoint is deleted if it is below the second latest readable checkpoint and seven days old. If a
    write has no transactional id, its journal is deleted once its topics have recorded its outcome and its latest entry
    is seven days old. Ids that have been idle for longer than `expiration_ms` expire. If `expiration_ms` is None, ids
    do not expire.
    """
    now_ms = root.store.now_ms() if now_ms is None else now_ms
    done = CollectedDecisions()
    expiry = ExpiryPass(root, now_ms, expiration_ms, lambda state: recorded_everywhere(root, state, refresh=True))

    def collect_one(transactional_id: str) -> None:
        log = root.engine.decisions.log(transactional_id)
        done.forgotten += 0 if dry_run else prune_recorded(root, log)
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
"""A function that returns the numbers of the COMMITs in a state that have been recorded by all of their participants.
"""


@dataclass
class ExpiryPass:
    """A pass over the ids of a root, which expires idle ids. `now_ms` is the time according to the store's clock.

    If `expiration_ms` is None, ids do not expire.
    """

    root: Root
    now_ms: int
    expiration_ms: int | None
    recorded: Recorded

    def __post_init__(self) -> None:
        self.expired: list[Decisions] = []
        self._in_use: frozenset[str] | None = None

    def visit(self, log: DecisionLog) -> None:
        """Expire an id if it has been idle for long enough.

        If the id is expired, add it to the ids that `keep` archives.
        """
        if self.expiration_ms is None or log.id.startswith(RESERVED):
            return
        state = log.refresh()
        if state.op != EXPIRE and self._is_due(log, state, self.expiration_ms):
            reached("transactions: an idle id expires")
            number, recorded = state.number, self.recorded(state)
            state = log.write(lambda base: expire(base, number, recorded))
        # If the entry no longer exists, it has been archived.
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
        """Archive the latest entries of expired ids that have not been archived yet."""
        archives: dict[str, dict[str, Decisions]] = {}
        for state in self.expired:
            if crc32c.crc32c(DECISION_JSON.encode(state)) != state.crc:
                key = self.root.engine.decisions.log(state.id).key(state.number)
                failures.append(
                    Corrupt(f"the latest entry of '{state.id}' is not in sparklog's canonical format", file=key)
                )
                continue
            archives.setdefault(archive_of(state.id), {})[state.id] = state
        for name, entries in sorted(archives.items()):
            try:
                log = self.root.engine.decisions.log(name)
                before = log.refresh().number
                if log.write(partial(archive_newer, entries=entries)).number > before:
                    # Maintenance deletes the entries below the second latest checkpoint.
                    log.write_checkpoint()
            except SparklogError as error:
                failures.append(error)

    def delete(self, done: Collected, *, dry_run: bool) -> None:
        """Delete the objects of ids that were archived at least a week ago."""
        folders = set(self.root.store.list_folders(f"{DECISIONS.folder}/"))
        for name in (f"{ARCHIVE}{digit:x}" for digit in range(16)):
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
    """Yield the ids that have an open transaction in a topic or pending offsets in a group."""
    for name in root.topics():
        yield from (item.txn.id for item in root.engine.log(name).state(refresh=False).open)
    for name in ids_of(root.store, GROUPS):
        yield from (item.txn for item in root.engine.entries(GROUPS, name).refresh().pending)


def _deletable(root: Root, archive: str, folders: Collection[str], now_ms: int) -> Iterator[ObjectInfo]:
    """Yield the objects of ids up to the entries that were archived at least a week ago, sorted by number."""
    chain = EntryChain(root.store, DECISIONS, archive, root.env)
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
        # The checkpoint of the last entry is deleted last, so that the journal is valid until then.
        yield from (info for _, _, info in sorted(numbered, key=lambda item: item[:2]))
