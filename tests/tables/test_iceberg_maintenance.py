"""Test the maintenance of an Iceberg table: it keeps rows and watermark, and deletes only unreferenced files."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.manifest import ManifestFile

from sparklog.errors import BadRequest, Conflict, Unavailable
from sparklog.tables import iceberg_maintenance, maintenance
from sparklog.tables.data_files import FILE_BYTES
from sparklog.tables.iceberg import IcebergTable
from sparklog.tables.iceberg_maintenance import delete_unreferenced_files, expire_snapshots, unreferenced_files
from sparklog.tables.maintenance import MaintenanceReport, files_to_merge, merge_small_files
from sparklog.tables.merge import ExistingFile
from tests.tables.iceberg_catalogs import CatalogSetup, new_id, open_catalog
from tests.tables.test_iceberg import NAME, created, loaded, offsets, rows, watermark, write

DAY_MS = 24 * 3_600_000


@pytest.fixture(params=["sqlite", "rest"])
def setup(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[CatalogSetup]:
    with open_catalog(request.param, tmp_path) as setup:
        yield setup


@pytest.fixture
def table(setup: CatalogSetup) -> IcebergTable:
    table = IcebergTable(setup.catalog, NAME, new_id)
    created(table)
    return table


def copy(table: IcebergTable, commits: int, day: int = 0) -> None:
    """Copy two records per commit."""
    for _ in range(commits):
        state = loaded(table)
        assert state.watermark is not None
        first = state.watermark.next_offsets[0]
        file = write(table, state, f"topic-1-00000-{first:05}", rows(first, 2, day))
        table.append(state, [file], watermark(first + 2, f"commit-{first}"))


def snapshot_times(setup: CatalogSetup) -> list[int]:
    return [snapshot.timestamp_ms for snapshot in setup.catalog.load_table(NAME).snapshots()]


def all_files(setup: CatalogSetup) -> set[Path]:
    location = Path(setup.catalog.load_table(NAME).location().removeprefix("file://"))
    return {file for file in location.rglob("*") if file.is_file()}


def test_small_files_of_each_partition_are_merged(setup: CatalogSetup, table: IcebergTable) -> None:
    copy(table, 7)
    copy(table, 3, day=1)
    before = loaded(table).watermark
    report = MaintenanceReport()
    merge_small_files(table, 4, new_id, report)
    assert (report.merged_files, report.written_files) == (7, 1)
    assert sorted(file.records for file in table.existing_files(loaded(table))) == [2, 2, 2, 14]
    assert loaded(table).watermark == before
    assert offsets(setup.catalog) == list(range(20))
    snapshot = setup.catalog.load_table(NAME).current_snapshot()
    assert snapshot is not None
    assert snapshot.summary is not None
    assert snapshot.summary.operation.value == "replace"
    # The rows of the file are in offset order.
    [merged] = [file for file in table.existing_files(loaded(table)) if file.records == 14]
    [batch] = table.read_file(loaded(table), merged, ["_offset"])
    assert batch.column(0).to_pylist() == list(range(14))
    copy(table, 1)
    assert offsets(setup.catalog) == list(range(22))


def test_merge_that_comes_second_changes_nothing(
    setup: CatalogSetup, table: IcebergTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy(table, 5)
    compact = maintenance.compact_files

    def and_copy(*arguments: Any) -> Any:
        merge = compact(*arguments)
        copy(table, 1)
        return merge

    monkeypatch.setattr(maintenance, "compact_files", and_copy)
    report = MaintenanceReport()
    merge_small_files(table, 4, new_id, report)
    assert report == MaintenanceReport()
    assert offsets(setup.catalog) == list(range(12))
    assert unreferenced_files(table, 1 << 60) == []


def test_copy_that_comes_after_a_merge_conflicts_and_is_repeated(setup: CatalogSetup, table: IcebergTable) -> None:
    copy(table, 5)
    state = loaded(table)
    file = write(table, state, "topic-1-late", rows(10, 2))
    merge_small_files(table, 4, new_id, MaintenanceReport())
    with pytest.raises(Conflict):
        table.append(state, [file], watermark(12, "late"))
    assert loaded(table).watermark == state.watermark
    table.append(loaded(table), [file], watermark(12, "late"))
    assert offsets(setup.catalog) == list(range(12))


def test_a_day_of_one_commit_per_minute() -> None:
    """The number of small files is bounded, and rows are rewritten a few times only."""
    files: list[ExistingFile] = []
    rewritten = most = 0
    for minute in range(1440):
        files.append(ExistingFile(str(minute), 1, 100_000, (), {}))
        merged = files_to_merge(files, 64)
        if merged:
            nbytes = sum(file.nbytes for file in merged)
            rewritten += nbytes
            files = [file for file in files if file not in merged]
            files.append(ExistingFile(f"merged {minute}", 1, nbytes, (), {}))
        most = max(most, len(files))
    assert most <= 64
    assert rewritten / (1440 * 100_000) < 5


def test_complete_files_are_not_merged() -> None:
    large = [ExistingFile(f"large {number}", 1, FILE_BYTES, (), {}) for number in range(9)]
    small = [ExistingFile(f"small {number}", 1, 100, (), {}) for number in range(4)]
    assert files_to_merge(large + small, 4) == []
    assert files_to_merge(large + small, 3) == small


def test_manifests_that_cannot_be_read_change_nothing(
    setup: CatalogSetup, table: IcebergTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError("connection reset")

    copy(table, 3)
    before_ms = max(snapshot_times(setup)) + DAY_MS
    monkeypatch.setattr(ManifestFile, "fetch_manifest_entry", fail)
    error = r"cannot read the manifests of table .*: connection reset"
    with pytest.raises(Unavailable, match=error):
        expire_snapshots(table, before_ms, MaintenanceReport())
    with pytest.raises(Unavailable, match=error):
        unreferenced_files(table, before_ms)
    assert len(snapshot_times(setup)) == 3


def test_expired_snapshots_and_their_files_are_deleted(setup: CatalogSetup, table: IcebergTable) -> None:
    copy(table, 6)
    merge_small_files(table, 4, new_id, MaintenanceReport())
    copy(table, 1)
    before = loaded(table).watermark
    times = snapshot_times(setup)
    # The merge and the copy after it remain.
    report = MaintenanceReport()
    expire_snapshots(table, times[-2], report)
    assert report.expired_snapshots == len([time for time in times if time < times[-2]])
    assert len(snapshot_times(setup)) == len(times) - report.expired_snapshots
    data = [path for path in report.deleted_files if path.endswith(".parquet")]
    assert len(data) == 6
    assert loaded(table).watermark == before
    assert offsets(setup.catalog) == list(range(14))
    # All remaining files are part of the table.
    assert unreferenced_files(table, 1 << 60) == []
    expire_snapshots(table, 1 << 60, MaintenanceReport())
    assert len(snapshot_times(setup)) == 1
    assert loaded(table).watermark == before
    copy(table, 1)
    assert offsets(setup.catalog) == list(range(16))


def test_tags_branches_and_the_latest_snapshots_do_not_expire(setup: CatalogSetup, table: IcebergTable) -> None:
    copy(table, 5)
    iceberg = setup.catalog.load_table(NAME)
    snapshots = [snapshot.snapshot_id for snapshot in iceberg.snapshots()]
    iceberg.manage_snapshots().create_tag(snapshots[1], "audit").commit()
    with iceberg.transaction() as transaction:
        transaction.set_properties({"history.expire.min-snapshots-to-keep": "2"})
    expire_snapshots(table, 1 << 60, MaintenanceReport())
    left = {snapshot.snapshot_id for snapshot in setup.catalog.load_table(NAME).snapshots()}
    assert left == {snapshots[1], snapshots[3], snapshots[4]}
    tagged = setup.catalog.load_table(NAME).scan(snapshot_id=snapshots[1]).to_arrow()
    assert sorted(tagged.column("_offset").to_pylist()) == [0, 1, 2, 3]


def test_snapshot_that_becomes_current_does_not_expire(setup: CatalogSetup, table: IcebergTable) -> None:
    """A user rolls the table back while snapshots expire. pyiceberg's own expiry would remove the branch."""
    copy(table, 3)
    state = loaded(table)
    iceberg = setup.catalog.load_table(NAME)
    iceberg.manage_snapshots().rollback_to_snapshot(iceberg.snapshots()[0].snapshot_id).commit()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(table, "load", lambda: state)
        report = MaintenanceReport()
        expire_snapshots(table, 1 << 60, report)
    assert report == MaintenanceReport()
    assert offsets(setup.catalog) == [0, 1]


