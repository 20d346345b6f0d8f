"""Names of Kafka's own settings that mean nothing here, and what does their work: for one-line answers.

The nearest of our names by spelling would be a wrong hint for them: they are no mistakes, only from another world.

Every topic config: its type, default, range, unit, what it does here and who goes by it, in one table.

All of the topic configs of Kafka 3 and 4 are known, so that a dump of a broker's configs can be given as it is; those
that have no meaning without brokers (`min.insync.replicas`, tiering, throttles) are checked and kept, and change
nothing. Where a default or a range is not that of Kafka 4.1's `LogConfig`, `kafka` says what it is there and why.
`sparklog configs docs` and docs/reference/configs.md show this table.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from sparklog.errors import BadRequest, did_you_mean

SECURITY = (
    "it secures connections to a broker, and a root has none: permissions of the files decide who may read and write"
)
_SECURITY_PREFIXES = ("security.", "sasl.", "ssl.")
_LISTENER = "listener.name."
_FLUSH = "every commit is on the disk before it is acknowledged"
_ACKS = "there are no replicas to wait for: " + _FLUSH
_STREAMS = "a streaming query writes exactly once, as its checkpoint says"

_NAMES = {
    "acks": _ACKS,
    "authorizer.class.name": SECURITY,
    "broker.id": "there are no brokers",
    "default.replication.factor": "there are no replicas: keep backups (`sparklog backup`)",
    "group.initial.rebalance.delay.ms": "a group's one member has all partitions",
    "group.max.session.timeout.ms": "a member gives its own time with kafka.session.timeout.ms, a day at most",
    "group.min.session.timeout.ms": "a member gives its own time with kafka.session.timeout.ms",
    "listeners": "there are no brokers to connect to",
    "advertised.listeners": "there are no brokers to connect to",
    "log.flush.interval.messages": _FLUSH,
    "log.flush.interval.ms": _FLUSH,
    "log.flush.scheduler.interval.ms": _FLUSH,
    "log.flush.offset.checkpoint.interval.ms": _FLUSH,
    "node.id": "there are no brokers",
    "num.io.threads": "there are no brokers",
    "num.network.threads": "there are no brokers",
    "num.replica.fetchers": "there are no replicas",
    "num.standby.replicas": "there are no replicas",
    "num.stream.threads": "give Spark more or fewer cores",
    "offsets.topic.num.partitions": "each group has a log of its own",
    "offsets.topic.replication.factor": "there are no replicas: keep backups (`sparklog backup`)",
    "processing.guarantee": _STREAMS,
    "process.roles": "there are no brokers",
    "producer.type": "there is one way to write",
    "application.id": "name the consumer group with kafka.group.id, a writer with txnAppId",
    "replica.lag.time.max.ms": "there are no replicas",
    "replication.factor": "there are no replicas: keep backups (`sparklog backup`)",
    "request.required.acks": _ACKS,
    "state.dir": "give Spark a checkpointLocation",
    "transaction.max.timeout.ms": "a transaction's own transaction.timeout.ms is a day at most",
    "transaction.state.log.min.isr": "there are no replicas",
    "transaction.state.log.num.partitions": "each transactional id has a log of its own",
    "transaction.state.log.replication.factor": "there are no replicas: keep backups (`sparklog backup`)",
    "transactional.id.expiration.ms": "the newest decision of a transactional id is kept for good",
    "zookeeper.connect": "give the place of the root instead",
}


def is_security(name: str) -> bool:
    """Does the setting name the security of connections? With or without `kafka.` in front, or of one listener."""
    plain = name.lower().removeprefix("kafka.")
    if plain.startswith(_LISTENER):
        plain = plain.split(".", 3)[-1]
    return plain.startswith(_SECURITY_PREFIXES)


def kafka_name(name: str) -> str | None:
    """Return the reason why a setting of Kafka's has no meaning here; None for any other name. `kafka.` is optional."""
    plain = name.lower().removeprefix("kafka.")
    return SECURITY if is_security(plain) else _NAMES.get(plain)


INT_MAX = 2**31 - 1
LONG_MAX = 2**63 - 1
LONG_MIN = -(2**63)

WRITERS = "writers"
COMPACT = "sparklog compact"
RETAIN = "sparklog retain"
IMPORTS = "imports"
EXPORTS = "exports"
NOBODY = ()


@dataclass(frozen=True, slots=True)
class ConfigDef:
    """One config.

    * `kind`: Kafka's type; `default`: as text; `valid`: the range as a person reads it; `unit`: of the value, or empty
    * `doc`: what it does here; `used_by`: who goes by it, empty where it changes nothing
    * `kafka`: how Kafka 4.1 differs, empty where it does not
    * `parse`: from text (ValueError if invalid)
    """

    name: str
    kind: str
    default: str
    valid: str
    doc: str
    parse: Callable[[str], object] = field(repr=False)
    unit: str = ""
    used_by: tuple[str, ...] = NOBODY
    kafka: str = ""


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


