"""The Java clients, two releases of librdkafka and franz-go read and write as with a real broker."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import sparklog
from sparklog.format.batch_scan import scan_headers
from sparklog.groups.lag import Groups
from tests.kafka_broker import Broker
from tests.serve.clients import ISOLATIONS, ReadRecord
from tests.serve.peers.calls import noting
from tests.serve.peers.checks import START_MS, sent_records
from tests.serve.peers.golden import Served
from tests.serve.peers.peer import Peer, Place, Record, text
from tests.serve.wire import Wire

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
CANNOT = {"franz-go": ("old-v0", "old-mixed", "built", "time-create"), "aiokafka": ("old-v0", "old-mixed", "built")}
"""Topics that a client cannot read from a broker either. It does not support lz4 with the checksum of Kafka before
0.10, or, in franz-go, timestamps that are 292 years apart in one batch.
"""


@pytest.mark.parametrize("isolation", ISOLATIONS)
@pytest.mark.parametrize("location", ["golden", "in_place"])
def test_records_are_those_that_kafkas_consumer_read_at_a_broker(
    request: pytest.FixtureRequest, peer: Peer, location: str, isolation: str
) -> None:
    server: Served = request.getfixturevalue(location)
    without = CANNOT.get(peer.library, ())
    expected = {place: rows for place, rows in server.expected[isolation].items() if place[0] not in without}
    with noting(peer.name, server):
        records = peer.read(server.address, list(expected), isolation, sum(map(len, expected.values())))
    assert {place for place in expected if records[place] != expected[place]} == set()
    assert len(expected) > 3


@pytest.mark.parametrize("name", [pytest.param("java", marks=pytest.mark.java), "librdkafka-2.16.0", "kafka-python"])
def test_fetches_of_few_bytes_lose_nothing(start_peer: Callable[[str], Peer], golden: Served, name: str) -> None:
    peer, everything = start_peer(name), golden.expected["read_committed"]
    expected = {place: rows for place, rows in everything.items() if not place[0].startswith("codec-")}
    few = {"max.partition.fetch.bytes": "1500", "fetch.max.bytes": "4000"}
    if peer.library == "librdkafka":
        few = {"max.partition.fetch.bytes": "1500"}
    records = peer.read(golden.address, list(expected), "read_committed", **few)
    assert {place for place in expected if records[place] != expected[place]} == set()


@pytest.mark.java
def test_transactions_are_read_as_from_a_broker(
    peer: Peer, java: Peer, broker: Broker, writable: tuple[Served, Any]
) -> None:
    """Values and offsets of a group; the offsets of records differ, because a broker's markers take some."""
    if peer.library == "franz-go":
        pytest.skip("its program has no transactions")
    server, root = writable
    topic, group = f"transactions-{peer.name}", f"group-{peer.name}"
    broker.create(topic, 1)
    root.create_topic(topic)
    transactions = [
        {"values": [text(b"%d-%d" % (n, m)) for m in range(n % 4)], "commit": n % 3 != 1, "offset": n} for n in range(9)
    ]
    options = {"transactional.id": f"id-{peer.name}"}
    found, before = [], server.requests()
    for address in (server.address, broker.address):
        peer.ask("transact", address, topic=topic, group=group, transactions=transactions, options=options)
        places: list[Place] = [(topic, 0)]
        found.append([[row.value for row in java.read(address, places, level)[topic, 0]] for level in ISOLATIONS])
    assert found[0] == found[1]
    assert len(found[0][0]) != len(found[0][1])
    assert Groups(root).group(group).committed()[topic, 0].offset == 8
    used = {request for request, count in server.requests().items() if count > before.get(request, 0)}
    if peer.library == "java":
        # Version 2 of transactions.
        assert {("EndTxn", 5), ("TxnOffsetCommit", 5), ("Produce", 13)} <= used
        assert {"AddPartitionsToTxn", "AddOffsetsToTxn"}.isdisjoint(name for name, _ in used)


