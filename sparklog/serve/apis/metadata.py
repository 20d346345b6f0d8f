"""Topics, partitions, servers, stored bytes, offsets: Metadata, DescribeTopicPartitions, DescribeCluster and others.

Every server accepts requests for every partition, so leaders are only advice: see `sparklog.serve.peers`. Leader epochs
are -1, so clients do not check them. A metadata request creates a missing topic if the root default
`auto.create.topics.enable` is true, or if the root is in memory, for tests. The only log directory is the served
location.
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
"""Partitions in one response of DescribeTopicPartitions, as a broker's `max.request.partition.size.limit`."""
BROKERS, CONTROLLERS = 1, 2
"""Endpoint types of DescribeCluster."""
ID_VERSION = 12
"""The first version of Metadata that can request topics by id."""
LATEST, EARLIEST, GREATEST_TIME, EARLIEST_LOCAL, LATEST_TIERED = range(-1, -6, -1)
OFFSET_VERSIONS = {LATEST: 1, EARLIEST: 1, GREATEST_TIME: 7, EARLIEST_LOCAL: 8, LATEST_TIERED: 9}
"""The first version of ListOffsets that supports each of Kafka's special timestamps."""


def metadata(request: ServedRequest) -> Fields:
    asked, services = request.fields["topics"], request.services
    # In version 0 an empty list asks for all topics, later a null does.
    every = asked is None or (request.version == 0 and not asked)
    ids = [] if every or request.version < ID_VERSION else requested_ids(asked)
    # Like a broker, ignore names if a request has topic ids.
    by_id = services.log.names_of(ids)
    if ids:
        names = list(by_id.values())
    else:
        names = services.log.topics() if every else list(dict.fromkeys(topic["name"] or "" for topic in asked))
    visible = [name for name in names if may_see(request, name)]
    if services.options.writable and not every and not ids and request.fields["allowAutoTopicCreation"]:
        _create_missing(services, [name for name in visible if request.may(WRITE, name)])
    polled = services.log.poll_each(visible)

    def topic(name: str) -> Fields:
        seen = polled.get(name, DENIED)
        return _topic_row(request, name, seen, _partitions(services, name, sorted(seen.ends)))

    def topic_of_id(topic_id: str) -> Fields:
        row = topic(by_id[topic_id]) if topic_id in by_id else {}
        if row.get("topicId") == topic_id:
            return row
        # Do not disclose the name of a topic that the client may not see.
        code = row.get("errorCode", Code.UNKNOWN_TOPIC_OR_PARTITION)
        code = Code.UNKNOWN_TOPIC_ID if code == Code.UNKNOWN_TOPIC_OR_PARTITION else code
        return {"name": None, "topicId": topic_id, "errorCode": code}

    rows = list(map(topic_of_id, ids)) if ids else list(map(topic, visible if every else names))
    return {**_cluster(request, "nodeId"), "topics": rows}


def _partitions(services: Services, topic: str, numbers: list[int]) -> list[Fields]:
    """Return the partition rows of a response, with leaders and replicas."""
    nodes = [services.node_ids[node] for node in services.peers.leaders(topic)]
    leads = [{"leaderId": node, "replicaNodes": [node], "isrNodes": [node]} for node in nodes]
    return [{"partitionIndex": number, **leads[number % len(leads)]} for number in numbers]


def _topic_row(request: ServedRequest, name: str, seen: PolledTopic, partitions: list[Fields]) -> Fields:
    """Return the row of a topic in a response: its id and partitions, or an error code."""
    if seen.ends:
        about = {"name": name, "topicId": seen.topic_id, "isInternal": name in INTERNAL, "partitions": partitions}
        # DescribeTopicPartitions has no such field and always gets the operations.
        tells_rights = request.fields.get("includeTopicAuthorizedOperations", True)
        return about | {"topicAuthorizedOperations": topic_operations(request, name)} if tells_rights else about
    is_invalid = seen is not DENIED and not is_topic_name(name)
    return {"name": name, "errorCode": Code.INVALID_TOPIC if is_invalid else seen.code}


def describe_topic_partitions(request: ServedRequest) -> Fields:
    """Describe topics in name order, up to the requested number of partitions; `nextCursor` is where to continue."""
    fields, services = request.fields, request.services
    cursor, named = fields["cursor"], [topic["name"] for topic in fields["topics"]]
    begin, first = ("", 0) if cursor is None else (cursor["topicName"], cursor["partitionIndex"])
    if first < 0 or (cursor is not None and named and begin not in named):
        return {"topics": [{"name": name, "errorCode": Code.INVALID_REQUEST} for name in named or [begin]]}
    names = sorted(name for name in set(named or services.log.topics()) if name >= begin)
    polled = services.log.poll_each([name for name in names if may_see(request, name)])
    if not named:
        # A topic deleted in the meantime is not an error if the client requests all topics.
        names = [name for name in names if polled.get(name, DENIED).ends]
    left, topics = max(1, min(fields["responsePartitionLimit"], MAX_DESCRIBED_PARTITIONS)), list[Fields]()
    no_others: Fields = {"eligibleLeaderReplicas": [], "lastKnownElr": []}
    for name in names:
        if not left:
            return {"topics": topics, "nextCursor": {"topicName": name, "partitionIndex": 0}}
        seen = polled.get(name, DENIED)
        numbers = [number for number in sorted(seen.ends) if name != begin or number >= first]
        rows = [row | no_others for row in _partitions(services, name, numbers[:left])]
        topics.append(_topic_row(request, name, seen, rows))
        if len(numbers) > left:
            return {"topics": topics, "nextCursor": {"topicName": name, "partitionIndex": numbers[left]}}
        left -= len(numbers)
    return {"topics": topics}


