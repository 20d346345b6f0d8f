"""Embedded commits. A commit contains copies of the documents of earlier commits, so that only a few objects have to be
read to open a log or to read one day of it.

Commit n contains the documents of the 2^j - 1 previous commits, where 2^j is the largest power of two, up to 128, that
divides n + 1. As in a Fenwick tree, the number of objects that must be read to read a block of 128 commits up to commit
n is at most the number of bits that are set in n + 1. In addition, the sixth of every eight commits contains the
documents of the five previous commits. Readers also fetch the second latest commit, so six objects are always
sufficient. The copies are one zstd frame, in commit order, between the commit's own document and its inline records.
The document contains the number of copies, and the length and CRC-32C of the frame.

A copy is valid only if the next commit contains the CRC-32C of the original object. This CRC-32C can be computed from
the document alone. If a copy is missing or does not match, the commits are read one by one, as if no documents were
embedded. A writer embeds only documents that it has cached, so a commit may contain fewer copies or none. The topic
config `carried.commits` limits the number of copies. The stored field and the feature have the same name as the config.

`RecentRecords` caches the inline records of recent commits of all topics and stores, because a follower that has read a
commit object needs its records immediately afterwards. The store is authoritative. Readers verify the CRC-32C of cached
bytes. If the CRC-32C does not match, they evict the bytes and read the object from the store.
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
from sparklog.log.state.commit import MAX_EMBEDDED, Commit, EmbeddedCommits
from sparklog.log.state.commit_object import decode_commit
from sparklog.storage.fork_safety import ForkLock
from sparklog.storage.store import Store

BLOCK_COMMITS = MAX_EMBEDDED + 1
"""The number of commits per block. The last commit of a block contains the documents of all other commits in the block.
"""


def embedded_count(number: int) -> int:
    """Return the number of earlier commits whose documents a commit contains."""
    return 5 if number % 8 == 5 else min((number + 1) & -(number + 1), BLOCK_COMMITS) - 1


def commits_to_read(first: int, last: int) -> list[int]:
    """Return the numbers of the commits that contain the documents `first` to `last`, latest first."""
    numbers = []
    while last >= first:
        numbers.append(last)
        last -= embedded_count(last) + 1
    return numbers


def encode_embedded(documents: Sequence[bytes]) -> EmbeddedCommits:
    data = compress("zstd", b"".join(documents))
    return EmbeddedCommits(len(data), crc32c(data), data, commits=len(documents))


def decode_embedded(embedded: EmbeddedCommits | None) -> list[bytes]:
    """Decode embedded documents, and return them in commit order. Raises `Corrupt` if `data` is damaged."""
    if embedded is None:
        return []
    if len(embedded.data) == embedded.nbytes and crc32c(embedded.data) == embedded.crc:
        documents = decompress("zstd", embedded.data).splitlines(keepends=True)
        if len(documents) == embedded.commits:
            return documents
    raise Corrupt("commit: the embedded documents are damaged; restore the commit")


def embedded_in(commit: Commit, data: bytes) -> EmbeddedCommits | None:
    """Return the embedded documents of a commit, given the bytes of its object."""
    embedded = commit.embedded
    if embedded is None:
        return None
    data = data[commit.nbytes : commit.inline_start]
    return EmbeddedCommits(embedded.nbytes, embedded.crc, data, commits=embedded.commits)


def with_embedded_copies(topic: str, objects: Mapping[int, tuple[Commit, bytes]], first: int) -> dict[int, Commit]:
    """Return the commits in `objects` and their embedded commits, by number. Embedded commits before `first` are
    omitted.
    """
    commits = {number: commit for number, (commit, _) in objects.items()}
    for number, (commit, data) in objects.items():
        try:
            documents = decode_embedded(embedded_in(commit, data))
            for earlier, document in enumerate(documents, number - len(documents)):
                if earlier >= first and earlier not in commits:
                    commits[earlier] = decode_commit(
                        document, commit_key(topic, earlier), earlier, check_sections=False
                    )
        except (Corrupt, BadRequest):
            continue
    return commits


def verified_chain(commits: Mapping[int, Commit], first: int, last: int, crc: int | None) -> list[Commit] | None:
    """Return commits `first` to `last`, or None if a commit is missing or does not follow its predecessor.

    `crc` is the CRC-32C of the commit before `first`.
    """
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
    """Documents of the latest commits that this process has read or written. Most of these documents come from embedded
    copies.

    The documents may include commits that lost a race. `copies_for` does not embed these commits, because they are not
    in the chain. Threads may share an instance.
    """

    def __init__(self) -> None:
        self._commits: dict[int, _RecentCommit] = {}

    def add(self, commit: Commit, data: bytes, max_bytes: int) -> None:
        """Cache a commit's documents, up to `max_bytes` in total. The latest commit is always cached."""
        number, commits = commit.version, self._commits
        commits[number] = _RecentCommit(commit.crc, commit.prev_crc, data[: commit.nbytes], embedded_in(commit, data))
        previous = commits.get(number - 1)
        others = len(commits) - 1
        if others == 0 or (
            others == 1 and previous is not None and len(previous.document) + commit.nbytes <= max_bytes
        ):
            return
        # If the previous commit is this commit's predecessor, it contains the documents `[first_copy, number - 1)`.
        is_predecessor = previous is not None and previous.crc == commit.prev_crc
        copies = previous.embedded.commits if is_predecessor and previous is not None and previous.embedded else 0
        first_copy = number - 1 - copies
        nbytes = 0
        for other, item in sorted(commits.items(), reverse=True):
            nbytes += len(item.document)
            has_copy = first_copy <= other < number - 1
            if other < number - BLOCK_COMMITS or has_copy or (nbytes > max_bytes and other < number):
                commits.pop(other, None)

    def clear(self) -> None:
        self._commits.clear()

    def copies_for(self, number: int, prev_crc: int | None, max_commits: int, max_bytes: int) -> EmbeddedCommits | None:
        """Return the documents to embed in commit `number`. The result contains as many cached documents as the limits
        allow.

        `prev_crc` is the CRC-32C of commit `number - 1`.
        """
        count, documents, nbytes = min(embedded_count(number), max_commits), list[bytes](), 0
        crc = prev_crc
        while len(documents) < count:
            item = self._commits.get(number - 1 - len(documents))
            if item is None or item.crc != crc:
                break
            try:
                earlier = decode_embedded(item.embedded)
                crc = json.loads(earlier[0])["prevCrc"] if earlier else item.prev_crc
            except (Corrupt, ValueError, LookupError):
                earlier, crc = [], item.prev_crc
            documents += (item.document, *reversed(earlier))
        del documents[count:]
        while documents and (nbytes := sum(map(len, documents))) > max_bytes:
            documents.pop()
        return encode_embedded(documents[::-1]) if nbytes else None


