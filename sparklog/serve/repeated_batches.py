"""Find the offset of a retried batch using only the log, as a new leader in Kafka does.

A producer retries a batch if the response is lost, for example because the server was killed. Another server may
receive the retry. The registry shows that the batch was committed, and which commit contains the producer's latest
batch. Merging, sealing and compaction preserve the producer id, epoch and base sequence in batch headers, so the batch
can be found. The search reads backwards from the end of this commit, and reads only slices that contain batches of
idempotent producers.

The registry may contain later sequences although the batch was not committed:

1. A producer that is new, or was idle for a day, sends batches A and B. The registry has no entry for the producer.
2. The commit with A fails, and A gets a retriable error.
3. The commit with B succeeds, because an unknown producer may start at any sequence.
4. The producer retries A.

Clients treat DUPLICATE_SEQUENCE_NUMBER as success, so A would be lost. Therefore, the sequences in the producer's
commits are checked first.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

import numpy as np

from sparklog.errors import Corrupt, NotFound
from sparklog.format.record_batch import MAX_SEQUENCE, BatchHeader
from sparklog.log.journal.names import commit_key
from sparklog.log.read.read_plan import plan_parts
from sparklog.log.state.commit import Commit
from sparklog.log.state.commit_object import decode_commit
from sparklog.log.state.embedded_commits import with_embedded_copies
from sparklog.log.state.range_slices import select_ranges
from sparklog.log.state.slice_table import Slices, Snapshot
from sparklog.log.state.slices import SliceFlag
from sparklog.log.state.view import READ_UNCOMMITTED, OffsetRange
from sparklog.log.state.writer_runs import WriterEntry
from sparklog.log.topic.engine import TopicLog
from sparklog.serve.batch_checks import CheckedBatch, writer_id
from sparklog.serve.stored_batches import patched_batches

REPEATABLE_BATCHES = 5
"""The number of a producer's latest batches to search. Idempotent Kafka clients have at most five requests in flight.
"""
WINDOW_BYTES, SEARCH_BYTES = 1 << 20, 64 << 20
"""The number of bytes to read in one step, and the maximum number of bytes to read. The maximum is required because
batches of other producers may follow the retried batch.
"""
SEARCHED_COMMITS = 512
"""The number of commits to search for a retried batch. Commits contain copies of earlier commits, so this usually takes
about ten requests.
"""


def is_committed(log: TopicLog, partition: int, batch: CheckedBatch, entry: WriterEntry) -> bool:
    """Return True if a batch that precedes its producer's registry entry is in the latest commits of the producer.

    If these commits do not follow each other without a gap, the producer's earlier entry had expired.
    """
    id_, first = writer_id(batch.producer_id, partition), entry.batch + 1
    wanted = first - (first - batch.base_sequence) % (MAX_SEQUENCE + 1)
    with suppress(Corrupt, NotFound):
        for commit in _latest_commits(log, entry.version):
            for writer in commit.writers:
                if writer.id == id_:
                    if writer.batch + 1 != first:
                        return False
                    first -= writer.count
            if first <= wanted:
                return True
    return False


def _latest_commits(log: TopicLog, last: int) -> Iterator[Commit]:
    """Yield the commits of a topic up to version `last`, latest first.

    Raises `NotFound` if a commit was deleted, and `Corrupt` if it is damaged.
    """
    start, topic_id = max(last + 1 - SEARCHED_COMMITS, 0), log.state(refresh=False).topic_id
    read = dict[int, Commit]()
    crc: int | None = None
    for number in range(last, start - 1, -1):
        commit = read.get(number)
        # The next commit contains the CRC-32C of this commit. Another CRC-32C belongs to a withdrawn commit.
        if commit is None or commit.crc != crc:
            key = commit_key(log.topic, number)
            data = log.store.get(key)
            commit = decode_commit(data, key, number, check_sections=False)
            read = with_embedded_copies(log.topic, {number: (commit, data)}, start)
        if commit.topic_id != topic_id:
            return
        yield commit
        crc = commit.prev_crc


def find_repeated(log: TopicLog, partition: int, batch: CheckedBatch, entry: WriterEntry) -> BatchHeader | None:
    """Return the stored header of a committed batch, with its offset. `entry` is the producer's registry entry.

    Returns None if the batch is not among the producer's latest five batches, or if its records have been deleted.
    """
    snapshot = log.snapshot(refresh=False)
    start = int(snapshot.state.log_start[partition])
    # The number of records that the producer has written after this batch. Each record has one offset.
    later = (entry.batch + 1 - batch.base_sequence) % (MAX_SEQUENCE + 1) - batch.count
    end = _end_of_commit(snapshot, partition, entry.version) - later
    found = 0
    try:
        for ranges in _windows(snapshot, partition, start, end):
            for part in reversed(plan_parts(select_ranges({log.topic: snapshot}, ranges), READ_UNCOMMITTED)):
                for _, headers in patched_batches(part):
                    own = (headers.producer_id == batch.producer_id) & (headers.producer_epoch == batch.producer_epoch)
                    same = own & (headers.base_sequence == batch.base_sequence)
                    same &= headers.last_offset_delta == batch.count - 1
                    if same.any():
                        return headers.row(int(np.flatnonzero(same)[0]))
                    found += int(np.count_nonzero(own))
            if found >= REPEATABLE_BATCHES:
                return None
    except (Corrupt, NotFound):
        # The batch is corrupt, or retention has deleted it. The registry still shows that the batch was committed.
        return None
    return None


def _end_of_commit(snapshot: Snapshot, partition: int, version: int) -> int:
    """Return the offset after the records that a commit appended to a partition, or the log end if the commit was
    deleted.
    """
    log_end, key = int(snapshot.state.log_end[partition]), commit_key(snapshot.topic, version)
    try:
        commit = decode_commit(snapshot.store.get(key), key, version, check_sections=False)
    except (Corrupt, NotFound):
        return log_end
    rows = (zip(file.partition, file.base, file.offsets, strict=True) for file in commit.files)
    ends = [base + offsets for row in rows for number, base, offsets in row if number == partition]
    return min(max(ends, default=log_end), log_end)


def _windows(snapshot: Snapshot, partition: int, start: int, end: int) -> Iterator[list[OffsetRange]]:
    """Yield offset ranges of about `WINDOW_BYTES` that contain batches of idempotent producers, latest first."""
    slices = snapshot.slices.select(partition, start, end) if start < end else None
    window, window_bytes, remaining = list[OffsetRange](), WINDOW_BYTES, SEARCH_BYTES
    for low, high, nbytes in _chunks(slices, start, end) if slices is not None else ():
        window.insert(0, OffsetRange(snapshot.topic, partition, low, high))
        window_bytes, remaining = window_bytes - nbytes, remaining - nbytes
        if window_bytes <= 0 or remaining <= 0:
            yield window
            window, window_bytes = [], WINDOW_BYTES
        if remaining <= 0:
            return
    if window:
        yield window


def _chunks(slices: Slices, start: int, end: int) -> Iterator[tuple[int, int, int]]:
    """Yield the first offset, end offset and size of slices, starting with the latest slice. Large slices, such as
    segments, are split.
    """
    for row in reversed(np.flatnonzero(slices.flags & int(SliceFlag.KAFKA_PRODUCERS)).tolist()):
        base, stop, size = (int(column[row]) for column in (slices.base, slices.end, slices.size))
        step = max((stop - base) * WINDOW_BYTES // max(size, 1), 1)
        low, high = max(base, start), min(stop, end)
        while low < high:
            first = max(low, high - step)
            yield first, high, (high - first) * size // (stop - base)
            high = first
