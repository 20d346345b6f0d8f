"""Objects of a log, each read and checked: damage named to the byte, gaps, what is missing, what no reader reaches.

Logs of entries (decisions of a transactional id, offsets of a group, leases of a job) are read whole here: every entry,
their chain, and every copy. Entries below the second newest copy may have been deleted, the oldest first; all others
must exist. A copy must equal its entry byte for byte. Each entry carries the whole state: a damaged one that is not the
newest loses its past alone. `topic_log` reads the log of a topic.

Numbers beyond a gap are named: a reader begins after the newest checkpoint and ends at the first number that is
missing. Objects beyond it are the rest of a log that lost objects, or were made by a process that outlived its root and
went on with its numbers.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice, pairwise
from typing import Generic, TypeVar

from sparklog.errors import NotFound
from sparklog.format.crc32c import crc32c
from sparklog.log.journal import names as naming
from sparklog.log.journal.chain import Numbers, list_numbers
from sparklog.log.journal.documents import EXPIRED_IDS, checksum_holds, document_of, following
from sparklog.log.journal.entry_log import E, EntryKind
from sparklog.log.journal.stored_object import StoredObject, read_object
from sparklog.storage.store import Store
from sparklog.tools.verification.findings import (
    CHAIN,
    CHECKPOINT,
    LOG,
    MISSING,
    RESTORE,
    RESTORE_BOTH,
    TWO_WINNERS,
    CheckCounts,
    Finding,
)

MOST_UNREACHED = 20
MOST_MISSING = 20
REMEDY = "build or restore what is missing before it, or delete it if a process that outlived a restored root made it"
DELETE_COPY = "delete the copy: the entries say the same"
T = TypeVar("T")


def log_end(numbers: Sequence[int], checkpoint: int) -> int:
    """Return the last of `numbers` (ascending) that readers reach, who begin after `checkpoint` (-1: there is none).

    All numbers count as reached where nothing is below the gap.
    """
    end = checkpoint
    for number in numbers:
        if number > end + 1:
            return end if end >= 0 else numbers[-1]
        end = max(end, number)
    return end


_TRAILER = re.compile(rb'crc":([0-9]{1,10})\}\n\Z')
_MARK = b',"crc":'


def damage_of(kind: str, stored: StoredObject[T]) -> list[Finding]:
    """Return the damage of an object as a finding, with the position of the damage as far as it can be told."""
    if stored.damage is None:
        return []
    finding = Finding.of(kind, stored.damage, stored.key)
    return [_placed(finding, stored.data) if stored.data else finding]


def _placed(finding: Finding, data: bytes) -> Finding:
    """Add the place of the damage, as well as it can be told."""
    document = document_of(data)
    if len(document) < len(data) and checksum_holds(document):
        return _placed_after(finding, document, data)
    data = document
    end = _TRAILER.search(data)
    cut = data.rfind(_MARK)
    if end is not None and cut >= 0 and cut + len(_MARK) == end.start(1):
        expected, crc = int(end[1]), crc32c(data[:cut])
        if crc == expected:
            return finding
        flipped = finding.at_flipped_bit(0, cut, crc, expected) if expected < 2**32 else None
        # Else a digit of the checksum itself, or more than one bit.
        left, right = str(expected), str(crc)
        one_digit = len(left) == len(right) and sum(a != b for a, b in zip(left, right, strict=True)) == 1
        return flipped or replace(finding, position=cut + len(_MARK) if one_digit else 0)
    odd = next((position for position, byte in enumerate(data[:-1]) if not 0x20 <= byte < 0x7F), None)
    # Nothing else is known to be odd: it is the checksum's own member, the last one.
    return replace(finding, position=odd if odd is not None else max(data.rfind(b","), 0))


def _placed_after(finding: Finding, document: bytes, data: bytes) -> Finding:
    """Add the place of damage to the part after a document that does not match its CRC-32C."""
    start, parts = len(document), following(json.loads(document))
    if len(data) == start + sum(nbytes for nbytes, _ in parts):
        for nbytes, expected in parts:
            crc = crc32c(data[start : start + nbytes])
            if crc != expected:
                return finding.at_flipped_bit(start, nbytes, crc, expected) or replace(finding, position=start)
            start += nbytes
    return finding


@dataclass(slots=True)
class CheckedLog:
    """A log that is read whole. `what` its objects are called, `kind` of their findings.

    `objects`: keys of the log, and of files, that are accounted for.
    """

    store: Store
    prefix: str
    what: str
    kind: str
    findings: list[Finding] = field(default_factory=list)
    counts: CheckCounts = field(default_factory=CheckCounts)
    objects: set[str] = field(default_factory=set)

    def report(self, kind: str, file: str, message: str, remedy: str = RESTORE) -> None:
        self.findings.append(Finding(kind, file, message, remedy))

    def take(
        self,
        key: str,
        number: int,
        decode: Callable[..., T],
        counts: CheckCounts,
        *,
        kind: str = "",
        remedy: str = RESTORE,
        accounted: bool = True,
    ) -> tuple[T | None, bytes]:
        """Read and check an object; return it (None: damaged) and its bytes. `kind`: of findings, if not the log's."""
        stored = read_object(self.store, key, decode, number)
        self.objects |= {key} if accounted else set()
        self.counts += replace(counts, nbytes=len(stored.data))
        self.findings += [replace(finding, remedy=remedy) for finding in damage_of(kind or self.kind, stored)]
        return stored.value, stored.data

    def find_obstacles(self) -> None:
        """Name what is no object and has the name of one: no listing shows it, and it stops who comes there."""
        for folder in (naming.log_folder(self.prefix), naming.checkpoint_prefix(self.prefix)):
            for name in self.store.obstacles(folder):
                if naming.entry_number(name) is not None:
                    expected = "expected a file or nothing, found a folder, a link or a special file"
                    message = f"{expected}: no {self.what} can be written under this name"
                    self.report(self.kind, folder + name, message, "move it away")

    def find_unreached(self, numbers: Iterable[int], end: int) -> None:
        """Name objects beyond the end of the log. `NotFound` if the gap was one of the listing alone: list again."""
        what, beyond = self.what, [number for number in numbers if number > end]
        if beyond and self.store.stat(naming.commit_key(self.prefix, end + 1)) is not None:
            raise NotFound(f"{what} {end + 1} came to be while the log was listed")
        for number in beyond[:MOST_UNREACHED]:
            gap = f"beyond a gap: {what} {end + 1} is not there, and readers and writers refuse to go on"
            self.report(LOG, naming.commit_key(self.prefix, number), f"{what} {number} is {gap}", REMEDY)

    def find_missing(self, first: int, end: int, existing: Iterable[int], remedy: str = RESTORE) -> None:
        """Name objects from `first` up to `end` (not itself) that no collection deletes, and that are missing."""
        inside = sorted(number for number in {*existing} if first <= number < end)
        # Numbers are names: one that is far away makes a gap too long to be listed.
        gaps = (number for low, high in pairwise([first - 1, *inside, end]) for number in range(low + 1, high))
        for number in islice(gaps, MOST_MISSING):
            key = naming.commit_key(self.prefix, number)
            self.report(MISSING, key, f"{self.what} {number} is not there, and later ones are", remedy)

    def follows(self, number: int, prev_crc: int | None, crc: int | None) -> bool:
        """True if an object names the CRC of the one before, as far as that is known; else it is a finding."""
        if crc is None or prev_crc == crc:
            return True
        broken = f"the chain is broken: {self.what} {number} was made after one with CRC-32C {prev_crc}"
        self.report(CHAIN, naming.commit_key(self.prefix, number - 1), f"{broken}, this one has {crc}", RESTORE_BOTH)
        return False


