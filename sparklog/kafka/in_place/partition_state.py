"""The state of a partition in a Kafka directory, for planning reads, estimating sizes and looking up timestamps.

The first refresh reads the headers of all batches. Later refreshes read only the headers of appended batches. The state
contains a row for each block (64 KiB or more) and the transaction events. It requires about one megabyte of memory per
gigabyte of batches.
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
from sparklog.kafka.in_place.transaction_state import (
    TransactionEvents,
    TransactionSpan,
    TransactionState,
    confirmed_entries,
    merge_aborted,
)
from sparklog.log.journal.clocks import SYSTEM, Env
from sparklog.log.read.skipped import Skipped
from sparklog.log.state.view import BatchRanges, Stored

BLOCK_BYTES = 64 * 1024
UNWRITTEN = "unwritten"
INVALID = "invalid"
"""Reasons why a scan ended, in addition to the reasons in `BatchWalk`. `UNWRITTEN`: the last batch does not match its
checksum, so the batch is not completely written yet. `INVALID`: the policy is `truncate`, and the log ends at an
invalid batch.
"""


@dataclass
class SegmentState:
    """The state of a segment up to `end`, which is the position after the last complete batch.

    * `records`: number of records according to the headers, without markers; a compressed message of format v0 or v1
      counts as one record
    * `batches`: number of batches, including markers
    * `next_offset`: the offset after the last batch that is in offset order, or the base offset
    * `max_timestamp`: the maximum timestamp, or -1 if no batch has a timestamp
    * `out_of_order`: the position of the out-of-order batches at the end of the segment, or -1 if there are none
    * `stop`, `reason`: why the last scan ended (see `BatchWalk`)
    * `closed`: True if the segment was read to its end after the next segment was created; in this case, `limit` is the
      base offset of the next segment, and `size` (bytes) and `modified` (ns) describe the file at that time
    * blocks (parallel arrays): the position, the offset range `[offset, end)`, the maximum timestamp, the number of
      offsets (including markers) and the number of batches of each block
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
    out_of_order: int = -1
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

    def is_same_file(self, file: SegmentFile) -> bool:
        """Return True if the open file is the file that was read before, possibly with appended batches.

        The last batch is compared, because a follower that truncates its log then writes other batches at the same
        positions.
        """
        if file.inode != self.name.inode or file.size < self.end:
            return False
        if not file.location.is_local and (file.size, file.modified) == (self.size, self.modified):
            # A rewrite of an object changes its modification time. Therefore the content of a file in a bucket has not
            # changed if its size and modification time are the same, so a request is not required.
            return True
        header = self.last_header
        return not header or file.read(self.last_position, len(header)) == header

    def is_unchanged(self, listed: directory.SegmentName) -> bool:
        """Return True if a listing contains the same size and modification time as the closed file.

        The name and inode are not sufficient to identify a file, because both can be reused.
        """
        return not self.closed or (listed.size, listed.modified) == (self.size, self.modified)

    def scan(self, file: SegmentFile, *, last: bool, policy: str = recovery.FAIL, limit: int | None = None) -> None:
        """Scan the batches from `end` to the end of the file. `limit` is the base offset of the next segment.

        If the last batch of the partition does not match its checksum, the batch is not completely written yet and is
        ignored. Readers verify the other checksums. If the policy is `truncate`, this method verifies all checksums,
        and the segment ends at the first invalid batch.
        """
        if policy == recovery.TRUNCATE:
            self.stop, self.reason = "end", ""
            for found in checked_batches(file, self.end, self.next_offset, limit=limit):
                if isinstance(found, Damage):
                    self.stop, self.reason = INVALID, found.reason
                    break
                self._add(found, file)
        else:
            while (damage := self._scan_headers(file, last=last, limit=limit)) is not None:
                if damage.size and not damage.wrong_crc:
                    # Kafka's recovery retains a batch of an unknown format, so the log does not end at this batch.
                    self.events.lost(self.next_offset)
                    self._order.add(single_header(file.read(self.end, HEADER_BYTES)), self.end, lambda position: True)
                    self.next_offset = self._order.end
                    self.end += damage.size
                elif policy == recovery.SKIP and not (last and self.stop == "zeros") and damage.following is not None:
                    # The skipped bytes may have contained markers.
                    self.events.lost(self.next_offset)
                    self.end = damage.following.position
                else:
                    break
        self.size, self.modified = file.size, file.modified
        self.closed, self.limit = not last, limit
        if self.is_incomplete and policy != recovery.TRUNCATE:
            self.events.lost(self.next_offset)

    @property
    def is_incomplete(self) -> bool:
        """True if the segment is closed but was not read to its end, so that its last batches are unknown."""
        return self.closed and self.stop != "end"

    @property
    def has_unknown_markers(self) -> bool:
        """True if markers may be damaged or may have wrong offsets."""
        return self.events.has_lost or not self.has_ordered_batches

    @property
    def has_ordered_batches(self) -> bool:
        """True if no batch is out of order."""
        return self._order.is_ordered

    def _scan_headers(self, file: SegmentFile, *, last: bool, limit: int | None) -> Damage | None:
        """Read the headers of the batches that start at or after `end`, and add these batches.

        Return the damaged range after these batches, or None if the file ends after these batches.
        """
        walk = BatchWalk(file, self.end, headers_only=True)
        last_window: Window | None = None
        for window in walk:
            if last_window is not None:
                self._add(last_window, file)
            last_window = window
        self.stop, self.reason = walk.stop, walk.reason
        if last_window is not None:
            final = last_window.headers.row(len(last_window.headers) - 1)
            if last and not file.has_valid_crc(last_window.start + int(last_window.headers.position[-1]), final):
                self.stop, self.reason = (
                    UNWRITTEN,
                    "the last batch does not match its checksum, so it is not completely written yet",
                )
                last_window = last_window.select(slice(-1))
            self._add(last_window, file)
        if self.stop == UNWRITTEN:
            return Damage(file, self.end, 0, self.next_offset, self.reason, True, self.next_offset, limit, UNWRITTEN)
        return walk.damage(self.next_offset, limit)

    def _add(self, window: Window, file: SegmentFile) -> None:
        headers = window.headers
        if not len(headers):
            return
        max_timestamp = int(headers.max_timestamp.max())
        self.records += int(headers.count[~headers.is_control].sum())
        self.batches += len(headers)
        self.max_timestamp = max(self.max_timestamp, max_timestamp)
        start = window.start + int(headers.position[0])
        if not self.block_position or start - self.block_position[-1] >= BLOCK_BYTES:
            base = int(headers.base_offset[0])
            columns = (*self.block_columns, self.block_timestamp)
            for column, value in zip(columns, (base, base, 0, start, 0, max_timestamp), strict=True):
                column.append(value)
        self.block_timestamp[-1] = max(self.block_timestamp[-1], max_timestamp)
        self.block_records[-1] += int(np.maximum(headers.count, 0).sum())
        self.block_batches[-1] += len(headers)
        # A single corrupt or stale offset must not change the log end offset.
        ordered = self._order.add(headers, window.start, file.has_valid_batch_at)
        self.next_offset = self._order.end
        self.block_end[-1] = max(self.block_offset[-1], self.next_offset)
        trailing = np.flatnonzero(np.logical_and.accumulate(~ordered[::-1])[::-1])
        if len(trailing) < len(headers):
            self.out_of_order = -1
        if len(trailing) and self.out_of_order < 0:
            self.out_of_order = window.start + int(headers.position[trailing[0]])
        last = int(headers.position[-1])
        self.last_position = window.start + last
        self.last_header = bytes(window.data[last : last + HEADER_BYTES])
        # An out-of-order marker ends its transaction, but an out-of-order data batch never begins a transaction.
        self.events.add(window if ordered.all() else window.select(ordered | headers.is_control))
        self.end = self.last_position + int(headers.size[-1])

    @property
    def block_columns(self) -> tuple[array[int], ...]:
        """The offset, end offset, number of records, position and number of batches of each block."""
        return self.block_offset, self.block_end, self.block_records, self.block_position, self.block_batches

    def blocks_with(self, timestamp: int) -> list[tuple[int, int]]:
        """Return the (start, end) positions of the blocks that contain a batch with maxTimestamp >= `timestamp`."""
        blocks = zip(self.block_position, [*self.block_position[1:], self.end], self.block_timestamp, strict=True)
        return [(start, end) for start, end, max_timestamp in blocks if max_timestamp >= timestamp]


