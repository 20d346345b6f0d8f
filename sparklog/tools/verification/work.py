"""One data file, every byte of it: an append file by its footer and by what versions say, a segment by that alone.

| bytes                               | are right if                                                                  |
|-------------------------------------|-------------------------------------------------------------------------------|
| a slice                             | its CRC-32C, which commits and footer agree on, holds                         |
| footer                              | its CRC-32C holds; its slices fill the file; its index is that of the batches |
| `.index`, `.timeindex`, `.txnindex` | the CRC-32C in the commit holds; their entries name batches                   |

A footer also tells of slices that no version names any more: they are checked as well. What is read is then decoded:
batches' own checksums, offsets, counts, times.

Files to verify as pieces of work, so that a Spark job can spread them over tasks; findings come back as a value.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from sparklog.errors import NotFound
from sparklog.log.state.commit import MAINTAIN
from sparklog.maintenance.work import Done, silent
from sparklog.storage.store import Store
from sparklog.tools.verification.append_file import check_append_file
from sparklog.tools.verification.findings import SIZE, Counts, Finding
from sparklog.tools.verification.reading import Checked, CutOff, DataFile, Progress
from sparklog.tools.verification.sealed_segment import check_segment

MOST_FINDINGS = 100
"""Of one file: beyond, it is not the single places that matter."""


def check_file(store: Store, file: DataFile, progress: Progress) -> Checked:
    """Read a file whole and hold it against all that is said of it."""
    checked = Checked(file)
    try:
        if file.sealed:
            check_segment(store, file, checked, progress)
        else:
            check_append_file(store, file, checked, progress)
    except NotFound:
        checked.gone = checked.gone or file.key
        checked.findings.clear()
    except CutOff as cut:
        checked.findings.append(
            Finding(SIZE, file.key, f"expected {file.size} bytes, found {cut.found}", position=cut.found)
        )
    del checked.findings[MOST_FINDINGS:]
    return checked


PIECE_BYTES = 256 << 20
"""A second or two of one core's work, far more than a task costs."""
PIECE_FILES = 1000


@dataclass(frozen=True)
class Verified(Done):
    """What a piece found; `gone`: files that are not there, for the driver to look whether they still should be."""

    findings: tuple[Finding, ...] = ()
    counts: Counts = field(default_factory=Counts)
    gone: tuple[str, ...] = ()


@dataclass(frozen=True)
class VerifyWork:
    """Reads these files of one topic whole."""

    store: Store
    topic: str
    topic_id: str
    files: tuple[DataFile, ...]
    op: str = MAINTAIN
    partitions: tuple[int, ...] = ()

    @property
    def title(self) -> str:
        return f"verify {self.topic}"

    @property
    def nbytes(self) -> int:
        return sum(file.size for file in self.files)

    def run(self, progress: Progress = silent) -> Verified:
        """Read them. Never raises for damage: that is what is asked for."""
        findings: list[Finding] = []
        counts = Counts()
        gone: list[str] = []
        for file in self.files:
            checked = check_file(self.store, file, progress)
            findings += checked.findings
            counts += checked.counts
            if checked.gone is not None:
                gone.append(file.key)
        return Verified((), (), (), tuple(findings), counts, tuple(gone))


def pieces(store: Store, topic: str, topic_id: str, files: Sequence[DataFile]) -> Iterator[VerifyWork]:
    """The files in pieces of about `PIECE_BYTES`, as they lie in the topic's folder."""
    piece: list[DataFile] = []
    nbytes = 0
    for file in files:
        if piece and (nbytes + file.size > PIECE_BYTES or len(piece) >= PIECE_FILES):
            yield VerifyWork(store, topic, topic_id, tuple(piece))
            piece, nbytes = [], 0
        piece.append(file)
        nbytes += file.size
    if piece:
        yield VerifyWork(store, topic, topic_id, tuple(piece))
