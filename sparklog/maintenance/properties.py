r"""A properties file with names of Kafka broker configs: defaults of topic configs, and limits of the jobs.

The file has the format of Java properties: each line contains `name=value`, `name: value` or `name value`. `#` and `!`
start a comment, and a `\` at the end of a line continues the line. Configs that are set on a topic override the file,
and the file overrides Kafka's defaults. An unknown name is an error, because silently ignoring a setting is worse than
rejecting it.

docs/reference/configs.md is generated from the tables in this module and in `sparklog.log.state.configs`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from sparklog.common.settings import (
    POSITIVE,
    PROPER_FRACTION,
    Setting,
    ValueType,
    by_name,
    int32,
    int64,
    integer_range,
    markdown_table,
)
from sparklog.errors import BadRequest, did_you_mean
from sparklog.log.state.broker_names import BROKER_NAMES, BY_NAME, UNITS_MS, topic_value
from sparklog.log.state.configs import (
    COMPACT,
    CONFIGS,
    MIN_DELETE_DELAY_MS,
    RETAIN,
    TopicConfigs,
    is_security,
    no_effect_reason,
)
from sparklog.log.state.root_defaults import ID, ROOT_SETTINGS, RootDefaults
from sparklog.maintenance.work_items import Settings

MIN_BUFFER_BYTES = 1 << 20
"""Minimum size of the key map, as in Kafka. With a smaller map, each pass would read the entire log for a few keys."""
_ENTRY = re.compile(r"((?:\\.?|[^\\=: \t])*)\s*[=:]?\s*(.*)", re.DOTALL)
"""A name ends at the first `=`, `:` or blank that is not escaped with a backslash."""


@dataclass(frozen=True, slots=True)
class Property:
    """An entry of a properties file. `line` is the line number, starting with 1."""

    line: int
    name: str
    value: str


TOPIC = "topic"
MAINTENANCE = "maintenance"
_MIN_DELETE_DELAY = replace(
    int64(MIN_DELETE_DELAY_MS),
    valid=f"{integer_range(MIN_DELETE_DELAY_MS)} (one hour), so that running jobs find their files",
)


def _default_setting(setting: Setting) -> Setting:
    """Return the default of a topic config as a maintenance property."""
    first = BROKER_NAMES[setting.field][0].name
    rank = "" if setting.name == first else f" Used if {first} is not set."
    kind = _MIN_DELETE_DELAY if setting.field == "file.delete.delay.ms" else setting.type
    used_by = tuple(job for job in setting.used_by if job in (COMPACT, RETAIN))
    return replace(
        setting, type=kind, used_by=used_by, doc=f"Default of the topic config {setting.field}.{rank}", kafka=""
    )


_DEFAULTS = [_default_setting(setting) for setting in BY_NAME.values() if {COMPACT, RETAIN} & {*setting.used_by}]
"""Defaults of the topic configs that jobs use. Writers do not read the file."""


def _limit(name: str, field: str, kind: ValueType, unit: str, job: str, doc: str) -> Setting:
    """Return a limit of a run. The limit is a field of `Settings`, whose default is in ms or in the same unit."""
    default = getattr(Settings(0), field)
    shown = default // UNITS_MS[unit] if unit in UNITS_MS else default
    return Setting(name, kind, shown, doc, unit, (job,), field=field)


_LIMITS = (
    _limit("log.cleaner.dedupe.buffer.size", "dedupe_buffer_bytes", int64(MIN_BUFFER_BYTES), "bytes", COMPACT,
           "Size of each task's map from keys to latest offsets, at 24 bytes per key. A broker divides the size by "
           "the number of its cleaner threads."),
    _limit("log.cleaner.io.buffer.load.factor", "dedupe_load_factor", PROPER_FRACTION, "", COMPACT,
           "Fill ratio of the map from keys to latest offsets at which a pass ends and another pass follows."),
    _limit("log.cleaner.io.max.bytes.per.second", "io_bytes_per_second", POSITIVE, "bytes/s", COMPACT,
           "Maximum number of bytes that each task reads and writes per second. A broker divides the rate by the "
           "number of its cleaner threads."),
    _limit("producer.id.expiration.ms", "producer_expiration_ms", int32(1), "ms", COMPACT,
           "Time for which imported topics retain the last batch of an idle producer, even if all records of the "
           "producer were removed."),
    _limit("offsets.retention.minutes", "offsets_retention_ms", int32(1), "minutes", RETAIN,
           "Time for which the offsets of a consumer group are retained after the group becomes empty."),
    _limit("spark.min.bytes", "spark_min_bytes", int64(0), "bytes", COMPACT,
           "Minimum number of input bytes for which Spark is started. Smaller runs use the process of the job. If "
           "set to 0, Spark is always started."),
    _limit("spark.min.files", "spark_min_files", int64(0), "files", COMPACT,
           "Minimum number of input files for which Spark is started, regardless of their size. If set to 0, Spark "
           "is always started."),
)  # fmt: skip
PROPERTIES = by_name([*_DEFAULTS, *_LIMITS])
"""All properties that a file may set."""


def parse_properties(text: str, file: str) -> list[Property]:
    """Return the entries of a properties file in order. Raises `BadRequest` if a name is set twice."""
    entries: dict[str, Property] = {}
    for line, logical in _logical_lines(text):
        name, value = (re.sub(r"\\(.?)", r"\1", part, flags=re.DOTALL) for part in _ENTRY.findall(logical)[0])
        entry = Property(line, name, value.strip())
        if name in entries:
            raise BadRequest(
                f"{file} line {line}: {name} is already set in line {entries[name].line}; remove one of the two lines"
            )
        entries[name] = entry
    return list(entries.values())


def settings_of_file(path: str) -> Settings:
    """Return the settings in a properties file, with time 0. Raises `BadRequest` if it is unreadable or invalid."""
    try:
        text = Path(path).read_text(encoding="utf-8-sig", errors="replace")
    except OSError as error:
        raise BadRequest(f"failed to read the properties file {path!r}: {error.strerror}; check --properties") from None
    return settings_of(text, path)


def settings_of(text: str, file: str, *, now_ms: int = 0) -> Settings:
    """Return the settings in the text of a properties file. `file` is the file name for error messages."""
    entries = {entry.name: entry for entry in parse_properties(text, file)}
    for entry in entries.values():
        if entry.name not in PROPERTIES:
            raise BadRequest(f"{file} line {entry.line}: {_unknown(entry.name)}")
    defaults: dict[str, str] = {}
    limits: dict[str, Any] = {}
    # Iterate in reverse order, so that the name with the highest rank is applied last and names with a lower rank are
    # still validated.
    for setting in reversed(PROPERTIES.values()):
        if setting.name not in entries:
            continue
        entry = entries[setting.name]
        try:
            if setting in _LIMITS:
                limits[setting.field] = setting.parse(entry.value) * UNITS_MS.get(setting.unit, 1)
            else:
                defaults[setting.field] = topic_value(setting, entry.value)
        except BadRequest as error:
            raise BadRequest(f"{file} line {entry.line}: {error}") from None
    try:
        TopicConfigs(defaults).check()
    except BadRequest as error:
        raise BadRequest(f"{file}: {error}") from None
    return Settings(now_ms, dict(sorted(defaults.items())), **limits)


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield logical lines without comments, with the number of their first line. Continued lines are joined."""
    first, joined = 0, ""
    for number, raw in enumerate(text.splitlines(), 1):
        line = raw.lstrip()
        if not joined and (not line or line[0] in "#!"):
            continue
        first = first if joined else number
        if (len(line) - len(line.rstrip("\\"))) % 2:
            joined += line[:-1]
            continue
        yield first, joined + line
        joined = ""
    if joined:
        yield first, joined


