"""Transactions step by step, each step with valid and invalid fields: the same questions for a broker and for ours.

A case is a script of steps that producers of one transactional id take. Its answer has the code of each step, and what
readers of both isolation levels see.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, TypeAlias

from sparklog.serve.codes import Code
from tests.serve.broker_cases import LATEST, NOT_YET, Answer, Asked, Case, code
from tests.support.odd_batches import TIME_MS, odd_batch, record

CONCURRENT_TRANSACTIONS = Code.CONCURRENT_TRANSACTIONS
"""A broker writes markers after its response to EndTxn, and asks clients to retry until they are written."""
NEW_PRODUCER = (-1, -1)
TOPIC_IDS_SINCE = 13
UNKNOWN_TOPIC_ID = "abcdefghijklmnopqrstuQ"
Producer: TypeAlias = tuple[int, int]


class TransactionalClient:
    """Producers of one transactional id, a topic `t` with two partitions and a topic `u`, and a group."""

    def __init__(self, server: Asked) -> None:
        self.server = server
        self.id = f"id{time.monotonic_ns()}"
        self.group = f"group{time.monotonic_ns()}"
        self.topics = {"t": server.topic(2), "u": server.topic()}
        self.latest: Producer = NEW_PRODUCER
        self.sequences: dict[tuple[Producer, str, int], int] = {}
        for kind, key in ((0, self.group), (1, self.id)):
            self._ask("FindCoordinator", 3, {"key": key, "keyType": kind}, lambda found: found)

    def _ask(self, name: str, version: int, fields: dict[str, Any], find: Callable[[Any], Any]) -> Any:
        for _ in range(200):
            answer = self.server.ask(name, version, fields)
            if answer == "closed" or find(answer)["errorCode"] not in {*NOT_YET, CONCURRENT_TRANSACTIONS}:
                break
            time.sleep(0.02)
        return answer if answer == "closed" else find(answer)

    def init(
        self, producer: Producer = NEW_PRODUCER, timeout_ms: int = 60_000, version: int = 4, id_: str | None = None
    ) -> Answer:
        """Return the code, and whether the producer id is the same and the epoch higher than before."""
        name = self.id if id_ is None else id_
        fields = {"transactionalId": name, "transactionTimeoutMs": timeout_ms}
        answer = self._ask("InitProducerId", version, self._with(fields, producer), lambda found: found)
        if answer == "closed" or answer["errorCode"]:
            return answer if answer == "closed" else code(answer)
        before, self.latest = self.latest, (answer["producerId"], answer["producerEpoch"])
        same_id = before == NEW_PRODUCER or before[0] == self.latest[0]
        return [code(answer), same_id, self.latest[1] > before[1]]

    @staticmethod
    def _with(fields: dict[str, Any], producer: Producer) -> dict[str, Any]:
        return {**fields, "producerId": producer[0], "producerEpoch": producer[1]}

    def add(self, *partitions: tuple[str, int], producer: Producer | None = None, version: int = 3) -> Answer:
        """Add partitions; return their codes."""
        id_, epoch = producer or self.latest
        topics: dict[str, list[int]] = {}
        for topic, number in partitions:
            topics.setdefault(self.topics.get(topic, topic), []).append(number)
        fields = {
            "v3AndBelowTransactionalId": self.id,
            "v3AndBelowProducerId": id_,
            "v3AndBelowProducerEpoch": epoch,
            "v3AndBelowTopics": [{"name": name, "partitions": numbers} for name, numbers in topics.items()],
        }
        for _ in range(200):
            answer = self.server.ask("AddPartitionsToTxn", version, fields)
            if answer == "closed":
                return answer
            rows = [row for topic in answer["resultsByTopicV3AndBelow"] for row in topic["resultsByPartition"]]
            codes = [row["partitionErrorCode"] for row in rows]
            if not {*NOT_YET, CONCURRENT_TRANSACTIONS} - {Code.UNKNOWN_TOPIC_OR_PARTITION} & set(codes):
                break
            time.sleep(0.02)
        # A broker returns the partitions in any order.
        return sorted(Code(number).name for number in codes)

    def produce(
        self,
        topic: str,
        value: bytes,
        partition: int = 0,
        *,
        producer: Producer | None = None,
        again: bool = False,
        skipped: int = 0,
        id_: str | None = None,
        version: int = 11,
    ) -> Answer:
        """Produce a record and return the code.

        `again` repeats the sequence of the record before it, and `skipped` sequences are left out.
        """
        sent = self.latest if producer is None else producer
        sequence = self.sequences.get((sent, topic, partition), 0) - again + skipped
        header = {"producer_id": sent[0], "producer_epoch": sent[1], "base_sequence": sequence, "attributes": 0x10}
        batch = odd_batch([TIME_MS], payload=record(0, 0, value=value), **header)  # type: ignore[arg-type]
        row = {"index": partition, "records": [batch]}
        fields = {
            "transactionalId": self.id if id_ is None else id_,
            "acks": -1,
            "timeoutMs": 10_000,
            "topicData": [{"name": self.topics.get(topic, topic), "partitionData": [row]}],
        }
        if version >= TOPIC_IDS_SINCE:
            fields["topicData"][0]["topicId"] = self.topic_id(topic)
        answer = self._ask("Produce", version, fields, lambda found: found["responses"][0]["partitionResponses"][0])
        if answer != "closed" and not answer["errorCode"]:
            self.sequences[sent, topic, partition] = sequence + 1
        return answer if answer == "closed" else code(answer)

    def end(
        self, is_commit: bool, producer: Producer | None = None, version: int = 3, id_: str | None = None
    ) -> Answer:
        fields = {"transactionalId": self.id if id_ is None else id_, "committed": is_commit}
        answer = self._ask("EndTxn", version, self._with(fields, producer or self.latest), lambda found: found)
        return answer if answer == "closed" else code(answer)

    def end_and_begin(self, is_commit: bool, producer: Producer | None = None) -> Answer:
        """End the transaction as in version 2 of the protocol, so that the next one has an epoch of its own.

        Return the code, whether the producer id is the same, and the difference between the epochs.
        """
        sent = producer or self.latest
        fields = self._with({"transactionalId": self.id, "committed": is_commit}, sent)
        answer = self._ask("EndTxn", 5, fields, lambda found: found)
        if answer == "closed":
            return answer
        if answer["errorCode"]:
            return [code(answer), answer["producerId"], answer["producerEpoch"]]
        self.latest = answer["producerId"], answer["producerEpoch"]
        return [code(answer), self.latest[0] == sent[0], self.latest[1] - sent[1]]

    def wait_for_markers(self) -> None:
        """Wait until the last stable offset of partition 0 of `t` is the end: a broker writes markers after EndTxn."""
        rows = [{"name": self.topics["t"], "partitions": [{"partitionIndex": 0, "timestamp": LATEST}]}]
        for _ in range(200):
            asked = ({"replicaId": -1, "isolationLevel": level, "topics": rows} for level in (0, 1))
            ends = [
                self.server.ask("ListOffsets", 7, fields)["topics"][0]["partitions"][0]["offset"] for fields in asked
            ]
            if ends[0] == ends[1]:
                break
            time.sleep(0.02)

    def topic_id(self, topic: str) -> str:
        if topic not in self.topics:
            return UNKNOWN_TOPIC_ID
        answer = self.server.ask("Metadata", 12, {"topics": [{"name": self.topics[topic]}]})
        return str(answer["topics"][0]["topicId"])

    def add_offsets(self, producer: Producer | None = None) -> Answer:
        fields = self._with({"transactionalId": self.id, "groupId": self.group}, producer or self.latest)
        answer = self._ask("AddOffsetsToTxn", 3, fields, lambda found: found)
        return answer if answer == "closed" else code(answer)

    def commit_offset(self, offset: int, producer: Producer | None = None, version: int = 3, **fields: Any) -> Answer:
        """Send an offset of partition 0 of `t` with the transaction."""
        row = {"partitionIndex": 0, "committedOffset": offset, "committedMetadata": ""}
        topics = [{"name": self.topics["t"], "partitions": [row]}]
        all_fields = {"transactionalId": self.id, "groupId": self.group, "topics": topics, **fields}
        answer = self._ask(
            "TxnOffsetCommit",
            version,
            self._with(all_fields, producer or self.latest),
            lambda found: found["topics"][0]["partitions"][0],
        )
        return answer if answer == "closed" else code(answer)

    def committed_offset(self, *, is_stable: bool = False, until_stable: bool = False) -> Answer:
        topics = [{"name": self.topics["t"], "partitionIndexes": [0]}]
        fields = {"groupId": self.group, "topics": topics, "requireStable": is_stable}
        for _ in range(200):
            answer = self.server.ask("OffsetFetch", 7, fields)
            if answer["errorCode"] in NOT_YET:
                time.sleep(0.02)
                continue
            row = answer["topics"][0]["partitions"][0]
            if not until_stable or row["errorCode"] != Code.UNSTABLE_OFFSET_COMMIT:
                return [code(row), row["committedOffset"]]
            time.sleep(0.02)
        return "not stable"

    def values(self, topic: str, partition: int = 0, isolation: str = "read_committed") -> list[str]:
        """Return the values that kafka-python's consumer reads up to the end."""
        from kafka import KafkaConsumer, TopicPartition

        here = TopicPartition(self.topics[topic], partition)
        consumer = KafkaConsumer(bootstrap_servers=str(self.server.address), isolation_level=isolation, group_id=None)
        try:
            consumer.assign([here])
            consumer.seek_to_beginning(here)
            end, found = consumer.end_offsets([here])[here], list[str]()
            deadline = time.monotonic() + 20
            while consumer.position(here) < end and time.monotonic() < deadline:
                found += [record.value.decode() for records in consumer.poll(200).values() for record in records]
            return found
        finally:
            consumer.close()

    def seen(self) -> Answer:
        """Return what readers see in partition 0 of both topics: with read_uncommitted, then with read_committed."""
        return [
            [self.values(topic, isolation=level) for topic in self.topics]
            for level in ("read_uncommitted", "read_committed")
        ]


