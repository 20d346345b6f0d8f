"""The producer and kafka-python with a broker assign the same partitions, offsets and metadata to the same records."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

import sparklog
from tests.kafka_broker import Broker
from tests.kafka_tools import Missing

pytestmark = pytest.mark.java
PARTITIONS = 5


def records() -> list[dict[str, Any]]:
    source = random.Random(7)
    made = []
    for number in range(400):
        key = source.randbytes(source.randrange(12))
        made.append(
            {
                "value": None if number % 17 == 0 else b"%d" % number,
                "key": key,
                "headers": [("n", b"%d" % number)] if number % 3 == 0 else [],
                "partition": number % PARTITIONS if number % 5 == 0 else None,
                "time_ms": 1_790_000_000_000 + number,
            }
        )
    return made


def test_partitions_offsets_and_metadata_are_those_of_a_broker(tmp_path: Path) -> None:
    kafka = pytest.importorskip("kafka")
    admin = pytest.importorskip("kafka.admin")
    root = sparklog.open(tmp_path / "root", create=True)
    root.create_topic("t", partitions=PARTITIONS)
    called: dict[str, list[int]] = {"kafka": [], "sparklog": []}
    try:
        broker = Broker(tmp_path / "broker")
    except Missing as missing:
        pytest.skip(str(missing))
    with broker:
        client = admin.KafkaAdminClient(bootstrap_servers=broker.address)
        client.create_topics([admin.NewTopic("t", PARTITIONS, 1)])
        client.close()
        theirs = kafka.KafkaProducer(bootstrap_servers=broker.address, linger_ms=20)
        sent = []
        for record in records():
            rest = {name: record[name] for name in ("value", "key", "headers", "partition")}
            sent.append(theirs.send("t", timestamp_ms=record["time_ms"], **rest))
            sent[-1].add_callback(lambda metadata: called["kafka"].append(metadata.partition))
        theirs.flush()
        expected = [future.get(30) for future in sent]
        theirs.close()
    with sparklog.producer(root, linger_ms=20) as ours:
        futures = []
        for record in records():
            rest = {name: record[name] for name in ("value", "key", "headers", "partition")}
            futures.append(ours.send("t", timestamp=record["time_ms"], **rest))
            futures[-1].add_callback(lambda metadata: called["sparklog"].append(metadata.partition))
    answers = [future.get(30) for future in futures]
    assert [answer[:4] for answer in answers] == [
        (metadata.topic, metadata.partition, metadata.offset, metadata.timestamp) for metadata in expected
    ]
    assert sorted(called["sparklog"]) == sorted(called["kafka"])
