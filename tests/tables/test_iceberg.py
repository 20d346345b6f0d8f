"""Test `IcebergTable` with real catalogs: atomic commits, rejected and unknown commits, and the watermark's history."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table

from sparklog.errors import BadRequest, Conflict, NotFound, Unavailable
from sparklog.tables.iceberg import IcebergTable
from sparklog.tables.root_watermark import FIRST_VERSION
from sparklog.tables.target import NewFile, PartitionBy, TableLayout, TableState
from sparklog.tables.watermark import Watermark
from tests.support.rest_catalog import Fault
from tests.tables.iceberg_catalogs import CATALOGS, CatalogSetup, new_id, open_catalog

NAME = ("shop", "orders")
SCHEMA = pa.schema(
    [
        pa.field("key", pa.binary()),
        pa.field("_offset", pa.int64(), nullable=False),
        pa.field("_timestamp", pa.timestamp("us", "UTC"), nullable=False),
        pa.field("_headers", pa.list_(pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())]))),
    ]
)
LAYOUT = TableLayout(SCHEMA, "append", PartitionBy("day", ("_timestamp",)))
DAY = datetime(2026, 11, 29, tzinfo=timezone.utc)
START = Watermark("root-1", "orders", "topic-1", {0: 0}, "commit-0", "append")


def watermark(offset: int, commit_id: str) -> Watermark:
    return replace(START, next_offsets={0: offset}, commit_id=commit_id)


@pytest.fixture(params=CATALOGS)
def setup(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[CatalogSetup]:
    with open_catalog(request.param, tmp_path) as setup:
        yield setup


@pytest.fixture
def rest(tmp_path: Path) -> Iterator[CatalogSetup]:
    with open_catalog("rest", tmp_path) as setup:
        yield setup


@pytest.fixture
def table(setup: CatalogSetup) -> IcebergTable:
    return IcebergTable(setup.catalog, NAME, new_id)


def rows(first: int, count: int, day: int = 0) -> pa.Table:
    offsets = range(first, first + count)
    columns = {
        "key": [b"k%d" % offset for offset in offsets],
        "_offset": list(offsets),
        "_timestamp": [DAY + timedelta(days=day, seconds=offset) for offset in offsets],
        "_headers": [[{"key": "a", "value": b"b"}]] * count,
    }
    return pa.table(columns, SCHEMA)


def write(table: IcebergTable, state: TableState, name: str, data: pa.Table) -> NewFile:
    """Write rows of one day to a file, as the copy does."""
    data = data.cast(state.schema)
    values = table.partition_values(state, data.combine_chunks().to_batches()[0])
    [partition] = {tuple(row.values()) for row in values.to_pylist()} or [()]
    output = table.open_output(state, f"{name}.parquet")
    with output.file, pq.ParquetWriter(output.file, state.schema) as writer:
        writer.write_table(data)
    nbytes = Path(output.path.removeprefix("file://")).stat().st_size
    return NewFile(output.path, len(data), nbytes, partition, writer.writer.metadata)


def offsets(catalog: Catalog) -> list[int]:
    return sorted(catalog.load_table(NAME).scan().to_arrow().column("_offset").to_pylist())


def append_elsewhere(iceberg: Table, data: pa.Table) -> None:
    """Append rows as another writer does, with a file that has no field ids."""
    path = f"{iceberg.location()}/elsewhere.parquet"
    pq.write_table(data, path.removeprefix("file://"))
    iceberg.add_files([path])


def created(table: IcebergTable) -> TableState:
    return table.create(LAYOUT, START)


def loaded(table: IcebergTable) -> TableState:
    state = table.load()
    assert state is not None
    return state


def test_new_table_has_the_layout_and_the_watermark(setup: CatalogSetup, table: IcebergTable) -> None:
    assert table.load() is None
    assert created(table).watermark == START
    assert table.name == "shop.orders"
    created_table = setup.catalog.load_table(NAME)
    assert created_table.format_version == 2
    assert [str(field.transform) for field in created_table.spec().fields] == ["day"]
    assert created_table.schema().find_field("_offset").required
    # A second process creates the table with another watermark.
    assert table.create(LAYOUT, watermark(7, "other")).watermark == START


def test_key_columns_are_the_identifier_of_a_table_with_buckets(setup: CatalogSetup, table: IcebergTable) -> None:
    layout = TableLayout(SCHEMA, "upsert", PartitionBy("bucket", ("key",), 16), ("key",))
    state = table.create(layout, START)
    iceberg = setup.catalog.load_table(NAME)
    assert iceberg.schema().identifier_field_names() == {"key"}
    assert str(iceberg.spec().fields[0].transform) == "bucket[16]"
    assert not state.schema.field("key").nullable


def test_unsupported_type_is_named(table: IcebergTable) -> None:
    schema = pa.schema([pa.field("id", pa.int64()), pa.field("at", pa.timestamp("ns"))])
    with pytest.raises(BadRequest, match="column 'at' of type timestamp"):
        table.create(TableLayout(schema, "append"), START)


def test_commit_adds_rows_and_watermark(setup: CatalogSetup, table: IcebergTable) -> None:
    state = created(table)
    files = [write(table, state, "a", rows(0, 3)), write(table, state, "b", rows(3, 2, day=1))]
    table.append(state, files, watermark(5, "commit-1"))
    assert offsets(setup.catalog) == [0, 1, 2, 3, 4]
    assert loaded(table).watermark == watermark(5, "commit-1")
    iceberg = setup.catalog.load_table(NAME)
    snapshot = iceberg.current_snapshot()
    assert snapshot is not None
    assert snapshot.summary is not None
    assert snapshot.summary["sparklog.next-offsets"] == iceberg.properties["sparklog.next-offsets"] == '{"0":5}'
    assert snapshot.summary["added-records"] == "5"
    # Readers find the file of a day by its partition, and rows by the statistics.
    day = iceberg.scan(row_filter="_timestamp >= '2026-11-30T00:00:00+00:00'")
    assert [task.file.record_count for task in day.plan_files()] == [2]
    assert len(list(iceberg.scan(row_filter="_offset < 3").plan_files())) == 1


def test_commit_without_rows_adds_a_snapshot(setup: CatalogSetup, table: IcebergTable) -> None:
    """Otherwise, another run that loaded the same version could commit the same interval."""
    first, second = created(table), loaded(table)
    table.append(first, [], watermark(5, "commit-1"))
    with pytest.raises(Conflict):
        table.append(second, [write(table, second, "a", rows(0, 5))], watermark(5, "commit-2"))
    assert offsets(setup.catalog) == []
    assert loaded(table).watermark == watermark(5, "commit-1")


def test_rejected_commit_is_not_retried(setup: CatalogSetup, table: IcebergTable) -> None:
    first = created(table)
    second = loaded(table)
    table.append(first, [write(table, first, "a", rows(0, 5))], watermark(5, "commit-1"))
    before = metadata_files(setup.catalog)
    with pytest.raises(Conflict, match=r"another commit to table shop\.orders came first"):
        table.append(second, [write(table, second, "b", rows(0, 5))], watermark(5, "commit-2"))
    assert offsets(setup.catalog) == [0, 1, 2, 3, 4]
    assert loaded(table).watermark == watermark(5, "commit-1")
    assert metadata_files(setup.catalog) == before


def metadata_files(catalog: Catalog) -> set[str]:
    location = catalog.load_table(NAME).location().removeprefix("file://")
    return {file.name for file in Path(location, "metadata").glob("*.avro")}


def test_property_of_another_writer_does_not_conflict(setup: CatalogSetup, table: IcebergTable) -> None:
    state = created(table)
    with setup.catalog.load_table(NAME).transaction() as transaction:
        transaction.set_properties({"owner": "anna"})
    table.append(state, [write(table, state, "a", rows(0, 5))], watermark(5, "commit-1"))
    assert setup.catalog.load_table(NAME).properties["owner"] == "anna"
    assert offsets(setup.catalog) == [0, 1, 2, 3, 4]


def test_files_are_committed_after_a_commit_of_another_writer(setup: CatalogSetup, table: IcebergTable) -> None:
    state = created(table)
    files = [write(table, state, "a", rows(0, 5))]
    other = setup.catalog.load_table(NAME)
    append_elsewhere(other, rows(90, 1))
    with pytest.raises(Conflict):
        table.append(state, files, watermark(5, "commit-1"))
    state = loaded(table)
    assert state.watermark == START
    table.append(state, files, watermark(5, "commit-1"))
    assert offsets(setup.catalog) == [0, 1, 2, 3, 4, 90]


def test_watermark_survives_expired_snapshots(setup: CatalogSetup, table: IcebergTable) -> None:
    state = created(table)
    table.append(state, [write(table, state, "a", rows(0, 5))], watermark(5, "commit-1"))
    other = setup.catalog.load_table(NAME)
    append_elsewhere(other, rows(90, 1))
    expire_all(other)
    assert loaded(table).watermark == watermark(5, "commit-1")


def expire_all(table: Table) -> None:
    table.maintenance.expire_snapshots().older_than(datetime.now() + timedelta(days=1)).commit()


def test_commits_that_were_rolled_back_are_copied_again(setup: CatalogSetup, table: IcebergTable) -> None:
    state = created(table)
    table.append(state, [write(table, state, "a", rows(0, 5))], watermark(5, "commit-1"))
    state = loaded(table)
    table.append(state, [write(table, state, "b", rows(5, 5))], watermark(10, "commit-2"))
    iceberg = setup.catalog.load_table(NAME)
    first = iceberg.snapshots()[0].snapshot_id
    iceberg.manage_snapshots().rollback_to_snapshot(first).commit()
    assert iceberg.properties["sparklog.next-offsets"] == '{"0":10}'
    state = loaded(table)
    assert state.watermark == watermark(5, "commit-1")
    table.append(state, [write(table, state, "c", rows(5, 5))], watermark(10, "commit-3"))
    assert offsets(setup.catalog) == list(range(10))


def test_rollback_before_the_copy_is_reported(setup: CatalogSetup, table: IcebergTable) -> None:
    state = created(table)
    append_elsewhere(setup.catalog.load_table(NAME), rows(90, 1))
    state = loaded(table)
    assert state.watermark == START
    table.append(state, [], watermark(5, "commit-1"))
    iceberg = setup.catalog.load_table(NAME)
    iceberg.manage_snapshots().rollback_to_snapshot(iceberg.snapshots()[0].snapshot_id).commit()
    with pytest.raises(BadRequest, match="rolled back"):
        table.load()


def test_history_ends_at_the_first_expired_snapshot(setup: CatalogSetup) -> None:
    table = IcebergTable(setup.catalog, NAME, new_id, has_properties=False)
    state = created(table)
    assert state.watermark is None
    assert table.history(state).versions == [FIRST_VERSION]
    for number in range(1, 4):
        table.append(state, [write(table, state, f"{number}", rows(number, 1))], watermark(number, f"commit-{number}"))
        state = loaded(table)
        assert state.watermark == watermark(number, f"commit-{number}")
    iceberg = setup.catalog.load_table(NAME)
    assert not any(name.startswith("sparklog.") for name in iceberg.properties)
    first, second, third = (str(snapshot.snapshot_id) for snapshot in iceberg.snapshots())
    history = table.history(state)
    assert history.table_id == str(iceberg.metadata.table_uuid)
    assert history.versions == [third, second, first, FIRST_VERSION]
    iceberg.maintenance.expire_snapshots().by_id(int(first)).commit()
    assert table.history(loaded(table)).versions == [third, second]
    iceberg.refresh().manage_snapshots().rollback_to_snapshot(int(second)).commit()
    history = table.history(loaded(table))
    assert history.versions == [second]
    assert history.other_commits == {"commit-3"}
    expire_all(setup.catalog.load_table(NAME))
    append_elsewhere(setup.catalog.load_table(NAME), rows(90, 1))
    expire_all(setup.catalog.load_table(NAME))
    assert loaded(table).watermark is None
    assert len(table.history(loaded(table)).versions) == 1


def test_properties_that_the_catalog_does_not_store_are_reported(rest: CatalogSetup) -> None:
    """After a rollback, the properties differ from the summary of the current snapshot, too."""
    assert rest.server is not None
    table = IcebergTable(rest.catalog, NAME, new_id)
    state = created(table)
    for number in range(1, 3):
        table.append(state, [], watermark(number, f"commit-{number}"))
        state = loaded(table)
    iceberg = rest.catalog.load_table(NAME)
    iceberg.manage_snapshots().rollback_to_snapshot(iceberg.snapshots()[0].snapshot_id).commit()
    state = loaded(table)
    assert state.watermark == watermark(1, "commit-1")
    rest.server.property_rule = "dropped by commits"
    table.append(state, [], watermark(3, "commit-3"))
    with pytest.raises(BadRequest, match=r"property sparklog.commit-id should be commit-3, found commit-2; use"):
        table.load()


def test_columns_are_added_and_widened(setup: CatalogSetup, table: IcebergTable) -> None:
    schema = pa.schema([*SCHEMA, pa.field("count", pa.int32())])
    state = table.create(replace(LAYOUT, schema=schema), START)
    state = table.add_columns(state, [pa.field("count", pa.int64()), pa.field("tags", pa.list_(pa.string()))])
    assert state.schema.field("count").type == pa.int64()
    assert setup.catalog.load_table(NAME).schema().find_field("tags").optional
    with pytest.raises(BadRequest, match="cannot change the columns"):
        table.add_columns(state, [pa.field("count", pa.string())])


def test_concurrent_change_of_the_schema_conflicts(setup: CatalogSetup, table: IcebergTable) -> None:
    state = created(table)
    with setup.catalog.load_table(NAME).update_schema() as update:
        update.rename_column("key", "id")
    with pytest.raises(Conflict):
        table.add_columns(state, [pa.field("extra", pa.string())])


def test_old_format_version_is_reported(setup: CatalogSetup, table: IcebergTable) -> None:
    setup.catalog.create_namespace(NAME[:1])
    setup.catalog.create_table(NAME, SCHEMA, properties={"format-version": "1"})
    with pytest.raises(BadRequest, match="upgrade it to version 2"):
        table.load()


def test_table_of_another_writer_has_no_watermark(setup: CatalogSetup, table: IcebergTable) -> None:
    setup.catalog.create_namespace(NAME[:1])
    setup.catalog.create_table(NAME, SCHEMA)
    state = loaded(table)
    assert state.watermark is None
    table.append(state, [write(table, state, "a", rows(0, 5))], watermark(5, "commit-1"))
    assert loaded(table).watermark == watermark(5, "commit-1")
    assert offsets(setup.catalog) == [0, 1, 2, 3, 4]


def test_dropped_table_is_reported(setup: CatalogSetup, table: IcebergTable) -> None:
    state = created(table)
    setup.catalog.drop_table(NAME)
    with pytest.raises(NotFound, match="was dropped"):
        table.append(state, [], watermark(5, "commit-1"))


def test_table_that_was_dropped_and_created_again_conflicts(setup: CatalogSetup, table: IcebergTable) -> None:
    state = created(table)
    setup.catalog.drop_table(NAME)
    created(table)
    with pytest.raises(Conflict):
        table.append(state, [], watermark(5, "commit-1"))


def test_deleted_files(table: IcebergTable) -> None:
    state = created(table)
    file = write(table, state, "a", rows(0, 5))
    table.delete_files([file.path, file.path])
    assert not Path(file.path.removeprefix("file://")).exists()


def commit_with(rest: CatalogSetup, fault: Fault) -> tuple[IcebergTable, TableState, Sequence[NewFile]]:
    assert rest.server is not None
    table = IcebergTable(rest.catalog, NAME, new_id)
    state = created(table)
    files = [write(table, state, "a", rows(0, 5))]
    rest.server.faults.append(fault)
    return table, state, files


@pytest.mark.parametrize("fault", ["lost request", "lost response", "error 500", "error 503"])
def test_lost_response_is_an_unknown_result(rest: CatalogSetup, fault: Fault) -> None:
    table, state, files = commit_with(rest, fault)
    with pytest.raises(Unavailable, match=r"result of a commit to table shop\.orders is unknown") as caught:
        table.append(state, files, watermark(5, "commit-1"))
    assert caught.value.is_unknown
    if fault == "lost response":
        assert loaded(table).watermark == watermark(5, "commit-1")
    else:
        # The same base fences the first request, if it is still executed.
        table.append(loaded(table), files, watermark(5, "commit-1"))
    assert offsets(rest.catalog) == [0, 1, 2, 3, 4]


def test_delayed_commit_is_fenced_by_a_later_one(rest: CatalogSetup) -> None:
    assert rest.server is not None
    table, state, files = commit_with(rest, "delayed")
    with pytest.raises(Unavailable):
        table.append(state, files, watermark(5, "commit-1"))
    table.append(loaded(table), files, watermark(5, "commit-1"))
    [error] = rest.server.deliver()
    assert "branch main was created concurrently" in error
    assert offsets(rest.catalog) == [0, 1, 2, 3, 4]


def test_commit_that_was_sent_twice_is_committed(rest: CatalogSetup) -> None:
    """A proxy repeats a request after a lost response. The second one is rejected because of the first one."""
    table, state, files = commit_with(rest, "sent twice")
    table.append(state, files, watermark(5, "commit-1"))
    assert offsets(rest.catalog) == [0, 1, 2, 3, 4]
    assert loaded(table).watermark == watermark(5, "commit-1")


def test_missing_permission_is_one_line(rest: CatalogSetup) -> None:
    table, state, files = commit_with(rest, "forbidden")
    with pytest.raises(Unavailable, match="access denied: cannot commit to table") as caught:
        table.append(state, files, watermark(5, "commit-1"))
    assert caught.value.is_denied
    assert not caught.value.is_unknown
    assert offsets(rest.catalog) == []


def test_catalog_without_a_response_is_unavailable(tmp_path: Path) -> None:
    with open_catalog("rest", tmp_path) as rest:
        table = IcebergTable(rest.catalog, NAME, new_id)
        created(table)
    with pytest.raises(Unavailable, match=r"cannot load table shop\.orders") as caught:
        table.load()
    assert not caught.value.is_unknown


def test_error_of_a_database_is_an_unknown_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with open_catalog("sqlite", tmp_path) as setup:
        table = IcebergTable(setup.catalog, NAME, new_id)
        state = created(table)
        commit = SqlCatalog.commit_table

        def interrupted(*arguments: Any) -> None:
            commit(*arguments)
            raise ConnectionResetError("connection reset by peer")

        monkeypatch.setattr(SqlCatalog, "commit_table", interrupted)
        with pytest.raises(Unavailable, match="connection reset by peer") as caught:
            table.append(state, [], watermark(5, "commit-1"))
        assert caught.value.is_unknown
        assert loaded(table).watermark == watermark(5, "commit-1")
