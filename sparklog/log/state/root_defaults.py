"""Defaults of a root, under a broker's names: what a topic's config is where the topic does not set it.

As in Kafka they are not copied to topics: they count for all topics that there are, and at once. Defaults of a pattern
are for topics whose whole names match it; they have the names of topic configs, and count before those of the root. Two
names are for topics that do not exist yet: `num.partitions` and `auto.create.topics.enable`. One is of no topic:
`transactional.id.expiration.ms`.

An entry of the journal `_root/defaults/_log` has all of them. A root without entries has none.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from sparklog.common.settings import BOOLEAN, Setting, by_name, integer, or_never, text_of
from sparklog.errors import BadRequest, did_you_mean
from sparklog.log.journal.documents import TEXT, Document, Member, StoredDocument, objects_of, texts_by_text
from sparklog.log.journal.entry_log import ENTRY_MEMBERS, EntryKind, StateEntry
from sparklog.log.journal.names import MAX_PARTITIONS, ROOT_FOLDER
from sparklog.log.state.broker_names import BROKER_NAMES, BY_NAME, topic_value
from sparklog.log.state.commit import CARRIED_CONFIG
from sparklog.log.state.configs import (
    CONFIGS,
    DEFAULT_CONFIG,
    ROOT_DEFAULT,
    TOPIC_CONFIG,
    TopicConfigs,
    check_delete_delay,
    kafka_name,
)

ID = "defaults"
NUM_PARTITIONS = "num.partitions"
AUTO_CREATE = "auto.create.topics.enable"
EXPIRATION = "transactional.id.expiration.ms"
_PARTITIONS = Setting(
    NUM_PARTITIONS, integer(1, MAX_PARTITIONS), 1, "Partitions of a topic that is created without a number."
)
CREATION: Mapping[str, Setting] = by_name(
    [_PARTITIONS, Setting(AUTO_CREATE, BOOLEAN, None, "Whether writers create topics that do not exist.")]
)
"""Defaults that are no topic configs, of topics that do not exist yet."""
# Releases before 0.7 would begin an expired id once more, from nothing: so ids expire only where that is set, Kafka's
# default or another one.
_EXPIRATION = Setting(
    EXPIRATION, or_never(integer(1)), -1, "Time without use after which a transactional id expires.", "ms",
    kafka="Default 604800000.",
)  # fmt: skip
ROOT_SETTINGS: Mapping[str, Setting] = {**BY_NAME, **CREATION, EXPIRATION: _EXPIRATION}
"""Defaults of all topics of a root."""
PATTERN_SETTINGS: Mapping[str, Setting] = {**CONFIGS, **CREATION}
"""Defaults of the topics that a pattern matches."""


@dataclass(frozen=True, slots=True)
class PatternDefaults:
    """Defaults, by names of topic configs, of topics whose whole names match a regular expression."""

    pattern: str
    configs: Mapping[str, str]

    def value(self, topic: str, name: str) -> str | None:
        return self.configs.get(name) if name in self.configs and re.fullmatch(self.pattern, topic) else None


@dataclass(frozen=True, slots=True)
class ConfigSynonym:
    """A value of a config, under the name by which it was set; `source` in Kafka's words."""

    name: str
    value: str
    source: str


@dataclass(frozen=True, slots=True)
class DefaultRow:
    """A default of the root, or of the topics that a pattern matches; `default`: the built-in one."""

    pattern: str | None
    name: str
    value: str
    source: str
    default: str


