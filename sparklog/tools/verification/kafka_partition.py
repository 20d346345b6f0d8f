"""Check a Kafka partition directory: every batch, and every file next to the segments.

Some fields of a batch are not covered by its checksum. These fields are compared with other data: base offsets and
lengths with the adjacent batches, and leader epochs with `leader-epoch-checkpoint`.

A gap between offsets is normal if the log cleaner removed the batches. The files of a log directory do not show exactly
how far a log has been cleaned. `cleaner-offset-checkpoint` is written after a cleaner pass, so if a broker crashes
during the pass, the log contains gaps above the checkpoint. The log of a replica that fetches a compacted log also
contains gaps above the checkpoint. Therefore the batches next to a gap above the checkpoint are checked to determine
whether records are lost:

* A cleaned range does not contain records without a key or several records with the same key. If the batches before and
  after a gap both contain such records, the gap was not created by a cleaner, so records are lost. This does not apply
  if the leader changed at the gap, because a replica that truncates its log in the middle of a batch also creates a
  gap.
* All other gaps are undecided. Messages of formats v0 and v1 are excluded, because compression may cause gaps between
  these messages.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

import numpy as np
import pyarrow as pa

from sparklog.errors import Corrupt, SparklogError
from sparklog.format import checkpoint_files, transaction_index
from sparklog.format.batch_walk import Damage, Window, checked_batches
from sparklog.format.checkpoint_files import LeaderEpoch
from sparklog.format.checksums import SUFFIXES
from sparklog.format.crc32c import crc32c
from sparklog.format.decode import RecordColumns
from sparklog.format.producer_snapshot import parse_snapshot
from sparklog.format.record_batch import CRC_START, MAGIC, NO_LEADER_EPOCH, BatchHeaders
from sparklog.format.segment_indexes import OffsetIndex
from sparklog.kafka.in_place.directory import SegmentName, list_segments
from sparklog.kafka.in_place.files import FilePath, relative
from sparklog.kafka.in_place.segment_file import SWAP, SegmentFile, aborted_by_index, companion
from sparklog.kafka.in_place.transaction_state import TransactionEvents, TransactionState
from sparklog.log.journal.clocks import Env
from sparklog.tools.verification.findings import CHECKPOINT, CHECKSUM, CONTENT, INDEX, CheckCounts, Finding
from sparklog.tools.verification.slice_checks import REBUILD, CollectedBatches, check_index

MAX_LOST_GAPS = 3
"""Maximum number of gaps with lost records that are reported per segment."""


@dataclass(frozen=True, slots=True)
class Gap:
    """A range of missing offsets `[start, end)`. The next batch starts at byte `position`."""

    start: int
    end: int
    position: int


@dataclass(slots=True)
class Gaps:
    """The gaps of a segment.

    Attributes:
        uncleaned: True if the last batch with records has not been cleaned.
        leader_epoch: the leader epoch of the last batch.
        offsets: the number of missing offsets in all gaps.
        lost: the first gaps whose records are lost.
        first_undecided: the first undecided gap above the cleaner's checkpoint.
        undecided: the number of undecided gaps.
        undecided_offsets: the number of missing offsets in undecided gaps.
    """

    uncleaned: bool = False
    leader_epoch: int = NO_LEADER_EPOCH
    offsets: int = 0
    lost: list[Gap] = field(default_factory=list)
    first_undecided: Gap | None = None
    undecided: int = 0
    undecided_offsets: int = 0

    def add(self, window: Window, records: RecordColumns | None, end: int, cleaned: int) -> None:
        """Add the gaps of a window that starts after offset `end`. The log has been cleaned below offset `cleaned`.

        `records` is None if the records cannot be decoded.
        """
        headers = window.headers
        previous_end = np.concatenate(([end], headers.next_offset[:-1]))
        missing = headers.base_offset - previous_end
        self.offsets += int(missing[missing > 0].sum())
        neighbors = _Neighbors(headers, records, self)
        for row in np.flatnonzero((missing > 0) & (previous_end >= cleaned) & ~headers.is_legacy).tolist():
            position = window.start + int(headers.position[row])
            gap = Gap(int(previous_end[row]), int(headers.base_offset[row]), position)
            if not neighbors.show_loss(row):
                self.first_undecided = self.first_undecided or gap
                self.undecided += 1
                self.undecided_offsets += gap.end - gap.start
            elif len(self.lost) < MAX_LOST_GAPS:
                self.lost.append(gap)
        self.uncleaned = neighbors.is_uncleaned_before(len(headers))
        self.leader_epoch = int(neighbors.epochs[-1])


class _Neighbors:
    """The batches next to the gaps of a window, which are used to determine whether the records in a gap are lost."""

    def __init__(self, headers: BatchHeaders, records: RecordColumns | None, before: Gaps) -> None:
        self.epochs = np.concatenate(([before.leader_epoch], headers.leader_epoch))
        self._uncleaned_before_window = before.uncleaned
        self._keys: pa.BinaryArray | None = None if records is None else records.key
        self._counts = np.empty(0, np.int64) if records is None else records.batch_rows
        self._rows = np.flatnonzero(self._counts)
        self._starts = np.cumsum(self._counts) - self._counts

    def show_loss(self, row: int) -> bool:
        """Return True if neither a cleaner nor a leader change can have caused the gap before the batch at `row`."""
        epochs = self.epochs[row : row + 2]
        is_same_leader = epochs[0] == epochs[1] or NO_LEADER_EPOCH in epochs
        return is_same_leader and self.is_uncleaned_from(row) and self.is_uncleaned_before(row)

    def is_uncleaned_from(self, row: int) -> bool:
        """Return True if the first batch with records at or after `row` has not been cleaned."""
        batch = int(np.searchsorted(self._rows, row))
        return batch < len(self._rows) and self._is_uncleaned(int(self._rows[batch]))

    def is_uncleaned_before(self, row: int) -> bool:
        """Return True if the last batch with records before `row` has not been cleaned."""
        batch = int(np.searchsorted(self._rows, row)) - 1
        return self._uncleaned_before_window if batch < 0 else self._is_uncleaned(int(self._rows[batch]))

    def _is_uncleaned(self, row: int) -> bool:
        if self._keys is None:
            return False
        keys = self._keys.slice(int(self._starts[row]), int(self._counts[row]))
        return bool(keys.null_count) or len(set(keys.to_pylist())) < len(keys)


MAX_READS = 3
"""Number of attempts to read a segment that a broker may be writing."""
PAUSE_SECONDS = 0.2
REPLICA = "restore the file from another replica or a backup"
COMPARE = "compare it with another replica"
CUT_OFF = "a broker truncates the log at this position when it starts after an unclean shutdown; " + REPLICA
SNAPSHOT = "leave the file in place; a broker deletes it at startup and rebuilds the producer state from the log"
"""The remedy for a corrupt snapshot. If the only snapshot were deleted, a broker that was shut down cleanly would start
with an empty producer state.
"""
WRONG_FORMAT = "the file is not in the format that Kafka writes"
INDEX_INTERVAL_BYTES = 4096
"""Kafka's default for `index.interval.bytes`."""
T = TypeVar("T")


