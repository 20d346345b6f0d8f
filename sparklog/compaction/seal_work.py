"""The sealing of slices into Kafka segments without decompressing them. Exports also write their segments with this
module.

Aborted slices are dropped, which leaves a gap in the offsets. A work item covers several partitions, because their
slices are adjacent in the append files and are fetched together.

Each slice is verified against its CRC-32C, and then its batches are copied unchanged. Only the headers are patched with
information that was unknown when the batch was written and that the slice contains: absolute offsets, the leader epoch
and, under LogAppendTime, the append time. Only the append time changes the CRC-32C of a batch. The headers of all
slices in a buffer are patched together, because there can be a hundred thousand small slices. A new file is started
where the plan requires it, where an index is full, and where a single slice is larger than `segment.bytes`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import ClassVar, NoReturn

import numpy as np
import numpy.typing as npt

from sparklog.compaction.producer_state import replay
from sparklog.compaction.segment_writer import SegmentWriter
from sparklog.errors import BadRequest, Conflict, Corrupt
from sparklog.format.batch_scan import crc_failures, misplaced, scan_headers
from sparklog.format.filter_batches import rewrite_headers
from sparklog.format.record_batch import BatchHeaders, BytesLike, DataLocation
from sparklog.format.transaction_index import AbortedTransactions
from sparklog.log.journal.clocks import SYSTEM, Env
from sparklog.log.read.fetch import Cursor, FetchedBatches, Fetcher
from sparklog.log.read.planned_slices import PlannedSlice, PlannedSlices, count_files, joined
from sparklog.log.state.commit import SEAL, Edit, Op
from sparklog.log.state.configs import TopicConfigs
from sparklog.log.state.rewrites import Rewrite
from sparklog.log.state.slice_table import ABORTED
from sparklog.log.state.slices import FileSlices, SliceFlag
from sparklog.log.state.view import OffsetRange
from sparklog.maintenance.work_items import Progress, WorkReport, WorkResult, silent
from sparklog.storage.store import Store

Int64s = npt.NDArray[np.int64]

MANY_OUTPUTS = 8
CLOSING_THREADS = 16


def scan_slices(
    data: BytesLike, rows: Sequence[PlannedSlice], starts: Int64s, after: int = 0
) -> tuple[BatchHeaders, Int64s]:
    """Return the unpatched headers of all batches in `data`, and for each batch the index of its slice in `rows`.

    Raises `Corrupt` unless each slice consists of complete batches with ascending offsets. Checksums are not verified.

    Args:
        data: The bytes of the slices, which may belong to several partitions.
        rows: The slices.
        starts: The ascending positions of the slices in `data`. Negative if `data` is a window inside a single slice.
        after: The minimum offset of the first batch.
    """
    headers = scan_headers(data, whole=False)
    row_of = np.searchsorted(starts, headers.position, side="right") - 1
    crossed = np.flatnonzero((starts > 0) & (starts < headers.end) & ~np.isin(starts, headers.position))
    if len(crossed) or headers.stop != "end":
        # A batch that extends into the next slice is damaged.
        bad = int(crossed[0] if len(crossed) else np.searchsorted(starts, headers.end, side="right")) - 1
        raise Corrupt(
            "a slice must consist of complete record batches: "
            f"{headers.reason or 'the last batch extends beyond the slice'}",
            file=rows[bad].file,
            position=rows[bad].position,
        )
    check_offsets(headers, rows, row_of, starts, after)
    return headers, row_of


def check_offsets(
    headers: BatchHeaders, rows: Sequence[PlannedSlice], row_of: Int64s, starts: Int64s, after: int = 0
) -> None:
    """Raise `Corrupt` unless the batches of each slice are in order and within the offsets of the slice. See
    `scan_slices`.
    """
    shift, low = _column(rows, "shift")[row_of], _column(rows, "base")[row_of]
    low[:1] = np.maximum(low[:1], after)
    # The slices of a partition do not overlap, so order within each slice implies order in the log.
    outside, min_offsets = misplaced(headers, low, _column(rows, "end")[row_of], shift=shift, owner=row_of)
    base, end = headers.base_offset + shift, headers.next_offset + shift
    # Only sealed segments contain messages of formats v0 and v1, so such a magic byte is damaged.
    wrong = np.flatnonzero(outside | headers.is_legacy)
    if len(wrong):
        batch = int(wrong[0])
        row = rows[int(row_of[batch])]
        position = row.position + int(headers.position[batch] - starts[row_of[batch]])
        offsets = f"{int(min_offsets[batch])} to {row.end}, found offsets {int(base[batch])} to {int(end[batch])}"
        message = f"expected a batch within offsets {offsets}: restore the file"
        raise Corrupt(message, file=row.file, position=position, offset=int(min_offsets[batch]))


def patch_batches(
    data: BytesLike, headers: BatchHeaders, rows: Sequence[PlannedSlice], row_of: Int64s, bases: Int64s
) -> BatchHeaders:
    """Patch the batches in `data` with the information of their slices, and return their new headers.

    Afterwards, base offsets are relative to `bases` (one per row, or zero for offsets of the log). Leader epochs and
    append times are written if the slices have them, and the CRCs are updated.
    """
    return rewrite_headers(
        data,
        headers,
        offset_shift=(_column(rows, "shift") - bases)[row_of],
        leader_epoch=_column(rows, "leader_epoch")[row_of],
        append_time=_column(rows, "append_time")[row_of],
    )


def _column(rows: Sequence[PlannedSlice], name: str) -> Int64s:
    return np.array([getattr(row, name) for row in rows], np.int64)


@dataclass(frozen=True, slots=True)
class SealPart:
    """The slices of a partition to seal."""

    partition: int
    segments: tuple[PlannedSlices, ...]  # the slices of each segment, in offset order
    history: PlannedSlices | None  # all slices if some have Kafka transactions, which the `.txnindex` must list
    log_end: int  # log end offset when the work was planned

    @property
    def nbytes(self) -> int:
        return sum(sources.nbytes for sources in self.segments)

    def extended(self, sources: PlannedSlices, history: PlannedSlices | None) -> SealPart:
        return replace(self, segments=(*self.segments, sources), history=self.history or history)


def write_segments(outputs: Sequence[SegmentOutput], progress: Progress = silent) -> list[tuple[FileSlices, ...]]:
    """Write the segments of all outputs, and return the durable files of each output. Raises `Corrupt`, and `Conflict`
    for a missing file.
    """
    try:
        cursors = [cursor for output in outputs if (cursor := output.cursor()) is not None]
        by_partition = {output.part.partition: output for output in outputs}
        for fetched in Fetcher(cursors, strict=True):
            records = by_partition[fetched.slice.partition].add(fetched)
            progress(records, len(fetched.data))
        return _close_all(outputs)
    except BaseException:
        for output in outputs:
            output.writer.discard()
        raise


class SegmentOutput:
    """The output of a partition, which consists of the segments written from its slices."""

    def __init__(
        self,
        store: Store,
        topic: str,
        part: SealPart,
        writer: SegmentWriter,
        transactions: Callable[[], AbortedTransactions],
        end: int | None = None,
        keyed: bool = False,
    ) -> None:
        """Create the output.

        Args:
            store: The store to write to.
            topic: The name of the topic.
            part: The slices to seal.
            writer: The writer of the segments.
            transactions: A function that returns all transactions that Kafka producers aborted in the partition. It is
                called if a slice contains control batches of Kafka producers.
            end: The offset at which to stop. Batches at or after this offset are skipped.
            keyed: Whether large segments get filters of their keys.
        """
        self.part = part
        self._store = store
        self._topic = topic
        self._end = end
        live = [sources[sources.status != ABORTED] for sources in part.segments]
        self._slices = joined(live) if live else None
        limits = store.limits
        self._buffer_bytes = limits.held_bytes
        self._pending_segments = [
            (int(sources.base[0]), keyed and sources.nbytes >= limits.filter_min_bytes) for sources in part.segments
        ]
        """The base offsets of segments that are not started yet, and whether they may get filters of their keys."""
        self._current = -1
        self._next_offset = 0
        self._buffer = bytearray()
        self._buffered_rows: list[PlannedSlice] = []
        self._buffered_starts: list[int] = []
        self.writer = writer
        self._find_aborted = transactions
        self._aborted: AbortedTransactions | None = None

    def cursor(self) -> Cursor | None:
        slices = self._slices
        if not slices:
            return None
        end = int(slices.end[-1]) if self._end is None else self._end
        offsets = OffsetRange(self._topic, self.part.partition, int(slices.base[0]), end)
        return Cursor(self._store, offsets, slices, self._raise_replaced, offsets.start)

    def add(self, fetched: FetchedBatches) -> int:
        """Add the next batches of a slice. Return the number of records in the batches."""
        row = fetched.slice
        if row.base != self._current:
            self._current = row.base
            while self._pending_segments and self._pending_segments[0][0] <= row.base:
                self._flush()
                # If all slices of a segment were aborted, nothing is written for the segment before the next segment
                # starts.
                self.writer.begin(*self._pending_segments.pop(0))
        if fetched.verified and len(fetched.data) < self._buffer_bytes // 4:
            self._buffered_rows.append(row)
            self._buffered_starts.append(len(self._buffer))
            self._buffer += fetched.data
            if len(self._buffer) >= self._buffer_bytes:
                self._flush()
            return row.records
        self._flush()
        return self._write(bytearray(fetched.data), [row], [row.position - fetched.position], fetched.cut)

    def close(self) -> tuple[FileSlices, ...]:
        self._flush()
        return self.writer.close()

    def _flush(self) -> None:
        if self._buffered_rows:
            data, rows, starts = self._buffer, self._buffered_rows, self._buffered_starts
            self._buffer, self._buffered_rows, self._buffered_starts = bytearray(), [], []
            self._write(data, rows, starts)

    def _write(
        self, data: bytearray, rows: Sequence[PlannedSlice], starts: Sequence[int], is_partial: bool = False
    ) -> int:
        """Verify, patch and write the batches of slices that start at `starts` in `data`. Return the number of records.

        `is_partial` is True for a part of a slice. The checksum of the slice does not cover the part, so the checksums
        of its batches are verified.
        """
        headers, row_of = scan_slices(data, rows, np.array(starts, np.int64), self._next_offset)
        if is_partial and len(wrong := crc_failures(data, headers)):
            position = DataLocation(rows[0].file, rows[0].position - starts[0], rows[0].shift)
            message = "the CRC-32C of the batch does not match: restore the file"
            raise position.corrupt(headers, int(wrong[0]), message)
        if self._end is not None:
            shift = _column(rows, "shift")[row_of]
            headers = headers[: int(np.searchsorted(headers.base_offset + shift, self._end))]
            row_of = row_of[: len(headers)]
            if not len(headers):
                return 0
        headers = patch_batches(data, headers, rows, row_of, np.zeros(len(rows), np.int64))
        records = written = 0
        while written < len(headers):
            remaining = headers[written:] if written else headers
            batch_count = self.writer.fits(remaining, self.writer.segment_bytes)
            if batch_count == 0:
                self.writer.begin(int(remaining.base_offset[0]))
                continue
            covered = rows[int(row_of[written]) : int(row_of[written + batch_count - 1]) + 1]
            records += self._append(
                data, remaining if batch_count == len(remaining) else remaining[:batch_count], covered
            )
            written += batch_count
        self._next_offset = int(headers.next_offset[-1])
        return records

    def _append(self, data: bytearray, headers: BatchHeaders, rows: Sequence[PlannedSlice]) -> int:
        records = int(headers.count[~headers.is_control].sum())
        flags = 0
        for row in rows:
            flags |= row.flags
        self.writer.append(
            data,
            headers,
            records=records,
            min_ts=min((row.min_ts for row in rows if row.min_ts >= 0), default=-1),
            flags=flags,
            modified_ms=max(row.max_ts for row in rows),
        )
        if flags & SliceFlag.KAFKA_PRODUCERS and headers.is_control.any():
            # Only batches with ABORT markers have entries. Without this condition, each seal of a partition that Kafka
            # producers write through `serve` would read all of the producers' slices.
            if self._aborted is None:
                self._aborted = self._find_aborted()
            aborted = self._aborted
            first, end = int(headers.base_offset[0]), int(headers.next_offset[-1])
            marked = (aborted.last_offsets >= first) & (aborted.last_offsets < end)
            self.writer.aborted(aborted.select(marked))
        return records

    def _raise_replaced(self, offset: int) -> NoReturn:
        raise Conflict(
            f"a file of {self._topic}-{self.part.partition} with offset {offset} no longer exists, because it was "
            "replaced after the work was planned; run the compaction again"
        )


def _close_all(outputs: Sequence[SegmentOutput]) -> list[tuple[FileSlices, ...]]:
    """Close the outputs in parallel. Closing them one by one would take ten times as long because of the syncs."""
    if len(outputs) < MANY_OUTPUTS:
        return [output.close() for output in outputs]
    with ThreadPoolExecutor(CLOSING_THREADS) as pool:
        return list(pool.map(SegmentOutput.close, outputs))


@dataclass(frozen=True, slots=True)
class SealWork:
    """The sealing of segments in some partitions of a topic, as a `sparklog.maintenance.work_items.Work`."""

    store: Store
    topic: str
    topic_id: str
    read_version: int
    configs: TopicConfigs
    parts: tuple[SealPart, ...]
    env: Env = SYSTEM
    op: ClassVar[Op] = SEAL

    @property
    def title(self) -> str:
        first, last = self.parts[0].partition, self.parts[-1].partition
        more = f" to {last} ({len(self.parts)} partitions)" if last != first else ""
        return f"seal {self.topic}-{first}{more}"

    @property
    def partitions(self) -> tuple[int, ...]:
        return tuple(part.partition for part in self.parts)

    @property
    def nbytes(self) -> int:
        return sum(part.nbytes for part in self.parts)

    @property
    def file_count(self) -> int:
        return count_files(sources for part in self.parts for sources in part.segments)

    def run(self, progress: Progress = silent) -> WorkResult:
        """Write the segments. Raises `Corrupt` for a damaged slice, and `Conflict` if a file was replaced."""
        started = self.env.now()
        unique = self.env.new_id()
        files = write_segments([self._output(part, unique) for part in self.parts], progress)
        seconds, nbytes = self.env.elapsed_ms(started) / 1000, self.nbytes
        rewrites = [
            Rewrite(Edit(part.partition, int(sources.base[0]), int(sources.end[-1])), sources.inputs())
            for part in self.parts
            for sources in part.segments
        ]
        reports = [
            WorkReport(
                action=SEAL,
                topic=self.topic,
                partition=part.partition,
                records_before=sum(int(sources.records.sum()) for sources in part.segments),
                records_after=sum(sum(file.records) for file in part_files),
                bytes_before=part.nbytes,
                bytes_after=sum(file.size for file in part_files),
                seconds=seconds * part.nbytes / nbytes,
            )
            for part, part_files in zip(self.parts, files, strict=True)
        ]
        return WorkResult(tuple(rewrites), tuple(file for part_files in files for file in part_files), tuple(reports))

    def _output(self, part: SealPart, unique: str) -> SegmentOutput:
        writer = SegmentWriter(self.store, self.topic, part.partition, self.read_version, unique, self.configs)
        return SegmentOutput(self.store, self.topic, part, writer, lambda: self._replay_aborted(part), keyed=True)

    def _replay_aborted(self, part: SealPart) -> AbortedTransactions:
        if part.history is None:
            raise BadRequest("slices with Kafka transactions can only be sealed with the history of the partition")
        return replay(self.store, part.history, part.log_end).aborted
