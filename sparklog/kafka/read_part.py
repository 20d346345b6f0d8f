"""Reading a range of offsets of a Kafka partition, in whatever files it lies when the task gets to it.

A part names offsets and the partition's folder, never positions or files: between planning and reading the log
cleaner may have put other files under the same names. It carries the aborted transactions of its range, because their
markers may lie behind the range's end.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from sparklog.errors import BadRequest, Corrupt, NotFound
from sparklog.format.record_batch import NO_PRODUCER_ID, BatchHeaders
from sparklog.format.transaction_index import AbortedTransactions
from sparklog.kafka.directory import SegmentName, settled_segments
from sparklog.kafka.segment_file import BatchWalk, SegmentFile, Window, seek
from sparklog.log.arrow_numpy import fixed_array, repeated_text
from sparklog.log.view import COLUMNS, RECORD_SCHEMA, OffsetRange

if TYPE_CHECKING:
    from sparklog.format.decode import RecordColumns

MIN_WINDOW_BYTES = 64 * 1024
FIRST_WINDOW_BYTES = 256 * 1024
REPLAN_TRIES = 10
_DECODED = frozenset({"key", "value", "headers", "timestampType"})


@dataclass(frozen=True, slots=True)
class KafkaReadPart:
    """Implements `ReadPart` for a partition folder. `records` and `nbytes` are estimates.

    `aborted` is None for read_uncommitted.
    """

    folder: str
    range: OffsetRange
    records: int
    nbytes: int
    aborted: AbortedTransactions | None

    def read(self, columns: Sequence[str], *, batch_bytes: int = 4 << 20) -> Iterator[pa.RecordBatch]:
        """The part's records in offset order, as batches of about `batch_bytes` with exactly `columns`.

        Raises `Corrupt` with file, position and offset; `NotFound` if the log no longer holds the range: its start was
        deleted, or its end was taken back.
        """
        unknown = [name for name in columns if name not in COLUMNS]
        if unknown:
            raise BadRequest(f"unknown columns {unknown}: expected some of {list(COLUMNS)}")
        yield from _coalesced(self._pieces(list(columns), batch_bytes), batch_bytes)

    def _pieces(self, columns: list[str], batch_bytes: int) -> Iterator[pa.RecordBatch]:
        """One RecordBatch per window, window sizes following how much records grow when they are decoded."""
        from sparklog.format.decode import decode

        wanted = _DECODED & set(columns) | {"offset", "timestamp"}
        budget = WindowBudget(batch_bytes)
        for file, window in self._windows(budget):
            decoded = decode(
                window.data,
                window.headers,
                columns=wanted,
                start_offset=self.range.start,
                end_offset=self.range.end,
                select=self._visible(window.headers),
                file=file.path,
                file_position=window.start,
            )
            piece = _record_batch(decoded, columns, self.range)
            budget.learn(len(window.data), piece.nbytes)
            if piece.num_rows:
                yield piece

    def _visible(self, headers: BatchHeaders) -> npt.NDArray[np.bool_]:
        """Which batches have records for this reader: no control batches, no aborted ones."""
        visible: npt.NDArray[np.bool_] = ~headers.is_control & (headers.count != 0)
        if self.aborted is not None and len(self.aborted):
            rows = np.flatnonzero(headers.is_transactional & (headers.producer_id != NO_PRODUCER_ID) & visible)
            visible[rows] = ~self.aborted.covers(headers.producer_id[rows], headers.base_offset[rows])
        return visible

    def _windows(self, budget: WindowBudget) -> Iterator[tuple[SegmentFile, Window]]:
        """Windows of whole batches that cover the range, from one segment after the other."""
        position, end = self.range.start, self.range.end
        names = settled_segments(self.folder)
        after, tries = -1, 0
        while position < end:
            name = _segment_for(names, position, after)
            if name is None:
                raise self._gone(names, position, after)
            if name.base >= end:
                return  # Nothing was kept between here and there.
            try:
                file = SegmentFile(name.path)
            except FileNotFoundError:
                # The cleaner or retention was here: what matters is where the offsets lie now.
                tries += 1
                if tries > REPLAN_TRIES:
                    raise
                names, after = settled_segments(self.folder), -1
                continue
            with file:
                for window in _segment_windows(file, name, position, end, budget):
                    if not len(window.headers):
                        return  # The log goes on behind the range: nothing was kept up to its end.
                    yield file, window
                    position = max(position, int(window.headers.next_offset[-1]))
                    budget.apply()
            after = name.base

    def _gone(self, names: Sequence[SegmentName], position: int, after: int) -> NotFound:
        """Offsets may be missing inside a cleaned log, but not at its ends."""
        if after < 0:
            place = f"the log starts at {names[0].base} now" if names else "the log is empty now"
        else:
            place = "the log ends before them now"
        return NotFound(
            f"offsets {position} to {self.range.end - 1} of {self.range.topic}-{self.range.partition} are gone: {place}"
        )


class WindowBudget:
    """How many stored bytes to read at once so that decoding gives about `target` bytes."""

    def __init__(self, target: int) -> None:
        self.target = max(target, 1)
        self.window = FIRST_WINDOW_BYTES
        self._walk: BatchWalk | None = None

    def walk(self, file: SegmentFile, start: int) -> BatchWalk:
        self._walk = BatchWalk(file, start, window=self.window, bodies=True)
        return self._walk

    def learn(self, stored: int, decoded: int) -> None:
        """A window of `stored` bytes became `decoded` bytes."""
        growth = max(decoded, 1) / max(stored, 1)
        most = max(min(self.target, self.window * 4), MIN_WINDOW_BYTES)
        self.window = int(min(max(self.target / growth, MIN_WINDOW_BYTES), most))

    def apply(self) -> None:
        """Use what was learnt for the current walk's next window."""
        if self._walk is not None:
            self._walk.window = self.window


