"""Read the records after the positions of a consumer, and hand them out as batches.

What is read ahead is dropped when the partitions that are read change, or a position is set: it is read again then.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterator, Sequence

import pyarrow as pa

from sparklog.clients.consumer.positions import Positions, StartingPositions
from sparklog.errors import NotFound
from sparklog.log.read.read_plan import read_parts
from sparklog.log.state.view import OffsetRange

_LOG = logging.getLogger("sparklog.groups")
PLACE_COLUMNS = ("topic", "partition", "offset")


class PositionFetcher:
    """See the module. Batches have `columns`, and those that say where a record is."""

    def __init__(self, positions: Positions, starts: StartingPositions, columns: Sequence[str]) -> None:
        self._positions = positions
        self._starts = starts
        self._topics = starts.topics
        self._view = starts.topics.view
        self._isolation = starts.isolation
        self._columns = tuple(dict.fromkeys((*columns, *PLACE_COLUMNS)))
        self._stream: Iterator[pa.RecordBatch] | None = None
        self._waiting: deque[pa.RecordBatch] = deque()

    def take(self, room: int | None) -> list[pa.RecordBatch]:
        """Return batches that have been read, or read one more: at most `room` records. Positions are not moved."""
        if not self._waiting and self._stream is not None:
            try:
                self._waiting.append(next(self._stream))
            except StopIteration:
                self._stream = None
            except NotFound as error:
                # Deleted before they were read: where to go on is for the reset policy to say.
                _LOG.warning("%s", error)
                self._stream = None
        batches = []
        while self._waiting and (room is None or room > 0):
            batch = self._waiting.popleft()
            if room is not None and batch.num_rows > room:
                self.put_back(batch.slice(room))
                batch = batch.slice(0, room)
            batches.append(batch)
            room = None if room is None else room - batch.num_rows
        return batches

    def put_back(self, batch: pa.RecordBatch) -> None:
        """Hand this batch out next."""
        self._waiting.appendleft(batch)

    def drop(self) -> None:
        """Forget what was read ahead."""
        self._stream = None
        self._waiting.clear()

    def plan(self) -> bool:
        """Look for records after the positions; True if there may be some, which `take` reads then."""
        self._topics.look(self._positions.topics(), follow=True)
        ranges = self._ranges()
        if ranges:
            self._stream = self._read(ranges)
        return bool(ranges)

    def _ranges(self) -> list[OffsetRange]:
        unread = []
        for place, bounds in self._topics.bounds(self._positions.read()).items():
            position = self._positions.next[place]
            if not bounds.log_start <= position <= bounds.log_end:
                position = self._positions.next[place] = self._starts.start(place, position, bounds)
            if position < bounds.end(self._isolation):
                unread.append(OffsetRange(*place, position, bounds.end(self._isolation)))
        fetch_bytes = self._view.root.store.limits.fetch_bytes
        return [
            OffsetRange(
                offsets.topic,
                offsets.partition,
                offsets.start,
                max(*stored.at_bytes(fetch_bytes), *stored.at_records(1)),
            )
            for offsets, stored in zip(unread, self._view.stored(unread), strict=True)
        ]

    def _read(self, ranges: Sequence[OffsetRange]) -> Iterator[pa.RecordBatch]:
        for topic in dict.fromkeys(offsets.topic for offsets in ranges):
            of_topic = [offsets for offsets in ranges if offsets.topic == topic]
            yield from read_parts(self._view.plan(of_topic, self._isolation), self._columns)
            for offsets in of_topic:
                # After the last record there may be markers, aborted ones, or gaps.
                self._positions.next[topic, offsets.partition] = offsets.end
