"""The code that runs in tasks and in the commit, called directly."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import astuple, replace
from pathlib import Path
from random import Random
from typing import Any
from unittest.mock import DEFAULT, Mock

import pyarrow as pa
import pytest

import sparklog
from sparklog.datasource import spark_workers
from sparklog.datasource.options import parse_options
from sparklog.datasource.spark_workers import HIDE_TRACEBACK, user_errors
from sparklog.datasource.stream_plan import StreamPlanner
from sparklog.datasource.subscription import Subscriber
from sparklog.errors import BadRequest, Conflict, NotFound
from sparklog.format.key_hash import partition_for_key
from sparklog.log.journal.clocks import SYSTEM
from sparklog.log.state.history import History
from sparklog.log.state.slice_table import SliceTable
from sparklog.log.state.view import OffsetRange
from sparklog.log.topic.engine import TopicLog
from sparklog.log.topic.root import Root
from sparklog.log.write.append_writer import AppendWriter
from sparklog.maintenance.work_items import Settings
from sparklog.opening import open_view, resolve
from sparklog.retention.retain import retain_root
from sparklog.transactions.listing import list_transactions
from tests.datasource.memory_view import MemoryPart
from tests.datasource.streams import feed, values

pytest.importorskip("pyspark")

from pyspark.sql.types import StringType, StructType

from sparklog.datasource import data_source
from sparklog.datasource.data_source import COMMIT_RUNNER, SparklogDataSource
from sparklog.datasource.read_task import LogPartition, ReadTask, log_partitions
from sparklog.datasource.schema import projection
from sparklog.datasource.writer import SinkPlan, SparklogCommitMessage, plan_commit, plan_write, publish, write_task
from sparklog.log.state.writer_runs import WriterKey


@pytest.fixture(autouse=True)
def _keep_tracebacks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(HIDE_TRACEBACK, "")


def test_a_sparklog_error_is_one_line_with_its_code() -> None:
    @user_errors()
    def fail() -> None:
        raise NotFound("there is\nno topic")

    with pytest.raises(Exception, match=r"there is\\nno topic") as error:
        fail()
    assert type(error.value).__qualname__ == "[SPARKLOG_NOT_FOUND]"
    assert type(error.value).__module__ == "builtins"
    assert os.environ[HIDE_TRACEBACK] == "1"


def test_an_unexpected_error_keeps_its_type() -> None:
    @user_errors()
    def fail() -> None:
        raise KeyError("bug")

    def items() -> Iterator[int]:
        with user_errors():
            yield 1
            raise Conflict("in the middle")

    with pytest.raises(KeyError):
        fail()
    assert os.environ[HIDE_TRACEBACK] == ""
    found = items()
    assert next(found) == 1
    with pytest.raises(Exception, match="in the middle"):
        next(found)


def test_importing_the_source_imports_no_heavy_modules(tmp_path: Path) -> None:
    """Spark starts Python processes to find formats, to create the source, to plan, and to run a stream."""
    topic = sparklog.open(tmp_path, create=True).create_topic("t")
    topic.append(pa.table({"value": [b"v"]}))
    program = (
        "import pickle, sys, pyspark.sql.datasource\n"
        "from pyspark.sql.types import BinaryType, StructField, StructType\n"
        "before = {*sys.modules}\n"
        "def show(*names): print([name for name in names if name in sys.modules.keys() - before])\n"
        "import pyspark_sparklog; show('sparklog.opening', 'sparklog.datasource.data_source', 'pyarrow')\n"
        f"source = pyspark_sparklog.DefaultSource({{'path': '{tmp_path}', 'subscribe': 't'}})\n"
        "assert source.schema().startswith('key'); show('numpy', 'pyarrow')\n"
        "show(*(f'sparklog.{room}' for room in ('groups', 'log.decisions', 'log.read', 'log.topic', 'kafka')))\n"
        "reader = source.streamReader(StructType([StructField('value', BinaryType())]))\n"
        "assert type(pickle.loads(pickle.dumps(reader))).__name__ == 'ReadTask'\n"
        "show(*(f'sparklog.{name}' for name in ('datasource.stream_plan', 'log.state.commit', 'log.topic')))\n"
        "start = reader.initialOffset()\n"
        # Spark before 4.2 does not call these methods.
        "limits = hasattr(reader, 'getDefaultReadLimit')\n"
        "if limits: reader.prepareForTriggerAvailableNow()\n"
        "reader.partitions(start, reader.latestOffset(*((start, reader.getDefaultReadLimit()) if limits else ())))\n"
        "show('sparklog.groups', 'sparklog.format.kernels', 'sparklog.log.read.fetch')\n"
        "print(sum(name.startswith('sparklog') for name in sys.modules) <= 102)\n"
        "import sparklog.datasource.reader, sparklog.datasource.writer, sparklog.kafka.in_place.view\n"
        "show('numba', 'pandas', 'zstandard', 'lz4', 'snappy')"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["[]"] * 5 + ["True", "[]"], (
        "a stream process loads at most 102 modules of sparklog"
    )


def test_spark_gets_the_source_itself_from_what_it_finds() -> None:
    from pyspark_sparklog import DefaultSource

    source = DefaultSource({"path": "/"})
    assert type(source) is SparklogDataSource
    assert DefaultSource.name() == source.name() == "sparklog"


def test_a_thousand_partitions_are_planned_at_once_and_pickled_as_one_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, count = str(tmp_path / "log"), 1_000
    topic = sparklog.open(root, create=True).create_topic("in", partitions=count)
    topic.append(pa.table({"value": [b"x"] * count, "partition": pa.array(range(count), pa.int32())}))
    view = open_view(resolve(root), tailing=False)
    ranges = [OffsetRange("in", partition, 0, 1) for partition in range(count)]
    selected = Mock(wraps=SliceTable.select_each, side_effect=lambda *_: DEFAULT)
    monkeypatch.setattr(SliceTable, "select_each", lambda *given: selected(*given))
    tasks = log_partitions(view, ranges, parse_options({"subscribe": "in"}).read)
    assert selected.call_count == 1, "what was measured is planned"
    pickled = [pickle.dumps(task) for task in tasks]
    assert sum(map(len, pickled)) < 250 * count
    parts = [part for data in pickled for part in pickle.loads(data).value]
    assert [part.range for part in parts] == ranges
    assert [row["offset"] for task in tasks for batch in read_task(root).read(task) for row in batch.to_pylist()] == (
        [0] * count
    )
    planned = [part for task in tasks for part in task.value]
    rows_of = [[astuple(row) for part in some for row in part.slices.rows()] for some in (parts, planned)]
    assert rows_of[0] == rows_of[1]


class PartOfALog:
    """A part whose log start moved past its start after it was planned."""

    range = OffsetRange("in", 0, 0, 10)
    records = 10
    nbytes = 100

    def read(self, columns: Any, *, batch_bytes: int = 0) -> Iterator[pa.RecordBatch]:
        yield from MemoryPart(OffsetRange("in", 0, 0, 2), (1, 1)).read(columns)
        raise NotFound("offsets 2 to 9 of in-0 are gone")


def read_task(root: str, **options: str) -> ReadTask:
    from pyspark.sql.types import LongType, StructField

    schema = projection(StructType([StructField("offset", LongType())]))
    task = ReadTask(resolve(root), parse_options(options).read, schema)
    found: ReadTask = pickle.loads(pickle.dumps(task))
    return found


def test_records_deleted_while_a_task_reads(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    root = str(tmp_path / "log")
    feed(root, "in", range(10), partitions=1)
    sparklog.open(root).topic("in").delete_records({0: 6})
    partition = LogPartition([PartOfALog()])
    with pytest.raises(Exception, match="offsets 2 to 9 of in-0 are gone"):
        list(read_task(root).read(partition))
    found = [row for batch in read_task(root, failondataloss="false").read(partition) for row in batch.to_pylist()]
    assert [row["offset"] for row in found] == [0, 1, 6, 7, 8, 9]
    assert "because failOnDataLoss=false, the read continues without these records" in caplog.text


def test_a_missing_record_that_was_not_deleted_is_an_error_even_then(tmp_path: Path) -> None:
    root = str(tmp_path / "log")
    feed(root, "in", range(10), partitions=1)
    with pytest.raises(Exception, match="offsets 2 to 9 of in-0 are gone"):
        list(read_task(root, failondataloss="false").read(LogPartition([PartOfALog()])))


@pytest.mark.usefixtures("records_in_files")
def test_records_of_a_topic_created_again_are_not_read_under_an_old_plan(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A micro-batch is planned. Before its tasks run, the topic is deleted, created again and vacuumed."""
    opened = sparklog.open(tmp_path, create=True)
    options = parse_options(
        {"path": str(tmp_path), "subscribe": "t", "startingoffsets": "earliest", "failondataloss": "false"}
    ).read
    opened.create_topic("t").append(pa.table({"value": [f"old {n}" for n in range(10)]}))
    location = resolve(str(tmp_path))
    view = open_view(location, tailing=True)
    planner = StreamPlanner(view, Subscriber(view, location, options.subscription), options)
    task = read_task(str(tmp_path), failondataloss="false")

    def read(partitions: list[Any]) -> list[int]:
        return [offset for each in partitions for batch in task.read(each) for offset in batch["offset"].to_pylist()]

    start = planner.initial()
    end = planner.latest(start, limited=True)
    first = log_partitions(view, planner.ranges(start, end), options)
    opened.delete_topic("t")
    opened.create_topic("t").append(pa.table({"value": [f"new {n}" for n in range(6)]}))
    retain_root(opened, Settings(now_ms=SYSTEM.wall_ms() + 3 * 86_400_000))
    assert read(first) == []
    assert "deleted and recreated" in caplog.text
    later = planner.latest(end, limited=True)
    second = log_partitions(view, planner.ranges(end, later), options)
    assert read(second) == list(range(6))


