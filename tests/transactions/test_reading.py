"""Visibility of transactions: atomic, immediate, and limited by open transactions."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pyarrow as pa
import pytest

from sparklog.compaction.run import CompactOptions
from sparklog.errors import Corrupt, NotFound, Unavailable
from sparklog.log.decisions.decision_log import DecisionLog, consistent_snapshots
from sparklog.log.journal.entry_log import KEEP_MS
from sparklog.log.journal.names import checkpoint_key, commit_key
from sparklog.log.read.read_plan import read_parts
from sparklog.log.read.topic_scan import Tail
from sparklog.log.state.commit_intents import LogStartIntent
from sparklog.log.state.view import READ_COMMITTED, READ_UNCOMMITTED, OffsetRange
from sparklog.log.topic.root import RootView, open_root
from sparklog.maintenance.work_items import InProcess, Settings
from sparklog.storage.retries import SETTLE_MS
from sparklog.storage.store import ObjectInfo, Store
from sparklog.testing.faulty_store import Call, Fault, FaultKind, FaultyStore
from sparklog.testing.wrapper_stores import HookedStore
from sparklog.transactions.completion import resolve_topic
from sparklog.transactions.producer import TransactionalProducer, transactional
from tests.support.compaction import compact_topic
from tests.support.name_caching_store import NameCachingStore
from tests.support.records import rows
from tests.support.topics_world import TopicsWorld


def read(view: RootView, *topics: str) -> dict[str, list[str]]:
    """Read all snapshots of the view with read_committed."""
    found: dict[str, list[str]] = {}
    for name in topics:
        ranges = [OffsetRange(name, p, own.log_start, own.last_stable) for p, own in view.bounds(name).items()]
        batches = read_parts(view.plan(ranges, READ_COMMITTED), ("value",))
        found[name] = [value.decode() for batch in batches for value in batch["value"].to_pylist()]
    return found


def test_a_decision_is_visible_before_a_topic_has_recorded_it() -> None:
    world = TopicsWorld()
    transaction = world.prepare(world.producer(), a=["1"], b=["2"])
    before = {name: world.topic(name).log.state().version for name in "ab"}
    transaction.commit()
    topic = world.topic("a")
    assert topic.log.state().open
    assert topic.describe().open_transactions == ()
    assert [part.last_stable for part in topic.describe().partitions] == [1]
    assert topic.record_at(0, 0)["value"].to_pylist() == [b"1"]
    found = topic.offset_for_timestamp(0)[0]
    assert found is not None
    assert found.offset == 0
    assert world.values_by_topic()["b"] == ["2"]
    assert {name: world.topic(name).log.state().version for name in "ab"} == before


def test_an_aborted_record_is_never_found_under_read_committed() -> None:
    world = TopicsWorld()
    world.prepare(world.producer(), a=["1"]).abort()
    topic = world.topic("a")
    with pytest.raises(NotFound, match="compacted or aborted"):
        topic.record_at(0, 0)
    assert topic.record_at(0, 0, "read_uncommitted")["value"].to_pylist() == [b"1"]


def test_a_tail_waits_for_open_transactions_and_skips_no_records() -> None:
    world = TopicsWorld()
    tail = Tail(RootView(world.root()), "a", READ_COMMITTED)
    tail.open()
    tail.start_at_log_start()

    def poll() -> list[str]:
        tail.refresh()
        return [value.decode() for batch in tail.poll(("value",)) for value in batch["value"].to_pylist()]

    first = world.prepare(world.producer("x"), a=["x"])
    second = world.prepare(world.producer("y"), a=["y"])
    world.topic("a").append(rows("plain"))
    assert poll() == []
    second.commit()
    assert poll() == []
    first.commit()
    assert poll() == ["x", "y", "plain"]
    world.prepare(world.producer("z"), a=["z"]).abort()
    world.topic("a").append(rows("end"))
    assert poll() == ["end"]


def test_snapshots_of_two_topics_agree() -> None:
    """The snapshot of topic A is older than a transaction, and the snapshot of B is newer. A is refreshed."""
    for recorded in (False, True):
        world = TopicsWorld()
        reader, writer = world.root(), world.producer()
        view = RootView(reader)
        view.refresh(["a", "b"])
        with writer.begin() as transaction:
            transaction.append("a", rows("1"))
            transaction.append("b", rows("1"))
        if recorded:
            resolve_topic(world.topic("b"))
        view.refresh(["b"])
        assert read(view, "a", "b") == {"a": ["1"], "b": ["1"]}


def test_a_decision_between_two_snapshots_applies_to_both() -> None:
    world = TopicsWorld()
    transaction = world.prepare(world.producer(), a=["1"], b=["1"])
    root = world.root()
    view = RootView(root)
    take = view._latest

    def decided_meanwhile(name: str) -> object:
        found = take(name)
        if name == "a" and transaction.state == "open":
            transaction.commit()
        return found

    view._latest = decided_meanwhile  # type: ignore[method-assign, assignment]
    view.refresh(["a", "b"])
    assert read(view, "a", "b") == {"a": ["1"], "b": ["1"]}


def test_a_transaction_that_is_hidden_in_one_topic_is_hidden_in_all() -> None:
    world = TopicsWorld(partitions=2)
    blocker = world.producer("blocker").begin()
    blocker.append("a", rows("open", partition=0))
    blocker._prepare_topics()
    with world.producer().begin() as transaction:
        for name, partition in (("a", 0), ("a", 1), ("b", 1)):
            transaction.append(name, rows(f"{name}{partition}", partition=partition))
    world.topic("b").append(rows("after", partition=1))
    view = RootView(world.root())
    view.refresh(["a", "b"])
    assert read(view, "a", "b") == {"a": [], "b": []}
    assert world.values("a") == [], "one topic's partitions agree as well"
    view.refresh(["b"])
    blocker.commit()
    view.refresh(["a", "b"])
    assert read(view, "a", "b") == {"a": ["open", "a0", "a1"], "b": ["b1", "after"]}


def test_isolation_limits_plain_writes_per_partition_and_transactions_as_a_whole() -> None:
    """A commit after an open transaction (docs/design/differences.md). None of its records are skipped later."""
    world = TopicsWorld(partitions=2)
    both = pa.table({"value": [b"p0", b"p1"], "partition": pa.array([0, 1], pa.int32())})
    view = RootView(world.root())
    tail = Tail(RootView(world.root()), "a", READ_COMMITTED)
    tail.open()
    tail.start_at_log_start()

    def seen() -> list[str]:
        view.refresh(["a"])
        assert read(view, "a")["a"] == world.values("a")
        return world.values("a")

    def polled() -> list[str]:
        tail.refresh()
        return [value.decode() for batch in tail.poll(("value",)) for value in batch["value"].to_pylist()]

    blocker = world.producer("blocker").begin()
    blocker.append("a", rows("open", partition=0))
    blocker._prepare_topics()
    world.topic("a").append(both)
    assert world.values("a", READ_UNCOMMITTED) == ["open", "p0", "p1"]
    assert (seen(), polled()) == (["p1"], ["p1"])
    with world.producer("as one").begin() as transaction:
        transaction.append("a", both)
    assert (seen(), polled()) == (["p1"], [])
    blocker.commit()
    assert (seen(), polled()) == (["open", "p0", "p1", "p0", "p1"], ["open", "p0", "p0", "p1"])


def test_a_pruned_commit_is_not_an_abort_for_an_older_snapshot() -> None:
    """The reader finds A open, and is suspended while all topics record the COMMIT, which is then pruned."""
    world = TopicsWorld()
    producer = world.producer()
    transaction = world.prepare(producer, a=["1"])
    root = world.root()
    topic = root.topic("a")
    real = DecisionLog.deciding
    slept: list[int] = []

    def sleeps(log: DecisionLog, n: int) -> object:
        if not slept:
            slept.append(n)
            transaction.commit()
            resolve_topic(producer.root.topic("a"))
            for value in ("2", "3"):
                with producer.begin() as following:
                    following.append("b", rows(value))
            assert producer.log.refresh().commit_of(0) is None
        return real(log, n)

    DecisionLog.deciding = sleeps  # type: ignore[method-assign, assignment]
    try:
        values = topic.scan(columns=("value",)).to_table()["value"].to_pylist()
    finally:
        DecisionLog.deciding = real  # type: ignore[method-assign]
    assert slept
    assert values == [b"1"]


def forgotten(world: TopicsWorld, producer: TransactionalProducer) -> None:
    """Replace the latest decisions with other transactions, and delete the entries of the old decisions."""
    for value in ("2", "3"):
        with producer.begin() as following:
            following.append("b", rows(value))
    store, prefix = world.store, "_transactions/job"
    newest = producer.log.refresh()
    store.create(checkpoint_key(prefix, newest.number), store.get(commit_key(prefix, newest.number)))
    for number in range(newest.number):
        store.delete(commit_key(prefix, number))


def test_unclear_transactions_are_open_while_a_cache_may_hide_the_outcome() -> None:
    """This host does not see that topic a has recorded the COMMIT, and no entry refers to it any more."""
    world = TopicsWorld()
    producer = world.producer()
    transaction = world.prepare(producer, a=["1"])
    client = NameCachingStore(world.store, lambda: world.now_ms, name_ms=60_000)
    view = RootView(world.root(client))
    view.refresh(["a"])
    transaction.commit()
    resolve_topic(producer.root.topic("a"))
    world.topic("a").append(rows("behind"))
    forgotten(world, producer)
    for _ in range(2):
        view.refresh(["a"])
        assert read(view, "a") == {"a": []}
        world.now_ms += 59_999
    view.refresh(["a"])
    assert read(view, "a") == {"a": ["1", "behind"]}


def test_a_prepare_that_a_cache_hides_for_minutes_is_not_aborted() -> None:
    """The client of reader A caches a directory for ten minutes, which is longer than any wait.

    1. A reads topic a, whose transaction is open.
    2. Writer B commits the transaction, other transactions follow, and the entry of the decision is deleted.
    3. A reads again. While its client hides the commit in topic a, no records of the transaction are visible. After
       that, all are visible.
    """
    world = TopicsWorld()
    producer = world.producer()
    transaction = world.prepare(producer, a=["1"])
    world.topic("a").append(rows("behind"))
    client = NameCachingStore(world.store, world.clock, folder_ms=600_000)
    view = RootView(world.root(HidingFolder(client, world.store, "a/_log/")))
    view.refresh(["a"])
    transaction.commit()
    resolve_topic(producer.root.topic("a"))
    forgotten(world, producer)
    for _ in range(4):
        world.now_ms += 120_000
        view.refresh(["a"])
        assert read(view, "a") == {"a": []}
    world.now_ms += 120_000
    view.refresh(["a"])
    assert read(view, "a") == {"a": ["1", "behind"]}


def test_transactions_that_stay_unclear_are_aborted() -> None:
    world = TopicsWorld()
    producer = world.producer()
    world.prepare(producer, a=["never"]).abort()
    forgotten(world, producer)
    world.now_ms += KEEP_MS
    assert world.undecided("a") == [1]
    world.now_ms += 1
    assert world.undecided("a") == [0]
    assert world.values("a") == []


def test_readers_wait_for_topics_that_a_cache_hides() -> None:
    """Two transactions across both topics. The second commit to topic a is hidden from this host for a minute."""
    world = TopicsWorld()
    client = NameCachingStore(world.store, world.clock, name_ms=60_000)
    env = world.env()
    view = RootView(open_root(client, env=env))
    view.refresh(["a", "b"])
    producer = world.producer()
    for value in ("1", "2"):
        with producer.begin() as transaction:
            transaction.append("a", rows(value))
            transaction.append("b", rows(value))
    # Another process on this host has looked up the name. The commits of topic b are visible immediately.
    here = NameCachingStore(world.store, lambda: world.now_ms)
    view = RootView(open_root(Hiding(client, here, "a/_log/"), env=env))
    begun = world.now_ms
    view.refresh(["a", "b"])
    assert read(view, "a", "b") == {"a": ["1", "2"], "b": ["1", "2"]}
    assert 59_000 <= world.now_ms - begun <= SETTLE_MS
    assert len(world.slept) < 60


def test_a_hidden_decision_that_another_topic_has_recorded_is_visible() -> None:
    world = TopicsWorld()
    store = FaultyStore(world.store, lambda call: None, lambda seconds: None)
    view = RootView(world.root(store))
    transaction = world.prepare(world.producer(), a=["1"], b=["1"])
    view.refresh(["a", "b"])
    transaction.commit()
    resolve_topic(world.topic("b"))
    hidden: list[str] = []

    def hides(call: Call) -> Fault | None:
        if "_transactions" not in call.key or len(hidden) > 3:
            return None
        hidden.append(call.key)
        return Fault(FaultKind.ABSENT)

    store.decide = hides
    view.refresh(["a", "b"])
    assert hidden
    assert read(view, "a", "b") == {"a": ["1"], "b": ["1"]}
    transaction = world.prepare(world.producer(), a=["2"], b=["2"])
    transaction.commit()
    resolve_topic(world.topic("b"))
    store.decide = lambda call: Fault(FaultKind.ABSENT) if "_transactions" in call.key else None
    with pytest.raises(Unavailable, match=r"cannot read versions of .* that a transaction references"):
        view.refresh(["a", "b"])


@pytest.mark.parametrize("is_lost", [False, True])
def test_a_merged_topic_does_not_show_a_transaction_that_is_hidden_in_another_topic(is_lost: bool) -> None:
    """A merge removes the transaction of the records, so the topics alone do not show that one topic is behind."""
    world = TopicsWorld()
    hidden: set[str] = set()
    until = world.now_ms + 60_000

    def hides(call: Call) -> Fault | None:
        is_hidden = call.key in hidden and (is_lost or world.now_ms < until)
        return Fault(FaultKind.ABSENT) if is_hidden and call.verb != "list" else None

    view = RootView(open_root(FaultyStore(world.store, hides), env=world.env()))
    producer = world.producer()
    transaction = world.prepare(producer, a=["1"], b=["1"])
    view.refresh(["a", "b"])
    transaction.commit()
    hidden.add(commit_key("_transactions/job", producer.log.refresh().number))
    for name in "ab":
        resolve_topic(world.topic(name))
    hidden.add(commit_key("b", world.topic("b").log.state().version))
    for value in ("2", "3"):
        with producer.begin() as following:
            following.append("a", rows(value))
    settings, roll = Settings(world.now_ms), CompactOptions(roll=True)
    assert not compact_topic(world.topic("a"), settings, InProcess(), roll).failures
    if is_lost:
        with pytest.raises(Unavailable, match=r"cannot read versions of .* that a transaction references"):
            view.refresh(["a", "b"])
    else:
        view.refresh(["a", "b"])
        assert read(view, "a", "b") == {"a": ["1", "2", "3"], "b": ["1"]}


def test_records_below_a_damaged_decision_are_readable() -> None:
    world = TopicsWorld()
    world.topic("a").append(rows("below"))
    world.prepare(world.producer(), a=["open"])
    world.store.replace(commit_key("_transactions/job", 0), b"damaged")
    assert world.values("a") == ["below"]
    world.topic("a").append(rows("more"))
    assert world.values("a") == ["below"]
    assert world.undecided("a") == [2]
    view = RootView(world.root())
    with pytest.raises(Corrupt, match=r"_transactions/job/_log/00000000000000000000.json"):
        view.refresh(["a", "b"])


class Hiding(FaultyStore):
    """Reads of keys that start with `prefix` use `stale`. All other reads use `inner`."""

    def __init__(self, stale: Store, inner: Store, prefix: str) -> None:
        super().__init__(inner, lambda call: None)
        self.stale, self.prefix = stale, prefix

    def get(self, key: str, start: int = 0, length: int | None = None) -> bytes:
        return (self.stale if key.startswith(self.prefix) else self.inner).get(key, start, length)


class HidingFolder(Hiding):
    """Listings and attributes also come from `stale`."""

    def list(self, prefix: str, after: str = "") -> Iterator[ObjectInfo]:
        return (self.stale if prefix.startswith(self.prefix) else self.inner).list(prefix, after)

    def stat(self, key: str) -> ObjectInfo | None:
        return (self.stale if key.startswith(self.prefix) else self.inner).stat(key)


@pytest.mark.parametrize("reads", [True, False])
def test_decision_logs_are_read_in_parallel_on_a_remote_store(reads: bool) -> None:
    world = TopicsWorld()
    opened = [world.prepare(world.producer(name), a=[name]) for name in ("x", "y", "z")]
    opened[0].commit()
    opened[1].abort()
    meeting = threading.Barrier(3)

    def meet(verb: str, prefix: str) -> None:
        """Make listings of decisions wait until three of them are in flight."""
        if verb == "list" and prefix.startswith("_transactions/"):
            meeting.wait(300)

    topic = world.root(HookedStore(world.store, before=meet, parallel_reads=8)).topic("a")
    if reads:
        assert topic.scan(columns=("value",)).to_table()["value"].to_pylist() == [b"x"]
        assert topic.log.read_snapshot().state.last_stable().tolist() == [2]
        return
    topic.append(rows("next"))
    state = world.topic("a").log.state()
    assert [item.txn.id for item in state.open] == ["z"]


def test_a_deleted_topic_of_a_view_is_reported() -> None:
    world = TopicsWorld()
    view = RootView(world.root())
    view.refresh(["a", "b"])
    transaction = world.prepare(world.producer(), a=["1"], b=["1"])
    transaction.commit()
    world.root().delete_topic("b")
    view.refresh(["a"])
    assert read(view, "a") == {"a": ["1"]}
    with pytest.raises(NotFound, match="'b' does not exist"):
        view.refresh(["a", "b"])


def test_retention_past_an_open_slice_removes_it() -> None:
    world = TopicsWorld()
    transaction = world.prepare(world.producer(), a=["1"], b=["1"])
    topic = world.topic("a")
    topic.log.commit(LogStartIntent(topic.log.state().topic_id, {0: 1}))
    assert world.undecided("a") == [0]
    assert topic.log.state().open == ()
    transaction.commit()
    assert world.values_by_topic() == {"a": [], "b": ["1"], "c": []}


def test_readers_write_nothing() -> None:
    world = TopicsWorld()
    world.prepare(transactional(world.root(), "job", timeout_ms=1), a=["1"])
    world.now_ms += 10_000
    before = world.store.snapshot()
    world.values_by_topic()
    view = RootView(world.root())
    view.refresh(["a", "b", "c"])
    assert world.undecided("a") == [1]
    assert world.store.snapshot() == before


def test_parts_of_a_transaction_in_one_topic_become_visible_together() -> None:
    """Two jobs prepare in topic a. A reader reads a between the prepares, and the decision after the COMMIT."""
    world = TopicsWorld()
    owner = world.producer(timeout_ms=60_000).begin()
    shares = [world.producer(timeout_ms=60_000).join(owner.n, part) for part in ("one", "two")]
    shares[0].append("a", rows("1"))
    shares[0].prepare()
    engine = world.root().engine
    between = engine.log("a").snapshot()
    shares[1].append("a", rows("2"))
    shares[1].prepare()
    owner.commit()
    shown, _ = consistent_snapshots(engine.decisions, {"a": between}, lambda name: engine.log(name).snapshot())
    assert shown["a"].version > between.version
    assert shown["a"].state.last_stable().tolist() == [2]
