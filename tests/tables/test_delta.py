"""Test `DeltaLakeTable`: atomic commits, rejected and unknown commits, the watermark, and what other readers see."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from dataclasses import replace
from datetime import date, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake

import sparklog
from sparklog.errors import BadRequest, Conflict, Unavailable
from sparklog.log.journal.clocks import SYSTEM
from sparklog.tables.delta import MAX_ENTRIES, DeltaLakeTable
from sparklog.tables.quarantine import Quarantine
from sparklog.tables.rows import BAD_RECORD_SCHEMA
from sparklog.tables.target import ChangeSet, NewFile, PartitionBy, RowChanges, TableLayout, TableState, UpsertEffect
from sparklog.tables.watermark import Watermark

SCHEMA = pa.schema(
    [
        pa.field("key", pa.string()),
        pa.field("_offset", pa.int64(), nullable=False),
        pa.field("_timestamp", pa.timestamp("us", "UTC"), nullable=False),
        pa.field("_headers", pa.list_(pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())]))),
    ]
)
APPEND = TableLayout(SCHEMA, "append", PartitionBy("day", ("_timestamp",)))
UPSERT = TableLayout(SCHEMA, "upsert", PartitionBy("bucket", ("key",), 4), ("key",))
DAY = datetime(2026, 11, 29, tzinfo=timezone.utc)
START = Watermark("root-1", "orders", "topic-1", {0: 5, 1: 0}, "commit-0", "append")


def watermark(offset: int, commit_id: str, **changes: Any) -> Watermark:
    return replace(START, next_offsets={0: offset, 1: 0}, commit_id=commit_id, **changes)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "orders"


@pytest.fixture
def table(path: Path) -> DeltaLakeTable:
    return open_table(path)


def open_table(path: Path) -> DeltaLakeTable:
    return DeltaLakeTable(str(path), {}, SYSTEM)


def rows(first: int, count: int, day: int = 0, prefix: str = "k") -> pa.Table:
    offsets = range(first, first + count)
    columns = {
        "key": [f"{prefix}{offset}" for offset in offsets],
        "_offset": list(offsets),
        "_timestamp": [DAY + timedelta(days=day, microseconds=offset) for offset in offsets],
        "_headers": [[{"key": "a", "value": b"b"}]] * count,
    }
    return pa.table(columns, SCHEMA)


names = itertools.count()


def write(table: DeltaLakeTable, state: TableState, data: pa.Table) -> NewFile:
    """Write rows of one partition to a file, as the copy does."""
    data = data.cast(state.schema)
    values = table.partition_values(state, data.combine_chunks().to_batches()[0])
    [partition] = {tuple(row.values()) for row in values.to_pylist()} or [()]
    output = table.open_output(state, f"f{next(names)}.parquet")
    with output.file, pq.ParquetWriter(output.file, state.schema) as writer:
        writer.write_table(data)
        writer.close()
        nbytes = output.file.tell()
    return NewFile(output.path, len(data), nbytes, partition, writer.writer.metadata)


def stored(path: Path) -> list[Any]:
    return sorted(pa.table(DeltaTable(str(path)).to_pyarrow_table())["_offset"].to_pylist())


def entry(path: Path, version: int) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (path / f"_delta_log/{version:020}.json").read_text().splitlines()]


def test_rows_and_watermark_are_one_commit(table: DeltaLakeTable, path: Path) -> None:
    assert table.load() is None
    state = table.create(APPEND, START)
    assert state.watermark == START
    assert [field.name for field in state.schema] == SCHEMA.names
    file, next_day = write(table, state, rows(5, 3)), write(table, state, rows(8, 2, day=1))
    table.append(state, [file, next_day], watermark(10, "commit-1"))

    loaded = table.load()
    assert loaded is not None
    assert loaded.watermark == watermark(10, "commit-1")
    assert DeltaTable(str(path)).version() == 1
    assert stored(path) == [5, 6, 7, 8, 9]
    [day] = DeltaTable(str(path)).to_pyarrow_table(filters=[("_date", "=", date(2026, 11, 30))])["_date"].unique()
    assert day.as_py() == date(2026, 11, 30)


def test_another_process_reads_the_same_watermark(table: DeltaLakeTable, path: Path) -> None:
    state = table.create(APPEND, START)
    table.append(state, [write(table, state, rows(5, 3))], watermark(8, "commit-1"))
    loaded = open_table(path).load()
    assert loaded is not None
    assert loaded.watermark == watermark(8, "commit-1")
    assert loaded == open_table(path).load()


def test_another_process_reads_the_offsets_if_the_commit_is_not_in_the_latest_entries(
    table: DeltaLakeTable, path: Path
) -> None:
    table.append(table.create(APPEND, START), [], watermark(8, "commit-1"))
    for number in range(MAX_ENTRIES):
        DeltaTable(str(path)).alter.set_table_properties({"number": str(number)}, raise_if_not_exists=False)
    found = loaded(open_table(path)).watermark
    assert found is not None
    assert found.next_offsets == {0: 8, 1: 0}
    assert found.commit_id.startswith("delta-")


def test_another_process_quarantines_no_record_twice(path: Path) -> None:
    row = {"topic": "orders", "partition": 0, "offset": 6, "timestamp": 0, "value": b"x", "reason": "bad"}
    for number in range(2):
        after = START.advanced({0: 9}, f"commit-{number}")
        with Quarantine(open_table(path), START, after, "0123456789abcdef", SYSTEM) as quarantine:
            quarantine.add(pa.RecordBatch.from_pylist([row], BAD_RECORD_SCHEMA))
            assert quarantine.commit()
    assert DeltaTable(str(path)).to_pyarrow_table().num_rows == 1


def test_table_that_another_process_created_first_is_returned(table: DeltaLakeTable, path: Path) -> None:
    first = open_table(path).create(APPEND, START)
    second = table.create(APPEND, replace(START, next_offsets={0: 99, 1: 0}, commit_id="commit-9"))
    assert second.watermark is not None
    assert first.watermark is not None
    assert second.watermark.next_offsets == first.watermark.next_offsets


def test_directory_with_other_files_is_rejected(table: DeltaLakeTable, path: Path) -> None:
    path.mkdir()
    (path / "notes.txt").touch()
    with pytest.raises(BadRequest, match=r"contains files such as notes\.txt: use a new directory"):
        table.create(APPEND, START)


@pytest.mark.parametrize("other", ["rows", "property", "column", "compaction", "copy"])
def test_commit_is_rejected_if_another_commit_came_first(table: DeltaLakeTable, path: Path, other: str) -> None:
    state = table.create(APPEND, START)
    for offset in range(5, 8):
        table.append(state, [write(table, state, rows(offset, 1))], watermark(offset + 1, f"commit-{offset}"))
        state = loaded(table)
    foreign = DeltaTable(str(path))
    if other == "rows":
        write_deltalake(foreign, rows(100, 1).append_column("_date", pa.array([date(2026, 11, 29)])), mode="append")
    elif other == "property":
        foreign.alter.set_table_properties({"delta.logRetentionDuration": "interval 9 days"})
    elif other == "column":
        copy = open_table(path)
        copy.add_columns(loaded(copy), [pa.field("extra", pa.int32())])
    elif other == "compaction":
        assert foreign.optimize.compact()["numFilesRemoved"] == 3
    else:
        copy = open_table(path)
        copy.append(loaded(copy), [write(copy, state, rows(8, 1))], watermark(9, "commit-other"))
    before = stored(path)
    file = write(table, state, rows(8, 1))
    with pytest.raises(Conflict):
        table.append(state, [file], watermark(9, "commit-8"))
    assert stored(path) == before
    state = loaded(table)
    assert state.watermark is not None
    assert state.watermark.next_offsets == ({0: 9, 1: 0} if other == "copy" else {0: 8, 1: 0})
    if other != "copy":
        table.append(state, [file], watermark(9, "commit-8"))
        assert stored(path) == sorted([*before, 8])


def loaded(table: DeltaLakeTable) -> TableState:
    state = table.load()
    assert state is not None
    return state


@pytest.mark.parametrize("error", [OSError("connection reset"), Exception])
@pytest.mark.parametrize("reached", [True, False])
def test_lost_response(
    table: DeltaLakeTable, path: Path, monkeypatch: pytest.MonkeyPatch, error: Any, reached: bool
) -> None:
    from deltalake.exceptions import CommitFailedError

    state = table.create(APPEND, START)
    file = write(table, state, rows(5, 1))
    create = DeltaTable.create_write_transaction

    def lose(self: DeltaTable, *args: Any, **options: Any) -> None:
        if reached:
            create(self, *args, **options)
        raise CommitFailedError("exists") if error is Exception else error

    with monkeypatch.context() as patch:
        patch.setattr(DeltaTable, "create_write_transaction", lose)
        if reached:
            table.append(state, [file], watermark(6, "commit-1"))
        else:
            with pytest.raises(Unavailable, match="is unknown") as caught:
                table.append(state, [file], watermark(6, "commit-1"))
            assert caught.value.is_unknown
    assert stored(path) == ([5] if reached else [])


def test_empty_commit_moves_the_watermark(table: DeltaLakeTable) -> None:
    state = table.create(APPEND, START)
    table.append(state, [], watermark(9, "commit-1"))
    assert loaded(table).watermark == watermark(9, "commit-1")


def test_log_of_a_new_table_has_a_checkpoint_every_ten_commits(table: DeltaLakeTable, path: Path) -> None:
    """Each load reads the entries since the last checkpoint."""
    state = table.create(APPEND, START)
    for number in range(25):
        table.append(state, [], watermark(number, f"commit-{number}"))
        state = loaded(table)
    checkpoints = [int(file.name[:20]) for file in sorted((path / "_delta_log").glob("*.checkpoint.parquet"))]
    assert len(checkpoints) == 2
    assert checkpoints[-1] >= 25 - 10
    assert loaded(table).watermark == watermark(24, "commit-24")


@pytest.mark.parametrize("foreign", [0, 4, 5])
def test_watermark_is_read_from_the_latest_entry_of_a_copy(
    table: DeltaLakeTable, path: Path, foreign: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The library reads all entries since the last checkpoint once per partition."""
    calls: list[str] = []
    find = DeltaTable.transaction_version

    def counted(delta: DeltaTable, app_id: str) -> int | None:
        calls.append(app_id)
        return find(delta, app_id)

    monkeypatch.setattr(DeltaTable, "transaction_version", counted)
    table.append(table.create(APPEND, START), [], replace(START, next_offsets={0: 9, 1: 7, 2: 3}, commit_id="commit-1"))
    for number in range(foreign):
        DeltaTable(str(path)).alter.set_table_properties({"number": str(number)}, raise_if_not_exists=False)
    assert loaded(table).watermark == replace(START, next_offsets={0: 9, 1: 7, 2: 3}, commit_id="commit-1")
    assert len(calls) == (5 if foreign == 5 else 0)


