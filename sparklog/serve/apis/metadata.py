"""Metadata 0 to 9, DescribeCluster 0 to 1, DescribeLogDirs 1 to 4: topics, partitions, servers, stored bytes.

Every server leads every partition: the one that is asked says so of itself. Left out: topic ids (version 10), leader
epochs (-1: a client need not check them) and operations that a client is allowed. A question creates a topic where the
root's default `auto.create.topics.enable` is true, or the server is in memory, for tests.

There is one log directory: the location that is served. Left out: the size of the disk, and lags of replicas.
"""

from __future__ import annotations

from contextlib import suppress

from sparklog.errors import SparklogError
from sparklog.format.coordinators.message_schema import Fields
from sparklog.log.journal.names import is_topic_name
from sparklog.serve.codes import Code
from sparklog.serve.served_log import SeenTopic
from sparklog.serve.services import ServedRequest, Services
from sparklog.serve.users import READ, WRITE

INTERNAL = ("__consumer_offsets", "__transaction_state", "__share_group_state")


def metadata(request: ServedRequest) -> Fields:
    asked, services = request.fields["topics"], request.services
    # In version 0 an empty list asks for all topics, later a null does.
    every = asked is None or (request.version == 0 and not asked)
    names = services.log.topics() if every else list(dict.fromkeys(topic["name"] for topic in asked))
    visible = [name for name in names if request.may(READ, name) or request.may(WRITE, name)]
    if services.options.writable and not every and request.fields["allowAutoTopicCreation"]:
        _create_missing(services, [name for name in visible if request.may(WRITE, name)])
    looked, failures = services.log.look_at_each(visible)
    if not every:
        failures |= dict.fromkeys(set(names) - set(visible), Code.TOPIC_AUTHORIZATION_FAILED)
    topics = [
        _topic(name, looked[name], services.me.node_id)
        if name in looked
        else {"name": name, "errorCode": failures.get(name) or _missing(name)}
        for name in (visible if every else names)
    ]
    return {**_cluster(services, "nodeId"), "topics": topics}


def _missing(name: str) -> Code:
    return Code.UNKNOWN_TOPIC_OR_PARTITION if is_topic_name(name) else Code.INVALID_TOPIC


def describe_cluster(request: ServedRequest) -> Fields:
    return _cluster(request.services, "brokerId")


def _cluster(services: Services, id_name: str) -> Fields:
    brokers = [{id_name: node.node_id, "host": node.host, "port": node.port} for node in services.nodes]
    return {"clusterId": services.cluster_id, "controllerId": services.me.node_id, "brokers": brokers}


def _create_missing(services: Services, names: list[str]) -> None:
    """Create topics, where the root's defaults say so; where they do not say, as the server was told."""
    log, root = services.log, services.log.root
    if root is None or not names:
        return
    defaults = root.engine.defaults.read()
    answers = {name: defaults.auto_create(name) for name in names if log.serves(name)}
    wanted = [name for name, answer in answers.items() if (services.options.auto_create if answer is None else answer)]
    looked = log.look(wanted) if wanted else {}
    for name in wanted:
        if name not in looked:
            root.ensure_topic(name)
            log.forget_listing()


def _topic(name: str, seen: SeenTopic, node: int) -> Fields:
    one: Fields = {"leaderId": node, "leaderEpoch": -1, "replicaNodes": [node], "isrNodes": [node]}
    partitions = [{"partitionIndex": number, **one} for number in sorted(seen.ends)]
    return {"name": name, "isInternal": name in INTERNAL, "partitions": partitions}


def describe_log_dirs(request: ServedRequest) -> Fields:
    log, asked = request.services.log, request.fields["topics"]
    numbers = dict.fromkeys(log.topics()) if asked is None else {row["topic"]: set(row["partitions"]) for row in asked}
    topics = []
    for name, wanted in numbers.items():
        with suppress(SparklogError):
            sizes = log.sizes(name) if request.may(READ, name) and name in log.look([name]) else []
            rows = [
                {"partitionIndex": size.partition, "partitionSize": size.total_bytes, "offsetLag": 0}
                for size in sizes
                if wanted is None or size.partition in wanted
            ]
            topics += [{"name": name, "partitions": rows}] if rows else []
    return {"results": [{"errorCode": Code.NONE, "logDir": log.location, "topics": topics}]}
