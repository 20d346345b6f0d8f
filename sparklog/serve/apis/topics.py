"""CreateTopics 2 to 6, DeleteTopics 1 to 5, CreatePartitions 0 to 3, DeleteRecords 0 to 2, IncrementalAlterConfigs 0 to
1: changes of topics, with `--writable`.

A replication factor is taken as it comes, for there are no replicas; an assignment of replicas is refused. Left out:
topic ids, and configs of anything but topics and, as the defaults of a root, all brokers together.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from sparklog.errors import BadRequest, Conflict, NotFound, SparklogError
from sparklog.format.coordinators.message_schema import Fields
from sparklog.log.state.broker_names import BY_NAME
from sparklog.log.state.configs import CONFIGS, ConfigDef, TopicConfigs
from sparklog.log.topic.root import Root
from sparklog.serve.apis.configs import BROKER, TOPIC
from sparklog.serve.codes import Code, CodeError, code_of
from sparklog.serve.services import ServedRequest
from sparklog.serve.users import WRITE

SET, DELETE, APPEND, SUBTRACT = range(4)
Change = Callable[[Root], Fields | None]


async def _change(
    request: ServedRequest, name: str, change: Change, refused: Code = Code.TOPIC_AUTHORIZATION_FAILED
) -> Fields:
    """Make a change of a topic in a thread; return its fields, with a code and a message where it fails."""
    root = request.services.log.root
    try:
        if root is None or not request.services.options.writable:
            raise CodeError(refused, "the server is for reading: start it with --writable")
        if not request.may(WRITE, name):
            raise CodeError(refused, f"the user may not write to '{name}'")
        return await request.services.run(change, root) or {}
    except (CodeError, SparklogError) as error:
        return {"errorCode": code_of(error), "errorMessage": str(error)}


async def create_topics(request: ServedRequest) -> Fields:
    only_check = request.fields["validateOnly"]
    rows = [
        {"name": topic["name"], **await _change(request, topic["name"], partial(_create, topic, only_check))}
        for topic in request.fields["topics"]
    ]
    request.services.log.forget_listing()
    return {"topics": rows}


def _create(topic: Fields, only_check: bool, root: Root) -> Fields:
    name, partitions = topic["name"], topic["numPartitions"]
    if topic["assignments"]:
        raise CodeError(Code.INVALID_REPLICA_ASSIGNMENT, "there are no replicas to assign")
    configs = {item["name"]: item["value"] for item in topic["configs"] if item["value"] is not None}
    try:
        TopicConfigs.of(configs)
    except BadRequest as error:
        raise CodeError(Code.INVALID_CONFIG, str(error)) from None
    partitions = root.defaults().partitions(name) if partitions == -1 else partitions
    try:
        if partitions < 1:
            raise CodeError(Code.INVALID_PARTITIONS, f"expected partitions of 1 and more, found {partitions}")
        if root.engine.exists(name):
            raise CodeError(Code.TOPIC_ALREADY_EXISTS, f"topic '{name}' exists")
        if not only_check:
            root.create_topic(name, partitions=partitions, configs=configs)
    except Conflict as error:
        raise CodeError(Code.TOPIC_ALREADY_EXISTS, str(error)) from None
    except BadRequest as error:
        raise CodeError(Code.INVALID_TOPIC, str(error)) from None
    return {"numPartitions": partitions, "replicationFactor": 1, "configs": []}


async def delete_topics(request: ServedRequest) -> Fields:
    rows = [
        {"name": name, **await _change(request, name, partial(_delete_topic, name))}
        for name in request.fields["topicNames"]
    ]
    request.services.log.forget_listing()
    return {"responses": rows}


def _delete_topic(name: str, root: Root) -> None:
    root.delete_topic(name)


async def create_partitions(request: ServedRequest) -> Fields:
    only_check = request.fields["validateOnly"]
    rows = [
        {"name": topic["name"], **await _change(request, topic["name"], partial(_add_partitions, topic, only_check))}
        for topic in request.fields["topics"]
    ]
    return {"results": rows}


def _add_partitions(topic: Fields, only_check: bool, root: Root) -> None:
    if topic["assignments"]:
        raise CodeError(Code.INVALID_REPLICA_ASSIGNMENT, "there are no replicas to assign")
    opened = root.topic(topic["name"])
    try:
        (opened.plan_alter if only_check else opened.alter)(partitions=topic["count"])
    except BadRequest as error:
        raise CodeError(Code.INVALID_PARTITIONS, str(error)) from None


async def delete_records(request: ServedRequest) -> Fields:
    topics = []
    for topic in request.fields["topics"]:
        before = {partition["partitionIndex"]: partition["offset"] for partition in topic["partitions"]}
        row = await _change(request, topic["name"], partial(_delete_records, topic["name"], before))
        code, starts = row.get("errorCode", Code.NONE), row.get("starts", {})
        rows = [
            {"partitionIndex": number, "lowWatermark": starts.get(number, -1), "errorCode": code} for number in before
        ]
        topics.append({"name": topic["name"], "partitions": rows})
    return {"topics": topics}


def _delete_records(name: str, before: dict[int, int], root: Root) -> Fields:
    topic = root.topic(name)
    try:
        return {"starts": dict(topic.delete_records(before))}
    except BadRequest as error:
        raise CodeError(Code.POLICY_VIOLATION, str(error)) from None
    except NotFound as error:
        exists = all(number in topic.bounds() for number in before)
        code = Code.OFFSET_OUT_OF_RANGE if exists else Code.UNKNOWN_TOPIC_OR_PARTITION
        raise CodeError(code, str(error)) from None


async def incremental_alter_configs(request: ServedRequest) -> Fields:
    only_check = request.fields["validateOnly"]
    rows = []
    for resource in request.fields["resources"]:
        refused = Code.TOPIC_AUTHORIZATION_FAILED
        if resource["resourceType"] != TOPIC:
            refused = Code.CLUSTER_AUTHORIZATION_FAILED
        row = await _change(request, resource["resourceName"], partial(_alter, resource, only_check), refused)
        place = {name: resource[name] for name in ("resourceType", "resourceName")}
        rows.append({"errorCode": Code.NONE, **place, **row})
    return {"responses": rows}


def _alter(resource: Fields, only_check: bool, root: Root) -> None:
    kind, name = resource["resourceType"], resource["resourceName"]
    if kind != TOPIC and (kind != BROKER or name):
        raise CodeError(Code.INVALID_REQUEST, "configs are of topics, or of all brokers: a root's defaults")
    try:
        if kind == BROKER:
            before = root.defaults()
            values = {row.name: row.value for row in before.rows() if row.pattern is None}
            changes = _changes(resource["configs"], values, {name: item.definition for name, item in BY_NAME.items()})
            before.changed(changes) if only_check else root.alter_defaults(changes)
            return
        topic = root.topic(name)
        configs = topic.log.read_configs()
        changes = _changes(resource["configs"], {name: configs.text(name) for name in CONFIGS}, CONFIGS)
        (topic.plan_alter if only_check else topic.alter)(configs=changes)
    except BadRequest as error:
        raise CodeError(Code.INVALID_CONFIG, str(error)) from None


def _changes(
    items: list[Fields], values: Mapping[str, str], definitions: Mapping[str, ConfigDef]
) -> dict[str, object | None]:
    """Return what operations on configs with these `values` set, by name, and take back (None)."""
    changes: dict[str, object | None] = {}
    for item in items:
        name, value, operation = item["name"], item["value"], item["configOperation"]
        if operation in (APPEND, SUBTRACT):
            if name not in definitions or definitions[name].kind != "list":
                raise CodeError(Code.INVALID_CONFIG, f"{name} is not a list")
            before = [word for word in values[name].split(",") if word]
            words = value.split(",")
            after = [word for word in before if word not in words] + (words if operation == APPEND else [])
            value = ",".join(after)
        changes[name] = None if operation == DELETE else value
    return changes