def test_a_partition_without_value_is_empty(tmp_path: Path) -> None:
    from pyspark.sql.datasource import InputPartition

    feed(tmp_path / "log", "in", range(1))
    task = read_task(str(tmp_path / "log"))
    assert list(task.read(InputPartition(None))) == []
    assert list(task.read(None)) == []  # the call of Spark 4.0 and 4.1


# -- writes without Spark


def plan(root: str, schema: str = "key string, value string", **options: str) -> SinkPlan:
    from pyspark.sql.types import IntegerType, StringType, StructField

    kinds = {"string": StringType(), "int": IntegerType()}
    fields = [StructField(*(part.split()[0], kinds[part.split()[1]])) for part in schema.split(", ")]
    given = {"path": root, **options}
    parsed = parse_options({name.replace("_", "."): value for name, value in given.items()})
    found: SinkPlan = pickle.loads(pickle.dumps(plan_write(resolve(root), parsed, StructType(fields))))
    return found


def rows(values: range, topics: list[str] | None = None) -> pa.RecordBatch:
    texts = [str(value) for value in values]
    columns: dict[str, Any] = {"key": texts, "value": texts}
    if topics is not None:
        columns["topic"] = [topics[value % len(topics)] for value in values]
    return pa.RecordBatch.from_pydict(columns)


