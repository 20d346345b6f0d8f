"""A reader of partitions in pure Python. It polls Arrow batches, iterates over records, manages positions, and looks up
offsets.

`sparklog.clients.consumer.consumer` determines which partitions are read.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import repeat
from operator import length_hint
from typing import Any

import numpy as np
import pyarrow as pa

from sparklog.arguments import NAME, NUMBER, SECONDS, TIME, checked
from sparklog.clients.consumer.consumer_options import ConsumerOptions
from sparklog.clients.consumer.fetcher import PositionFetcher
from sparklog.clients.consumer.positions import (
    PAIRS,
    PARTITIONS_OR_PAIRS,
    Partitions,
    Positions,
    StartingPositions,
    partition_pairs,
)
from sparklog.clients.consumer.subscribed_topics import SubscribedTopics
from sparklog.common.settings import ValueType
from sparklog.common.times import warn_of_seconds
from sparklog.errors import BadRequest
from sparklog.format.arrow_numpy import fixed_values
from sparklog.format.checkpoint_files import TopicPartition
from sparklog.groups.group import Group
from sparklog.log.state.view import Bounds, TimestampOffset
from sparklog.log.topic.root import Root, RootView

CHUNK_RECORDS = 500
"""The maximum number of records that an iteration decodes before it checks the group again, as in Kafka's
`max.poll.records`.
"""


@dataclass(slots=True)
class ConsumerRecord:
    """A record with the fields of kafka-python's `ConsumerRecord`.

    If the consumer does not read a column, the field of the column is None. `timestamp` is in milliseconds since 1970.
    `timestamp_type` is 0 if the producer set the timestamp (CreateTime), and 1 if the log set the timestamp
    (LogAppendTime). `headers` contains pairs of a name and a value in bytes.
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
    """Yield the rows of a batch of one topic as records. Each column is converted in one call."""
    return map(
        ConsumerRecord,
        *(_values(batch, name) for name in ("topic", "partition", "offset", "timestamp", "timestampType")),
        *(_values(batch, name) for name in ("key", "value", "headers")),
    )


def _values(batch: pa.RecordBatch, name: str) -> Iterator[Any]:
    if name not in batch.schema.names:
        return repeat(None, batch.num_rows)
    column = batch.column(name)
    if name == "topic":
        return repeat(column[0].as_py(), batch.num_rows)
    if name == "timestamp":
        # The batches of a reader do not contain null timestamps.
        return iter(fixed_values(column, np.int64).tolist())
    if name == "headers":
        if column.null_count == len(column):
            return repeat((), batch.num_rows)
        return ([(header["key"], header["value"]) for header in row or ()] for row in column.to_pylist())
    return iter(column.to_pylist())


class BatchIteration:
    """An iteration over the records of a batch."""

    def __init__(self, batch: pa.RecordBatch) -> None:
        self._batch = batch
        # The length hint of a list iterator is the number of records that it has not returned yet.
        self.records = iter(list(records_of(batch)))
        self._taken = 0

    def unread(self) -> pa.RecordBatch:
        """Return the rows that the iteration has not returned yet."""
        return self._batch.slice(self._returned())

    def take_returned(self) -> pa.RecordBatch:
        """Return the rows that the iteration has returned since the previous call."""
        start, self._taken = self._taken, self._returned()
        return self._batch.slice(start, self._taken - start)

    def _returned(self) -> int:
        return int(self._batch.num_rows) - length_hint(self.records)


TIMES = ValueType(
    "a mapping of pairs of a topic and a partition to timestamps in milliseconds",
    lambda value: isinstance(value, Mapping) and PAIRS.accepts(value) and all(map(TIME.accepts, value.values())),
)


