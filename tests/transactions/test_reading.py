"""What readers see of transactions: decided at once, all or nothing, and never past what is open."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator

import pyarrow as pa
import pytest

from sparklog.errors import Corrupt, NotFound, Unavailable
from sparklog.log.decisions.decision_log import DecisionLog
from sparklog.log.journal.env import Env
from sparklog.log.journal.names import checkpoint_key, commit_key
from sparklog.log.journal.numbered_objects import SETTLE_MS
from sparklog.log.read.scan import read_parts
from sparklog.log.read.tail import Tail
from sparklog.log.state.intents import LogStartIntent
from sparklog.log.state.view import OffsetRange
from sparklog.log.topic.root import open_root
from sparklog.log.topic.root_view import RootView
from sparklog.storage.faulty import Call, Fault, FaultKind, FaultyStore
from sparklog.storage.memory import MemoryStore
from sparklog.storage.store import ObjectInfo, Store
from sparklog.transactions import TransactionalProducer, transactional
from sparklog.transactions.completion import resolve_topic
from tests.support.name_caching_store import NameCachingStore
from tests.transactions.house import READ_COMMITTED, READ_UNCOMMITTED, House, rows


def read(view: RootView, *topics: str) -> dict[str, list[str]]:
    """All of the view's snapshots under read_committed."""
    found: dict[str, list[str]] = {}
    for name in topics:
        ranges = [OffsetRange(name, p, own.log_start, own.last_stable) for p, own in view.bounds(name).items()]
        batches = read_parts(view.plan(ranges, READ_COMMITTED), ("value",))
        found[name] = [value.decode() for batch in batches for value in batch["value"].to_pylist()]
    return found


def test_a_decision_is_seen_before_any_topic_has_recorded_it() -> None:
    house = House()
    transaction = house.hold(house.producer(), a=["1"], b=["2"])
    before = {name: house.topic(name).head().version for name in "ab"}
    transaction.commit()
    topic = house.topic("a")
    assert topic.head().open
    assert topic.describe().open_transactions == ()
    assert [part.last_stable for part in topic.describe().partitions] == [1]
    assert topic.record_at(0, 0)["value"].to_pylist() == [b"1"]
    found = topic.offset_for_timestamp(0)[0]
    assert found is not None
    assert found.offset == 0
    assert house.seen()["b"] == ["2"]
    assert {name: house.topic(name).head().version for name in "ab"} == before


def test_an_aborted_record_is_never_found_under_read_committed() -> None:
    house = House()
    house.hold(house.producer(), a=["1"]).abort()
    topic = house.topic("a")
    with pytest.raises(NotFound, match="compacted away or aborted"):
        topic.record_at(0, 0)
    assert topic.record_at(0, 0, "read_uncommitted")["value"].to_pylist() == [b"1"]


def test_a_tail_waits_for_what_is_open_and_skips_nothing() -> None:
    house = House()
    tail = Tail(RootView(house.root()), "a", READ_COMMITTED)
    tail.open()
    tail.start_at_log_start()

    def poll() -> list[str]:
        tail.refresh()
        return [value.decode() for batch in tail.poll(("value",)) for value in batch["value"].to_pylist()]

    first = house.hold(house.producer("x"), a=["x"])
    second = house.hold(house.producer("y"), a=["y"])
    house.topic("a").append(rows("plain"))
    assert poll() == []
    second.commit()
    assert poll() == []
    first.commit()
    assert poll() == ["x", "y", "plain"]
    house.hold(house.producer("z"), a=["z"]).abort()
    house.topic("a").append(rows("end"))
    assert poll() == ["end"]


def test_snapshots_of_two_topics_agree() -> None:
    """A's snapshot is taken before a transaction and B's after it: A is looked at again."""
    for recorded in (False, True):
        house = House()
        reader, writer = house.root(), house.producer()
        view = RootView(reader)
        view.refresh(["a", "b"])
        with writer.begin() as transaction:
            transaction.append("a", rows("1"))
            transaction.append("b", rows("1"))
        if recorded:
            resolve_topic(house.topic("b"))
        view.refresh(["b"])
        assert read(view, "a", "b") == {"a": ["1"], "b": ["1"]}


def test_a_decision_between_two_snapshots_is_the_same_for_both() -> None:
    house = House()
    transaction = house.hold(house.producer(), a=["1"], b=["1"])
    root = house.root()
    view = RootView(root)
    take = view._take

    def decided_meanwhile(name: str) -> object:
        found = take(name)
        if name == "a" and transaction.state == "open":
            transaction.commit()
        return found

    view._take = decided_meanwhile  # type: ignore[method-assign, assignment]
    view.refresh(["a", "b"])
    assert read(view, "a", "b") == {"a": ["1"], "b": ["1"]}


