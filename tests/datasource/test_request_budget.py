"""The requests of a streaming query that writes several topics in a transaction, and of a query with a consumer group.

Each of Spark's processes has its own caches: the process that plans, two processes that run tasks, and the process that
commits.
"""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pytest

import sparklog
from sparklog.datasource import spark_workers
from sparklog.datasource.options import parse_options
from sparklog.doctor.costs import Requests, micro_batch
from sparklog.errors import Conflict
from sparklog.log.topic.root import Root
from sparklog.opening import resolve
from sparklog.testing.wrapper_stores import CountingStore
from tests.datasource.test_groups import Query, offsets
from tests.support.records import rows
from tests.support.topics_world import TopicsWorld

pytest.importorskip("pyspark")

from pyspark.sql.types import StringType, StructField, StructType

from sparklog.datasource.writer import plan_commit, plan_write, publish, write_task
from sparklog.log.state.writer_runs import WriterKey

TOPICS = ("t0", "t1", "t2")


def requests(store: CountingStore) -> dict[str, int]:
    """Return the calls by verb and kind of object: the root, transactions, groups, commits or data of topics."""
    found: Counter[str] = Counter()
    for verb, key in store.keys:
        place = key.partition("/")[0] if key.startswith("_") else "commit" if "/_log/" in key else "data"
        found[f"{verb} {place}"] += 1
    return dict(found)


class Processes:
    """Spark's processes, which run one after the other in this process. `in_(name)` uses the handles of the process
    `name`.
    """

    def __init__(self, path: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self.path = path
        self.stores: dict[str, CountingStore] = {}
        self._roots: dict[str, dict[str, Root]] = {}
        self._monkeypatch = monkeypatch

    def in_(self, name: str) -> None:
        if name not in self.stores:
            opened = sparklog.open(self.path)
            self.stores[name] = CountingStore(opened.store)
            self._roots[name] = {self.path: Root(self.stores[name], opened.id)}
        self._monkeypatch.setattr(spark_workers, "_roots", self._roots[name])

    def micro_batch(self, number: int, topic: str | None = None) -> None:
        """Write to three topics, which the column `topic` sets, or to one topic."""
        columns = ("key", "value", "topic") if topic is None else ("key", "value")
        schema = StructType([StructField(name, StringType()) for name in columns])
        options = parse_options({"path": self.path} | ({} if topic is None else {"topic": topic}))
        self.in_("plan")
        sink = plan_write(resolve(self.path), options, schema)
        messages = []
        for task in ("task 0", "task 1"):
            self.in_(task)
            texts = [str(value) for value in range(30)]
            given = {"key": texts, "value": texts, "topic": [TOPICS[value % 3] for value in range(30)]}
            given = {name: given[name] for name in columns}
            messages.append(write_task(sink, [pa.RecordBatch.from_pydict(given)], "stream"))
        self.in_("commit")
        publish(plan_commit(resolve(self.path), options), messages, WriterKey("query", number, "run"))


def test_a_micro_batch_that_writes_three_topics_as_a_transaction(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(tmp_path / "log")
    opened = sparklog.open(path, create=True)
    for name in TOPICS:
        opened.create_topic(name, partitions=2)
    processes = Processes(path, monkeypatch)
    for number in range(4):
        for store in processes.stores.values():
            store.reset()
        processes.micro_batch(number)
    found = {name: requests(store) for name, store in processes.stores.items()}
    # A task reads the root id once, and for each topic the new commits and the following missing commit. Its records
    # are stored in the prepares.
    task = {"get _root.json": 1, "get commit": 6}
    # The commit checks that the root is the root of the tasks and that there is no later run, and writes the prepares
    # and the decision. Each create checks that the root is the root that was opened, and that the previous entry still
    # exists.
    commit = {"get _root.json": 1 + 4, "get _transactions": 1 + 1, "create _transactions": 1}
    commit |= {"create commit": 3, "get commit": 3}
    assert found == {"plan": {"get _root.json": 1}, "task 0": task, "task 1": task, "commit": commit}


@pytest.mark.parametrize("inline", [True, False])
def test_a_micro_batch_of_one_topic(inline: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = str(tmp_path / "log")
    configs = {} if inline else {"inline.records.bytes": 0}
    sparklog.open(path, create=True).create_topic("t0", partitions=16, configs=configs)
    processes = Processes(path, monkeypatch)
    for number in range(3):
        for store in processes.stores.values():
            store.reset()
        processes.micro_batch(number, topic="t0")
    made: Counter[str] = Counter()
    for store in processes.stores.values():
        made.update(store.counts)
    # The plan reads the root id, the latest commit, and the following missing commit. A task that writes a file reads
    # the root id and writes its file. The commit reads the root id twice, and the previous commit.
    files = 0 if inline else 2
    assert (made["get"], made["writer"], made["create"]) == (3 + files + 3, files, 1)
    assert micro_batch(files) == Requests(puts=made["writer"] + made["create"], gets=made["get"])


def test_a_micro_batch_that_reads_three_topics_as_a_group() -> None:
    world = TopicsWorld(partitions=2)
    counting = CountingStore(world.store)
    query = Query(world, world.root(counting), subscribe="a,b,c")
    query.batch()
    for _ in range(3):
        for topic in "abc":
            world.topic(topic).append(rows("x", partition=0))
        counting.reset()
        query.batch()
    # The new commits of each topic and the following missing commit are read. The progress of the group costs one
    # entry, a read of the root id, and a read of the previous entry.
    progress = {"create _groups": 1, "get _root.json": 1, "get _groups": 1}
    assert requests(counting) == {"get commit": 6} | progress
    assert offsets(world) == {(topic, 0): 2 for topic in "abc"} | {(topic, 1): 0 for topic in "abc"}
    counting.reset()
    query.batch()
    query.batch()
    # The call that finds no new records commits the last batch. After that, each call reads each topic once.
    assert requests(counting) == {"get commit": 6} | progress


def test_a_root_recreated_between_the_tasks_and_the_commit_is_an_error(tmp_path: Path) -> None:
    path = str(tmp_path / "log")
    sparklog.open(path, create=True).create_topic("t0")
    options = parse_options({"path": path, "topic": "t0"})
    schema = StructType([StructField("value", StringType())])
    sink = plan_write(resolve(path), options, schema)
    message = write_task(sink, [pa.RecordBatch.from_pydict({"value": ["x"]})], "stream")
    shutil.rmtree(path)
    sparklog.open(path, create=True).create_topic("t0")
    with pytest.raises(Conflict, match=r"changed from .* during this write: repeat the write"):
        publish(plan_commit(resolve(path), options), [message], WriterKey("query", 0, "run"))
