"""A writer of Kafka segments, which writes `.log`, `.index`, `.timeindex` and `.txnindex` files with the same bytes as
Kafka.

    sealed/<partition>/<read version>-<id>/00000000000000001234.log        contiguous batches with offsets of the log
                                           00000000000000001234.index      8 bytes per entry: format/segment_indexes.py
                                           00000000000000001234.timeindex  12 bytes: format/segment_indexes.py
                                           00000000000000001234.txnindex   34 bytes; only if there are entries
                                           00000000000000001234.bloom      format/key_filter.py: ours, not Kafka's

The batches are passed with their final offsets, in order, and their records are not examined. Index entries follow the
rule for appending single batches, which Kafka's recovery also uses to rebuild indexes. The indexes are built while the
log is written, so the memory for a segment of many tiny batches is limited by the maximum size of its indexes.

A segment of 0 bytes is never written. (Kafka keeps such a segment if the cleaner removes all records of a group.)
Slices cannot be empty, and no code depends on empty segments.
"""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from sparklog.errors import BadRequest, SparklogError
from sparklog.format import crc32c, transaction_index
from sparklog.format.append_file import WrittenSlice
from sparklog.format.batch_scan import MAX_OFFSET
from sparklog.format.checksums import SUFFIXES, index_crc
from sparklog.format.key_filter import BatchKeys, FilterBuilder, KeyFilter, encode_filters
from sparklog.format.record_batch import NO_TIMESTAMP, BatchHeaders, BytesLike
from sparklog.format.segment_indexes import MAX_RELATIVE_OFFSET, OffsetIndex, TimeIndex
from sparklog.format.transaction_index import AbortedTransactions
from sparklog.log.journal.names import file_key, filter_path, sealed_path
from sparklog.log.state.configs import TopicConfigs
from sparklog.log.state.slices import FileSlices, SliceFlag
from sparklog.storage.store import ObjectWriter, Store

MAX_SEGMENT_BYTES = 2**31 - 1
"""Kafka's limit, because positions in an index are int32."""
BACKGROUND_BYTES = 4 << 20
"""Segments of at least this size are synced in the background while the next segment is written."""
_INHERITED_FLAGS = int(SliceFlag.HAS_NULL_KEYS | SliceFlag.LOG_APPEND_TIME | SliceFlag.KAFKA_PRODUCERS)

Int64Array = npt.NDArray[np.int64]


