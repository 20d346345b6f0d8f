"""What each operation costs in requests, asserted with a counting store. The cost calculator counts with the same."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from sparklog.clients.consumer.consumer import consumer
from sparklog.doctor import costs
from sparklog.groups.group import Group
from sparklog.groups.group_state import GROUPS
from sparklog.log.decisions.decision import DECISIONS
from sparklog.log.journal.chain import ids_of
from sparklog.log.state.slices import FileSlices
from sparklog.log.state.view import READ_COMMITTED, OffsetRange
from sparklog.log.topic.root import RootView
from sparklog.log.topic.topic import Topic, WriterKey
from sparklog.log.write.append_writer import AppendWriter
from sparklog.transactions.producer import transactional
from tests.support.counted_root import KINDS_AND_BUCKET, CountedRoot
from tests.support.records import random_rows, rows, small

PARTITIONS = 16
PUTS = ("create", "writer")
LISTS = ("list", "list_folders")
TASKS = 2


@pytest.fixture(params=KINDS_AND_BUCKET)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> CountedRoot:
    return CountedRoot(request.param, tmp_path)


def within(place: CountedRoot, budget: costs.Requests) -> None:
    """Assert the requests since the last reset."""
    counts = place.store.counts
    made = costs.Requests(
        sum(counts[verb] for verb in PUTS), counts["get"] + counts["stat"], sum(counts[verb] for verb in LISTS)
    )
    kept = made.puts <= budget.puts and made.gets <= budget.gets and made.lists <= budget.lists
    assert kept, (made, budget, place.store.keys)


def micro_batch(place: CountedRoot, topic: Topic, batch: int, tasks: int = TASKS) -> None:
    """What the sink does: a target on the driver, an append file per task, one commit."""
    target = topic.log.append_target()
    files: list[FileSlices] = []
    for task in range(tasks):
        writer = AppendWriter(target, small("zstd"), place.world.env(), seed=batch * tasks + task)
        for piece in random_rows(400, keys=1000, seed=batch, first=batch * 1000 + task * 500).to_batches():
            writer.write(piece)
        files += writer.finish()
    assert {partition for file in files for partition in file.partition} == set(range(PARTITIONS))
    outcome = topic.log.commit_append(files, target, writer=WriterKey("query", batch, "run"))
    assert outcome.records == 400 * tasks


@pytest.mark.usefixtures("records_in_files")
def test_a_micro_batch_in_steady_state(place: CountedRoot) -> None:
    topic = place.topic(PARTITIONS)
    for batch in range(3):
        micro_batch(place, topic, batch)
    place.store.reset()
    micro_batch(place, topic, 3)
    # One probe on the driver, and each task looks whether its root is the driver's; then the commit: is the root still
    # the one that was opened, and is the commit before still there?
    place.store.expect_at_most(writer=TASKS, create=1, get_commit=1 + 1, get_root=TASKS + 1)
    assert place.store.by_kind["create", "commit"] == 1
    assert place.store.by_kind["writer", "append"] == TASKS
    budget = costs.micro_batch(TASKS)
    assert budget.puts <= 4
    assert budget.lists == 0
    within(place, budget)


@pytest.mark.parametrize("tasks", [1, 8])
def test_a_micro_batch_with_records_in_the_commit(place: CountedRoot, tasks: int) -> None:
    topic = place.topic(PARTITIONS, configs={"inline.records.bytes": 1 << 20})
    reader = consumer(place.root, "g", topics="t", auto_offset_reset="earliest", enable_auto_commit=False)
    for batch in range(3):
        micro_batch(place, topic, batch, tasks)
    while reader.poll(0):
        pass
    place.store.reset()
    micro_batch(place, topic, 3, tasks)
    # The probe, the root, and the commit before: no request of a task.
    place.store.expect(create=1, get_commit=2, get_root=1)
    assert place.store.by_kind["create", "commit"] == 1
    assert place.append_files() == []
    within(place, costs.COMMIT)
    place.store.reset()
    assert sum(part.num_rows for part in reader.poll(0)) == 400 * tasks
    # Looks for what comes next: the records are here.
    place.store.expect_at_most(get_commit=3)
    follower = place.world.root(place.store, place.world.env())
    follower.topic("t").scan().to_table()
    micro_batch(place, topic, 4, tasks)
    place.store.reset()
    assert follower.topic("t").scan().to_table().num_rows == 2000 * tasks
    # The new commit, and a look at the next number by each of the two calls; nothing for records. In a bucket the
    # number after the next one is asked for at the same time.
    place.store.expect(get_commit=4 if place.kind == "bucket" else 3)


def test_a_replayed_micro_batch_writes_no_commit(place: CountedRoot) -> None:
    topic = place.topic(PARTITIONS)
    micro_batch(place, topic, 0)
    target = topic.log.append_target()
    place.store.reset()
    writer = AppendWriter(target, small(), place.world.env(), seed=9)
    for task in range(TASKS):
        for piece in random_rows(400, keys=1000, seed=0, first=task * 500).to_batches():
            writer.write(piece)
    assert topic.log.commit_append(writer.finish(), target, writer=WriterKey("query", 0, "run")).skipped
    place.store.expect_at_most(writer=1, get=1)


@pytest.mark.parametrize("count", [1, 2, 4])
def test_a_transaction(count: int, tmp_path: Path) -> None:
    place = CountedRoot("bucket", tmp_path)
    root = place.topic(PARTITIONS).root
    names = [f"t{number}" for number in range(count)]
    for name in names:
        root.create_topic(name)
    producer = transactional(root, "etl")
    for _ in range(3):
        place.store.reset()
        with producer.begin() as transaction:
            for name in names:
                transaction.append(name, pa.table({"value": ["x"]}))
    # docs/reference/cost.md has these.
    within(place, costs.Requests(2 * count + 1, 5 * count + 6, 0))


def test_losing_a_race_costs_one_look_and_one_more_create(place: CountedRoot) -> None:
    topic, other = place.topic(PARTITIONS), place.reopened()
    micro_batch(place, topic, 0)
    target = topic.log.append_target()
    other.append(random_rows(10))
    other.append(random_rows(10))
    place.store.reset()
    writer = AppendWriter(target, small(), place.world.env(), seed=9)
    writer.write(pa.RecordBatch.from_pydict({"value": [b"x"]}))
    files = writer.finish()
    place.store.reset()
    assert topic.log.commit_append(files, target).version == 4
    if place.kind == "bucket":
        # Several of these at once: some are not needed.
        place.store.expect_at_most(create=2, get=12)
        return
    # The create that loses, the winner, the commit after it, the first missing number, the create that wins; the root's
    # id before each create, and after it the commit before.
    place.store.expect(create=2, get_commit=3 + 2, get_root=2)


def test_an_idle_poll_is_one_probe_per_topic(place: CountedRoot) -> None:
    topics = ["a", "b", "c"]
    for name in topics:
        place.topic(4, name=name).append(random_rows(20))
    view = RootView(place.root)
    view.refresh(topics)
    place.store.reset()
    view.refresh(topics)
    for name in topics:
        assert view.bounds(name)
    place.store.expect(get_commit=len(topics))
    assert place.store.by_kind["get", "commit"] == len(topics)
    assert place.root.engine.log("a").state().version == 1
    place.store.reset()
    assert place.root.engine.log("a").state().version == 1
    place.store.expect(get_commit=1)
    within(place, costs.IDLE_POLL)


def test_a_look_that_meets_one_commit(place: CountedRoot) -> None:
    topic = place.topic(4)
    view = RootView(place.root)
    other = place.reopened()
    for number in range(3):
        topic.append(random_rows(20, first=number * 20))
        other.append(random_rows(20, first=number * 20))
        view.refresh(["t"])
        other.append(random_rows(20))
        place.store.reset()
        view.refresh(["t"])
        place.store.expect_at_most(get_commit=3 if place.kind == "bucket" else 2)
        within(place, costs.NEW_COMMIT)


def test_a_checkpoint(place: CountedRoot) -> None:
    topic = place.topic(4)
    topic.append(random_rows(20))
    topic.log.refresh()
    place.store.reset()
    topic.log.write_checkpoint()
    within(place, costs.CHECKPOINT)


def test_a_micro_batch_is_read_with_one_request_per_file_and_partition_at_most(place: CountedRoot) -> None:
    topic = place.topic(PARTITIONS)
    micro_batch(place, topic, 0)
    view = RootView(place.root)
    view.refresh(["t"])
    bounds = view.bounds("t")
    ranges = [OffsetRange("t", p, b.log_start, b.end(READ_COMMITTED)) for p, b in bounds.items()]
    place.store.reset()
    parts = view.plan(ranges, READ_COMMITTED)
    read = sum(batch.num_rows for part in parts for batch in part.read(("value",)))
    assert read == 800
    place.store.expect_at_most(get_append=TASKS + PARTITIONS * TASKS)
    assert place.store.by_kind["get", "commit"] == 0


def test_opening_costs_two_listings(place: CountedRoot) -> None:
    topic = place.topic(PARTITIONS)
    for batch in range(4):
        micro_batch(place, topic, batch)
    topic.log.refresh()
    topic.log.write_checkpoint()
    micro_batch(place, topic, 4)
    place.store.reset()
    fresh = place.reopened()
    assert fresh.log.state(refresh=False).version == 6 - 1
    if place.kind != "bucket":
        # The root, the checkpoints, the newest one's head, the tail, the first missing number, and that none is above
        # it: no table.
        place.store.expect_at_most(get=5, list=2)
    place.store.reset()
    assert len(fresh.log.snapshot(refresh=False).slices) == 5 * TASKS * PARTITIONS
    place.store.expect(get_checkpoint=1)


def test_opening_costs_few_requests_besides_the_tail(place: CountedRoot) -> None:
    topic = place.topic(PARTITIONS)
    for number in range(140):
        topic.append(rows("x", partition=number % PARTITIONS))
    place.store.reset()
    snapshot = place.reopened().log.snapshot()
    assert len(snapshot.slices) == 140
    tail = place.store.by_kind["get", "commit"] - 1
    opening = costs.OPENING.gets + costs.OPENING.lists
    assert len(place.store.keys) - tail <= opening
    if place.kind == "bucket":
        within(place, costs.OPENING + costs.TAIL)
    else:
        # One by one, up to the first missing one; the listing shows that none is above it.
        assert tail == 140 - 127 + 1
        assert place.store.counts["list"] == 2


def test_names_are_not_looked_for_among_all_keys(place: CountedRoot) -> None:
    for name in "abc":
        topic = place.topic(1, name=name)
        for _ in range(3):
            topic.append(rows("x"))
    place.root.topics()
    place.store.reset()
    assert place.root.topics() == ["a", "b", "c"]
    # The folders, and of each topic one look.
    place.store.expect(list_folders=1, get=3)
    view = RootView(place.root)
    view.refresh(["a"])
    place.store.reset()
    place.root.topic("a")
    place.store.expect(get=1)
    Group(place.root, "g").join("m").commit({"a": {0: 1}})
    place.store.reset()
    assert ids_of(place.store, GROUPS) == ["g"]
    place.store.expect(list_folders=1, get=1)
    place.store.reset()
    assert ids_of(place.store, DECISIONS) == []
    place.store.expect(list_folders=1)
