"""The broker configs that set the defaults of topic configs, as in Kafka's `ServerTopicConfigSynonyms`.

If a topic config has several broker configs, the first one that is set applies. Most of these broker configs differ
only in their unit (ms, minutes, hours). Configs that only Kafka 3 supports are included. Kafka does not have
`inline.records.bytes`, so its broker config has the same name. `carried.commits` has no broker config, because it
cannot be a root default.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from sparklog.common.parsing import INT64_MIN
from sparklog.common.settings import Setting, by_name, int32, int64, or_never, to_string
from sparklog.log.state.configs import CONFIGS

UNITS_MS = {"ms": 1, "minutes": 60_000, "hours": 3_600_000}
_PERIODS = {
    "retention.ms": ("log.retention", 1, ("ms", "minutes", "hours")),
    "segment.ms": ("log.roll", 1, ("ms", "hours")),
    "segment.jitter.ms": ("log.roll.jitter", 0, ("ms", "hours")),
}
"""The topic configs that have one broker config per unit. Each value contains the prefix of the names, the minimum
value, and the units.
"""
_NAMES = {
    "segment.index.bytes": "log.index.size.max.bytes",
    "flush.messages": "log.flush.interval.messages",
    "flush.ms": "log.flush.interval.ms log.flush.scheduler.interval.ms",
    "max.message.bytes": "message.max.bytes",
    "file.delete.delay.ms": "log.segment.delete.delay.ms",
    "min.cleanable.dirty.ratio": "log.cleaner.min.cleanable.ratio",
}
"""Broker config names that cannot be derived from the name of the topic config."""


def topic_value(setting: Setting, value: object) -> str:
    """Return the value of the topic config for a value of the broker config.

    Raises `BadRequest` if the value is invalid.
    """
    parsed = setting.parse(value)
    return to_string(max(parsed * UNITS_MS[setting.unit], -1) if setting.field in _PERIODS else parsed)


def _named(config: Setting) -> tuple[Setting, ...]:
    """Return the broker configs of a topic config. The last broker config in the list has the built-in default."""
    if config.name in _PERIODS:
        return tuple(_of_unit(config, unit) for unit in _PERIODS[config.name][2])
    names = (_NAMES.get(config.name) or _regular_name(config.name)).split()
    defaults = [None] * (len(names) - 1) + [config.default]
    return tuple(
        replace(config, name=name, default=default, field=config.name)
        for name, default in zip(names, defaults, strict=False)
    )


def _of_unit(config: Setting, unit: str) -> Setting:
    prefix, low, units = _PERIODS[config.name]
    kind = int64(low) if unit == "ms" else int32(low)
    default = config.default // UNITS_MS[unit] if unit == units[-1] else None
    kind = or_never(kind, INT64_MIN) if config.name == "retention.ms" else kind
    return replace(config, name=f"{prefix}.{unit}", type=kind, default=default, unit=unit, field=config.name)


def _regular_name(config: str) -> str:
    if config.startswith(("compression.", "inline.", "min.insync.", "unclean.")):
        return config
    if config.startswith(("carried.", "remote.", "leader.", "follower.")):
        return ""
    return f"log.{'cleaner.' if config.startswith(('delete.', 'min.', 'max.')) else ''}{config}"


BROKER_NAMES: Mapping[str, tuple[Setting, ...]] = {name: _named(config) for name, config in CONFIGS.items()}
"""The broker configs of each topic config, in order of precedence."""
BY_NAME: Mapping[str, Setting] = by_name(setting for settings in BROKER_NAMES.values() for setting in settings)
