"""What a verification finds, as data: damage, files that nobody names, and how much was looked at."""

from __future__ import annotations

import re
from dataclasses import astuple, dataclass, fields

from sparklog.errors import Corrupt, SparklogError


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
