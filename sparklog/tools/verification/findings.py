"""The report of a verification, and its formats as text and JSON."""

from __future__ import annotations

import re
import warnings
from collections.abc import Sequence
from dataclasses import astuple, dataclass, replace

from sparklog.common.units import count, size_text
from sparklog.errors import Corrupt, SparklogError, one_line
from sparklog.format.checksums import flipped_bit
from sparklog.output import json_value

ROOT, LOG, CHAIN, CHECKPOINT, STATE = "root", "commit", "chain", "checkpoint", "state"
MISSING, SIZE, CHECKSUM, FOOTER, INDEX, CONTENT = "missing", "size", "checksum", "footer", "index", "content"
TRANSACTION, GUARANTEE = "transaction", "promise"
"""Kinds of findings. A finding in a journal, such as that of a group, has the `noun` of the `EntryKind` as its kind."""
RESTORE = "restore the file from a backup"
TWO_WINNERS = "if nobody changed the file, the store let two writers create it; check the store with sparklog doctor"
RESTORE_BOTH = f"one of the two files is wrong, so restore both; {TWO_WINNERS}"
_ADVICE = re.compile(r"[;:] (?:restore|delete|run sparklog)\b.*\Z")
"""Advice at the end of an error message. The advice is removed, because a finding contains a remedy."""


@dataclass(frozen=True, slots=True)
class Finding:
    """A problem that a verification found.

    Attributes:
        file: the key in the root, or the path relative to the Kafka directory.
        message: a description of the expected state and the actual state.
        remedy: the recommended action.
        position: the byte position in the file, if known.
        offset: the offset in the log, if known.
        bit: the bit of the byte at `position` that was flipped, if a single flipped bit explains the problem.
    """

    kind: str
    file: str
    message: str
    remedy: str = RESTORE
    position: int | None = None
    offset: int | None = None
    bit: int | None = None

    @classmethod
    def of(cls, kind: str, error: SparklogError, file: str, remedy: str = RESTORE) -> Finding:
        """Return the finding for an error that was raised when `file` was read."""
        if isinstance(error, Corrupt):
            message = _ADVICE.sub("", error.message)
            return cls(kind, error.file or file, message, remedy, error.position, error.offset)
        return cls(kind, file, str(error), remedy)

    def at_flipped_bit(self, start: int, nbytes: int, crc: int, expected: int) -> Finding | None:
        """Find the flipped bit that explains a wrong CRC of the `nbytes` bytes from `start`.

        Return the finding at this bit, or None if more than one bit is wrong.
        """
        flip = flipped_bit(nbytes, crc, expected)
        return None if flip is None else replace(self, position=start + flip[0], bit=flip[1])

    def __str__(self) -> str:
        bit = "" if self.bit is None else f", bit {self.bit} flipped"
        position = "" if self.position is None else f" at byte {self.position}{bit}"
        offset = "" if self.offset is None else f", offset {self.offset}"
        return one_line(f"{self.kind}: {self.file}{position}{offset}: {self.message}; {self.remedy}")


@dataclass(frozen=True, slots=True)
class UnreferencedFile:
    """An unreferenced file.

    Attributes:
        age_ms: the age of the file according to the store's clock.
        why: a possible reason why the file exists.
    """

    file: str
    nbytes: int
    age_ms: int
    why: str


@dataclass(frozen=True, slots=True)
class CheckCounts:
    """Numbers of checked objects. `entries` is the number of journal entries, for example of consumer groups and
    decisions.
    """

    topics: int = 0
    commits: int = 0
    checkpoints: int = 0
    entries: int = 0
    files: int = 0
    slices: int = 0
    batches: int = 0
    records: int = 0
    # offsets that are not in a slice, because they were compacted or aborted, or are missing in an imported log
    gaps: int = 0
    nbytes: int = 0

    def __add__(self, other: CheckCounts) -> CheckCounts:
        return CheckCounts(*map(sum, zip(astuple(self), astuple(other), strict=True)))


