"""Kafka's transactions that an import found open (`sparklog.log.state.kafka_source`), under the ids of who began them.

They stand beside the root's own in every list: they hold back the same last stable offsets. Nothing ends them by
itself, since the next import may bring their markers; an operator may, and then no import can go on with their topics.

How transactions stand: what was decided under each id, what is open in which topics, and ending one by hand.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace

from sparklog.errors import Conflict, Corrupt, NotFound, SparklogError, nearest
from sparklog.groups.groups import Groups
from sparklog.groups.state import GroupState
from sparklog.log.decisions.decision import BY_OPERATOR, Decisions
from sparklog.log.decisions.decision_log import open_transactions, timeout_of
from sparklog.log.journal.clock import reading_clock_ms
from sparklog.log.journal.names import check_id
from sparklog.log.state.kafka_source import KafkaOpen
from sparklog.log.state.topic_state import Head
from sparklog.log.topic.root import Root
from sparklog.storage.locks import ask_each
from sparklog.transactions.completion import resolve_topic, transactional_ids

ONGOING = "Ongoing"
PREPARE = {"commit": "PrepareCommit", "abort": "PrepareAbort"}
"""Kafka's words."""


@dataclass(frozen=True, slots=True)
class KafkaHeld:
    """One that is open in one partition of a topic."""

    topic: str
    open: KafkaOpen


def owner_of(each: KafkaOpen) -> str:
    """Who began it: the transactional id, or `producer-7` where only the producer id is known."""
    return each.transactional_id or f"producer-{each.producer}"


def owners(heads: Mapping[str, Head]) -> set[str]:
    """Owners of everything of Kafka's that is open in these topics."""
    return {owner_of(each) for head in heads.values() for each in head.kafka_open}


def held_by(heads: Mapping[str, Head], owner: str) -> tuple[KafkaHeld, ...]:
    """What one owner has open, in the order of topics and partitions."""
    found = [KafkaHeld(topic, each) for topic, head in heads.items() for each in head.kafka_open]
    own = [each for each in found if owner_of(each.open) == owner]
    return tuple(sorted(own, key=lambda each: (each.topic, each.open.partition, each.open.producer)))


def state_of(held: tuple[KafkaHeld, ...]) -> str:
    """Kafka's word: `PrepareCommit` or `PrepareAbort` if all of it is known to be decided so, else `Ongoing`."""
    found = {each.open.decided for each in held}
    decided = found.pop() if len(found) == 1 else None
    return ONGOING if decided is None else PREPARE[decided]


def end_held(root: Root, held: tuple[KafkaHeld, ...]) -> tuple[KafkaHeld, ...]:
    """End these in their topics: as Kafka had decided, else by ABORT. Returns those that this call ended."""
    ended: list[KafkaHeld] = []
    for topic in sorted({each.topic for each in held}):
        producers = {each.open.producer for each in held if each.topic == topic}
        ended += [KafkaHeld(topic, each) for each in root.topic(topic).end_kafka_transactions(producers=producers)]
    return tuple(ended)


_LOG = logging.getLogger("sparklog.transactions")

EMPTY = "Empty"
COMMITTED = "CompleteCommit"
ABORTED = "CompleteAbort"
DAMAGED = "Corrupt"
"""Kafka's names: nothing was begun; something is open and undecided; how the newest one ended. And one of ours."""


@dataclass(frozen=True, slots=True)
class Held:
    """Slices that an undecided transaction holds open in one partition: the last stable offset stops at `first`.

    Times in ms by the store's clock: `age_ms` since the prepare; from `timeout_ms` on anybody may abort it.
    """

    topic: str
    partition: int
    first: int
    end: int
    n: int
    version: int
    age_ms: int
    timeout_ms: int


@dataclass(frozen=True, slots=True)
class Waiting:
    """A decided transaction whose outcome a topic has not recorded; readers see it as decided all the same."""

    topic: str
    n: int
    committed: bool


