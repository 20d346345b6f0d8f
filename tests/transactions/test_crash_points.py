"""A process dies at each request of a transaction. The next process ends the transaction."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import pytest

import sparklog
from sparklog.groups.lag import Groups
from sparklog.limits import SESSION_TIMEOUT_MS
from sparklog.testing.faulty_store import Call, Crash, Fault, FaultKind, FaultyStore
from sparklog.transactions.completion import resolve_topic
from sparklog.transactions.producer import transactional
from tests.support.crash_points import crash_points
from tests.support.records import rows
from tests.support.topics_world import TopicsWorld

pytestmark = pytest.mark.sweep


def consume(world: TopicsWorld, store: FaultyStore) -> None:
    """Two records of topic c. For each, a transaction appends to a and b and sends the offset of the group."""
    root = world.root(store)
    how = {"auto_offset_reset": "earliest", "enable_auto_commit": False, "max_poll_records": 1}
    consumer = sparklog.consumer(root, "g", topics="c", **how)  # type: ignore[arg-type]
    producer = transactional(root, "job", timeout_ms=1000)
    while batches := consumer.poll():
        with producer.begin() as transaction:
            for name in ("a", "b"):
                transaction.append(name, rows(*(value.decode() for value in batches[0]["value"].to_pylist())))
            transaction.send_offsets(consumer)
    consumer.close()


def work(world: TopicsWorld, store: FaultyStore) -> None:
    """Two transactions across two topics. The second one records the decision of the first one."""
    producer = transactional(world.root(store), "job", timeout_ms=1000)
    for number in range(2):
        transaction = producer.begin()
        for name in ("a", "b"):
            transaction.append(name, rows(f"{number}"))
        transaction.commit()


def source() -> TopicsWorld:
    """Append two records to topic c."""
    world = TopicsWorld()
    world.topic("c").append(rows("0", "1"))
    return world


def calls(work: Callable[[TopicsWorld, FaultyStore], None]) -> list[str]:
    """Return the labels of the requests, in order."""
    world = source()
    store = FaultyStore(world.store, lambda call: None)
    labels: list[str] = []

    def note(call: Call) -> None:
        of = {"_transactions": " of a decision", "_groups": " of a group"}.get(call.key.split("/")[0], "")
        labels.append(call.label + of)

    store.decide = note  # type: ignore[assignment]
    work(world, store)
    return labels


POINTS = calls(work)
LOOP_POINTS = calls(consume)


def test_the_crash_points_cover_all_steps() -> None:
    assert POINTS.count("create:commit") == 4
    assert POINTS.count("create:commit of a decision") == 3
    assert LOOP_POINTS.count("create:commit") == 4
    assert LOOP_POINTS.count("create:commit of a decision") == 3
    # The member joins, prepares twice, and leaves.
    assert LOOP_POINTS.count("create:commit of a group") == 4


@pytest.mark.parametrize("completion", ["next instance", "timeout", "reader"])
@pytest.mark.parametrize(("point", "kind"), crash_points(POINTS))
def test_readers_see_all_or_none_of_each_transaction(point: int, kind: FaultKind, completion: str) -> None:
    world = TopicsWorld()
    store = FaultyStore(world.store, lambda call: Fault(kind) if call.number == point else None)
    # A crash after a request that finds nothing is equivalent to a crash at this request.
    with suppress(Crash):
        work(world, store)
    assert world.values("a") == world.values("b")
    if completion == "next instance":
        with transactional(world.root(), "job").begin() as transaction:
            transaction.append("a", rows("next"))
            transaction.append("b", rows("next"))
    elif completion == "timeout":
        world.now_ms += 5000
        resolve_topic(world.topic("b"))
        resolve_topic(world.topic("a"))
    assert world.values("a") == world.values("b")
    if completion != "reader":
        assert world.undecided("a") == world.undecided("b") == [0]
    assert world.values("a") in (
        [],
        ["0"],
        ["0", "1"],
        ["next"],
        ["0", "next"],
        ["0", "1", "next"],
    )


@pytest.mark.parametrize(("point", "kind"), crash_points(LOOP_POINTS))
def test_consumed_offsets_and_produced_records_are_committed_together(point: int, kind: FaultKind) -> None:
    world = source()
    store = FaultyStore(world.store, lambda call: Fault(kind) if call.number == point else None)
    with suppress(Crash):
        consume(world, store)

    def done() -> list[str]:
        committed = Groups(world.root()).group("g").committed()
        at = committed["c", 0].offset if committed else 0
        assert world.values("a") == world.values("b") == ["0", "1"][:at]
        return world.values("a")

    done()
    if point % 2:
        # The next instance ends the transaction immediately, and other processes end it after its timeout.
        transactional(world.root(), "job").begin().abort()
    else:
        world.now_ms += 5000
        Groups(world.root()).group("g").resolve_pending()
    done()
    # The dead member owns its partitions until its session times out.
    world.now_ms += SESSION_TIMEOUT_MS
    consume(world, FaultyStore(world.store, lambda call: None))
    assert done() == ["0", "1"]
    assert Groups(world.root()).group("g").resolve_pending().pending == ()
