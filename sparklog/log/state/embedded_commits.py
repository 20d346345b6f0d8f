"""Documents that a commit carries of those before it: a log is opened, or a day of it read, by few objects.

Commit n carries the documents of the 2^j - 1 commits before it, where 2^j, at most 128, is the largest power of two
that divides n + 1. So commits are read as the ones in the binary digits of their number. Of each eight the sixth
carries all five before it: with the commit before the newest, which a reader looks at anyway, no way is longer than
six. In the object they are between its own document, which has their count, length and CRC-32C, and its records: a
zstd frame, in the order of their numbers.

A carried document is a copy. It counts only as a link of the chain: the commit after it names the CRC-32C of its whole
object, which follows from the document alone. Where one is missing or does not fit, commits are read one by one, as if
none were carried. A writer carries what it knows: fewer, or none, where it does not know them.

Records in commits are kept for a while as well (`RecentRecords`), of all topics and stores: a follower reads each new
commit whole, and would ask for its records a moment later. The store counts: a reader checks the CRC-32C of what it
takes from here, and on a difference forgets it and asks.
"""

from __future__ import annotations

import json
import weakref
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sparklog.errors import BadRequest, Corrupt
from sparklog.format.compression import compress, decompress
from sparklog.format.crc32c import crc32c
from sparklog.log.journal.names import commit_key
from sparklog.log.state.commit import MAX_EMBEDDED, Commit, EmbeddedCommits, decode_commit
from sparklog.storage.fork_safety import ForkLock
from sparklog.storage.store import Store

BLOCK_COMMITS = MAX_EMBEDDED + 1
"""The last commit of a block of so many numbers carries all others of it."""


def embedded_count(number: int) -> int:
    """Return how many commits before it a commit carries."""
    return 5 if number % 8 == 5 else min((number + 1) & -(number + 1), BLOCK_COMMITS) - 1


def commits_to_read(first: int, last: int) -> list[int]:
    """Return the numbers of the commits that have the documents `first` to `last`, the newest first."""
    numbers = []
    while last >= first:
        numbers.append(last)
        last -= embedded_count(last) + 1
    return numbers


def encode_embedded(documents: Sequence[bytes]) -> EmbeddedCommits:
    data = compress("zstd", b"".join(documents))
    return EmbeddedCommits(len(documents), len(data), crc32c(data), data)


def decode_embedded(embedded: EmbeddedCommits | None) -> list[bytes]:
    """Return the documents in the order of their numbers; `Corrupt` if `data` is not what was written."""
    if embedded is None:
        return []
    if len(embedded.data) == embedded.nbytes and crc32c(embedded.data) == embedded.crc:
        documents = decompress("zstd", embedded.data).splitlines(keepends=True)
        if len(documents) == embedded.commits:
            return documents
    raise Corrupt("commit: the documents of earlier commits in it are not what was written; restore it")


def embedded_in(commit: Commit, data: bytes) -> EmbeddedCommits | None:
    """Return what a commit carries, from the bytes of its object."""
    embedded = commit.embedded
    if embedded is None:
        return None
    return EmbeddedCommits(embedded.commits, embedded.nbytes, embedded.crc, data[commit.nbytes : commit.inline_start])


def with_embedded_copies(topic: str, objects: Mapping[int, tuple[Commit, bytes]], first: int) -> dict[int, Commit]:
    """Return commits by number: those of the objects, and from `first` on those that they carry."""
    commits = {number: commit for number, (commit, _) in objects.items()}
    for number, (commit, data) in objects.items():
        try:
            documents = decode_embedded(embedded_in(commit, data))
            for earlier, document in enumerate(documents, number - len(documents)):
                if earlier >= first and earlier not in commits:
                    commits[earlier] = decode_commit(document, commit_key(topic, earlier), earlier, whole=False)
        except (Corrupt, BadRequest):
            continue
    return commits


def verified_chain(commits: Mapping[int, Commit], first: int, last: int, crc: int | None) -> list[Commit] | None:
    """Return commits `first` to `last`; None unless each was made after the one before, the first after `crc`."""
    chain = []
    for number in range(first, last + 1):
        commit = commits.get(number)
        if commit is None or commit.prev_crc != crc:
            return None
        chain.append(commit)
        crc = commit.crc
    return chain