@dataclass(frozen=True, slots=True)
class PendingOffsets:
    """Offsets of a consumer group that transaction `n` has prepared and the group's log has not settled.

    `committed` None: undecided, and anybody may abort it from `timeout_ms` on; else readers see it as decided, and the
    group's next entry records it. `offsets`: (topic, partition, offset). Times in ms by the store's clock.
    """

    group: str
    n: int
    committed: bool | None
    age_ms: int
    timeout_ms: int
    offsets: tuple[tuple[str, int, int], ...]


@dataclass(frozen=True, slots=True)
class Standing:
    """One transactional id. `newest` is the number of its newest decision, -1: none; `reason` why that is ABORT.

    `parts`: jobs that have recorded a share of the undecided transaction. `is_open`: something of the root's own is
    undecided; `kafka`: what an import found open of the id, and `state` Kafka's word for it where that alone is open.
    """

    id: str
    state: str
    newest: int
    outcome: str | None
    reason: str | None
    time_ms: int
    instance: str | None
    batch: int | None
    held: tuple[Held, ...] = ()
    waiting: tuple[Waiting, ...] = ()
    parts: tuple[str, ...] = ()
    pending: tuple[PendingOffsets, ...] = ()
    kafka: tuple[KafkaHeld, ...] = ()
    is_open: bool = False


@dataclass(frozen=True, slots=True)
class Aborted:
    """What an operator has ended: transaction `n` of the root's own (None: none was open) and the topics it held back.

    `kafka`: Kafka's transactions, committed where Kafka had decided so, else aborted.
    """

    n: int | None
    topics: tuple[str, ...]
    kafka: tuple[KafkaHeld, ...]


def list_transactions(root: Root, failures: list[SparklogError] | None = None) -> list[Standing]:
    """All ids that have decisions, or something open in a topic or a group, in order.

    Costs a few requests per id, topic and group. The error of what cannot be read is put into `failures`, or raised: of
    a topic or a group, what it holds open is not known; an id whose decisions are damaged is in the list as such.
    """
    open_now = _Open.of(root, failures)
    ids = set(transactional_ids(root.store, failures))
    ids.update(item.txn.id for head in open_now.heads.values() for item in head.open)
    ids.update(item.txn for state in open_now.groups.values() for item in state.pending)
    ids |= owners(open_now.heads)
    found = []
    for standing, error in ask_each(root.store, lambda name: _listed(root, name, open_now), sorted(ids)):
        found.append(standing)
        if error is not None:
            if failures is None:
                raise error
            failures.append(error)
    return found


def describe_transaction(root: Root, transactional_id: str, failures: list[SparklogError]) -> Standing:
    """One id; `NotFound`, naming similar ones, if it was never used.

    The errors of topics and groups of which it cannot be told what they hold open are put into `failures`.
    """
    check_id(transactional_id, "transactional id")
    open_now = _Open.of(root, failures)
    found = _standing(root, open_now, root.decisions.log(transactional_id).refresh())
    if found.state == EMPTY and not found.time_ms:
        known = transactional_ids(root.store, [])
        similar = nearest(transactional_id, [*known, *sorted(owners(open_now.heads))])
        hint = f"; did you mean {' or '.join(map(repr, similar))}?" if similar else ""
        raise NotFound(f"transactional id '{transactional_id}' was never used in {root.location}{hint}")
    return found


def abort_transaction(root: Root, transactional_id: str, n: int | None = None) -> Aborted:
    """Abort the undecided transaction of an id, without waiting for its timeout.

    Its owner's commit fails with `Conflict`. What an import found open of the id ends as well, as Kafka had decided or
    by an ABORT marker; no import can go on with these topics then. `n`: only the root's own transaction, and only if
    that is its number. `Conflict` if nothing is open.
    """
    damaged: list[SparklogError] = []
    standing = describe_transaction(root, transactional_id, damaged)
    for error in damaged:
        _LOG.warning("what is held open there cannot be told: %s", error)
    number = standing.newest + 1
    if n is not None and n != number:
        raise Conflict(
            f"expected transaction {n} of '{transactional_id}' to be open, found decisions up to {standing.newest}; "
            "describe it"
        )
    if not standing.is_open and (n is not None or not standing.kafka):
        raise Conflict(f"no transaction of '{transactional_id}' is open; describe it")
    topics = _abort_own(root, standing, number) if standing.is_open else ()
    ended = end_held(root, standing.kafka) if n is None else ()
    return Aborted(number if standing.is_open else None, topics, ended)