def policy(text: str) -> tuple[str, ...]:
    """The parts of a cleanup.policy, each once; ValueError for anything but delete and compact."""
    parts = tuple(dict.fromkeys(part.strip() for part in text.split(",")))
    if not parts or any(part not in ("delete", "compact") for part in parts):
        raise ValueError(text)
    return parts


def _gzip_level(text: str) -> object:
    return _number(-1, -1)(text) if text.strip() == "-1" else _number(1, 9)(text)


def _whole(kind: str, name: str, default: int, low: int, high: int, unit: str, doc: str, *used_by: str) -> ConfigDef:
    top = "" if high in (INT_MAX, LONG_MAX) else f" and at most {high}"
    valid = f"a whole number of at least {low}{top}" if low != LONG_MIN else "a whole number"
    return ConfigDef(name, kind, str(default), valid, doc, _number(low, high), unit, used_by)


def _int(name: str, default: int, low: int, unit: str, doc: str, *used_by: str, high: int = INT_MAX) -> ConfigDef:
    return _whole("int", name, default, low, high, unit, doc, *used_by)


def _long(name: str, default: int, low: int, unit: str, doc: str, *used_by: str) -> ConfigDef:
    return _whole("long", name, default, low, LONG_MAX, unit, doc, *used_by)


def _bool(name: str, doc: str, default: str = "false") -> ConfigDef:
    return ConfigDef(name, "boolean", default, "true or false", doc, _boolean)


def _one_of(name: str, default: str, values: tuple[str, ...], doc: str, *used_by: str) -> ConfigDef:
    return ConfigDef(name, "string", default, "one of " + ", ".join(values), doc, _choice(*values), used_by=used_by)


def _text(name: str, doc: str) -> ConfigDef:
    return ConfigDef(name, "list", "", "any text", doc, str)


_BROKERS = "Means nothing without brokers: checked, kept and handed on by an export."
_DURABLE = "Changes nothing: every commit is durable before it is acknowledged. Kept and handed on by an export."
_GONE = "Not in Kafka 4; kept for topics of older brokers."


def _differs(config: ConfigDef, kafka: str) -> ConfigDef:
    return replace(config, kafka=kafka)


