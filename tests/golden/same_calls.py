"""Calls on a clock moved by hand, with seeded ids, in memory: what they write must stay the same, byte by byte.

    python -m tests.golden.same_calls <tree>                                  # run the calls, write all that they wrote
    python -m tests.fixture_archive <tree> tests/golden/same_calls.tar.xz     # make it the expectation

The archive was made when new topics got the feature `carriedCommits`. It is made anew only where bytes on disk are to
change, in a commit that says so. The calls go through what users and jobs call: a refactoring renames an import here,
and nothing else.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from unittest import mock

import pyarrow as pa

from sparklog.cli.commands.storage import delete_records
from sparklog.compaction.run import CompactOptions, compact_root
from sparklog.errors import Conflict, Fenced, SparklogError
from sparklog.groups.group_state import OffsetAndMetadata
from sparklog.groups.lag import Groups
from sparklog.groups.reset import Scenario, To, plan_reset, with_offsets
from sparklog.kafka.importing.run import ImportOptions, import_log_dir
from sparklog.log.journal.clocks import Env
from sparklog.log.state.topic_state import TopicState
from sparklog.log.state.writer_runs import WriterKey
from sparklog.log.topic.cloning import clone_topic
from sparklog.log.topic.root import Root, open_root
from sparklog.log.write.append_target import WriteOptions
from sparklog.maintenance.work_items import Settings, Work, WorkResult
from sparklog.retention.retain import retain_root
from sparklog.storage.memory import MemoryStore
from sparklog.tools.backup.backing_up import back_up
from sparklog.tools.backup.repository import prune
from sparklog.tools.backup.restore_point import RestorePoint
from sparklog.tools.backup.restoring import restore
from sparklog.transactions.producer import transactional
from tests.fixture_data import fixture_tree
from tests.golden.recording import Recording, RecordingStore, write_tree

START_MS = 1_704_200_000_000
MINUTE_MS, HOUR_MS, DAY_MS = 60_000, 3_600_000, 86_400_000
PLAIN = WriteOptions(codec="none", batch_bytes=600)
COMMITS = 130
"""More than lie between two checkpoints."""


class SeededRunner:
    """Runs work in this thread, with the ids and hash keys of an environment that is given."""

    def __init__(self, env: Env) -> None:
        self.env = env

    def run(self, works: Sequence[Work]) -> Iterator[tuple[Work, WorkResult | SparklogError]]:
        for work in works:
            seeded = replace(work, env=self.env) if hasattr(work, "env") else work
            try:
                yield work, seeded.run()
            except SparklogError as error:
                yield work, error


class Calls:
    """All calls, in stages; `recording` has what they wrote. `root` is the process that does most of them."""

    def __init__(self, log_dir: Path) -> None:
        self.log_dir = log_dir
        self.now_ms = START_MS
        self.processes = 0
        self.recording = Recording()
        self.store = self.new_store("root")
        self.backups = self.new_store("backups")

    def run(self) -> Recording:
        stages = (
            self.create, self.append, self.write_idempotently, self.write_transactions, self.commit_offsets,
            self.reset_offsets, self.append_often, self.change_configs, self.merge, self.compact, self.compact_again,
            self.delete_old_records, self.clone, self.back_up, self.retain, self.import_kafka, self.continue_imported,
            self.expire, self.back_up_again, self.restore, self.restore_older, self.vacuum,
        )  # fmt: skip
        for number, stage in enumerate(stages, 1):
            self.recording.stage = f"{number:02d}-{stage.__name__.replace('_', '-')}"
            stage()
            self.now_ms += MINUTE_MS
        return self.recording

    # -- the world of the calls

    def new_store(self, name: str) -> MemoryStore:
        return RecordingStore(lambda: self.now_ms, name, self.recording)

    def env(self) -> Env:
        self.processes += 1
        return Env(lambda: self.now_ms, lambda: self.now_ms, self.sleep, random.Random(self.processes))

    def sleep(self, seconds: float) -> None:
        self.now_ms += 1 + int(seconds * 1000)

    def process(self) -> Root:
        """The root as one more process opens it."""
        return open_root(self.store, env=self.env())

    def settings(self) -> Settings:
        return Settings(now_ms=self.now_ms)

    def rows(self, n: int, first: int = 0, *, keys: int = 0, every_ms: int = 1000, **columns: object) -> pa.Table:
        """`n` rows: values by number, `keys` different keys (0: none), timestamps from now on."""
        numbers = range(first, first + n)
        table: dict[str, object] = {"value": [f"value {number}".encode() for number in numbers]}
        if keys:
            table["key"] = [f"key-{number % keys}".encode() for number in numbers]
        table["timestamp"] = [self.now_ms + every_ms * at for at in range(n)]
        return pa.table({**table, **columns})

    # -- stages

    def create(self) -> None:
        self.root = open_root(self.store, create=True, env=self.env())
        self.root.create_topic("events", partitions=3)
        self.root.create_topic("orders", partitions=2, configs={"segment.bytes": 700, "index.interval.bytes": 200})
        self.root.create_topic("payments", configs={"message.timestamp.type": "LogAppendTime"})
        compacted = {"cleanup.policy": "compact", "segment.bytes": 900, "min.cleanable.dirty.ratio": 0.01}
        self.root.create_topic("state", configs={**compacted, "delete.retention.ms": HOUR_MS})
        self.root.create_topic("short", configs={"retention.ms": HOUR_MS, "segment.bytes": 500})
        self.root.create_topic("bounded", configs={"retention.bytes": 900, "segment.bytes": 300})
        self.root.create_topic("gone", configs={"compression.type": "uncompressed"})
        self.root.ensure_topic("events", partitions=9)

    def append(self) -> None:
        events = self.root.topic("events")
        events.append(self.rows(5), options=PLAIN)
        events.append(self.rows(9, 5, keys=4), options=WriteOptions(codec="lz4"))
        header = [[("trace", b"1"), ("empty", None)], [], None]
        kind = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
        headers = pa.array(
            [None if each is None else [{"key": k, "value": v} for k, v in each] for each in header], kind
        )
        partition = pa.array([2, 0, 2], pa.int32())
        events.append(self.rows(3, 14, headers=headers, partition=partition), options=PLAIN)
        nulls = pa.table({"key": pa.array([b"a", None], pa.binary()), "value": pa.array([None, b""], pa.binary())})
        events.append(nulls, options=PLAIN)
        for first in range(0, 60, 12):
            small = WriteOptions(codec="none", batch_bytes=200, buffer_bytes=400, file_bytes=900)
            self.root.topic("orders").append(self.rows(12, first, keys=7), options=small)
            self.root.topic("state").append(self.rows(12, first, keys=5), options=PLAIN)
            self.root.topic("short").append(self.rows(10, first), options=PLAIN)
            self.root.topic("bounded").append(self.rows(10, first), options=PLAIN)
            self.root.topic("gone").append(self.rows(2, first), options=PLAIN)
            self.now_ms += 1000
        self.root.topic("payments").append(self.rows(4), options=PLAIN)
        values = pa.array([None, None], pa.binary())
        self.root.topic("state").append(pa.table({"key": [b"key-1", b"key-9"], "value": values}), options=PLAIN)

    def write_idempotently(self) -> None:
        events = self.root.topic("events")
        for batch, run in ((0, "run-a"), (1, "run-a"), (1, "run-a"), (1, "run-b"), (2, "run-b")):
            events.append(self.rows(3, 10 * batch, keys=2), options=PLAIN, writer=WriterKey("query", batch, run))
            self.now_ms += 1000
        for batch in (4, 7, 7, 5):
            events.append(self.rows(2, batch), options=PLAIN, writer=WriterKey("job", batch, mode="txn"))
        try:
            events.append(self.rows(3), options=PLAIN, writer=WriterKey("query", 3, "run-a"))
        except Fenced:
            return
        raise AssertionError("a run that was superseded is let in")

    def write_transactions(self) -> None:
        producer = transactional(self.root, "billing", instance="first")
        with producer.begin() as transaction:
            transaction.append("orders", self.rows(4, 100, keys=3), options=PLAIN)
            transaction.append("payments", self.rows(2, 100), options=PLAIN)
            transaction.send_offsets("billing", {"events": {0: 3, 2: OffsetAndMetadata(1, "by hand", 0)}})
        with producer.begin() as transaction:
            transaction.append("payments", self.rows(3, 200), options=PLAIN)
        transaction = producer.begin()
        transaction.append("orders", self.rows(4, 300, keys=3), options=PLAIN)
        transaction.prepare()
        transaction.abort()
        open_one = transactional(self.root, "forgotten", timeout_ms=2 * HOUR_MS).begin()
        open_one.append("payments", self.rows(1, 400), options=PLAIN)
        open_one.send_offsets("late", {"events": {1: 1}})
        open_one.prepare()
        shared = transactional(self.root, "shared").begin()
        part = transactional(self.process(), "shared").join(shared.n, "part-1")
        part.append("orders", self.rows(2, 500, keys=2), options=PLAIN)
        part.prepare()
        shared.append("orders", self.rows(2, 510, keys=2), options=PLAIN)
        shared.commit()
        left = producer.begin()
        left.append("orders", self.rows(1, 600, keys=1), options=PLAIN)
        left.prepare()
        with transactional(self.process(), "billing", instance="second").begin() as transaction:
            transaction.append("orders", self.rows(1, 700, keys=1), options=PLAIN)

    def commit_offsets(self) -> None:
        group = Groups(self.root).group("readers")
        member = group.join("one")
        member.commit({"events": {0: 1, 1: 2}, "orders": {0: OffsetAndMetadata(5, "note", 2)}})
        member.heartbeat()
        member.leave()
        newer = Groups(self.process()).group("readers").join("two", session_timeout_ms=10_000)
        for offset in range(COMMITS):
            newer.commit({"state": {0: offset // 3}})
        for name in ("short-lived", "to-delete"):
            Groups(self.root).group(name).alter({"events": {0: 2}})
        Groups(self.root).group("to-delete").delete()

    def reset_offsets(self) -> None:
        self.now_ms += HOUR_MS
        group = Groups(self.root).group("readers")
        for scenario in (Scenario(To.EARLIEST), Scenario(To.SHIFT, 2), Scenario(To.DATETIME, START_MS + 3000)):
            group.alter(with_offsets(plan_reset(group, scenario, {"events": [0, 1]}, now_ms=self.now_ms)))
        group.delete_offsets({"orders": [0]})

    def append_often(self) -> None:
        payments, producer = self.root.topic("payments"), transactional(self.root, "often")
        for number in range(COMMITS // 2):
            payments.append(self.rows(1, number), options=PLAIN)
            with producer.begin() as transaction:
                transaction.append("payments", self.rows(1, number), options=PLAIN)
            self.now_ms += 500

    def change_configs(self) -> None:
        self.root.topic("events").alter(configs={"retention.ms": -1, "segment.ms": 2 * HOUR_MS})
        self.root.topic("events").alter(configs={"segment.ms": None}, partitions=4)
        self.root.topic("gone").alter(configs={"file.delete.delay.ms": 1000}, force=True)
        self.root.topic("events").append(self.rows(8, keys=8), options=PLAIN)

    def merge(self) -> None:
        events = self.root.topic("events")
        for first in range(0, 48, 6):
            events.append(self.rows(3, first, keys=2), options=PLAIN)
            events.append(self.rows(3, first + 3, keys=2), options=PLAIN)
            self.settled(
                compact_root(self.root, self.settings(), SeededRunner(self.env()), CompactOptions(topics=["events"]))
            )

    def compact(self) -> None:
        self.settled(compact_root(self.root, self.settings(), SeededRunner(self.env()), CompactOptions(roll=True)))

    def compact_again(self) -> None:
        for first in range(0, 24, 6):
            self.root.topic("state").append(self.rows(6, first, keys=3), options=PLAIN)
            self.root.topic("orders").append(self.rows(6, first, keys=3), options=PLAIN)
        self.now_ms += 2 * DAY_MS
        again = self.process()
        self.settled(compact_root(again, self.settings(), SeededRunner(self.env()), CompactOptions(roll=True)))
        again.topic("state").append(self.rows(3, keys=3), options=PLAIN)
        self.now_ms += 2 * DAY_MS
        self.settled(compact_root(again, self.settings(), SeededRunner(self.env())))

    def delete_old_records(self) -> None:
        delete_records(self.root, {("events", 0): 2, ("events", 2): -1, ("orders", 1): 4})

    def clone(self) -> None:
        clone_topic(self.root, "orders", "orders-clone")
        clone_topic(self.root, "events", "events-then", version=4)
        self.root.topic("orders-clone").append(self.rows(3, keys=3), options=PLAIN)
        self.root.delete_topic("gone")
        self.root.create_topic("gone", partitions=2).append(self.rows(2), options=PLAIN)

    def back_up(self) -> None:
        back_up(self.root, self.backups, at_once=1)

    def retain(self) -> None:
        self.settled(retain_root(self.root, self.settings(), runner=SeededRunner(self.env())))

    def import_kafka(self) -> None:
        import_log_dir(self.root, self.log_dir, ImportOptions(configs={"retention.ms": -1}))

    def continue_imported(self) -> None:
        imported = self.root.topic("txn-a")
        imported.end_kafka_transactions(commit=True)
        imported.append(self.rows(4, keys=2), options=PLAIN)
        self.root.topic("txn-b").append(self.rows(2), options=PLAIN)
        self.root.topic("txn-b").alter(configs={"cleanup.policy": "compact"}, force=True)
        self.now_ms += DAY_MS
        self.settled(compact_root(self.root, self.settings(), SeededRunner(self.env()), CompactOptions(roll=True)))
        try:
            import_log_dir(self.root, self.log_dir, ImportOptions(topics=["txn-a"]))
        except Conflict:
            return
        raise AssertionError("an import goes on with a topic that was written to")

    def expire(self) -> None:
        self.now_ms += 10 * DAY_MS
        self.root.topic("short").append(self.rows(2), options=PLAIN)
        self.settled(retain_root(self.process(), self.settings(), runner=SeededRunner(self.env())))

    def back_up_again(self) -> None:
        back_up(self.process(), self.backups, at_once=1)

    def restore(self) -> None:
        target = self.new_store("restored")
        restore(self.backups, target, rename={"state": "state-restored"}, at_once=1, env=self.env())
        restored = open_root(target, env=self.env())
        restored.topic("orders").append(self.rows(2, keys=2), options=PLAIN)
        Groups(restored).group("readers").alter({"events": {0: 3}})

    def restore_older(self) -> None:
        wanted = RestorePoint(topics=("orders", "events"), number=1)
        restore(self.backups, self.new_store("restored-older"), wanted, at_once=1, env=self.env())
        at = RestorePoint(time_ms=self.now_ms - DAY_MS)
        restore(self.store, self.new_store("restored-then"), at, at_once=1, env=self.env())
        prune(self.backups, keep=1, env=self.env())

    def vacuum(self) -> None:
        self.root.delete_topic("orders-clone")
        self.now_ms += 100 * DAY_MS
        self.settled(retain_root(self.process(), self.settings(), runner=SeededRunner(self.env())))

    @staticmethod
    def settled(reports: list[object]) -> None:
        failures = [failure for report in reports for failure in report.failures]  # type: ignore[attr-defined]
        assert not failures, failures


def run_calls() -> dict[str, bytes]:
    """All that the calls write, by name. No documents are carried: another zstandard compresses them to other bytes."""
    with mock.patch.object(TopicState, "carried_commits", 0):
        return Calls(fixture_tree() / "transactions" / "data").run().files()


if __name__ == "__main__":
    write_tree(run_calls(), Path(sys.argv[1]))
