"""Reading with a consumer: manual assignment, patterns, pauses, positions by time, and iteration over records."""

from __future__ import annotations

import asyncio
import re
import threading
from contextvars import ContextVar
from pathlib import Path

import pyarrow as pa
import pytest

import sparklog
from sparklog.clients.consumer.consumer import Consumer
from sparklog.errors import BadRequest, Conflict, NotFound, Wakeup
from sparklog.groups.lag import Groups
from sparklog.log.topic.root import open_root
from tests.support.consumers import ConsumerWorld, append, everything, values

A0, A1, B0 = ("a", 0), ("a", 1), ("b", 0)


class Noted(sparklog.RebalanceListener):
    """A listener that records its calls."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, list[tuple[str, int]]]] = []

    def on_assigned(self, partitions: frozenset[tuple[str, int]]) -> None:
        self.calls.append(("assigned", sorted(partitions)))

    def on_revoked(self, partitions: frozenset[tuple[str, int]]) -> None:
        self.calls.append(("revoked", sorted(partitions)))


@pytest.fixture
def world() -> ConsumerWorld:
    return ConsumerWorld(partitions=2, sleep_takes_time=True)


def reader(world: ConsumerWorld, group: str | None = "g", **how: object) -> Consumer:
    root = open_root(world.store, env=world.env())
    return sparklog.consumer(root, group, auto_offset_reset="earliest", **how)  # type: ignore[arg-type]


def test_manual_assignment(world: ConsumerWorld) -> None:
    append(world, "a", 0, "a0")
    append(world, "a", 1, "a1")
    append(world, "b", 0, "b0")
    consumer = reader(world)
    with pytest.raises(BadRequest, match="has nothing to read: subscribe to topics, or assign partitions"):
        consumer.poll()
    consumer.assign({"a": [1], "b": [0]})
    assert consumer.assignment() == {A1, B0}
    assert consumer.subscription() == frozenset()
    assert sorted(everything(consumer)) == ["a1", "b0"]
    assert Groups(world.root()).names() == []
    with pytest.raises(BadRequest, match="manually assigned partitions: call unsubscribe first"):
        consumer.subscribe("a")
    with pytest.raises(BadRequest, match="not a member of a group"):
        consumer.group_metadata()
    # The remaining topics continue, and the read records of the removed topics are committed.
    consumer.assign([A0, A1])
    assert everything(consumer) == ["a0"]
    assert world.committed() == {A1: 1, B0: 1}
    with pytest.raises(NotFound, match="topic a has partitions 0 to 1, found partition 2"):
        consumer.assign({"a": [2]})
    consumer.close()
    assert world.committed() == {A0: 1, A1: 1, B0: 1}
    assert Groups(world.root()).group("g").description().state == "Empty"


def test_manual_assignment_commits_only_if_the_group_has_no_members(world: ConsumerWorld) -> None:
    append(world, "a", 0, "1")
    consumer = reader(world, enable_auto_commit=False)
    consumer.assign({"a": [0]})
    assert everything(consumer) == ["1"]
    member = world.consumer("b")
    with pytest.raises(Conflict, match="group 'g' is active"):
        consumer.commit()
    member.close()
    consumer.commit()
    assert world.committed()[A0] == 1


def test_failed_subscribe_leaves_no_subscription(world: ConsumerWorld) -> None:
    append(world, "a", 0, "1")
    Groups(world.root()).group("g").join("owner")
    consumer = reader(world)
    with pytest.raises(Conflict):
        consumer.subscribe("a")
    assert (consumer.subscription(), consumer.topics) == (frozenset(), ())
    consumer.assign({"a": [0]})
    assert everything(consumer) == ["1"]


def test_a_consumer_without_a_group(world: ConsumerWorld) -> None:
    append(world, "a", 0, "1")
    for consumer in (reader(world, None, topics="a"), reader(world, None)):
        if not consumer.topics:
            consumer.assign({"a": [0]})
        assert everything(consumer) == ["1"]
        with pytest.raises(BadRequest, match="cannot commit offsets: specify a group"):
            consumer.commit()
        with pytest.raises(BadRequest, match="has no group"):
            consumer.committed()
        consumer.close()
    with pytest.raises(NotFound, match="without a group has no committed offset for a-0; seek"):
        sparklog.consumer(world.root(), topics="a", auto_offset_reset="none")
    assert Groups(world.root()).names() == []


def test_a_subscription_can_be_replaced_and_removed(world: ConsumerWorld) -> None:
    for topic in ("a", "b"):
        append(world, topic, 0, topic)
    noted = Noted()
    consumer = reader(world, topics="a", listener=noted)
    assert noted.calls == []
    assert everything(consumer) == ["a"]
    assert noted.calls == [("assigned", [A0, A1])]
    with pytest.raises(BadRequest, match="is subscribed to topics: call unsubscribe first"):
        consumer.assign({"a": [0]})
    consumer.subscribe(["b"], listener=noted)
    assert consumer.subscription() == {"b"}
    assert everything(consumer) == ["b"]
    assert noted.calls[1:] == [("revoked", [A0, A1]), ("assigned", [B0, ("b", 1)])]
    assert world.committed()[A0] == 1
    consumer.unsubscribe()
    assert noted.calls[3:] == [("revoked", [B0, ("b", 1)])]
    assert (consumer.assignment(), consumer.topics) == (frozenset(), ())
    assert world.committed()[B0] == 1
    assert Groups(world.root()).group("g").description().state == "Empty"
    consumer.assign({"c": [0]})
    assert everything(consumer) == []
    assert len(noted.calls) == 4
    with pytest.raises(BadRequest, match="a listener requires a subscription: specify topics or a pattern"):
        reader(world, listener=noted)


def test_a_listener_can_seek_and_its_errors_are_raised_by_poll(world: ConsumerWorld) -> None:
    append(world, "a", 0, "1", "2", "3")

    class Seeks(sparklog.RebalanceListener):
        def on_assigned(self, partitions: frozenset[tuple[str, int]]) -> None:
            consumer.seek("a", 0, 2)

        def on_revoked(self, partitions: frozenset[tuple[str, int]]) -> None:
            raise ZeroDivisionError

    consumer = reader(world, topics="a", listener=Seeks())
    assert everything(consumer) == ["3"]
    with pytest.raises(ZeroDivisionError):
        consumer.close()
    # The member has left the group nevertheless.
    assert Groups(world.root()).group("g").description().state == "Empty"
    assert world.committed()[A0] == 3


def test_commits_of_on_revoked_at_close_succeed(world: ConsumerWorld) -> None:
    append(world, "a", 0, "1", "2", "3")

    class Commits(sparklog.RebalanceListener):
        def on_revoked(self, partitions: frozenset[tuple[str, int]]) -> None:
            consumer.commit({"a": {0: 2}})

    with reader(world, topics="a", listener=Commits(), enable_auto_commit=False) as consumer:
        assert len(everything(consumer)) == 3
    assert world.committed()[A0] == 2


def test_a_pattern_follows_created_and_deleted_topics(world: ConsumerWorld) -> None:
    append(world, "a", 0, "a")
    noted = Noted()
    consumer = reader(
        world, pattern=re.compile("a|new.*"), listener=noted, metadata_max_age_ms=60_000, session_timeout_ms=600_000
    )
    assert consumer.subscription() == {"a"}
    assert everything(consumer) == ["a"]
    for name in ("new1", "not-new"):
        world.root().create_topic(name)
        append(world, name, 0, name)
    assert everything(consumer) == []
    world.now_ms += 60_000
    assert everything(consumer) == ["new1"]
    assert consumer.topics == ("a", "new1")
    world.root().delete_topic("a")
    append(world, "new1", 0, "more")
    assert everything(consumer) == ["more"]
    assert consumer.assignment() == {("new1", 0)}
    assert noted.calls == [("assigned", [A0, A1]), ("assigned", [("new1", 0)]), ("revoked", [A0, A1])]


def test_new_topics_of_a_pattern_are_read_from_the_start(world: ConsumerWorld) -> None:
    root = open_root(world.store, env=world.env())
    consumer = sparklog.consumer(root, "g", pattern="new.*", metadata_max_age_ms=0, session_timeout_ms=60_000)
    assert consumer.poll() == []
    world.root().create_topic("new1")
    append(world, "new1", 0, "1")
    assert everything(consumer) == ["1"]


def test_pause_and_resume(world: ConsumerWorld) -> None:
    append(world, "a", 0, *"123")
    append(world, "a", 1, "x")
    consumer = reader(world, topics="a", max_poll_records=1)
    consumer.pause(A1)
    assert consumer.paused() == {A1}
    assert values(consumer.poll()) == ["1"]
    consumer.pause(A0)
    assert consumer.poll() == []
    consumer.resume(A0, A1)
    assert sorted(everything(consumer)) == ["2", "3", "x"]
    consumer.pause()
    assert consumer.paused() == frozenset()
    with pytest.raises(NotFound, match="does not read partition 0 of topic 'b'"):
        consumer.pause(B0)
    consumer.pause(A0)
    consumer.subscribe("b")
    consumer.poll()
    assert consumer.paused() == frozenset()


def test_offsets_by_time(world: ConsumerWorld) -> None:
    times = (1_700_000_000_000, 1_700_000_001_000, 1_700_000_002_000)
    table = pa.table({"value": ["1", "2", "3"], "timestamp": pa.array(times, pa.timestamp("ms", tz="UTC"))})
    world.topic("a").append(table.append_column("partition", pa.array([0] * 3, pa.int32())))
    append(world, "b", 0, "late")
    consumer = reader(world, topics="a")
    assert consumer.beginning_offsets([A0, B0]) == {A0: 0, B0: 0}
    assert consumer.end_offsets({"a": [0, 1], "b": [0]}) == {A0: 3, A1: 0, B0: 1}
    answers = consumer.offsets_for_times({A0: times[0] + 1, A1: times[0], B0: 0})
    assert (answers[A0], answers[A1]) == (sparklog.log.state.view.TimestampOffset(1, times[1]), None)
    assert answers[B0] is not None
    consumer.seek_to_timestamp(times[2])
    assert consumer.positions() == {"a": {0: 2, 1: 0}}
    assert everything(consumer) == ["3"]
    consumer.seek_to_timestamp(times[0], A0)
    assert everything(consumer) == ["1", "2", "3"]
    consumer.seek_to_beginning(A0)
    consumer.seek_to_timestamp(times[2] + 1, A0)
    assert everything(consumer) == []
    consumer.seek_to_beginning(A1)
    assert everything(consumer) == []
    with pytest.raises(NotFound, match="topic b has partitions 0 to 1, found partition 7"):
        consumer.end_offsets([("b", 7)])


def test_end_offsets_are_those_of_the_isolation_level(world: ConsumerWorld) -> None:
    append(world, "a", 0, "1")
    world.prepare(world.producer(), a=["open"])
    ends = [
        reader(world, None, isolation_level=level).end_offsets([A0, A1])
        for level in ("read_committed", "read_uncommitted")
    ]
    assert sum(ends[1].values()) == sum(ends[0].values()) + 1


def test_records_one_by_one(world: ConsumerWorld) -> None:
    world.topic("a").append(
        pa.table(
            {
                "key": [b"k", None],
                "value": [None, b"v"],
                "partition": pa.array([1, 1], pa.int32()),
                "timestamp": pa.array([1_700_000_000_123] * 2, pa.timestamp("ms", tz="UTC")),
                "headers": [[{"key": "h", "value": b"1"}, {"key": "h", "value": None}], None],
            }
        )
    )
    consumer = reader(world, topics="a", consumer_timeout_ms=0)
    first, second = list(consumer)
    assert first == sparklog.ConsumerRecord("a", 1, 0, 1_700_000_000_123, 0, b"k", None, [("h", b"1"), ("h", None)])
    assert (second.offset, second.key, second.value, list(second.headers or ())) == (1, None, b"v", [])
    consumer.close()
    assert list(consumer) == []
    narrow = reader(world, None, topics="a", columns=("value",), consumer_timeout_ms=0)
    assert [(record.offset, record.value, record.key, record.headers) for record in narrow] == [
        (0, None, None, None), (1, b"v", None, None)
    ]  # fmt: skip


def test_only_returned_records_are_committed(world: ConsumerWorld) -> None:
    append(world, "a", 0, *map(str, range(1200)))
    consumer = reader(world, topics="a", auto_commit_interval_ms=0, consumer_timeout_ms=0)
    for record in consumer:
        if record.offset == 700:
            break
    # The check of the group between two chunks was after record 499.
    assert world.committed()[A0] == 500
    assert consumer.position("a", 0) == 701
    assert [values(consumer.poll())[0] for _ in range(1)] == ["701"]
    consumer.seek("a", 0, 1)
    assert next(consumer).offset == 1
    consumer.commit()
    assert world.committed()[A0] == 2
    assert [record.offset for record in consumer][-1] == 1199
    consumer.close()
    assert world.committed()[A0] == 1200


def test_iteration_and_poll_can_be_mixed(world: ConsumerWorld) -> None:
    append(world, "a", 0, *map(str, range(10)))
    consumer = reader(world, topics="a", consumer_timeout_ms=0, max_poll_records=4)
    assert next(consumer).value == b"0"
    assert values(consumer.poll()) == ["1", "2", "3", "4"]
    assert next(consumer).value == b"5"
    consumer.pause(A0)
    assert list(consumer) == []
    consumer.resume(A0)
    assert [int(record.value or b"") for record in consumer] == [6, 7, 8, 9]


def test_a_coroutine_reads_batches_in_a_thread(world: ConsumerWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    append(world, "a", 0, *map(str, range(1200)))
    consumer = reader(world, topics="a", auto_commit_interval_ms=0, consumer_timeout_ms=0)
    context = ContextVar("context", default="")
    reads: list[tuple[bool, str]] = []
    read_chunk, caller = consumer._read_chunk, threading.get_ident()

    def count() -> bool:
        reads.append((threading.get_ident() == caller, context.get()))
        return read_chunk()

    monkeypatch.setattr(consumer, "_read_chunk", count)

    async def read() -> list[int]:
        context.set("of the coroutine")
        offsets = [next(consumer).offset]
        async for record in consumer:
            offsets.append(record.offset)
            assert consumer.position("a", 0) == record.offset + 1
        return offsets

    assert asyncio.run(read()) == list(range(1200))
    # The first batch was read by `next`. The last call found no more records.
    assert reads == [(True, "of the coroutine"), *[(False, "of the coroutine")] * 3]
    consumer.close()
    assert world.committed()[A0] == 1200
    assert asyncio.run(read_all(consumer)) == []


async def read_all(consumer: sparklog.Consumer) -> list[sparklog.ConsumerRecord]:
    return [record async for record in consumer]


def test_a_cancelled_coroutine_stops_its_thread() -> None:
    world = ConsumerWorld()
    consumer = sparklog.consumer(open_root(world.store), topics="a", auto_offset_reset="earliest")

    async def main() -> None:
        task = asyncio.create_task(read_all(consumer))
        await asyncio.sleep(0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    append(world, "a", 0, "1")
    # No thread reads from the consumer, and the wakeup of the thread does not affect later calls.
    assert next(consumer).value == b"1"
    consumer.close()


def test_the_end_of_asyncio_run_stops_the_thread(tmp_path: Path) -> None:
    root = sparklog.open(tmp_path, create=True)
    root.create_topic("a")
    consumer, tasks = sparklog.consumer(root, topics="a"), list[object]()

    async def main() -> None:
        tasks.append(asyncio.create_task(read_all(consumer)))
        await asyncio.sleep(0.2)

    thread = threading.Thread(target=lambda: asyncio.run(main()), daemon=True)
    thread.start()
    thread.join(20)
    has_ended = not thread.is_alive()
    consumer.wakeup()  # Otherwise, the thread of a failed test would not end.
    assert has_ended


def test_wakeup(world: ConsumerWorld) -> None:
    consumer = reader(world, topics="a")
    consumer.wakeup()
    with pytest.raises(Wakeup, match="was woken up"):
        consumer.poll(timeout=1e9)
    assert consumer.poll() == []


def test_wakeup_from_another_thread() -> None:
    world = ConsumerWorld()
    root = open_root(world.store)
    consumer = sparklog.consumer(root, topics="a")
    timer = threading.Timer(0.05, consumer.wakeup)
    timer.start()
    with pytest.raises(Wakeup):
        next(consumer)
    timer.join()


def test_queued_commits_run_in_order_in_the_next_call(world: ConsumerWorld) -> None:
    append(world, "a", 0, *"123")
    outcomes: list[tuple[object, object]] = []
    consumer = reader(world, topics="a", enable_auto_commit=False, max_poll_records=1)
    for number in (1, 2):
        consumer.poll()
        consumer.commit_async(callback=lambda offsets, error: outcomes.append((offsets, error)))
        assert len(outcomes) == number - 1
    before = consumer.group.log.refresh().number
    consumer.commit_async({"a": {0: 9, 7: 1}}, lambda offsets, error: outcomes.append((offsets, type(error))))
    consumer.commit_async({"a": {1: 0}})
    assert world.committed()[A0] == 1
    consumer.poll()
    assert outcomes[1:] == [({"a": {0: 2, 1: 0}}, None), ({"a": {0: 9, 7: 1}}, BadRequest)]
    assert world.committed() == {A0: 2, A1: 0}
    assert consumer.group.log.refresh().number == before + 2
    for offset in range(100):
        consumer.commit_async({"a": {0: offset}})
    consumer.close()
    # Queued commits are written as one entry. Then the member leaves.
    assert world.committed()[A0] == 99
    assert consumer.group.log.refresh().number == before + 4
    with pytest.raises(BadRequest, match="is closed"):
        consumer.commit_async()


def test_callback_of_a_queued_commit_can_commit(world: ConsumerWorld) -> None:
    append(world, "a", 0, *"123")
    outcomes: list[object] = []
    consumer = reader(world, topics="a", enable_auto_commit=False)

    def commit_again(offsets: object, error: Exception | None) -> None:
        outcomes.append(type(error))
        consumer.commit({"a": {0: 3}})

    # The merged entry is rejected because of partition 7, so each commit is written separately.
    consumer.commit_async({"a": {7: 0}}, commit_again)
    consumer.commit_async({"a": {0: 2}}, lambda offsets, error: outcomes.append(error))
    consumer.poll()
    assert (outcomes, world.committed()) == ([BadRequest, None], {A0: 3})


def test_queued_commits_are_written_once_if_a_callback_fails(world: ConsumerWorld) -> None:
    append(world, "a", 0, *"123")
    outcomes: list[object] = []
    consumer = reader(world, topics="a", enable_auto_commit=False)
    consumer.commit_async({"a": {0: 1}}, lambda offsets, error: 1 / 0)
    consumer.commit_async({"a": {0: 2}}, lambda offsets, error: outcomes.append(error))
    with pytest.raises(ZeroDivisionError):
        consumer.poll()
    before = consumer.group.log.refresh().number
    consumer.poll()
    assert (outcomes, consumer.group.log.refresh().number) == ([None], before)


def test_positions_are_those_of_the_returned_records(world: ConsumerWorld) -> None:
    world.topic("a").append({"value": [str(number) for number in range(9)], "partition": [0, 1, 1] * 3})
    consumer = reader(world, topics="a", consumer_timeout_ms=0, enable_auto_commit=False)
    expected = {A0: 0, A1: 0}
    for count, record in enumerate(consumer, start=1):
        expected[record.topic, record.partition] = record.offset + 1
        if count % 4 == 0:
            assert {pair: consumer.position(*pair) for pair in expected} == expected
            consumer.commit()
            committed = world.committed()
            assert {pair: committed[pair] for pair in expected} == expected
        if count == 6:
            consumer.seek(*A1, 2)
            expected[A1] = 2
    assert consumer.positions() == {"a": {0: 3, 1: 6}}
