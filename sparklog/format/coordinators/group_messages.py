"""Records of Kafka's `__consumer_offsets`: committed offsets of groups, and their members.

`message_schema` has the encoding, `message_definitions` the schemas.

| type | key                     | value and its versions                                                             |
|-----:|-------------------------|------------------------------------------------------------------------------------|
| 0, 1 | group, topic, partition | the committed offset, 0 to 4, flexible from 4 (type 0: before Kafka 0.9, value 0)  |
|    2 | group                   | a classic group: generation, protocol, members; 0 to 4, flexible from 4            |
|  3-8 | groupId (, memberId)    | consumer groups of KIP-848: epochs, members, assignments                           |
| 10-15 | groupId (, memberId)   | share groups (9 came and went before a release)                                    |
|   16 | groupId, regularExpression | the topics a consumer group's regular expression resolved to                    |
| 17, 19-23 | groupId (, memberId) | streams groups (18 came and went, too)                                            |

The committed offset's value, by version (Kafka 4.1 writes 3, or 4 where group.version allows; 1 if the client asked
for an expiry of its own):

| field           | type   | versions                                                                         |
|-----------------|--------|----------------------------------------------------------------------------------|
| offset          | int64  | all: the next offset to read                                                     |
| leaderEpoch     | int32  | from 3; -1: not known                                                            |
| metadata        | string | all: the committer's own text                                                    |
| commitTimestamp | int64  | all: ms                                                                          |
| expireTimestamp | int64  | 1 only; -1: offsets.retention.minutes decides                                    |
| topicId         | uuid   | from 4, tagged 0                                                                 |

The types 0 to 2 have classes. The others are plain fields under Kafka's names.
"""

from __future__ import annotations

from dataclasses import dataclass

from sparklog.errors import BadRequest, Corrupt
from sparklog.format.coordinators.message_definitions import UnknownKey, record_types
from sparklog.format.coordinators.message_schema import (
    NO_UUID,
    Fields,
    Struct,
    Value,
    binary,
    decode,
    decode_value,
    elements,
    encode,
    encode_versioned,
    number,
    optional_text,
    split_version,
    text,
)

GROUPS = "groups"
"""The folder of these records' definitions."""
OFFSET_COMMIT_LEGACY = 0
OFFSET_COMMIT = 1
GROUP_METADATA = 2
CONSUMER_PROTOCOL = "consumer"
"""The protocol type of a group of consumers; its members' subscriptions and assignments are then messages, too."""


@dataclass(frozen=True, slots=True)
class OffsetKey:
    """The key of a committed offset: type 1 (0 as Kafka wrote it before 0.9)."""

    group: str
    topic: str
    partition: int


@dataclass(frozen=True, slots=True)
class OffsetValue:
    """A committed offset: the next one to read. Times in ms.

    None stands for an unknown `leader_epoch`, an `expire_timestamp` left to the broker's retention, no `topic_id`.
    """

    offset: int
    leader_epoch: int | None
    metadata: str
    commit_timestamp: int
    expire_timestamp: int | None = None
    topic_id: str | None = None


@dataclass(frozen=True, slots=True)
class GroupKey:
    """A classic group: type 2."""

    group: str


@dataclass(frozen=True, slots=True)
class GroupMember:
    """A member of a classic group; timeouts in ms (`rebalance_timeout` -1: none was written)."""

    member_id: str
    client_id: str
    client_host: str
    session_timeout: int
    subscription: bytes
    assignment: bytes
    rebalance_timeout: int = -1
    group_instance_id: str | None = None


@dataclass(frozen=True, slots=True)
class GroupValue:
    """A classic group's state; `state_timestamp`: when the group came into it, ms, None: not written.

    An empty group has neither members nor `protocol` and `leader`.
    """

    protocol_type: str
    generation: int
    protocol: str | None
    leader: str | None
    state_timestamp: int | None
    members: tuple[GroupMember, ...] = ()


@dataclass(frozen=True, slots=True)
class OtherKey:
    """A key of the types 3 to 23, its fields under Kafka's names."""

    type: int
    fields: Fields


AnyKey = OffsetKey | GroupKey | OtherKey | UnknownKey


def decode_group_key(key: bytes | None) -> AnyKey:
    """Return the key of a record of `__consumer_offsets`. `Corrupt` if it is missing or malformed."""
    if key is None:
        raise Corrupt("a record of __consumer_offsets has a key, this one has none")
    kind, body = split_version(key, "key")
    types = record_types(GROUPS)
    if kind not in types:
        return UnknownKey(kind)
    fields = decode(types[kind].key, 0, body)
    if kind in (OFFSET_COMMIT_LEGACY, OFFSET_COMMIT):
        return OffsetKey(text(fields["group"]), text(fields["topic"]), number(fields["partition"]))
    if kind == GROUP_METADATA:
        return GroupKey(text(fields["group"]))
    return OtherKey(kind, fields)


