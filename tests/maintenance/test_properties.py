"""Properties files with the broker names of Kafka: syntax, precedence, defaults and error messages."""

from __future__ import annotations

from pathlib import Path

import pytest

from sparklog.errors import BadRequest
from sparklog.log.state.configs import TopicConfigs
from sparklog.maintenance.properties import PROPERTIES, Property, parse_properties, settings_of
from sparklog.maintenance.work_items import Settings

SHIPPED = Path(__file__).parents[2] / "conf" / "sparklog.properties"
HOUR_MS = 3_600_000


def default_of(text: str, config: str) -> str:
    return settings_of(text, "f").configs_of("t", TopicConfigs()).text(config)


def complaint(text: str) -> str:
    with pytest.raises(BadRequest) as raised:
        settings_of(text, "conf/x.properties")
    message = str(raised.value)
    assert "\n" not in message
    return message


def test_syntax_is_that_of_java_properties() -> None:
    text = "\n".join(
        [
            "# a comment",
            "   ! another",
            "",
            "a=1",
            "  b : two words  ",
            "c\t3",
            "d = split \\",
            "    over \\",
            "    lines",
            "e\\=f=g\\:h",
            "empty",
            "even=back\\\\",
        ]
    )
    assert parse_properties(text, "f") == [
        Property(4, "a", "1"),
        Property(5, "b", "two words"),
        Property(6, "c", "3"),
        Property(7, "d", "split over lines"),
        Property(10, "e=f", "g:h"),
        Property(11, "empty", ""),
        Property(12, "even", "back\\"),
    ]


def test_empty_file_has_kafkas_defaults() -> None:
    assert settings_of("# nothing\n", "f", now_ms=5) == Settings(5)


def test_broker_names_set_topic_configs() -> None:
    pairs = {
        "log.retention.bytes=5": ("retention.bytes", "5"),
        "log.segment.bytes=1000": ("segment.bytes", "1000"),
        "log.index.size.max.bytes=400": ("segment.index.bytes", "400"),
        "log.index.interval.bytes=1": ("index.interval.bytes", "1"),
        "log.segment.delete.delay.ms=7200000": ("file.delete.delay.ms", "7200000"),
        "log.cleanup.policy=compact,delete": ("cleanup.policy", "compact,delete"),
        "log.cleaner.min.cleanable.ratio=0.25": ("min.cleanable.dirty.ratio", "0.25"),
        "log.cleaner.delete.retention.ms=9": ("delete.retention.ms", "9"),
        "log.cleaner.min.compaction.lag.ms=8": ("min.compaction.lag.ms", "8"),
        "log.cleaner.max.compaction.lag.ms=7": ("max.compaction.lag.ms", "7"),
        "log.roll.ms=6": ("segment.ms", "6"),
        "log.roll.jitter.ms=5": ("segment.jitter.ms", "5"),
        "log.retention.ms=4": ("retention.ms", "4"),
    }
    for line, (config, value) in pairs.items():
        assert default_of(line, config) == value, line
        assert TopicConfigs().text(config) != value, "the default would pass, too"


@pytest.mark.parametrize(
    ("text", "config", "value"),
    [
        ("log.retention.hours=2", "retention.ms", 2 * HOUR_MS),
        ("log.retention.hours=2\nlog.retention.minutes=3", "retention.ms", 180_000),
        ("log.retention.hours=2\nlog.retention.ms=4\nlog.retention.minutes=3", "retention.ms", 4),
        ("log.retention.minutes=-5", "retention.ms", -1),
        ("log.retention.hours=-1", "retention.ms", -1),
        ("log.roll.hours=1", "segment.ms", HOUR_MS),
        ("log.roll.hours=1\nlog.roll.ms=9", "segment.ms", 9),
        ("log.roll.jitter.hours=1", "segment.jitter.ms", HOUR_MS),
        ("log.roll.jitter.ms=0\nlog.roll.jitter.hours=1", "segment.jitter.ms", 0),
    ],
)
def test_finer_units_take_precedence(text: str, config: str, value: int) -> None:
    assert default_of(text, config) == str(value)


