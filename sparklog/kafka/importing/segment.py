"""Copy one Kafka segment into a root: every batch checked, its bytes kept.

A closed segment becomes a sealed one: the `.log` byte for byte, and its index files where they are right. Indexes have
no checksum, so each entry is compared with the batches. An index that is missing, cut off or wrong is built again, as
Kafka's recovery does. (Entries that a follower wrote name several batches at once. Kafka reads them, its tools call
them mismatches; they are built again, too. An index with fewer entries than possible stays, for the
cleaner looks at the size of indexes, unless it leaves out more than a follower's fetch.)

The active segment becomes the one slice of an append file: its batches, whose base offsets are those of the log
(`shift` 0), and a footer with the entries of a `.txnindex`. Only whole, valid batches count, as in reads in place. With
messages of formats v0 or v1 in it, it is closed instead: merging moves batches to other offsets, and such messages
cannot be moved.

Of a segment whose beginning was imported before, only the later batches are copied, to an append file as well. Sealing
puts the two together.

With damage that is skipped, the copy has the sound batches, back to back, and its indexes are new. A transaction whose
marker is lost must not be ended by a later marker of the same producer: a COMMIT would show records that may have been
aborted. So the copy must hold a marker. The offsets of the damage are free, and so is the gap in front of them. There
each transaction that may have ended in the damage gets an ABORT marker with the next epoch, as Kafka's coordinator ends
a transaction that has timed out. A marker that can be read, but is at a wrong offset, is written as it was. Readers
of the directory in place leave out the same records (`sparklog.kafka.in_place.partition_state`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import NamedTuple, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from sparklog.errors import Conflict, Corrupt
from sparklog.format import transaction_index
from sparklog.format.append_file import WrittenSlice, build_index, encode_footer
from sparklog.format.batch_scan import scan_headers
from sparklog.format.batch_walk import Window, checked_batches
from sparklog.format.control import end_txn_marker
from sparklog.format.record_batch import NO_PRODUCER_ID
from sparklog.format.segment_indexes import OffsetIndex, TimeIndex
from sparklog.format.transaction_index import AbortedTransactions
from sparklog.kafka.in_place.segment_file import SegmentFile, seek
from sparklog.kafka.in_place.segment_recovery import SKIP, TRUNCATE
from sparklog.kafka.in_place.transaction_state import ANYBODY, TransactionEvents, TransactionState, lost_markers
from sparklog.log.journal.names import is_sealed
from sparklog.log.state.kafka_source import ImportedEnd
from sparklog.log.state.slices import FileSlices, SliceFlag
from sparklog.log.write.kafka_markers import MAX_EPOCH
from sparklog.storage.store import ObjectWriter

T = TypeVar("T")
Int64s = npt.NDArray[np.int64]
GO_ON = "restore the file, or import what is whole with corrupt_records skip or truncate"
Progress: TypeAlias = Callable[[int, int], None]
"""Called with the progress since the last call: records, bytes."""


RECORD_COLUMNS = ("offset", "timestamp", "key", "value", "headers")


class Lost(NamedTuple):
    """Damage that is not copied: the fields of `Skipped` after its file."""

    position: int | None
    nbytes: int
    start: int
    end: int | None
    reason: str


class OldMessages(Exception):  # noqa: N818
    """Messages of formats v0 or v1 in a copy that may hold batches only: copy the segment as a closed one."""


class Ending(Window):
    """Markers that are not in the file; `start` is the position of the damage."""


@dataclass(frozen=True, slots=True)
class IndexedBatches:
    """The batches of a segment for its indexes, in file order; int64[n] each, offsets absolute, times in ms."""

    position: Int64s
    base_offset: Int64s
    last_offset: Int64s
    max_timestamp: Int64s


@dataclass(slots=True)
class SegmentCopy:
    """The part of one segment to copy, and its target.

    * `path`: of the copy, a sealed segment or an append file; `base`: the base offset in the segment's name
    * `last`: it is the active segment, or becomes that; `limit`: the base of the next one, None without one
    * `log_start`: batches below it alone are not copied; `since`: the offset where the copy begins, None: at the base
    * `policy`: what to do with damage, see `sparklog.kafka.in_place.segment_recovery`
    * `left_out`: gets damage that is not copied
    * `open` (producer id -> first offset), `epochs` of transactional producers, `leader_epoch`: before the segment
    """

    path: str
    base: int
    partition: int
    last: bool
    log_start: int
    since: int | None
    limit: int | None
    policy: str
    left_out: list[Lost]
    open: Mapping[int, int]
    epochs: Mapping[int, int]
    leader_epoch: int

    @property
    def begin(self) -> int:
        return self.base if self.since is None else self.since


@dataclass
class CopiedSegment:
    """One segment after the batches copied so far.

    `file`: None if it holds no batch above the log start, then nothing was written; `next_offset`: after its last
    batch, or the base; `aborted`: transactions with their ABORT marker in it; `epochs`: of each transactional producer,
    in its last batch; `last`: the last batch, None without one.
    """

    base: int
    next_offset: int
    nbytes: int = 0
    records: int = 0
    min_ts: int = -1
    max_ts: int = -1
    crc: int = 0
    flags: int = 0
    leader_epoch: int = -1
    columns: list[tuple[Int64s, Int64s, Int64s, Int64s]] = field(default_factory=list)
    events: TransactionEvents = field(default_factory=TransactionEvents)
    epochs: dict[int, int] = field(default_factory=dict)
    last: ImportedEnd | None = None
    file: FileSlices | None = None
    aborted: AbortedTransactions = field(default_factory=transaction_index.none)

    def batches(self) -> IndexedBatches:
        parts = list(zip(*self.columns, strict=True)) or [(np.empty(0, np.int64),)] * 4
        return IndexedBatches(*(np.concatenate(part) for part in parts))

    def add(self, window: Window) -> memoryview:
        from sparklog.format.crc32c import crc32c

        headers = window.headers
        nbytes = int(headers.position[-1] + headers.size[-1])
        data = memoryview(window.data)[:nbytes]
        self.events.add(window)
        self._add_records(window)
        # Positions in the copy, which has not the damaged parts of the source.
        position = headers.position + self.nbytes
        self.columns.append((position, headers.base_offset, headers.last_offset, headers.max_timestamp))
        self.next_offset = int(headers.next_offset[-1])
        if not isinstance(window, Ending):
            last = int(headers.last_offset[-1]), int(headers.crc[-1]), int(headers.leader_epoch[-1])
            self.last = ImportedEnd(self.next_offset, *last)
        self.nbytes += nbytes
        self.crc = crc32c(data, self.crc)
        self.max_ts = max(self.max_ts, int(headers.max_timestamp.max()))
        self.leader_epoch = max(self.leader_epoch, int(headers.leader_epoch.max()))
        if (headers.is_control | (headers.producer_id != NO_PRODUCER_ID)).any():
            self.flags |= SliceFlag.KAFKA_PRODUCERS
            rows = np.flatnonzero(headers.is_transactional)
            epochs = headers.producer_epoch[rows].tolist()
            self.epochs.update(zip(headers.producer_id[rows].tolist(), epochs, strict=True))
        if headers.is_log_append_time.any():
            self.flags |= SliceFlag.LOG_APPEND_TIME | SliceFlag.TIMES_IN_BATCHES
        return data

    def _add_records(self, window: Window) -> None:
        headers = window.headers
        holds = ~headers.is_control & (headers.count > 0)
        try:
            records = window.decode(("offset", "timestamp", "key"), holds)
        except Corrupt as error:
            message = f"{error.message}; restore the file, or import what can be read with corrupt_records skip"
            raise Corrupt(message, file=error.file, position=error.position, offset=error.offset) from None
        self.records += len(records)
        if records.key is not None and records.key.null_count:
            self.flags |= SliceFlag.HAS_NULL_KEYS
        # A marker has one record; of a batch that the cleaner emptied only the greatest time is left.
        times = np.concatenate((records.timestamp, headers.max_timestamp[~holds]))
        times = times[times >= 0]
        if len(times):
            least = int(times.min())
            self.min_ts = least if self.min_ts < 0 else min(self.min_ts, least)

    def finish(self, writer: ObjectWriter, copy: SegmentCopy, modified_ms: int) -> None:
        """Write the footer of an append file, and describe the file; `modified_ms`: time of the source."""
        written = WrittenSlice(
            partition=copy.partition,
            nbytes=self.nbytes,
            offsets=self.next_offset,
            records=self.records,
            min_ts=self.min_ts,
            max_ts=self.max_ts,
            crc=self.crc,
            flags=int(self.flags),
        )
        footer = b""
        if not is_sealed(copy.path):
            # Offsets in the file are those of the log, so the slice's offsets go from 0 to its end.
            batches = self.batches()
            index = build_index(batches.position, batches.base_offset, batches.max_timestamp, self.nbytes)
            footer = encode_footer([replace(written, index=index, aborted=self.aborted)])
        writer.write(footer)
        writer.close()
        # Kafka takes the file's time where no record has one.
        max_ts = modified_ms if self.max_ts < 0 else self.max_ts
        written = replace(written, offsets=self.next_offset - self.base, max_ts=max_ts)
        self.file = replace(FileSlices.of(copy.path, [written], len(footer)).in_log(self.base), position=(0,))


def copy_segment(
    file: SegmentFile,
    writer: ObjectWriter,
    copy: SegmentCopy,
    aborted_by: Callable[[TransactionEvents], AbortedTransactions],
    progress: Progress,
) -> CopiedSegment:
    """Copy a segment with `writer`, which is closed.

    `aborted_by` returns, from the segment's events, the transactions with their ABORT marker in it.

    `Corrupt` with file, position and offset for damage, unless the policy is to skip it, or to truncate and this is the
    last segment. `OldMessages` for such messages if the copy is an append file; `Conflict` if a batch goes across
    `since`. Nothing is written then.
    """
    copied = CopiedSegment(copy.begin, copy.begin)
    windows = _windows(file, copy)
    windows = windows if copy.since is None else _since(windows, copy.since, file)
    if copy.policy == SKIP:
        windows = _with_markers(_decodable(windows, copy), copy, copied, file)
    try:
        for window in windows:
            if not is_sealed(copy.path) and window.headers.is_legacy.any():
                raise OldMessages
            before = copied.records
            writer.write(copied.add(window))
            progress(copied.records - before, int(window.headers.size.sum()))
        copied.aborted = aborted_by(copied.events)
        if len(copied.aborted):
            copied.flags |= SliceFlag.KAFKA_ABORTED
        if copied.nbytes > 0 and copied.next_offset > copy.log_start:
            copied.finish(writer, copy, file.modified // 1_000_000)
        else:
            writer.discard()
    except BaseException:
        writer.discard()
        raise
    return copied


def _decodable(windows: Iterator[Window], copy: SegmentCopy) -> Iterator[Window]:
    """Yield the windows without batches whose checksums are right and whose records cannot be decoded."""
    for window in windows:
        try:
            window.decode(RECORD_COLUMNS, ~window.headers.is_control & (window.headers.count > 0))
        except Corrupt as error:
            if len(window.headers) > 1:
                single = (window.select(slice(row, row + 1)).trimmed() for row in range(len(window.headers)))
                yield from _decodable(single, copy)
                continue
            header, end = window.headers.row(0), int(window.headers.next_offset[0])
            position = window.start + int(window.headers.position[0])
            copy.left_out.append(Lost(position, header.size, header.base_offset, end, error.message))
        else:
            yield window


def _with_markers(
    windows: Iterator[Window], copy: SegmentCopy, copied: CopiedSegment, file: SegmentFile
) -> Iterator[Window]:
    """Yield the windows, and markers at the gaps between them. `copied` has the windows yielded so far."""
    noted = 0
    for window in chain(windows, [None]):
        gaps, noted = copy.left_out[noted:], len(copy.left_out)
        for gap in gaps:
            markers = _markers(gap, copy, copied, file)
            if markers is not None:
                yield markers
        if window is not None:
            yield window


def _markers(gap: Lost, copy: SegmentCopy, copied: CopiedSegment, file: SegmentFile) -> Ending | None:
    """Return markers for the transactions that may have ended in a gap; None: there are none, or they are written."""
    if gap.position is None or gap.end is None or gap.end <= copied.next_offset:
        return None
    state = TransactionState(dict(copy.open))
    state.apply(copied.events.triples)
    commits: dict[int, bool | None] = {}
    for lost in lost_markers(file, gap.position, gap.position + gap.nbytes):
        owners = state.open if lost.producer == ANYBODY else state.open.keys() & {lost.producer}
        commits.update(dict.fromkeys(owners, lost.commit))
    if not commits:
        return None
    first = gap.end - len(commits)
    if first < copied.next_offset:
        raise Corrupt(
            f"{len(commits)} transactions were open where damage may have taken their markers, with room for"
            f" {gap.end - copied.next_offset} others: restore the file, or import with corrupt_records truncate",
            file=file.path,
            position=gap.position,
            offset=copied.next_offset,
        )
    data = b""
    for offset, (producer, commit) in enumerate(sorted(commits.items()), first):
        if commit is None:
            reason = f"records of producer {producer}, the marker that ended its transaction is damaged"
            copy.left_out.append(Lost(None, 0, state.open[producer], offset + 1, reason))
        epoch = copied.epochs.get(producer, copy.epochs.get(producer, 0))
        data += end_txn_marker(
            commit=bool(commit),
            offset=offset,
            timestamp=max(copied.max_ts, 0),
            producer_id=producer,
            producer_epoch=min(epoch + 1, MAX_EPOCH),
            coordinator_epoch=0,
            leader_epoch=max(copied.leader_epoch, copy.leader_epoch),
        )
    return Ending(data, gap.position, scan_headers(data), file.path)


def _since(windows: Iterator[Window], since: int, file: SegmentFile) -> Iterator[Window]:
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
        yield window.select(slice(row, None)).trimmed()


def _windows(file: SegmentFile, copy: SegmentCopy) -> Iterator[Window]:
    """Yield the segment's sound batches; of the last segment those that are written whole."""
    start = 0 if copy.since is None else seek(file, copy.base, copy.since)
    for found in checked_batches(file, start, copy.base, limit=copy.limit):
        if isinstance(found, Window):
            yield found
        elif copy.policy == SKIP and not (copy.last and found.stop == "zeros"):
            nbytes = found.until - found.position
            copy.left_out.append(Lost(found.position, nbytes, found.offset, found.next_offset, found.reason))
        elif copy.last and (found.unwritten or copy.policy == TRUNCATE):
            if found.stop != "zeros":
                nbytes = file.size - found.position
                copy.left_out.append(Lost(found.position, nbytes, found.offset, None, found.reason))
            return
        else:
            whole = "expected record batches to the end of a closed segment: " if found.structural else ""
            reason = f"{whole}{found.reason}; {GO_ON}"
            raise Corrupt(reason, file=file.path, position=found.position, offset=found.offset)


def offset_index_of(raw: bytes | None, base: int, batches: IndexedBatches, interval: int) -> bytes:
    """Return the bytes of an `.index` for these batches: `raw` without unused slots if it is right, else a new one.

    `raw` None: the file is missing. `interval`: `index.interval.bytes`.
    """
    index = _parsed(OffsetIndex.parse, raw, base)
    if index is not None and len(index):
        rows = np.minimum(np.searchsorted(batches.position, index.positions), len(batches.position) - 1)
        named = (batches.position[rows] == index.positions) & (batches.last_offset[rows] == index.offsets)
        index = index if named.all() else None
    if index is None or not index.covers(batches.position, interval):
        index = OffsetIndex.build(base, batches.position, batches.last_offset, interval)
    return index.to_bytes()


def time_index_of(raw: bytes | None, base: int, batches: IndexedBatches, interval: int) -> bytes:
    """Return the bytes of a `.timeindex`; its last entry must be the segment's greatest timestamp."""
    index = _parsed(TimeIndex.parse, raw, base)
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


def _parsed(parse: Callable[[bytes, int], T], raw: bytes | None, base: int) -> T | None:
    try:
        return None if raw is None else parse(raw, base)
    except Corrupt:
        return None
