"""Test imports from the directory of a running broker: each adds the new records, and matches Kafka's consumers."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from sparklog.groups.lag import Groups
from sparklog.kafka.importing.run import import_log_dir
from sparklog.log.state.view import COLUMNS, READ_COMMITTED, READ_UNCOMMITTED
from sparklog.log.topic.root import Root, open_root
from tests.kafka.logs import records
from tests.kafka_broker import Broker
from tests.kafka_tools import Missing

pytestmark = [pytest.mark.slow, pytest.mark.java]

VALUE_BYTES = 100_000


def producer(broker: Broker, transactional_id: str | None = None) -> Any:
    from kafka import KafkaProducer

    own = {} if transactional_id is None else {"transactional_id": transactional_id}
    made = KafkaProducer(bootstrap_servers=broker.address, acks="all", batch_size=VALUE_BYTES, **own)
    if transactional_id is not None:
        made.init_transactions()
    return made


def send(to: Any, count: int, first: int) -> None:
    for number in range(first, first + count):
        to.send("live", key=b"k%d" % (number % 7), value=b"%d" % number * (VALUE_BYTES // 4), partition=number % 2)
    to.flush()


def commit_group(broker: Broker, offsets: dict[int, int]) -> None:
    from kafka import KafkaConsumer, OffsetAndMetadata, TopicPartition

    consumer: Any = KafkaConsumer(bootstrap_servers=broker.address, group_id="readers", enable_auto_commit=False)
    try:
        places = {TopicPartition("live", partition): offset for partition, offset in offsets.items()}
        consumer.assign(list(places))
        consumer.commit(
            {topic_partition: OffsetAndMetadata(offset, "by hand", -1) for topic_partition, offset in places.items()}
        )
    finally:
        consumer.close()


def compare(broker: Broker, root: Root) -> None:
    """Compare the root with the broker at both isolation levels, and compare the offsets of the group."""
    topic = root.topic("live")
    for partition in (0, 1):
        for isolation in (READ_UNCOMMITTED, READ_COMMITTED):
            start, end, expected = broker.consume("live", partition, isolation, idle_ms=1500)
            scan = topic.scan(partitions=[partition], isolation_level=isolation, columns=COLUMNS)
            found = [record for batch in scan for record in records(batch)]
            assert [(each.offset, each.key, each.value, each.timestamp) for each in found] == [
                (each.offset, each.key, each.value, each.timestamp) for each in expected
            ]
            bounds = topic.log.state().log_end if isolation == READ_UNCOMMITTED else topic.log.state().last_stable()
            assert (int(topic.log.state().log_start[partition]), int(bounds[partition])) == (start, end)
    told = [line.split() for line in broker.groups("--describe", "--group", "readers")]
    expected_offsets = {int(line[2]): int(line[3]) for line in told if line[0] == "readers"}
    own = Groups(root).group("readers").committed()
    assert {partition: each.offset for (_, partition), each in own.items()} == expected_offsets


def test_import_while_a_broker_is_running(tmp_path: Path) -> None:
    try:
        broker = Broker(tmp_path / "broker")
    except Missing as missing:
        pytest.skip(str(missing))
    root = open_root(str(tmp_path / "root"), create=True)
    with broker:
        broker.create("live", 2, {"segment.bytes": str(1 << 20)})
        plain, atomic = producer(broker), producer(broker, "orders-job")
        send(plain, 30, 0)
        for ended in (True, False):
            atomic.begin_transaction()
            send(atomic, 10, 100)
            (atomic.commit_transaction if ended else atomic.abort_transaction)()
        commit_group(broker, {0: 3, 1: 4})
        first = import_log_dir(root, broker.data).topics[0]
        assert first.created
        compare(broker, root)
        # Append more records, and a transaction that is open during the import.
        atomic.begin_transaction()
        send(atomic, 10, 200)
        send(plain, 30, 300)
        commit_group(broker, {0: 20})
        second = import_log_dir(root, broker.data).topics[0]
        assert [part.since for part in second.partitions] == [part.log_end for part in first.partitions]
        assert {each.transactional_id for each in root.topic("live").log.state().kafka_open} == {"orders-job"}
        compare(broker, root)
        atomic.commit_transaction()
        send(plain, 4, 400)
        import_log_dir(root, broker.data)
        assert root.topic("live").log.state().kafka_open == ()
        compare(broker, root)
        plain.close()
        atomic.close()
    # The broker has stopped and written its watermarks, so closed segments are hard-linked.
    with broker:
        plain = producer(broker)
        send(plain, 60, 500)
        plain.close()
        broker.stop()
        last = import_log_dir(root, broker.data).topics[0]
        assert sum(part.linked for part in last.partitions) > 1_000_000
        broker.start()
        compare(broker, root)
    before = root.topic("live").scan().to_table()
    shutil.rmtree(broker.data)
    assert open_root(str(tmp_path / "root")).topic("live").scan().to_table().equals(before)
