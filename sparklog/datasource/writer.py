"""Commit a Spark write, at most once per batch: over all its topics, or none.

Tasks upload append files, the driver's commit publishes them. Rows for the topic that an option or the path names are
one commit. Where a column names the topics, the write is a transaction over them: its id is the query's (or
`txnAppId`), or one of its own for a batch write without a name. A replay is then looked up in the decisions of that id,
which know all topics of a batch.

A streaming write is exactly once because its commit carries a key: the query's id, which Spark keeps in the checkpoint
(or the user's `txnAppId`), and the batch id. `commit` is given only the batch id and runs on a writer that was built
anew, so the tasks read query and run id from their TaskContext and send them up. A batch write takes no key from it:
inside `foreachBatch` all writes of one batch see the same ids, and the second would vanish. Only `txnAppId` and
`txnVersion` make it repeatable.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from sparklog.datasource.options import Options
from sparklog.datasource.process import freeze_gc, root_at, topic_at
from sparklog.datasource.schema import WriteColumns, write_columns
from sparklog.datasource.user_errors import user_errors
from sparklog.datasource.write_task import SinkPlan, SparklogCommitMessage, write_task
from sparklog.errors import BadRequest, Conflict
from sparklog.kafka.in_place.location import NOTHING, ROOT, Location
from sparklog.log.journal.env import SYSTEM
from sparklog.log.state.registry import WriterKey
from sparklog.log.write.append_writer import TopicFiles

if TYPE_CHECKING:
    from sparklog.log.topic.root import Root

_LOG = logging.getLogger("sparklog.datasource")


def publish(plan: SinkPlan, messages: Sequence[SparklogCommitMessage], key: WriterKey | None) -> None:
    """Commit what the tasks wrote: to one topic at once, to several as a transaction.

    `key` skips what was published before; its epoch is by this machine's clock. In mode `txn` (`txnAppId`) a version at
    or below the newest is skipped, as in Delta. In mode `stream` a run that a later one superseded is stopped.
    """
    root = root_at(plan.location)
    _check_root(root, plan, messages)
    topics = collect(messages)
    if key is not None and key.mode == "stream":
        # Machines' clocks differ, and the next run may be on another one.
        epoch = None if key.epoch is None else max(0, root.by_store_clock(key.epoch))
        key = replace(key, epoch=epoch, replay_mismatch=plan.options.replay_mismatch)
        if _published_otherwise(root, plan, topics, key):
            return
    if plan.topic is None:
        _transaction(root, topics, key, plan.options.transaction_timeout_ms)
        return
    for name, written in topics.items():
        if written.files or key is not None:
            root.topic_handle(name).log.commit_append(written.files, written.target, writer=key)


def _check_root(root: Root, plan: SinkPlan, messages: Iterable[SparklogCommitMessage]) -> None:
    """Raises Conflict unless the root is the one that this write was planned for, and its tasks wrote to."""
    expected = {part.target.root_id for message in messages for part in message.topics}
    if plan.root_id is not None:
        expected.add(plan.root_id)
    for root_id in sorted(expected - {root.id}):
        raise Conflict(
            f"The root at {root.location} changed its id from {root_id} to {root.id} while this write ran: write again"
        )


def collect(messages: Iterable[SparklogCommitMessage]) -> dict[str, TopicFiles]:
    """Join the files of all tasks by topic, topics sorted. Raises Conflict if a topic was created again meanwhile."""
    by_topic: dict[str, list[TopicFiles]] = {}
    for message in messages:
        for part in message.topics:
            by_topic.setdefault(part.target.topic, []).append(part)
    return {name: _together(name, by_topic[name]) for name in sorted(by_topic)}


def _together(name: str, parts: Sequence[TopicFiles]) -> TopicFiles:
    ids = {part.target.topic_id for part in parts}
    if len(ids) > 1:
        raise Conflict(f"The topic {name!r} was deleted and created again while this write ran: write again")
    target = min((part.target for part in parts), key=lambda target: target.read_version)
    return TopicFiles(target, tuple(file for part in parts for file in part.files))


def _published_otherwise(root: Root, plan: SinkPlan, topics: dict[str, TopicFiles], writer: WriterKey) -> bool:
    """True if an earlier run of the query has published this batch, and named topics in the other way."""
    from sparklog.log.state.slices import content_of
    from sparklog.transactions.publishing import in_decisions, in_topics

    counts = {name: [file.counts for file in written.files] for name, written in topics.items()}
    writer = replace(writer, content=content_of(counts))
    count = sum(written.records for written in topics.values())
    if plan.topic is None:
        return in_topics(root, writer, count, None if plan.options.txn_app_id is None else topics)
    return in_decisions(root, plan.topic, writer, count)


def _transaction(root: Root, topics: dict[str, TopicFiles], writer: WriterKey | None, timeout_ms: int) -> None:
    """All topics or none, in the order of their names."""
    from sparklog.transactions.publishing import publish as commit_together

    name, written = None if writer is None else writer.id, list(topics.values())
    done = commit_together(root, name, written, key=writer, timeout_ms=timeout_ms)
    if done.skipped and writer is not None and writer.mode == "txn":
        _LOG.warning("%s", done.note)


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
    target = None if topic is None else topic_at(root, topic, sink).log.append_target(refresh=False)
    freeze_gc("plan")
    return SinkPlan(location, root.id, sink, columns, topic, target)


def plan_commit(location: Location, options: Options) -> SinkPlan:
    """Plan the commit of a micro-batch, without a request; the tasks' messages have the rest."""
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
            self._key = WriterKey(sink.txn_app_id, sink.txn_version, mode="txn")

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

    `epoch`: of the run that commits, higher in each later run: when it first committed, ms. None where it is not known.
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
        publish(self._plan, ours, WriterKey(writer, batchId, run, epoch=self._epoch))
        freeze_gc("commit")

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Deletes nothing: Spark also calls this after a commit that may have succeeded. The vacuum removes what is
        unnamed."""


def _ours(messages: Sequence[WriterCommitMessage | None]) -> list[SparklogCommitMessage]:
    return [message for message in messages if isinstance(message, SparklogCommitMessage)]
