"""Handle admin requests for features that a root does not have: quotas, replicas and a quorum. The responses are the
same as the responses of a single broker that does not use these features. Lists are empty, and elections are not
needed.
DescribeProducers and ListConfigResources return the producers and configs of the root.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from sparklog.errors import SparklogError
from sparklog.format.record_batch import MAX_SEQUENCE
from sparklog.kafka.messages.message_schema import Fields
from sparklog.log.journal.names import is_topic_name
from sparklog.log.state.writer_runs import KAFKA_WRITER
from sparklog.serve.apis.metadata import may_see
from sparklog.serve.batch_checks import EPOCH_SHIFT
from sparklog.serve.codes import Code, CodeError, failure
from sparklog.serve.served_log import DENIED, PolledTopic
from sparklog.serve.services import ServedRequest
from sparklog.serve.users import READ

TOPIC, BROKER, BROKER_LOGGER, CLIENT_METRICS, GROUP = CONFIG_RESOURCES = (2, 4, 8, 16, 32)
PREFERRED, UNCLEAN = 0, 1
"""Election types."""
QUOTA_ENTITIES = ("user", "client-id", "ip")
METADATA_PARTITION = ("__cluster_metadata", 0)


# -- quotas


async def describe_client_quotas(request: ServedRequest) -> Fields:
    for component in request.fields["components"]:
        kind = component["entityType"]
        if kind not in QUOTA_ENTITIES:
            error = CodeError(Code.UNSUPPORTED_VERSION, f"expected entity type user, client-id or ip, found {kind!r}")
            return {**failure(error), "entries": None}
    return {"errorMessage": "", "entries": []}


async def alter_client_quotas(request: ServedRequest) -> Fields:
    error = failure(CodeError(Code.UNSUPPORTED_VERSION, "client quotas are not supported"))
    return {"entries": [{"entity": entry["entity"], **error} for entry in request.fields["entries"]]}


# -- replicas and the quorum


async def list_partition_reassignments(request: ServedRequest) -> Fields:
    return {"topics": []}


def alter_partition_reassignments(request: ServedRequest) -> Fields:
    """Accept replicas that are servers of the root. The replicas do not have an effect, because every server can serve
    all partitions.
    """
    topics, nodes = request.fields["topics"], set(request.services.node_ids.values())
    polled = _visible(request, (topic["name"] for topic in topics), may_see)

    def row(topic: str, partition: Fields) -> Fields:
        number, replicas, code = partition["partitionIndex"], partition["replicas"], Code.NONE
        if number not in polled[topic].ends:
            code = polled[topic].code
        elif replicas is None:
            code = Code.NO_REASSIGNMENT_IN_PROGRESS
        elif not replicas or len(set(replicas)) < len(replicas) or not nodes.issuperset(replicas):
            code = Code.INVALID_REPLICA_ASSIGNMENT
        return {"partitionIndex": number, **(failure(CodeError(code)) if code else {"errorMessage": None})}

    rows = [
        {"name": topic["name"], "partitions": [row(topic["name"], partition) for partition in topic["partitions"]]}
        for topic in topics
    ]
    return {"responses": rows}


def alter_replica_log_dirs(request: ServedRequest) -> Fields:
    """Accept the only log directory, which is the served location. All partitions are already in this directory."""
    dirs = request.fields["dirs"]
    polled = _visible(request, (topic["name"] for entry in dirs for topic in entry["topics"]), may_see)

    def row(path: str, topic: str, number: int) -> Fields:
        state = polled[topic]
        code = Code.NONE if number in state.ends else state.code
        if path != request.services.log.location and state is not DENIED:
            code = Code.LOG_DIR_NOT_FOUND
        return {"partitionIndex": number, "errorCode": code}

    rows = [
        {"topicName": topic["name"], "partitions": [row(entry["path"], topic["name"], n) for n in topic["partitions"]]}
        for entry in dirs
        for topic in entry["topics"]
    ]
    return {"results": rows}


def elect_leaders(request: ServedRequest) -> Fields:
    kind, topics = request.fields["electionType"], request.fields["topicPartitions"] or []
    error = None
    if kind not in (PREFERRED, UNCLEAN):
        error = CodeError(Code.INVALID_REQUEST, f"expected election type 0 or 1, found {kind}")
    polled = _visible(request, (topic["topic"] for topic in topics), may_see)

    def row(topic: str, number: int) -> Fields:
        code = Code.ELECTION_NOT_NEEDED if number in polled[topic].ends else polled[topic].code
        return {"partitionId": number, **failure(error or CodeError(code))}

    results = [
        {"topic": topic["topic"], "partitionResult": [row(topic["topic"], number) for number in topic["partitions"]]}
        for topic in topics
    ]
    return {"errorCode": error.code if error else Code.NONE, "replicaElectionResults": results}


async def describe_quorum(request: ServedRequest) -> Fields:
    """Return a quorum that consists of this server. All offsets are 0, because a root does not have a metadata log."""
    services, found = request.services, False
    own = services.peers.own
    node_id, topics = services.node_ids[own], list[Fields]()
    for topic in request.fields["topics"]:
        rows = []
        for partition in topic["partitions"]:
            row: Fields = {"partitionIndex": partition["partitionIndex"]}
            if (topic["topicName"], partition["partitionIndex"]) == METADATA_PARTITION:
                found = True
                row |= {"leaderId": node_id, "currentVoters": [{"replicaId": node_id}]}
            else:
                row |= failure(CodeError(Code.UNKNOWN_TOPIC_OR_PARTITION))
            rows.append(row)
        topics.append({"topicName": topic["topicName"], "partitions": rows})
    listener = {"name": services.options.listener, "host": own.host, "port": own.port}
    return {"topics": topics, "nodes": [{"nodeId": node_id, "listeners": [listener]}] if found else []}


# -- producers and configs


def describe_producers(request: ServedRequest) -> Fields:
    topics = request.fields["topics"]
    polled = _visible(request, (topic["name"] for topic in topics), lambda request, name: request.may(READ, name))

    def rows(topic: Fields) -> list[Fields]:
        name = topic["name"]
        state = polled[name]
        try:
            producers = _producers(request, name) if state.ends else {}
            return [
                {"partitionIndex": number, "activeProducers": producers.get(number, [])}
                if number in state.ends
                else {"partitionIndex": number, **failure(CodeError(state.code))}
                for number in topic["partitionIndexes"]
            ]
        except SparklogError as error:
            return [{"partitionIndex": number, **failure(error)} for number in topic["partitionIndexes"]]

    return {"topics": [{"name": topic["name"], "partitions": rows(topic)} for topic in topics]}


def _producers(request: ServedRequest, topic: str) -> dict[int, list[Fields]]:
    """Return the idempotent producers in a topic's registry, by partition. The result is empty for a Kafka directory,
    which does not have a registry.
    """
    root, transactions = request.services.log.root, request.services.transactions
    rows: dict[int, list[Fields]] = {}
    if root is None or transactions is None:
        return rows
    state = root.topic(topic).log.state(refresh=False)
    starts = transactions.open_starts(state)
    for name, entry in state.registry.items():
        if name.startswith(KAFKA_WRITER):
            producer, _, partition = name.removeprefix(KAFKA_WRITER).rpartition("-")
            row = {"producerId": int(producer), "producerEpoch": entry.batch >> EPOCH_SHIFT, "coordinatorEpoch": -1}
            row |= {"lastSequence": entry.batch & MAX_SEQUENCE, "lastTimestamp": entry.time_ms}
            row |= {"currentTxnStartOffset": starts.get((int(producer), int(partition)), -1)}
            rows.setdefault(int(partition), []).append(row)
    return rows


def list_config_resources(request: ServedRequest) -> Fields:
    if request.version == 0:
        # Version 0 lists only client metrics resources.
        return {"configResources": []}
    kinds = request.fields["resourceTypes"] or CONFIG_RESOURCES
    if any(kind not in CONFIG_RESOURCES for kind in kinds):
        return {"errorCode": Code.UNSUPPORTED_VERSION}
    services, rows = request.services, list[Fields]()
    if BROKER in kinds:
        rows += [{"resourceName": str(node_id), "resourceType": BROKER} for node_id in services.node_ids.values()]
    if TOPIC in kinds:
        names = [name for name in services.log.topics() if request.may(READ, name)]
        rows += [{"resourceName": name, "resourceType": TOPIC} for name in names]
    return {"configResources": rows}


def _visible(
    request: ServedRequest, names: Iterable[str], may: Callable[[ServedRequest, str], bool]
) -> dict[str, PolledTopic]:
    """Poll topics, and return the state of each topic.

    If the client may not describe a topic, its state is `DENIED`.
    """
    topics = list(dict.fromkeys(names))
    polled = request.services.log.poll_each([name for name in topics if may(request, name)])
    invalid = PolledTopic(code=Code.INVALID_TOPIC)
    return {name: DENIED if name not in polled else polled[name] if is_topic_name(name) else invalid for name in topics}
