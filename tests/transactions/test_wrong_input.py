"""Wrong input raises a one-line error that says what to do, and does not change the store."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from sparklog.errors import BadRequest, Conflict, Fenced, SparklogError
from sparklog.log.state.view import READ_UNCOMMITTED
from sparklog.transactions.listing import abort_transaction
from sparklog.transactions.publishing import publish
from tests.support.records import rows
from tests.support.topics_world import TopicsWorld

MINUTE = 60_000


def contents(world: TopicsWorld) -> dict[str, bytes]:
    """Return all objects except unreferenced uploads, which the vacuum deletes."""
    return {info.key: world.store.get(info.key) for info in world.store.list("") if "/append/" not in info.key}


def refused(world: TopicsWorld, action: Callable[[], object], kind: type[SparklogError], says: str) -> None:
    before = contents(world)
    with pytest.raises(kind, match=says) as error:
        action()
    assert "\n" not in str(error.value)
    assert contents(world) == before


def test_beginning_again_while_a_transaction_is_open_fails() -> None:
    world = TopicsWorld()
    producer = world.producer()
    transaction = producer.begin()
    transaction.append("a", rows("1"))
    refused(world, producer.begin, BadRequest, "transaction 0 of 'job' is open: commit or abort it before you begin")
    transaction.prepare()
    refused(world, producer.begin, BadRequest, "transaction 0 of 'job' is open: commit or abort it before you begin")
    transaction.commit()
    assert world.values("a") == ["1"]


@pytest.mark.parametrize("seconds", [0, 30])
def test_a_commit_after_fencing_fails(seconds: int) -> None:
    """An immediate commit is rejected by the decision, and read_uncommitted readers see its rows.

    They see the rows of any aborted transaction. A later commit writes nothing.
    """
    world = TopicsWorld()
    older, newer = world.producer(), world.producer()
    transaction = older.begin()
    transaction.append("a", rows("lost"))
    second = newer.begin()
    world.now_ms += seconds * 1000
    says = "was superseded by .*; stop this instance"
    if seconds:
        refused(world, transaction.commit, Fenced, says)
        assert world.values("a", READ_UNCOMMITTED) == []
    else:
        with pytest.raises(Fenced, match=says):
            transaction.commit()
    assert world.values("a") == []
    for action in (transaction.commit, transaction.abort, lambda: transaction.append("a", rows("more"))):
        refused(world, action, BadRequest, "transaction 0 of 'job' is aborted")
    refused(world, older.begin, Fenced, says)
    second.append("a", rows("kept"))
    second.commit()
    assert world.values("a") == ["kept"]


def test_a_commit_after_another_process_ended_the_transaction_fails() -> None:
    world = TopicsWorld()
    producer = world.producer()
    transaction = world.prepare(producer, b=["open"])
    abort_transaction(world.root(), "job")
    late = world.producer("other").begin()
    late.append("a", rows("late"))
    world.root().engine.decisions.log("other").abort(0, "operator")
    world.now_ms += MINUTE
    refused(world, late.commit, Conflict, r"transaction 0 of 'other' is already decided \(by an operator\)")
    with pytest.raises(Conflict, match=r"already decided \(by an operator\), so these records were not published"):
        transaction.commit()
    assert world.values_by_topic() == {"a": [], "b": [], "c": []}


def test_a_write_with_a_reserved_id_is_rejected() -> None:
    world = TopicsWorld()
    refused(world, lambda: publish(world.root(), "one-write:x", []), BadRequest, "are reserved; choose another id")
    refused(world, lambda: world.producer("x" * 2000), BadRequest, "1 to 1024 characters")


def test_a_topic_with_another_partition_count_is_rejected() -> None:
    world = TopicsWorld(partitions=2)
    root = world.root()
    refused(world, lambda: root.create_topic("a", partitions=5), Conflict, "exists")
    transaction = world.producer().begin()
    refused(world, lambda: transaction.send_offsets("g", {"a": {4: 1}}), BadRequest, "partitions 0 to 1")
    transaction.append("a", rows("1", partition=4))
    with pytest.raises(BadRequest, match="expected partitions 0 to 1, found partition 4"):
        transaction.commit()
    assert world.values_by_topic() == {"a": [], "b": [], "c": []}
    assert world.undecided("a") == [0, 0]
