"""Listing of transactions: decisions under each id, what is open in which topics, and ending one by hand.

Transactions of Kafka's that an import left open (`sparklog.log.state.commit`) are listed with the root's: they
hold back the same last stable offsets. They do not time out, since the next import may bring their markers. An operator
may end them; then no import can go on with their topics.
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
from sparklog.log.decisions.expired_ids import REGISTER
from sparklog.log.journal.clocks import reading_clock_ms
from sparklog.log.journal.names import check_id
from sparklog.log.state.kafka_source import KafkaOpen
from sparklog.log.state.topic_state import TopicState
from sparklog.log.topic.root import Root
from sparklog.storage.parallel_reads import map_requests
from sparklog.transactions.completion import resolve_topic, transactional_ids

_LOG = logging.getLogger("sparklog.transactions")
EMPTY, ONGOING, COMMITTED, ABORTED, DEAD = "Empty", "Ongoing", "CompleteCommit", "CompleteAbort", "Dead"
"""Kafka's words for the state of a transactional id."""
PREPARE = {"commit": "PrepareCommit", "abort": "PrepareAbort"}


@dataclass(frozen=True, slots=True)
class KafkaTransaction:
    topic: str
    open: KafkaOpen


def owner_of(transaction: KafkaOpen) -> str:
    """Return the transactional id, or `producer-7` where only the producer id is known."""
    return transaction.transactional_id or f"producer-{transaction.producer}"


def _end_kafka(root: Root, transactions: Sequence[KafkaTransaction]) -> tuple[KafkaTransaction, ...]:
    """End transactions of Kafka's in their topics: as Kafka had decided, else by ABORT. Return those ended here."""
    ended: list[KafkaTransaction] = []
    for topic in sorted({transaction.topic for transaction in transactions}):
        producers = {transaction.open.producer for transaction in transactions if transaction.topic == topic}
        done = root.topic(topic).end_kafka_transactions(producers=producers)
        ended += [KafkaTransaction(topic, transaction) for transaction in done]
    return tuple(ended)


@dataclass(frozen=True, slots=True)
class HeldPartition:
    """Slices that an undecided transaction holds open in one partition; times in ms."""

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
    """A decided transaction whose outcome a topic has not recorded; readers see it as decided all the same."""

    topic: str
    n: int
    committed: bool


@dataclass(frozen=True, slots=True)
class PendingOffsets:
    """Offsets of a group that transaction `n` has prepared and the group's journal has not settled. Store's clock."""

    group: str
    n: int
    committed: bool | None  # None: undecided; else readers see it so, and the group's next entry records it
    age_ms: int
    timeout_ms: int  # from then on any process may abort it
    offsets: tuple[tuple[str, int, int], ...]  # (topic, partition, offset)


@dataclass(frozen=True, slots=True)
class TransactionDescription:
    """The state of a transactional id."""

    id: str
    state: str  # Kafka's word for `kafka` where only these are open
    newest: int  # number of its newest decision, -1: none
    outcome: str | None
    reason: str | None  # why that is ABORT
    time_ms: int
    instance: str | None
    batch: int | None
    held: tuple[HeldPartition, ...] = ()
    waiting: tuple[UnrecordedOutcome, ...] = ()
    pending: tuple[PendingOffsets, ...] = ()
    kafka: tuple[KafkaTransaction, ...] = ()  # that an import left open
    is_open: bool = False  # a transaction of the root itself is undecided


@dataclass(frozen=True, slots=True)
class Aborted:
    """Ended transactions: `n` of the root (None: none), its topics, and Kafka's, committed where Kafka decided so."""

    n: int | None
    topics: tuple[str, ...]
    kafka: tuple[KafkaTransaction, ...]


def list_transactions(root: Root, failures: list[SparklogError] | None = None) -> list[TransactionDescription]:
    """List all ids that have decisions, or a transaction open in a topic or a group, in order."""
    open_now = _Open.of(root, failures)
    ids = {name for name in transactional_ids(root.store, failures) if not name.startswith(REGISTER)}
    ids.update(item.txn.id for topic_state in open_now.heads.values() for item in topic_state.open)
    ids.update(item.txn for state in open_now.groups.values() for item in state.pending)
    ids.update(open_now.kafka_owners())
    listed = list(map_requests(root.store, lambda name: _listed(root, name, open_now), sorted(ids)))
    for error in (error for _, error in listed if error is not None):
        if failures is None:
            raise error
        failures.append(error)
    return [description for description, _ in listed]


