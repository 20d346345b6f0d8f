"""Test that files of an interrupted cleaner are read in the state that Kafka's next start creates.

No file is changed.
"""

from __future__ import annotations

import logging
import os
import struct
from pathlib import Path

import pytest

from sparklog.errors import Corrupt
from sparklog.kafka.importing.run import ImportOptions, import_log_dir
from sparklog.kafka.in_place import KafkaView, kafka_layout
from sparklog.kafka.in_place.directory import SegmentName, next_offset_of, segments_after_startup
from sparklog.kafka.in_place.files import LocalPath, file_path
from sparklog.kafka.in_place.segment_file import SegmentFile, companion, seek
from sparklog.kafka.in_place.segment_recovery import SKIP, TRUNCATE
from sparklog.log.journal.clocks import Env
from sparklog.log.state.view import COLUMNS, READ_COMMITTED, READ_UNCOMMITTED
from sparklog.testing.world import World
from tests.kafka.logs import batch, marker, offsets, read, records, segment, write_partition

# Three segments of four offsets each. The cleaner replaces the first two segments by one that retains offsets 1 and 6.
SEGMENTS = {base: b"".join(batch(offset, [b"%d" % offset]) for offset in range(base, base + 4)) for base in (0, 4, 8)}
CLEANED = batch(1, [b"1"]) + batch(6, [b"6"])
BEFORE = list(range(12))
AFTER = [1, 6, 8, 9, 10, 11]


def abandoned(folder: Path) -> None:
    """Set an old modification time, so that readers do not wait for the end of the swap."""
    os.utime(folder, (1, 1))


def seen(folder: Path, env: Env) -> list[int]:
    abandoned(folder)
    return offsets(read(KafkaView(folder.parent, env=env), "t"))


def snapshot(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir()}


def named(base: int, suffix: str) -> str:
    return f"{base:020}.{suffix}"


# The files after a crash at each step of replacing segments 0 and 4 by a new segment 0, and the valid segments.
STEPS: list[tuple[list[tuple[str, str | None]], list[int]]] = [
    ([(named(0, "log.cleaned"), "new")], BEFORE),
    ([(named(0, "log.cleaned"), "half")], BEFORE),
    # The .log was renamed, but its indexes were not, so the swap is incomplete.
    ([(named(0, "log.swap"), "new"), (named(0, "index.cleaned"), "index")], BEFORE),
    ([(named(0, "log.swap"), "new")], AFTER),
    ([(named(0, "log.swap"), "new"), (named(0, "log"), None)], AFTER),
    ([(named(0, "log.swap"), "new"), (named(0, "log"), None), (named(4, "log"), None)], AFTER),
    ([(named(0, "log"), "new"), (named(4, "log"), None), (named(0, "index.swap"), "index")], AFTER),
    ([(named(0, "log"), "new"), (named(4, "log"), None)], AFTER),
]


