"""One partition as a planner knows it: enough to plan, estimate and look up times without reading it again.

It is kept up to date by looking only at what changed: the headers of every batch are walked once, later those of
appended batches only. About a megabyte is kept of a gigabyte of batches: one block for each 64 KiB or more, and the
transaction events.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from dataclasses import dataclass, field
from operator import attrgetter

import numpy as np

from sparklog.errors import Corrupt
from sparklog.format.batch_scan import single_header
from sparklog.format.batch_walk import BatchWalk, Damage, Window, checked_batches
from sparklog.format.record_batch import HEADER_BYTES
from sparklog.format.transaction_index import AbortedTransactions, concatenate
from sparklog.kafka.in_place import directory
from sparklog.kafka.in_place import segment_recovery as recovery
from sparklog.kafka.in_place.files import FilePath, LocalPath
from sparklog.kafka.in_place.segment_file import SegmentFile, aborted_by_index
from sparklog.kafka.in_place.transaction_state import TransactionEvents, TransactionSpan, TransactionState, merged
from sparklog.log.journal.clocks import SYSTEM, Env
from sparklog.log.read.skipped import Skipped
from sparklog.log.state.view import BatchRuns, Stored

BLOCK_BYTES = 64 * 1024
UNWRITTEN = "unwritten"
UNSOUND = "unsound"
"""Why a walk stopped, besides BatchWalk's reasons: the checksum of the last batch does not match (yet); a batch is not
sound, and where the policy is to truncate, the log ends in front of it."""


@dataclass
class SegmentState:
    """One segment up to `end`, the position after its last whole batch.

    * `records`: that its batches say they hold, markers left out; a compressed message of format v0 or v1 is one
    * `batches`: how many there are, markers among them
    * `next_offset`: the offset after the last batch in order, or the base offset; `max_timestamp` of its batches, -1
      without any
    * `stray`: where batches begin that end the segment and are out of order, -1: there are none
    * `stop`, `reason`: why the last look went no further (see `BatchWalk`)
    * `closed`: it has a successor, which begins at `limit`, and was read to its end since; the file then had `size`
      bytes and was `modified` (ns)
    * blocks (parallel arrays): where each begins, its offsets `[offset, end)`, its greatest timestamp, how many offsets
      it takes (those of records and markers) and how many batches it has
    """

    name: directory.SegmentName
    end: int = 0
    records: int = 0
    batches: int = 0
    next_offset: int = 0
    max_timestamp: int = -1
    stop: str = "end"
    reason: str = ""
    closed: bool = False
    limit: int | None = None
    size: int = 0
    modified: int = 0
    stray: int = -1
    last_position: int = -1
    last_header: bytes = b""
    events: TransactionEvents = field(default_factory=TransactionEvents)
    block_position: array[int] = field(default_factory=lambda: array("q"))
    block_offset: array[int] = field(default_factory=lambda: array("q"))
    block_end: array[int] = field(default_factory=lambda: array("q"))
    block_timestamp: array[int] = field(default_factory=lambda: array("q"))
    block_records: array[int] = field(default_factory=lambda: array("q"))
    block_batches: array[int] = field(default_factory=lambda: array("q"))
    _order: recovery.OffsetOrder = field(init=False)

    def __post_init__(self) -> None:
        self.next_offset = max(self.next_offset, self.name.base)
        self._order = recovery.OffsetOrder(self.next_offset)

    def still_holds(self, file: SegmentFile) -> bool:
        """Is the opened file the one that was read before, grown at most?

        A follower that truncates to its leader's log writes other batches at the same positions.
        """
        if file.inode != self.name.inode or file.size < self.end:
            return False
        if not file.place.is_local and (file.size, file.modified) == (self.size, self.modified):
            return True  # In a bucket no file changes without another time: this spares a request.
        header = self.last_header
        return not header or file.read(self.last_position, len(header)) == header

    def unchanged(self, listed: directory.SegmentName) -> bool:
        """Does a listing show the file as it was when it was closed? Inodes are used again, names too."""
        return not self.closed or (listed.size, listed.modified) == (self.size, self.modified)

    def scan(self, file: SegmentFile, *, last: bool, policy: str = recovery.FAIL, limit: int | None = None) -> None:
        """Walk on from `end` to the file's end. In the partition's last segment a last batch with a wrong checksum is
        not written yet and does not count; elsewhere checksums are the readers' business, unless `policy` is to
        truncate: then the segment ends in front of the first batch that is not sound. `limit`: the next segment's base.
        """
        if policy == recovery.TRUNCATE:
            self.stop, self.reason = "end", ""
            for found in checked_batches(file, self.end, self.next_offset, limit=limit):
                if isinstance(found, Damage):
                    self.stop, self.reason = UNSOUND, found.reason
                    break
                self._take(found, file)
        else:
            while (damage := self._scan_headers(file, last=last, limit=limit)) is not None:
                if damage.size and not damage.wrong_crc:
                    # A batch of an unknown format: Kafka's recovery keeps it, so the log does not end there.
                    self.events.lost(self.next_offset)
                    self._order.take(single_header(file.read(self.end, HEADER_BYTES)), self.end, lambda position: True)
                    self.next_offset = self._order.end
                    self.end += damage.size
                elif policy == recovery.SKIP and not (last and self.stop == "zeros") and damage.following is not None:
                    # Markers may have been there.
                    self.events.lost(self.next_offset)
                    self.end = damage.following.position
                else:
                    break
        self.size, self.modified = file.size, file.modified
        self.closed, self.limit = not last, limit
        if self.is_cut and policy != recovery.TRUNCATE:
            self.events.lost(self.next_offset)

    @property
    def is_cut(self) -> bool:
        """True if a successor follows although the file does not end at `end`: batches after it are not known."""
        return self.closed and self.stop != "end"

    def _scan_headers(self, file: SegmentFile, *, last: bool, limit: int | None) -> Damage | None:
        """Take in the headers from `end` on. Return the damage that they end at, None at the end of the file."""
        walk = BatchWalk(file, self.end, headers_only=True)
        last_window: Window | None = None
        for window in walk:
            if last_window is not None:
                self._take(last_window, file)
            last_window = window
        self.stop, self.reason = walk.stop, walk.reason
        if last_window is not None:
            final = last_window.headers.row(len(last_window.headers) - 1)
            if last and not file.crc_holds(last_window.start + int(last_window.headers.position[-1]), final):
                self.stop, self.reason = UNWRITTEN, "the last batch does not match its checksum: not written yet"
                last_window = last_window.select(slice(-1))
            self._take(last_window, file)
        if self.stop == UNWRITTEN:
            return Damage(file, self.end, 0, self.next_offset, self.reason, True, self.next_offset, limit, UNWRITTEN)
        return walk.damage(self.next_offset, limit)

    def _take(self, window: Window, file: SegmentFile) -> None:
        headers = window.headers
        if not len(headers):
            return
        greatest = int(headers.max_timestamp.max())
        self.records += int(headers.count[~headers.is_control].sum())
        self.batches += len(headers)
        self.max_timestamp = max(self.max_timestamp, greatest)
        start = window.start + int(headers.position[0])
        if not self.block_position or start - self.block_position[-1] >= BLOCK_BYTES:
            base = int(headers.base_offset[0])
            columns = (*self.block_columns, self.block_timestamp)
            for column, number in zip(columns, (base, base, 0, start, 0, greatest), strict=True):
                column.append(number)
        self.block_timestamp[-1] = max(self.block_timestamp[-1], greatest)
        self.block_records[-1] += int(np.maximum(headers.count, 0).sum())
        self.block_batches[-1] += len(headers)
        # One damaged or stale offset moves the end neither up nor down.
        ordered = self._order.take(headers, window.start, file.holds_at)
        self.next_offset = self._order.end
        self.block_end[-1] = max(self.block_offset[-1], self.next_offset)
        strays = np.flatnonzero(np.logical_and.accumulate(~ordered[::-1])[::-1])
        if len(strays) < len(headers):
            self.stray = -1
        if len(strays) and self.stray < 0:
            self.stray = window.start + int(headers.position[strays[0]])
        last = int(headers.position[-1])
        self.last_position = window.start + last
        self.last_header = bytes(window.data[last : last + HEADER_BYTES])
        # A stray marker ends its transaction, whatever its offset; stray data begins none.
        self.events.add(window if ordered.all() else window.select(ordered | headers.is_control))
        self.end = self.last_position + int(headers.size[-1])

    @property
    def block_columns(self) -> tuple[array[int], ...]:
        """Offset, end, records, position and batches of the blocks."""
        return self.block_offset, self.block_end, self.block_records, self.block_position, self.block_batches

    def blocks_with(self, timestamp: int) -> list[tuple[int, int]]:
        """(start, end) positions of the blocks that hold a batch with maxTimestamp >= `timestamp`, in order."""
        blocks = zip(self.block_position, [*self.block_position[1:], self.end], self.block_timestamp, strict=True)
        return [(start, end) for start, end, greatest in blocks if greatest >= timestamp]


RACY_MS = 100
"""A folder that changed so shortly before it was listed may have changed again since without showing it."""
OPEN_TRIES = 5
DETAILED_BLOCKS = 1 << 17
"""Some 8 GB."""


class PartitionState:
    """Segments and transactions of one partition folder; `refresh` brings them up to date.

    `policy`: what damage does (see `segment_recovery`); `cut`: what it left out after the log's end.
    """

    def __init__(
        self, folder: FilePath, topic: str, partition: int, env: Env = SYSTEM, policy: str = recovery.FAIL
    ) -> None:
        self.folder = folder
        self.policy = policy
        self.cut: list[Skipped] = []
        self._key = topic, partition
        self._env = env
        self.segments: list[SegmentState] = []
        self.transactions = TransactionState()
        self._changed_at = -1
        self._listed_at = -1
        self._replay = False
        self._identity = (-1, -1)
        self._metadata = b""
        self._indexed: dict[directory.SegmentName, AbortedTransactions] = {}
        self._aborted: AbortedTransactions | None = None

    @property
    def first_base(self) -> int:
        return self.segments[0].name.base if self.segments else 0

    @property
    def log_end(self) -> int:
        return self.segments[-1].next_offset if self.segments else 0

    def refresh(self) -> None:
        """Look at the folder if it changed, and at what was appended to the last segment.

        `NotFound` if the folder is gone, `Unavailable` if it never holds still.
        """
        gone = False
        for tries_left in reversed(range(OPEN_TRIES)):
            self._list(wait=gone)
            try:
                self._scan()
            except FileNotFoundError as error:
                # A segment went between the listing and its opening: look again, and trust nothing half done.
                self.folder.renew()
                self._changed_at, self._replay, gone = -1, True, True
                if not tries_left:
                    raise directory.never_there(error) from None
            else:
                return

    def _list(self, *, wait: bool) -> None:
        """Take over the folder's listing, keeping what is known of the segments that are still there.

        A tail goes on in the segments it knows while the folder changes; a first look has to wait, and so has one that
        missed a segment.
        """
        changed_at, identity = self._folder_state()
        if identity != self._identity:
            self.segments, self._identity, self._replay = [], identity, True
        quiet = changed_at is not None and self._listed_at - changed_at // 1_000_000 > RACY_MS
        if self.segments and quiet and changed_at == self._changed_at:
            return
        now = self._env.wall_ms()
        wait |= not self.segments or changed_at is None
        names = directory.settled_segments(self.folder, env=self._env) if wait else directory.settled_now(self.folder)
        if names is None:
            return
        self._changed_at, self._listed_at = -1 if changed_at is None else changed_at, now
        metadata = directory.partition_metadata(self.folder)
        if metadata != self._metadata:
            self.segments, self._metadata, self._replay = [], metadata, True
        before = {state.name: state for state in self.segments}
        self.segments = [SegmentState(name) for name in names]
        for row, name in enumerate(names):
            if name in before and before[name].unchanged(name):
                self.segments[row] = before[name]
            self._replay |= name in before and self.segments[row] is not before[name]
        # Growing at the end and expiring at the start leave the middle as it was. All else is read and replayed again.
        kept = [name for name in names if name in before]
        old = list(before)
        if old != list(names) and old and (not kept or kept != old[-len(kept) :] or kept != list(names[: len(kept)])):
            self._replay = True

    def _folder_state(self) -> tuple[int | None, tuple[int, int]]:
        """Return when the folder last changed (ns; None: it cannot be known, look into it), and which folder it is."""
        if not isinstance(self.folder, LocalPath):
            return None, (0, 0)
        try:
            stat = self.folder.stat()
        except FileNotFoundError:
            raise directory.gone_folder(self.folder) from None
        return stat.st_mtime_ns, (stat.st_dev, stat.st_ino)

    def _scan(self) -> None:
        self.cut = []
        for position, state in enumerate(self.segments):
            last = position == len(self.segments) - 1
            if not state.closed or last or self._replay:
                self._look_at(position, last=last)
            if self._truncate_at(position):
                break
        if self.policy == recovery.SKIP and self.segments and self.segments[-1].stray >= 0:
            state = self.segments[-1]
            reason = f"expected a batch at offset {state.next_offset} or above; found one below"
            self._leave_out(str(state.name.path), state.stray, state.size - state.stray, state.next_offset, reason)
        if self._replay:
            self._indexed.clear()
            self.transactions = TransactionState()
            for state in self.segments:
                self.transactions.apply(state.events.triples)
            self._replay, self._aborted = False, None

    def _look_at(self, position: int, *, last: bool) -> None:
        state = self.segments[position]
        with SegmentFile(state.name.path) as file:
            replaced = not state.still_holds(file) or (state.closed and (last or file.size != state.size))
            if replaced:
                state = SegmentState(directory.SegmentName(state.name.base, state.name.path, file.inode))
                self.segments[position] = state
                self._replay = True
            seen = len(state.events.triples)
            if not state.closed:
                limit = None if last else self.segments[position + 1].name.base
                state.scan(file, last=last, policy=self.policy, limit=limit)
            if len(state.events.triples) > seen:
                self.transactions.apply(state.events.triples, seen)
                self._aborted = None

    def _truncate_at(self, position: int) -> bool:
        """End the log in a segment that damage cuts short, where that is the policy; the next listing looks again."""
        state = self.segments[position]
        if self.policy != recovery.TRUNCATE or state.stop == "end":
            return False
        later = self.segments[position + 1 :]
        if later or state.stop != "zeros":
            self._leave_out(str(state.name.path), state.end, state.size - state.end, state.next_offset, state.reason)
        for segment in later:
            reason = "it is after damage, where the log was cut"
            self._leave_out(str(segment.name.path), 0, segment.name.size, state.next_offset, reason)
        if later:
            del self.segments[position + 1 :]
            self._changed_at = -1
        return True

    def _leave_out(self, file: str, position: int, nbytes: int, start: int, reason: str) -> None:
        self.cut.append(Skipped(*self._key, file, position, nbytes, start, None, reason))

    def aborted(self, start: int, end: int) -> AbortedTransactions:
        """The aborted transactions that matter to offsets `[start, end)`, from the whole partition's markers.

        `Corrupt` if damage hides the end of a transaction in that range; where the policy is to skip what is damaged,
        such a transaction counts as aborted.
        """
        unknown = self.unknown(start, end)
        if unknown and self.policy != recovery.SKIP:
            raise Corrupt(
                f"the outcome of a transaction of producer {unknown[0][0].producer} cannot be known: its marker is"
                " damaged; read other offsets, or leave the transaction out with corruptRecords=skip",
                file=unknown[0][1],
                offset=unknown[0][0].last,
            )
        if self._aborted is None:
            indexed = [self._transaction_index(state.name) for state in self.segments]
            self._aborted = merged(self.transactions, indexed)
        aborted = self._aborted.overlapping(start, end)
        if not unknown:
            return aborted
        # As if they had been aborted where reading stopped.
        columns = np.array([(*span, span.last + 1) for span, _ in unknown], np.int64).T
        every = concatenate([aborted, AbortedTransactions(*columns)])
        return every.select(np.argsort(every.last_offsets, kind="stable"))

    def unknown(self, start: int, end: int) -> list[tuple[TransactionSpan, str]]:
        """Return transactions with offsets in `[start, end)` whose outcome is in no marker and no `.txnindex`.

        Each comes with the file that its marker was in.
        """
        entries = [span for span in self.transactions.unknown if span.first < end and span.last >= start]
        if not entries:
            return []
        indexed = [self._transaction_index(state.name) for state in self.segments]
        return [
            (span, [str(state.name.path) for state in self.segments if state.name.base <= span.last][-1])
            for span in entries
            if not any(
                ((index.producer_ids == span.producer) & (index.first_offsets <= span.first)).any() for index in indexed
            )
        ]

    def _transaction_index(self, name: directory.SegmentName) -> AbortedTransactions:
        """Return the `.txnindex` of a segment, empty if missing or wrong. That of the last segment still grows."""
        index = self._indexed.get(name)
        if index is None:
            index = aborted_by_index(name.path, name.base)
            if self.segments and name != self.segments[-1].name:
                self._indexed[name] = index
        return index

    def stored(self, start: int, end: int, *, detailed: int = DETAILED_BLOCKS) -> Stored:
        """Return the stored size of these offsets: a run for each block of their segments.

        After the first `detailed` blocks a segment is one run, so that a stream with rate limits does not walk all
        blocks of a terabyte for each micro-batch.
        """
        by_base = attrgetter("name.base")
        low = max(bisect_right(self.segments, start, key=by_base) - 1, 0)
        columns = [array("q") for _ in range(5)]
        edges = array("q")
        for state in self.segments[low : bisect_left(self.segments, end, key=by_base)]:
            if len(edges) >= detailed:
                row = (state.name.base, state.next_offset, state.records, 0, state.batches)
                for column, number in zip(columns, row, strict=True):
                    column.append(number)
                edges.append(state.end)
                continue
            for column, numbers in zip(columns, state.block_columns, strict=True):
                column.extend(numbers)
            # A block ends where the next one begins, the last one of a segment where that does.
            edges.extend(state.block_position[1:])
            edges.extend([state.end] if state.block_position else ())
        base, stop, records, position, batches = (np.array(column, np.int64) for column in columns)
        runs = BatchRuns(base, stop, records, np.array(edges, np.int64) - position, batches)
        return Stored(start, end, runs.ordered().clipped(start, end))