Script: TypeAlias = Callable[[TransactionalClient], Answer]
SCRIPTS: dict[str, Script] = {}


def script(run: Script) -> Script:
    SCRIPTS[run.__name__.replace("_", " ")] = run
    return run


@script
def commit(client: TransactionalClient) -> Answer:
    return [
        client.init(),
        client.add(("t", 0), ("u", 0)),
        client.produce("t", b"1"),
        client.produce("u", b"2"),
        client.produce("t", b"3"),
        client.seen(),
        client.end(True),
        client.seen(),
    ]


@script
def abort(client: TransactionalClient) -> Answer:
    steps = [client.init(), client.add(("t", 0)), client.produce("t", b"lost"), client.end(False)]
    steps += [client.add(("t", 0)), client.produce("t", b"kept"), client.end(True)]
    return [steps, client.seen()]


@script
def end_again(client: TransactionalClient) -> Answer:
    """The response to EndTxn was lost."""
    steps = [client.init(), client.add(("t", 0)), client.produce("t", b"1"), client.end(True), client.end(True)]
    steps += [client.add(("t", 0)), client.produce("t", b"2"), client.end(False), client.end(False)]
    return [steps, client.seen()]


@script
def end_without_records(client: TransactionalClient) -> Answer:
    return [client.init(), client.add(("t", 0)), client.end(True), client.add(("t", 0)), client.end(False)]


