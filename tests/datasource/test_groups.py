"""Consumer groups in Spark reads, without Spark: starting offsets, and the commits of a streaming query."""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import sparklog
from sparklog.datasource import group_progress
from sparklog.datasource.data_source import check_group_location
from sparklog.datasource.group_progress import RETRY_MS, GroupProgress
from sparklog.datasource.option_table import DEFAULT_SESSION_TIMEOUT_MS
from sparklog.datasource.options import parse_options
from sparklog.datasource.starting_offsets import batch_ranges
from sparklog.datasource.stream_plan import Clock, StreamPlanner
from sparklog.datasource.subscription import Subscriber
from sparklog.errors import BadRequest, Conflict, Fenced, NotFound, Unavailable
from sparklog.groups.group import Group
from sparklog.groups.lag import Groups
from sparklog.log.topic.root import Root, RootView, open_root
from sparklog.opening import KAFKA_DIRECTORY, ROOT, Location
from sparklog.testing.faulty_store import Crash, Fault, FaultKind, FaultyStore
from sparklog.testing.wrapper_stores import CountingStore
from tests.datasource.memory_view import MemoryView
from tests.support.records import rows
from tests.support.topics_world import TopicsWorld

Document = dict[str, Any]
VALUES = tuple("0123456789")
STOPPED = Clock(lambda: 0.0, lambda seconds: None)


@pytest.fixture
def world() -> TopicsWorld:
    """Topics a and b with 10 records in each of two partitions."""
    world = TopicsWorld(partitions=2)
    for topic in ("a", "b"):
        for partition in (0, 1):
            world.topic(topic).append(rows(*VALUES, partition=partition))
    return world


def group(world: TopicsWorld, name: str = "g") -> Group:
    return Groups(world.root()).group(name)


def offsets(world: TopicsWorld, name: str = "g") -> dict[tuple[str, int], int]:
    return {place: item.offset for place, item in group(world, name).committed().items()}


class Query:
    """The process that plans a query. `batch` runs one micro-batch as Spark plans it."""

    def __init__(self, world: TopicsWorld, root: Root | None = None, **options: str) -> None:
        given = {"subscribe": "a", "startingoffsets": "earliest", "kafka.group.id": "g"}
        given |= {name.replace("_", ".").lower(): value for name, value in options.items()}
        self.options = parse_options({name: value for name, value in given.items() if value})
        self.root = root or world.root()
        view = RootView(self.root)
        subscriber = Subscriber(view, Location(ROOT, "/log", "/log"), self.options.read.subscription)
        self.planner = StreamPlanner(view, subscriber, self.options.read, STOPPED)
        self.progress = GroupProgress(self.root, self.options.read)
        self.at: Document = {}

    def batch(self) -> dict[tuple[str, int], int]:
        """Return the end offsets of the batch."""
        start = self.at or json.loads(json.dumps(self.planner.initial()))
        self.progress.processed(start)
        end = json.loads(json.dumps(self.planner.latest(start, limited=True)))
        self.progress.processed(start)
        self.planner.ranges(start, end)
        self.at = end
        return {(topic, int(p)): n for topic, at in end.items() if topic[0] != "$" for p, n in at.items()}


# -- starting offsets


def batch_starts(world: TopicsWorld, **options: str) -> dict[tuple[str, int], int]:
    given = {"subscribe": "a", "startingoffsets": "group", "kafka.group.id": "g"}
    parsed = parse_options(given | {name.replace("_", ".").lower(): value for name, value in options.items()})
    parsed.check_batch_read()
    view = RootView(world.root())
    subscriber = Subscriber(view, Location(ROOT, "/log", "/log"), parsed.read.subscription)
    return {(each.topic, each.partition): each.start for each in batch_ranges(view, subscriber, parsed.read, STOPPED)}


def stream_starts(world: TopicsWorld, **options: str) -> dict[tuple[str, int], int]:
    first = Query(world, startingOffsets="group", **options).planner.initial()
    return {(topic, int(p)): n for topic, at in first.items() if topic[0] != "$" for p, n in at.items()}  # type: ignore[attr-defined]


