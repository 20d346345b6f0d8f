"""Test upserts into Iceberg tables: the rows after random changes, and which files are rewritten."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.transforms import BucketTransform

from sparklog.errors import Conflict
from sparklog.tables import merge
from sparklog.tables.iceberg import IcebergTable
from sparklog.tables.target import ChangeSet, PartitionBy, RowChanges, TableLayout, TableState, rows_by_partition
from sparklog.tables.watermark import Watermark
from tests.tables.iceberg_catalogs import CatalogSetup, new_id, open_catalog

NAME = ("shop", "customers")
SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("country", pa.string(), nullable=False),
        pa.field("name", pa.string()),
        pa.field("tags", pa.list_(pa.string())),
        pa.field("at", pa.timestamp("us", "UTC"), nullable=False),
    ]
)
START = Watermark("root-1", "customers", "topic-1", {0: 0}, "", "upsert")
Row = dict[str, Any]


@pytest.fixture
def setup(tmp_path: Path) -> Iterator[CatalogSetup]:
    with open_catalog("memory", tmp_path) as setup:
        yield setup


class Upserts:
    """A table, and the rows that it must contain."""

    def __init__(self, setup: CatalogSetup, keys: tuple[str, ...], partition_by: PartitionBy | None) -> None:
        self.catalog = setup.catalog
        self.table = IcebergTable(setup.catalog, NAME, new_id)
        self.keys = keys
        self.expected: dict[tuple[Any, ...], Row] = {}
        self.commits = 0
        self.table.create(TableLayout(SCHEMA, "upsert", partition_by, keys), START)

    def state(self) -> TableState:
        state = self.table.load()
        assert state is not None
        return state

    def changes(self, rows: list[Row], deleted: list[Row]) -> ChangeSet:
        schema = self.state().schema
        keys = pa.schema([schema.field(name) for name in self.keys])
        return ChangeSet([RowChanges(pa.Table.from_pylist(rows, schema), pa.Table.from_pylist(deleted, keys))])

    def upsert(self, rows: list[Row], deleted: list[Row] = []) -> None:  # noqa: B006 - not changed
        self.commits += 1
        after = replace(START, next_offsets={0: self.commits}, commit_id=f"commit-{self.commits}")
        changes, files = self.changes(rows, deleted), self.files()
        self.table.upsert(self.state(), changes, after)
        for row in rows:
            self.expected[self.key(row)] = row
        existing = [self.expected.pop(self.key(row), None) is not None for row in deleted]
        assert (changes.effect.deleted, changes.effect.files) == (sum(existing), len(self.files() - files))

    def key(self, row: Mapping[str, Any]) -> tuple[Any, ...]:
        return tuple(row[name] for name in self.keys)

    def rows(self) -> list[Row]:
        found = self.catalog.load_table(NAME).scan().to_arrow().to_pylist()
        return sorted(found, key=self.key)

    def expected_rows(self) -> list[Row]:
        return sorted(self.expected.values(), key=self.key)

    def files(self) -> set[str]:
        return {file.path for file in self.table.existing_files(self.state())}


def row(number: int, country: str = "de", name: str | None = "n", day: int = 1) -> Row:
    at = pa.scalar(86_400_000_000 * day, pa.timestamp("us", "UTC")).as_py()
    return {"id": number, "country": country, "name": name, "tags": ["a", name], "at": at}


@pytest.mark.parametrize("keys", [("id",), ("id", "country")], ids=["one key", "two keys"])
@pytest.mark.parametrize(
    "partition_by",
    [None, PartitionBy("bucket", ("id",), 3), PartitionBy("day", ("at",))],
    ids=["unpartitioned", "buckets of the key", "days"],
)
def test_random_changes(
    setup: CatalogSetup, keys: tuple[str, ...], partition_by: PartitionBy | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(merge, "ROW_GROUP_BYTES", 2000)
    monkeypatch.setattr(merge, "FILE_BYTES", 4000)
    monkeypatch.setattr(merge, "SMALL_FILE_BYTES", 3000)
    monkeypatch.setattr(merge, "MAX_SMALL_FILES", 3)
    numbers = random.Random(f"{keys}{partition_by}")
    upserts = Upserts(setup, keys, partition_by)
    for step in range(12):
        changed = {
            upserts.key(changed): changed
            for _ in range(numbers.choice([0, 3, 40, 200]))
            for changed in [
                row(numbers.randrange(300), numbers.choice(["de", "fr"]), f"{step}", numbers.randrange(-1, 3))
            ]
        }
        deleted = [key for key in changed if numbers.random() < 0.2]
        keys_only = [{name: changed[key][name] for name in keys} for key in deleted]
        upserts.upsert([changed[key] for key in changed if key not in deleted], keys_only)
        assert upserts.rows() == upserts.expected_rows()


def test_only_files_with_changed_keys_are_rewritten(setup: CatalogSetup) -> None:
    upserts = Upserts(setup, ("id",), None)
    upserts.upsert([row(number) for number in range(0, 100, 2)])
    [first] = upserts.files()
    upserts.upsert([row(number) for number in range(200, 300, 2)])
    [second] = upserts.files() - {first}
    # 150 is in the range of no file. 51 is in the range of a file that does not contain it.
    upserts.upsert([row(150), row(51)], [{"id": 51 + 100}])
    assert {first, second} <= upserts.files()
    upserts.upsert([row(52, name="new")])
    assert first not in upserts.files()
    assert second in upserts.files()
    assert upserts.rows() == upserts.expected_rows()


def test_deleted_keys_leave_no_file(setup: CatalogSetup) -> None:
    upserts = Upserts(setup, ("id",), PartitionBy("bucket", ("id",), 2))
    upserts.upsert([row(1), row(2)])
    upserts.upsert([], [{"id": 1}, {"id": 2}, {"id": 3}])
    assert upserts.files() == set()
    upserts.upsert([], [{"id": 1}])
    assert upserts.rows() == upserts.expected_rows()
    assert upserts.state().watermark == replace(START, next_offsets={0: 3}, commit_id="commit-3")


def test_small_files_of_new_keys_are_merged(setup: CatalogSetup) -> None:
    upserts = Upserts(setup, ("id",), None)
    for number in range(20):
        upserts.upsert([row(number)])
        assert len(upserts.files()) <= merge.MAX_SMALL_FILES + 1
    assert upserts.rows() == upserts.expected_rows()


def test_upsert_is_one_snapshot(setup: CatalogSetup) -> None:
    upserts = Upserts(setup, ("id",), PartitionBy("bucket", ("id",), 4))
    upserts.upsert([row(number) for number in range(50)])
    upserts.upsert([row(number, name="new") for number in range(10)], [{"id": 40}])
    iceberg = setup.catalog.load_table(NAME)
    assert len(iceberg.snapshots()) == 2
    summary = iceberg.snapshots()[-1].summary
    assert summary is not None
    assert summary.operation.value == "overwrite"
    assert summary["sparklog.commit-id"] == "commit-2"
    assert (summary["total-records"], summary["added-records"]) == ("49", "49")


def test_files_of_a_rejected_upsert_are_deleted(setup: CatalogSetup) -> None:
    upserts = Upserts(setup, ("id",), None)
    upserts.upsert([row(1)])
    state = upserts.state()
    upserts.upsert([row(2)])
    directory = Path(setup.catalog.load_table(NAME).location().removeprefix("file://"), "data")
    before = set(directory.iterdir())
    with pytest.raises(Conflict):
        upserts.table.upsert(state, upserts.changes([row(3)], []), replace(START, commit_id="other"))
    assert set(directory.iterdir()) == before
    assert upserts.rows() == upserts.expected_rows()


def test_files_of_a_failed_merge_are_deleted(setup: CatalogSetup) -> None:
    upserts = Upserts(setup, ("id",), PartitionBy("bucket", ("id",), 2))
    upserts.upsert([row(number) for number in range(10)])
    directory = Path(setup.catalog.load_table(NAME).location().removeprefix("file://"), "data")
    before = set(directory.iterdir())
    broken = min(before)
    content = broken.read_bytes()
    broken.write_bytes(content[:-8] + b"\0" * 8)
    with pytest.raises(OSError, match="cannot read a file of table"):
        upserts.upsert([row(number, name="new") for number in range(10)])
    broken.write_bytes(content)
    assert set(directory.iterdir()) == before
    assert upserts.rows() == upserts.expected_rows()


def test_column_that_was_added_or_widened(setup: CatalogSetup) -> None:
    upserts = Upserts(setup, ("id",), None)
    upserts.upsert([row(1), row(2)])
    state = upserts.table.add_columns(upserts.state(), [pa.field("score", pa.int32())])
    upserts.upsert([{**row(2), "score": 7}])
    upserts.table.add_columns(upserts.state(), [pa.field("score", pa.int64())])
    upserts.upsert([{**row(3), "score": 1 << 40}], [{"id": 5}])
    upserts.upsert([{**row(4), "score": None}])
    upserts.expected[(1,)] = {**row(1), "score": None}
    assert upserts.rows() == upserts.expected_rows()
    assert state.schema.field("score").type == pa.int32()


def test_parts_of_changes_and_files_of_another_partitioning(setup: CatalogSetup) -> None:
    """A file that was written before the partitioning changed contains keys of both parts, and is rewritten once."""
    upserts = Upserts(setup, ("id",), None)
    upserts.upsert([row(number) for number in range(20)])
    iceberg = setup.catalog.load_table(NAME)
    with iceberg.update_spec() as change:
        change.add_field("id", BucketTransform(2), "id_bucket")
    state = upserts.state()
    [all_changes] = upserts.changes([row(number, name="new") for number in range(5, 25)], [{"id": 1}, {"id": 3}]).parts
    parts = []
    for rows_of, keys_of in zip(
        *(
            [part.take(rows_by_partition(upserts.table, state, part)[bucket,]) for bucket in (0, 1)]
            for part in (all_changes.rows, all_changes.deleted)
        ),
        strict=True,
    ):
        parts.append(RowChanges(rows_of, keys_of))
    upserts.table.upsert(state, ChangeSet(iter(parts)), replace(START, commit_id="parts"))
    upserts.expected |= {(number,): row(number, name="new") for number in range(5, 25)}
    del upserts.expected[(1,)], upserts.expected[(3,)]
    assert upserts.rows() == upserts.expected_rows()
    assert {file.partition_values for file in upserts.table.existing_files(upserts.state())} == {(0,), (1,)}


def test_files_of_other_writers_and_partitionings(setup: CatalogSetup) -> None:
    """Another writer has added a file without field ids, then renamed a column and changed the partitioning."""
    upserts = Upserts(setup, ("id",), None)
    iceberg = setup.catalog.load_table(NAME)
    path = f"{iceberg.location()}/elsewhere.parquet"
    pq.write_table(pa.Table.from_pylist([row(1), row(2)], SCHEMA), path.removeprefix("file://"))
    iceberg.add_files([path])
    with iceberg.update_schema() as update:
        update.rename_column("name", "full_name")
    with iceberg.update_spec() as change:
        change.add_field("id", BucketTransform(2), "id_bucket")
    renamed = [{"full_name" if name == "name" else name: value for name, value in row(n).items()} for n in (1, 2, 3)]
    upserts.upsert(renamed[1:])
    upserts.expected[(1,)] = renamed[0]
    assert upserts.rows() == upserts.expected_rows()
    assert {file.partition_values for file in upserts.table.existing_files(upserts.state())} == {(0,), (1,)}
