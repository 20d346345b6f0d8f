"""The sink: tasks upload append files, the driver's commit publishes them at once, over all topics or none.

A streaming write is exactly once because its commit carries a key: the query's id, which Spark keeps in the checkpoint
(or the user's `txnAppId`), and the batch id. `commit` is given only the batch id and runs on a writer that was built
anew, so the tasks read query and run id from their TaskContext and send them up. A batch write takes no key from
there: inside `foreachBatch` all writes of one batch see the same ids, and the second would vanish. Only `txnAppId` and
`txnVersion` make it repeatable.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from sparklog.datasource.gc_freeze import freeze_gc
from sparklog.datasource.handles import root_at, topic_at
from sparklog.datasource.location import NOTHING, ROOT, Location
from sparklog.datasource.options import Options
from sparklog.datasource.publish import BatchKey, StreamKey, publish
from sparklog.datasource.schema import WriteColumns, write_columns
from sparklog.datasource.user_errors import user_errors
from sparklog.datasource.write_task import SinkPlan, SparklogCommitMessage, write_task
from sparklog.errors import BadRequest
from sparklog.log.journal.env import SYSTEM

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType


def plan_write(location: Location, options: Options, schema: StructType) -> SinkPlan:
    """Check the DataFrame's schema, open or create root and topic. Raises BadRequest and NotFound."""
    sink = options.write
    topic = _topic(location, sink.topic)
    columns = write_columns(schema, topic)
    root = root_at(location, create=sink.auto_create)
    if location.kind == NOTHING:
        location = Location(ROOT, location.path, location.root)
    target = None if topic is None else topic_at(root, topic, sink).append_target(refresh=False)
    freeze_gc("plan")
    return SinkPlan(location, root.id, sink, columns, topic, target)


def plan_commit(location: Location, options: Options) -> SinkPlan:
    """What the commit of a micro-batch needs: the tasks' messages say the rest. No request: the commit itself asks."""
    return SinkPlan(location, None, options.write, WriteColumns(()), _topic(location, options.write.topic), None)


def _topic(location: Location, option: str | None) -> str | None:
    if location.topic is not None and option is not None and option != location.topic:
        raise BadRequest(
            f"The path {location.path} is the folder of topic {location.topic!r}, the option 'topic' says {option!r}: "
            "give the root as the path, or leave the option out"
        )
    return location.topic or option


class SparklogBatchWriter(DataSourceArrowWriter):  # type: ignore[misc]
    """One `save`: an unpickled copy writes in each task and another commits."""

    def __init__(self, plan: SinkPlan) -> None:
        self._plan = plan
        self._job = SYSTEM.new_id()
        sink = plan.options
        self._key = None
        if sink.txn_app_id is not None and sink.txn_version is not None:
            self._key = BatchKey(sink.txn_app_id, sink.txn_version)

    @user_errors
    def write(self, iterator: Iterator[pa.RecordBatch]) -> SparklogCommitMessage:
        return write_task(self._plan, iterator, self._job)

    @user_errors
    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        publish(self._plan, _ours(messages), self._key)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Deletes nothing: Spark also calls this after a commit that may have succeeded. The vacuum removes what is
        unnamed."""


class SparklogStreamWriter(DataSourceStreamArrowWriter):  # type: ignore[misc]
    """One micro-batch: Spark builds a writer for the tasks and another one for the commit.

    `epoch`: of the run that commits, see `StreamKey`.
    """

    def __init__(self, plan: SinkPlan, epoch: int | None = None) -> None:
        self._plan = plan
        self._epoch = epoch

    @user_errors
    def write(self, iterator: Iterator[pa.RecordBatch]) -> SparklogCommitMessage:
        return write_task(self._plan, iterator, "stream")

    @user_errors
    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        ours = _ours(messages)
        query = next((message.query_id for message in ours if message.query_id), None)
        run = next((message.run_id for message in ours if message.run_id), None)
        writer = self._plan.options.txn_app_id or query
        if writer is None:
            raise BadRequest("The tasks of this micro-batch know no streaming query id: give the option 'txnAppId'")
        publish(self._plan, ours, StreamKey(writer, batchId, run, self._epoch))
        freeze_gc("commit")

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Deletes nothing: Spark also calls this after a commit that may have succeeded. The vacuum removes what is
        unnamed."""


def _ours(messages: Sequence[WriterCommitMessage | None]) -> list[SparklogCommitMessage]:
    return [message for message in messages if isinstance(message, SparklogCommitMessage)]
