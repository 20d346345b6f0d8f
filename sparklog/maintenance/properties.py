r"""A properties file with Kafka's broker names: the defaults of topics, and the limits of the cleaner.

The file is Java's: `name=value`, `name: value` or `name value` a line, `#` and `!` begin a comment, a `\` at the end
of a line joins the next one to it. A value set on a topic beats the file, the file beats Kafka's default.

| broker name                                              | means                                                    |
|----------------------------------------------------------|----------------------------------------------------------|
| log.retention.ms, else .minutes, else .hours             | retention.ms; below 0: never; 0 is refused, as by Kafka  |
| log.retention.bytes                                      | retention.bytes                                          |
| log.segment.bytes                                        | segment.bytes                                            |
| log.roll.ms, else .hours                                 | segment.ms                                               |
| log.roll.jitter.ms, else .hours                          | segment.jitter.ms                                        |
| log.index.size.max.bytes, log.index.interval.bytes       | segment.index.bytes, index.interval.bytes                |
| log.segment.delete.delay.ms                              | file.delete.delay.ms                                     |
| log.cleanup.policy                                       | cleanup.policy                                           |
| log.cleaner.min.cleanable.ratio                          | min.cleanable.dirty.ratio                                |
| log.cleaner.delete.retention.ms                          | delete.retention.ms                                      |
| log.cleaner.min.compaction.lag.ms, max.compaction.lag.ms | min.compaction.lag.ms, max.compaction.lag.ms             |
| log.cleaner.dedupe.buffer.size                           | bytes of the key map of one task, 24 a key               |
| log.cleaner.io.buffer.load.factor                        | how full that map may become                             |
| producer.id.expiration.ms                                | how long an idle producer's last sequence is kept        |
| offsets.retention.minutes                                | how long offsets of an empty consumer group are kept     |

Any other name is an error: a setting that is quietly ignored is worse than one that is refused.

One list of topic configs and names of a properties file; docs/reference/configs.md is made from it.

The texts are those of the definitions (`sparklog.log.state.configs`, `sparklog.maintenance.properties`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from sparklog.errors import BadRequest, did_you_mean
from sparklog.log.state.configs import (
    COMPACT,
    CONFIGS,
    INT_MAX,
    LEAST_DELETE_DELAY_MS,
    LONG_MAX,
    LONG_MIN,
    RETAIN,
    ConfigDef,
    TopicConfigs,
    canonical,
    definition,
    kafka_name,
)
from sparklog.maintenance.work_items import Settings

T = TypeVar("T")
MINUTE_MS = 60_000
HOUR_MS = 3_600_000
_UNITS = {1: "ms", MINUTE_MS: "minutes", HOUR_MS: "hours"}
LEAST_BUFFER_BYTES = 1 << 20
"""Kafka refuses a smaller key map, too: each pass would read everything for a handful of keys."""


@dataclass(frozen=True, slots=True)
class Property:
    """One entry of a file; `line` counts from 1."""

    line: int
    name: str
    value: str


@dataclass(frozen=True, slots=True)
class _Scaled:
    """Broker names of one topic config, the first that is set counts: (name, ms of one unit, least value)."""

    config: str
    names: tuple[tuple[str, int, int], ...]
    never: bool = False


_SAME = {
    "log.retention.bytes": "retention.bytes",
    "log.segment.bytes": "segment.bytes",
    "log.index.size.max.bytes": "segment.index.bytes",
    "log.index.interval.bytes": "index.interval.bytes",
    "log.segment.delete.delay.ms": "file.delete.delay.ms",
    "log.cleanup.policy": "cleanup.policy",
    "log.cleaner.min.cleanable.ratio": "min.cleanable.dirty.ratio",
    "log.cleaner.delete.retention.ms": "delete.retention.ms",
    "log.cleaner.min.compaction.lag.ms": "min.compaction.lag.ms",
    "log.cleaner.max.compaction.lag.ms": "max.compaction.lag.ms",
}
_RANKED = (
    _Scaled(
        "retention.ms",
        (
            ("log.retention.ms", 1, LONG_MIN),
            ("log.retention.minutes", MINUTE_MS, LONG_MIN),
            ("log.retention.hours", HOUR_MS, LONG_MIN),
        ),
        never=True,
    ),
    _Scaled("segment.ms", (("log.roll.ms", 1, 1), ("log.roll.hours", HOUR_MS, 1))),
    _Scaled("segment.jitter.ms", (("log.roll.jitter.ms", 1, 0), ("log.roll.jitter.hours", HOUR_MS, 0))),
)
TOPIC = "topic"
MAINTENANCE = "maintenance"


@dataclass(frozen=True, slots=True)
class ConfigDoc:
    """Documentation of a topic config, or of a name in a properties file.

    `scope`: `topic` or `maintenance`; `config`: the topic config whose default a property sets; `kafka`: how Kafka 4.1
    differs. Texts are empty where nothing is known; so is `default` where another name has it.
    """

    name: str
    scope: str
    kind: str
    default: str
    valid: str
    unit: str
    used_by: tuple[str, ...]
    doc: str
    config: str = ""
    kafka: str = ""


@dataclass(frozen=True, slots=True)
class _Limit:
    """A limit of a run: `field` of `Settings`, in `unit_value` of its unit. `least` None: a share between 0 and 1."""

    name: str
    field: str
    kind: str
    least: int | None
    most: int
    unit: str
    job: str
    doc: str
    unit_value: int = 1

    def parse(self, file: str, entry: Property) -> float:
        """Return the value for `Settings`."""
        if self.least is None:
            return _checked(file, entry, partial(_share, self.name))
        return _number(file, entry, self.least, self.most) * self.unit_value

    def config_doc(self) -> ConfigDoc:
        default = getattr(Settings(0), self.field)
        shown = str(default if self.least is None else default // self.unit_value)
        valid = f"a whole number of at least {self.least}" if self.least is not None else "a number above 0 and below 1"
        return ConfigDoc(self.name, MAINTENANCE, self.kind, shown, valid, self.unit, (self.job,), self.doc)


_LIMITS = (
    _Limit(
        "log.cleaner.dedupe.buffer.size",
        "dedupe_buffer_bytes",
        "long",
        LEAST_BUFFER_BYTES,
        LONG_MAX,
        "bytes",
        COMPACT,
        "Map from key to newest offset, of each task (a broker divides its own by its threads): 24 bytes a key.",
    ),
    _Limit(
        "log.cleaner.io.buffer.load.factor",
        "dedupe_load_factor",
        "double",
        None,
        1,
        "",
        COMPACT,
        "How full that map may become before a pass ends and another has to follow.",
    ),
    _Limit(
        "producer.id.expiration.ms",
        "producer_expiration_ms",
        "int",
        1,
        INT_MAX,
        "ms",
        COMPACT,
        "How long the last batch of an idle producer is kept in imported topics, empty if need be.",
    ),
    _Limit(
        "offsets.retention.minutes",
        "offsets_retention_ms",
        "int",
        1,
        INT_MAX,
        "minutes",
        RETAIN,
        "How long the offsets of a consumer group are kept once it is empty.",
        MINUTE_MS,
    ),
)


def property_table() -> list[ConfigDoc]:
    """Return every name that a file may set, in the order of the table above; kinds and defaults as in Kafka."""
    docs = []
    for ranked in _RANKED:
        known = definition(ranked.config)
        first, last = ranked.names[0][0], ranked.names[-1][0]
        for name, unit_ms, least in ranked.names:
            valid = "a whole number but 0, below 0: never" if ranked.never else f"a whole number of at least {least}"
            rank = "" if name == first else f" Counts where {first} is not set."
            doc = f"Default of the topic config {ranked.config}.{rank}"
            kind, default = (
                "long" if unit_ms == 1 else "int",
                str(int(known.default) // unit_ms) if name == last else "",
            )
            unit = _UNITS[unit_ms]
            docs.append(
                ConfigDoc(name, MAINTENANCE, kind, default, valid, unit, _jobs(known), doc, config=ranked.config)
            )
    for name, config in _SAME.items():
        known = definition(config)
        valid = f"a whole number of at least {LEAST_DELETE_DELAY_MS}" if name in _PARSERS else known.valid
        doc = f"Default of the topic config {config}."
        docs.append(
            ConfigDoc(name, MAINTENANCE, known.kind, known.default, valid, known.unit, _jobs(known), doc, config=config)
        )
    return [*docs, *(limit.config_doc() for limit in _LIMITS)]


def _jobs(config: ConfigDef) -> tuple[str, ...]:
    """Return the jobs that use a default of this file; writers do not read it."""
    return tuple(each for each in config.used_by if each in (COMPACT, RETAIN))


NAMES = frozenset(
    {*_SAME, *(name for ranked in _RANKED for name, _, _ in ranked.names), *(limit.name for limit in _LIMITS)}
)
"""Every name that a file may set."""

# Brokers' names that a user may expect to work, and what works instead.
_ELSEWHERE = {
    "log.cleaner.enable": "leave `sparklog compact` out of the schedule, or run it with --seal-only",
    "log.cleaner.threads": "each partition is one Spark task: give Spark more or fewer cores",
    "log.cleaner.backoff.ms": "the schedule says how often `sparklog compact` runs",
    "log.cleaner.io.buffer.size": "a task's buffers have a fixed size",
    "log.cleaner.io.max.bytes.per.second": "give Spark fewer cores",
    "log.retention.check.interval.ms": "the schedule says how often `sparklog retain` runs",
    "log.dirs": "give the place as --root",
    "log.dir": "give the place as --root",
    "num.partitions": "it is an option of writers",
    "compression.type": "set compression.type on the topic",
    "message.max.bytes": "set max.message.bytes on the topic",
    "log.message.timestamp.type": "set message.timestamp.type on the topic",
}


def parse_properties(text: str, file: str) -> list[Property]:
    """Return the entries of a properties file, in order. `BadRequest` for a name that is set twice."""
    entries: dict[str, Property] = {}
    for line, logical in _logical_lines(text):
        name, value = _split(logical)
        entry = Property(line, name, value.strip())
        if name in entries:
            raise BadRequest(
                f"{file} line {line}: {name} is set already in line {entries[name].line}; keep one of them"
            )
        entries[name] = entry
    return list(entries.values())


def settings_of_file(path: str) -> Settings:
    """Read a properties file, without a clock; `BadRequest` if it cannot be read or has an error.

    The file lies with the caller, like the command line itself, not in the store.
    """
    try:
        text = Path(path).read_text(encoding="utf-8-sig", errors="replace")
    except OSError as error:
        raise BadRequest(f"the properties file {path} cannot be read: {error.strerror}; check --properties") from None
    return settings_of(text, path)


def settings_of(text: str, file: str, *, now_ms: int = 0) -> Settings:
    """Return the settings of a properties file, over Kafka's defaults.

    `file` names it in messages. `BadRequest`, with the line, for an unknown name, a bad value, or values that
    contradict each other.
    """
    entries = {entry.name: entry for entry in parse_properties(text, file)}
    for entry in entries.values():
        if entry.name not in NAMES:
            raise BadRequest(f"{file} line {entry.line}: {_unknown(entry.name)}")
    defaults: dict[str, str] = {}
    for name, config in _SAME.items():
        if name in entries:
            defaults[config] = _checked(file, entries[name], _PARSERS.get(name, partial(canonical, config)))
    for ranked in _RANKED:
        value = _first_set(file, ranked, entries)
        if value is not None:
            defaults[ranked.config] = canonical(ranked.config, value)
    try:
        TopicConfigs(defaults).check()
    except BadRequest as error:
        raise BadRequest(f"{file}: {error}") from None
    limits: dict[str, Any] = {
        limit.field: limit.parse(file, entries[limit.name]) for limit in _LIMITS if limit.name in entries
    }
    return Settings(now_ms, dict(sorted(defaults.items())), **limits)


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Join lines with their continuations and leave comments out; the number is that of the first line."""
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