def _abort_own(root: Root, standing: Standing, number: int) -> tuple[str, ...]:
    state = root.decisions.log(standing.id).abort(number, BY_OPERATOR)
    if state.commit_of(number) is not None:
        raise Conflict(f"transaction {number} of '{standing.id}' was committed meanwhile")
    topics = sorted({item.topic for item in standing.held})
    for name in topics:
        resolve_topic(root.topic(name))
    for item in standing.pending:
        Groups(root).group(item.group).settle()
    return tuple(topics)


@dataclass(frozen=True, slots=True)
class _Open:
    """The newest states of the topics and groups in which transactions hold something open."""

    heads: dict[str, Head]
    groups: dict[str, GroupState]

    @staticmethod
    def of(root: Root, failures: list[SparklogError] | None) -> _Open:
        groups = Groups(root)
        heads = {name: root.topic_handle(name).head(refresh=False) for name in root.topics(failures)}
        states = {name: groups.group(name).log.current() for name in groups.names(failures)}
        return _Open(
            {name: head for name, head in heads.items() if head.open or head.kafka_open},
            {name: state for name, state in states.items() if state.pending},
        )


def _listed(root: Root, name: str, open_now: _Open) -> tuple[Standing, SparklogError | None]:
    try:
        return _standing(root, open_now, root.decisions.log(name).refresh()), None
    except Corrupt as error:
        return replace(_standing(root, open_now, Decisions(name)), state=DAMAGED), error


def _standing(root: Root, open_now: _Open, state: Decisions) -> Standing:
    name = state.id
    pending = _pending(root, open_now.groups, state)
    held: list[Held] = []
    waiting: list[Waiting] = []
    now_ms: int | None = None
    for topic, head in sorted(open_now.heads.items()):
        for (owner, n), prepares in open_transactions(head).items():
            if owner != name:
                continue
            if state.decided(n):
                committed = bool(state.resolved(topic, head.topic_id, n).committed)
                waiting.append(Waiting(topic, n, committed))
                continue
            now_ms = reading_clock_ms(root.store, root.env) if now_ms is None else now_ms
            for item in prepares:
                age = max(0, now_ms - root.decisions.prepared_ms(topic, item))
                held += [
                    Held(topic, partition, first, item.end[partition], n, item.version, age, timeout_of(item))
                    for partition, first in sorted(item.first.items())
                ]
    of_kafka = held_by(open_now.heads, name)
    own = _state(state, bool(held) or any(item.committed is None for item in pending))
    return Standing(
        id=name,
        state=state_of(of_kafka) if of_kafka and own != ONGOING else own,
        newest=state.newest,
        outcome=_outcome(state),
        reason=state.reason,
        time_ms=state.made_ms,
        instance=state.run,
        batch=state.batch,
        held=tuple(held),
        waiting=tuple(waiting),
        parts=tuple(dict.fromkeys(item.part or "" for item in state.prepared)),
        pending=pending,
        kafka=of_kafka,
        is_open=own == ONGOING,
    )


def _outcome(state: Decisions) -> str | None:
    if state.newest < 0:
        return None
    return "abort" if state.commit_of(state.newest) is None else "commit"


def _state(state: Decisions, is_open: bool) -> str:
    if is_open or state.prepared or state.prepared_groups:
        return ONGOING
    return {None: EMPTY, "commit": COMMITTED, "abort": ABORTED}[_outcome(state)]


def _pending(root: Root, groups: Mapping[str, GroupState], state: Decisions) -> tuple[PendingOffsets, ...]:
    found = []
    for name, group in sorted(groups.items()):
        for item in group.pending:
            if item.txn != state.id:
                continue
            committed = state.commits_group(item.n, name, item.number) if state.decided(item.n) else None
            age = Groups(root).group(name).pending_ms(item)
            offsets = tuple(
                (each.topic, partition, offset)
                for each in item.offsets
                for partition, offset in zip(each.partition, each.offset, strict=True)
            )
            found.append(PendingOffsets(name, item.n, committed, age, item.timeout_ms, offsets))
    return tuple(found)
