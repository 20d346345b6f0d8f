"""One partition folder as Kafka left it: every batch, and every file beside the segments.

What is outside a batch's checksum is held against something else: base offsets and lengths against the batches around
them, leader epochs against `leader-epoch-checkpoint` and the other way round.

No file of a log dir tells how far a log has been cleaned. `cleaner-offset-checkpoint` is written after a pass, so a
broker that dies before leaves gaps above it; a replica that fetches a compacted log gets its gaps, and its own cleaner
has not run yet. So above that checkpoint the batches beside a gap decide. A pass leaves no record without a key and no
key twice, on either side of what it removed: where both batches, the one before and the one after, hold such records,
no cleaner has been there and records are lost, unless the leader changed in between: a replica that cuts its log in the
middle of a batch leaves a gap. All other gaps are undecided. Messages of formats v0 and v1 are left out: their gaps may
be as old as their compression.
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
from sparklog.format.record_batch import CRC_START, MAGIC, NO_LEADER_EPOCH
from sparklog.format.segment_indexes import OffsetIndex
from sparklog.kafka.in_place.directory import SegmentName, settled_segments
from sparklog.kafka.in_place.files import FilePath, relative
from sparklog.kafka.in_place.segment_file import SWAP, SegmentFile, aborted_by_index, companion
from sparklog.kafka.in_place.transaction_state import TransactionEvents, TransactionState
from sparklog.log.journal.clocks import Env
from sparklog.tools.verification.findings import CHECKPOINT, CHECKSUM, CONTENT, INDEX, CheckCounts, Finding
from sparklog.tools.verification.slice_checks import REBUILD, CollectedBatches, check_index

MOST_LOST = 3  # gaps of one segment that are reported one by one


@dataclass(frozen=True, slots=True)
class Gap:
    """Offsets `[start, end)` that are not there; the batch after them is at byte `position`."""

    start: int
    end: int
    position: int


@dataclass(slots=True)
class Gaps:
    """The gaps of one segment."""

    uncleaned: bool = False  # the last data batch so far shows that no cleaner has been there
    leader_epoch: int = NO_LEADER_EPOCH  # of the last batch
    offsets: int = 0  # in gaps of all kinds
    lost: list[Gap] = field(default_factory=list)  # the first gaps that no cleaner made
    first: Gap | None = None  # of those above the cleaner's checkpoint that are undecided
    open: int = 0  # how many are undecided
    open_offsets: int = 0

    def add(self, window: Window, records: RecordColumns | None, end: int, cleaned: int) -> None:
        """Take in a window after offset `end` of a log that is cleaned below an offset; `records` None: unreadable."""
        headers = window.headers
        before = np.concatenate(([end], headers.next_offset[:-1]))
        gaps = headers.base_offset > before
        self.offsets += int((headers.base_offset - before)[gaps].sum())
        data = _DataBatches(records, self.uncleaned)
        epochs = np.concatenate(([self.leader_epoch], headers.leader_epoch))
        for row in np.flatnonzero(gaps & (before >= cleaned) & ~headers.is_legacy).tolist():
            gap = Gap(int(before[row]), int(headers.base_offset[row]), window.start + int(headers.position[row]))
            one_leader = epochs[row] == epochs[row + 1] or NO_LEADER_EPOCH in epochs[row : row + 2]
            if one_leader and data.uncleaned_from(row) and data.uncleaned_before(row):
                self.lost += [gap] if len(self.lost) < MOST_LOST else []
            else:
                self.first = self.first or gap
                self.open += 1
                self.open_offsets += gap.end - gap.start
        self.uncleaned = data.uncleaned_before(len(headers))
        self.leader_epoch = int(epochs[-1])


class _DataBatches:
    """Which batches of a window that hold records were never cleaned; `before`: of the last one before the window."""

    def __init__(self, records: RecordColumns | None, before: bool) -> None:
        self._before = before
        self._keys: pa.BinaryArray | None = None if records is None else records.key
        self._counts = np.empty(0, np.int64) if records is None else records.batch_rows
        self._rows = np.flatnonzero(self._counts)
        self._starts = np.cumsum(self._counts) - self._counts

    def uncleaned_from(self, row: int) -> bool:
        """The first one from `row` on."""
        batch = int(np.searchsorted(self._rows, row))
        return batch < len(self._rows) and self._uncleaned(int(self._rows[batch]))

    def uncleaned_before(self, row: int) -> bool:
        """The last one before `row`."""
        batch = int(np.searchsorted(self._rows, row)) - 1
        return self._before if batch < 0 else self._uncleaned(int(self._rows[batch]))

    def _uncleaned(self, row: int) -> bool:
        if self._keys is None:
            return False
        keys = self._keys.slice(int(self._starts[row]), int(self._counts[row]))
        return bool(keys.null_count) or len(set(keys.to_pylist())) < len(keys)


LOOKS = 3
PAUSE_SECONDS = 0.2
REPLICA = "restore the file from another replica or a backup"
COMPARE = "compare it with another replica"
CUT_OFF = "a broker that starts after an unclean stop cuts it off there; " + REPLICA
SNAPSHOT = "leave it: a broker that starts deletes it and builds the state again from the log"
"""Without any snapshot a broker that was stopped cleanly begins with empty producer state."""
INDEX_INTERVAL_BYTES = 4096
"""Kafka's default of `index.interval.bytes`."""
T = TypeVar("T")