def decode_offset_value(value: bytes | None) -> OffsetValue | None:
    """Return the value of an `OffsetKey`'s record, None for a tombstone.

    `Corrupt` if it is malformed or of an unknown version.
    """
    fields = decode_value(_value(OFFSET_COMMIT), value)
    if fields is None:
        return None
    epoch, expiry, topic_id = (fields[name] for name in ("leaderEpoch", "expireTimestamp", "topicId"))
    return OffsetValue(
        number(fields["offset"]),
        None if epoch == -1 else number(epoch),
        text(fields["metadata"]),
        number(fields["commitTimestamp"]),
        None if expiry == -1 else number(expiry),
        None if topic_id == NO_UUID else text(topic_id),
    )


def decode_group_value(value: bytes | None) -> GroupValue | None:
    """Return the value of a `GroupKey`'s record, None for a tombstone. `Corrupt` as above."""
    fields = decode_value(_value(GROUP_METADATA), value)
    if fields is None:
        return None
    since = fields["currentStateTimestamp"]
    return GroupValue(
        text(fields["protocolType"]),
        number(fields["generation"]),
        optional_text(fields["protocol"]),
        optional_text(fields["leader"]),
        None if since == -1 else number(since),
        tuple(_member(each) for each in elements(fields["members"])),
    )


def decode_other_value(key: OtherKey, value: bytes | None) -> Fields | None:
    """Return the fields of an `OtherKey`'s value, None for a tombstone. `Corrupt` as above."""
    return decode_value(_value(key.type), value)


def encode_offset_key(key: OffsetKey) -> bytes:
    fields: Fields = {"group": key.group, "topic": key.topic, "partition": key.partition}
    return _encode_key(OFFSET_COMMIT, fields)


def encode_group_key(key: GroupKey) -> bytes:
    return _encode_key(GROUP_METADATA, {"group": key.group})


def encode_offset_value(value: OffsetValue, *, version: int | None = None) -> bytes:
    """Return a committed offset's bytes in a version, 0 to 4. Fields that a version lacks are left out, as by Kafka.

    Without `version` it is 3, or 1 with an expiry: Kafka up to 4.0 writes these, and every later one reads them.
    """
    if version is None:
        version = 3 if value.expire_timestamp is None else 1
    if not 0 <= version <= _value(OFFSET_COMMIT).highest:
        raise BadRequest(f"a committed offset has the versions 0 to 4, not {version}")
    fields: Fields = {
        "offset": value.offset,
        "leaderEpoch": -1 if value.leader_epoch is None else value.leader_epoch,
        "metadata": value.metadata,
        "commitTimestamp": value.commit_timestamp,
        "expireTimestamp": -1 if value.expire_timestamp is None else value.expire_timestamp,
        "topicId": NO_UUID if value.topic_id is None else value.topic_id,
    }
    return encode_versioned(_value(OFFSET_COMMIT), version, fields)


def encode_group_value(value: GroupValue, *, version: int = 3) -> bytes:
    """Return a classic group's state in version 3 (Kafka 2.3 and later) or 4."""
    if version not in (3, 4):
        raise BadRequest(f"a group's state is written in version 3 or 4, not {version}")
    members: list[Value] = [
        {
            "memberId": each.member_id,
            "groupInstanceId": each.group_instance_id,
            "clientId": each.client_id,
            "clientHost": each.client_host,
            "rebalanceTimeout": each.rebalance_timeout,
            "sessionTimeout": each.session_timeout,
            "subscription": each.subscription,
            "assignment": each.assignment,
        }
        for each in value.members
    ]
    fields: Fields = {
        "protocolType": value.protocol_type,
        "generation": value.generation,
        "protocol": value.protocol,
        "leader": value.leader,
        "currentStateTimestamp": -1 if value.state_timestamp is None else value.state_timestamp,
        "members": members,
    }
    return encode_versioned(_value(GROUP_METADATA), version, fields)


def _value(kind: int) -> Struct:
    return record_types(GROUPS)[kind].value


def _encode_key(kind: int, fields: Fields) -> bytes:
    # The int16 before a key's fields is its type; fields are those of version 0.
    return kind.to_bytes(2, "big") + encode(record_types(GROUPS)[kind].key, 0, fields)


def _member(fields: Fields) -> GroupMember:
    return GroupMember(
        member_id=text(fields["memberId"]),
        client_id=text(fields["clientId"]),
        client_host=text(fields["clientHost"]),
        session_timeout=number(fields["sessionTimeout"]),
        subscription=binary(fields["subscription"]),
        assignment=binary(fields["assignment"]),
        rebalance_timeout=number(fields["rebalanceTimeout"]),
        group_instance_id=optional_text(fields["groupInstanceId"]),
    )
