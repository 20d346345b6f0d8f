"""Roles that read: members of groups, copiers, and readers that check the root during the test."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import sparklog
from sparklog.errors import SparklogError
from sparklog.log.read.read_plan import read_parts
from sparklog.log.state.view import READ_COMMITTED, OffsetRange
from sparklog.log.topic.root import RootView
from tests.torture.process import LedgerTail, Process, Step
from tests.torture.writers import LATEST, PLAIN, SEQUENCED, SERVED, TRANSACTED, identity

if TYPE_CHECKING:
    import pyarrow as pa

COPIES, COPIERS, SHARERS, KAFKA_READERS = "copies", "copiers", "sharers", "kafka-readers"
SESSION_MS = 8_000


# -- groups


def ranges_of(batches: Iterable[pa.RecordBatch]) -> list[tuple[int, int, int]]:
    """Return partition, first and next offset of each range of records without a gap."""
    ranges: list[tuple[int, int, int]] = []
    for batch in batches:
        for partition, offset in zip(*(batch[name].to_pylist() for name in ("partition", "offset")), strict=True):
            if ranges and ranges[-1][0] == partition and ranges[-1][2] == offset:
                ranges[-1] = (partition, ranges[-1][1], offset + 1)
            else:
                ranges.append((partition, offset, offset + 1))
    return ranges


def sharer(process: Process) -> Step:
    """Read as a member of a group with manual commits. The first member is static."""
    consumer = sparklog.consumer(
        process.root(),
        SHARERS,
        topics=PLAIN,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        max_poll_records=process.random.choice([None, 5, 50]),
        session_timeout_ms=SESSION_MS,
        heartbeat_interval_ms=1_000,
        group_instance_id=process.name if process.name.endswith("0") else None,
    )

    def step() -> None:
        if batches := consumer.poll(timeout=0.5):
            process.log("read", ranges_of(batches))
            consumer.commit()

    return step


def copier(process: Process) -> Step:
    """Copy a topic exactly once: records and group offsets in one transaction."""
    root = process.root()
    producer = sparklog.transactional(root, process.name, timeout_ms=20_000)
    consumer = sparklog.consumer(
        root,
        COPIERS,
        topics=SEQUENCED,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        max_poll_records=process.random.choice([None, 3, 30]),
        session_timeout_ms=SESSION_MS,
        heartbeat_interval_ms=1_000,
    )

    def step() -> None:
        batches = consumer.poll(timeout=0.5)
        if not batches:
            return
        try:
            transaction = producer.begin()
            for batch in batches:
                transaction.append(COPIES, batch.select(["key", "value", "partition"]))
            transaction.send_offsets(consumer)
            if process.random.random() < 0.1:
                transaction.abort()
            else:
                transaction.commit()
                process.log("copied", sum(batch.num_rows for batch in batches))
                return
        except SparklogError:
            consumer.seek_to_committed()
            raise
        consumer.seek_to_committed()

    return step


def kafka_reader(process: Process) -> Step:
    """Read through the servers with kafka-python, as a member of a group."""
    from kafka import KafkaConsumer
    from kafka.errors import KafkaError

    consumer: Any = KafkaConsumer(
        SERVED,
        bootstrap_servers=process.world.addresses,
        group_id=KAFKA_READERS,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        session_timeout_ms=SESSION_MS,
        heartbeat_interval_ms=1_000,
        request_timeout_ms=20_000,
        metadata_max_age_ms=2_000,
        reconnect_backoff_max_ms=500,
    )

    def step() -> None:
        try:
            for place, rows in consumer.poll(500).items():
                process.log("read", [(place.partition, row.offset, row.offset + 1) for row in rows])
            consumer.commit()
        except KafkaError as error:
            raise SparklogError(f"kafka-python: {type(error).__name__}: {error}") from error

    return step


# -- checks during the test


class OrderCheck:
    """Checks the order of the offsets of a partition (without gaps if `dense`) and of the numbers of each writer."""

    def __init__(self, topic: str, *, dense: bool = True) -> None:
        self.topic, self._dense = topic, dense
        self.positions: dict[int, int] = defaultdict(int)
        self._latest: dict[tuple[int, str], int] = {}

    def add(self, partition: int, offset: int, value: bytes) -> list[str]:
        """Add the next record; return its errors."""
        place = f"{self.topic}-{partition} at offset {offset}"
        expected = self.positions[partition]
        is_wrong = offset != expected if self._dense else offset < expected
        problems = [f"offset {expected} was expected: {place}"] if is_wrong else []
        self.positions[partition] = offset + 1
        writer, number = identity(value)
        before = self._latest.get((partition, writer), -1)
        if number <= before:
            problems.append(f"{writer} wrote {number} after {before}: {place}")
        self._latest[partition, writer] = number
        return problems


def order_reader(process: Process) -> Step:
    """Follow topics from their start, with slow reads of snapshots in between."""
    root = process.root()
    # Aborted transactions use offsets.
    checks = [OrderCheck(topic, dense=topic != COPIES) for topic in (PLAIN, SEQUENCED, COPIES)]

    def step() -> None:
        for check in checks:
            topic = root.topic(check.topic)
            start = {partition: check.positions[partition] for partition in topic.bounds()}
            count = 0
            for batch in topic.scan(start=start, columns=["partition", "offset", "value"]):
                for row in zip(*(column.to_pylist() for column in batch.columns), strict=True):
                    count += 1
                    for problem in check.add(*row):
                        process.fault(problem)
                if process.random.random() < 0.1:
                    process.pause(1)
            process.log("records", count)

    return step


class TransactionCheck:
    """Checks transactions over several topics: each read must return all records of a transaction or none."""

    def __init__(self) -> None:
        self._whole: set[str] = set()

    def look(self, values: Mapping[str, Iterable[bytes]]) -> list[str]:
        """Add the new records of each topic; return their errors."""
        found: dict[str, list[tuple[str, int]]] = defaultdict(list)
        planned: dict[str, dict[str, int]] = defaultdict(dict)
        names: dict[str, set[str]] = {}
        for topic, rows in values.items():
            for value in rows:
                name, row, count, topics = value.decode().split("/")
                found[name].append((topic, int(row)))
                planned[name][topic] = int(count)
                names[name] = set(topics.split(","))
        problems = []
        for name, places in found.items():
            expected = sorted((topic, row) for topic, count in planned[name].items() for row in range(count))
            if name in self._whole or sorted(places) != expected or planned[name].keys() != names[name]:
                problems.append(f"transaction {name} of {sorted(names[name])} is torn or doubled: {sorted(places)}")
            self._whole.add(name)
        return problems


class TransactionView:
    """All transactional topics. The scan of a topic ends before an open transaction; scans of other topics continue."""

    def __init__(self, root: sparklog.Root) -> None:
        self._view = RootView(root)
        self._positions: dict[tuple[str, int], int] = {}

    def new_values(self) -> dict[str, list[bytes]]:
        """Return the values of each topic since the last call."""
        self._view.refresh(TRANSACTED)
        values = {}
        for topic in TRANSACTED:
            ranges = []
            for partition, bounds in self._view.bounds(topic).items():
                start, end = self._positions.get((topic, partition), 0), bounds.end(READ_COMMITTED)
                self._positions[topic, partition] = max(start, end)
                ranges.append(OffsetRange(topic, partition, start, max(start, end)))
            batches = read_parts(self._view.plan(ranges, READ_COMMITTED), ("value",))
            values[topic] = [value for batch in batches for value in batch["value"].to_pylist()]
        return values


def transaction_reader(process: Process) -> Step:
    """Read all transactional topics repeatedly, and check that each transaction is visible completely or not at all."""
    view, check = TransactionView(process.root()), TransactionCheck()

    def step() -> None:
        values = view.new_values()
        for problem in check.look(values):
            process.fault(problem)
        process.log("records", sum(map(len, values.values())))

    return step


class KeyStates:
    """The possible values of each key of the compacted topic by the ledgers of its writers."""

    def __init__(self) -> None:
        self.acknowledged: dict[str, int] = {}
        self.tombstones: dict[str, int] = {}

    def take(self, entries: Iterable[tuple[str, Any]]) -> None:
        for kind, content in entries:
            for key, number, is_tombstone in content[0] if kind in ("try", "ack") else ():
                if kind == "ack":
                    self.acknowledged[key] = number
                elif is_tombstone:
                    self.tombstones[key] = number

    def problems(self, acknowledged: Mapping[str, int], latest: Mapping[str, int]) -> list[str]:
        """Compare the latest values of a reader with the values that were acknowledged before the read."""
        problems = []
        for key, number in acknowledged.items():
            if key not in latest and self.tombstones.get(key, -1) < number:
                problems.append(f"key {key}: value {number} is lost")
            elif latest.get(key, number) < number:
                problems.append(f"key {key}: an older value, {latest[key]} in place of {number}")
        return problems


def latest_values(root: sparklog.Root) -> dict[str, int]:
    """Return the number of the latest value of each key."""
    rows = root.topic(LATEST).table(columns=["key", "value"]).to_table()
    pairs = zip(rows["key"].to_pylist(), rows["value"].to_pylist(), strict=True)
    return {key.decode(): identity(value)[1] for key, value in pairs if value is not None}


def key_reader(process: Process) -> Step:
    """Read the compacted topic as a table, and check that no key has a value older than those acknowledged before."""
    root, states = process.root(), KeyStates()
    tails = [LedgerTail(path) for path in process.world.folder.glob("ledgers/keyed*.jsonl")]

    def step() -> None:
        for tail in tails:
            states.take(tail.new())
        acknowledged = dict(states.acknowledged)
        latest = latest_values(root)
        for tail in tails:
            states.take(tail.new())
        for problem in states.problems(acknowledged, latest):
            process.fault(problem)
        process.log("records", len(latest))

    return step
