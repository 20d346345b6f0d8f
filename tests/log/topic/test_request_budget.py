"""The number of requests of each operation, counted by a store. The cost calculator uses the same numbers."""

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
def counted_root(request: pytest.FixtureRequest, tmp_path: Path) -> CountedRoot:
    return CountedRoot(request.param, tmp_path)


def within(counted_root: CountedRoot, budget: costs.Requests) -> None:
    """Assert the number of requests since the last reset."""
    counts = counted_root.store.counts
    made = costs.Requests(
        sum(counts[verb] for verb in PUTS), counts["get"] + counts["stat"], sum(counts[verb] for verb in LISTS)
    )
    kept = made.puts <= budget.puts and made.gets <= budget.gets and made.lists <= budget.lists
    assert kept, (made, budget, counted_root.store.keys)


def micro_batch(counted_root: CountedRoot, topic: Topic, batch: int, tasks: int = TASKS) -> None:
    """Write a micro-batch like the sink: a target on the driver, one append file per task, one commit."""
    target = topic.log.append_target()
    files: list[FileSlices] = []
    for task in range(tasks):
        writer = AppendWriter(target, small("zstd"), counted_root.world.env(), seed=batch * tasks + task)
        for piece in random_rows(400, keys=1000, seed=batch, first=batch * 1000 + task * 500).to_batches():
            writer.write(piece)
        files += writer.finish()
    assert {partition for file in files for partition in file.partition} == set(range(PARTITIONS))
    outcome = topic.log.commit_append(files, target, writer=WriterKey("query", batch, "run"))
    assert outcome.records == 400 * tasks


@pytest.mark.usefixtures("records_in_files")
def test_requests_of_a_micro_batch_in_steady_state(counted_root: CountedRoot) -> None:
    topic = counted_root.topic(PARTITIONS)
    for batch in range(3):
        micro_batch(counted_root, topic, batch)
    counted_root.store.reset()
    micro_batch(counted_root, topic, 3)
    # One read on the driver, and one check of the root per task. The commit then checks that the root has not been
    # replaced, and that the previous commit still exists.
    counted_root.store.expect_at_most(writer=TASKS, create=1, get_commit=1 + 1, get_root=TASKS + 1)
    assert counted_root.store.by_kind["create", "commit"] == 1
    assert counted_root.store.by_kind["writer", "append"] == TASKS
    budget = costs.micro_batch(TASKS)
    assert budget.puts <= 4
    assert budget.lists == 0
    within(counted_root, budget)


@pytest.mark.parametrize("tasks", [1, 8])
def test_requests_of_a_micro_batch_with_inline_records(counted_root: CountedRoot, tasks: int) -> None:
    topic = counted_root.topic(PARTITIONS, configs={"inline.records.bytes": 1 << 20})
    reader = consumer(counted_root.root, "g", topics="t", auto_offset_reset="earliest", enable_auto_commit=False)
    for batch in range(3):
        micro_batch(counted_root, topic, batch, tasks)
    while reader.poll(0):
        pass
    counted_root.store.reset()
    micro_batch(counted_root, topic, 3, tasks)
    # The read of the state, the root, and the previous commit. Tasks do not send requests.
    counted_root.store.expect(create=1, get_commit=2, get_root=1)
    assert counted_root.store.by_kind["create", "commit"] == 1
    assert counted_root.append_files() == []
    within(counted_root, costs.COMMIT)
    counted_root.store.reset()
    assert sum(part.num_rows for part in reader.poll(0)) == 400 * tasks
    # Request the next commit. The records are cached.
    counted_root.store.expect_at_most(get_commit=3)
    follower = counted_root.world.root(counted_root.store, counted_root.world.env())
    follower.topic("t").scan().to_table()
    micro_batch(counted_root, topic, 4, tasks)
    counted_root.store.reset()
    assert follower.topic("t").scan().to_table().num_rows == 2000 * tasks
    # The new commit, and a request for the next commit by each of the two calls. The records take no requests. In a
    # bucket, the commit after the next one is requested in parallel.
    counted_root.store.expect(get_commit=4 if counted_root.kind == "bucket" else 3)


