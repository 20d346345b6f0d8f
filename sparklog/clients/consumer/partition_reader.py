"""Read partitions in plain Python: `poll` for Arrow batches, iteration for records, positions, look-ups of offsets.

`sparklog.clients.consumer.consumer` decides which partitions these are.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import Any

import pyarrow as pa

from sparklog.arguments import NAME, NUMBER, SECONDS, TIME, checked
from sparklog.clients.consumer.consumer_options import ConsumerOptions
from sparklog.clients.consumer.fetcher import PositionFetcher
from sparklog.clients.consumer.positions import PAIRS, PLACES, Partitions, Positions, StartingPositions, places_of
from sparklog.clients.consumer.topics_read import TopicsRead
from sparklog.common.settings import ValueType
from sparklog.common.times import warn_of_seconds
from sparklog.errors import BadRequest
from sparklog.format.checkpoint_files import TopicPartition
from sparklog.groups.group import Group
from sparklog.log.state.view import TimestampOffset
from sparklog.log.topic.root import Root, RootView

CHUNK_RECORDS = 500
"""Records that are made at once, between two looks at the group: Kafka's `max.poll.records`."""


@dataclass(slots=True)
class ConsumerRecord:
    """A record, with the fields that kafka-python's has.

    Columns that the consumer does not read are None. `timestamp` is ms since 1970; `timestamp_type` 0 is of the
    producer, 1 of the log; `headers` are pairs of a text and bytes.
    """

    topic: str
    partition: int
    offset: int
    timestamp: int | None
    timestamp_type: int | None
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes | None]] | None


def records_of(batch: pa.RecordBatch) -> Iterator[ConsumerRecord]:
    """Yield the rows of a batch. Its columns are converted at once."""
    return map(
        ConsumerRecord,
        *(_values(batch, name) for name in ("topic", "partition", "offset", "timestamp", "timestampType")),
        *(_values(batch, name) for name in ("key", "value", "headers")),
    )


def _values(batch: pa.RecordBatch, name: str) -> Iterator[Any]:
    if name not in batch.schema.names:
        return repeat(None, batch.num_rows)
    column = batch.column(name)
    if name == "timestamp":
        column = column.cast(pa.int64())
    elif name == "headers":
        if column.null_count == len(column):
            return repeat((), batch.num_rows)
        return ([(header["key"], header["value"]) for header in row or ()] for row in column.to_pylist())
    return iter(column.to_pylist())


TIMES = ValueType(
    "a mapping of pairs of topic and partition to times in milliseconds",
    lambda value: isinstance(value, Mapping) and PAIRS.accepts(value) and all(map(TIME.accepts, value.values())),
)