def test_watermark_survives_checkpoints_and_cleanup(table: DeltaLakeTable, path: Path) -> None:
    state = table.create(APPEND, START)
    for offset in range(5, 25):
        table.append(state, [write(table, state, rows(offset, 1))], watermark(offset + 1, f"commit-{offset}"))
        state = loaded(table)
    delta = DeltaTable(str(path))
    delta.create_checkpoint()
    for version in range(15):
        (path / f"_delta_log/{version:020}.json").unlink(missing_ok=True)
    delta.optimize.compact()
    delta.vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)
    assert open_table(path).load() is not None
    assert loaded(table).watermark == watermark(25, "commit-24")
    assert stored(path) == list(range(5, 25))


def test_recreated_topic_continues_at_the_committed_offsets(table: DeltaLakeTable, path: Path) -> None:
    state = table.create(APPEND, START)
    table.append(state, [write(table, state, rows(5, 3))], watermark(8, "commit-1"))
    again = replace(START, topic_id="topic-2", next_offsets={0: 0, 1: 3, 2: 0}, commit_id="commit-2")
    table.append(loaded(table), [], again)
    assert loaded(table).watermark == again
    state = loaded(table)
    table.append(state, [write(table, state, rows(0, 1))], replace(again, next_offsets={0: 1, 1: 3, 2: 0}))
    watermark_after = loaded(table).watermark
    assert watermark_after is not None
    assert watermark_after.next_offsets == {0: 1, 1: 3, 2: 0}
    assert stored(path) == [0, 5, 6, 7]


