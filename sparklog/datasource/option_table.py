"""All options of the data source in one table, and the settings of Kafka clients that have no effect here.

Some choices are repeated here, because the modules that define them need numpy, which the process that creates the data
source does not import.

Spark passes options with lower-case keys. So names are compared in lower case, and printed in their own spelling.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Literal

from sparklog.common.parsing import INT64_MAX, is_digits
from sparklog.common.settings import BOOLEAN, TEXT, Setting, ValueType, int64, one_of
from sparklog.common.times import parse_iso_time
from sparklog.errors import BadRequest, nearest
from sparklog.limits import DEFAULT_TRANSACTION_TIMEOUT_MS, MAX_SESSION_TIMEOUT_MS, MAX_TRANSACTION_TIMEOUT_MS
from sparklog.log.state.configs import CONFIGS, no_effect_reason
from sparklog.storage.cloud_settings import NEGATED_SETTINGS, SETTINGS

Use = Literal["batch", "stream", "write"]
Uses = tuple[Use, ...]
BATCH: Uses = ("batch",)
STREAM: Uses = ("stream",)
WRITE: Uses = ("write",)
READ: Uses = ("batch", "stream")
ALL_USES: Uses = ("batch", "stream", "write")

DEFAULT_SESSION_TIMEOUT_MS = 300_000
"""As long as Kafka's `max.poll.interval.ms`: a query sends a heartbeat when Spark plans, between micro-batches."""
MIN_LEVEL = -(1 << 17)
TOPIC_CONFIG = "topic."
"""Prefix of a topic config."""
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
    """Return the milliseconds of a duration in Spark's format; a number without unit is milliseconds."""
    match = re.fullmatch(r"([0-9]{1,15})\s*([a-z]*)", text)
    if match is None or (match[2] or "ms") not in _UNITS_MS:
        raise ValueError(text)
    return int(match[1]) * _UNITS_MS[match[2] or "ms"]


def _timestamp(text: str) -> int:
    """Return the milliseconds of a number or an ISO 8601 time."""
    return int(text) if is_digits(text) and int(text) <= INT64_MAX else max(0, parse_iso_time(text))


DURATION = ValueType("a time like '15m', '90s' or '500ms'", parse=_duration, name="time")
TIMESTAMP = ValueType("milliseconds or a time like '2026-01-31T12:00:00' (UTC)", parse=_timestamp, name="timestamp")
_JSON = ValueType(OFFSETS_JSON, name="json")


def _of_bucket(setting: Setting) -> Setting:
    """Return a setting of an object store as an option, which becomes part of the URL of the path."""
    opposite = "".join(
        f"; the opposite of `{name}`" for name, other in NEGATED_SETTINGS.items() if other == setting.name
    )
    doc = f"For a bucket{', ' if setting.doc.startswith('true') else ': '}{setting.doc}{opposite}."
    return replace(setting, doc=doc, used_by=ALL_USES, kafka="own")