RACY_MS = 100
"""If a directory was changed less than this time before it was listed, a later change may result in the same
modification time.
"""
OPEN_ATTEMPTS = 5
DETAILED_BLOCKS = 1 << 17
"""Number of blocks that are returned separately, which is about 8 GB of batches."""


@dataclass(frozen=True, slots=True)
class _Listing:
    """A listing of a partition directory.

    `origin` (device, inode and metadata) identifies the directory and the topic.
    """

    segments: tuple[directory.SegmentName, ...]
    origin: tuple[tuple[int, int], bytes]
    changed_ns: int | None
    listed_ms: int

    def is_current(self, changed_ns: int | None) -> bool:
        """Return True if the directory has not changed since it was listed. `changed_ns` is the current modification
        time.
        """
        if changed_ns is None or changed_ns != self.changed_ns:
            return False
        return self.listed_ms - changed_ns // 1_000_000 > RACY_MS


def _merge_listing(
    before: list[SegmentState], names: tuple[directory.SegmentName, ...]
) -> tuple[list[SegmentState], bool]:
    """Return the states of the listed segments, and True if the transactions must be recomputed.

    Unchanged segments retain their states. The transactions remain valid if segments were only added at the end or
    removed at the start. They must be recomputed after any other change.
    """
    states_by_name = {state.name: state for state in before}
    states = [
        states_by_name[name]
        if name in states_by_name and states_by_name[name].is_unchanged(name)
        else SegmentState(name)
        for name in names
    ]
    is_changed = any(state.name in states_by_name and state is not states_by_name[state.name] for state in states)
    old, common = list(states_by_name), [name for name in names if name in states_by_name]
    is_moved = bool(old) and (not common or common != old[-len(common) :] or common != list(names[: len(common)]))
    return states, is_changed or is_moved


