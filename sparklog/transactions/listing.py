"""How transactions stand: what was decided under each id, what is open in which topics, and ending one by hand."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace

from sparklog.errors import Conflict, Corrupt, NotFound, SparklogError
from sparklog.log.decision import BY_OPERATOR, Decisions
from sparklog.log.decision_logs import open_transactions, timeout_of
from sparklog.log.head import Head
from sparklog.log.names import check_id, nearest
from sparklog.log.root import Root
from sparklog.transactions.completion import resolve_topic, transactional_ids

__all__ = [
    "ABORTED",
    "COMMITTED",
    "DAMAGED",
    "EMPTY",
    "ONGOING",
    "Held",
    "Standing",
    "Waiting",
    "abort_transaction",
    "describe_transaction",
    "list_transactions",
]

_LOG = logging.getLogger("sparklog.transactions")

EMPTY = "Empty"
ONGOING = "Ongoing"
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
class Standing:
    """One transactional id. `newest` is the number of its newest decision, -1: none; `reason` why that is ABORT.

    `parts`: jobs that have recorded a share of the undecided transaction.
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
    offsets: tuple[tuple[str, str, int, int], ...] = ()
    """(group, topic, partition, offset) that its COMMITs have sent, newest each."""


def list_transactions(root: Root) -> list[Standing]:
    """All ids that have decisions, or open slices in some topic, in order. Costs a few requests per id and topic.

    One whose decisions are damaged is shown as such, with a warning that names the file.
    """
    heads = _heads(root)
    damaged: list[SparklogError] = []
    ids = set(transactional_ids(root.store, damaged))
    for error in damaged:
        _LOG.warning("a transactional id cannot be read: %s", error)
    ids.update(item.txn.id for head in heads.values() for item in head.open)
    return [_listed(root, name, heads) for name in sorted(ids)]


def describe_transaction(root: Root, transactional_id: str) -> Standing:
    """One id; `NotFound`, naming similar ones, if it was never used."""
    check_id(transactional_id, "transactional id")
    found = _standing(root, _heads(root), root.decisions.log(transactional_id).refresh())
    if found.state == EMPTY and not found.time_ms:
        similar = nearest(transactional_id, list(transactional_ids(root.store)))
        hint = f"; did you mean {' or '.join(map(repr, similar))}?" if similar else ""
        raise NotFound(f"transactional id '{transactional_id}' was never used in {root.location}{hint}")
    return found


def abort_transaction(root: Root, transactional_id: str, n: int | None = None) -> tuple[int, list[str]]:
    """Abort the undecided transaction of an id, without waiting for its timeout; its number and the topics it held.

    Its owner's commit fails with `Conflict`. `n`: only if that is its number. `Conflict` if nothing is open.
    """
    standing = describe_transaction(root, transactional_id)
    number = standing.newest + 1
    if n is not None and n != number:
        raise Conflict(
            f"expected transaction {n} of '{transactional_id}' to be open, found decisions up to {standing.newest}; "
            "describe it"
        )
    if standing.state != ONGOING:
        raise Conflict(f"no transaction of '{transactional_id}' is open: the newest, {standing.newest}, is decided")
    state = root.decisions.log(transactional_id).abort(number, BY_OPERATOR)
    if state.commit_of(number) is not None:
        raise Conflict(f"transaction {number} of '{transactional_id}' was committed meanwhile")
    topics = sorted({item.topic for item in standing.held})
    for name in topics:
        resolve_topic(root.topic(name))
    return number, topics


def _heads(root: Root) -> dict[str, Head]:
    return {name: root.topic_handle(name).head(refresh=False) for name in root.topics()}


def _listed(root: Root, name: str, heads: dict[str, Head]) -> Standing:
    try:
        return _standing(root, heads, root.decisions.log(name).refresh())
    except Corrupt as error:
        _LOG.warning("the decisions of '%s' cannot be read: %s", name, error)
        return replace(_standing(root, heads, Decisions(name)), state=DAMAGED)


def _standing(root: Root, heads: dict[str, Head], state: Decisions) -> Standing:
    name = state.id
    held: list[Held] = []
    waiting: list[Waiting] = []
    now_ms: int | None = None
    for topic, head in sorted(heads.items()):
        for (owner, n), prepares in open_transactions(head).items():
            if owner != name:
                continue
            if state.decided(n):
                committed = bool(state.resolved(topic, head.topic_id, n).committed)
                waiting.append(Waiting(topic, n, committed))
                continue
            now_ms = root.store.now_ms() if now_ms is None else now_ms
            for item in prepares:
                age = max(0, now_ms - root.decisions.prepared_ms(topic, item))
                held += [
                    Held(topic, partition, first, item.end[partition], n, item.version, age, timeout_of(item))
                    for partition, first in sorted(item.first.items())
                ]
    return Standing(
        id=name,
        state=_state(state, held),
        newest=state.newest,
        outcome=_outcome(state),
        reason=state.reason,
        time_ms=state.time_ms,
        instance=state.run,
        batch=state.batch,
        held=tuple(held),
        waiting=tuple(waiting),
        parts=tuple(dict.fromkeys(item.part or "" for item in state.prepared)),
        offsets=_offsets(state),
    )


def _outcome(state: Decisions) -> str | None:
    if state.newest < 0:
        return None
    return "abort" if state.commit_of(state.newest) is None else "commit"


def _state(state: Decisions, held: Sequence[Held]) -> str:
    if held or state.prepared:
        return ONGOING
    return {None: EMPTY, "commit": COMMITTED, "abort": ABORTED}[_outcome(state)]


def _offsets(state: Decisions) -> tuple[tuple[str, str, int, int], ...]:
    found: dict[tuple[str, str, int], int] = {}
    for item in state.commits:
        for part in item.offsets:
            for partition, offset in zip(part.partition, part.offset, strict=True):
                found[part.group, part.topic, partition] = offset
    return tuple((*place, offset) for place, offset in sorted(found.items()))
