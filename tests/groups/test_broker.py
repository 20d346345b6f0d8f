"""Consumer groups, compared with the groups of a real broker, and with the output of Kafka's tool and clients."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

import sparklog
from sparklog.errors import Conflict
from sparklog.groups.lag import Groups, lag
from sparklog.groups.reset import Scenario, To, plan_reset
from sparklog.log.topic.root import Root
from tests.kafka_broker import Broker
from tests.kafka_tools import Missing
from tests.support.records import rows

pytestmark = [pytest.mark.slow, pytest.mark.java]
GROUP = "g"


def described(broker: Broker) -> list[list[str]]:
    """Return topic, partition, current offset, log end and lag of each row."""
    lines = [line.split() for line in broker.groups("--describe", "--group", GROUP)]
    heading = next(i for i, line in enumerate(lines) if line[:1] == ["GROUP"])
    return sorted(line[1:6] for line in lines[heading + 1 :])


def ours(root: Root) -> list[list[str]]:
    return sorted(
        [
            row.topic,
            str(row.partition),
            *("-" if value is None else str(value) for value in (row.current_offset, row.log_end, row.lag)),
        ]
        for row in lag(root, [GROUP])
    )


def kafka(broker: Broker, **how: Any) -> tuple[Any, dict[int, int]]:
    """Yield a member of the group, and its start position in each partition."""
    from kafka import KafkaConsumer

    consumer = KafkaConsumer("t", bootstrap_servers=broker.address, group_id=GROUP, enable_auto_commit=False, **how)
    first: dict[int, int] = {}
    deadline = time.monotonic() + 60
    quiet = 0
    while quiet < 3 and time.monotonic() < deadline:
        found = consumer.poll(300)
        quiet = quiet + 1 if consumer.assignment() and not found else 0
        for part, records in found.items():
            first.setdefault(part.partition, records[0].offset)
    for part in consumer.assignment():
        first.setdefault(part.partition, consumer.position(part))
    return consumer, first


def produce(broker: Broker, root: Root, partition: int, count: int) -> None:
    from kafka import KafkaProducer

    producer = KafkaProducer(bootstrap_servers=broker.address)
    for _ in range(count):
        producer.send("t", b"x", partition=partition)
    producer.close()
    root.topic("t").append(rows(*["x"] * count, partition=partition))


def test_the_same_steps_have_the_same_results_in_kafka_and_sparklog(tmp_path: Path) -> None:
    from kafka import TopicPartition
    from kafka.structs import OffsetAndMetadata

    root = sparklog.open(tmp_path / "log", create=True)
    root.create_topic("t", partitions=3)
    try:
        started = Broker(tmp_path / "kafka")
    except Missing as missing:
        pytest.skip(str(missing))
    with started as broker:
        broker.create("t", 3)
        produce(broker, root, 0, 5)
        produce(broker, root, 1, 2)
        theirs, _ = kafka(broker, auto_offset_reset="latest")
        own = sparklog.consumer(root, GROUP, topics="t", enable_auto_commit=False)
        for partition, offset in ((0, 3), (1, 2)):
            theirs.commit({TopicPartition("t", partition): OffsetAndMetadata(offset, "note", -1)})
            own.commit({"t": {partition: offset}})
        # If the group has a member, partitions without a committed offset also have a row.
        expected = [["t", "0", "3", "5", "2"], ["t", "1", "2", "2", "0"], ["t", "2", "-", "0", "-"]]
        assert described(broker) == expected
        assert ours(root) == expected
        said = " ".join(
            broker.groups("--reset-offsets", "--group", GROUP, "--topic", "t", "--to-earliest", "--dry-run")
        )
        assert "current state is Stable" in said
        with pytest.raises(Conflict, match="Stable"):
            Groups(root).group(GROUP).alter({"t": {0: 0}}, dry_run=True)
        theirs.close()
        own.close()
        assert described(broker) == ours(root) == expected[:2]
        for scope, topics in (("--all-topics", None), ("--topic=t", {"t": None})):
            table = broker.groups("--reset-offsets", "--group", GROUP, scope, "--to-earliest", "--dry-run")
            told = [line.split()[1:4] for line in table if line.split()[:1] == [GROUP]]
            plan = plan_reset(Groups(root).group(GROUP), Scenario(To.EARLIEST), topics, now_ms=0)
            assert sorted(told) == [[item.topic, str(item.partition), str(item.new)] for item in plan]
            assert len(plan) == (2 if topics is None else 3)
        broker.groups("--reset-offsets", "--group", GROUP, "--topic", "t:0", "--to-offset", "1", "--execute")
        Groups(root).group(GROUP).alter({"t": {0: 1}})
        assert described(broker) == ours(root) == [["t", "0", "1", "5", "4"], ["t", "1", "2", "2", "0"]]
        _positions(broker, root)
        broker.groups("--delete-offsets", "--group", GROUP, "--topic", "t:1")
        Groups(root).group(GROUP).delete_offsets({"t": {1}})
        assert described(broker) == ours(root) == [["t", "0", "1", "5", "4"]]
        broker.groups("--delete", "--group", GROUP)
        Groups(root).group(GROUP).delete()
        assert Groups(root).names() == []
        assert ours(root) == []


def _positions(broker: Broker, root: Root) -> None:
    """Return the start positions of a consumer: the committed offsets, or the offsets of the reset policy."""
    produce(broker, root, 2, 4)
    for reset in ("earliest", "latest"):
        theirs, first = kafka(broker, auto_offset_reset=reset)
        theirs.close()
        own = sparklog.consumer(root, GROUP, topics="t", auto_offset_reset=reset, enable_auto_commit=False)
        assert own.positions() == {"t": first}
        assert first == {0: 1, 1: 2, 2: 0 if reset == "earliest" else 4}
        own.close()
