"""Report of a verification: damage, unreferenced files and counts, as data, for people and as JSON."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import astuple, dataclass, replace

from sparklog.common.units import count, size_text
from sparklog.errors import Corrupt, SparklogError, one_line
from sparklog.format.checksums import flipped_bit
from sparklog.output import json_value

ROOT, LOG, CHAIN, CHECKPOINT, STATE = "root", "commit", "chain", "checkpoint", "state"
MISSING, SIZE, CHECKSUM, FOOTER, INDEX, CONTENT = "missing", "size", "checksum", "footer", "index", "content"
TRANSACTION, PROMISE = "transaction", "promise"
"""Kinds of findings; those of the journals of groups, decisions and others are the `noun` of their `EntryKind`."""
RESTORE = "restore the file from a backup"
TWO_WINNERS = "if it was not changed, the store told two that they had created it: sparklog doctor tries that"
RESTORE_BOTH = f"one of the two is another one's: restore both; {TWO_WINNERS}"
_ADVICE = re.compile(r"[;:] (?:restore|delete|run sparklog)\b.*\Z")
"""Advice at the end of an error's message: here the remedy takes its place."""


@dataclass(frozen=True, slots=True)
class Finding:
    """Damage of one place. `message`: expected and found; `remedy`: what to do.

    `file` is a key of the root (of a Kafka directory: a path below it); `position` counts bytes in it and `offset` is
    one of the log, where they make sense. `bit`: the one bit whose flip explains all, at `position`.
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
        """From an error that reading `file` raised."""
        if isinstance(error, Corrupt):
            message = _ADVICE.sub("", error.message)
            return cls(kind, error.file or file, message, remedy, error.position, error.offset)
        return cls(kind, file, str(error), remedy)

    def at_flipped_bit(self, start: int, nbytes: int, crc: int, expected: int) -> Finding | None:
        """Return the finding at the one bit of `nbytes` bytes from `start` that explains a wrong CRC, or None."""
        flip = flipped_bit(nbytes, crc, expected)
        return None if flip is None else replace(self, position=start + flip[0], bit=flip[1])

    def __str__(self) -> str:
        bit = "" if self.bit is None else f", bit {self.bit} flipped"
        place = "" if self.position is None else f" at byte {self.position}{bit}"
        offset = "" if self.offset is None else f", offset {self.offset}"
        return one_line(f"{self.kind}: {self.file}{place}{offset}: {self.message}; {self.remedy}")


@dataclass(frozen=True, slots=True)
class Orphan:
    """An unreferenced file; `age_ms` by the store's clock. `why`: what it may be."""

    file: str
    nbytes: int
    age_ms: int
    why: str


@dataclass(frozen=True, slots=True)
class CheckCounts:
    """Number of things that were checked. `entries`: of the logs of transactional ids and groups."""

    topics: int = 0
    commits: int = 0
    checkpoints: int = 0
    entries: int = 0
    files: int = 0
    slices: int = 0
    batches: int = 0
    records: int = 0
    gaps: int = 0  # offsets between slices: compacted, aborted, or never there in what was imported
    nbytes: int = 0

    def __add__(self, other: CheckCounts) -> CheckCounts:
        return CheckCounts(*map(sum, zip(astuple(self), astuple(other), strict=True)))


@dataclass(frozen=True, slots=True)
class Report:
    """The outcome. `quick`: files were not opened, only counted and measured.

    `notes`: possible damage, where no file tells; a report with notes alone is sound.
    """

    location: str
    findings: tuple[Finding, ...]
    orphans: tuple[Orphan, ...]
    foreign: tuple[Orphan, ...]
    counts: CheckCounts
    quick: bool = False
    seconds: float = 0.0
    notes: tuple[Finding, ...] = ()

    @property
    def sound(self) -> bool:
        """True if nothing is damaged."""
        return not self.findings


SHOWN = 20  # unreferenced files shown by name; the JSON has all
_UNITS = ((86_400_000, "d"), (3_600_000, "h"), (60_000, "min"), (1000, "s"))


def summary(report: Report) -> str:
    """Return problems one by one, then unreferenced files, then the verdict in one line."""
    problems = [str(finding) for finding in report.findings]
    files = [*_listed("unreferenced", report.orphans), *_listed("not sparklog's", report.foreign)]
    notes = [f"no damage by itself: {note}" for note in report.notes]
    return "\n".join([*problems, *files, *notes, _verdict(report)])


def _listed(what: str, files: Sequence[Orphan]) -> list[str]:
    if not files:
        return []
    total = sum(file.nbytes for file in files)
    lines = [f"{count(len(files), 'file')} {what}, {size_text(total)}:"]
    oldest = sorted(files, key=lambda file: -file.age_ms)
    lines += [f"  {file.file}  {file.nbytes:,} bytes, {_age(file.age_ms)} old: {file.why}" for file in oldest[:SHOWN]]
    if len(files) > SHOWN:
        lines.append(f"  and {len(files) - SHOWN:,} younger ones (--json lists all)")
    return lines


def _verdict(report: Report) -> str:
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
        return f"DAMAGED: {problems} in {count(files, 'file')} of {report.location}; looked at {checked} ({speed})"
    if report.quick:
        return f"every file is there, none was opened: {checked} ({speed})"
    return f"every byte accounted for: {checked} ({speed})"


def _age(ms: int) -> str:
    for unit, name in _UNITS:
        if ms >= unit:
            return f"{ms // unit:,} {name}"
    return f"{ms} ms"


def document(report: Report) -> dict[str, object]:
    """Return the report as one JSON object; ages in ms, sizes in bytes."""
    return {
        "location": report.location,
        "sound": report.sound,
        "quick": report.quick,
        "seconds": round(report.seconds, 3),
        "counts": json_value(report.counts),
        "problems": json_value(report.findings),
        "orphans": json_value(report.orphans),
        "foreign": json_value(report.foreign),
        "notes": json_value(report.notes),
    }