@dataclass(slots=True)
class _RecentCommit:
    crc: int
    prev_crc: int | None
    document: bytes
    embedded: EmbeddedCommits | None


class RecentDocuments:
    """Documents of the newest commits that a process has read or made, in the form of an opening: few are not carried.

    Commits that no log has, of lost races, may be among them: the chain tells. Threads may share it.
    """

    def __init__(self) -> None:
        self._commits: dict[int, _RecentCommit] = {}

    def keep(self, commit: Commit, data: bytes, most_bytes: int) -> None:
        """Keep what a commit's object has; in all up to `most_bytes`, besides the newest."""
        number, kept = commit.version, self._commits
        kept[number] = _RecentCommit(commit.crc, commit.prev_crc, data[: commit.nbytes], embedded_in(commit, data))
        before = kept.get(number - 1)
        others = len(kept) - 1
        if others == 0 or (others == 1 and before is not None and len(before.document) + commit.nbytes <= most_bytes):
            return
        is_known = before is not None and before.crc == commit.prev_crc
        low = number - 1 - (before.embedded.commits if is_known and before is not None and before.embedded else 0)
        nbytes = 0
        for other, item in sorted(kept.items(), reverse=True):
            nbytes += len(item.document)
            if other < number - BLOCK_COMMITS or low <= other < number - 1 or (nbytes > most_bytes and other < number):
                kept.pop(other, None)

    def clear(self) -> None:
        self._commits.clear()

    def before(self, number: int, crc: int | None, most: int, most_bytes: int) -> EmbeddedCommits | None:
        """Return what a commit carries that is made after one with this CRC: up to `most`, as many as are known."""
        wanted, documents, nbytes = min(embedded_count(number), most), list[bytes](), 0
        while len(documents) < wanted:
            item = self._commits.get(number - 1 - len(documents))
            if item is None or item.crc != crc:
                break
            try:
                earlier = decode_embedded(item.embedded)
                crc = json.loads(earlier[0])["prevCrc"] if earlier else item.prev_crc
            except (Corrupt, ValueError, LookupError):
                earlier, crc = [], item.prev_crc
            documents += (item.document, *reversed(earlier))
        del documents[wanted:]
        while documents and (nbytes := sum(map(len, documents))) > most_bytes:
            documents.pop()
        return encode_embedded(documents[::-1]) if nbytes else None


@dataclass(slots=True)
class _CachedRecords:
    """Bytes `[start, start + len(data))` of an object."""

    store: weakref.ref[Store]
    start: int
    data: bytes


class RecentRecords:
    """Tails by store and key, the newest ones last. Threads may share it."""

    def __init__(self) -> None:
        self._lock = ForkLock()
        self._kept: OrderedDict[tuple[int, str], _CachedRecords] = OrderedDict()
        self._bytes = 0

    def keep(self, store: Store, key: str, start: int, tail: bytes) -> None:
        """Keep the tail of a commit, which begins at `start` of its object."""
        with self._lock:
            self._drop((id(store), key))
            self._kept[id(store), key] = _CachedRecords(weakref.ref(store), start, tail)
            self._bytes += len(tail)
            limits = store.limits
            while self._kept and (
                len(self._kept) > limits.cached_inline_commits or self._bytes > limits.cached_inline_bytes
            ):
                self._drop(next(iter(self._kept)))

    def read(self, store: Store, key: str, start: int, length: int) -> bytes | None:
        """Return bytes of an object, None if they are not kept."""
        kept = self._kept.get((id(store), key))
        if kept is None or kept.store() is not store:
            return None
        low = start - kept.start
        return kept.data[low : low + length] if 0 <= low <= len(kept.data) - length else None

    def forget(self, store: Store, key: str) -> bool:
        """Keep no bytes of an object any more; False if none were."""
        with self._lock:
            return self._drop((id(store), key))

    def _drop(self, place: tuple[int, str]) -> bool:
        kept = self._kept.pop(place, None)
        self._bytes -= 0 if kept is None else len(kept.data)
        return kept is not None


RECENT_RECORDS = RecentRecords()