def sent(message: SparklogCommitMessage) -> SparklogCommitMessage:
    found: SparklogCommitMessage = pickle.loads(pickle.dumps(message))
    return found


def test_tasks_and_commit(tmp_path: Path) -> None:
    root = str(tmp_path / "log")
    sink = plan(root, topic="t", num_partitions="3")
    messages = [sent(write_task(sink, [rows(range(50)), rows(range(50, 60))], "a")), write_task(sink, [], "a")]
    messages.append(write_task(sink, [rows(range(60, 90))], "b"))
    assert [message.topics[0].records for message in messages] == [60, 0, 30]
    assert sparklog.open(root).topic("t").log.state().log_end.sum() == 0
    publish(sink, messages, None)
    assert values(root, "t") == list(range(90))
    publish(sink, [], None)
    publish(sink, [write_task(sink, [], "c")], None)
    assert sparklog.open(root).topic("t").log.state().version == 1


def test_keys_of_batches_and_streams(tmp_path: Path) -> None:
    root = str(tmp_path / "log")
    sink = plan(root, topic="t")

    def write(first: int, key: WriterKey | WriterKey) -> None:
        publish(sink, [write_task(sink, [rows(range(first, first + 10))], "a")], key)

    write(0, WriterKey("q", 0, "run-1"))
    write(0, WriterKey("q", 0, "run-1"))
    write(10, WriterKey("q", 1, "run-1"))
    with pytest.raises(Conflict, match="checkpoint is older than the log"):
        write(20, WriterKey("q", 0, "run-1"))
    write(10, WriterKey("q", 1, "run-2"))
    with pytest.raises(sparklog.Fenced):
        write(20, WriterKey("q", 2, "run-1"))
    write(20, WriterKey("app", 5, mode="txn"))
    write(20, WriterKey("app", 5, mode="txn"))
    write(20, WriterKey("app", 4, mode="txn"))
    assert values(root, "t") == list(range(30))