class WrittenObjects:
    """The unreferenced objects of a task, which are deleted if the task fails. Objects that cannot be deleted are left
    to the vacuum.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self.keys: list[str] = []

    def create(self, key: str, data: bytes) -> None:
        self.keys.append(key)
        writer = self._store.writer(key)
        try:
            writer.write(data)
        except BaseException:
            writer.discard()
            raise
        writer.close()

    def discard(self) -> None:
        while self.keys:
            with suppress(SparklogError):
                self._store.delete(self.keys.pop())


class SegmentWriter:
    """Writes the segments of a partition, one after the other, into one directory.

    `begin` starts a segment at its base offset, `append` adds batches, and `finish` ends the segment. `close` returns
    all segments for the commit, and `discard` deletes them instead.
    """

    def __init__(
        self, store: Store, topic: str, partition: int, read_version: int, unique: str, configs: TopicConfigs
    ) -> None:
        """Create the writer. The name of its directory consists of the read version of the plan and the unique id of
        the work item.
        """
        self._store = store
        self._topic = topic
        self._partition = partition
        self._folder = read_version, unique
        self.segment_bytes = configs.segment_bytes
        self._interval = configs.index_interval_bytes
        index_bytes = configs.integer("segment.index.bytes")
        self._offset_entries = OffsetIndex.max_entries(index_bytes)
        self._time_entries = TimeIndex.max_entries(index_bytes)
        self._current: _SegmentInProgress | None = None
        self.keyed = False
        """Whether the current segment may get a filter of its keys."""
        self._finished: list[FileSlices] = []
        self._written = WrittenObjects(store)
        self._background: ThreadPoolExecutor | None = None
        self._finishing: Future[None] | None = None
        """The previous segment if it may not be durable yet."""

    def path(self, base: int) -> str:
        return sealed_path(self._partition, *self._folder, base)

    def key(self, path: str) -> str:
        """Return the key of a file of this writer."""
        return file_key(self._topic, path)

    def begin(self, base: int, keyed: bool | None = None) -> None:
        """Finish the previous segment and start a new segment. If `keyed` is True, a large segment gets a key filter.
        None keeps the previous setting.
        """
        self.finish()
        self.keyed = self.keyed if keyed is None else keyed
        builder = FilterBuilder() if self.keyed else None
        self._current = _SegmentInProgress(base, base, _Indexes(base, self._interval), keys=builder)

    def fits(self, headers: BatchHeaders, segment_bytes: int = MAX_SEGMENT_BYTES) -> int:
        """Return how many of the batches fit into the current segment according to Kafka's roll rule.

        A batch does not fit if the offset index or the time index is full before it is appended, if one of its offsets
        is more than 2^31-1 above the base offset, or if the segment would exceed `segment_bytes`. An empty segment
        accepts its first batch regardless of its size. If the result is 0, call `begin` with the base offset of the
        first batch.
        """
        current = self._segment()
        largest = min(current.base, MAX_OFFSET - MAX_RELATIVE_OFFSET) + MAX_RELATIVE_OFFSET
        batch_count = int(np.searchsorted(headers.last_offset, largest, "right"))
        room = min(segment_bytes, MAX_SEGMENT_BYTES) - current.size
        within_size = int(np.searchsorted(np.cumsum(headers.size), room, "right"))
        batch_count = min(batch_count, max(within_size, int(current.size == 0)))
        indexes = current.indexes
        if (
            indexes.offset_count + batch_count > self._offset_entries
            or indexes.time_count + batch_count > self._time_entries
        ):
            positioned = _positions(headers[:batch_count], current.size)
            free = indexes.until_full(positioned, self._offset_entries, self._time_entries)
            batch_count = max(free, min(batch_count, int(current.size == 0)))
        return batch_count

    def append(
        self,
        data: BytesLike,
        headers: BatchHeaders,
        *,
        records: int,
        min_ts: int,
        flags: int = 0,
        modified_ms: int = NO_TIMESTAMP,
        keys: BatchKeys | None = None,
    ) -> None:
        """Append batches to the current segment. Raises `BadRequest` unless their offsets ascend.

        Args:
            data: The buffer with the batches, which are contiguous.
            headers: The headers of the batches, with final offsets and positions in `data`.
            records: The number of records to add to the slice.
            min_ts: The smallest timestamp, or -1 if there is none.
            flags: The flags of the slices to which the batches belong (`SliceFlag`). The flags that apply to a sealed
                segment are retained.
            modified_ms: The time of the segment if no batch has a timestamp (in Kafka, the time at which the file was
                modified).
            keys: The keys of the batches, if the caller has them.
        """
        if not len(headers):
            return
        current = self._segment()
        start, end = int(headers.position[0]), int(headers.position[-1] + headers.size[-1])
        body = memoryview(data).cast("B")[start:end]
        self._check(current, headers, end - start)
        if current.writer is None:
            current.path = self.path(current.base)
            current.writer = self._store.writer(self.key(current.path))
        current.writer.write(body)
        if current.keys is not None:
            current.keys.add(data, headers, keys)
        current.indexes.add(_positions(headers, current.size))
        current.crc = crc32c.crc32c(body, current.crc)
        current.size += len(body)
        current.next_offset = int(headers.next_offset[-1])
        current.records += records
        current.flags |= flags & _INHERITED_FLAGS
        current.modified_ms = max(current.modified_ms, modified_ms)
        if min_ts != NO_TIMESTAMP:
            current.min_ts = min_ts if current.min_ts == NO_TIMESTAMP else min(current.min_ts, min_ts)

    def aborted(self, entries: AbortedTransactions) -> None:
        """Add `.txnindex` entries of the current segment, which are transactions whose ABORT markers are in the
        segment, in order.
        """
        if len(entries):
            self._segment().aborted.append(entries)

    def finish(self) -> None:
        """Finish the current segment, if it has batches. It is durable after `close`. Raises the error of the previous
        segment.
        """
        self._wait_for_finishing()
        current, self._current = self._current, None
        if current is None or current.writer is None:
            return
        if current.size < BACKGROUND_BYTES:
            self._finish_files(current)
            return
        if self._background is None:
            self._background = ThreadPoolExecutor(1, thread_name_prefix="sparklog-segment")
        self._finishing = self._background.submit(self._finish_files, current)

    def _wait_for_finishing(self) -> None:
        finishing, self._finishing = self._finishing, None
        if finishing is not None:
            finishing.result()

    def _finish_files(self, current: _SegmentInProgress) -> None:
        """Write the remaining files of a segment, and make all files durable."""
        assert current.writer is not None
        self._written.keys.append(self.key(current.path))
        current.writer.close()
        stem = self.key(current.path).removesuffix(".log")
        offsets, times = current.indexes.built()
        data = [offsets.to_bytes(), times.to_bytes(), transaction_index.concatenate(current.aborted).to_bytes()]
        for suffix, index in zip(SUFFIXES, data, strict=True):
            if index or suffix != "txnindex":
                self._written.create(f"{stem}.{suffix}", index)
        if (keys := current.key_filter(self._store.limits.filter_min_bytes)) is not None:
            current.flags |= SliceFlag.KEY_FILTER
            self._written.create(filter_path(stem + ".log"), encode_filters([keys]))
        self._finished.append(replace(current.file(self._partition), index_crc=(index_crc(*data),)))

    def close(self) -> tuple[FileSlices, ...]:
        """Finish the current segment. Return all segments in order, durable and with base offsets, for a commit."""
        self.finish()
        self._wait_for_finishing()
        self._stop_background()
        return tuple(self._finished)

    def discard(self) -> None:
        """Delete all written files."""
        current, self._current = self._current, None
        if current is not None and current.writer is not None:
            current.writer.discard()
        with suppress(Exception):
            self._wait_for_finishing()
        self._stop_background()
        self._finished.clear()
        self._written.discard()

    def _stop_background(self) -> None:
        if self._background is not None:
            self._background.shutdown()
            self._background = None

    def _segment(self) -> _SegmentInProgress:
        if self._current is None:
            raise BadRequest("no segment was started: call begin with the base offset of the segment first")
        return self._current

    @staticmethod
    def _check(current: _SegmentInProgress, headers: BatchHeaders, nbytes: int) -> None:
        first, last = int(headers.base_offset[0]), int(headers.last_offset[-1])
        rising = headers.base_offset[1:] > headers.last_offset[:-1]
        if first < current.next_offset or not rising.all():
            raise BadRequest(
                f"batches of segment {current.base} must follow offset {current.next_offset} in order, "
                f"found {first} to {last}"
            )
        if last - current.base > MAX_RELATIVE_OFFSET or current.size + nbytes > MAX_SEGMENT_BYTES:
            raise BadRequest(
                f"segment {current.base} with {current.size} bytes has no space for batches up to offset {last} with "
                f"{nbytes} bytes: start another segment"
            )
        if nbytes != int(headers.size.sum()):
            raise BadRequest(f"batches must be contiguous, found {int(headers.size.sum())} bytes of {nbytes}")


@dataclass(slots=True)
class _SegmentInProgress:
    """The segment that is being written. Its `.log` file is created with the first batch."""

    base: int
    next_offset: int
    indexes: _Indexes
    size: int = 0
    crc: int = 0
    records: int = 0
    min_ts: int = NO_TIMESTAMP
    modified_ms: int = NO_TIMESTAMP
    flags: int = 0
    path: str = ""
    writer: ObjectWriter | None = None
    aborted: list[AbortedTransactions] = field(default_factory=list)
    keys: FilterBuilder | None = None

    def key_filter(self, min_bytes: int) -> KeyFilter | None:
        """Return the key filter, or None if the segment is smaller than `min_bytes` or has no filter."""
        if self.keys is None or self.size < min_bytes:
            return None
        return self.keys.finish(0, self.size, self.crc)

    def file(self, partition: int) -> FileSlices:
        flags = self.flags
        if flags & SliceFlag.LOG_APPEND_TIME:
            flags |= SliceFlag.TIMES_IN_BATCHES
        if self.aborted:
            flags |= SliceFlag.KAFKA_ABORTED
        largest = self.indexes.max_timestamp
        written = WrittenSlice(
            partition=partition,
            nbytes=self.size,
            offsets=self.next_offset - self.base,
            records=self.records,
            min_ts=self.min_ts,
            max_ts=self.modified_ms if largest == NO_TIMESTAMP else largest,
            crc=self.crc,
            flags=int(flags),
        )
        return FileSlices.of(self.path, [written], 0).in_log(self.base)


class BatchPositions(NamedTuple):
    """The positions of batches in their segment, last offsets and largest timestamps (ms), int64[n] each."""

    positions: Int64Array
    last: Int64Array
    stamps: Int64Array


class _Indexes:
    """The offset index and the time index of a segment, which are built incrementally like `OffsetIndex.build` and
    `TimeIndex.build`.
    """

    def __init__(self, base: int, interval: int) -> None:
        self._base = base
        self._interval = interval
        self.max_timestamp = NO_TIMESTAMP
        self.offset_count = 0
        self.time_count = 0
        self._max_offset = base
        """The last offset of the earliest batch with the largest timestamp."""
        self._indexed = 0
        """The position of the batch that was indexed last."""
        self._stamped = NO_TIMESTAMP
        """The timestamp of the last time index entry."""
        none = np.empty(0, np.int64)
        self._offsets, self._positions, self._stamps, self._max_offsets = [none], [none], [none], [none]

    def add(self, positioned: BatchPositions) -> None:
        positions, last, stamps = positioned
        running, max_offsets = self._maxima(last, stamps)
        batches = self._choose(positions)
        if len(batches):
            self._offsets.append(last[batches])
            self._positions.append(positions[batches])
            self.offset_count += len(batches)
            self._indexed = int(positions[batches[-1]])
            self._stamp(running[batches], max_offsets[batches])
        self.max_timestamp, self._max_offset = int(running[-1]), int(max_offsets[-1])

    def until_full(self, positioned: BatchPositions, offset_entries: int, time_entries: int) -> int:
        """Return how many batches can be appended before an index is full. Kafka checks this before each append."""
        positions, last, stamps = positioned
        if not len(positions):
            return 0
        running, _ = self._maxima(last, stamps)
        indexed = self._choose(positions)
        stamped = indexed[self._rises(running[indexed])]
        # Batch i does not fit if existing entries and the entries of earlier batches already fill an index.
        full = [len(positions)]
        for entries, used, free in (
            (indexed, self.offset_count, offset_entries),
            (stamped, self.time_count, time_entries),
        ):
            if used >= free:
                full.append(0)
            elif free - used <= len(entries):
                full.append(int(entries[free - used - 1]) + 1)
        return min(full)

    def built(self) -> tuple[OffsetIndex, TimeIndex]:
        self._stamp(np.array([self.max_timestamp], np.int64), np.array([self._max_offset], np.int64))
        return (
            OffsetIndex(self._base, np.concatenate(self._offsets), np.concatenate(self._positions)),
            TimeIndex(self._base, np.concatenate(self._stamps), np.concatenate(self._max_offsets)),
        )

    def _maxima(self, last: Int64Array, stamps: Int64Array) -> tuple[Int64Array, Int64Array]:
        """Return for each batch the largest timestamp up to this batch, and the last offset of the earliest batch with
        that timestamp.
        """
        running = np.maximum(np.maximum.accumulate(stamps), self.max_timestamp)
        rises = np.empty(len(running), np.bool_)
        rises[0] = running[0] > self.max_timestamp
        np.greater(running[1:], running[:-1], out=rises[1:])
        rose = np.maximum.accumulate(np.where(rises, np.arange(len(rises)), -1))
        return running, np.where(rose < 0, self._max_offset, last[rose])

    def _choose(self, positions: Int64Array) -> Int64Array:
        """Return the batches that get an index entry, which are more than the interval after the previous entry."""
        if len(positions) == 1 or int(np.diff(positions).min()) > self._interval:
            # All batches are further apart than the interval.
            return np.arange(int(positions[0] <= self._indexed + self._interval), len(positions))
        batches: list[int] = []
        indexed = self._indexed
        while (batch := int(np.searchsorted(positions, indexed + self._interval, "right"))) < len(positions):
            batches.append(batch)
            indexed = int(positions[batch])
        return np.array(batches, np.int64)

    def _rises(self, stamps: Int64Array) -> npt.NDArray[np.bool_]:
        return stamps > np.concatenate(([self._stamped], stamps[:-1]))

    def _stamp(self, stamps: Int64Array, max_offsets: Int64Array) -> None:
        kept = self._rises(stamps)
        if kept.any():
            self._stamps.append(stamps[kept])
            self._max_offsets.append(max_offsets[kept])
            self.time_count += int(kept.sum())
            self._stamped = int(stamps[-1])


def _positions(headers: BatchHeaders, size: int) -> BatchPositions:
    return BatchPositions(headers.position - headers.position[:1] + size, headers.last_offset, headers.max_timestamp)
