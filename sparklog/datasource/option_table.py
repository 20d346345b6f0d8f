"""All options of the data source in one table, and the settings of Kafka's clients that mean nothing here.

What defines choices may need numpy, which the process that makes the source does not import: they are named here too.

Spark hands options over with lower-cased keys: names are looked up in lower case and shown in their own spelling.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Literal

from sparklog.common.parsing import INT64_MAX, is_digits
from sparklog.common.settings import BOOLEAN, TEXT, Setting, ValueType, one_of, whole
from sparklog.common.times import parse_iso_time
from sparklog.errors import BadRequest, nearest
from sparklog.limits import DEFAULT_TRANSACTION_TIMEOUT_MS, MAX_SESSION_TIMEOUT_MS, MAX_TRANSACTION_TIMEOUT_MS
from sparklog.log.state.configs import CONFIGS, kafka_name
from sparklog.storage.cloud_settings import OPPOSITES, SETTINGS

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


_UNITS_MS = {"ms": 1, "s": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}


def _duration(text: str) -> int:
    """Return the milliseconds of a duration as Spark writes them; a bare number is milliseconds."""
    match = re.fullmatch(r"([0-9]{1,15})\s*([a-z]*)", text)
    if match is None or (match[2] or "ms") not in _UNITS_MS:
        raise ValueError(text)
    return int(match[1]) * _UNITS_MS[match[2] or "ms"]


def _timestamp(text: str) -> int:
    """Return the milliseconds of a number or of ISO 8601."""
    return int(text) if is_digits(text) and int(text) <= INT64_MAX else max(0, parse_iso_time(text))


DURATION = ValueType("a time like '15m', '90s' or '500ms'", parse=_duration, name="time")
TIMESTAMP = ValueType("milliseconds or a time like '2026-01-31T12:00:00' (UTC)", parse=_timestamp, name="timestamp")
_JSON = ValueType(OFFSETS_JSON, name="json")


def _of_bucket(setting: Setting) -> Setting:
    """Return a setting of an object store as an option: it becomes a part of the path, a URL."""
    opposite = "".join(f"; the opposite of `{name}`" for name, other in OPPOSITES.items() if other == setting.name)
    doc = f"Of a bucket{', ' if setting.doc.startswith('true') else ': '}{setting.doc}{opposite}."
    return replace(setting, doc=doc, used_by=EVERYWHERE, kafka="own")


OPTIONS = (
    Setting("path", TEXT, None,
            "Of `load`, `save` and `start`: path or URL of a root, a topic, a Kafka log directory or partition.",
            "", EVERYWHERE, "own, for `kafka.bootstrap.servers`"),
    *map(_of_bucket, SETTINGS),
    Setting("includeHeaders", BOOLEAN, False,
            "Reads: add the column `headers`.", "", EVERYWHERE, "yes", field="include_headers"),
    Setting("columns", TEXT, None,
            "Names of the columns to read, separated by commas, in this order; others are not decoded.",
            "", READ, "own", field="columns"),
    Setting("keys", TEXT, None,
            'Read only records with these keys: texts separated by commas, or a JSON list like ["a","b"].',
            "", READ, "own"),
    Setting("keysFile", TEXT, None,
            "The same, out of a file on the driver: one key per line.", "", READ, "own"),
    Setting("keyFormat", one_of(*KEY_FORMATS), "string",
            "With keys: what their texts stand for, as in `--key-format` of the command line.", "", READ, "own"),
    Setting("allPartitions", BOOLEAN, False,
            "With keys: read all partitions, not only those where Kafka's default partitioner puts the keys.",
            "", READ, "own"),
    Setting("subscribe", TEXT, None,
            "Names of the topics to read, separated by commas.", "", READ, "yes"),
    Setting("subscribePattern", TEXT, None,
            "A regular expression that matches whole names of topics.",
            "", READ, "Java's expressions there, Python's here"),
    Setting("assign", TEXT, None,
            'Topics and partitions: JSON like {"topic":[0,1]}.', "", READ, "yes"),
    Setting("startingTimestamp", TIMESTAMP, None,
            "Start at the first record not older than this time. Of these three the first one given counts.",
            "ms", READ, "no ISO 8601 there"),
    Setting("startingOffsetsByTimestamp", _JSON, None,
            f"The same by partition: {OFFSETS_JSON}.", "ms", READ, "no ISO 8601 there"),
    Setting("startingOffsets", _JSON, None,
            f"Start there: `earliest` (-2), `latest` (-1), `group`, or {OFFSETS_JSON}.",
            "offset", READ, "no `group` there"),
    Setting("startingOffsetsByTimestampStrategy", one_of("error", "latest"), "error",
            "`latest` starts at the end where no record is as new as the time given.", "", READ, "yes"),
    Setting("endingTimestamp", TIMESTAMP, None,
            "End at the first record not older than this time. Of these three the first one given counts.",
            "ms", BATCH, "no ISO 8601 there"),
    Setting("endingOffsetsByTimestamp", _JSON, None,
            f"The same by partition: {OFFSETS_JSON}.", "ms", BATCH, "no ISO 8601 there"),
    Setting("endingOffsets", _JSON, None,
            f"End there: `latest` (-1), or {OFFSETS_JSON}.", "offset", BATCH, "yes"),
    Setting("view", one_of("log", "table"), "log",
            "`table`: the latest record of each key, without deleted ones; `log`: all.",
            "", BATCH, "own", field="view"),
    Setting("asOfTimestamp", TIMESTAMP, None,
            "With `view=table`: as of this time, by the records before the first one not older.", "ms", BATCH, "own"),
    Setting("asOfOffsets", _JSON, None,
            f"With `view=table`: by what is before these, -1: all: {OFFSETS_JSON}.", "offset", BATCH, "own"),
    Setting("failOnDataLoss", BOOLEAN, True,
            "An error if records are gone before they are read; `false`: go on. Where a log ends before what a "
            "checkpoint has read of it, an error in either case.", "", READ, "yes", field="fail_on_data_loss"),
    Setting("corruptRecords", one_of(*CORRUPT_RECORDS), CORRUPT_RECORDS[0],
            "What damage does; `truncate` is for Kafka directories.", "", READ, "own", field="corrupt_records"),
    Setting("minPartitions", whole(1), None,
            "Where fewer partitions are read, split them by their size into about so many tasks.",
            "tasks", READ, "there small partitions never share a task", field="min_partitions"),
    Setting("maxRecordsPerPartition", whole(1), None,
            "Records of one task at most.", "records", READ, "offsets there", field="max_records_per_partition"),
    Setting("maxOffsetsPerTrigger", whole(1), None,
            "About so many records in one micro-batch: each partition that has records gives at least one.",
            "records", STREAM, "gaps count there", field="max_offsets_per_trigger"),
    Setting("minOffsetsPerTrigger", whole(1), None,
            "Wait until there are so many records.",
            "records", STREAM, "gaps count there", field="min_offsets_per_trigger"),
    Setting("maxTriggerDelay", DURATION, 900_000,
            "But wait no longer than this.", "ms", STREAM, "yes", field="max_trigger_delay_ms"),
    Setting("maxBytesPerTrigger", whole(1), None,
            "About so many stored bytes in one micro-batch.", "bytes", STREAM, "own", field="max_bytes_per_trigger"),
    Setting("poll.interval.ms", whole(0), None,
            "Pause between looks for new records: 10 ms, idle up to 30 times a look's time; in a bucket 5 to 250 "
            "ms.", "ms", STREAM, "own", field="poll_interval_ms"),
    Setting("metadata.max.age.ms", whole(0), 300_000,
            "Time between two looks for new topics.",
            "ms", STREAM, "there the client's, with `kafka.`",
            aliases=("kafka.metadata.max.age.ms",), field="metadata_max_age_ms"),
    Setting("kafka.isolation.level", one_of(*ISOLATION_LEVELS), ISOLATION_LEVELS[0],
            "`read_committed` leaves out what is aborted or open.",
            "", READ, "`read_uncommitted` there", field="isolation"),
    Setting("kafka.group.id", TEXT, None,
            "The group of `startingOffsets=group`; a stream publishes to it.",
            "", READ, "there it commits nothing", field="group_id"),
    Setting("kafka.group.instance.id", TEXT, None,
            "A name for the query in its group; random by itself.",
            "", STREAM, "there the client's", field="group_instance"),
    Setting("kafka.session.timeout.ms", whole(1, MAX_SESSION_TIMEOUT_MS), DEFAULT_SESSION_TIMEOUT_MS,
            "A query that is silent for longer counts as gone.",
            "ms", STREAM, "there the client's, 45000", field="session_timeout_ms"),
    Setting("kafka.auto.offset.reset", one_of("earliest", "latest", "none"), None,
            "With `startingOffsets=group`: for a partition without a committed offset.",
            "", READ, "refused there", field="group_reset"),
    Setting("topic", TEXT, None,
            "The topic, unless the path or a column `topic` names it.", "", WRITE, "yes", field="topic"),
    Setting("topic.*", TEXT, None,
            "A config of a topic that the write creates, as `topic.retention.ms`.", "", WRITE, "own"),
    Setting("compression.type", one_of(*CODECS), None,
            "The codec, zstd by itself; the topic's config beats it.",
            "", WRITE, "with `kafka.`, and `none` by itself, there",
            aliases=("kafka.compression.type",), field="codec"),
    Setting("compression.level", whole(LOWEST_LEVEL), None,
            "The level of that codec; the topic's by itself.", "", WRITE, "own", field="level"),
    Setting("kafka.compression.gzip.level", whole(LOWEST_LEVEL), None,
            "The level, if the codec is gzip.", "", WRITE, "yes"),
    Setting("kafka.compression.lz4.level", whole(LOWEST_LEVEL), None,
            "The level, if the codec is lz4.", "", WRITE, "yes"),
    Setting("kafka.compression.zstd.level", whole(LOWEST_LEVEL), None,
            "The level, if the codec is zstd.", "", WRITE, "3 by itself there"),
    Setting("write.buffer.bytes", whole(1, 1 << 30), 64 << 20,
            "Bytes that a task collects before it encodes them.", "bytes", WRITE, "own", field="buffer_bytes"),
    Setting("num.partitions", whole(1), 1,
            "Partitions of a topic that the write creates, instead of the root's number.",
            "partitions", WRITE, "there the broker's", field="partitions"),
    Setting("auto.create.topics.enable", BOOLEAN, True,
            "Create the root and the topic where they are missing; the root's false counts, too.",
            "", WRITE, "there the broker's", aliases=("kafka.allow.auto.create.topics",), field="auto_create"),
    Setting("txnAppId", TEXT, None,
            "Name of the application: with `txnVersion`, a repeated batch writes nothing.",
            "", WRITE, "own, as Delta's", field="txn_app_id"),
    Setting("txnVersion", whole(0), None,
            "A number that grows with each run.", "", WRITE, "own, as Delta's", field="txn_version"),
    Setting("replayMismatch", one_of("error", "accept"), "error",
            "`accept`: a replayed micro-batch may differ from its first attempt.",
            "", WRITE, "own", field="replay_mismatch"),
    Setting("transaction.timeout.ms", whole(1, MAX_TRANSACTION_TIMEOUT_MS), DEFAULT_TRANSACTION_TIMEOUT_MS,
            "Time after which an open write to several topics is aborted.",
            "ms", WRITE, "there the producer's",
            aliases=("kafka.transaction.timeout.ms",), field="transaction_timeout_ms"),
)  # fmt: skip
LEVELS = {codec: f"kafka.compression.{codec}.level" for codec in ("gzip", "lz4", "zstd")}
"""Options for the level of a codec: they count if that codec is chosen."""
CLIENT_OPTIONS = frozenset(
    {
        *("metadata.max.age.ms", "kafka.isolation.level", "kafka.group.id", "kafka.group.instance.id"),
        "kafka.session.timeout.ms",
    }
)
"""Options of reads that are settings of Kafka's clients: a write accepts them without effect."""

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


def find_option(given: str) -> Setting | None:
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