def describe_transaction(root: Root, transactional_id: str, failures: list[SparklogError]) -> TransactionDescription:
    """Describe one id; `NotFound`, naming similar ones, if it was never used. `failures`: of topics and groups."""
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
    """Abort the undecided transaction of an id, without waiting for its timeout.

    Its owner's commit fails with `Conflict`. Transactions of the id that an import left open end as well, as Kafka had
    decided or by an ABORT marker; no import can go on with these topics then. `n`: only the transaction of the root
    itself, and only if that is its number. `Conflict` if none is open.
    """
    damaged: list[SparklogError] = []
    description = describe_transaction(root, transactional_id, damaged)
    for error in damaged:
        _LOG.warning("its open transactions are not known: %s", error)
    number = description.newest + 1
    if n is not None and n != number:
        raise Conflict(
            f"expected transaction {n} of '{transactional_id}' to be open, found decisions up to {description.newest}; "
            "describe it"
        )
    if not description.is_open and (n is not None or not description.kafka):
        raise Conflict(f"no transaction of '{transactional_id}' is open; describe it")
    topics = _abort_here(root, description, number) if description.is_open else ()
    ended = _end_kafka(root, description.kafka) if n is None else ()
    return Aborted(number if description.is_open else None, topics, ended)


def _abort_here(root: Root, description: TransactionDescription, number: int) -> tuple[str, ...]:
    state = root.engine.decisions.log(description.id).abort(number, BY_OPERATOR)
    if state.commit_of(number) is not None:
        raise Conflict(f"transaction {number} of '{description.id}' was committed meanwhile")
    topics = sorted({item.topic for item in description.held})
    for name in topics:
        resolve_topic(root.topic(name))
    for item in description.pending:
        Groups(root).group(item.group).settle()
    return tuple(topics)


@dataclass(frozen=True, slots=True)
class _Open:
    """The newest states of the topics and groups in which transactions hold something open."""

    heads: dict[str, TopicState]
    groups: dict[str, GroupState]

    @staticmethod
    def of(root: Root, failures: list[SparklogError] | None) -> _Open:
        groups = Groups(root)
        heads = {name: root.engine.log(name).state(refresh=False) for name in root.topics(failures)}
        states = {name: groups.group(name).log.current() for name in groups.names(failures)}
        return _Open(
            {name: topic_state for name, topic_state in heads.items() if topic_state.open or topic_state.kafka_open},
            {name: state for name, state in states.items() if state.pending},
        )

    def kafka_owners(self) -> set[str]:
        return {owner_of(transaction) for state in self.heads.values() for transaction in state.kafka_open}

    def kafka_of(self, owner: str) -> tuple[KafkaTransaction, ...]:
        transactions = (
            KafkaTransaction(topic, transaction)
            for topic, state in self.heads.items()
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
    held, waiting = _held_and_waiting(root, open_now, state)
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
        time_ms=state.made_ms,
        instance=state.run,
        batch=state.batch,
        held=held,
        waiting=waiting,
        pending=pending,
        kafka=of_kafka,
        is_open=is_open,
    )


def _state_name(state: Decisions, is_open: bool, outcome: str | None, decided_by_kafka: AbstractSet[str | None]) -> str:
    """Return Kafka's name of a transactional id's state; `decided_by_kafka`: of transactions that an import left open.

    These are decided where Kafka's decision is known of all of them, and the same.
    """
    if is_open:
        return ONGOING
    if decided_by_kafka:
        (decided,) = decided_by_kafka if len(decided_by_kafka) == 1 else {None}
        return ONGOING if decided is None else PREPARE[decided]
    if state.op == EXPIRE:
        return DEAD
    return {None: EMPTY, "commit": COMMITTED, "abort": ABORTED}[outcome]


def _held_and_waiting(
    root: Root, open_now: _Open, state: Decisions
) -> tuple[tuple[HeldPartition, ...], tuple[UnrecordedOutcome, ...]]:
    """Return the partitions that an id's undecided transactions hold back, and decided ones that topics wait for."""
    held: list[HeldPartition] = []
    waiting: list[UnrecordedOutcome] = []
    now_ms: int | None = None
    for topic, topic_state in open_now.heads.items():
        for (owner, n), prepares in open_transactions(topic_state).items():
            if owner != state.id:
                continue
            if state.decided(n):
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
            committed = state.commits_group(item.n, name, item.number) if state.decided(item.n) else None
            age = Groups(root).group(name).pending_ms(item)
            offsets = tuple(position for offsets_of_topic in item.offsets for position in offsets_of_topic.positions())
            prepared.append(PendingOffsets(name, item.n, committed, age, item.timeout_ms, offsets))
    return tuple(prepared)
