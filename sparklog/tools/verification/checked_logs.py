"""Read all objects of a log and report damage, with its position, gaps, missing objects and unreachable objects.

This module checks journals whose entries contain the complete state (decisions of a transactional id, offsets of a
group, leases of a job): every entry, the chain of entries, and every copy of an entry. Entries below the second latest
copy may have been deleted, the oldest first; all other entries must exist. A copy must equal its entry byte for byte.
If an entry that is not the latest is damaged, only past states are lost. `topic_log` checks the log of a topic.

Readers start after the latest checkpoint and stop at the first missing number, so objects beyond a gap are reported.
They are the rest of a log that lost objects, or were written by a process that outlived its root and continued with the
old numbers.
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

MAX_UNREACHABLE = 20
MAX_MISSING = 20
BEYOND_GAP = (
    "rebuild or restore the missing objects before it, or delete it if a process that outlived a restored root wrote it"
)
DELETE_COPY = "delete the copy: readers can use the entries"
T = TypeVar("T")


def log_end(numbers: Sequence[int], checkpoint: int) -> int:
    """Return the last of `numbers` (ascending) that readers reach.

    Readers start after `checkpoint`, -1 if there is none. If no number is below the first gap, return the last number.
    """
    end = checkpoint
    for number in numbers:
        if number > end + 1:
            return end if end >= 0 else numbers[-1]
        end = max(end, number)
    return end


_TRAILER = re.compile(rb'crc":([0-9]{1,10})\}\n\Z')
_CRC_FIELD = b',"crc":'


def findings_of(kind: str, stored: StoredObject[T]) -> list[Finding]:
    """Return the damage of an object as a finding, with the position of the damage if it can be determined."""
    if stored.damage is None:
        return []
    finding = Finding.of(kind, stored.damage, stored.key)
    return [_located(finding, stored.data) if stored.data else finding]


def _located(finding: Finding, data: bytes) -> Finding:
    """Return the finding with the most likely position of the damage."""
    document = document_of(data)
    if len(document) < len(data) and checksum_holds(document):
        return _located_after_document(finding, document, data)
    end = _TRAILER.search(document)
    crc_field = document.rfind(_CRC_FIELD)
    if end is not None and crc_field >= 0 and crc_field + len(_CRC_FIELD) == end.start(1):
        expected, crc = int(end[1]), crc32c(document[:crc_field])
        if crc == expected:
            return finding
        flipped = finding.at_flipped_bit(0, crc_field, crc, expected) if expected < 2**32 else None
        # Otherwise a digit of the checksum itself is wrong, or more than one bit.
        left, right = str(expected), str(crc)
        one_digit = len(left) == len(right) and sum(a != b for a, b in zip(left, right, strict=True)) == 1
        return flipped or replace(finding, position=crc_field + len(_CRC_FIELD) if one_digit else 0)
    unprintable = (position for position, byte in enumerate(document[:-1]) if not 0x20 <= byte < 0x7F)
    # If all bytes are printable, the checksum field, which is last, must be damaged.
    return replace(finding, position=next(unprintable, max(document.rfind(b","), 0)))


def _located_after_document(finding: Finding, document: bytes, data: bytes) -> Finding:
    """Return the finding at the part after an intact document that does not match its CRC-32C."""
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
    """A log of which all objects are read.

    Attributes:
        what: the noun for its objects in messages.
        kind: the kind of findings about its objects.
        objects: keys of the log, and of data files, that are known to belong to it.
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

    def read(
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
        """Read and check an object; return it, or None if it is damaged, and its bytes.

        `kind` is the kind of findings if it differs from that of the log.
        """
        stored = read_object(self.store, key, decode, number)
        self.objects |= {key} if accounted else set()
        self.counts += replace(counts, nbytes=len(stored.data))
        self.findings += [replace(finding, remedy=remedy) for finding in findings_of(kind or self.kind, stored)]
        return stored.value, stored.data

    def find_obstacles(self) -> None:
        """Report directories, links and special files with the name of an object, which prevent writing it.

        Listings do not show them.
        """
        for folder in (naming.log_folder(self.prefix), naming.checkpoint_prefix(self.prefix)):
            for name in self.store.obstacles(folder):
                if naming.entry_number(name) is not None:
                    expected = "expected a file or nothing, found a directory, a link or a special file"
                    message = f"{expected}: no {self.what} can be written under this name"
                    self.report(self.kind, folder + name, message, "move it away")

    def find_unreachable(self, numbers: Iterable[int], end: int) -> None:
        """Report objects beyond the end of the log. Raises `NotFound` if the listing was outdated: list again."""
        what, beyond = self.what, [number for number in numbers if number > end]
        if beyond and self.store.stat(naming.commit_key(self.prefix, end + 1)) is not None:
            raise NotFound(f"{what} {end + 1} was written while the log was listed")
        for number in beyond[:MAX_UNREACHABLE]:
            message = f"{what} {number} is beyond a gap: {what} {end + 1} is missing, so readers and writers stop there"
            self.report(LOG, naming.commit_key(self.prefix, number), message, BEYOND_GAP)

    def find_missing(self, first: int, end: int, existing: Iterable[int], remedy: str = RESTORE) -> None:
        """Report missing objects in `[first, end)`, where none may have been deleted."""
        inside = sorted(number for number in {*existing} if first <= number < end)
        # A corrupt file name can have a huge number, so do not list all numbers of a gap.
        gaps = (number for low, high in pairwise([first - 1, *inside, end]) for number in range(low + 1, high))
        for number in islice(gaps, MAX_MISSING):
            key = naming.commit_key(self.prefix, number)
            self.report(MISSING, key, f"{self.what} {number} is missing, but later ones exist", remedy)

    def follows(self, number: int, prev_crc: int | None, crc: int | None) -> bool:
        """Return True if an object contains the CRC of its predecessor or that is unknown; otherwise report it."""
        if crc is None or prev_crc == crc:
            return True
        message = f"the chain is broken: {self.what} {number} follows one with CRC-32C {prev_crc}, this one has {crc}"
        self.report(CHAIN, naming.commit_key(self.prefix, number - 1), message, RESTORE_BOTH)
        return False


C = TypeVar("C", bound=CheckedLog)


def read_again(read: Callable[[], C], unread: C) -> C:
    """Read a log, again if objects are deleted in the meantime; return `unread` if that happens each time."""
    deleted: NotFound | None = None
    for _ in range(unread.store.limits.verify_tries):
        try:
            return read()
        except NotFound as error:
            deleted = error
    message = f"objects of the log are listed but do not exist: {deleted}"
    unread.report(MISSING, naming.log_folder(unread.prefix).rstrip("/"), message)
    return unread


@dataclass(slots=True)
class CheckedEntries(CheckedLog, Generic[E]):
    """A journal of entries; `latest` is its latest entry, None if no entry can be read."""

    latest: E | None = None


def read_entries(store: Store, kind: EntryKind[E], folder: str) -> CheckedEntries[E]:
    """Read all of the journal in `folder`, again if objects are deleted in the meantime."""

    def empty() -> CheckedEntries[E]:
        return CheckedEntries(store, f"{kind.folder}/{folder}", "entry", kind.noun)

    return read_again(lambda: _read(empty(), kind), empty())


def _read(log: CheckedEntries[E], kind: EntryKind[E]) -> CheckedEntries[E]:
    log.find_obstacles()
    numbers = list_numbers(log.store, log.prefix)
    entries, copies = numbers.entries, numbers.copies
    if not entries and not copies:
        return log
    end = log_end(entries, copies[-1] if copies else -1)
    log.find_unreachable(entries, end)
    decode = partial(kind.decode_in, log.prefix)
    _check_copies(log, copies, decode, _check_entries(log, numbers, decode, end))
    log.find_missing(_first_needed(numbers, log.latest), max([*entries, *copies]) + 1, entries)
    return log


def _check_entries(log: CheckedEntries[E], numbers: Numbers, decode: Callable[..., E], end: int) -> dict[int, bytes]:
    """Check all entries and their chain; return the bytes of those that have copies."""
    stored: dict[int, bytes] = {}
    before, crc = -1, None
    for number in numbers.entries:
        entry, data = log.read(naming.commit_key(log.prefix, number), number, decode, CheckCounts(entries=1))
        if entry is not None:
            log.follows(number, entry.prev_crc, crc if number == before + 1 else None)
            log.latest = entry if number <= end else log.latest
        before, crc = number, None if entry is None else entry.crc
        if number in numbers.copies:
            stored[number] = data
    return stored


def _check_copies(
    log: CheckedEntries[E], copies: Sequence[int], decode: Callable[..., E], stored: Mapping[int, bytes]
) -> None:
    """Check all copies, and compare them with the bytes of their entries in `stored`."""
    for number in copies:
        key, counts = naming.checkpoint_key(log.prefix, number), CheckCounts(checkpoints=1)
        remedy = DELETE_COPY if number in stored else RESTORE
        entry, data = log.read(key, number, decode, counts, kind=CHECKPOINT, remedy=remedy)
        if entry is not None and number in stored and stored[number] != data:
            log.report(CHECKPOINT, key, f"the copy differs from entry {number}", f"{DELETE_COPY}; {TWO_WINNERS}")
        if entry is not None and (log.latest is None or log.latest.number < number):
            log.latest = entry


def _first_needed(numbers: Numbers, latest: E | None) -> int:
    """Return the first entry that cannot have been deleted by cleanup."""
    first = numbers.copies[-2] if len(numbers.copies) > 1 else 0
    if latest is not None and EXPIRED_IDS in latest.read_features:
        # Entries from before the id expired are deleted; the id continues with the next number.
        return max(first, numbers.copies[-1] + 1 if numbers.copies else numbers.entries[0])
    return first
