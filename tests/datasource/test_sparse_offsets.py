"""The cost of a plan depends on the stored data and not on the range of offsets, for Kafka directories and topics of a
root.
"""

from __future__ import annotations

import json
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from sparklog.datasource.options import parse_options
from sparklog.datasource.read_task import plan_tasks
from sparklog.datasource.stream_plan import Clock, StreamPlanner
from sparklog.datasource.subscription import Subscriber
from sparklog.kafka.importing.run import import_log_dir
from sparklog.kafka.in_place import KafkaView
from sparklog.log.read.key_lookup import latest_record
from sparklog.log.state.view import READ_COMMITTED, LogView, OffsetRange, ReadPart
from sparklog.log.topic.root import RootView, open_root
from sparklog.opening import KAFKA_DIRECTORY, ROOT, Location
from tests.kafka.logs import keyed_batch, write_partition

SEGMENTS = 25
EACH = 40
STEP = 2**62 // SEGMENTS
PLAN_BYTES = 8 << 20
OFFSETS = [number * STEP + record for number in range(SEGMENTS) for record in range(EACH)]


def kafka_view(folder: Path) -> KafkaView:
    """1,000 records in 2^62 offsets, forty records per segment."""
    segments = {
        number * STEP: keyed_batch(number * STEP, [(b"key-%d" % record, b"value") for record in range(EACH)])
        for number in range(SEGMENTS)
    }
    write_partition(folder, "t-0", segments)
    return KafkaView(folder)


def native_view(folder: Path) -> RootView:
    """The same as a topic of a root, in which all segments except the last are sealed."""
    kafka_view(folder / "kafka")
    root = open_root(folder / "root", create=True)
    import_log_dir(root, folder / "kafka")
    return RootView(root)


@pytest.fixture(scope="module", params=[kafka_view, native_view])
def view(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> LogView:
    found: LogView = request.param(tmp_path_factory.mktemp("sparse"))
    found.refresh(["t"])
    return found


def read(tasks: list[list[ReadPart]]) -> list[list[int]]:
    """Return the offsets that each task reads."""
    return [
        [offset for part in task for batch in part.read(("offset",)) for offset in batch.column("offset").to_pylist()]
        for task in tasks
    ]


def plan(view: LogView, **asked: int) -> list[list[int]]:
    limits = view.bounds("t")[0]
    tracemalloc.start()
    try:
        tasks = plan_tasks(view, [OffsetRange("t", 0, 0, limits.log_end)], READ_COMMITTED, **asked)
        assert tracemalloc.get_traced_memory()[1] < PLAN_BYTES
    finally:
        tracemalloc.stop()
    found = read(tasks)
    assert [offset for task in found for offset in task] == OFFSETS
    return found


def test_a_read_has_as_many_tasks_as_its_records_are_worth(view: LogView) -> None:
    assert len(plan(view)) == 1


def test_tasks_that_are_asked_for_share_the_records(view: LogView) -> None:
    assert [len(task) for task in plan(view, min_partitions=8)] == [125] * 8
    assert [len(task) for task in plan(view, max_records=40)] == [40] * 25
    assert {len(task) for task in plan(view, max_records=3)} == {2, 3}


def micro_batches(view: LogView, **options: str) -> list[list[int]]:
    """Return the offsets that each micro-batch of a stream reads, from the start to the end."""
    kind = ROOT if isinstance(view, RootView) else KAFKA_DIRECTORY
    chosen = parse_options({"startingoffsets": "earliest", "subscribe": "t", **options}).read
    subscriber = Subscriber(view, Location(kind, view.location, view.location), chosen.subscription)
    planner = StreamPlanner(view, subscriber, chosen, Clock(sleep=lambda seconds: None))
    start: dict[str, Any] = planner.initial()
    found = []
    for _ in range(len(OFFSETS) + 2):
        tracemalloc.start()
        end = planner.latest(start, limited=True)
        ranges = planner.ranges(start, end)
        tasks = plan_tasks(view, ranges, READ_COMMITTED)
        assert tracemalloc.get_traced_memory()[1] < PLAN_BYTES
        tracemalloc.stop()
        if end is start:
            break
        found.append([offset for task in read(tasks) for offset in task])
        start = json.loads(json.dumps(end))
    assert [offset for batch in found for offset in batch] == OFFSETS
    return found


def test_a_stream_skips_gaps_in_one_batch(view: LogView) -> None:
    assert [len(batch) for batch in micro_batches(view)] == [1000]
    assert [len(batch) for batch in micro_batches(view, maxoffsetspertrigger="125")] == [125] * 8
    assert [len(batch) for batch in micro_batches(view, maxoffsetspertrigger="37")] == [37] * 27 + [1]


def test_bytes_limit_a_micro_batch_by_what_is_stored(view: LogView) -> None:
    nbytes = view.stored([OffsetRange("t", 0, 0, view.bounds("t")[0].log_end)])[0].nbytes
    sizes = [len(batch) for batch in micro_batches(view, maxbytespertrigger=str(nbytes // 10))]
    assert 10 <= len(sizes) <= 11
    assert max(sizes) <= 101


def test_what_lies_far_behind_the_start_is_measured_by_segments(tmp_path: Path) -> None:
    view = kafka_view(tmp_path)
    state, end = view.partition_states("t")[0], view.bounds("t")[0].log_end
    whole, coarse = state.stored(0, end), state.stored(0, end, detailed=5)
    assert (coarse.records, coarse.nbytes, coarse.batches) == (whole.records, whole.nbytes, whole.batches)
    assert (
        coarse.at_records(1, 399, 400, 999)
        == whole.at_records(1, 399, 400, 999)
        == [OFFSETS[i] for i in (1, 399, 400, 999)]
    )


def test_a_key_is_found_from_the_end_without_a_walk_over_the_gaps(view: LogView) -> None:
    found = latest_record(view, "t", b"key-3")
    assert found is not None
    assert found.column("offset").to_pylist() == [OFFSETS[3 - EACH]]
