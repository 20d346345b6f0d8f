"""All options of the data source in one table, and the settings of Kafka's clients that mean nothing here.

What defines choices may need numpy, which the process that makes the source does not import: they are named here too.

Spark hands options over with lower-cased keys: names are looked up in lower case and shown in their own spelling.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from sparklog.errors import BadRequest, nearest
from sparklog.groups.group_members import MAX_SESSION_TIMEOUT_MS
from sparklog.log.decisions.decision import DEFAULT_TRANSACTION_TIMEOUT_MS, MAX_TRANSACTION_TIMEOUT_MS
from sparklog.log.state.configs import CONFIGS, kafka_name
from sparklog.storage.cloud_settings import SETTINGS, Setting

Kind = Literal["text", "boolean", "number", "choice", "time", "timestamp"]
Use = Literal["batch", "stream", "write"]
Uses = tuple[Use, ...]
BATCH: Uses = ("batch",)
STREAM: Uses = ("stream",)
WRITE: Uses = ("write",)
READ: Uses = ("batch", "stream")
EVERYWHERE: Uses = ("batch", "stream", "write")

DEFAULT_SESSION_TIMEOUT_MS = 300_000
"""As Kafka's `max.poll.interval.ms`: a query shows that it lives whenever Spark plans, which a micro-batch holds up."""
LOWEST_LEVEL = -(1 << 17)
TOPIC_CONFIG = "topic."
"""In front of a topic's config."""
OFFSETS_JSON = 'JSON like {"topic":{"0":23}}'
ISOLATION_LEVELS = ("read_committed", "read_uncommitted")
"""As in `sparklog.log.state.view`."""
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
"""As in `sparklog.format.record_batch`."""
CORRUPT_RECORDS = ("fail", "skip", "truncate")
"""As in `sparklog.kafka.in_place.segment_recovery`."""
KEY_FORMATS = ("string", "short", "integer", "long", "float", "double", "json", "hex", "base64")
"""As in `sparklog.format.values`; `avro` would need a schema."""


@dataclass(frozen=True, slots=True)
class OptionDef:
    """One option.

    * `uses`: where it counts; elsewhere it is refused, but for what is of reads (`batch`, `stream`) alike
    * `field`: of `ReadOptions` or `SinkOptions`, which takes the parsed value; empty where several options make one
    * `default`: None where there is none; `choices` of a choice; `low` and `high`: limits of a number
    * `harmless`: an option of reads that a write has without effect: a setting of Kafka's clients
    * `codec`: of a level that counts when that codec is chosen
    * `unit` of its value; `kafka`: whether Spark's Kafka connector has it, or what differs
    """

    name: str
    kind: Kind
    uses: Uses
    doc: str
    field: str = ""
    default: object = None
    choices: tuple[str, ...] = ()
    low: int = 0
    high: int | None = None
    aliases: tuple[str, ...] = ()
    harmless: bool = False
    codec: str = ""
    unit: str = ""
    kafka: str = "yes"


def _of_bucket(setting: Setting) -> OptionDef:
    """Return a setting of an object store as an option: it becomes a part of the path, a URL."""
    same = tuple(name for name, read in setting.hadoop.items() if read is setting.read)
    opposite = "".join(f"; the opposite of `{name}`" for name in setting.hadoop if name not in same)
    doc = f"Of a bucket{', ' if setting.about.startswith('true') else ': '}{setting.about}{opposite}."
    return OptionDef(setting.name, "text", EVERYWHERE, doc, aliases=same, kafka="own")