_ALL = (
    ConfigDef(
        "cleanup.policy",
        "list",
        "delete",
        "delete, compact or both",
        "What becomes of old records: `delete` expires segments by age and size, `compact` keeps the latest record of "
        "each key, `compact,delete` does both.",
        policy,
        used_by=(WRITERS, COMPACT, RETAIN),
    ),
    _one_of(
        "compression.type",
        "producer",
        ("producer", "uncompressed", "gzip", "snappy", "lz4", "zstd"),
        "Codec of appended batches. `producer` takes the writer's option `compression.type`, which is zstd unless "
        "given; any other value beats the writer's.",
        WRITERS,
    ),
    ConfigDef(
        "compression.gzip.level",
        "int",
        "-1",
        "1 to 9, or -1",
        "Level where the codec is gzip; -1 is zlib's default (6).",
        _gzip_level,
        used_by=(WRITERS,),
    ),
    _int("compression.lz4.level", 9, 1, "", "Level where the codec is lz4.", WRITERS, high=17),
    _differs(
        _int("compression.zstd.level", 1, -131072, "", "Level where the codec is zstd.", WRITERS, high=22),
        "Default 3: nearly as small at 1, and much faster.",
    ),
    _differs(
        _int(
            "segment.bytes",
            1 << 30,
            14,
            "bytes",
            "Size at which a segment is full and is sealed. Retention and compaction work on whole segments.",
            COMPACT,
            RETAIN,
            EXPORTS,
        ),
        "At least 1048576, as a broker holds a file open for each segment.",
    ),
    _long(
        "segment.ms",
        604_800_000,
        1,
        "ms",
        "Age of its first record at which a segment is closed though not full, so that it can expire or be compacted.",
        COMPACT,
        RETAIN,
    ),
    _long(
        "segment.jitter.ms",
        0,
        0,
        "ms",
        "Up to so much is taken off segment.ms, differently for each segment, so that not all close at once.",
        COMPACT,
        RETAIN,
    ),
    _int(
        "segment.index.bytes",
        10 << 20,
        4,
        "bytes",
        "Size of an offset index at which its segment is full, 8 bytes an entry.",
        COMPACT,
        EXPORTS,
    ),
    _int(
        "index.interval.bytes",
        4096,
        0,
        "bytes",
        "Bytes of log between two entries of a sealed segment's indexes.",
        COMPACT,
        IMPORTS,
        EXPORTS,
    ),
    _long(
        "retention.ms",
        604_800_000,
        -1,
        "ms",
        "Age of its newest record above which a segment expires; -1: never. Only with `delete`.",
        RETAIN,
    ),
    _long(
        "retention.bytes",
        -1,
        LONG_MIN,
        "bytes",
        "Size of one partition above which its oldest segments expire; negative: no limit. Only with `delete`.",
        RETAIN,
    ),
    _differs(
        _long(
            "file.delete.delay.ms",
            86_400_000,
            0,
            "ms",
            "How long a file stays after nothing names it any more. Less than one hour (3600000) needs force: jobs "
            "that planned to read files would miss them.",
            RETAIN,
        ),
        "Default 60000: a Spark job reads a file long after it planned to.",
    ),
    _long(
        "delete.retention.ms",
        86_400_000,
        0,
        "ms",
        "How long compaction keeps a tombstone (a key with a null value) after the pass that first met it.",
        COMPACT,
    ),
    _long("min.compaction.lag.ms", 0, 0, "ms", "Age below which a record is not compacted.", COMPACT),
    _long(
        "max.compaction.lag.ms",
        LONG_MAX,
        1,
        "ms",
        "Age of its oldest dirty record above which a partition is compacted whatever its dirty ratio; not below "
        "min.compaction.lag.ms.",
        COMPACT,
        RETAIN,
    ),
    ConfigDef(
        "min.cleanable.dirty.ratio",
        "double",
        "0.5",
        "a number from 0 to 1",
        "Share of dirty bytes above which a partition is compacted.",
        _ratio,
        used_by=(COMPACT,),
    ),
    _int(
        "max.message.bytes",
        1_048_588,
        0,
        "bytes",
        "Largest batch, header included, after compression. Writers cut batches to fit; a record too large by itself "
        "is an error.",
        WRITERS,
    ),
    _one_of(
        "message.timestamp.type",
        "CreateTime",
        ("CreateTime", "LogAppendTime"),
        "Whose clock gives a record its timestamp: `CreateTime` is the writer's (or its `timestamp` column), "
        "`LogAppendTime` is the time of the commit.",
        WRITERS,
    ),
    _long(
        "message.timestamp.before.max.ms",
        LONG_MAX,
        0,
        "ms",
        "How far a record's timestamp may lie before the clock of the task that writes it. Only with `CreateTime`.",
        WRITERS,
    ),
    _differs(
        _long(
            "message.timestamp.after.max.ms",
            LONG_MAX,
            0,
            "ms",
            "How far a record's timestamp may lie after the clock of the task that writes it. Only with `CreateTime`.",
            WRITERS,
        ),
        "Default 3600000 (one hour): times come with the data here, and a task's clock is not a broker's.",
    ),
    _differs(
        _long(
            "message.timestamp.difference.max.ms",
            LONG_MAX,
            0,
            "ms",
            "Old name of the two bounds above, used for whichever of them is not set.",
            WRITERS,
        ),
        _GONE,
    ),
    _differs(_text("message.format.version", "Ignored: record batches are always written as magic 2."), _GONE),
    _differs(_bool("message.downconversion.enable", _BROKERS, "true"), _GONE),
    _bool("preallocate", _BROKERS),
    _long("flush.messages", LONG_MAX, 1, "records", _DURABLE),
    _long("flush.ms", LONG_MAX, 0, "ms", _DURABLE),
    _int("min.insync.replicas", 1, 1, "", _BROKERS),
    _bool("unclean.leader.election.enable", _BROKERS),
    _bool("remote.storage.enable", _BROKERS),
    _bool("remote.log.copy.disable", _BROKERS),
    _bool("remote.log.delete.on.disable", _BROKERS),
    _long("local.retention.ms", -2, -2, "ms", _BROKERS),
    _long("local.retention.bytes", -2, -2, "bytes", _BROKERS),
    _text("leader.replication.throttled.replicas", _BROKERS),
    _text("follower.replication.throttled.replicas", _BROKERS),
)
CONFIGS: Mapping[str, ConfigDef] = {definition.name: definition for definition in _ALL}


def definition(name: str) -> ConfigDef:
    """Return the definition of a config; `BadRequest` with the nearest name if it is unknown."""
    try:
        return CONFIGS[name]
    except KeyError:
        why = kafka_name(name)
        if why is not None:
            raise BadRequest(f"'{name}' is no topic config: {why}; leave it out") from None
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
