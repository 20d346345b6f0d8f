"""Topic configs: Kafka's names, defaults and ranges, and what they mean here.

A topic stores only what was set on it, as canonical text; everything else is the default below. All of Kafka's topic
configs are known, so that a dump of a broker's configs can be given as it is; those that have no meaning without
brokers (`min.insync.replicas`, tiering, throttles) are checked and kept, and change nothing.

Defaults that differ from Kafka's on purpose: `file.delete.delay.ms` is one day instead of one minute (a Spark job
reads a file long after it planned to), and `compression.zstd.level` is 1 instead of 3.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from sparklog.errors import BadRequest
from sparklog.log.names import did_you_mean

INT_MAX = 2**31 - 1
LONG_MAX = 2**63 - 1
LONG_MIN = -(2**63)
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
LEAST_DELETE_DELAY_MS = 3_600_000
"""Below this, `file.delete.delay.ms` needs force: jobs that planned before a rewrite would miss their files."""


@dataclass(frozen=True, slots=True)
class ConfigDef:
    """One config: `default` as text, `valid` as a person reads it, `parse` from text (ValueError if invalid)."""

    name: str
    kind: str
    default: str
    valid: str
    doc: str
    parse: Callable[[str], object] = field(repr=False)


def _number(low: int, high: int) -> Callable[[str], object]:
    def parse(text: str) -> int:
        # Python takes `1_000` and digits of any script; whoever else reads the config would not.
        if not text.lstrip("+-").isdecimal() or not text.isascii():
            raise ValueError(text)
        value = int(text)
        if not low <= value <= high:
            raise ValueError(text)
        return value

    return parse


def _ratio(text: str) -> float:
    value = float(text)
    if not 0.0 <= value <= 1.0:
        raise ValueError(text)
    return value


def _boolean(text: str) -> bool:
    try:
        return {"true": True, "false": False}[text.lower()]
    except KeyError:
        raise ValueError(text) from None


def _choice(*values: str) -> Callable[[str], object]:
    def parse(text: str) -> str:
        if text not in values:
            raise ValueError(text)
        return text

    return parse


def _policy(text: str) -> tuple[str, ...]:
    parts = tuple(dict.fromkeys(part.strip() for part in text.split(",")))
    if not parts or any(part not in ("delete", "compact") for part in parts):
        raise ValueError(text)
    return parts


def _int(name: str, default: int, low: int, high: int, doc: str, kind: str = "int") -> ConfigDef:
    top = "" if high in (INT_MAX, LONG_MAX) else f" and at most {high}"
    valid = f"a whole number of at least {low}{top}" if low != LONG_MIN else "a whole number"
    return ConfigDef(name, kind, str(default), valid, doc, _number(low, high))


def _long(name: str, default: int, low: int, doc: str) -> ConfigDef:
    return _int(name, default, low, LONG_MAX, doc, "long")


def _bool(name: str, default: str, doc: str) -> ConfigDef:
    return ConfigDef(name, "boolean", default, "true or false", doc, _boolean)


def _one_of(name: str, default: str, values: tuple[str, ...], doc: str) -> ConfigDef:
    return ConfigDef(name, "string", default, "one of " + ", ".join(values), doc, _choice(*values))


def _text(name: str, doc: str) -> ConfigDef:
    return ConfigDef(name, "list", "", "any text", doc, str)


_BROKERS = "means nothing without brokers; kept"
_ALL = (
    ConfigDef(
        "cleanup.policy",
        "list",
        "delete",
        "delete, compact or both",
        "expire segments, keep the latest of each key",
        _policy,
    ),
    _one_of(
        "compression.type",
        "producer",
        ("producer", "uncompressed", "gzip", "snappy", "lz4", "zstd"),
        "codec of appended batches; producer: what the writer's option says",
    ),
    ConfigDef(
        "compression.gzip.level",
        "int",
        "-1",
        "1 to 9, or -1",
        "gzip level, -1: zlib's default",
        lambda text: _number(-1, -1)(text) if text.strip() == "-1" else _number(1, 9)(text),
    ),
    _int("compression.lz4.level", 9, 1, 17, "lz4 level"),
    _int("compression.zstd.level", 1, -131072, 22, "zstd level"),
    _int("segment.bytes", 1 << 30, 14, INT_MAX, "size at which a sealed segment is full"),
    _long("segment.ms", 604_800_000, 1, "age at which a segment is closed though not full"),
    _long("segment.jitter.ms", 0, 0, "random part taken off segment.ms"),
    _int("segment.index.bytes", 10 << 20, 4, INT_MAX, "size at which a segment's index is full"),
    _int("index.interval.bytes", 4096, 0, INT_MAX, "bytes of log between index entries"),
    _long("retention.ms", 604_800_000, -1, "age at which segments expire, -1: never"),
    _long("retention.bytes", -1, LONG_MIN, "size of a partition above which old segments expire, negative: no limit"),
    _long("file.delete.delay.ms", 86_400_000, 0, "how long files stay after nothing names them any more"),
    _long("delete.retention.ms", 86_400_000, 0, "how long compaction keeps tombstones"),
    _long("min.compaction.lag.ms", 0, 0, "age below which a record is not compacted"),
    _long("max.compaction.lag.ms", LONG_MAX, 1, "age above which a partition is compacted whatever its dirty ratio"),
    ConfigDef(
        "min.cleanable.dirty.ratio",
        "double",
        "0.5",
        "a number from 0 to 1",
        "share of dirty bytes that makes compaction due",
        _ratio,
    ),
    _int("max.message.bytes", 1_048_588, 0, INT_MAX, "largest batch, header included, after compression"),
    _one_of(
        "message.timestamp.type",
        "CreateTime",
        ("CreateTime", "LogAppendTime"),
        "whose clock gives a record its timestamp",
    ),
    _long("message.timestamp.before.max.ms", LONG_MAX, 0, "how far a record's timestamp may lie in the past"),
    _long("message.timestamp.after.max.ms", LONG_MAX, 0, "how far a record's timestamp may lie in the future"),
    _long("message.timestamp.difference.max.ms", LONG_MAX, 0, "old name of both bounds, used where they are not set"),
    _text("message.format.version", "ignored: record batches are always written as magic 2"),
    _bool("message.downconversion.enable", "true", _BROKERS),
    _bool("preallocate", "false", _BROKERS),
    _long("flush.messages", LONG_MAX, 1, "every commit is durable; kept"),
    _long("flush.ms", LONG_MAX, 0, "every commit is durable; kept"),
    _int("min.insync.replicas", 1, 1, INT_MAX, _BROKERS),
    _bool("unclean.leader.election.enable", "false", _BROKERS),
    _bool("remote.storage.enable", "false", _BROKERS),
    _bool("remote.log.copy.disable", "false", _BROKERS),
    _bool("remote.log.delete.on.disable", "false", _BROKERS),
    _long("local.retention.ms", -2, -2, _BROKERS),
    _long("local.retention.bytes", -2, -2, _BROKERS),
    _text("leader.replication.throttled.replicas", _BROKERS),
    _text("follower.replication.throttled.replicas", _BROKERS),
)
CONFIGS: Mapping[str, ConfigDef] = {definition.name: definition for definition in _ALL}


def definition(name: str) -> ConfigDef:
    """What is known of a config; `BadRequest` with the nearest name if there is none of this name."""
    try:
        return CONFIGS[name]
    except KeyError:
        raise BadRequest(f"unknown topic config '{name}'{did_you_mean(name, CONFIGS)}") from None


def canonical(name: str, value: object) -> str:
    """The text under which a topic stores this value; `BadRequest` if the name or the value is not valid."""
    known = definition(name)
    text = str(value).lower() if isinstance(value, bool) else str(value).strip()
    try:
        parsed = known.parse(text)
    except ValueError:
        raise BadRequest(f"config {name} must be {known.valid}, found '{text}'") from None
    if isinstance(parsed, bool):
        return str(parsed).lower()
    if isinstance(parsed, tuple):
        return ",".join(parsed)
    return str(parsed)


@dataclass(frozen=True, slots=True)
class TopicConfigs:
    """A topic's configs: what was set on it (`explicit`, canonical text) over the defaults. Values come out typed."""

    explicit: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, values: Mapping[str, object] | None) -> TopicConfigs:
        """From what a user gave; `BadRequest` for an unknown name, an invalid value or a contradiction."""
        configs = cls({name: canonical(name, value) for name, value in sorted((values or {}).items())})
        configs.check()
        return configs

    def changed(self, changes: Mapping[str, object | None]) -> TopicConfigs:
        """With these set (None: back to the default); checked as a whole."""
        merged: dict[str, str] = dict(self.explicit)
        for name, value in changes.items():
            if value is None:
                definition(name)
                merged.pop(name, None)
            else:
                merged[name] = canonical(name, value)
        configs = TopicConfigs(dict(sorted(merged.items())))
        configs.check()
        return configs

    def check(self) -> None:
        """Rules over several configs."""
        if self.min_compaction_lag_ms > self.max_compaction_lag_ms:
            raise BadRequest(
                f"min.compaction.lag.ms ({self.min_compaction_lag_ms}) must not exceed "
                f"max.compaction.lag.ms ({self.max_compaction_lag_ms})"
            )

    def text(self, name: str) -> str:
        """The value as text, set or default."""
        return self.explicit.get(name, definition(name).default)

    def value(self, name: str) -> object:
        """The value as its type: int, float, bool, str, or a tuple for cleanup.policy."""
        return definition(name).parse(self.text(name))

    def integer(self, name: str) -> int:
        """The value of an int or long config."""
        return int(self.text(name))

    def source(self, name: str) -> str:
        """Where the value comes from: `topic` or `default`."""
        return "topic" if name in self.explicit else "default"

    @property
    def cleanup_policy(self) -> tuple[str, ...]:
        return _policy(self.text("cleanup.policy"))

    @property
    def is_compacted(self) -> bool:
        return "compact" in self.cleanup_policy

    @property
    def is_deleting(self) -> bool:
        return "delete" in self.cleanup_policy

    @property
    def compression_type(self) -> str:
        return self.text("compression.type")

    @property
    def max_message_bytes(self) -> int:
        return self.integer("max.message.bytes")

    @property
    def log_append_time(self) -> bool:
        return self.text("message.timestamp.type") == "LogAppendTime"

    @property
    def timestamp_before_max_ms(self) -> int:
        return self._bound("message.timestamp.before.max.ms")

    @property
    def timestamp_after_max_ms(self) -> int:
        return self._bound("message.timestamp.after.max.ms")

    @property
    def index_interval_bytes(self) -> int:
        return self.integer("index.interval.bytes")

    @property
    def segment_bytes(self) -> int:
        return self.integer("segment.bytes")

    @property
    def retention_ms(self) -> int:
        return self.integer("retention.ms")

    @property
    def retention_bytes(self) -> int:
        return self.integer("retention.bytes")

    @property
    def file_delete_delay_ms(self) -> int:
        return self.integer("file.delete.delay.ms")

    @property
    def min_compaction_lag_ms(self) -> int:
        return self.integer("min.compaction.lag.ms")

    @property
    def max_compaction_lag_ms(self) -> int:
        return self.integer("max.compaction.lag.ms")

    def codec(self, option: str | None = None) -> str:
        """The codec to write with: a concrete topic codec wins, `producer` takes the writer's option (default zstd)."""
        if self.compression_type == "producer":
            return option or "zstd"
        return "none" if self.compression_type == "uncompressed" else self.compression_type

    def level(self, codec: str, option: int | None = None) -> int | None:
        """The compression level for `codec`: the writer's option, else the topic's; None where the codec has none."""
        if option is not None:
            return option
        return self.integer(f"compression.{codec}.level") if codec in ("gzip", "lz4", "zstd") else None

    def _bound(self, name: str) -> int:
        value = self.integer(name)
        return self.integer("message.timestamp.difference.max.ms") if value == LONG_MAX else value


def check_delete_delay(changes: Mapping[str, object | None], force: bool) -> None:
    """`BadRequest` for a `file.delete.delay.ms` below one hour, unless forced."""
    value = changes.get("file.delete.delay.ms")
    if value is not None and not force and int(canonical("file.delete.delay.ms", value)) < LEAST_DELETE_DELAY_MS:
        raise BadRequest(
            f"file.delete.delay.ms below {LEAST_DELETE_DELAY_MS} (one hour) takes files away from "
            "jobs that planned to read "
            f"them, found {value}; raise it, or force it"
        )
