"""Sequences of valid requests, as clients send them. The fuzz tests change some of their requests.

A sequence is a generator. It yields requests as pairs of an API and fields, and gets the fields of the response, which
are empty if the server closed the connection. Fields that a version of the API does not have are ignored.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from random import Random
from typing import Any, TypeAlias

from sparklog.serve.codes import Code
from tests.serve.wire import Fields, batch_of

Request: TypeAlias = "tuple[str, Fields]"
Sequence: TypeAlias = Generator[Request, Fields, None]
TOPICS = ("t", "u")
TOPIC_ID = "AAECAwQFBgcICQoLDA0ODw"
ROUNDS = 3


def value_of(fields: Any, name: str, default: Any = None) -> Any:
    """Return the first field with this name in a response."""
    if isinstance(fields, dict):
        if name in fields:
            return fields[name]
        fields = list(fields.values())
    if isinstance(fields, list):
        for item in fields:
            if (found := value_of(item, name)) is not None:
                return found
    return default


def producer_of(found: Fields) -> tuple[int, int]:
    """Return the producer id and the epoch in a response; an unknown producer if it has none."""
    id_, epoch = value_of(found, "producerId", -1), value_of(found, "producerEpoch", -1)
    return (1, 0) if id_ < 0 or epoch < 0 else (id_, epoch)


def produce_request(topic: str, batch: bytes, transactional_id: str | None = None, partition: int = 0) -> Request:
    row = {"index": partition, "records": [batch]}
    topics = [{"name": topic, "topicId": TOPIC_ID, "partitionData": [row]}]
    return "Produce", {"transactionalId": transactional_id, "acks": -1, "timeoutMs": 1_000, "topicData": topics}


def fetch_request(topic: str, offset: int = 0, isolation: int = 0, **fields: Any) -> Request:
    row = {"partition": 0, "fetchOffset": offset, "currentLeaderEpoch": -1, "partitionMaxBytes": 1 << 20}
    row |= {"lastFetchedEpoch": -1, "logStartOffset": -1}
    common = {"replicaId": -1, "maxWaitMs": 1, "minBytes": 1, "maxBytes": 1 << 20, "sessionEpoch": -1, "rackId": ""}
    topics = [{"topic": topic, "topicId": TOPIC_ID, "partitions": [row]}]
    return "Fetch", {**common, "isolationLevel": isolation, "topics": topics, "forgottenTopicsData": [], **fields}


def offset_rows(offset: int) -> list[Fields]:
    row = {"partitionIndex": 0, "committedOffset": offset, "committedLeaderEpoch": -1, "committedMetadata": "m"}
    return [{"name": "t", "topicId": TOPIC_ID, "partitions": [row]}]


def transactions(random_: Random) -> Sequence:
    """Transactions of one transactional id, with batches and offsets of a group."""
    id_, group, sequences = random_.choice(("job", "other")), "transactional", dict.fromkeys(TOPICS, 0)
    yield "FindCoordinator", {"key": id_, "keyType": 1, "coordinatorKeys": [id_]}
    init = {"transactionalId": id_, "transactionTimeoutMs": 60_000, "producerId": -1, "producerEpoch": -1}
    found = yield "InitProducerId", init
    producer = producer_of(found)
    named = {"transactionalId": id_, "producerId": producer[0], "producerEpoch": producer[1]}
    for number in range(random_.randint(1, ROUNDS)):
        partitions = [{"name": topic, "partitions": [0]} for topic in TOPICS]
        older = {f"v3AndBelow{name[0].upper()}{name[1:]}": value for name, value in named.items()}
        added = {**older, "v3AndBelowTopics": partitions}
        added["transactions"] = [{**named, "verifyOnly": random_.random() < 0.5, "topics": partitions}]
        yield "AddPartitionsToTxn", added
        for topic in random_.sample(TOPICS, random_.randint(1, 2)):
            batch = batch_of([b"%d" % number], producer=(*producer, sequences[topic]), transactional=True)
            found = yield produce_request(topic, batch, id_)
            sequences[topic] += value_of(found, "errorCode") == Code.NONE
        if random_.random() < 0.7:
            yield "AddOffsetsToTxn", {**named, "groupId": group}
            offsets = {"generationIdOrMemberEpoch": -1, "generationId": -1, "memberId": "", "groupInstanceId": None}
            yield "TxnOffsetCommit", {**named, **offsets, "groupId": group, "topics": offset_rows(number)}
        yield "DescribeTransactions", {"transactionalIds": [id_]}
        yield "ListTransactions", {"stateFilters": ["Ongoing"], "durationFilter": -1}
        yield "DescribeProducers", {"topics": [{"name": "t", "partitionIndexes": [0]}]}
        found = yield "EndTxn", {**named, "committed": random_.random() < 0.7}
        if value_of(found, "producerEpoch", -1) > producer[1]:
            # From version 5 on, each transaction has an epoch of its own.
            producer = producer_of(found)
            named |= {"producerId": producer[0], "producerEpoch": producer[1]}
            sequences = dict.fromkeys(TOPICS, 0)
        yield fetch_request("t", isolation=1)
    yield "InitProducerId", {**init, **named}


def idempotent_batches(random_: Random) -> Sequence:
    """Batches with sequences. Some batches are sent twice."""
    found = yield "InitProducerId", {"transactionalId": None, "transactionTimeoutMs": 60_000, "producerId": -1}
    producer = producer_of(found)
    for sequence in range(random_.randint(2, 2 * ROUNDS)):
        codec = random_.choice((0, 1))
        batch = batch_of([b"%d" % sequence], producer=(*producer, sequence), codec=codec)
        for _ in range(random_.choice((1, 1, 2))):
            yield produce_request("t", batch)


def group_members(random_: Random) -> Sequence:
    """The life of a member of a classic group."""
    group, instance = random_.choice(("g", "h")), random_.choice((None, None, "static"))
    yield "FindCoordinator", {"key": group, "keyType": 0, "coordinatorKeys": [group]}
    subscription = b"\0\0\0\0\0\1\0\1t\xff\xff\xff\xff"
    join = {
        "groupId": group,
        "memberId": "",
        "groupInstanceId": instance,
        "protocolType": "consumer",
        "sessionTimeoutMs": 200,
        "rebalanceTimeoutMs": 50,
        "protocols": [{"name": name, "metadata": subscription} for name in ("range", "roundrobin")],
    }
    found = yield "JoinGroup", join
    if value_of(found, "errorCode") == Code.MEMBER_ID_REQUIRED:
        found = yield "JoinGroup", {**join, "memberId": value_of(found, "memberId", "")}
    member, generation = value_of(found, "memberId", "m"), value_of(found, "generationId", 1)
    sender = {"groupId": group, "memberId": member, "generationId": generation, "groupInstanceId": instance}
    assignment = {"memberId": member, "assignment": b"\0\0\0\0\0\1\0\1t\0\0\0\1\0\0\0\0\xff\xff\xff\xff"}
    details = {"protocolType": "consumer", "protocolName": value_of(found, "protocolName", "range")}
    yield "SyncGroup", {**sender, **details, "assignments": [assignment]}
    for number in range(random_.randint(1, ROUNDS)):
        yield "Heartbeat", sender
        offsets = {"generationIdOrMemberEpoch": generation, "retentionTimeMs": -1, "topics": offset_rows(number)}
        yield "OffsetCommit", {**sender, **offsets}
        partitions = {"name": "t", "partitionIndexes": [0]}
        asked = {"groupId": group, "memberId": None, "memberEpoch": -1, "topics": [partitions]}
        yield "OffsetFetch", {**asked, "requireStable": True, "groups": [asked]}
    yield "DescribeGroups", {"groups": [group], "includeAuthorizedOperations": True}
    yield "ListGroups", {"statesFilter": [], "typesFilter": []}
    yield "OffsetDelete", {"groupId": group, "topics": [{"name": "t", "partitions": [{"partitionIndex": 0}]}]}
    leaving = {"memberId": member, "groupInstanceId": instance, "reason": "done"}
    yield "LeaveGroup", {"groupId": group, "memberId": member, "members": [leaving]}
    yield "DeleteGroups", {"groupsNames": [group]}


def consumer_members(random_: Random) -> Sequence:
    """The life of a member of the consumer protocol (KIP-848), in a group of its own or with classic members."""
    group, member = random_.choice(("c", "g")), random_.choice(("m1", "m2"))
    found = yield "Metadata", {"topics": [{"topicId": "A" * 22, "name": "t"}], "allowAutoTopicCreation": False}
    topic_id = value_of(found, "topicId", TOPIC_ID)
    unchanged = {"rebalanceTimeoutMs": -1, "subscribedTopicNames": None, "subscribedTopicRegex": None}
    unchanged |= {"instanceId": random_.choice((None, None, "static")), "rackId": None, "serverAssignor": None}
    common = {"groupId": group, "memberId": member, **unchanged, "topicPartitions": None}
    subscribed = {"rebalanceTimeoutMs": 50, "subscribedTopicNames": ["t"], "topicPartitions": []}
    if random_.random() < 0.3:
        subscribed |= {"subscribedTopicNames": [], "subscribedTopicRegex": random_.choice(("t|u", ".*", "(("))}
    found = yield "ConsumerGroupHeartbeat", {**common, **subscribed, "memberEpoch": 0}
    common["memberId"] = value_of(found, "memberId", member) or member
    for number in range(random_.randint(1, ROUNDS)):
        epoch = value_of(found, "memberEpoch", number)
        owned = [{"topicId": topic_id, "partitions": [0]}] if number else None
        found = yield "ConsumerGroupHeartbeat", {**common, "memberEpoch": epoch, "topicPartitions": owned}
        sender = {"groupId": group, "memberId": common["memberId"], "groupInstanceId": None}
        yield "OffsetCommit", {**sender, "generationIdOrMemberEpoch": epoch, "topics": offset_rows(number)}
        rows = [{"name": "t", "partitionIndexes": [0]}]
        asked = {"groupId": group, "memberId": common["memberId"], "memberEpoch": epoch, "topics": rows}
        yield "OffsetFetch", {**asked, "requireStable": True, "groups": [asked]}
    yield "ConsumerGroupDescribe", {"groupIds": [group, "nosuch"], "includeAuthorizedOperations": True}
    yield "ConsumerGroupHeartbeat", {**common, "memberEpoch": random_.choice((-1, -1, -2))}


def reads(random_: Random) -> Sequence:
    """A consumer without a group: metadata, offsets, records, and the removal of records."""
    topics = [{"topicId": "A" * 22, "name": topic} for topic in TOPICS]
    found = yield "Metadata", {"topics": topics, "allowAutoTopicCreation": False}
    id_ = value_of(found, "topicId", TOPIC_ID)
    for time in (-1, -2, -3, 1_700_000_000_000):
        row = {"partitionIndex": 0, "currentLeaderEpoch": -1, "timestamp": time, "maxNumOffsets": 1}
        rows = [{"name": "t", "partitions": [row]}]
        yield "ListOffsets", {"replicaId": -1, "isolationLevel": random_.randrange(2), "topics": rows}
    for offset in range(ROUNDS):
        name, fields = fetch_request(random_.choice(TOPICS), offset, random_.randrange(2))
        fields["topics"][0]["topicId"] = id_
        yield name, fields
    yield "DescribeTopicPartitions", {"topics": [{"name": "t"}], "responsePartitionLimit": 10, "cursor": None}
    yield "DescribeCluster", {"includeClusterAuthorizedOperations": True, "endpointType": 1}
    yield "DescribeLogDirs", {"topics": [{"topic": "t", "partitions": [0]}]}
    rows = [{"name": "u", "partitions": [{"partitionIndex": 0, "offset": 1}]}]
    yield "DeleteRecords", {"topics": rows, "timeoutMs": 1}


def administration(random_: Random) -> Sequence:
    """The life of a topic, and its configs."""
    name = f"n{random_.randrange(4)}"
    config = {"name": "retention.ms", "value": "3600000", "configOperation": 0}
    created = {"name": name, "numPartitions": 1, "replicationFactor": 1, "assignments": [], "configs": [config]}
    yield "CreateTopics", {"topics": [created], "timeoutMs": 1, "validateOnly": random_.random() < 0.2}
    yield produce_request(name, batch_of([b"1"]))
    yield "CreatePartitions", {"topics": [{"name": name, "count": 2, "assignments": None}], "timeoutMs": 1}
    resource = {"resourceType": 2, "resourceName": name, "configs": [config], "configurationKeys": None}
    yield "IncrementalAlterConfigs", {"resources": [resource]}
    yield "AlterConfigs", {"resources": [resource]}
    yield "DescribeConfigs", {"resources": [resource], "includeSynonyms": True, "includeDocumentation": True}
    yield "ElectLeaders", {"electionType": 0, "topicPartitions": [{"topic": name, "partitions": [0]}], "timeoutMs": 1}
    yield "ListConfigResources", {"resourceTypes": []}
    yield "DeleteTopics", {"topics": [{"name": name, "topicId": "A" * 22}], "topicNames": [name], "timeoutMs": 1}


SEQUENCES: tuple[Callable[[Random], Sequence], ...] = (
    transactions,
    idempotent_batches,
    group_members,
    consumer_members,
    reads,
    administration,
)
