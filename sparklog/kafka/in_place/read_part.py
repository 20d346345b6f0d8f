"""Reading a range of offsets of a Kafka partition, in whatever files it is when the task gets to it.

A part names offsets and the partition's folder, never positions or files: between planning and reading the log
cleaner may have put other files under the same names. It carries the aborted transactions of its range, because their
markers may be after the range's end. The batches of a segment are decoded as those of a slice in a sealed file.

Every batch of the range is checked (`sparklog.kafka.in_place.segment_recovery`); what damage does is the part's policy.
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
from sparklog.kafka.in_place.directory import SegmentName, never_there, settled_segments
from sparklog.kafka.in_place.files import FilePath
from sparklog.kafka.in_place.segment_file import SegmentFile, seek
from sparklog.log.read.fetch import FetchedBatches
from sparklog.log.read.planned_slices import PlannedSlice
from sparklog.log.read.skipped import OnSkipped, Skipped
from sparklog.log.state.view import COUNTED, OffsetRange, check_columns

MIN_WINDOW_BYTES, MAX_WINDOW_BYTES = 64 << 10, 4 << 20
REPLAN_TRIES = 10
GO_ON = "restore the file, read other offsets, or read on after it with corruptRecords=skip"


@dataclass(frozen=True, slots=True)
class KafkaReadPart:
    """Implements `ReadPart` for a partition folder. `records` and `nbytes` are estimates.

    `aborted` is None for read_uncommitted. `corrupt_records`: see `segment_recovery`; `on_skipped` is called in the
    process that reads, so it must pickle where that is another one.
    """

    folder: FilePath
    range: OffsetRange
    records: int
    nbytes: int
    aborted: AbortedTransactions | None
    corrupt_records: str = recovery.FAIL
    on_skipped: OnSkipped = recovery.log_skipped

    def read(self, columns: Sequence[str], *, batch_bytes: int = 4 << 20) -> Iterator[pa.RecordBatch]:
        """The part's records in offset order, as batches of about `batch_bytes` with exactly `columns`.

        Raises `Corrupt` with file, position and offset, unless damage is skipped; `NotFound` if the log no longer holds
        the range: its start was deleted, or its end was taken back.
        """
        from sparklog.log.read.decode_slices import read_fetched

        wanted = check_columns(columns)
        on_skipped = self.on_skipped if self.corrupt_records == recovery.SKIP else None
        fetched = self._fetched(min(max(batch_bytes, MIN_WINDOW_BYTES), MAX_WINDOW_BYTES))
        batches = read_fetched(fetched, wanted or COUNTED, batch_bytes, on_skipped=on_skipped)
        yield from batches if wanted else (batch.select([]) for batch in batches)

    def _fetched(self, window_bytes: int) -> Iterator[FetchedBatches]:
        """Yield the windows as those of a slice of a sealed file, the segment."""
        mine, slices = self.range, dict[str, PlannedSlice]()
        for window in self.windows(window_bytes):
            if window.file not in slices:
                slices = {window.file: _as_slice(window.file, mine, self.aborted)}
            part, headers = window.trimmed(), window.headers
            cut = int(headers.base_offset[0]) < mine.start or int(headers.next_offset[-1]) > mine.end
            planned, data = slices[window.file], memoryview(part.data)
            yield FetchedBatches(data, part.start, planned, mine.start, mine.end, cut, True, part.headers)

    def _report_skipped(self, damage: Damage) -> None:
        mine, end = self.range, damage.next_offset
        first, last = max(damage.offset, mine.start), mine.end if end is None else min(end, mine.end)
        if first < last:
            place = mine.topic, mine.partition, damage.file.path, damage.position, damage.until - damage.position
            self.on_skipped(Skipped(*place, first, last, damage.reason))

    def windows(self, window_bytes: int) -> Iterator[Window]:
        """Yield windows of about so many bytes of valid batches that cover the range, segment after segment."""
        walk = _SegmentWalk(settled_segments(self.folder), self.range.start)
        for tries_left in reversed(range(REPLAN_TRIES + 1)):
            try:
                while (name := self._next_segment(walk)) is not None:
                    yield from self._segment(name, walk, window_bytes)
                return
            except FileNotFoundError as error:
                if not tries_left:
                    raise never_there(error) from None
            except Corrupt:
                if not tries_left or walk.file is None or not walk.file.replaced():
                    raise
            # The cleaner or retention was here: what matters is where the offsets are now.
            self.folder.renew()
            walk.names, walk.after = settled_segments(self.folder), -1

    def _next_segment(self, walk: _SegmentWalk) -> SegmentName | None:
        """Return the next segment to read, None at the end of the range. `NotFound` if its offsets are gone."""
        if walk.position >= self.range.end:
            return None
        if walk.after >= 0:
            name = next((name for name in walk.names if name.base > walk.after), None)
        else:
            name = next((name for name in reversed(walk.names) if name.base <= walk.position), None)
        if name is None:
            raise self._gone(walk)
        # Where the next one begins after the range, nothing was kept between here and there.
        return name if name.base < self.range.end else None

    def _segment(self, name: SegmentName, walk: _SegmentWalk, window_bytes: int) -> Iterator[Window]:
        """Yield the windows of one segment, and move the walk on."""
        walk.passed = 0
        with SegmentFile(name.path) as file:
            walk.file = file
            for window in self._segment_windows(file, name, walk, window_bytes):
                if not len(window.headers):
                    walk.position = self.range.end  # The log goes on after the range: nothing was kept up to its end.
                    return
                yield window
                walk.position = max(walk.position, int(window.headers.next_offset[-1]))
        walk.position, walk.after = max(walk.position, walk.passed), name.base

    def _segment_windows(
        self, file: SegmentFile, name: SegmentName, walk: _SegmentWalk, window_bytes: int
    ) -> Iterator[Window]:
        """Yield windows from the first batch that ends at or after the walk's position to the last of the range.

        `Corrupt` if the range goes on after what is no sound batch, unless that is skipped: then `walk.passed` gets the
        offset after it.
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
                passed = end if name == walk.names[-1] else position
                walk.passed = max(walk.passed, passed if found.next_offset is None else found.next_offset)
            elif self.corrupt_records == recovery.TRUNCATE and found.expected >= end:
                return  # It is what ended the log.
            elif found.size and found.following is not None and found.following.offset <= position:
                continue  # It is below the range.
            else:
                message, offset = found.reason, found.offset
                if found.structural:
                    message, offset = f"expected batches up to offset {end - 1}: {message}", max(offset, position)
                raise Corrupt(f"{message}; {GO_ON}", file=file.path, position=found.position, offset=offset)

    def _gone(self, walk: _SegmentWalk) -> NotFound:
        # Offsets may be missing inside a cleaned log, but not at its ends.
        if walk.after >= 0:
            place = "the log ends before them now"
        else:
            place = f"the log starts at {walk.names[0].base} now" if walk.names else "the log is empty now"
        mine = self.range
        return NotFound(f"offsets {walk.position} to {mine.end - 1} of {mine.topic}-{mine.partition} are gone: {place}")


