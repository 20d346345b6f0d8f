"""The rate options of a streaming query: `maxOffsetsPerTrigger`, `maxBytesPerTrigger`, `minOffsetsPerTrigger` and
`maxTriggerDelay`.

The options count stored records and bytes, so gaps between offsets are not counted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from sparklog.datasource.offsets import Positions, map_partitions
from sparklog.datasource.options import ReadOptions
from sparklog.datasource.starting_offsets import PartitionBounds
from sparklog.format.checkpoint_files import TopicPartition
from sparklog.log.state.view import LogView, OffsetRange, Stored
from sparklog.storage.retries import Clock


class RateLimits:
    """Applies the rate options to the micro-batches of a query, and records when the last micro-batch was planned."""

    def __init__(self, view: LogView, options: ReadOptions, clock: Clock) -> None:
        self._view = view
        self._options = options
        self._clock = clock
        self._planned_at: float | None = None
        """The time of the last call of `plan` that did not delay the micro-batch, even if no records were available."""

    def plan(self, begin: Positions, available: Positions, bounds: PartitionBounds, *, may_delay: bool) -> Positions:
        """Return the end of the next micro-batch, or `begin` if `minOffsetsPerTrigger` delays the micro-batch.

        Each call that does not delay the micro-batch starts `maxTriggerDelay` again.

        Args:
            begin: The start of the micro-batch.
            available: The end of the micro-batch if no rate options were set.
            bounds: The bounds of the partitions to read.
            may_delay: True if `minOffsetsPerTrigger` applies.
        """
        stored = self._stored(begin, available, bounds) if self._options.has_rate_limits else {}
        if may_delay and self._is_delayed(stored):
            return begin
        self._planned_at = self._clock.now()
        return self._cut(begin, available, bounds, stored)

    def _is_delayed(self, stored: Mapping[TopicPartition, Stored]) -> bool:
        """Return True while `minOffsetsPerTrigger` waits for records, for at most `maxTriggerDelay`."""
        min_offsets = self._options.min_offsets_per_trigger
        if min_offsets is None or self._planned_at is None:
            return False
        if self._clock.now() - self._planned_at >= self._options.max_trigger_delay_ms / 1000:
            return False
        return sum(part.records for part in stored.values()) < min_offsets

    def _cut(
        self, begin: Positions, end: Positions, bounds: PartitionBounds, stored: Mapping[TopicPartition, Stored]
    ) -> Positions:
        """Reduce `end` according to `maxOffsetsPerTrigger` and `maxBytesPerTrigger`."""
        max_offsets = self._options.max_offsets_per_trigger
        total = sum(part.records for part in stored.values())
        if max_offsets is not None and total > max_offsets:
            # As in Kafka's connector, read at least one record from each partition, even if the limit is exceeded.
            # Otherwise, small partitions would not be read while records are appended to large partitions.
            end = _cut_each(end, stored, lambda part: part.at_records(max(1, part.records * max_offsets // total))[0])
            stored = self._stored(begin, end, bounds)
        max_bytes = self._options.max_bytes_per_trigger
        size = sum(part.nbytes for part in stored.values())
        if max_bytes is not None and size > max_bytes:
            # Read at least one record, because the share of a partition in bytes may end inside its first record.
            end = _cut_each(
                end, stored, lambda part: max(*part.at_bytes(part.nbytes * max_bytes // size), *part.at_records(1))
            )
        return end

    def _stored(self, begin: Positions, end: Positions, bounds: PartitionBounds) -> dict[TopicPartition, Stored]:
        """Return the number of stored records and bytes in each offset range. Positions below the log start are not
        counted.
        """
        ranges = [
            OffsetRange(topic, p, max(offset, limits[p].log_start), end[topic][p])
            for topic, limits in bounds.items()
            for p, offset in begin[topic].items()
        ]
        ranges = [offsets for offsets in ranges if offsets.start < offsets.end]
        stored = self._view.stored(ranges)
        return {(offsets.topic, offsets.partition): part for offsets, part in zip(ranges, stored, strict=True)}


def _cut_each(ends: Positions, stored: Mapping[TopicPartition, Stored], cut: Callable[[Stored], int]) -> Positions:
    """Return the end offsets. If records are stored before an end offset, the end offset is replaced with the result of
    `cut`.
    """
    return map_partitions(ends, lambda topic, p, end: cut(stored[topic, p]) if (topic, p) in stored else end)