@dataclass(frozen=True, slots=True)
class Report:
    """The result of a verification.

    Attributes:
        quick: True if only the existence and size of data files were checked.
        unreferenced: unreferenced files of sparklog, or temporary files of Kafka.
        foreign: files whose names neither sparklog nor Kafka uses.
        notes: possible corruption that may also be normal behavior; notes do not affect `sound`.
    """

    location: str
    findings: tuple[Finding, ...]
    unreferenced: tuple[UnreferencedFile, ...]
    foreign: tuple[UnreferencedFile, ...]
    counts: CheckCounts
    quick: bool = False
    seconds: float = 0.0
    notes: tuple[Finding, ...] = ()

    @property
    def sound(self) -> bool:
        """True if there are no findings."""
        return not self.findings

    @property
    def orphans(self) -> tuple[UnreferencedFile, ...]:
        """Deprecated name of `unreferenced`."""
        warnings.warn("Report.orphans is deprecated: use Report.unreferenced", DeprecationWarning, stacklevel=2)
        return self.unreferenced


MAX_SHOWN_FILES = 20
"""Maximum number of unreferenced files in the text output. The JSON output contains all files."""
_UNITS = ((86_400_000, "d"), (3_600_000, "h"), (60_000, "min"), (1000, "s"))


def summary(report: Report) -> str:
    """Return the report as text: all findings, unreferenced files and notes, and the result in the last line."""
    problems = [str(finding) for finding in report.findings]
    files = [*_listed("unreferenced file", report.unreferenced), *_listed("unrecognized file", report.foreign)]
    notes = [f"possible corruption: {note}" for note in report.notes]
    return "\n".join([*problems, *files, *notes, _result_line(report)])


def _listed(noun: str, files: Sequence[UnreferencedFile]) -> list[str]:
    if not files:
        return []
    total = sum(file.nbytes for file in files)
    lines = [f"{count(len(files), noun)}, {size_text(total)}:"]
    oldest = sorted(files, key=lambda file: -file.age_ms)
    lines += [
        f"  {file.file}  {file.nbytes:,} bytes, {_age(file.age_ms)} old: {file.why}"
        for file in oldest[:MAX_SHOWN_FILES]
    ]
    if len(files) > MAX_SHOWN_FILES:
        lines.append(f"  and {len(files) - MAX_SHOWN_FILES:,} newer files (--json lists all)")
    return lines


def _result_line(report: Report) -> str:
    counts = report.counts
    parts = [
        *(count(counts.topics, "topic"), count(counts.commits, "commit"), count(counts.checkpoints, "checkpoint")),
        *(count(counts.entries, "entry", "entries"), count(counts.files, "file"), count(counts.slices, "slice")),
        *(count(counts.batches, "batch", "batches"), count(counts.records, "record")),
        *(f"{counts.nbytes:,} bytes", f"{count(counts.gaps, 'offset')} in gaps"),
    ]
    checked = ", ".join(part for part in parts if not part.startswith("0 "))
    speed = f"{report.seconds:.1f} s"
    if counts.nbytes > 10_000_000:
        speed += f", {size_text(round(counts.nbytes / max(report.seconds, 0.001)))}/s"
    if report.findings:
        files = len({finding.file for finding in report.findings})
        problems = count(len(report.findings), "problem")
        return f"DAMAGED: {problems} in {count(files, 'file')} of {report.location}; checked {checked} ({speed})"
    if report.quick:
        return f"all files exist, their contents were not read: {checked} ({speed})"
    return f"every byte accounted for: {checked} ({speed})"


def _age(ms: int) -> str:
    for unit, name in _UNITS:
        if ms >= unit:
            return f"{ms // unit:,} {name}"
    return f"{ms} ms"


def document(report: Report) -> dict[str, object]:
    """Return the report as a JSON object. Ages are in milliseconds and sizes in bytes."""
    return {
        "location": report.location,
        "sound": report.sound,
        "quick": report.quick,
        "seconds": round(report.seconds, 3),
        "counts": json_value(report.counts),
        "problems": json_value(report.findings),
        "orphans": json_value(report.unreferenced),
        "foreign": json_value(report.foreign),
        "notes": json_value(report.notes),
    }
