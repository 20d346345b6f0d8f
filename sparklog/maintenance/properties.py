"""A properties file with Kafka's broker names: the defaults of topics, and the limits of the cleaner.

The file is Java's: `name=value`, `name: value` or `name value` a line, `#` and `!` begin a comment, a `\\` at the end
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
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TypeVar

from sparklog.errors import BadRequest, did_you_mean
from sparklog.log.state.config_table import (
    COMPACT,
    INT_MAX,
    LONG_MAX,
    LONG_MIN,
    RETAIN,
    ConfigDef,
    canonical,
    definition,
    kafka_name,
)
from sparklog.log.state.configs import LEAST_DELETE_DELAY_MS, TopicConfigs
from sparklog.maintenance.work import Settings

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
_BUFFER = "log.cleaner.dedupe.buffer.size"
_LOAD = "log.cleaner.io.buffer.load.factor"
_EXPIRATION = "producer.id.expiration.ms"
_OFFSETS = "offsets.retention.minutes"


@dataclass(frozen=True, slots=True)
class PropertyDef:
    """What a name of the file means: `config` is the topic config whose default it sets, None for limits of a run.

    The other fields as in `sparklog.log.state.config_table.ConfigDef`; `default` is empty where another name has it.
    """

    name: str
    config: str | None
    kind: str
    default: str
    valid: str
    unit: str
    doc: str
    used_by: tuple[str, ...]


_LIMITS = (
    PropertyDef(
        _BUFFER,
        None,
        "long",
        str(Settings(0).dedupe_buffer_bytes),
        f"a whole number of at least {LEAST_BUFFER_BYTES}",
        "bytes",
        "Map from key to newest offset, of each task (a broker divides its own by its threads): 24 bytes a key.",
        (COMPACT,),
    ),
    PropertyDef(
        _LOAD,
        None,
        "double",
        str(Settings(0).dedupe_load_factor),
        "a number above 0 and below 1",
        "",
        "How full that map may become before a pass ends and another has to follow.",
        (COMPACT,),
    ),
    PropertyDef(
        _EXPIRATION,
        None,
        "int",
        str(Settings(0).producer_expiration_ms),
        "a whole number of at least 1",
        "ms",
        "How long the last batch of an idle producer is kept in imported topics, empty if need be.",
        (COMPACT,),
    ),
    PropertyDef(
        _OFFSETS,
        None,
        "int",
        str(Settings(0).offsets_retention_ms // MINUTE_MS),
        "a whole number of at least 1",
        _UNITS[MINUTE_MS],
        "How long the offsets of a consumer group are kept once it is empty.",
        (RETAIN,),
    ),
)


def property_table() -> list[PropertyDef]:
    """Every name that a file may set, in the order of the table above; kinds, ranges and defaults as in Kafka."""
    found = []
    for ranked in _RANKED:
        known = definition(ranked.config)
        last = ranked.names[-1][0]
        for name, unit_ms, least in ranked.names:
            low = "a whole number but 0, below 0: never" if least == LONG_MIN else f"a whole number of at least {least}"
            rank = "" if name == ranked.names[0][0] else f" Counts where {ranked.names[0][0]} is not set."
            found.append(
                PropertyDef(
                    name,
                    ranked.config,
                    "long" if unit_ms == 1 else "int",
                    str(int(known.default) // unit_ms) if name == last else "",
                    low,
                    _UNITS[unit_ms],
                    f"Default of the topic config {ranked.config}.{rank}",
                    _jobs(known),
                )
            )
    for name, config in _SAME.items():
        known = definition(config)
        hour = name in _PARSERS
        valid = f"a whole number of at least {LEAST_DELETE_DELAY_MS}" if hour else known.valid
        doc = f"Default of the topic config {config}."
        found.append(PropertyDef(name, config, known.kind, known.default, valid, known.unit, doc, _jobs(known)))
    return [*found, *_LIMITS]


def _jobs(config: ConfigDef) -> tuple[str, ...]:
    """Who goes by a default of this file: nobody but the two jobs reads it."""
    return tuple(each for each in config.used_by if each in (COMPACT, RETAIN))


NAMES = frozenset(
    {*_SAME, *(name for ranked in _RANKED for name, _, _ in ranked.names), _BUFFER, _LOAD, _EXPIRATION, _OFFSETS}
)
"""Every name that a file may set."""

# Brokers' names that somebody may expect to work here, and what does it instead.
_ELSEWHERE = {
    "log.cleaner.enable": "leave jobs/compact.py out of the schedule, or run it with --seal-only",
    "log.cleaner.threads": "each partition is one Spark task: give Spark more or fewer cores",
    "log.cleaner.backoff.ms": "the schedule says how often jobs/compact.py runs",
    "log.cleaner.io.buffer.size": "a task's buffers have a fixed size",
    "log.cleaner.io.max.bytes.per.second": "give Spark fewer cores",
    "log.retention.check.interval.ms": "the schedule says how often jobs/retain.py runs",
    "log.dirs": "give the place as --root",
    "log.dir": "give the place as --root",
    "num.partitions": "it is an option of writers",
    "compression.type": "set compression.type on the topic",
    "message.max.bytes": "set max.message.bytes on the topic",
    "log.message.timestamp.type": "set message.timestamp.type on the topic",
}


def parse_properties(text: str, file: str) -> list[Property]:
    """The entries of a properties file, in order. `BadRequest` for a name that is set twice."""
    found: dict[str, Property] = {}
    for line, logical in _logical_lines(text):
        name, value = _split(logical)
        entry = Property(line, name, value.strip())
        if name in found:
            raise BadRequest(f"{file} line {line}: {name} is set already in line {found[name].line}; keep one of them")
        found[name] = entry
    return list(found.values())


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
    """What a properties file says, over Kafka's defaults.

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
    settings = Settings(now_ms, dict(sorted(defaults.items())))
    if _BUFFER in entries:
        settings = replace(settings, dedupe_buffer_bytes=_number(file, entries[_BUFFER], LEAST_BUFFER_BYTES, LONG_MAX))
    if _LOAD in entries:
        settings = replace(settings, dedupe_load_factor=_checked(file, entries[_LOAD], _load_factor))
    if _OFFSETS in entries:
        minutes = _number(file, entries[_OFFSETS], 1, INT_MAX)
        settings = replace(settings, offsets_retention_ms=minutes * MINUTE_MS)
    if _EXPIRATION in entries:
        settings = replace(settings, producer_expiration_ms=_number(file, entries[_EXPIRATION], 1, INT_MAX))
    return settings


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Lines with their continuations joined and comments left out; the number is that of the first line."""
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
    """Name and value of a line: the name ends at the first `=`, `:` or blank that no backslash precedes."""
    at = 0
    while at < len(line) and line[at] not in "=: \t":
        at += 2 if line[at] == "\\" else 1
    rest = line[at:].lstrip()
    if rest[:1] in ("=", ":"):
        rest = rest[1:].lstrip()
    return _plain(line[:at]), _plain(rest)


def _plain(text: str) -> str:
    """Without the backslashes that Java takes out. (`\\u` escapes are for letters that no name or value here has.)"""
    plain, escaped = [], False
    for character in text:
        if character == "\\" and not escaped:
            escaped = True
            continue
        plain.append(character)
        escaped = False
    return "".join(plain)


def _first_set(file: str, ranked: _Scaled, entries: Mapping[str, Property]) -> int | None:
    """The value in ms by Kafka's ranking; those of lower rank are checked all the same."""
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


def _load_factor(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0.0 < value < 1.0:
        raise BadRequest(f"{_LOAD} must be a number above 0 and below 1, found '{text}'")
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
"""Of names whose topic config does not say it all."""


def _checked(file: str, entry: Property, parse: Callable[[str], T]) -> T:
    """A value, or the error of its parser with the place in the file."""
    try:
        return parse(entry.value)
    except BadRequest as error:
        config = _SAME.get(entry.name)
        said = str(error).replace(f"config {config} must", f"{entry.name} must") if config else str(error)
        raise BadRequest(f"{file} line {entry.line}: {said}") from None


def _unknown(name: str) -> str:
    """Why a name is refused, and what to write instead."""
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