C = TypeVar("C", bound=CheckedLog)


def read_again(read: Callable[[], C], unread: C) -> C:
    """Read a log, again if objects are deleted meanwhile; `unread`: the result if that goes on."""
    gone: NotFound | None = None
    for _ in range(unread.store.limits.verify_tries):
        try:
            return read()
        except NotFound as error:
            gone = error
    unread.report(
        MISSING, naming.log_folder(unread.prefix).rstrip("/"), f"objects of the log are listed and not there: {gone}"
    )
    return unread


@dataclass(slots=True)
class CheckedEntries(CheckedLog, Generic[E]):
    """A log of entries. `newest`: its newest entry; None: none can be read."""

    newest: E | None = None


def read_entries(store: Store, kind: EntryKind[E], folder: str) -> CheckedEntries[E]:
    """Read the log in `folder` whole, again if objects are deleted meanwhile."""

    def empty() -> CheckedEntries[E]:
        return CheckedEntries(store, f"{kind.folder}/{folder}", "entry", kind.noun)

    return read_again(lambda: _read(empty(), kind, folder), empty())


def _read(log: CheckedEntries[E], kind: EntryKind[E], folder: str) -> CheckedEntries[E]:
    log.find_obstacles()
    numbers = list_numbers(log.store, log.prefix)
    entries, copies = numbers.entries, numbers.copies
    if not entries and not copies:
        return log
    end = log_end(entries, copies[-1] if copies else -1)
    log.find_unreached(entries, end)
    decode = partial(kind.decode_in, log.prefix)
    _check_copies(log, copies, decode, _check_entries(log, numbers, decode, end))
    log.find_missing(_first_needed(numbers, log.newest), max([*entries, *copies]) + 1, entries)
    return log


def _check_entries(log: CheckedEntries[E], numbers: Numbers, decode: Callable[..., E], end: int) -> dict[int, bytes]:
    """Check all entries and their chain; return the bytes of those that have copies."""
    stored: dict[int, bytes] = {}
    before, crc = -1, None
    for number in numbers.entries:
        entry, data = log.take(naming.commit_key(log.prefix, number), number, decode, CheckCounts(entries=1))
        if entry is not None:
            log.follows(number, entry.prev_crc, crc if number == before + 1 else None)
            log.newest = entry if number <= end else log.newest
        before, crc = number, None if entry is None else entry.crc
        if number in numbers.copies:
            stored[number] = data
    return stored


def _check_copies(
    log: CheckedEntries[E], copies: Sequence[int], decode: Callable[..., E], stored: Mapping[int, bytes]
) -> None:
    """Check all copies, and compare them with their entries (`stored`)."""
    for number in copies:
        key, counts = naming.checkpoint_key(log.prefix, number), CheckCounts(checkpoints=1)
        remedy = DELETE_COPY if number in stored else RESTORE
        entry, data = log.take(key, number, decode, counts, kind=CHECKPOINT, remedy=remedy)
        if entry is not None and number in stored and stored[number] != data:
            log.report(CHECKPOINT, key, f"the copy is not what entry {number} says", f"{DELETE_COPY}; {TWO_WINNERS}")
        if entry is not None and (log.newest is None or log.newest.number < number):
            log.newest = entry


def _first_needed(numbers: Numbers, newest: E | None) -> int:
    """Return the first entry that no collection may have deleted."""
    first = numbers.copies[-2] if len(numbers.copies) > 1 else 0
    if newest is not None and EXPIRED_IDS in newest.read_features:
        # What came before an id expired is deleted; the id continues with the number after it.
        return max(first, numbers.copies[-1] + 1 if numbers.copies else numbers.entries[0])
    return first
