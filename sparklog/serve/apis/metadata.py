"""Metadata, DescribeTopicPartitions, DescribeCluster, DescribeLogDirs and ListOffsets.

Every server accepts requests for every partition, so leaders are only hints (see `sparklog.serve.peers`). All leader
epochs are -1, so that clients do not validate leader epochs. A Metadata request creates a missing topic if the root
default `auto.create.topics.enable` is true, or if the root is in memory, for tests. The only log directory is the
served location.
"""

from __future__ import annotations

from contextlib import suppress

from sparklog.errors import SparklogError
from sparklog.kafka.messages.message_schema import NO_UUID, Fields
from sparklog.log.journal.names import is_topic_name
from sparklog.serve.authorized_operations import cluster_operations, topic_operations
from sparklog.serve.codes import FAILURES, Code, CodeError, code_of, failure, partition_rows
from sparklog.serve.new_topics import check_collision
from sparklog.serve.served_log import DENIED, PolledTopic
from sparklog.serve.services import ServedRequest, Services
from sparklog.serve.users import READ, WRITE

INTERNAL = ("__consumer_offsets", "__transaction_state", "__share_group_state")
MAX_DESCRIBED_PARTITIONS = 2_000
"""The maximum number of partitions in a DescribeTopicPartitions response, like `max.request.partition.size.limit`."""
BROKERS, CONTROLLERS = 1, 2
"""Endpoint types of DescribeCluster."""
ID_VERSION = 12
"""The first version of Metadata that can request topics by id."""
LATEST, EARLIEST, MAX_TIMESTAMP, EARLIEST_LOCAL, LATEST_TIERED = range(-1, -6, -1)
OFFSET_VERSIONS = {LATEST: 1, EARLIEST: 1, MAX_TIMESTAMP: 7, EARLIEST_LOCAL: 8, LATEST_TIERED: 9}
"""The first version of ListOffsets that supports each of Kafka's special timestamps."""


def metadata(request: ServedRequest) -> Fields:
    topics, services = request.fields["topics"], request.services
    # In version 0, an empty list requests all topics. In later versions, a null list requests all topics.
    is_all = topics is None or (request.version == 0 and not topics)
    ids = [] if is_all or request.version < ID_VERSION else requested_ids(topics)
    # Like a broker, ignore names if the request has topic ids.
    by_id = services.log.names_of(ids)
    if ids:
        names = list(by_id.values())
    else:
        names = services.log.topics() if is_all else list(dict.fromkeys(topic["name"] or "" for topic in topics))
    visible = [name for name in names if may_see(request, name)]
    if services.options.writable and not is_all and not ids and request.fields["allowAutoTopicCreation"]:
        _create_missing(services, [name for name in visible if request.may(WRITE, name)])
    polled = services.log.poll_each(visible)

    def row_of(name: str) -> Fields:
        state = polled.get(name, DENIED)
        return _topic_row(request, name, state, _partitions(services, name, sorted(state.ends)))

    def row_of_id(topic_id: str) -> Fields:
        row = row_of(by_id[topic_id]) if topic_id in by_id else {}
        if row.get("topicId") == topic_id:
            return row
        # Do not disclose the name of a topic that the client may not describe.
        code = row.get("errorCode", Code.UNKNOWN_TOPIC_OR_PARTITION)
        code = Code.UNKNOWN_TOPIC_ID if code == Code.UNKNOWN_TOPIC_OR_PARTITION else code
        return {"name": None, "topicId": topic_id, "errorCode": code}

    rows = list(map(row_of_id, ids)) if ids else list(map(row_of, visible if is_all else names))
    return {**_cluster(request, "nodeId"), "topics": rows}


def _partitions(services: Services, topic: str, partitions: list[int]) -> list[Fields]:
    """Return the response rows of partitions, with their leaders and replicas."""
    nodes = [services.node_ids[node] for node in services.peers.leaders(topic)]
    leaders = [{"leaderId": node, "replicaNodes": [node], "isrNodes": [node]} for node in nodes]
    return [{"partitionIndex": partition, **leaders[partition % len(leaders)]} for partition in partitions]


def _topic_row(request: ServedRequest, name: str, state: PolledTopic, partitions: list[Fields]) -> Fields:
    """Return the response row of a topic: its id and partitions, or an error code."""
    if state.ends:
        row = {"name": name, "topicId": state.topic_id, "isInternal": name in INTERNAL, "partitions": partitions}
        # DescribeTopicPartitions does not have this field and always returns the operations.
        if request.fields.get("includeTopicAuthorizedOperations", True):
            row["topicAuthorizedOperations"] = topic_operations(request, name)
        return row
    is_invalid = state is not DENIED and not is_topic_name(name)
    return {"name": name, "errorCode": Code.INVALID_TOPIC if is_invalid else state.code}


def describe_topic_partitions(request: ServedRequest) -> Fields:
    """Describe topics in name order, up to the requested number of partitions.

    `nextCursor` is the position at which the next request continues.
    """
    fields, services = request.fields, request.services
    cursor, requested = fields["cursor"], [topic["name"] for topic in fields["topics"]]
    start, first = ("", 0) if cursor is None else (cursor["topicName"], cursor["partitionIndex"])
    if first < 0 or (cursor is not None and requested and start not in requested):
        return {"topics": [{"name": name, "errorCode": Code.INVALID_REQUEST} for name in requested or [start]]}
    names = sorted(name for name in set(requested or services.log.topics()) if name >= start)
    polled = services.log.poll_each([name for name in names if may_see(request, name)])
    if not requested:
        # If the client requests all topics, ignore a topic that was deleted in the meantime.
        names = [name for name in names if polled.get(name, DENIED).ends]
    remaining, topics = max(1, min(fields["responsePartitionLimit"], MAX_DESCRIBED_PARTITIONS)), list[Fields]()
    no_others: Fields = {"eligibleLeaderReplicas": [], "lastKnownElr": []}
    for name in names:
        if not remaining:
            return {"topics": topics, "nextCursor": {"topicName": name, "partitionIndex": 0}}
        state = polled.get(name, DENIED)
        partitions = [partition for partition in sorted(state.ends) if name != start or partition >= first]
        rows = [row | no_others for row in _partitions(services, name, partitions[:remaining])]
        topics.append(_topic_row(request, name, state, rows))
        if len(partitions) > remaining:
            return {"topics": topics, "nextCursor": {"topicName": name, "partitionIndex": partitions[remaining]}}
        remaining -= len(partitions)
    return {"topics": topics}