class PartitionReader(ABC):
    """The base class of `Consumer`, which reads partitions and manages positions."""

    def __init__(self, root: Root, group: Group | None, options: ConsumerOptions) -> None:
        self.isolation = options["isolation_level"]
        self.max_poll_records = options["max_poll_records"]
        self._root = root
        self._env = root.env
        self._options = options
        self._group = group
        self._view = RootView(root)
        self._topics = SubscribedTopics(self._view)
        self._positions = Positions()
        self._starts = StartingPositions(self._topics, group, options["auto_offset_reset"], self.isolation)
        self._fetcher = PositionFetcher(self._positions, self._starts, options["columns"])
        self._iteration: BatchIteration | None = None
        """The iteration over the current batch."""
        self._records: Iterator[ConsumerRecord] = iter(())
        self._closed = False
        self._process = os.getpid()

    def _check_open(self) -> None:
        if self._closed:
            raise BadRequest(f"{self!r} is closed: create a new consumer")
        if self._process != os.getpid():
            raise BadRequest(
                f"{self!r} was created in the parent process {self._process}: create a new consumer in the forked "
                "process"
            )

    @abstractmethod
    def _run_due_work(self) -> None:
        """Run the work that is due before records are returned, such as heartbeats and commits."""

    @abstractmethod
    def _plan(self) -> bool:
        """Check for records after the positions. Return True if records may exist."""

    # -- reading

    @checked(timeout=SECONDS)
    def poll(self, timeout: float = 0.0) -> list[pa.RecordBatch]:
        """Read the next records.

        Args:
            timeout: The maximum time in seconds to wait for records if none are available.

        Returns:
            Record batches with the columns that the consumer reads. The list is empty if no records arrived in time.

        Raises:
            BadRequest: If the consumer is closed, or does not have topics or partitions.
            Wakeup: If another thread has called `wakeup`.
            Fenced: If another process has joined as the same static member.
            Conflict: If a topic was deleted or recreated.
            NotFound: If unread records were deleted and `auto_offset_reset` is `none`.
            Unavailable: If the store failed while records were read. The next call continues at the same positions.
        """
        batches = self._poll(timeout, self.max_poll_records)
        for batch in batches:
            self._positions.move_after(batch)
        return [batch.select(self._options["columns"]) for batch in batches]

    def _poll(self, timeout: float, max_records: int | None) -> list[pa.RecordBatch]:
        """Return the next batches without advancing the positions."""
        self._check_open()
        started = self._env.now()
        self._return_chunk()
        while True:
            self._run_due_work()
            batches = self._fetcher.next_batches(max_records)
            if batches:
                return batches
            if self._plan():
                continue
            remaining_ms = timeout * 1000 - self._env.elapsed_ms(started)
            if remaining_ms <= 0:
                return []
            self._env.sleep(min(self._view.poll_interval_ms, remaining_ms) / 1000)

    def __iter__(self) -> Iterator[ConsumerRecord]:
        return self

    def __next__(self) -> ConsumerRecord:
        """Return the next record. Wait up to `consumer_timeout_ms` for the record."""
        record = next(self._records, None)
        while record is None:
            if not self._read_chunk():
                raise StopIteration
            record = next(self._records, None)
        return record

    def _read_chunk(self) -> bool:
        """Read the next batch of an iteration. Return False if no records arrive for `consumer_timeout_ms`, or if the
        consumer is closed.
        """
        if self._closed:
            return False
        timeout_ms = self._options["consumer_timeout_ms"]
        max_records = min(CHUNK_RECORDS, self.max_poll_records or CHUNK_RECORDS)
        batches = self._poll(float("inf") if timeout_ms is None else timeout_ms / 1000, max_records)
        if not batches:
            return False
        chunk, *rest = batches
        for batch in reversed(rest):
            self._fetcher.put_back(batch)
        self._iteration = BatchIteration(chunk)
        self._records = self._iteration.records
        self._positions.take_returned = self._iteration.take_returned
        return True

    def _return_chunk(self) -> None:
        """Return the unread rows of an iteration to the fetcher, so that the next `poll` returns these rows."""
        if self._iteration is not None and (unread := self._iteration.unread()).num_rows:
            self._fetcher.put_back(unread)
        self._end_iteration()

    def _end_iteration(self) -> None:
        """Advance the positions to the end of the returned rows, and drop the other rows."""
        if self._iteration is not None:
            self._positions.move_after_returned()
            self._positions.take_returned = None
        self._iteration, self._records = None, iter(())

    @checked(partitions=PAIRS)
    def pause(self, *partitions: TopicPartition) -> None:
        """Stop returning records of partitions. The partitions remain assigned.

        Args:
            partitions: The partitions to pause, as pairs of topic and partition.

        Raises:
            NotFound: If this consumer does not read a partition.
        """
        self._check_open()
        if partitions:
            self._positions.paused.update(self._positions.check(partitions, self))
            self._drop_read()

    @checked(partitions=PAIRS)
    def resume(self, *partitions: TopicPartition) -> None:
        """Resume partitions that were paused with `pause`.

        Args:
            partitions: The partitions to resume, as pairs of topic and partition.

        Raises:
            NotFound: If this consumer does not read a partition.
        """
        self._check_open()
        if partitions:
            self._positions.paused.difference_update(self._positions.check(partitions, self))
            self._drop_read()

    def paused(self) -> frozenset[TopicPartition]:
        """Return the paused partitions.

        Returns:
            The partitions, as pairs of topic and partition.
        """
        return frozenset(self._positions.paused)

    # -- positions

    @checked(topic=NAME, partition=NUMBER)
    def position(self, topic: str, partition: int) -> int:
        """Return the position in a partition.

        Args:
            topic: The name of the topic.
            partition: The number of the partition.

        Returns:
            The offset of the next record to return.

        Raises:
            NotFound: If this consumer does not read the partition.
        """
        self._check_open()
        self._positions.check([(topic, partition)], self)
        return self._positions.next[topic, partition]

    def positions(self) -> dict[str, dict[int, int]]:
        """Return the positions in all partitions. By default, `commit` commits these positions.

        Returns:
            The next offset to read, by topic and partition.
        """
        return self._positions.by_topic()

    @checked(topic=NAME, partition=NUMBER, offset=NUMBER)
    def seek(self, topic: str, partition: int, offset: int) -> None:
        """Set the position in a partition.

        If the offset is out of range, the next `poll` applies `auto_offset_reset`.

        Args:
            topic: The name of the topic.
            partition: The number of the partition.
            offset: The next offset to read.

        Raises:
            NotFound: If this consumer does not read the partition.
        """
        self._check_open()
        self._positions.check([(topic, partition)], self)
        self._seek({(topic, partition): offset})

    @checked(partitions=PAIRS)
    def seek_to_beginning(self, *partitions: TopicPartition) -> None:
        """Seek to the log start of partitions.

        Args:
            partitions: The partitions, as pairs of topic and partition. By default, all partitions that are read.

        Raises:
            NotFound: If this consumer does not read a partition.
        """
        self._check_open()
        self._seek(self.beginning_offsets(self._positions.check(partitions, self)))

    @checked(partitions=PAIRS)
    def seek_to_end(self, *partitions: TopicPartition) -> None:
        """Seek to the log end of partitions. If the isolation level is `read_committed`, seek to the last stable
        offset.

        Args:
            partitions: The partitions, as pairs of topic and partition. By default, all partitions that are read.

        Raises:
            NotFound: If this consumer does not read a partition.
        """
        self._check_open()
        self._seek(self.end_offsets(self._positions.check(partitions, self)))

    @checked(timestamp_ms=TIME, partitions=PAIRS)
    def seek_to_timestamp(self, timestamp_ms: int, *partitions: TopicPartition) -> None:
        """Seek to the first record with this timestamp or a later timestamp. If no record is found, seek to the log
        end.

        Args:
            timestamp_ms: The timestamp, in milliseconds since 1970.
            partitions: The partitions, as pairs of topic and partition. By default, all partitions that are read.

        Raises:
            NotFound: If this consumer does not read a partition.
        """
        self._check_open()
        checked_partitions = self._positions.check(partitions, self)
        offsets = self.end_offsets(checked_partitions)
        for partition, found in self.offsets_for_times(dict.fromkeys(checked_partitions, timestamp_ms)).items():
            if found is not None:
                offsets[partition] = found.offset
        self._seek(offsets)

    def _seek(self, positions: Mapping[TopicPartition, int]) -> None:
        self._drop_read()
        self._positions.next.update(positions)

    def _drop_read(self) -> None:
        self._end_iteration()
        self._fetcher.drop()

    # -- offsets of any partitions, including partitions that this consumer does not read

    @checked(partitions=PARTITIONS_OR_PAIRS)
    def beginning_offsets(self, partitions: Partitions) -> dict[TopicPartition, int]:
        """Return the log start offsets of partitions.

        Args:
            partitions: The partitions, as pairs of topic and partition or as a mapping of topics to partitions.

        Returns:
            The log start offset of each pair of topic and partition.

        Raises:
            NotFound: If a partition does not exist.
        """
        return {partition: bounds.log_start for partition, bounds in self._bounds(partitions).items()}

    @checked(partitions=PARTITIONS_OR_PAIRS)
    def end_offsets(self, partitions: Partitions) -> dict[TopicPartition, int]:
        """Return the end offsets of partitions. If the isolation level is `read_committed`, these are the last stable
        offsets.

        Args:
            partitions: The partitions, as pairs of topic and partition or as a mapping of topics to partitions.

        Returns:
            The end offset of each pair of topic and partition.

        Raises:
            NotFound: If a partition does not exist.
        """
        return {partition: bounds.end(self.isolation) for partition, bounds in self._bounds(partitions).items()}

    @checked(times=TIMES)
    def offsets_for_times(self, times: Mapping[TopicPartition, int]) -> dict[TopicPartition, TimestampOffset | None]:
        """Look up the first record whose timestamp is greater than or equal to a given timestamp, for each partition.

        Args:
            times: A timestamp in milliseconds since 1970 for each pair of topic and partition.

        Returns:
            The `offset` and `timestamp` of the record for each pair of topic and partition, or None if no record was
            found.

        Raises:
            NotFound: If a partition does not exist.
        """
        warn_of_seconds(**{f"{topic}-{partition}": time_ms for (topic, partition), time_ms in times.items()})
        by_topic: dict[str, dict[int, int]] = {}
        for topic, partition in self._refreshed(list(times)):
            by_topic.setdefault(topic, {})[partition] = times[topic, partition]
        return {
            (topic, partition): found
            for topic, targets in by_topic.items()
            for partition, found in self._view.offsets_for_timestamps(topic, targets, self.isolation).items()
        }

    def _bounds(self, partitions: Partitions) -> dict[TopicPartition, Bounds]:
        return self._topics.bounds(self._refreshed(partitions))

    def _refreshed(self, partitions: Partitions) -> list[TopicPartition]:
        """Refresh the topics of these partitions. Return the partitions as pairs."""
        self._check_open()
        pairs = partition_pairs(partitions)
        self._view.refresh(sorted({topic for topic, _ in pairs}))
        return pairs
