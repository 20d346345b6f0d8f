"""Copy a Kafka segment into a root. Every batch is checked, and its bytes are preserved.

**A closed segment** becomes a sealed segment: a copy of the `.log` file and, if they are valid, of its index files.
Indexes have no checksum, so each entry is compared with the batches. A missing, truncated or wrong index is rebuilt, as
in Kafka's recovery. An index with entries that a follower wrote for several batches together is also rebuilt: Kafka can
read these entries, but its tools report mismatches. An index with fewer entries than possible is retained, because the
cleaner considers the size of indexes. The index is rebuilt only if the distance between two entries is larger than the
size of a batch plus the size of a follower's fetch.

**The active segment** becomes a single slice of an append file. The slice consists of the batches of the segment. The
base offsets of the batches are not changed (`shift` is 0), and the footer contains the entries of a `.txnindex`. Only
complete, valid batches are copied, as in reads in place. A segment with messages of formats v0 or v1 becomes a sealed
segment instead, because merging assigns new base offsets to batches, which is not possible for these messages.

**A segment whose first batches are already imported** also becomes an append file, which contains only the later
batches. Sealing joins the two parts.

**If damage is skipped**, the copy consists of the valid batches, and its indexes are rebuilt. If the marker of a
transaction is damaged, a later marker of the same producer must not end the transaction, because a COMMIT would make
records visible that may have been aborted. Therefore an ABORT marker with the next epoch is written for each
transaction that may have ended in the damaged range, as if Kafka's coordinator had aborted the transaction after its
timeout. The offsets of these markers are offsets of the damaged range or of the gap before the range. A readable marker
with a wrong offset retains its type. Reads in place skip the same records (see
`sparklog.kafka.in_place.partition_state`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import NamedTuple, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from sparklog.common.units import count
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
from sparklog.kafka.in_place.transaction_state import ANY_PRODUCER, TransactionEvents, TransactionState, lost_markers
from sparklog.log.journal.names import is_sealed
from sparklog.log.state.kafka_source import ImportedEnd
from sparklog.log.state.slices import FileSlices, SliceFlag
from sparklog.log.write.kafka_markers import MAX_EPOCH
from sparklog.storage.store import ObjectWriter

T = TypeVar("T")
Int64s = npt.NDArray[np.int64]
REMEDY = "restore the file, or import the valid records with corrupt_records=skip or corrupt_records=truncate"
Progress: TypeAlias = Callable[[int, int], None]
"""Function that is called with the progress since its last call: records, bytes."""


RECORD_COLUMNS = ("offset", "timestamp", "key", "value", "headers")


class SkippedRange(NamedTuple):
    """A damaged range that is not copied. The fields are the last fields of `Skipped`."""

    position: int | None
    nbytes: int
    start: int
    end: int | None
    reason: str


class LegacyMessages(Exception):  # noqa: N818
    """Raised if the batches for an append file include messages of formats v0 or v1.

    The segment must be copied as a sealed segment.
    """


class MarkerWindow(Window):
    """Markers to insert at position `start`, instead of a damaged range."""


@dataclass(frozen=True, slots=True)
class IndexedBatches:
    """The batches of a segment in file order, which are required to build its indexes. The arrays (int64) contain
    absolute offsets, and timestamps in ms.
    """

    position: Int64s
    base_offset: Int64s
    last_offset: Int64s
    max_timestamp: Int64s


@dataclass(slots=True)
class SegmentCopy:
    """The part of a segment to copy, and its target.

    * `path`: path of the copy, which is a sealed segment or an append file
    * `base`: base offset of the source segment
    * `last`: True for the active segment
    * `limit`: base offset of the next segment, or None for the last segment
    * `log_start`: a segment that has no batches above the log start is not copied
    * `since`: first offset to copy, or None to copy from the base offset
    * `policy`: the policy for damage (see `sparklog.kafka.in_place.segment_recovery`)
    * `skipped`: list to which the skipped ranges are added
    * `open` (first offsets by producer id), `epochs` (by transactional producer), `leader_epoch`: state before the
      segment
    """

    path: str
    base: int
    partition: int
    last: bool
    log_start: int
    since: int | None
    limit: int | None
    policy: str
    skipped: list[SkippedRange]
    open: Mapping[int, int]
    epochs: Mapping[int, int]
    leader_epoch: int

    @property
    def begin(self) -> int:
        return self.base if self.since is None else self.since


@dataclass
class CopiedSegment:
    """A segment with the batches that were copied so far.

    * `file`: the new file, or None if no file was written because no batch is above the log start offset
    * `next_offset`: the offset after the last batch, or the base offset
    * `last`: the last batch, or None
    * `aborted`: the transactions that end with an ABORT marker in the segment
    * `epochs`: the epoch of the last batch of each transactional producer
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
        # Positions in the copy differ from positions in the source, because the copy does not contain the skipped
        # ranges.
        position = headers.position + self.nbytes
        self.columns.append((position, headers.base_offset, headers.last_offset, headers.max_timestamp))
        self.next_offset = int(headers.next_offset[-1])
        if not isinstance(window, MarkerWindow):
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
        has_records = ~headers.is_control & (headers.count > 0)
        try:
            records = window.decode(("offset", "timestamp", "key"), has_records)
        except Corrupt as error:
            message = f"{error.message}; restore the file, or import the valid records with corrupt_records=skip"
            raise Corrupt(message, file=error.file, position=error.position, offset=error.offset) from None
        self.records += len(records)
        if records.key is not None and records.key.null_count:
            self.flags |= SliceFlag.HAS_NULL_KEYS
        # A marker has one record. If a batch does not have records, its only timestamp is the maximum timestamp in the
        # header.
        times = np.concatenate((records.timestamp, headers.max_timestamp[~has_records]))
        times = times[times >= 0]
        if len(times):
            min_ts = int(times.min())
            self.min_ts = min_ts if self.min_ts < 0 else min(self.min_ts, min_ts)

    def finish(self, writer: ObjectWriter, copy: SegmentCopy, modified_ms: int) -> None:
        """Write the footer of an append file, and set `file`.

        `modified_ms` is the modification time of the source file.
        """
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
            # The offsets in the file are offsets of the log, so the slice covers the offsets from 0 to its end.
            batches = self.batches()
            index = build_index(batches.position, batches.base_offset, batches.max_timestamp, self.nbytes)
            footer = encode_footer([replace(written, index=index, aborted=self.aborted)])
        writer.write(footer)
        writer.close()
        # If the records have no timestamps, Kafka uses the modification time of the file.
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
    """Copy a segment to `writer`, and close the writer.

    `aborted_by` returns the transactions that end with an ABORT marker in the segment, based on the events of the
    segment.

    Raises `Corrupt` with the file, position and offset if a batch is damaged, unless the batch is skipped or the log is
    truncated in the last segment. Raises `LegacyMessages` if the copy is an append file and the segment contains
    messages of formats v0 or v1, and `Conflict` if `since` is inside a batch. If an exception is raised, no file is
    written.
    """
    copied = CopiedSegment(copy.begin, copy.begin)
    windows = _windows(file, copy)
    windows = windows if copy.since is None else _skip_imported(windows, copy.since, file)
    if copy.policy == SKIP:
        windows = _with_markers(_decodable(windows, copy), copy, copied, file)
    try:
        for window in windows:
            if not is_sealed(copy.path) and window.headers.is_legacy.any():
                raise LegacyMessages
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
    """Yield the windows, but skip batches that cannot be decoded although their checksums match."""
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
            copy.skipped.append(SkippedRange(position, header.size, header.base_offset, end, error.message))
        else:
            yield window


