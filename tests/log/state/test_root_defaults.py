"""The defaults of a root as values: precedence, patterns, synonyms and errors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from sparklog.common.parsing import INT64_MAX
from sparklog.errors import BadRequest
from sparklog.log.state.broker_names import BROKER_NAMES, BY_NAME
from sparklog.log.state.configs import CONFIGS, TopicConfigs
from sparklog.log.state.root_defaults import AUTO_CREATE, DEFAULTS_JSON, ID, PatternDefaults, RootDefaults

NONE = RootDefaults(ID)
HOUR_MS = 3_600_000


def defaults(changes: Mapping[str, object | None], **patterns: Mapping[str, object]) -> RootDefaults:
    made = NONE.changed(changes)
    for pattern, configs in patterns.items():
        made = made.changed(configs, f"{pattern}.*")
    return made


def test_a_root_without_defaults_has_no_effect() -> None:
    assert NONE.of_topic("t") == {}
    assert (NONE.partitions("t"), NONE.auto_create("t")) == (1, None)


def test_every_broker_config_sets_its_topic_config() -> None:
    values = {"cleanup.policy": "compact", "compression.type": "lz4", "message.timestamp.type": "LogAppendTime"}
    values["segment.bytes"] = "20"
    for name, broker in BY_NAME.items():
        kind = {"boolean": "true", "list": "1", "double": "0.25"}.get(broker.type.name, "7")
        value = values.get(broker.field, kind)
        made = NONE.changed({name: value}, force=True)
        unit = {"ms": 1, "minutes": 60_000, "hours": HOUR_MS}.get(broker.unit, 0)
        assert made.of_topic("t") == {broker.field: str(7 * unit) if unit else value}, name


@pytest.mark.parametrize(
    ("changes", "config", "value"),
    [
        ({"log.retention.hours": 2}, "retention.ms", 2 * HOUR_MS),
        ({"log.retention.hours": 2, "log.retention.minutes": 3}, "retention.ms", 180_000),
        ({"log.retention.hours": 2, "log.retention.ms": 4}, "retention.ms", 4),
        ({"log.retention.hours": -7}, "retention.ms", -1),
        ({"log.roll.hours": 1, "log.roll.ms": 9}, "segment.ms", 9),
        ({"log.flush.scheduler.interval.ms": 5}, "flush.ms", 5),
        ({"log.flush.scheduler.interval.ms": 5, "log.flush.interval.ms": 6}, "flush.ms", 6),
    ],
)
def test_broker_configs_have_kafkas_precedence(changes: dict[str, object], config: str, value: int) -> None:
    assert defaults(changes).of_topic("t")[config] == str(value)


def test_patterns_take_precedence_and_the_last_one_applies() -> None:
    made = defaults({"log.retention.hours": 1, "num.partitions": 2}, a={"retention.ms": 5}, ab={"retention.ms": 6})
    assert [made.of_topic(name)["retention.ms"] for name in ("x", "a", "abc")] == [str(HOUR_MS), "5", "6"]
    assert made.of_topic("xa")["retention.ms"] == str(HOUR_MS), "the whole name matches, or it does not"
    of_creation = made.changed({"num.partitions": 7, AUTO_CREATE: False}, "ab.*")
    assert [of_creation.partitions(name) for name in ("x", "abc")] == [2, 7]
    assert [of_creation.auto_create(name) for name in ("x", "abc")] == [None, False]
    again = made.changed({"retention.ms": None}, "ab.*")
    assert again.patterns == (PatternDefaults("a.*", {"retention.ms": "5"}),)


def test_a_topic_config_overrides_the_root_default() -> None:
    made = defaults({"log.retention.ms": 5, "message.max.bytes": 100})
    configs = TopicConfigs({"retention.ms": "9"}, made.of_topic("t"))
    assert (configs.retention_ms, configs.max_message_bytes, configs.default("retention.ms")) == (9, 100, "5")
    sources = [configs.source(name) for name in ("retention.ms", "max.message.bytes", "segment.bytes")]
    assert sources == ["DYNAMIC_TOPIC_CONFIG", "DYNAMIC_DEFAULT_BROKER_CONFIG", "DEFAULT_CONFIG"]


def test_synonyms_list_all_values_in_order_of_precedence() -> None:
    made = defaults({"log.retention.hours": 2, "log.retention.ms": 4}, t={"retention.ms": 3})
    configs = TopicConfigs({"retention.ms": "1"}, made.of_topic("t"))
    rows = [(row.name, row.value, row.source) for row in made.synonyms("t", configs, "retention.ms")]
    assert rows == [
        ("retention.ms", "1", "DYNAMIC_TOPIC_CONFIG"),
        ("retention.ms", "3", "DYNAMIC_DEFAULT_BROKER_CONFIG"),
        ("log.retention.ms", "4", "DYNAMIC_DEFAULT_BROKER_CONFIG"),
        ("log.retention.hours", "2", "DYNAMIC_DEFAULT_BROKER_CONFIG"),
        ("log.retention.hours", "168", "DEFAULT_CONFIG"),
    ]
    for name in CONFIGS:
        (only,) = NONE.synonyms("t", TopicConfigs(), name)
        assert only.source == "DEFAULT_CONFIG"
        assert only.name == (BROKER_NAMES[name][-1].name if BROKER_NAMES[name] else name)


@pytest.mark.parametrize(
    ("changes", "pattern", "words"),
    [
        ({"log.rentention.ms": 1}, None, ["unknown default 'log.rentention.ms'", "'log.retention.ms'"]),
        ({"log.rentention.ms": None}, None, ["unknown default", "'log.retention.ms'"]),
        ({"retention.ms": 1}, None, ["names of broker configs", "set log.retention.ms"]),
        ({"log.retention.ms": 1}, "a", ["names of topic configs", "set retention.ms"]),
        ({"log.retention.ms": None}, "a", ["set retention.ms"]),
        ({"retention.mss": 1}, "a", ["unknown default", "'retention.ms'"]),
        ({"broker.id": 1}, None, ["cannot be a root default", "no brokers"]),
        ({"log.retention.ms": 0}, None, ["log.retention.ms must be", "at least 1, or -1 (never)"]),
        ({"log.retention.hours": "week"}, None, ["log.retention.hours must be", "'week'"]),
        ({"log.segment.bytes": 3}, None, ["log.segment.bytes must be", "from 14", "'3'"]),
        ({"segment.bytes": 3}, "a", ["segment.bytes must be", "'3'"]),
        ({"num.partitions": 0}, None, ["num.partitions must be", "from 1 to 100000", "'0'"]),
        ({"num.partitions": 1.5}, "a", ["num.partitions", "'1.5'"]),
        ({AUTO_CREATE: "yes"}, None, ["true or false", "'yes'"]),
        ({"retention.ms": 1}, "a(", ["'a(' is not a regular expression"]),
        ({"log.segment.delete.delay.ms": 60_000}, None, ["one hour", "60000"]),
        ({"file.delete.delay.ms": 60_000}, "a", ["one hour", "60000"]),
        ({"log.cleaner.min.compaction.lag.ms": 9, "log.cleaner.max.compaction.lag.ms": 8}, None, ["must not exceed"]),
    ],
)
def test_an_invalid_default_is_one_clear_error(
    changes: dict[str, object], pattern: str | None, words: list[str]
) -> None:
    with pytest.raises(BadRequest) as raised:
        NONE.changed(changes, pattern)
    message = str(raised.value)
    assert "\n" not in message
    assert [word for word in words if word not in message] == [], message


def test_a_contradiction_with_the_root_is_rejected_on_either_side() -> None:
    of_pattern = NONE.changed({"min.compaction.lag.ms": 9}, "a")
    with pytest.raises(BadRequest, match="must not exceed"):
        of_pattern.changed({"log.cleaner.max.compaction.lag.ms": 8})
    with pytest.raises(BadRequest, match="must not exceed"):
        NONE.changed({"log.cleaner.max.compaction.lag.ms": 8}).changed({"min.compaction.lag.ms": 9}, "a")


def test_forced_defaults_can_be_reset() -> None:
    made = NONE.changed({"log.segment.delete.delay.ms": 60_000, "log.retention.ms": INT64_MAX}, force=True)
    assert made.of_topic("t") == {"file.delete.delay.ms": "60000", "retention.ms": str(INT64_MAX)}
    assert made.changed({"log.segment.delete.delay.ms": None, "log.retention.ms": None}) == NONE
    assert NONE.changed({"log.retention.ms": None}) == NONE


def test_defaults_are_decoded_as_encoded() -> None:
    made = defaults({"num.partitions": 3}, a={"retention.ms": -1})
    assert DEFAULTS_JSON.decode(DEFAULTS_JSON.encode(replace(made, number=0)), "k").of_topic("a") == {
        "retention.ms": "-1"
    }
