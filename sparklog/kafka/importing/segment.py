"""Write ABORT markers in place of lost markers, in a copy that leaves damage out.

A transaction whose marker is lost must not be ended by a later marker of the same producer: a COMMIT would show records
that may have been aborted. So the copy must hold a marker. The offsets of the damage are free, and so is the gap in
front of them. There each transaction that may have ended in the damage gets an ABORT marker with the next epoch, as
Kafka's coordinator ends a transaction that has timed out. A marker that can be read, but lies at a wrong offset, is
written as it was.

Readers of the directory in place leave out the same records (`sparklog.kafka.in_place.partition_state`).

Copy one Kafka segment into a root: every batch checked, its bytes kept.

A closed segment becomes a sealed one: the `.log` byte for byte, and its index files where they are right. Indexes have
no checksum, so each entry is compared with the batches. An index that is missing, cut off or wrong is built anew, as
Kafka's recovery does. (Entries that a follower wrote name several batches at once. Kafka reads them, its tools call
them mismatches; they are built anew, too. An index with fewer entries than possible stays: the cleaner goes by the size
of indexes.)

The active segment becomes the one slice of an append file: its batches, whose base offsets are those of the log
(`shift` 0), and a footer with the entries of a `.txnindex`. Only whole, valid batches count, as in reads in place. With
messages of formats v0 or v1 in it, it is closed instead: merging moves batches to other offsets, and such messages
cannot be moved.

Of a segment whose beginning was imported before, only the later batches are copied, to an append file as well. Sealing
puts the two together.

With damage that is skipped, the copy has the sound batches, back to back, and markers for transactions whose markers
were lost (`sparklog.kafka.importing.segment`); its indexes are new.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from sparklog.errors import Conflict, Corrupt
from sparklog.format.append_file import WrittenSlice, build_index, encode_footer
from sparklog.format.batch_scan import scan_headers
from sparklog.format.control import end_txn_marker
from sparklog.format.segment_indexes import OffsetIndex, TimeIndex
from sparklog.format.transaction_index import AbortedTransactions
from sparklog.kafka.importing.totals import Batches, Ending, LastBatch, SegmentTotals
from sparklog.kafka.in_place.segment_file import BatchWalk, SegmentFile, Window, seek
from sparklog.kafka.in_place.segment_recovery import FAIL, SKIP, TRUNCATE, Damage, Resumed, sound_windows
from sparklog.kafka.in_place.transaction_state import ANYBODY, TransactionEvents, lost_markers
from sparklog.log.journal.names import is_sealed
from sparklog.log.state.slices import FileSlices, SliceFlag
from sparklog.log.write.kafka_markers import MAX_EPOCH
from sparklog.storage.store import ObjectWriter

LeftOut: TypeAlias = Callable[[int, int, int, int | None, str], None]
"""Called with damage that is not copied: position, bytes, first offset, offset behind it or None, reason."""


@dataclass(slots=True)
class Endings:
    """The ends of transactions in the copy of one segment.

    * `open_after`: producer id -> first offset of the transactions that are open after these events of the segment
    * `epochs`: of transactional producers before the segment; `leader_epoch`: the greatest before it
    * `undecided`: called with a transaction that is left out because its outcome is lost: first offset, offset behind,
      reason
    """

    open_after: Callable[[TransactionEvents], Mapping[int, int]]
    epochs: Mapping[int, int]
    leader_epoch: int
    undecided: Callable[[int, int, str], None]
    _gaps: list[tuple[int, int, int]] = field(default_factory=list)
    """Bytes `[position, until)` that were left out; the next batch begins at offset `end`."""

    def noting(self, left_out: LeftOut) -> LeftOut:
        """Return a function that calls `left_out`, and notes the gaps of the copy."""

        def noted(position: int, nbytes: int, start: int, end: int | None, reason: str) -> None:
            left_out(position, nbytes, start, end, reason)
            if end is not None:
                self._gaps.append((position, position + nbytes, end))

        return noted

    def around(self, windows: Iterator[Window], totals: SegmentTotals, file: SegmentFile) -> Iterator[Window]:
        """Yield the windows, and markers at the gaps between them. `totals` are of the windows yielded so far."""
        for window in windows:
            yield from self._endings(totals, file)
            yield window
        yield from self._endings(totals, file)

    def _endings(self, totals: SegmentTotals, file: SegmentFile) -> Iterator[Window]:
        gaps, self._gaps = self._gaps, []
        for position, until, end in gaps:
            ended: dict[int, bool | None] = {}
            opened = self.open_after(totals.events)
            for lost in lost_markers(file, position, until):
                if lost.producer == ANYBODY:
                    ended.update(dict.fromkeys(opened))
                elif lost.producer in opened:
                    ended[lost.producer] = lost.commit
            if ended and end > totals.next_offset:
                yield self._markers(ended, opened, totals, (position, end), file)

    def _markers(
        self,
        ended: Mapping[int, bool | None],
        opened: Mapping[int, int],
        totals: SegmentTotals,
        gap: tuple[int, int],
        file: SegmentFile,
    ) -> Ending:
        position, end = gap
        first = end - len(ended)
        if first < totals.next_offset:
            raise Corrupt(
                f"{len(ended)} transactions were open where damage may have taken their markers, with room for"
                f" {end - totals.next_offset} others: restore the file, or import with corrupt_records truncate",
                file=file.path,
                position=position,
                offset=totals.next_offset,
            )
        data = b""
        for offset, (producer, commit) in enumerate(sorted(ended.items()), first):
            epoch = totals.epochs.get(producer, self.epochs.get(producer, 0))
            data += end_txn_marker(
                commit=bool(commit),
                offset=offset,
                timestamp=max(totals.max_ts, 0),
                producer_id=producer,
                producer_epoch=min(epoch + 1, MAX_EPOCH),
                coordinator_epoch=0,
                leader_epoch=max(totals.leader_epoch, self.leader_epoch),
            )
            if commit is None:
                self.undecided(
                    opened[producer],
                    offset + 1,
                    f"records of producer {producer}, the marker that ended its transaction is damaged",
                )
        return Ending(data, position, scan_headers(data))


Int64s = npt.NDArray[np.int64]

GO_ON = "restore the file, or import what is whole with corrupt_records skip or truncate"
Progress: TypeAlias = Callable[[int, int], None]
"""Called with the progress since the last call: records, bytes."""

WINDOW_BYTES = 1 << 20
"""Bytes read and decoded at once: decoding has room for whatever a window of this size decompresses to."""


class OldMessages(Exception):  # noqa: N818
    """Messages of formats v0 or v1 in a copy that may hold batches only: copy the segment as a closed one."""


def silent(records: int, nbytes: int) -> None:
    """Ignore progress."""


@dataclass(frozen=True, slots=True)
class SegmentCopy:
    """The part of one segment to copy, and its target.

    * `path`: of the copy, a sealed segment or an append file; `base`: the base offset in the segment's name
    * `last`: it is the active segment, or becomes that; `limit`: the base of the next one, None without one
    * `log_start`: batches below it alone are not copied; `since`: the offset where the copy begins, None: at the base
    * `policy`: what to do with damage, see `sparklog.kafka.in_place.segment_recovery`
    """

    path: str
    base: int
    partition: int
    last: bool
    log_start: int
    since: int | None = None
    limit: int | None = None
    policy: str = FAIL


@dataclass(frozen=True, slots=True)
class CopyHooks:
    """Functions that a copy calls.

    * `aborted_by`: returns, from the segment's events, the transactions with their ABORT marker in it
    * `left_out`: gets damage that is not copied; `progress`: gets records and bytes
    * `endings`: ends the transactions whose markers were lost; None: they stay open
    """

    aborted_by: Callable[[TransactionEvents], AbortedTransactions]
    left_out: LeftOut
    endings: Endings | None = None
    progress: Progress = silent


@dataclass(frozen=True, slots=True)
class CopiedSegment:
    """One copied segment: `file` is None if it holds no batch above the log start, then nothing was written.

    `next_offset`: the offset after its last batch, or the base; `leader_epoch`: its batches' greatest, -1 without.
    `aborted`: transactions with their ABORT marker in it; `epochs`: of each transactional producer, in its last batch;
    `last`: the last batch, None without one; `records`, `nbytes`: of what was read.
    """

    base: int
    next_offset: int
    leader_epoch: int
    file: FileSlices | None
    batches: Batches
    aborted: AbortedTransactions
    epochs: dict[int, int]
    last: LastBatch | None
    records: int
    nbytes: int


def copy_segment(file: SegmentFile, writer: ObjectWriter, copy: SegmentCopy, hooks: CopyHooks) -> CopiedSegment:
    """Copy a segment with `writer`, which is closed.

    `Corrupt` with file, position and offset for damage, unless the policy is to skip it, or to truncate and this is the
    last segment. `OldMessages` for such messages if the copy is an append file; `Conflict` if a batch lies across
    `since`. Nothing is written then.
    """
    since, endings = copy.since, hooks.endings
    begin = copy.base if since is None else since
    totals = SegmentTotals(begin)
    closed = is_sealed(copy.path)
    windows = _windows(file, copy, hooks.left_out if endings is None else endings.noting(hooks.left_out))
    windows = windows if since is None else _since(windows, since, file)
    try:
        for window in windows if endings is None else endings.around(windows, totals, file):
            if not closed and window.headers.is_legacy.any():
                raise OldMessages
            before = totals.records
            writer.write(totals.add(window, file))
            hooks.progress(totals.records - before, int(window.headers.size.sum()))
        kept = totals.nbytes > 0 and totals.next_offset > copy.log_start
        batches = totals.batches()
        aborted = hooks.aborted_by(totals.events)
        if len(aborted):
            totals.flags |= SliceFlag.KAFKA_ABORTED
        if kept:
            footer = b"" if closed else _footer(totals, batches, copy.partition, aborted)
            writer.write(footer)
            writer.close()
            described = _described(totals, copy, len(footer), file.modified // 1_000_000)
        else:
            writer.discard()
            described = None
    except BaseException:
        writer.discard()
        raise
    return CopiedSegment(
        base=begin,
        next_offset=totals.next_offset,
        leader_epoch=totals.leader_epoch,
        file=described,
        batches=batches,
        aborted=aborted,
        epochs=totals.epochs,
        last=totals.last,
        records=totals.records,
        nbytes=totals.nbytes,
    )


def _since(windows: Iterator[Window], since: int, file: SegmentFile) -> Iterator[Window]:
    """Yield the batches from offset `since` on."""
    for window in windows:
        headers = window.headers
        row = int(np.searchsorted(headers.next_offset, since, "right"))
        if row == len(headers):
            continue
        first = int(headers.base_offset[row])
        if first < since:
            raise Conflict(
                f"{file.path} holds a batch of offsets {first} to {int(headers.last_offset[row])}: expected one to "
                f"begin at {since}, where the last import ended; this is not the log that was imported"
            )
        cut = int(headers.position[row])
        shifted = replace(headers[row:], position=headers.position[row:] - cut)
        yield Window(window.data[cut:], window.start + cut, shifted)


def _windows(file: SegmentFile, copy: SegmentCopy, left_out: LeftOut) -> Iterator[Window]:
    """Yield the segment's sound batches; of the last segment those that are written whole."""
    base, last, limit, policy = copy.base, copy.last, copy.limit, copy.policy
    start = 0 if copy.since is None else seek(file, base, copy.since)

    def decide(damage: Damage) -> bool:
        # A broker that is writing, or was killed while writing, leaves a partial last batch.
        unwritten = damage.structural or (damage.final and damage.wrong_crc)
        if policy == SKIP and not (last and damage.stop == "zeros"):
            return True
        if last and (unwritten or policy == TRUNCATE):
            if damage.stop != "zeros":
                left_out(damage.position, file.size - damage.position, damage.offset, None, damage.reason)
            return False
        whole = "expected record batches to the end of a closed segment: " if damage.structural else ""
        raise Corrupt(
            f"{whole}{damage.reason}; {GO_ON}", file=file.path, position=damage.position, offset=damage.offset
        )

    def resumed(damage: Damage, following: Resumed | None) -> None:
        until = file.size if following is None else following.position
        end = limit if following is None else following.offset
        left_out(damage.position, until - damage.position, damage.offset, end, damage.reason)

    return sound_windows(
        file,
        start,
        base,
        walk=lambda position: BatchWalk(file, position, window=WINDOW_BYTES, bodies=True),
        decide=decide,
        resumed=resumed,
        limit=limit,
    )


