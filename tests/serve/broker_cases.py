"""Unusual batches and requests, and the responses of a server. The cases can be sent to a broker or to our server.

Each case has its own topic. A response is a list of JSON values: codes, offsets, timestamps and headers, or "closed" if
the server closed the connection.
"""

from __future__ import annotations

import json
import struct
import time
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from sparklog.format.batch_scan import crc_failures, scan_headers
from sparklog.serve.codes import Code
from sparklog.serve.options import Address
from tests.serve.wire import Wire
from tests.support.odd_batches import TIME_MS, odd_batch, record

Answer: TypeAlias = Any
T = TIME_MS
GREATEST, EARLIEST, LATEST = -3, -2, -1
HOUR_MS = 3_600_000
NOT_YET = {Code.UNKNOWN_TOPIC_OR_PARTITION, 5, 6, 14, 15, 16}
"""Codes of a broker whose topic, leader or coordinator is new."""


class Asked:
    """A server that gets the requests. Connections that it closes are opened again."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self.wire = Wire(address)

    def close(self) -> None:
        self.wire.close()

    def ask(self, name: str, version: int, fields: Mapping[str, Any]) -> Any:
        return self.guarded(lambda: self.wire.ask(name, version, dict(fields)))

    def guarded(self, call: Callable[[], Any]) -> Any:
        try:
            return call()
        except (AssertionError, OSError):
            self.wire.close()
            self.wire = Wire(self.address)
            return "closed"

    def topic(self, partitions: int = 1, **configs: Any) -> str:
        """Create a topic, and wait until it is writable."""
        name = f"case{time.monotonic_ns()}"
        configs = {"retention_ms": "-1", **configs}
        rows = [{"name": key.replace("_", "."), "value": value} for key, value in configs.items()]
        topic = {"name": name, "numPartitions": partitions, "replicationFactor": 1, "assignments": [], "configs": rows}
        assert self.ask("CreateTopics", 4, {"topics": [topic], "timeoutMs": 10_000})["topics"][0]["errorCode"] == 0
        for number in range(partitions):
            # The partitions of a broker get their leaders at different times.
            for _ in range(200):
                answer = self.fetch(name, 0, number)["responses"][0]["partitions"][0]
                if answer["errorCode"] == 0:
                    break
                time.sleep(0.05)
        return name

    def produce(self, topic: str, batch: bytes | None, version: int = 7, **fields: Any) -> list[Any] | str:
        """Return the code and base offset of a batch for partition 0."""
        row = {"index": 0, "records": None if batch is None else [batch]}
        asked = {"acks": -1, "timeoutMs": 10_000, "topicData": [{"name": topic, "partitionData": [row]}], **fields}
        for _ in range(100):
            answer = self.ask("Produce", version, asked)
            if answer == "closed":
                return "closed"
            found = answer["responses"][0]["partitionResponses"][0]
            if found["errorCode"] not in NOT_YET:
                break
            time.sleep(0.05)
        return [code(found), found["baseOffset"]]

    def fetch(self, topic: str, offset: int = 0, partition: int = 0, version: int = 4, **fields: Any) -> Any:
        row = {"partition": partition, "fetchOffset": offset, "partitionMaxBytes": 1 << 20}
        topics = [{"topic": topic, "partitions": [{**row, **fields.pop("row", {})}]}]
        asked = {"replicaId": -1, "maxWaitMs": 0, "minBytes": 1, "maxBytes": 1 << 20, "topics": topics, **fields}
        return self.ask("Fetch", version, asked)

    def headers(self, topic: str) -> list[Any]:
        """Return base offset, last offset delta, base timestamp, maximum timestamp, attributes and record count of each
        batch.
        """
        data = bytes(self.fetch(topic)["responses"][0]["partitions"][0]["records"] or b"")
        headers = scan_headers(data)
        assert not len(crc_failures(data, headers))
        columns = (headers.base_offset, headers.last_offset_delta, headers.base_timestamp, headers.max_timestamp)
        return [
            list(row) for row in zip(*(c.tolist() for c in (*columns, headers.attributes, headers.count)), strict=True)
        ]

    def offsets(self, topic: str, *times: int, partition: int = 0, version: int = 7) -> list[Any]:
        """Return code, timestamp and offset in the ListOffsets response for each timestamp."""
        found = []
        for time_ms in times:
            rows = [{"partitionIndex": partition, "timestamp": time_ms}]
            answer = self.ask(
                "ListOffsets", version, {"replicaId": -1, "topics": [{"name": topic, "partitions": rows}]}
            )
            row = answer if answer == "closed" else answer["topics"][0]["partitions"][0]
            found.append(row if row == "closed" else [code(row), row["timestamp"], row["offset"]])
        return found


def code(fields: Mapping[str, Any]) -> str | int:
    """Return the name of an error code, or the number of a code that our server does not use."""
    number = fields["errorCode"]
    return Code(number).name if number in set(Code) else int(number)


Case: TypeAlias = Callable[[Asked], Answer]
CASES: dict[str, Case] = {}


def table(prefix: str, rows: Mapping[str, Any], ask: Callable[[Asked, Any], Answer]) -> None:
    def case(row: Any) -> Case:
        return lambda server: ask(server, row)

    CASES.update({f"{prefix}: {name}": case(row) for name, row in rows.items()})


# -- batches


def batch_case(server: Asked, batch: bytes | Callable[[], bytes] | None, **configs: Any) -> Answer:
    topic = server.topic(**configs)
    answer = server.produce(topic, batch() if callable(batch) else batch)
    if answer == "closed" or answer[0] != "NONE":
        return [answer if answer == "closed" else answer[0]]
    return [*answer, server.headers(topic), server.offsets(topic, T, GREATEST)]


def now_ms() -> int:
    return int(time.time() * 1000)


TIMES: dict[str, bytes] = {
    "none": odd_batch([-1]),
    "two without": odd_batch([-1, -1]),
    "one of two without": odd_batch([T, -1]),
    "negative": odd_batch([-5], max_timestamp=0),
    "negative, then none": odd_batch([-5, -1]),
    "far below 0": odd_batch([-7_240_509_273_709_551_616]),
    "0": odd_batch([0]),
    "greatest of Sarama": odd_batch([T, T + 1], max_timestamp=-1),
    "greatest too small": odd_batch([T + 20, T + 10], max_timestamp=T + 10),
    "greatest too great": odd_batch([T], max_timestamp=T + 1_000_000),
    "greatest of gzip": odd_batch([T, T + 5], max_timestamp=-1, attributes=1),
    "greatest of zstd": odd_batch([T, -1], max_timestamp=T + 7, attributes=4),
    "base of another time": odd_batch([T], base_timestamp=-(2**63) + 5),
    "LogAppendTime bit": odd_batch([T], attributes=8),
}
table("times", TIMES, batch_case)
WILD: dict[str, bytes | Callable[[], bytes]] = {
    "2^63-1 and a ms": odd_batch([2**63 - 1, -(2**63)], base_timestamp=2**63 - 1, max_timestamp=2**63 - 1),
    "-2^63": odd_batch([-(2**63)], max_timestamp=-1),
    "2^53+1": odd_batch([2**53 + 1]),
    "microseconds": odd_batch([T * 1000]),
    "two hours ahead": lambda: odd_batch([now_ms() + 2 * HOUR_MS]),
    "59 minutes ahead": lambda: odd_batch([now_ms() + 59 * 60_000]),
}
table(
    "limits of time",
    WILD,
    lambda server, batch: batch_case(server, batch, message_timestamp_after_max_ms=str(HOUR_MS))[:1],
)
table(
    "before.max.ms",
    {"none": odd_batch([-1]), "negative": odd_batch([-5]), "old": odd_batch([T])},
    lambda server, batch: batch_case(server, batch, message_timestamp_before_max_ms=str(HOUR_MS))[:1],
)


def append_time_case(server: Asked, batch: bytes) -> Answer:
    topic = server.topic(message_timestamp_type="LogAppendTime")
    answer = server.produce(topic, batch)
    (header,) = server.headers(topic)
    stamped = header[3]
    return [
        *answer,
        header[4] & 8,
        stamped > T * 1.01,
        server.offsets(topic, stamped, GREATEST) == [["NONE", stamped, 0]] * 2,
    ]


table(
    "LogAppendTime",
    {
        **{name: TIMES[name] for name in ("none", "negative", "greatest of Sarama")},
        "microseconds": odd_batch([T * 1000]),
    },
    append_time_case,
)

TWO = [T, T]
PLAIN = record(0, 0) + record(1, 0)
COUNTS: dict[str, bytes | None] = {
    "last delta 0 of two": odd_batch(TWO, last_offset_delta=0),
    "count 1 of two": odd_batch(TWO, count=1),
    "count 1 and delta 0 of two": odd_batch(TWO, count=1, last_offset_delta=0),
    "count 3 of two": odd_batch(TWO, count=3, last_offset_delta=2),
    "count 0": odd_batch([], base_timestamp=T, max_timestamp=T),
    "count 0, delta -1": odd_batch([], base_timestamp=T, max_timestamp=T, last_offset_delta=-1),
    "count -1": odd_batch(TWO, count=-1),
    "base offset 5": odd_batch(TWO, base_offset=5),
    "deltas 0, 0": odd_batch(TWO, deltas=[0, 0], last_offset_delta=1),
    "deltas 1, 0": odd_batch(TWO, deltas=[1, 0], last_offset_delta=1),
    "deltas 0, 2 in gzip": odd_batch(TWO, deltas=[0, 2], last_offset_delta=1, attributes=1),
    "bytes after the records": odd_batch(TWO, payload=PLAIN + b"\0\0"),
    "bytes after the records in gzip": odd_batch(TWO, payload=PLAIN + b"\0\0", attributes=1),
    "record attributes 1": odd_batch([T], payload=record(0, 0, attributes=1)),
    "unused attribute bits": odd_batch(TWO, attributes=0x7F80),
    "codec 5": odd_batch(TWO, attributes=5),
    "codec 7": odd_batch(TWO, attributes=7),
    "control bit": odd_batch(TWO, attributes=0x20),
    "transactional bit": odd_batch(TWO, attributes=0x10),
    "delete horizon bit": odd_batch(TWO, attributes=0x40),
    "leader epoch -1": odd_batch(TWO, leader_epoch=-1),
    "leader epoch 77": odd_batch(TWO, leader_epoch=77),
    "two batches": odd_batch(TWO) + odd_batch(TWO, base_offset=2),
    "a batch and a half": odd_batch(TWO) + odd_batch(TWO)[:40],
    "half a batch": odd_batch(TWO)[:-3],
    "no bytes": b"",
    "null": None,
    "magic 3": odd_batch(TWO)[:16] + b"\3" + odd_batch(TWO)[17:],
    "wrong CRC": odd_batch(TWO)[:17] + b"\0\0\0\1" + odd_batch(TWO)[21:],
}
table("counts", COUNTS, lambda server, batch: batch_case(server, batch)[:3])

LOOKED_UP: dict[str, tuple[list[tuple[list[int], int]], list[int]]] = {
    "ties in one batch": ([([T, T + 9, T + 9, T + 1], 0)], [T, T + 1, T + 9, T + 10, GREATEST]),
    "ties in one batch, gzip": ([([T, T + 9, T + 9, T + 1], 1)], [T, T + 1, T + 9, T + 10, GREATEST]),
    "ties over batches": ([([T, T + 9], 3), ([T + 9, T], 4), ([T + 9], 0)], [T + 2, T + 9, GREATEST]),
    "falling": ([([T + 9, T + 8], 1), ([T + 6, T + 5], 0)], [T + 5, T + 6, T + 9, GREATEST]),
    "greatest in the middle": ([([T], 0), ([T + 5, T + 50, T + 4], 4), ([T + 6], 0)], [T + 1, T + 7, T + 51, GREATEST]),
    "10^12 then 1": ([([10**12], 0), ([1], 0), ([2, 10**12 + 1], 0)], [0, 1, 10**12 + 1, 10**12 + 2, GREATEST]),
    "0 and 0": ([([0], 0), ([0, 0], 1)], [0, 1, GREATEST]),
    "none, then a time": ([([-1], 0), ([T, -1], 0), ([-5], 0)], [0, T, T + 1, GREATEST]),
    "none": ([([-1, -1], 0), ([-1], 0)], [0, T, GREATEST]),
    "empty": ([], [0, T, LATEST, EARLIEST, GREATEST]),
}


def looked_up_case(server: Asked, row: tuple[list[tuple[list[int], int]], list[int]]) -> Answer:
    batches, questions = row
    topic = server.topic()
    codes = [server.produce(topic, odd_batch(times, attributes=codec))[0] for times, codec in batches]
    return [codes, server.offsets(topic, *questions)]


table("ListOffsets", LOOKED_UP, looked_up_case)


def sequences(server: Asked) -> Answer:
    """Send batches with maximum epochs, sequences that wrap around, and retries. Return codes and base offsets in send
    order.
    """
    producer = -1
    for _ in range(100):
        answer = server.ask("InitProducerId", 4, {"transactionalId": None, "transactionTimeoutMs": 1000})
        if answer["errorCode"] == 0:
            producer = answer["producerId"]
            break
        time.sleep(0.1)
    found, last = list[Any](), 2**31 - 1
    scripts = {
        "epochs": [
            (32766, 0, 1),
            (32767, 0, 1),
            (32767, 0, 1),
            (32767, 1, 1),
            (32766, 1, 1),
            (-1, 2, 1),
            (32767, -1, 1),
        ],
        "wrap": [(0, last, 1), (0, 0, 1), (0, 0, 1), (0, last, 1)],
        "over the wrap": [(0, last - 1, 3), (0, 1, 1), (0, last - 1, 3)],
        "in flight": [*((0, n, 1) for n in range(7)), (0, 2, 1), (0, 6, 1), (0, 9, 1), (1, 3, 1), (1, 0, 1)],
        # The producer's first batches were never written.
        "unknown": [(0, 4, 1), (0, 2, 1), (0, 3, 1), (0, 4, 1), (0, 5, 1)],
    }
    for batches in scripts.values():
        topic = server.topic()
        for epoch, first, count in batches:
            header: dict[str, Any] = {"producer_id": producer, "producer_epoch": epoch, "base_sequence": first}
            found.append(server.produce(topic, odd_batch([T] * count, **header)))
    return found


CASES["sequences"] = sequences


# -- requests


def codes_in(value: Any) -> Answer:
    """Return all error codes of a response, in order."""
    if isinstance(value, dict):
        own = [code(value)] if "errorCode" in value else []
        return [*own, *(found for item in value.values() for found in codes_in(item))]
    return [found for item in value for found in codes_in(item)] if isinstance(value, list) else []


ONE = odd_batch([T])


def _topic_row(name: str, **fields: Any) -> dict[str, Any]:
    return {"name": name, "numPartitions": 1, "replicationFactor": 1, "assignments": [], "configs": [], **fields}


def create_case(server: Asked, rows: list[dict[str, Any]]) -> Answer:
    """Create topics, one request after another. Topic names are made unique."""
    unique, found = f"n{time.monotonic_ns()}", list[Any]()
    for row in rows:
        name = row.get("name", "")
        topic = _topic_row(name if row.get("is_literal") else unique + name)
        topic.update({key: value for key, value in row.items() if key not in ("name", "is_literal")})
        answer = server.ask("CreateTopics", 4, {"topics": [topic], "timeoutMs": 10_000})
        found.append(answer if answer == "closed" else code(answer["topics"][0]))
    return found


def _configs(**values: str | None) -> list[dict[str, Any]]:
    return [{"name": name.replace("_", "."), "value": value} for name, value in values.items()]


CREATED: dict[str, list[dict[str, Any]]] = {
    **{repr(name[:12]): [{"name": name, "is_literal": True}] for name in ("", ".", "..", "a/b", "a b", "x" * 250, "ä")},
    "twice": [{}, {}],
    "a dot beside an underscore": [{"name": ".x"}, {"name": "_x"}],
    "an underscore beside a dot": [{"name": "_a.b"}, {"name": ".a_b"}],
    "0 partitions": [{"numPartitions": 0}],
    "-1 partitions": [{"numPartitions": -1, "replicationFactor": -1}],
    "-2 partitions": [{"numPartitions": -2}],
    "replication -1": [{"replicationFactor": -1}],
    "replication 0": [{"replicationFactor": 0}],
    "replication 3": [{"replicationFactor": 3}],
    "an unknown config": [{"configs": _configs(no_such="1")}],
    "a bad config": [{"configs": _configs(retention_ms="soon")}],
    "a null config": [{"configs": _configs(retention_ms=None)}],
    "compact, delete": [{"configs": _configs(cleanup_policy="compact, delete")}],
    "an assignment": [
        {"assignments": [{"partitionIndex": 0, "brokerIds": [1]}], "numPartitions": -1, "replicationFactor": -1}
    ],
    "an assignment and a number": [{"assignments": [{"partitionIndex": 0, "brokerIds": [1]}]}],
    "an assignment from 1": [
        {"assignments": [{"partitionIndex": 1, "brokerIds": [1]}], "numPartitions": -1, "replicationFactor": -1}
    ],
    "an assignment to nobody": [
        {"assignments": [{"partitionIndex": 0, "brokerIds": []}], "numPartitions": -1, "replicationFactor": -1}
    ],
    "an assignment to an unknown server": [
        {"assignments": [{"partitionIndex": 0, "brokerIds": [9]}], "numPartitions": -1, "replicationFactor": -1}
    ],
}
table("create", CREATED, create_case)


def created_twice(server: Asked) -> Answer:
    name = f"twice{time.monotonic_ns()}"
    rows = [_topic_row(name), _topic_row(name)]
    return codes_in(server.ask("CreateTopics", 4, {"topics": rows, "timeoutMs": 10_000}))


CASES["create: a name twice in one request"] = created_twice

ASKED: dict[str, Callable[[Asked, str], Answer]] = {
    "Metadata 0 of no topic: all": lambda s, t: t in _names(s.ask("Metadata", 0, {"topics": []})),
    "Metadata 1 of no topic: none": lambda s, t: _names(s.ask("Metadata", 1, {"topics": []})),
    "Metadata 1 of null: all": lambda s, t: t in _names(s.ask("Metadata", 1, {"topics": None})),
    "Metadata of an empty name": lambda s, t: codes_in(s.ask("Metadata", 7, {"topics": [{"name": ""}]}))[:1],
    "Metadata of a bad name": lambda s, t: codes_in(s.ask("Metadata", 7, {"topics": [{"name": "a/b"}]}))[:1],
    "Metadata of a name twice": lambda s, t: len(
        s.ask("Metadata", 7, {"topics": [{"name": t}, {"name": t}]})["topics"]
    ),
    "Fetch at -1": lambda s, t: codes_in(s.fetch(t, -1)),
    "Fetch at the end": lambda s, t: codes_in(s.fetch(t, 1)),
    "Fetch beyond the end": lambda s, t: codes_in(s.fetch(t, 2)),
    "Fetch at 2^63-1": lambda s, t: codes_in(s.fetch(t, 2**63 - 1)),
    "Fetch of partition 9": lambda s, t: codes_in(s.fetch(t, 0, 9)),
    "Fetch of partition -1": lambda s, t: codes_in(s.fetch(t, 0, -1)),
    "Fetch of an unknown topic": lambda s, t: codes_in(s.fetch("nope")),
    "Fetch of at most 0 bytes": lambda s, t: len(_records(s.fetch(t, maxBytes=0))) > 0,
    "Fetch of at most 0 bytes of a partition": lambda s, t: len(_records(s.fetch(t, row={"partitionMaxBytes": 0}))) > 0,
    "Fetch of nothing": lambda s, t: codes_in(s.ask("Fetch", 4, {"maxWaitMs": 10, "minBytes": 1, "topics": []})),
    "Fetch session -1, epoch -1": lambda s, t: codes_in(s.fetch(t, version=11, sessionId=-1, sessionEpoch=-1)),
    "Fetch session 7, epoch -1": lambda s, t: codes_in(s.fetch(t, version=11, sessionId=7, sessionEpoch=-1)),
    "Fetch session 7, epoch 0": lambda s, t: codes_in(s.fetch(t, version=11, sessionId=7, sessionEpoch=0)),
    "Fetch session 7, epoch 3": lambda s, t: codes_in(s.fetch(t, version=11, sessionId=7, sessionEpoch=3)),
    "Fetch session 0, epoch 1": lambda s, t: codes_in(s.fetch(t, version=11, sessionId=0, sessionEpoch=1)),
    "Fetch with leader epoch 0": lambda s, t: codes_in(s.fetch(t, version=11, row={"currentLeaderEpoch": 0})),
    "Fetch from log start 5": lambda s, t: codes_in(s.fetch(t, version=11, row={"logStartOffset": 5})),
    "ListOffsets 1": lambda s, t: s.offsets(t, -1, -2, 0, T + 1, version=1),
    "ListOffsets 5": lambda s, t: s.offsets(t, -1, -2, 0, T + 1, version=5),
    "ListOffsets 7": lambda s, t: s.offsets(t, -1, -2, 0, T + 1, -3, -9, version=7),
    "ListOffsets 6 of -3": lambda s, t: s.offsets(t, -3, version=6),
    "ListOffsets of partition 9": lambda s, t: s.offsets(t, -1, partition=9),
    "ListOffsets of an unknown topic": lambda s, t: s.offsets("nope", -1),
    "Produce with acks 2": lambda s, t: s.produce(t, ONE, acks=2)[:1],
    "Produce with acks 1": lambda s, t: s.produce(t, ONE, acks=1)[:1],
    "Produce of nothing": lambda s, t: codes_in(s.ask("Produce", 7, {"acks": -1, "timeoutMs": 1, "topicData": []})),
    "Produce, a good and a bad batch": lambda s, t: _produce_all(s, t, {0: ONE, 1: ONE[:-1] + b"\7"}),
    "Produce, a good and a bad partition": lambda s, t: _produce_all(s, t, {0: ONE, 7: ONE}),
    "JoinGroup of no group": lambda s, t: _join(s, "", 0),
    "JoinGroup, a session of 1 ms": lambda s, t: _join(s, "g", 1),
    "JoinGroup, a session of 5,999 ms": lambda s, t: _join(s, "g", 5_999),
    "JoinGroup, a session of 31 minutes": lambda s, t: _join(s, "g", 31 * 60_000),
    "JoinGroup, a session of 6 s": lambda s, t: _join(s, "g", 6_000),
    "what a client may do": lambda s, t: _rights(s, t),
    "bounds of a Fetch beyond the end": lambda s, t: _bounds(s.fetch(t, 2, version=11)),
    "bounds of a Fetch of partition 9": lambda s, t: _bounds(s.fetch(t, 0, 9, version=11)),
    "ListOffsets 10": lambda s, t: s.offsets(t, -1, -2, -3, -4, -5, T, version=10),
    "Metadata 13": lambda s, t: codes_in(s.ask("Metadata", 13, {"topics": [{"name": t}]})),
    "ApiVersions 4": lambda s, t: codes_in(
        s.ask("ApiVersions", 4, {"clientSoftwareName": "test", "clientSoftwareVersion": "1"})
    ),
    "DescribeGroups 5 of no group": lambda s, t: _described(s, 5),
    "DescribeGroups 6 of no group": lambda s, t: _described(s, 6),
    "SyncGroup 4": lambda s, t: _sync(s, 4),
    "SyncGroup 5": lambda s, t: _sync(s, 5, protocolType="consumer", protocolName="range"),
    "SyncGroup 5 without a protocol": lambda s, t: _sync(s, 5),
    "SyncGroup 5 without a protocol type": lambda s, t: _sync(s, 5, protocolName="range"),
    "SyncGroup 5 of another protocol": lambda s, t: _sync(s, 5, protocolType="consumer", protocolName="sticky"),
    "SyncGroup 5 of another protocol type": lambda s, t: _sync(s, 5, protocolType="connect", protocolName="range"),
    "SyncGroup 5 of another protocol and generation": lambda s, t: _sync(
        s, 5, protocolType="consumer", protocolName="sticky", generationId=7
    ),
    "LeaveGroup 5": lambda s, t: _leave(s, 5),
}


def _names(answer: Any) -> list[str]:
    return [topic["name"] for topic in answer["topics"]] if answer != "closed" else ["closed"]


def _records(answer: Any) -> bytes:
    return bytes(answer["responses"][0]["partitions"][0]["records"] or b"")


def _produce_all(server: Asked, topic: str, batches: dict[int, bytes]) -> Answer:
    rows = [{"index": number, "records": [batch]} for number, batch in batches.items()]
    topics = [{"name": topic, "partitionData": rows}]
    # A broker returns partitions in its own order.
    return sorted(codes_in(server.ask("Produce", 7, {"acks": -1, "timeoutMs": 1000, "topicData": topics})))


def _bounds(answer: Any) -> Answer:
    row = answer["responses"][0]["partitions"][0]
    return [code(row), row["highWatermark"], row["lastStableOffset"], row["logStartOffset"]]


def _described(server: Asked, version: int) -> Answer:
    name = f"g{time.monotonic_ns()}"
    for _ in range(100):
        (group,) = server.ask("DescribeGroups", version, {"groups": [name]})["groups"]
        if group["errorCode"] not in NOT_YET:
            break
        server.ask("FindCoordinator", 1, {"key": name, "keyType": 0})
        time.sleep(0.1)
    return [code(group), group["groupState"], bool(group["errorMessage"])]


def _member(server: Asked) -> dict[str, Any]:
    """Add a member to a new group. Return the fields that identify it."""
    group = f"g{time.monotonic_ns()}"
    fields = {"groupId": group, "sessionTimeoutMs": 10_000, "rebalanceTimeoutMs": 1000, "protocolType": "consumer"}
    fields["protocols"] = [{"name": "range", "metadata": struct.pack(">hii", 0, 0, -1)}]
    for _ in range(100):
        answer = server.ask("JoinGroup", 3, fields)
        if answer["errorCode"] not in NOT_YET:
            break
        server.ask("FindCoordinator", 1, {"key": group, "keyType": 0})
        time.sleep(0.1)
    return {"groupId": group, "memberId": answer["memberId"], "generationId": answer["generationId"]}


def _sync(server: Asked, version: int, **fields: Any) -> Answer:
    member = _member(server)
    assigned = {"assignments": [{"memberId": member["memberId"], "assignment": b"x"}]}
    answer = server.ask("SyncGroup", version, {**member, **assigned, **fields})
    return [code(answer), answer["protocolType"], answer["protocolName"], len(answer["assignment"] or b"")]


def _leave(server: Asked, version: int) -> Answer:
    member = _member(server)
    rows = [{"memberId": name, "reason": "done"} for name in (member["memberId"], "unknown")]
    return codes_in(server.ask("LeaveGroup", version, {"groupId": member["groupId"], "members": rows}))


def _join(server: Asked, group: str, session_ms: int) -> Answer:
    asked = {"groupId": group, "sessionTimeoutMs": session_ms, "rebalanceTimeoutMs": 1000, "protocolType": "consumer"}
    asked["protocols"] = [{"name": "range", "metadata": struct.pack(">hii", 0, 0, -1)}]
    for _ in range(100):
        answer = server.ask("JoinGroup", 5, asked)
        if answer == "closed" or answer["errorCode"] not in NOT_YET:
            break
        server.ask("FindCoordinator", 1, {"key": group, "keyType": 0})
        time.sleep(0.1)
    return answer if answer == "closed" else code(answer)


def _rights(server: Asked, topic: str) -> Answer:
    asked = {"includeClusterAuthorizedOperations": True, "includeTopicAuthorizedOperations": True}
    answer = server.ask("Metadata", 8, {"topics": [{"name": topic}], **asked})
    return [answer["clusterAuthorizedOperations"], answer["topics"][0]["topicAuthorizedOperations"]]


def asked_case(server: Asked, ask: Callable[[Asked, str], Answer]) -> Answer:
    topic = server.topic(2)
    server.produce(topic, ONE)
    return ask(server, topic)


table("request", ASKED, asked_case)


def answers(address: Address, cases: Mapping[str, Case]) -> dict[str, Answer]:
    """Send these cases, and return the responses."""
    server = Asked(address)
    try:
        return {name: json.loads(json.dumps(case(server))) for name, case in cases.items()}
    finally:
        server.close()