@script
def retried_batch(client: TransactionalClient) -> Answer:
    steps = [client.init(), client.add(("t", 0)), client.produce("t", b"1"), client.produce("t", b"1", again=True)]
    return [steps, client.end(True), client.seen()]


@script
def newer_instance(client: TransactionalClient) -> Answer:
    """It aborts what the older instance has left open, and fences it."""
    steps = [client.init(), client.add(("t", 0)), client.produce("t", b"old")]
    old = client.latest
    steps += [client.init(), client.seen()]
    steps += [client.add(("u", 0), producer=old), client.end(True, old), client.end(False, old)]
    steps += [client.produce("t", b"zombie", producer=old), client.init(old)]
    steps += [client.add(("t", 0)), client.produce("t", b"new"), client.end(True)]
    return [steps, client.seen()]


@script
def newer_instance_by_old_versions(client: TransactionalClient) -> Answer:
    """Older clients do not know PRODUCER_FENCED."""
    steps = [client.init(version=1)]
    old = client.latest
    steps += [client.init(version=1), client.add(("t", 0), producer=old, version=1)]
    return [*steps, client.end(True, old, version=1), client.init(old, version=3)]


@script
def continue_after_an_error(client: TransactionalClient) -> Answer:
    """A client that failed to send begins the next epoch with its former producer (KIP-360)."""
    steps = [client.init(), client.add(("t", 0)), client.produce("t", b"lost")]
    former = client.latest
    steps += [client.init(former)]
    client.latest, latest = former, client.latest
    # The response was lost, and the client asks again.
    steps += [client.init(former)]
    return [
        *steps,
        client.latest == latest,
        client.add(("t", 0)),
        client.produce("t", b"1"),
        client.end(True),
        client.seen(),
    ]