@dataclass(slots=True)
class _SegmentWalk:
    """The progress of a read: `position` is the next offset, `after` the base of the segment read last (-1: none yet).

    `passed`: the offset after the damage that was skipped in the segment `file`.
    """

    names: Sequence[SegmentName]
    position: int
    after: int = -1
    passed: int = 0
    file: SegmentFile | None = None


def _as_slice(file: str, offsets: OffsetRange, aborted: AbortedTransactions | None) -> PlannedSlice:
    """Describe a segment as a slice, as far as its batches are decoded by it: they have the offsets of the log."""
    return PlannedSlice(
        position=0, size=0, base=0, end=MAX_OFFSET + 1, shift=0, records=0, min_ts=-1, max_ts=-1, crc=0, flags=0,
        append_time=-1, file_size=0, footer_length=0, leader_epoch=-1, status=0, topic=offsets.topic,
        partition=offsets.partition, path=file, file=file, hidden=aborted,
    )  # fmt: skip


def _limit(names: Sequence[SegmentName], name: SegmentName, file: SegmentFile) -> int | None:
    """Return the base of the segment after `name`, which no offset of it reaches; None if it is the last one.

    None, too, if the file is not the listed one: the cleaner may have merged others into it since.
    """
    later = [other.base for other in names if other.base > name.base]
    same = file.inode == name.inode
    if not file.place.is_local:
        same = (file.size, file.modified) == (name.size, name.modified)
    return later[0] if later and same else None


def _first_position(file: SegmentFile, name: SegmentName, offset: int, limit: int | None, *, skipping: bool) -> int:
    """Return the position of the first batch that ends at or after `offset`, or of the damage that may hold it.

    Reads headers only. With `skipping` also after damage, else only after a batch of an unknown format.
    """
    start = before = seek(file, name.base, offset)
    expected = name.base
    while True:
        walk = BatchWalk(file, start, headers_only=True)
        for window in walk:
            headers = window.headers
            ends = np.concatenate(([expected], headers.next_offset[:-1]))
            is_odd = np.logical_or.reduce([headers.base_offset < ends, *(odd for odd, _ in header_rules(headers))])
            wanted = np.flatnonzero((headers.last_offset >= offset) | is_odd)
            if len(wanted):
                # Of two batches out of order the first may be the wrong one.
                row = int(wanted[0])
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
