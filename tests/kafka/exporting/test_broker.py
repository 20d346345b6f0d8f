"""Test that a broker opens an export, and that its consumers read the exported records at both isolation levels."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from sparklog.compaction.run import CompactOptions
from sparklog.groups.group_state import CommittedOffset
from sparklog.groups.lag import Groups
from sparklog.kafka.exporting import ExportedTopic, export_topics
from sparklog.kafka.exporting.plan import OFFSETS_CONFIGS, broker_configs
from sparklog.kafka.exporting.run import ExportOptions
from sparklog.kafka.importing.run import ImportOptions, import_log_dir
from sparklog.kafka.in_place.directory import CONSUMER_OFFSETS
from sparklog.log.state.view import COLUMNS, READ_COMMITTED, READ_UNCOMMITTED
from sparklog.log.topic.root import Root, open_root
from sparklog.log.topic.topic import Topic
from sparklog.log.write.append_target import WriteOptions
from sparklog.maintenance.work_items import InProcess, Settings
from sparklog.testing.world import START_MS
from tests.fixture_data import expected_offsets, expected_records
from tests.kafka.exporting.test_exporting import led
from tests.kafka.logs import batch, write_partition
from tests.kafka_broker import Broker, Consumed
from tests.log.rewriting import prepared, resolve
from tests.support.compaction import compact_topic
from tests.support.counted_root import CountedRoot

pytestmark = pytest.mark.slow

DAY_MS = 86_400_000
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
LEVELS = (READ_UNCOMMITTED, READ_COMMITTED)
FIXTURES = (
    *(("transactions", "data"), ("transactions-tv0", "data"), ("codecs", "data"), ("timestamps", "data")),
    *(("segments", "data"), ("retention/delete-records", "start-moved")),
    *((f"compaction/{name}", "after") for name in ("plain", "compressed", "transactions", "log-append-time")),
    *(("compaction/tombstones-day", "pass-2"), ("compaction/producer-state", "after")),
)


def taken_in(broker: Broker, root: Root, folder: Path, topics: dict[str, Topic]) -> dict[str, ExportedTopic]:
    """Create the topics, stop the broker, replace its files with those of exports, and start the broker."""
    found = {}
    with broker:
        ids = {
            name: broker.create(name, topic.log.state().partitions, broker_configs(topic.log.state().configs)[0])
            for name, topic in topics.items()
        }
    for name in topics:
        (found[name],) = export_topics(root, folder / name, [name], ExportOptions(topic_id=ids[name], link=True))
        broker.replace(folder / name, name)
    broker.start()
    said = broker.said().rpartition("STARTING THE BROKER")[2]
    assert "Loaded " in said or "Completed load of log" in said, said[-2000:]
    for trouble in ("Corrupt", "orrupted", "ERROR", "stray", "Inconsistent"):
        assert trouble not in said, [line for line in said.splitlines() if trouble in line][:5]
    return found


def scanned(topic: Topic, partition: int) -> list[Consumed]:
    table = topic.scan(partitions=[partition], columns=COLUMNS).to_table()
    times = table["timestamp"].cast(pa.int64()).to_pylist()
    return [
        Consumed(
            row["offset"],
            time,
            row["timestampType"],
            row["key"],
            row["value"],
            tuple((header["key"], header["value"]) for header in row["headers"] or ()),
        )
        for row, time in zip(table.drop_columns(["timestamp"]).to_pylist(), times, strict=True)
    ]


def rows(n: int, seed: int) -> pa.Table:
    chance = random.Random(seed)
    return pa.table(
        {
            "key": pa.array([b"k%d" % chance.randrange(30) for _ in range(n)], pa.binary()),
            "value": pa.array([None if i % 9 == 0 else chance.randbytes(60) for i in range(n)], pa.binary()),
            "timestamp": pa.array([START_MS + seed * 1000 + i for i in range(n)], pa.int64()),
        }
    )


def fill(topic: Topic, seeds: range) -> None:
    for seed in seeds:
        topic.append(rows(100, seed), options=WriteOptions(codec=CODECS[seed % 5], batch_bytes=1500))


def test_native_topics(broker: Broker, tmp_path: Path) -> None:
    counted_root = CountedRoot("local", tmp_path / "root")
    small = {"segment.bytes": 15_000, "retention.ms": -1}
    dirty = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": 0}
    topics = {
        "plain": counted_root.topic(2, {"retention.ms": -1}, "plain"),
        "sealed": counted_root.topic(2, small, "sealed"),
        "stamped": counted_root.topic(2, {**small, "message.timestamp.type": "LogAppendTime"}, "stamped"),
        "compacted": counted_root.topic(2, {**small, **dirty}, "compacted"),
        "gaps": counted_root.topic(1, small, "gaps"),
        "moved": counted_root.topic(1, small, "moved"),
        "empty": counted_root.topic(1, {}, "empty"),
    }
    for name in ("plain", "sealed", "stamped", "compacted", "moved"):
        fill(topics[name], range(12))
    for number in range(5):
        prepared(counted_root, topics["gaps"], rows(40, 50 + number), "tx", number)
        resolve(counted_root, topics["gaps"], "tx", number, committed=number % 2 == 1)
    prepared(counted_root, topics["gaps"], rows(40, 60), "open", 1)
    topics["moved"].delete_records({0: 555})
    for name in ("sealed", "stamped", "compacted", "moved"):
        report = compact_topic(
            topics[name],
            Settings(now_ms=counted_root.world.now_ms + 2 * DAY_MS),
            InProcess(),
            CompactOptions(roll=name == "compacted"),
        )
        assert not report.failures
    fill(topics["compacted"], range(20, 22))
    found = taken_in(broker, open_root(str(tmp_path / "root")), tmp_path / "out", topics)
    assert any(part.linked for part in found["sealed"].partitions)
    for name, topic in topics.items():
        for part in found[name].partitions:
            expected = scanned(topic, part.partition)
            assert len(expected) > 50 or name == "empty"
            for level in LEVELS:
                answer = broker.consume(name, part.partition, level)
                assert answer == (part.log_start, part.log_end, expected), (name, part.partition, level)
    assert found["moved"].partitions[0].log_start == 555
    assert found["gaps"].partitions[0].log_end == 200
    assert sorted(broker.console("compacted", READ_COMMITTED)) == sorted(
        f"Partition:{partition}\tOffset:{record.offset}\t{(record.key or b'').decode()}"
        for partition in (0, 1)
        for record in scanned(topics["compacted"], partition)
    )
    # A producer appends more records, and the broker rolls, restarts and reads all records again.
    with producing(broker) as producer:
        sent = [producer.send("sealed", b"after", partition=0).get(30).offset for _ in range(3)]
    end = found["sealed"].partitions[0].log_end
    assert sent == [end, end + 1, end + 2]
    broker.stop()
    broker.start()
    start, last, records = broker.consume("sealed", 0, READ_COMMITTED)
    assert (start, last) == (0, end + 3)
    assert records[:-3] == scanned(topics["sealed"], 0)
    # The hard-linked files are unchanged.
    assert scanned(counted_root.reopened("sealed"), 0) == records[:-3]


def test_consumers_resume_after_an_export_to_another_cluster(broker: Broker, tmp_path: Path) -> None:
    root = open_root(str(tmp_path / "root"), create=True)
    records = 105
    segments = {at: led(batch(at, [b"%d" % at] * 35), 40 + at) for at in range(0, records, 35)}
    write_partition(tmp_path / "log", "old-0", segments)
    import_log_dir(root, tmp_path / "log", ImportOptions(configs={"retention.ms": -1}))
    stood = CommittedOffset("old", root.topic("old").log.state().topic_id, 0, 100, 110, "", root.env.wall_ms())
    Groups(root).group("moved").restore([stood])
    with broker:
        ids = {"old": broker.create("old", 1, {"retention.ms": "-1"})}
        ids[CONSUMER_OFFSETS] = broker.create(CONSUMER_OFFSETS, 1, {k: str(v) for k, v in OFFSETS_CONFIGS.items()})
    export_topics(root, tmp_path / "out", ["old"], ExportOptions(topic_id=ids, groups="all", offsets_partitions=1))
    for name in ids:
        broker.replace(tmp_path / "out", name)
    broker.start()
    assert offsets_printed(broker, "moved") == list(range(100, records))
    assert offsets_printed(broker, "java") == offsets_polled(broker, "python") == list(range(records))
    broker.stop()
    broker.start()
    with producing(broker) as producer:
        sent = [producer.send("old", b"after", partition=0).get(30).offset for _ in range(3)]
    for group in ("moved", "java"):
        assert offsets_printed(broker, group) == sent
    assert offsets_polled(broker, "python") == sent


def test_lookups_by_timestamp_start_at_the_log_start(broker: Broker, tmp_path: Path) -> None:
    counted_root = CountedRoot("local", tmp_path / "root")
    far = 1 << 32
    write_partition(tmp_path / "log", "far-0", {0: batch(0, [b"a"]), far: batch(far, [b"b"]), far + 1: b""})
    import_log_dir(counted_root.root, tmp_path / "log", ImportOptions(configs={"retention.ms": -1}))
    topics = {
        "near": counted_root.topic(1, {"segment.bytes": 15_000, "retention.ms": -1}, "near"),
        "far": counted_root.root.topic("far"),
    }
    prepared(counted_root, topics["near"], rows(40, 50), "tx", 1)
    resolve(counted_root, topics["near"], "tx", 1, committed=False)
    fill(topics["near"], range(12))
    topics["far"].delete_records({0: 5})
    taken_in(broker, counted_root.root, tmp_path / "out", topics)
    for name, topic in topics.items():
        found = scanned(topic, 0)
        expected = {}
        for time_ms in (0, *(found[at * (len(found) - 1) // 10].timestamp for at in range(11))):
            expected[time_ms] = next(record.offset for record in found if record.timestamp >= time_ms)
        assert {time_ms: by_time(broker, name, time_ms) for time_ms in expected} == expected, name


def by_time(broker: Broker, topic: str, time_ms: int) -> int | None:
    """Return the offset that a broker returns for a time."""
    from kafka import KafkaConsumer, TopicPartition

    consumer: Any = KafkaConsumer(bootstrap_servers=broker.address)
    try:
        found = consumer.offsets_for_times({TopicPartition(topic, 0): time_ms})[TopicPartition(topic, 0)]
        return None if found is None else found.offset
    finally:
        consumer.close()


def offsets_printed(broker: Broker, group: str) -> list[int]:
    """Return the offsets that the Java console consumer reads and commits as a member of the group."""
    lines = broker.console("old", READ_UNCOMMITTED, 15_000, group)
    return [int(line.split("\t")[1].removeprefix("Offset:")) for line in lines]


def offsets_polled(broker: Broker, group: str) -> list[int]:
    """Return the offsets that kafka-python reads. A consumer that loops is stopped."""
    from kafka import KafkaConsumer

    consumer: Any = KafkaConsumer(
        "old", bootstrap_servers=broker.address, group_id=group, auto_offset_reset="earliest", enable_auto_commit=False
    )
    found: list[int] = []
    quiet = 0
    try:
        deadline = time.monotonic() + 60
        while quiet < 5 and len(found) < 1000 and time.monotonic() < deadline:
            polled = [record.offset for records in consumer.poll(500).values() for record in records]
            quiet = quiet + 1 if consumer.assignment() and not polled else 0
            found += polled
        consumer.commit()
    finally:
        consumer.close()
    return found


@contextmanager
def producing(broker: Broker) -> Iterator[Any]:
    from kafka import KafkaProducer

    producer = KafkaProducer(bootstrap_servers=broker.address, acks="all", linger_ms=0)
    try:
        yield producer
    finally:
        producer.close()


def test_internal_topics(broker: Broker, fixtures: Path, tmp_path: Path) -> None:
    topics: dict[str, Topic] = {}
    told: dict[str, tuple[Path, str]] = {}
    for fixture, stage in FIXTURES:
        folder, short = fixtures / fixture, fixture.replace("/", "-")
        configs = {"retention.ms": -1, "cleanup.policy": "delete"}
        if fixture.startswith("compaction"):
            kafkas = json.loads((folder / "fixture.json").read_text())["configs"]
            configs = {"cleanup.policy": "compact", "delete.retention.ms": kafkas.get("delete.retention.ms", DAY_MS)}
        counted_root = CountedRoot("local", tmp_path / "roots" / short)
        for name in import_log_dir(counted_root.root, folder / stage, ImportOptions(configs=configs)).names:
            topics[f"{short}.{name}"] = counted_root.root.topic(name)
            told[f"{short}.{name}"] = (folder, stage)
    assert len(topics) > 12
    with broker:
        ids = {
            called: broker.create(called, topic.log.state().partitions, broker_configs(topic.log.state().configs)[0])
            for called, topic in topics.items()
        }
    for called, topic in topics.items():
        export_topics(topic.root, tmp_path / "out" / called, [topic.name], ExportOptions(topic_id=ids[called]))
        broker.replace(tmp_path / "out" / called, topic.name, called)
    broker.start()
    for called, (folder, stage) in told.items():
        for partition in range(topics[called].log.state().partitions):
            name = f"{topics[called].name}-{partition}"
            bounds = expected_offsets(folder, stage)[name]
            for level, last in zip(LEVELS, ("highWatermark", "lastStableOffset"), strict=True):
                expected = [
                    Consumed(r.offset, r.timestamp, r.timestamp_type, r.key, r.value, r.headers)
                    for r in expected_records(folder, name, level, stage)
                ]
                start, end, records = broker.consume(called, partition, level)
                assert (start, end) == (bounds["logStartOffset"], bounds[last]), (called, partition, level)
                assert records == expected, (called, partition, level)
