"""Kafka directories that are sound although cleaners, replicas and recoveries left them in unusual states."""

from __future__ import annotations

import os
import random
import struct
from pathlib import Path

import pytest

from sparklog.format.batch_scan import scan_headers
from sparklog.format.segment_indexes import OffsetIndex, TimeIndex
from sparklog.log.journal.clocks import Env
from sparklog.tools.verification.findings import CHECKPOINT, CONTENT, INDEX, Report, document, summary
from sparklog.tools.verification.kafka_directory import verify_log_dir
from tests.format.old_messages import messages
from tests.kafka.logs import HOUR_MS, batch, keyed_batch, marker, write_partition

ENV = Env(lambda: 2 * HOUR_MS, lambda: 0, lambda seconds: None, random.Random(1))
NAMES = ("log", "index", "timeindex")
CLEANER = "cleaner-offset-checkpoint"


def keyed(offset: int, *keys: bytes) -> bytes:
    """A batch of records with these keys."""
    return keyed_batch(offset, [(key, b"value") for key in keys])


def single(*offsets: int) -> bytes:
    """Batches of one record each, every one with a key of its own."""
    return b"".join(keyed(offset, b"%d" % offset) for offset in offsets)


def write_segment(folder: Path, base: int, data: bytes, state: str = "") -> None:
    """Write a segment with the indexes that Kafka gives it; `state`: the suffix of all its files."""
    headers = scan_headers(data)
    offsets = OffsetIndex.build(base, headers.position, headers.last_offset, 100)
    times = TimeIndex.build(base, headers.position, headers.last_offset, headers.max_timestamp, 100)
    for suffix, content in zip(NAMES, (data, offsets.to_bytes(), times.to_bytes()), strict=True):
        (folder / f"{base:020}.{suffix}{state}").write_bytes(content)


def partition(log_dir: Path, segments: dict[int, bytes]) -> Path:
    folder = write_partition(log_dir, "t-0", {})
    for base, data in segments.items():
        write_segment(folder, base, data)
    return folder


def checkpoint(log_dir: Path, name: str, offset: int) -> None:
    (log_dir / name).write_text(f"0\n1\nt 0 {offset}\n")


def verified(log_dir: Path, folder: Path) -> Report:
    os.utime(folder, (1, 1))
    return verify_log_dir(log_dir, env=ENV)


# ---------------------------------------------------------------- a cleaner that died


@pytest.mark.parametrize("steps", range(4))
def test_swap_segment_with_gaps_is_sound(tmp_path: Path, steps: int) -> None:
    """A cleaner died while it replaced segments 0 and 4: files take their names one by one, the .log first."""
    folder = partition(tmp_path, {0: single(0, 1, 2, 3), 4: single(4, 5, 6, 7), 8: single(8, 9)})
    write_segment(folder, 0, single(1, 6), ".swap")
    replaced = {f"{base:020}.{suffix}" for base in (0, 4) for suffix in NAMES}
    for name in replaced if steps else ():
        (folder / name).rename(folder / f"{name}.deleted")
    for suffix in NAMES[:steps]:
        (folder / f"{0:020}.{suffix}.swap").rename(folder / f"{0:020}.{suffix}")
    report = verified(tmp_path, folder)
    assert report.findings == report.foreign == ()
    assert (report.counts.records, report.counts.gaps) == (4, 6)
    assert {each.file for each in report.unreferenced} == {
        f"t-0/{name}{'.deleted' if steps else ''}" for name in replaced
    }
    # Once the .log has its name, nothing tells that it was swapped.
    assert len(report.notes) == bool(steps)


def test_damaged_index_of_a_swap_segment_is_reported(tmp_path: Path) -> None:
    folder = partition(tmp_path, {8: single(8, 9)})
    write_segment(folder, 0, single(1, 6), ".swap")
    index = folder / f"{0:020}.index.swap"
    index.write_bytes(struct.pack(">ii", 6, 3))
    report = verified(tmp_path, folder)
    assert [(each.kind, each.file) for each in report.findings] == [(INDEX, f"t-0/{index.name}")]
    index.unlink()
    report = verified(tmp_path, folder)
    assert [(each.kind, each.file) for each in report.findings] == [(INDEX, f"t-0/{index.name}")]


def test_transaction_cut_by_a_killed_cleaner_is_sound(tmp_path: Path) -> None:
    """The index of aborted transactions still says where it began; no checkpoint tells of the pass."""
    data = batch(1, [b"b"], producer=7) + marker(2, 7, commit=False)
    folder = partition(tmp_path, {0: data, 3: single(3)})
    (folder / f"{0:020}.txnindex").write_bytes(struct.pack(">hqqqq", 0, 7, 0, 2, 3))
    assert verified(tmp_path, folder).sound


# ---------------------------------------------------------------- gaps


@pytest.mark.parametrize("cleaned", [None, 2])
def test_gaps_above_the_cleaners_checkpoint_of_a_replica_are_notes(tmp_path: Path, cleaned: int | None) -> None:
    folder = partition(tmp_path, {0: single(0, 1, 4, 5), 9: single(9, 12)})
    if cleaned is not None:
        checkpoint(tmp_path, CLEANER, cleaned)
    report = verified(tmp_path, folder)
    assert report.sound
    (note,) = report.notes
    assert (note.kind, note.file, note.offset) == (CONTENT, f"t-0/{0:020}.log", 2)
    assert (
        f"from here on, 7 offsets are missing in 3 gaps above the cleaner's checkpoint ({cleaned or 0})" in note.message
    )
    assert summary(report).startswith(f"possible corruption: content: t-0/{0:020}.log at byte ")
    (written,) = document(report)["notes"]  # type: ignore[misc]
    assert written["offset"] == 2


