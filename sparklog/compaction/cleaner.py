"""A cleaning pass over one partition, record by record, like Kafka's `Cleaner` (see docs/reference/kafka-format.md).

A pass first reads the dirty part to find the highest offset of each key (`fill_map`). Then it reads all records from
the first segment on, and copies the records to retain (`Cleaner`):

| record                                                       | action                                                |
|--------------------------------------------------------------|-------------------------------------------------------|
| of an aborted transaction                                    | dropped, wherever it is                               |
| above the offsets that the map covers                        | kept for the next pass                                |
| without a key                                                | dropped and counted                                   |
| with a key that has a higher offset in the map               | dropped                                               |
| tombstone in a batch whose delete horizon has passed         | dropped                                               |
| tombstone of format v0 or v1 in an old file (see below)      | dropped                                               |
| any other                                                    | kept; the batch of a tombstone gets a delete horizon, |
|                                                              | unless it has one                                     |

In the dirty part, the map contains the offset of the record to retain for each key, so it is sufficient to compare
offsets. Only keys of the clean part are hashed again and looked up. Batches without any record to retain are not opened
a second time.

The retained messages of formats v0 and v1 become batches of format v2. If they include a tombstone, the batch gets a
delete horizon. The old formats have no delete horizons. Instead, a tombstone is dropped if its file was last modified
at least `delete.retention.ms` before the file of the last clean segment.

A pass requires memory for the map, eight more bytes per key, and windows of `span_bytes` bytes of batches. If batches
are compressed, a window contains as many batches as decompress to about that size. The output is streamed. All data is
validated before use: the CRC-32C of each batch and of the entire segment, and the order of the offsets, because the
CRC-32C of a batch does not cover its offset.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from sparklog.compaction.producer_state import BatchActions, BatchFilter, PartitionProducers, aborted_batches
from sparklog.compaction.segment_writer import SegmentWriter
from sparklog.errors import BadRequest, Conflict
from sparklog.format.batch_walk import Window
from sparklog.format.filter_batches import Filtered, filter_batches
from sparklog.format.key_filter import HASH_KEY as FILTER_HASH_KEY
from sparklog.format.key_filter import BatchKeys
from sparklog.format.key_hash import HashKey, key_hashes
from sparklog.format.offset_map import Int64s, OffsetMap
from sparklog.format.payloads import RecordFields, payloads, record_fields
from sparklog.format.record_batch import NO_PRODUCER_ID, NO_TIMESTAMP, BatchHeaders, Payloads
from sparklog.format.transaction_index import AbortedTransactions
from sparklog.log.read.damaged_slices import valid_batches
from sparklog.log.read.planned_slices import PlannedSlice
from sparklog.log.read.slice_files import MissingFile, opened_slice
from sparklog.log.state.slices import SliceFlag
from sparklog.maintenance.work_items import Progress
from sparklog.storage.store import Store

INT64_MAX = 2**63 - 1
STEP_BYTES = 4 << 20
"""The maximum number of compressed bytes in one step of `SegmentReader.opened`."""
STEP_GROWTH = 4
"""The maximum ratio of the bytes of a step to the bytes of the previous step."""

Bools = npt.NDArray[np.bool_]


@dataclass(slots=True)
class PassCounts:
    """The counters of a pass. As in Kafka, `messages_*` include control records, but not the records of batches that
    were dropped without being read.
    """

    bytes_read: int = 0
    bytes_written: int = 0
    messages_read: int = 0
    messages_written: int = 0
    records_before: int = 0
    records_after: int = 0
    tombstones_kept: int = 0
    tombstones_dropped: int = 0
    keyless_dropped: int = 0

    def add_filtered(self, headers: BatchHeaders, fields: RecordFields, keep: Bools, drop: Bools) -> None:
        """Count filtered batches. `keep` marks the retained records, and `drop` marks batches that were dropped without
        being read.
        """
        self.messages_read += int(headers.count[~drop].sum())
        if not fields.has_value.all():
            tombstones = ~fields.has_value & ~headers.is_control[fields.batch]
            kept = int(np.count_nonzero(tombstones & keep))
            self.tombstones_kept += kept
            self.tombstones_dropped += int(np.count_nonzero(tombstones)) - kept

    def add_written(self, headers: BatchHeaders, records: int) -> None:
        self.bytes_written += int(headers.size.sum())
        self.messages_written += int(headers.count.sum())
        self.records_after += records


@dataclass(frozen=True, slots=True)
class Opened:
    """Some batches of a window with their records, starting at row `first` of the requested headers."""

    first: int
    headers: BatchHeaders
    body: Payloads
    fields: RecordFields

    @property
    def rows(self) -> slice:
        return slice(self.first, self.first + len(self.headers))


class SegmentReader:
    """Reads the sealed segments of a partition, each of which is a slice, and opens their batches."""

    def __init__(self, store: Store, topic: str, partition: int, progress: Progress) -> None:
        self.limits = store.limits
        self._store = store
        self._topic = topic
        self._partition = partition
        self._progress = progress
        self._step = 0
        """The number of compressed bytes to open together. The first step opens one batch, and later steps depend on
        the last compression ratio.
        """

    def modified_ms(self, file: str) -> int:
        """Return the modification time (ms) of a file, which is a time of the store's clock, or of Kafka's clock if an
        import linked the file.
        """
        info = self._store.stat(file)
        if info is None:
            raise self._replaced(file)
        return info.modified_ms

    def windows(self, source: PlannedSlice) -> Iterator[Window]:
        """Yield the batches of a segment in order. Raises `Corrupt`, and `Conflict` if the file was deleted."""
        try:
            with opened_slice(self._store, source) as file:
                for window in valid_batches(file, source.base, source.end, on_skipped=None, advice="restore the file"):
                    self._progress(int(window.headers.count.sum()), len(window.data))
                    yield window
        except MissingFile:
            raise self._replaced(source.file) from None

    def _replaced(self, file: str) -> Conflict:
        return Conflict(
            f"{file} no longer exists, because it was replaced after this pass over {self._topic}-{self._partition} "
            "was planned; run the compaction again"
        )

    def opened(self, window: Window, headers: BatchHeaders) -> Iterator[Opened]:
        """Yield the batches of these headers with their records, in parts that fit into memory."""
        if not len(headers):
            return
        if not headers.codec.any():
            yield from self._open(window, headers, 0)
            return
        ends = np.cumsum(headers.size)
        first = 0
        while first < len(headers):
            start = int(ends[first] - headers.size[first])
            last = max(first + 1, int(np.searchsorted(ends, start + self._step, "right")))
            stored = int(ends[last - 1]) - start
            became = 0
            for opened in self._open(window, headers[first:last], first):
                became += len(opened.body.data)
                yield opened
            fitting = self.limits.span_bytes * stored // max(became, 1)
            self._step = min(fitting, STEP_GROWTH * stored, STEP_BYTES)
            first = last

    def _open(self, window: Window, headers: BatchHeaders, first: int) -> Iterator[Opened]:
        try:
            body = payloads(window.data, headers, check_crc=False, file=window.file, file_position=window.start)
        except BadRequest:
            if len(headers) == 1:
                raise
            # Together, the decompressed batches exceed the limit of one call. The size of a single batch is limited.
            half = len(headers) // 2
            yield from self._open(window, headers[:half], first)
            yield from self._open(window, headers[half:], first + half)
            return
        fields = record_fields(body, headers, file=window.file, file_position=window.start)
        yield Opened(first, headers, body, fields)


@dataclass(frozen=True, slots=True)
class DirtyRange:
    """The offsets `[start, end)` whose keys are collected, and the segments, starting with the segment that contains
    `start`.
    """

    segments: Sequence[PlannedSlice]
    start: int
    end: int


@dataclass(slots=True)
class DirtySurvey:
    """The information that a pass has about the dirty part after the map is filled."""

    start: int  # first offset of the dirty part
    end: int = 0  # end of the offsets in the map (exclusive)
    latest: Int64s = field(
        default_factory=lambda: np.empty(0, np.int64)
    )  # offset of the latest record of each key, ascending
    _plain: list[tuple[int, int]] = field(
        default_factory=list
    )  # offset ranges in which all records have a key and a value

    def add(self, opened: Opened) -> None:
        """Add batches whose keys are in the map."""
        if opened.fields.has_key.all() and opened.fields.has_value.all():
            first, end = int(opened.headers.base_offset[0]), int(opened.headers.next_offset[-1])
            if self._plain and self._plain[-1][1] == first:
                first = self._plain.pop()[0]
            self._plain.append((first, end))

    def close(self, offset_map: OffsetMap) -> DirtySurvey:
        self.end, self.latest = offset_map.latest_offset + 1, offset_map.offsets()
        return self

    def empty(self, headers: BatchHeaders) -> Bools:
        """Return the batches (bool[m]) that retain no record and contain no tombstones or keyless records to be
        counted.
        """
        first, end = headers.base_offset, headers.next_offset
        empty: Bools = (first >= self.start) & (end <= self.end) & ~headers.is_control
        empty &= np.searchsorted(self.latest, first) == np.searchsorted(self.latest, end)
        if empty.any():
            starts, ends = np.array(self._plain, np.int64).reshape(-1, 2).T
            row = np.searchsorted(starts, first, "right") - 1
            empty &= (row >= 0) & (end <= np.append(ends, -1)[row])
        return empty

    def mark_latest(self, offsets: Int64s, keep: Bools) -> None:
        """Set `keep` at the latest records of their keys. `offsets` are in ascending order."""
        if len(offsets):
            low, high = np.searchsorted(self.latest, (offsets[0], offsets[-1] + 1))
            keep[np.searchsorted(offsets, self.latest[low:high])] = True


def fill_map(
    offset_map: OffsetMap, dirty: DirtyRange, reader: SegmentReader, hash_key: HashKey, state: PartitionProducers | None
) -> DirtySurvey:
    """Put the keys of the dirty segments into the map until it is full, possibly in the middle of a batch."""
    survey = DirtySurvey(dirty.start)
    ends = [segment.base for segment in dirty.segments[1:]] + [dirty.end]
    for segment, end in zip(dirty.segments, ends, strict=True):
        for window in reader.windows(segment):
            headers = window.headers
            skipped = headers.is_control | aborted_batches(state, headers)
            rows = np.flatnonzero(~skipped & (headers.last_offset >= dirty.start))
            selection = headers if len(rows) == len(headers) else headers[rows]
            full = None
            for part in reader.opened(window, selection):
                batch = _put(offset_map, part, hash_key, dirty.start)
                if batch is not None:
                    full = part.first + batch
                    break
                survey.add(part)
            # The map covers all batches before the batch that filled it, including batches without keys.
            covered = len(headers) if full is None else int(rows[full])
            if covered > 0 and headers.last_offset[covered - 1] >= dirty.start:
                offset_map.advance(int(headers.last_offset[covered - 1]))
            if full is not None:
                return survey.close(offset_map)
        offset_map.advance(end - 1)
    return survey.close(offset_map)


def _put(offset_map: OffsetMap, opened: Opened, hash_key: HashKey, start: int) -> int | None:
    """Put the records with keys into the map. Return the batch at which the map became full, or None."""
    fields = opened.fields
    mask = fields.has_key & (fields.offset >= start)
    starts, lengths, offsets = fields.key_start, fields.key_length, fields.offset
    every = bool(mask.all())
    if not every:
        starts, lengths, offsets = starts[mask], lengths[mask], offsets[mask]
    accepted = offset_map.put(key_hashes(opened.body.data, starts, lengths, hash_key), offsets)
    return None if accepted == len(offsets) else int((fields.batch if every else fields.batch[mask])[accepted])


@dataclass(frozen=True, slots=True)
class TombstoneRules:
    """The time of the pass (ms), `delete.retention.ms`, and the last segment that starts below the dirty part."""

    now_ms: int
    delete_retention_ms: int
    last_clean: PlannedSlice | None


@dataclass(frozen=True, slots=True)
class _KeptBatches:
    """The retained part of some batches: which of the k batches contain keyless records, and the keys of the batches if
    requested.
    """

    filtered: Filtered
    keyless: Bools
    keys: BatchKeys | None


@dataclass(slots=True, eq=False)
class Cleaner:
    """Copies the records to retain into new segments, according to the map and the batch filter. The methods must be
    called in log order.
    """

    offset_map: OffsetMap
    hash_key: HashKey
    survey: DirtySurvey
    batch_filter: BatchFilter
    reader: SegmentReader
    writer: SegmentWriter
    rules: TombstoneRules
    counts: PassCounts = field(default_factory=PassCounts)
    _file_expired: tuple[str, bool] = ("", False)

    def group(self, segments: Sequence[PlannedSlice]) -> None:
        """Clean these segments into one segment, which has the base offset of the first segment."""
        large = sum(segment.size for segment in segments) >= self.reader.limits.filter_min_bytes
        self.writer.begin(segments[0].base, large)
        for segment in segments:
            for window in self.reader.windows(segment):
                self._window(window, segment)
        self.writer.finish()

    def _window(self, window: Window, segment: PlannedSlice) -> None:
        headers = window.headers
        self.counts.bytes_read += len(window.data)
        self.counts.records_before += int(headers.count[~headers.is_control].sum())
        actions = self.batch_filter.actions(window)
        aborted = actions.aborted
        empty = self.survey.empty(headers) & ~(actions.dropped | actions.retain_empty)
        if empty.any():
            self.counts.messages_read += int(headers.count[empty].sum())
            rows = np.flatnonzero(~empty)
            headers, actions = headers[rows], actions.select(rows)
        for opened in self.reader.opened(window, headers):
            kept = self._filter_batches(window, opened, actions.select(opened.rows))
            aborted = self._write(kept, segment, aborted)
        self.writer.aborted(aborted)

    def _filter_batches(self, window: Window, opened: Opened, actions: BatchActions) -> _KeptBatches:
        """Return the part of some batches to retain."""
        headers, fields = opened.headers, opened.fields
        keep = self._kept_records(window, opened, actions.dropped)
        # Retain the last batch of a producer even if it has no records, because its header determines the next sequence
        # number.
        drop = actions.dropped & ~actions.retain_empty
        filtered = filter_batches(
            window.data,
            headers,
            opened.body,
            fields,
            keep=keep,
            drop=drop,
            empty=actions.retain_empty,
            horizon=self._horizons(opened, keep, actions.stamp_control),
        )
        self.counts.add_filtered(headers, fields, keep, drop)
        keyless = np.zeros(len(headers), np.bool_)
        if headers.is_control.any():
            keep &= ~headers.is_control[fields.batch]
        if not fields.has_key.all():
            keyless[fields.batch[keep & ~fields.has_key]] = True
            keep &= fields.has_key
        if not self.writer.keyed:
            return _KeptBatches(filtered, keyless[filtered.source], None)
        rows = np.flatnonzero(keep)
        hashes = key_hashes(opened.body.data, fields.key_start[rows], fields.key_length[rows], FILTER_HASH_KEY)
        counts = np.bincount(fields.batch[rows], minlength=len(headers))
        return _KeptBatches(filtered, keyless[filtered.source], BatchKeys(hashes, counts[filtered.source]))

    def _horizons(self, opened: Opened, keep: Bools, markers: Bools) -> Int64s:
        """Return the new delete horizons (ms) of these `markers` and of batches that retain a tombstone, or -1 for
        other batches.
        """
        stamped = markers.copy()
        stamped[opened.fields.batch[keep & ~opened.fields.has_value]] = True
        stamped &= ~opened.headers.has_delete_horizon
        return np.where(stamped, min(self.rules.now_ms + self.rules.delete_retention_ms, INT64_MAX), -1)

    def _kept_records(self, window: Window, opened: Opened, dropped: Bools) -> Bools:
        """Return the records to retain. Records in `dropped` batches are not retained."""
        headers, fields = opened.headers, opened.fields
        control = headers.is_control
        keep = np.ones(len(fields), np.bool_)
        clean, mapped = np.searchsorted(fields.offset, (self.survey.start, self.survey.end)).tolist()
        clean = min(clean, mapped)
        if mapped:
            batch, has_key, no_value = fields.batch[:mapped], fields.has_key[:mapped], ~fields.has_value[:mapped]
            keep_mapped = np.zeros(mapped, np.bool_)
            if clean:
                starts, lengths = fields.key_start[:clean], fields.key_length[:clean]
                hashes = key_hashes(opened.body.data, starts, lengths, self.hash_key)
                keep_mapped[:clean] = fields.offset[:clean] >= self.offset_map.get(hashes)
            self.survey.mark_latest(fields.offset[clean:mapped], keep_mapped[clean:])
            if not has_key.all():
                keep_mapped &= has_key
                self.counts.keyless_dropped += int(np.count_nonzero(~has_key & ~(control | dropped)[batch]))
            if no_value.any():
                keep_mapped &= ~(no_value & self._tombstones_expired(window, headers)[batch])
            keep[:mapped] = keep_mapped
        if control.any():
            keep |= control[fields.batch]
        if dropped.any():
            keep &= ~dropped[fields.batch]
        return keep

    def _tombstones_expired(self, window: Window, headers: BatchHeaders) -> Bools:
        """Return the batches whose tombstones have expired (bool[m])."""
        # The delete horizon of a batch is stored as its base timestamp.
        expired: Bools = headers.has_delete_horizon & (headers.base_timestamp <= self.rules.now_ms)
        if headers.magic is not None and self.rules.last_clean is not None:
            expired |= headers.is_legacy & self._is_old(window.file, self.rules.last_clean)
        return expired

    def _is_old(self, file: str, last_clean: PlannedSlice) -> bool:
        """Return True if tombstones of formats v0 and v1 in this file have expired according to Kafka's rule."""
        if self._file_expired[0] != file:
            horizon = self.reader.modified_ms(last_clean.file) - self.rules.delete_retention_ms
            self._file_expired = (file, self.reader.modified_ms(file) <= horizon)
        return self._file_expired[1]

    def _write(self, kept: _KeptBatches, segment: PlannedSlice, aborted: AbortedTransactions) -> AbortedTransactions:
        """Append batches, and start new segments as needed. Return the `.txnindex` entries of markers that follow
        later.
        """
        filtered, headers, writer, first = kept.filtered, kept.filtered.headers, self.writer, 0
        while first < len(headers):
            rest = headers[first:] if first else headers
            batch_count = writer.fits(rest)
            if batch_count == 0:
                writer.begin(int(rest.base_offset[0]))
                continue
            some = rest if batch_count == len(rest) else rest[:batch_count]
            control = some.is_control
            records = int(some.count[~control].sum())
            min_timestamps = np.where(some.count > 0, filtered.min_ts[first : first + batch_count], some.max_timestamp)
            min_timestamps = min_timestamps[min_timestamps > NO_TIMESTAMP]
            flags = SliceFlag.NONE
            if (control | (some.producer_id != NO_PRODUCER_ID)).any():
                flags |= SliceFlag.KAFKA_PRODUCERS
            if some.is_log_append_time.any():
                flags |= SliceFlag.LOG_APPEND_TIME
            if kept.keyless[first : first + batch_count].any():
                flags |= SliceFlag.HAS_NULL_KEYS
            writer.append(
                filtered.data,
                some,
                records=records,
                min_ts=int(min_timestamps.min()) if len(min_timestamps) else NO_TIMESTAMP,
                flags=int(flags),
                # This value is used only if no batch has a timestamp. The largest timestamp of the slice is then the
                # modification time of its file.
                modified_ms=segment.max_ts,
                keys=None if kept.keys is None else kept.keys.select(first, first + batch_count),
            )
            written = aborted.last_offsets <= int(some.last_offset[-1])
            writer.aborted(aborted.select(written))
            aborted = aborted.select(~written)
            self.counts.add_written(some, records)
            first += batch_count
        return aborted