@pytest.mark.java
@pytest.mark.parametrize("codec", CODECS)
def test_produced_records_are_those_that_a_broker_has(
    peer: Peer, java: Peer, broker: Broker, writable: tuple[Served, Any], codec: str
) -> None:
    server, root = writable
    topic = f"made-{peer.name}-{codec}"
    broker.create(topic, 2)
    root.create_topic(topic, partitions=2)
    records = sent_records(peer.library, codec)
    options = {"compression.type": codec, "enable.idempotence": "true", "acks": "all"}
    with noting(peer.name, server):
        offsets = peer.produce(server.address, topic, records, **options)
    assert offsets == peer.produce(broker.address, topic, records, **options)
    places: list[Place] = [(topic, 0), (topic, 1)]
    landed = java.read(server.address, places, "read_committed")
    assert landed == java.read(broker.address, places, "read_committed")
    assert sum(map(len, landed.values())) == len(records)


@pytest.mark.java
def test_times_of_the_log_are_the_servers(peer: Peer, java: Peer, writable: tuple[Served, Any]) -> None:
    server, root = writable
    topic = f"stamped-{peer.name}"
    root.create_topic(topic, configs={"message.timestamp.type": "LogAppendTime"})
    records: list[Record] = [(0, START_MS, b"k", b"%d" % n, ()) for n in range(50)]
    assert peer.produce(server.address, topic, records) == list(range(50))
    rows = java.read(server.address, [(topic, 0)], "read_committed")[topic, 0]
    assert [row.value for row in rows] == [value for _, _, _, value, _ in records]
    assert {row.timestamp_type for row in rows} == {1}
    assert min(row.timestamp for row in rows) > START_MS
    assert rows == peer.read(server.address, [(topic, 0)], "read_committed", 50)[topic, 0]


@pytest.mark.parametrize("name", ["java", "librdkafka-2.16.0", "librdkafka-2.2.0"])
@pytest.mark.java
def test_offsets_by_time_are_those_of_a_broker(
    start_peer: Callable[[str], Peer], broker: Broker, writable: tuple[Served, Any], name: str
) -> None:
    peer, (server, root) = start_peer(name), writable
    topic = f"timed-{peer.name}"
    times = [1_000, 1_010, 1_005, 5_000, 3_000, 3_000, 9_000]
    root.create_topic(topic, partitions=2)
    broker.create(topic, 2)
    for number, time_ms in enumerate(times):
        for address in (server.address, broker.address):
            # One batch per timestamp, because the result of a lookup depends on the batches.
            peer.produce(address, topic, [(0, START_MS + time_ms, b"k", b"%d" % number, ())])
    places: list[Place] = [(topic, 0), (topic, 1)]
    wanted = [START_MS + time_ms for time_ms in (0, 1_000, 1_001, 1_006, 1_011, 3_000, 5_001, 9_000, 9_001)]
    with noting(peer.name, server):
        answers = peer.offsets(server.address, places, wanted)
    assert answers == peer.offsets(broker.address, places, wanted)


