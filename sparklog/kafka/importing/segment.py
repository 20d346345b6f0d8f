"""Copying one Kafka segment into a root: every batch checked, its bytes kept, and what a commit says of it.

A closed segment becomes a sealed one: the `.log` byte for byte, and the index files that lie beside it where they are
right. They have no checksum, so each entry is held against the batches; an index that is missing, cut off or wrong is
built anew, as Kafka's recovery does. (The entries of a follower name several batches at once. Kafka reads them, its
own tools call them mismatches; they are built anew, too. An index with fewer entries than there could be stays: the
cleaner goes by the size of indexes.)

The active segment becomes the one slice of an append file: its batches, whose base offsets are those of the log
(`shift` 0), and our footer, which takes in what a `.txnindex` would say. Only its whole, valid batches count, as where
it is read in place. If messages of formats v0 or v1 are in it, it is closed: merging moves batches to other offsets,
which such messages do not survive.

Of a segment whose beginning was taken before, only the batches behind that are copied, to an append file as well:
sealing puts the two together.

Where damage is skipped, the copy is the batches that are sound, back to back, and markers for transactions whose own
were lost (`sparklog.kafka.importing.endings`); its indexes then are new ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from sparklog.errors import Conflict, Corrupt
from sparklog.format import offset_index, time_index
from sparklog.format.append_file import build_index, encode_footer
from sparklog.format.transaction_index import AbortedTransactions
from sparklog.kafka.importing.endings import Endings, LeftOut
from sparklog.kafka.importing.totals import Batches, LastBatch, SegmentTotals
from sparklog.kafka.in_place.damage import FAIL, SKIP, TRUNCATE
from sparklog.kafka.in_place.segment_file import BatchWalk, SegmentFile, Window, seek
from sparklog.kafka.in_place.sound_batches import Damage, Resumed, sound_windows
from sparklog.kafka.in_place.transaction_state import TransactionEvents
from sparklog.log.journal.names import is_sealed
from sparklog.log.state.slices import FileSlices, SliceFlag
from sparklog.storage.store import ObjectWriter

Int64s = npt.NDArray[np.int64]

GO_ON = "restore the file, or import what is whole with corrupt_records skip or truncate"
Progress: TypeAlias = Callable[[int, int], None]
"""Told what was done since it was told last: records, bytes."""

WINDOW_BYTES = 1 << 20
"""Read and decoded at once: whatever a window of this size is decompressed to, decoding has room for it."""


class OldMessages(Exception):  # noqa: N818
    """Messages of formats v0 or v1 were found where only batches may be: copy the segment as a closed one."""


def silent(records: int, nbytes: int) -> None:
    """Progress that nobody watches."""


def _nobody(position: int, nbytes: int, start: int, end: int | None, reason: str) -> None:
    """Where the report goes if nobody asks for it."""


@dataclass(frozen=True, slots=True)
class CopiedSegment:
    """One segment as it was copied: `file` is None if it holds no batch above the log start, then nothing was written.

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