OPTIONS = (
    Setting("path", TEXT, None,
            "Path or URL of a root, topic, Kafka log directory or partition directory; for `load`, `save` and `start`.",
            "", ALL_USES, "own, replaces `kafka.bootstrap.servers`"),
    *map(_of_bucket, SETTINGS),
    Setting("includeHeaders", BOOLEAN, False,
            "Add the column `headers` to a read.", "", ALL_USES, "yes", field="include_headers"),
    Setting("columns", TEXT, None,
            "Columns to read, separated by commas, in this order; others are not decoded.",
            "", READ, "own", field="columns"),
    Setting("keys", TEXT, None,
            'Read only records with these keys, separated by commas or as a JSON list like ["a","b"].',
            "", READ, "own"),
    Setting("keysFile", TEXT, None,
            "Read only records with the keys in this file on the driver, one key per line.", "", READ, "own"),
    Setting("keyFormat", one_of(*KEY_FORMATS), "string",
            "Format of the given keys, as for `--key-format` of the command line.", "", READ, "own"),
    Setting("allPartitions", BOOLEAN, False,
            "Look for the keys in all partitions, not only in those of Kafka's default partitioner.",
            "", READ, "own"),
    Setting("subscribe", TEXT, None,
            "Topics to read, separated by commas.", "", READ, "yes"),
    Setting("subscribePattern", TEXT, None,
            "Regular expression for the entire names of the topics to read.",
            "", READ, "with Java instead of Python syntax"),
    Setting("assign", TEXT, None,
            'Topics and partitions to read, as JSON like {"topic":[0,1]}.', "", READ, "yes"),
    Setting("startingTimestamp", TIMESTAMP, None,
            "Start at the first record at or after this time; overrides the next two options.",
            "ms", READ, "without ISO 8601"),
    Setting("startingOffsetsByTimestamp", _JSON, None,
            f"Start at a time per partition: {OFFSETS_JSON}; overrides the next option.",
            "ms", READ, "without ISO 8601"),
    Setting("startingOffsets", _JSON, None,
            f"Start at `earliest` (-2), `latest` (-1), the offsets of the `group`, or {OFFSETS_JSON}.",
            "offset", READ, "without `group`"),
    Setting("startingOffsetsByTimestampStrategy", one_of("error", "latest"), "error",
            "With `latest`, a partition without a record at or after the given time starts at its end.",
            "", READ, "yes"),
    Setting("endingTimestamp", TIMESTAMP, None,
            "End before the first record at or after this time; overrides the next two options.",
            "ms", BATCH, "without ISO 8601"),
    Setting("endingOffsetsByTimestamp", _JSON, None,
            f"End at a time per partition: {OFFSETS_JSON}; overrides the next option.",
            "ms", BATCH, "without ISO 8601"),
    Setting("endingOffsets", _JSON, None,
            f"End at `latest` (-1), or at {OFFSETS_JSON}.", "offset", BATCH, "yes"),
    Setting("view", one_of("log", "table"), "log",
            "`table` returns the latest record of each key that was not deleted; `log` returns all records.",
            "", BATCH, "own", field="view"),
    Setting("asOfTimestamp", TIMESTAMP, None,
            "With `view=table`, ignore the first record at or after this time and all later ones.",
            "ms", BATCH, "own"),
    Setting("asOfOffsets", _JSON, None,
            f"With `view=table`, ignore records at and after these offsets (-1: none): {OFFSETS_JSON}.",
            "offset", BATCH, "own"),
    Setting("failOnDataLoss", BOOLEAN, True,
            "Fail if records were deleted before they were read; with `false`, continue. A log that ends before the "
            "offsets of a checkpoint is an error in either case.", "", READ, "yes", field="fail_on_data_loss"),
    Setting("corruptRecords", one_of(*CORRUPT_RECORDS), CORRUPT_RECORDS[0],
            "Handling of corrupt records; `truncate` is for Kafka directories.",
            "", READ, "own", field="corrupt_records"),
    Setting("minPartitions", int64(1), None,
            "If fewer partitions are read, split them by size into about this many tasks.",
            "tasks", READ, "small partitions never share a task", field="min_partitions"),
    Setting("maxRecordsPerPartition", int64(1), None,
            "Maximum number of records per task.",
            "records", READ, "counts offsets", field="max_records_per_partition"),
    Setting("maxOffsetsPerTrigger", int64(1), None,
            "Approximate number of records per micro-batch; each partition with records contributes at least one.",
            "records", STREAM, "counts gaps", field="max_offsets_per_trigger"),
    Setting("minOffsetsPerTrigger", int64(1), None,
            "Wait until this many records are available.",
            "records", STREAM, "counts gaps", field="min_offsets_per_trigger"),
    Setting("maxTriggerDelay", DURATION, 900_000,
            "Maximum wait for `minOffsetsPerTrigger`.", "ms", STREAM, "yes", field="max_trigger_delay_ms"),
    Setting("maxBytesPerTrigger", int64(1), None,
            "Approximate stored bytes per micro-batch.", "bytes", STREAM, "own", field="max_bytes_per_trigger"),
    Setting("poll.interval.ms", int64(0), None,
            "Pause between polls for new records. By default 10 ms, and up to 30 times the duration of a poll while "
            "idle; in a bucket 5 to 250 ms.", "ms", STREAM, "own", field="poll_interval_ms"),
    Setting("metadata.max.age.ms", int64(0), 300_000,
            "Time between checks for new topics.",
            "ms", STREAM, "a client setting, with `kafka.`",
            aliases=("kafka.metadata.max.age.ms",), field="metadata_max_age_ms"),
    Setting("kafka.isolation.level", one_of(*ISOLATION_LEVELS), ISOLATION_LEVELS[0],
            "With `read_committed`, skip records of aborted and open transactions.",
            "", READ, "default `read_uncommitted`", field="isolation"),
    Setting("kafka.group.id", TEXT, None,
            "Consumer group for `startingOffsets=group`, to which a stream commits its offsets.",
            "", READ, "commits nothing", field="group_id"),
    Setting("kafka.group.instance.id", TEXT, None,
            "Name of the query in its group; default: a random name.",
            "", STREAM, "a client setting", field="group_instance"),
    Setting("kafka.session.timeout.ms", int64(1, MAX_SESSION_TIMEOUT_MS), DEFAULT_SESSION_TIMEOUT_MS,
            "Time without a heartbeat after which the group removes a query.",
            "ms", STREAM, "a client setting, 45000", field="session_timeout_ms"),
    Setting("kafka.auto.offset.reset", one_of("earliest", "latest", "none"), None,
            "With `startingOffsets=group`, where a partition without a committed offset starts.",
            "", READ, "rejected", field="group_reset"),
    Setting("topic", TEXT, None,
            "Topic to write, unless the path or a column `topic` sets it.", "", WRITE, "yes", field="topic"),
    Setting("topic.*", TEXT, None,
            "Config of a topic that the write creates, such as `topic.retention.ms`.", "", WRITE, "own"),
    Setting("compression.type", one_of(*CODECS), None,
            "Codec, by default zstd; the config of the topic overrides it.",
            "", WRITE, "with `kafka.`, default `none`",
            aliases=("kafka.compression.type",), field="codec"),
    Setting("compression.level", int64(MIN_LEVEL), None,
            "Level of that codec; default: that of the topic.", "", WRITE, "own", field="level"),
    Setting("kafka.compression.gzip.level", int64(MIN_LEVEL), None,
            "Level for the codec gzip.", "", WRITE, "yes"),
    Setting("kafka.compression.lz4.level", int64(MIN_LEVEL), None,
            "Level for the codec lz4.", "", WRITE, "yes"),
    Setting("kafka.compression.zstd.level", int64(MIN_LEVEL), None,
            "Level for the codec zstd.", "", WRITE, "default 3"),
    Setting("write.buffer.bytes", int64(1, 1 << 30), 64 << 20,
            "Bytes that a task buffers before it encodes them.", "bytes", WRITE, "own", field="buffer_bytes"),
    Setting("num.partitions", int64(1), 1,
            "Partitions of a topic that the write creates; overrides the default of the root.",
            "partitions", WRITE, "a broker setting", field="partitions"),
    Setting("auto.create.topics.enable", BOOLEAN, True,
            "Create a missing root or topic; `false` in the root defaults also prevents it.",
            "", WRITE, "a broker setting", aliases=("kafka.allow.auto.create.topics",), field="auto_create"),
    Setting("txnAppId", TEXT, None,
            "Name of the application; with `txnVersion`, a repeated batch writes nothing.",
            "", WRITE, "own, as in Delta", field="txn_app_id"),
    Setting("txnVersion", int64(0), None,
            "Version of the batch, which must increase with each run.",
            "", WRITE, "own, as in Delta", field="txn_version"),
    Setting("replayMismatch", one_of("error", "accept"), "error",
            "With `accept`, a replayed micro-batch may differ from its first attempt.",
            "", WRITE, "own", field="replay_mismatch"),
    Setting("transaction.timeout.ms", int64(1, MAX_TRANSACTION_TIMEOUT_MS), DEFAULT_TRANSACTION_TIMEOUT_MS,
            "Time after which an open write to several topics is aborted.",
            "ms", WRITE, "a producer setting",
            aliases=("kafka.transaction.timeout.ms",), field="transaction_timeout_ms"),
)  # fmt: skip
LEVELS = {codec: f"kafka.compression.{codec}.level" for codec in ("gzip", "lz4", "zstd")}
"""Options for the level of a codec, which apply if that codec is used."""
CLIENT_OPTIONS = frozenset(
    {
        *("metadata.max.age.ms", "kafka.isolation.level", "kafka.group.id", "kafka.group.instance.id"),
        "kafka.session.timeout.ms",
    }
)
"""Read options that are also settings of Kafka clients; a write accepts and ignores them."""

