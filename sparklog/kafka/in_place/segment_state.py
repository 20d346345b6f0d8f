"""Planner's state of one segment: enough to plan, estimate and look up times without reading it again.

The headers of every batch are walked once, later those of appended batches only. About a megabyte is kept of a gigabyte
of batches: one block for each 64 KiB or more, and the transaction events.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field, replace

import numpy as np

from sparklog.format.record_batch import HEADER_BYTES
from sparklog.kafka.in_place.directory import SegmentName
from sparklog.kafka.in_place.segment_file import BatchWalk, SegmentFile, Window
from sparklog.kafka.in_place.segment_recovery import FAIL, SKIP, TRUNCATE, Damage, OffsetOrder, resume, sound_windows
from sparklog.kafka.in_place.transaction_state import TransactionEvents

BLOCK_BYTES = 64 * 1024
UNWRITTEN = "unwritten"
UNSOUND = "unsound"
"""Why a walk stopped, beside BatchWalk's reasons: the checksum of the last batch does not match (yet); a batch is not
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
    * `closed`: it has a successor and was read to its end since; the file then had `size` bytes and was `modified` (ns)
    * blocks (parallel arrays): where each begins, its offsets `[offset, end)`, its greatest timestamp, how many offsets
      it takes (those of records and markers) and how many batches it has
    """

    name: SegmentName
    end: int = 0
    records: int = 0
    batches: int = 0
    next_offset: int = 0
    max_timestamp: int = -1
    stop: str = "end"
    reason: str = ""
    closed: bool = False
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
    _order: OffsetOrder = field(init=False)

    def __post_init__(self) -> None:
        self.next_offset = max(self.next_offset, self.name.base)
        self._order = OffsetOrder(self.next_offset)

    def still_holds(self, file: SegmentFile) -> bool:
        """Is the opened file the one that was read before, grown at most?

        A follower that truncates to its leader's log writes other batches at the same positions.
        """
        if file.inode != self.name.inode or file.size < self.end:
            return False
        header = self.last_header
        return not header or file.read(self.last_position, len(header)) == header

    def unchanged(self, listed: SegmentName) -> bool:
        """Does a listing show the file as it was when it was closed? Inodes are used again, names too."""
        return not self.closed or (listed.size, listed.modified) == (self.size, self.modified)

    def scan(self, file: SegmentFile, *, last: bool, policy: str = FAIL, limit: int | None = None) -> None:
        """Walk on from `end` to the file's end. In the partition's last segment a last batch with a wrong checksum is
        not written yet and does not count; elsewhere checksums are the readers' business, unless `policy` is to
        truncate: then the segment ends in front of the first batch that is not sound. `limit`: the next segment's base.
        """
        if policy == TRUNCATE:
            self.stop, self.reason = "end", ""
            for window in sound_windows(file, self.end, self.next_offset, decide=self._unsound, limit=limit):
                self._take(window, file)
        else:
            self._scan_headers(file, last=last)
            while self._unknown_format(file) or (policy == SKIP and self._resumed(file, last=last, limit=limit)):
                self._scan_headers(file, last=last)
        self.size, self.modified = file.size, file.modified
        self.closed = not last
        if self.closed and self.stop != "end" and policy != TRUNCATE:
            self.events.lost(self.next_offset)

    def _scan_headers(self, file: SegmentFile, *, last: bool) -> None:
        walk = BatchWalk(file, self.end)
        held: Window | None = None
        for window in walk:
            if held is not None:
                self._take(held, file)
            held = window
        self.stop, self.reason = walk.stop, walk.reason
        if held is not None:
            final = held.headers.row(len(held.headers) - 1)
            if last and not file.crc_holds(held.start + int(held.headers.position[-1]), final):
                self.stop, self.reason = UNWRITTEN, "the last batch does not match its checksum: not written yet"
                held = replace(held, headers=held.headers[:-1])
            self._take(held, file)

    def _unsound(self, damage: Damage) -> bool:
        self.stop, self.reason = UNSOUND, damage.reason
        return False

    def _unknown_format(self, file: SegmentFile) -> bool:
        """Stopped at a whole batch of an unknown magic? Kafka's recovery keeps it, so the log does not end there."""
        headers = None if self.stop == "end" else file.unknown_format_at(self.end)
        if headers is None:
            return False
        self.events.lost(self.next_offset)
        self._order.take(headers, self.end, lambda position: True)
        self.next_offset = self._order.end
        self.end += int(headers.size[0])
        return True

    def _resumed(self, file: SegmentFile, *, last: bool, limit: int | None) -> bool:
        """Stopped at what is no batch: is there one behind it? What lies between may have held markers."""
        if self.stop == "end" or (last and self.stop == "zeros"):
            return False
        following = resume(file, self.end, self.next_offset, limit)
        if following is None:
            return False
        self.events.lost(self.next_offset)
        self.end = following.position
        return True

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
        at = int(headers.position[-1])
        self.last_position = window.start + at
        self.last_header = window.data[at : at + HEADER_BYTES]
        # A stray marker ends its transaction, whatever its offset; stray data begins none.
        kept = headers if ordered.all() else headers[ordered | headers.is_control]
        self.events.add(replace(window, headers=kept))
        self.end = self.last_position + int(headers.size[-1])

    @property
    def block_columns(self) -> tuple[array[int], ...]:
        """Offset, end, records, position and batches of the blocks."""
        return self.block_offset, self.block_end, self.block_records, self.block_position, self.block_batches

    def blocks_with(self, timestamp: int) -> list[tuple[int, int]]:
        """(start, end) positions of the blocks that hold a batch with maxTimestamp >= `timestamp`, in order."""
        ends = [*self.block_position[1:], self.end]
        return [
            (start, end)
            for start, end, greatest in zip(self.block_position, ends, self.block_timestamp, strict=True)
            if greatest >= timestamp
        ]
