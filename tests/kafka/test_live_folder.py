"""A folder that a broker is writing, cleaning and expiring while it is read."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sparklog.errors import Corrupt, NotFound, Unavailable
from sparklog.kafka import KafkaView, directory
from sparklog.kafka.segment_file import SegmentFile
from sparklog.log.env import Env
from sparklog.log.view import COLUMNS, READ_COMMITTED, READ_UNCOMMITTED, OffsetRange, ReadPart
from tests.fixture_data import copied, expected_records
from tests.kafka.logs import HOUR_MS, batch, marker, offsets, read, records, segment, without_epochs, write_partition

FIRST = batch(0, [b"a", b"b"]) + batch(2, [b"c"])
SECOND = batch(3, [b"d", b"e", b"f"])


def append(file: Path, data: bytes) -> None:
    with file.open("ab") as out:
        out.write(data)


def end_of(view: KafkaView, topic: str = "t") -> int:
    view.refresh([topic])
    return view.bounds(topic)[0].log_end


def plan(view: KafkaView, start: int, end: int, isolation: str = READ_UNCOMMITTED) -> ReadPart:
    (part,) = view.plan([OffsetRange("t", 0, start, end)], isolation)
    return part


def offsets_of(part: ReadPart) -> list[int]:
    return offsets([record for found in part.read(COLUMNS) for record in records(found)])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_partition(tmp_path, "t-0", {0: FIRST})


@pytest.fixture
def waits() -> list[float]:
    return []


@pytest.fixture
def env(waits: list[float]) -> Env:
    """Sleeping takes no time; the clock runs far ahead, so that no folder looks as if it had changed just now."""
    return Env(lambda: 2 * HOUR_MS, lambda: 0, waits.append, random.Random(1))


# ---------------------------------------------------------------- the tail


def test_zeros_end_a_preallocated_file(fixtures: Path) -> None:
    fixture = fixtures / "preallocated-running"
    view = KafkaView(fixture / "data")
    log = segment(fixture / "data/prealloc-0", 65)
    assert log.read_bytes().endswith(bytes(1000)), "the fixture's tail is zero"
    assert view.bounds("prealloc")[0].log_end == 90
    assert read(view, "prealloc") == without_epochs(expected_records(fixture, "prealloc-0"))


def test_what_is_written_over_the_zeros_is_found(folder: Path) -> None:
    log = segment(folder, 0)
    log.write_bytes(FIRST + bytes(1_000_000))
    view = KafkaView(folder.parent)
    assert end_of(view) == 3
    with log.open("r+b") as out:
        out.seek(len(FIRST))
        out.write(SECOND)
    assert end_of(view) == 6
    assert offsets(read(view, "t")) == list(range(6))


def test_a_last_batch_written_in_part_does_not_count_until_it_is_whole(folder: Path) -> None:
    view = KafkaView(folder.parent)
    log = segment(folder, 0)
    for length in range(0, len(SECOND), 7):
        log.write_bytes(FIRST + SECOND[:length])
        assert end_of(view) == 3, length
        assert end_of(KafkaView(folder.parent)) == 3, length
    log.write_bytes(FIRST + SECOND)
    assert end_of(view) == 6


def test_a_last_batch_of_the_right_length_with_holes_is_not_written_yet(folder: Path) -> None:
    view = KafkaView(folder.parent)
    log = segment(folder, 0)
    for written in (9, 30, 61, len(SECOND) - 2):
        log.write_bytes(FIRST + SECOND[:written] + bytes(len(SECOND) - written + 5000))
        assert end_of(view) == 3, written
        assert offsets(read(view, "t")) == [0, 1, 2], written
    log.write_bytes(FIRST + SECOND + bytes(5000))
    assert end_of(view) == 6


def test_a_wrong_checksum_before_the_last_batch_is_corrupt(folder: Path) -> None:
    log = segment(folder, 0)
    data = bytearray(FIRST + SECOND)
    position = len(batch(0, [b"a", b"b"]))
    data[position + 65] ^= 1
    log.write_bytes(data)
    view = KafkaView(folder.parent)
    assert view.bounds("t")[0].log_end == 6
    assert offsets(read(view, "t", start=0, end=2)) == [0, 1]
    assert offsets(read(view, "t", start=3, end=6)) == [3, 4, 5]
    with pytest.raises(Corrupt) as caught:
        read(view, "t")
    assert caught.value.file == str(log)
    assert (caught.value.position, caught.value.offset) == (position, 2)


def test_a_segment_with_a_successor_must_be_whole(folder: Path) -> None:
    log = segment(folder, 0)
    log.write_bytes(FIRST + SECOND[:-1])
    write_partition(folder.parent, "t-0", {6: batch(6, [b"g"])})
    view = KafkaView(folder.parent)
    assert view.bounds("t")[0].log_end == 7
    assert offsets(read(view, "t", start=0, end=3)) == [0, 1, 2]
    assert offsets(read(view, "t", start=6, end=7)) == [6]
    with pytest.raises(Corrupt) as caught:
        read(view, "t")
    assert (caught.value.file, caught.value.position, caught.value.offset) == (str(log), len(FIRST), 3)


def test_batches_longer_than_a_window_are_found(folder: Path) -> None:
    small = batch(3, [b"d"])
    body = bytearray(small)
    big = bytes(body[61:]) * 50_000
    from sparklog.format.record_batch import BatchHeader

    header = BatchHeader(3, 49_999, 50_000, HOUR_MS, HOUR_MS, leader_epoch=0)
    record = big[: len(small) - 61]
    assert len(record) * 50_000 == len(big)
    append(segment(folder, 0), header.pack(big) + batch(50_003, [b"z"]))
    view = KafkaView(folder.parent)
    assert view.bounds("t")[0].log_end == 50_004
    assert offsets(read(view, "t", start=50_003)) == [50_003]


# ---------------------------------------------------------------- growth


def test_appends_rolls_and_expiry_show_at_the_next_refresh(folder: Path) -> None:
    view = KafkaView(folder.parent)
    assert end_of(view) == 3
    append(segment(folder, 0), SECOND)
    assert view.bounds("t")[0].log_end == 3, "a snapshot stays as it was taken"
    assert end_of(view) == 6
    segment(folder, 6).write_bytes(b"")
    assert end_of(view) == 6
    append(segment(folder, 6), batch(6, [b"g"]))
    assert end_of(view) == 7
    segment(folder, 10).write_bytes(batch(12, [b"h"]))
    assert end_of(view) == 13
    assert offsets(read(view, "t")) == [0, 1, 2, 3, 4, 5, 6, 12]
    segment(folder, 0).unlink()
    view.refresh(["t"])
    assert view.bounds("t")[0].log_start == 6
    assert offsets(read(view, "t")) == [6, 12]


def test_new_topics_and_partitions_are_found(folder: Path) -> None:
    view = KafkaView(folder.parent)
    assert (view.topics(), list(view.bounds("t"))) == (["t"], [0])
    write_partition(folder.parent, "t-10", {0: FIRST})
    write_partition(folder.parent, "new-topic-0", {0: SECOND})
    view.refresh(["t", "new-topic"])
    assert (view.topics(), list(view.bounds("t"))) == (["new-topic", "t"], [0, 10])
    assert view.bounds("new-topic")[0].log_end == 6


def test_an_idle_refresh_reads_one_header_and_a_growing_one_only_what_is_new(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = segment(folder, 0)
    for base in range(3, 2003):
        append(log, batch(base, [b"x" * 40]))
    segment(folder, 2003).write_bytes(batch(2003, [b"y"]))
    view = KafkaView(folder.parent)
    assert end_of(view) == 2004
    asked: list[int] = []
    plain = SegmentFile.read

    def counted(self: SegmentFile, position: int, length: int) -> bytes:
        asked.append(length)
        return plain(self, position, length)

    monkeypatch.setattr(SegmentFile, "read", counted)
    assert end_of(view) == 2004
    assert asked == [61], "the last header, to see that the log was not cut and written anew"
    asked.clear()
    append(segment(folder, 2003), batch(2004, [b"z"]))
    assert end_of(view) == 2005
    assert sum(asked) < 400


def test_transactions_come_to_their_end_as_the_log_grows(folder: Path) -> None:
    view = KafkaView(folder.parent)
    log = segment(folder, 0)
    append(log, batch(3, [b"d"], producer=7) + batch(4, [b"e"]))
    assert end_of(view) == 5
    assert view.bounds("t")[0].last_stable == 3
    assert offsets(read(view, "t", isolation=READ_COMMITTED)) == [0, 1, 2]
    append(log, batch(5, [b"f"], producer=7) + batch(6, [b"g"], producer=8) + marker(7, 7, commit=False))
    assert end_of(view) == 8
    assert view.bounds("t")[0].last_stable == 6
    assert offsets(read(view, "t", isolation=READ_COMMITTED)) == [0, 1, 2, 4]
    segment(folder, 8).write_bytes(batch(8, [b"h"], producer=7) + marker(9, 8, commit=True))
    assert end_of(view) == 10
    assert view.bounds("t")[0].last_stable == 8
    assert offsets(read(view, "t", isolation=READ_COMMITTED)) == [0, 1, 2, 4, 6]
    append(segment(folder, 8), marker(10, 7, commit=True))
    assert end_of(view) == 11
    assert offsets(read(view, "t", isolation=READ_COMMITTED)) == [0, 1, 2, 4, 6, 8]
    assert offsets(read(view, "t")) == [0, 1, 2, 3, 4, 5, 6, 8]
    assert offsets(read(view, "t", isolation=READ_COMMITTED, start=5, end=7)) == [6], "the marker lies behind the range"


# ---------------------------------------------------------------- going back


def test_a_log_cut_back_shows_and_plans_beyond_it_fail(folder: Path) -> None:
    log = segment(folder, 0)
    append(log, SECOND)
    view = KafkaView(folder.parent)
    part = plan(view, 0, 6)
    log.write_bytes(FIRST)
    with pytest.raises(NotFound, match=r"offsets 3 to 5 of t-0 are gone: the log ends before them"):
        offsets_of(part)
    assert end_of(view) == 3
    with pytest.raises(NotFound, match="out of range: the log has 0 to 2"):
        plan(view, 0, 6)


def test_a_log_cut_back_and_written_anew_is_read_anew(folder: Path) -> None:
    log = segment(folder, 0)
    append(log, batch(3, [b"d"], producer=7))
    view = KafkaView(folder.parent)
    assert end_of(view) == 4
    assert view.bounds("t")[0].last_stable == 3
    log.write_bytes(FIRST + batch(3, [b"D"]) + batch(4, [b"E"]))
    assert end_of(view) == 5
    assert view.bounds("t")[0].last_stable == 5
    assert [record.value for record in read(view, "t")] == [b"a", b"b", b"c", b"D", b"E"]


def test_segments_taken_back_by_a_new_leader_are_forgotten(folder: Path, env: Env) -> None:
    segment(folder, 3).write_bytes(batch(3, [b"d"], producer=7) + batch(4, [b"e"]))
    segment(folder, 5).write_bytes(marker(5, 7, commit=False))
    view = KafkaView(folder.parent, env=env)
    assert end_of(view) == 6
    assert offsets(read(view, "t", isolation=READ_COMMITTED)) == [0, 1, 2, 4]
    segment(folder, 5).unlink()
    segment(folder, 3).write_bytes(batch(3, [b"d"], producer=7))
    assert end_of(view) == 4
    assert view.bounds("t")[0].last_stable == 3
    append(segment(folder, 3), marker(4, 7, commit=True))
    assert end_of(view) == 5
    assert offsets(read(view, "t", isolation=READ_COMMITTED)) == [0, 1, 2, 3]


def test_a_topic_deleted_and_created_again_is_another_one(folder: Path) -> None:
    metadata = folder / "partition.metadata"
    metadata.write_text("version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAQ")
    view = KafkaView(folder.parent)
    before = view.topic_id("t")
    assert end_of(view) == 3
    folder.rename(folder.parent / ("t-0." + "0" * 32 + "-delete"))
    with pytest.raises(NotFound, match="there is no topic 't'"):
        view.refresh(["t"])
    write_partition(folder.parent, "t-0", {0: batch(0, [b"new"])})
    metadata.write_text("version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAg")
    assert view.topic_id("t") != before
    assert end_of(view) == 1
    assert [record.value for record in read(view, "t")] == [b"new"]


# ---------------------------------------------------------------- the cleaner and retention


def swap_in(folder: Path, base: int, data: bytes, replaced: list[int]) -> None:
    """What the cleaner does at the end of a pass: old files to `.deleted`, the new one takes the first's name."""
    new = folder / f"{base:020}.log.swap"
    new.write_bytes(data)
    for old in replaced:
        segment(folder, old).rename(segment(folder, old).with_suffix(".log.deleted"))
    new.rename(segment(folder, base))


