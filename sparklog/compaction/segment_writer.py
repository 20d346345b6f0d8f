"""Write Kafka segments: `.log` with its `.index`, `.timeindex` and `.txnindex`, byte for byte as Kafka would have.

    sealed/<partition>/<read version>-<id>/00000000000000001234.log        batches back to back, offsets as in the log
                                           00000000000000001234.index      8 bytes an entry: format/segment_indexes.py
                                           00000000000000001234.timeindex  12 bytes: format/segment_indexes.py
                                           00000000000000001234.txnindex   34 bytes; only where there are entries
                                           00000000000000001234.bloom      format/key_filter.py: ours, not Kafka's

Batches come with final offsets, in order; what they hold is not looked at. Index entries follow the rule for appends
of single batches, which is also what Kafka's recovery rebuilds. The indexes grow while the log is written, so that a
segment of many tiny batches costs no more memory than its indexes are allowed to have.

A segment of 0 bytes is never written (Kafka leaves such where the cleaner keeps nothing of a group): a slice cannot
be empty, and nothing needs one here.
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
"""Kafka opens no larger file: positions in an index are int32."""
ASIDE_BYTES = 4 << 20
"""A segment of this size or more waits for the disk while the next one is written."""
_CARRIED = int(SliceFlag.HAS_NULL_KEYS | SliceFlag.LOG_APPEND_TIME | SliceFlag.KAFKA_PRODUCERS)

Int64Array = npt.NDArray[np.int64]


class WrittenObjects:
    """Objects of a task that nothing names yet: deleted if it fails; what the store keeps is left to the vacuum."""

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
    """The segments that one run writes for one partition, one after the other, into one folder.

    `begin` names a segment by its base offset, `append` adds batches, `finish` ends it, `close` gives all of them for
    the commit; `discard`, in its place, deletes them.
    """

    def __init__(
        self, store: Store, topic: str, partition: int, read_version: int, unique: str, configs: TopicConfigs
    ) -> None:
        """`read_version`: of the plan; `unique`: an id of this run (`Env.new_id`). Both name the folder."""
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
        """The current segment may get filters of its keys."""
        self._done: list[FileSlices] = []
        self._written = WrittenObjects(store)
        self._aside: ThreadPoolExecutor | None = None
        self._ending: Future[None] | None = None
        """The segment before the current one, if it may not be durable yet."""

    def path(self, base: int) -> str:
        return sealed_path(self._partition, *self._folder, base)

    def key(self, path: str) -> str:
        """Return the key of a file that the run writes."""
        return file_key(self._topic, path)

    def begin(self, base: int, keyed: bool | None = None) -> None:
        """End the segment before, begin one. `keyed`: with filters of its keys once it is large; None: as before."""
        self.finish()
        self.keyed = self.keyed if keyed is None else keyed
        builder = FilterBuilder() if self.keyed else None
        self._current = _SegmentInProgress(base, base, _Indexes(base, self._interval), keys=builder)

    def fits(self, headers: BatchHeaders, segment_bytes: int = MAX_SEGMENT_BYTES) -> int:
        """Count the batches, from the first on, that still go into the current segment by Kafka's roll rule.

        Fewer than all where the offset index or the time index would be full before a batch is appended, where an
        offset is more than 2^31-1 above the base, or where the segment would exceed `segment_bytes`; but an empty
        segment takes its first batch whatever its size. 0: `begin` a segment at the first batch's base offset.
        """
        current = self._segment()
        greatest = min(current.base, MAX_OFFSET - MAX_RELATIVE_OFFSET) + MAX_RELATIVE_OFFSET
        many = int(np.searchsorted(headers.last_offset, greatest, "right"))
        room = min(segment_bytes, MAX_SEGMENT_BYTES) - current.size
        many = min(many, max(int(np.searchsorted(np.cumsum(headers.size), room, "right")), int(current.size == 0)))
        indexes = current.indexes
        if indexes.offset_count + many > self._offset_entries or indexes.time_count + many > self._time_entries:
            places = _places(headers[:many], current.size)
            free = indexes.until_full(places, self._offset_entries, self._time_entries)
            many = max(free, min(many, int(current.size == 0)))
        return many

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
        """Add the batches of `headers` (final offsets), which are back to back in `data` where their positions say.

        `records`: how many the slice is said to hold; `min_ts`: their smallest timestamp, -1 without any; `flags`: of
        `SliceFlag`, of which those that hold for a sealed segment are kept. `modified_ms`: the time of a segment none
        of whose batches has a timestamp (Kafka: the file's modification time). `keys`: those of the batches, if they
        are at hand. `BadRequest` where offsets do not rise.
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
        current.indexes.add(_places(headers, current.size))
        current.crc = crc32c.crc32c(body, current.crc)
        current.size += len(body)
        current.next_offset = int(headers.next_offset[-1])
        current.records += records
        current.flags |= flags & _CARRIED
        current.modified_ms = max(current.modified_ms, modified_ms)
        if min_ts != NO_TIMESTAMP:
            current.min_ts = min_ts if current.min_ts == NO_TIMESTAMP else min(current.min_ts, min_ts)

    def aborted(self, entries: AbortedTransactions) -> None:
        """Entries of the current segment's `.txnindex`: transactions whose ABORT marker is in it, in order."""
        if len(entries):
            self._segment().aborted.append(entries)

    def finish(self) -> None:
        """End the current segment, if it has batches; durable with `close`. Raises what befell the one before."""
        self._wait()
        current, self._current = self._current, None
        if current is None or current.writer is None:
            return
        if current.size < ASIDE_BYTES:
            self._end(current)
            return
        if self._aside is None:
            self._aside = ThreadPoolExecutor(1, thread_name_prefix="sparklog-segment")
        self._ending = self._aside.submit(self._end, current)

    def _wait(self) -> None:
        ending, self._ending = self._ending, None
        if ending is not None:
            ending.result()

    def _end(self, current: _SegmentInProgress) -> None:
        """Make the files of a segment durable."""
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
        self._done.append(replace(current.file(self._partition), index_crc=(index_crc(*data),)))

    def close(self) -> tuple[FileSlices, ...]:
        """End the current segment; return all in the order written, durable and with their bases, for a commit."""
        self.finish()
        self._wait()
        self._shut()
        return tuple(self._done)

    def discard(self) -> None:
        """Delete what was written."""
        current, self._current = self._current, None
        if current is not None and current.writer is not None:
            current.writer.discard()
        with suppress(Exception):
            self._wait()
        self._shut()
        self._done.clear()
        self._written.discard()

    def _shut(self) -> None:
        if self._aside is not None:
            self._aside.shutdown()
            self._aside = None

    def _segment(self) -> _SegmentInProgress:
        if self._current is None:
            raise BadRequest("no segment was begun: call begin with its base offset first")
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
                f"segment {current.base} with {current.size} bytes takes no batches up to offset {last} with {nbytes} "
                "bytes: begin another one"
            )
        if nbytes != int(headers.size.sum()):
            raise BadRequest(f"expected batches back to back, found {int(headers.size.sum())} bytes of {nbytes}")