def _is_root_default(name: str) -> bool:
    """Return True for a root default that has an effect."""
    return name in ROOT_SETTINGS and (name not in BY_NAME or bool(BY_NAME[name].used_by))


def _reason(name: str) -> str | None:
    """Return the reason why a broker setting has no effect, or None if the name is unknown."""
    return no_effect_reason(name) or ("it has no effect without brokers" if name in BY_NAME else None)


def _unknown(name: str) -> str:
    """Return the error message for a rejected name, with the setting to use instead."""
    if _is_root_default(name):
        return f"{name} has no effect in this file; set it with sparklog configs alter --root-defaults"
    synonyms = BROKER_NAMES.get(name, ())
    if synonyms and synonyms[0].name in PROPERTIES:
        return f"'{name}' is a topic config; set it on the topic, or set its default as {synonyms[0].name} in this file"
    why = _reason(name)
    if why is not None:
        return f"{name} has no effect on maintenance ({why}); remove it"
    return f"unknown property '{name}'{did_you_mean(name, PROPERTIES)}"


class BrokerSetting(NamedTuple):
    """A setting in a broker's file and the result of its import: IMPORTED, NOT_NEEDED, NO_EQUIVALENT or WRONG."""

    line: int
    name: str
    value: str
    verdict: str  # result of the import; the name is part of the JSON output
    text: str


IMPORTED, NOT_NEEDED, NO_EQUIVALENT, WRONG = "taken", "not needed", "no equivalent", "wrong"