@pytest.mark.parametrize(("starts", "default"), [(batch_starts, 0), (stream_starts, 10)])
def test_reads_start_at_the_committed_offsets(world: TopicsWorld, starts: Callable[..., Any], default: int) -> None:
    group(world).alter({"a": {0: 4}, "b": {1: 10}})
    reset = "kafka_auto_offset_reset"
    both = {"subscribe": "a,b"}
    for how, elsewhere in (({}, default), ({reset: "earliest"}, 0), ({reset: "Latest"}, 10)):
        expected = {("a", 0): 4, ("a", 1): elsewhere, ("b", 0): elsewhere, ("b", 1): 10}
        assert starts(world, **both, **how) == expected
    with pytest.raises(NotFound, match="Group 'g' has no offset committed for a-1, b-0: reset the group, or set kafka"):
        starts(world, **both, **{reset: "none"})
    group(world).alter({"a": {1: 7}})
    assert starts(world, **{reset: "none"}) == {("a", 0): 4, ("a", 1): 7}
    assert starts(world, kafka_group_id="nobody") == {("a", 0): default, ("a", 1): default}


@pytest.mark.parametrize("starts", [batch_starts, stream_starts])
def test_an_offset_beyond_the_end_is_not_data_loss(world: TopicsWorld, starts: Callable[..., Any]) -> None:
    before = world.store.snapshot()
    world.topic("a").append(rows("x", partition=0))
    group(world).alter({"a": {0: 11, 1: 4}})
    after = world.store.snapshot()
    kept = {key: value for key, value in after.items() if "_groups/" in key}
    world.store.restore({**before, **kept})
    with pytest.raises(
        NotFound, match="is at offset 11 of a-0, which has offsets 0 to 10: reset the group, or set kafka"
    ):
        starts(world)


@pytest.mark.parametrize("starts", [batch_starts, stream_starts])
def test_an_offset_out_of_range(
    world: TopicsWorld, starts: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    group(world).alter({"a": {0: 4, 1: 4}})
    world.topic("a").delete_records({0: 6})
    reset = "kafka_auto_offset_reset"
    with pytest.raises(
        NotFound, match=r"Group 'g' is at offset 4 of a-0, which has offsets 6 to 10\. If this loss .*failOnData"
    ):
        starts(world)
    with caplog.at_level(logging.WARNING):
        assert starts(world, failOnDataLoss="false") == {("a", 0): 6, ("a", 1): 4}
        assert starts(world, **{reset: "latest"}) == {("a", 0): 10, ("a", 1): 4}
    assert "group 'g' is at offset 4 of a-0, which has offsets 6 to 10; the read starts at the latest" in caplog.text
    assert starts(world, **{reset: "earliest"}) == {("a", 0): 6, ("a", 1): 4}
    with pytest.raises(NotFound, match="Group 'g' has offset 4 of a-0, which has offsets 6 to 10: reset the group"):
        starts(world, **{reset: "none"})


@pytest.mark.parametrize("starts", [batch_starts, stream_starts])
def test_offsets_committed_during_planning_are_in_range(
    world: TopicsWorld, starts: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    group(world).alter({"a": {0: 4, 1: 4}})
    stable = Group.stable

    def late(found: Group) -> object:
        world.topic("a").append(rows(*VALUES, partition=0))
        group(world).alter({"a": {0: 12}})
        return stable(found)

    monkeypatch.setattr(Group, "stable", late)
    assert starts(world, kafka_auto_offset_reset="earliest") == {("a", 0): 12, ("a", 1): 4}


def test_offsets_of_an_earlier_topic_are_ignored(world: TopicsWorld) -> None:
    group(world).alter({"a": {0: 4, 1: 4}})
    world.root().delete_topic("a")
    world.root().create_topic("a", partitions=2)
    world.topic("a").append(rows(*VALUES, partition=0))
    assert batch_starts(world, kafka_auto_offset_reset="earliest") == {("a", 0): 0, ("a", 1): 0}


def test_transactional_offsets_apply_after_the_decision(world: TopicsWorld) -> None:
    producer = world.producer()
    transaction = producer.begin()
    transaction.send_offsets("g", {"a": {0: 9, 1: 9}})
    transaction.commit()
    assert batch_starts(world, kafka_auto_offset_reset="none") == {("a", 0): 9, ("a", 1): 9}


def test_a_batch_ends_at_the_ending_offsets(world: TopicsWorld) -> None:
    group(world).alter({"a": {0: 8, 1: 2}})
    view = RootView(world.root())
    options = {"subscribe": "a", "startingoffsets": "group", "kafka.group.id": "g"}
    read = parse_options({**options, "endingoffsets": '{"a":{"0":5,"1":5}}'}).read
    found = batch_ranges(view, Subscriber(view, Location(ROOT, "/log", "/log"), read.subscription), read)
    assert [(each.start, each.end) for each in found] == [(5, 5), (2, 5)]


# -- options


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"startingoffsets": "group"}, "startingOffsets=group requires a consumer group: set kafka.group.id"),
        ({"startingoffsets": "grup"}, "must be 'earliest', 'latest', 'group' or JSON such as"),
        ({"endingoffsets": "group"}, "must be 'earliest', 'latest' or JSON such as"),
        ({"kafka.group.id": ""}, "a kafka.group.id must have 1 to"),
        ({"kafka.group.instance.id": ""}, "a kafka.group.instance.id must have 1 to"),
        (
            {"kafka.session.timeout.ms": "86400001"},
            "'kafka.session.timeout.ms' must be an integer from 1 to 86400000",
        ),
        ({"kafka.session.timeout.ms": "0"}, "must be an integer from 1 to 86400000"),
        (
            {"kafka.auto.offset.reset": "none"},
            "requires startingOffsets=group; otherwise, set startingOffsets to earliest or",
        ),
        (
            {"startingoffsets": "group", "kafka.group.id": "g", "kafka.auto.offset.reset": "first"},
            "must be earliest, latest or none, found 'first'",
        ),
    ],
)
def test_a_mistake_is_a_one_line_error(options: dict[str, str], expected: str) -> None:
    with pytest.raises(BadRequest) as error:
        parse_options(options)
    assert expected in str(error.value)
    assert "\n" not in str(error.value)


