"""Tables and followed tables, compared with a dictionary for random histories.

A history appends records, deletes keys, commits and aborts transactions, leaves some open, compacts, expires, vacuums,
advances log starts and adds partitions, in any order. After each step, the table must equal a model of all written
records, as of now and as of offsets and times. A table that has followed the topic from the start must equal it as
well.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from unittest import mock

import pyarrow as pa
import pytest

import sparklog
from sparklog.errors import NotFound
from sparklog.format.kernels import kernel_choice
from sparklog.format.kernels.kernel_choice import Choice
from sparklog.log.read import followed_table, latest_by_key, table_plan
from sparklog.log.read.followed_table import FollowedTable
from sparklog.log.read.table_plan import AsOf
from sparklog.log.state.view import READ_UNCOMMITTED
from sparklog.log.topic.root import RootView
from sparklog.testing.world import DAY_MS, HOUR_MS
from sparklog.transactions.producer import Transaction
from tests.support.kernel_ways import UNLIMITED
from tests.support.seeds import TABLES
from tests.support.topics_world import TopicsWorld

CONFIGS = {
    "cleanup.policy": "compact,delete",
    "min.cleanable.dirty.ratio": 0,
    "delete.retention.ms": 0,
    "retention.ms": 10 * DAY_MS,
    "segment.bytes": 400,
    "segment.ms": HOUR_MS,
}
Table = dict[tuple[int, bytes], tuple[int, bytes]]
"""(partition, key) -> (offset, value)."""


@dataclass(frozen=True)
class Written:
    offset: int
    time: int
    key: bytes
    value: bytes | None
    txn: str


@dataclass
class History:
    """One topic, all records that were ever written to it, and whether each transaction was committed."""

    rng: random.Random
    world: TopicsWorld = field(default_factory=lambda: TopicsWorld(partitions=2))
    written: dict[int, list[Written]] = field(default_factory=dict)
    open: list[tuple[str, Transaction]] = field(default_factory=list)
    committed: dict[str, bool] = field(default_factory=lambda: {"": True})
    count: int = 0

    def __post_init__(self) -> None:
        self.topic = self.world.topic("a")
        self.topic.alter(configs=CONFIGS)

    def rows(self, txn: str) -> pa.Table:
        keys, values = [], []
        for _ in range(self.rng.choice((1, 2, 5, 12))):
            self.count += 1
            keys.append(b"k%d" % self.rng.randrange(14))
            # The value contains the id of its transaction.
            values.append(None if not txn and self.rng.random() < 0.25 else b"%d/%s" % (self.count, txn.encode()))
        columns = {"key": pa.array(keys, pa.binary()), "value": pa.array(values, pa.binary())}
        times = [self.world.now_ms] * len(keys)
        return pa.table({**columns, "timestamp": pa.array(times, pa.timestamp("ms", tz="UTC"))})

    def look(self) -> None:
        """Record the new records before they can be removed."""
        bounds = RootView(self.topic.root).bounds("a")
        for partition, each in bounds.items():
            known = self.written.setdefault(partition, [])
            start = max(known[-1].offset + 1 if known else 0, each.log_start)
            scan = self.topic.scan(partitions=[partition], start={partition: start}, isolation_level=READ_UNCOMMITTED)
            for row in scan.to_table().to_pylist():
                txn = "" if row["value"] is None else row["value"].decode().partition("/")[2]
                time = int(row["timestamp"].timestamp() * 1000)
                known.append(Written(row["offset"], time, row["key"], row["value"], txn))

    def step(self) -> str:
        kinds = ("append", "append", "append", "begin", "begin", "end", "compact", "compact", "retain", "cut", "grow")
        kind = self.rng.choice(kinds)
        self.world.now_ms += self.rng.choice((1, 1000, HOUR_MS, HOUR_MS, 4 * DAY_MS))
        getattr(self, f"do_{kind}")()
        self.look()
        return kind

    def do_append(self) -> None:
        self.topic.append(self.rows(""))

    def do_begin(self) -> None:
        name = f"txn{self.count}"
        transaction = self.world.producer(name).begin()
        self.committed[name] = False
        transaction.append("a", self.rows(name))
        transaction._prepare_topics()
        self.open.append((name, transaction))

    def do_end(self) -> None:
        if self.open:
            name, transaction = self.open.pop(self.rng.randrange(len(self.open)))
            if self.rng.random() < 0.5:
                try:
                    transaction.commit()
                    self.committed[name] = True
                except sparklog.SparklogError:
                    pass  # The transaction was aborted after its timeout.
            else:
                transaction.abort()

    def do_compact(self) -> None:
        reports = sparklog.compact(self.topic.root, topics=["a"], roll=True, now_ms=self.world.now_ms)
        assert not any(report.failures for report in reports)

    def do_retain(self) -> None:
        reports = sparklog.retain(self.topic.root, topics=["a"], now_ms=self.world.now_ms)
        assert not any(report.failed for report in reports)

    def do_cut(self) -> None:
        partition, bounds = self.rng.choice(list(RootView(self.topic.root).bounds("a").items()))
        if self.rng.random() < 0.4:
            self.topic.delete_records({partition: self.rng.randint(bounds.log_start, bounds.last_stable)})

    def do_grow(self) -> None:
        partitions = self.topic.log.state().partitions
        if partitions < 4 and self.rng.random() < 0.5:
            self.topic.alter(partitions=partitions + 1)

    def model(self, ends: dict[int, int]) -> Table:
        """Return the latest committed record of each key below these ends, without tombstones."""
        table: Table = {}
        for partition, bounds in RootView(self.topic.root).bounds("a").items():
            for each in self.written.get(partition, ()):
                if bounds.log_start <= each.offset < ends.get(partition, bounds.last_stable):
                    if not self.committed[each.txn]:
                        continue
                    table.pop((partition, each.key), None)
                    if each.value is not None:
                        table[partition, each.key] = each.offset, each.value
        return table


def as_dict(table: pa.Table) -> Table:
    rows = table.to_pylist()
    found = {(row["partition"], row["key"]): (row["offset"], row["value"]) for row in rows}
    assert len(found) == len(rows)
    return found


def check_now(history: History, live: FollowedTable) -> None:
    expected = history.model({})
    threads = history.rng.choice((1, 1, 1, 2))
    assert as_dict(history.topic.table(threads=threads).to_table()) == expected
    if history.rng.random() < 0.6:
        live.refresh()
        assert as_dict(live.to_table()) == expected
        keys = {key for _, key in expected}
        assert (set(live), len(live)) == (keys, len(keys))
        for key in keys:
            assert live[key]["value"][0].as_py() in {value for (_, k), (_, value) in expected.items() if k == key}


def check_then(history: History) -> int:
    """Compare the table as of earlier offsets. Return 1 if it is rejected, because records were removed."""
    rng, topic = history.rng, history.topic
    view = RootView(topic.root)
    bounds = view.bounds("a")
    cleaned = view.first_dirty_offsets("a")
    as_of: AsOf
    if rng.random() < 0.5:
        as_of = {p: rng.randint(each.log_start, each.last_stable) for p, each in bounds.items()}
        gone = any(bounds[p].log_start < end < cleaned[p] for p, end in as_of.items())
        ends = dict(as_of)
    else:
        as_of = rng.randint(history.world.now_ms - 12 * DAY_MS, history.world.now_ms + 10)
        answers = topic.offset_for_timestamp(as_of)
        ends = {p: each.last_stable if (hit := answers[p]) is None else hit.offset for p, each in bounds.items()}
        cut = any(hit is not None and 0 < bounds[p].log_start >= hit.offset for p, hit in answers.items())
        gone = cut or any(bounds[p].log_start < end < cleaned[p] for p, end in ends.items())
    try:
        table = topic.table(as_of=as_of).to_table()
    except NotFound:
        assert gone
        return 1
    assert not gone
    assert as_dict(table) == history.model(ends)
    return 0


def run(seed: int) -> int:
    rng = random.Random(seed)
    history = History(rng)
    choice = Choice(rng.choice((-1, UNLIMITED, 20)))
    small = rng.random() < 0.7
    with (
        mock.patch.object(kernel_choice, "choice", choice),
        mock.patch.object(table_plan, "CHUNK_RECORDS", 3 if small else 250_000),
        mock.patch.object(latest_by_key, "MAX_CHUNK_BYTES", rng.choice((1, 300, 1 << 28))),
        mock.patch.object(latest_by_key, "FIRST_SLOTS", rng.choice((2, 8, 1 << 14))),
        mock.patch.object(followed_table, "SPARE_ROWS", rng.choice((0, 10, 10_000))),
    ):
        live = history.topic.table().follow()
        refused = 0
        for _ in range(rng.randint(10, 40)):
            history.step()
            check_now(history, live)
            refused += check_then(history)
    return refused


@pytest.mark.parametrize("seeds", TABLES.few())
def test_a_followed_table_is_a_mapping(seeds: range) -> None:
    assert sum(map(run, seeds)) > 0


@pytest.mark.slow
@pytest.mark.parametrize("seeds", TABLES.many())
def test_tables_of_random_histories_match_the_model(seeds: range) -> None:
    assert sum(map(run, seeds)) > 0