def _split(line: str) -> tuple[str, str]:
    """Split a line into name and value: the name ends at the first `=`, `:` or blank that no backslash precedes."""
    at = 0
    while at < len(line) and line[at] not in "=: \t":
        at += 2 if line[at] == "\\" else 1
    rest = line[at:].lstrip()
    if rest[:1] in ("=", ":"):
        rest = rest[1:].lstrip()
    return _plain(line[:at]), _plain(rest)


def _plain(text: str) -> str:
    """Take out the backslashes that Java takes out. (`\\u` escapes are for letters that no name or value here has.)"""
    plain, escaped = [], False
    for character in text:
        if character == "\\" and not escaped:
            escaped = True
            continue
        plain.append(character)
        escaped = False
    return "".join(plain)


def _first_set(file: str, ranked: _Scaled, entries: Mapping[str, Property]) -> int | None:
    """Return the value in ms by Kafka's ranking; those of lower rank are checked all the same."""
    values = []
    for name, unit, least in ranked.names:
        if name not in entries:
            continue
        most = LONG_MAX if unit == 1 else INT_MAX
        value = _number(file, entries[name], least, most)
        if ranked.never and value == 0:
            raise BadRequest(
                f"{file} line {entries[name].line}: {name} must be at least 1, or -1 for records that never expire; "
                "found 0"
            )
        values.append(-1 if ranked.never and value < 0 else value * unit)
    return values[0] if values else None


