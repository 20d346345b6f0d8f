"""The defaults of a root. They apply to topics that do not set a config, and have the same names as broker configs.

As in Kafka, defaults are not copied to topics, so a change applies to all topics immediately. Defaults of a pattern
apply to topics whose entire name matches the pattern. They have the same names as topic configs, and take precedence
over the defaults of the root. `num.partitions` and `auto.create.topics.enable` apply when a topic is created.
`transactional.id.expiration.ms` does not apply to topics.

Each entry of the journal `_root/defaults/_log` contains all defaults. A root without entries has no defaults.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from sparklog.common.settings import BOOLEAN, Setting, by_name, int32, or_never, to_string
from sparklog.errors import BadRequest, did_you_mean
from sparklog.log.journal.documents import TEXT, Document, Member, StoredDocument, objects_of, texts_by_text
from sparklog.log.journal.entry_log import ENTRY_MEMBERS, EntryKind, StateEntry
from sparklog.log.journal.names import MAX_PARTITIONS, ROOT_FOLDER
from sparklog.log.state.broker_names import BROKER_NAMES, BY_NAME, topic_value
from sparklog.log.state.configs import (
    CARRIED_CONFIG,
    CONFIGS,
    DEFAULT_CONFIG,
    ROOT_DEFAULT,
    TOPIC_CONFIG,
    TopicConfigs,
    check_delete_delay,
    no_effect_reason,
)

ID = "defaults"
NUM_PARTITIONS = "num.partitions"
AUTO_CREATE = "auto.create.topics.enable"
EXPIRATION = "transactional.id.expiration.ms"
_PARTITIONS = Setting(NUM_PARTITIONS, int32(1, MAX_PARTITIONS), 1, "Default number of partitions of a new topic.")
CREATION: Mapping[str, Setting] = by_name(
    [_PARTITIONS, Setting(AUTO_CREATE, BOOLEAN, None, "Whether writers create topics that do not exist.")]
)
"""Defaults that are not topic configs and apply when a topic is created."""
# Ids only expire if this default is set, because releases before 0.7 would restart an expired id from the beginning.
_EXPIRATION = Setting(
    EXPIRATION, or_never(int32(1)), -1, "Time after its last use at which a transactional id expires.", "ms",
    kafka="The default is 604800000.",
)  # fmt: skip
ROOT_SETTINGS: Mapping[str, Setting] = {**BY_NAME, **CREATION, EXPIRATION: _EXPIRATION}
"""Settings that can have a default for the root."""
PATTERN_SETTINGS: Mapping[str, Setting] = {**CONFIGS, **CREATION}
"""Settings that can have a default for a pattern."""


@dataclass(frozen=True, slots=True)
class PatternDefaults:
    """Defaults of topic configs for topics whose entire name matches a regular expression."""

    pattern: str
    configs: Mapping[str, str]

    def value(self, topic: str, name: str) -> str | None:
        return self.configs.get(name) if name in self.configs and re.fullmatch(self.pattern, topic) else None


@dataclass(frozen=True, slots=True)
class ConfigSynonym:
    """A config value, the name of the setting that contains this value, and the name of its source in Kafka."""

    name: str
    value: str
    source: str


@dataclass(frozen=True, slots=True)
class DefaultRow:
    """A default of the root or of a pattern. `default` is the built-in default."""

    pattern: str | None
    name: str
    value: str
    source: str
    default: str


@dataclass(frozen=True, slots=True)
class RootDefaults(StateEntry):
    """The defaults of a root. `configs` contains values by broker config name. If several `patterns` match a topic, the
    last pattern applies.
    """

    configs: Mapping[str, str] = field(default_factory=dict)
    patterns: tuple[PatternDefaults, ...] = ()

    def of_topic(self, topic: str) -> dict[str, str]:
        """Return the defaults of a topic by topic config, without built-in defaults."""
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
        """Return the possible values of a topic's config in order of precedence, like Kafka's DescribeConfigs."""
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
        """Yield each explicit or built-in default of the root, followed by the defaults of the patterns."""
        for name, setting in ROOT_SETTINGS.items():
            source = ROOT_DEFAULT if name in self.configs else DEFAULT_CONFIG
            yield DefaultRow(None, name, self.configs.get(name, setting.default_text), source, setting.default_text)
        for item in self.patterns:
            for name, value in item.configs.items():
                yield DefaultRow(item.pattern, name, value, ROOT_DEFAULT, PATTERN_SETTINGS[name].default_text)

    def partitions(self, topic: str) -> int:
        """Return the default number of partitions of a new topic."""
        return int(self._value(topic, NUM_PARTITIONS) or _PARTITIONS.default)

    def auto_create(self, topic: str) -> bool | None:
        """Return whether writers may create a topic, or None if this is not set."""
        value = self._value(topic, AUTO_CREATE)
        return None if value is None else value == "true"

    def expiration_ms(self) -> int | None:
        """Return the time without use after which a transactional id expires, or None if ids do not expire."""
        value = int(self.configs.get(EXPIRATION, _EXPIRATION.default))
        return None if value < 0 else value

    def changed(
        self, changes: Mapping[str, object | None], pattern: str | None = None, *, force: bool = False
    ) -> RootDefaults:
        """Return the defaults after applying changes. If a new value is None, the default is removed.

        Raises `BadRequest` if a change is invalid or needs `force`.
        """
        if pattern is None:
            changed = replace(self, configs=_merged(self.configs, changes, _root_setting, force))
        else:
            changed = replace(self, patterns=self._patterns(pattern, changes, force))
        of_all = replace(changed, patterns=()).of_topic("")
        for configs in ({}, *(item.configs for item in changed.patterns)):
            TopicConfigs(configs, of_all).check()
        return changed

    def _patterns(self, pattern: str, changes: Mapping[str, object | None], force: bool) -> tuple[PatternDefaults, ...]:
        try:
            re.compile(pattern)
        except re.error as error:
            raise BadRequest(f"'{pattern}' is not a regular expression: {error}") from None
        before = next((item.configs for item in self.patterns if item.pattern == pattern), {})
        after = PatternDefaults(pattern, _merged(before, changes, _pattern_setting, force))
        items = [after if item.pattern == pattern else item for item in self.patterns]
        return tuple(item for item in (items if after in items else [*items, after]) if item.configs)

    def _of_pattern(self, topic: str, name: str) -> str | None:
        values = (item.value(topic, name) for item in reversed(self.patterns))
        return next((value for value in values if value is not None), None)

    def _value(self, topic: str, name: str) -> str | None:
        value = self._of_pattern(topic, name)
        return self.configs.get(name) if value is None else value


def _merged(
    before: Mapping[str, str], changes: Mapping[str, object | None], setting_of: Callable[[str], Setting], force: bool
) -> dict[str, str]:
    """Apply changes to defaults, as strings. Raises `BadRequest` if a name or value is invalid."""
    after = dict(before)
    for name, value in changes.items():
        setting = setting_of(name)
        if value is None:
            after.pop(name, None)
        else:
            check_delete_delay({setting.field or name: topic_value(setting, value)}, force)
            after[name] = to_string(setting.parse(value))
    return dict(sorted(after.items()))


def _root_setting(name: str) -> Setting:
    """Return the setting of a root default. Raises `BadRequest` if the name is invalid."""
    if name != CARRIED_CONFIG and name in ROOT_SETTINGS:
        return ROOT_SETTINGS[name]
    if BROKER_NAMES.get(name):
        raise BadRequest(
            f"root defaults use the names of broker configs: set {BROKER_NAMES[name][0].name}, not '{name}'"
        )
    raise _unknown(name, ROOT_SETTINGS)


def _pattern_setting(name: str) -> Setting:
    """Return the setting of a pattern default. Raises `BadRequest` if the name is invalid."""
    if name != CARRIED_CONFIG and name in PATTERN_SETTINGS:
        return PATTERN_SETTINGS[name]
    if name in BY_NAME:
        raise BadRequest(f"pattern defaults use the names of topic configs: set {BY_NAME[name].field}, not '{name}'")
    raise _unknown(name, PATTERN_SETTINGS)


def _unknown(name: str, settings: Mapping[str, Setting]) -> BadRequest:
    if name == CARRIED_CONFIG:
        return BadRequest(f"'{name}' cannot be a root default; set it on each topic")
    why = no_effect_reason(name)
    if why is not None:
        return BadRequest(f"'{name}' cannot be a root default: {why}; remove it")
    return BadRequest(f"unknown default '{name}'{did_you_mean(name, settings)}")


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