@dataclass(slots=True)
class SegmentRead:
    """One segment; `damaged`: some of it is no sound batch; `torn`: that is the end of the log, not written whole."""

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
    """One folder, read whole; files are named relative to `root`.

    * `cleaner_offset`: of the log dir's checkpoint, None: unknown; `cleaned`: a cleaner has been below
    * `is_stopped`: its broker was stopped cleanly, so that the next start believes the files
    * `passes_torn`: look for more after an end that is not written whole; `old`: formats v0, v1 were read
    * `notes`: what may be damage or Kafka's doing; `names`: of its known files
    """

    folder: FilePath
    root: FilePath
    cleaner_offset: int | None
    env: Env
    is_stopped: bool = False
    passes_torn: bool = True
    findings: list[Finding] = field(default_factory=list)
    notes: list[Finding] = field(default_factory=list)
    counts: CheckCounts = field(default_factory=CheckCounts)
    names: set[str] = field(default_factory=set)
    segments: list[SegmentRead] = field(default_factory=list)
    topic_id: str | None = None
    log_end: int = 0
    cleaned: int = 0
    old: bool = False

    def read(self, log_start: int) -> None:
        """Read all of it; `log_start`: in the log dir's checkpoint, 0 without."""
        self.cleaned = self.cleaner_offset or 0
        names = settled_segments(self.folder, env=self.env)
        limits = [*(name.base for name in names[1:]), None]
        segments = [SegmentRead(name, limit is None, limit) for name, limit in zip(names, limits, strict=False)]
        self.segments = segments
        end = first = names[0].base if names else 0
        before = Gaps()
        for segment in segments:
            end = self._segment(segment, end, before)
            before = segment.gaps
        self.log_end = end
        self._undecided(segments)
        self._epochs(segments, max(first, log_start))
        self._transactions(segments)
        self._metadata()
        self._snapshots()
        self.counts += CheckCounts(slices=len(segments))

    def _place(self, path: FilePath) -> str:
        return relative(path, self.root)

    def _report(self, kind: str, path: FilePath, message: str, remedy: str = REPLICA, **place: int | None) -> None:
        self.findings.append(Finding(kind, self._place(path), message, remedy, **place))

    def _data(self, path: FilePath) -> bytes | None:
        data = path.data()
        if data is None:
            return None
        self.names.add(path.name)
        self.counts += CheckCounts(files=1, nbytes=len(data))
        return data

    # -- segments

    def _segment(self, segment: SegmentRead, expected: int, before: Gaps) -> int:
        """Read one segment and its indexes; return the offset after it. `before`: gaps of the segment before."""
        path = segment.name.path
        self.names.add(path.name)
        if path.name.endswith(SWAP):
            # A cleaner wrote it and died before it gave it its name. A pass goes from the log's start on: it has been
            # everywhere up to the next segment.
            self.cleaned = max(self.cleaned, segment.name.base if segment.limit is None else segment.limit)
        for look in range(LOOKS):
            findings = len(self.findings)
            segment.gaps = Gaps(before.uncleaned, before.leader_epoch)
            size, changed = self._walk(segment, expected)
            if len(self.findings) == findings or not segment.last:
                break
            # A broker may be writing: what is half there now is whole a moment later.
            self.env.sleep(PAUSE_SECONDS)
            now = path.stat()
            if (now.st_size, now.st_mtime_ns) == (size, changed) or look == LOOKS - 1:
                break
            del self.findings[findings:]
        self.counts += CheckCounts(files=1, nbytes=size, gaps=segment.gaps.offsets)
        for gap in () if segment.damaged else segment.gaps.lost:
            message = f"expected a batch at offset {gap.start}, found one at {gap.end}: the cleaner has not been here"
            self._report(CONTENT, path, message, position=gap.position, offset=gap.start)
        self._indexes(segment)
        return max(segment.end, segment.name.base)

    def _walk(self, segment: SegmentRead, expected: int) -> tuple[int, int]:
        """Check the batches of a segment; return size and time of the file as it was read."""
        segment.batches, segment.epochs, segment.events = CollectedBatches(), [], TransactionEvents()
        segment.damaged, segment.torn, segment.end = False, False, expected
        with SegmentFile(segment.name.path) as file:
            for found in checked_batches(file, 0, expected, limit=segment.limit):
                if isinstance(found, Window):
                    self._take(segment, found, file.place)
                    continue
                if segment.last and found.stop == "zeros":
                    break
                segment.damaged, segment.torn = True, segment.last and found.unwritten
                remedy = CUT_OFF if segment.torn else REPLICA
                kind, place = CHECKSUM if found.wrong_crc else CONTENT, self._place(file.place)
                finding = Finding(kind, place, found.reason, remedy, found.position, found.offset)
                self.findings.append(self._at_flipped_bit(file, found, finding))
                if segment.torn and not self.passes_torn:
                    break
            return file.size, file.modified

    def _at_flipped_bit(self, file: SegmentFile, damage: Damage, finding: Finding) -> Finding:
        """Return the finding at the one bit that explains the wrong checksum of a batch, if there is one."""
        header = file.header_at(damage.position) if damage.wrong_crc else None
        if header is None or header.magic != MAGIC:
            return finding
        start = damage.position + CRC_START
        body = file.read(start, header.size - CRC_START)
        return finding.at_flipped_bit(start, len(body), crc32c(body), header.crc) or finding

    def _take(self, segment: SegmentRead, window: Window, path: FilePath) -> None:
        headers, place = window.headers, self._place(path)
        holds = ~headers.is_control & (headers.count > 0)
        records = None
        try:
            records = replace(window, file=place).decode(("offset", "key"), holds)
        except SparklogError as error:
            self.findings.append(Finding.of(CONTENT, error, place, REPLICA))
        self.old |= bool(headers.is_legacy.any())
        segment.batches.add(window.data, headers, window.start)
        segment.events.add(window)
        segment.epochs.append((headers.base_offset, headers.leader_epoch, headers.position + window.start))
        segment.gaps.add(window, records, segment.end, self.cleaned)
        segment.end = int(headers.next_offset[-1])
        self.counts += CheckCounts(batches=len(headers), records=int(headers.count[~headers.is_control].sum()))

    def _undecided(self, segments: Sequence[SegmentRead]) -> None:
        """Note gaps that a cleaner may have made, or not."""
        sound = [segment for segment in segments if not segment.damaged]
        firsts = [(segment.name.path, segment.gaps.first) for segment in sound if segment.gaps.first is not None]
        if not firsts or self.cleaner_offset is None:
            return
        path, gap = firsts[0]
        many, offsets = sum(segment.gaps.open for segment in sound), sum(segment.gaps.open_offsets for segment in sound)
        message = (
            f"expected a batch at offset {gap.start}, found one at {gap.end}; from here on {offsets} offsets in {many} "
            f"gaps are above the cleaner's checkpoint ({self.cleaned}): a cleaner has removed them, where the log was "
            "fetched from or before this broker died, the log was cut there for another leader, or they are lost"
        )
        self.notes.append(Finding(CONTENT, self._place(path), message, COMPARE, gap.position, gap.start))

    def _indexes(self, segment: SegmentRead) -> None:
        for suffix in SUFFIXES:
            path = companion(segment.name.path, suffix)
            data = self._data(path)
            if data is not None and not segment.damaged:
                base, file = segment.name.base, self._place(path)
                findings = check_index(suffix, data, base, segment.batches, file=file, active=segment.last)
                self.findings += findings
                if suffix == "index" and not findings:
                    self._coverage(segment, data, file)
            elif data is None and suffix != "txnindex" and len(segment.epochs):
                self._report(INDEX, path, "expected an index beside the segment, found none", REBUILD)

    def _coverage(self, segment: SegmentRead, data: bytes, file: str) -> None:
        index, positions = OffsetIndex.parse(data, segment.name.base), segment.batches.columns().position
        if not index.covers(positions, INDEX_INTERVAL_BYTES):
            message = f"its {len(index)} entries leave out parts of the segment: seeks there read more than they need"
            self.notes.append(Finding(INDEX, file, message, REBUILD))

    # -- files next to segments

    def _epochs(self, segments: Sequence[SegmentRead], log_start: int) -> None:
        path = self.folder.child(checkpoint_files.LEADER_EPOCHS_FILE)
        data, epochs = self._parsed(path, checkpoint_files.parse_leader_epochs)
        if epochs is None:
            return
        if data and checkpoint_files.leader_epochs_to_bytes(epochs) != data:
            self._report(CHECKPOINT, path, "it is not written as Kafka writes it", position=_odd_byte(data))
        if epochs:
            for segment in segments:
                self._epochs_of(segment, epochs, log_start, path)

    def _epochs_of(self, segment: SegmentRead, epochs: Sequence[LeaderEpoch], log_start: int, path: FilePath) -> None:
        starts = np.array([entry.start_offset for entry in epochs], np.int64)
        numbers = np.array([-1, *(entry.epoch for entry in epochs)], np.int64)
        for base, epoch, position in segment.epochs:
            stored = numbers[np.searchsorted(starts, base, "right")]
            # Below the log start Kafka forgets them, and it begins to write them down when old formats end.
            written = (stored >= 0) | ((base >= log_start) & (not self.old))
            wrong = np.flatnonzero((epoch >= 0) & (stored != epoch) & written)
            if len(wrong):
                row = int(wrong[0])
                in_batch, in_file, offset = int(epoch[row]), int(stored[row]), int(base[row])
                message = f"the batch's leader epoch is {in_batch}, {path.name} says {in_file}"
                message += ": one of the two is damaged"
                self._report(CONTENT, segment.name.path, message, position=int(position[row]), offset=offset)
                self._report(CHECKPOINT, path, f"it says epoch {in_file} for offset {offset}, the batch {in_batch}")
                return

    def _transactions(self, segments: Sequence[SegmentRead]) -> None:
        """Check where aborted transactions began, unless a cleaner may have removed their first batches."""
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
            right = markers.get(last)
            # What began in segments that are gone is known to Kafka alone.
            if right is None or right == pair or 0 <= min(pair) < oldest:
                continue
            message = (
                f"of the transaction that ends at offset {last} it says first offset {pair[0]} and last stable offset "
                f"{pair[1]}, the log {right[0]} and {right[1]}"
            )
            place = entry * transaction_index.ENTRY_BYTES
            self._report(INDEX, path, message, REBUILD, position=place, offset=last)
        if missing := sorted(set(markers) - set(stored)):
            message = f"it lacks the transaction that an ABORT marker ends at offset {missing[0]}"
            if segment.last and not self.is_stopped:
                # A broker writes the entry after the marker, and after an unclean stop it builds the index again.
                message += ": a broker that runs adds it, one that was stopped cleanly would not miss it"
                self.notes.append(Finding(INDEX, self._place(path), message, REBUILD, offset=missing[0]))
            else:
                self._report(INDEX, path, message, REBUILD, offset=missing[0])

    def _metadata(self) -> None:
        path = self.folder.child(checkpoint_files.PARTITION_METADATA_FILE)
        data, topic_id = self._parsed(path, checkpoint_files.parse_partition_metadata)
        if topic_id is None:
            return
        self.topic_id = topic_id
        if data.rstrip(b"\n") != checkpoint_files.partition_metadata_to_bytes(topic_id):
            self._report(CHECKPOINT, path, "it is not written as Kafka writes it", position=_odd_byte(data))

    def _snapshots(self) -> None:
        for name in sorted(self.folder.names()):
            if name.endswith(".snapshot"):
                self._parsed(self.folder.child(name), parse_snapshot, SNAPSHOT)

    def _parsed(self, path: FilePath, parse: Callable[..., T], remedy: str = REPLICA) -> tuple[bytes, T | None]:
        """Return the bytes of a small file and their meaning: None if it is missing, or damaged, which is a finding."""
        data = self._data(path)
        if data is None:
            return b"", None
        try:
            return data, parse(data, file=self._place(path))
        except Corrupt as error:
            self.findings.append(Finding.of(CHECKPOINT, error, self._place(path), remedy))
            return data, None


def _odd_byte(data: bytes) -> int:
    """Return the first byte that is neither a digit, nor a minus, nor a newline, nor one space; 0 if there is none."""
    return next((position for position, byte in enumerate(data) if byte not in b"0123456789-\n "), 0)