def _with_markers(
    windows: Iterator[Window], copy: SegmentCopy, copied: CopiedSegment, file: SegmentFile
) -> Iterator[Window]:
    """Yield the windows, and markers for the damaged ranges between the windows.

    `copied` contains the windows that were yielded so far.
    """
    handled_count = 0
    for window in chain(windows, [None]):
        gaps, handled_count = copy.skipped[handled_count:], len(copy.skipped)
        for gap in gaps:
            markers = _markers(gap, copy, copied, file)
            if markers is not None:
                yield markers
        if window is not None:
            yield window


def _markers(gap: SkippedRange, copy: SegmentCopy, copied: CopiedSegment, file: SegmentFile) -> MarkerWindow | None:
    """Return markers for the transactions that may have ended in a gap.

    Returns None if no transaction may have ended in the gap, or if a later batch has already been copied.
    """
    if gap.position is None or gap.end is None or gap.end <= copied.next_offset:
        return None
    state = TransactionState(dict(copy.open))
    state.apply(copied.events.triples)
    commits: dict[int, bool | None] = {}
    for lost in lost_markers(file, gap.position, gap.position + gap.nbytes):
        owners = state.open if lost.producer == ANY_PRODUCER else state.open.keys() & {lost.producer}
        commits.update(dict.fromkeys(owners, lost.commit))
    if not commits:
        return None
    first = gap.end - len(commits)
    if first < copied.next_offset:
        raise Corrupt(
            f"damage may have removed the markers of {len(commits)} transactions, but leaves only"
            f" {count(gap.end - copied.next_offset, 'offset')} for new markers: restore the file, or import with"
            " corrupt_records=truncate",
            file=file.path,
            position=gap.position,
            offset=copied.next_offset,
        )
    data = b""
    for offset, (producer, commit) in enumerate(sorted(commits.items()), first):
        if commit is None:
            reason = f"the marker that ended the transaction of producer {producer} is damaged"
            copy.skipped.append(SkippedRange(None, 0, state.open[producer], offset + 1, reason))
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
    return MarkerWindow(data, gap.position, scan_headers(data), file.path)


