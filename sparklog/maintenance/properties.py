r"""A properties file with Kafka's broker names: the defaults of topics, and the limits of the cleaner.

The file is Java's: `name=value`, `name: value` or `name value` a line, `#` and `!` begin a comment, a `\` at the end
of a line joins the next one to it. A value set on a topic beats the file, the file beats Kafka's default. A name that
is not known is an error: a setting that is quietly ignored is worse than one that is refused.

docs/reference/configs.md is made from the tables here and in `sparklog.log.state.configs`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from sparklog.common.parsing import INT32_MAX, INT64_MAX, fraction, positive_number, whole_number, whole_range
from sparklog.errors import BadRequest, did_you_mean
from sparklog.log.state.broker_names import BROKER_NAMES, BY_NAME, UNITS
from sparklog.log.state.configs import (
    COMPACT,
    CONFIGS,
    LEAST_DELETE_DELAY_MS,
    RETAIN,
    ConfigDef,
    TopicConfigs,
    is_security,
    kafka_name,
)
from sparklog.log.state.root_defaults import ID, NO_TOPIC_CONFIG, RootDefaults
from sparklog.maintenance.work_items import Settings

T = TypeVar("T")
LEAST_BUFFER_BYTES = 1 << 20
"""Kafka refuses a smaller key map, too: each pass would read everything for a handful of keys."""
_ENTRY = re.compile(r"((?:\\.?|[^\\=: \t])*)\s*[=:]?\s*(.*)", re.DOTALL)
"""A name ends at the first `=`, `:` or blank that no backslash precedes."""


@dataclass(frozen=True, slots=True)
class Property:
    """One entry of a file; `line` counts from 1."""

    line: int
    name: str
    value: str


_DEFAULTS = {
    name.name: name
    for names in BROKER_NAMES.values()
    for name in names
    if {COMPACT, RETAIN}.intersection(name.definition.used_by)
}
"""Defaults of topic configs that a job uses; writers do not read the file."""
_DELETE_DELAY = "log.segment.delete.delay.ms"
TOPIC = "topic"
MAINTENANCE = "maintenance"


@dataclass(frozen=True, slots=True)
class ConfigDoc:
    """Documentation of a topic config, or of a name in a properties file. Texts are empty where nothing is known."""

    name: str
    scope: str  # `topic` or `maintenance`
    kind: str
    default: str  # empty as well where another name gives it
    valid: str
    unit: str
    used_by: tuple[str, ...]
    doc: str
    config: str = ""  # the topic config whose default a property sets
    kafka: str = ""  # how Kafka 4.1 differs


@dataclass(frozen=True, slots=True)
class _Limit:
    """A limit of a run: `field` of `Settings`. `least` None: a share between 0 and 1; a double with one: above 0."""

    name: str
    field: str
    kind: str
    least: int | None
    unit: str
    job: str
    doc: str

    @property
    def valid(self) -> str:
        if self.least is None:
            return "a number above 0 and below 1"
        return "a number above 0" if self.kind == "double" else whole_range(self.least)

    def parse(self, file: str, entry: Property) -> float:
        """Return the value for `Settings`."""
        if self.least is None:
            return _checked(file, entry, partial(fraction, ends=False), self.valid)
        if self.kind == "double":
            return _checked(file, entry, positive_number, self.valid)
        return _number(file, entry, self.least, self.kind) * UNITS.get(self.unit, 1)

    def config_doc(self) -> ConfigDoc:
        default = getattr(Settings(0), self.field)
        shown = str(default if self.kind == "double" else default // UNITS.get(self.unit, 1))
        return ConfigDoc(self.name, MAINTENANCE, self.kind, shown, self.valid, self.unit, (self.job,), self.doc)


_LIMITS = (
    _Limit("log.cleaner.dedupe.buffer.size", "dedupe_buffer_bytes", "long", LEAST_BUFFER_BYTES, "bytes", COMPACT,
           "Map from key to newest offset, of each task (a broker divides its own by its threads): 24 bytes a key."),
    _Limit("log.cleaner.io.buffer.load.factor", "dedupe_load_factor", "double", None, "", COMPACT,
           "How full that map may become before a pass ends and another has to follow."),
    _Limit("log.cleaner.io.max.bytes.per.second", "io_bytes_per_second", "double", 0, "bytes/s", COMPACT,
           "Bytes that it reads and writes in a second, of each task (a broker divides its own by its threads)."),
    _Limit("producer.id.expiration.ms", "producer_expiration_ms", "int", 1, "ms", COMPACT,
           "How long the last batch of an idle producer is kept in imported topics, empty if need be."),
    _Limit("offsets.retention.minutes", "offsets_retention_ms", "int", 1, "minutes", RETAIN,
           "How long the offsets of a consumer group are kept once it is empty."),
    _Limit("spark.min.bytes", "spark_min_bytes", "long", 0, "bytes", COMPACT,
           "Start Spark for at least this many bytes to read; the job's own process does less work. 0: always."),
    _Limit("spark.min.files", "spark_min_files", "long", 0, "files", COMPACT,
           "Start Spark for at least this many files to read, however small they are. 0: always."),
)  # fmt: skip
NAMES = frozenset({*_DEFAULTS, *(limit.name for limit in _LIMITS)})
"""Every name that a file may set."""


def property_table() -> list[ConfigDoc]:
    """Return every name that a file may set; kinds and defaults as in Kafka."""
    docs = []
    for name in _DEFAULTS.values():
        first = BROKER_NAMES[name.config][0]
        rank = "" if name == first else f" Counts where {first.name} is not set."
        doc = f"Default of the topic config {name.config}.{rank}"
        valid = whole_range(LEAST_DELETE_DELAY_MS) if name.name == _DELETE_DELAY else name.valid
        kind, unit = (name.kind, name.default), name.unit or name.definition.unit
        docs.append(ConfigDoc(name.name, MAINTENANCE, *kind, valid, unit, _jobs(name.definition), doc, name.config))
    return [*docs, *(limit.config_doc() for limit in _LIMITS)]


def _jobs(config: ConfigDef) -> tuple[str, ...]:
    """Return the jobs that use a default of this file; writers do not read it."""
    return tuple(job for job in config.used_by if job in (COMPACT, RETAIN))


# Brokers' names that a user may expect to work, and what works instead.
_ELSEWHERE = {
    "log.cleaner.enable": "leave `sparklog compact` out of the schedule, or run it with --seal-only",
    "log.cleaner.threads": "each partition is one Spark task: give Spark more or fewer cores",
    "log.cleaner.backoff.ms": "the schedule says how often `sparklog compact` runs",
    "log.cleaner.io.buffer.size": "a task's buffers have a fixed size",
    "log.retention.check.interval.ms": "the schedule says how often `sparklog retain` runs",
    "log.dirs": "give the place as --root",
    "log.dir": "give the place as --root",
    "delete.topic.enable": "who may write to the folder may delete topics",
    "min.insync.replicas": "the disk or the bucket keeps the copies",
    "unclean.leader.election.enable": "there are no leaders, and the disk or the bucket keeps the copies",
    "default.replication.factor": "the disk or the bucket keeps the copies",
}


def parse_properties(text: str, file: str) -> list[Property]:
    """Return the entries of a properties file, in order. `BadRequest` for a name that is set twice."""
    entries: dict[str, Property] = {}
    for line, logical in _logical_lines(text):
        name, value = (re.sub(r"\\(.?)", r"\1", part, flags=re.DOTALL) for part in _ENTRY.findall(logical)[0])
        entry = Property(line, name, value.strip())
        if name in entries:
            raise BadRequest(
                f"{file} line {line}: {name} is set already in line {entries[name].line}; keep one of them"
            )
        entries[name] = entry
    return list(entries.values())


def settings_of_file(path: str) -> Settings:
    """Read a properties file, without a clock; `BadRequest` if it cannot be read or has an error."""
    try:
        text = Path(path).read_text(encoding="utf-8-sig", errors="replace")
    except OSError as error:
        raise BadRequest(f"the properties file {path} cannot be read: {error.strerror}; check --properties") from None
    return settings_of(text, path)


def settings_of(text: str, file: str, *, now_ms: int = 0) -> Settings:
    """Return the settings of a properties file, over Kafka's defaults. `file` names it in messages."""
    entries = {entry.name: entry for entry in parse_properties(text, file)}
    for entry in entries.values():
        if entry.name not in NAMES:
            raise BadRequest(f"{file} line {entry.line}: {_unknown(entry.name)}")
    defaults: dict[str, str] = {}
    # The name that counts comes last; those of lower rank are checked all the same.
    for name in reversed(_DEFAULTS.values()):
        if name.name in entries:
            parse = _delete_delay if name.name == _DELETE_DELAY else name.topic_value
            defaults[name.config] = _checked(file, entries[name.name], parse)
    try:
        TopicConfigs(defaults).check()
    except BadRequest as error:
        raise BadRequest(f"{file}: {error}") from None
    limits: dict[str, Any] = {
        limit.field: limit.parse(file, entries[limit.name]) for limit in _LIMITS if limit.name in entries
    }
    return Settings(now_ms, dict(sorted(defaults.items())), **limits)


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield lines joined with their continuations, with the number of the first; comments are left out."""
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


def _number(file: str, entry: Property, low: int, kind: str) -> int:
    high, top = (INT32_MAX, f" and at most {INT32_MAX}") if kind == "int" else (INT64_MAX, "")
    return _checked(file, entry, partial(whole_number, low=low, high=high), f"{whole_range(low)}{top}")


def _delete_delay(text: str) -> str:
    value = BY_NAME[_DELETE_DELAY].topic_value(text)
    if int(value) < LEAST_DELETE_DELAY_MS:
        raise BadRequest(
            f"{_DELETE_DELAY} must be at least {LEAST_DELETE_DELAY_MS} (one hour), found '{text}': jobs "
            "that planned to read files would miss them"
        )
    return value


def _checked(file: str, entry: Property, parse: Callable[[str], T], expected: str = "") -> T:
    """Parse a value; an error names the place in the file, and what is `expected` where `parse` does not say so."""
    try:
        return parse(entry.value)
    except BadRequest as error:
        message = str(error)
    except ValueError:
        message = f"{entry.name} must be {expected}, found '{entry.value}'"
    raise BadRequest(f"{file} line {entry.line}: {message}")


def _unknown(name: str) -> str:
    """Say why a name is refused, and what to write instead."""
    if name in _ELSEWHERE:
        return f"{name} means nothing to maintenance: {_ELSEWHERE[name]}"
    if name in NO_TOPIC_CONFIG or (name in BY_NAME and BY_NAME[name].definition.used_by):
        return f"{name} means nothing in this file: set it by sparklog configs alter --root-defaults"
    synonyms = BROKER_NAMES.get(name, ())
    if synonyms and synonyms[0].name in NAMES:
        return f"'{name}' is a topic config: set it on the topic, or its default here as {synonyms[0].name}"
    why = kafka_name(name)
    if why is not None:
        return f"{name} means nothing to maintenance: {why}; leave it out"
    return f"unknown property '{name}'{did_you_mean(name, NAMES)}"


class BrokerSetting(NamedTuple):
    """A line of a broker's file, and its result: TAKEN, NOT_NEEDED, NO_EQUIVALENT or WRONG."""

    line: int
    name: str
    value: str
    verdict: str
    text: str


