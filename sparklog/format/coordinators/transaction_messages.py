"""Records of Kafka's `__transaction_state`: the newest state of every transactional id.

The key is int16 0, then the transactional id (string). The value is int16 version, then the fields below (encoding:
`message_schema`). Version 1, a flexible one, is written from transaction.version 1 on.

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

from dataclasses import dataclass
from enum import IntEnum

from sparklog.errors import BadRequest, Corrupt
from sparklog.format.coordinators.message_definitions import RecordType, UnknownKey, record_types
from sparklog.format.coordinators.message_schema import (
    Fields,
    Value,
    decode,
    decode_value,
    elements,
    encode_versioned,
    number,
    split_version,
    text,
)

TRANSACTIONS = "transactions"
"""The folder of these records' definitions."""
TRANSACTION_LOG = 0


class Status(IntEnum):
    """State of a transactional id."""

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
    """The key of a transactional id's state."""

    transactional_id: str


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


def decode_transaction_key(key: bytes | None) -> TransactionKey | UnknownKey:
    """Return the key of a record of `__transaction_state`. `Corrupt` if it is missing or malformed."""
    if key is None:
        raise Corrupt("a record of __transaction_state has a key, this one has none")
    kind, body = split_version(key, "key")
    if kind != TRANSACTION_LOG:
        return UnknownKey(kind)
    return TransactionKey(text(decode(_schemas().key, 0, body)["transactionalId"]))


def decode_transaction_value(value: bytes | None) -> TransactionValue | None:
    """Return the value of such a record, None for a tombstone.

    `Corrupt` if it is malformed, of an unknown version or of an unknown status.
    """
    fields = decode_value(_schemas().value, value)
    if fields is None:
        return None
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
    # The only type has the number 0, and its key's only version, too.
    return encode_versioned(_schemas().key, TRANSACTION_LOG, {"transactionalId": key.transactional_id})


def encode_transaction_value(value: TransactionValue, *, version: int = 0) -> bytes:
    """Return a state's bytes in version 0, which every Kafka reads and which has no tagged fields, or 1."""
    schema = _schemas().value
    if not 0 <= version <= schema.highest:
        raise BadRequest(f"a transactional id's state has the versions 0 to {schema.highest}, not {version}")
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
    return encode_versioned(schema, version, fields)


def _schemas() -> RecordType:
    return record_types(TRANSACTIONS)[TRANSACTION_LOG]


def _partitions(value: Value) -> tuple[tuple[str, int], ...] | None:
    if value is None:
        return None
    return tuple(
        (text(each["topic"]), number(partition))
        for each in elements(value)
        for partition in (each["partitionIds"] if isinstance(each["partitionIds"], list) else ())
    )
