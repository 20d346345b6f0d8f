"""Index files compared with batches: valid entries, and the position of each invalid entry."""

from __future__ import annotations

import struct

import numpy as np
import pytest

from sparklog.format.batch_scan import scan_headers
from sparklog.tools.verification.findings import INDEX, Finding
from sparklog.tools.verification.slice_checks import REBUILD, BatchColumns, CollectedBatches, check_index
from tests.kafka.logs import batch, marker

BASE = 100
POSITIONS, LASTS, STAMPS = [0, 500, 900, 1300], [104, 109, 110, 119], [50, 70, 70, 60]


def batches(*, old: bool = False, stamps: list[int] = STAMPS) -> CollectedBatches:
    """Return four batches at bytes 0, 500, 900 and 1300; the second and the third have the maximum timestamp."""
    bases = [BASE, *(last + 1 for last in LASTS[:-1])]
    columns = (np.array(column, np.int64) for column in (POSITIONS, bases, LASTS, stamps))
    found = CollectedBatches()
    found.windows.append(BatchColumns(*columns, np.full(4, old)))
    return found


def offsets(*pairs: tuple[int, int]) -> bytes:
    """Return entries of an `.index` from last offset and position."""
    return b"".join(struct.pack(">ii", last - BASE, position) for last, position in pairs)


def times(*pairs: tuple[int, int]) -> bytes:
    """Return entries of a `.timeindex` from timestamp and offset."""
    return b"".join(struct.pack(">qi", stamp, last - BASE) for stamp, last in pairs)


def check(suffix: str, data: bytes, found: CollectedBatches | None = None, *, active: bool = False) -> list[Finding]:
    return check_index(suffix, data, BASE, found or batches(), file="f", active=active)


@pytest.mark.parametrize(
    "data",
    [
        offsets(),
        offsets((109, 500)),
        offsets((109, 500), (110, 900), (119, 1300)),
        # One entry covers several batches, with the position of the first and the offset of the last.
        offsets((110, 500), (119, 1300)),
        offsets((119, 500)),
    ],
)
def test_valid_offset_index(data: bytes) -> None:
    assert check("index", data) == []


@pytest.mark.parametrize(
    ("data", "entry", "offset"),
    [
        (offsets((108, 500)), 0, 108),
        (offsets((109, 501)), 0, 109),
        (offsets((109, 500), (110, 1300)), 1, 110),
        # The batches of the first entry would end after the second entry.
        (offsets((110, 500), (119, 900)), 0, 110),
        (offsets((109, 500), (150, 1300)), 1, 150),
        (offsets((109, 2000)), 0, 109),
    ],
)
def test_offset_index_with_an_invalid_entry(data: bytes, entry: int, offset: int) -> None:
    (finding,) = check("index", data)
    assert (finding.kind, finding.file, finding.remedy) == (INDEX, "f", REBUILD)
    assert (finding.position, finding.offset) == (8 * entry, offset)
    assert f"entry {entry} has offset" in finding.message


def test_index_of_a_segment_without_batches() -> None:
    (finding,) = check("index", offsets((109, 500)), CollectedBatches())
    assert (finding.message, finding.position) == ("expected no entries, because the segment has no batches", 0)
    assert check("index", b"", CollectedBatches()) == []
    assert check("timeindex", times((70, 109)), CollectedBatches()) == [], "of times nothing can be told"


def test_trailing_zeros_are_only_valid_in_the_active_segment() -> None:
    data = offsets((109, 500)) + bytes(16)
    assert check("index", data, active=True) == []
    (finding,) = check("index", data)
    assert (finding.message, finding.position) == ("expected 8 bytes, found 24; the excess bytes are zeros", 8)
    torn = times((70, 109)) + bytes(12)
    assert check("timeindex", torn, active=True) == []
    assert [finding.position for finding in check("timeindex", torn)] == [12]


