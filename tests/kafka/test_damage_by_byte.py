"""Test damage at every kind of byte of a batch: no record is wrong or silently missing, and no other record is lost."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sparklog.errors import Corrupt
from sparklog.format.batch_walk import ResumePoint, resume
from sparklog.kafka.in_place import KafkaView
from sparklog.kafka.in_place.files import file_path
from sparklog.kafka.in_place.segment_file import SegmentFile
from sparklog.kafka.in_place.segment_recovery import FAIL, SKIP, TRUNCATE
from sparklog.log.read.skipped import Skipped
from sparklog.log.state.view import COLUMNS, READ_COMMITTED, READ_UNCOMMITTED, OffsetRange
from tests.kafka.logs import batch, marker, offsets, read, records, segment, write_partition

BATCHES = [batch(4 * at, [b"%d" % (4 * at + record) for record in range(4)]) for at in range(5)]
SIZE = len(BATCHES[2])
START = sum(len(data) for data in BATCHES[:2])
# The damaged batch is the middle batch of a closed segment, or of the last segment.
LAYOUTS = ("closed", "last")
# Maps the name of each field of a batch to (first byte, number of bytes).
FIELDS = {
    "base offset": (0, 8),
    "length": (8, 4),
    "magic": (16, 1),
    "crc": (17, 4),
    "attributes": (21, 2),
    "last offset delta": (23, 4),
    "base timestamp": (27, 8),
    "max timestamp": (35, 8),
    "producer id": (43, 8),
    "producer epoch": (51, 2),
    "base sequence": (53, 4),
    "count": (57, 4),
    "records": (61, SIZE - 61),
}


def flips() -> Iterator[tuple[str, int, int]]:
    """Return some bits of every field, including bits of its first and its last byte."""
    chance = random.Random(5)
    for name, (first, length) in FIELDS.items():
        places = {first, first + length - 1, first + length // 2}
        for place in sorted(places):
            for bit in sorted({0, 7, chance.randrange(8)}):
                yield name, place, bit


FLIPS = list(flips())
TRIED = [flip if at % 3 == 0 else pytest.param(*flip, marks=pytest.mark.slow) for at, flip in enumerate(FLIPS)]
"""All flips. Each run tests a bit of about every byte."""


def layout(folder: Path, kind: str, data: list[bytes]) -> Path:
    """Write five batches in one segment. If `closed` is True, another segment follows. Return the damaged file."""
    segments = {0: b"".join(data)}
    if kind == "closed":
        segments[20] = batch(20, [b"20", b"21"])
    write_partition(folder, "t-0", segments)
    return segment(folder / "t-0", 0)


def flipped(place: int, bit: int) -> list[bytes]:
    broken = bytearray(BATCHES[2])
    broken[place] ^= 1 << bit
    return [*BATCHES[:2], bytes(broken), *BATCHES[3:]]


def unheard(skipped: Skipped) -> None:
    """Ignore skipped damage, in views whose parts are pickled and cannot append to a list of this process."""


def outcome(folder: Path, policy: str = FAIL, told: Callable[[Skipped], None] = unheard) -> object:
    """Return the result of reading all records: values by offset, or the error."""
    view = KafkaView(folder, corrupt_records=policy, on_skipped=told)
    try:
        end = view.bounds("t")[0].log_end
        (part,) = view.plan([OffsetRange("t", 0, 0, end)], READ_UNCOMMITTED)
        return {record.offset: record.value for piece in part.read(COLUMNS) for record in records(piece)}
    except Corrupt as error:
        return error


def values(view: KafkaView, isolation: str = READ_UNCOMMITTED) -> dict[int, bytes | None]:
    return {record.offset: record.value for record in read(view, "t", isolation=isolation)}


def truth(kind: str) -> dict[int, bytes]:
    return {offset: b"%d" % offset for offset in range(22 if kind == "closed" else 20)}


@pytest.mark.parametrize("kind", LAYOUTS)
@pytest.mark.parametrize(("name", "place", "bit"), TRIED)
def test_flipped_bit_is_corrupt_or_ends_the_log(tmp_path: Path, name: str, place: int, bit: int, kind: str) -> None:
    """With the default policy. The leader epoch is not protected, and readers do not return it."""
    file = layout(tmp_path, kind, flipped(place, bit))
    found = outcome(tmp_path)
    if isinstance(found, Corrupt):
        assert (found.file, found.position, found.offset) == (str(file), START, 8)
    else:
        # As in Kafka's recovery, only bytes that are not a batch end a log, and only in the last segment.
        assert (kind, name) in {("last", "length"), ("last", "magic")}
        assert found == {offset: b"%d" % offset for offset in range(8)}


@pytest.mark.parametrize("kind", LAYOUTS)
@pytest.mark.parametrize(("name", "place", "bit"), TRIED)
def test_skip_loses_and_reports_only_the_damaged_batch(
    tmp_path: Path, name: str, place: int, bit: int, kind: str
) -> None:
    file = layout(tmp_path, kind, flipped(place, bit))
    said: list[Skipped] = []
    found = outcome(tmp_path, SKIP, said.append)
    assert found == {offset: value for offset, value in truth(kind).items() if not 8 <= offset < 12}
    assert [(skipped.file, skipped.position, skipped.nbytes) for skipped in said] == [(str(file), START, SIZE)]
    assert (said[0].start, said[0].end) == (8, 12)


@pytest.mark.parametrize("kind", LAYOUTS)
@pytest.mark.parametrize(("name", "place", "bit"), FLIPS[::3])
def test_truncate_ends_the_log_before_the_damage(tmp_path: Path, name: str, place: int, bit: int, kind: str) -> None:
    file = layout(tmp_path, kind, flipped(place, bit))
    said: list[Skipped] = []
    found = outcome(tmp_path, TRUNCATE, said.append)
    assert found == {offset: b"%d" % offset for offset in range(8)}
    assert (said[0].file, said[0].position, said[0].start) == (str(file), START, 8)
    assert len(said) == (2 if kind == "closed" else 1)


def test_any_start_and_end_around_skipped_damage(tmp_path: Path) -> None:
    layout(tmp_path, "closed", flipped(70, 1))
    view = KafkaView(tmp_path, corrupt_records=SKIP, on_skipped=unheard)
    every = [offset for offset in range(22) if not 8 <= offset < 12]
    for start in range(22):
        for end in range(start + 1, 23):
            assert offsets(read(view, "t", start=start, end=end)) == [o for o in every if start <= o < end]


def test_part_that_ends_in_damage_reports_only_its_own_range(tmp_path: Path) -> None:
    layout(tmp_path, "last", flipped(70, 1))
    said: list[Skipped] = []
    view = KafkaView(tmp_path, corrupt_records=SKIP, on_skipped=said.append)
    for start, end in ((0, 8), (12, 20)):
        (part,) = view.plan([OffsetRange("t", 0, start, end)], READ_UNCOMMITTED)
        assert sum(piece.num_rows for piece in part.read(COLUMNS)) == 8
    assert said == []
    (part,) = view.plan([OffsetRange("t", 0, 5, 10)], READ_UNCOMMITTED)
    assert sum(piece.num_rows for piece in part.read(COLUMNS)) == 3
    assert [(skipped.start, skipped.end) for skipped in said] == [(8, 10)]


@pytest.mark.parametrize(
    ("hole", "lost"),
    [
        (bytes(SIZE), range(8, 12)),
        (bytes(3 * SIZE), range(8, 20)),
        (b"\xff" * (SIZE + 7), range(8, 16)),
        (BATCHES[2][:-5], range(8, 12)),
        (b"", range(8, 12)),
        (random.Random(3).randbytes(500), range(8, 12)),
    ],
)
def test_holes_of_all_kinds_in_a_closed_segment(tmp_path: Path, hole: bytes, lost: range) -> None:
    """Zeros over complete batches, missing bytes of a later batch, half a batch, a missing batch, and garbage."""
    following = b"".join(BATCHES[3:])
    overwritten = {3 * SIZE: b"", SIZE + 7: following[7:]}.get(len(hole), following)
    layout(tmp_path, "closed", [*BATCHES[:2], hole, overwritten])
    if hole:
        with pytest.raises(Corrupt) as caught:
            read(KafkaView(tmp_path), "t")
        assert (caught.value.position, caught.value.offset) == (START, 8)
    said: list[Skipped] = []
    found = values(KafkaView(tmp_path, corrupt_records=SKIP, on_skipped=said.append))
    assert found == {offset: value for offset, value in truth("closed").items() if offset not in lost}


def test_batches_inside_a_damaged_batch_are_not_returned(tmp_path: Path) -> None:
    """The value of a record is a batch, as in a backup of a log."""
    inner = batch(10, [b"not mine"])
    outer = bytearray(batch(8, [b"x" * 10, inner, b"y", b"z"]))
    outer[-1] ^= 1
    layout(tmp_path, "closed", [*BATCHES[:2], bytes(outer), *BATCHES[3:]])
    view = KafkaView(tmp_path, corrupt_records=SKIP, on_skipped=unheard)
    assert values(view) == {offset: value for offset, value in truth("closed").items() if not 8 <= offset < 12}


def test_damage_longer_than_a_search_window_is_skipped(tmp_path: Path) -> None:
    garbage = random.Random(9).randbytes((1 << 20) + 12345)
    file = layout(tmp_path, "closed", [*BATCHES[:2], garbage, *BATCHES[3:]])
    with SegmentFile(file_path(file)) as opened:
        assert resume(opened, START, 8, 20) == ResumePoint(START + len(garbage), 12)
        assert resume(opened, START, 8, 12) is None, "nothing of this segment reaches the next one's base"
        assert resume(opened, START + len(garbage), 13, 20) == ResumePoint(START + len(garbage) + len(BATCHES[3]), 16)


# ---------------------------------------------------------------- transactions


def transactional(place: int | None, bit: int = 0, *, victim: int = 1) -> bytes:
    """Return an aborted transaction of producer 7 and other batches, with one damaged byte in the transaction."""
    parts = [
        batch(0, [b"0"]),
        batch(1, [b"1", b"2"], producer=7),
        batch(3, [b"3"]),
        batch(4, [b"4"], producer=7),
        marker(5, 7, commit=False),
        batch(6, [b"6"]),
    ]
    if place is not None:
        broken = bytearray(parts[victim])
        broken[place] ^= 1 << bit
        parts[victim] = bytes(broken)
    return b"".join(parts)


@pytest.mark.parametrize("victim", [1, 3])
@pytest.mark.parametrize("place", [22, 43, 46, 50, 57, 65])
@pytest.mark.parametrize("bit", [0, 4, 5])
def test_damaged_producer_id_does_not_block_readers_or_expose_aborted_records(
    tmp_path: Path, victim: int, place: int, bit: int
) -> None:
    write_partition(tmp_path, "t-0", {0: transactional(place, bit, victim=victim), 7: batch(7, [b"7"])})
    view = KafkaView(tmp_path, corrupt_records=SKIP, on_skipped=unheard)
    assert view.bounds("t")[0].last_stable == 8
    assert offsets(read(view, "t", isolation=READ_COMMITTED)) == [0, 3, 6, 7]


@pytest.mark.parametrize("place", [22, 43, 50, 70, 77])
@pytest.mark.parametrize("bit", [0, 4, 5])
def test_skip_hides_the_transaction_of_a_damaged_marker(tmp_path: Path, place: int, bit: int) -> None:
    write_partition(tmp_path, "t-0", {0: transactional(place, bit, victim=4), 7: batch(7, [b"7"])})
    said: list[Skipped] = []
    view = KafkaView(tmp_path, corrupt_records=SKIP, on_skipped=said.append)
    assert view.bounds("t")[0].last_stable == 8
    (part,) = view.plan([OffsetRange("t", 0, 0, 8)], READ_COMMITTED)
    assert [(skipped.start, skipped.end, skipped.position) for skipped in said] == [(1, 6, None)]
    found = offsets([record for piece in part.read(COLUMNS) for record in records(piece)])
    assert found == [0, 3, 6, 7]
    view.plan([OffsetRange("t", 0, 0, 8)], READ_COMMITTED)
    assert len([skipped for skipped in said if skipped.position is None]) == 1, "said once"
    with pytest.raises(Corrupt, match="its result is unknown"):
        KafkaView(tmp_path).plan([OffsetRange("t", 0, 0, 8)], READ_COMMITTED)
