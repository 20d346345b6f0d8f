"""What a micro-batch and an idle poll cost in requests, asserted with a counting store."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from sparklog.log.state.slices import FileSlices
from sparklog.log.state.view import READ_COMMITTED, OffsetRange
from sparklog.log.topic.root import RootView
from sparklog.log.topic.topic import Topic, WriterKey
from sparklog.log.write.append_writer import AppendWriter
from tests.support.counted_root import KINDS, CountedRoot
from tests.support.records import random_rows, small

PARTITIONS = 16
TASKS = 2


@pytest.fixture(params=KINDS)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> CountedRoot:
    return CountedRoot(request.param, tmp_path)


def micro_batch(place: CountedRoot, topic: Topic, batch: int) -> None:
    """What the sink does: a target on the driver, an append file per task, one commit."""
    target = topic.log.append_target()
    files: list[FileSlices] = []
    for task in range(TASKS):
        writer = AppendWriter(target, small("zstd"), place.world.env(), seed=batch * TASKS + task)
        for piece in random_rows(400, keys=1000, seed=batch, first=batch * 1000 + task * 500).to_batches():
            writer.write(piece)
        files += writer.finish()
    assert {partition for file in files for partition in file.partition} == set(range(PARTITIONS))
    outcome = topic.log.commit_append(files, target, writer=WriterKey("query", batch, "run"))
    assert outcome.records == 800


def test_a_micro_batch_in_steady_state(place: CountedRoot) -> None:
    topic = place.topic(PARTITIONS)
    for batch in range(3):
        micro_batch(place, topic, batch)
    place.store.reset()
    micro_batch(place, topic, 3)
    # One probe on the driver, and each task looks whether its root is the driver's; then the commit: is the root still
    # the one that was opened, and is the commit before still there?
    place.store.expect(writer=TASKS, create=1, get_commit=1 + 1, get_root=TASKS + 1)
    assert place.store.by_kind["create", "commit"] == 1
    assert place.store.by_kind["writer", "append"] == TASKS


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
    place.store.expect(writer=1, get=1)


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
    assert place.root.topic_handle("a").log.head().version == 1
    place.store.reset()
    assert place.root.topic_handle("a").log.head().version == 1
    place.store.expect(get_commit=1)


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
    place.store.expect(get_append=TASKS + PARTITIONS * TASKS)
    assert place.store.by_kind["get", "commit"] == 0


def test_opening_costs_one_listing(place: CountedRoot) -> None:
    topic = place.topic(PARTITIONS)
    for batch in range(4):
        micro_batch(place, topic, batch)
    topic.log.refresh()
    topic.log.write_checkpoint()
    micro_batch(place, topic, 4)
    place.store.reset()
    fresh = place.reopened()
    assert fresh.log.head(refresh=False).version == 6 - 1
    # The root, one listing, the newest checkpoint's head, the tail, the first missing number and a probe: no table.
    place.store.expect(get=5, list=1)
    place.store.reset()
    assert len(fresh.snapshot(refresh=False).slices) == 5 * TASKS * PARTITIONS
    place.store.expect(get_checkpoint=1)
