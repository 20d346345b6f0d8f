"""What a verification finds, as data: damage, files that nobody names, and how much was looked at.

What a verification found, for people and as JSON.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import astuple, dataclass, fields

from sparklog.errors import Corrupt, SparklogError
from sparklog.maintenance.output import megabytes

ROOT = "root"
LOG = "commit"
CHAIN = "chain"
CHECKPOINT = "checkpoint"
STATE = "state"
MISSING = "missing"
SIZE = "size"
CHECKSUM = "checksum"
FOOTER = "footer"
INDEX = "index"
CONTENT = "content"
DECISION = "decision"
GROUP = "group"
TRANSACTION = "transaction"
KINDS = (
    *(ROOT, LOG, CHAIN, CHECKPOINT, STATE, MISSING, SIZE, CHECKSUM, FOOTER, INDEX, CONTENT),
    *(DECISION, GROUP, TRANSACTION),
)

RESTORE = "restore the file from a backup"
_ADVICE = re.compile(r"[;:] (?:restore|delete|rebuild)\b.*\Z")
"""What an error tells its reader to do: here it is the remedy."""


@dataclass(frozen=True, slots=True)
class Finding:
    """Damage. `kind` is one of `KINDS`, `message` says what was expected and found, `remedy` what to do.

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

    def __str__(self) -> str:
        bit = "" if self.bit is None else f", bit {self.bit} flipped"
        place = "" if self.position is None else f" at byte {self.position}{bit}"
        offset = "" if self.offset is None else f", offset {self.offset}"
        return f"{self.kind}: {self.file}{place}{offset}: {self.message}; {self.remedy}"


@dataclass(frozen=True, slots=True)
class Orphan:
    """An object that nobody names; `size` in bytes, `age_ms` by the store's clock. `why`: what it may be."""

    file: str
    size: int
    age_ms: int
    why: str


@dataclass(frozen=True, slots=True)
class Counts:
    """How much was looked at and found right. `entries`: of the logs of transactional ids and groups."""

    topics: int = 0
    commits: int = 0
    checkpoints: int = 0
    entries: int = 0
    files: int = 0
    slices: int = 0
    batches: int = 0
    records: int = 0
    gaps: int = 0
    """Offsets between slices that hold nothing: compacted, aborted, or never there in what was imported."""
    nbytes: int = 0

    def __add__(self, other: Counts) -> Counts:
        return Counts(*map(sum, zip(astuple(self), astuple(other), strict=True)))

    def document(self) -> dict[str, int]:
        """For JSON."""
        return {("bytes" if each.name == "nbytes" else each.name): getattr(self, each.name) for each in fields(self)}


@dataclass(frozen=True, slots=True)
class Report:
    """The outcome. `quick`: files were not opened, only counted and measured.

    `notes`: what may be damage, where no file tells; a report with notes alone is sound.
    """

    location: str
    findings: tuple[Finding, ...]
    orphans: tuple[Orphan, ...]
    foreign: tuple[Orphan, ...]
    counts: Counts
    quick: bool = False
    seconds: float = 0.0
    notes: tuple[Finding, ...] = ()

    @property
    def sound(self) -> bool:
        """Whether nothing is damaged."""
        return not self.findings


SHOWN = 20
"""Orphans shown by name; the JSON has all."""
_UNITS = ((86_400_000, "d"), (3_600_000, "h"), (60_000, "min"), (1000, "s"))


def summary(report: Report) -> str:
    """Problems one by one, then what nobody names, then the one line that says it all."""
    lines = [str(finding) for finding in report.findings]
    lines += _listed("named by nobody", report.orphans)
    lines += _listed("not sparklog's", report.foreign)
    lines += [f"no damage by itself: {note}" for note in report.notes]
    lines.append(_verdict(report))
    return "\n".join(lines)


def _listed(what: str, found: Sequence[Orphan]) -> list[str]:
    if not found:
        return []
    total = sum(each.size for each in found)
    lines = [f"{_count(len(found), 'file')} {what}, {megabytes(total)}:"]
    oldest = sorted(found, key=lambda each: -each.age_ms)
    lines += [f"  {each.file}  {each.size:,} bytes, {_age(each.age_ms)} old: {each.why}" for each in oldest[:SHOWN]]
    if len(found) > SHOWN:
        lines.append(f"  and {len(found) - SHOWN:,} younger ones (--json lists all)")
    return lines


def _verdict(report: Report) -> str:
    counts = report.counts
    parts = [
        _count(counts.topics, "topic"),
        _count(counts.commits, "commit"),
        _count(counts.checkpoints, "checkpoint"),
        _count(counts.entries, "entry", "entries"),
        _count(counts.files, "file"),
        _count(counts.slices, "slice"),
    ]
    if not report.quick:
        parts += [_count(counts.batches, "batch", "batches"), _count(counts.records, "record")]
    parts.append(f"{counts.nbytes:,} bytes")
    if counts.gaps:
        parts.append(f"{_count(counts.gaps, 'offset')} in gaps")
    looked = ", ".join(part for part in parts if not part.startswith("0 "))
    speed = f"{report.seconds:.1f} s"
    if counts.nbytes > 10_000_000:
        speed += f", {megabytes(round(counts.nbytes / max(report.seconds, 0.001)))}/s"
    if report.findings:
        files = len({finding.file for finding in report.findings})
        problems = _count(len(report.findings), "problem")
        return f"DAMAGED: {problems} in {_count(files, 'file')} of {report.location}; looked at {looked} ({speed})"
    if report.quick:
        return f"every file is there, none was opened: {looked} ({speed})"
    return f"every byte accounted for: {looked} ({speed})"


def _count(number: int, one: str, many: str = "") -> str:
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def _age(ms: int) -> str:
    for unit, name in _UNITS:
        if ms >= unit:
            return f"{ms // unit:,} {name}"
    return f"{ms} ms"


def document(report: Report) -> dict[str, object]:
    """The same as one JSON object; ages in ms, sizes in bytes."""
    return {
        "location": report.location,
        "sound": report.sound,
        "quick": report.quick,
        "seconds": round(report.seconds, 3),
        "counts": report.counts.document(),
        "problems": [_finding_document(finding) for finding in report.findings],
        "orphans": [_orphan_document(each) for each in report.orphans],
        "foreign": [_orphan_document(each) for each in report.foreign],
        "notes": [_finding_document(note) for note in report.notes],
    }


def _finding_document(finding: Finding) -> dict[str, object]:
    return {
        "kind": finding.kind,
        "file": finding.file,
        "position": finding.position,
        "bit": finding.bit,
        "offset": finding.offset,
        "message": finding.message,
        "remedy": finding.remedy,
    }


def _orphan_document(each: Orphan) -> dict[str, object]:
    return {"file": each.file, "bytes": each.size, "ageMs": each.age_ms, "why": each.why}