@dataclass(slots=True)
class SegmentRead:
    """The data that was read from a segment.

    Attributes:
        last: True for the last segment of the partition.
        limit: the base offset of the next segment, or None for the last segment.
        damaged: True if part of the segment does not consist of valid batches.
        torn: True if only the partially written end of the log is invalid.
    """

    name: SegmentName
    last: bool
    limit: int | None
    batches: CollectedBatches = field(default_factory=CollectedBatches)
    epochs: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = field(default_factory=list)
    events: TransactionEvents = field(default_factory=TransactionEvents)
    gaps: Gaps = field(default_factory=Gaps)
    damaged: bool = False
    torn: bool = False
    end: int = 0


@dataclass(slots=True)
class KafkaPartition:
    """A partition directory, which is read completely. The paths in findings are relative to `root`.

    Attributes:
        cleaner_offset: the offset in `cleaner-offset-checkpoint`, or None if the offset is unknown.
        is_stopped: True if the broker was shut down cleanly. The broker then trusts the files at its next start.
        reads_past_torn_end: True to search for batches after a partially written end.
        notes: possible corruption that may also be normal behavior of Kafka.
        names: the names of known files.
        cleaned: the offset below which a cleaner may have removed records.
        has_old_formats: True if the partition contains messages of format v0 or v1.
    """

    folder: FilePath
    root: FilePath
    cleaner_offset: int | None
    env: Env
    is_stopped: bool = False
    reads_past_torn_end: bool = True
    findings: list[Finding] = field(default_factory=list)
    notes: list[Finding] = field(default_factory=list)
    counts: CheckCounts = field(default_factory=CheckCounts)
    names: set[str] = field(default_factory=set)
    segments: list[SegmentRead] = field(default_factory=list)
    topic_id: str | None = None
    log_end: int = 0
    cleaned: int = 0
    has_old_formats: bool = False

    def read(self, log_start: int) -> None:
        """Read all files. `log_start` is the offset in `log-start-offset-checkpoint`, or 0 if the checkpoint does not
        contain the partition.
        """
        self.cleaned = self.cleaner_offset or 0
        names = list_segments(self.folder, env=self.env)
        limits = [*(name.base for name in names[1:]), None]
        segments = [SegmentRead(name, limit is None, limit) for name, limit in zip(names, limits, strict=False)]
        self.segments = segments
        end = first = names[0].base if names else 0
        before = Gaps()
        for segment in segments:
            end = self._segment(segment, end, before)
            before = segment.gaps
        self.log_end = end
        self._note_undecided_gaps(segments)
        self._epochs(segments, max(first, log_start))
        self._transactions(segments)
        self._metadata()
        for name in sorted(self.folder.names()):
            if name.endswith(".snapshot"):
                self._parsed(self.folder.child(name), parse_snapshot, SNAPSHOT)
        self.counts += CheckCounts(slices=len(segments))

    def _relative(self, path: FilePath) -> str:
        return relative(path, self.root)

    def _report(self, kind: str, path: FilePath, message: str, remedy: str = REPLICA, **where: int | None) -> None:
        self.findings.append(Finding(kind, self._relative(path), message, remedy, **where))

    def _data(self, path: FilePath) -> bytes | None:
        data = path.data()
        if data is None:
            return None
        self.names.add(path.name)
        self.counts += CheckCounts(files=1, nbytes=len(data))
        return data

    # -- segments

    def _segment(self, segment: SegmentRead, expected: int, before: Gaps) -> int:
        """Read a segment and its indexes, and return the next offset. `before` contains the gaps of the previous
        segment.
        """
        path = segment.name.path
        self.names.add(path.name)
        if path.name.endswith(SWAP):
            # A cleaner stopped before it renamed this file. A cleaner pass starts at the log start, so all offsets up
            # to the next segment have been cleaned.
            self.cleaned = max(self.cleaned, segment.name.base if segment.limit is None else segment.limit)
        for attempt in range(MAX_READS):
            findings = len(self.findings)
            segment.gaps = Gaps(before.uncleaned, before.leader_epoch)
            size, changed = self._walk(segment, expected)
            if len(self.findings) == findings or not segment.last:
                break
            # A broker may be writing to this segment. Wait, because an incomplete batch may soon be complete.
            self.env.sleep(PAUSE_SECONDS)
            now = path.stat()
            if (now.st_size, now.st_mtime_ns) == (size, changed) or attempt == MAX_READS - 1:
                break
            del self.findings[findings:]
        self.counts += CheckCounts(files=1, nbytes=size, gaps=segment.gaps.offsets)
        for gap in () if segment.damaged else segment.gaps.lost:
            message = (
                f"expected a batch at offset {gap.start}, found offset {gap.end}; the gap was not made by a cleaner"
            )
            self._report(CONTENT, path, message, position=gap.position, offset=gap.start)
        self._indexes(segment)
        return max(segment.end, segment.name.base)

    def _walk(self, segment: SegmentRead, expected: int) -> tuple[int, int]:
        """Check the batches of a segment. Return the size and the modification time of the file."""
        segment.batches, segment.epochs, segment.events = CollectedBatches(), [], TransactionEvents()
        segment.damaged, segment.torn, segment.end = False, False, expected
        with SegmentFile(segment.name.path) as file:
            for found in checked_batches(file, 0, expected, limit=segment.limit):
                if isinstance(found, Window):
                    self._add_window(segment, found, file.location)
                    continue
                if segment.last and found.stop == "zeros":
                    break
                segment.damaged, segment.torn = True, segment.last and found.is_incomplete_end
                remedy = CUT_OFF if segment.torn else REPLICA
                kind, name = CHECKSUM if found.wrong_crc else CONTENT, self._relative(file.location)
                finding = Finding(kind, name, found.reason, remedy, found.position, found.offset)
                self.findings.append(self._at_flipped_bit(file, found, finding))
                if segment.torn and not self.reads_past_torn_end:
                    break
            return file.size, file.modified

    def _at_flipped_bit(self, file: SegmentFile, damage: Damage, finding: Finding) -> Finding:
        """Return the finding at the flipped bit if a single flipped bit explains the wrong checksum."""
        header = file.header_at(damage.position) if damage.wrong_crc else None
        if header is None or header.magic != MAGIC:
            return finding
        start = damage.position + CRC_START
        body = file.read(start, header.size - CRC_START)
        return finding.at_flipped_bit(start, len(body), crc32c(body), header.crc) or finding

    def _add_window(self, segment: SegmentRead, window: Window, path: FilePath) -> None:
        headers, name = window.headers, self._relative(path)
        has_records = ~headers.is_control & (headers.count > 0)
        records = None
        try:
            records = replace(window, file=name).decode(("offset", "key"), has_records)
        except SparklogError as error:
            self.findings.append(Finding.of(CONTENT, error, name, REPLICA))
        self.has_old_formats |= bool(headers.is_legacy.any())
        segment.batches.add(window.data, headers, window.start)
        segment.events.add(window)
        segment.epochs.append((headers.base_offset, headers.leader_epoch, headers.position + window.start))
        segment.gaps.add(window, records, segment.end, self.cleaned)
        segment.end = int(headers.next_offset[-1])
        self.counts += CheckCounts(batches=len(headers), records=int(headers.count[~headers.is_control].sum()))

    def _note_undecided_gaps(self, segments: Sequence[SegmentRead]) -> None:
        gaps = [(segment.name.path, segment.gaps) for segment in segments if not segment.damaged]
        firsts = [(path, each.first_undecided) for path, each in gaps if each.first_undecided is not None]
        if not firsts or self.cleaner_offset is None:
            return
        path, gap = firsts[0]
        number = sum(each.undecided for _, each in gaps)
        offsets = sum(each.undecided_offsets for _, each in gaps)
        message = (
            f"expected a batch at offset {gap.start}, found offset {gap.end}; from here on, {offsets} offsets "
            f"are missing in {number} gaps above the cleaner's checkpoint ({self.cleaned}): the cleaner of another "
            "replica or of a crashed broker has removed them, a replica has truncated its log there, or they are lost"
        )
        self.notes.append(Finding(CONTENT, self._relative(path), message, COMPARE, gap.position, gap.start))

    def _indexes(self, segment: SegmentRead) -> None:
        for suffix in SUFFIXES:
            path = companion(segment.name.path, suffix)
            data = self._data(path)
            if data is not None and not segment.damaged:
                base, file = segment.name.base, self._relative(path)
                findings = check_index(suffix, data, base, segment.batches, file=file, active=segment.last)
                self.findings += findings
                if suffix == "index" and not findings:
                    self._coverage(segment, data, file)
            elif data is None and suffix != "txnindex" and len(segment.epochs):
                self._report(INDEX, path, "the index file of the segment is missing", REBUILD)

    def _coverage(self, segment: SegmentRead, data: bytes, file: str) -> None:
        index, positions = OffsetIndex.parse(data, segment.name.base), segment.batches.columns().position
        if not index.covers(positions, INDEX_INTERVAL_BYTES):
            message = (
                f"the {len(index)} entries do not cover the entire segment, so some seeks read more than necessary"
            )
            self.notes.append(Finding(INDEX, file, message, REBUILD))

    # -- files next to segments

    def _epochs(self, segments: Sequence[SegmentRead], log_start: int) -> None:
        path = self.folder.child(checkpoint_files.LEADER_EPOCHS_FILE)
        data, epochs = self._parsed(path, checkpoint_files.parse_leader_epochs)
        if epochs is None:
            return
        if data and checkpoint_files.leader_epochs_to_bytes(epochs) != data:
            self._report(CHECKPOINT, path, WRONG_FORMAT, position=_unexpected_byte(data))
        if epochs:
            for segment in segments:
                self._epochs_of(segment, epochs, log_start, path)

    def _epochs_of(self, segment: SegmentRead, epochs: Sequence[LeaderEpoch], log_start: int, path: FilePath) -> None:
        starts = np.array([entry.start_offset for entry in epochs], np.int64)
        numbers = np.array([-1, *(entry.epoch for entry in epochs)], np.int64)
        for base, epoch, position in segment.epochs:
            stored = numbers[np.searchsorted(starts, base, "right")]
            # Kafka removes epochs below the log start and does not record epochs for old message formats.
            is_recorded = (stored >= 0) | ((base >= log_start) & (not self.has_old_formats))
            wrong = np.flatnonzero((epoch >= 0) & (stored != epoch) & is_recorded)
            if len(wrong):
                row = int(wrong[0])
                in_batch, in_file, offset = int(epoch[row]), int(stored[row]), int(base[row])
                message = (
                    f"the batch has leader epoch {in_batch}, but {path.name} has {in_file}; one of the two is corrupt"
                )
                self._report(CONTENT, segment.name.path, message, position=int(position[row]), offset=offset)
                message = f"the file has leader epoch {in_file} for offset {offset}, but the batch has {in_batch}"
                self._report(CHECKPOINT, path, message)
                return

    def _transactions(self, segments: Sequence[SegmentRead]) -> None:
        """Check the first offsets of aborted transactions, unless a cleaner may have removed their first batches."""
        has_gaps = any(segment.damaged or segment.gaps.offsets for segment in segments)
        if self.cleaned or self.cleaner_offset is None or has_gaps:
            return
        state = TransactionState()
        for segment in segments:
            path = companion(segment.name.path, "txnindex")
            ended = (marker for marker in state.abort_markers(segment.events) if marker.first >= 0)
            markers = {marker.last: (marker.first, marker.last_stable) for marker in ended}
            self._aborted(path, markers, segment, segments[0].name.base)

    def _aborted(self, path: FilePath, markers: dict[int, tuple[int, int]], segment: SegmentRead, oldest: int) -> None:
        entries = aborted_by_index(segment.name.path, segment.name.base)
        pairs = zip(entries.first_offsets.tolist(), entries.last_stable_offsets.tolist(), strict=True)
        stored = dict(zip(entries.last_offsets.tolist(), pairs, strict=True))
        for entry, (last, pair) in enumerate(stored.items()):
            in_log = markers.get(last)
            # If a transaction started in a deleted segment, its first offset cannot be checked.
            if in_log is None or in_log == pair or 0 <= min(pair) < oldest:
                continue
            message = (
                f"the transaction that ends at offset {last} has first offset {pair[0]} and last stable offset "
                f"{pair[1]} in the index, but {in_log[0]} and {in_log[1]} in the log"
            )
            position = entry * transaction_index.ENTRY_BYTES
            self._report(INDEX, path, message, REBUILD, position=position, offset=last)
        if missing := sorted(set(markers) - set(stored)):
            message = f"the index does not contain the transaction whose ABORT marker is at offset {missing[0]}"
            if segment.last and not self.is_stopped:
                # A broker writes the index entry after the marker, and rebuilds the index after an unclean shutdown.
                message += "; a running broker adds it, but a cleanly stopped broker does not detect that it is missing"
                self.notes.append(Finding(INDEX, self._relative(path), message, REBUILD, offset=missing[0]))
            else:
                self._report(INDEX, path, message, REBUILD, offset=missing[0])

    def _metadata(self) -> None:
        path = self.folder.child(checkpoint_files.PARTITION_METADATA_FILE)
        data, topic_id = self._parsed(path, checkpoint_files.parse_partition_metadata)
        if topic_id is None:
            return
        self.topic_id = topic_id
        if data.rstrip(b"\n") != checkpoint_files.partition_metadata_to_bytes(topic_id):
            self._report(CHECKPOINT, path, WRONG_FORMAT, position=_unexpected_byte(data))

    def _parsed(self, path: FilePath, parse: Callable[..., T], remedy: str = REPLICA) -> tuple[bytes, T | None]:
        """Read and parse a small file. Return its bytes and the parsed value, which is None if the file is missing or
        corrupt.
        """
        data = self._data(path)
        if data is None:
            return b"", None
        try:
            return data, parse(data, file=self._relative(path))
        except Corrupt as error:
            self.findings.append(Finding.of(CHECKPOINT, error, self._relative(path), remedy))
            return data, None


def _unexpected_byte(data: bytes) -> int:
    """Return the position of the first byte that is not a digit, minus sign, space or newline, or 0 if all bytes are
    valid.
    """
    return next((position for position, byte in enumerate(data) if byte not in b"0123456789-\n "), 0)
