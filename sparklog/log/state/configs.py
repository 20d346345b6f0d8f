"""Topic configs.

Values set on a topic (`TopicConfigs`) override root defaults, which override the defaults in `CONFIGS`. All topic
configs of Kafka 3 and 4 are accepted, so that the configs exported from a broker can be used without changes. Configs
that have no effect in sparklog (`min.insync.replicas`, tiering, throttles) are validated and stored. If a default or a
range differs from Kafka 4.1's `LogConfig`, the `kafka` field describes the difference and its reason. `sparklog configs
docs` and docs/reference/configs.md show this table. The error for another Kafka setting describes its replacement.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from sparklog.common.parsing import INT64_MAX, INT64_MIN, parse_integer
from sparklog.common.settings import (
    BOOLEAN,
    LIST,
    SHARE,
    Setting,
    ValueType,
    by_name,
    int32,
    int64,
    one_of,
    to_string,
)
from sparklog.errors import BadRequest, did_you_mean

SECURITY = (
    "it secures connections to brokers, and a root has no brokers; file permissions control who may read and write"
)
_FLUSH = "every commit is durable before it is acknowledged"
_NO_REPLICAS = "there are no replicas"
_BACKUPS = _NO_REPLICAS + "; create backups with `sparklog backup`"
_SESSION = "each group member sets kafka.session.timeout.ms"
# The settings that have no effect, by reason.
_NO_EFFECT_REASONS = {
    SECURITY: "authorizer.class.name",
    "there are no brokers": "broker.id node.id num.io.threads num.network.threads process.roles broker.rack "
    "background.threads queued.max.requests broker.id.generation.enable reserved.broker.max.id request.timeout.ms "
    "auto.leader.rebalance.enable controlled.shutdown. leader.imbalance. controller. metadata.log. broker.session. "
    "broker.heartbeat. initial.broker. purgatory. fetch.purgatory. producer.purgatory. quota. quota.window. metric. "
    "metrics. client.quota. delegation.token. remote.log. max.connections max.connections. connections.",
    "there are no brokers to connect to": "listeners advertised.listeners inter.broker.listener.name "
    "controller.listener.names listener.security.protocol.map controller.quorum.bootstrap.servers "
    "controller.quorum.voters socket.send.buffer.bytes socket.receive.buffer.bytes socket.request.max.bytes "
    "port host.name advertised.port advertised.host.name socket.",
    "specify the location of the root": "zookeeper. log.dir log.dirs",
    "remove `sparklog compact` from the schedule, or run it with --seal-only": "log.cleaner.enable",
    "each partition is one Spark task; change the number of Spark cores": "log.cleaner.threads",
    "the schedule determines how often `sparklog compact` runs": "log.cleaner.backoff.ms",
    "the schedule determines how often `sparklog retain` runs": "log.retention.check.interval.ms",
    "the buffers of tasks have a fixed size": "log.cleaner.io.buffer.size",
    "users who may write to the directory may delete topics": "delete.topic.enable",
    "roots are opened without recovery": "num.recovery.threads.per.data.dir",
    "there are no share groups": "share.coordinator.state.topic.replication.factor "
    "share.coordinator.state.topic.min.isr",
    _NO_REPLICAS: "replica. "
    "num.replica.fetchers num.standby.replicas replica.lag.time.max.ms transaction.state.log.min.isr",
    _BACKUPS: "default.replication.factor offsets.topic.replication.factor replication.factor "
    "transaction.state.log.replication.factor",
    "there are no replicas to wait for, and " + _FLUSH: "acks request.required.acks",
    _FLUSH: "log.flush.interval.messages log.flush.interval.ms log.flush.scheduler.interval.ms "
    "log.flush.offset.checkpoint.interval.ms",
    "the delay is fixed (100 ms in sparklog serve, otherwise 0)": "group.initial.rebalance.delay.ms",
    _SESSION: "group.min.session.timeout.ms",
    _SESSION + " (at most one day)": "group.max.session.timeout.ms",
    "each group has its own journal": "offsets.topic.num.partitions",
    "each transactional id has its own journal": "transaction.state.log.num.partitions",
    "the maximum transaction.timeout.ms is one day": "transaction.max.timeout.ms",
    "it is a root default; set it with sparklog configs alter --root-defaults": "transactional.id.expiration.ms",
    "streaming queries with a checkpoint write each record exactly once": "processing.guarantee",
    "set kafka.group.id for a consumer group, and txnAppId for a writer": "application.id",
    "there is only one type of producer": "producer.type",
    "set checkpointLocation in Spark": "state.dir",
    "change the number of Spark cores": "num.stream.threads",
}
_NAMES = {name: reason for reason, names in _NO_EFFECT_REASONS.items() for name in names.split()}
_PREFIXES = tuple(name for name in _NAMES if name.endswith("."))


def is_security(name: str) -> bool:
    """Return True if a setting secures connections. The prefix `kafka.` or the prefix of a listener is optional."""
    plain = name.lower().removeprefix("kafka.")
    if plain.startswith("listener.name."):
        plain = plain.split(".", 3)[-1]
    return plain.startswith(("security.", "sasl.", "ssl."))


def no_effect_reason(name: str) -> str | None:
    """Return why a Kafka setting has no effect, or None for other names. The prefix `kafka.` is optional."""
    if is_security(name):
        return SECURITY
    plain = name.lower().removeprefix("kafka.")
    prefix = next((known for known in _PREFIXES if plain.startswith(known)), "")
    return _NAMES.get(plain, _NAMES.get(prefix))


INLINE_CONFIG = "inline.records.bytes"
CARRIED_CONFIG = "carried.commits"

WRITERS = "writers"
COMPACT = "sparklog compact"
RETAIN = "sparklog retain"
IMPORTS = "imports"
EXPORTS = "exports"


def policy(text: str) -> tuple[str, ...]:
    """Return the distinct parts of a cleanup.policy. Raises ValueError if a part is neither delete nor compact."""
    parts = tuple(dict.fromkeys(part.strip() for part in text.split(",")))
    if not parts or any(part not in ("delete", "compact") for part in parts):
        raise ValueError(text)
    return parts


_POLICY = ValueType("delete, compact or both", parse=policy, name="list")
_CODEC = one_of(
    *("producer", "uncompressed", "gzip", "snappy", "lz4", "zstd"),
    hints={"none": "use uncompressed for a topic without compression"},
)
_GZIP_LEVEL = ValueType(
    "1 to 9, or -1", parse=lambda text: -1 if text == "-1" else parse_integer(text, 1, 9), name="int"
)
_BROKERS = "Has no effect, because sparklog has no brokers. The value is validated, stored and exported."
_DURABLE = (
    "Has no effect, because every commit is durable before it is acknowledged. The value is validated, stored and"
    " exported."
)
_REMOVED = "Not in Kafka 4. Accepted for topics of older brokers."
_ALL = (
    Setting("cleanup.policy", _POLICY, "delete",
            "How old records are removed. `delete` expires segments by age and size. `compact` retains only the "
            "latest record of each key. `compact,delete` does both.", "", (WRITERS, COMPACT, RETAIN)),
    Setting("compression.type", _CODEC, "producer",
            "Compression codec of appended batches. If set to `producer`, the writer's option `compression.type` is "
            "used, which defaults to zstd. Any other value overrides the writer's option.", "", (WRITERS,)),
    Setting(INLINE_CONFIG, int32(0, 1 << 20), 128 << 10,
            "Maximum size of the encoded records of a commit that are stored inline, in the commit object itself. If "
            "set to 0, records are never stored inline. Each Spark task may contribute up to an eighth of this "
            "size, but at least 16384 bytes. Releases before 0.4 reject topics that were created with a value above "
            "0, or on which such a value was set. Topics that were created by older releases do not use inline "
            "records until this config is set.", "bytes", (WRITERS,),
            "Not in Kafka, because a Kafka log has no commits."),
    Setting(CARRIED_CONFIG, int32(0, 127), 127,
            "Maximum number of earlier commits that are copied into each commit, so that opening a topic in a bucket "
            "takes few reads. If set to 0, no commits are copied. Releases before 0.9 reject topics that were "
            "created with a value above 0, or on which such a value was set. Topics that were created by older "
            "releases do not use copies until this config is set.", "commits", (WRITERS,),
            "Not in Kafka, because a Kafka log has no commits."),
    Setting("compression.gzip.level", _GZIP_LEVEL, -1,
            "Compression level for gzip. The value -1 selects the default level of zlib (6), or of isal if isal is "
            "installed.",
            "", (WRITERS,)),
    Setting("compression.lz4.level", int32(1, 17), 9,
            "Compression level for lz4.", "", (WRITERS,)),
    Setting("compression.zstd.level", int32(-131072, 22), 1,
            "Compression level for zstd.", "", (WRITERS,),
                "The default is 3. Level 1 is much faster and compresses almost as well."),
    Setting("segment.bytes", int32(14), 1 << 30,
            "Size at which a segment is full and is sealed. Retention and compaction always process entire segments.",
            "bytes", (COMPACT, RETAIN, EXPORTS),
            "The minimum is 1048576, because a broker keeps the files of each segment open."),
    Setting("segment.ms", int64(1), 604_800_000,
            "Age of a segment's first record at which the segment is closed even if it is not full. A segment must "
            "be closed before it can expire or be compacted.", "ms", (COMPACT, RETAIN)),
    Setting("segment.jitter.ms", int64(0), 0,
            "Maximum random jitter that is subtracted from segment.ms for each segment, so that segments are not all "
            "closed at the same time.", "ms", (COMPACT, RETAIN)),
    Setting("segment.index.bytes", int32(4), 10 << 20,
            "Size of the offset index of a segment, at 8 bytes per entry, at which the segment is full.",
            "bytes", (COMPACT, EXPORTS)),
    Setting("index.interval.bytes", int32(0), 4096,
            "Number of bytes of the log between two index entries of a sealed segment.",
            "bytes", (COMPACT, IMPORTS, EXPORTS)),
    Setting("retention.ms", int64(-1), 604_800_000,
            "Age above which a segment expires. The age is measured from the largest record timestamp of the "
            "segment. If set to -1, there is no limit. Applies only if cleanup.policy contains `delete`.",
            "ms", (RETAIN,)),
    Setting("retention.bytes", int64(INT64_MIN), -1,
            "Size of a partition above which its oldest segments expire. If set to a negative value, there is no "
            "limit. Applies only if cleanup.policy contains `delete`.",
            "bytes", (RETAIN,)),
    Setting("file.delete.delay.ms", int64(0), 86_400_000,
            "Time to wait before a file that is no longer referenced is deleted. A value below one hour (3600000) "
            "requires force, because files could be deleted while running jobs need them.", "ms", (RETAIN,),
            "The default is 60000. A Spark job may read a file long after the job was planned."),
    Setting("delete.retention.ms", int64(0), 86_400_000,
            "Time for which compaction retains a tombstone (a key with a null value) after the first pass that reads "
            "the tombstone.",
            "ms", (COMPACT,)),
    Setting("min.compaction.lag.ms", int64(0), 0,
            "Minimum age of a record before it can be compacted.", "ms", (COMPACT,)),
    Setting("max.compaction.lag.ms", int64(1), INT64_MAX,
            "Age of a partition's oldest dirty record above which the partition is compacted regardless of its dirty "
            "ratio. Must be at least min.compaction.lag.ms.", "ms", (COMPACT, RETAIN)),
    Setting("min.cleanable.dirty.ratio", SHARE, 0.5,
            "Ratio of dirty bytes above which a partition is compacted.", "", (COMPACT,)),
    Setting("max.message.bytes", int32(0), 1_048_588,
            "Maximum size of a batch after compression, including the batch header. Writers split larger batches. A "
            "single record that does not fit into a batch is an error.", "bytes", (WRITERS,)),
    Setting("message.timestamp.type", one_of("CreateTime", "LogAppendTime"), "CreateTime",
            "Timestamp of a record. `CreateTime` is the time of the writer (or the value of the column `timestamp`), "
            "and `LogAppendTime` is the time of the commit.", "", (WRITERS,)),
    Setting("message.timestamp.before.max.ms", int64(0), INT64_MAX,
            "Maximum time by which a record timestamp may be earlier than the clock of the task that writes the "
            "record. Applies only to `CreateTime`.", "ms", (WRITERS,)),
    Setting("message.timestamp.after.max.ms", int64(0), INT64_MAX,
            "Maximum time by which a record timestamp may be later than the clock of the task that writes the "
            "record. Applies only to `CreateTime`.", "ms", (WRITERS,),
            "The default is 3600000 (one hour). In sparklog, timestamps often come with the data, and are "
            "compared with the clock of a task instead of a broker."),
    Setting("message.timestamp.difference.max.ms", int64(0), INT64_MAX,
            "Old name of message.timestamp.before.max.ms and message.timestamp.after.max.ms. The value applies to "
            "each of these configs that is not set.", "ms", (WRITERS,), _REMOVED),
    Setting("message.format.version", LIST, "",
            "Has no effect, because record batches are always written with magic 2.", "", (), _REMOVED),
    Setting("message.downconversion.enable", BOOLEAN, True, _BROKERS, "", (), _REMOVED),
    Setting("preallocate", BOOLEAN, False, _BROKERS),
    Setting("flush.messages", int64(1), INT64_MAX, _DURABLE, "records"),
    Setting("flush.ms", int64(0), INT64_MAX, _DURABLE, "ms"),
    Setting("min.insync.replicas", int32(1), 1, _BROKERS),
    Setting("unclean.leader.election.enable", BOOLEAN, False, _BROKERS),
    Setting("remote.storage.enable", BOOLEAN, False, _BROKERS),
    Setting("remote.log.copy.disable", BOOLEAN, False, _BROKERS),
    Setting("remote.log.delete.on.disable", BOOLEAN, False, _BROKERS),
    Setting("local.retention.ms", int64(-2), -2, _BROKERS, "ms"),
    Setting("local.retention.bytes", int64(-2), -2, _BROKERS, "bytes"),
    Setting("leader.replication.throttled.replicas", LIST, "", _BROKERS),
    Setting("follower.replication.throttled.replicas", LIST, "", _BROKERS),
)  # fmt: skip
CONFIGS: Mapping[str, Setting] = by_name(_ALL)
_DEFAULTS = {name: setting.default_text for name, setting in CONFIGS.items()}


def definition(name: str) -> Setting:
    try:
        return CONFIGS[name]
    except KeyError:
        why = no_effect_reason(name)
        if why is not None:
            raise BadRequest(f"'{name}' is not a topic config: {why}; omit it") from None
        raise BadRequest(f"unknown topic config '{name}'{did_you_mean(name, CONFIGS)}") from None


def canonical(name: str, value: object) -> str:
    """Return the canonical string that a topic stores for this value. Raises `BadRequest` if the name or value is
    invalid.
    """
    return to_string(definition(name).parse(value))


TOPIC_CONFIG = "DYNAMIC_TOPIC_CONFIG"
ROOT_DEFAULT = "DYNAMIC_DEFAULT_BROKER_CONFIG"
DEFAULT_CONFIG = "DEFAULT_CONFIG"

MIN_DELETE_DELAY_MS = 3_600_000
"""The minimum `file.delete.delay.ms` without force. Running jobs could fail to find their files if the delay were
shorter.
"""


class _Integer:
    """A descriptor that returns the value of an int or long config.

    The value is cached under the config's name after the first access. Simulations replace the class attribute. Unlike
    with `cached_property`, the replacement takes effect immediately.
    """

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, configs: TopicConfigs, _: type[TopicConfigs]) -> int:
        values: dict[str, int] = configs.__dict__
        value = values.get(self._name)
        if value is None:
            value = values[self._name] = configs.integer(self._name)
        return value


@dataclass(frozen=True)
class TopicConfigs:
    """A topic's configs: the values set on the topic (`explicit`, canonical strings) and the defaults.

    `defaults` are the root defaults. The root defaults are read once per open handle or run, and are not part of a
    topic's state. Values that every append needs are cached, because parsing the strings is expensive.
    """

    explicit: Mapping[str, str] = field(default_factory=dict)
    defaults: Mapping[str, str] = field(default_factory=dict, compare=False)

    max_message_bytes = _Integer("max.message.bytes")
    inline_records_bytes = _Integer(INLINE_CONFIG)
    carried_commits = _Integer(CARRIED_CONFIG)
    index_interval_bytes = _Integer("index.interval.bytes")
    segment_bytes = _Integer("segment.bytes")
    retention_ms = _Integer("retention.ms")
    retention_bytes = _Integer("retention.bytes")
    file_delete_delay_ms = _Integer("file.delete.delay.ms")
    min_compaction_lag_ms = _Integer("min.compaction.lag.ms")
    max_compaction_lag_ms = _Integer("max.compaction.lag.ms")

    @classmethod
    def of(cls, values: Mapping[str, object] | None) -> TopicConfigs:
        """Create topic configs from the configs that a user specified.

        Raises BadRequest if a name is unknown, or a value is invalid or contradicts another value.
        """
        configs = cls({name: canonical(name, value) for name, value in sorted((values or {}).items())})
        configs.check()
        return configs

    def changed(self, changes: Mapping[str, object | None]) -> TopicConfigs:
        """Apply changes, check the resulting configs and return them. None resets a config to its default."""
        merged: dict[str, str] = dict(self.explicit)
        for name, value in changes.items():
            if value is None:
                definition(name)
                merged.pop(name, None)
            else:
                merged[name] = canonical(name, value)
        configs = TopicConfigs(dict(sorted(merged.items())), self.defaults)
        configs.check()
        return configs

    def over(self, others: Mapping[str, str]) -> TopicConfigs:
        """Return `others` overridden by these configs, after checking the result."""
        return TopicConfigs.of({**others, **self.explicit})

    def check(self) -> None:
        if self.min_compaction_lag_ms > self.max_compaction_lag_ms:
            raise BadRequest(
                f"min.compaction.lag.ms ({self.min_compaction_lag_ms}) must not exceed "
                f"max.compaction.lag.ms ({self.max_compaction_lag_ms})"
            )

    def text(self, name: str) -> str:
        value = self.explicit.get(name)
        return self.default(name) if value is None else value

    def default(self, name: str) -> str:
        """Return the value that applies if the topic does not set the config."""
        value = self.defaults.get(name, _DEFAULTS.get(name))
        return definition(name).default_text if value is None else value

    def value(self, name: str) -> object:
        return definition(name).type.parse(self.text(name))

    def integer(self, name: str) -> int:
        return int(self.text(name))

    def source(self, name: str) -> str:
        """Return the source of the value. Sources have the same names as in Kafka."""
        return TOPIC_CONFIG if name in self.explicit else ROOT_DEFAULT if name in self.defaults else DEFAULT_CONFIG

    @property
    def cleanup_policy(self) -> tuple[str, ...]:
        return policy(self.text("cleanup.policy"))

    @cached_property
    def is_compacted(self) -> bool:
        return "compact" in self.cleanup_policy

    @cached_property
    def is_deleting(self) -> bool:
        return "delete" in self.cleanup_policy

    @cached_property
    def log_append_time(self) -> bool:
        return self.text("message.timestamp.type") == "LogAppendTime"

    @cached_property
    def timestamp_before_max_ms(self) -> int:
        return self._bound("message.timestamp.before.max.ms")

    @cached_property
    def timestamp_after_max_ms(self) -> int:
        return self._bound("message.timestamp.after.max.ms")

    def codec(self, option: str | None = None) -> str:
        """Return the codec for writing. This is the topic's codec or, if the topic's codec is `producer`, the writer's
        `option` (default zstd).
        """
        codec = self.text("compression.type")
        if codec == "producer":
            return option or "zstd"
        return "none" if codec == "uncompressed" else codec

    def level(self, codec: str, option: int | None = None) -> int | None:
        """Return the compression level for `codec`, which is the writer's option or, if the option is not set, the
        topic's level.

        Returns None if the codec has no levels.
        """
        if option is not None:
            return option
        return self.integer(f"compression.{codec}.level") if codec in ("gzip", "lz4", "zstd") else None

    def _bound(self, name: str) -> int:
        value = self.integer(name)
        return self.integer("message.timestamp.difference.max.ms") if value == INT64_MAX else value


def check_delete_delay(changes: Mapping[str, object | None], force: bool) -> None:
    """Raise BadRequest if `file.delete.delay.ms` is below one hour and `force` is false."""
    value = changes.get("file.delete.delay.ms")
    if value is not None and not force and int(canonical("file.delete.delay.ms", value)) < MIN_DELETE_DELAY_MS:
        raise BadRequest(
            f"file.delete.delay.ms is {value}, but a value below {MIN_DELETE_DELAY_MS} (one hour) can delete files "
            "that running jobs use; increase the delay, or use force"
        )
