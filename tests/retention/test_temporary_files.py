"""Temporary files on a disk: those of dead writers are deleted, and those of running writers are kept."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from sparklog.errors import BadRequest, SparklogError, Unavailable
from sparklog.log.journal.clocks import SYSTEM
from sparklog.log.topic.root import open_root
from sparklog.maintenance.work_items import Settings
from sparklog.retention.retain import retain_root
from sparklog.storage.local import LocalStore
from sparklog.testing.world import DAY_MS, HOUR_MS


def aged(path: Path, ms: int) -> None:
    then = SYSTEM.wall_ms() / 1000 - ms / 1000
    os.utime(path, (then, then))


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    found = LocalStore(tmp_path / "root", durable=False)
    root = open_root(found, create=True)
    root.create_topic("t")
    return found


def leftovers(store: LocalStore) -> dict[str, Path]:
    """Create temporary files of a dead writer in the root, in a log and in a data directory."""
    base = Path(store.location)
    found = {}
    for folder in ("", "t/_log", "t/_log/checkpoints", "t/append", "t/sealed/0/run"):
        (base / folder).mkdir(parents=True, exist_ok=True)
        path = base / folder / f"~{len(found):024x}"
        path.write_bytes(b"half a file")
        found[folder] = path
    return found


def test_temporary_files_can_be_listed_and_deleted(store: LocalStore) -> None:
    paths = leftovers(store)
    listed = {info.key: info for info in store.temporary_files("")}
    assert {os.path.join(store.location, key) for key in listed} == {str(path) for path in paths.values()}
    assert {info.size for info in listed.values()} == {11}
    assert [info.key for info in store.temporary_files("", deep=False)] == [paths[""].name]
    assert len(list(store.temporary_files("t/"))) == 4
    assert not [info for info in store.list("") if "~" in info.key]
    key = f"t/append/{paths['t/append'].name}"
    store.delete_temporary(key)
    store.delete_temporary(key)
    assert not paths["t/append"].exists()
    assert list(store.temporary_files("nowhere/")) == []


@pytest.mark.parametrize("key", ["_root.json", "t/append/x.slices", "t/../~1", "/~1", "t/~/x", "~", "t/~a/b", "t/~.."])
def test_delete_temporary_rejects_other_files(store: LocalStore, key: str) -> None:
    with pytest.raises(BadRequest):
        store.delete_temporary(key)
    assert store.stat("_root.json") is not None


def test_temporary_files_of_dead_writers_are_deleted(store: LocalStore) -> None:
    paths = leftovers(store)
    for path in paths.values():
        aged(path, DAY_MS + HOUR_MS)
    young = Path(store.location) / "t" / "append" / "~123456781234567812345678"
    young.write_bytes(b"still being written")
    aged(young, DAY_MS - HOUR_MS)
    root = open_root(store)
    settings = Settings(SYSTEM.wall_ms())
    told = retain_root(root, settings, dry_run=True)
    assert all(path.exists() for path in paths.values())
    done = retain_root(root, settings)
    assert not any(path.exists() for path in paths.values())
    assert young.exists()
    for reports in (told, done):
        removed = [item for report in reports if report.vacuum for item in report.vacuum.removed]
        assert {item.kind for item in removed} == {"temporary file"}
        assert sum(item.objects for item in removed) == 5
        assert [report.topic for report in reports] == ["(root)", "t"]


def test_user_clock_does_not_delete_temporary_files(store: LocalStore) -> None:
    paths = leftovers(store)
    retain_root(open_root(store), Settings(SYSTEM.wall_ms() + 100 * DAY_MS))
    assert all(path.exists() for path in paths.values())


def test_writer_fails_if_its_temporary_file_was_deleted(store: LocalStore) -> None:
    writer = store.writer("t/append/file.slices")
    writer.write(b"data")
    for info in list(store.temporary_files("t/append/")):
        aged(Path(store.location) / info.key, 2 * DAY_MS)
    retain_root(open_root(store), Settings(SYSTEM.wall_ms()))
    with pytest.raises(Unavailable):
        writer.close()
    assert store.stat("t/append/file.slices") is None


def test_temporary_file_that_cannot_be_deleted_is_reported(store: LocalStore, monkeypatch: pytest.MonkeyPatch) -> None:
    for path in leftovers(store).values():
        aged(path, 2 * DAY_MS)

    def refuse(key: str) -> None:
        raise Unavailable(f"cannot delete {key}")

    monkeypatch.setattr(store, "delete_temporary", refuse)
    reports = retain_root(open_root(store), Settings(SYSTEM.wall_ms()))
    assert [report.failed for report in reports] == [True, True]
    assert all(isinstance(e, SparklogError) for r in reports if r.vacuum for e in r.vacuum.failures)
