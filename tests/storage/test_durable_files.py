"""Early writeback of a file only changes the duration of its fsync."""

from __future__ import annotations

from pathlib import Path

import pytest

from sparklog.storage import durable_files, local
from sparklog.storage.local import LocalStore

PIECE = b"x" * (5 << 20)


def written(folder: Path) -> bytes:
    store = LocalStore(folder)
    writer = store.writer("data/file")
    for _ in range(8):
        writer.write(PIECE)
    writer.close()
    return store.get("data/file")


def test_written_bytes_are_passed_to_writeback_once_and_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    handed: list[tuple[int, int]] = []
    monkeypatch.setattr(local, "start_writeback", lambda fd, start, length: handed.append((start, length)))
    assert written(tmp_path) == PIECE * 8
    assert handed == [(0, 20 << 20), (20 << 20, 20 << 20)]


def test_a_store_without_durability_does_not_start_writeback(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    handed: list[int] = []
    monkeypatch.setattr(local, "start_writeback", lambda fd, start, length: handed.append(start))
    writer = LocalStore(tmp_path, durable=False).writer("file")
    for _ in range(8):
        writer.write(PIECE)
    writer.close()
    assert handed == []


def test_writes_are_the_same_without_sync_file_range(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(durable_files, "_CALL", None)
    assert written(tmp_path) == PIECE * 8


def test_a_rejected_request_is_not_an_error() -> None:
    durable_files.start_writeback(-1, 0, 1)
    assert durable_files.SYNC_FILE_RANGE_WRITE == 2