def test_settings_of_groups_are_those_of_kafkas_clients() -> None:
    read = parse_options({"groupidprefix": "p"}).read
    assert (read.group_id, read.session_timeout_ms) == (None, DEFAULT_SESSION_TIMEOUT_MS)
    parse_options({"kafka.group.id": "g", "kafka.session.timeout.ms": "1"}).check_write()
    with pytest.raises(BadRequest, match="applies only to reads"):
        parse_options(
            {"kafka.group.id": "g", "kafka.auto.offset.reset": "none", "startingoffsets": "group"}
        ).check_write()


def test_offsets_are_not_committed_to_a_kafka_directory() -> None:
    place = Location(KAFKA_DIRECTORY, "/kafka", "/kafka")
    check_group_location(parse_options({}).read, place)
    with pytest.raises(BadRequest, match=r"/kafka is a Kafka log directory, which is read-only: remove kafka.group.id"):
        check_group_location(parse_options({"kafka.group.id": "g"}).read, place)
    read = parse_options({"subscribe": "t", "startingoffsets": "group", "kafka.group.id": "g"}).read
    view = MemoryView()
    view.create("t")
    with pytest.raises(BadRequest, match="is a Kafka directory, which has no sparklog groups"):
        batch_ranges(view, Subscriber(view, place, read.subscription), read)


# -- commits of a query


def test_progress_is_committed_when_the_next_batch_is_planned(world: TopicsWorld) -> None:
    query = Query(world, maxOffsetsPerTrigger="4", kafka_group_instance_id="copier")
    ends = [query.batch()]
    description = group(world).description()
    assert (description.state, description.instance, offsets(world)) == ("Stable", "copier", {})
    for _ in range(4):
        ends.append(query.batch())
        assert offsets(world) == ends[-2]
    assert ends[0] == {("a", 0): 2, ("a", 1): 2}
    query.batch()
    query.batch()
    assert offsets(world) == {("a", 0): 10, ("a", 1): 10}


def test_each_batch_with_progress_is_one_commit(world: TopicsWorld) -> None:
    counting = CountingStore(world.store)
    query = Query(world, world.root(counting), subscribe="a,b")
    query.batch()

    def entries() -> int:
        return sum(verb == "create" and key.startswith("_groups/") for verb, key in counting.keys)

    before = entries()
    query.batch()
    assert entries() == before + 1
    world.topic("b").append(rows("x", partition=1))
    for _ in range(5):
        query.batch()
    assert entries() == before + 2
    assert offsets(world) == {("a", 0): 10, ("a", 1): 10, ("b", 0): 10, ("b", 1): 11}
    times = {place: item.time_ms for place, item in group(world).committed().items()}
    assert len(set(times.values())) == 1


