"""List and describe transactions: the decisions and the open transactions of each id. Abort a transaction manually.

If an import left Kafka transactions open (`sparklog.log.state.commit`), they are listed together with the root's own
transactions, because they also limit the last stable offsets. Kafka transactions do not time out, because the next
import may add their markers. An administrator can end them. After that, an import can no longer continue with their
topics.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace

from sparklog.errors import Conflict, Corrupt, NotFound, SparklogError, nearest
from sparklog.groups.group_state import GroupState
from sparklog.groups.lag import Groups
from sparklog.log.decisions.decision import BY_OPERATOR, EXPIRE, Decisions
from sparklog.log.decisions.decision_log import open_transactions, timeout_of
from sparklog.log.decisions.expired_ids import ARCHIVE
from sparklog.log.journal.clocks import reading_clock_ms
from sparklog.log.journal.names import check_id
from sparklog.log.state.kafka_source import KafkaOpen
from sparklog.log.state.topic_state import TopicState
from sparklog.log.topic.root import Root
from sparklog.storage.parallel_reads import map_requests
from sparklog.transactions.completion import resolve_topic, transactional_ids

_LOG = logging.getLogger("sparklog.transactions")
EMPTY, ONGOING, COMMITTED, ABORTED, DEAD = "Empty", "Ongoing", "CompleteCommit", "CompleteAbort", "Dead"
"""Kafka's names for the state of a transactional id."""
PREPARE = {"commit": "PrepareCommit", "abort": "PrepareAbort"}


@dataclass(frozen=True, slots=True)
class KafkaTransaction:
    """A transaction that Kafka left open in one partition of an imported topic."""

    topic: str
    open: KafkaOpen


def owner_of(transaction: KafkaOpen) -> str:
    """Return the transactional id, or `producer-7` if only the producer id is known."""
    return transaction.transactional_id or f"producer-{transaction.producer}"


def _end_kafka(root: Root, transactions: Sequence[KafkaTransaction]) -> tuple[KafkaTransaction, ...]:
    """End Kafka transactions in their topics, and return the ended transactions.

    A transaction is ended with Kafka's decision if it is known, otherwise with ABORT.
    """
    ended: list[KafkaTransaction] = []
    for topic in sorted({transaction.topic for transaction in transactions}):
        producers = {transaction.open.producer for transaction in transactions if transaction.topic == topic}
        done = root.topic(topic).end_kafka_transactions(producers=producers)
        ended += [KafkaTransaction(topic, transaction) for transaction in done]
    return tuple(ended)


@dataclass(frozen=True, slots=True)
class HeldPartition:
    """The open slices of an undecided transaction in one partition. All times are in ms."""

    topic: str
    partition: int
    first: int
    end: int
    n: int
    version: int
    age_ms: int
    timeout_ms: int


@dataclass(frozen=True, slots=True)
class UnrecordedOutcome:
    """A decided transaction whose outcome a topic has not recorded yet. Readers already see the outcome."""

    topic: str
    n: int
    committed: bool


@dataclass(frozen=True, slots=True)
class PendingOffsets:
    """Offsets that transaction `n` has prepared in a group that has not recorded the outcome yet."""

    group: str
    n: int
    # None if the transaction is undecided. Otherwise, readers see the outcome, and the next entry of the group records
    # it.
    committed: bool | None
    age_ms: int  # age according to the store's clock
    timeout_ms: int  # any process may abort the transaction after this time
    offsets: tuple[tuple[str, int, int], ...]  # (topic, partition, offset)


@dataclass(frozen=True, slots=True)
class TransactionDescription:
    """The state of a transactional id."""

    id: str
    state: str  # Kafka's name for the state; the state of `kafka` if only these transactions are open
    newest: int  # number of the latest decision; -1 if there is none
    outcome: str | None
    reason: str | None  # why the outcome is ABORT
    time_ms: int
    instance: str | None
    batch: int | None
    held: tuple[HeldPartition, ...] = ()
    waiting: tuple[UnrecordedOutcome, ...] = ()
    pending: tuple[PendingOffsets, ...] = ()
    kafka: tuple[KafkaTransaction, ...] = ()  # transactions that an import left open
    is_open: bool = False  # a transaction of the root itself is undecided