@dataclass(frozen=True, slots=True)
class RootDefaults(StateEntry):
    """The defaults of a root: `configs` by a broker's names; of `patterns` that match, the one added last counts."""

    configs: Mapping[str, str] = field(default_factory=dict)
    patterns: tuple[PatternDefaults, ...] = ()

    def of_topic(self, topic: str) -> dict[str, str]:
        """Return the defaults of a topic, by names of topic configs; the built-in ones are left out."""
        if not self.configs and not self.patterns:
            return {}
        defaults = {}
        for config, names in BROKER_NAMES.items():
            value = self._of_pattern(topic, config)
            if value is None:
                value = next((topic_value(n, self.configs[n.name]) for n in names if n.name in self.configs), None)
            if value is not None:
                defaults[config] = value
        return defaults

    def synonyms(self, topic: str, configs: TopicConfigs, name: str) -> list[ConfigSynonym]:
        """Return all that a config of a topic may come from, as a broker's DescribeConfigs does: the first counts."""
        explicit, by_pattern = configs.explicit.get(name), self._of_pattern(topic, name)
        values = [] if explicit is None else [ConfigSynonym(name, explicit, TOPIC_CONFIG)]
        values += [] if by_pattern is None else [ConfigSynonym(name, by_pattern, ROOT_DEFAULT)]
        names = BROKER_NAMES[name]
        for broker in names:
            if broker.name in self.configs:
                values.append(ConfigSynonym(broker.name, self.configs[broker.name], ROOT_DEFAULT))
            if broker is names[-1]:
                values.append(ConfigSynonym(broker.name, broker.default_text, DEFAULT_CONFIG))
        return values or [ConfigSynonym(name, CONFIGS[name].default_text, DEFAULT_CONFIG)]

    def rows(self) -> Iterator[DefaultRow]:
        """Yield every default of the root, set or built-in, then those of the patterns."""
        for name, setting in ROOT_SETTINGS.items():
            source = ROOT_DEFAULT if name in self.configs else DEFAULT_CONFIG
            yield DefaultRow(None, name, self.configs.get(name, setting.default_text), source, setting.default_text)
        for item in self.patterns:
            for name, value in item.configs.items():
                yield DefaultRow(item.pattern, name, value, ROOT_DEFAULT, PATTERN_SETTINGS[name].default_text)

    def partitions(self, topic: str) -> int:
        """Return how many partitions a topic gets that is created without a number."""
        return int(self._value(topic, NUM_PARTITIONS) or _PARTITIONS.default)

    def auto_create(self, topic: str) -> bool | None:
        """Return whether who writes to a topic may create it; None if that is not set."""
        value = self._value(topic, AUTO_CREATE)
        return None if value is None else value == "true"

    def expiration_ms(self) -> int | None:
        """Return after how long without use a transactional id expires; None: never."""
        value = int(self.configs.get(EXPIRATION, _EXPIRATION.default))
        return None if value < 0 else value

    def changed(
        self, changes: Mapping[str, object | None], pattern: str | None = None, *, force: bool = False
    ) -> RootDefaults:
        """Return these with some set, or taken back (None). `BadRequest` for what is not valid or needs `force`."""
        if pattern is None:
            changed = replace(self, configs=_merged(self.configs, changes, False, force))
        else:
            changed = replace(self, patterns=self._patterns(pattern, changes, force))
        of_all = replace(changed, patterns=()).of_topic("")
        for item in ({}, *(item.configs for item in changed.patterns)):
            TopicConfigs(item, of_all).check()
        return changed

    def _patterns(self, pattern: str, changes: Mapping[str, object | None], force: bool) -> tuple[PatternDefaults, ...]:
        try:
            re.compile(pattern)
        except re.error as error:
            raise BadRequest(f"'{pattern}' is not a regular expression: {error}") from None
        before = next((item.configs for item in self.patterns if item.pattern == pattern), {})
        after = PatternDefaults(pattern, _merged(before, changes, True, force))
        items = [after if item.pattern == pattern else item for item in self.patterns]
        return tuple(item for item in (items if after in items else [*items, after]) if item.configs)

    def _of_pattern(self, topic: str, name: str) -> str | None:
        values = (item.value(topic, name) for item in reversed(self.patterns))
        return next((value for value in values if value is not None), None)

    def _value(self, topic: str, name: str) -> str | None:
        value = self._of_pattern(topic, name)
        return self.configs.get(name) if value is None else value


def _merged(
    before: Mapping[str, str], changes: Mapping[str, object | None], of_pattern: bool, force: bool
) -> dict[str, str]:
    after = {**before, **{name: _kept(name, value, of_pattern, force) for name, value in changes.items()}}
    return {name: text for name, text in sorted(after.items()) if text is not None}


def _kept(name: str, value: object | None, of_pattern: bool, force: bool) -> str | None:
    """Return the text that is kept of a value, None of None; `BadRequest` if the name or the value is not valid."""
    if name == CARRIED_CONFIG:
        raise BadRequest(f"'{name}' is no default of a root: give it to each topic")
    setting = (PATTERN_SETTINGS if of_pattern else ROOT_SETTINGS).get(name)
    if setting is None:
        raise _unknown(name, of_pattern)
    if value is None:
        return None
    check_delete_delay({setting.field or name: topic_value(setting, value)}, force)
    return text_of(setting.parse(value))


def _unknown(name: str, of_pattern: bool) -> BadRequest:
    if of_pattern and name in BY_NAME:
        return BadRequest(
            f"a default of a pattern has the name of a topic config: give {BY_NAME[name].field}, found '{name}'"
        )
    if not of_pattern and BROKER_NAMES.get(name):
        return BadRequest(
            f"a default of the root has a broker's name: give {BROKER_NAMES[name][0].name}, found '{name}'"
        )
    why = kafka_name(name)
    if why is not None:
        return BadRequest(f"'{name}' is no default of a root: {why}; leave it out")
    return BadRequest(
        f"unknown default '{name}'{did_you_mean(name, PATTERN_SETTINGS if of_pattern else ROOT_SETTINGS)}"
    )


PATTERN_JSON = Document(PatternDefaults, Member("pattern", TEXT), Member("configs", texts_by_text()))
DEFAULTS_JSON = StoredDocument(
    "entry",
    RootDefaults,
    *ENTRY_MEMBERS,
    Member("configs", texts_by_text()),
    Member("patterns", objects_of(PATTERN_JSON)),
)
DEFAULTS = EntryKind(
    folder=ROOT_FOLDER,
    owner="journal",
    what="defaults",
    noun="default",
    empty=RootDefaults,
    table=DEFAULTS_JSON,
)