def test_what_another_transaction_hides_in_one_topic_is_shown_in_none() -> None:
    house = House(partitions=2)
    blocker = house.producer("blocker").begin()
    blocker.append("a", rows("open", partition=0))
    blocker._prepare_topics()
    with house.producer().begin() as transaction:
        for name, partition in (("a", 0), ("a", 1), ("b", 1)):
            transaction.append(name, rows(f"{name}{partition}", partition=partition))
    house.topic("b").append(rows("after", partition=1))
    view = RootView(house.root())
    view.refresh(["a", "b"])
    assert read(view, "a", "b") == {"a": [], "b": []}
    assert house.values("a") == [], "one topic's partitions agree as well"
    view.refresh(["b"])
    blocker.commit()
    view.refresh(["a", "b"])
    assert read(view, "a", "b") == {"a": ["open", "a0", "a1"], "b": ["b1", "after"]}


def test_a_plain_write_is_held_back_by_partition_and_a_transaction_as_a_whole() -> None:
    """What docs/differences.md says of a commit behind somebody's open transaction; nothing of it is skipped later."""
    house = House(partitions=2)
    both = pa.table({"value": [b"p0", b"p1"], "partition": pa.array([0, 1], pa.int32())})
    view = RootView(house.root())
    tail = Tail(RootView(house.root()), "a", READ_COMMITTED)
    tail.open()
    tail.start_at_log_start()

    def seen() -> list[str]:
        view.refresh(["a"])
        assert read(view, "a")["a"] == house.values("a")
        return house.values("a")

    def polled() -> list[str]:
        tail.refresh()
        return [value.decode() for batch in tail.poll(("value",)) for value in batch["value"].to_pylist()]

    blocker = house.producer("blocker").begin()
    blocker.append("a", rows("open", partition=0))
    blocker._prepare_topics()
    house.topic("a").append(both)
    assert house.values("a", READ_UNCOMMITTED) == ["open", "p0", "p1"]
    assert (seen(), polled()) == (["p1"], ["p1"])
    with house.producer("as one").begin() as transaction:
        transaction.append("a", both)
    assert (seen(), polled()) == (["p1"], [])
    blocker.commit()
    assert (seen(), polled()) == (["open", "p0", "p1", "p0", "p1"], ["open", "p0", "p0", "p1"])


def test_a_forgotten_commit_is_no_abort_for_an_older_snapshot() -> None:
    """The reader finds A open, sleeps, and meanwhile all topics record the COMMIT, which is forgotten then."""
    house = House()
    producer = house.producer()
    transaction = house.hold(producer, a=["1"])
    root = house.root()
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


def forgotten(house: House, producer: TransactionalProducer) -> None:
    """Other transactions take the place of what was decided, and the entries that decided it are collected."""
    for value in ("2", "3"):
        with producer.begin() as following:
            following.append("b", rows(value))
    store, prefix = house.store, "_transactions/job"
    newest = producer.log.refresh()
    store.create(checkpoint_key(prefix, newest.number), store.get(commit_key(prefix, newest.number)))
    for number in range(newest.number):
        store.delete(commit_key(prefix, number))


def test_what_is_unclear_is_open_until_no_cache_can_hide_it_any_more() -> None:
    """This machine does not see that topic a has recorded the COMMIT, and nothing tells of it any more."""
    house = House()
    producer = house.producer()
    transaction = house.hold(producer, a=["1"])
    client = NameCachingStore(house.store, lambda: house.now_ms, name_ms=60_000)
    view = RootView(house.root(client))
    view.refresh(["a"])
    transaction.commit()
    resolve_topic(producer.root.topic("a"))
    house.topic("a").append(rows("behind"))
    forgotten(house, producer)
    for _ in range(2):
        view.refresh(["a"])
        assert read(view, "a") == {"a": []}
        house.now_ms += 59_999
    view.refresh(["a"])
    assert read(view, "a") == {"a": ["1", "behind"]}


def test_what_stays_unclear_was_aborted() -> None:
    house = House()
    producer = house.producer()
    house.hold(producer, a=["never"]).abort()
    forgotten(house, producer)
    house.now_ms += SETTLE_MS
    assert house.held("a") == [1]
    house.now_ms += 1
    assert house.held("a") == [0]
    assert house.values("a") == []


def test_topics_that_a_cache_keeps_apart_are_waited_for() -> None:
    """Two transactions over both topics: the second's commit to a is not seen here for a minute."""
    house = House()
    client = NameCachingStore(house.store, lambda: house.now_ms, name_ms=60_000)
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        house.now_ms += round(seconds * 1000)

    env = Env(lambda: house.now_ms, lambda: house.now_ms, sleep, random.Random(1))
    view = RootView(open_root(client, env=env))
    view.refresh(["a", "b"])
    producer = house.producer()
    for value in ("1", "2"):
        with producer.begin() as transaction:
            transaction.append("a", rows(value))
            transaction.append("b", rows(value))
    # Another process of this machine has looked for it; topic b's commits are seen as they come.
    here = NameCachingStore(house.store, lambda: house.now_ms)
    view = RootView(open_root(Hiding(client, here, "a/_log/"), env=env))
    begun = house.now_ms
    view.refresh(["a", "b"])
    assert read(view, "a", "b") == {"a": ["1", "2"], "b": ["1", "2"]}
    assert 59_000 <= house.now_ms - begun <= SETTLE_MS
    assert len(slept) < 60