def test_a_restart_commits_only_new_progress(world: TopicsWorld) -> None:
    first = Query(world, maxOffsetsPerTrigger="8")
    first.batch()
    first.batch()
    assert offsets(world) == {("a", 0): 4, ("a", 1): 4}
    # The query is killed after its second batch, which is in the checkpoint.
    world.now_ms += 1000
    second = Query(world, maxOffsetsPerTrigger="8")
    second.at = first.at
    second.batch()
    assert offsets(world) == {("a", 0): 8, ("a", 1): 8}
    third = Query(world)
    third.at = first.at
    number = group(world).state().number
    third.batch()
    assert group(world).state().number == number + 1
    assert group(world).state().op == "join"


def test_the_latest_query_fences_earlier_ones(world: TopicsWorld) -> None:
    old, new = Query(world, maxOffsetsPerTrigger="4"), Query(world, maxOffsetsPerTrigger="4")
    old.batch()
    new.batch()
    with pytest.raises(Fenced, match=r"generation 1 \(spark-.*was superseded.*set a different group for each"):
        old.batch()
    new.batch()
    assert offsets(world) == {("a", 0): 2, ("a", 1): 2}


def test_a_reset_is_rejected_while_the_query_is_active(
    world: TopicsWorld,
) -> None:
    query = Query(world, maxOffsetsPerTrigger="4", kafka_session_timeout_ms="30000")
    query.batch()
    query.batch()
    with pytest.raises(Conflict, match="is active"):
        group(world).alter({"a": {0: 0}})
    world.now_ms += 31_000
    group(world).alter({"a": {0: 0}})
    with pytest.raises(Fenced, match="resetting the group also stops the query"):
        query.batch()
    assert offsets(world) == {("a", 0): 0, ("a", 1): 2}


def test_an_idle_query_sends_heartbeats(world: TopicsWorld) -> None:
    query = Query(world, kafka_session_timeout_ms="30000")
    query.batch()
    query.batch()
    number = group(world).state().number
    for _ in range(12):
        world.now_ms += 5_000
        query.batch()
        assert group(world).description().state == "Stable"
    assert group(world).state().number == number + 6


def test_an_available_now_query_leaves_the_group(world: TopicsWorld) -> None:
    query = Query(world)
    query.batch()
    query.planner.prepare_available_now()
    end = query.at
    query.batch()
    assert query.planner.is_available_now
    assert query.at == end
    query.progress.finish()
    assert (group(world).description().state, offsets(world)) == ("Empty", {("a", 0): 10, ("a", 1): 10})
    number = group(world).state().number
    query.batch()
    query.progress.finish()
    assert group(world).state().number == number


def test_a_reader_that_could_not_open_its_group_opens_it_in_the_next_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("pyspark", "4.2")
    from pyspark.sql.types import BinaryType, StructField, StructType

    from sparklog.datasource.data_source import SparklogDataSource

    root = sparklog.open(tmp_path / "log", create=True)
    root.create_topic("t").append(rows("1", "2"))
    given = {"path": str(tmp_path / "log"), "subscribe": "t", "startingOffsets": "earliest", "kafka.group.id": "g"}
    reader: Any = SparklogDataSource(given).streamReader(StructType([StructField("value", BinaryType())]))

    def fail(*given: object) -> None:
        raise Unavailable("the group cannot be read")

    with monkeypatch.context() as broken:
        broken.setattr(group_progress, "GroupProgress", fail)
        with pytest.raises(Exception, match="the group cannot be read"):
            reader.initialOffset()
    start = reader.initialOffset()
    end = reader.latestOffset(start, reader.getDefaultReadLimit())
    reader.partitions(start, end)
    reader.latestOffset(end, reader.getDefaultReadLimit())
    assert {place: item.offset for place, item in Groups(root).group("g").committed().items()} == {("t", 0): 2}
    reader.stop()


def test_a_group_that_cannot_be_written_does_not_stop_a_query(
    world: TopicsWorld, caplog: pytest.LogCaptureFixture
) -> None:
    broken = [True]

    def script(call: Any) -> Fault | None:
        return Fault(FaultKind.ERROR_BEFORE) if broken[0] and "_groups/" in call.key else None

    query = Query(world, world.root(FaultyStore(world.store, script)), maxOffsetsPerTrigger="4")
    with caplog.at_level(logging.WARNING):
        query.batch()
        query.batch()
    assert caplog.text.count("the offsets of group 'g' were not committed; a later micro-batch") == 1
    broken[0] = False
    query.batch()
    assert offsets(world) == {}
    world.now_ms += RETRY_MS
    ends = query.batch()
    assert (offsets(world), ends) == ({("a", 0): 6, ("a", 1): 6}, {("a", 0): 8, ("a", 1): 8})
    broken[0] = True
    query.progress.finish()
    assert group(world).description().state == "Stable"


