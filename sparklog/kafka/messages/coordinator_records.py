"""Encode and decode the records of Kafka's `__consumer_offsets` and `__transaction_state`, using `message_codec`.

`__consumer_offsets` contains the committed offsets and the members of groups:

| type | key                     | value and its versions                                                             |
|-----:|-------------------------|------------------------------------------------------------------------------------|
| 0, 1 | group, topic, partition | the committed offset, 0 to 4, flexible from 4 (type 0: before Kafka 0.9, value 0)  |
|    2 | group                   | a classic group: generation, protocol, members; 0 to 4, flexible from 4            |
|  3-8 | groupId (, memberId)    | consumer groups of KIP-848: epochs, members, assignments                           |
| 10-15 | groupId (, memberId)   | share groups (9 was never released)                                                |
|   16 | groupId, regularExpression | the topics that match a consumer group's regular expression                     |
| 17, 19-23 | groupId (, memberId) | streams groups (18 was never released)                                            |

Types 0 to 2 are decoded to classes. The other types are decoded to dicts of fields with Kafka's names. Kafka 4.1 writes
committed offsets in version 3, in version 4 if the group.version allows it, or in version 1 if the client requested a
retention time.

`__transaction_state` contains the latest state of each transactional id. The key consists of the type 0 (int16) and the
transactional id (string). Kafka writes version 1 of the value, which is a flexible version, if transaction.version is
at least 1. If the value is null, the transactional id has expired. The fields are defined in the files in `schemas/`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from sparklog.errors import Corrupt
from sparklog.kafka.messages.message_codec import decode, decode_value, encode, encode_versioned, split_version
from sparklog.kafka.messages.message_schema import NO_UUID, Fields, Struct, record_types

GROUPS = "groups"
TRANSACTIONS = "transactions"
"""Names of the directories that contain the schemas of these records."""
OFFSET_COMMIT_LEGACY = 0
OFFSET_COMMIT = 1
GROUP_METADATA = 2
TRANSACTION_LOG = 0
CONSUMER_PROTOCOL = "consumer"
"""The protocol type of consumer groups, whose subscriptions and assignments are also messages."""


@dataclass(frozen=True, slots=True)
class OffsetKey:
    """The key of a committed offset. The type is 1, or 0 in records of releases before Kafka 0.9."""

    group: str
    topic: str
    partition: int


@dataclass(frozen=True, slots=True)
class OffsetValue:
    """A committed offset, which is the offset of the next record to read. Times are in ms.

    * `leader_epoch`, `topic_id`: None if unknown
    * `expire_timestamp`: None if the retention of the broker applies
    """

    offset: int
    leader_epoch: int | None
    metadata: str
    commit_timestamp: int
    expire_timestamp: int | None = None
    topic_id: str | None = None


@dataclass(frozen=True, slots=True)
class GroupKey:
    group: str


@dataclass(frozen=True, slots=True)
class GroupValue:
    """The state of a classic group, without its members.

    `state_timestamp` is the time (ms) at which the group entered its current state, or None if the time is unknown.
    `protocol` and `leader` are None if the group is empty.
    """

    protocol_type: str
    generation: int
    protocol: str | None
    leader: str | None
    state_timestamp: int | None


@dataclass(frozen=True, slots=True)
class OtherKey:
    """A key of the types 3 to 23. The fields have Kafka's names."""

    type: int
    fields: Fields


def decode_group_key(key: bytes | None) -> OffsetKey | GroupKey | OtherKey | None:
    """Return the key of a record of `__consumer_offsets`, or None if its type is unknown to Kafka 4.1.

    Kafka also ignores keys of unknown types. Raises `Corrupt` if the key is missing or malformed.
    """
    if key is None:
        raise Corrupt("a record of __consumer_offsets has no key")
    kind, body = split_version(key, "key")
    types = record_types(GROUPS)
    if kind not in types:
        return None
    fields = decode(types[kind].key, 0, body)
    if kind in (OFFSET_COMMIT_LEGACY, OFFSET_COMMIT):
        return OffsetKey(fields["group"], fields["topic"], fields["partition"])
    if kind == GROUP_METADATA:
        return GroupKey(fields["group"])
    return OtherKey(kind, fields)


def decode_offset_value(value: bytes | None) -> OffsetValue | None:
    """Return the value of a committed offset, or None for a tombstone.

    Raises `Corrupt` if the value is malformed or has an unknown version.
    """
    fields = decode_value(_value(OFFSET_COMMIT), value)
    if fields is None:
        return None
    return OffsetValue(
        fields["offset"],
        _or_none(fields["leaderEpoch"]),
        fields["metadata"],
        fields["commitTimestamp"],
        _or_none(fields["expireTimestamp"]),
        _or_none(fields["topicId"], NO_UUID),
    )


def _or_none(value: Any, nothing: Any = -1) -> Any:
    return None if value == nothing else value