@script
def unknown_producers(client: TransactionalClient) -> Answer:
    steps = [client.end(True, (7, 0)), client.add(("t", 0), producer=(7, 0)), client.init((7, 0))]
    steps += [client.init()]
    id_, epoch = client.latest
    for wrong in ((id_ + 1, epoch), (id_, epoch + 1)):
        steps += [client.add(("t", 0), producer=wrong), client.end(True, wrong), client.init(wrong)]
    return steps


@script
def invalid_partitions(client: TransactionalClient) -> Answer:
    steps = [client.init(), client.add(("t", 0), ("t", 9)), client.add(("t", 0), ("nosuch", 0))]
    return [*steps, client.add(("t", 0)), client.produce("t", b"1"), client.end(True), client.seen()]


@script
def invalid_timeouts(client: TransactionalClient) -> Answer:
    return [client.init(timeout_ms=0), client.init(timeout_ms=-1), client.init(timeout_ms=2_000_000_000)]


@script
def empty_id(client: TransactionalClient) -> Answer:
    return client.init(id_="")


@script
def offsets_of_a_commit(client: TransactionalClient) -> Answer:
    steps = [client.init(), client.committed_offset()]
    steps += [
        client.add_offsets(),
        client.commit_offset(7),
        client.committed_offset(),
        client.committed_offset(is_stable=True),
    ]
    return [*steps, client.end(True), client.committed_offset(is_stable=True, until_stable=True)]


@script
def offsets_of_an_abort(client: TransactionalClient) -> Answer:
    steps = [client.init(), client.add_offsets(), client.commit_offset(7), client.end(False)]
    return [*steps, client.committed_offset(is_stable=True, until_stable=True)]


@script
def offsets_with_records(client: TransactionalClient) -> Answer:
    steps = [
        client.init(),
        client.add(("t", 0)),
        client.produce("t", b"1"),
        client.add_offsets(),
        client.commit_offset(5),
    ]
    steps += [client.end(True), client.committed_offset(is_stable=True, until_stable=True), client.seen()]
    steps += [client.add_offsets(), client.commit_offset(6), client.end(True)]
    return [*steps, client.committed_offset(is_stable=True, until_stable=True)]


@script
def offsets_of_members(client: TransactionalClient) -> Answer:
    """The group has no members."""
    steps = [client.init(), client.add_offsets()]
    steps += [client.commit_offset(7, generationId=1, memberId="nobody"), client.commit_offset(7, memberId="nobody")]
    return [*steps, client.end(False)]


@script
def fenced_offsets(client: TransactionalClient) -> Answer:
    steps = [client.init(), client.add_offsets()]
    old = client.latest
    return [*steps, client.init(), client.add_offsets(old), client.commit_offset(7, old)]