TAKEN, NOT_NEEDED, NO_EQUIVALENT, WRONG = "taken", "not needed", "no equivalent", "wrong"


def answers(text: str, file: str, *, force: bool = False) -> list[BrokerSetting]:
    """Return the result of each setting in a broker's `server.properties`, including settings after an invalid one."""
    entries = parse_properties(text, file)
    return [BrokerSetting(entry.line, entry.name, _shown(entry), *_verdict(entry, force)) for entry in entries]


def _shown(entry: Property) -> str:
    is_secret = is_security(entry.name) or any(word in entry.name.lower() for word in ("password", "secret"))
    return "(not shown)" if is_secret else entry.value


def _verdict(entry: Property, force: bool) -> tuple[str, str]:
    name = entry.name
    if name in NO_TOPIC_CONFIG or (name in BY_NAME and BY_NAME[name].definition.used_by):
        try:
            value = RootDefaults(ID).changed({name: entry.value}, force=force).configs[name]
        except BadRequest as error:
            return WRONG, f"not valid: {error}"
        return TAKEN, f"taken as {name}={value}"
    why = _ELSEWHERE.get(name) or kafka_name(name)
    if name in NAMES:
        why = "it limits the jobs, which take it in the file that their --properties names"
    elif why is None and name in BY_NAME:
        why = "it means nothing without brokers"
    if why is not None:
        return NOT_NEEDED, f"not needed here: {why}"
    return (
        NO_EQUIVALENT,
        f"no equivalent: a root has nothing of this name{did_you_mean(name, {*BY_NAME, *NO_TOPIC_CONFIG})}",
    )


