"""Test slices of intervals: how an interval is divided, and slices in tasks that are pickled, fail and run again."""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import sparklog
from sparklog.errors import BadRequest, SparklogError
from sparklog.log.journal.clocks import SYSTEM
from sparklog.log.state.view import BatchRanges, OffsetRange, Stored
from sparklog.log.topic.root import Root, RootView
from sparklog.maintenance.work_items import T
from sparklog.tables import copy as copy_module
from sparklog.tables.copy import TableCopy, TableCopyOptions
from sparklog.tables.latest import LatestRows
from sparklog.tables.rows import RowOptions
from sparklog.tables.slices import divide
from sparklog.tables.target import TargetTable
from sparklog.testing.world import World
from tests.tables.iceberg_catalogs import new_id, open_catalog
from tests.tables.memory_table import MemoryCatalog, MemoryTable

JSON = RowOptions("json", schema="id BIGINT, name STRING")
UPSERT = RowOptions("json", upsert=True, schema="id BIGINT, name STRING", key_columns=("id",))
PARTITIONS = 3


@dataclass
class PickledTasks:
    """Runs tasks as Spark does: tasks and their results are pickled, and the first attempt of each task is lost."""

    parallelism: int = 4
    titles: list[str] = field(default_factory=list)

    def run(self, works: Sequence[T]) -> Iterator[tuple[T, Any]]:
        for work in reversed(works):
            self.titles.append(work.title)
            sent = pickle.dumps(work)
            for _ in range(2):
                try:
                    result = pickle.loads(pickle.dumps(pickle.loads(sent).run()))
                except SparklogError as error:
                    result = error
            yield work, result


class SmallSlices(TableCopy):
    min_slice_records = 1


def stored(*records: int, start: int = 0) -> tuple[list[OffsetRange], list[Stored]]:
    """Return one range per partition. Each record has its own batch and occupies two offsets."""
    ranges, contents = [], []
    for partition, count in enumerate(records):
        base = start + 2 * np.arange(count, dtype=np.int64)
        one = np.ones(count, np.int64)
        ranges.append(OffsetRange("t", partition, start, start + 2 * count))
        contents.append(Stored(start, start + 2 * count, BatchRanges(base, base + 2, one, one, one)))
    return ranges, contents


@pytest.mark.parametrize(
    ("records", "slices", "min_records", "expected"),
    [
        ((10,), 1, 1, [[(0, 0, 20)]]),
        ((10,), 2, 1, [[(0, 0, 10)], [(0, 10, 20)]]),
        ((10,), 3, 1, [[(0, 0, 8)], [(0, 8, 16)], [(0, 16, 20)]]),
        ((2, 6), 2, 1, [[(0, 0, 4), (1, 0, 4)], [(1, 4, 12)]]),
        ((4, 4), 2, 1, [[(0, 0, 8)], [(1, 0, 8)]]),
        ((4, 0, 4), 2, 1, [[(0, 0, 8)], [(2, 0, 8)]]),
        ((10,), 4, 5, [[(0, 0, 10)], [(0, 10, 20)]]),
        ((3, 3), 4, 100, [[(0, 0, 6), (1, 0, 6)]]),
        ((2,), 8, 1, [[(0, 0, 2)], [(0, 2, 4)]]),
        ((0,), 2, 1, []),
    ],
)
def test_intervals_are_divided_by_records(
    records: Sequence[int], slices: int, min_records: int, expected: list[list[tuple[int, int, int]]]
) -> None:
    divided = divide(*stored(*records), slices, min_records)
    found = [[(part.partition, part.start, part.end) for part in part_of] for part_of in divided]
    assert found == expected


def test_slices_contain_each_offset_once() -> None:
    ranges, contents = stored(7, 0, 13, 1, 29, start=100)
    for slices in range(1, 60):
        divided = divide(ranges, contents, slices, 1)
        assert 0 < len(divided) <= slices
        joined = {offsets.partition: offsets.start for offsets in ranges}
        for offsets in (offsets for part in divided for offsets in part):
            assert offsets.start == joined[offsets.partition]
            joined[offsets.partition] = offsets.end
        assert joined == {offsets.partition: offsets.end for offsets in ranges}


@pytest.fixture
def root(tmp_path: Path) -> Root:
    """Return a root with a topic whose records have the keys 0 to 19, two tombstones, and a bad record."""
    root = sparklog.open(tmp_path / "root", create=True)
    topic = root.create_topic("t", partitions=PARTITIONS)
    for number in range(60):
        key = number % 20
        value = b'{"id": %d, "name": "n%d"}' % (key, number)
        value = {41: None, 42: None, 43: b"bad"}.get(number, value)
        columns = {"key": pa.array([b"%d" % key], pa.binary()), "value": pa.array([value], pa.binary())}
        topic.append(pa.table({**columns, "partition": pa.array([key % PARTITIONS], pa.int32())}))
    return root