class PartitionReader(ABC):
    """The reading part of a consumer: see the module."""

    def __init__(self, root: Root, group: Group | None, options: ConsumerOptions) -> None:
        self.isolation = options["isolation_level"]
        self.max_poll_records = options["max_poll_records"]
        self._root = root
        self._env = root.env
        self._options = options
        self._group = group
        self._view = RootView(root)
        self._topics = TopicsRead(self._view)
        self._positions = Positions()
        self._starts = StartingPositions(self._topics, group, options["auto_offset_reset"], self.isolation)
        self._fetcher = PositionFetcher(self._positions, self._starts, options["columns"])
        # Records that an iteration has begun with: the rows from `_row` on are not handed out yet.
        self._chunk: pa.RecordBatch | None = None
        self._records: Iterator[ConsumerRecord] = iter(())
        self._row = 0
        self._closed = False
        self._process = os.getpid()

    def _check_open(self) -> None:
        if self._closed:
            raise BadRequest(f"{self!r} is closed: make another one")
        if self._process != os.getpid():
            raise BadRequest(f"{self!r} is of process {self._process}, which this one was forked by: make one here")

    @abstractmethod
    def _keep_up(self) -> None:
        """Do what is due before records are handed out."""

    @abstractmethod
    def _plan(self) -> bool:
        """Look for records; True if there may be some."""

    # -- reading

    @checked(timeout=SECONDS)
    def poll(self, timeout: float = 0.0) -> list[pa.RecordBatch]:
        """Read the next records.

        Args:
            timeout: seconds to wait for some, where there are none yet.

        Returns:
            Record batches, with the columns that were asked for; empty if nothing came.

        Raises:
            BadRequest: the consumer is closed, or reads nothing.
            Wakeup: another thread has called `wakeup`.
            Fenced: another process has joined as the same static member.
            Conflict: a topic was deleted or created again.
            NotFound: offsets that were not read are gone, under `auto_offset_reset="none"`.
        """
        batches = self._poll(timeout, self.max_poll_records)
        for batch in batches:
            self._positions.move_after(batch)
        return [batch.select(self._options["columns"]) for batch in batches]

    def _poll(self, timeout: float, room: int | None) -> list[pa.RecordBatch]:
        """Return the next batches; positions are not moved."""
        self._check_open()
        begun = self._env.now()
        self._return_chunk()
        while True:
            self._keep_up()
            batches = self._fetcher.take(room)
            if batches:
                return batches
            if self._plan():
                continue
            left_ms = timeout * 1000 - self._env.elapsed_ms(begun)
            if left_ms <= 0:
                return []
            self._env.sleep(min(self._view.poll_interval_ms, left_ms) / 1000)

    def __iter__(self) -> Iterator[ConsumerRecord]:
        return self

    def __next__(self) -> ConsumerRecord:
        """Return the next record; wait for one, at most for `consumer_timeout_ms`."""
        record = next(self._records, None)
        while record is None:
            if self._closed:
                raise StopIteration
            timeout_ms = self._options["consumer_timeout_ms"]
            room = min(CHUNK_RECORDS, self.max_poll_records or CHUNK_RECORDS)
            batches = self._poll(float("inf") if timeout_ms is None else timeout_ms / 1000, room)
            if not batches:
                raise StopIteration
            self._chunk, *rest = batches
            for batch in reversed(rest):
                self._fetcher.put_back(batch)
            self._records, self._row = records_of(self._chunk), 0
            record = next(self._records, None)
        self._row += 1
        self._positions.next[record.topic, record.partition] = record.offset + 1
        return record

    def _return_chunk(self) -> None:
        """Give back what an iteration has not handed out, for `poll`."""
        if self._chunk is not None and self._row < self._chunk.num_rows:
            self._fetcher.put_back(self._chunk.slice(self._row))
        self._chunk, self._records = None, iter(())

    @checked(partitions=PAIRS)
    def pause(self, *partitions: TopicPartition) -> None:
        """Hand out no records of partitions, which stay assigned.

        Args:
            partitions: pairs of topic and partition.

        Raises:
            NotFound: a partition is not read here.
        """
        self._check_open()
        if partitions:
            self._positions.paused.update(self._positions.check(partitions, self))
            self._drop_read()

    @checked(partitions=PAIRS)
    def resume(self, *partitions: TopicPartition) -> None:
        """Hand out records of partitions again.

        Args:
            partitions: pairs of topic and partition.

        Raises:
            NotFound: a partition is not read here.
        """
        self._check_open()
        if partitions:
            self._positions.paused.difference_update(self._positions.check(partitions, self))
            self._drop_read()

    def paused(self) -> frozenset[TopicPartition]:
        """Return the partitions that are paused.

        Returns:
            Pairs of topic and partition.
        """
        return frozenset(self._positions.paused)

    # -- positions

    @checked(topic=NAME, partition=NUMBER)
    def position(self, topic: str, partition: int) -> int:
        """Return the position in a partition.

        Args:
            topic: its name.
            partition: its number.

        Returns:
            The next offset that `poll` reads.

        Raises:
            NotFound: the partition is not read here.
        """
        self._check_open()
        self._positions.check([(topic, partition)], self)
        return self._positions.next[topic, partition]

    def positions(self) -> dict[str, dict[int, int]]:
        """Return all positions: what `commit` commits.

        Returns:
            Topic to partition to the next offset to read.
        """
        return self._positions.by_topic()

    @checked(topic=NAME, partition=NUMBER, offset=NUMBER)
    def seek(self, topic: str, partition: int, offset: int) -> None:
        """Go on from an offset. If it is out of range, `auto_offset_reset` counts at the next `poll`.

        Args:
            topic: its name.
            partition: its number.
            offset: the next one to read.

        Raises:
            NotFound: the partition is not read here.
        """
        self._check_open()
        self._positions.check([(topic, partition)], self)
        self._seek({(topic, partition): offset})

    @checked(partitions=PAIRS)
    def seek_to_beginning(self, *partitions: TopicPartition) -> None:
        """Go on from the log start.

        Args:
            partitions: pairs of topic and partition; none: all that are read.

        Raises:
            NotFound: a partition is not read here.
        """
        self._check_open()
        self._seek(self.beginning_offsets(self._positions.check(partitions, self)))

    @checked(partitions=PAIRS)
    def seek_to_end(self, *partitions: TopicPartition) -> None:
        """Go on from the end: the last stable offset, under read_committed.

        Args:
            partitions: pairs of topic and partition; none: all that are read.

        Raises:
            NotFound: a partition is not read here.
        """
        self._check_open()
        self._seek(self.end_offsets(self._positions.check(partitions, self)))

    @checked(timestamp_ms=TIME, partitions=PAIRS)
    def seek_to_timestamp(self, timestamp_ms: int, *partitions: TopicPartition) -> None:
        """Go on from the first record that is not older, or from the end if there is none.

        Args:
            timestamp_ms: since 1970.
            partitions: pairs of topic and partition; none: all that are read.

        Raises:
            NotFound: a partition is not read here.
        """
        self._check_open()
        places = self._positions.check(partitions, self)
        ends = self.end_offsets(places)
        answers = self.offsets_for_times(dict.fromkeys(places, timestamp_ms))
        self._seek({**ends, **{place: answer.offset for place, answer in answers.items() if answer is not None}})

    def _seek(self, positions: Mapping[TopicPartition, int]) -> None:
        self._drop_read()
        self._positions.next.update(positions)

    def _drop_read(self) -> None:
        self._chunk, self._records = None, iter(())
        self._fetcher.drop()

    # -- offsets of partitions, read here or not

    @checked(partitions=PLACES)
    def beginning_offsets(self, partitions: Partitions) -> dict[TopicPartition, int]:
        """Return the log start of partitions.

        Args:
            partitions: pairs of topic and partition, or topic to partitions.

        Returns:
            By pair of topic and partition.

        Raises:
            NotFound: there is no such partition.
        """
        return {place: bounds.log_start for place, bounds in self._topics.bounds(self._seen(partitions)).items()}

    @checked(partitions=PLACES)
    def end_offsets(self, partitions: Partitions) -> dict[TopicPartition, int]:
        """Return the end of partitions: the last stable offset, under read_committed.

        Args:
            partitions: pairs of topic and partition, or topic to partitions.

        Returns:
            By pair of topic and partition.

        Raises:
            NotFound: there is no such partition.
        """
        return {
            place: bounds.end(self.isolation) for place, bounds in self._topics.bounds(self._seen(partitions)).items()
        }

    @checked(times=TIMES)
    def offsets_for_times(self, times: Mapping[TopicPartition, int]) -> dict[TopicPartition, TimestampOffset | None]:
        """Look up the first record of partitions that is not older than a time.

        Args:
            times: by pair of topic and partition, ms since 1970.

        Returns:
            By pair of topic and partition: its `offset` and `timestamp`, or None if there is none.

        Raises:
            NotFound: there is no such partition.
        """
        warn_of_seconds(**{f"{topic}-{partition}": time_ms for (topic, partition), time_ms in times.items()})
        by_topic: dict[str, dict[int, int]] = {}
        for topic, partition in self._seen(list(times)):
            by_topic.setdefault(topic, {})[partition] = times[topic, partition]
        return {
            (topic, partition): answer
            for topic, targets in by_topic.items()
            for partition, answer in self._view.offsets_for_timestamps(topic, targets, self.isolation).items()
        }

    def _seen(self, partitions: Partitions) -> list[TopicPartition]:
        """Look at topics now, and return the partitions as pairs."""
        self._check_open()
        places = places_of(partitions)
        self._view.refresh(sorted({topic for topic, _ in places}))
        return places
