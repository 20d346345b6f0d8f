"""Transactions of Kafka clients: with kafka-python, over restarts and two servers, and next to those of the root."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest

import sparklog
from sparklog.errors import Fenced
from sparklog.groups.group import Group
from sparklog.groups.lag import Groups
from sparklog.limits import MAX_TRANSACTION_TIMEOUT_MS
from sparklog.log.decisions.decision import BY_TIMEOUT, Decisions
from sparklog.log.decisions.decision_log import DecisionLog
from sparklog.log.topic.engine import TopicLog
from sparklog.serve import batch_commit, server, transactions
from sparklog.serve.apis.transactions import _matching
from sparklog.serve.appends import Appends, TopicQueue
from sparklog.serve.batch_commit import Responses
from sparklog.serve.codes import Code, CodeError, ProduceResponse, known_code
from sparklog.serve.options import Address, ServeOptions
from sparklog.serve.server import serving
from sparklog.serve.transactions import (
    EPOCHS,
    ClientInstance,
    ClientTransaction,
    ProducerEpoch,
    TransactionCoordinator,
)
from sparklog.serve.users import hashed, read_users
from sparklog.testing.world import World
from sparklog.testing.wrapper_stores import HookedStore
from sparklog.transactions.listing import abort_transaction
from sparklog.transactions.producer import transactional
from tests.serve.wire import Wire, batch_of
from tests.support.name_caching_store import NameCachingStore
from tests.support.records import rows

FREE = Address("127.0.0.1", 0)


def kafka_producer(address: object, id_: str = "job", **options: Any) -> Any:
    from kafka import KafkaProducer

    producer = KafkaProducer(bootstrap_servers=str(address).split(","), transactional_id=id_, linger_ms=0, **options)
    try:
        producer.init_transactions()
    except BaseException:
        # Otherwise, its thread would log errors during later tests.
        producer.close()
        raise
    return producer


def values(root: sparklog.Root, topic: str, isolation_level: str = "read_committed") -> list[bytes]:
    table = root.topic(topic).scan(columns=["value"], isolation_level=isolation_level).to_table()  # type: ignore[arg-type]
    return sorted(table["value"].to_pylist())


@pytest.fixture
def root(tmp_path: Path) -> sparklog.Root:
    opened = sparklog.open(tmp_path / "root", create=True)
    for name in ("a", "b"):
        opened.create_topic(name, partitions=2)
    return opened


@pytest.fixture
def address(root: sparklog.Root, serve: Callable[..., Address]) -> Address:
    return serve(root.location, writable=True, linger_seconds=0.0)


def send(producer: Any, topic: str, *sent: bytes) -> list[int]:
    return [producer.send(topic, value, partition=0).get(20).offset for value in sent]


def test_records_and_offsets_become_visible_with_the_commit(root: sparklog.Root, address: Address) -> None:
    from kafka import TopicPartition
    from kafka.structs import OffsetAndMetadata

    producer = kafka_producer(address)
    producer.begin_transaction()
    assert send(producer, "a", b"1", b"2") == [0, 1]
    send(producer, "b", b"3")
    producer.send_offsets_to_transaction({TopicPartition("a", 1): OffsetAndMetadata(7, "read", -1)}, "group")
    assert (values(root, "a"), values(root, "b")) == ([], [])
    assert values(root, "a", "read_uncommitted") == [b"1", b"2"]
    assert Groups(root).group("group").committed() == {}
    producer.commit_transaction()
    assert (values(root, "a"), values(root, "b")) == ([b"1", b"2"], [b"3"])
    committed = Groups(root).group("group").committed()["a", 1]
    assert (committed.offset, committed.metadata) == (7, "read")
    producer.close()


def test_aborted_records_take_offsets_and_are_not_read(root: sparklog.Root, address: Address) -> None:
    producer = kafka_producer(address)
    producer.begin_transaction()
    send(producer, "a", b"lost")
    producer.abort_transaction()
    producer.begin_transaction()
    assert send(producer, "a", b"kept") == [1]
    producer.commit_transaction()
    assert values(root, "a") == [b"kept"]
    producer.close()


def test_a_newer_instance_fences_the_older_one(root: sparklog.Root, address: Address) -> None:
    from kafka.errors import KafkaError

    older = kafka_producer(address)
    older.begin_transaction()
    send(older, "a", b"older")
    newer = kafka_producer(address)
    with pytest.raises(KafkaError):
        older.commit_transaction()
    newer.begin_transaction()
    send(newer, "a", b"newer")
    newer.commit_transaction()
    assert values(root, "a") == [b"newer"]
    older.close()
    newer.close()


def test_a_producer_id_without_an_epoch_is_rejected(steps: _Steps) -> None:
    assert steps.init(producerId=0) == Code.INVALID_REQUEST
    assert steps.init(producerEpoch=0) == Code.INVALID_REQUEST
    assert steps.init() == 0


def test_the_producer_of_offsets_without_an_effect_is_checked(steps: _Steps) -> None:
    steps.init()
    position = {"partitionIndex": 0, "committedOffset": -1, "committedMetadata": ""}
    fields = {"transactionalId": "job", "groupId": "g", "topics": [{"name": "a", "partitions": [position]}]}
    id_, epoch = steps.producer
    for producer_id, code in ((1, Code.INVALID_PRODUCER_ID_MAPPING), (id_, Code.NONE)):
        answer = steps.wire.ask("TxnOffsetCommit", 3, {**fields, "producerId": producer_id, "producerEpoch": epoch})
        assert answer["topics"][0]["partitions"][0]["errorCode"] == code


def test_a_request_that_its_client_has_given_up_does_not_fence_the_client(
    root: sparklog.Root, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client sends InitProducerId again, to another server, while the probe of the first server is running."""
    servers = [TransactionCoordinator(sparklog.open(root.location)) for _ in range(2)]
    probe, found = servers[0].root.engine.ensure_probed, []

    def slow_probe() -> None:
        found.append(servers[1].init("job", 60_000))
        probe()

    monkeypatch.setattr(servers[0].root.engine, "ensure_probed", slow_probe)
    with pytest.raises(CodeError) as raised:
        servers[0].init("job", 60_000)
    assert raised.value.code is Code.CONCURRENT_TRANSACTIONS
    assert servers[1].checked_state("job", found[0]).epoch == 1


