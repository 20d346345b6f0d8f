"""Planning of read tasks, and reading in a task. Small ranges are packed into one task, and large ranges are split.

A Python task takes 6 to 8 ms of CPU time even if it reads a single record, so a few tasks read a large number of small
partitions. A range is split if it exceeds `SPLIT_BYTES` or `SPLIT_RECORDS`, if `maxRecordsPerPartition` requires it, or
if fewer partitions than `minPartitions` are read. In the last case, the number of tasks is the same as in Kafka's
connector, and each task reads a single range. Sizes are the sizes of stored records, so gaps in the offsets are not
counted. The order of ranges is preserved.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import InputPartition

from sparklog.datasource.options import ReadOptions
from sparklog.datasource.schema import Projection
from sparklog.datasource.spark_workers import user_errors, warn
from sparklog.errors import NotFound
from sparklog.log.read.read_plan import TaskParts
from sparklog.log.read.record_batches import joined
from sparklog.log.state.view import LogView, OffsetRange, ReadPart, Stored
from sparklog.opening import Location, open_view
from sparklog.storage.fork_safety import freeze_gc

PACK_BYTES = 16 << 20
PACK_RECORDS = 100_000
MAX_PACK_RECORDS = 300_000
"""The maximum numbers of stored bytes and of records in a task with several ranges. Both limits are required, because
the time to read records does not depend only on the compressed size. `PACK_RECORDS` corresponds to 40 to 60 ms of CPU
time. If a read has more than `PACKED_TASKS` such tasks, the limit increases up to `MAX_PACK_RECORDS`, which reduces the
overhead of tasks from 15 to 6 %.
"""

PACKED_TASKS = 6
"""The number of tasks up to which the limit of records does not increase, so that the read remains parallel."""

MAX_PACKED_RANGES = 512
"""The maximum number of ranges per task, because each range requires at least one request."""
SPLIT_BYTES = 128 << 20
SPLIT_RECORDS = 1_000_000
"""The number of stored bytes or records above which a range is split. The number of resulting ranges is not larger than
the number of batches in the range.
"""

TRUSTED_SPLITS = 10_000
"""The number of splits that are always allowed. Additional splits are limited by the stored bytes, because the record
count in a batch header may be wrong.
"""


@dataclass(frozen=True)
class TaskRange:
    """A range that one task reads. `records` and `nbytes` are estimates."""

    range: OffsetRange
    records: int
    nbytes: int


def split(
    ranges: Sequence[OffsetRange],
    stored: Sequence[Stored],
    *,
    min_partitions: int | None = None,
    max_records: int | None = None,
) -> list[TaskRange]:
    """Split non-empty ranges evenly by records. If a resulting range is still too large, split it by bytes."""
    parts = [
        (requested, part)
        for requested, stored_range in zip(ranges, stored, strict=True)
        for part in _by_records(stored_range, 1 if max_records is None else -(-stored_range.records // max_records))
    ]
    task_ranges: list[TaskRange] = []
    for (requested, stored_range), tasks in zip(parts, _shares_of_tasks(parts, min_partitions), strict=True):
        records = stored_range.records
        splits = 1 if records <= SPLIT_RECORDS else min(-(-records // SPLIT_RECORDS), stored_range.batches)
        for part in _by_records(stored_range, max(tasks, splits)):
            nbytes = part.nbytes
            count = 1 if nbytes <= SPLIT_BYTES else min(-(-nbytes // SPLIT_BYTES), part.batches)
            for cut in _shares(part, part.at_bytes, nbytes, count):
                is_whole = cut.start == requested.start and cut.end == requested.end
                offsets = requested if is_whole else replace(requested, start=cut.start, end=cut.end)
                task_ranges.append(
                    TaskRange(offsets, *((records, nbytes) if cut is stored_range else (cut.records, cut.nbytes)))
                )
    return task_ranges


def _shares_of_tasks(parts: Sequence[tuple[OffsetRange, Stored]], min_tasks: int | None) -> list[int]:
    """Return the number of tasks for each part, as Kafka's connector does for `minPartitions`.

    The total is about `min_tasks`. If the size of a part is about the share of a single task, the part is read by one
    task, and its partition is not split further. The remaining tasks are distributed over the other parts by size.
    """
    if min_tasks is None:
        return [1] * len(parts)
    sizes = [stored_range.records for _, stored_range in parts]
    if sum(size > 0 for size in sizes) >= min_tasks:
        return [1] * len(parts)
    partitions = [(requested.topic, requested.partition) for requested, _ in parts]
    total = sum(sizes)
    small = {index for index, size in enumerate(sizes) if size > 0 and _share(size, total, min_tasks) == 1}
    unsplit = {partitions[index] for index in small}
    remaining, remaining_tasks = total - sum(sizes[index] for index in small), max(min_tasks - len(small), 1)
    return [
        1 if partition in unsplit or not size else _share(size, remaining, remaining_tasks)
        for partition, size in zip(partitions, sizes, strict=True)
    ]


def _share(size: int, total: int, tasks: int) -> int:
    """Return the number of tasks for a part, at least 1, rounded half up in double precision as on the JVM."""
    share = size / total * tasks
    return max(int(share) + (share % 1 >= 0.5), 1)


def _by_records(stored: Stored, count: int) -> list[Stored]:
    if count <= 1:
        return [stored]
    return _shares(
        stored, stored.at_records, stored.records, min(count, stored.records, max(stored.nbytes, TRUSTED_SPLITS))
    )


def _shares(stored: Stored, offsets_at: Callable[..., list[int]], amount: int, count: int) -> list[Stored]:
    """Split an amount into nearly equal parts, smaller parts first, as Kafka's connector does."""
    if count <= 1:
        return [stored]
    share, small = amount // count, count - amount % count
    cuts = offsets_at(*(share * index + max(0, index - small) for index in range(1, count)))
    return [stored.part(low, high) for low, high in pairwise(sorted({stored.start, *cuts, stored.end}))]