def tables(kind: str, directory: Path) -> Iterator[tuple[TargetTable, TargetTable]]:
    """Yield a table that can be pickled for tasks, and its quarantine."""
    if kind == "delta":
        from sparklog.tables.delta import DeltaLakeTable

        yield tuple(DeltaLakeTable(str(directory / name), {}, SYSTEM) for name in ("t", "q"))  # type: ignore[misc]
        return
    from sparklog.tables.iceberg import IcebergTable

    with open_catalog("sqlite" if kind == "sqlite" else "rest", directory) as setup:
        yield tuple(IcebergTable(setup.catalog, ("n", name), new_id) for name in ("t", "q"))  # type: ignore[misc]


def rows(target: TargetTable) -> list[dict[str, Any]]:
    state = target.load()
    assert state is not None
    table: Any = target
    batches = [
        batch for file in table.existing_files(state) for batch in table.read_file(state, file, state.schema.names)
    ]
    return pa.Table.from_batches(batches, state.schema).to_pylist()


@pytest.mark.parametrize("kind", ["sqlite", "rest", "delta"])
@pytest.mark.parametrize("mode", ["append", "upsert"])
def test_tasks_write_the_same_rows(root: Root, tmp_path: Path, kind: str, mode: str) -> None:
    pytest.importorskip("deltalake" if kind == "delta" else "pyiceberg")
    for target, quarantine in tables(kind, tmp_path):
        tasks = PickledTasks()
        options = TableCopyOptions(JSON if mode == "append" else UPSERT, "quarantine", max_offsets=40)
        report = SmallSlices(RootView(root), "t", target, options, quarantine, runner=tasks).copy_existing()
        assert (report.records, report.bad_records, report.commits) == (60, 3 if mode == "append" else 1, 2)
        assert tasks.titles[:4] == [f"slice {number} of 4 of topic t" for number in (4, 3, 2, 1)]
        found = sorted((row["_offset"], row["_partition_id"], row["id"], row["name"]) for row in rows(target))
        alone = MemoryCatalog()
        TableCopy(RootView(root), "t", MemoryTable(alone), options, MemoryTable(MemoryCatalog())).copy_existing()
        expected = [(row["_offset"], row["_partition_id"], row["id"], row["name"]) for row in alone.rows().to_pylist()]
        assert found == sorted(expected)
        assert len(found) == (57 if mode == "append" else 18)
        bad = [(row["partition"], row["offset"]) for row in rows(quarantine)]
        assert len(bad) == len(set(bad)) == report.bad_records
        # A row is never read from the files of an attempt whose result was lost.
        assert SmallSlices(RootView(root), "t", target, options, quarantine, runner=tasks).copy_existing().records == 0


def test_new_id_of_tests_is_pickled_by_reference() -> None:
    assert pickle.loads(pickle.dumps(new_id)) is new_id


def copied(root: Root, catalog: MemoryCatalog, options: TableCopyOptions, runner: Any) -> TableCopy:
    return SmallSlices(RootView(root), "t", MemoryTable(catalog), options, MemoryTable(MemoryCatalog()), runner=runner)


@dataclass
class OwnTasks(PickledTasks):
    """Tasks of this process, which share objects with the caller."""

    def run(self, works: Sequence[T]) -> Iterator[tuple[T, Any]]:
        for work in works:
            yield work, work.run()


def test_error_in_one_slice_deletes_the_files_of_the_others() -> None:
    root, catalog = World().root(), MemoryCatalog()
    topic = root.create_topic("t")
    copied(root, catalog, TableCopyOptions(JSON), OwnTasks(parallelism=3)).copy_existing()
    for value in (b'{"id": 1}', b'{"id": 2}', b"bad"):
        topic.append(pa.table({"value": [value]}))
    with pytest.raises(BadRequest, match="t-0 offset 2: the value is not a JSON object; use bad_records='quarantine'"):
        copied(root, catalog, TableCopyOptions(JSON), OwnTasks(parallelism=3)).copy_existing()
    assert not catalog.unreferenced()
    assert catalog.rows().num_rows == 0


def test_intervals_are_smaller_if_bad_records_do_not_fit_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    root, catalog = World().root(), MemoryCatalog()
    topic = root.create_topic("t")
    for _ in range(8):
        topic.append(pa.table({"value": [b"x" * 1000]}))
    monkeypatch.setattr(copy_module, "BAD_RECORD_BYTES", 3000)
    monkeypatch.setattr(TableCopy, "batch_bytes", 1000)
    report = copied(root, catalog, TableCopyOptions(JSON, "quarantine"), OwnTasks(parallelism=1)).copy_existing()
    assert (report.records, report.bad_records) == (8, 8)
    assert report.commits > 2


def test_only_the_latest_rows_of_a_slice_are_pickled() -> None:
    schema = pa.schema([("id", pa.int64())])
    latest = LatestRows(["id"], schema, 1 << 20)
    zeros = pa.array([0] * 1000, pa.int32())
    offsets, deleted = pa.array(range(1000), pa.int64()), pa.array([False] * 1000)
    latest.add(pa.record_batch({"id": pa.array([7] * 1000, pa.int64())}), deleted, zeros, offsets)
    sent = pickle.dumps(latest)
    assert len(sent) < 3000
    [changes] = pickle.loads(sent).changes()
    assert changes.rows.to_pylist() == [{"id": 7}]