@dataclass(slots=True)
class _SegmentInProgress:
    """The segment being written; its `.log` is opened with its first batch."""

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
        """Return the filter of a segment of `min_bytes` or more."""
        if self.keys is None or self.size < min_bytes:
            return None
        return self.keys.finish(0, self.size, self.crc)

    def file(self, partition: int) -> FileSlices:
        flags = self.flags
        if flags & SliceFlag.LOG_APPEND_TIME:
            flags |= SliceFlag.TIMES_IN_BATCHES
        if self.aborted:
            flags |= SliceFlag.KAFKA_ABORTED
        greatest = self.indexes.max_timestamp
        written = WrittenSlice(
            partition=partition,
            nbytes=self.size,
            offsets=self.next_offset - self.base,
            records=self.records,
            min_ts=self.min_ts,
            max_ts=self.modified_ms if greatest == NO_TIMESTAMP else greatest,
            crc=self.crc,
            flags=int(flags),
        )
        return FileSlices.of(self.path, [written], 0).in_log(self.base)


class BatchPlaces(NamedTuple):
    """Places of batches, int64[n] each: where they start in their segment, last offset, maxTimestamp (ms)."""

    positions: Int64Array
    last: Int64Array
    stamps: Int64Array


class _Indexes:
    """Both indexes of one segment, built while its batches are written: `OffsetIndex.build` and `TimeIndex.build`
    in steps."""

    def __init__(self, base: int, interval: int) -> None:
        self._base = base
        self._interval = interval
        self.max_timestamp = NO_TIMESTAMP
        self.offset_count = 0
        self.time_count = 0
        self._holder = base
        """Last offset of the earliest batch with that timestamp."""
        self._indexed = 0
        """Where the batch starts that was indexed last."""
        self._stamped = NO_TIMESTAMP
        """Timestamp of the last time entry."""
        none = np.empty(0, np.int64)
        self._offsets, self._positions, self._stamps, self._holders = [none], [none], [none], [none]

    def add(self, places: BatchPlaces) -> None:
        positions, last, stamps = places
        running, holders = self._maxima(last, stamps)
        batches = self._choose(positions)
        if len(batches):
            self._offsets.append(last[batches])
            self._positions.append(positions[batches])
            self.offset_count += len(batches)
            self._indexed = int(positions[batches[-1]])
            self._stamp(running[batches], holders[batches])
        self.max_timestamp, self._holder = int(running[-1]), int(holders[-1])

    def until_full(self, places: BatchPlaces, offset_entries: int, time_entries: int) -> int:
        """Count the next batches until an index is full: Kafka checks that before each append."""
        positions, last, stamps = places
        if not len(positions):
            return 0
        running, _ = self._maxima(last, stamps)
        indexed = self._choose(positions)
        stamped = indexed[self._rises(running[indexed])]
        # Batch i is refused if the entries of batches before it, and those there are, already fill an index.
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
        self._stamp(np.array([self.max_timestamp], np.int64), np.array([self._holder], np.int64))
        return (
            OffsetIndex(self._base, np.concatenate(self._offsets), np.concatenate(self._positions)),
            TimeIndex(self._base, np.concatenate(self._stamps), np.concatenate(self._holders)),
        )

    def _maxima(self, last: Int64Array, stamps: Int64Array) -> tuple[Int64Array, Int64Array]:
        """Per batch the greatest timestamp up to it, and the last offset of the earliest batch that has it."""
        running = np.maximum(np.maximum.accumulate(stamps), self.max_timestamp)
        rises = np.empty(len(running), np.bool_)
        rises[0] = running[0] > self.max_timestamp
        np.greater(running[1:], running[:-1], out=rises[1:])
        rose = np.maximum.accumulate(np.where(rises, np.arange(len(rises)), -1))
        return running, np.where(rose < 0, self._holder, last[rose])

    def _choose(self, positions: Int64Array) -> Int64Array:
        """Return the batches that get an entry: those more than the interval after the one indexed before."""
        if len(positions) == 1 or int(np.diff(positions).min()) > self._interval:
            # No two batches are so near that one hides the other.
            return np.arange(int(positions[0] <= self._indexed + self._interval), len(positions))
        batches: list[int] = []
        indexed = self._indexed
        while (batch := int(np.searchsorted(positions, indexed + self._interval, "right"))) < len(positions):
            batches.append(batch)
            indexed = int(positions[batch])
        return np.array(batches, np.int64)

    def _rises(self, stamps: Int64Array) -> npt.NDArray[np.bool_]:
        return stamps > np.concatenate(([self._stamped], stamps[:-1]))

    def _stamp(self, stamps: Int64Array, holders: Int64Array) -> None:
        kept = self._rises(stamps)
        if kept.any():
            self._stamps.append(stamps[kept])
            self._holders.append(holders[kept])
            self.time_count += int(kept.sum())
            self._stamped = int(stamps[-1])


def _places(headers: BatchHeaders, size: int) -> BatchPlaces:
    return BatchPlaces(headers.position - headers.position[:1] + size, headers.last_offset, headers.max_timestamp)
