"""Batch reads: the range between two bounds of every partition, planned once and read by tasks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition

from sparklog.datasource.options import Bound, Options, ReadOptions
from sparklog.datasource.read_task import ReadTask, log_partitions
from sparklog.datasource.schema import Projection
from sparklog.datasource.starting_offsets import (
    Clock,
    DataLoss,
    check_end,
    check_start,
    group_offsets,
    offsets_now,
    resolve_bound,
    start_positions,
    wait_until_reached,
)
from sparklog.datasource.subscription import Subscriber
from sparklog.datasource.user_errors import user_errors
from sparklog.errors import BadRequest
from sparklog.kafka.in_place.location import Location, open_view
from sparklog.log.state.view import LogView, OffsetRange

if TYPE_CHECKING:
    import pyarrow as pa


class SparklogBatchReader(DataSourceReader):  # type: ignore[misc]
    """Planned once per `load()`: every action on that DataFrame reads the same offsets."""

    def __init__(self, location: Location, options: Options, projection: Projection) -> None:
        self._location = location
        self._options = options
        self._task = ReadTask(location, options.read, projection)

    @user_errors
    def partitions(self) -> list[InputPartition]:
        """One InputPartition per task. Spark turns an empty list into one partition without a value."""
        read = self._options.read
        view = open_view(self._location, tailing=False, corrupt_records=read.corrupt_records)
        ranges = batch_ranges(view, Subscriber(view, self._location, read.subscription), read)
        return log_partitions(view, ranges, read)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return self._task.read(partition)


def batch_ranges(
    view: LogView, subscriber: Subscriber, read: ReadOptions, clock: Clock | None = None
) -> list[OffsetRange]:
    """Return the ranges of a batch read, from one snapshot. Raises BadRequest and NotFound for wrong bounds."""
    topics = subscriber.topics()
    known = group_offsets(view, read)
    subscriber.require(topics)
    wait_until_reached(view, offsets_now(view, topics, known), lambda: subscriber.refresh(topics), clock or Clock())
    partitions = {topic: subscriber.partitions(topic) for topic in topics}
    loss = DataLoss(read.fail_on_data_loss)
    end_bound = read.end or Bound("latest", "endingOffsets")
    starts = start_positions(view, partitions, read, "earliest", loss, known)
    ends = resolve_bound(view, partitions, end_bound, read.isolation, no_match_is_latest=True)
    ranges: list[OffsetRange] = []
    for topic in topics:
        for partition, limits in sorted(partitions[topic].items()):
            start, end = starts[topic][partition], ends[topic][partition]
            _check_order(topic, partition, start, end, read.start, end_bound)
            end = check_end(topic, partition, end, limits, loss)
            end = min(end, max(start, limits.end(read.isolation)))
            start = check_end(topic, partition, start, limits, loss)
            start = check_start(topic, partition, start, end, limits, loss) if start < end else end
            ranges.append(OffsetRange(topic, partition, start, end))
    return ranges


def _check_order(topic: str, partition: int, start: int, end: int, first: Bound | None, last: Bound) -> None:
    """Both given as offsets and the wrong way round is a mistake; a time range without records is not."""
    if first is not None and start > end and first.kind == last.kind == "offsets":
        raise BadRequest(
            f"{topic}-{partition}: {first.option} {start} lies after {last.option} {end}: swap or correct them"
        )