def _number(file: str, entry: Property, low: int, high: int) -> int:
    def parse(text: str) -> int:
        digits = text.removeprefix("-")
        value = int(text) if digits.isascii() and digits.isdecimal() and len(digits) <= 19 else None
        if value is None or not low <= value <= high:
            bound = f" of at least {low}" if low > LONG_MIN else ""
            top = f" and at most {high}" if high == INT_MAX else ""
            raise BadRequest(f"{entry.name} must be a whole number{bound}{top}, found '{text}'")
        return value

    return _checked(file, entry, parse)


def _share(name: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0.0 < value < 1.0:
        raise BadRequest(f"{name} must be a number above 0 and below 1, found '{text}'")
    return value


def _delete_delay(text: str) -> str:
    value = canonical("file.delete.delay.ms", text)
    if int(value) < LEAST_DELETE_DELAY_MS:
        raise BadRequest(
            f"log.segment.delete.delay.ms must be at least {LEAST_DELETE_DELAY_MS} (one hour), found '{text}': jobs "
            "that planned to read files would miss them"
        )
    return value


_PARSERS: Mapping[str, Callable[[str], str]] = {"log.segment.delete.delay.ms": _delete_delay}
"""Parsers of names whose topic config allows more."""


def _checked(file: str, entry: Property, parse: Callable[[str], T]) -> T:
    """Parse a value; an error names the place in the file."""
    try:
        return parse(entry.value)
    except BadRequest as error:
        config = _SAME.get(entry.name)
        message = str(error).replace(f"config {config} must", f"{entry.name} must") if config else str(error)
        raise BadRequest(f"{file} line {entry.line}: {message}") from None


def _unknown(name: str) -> str:
    """Say why a name is refused, and what to write instead."""
    if name in _ELSEWHERE:
        return f"{name} means nothing to maintenance: {_ELSEWHERE[name]}"
    for broker, config in _SAME.items():
        if name == config:
            return f"'{name}' is a topic config: set it on the topic, or its default here as {broker}"
    for ranked in _RANKED:
        if name == ranked.config:
            return f"'{name}' is a topic config: set it on the topic, or its default here as {ranked.names[0][0]}"
    why = kafka_name(name)
    if why is not None:
        return f"{name} means nothing to maintenance: {why}; leave it out"
    return f"unknown property '{name}'{did_you_mean(name, NAMES)}"


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


def markdown_config_docs() -> str:
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
