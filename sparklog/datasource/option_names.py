"""The names of all options: ours, the Kafka connector's, and the settings of Kafka's clients that mean nothing here.

Spark hands options over with lower-cased keys, so each name is looked up in lower case and shown in its own spelling.
"""

from __future__ import annotations

from sparklog.errors import BadRequest, nearest
from sparklog.log.state.config_table import kafka_name

SHARED = ("path", "includeHeaders")

READ = (
    "subscribe",
    "subscribePattern",
    "assign",
    "startingTimestamp",
    "startingOffsetsByTimestamp",
    "startingOffsets",
    "startingOffsetsByTimestampStrategy",
    "endingTimestamp",
    "endingOffsetsByTimestamp",
    "endingOffsets",
    "failOnDataLoss",
    "corruptRecords",
    "minPartitions",
    "maxRecordsPerPartition",
    "maxOffsetsPerTrigger",
    "minOffsetsPerTrigger",
    "maxTriggerDelay",
    "maxBytesPerTrigger",
    "poll.interval.ms",
    "metadata.max.age.ms",
    "kafka.isolation.level",
    "kafka.group.id",
    "kafka.group.instance.id",
    "kafka.session.timeout.ms",
    "kafka.auto.offset.reset",
)

WRITE = (
    "topic",
    "compression.type",
    "compression.level",
    "write.buffer.bytes",
    "num.partitions",
    "auto.create.topics.enable",
    "txnAppId",
    "txnVersion",
    "replayMismatch",
    "transaction.timeout.ms",
)

# Put there by Spark itself.
SPARK = ("checkpointLocation", "queryName")

# Patience of a client that talks to a broker, and names for groups that nobody asks for: there is neither.
CONNECTOR_IGNORED = (
    *("kafkaConsumer.pollTimeoutMs", "fetchOffset.numRetries", "fetchOffset.retryIntervalMs"),
    "groupIdPrefix",
)

# The same setting under the name that Kafka's clients give it: as good as ours.
ALIASES = {
    "kafka.compression.type": "compression.type",
    "kafka.metadata.max.age.ms": "metadata.max.age.ms",
    "kafka.allow.auto.create.topics": "auto.create.topics.enable",
    "kafka.transaction.timeout.ms": "transaction.timeout.ms",
}

# Levels under the names that Kafka's producer has for them; they count when that codec is the one chosen.
CODEC_LEVELS = {f"kafka.compression.{codec}.level": codec for codec in ("gzip", "lz4", "zstd")}

# Refused by the Kafka connector too, and why.
REFUSED = {
    "kafka.key.deserializer": "keys are read as binary; cast them in the query",
    "kafka.value.deserializer": "values are read as binary; cast them in the query",
    "kafka.key.serializer": "cast the key column to string or binary in the query",
    "kafka.value.serializer": "cast the value column to string or binary in the query",
    "kafka.enable.auto.commit": "Spark's checkpoint keeps the offsets",
    "kafka.interceptor.classes": "there is no broker client to intercept",
    "kafka.partitioner.class": "give a partition column; keys are partitioned by murmur2 as Kafka does",
    "kafka.transactional.id": "use txnAppId and txnVersion",
}

# Settings of Kafka's clients that describe brokers, connections and buffering: accepted and without effect, so that a
# query moves over by changing the format and the path.
KAFKA_IGNORED = frozenset(
    f"kafka.{name}"
    for name in (
        "acks",
        "auto.commit.interval.ms",
        "auto.include.jmx.reporter",
        "batch.size",
        "bootstrap.servers",
        "buffer.memory",
        "check.crcs",
        "client.dns.lookup",
        "client.id",
        "client.rack",
        "connections.max.idle.ms",
        "default.api.timeout.ms",
        "delivery.timeout.ms",
        "enable.idempotence",
        "enable.metrics.push",
        "exclude.internal.topics",
        "fetch.max.bytes",
        "fetch.max.wait.ms",
        "fetch.min.bytes",
        "group.protocol",
        "group.remote.assignor",
        "heartbeat.interval.ms",
        "linger.ms",
        "max.block.ms",
        "max.in.flight.requests.per.connection",
        "max.partition.fetch.bytes",
        "max.poll.interval.ms",
        "max.poll.records",
        "max.request.size",
        "metadata.max.idle.ms",
        "metadata.recovery.rebootstrap.trigger.ms",
        "metadata.recovery.strategy",
        "metric.reporters",
        "metrics.num.samples",
        "metrics.recording.level",
        "metrics.sample.window.ms",
        "partition.assignment.strategy",
        "partitioner.adaptive.partitioning.enable",
        "partitioner.availability.timeout.ms",
        "partitioner.ignore.keys",
        "receive.buffer.bytes",
        "reconnect.backoff.max.ms",
        "reconnect.backoff.ms",
        "request.timeout.ms",
        "retries",
        "retry.backoff.max.ms",
        "retry.backoff.ms",
        "security.protocol",
        "security.providers",
        "send.buffer.bytes",
        "socket.connection.setup.timeout.max.ms",
        "socket.connection.setup.timeout.ms",
    )
)

KAFKA_IGNORED_PREFIXES = ("kafka.sasl.", "kafka.ssl.", "kafka.aws.", "kafka.schema.registry.")

ALL = SHARED + READ + WRITE
_BY_LOWER_CASE = {name.lower(): name for name in (*ALL, *CODEC_LEVELS)}
_ALIASES = {name.lower(): target for name, target in ALIASES.items()}
_SILENT = frozenset(name.lower() for name in (*SPARK, *CONNECTOR_IGNORED)) | KAFKA_IGNORED


def canonical(given: str) -> str | None:
    """The option's own spelling, or None if it is known and has no effect.

    Raises BadRequest for a name nobody knows, with the nearest one, and for those that Kafka's connector refuses.
    """
    key = given.lower()
    if key in _BY_LOWER_CASE:
        return _BY_LOWER_CASE[key]
    if key in _ALIASES:
        return _ALIASES[key]
    if key in REFUSED:
        raise BadRequest(f"Option '{key}' is not supported: {REFUSED[key]}.")
    if key in _SILENT or key.startswith(KAFKA_IGNORED_PREFIXES):
        return None
    why = kafka_name(key)
    raise BadRequest(f"Unknown option '{given}': {f'{why}; remove it' if why else _nearest(key)}")


def _nearest(key: str) -> str:
    candidates = {
        **_BY_LOWER_CASE,
        **{name: name for name in KAFKA_IGNORED},
        **{name.lower(): name for name in ALIASES},
    }
    found = nearest(key, candidates, limit=1)
    return f"did you mean '{candidates[found[0]]}'?" if found else "no option of that name exists; remove it"
