"""Reading a range of offsets of a Kafka partition, in whatever files it is when the task gets to it.

A part names offsets and the partition's folder, never positions or files: between planning and reading the log
cleaner may have put other files under the same names. It carries the aborted transactions of its range, because their
markers may be after the range's end.

Every batch of the range is checked (`sparklog.kafka.in_place.segment_recovery`); what damage does is the part's policy.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from sparklog.errors import Corrupt, NotFound
from sparklog.format.arrow_numpy import fixed_array, repeated_text
from sparklog.format.batch_scan import header_rules
from sparklog.format.batch_walk import BatchWalk, Window, checked_batches
from sparklog.format.record_batch import NO_PRODUCER_ID, BatchHeaders
from sparklog.format.transaction_index import AbortedTransactions
from sparklog.kafka.in_place import segment_recovery as recovery
from sparklog.kafka.in_place.directory import SegmentName, never_there, settled_segments
from sparklog.kafka.in_place.files import FilePath
from sparklog.kafka.in_place.segment_file import SegmentFile, seek
from sparklog.log.read.record_batches import joined, schema_of
from sparklog.log.read.skipped import OnSkipped, Skipped
from sparklog.log.state.record_schema import RECORD_SCHEMA
from sparklog.log.state.view import COUNTED, OffsetRange, check_columns

if TYPE_CHECKING:
    from sparklog.format.decode import RecordColumns

MIN_WINDOW_BYTES = 64 * 1024
FIRST_WINDOW_BYTES = 256 * 1024
REPLAN_TRIES = 10
GO_ON = "restore the file, read other offsets, or read on after it with corruptRecords=skip"
_DECODED = frozenset({"key", "value", "headers", "timestampType"})


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
        wanted = list(check_columns(columns))
        batches = joined(self._pieces(wanted or list(COUNTED), batch_bytes), batch_bytes)
        yield from batches if wanted else (batch.select([]) for batch in batches)

    def _pieces(self, columns: list[str], batch_bytes: int) -> Iterator[pa.RecordBatch]:
        """One RecordBatch per window, window sizes following how much records grow when they are decoded."""
        decoded_columns = _DECODED & set(columns) | {"offset", "timestamp"}
        budget = WindowBudget(batch_bytes)
        for window in self.windows(budget):
            for decoded in self._decoded(window, decoded_columns):
                piece = _record_batch(decoded, columns, self.range)
                budget.learn(len(window.data), piece.nbytes)
                if piece.num_rows:
                    yield piece

    def _decoded(self, window: Window, columns: Set[str]) -> Iterator[RecordColumns]:
        """The visible records of a window; where damage is skipped, those of each batch that can be decoded."""
        try:
            start, end, visible = self.range.start, self.range.end, self._visible(window.headers)
            yield window.decode(columns, visible, start_offset=start, end_offset=end)
        except Corrupt as error:
            if self.corrupt_records != recovery.SKIP:
                raise
            rows = len(window.headers)
            for row in range(rows if rows > 1 else 0):
                yield from self._decoded(window.select(slice(row, row + 1)), columns)
            if rows == 1:
                header, end = window.headers.row(0), int(window.headers.next_offset[0])
                position = window.start + int(window.headers.position[0])
                self._report_skipped(window.file, position, header.size, header.base_offset, end, error.message)

    def _report_skipped(self, file: str, position: int, nbytes: int, start: int, end: int | None, reason: str) -> None:
        mine = self.range
        first, last = max(start, mine.start), mine.end if end is None else min(end, mine.end)
        if first < last:
            self.on_skipped(Skipped(mine.topic, mine.partition, file, position, nbytes, first, last, reason))

    def _visible(self, headers: BatchHeaders) -> npt.NDArray[np.bool_]:
        """Which batches have records for this reader: no control batches, no aborted ones."""
        visible: npt.NDArray[np.bool_] = ~headers.is_control & (headers.count != 0)
        if self.aborted is not None and len(self.aborted):
            rows = np.flatnonzero(headers.is_transactional & (headers.producer_id != NO_PRODUCER_ID) & visible)
            visible[rows] = ~self.aborted.covers(headers.producer_id[rows], headers.base_offset[rows])
        return visible

    def windows(self, budget: WindowBudget) -> Iterator[Window]:
        """Windows of whole and sound batches that cover the range, from one segment after the other."""
        walk = _SegmentWalk(settled_segments(self.folder), self.range.start)
        for tries_left in reversed(range(REPLAN_TRIES + 1)):
            try:
                while (name := self._next_segment(walk)) is not None:
                    yield from self._segment(name, walk, budget)
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

    def _segment(self, name: SegmentName, walk: _SegmentWalk, budget: WindowBudget) -> Iterator[Window]:
        """Yield the windows of one segment, and move the walk on."""
        walk.passed = 0
        with SegmentFile(name.path) as file:
            walk.file = file
            for window in self._segment_windows(file, name, walk, budget):
                if not len(window.headers):
                    walk.position = self.range.end  # The log goes on after the range: nothing was kept up to its end.
                    return
                yield window
                walk.position = max(walk.position, int(window.headers.next_offset[-1]))
        walk.position, walk.after = max(walk.position, walk.passed), name.base

    def _segment_windows(
        self, file: SegmentFile, name: SegmentName, walk: _SegmentWalk, budget: WindowBudget
    ) -> Iterator[Window]:
        """Yield windows from the first batch that ends at or after the walk's position to the last of the range.

        `Corrupt` if the range goes on after what is no sound batch, unless that is skipped: then `walk.passed` gets the
        offset after it.
        """
        skipping, position, end = self.corrupt_records == recovery.SKIP, walk.position, self.range.end
        limit = _limit(walk.names, name, file)
        start = _first_position(file, name, position, limit, skipping=skipping)

        def window(at: int) -> bytes:
            return file.read(at, budget.window)

        for found in checked_batches(file, start, name.base, end=end, limit=limit, window=window):
            if isinstance(found, Window):
                yield found
            elif skipping:
                nbytes = found.until - found.position
                self._report_skipped(file.path, found.position, nbytes, found.offset, found.next_offset, found.reason)
                passed = end if name == walk.names[-1] else position
                walk.passed = max(walk.passed, passed if found.next_offset is None else found.next_offset)
            elif self.corrupt_records == recovery.TRUNCATE and found.offset >= end:
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


@dataclass(slots=True)
class WindowBudget:
    """The stored bytes to read at once so that they decode to about `target` bytes."""

    target: int
    window: int = FIRST_WINDOW_BYTES

    def learn(self, stored: int, decoded: int) -> None:
        growth = max(decoded, 1) / max(stored, 1)
        most = max(min(self.target, self.window * 4), MIN_WINDOW_BYTES)
        self.window = int(min(max(self.target / growth, MIN_WINDOW_BYTES), most))


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


def _record_batch(decoded: RecordColumns, columns: list[str], part: OffsetRange) -> pa.RecordBatch:
    rows = len(decoded.offset)
    made = {
        "topic": lambda: repeated_text(part.topic, rows),
        "partition": lambda: fixed_array(np.full(rows, part.partition, np.int32), pa.int32()),
        "offset": lambda: fixed_array(decoded.offset, pa.int64()),
        "timestamp": lambda: fixed_array(decoded.timestamp, RECORD_SCHEMA.field("timestamp").type),
        "timestampType": lambda: fixed_array(decoded.timestamp_type.astype(np.int32), pa.int32()),
    }
    arrays = [made[name]() if name in made else getattr(decoded, name) for name in columns]
    return pa.RecordBatch.from_arrays(arrays, schema=schema_of(columns))
