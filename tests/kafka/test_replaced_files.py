"""Test reading a directory while the log cleaner and retention replace files."""

from __future__ import annotations

from pathlib import Path

import pytest

from sparklog.errors import NotFound, Unavailable
from sparklog.kafka.in_place import KafkaView, directory
from sparklog.kafka.in_place.files import file_path
from sparklog.kafka.in_place.segment_file import SegmentFile
from sparklog.log.journal.clocks import Env
from sparklog.log.state.view import READ_COMMITTED
from tests.kafka.logs import (
    FIRST,
    SECOND,
    append_to,
    batch,
    end_of,
    marker,
    offsets,
    offsets_of,
    plan,
    read,
    segment,
)


def swap_in(folder: Path, base: int, data: bytes, replaced: list[int]) -> None:
    """Do the last steps of a cleaner pass: rename old files to `.deleted`, and rename the new file to the
    first name.
    """
    new = folder / f"{base:020}.log.swap"
    new.write_bytes(data)
    for old in replaced:
        segment(folder, old).rename(segment(folder, old).with_suffix(".log.deleted"))
    new.rename(segment(folder, base))


@pytest.fixture
def busy(env: Env, waits: list[float]) -> Env:
    """Return a clock for which every directory has just changed."""
    return Env(lambda: 0, env.boot_ms, waits.append, env.random)


def test_swap_in_progress_is_awaited(folder: Path, busy: Env, waits: list[float]) -> None:
    swap = folder / f"{0:020}.log.swap"
    segment(folder, 0).rename(swap)
    segment(folder, 3).write_bytes(SECOND)

    def finish(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 3:
            swap.rename(segment(folder, 0))

    patient = Env(busy.wall_ms, busy.boot_ms, finish, busy.random)
    view = KafkaView(folder.parent, env=patient)
    assert view.bounds("t")[0].log_start == 0
    assert offsets(read(view, "t")) == list(range(6))
    assert len(waits) >= 3


def test_abandoned_swap_is_read_as_after_startup(folder: Path, busy: Env, waits: list[float]) -> None:
    (folder / f"{0:020}.log.swap").write_bytes(batch(2, [b"c"]))
    segment(folder, 3).write_bytes(SECOND)
    names = directory.list_segments(file_path(folder), env=busy)
    assert [name.path.name for name in names] == [f"{0:020}.log.swap", f"{3:020}.log"]
    assert len(waits) > 10


def test_directory_that_changes_continuously_is_unavailable(
    folder: Path, busy: Env, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = iter(range(1000))

    def changing(path: str) -> object:
        return next(looks)

    monkeypatch.setattr(directory, "_listing", changing)
    with pytest.raises(Unavailable, match="is changing continuously: expected two equal consecutive listings"):
        directory.list_segments(file_path(folder), env=busy)


def test_listed_segment_that_cannot_be_opened_is_unavailable(folder: Path, env: Env) -> None:
    segment(folder, 3).write_bytes(SECOND)
    view = KafkaView(folder.parent, env=env)
    part = plan(view, 0, 6)
    segment(folder, 3).unlink()
    segment(folder, 3).symlink_to(folder / "nowhere")
    said = rf"{segment(folder, 3)} is listed in its directory, but did not exist when it was opened: retry"
    with pytest.raises(Unavailable, match=said):
        list(part.read(("offset",)))
    with pytest.raises(Unavailable, match=said):
        KafkaView(folder.parent, env=env).refresh(["t"])


def test_cleaned_files_without_swap_are_not_awaited(folder: Path, env: Env, waits: list[float]) -> None:
    (folder / f"{0:020}.log.cleaned").write_bytes(FIRST[:10])
    view = KafkaView(folder.parent, env=env)
    assert end_of(view) == 3
    segment(folder, 3).write_bytes(SECOND)
    assert end_of(view) == 6
    assert waits == []


def test_tailing_reader_continues_during_a_swap(folder: Path, env: Env) -> None:
    segment(folder, 3).write_bytes(SECOND)
    view = KafkaView(folder.parent, env=env)
    assert end_of(view) == 6
    (folder / f"{0:020}.log.swap").write_bytes(FIRST)
    append_to(segment(folder, 3), batch(6, [b"g"]))
    assert end_of(view) == 7
    assert view.bounds("t")[0].log_start == 0


@pytest.mark.parametrize("old_files", ["kept", "removed"])
def test_plan_made_before_a_swap_reads_the_same_offsets(folder: Path, env: Env, old_files: str) -> None:
    segment(folder, 3).write_bytes(SECOND)
    segment(folder, 6).write_bytes(batch(6, [b"g"]))
    segment(folder, 7).write_bytes(batch(7, [b"h"]))
    view = KafkaView(folder.parent, env=env)
    parts = [plan(view, 0, 8), plan(view, 4, 8), plan(view, 3, 6)]
    swap_in(folder, 0, FIRST + SECOND + batch(6, [b"g"]), [0, 3, 6])
    if old_files == "removed":
        for file in folder.glob("*.deleted"):
            file.unlink()
    assert [offsets_of(part) for part in parts] == [list(range(8)), [4, 5, 6, 7], [3, 4, 5]]
    assert end_of(view) == 8
    assert offsets(read(view, "t")) == list(range(8))


def test_swap_during_a_read_does_not_repeat_or_lose_records(
    folder: Path, env: Env, monkeypatch: pytest.MonkeyPatch
) -> None:
    segment(folder, 3).write_bytes(SECOND)
    segment(folder, 6).write_bytes(batch(6, [b"g"]))
    view = KafkaView(folder.parent, env=env)
    part = plan(view, 0, 7)
    opened: list[str] = []
    plain = SegmentFile.__init__

    def swapping(self: SegmentFile, path: str) -> None:
        opened.append(path)
        if len(opened) == 2:
            swap_in(folder, 0, FIRST + SECOND, [0, 3])
            for file in folder.glob("*.deleted"):
                file.unlink()
        plain(self, path)

    monkeypatch.setattr(SegmentFile, "__init__", swapping)
    assert offsets_of(part) == list(range(7))
    assert len(opened) > 3


def test_cleaned_segment_is_planned_again(folder: Path, env: Env) -> None:
    append_to(segment(folder, 0), batch(3, [b"d"], producer=7) + marker(4, 7, commit=False))
    segment(folder, 5).write_bytes(batch(5, [b"f"]))
    view = KafkaView(folder.parent, env=env)
    assert end_of(view) == 6
    swap_in(folder, 0, batch(2, [b"c"]), [0])
    assert end_of(view) == 6
    assert offsets(read(view, "t", isolation=READ_COMMITTED)) == [2, 5]


def test_expired_files_are_read_until_they_are_deleted(folder: Path) -> None:
    segment(folder, 3).write_bytes(SECOND)
    view = KafkaView(folder.parent)
    part = plan(view, 0, 6)
    names = directory.list_segments(file_path(folder))
    segment(folder, 0).rename(segment(folder, 0).with_suffix(".log.deleted"))
    with SegmentFile(names[0].path) as file:
        assert file.read(0, 10) == FIRST[:10]
    segment(folder, 0).with_suffix(".log.deleted").unlink()
    with pytest.raises(NotFound, match=r"offsets 0 to 5 of t-0 no longer exist: the log now starts at 3"):
        offsets_of(part)
