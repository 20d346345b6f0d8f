"""Rebuild lost commits of a topic from the copies of their documents in later commits.

1. Read the documents of the missing versions from a later commit that embeds them. The documents must belong to the
   chain: the first document contains the CRC-32C of the commit before the gap, and the commit after the gap contains
   the CRC-32C of the last document. A document determines the CRC-32C of the entire commit object, so the document can
   be used even if the rest of the later commit is damaged.
2. Encode the embedded commits of each lost commit again from the earlier documents. The length and the CRC-32C of the
   result must be equal to the values in the document of the lost commit.
3. Replace the inline records of a lost commit with zeros of the same length, because the records are not stored
   anywhere else. The log can then be read and written again. Reads of the lost offsets fail, and `verify` reports these
   offsets.
"""

from __future__ import annotations

from collections.abc import Mapping

from sparklog.errors import BadRequest, Corrupt, NotFound
from sparklog.log.journal.documents import document_of
from sparklog.log.journal.names import LOG_FOLDER, commit_key, entry_number, entry_numbers, key_topic
from sparklog.log.state.commit import Commit
from sparklog.log.state.commit_object import decode_commit
from sparklog.log.state.embedded_commits import (
    BLOCK_COMMITS,
    decode_embedded,
    embedded_in,
    encode_embedded,
    verified_chain,
)
from sparklog.storage.store import Store
from sparklog.tools.repair.fixes import Fix

MAX_SHOWN_RANGES = 8
"""Maximum number of ranges of lost offsets to print."""


def fix_missing_commit(store: Store, key: str) -> Fix | None:
    """Return the fix for a missing commit and the missing commits that follow it, or None if they cannot be fixed."""
    topic, number = key_topic(key), entry_number(key)
    if topic is None or number is None or store.stat(key) is not None:
        return None
    existing = entry_numbers(store, topic)
    after = next((other for other in existing if other > number), None)
    if after is None:
        return None
    first = next((other for other in reversed(existing) if other < number), -1) + 1
    if first < number:
        # Fixing the first missing commit rebuilds all missing commits of the gap.
        return None
    documents = _documents(store, topic, first, after)
    if documents is None:
        return None
    creates: list[tuple[str, bytes]] = []
    damaged: list[str] = []
    how: list[str] = []
    for missing in range(first, after):
        commit = decode_commit(documents[missing], commit_key(topic, missing), missing, check_sections=False)
        data = documents[missing] + _embedded_again(commit, documents)
        lost = 0 if commit.inline is None else commit.inline.nbytes
        creates.append((commit_key(topic, missing), data + bytes(lost)))
        if lost:
            how.append(f"its records are lost, because they are not stored anywhere else: {_lost_offsets(commit)}")
        else:
            damaged.append(commit_key(topic, missing))
    # Readers can then reach the commits after the gap.
    damaged += [commit_key(topic, other) for other in existing if other >= after]
    others = "" if after - first == 1 else f", with commits {first + 1} to {after - 1},"
    how.insert(0, f"rebuilt{others} from the copy embedded in a later commit")
    return Fix(key, "; ".join(how), creates=tuple(creates), damaged=tuple(damaged))


def _documents(store: Store, topic: str, first: int, after: int) -> dict[int, bytes] | None:
    """Return the documents of the missing numbers `[first, after)` and known documents of earlier commits.

    Returns None if no commit embeds all missing documents, or if the documents do not belong to the chain.
    """
    earlier = {
        number: data
        for number in range(max(first - BLOCK_COMMITS, 0), first)
        if (data := _document(store, topic, number))
    }
    next_prev = _commit(topic, after, _document(store, topic, after))
    if next_prev is None:
        return None
    before = _commit(topic, first - 1, earlier.get(first - 1))
    for later in range(after, first + BLOCK_COMMITS):
        data = _object(store, topic, later)
        commit = None if data is None else _commit(topic, later, document_of(data))
        if data is None or commit is None:
            continue
        try:
            documents = decode_embedded(embedded_in(commit, data))
        except Corrupt:
            continue
        embedded = dict(enumerate(documents, later - len(documents)))
        if any(number not in embedded for number in range(first, after)):
            continue
        commits = {number: link for number in range(first, after) if (link := _commit(topic, number, embedded[number]))}
        start = before.crc if before is not None else commits[first].prev_crc if first in commits else None
        chain = verified_chain(commits, first, after - 1, start)
        if chain is not None and chain[-1].crc == next_prev.prev_crc:
            return {**embedded, **earlier, **{number: embedded[number] for number in range(first, after)}}
    return None


def _embedded_again(commit: Commit, documents: Mapping[int, bytes]) -> bytes:
    """Encode the embedded commits of a commit again. If the bytes differ from the original bytes, return zeros, which
    readers ignore.
    """
    embedded = commit.embedded
    if embedded is None:
        return b""
    numbers = range(commit.version - embedded.commits, commit.version)
    if all(number in documents for number in numbers):
        again = encode_embedded([documents[number] for number in numbers])
        if again.nbytes == embedded.nbytes and again.crc == embedded.crc:
            return again.data
    return bytes(embedded.nbytes)


def _lost_offsets(commit: Commit) -> str:
    file = next(file for file in commit.files if file.path.startswith(f"{LOG_FOLDER}/"))
    ranges = [
        f"partition {partition} offsets {base} to {base + offsets - 1}"
        for partition, base, offsets in zip(file.partition, file.base, file.offsets, strict=True)
    ]
    more = len(ranges) - MAX_SHOWN_RANGES
    return ", ".join([*ranges[:MAX_SHOWN_RANGES], *([f"and {more} more ranges"] if more > 0 else [])])


def _object(store: Store, topic: str, number: int) -> bytes | None:
    try:
        return store.get(commit_key(topic, number))
    except (NotFound, Corrupt):
        return None


def _document(store: Store, topic: str, number: int) -> bytes | None:
    data = _object(store, topic, number)
    return None if data is None else document_of(data)


def _commit(topic: str, number: int, document: bytes | None) -> Commit | None:
    if document is None:
        return None
    try:
        return decode_commit(document, commit_key(topic, number), number, check_sections=False)
    except (Corrupt, BadRequest):
        return None
