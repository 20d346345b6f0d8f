"""Batches that this server has just committed, for consumers at the log end.

A consumer that waits at the log end fetches each batch as soon as it is committed. These fetches return the bytes from
memory, without a read plan and without a thread. All other fetches read the log (`sparklog.serve.stored_batches`).

The batch headers contain the base offset and the leader epoch that the commit defines. The checksum of a batch does not
include these fields. Batches of transactions are not cached, because their visibility depends on the transaction.
Batches of a topic with LogAppendTime are not cached either, because their timestamps and checksums would have to be
changed.
"""

from __future__ import annotations

from collections.abc import Iterable
from struct import Struct
from typing import NamedTuple

from sparklog.storage.fork_safety import ForkLock

MAX_BYTES = 8 << 20
MAX_BATCHES = 1_024
_BASE_OFFSET, _LEADER_EPOCH, _LEADER_EPOCH_POSITION = Struct(">q"), Struct(">i"), 12


class ConsecutiveBatches(NamedTuple):
    """Consecutive batches up to offset `next`.

    If `is_full` is true, the batch at offset `next` exceeds the size limit.
    """

    batches: list[memoryview]
    next: int
    is_full: bool


class RecentBatches:
    """Caches the latest batches by topic id, partition and base offset, with their next offsets. This class is
    thread-safe.
    """

    def __init__(self) -> None:
        self._lock = ForkLock()
        self._batches: dict[tuple[str, int, int], tuple[memoryview, int]] = {}
        self._nbytes = 0

    def add(
        self, topic_id: str, partition: int, base: int, leader_epoch: int, batches: Iterable[tuple[memoryview, int]]
    ) -> None:
        """Cache committed batches. `batches` has the bytes and the record count of each batch."""
        with self._lock:
            for produced, count in batches:
                # Copy the batch, because a view would keep the entire request in memory.
                data = bytearray(produced)
                _BASE_OFFSET.pack_into(data, 0, base)
                _LEADER_EPOCH.pack_into(data, _LEADER_EPOCH_POSITION, leader_epoch)
                self._batches[topic_id, partition, base] = memoryview(data).toreadonly(), base + count
                self._nbytes += len(data)
                base += count
            while self._nbytes > MAX_BYTES or len(self._batches) > MAX_BATCHES:
                self._nbytes -= len(self._batches.pop(next(iter(self._batches)))[0])

    def read(
        self, topic_id: str, partition: int, start: int, end: int, nbytes: int, *, at_least_one: bool
    ) -> ConsecutiveBatches:
        """Return cached batches from offset `start` to offset `end`, up to `nbytes`.

        If `at_least_one` is true, the first batch is returned regardless of its size.
        """
        batches, is_full = list[memoryview](), False
        while start < end and (batch := self._batches.get((topic_id, partition, start))) is not None:
            data, following = batch
            nbytes -= len(data)
            is_full = nbytes < 0 and (bool(batches) or not at_least_one)
            if is_full or following > end:
                break
            batches.append(data)
            start = following
        return ConsecutiveBatches(batches, start, is_full)