@script
def batches_of_no_transaction(client: TransactionalClient) -> Answer:
    """A transactional batch for an id that is unknown, and one that is invalid."""
    client.init()
    return [client.produce("t", b"1", producer=(9, 0)), client.seen()]


@script
def batch_for_a_partition_that_was_not_added(client: TransactionalClient) -> Answer:
    steps = [client.init(), client.add(("t", 0)), client.produce("t", b"1"), client.produce("u", b"2")]
    return [*steps, client.end(True), client.seen()]


# -- version 2 of the protocol (KIP-890): Produce adds its partitions, and each transaction has an epoch of its own


@script
def v2_commit(client: TransactionalClient) -> Answer:
    steps = [client.init(version=5), client.produce("t", b"1", version=12), client.produce("u", b"2", version=12)]
    steps += [client.produce("t", b"3", version=12), client.seen(), client.end_and_begin(True), client.seen()]
    steps += [client.produce("t", b"4", version=12), client.produce("t", b"5", version=12), client.end_and_begin(True)]
    return [steps, client.seen()]


@script
def v2_abort(client: TransactionalClient) -> Answer:
    steps = [client.init(version=5), client.produce("t", b"lost", version=12), client.end_and_begin(False)]
    steps += [client.produce("t", b"kept", version=12), client.end_and_begin(True)]
    return [steps, client.seen()]


@script
def v2_end_again(client: TransactionalClient) -> Answer:
    """The response to EndTxn was lost, so the client sends the epoch of the transaction again."""
    steps = [client.init(version=5)]
    for is_commit in (True, False):
        steps.append(client.produce("t", b"1", version=12))
        former = client.latest
        steps += [client.end_and_begin(is_commit), client.end_and_begin(not is_commit, former)]
        steps += [client.end_and_begin(is_commit, former), client.end_and_begin(is_commit, former)]
    return [steps, client.produce("t", b"2", version=12), client.end_and_begin(True), client.seen()]


@script
def v2_end_again_in_the_next_transaction(client: TransactionalClient) -> Answer:
    steps = [client.init(version=5), client.produce("t", b"1", version=12)]
    former = client.latest
    steps += [client.end_and_begin(True), client.produce("t", b"2", version=12)]
    steps += [client.end_and_begin(True, former), client.end_and_begin(False, former)]
    return [*steps, client.end_and_begin(True), client.seen()]


@script
def v2_late_batches(client: TransactionalClient) -> Answer:
    """A batch arrives after its transaction was ended: between two transactions, and in the next one."""
    steps = [client.init(version=5), client.produce("t", b"1", version=12)]
    former = client.latest
    steps.append(client.end_and_begin(True))
    client.wait_for_markers()
    steps.append(client.produce("t", b"late", producer=former, version=12))
    steps += [client.produce("u", b"late", producer=former, version=12), client.produce("t", b"2", version=12)]
    steps += [client.produce("t", b"late", producer=former, version=12)]
    steps += [client.produce("u", b"late", producer=former, version=12)]
    steps += [client.produce("t", b"1", producer=former, again=True, version=12)]
    return [*steps, client.end_and_begin(True), client.seen()]


@script
def v2_end_without_records(client: TransactionalClient) -> Answer:
    steps = [client.init(version=5), client.end_and_begin(True)]
    former = client.latest
    steps += [client.end_and_begin(False), client.end_and_begin(False, former), client.end_and_begin(True, former)]
    steps += [client.end_and_begin(True), client.produce("t", b"1", version=12), client.end_and_begin(True)]
    return [*steps, client.end_and_begin(True), client.end_and_begin(False), client.seen()]


@script
def v2_sequences(client: TransactionalClient) -> Answer:
    steps = [client.init(version=5), client.produce("t", b"1", version=12)]
    steps += [client.produce("t", b"1", again=True, version=12), client.produce("t", b"3", skipped=1, version=12)]
    steps += [client.end_and_begin(True), client.produce("t", b"2", skipped=1, version=12)]
    steps += [client.produce("t", b"2", version=12), client.end_and_begin(True)]
    return [*steps, client.seen()]


