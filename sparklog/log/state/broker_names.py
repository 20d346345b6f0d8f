"""A broker's names of the defaults of topic configs, as in Kafka's `ServerTopicConfigSynonyms`.

Of several names of one config the first that is set counts; most have a unit of their own then (ms, minutes, hours).
Names that only Kafka 3 has are there, too. `inline.records.bytes`, which Kafka does not have, keeps its name, and
`carried.commits` has none: a root has no default of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sparklog.common.parsing import INT32_MAX, INT64_MAX, INT64_MIN, whole_number, whole_range
from sparklog.errors import BadRequest
from sparklog.log.state.configs import CONFIGS, ConfigDef, canonical

UNITS = {"ms": 1, "minutes": 60_000, "hours": 3_600_000}
RETENTION = "retention.ms"
_LEAST = {RETENTION: INT64_MIN, "segment.ms": 1}
"""Smallest numbers of configs whose names have units; of others 0. Below 0 retention means never, and 0 is refused."""


@dataclass(frozen=True, slots=True)
class BrokerName:
    """One name of the default of a topic config. `unit` is empty where a value means what it means on a topic."""

    name: str
    config: str
    unit: str = ""

    @property
    def definition(self) -> ConfigDef:
        return CONFIGS[self.config]

    @property
    def kind(self) -> str:
        """Kafka's type."""
        return ("long" if self.unit == "ms" else "int") if self.unit else self.definition.kind

    @property
    def valid(self) -> str:
        if not self.unit:
            return self.definition.valid
        if self.config == RETENTION:
            return "a whole number but 0, below 0: never"
        return whole_range(_LEAST.get(self.config, 0))

    @property
    def default(self) -> str:
        """The default under this name; empty where another name of the config has it."""
        if self != BROKER_NAMES[self.config][-1]:
            return ""
        value = self.definition.default
        return str(int(value) // UNITS[self.unit]) if self.unit else value

    def topic_value(self, text: str) -> str:
        """Return the value of the topic config that this text is; `BadRequest` if it is not valid."""
        try:
            if not self.unit:
                return canonical(self.config, text)
            value = self._number(text.strip())
            never = self.config == RETENTION and value < 0
            return canonical(self.config, -1 if never else value * UNITS[self.unit])
        except BadRequest as error:
            raise BadRequest(str(error).replace(f"config {self.config} must", f"{self.name} must")) from None

    def _number(self, text: str) -> int:
        low = _LEAST.get(self.config, 0)
        high, most = (INT64_MAX, "") if self.unit == "ms" else (INT32_MAX, f" and at most {INT32_MAX}")
        try:
            value = whole_number(text, low, high)
        except ValueError:
            raise BadRequest(f"{self.name} must be {whole_range(low)}{most}, found '{text}'") from None
        if self.config == RETENTION and value == 0:
            raise BadRequest(f"{self.name} must be at least 1, or -1 for records that never expire; found 0")
        return value


def _named(config: str) -> tuple[BrokerName, ...]:
    units = {"retention.ms": "log.retention", "segment.ms": "log.roll", "segment.jitter.ms": "log.roll.jitter"}
    if config in units:
        return tuple(
            BrokerName(f"{units[config]}.{unit}", config, unit)
            for unit in UNITS
            if config == RETENTION or unit != "minutes"
        )
    names = {
        "segment.index.bytes": "log.index.size.max.bytes",
        "flush.messages": "log.flush.interval.messages",
        "flush.ms": "log.flush.interval.ms log.flush.scheduler.interval.ms",
        "max.message.bytes": "message.max.bytes",
        "file.delete.delay.ms": "log.segment.delete.delay.ms",
        "min.cleanable.dirty.ratio": "log.cleaner.min.cleanable.ratio",
    }
    if config in names:
        return tuple(BrokerName(name, config) for name in names[config].split())
    if config.startswith(("compression.", "inline.", "min.insync.", "unclean.")):
        return (BrokerName(config, config),)
    if config.startswith(("carried.", "remote.", "leader.", "follower.")):
        return ()
    cleaner = "cleaner." if config.startswith(("delete.", "min.", "max.")) else ""
    return (BrokerName(f"log.{cleaner}{config}", config),)


BROKER_NAMES: Mapping[str, tuple[BrokerName, ...]] = {config: _named(config) for config in CONFIGS}
"""Topic config -> its names on a broker, those that count first in front."""
BY_NAME: Mapping[str, BrokerName] = {name.name: name for names in BROKER_NAMES.values() for name in names}