OPTIONS = (
    OptionDef("path", "text", EVERYWHERE,
              "Of `load`, `save` and `start`: path or URL of a root, a topic, a Kafka log directory or partition.",
              kafka="own, for `kafka.bootstrap.servers`"),
    *map(_of_bucket, SETTINGS),
    OptionDef("includeHeaders", "boolean", EVERYWHERE, "Reads: add the column `headers`.", "include_headers", False),
    OptionDef("columns", "text", READ,
              "Names of the columns to read, separated by commas, in this order; others are not decoded.",
              "columns", kafka="own"),
    OptionDef("keys", "text", READ,
              'Read only records with these keys: texts separated by commas, or a JSON list like ["a","b"].',
              kafka="own"),
    OptionDef("keysFile", "text", READ, "The same, out of a file on the driver: one key per line.", kafka="own"),
    OptionDef("keyFormat", "choice", READ,
              "With keys: what their texts stand for, as in `--key-format` of the command line.",
              default="string", choices=KEY_FORMATS, kafka="own"),
    OptionDef("allPartitions", "boolean", READ,
              "With keys: read all partitions, not only those where Kafka's default partitioner puts the keys.",
              default=False, kafka="own"),
    OptionDef("subscribe", "text", READ, "Names of the topics to read, separated by commas."),
    OptionDef("subscribePattern", "text", READ, "A regular expression that matches whole names of topics.",
              kafka="Java's expressions there, Python's here"),
    OptionDef("assign", "text", READ, 'Topics and partitions: JSON like {"topic":[0,1]}.'),
    OptionDef("startingTimestamp", "timestamp", READ,
              "Start at the first record not older than this time. Of these three the first one given counts.",
              unit="ms", kafka="no ISO 8601 there"),
    OptionDef("startingOffsetsByTimestamp", "text", READ, f"The same by partition: {OFFSETS_JSON}.",
              unit="ms", kafka="no ISO 8601 there"),
    OptionDef("startingOffsets", "text", READ,
              f"Start there: `earliest` (-2), `latest` (-1), `group`, or {OFFSETS_JSON}.",
              unit="offset", kafka="no `group` there"),
    OptionDef("startingOffsetsByTimestampStrategy", "choice", READ,
              "`latest` starts at the end where no record is as new as the time given.",
              default="error", choices=("error", "latest")),
    OptionDef("endingTimestamp", "timestamp", BATCH,
              "End at the first record not older than this time. Of these three the first one given counts.",
              unit="ms", kafka="no ISO 8601 there"),
    OptionDef("endingOffsetsByTimestamp", "text", BATCH, f"The same by partition: {OFFSETS_JSON}.",
              unit="ms", kafka="no ISO 8601 there"),
    OptionDef("endingOffsets", "text", BATCH, f"End there: `latest` (-1), or {OFFSETS_JSON}.", unit="offset"),
    OptionDef("view", "choice", BATCH, "`table`: the latest record of each key, without deleted ones; `log`: all.",
              "view", "log", ("log", "table"), kafka="own"),
    OptionDef("asOfTimestamp", "timestamp", BATCH,
              "With `view=table`: as of this time, by the records before the first one not older.",
              unit="ms", kafka="own"),
    OptionDef("asOfOffsets", "text", BATCH, f"With `view=table`: by what is before these, -1: all: {OFFSETS_JSON}.",
              unit="offset", kafka="own"),
    OptionDef("failOnDataLoss", "boolean", READ,
              "An error if records are gone before they are read; `false`: go on. Where a log ends before what a "
              "checkpoint has read of it, an error in either case.",
              "fail_on_data_loss", True),
    OptionDef("corruptRecords", "choice", READ, "What damage does; `truncate` is for Kafka directories.",
              "corrupt_records", CORRUPT_RECORDS[0], CORRUPT_RECORDS, kafka="own"),
    OptionDef("minPartitions", "number", READ,
              "Where fewer partitions are read, split them by their size into about so many tasks.",
              "min_partitions", low=1, unit="tasks", kafka="there small partitions never share a task"),
    OptionDef("maxRecordsPerPartition", "number", READ, "Records of one task at most.",
              "max_records_per_partition", low=1, unit="records", kafka="offsets there"),
    OptionDef("maxOffsetsPerTrigger", "number", STREAM,
              "About so many records in one micro-batch: each partition that has records gives at least one.",
              "max_offsets_per_trigger", low=1, unit="records", kafka="gaps count there"),
    OptionDef("minOffsetsPerTrigger", "number", STREAM, "Wait until there are so many records.",
              "min_offsets_per_trigger", low=1, unit="records", kafka="gaps count there"),
    OptionDef("maxTriggerDelay", "time", STREAM, "But wait no longer than this.", "max_trigger_delay_ms", 900_000,
              unit="ms"),
    OptionDef("maxBytesPerTrigger", "number", STREAM, "About so many stored bytes in one micro-batch.",
              "max_bytes_per_trigger", low=1, unit="bytes", kafka="own"),
    OptionDef("poll.interval.ms", "number", STREAM,
              "Pause between looks for new records: 10 ms, idle up to 30 times a look's time; in a bucket 5 to 250 ms.",
              "poll_interval_ms", unit="ms", kafka="own"),
    OptionDef("metadata.max.age.ms", "number", STREAM, "Time between two looks for new topics.",
              "metadata_max_age_ms", 300_000, aliases=("kafka.metadata.max.age.ms",), harmless=True,
              unit="ms", kafka="there the client's, with `kafka.`"),
    OptionDef("kafka.isolation.level", "choice", READ, "`read_committed` leaves out what is aborted or open.",
              "isolation", ISOLATION_LEVELS[0], ISOLATION_LEVELS, harmless=True,
              kafka="`read_uncommitted` there"),
    OptionDef("kafka.group.id", "text", READ, "The group of `startingOffsets=group`; a stream publishes to it.",
              "group_id", harmless=True, kafka="there it commits nothing"),
    OptionDef("kafka.group.instance.id", "text", STREAM, "A name for the query in its group; random by itself.",
              "group_instance", harmless=True, kafka="there the client's"),
    OptionDef("kafka.session.timeout.ms", "number", STREAM, "A query that is silent for longer counts as gone.",
              "session_timeout_ms", DEFAULT_SESSION_TIMEOUT_MS, low=1, high=MAX_SESSION_TIMEOUT_MS, harmless=True,
              unit="ms", kafka="there the client's, 45000"),
    OptionDef("kafka.auto.offset.reset", "choice", READ,
              "With `startingOffsets=group`: for a partition without a committed offset.",
              "group_reset", choices=("earliest", "latest", "none"), kafka="refused there"),
    OptionDef("topic", "text", WRITE, "The topic, unless the path or a column `topic` names it.", "topic"),
    OptionDef("topic.*", "text", WRITE, "A config of a topic that the write creates, as `topic.retention.ms`.",
              kafka="own"),
    OptionDef("compression.type", "choice", WRITE, "The codec, zstd by itself; the topic's config beats it.",
              "codec", choices=CODECS, aliases=("kafka.compression.type",),
              kafka="with `kafka.`, and `none` by itself, there"),
    OptionDef("compression.level", "number", WRITE, "The level of that codec; the topic's by itself.",
              "level", low=LOWEST_LEVEL, kafka="own"),
    OptionDef("kafka.compression.gzip.level", "number", WRITE, "The level, if the codec is gzip.",
              low=LOWEST_LEVEL, codec="gzip"),
    OptionDef("kafka.compression.lz4.level", "number", WRITE, "The level, if the codec is lz4.",
              low=LOWEST_LEVEL, codec="lz4"),
    OptionDef("kafka.compression.zstd.level", "number", WRITE, "The level, if the codec is zstd.",
              low=LOWEST_LEVEL, codec="zstd", kafka="3 by itself there"),
    OptionDef("write.buffer.bytes", "number", WRITE, "Bytes that a task collects before it encodes them.",
              "buffer_bytes", 64 << 20, low=1, high=1 << 30, unit="bytes", kafka="own"),
    OptionDef("num.partitions", "number", WRITE,
              "Partitions of a topic that the write creates, instead of the root's number.",
              "partitions", 1, low=1, unit="partitions", kafka="there the broker's"),
    OptionDef("auto.create.topics.enable", "boolean", WRITE,
              "Create the root and the topic where they are missing; the root's false counts, too.",
              "auto_create", True, aliases=("kafka.allow.auto.create.topics",), kafka="there the broker's"),
    OptionDef("txnAppId", "text", WRITE, "Name of the application: with `txnVersion`, a repeated batch writes nothing.",
              "txn_app_id", kafka="own, as Delta's"),
    OptionDef("txnVersion", "number", WRITE, "A number that grows with each run.", "txn_version",
              kafka="own, as Delta's"),
    OptionDef("replayMismatch", "choice", WRITE, "`accept`: a replayed micro-batch may differ from its first attempt.",
              "replay_mismatch", "error", ("error", "accept"), kafka="own"),
    OptionDef("transaction.timeout.ms", "number", WRITE,
              "Time after which an open write to several topics is aborted.",
              "transaction_timeout_ms", DEFAULT_TRANSACTION_TIMEOUT_MS, low=1, high=MAX_TRANSACTION_TIMEOUT_MS,
              aliases=("kafka.transaction.timeout.ms",), unit="ms", kafka="there the producer's"),
)  # fmt: skip

