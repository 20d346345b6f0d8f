"""DescribeConfigs 1 to 4: the configs of topics, with their sources; of a server, that there are none.

Of a Kafka directory no configs are known: Kafka keeps them elsewhere.
"""

from __future__ import annotations

from sparklog.errors import SparklogError
from sparklog.format.coordinators.message_schema import Fields
from sparklog.log.state.configs import CONFIGS, TopicConfigs
from sparklog.serve.codes import Code, code_of
from sparklog.serve.served_log import ServedLog
from sparklog.serve.services import ServedRequest
from sparklog.serve.users import READ

TOPIC, BROKER = 2, 4
TOPIC_CONFIG, DEFAULT_CONFIG = 1, 5
"""Sources: set on the topic, or a default."""
TYPES = {"boolean": 1, "string": 2, "int": 3, "long": 5, "double": 6, "list": 7}


async def describe_configs(request: ServedRequest) -> Fields:
    with_synonyms = request.fields["includeSynonyms"]
    log = request.services.log
    results = []
    for resource in request.fields["resources"]:
        kind, name = resource["resourceType"], resource["resourceName"]
        row: Fields = {"resourceType": kind, "resourceName": name}
        try:
            if kind == TOPIC and not request.may(READ, name):
                row |= {"errorCode": Code.TOPIC_AUTHORIZATION_FAILED, "errorMessage": "not allowed"}
            elif kind == TOPIC:
                configs = await request.services.run(_topic_configs, log, name)
                row["configs"] = [] if configs is None else _rows(configs, resource["configurationKeys"], with_synonyms)
            elif kind != BROKER:
                row |= {"errorCode": Code.INVALID_REQUEST, "errorMessage": f"resources of type {kind} are not served"}
        except SparklogError as error:
            row |= {"errorCode": code_of(error), "errorMessage": str(error)}
        results.append({"errorCode": Code.NONE, "configs": [], **row})
    return {"results": results}


def _topic_configs(log: ServedLog, name: str) -> TopicConfigs | None:
    if log.root is None:
        log.topic_id(name)
        return None
    return log.root.topic(name).log.head(refresh=False).configs


def _rows(configs: TopicConfigs, keys: list[str] | None, with_synonyms: bool) -> list[Fields]:
    rows = []
    for name, definition in CONFIGS.items():
        if keys is not None and name not in keys:
            continue
        value, is_set = configs.text(name), name in configs.explicit
        source = TOPIC_CONFIG if is_set else DEFAULT_CONFIG
        synonyms = [{"name": name, "value": value, "source": source}]
        rows.append(
            {
                "name": name,
                "value": value,
                "configSource": source,
                "synonyms": synonyms if with_synonyms else [],
                "configType": TYPES.get(definition.kind, 2),
                "documentation": definition.doc,
            }
        )
    return rows
