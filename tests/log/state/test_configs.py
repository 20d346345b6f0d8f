"""Topic configs: Kafka's names, defaults and ranges."""

from __future__ import annotations

import pytest

from sparklog.errors import BadRequest
from sparklog.log.state.configs import CONFIGS, TopicConfigs, canonical


def test_defaults_are_kafkas_except_two() -> None:
    configs = TopicConfigs()
    assert configs.cleanup_policy == ("delete",)
    assert configs.is_deleting
    assert not configs.is_compacted
    assert configs.max_message_bytes == 1_048_588
    assert configs.retention_ms == 604_800_000
    assert configs.segment_bytes == 1 << 30
    assert configs.value("min.cleanable.dirty.ratio") == 0.5
    assert configs.file_delete_delay_ms == 86_400_000
    assert configs.integer("compression.zstd.level") == 1
    assert configs.source("retention.ms") == "DEFAULT_CONFIG"


def test_every_default_is_valid_and_canonical() -> None:
    for name, definition in CONFIGS.items():
        assert canonical(name, definition.default) == definition.default_text
        assert definition.doc


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("retention.ms", -1, "-1"),
        ("retention.ms", " 5 ", "5"),
        ("cleanup.policy", "compact, delete", "compact,delete"),
        ("cleanup.policy", "compact", "compact"),
        ("preallocate", True, "true"),
        ("preallocate", "TRUE", "true"),
        ("min.cleanable.dirty.ratio", "1", "1.0"),
        ("compression.gzip.level", 9, "9"),
        ("compression.zstd.level", -131072, "-131072"),
        ("segment.bytes", 14, "14"),
    ],
)
def test_valid_values(name: str, value: object, text: str) -> None:
    configs = TopicConfigs.of({name: value})
    assert configs.text(name) == text
    assert configs.source(name) == "DYNAMIC_TOPIC_CONFIG"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("retention.ms", "abc"),
        ("retention.ms", -2),
        ("retention.ms", 2**63),
        ("retention.ms", "1e3"),
        ("retention.ms", "1_000"),
        ("retention.ms", ""),
        ("segment.bytes", 13),
        ("segment.bytes", 2**31),
        ("cleanup.policy", "Compact"),
        ("cleanup.policy", ""),
        ("cleanup.policy", "delete,"),
        ("compression.type", "none"),
        ("compression.gzip.level", 0),
        ("compression.lz4.level", 18),
        ("min.cleanable.dirty.ratio", "1.1"),
        ("min.cleanable.dirty.ratio", "nan"),
        ("preallocate", "yes"),
        ("message.timestamp.type", "createtime"),
    ],
)
def test_invalid_values(name: str, value: object) -> None:
    with pytest.raises(BadRequest, match=f"^{name} must be .*, found '") as error:
        TopicConfigs.of({name: value})
    assert "\n" not in str(error.value)


def test_an_error_describes_the_valid_values() -> None:
    with pytest.raises(BadRequest) as error:
        TopicConfigs.of({"retention.ms": "abc"})
    assert str(error.value) == "retention.ms must be an integer of at least -1, found 'abc'"


def test_an_unknown_name_suggests_the_nearest() -> None:
    with pytest.raises(BadRequest, match=r"^unknown topic config 'retention.mss'; did you mean 'retention.ms'\?$"):
        TopicConfigs.of({"retention.mss": 1})
    with pytest.raises(BadRequest, match=r"^unknown topic config 'zzzzzz'$"):
        TopicConfigs().changed({"zzzzzz": None})


@pytest.mark.parametrize("name", ["log.flush.interval.messages", "transactional.id.expiration.ms", "sasl.mechanism"])
def test_an_error_for_a_kafka_setting_describes_the_replacement(name: str) -> None:
    with pytest.raises(BadRequest) as caught:
        TopicConfigs.of({name: "1"})
    assert str(caught.value).startswith(f"'{name}' is not a topic config: ")
    assert "did you mean" not in str(caught.value)


def test_contradicting_configs_are_rejected() -> None:
    with pytest.raises(BadRequest, match=r"min.compaction.lag.ms \(10\) must not exceed max.compaction.lag.ms \(5\)"):
        TopicConfigs.of({"min.compaction.lag.ms": 10, "max.compaction.lag.ms": 5})


def test_changes_are_applied_to_explicit_configs() -> None:
    configs = TopicConfigs.of({"retention.ms": 5, "segment.bytes": 100})
    changed = configs.changed({"retention.ms": None, "cleanup.policy": "compact"})
    assert dict(changed.explicit) == {"cleanup.policy": "compact", "segment.bytes": "100"}
    assert configs.retention_ms == 5


def test_codecs_and_levels() -> None:
    assert TopicConfigs().codec() == "zstd"
    assert TopicConfigs().codec("lz4") == "lz4"
    assert TopicConfigs.of({"compression.type": "gzip"}).codec("lz4") == "gzip"
    assert TopicConfigs.of({"compression.type": "uncompressed"}).codec("lz4") == "none"
    assert TopicConfigs().level("zstd") == 1
    assert TopicConfigs().level("zstd", 7) == 7
    assert TopicConfigs().level("snappy") is None
    assert TopicConfigs().level("gzip") == -1


def test_the_former_config_sets_both_timestamp_limits() -> None:
    both = TopicConfigs.of({"message.timestamp.difference.max.ms": 7, "message.timestamp.before.max.ms": 3})
    assert (both.timestamp_before_max_ms, both.timestamp_after_max_ms) == (3, 7)
    assert TopicConfigs().timestamp_after_max_ms == 2**63 - 1