# Put there by Spark itself; patience of a client that talks to a broker, and names of groups that nothing asks for.
_SILENT = "checkpointlocation queryname kafkaconsumer.polltimeoutms fetchoffset.numretries fetchoffset.retryintervalms"

# Refused by the Kafka connector too, and why.
_REFUSED = {
    "kafka.key.deserializer": "keys are read as binary; cast them in the query",
    "kafka.value.deserializer": "values are read as binary; cast them in the query",
    "kafka.key.serializer": "cast the key column to string or binary in the query",
    "kafka.value.serializer": "cast the value column to string or binary in the query",
    "kafka.enable.auto.commit": "Spark's checkpoint keeps the offsets",
    "kafka.interceptor.classes": "there is no broker client to intercept",
    "kafka.partitioner.class": "give a partition column; keys are partitioned by murmur2 as Kafka does",
    "kafka.transactional.id": "use txnAppId and txnVersion",
    # Of Delta and of Spark's file sources.
    "versionasof": "a log is read by offsets or times: give endingOffsets, and startingOffsets, of a batch read",
    "timestampasof": "a log is read by offsets or times: give endingTimestamp, and startingTimestamp, of a batch read",
    "startingversion": "a log is read by offsets or times: give startingOffsets or startingTimestamp",
    "asyncprogresstrackingenabled": "a query that is restarted may then use a batch id again for other records, and "
    "this sink, which uses batch ids, would leave them out; remove it and what goes with it",
    "paths": "load takes one path: give the root with subscribe='a,b', or load each and union them",
}
_SPELLED = {
    name.lower(): name for name in ("versionAsOf", "timestampAsOf", "startingVersion", "asyncProgressTrackingEnabled")
}

