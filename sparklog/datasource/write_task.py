"""Write append files in a Spark task, for one topic or several, and the message that carries them to the commit.

Nothing is published here. A failed or repeated attempt leaves files that no commit names; the vacuum removes them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql.datasource import WriterCommitMessage

from sparklog.datasource.options import SinkOptions
from sparklog.datasource.process import freeze_gc, root_at, topic_at
from sparklog.datasource.schema import WriteColumns, pick
from sparklog.errors import BadRequest
from sparklog.kafka.in_place.location import Location
from sparklog.log.write.append_writer import TopicFiles

if TYPE_CHECKING:
    import pyarrow as pa

    from sparklog.log.topic.root import Root
    from sparklog.log.write.append_writer import AppendTarget, AppendWriter

QUERY_ID = "sql.streaming.queryId"
BATCH_ID = "streaming.sql.batchId"
RUN_ID = "spark.jobGroup.id"


@dataclass(frozen=True)
class SinkPlan:
    """Plan of a write, for its tasks. `topic` and `target` are None where a column names the topics. Picklable.

    `root_id` is None for the commit of a micro-batch, which plans no tasks: the targets of the tasks have it.
    """

    location: Location
    root_id: str | None
    options: SinkOptions
    columns: WriteColumns
    topic: str | None
    target: AppendTarget | None


@dataclass(frozen=True)
class SparklogCommitMessage(WriterCommitMessage):  # type: ignore[misc]
    """From a task to the commit: its files by topic, and who wrote them, which the commit is not told otherwise."""

    topics: tuple[TopicFiles, ...]
    query_id: str | None
    run_id: str | None


def write_task(plan: SinkPlan, batches: Iterable[pa.RecordBatch], job: str) -> SparklogCommitMessage:
    """Write the rows of a task. `job` tells writes apart, so that keyless rows do not all begin in one partition."""
    from pyspark import TaskContext

    from sparklog.log.write.rows import sticky_seed

    context = TaskContext.get()
    query_id, run_id, batch_id, task = None, None, None, 0
    if context is not None:
        query_id = context.getLocalProperty(QUERY_ID)
        batch_id = context.getLocalProperty(BATCH_ID)
        run_id = context.getLocalProperty(RUN_ID)
        task = context.partitionId()
    seed = sticky_seed(job, batch_id, task)
    sink = _OneTopic(plan, plan.target, seed) if plan.target is not None else _SeveralTopics(plan, seed)
    try:
        for batch in batches:
            sink.write(batch)
        message = SparklogCommitMessage(tuple(sink.finish()), query_id, run_id)
        freeze_gc("write")
        return message
    except BaseException:
        sink.discard()
        raise


class _OneTopic:
    """All rows go to the topic that the planner chose."""

    def __init__(self, plan: SinkPlan, target: AppendTarget, seed: int) -> None:
        self._plan = plan
        self._target = target
        self._seed = seed
        self._names = [name for name in plan.columns.names if name != "topic"]
        self._writer: AppendWriter | None = None

    def write(self, batch: pa.RecordBatch) -> None:
        import pyarrow as pa

        if self._writer is None:
            self._writer = _writer(self._plan, self._target, self._seed)
        self._writer.write(pa.RecordBatch.from_pydict(pick(batch, self._names)))

    def finish(self) -> Iterator[TopicFiles]:
        files = () if self._writer is None else tuple(self._writer.finish())
        yield TopicFiles(self._target, files)

    def discard(self) -> None:
        if self._writer is not None:
            self._writer.discard()


def _writer(plan: SinkPlan, target: AppendTarget, seed: int, *, checked_root: bool = False) -> AppendWriter:
    from sparklog.log.write.append_writer import AppendWriter, WriteOptions

    sink = plan.options
    options = WriteOptions(sink.codec or "zstd", sink.level, buffer_bytes=sink.buffer_bytes)
    return AppendWriter(target, options, seed=seed, checked_root=checked_root)


class _SeveralTopics:
    """Each row names its topic. The buffer is shared: when it is full, the fullest topic is flushed."""

    def __init__(self, plan: SinkPlan, seed: int) -> None:
        self._seed = seed
        self._plan = plan
        self._names = [name for name in plan.columns.names if name != "topic"]
        self._root: Root | None = None
        self._targets: dict[str, AppendTarget] = {}
        self._writers: dict[str, AppendWriter] = {}
        self._pending: dict[str, int] = {}

    def write(self, batch: pa.RecordBatch) -> None:
        import pyarrow as pa

        if not batch.num_rows:
            return
        columns = pick(batch, [*self._names, "topic"])
        topics = columns.pop("topic")
        if topics.null_count:
            row = topics.is_null().to_pylist().index(True)
            raise BadRequest(
                f"The topic column holds a null (row {row} of an Arrow batch of {len(topics)}): name a topic in each "
                "row, or give the option 'topic'; nothing of this write was published"
            )
        rows = pa.RecordBatch.from_pydict(columns)
        for topic, part in _by_topic(topics, rows):
            self._write(topic, part)

    def _write(self, topic: str, rows: pa.RecordBatch) -> None:
        if topic not in self._writers:
            self._targets[topic] = self._target(topic)
            self._writers[topic] = _writer(self._plan, self._targets[topic], self._seed, checked_root=True)
        limit = self._plan.options.buffer_bytes
        self._writers[topic].write(rows)
        size = self._pending.get(topic, 0) + rows.nbytes
        self._pending[topic] = size if size < limit else 0
        while sum(self._pending.values()) >= limit:
            fullest = max(self._pending, key=self._pending.__getitem__)
            self._writers[fullest].flush()
            self._pending[fullest] = 0

    def _target(self, topic: str) -> AppendTarget:
        if self._root is None:
            # Once per task, and not again with each topic and each file: it costs a request.
            root = root_at(self._plan.location)
            if root.id != self._plan.root_id:
                raise BadRequest(
                    f"expected the root {self._plan.root_id} at {root.location}, found {root.id}: use storage that "
                    "driver and executors share"
                )
            self._root = root
        return topic_at(self._root, topic, self._plan.options).log.append_target(refresh=False)

    def finish(self) -> Iterator[TopicFiles]:
        for topic in sorted(self._writers):
            yield TopicFiles(self._targets[topic], tuple(self._writers[topic].finish()))

    def discard(self) -> None:
        for writer in self._writers.values():
            writer.discard()


def _by_topic(topics: pa.Array, rows: pa.RecordBatch) -> Iterator[tuple[str, pa.RecordBatch]]:
    """The rows of each topic, in their order."""
    import pyarrow.compute as pc

    encoded = topics.dictionary_encode()
    names = encoded.dictionary.to_pylist()
    if len(names) == 1:
        yield names[0], rows
        return
    for code, name in enumerate(names):
        yield name, rows.filter(pc.equal(encoded.indices, code))
