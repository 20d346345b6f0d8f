"""A process dies before and after each request of a transaction, one by one; whoever comes next ends it."""

from __future__ import annotations

from contextlib import suppress

import pytest

from sparklog.storage.faulty import Call, Crash, Fault, FaultKind, FaultyStore
from sparklog.transactions import transactional
from sparklog.transactions.completion import resolve_topic
from tests.transactions.house import House, rows

KINDS = (FaultKind.CRASH_BEFORE, FaultKind.CRASH_AFTER)


def work(house: House, store: FaultyStore) -> None:
    """Two transactions over two topics; the second records what the first decided."""
    producer = transactional(house.root(store), "job", timeout_ms=1000)
    for number in range(2):
        transaction = producer.begin()
        for name in ("a", "b"):
            transaction.append(name, rows(f"{number}"))
        transaction.commit()


def calls() -> list[str]:
    """Labels of the requests, in order."""
    house = House()
    store = FaultyStore(house.store, lambda call: None)
    labels: list[str] = []

    def note(call: Call) -> None:
        labels.append(f"{call.label}{' of a decision' if '_transactions' in call.key else ''}")

    store.decide = note  # type: ignore[assignment]
    work(house, store)
    return labels


POINTS = calls()


def test_the_steps_are_all_there() -> None:
    assert POINTS.count("create:commit") == 4
    assert POINTS.count("create:commit of a decision") == 3


@pytest.mark.parametrize("completion", ["next instance", "timeout", "reader"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("point", range(len(POINTS)))
def test_all_of_each_transaction_or_none(point: int, kind: FaultKind, completion: str) -> None:
    house = House()
    store = FaultyStore(house.store, lambda call: Fault(kind) if call.number == point else None)
    # What follows a request that finds nothing is as good as its crash.
    with suppress(Crash):
        work(house, store)
    assert house.values("a") == house.values("b")
    if completion == "next instance":
        with transactional(house.root(), "job").begin() as transaction:
            transaction.append("a", rows("next"))
            transaction.append("b", rows("next"))
    elif completion == "timeout":
        house.now_ms += 5000
        resolve_topic(house.topic("b"))
        resolve_topic(house.topic("a"))
    assert house.values("a") == house.values("b")
    if completion != "reader":
        assert house.held("a") == house.held("b") == [0]
    assert house.values("a") in (
        [],
        ["0"],
        ["0", "1"],
        ["next"],
        ["0", "next"],
        ["0", "1", "next"],
    )