@dataclass(frozen=True, slots=True)
class Aborted:
    """The transactions that were ended: transaction `n` of the root with its topics, and Kafka transactions. `n` is
    None if no transaction of the root was ended.

    If Kafka had decided to commit a Kafka transaction, it is committed.
    """

    n: int | None
    topics: tuple[str, ...]
    kafka: tuple[KafkaTransaction, ...]


def list_transactions(root: Root, failures: list[SparklogError] | None = None) -> list[TransactionDescription]:
    """List all ids that have decisions or an open transaction, sorted by id."""
    open_now = _Open.of(root, failures)
    ids = {name for name in transactional_ids(root.store, failures) if not name.startswith(ARCHIVE)}
    ids.update(item.txn.id for topic_state in open_now.topics.values() for item in topic_state.open)
    ids.update(item.txn for state in open_now.groups.values() for item in state.pending)
    ids.update(open_now.kafka_owners())
    listed = list(map_requests(root.store, lambda name: _listed(root, name, open_now), sorted(ids)))
    for error in (error for _, error in listed if error is not None):
        if failures is None:
            raise error
        failures.append(error)
    return [description for description, _ in listed]


def describe_transaction(root: Root, transactional_id: str, failures: list[SparklogError]) -> TransactionDescription:
    """Describe an id. If the id was never used, `NotFound` is raised. Its message suggests similar ids.

    The errors of unreadable topics and groups are added to `failures`.
    """
    check_id(transactional_id, "transactional id")
    open_now = _Open.of(root, failures)
    description = _describe(root, open_now, root.engine.decisions.log(transactional_id).refresh())
    if description.state == EMPTY and not description.time_ms:
        used = transactional_ids(root.store, [])
        similar = nearest(transactional_id, [*used, *sorted(open_now.kafka_owners())])
        hint = f"; did you mean {' or '.join(map(repr, similar))}?" if similar else ""
        raise NotFound(f"transactional id '{transactional_id}' was never used in {root.location}{hint}")
    return description


def abort_transaction(root: Root, transactional_id: str, n: int | None = None) -> Aborted:
    """Abort the undecided transaction of an id without waiting for its timeout.

    The commit of the owner will fail with `Conflict`. If an import left Kafka transactions of the id open, they are
    also ended, with Kafka's decision or with an ABORT marker. After that, no import can continue with their topics. If
    `n` is given, only the root's own transaction is aborted, and only if it has this number. Raises `Conflict` if no
    transaction is open.
    """
    damaged: list[SparklogError] = []
    description = describe_transaction(root, transactional_id, damaged)
    for error in damaged:
        _LOG.warning("cannot read all open transactions of the id: %s", error)
    number = description.newest + 1
    if n is not None and n != number:
        raise Conflict(
            f"transaction {n} of '{transactional_id}' is not open: the latest decision is {description.newest}; "
            "describe the id"
        )
    if not description.is_open and (n is not None or not description.kafka):
        raise Conflict(f"no transaction of '{transactional_id}' is open; describe the id")
    topics = _abort_here(root, description, number) if description.is_open else ()
    ended = _end_kafka(root, description.kafka) if n is None else ()
    return Aborted(number if description.is_open else None, topics, ended)


def _abort_here(root: Root, description: TransactionDescription, number: int) -> tuple[str, ...]:
    state = root.engine.decisions.log(description.id).abort(number, BY_OPERATOR)
    if state.commit_of(number) is not None:
        raise Conflict(f"transaction {number} of '{description.id}' was committed in the meantime")
    topics = sorted({item.topic for item in description.held})
    for name in topics:
        resolve_topic(root.topic(name))
    for item in description.pending:
        Groups(root).group(item.group).resolve_pending()
    return tuple(topics)


@dataclass(frozen=True, slots=True)
class _Open:
    """The latest states of the topics and groups that have open transactions."""

    topics: dict[str, TopicState]
    groups: dict[str, GroupState]

    @staticmethod
    def of(root: Root, failures: list[SparklogError] | None) -> _Open:
        groups = Groups(root)
        topics = {name: root.engine.log(name).state(refresh=False) for name in root.topics(failures)}
        states = {name: groups.group(name).log.current() for name in groups.names(failures)}
        return _Open(
            {name: topic_state for name, topic_state in topics.items() if topic_state.open or topic_state.kafka_open},
            {name: state for name, state in states.items() if state.pending},
        )

    def kafka_owners(self) -> set[str]:
        return {owner_of(transaction) for state in self.topics.values() for transaction in state.kafka_open}

    def kafka_of(self, owner: str) -> tuple[KafkaTransaction, ...]:
        transactions = (
            KafkaTransaction(topic, transaction)
            for topic, state in self.topics.items()
            for transaction in state.kafka_open
            if owner_of(transaction) == owner
        )
        return tuple(sorted(transactions, key=lambda item: (item.topic, item.open.partition, item.open.producer)))