def test_unreferenced_files_are_deleted_after_a_safe_age(setup: CatalogSetup, table: IcebergTable) -> None:
    copy(table, 2)
    state = loaded(table)
    lost = write(table, state, "topic-1-lost", rows(50, 1))
    in_flight = write(table, state, "topic-1-in-flight", rows(51, 1))
    other = write(table, state, "elsewhere", rows(52, 1))
    now_ms = int(datetime.now().timestamp() * 1000)
    old = now_ms / 1000 - 3 * 24 * 3600
    for file in all_files(setup) - {local(in_flight.path)}:
        os.utime(file, (old, old))
    before = all_files(setup)
    report = MaintenanceReport()
    delete_unreferenced_files(table, now_ms, 2 * DAY_MS, report)
    assert [local(path) for path in report.deleted_files] == [local(lost.path)]
    assert before - all_files(setup) == {local(lost.path)}
    assert local(other.path).exists()
    assert offsets(setup.catalog) == [0, 1, 2, 3]
    with pytest.raises(BadRequest, match="at least 24 hours old"):
        delete_unreferenced_files(table, now_ms, DAY_MS - 1, report)


def local(path: str) -> Path:
    return Path(path.removeprefix("file://"))


def test_files_that_are_committed_during_the_listing_remain(
    setup: CatalogSetup, table: IcebergTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy(table, 1)
    listed: Callable[..., Any] = iceberg_maintenance._listed

    def and_copy(*arguments: Any) -> list[tuple[str, str]]:
        state = loaded(table)
        file = write(table, state, "topic-1-late", rows(2, 2))
        found = list(listed(*arguments))
        table.append(state, [file], watermark(4, "late"))
        return found

    monkeypatch.setattr(iceberg_maintenance, "_listed", and_copy)
    assert unreferenced_files(table, 1 << 60) == []
    assert offsets(setup.catalog) == [0, 1, 2, 3]