def test_a_replayed_micro_batch_writes_no_commit(counted_root: CountedRoot) -> None:
    topic = counted_root.topic(PARTITIONS)
    micro_batch(counted_root, topic, 0)
    target = topic.log.append_target()
    counted_root.store.reset()
    writer = AppendWriter(target, small(), counted_root.world.env(), seed=9)
    for task in range(TASKS):
        for piece in random_rows(400, keys=1000, seed=0, first=task * 500).to_batches():
            writer.write(piece)
    assert topic.log.commit_append(writer.finish(), target, writer=WriterKey("query", 0, "run")).skipped
    counted_root.store.expect_at_most(writer=1, get=1)


@pytest.mark.parametrize("count", [1, 2, 4])
def test_requests_of_a_transaction(count: int, tmp_path: Path) -> None:
    counted_root = CountedRoot("bucket", tmp_path)
    root = counted_root.topic(PARTITIONS).root
    names = [f"t{number}" for number in range(count)]
    for name in names:
        root.create_topic(name)
    producer = transactional(root, "etl")
    for _ in range(3):
        counted_root.store.reset()
        with producer.begin() as transaction:
            for name in names:
                transaction.append(name, pa.table({"value": ["x"]}))
    # docs/reference/cost.md contains these numbers.
    within(counted_root, costs.Requests(2 * count + 1, 5 * count + 6, 0))


def test_a_lost_race_takes_one_read_and_one_more_create(counted_root: CountedRoot) -> None:
    topic, other = counted_root.topic(PARTITIONS), counted_root.reopened()
    micro_batch(counted_root, topic, 0)
    target = topic.log.append_target()
    other.append(random_rows(10))
    other.append(random_rows(10))
    counted_root.store.reset()
    writer = AppendWriter(target, small(), counted_root.world.env(), seed=9)
    writer.write(pa.RecordBatch.from_pydict({"value": [b"x"]}))
    files = writer.finish()
    counted_root.store.reset()
    assert topic.log.commit_append(files, target).version == 4
    if counted_root.kind == "bucket":
        # Several of these requests are parallel, so some of them are not needed.
        counted_root.store.expect_at_most(create=2, get=12)
        return
    # The create that loses, the winner's commit, the commit after it, the first missing commit, and the create that
    # succeeds. Before each create, the root's id, and afterwards the previous commit.
    counted_root.store.expect(create=2, get_commit=3 + 2, get_root=2)


def test_an_idle_poll_takes_one_request_per_topic(counted_root: CountedRoot) -> None:
    topics = ["a", "b", "c"]
    for name in topics:
        counted_root.topic(4, name=name).append(random_rows(20))
    view = RootView(counted_root.root)
    view.refresh(topics)
    counted_root.store.reset()
    view.refresh(topics)
    for name in topics:
        assert view.bounds(name)
    counted_root.store.expect(get_commit=len(topics))
    assert counted_root.store.by_kind["get", "commit"] == len(topics)
    assert counted_root.root.engine.log("a").state().version == 1
    counted_root.store.reset()
    assert counted_root.root.engine.log("a").state().version == 1
    counted_root.store.expect(get_commit=1)
    within(counted_root, costs.IDLE_POLL)


def test_requests_of_a_poll_with_one_new_commit(counted_root: CountedRoot) -> None:
    topic = counted_root.topic(4)
    view = RootView(counted_root.root)
    other = counted_root.reopened()
    for number in range(3):
        topic.append(random_rows(20, first=number * 20))
        other.append(random_rows(20, first=number * 20))
        view.refresh(["t"])
        other.append(random_rows(20))
        counted_root.store.reset()
        view.refresh(["t"])
        counted_root.store.expect_at_most(get_commit=3 if counted_root.kind == "bucket" else 2)
        within(counted_root, costs.NEW_COMMIT)