def requested_ids(topics: list[Fields]) -> list[str]:
    """Return the distinct topic ids in a request."""
    return list(dict.fromkeys(topic["topicId"] for topic in topics if topic["topicId"] != NO_UUID))


def may_see(request: ServedRequest, name: str) -> bool:
    """Return True if the client may describe a topic."""
    return request.may(READ, name) or request.may(WRITE, name)


def describe_cluster(request: ServedRequest) -> Fields:
    endpoint = request.fields["endpointType"]
    if endpoint == BROKERS:
        return _cluster(request, "brokerId")
    if endpoint == CONTROLLERS:
        error = CodeError(Code.MISMATCHED_ENDPOINT_TYPE, "this server is a broker to its clients, not a controller")
    else:
        error = CodeError(Code.UNSUPPORTED_ENDPOINT_TYPE, f"expected endpoint type 1 or 2, found {endpoint}")
    return failure(error)


def _cluster(request: ServedRequest, id_name: str) -> Fields:
    services, ids = request.services, request.services.node_ids
    # Omit servers that do not respond, as a controller omits fenced brokers.
    brokers = [{id_name: ids[node], "host": node.host, "port": node.port} for node in services.peers.responding]
    cluster_id = "sparklog" if services.log.root is None else services.log.root.id
    cluster = {"clusterId": cluster_id, "controllerId": ids[services.peers.own], "brokers": brokers}
    if request.fields["includeClusterAuthorizedOperations"]:
        cluster["clusterAuthorizedOperations"] = cluster_operations(request)
    return cluster


def _create_missing(services: Services, names: list[str]) -> None:
    """Create missing topics if allowed by `auto.create.topics.enable` or, if that root default is not set, by the
    server option.
    """
    log, root = services.log, services.log.root
    if root is None or not names:
        return
    defaults = root.engine.defaults.read()
    settings = {name: defaults.auto_create(name) for name in names if log.serves(name)}
    allowed = [
        name for name, is_set in settings.items() if (services.options.auto_create if is_set is None else is_set)
    ]
    for name in set(allowed) - log.poll(allowed).keys() if allowed else ():
        # If a topic cannot be created (for example, because its name differs from an existing one only in case), the
        # response reports UNKNOWN_TOPIC_OR_PARTITION.
        with suppress(*FAILURES):
            check_collision(name, log)
            root.ensure_topic(name)
        log.invalidate_listing()


def describe_log_dirs(request: ServedRequest) -> Fields:
    log, rows, topics = request.services.log, request.fields["topics"], list[Fields]()
    requested = dict.fromkeys(log.topics()) if rows is None else {row["topic"]: set(row["partitions"]) for row in rows}
    for name, state in log.poll_each([name for name in requested if request.may(READ, name)]).items():
        partitions = requested[name]
        with suppress(SparklogError):
            rows = [
                {"partitionIndex": size.partition, "partitionSize": size.total_bytes, "offsetLag": 0}
                for size in (log.sizes(name) if state.ends else ())
                if partitions is None or size.partition in partitions
            ]
            topics += [{"name": name, "partitions": rows}] if rows else []
    return {"results": [{"logDir": log.location, "topics": topics}]}


def list_offsets(request: ServedRequest) -> Fields:
    names = [topic["name"] for topic in request.fields["topics"]]
    polled = request.services.log.poll_each([name for name in names if request.may(READ, name)])

    def respond(topic: str, row: Fields) -> Fields:
        state = polled.get(topic, DENIED)
        bounds = state.ends.get(row["partitionIndex"])
        if bounds is None:
            return {"errorCode": state.code}
        if row["timestamp"] < 0 and request.version < OFFSET_VERSIONS.get(row["timestamp"], 1 << 15):
            return {"errorCode": Code.UNSUPPORTED_VERSION}
        if row["timestamp"] == LATEST_TIERED:
            # Like a broker without tiered storage, return no offset.
            return {}
        if row["timestamp"] in (EARLIEST, EARLIEST_LOCAL):
            return {"offset": bounds.log_start}
        end = bounds.end(request.isolation)
        return {"offset": end} if row["timestamp"] == LATEST else _first_at(request, topic, row, end)

    return {"topics": partition_rows(request.fields, respond)}


def _first_at(request: ServedRequest, topic: str, row: Fields, end: int) -> Fields:
    """Return the first record at or after a timestamp if its offset is below `end`."""
    # As in Kafka, the largest timestamp is determined from all records, so the record with this timestamp may not be
    # visible to the client.
    log, time_ms = request.services.log, None if row["timestamp"] == MAX_TIMESTAMP else row["timestamp"]
    try:
        record = log.record_at(topic, row["partitionIndex"], time_ms, request.isolation)
    except SparklogError as error:
        return {"errorCode": code_of(error)}
    return {} if record is None or record.offset >= end else {"offset": record.offset, "timestamp": record.timestamp}
