"""Records of Kafka's `__transaction_state`: the newest state of every transactional id.

The key is int16 0, then the transactional id (string). The value is int16 version, then (encodings:
`message_schema`; version 1, flexible, from transaction.version 1 on):

| field                            | type   | meaning                                                               |
|----------------------------------|--------|-----------------------------------------------------------------------|
| producerId                       | int64  |                                                                       |
| previousProducerId               | int64  | tagged 0, -1: none; of the last committed transaction                 |
| nextProducerId                   | int64  | tagged 1, -1: none; the newest id sent to the producer                |
| producerEpoch                    | int16  |                                                                       |
| nextProducerEpoch                | int16  | tagged 3, -1: none; the epoch that goes with nextProducerId           |
| transactionTimeoutMs             | int32  |                                                                       |
| transactionStatus                | int8   | see `Status`                                                          |
| transactionPartitions            | array  | of topic (string) and partitionIds (int32 array); null while Empty    |
| transactionLastUpdateTimestampMs | int64  |                                                                       |
| transactionStartTimestampMs      | int64  | -1: no transaction began                                              |
| clientTransactionVersion         | int16  | tagged 2, 0: not known                                                |

No value (null): the transactional id expired. Tagged fields exist from version 1 on.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum

from sparklog.errors import BadRequest, Corrupt
from sparklog.format.coordinators.message_schema import (
    Field,
    Fields,
    Struct,
    Value,
    decode,
    elements,
    encode,
    number,
    text,
)

TRANSACTION_LOG = 0
KEY = Struct("TransactionLogKey", (Field("transactionalId", "string"),))
VALUE = Struct(
    "TransactionLogValue",
    (
        Field("producerId", "int64"),
        Field("previousProducerId", "int64", since=1, tag=0, default=-1),
        Field("nextProducerId", "int64", since=1, tag=1, default=-1),
        Field("producerEpoch", "int16"),
        Field("nextProducerEpoch", "int16", since=1, tag=3, default=-1),
        Field("transactionTimeoutMs", "int32"),
        Field("transactionStatus", "int8"),
        Field(
            "transactionPartitions",
            Struct("PartitionsSchema", (Field("topic", "string"), Field("partitionIds", "int32", array=True))),
            array=True,
            nullable=True,
        ),
        Field("transactionLastUpdateTimestampMs", "int64"),
        Field("transactionStartTimestampMs", "int64"),
        Field("clientTransactionVersion", "int16", since=1, tag=2),
    ),
    highest=1,
    flexible=1,
)

_VERSION = struct.Struct(">h")


class Status(IntEnum):
    """What a transactional id is doing."""

    EMPTY = 0
    ONGOING = 1
    PREPARE_COMMIT = 2
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5
    DEAD = 6
    PREPARE_EPOCH_FENCE = 7


@dataclass(frozen=True, slots=True)
class TransactionKey:
    """Whose state."""

    transactional_id: str


@dataclass(frozen=True, slots=True)
class UnknownTransactionKey:
    """A key of a type that Kafka 4.1 does not know: a later Kafka's, to be passed over as Kafka does."""

    type: int


@dataclass(frozen=True, slots=True)
class TransactionValue:
    """A transactional id's state, fields as in the module's table; times in ms, `start_ms` None: no transaction began.

    `partitions`: (topic, partition) in the record's order, None where Kafka has null (an id that began nothing).
    """

    producer_id: int
    producer_epoch: int
    timeout_ms: int
    status: Status
    partitions: tuple[tuple[str, int], ...] | None
    update_ms: int
    start_ms: int | None = None
    previous_producer_id: int = -1
    next_producer_id: int = -1
    next_producer_epoch: int = -1
    client_version: int = 0


def decode_transaction_key(key: bytes | None) -> TransactionKey | UnknownTransactionKey:
    """The key of a record of `__transaction_state`. `Corrupt` if there is none or it is malformed."""
    if key is None:
        raise Corrupt("a record of __transaction_state has a key, this one has none")
    kind, body = _split(key, "key")
    if kind != TRANSACTION_LOG:
        return UnknownTransactionKey(kind)
    return TransactionKey(text(decode(KEY, 0, body)["transactionalId"]))


def decode_transaction_value(value: bytes | None) -> TransactionValue | None:
    """The value of such a record, None for a tombstone. `Corrupt` if it is malformed, of an unknown version or of an
    unknown status.
    """
    if value is None:
        return None
    version, body = _split(value, "value")
    if not 0 <= version <= VALUE.highest:
        raise Corrupt(f"expected a {VALUE.name} of version 0 to {VALUE.highest}, found {version}")
    fields = decode(VALUE, version, body)
    status = number(fields["transactionStatus"])
    if status not in Status.__members__.values():
        raise Corrupt(f"expected a transaction's status of 0 to {max(Status)}, found {status}")
    start = number(fields["transactionStartTimestampMs"])
    return TransactionValue(
        producer_id=number(fields["producerId"]),
        producer_epoch=number(fields["producerEpoch"]),
        timeout_ms=number(fields["transactionTimeoutMs"]),
        status=Status(status),
        partitions=_partitions(fields["transactionPartitions"]),
        update_ms=number(fields["transactionLastUpdateTimestampMs"]),
        start_ms=None if start == -1 else start,
        previous_producer_id=number(fields["previousProducerId"]),
        next_producer_id=number(fields["nextProducerId"]),
        next_producer_epoch=number(fields["nextProducerEpoch"]),
        client_version=number(fields["clientTransactionVersion"]),
    )


def encode_transaction_key(key: TransactionKey) -> bytes:
    """The key's bytes."""
    return _VERSION.pack(TRANSACTION_LOG) + encode(KEY, 0, {"transactionalId": key.transactional_id})


def encode_transaction_value(value: TransactionValue, *, version: int = 0) -> bytes:
    """In version 0, which every Kafka reads and which has no tagged fields, or 1. `BadRequest` for another."""
    if not 0 <= version <= VALUE.highest:
        raise BadRequest(f"a transactional id's state has the versions 0 to {VALUE.highest}, not {version}")
    topics: dict[str, list[Value]] = {}
    for topic, partition in value.partitions or ():
        topics.setdefault(topic, []).append(partition)
    partitions: list[Value] = [{"topic": topic, "partitionIds": ids} for topic, ids in topics.items()]
    fields: Fields = {
        "producerId": value.producer_id,
        "previousProducerId": value.previous_producer_id,
        "nextProducerId": value.next_producer_id,
        "producerEpoch": value.producer_epoch,
        "nextProducerEpoch": value.next_producer_epoch,
        "transactionTimeoutMs": value.timeout_ms,
        "transactionStatus": int(value.status),
        "transactionPartitions": None if value.partitions is None else partitions,
        "transactionLastUpdateTimestampMs": value.update_ms,
        "transactionStartTimestampMs": -1 if value.start_ms is None else value.start_ms,
        "clientTransactionVersion": value.client_version,
    }
    return _VERSION.pack(version) + encode(VALUE, version, fields)


def _partitions(value: Value) -> tuple[tuple[str, int], ...] | None:
    if value is None:
        return None
    return tuple(
        (text(each["topic"]), number(partition))
        for each in elements(value)
        for partition in (each["partitionIds"] if isinstance(each["partitionIds"], list) else ())
    )


def _split(data: bytes, what: str) -> tuple[int, bytes]:
    if len(data) < _VERSION.size:
        raise Corrupt(f"a record's {what} begins with 2 bytes of version, found {data.hex() or 'none'}")
    return int(_VERSION.unpack_from(data)[0]), data[_VERSION.size :]
