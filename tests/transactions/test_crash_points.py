"""A process dies before and after each request of a transaction, one by one; whoever comes next ends it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import pytest

import sparklog
from sparklog.groups import Groups
from sparklog.storage.faulty import Call, Crash, Fault, FaultKind, FaultyStore
from sparklog.transactions import transactional
from sparklog.transactions.completion import resolve_topic
from tests.transactions.house import House, rows

pytestmark = pytest.mark.sweep


def consume(house: House, store: FaultyStore) -> None:
    """Two records of topic c, each answered in a and b by a transaction that sends the group's offset."""
    root = house.root(store)
    how = {"auto_offset_reset": "earliest", "enable_auto_commit": False, "max_poll_records": 1}
    consumer = sparklog.consumer(root, "g", topics="c", **how)  # type: ignore[arg-type]
    producer = transactional(root, "job", timeout_ms=1000)
    while batches := consumer.poll():
        with producer.begin() as transaction:
            for name in ("a", "b"):
                transaction.append(name, rows(*(value.decode() for value in batches[0]["value"].to_pylist())))
            transaction.send_offsets(consumer)
    consumer.close()


KINDS = (FaultKind.CRASH_BEFORE, FaultKind.CRASH_AFTER)


def work(house: House, store: FaultyStore) -> None:
    """Two transactions over two topics; the second records what the first decided."""
    producer = transactional(house.root(store), "job", timeout_ms=1000)
    for number in range(2):
        transaction = producer.begin()
        for name in ("a", "b"):
            transaction.append(name, rows(f"{number}"))
        transaction.commit()


def source() -> House:
    """Two records in topic c."""
    house = House()
    house.topic("c").append(rows("0", "1"))
    return house


def calls(work: Callable[[House, FaultyStore], None]) -> list[str]:
    """Labels of the requests, in order."""
    house = source()
    store = FaultyStore(house.store, lambda call: None)
    labels: list[str] = []

    def note(call: Call) -> None:
        of = {"_transactions": " of a decision", "_groups": " of a group"}.get(call.key.split("/")[0], "")
        labels.append(call.label + of)

    store.decide = note  # type: ignore[assignment]
    work(house, store)
    return labels


POINTS = calls(work)
LOOP_POINTS = calls(consume)


def test_the_steps_are_all_there() -> None:
    assert POINTS.count("create:commit") == 4
    assert POINTS.count("create:commit of a decision") == 3
    assert LOOP_POINTS.count("create:commit") == 4
    assert LOOP_POINTS.count("create:commit of a decision") == 3
    # It joins, prepares twice, and leaves.
    assert LOOP_POINTS.count("create:commit of a group") == 4


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


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("point", range(len(LOOP_POINTS)))
def test_what_was_consumed_and_what_was_produced_go_together(point: int, kind: FaultKind) -> None:
    house = source()
    store = FaultyStore(house.store, lambda call: Fault(kind) if call.number == point else None)
    with suppress(Crash):
        consume(house, store)

    def done() -> list[str]:
        committed = Groups(house.root()).group("g").committed()
        at = committed["c", 0].offset if committed else 0
        assert house.values("a") == house.values("b") == ["0", "1"][:at]
        return house.values("a")

    done()
    if point % 2:
        # Its own successor, at once; else whoever comes when the transaction is past its timeout.
        transactional(house.root(), "job").begin().abort()
    else:
        house.now_ms += 5000
        Groups(house.root()).group("g").settle()
    done()
    consume(house, FaultyStore(house.store, lambda call: None))
    assert done() == ["0", "1"]
    assert Groups(house.root()).group("g").settle().pending == ()