@pytest.mark.parametrize("other_run", [False, True])
def test_rows_of_a_recreated_topic_are_removed(
    table: DeltaLakeTable, path: Path, other_run: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The removal is two commits. If another run completes it and copies rows in between, they remain."""
    state = table.create(APPEND, START)
    table.append(state, [write(table, state, rows(5, 3))], watermark(8, "commit-1"))
    again = replace(START, topic_id="topic-2", next_offsets={0: 0, 1: 0}, commit_id="commit-2")
    later = replace(again, next_offsets={0: 1, 1: 0}, commit_id="commit-3")
    if not other_run:
        table.clear(loaded(table), again)
        assert stored(path) == []
        assert loaded(table).watermark == again
        return
    other, reload = open_table(path), table._loaded

    def other_run_first() -> TableState:
        other.clear(loaded(other), again)
        state = loaded(other)
        other.append(state, [write(other, state, rows(0, 1))], later)
        return reload()

    monkeypatch.setattr(table, "_loaded", other_run_first)
    with pytest.raises(Conflict):
        table.clear(loaded(table), replace(again, commit_id="commit-4"))
    assert stored(path) == [0]
    assert loaded(other).watermark == later


def test_table_of_another_program_gets_a_watermark(path: Path) -> None:
    write_deltalake(str(path), rows(100, 2))
    table = open_table(path)
    state = loaded(table)
    assert state.watermark is None
    table.append(state, [], START)
    state = loaded(table)
    assert state.watermark == START
    table.append(state, [write(table, state, rows(5, 1))], watermark(6, "commit-1"))
    assert stored(path) == [5, 100, 101]


def test_watermark_that_would_expire_is_rejected(table: DeltaLakeTable, path: Path) -> None:
    table.create(APPEND, START)
    DeltaTable(str(path)).alter.set_table_properties({"delta.setTransactionRetentionDuration": "interval 1 days"})
    with pytest.raises(BadRequest, match="with which the watermark expires"):
        table.load()


def changes(changed: pa.Table, deleted: Sequence[str] = ()) -> ChangeSet:
    return ChangeSet([RowChanges(changed, pa.table({"key": pa.array(deleted, pa.string())}))])


def test_upsert_replaces_and_deletes_rows(table: DeltaLakeTable, path: Path) -> None:
    start = replace(START, mode="upsert")
    state = table.create(UPSERT, start)
    table.upsert(state, changes(rows(0, 40)), watermark(40, "commit-1", mode="upsert"))
    updated = rows(100, 1).set_column(0, SCHEMA.field("key"), pa.array(["k7"]))
    deleted = changes(updated, ["k3", "missing"])
    table.upsert(loaded(table), deleted, watermark(42, "commit-2", mode="upsert"))
    added = [action["add"] for action in entry(path, 2) if "add" in action]
    assert deleted.effect == UpsertEffect(1, len(added), sum(action["size"] for action in added), updated.num_rows)
    found = DeltaTable(str(path)).to_pyarrow_table()
    assert sorted(found["_offset"].to_pylist()) == sorted({*range(40), 100} - {3, 7})
    assert dict(zip(found["key"].to_pylist(), found["_offset"].to_pylist(), strict=True))["k7"] == 100
    assert loaded(table).watermark == watermark(42, "commit-2", mode="upsert")
    removed = [action for action in entry(path, 2) if "remove" in action]
    assert 1 <= len(removed) <= 2


def test_rejected_upsert_deletes_its_files(table: DeltaLakeTable, path: Path) -> None:
    state = table.create(UPSERT, replace(START, mode="upsert"))
    other = open_table(path)
    other.upsert(loaded(other), changes(rows(0, 4)), watermark(4, "commit-1", mode="upsert"))
    files = set(path.glob("*.parquet"))
    with pytest.raises(Conflict):
        table.upsert(state, changes(rows(0, 4)), watermark(4, "commit-2", mode="upsert"))
    assert set(path.glob("*.parquet")) == files


def test_statistics_skip_files(table: DeltaLakeTable, path: Path) -> None:
    state = table.create(APPEND, START)
    table.append(state, [write(table, state, rows(5, 3, prefix="x" * 100))], watermark(8, "commit-1"))
    [added] = [action["add"] for action in entry(path, 1) if "add" in action]
    statistics = json.loads(added["stats"])
    assert statistics["numRecords"] == 3
    assert statistics["minValues"] == {"_offset": 5, "_timestamp": "2026-11-29T00:00:00.000Z"}
    assert statistics["maxValues"] == {"_offset": 7, "_timestamp": "2026-11-29T00:00:00.001Z"}
    assert statistics["nullCount"] == {"key": 0, "_offset": 0, "_timestamp": 0}
    [file] = table.existing_files(loaded(table))
    assert file.bounds["_offset"] == (5, 7)
    assert file.partition_values == (date(2026, 11, 29),)


@pytest.mark.parametrize("zone", ["UTC", None])
def test_rounded_bounds_of_timestamps_hide_no_key(
    table: DeltaLakeTable, path: Path, zone: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark rounds the bounds of timestamps down to milliseconds."""
    schema = pa.schema([pa.field("at", pa.timestamp("us", zone)), pa.field("n", pa.int64())])
    bounds = {"at": f"2026-11-29T00:00:00.000{'Z' if zone else ''}"}
    rounded = json.dumps({"numRecords": 1, "minValues": bounds, "maxValues": bounds, "nullCount": {"at": 0}})
    monkeypatch.setattr("sparklog.tables.delta.statistics", lambda *_: rounded)
    table.create(TableLayout(schema, "upsert", None, ("at",)), replace(START, mode="upsert"))
    at = DAY.replace(microsecond=500, tzinfo=timezone.utc if zone else None)
    for number in (1, 2):
        row = pa.table({"at": [at], "n": [number]}, schema)
        change = ChangeSet([RowChanges(row, row.select(["at"]).slice(0, 0))])
        table.upsert(loaded(table), change, watermark(number, f"commit-{number}", mode="upsert"))
    assert DeltaTable(str(path)).to_pyarrow_table()["n"].to_pylist() == [2]


def test_added_columns_are_null_in_existing_rows(table: DeltaLakeTable, path: Path) -> None:
    state = table.create(UPSERT, replace(START, mode="upsert"))
    table.upsert(state, changes(rows(0, 8)), watermark(8, "commit-1", mode="upsert"))
    state = table.add_columns(loaded(table), [pa.field("extra", pa.int32(), nullable=False)])
    wide = rows(8, 1).append_column("extra", pa.array([7], pa.int32()))
    table.upsert(state, changes(wide, ["k0", "k1"]), watermark(9, "commit-2", mode="upsert"))
    found = DeltaTable(str(path)).to_pyarrow_table()
    assert dict(zip(found["_offset"].to_pylist(), found["extra"].to_pylist(), strict=True)) == {
        **dict.fromkeys(range(2, 8)),
        8: 7,
    }
    with pytest.raises(BadRequest, match="cannot change the type of column 'extra'"):
        table.add_columns(loaded(table), [pa.field("extra", pa.int64())])


@pytest.mark.parametrize(
    "kind", [pa.uint32(), pa.struct([("x", pa.uint8())]), pa.list_(pa.map_(pa.string(), pa.uint64())), pa.time64("us")]
)
def test_unsupported_type_is_rejected(table: DeltaLakeTable, kind: pa.DataType) -> None:
    layout = TableLayout(pa.schema([pa.field("a", kind)]), "append")
    with pytest.raises(BadRequest, match=r"^Delta tables do not support column 'a' of type"):
        table.create(layout, START)


def test_column_with_the_name_of_the_partition_column_is_rejected(table: DeltaLakeTable, path: Path) -> None:
    column = pa.field("_Date", pa.string())
    with pytest.raises(BadRequest, match="column _Date of the records has the name of the partition column"):
        table.create(replace(APPEND, schema=pa.schema([*SCHEMA, column])), START)
    with pytest.raises(BadRequest, match="rename the field in schema, or use partition_by='none' for a new table"):
        table.add_columns(table.create(APPEND, START), [column])
    other = open_table(path.with_name("other"))
    assert "_Date" in other.create(replace(UPSERT, schema=pa.schema([*SCHEMA, column])), START).schema.names


def test_deletion_vectors_are_rejected(table: DeltaLakeTable) -> None:
    action = {"path": "a.parquet", "deletion_vector.storage_type": "u"}
    with pytest.raises(BadRequest, match="has deletion vectors"):
        table._check_file(action)


def test_copy_to_a_table_of_another_program_requires_starting_offsets(path: Path, tmp_path: Path) -> None:
    write_deltalake(str(path), pa.table({"id": [1]}))
    root = sparklog.open(tmp_path / "root", create=True)
    root.create_topic("orders").append(pa.table({"value": [b"a"]}))
    with pytest.raises(BadRequest, match="was not created by copying a topic: use another table"):
        sparklog.to_delta(root, "orders", str(path))


def test_error_of_an_object_store_is_one_line_without_colors() -> None:
    access = {"aws_endpoint_url": "http://127.0.0.1:9", "aws_allow_http": "true", "aws_region": "eu-west-1"}
    keys = {"aws_access_key_id": "a", "aws_secret_access_key": "b", "max_retries": "0"}
    with pytest.raises(Unavailable) as caught:
        DeltaLakeTable("s3://bucket/orders", access | keys, SYSTEM).load()
    assert str(caught.value).startswith("cannot load table s3://bucket/orders: ")
    assert "refused" in str(caught.value)
    assert "\x1b" not in str(caught.value)
    assert "↳" not in str(caught.value)
