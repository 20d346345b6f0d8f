"""Read all objects of a log and report corrupt, missing and unreachable objects.

This module checks journals whose entries contain the complete state: the decisions of a transactional id, the offsets
of a group or the leases of a job. It checks every entry, the chain of entries, and every copy of an entry. The cleanup
deletes entries below the second latest copy, starting with the oldest entry. All other entries must exist. The bytes of
a copy must be equal to the bytes of its entry. If an entry other than the latest is damaged, only past states are lost.
The module `topic_log` checks the log of a topic.

Readers start after the latest checkpoint and stop at the first missing number, so they cannot reach objects beyond a
gap. Objects beyond a gap are reported. Either the log has lost objects, or a process was running while its root was
restored, and continued with the old numbers.
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
    "rebuild or restore the missing objects before this object; delete this object if it was written by a "
    "process that still had the root open after the root was restored"
)
DELETE_COPY = "delete the copy; readers can use the entries"
T = TypeVar("T")


def log_end(numbers: Sequence[int], checkpoint: int) -> int:
    """Return the last number in `numbers` (ascending) that readers can reach.

    Readers start after `checkpoint`, which is -1 if there is no checkpoint. If all numbers are beyond the first gap,
    return the last number.
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
    """Return a finding if an object is corrupt, with the position of the damage if the position can be determined."""
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
        # A digit of the checksum may be damaged. Otherwise more than one bit is wrong.
        left, right = str(expected), str(crc)
        one_digit = len(left) == len(right) and sum(a != b for a, b in zip(left, right, strict=True)) == 1
        return flipped or replace(finding, position=crc_field + len(_CRC_FIELD) if one_digit else 0)
    unprintable = (position for position, byte in enumerate(document[:-1]) if not 0x20 <= byte < 0x7F)
    # If all bytes are printable, the checksum field at the end of the document must be damaged.
    return replace(finding, position=next(unprintable, max(document.rfind(b","), 0)))


def _located_after_document(finding: Finding, document: bytes, data: bytes) -> Finding:
    """Return the finding for the first part that does not match its CRC-32C.

    The document before the parts is intact.
    """
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
    """A log that is being checked. All of its objects are read.

    Attributes:
        what: the noun for an object of the log in messages.
        kind: the kind of findings about objects of the log.
        objects: the keys of all objects and data files that are known to belong to the log.
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
        """Read and check an object. Return the decoded object, which is None if the object is damaged, and its bytes.

        `kind` overrides the log's kind of findings.
        """
        stored = read_object(self.store, key, decode, number)
        self.objects |= {key} if accounted else set()
        self.counts += replace(counts, nbytes=len(stored.data))
        self.findings += [replace(finding, remedy=remedy) for finding in findings_of(kind or self.kind, stored)]
        return stored.value, stored.data

    def find_obstacles(self) -> None:
        """Report directories, links and special files that have the name of an object and prevent creating the object.

        Listings do not contain these files.
        """
        for folder in (naming.log_folder(self.prefix), naming.checkpoint_prefix(self.prefix)):
            for name in self.store.obstacles(folder):
                if naming.entry_number(name) is not None:
                    found = "found a directory, a link or a special file"
                    message = f"{found}, so no {self.what} with this name can be written"
                    self.report(self.kind, folder + name, message, "move the file away")

    def find_unreachable(self, numbers: Iterable[int], end: int) -> None:
        """Report objects beyond the end of the log.

        Raises `NotFound` if the listing is outdated, so that the caller lists the log again.
        """
        what, beyond = self.what, [number for number in numbers if number > end]
        if beyond and self.store.stat(naming.commit_key(self.prefix, end + 1)) is not None:
            raise NotFound(f"{what} {end + 1} was written while the log was listed")
        for number in beyond[:MAX_UNREACHABLE]:
            message = (
                f"{what} {number} is beyond a gap: {what} {end + 1} is missing, and readers and writers stop at the gap"
            )
            self.report(LOG, naming.commit_key(self.prefix, number), message, BEYOND_GAP)

    def find_missing(self, first: int, end: int, existing: Iterable[int], remedy: str = RESTORE) -> None:
        """Report missing objects in the range `[first, end)`, in which the cleanup does not delete objects."""
        inside = sorted(number for number in {*existing} if first <= number < end)
        # A corrupt file name can contain a huge number, so do not create a list of all numbers in a gap.
        gaps = (number for low, high in pairwise([first - 1, *inside, end]) for number in range(low + 1, high))
        for number in islice(gaps, MAX_MISSING):
            key = naming.commit_key(self.prefix, number)
            self.report(MISSING, key, f"{self.what} {number} is missing, but a later {self.what} exists", remedy)

    def follows(self, number: int, prev_crc: int | None, crc: int | None) -> bool:
        """Check that an object contains the CRC of its predecessor. Report a mismatch and return False.

        If the CRC of the predecessor is unknown, return True.
        """
        if crc is None or prev_crc == crc:
            return True
        message = f"the chain is broken: {self.what} {number} expects CRC-32C {prev_crc} here, found {crc}"
        self.report(CHAIN, naming.commit_key(self.prefix, number - 1), message, RESTORE_BOTH)
        return False


C = TypeVar("C", bound=CheckedLog)


def read_again(read: Callable[[], C], unread: C) -> C:
    """Read a log, and read it again if objects are deleted during the read.

    If every attempt fails, return `unread` with a finding.
    """
    deleted: NotFound | None = None
    for _ in range(unread.store.limits.verify_tries):
        try:
            return read()
        except NotFound as error:
            deleted = error
    message = f"objects of the log are listed, but they do not exist: {deleted}"
    unread.report(MISSING, naming.log_folder(unread.prefix).rstrip("/"), message)
    return unread


@dataclass(slots=True)
class CheckedEntries(CheckedLog, Generic[E]):
    """A journal of entries. `latest` is the latest entry, or None if no entry can be read."""

    latest: E | None = None


def read_entries(store: Store, kind: EntryKind[E], folder: str) -> CheckedEntries[E]:
    """Read all objects of the journal in `folder`, and read them again if objects are deleted during the read."""

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
    """Check all entries and their chain. Return the bytes of entries that have a copy, by number."""
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
    """Check all copies, and compare each copy with the bytes of its entry in `stored`."""
    for number in copies:
        key, counts = naming.checkpoint_key(log.prefix, number), CheckCounts(checkpoints=1)
        remedy = DELETE_COPY if number in stored else RESTORE
        entry, data = log.read(key, number, decode, counts, kind=CHECKPOINT, remedy=remedy)
        if entry is not None and number in stored and stored[number] != data:
            log.report(CHECKPOINT, key, f"the copy differs from entry {number}", f"{DELETE_COPY}; {TWO_WINNERS}")
        if entry is not None and (log.latest is None or log.latest.number < number):
            log.latest = entry


def _first_needed(numbers: Numbers, latest: E | None) -> int:
    """Return the number of the first entry that cleanup cannot have deleted."""
    first = numbers.copies[-2] if len(numbers.copies) > 1 else 0
    if latest is not None and EXPIRED_IDS in latest.read_features:
        # When a transactional id expires, its entries are deleted. The id continues with the next number.
        return max(first, numbers.copies[-1] + 1 if numbers.copies else numbers.entries[0])
    return first
