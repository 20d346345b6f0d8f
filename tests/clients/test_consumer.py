"""The consumer: its starting offsets, returned records, commits and fencing."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

import sparklog
from sparklog.errors import BadRequest, Conflict, Fenced, NotFound
from sparklog.groups.lag import Groups
from sparklog.limits import Limits
from sparklog.log.journal.names import commit_key
from sparklog.log.state.view import COLUMNS, READ_UNCOMMITTED
from tests.support.consumers import ConsumerWorld, append, everything, settle, values
from tests.support.hiding_store import HidingStore
from tests.support.records import rows


@pytest.fixture
def world() -> ConsumerWorld:
    return ConsumerWorld(partitions=2, sleep_takes_time=True)


def test_a_consumer_resumes_at_committed_offsets(world: ConsumerWorld) -> None:
    append(world, "a", 0, "1", "2")
    append(world, "a", 1, "3")
    with world.consumer() as consumer:
        assert sorted(everything(consumer)) == ["1", "2", "3"]
        assert consumer.positions() == {"a": {0: 2, 1: 1}}
        append(world, "a", 0, "4")
        assert everything(consumer) == ["4"]
        assert world.committed() == {}
    assert world.committed() == {("a", 0): 3, ("a", 1): 1}
    assert Groups(world.root()).group("g").description().state == "Empty"
    append(world, "a", 1, "5")
    with world.consumer() as consumer:
        assert everything(consumer) == ["5"]


def test_batches_have_the_columns_of_a_scan(world: ConsumerWorld) -> None:
    append(world, "a", 1, "1")
    with world.consumer(enable_auto_commit=False) as consumer:
        (batch,) = consumer.poll()
    assert tuple(batch.schema.names) == COLUMNS
    assert batch.to_pylist()[0]["topic"] == "a"
    assert (batch.to_pylist()[0]["partition"], batch.to_pylist()[0]["offset"]) == (1, 0)
    (batch,) = world.consumer(columns=("value", "offset")).poll()
    assert batch.to_pydict() == {"value": [b"1"], "offset": [0]}


def test_starting_offsets_of_a_group(world: ConsumerWorld) -> None:
    append(world, "a", 0, "1")
    with world.consumer(auto_offset_reset="latest") as consumer:
        assert consumer.poll() == []
        append(world, "a", 0, "2")
        assert everything(consumer) == ["2"]
    assert world.committed() == {("a", 0): 2, ("a", 1): 0}
    with pytest.raises(NotFound, match="group 'g' has no committed offset for b-0; seek to an offset, reset the group"):
        world.consumer(["a", "b"], auto_offset_reset="none")
    assert Groups(world.root()).group("g").description().state == "Empty"
    assert everything(world.consumer(auto_offset_reset="none")) == []


def test_latest_is_resolved_before_records_arrive(world: ConsumerWorld) -> None:
    append(world, "a", 0, "1")
    world.consumer(auto_offset_reset="latest").close()
    append(world, "a", 0, "2")
    assert everything(world.consumer(auto_offset_reset="latest")) == ["2"]


def test_offsets_out_of_range_are_reset(world: ConsumerWorld, caplog: pytest.LogCaptureFixture) -> None:
    append(world, "a", 0, "1", "2", "3")
    Groups(world.root()).group("g").alter({"a": {0: 1, 1: 7}})
    world.topic("a").delete_records({0: 2})
    with pytest.raises(NotFound, match="offset 1 of a-0 is out of range: expected 2 to 3"):
        world.consumer(auto_offset_reset="none")
    with world.consumer(auto_offset_reset="latest", enable_auto_commit=False) as consumer:
        assert consumer.positions() == {"a": {0: 3, 1: 0}}
    consumer = world.consumer()
    assert "offset 7 of a-1 is out of range: expected 0 to 0; continuing at 0" in caplog.text
    assert everything(consumer) == ["3"]
    append(world, "a", 0, "4", "5")
    world.topic("a").delete_records({0: 4})
    assert everything(consumer) == ["5"]
    consumer.seek("a", 0, 99)
    assert everything(consumer) == ["5"]


@pytest.mark.parametrize("reset", ["earliest", "latest", "none"])
def test_offsets_committed_by_the_previous_owner_are_in_range(world: ConsumerWorld, reset: str) -> None:
    append(world, "a", 0, "1", "2")
    append(world, "a", 1, "x", "y")
    older = world.consumer(enable_auto_commit=False)
    assert sorted(everything(older)) == ["1", "2", "x", "y"]
    older.commit()
    newer = world.consumer(auto_offset_reset=reset)
    # The newer member has already refreshed the topic, and this offset is beyond the end that it saw.
    append(world, "a", 0, "3", "4")
    append(world, "a", 1, "z")
    assert sorted(everything(older)) == ["3", "4", "z"]
    older.commit()
    settle(world, older, newer)
    ((_, partition),) = newer.assignment()
    assert newer.positions() == {"a": {partition: {0: 4, 1: 3}[partition]}}
    append(world, "a", partition, "5")
    assert everything(newer) == ["5"]
    assert everything(older) == []


def test_offsets_beyond_the_visible_end_are_retried(
    world: ConsumerWorld, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    append(world, "a", 0, "1", "2")
    with world.consumer() as older:
        assert everything(older) == ["1", "2"]
    until, newest = world.now_ms + 60_000, commit_key("a", world.topic("a").log.state().version)
    stale = HidingStore(world.store, lambda key: key == newest and world.now_ms < until, world.sleep)
    monkeypatch.setattr(world, "store", stale)
    consumer = world.consumer(session_timeout_ms=30_000)
    assert "beyond the log end of a-0 as seen from this host; retrying for 90 s" in caplog.text
    assert consumer.positions() == {"a": {0: 2, 1: 0}}
    assert Groups(world.root()).group("g").description().state == "Stable"
    assert everything(consumer) == []


def test_seek_uses_the_current_log_start_and_end(world: ConsumerWorld) -> None:
    consumer = world.consumer(auto_offset_reset="latest")
    append(world, "a", 0, "1", "2", "3")
    consumer.seek_to_end()
    assert everything(consumer) == []
    world.topic("a").delete_records({0: 1})
    consumer.seek_to_beginning()
    assert everything(consumer) == ["2", "3"]


def test_automatic_commits_cover_earlier_polls(world: ConsumerWorld) -> None:
    append(world, "a", 0, *map(str, range(10)))
    consumer = world.consumer(max_poll_records=3, auto_commit_interval_ms=5000)
    assert values(consumer.poll()) == ["0", "1", "2"]
    world.now_ms += 5000
    assert values(consumer.poll()) == ["3", "4", "5"]
    assert world.committed()["a", 0] == 3
    assert values(consumer.poll()) == ["6", "7", "8"]
    assert world.committed()["a", 0] == 3
    with pytest.raises(ZeroDivisionError), consumer:
        raise ZeroDivisionError
    # The failed work must be repeated.
    assert world.committed()["a", 0] == 3
    assert everything(world.consumer()) == ["3", "4", "5", "6", "7", "8", "9"]


def test_explicit_commits(world: ConsumerWorld) -> None:
    append(world, "a", 0, "1", "2", "3")
    consumer = world.consumer(enable_auto_commit=False, max_poll_records=1)
    assert values(consumer.poll()) == ["1"]
    world.now_ms += 60_000
    assert values(consumer.poll()) == ["2"]
    assert world.committed() == {}
    consumer.commit()
    assert world.committed() == {("a", 0): 2, ("a", 1): 0}
    consumer.commit({"a": {0: 1}})
    assert consumer.committed()["a", 0].offset == 1
    number = consumer.group.log.refresh().number
    consumer.commit()
    consumer.commit()
    assert consumer.group.log.refresh().number == number + 1
    consumer.close()
    consumer.close()
    assert world.committed()["a", 0] == 2
    with pytest.raises(BadRequest, match="is closed"):
        consumer.poll()


def test_a_seek_drops_prefetched_records(world: ConsumerWorld) -> None:
    append(world, "a", 0, "1", "2", "3")
    consumer = world.consumer(max_poll_records=2)
    assert values(consumer.poll()) == ["1", "2"]
    assert consumer.position("a", 0) == 2
    consumer.seek("a", 0, 1)
    assert everything(consumer) == ["2", "3"]
    consumer.seek_to_beginning()
    assert everything(consumer) == ["1", "2", "3"]
    consumer.seek_to_beginning()
    consumer.seek_to_end()
    assert everything(consumer) == []
    for wrong in (-1, True, "1"):
        with pytest.raises(BadRequest, match="offset must be an integer of at least 0"):
            consumer.seek("a", 0, wrong)  # type: ignore[arg-type]
    with pytest.raises(NotFound, match="does not read partition 9 of topic 'a'"):
        consumer.seek("a", 9, 0)


def test_topics_with_large_backlogs_are_read_in_turns(world: ConsumerWorld) -> None:
    world.store.limits = Limits(fetch_bytes=200)
    for topic in ("a", "b"):
        for number in range(12):
            append(world, topic, number % 2, f"{topic}{number % 2}-{number:02}")
    consumer = world.consumer(["b", "a"])
    found = everything(consumer)
    assert len(found) == len(set(found)) == 24
    for part in ("a0", "a1", "b0", "b1"):
        own = [value for value in found if value.startswith(part)]
        assert own == sorted(own)
    assert len({value[:2] for value in found[:12]}) == 4


def test_poll_waits_and_sends_heartbeats(world: ConsumerWorld) -> None:
    consumer = world.consumer(session_timeout_ms=9_000, auto_commit_interval_ms=1_000)
    begun = world.now_ms
    assert consumer.poll(timeout=30) == []
    assert 30_000 <= world.now_ms - begun < 31_000
    assert Groups(world.root()).group("g").description().state == "Stable"
    # A commit of the starting offsets, and then a heartbeat every three seconds.
    assert 10 <= consumer.group.log.current().number <= 12
    with pytest.raises(Conflict, match="group 'g' is active"):
        Groups(world.root()).group("g").alter({"a": {0: 0}})
    world.now_ms += 9_000
    Groups(world.root()).group("g").alter({"a": {0: 0}})
    with pytest.raises(Fenced):
        consumer.commit({"a": {0: 0}})
    consumer.close()


def test_read_committed_stops_at_the_last_stable_offset(world: ConsumerWorld) -> None:
    append(world, "a", 0, "1")
    transaction = world.prepare(world.producer(), a=["open"])
    append(world, "a", 0, "2")
    append(world, "a", 1, "3")
    with world.consumer(isolation_level=READ_UNCOMMITTED, enable_auto_commit=False) as dirty:
        assert sorted(everything(dirty)) == ["1", "2", "3", "open"]
    read = world.consumer()
    first = everything(read)
    assert "open" not in first
    assert not {"1", "2", "3"} <= set(first)
    transaction.commit()
    assert sorted(first + everything(read)) == ["1", "2", "3", "open"]
    aborted = world.prepare(world.producer("other"), a=["never"])
    aborted.abort()
    append(world, "a", 0, "4")
    assert everything(read) == ["4"]


def test_deleted_topics_and_added_partitions(world: ConsumerWorld) -> None:
    append(world, "a", 0, "1")
    consumer = world.consumer(auto_offset_reset="latest")
    world.topic("a").alter(partitions=3)
    append(world, "a", 2, "new")
    assert everything(consumer) == ["new"]
    world.root().delete_topic("a")
    with pytest.raises(NotFound, match="topic 'a' does not exist"):
        consumer.poll()
    world.root().create_topic("a")
    append(world, "a", 0, "other")
    with pytest.raises(Conflict, match="topic a was deleted and recreated while it was being read"):
        consumer.poll()
    consumer.close()
    assert world.committed() == {}
    assert Groups(world.root()).group("g").description().state == "Empty"
    assert everything(world.consumer()) == ["other"]
    with pytest.raises(NotFound, match="topic 'nope' does not exist"):
        world.consumer("nope")


def test_invalid_options_are_rejected(world: ConsumerWorld) -> None:
    for how, says in (
        ({"topics": []}, "requires at least one topic"),
        ({"auto_offset_reset": "newest"}, "auto_offset_reset must be earliest, latest or none, found 'newest'"),
        ({"max_poll_records": 0}, "max_poll_records must be an integer of at least 1"),
        ({"auto_commit_interval_ms": -1}, "auto_commit_interval_ms must be an integer of at least 0"),
        ({"isolation_level": "odd"}, "isolation_level must be read_committed or read_uncommitted"),
        ({"columns": ("value", "odd")}, "expected distinct columns"),
        ({"session_timeout_ms": 0}, "session_timeout_ms must be an integer from 1 to"),
        (
            {"session_timeout_ms": 2_000},
            "heartbeat_interval_ms must be lower than session_timeout_ms, found 3000 and 2000",
        ),
        (
            {"partition_assignment_strategy": ("odd",)},
            "partition_assignment_strategy must be a list of range, roundrobin, sticky, coop",
        ),
        ({"topics": None, "pattern": "("}, r"pattern must be a regular expression, found '\('"),
        ({"pattern": "b"}, "expected topics or a pattern"),
        ({"group_instance_id": 7}, "group_instance_id must be a string or None"),
        ({"listener": print}, "listener must be a RebalanceListener"),
    ):
        with pytest.raises(BadRequest, match=says):
            world.consumer(**how)  # type: ignore[arg-type]
    assert Groups(world.root()).names() == []


def test_consume_transform_produce_is_exactly_once(world: ConsumerWorld) -> None:
    append(world, "a", 0, "1", "2", "3")
    consumer = world.consumer(enable_auto_commit=False, max_poll_records=1)
    producer = world.producer()

    def step(*, fail: bool = False) -> None:
        batches = consumer.poll()
        with producer.begin() as transaction:
            transaction.append("b", rows(*[value.upper() + "!" for value in values(batches)]))
            transaction.send_offsets(consumer)
            if fail:
                raise ZeroDivisionError

    step()
    assert (world.values("b"), world.committed()) == (["1!"], {("a", 0): 1, ("a", 1): 0})
    with pytest.raises(ZeroDivisionError):
        step(fail=True)
    consumer.seek_to_committed()
    step()
    assert (world.values("b"), world.committed()["a", 0]) == (["1!", "2!"], 2)
    # An operator reset the group during the step, so the group does not continue after the records of this step.
    Groups(world.root()).group("g").alter({"a": {0: 2}}, force=True)
    with pytest.raises(Fenced, match="was superseded"), producer.begin() as transaction:
        transaction.send_offsets(consumer)
    assert values(consumer.poll()) == ["3"]
    assert world.values("b") == ["1!", "2!"]
    with pytest.raises(BadRequest, match="enable_auto_commit=False"):
        producer.begin().send_offsets(world.consumer())
    assert producer._open is not None
    with pytest.raises(BadRequest, match="only a consumer may omit the offsets"):
        producer._open.send_offsets("g")


def test_transactions_send_offsets_with_the_group_metadata(world: ConsumerWorld) -> None:
    append(world, "a", 0, "1", "2")
    consumer, producer = world.consumer(enable_auto_commit=False), world.producer()
    member = consumer.group_metadata()
    with producer.begin() as transaction:
        transaction.send_offsets(member, {"a": {0: 1}})
    assert world.committed()["a", 0] == 1
    consumer.close()
    with pytest.raises(Fenced), producer.begin() as transaction:
        transaction.send_offsets(member, {"a": {0: 2}})
    assert world.committed()["a", 0] == 1


def test_on_a_local_disk(tmp_path: Path) -> None:
    root = sparklog.open(tmp_path / "log", create=True)
    root.create_topic("a", partitions=4).append(pa.table({"value": [b"%d" % i for i in range(100)]}))
    with sparklog.consumer(tmp_path / "log", "g", topics="a", auto_offset_reset="earliest") as consumer:
        assert sorted(map(int, everything(consumer))) == list(range(100))
        assert consumer.poll(timeout=0.05) == []
    committed = Groups(str(tmp_path / "log")).group("g").committed()
    assert sum(item.offset for item in committed.values()) == 100