def _listed(root: Root, name: str, open_now: _Open) -> tuple[TransactionDescription, SparklogError | None]:
    try:
        return _describe(root, open_now, root.engine.decisions.log(name).refresh()), None
    except Corrupt as error:
        return replace(_describe(root, open_now, Decisions(name)), state="Corrupt"), error


def _describe(root: Root, open_now: _Open, state: Decisions) -> TransactionDescription:
    held, waiting = _open_and_unrecorded(root, open_now, state)
    pending = _pending(root, open_now.groups, state)
    of_kafka = open_now.kafka_of(state.id)
    is_open = bool(held or state.prepared or state.prepared_groups) or any(item.committed is None for item in pending)
    outcome = None if state.newest < 0 else "abort" if state.commit_of(state.newest) is None else "commit"
    return TransactionDescription(
        id=state.id,
        state=_state_name(state, is_open, outcome, {item.open.decided for item in of_kafka}),
        newest=state.newest,
        outcome=outcome,
        reason=state.reason,
        time_ms=state.created_ms,
        instance=state.run,
        batch=state.batch,
        held=held,
        waiting=waiting,
        pending=pending,
        kafka=of_kafka,
        is_open=is_open,
    )


def _state_name(state: Decisions, is_open: bool, outcome: str | None, decided_by_kafka: AbstractSet[str | None]) -> str:
    """Return Kafka's name for the state of a transactional id.

    `decided_by_kafka` contains Kafka's decisions (None if unknown) about the transactions that an import left open.
    These transactions count as decided if Kafka's decision is known and the same for all of them.
    """
    if is_open:
        return ONGOING
    if decided_by_kafka:
        (decided,) = decided_by_kafka if len(decided_by_kafka) == 1 else {None}
        return ONGOING if decided is None else PREPARE[decided]
    if state.op == EXPIRE:
        return DEAD
    return {None: EMPTY, "commit": COMMITTED, "abort": ABORTED}[outcome]


def _open_and_unrecorded(
    root: Root, open_now: _Open, state: Decisions
) -> tuple[tuple[HeldPartition, ...], tuple[UnrecordedOutcome, ...]]:
    """Return the open slices of an id's undecided transactions, and its decided transactions that topics have not
    recorded.
    """
    held: list[HeldPartition] = []
    waiting: list[UnrecordedOutcome] = []
    now_ms: int | None = None
    for topic, topic_state in open_now.topics.items():
        for (owner, n), prepares in open_transactions(topic_state).items():
            if owner != state.id:
                continue
            if state.is_decided(n):
                committed = bool(state.resolved(topic, topic_state.topic_id, n).committed)
                waiting.append(UnrecordedOutcome(topic, n, committed))
                continue
            now_ms = reading_clock_ms(root.store, root.env) if now_ms is None else now_ms
            for item in prepares:
                age = max(0, now_ms - root.engine.decisions.prepared_ms(topic, item))
                held += [
                    HeldPartition(topic, partition, first, item.end[partition], n, item.version, age, timeout_of(item))
                    for partition, first in sorted(item.first.items())
                ]
    return tuple(held), tuple(waiting)


def _pending(root: Root, groups: Mapping[str, GroupState], state: Decisions) -> tuple[PendingOffsets, ...]:
    prepared = []
    for name, group in groups.items():
        for item in group.pending:
            if item.txn != state.id:
                continue
            committed = state.commits_group(item.n, name, item.number) if state.is_decided(item.n) else None
            age = Groups(root).group(name).pending_ms(item)
            offsets = tuple(position for offsets_of_topic in item.offsets for position in offsets_of_topic.positions())
            prepared.append(PendingOffsets(name, item.n, committed, age, item.timeout_ms, offsets))
    return tuple(prepared)
