"""One list of topic configs and names of a properties file; docs/reference/configs.md is made from it.

The texts are those of the definitions (`sparklog.log.state.config_table`, `sparklog.maintenance.properties`).
"""

from __future__ import annotations

from collections.abc import Sequence

from sparklog.errors import BadRequest, did_you_mean
from sparklog.log.state.config_table import CONFIGS, kafka_name
from sparklog.maintenance.properties import MAINTENANCE, TOPIC, ConfigDoc, property_table

_HEAD = """# Every config

`sparklog configs docs` prints what stands here, `sparklog configs docs NAME` one of them; this page is made by
`sparklog configs docs --markdown`. Names, types, defaults and ranges are those of Kafka 4.1; where one differs, the
last column says how it is there, and why.
"""
_TOPICS = """
## Topic configs

Set with `sparklog topics create -c NAME=VALUE` and `sparklog configs alter TOPIC --add-config NAME=VALUE`. A topic
stores only what was set on it.

| name | type | default | valid | unit | used by | what it does | Kafka 4.1 |
|---|---|---|---|---|---|---|---|
"""
_PROPERTIES = """
## Properties of maintenance

Lines of the file that both jobs take as `--properties` (see `conf/sparklog.properties`): defaults of topics, which a
config set on a topic beats, and limits of a run. Writers do not read it.

| name | type | default | valid | unit | used by | what it does |
|---|---|---|---|---|---|---|
"""


def config_docs() -> list[ConfigDoc]:
    """Return every topic config, then every property of maintenance."""
    topics = [
        ConfigDoc(c.name, TOPIC, c.kind, c.default, c.valid, c.unit, c.used_by, c.doc, kafka=c.kafka)
        for c in CONFIGS.values()
    ]
    return [*topics, *property_table()]


def one_config_doc(name: str) -> ConfigDoc:
    """Return the config of this name; `BadRequest` with the nearest names if there is none."""
    known = {each.name: each for each in config_docs()}
    if name not in known:
        why = kafka_name(name)
        raise BadRequest(f"unknown config '{name}'{f': {why}' if why else did_you_mean(name, known)}")
    return known[name]


def markdown() -> str:
    """docs/reference/configs.md."""
    docs = config_docs()
    topics = _rows([each for each in docs if each.scope == TOPIC], kafka=True)
    properties = _rows([each for each in docs if each.scope == MAINTENANCE], kafka=False)
    return f"{_HEAD}{_TOPICS}{topics}{_PROPERTIES}{properties}"


def _rows(docs: Sequence[ConfigDoc], *, kafka: bool) -> str:
    lines = []
    for each in docs:
        used_by = ", ".join(f"`{user}`" if " " in user else user for user in each.used_by) or "no command"
        default = f"`{each.default}`" if each.default else ""
        cells = [f"`{each.name}`", each.kind, default, each.valid, each.unit, used_by, each.doc]
        cells += [each.kafka] if kafka else []
        lines.append(f"| {' | '.join(cells)} |\n")
    return "".join(lines)