_HEAD = """# Every config

`sparklog configs docs` prints what is here, `sparklog configs docs NAME` one of them; this page is made by
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


_ROOT = """
## Defaults of a root

Set with `sparklog configs alter --root-defaults --add-config NAME=VALUE`, under a broker's names: what topics have that
do not set a config. With `--pattern REGEX` they have the names of topic configs, and are for topics whose names match.
[Which counts](../guides/retention.md#defaults-for-all-topics).

| name | default | valid | what it is |
|---|---|---|---|
| `num.partitions` | `1` | a whole number from 1 to 100000 | partitions of a topic that is created without a number |
| `auto.create.topics.enable` | | true or false | whether [writers create topics](../guides/retention.md) |
| `transactional.id.expiration.ms` | `-1` | a whole number from 1 to 2147483647, or -1: never | after so long \
without use a [transactional id expires](../guides/transactions.md#ids-that-are-not-used-any-more); Kafka: 604800000 |
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
    docs = {doc.name: doc for doc in config_docs()}
    if name not in docs:
        why = kafka_name(name)
        raise BadRequest(f"unknown config '{name}'{f': {why}' if why else did_you_mean(name, docs)}")
    return docs[name]


def markdown_config_docs() -> str:
    """docs/reference/configs.md."""
    docs = config_docs()
    topics = _rows([doc for doc in docs if doc.scope == TOPIC], kafka=True)
    properties = _rows([doc for doc in docs if doc.scope == MAINTENANCE], kafka=False)
    names = ((name, name.default and f"`{name.default}`") for name in BY_NAME.values())
    roots = "".join(
        f"| `{name.name}` | {default} | {name.valid} | default of `{name.config}` |\n" for name, default in names
    )
    return f"{_HEAD}{_TOPICS}{topics}{_ROOT}{roots}{_PROPERTIES}{properties}"


def _rows(docs: Sequence[ConfigDoc], *, kafka: bool) -> str:
    lines = []
    for config in docs:
        used_by = ", ".join(f"`{user}`" if " " in user else user for user in config.used_by) or "no command"
        default = f"`{config.default}`" if config.default else ""
        cells = [f"`{config.name}`", config.kind, default, config.valid, config.unit, used_by, config.doc]
        cells += [config.kafka] if kafka else []
        lines.append(f"| {' | '.join(cells)} |\n")
    return "".join(lines)
