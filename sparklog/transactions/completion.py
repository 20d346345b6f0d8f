"""Maintenance of transactions: outcomes in quiet topics, timeouts, COMMITs to forget, idle ids, old entries.

Readers ask the decision log of an open transaction, and every commit to a topic records the outcomes of transactions
that are open there. Only a topic without writers waits for the pass here, to record outcomes and to time out.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sparklog.errors import BadRequest, Conflict, NotFound, SparklogError
from sparklog.groups.group_state import GROUPS, GroupState
from sparklog.log.decisions.decision import DECISIONS, CommitDecision, Decisions, Prepared, PreparedGroup, forget
from sparklog.log.decisions.decision_log import DecisionLog, held_back, settle, whole_ends
from sparklog.log.decisions.expired_ids import OF_SPARKLOG, ONE_WRITE
from sparklog.log.journal.chain import ids_of
from sparklog.log.journal.entry_log import collect_entries, collect_log
from sparklog.log.journal.journal import Journal, S
from sparklog.log.state.commit import Resolved
from sparklog.log.state.commit_intents import MaintainIntent
from sparklog.log.state.commit_log import LogState, no_topic
from sparklog.log.state.slice_table import Snapshot
from sparklog.log.topic.root import Root
from sparklog.log.topic.topic import Topic
from sparklog.storage.store import Store
from sparklog.transactions.expiry import ExpiryPass

FEW_COMMITS = 8
"""COMMITs that may wait before topics are asked whether they have recorded them."""


def check_not_one_write(transactional_id: str) -> str:
    if isinstance(transactional_id, str) and transactional_id.startswith(OF_SPARKLOG):
        prefix = transactional_id.partition(":")[0]
        raise BadRequest(f"transactional ids that begin with '{prefix}:' are sparklog's own; choose another one")
    return transactional_id


def resolve_topic(topic: Topic) -> tuple[Resolved, ...]:
    """Record the outcomes of open transactions in a topic, and abort those past their timeout."""
    head = topic.log.head()
    if not head.open:
        return ()
    resolved = tuple(topic.root.engine.decisions.resolve(topic.name, head))
    if resolved:
        try:
            topic.log.commit(MaintainIntent(head.topic_id, resolved=resolved), head)
        except Conflict:
            # Deleted and created again meanwhile: outcomes of the old topic's slices mean nothing here.
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
        shown, missing = settle(engine.decisions, raw, take)
        gone |= missing
        if topic.name not in raw:
            raise no_topic(topic.name, topic.root.location)
        further = {name for snapshot in shown.values() for name in snapshot.head.siblings} - raw.keys() - gone
        if not further:
            return held_back(raw[topic.name], whole_ends(shown)[topic.name])
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
        head = state.head
        if head.version < prepare.version:
            return False
        if head.deleted or head.topic_id != prepare.topic_id:
            return True
        return not any((item.txn.id, item.txn.n, item.version) == key for item in head.open)

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


@dataclass(frozen=True, slots=True)
class Collected:
    """The outcome of a collection: ids, COMMITs forgotten, ids expired, objects deleted (dry: to be), failures."""

    ids: int = 0
    forgotten: int = 0
    expired: int = 0
    objects: int = 0
    nbytes: int = 0
    failures: tuple[SparklogError, ...] = ()


def transactional_ids(store: Store, failures: list[SparklogError] | None = None) -> list[str]:
    return ids_of(store, DECISIONS, failures)


def collect(
    root: Root, *, now_ms: int | None = None, expiration_ms: int | None = None, dry_run: bool = False
) -> Collected:
    """Forget COMMITs that all topics have recorded, then delete old entries. `now_ms`: the store's clock.

    An entry or checkpoint is deleted when it is below the second newest checkpoint that can be read, and is seven
    days old. The journal of a single write is deleted once its topics have recorded it, when its newest entry is that
    old. Ids that were idle for longer than `expiration_ms` expire; None: none does.
    """
    now_ms = root.store.now_ms() if now_ms is None else now_ms
    ids = forgotten = objects = nbytes = 0
    failures: list[SparklogError] = []
    expiry = ExpiryPass(root, now_ms, expiration_ms, lambda state: recorded_everywhere(root, state, ask=True))
    for transactional_id in transactional_ids(root.store, failures):
        log = root.engine.decisions.log(transactional_id)
        ids += 1
        try:
            forgotten += 0 if dry_run else forget_recorded(root, log)
            is_over = transactional_id.startswith(ONE_WRITE) and _is_over(root, log)
            deleted = (collect_log if is_over else collect_entries)(log, now_ms, dry_run=dry_run)
            objects, nbytes = objects + deleted[0], nbytes + deleted[1]
            if not dry_run and not is_over:
                expiry.visit(log)
        except SparklogError as error:
            failures.append(error)
    expiry.keep(failures)
    deleted = expiry.delete(failures, dry_run=dry_run)
    return Collected(ids, forgotten, len(expiry.expired), objects + deleted[0], nbytes + deleted[1], tuple(failures))


def _is_over(root: Root, log: DecisionLog) -> bool:
    state = log.refresh()
    undecided = state.prepared or state.prepared_groups
    return not undecided and all(_all_recorded(root, state.id, item, True) for item in state.commits)