@pytest.mark.parametrize("read", ["reader", "streamReader"])
@pytest.mark.parametrize(
    "more", [{}, {"failOnDataLoss": "false"}, {"allPartitions": "true"}, {"assign": '{"t":[0,1]}'}]
)
def test_reads_of_some_keys(tmp_path: Path, read: str, more: dict[str, str]) -> None:
    pytest.importorskip("pyspark", "4.2")
    from pyspark.sql.streaming.datasource import ReadAllAvailable

    topic = sparklog.open(tmp_path, create=True).create_topic("t", partitions=3)
    keys = [b"k%d" % i for i in range(30)]
    topic.append(pa.table({"key": keys, "value": keys}))
    partition = pa.array([_elsewhere()], pa.int32())
    topic.append(pa.table({"key": [b"k3"], "value": [b"elsewhere"], "partition": partition}))
    options = {"path": str(tmp_path), "keys": "k3,k4,nobody", "columns": "offset,value", **more}
    options |= {} if "assign" in more else {"subscribe": "t"}
    options |= {} if read == "reader" else {"startingOffsets": "earliest"}
    source = SparklogDataSource(options)
    reader = getattr(source, read)(StructType().add("offset", "long").add("value", "binary"))
    bounds = () if read == "reader" else (reader.initialOffset(),)
    if bounds:
        bounds = (*bounds, reader.latestOffset(*bounds, ReadAllAvailable()))
    batches = [batch for task in reader.partitions(*bounds) for batch in reader.read(task)]
    assert all(batch.schema.names == ["offset", "value"] for batch in batches)
    assigned = [0, 1] if "assign" in more else [0, 1, 2]
    everything = topic.scan(partitions=assigned).to_table().to_pylist()
    wanted = {row["value"] for row in everything if row["key"] in (b"k3", b"k4")}
    if more in ({}, {"failOnDataLoss": "false"}):
        wanted.discard(b"elsewhere")
    assert {value for batch in batches for value in batch.column("value").to_pylist()} == wanted


def _elsewhere() -> int:
    """Return the partition of three that contains neither k3 nor k4."""
    return next(p for p in range(3) if p not in partition_for_key(pa.array([b"k3", b"k4"]), 3).tolist())


def test_several_topics_share_one_buffer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = str(tmp_path / "log")
    limit = 2000
    sink = plan(root, "key string, value string, topic string", write_buffer_bytes=str(limit))
    held: dict[int, int] = {}
    most = 0
    write, flush = AppendWriter.write, AppendWriter.flush

    def counted(self: AppendWriter, batch: pa.RecordBatch) -> None:
        nonlocal most
        write(self, batch)
        held[id(self)] = self._pending_bytes
        most = max(most, sum(held.values()) - batch.nbytes)

    def flushed(self: AppendWriter) -> None:
        flush(self)
        held[id(self)] = 0

    monkeypatch.setattr(AppendWriter, "write", counted)
    monkeypatch.setattr(AppendWriter, "flush", flushed)
    topics = [f"t{number}" for number in range(20)]
    batches = [rows(range(first, first + 40), topics) for first in range(0, 2000, 40)]
    message = write_task(sink, batches, "a")
    publish(sink, [message], WriterKey("q", 0, "run"))
    assert 0 < most <= limit
    assert sum(len(values(root, topic)) for topic in topics) == 2000
    assert values(root, "t7") == list(range(7, 2000, 20))


def test_a_replay_that_leaves_a_topic_out(tmp_path: Path) -> None:
    root = str(tmp_path / "log")
    sink = plan(root, "key string, value string, topic string")
    publish(sink, [write_task(sink, [rows(range(10), ["a", "b"])], "x")], WriterKey("q", 0, "r1"))
    with pytest.raises(Conflict, match="replay mismatch"):
        publish(sink, [write_task(sink, [rows(range(5), ["a"])], "x")], WriterKey("q", 0, "r2"))
    publish(sink, [write_task(sink, [rows(range(10), ["a", "b"])], "x")], WriterKey("q", 0, "r3"))
    assert values(root, "b") == [1, 3, 5, 7, 9]


