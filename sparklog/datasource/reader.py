"""The readers that Spark calls: a batch reader, and a stream reader that wraps `stream_plan.StreamPlanner`.

Spark creates the stream reader twice per query. The first reader is created in a long-lived process that plans offsets,
in which the planner remains open. The second reader is only created to be pickled for the tasks. A task receives a
`ReadTask` instead of the reader, because `__reduce__` pickles a call of `copy` with the `ReadTask`. The modules for
planning are imported inside functions, because the second process and the tasks do not use them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from copy import copy
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, Protocol

from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition

from sparklog.datasource.offsets import OffsetJson
from sparklog.datasource.read_task import ReadTask, log_partitions
from sparklog.datasource.spark_versions import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from sparklog.datasource.spark_workers import deferred_sigterm, exit_on_sigterm, gc_paused, user_errors
from sparklog.errors import SparklogError
from sparklog.opening import open_view
from sparklog.storage.fork_safety import freeze_gc

if TYPE_CHECKING:
    import pyarrow as pa

    from sparklog.datasource.group_progress import GroupProgress
    from sparklog.datasource.options import ReadOptions
    from sparklog.datasource.stream_plan import StreamPlanner
    from sparklog.log.state.view import LogView

APPLY_OPTIONS = (1 << 63) - 1
"""A `ReadMaxRows` with this number means "apply the rate options". Spark passes the default limit back unchanged,
except for Trigger.Once, for which Spark passes `ReadAllAvailable`.
"""


class Task(Protocol):
    """Reads the partitions of a reader. Spark sends the pickled task to the processes that read."""

    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]: ...


class _TaskReader:
    """The part of a reader that tasks use."""

    def __init__(self, task: Task) -> None:
        self._task = task

    def __reduce__(self) -> Any:
        return copy, (self._task,)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return self._task.read(partition)


class SparklogBatchReader(_TaskReader, DataSourceReader):  # type: ignore[misc]
    """The reader of one `load()`. All actions on the DataFrame of the `load()` read the same offsets."""

    def __init__(self, task: ReadTask) -> None:
        super().__init__(task)
        self._location = task.location
        self._options = task.options

    @user_errors()
    @gc_paused()
    def partitions(self) -> list[InputPartition]:
        from sparklog.datasource.starting_offsets import batch_ranges
        from sparklog.datasource.subscription import Subscriber
        from sparklog.datasource.table_view import table_partitions

        freeze_gc()
        view = open_view(self._location, tailing=False, corrupt_records=self._options.corrupt_records)
        subscriber = Subscriber(view, self._location, self._options.subscription)
        if self._options.is_table:
            return table_partitions(view, subscriber, self._options)
        return log_partitions(view, batch_ranges(view, subscriber, self._options), self._options)


class StreamSource(NamedTuple):
    """The open log of a query, and the objects that plan its micro-batches."""

    view: LogView
    options: ReadOptions
    planner: StreamPlanner
    progress: GroupProgress | None
    """The query's progress in its consumer group, or None if the query does not have a consumer group."""


def open_source(task: ReadTask) -> StreamSource:
    """Open the log of a query, and prepare this process for planning its micro-batches."""
    from sparklog.datasource.stream_plan import StreamPlanner
    from sparklog.datasource.subscription import Subscriber
    from sparklog.log.topic.root import RootView

    options = task.options
    view = open_view(task.location, tailing=True, corrupt_records=options.corrupt_records)
    planner = StreamPlanner(view, Subscriber(view, task.location, options.subscription), options)
    progress = None
    if options.group_id is not None and isinstance(view, RootView):
        from sparklog.datasource.group_progress import GroupProgress

        progress = GroupProgress(view.root, options)
        exit_on_sigterm()
    freeze_gc()
    return StreamSource(view, options, planner, progress)


class SparklogStreamReader(_TaskReader, DataSourceStreamReader, SupportsTriggerAvailableNow):  # type: ignore[misc]
    """The reader of a streaming query. If the query has a consumer group, the reader also commits the progress of the
    query to the group.

    `open_source` is called by the first method that requires the source. If it fails, the next method retries.
    """

    def __init__(self, task: Task, open_source: Callable[[], StreamSource]) -> None:
        super().__init__(task)
        self._open_source = open_source
        self._source: StreamSource | None = None

    def _ensure_open(self) -> StreamSource:
        if self._source is None:
            self._source = self._open_source()
        return self._source

    @user_errors()
    def initialOffset(self) -> OffsetJson:  # noqa: N802
        return self._ensure_open().planner.initial()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        return ReadMaxRows(APPLY_OPTIONS)

    @user_errors()
    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._ensure_open().planner.prepare_available_now()

    @user_errors()
    def latestOffset(self, start: OffsetJson, limit: ReadLimit) -> OffsetJson:  # noqa: N802
        source = self._ensure_open()
        if source.progress is not None:
            source.progress.processed(start)
        end = source.planner.latest(start, limited=not isinstance(limit, ReadAllAvailable))
        is_finished = source.planner.is_available_now and end == start
        if source.progress is not None and is_finished:
            source.progress.finish(start)
        return end

    @user_errors()
    def reportLatestOffset(self) -> OffsetJson | None:  # noqa: N802
        return self._ensure_open().planner.report()

    @user_errors()
    def partitions(self, start: OffsetJson, end: OffsetJson) -> list[InputPartition]:
        source = self._ensure_open()
        # If Spark repeats the last micro-batch after a restart, it calls this method without calling `latestOffset`
        # first, so commit the start here. Before that, Spark plans the empty range at the end of the micro-batch, which
        # has not been processed yet.
        if source.progress is not None and start != end:
            source.progress.processed(start)
        return log_partitions(source.view, source.planner.ranges(start, end), source.options)

    def stop(self) -> None:
        """Leave the group. Correctness does not depend on this call, because Spark does not always call this method."""
        with deferred_sigterm():
            if self._source is not None and self._source.progress is not None:
                self._source.progress.finish()


class FailingTask:
    """The task of a reader that could not be created."""

    def __init__(self, error: SparklogError) -> None:
        self._error = error

    def fail(self) -> NoReturn:
        raise self._error

    @user_errors()
    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        self.fail()


def failing_stream_reader(error: SparklogError) -> SparklogStreamReader:
    """Return a reader that raises an error when Spark plans or reads, because the actual reader could not be created.

    If `streamReader` of the data source raised the error, Spark would fail during cleanup and report the cleanup
    failure instead.
    """
    task = FailingTask(error)
    return SparklogStreamReader(task, task.fail)