# Settings of Kafka's clients that describe brokers, connections and buffering: accepted and without effect, so that a
# query moves over by changing the format and the path.
_CLIENT_SETTINGS = """
    acks auto.commit.interval.ms auto.include.jmx.reporter batch.size bootstrap.servers buffer.memory check.crcs
    client.dns.lookup client.id client.rack connections.max.idle.ms default.api.timeout.ms delivery.timeout.ms
    enable.idempotence enable.metrics.push exclude.internal.topics fetch.max.bytes fetch.max.wait.ms fetch.min.bytes
    group.protocol group.remote.assignor heartbeat.interval.ms linger.ms max.block.ms
    max.in.flight.requests.per.connection max.partition.fetch.bytes max.poll.interval.ms max.poll.records
    max.request.size metadata.max.idle.ms metadata.recovery.rebootstrap.trigger.ms metadata.recovery.strategy
    metric.reporters metrics.num.samples metrics.recording.level metrics.sample.window.ms partition.assignment.strategy
    partitioner.adaptive.partitioning.enable partitioner.availability.timeout.ms partitioner.ignore.keys
    receive.buffer.bytes reconnect.backoff.max.ms reconnect.backoff.ms request.timeout.ms retries retry.backoff.max.ms
    retry.backoff.ms security.protocol security.providers send.buffer.bytes socket.connection.setup.timeout.max.ms
    socket.connection.setup.timeout.ms
"""
KAFKA_IGNORED = frozenset(f"kafka.{name}" for name in _CLIENT_SETTINGS.split())
_KAFKA_IGNORED_PREFIXES = ("kafka.sasl.", "kafka.ssl.", "kafka.aws.", "kafka.schema.registry.")

_BY_LOWER_CASE = {name.lower(): option for option in OPTIONS for name in (*option.aliases, option.name)}
_IGNORED = {*_SILENT.split(), "groupidprefix", *KAFKA_IGNORED}


def find_option(given: str) -> OptionDef | None:
    """Return the option of a name, or of Kafka's name for it; None if it is known and has no effect.

    Raises BadRequest, with the nearest name, for one that is not known, and for those that Kafka's connector refuses.
    """
    key = given.lower()
    if key.lstrip("_").startswith("asyncprogresstracking"):
        key = "asyncprogresstrackingenabled"
    if key in _BY_LOWER_CASE:
        return _BY_LOWER_CASE[key]
    if key in _REFUSED:
        raise BadRequest(f"Option '{_SPELLED.get(key, key)}' is not supported: {_REFUSED[key]}.")
    if key in _IGNORED or key.startswith(_KAFKA_IGNORED_PREFIXES):
        return None
    why = kafka_name(key)
    if why:
        raise BadRequest(f"Unknown option '{given}': {why}; remove it")
    if key.removeprefix("kafka.") in CONFIGS:
        raise BadRequest(
            f"Unknown option '{given}': a write that creates a topic takes its configs as "
            f"'{TOPIC_CONFIG}{key.removeprefix('kafka.')}'; `sparklog configs alter` changes them later"
        )
    spelled = {name.lower(): name for option in OPTIONS for name in (*option.aliases, option.name)}
    near = nearest(key, {**spelled, **{name: name for name in KAFKA_IGNORED}}, limit=1)
    hint = f"did you mean '{spelled.get(near[0], near[0])}'?" if near else "no option of that name exists; remove it"
    raise BadRequest(f"Unknown option '{given}': {hint}")