def pack(
    task_ranges: Sequence[TaskRange], *, min_partitions: int | None = None, max_records: int | None = None
) -> list[list[TaskRange]]:
    """Pack adjacent small ranges into tasks.

    If `min_partitions` is given, at least that number of tasks is returned, or one task per range if the number of
    ranges is smaller. In this case, the records are distributed evenly over the tasks if possible. If `max_records` is
    given, it is the maximum number of records per task.
    """
    total = sum(task_range.records for task_range in task_ranges)
    records_each = min(max(PACK_RECORDS, total / PACKED_TASKS), MAX_PACK_RECORDS)
    if max_records is not None:
        records_each = min(records_each, max_records)
    if min_partitions is not None:
        records_each = min(records_each, total / min_partitions)
    tasks: list[list[TaskRange]] = []
    nbytes = records = 0
    for index, task_range in enumerate(task_ranges):
        full = (
            not tasks
            or len(tasks) + len(task_ranges) - index <= (min_partitions or 0)
            or len(tasks[-1]) >= MAX_PACKED_RANGES
            or nbytes + task_range.nbytes > PACK_BYTES
            or records + task_range.records > records_each
        )
        if full:
            tasks.append([])
            nbytes = records = 0
        tasks[-1].append(task_range)
        nbytes += task_range.nbytes
        records += task_range.records
    return tasks


def split_and_pack(
    ranges: Sequence[OffsetRange],
    stored: Sequence[Stored],
    *,
    min_partitions: int | None = None,
    max_records: int | None = None,
) -> list[list[TaskRange]]:
    """Return the ranges of each task.

    If `min_partitions` is larger than the number of non-empty ranges, each task reads a single range, so that the
    number of tasks is the same as in Kafka's connector.
    """
    task_ranges = split(ranges, stored, min_partitions=min_partitions, max_records=max_records)
    if min_partitions is not None and sum(stored_range.records > 0 for stored_range in stored) < min_partitions:
        return [[task_range] for task_range in task_ranges]
    return pack(task_ranges, min_partitions=min_partitions, max_records=max_records)


def plan_tasks(
    view: LogView, ranges: Sequence[OffsetRange], isolation: str, keys: KeySet | None = None, **limits: int | None
) -> list[list[ReadPart]]:
    """Return the parts that each task reads in order to read the given ranges, based on the snapshot of the view.

    If `keys` is given, only parts that may contain these keys are returned. `limits` are the limits of `split`.
    """
    filled = [offsets for offsets in ranges if offsets.end > offsets.start]
    filled = filled if keys is None else keys.ranges(view, filled)
    tasks = split_and_pack(filled, view.stored(filled), **limits)
    listed = view.plan([task_range.range for task in tasks for task_range in task], isolation)
    parts = {part.range: part for part in (listed if keys is None else keys.parts(listed))}
    planned = [[part for task_range in task if (part := parts.get(task_range.range)) is not None] for task in tasks]
    return [task for task in planned if task]


