"""DescribeConfigs 1 to 4: the configs of topics, with their sources; of a server, the defaults of the root.

Of a Kafka directory no configs are known: Kafka keeps them elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache

from sparklog.errors import NotFound
from sparklog.format.coordinators.message_schema import Fields
from sparklog.log.state.broker_names import BY_NAME
from sparklog.log.state.configs import CONFIGS, DEFAULT_CONFIG, ROOT_DEFAULT, TOPIC_CONFIG
from sparklog.log.state.description import ConfigDescription
from sparklog.log.state.description import describe_configs as described
from sparklog.log.state.root_defaults import (
    AUTO_CREATE,
    EXPIRATION,
    NUM_PARTITIONS,
    ConfigSynonym,
    DefaultRow,
    RootDefaults,
)
from sparklog.serve.codes import FAILURES, Code, CodeError, failure
from sparklog.serve.served_log import ServedLog
from sparklog.serve.services import ServedRequest
from sparklog.serve.users import READ

TOPIC, BROKER = 2, 4
SOURCES = {TOPIC_CONFIG: 1, ROOT_DEFAULT: 3, DEFAULT_CONFIG: 5}
OTHER_KINDS = {NUM_PARTITIONS: "int", AUTO_CREATE: "boolean", EXPIRATION: "int"}
TYPES = {"boolean": 1, "string": 2, "int": 3, "long": 5, "double": 6, "list": 7}


def describe_configs(request: ServedRequest) -> Fields:
    results, root = [], request.services.log.root
    # Read once for all resources: clients ask for every topic at once.
    defaults: Callable[[], RootDefaults | None] = cache(root.defaults) if root is not None else lambda: None
    for resource in request.fields["resources"]:
        place = {name: resource[name] for name in ("resourceType", "resourceName")}
        try:
            row = {"errorCode": Code.NONE, "configs": _described(request, resource, defaults)}
        except FAILURES as error:
            row = {**failure(error), "configs": []}
        results.append({**place, **row})
    return {"results": results}


def _described(
    request: ServedRequest, resource: Fields, defaults: Callable[[], RootDefaults | None]
) -> Sequence[Fields]:
    kind, name, keys = resource["resourceType"], resource["resourceName"], resource["configurationKeys"]
    if kind == TOPIC:
        if not request.may(READ, name):
            raise CodeError(Code.TOPIC_AUTHORIZATION_FAILED, "not allowed")
        rows = [_row(item) for item in _topic_configs(request.services.log, name, defaults())]
    elif kind == BROKER:
        of_root = defaults() if request.may(READ, "") else None
        listed = [] if of_root is None else [item for item in of_root.rows() if item.pattern is None]
        # Without a name: the defaults of all brokers that are set.
        rows = [_default_row(item) for item in listed if name or item.source == ROOT_DEFAULT]
    else:
        raise CodeError(Code.INVALID_REQUEST, f"resources of type {kind} are not served")
    rows = [row for row in rows if keys is None or row["name"] in keys]
    return rows if request.fields["includeSynonyms"] else [{**row, "synonyms": []} for row in rows]


def _topic_configs(log: ServedLog, name: str, defaults: RootDefaults | None) -> Sequence[ConfigDescription]:
    if log.root is None or defaults is None:
        if name not in log.look([name]):
            raise NotFound(f"no topic '{name}'")
        return ()
    return described(name, log.root.topic(name).log.head(refresh=False), defaults)


def _row(config: ConfigDescription) -> Fields:
    return _fields(config.name, config.value, CONFIGS[config.name].kind, config.doc) | _sources(config.synonyms)


def _default_row(row: DefaultRow) -> Fields:
    kind, doc = OTHER_KINDS.get(row.name, ""), ""
    if row.name in BY_NAME:
        kind, doc = BY_NAME[row.name].kind, BY_NAME[row.name].definition.doc
    values = [ConfigSynonym(row.name, row.value, row.source)] if row.source == ROOT_DEFAULT else []
    values.append(ConfigSynonym(row.name, row.default, DEFAULT_CONFIG))
    return _fields(row.name, row.value, kind, doc) | _sources(values)


def _fields(name: str, value: str, kind: str, doc: str) -> Fields:
    return {"name": name, "value": value, "configType": TYPES.get(kind, 2), "documentation": doc}


def _sources(synonyms: Sequence[ConfigSynonym]) -> Fields:
    rows = [{"name": item.name, "value": item.value, "source": SOURCES[item.source]} for item in synonyms]
    return {"configSource": rows[0]["source"], "synonyms": rows}