# Options that Spark itself adds, and timeouts of broker clients; all have no effect.
_SILENT = "checkpointlocation queryname kafkaconsumer.polltimeoutms fetchoffset.numretries fetchoffset.retryintervalms"

# Options that the Kafka connector rejects, too, with the reason.
_REJECTED = {
    "kafka.key.deserializer": "keys are read as binary; cast them in the query",
    "kafka.value.deserializer": "values are read as binary; cast them in the query",
    "kafka.key.serializer": "cast the key column to string or binary in the query",
    "kafka.value.serializer": "cast the value column to string or binary in the query",
    "kafka.enable.auto.commit": "Spark's checkpoint keeps the offsets",
    "kafka.interceptor.classes": "there is no broker client to intercept",
    "kafka.partitioner.class": "add a partition column; keys are partitioned with murmur2, as in Kafka",
    "kafka.transactional.id": "use txnAppId and txnVersion",
    # Options of Delta and of Spark's file sources.
    "versionasof": "a log is read by offsets or times: set startingOffsets and endingOffsets of a batch read",
    "timestampasof": "a log is read by offsets or times: set startingTimestamp and endingTimestamp of a batch read",
    "startingversion": "a log is read by offsets or times: set startingOffsets or startingTimestamp",
    "asyncprogresstrackingenabled": "a restarted query may then use a batch id again for other records, and "
    "this sink would skip them as a repeated batch; remove it and its related options",
    "paths": "load accepts one path: load the root with subscribe='a,b', or load each path and use union",
}
_SPELLED = {
    name.lower(): name for name in ("versionAsOf", "timestampAsOf", "startingVersion", "asyncProgressTrackingEnabled")
}

