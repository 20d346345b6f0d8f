"""Single interleavings: zombies, two drivers of one batch, timeouts, and the errors that Jepsen found in Kafka's
protocol.

Kafka ends a transaction with a message (marker) to each partition. A marker may arrive late, over another connection,
after the next transaction of the producer has begun. That transaction is then partially committed or aborted, or ended
by the wrong message. In sparklog, one entry decides a transaction, and references the prepares that it commits. A late
prepare is not referenced.
"""

from __future__ import annotations

import pytest

from sparklog.errors import Conflict, Fenced
from sparklog.log.state.commit import Txn, TxnDecision
from sparklog.log.state.commit_intents import MaintainIntent
from sparklog.log.state.writer_runs import WriterKey
from sparklog.log.topic.root import topic_of
from sparklog.log.write.append_target import TopicFiles
from sparklog.log.write.append_writer import AppendWriter
from sparklog.testing.faulty_store import Call, Fault, FaultKind, FaultyStore
from sparklog.transactions.completion import resolve_topic
from sparklog.transactions.producer import transactional
from sparklog.transactions.publishing import publish
from tests.support.records import rows
from tests.support.topics_world import TopicsWorld

MINUTE = 60_000


def written(world: TopicsWorld, root: object, *values: str) -> list[TopicFiles]:
    """Return files that tasks wrote for all three topics."""

    found = []
    for name in "abc":
        target = root.topic(name).log.append_target()  # type: ignore[attr-defined]
        writer = AppendWriter(target, env=world.env())
        for batch in rows(*values).to_batches():
            writer.write(batch)
        found.append(TopicFiles(target, tuple(writer.finish())))
    return found


class TestJepsen:
    def test_a_late_marker_does_not_end_the_next_transaction(self) -> None:
        """A process knows that transaction 0 is aborted, is suspended, and records this when transaction 1 is open."""
        world = TopicsWorld()
        producer = world.producer()
        world.prepare(producer, a=["zero"]).abort()
        helper = world.topic("a")
        topic_id = helper.log.state().topic_id
        outcome = world.root().engine.decisions.resolve("a", helper.log.state())
        assert outcome == [TxnDecision("job", 0)]
        second = world.prepare(producer, a=["one"])
        helper.log.commit(MaintainIntent(topic_id, resolved=tuple(outcome)))
        assert world.values_by_topic()["a"] == []
        second.commit()
        helper.log.commit(MaintainIntent(topic_id, resolved=tuple(outcome)))
        assert world.values_by_topic()["a"] == ["one"]

    def test_a_late_commit_does_not_commit_the_next_transaction(self) -> None:
        """The commit message of transaction 0 is delayed until transaction 1 is open.

        It can only be written with its own number.
        """
        world = TopicsWorld()
        store = FaultyStore(world.store, lambda call: None, lambda seconds: None)
        first = transactional(world.root(store), "job").begin()
        first.append("a", rows("zero"))
        first.append("b", rows("zero"))

        def lost(call: Call) -> Fault | None:
            if call.verb == "create" and "_transactions" in call.key:
                return Fault(FaultKind.LATE, 10**9)
            return Fault(FaultKind.ERROR_BEFORE) if "_transactions" in call.key else None

        store.decide = lost
        with pytest.raises(OSError, match="the outcome of creating"):
            first.commit()
        second = world.producer().begin()
        second.append("a", rows("one"))
        second._prepare_topics()
        store.decide = lambda call: None
        store.land()
        assert world.values_by_topic() == {"a": [], "b": [], "c": []}
        second.commit()
        assert world.values_by_topic() == {"a": ["one"], "b": [], "c": []}

    def test_a_write_after_the_commit_is_not_part_of_the_transaction(self) -> None:
        """A produce request of transaction 0 is delayed until 0 is committed, or until 1 is open."""
        world = TopicsWorld()
        producer = world.producer()
        with producer.begin() as first:
            first.append("a", rows("in time"))
            first.append("b", rows("in time"))
        topic = world.topic("a")
        late = written(world, world.root(), "late")[0]
        for _ in range(2):
            topic.log.commit_append(late.files, late.target, txn=Txn("job", 0))
            assert world.values_by_topic()["a"] == ["in time"]
            world.prepare(producer, c=["one"])
            late = written(world, world.root(), "late")[0]
            producer._open.abort()  # type: ignore[union-attr]
        topic.append(rows("plain"))
        assert world.values_by_topic() == {"a": ["in time", "plain"], "b": ["in time"], "c": []}

    def test_acknowledged_transactions_are_never_lost(self) -> None:
        """Another process aborts the transaction after its timeout while the owner commits. Both get one outcome."""
        world = TopicsWorld()
        producer = world.producer(timeout_ms=1000)
        transaction = world.prepare(producer, a=["1"], b=["1"])
        world.now_ms += 5000
        helper = world.root()
        state = helper.engine.decisions.log("job").refresh()
        assert not state.is_decided(0)
        transaction.commit()
        resolve_topic(helper.topic("a"))
        assert world.values_by_topic() == {"a": ["1"], "b": ["1"], "c": []}

    def test_a_transaction_aborted_by_its_timeout_is_not_partially_visible(self) -> None:
        world = TopicsWorld()
        transaction = world.prepare(world.producer(timeout_ms=1000), a=["1"], b=["1"])
        world.now_ms += 5000
        resolve_topic(world.topic("a"))
        with pytest.raises(Conflict, match=r"already decided \(transaction.timeout.ms passed\)"):
            transaction.commit()
        assert world.values_by_topic() == {"a": [], "b": [], "c": []}
        assert world.undecided("b") == [0]

    def test_an_instance_is_fenced_after_many_other_instances(self) -> None:
        world = TopicsWorld()
        zombie = world.producer(instance="zombie")
        zombie.begin().abort()
        for number in range(7):
            world.producer(instance=f"i{number}").begin().abort()
        live = world.producer(instance="i6").begin()
        live.append("a", rows("live"))
        with pytest.raises(Fenced, match="instance zombie of transactional id 'job' was superseded by instance i6"):
            zombie.begin()
        live.commit()
        assert world.values_by_topic()["a"] == ["live"]


