"""What runs in a read task: the parts it was given, as Arrow batches of the size and with the schema that Spark
wants."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from pyspark.sql.datasource import InputPartition

from sparklog.datasource.gc_freeze import freeze_gc
from sparklog.datasource.location import Location, open_view
from sparklog.datasource.options import ReadOptions
from sparklog.datasource.schema import Projection
from sparklog.datasource.tasks import plan_tasks
from sparklog.datasource.user_errors import guard_iterator, warn
from sparklog.errors import NotFound
from sparklog.log.state.view import LogView, OffsetRange, ReadPart

if TYPE_CHECKING:
    import pyarrow as pa

BATCH_BYTES = 4 << 20
"""Batches of 1 to 8 MB pass fastest to the JVM; above 25 MB everything degrades."""

MERGE_BELOW_BYTES = 1 << 20
MERGE_BATCHES = 4096


class LogPartition(InputPartition):  # type: ignore[misc]
    """What one Spark task reads. `value` is a list of `ReadPart`s, as plans name them: by offsets, not by positions."""

    def __init__(self, parts: Sequence[ReadPart]) -> None:
        super().__init__(tuple(parts))

    def __repr__(self) -> str:
        ranges = [part.range for part in self.value[:4]]
        shown = ", ".join(f"{found.topic}-{found.partition}[{found.start}, {found.end})" for found in ranges)
        return f"LogPartition({shown}{', ...' if len(self.value) > 4 else ''})"


def log_partitions(view: LogView, ranges: Sequence[OffsetRange], read: ReadOptions) -> list[InputPartition]:
    """One for each task that reads these ranges, from the view's snapshot."""
    tasks = plan_tasks(
        view,
        ranges,
        read.isolation,
        min_partitions=read.min_partitions,
        max_records=read.max_records_per_partition,
    )
    return [LogPartition(parts) for parts in tasks]


class ReadTask:
    """Picklable; made by the planner, used in tasks."""

    def __init__(self, location: Location, options: ReadOptions, projection: Projection) -> None:
        self._location = location
        self._isolation = options.isolation
        self._fail_on_data_loss = options.fail_on_data_loss
        self._corrupt_records = options.corrupt_records
        self._projection = projection

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The records of a task's parts, in offset order within each."""
        parts: Sequence[ReadPart] = partition.value or ()
        return guard_iterator(self._batches(parts))

    def _batches(self, parts: Sequence[ReadPart]) -> Iterator[pa.RecordBatch]:
        for batch in merge_small(self._records(parts)):
            shown = self._projection.to_spark(batch)
            freeze_gc("read")
            yield shown

    def _records(self, parts: Sequence[ReadPart]) -> Iterator[pa.RecordBatch]:
        if self._fail_on_data_loss:
            from sparklog.log.read.scan import read_parts

            # Together: what lies side by side in a file is fetched once for all partitions of the task.
            yield from read_parts(parts, self._projection.columns, batch_bytes=BATCH_BYTES)
            return
        for part in parts:
            yield from self._what_is_left(part)

    def _what_is_left(self, part: ReadPart) -> Iterator[pa.RecordBatch]:
        """With failOnDataLoss=false: records deleted since the plan was made are left out, and said."""
        columns = tuple(dict.fromkeys((*self._projection.columns, "offset")))
        following = part.range.start
        try:
            for batch in part.read(columns, batch_bytes=BATCH_BYTES):
                if batch.num_rows:
                    following = batch.column("offset")[batch.num_rows - 1].as_py() + 1
                yield batch.select(self._projection.columns)
        except NotFound as error:
            for again in self._again(part, following, error):
                yield from again.read(self._projection.columns, batch_bytes=BATCH_BYTES)

    def _again(self, part: ReadPart, following: int, error: NotFound) -> Sequence[ReadPart]:
        """What can still be read of a part whose records up to `following` were read; raises `error` if none are gone.

        Of a topic that was created again under the same name that is nothing: its records are planned by themselves.
        """
        from sparklog.log.read.scan import NativeReadPart

        planned = part.range
        view = open_view(self._location, tailing=False, corrupt_records=self._corrupt_records)
        try:
            view.refresh([planned.topic])
            limits = view.bounds(planned.topic).get(planned.partition)
            if isinstance(part, NativeReadPart) and view.topic_id(planned.topic) != part.topic_id:
                limits = None
        except NotFound:
            limits = None
        if limits is not None and limits.log_start <= following and limits.log_end >= planned.end:
            raise error
        warn(f"{error}; failOnDataLoss=false: reading goes on with what is left")
        if limits is None:
            return ()
        start, end = max(following, limits.log_start), min(planned.end, limits.log_end)
        if start >= end:
            return ()
        return view.plan([OffsetRange(planned.topic, planned.partition, start, end)], self._isolation)


def merge_small(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same rows with neighbouring small batches put together: each batch costs the JVM much the same."""
    waiting: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        if not batch.num_rows:
            continue
        nbytes = batch.nbytes
        if waiting and (size + nbytes > BATCH_BYTES or len(waiting) >= MERGE_BATCHES):
            yield _together(waiting)
            waiting, size = [], 0
        if nbytes >= MERGE_BELOW_BYTES and not waiting:
            yield batch
        else:
            waiting.append(batch)
            size += nbytes
    if waiting:
        yield _together(waiting)


def _together(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    import pyarrow as pa

    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)
