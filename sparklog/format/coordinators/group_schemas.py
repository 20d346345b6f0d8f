"""Schemas of the records of Kafka's `__consumer_offsets` by type, as the message definitions of Kafka 4.1.0 have them.

`group_messages` says what the types are for; `message_schema` how fields become bytes. Keys have no versions.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType

from sparklog.format.coordinators.message_schema import Field, Struct

OFFSET_COMMIT_LEGACY = 0
OFFSET_COMMIT = 1
GROUP_METADATA = 2


def _group(*names: str) -> tuple[Field, ...]:
    return tuple(Field(name, "string") for name in names)


def _topic_partitions(name: str) -> Struct:
    return Struct(name, (Field("topicId", "uuid"), Field("partitions", "int32", array=True)), flexible=0)


def _tasks(*names: str) -> tuple[Field, ...]:
    ids = Struct("TaskIds", (Field("subtopologyId", "string"), Field("partitions", "int32", array=True)), flexible=0)
    return tuple(Field(name, ids, array=True) for name in names)


def _value(name: str, *fields: Field) -> Struct:
    return Struct(name, fields, flexible=0)


_OFFSET_KEY = Struct("OffsetCommitKey", (*_group("group", "topic"), Field("partition", "int32")))
_OFFSET_VALUE = Struct(
    "OffsetCommitValue",
    (
        Field("offset", "int64"),
        Field("leaderEpoch", "int32", since=3, default=-1),
        Field("metadata", "string"),
        Field("commitTimestamp", "int64"),
        Field("expireTimestamp", "int64", since=1, until=1, default=-1),
        Field("topicId", "uuid", since=4, tag=0),
    ),
    highest=4,
    flexible=4,
)
_LEGACY_OFFSET_VALUE = Struct(
    "LegacyOffsetCommitValue",
    (Field("offset", "int64"), Field("metadata", "string"), Field("commitTimestamp", "int64")),
)
_MEMBER = Struct(
    "MemberMetadata",
    (
        Field("memberId", "string"),
        Field("groupInstanceId", "string", since=3, nullable=True),
        Field("clientId", "string"),
        Field("clientHost", "string"),
        Field("rebalanceTimeout", "int32", since=1, default=-1),
        Field("sessionTimeout", "int32"),
        Field("subscription", "bytes"),
        Field("assignment", "bytes"),
    ),
)
_GROUP_VALUE = Struct(
    "GroupMetadataValue",
    (
        Field("protocolType", "string"),
        Field("generation", "int32"),
        Field("protocol", "string", nullable=True),
        Field("leader", "string", nullable=True),
        Field("currentStateTimestamp", "int64", since=2, default=-1),
        Field("members", _MEMBER, array=True),
    ),
    highest=4,
    flexible=4,
)
_TOPIC_METADATA = Struct(
    "TopicMetadata",
    (
        Field("topicId", "uuid"),
        Field("topicName", "string"),
        Field("numPartitions", "int32"),
        Field(
            "partitionMetadata",
            Struct("PartitionMetadata", (Field("partition", "int32"), Field("racks", "string", array=True))),
            array=True,
        ),
    ),
)
_CLASSIC_MEMBER = Struct(
    "ClassicMemberMetadata",
    (
        Field("sessionTimeoutMs", "int32"),
        Field(
            "supportedProtocols",
            Struct("ClassicProtocol", (Field("name", "string"), Field("metadata", "bytes"))),
            array=True,
        ),
    ),
)
_TOPIC_CONFIG = Struct("TopicConfig", _group("key", "value"))
_TOPIC_INFO = Struct(
    "TopicInfo",
    (
        Field("name", "string"),
        Field("partitions", "int32"),
        Field("replicationFactor", "int16"),
        Field("topicConfigs", _TOPIC_CONFIG, array=True),
    ),
)
_COPARTITION_GROUP = Struct(
    "CopartitionGroup",
    tuple(Field(name, "int16", array=True) for name in ("sourceTopics", "sourceTopicRegex", "repartitionSourceTopics")),
)
_SUBTOPOLOGY = Struct(
    "Subtopology",
    (
        Field("subtopologyId", "string"),
        Field("sourceTopics", "string", array=True),
        Field("sourceTopicRegex", "string", array=True),
        Field("stateChangelogTopics", _TOPIC_INFO, array=True),
        Field("repartitionSinkTopics", "string", array=True),
        Field("repartitionSourceTopics", _TOPIC_INFO, array=True),
        Field("copartitionGroups", _COPARTITION_GROUP, array=True),
    ),
)
_SHARE_TOPIC = (Field("topicId", "uuid"), Field("topicName", "string"))
_SHARE_TOPIC_PARTITIONS = Struct("TopicPartitionsInfo", (*_SHARE_TOPIC, Field("partitions", "int32", array=True)))
_ASSIGNED = Field("assignedPartitions", _topic_partitions("TopicPartitions"), array=True)
_EPOCHS = (Field("memberEpoch", "int32"), Field("previousMemberEpoch", "int32"), Field("state", "int8"))
_ASSIGNMENT_EPOCH = Field("assignmentEpoch", "int32")
_TARGET = Field("topicPartitions", _topic_partitions("TopicPartition"), array=True)


@dataclass(frozen=True, slots=True)
class MessageType:
    """A type of record: the schemas of its key and value."""

    number: int
    key: Struct
    value: Struct


def _type(number: int, name: str, key: tuple[str, ...], *fields: Field) -> MessageType:
    return MessageType(number, Struct(name + "Key", _group(*key)), _value(name + "Value", *fields))


_OF_GROUP = ("groupId",)
_OF_MEMBER = ("groupId", "memberId")
_CLIENT = _group("clientId", "clientHost")

TYPES = MappingProxyType(
    {
        each.number: each
        for each in (
            MessageType(0, _OFFSET_KEY, _LEGACY_OFFSET_VALUE),
            MessageType(1, _OFFSET_KEY, _OFFSET_VALUE),
            MessageType(2, Struct("GroupMetadataKey", _group("group")), _GROUP_VALUE),
            _type(
                *(3, "ConsumerGroupMetadata", _OF_GROUP),
                *(Field("epoch", "int32"), Field("metadataHash", "int64", tag=0)),
            ),
            _type(4, "ConsumerGroupPartitionMetadata", _OF_GROUP, Field("topics", _TOPIC_METADATA, array=True)),
            _type(
                *(5, "ConsumerGroupMemberMetadata", _OF_MEMBER),
                Field("instanceId", "string", nullable=True),
                Field("rackId", "string", nullable=True),
                *_CLIENT,
                Field("subscribedTopicNames", "string", array=True),
                Field("subscribedTopicRegex", "string", nullable=True),
                Field("rebalanceTimeoutMs", "int32", default=-1),
                Field("serverAssignor", "string", nullable=True),
                Field("classicMemberMetadata", _CLASSIC_MEMBER, nullable=True, tag=0),
            ),
            _type(6, "ConsumerGroupTargetAssignmentMetadata", _OF_GROUP, _ASSIGNMENT_EPOCH),
            _type(7, "ConsumerGroupTargetAssignmentMember", _OF_MEMBER, _TARGET),
            _type(
                *(8, "ConsumerGroupCurrentMemberAssignment", _OF_MEMBER),
                *(*_EPOCHS, _ASSIGNED),
                Field("partitionsPendingRevocation", _topic_partitions("TopicPartitions"), array=True),
            ),
            _type(
                *(10, "ShareGroupMemberMetadata", _OF_MEMBER, Field("rackId", "string", nullable=True)),
                *(*_CLIENT, Field("subscribedTopicNames", "string", array=True)),
            ),
            _type(11, "ShareGroupMetadata", _OF_GROUP, Field("epoch", "int32"), Field("metadataHash", "int64")),
            _type(12, "ShareGroupTargetAssignmentMetadata", _OF_GROUP, _ASSIGNMENT_EPOCH),
            _type(13, "ShareGroupTargetAssignmentMember", _OF_MEMBER, _TARGET),
            _type(14, "ShareGroupCurrentMemberAssignment", _OF_MEMBER, *_EPOCHS, _ASSIGNED),
            _type(
                *(15, "ShareGroupStatePartitionMetadata", _OF_GROUP),
                Field("initializingTopics", _SHARE_TOPIC_PARTITIONS, array=True),
                Field("initializedTopics", _SHARE_TOPIC_PARTITIONS, array=True),
                Field("deletingTopics", Struct("TopicInfo", _SHARE_TOPIC), array=True),
            ),
            _type(
                *(16, "ConsumerGroupRegularExpression", ("groupId", "regularExpression")),
                *(Field("topics", "string", array=True), Field("version", "int64"), Field("timestamp", "int64")),
            ),
            _type(17, "StreamsGroupMetadata", _OF_GROUP, Field("epoch", "int32"), Field("metadataHash", "int64")),
            _type(
                *(19, "StreamsGroupMemberMetadata", _OF_MEMBER),
                Field("instanceId", "string", nullable=True),
                Field("rackId", "string", nullable=True),
                *_CLIENT,
                Field("rebalanceTimeoutMs", "int32", default=-1),
                Field("topologyEpoch", "int32"),
                Field("processId", "string"),
                Field(
                    "userEndpoint",
                    Struct("Endpoint", (Field("host", "string"), Field("port", "uint16"))),
                    nullable=True,
                ),
                Field("clientTags", Struct("KeyValue", _group("key", "value")), array=True),
            ),
            _type(20, "StreamsGroupTargetAssignmentMetadata", _OF_GROUP, _ASSIGNMENT_EPOCH),
            _type(
                *(21, "StreamsGroupTargetAssignmentMember", _OF_MEMBER),
                *_tasks("activeTasks", "standbyTasks", "warmupTasks"),
            ),
            _type(
                *(22, "StreamsGroupCurrentMemberAssignment", _OF_MEMBER, *_EPOCHS),
                *_tasks("activeTasks", "standbyTasks", "warmupTasks"),
                *_tasks("activeTasksPendingRevocation", "standbyTasksPendingRevocation"),
                *_tasks("warmupTasksPendingRevocation"),
            ),
            _type(
                *(23, "StreamsGroupTopology", _OF_GROUP),
                *(Field("epoch", "int32"), Field("subtopologies", _SUBTOPOLOGY, array=True)),
            ),
        )
    }
)
"""By their numbers."""

_TOPIC_ASSIGNMENT = Struct("TopicPartition", (Field("topic", "string"), Field("partitions", "int32", array=True)))
SUBSCRIPTION = Struct(
    "ConsumerProtocolSubscription",
    (
        Field("topics", "string", array=True),
        Field("userData", "bytes", nullable=True),
        Field("ownedPartitions", _TOPIC_ASSIGNMENT, array=True, since=1),
        Field("generationId", "int32", since=2, default=-1),
        Field("rackId", "string", nullable=True, since=3),
    ),
    highest=3,
)
"""What a member of a group of consumers subscribes to, behind int16 version."""
ASSIGNMENT = Struct(
    "ConsumerProtocolAssignment",
    (Field("assignedPartitions", _TOPIC_ASSIGNMENT, array=True), Field("userData", "bytes", nullable=True)),
    highest=3,
)
"""What such a member was assigned, behind int16 version."""