class TestTimeouts:
    def test_any_commit_aborts_transactions_after_their_timeout_by_the_stores_clock(self) -> None:
        world = TopicsWorld()
        world.prepare(world.producer(), a=["1"], b=["1"])
        fast = world.root(skew_ms=4 * MINUTE)
        fast.topic("a").append(rows("soon"))
        assert world.undecided("a") == [2], "a clock that is ahead aborts nobody"
        world.now_ms += MINUTE + 1
        world.topic("a").append(rows("later"))
        assert world.values_by_topic() == {"a": ["soon", "later"], "b": [], "c": []}
        assert world.undecided("b") == [0], "decided for all topics, recorded in one"
        assert world.topic("b").log.state().open

    def test_a_zombie_that_writes_after_its_timeout_is_fenced(self) -> None:
        world = TopicsWorld()
        producer = world.producer()
        zombie = producer.begin()
        zombie.append("a", rows("1"))
        zombie.append("b", rows("1"))
        prepare = zombie._root.engine.log("b").commit_append

        def sleeps(*args: object, **how: object) -> object:
            world.now_ms += 2 * MINUTE
            resolve_topic(world.topic("a"))
            return prepare(*args, **how)  # type: ignore[arg-type]

        zombie._root.engine.log("b").commit_append = sleeps  # type: ignore[method-assign, assignment]
        with pytest.raises(Conflict, match=r"transaction.timeout.ms passed"):
            zombie.commit()
        assert world.values_by_topic() == {"a": [], "b": [], "c": []}
        assert world.undecided("b") == [0]
        del zombie._root.engine.log("b").commit_append
        with producer.begin() as transaction:
            transaction.append("b", rows("2"))
        assert (transaction.n, world.values_by_topic()["b"]) == (1, ["2"])

    def test_the_age_counts_from_the_first_prepare(self) -> None:
        world = TopicsWorld()
        owner = world.producer(timeout_ms=MINUTE).begin()
        job = world.producer(timeout_ms=MINUTE).join(owner.n)
        job.append("a", rows("job"))
        job.prepare()
        world.now_ms += MINUTE - 1
        resolve_topic(world.topic("a"))
        assert world.undecided("a") == [1]
        world.now_ms += 2
        resolve_topic(world.topic("a"))
        with pytest.raises(Conflict):
            owner.commit()
        assert world.undecided("a") == [0]


class TestTwoDriversOfOneBatch:
    def key(self, run: str, batch: int = 0) -> WriterKey:
        return WriterKey("query", batch, run)

    def test_the_second_instance_fences_the_first_between_prepare_and_decision(self) -> None:
        world = TopicsWorld()
        root = world.root()
        topic = topic_of(root, "c")
        prepare = topic.log.commit_append

        def other_driver(*args: object, **how: object) -> object:
            found = prepare(*args, **how)  # type: ignore[arg-type]
            other = world.root()
            publish(other, "query", written(world, other, "second"), key=self.key("run-2"))
            return found

        topic.log.commit_append = other_driver  # type: ignore[method-assign, assignment]
        with pytest.raises(Fenced, match="superseded by instance run-2"):
            publish(root, "query", written(world, root, "first"), key=self.key("run-1"))
        assert world.values_by_topic() == {"a": ["second"], "b": ["second"], "c": ["second"]}

    def test_a_replay_after_a_crash_is_skipped_and_takes_over(self) -> None:
        world = TopicsWorld()
        for run, batch, skipped in (("run-1", 0, False), ("run-2", 0, True), ("run-2", 1, False)):
            root = world.root()
            done = publish(root, "query", written(world, root, f"batch {batch}"), key=self.key(run, batch))
            assert done.skipped == skipped
        with pytest.raises(Fenced, match="run run-1 of writer 'query' was superseded by run run-2"):
            publish(world.root(), "query", written(world, world.root(), "x"), key=self.key("run-1", 1))
        assert world.values_by_topic() == {name: ["batch 0", "batch 1"] for name in "abc"}

    def test_an_old_checkpoint_is_an_error_and_does_not_fence(self) -> None:
        world = TopicsWorld()
        root = world.root()
        for batch in (0, 1):
            publish(root, "query", written(world, root, f"{batch}"), key=self.key("run-1", batch))
        copy = world.root()
        with pytest.raises(Conflict, match=r"checkpoint is older .* transactional id 'query' has batch 1"):
            publish(copy, "query", written(world, copy, "0"), key=self.key("restored", 0))
        with pytest.raises(Conflict, match="replay mismatch: batch 1 of writer 'query' has 0 records"):
            publish(copy, "query", [], key=self.key("restored", 1))
        publish(root, "query", written(world, root, "2"), key=self.key("run-1", 2))
        assert world.values_by_topic() == {name: ["0", "1", "2"] for name in "abc"}

    def test_an_empty_batch_writes_nothing(self) -> None:
        world = TopicsWorld()
        assert publish(world.root(), "query", [], key=self.key("run-1")).n is None
        assert list(world.store.list("_transactions/")) == []
