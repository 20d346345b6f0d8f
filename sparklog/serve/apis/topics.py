"""CreateTopics 2 to 6, DeleteTopics 1 to 5, CreatePartitions 0 to 3, DeleteRecords 0 to 2, IncrementalAlterConfigs 0 to
1: changes of topics, with `--writable`.

A replication factor is taken as it comes, for there are no replicas; an assignment of replicas is refused. Left out:
topic ids, and configs of anything but topics and, as the defaults of a root, all brokers together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial

from sparklog.errors import BadRequest, Conflict, NotFound, SparklogError
from sparklog.format.coordinators.message_schema import Fields
from sparklog.log.state.broker_names import BY_NAME
from sparklog.log.state.configs import CONFIGS, ConfigDef, TopicConfigs
from sparklog.log.topic.root import Root
from sparklog.serve.apis.configs import BROKER, TOPIC
from sparklog.serve.codes import FAILURES, Code, CodeError, failure
from sparklog.serve.services import ServedRequest
from sparklog.serve.users import WRITE

SET, DELETE, APPEND, SUBTRACT = range(4)


def _change(
    request: ServedRequest,
    name: str,
    change: Callable[[Root], Fields | None],
    refused: Code = Code.TOPIC_AUTHORIZATION_FAILED,
) -> Fields:
    """Make a change of a topic; return its fields, with a code and a message where it fails."""
    root = request.services.log.root
    try:
        if root is None or not request.services.options.writable:
            raise CodeError(refused, "the server is for reading: start it with --writable")
        if not request.may(WRITE, name):
            raise CodeError(refused, f"the user may not write to '{name}'")
        return change(root) or {}
    except FAILURES as error:
        return failure(error)


@contextmanager
def _answered(kind: type[SparklogError], code: Code) -> Iterator[None]:
    """Answer errors of a kind with a code of this request's own."""
    try:
        yield
    except kind as error:
        raise CodeError(code, str(error)) from None


def create_topics(request: ServedRequest) -> Fields:
    topics, only_check = request.fields["topics"], request.fields["validateOnly"]
    rows = [{"name": row["name"], **_change(request, row["name"], partial(_create, row, only_check))} for row in topics]
    request.services.log.forget_listing()
    return {"topics": rows}


def _create(topic: Fields, only_check: bool, root: Root) -> Fields:
    name, partitions = topic["name"], topic["numPartitions"]
    _refuse_assignments(topic)
    configs = {item["name"]: item["value"] for item in topic["configs"] if item["value"] is not None}
    with _answered(BadRequest, Code.INVALID_CONFIG):
        TopicConfigs.of(configs)
    partitions = root.defaults().partitions(name) if partitions == -1 else partitions
    if partitions < 1:
        raise CodeError(Code.INVALID_PARTITIONS, f"expected partitions of 1 and more, found {partitions}")
    with _answered(Conflict, Code.TOPIC_ALREADY_EXISTS), _answered(BadRequest, Code.INVALID_TOPIC):
        if root.engine.exists(name):
            raise CodeError(Code.TOPIC_ALREADY_EXISTS, f"topic '{name}' exists")
        if not only_check:
            root.create_topic(name, partitions=partitions, configs=configs)
    return {"numPartitions": partitions, "replicationFactor": 1, "configs": []}


def _refuse_assignments(topic: Fields) -> None:
    if topic["assignments"]:
        raise CodeError(Code.INVALID_REPLICA_ASSIGNMENT, "there are no replicas to assign")


def delete_topics(request: ServedRequest) -> Fields:
    names = request.fields["topicNames"]
    rows = [{"name": name, **_change(request, name, partial(_delete_topic, name))} for name in names]
    request.services.log.forget_listing()
    return {"responses": rows}


def _delete_topic(name: str, root: Root) -> None:
    root.delete_topic(name)


def create_partitions(request: ServedRequest) -> Fields:
    topics, add = request.fields["topics"], partial(_add_partitions, request.fields["validateOnly"])
    return {"results": [{"name": row["name"], **_change(request, row["name"], partial(add, row))} for row in topics]}


def _add_partitions(only_check: bool, topic: Fields, root: Root) -> None:
    _refuse_assignments(topic)
    opened = root.topic(topic["name"])
    with _answered(BadRequest, Code.INVALID_PARTITIONS):
        (opened.plan_alter if only_check else opened.alter)(partitions=topic["count"])


def delete_records(request: ServedRequest) -> Fields:
    topics = []
    for topic in request.fields["topics"]:
        before = {row["partitionIndex"]: row["offset"] for row in topic["partitions"]}
        done = _change(request, topic["name"], partial(_delete_records, topic["name"], before))
        code, starts = done.get("errorCode", Code.NONE), done.get("starts", {})
        rows = [
            {"partitionIndex": number, "lowWatermark": starts.get(number, -1), "errorCode": code} for number in before
        ]
        topics.append({"name": topic["name"], "partitions": rows})
    return {"topics": topics}


def _delete_records(name: str, before: dict[int, int], root: Root) -> Fields:
    topic = root.topic(name)
    try:
        with _answered(BadRequest, Code.POLICY_VIOLATION):
            return {"starts": dict(topic.delete_records(before))}
    except NotFound as error:
        exists = all(number in topic.bounds() for number in before)
        code = Code.OFFSET_OUT_OF_RANGE if exists else Code.UNKNOWN_TOPIC_OR_PARTITION
        raise CodeError(code, str(error)) from None


def incremental_alter_configs(request: ServedRequest) -> Fields:
    only_check, rows = request.fields["validateOnly"], []
    for resource in request.fields["resources"]:
        kind, name = resource["resourceType"], resource["resourceName"]
        refused = Code.TOPIC_AUTHORIZATION_FAILED if kind == TOPIC else Code.CLUSTER_AUTHORIZATION_FAILED
        done = _change(request, name, partial(_alter, resource, only_check), refused)
        rows.append({"errorCode": Code.NONE, "resourceType": kind, "resourceName": name, **done})
    return {"responses": rows}


def _alter(resource: Fields, only_check: bool, root: Root) -> None:
    kind, name = resource["resourceType"], resource["resourceName"]
    if kind != TOPIC and (kind != BROKER or name):
        raise CodeError(Code.INVALID_REQUEST, "configs are of topics, or of all brokers: a root's defaults")
    with _answered(BadRequest, Code.INVALID_CONFIG):
        if kind == BROKER:
            before = root.defaults()
            values = {row.name: row.value for row in before.rows() if row.pattern is None}
            changes = _changes(resource["configs"], values, {name: item.definition for name, item in BY_NAME.items()})
            before.changed(changes) if only_check else root.alter_defaults(changes)
        else:
            topic = root.topic(name)
            configs = topic.log.read_configs()
            changes = _changes(resource["configs"], {name: configs.text(name) for name in CONFIGS}, CONFIGS)
            (topic.plan_alter if only_check else topic.alter)(configs=changes)


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
            words = value.split(",")
            kept = [word for word in values[name].split(",") if word and word not in words]
            value = ",".join(kept + (words if operation == APPEND else []))
        changes[name] = None if operation == DELETE else value
    return changes
