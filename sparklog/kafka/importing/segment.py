"""Copy one Kafka segment into a root: every batch checked, its bytes kept.

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
were lost (`sparklog.kafka.importing.transaction_ends`); its indexes are new.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from sparklog.errors import Conflict, Corrupt
from sparklog.format import offset_index, time_index
from sparklog.format.append_file import WrittenSlice, build_index, encode_footer
from sparklog.format.transaction_index import AbortedTransactions
from sparklog.kafka.importing.totals import Batches, LastBatch, SegmentTotals
from sparklog.kafka.importing.transaction_ends import Endings, LeftOut
from sparklog.kafka.in_place.damage_policy import FAIL, SKIP, TRUNCATE
from sparklog.kafka.in_place.segment_file import BatchWalk, SegmentFile, Window, seek
from sparklog.kafka.in_place.segment_recovery import Damage, Resumed, sound_windows
from sparklog.kafka.in_place.transaction_state import TransactionEvents
from sparklog.log.journal.names import is_sealed
from sparklog.log.state.slices import FileSlices, SliceFlag
from sparklog.storage.store import ObjectWriter

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
    * `policy`: what to do with damage, see `sparklog.kafka.in_place.damage_policy`
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
            index = offset_index.parse(raw, base)
        except Corrupt:
            index = None
    if index is not None and len(index):
        rows = np.minimum(np.searchsorted(batches.position, index.positions), len(batches.position) - 1)
        named = (batches.position[rows] == index.positions) & (batches.last_offset[rows] == index.offsets)
        index = index if named.all() else None
    if index is None:
        index = offset_index.build(base, batches.position, batches.last_offset, interval)
    return index.to_bytes()


def time_index_of(raw: bytes | None, base: int, batches: Batches, interval: int) -> bytes:
    """Return the bytes of a `.timeindex`; its last entry must be the segment's greatest timestamp."""
    index = None
    if raw is not None:
        try:
            index = time_index.parse(raw, base)
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
        index = time_index.build(base, batches.position, batches.last_offset, batches.max_timestamp, interval)
    return index.to_bytes()
