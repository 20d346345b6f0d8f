"""Test damaged end-of-transaction markers: records that may have been aborted are never exposed, in
place or imported.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from sparklog.compaction.run import CompactOptions
from sparklog.errors import Corrupt
from sparklog.kafka.exporting import export_topics
from sparklog.kafka.exporting.run import ExportOptions
from sparklog.kafka.importing.run import ImportOptions, import_log_dir
from sparklog.kafka.in_place import KafkaView
from sparklog.kafka.in_place.segment_recovery import SKIP
from sparklog.log.read.skipped import Skipped
from sparklog.log.state.view import COLUMNS, READ_COMMITTED, READ_UNCOMMITTED
from sparklog.log.topic.root import Root, open_root
from sparklog.maintenance.work_items import InProcess, Settings
from sparklog.storage.local import LocalStore
from tests.format.old_messages import message, messages
from tests.kafka.logs import HOUR_MS, append_to, batch, marker, offsets, read, records, write_partition
from tests.support.compaction import compact_topic

MARKER_BYTES = 78
LEVELS = (READ_COMMITTED, READ_UNCOMMITTED)


@pytest.fixture
def root(tmp_path: Path) -> Root:
    return open_root(LocalStore(tmp_path / "root", durable=False), create=True)


def flipped(data: bytes, place: int, bit: int = 0) -> bytes:
    broken = bytearray(data)
    broken[place] ^= 1 << bit
    return bytes(broken)


def unheard(skipped: Skipped) -> None:
    """Ignore skipped damage, in views whose parts are pickled."""


def in_place(folder: Path, isolation: str = READ_COMMITTED, policy: str = SKIP) -> list[int]:
    return offsets(read(KafkaView(folder, corrupt_records=policy, on_skipped=unheard), "t", isolation=isolation))


def imported(root: Root, isolation: str = READ_COMMITTED) -> list[int]:
    scan = root.topic("t").scan(isolation_level=isolation, columns=COLUMNS)
    return offsets([record for found in scan for record in records(found)])


def two_transactions(lost: bytes) -> list[bytes]:
    """Return a log in which producer 7 aborts a transaction, whose marker is `lost`, and commits the next
    transaction.
    """
    return [
        batch(0, [b"0"]),
        batch(1, [b"1", b"2"], producer=7),
        lost,
        batch(4, [b"4"], producer=7),
        marker(5, 7, commit=True),
        batch(6, [b"6"]),
    ]


ABORT = marker(3, 7, commit=False)
LOST = {
    "key": flipped(ABORT, 70),
    "producer id": flipped(ABORT, 50),
    "attributes": flipped(ABORT, 22, 5),
    "checksum": flipped(ABORT, 17),
    "two bytes": flipped(flipped(ABORT, 50), 60),
    "all": bytes(MARKER_BYTES),
}


@pytest.mark.parametrize("segments", [1, 2])
@pytest.mark.parametrize("damage", LOST)
def test_later_commit_does_not_expose_aborted_records(root: Root, tmp_path: Path, damage: str, segments: int) -> None:
    place, said = tmp_path / "kafka", list[Skipped]()
    later = {} if segments == 1 else {7: batch(7, [b"7"])}
    write_partition(place, "t-0", {0: b"".join(two_transactions(LOST[damage])), **later})
    wanted = [0, 4, 6, *later]
    assert in_place(place) == wanted
    import_log_dir(root, place, ImportOptions(corrupt_records=SKIP), on_skipped=said.append)
    assert imported(root) == wanted
    assert imported(root, READ_UNCOMMITTED) == in_place(place, READ_UNCOMMITTED)
    assert [(each.start, each.end) for each in said if each.position is None] == [(1, 4)]
    # The log contains the markers, so a rewrite or an export of the log has the same records.
    settings = Settings(now_ms=HOUR_MS * 2)
    assert not compact_topic(root.topic("t"), settings, InProcess(), CompactOptions(seal_only=True, roll=True)).failures
    assert imported(root) == wanted
    export_topics(root, tmp_path / "out", ["t"], ExportOptions(durable=False))
    assert in_place(tmp_path / "out", policy="fail") == wanted


def test_import_continues_after_damage(root: Root, tmp_path: Path) -> None:
    place = tmp_path / "kafka"
    parts = two_transactions(LOST["key"])
    folder = write_partition(place, "t-0", {0: b"".join(parts[:3]), 4: b""})
    import_log_dir(root, place, ImportOptions(corrupt_records=SKIP), on_skipped=unheard)
    assert root.topic("t").log.state().log_end[0] == 4
    assert imported(root) == [0]
    append_to(folder / f"{4:020}.log", b"".join(parts[3:]))
    import_log_dir(root, place, ImportOptions(corrupt_records=SKIP), on_skipped=unheard)
    assert imported(root) == [0, 4, 6] == in_place(place)


def test_next_import_ends_transactions_left_open(root: Root, tmp_path: Path) -> None:
    place = tmp_path / "kafka"
    parts = two_transactions(LOST["key"])
    folder = write_partition(place, "t-0", {0: b"".join(parts[:2])})
    import_log_dir(root, place)
    assert len(root.topic("t").log.state().kafka_open) == 1
    append_to(folder / f"{0:020}.log", b"".join(parts[2:]))
    import_log_dir(root, place, ImportOptions(corrupt_records=SKIP), on_skipped=unheard)
    assert not root.topic("t").log.state().kafka_open
    assert imported(root) == [0, 4, 6]


def bystander(lost: bytes) -> bytes:
    """Return a log in which producer 8 writes before and after the `lost` marker of producer 7, and commits."""
    parts = [
        batch(0, [b"0"], producer=7),
        batch(1, [b"1"], producer=8),
        lost,
        batch(3, [b"3"], producer=8),
        marker(4, 8, commit=True),
        batch(5, [b"5"]),
    ]
    return b"".join(parts)


@pytest.mark.parametrize("place", [17, 43, 50, 55, 70])
def test_flipped_bit_does_not_affect_other_transactions(root: Root, tmp_path: Path, place: int) -> None:
    write_partition(tmp_path / "kafka", "t-0", {0: bystander(flipped(marker(2, 7, commit=True), place))})
    assert in_place(tmp_path / "kafka") == [1, 3, 5]
    import_log_dir(root, tmp_path / "kafka", ImportOptions(corrupt_records=SKIP), on_skipped=unheard)
    assert imported(root) == [1, 3, 5]


def test_damaged_marker_without_offsets_for_all_producers_is_rejected(root: Root, tmp_path: Path) -> None:
    lost = flipped(flipped(marker(2, 7, commit=True), 50), 60)
    write_partition(tmp_path / "kafka", "t-0", {0: bystander(lost)})
    assert in_place(tmp_path / "kafka") == [3, 5]
    with pytest.raises(Corrupt, match=r"the markers of 2 transactions, but .* corrupt_records=truncate") as raised:
        import_log_dir(root, tmp_path / "kafka", ImportOptions(corrupt_records=SKIP), on_skipped=unheard)
    assert raised.value.position == len(batch(0, [b"0"])) * 2
    assert root.topics() == []
    import_log_dir(root, tmp_path / "kafka", ImportOptions(corrupt_records="truncate"), on_skipped=unheard)
    assert imported(root) == []


def test_marker_at_a_wrong_offset_ends_its_transaction(root: Root, tmp_path: Path) -> None:
    """The checksum is valid, because it does not cover the base offset."""
    lost = flipped(marker(2, 7, commit=True), 7, 4)
    write_partition(tmp_path / "kafka", "t-0", {0: bystander(lost)})
    import_log_dir(root, tmp_path / "kafka", ImportOptions(corrupt_records=SKIP), on_skipped=unheard)
    assert imported(root) == [0, 1, 3, 5]


def test_damage_before_old_messages_is_reported_once(root: Root, tmp_path: Path) -> None:
    """The active segment is copied again if it contains messages of old formats."""
    old = messages([(at, HOUR_MS, b"k", b"v") for at in (1, 2)])
    broken = message(0, b"k", b"v", timestamp=HOUR_MS, crc=1)
    write_partition(tmp_path / "kafka", "t-0", {0: broken + old + batch(3, [b"3"])})
    said: list[Skipped] = []
    report = import_log_dir(root, tmp_path / "kafka", ImportOptions(corrupt_records=SKIP), on_skipped=said.append)
    assert [(each.start, each.end, each.position) for each in said] == [(0, 1, 0)]
    assert report.topics[0].partitions[0].skipped == 1
    assert imported(root) == [1, 2, 3]


def random_log(chance: random.Random) -> list[bytes]:
    """Return interleaved transactions of three producers and batches without a producer, with gaps."""
    parts, offset, opened = [], 0, set[int]()
    for _ in range(30):
        producer = chance.choice([-1, 4, 5, 6])
        if producer in opened and chance.random() < 0.5:
            parts.append(marker(offset, producer, commit=chance.random() < 0.5))
            opened.discard(producer)
            offset += 1
        else:
            count = chance.randint(1, 3)
            parts.append(batch(offset, [b"v"] * count, producer=producer))
            opened.update([producer] if producer >= 0 else [])
            offset += count
        offset += chance.choice([0, 0, 3])
    return parts


@pytest.mark.parametrize("seed", range(40))
def test_import_exposes_the_same_records_as_reads_in_place(root: Root, tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    parts = random_log(chance)
    for at in chance.sample(range(1, len(parts) - 1), 3):
        size = len(parts[at])
        parts[at] = chance.choice(
            [flipped(parts[at], chance.randrange(16, size), chance.randrange(8)), bytes(size), b"\xff" * size]
        )
    half = chance.randrange(5, 25)
    place, first = tmp_path / "kafka", b"".join(parts[:half])
    bases = [int.from_bytes(part[:8], "big") for part in parts]
    segments = {0: b"".join(parts)}
    if chance.random() < 0.5 and parts[half][:8] not in (bytes(8), b"\xff" * 8):
        segments = {0: first, bases[half]: b"".join(parts[half:])}
    write_partition(place, "t-0", segments)
    try:
        import_log_dir(root, place, ImportOptions(corrupt_records=SKIP), on_skipped=unheard)
    except Corrupt as refused:
        if "may have removed the markers of" not in refused.message:
            raise
        return
    for isolation in LEVELS:
        assert imported(root, isolation) == in_place(place, isolation)