def copy_segment(
    file: SegmentFile,
    base: int,
    path: str,
    writer: ObjectWriter,
    *,
    partition: int,
    last: bool,
    log_start: int,
    aborted_by: Callable[[TransactionEvents], AbortedTransactions],
    since: int | None = None,
    limit: int | None = None,
    policy: str = FAIL,
    left_out: LeftOut = _nobody,
    endings: Endings | None = None,
    progress: Progress = silent,
) -> CopiedSegment:
    """Copy the segment that starts at offset `base` to `path`, a sealed segment or an append file; closes `writer`.

    `last`: it is the active one, or becomes that; `limit`: the base of the next, None without one. What it holds below
    `log_start` alone is not copied, nor what lies below `since` (None: all is new), where the copy begins.
    `aborted_by`: from the segment's events, the transactions with their ABORT marker in it. `Corrupt` with file,
    position and offset for damage, unless `policy` is to skip it, or to truncate and this is the last segment: then
    `left_out` is told, and `endings` ends the transactions whose markers were lost (None: they stay open).
    `OldMessages` for such messages where `path` is an append file; `Conflict` if a batch lies across `since`. Nothing
    is written then.
    """
    begin = base if since is None else since
    totals = SegmentTotals(begin)
    closed = is_sealed(path)
    start = 0 if since is None else seek(file, base, since)
    noted = left_out if endings is None else endings.noting(left_out)
    windows = _windows(file, base, start=start, last=last, limit=limit, policy=policy, left_out=noted)
    windows = windows if since is None else _since(windows, since, file)
    try:
        for window in windows if endings is None else endings.around(windows, totals, file):
            if not closed and window.headers.is_legacy.any():
                raise OldMessages
            before = totals.records
            writer.write(totals.add(window, file))
            progress(totals.records - before, int(window.headers.size.sum()))
        kept = totals.nbytes > 0 and totals.next_offset > log_start
        batches = totals.batches()
        aborted = aborted_by(totals.events)
        if len(aborted):
            totals.flags |= SliceFlag.KAFKA_ABORTED
        if kept:
            footer = b"" if closed else _footer(totals, batches, partition, aborted)
            writer.write(footer)
            writer.close()
            described = _described(totals, path, begin, partition, len(footer), file.modified // 1_000_000)
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
    """The batches from offset `since` on."""
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


def _windows(
    file: SegmentFile, base: int, *, start: int, last: bool, limit: int | None, policy: str, left_out: LeftOut
) -> Iterator[Window]:
    """The segment's sound batches from position `start`; of the last segment those that are written."""

    def decide(damage: Damage) -> bool:
        # A broker that is writing, or was killed while it did, leaves a last batch that is not whole.
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
    """Offsets in the file are those of the log, so for the footer the slice's offsets go from 0 to its end."""
    index = build_index(batches.position, batches.base_offset, batches.max_timestamp, totals.nbytes)
    return encode_footer(
        partition=[partition],
        nbytes=[totals.nbytes],
        offsets=[totals.next_offset],
        records=[totals.records],
        min_ts=[totals.min_ts],
        max_ts=[totals.max_ts],
        crc=[totals.crc],
        flags=[totals.flags],
        indexes=[index],
        aborted=[aborted],
    )


def _described(
    totals: SegmentTotals, path: str, base: int, partition: int, footer_length: int, modified_ms: int
) -> FileSlices:
    return FileSlices(
        path=path,
        size=totals.nbytes + footer_length,
        footer_length=footer_length,
        partition=(partition,),
        nbytes=(totals.nbytes,),
        offsets=(totals.next_offset - base,),
        records=(totals.records,),
        min_ts=(totals.min_ts,),
        # Kafka goes by the file's time where no record has one.
        max_ts=(modified_ms if totals.max_ts < 0 else totals.max_ts,),
        crc=(totals.crc,),
        flags=(int(totals.flags),),
        base=(base,),
        position=(0,),
        shift=(0,),
        append_time=(-1,),
        leader_epoch=(-1,),
    )


def offset_index_of(raw: bytes | None, base: int, batches: Batches, interval: int) -> bytes:
    """The bytes of an `.index` for these batches: `raw` without unused slots if it is right, else a new one.

    `raw` None: there is none. `interval`: `index.interval.bytes`.
    """
    found = None
    if raw is not None:
        try:
            found = offset_index.parse(raw, base)
        except Corrupt:
            found = None
    if found is not None and len(found):
        rows = np.minimum(np.searchsorted(batches.position, found.positions), len(batches.position) - 1)
        named = (batches.position[rows] == found.positions) & (batches.last_offset[rows] == found.offsets)
        found = found if named.all() else None
    if found is None:
        found = offset_index.build(base, batches.position, batches.last_offset, interval)
    return found.to_bytes()


def time_index_of(raw: bytes | None, base: int, batches: Batches, interval: int) -> bytes:
    """The bytes of a `.timeindex`, as `offset_index_of`; its last entry must be the segment's greatest timestamp."""
    found = None
    if raw is not None:
        try:
            found = time_index.parse(raw, base)
        except Corrupt:
            found = None
    running = np.maximum.accumulate(batches.max_timestamp)
    if found is not None:
        greatest = int(found.timestamps[-1]) if len(found) else -1
        rows = np.minimum(np.searchsorted(batches.last_offset, found.offsets), len(batches.last_offset) - 1)
        named = (batches.last_offset[rows] == found.offsets) & (running[rows] == found.timestamps)
        named &= batches.max_timestamp[rows] == found.timestamps
        found = found if named.all() and greatest == int(running[-1]) else None
    if found is None:
        found = time_index.build(base, batches.position, batches.last_offset, batches.max_timestamp, interval)
    return found.to_bytes()
