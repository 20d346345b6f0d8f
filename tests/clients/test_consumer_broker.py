"""A program with two consumers has the same offsets, callbacks, assignments and records with kafka-python and a broker
as with sparklog.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import sparklog
from sparklog.format.checkpoint_files import TopicPartition
from tests.kafka_broker import Broker
from tests.kafka_tools import Missing

pytestmark = [pytest.mark.slow, pytest.mark.java]
PARTITIONS = 4
STRATEGIES = ("range", "roundrobin", "sticky", "cooperative-sticky")
T0 = 1_700_000_000_000
Call = tuple[str, list[int]]


class Calls:
    """The calls of a listener. Kafka also notifies eager members without partitions."""

    def __init__(self) -> None:
        self.calls: list[Call] = []

    def note(self, name: str, partitions: Iterable[Any]) -> None:
        numbers = sorted(number for _, number in partitions)
        if numbers:
            self.calls.append((name, numbers))


class Ours(sparklog.RebalanceListener, Calls):
    def on_assigned(self, partitions: frozenset[TopicPartition]) -> None:
        self.note("assigned", partitions)

    def on_revoked(self, partitions: frozenset[TopicPartition]) -> None:
        self.note("revoked", partitions)


class Client(ABC):
    """The interface of a consumer that the program needs."""

    consumer: Any
    told: Calls
    topic: str

    @abstractmethod
    def read(self, seconds: float) -> list[tuple[int, int, bytes]]: ...
    @abstractmethod
    def commit(self, offsets: Mapping[int, int] | None = None) -> None: ...
    @abstractmethod
    def committed(self) -> dict[int, int]: ...
    @abstractmethod
    def looked_up(self) -> list[object]: ...

    def assigned(self) -> list[int]:
        return sorted(number for _, number in self.consumer.assignment())

    def close(self) -> None:
        self.consumer.close()


class KafkaClient(Client):
    def __init__(self, broker: Broker, topic: str, name: str, strategy: str, **how: Any) -> None:
        from kafka import ConsumerRebalanceListener, KafkaConsumer
        from kafka.coordinator.assignors.cooperative_sticky import CooperativeStickyAssignor
        from kafka.coordinator.assignors.range import RangePartitionAssignor
        from kafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
        from kafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor

        calls = Calls()

        class Listener(ConsumerRebalanceListener):  # type: ignore[misc]
            def on_partitions_assigned(self, assigned: Any) -> None:
                calls.note("assigned", assigned)

            def on_partitions_revoked(self, revoked: Any) -> None:
                calls.note("revoked", revoked)

        assignors = (
            *(RangePartitionAssignor, RoundRobinPartitionAssignor),
            *(StickyPartitionAssignor, CooperativeStickyAssignor),
        )
        self.told, self.topic = calls, topic
        self.consumer = KafkaConsumer(
            bootstrap_servers=broker.address,
            client_id=name,
            auto_offset_reset="earliest",
            partition_assignment_strategy=[assignors[STRATEGIES.index(strategy)]],
            heartbeat_interval_ms=200,
            session_timeout_ms=10_000,
            **how,
        )
        self.consumer.subscribe([topic], listener=Listener())

    def read(self, seconds: float) -> list[tuple[int, int, bytes]]:
        found = self.consumer.poll(timeout_ms=int(1000 * seconds))
        return [(record.partition, record.offset, record.value) for records in found.values() for record in records]

    def commit(self, offsets: Mapping[int, int] | None = None) -> None:
        from kafka import TopicPartition as Place
        from kafka.structs import OffsetAndMetadata

        named = {
            Place(self.topic, number): OffsetAndMetadata(offset, "", -1) for number, offset in (offsets or {}).items()
        }
        self.consumer.commit(named or None, timeout_ms=30_000)

    def committed(self) -> dict[int, int]:
        from kafka import TopicPartition as Place

        found = {number: self.consumer.committed(Place(self.topic, number)) for number in range(PARTITIONS)}
        return {number: offset for number, offset in found.items() if offset is not None}

    def looked_up(self) -> list[object]:
        from kafka import TopicPartition as Place

        places = [Place(self.topic, number) for number in range(PARTITIONS)]
        times = self.consumer.offsets_for_times(dict.fromkeys(places, T0 + 2))
        return _looked_up(self.consumer.beginning_offsets(places), self.consumer.end_offsets(places), times)


class SparklogClient(Client):
    def __init__(self, root: sparklog.Root, topic: str, name: str, strategy: str, **how: Any) -> None:
        self.told, self.topic = Ours(), topic
        group = how.pop("group_id")
        self.consumer = sparklog.consumer(
            root, group, topics=topic, client_id=name, auto_offset_reset="earliest", listener=self.told,
            partition_assignment_strategy=[strategy], heartbeat_interval_ms=200, session_timeout_ms=10_000, **how,
        )  # fmt: skip

    def read(self, seconds: float) -> list[tuple[int, int, bytes]]:
        return [
            (row["partition"], row["offset"], row["value"])
            for batch in self.consumer.poll(seconds)
            for row in batch.to_pylist()
        ]

    def commit(self, offsets: Mapping[int, int] | None = None) -> None:
        self.consumer.commit(None if offsets is None else {self.topic: offsets})

    def committed(self) -> dict[int, int]:
        return {number: item.offset for (_, number), item in self.consumer.committed().items()}

    def looked_up(self) -> list[object]:
        places = [(self.topic, number) for number in range(PARTITIONS)]
        times = self.consumer.offsets_for_times(dict.fromkeys(places, T0 + 2))
        return _looked_up(self.consumer.beginning_offsets(places), self.consumer.end_offsets(places), times)


def _looked_up(first: Mapping[Any, int], last: Mapping[Any, int], times: Mapping[Any, Any]) -> list[object]:
    answers = [(place[1], start, last[place], times[place]) for place, start in sorted(first.items())]
    return [(*limits, answer and (answer.offset, answer.timestamp)) for *limits, answer in answers]


class Side(ABC):
    """A topic in Kafka or in sparklog, with its consumers."""

    @abstractmethod
    def new(self, name: str, strategy: str, **how: Any) -> Client: ...
    @abstractmethod
    def send(self, count: int, word: str) -> None:
        """Send records to each partition."""


class InKafka(Side):
    def __init__(self, broker: Broker, topic: str) -> None:
        self.broker, self.topic = broker, topic
        broker.create(topic, PARTITIONS)

    def new(self, name: str, strategy: str, **how: Any) -> Client:
        return KafkaClient(self.broker, self.topic, name, strategy, **how)

    def send(self, count: int, word: str) -> None:
        from kafka import KafkaProducer

        producer = KafkaProducer(bootstrap_servers=self.broker.address)
        for number in range(count):
            for partition in range(PARTITIONS):
                value = f"{word}{number}".encode()
                producer.send(self.topic, value, partition=partition, timestamp_ms=T0 + number)
        producer.close()


class InSparklog(Side):
    def __init__(self, root: sparklog.Root, topic: str) -> None:
        self.root, self.topic = root, root.create_topic(topic, partitions=PARTITIONS)

    def new(self, name: str, strategy: str, **how: Any) -> Client:
        return SparklogClient(self.root, self.topic.name, name, strategy, **how)

    def send(self, count: int, word: str) -> None:
        for partition in range(PARTITIONS):
            columns = {
                "value": [f"{word}{number}".encode() for number in range(count)],
                "partition": pa.array([partition] * count, pa.int32()),
                "timestamp": pa.array([T0 + number for number in range(count)], pa.timestamp("ms", tz="UTC")),
            }
            self.topic.append(pa.table(columns))


def until_settled(wanted: int, *clients: Client) -> list[list[tuple[int, int, bytes]]]:
    """Poll until each consumer has `wanted` partitions and no more records arrive. Return the records that each
    consumer has read.
    """
    read: list[list[tuple[int, int, bytes]]] = [[] for _ in clients]
    quiet, deadline = 0, time.monotonic() + 60
    with ThreadPoolExecutor(len(clients)) as pool:
        while quiet < 3:
            assert time.monotonic() < deadline, [client.assigned() for client in clients]
            # Poll in parallel, because a broker responds to joining members only after all of them have sent a request.
            came = list(pool.map(lambda client: client.read(0.5), clients))
            for records, more in zip(read, came, strict=True):
                records += more
            settled = all(len(client.assigned()) == wanted for client in clients)
            quiet = quiet + 1 if settled and not any(came) else 0
    return [sorted(records) for records in read]


def program(side: Side, strategy: str) -> list[object]:
    """Run the program, and return everything that it observed."""
    group = f"g-{strategy}"
    side.send(3, "a")
    one = side.new("one", strategy, group_id=group, enable_auto_commit=False)
    seen: list[object] = [until_settled(4, one), one.assigned(), one.looked_up()]
    one.commit()
    seen.append(one.committed())
    two = side.new("two", strategy, group_id=group, enable_auto_commit=False)
    seen += [until_settled(2, one, two), one.assigned(), two.assigned()]
    side.send(2, "b")
    seen.append(until_settled(2, one, two))
    # Consumer two commits all records that it has read except one. Consumer one commits all records, because at a
    # rebalance of eager members, Java's consumer and sparklog resume at the committed offsets, and kafka-python does
    # not.
    one.commit()
    two.commit(dict.fromkeys(two.assigned(), 4))
    seen.append(two.committed())
    two.close()
    seen += [until_settled(4, one), one.assigned()]
    one.commit()
    seen.append(one.committed())
    one.close()
    return [*seen, one.told.calls, two.told.calls]


def test_the_program_reads_the_same_as_with_a_broker(tmp_path: Path) -> None:
    root = sparklog.open(tmp_path / "log", create=True)
    try:
        started = Broker(tmp_path / "kafka")
    except Missing as missing:
        pytest.skip(str(missing))
    with started as broker:
        for strategy in STRATEGIES:
            in_kafka, in_sparklog = (
                program(side, strategy) for side in (InKafka(broker, strategy), InSparklog(root, strategy))
            )
            assert in_sparklog == in_kafka, strategy