def _skip_imported(windows: Iterator[Window], since: int, file: SegmentFile) -> Iterator[Window]:
    for window in windows:
        headers = window.headers
        row = int(np.searchsorted(headers.next_offset, since, "right"))
        if row == len(headers):
            continue
        first = int(headers.base_offset[row])
        if first < since:
            raise Conflict(
                f"{file.path} has a batch with offsets {first} to {int(headers.last_offset[row])}, but the last import"
                f" ended at {since}: this is not the log that was imported"
            )
        yield window.select(slice(row, None)).trimmed()


def _windows(file: SegmentFile, copy: SegmentCopy) -> Iterator[Window]:
    """Yield the valid batches of a segment. The last segment may end with an incomplete batch."""
    start = 0 if copy.since is None else seek(file, copy.base, copy.since)
    for found in checked_batches(file, start, copy.base, limit=copy.limit):
        if isinstance(found, Window):
            yield found
        elif copy.policy == SKIP and not (copy.last and found.stop == "zeros"):
            nbytes = found.until - found.position
            copy.skipped.append(SkippedRange(found.position, nbytes, found.offset, found.next_offset, found.reason))
        elif copy.last and (found.is_incomplete_end or copy.policy == TRUNCATE):
            if found.stop != "zeros":
                nbytes = file.size - found.position
                copy.skipped.append(SkippedRange(found.position, nbytes, found.offset, None, found.reason))
            return
        else:
            prefix = "expected record batches to the end of a closed segment: " if found.is_structural else ""
            reason = f"{prefix}{found.reason}; {REMEDY}"
            raise Corrupt(reason, file=file.path, position=found.position, offset=found.offset)


def offset_index_of(raw: bytes | None, base: int, batches: IndexedBatches, interval: int) -> bytes:
    """Return the bytes of an `.index` for the batches.

    If `raw` is a valid index, return `raw` without its unused entries. Otherwise return the bytes of a new index. `raw`
    is None if the file does not exist, and `interval` is the value of `index.interval.bytes`.
    """
    index = _try_parse(OffsetIndex.parse, raw, base)
    if index is not None and len(index):
        rows = np.minimum(np.searchsorted(batches.position, index.positions), len(batches.position) - 1)
        matches = (batches.position[rows] == index.positions) & (batches.last_offset[rows] == index.offsets)
        index = index if matches.all() else None
    if index is None or not index.covers(batches.position, interval):
        index = OffsetIndex.build(base, batches.position, batches.last_offset, interval)
    return index.to_bytes()


def time_index_of(raw: bytes | None, base: int, batches: IndexedBatches, interval: int) -> bytes:
    """Return the bytes of a `.timeindex` for the batches.

    The last entry contains the maximum timestamp of the segment.
    """
    index = _try_parse(TimeIndex.parse, raw, base)
    running_max = np.maximum.accumulate(batches.max_timestamp)
    if index is not None:
        max_timestamp = int(index.timestamps[-1]) if len(index) else -1
        rows = np.minimum(np.searchsorted(batches.last_offset, index.offsets), len(batches.last_offset) - 1)
        matches = (batches.last_offset[rows] == index.offsets) & (running_max[rows] == index.timestamps)
        matches &= batches.max_timestamp[rows] == index.timestamps
        index = index if matches.all() and max_timestamp == int(running_max[-1]) else None
    if index is None:
        index = TimeIndex.build(base, batches.position, batches.last_offset, batches.max_timestamp, interval)
    return index.to_bytes()


def _try_parse(parse: Callable[[bytes, int], T], raw: bytes | None, base: int) -> T | None:
    try:
        return None if raw is None else parse(raw, base)
    except Corrupt:
        return None