def requested_ids(topics: list[Fields]) -> list[str]:
    """Return the distinct topic ids in a request."""
    return list(dict.fromkeys(topic["topicId"] for topic in topics if topic["topicId"] != NO_UUID))


def may_see(request: ServedRequest, name: str) -> bool:
    """Return True if the client may know that a topic exists."""
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
    # Like a fenced broker, a server that does not respond is omitted.
    brokers = [{id_name: ids[node], "host": node.host, "port": node.port} for node in services.peers.responding]
    cluster_id = "sparklog" if services.log.root is None else services.log.root.id
    about = {"clusterId": cluster_id, "controllerId": ids[services.peers.own], "brokers": brokers}
    tells_rights = request.fields["includeClusterAuthorizedOperations"]
    return about | {"clusterAuthorizedOperations": cluster_operations(request)} if tells_rights else about


def _create_missing(services: Services, names: list[str]) -> None:
    """Create topics, where the root's defaults say so; where they do not say, as the server was told."""
    log, root = services.log, services.log.root
    if root is None or not names:
        return
    defaults = root.engine.defaults.read()
    answers = {name: defaults.auto_create(name) for name in names if log.serves(name)}
    wanted = [name for name, answer in answers.items() if (services.options.auto_create if answer is None else answer)]
    for name in set(wanted) - log.poll(wanted).keys() if wanted else ():
        # If a topic cannot be created (for example, its name differs only in case from another one), it stays unknown.
        with suppress(*FAILURES):
            check_collision(name, log)
            root.ensure_topic(name)
        log.invalidate_listing()


def describe_log_dirs(request: ServedRequest) -> Fields:
    log, asked, topics = request.services.log, request.fields["topics"], list[Fields]()
    wanted = dict.fromkeys(log.topics()) if asked is None else {row["topic"]: set(row["partitions"]) for row in asked}
    for name, seen in log.poll_each([name for name in wanted if request.may(READ, name)]).items():
        numbers = wanted[name]
        with suppress(SparklogError):
            rows = [
                {"partitionIndex": size.partition, "partitionSize": size.total_bytes, "offsetLag": 0}
                for size in (log.sizes(name) if seen.ends else ())
                if numbers is None or size.partition in numbers
            ]
            topics += [{"name": name, "partitions": rows}] if rows else []
    return {"results": [{"logDir": log.location, "topics": topics}]}


def list_offsets(request: ServedRequest) -> Fields:
    names = [topic["name"] for topic in request.fields["topics"]]
    polled = request.services.log.poll_each([name for name in names if request.may(READ, name)])

    def answer(topic: str, row: Fields) -> Fields:
        seen = polled.get(topic, DENIED)
        bounds = seen.ends.get(row["partitionIndex"])
        if bounds is None:
            return {"errorCode": seen.code}
        if row["timestamp"] < 0 and request.version < OFFSET_VERSIONS.get(row["timestamp"], 1 << 15):
            return {"errorCode": Code.UNSUPPORTED_VERSION}
        if row["timestamp"] == LATEST_TIERED:
            # Like a broker without tiered storage, return no such offset.
            return {}
        if row["timestamp"] in (EARLIEST, EARLIEST_LOCAL):
            return {"offset": bounds.log_start}
        end = bounds.end(request.isolation)
        return {"offset": end} if row["timestamp"] == LATEST else _by_time(request, topic, row, end)

    return {"topics": partition_rows(request.fields, answer)}


def _by_time(request: ServedRequest, topic: str, row: Fields, end: int) -> Fields:
    """Return the first record at or after a time, below offset `end`; nothing if there is none."""
    # As in Kafka, the greatest time is of all records, and no answer if its record cannot be seen.
    log, time_ms = request.services.log, None if row["timestamp"] == GREATEST_TIME else row["timestamp"]
    try:
        record = log.record_at(topic, row["partitionIndex"], time_ms, request.isolation)
    except SparklogError as error:
        return {"errorCode": code_of(error)}
    return {} if record is None or record.offset >= end else {"offset": record.offset, "timestamp": record.timestamp}
