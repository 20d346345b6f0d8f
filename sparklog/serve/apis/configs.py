"""DescribeConfigs 1 to 4: the configs of topics, with their sources; of a server, the defaults of the root.

Of a Kafka directory no configs are known: Kafka keeps them elsewhere.
"""

from __future__ import annotations

from collections.abc import Sequence

from sparklog.errors import NotFound, SparklogError
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
from sparklog.serve.codes import Code, code_of
from sparklog.serve.served_log import ServedLog
from sparklog.serve.services import ServedRequest
from sparklog.serve.users import READ

TOPIC, BROKER = 2, 4
SOURCES = {TOPIC_CONFIG: 1, ROOT_DEFAULT: 3, DEFAULT_CONFIG: 5}
OTHER_KINDS = {NUM_PARTITIONS: "int", AUTO_CREATE: "boolean", EXPIRATION: "int"}
TYPES = {"boolean": 1, "string": 2, "int": 3, "long": 5, "double": 6, "list": 7}


async def describe_configs(request: ServedRequest) -> Fields:
    with_synonyms = request.fields["includeSynonyms"]
    log = request.services.log
    # Read once for all resources: clients ask for every topic at once.
    defaults: RootDefaults | None = None
    results = []
    for resource in request.fields["resources"]:
        kind, name = resource["resourceType"], resource["resourceName"]
        row: Fields = {"resourceType": kind, "resourceName": name}
        try:
            if defaults is None and log.root is not None:
                defaults = await request.services.run(log.root.defaults)
            if kind == TOPIC and not request.may(READ, name):
                row |= {"errorCode": Code.TOPIC_AUTHORIZATION_FAILED, "errorMessage": "not allowed"}
            elif kind == TOPIC:
                configs = await request.services.run(_topic_configs, log, name, defaults)
                row["configs"] = [_row(item, with_synonyms) for item in configs if _is_asked(item.name, resource)]
            elif kind == BROKER:
                rows = [] if defaults is None or not request.may(READ, "") else list(defaults.rows())
                # Without a name: the defaults of all brokers that are set.
                rows = [item for item in rows if item.pattern is None and (name or item.source == ROOT_DEFAULT)]
                row["configs"] = [_default_row(item, with_synonyms) for item in rows if _is_asked(item.name, resource)]
            else:
                row |= {"errorCode": Code.INVALID_REQUEST, "errorMessage": f"resources of type {kind} are not served"}
        except SparklogError as error:
            row |= {"errorCode": code_of(error), "errorMessage": str(error)}
        results.append({"errorCode": Code.NONE, "configs": [], **row})
    return {"results": results}


def _is_asked(name: str, resource: Fields) -> bool:
    keys = resource["configurationKeys"]
    return keys is None or name in keys


def _topic_configs(log: ServedLog, name: str, defaults: RootDefaults | None) -> Sequence[ConfigDescription]:
    if log.root is None or defaults is None:
        if name not in log.look([name]):
            raise NotFound(f"no topic '{name}'")
        return ()
    return described(name, log.root.topic(name).log.head(refresh=False), defaults)


def _row(config: ConfigDescription, with_synonyms: bool) -> Fields:
    kind = CONFIGS[config.name].kind
    return _fields(config.name, config.value, kind, config.doc) | _sources(config.synonyms, with_synonyms)


def _default_row(row: DefaultRow, with_synonyms: bool) -> Fields:
    kind, doc = OTHER_KINDS.get(row.name, ""), ""
    if row.name in BY_NAME:
        kind, doc = BY_NAME[row.name].kind, BY_NAME[row.name].definition.doc
    values = [ConfigSynonym(row.name, row.value, row.source)] if row.source == ROOT_DEFAULT else []
    values.append(ConfigSynonym(row.name, row.default, DEFAULT_CONFIG))
    return _fields(row.name, row.value, kind, doc) | _sources(values, with_synonyms)


def _fields(name: str, value: str, kind: str, doc: str) -> Fields:
    return {"name": name, "value": value, "configType": TYPES.get(kind, 2), "documentation": doc}


def _sources(synonyms: Sequence[ConfigSynonym], with_synonyms: bool) -> Fields:
    rows = [{"name": item.name, "value": item.value, "source": SOURCES[item.source]} for item in synonyms]
    return {"configSource": rows[0]["source"], "synonyms": rows if with_synonyms else []}
