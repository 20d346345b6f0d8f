"""Spark's sink. Tasks upload append files, and the driver commits the files at most once per micro-batch.

A failed or repeated attempt of a task leaves files that no commit references. The vacuum removes these files. `abort`
is not implemented, because Spark also calls `abort` after a commit that may have succeeded. If an option or the path
sets the topic, all rows are written in one commit. If a column sets the topics, the write is a transaction over these
topics. The transactional id is the id of the query, the `txnAppId`, or, if a batch write does not have a `txnAppId`, a
new id. A replayed micro-batch is found in the decisions of the transactional id, which list all topics of the
micro-batch.

A streaming write is exactly once because its commit has a key. The key consists of the query id, which Spark stores in
the checkpoint (or the user's `txnAppId`), and the batch id. Spark passes only the batch id to `commit`, and calls
`commit` on a new instance of the writer. Therefore, the tasks read the query id and the run id from their TaskContext
and return them. A batch write does not use these ids as a key, because all writes in a `foreachBatch` see the same ids,
and the second write would be skipped. A batch write can be repeated safely only if `txnAppId` and `txnVersion` are set.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

from sparklog.datasource.options import Options, SinkOptions
from sparklog.datasource.schema import pick, write_columns
from sparklog.datasource.spark_versions import DataSourceStreamArrowWriter
from sparklog.datasource.spark_workers import root_at, topic_at, user_errors
from sparklog.errors import BadRequest, Conflict
from sparklog.log.journal.clocks import SYSTEM
from sparklog.log.state.writer_runs import WriterKey
from sparklog.log.write.append_target import TopicFiles
from sparklog.opening import NOTHING, ROOT, Location
from sparklog.storage.fork_safety import freeze_gc

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from sparklog.log.topic.root import Root
    from sparklog.log.write.append_target import AppendTarget
    from sparklog.log.write.append_writer import AppendWriter

QUERY_ID = "sql.streaming.queryId"
BATCH_ID = "streaming.sql.batchId"
RUN_ID = "spark.jobGroup.id"


@dataclass(frozen=True)
class SinkPlan:
    """The picklable plan of a write for its tasks. `topic` and `target` are None if a column sets the topics.

    `root_id` is None for the commit of a micro-batch, because the targets of the tasks contain it.
    """

    location: Location
    root_id: str | None
    options: SinkOptions
    columns: tuple[str, ...]
    topic: str | None
    target: AppendTarget | None


@dataclass(frozen=True)
class SparklogCommitMessage(WriterCommitMessage):  # type: ignore[misc]
    """The files of a task by topic, and the ids of the query and the run, which are passed to the commit only by the
    tasks.
    """

    topics: tuple[TopicFiles, ...]
    query_id: str | None
    run_id: str | None


def write_task(plan: SinkPlan, batches: Iterable[pa.RecordBatch], job: str) -> SparklogCommitMessage:
    """Write the rows of a task. `job` identifies the write, and determines the first partition of keyless rows."""
    from pyspark import TaskContext

    from sparklog.log.write.rows import sticky_seed

    context = TaskContext.get()
    query_id, run_id, batch_id, task = None, None, None, 0
    if context is not None:
        query_id = context.getLocalProperty(QUERY_ID)
        batch_id = context.getLocalProperty(BATCH_ID)
        run_id = context.getLocalProperty(RUN_ID)
        task = context.partitionId()
    sink = _TaskSink(plan, sticky_seed(job, batch_id, task))
    try:
        for batch in batches:
            sink.write(batch)
        message = SparklogCommitMessage(sink.finish(), query_id, run_id)
        freeze_gc()
        return message
    except BaseException:
        sink.discard()
        raise


class _TaskSink:
    """The append files of a task. All topics share one buffer. When the buffer is full, the topic with the most bytes
    is flushed.
    """

    def __init__(self, plan: SinkPlan, seed: int) -> None:
        self._plan = plan
        self._seed = seed
        self._root: Root | None = None
        self._targets = {} if plan.target is None else {plan.target.topic: plan.target}
        self._writers: dict[str, AppendWriter] = {}
        self._pending: dict[str, int] = {}

    def write(self, batch: pa.RecordBatch) -> None:
        import pyarrow as pa

        if not batch.num_rows:
            return
        columns = pick(batch, self._plan.columns)
        topics = columns.pop("topic", None)
        rows = pa.RecordBatch.from_pydict(columns)
        if self._plan.target is not None:
            self._write(self._plan.target.topic, rows)
            return
        if topics.null_count:
            row = topics.is_null().to_pylist().index(True)
            raise BadRequest(
                f"The topic column has a null (row {row} of an Arrow batch of {len(topics)}): set a topic in each row, "
                "or set the option 'topic'. This write was not committed"
            )
        for topic, part in _by_topic(topics, rows):
            self._write(topic, part)

    def _write(self, topic: str, rows: pa.RecordBatch) -> None:
        if topic not in self._writers:
            self._writers[topic] = self._writer(topic)
        limit = self._plan.options.buffer_bytes
        self._writers[topic].write(rows)
        size = self._pending.get(topic, 0) + rows.nbytes
        self._pending[topic] = size if size < limit else 0
        while sum(self._pending.values()) >= limit:
            fullest = max(self._pending, key=self._pending.__getitem__)
            self._writers[fullest].flush()
            self._pending[fullest] = 0

    def _writer(self, topic: str) -> AppendWriter:
        from sparklog.log.write.append_output import task_inline_bytes
        from sparklog.log.write.append_target import WriteOptions
        from sparklog.log.write.append_writer import AppendWriter

        if topic not in self._targets:
            self._targets[topic] = self._target(topic)
        target = self._targets[topic]
        sink = self._plan.options
        options = WriteOptions(sink.codec or "zstd", sink.level, buffer_bytes=sink.buffer_bytes)
        target = replace(target, inline_bytes=task_inline_bytes(target.inline_bytes))
        return AppendWriter(target, options, seed=self._seed, is_root_checked=self._root is not None)

    def _target(self, topic: str) -> AppendTarget:
        if self._root is None:
            from sparklog.log.write.append_target import check_root_id

            # Check the root id once per task instead of once per topic and file, because the check requires a request.
            root = root_at(self._plan.location)
            check_root_id(root.location, self._plan.root_id or "", root.id)
            self._root = root
        return topic_at(self._root, topic, self._plan.options).log.append_target(refresh=False)

    def finish(self) -> tuple[TopicFiles, ...]:
        files = {topic: tuple(self._writers[topic].finish()) for topic in sorted(self._writers)}
        return tuple(TopicFiles(self._targets[topic], files.get(topic, ())) for topic in sorted(self._targets))

    def discard(self) -> None:
        for writer in self._writers.values():
            writer.discard()


def _by_topic(topics: pa.Array, rows: pa.RecordBatch) -> Iterator[tuple[str, pa.RecordBatch]]:
    import pyarrow.compute as pc

    encoded = topics.dictionary_encode()
    names = encoded.dictionary.to_pylist()
    if len(names) == 1:
        yield names[0], rows
        return
    for code, name in enumerate(names):
        yield name, rows.filter(pc.equal(encoded.indices, code))


_LOG = logging.getLogger("sparklog.datasource")


def publish(plan: SinkPlan, messages: Sequence[SparklogCommitMessage], key: WriterKey | None) -> None:
    """Commit the files of the tasks. Several topics are committed in a transaction.

    A write that was already committed with the same `key` is skipped. The epoch of the key is a timestamp of this
    host's clock. If a streaming run was superseded by another run, it fails.
    """
    now = SYSTEM.now()
    root = root_at(plan.location)
    root_checked_at = plan.location.last_read_of(root.id) or now
    expected = {part.target.root_id for message in messages for part in message.topics} | {plan.root_id or root.id}
    for root_id in sorted(expected - {root.id}):
        raise Conflict(
            f"The id of the root at {root.location} changed from {root_id} to {root.id} during this write: repeat the "
            "write"
        )
    topics = _files_by_topic(messages)
    if key is not None and key.mode == "stream":
        # Use the store's clock, because the next run may be on a host with a different clock.
        epoch = None if key.epoch is None else max(0, root.engine.to_store_clock(key.epoch))
        key = replace(key, epoch=epoch, replay_mismatch=plan.options.replay_mismatch)
        if _published_with_other_option(root, plan, topics, key):
            return
    if plan.topic is None:
        _commit_together(root, topics, key, plan.options.transaction_timeout_ms)
        return
    for name, written in topics.items():
        if written.files or key is not None:
            target = replace(written.target, root_checked_at=root_checked_at)
            root.engine.log(name).commit_append(written.files, target, writer=key)


def _files_by_topic(messages: Iterable[SparklogCommitMessage]) -> dict[str, TopicFiles]:
    """Return the files of all tasks by topic, sorted. Raises Conflict if a topic was created again during the write."""
    by_topic: dict[str, list[TopicFiles]] = {}
    for message in messages:
        for part in message.topics:
            by_topic.setdefault(part.target.topic, []).append(part)
    joined = {}
    for name, parts in sorted(by_topic.items()):
        if len({part.target.topic_id for part in parts}) > 1:
            raise Conflict(f"The topic {name!r} was deleted and recreated during this write: repeat the write")
        target = min((part.target for part in parts), key=lambda target: target.read_version)
        joined[name] = TopicFiles(target, tuple(file for part in parts for file in part.files))
    return joined


def _published_with_other_option(root: Root, plan: SinkPlan, topics: dict[str, TopicFiles], writer: WriterKey) -> bool:
    """Return True if an earlier run committed this micro-batch, but specified the topics differently (with an option
    instead of a column, or vice versa).
    """
    from sparklog.log.state.slices import content_of
    from sparklog.transactions.replay_checks import in_decisions, in_topics

    counts = {name: [file.counts for file in written.files] for name, written in topics.items()}
    writer = replace(writer, content=content_of(counts))
    count = sum(written.records for written in topics.values())
    if plan.topic is None:
        return in_topics(root, writer, count, None if plan.options.txn_app_id is None else topics)
    return in_decisions(root, plan.topic, writer, count)


def _commit_together(root: Root, topics: dict[str, TopicFiles], key: WriterKey | None, timeout_ms: int) -> None:
    from sparklog.transactions.publishing import publish as commit_together

    published = commit_together(
        root, None if key is None else key.id, list(topics.values()), key=key, timeout_ms=timeout_ms
    )
    if published.skipped and key is not None and key.mode == "txn":
        _LOG.warning("%s", published.note)


def plan_write(location: Location, options: Options, schema: StructType) -> SinkPlan:
    """Check the schema of a DataFrame. Open or create the root and the topic. Raises BadRequest and NotFound."""
    sink = options.write
    topic = _topic(location, sink.topic)
    columns = write_columns(schema, topic)
    root = root_at(location, create=sink.auto_create)
    if location.kind == NOTHING:
        location = Location(ROOT, location.path, location.root)
    target = None if topic is None else topic_at(root, topic, sink).log.append_target(refresh=False)
    freeze_gc()
    return SinkPlan(location, root.id, sink, columns, topic, target)


def plan_commit(location: Location, options: Options) -> SinkPlan:
    """Plan the commit of a micro-batch without sending requests. The messages of the tasks contain the remaining
    values.
    """
    return SinkPlan(location, None, options.write, (), _topic(location, options.write.topic), None)


def _topic(location: Location, option: str | None) -> str | None:
    if location.topic is not None and option is not None and option != location.topic:
        raise BadRequest(
            f"The path {location.path} is the directory of topic {location.topic!r}, but the option 'topic' is "
            f"{option!r}: use the path of the root, or remove the option"
        )
    return location.topic or option


class SparklogBatchWriter(DataSourceArrowWriter):  # type: ignore[misc]
    """The writer of one `save`. An unpickled copy writes in each task, and another copy commits."""

    def __init__(self, plan: SinkPlan) -> None:
        self._plan = plan
        self._job = SYSTEM.new_id()
        app, version = plan.options.txn_app_id, plan.options.txn_version
        self._key = None if app is None or version is None else WriterKey(app, version, mode="txn")

    @user_errors()
    def write(self, iterator: Iterator[pa.RecordBatch]) -> SparklogCommitMessage:
        return write_task(self._plan, iterator, self._job)

    @user_errors()
    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        publish(self._plan, _sparklog_messages(messages), self._key)


class SparklogStreamWriter(DataSourceStreamArrowWriter):  # type: ignore[misc]
    """The writer of a micro-batch. `epoch` (ms) increases with each run of the query, and is None if it is unknown."""

    def __init__(self, plan: SinkPlan, epoch: int | None = None) -> None:
        self._plan = plan
        self._epoch = epoch

    @user_errors()
    def write(self, iterator: Iterator[pa.RecordBatch]) -> SparklogCommitMessage:
        return write_task(self._plan, iterator, "stream")

    @user_errors()
    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        ours = _sparklog_messages(messages)
        query = next((message.query_id for message in ours if message.query_id), None)
        run = next((message.run_id for message in ours if message.run_id), None)
        writer = self._plan.options.txn_app_id or query
        if writer is None:
            raise BadRequest("The tasks of this micro-batch have no streaming query id: set the option 'txnAppId'")
        publish(self._plan, ours, WriterKey(writer, batchId, run, epoch=self._epoch))
        freeze_gc()


def _sparklog_messages(messages: Sequence[WriterCommitMessage | None]) -> list[SparklogCommitMessage]:
    return [message for message in messages if isinstance(message, SparklogCommitMessage)]
