"""The transactional producer: published records, fencing, and rejected requests."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

import sparklog
from sparklog.errors import BadRequest, Conflict, Fenced, NotFound, Unavailable
from sparklog.log.state.view import READ_UNCOMMITTED
from sparklog.log.write.append_target import WriteOptions
from sparklog.testing.faulty_store import Decide, Fault, FaultKind, FaultyStore, Script
from sparklog.transactions.listing import COMMITTED, EMPTY, ONGOING, list_transactions
from sparklog.transactions.producer import Transaction, transactional
from tests.support.records import keyed_rows, rows
from tests.support.topics_world import TopicsWorld


def test_a_transaction_becomes_visible_in_all_topics_or_none() -> None:
    world = TopicsWorld()
    with world.producer().begin() as transaction:
        transaction.append("a", rows("1", "2"))
        transaction.append("b", rows("3"))
        transaction.append("a", rows("4"))
        assert world.values_by_topic(READ_UNCOMMITTED) == {"a": [], "b": [], "c": []}
    assert world.values_by_topic() == {"a": ["1", "2", "4"], "b": ["3"], "c": []}
    assert transaction.state == "committed"
    assert world.topic("a").log.state().version == 1, "one commit per topic"


def test_an_exception_aborts_the_transaction() -> None:
    world = TopicsWorld()
    producer = world.producer()

    def work() -> None:
        with transaction:
            transaction.append("a", rows("1"))
            raise ZeroDivisionError

    transaction = producer.begin()
    with pytest.raises(ZeroDivisionError):
        work()
    assert transaction.state == "aborted"
    assert world.values_by_topic(READ_UNCOMMITTED)["a"] == []
    with producer.begin() as transaction:
        transaction.append("a", rows("2"))
    assert (world.values("a"), transaction.n) == (["2"], 1)


def test_open_slices_are_visible_only_uncommitted_and_limit_the_last_stable_offset() -> None:
    world = TopicsWorld()
    transaction = world.prepare(world.producer(), a=["1"], b=["2"])
    world.topic("a").append(rows("later"))
    assert world.values_by_topic(READ_UNCOMMITTED) == {"a": ["1", "later"], "b": ["2"], "c": []}
    assert world.values_by_topic() == {"a": [], "b": [], "c": []}
    assert (world.undecided("a"), world.undecided("b")) == ([2], [1])
    transaction.abort()
    assert world.values_by_topic() == {"a": ["later"], "b": [], "c": []}
    assert (world.undecided("a"), world.undecided("b")) == ([0], [0])
    assert world.values("a", READ_UNCOMMITTED) == ["1", "later"]


def test_prepares_reference_the_other_participants_and_the_commit_all_of_them() -> None:
    world = TopicsWorld()
    world.topic("b").append(rows("x"))
    transaction = world.prepare(world.producer(timeout_ms=5000), a=["1"], b=["2"], c=["3"])
    found = {name: world.topic(name).log.state().open[0].txn for name in "abc"}
    assert [dict(txn.siblings) for txn in found.values()] == [{}, {"a": 1}, {"a": 1, "b": 2}]
    assert {txn.timeout_ms for txn in found.values()} == {5000}
    transaction.commit()
    state = world.root().engine.decisions.log("job").refresh()
    commit = state.commit_of(0)
    assert commit is not None
    assert commit.versions() == {"a": 1, "b": 2, "c": 1}
    assert {item.commit_id for item in commit.prepares} == {
        item.commit_id for name in "abc" for item in world.topic(name).log.state().open
    }


def test_a_newer_instance_fences_an_older_one_and_aborts_its_open_transaction() -> None:
    world = TopicsWorld()
    older, newer = world.producer(), world.producer()
    transaction = world.prepare(older, a=["1"], b=["1"])
    second = newer.begin()
    assert (world.undecided("a"), world.values_by_topic()["a"]) == ([0], [])
    with pytest.raises(Fenced, match=r"was superseded by .*; stop this instance"):
        transaction.commit()
    with pytest.raises(Fenced):
        older.begin()
    second.append("a", rows("2"))
    second.commit()
    assert world.values_by_topic() == {"a": ["2"], "b": [], "c": []}


def test_an_idle_older_instance_is_fenced_at_its_next_commit() -> None:
    world = TopicsWorld()
    older = world.producer()
    with older.begin() as transaction:
        transaction.append("a", rows("1"))
    later = older.begin()
    later.append("a", rows("lost"))
    world.producer().begin()
    with pytest.raises(Fenced):
        later.commit()
    assert world.values("a") == ["1"]


def test_an_instance_stays_fenced_after_any_number_of_others() -> None:
    world = TopicsWorld()
    oldest = world.producer(instance="i0")
    oldest.begin().abort()
    for number in range(1, 8):
        world.producer(instance=f"i{number}").begin().abort()
    live = world.producer(instance="i7").begin()
    live.append("a", rows("1"))
    with pytest.raises(Fenced, match="instance i0 of transactional id 'job' was superseded by instance i7"):
        oldest.begin()
    live.commit()
    assert world.values("a") == ["1"]


def test_one_instance_in_several_processes() -> None:
    world = TopicsWorld()
    first = world.producer(instance="dag-17").begin()
    first.append("a", rows("1"))
    first.prepare()
    last = world.producer(instance="dag-17").join(first.n)
    last.append("b", rows("2"))
    last.commit()
    assert world.values_by_topic() == {"a": ["1"], "b": ["2"], "c": []}


def test_jobs_that_share_a_transaction() -> None:
    world = TopicsWorld()
    owner = world.producer().begin()
    owner.append("a", rows("owner"))
    for name, topic in (("one", "a"), ("two", "b")):
        job = world.producer().join(owner.n, name)
        job.append(topic, rows(name))
        job.prepare()
    again = world.producer().join(owner.n, "two")
    again.append("b", rows("two again"))
    again.prepare()
    assert world.values_by_topic() == {"a": [], "b": [], "c": []}
    owner.commit()
    assert world.values_by_topic() == {"a": ["one", "owner"], "b": ["two again"], "c": []}


def test_a_late_prepare_of_a_job_is_rejected_and_never_visible() -> None:
    world = TopicsWorld()
    owner = world.producer().begin()
    owner.append("a", rows("owner"))
    late = world.producer().join(owner.n)
    late.append("a", rows("late"))
    owner.commit()
    with pytest.raises(Conflict, match="transaction 0 of 'job' was committed without this part"):
        late.prepare()
    world.topic("a").append(rows("next"))
    assert world.values("a") == ["owner", "next"]
    with pytest.raises(Conflict, match="without this part"):
        world.producer().join(0)
    with pytest.raises(Conflict, match="does not exist, because the next transaction is 1"):
        world.producer().join(9)
    for wrong in ("0", None, True, owner):
        with pytest.raises(BadRequest, match="expected `n` to be the integer `n` of a transaction from `begin`"):
            world.producer().join(wrong)  # type: ignore[arg-type]


def test_an_empty_transaction_writes_nothing() -> None:
    world = TopicsWorld()
    producer = world.producer()
    assert producer.begin().commit().n is None
    before = world.root().engine.decisions.log("job").refresh()
    with producer.begin() as transaction:
        transaction.append("a", rows())
    assert transaction.n == 0
    assert world.root().engine.decisions.log("job").refresh() == before


def test_an_id_that_only_began_keeps_the_state_of_its_last_transaction() -> None:
    world = TopicsWorld()
    producer = world.producer()

    def state() -> tuple[str, int]:
        (found,) = list_transactions(world.root())
        return found.state, found.newest

    producer.begin().append("a", rows("1"))
    assert state() == (EMPTY, -1)
    world.prepare(world.producer(), a=["2"])
    assert state() == (ONGOING, 0)
    producer = world.producer()
    with producer.begin() as transaction:
        transaction.append("a", rows("3"))
    producer.begin().append("b", rows("4"))
    assert state() == (COMMITTED, 2)


@pytest.mark.parametrize("timeout_ms", [0, 86_400_001, True, "5"])
def test_transaction_timeouts_have_bounds(timeout_ms: object) -> None:
    with pytest.raises(BadRequest, match=r"timeout_ms must be an integer from 1 to 86400000"):
        TopicsWorld().producer(timeout_ms=timeout_ms)


def test_wrong_input_raises_one_error_and_changes_nothing() -> None:
    world = TopicsWorld()
    producer = world.producer()
    transaction = producer.begin()
    with pytest.raises(BadRequest, match="transaction 0 of 'job' is open: commit or abort it"):
        producer.begin()
    with pytest.raises(NotFound, match="creates it"):
        transaction.append("nope", rows("1"))
    with pytest.raises(BadRequest, match="data must be pyarrow tables"):
        transaction.append("a", [1])  # type: ignore[list-item]
    transaction.append("a", rows("1"))
    transaction.commit()
    for action in (transaction.commit, transaction.abort, transaction.prepare, lambda: transaction.append("a", rows())):
        with pytest.raises(BadRequest, match="transaction 0 of 'job' is committed"):
            action()
    with pytest.raises(BadRequest, match="a transactional id must have 1 to 1024 characters"):
        world.producer("")
    assert world.values("a") == ["1"]


def test_rows_that_a_topic_rejects_abort_the_transaction() -> None:
    world = TopicsWorld()
    world.root().create_topic("keyed", configs={"cleanup.policy": "compact"})
    transaction = world.producer().begin()
    transaction.append("a", rows("1"))
    transaction.append("keyed", rows("no key"))
    with pytest.raises(BadRequest, match="is compacted"):
        transaction.commit()
    assert transaction.state == "aborted"
    assert world.values_by_topic()["a"] == []
    assert world.undecided("a") == [0]


BUFFERED = WriteOptions(codec="none", buffer_bytes=500)
LONG = "x" * 100


def transaction_after_a_failed_append(world: TopicsWorld) -> Transaction:
    """Return a transaction that has lost accepted rows, because its second append was rejected after a flush."""
    world.root().create_topic("keyed", configs={"cleanup.policy": "compact"})
    transaction = world.producer().begin()
    transaction.append("a", rows("1"))
    transaction.append("keyed", keyed_rows(("k", "accepted")), options=BUFFERED)
    with pytest.raises(BadRequest, match="is compacted"):
        transaction.append("keyed", rows(*(f"{number} {LONG}" for number in range(20))))
    return transaction


def test_a_transaction_that_has_lost_rows_can_only_be_aborted() -> None:
    world = TopicsWorld()
    transaction = transaction_after_a_failed_append(world)
    for action in (
        lambda: transaction.append("a", rows("2")),
        lambda: transaction.send_offsets("g", {"a": {0: 1}}),
        transaction.prepare,
        transaction.commit,
    ):
        with pytest.raises(BadRequest, match="an append to transaction 0 of 'job' failed: topic keyed is compacted"):
            action()
    assert transaction.state == "aborted", "by commit"
    with transaction._producer.begin() as transaction:
        transaction.append("a", rows("3"))
    assert transaction.n == 1
    assert [world.values(name, READ_UNCOMMITTED) for name in ("a", "keyed")] == [["3"], []]


def test_a_transaction_that_has_lost_rows_is_aborted_explicitly_or_by_its_block() -> None:
    transaction_after_a_failed_append(TopicsWorld()).abort()
    world = TopicsWorld()
    with pytest.raises(BadRequest, match="an append to transaction 0"), transaction_after_a_failed_append(world):
        # The program has ignored the error, so the end of the block commits.
        pass
    assert world.values("a", READ_UNCOMMITTED) == []


def test_an_append_that_accepts_only_a_part_of_its_rows_fails_the_transaction() -> None:
    world = TopicsWorld()
    transaction = world.producer().begin()
    with pytest.raises(BadRequest, match="value to be binary or string"):
        transaction.append("a", [rows("1"), pa.table({"value": [1.5]})])
    with pytest.raises(BadRequest, match="an append to transaction 0 of 'job' failed: "):
        transaction.commit()
    assert world.values("a") == []


def test_a_rejected_append_that_has_accepted_no_rows_does_not_fail_the_transaction() -> None:
    world = TopicsWorld()
    with world.producer().begin() as transaction:
        transaction.append("a", rows("1"))
        with pytest.raises(BadRequest, match="value to be binary or string"):
            transaction.append("a", pa.table({"value": [1.5]}))
    assert world.values("a") == ["1"]


def failing_at(number: int, kind: FaultKind) -> Decide:
    return lambda call: Fault(kind) if call.number == number else None


@pytest.mark.parametrize("kind", [FaultKind.ERROR_BEFORE, FaultKind.ERROR_AFTER])
def test_a_transaction_commits_all_rows_that_it_has_accepted_or_none(kind: FaultKind) -> None:
    """A request fails, and the caller repeats the append and goes on. This is tested for each request."""
    lost = committed = 0
    for point in range(100):
        world = TopicsWorld()
        for name in "ab":
            world.topic(name).alter(configs={"inline.records.bytes": 0})
        store = FaultyStore(world.store, lambda call: None)
        transaction = transactional(world.root(store), "job").begin()
        at = store.calls.total() + point
        store.decide = failing_at(at, kind)
        accepted: dict[str, list[str]] = {"a": [], "b": [], "c": []}
        for number in range(8):
            name, value = "ab"[number % 2], f"{number} {LONG * 3}"
            for _ in range(2):
                try:
                    transaction.append(name, rows(value), options=BUFFERED)
                    accepted[name].append(value)
                    break
                except (Unavailable, BadRequest):
                    pass
        try:
            transaction.commit()
        except BadRequest:
            lost += 1
        except Unavailable:
            pass
        if transaction.state == "committed":
            assert world.values_by_topic() == accepted
            committed += 1
        else:
            assert world.values_by_topic() == {"a": [], "b": [], "c": []}
        if store.calls.total() <= at:
            break
    assert lost > 2
    assert committed > 2


def test_a_topic_that_is_recreated_concurrently_is_detected() -> None:
    world = TopicsWorld()
    transaction = world.producer().begin()
    transaction.append("a", rows("1"))
    transaction.append("b", rows("1"))
    root = world.root()
    root.delete_topic("b")
    root.create_topic("b")
    with pytest.raises(Conflict, match="was deleted and recreated"):
        transaction.commit()
    assert world.values_by_topic() == {"a": [], "b": [], "c": []}


@pytest.mark.parametrize("kind", [FaultKind.ERROR_BEFORE, FaultKind.ERROR_AFTER])
def test_a_decision_whose_response_is_lost_is_resolved(kind: FaultKind) -> None:
    """All attempts fail, and then the store recovers. An ABORT becomes the decision, or finds the COMMIT."""
    world = TopicsWorld(sleep_takes_time=False)  # the store fails for a number of requests, not for a time
    store = FaultyStore(world.store, lambda call: None, lambda seconds: None)
    transaction = transactional(world.root(store), "job").begin()
    transaction.append("a", rows("1"))
    decision_key = f"_transactions/job/_log/{1:020d}.json"
    seen: list[str] = []

    def decide(call: object) -> Fault | None:
        key, verb = call.key, call.verb  # type: ignore[attr-defined]
        if key != decision_key or len(seen) > 430:
            return None
        seen.append(verb)
        return Fault(kind if verb == "create" else FaultKind.ERROR_BEFORE)

    store.decide = decide
    if kind is FaultKind.ERROR_AFTER:
        assert transaction.commit().n == 0
        assert world.values("a") == ["1"]
    else:
        with pytest.raises(Unavailable, match="transaction 0 of 'job' is aborted, and nothing was published"):
            transaction.commit()
        assert world.values("a") == []
        assert world.undecided("a") == [0]


def test_an_unknown_outcome_is_resolved_before_its_number_is_reused() -> None:
    world = TopicsWorld()
    store = FaultyStore(world.store, lambda call: None, lambda seconds: None)
    producer = transactional(world.root(store), "job")
    transaction = producer.begin()
    transaction.append("a", rows("1"))
    store.decide = Script({("create:commit", store.calls["create:commit"] + 1): Fault(FaultKind.ERROR_BEFORE)})
    broken = lambda call: Fault(FaultKind.ERROR_BEFORE) if "_transactions" in call.key else None  # noqa: E731
    store.decide = broken
    with pytest.raises(Unavailable, match="the outcome of creating"):
        transaction.commit()
    assert transaction.state == "unknown"
    store.decide = lambda call: None
    assert producer.begin().n == 1
    assert world.undecided("a") == [0]


def test_on_a_disk_by_path(tmp_path: Path) -> None:
    root = sparklog.open(tmp_path, create=True)
    root.create_topic("a")
    with sparklog.transactional(tmp_path, "a/../b").begin() as transaction:
        transaction.append("a", rows("1"))
    assert root.topic("a").scan().to_table().num_rows == 1
    assert (tmp_path / "_transactions" / "a%2F..%2Fb" / "_log" / f"{0:020d}.json").exists()
    assert root.topics() == ["a"]