def broker_settings(text: str, file: str, *, force: bool = False) -> list[BrokerSetting]:
    """Return the import result of each setting in a broker's `server.properties`, even if a setting is invalid."""
    entries = parse_properties(text, file)
    return [BrokerSetting(entry.line, entry.name, _shown(entry), *_import_result(entry, force)) for entry in entries]


def _shown(entry: Property) -> str:
    is_secret = is_security(entry.name) or any(word in entry.name.lower() for word in ("password", "secret"))
    return "(not shown)" if is_secret else entry.value


def _import_result(entry: Property, force: bool) -> tuple[str, str]:
    name = entry.name
    if _is_root_default(name):
        try:
            value = RootDefaults(ID).changed({name: entry.value}, force=force).configs[name]
        except BadRequest as error:
            return WRONG, f"not valid: {error}"
        return IMPORTED, f"imported as {name}={value}"
    why = _reason(name)
    if name in PROPERTIES:
        why = "it limits the jobs, which read it from the file in --properties"
    if why is not None:
        return NOT_NEEDED, f"not needed: {why}"
    return (
        NO_EQUIVALENT,
        f"no equivalent: roots have no setting with this name{did_you_mean(name, ROOT_SETTINGS)}",
    )


_HEAD = """# Configs

This page lists all topic configs, root defaults and properties of the maintenance jobs. Names, types, defaults and
valid values are those of Kafka 4.1. The last column describes the differences. The command `sparklog configs docs`
prints the documentation of all configs, and `sparklog configs docs NAME` prints the documentation of a single config.
"""
_TOPICS = """
## Topic configs

Set topic configs with `sparklog topics create -c NAME=VALUE` or `sparklog configs alter TOPIC --add-config NAME=VALUE`.
A topic stores only the configs that were set on the topic.

"""
_ROOT = """
## Defaults of a root

A root default applies to all topics that do not override the config. Root defaults have the names of Kafka's broker
configs. Set a root default with `sparklog configs alter --root-defaults --add-config NAME=VALUE`. Defaults that you set
with `--pattern REGEX` have the names of topic configs, and apply only to topics whose names match the pattern. See
[which value applies](../guides/retention.md#defaults-for-all-topics) and [when transactional ids
expire](../guides/transactions.md#expire-unused-transactional-ids).

"""
_PROPERTIES = """
## Properties of maintenance

The jobs `compact` and `retain` read these properties from the file that you specify with `--properties`. See
`conf/sparklog.properties` for an example. The properties are defaults of topic configs, which the configs of a topic
override, and limits of a run. Writers do not read this file.

"""
_COLUMNS = ("name", "type", "default", "valid", "unit")


class ConfigDoc(NamedTuple):
    """The documentation of a topic config or a maintenance property for `configs docs`."""

    scope: str
    setting: Setting

    def document(self) -> dict[str, object]:
        """Return the documentation as a JSON object for `--json`."""
        row = self.setting
        return {
            "name": row.name,
            "scope": self.scope,
            "kind": row.type.name,
            "default": row.default_text,
            "valid": row.type.valid,
            "unit": row.unit,
            "usedBy": row.used_by,
            "doc": row.doc,
            "config": row.field if row.field in CONFIGS else "",
            "kafka": row.kafka,
        }


def config_docs() -> list[ConfigDoc]:
    """Return the topic configs, followed by the maintenance properties."""
    topics = [ConfigDoc(TOPIC, setting) for setting in CONFIGS.values()]
    return [*topics, *(ConfigDoc(MAINTENANCE, setting) for setting in PROPERTIES.values())]


def one_config_doc(name: str) -> ConfigDoc:
    """Return the config with this name. Raises `BadRequest` with similar names if it does not exist."""
    docs = {doc.setting.name: doc for doc in config_docs()}
    if name not in docs:
        why = no_effect_reason(name)
        raise BadRequest(f"unknown config '{name}'{f': {why}' if why else did_you_mean(name, docs)}")
    return docs[name]


def markdown_config_docs() -> str:
    """Return the text of docs/reference/configs.md."""
    topics = markdown_table(CONFIGS.values(), (*_COLUMNS, "used by", "what it does", "Kafka 4.1"))
    roots = markdown_table(map(_root_doc, ROOT_SETTINGS.values()), (*_COLUMNS, "what it does", "Kafka 4.1"))
    properties = markdown_table(PROPERTIES.values(), (*_COLUMNS, "used by", "what it does"))
    return f"{_HEAD}{_TOPICS}{topics}{_ROOT}{roots}{_PROPERTIES}{properties}"


def _root_doc(setting: Setting) -> Setting:
    return (
        replace(setting, doc=f"Default of the topic config `{setting.field}`.", kafka="") if setting.field else setting
    )