def test_deleted_topics_are_skipped(world: TopicsWorld) -> None:
    query = Query(world, subscribe="a,b", failOnDataLoss="false")
    query.batch()
    world.root().delete_topic("a")
    world.root().delete_topic("b")
    world.root().create_topic("b", partitions=1)
    query.batch()
    assert offsets(world) == {}
    world.topic("b").append(rows("x"))
    query.batch()
    query.batch()
    assert offsets(world) == {("b", 0): 1}


def test_the_last_commit_of_a_run_does_not_wait(world: TopicsWorld) -> None:
    broken = [True]

    def script(call: Any) -> Fault | None:
        return Fault(FaultKind.ERROR_BEFORE) if broken[0] and "_groups/" in call.key else None

    query = Query(world, world.root(FaultyStore(world.store, script)))
    query.batch()
    query.batch()
    broken[0] = False
    query.batch()
    assert offsets(world) == {}
    query.progress.finish(query.at)
    assert (group(world).description().state, offsets(world)) == ("Empty", {("a", 0): 10, ("a", 1): 10})


def test_a_restored_root_keeps_its_committed_offsets(world: TopicsWorld) -> None:
    group(world).alter({"a": {0: 7, 1: 7}})
    before = world.store.snapshot()
    world.topic("a").alter(partitions=3)
    for partition in (0, 2):
        world.topic("a").append(rows(*VALUES, partition=partition))
    first = Query(world)
    first.batch()
    first.batch()
    assert offsets(world) == {("a", 0): 20, ("a", 1): 10, ("a", 2): 10}
    world.store.restore(before)
    for loss in ("true", "false"):
        following = Query(world, failOnDataLoss=loss)
        following.at = first.at
        with pytest.raises(Unavailable, match=r"is ahead of the log of a-0, a-2 .* a separate checkpointLocation"):
            following.batch()
        assert offsets(world) == {("a", 0): 7, ("a", 1): 10}
    following = Query(world, startingOffsets="group")
    for _ in range(2):
        following.batch()
    assert offsets(world) == {("a", 0): 10, ("a", 1): 10}


def test_a_killed_run_is_completed_by_the_next_run() -> None:
    for nth in range(200):
        world = TopicsWorld()
        world.topic("a").append(rows(*VALUES))
        calls = [0]

        def script(call: Any, nth: int = nth, calls: list[int] = calls) -> Fault | None:
            calls[0] += "_groups/" in call.key
            return Fault(FaultKind.CRASH_AFTER) if "_groups/" in call.key and calls[0] == nth + 1 else None

        query = Query(world, world.root(FaultyStore(world.store, script)), maxOffsetsPerTrigger="3")
        try:
            for _ in range(6):
                query.batch()
        except Crash:
            pass
        done = nth >= calls[0]
        following = Query(world)
        following.at = query.at
        if following.at:
            following.batch()
            assert offsets(world) == {("a", 0): query.at["a"]["0"]}
        following.batch()
        following.batch()
        assert offsets(world) == {("a", 0): 10}
        if done:
            return
    raise AssertionError("too many steps")


PLANNER = """
import sys, time
from pyspark.sql.types import BinaryType, StructField, StructType
from sparklog.datasource.data_source import SparklogDataSource

source = SparklogDataSource({"path": sys.argv[1], "kafka.group.id": "g", "startingOffsets": "earliest"})
reader = source.streamReader(StructType([StructField('value', BinaryType())]))
try:
    start = reader.initialOffset()
    reader.latestOffset(start, reader.getDefaultReadLimit())
    print("planned", flush=True)
    time.sleep(600)
finally:
    reader.stop()
"""


def test_a_query_stopped_by_sigterm_leaves_its_group(tmp_path: Path) -> None:
    pytest.importorskip("pyspark", "4.2")
    root = open_root(tmp_path / "log", create=True)
    root.create_topic("in").append(rows("x"))
    environ = {**os.environ, "PYTHON_WORKER_FACTORY_SECRET": "x"}
    command = [sys.executable, "-c", PLANNER, str(tmp_path / "log" / "in")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"planned\n"
        assert Group(root, "g").description().state == "Stable"
        process.terminate()
        _, complaint = process.communicate()
    assert (process.returncode, complaint) == (-signal.SIGTERM, b"")
    assert Group(root, "g").description().state == "Empty"
