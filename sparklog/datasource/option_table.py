"""A table of all options of the data source, and the Kafka client configs that have no effect in sparklog.

Some choices are repeated in this module, because the modules that define these choices import numpy. The process that
creates the data source must not import numpy.

Spark passes options with lower-case keys. Therefore, names are compared in lower case, and printed with the spelling in
this table.
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
"""The default is the same as Kafka's `max.poll.interval.ms`, because a query sends heartbeats only when Spark plans a
micro-batch.
"""
MIN_LEVEL = -(1 << 17)
TOPIC_CONFIG = "topic."
"""The prefix of a topic config."""
OFFSETS_JSON = 'JSON such as {"topic":{"0":23}}'
ISOLATION_LEVELS = ("read_committed", "read_uncommitted")
"""The same values as in `sparklog.log.state.view`."""
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
"""The same values as in `sparklog.format.record_batch`."""
CORRUPT_RECORDS = ("fail", "skip", "truncate")
"""The same values as in `sparklog.kafka.in_place.segment_recovery`."""
KEY_FORMATS = ("string", "short", "integer", "long", "float", "double", "json", "hex", "base64")
"""The same values as `FORMATS` in `sparklog.format.values`."""
FORMATS_WITH_SCHEMA = ("avro", "json-schema", "protobuf")
"""The same values as `SCHEMA_FORMATS` in `sparklog.format.values`."""
VALUE_FORMATS = ("raw", *(name for name in KEY_FORMATS if name != "json"), *FORMATS_WITH_SCHEMA)
"""Without `json`, which does not determine the type of the column."""


_UNITS_MS = {"ms": 1, "s": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}


def _duration(text: str) -> int:
    """Return a duration in Spark's format as milliseconds. A number without a unit is in milliseconds."""
    match = re.fullmatch(r"([0-9]{1,15})\s*([a-z]*)", text)
    if match is None or (match[2] or "ms") not in _UNITS_MS:
        raise ValueError(text)
    return int(match[1]) * _UNITS_MS[match[2] or "ms"]


def _timestamp(text: str) -> int:
    """Return a timestamp, which is a number or an ISO 8601 time, as milliseconds."""
    return int(text) if is_digits(text) and int(text) <= INT64_MAX else max(0, parse_iso_time(text))


DURATION = ValueType("a duration such as '15m', '90s' or '500ms'", parse=_duration, name="time")
TIMESTAMP = ValueType("milliseconds or a time such as '2026-01-31T12:00:00' (UTC)", parse=_timestamp, name="timestamp")
_JSON = ValueType(OFFSETS_JSON, name="json")


def _of_bucket(setting: Setting) -> Setting:
    """Return the data source option for a setting of an object store. The option is added to the URL of the path."""
    schemes = [f"`{scheme}`" for scheme in setting.used_by]
    listed = " and ".join([", ".join(schemes[:-1]), schemes[-1]] if len(schemes) > 1 else schemes)
    opposite = "".join(
        f" `{name}` is the opposite." for name, other in NEGATED_SETTINGS.items() if other == setting.name
    )
    doc = f"{setting.doc} Applies to {listed} URLs.{opposite}"
    return replace(setting, doc=doc, used_by=ALL_USES, kafka="own")


