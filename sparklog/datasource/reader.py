"""The readers that Spark calls: a batch reader, and a stream reader that wraps `stream_plan.StreamPlanner`.

Spark creates the stream reader twice per query. The first reader is created in a long-lived process that plans offsets,
in which the planner remains open. The second reader is only created to be pickled for the tasks. A task receives a
`ReadTask` instead of the reader, because `__reduce__` pickles a call of `copy` with the `ReadTask`. The modules for
planning are imported inside functions, because they are not required in the second process.
"""

from __future__ import annotations

from collections.abc import Iterator
from copy import copy
from typing import TYPE_CHECKING, Any, NamedTuple

from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition

from sparklog.datasource.offsets import OffsetJson
from sparklog.datasource.options import Options
from sparklog.datasource.read_task import ReadTask, log_partitions
from sparklog.datasource.schema import Projection
from sparklog.datasource.spark_versions import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from sparklog.datasource.spark_workers import deferred_sigterm, exit_on_sigterm, gc_paused, user_errors
from sparklog.errors import SparklogError
from sparklog.opening import Location, open_view
from sparklog.storage.fork_safety import freeze_gc

if TYPE_CHECKING:
    import pyarrow as pa

    from sparklog.datasource.group_progress import GroupProgress
    from sparklog.datasource.stream_plan import StreamPlanner
    from sparklog.log.state.view import LogView

APPLY_OPTIONS = (1 << 63) - 1
"""A `ReadMaxRows` with this number means "apply the rate options". Spark passes the default limit back unchanged,
except for Trigger.Once, for which Spark passes `ReadAllAvailable`.
"""


class SparklogBatchReader(DataSourceReader):  # type: ignore[misc]
    """The reader of one `load()`. All actions on the DataFrame of the `load()` read the same offsets."""

    def __init__(self, location: Location, options: Options, projection: Projection) -> None:
        self._location = location
        self._options = options
        self._task = ReadTask(location, options.read, projection)

    def __reduce__(self) -> Any:
        return copy, (self._task,)

    @user_errors()
    @gc_paused()
    def partitions(self) -> list[InputPartition]:
        from sparklog.datasource.starting_offsets import batch_ranges
        from sparklog.datasource.subscription import Subscriber
        from sparklog.datasource.table_view import table_partitions

        freeze_gc("plan")
        read = self._options.read
        view = open_view(self._location, tailing=False, corrupt_records=read.corrupt_records)
        subscriber = Subscriber(view, self._location, read.subscription)
        if read.is_table:
            return table_partitions(view, subscriber, read)
        return log_partitions(view, batch_ranges(view, subscriber, read), read)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return self._task.read(partition)


class _OpenReader(NamedTuple):
    """The objects that a stream reader opens when it is first called. `progress` is None if the query does not have a
    consumer group.
    """

    view: LogView
    planner: StreamPlanner
    progress: GroupProgress | None


class SparklogStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):  # type: ignore[misc]
    """The reader of a streaming query. If the query has a consumer group, the reader also commits the progress of the
    query to the group.
    """

    def __init__(self, location: Location, options: Options, projection: Projection) -> None:
        self._location = location
        self._options = options
        self._task = ReadTask(location, options.read, projection)
        self._open: _OpenReader | None = None

    def __reduce__(self) -> Any:
        return copy, (self._task,)

    def _opened(self) -> _OpenReader:
        """Open the reader if it is not open. If opening fails, the next call retries."""
        if self._open is None:
            from sparklog.datasource.stream_plan import StreamPlanner
            from sparklog.datasource.subscription import Subscriber
            from sparklog.log.topic.root import RootView

            read = self._options.read
            view = open_view(self._location, tailing=True, corrupt_records=read.corrupt_records)
            planner = StreamPlanner(view, Subscriber(view, self._location, read.subscription), read)
            progress = None
            if read.group_id is not None and isinstance(view, RootView):
                from sparklog.datasource.group_progress import GroupProgress

                progress = GroupProgress(view.root, read)
                exit_on_sigterm()
            freeze_gc("plan")
            self._open = _OpenReader(view, planner, progress)
        return self._open

    @user_errors()
    def initialOffset(self) -> OffsetJson:  # noqa: N802
        return self._opened().planner.initial()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        return ReadMaxRows(APPLY_OPTIONS)

    @user_errors()
    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._opened().planner.prepare_available_now()

    @user_errors()
    def latestOffset(self, start: OffsetJson, limit: ReadLimit) -> OffsetJson:  # noqa: N802
        _, planner, progress = self._opened()
        if progress is not None:
            progress.processed(start)
        end = planner.latest(start, limited=not isinstance(limit, ReadAllAvailable))
        if planner.is_finished and progress is not None:
            progress.finish(start)
        return end

    @user_errors()
    def reportLatestOffset(self) -> OffsetJson | None:  # noqa: N802
        return self._opened().planner.report()

    @user_errors()
    def partitions(self, start: OffsetJson, end: OffsetJson) -> list[InputPartition]:
        view, planner, progress = self._opened()
        # If Spark repeats the last micro-batch after a restart, the run starts with this call, because Spark does not
        # call `latestOffset` for the repeated micro-batch. Before this call, Spark plans an empty range at the latest
        # offset, which may not have been processed yet.
        if progress is not None and start != end:
            progress.processed(start)
        return log_partitions(view, planner.ranges(start, end), self._options.read)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return self._task.read(partition)

    def stop(self) -> None:
        """Leave the group. Correctness does not depend on this call, because Spark does not always call this method."""
        with deferred_sigterm():
            if self._open is not None and self._open.progress is not None:
                self._open.progress.finish()


class FailingStreamReader(SparklogStreamReader):
    """A reader that raises an error in every call, because the actual reader could not be created.

    If `streamReader` raised the error, Spark would fail during cleanup and report the cleanup failure instead. Every
    method of a stream reader except `read` first opens the reader, so these methods raise the error.
    """

    def __init__(self, error: SparklogError) -> None:
        self._error = error
        self._open = None

    def __reduce__(self) -> Any:
        return FailingStreamReader, (self._error,)

    def _opened(self) -> _OpenReader:
        raise self._error

    @user_errors()
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        raise self._error