def test_a_topic_column_is_a_transaction(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = str(tmp_path / "log")
    sink = plan(root, "key string, value string, topic string")
    publish(sink, [write_task(sink, [rows(range(10), ["a", "b"])], "x")], WriterKey("q", 0, "r1"))
    real = TopicLog.commit_append

    def dies_at_b(self: TopicLog, *given: Any, **how: Any) -> Any:
        if self.topic == "b":
            raise KeyboardInterrupt
        return real(self, *given, **how)

    monkeypatch.setattr(TopicLog, "commit_append", dies_at_b)
    message = write_task(sink, [rows(range(10, 20), ["a", "b"])], "x")
    with pytest.raises(KeyboardInterrupt):
        publish(sink, [message], WriterKey("q", 1, "r1"))
    monkeypatch.undo()
    assert values(root, "a") == [0, 2, 4, 6, 8]
    assert sparklog.open(root).topic("a").log.state().open
    publish(sink, [message], WriterKey("q", 1, "r2"))
    publish(sink, [message], WriterKey("q", 1, "r2"))
    read = [
        [
            int(value)
            for batch in sparklog.open(root).topic(name).scan(columns=["value"])
            for value in batch["value"].to_pylist()
        ]
        for name in ("a", "b")
    ]
    assert [sorted(found) for found in read] == [list(range(0, 20, 2)), list(range(1, 20, 2))]
    with pytest.raises(sparklog.Fenced, match="was superseded by run r2"):
        publish(sink, [message], WriterKey("q", 1, "r1"))


@pytest.mark.parametrize("schema", ["key string, value string", "key string, value string, topic string"])
def test_a_run_of_a_query_is_fenced_however_many_came_between(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, schema: str
) -> None:
    """Spark uses one data source for the commits of a run, and requests a writer for each commit."""
    monkeypatch.setitem(sys.modules, COMMIT_RUNNER, sys)
    clock = iter(range(1_700_000_000_000, 1_700_000_000_010))
    monkeypatch.setattr(data_source, "SYSTEM", replace(SYSTEM, wall_ms=lambda: next(clock)))
    by_column = "topic" in schema
    given = {"path": str(tmp_path / "log"), **({} if by_column else {"topic": "t"})}
    runs = [pickle.loads(pickle.dumps(SparklogDataSource(given))) for _ in range(8)]
    sink = plan(given["path"], schema, **({} if by_column else {"topic": "t"}))

    def commit(run: int, batch: int) -> None:
        message = write_task(sink, [rows(range(3), ["t"] if by_column else None)], "x")
        writer = runs[run].streamWriter(StructType(), False)
        writer.commit([replace(message, query_id="q", run_id=f"run-{run}")], batch)

    for run in range(8):
        commit(run, run)
    for run in (0, 2, 6):
        with pytest.raises(Exception, match=f"run-{run} .*(taken over|superseded) by"):
            commit(run, 8)
    commit(7, 8)
    assert len(values(given["path"], "t")) == 27


def test_runs_on_machines_whose_clocks_differ(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock of the first run's host is four minutes ahead. The second run starts shortly after on a host with a
    correct clock.
    """
    root = str(tmp_path / "log")
    sink = plan(root, topic="t")
    message = write_task(sink, [rows(range(3))], "x")
    for number, ahead_ms in enumerate((240_000, 0)):
        now = SYSTEM.wall_ms() + ahead_ms
        env = replace(SYSTEM, wall_ms=lambda now=now: now)  # type: ignore[misc]
        opened = sparklog.open(root)
        monkeypatch.setitem(spark_workers._roots, root, Root(opened.store, opened.id, env))
        publish(sink, [message], WriterKey("q", number, f"r{number}", epoch=now + number * 1000))
    entry = sparklog.open(root).topic("t").log.state().registry["q"]
    assert entry.run == "r1"
    assert entry.epoch is not None
    assert abs(entry.epoch - SYSTEM.wall_ms()) < 100_000


BY_COLUMN = "key string, value string, topic string"


@pytest.mark.parametrize("column_first", [True, False])
def test_a_sink_that_names_its_topic_in_another_way_after_a_restart(tmp_path: Path, column_first: bool) -> None:
    """The driver dies between the commits of the sink and of Spark, and the query restarts with another option."""
    root = str(tmp_path / "log")
    both = plan(root, topic="t"), plan(root, BY_COLUMN)
    given = [rows(range(10)), rows(range(10), ["t"])]
    before, after = (1, 0) if column_first else (0, 1)

    def write(way: int, number: int, run: str) -> None:
        message = write_task(both[way], [given[way]], "x")
        publish(plan_commit(resolve(root), both_options[way]), [message], WriterKey("q", number, run))

    both_options = [parse_options({"path": root, **more}) for more in ({"topic": "t"}, {})]
    write(before, 0, "r1")
    write(before, 1, "r1")
    write(after, 1, "r2")
    assert values(root, "t") == sorted([*range(10), *range(10)])
    write(after, 2, "r2")
    assert len(values(root, "t")) == 30
    with pytest.raises(sparklog.Fenced, match="r1"):
        write(before, 3, "r1")
    write(before, 2, "r3")
    write(before, 3, "r3")
    assert len(values(root, "t")) == 40
    with pytest.raises(Conflict, match="checkpoint is older than the log"):
        write(after, 1, "r4")
    assert len(values(root, "t")) == 40


def test_a_sink_that_names_other_topics_after_a_restart(tmp_path: Path) -> None:
    root = str(tmp_path / "log")
    publish(plan(root, topic="t"), [write_task(plan(root, topic="t"), [rows(range(10))], "x")], WriterKey("q", 4, "r1"))
    sink = plan(root, BY_COLUMN)
    publish(sink, [write_task(sink, [rows(range(10), ["a", "b"])], "x")], WriterKey("q", 4, "r2"))
    assert values(root, "a") == []
    for number in (4, 3):
        with pytest.raises(Conflict, match=r"replay mismatch|checkpoint is older"):
            publish(sink, [write_task(sink, [rows(range(9), ["a"])], "x")], WriterKey("q", number, "r3"))
    assert sparklog.open(root).topic("t").log.state().registry["q"].run == "r2", "what is refused takes nothing over"
    publish(sink, [write_task(sink, [rows(range(9), ["a"])], "x")], WriterKey("q", 5, "r3"))
    assert len(values(root, "a")) == 9


def test_the_timeout_of_a_transaction_is_an_option(tmp_path: Path) -> None:
    root = str(tmp_path / "log")
    for name, options in (("a", {}), ("b", {"kafka.transaction.timeout.ms": "7000"})):
        sink = plan(root, "key string, value string, topic string", **options)
        publish(sink, [write_task(sink, [rows(range(2), [name])], "x")], None)
    found = [History(sparklog.open(root).store, name).commit(1).txn for name in ("a", "b")]
    assert [None if txn is None else txn.timeout_ms for txn in found] == [60_000, 7000]


def test_batch_writes_with_a_topic_column(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    root = str(tmp_path / "log")
    sink = plan(root, "key string, value string, topic string")
    publish(sink, [write_task(sink, [rows(range(10), ["a", "b"])], "x")], None)
    publish(sink, [write_task(sink, [rows(range(10, 12), ["a"])], "x")], None)
    [one] = list_transactions(sparklog.open(root))
    assert one.id.startswith("one-write:")
    for version in (5, 5, 4):
        publish(sink, [write_task(sink, [rows(range(20, 30), ["a", "b"])], "x")], WriterKey("app", version, mode="txn"))
    assert "batch 5 of writer 'app' was already committed to transactional id 'app'" in caplog.text
    assert values(root, "a") == [0, 2, 4, 6, 8, 10, 11, 20, 22, 24, 26, 28]
    assert values(root, "b") == [1, 3, 5, 7, 9, 21, 23, 25, 27, 29]


def test_a_topic_created_again_between_tasks(tmp_path: Path) -> None:
    root = str(tmp_path / "log")
    sink = plan(root, "key string, value string, topic string")
    first = write_task(sink, [rows(range(4), ["t"])], "x")
    sparklog.open(root).delete_topic("t")
    second = write_task(sink, [rows(range(4), ["t"])], "x")
    with pytest.raises(Conflict, match="was deleted and recreated during this write"):
        publish(sink, [first, second], None)


def test_a_task_hands_the_driver_what_is_small_for_one_of_thousands(tmp_path: Path) -> None:
    sink, random = plan(str(tmp_path / "log"), "value string", topic="t"), Random(1)

    def written(nbytes: int) -> bool:
        batch = pa.RecordBatch.from_pydict({"value": [random.randbytes(nbytes).hex()]})
        (files,) = write_task(sink, [batch], "x").topics
        return bool(files.files[0].path)

    assert [written(nbytes) for nbytes in (12_000, 20_000)] == [False, True]


@pytest.mark.usefixtures("records_in_files")
def test_a_root_recreated_between_plan_and_commit_is_an_error(tmp_path: Path) -> None:
    import shutil

    root = str(tmp_path / "log")
    sink = plan(root, topic="t")
    message = write_task(sink, [rows(range(4))], "x")
    shutil.rmtree(root)
    plan(root, topic="t")
    with pytest.raises(Conflict, match="The id of the root at"):
        publish(sink, [message], None)
    with pytest.raises(BadRequest, match="expected the root"):
        write_task(sink, [rows(range(4))], "x")


def test_an_invalid_key_is_an_error_before_a_topic_is_created(tmp_path: Path) -> None:
    schema, root = StructType().add("value", StringType()), tmp_path / "log"
    options = {"path": str(root), "topic": "t", "txnappid": "a"}
    with pytest.raises(Exception, match="txnAppId is set without txnVersion"):
        SparklogDataSource(options).writer(schema, False)
    with pytest.raises(Exception, match="txnVersion applies only to batch writes"):
        SparklogDataSource({**options, "txnversion": "1"}).streamWriter(schema, False)
    assert not root.exists()


def test_a_topic_is_created_with_its_configs(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    root = str(tmp_path / "log")
    configs = {"topic.retention.ms": "-1", "topic.cleanup.policy": "compact,delete"}
    plan(root, topic="kept", num_partitions="3", **configs)
    plan(root, topic="kept", num_partitions="3", **configs)
    found = sparklog.open(root).topic("kept").log.state().configs
    assert found.explicit == {"cleanup.policy": "compact,delete", "retention.ms": "-1"}
    made = [f"sparklog: created root {root}", f"sparklog: created topic kept with 3 partitions in {root}"]
    assert caplog.messages == made
    caplog.clear()
    for _ in range(2):
        plan(root, topic="kept", num_partitions="4", **{"topic.retention.ms": "5"})
    partitions, config = caplog.messages
    assert partitions == (
        "sparklog: Option 'num.partitions' (4) has no effect on the existing topic 'kept', which has 3; use "
        "`sparklog topics alter kept` to add partitions"
    )
    assert config == (
        "sparklog: Option 'topic.retention.ms' (5) has no effect on the existing topic 'kept', which has -1; "
        "use `sparklog configs alter kept --add-config retention.ms=5`"
    )


@pytest.mark.parametrize(
    ("folder", "expected"),
    [
        (
            "none",
            "There is no sparklog root at {path}: run `sparklog topics create TOPIC --root {path}`, or {let_it}",
        ),
        (
            "log",
            (
                "topic 'new' does not exist in {path}; the root has no topics; root.ensure_topic('new') creates it; "
                "or {let_it}"
            ),
        ),
    ],
)
def test_a_write_without_auto_creation_suggests_the_command(tmp_path: Path, folder: str, expected: str) -> None:
    sparklog.open(tmp_path / "log", create=True)
    path = str(tmp_path / folder)
    let_it = "let this write create it with auto.create.topics.enable=true, the default"
    with pytest.raises(NotFound) as raised:
        plan(path, topic="new", auto_create_topics_enable="false")
    assert str(raised.value) == expected.format(path=path, let_it=let_it)


def test_a_write_creates_topics_by_the_defaults_of_the_root(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = str(tmp_path)
    root = sparklog.open(path, create=True)
    root.alter_defaults({"num.partitions": 3, "log.retention.ms": 5})
    plan(path, topic="a")
    plan(path, topic="b", num_partitions="2")
    assert [len(root.topic(name).bounds()) for name in "ab"] == [3, 2]
    caplog.clear()
    plan(path, topic="a", **{"topic.retention.ms": "5"})
    assert not caplog.messages, "the topic has that value from its root"
    root.alter_defaults({"auto.create.topics.enable": False})
    with pytest.raises(NotFound, match=r"'c' does not exist.*auto\.create\.topics\.enable is false"):
        plan(path, topic="c")


def test_the_source_checks_options_when_it_is_made() -> None:
    with pytest.raises(Exception, match="Unknown option 'startingoffset'"):
        SparklogDataSource({"startingoffset": "x"})
    assert SparklogDataSource({}).name() == "sparklog"


def test_requests_of_a_micro_batch_and_of_an_idle_poll(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from sparklog.datasource import spark_workers
    from sparklog.datasource.stream_plan import Clock, StreamPlanner
    from sparklog.datasource.subscription import Subscriber
    from sparklog.log.topic.root import Root, RootView
    from sparklog.opening import TOPIC, Location
    from sparklog.testing.wrapper_stores import CountingStore

    path = str(tmp_path / "log")
    opened = sparklog.open(path, create=True)
    opened.create_topic("t", partitions=16)
    store = CountingStore(opened.store)
    root = Root(store, opened.id)
    monkeypatch.setitem(spark_workers._roots, path, root)

    def micro_batch(number: int) -> None:
        sink = plan_without_pickling(path)
        messages = [write_task(sink, [rows(range(500))], "stream") for _ in range(2)]
        publish(sink, messages, WriterKey("query", number, "run"))

    def requests(verb: str) -> int:
        return sum(count for name, count in store.counts.items() if name.startswith(verb))

    for number in range(3):
        store.counts.clear()
        micro_batch(number)
    assert requests("list") == 0
    assert requests("create") == 1
    assert requests("writer") == 0
    # The driver reads the root id when it plans, when it commits, and before the create. It reads the next commit's
    # number when it plans, and the previous commit after the create. No task makes a request.
    assert requests("get") == 5

    location = Location(TOPIC, f"{path}/t", path, "t")
    view = RootView(root)
    planner = StreamPlanner(
        view, Subscriber(view, location, None), parse_options({}).read, Clock(lambda: 0.0, lambda seconds: None)
    )
    end = planner.latest(planner.initial(), limited=True)
    for _ in range(3):
        store.counts.clear()
        assert planner.latest(end, limited=True) is end
        assert sum(store.counts.values()) == 1


def plan_without_pickling(path: str) -> SinkPlan:
    from pyspark.sql.types import StringType, StructField

    schema = StructType([StructField(name, StringType()) for name in ("key", "value")])
    return plan_write(resolve(path), parse_options({"path": path, "topic": "t"}), schema)


def test_a_zip_of_the_path_is_not_read_again_at_each_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Up to Spark 4.1, each call starts with `importlib.invalidate_caches()`, which reads a zip for each finder."""
    import importlib
    import zipimport
    from zipfile import ZipFile

    for name in ("spark", "files"):
        with ZipFile(tmp_path / f"{name}.zip", "w") as archive:
            for module in ("__init__", "first", "second"):
                archive.writestr(f"{name}_package/{module}.py", "")
        monkeypatch.syspath_prepend(tmp_path / f"{name}.zip")
    monkeypatch.setenv("PYTHONPATH", f"/elsewhere{os.pathsep}{tmp_path / 'spark.zip'}")

    def finders(name: str) -> set[str]:
        return {path for path in sys.path_importer_cache if path.startswith(str(tmp_path / f"{name}.zip"))}

    @user_errors()
    def call(module: str) -> None:
        for name in ("spark", "files"):
            importlib.import_module(f"{name}_package.{module}")
        assert finders("spark")

    read: list[str] = []
    directory = zipimport._read_directory  # type: ignore[attr-defined]
    monkeypatch.setattr(zipimport, "_read_directory", lambda archive: read.append(archive) or directory(archive))
    for module in ("first", "second"):
        call(module)
        assert not finders("spark")
        assert finders("files"), "a file that is added to a session may be another one later"
        importlib.invalidate_caches()
    assert read.count(str(tmp_path / "spark.zip")) == 1


TASKS = """
import gc, sys
from pyspark.sql.types import BinaryType, LongType, StructField, StructType
from sparklog.datasource.data_source import SparklogDataSource
from sparklog.format.kernels.kernel_choice import choice

reader = SparklogDataSource({"path": sys.argv[1], "subscribe": "t", "minPartitions": "2"})
columns = [StructField("value", BinaryType()), StructField("offset", LongType())]
batch = reader.reader(StructType(columns))
for partition in batch.partitions():
    for _ in batch.read(partition):
        pass
    gc.collect()
    print(choice.loaded, len(gc.get_objects()))
"""


def test_few_objects_are_visited_after_a_task_that_loaded_kernels(tmp_path: Path) -> None:
    """Spark's worker daemon collects garbage after each task, and the imported packages have 200,000 objects."""
    topic = sparklog.open(tmp_path, create=True).create_topic("t", partitions=2)
    topic.append(pa.table({"value": [b"v"] * 60_010, "partition": pa.array([0] * 10 + [1] * 60_000, pa.int32())}))
    done = subprocess.run([sys.executable, "-c", TASKS, tmp_path], capture_output=True, text=True, check=True)
    small, large = (tuple(map(int, line.split())) for line in done.stdout.splitlines())
    assert small[0] == 0
    assert large[0] > 0
    assert max(small[1], large[1]) < 5_000


@pytest.mark.parametrize("error", [False, True], ids=["", "error"])
@pytest.mark.parametrize("meanwhile", [False, True], ids=["before", "meanwhile"])
def test_sigterm_is_deferred_until_the_block_ends(meanwhile: bool, error: bool) -> None:
    """Spark closes the socket of a query's process, and then sends a signal. The process leaves the group in both
    cases.
    """
    end = "os.kill(os.getpid(), signal.SIGTERM)"
    program = f"""
import os, signal
from sparklog.datasource.spark_workers import deferred_sigterm, exit_on_sigterm
exit_on_sigterm()
try:
    {"pass" if meanwhile else end}
finally:
    with deferred_sigterm():
        {end if meanwhile else "pass"}
        print("left", flush=True)
        {"raise OSError" if error else ""}
    print("Spark's clean-up", flush=True)
"""
    of_spark = {**os.environ, "PYTHON_WORKER_FACTORY_PORT": "1"}
    answer = subprocess.run([sys.executable, "-c", program], env=of_spark, capture_output=True, text=True, check=False)
    assert (answer.returncode, answer.stdout, answer.stderr) == (-signal.SIGTERM, "left\n", "")