def test_a_cache_that_hides_a_decision_which_another_topic_has_recorded() -> None:
    house = House()
    store = FaultyStore(house.store, lambda call: None, lambda seconds: None)
    view = RootView(house.root(store))
    transaction = house.hold(house.producer(), a=["1"], b=["1"])
    view.refresh(["a", "b"])
    transaction.commit()
    resolve_topic(house.topic("b"))
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
    transaction = house.hold(house.producer(), a=["2"], b=["2"])
    transaction.commit()
    resolve_topic(house.topic("b"))
    store.decide = lambda call: Fault(FaultKind.ABSENT) if "_transactions" in call.key else None
    with pytest.raises(Unavailable, match="a transaction names versions that cannot be seen"):
        view.refresh(["a", "b"])


def test_a_damaged_decision_log_leaves_what_lies_below_readable() -> None:
    house = House()
    house.topic("a").append(rows("below"))
    house.hold(house.producer(), a=["open"])
    house.store.replace(commit_key("_transactions/job", 0), b"damaged")
    assert house.values("a") == ["below"]
    house.topic("a").append(rows("more"))
    assert house.values("a") == ["below"]
    assert house.held("a") == [2]
    view = RootView(house.root())
    with pytest.raises(Corrupt, match=r"_transactions/job/_log/00000000000000000000.json"):
        view.refresh(["a", "b"])


class Hiding(FaultyStore):
    """Reads of keys that begin with `prefix` go through `stale`, all others through `inner`."""

    def __init__(self, stale: Store, inner: Store, prefix: str) -> None:
        super().__init__(inner, lambda call: None)
        self.stale, self.prefix = stale, prefix

    def get(self, key: str, start: int = 0, length: int | None = None) -> bytes:
        return (self.stale if key.startswith(self.prefix) else self.inner).get(key, start, length)


class Distant(FaultyStore):
    """A store that asks to be read in parallel, and answers for decisions only when three are asked at once."""

    parallel_reads = 8

    def __init__(self, inner: MemoryStore) -> None:
        super().__init__(inner, lambda call: None)
        self.meeting = threading.Barrier(3)

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        if prefix.startswith("_transactions/"):
            self.meeting.wait(300)
        return super().list(prefix)


@pytest.mark.parametrize("reads", [True, False])
def test_several_decision_logs_are_asked_at_once_where_each_answer_takes_long(reads: bool) -> None:
    house = House()
    opened = [house.hold(house.producer(name), a=[name]) for name in ("x", "y", "z")]
    opened[0].commit()
    opened[1].abort()
    topic = house.root(Distant(house.store)).topic("a")  # type: ignore[arg-type]
    if reads:
        assert topic.scan(columns=("value",)).to_table()["value"].to_pylist() == [b"x"]
        assert topic.read_snapshot().head.last_stable().tolist() == [2]
        return
    topic.append(rows("next"))
    head = house.topic("a").head()
    assert [item.txn.id for item in head.open] == ["z"]


def test_a_topic_of_a_view_that_is_deleted() -> None:
    house = House()
    view = RootView(house.root())
    view.refresh(["a", "b"])
    transaction = house.hold(house.producer(), a=["1"], b=["1"])
    transaction.commit()
    house.root().delete_topic("b")
    view.refresh(["a"])
    assert read(view, "a") == {"a": ["1"]}
    with pytest.raises(NotFound, match="'b' does not exist"):
        view.refresh(["a", "b"])


def test_retention_past_an_open_slice_forgets_it() -> None:
    house = House()
    transaction = house.hold(house.producer(), a=["1"], b=["1"])
    topic = house.topic("a")
    topic.commit(LogStartIntent(topic.head().topic_id, {0: 1}))
    assert house.held("a") == [0]
    assert topic.head().open == ()
    transaction.commit()
    assert house.seen() == {"a": [], "b": ["1"], "c": []}


def test_readers_write_nothing() -> None:
    house = House()
    house.hold(transactional(house.root(), "job", timeout_ms=1), a=["1"])
    house.now_ms += 10_000
    before = house.store.snapshot()
    house.seen()
    view = RootView(house.root())
    view.refresh(["a", "b", "c"])
    assert house.held("a") == [1]
    assert house.store.snapshot() == before
