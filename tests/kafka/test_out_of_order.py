"""Test out-of-order batches and batches of unknown formats, in place and imported, with every policy."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from sparklog.errors import Corrupt
from sparklog.format.batch_walk import Span, first_is_wrong
from sparklog.kafka.importing.run import ImportOptions, import_log_dir
from sparklog.kafka.in_place import KafkaView
from sparklog.kafka.in_place.segment_recovery import FAIL, SKIP, TRUNCATE
from sparklog.log.read.skipped import Skipped
from sparklog.log.state.view import COLUMNS, READ_COMMITTED, READ_UNCOMMITTED, OffsetRange
from sparklog.testing.world import World
from tests.kafka.logs import batch, offsets, read, records, segment, write_partition

END = 37
LOG = b"".join(batch(at, [b"%d" % offset for offset in range(at, min(at + 4, END))]) for at in range(0, END, 4))
STALE = batch(10, [b"old", b"older"])


def imported(folder: Path, policy: str, left_out: list[Skipped]) -> list[int]:
    """Return the offsets of the topic after an import of the log directory."""
    root = World().root()
    import_log_dir(root, folder, ImportOptions(corrupt_records=policy), on_skipped=left_out.append)
    found = root.topic("t").scan(isolation_level=READ_UNCOMMITTED, columns=COLUMNS)
    return [record.offset for piece in found for record in records(piece)]


def in_place(folder: Path, policy: str, left_out: list[Skipped], start: int = 0) -> list[int]:
    """Return the offsets of a view from `start` to its log end."""
    view = KafkaView(folder, corrupt_records=policy, on_skipped=left_out.append)
    (part,) = view.plan([OffsetRange("t", 0, start, view.bounds("t")[0].log_end)], READ_UNCOMMITTED)
    return [record.offset for piece in part.read(COLUMNS) for record in records(piece)]


# ---------------------------------------------------------------- a stale batch after the log end


@pytest.mark.parametrize("stale", [STALE, STALE + batch(12, [b"oldest"])], ids=["one", "two"])
@pytest.mark.parametrize("policy", [SKIP, TRUNCATE])
def test_stale_batch_after_the_end_does_not_lose_records(tmp_path: Path, policy: str, stale: bytes) -> None:
    write_partition(tmp_path, "t-0", {0: LOG + stale})
    for take in (in_place, imported):
        left_out: list[Skipped] = []
        assert take(tmp_path, policy, left_out) == list(range(END))
        assert {(each.position, each.start, each.end) for each in left_out} == {(len(LOG), END, None)}
        assert sum(each.nbytes for each in left_out) == len(stale)


def test_stale_batch_is_corrupt_with_policy_fail(tmp_path: Path) -> None:
    """The stale batch may be the last batch of the log with a damaged offset."""
    file = segment(write_partition(tmp_path, "t-0", {0: LOG + STALE}), 0)
    assert KafkaView(tmp_path).bounds("t")[0].log_end == END
    for take in (in_place, imported):
        with pytest.raises(Corrupt, match="expected a batch at offset 37 or above, found offset 10") as caught:
            take(tmp_path, FAIL, [])
        assert (caught.value.file, caught.value.position, caught.value.offset) == (str(file), len(LOG), END)
    assert offsets(read(KafkaView(tmp_path), "t", end=20)) == list(range(20))


def test_stale_batch_does_not_open_a_transaction(tmp_path: Path) -> None:
    write_partition(tmp_path, "t-0", {0: LOG + batch(10, [b"old"], producer=7)})
    view = KafkaView(tmp_path, corrupt_records=SKIP)
    assert view.bounds("t")[0].last_stable == END
    assert offsets(read(view, "t", isolation=READ_COMMITTED)) == list(range(END))


def test_log_continues_after_a_stale_batch(tmp_path: Path) -> None:
    """This also applies to a view whose last refresh ended at the stale batch."""
    folder = write_partition(tmp_path, "t-0", {0: LOG + STALE})
    left_out: list[Skipped] = []
    view = KafkaView(tmp_path, corrupt_records=SKIP, on_skipped=left_out.append)
    assert (view.bounds("t")[0].log_end, len(left_out)) == (END, 1)
    segment(folder, 0).write_bytes(LOG + STALE + batch(END, [b"37"]))
    view.refresh(["t"])
    assert view.bounds("t")[0].log_end == END + 1
    assert in_place(tmp_path, SKIP, []) == list(range(END + 1))


@pytest.mark.parametrize("policy", [SKIP, TRUNCATE])
def test_swapped_segments_are_imported_as_read_in_place(tmp_path: Path, policy: str) -> None:
    """The offsets of a segment are below the base offset of the next segment."""
    parts = {base: b"".join(batch(offset, [b"x"]) for offset in range(base, base + 4)) for base in (0, 4, 8)}
    write_partition(tmp_path, "t-0", {0: parts[0], 4: parts[8], 8: parts[4]})
    seen = in_place(tmp_path, policy, [])
    assert seen == [0, 1, 2, 3]
    left_out: list[Skipped] = []
    assert imported(tmp_path, policy, left_out) == seen
    assert {Path(each.file).name for each in left_out} == {f"{base:020}.log" for base in (4, 8)}


# ---------------------------------------------------------------- which of two batches is invalid


@pytest.mark.parametrize(
    ("before", "first", "second", "after", "wrong"),
    [
        # In a dense log, a flipped bit increases the offset of the first batch, or decreases that of the second.
        (4, Span(72, 76), Span(8, 12), 12, 1),
        (4, Span(72, 76), Span(8, 12), None, 1),
        (4, Span(4, 8), Span(0, 4), 12, 2),
        (4, Span(4, 8), Span(5, 9), None, 2),
        # A compacted log has gaps, so the first batch may be valid even if it does not directly follow.
        (4, Span(10, 14), Span(5, 7), 14, 2),
        (4, Span(10, 14), Span(4, 14), 30, 2),
        (4, Span(20, 24), Span(8, 12), 40, 1),
        (4, Span(10, 14), Span(0, 4), 20, 2),
        # The second batch directly follows the first.
        (65, Span(86, 88), Span(80, 82), 103, 2),
        (162, Span(201, 204), Span(200, 202), None, 2),
    ],
)
def test_batch_that_does_not_fit_is_invalid(
    before: int, first: Span, second: Span, after: int | None, wrong: int
) -> None:
    assert first_is_wrong(before, first, second, after) == (wrong == 1)


def test_skip_retains_the_valid_out_of_order_batch(tmp_path: Path) -> None:
    parts = [batch(0, [b"a"] * 4), batch(10, [b"b"] * 4), batch(20, [b"c"] * 4), batch(24, [b"d"])]
    damaged = bytearray(parts[2])
    damaged[7] ^= 16  # The offset 20 becomes 4.
    write_partition(tmp_path, "t-0", {0: b"".join((*parts[:2], bytes(damaged), *parts[3:]))})
    expected = [*range(4), *range(10, 14), 24]
    assert in_place(tmp_path, SKIP, []) == imported(tmp_path, SKIP, []) == expected


@pytest.mark.parametrize("seed", range(20))
def test_flipped_offset_loses_only_its_batch(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    sizes = [chance.randrange(1, 6) for _ in range(30)]
    bases = [sum(sizes[:at]) for at in range(len(sizes))]
    parts = [bytearray(batch(base, [b"x"] * size)) for base, size in zip(bases, sizes, strict=True)]
    victim = chance.randrange(1, len(parts) - 1)
    bit = chance.randrange(62)
    parts[victim][7 - bit // 8] ^= 1 << bit % 8
    write_partition(tmp_path, "t-0", {0: b"".join(parts)})
    lost = range(bases[victim], bases[victim] + sizes[victim])
    expected = [offset for offset in range(sum(sizes)) if offset not in lost]
    assert in_place(tmp_path, SKIP, []) == imported(tmp_path, SKIP, []) == expected
    with pytest.raises(Corrupt):
        in_place(tmp_path, FAIL, [])


# ---------------------------------------------------------------- an unknown magic


def with_magic(data: bytes, magic: int) -> bytes:
    changed = bytearray(data)
    changed[16] = magic
    return bytes(changed)


FRONT, MIDDLE, BACK = batch(0, [b"0"] * 4), batch(4, [b"4"] * 4), batch(8, [b"8"] * 4)


@pytest.mark.parametrize("back", [BACK, b""], ids=["middle", "last"])
def test_unknown_magic_in_the_last_segment_is_corrupt(tmp_path: Path, back: bytes) -> None:
    """Kafka's recovery retains the batch, because its checksum is valid."""
    file = segment(write_partition(tmp_path, "t-0", {0: FRONT + with_magic(MIDDLE, 3) + back}), 0)
    end = 12 if back else 8
    assert KafkaView(tmp_path).bounds("t")[0].log_end == end
    for take in (in_place, imported):
        with pytest.raises(Corrupt, match="magic is 3, expected 0, 1 or 2") as caught:
            take(tmp_path, FAIL, [])
        assert (caught.value.file, caught.value.position, caught.value.offset) == (str(file), len(FRONT), 4)
    assert offsets(read(KafkaView(tmp_path), "t", end=4)) == list(range(4))
    assert not back or in_place(tmp_path, FAIL, [], start=8) == list(range(8, 12))