class PartitionState:
    """The segments and transactions of a partition directory at the time of the latest `refresh`.

    * `policy`: the policy for damaged batches (see `segment_recovery`)
    * `skipped`: damaged ranges at or after the end of the log
    """

    def __init__(
        self, partition_dir: FilePath, topic: str, partition: int, env: Env = SYSTEM, policy: str = recovery.FAIL
    ) -> None:
        self.partition_dir = partition_dir
        self.policy = policy
        self.skipped: list[Skipped] = []
        self._key = topic, partition
        self._env = env
        self.segments: list[SegmentState] = []
        self.transactions = TransactionState()
        self._listing: _Listing | None = None
        self._is_stale = True
        self._replay = False
        self._indexed: dict[directory.SegmentName, AbortedTransactions] = {}
        self._aborted: AbortedTransactions | None = None

    @property
    def first_base(self) -> int:
        return self.segments[0].name.base if self.segments else 0

    @property
    def log_end(self) -> int:
        return self.segments[-1].next_offset if self.segments else 0

    def refresh(self) -> None:
        """List the directory if it has changed, and read the batches that were appended to the last segment.

        Raises `NotFound` if the directory does not exist, and `Unavailable` if it changes continuously.
        """
        is_missing = False
        for attempts_left in reversed(range(OPEN_ATTEMPTS)):
            self._list(wait=is_missing)
            try:
                self._scan()
            except FileNotFoundError as error:
                # A segment was deleted after it was listed. Discard the incomplete scan, and list the directory again.
                self.partition_dir.refresh()
                self._is_stale = self._replay = is_missing = True
                if not attempts_left:
                    raise directory.missing_segment(error) from None
            else:
                return

    def _list(self, *, wait: bool) -> None:
        """Update the segments from the current listing. Unchanged segments retain their states.

        If `wait` is False and the directory is changing, the segments of the previous listing are retained. `wait` is
        ignored for the first listing and for the listing after a missing segment.
        """
        listing = self._next_listing(wait=wait)
        if listing is None:
            return
        is_same = self._listing is not None and listing.origin == self._listing.origin
        self.segments, is_changed = _merge_listing(self.segments if is_same else [], listing.segments)
        self._replay |= is_changed or not is_same
        self._listing, self._is_stale = listing, False

    def _next_listing(self, *, wait: bool) -> _Listing | None:
        """Return a new listing, or None if the directory has not changed.

        If the directory is changing, wait until the changes are complete if `wait` is True, and return None if `wait`
        is False.
        """
        before, changed_ns, directory_id = self._listing, None, (0, 0)
        if isinstance(self.partition_dir, LocalPath):
            try:
                stat = self.partition_dir.stat()
            except FileNotFoundError:
                raise directory.missing_partition_dir(self.partition_dir) from None
            changed_ns, directory_id = stat.st_mtime_ns, (stat.st_dev, stat.st_ino)
        is_known = bool(self.segments) and before is not None and before.origin[0] == directory_id
        if before is not None and is_known and not self._is_stale and before.is_current(changed_ns):
            return None
        now_ms = self._env.wall_ms()
        if wait or not is_known or changed_ns is None:
            names = directory.list_segments(self.partition_dir, env=self._env)
        elif (settled_names := directory.try_list_segments(self.partition_dir)) is not None:
            names = settled_names
        else:
            return None
        return _Listing(names, (directory_id, directory.partition_metadata(self.partition_dir)), changed_ns, now_ms)

    def _scan(self) -> None:
        self.skipped = []
        for index, state in enumerate(self.segments):
            last = index == len(self.segments) - 1
            if not state.closed or last or self._replay:
                self._scan_segment(index, last=last)
            if self._truncate_at(index):
                break
        if self.policy == recovery.SKIP and self.segments and self.segments[-1].out_of_order >= 0:
            state = self.segments[-1]
            reason = f"expected a batch at offset {state.next_offset} or above, found a batch below"
            self._skip(state.name, state.out_of_order, state.size, state.next_offset, reason)
        if self._replay:
            self._indexed.clear()
            self.transactions = TransactionState()
            for state in self.segments:
                self.transactions.apply(state.events.triples)
            self._replay, self._aborted = False, None

    def _scan_segment(self, index: int, *, last: bool) -> None:
        state = self.segments[index]
        with SegmentFile(state.name.path) as file:
            if not state.is_same_file(file) or (state.closed and (last or file.size != state.size)):
                state = SegmentState(directory.SegmentName(state.name.base, state.name.path, file.inode))
                self.segments[index] = state
                self._replay = True
            applied = len(state.events.triples)
            if not state.closed:
                limit = None if last else self.segments[index + 1].name.base
                state.scan(file, last=last, policy=self.policy, limit=limit)
            if len(state.events.triples) > applied:
                self.transactions.apply(state.events.triples, applied)
                self._aborted = None

    def _truncate_at(self, index: int) -> bool:
        """If the policy is `truncate` and a segment is incomplete, end the log in this segment and return True.

        The next refresh lists the directory again.
        """
        state = self.segments[index]
        if self.policy != recovery.TRUNCATE or state.stop == "end":
            return False
        later = self.segments[index + 1 :]
        if later or state.stop != "zeros":
            self._skip(state.name, state.end, state.size, state.next_offset, state.reason)
        for segment in later:
            self._skip(segment.name, 0, segment.name.size, state.next_offset, recovery.AFTER_TRUNCATION)
        if later:
            del self.segments[index + 1 :]
            self._is_stale = True
        return True

    def _skip(self, segment: directory.SegmentName, position: int, end: int, offset: int, reason: str) -> None:
        file, nbytes = str(segment.path), end - position
        self.skipped.append(Skipped(*self._key, file, position, nbytes, offset, None, reason))

    def aborted(self, start: int, end: int) -> AbortedTransactions:
        """Return the aborted transactions with offsets in `[start, end)`, based on the markers of the entire partition.

        Raises `Corrupt` if the marker of a transaction in this range is damaged. If the policy is `skip`, the
        transaction is treated as aborted.
        """
        unknown = self.unknown(start, end)
        if unknown and self.policy != recovery.SKIP:
            raise Corrupt(
                f"the marker of a transaction of producer {unknown[0][0].producer} is damaged, so its result is"
                " unknown; read other offsets, or skip the transaction with corruptRecords=skip",
                file=unknown[0][1],
                offset=unknown[0][0].last,
            )
        if self._aborted is None:
            self._aborted = merge_aborted(self.transactions, self._transaction_indexes())
        aborted = self._aborted.overlapping(start, end)
        if not unknown:
            return aborted
        # Treat these transactions as aborted at the offset of the damaged range.
        columns = np.array([(*span, span.last + 1) for span, _ in unknown], np.int64).T
        every = concatenate([aborted, AbortedTransactions(*columns)])
        return every.select(np.argsort(every.last_offsets, kind="stable"))

    def unknown(self, start: int, end: int) -> list[tuple[TransactionSpan, str]]:
        """Return the transactions with offsets in `[start, end)` that are neither ended by a marker nor contained in an
        entry of a `.txnindex`.

        The result contains each transaction and the file that contained its marker.
        """
        entries = [span for span in self.transactions.unknown if span.first < end and span.last >= start]
        if not entries:
            return []
        index = concatenate(self._transaction_indexes())
        return [
            (span, [str(state.name.path) for state in self.segments if state.name.base <= span.last][-1])
            for span in entries
            if span.producer not in index.overlapping(span.first, span.first + 1).producer_ids
        ]

    def _transaction_indexes(self) -> list[AbortedTransactions]:
        return [self._transaction_index(number) for number in range(len(self.segments))]

    def _transaction_index(self, number: int) -> AbortedTransactions:
        """Return the `.txnindex` entries of a segment that the log does not contradict. The result is empty if the file
        is missing or invalid.

        The entries of the last segment are not cached.
        """
        state = self.segments[number]
        index = self._indexed.get(state.name)
        if index is None:
            index = aborted_by_index(state.name.path, state.name.base)
            if len(index):
                first = int(index.first_offsets.min())
                low = max(bisect_right(self.segments, first, key=attrgetter("name.base")) - 1, 0)
                segments = self.segments[min(low, number) : number + 1]
                events = [other.events for other in segments if other.has_ordered_batches]
                index = confirmed_entries(index, events, is_damaged=state.has_unknown_markers)
            if state is not self.segments[-1]:
                self._indexed[state.name] = index
        return index

    def stored(self, start: int, end: int, *, detailed: int = DETAILED_BLOCKS) -> Stored:
        """Return the stored size of an offset range, with one row per block. After the first `detailed` blocks, the
        result contains only one row per segment, because otherwise a stream with rate limits would process all
        blocks of a large partition in each micro-batch.
        """
        by_base = attrgetter("name.base")
        low = max(bisect_right(self.segments, start, key=by_base) - 1, 0)
        columns = [array("q") for _ in range(5)]
        edges = array("q")
        for state in self.segments[low : bisect_left(self.segments, end, key=by_base)]:
            if len(edges) >= detailed:
                row = (state.name.base, state.next_offset, state.records, 0, state.batches)
                for column, value in zip(columns, row, strict=True):
                    column.append(value)
                edges.append(state.end)
                continue
            for column, values in zip(columns, state.block_columns, strict=True):
                column.extend(values)
            # A block ends where the next block starts. The last block ends at the end of the segment.
            edges.extend(state.block_position[1:])
            edges.extend([state.end] if state.block_position else ())
        base, stop, records, position, batches = (np.array(column, np.int64) for column in columns)
        ranges = BatchRanges(base, stop, records, np.array(edges, np.int64) - position, batches)
        return Stored(start, end, ranges.ordered().clipped(start, end))