def _footer(totals: SegmentTotals, batches: Batches, partition: int, aborted: AbortedTransactions) -> bytes:
    """Encode the footer. Offsets in the file are those of the log, so the slice's offsets go from 0 to its end."""
    index = build_index(batches.position, batches.base_offset, batches.max_timestamp, totals.nbytes)
    return encode_footer([replace(_written(totals, partition), index=index, aborted=aborted)])


def _written(totals: SegmentTotals, partition: int) -> WrittenSlice:
    return WrittenSlice(
        partition=partition,
        nbytes=totals.nbytes,
        offsets=totals.next_offset,
        records=totals.records,
        min_ts=totals.min_ts,
        max_ts=totals.max_ts,
        crc=totals.crc,
        flags=int(totals.flags),
    )


def _described(totals: SegmentTotals, copy: SegmentCopy, footer_length: int, modified_ms: int) -> FileSlices:
    base = copy.base if copy.since is None else copy.since
    # Kafka goes by the file's time where no record has one.
    max_ts = modified_ms if totals.max_ts < 0 else totals.max_ts
    written = replace(_written(totals, copy.partition), offsets=totals.next_offset - base, max_ts=max_ts)
    return replace(FileSlices.of(copy.path, [written], footer_length).in_log(base), position=(0,))


def offset_index_of(raw: bytes | None, base: int, batches: Batches, interval: int) -> bytes:
    """Return the bytes of an `.index` for these batches: `raw` without unused slots if it is right, else a new one.

    `raw` None: the file is missing. `interval`: `index.interval.bytes`.
    """
    index = None
    if raw is not None:
        try:
            index = OffsetIndex.parse(raw, base)
        except Corrupt:
            index = None
    if index is not None and len(index):
        rows = np.minimum(np.searchsorted(batches.position, index.positions), len(batches.position) - 1)
        named = (batches.position[rows] == index.positions) & (batches.last_offset[rows] == index.offsets)
        index = index if named.all() else None
    if index is None:
        index = OffsetIndex.build(base, batches.position, batches.last_offset, interval)
    return index.to_bytes()


def time_index_of(raw: bytes | None, base: int, batches: Batches, interval: int) -> bytes:
    """Return the bytes of a `.timeindex`; its last entry must be the segment's greatest timestamp."""
    index = None
    if raw is not None:
        try:
            index = TimeIndex.parse(raw, base)
        except Corrupt:
            index = None
    running = np.maximum.accumulate(batches.max_timestamp)
    if index is not None:
        greatest = int(index.timestamps[-1]) if len(index) else -1
        rows = np.minimum(np.searchsorted(batches.last_offset, index.offsets), len(batches.last_offset) - 1)
        named = (batches.last_offset[rows] == index.offsets) & (running[rows] == index.timestamps)
        named &= batches.max_timestamp[rows] == index.timestamps
        index = index if named.all() and greatest == int(running[-1]) else None
    if index is None:
        index = TimeIndex.build(base, batches.position, batches.last_offset, batches.max_timestamp, interval)
    return index.to_bytes()
