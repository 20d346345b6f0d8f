"""Metadata 0 to 9, DescribeCluster 0 to 1, DescribeLogDirs 1 to 4: topics, partitions, servers, stored bytes.

Every server leads every partition: the one that is asked says so of itself. Left out: topic ids (version 10), leader
epochs (-1: a client need not check them) and operations that a client is allowed. A question creates a topic where the
root's default `auto.create.topics.enable` is true, or the server is in memory, for tests.

There is one log directory: the location that is served. Left out: the size of the disk, and lags of replicas.
"""

from __future__ import annotations

from typing import Any

from sparklog.errors import SparklogError
from sparklog.format.coordinators.message_schema import Fields
from sparklog.log.journal.names import is_topic_name
from sparklog.serve.codes import Code
from sparklog.serve.served_log import SeenTopic, ServedLog
from sparklog.serve.services import ServedRequest, Services
from sparklog.serve.users import READ, WRITE

INTERNAL = ("__consumer_offsets", "__transaction_state", "__share_group_state")


async def metadata(request: ServedRequest) -> Fields:
    asked = request.fields["topics"]
    services = request.services
    # In version 0 an empty list asks for all topics, later a null does.
    every = asked is None or (request.version == 0 and not asked)
    names = None if every else list(dict.fromkeys(topic["name"] for topic in asked))
    denied = [] if names is None else [name for name in names if not _may_see(request, name)]
    names = None if names is None else [name for name in names if name not in denied]
    if services.options.writable and names and request.fields["allowAutoTopicCreation"]:
        await services.run(_create_missing, services, [name for name in names if request.may(WRITE, name)])
    topics = await services.run(_topics, services.log, names, services.me.node_id)
    topics = [topic for topic in topics if _may_see(request, topic["name"])]
    topics += [{"errorCode": Code.TOPIC_AUTHORIZATION_FAILED, "name": name} for name in denied]
    return {
        "brokers": _brokers(services),
        "clusterId": services.cluster_id,
        "controllerId": services.me.node_id,
        "topics": topics,
    }


def _may_see(request: ServedRequest, topic: str) -> bool:
    return request.may(READ, topic) or request.may(WRITE, topic)


async def describe_cluster(request: ServedRequest) -> Fields:
    services = request.services
    brokers = [{"brokerId": node["nodeId"], **node} for node in _brokers(services)]
    return {"clusterId": services.cluster_id, "controllerId": services.me.node_id, "brokers": brokers}


def _brokers(services: Services) -> list[Fields]:
    return [{"nodeId": node.node_id, "host": node.host, "port": node.port} for node in services.nodes]


def _create_missing(services: Services, names: list[str]) -> None:
    """Create topics, where the root's defaults say so; where they do not say, as the server was told."""
    log = services.log
    if log.root is None:
        return
    defaults = log.root.engine.defaults.read()
    answers = {name: defaults.auto_create(name) for name in names if log.serves(name)}
    wanted = [name for name, answer in answers.items() if (services.options.auto_create if answer is None else answer)]
    if wanted:
        looked = log.look(wanted)
        for name in wanted:
            if name not in looked:
                log.root.ensure_topic(name)
                log.forget_listing()


def _topics(log: ServedLog, names: list[str] | None, node: int) -> list[Fields]:
    names = log.topics() if names is None else names
    looked, failures = log.look_at_each(names)
    return [
        {"errorCode": failures[name], "name": name} if name in failures else _topic(name, looked.get(name), node)
        for name in names
    ]


def _topic(name: str, seen: SeenTopic | None, node: int) -> Fields:
    if seen is None:
        code = Code.UNKNOWN_TOPIC_OR_PARTITION if is_topic_name(name) else Code.INVALID_TOPIC
        return {"errorCode": code, "name": name}
    partitions: list[dict[str, Any]] = [
        {
            "partitionIndex": number,
            "leaderId": node,
            "leaderEpoch": -1,
            "replicaNodes": [node],
            "isrNodes": [node],
        }
        for number in sorted(seen.ends)
    ]
    return {"name": name, "isInternal": name in INTERNAL, "partitions": partitions}


async def describe_log_dirs(request: ServedRequest) -> Fields:
    asked = request.fields["topics"]
    partitions = None if asked is None else {topic["topic"]: set(topic["partitions"]) for topic in asked}
    log = request.services.log
    topics = await request.services.run(_sizes, log, partitions)
    topics = [topic for topic in topics if request.may(READ, topic["name"])]
    return {"results": [{"errorCode": Code.NONE, "logDir": log.location, "topics": topics}]}


def _sizes(log: ServedLog, asked: dict[str, set[int]] | None) -> list[Fields]:
    topics = []
    for name in log.topics() if asked is None else asked:
        try:
            sizes = log.sizes(name) if name in log.look([name]) else []
        except SparklogError:
            continue
        rows = [
            {"partitionIndex": size.partition, "partitionSize": size.total_bytes, "offsetLag": 0}
            for size in sizes
            if asked is None or size.partition in asked[name]
        ]
        if rows:
            topics.append({"name": name, "partitions": rows})
    return topics