def decode_group_value(value: bytes | None) -> GroupValue | None:
    """Return the state of a classic group, or None for a tombstone. Raises `Corrupt` if the value is malformed or has
    an unknown version.
    """
    fields = decode_value(_value(GROUP_METADATA), value)
    if fields is None:
        return None
    return GroupValue(
        fields["protocolType"],
        fields["generation"],
        fields["protocol"],
        fields["leader"],
        _or_none(fields["currentStateTimestamp"]),
    )


def decode_other_value(key: OtherKey, value: bytes | None) -> Fields | None:
    """Return the fields of a value of the types 3 to 23, or None for a tombstone.

    Raises `Corrupt` if the value is malformed or has an unknown version.
    """
    return decode_value(_value(key.type), value)


def encode_offset_key(key: OffsetKey) -> bytes:
    return _encode_key(OFFSET_COMMIT, {"group": key.group, "topic": key.topic, "partition": key.partition})


def encode_group_key(key: GroupKey) -> bytes:
    return _encode_key(GROUP_METADATA, {"group": key.group})


def encode_offset_value(value: OffsetValue) -> bytes:
    """Return the bytes of a committed offset without `topic_id`, in version 3, or in version 1 if the offset has an
    expiry.

    Kafka releases up to 4.0 write these versions, and later releases can read these versions.
    """
    fields: Fields = {
        "offset": value.offset,
        "leaderEpoch": -1 if value.leader_epoch is None else value.leader_epoch,
        "metadata": value.metadata,
        "commitTimestamp": value.commit_timestamp,
        "expireTimestamp": -1 if value.expire_timestamp is None else value.expire_timestamp,
    }
    return encode_versioned(_value(OFFSET_COMMIT), 3 if value.expire_timestamp is None else 1, fields)


def encode_group_value(value: GroupValue) -> bytes:
    """Return the bytes of a classic group without members, in version 3 (Kafka 2.3 and later)."""
    fields: Fields = {
        "protocolType": value.protocol_type,
        "generation": value.generation,
        "protocol": value.protocol,
        "leader": value.leader,
        "currentStateTimestamp": -1 if value.state_timestamp is None else value.state_timestamp,
    }
    return encode_versioned(_value(GROUP_METADATA), 3, fields)


def _value(kind: int) -> Struct:
    return record_types(GROUPS)[kind].value


def _encode_key(kind: int, fields: Fields) -> bytes:
    # The key consists of the type (int16) and the fields of version 0.
    return kind.to_bytes(2, "big") + encode(record_types(GROUPS)[kind].key, 0, fields)


class Status(IntEnum):
    EMPTY = 0
    ONGOING = 1
    PREPARE_COMMIT = 2
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5
    DEAD = 6
    PREPARE_EPOCH_FENCE = 7

    @property
    def label(self) -> str:
        """The status as printed by Kafka's tools, such as `PrepareCommit`."""
        return self.name.title().replace("_", "")


@dataclass(frozen=True, slots=True)
class TransactionValue:
    """The state of a transactional id. Times are in ms.

    * `start_ms`: the start of the transaction, or None if no transaction has started
    * `partitions`: (topic, partition) in the order of the record, or None if the field is null because no transaction
      has started
    """

    producer_id: int
    producer_epoch: int
    previous_producer_id: int
    timeout_ms: int
    status: Status
    partitions: tuple[tuple[str, int], ...] | None
    start_ms: int | None
    last_update_ms: int


def decode_transaction_key(key: bytes | None) -> str | None:
    """Return the transactional id in a key of `__transaction_state`, or None if the type is unknown to Kafka 4.1.

    Raises `Corrupt` if the key is missing or malformed.
    """
    if key is None:
        raise Corrupt("a record of __transaction_state has no key")
    kind, body = split_version(key, "key")
    if kind != TRANSACTION_LOG:
        return None
    transactional_id: str = decode(record_types(TRANSACTIONS)[kind].key, 0, body)["transactionalId"]
    return transactional_id


def decode_transaction_value(value: bytes | None) -> TransactionValue | None:
    """Return the state of a transactional id, or None for a tombstone.

    Raises `Corrupt` if the value is malformed, or has an unknown version or status.
    """
    fields = decode_value(record_types(TRANSACTIONS)[TRANSACTION_LOG].value, value)
    if fields is None:
        return None
    status, start, topics = (fields[f"transaction{name}"] for name in ("Status", "StartTimestampMs", "Partitions"))
    if status not in Status.__members__.values():
        raise Corrupt(f"expected a transaction's status of 0 to {max(Status)}, found {status}")
    partitions = [(topic["topic"], number) for topic in topics or () for number in topic["partitionIds"]]
    return TransactionValue(
        producer_id=fields["producerId"],
        producer_epoch=fields["producerEpoch"],
        previous_producer_id=fields["previousProducerId"],
        timeout_ms=fields["transactionTimeoutMs"],
        status=Status(status),
        partitions=None if topics is None else tuple(partitions),
        start_ms=_or_none(start),
        last_update_ms=fields["transactionLastUpdateTimestampMs"],
    )