def test_gaps_below_the_cleaners_checkpoint_are_not_reported(tmp_path: Path) -> None:
    folder = partition(tmp_path, {0: single(0, 1, 4, 5), 9: single(9, 12)})
    checkpoint(tmp_path, CLEANER, 13)
    assert verified(tmp_path, folder).notes == ()


@pytest.mark.parametrize(
    ("before", "behind"),
    [
        (batch(0, [b"a", b"b"]), batch(6, [b"c"])),
        (keyed(0, b"k", b"k"), keyed(6, b"l", b"m", b"l")),
        (batch(0, [b"a", b"b"]), marker(6, 7, commit=True) + keyed(7, b"l", b"l")),
    ],
    ids=["no keys", "keys twice", "a marker between"],
)
@pytest.mark.parametrize("bases", [(0,), (0, 6)])
def test_gap_between_batches_of_no_cleaner_is_damage(
    tmp_path: Path, before: bytes, behind: bytes, bases: tuple[int, ...]
) -> None:
    folder = partition(tmp_path, {0: before + behind} if len(bases) == 1 else {0: before, 6: behind})
    report = verified(tmp_path, folder)
    (finding,) = report.findings
    assert (finding.kind, finding.file, finding.offset) == (CONTENT, f"t-0/{bases[-1]:020}.log", 2)
    assert finding.message == "expected a batch at offset 2, found offset 6; the gap was not made by a cleaner"
    assert report.notes == ()


@pytest.mark.parametrize(
    ("before", "behind"),
    [
        (batch(0, [b"a", b"b"]), keyed(6, b"l", b"m")),
        (keyed(0, b"k", b"l"), keyed(6, b"l", b"l")),
    ],
    ids=["behind it", "before it"],
)
def test_gap_next_to_a_batch_of_a_cleaner_is_a_note(tmp_path: Path, before: bytes, behind: bytes) -> None:
    """A replica was down while the log was cleaned; or a pass ended with tombstones that went later."""
    report = verified(tmp_path, partition(tmp_path, {0: before + behind}))
    assert report.sound
    assert len(report.notes) == 1


def test_gap_after_a_truncation_inside_a_batch_is_a_note(tmp_path: Path) -> None:
    """The new leader's records begin where the old one's ended, which no batch here did."""
    behind = bytearray(batch(6, [b"c"]))
    behind[15] = 1  # The leader epoch, which no checksum covers.
    report = verified(tmp_path, partition(tmp_path, {0: batch(0, [b"a", b"b"]) + bytes(behind)}))
    assert report.sound
    assert len(report.notes) == 1


# ---------------------------------------------------------------- indexes


def appended_together(time: int) -> bytes:
    return messages([(offset, time, b"k", b"v") for offset in range(4)]) + batch(4, [b"e"], timestamp=time + 1)


def test_index_entry_of_several_old_messages_is_sound(tmp_path: Path) -> None:
    """Brokers before 4.0 name the first position and the last offset of an append."""
    data = appended_together(HOUR_MS) + batch(5, [b"f"], timestamp=HOUR_MS + 2)
    folder = partition(tmp_path, {0: data, 6: single(6)})
    headers = scan_headers(data)
    entries = [(3, int(headers.position[1])), (4, int(headers.position[4])), (5, int(headers.position[5]))]
    index = folder / f"{0:020}.index"
    index.write_bytes(b"".join(struct.pack(">ii", *entry) for entry in entries))
    times = [(HOUR_MS, 3), (HOUR_MS + 1, 4), (HOUR_MS + 2, 5)]
    (folder / f"{0:020}.timeindex").write_bytes(b"".join(struct.pack(">qi", *entry) for entry in times))
    assert verified(tmp_path, folder).sound
    wrong = [(4, int(headers.position[1])), *entries[1:]]
    index.write_bytes(b"".join(struct.pack(">ii", *entry) for entry in wrong))
    report = verified(tmp_path, folder)
    assert [(each.kind, each.file) for each in report.findings] == [(INDEX, f"t-0/{index.name}")]


# ---------------------------------------------------------------- a log that was cut


@pytest.mark.parametrize("name", ["recovery-point-offset-checkpoint", "replication-offset-checkpoint", CLEANER])
def test_checkpoints_above_a_truncated_log_are_notes(tmp_path: Path, name: str) -> None:
    folder = partition(tmp_path, {0: single(0, 1, 2)})
    checkpoint(tmp_path, name, 50)
    report = verified(tmp_path, folder)
    assert report.sound
    (note,) = report.notes
    assert (note.kind, note.file, note.offset) == (CHECKPOINT, name, 50)
    assert "the file has offset 50 for t-0, but the log ends at 3; either Kafka has truncated the log" in note.message
    checkpoint(tmp_path, name, 3)
    assert verified(tmp_path, folder).notes == ()