@pytest.mark.parametrize("back", [BACK, b""], ids=["middle", "last"])
@pytest.mark.parametrize("policy", [SKIP, TRUNCATE])
def test_unknown_magic_is_skipped_and_reported(tmp_path: Path, policy: str, back: bytes) -> None:
    write_partition(tmp_path, "t-0", {0: FRONT + with_magic(MIDDLE, 3) + back})
    expected = [*range(4), *(range(8, 12) if back and policy == SKIP else ())]
    for take in (in_place, imported):
        left_out: list[Skipped] = []
        assert take(tmp_path, policy, left_out) == expected
        (skipped,) = left_out
        assert (skipped.position, skipped.start) == (len(FRONT), 4)
        assert skipped.reason == "magic is 3, expected 0, 1 or 2"


@pytest.mark.parametrize("magic", [0, 1, 130, 255])
def test_log_ends_before_a_magic_that_recovery_rejects(tmp_path: Path, magic: int) -> None:
    """Kafka reads the magic as a signed byte, and treats values below 2 as old messages, whose checksum fails."""
    write_partition(tmp_path, "t-0", {0: FRONT + with_magic(MIDDLE, magic)})
    assert in_place(tmp_path, FAIL, []) == imported(tmp_path, FAIL, []) == list(range(4))


def test_lookup_by_timestamp_stops_at_unknown_magic(tmp_path: Path) -> None:
    late = batch(8, [b"8"], timestamp=1_800_000_000_000)
    write_partition(tmp_path, "t-0", {0: FRONT + with_magic(MIDDLE, 3) + late})
    with pytest.raises(Corrupt, match="magic is 3"):
        KafkaView(tmp_path).offsets_for_timestamps("t", {0: 1_800_000_000_000})
    found = KafkaView(tmp_path, corrupt_records=SKIP).offsets_for_timestamps("t", {0: 1_800_000_000_000})[0]
    assert found is not None
    assert found.offset == 8
