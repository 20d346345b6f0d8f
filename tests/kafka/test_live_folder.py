"""Test reading a directory while a broker is writing to it: its tail, growth and truncation."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from sparklog.errors import Corrupt, NotFound
from sparklog.format.record_batch import BatchHeader
from sparklog.kafka.in_place import KafkaView
from sparklog.kafka.in_place.segment_file import SegmentFile
from sparklog.log.journal.clocks import Env
from sparklog.log.state.view import READ_COMMITTED
from tests.fixture_data import expected_records
from tests.kafka.logs import (
    FIRST,
    HOUR_MS,
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
    without_epochs,
    write_partition,
)

# ---------------------------------------------------------------- the tail


def test_preallocated_file_ends_at_its_zeros(fixtures: Path) -> None:
    fixture = fixtures / "preallocated-running"
    view = KafkaView(fixture / "data")
    log = segment(fixture / "data/prealloc-0", 65)
    assert log.read_bytes().endswith(bytes(1000)), "the fixture's tail is zero"
    assert view.bounds("prealloc")[0].log_end == 90
    assert read(view, "prealloc") == without_epochs(expected_records(fixture, "prealloc-0"))


def test_batches_written_over_zeros_are_read(folder: Path) -> None:
    log = segment(folder, 0)
    log.write_bytes(FIRST + bytes(1_000_000))
    view = KafkaView(folder.parent)
    assert end_of(view) == 3
    with log.open("r+b") as out:
        out.seek(len(FIRST))
        out.write(SECOND)
    assert end_of(view) == 6
    assert offsets(read(view, "t")) == list(range(6))


def test_incomplete_last_batch_is_ignored_until_it_is_complete(folder: Path) -> None:
    view = KafkaView(folder.parent)
    log = segment(folder, 0)
    for length in range(0, len(SECOND), 7):
        log.write_bytes(FIRST + SECOND[:length])
        assert end_of(view) == 3, length
        assert end_of(KafkaView(folder.parent)) == 3, length
    log.write_bytes(FIRST + SECOND)
    assert end_of(view) == 6


def test_last_batch_with_wrong_checksum_is_not_written_yet(folder: Path) -> None:
    view = KafkaView(folder.parent)
    log = segment(folder, 0)
    for written in (9, 30, 61, len(SECOND) - 2):
        log.write_bytes(FIRST + SECOND[:written] + bytes(len(SECOND) - written + 5000))
        assert end_of(view) == 3, written
        assert offsets(read(view, "t")) == [0, 1, 2], written
    log.write_bytes(FIRST + SECOND + bytes(5000))
    assert end_of(view) == 6


def test_wrong_checksum_before_the_last_batch_is_corrupt(folder: Path) -> None:
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


def test_closed_segment_must_be_complete(folder: Path) -> None:
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


def test_batches_longer_than_a_window_are_read(folder: Path) -> None:
    small = batch(3, [b"d"])
    body = bytearray(small)
    big = bytes(body[61:]) * 50_000
    header = BatchHeader(3, 49_999, 50_000, HOUR_MS, HOUR_MS, leader_epoch=0)
    record = big[: len(small) - 61]
    assert len(record) * 50_000 == len(big)
    append_to(segment(folder, 0), header.pack(big) + batch(50_003, [b"z"]))
    view = KafkaView(folder.parent)
    assert view.bounds("t")[0].log_end == 50_004
    assert offsets(read(view, "t", start=50_003)) == [50_003]


# ---------------------------------------------------------------- growth


def test_refresh_shows_appends_rolls_and_expiry(folder: Path) -> None:
    view = KafkaView(folder.parent)
    assert end_of(view) == 3
    append_to(segment(folder, 0), SECOND)
    assert view.bounds("t")[0].log_end == 3, "a snapshot stays as it was taken"
    assert end_of(view) == 6
    segment(folder, 6).write_bytes(b"")
    assert end_of(view) == 6
    append_to(segment(folder, 6), batch(6, [b"g"]))
    assert end_of(view) == 7
    segment(folder, 10).write_bytes(batch(12, [b"h"]))
    assert end_of(view) == 13
    assert offsets(read(view, "t")) == [0, 1, 2, 3, 4, 5, 6, 12]
    segment(folder, 0).unlink()
    view.refresh(["t"])
    assert view.bounds("t")[0].log_start == 6
    assert offsets(read(view, "t")) == [6, 12]


def test_refresh_shows_new_topics_and_partitions(folder: Path) -> None:
    view = KafkaView(folder.parent)
    assert (view.topics(), list(view.bounds("t"))) == (["t"], [0])
    write_partition(folder.parent, "t-10", {0: FIRST})
    write_partition(folder.parent, "new-topic-0", {0: SECOND})
    view.refresh(["t", "new-topic"])
    assert (view.topics(), list(view.bounds("t"))) == (["new-topic", "t"], [0, 10])
    assert view.bounds("new-topic")[0].log_end == 6


def test_refresh_reads_only_new_batches(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = segment(folder, 0)
    for base in range(3, 2003):
        append_to(log, batch(base, [b"x" * 40]))
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
    append_to(segment(folder, 2003), batch(2004, [b"z"]))
    assert end_of(view) == 2005
    assert sum(asked) < 400


def test_refresh_ends_transactions(folder: Path) -> None:
    view = KafkaView(folder.parent)
    log = segment(folder, 0)
    append_to(log, batch(3, [b"d"], producer=7) + batch(4, [b"e"]))
    assert end_of(view) == 5
    assert view.bounds("t")[0].last_stable == 3
    assert offsets(read(view, "t", isolation=READ_COMMITTED)) == [0, 1, 2]
    append_to(log, batch(5, [b"f"], producer=7) + batch(6, [b"g"], producer=8) + marker(7, 7, commit=False))
    assert end_of(view) == 8
    assert view.bounds("t")[0].last_stable == 6
    assert offsets(read(view, "t", isolation=READ_COMMITTED)) == [0, 1, 2, 4]
    segment(folder, 8).write_bytes(batch(8, [b"h"], producer=7) + marker(9, 8, commit=True))
    assert end_of(view) == 10
    assert view.bounds("t")[0].last_stable == 8
    assert offsets(read(view, "t", isolation=READ_COMMITTED)) == [0, 1, 2, 4, 6]
    append_to(segment(folder, 8), marker(10, 7, commit=True))
    assert end_of(view) == 11
    assert offsets(read(view, "t", isolation=READ_COMMITTED)) == [0, 1, 2, 4, 6, 8]
    assert offsets(read(view, "t")) == [0, 1, 2, 3, 4, 5, 6, 8]
    assert offsets(read(view, "t", isolation=READ_COMMITTED, start=5, end=7)) == [6], "the marker lies behind the range"


# ---------------------------------------------------------------- truncation


def test_truncated_log_rejects_later_offsets(folder: Path) -> None:
    log = segment(folder, 0)
    append_to(log, SECOND)
    view = KafkaView(folder.parent)
    part = plan(view, 0, 6)
    log.write_bytes(FIRST)
    with pytest.raises(NotFound, match=r"offsets 3 to 5 of t-0 no longer exist: the log now ends below these offsets"):
        offsets_of(part)
    assert end_of(view) == 3
    with pytest.raises(NotFound, match="out of range: the log contains 0 to 2"):
        plan(view, 0, 6)


def test_truncated_and_rewritten_log_is_read_again(folder: Path) -> None:
    log = segment(folder, 0)
    append_to(log, batch(3, [b"d"], producer=7))
    view = KafkaView(folder.parent)
    assert end_of(view) == 4
    assert view.bounds("t")[0].last_stable == 3
    log.write_bytes(FIRST + batch(3, [b"D"]) + batch(4, [b"E"]))
    assert end_of(view) == 5
    assert view.bounds("t")[0].last_stable == 5
    assert [record.value for record in read(view, "t")] == [b"a", b"b", b"c", b"D", b"E"]


def test_segments_removed_by_a_new_leader_are_dropped(folder: Path, env: Env) -> None:
    segment(folder, 3).write_bytes(batch(3, [b"d"], producer=7) + batch(4, [b"e"]))
    segment(folder, 5).write_bytes(marker(5, 7, commit=False))
    view = KafkaView(folder.parent, env=env)
    assert end_of(view) == 6
    assert offsets(read(view, "t", isolation=READ_COMMITTED)) == [0, 1, 2, 4]
    segment(folder, 5).unlink()
    segment(folder, 3).write_bytes(batch(3, [b"d"], producer=7))
    assert end_of(view) == 4
    assert view.bounds("t")[0].last_stable == 3
    append_to(segment(folder, 3), marker(4, 7, commit=True))
    assert end_of(view) == 5
    assert offsets(read(view, "t", isolation=READ_COMMITTED)) == [0, 1, 2, 3]


def test_recreated_topic_is_a_different_topic(folder: Path) -> None:
    metadata = folder / "partition.metadata"
    metadata.write_text("version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAQ")
    view = KafkaView(folder.parent)
    before = view.topic_id("t")
    assert end_of(view) == 3
    folder.rename(folder.parent / ("t-0." + "0" * 32 + "-delete"))
    with pytest.raises(NotFound, match="topic 't' does not exist"):
        view.refresh(["t"])
    write_partition(folder.parent, "t-0", {0: batch(0, [b"new"])})
    metadata.write_text("version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAg")
    assert view.topic_id("t") != before
    assert end_of(view) == 1
    assert [record.value for record in read(view, "t")] == [b"new"]


def test_topic_recreated_in_the_same_directory_is_read_again(folder: Path, env: Env) -> None:
    segment(folder, 3).write_bytes(batch(3, [b"d"], producer=7))
    (folder / "partition.metadata").write_text("version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAQ")
    view = KafkaView(folder.parent, env=env)
    assert end_of(view) == 4
    inode = os.stat(segment(folder, 0)).st_ino
    segment(folder, 3).unlink()
    with segment(folder, 0).open("r+b") as out:
        out.write(batch(0, [b"A", b"B"]) + batch(2, [b"C"]))
    (folder / "partition.metadata").unlink()
    (folder / "partition.metadata").write_text("version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAg")
    assert os.stat(segment(folder, 0)).st_ino == inode
    assert end_of(view) == 3
    assert view.bounds("t")[0].last_stable == 3
    assert [record.value for record in read(view, "t")] == [b"A", b"B", b"C"]


def test_closed_segment_with_another_size_is_read_again(folder: Path, env: Env) -> None:
    append_to(segment(folder, 0), batch(3, [b"d"], producer=7) + marker(4, 7, commit=False))
    segment(folder, 5).write_bytes(batch(5, [b"f"]))
    view = KafkaView(folder.parent, env=env)
    assert end_of(view) == 6
    inode = os.stat(segment(folder, 0)).st_ino
    segment(folder, 0).write_bytes(FIRST + batch(3, [b"D"]) + batch(4, [b"E"]))
    # The directory also changes when the cleaner swaps segments.
    (folder / "00000000000000000000.index").write_bytes(b"")
    assert os.stat(segment(folder, 0)).st_ino == inode
    view.refresh(["t"])
    assert offsets(read(view, "t", isolation=READ_COMMITTED)) == [0, 1, 2, 3, 4, 5]


def test_directory_without_segments_is_not_a_partition(folder: Path) -> None:
    other = write_partition(folder.parent, "t-1", {0: SECOND})
    view = KafkaView(folder.parent)
    assert list(view.bounds("t")) == [0, 1]
    segment(other, 0).unlink()
    view.refresh(["t"])
    assert list(view.bounds("t")) == [0]
