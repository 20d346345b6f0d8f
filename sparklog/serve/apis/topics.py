"""Handle changes of topics and configs, which require `--writable`, and DescribeConfigs.

The changes are CreateTopics, DeleteTopics (by name or by id), CreatePartitions, DeleteRecords, AlterConfigs and
IncrementalAlterConfigs. DescribeConfigs returns configs with their sources. The configs of a server, or of all brokers
together, are the root defaults. The configs of a Kafka directory are unknown, because Kafka does not store configs in
its log directories. Replication factors and replica assignments are validated against the servers of this root, as a
broker does, but have no effect.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import cache, partial

from sparklog.errors import BadRequest, Conflict, NotFound
from sparklog.kafka.messages.message_schema import NO_UUID, Fields
from sparklog.log.journal.names import check_topic_name
from sparklog.log.state.commit_intents import DeleteIntent
from sparklog.log.state.configs import CONFIGS, DEFAULT_CONFIG, ROOT_DEFAULT, TOPIC_CONFIG, TopicConfigs
from sparklog.log.state.description import describe_configs as described
from sparklog.log.state.root_defaults import (
    ROOT_SETTINGS,
    ConfigSynonym,
    DefaultRow,
    RootDefaults,
)
from sparklog.log.topic.root import Root
from sparklog.serve.apis.metadata import may_see, requested_ids
from sparklog.serve.codes import FAILURES, Code, CodeError, errors_as, failure, partition_rows
from sparklog.serve.new_topics import check_assignments, check_collision, checked_partitions
from sparklog.serve.options import ServeOptions
from sparklog.serve.services import ServedRequest
from sparklog.serve.users import GROUP, READ, WRITE

TOPIC, BROKER, BROKER_LOGGER, CLIENT_METRICS, GROUP_CONFIGS = 2, 4, 8, 16, 32
DELETE_BY_ID_VERSION, CONFIGS_VERSION = 6, 5
"""The first version of DeleteTopics with topic ids, and the first version of CreateTopics that returns the topic's
configs.
"""
SET, DELETE, APPEND, SUBTRACT = OPERATIONS = range(4)
SERVER_OPTION = "server option"
SOURCES = {TOPIC_CONFIG: 1, ROOT_DEFAULT: 3, SERVER_OPTION: 4, DEFAULT_CONFIG: 5}
TYPES = {"boolean": 1, "string": 2, "int": 3, "long": 5, "double": 6, "list": 7}


def _change(
    request: ServedRequest,
    name: str,
    change: Callable[[Root], Fields | None],
    denied: Code = Code.TOPIC_AUTHORIZATION_FAILED,
) -> Fields:
    """Change a topic and return the response fields. If the change fails, return an error code and message."""
    root = request.services.log.root
    try:
        if root is None or not request.services.options.writable:
            raise CodeError(denied, "the server is read-only; restart it with --writable")
        if not request.may(WRITE, name):
            raise CodeError(denied, f"the user may not write to '{name}'")
        return change(root) or {}
    except FAILURES as error:
        return failure(error)


def _changes(request: ServedRequest, change: Callable[[Fields, bool, Root], Fields | None]) -> list[Fields]:
    """Change each topic in a request.

    `change` is called with the topic's fields, a flag that is True if the change is only validated, and the root.
    """
    topics, only_check = request.fields["topics"], request.fields["validateOnly"]
    return [{"name": row["name"], **_change(request, row["name"], partial(change, row, only_check))} for row in topics]


def create_topics(request: ServedRequest) -> Fields:
    """Create topics. A topic that the request lists twice is not created and has one row in the response."""
    names = Counter(topic["name"] for topic in request.fields["topics"])
    only_check, rows = request.fields["validateOnly"], list[Fields]()
    for topic in request.fields["topics"]:
        name = topic["name"]
        if names[name] == 1:
            rows.append({"name": name, **_change(request, name, partial(_create, request, topic, only_check))})
    twice = failure(CodeError(Code.INVALID_REQUEST, "the request must list each topic only once"))
    rows += [{"name": name, **twice} for name, count in names.items() if count > 1]
    request.services.log.invalidate_listing()
    return {"topics": rows}


def _create(request: ServedRequest, topic: Fields, only_check: bool, root: Root) -> Fields:
    name, configs = topic["name"], {item["name"]: item["value"] for item in topic["configs"]}
    with errors_as(BadRequest, Code.INVALID_TOPIC):
        check_topic_name(name)
    check_collision(name, request.services.log)
    with errors_as(Conflict, Code.TOPIC_ALREADY_EXISTS), errors_as(BadRequest, Code.INVALID_CONFIG):
        if root.engine.exists(name):
            raise CodeError(Code.TOPIC_ALREADY_EXISTS, f"topic '{name}' already exists")
        for config, value in configs.items():
            if value is None:
                raise CodeError(Code.INVALID_CONFIG, f"expected a value for {config}, found null; omit the config")
        explicit = TopicConfigs.of(configs)
        partitions = checked_partitions(topic, root.defaults().partitions(name), request.services.node_ids.values())
        topic_id = NO_UUID
        if not only_check:
            topic_id = root.create_topic(name, partitions=partitions, configs=configs).log.state(refresh=False).topic_id
    rows = []
    if request.version >= CONFIGS_VERSION:
        defaults = root.defaults()
        effective = TopicConfigs(explicit.explicit, defaults.of_topic(name))
        rows = [_created(name, effective, defaults, config) for config in CONFIGS]
    return {"topicId": topic_id, "numPartitions": partitions, "replicationFactor": 1, "configs": rows}


def _created(topic: str, configs: TopicConfigs, defaults: RootDefaults, name: str) -> Fields:
    """Return a config of a new topic for the CreateTopics response."""
    source = defaults.synonyms(topic, configs, name)[0].source
    return {"name": name, "value": configs.text(name), "configSource": SOURCES[source]}


def delete_topics(request: ServedRequest) -> Fields:
    if request.version < DELETE_BY_ID_VERSION:
        topics = [{"name": name, "topicId": NO_UUID} for name in request.fields["topicNames"]]
    else:
        topics = request.fields["topics"]
    names = request.services.log.names_of(requested_ids(topics))
    rows = [_deleted(request, topic["name"], topic["topicId"], names) for topic in topics]
    request.services.log.invalidate_listing()
    return {"responses": rows}


def _deleted(request: ServedRequest, name: str | None, topic_id: str, names: Mapping[str, str]) -> Fields:
    """Delete a topic by its name or its id."""
    row: Fields = {"name": name, "topicId": topic_id}
    if topic_id == NO_UUID:
        return {**row, **_change(request, name or "", partial(Root.delete_topic, name=name or ""))}
    if name is not None:
        return {**row, **failure(CodeError(Code.INVALID_REQUEST, "expected a name or an id, found both"))}
    name = names.get(topic_id)
    if name is None:
        return {**row, **failure(CodeError(Code.UNKNOWN_TOPIC_ID))}
    if not may_see(request, name):
        return {**row, **failure(CodeError(Code.TOPIC_AUTHORIZATION_FAILED))}
    return {**row, "name": name, **_change(request, name, partial(_delete_by_id, name, topic_id))}


def _delete_by_id(name: str, topic_id: str, root: Root) -> None:
    topic = root.topic(name)
    state = topic.log.state()
    if state.topic_id != topic_id:
        raise CodeError(Code.UNKNOWN_TOPIC_ID)
    topic.log.commit(DeleteIntent(topic_id, None), state)


def create_partitions(request: ServedRequest) -> Fields:
    node_ids = request.services.node_ids.values()
    return {"results": _changes(request, partial(_add_partitions, node_ids))}


def _add_partitions(node_ids: Collection[int], topic: Fields, only_check: bool, root: Root) -> None:
    opened = root.topic(topic["name"])
    if topic["assignments"] is not None:
        added = topic["count"] - opened.log.state().partitions
        check_assignments([item["brokerIds"] for item in topic["assignments"]], node_ids, added)
    with errors_as(BadRequest, Code.INVALID_PARTITIONS):
        (opened.plan_alter if only_check else opened.alter)(partitions=topic["count"])


def delete_records(request: ServedRequest) -> Fields:
    results = {}
    for topic in request.fields["topics"]:
        before = {row["partitionIndex"]: row["offset"] for row in topic["partitions"]}
        results[topic["name"]] = _change(request, topic["name"], partial(_delete_records, topic["name"], before))

    def respond(topic: str, row: Fields) -> Fields:
        starts = results[topic].get("starts")
        if starts is None:
            return {"lowWatermark": -1, "errorCode": results[topic]["errorCode"]}
        return {"lowWatermark": starts.get(row["partitionIndex"], -1)}

    return {"topics": partition_rows(request.fields, respond)}


def _delete_records(name: str, before: dict[int, int], root: Root) -> Fields:
    topic = root.topic(name)
    try:
        with errors_as(BadRequest, Code.POLICY_VIOLATION):
            return {"starts": dict(topic.delete_records(before))}
    except NotFound as error:
        exists = all(number in topic.bounds() for number in before)
        code = Code.OFFSET_OUT_OF_RANGE if exists else Code.UNKNOWN_TOPIC_OR_PARTITION
        raise CodeError(code, str(error)) from None


# -- configs


def alter_configs(request: ServedRequest) -> Fields:
    return _alter_each(request, replaces=True)


def incremental_alter_configs(request: ServedRequest) -> Fields:
    return _alter_each(request, replaces=False)


def _alter_each(request: ServedRequest, *, replaces: bool) -> Fields:
    """Alter the configs of each resource. If `replaces` is true, the requested configs replace all explicit configs."""
    only_check, rows = request.fields["validateOnly"], []
    for resource in request.fields["resources"]:
        is_topic = resource["resourceType"] == TOPIC
        denied = Code.TOPIC_AUTHORIZATION_FAILED if is_topic else Code.CLUSTER_AUTHORIZATION_FAILED
        change = partial(_alter, resource, only_check, replaces)
        result = _change(request, resource["resourceName"], change, denied)
        rows.append({**_resource(resource), **result})
    return {"responses": rows}


def _resource(fields: Fields) -> Fields:
    return {name: fields[name] for name in ("resourceType", "resourceName")}


def _alter(resource: Fields, only_check: bool, replaces: bool, root: Root) -> None:
    kind, name, items = resource["resourceType"], resource["resourceName"], resource["configs"]
    if kind == BROKER and name and not replaces and all(item["configOperation"] == DELETE for item in items):
        # A single server does not have configs. Ignore deletions, because kafka-reassign-partitions deletes its
        # throttle configs.
        return
    if kind != TOPIC and (kind != BROKER or name):
        raise CodeError(Code.INVALID_REQUEST, "expected a topic, or all brokers (to alter the root defaults)")
    with errors_as(BadRequest, Code.INVALID_CONFIG):
        if kind == BROKER:
            before = root.defaults()
            rows = [row for row in before.rows() if row.pattern is None]
            lists = {row.name: row.value for row in rows if ROOT_SETTINGS[row.name].type.name == "list"}
            changes = _replaced(items, before.configs) if replaces else _changed(items, lists)
            before.changed(changes) if only_check else root.alter_defaults(changes)
        else:
            topic = root.topic(name)
            configs = topic.log.read_configs()
            lists = {name: configs.text(name) for name in CONFIGS if CONFIGS[name].type.name == "list"}
            changes = _replaced(items, topic.log.state().configs.explicit) if replaces else _changed(items, lists)
            (topic.plan_alter if only_check else topic.alter)(configs=changes)


def _replaced(items: list[Fields], explicit: Iterable[str]) -> dict[str, object | None]:
    """Return the changes of an AlterConfigs request by name. None removes a config that is not in the request."""
    for item in items:
        if item["value"] is None:
            raise CodeError(Code.INVALID_REQUEST, f"expected a value for {item['name']}, found null")
    return {**dict.fromkeys(explicit), **{item["name"]: item["value"] for item in items}}


def _changed(items: list[Fields], lists: Mapping[str, str]) -> dict[str, object | None]:
    """Return the changes of an IncrementalAlterConfigs request by name.

    None removes a config. `lists` are the values of list configs.
    """
    changes: dict[str, object | None] = {}
    for item in items:
        name, value, operation = item["name"], item["value"], item["configOperation"]
        if operation not in OPERATIONS or (value is None and operation != DELETE):
            raise CodeError(
                Code.INVALID_REQUEST,
                f"invalid operation {operation} on {name}: expected 0 to 3, and a value for all operations except 1",
            )
        if operation in (APPEND, SUBTRACT):
            if name not in lists:
                raise CodeError(Code.INVALID_CONFIG, f"{name} is not a list")
            elements = value.split(",")
            others = [element for element in lists[name].split(",") if element and element not in elements]
            value = ",".join(others + (elements if operation == APPEND else []))
        changes[name] = None if operation == DELETE else value
    return changes


def describe_configs(request: ServedRequest) -> Fields:
    # Read the defaults once for all resources, because clients describe all topics in one request.
    results, defaults = [], cache(Root.defaults)
    for resource in request.fields["resources"]:
        try:
            rows = _described(request, resource["resourceType"], resource["resourceName"], defaults)
            keys = resource["configurationKeys"]
            rows = [row for row in rows if keys is None or row["name"] in keys]
            if not request.fields["includeSynonyms"]:
                rows = [{**row, "synonyms": []} for row in rows]
            result: Fields = {"configs": rows}
        except FAILURES as error:
            result = failure(error)
        results.append({**_resource(resource), **result})
    return {"results": results}


def _described(request: ServedRequest, kind: int, name: str, defaults: Callable[[Root], RootDefaults]) -> list[Fields]:
    log = request.services.log
    root = log.root
    if kind in (BROKER_LOGGER, CLIENT_METRICS):
        # Loggers and client metrics have no configs in sparklog.
        return []
    if kind == GROUP_CONFIGS and request.may(GROUP, name):
        return _group_rows(request.services.options)
    if kind == GROUP_CONFIGS:
        raise CodeError(Code.GROUP_AUTHORIZATION_FAILED, "the user may not read this group")
    if kind not in (TOPIC, BROKER):
        raise CodeError(Code.INVALID_REQUEST, f"resources of type {kind} are not supported")
    if kind == TOPIC and not request.may(READ, name):
        raise CodeError(Code.TOPIC_AUTHORIZATION_FAILED, "the user may not read this topic")
    if kind == TOPIC and root is None and name not in log.poll([name]):
        raise NotFound(f"topic '{name}' does not exist")
    if root is None:
        return []
    if kind == TOPIC:
        configs = described(name, root.topic(name).log.state(refresh=False), defaults(root))
        return [_row(item.name, item.value, CONFIGS[item.name].type.name, item.doc, item.synonyms) for item in configs]
    if not request.may(READ, ""):
        return []
    rows = [row for row in defaults(root).rows() if row.pattern is None]
    if not name:
        # A resource without a name represents all brokers. Return only the explicit defaults for this resource.
        return [_default_row(row) for row in rows if row.source == ROOT_DEFAULT]
    return [*map(_default_row, rows), *_server_configs(request)]


def _server_configs(request: ServedRequest) -> list[Fields]:
    """Return the broker configs whose values are options of this server."""
    services = request.services
    values = {
        "advertised.listeners": f"{services.options.listener}://{services.peers.own}",
        "delete.topic.enable": str(services.options.writable).lower(),
        "log.dirs": services.log.location,
        "node.id": str(services.node_ids[services.peers.own]),
    }
    rows = []
    for name, value in values.items():
        row = _row(name, value, "string", "an option of sparklog serve", [ConfigSynonym(name, value, SERVER_OPTION)])
        rows.append({**row, "readOnly": True})
    return rows


def _group_rows(options: ServeOptions) -> list[Fields]:
    """Return the configs of all groups, which are options of the server."""
    values = {
        "consumer.heartbeat.interval.ms": (options.consumer_heartbeat_ms, "The heartbeat interval of members."),
        "consumer.session.timeout.ms": (options.consumer_session_ms, "The session timeout of members."),
    }
    return [
        _row(name, str(value), "int", doc, [ConfigSynonym(f"group.{name}", str(value), DEFAULT_CONFIG)])
        for name, (value, doc) in values.items()
    ]


def _default_row(row: DefaultRow) -> Fields:
    setting = ROOT_SETTINGS[row.name]
    values = [ConfigSynonym(row.name, row.value, row.source)] if row.source == ROOT_DEFAULT else []
    values.append(ConfigSynonym(row.name, row.default, DEFAULT_CONFIG))
    return _row(row.name, row.value, setting.type.name, setting.doc, values)


def _row(name: str, value: str, kind: str, doc: str, synonyms: Sequence[ConfigSynonym]) -> Fields:
    rows = [{"name": item.name, "value": item.value, "source": SOURCES[item.source]} for item in synonyms]
    config = {"name": name, "value": value, "configType": TYPES.get(kind, 2), "documentation": doc}
    return {**config, "configSource": rows[0]["source"], "synonyms": rows}