# Settings of Kafka clients for brokers, connections and buffering. They are accepted and ignored, so that moving a
# query only requires changing its format and path.
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
    """Return the option with this name or alias; None for a known option that has no effect.

    Raises BadRequest for an unknown name, with the nearest name, and for options that Kafka's connector rejects.
    """
    key = given.lower()
    if key.lstrip("_").startswith("asyncprogresstracking"):
        key = "asyncprogresstrackingenabled"
    if key in _BY_LOWER_CASE:
        return _BY_LOWER_CASE[key]
    if key in _REJECTED:
        raise BadRequest(f"Option '{_SPELLED.get(key, key)}' is not supported: {_REJECTED[key]}.")
    if key in _IGNORED or key.startswith(_KAFKA_IGNORED_PREFIXES):
        return None
    why = no_effect_reason(key)
    if why:
        raise BadRequest(f"Unknown option '{given}': {why}; remove it")
    if key.removeprefix("kafka.") in CONFIGS:
        raise BadRequest(
            f"Unknown option '{given}': a write that creates a topic accepts configs as "
            f"'{TOPIC_CONFIG}{key.removeprefix('kafka.')}'; `sparklog configs alter` changes them later"
        )
    spelled = {name.lower(): name for option in OPTIONS for name in (*option.aliases, option.name)}
    near = nearest(key, {**spelled, **{name: name for name in KAFKA_IGNORED}}, limit=1)
    hint = f"did you mean '{spelled.get(near[0], near[0])}'?" if near else "there is no such option; remove it"
    raise BadRequest(f"Unknown option '{given}': {hint}")