def test_a_swap_under_way_is_waited_for(folder: Path, env: Env, waits: list[float]) -> None:
    swap = folder / f"{0:020}.log.swap"
    segment(folder, 0).rename(swap)
    segment(folder, 3).write_bytes(SECOND)

    def finish(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 3:
            swap.rename(segment(folder, 0))

    patient = Env(env.wall_ms, env.boot_ms, finish, env.random)
    view = KafkaView(folder.parent, env=patient)
    assert view.bounds("t")[0].log_start == 0
    assert offsets(read(view, "t")) == list(range(6))
    assert len(waits) >= 3


def test_a_swap_that_never_ends_is_unavailable(folder: Path, env: Env) -> None:
    (folder / f"{0:020}.log.swap").write_bytes(FIRST)
    with pytest.raises(Unavailable, match=r"expected a listing without \.swap files"):
        KafkaView(folder.parent, env=env).refresh(["t"])


def test_a_cleaner_at_work_is_waited_for_a_moment_only(folder: Path, env: Env, waits: list[float]) -> None:
    (folder / f"{0:020}.log.cleaned").write_bytes(FIRST[:10])
    view = KafkaView(folder.parent, env=env)
    assert end_of(view) == 3
    assert 0 < sum(waits) <= 0.5


def test_a_tail_goes_on_while_the_folder_is_swapped(folder: Path, env: Env) -> None:
    segment(folder, 3).write_bytes(SECOND)
    view = KafkaView(folder.parent, env=env)
    assert end_of(view) == 6
    (folder / f"{0:020}.log.swap").write_bytes(FIRST)
    append(segment(folder, 3), batch(6, [b"g"]))
    assert end_of(view) == 7
    assert view.bounds("t")[0].log_start == 0


@pytest.mark.parametrize("old_files", ["kept", "removed"])
def test_a_plan_made_before_a_swap_reads_the_same_offsets_after_it(folder: Path, env: Env, old_files: str) -> None:
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


def test_a_swap_in_the_middle_of_reading_neither_repeats_nor_loses(
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


def test_a_cleaned_segment_is_planned_anew(folder: Path, env: Env) -> None:
    append(segment(folder, 0), batch(3, [b"d"], producer=7) + marker(4, 7, commit=False))
    segment(folder, 5).write_bytes(batch(5, [b"f"]))
    view = KafkaView(folder.parent, env=env)
    assert end_of(view) == 6
    swap_in(folder, 0, batch(2, [b"c"]), [0])
    assert end_of(view) == 6
    assert offsets(read(view, "t", isolation=READ_COMMITTED)) == [2, 5]


def test_expired_files_are_read_until_they_are_gone(folder: Path) -> None:
    segment(folder, 3).write_bytes(SECOND)
    view = KafkaView(folder.parent)
    part = plan(view, 0, 6)
    names = directory.settled_segments(str(folder))
    segment(folder, 0).rename(segment(folder, 0).with_suffix(".log.deleted"))
    with SegmentFile(names[0].path) as file:
        assert file.read(0, 10) == FIRST[:10]
    segment(folder, 0).with_suffix(".log.deleted").unlink()
    with pytest.raises(NotFound, match=r"offsets 0 to 5 of t-0 are gone: the log starts at 3 now"):
        offsets_of(part)


# ---------------------------------------------------------------- checkpoints


@pytest.fixture
def transactions(fixtures: Path, tmp_path: Path) -> Path:
    return copied(fixtures / "transactions/data", tmp_path / "data")


def test_a_tail_stops_at_the_high_watermark_a_batch_reader_does_not(transactions: Path) -> None:
    (transactions / "replication-offset-checkpoint").write_text("0\n2\ntxn-a 0 50\ntxn-b 0 9999\n")
    tail, whole = KafkaView(transactions, tailing=True), KafkaView(transactions)
    limited, unlimited = tail.bounds("txn-a")[0], whole.bounds("txn-a")[0]
    assert (limited.last_stable, limited.high_watermark, limited.log_end) == (50, 50, 75)
    assert (unlimited.last_stable, unlimited.high_watermark) == (62, 75)
    assert tail.bounds("txn-a")[1].last_stable == 35, "no entry: the last stable offset alone"
    assert tail.bounds("txn-b")[0].high_watermark == 105, "never beyond the log's end"
    assert offsets(read(tail, "txn-a", 0, READ_UNCOMMITTED))[-1] < 50


def test_the_log_start_may_lie_inside_a_batch(folder: Path) -> None:
    (folder.parent / "log-start-offset-checkpoint").write_text("0\n2\nt 0 1\nother 3 7\n")
    view = KafkaView(folder.parent)
    assert view.bounds("t")[0].log_start == 1
    assert offsets(read(view, "t")) == [1, 2]
    assert view.offsets_for_timestamps("t", {0: 0})[0] == (view.offsets_for_timestamps("t", {0: HOUR_MS})[0])
    with pytest.raises(NotFound, match="out of range: the log has 1 to 2"):
        plan(view, 0, 2)


def test_a_log_start_beyond_the_end_leaves_an_empty_log(folder: Path) -> None:
    (folder.parent / "log-start-offset-checkpoint").write_text("0\n1\nt 0 50\n")
    view = KafkaView(folder.parent)
    bounds = view.bounds("t")[0]
    assert (bounds.log_start, bounds.log_end, bounds.last_stable, bounds.high_watermark) == (50, 50, 50, 50)
    assert view.plan([OffsetRange("t", 0, 50, 50)], READ_COMMITTED) == []


def test_a_damaged_checkpoint_is_corrupt(folder: Path) -> None:
    file = folder.parent / "log-start-offset-checkpoint"
    file.write_text("0\n3\nt 0 1\n")
    with pytest.raises(Corrupt, match="announces 3 entries and has 1") as caught:
        KafkaView(folder.parent).refresh(["t"])
    assert caught.value.file == str(file)


# ---------------------------------------------------------------- copies of a running broker's folder


@pytest.fixture
def cut_anywhere(fixtures: Path, tmp_path: Path) -> Iterator[Callable[[int], KafkaView]]:
    source = fixtures / "transactions/data/txn-b-0"
    names = sorted(file.name for file in source.glob("*.log"))

    def cut(total: int) -> KafkaView:
        target = tmp_path / f"at-{total}" / "txn-b-0"
        target.mkdir(parents=True)
        for name in names:
            data = (source / name).read_bytes()[: max(total, 0)]
            (target / name).write_bytes(data)
            total -= len(data)
            if total <= 0:
                break
        return KafkaView(target.parent)

    yield cut
    shutil.rmtree(tmp_path, ignore_errors=True)


def test_a_log_cut_at_any_byte_is_a_prefix(fixtures: Path, cut_anywhere: Callable[[int], KafkaView]) -> None:
    fixture = fixtures / "transactions"
    everything = without_epochs(expected_records(fixture, "txn-b-0"))
    committed = without_epochs(expected_records(fixture, "txn-b-0", READ_COMMITTED))
    size = sum(file.stat().st_size for file in (fixture / "data/txn-b-0").glob("*.log"))
    ends = set()
    for total in random.Random(3).sample(range(size), 40):
        view = cut_anywhere(total)
        bounds = view.bounds("txn-b")[0]
        ends.add(bounds.log_end)
        assert read(view, "txn-b") == [record for record in everything if record.offset < bounds.log_end]
        stable = [record for record in committed if record.offset < bounds.last_stable]
        assert read(view, "txn-b", isolation=READ_COMMITTED) == stable
    assert len(ends) > 10


def test_a_folder_that_goes_away_is_not_found(folder: Path) -> None:
    view = KafkaView(folder.parent)
    part = plan(view, 0, 3)
    shutil.rmtree(folder)
    with pytest.raises(NotFound, match="no folder"):
        offsets_of(part)
    with pytest.raises(NotFound, match="no topic 't'"):
        view.refresh(["t"])
    assert not os.path.exists(folder)
