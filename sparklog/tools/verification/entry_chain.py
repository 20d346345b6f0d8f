"""A log of entries (decisions of a transactional id, offsets of a group): every entry, their chain, and every copy.

Entries below the second newest copy may have been deleted, the oldest first; all others must exist. A copy must equal
its entry byte for byte. Each entry carries the whole state: a damaged one that is not the newest loses its past alone.

Commit logs share two parts. Damage in a JSON object is named to the byte. And numbers beyond a gap are named: a reader
begins behind the newest checkpoint and ends at the first number that is missing. Objects beyond it are the rest of a
log that lost objects, or were made by a process that outlived its root and went on with its numbers.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice, pairwise
from typing import Generic, TypeVar

from crc32c import crc32c

from sparklog.errors import BadRequest, Corrupt, NotFound
from sparklog.log.journal.documents import checksum_holds, document_of
from sparklog.log.journal.entry_log import EntryKind, StateEntry
from sparklog.log.journal.names import (
    LOG_FOLDER,
    checkpoint_key,
    checkpoint_prefix,
    checkpoint_version,
    commit_key,
    id_folder,
)
from sparklog.storage.store import Store
from sparklog.tools.verification.findings import (
    CHAIN,
    CHECKPOINT,
    LOG,
    MISSING,
    RESTORE_BOTH,
    TWO_WINNERS,
    Counts,
    Finding,
)

MOST_UNREACHED = 20
MOST_MISSING = 20
REMEDY = "restore what is missing before it, or delete it if a process that outlived a restored root made it"


def log_end(numbers: Sequence[int], checkpoint: int) -> int:
    """Return the last of `numbers` (ascending) that readers reach, who begin behind `checkpoint` (-1: there is none).

    All numbers count as reached where nothing lies below the gap.
    """
    end = checkpoint
    for number in numbers:
        if number > end + 1:
            return end if end >= 0 else numbers[-1]
        end = max(end, number)
    return end


def unreached(store: Store, prefix: str, what: str, numbers: Sequence[int], end: int) -> Iterator[Finding]:
    """Name objects beyond the end of a log. `NotFound` if the gap was one of the listing alone: list again."""
    beyond = [number for number in numbers if number > end]
    if beyond and store.stat(commit_key(prefix, end + 1)) is not None:
        raise NotFound(f"{what} {end + 1} came to be while the log was listed")
    for number in beyond[:MOST_UNREACHED]:
        message = f"{what} {number} lies beyond a gap: {what} {end + 1} is not there, and no reader goes on behind it"
        yield Finding(LOG, commit_key(prefix, number), message, REMEDY)


_TRAILER = re.compile(rb'crc":([0-9]{1,10})\}\n\Z')
_MARK = b',"crc":'
T = TypeVar("T")


def read_object(
    store: Store, key: str, decode: Callable[..., T], kind: str, *number: int
) -> tuple[T | None, bytes, list[Finding]]:
    """Return the object by `decode(data, key, *number)`, its bytes, and its damage. `NotFound` if it does not exist.

    Read again before it is called damaged: a bit may flip on the way. An object of a newer sparklog is a finding, too.
    """
    try:
        data = store.get(key)
    except Corrupt as error:
        return None, b"", [Finding.of(kind, error, key)]
    try:
        return decode(data, key, *number), data, []
    except (Corrupt, BadRequest):
        data = store.get(key)
    try:
        return decode(data, key, *number), data, []
    except (Corrupt, BadRequest) as error:
        return None, data, [_placed(Finding.of(kind, error, key), data)]


def missing(prefix: str, what: str, first: int, end: int, existing: Iterable[int]) -> Iterator[Finding]:
    """Name objects from `first` up to `end` (not itself) that no collection deletes, and that are missing."""
    inside = sorted(number for number in {*existing} if first <= number < end)
    # Numbers are names: one that is far away makes a gap too long to be listed.
    gaps = (number for low, high in pairwise([first - 1, *inside, end]) for number in range(low + 1, high))
    for number in islice(gaps, MOST_MISSING):
        yield Finding(MISSING, commit_key(prefix, number), f"{what} {number} is not there, and later ones are")


def obstacles(store: Store, prefix: str, what: str, kind: str) -> Iterator[Finding]:
    """Name what is no object and has the name of one of a log: no listing shows it, and it stops who comes there."""
    for folder in (f"{prefix}/{LOG_FOLDER}/", checkpoint_prefix(prefix)):
        for name in store.obstacles(folder):
            if checkpoint_version(name) is not None:
                message = f"expected a file or nothing, found a folder, a link or a special file: no {what} can be"
                yield Finding(kind, folder + name, f"{message} written under this name", "move it away")


def _placed(finding: Finding, data: bytes) -> Finding:
    """Add the place of the damage, as well as it can be told."""
    document = document_of(data)
    if len(document) < len(data) and checksum_holds(document):
        return _placed_in_records(finding, document, data[len(document) :])
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
    odd = next((at for at, byte in enumerate(data[:-1]) if not 0x20 <= byte < 0x7F), None)
    # Nothing else is known to be odd: it is the checksum's own member, the last one.
    return replace(finding, position=odd if odd is not None else max(data.rfind(b","), 0))


def _placed_in_records(finding: Finding, document: bytes, tail: bytes) -> Finding:
    inline = json.loads(document).get("inline")
    expected = inline.get("crc") if isinstance(inline, dict) and inline.get("bytes") == len(tail) else None
    crc = crc32c(tail)
    if not isinstance(expected, int) or not 0 <= expected < 2**32 or crc == expected:
        return finding
    start = len(document)
    return finding.at_flipped_bit(start, len(tail), crc, expected) or replace(finding, position=start)


TRIES = 6
E = TypeVar("E", bound=StateEntry)
DELETE_COPY = "delete the copy: the entries say the same"


@dataclass(slots=True)
class EntryChain(Generic[E]):
    """One log: its newest entry (None: none can be read), its damage, and its objects. `label`: kind of findings."""

    prefix: str
    label: str
    newest: E | None = None
    findings: list[Finding] = field(default_factory=list)
    counts: Counts = field(default_factory=Counts)
    objects: set[str] = field(default_factory=set)


def read_chain(store: Store, kind: EntryKind[E], folder: str, label: str) -> EntryChain[E]:
    """Read the log in `folder` whole, again if objects are deleted meanwhile; `label`: kind of its findings."""
    prefix = f"{kind.folder}/{folder}"
    gone: NotFound | None = None
    for _ in range(TRIES):
        try:
            return _read(store, kind, folder, EntryChain(prefix, label))
        except NotFound as error:
            gone = error
    message = f"objects of the log are listed and not there: {gone}"
    return EntryChain(prefix, label, findings=[Finding(MISSING, f"{prefix}/_log", message)])


def _read(store: Store, kind: EntryKind[E], folder: str, chain: EntryChain[E]) -> EntryChain[E]:
    prefix = chain.prefix
    chain.findings += obstacles(store, prefix, "entry", chain.label)
    numbers = {info.key: checkpoint_version(info.key) for info in store.list(f"{prefix}/_log/")}
    entries = [n for key, n in numbers.items() if n is not None and key == commit_key(prefix, n)]
    copies = [n for key, n in numbers.items() if n is not None and key == checkpoint_key(prefix, n)]
    if not entries and not copies:
        return chain
    end = log_end(entries, copies[-1] if copies else -1)
    chain.findings += unreached(store, prefix, "entry", entries, end)
    stored: dict[int, bytes] = {}
    crc: int | None = None
    before = -1
    for number in entries:
        key = commit_key(prefix, number)
        entry, data, damage = read_object(store, key, kind.decode, chain.label, number)
        chain.objects.add(key)
        chain.counts += Counts(entries=1, nbytes=len(data))
        chain.findings += damage
        known = crc if number == before + 1 else None
        before, crc = number, None if entry is None else int(crc32c(data))
        if number in copies:
            stored[number] = data
        if entry is None:
            continue
        if id_folder(entry.id) != folder:
            chain.findings.append(Finding(chain.label, key, f"{kind.what} of '{entry.id}' do not belong here"))
        if known is not None and entry.prev_crc != known:
            broken = f"the chain is broken: entry {number} was made after one with CRC-32C {entry.prev_crc}"
            key = commit_key(prefix, number - 1)
            chain.findings.append(Finding(CHAIN, key, f"{broken}, this one has {known}", RESTORE_BOTH))
        if number <= end:
            chain.newest = entry
    _copies(store, kind, chain, copies, stored)
    first = copies[-2] if len(copies) > 1 else 0
    chain.findings += missing(prefix, "entry", first, max([*entries, *copies]) + 1, entries)
    return chain


def _copies(
    store: Store, kind: EntryKind[E], chain: EntryChain[E], copies: Sequence[int], stored: Mapping[int, bytes]
) -> None:
    for number in copies:
        key = checkpoint_key(chain.prefix, number)
        entry, data, damage = read_object(store, key, kind.decode, chain.label, number)
        chain.objects.add(key)
        chain.counts += Counts(checkpoints=1, nbytes=len(data))
        for finding in damage:
            remedy = DELETE_COPY if number in stored else finding.remedy
            chain.findings.append(replace(finding, kind=CHECKPOINT, file=key, remedy=remedy, offset=None))
        if entry is not None and number in stored and stored[number] != data:
            message = f"the copy is not what entry {number} says"
            chain.findings.append(Finding(CHECKPOINT, key, message, f"{DELETE_COPY}; {TWO_WINNERS}"))
        if entry is not None and (chain.newest is None or chain.newest.number < number):
            chain.newest = entry
