"""Lines and findings of index files: each entry is compared with its batch."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from sparklog.errors import BadRequest, Corrupt, NotFound
from sparklog.format.producer_snapshot import ProducerEntry, snapshot_to_bytes
from sparklog.storage import open_store
from sparklog.tools.inspection import dump_index
from sparklog.tools.inspection.dump_index import Findings, IndexOptions
from sparklog.tools.inspection.dump_source import DumpFile, Row
from tests.kafka.logs import HOUR_MS, batch

BASE = 100
BATCHES = [batch(BASE, [b"a", b"b"]), batch(BASE + 2, [b"c"]), batch(BASE + 3, [b"d" * 50] * 4)]
STARTS = [0, len(BATCHES[0]), len(BATCHES[0]) + len(BATCHES[1])]
LASTS = [BASE + 1, BASE + 2, BASE + 6]
VERIFY, SANITY = IndexOptions(verify=True), IndexOptions(sanity=True)


def file_of(folder: Path, suffix: str, data: bytes) -> DumpFile:
    """Return a file of the segment at offset 100, next to its `.log` of three batches."""
    path = folder / f"{BASE:020}.{suffix}"
    log = path.with_suffix(".log")
    if suffix != "log" and not log.exists():
        log.write_bytes(b"".join(BATCHES))
    path.write_bytes(data)
    return DumpFile(open_store(folder), path.name, f"shown/{path.name}", str(path))


def offset_entries(*pairs: tuple[int, int]) -> bytes:
    return b"".join(struct.pack(">ii", offset - BASE, position) for offset, position in pairs)


def time_entries(*pairs: tuple[int, int]) -> bytes:
    return b"".join(struct.pack(">qi", timestamp, offset - BASE) for timestamp, offset in pairs)


def lines_of(source: DumpFile, options: IndexOptions = IndexOptions()) -> tuple[list[str], list[str]]:  # noqa: B008
    """Return the lines of an index and the lines of its findings."""
    findings = Findings()
    rows = dump_index.index_rows if source.suffix == "index" else dump_index.time_index_rows
    lines = [row.text for row in rows(source, findings, options)]
    return lines, list(findings.lines())


def test_valid_entries_have_no_findings(tmp_path: Path) -> None:
    index = file_of(tmp_path, "index", offset_entries((LASTS[1], STARTS[1]), (LASTS[2], STARTS[2])))
    found = Findings()
    rows = list(dump_index.index_rows(index, found, IndexOptions()))
    assert [row.text for row in rows] == [f"offset: {LASTS[i]} position: {STARTS[i]}" for i in (1, 2)]
    expected = {"type": "index", "offset": LASTS[1], "position": STARTS[1], "logOffset": LASTS[1]}
    assert rows[0].fields == expected
    assert list(found.lines()) == []
    assert lines_of(index, VERIFY) == ([], [])


def test_mismatches_are_printed_in_reverse_order(tmp_path: Path) -> None:
    index = file_of(tmp_path, "index", offset_entries((BASE + 1, STARTS[1]), (BASE + 5, STARTS[2])))
    assert lines_of(index, VERIFY)[1] == [
        f"Mismatches in :{index.absolute}",
        f"  Index offset: {BASE + 5}, log offset: {LASTS[2]}",
        f"  Index offset: {BASE + 1}, log offset: {LASTS[1]}",
    ]
    findings = Findings()
    list(dump_index.index_rows(index, findings, VERIFY))
    assert next(findings.objects()) == {
        "type": "offset-mismatch",
        "file": index.absolute,
        "indexOffset": BASE + 1,
        "logOffset": LASTS[1],
    }


@pytest.mark.parametrize("position", [1, STARTS[1] + 1, sum(map(len, BATCHES)), 1 << 30, -5])
def test_dump_stops_at_an_entry_with_an_invalid_position(tmp_path: Path, position: int) -> None:
    index = file_of(tmp_path, "index", offset_entries((LASTS[1], STARTS[1]), (LASTS[2], position)))
    with pytest.raises(Corrupt, match=f"no batch starts at position {position}") as caught:
        lines_of(index)
    assert (caught.value.file, caught.value.position) == (index.shown, 8)


def test_batch_larger_than_max_message_size_is_rejected(tmp_path: Path) -> None:
    index = file_of(tmp_path, "index", offset_entries((LASTS[2], STARTS[2])))
    fitting = len(BATCHES[2])
    assert len(lines_of(index, IndexOptions(max_message_size=fitting))[0]) == 1
    with pytest.raises(Corrupt, match=f"{fitting} bytes; increase --max-message-size"):
        lines_of(index, IndexOptions(max_message_size=fitting - 1))


def test_sanity_check(tmp_path: Path) -> None:
    right = file_of(tmp_path, "index", offset_entries((LASTS[1], STARTS[1])))
    assert lines_of(right, SANITY) == ([f"{right.shown} passed sanity check."], [])
    # The sanity check reads the length and the last entry, but no batch.
    wrong_place = file_of(tmp_path, "index", offset_entries((LASTS[1], 7)))
    assert lines_of(wrong_place, SANITY)[0] == [f"{right.shown} passed sanity check."]
    longer = file_of(tmp_path, "index", offset_entries((LASTS[1], STARTS[1])) + b"x")
    with pytest.raises(Corrupt, match="expected a multiple of 8 bytes, found 9"):
        lines_of(longer, SANITY)
    with pytest.raises(Corrupt, match=f"expected a last offset of {BASE} or more, found {BASE - 1}"):
        lines_of(file_of(tmp_path, "index", offset_entries((BASE - 1, STARTS[1]))), SANITY)
    assert lines_of(file_of(tmp_path, "index", offset_entries((BASE, 7))), SANITY)[0]
    with pytest.raises(Corrupt, match="expected a last timestamp of 9 or more, found 8"):
        lines_of(file_of(tmp_path, "timeindex", time_entries((9, LASTS[0]), (8, LASTS[1]))), SANITY)
    same = file_of(tmp_path, "timeindex", time_entries((9, LASTS[0]), (9, LASTS[1])))
    assert lines_of(same, SANITY)[0] == [f"{same.shown} passed sanity check."]
    with pytest.raises(Corrupt, match="expected a multiple of 12 bytes, found 13"):
        lines_of(file_of(tmp_path, "timeindex", time_entries((9, LASTS[0])) + b"x"), SANITY)


def test_empty_index(tmp_path: Path) -> None:
    empty = file_of(tmp_path, "index", b"")
    for options in (IndexOptions(), VERIFY, SANITY):
        assert lines_of(empty, options) == ([f"{empty.shown} is empty."], [])
    times = file_of(tmp_path, "timeindex", b"")
    assert lines_of(times) == ([], [])
    assert lines_of(times, SANITY)[0] == [f"{times.shown} passed sanity check."]


def test_preallocated_zeros_end_the_entries(tmp_path: Path) -> None:
    zeros = bytes(8 * 5)
    index = file_of(tmp_path, "index", offset_entries((LASTS[1], STARTS[1]), (LASTS[2], STARTS[2])) + zeros)
    assert len(lines_of(index)[0]) == 2
    # The first entry may have the base offset.
    times = file_of(tmp_path, "timeindex", time_entries((HOUR_MS, BASE)) + bytes(12 * 3))
    assert lines_of(times)[0] == [f"timestamp: {HOUR_MS} offset: {BASE}"]


def test_index_without_a_log_file_fails(tmp_path: Path) -> None:
    index = file_of(tmp_path, "index", offset_entries((LASTS[1], STARTS[1])))
    (tmp_path / f"{BASE:020}.log").unlink()
    with pytest.raises(NotFound, match=rf"{BASE:020}.log, the log file of .*{BASE:020}.index, does not exist"):
        lines_of(index)


def test_batches_after_damage_are_found(tmp_path: Path) -> None:
    broken = bytearray(b"".join(BATCHES))
    broken[8:12] = b"\xff\xff\xff\xff"
    file_of(tmp_path, "log", bytes(broken))
    index = file_of(tmp_path, "index", offset_entries((LASTS[1], STARTS[1]), (LASTS[2], STARTS[2])))
    assert lines_of(index) == ([f"offset: {LASTS[i]} position: {STARTS[i]}" for i in (1, 2)], [])
    first = file_of(tmp_path, "index", offset_entries((LASTS[0], 0)))
    with pytest.raises(Corrupt, match=r"no batch starts at position .* \(shown/.*\.log: "):
        lines_of(first)


def test_valid_time_index_has_no_findings(tmp_path: Path) -> None:
    rows: list[Row] = []
    index = file_of(tmp_path, "timeindex", time_entries((HOUR_MS, LASTS[0])))
    rows += dump_index.time_index_rows(index, Findings(), IndexOptions())
    assert [row.text for row in rows] == [f"timestamp: {HOUR_MS} offset: {LASTS[0]}"]
    assert rows[0].fields == {"type": "timeindex", "timestamp": HOUR_MS, "offset": LASTS[0]}
    assert lines_of(index, VERIFY) == ([], [])


@pytest.mark.parametrize("beside", [False, True], ids=["alone", "with an index"])
def test_mismatches_of_a_time_index(tmp_path: Path, beside: bool) -> None:
    if beside:
        file_of(tmp_path, "index", offset_entries((LASTS[1], STARTS[1]), (LASTS[2], STARTS[2])))
    # A different timestamp; a repeated timestamp; an offset within a batch; an offset after the end.
    wrong = time_entries(
        (HOUR_MS - 1, LASTS[0]), (HOUR_MS, LASTS[1]), (HOUR_MS, LASTS[2]), (1, BASE + 4), (2, BASE + 7)
    )
    index = file_of(tmp_path, "timeindex", wrong)
    assert lines_of(index, VERIFY)[1] == [
        f"Found timestamp mismatch in :{index.absolute}",
        f"  Index timestamp: {HOUR_MS - 1}, log timestamp: {HOUR_MS}",
        f"Found out of order timestamp in :{index.absolute}",
        f"  Index timestamp: {HOUR_MS}, Previously indexed timestamp: {HOUR_MS}",
        "The following indexed offsets are not found in the log.",
        f"Indexed offset: {BASE + 4}, found log offset: {LASTS[2]}",
        f"Indexed offset: {BASE + 7}, found log offset: -1",
    ]


def test_aborted_transactions(tmp_path: Path) -> None:
    def entry(version: int, first: int) -> bytes:
        return struct.pack(">hqqqq", version, 7, first, first + 3, first + 1)

    whole = file_of(tmp_path, "txnindex", entry(0, 100) + entry(0, 110))
    texts = [row.text for row in dump_index.transaction_index_rows(whole)]
    assert texts[1] == "version: 0 producerId: 7 firstOffset: 110 lastOffset: 113 lastStableOffset: 111"
    other = file_of(tmp_path, "txnindex", entry(0, 100) + entry(1, 110))
    with pytest.raises(Corrupt, match="aborted transaction of version 0, found 1") as caught:
        list(dump_index.transaction_index_rows(other))
    assert (caught.value.file, caught.value.position) == (other.shown, 34)
    torn = file_of(tmp_path, "txnindex", entry(0, 100) + b"abc")
    rows: list[Row] = []
    with pytest.raises(
        Corrupt, match="expected entries of 34 bytes, found 3 extra bytes after the last entry"
    ) as caught:
        rows.extend(dump_index.transaction_index_rows(torn))
    assert caught.value.position == 34


def test_producer_snapshot(tmp_path: Path) -> None:
    entries = [
        ProducerEntry(1, 0, 9, 109, 3, HOUR_MS, 2, 105),
        ProducerEntry(2, 0, 0, 120, 2, HOUR_MS, -1, -1),
        ProducerEntry(3, 0, -1, -1, 0, HOUR_MS, -1, -1),
        ProducerEntry(4, 0, 5, 130, 0, HOUR_MS, -1, 0),
    ]
    path = tmp_path / "00000000000000000130.snapshot"
    path.write_bytes(snapshot_to_bytes(entries))
    source = DumpFile(open_store(tmp_path), path.name, str(path), str(path))
    rows = list(dump_index.snapshot_rows(source))
    assert rows[0].text == (
        f"producerId: 1 producerEpoch: 0 coordinatorEpoch: 2 currentTxnFirstOffset: OptionalLong[105] "
        f"lastTimestamp: {HOUR_MS} firstSequence: 6 lastSequence: 9 lastOffset: 109 offsetDelta: 3 timestamp: {HOUR_MS}"
    )
    assert [row.fields["currentTxnFirstOffset"] for row in rows] == [105, None, None, 0]
    assert "OptionalLong.empty" in rows[1].text
    assert rows[1].fields["lastBatch"]["firstSequence"] == 2**31 - 2, "sequences begin again behind the greatest"
    assert "lastBatch" not in rows[2].fields
    assert rows[2].text.endswith(f"lastTimestamp: {HOUR_MS} ")
    assert rows[3].fields["lastBatch"]["firstSequence"] == 5


def test_file_name_without_a_base_offset_is_rejected(tmp_path: Path) -> None:
    path = tmp_path / "x1.index"
    path.write_bytes(offset_entries((LASTS[1], STARTS[1])))
    source = DumpFile(open_store(tmp_path), path.name, "x1.index", str(path))
    with pytest.raises(BadRequest, match="its name does not start with a base offset of 20 digits"):
        _ = source.base_offset