@pytest.mark.parametrize(("changes", "expected"), STEPS)
def test_a_crash_at_each_step_of_a_cleaning(
    tmp_path: Path, env: Env, changes: list[tuple[str, str | None]], expected: list[int]
) -> None:
    folder = write_partition(tmp_path, "t-0", SEGMENTS)
    contents = {"new": CLEANED, "half": CLEANED[:50], "index": struct.pack(">ii", 6, len(CLEANED) // 2)}
    for name, content in changes:
        if (folder / name).exists():
            (folder / name).rename(folder / f"{name}.deleted")
        if content is not None:
            (folder / name).write_bytes(contents[content])
    before = snapshot(folder)
    assert seen(folder, env) == expected
    root = World().root()
    import_log_dir(root, tmp_path)
    found = root.topic("t").scan(isolation_level=READ_UNCOMMITTED, columns=COLUMNS)
    assert [record.offset for piece in found for record in records(piece)] == expected
    assert snapshot(folder) == before


@pytest.mark.parametrize(
    ("logs", "swaps", "cleaned", "expected"),
    [
        ([0, 4, 8], [], None, ["0", "4", "8"]),
        ([0, 4, 8], [], 4, ["0", "4", "8"]),
        ([0, 4, 8], [0], None, ["swap 0", "4", "8"]),  # The next offset is 4, so segment 4 is not replaced.
        ([0, 8], [0, 4], None, ["swap 0", "swap 4", "8"]),
        # A split is renamed from its end, so files at or above the lowest .cleaned file are incomplete.
        ([0, 8], [4], 0, ["0", "8"]),
        ([0, 8], [4], 4, ["0", "8"]),
        ([0, 8], [4], 5, ["0", "swap 4", "8"]),
        ([0, 8], [4, 6], 6, ["0", "swap 4", "8"]),
        ([4, 8], [0], None, ["swap 0", "4", "8"]),
    ],
)
def test_segments_after_startup(logs: list[int], swaps: list[int], cleaned: int | None, expected: list[str]) -> None:
    def next_offset(name: SegmentName) -> int:
        return name.base + 4

    names = [SegmentName(base, LocalPath(f"{base}"), 0) for base in logs]
    swapped = [SegmentName(base, LocalPath(f"swap {base}"), 0) for base in swaps]
    found = segments_after_startup(names, swapped, cleaned, next_offset)
    assert [str(name.path) for name in found] == expected


def test_empty_swap_file_replaces_its_segment(tmp_path: Path, env: Env) -> None:
    folder = write_partition(tmp_path, "t-0", SEGMENTS)
    (folder / named(0, "log.swap")).write_bytes(b"")
    assert seen(folder, env) == list(range(4, 12))


def test_directory_with_only_a_swap_file_is_a_partition(tmp_path: Path, env: Env) -> None:
    folder = write_partition(tmp_path, "t-0", {})
    (folder / named(0, "log.swap")).write_bytes(CLEANED)
    assert kafka_layout(tmp_path) == "log-dir"
    assert seen(folder, env) == [1, 6]


def test_valid_index_of_a_swap_file_is_used(tmp_path: Path) -> None:
    folder = write_partition(tmp_path, "t-0", {})
    swap = folder / named(0, "log.swap")
    swap.write_bytes(CLEANED)
    position = len(batch(1, [b"1"]))
    (folder / named(0, "index.swap")).write_bytes(struct.pack(">ii", 6, position))
    with SegmentFile(file_path(swap)) as file:
        assert seek(file, 0, 6) == position
    assert next_offset_of(SegmentName(0, file_path(swap), 0)) == 7
    (folder / named(0, "index.swap")).write_bytes(struct.pack(">ii", 6, 3))
    assert next_offset_of(SegmentName(0, file_path(swap), 0)) == 7


def test_companion_file_names(tmp_path: Path) -> None:
    log = tmp_path / named(7, "log")
    assert companion(file_path(log), "index") == file_path(tmp_path / named(7, "index"))
    assert companion(file_path(f"{log}.swap"), "index") == file_path(tmp_path / named(7, "index.swap"))
    assert companion(file_path(f"{log}.deleted"), "txnindex") == file_path(tmp_path / named(7, "txnindex.deleted"))
    (tmp_path / named(7, "txnindex.swap")).write_bytes(b"")
    assert companion(file_path(log), "txnindex") == file_path(tmp_path / named(7, "txnindex.swap"))


def test_aborted_transactions_of_swapped_index_are_hidden(tmp_path: Path, env: Env) -> None:
    broken = bytearray(marker(2, 7, commit=False))
    broken[-11] ^= 1
    folder = write_partition(tmp_path, "t-0", {3: batch(3, [b"d"])})
    (folder / named(0, "log.swap")).write_bytes(batch(0, [b"a"]) + batch(1, [b"b"], producer=7) + bytes(broken))
    (folder / named(0, "txnindex.swap")).write_bytes(struct.pack(">hqqqq", 0, 7, 1, 2, 3))
    abandoned(folder)
    view = KafkaView(tmp_path, env=env)
    assert offsets(read(view, "t", isolation=READ_COMMITTED, end=2)) == [0]


def test_tailing_reader_ignores_files_of_a_dead_cleaner(tmp_path: Path, env: Env) -> None:
    folder = write_partition(tmp_path, "t-0", SEGMENTS)
    (folder / named(0, "log.swap")).write_bytes(CLEANED)
    abandoned(folder)
    view = KafkaView(tmp_path, tailing=True, env=env)
    assert offsets(read(view, "t")) == AFTER
    with segment(folder, 8).open("ab") as out:
        out.write(batch(12, [b"12"]))
    view.refresh(["t"])
    assert offsets(read(view, "t")) == [*AFTER, 12]


def test_broker_that_starts_completes_the_swap(tmp_path: Path, env: Env) -> None:
    folder = write_partition(tmp_path, "t-0", SEGMENTS)
    swap = folder / named(0, "log.swap")
    swap.write_bytes(CLEANED)
    abandoned(folder)
    view = KafkaView(tmp_path, env=env)
    assert offsets(read(view, "t")) == AFTER
    segment(folder, 4).unlink()
    swap.rename(segment(folder, 0))
    os.utime(folder, ns=(1, 2))
    view.refresh(["t"])
    assert offsets(read(view, "t")) == AFTER


# ---------------------------------------------------------------- checkpoints and snapshots


def test_import_with_log_start_beyond_the_end_is_empty(tmp_path: Path, env: Env) -> None:
    write_partition(tmp_path, "t-0", SEGMENTS)
    (tmp_path / "log-start-offset-checkpoint").write_text("0\n1\nt 0 50\n")
    for policy in ("fail", SKIP, TRUNCATE):
        bounds = KafkaView(tmp_path, corrupt_records=policy, env=env).bounds("t")[0]
        assert (bounds.log_start, bounds.log_end, bounds.last_stable) == (50, 50, 50)
        root = World().root()
        import_log_dir(root, tmp_path, ImportOptions(corrupt_records=policy))
        state = root.topic("t").log.state()
        assert (state.log_start[0], state.log_end[0]) == (50, 50)


@pytest.mark.parametrize("policy", [SKIP, TRUNCATE])
def test_damaged_log_start_checkpoint_is_ignored_with_a_warning(
    tmp_path: Path, env: Env, policy: str, caplog: pytest.LogCaptureFixture
) -> None:
    # A warning is logged once per directory, and tests may reuse the name of a deleted directory.
    folder = tmp_path / policy
    write_partition(folder, "t-0", SEGMENTS)
    (folder / "log-start-offset-checkpoint").write_text("0\n3\nt 0 5\n")
    with pytest.raises(Corrupt, match="expected 3 entries in the checkpoint"):
        KafkaView(folder, env=env).refresh(["t"])
    with caplog.at_level(logging.WARNING, "sparklog.kafka"):
        view = KafkaView(folder, corrupt_records=policy, env=env)
        assert view.bounds("t")[0].log_start == 0
        view.refresh(["t"])
    (said,) = [record.getMessage() for record in caplog.records]
    assert "expected 3 entries in the checkpoint" in said
    assert said.endswith(f"all logs in {folder} therefore start at their first segments")
