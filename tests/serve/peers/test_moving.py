"""Move a topic and a group from a broker to a server and back, in the steps of docs/guides/from-a-broker.md."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import sparklog
from tests.kafka_broker import Broker
from tests.kafka_tools import Missing
from tests.serve.peers.golden import served
from tests.support.command_line import invoke

pytestmark = [pytest.mark.slow, pytest.mark.java]


def produce(address: object, numbers: Sequence[int], transactional_id: str | None = None) -> None:
    from kafka import KafkaProducer

    options = {} if transactional_id is None else {"transactional_id": transactional_id}
    producer: Any = KafkaProducer(bootstrap_servers=str(address), acks="all", **options)
    if transactional_id is not None:
        producer.init_transactions()
        producer.begin_transaction()
    for number in numbers:
        producer.send("orders", key=b"k%d" % (number % 5), value=b"%d" % number)
    producer.flush()
    if transactional_id is not None:
        producer.commit_transaction()
    producer.close()


def consume(address: object, group: str, count: int) -> list[int]:
    """Read this many records as the only member of a group, and commit their offsets."""
    from kafka import KafkaConsumer

    consumer: Any = KafkaConsumer(
        "orders",
        bootstrap_servers=str(address),
        group_id=group,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        isolation_level="read_committed",
        consumer_timeout_ms=30_000,
    )
    try:
        found = [int(next(consumer).value) for _ in range(count)]
        consumer.commit()
        return found
    finally:
        consumer.close(autocommit=False)


def command(*words: object) -> str:
    result = invoke(words)
    assert result.exit_code == 0, result.stderr
    return result.stdout


def test_topics_and_groups_move_to_a_server_and_back(tmp_path: Path) -> None:
    try:
        broker = Broker(tmp_path / "broker")
    except Missing as missing:
        pytest.skip(str(missing))
    root, offsets = tmp_path / "log", tmp_path / "billing.csv"
    reset = ("groups", "reset", "billing", "--root", root)
    with broker:
        broker.create("orders", 2, {"retention.ms": "-1"})
        produce(broker.address, range(30))
        produce(broker.address, range(30, 40), "orders-job")
        read = consume(broker.address, "billing", 10)
        command("import", broker.data, "--root", root)
        with served(root) as server:
            assert sorted(consume(server.address, "trial", 40)) == list(range(40))
        produce(broker.address, range(40, 50))
        read += consume(broker.address, "billing", 5)
        csv = broker.groups(
            *("--reset-offsets", "--group", "billing", "--all-topics", "--to-current", "--export", "--dry-run")
        )
        offsets.write_text("\n".join(csv))
        broker.stop()
        command("import", broker.data, "--root", root)
        for time in ("earliest", "latest"):
            there = command("offsets", "--root", broker.data, "--exclude-internal", "--time", time)
            assert command("offsets", "--root", root, "--time", time) == there
        before = sparklog.Groups(root).group("billing").committed()
        command(*reset, "--from-file", offsets, "--execute")
        after = sparklog.Groups(root).group("billing").committed()
        assert {topic_partition: each.offset for topic_partition, each in after.items()} == {
            topic_partition: each.offset for topic_partition, each in before.items()
        }
        with served(root, writable=True) as server:
            read += consume(server.address, "billing", 35)
            produce(server.address, range(50, 60))
            produce(server.address, range(60, 65), "orders-job")
            read += consume(server.address, "billing", 5)
        assert len(read) == 55
        # Go back.
        offsets.write_text(command(*reset, "--all-topics", "--to-current", "--export"))
        command("export", "orders", "--root", root, "--to", tmp_path / "back", "--groups", "all")
        broker.replace(tmp_path / "back", "orders")
        broker.start()
        broker.groups("--reset-offsets", "--group", "billing", "--from-file", str(offsets), "--execute")
        read += consume(broker.address, "billing", 10)
        produce(broker.address, [65])
        read += consume(broker.address, "billing", 1)
    assert sorted(read) == list(range(66))