OPTIONS = (
    Setting("path", TEXT, None,
            "Path or URL of a root, topic, Kafka log directory or Kafka partition directory. It can also be passed "
            "to `load`, `save` and `start`.",
            "", ALL_USES, "own, instead of `kafka.bootstrap.servers`"),
    Setting("subscribe", TEXT, None,
            "Comma-separated list of topics to read.", "", READ, "yes"),
    Setting("subscribePattern", TEXT, None,
            "Regular expression that matches the full names of the topics to read.",
            "", READ, "with Java instead of Python syntax"),
    Setting("assign", TEXT, None,
            'Topics and partitions to read, as JSON such as {"topic":[0,1]}.', "", READ, "yes"),
    Setting("startingOffsets", _JSON, None,
            "Start at `earliest` (-2), `latest` (-1), the committed offsets of a consumer group (`group`), or "
            f"offsets given as {OFFSETS_JSON}.",
            "offset", READ, "without `group`"),
    Setting("startingTimestamp", TIMESTAMP, None,
            "Start at the first record at or after this time. This option overrides `startingOffsetsByTimestamp` and "
            "`startingOffsets`.",
            "ms", READ, "without ISO 8601"),
    Setting("startingOffsetsByTimestamp", _JSON, None,
            f"Start at a timestamp for each partition, given as {OFFSETS_JSON}. This option overrides "
            "`startingOffsets`.",
            "ms", READ, "without ISO 8601"),
    Setting("startingOffsetsByTimestampStrategy", one_of("error", "latest"), "error",
            "Action if a partition has no record at or after the starting timestamp: fail (`error`), or start at the "
            "log end (`latest`).",
            "", READ, "yes"),
    Setting("endingOffsets", _JSON, None,
            f"End at `latest` (-1), or at offsets given as {OFFSETS_JSON}.", "offset", BATCH, "yes"),
    Setting("endingTimestamp", TIMESTAMP, None,
            "End before the first record at or after this time. This option overrides `endingOffsetsByTimestamp` and "
            "`endingOffsets`.",
            "ms", BATCH, "without ISO 8601"),
    Setting("endingOffsetsByTimestamp", _JSON, None,
            f"End at a timestamp for each partition, given as {OFFSETS_JSON}. This option overrides `endingOffsets`.",
            "ms", BATCH, "without ISO 8601"),
    Setting("includeHeaders", BOOLEAN, False,
            "Whether to include the column `headers` in a read.", "", ALL_USES, "yes", field="include_headers"),
    Setting("columns", TEXT, None,
            "Comma-separated list of columns to read, in this order. Other columns are not decoded.",
            "", READ, "own", field="columns"),
    Setting("keys", TEXT, None,
            'Read only records with these keys, given as a comma-separated list or as a JSON list such as ["a","b"].',
            "", READ, "own"),
    Setting("keysFile", TEXT, None,
            "File on the driver that contains one key per line. Only records with these keys are read.",
            "", READ, "own"),
    Setting("keyFormat", one_of(*KEY_FORMATS, *FORMATS_WITH_SCHEMA), None,
            "Format of the keys. The column `key` contains the decoded keys, or bytes if the option is not set or is "
            "`json`. It is also the format of the keys in `keys` and `keysFile`, whose default is `string`.",
            "", READ, "own", field="key_format"),
    Setting("valueFormat", one_of(*VALUE_FORMATS), VALUE_FORMATS[0],
            "Format of the values. The column `value` contains the decoded values, or bytes if the format is `raw`.",
            "", READ, "own", field="value_format"),
    Setting("keySchema", TEXT, None,
            "Schema of keys in the format `avro`, `json-schema` or `protobuf`, as for `valueSchema`.",
            "", READ, "own", field="key_schema"),
    Setting("valueSchema", TEXT, None,
            "Schema of values in the format `avro`, `json-schema` or `protobuf`: the text of the schema, or a file on "
            "the driver.",
            "", READ, "own", field="value_schema"),
    Setting("schemaRegistryUrl", TEXT, None,
            "URL of the schema registry that contains the schemas of the keys and values, instead of `keySchema` and "
            "`valueSchema`.",
            "", READ, "own", field="schema_registry_url"),
    Setting("schemaRegistryConfig", TEXT, None,
            "Properties file on the driver that contains the credentials for the schema registry, as for "
            "`--registry-config` of the command line.",
            "", READ, "own", field="schema_registry_config"),
    Setting("keySubject", TEXT, None,
            "Subject of the schema registry whose latest version is the schema of the column `key`. The default is "
            "`<topic>-key`.",
            "", READ, "own", field="key_subject"),
    Setting("valueSubject", TEXT, None,
            "Subject of the schema registry whose latest version is the schema of the column `value`. The default is "
            "`<topic>-value`.",
            "", READ, "own", field="value_subject"),
    Setting("allPartitions", BOOLEAN, False,
            "Whether to search all partitions for the keys, instead of only the partitions that Kafka's default "
            "partitioner selects.",
            "", READ, "own"),
    Setting("view", one_of("log", "table"), "log",
            "Whether to return all records (`log`), or only the latest record of each key that has not been deleted "
            "(`table`).",
            "", BATCH, "own", field="view"),
    Setting("asOfTimestamp", TIMESTAMP, None,
            "Ignore the first record at or after this time, and all later records. Requires `view=table`.",
            "ms", BATCH, "own"),
    Setting("asOfOffsets", _JSON, None,
            f"Ignore records at or after these offsets (-1 for no limit), given as {OFFSETS_JSON}. Requires "
            "`view=table`.",
            "offset", BATCH, "own"),
    Setting("failOnDataLoss", BOOLEAN, True,
            "Whether to fail the query if records were deleted before they were read. A log that ends before the "
            "offsets of a checkpoint is always an error.", "", READ, "yes", field="fail_on_data_loss"),
    Setting("corruptRecords", one_of(*CORRUPT_RECORDS), CORRUPT_RECORDS[0],
            "Action for a corrupt batch. `truncate` is only supported for Kafka directories.",
            "", READ, "own", field="corrupt_records"),
    Setting("minPartitions", int64(1), None,
            "Desired minimum number of tasks. If fewer partitions are read, the partitions are split by size into "
            "about this many tasks.",
            "tasks", READ, "small partitions never share a task", field="min_partitions"),
    Setting("maxRecordsPerPartition", int64(1), None,
            "Maximum number of records per task.",
            "records", READ, "counts offsets", field="max_records_per_partition"),
    Setting("maxOffsetsPerTrigger", int64(1), None,
            "Approximate maximum number of records per micro-batch. Each partition with new records contributes at "
            "least one record.",
            "records", STREAM, "counts gaps", field="max_offsets_per_trigger"),
    Setting("minOffsetsPerTrigger", int64(1), None,
            "Minimum number of records per micro-batch. A micro-batch waits until this many records are available.",
            "records", STREAM, "counts gaps", field="min_offsets_per_trigger"),
    Setting("maxTriggerDelay", DURATION, 900_000,
            "Maximum time for which a micro-batch waits for `minOffsetsPerTrigger`.",
            "ms", STREAM, "yes", field="max_trigger_delay_ms"),
    Setting("maxBytesPerTrigger", int64(1), None,
            "Approximate maximum number of stored bytes per micro-batch.",
            "bytes", STREAM, "own", field="max_bytes_per_trigger"),
    Setting("poll.interval.ms", int64(0), None,
            "Time between two polls for new records. On a disk, the default is 10 ms, and grows while there are no new "
            "records, up to 30 times the duration of a poll. In a bucket, the default is 5 to 250 ms.",
            "ms", STREAM, "own", field="poll_interval_ms"),
    Setting("metadata.max.age.ms", int64(0), 300_000,
            "Time between two checks for new topics.",
            "ms", STREAM, "a client setting, with `kafka.`",
            aliases=("kafka.metadata.max.age.ms",), field="metadata_max_age_ms"),
    Setting("kafka.isolation.level", one_of(*ISOLATION_LEVELS), ISOLATION_LEVELS[0],
            "If set to `read_committed`, records of aborted and open transactions are skipped.",
            "", READ, "default `read_uncommitted`", field="isolation"),
    Setting("kafka.group.id", TEXT, None,
            "Consumer group whose committed offsets `startingOffsets=group` uses. A stream commits its offsets to "
            "this group.",
            "", READ, "commits nothing", field="group_id"),
    Setting("kafka.group.instance.id", TEXT, None,
            "Name of the query in its consumer group. By default, a random name is used.",
            "", STREAM, "a client setting", field="group_instance"),
    Setting("kafka.session.timeout.ms", int64(1, MAX_SESSION_TIMEOUT_MS), DEFAULT_SESSION_TIMEOUT_MS,
            "Time without a heartbeat after which a query is removed from its consumer group.",
            "ms", STREAM, "a client setting, 45000", field="session_timeout_ms"),
    Setting("kafka.auto.offset.reset", one_of("earliest", "latest", "none"), None,
            "Where to start in a partition without a committed offset if `startingOffsets` is `group`.",
            "", READ, "rejected", field="group_reset"),
    Setting("topic", TEXT, None,
            "Topic to write to. This option overrides the column `topic`. It is not required if the path is a topic "
            "directory.", "", WRITE, "yes", field="topic"),
    Setting("topic.*", TEXT, None,
            "Config of a topic that the write creates, such as `topic.retention.ms`.", "", WRITE, "own"),
    Setting("compression.type", one_of(*CODECS), None,
            "Compression codec. The default is zstd. If the topic config `compression.type` is set to a codec, this "
            "option is ignored.",
            "", WRITE, "with `kafka.`, default `none`",
            aliases=("kafka.compression.type",), field="codec"),
    Setting("compression.level", int64(MIN_LEVEL), None,
            "Compression level of the codec. By default, the level that the topic configures is used.",
            "", WRITE, "own", field="level"),
    Setting("kafka.compression.gzip.level", int64(MIN_LEVEL), None,
            "Compression level to use if the codec is gzip.", "", WRITE, "yes"),
    Setting("kafka.compression.lz4.level", int64(MIN_LEVEL), None,
            "Compression level to use if the codec is lz4.", "", WRITE, "yes"),
    Setting("kafka.compression.zstd.level", int64(MIN_LEVEL), None,
            "Compression level to use if the codec is zstd.", "", WRITE, "default 3"),
    Setting("write.buffer.bytes", int64(1, 1 << 30), 64 << 20,
            "Number of bytes of records that a task buffers before the records are encoded.",
            "bytes", WRITE, "own", field="buffer_bytes"),
    Setting("num.partitions", int64(1), 1,
            "Number of partitions of each topic that the write creates. This option overrides the root default.",
            "partitions", WRITE, "a broker setting", field="partitions"),
    Setting("auto.create.topics.enable", BOOLEAN, True,
            "Whether to create a root or topic that does not exist. If the root default of the same name is `false`, "
            "topics are not created either.",
            "", WRITE, "a broker setting", aliases=("kafka.allow.auto.create.topics",), field="auto_create"),
    Setting("txnAppId", TEXT, None,
            "Unique id of the application. A batch with the same `txnAppId` and `txnVersion` as an earlier batch is "
            "skipped.",
            "", WRITE, "own, as in Delta", field="txn_app_id"),
    Setting("txnVersion", int64(0), None,
            "Version of the batch. It must increase with each batch of the application.",
            "", WRITE, "own, as in Delta", field="txn_version"),
    Setting("replayMismatch", one_of("error", "accept"), "error",
            "Whether a replayed micro-batch that differs from its first attempt is an error (`error`) or is accepted "
            "(`accept`).",
            "", WRITE, "own", field="replay_mismatch"),
    Setting("transaction.timeout.ms", int64(1, MAX_TRANSACTION_TIMEOUT_MS), DEFAULT_TRANSACTION_TIMEOUT_MS,
            "Time after which an open transaction of a write to several topics is aborted.",
            "ms", WRITE, "a producer setting",
            aliases=("kafka.transaction.timeout.ms",), field="transaction_timeout_ms"),
    *map(_of_bucket, SETTINGS),
)  # fmt: skip
LEVELS = {codec: f"kafka.compression.{codec}.level" for codec in ("gzip", "lz4", "zstd")}
"""The options for the level of each codec, which apply if the codec is used."""
CLIENT_OPTIONS = frozenset(
    {
        *("metadata.max.age.ms", "kafka.isolation.level", "kafka.group.id", "kafka.group.instance.id"),
        "kafka.session.timeout.ms",
    }
)
"""Read options that are also Kafka client configs. A write accepts and ignores these options."""

# Options that Spark adds, and timeouts of broker clients. These options do not have an effect.
_SILENT = "checkpointlocation queryname kafkaconsumer.polltimeoutms fetchoffset.numretries fetchoffset.retryintervalms"

# Options that Kafka's connector also rejects, with the reason.
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
    "asyncprogresstrackingenabled": "a restarted query may then reuse a batch id for other records, which this sink "
    "would skip as a repeated batch; remove the option and its related options",
    "paths": "load accepts one path: load the root with subscribe='a,b', or load each path and use union",
}
_SPELLED = {
    name.lower(): name for name in ("versionAsOf", "timestampAsOf", "startingVersion", "asyncProgressTrackingEnabled")
}

# Kafka client configs for brokers, connections and buffering. They are accepted and ignored, so that a query can be
# moved to sparklog by changing only its format and path.
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
    """Return the option with this name or alias. Return None for a known option that has no effect.

    Raises BadRequest if the name is unknown (the error suggests the most similar name), or if Kafka's connector rejects
    the option.
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