@dataclass(slots=True)
class _CachedRecords:
    """Bytes `[start, start + len(data))` of an object."""

    store: weakref.ref[Store]
    start: int
    data: bytes


class RecentRecords:
    """Cached inline records by store and key. The latest records are last. Threads may share an instance."""

    def __init__(self) -> None:
        self._lock = ForkLock()
        self._cached: OrderedDict[tuple[int, str], _CachedRecords] = OrderedDict()
        self._bytes = 0

    def add(self, store: Store, key: str, start: int, records: bytes) -> None:
        """Cache the inline records of a commit, which begin at byte `start` of the commit object."""
        with self._lock:
            self._evict((id(store), key))
            self._cached[id(store), key] = _CachedRecords(weakref.ref(store), start, records)
            self._bytes += len(records)
            max_commits, max_bytes = store.limits.cached_inline_commits, store.limits.cached_inline_bytes
            while self._cached and (len(self._cached) > max_commits or self._bytes > max_bytes):
                self._evict(next(iter(self._cached)))

    def read(self, store: Store, key: str, start: int, length: int) -> bytes | None:
        """Return bytes of an object, or None if they are not cached."""
        cached = self._cached.get((id(store), key))
        if cached is None or cached.store() is not store:
            return None
        low = start - cached.start
        return cached.data[low : low + length] if 0 <= low <= len(cached.data) - length else None

    def evict(self, store: Store, key: str) -> bool:
        """Evict an object's bytes. Return False if no bytes were cached."""
        with self._lock:
            return self._evict((id(store), key))

    def _evict(self, key: tuple[int, str]) -> bool:
        cached = self._cached.pop(key, None)
        self._bytes -= 0 if cached is None else len(cached.data)
        return cached is not None


RECENT_RECORDS = RecentRecords()
