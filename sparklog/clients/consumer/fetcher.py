"""A fetcher, which reads records starting at the positions of a consumer, and returns the records in batches.

Prefetched batches are dropped if the partitions to read change or if a position is set. The records of dropped batches
are fetched again if they are required.
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
POSITION_COLUMNS = ("topic", "partition", "offset")
"""The columns that every batch contains, because the positions are computed from these columns."""


class PositionFetcher:
    """Reads batches with `columns` and `POSITION_COLUMNS`, starting at the positions of a consumer."""

    def __init__(self, positions: Positions, starts: StartingPositions, columns: Sequence[str]) -> None:
        self._positions = positions
        self._starts = starts
        self._topics = starts.topics
        self._view = starts.topics.view
        self._isolation = starts.isolation
        self._columns = tuple(dict.fromkeys((*columns, *POSITION_COLUMNS)))
        self._stream: Iterator[pa.RecordBatch] | None = None
        self._waiting: deque[pa.RecordBatch] = deque()

    def next_batches(self, max_records: int | None) -> list[pa.RecordBatch]:
        """Return the prefetched batches, or read the next batch. The positions are not advanced."""
        if not self._waiting and self._stream is not None:
            try:
                self._waiting.append(next(self._stream))
            except StopIteration:
                self._stream = None
            except NotFound as error:
                # The records were deleted before they were read, so the reset policy determines the new position.
                _LOG.warning("%s", error)
                self._stream = None
        batches = []
        while self._waiting and (max_records is None or max_records > 0):
            batch = self._waiting.popleft()
            if max_records is not None and batch.num_rows > max_records:
                self.put_back(batch.slice(max_records))
                batch = batch.slice(0, max_records)
            batches.append(batch)
            max_records = None if max_records is None else max_records - batch.num_rows
        return batches

    def put_back(self, batch: pa.RecordBatch) -> None:
        """Put a batch back, so that the next call of `next_batches` returns this batch first."""
        self._waiting.appendleft(batch)

    def drop(self) -> None:
        """Drop the prefetched batches."""
        self._stream = None
        self._waiting.clear()

    def plan(self) -> bool:
        """Check for records after the positions. Return True if `next_batches` may return records."""
        self._topics.refresh(self._positions.topics(), follow=True)
        ranges = self._ranges()
        if ranges:
            self._stream = self._read(ranges)
        return bool(ranges)

    def _ranges(self) -> list[OffsetRange]:
        unread = []
        for partition, bounds in self._topics.bounds(self._positions.read()).items():
            position = self._positions.next[partition]
            if not bounds.log_start <= position <= bounds.log_end:
                position = self._positions.next[partition] = self._starts.start(partition, position, bounds)
            if position < bounds.end(self._isolation):
                unread.append(OffsetRange(*partition, position, bounds.end(self._isolation)))
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
                # Transaction markers, aborted records or gaps may follow the last returned record.
                self._positions.next[topic, offsets.partition] = offsets.end
