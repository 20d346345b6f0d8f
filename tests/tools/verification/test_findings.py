"""The findings of a verification as text lines and as a document."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest

from sparklog.errors import BadRequest, Corrupt
from sparklog.format.checksums import crc32c
from sparklog.tools.verification.findings import (
    CHECKSUM,
    MAX_SHOWN_FILES,
    RESTORE,
    CheckCounts,
    Finding,
    Report,
    UnreferencedFile,
    document,
    summary,
)

FINDING = Finding(CHECKSUM, "t/sealed/x.log", "the CRC is wrong", position=77, offset=5)
EMPTY = Report("/log", (), (), (), CheckCounts())


def unreferenced_files(count: int, age_ms: int = 1_000) -> tuple[UnreferencedFile, ...]:
    return tuple(UnreferencedFile(f"t/append/{n}", 10, age_ms + n, "left behind") for n in range(count))


def test_remedy_replaces_the_advice_of_an_error() -> None:
    error = Corrupt("expected 3, found 4: restore the file", file="x", position=9, offset=2)
    found = Finding.of(CHECKSUM, error, "other", "do this")
    assert found == Finding(CHECKSUM, "x", "expected 3, found 4", "do this", 9, 2)
    assert Finding.of(CHECKSUM, Corrupt("a; delete it"), "here").file == "here"
    assert Finding.of(CHECKSUM, Corrupt("to restore is no advice"), "x").message == "to restore is no advice"
    assert Finding.of(CHECKSUM, BadRequest("newer: restore it"), "x").message.endswith("restore it")


def test_finding_has_the_position_of_a_flipped_bit() -> None:
    data = bytearray(b"some bytes of a slice")
    expected = crc32c(bytes(data))
    data[6] ^= 1 << 3
    found = FINDING.at_flipped_bit(100, len(data), crc32c(bytes(data)), expected)
    assert found == replace(FINDING, position=106, bit=3)
    data[9] ^= 1
    assert FINDING.at_flipped_bit(100, len(data), crc32c(bytes(data)), expected) is None


def test_finding_is_printed_on_one_line() -> None:
    assert str(FINDING) == f"checksum: t/sealed/x.log at byte 77, offset 5: the CRC is wrong; {RESTORE}"
    assert "at byte 77, bit 0 flipped, offset 5" in str(replace(FINDING, bit=0))
    assert str(replace(FINDING, position=None, offset=None)).startswith("checksum: t/sealed/x.log: the")
    assert " at byte 0, offset 0:" in str(replace(FINDING, position=0, offset=0))


def test_counts_are_added() -> None:
    names = [field.name for field in fields(CheckCounts)]
    one, ten = CheckCounts(*range(1, 11)), CheckCounts(*(10 * n for n in range(1, 11)))
    assert [getattr(one + ten, name) for name in names] == [11 * n for n in range(1, 11)]


def test_summary_describes_what_was_checked() -> None:
    counts = CheckCounts(topics=1, commits=2, checkpoints=0, files=3, batches=1, nbytes=1234, gaps=1)
    line = summary(replace(EMPTY, counts=counts, seconds=0.25))
    expected = "1 topic, 2 commits, 3 files, 1 batch, 1,234 bytes, 1 offset in gaps"
    assert line == f"every byte accounted for: {expected} (0.2 s)"
    quick = summary(replace(EMPTY, counts=counts, quick=True))
    assert quick == f"all files exist, their contents were not read: {expected} (0.0 s)"


@pytest.mark.parametrize(("nbytes", "speed"), [(10_000_000, False), (10_000_001, True)])
def test_summary_contains_the_speed_if_known(nbytes: int, speed: bool) -> None:
    line = summary(replace(EMPTY, counts=CheckCounts(nbytes=nbytes), seconds=2.0))
    assert line.endswith("/s)") == speed
    if speed:
        assert "5.0 MB/s" in line
    assert summary(replace(EMPTY, counts=CheckCounts(nbytes=20_000_000))), "in no time"


def test_summary_counts_damaged_files() -> None:
    findings = (FINDING, replace(FINDING, position=1), replace(FINDING, file="t/append/y"))
    report = replace(EMPTY, findings=findings, quick=True, notes=(replace(FINDING, message="a note"),))
    lines = summary(report).split("\n")
    assert lines[:3] == [str(finding) for finding in findings]
    assert lines[3].startswith("possible corruption: checksum: t/sealed/x.log")
    assert lines[4].startswith("DAMAGED: 3 problems in 2 files of /log; checked ")
    assert not report.sound
    assert replace(report, findings=()).sound


@pytest.mark.parametrize("more", [0, 1, 5])
def test_summary_lists_the_oldest_unreferenced_files(more: int) -> None:
    lines = summary(replace(EMPTY, unreferenced=unreferenced_files(MAX_SHOWN_FILES + more))).split("\n")
    assert lines[0].startswith(f"{MAX_SHOWN_FILES + more} unreferenced files, ")
    assert lines[1].split()[0] == f"t/append/{MAX_SHOWN_FILES + more - 1}"
    assert len(lines) == 1 + MAX_SHOWN_FILES + (more > 0) + 1
    if more:
        assert lines[MAX_SHOWN_FILES + 1] == f"  and {more} newer files (--json lists all)"
    foreign = summary(replace(EMPTY, foreign=unreferenced_files(1)))
    assert foreign.startswith("1 unrecognized file, 10 B:")


@pytest.mark.parametrize(
    ("age_ms", "text"),
    [
        (0, "0 ms old"),
        (999, "999 ms old"),
        (1_000, "1 s old"),
        (59_999, "59 s old"),
        (60_000, "1 min old"),
        (3_599_999, "59 min old"),
        (3_600_000, "1 h old"),
        (86_399_999, "23 h old"),
        (86_400_000, "1 d old"),
        (86_400_000 * 1_234, "1,234 d old"),
    ],
)
def test_ages_are_formatted_with_a_unit(age_ms: int, text: str) -> None:
    assert text in summary(replace(EMPTY, unreferenced=unreferenced_files(1, age_ms)))


def test_document_contains_the_entire_report() -> None:
    report = replace(
        EMPTY, findings=(FINDING,), unreferenced=unreferenced_files(30), foreign=unreferenced_files(1), seconds=1.23456
    )
    found = document(report)
    assert (found["sound"], found["quick"], found["seconds"], found["location"]) == (False, False, 1.235, "/log")
    assert len(found["orphans"]) == 30  # type: ignore[arg-type]
    assert document(EMPTY)["sound"] is True
    assert found["problems"][0]["position"] == 77  # type: ignore[index]
    assert found.keys() >= {"counts", "foreign", "notes"}


def test_old_name_of_unreferenced_files_is_deprecated() -> None:
    report = replace(EMPTY, unreferenced=unreferenced_files(2))
    with pytest.deprecated_call(match="use Report.unreferenced"):
        assert report.orphans == report.unreferenced