def test_a_transaction_survives_a_restart_of_the_server(root: sparklog.Root) -> None:
    """The server that gets EndTxn has not seen the batches."""
    with serving(root.location, ServeOptions(listen=FREE, writable=True)) as first:
        one = Wire(first)
        client = _Steps(one, "job")
        client.init()
        client.produce("a", b"1")
        client.produce("a", b"2")
        client.produce("b", b"3")
        one.close()
    with serving(root.location, ServeOptions(listen=FREE, writable=True)) as second:
        client.wire = Wire(second)
        assert client.produce("b", b"4") == 0
        assert client.end(commit=True) == 0
        client.wire.close()
    assert (values(root, "a"), values(root, "b")) == ([b"1", b"2"], [b"3", b"4"])


def test_servers_take_turns_in_a_transaction(root: sparklog.Root, serve: Callable[..., Address]) -> None:
    wires = [Wire(serve(root.location, writable=True)) for _ in range(2)]
    client = _Steps(wires[0], "job")
    client.init()
    for number in range(6):
        for turn, topic in enumerate("abab"):
            client.wire = wires[(number + turn // 2) % 2]
            assert client.produce(topic, b"%d" % number) == 0
        client.wire = wires[number % 2]
        assert client.end(commit=number != 3) == 0
    kept = [b"0", b"0", b"1", b"1", b"2", b"2", b"4", b"4", b"5", b"5"]
    assert (values(root, "a"), values(root, "b")) == (kept, kept)
    for wire in wires:
        wire.close()


class _Steps:
    """A transactional producer by hand, which sends each request to `wire`."""

    def __init__(self, wire: Wire, id_: str) -> None:
        self.wire, self.id = wire, id_
        self.producer = (-1, -1)
        self.sequences: dict[str, int] = {}

    def init(self, timeout_ms: int = 60_000, **fields: Any) -> int:
        asked = {"transactionalId": self.id, "transactionTimeoutMs": timeout_ms, **fields}
        answer = self.wire.ask("InitProducerId", 4, {"producerId": -1, "producerEpoch": -1, **asked})
        self.producer = answer["producerId"], answer["producerEpoch"]
        self.sequences.clear()
        return int(answer["errorCode"])

    def produce(self, topic: str, value: bytes, version: int = 11) -> int:
        sequence = self.sequences.get(topic, 0)
        batch = batch_of([value], producer=(*self.producer, sequence), transactional=True)
        row = {"name": topic, "partitionData": [{"index": 0, "records": [batch]}]}
        fields = {"transactionalId": self.id, "acks": -1, "timeoutMs": 1000, "topicData": [row]}
        answer = self.wire.ask("Produce", version, fields)["responses"][0]["partitionResponses"][0]
        self.sequences[topic] = sequence + (answer["errorCode"] == 0)
        return int(answer["errorCode"])

    def end(self, *, commit: bool, version: int = 4) -> int:
        fields = {"transactionalId": self.id, "committed": commit}
        answer = self.wire.ask(
            "EndTxn", version, {**fields, "producerId": self.producer[0], "producerEpoch": self.producer[1]}
        )
        if version >= 5 and not answer["errorCode"]:
            self.producer = answer["producerId"], answer["producerEpoch"]
            self.sequences.clear()
        return int(answer["errorCode"])


@pytest.fixture
def steps(address: Address) -> Iterator[_Steps]:
    wire = Wire(address)
    yield _Steps(wire, "job")
    wire.close()


def test_a_producer_whose_transaction_was_aborted_by_an_operator_can_abort_and_continue(
    root: sparklog.Root, steps: _Steps
) -> None:
    steps.init()
    assert steps.produce("a", b"1") == 0
    abort_transaction(root, "job")
    # Without an error, this batch would be committed without the first one.
    assert steps.produce("a", b"2") == Code.TRANSACTION_ABORTABLE
    assert steps.produce("a", b"2", version=10) == Code.INVALID_PRODUCER_EPOCH
    assert steps.end(commit=True) == Code.TRANSACTION_ABORTABLE
    assert steps.end(commit=True, version=3) == Code.PRODUCER_FENCED
    assert steps.end(commit=False) == 0
    assert steps.produce("a", b"3") == 0
    assert steps.end(commit=True) == 0
    assert values(root, "a") == [b"3"]


def test_a_transaction_past_its_timeout_is_aborted_in_an_idle_topic(
    root: sparklog.Root, serve: Callable[..., Address], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its producer is gone, and a consumer waits at the last stable offset."""
    from kafka import KafkaConsumer, TopicPartition

    monkeypatch.setattr(server, "TIMEOUT_SECONDS", 0.05)
    address = serve(root.location, writable=True)
    wire = Wire(address)
    client = _Steps(wire, "job")
    client.init(timeout_ms=300)
    client.produce("a", b"lost")
    wire.close()
    root.topic("a").append(pa.table({"value": ["kept"], "partition": pa.array([0], pa.int32())}))
    consumer = KafkaConsumer(
        bootstrap_servers=str(address), isolation_level="read_committed", auto_offset_reset="earliest"
    )
    consumer.assign([TopicPartition("a", 0)])
    records = next(iter(consumer.poll(20_000).values()))
    assert [record.value for record in records] == [b"kept"]
    consumer.close()
    assert root.engine.decisions.log("job").refresh().reason == BY_TIMEOUT


def test_pending_offsets_of_a_transaction_past_its_timeout_are_dropped(root: sparklog.Root, steps: _Steps) -> None:
    """The group has no members whose heartbeats would resolve them."""
    steps.init(timeout_ms=200)
    position = {"partitionIndex": 0, "committedOffset": 7, "committedMetadata": ""}
    fields = {"transactionalId": "job", "groupId": "g", "topics": [{"name": "a", "partitions": [position]}]}
    id_, epoch = steps.producer
    answer = steps.wire.ask("TxnOffsetCommit", 3, {**fields, "producerId": id_, "producerEpoch": epoch})
    assert answer["topics"][0]["partitions"][0]["errorCode"] == 0
    asked = {"groupId": "g", "topics": [{"name": "a", "partitionIndexes": [0]}], "requireStable": True}

    def fetched() -> tuple[int, int]:
        row = steps.wire.ask("OffsetFetch", 7, asked)["topics"][0]["partitions"][0]
        return row["errorCode"], row["committedOffset"]

    assert fetched() == (Code.UNSTABLE_OFFSET_COMMIT, -1)
    deadline = time.monotonic() + 20
    while fetched()[0] == Code.UNSTABLE_OFFSET_COMMIT:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert fetched() == (0, -1)
    assert root.engine.decisions.log("job").refresh().reason == BY_TIMEOUT


def test_offsets_that_a_transaction_commits_during_a_fetch_are_not_stable_yet(
    steps: _Steps, address: Address, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A consumer that continued from the older offset would process its records twice."""
    steps.init()
    position = {"partitionIndex": 0, "committedOffset": 7, "committedMetadata": ""}
    fields = {"transactionalId": "job", "groupId": "g", "topics": [{"name": "a", "partitions": [position]}]}
    id_, epoch = steps.producer
    steps.wire.ask("TxnOffsetCommit", 3, {**fields, "producerId": id_, "producerEpoch": epoch})
    committed, fetching = Group.committed, Wire(address)
    ended: list[int] = []

    def committed_before_the_end(group: Group) -> Any:
        found = committed(group)
        if not ended:
            ended.append(steps.end(commit=True))
        return found

    monkeypatch.setattr(Group, "committed", committed_before_the_end)
    asked = {"groupId": "g", "topics": [{"name": "a", "partitionIndexes": [0]}], "requireStable": True}
    rows = [fetching.ask("OffsetFetch", 7, asked)["topics"][0]["partitions"][0] for _ in range(2)]
    fetching.close()
    assert ended == [0]
    assert [(row["errorCode"], row["committedOffset"]) for row in rows] == [(Code.UNSTABLE_OFFSET_COMMIT, -1), (0, 7)]


def test_producers_of_the_root_and_kafka_clients_fence_one_another(root: sparklog.Root, steps: _Steps) -> None:
    steps.init()
    steps.produce("a", b"1")
    native = transactional(root, "job").begin()
    assert steps.end(commit=True) == Code.INVALID_PRODUCER_ID_MAPPING
    native.append("a", rows("2"))
    assert steps.init() == 0
    with pytest.raises(Fenced):
        native.commit()
    steps.produce("a", b"3")
    assert steps.end(commit=True) == 0
    assert values(root, "a") == [b"3"]


def test_producers_of_the_root_and_kafka_clients_write_the_same_topics(root: sparklog.Root, steps: _Steps) -> None:
    steps.init()
    steps.produce("a", b"kafka")
    with transactional(root, "other").begin() as native:
        native.append("a", rows("native", partition=0))
    # The native records lie after the open transaction in the same partition.
    assert values(root, "a") == []
    steps.end(commit=True)
    assert values(root, "a") == [b"kafka", b"native"]


def test_tools_describe_transactions_and_producers(root: sparklog.Root, steps: _Steps) -> None:
    steps.init(timeout_ms=5_000)
    steps.produce("a", b"1")
    listed = steps.wire.ask("ListTransactions", 2, {})["transactionStates"]
    assert listed == [{"transactionalId": "job", "producerId": steps.producer[0], "transactionState": "Ongoing"}]
    (described,) = steps.wire.ask("DescribeTransactions", 0, {"transactionalIds": ["job"]})["transactionStates"]
    assert described["topics"] == [{"topic": "a", "partitions": [0]}]
    assert (described["transactionTimeoutMs"], described["transactionState"]) == (5_000, "Ongoing")
    assert (described["producerId"], described["producerEpoch"]) == steps.producer
    assert described["transactionStartTimeMs"] > 0
    fields = {"topics": [{"name": "a", "partitionIndexes": [0]}]}
    (topic,) = steps.wire.ask("DescribeProducers", 0, fields)["topics"]
    assert topic["partitions"][0]["activeProducers"][0]["currentTxnStartOffset"] == 0
    steps.end(commit=True)
    (described,) = steps.wire.ask("DescribeTransactions", 0, {"transactionalIds": ["job"]})["transactionStates"]
    assert (described["transactionState"], described["topics"]) == ("CompleteCommit", [])
    assert described["transactionStartTimeMs"] == -1
    (topic,) = steps.wire.ask("DescribeProducers", 0, fields)["topics"]
    assert topic["partitions"][0]["activeProducers"][0]["currentTxnStartOffset"] == -1


@pytest.mark.parametrize(
    ("fields", "is_listed"),
    [
        ({"stateFilters": ["Ongoing"]}, True),
        ({"stateFilters": ["CompleteAbort"]}, False),
        ({"producerIdFilters": [1]}, False),
        ({"durationFilter": 3_600_000}, False),
        ({"durationFilter": -1}, True),
        ({"transactionalIdPattern": "j.b"}, True),
        ({"transactionalIdPattern": "j"}, False),
        ({"transactionalIdPattern": ""}, True),
    ],
)
def test_transactions_are_listed_with_filters(steps: _Steps, fields: dict[str, Any], is_listed: bool) -> None:
    steps.init()
    steps.produce("a", b"1")
    answer = steps.wire.ask("ListTransactions", 2, fields)
    assert [row["transactionalId"] for row in answer["transactionStates"]] == ["job"] * is_listed


def test_an_invalid_pattern_has_an_error_code(steps: _Steps) -> None:
    assert steps.wire.ask("ListTransactions", 2, {"transactionalIdPattern": "("})["errorCode"] == (
        Code.INVALID_REGULAR_EXPRESSION
    )


def test_users_need_permission_for_a_transactional_id(
    root: sparklog.Root, tmp_path: Path, serve: Callable[..., Address]
) -> None:
    from kafka.errors import TransactionalIdAuthorizationFailedError

    (tmp_path / "users").write_text(f"anna {hashed('pencil', Random(1))} write: transaction:job-\n")
    address = serve(root.location, writable=True, users=read_users(str(tmp_path / "users")))
    login = {
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": "SCRAM-SHA-256",
        "sasl_plain_username": "anna",
        "sasl_plain_password": "pencil",
    }
    producer = kafka_producer(address, "job-1", **login)
    producer.begin_transaction()
    send(producer, "a", b"1")
    producer.commit_transaction()
    producer.close()
    with pytest.raises(TransactionalIdAuthorizationFailedError):
        kafka_producer(address, "other", **login)
    assert values(root, "a") == [b"1"]


def test_a_read_only_server_rejects_transactions(root: sparklog.Root, serve: Callable[..., Address]) -> None:
    wire = Wire(serve(root.location))
    client = _Steps(wire, "job")
    assert client.init() == Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    client.producer = (7, 0)
    assert client.end(commit=True) == Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    assert client.produce("a", b"1") == Code.TOPIC_AUTHORIZATION_FAILED
    wire.close()


# -- version 2, in which each transaction has an epoch of its own


def test_another_server_returns_the_same_epoch_if_the_response_to_end_txn_was_lost(
    root: sparklog.Root, serve: Callable[..., Address]
) -> None:
    wires = [Wire(serve(root.location, writable=True)) for _ in range(2)]
    client = _Steps(wires[0], "job")
    client.init()
    for commit in (True, False):
        client.wire = wires[0]
        assert client.produce("a", b"1", version=12) == 0
        before = client.producer
        epochs = []
        for wire in (*wires, wires[0]):
            client.producer, client.wire = before, wire
            assert client.end(commit=commit, version=5) == 0
            epochs.append(client.producer)
        assert epochs == [(before[0], before[1] + 1)] * 3
    assert client.end(commit=True, version=5) == Code.INVALID_TXN_STATE
    assert values(root, "a") == [b"1"]
    for wire in wires:
        wire.close()


def test_a_late_batch_does_not_become_a_part_of_the_next_transaction(
    root: sparklog.Root, serve: Callable[..., Address]
) -> None:
    """Both servers have seen the first transaction, so the cached entry of the second server has its epoch."""
    wires = [Wire(serve(root.location, writable=True)) for _ in range(2)]
    first, next_ = _Steps(wires[0], "job"), _Steps(wires[0], "job")
    first.init()
    for wire in wires:
        first.wire = wire
        assert first.produce("a", b"lost", version=12) == 0
    next_.producer = first.producer
    assert next_.end(commit=False, version=5) == 0
    # This server does not know of the end yet.
    for topic in ("b", "a"):
        assert first.produce(topic, b"late", version=12) == Code.INVALID_PRODUCER_EPOCH
    assert next_.produce("b", b"kept", version=12) == 0
    assert first.produce("a", b"late", version=12) == Code.INVALID_PRODUCER_EPOCH
    assert next_.end(commit=True, version=5) == 0
    assert (values(root, "a"), values(root, "b")) == ([], [b"kept"])
    for wire in wires:
        wire.close()


def test_a_producer_with_version_2_can_abort_and_continue_after_an_operator(root: sparklog.Root, steps: _Steps) -> None:
    steps.init()
    assert steps.produce("a", b"1", version=12) == 0
    abort_transaction(root, "job")
    assert steps.end(commit=True, version=5) == Code.TRANSACTION_ABORTABLE
    assert steps.end(commit=False, version=5) == 0
    assert steps.produce("a", b"2", version=12) == 0
    assert steps.end(commit=True, version=5) == 0
    assert values(root, "a") == [b"2"]


def test_a_topic_id_in_produce_is_that_of_the_current_topic(root: sparklog.Root, serve: Callable[..., Address]) -> None:
    """A batch for a deleted topic is not written to a new topic with the same name."""
    address = serve(root.location, writable=True)
    wire, other = Wire(address), Wire(serve(root.location, writable=True))

    def produce(wire: Wire, topic_id: str) -> tuple[str, int]:
        data = [{"topicId": topic_id, "partitionData": [{"index": 0, "records": [batch_of([b"1"])]}]}]
        (row,) = wire.ask("Produce", 13, {"acks": -1, "timeoutMs": 1000, "topicData": data})["responses"]
        return row["topicId"], row["partitionResponses"][0]["errorCode"]

    old = root.topic("a").log.state().topic_id
    assert produce(wire, old) == (old, 0)
    root.topic("a").delete()
    new = root.create_topic("a", partitions=2).log.state().topic_id
    assert produce(wire, old) == (old, Code.UNKNOWN_TOPIC_ID)
    assert produce(other, new) == (new, 0)
    assert produce(other, old) == (old, Code.UNKNOWN_TOPIC_ID)
    assert values(root, "a") == [b"1"]
    wire.close()
    other.close()


@pytest.mark.parametrize("version", [3, 4])
def test_the_version_of_transactions_is_a_feature(steps: _Steps, version: int) -> None:
    fields = {"clientSoftwareName": "test", "clientSoftwareVersion": "1"}
    answer = steps.wire.ask("ApiVersions", version, fields)
    finalized = {"name": "transaction.version", "maxVersionLevel": 2, "minVersionLevel": 2}
    assert finalized in answer["finalizedFeatures"]
    assert answer["finalizedFeaturesEpoch"] >= 0
    # Java clients before 3.9 reject a minimum version of 0.
    supported = {"name": "transaction.version", "minVersion": 0, "maxVersion": 2}
    assert (supported in answer["supportedFeatures"]) == (version >= 4)
    assert all(row["minVersion"] > 0 for row in answer["supportedFeatures"]) == (version < 4)


# -- the coordinator


def coordinators(world: World, count: int = 2) -> list[TransactionCoordinator]:
    world.root().create_topic("t")
    return [TransactionCoordinator(world.root()) for _ in range(count)]


def test_producer_ids_are_the_same_on_each_server_and_change_with_the_epochs() -> None:
    world = World()
    one, two = coordinators(world)
    first = one.init("job", 1_000)
    assert (first.epoch, two.producer(two.log("job").refresh())) == (0, first)
    state = one.log("job").current()
    last, next_ = (one.producer(state, epoch) for epoch in (EPOCHS, EPOCHS + 1))
    assert (last.producer_id, last.epoch, next_.epoch) == (first.producer_id, EPOCHS - 1, 0)
    assert next_.producer_id != first.producer_id
    assert one.init("other", 1_000).producer_id != first.producer_id


def test_the_producer_id_changes_when_a_transaction_uses_the_last_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transactions, "EPOCHS", 2)
    world = World()
    one, two = coordinators(world)
    first = one.init("job", 60_000)
    second = one.end("job", first, is_commit=False, is_v2=True)
    third = one.end("job", second, is_commit=False, is_v2=True)
    assert (first.epoch, second.epoch, third.epoch) == (0, 1, 0)
    assert first.producer_id == second.producer_id != third.producer_id
    assert two.end("job", second, is_commit=False, is_v2=True) == third


def test_a_retry_of_end_txn_that_loses_the_race_gets_the_same_response(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both servers have read the open transaction when one of them commits it."""
    one, two = coordinators(World())
    producer = one.init("job", 60_000)
    _produce(one, producer)
    found, results = TransactionCoordinator._prepares, list[object]()

    def commit_through_the_other_server(self: TransactionCoordinator, *arguments: Any) -> Any:
        prepares = found(self, *arguments)
        if self is one:
            results.append(two.end("job", producer, is_commit=True, is_v2=True))
        return prepares

    monkeypatch.setattr(TransactionCoordinator, "_prepares", commit_through_the_other_server)
    results.append(one.end("job", producer, is_commit=True, is_v2=True))
    assert results == [ProducerEpoch(producer.producer_id, 1)] * 2
    assert one.root.topic("t").scan().to_table().num_rows == 1


def test_a_stalled_end_txn_does_not_return_the_epoch_of_a_newer_instance(monkeypatch: pytest.MonkeyPatch) -> None:
    """The client has repeated EndTxn, which committed the transaction, and then another instance has begun."""
    one, two = coordinators(World())
    producer = one.init("job", 60_000)
    _produce(one, producer)
    found = TransactionCoordinator._prepares

    def stalled(self: TransactionCoordinator, *arguments: Any) -> Any:
        prepares = found(self, *arguments)
        if self is one:
            two.end("job", producer, is_commit=True, is_v2=True)
            two.init("job", 60_000)
        return prepares

    monkeypatch.setattr(TransactionCoordinator, "_prepares", stalled)
    with pytest.raises(CodeError, match="PRODUCER_FENCED"):
        one.end("job", producer, is_commit=True, is_v2=True)


def test_init_producer_id_returns_its_own_epoch_although_another_instance_follows() -> None:
    world = World()
    one, two = coordinators(world)
    write, newer = DecisionLog.write, list[ProducerEpoch]()

    def then_another(self: DecisionLog, step: Any) -> Decisions:
        write(self, step)
        newer.append(two.init("job", 60_000))
        return self.refresh()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(one.log("job"), "write", then_another.__get__(one.log("job")))
        older = one.init("job", 60_000)
    assert (older.epoch, newer[0].epoch) == (0, 1)


@pytest.mark.parametrize("is_v2", [True, False])
def test_an_end_in_version_1_has_no_former_epoch(is_v2: bool) -> None:
    """Only the client that began the latest epoch by ending a transaction may repeat its request."""
    one, _ = coordinators(World())
    former = one.init("job", 60_000)
    latest = one.init("job", 60_000, former)
    _produce(one, latest)
    one.end("job", latest, is_commit=True)
    with pytest.raises(CodeError, match="PRODUCER_FENCED"):
        one.end("job", former, is_commit=True, is_v2=is_v2)


def test_the_latest_entry_is_read_only_if_the_cached_entry_has_another_epoch() -> None:
    world, requests = World(), list[tuple[str, str]]()
    world.root().create_topic("t")
    store = HookedStore(world.store, before=lambda verb, key: requests.append((verb, key)))
    one, two = TransactionCoordinator(world.root()), TransactionCoordinator(world.root(store))
    producer = one.init("job", 60_000)
    _produce(two, producer)

    def opened(producer: ProducerEpoch, *, is_v2: bool) -> tuple[int, int]:
        requests.clear()
        return ClientTransaction(two, "job", producer, is_v2).open("t").n, len(requests)

    # The client may still end this transaction in version 1.
    assert opened(producer, is_v2=True) == (0, 1)
    following = one.end("job", producer, is_commit=True, is_v2=True)
    assert opened(following, is_v2=True) == (1, 2)
    assert opened(following, is_v2=True) == (1, 0)
    assert opened(following, is_v2=False) == (1, 1)


def test_a_client_that_ends_its_transactions_in_version_1_may_use_the_latest_version_of_produce() -> None:
    """All transactions of such a client have the same epoch, so each request reads the latest entry."""
    world = World()
    one, two = coordinators(world)
    producer = one.init("job", 60_000)
    for _ in range(2):
        _produce(two, producer, is_v2=True)
        one.end("job", producer, is_commit=True)
    assert world.values("t") == ["x", "x"]


@pytest.mark.parametrize("timeout_ms", [0, MAX_TRANSACTION_TIMEOUT_MS + 1])
def test_invalid_timeouts_are_rejected(timeout_ms: int) -> None:
    with pytest.raises(CodeError, match="INVALID_TRANSACTION_TIMEOUT"):
        coordinators(World())[0].init("job", timeout_ms)


@pytest.mark.parametrize("text", ["kafka/1/2", "kafka/x/2/id", "spark/1/2/id", "run-1", "", None])
def test_other_instances_are_no_kafka_clients(text: str | None) -> None:
    assert ClientInstance.parse(text) is None


@pytest.mark.parametrize("continued", [None, 0, 7])
def test_instances_are_read_as_they_are_written(continued: int | None) -> None:
    instance = ClientInstance(60_000, continued, "id")
    assert ClientInstance.parse(str(instance)) == instance


def test_each_request_writes_the_journal_if_a_cache_may_hide_the_latest_decision() -> None:
    """On such a mount, Server B could otherwise add a batch to a transaction that Server A has committed.

    1. Server B adds topic t to transaction 0 with a first batch. Server A commits the transaction.
    2. The cache of B's machine hides the decision. B gets a batch of transaction 1, and commits it as a part of 0.
    3. B cannot create the next entry of the journal, reads the decision, and rejects the batch.
    """
    world = World()
    world.root().create_topic("t")
    one = TransactionCoordinator(world.root())
    cached = NameCachingStore(world.store, world.clock, folder_ms=60_000)
    two = TransactionCoordinator(world.root(cached))
    producer = one.init("job", 60_000)
    _produce(two, producer)
    one.end("job", producer, is_commit=True)
    cached.list("_transactions/job/_log/")
    with pytest.raises(CodeError, match=r"INVALID_TXN_STATE|has already been committed or aborted"):
        _produce(two, producer)
    assert world.values("t") == ["x"]


def test_end_txn_waits_for_prepares_that_a_cache_hides() -> None:
    """The journal lists only the latest prepare of a topic. COMMIT must also list the earlier one."""
    world = World()
    world.root().create_topic("t")
    stores = [NameCachingStore(world.store, world.clock, folder_ms=60_000) for _ in range(2)]
    one, two = (TransactionCoordinator(world.root(store)) for store in stores)
    producer = two.init("job", 60_000)
    stores[0].list("t/_log/")
    for _ in range(2):
        _produce(two, producer)
    started_ms = world.now_ms
    one.end("job", producer, is_commit=True)
    assert world.now_ms > started_ms
    assert world.values("t") == ["x", "x"]


def _produce(coordinator: TransactionCoordinator, producer: ProducerEpoch, *, is_v2: bool = False) -> None:
    transaction = ClientTransaction(coordinator, "job", producer, is_v2)
    log = coordinator.root.topic("t").log
    txn = transaction.open("t")
    _append(log, txn)
    transaction.add_topic(txn, log)


def _append(log: Any, txn: Any) -> None:
    from sparklog.log.write.append_writer import AppendWriter

    target = log.append_target(refresh=False)
    writer = AppendWriter(target, None, log.env, 1)
    writer.write(rows("x").to_batches()[0])
    log.commit_append(writer.finish(), target, txn=txn)


def test_topics_that_were_deleted_do_not_keep_a_transaction_from_its_commit(root: sparklog.Root, steps: _Steps) -> None:
    steps.init()
    steps.produce("a", b"1")
    steps.produce("b", b"2")
    root.topic("a").delete()
    assert steps.end(commit=True) == 0
    assert values(root, "b") == [b"2"]


@pytest.mark.parametrize(
    ("code", "api", "version", "expected"),
    [
        (Code.TRANSACTION_ABORTABLE, "Produce", 11, Code.TRANSACTION_ABORTABLE),
        (Code.TRANSACTION_ABORTABLE, "Produce", 10, Code.INVALID_PRODUCER_EPOCH),
        (Code.TRANSACTION_ABORTABLE, "EndTxn", 4, Code.TRANSACTION_ABORTABLE),
        (Code.TRANSACTION_ABORTABLE, "EndTxn", 3, Code.PRODUCER_FENCED),
        (Code.TRANSACTION_ABORTABLE, "EndTxn", 1, Code.INVALID_PRODUCER_EPOCH),
        (Code.PRODUCER_FENCED, "InitProducerId", 4, Code.PRODUCER_FENCED),
        (Code.PRODUCER_FENCED, "InitProducerId", 3, Code.INVALID_PRODUCER_EPOCH),
        (Code.PRODUCER_FENCED, "TxnOffsetCommit", 4, Code.INVALID_PRODUCER_EPOCH),
        (Code.NONE, "EndTxn", 0, Code.NONE),
    ],
)
def test_clients_get_codes_of_their_version(code: Code, api: str, version: int, expected: Code) -> None:
    assert known_code(code, api, version) is expected


def test_patterns_of_clients_are_matched_in_linear_time() -> None:
    """A backtracking engine takes longer than the age of the universe for this name."""
    names = ["a" * 100 + "!", "a" * 100]
    assert _matching("(a+)+", names) == {names[1]}
    assert _matching(None, names) == names


def test_queues_of_unknown_topics_are_removed() -> None:
    """Clients choose these names."""

    async def run() -> None:
        served = server.in_memory()
        assert served.root is not None
        served.root.create_topic("t")
        appends = Appends(served, asyncio.to_thread)
        for name in ("nosuch", "t"):
            response = await appends.add(name, 0, memoryview(batch_of([b"1"])), 7)
            assert response.code is (Code.NONE if name == "t" else Code.UNKNOWN_TOPIC_OR_PARTITION)
        await asyncio.sleep(0)
        assert list(appends._topics) == ["t"]

    asyncio.run(run())


def test_the_queue_of_an_unknown_topic_is_removed_if_the_transaction_is_unknown_as_well() -> None:
    async def run() -> None:
        served = server.in_memory()
        assert served.root is not None
        appends, producer = Appends(served, asyncio.to_thread), ProducerEpoch(1, 0)
        transaction = ClientTransaction(TransactionCoordinator(served.root), "job", producer)
        batch = memoryview(batch_of([b"1"], producer=(1, 0, 0), transactional=True))
        assert (await appends.add("nosuch", 0, batch, 11, transaction)).code is Code.INVALID_PRODUCER_ID_MAPPING
        await asyncio.sleep(0)
        assert not appends._topics

    asyncio.run(run())


@pytest.mark.parametrize("code", [Code.KAFKA_STORAGE_ERROR, Code.UNKNOWN_SERVER_ERROR])
def test_a_failed_commit_removes_only_queues_of_unknown_topics(code: Code) -> None:
    """A queue remains if an earlier commit has read that the topic exists, and it delays the next commit."""

    async def run() -> None:
        async def failing(commit: Callable[..., Responses], _: TopicLog, batches: Sequence[Any]) -> Responses:
            if code is Code.UNKNOWN_SERVER_ERROR:
                raise RuntimeError("broken")
            return dict.fromkeys(batches, ProduceResponse(code))

        served = server.in_memory()
        assert served.root is not None
        served.root.create_topic("t")
        appends = Appends(served, failing)
        appends._topics["t"] = TopicQueue(0.0, exists=True)
        for name in ("t", "nosuch"):
            assert (await appends.add(name, 0, memoryview(batch_of([b"1"])), 7)).code is code
        await asyncio.sleep(0)
        assert list(appends._topics) == ["t"]

    asyncio.run(run())


@pytest.mark.parametrize("is_first", [True, False])
def test_an_internal_error_in_a_transaction_does_not_affect_other_batches_of_the_commit(
    monkeypatch: pytest.MonkeyPatch, is_first: bool
) -> None:
    def fail(*_: object) -> None:
        raise OSError("broken")

    monkeypatch.setattr(ClientTransaction, "open", fail)

    async def run() -> None:
        served = server.in_memory()
        assert served.root is not None
        served.root.create_topic("t")
        appends, producer = Appends(served, asyncio.to_thread), ProducerEpoch(1, 0)
        transaction = ClientTransaction(TransactionCoordinator(served.root), "job", producer)
        part = memoryview(batch_of([b"part"], producer=(1, 0, 0), transactional=True))
        sent = [(part, transaction), (memoryview(batch_of([b"plain"])), None)]
        if not is_first:
            sent.reverse()
        responses = {data: appends.add("t", 0, data, 11, transaction) for data, transaction in sent}
        codes = {data == part: (await response).code for data, response in responses.items()}
        assert codes == {True: Code.UNKNOWN_SERVER_ERROR, False: Code.NONE}
        assert values(served.root, "t") == [b"plain"]

    asyncio.run(run())


def test_an_internal_error_in_a_second_attempt_does_not_affect_committed_batches(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A duplicate of a batch in the same commit is validated again after the commit."""

    def fail(*_: object) -> None:
        raise OSError("broken")

    monkeypatch.setattr(batch_commit, "_repeated", fail)

    async def run() -> None:
        served = server.in_memory()
        assert served.root is not None
        served.root.create_topic("t")
        appends, batch = Appends(served, asyncio.to_thread), memoryview(batch_of([b"1"], producer=(1, 0, 0)))
        responses = [appends.add("t", 0, batch, 11) for _ in range(2)]
        assert [(await response).code for response in responses] == [Code.NONE, Code.UNKNOWN_SERVER_ERROR]
        assert values(served.root, "t") == [b"1"]

    asyncio.run(run())


def test_batches_that_wait_for_a_commit_get_a_response_if_the_worker_is_cancelled() -> None:
    async def run() -> None:
        appends = Appends(server.in_memory(), asyncio.to_thread)
        an_hour = asyncio.get_running_loop().time() + 3_600
        waiting = (TopicQueue(0.0, earliest_start=an_hour), TopicQueue(0.0, latest_start=an_hour, expected_batches=3))
        for queue in waiting:
            appends._topics["t"] = queue
            responses = [appends.add("t", 0, memoryview(batch_of([b"1"])), 7) for _ in range(2)]
            await asyncio.sleep(0)
            assert queue.worker is not None
            queue.worker.cancel()
            for response in responses:
                assert (await asyncio.wait_for(response, 30)).code is Code.NOT_LEADER_OR_FOLLOWER
            assert not queue.pending

    asyncio.run(run())


def test_a_batch_gets_a_response_if_the_worker_is_cancelled_before_its_first_step() -> None:
    async def run() -> None:
        appends = Appends(server.in_memory(), asyncio.to_thread)
        response = appends.add("t", 0, memoryview(batch_of([b"1"])), 7)
        worker = appends._topics["t"].worker
        assert worker is not None
        worker.cancel()
        assert (await asyncio.wait_for(response, 30)).code is Code.NOT_LEADER_OR_FOLLOWER
        await asyncio.sleep(0)
        assert not appends._topics

    asyncio.run(run())


@pytest.mark.parametrize("waits_for", ["linger", "producers"])
def test_waiting_batches_are_rejected_when_the_server_stops(waits_for: str) -> None:
    async def run() -> None:
        appends, an_hour = Appends(server.in_memory(), asyncio.to_thread), asyncio.get_running_loop().time() + 3_600
        appends._topics["t"] = (
            TopicQueue(0.0, earliest_start=an_hour)
            if waits_for == "linger"
            else TopicQueue(0.0, latest_start=an_hour, expected_batches=3)
        )
        response = appends.add("t", 0, memoryview(batch_of([b"1"])), 7)
        await asyncio.sleep(0)
        await appends.close(3_600)
        assert response.result().code is Code.NOT_LEADER_OR_FOLLOWER
        late = appends.add("t", 0, memoryview(batch_of([b"1"])), 7)
        assert late.result().code is Code.NOT_LEADER_OR_FOLLOWER

    asyncio.run(asyncio.wait_for(run(), 60))


def test_batches_that_wait_for_a_commit_in_flight_are_rejected_when_the_server_stops() -> None:
    async def run() -> None:
        started, complete = asyncio.Event(), asyncio.Event()

        async def gated(commit: Callable[..., Any], *args: Any) -> Any:
            started.set()
            await complete.wait()
            return commit(*args)

        appends = Appends(server.in_memory(), gated, linger_seconds=3_600)
        first = appends.add("t", 0, memoryview(batch_of([b"1"])), 7)
        await started.wait()
        second = appends.add("t", 0, memoryview(batch_of([b"2"])), 7)
        closing = asyncio.ensure_future(appends.close(3_600))
        assert (await second).code is Code.NOT_LEADER_OR_FOLLOWER
        assert not first.done()
        complete.set()
        await closing
        assert first.done()

    asyncio.run(asyncio.wait_for(run(), 60))


def test_batches_of_a_cancelled_commit_get_a_response() -> None:
    async def run() -> None:
        served = server.in_memory()
        started = asyncio.Event()

        async def stuck(*_: object) -> None:
            started.set()
            await asyncio.Event().wait()

        appends = Appends(served, stuck)
        response = appends.add("t", 0, memoryview(batch_of([b"1"])), 7)
        await started.wait()
        worker = appends._topics["t"].worker
        assert worker is not None
        worker.cancel()
        assert (await response).code is Code.UNKNOWN_SERVER_ERROR

    asyncio.run(run())