if TYPE_CHECKING:
    import pyarrow as pa

    from sparklog.log.read.key_lookup import KeySet

BATCH_BYTES = 4 << 20
"""The size of a batch that is transferred to the JVM. Batches of 1 to 8 MB are fastest, and batches above 25 MB are
slower.
"""


class LogPartition(InputPartition):  # type: ignore[misc]
    """The parts of a Spark task. `value` is a tuple of `ReadPart`s, which contain offsets but no file positions.

    If `view=table`, the parts are `sparklog.log.read.table_plan.PartitionTable`s.
    """

    def __init__(self, parts: Sequence[Any]) -> None:
        super().__init__(TaskParts(parts))


def log_partitions(view: LogView, ranges: Sequence[OffsetRange], read: ReadOptions) -> list[InputPartition]:
    limits = {"min_partitions": read.min_partitions, "max_records": read.max_records_per_partition}
    tasks = plan_tasks(view, ranges, read.isolation, read.keys, **limits)
    return [LogPartition(parts) for parts in tasks]


class ReadTask:
    """Reads the parts of a task. Spark sends a pickled ReadTask to the tasks instead of the reader."""

    def __init__(self, location: Location, options: ReadOptions, projection: Projection) -> None:
        self.location = location
        self.options = options
        self._projection = projection
        required = projection.required_columns
        self._columns = required if options.keys is None else options.keys.columns(required)

    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a task. If no records have to be read, Spark passes None or a partition without a value."""
        parts = () if partition is None else partition.value or ()
        with user_errors():
            records, keys = self._records(parts), self.options.keys
            for batch in joined(records if keys is None else keys.rows(records), BATCH_BYTES):
                shown = self._projection.to_spark(batch)
                freeze_gc()
                yield shown

    def _records(self, parts: Sequence[Any]) -> Iterator[pa.RecordBatch]:
        if self.options.is_table:
            from sparklog.log.read.latest_by_key import latest_records, read_part

            read = read_part if self.options.fail_on_data_loss else self._read_remaining
            yield from latest_records(parts, self._columns, read=read)
            return
        if self.options.fail_on_data_loss:
            from sparklog.log.read.read_plan import read_parts

            # Read all parts together, so that adjacent slices of a file are fetched in one request for all partitions
            # of the task.
            yield from read_parts(parts, self._columns, batch_bytes=BATCH_BYTES)
            return
        for part in parts:
            yield from self._read_remaining(part, self._columns)

    def _read_remaining(self, part: ReadPart, names: tuple[str, ...]) -> Iterator[pa.RecordBatch]:
        """If failOnDataLoss=false, skip records that were deleted after planning, and log a warning."""
        columns = tuple(dict.fromkeys((*names, "offset")))
        following = part.range.start
        try:
            for batch in part.read(columns, batch_bytes=BATCH_BYTES):
                if batch.num_rows:
                    following = batch.column("offset")[batch.num_rows - 1].as_py() + 1
                yield batch.select(names)
        except NotFound as error:
            for remaining in self._plan_remaining(part, following, error):
                yield from remaining.read(names, batch_bytes=BATCH_BYTES)

    def _plan_remaining(self, part: ReadPart, following: int, error: NotFound) -> Sequence[ReadPart]:
        """Plan the rest of a part, starting at `following`. Raise `error` if no records of the part were deleted. If
        the topic was recreated, the rest of the part is empty.
        """
        from sparklog.log.read.read_plan import NativeReadPart

        planned = part.range
        view = open_view(self.location, tailing=False, corrupt_records=self.options.corrupt_records)
        limits = None
        with suppress(NotFound):
            view.refresh([planned.topic])
            if not isinstance(part, NativeReadPart) or view.topic_id(planned.topic) == part.topic_id:
                limits = view.bounds(planned.topic).get(planned.partition)
        if limits is not None and limits.log_start <= following and limits.log_end >= planned.end:
            raise error
        warn(f"{error}; because failOnDataLoss=false, the read continues without these records")
        if limits is None:
            return ()
        start, end = max(following, limits.log_start), min(planned.end, limits.log_end)
        rest = OffsetRange(planned.topic, planned.partition, start, end)
        return view.plan([rest], self.options.isolation) if start < end else ()
