"""Read a range of offsets of a Kafka partition from the files that contain the offsets at the time of the read.

A part consists of an offset range and the partition directory. A part does not contain positions or file names, because
the log cleaner may replace files between planning and reading. The part contains the aborted transactions of its range,
because their markers may be after the end of the range. The batches of a segment are decoded like the batches of a
sealed slice.

Every batch of the range is checked. `corrupt_records` determines how damaged batches are handled (see
`segment_recovery`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from sparklog.errors import Corrupt, NotFound
from sparklog.format.batch_scan import MAX_OFFSET, header_rules
from sparklog.format.batch_walk import BatchWalk, Damage, Window, checked_batches
from sparklog.format.transaction_index import AbortedTransactions
from sparklog.kafka.in_place import segment_recovery as recovery
from sparklog.kafka.in_place.directory import SegmentName, list_segments, missing_segment
from sparklog.kafka.in_place.files import FilePath
from sparklog.kafka.in_place.segment_file import SegmentFile, seek
from sparklog.log.read.fetch import FetchedBatches
from sparklog.log.read.planned_slices import PlannedSlice
from sparklog.log.read.skipped import OnSkipped, Skipped
from sparklog.log.state.view import COUNTED, OffsetRange, check_columns

MIN_WINDOW_BYTES, MAX_WINDOW_BYTES = 64 << 10, 4 << 20
MAX_REPLANS = 10
REMEDY = "restore the file, read other offsets, or skip the damage with corruptRecords=skip"


@dataclass(frozen=True, slots=True)
class KafkaReadPart:
    """Implements `ReadPart` for a partition directory. `records` and `nbytes` are estimates.

    * `aborted`: the aborted transactions, or None for read_uncommitted
    * `corrupt_records`: the policy for damaged batches (see `segment_recovery`)
    * `on_skipped`: function that is called for each skipped range; it must be picklable if the part is read in another
      process
    """

    partition_dir: FilePath
    range: OffsetRange
    records: int
    nbytes: int
    aborted: AbortedTransactions | None
    corrupt_records: str = recovery.FAIL
    on_skipped: OnSkipped = recovery.log_skipped

    def read(self, columns: Sequence[str], *, batch_bytes: int = 4 << 20) -> Iterator[pa.RecordBatch]:
        """Yield the records in offset order, in batches of about `batch_bytes` with exactly `columns`.

        Raises `Corrupt` with the file, position and offset if a batch is damaged and is not skipped. Raises `NotFound`
        if the log no longer contains the range, because the log start offset has increased or the log was truncated.
        """
        from sparklog.log.read.decode_slices import read_fetched

        columns = check_columns(columns)
        on_skipped = self.on_skipped if self.corrupt_records == recovery.SKIP else None
        fetched = self._fetch(min(max(batch_bytes, MIN_WINDOW_BYTES), MAX_WINDOW_BYTES))
        batches = read_fetched(fetched, columns or COUNTED, batch_bytes, on_skipped=on_skipped)
        yield from batches if columns else (batch.select([]) for batch in batches)

    def _fetch(self, window_bytes: int) -> Iterator[FetchedBatches]:
        """Yield the windows of each segment as if the segment were a slice in a sealed file."""
        offsets, slices = self.range, dict[str, PlannedSlice]()
        for window in self.windows(window_bytes):
            if window.file not in slices:
                slices = {window.file: _as_slice(window.file, offsets, self.aborted)}
            part, headers = window.trimmed(), window.headers
            is_partial = int(headers.base_offset[0]) < offsets.start or int(headers.next_offset[-1]) > offsets.end
            planned, data = slices[window.file], memoryview(part.data)
            yield FetchedBatches(data, part.start, planned, offsets.start, offsets.end, is_partial, True, part.headers)

    def _report_skipped(self, damage: Damage) -> None:
        offsets, end = self.range, damage.next_offset
        first, last = max(damage.offset, offsets.start), offsets.end if end is None else min(end, offsets.end)
        if first < last:
            source = offsets.topic, offsets.partition, damage.file.path, damage.position, damage.until - damage.position
            self.on_skipped(Skipped(*source, first, last, damage.reason))

    def windows(self, window_bytes: int) -> Iterator[Window]:
        """Yield windows of valid batches that cover the range, segment by segment.

        Each window has about `window_bytes` bytes.
        """
        walk = _SegmentWalk(list_segments(self.partition_dir), self.range.start)
        for replans_left in reversed(range(MAX_REPLANS + 1)):
            try:
                while (name := self._next_segment(walk)) is not None:
                    yield from self._segment(name, walk, window_bytes)
                return
            except FileNotFoundError as error:
                if not replans_left:
                    raise missing_segment(error) from None
            except Corrupt:
                if not replans_left or walk.file is None or not walk.file.is_replaced():
                    raise
            # The files were replaced by the cleaner or deleted by retention. Find the offsets in the current files.
            self.partition_dir.refresh()
            walk.names, walk.after = list_segments(self.partition_dir), -1

    def _next_segment(self, walk: _SegmentWalk) -> SegmentName | None:
        """Return the next segment to read, or None at the end of the range. Raises `NotFound` if the offsets were
        deleted.
        """
        if walk.position >= self.range.end:
            return None
        if walk.after >= 0:
            name = next((name for name in walk.names if name.base > walk.after), None)
        else:
            name = next((name for name in reversed(walk.names) if name.base <= walk.position), None)
        if name is None:
            raise self._out_of_range(walk)
        # If the next segment starts after the range, the cleaner has removed the records in between.
        return name if name.base < self.range.end else None

    def _segment(self, name: SegmentName, walk: _SegmentWalk, window_bytes: int) -> Iterator[Window]:
        """Yield the windows of one segment, and advance the position of the walk."""
        walk.skipped_to = 0
        with SegmentFile(name.path) as file:
            walk.file = file
            for window in self._segment_windows(file, name, walk, window_bytes):
                if not len(window.headers):
                    # The next batch is after the range, because the cleaner has removed the remaining records of the
                    # range.
                    walk.position = self.range.end
                    return
                yield window
                walk.position = max(walk.position, int(window.headers.next_offset[-1]))
        walk.position, walk.after = max(walk.position, walk.skipped_to), name.base

    def _segment_windows(
        self, file: SegmentFile, name: SegmentName, walk: _SegmentWalk, window_bytes: int
    ) -> Iterator[Window]:
        """Yield windows that start with the first batch that ends at or after the position of the walk, and end with
        the last batch of the range.

        Raises `Corrupt` if a batch in the range is damaged. If the damaged batch is skipped, `walk.skipped_to` is set
        to the offset after the batch.
        """
        skipping, position, end = self.corrupt_records == recovery.SKIP, walk.position, self.range.end
        limit = _limit(walk.names, name, file)
        start = _first_position(file, name, position, limit, skipping=skipping)

        def window(at: int) -> bytes:
            return file.read(at, window_bytes)

        for found in checked_batches(file, start, name.base, end=end, limit=limit, window=window):
            if isinstance(found, Window):
                yield found
            elif skipping:
                self._report_skipped(found)
                skipped_to = end if name == walk.names[-1] else position
                walk.skipped_to = max(walk.skipped_to, skipped_to if found.next_offset is None else found.next_offset)
            elif self.corrupt_records == recovery.TRUNCATE and found.expected >= end:
                return  # The log was truncated at this batch.
            elif found.size and found.following is not None and found.following.offset <= position:
                continue  # The batch is below the range.
            else:
                message, offset = found.reason, found.offset
                if found.is_structural:
                    message, offset = f"expected batches up to offset {end - 1}: {message}", max(offset, position)
                raise Corrupt(f"{message}; {REMEDY}", file=file.path, position=found.position, offset=offset)

    def _out_of_range(self, walk: _SegmentWalk) -> NotFound:
        # In a cleaned log, offsets may be missing anywhere except at its start and end.
        if walk.after >= 0:
            reason = "the log now ends below these offsets"
        else:
            reason = f"the log now starts at {walk.names[0].base}" if walk.names else "the log is now empty"
        partition = f"{self.range.topic}-{self.range.partition}"
        return NotFound(f"offsets {walk.position} to {self.range.end - 1} of {partition} no longer exist: {reason}")


@dataclass(slots=True)
class _SegmentWalk:
    """The progress of a read.

    * `position`: the next offset to read
    * `after`: the base offset of the latest segment, or -1 before the first segment
    * `skipped_to`: the offset after the skipped range in the current segment
    * `file`: the file of the current segment
    """

    names: Sequence[SegmentName]
    position: int
    after: int = -1
    skipped_to: int = 0
    file: SegmentFile | None = None


def _as_slice(file: str, offsets: OffsetRange, aborted: AbortedTransactions | None) -> PlannedSlice:
    """Return a slice that is used to decode the batches of a segment. The batches already contain the log offsets."""
    return PlannedSlice(
        position=0, size=0, base=0, end=MAX_OFFSET + 1, shift=0, records=0, min_ts=-1, max_ts=-1, crc=0, flags=0,
        append_time=-1, file_size=0, footer_length=0, leader_epoch=-1, status=0, topic=offsets.topic,
        partition=offsets.partition, path=file, file=file, hidden=aborted,
    )  # fmt: skip


def _limit(names: Sequence[SegmentName], name: SegmentName, file: SegmentFile) -> int | None:
    """Return the base offset of the next segment, which limits the offsets of `name`, or None if `name` is the last
    segment.

    Also returns None if the open file differs from the listed file, because the cleaner may have merged other segments
    into the file.
    """
    later = [other.base for other in names if other.base > name.base]
    is_listed = file.inode == name.inode
    if not file.location.is_local:
        is_listed = (file.size, file.modified) == (name.size, name.modified)
    return later[0] if later and is_listed else None


def _first_position(file: SegmentFile, name: SegmentName, offset: int, limit: int | None, *, skipping: bool) -> int:
    """Return the position of the first batch that ends at or after `offset`, or the position of a damaged range that
    may contain `offset`.

    Only headers are read. The search continues after batches of an unknown format and, if `skipping` is True, after
    other damaged ranges.
    """
    start = before = seek(file, name.base, offset)
    expected = name.base
    while True:
        walk = BatchWalk(file, start, headers_only=True)
        for window in walk:
            headers = window.headers
            ends = np.concatenate(([expected], headers.next_offset[:-1]))
            is_odd = np.logical_or.reduce([headers.base_offset < ends, *(odd for odd, _ in header_rules(headers))])
            matching = np.flatnonzero((headers.last_offset >= offset) | is_odd)
            if len(matching):
                # If two batches are out of order, the first batch may be the invalid one.
                row = int(matching[0])
                is_ordered = headers.base_offset[row] >= ends[row]
                previous = before if not row else window.start + int(headers.position[row - 1])
                return window.start + int(headers.position[row]) if is_ordered else previous
            before, expected = window.start + int(headers.position[-1]), int(headers.next_offset[-1])
        damage = walk.damage(name.base, limit)
        unknown = None if damage is None else file.unknown_format_at(walk.end)
        if unknown is not None and int(unknown.last_offset[0]) < offset:
            start = before = walk.end + int(unknown.size[0])
            continue
        if not skipping or damage is None or damage.following is None or damage.following.offset > offset:
            return walk.end
        start = before = damage.following.position