def _segment_for(names: Sequence[SegmentName], position: int, after: int) -> SegmentName | None:
    """The next segment to read: the one that can hold `position`, or the first behind the one read last."""
    later = [name for name in names if name.base > after]
    if after >= 0:
        return later[0] if later else None
    below = [name for name in names if name.base <= position]
    return below[-1] if below else None


def _segment_windows(
    file: SegmentFile, name: SegmentName, position: int, end: int, budget: WindowBudget
) -> Iterator[Window]:
    """Windows of one segment from the first batch that ends at or behind `position` to the last that begins before
    `end`; then one without batches if the next batch begins at or behind `end`.

    `Corrupt` if the segment cannot be read on although the range goes on in it.
    """
    start = seek(file, name.base, position)
    skip = BatchWalk(file, start)
    for window in skip:
        ahead = np.flatnonzero(window.headers.last_offset >= position)
        if len(ahead):
            start = window.start + int(window.headers.position[ahead[0]])
            break
    else:
        start = skip.end
    walk = budget.walk(file, start)
    for window in walk:
        inside = window.headers.base_offset < end
        if inside.any():
            yield Window(window.data, window.start, window.headers[inside])
            position = int(window.headers.next_offset[-1])
        # What lies behind the range is not looked at: a broker may be writing it.
        if not inside.all():
            yield Window(window.data, window.start, window.headers[:0])
        if position >= end or not inside.all():
            return
    if walk.stop != "end":
        raise Corrupt(
            f"expected batches up to offset {end - 1}: {walk.reason}",
            file=file.path,
            position=walk.end,
            offset=position,
        )


def _record_batch(decoded: RecordColumns, columns: list[str], part: OffsetRange) -> pa.RecordBatch:
    """The asked-for columns with exactly the types of `RECORD_SCHEMA`."""
    rows = len(decoded.offset)
    arrays = []
    for name in columns:
        if name == "topic":
            array = repeated_text(part.topic, rows)
        elif name == "partition":
            array = fixed_array(np.full(rows, part.partition, np.int32), pa.int32())
        elif name == "offset":
            array = fixed_array(decoded.offset, pa.int64())
        elif name == "timestamp":
            array = fixed_array(decoded.timestamp, RECORD_SCHEMA.field("timestamp").type)
        elif name == "timestampType":
            array = fixed_array(decoded.timestamp_type.astype(np.int32), pa.int32())
        else:
            array = getattr(decoded, name)
        arrays.append(array)
    return pa.RecordBatch.from_arrays(arrays, schema=pa.schema([RECORD_SCHEMA.field(name) for name in columns]))


def _coalesced(pieces: Iterator[pa.RecordBatch], batch_bytes: int) -> Iterator[pa.RecordBatch]:
    """Small neighbours joined, large pieces cut by rows, so that batches have about `batch_bytes`."""
    held: list[pa.RecordBatch] = []
    size = 0
    for piece in pieces:
        held.append(piece)
        size += piece.nbytes
        if size * 2 < batch_bytes:
            continue
        yield from _cut(_joined(held), size, batch_bytes)
        held, size = [], 0
    if held:
        yield from _cut(_joined(held), size, batch_bytes)


def _joined(pieces: list[pa.RecordBatch]) -> pa.RecordBatch:
    return pieces[0] if len(pieces) == 1 else pa.concat_batches(pieces)


def _cut(batch: pa.RecordBatch, size: int, batch_bytes: int) -> Iterator[pa.RecordBatch]:
    parts = max(round(size / max(batch_bytes, 1)), 1)
    rows = max(-(-batch.num_rows // parts), 1)
    for start in range(0, batch.num_rows, rows):
        yield batch.slice(start, rows)