@pytest.mark.parametrize(
    ("suffix", "data", "message"),
    [
        ("index", offsets((109, 500)) + b"x", "multiple of 8 bytes"),
        ("index", offsets((110, 900), (109, 500)), "increase in offset and position"),
        ("timeindex", times((70, 109)) + b"x", "multiple of 12 bytes"),
    ],
)
def test_invalid_index_files(suffix: str, data: bytes, message: str) -> None:
    (finding,) = check(suffix, data)
    assert message in finding.message
    assert finding.remedy == REBUILD
    assert finding.position is not None


def test_invalid_transaction_index_can_be_rebuilt() -> None:
    (finding,) = check("txnindex", b"x")
    assert (finding.kind, finding.remedy) == (INDEX, REBUILD)


@pytest.mark.parametrize("data", [times((70, 109)), times((50, 104), (70, 109))])
def test_valid_time_index(data: bytes) -> None:
    assert check("timeindex", data) == []


@pytest.mark.parametrize(
    ("data", "entry", "offset"),
    [
        (times((70, 110)), 0, 110),
        (times((71, 109)), 0, 109),
        (times((50, 104), (60, 119)), 1, 119),
        (times((70, 108)), 0, 108),
        (times((70, 200)), 0, 200),
    ],
)
def test_time_index_with_an_invalid_entry(data: bytes, entry: int, offset: int) -> None:
    (finding,) = check("timeindex", data)
    assert (finding.position, finding.offset) == (12 * entry, offset)
    assert "the first batch with timestamp" in finding.message


def test_last_time_entry_has_the_maximum_timestamp_of_a_closed_segment() -> None:
    early = times((50, 104))
    assert check("timeindex", early, active=True) == []
    (finding,) = check("timeindex", early)
    assert finding.message == "expected the last entry to have the maximum timestamp 70, found 50"
    assert finding.position == 12
    assert [item.message for item in check("timeindex", b"")] == [finding.message.replace("50", "-1")]


def test_time_entry_of_old_messages_has_their_last_offset() -> None:
    assert check("timeindex", times((70, 110)), batches(old=True)) == []
    assert len(check("timeindex", times((60, 119)), batches(old=True))) == 1


def test_time_index_of_records_without_timestamps_starts_with_zero() -> None:
    nothing = batches(stamps=[-1, -1, -1, -1])
    assert check("timeindex", times((0, BASE)), nothing) == []
    assert check("timeindex", times((0, BASE)), batches(stamps=[0, 0, 0, 0])) == []
    assert len(check("timeindex", times((0, BASE)))) == 1, "others have one"
    assert len(check("timeindex", times((0, BASE + 1)), nothing)) == 1


def aborts(*entries: tuple[int, int, int, int]) -> bytes:
    """Entries of a `.txnindex`: producer id, first, last and last stable offset."""
    return b"".join(struct.pack(">hqqqq", 0, *entry) for entry in entries)


def with_markers() -> CollectedBatches:
    """Producer 7 aborts at offset 104 and commits at 106."""
    data = batch(BASE, [b"a"] * 4, producer=7) + marker(104, 7, commit=False)
    data += batch(105, [b"b"], producer=7) + marker(106, 7, commit=True)
    found = CollectedBatches()
    found.add(data, scan_headers(data, whole=False), 0)
    return found


def test_valid_transaction_index() -> None:
    found = with_markers()
    assert found.aborts == {104: 7}
    assert found.columns().last.tolist() == [103, 104, 105, 106]
    assert check("txnindex", aborts((7, 100, 104, 100)), found) == []
    assert check("txnindex", aborts((7, 100, 104, 105)), found) == [], "all before the next record is stable"


@pytest.mark.parametrize(
    "entry", [(8, 100, 104, 100), (7, 100, 105, 100), (7, 105, 106, 105), (7, -1, 104, 100), (7, 100, 104, 106)]
)
def test_aborted_transaction_without_a_marker(entry: tuple[int, int, int, int]) -> None:
    right = (7, 100, 104, 100)
    found = check("txnindex", aborts(entry), with_markers())
    assert [(finding.kind, finding.remedy) for finding in found] == [(INDEX, REBUILD)]
    assert check("txnindex", aborts(right), with_markers()) == []