@script
def v2_newer_instance(client: TransactionalClient) -> Answer:
    steps = [client.init(version=5), client.produce("t", b"old", version=12)]
    old = client.latest
    steps += [client.init(version=5), client.seen()]
    steps += [client.produce("t", b"zombie", producer=old, version=12)]
    steps += [client.end_and_begin(is_commit, old) for is_commit in (True, False)]
    steps += [client.commit_offset(7, old, version=5), client.init(old, version=5)]
    return [*steps, client.produce("t", b"new", version=12), client.end_and_begin(True), client.seen()]


@script
def v2_continue_after_an_error(client: TransactionalClient) -> Answer:
    """The client begins the next epoch with its former producer, also after a lost response to EndTxn."""
    steps = [client.init(version=5), client.produce("t", b"lost", version=12)]
    former = client.latest
    steps += [client.init(former, version=5), client.produce("t", b"1", version=12)]
    former = client.latest
    steps.append(client.end_and_begin(True))
    latest, client.latest = client.latest, former
    steps += [client.init(former, version=5), client.latest == latest]
    return [*steps, client.produce("t", b"2", version=12), client.end_and_begin(True), client.seen()]


@script
def v2_unknown_producers(client: TransactionalClient) -> Answer:
    steps = [client.produce("t", b"1", producer=(7, 0), version=12), client.end_and_begin(True, (7, 0))]
    steps.append(client.init(version=5))
    id_, epoch = client.latest
    for wrong in ((id_ + 1, epoch), (id_, epoch + 1)):
        steps += [client.produce("t", b"1", producer=wrong, version=12), client.end_and_begin(True, wrong)]
        steps += [client.commit_offset(7, wrong, version=5), client.init(wrong, version=5)]
    return [*steps, client.seen()]


@script
def v2_offsets(client: TransactionalClient) -> Answer:
    """AddOffsetsToTxn is not needed."""
    steps = [client.init(version=5), client.commit_offset(7, version=5), client.committed_offset(is_stable=True)]
    former = client.latest
    steps += [client.end_and_begin(True), client.committed_offset(is_stable=True, until_stable=True)]
    steps += [client.commit_offset(8, former, version=5), client.commit_offset(9, version=5)]
    steps += [client.commit_offset(8, former, version=5), client.produce("t", b"1", version=12)]
    steps += [client.end_and_begin(True), client.committed_offset(is_stable=True, until_stable=True), client.seen()]
    steps += [client.commit_offset(10, version=5), client.end_and_begin(False)]
    return [*steps, client.committed_offset(is_stable=True, until_stable=True)]


@script
def v2_and_v1(client: TransactionalClient) -> Answer:
    """A client that ends its transactions with an older version keeps its epoch."""
    steps = [client.init(version=5), client.add(("t", 0)), client.produce("t", b"1"), client.end_and_begin(True)]
    former = client.latest
    steps += [client.add(("t", 0)), client.produce("t", b"2"), client.end(True, version=4), client.end(True, version=4)]
    steps += [client.add(("t", 0)), client.produce("t", b"3"), client.end(False, version=4)]
    client.wait_for_markers()
    steps += [client.produce("t", b"4", version=12), client.end_and_begin(True), client.add(("t", 0), producer=former)]
    return [*steps, client.end(True, former, version=4), client.seen()]


@script
def v2_topic_ids(client: TransactionalClient) -> Answer:
    steps = [client.init(version=5), client.produce("t", b"1", version=13), client.produce("nosuch", b"1", version=13)]
    return [*steps, client.produce("t", b"2", version=13), client.end_and_begin(True), client.seen()]


def _case(run: Script) -> Case:
    return lambda server: run(TransactionalClient(server))


TRANSACTION_CASES = {f"transactions: {name}": _case(run) for name, run in SCRIPTS.items()}