def test_cleaner_settings() -> None:
    text = "log.cleaner.dedupe.buffer.size=2097152\nlog.cleaner.io.buffer.load.factor=0.5\nproducer.id.expiration.ms=7"
    settings = settings_of(text, "f")
    assert (settings.dedupe_buffer_bytes, settings.dedupe_load_factor) == (2 << 20, 0.5)
    assert settings.producer_expiration_ms == 7
    assert settings.offsets_retention_ms == 7 * 24 * HOUR_MS
    assert settings_of("offsets.retention.minutes=90", "f").offsets_retention_ms == 90 * 60_000
    assert not settings.defaults


def test_topic_config_overrides_the_file() -> None:
    settings = settings_of("log.segment.bytes=1000\nlog.retention.ms=5", "f")
    configs = settings.configs_of("t", TopicConfigs.of({"segment.bytes": 2000}))
    assert (configs.segment_bytes, configs.retention_ms) == (2000, 5)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("\nlog.cleaner.min.cleanable.ration=1", ["line 2", "'log.cleaner.min.cleanable.ratio'"]),
        ("retention.ms=1", ["line 1", "topic config", "log.retention.ms"]),
        ("segment.bytes=1", ["topic config", "log.segment.bytes"]),
        ("log.cleaner.threads=4", ["has no effect", "Spark"]),
        ("delete.topic.enable=true", ["line 1: delete.topic.enable has no effect on maintenance (users who may write"]),
        ("auto.create.topics.enable=false", ["has no effect", "sparklog configs alter --root-defaults"]),
        ("min.insync.replicas=2", ["has no effect", "without brokers"]),
        ("unclean.leader.election.enable=false", ["has no effect", "without brokers"]),
        ("default.replication.factor=3", ["has no effect", "create backups"]),
        ("log.flush.interval.messages=1", ["has no effect", "durable before it is acknowledged); remove it"]),
        ("transactional.id.expiration.ms=1", ["has no effect", "configs alter --root-defaults"]),
        ("listener.name.internal.ssl.keystore.location=x", ["has no effect", "secures connections to brokers"]),
        ("log.retention.ms=0", ["at least 1, or -1", "found '0'"]),
        ("log.retention.hours=0", ["log.retention.hours", "found '0'"]),
        ("log.retention.hours=week", ["integer", "'week'"]),
        ("log.retention.hours=3000000000", ["to 2147483647"]),
        ("log.roll.ms=-1", ["log.roll.ms", "at least 1"]),
        ("log.segment.bytes=13", ["log.segment.bytes must", "from 14", "'13'"]),
        ("log.cleanup.policy=keep", ["delete, compact or both", "'keep'"]),
        ("log.cleaner.min.cleanable.ratio=2", ["log.cleaner.min.cleanable.ratio must", "from 0 to 1"]),
        ("log.cleaner.io.buffer.load.factor=1", ["below 1", "'1'"]),
        ("log.cleaner.dedupe.buffer.size=1000", ["at least 1048576"]),
        ("log.cleaner.dedupe.buffer.size=", ["integer", "''"]),
        ("\nlog.segment.delete.delay.ms=60000", ["line 2: log.segment.delete.delay.ms", "one hour", "60000"]),
        (
            "log.cleaner.min.compaction.lag.ms=9\nlog.cleaner.max.compaction.lag.ms=8",
            ["min.compaction.lag.ms (9)", "must not exceed"],
        ),
        ("log.roll.ms=5\nlog.roll.ms=6", ["line 2", "already set in line 1"]),
    ],
)
def test_error_reports_the_line_and_the_remedy(text: str, words: list[str]) -> None:
    said = complaint(text)
    assert "conf/x.properties" in said
    for word in words:
        assert word in said


def test_shipped_file_lists_all_properties_with_kafkas_defaults() -> None:
    text = SHIPPED.read_text()
    assert settings_of(text, SHIPPED.name) == Settings(0), "as shipped it changes nothing"
    # In a commented setting, the name follows the # directly; other comments have a space there.
    shown = "\n".join(line[1:] if line[:1] == "#" and line[1:2].isalpha() else "" for line in text.splitlines())
    entries = parse_properties(shown, SHIPPED.name)
    assert {entry.name for entry in entries} == PROPERTIES.keys()
    settings = settings_of(shown, SHIPPED.name)
    defaults = TopicConfigs()
    assert settings.defaults
    assert {name: defaults.text(name) for name in settings.defaults} == settings.defaults
    assert settings == Settings(0, settings.defaults)