def test_members_of_a_group_go_on_where_another_client_ended(peer: Peer, writable: tuple[Served, Any]) -> None:
    server, root = writable
    topic, group = f"grouped-{peer.name}", f"group-{peer.name}"
    log = root.create_topic(topic, partitions=3)
    for begun in (0, 90):
        log.append({"value": [f"{n}" for n in range(begun, begun + 90)], "partition": [n % 3 for n in range(90)]})
        with noting(peer.name, server):
            records = peer.join(server.address, topic, group, 90)
        assert values_of(records) == list(range(begun, begun + 90))


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("name", ["librdkafka-2.2.0", "librdkafka-2.16.0"])
def test_batches_have_the_codec_of_the_producer(
    start_peer: Callable[[str], Peer], writable: tuple[Served, Any], name: str, codec: str
) -> None:
    """librdkafka writes uncompressed batches if it does not recognize the versions of a server."""
    server, root = writable
    topic = f"codec-{name}-{codec}"
    root.create_topic(topic)
    records: list[Record] = [(0, START_MS, None, b"x" * 500, ())]
    start_peer(name).produce(server.address, topic, records, **{"compression.type": codec})
    wire = Wire(server.address)
    row = {"partition": 0, "fetchOffset": 0, "partitionMaxBytes": 1 << 20}
    answer = wire.ask("Fetch", 4, {"maxBytes": 1 << 20, "topics": [{"topic": topic, "partitions": [row]}]})
    wire.close()
    headers = scan_headers(bytes(answer["responses"][0]["partitions"][0]["records"]))
    assert [attributes & 7 for attributes in headers.attributes.tolist()] == [CODECS.index(codec)]


def values_of(records: dict[Place, list[ReadRecord]]) -> list[int]:
    return sorted(int(row.value or b"") for rows in records.values() for row in rows)


@pytest.mark.java
def test_clients_share_a_group(start_peer: Callable[[str], Peer], java: Peer, writable: tuple[Served, Any]) -> None:
    server, root = writable
    log = root.create_topic("shared", partitions=6)
    log.append({"value": [f"{n}" for n in range(600)], "partition": [n % 6 for n in range(600)]})
    peers = [java, start_peer("librdkafka-2.16.0"), start_peer("franz-go")]
    strategies = ("org.apache.kafka.clients.consumer.RangeAssignor", "range", "range")

    def member(number: int) -> dict[Place, list[ReadRecord]]:
        strategy = {"partition.assignment.strategy": strategies[number]}
        return peers[number].join(server.address, "shared", "all", 10_000, 8, **strategy)

    with ThreadPoolExecutor(3) as threads:
        read = list(threads.map(member, range(3)))
    # Records that a member had read but not committed when another member joined are read twice.
    assert {value for records in read for value in values_of(records)} == set(range(600))
    assert sum(map(bool, read)) >= 2
    log.append({"value": ["600"]})
    (left,) = java.join(server.address, "shared", "all", 1).values()
    assert [row.value for row in left] == [b"600"]


@pytest.mark.java
@pytest.mark.parametrize("assignor", ["RangeAssignor", "CooperativeStickyAssignor"])
def test_a_member_of_the_root_shares_a_group_with_java(java: Peer, writable: tuple[Served, Any], assignor: str) -> None:
    server, root = writable
    topic = f"with-java-{assignor}"
    log = root.create_topic(topic, partitions=6)
    log.append({"value": [f"{n}" for n in range(600)], "partition": [n % 6 for n in range(600)]})
    strategy = {"partition.assignment.strategy": f"org.apache.kafka.clients.consumer.{assignor}"}
    options = {"auto_offset_reset": "earliest", "partition_assignment_strategy": ["range", "cooperative-sticky"]}
    with ThreadPoolExecutor(1) as threads:
        reading = threads.submit(java.join, server.address, topic, topic, 10_000, 12, **strategy)
        group, own, assigned, wrote = sparklog.Groups(root).group(topic), list[int](), set[Place](), False
        while not group.description().members:
            assert not reading.done()
        with sparklog.consumer(root, topic, topics=topic, **options) as consumer:
            while not reading.done():
                own += [int(value) for batch in consumer.poll(0.1) for value in batch.column("value").to_pylist()]
                assigned |= consumer.assignment()
                if len(consumer.assignment()) == 3 and not wrote:
                    log.append({"value": [f"{n}" for n in range(600, 1200)], "partition": [n % 6 for n in range(600)]})
                    wrote = True
        theirs = values_of(reading.result())
    # Records that the Java consumer had read but not committed when the other member joined are read twice.
    assert {*theirs, *own} == set(range(1200))
    assert max(own) >= 600
    assert max(theirs) >= 600, "both were members"