def test_requests_of_a_checkpoint(counted_root: CountedRoot) -> None:
    topic = counted_root.topic(4)
    topic.append(random_rows(20))
    topic.log.refresh()
    counted_root.store.reset()
    topic.log.write_checkpoint()
    within(counted_root, costs.CHECKPOINT)


def test_a_micro_batch_is_read_with_at_most_one_request_per_file_and_partition(counted_root: CountedRoot) -> None:
    topic = counted_root.topic(PARTITIONS)
    micro_batch(counted_root, topic, 0)
    view = RootView(counted_root.root)
    view.refresh(["t"])
    bounds = view.bounds("t")
    ranges = [OffsetRange("t", p, b.log_start, b.end(READ_COMMITTED)) for p, b in bounds.items()]
    counted_root.store.reset()
    parts = view.plan(ranges, READ_COMMITTED)
    read = sum(batch.num_rows for part in parts for batch in part.read(("value",)))
    assert read == 800
    counted_root.store.expect_at_most(get_append=TASKS + PARTITIONS * TASKS)
    assert counted_root.store.by_kind["get", "commit"] == 0


def test_opening_takes_two_listings(counted_root: CountedRoot) -> None:
    topic = counted_root.topic(PARTITIONS)
    for batch in range(4):
        micro_batch(counted_root, topic, batch)
    topic.log.refresh()
    topic.log.write_checkpoint()
    micro_batch(counted_root, topic, 4)
    counted_root.store.reset()
    fresh = counted_root.reopened()
    assert fresh.log.state(refresh=False).version == 6 - 1
    if counted_root.kind != "bucket":
        # The root, the checkpoints, the latest checkpoint object, later commits, the first missing commit, and the
        # listing that shows no later commits. The table is not read.
        counted_root.store.expect_at_most(get=5, list=2)
    counted_root.store.reset()
    assert len(fresh.log.snapshot(refresh=False).slices) == 5 * TASKS * PARTITIONS
    counted_root.store.expect(get_checkpoint=1)


def test_opening_takes_few_requests_besides_recent_commits(counted_root: CountedRoot) -> None:
    topic = counted_root.topic(PARTITIONS)
    for number in range(140):
        topic.append(rows("x", partition=number % PARTITIONS))
    counted_root.store.reset()
    snapshot = counted_root.reopened().log.snapshot()
    assert len(snapshot.slices) == 140
    tail = counted_root.store.by_kind["get", "commit"] - 1
    opening = costs.OPENING.gets + costs.OPENING.lists
    assert len(counted_root.store.keys) - tail <= opening
    if counted_root.kind == "bucket":
        within(counted_root, costs.OPENING + costs.TAIL)
    else:
        # Commits one by one, up to the first missing one. The listing shows that there are no later commits.
        assert tail == 140 - 127 + 1
        assert counted_root.store.counts["list"] == 2


def test_listing_names_does_not_list_all_keys(counted_root: CountedRoot) -> None:
    for name in "abc":
        topic = counted_root.topic(1, name=name)
        for _ in range(3):
            topic.append(rows("x"))
    counted_root.root.topics()
    counted_root.store.reset()
    assert counted_root.root.topics() == ["a", "b", "c"]
    # The directories, and one request per topic.
    counted_root.store.expect(list_folders=1, get=3)
    view = RootView(counted_root.root)
    view.refresh(["a"])
    counted_root.store.reset()
    counted_root.root.topic("a")
    counted_root.store.expect(get=1)
    Group(counted_root.root, "g").join("m").commit({"a": {0: 1}})
    counted_root.store.reset()
    assert ids_of(counted_root.store, GROUPS) == ["g"]
    counted_root.store.expect(list_folders=1, get=1)
    counted_root.store.reset()
    assert ids_of(counted_root.store, DECISIONS) == []
    counted_root.store.expect(list_folders=1)
