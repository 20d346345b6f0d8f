"""Options of a producer. The options have the names of Kafka's producer configs, with underscores instead of dots."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Annotated, TypeAlias, TypedDict

from sparklog.clients.producer.serializers import Serializer
from sparklog.common.settings import ANY, BOOLEAN, ValueType, int64, is_integer, number, option, with_defaults
from sparklog.errors import BadRequest
from sparklog.format.record_batch import Codec
from sparklog.limits import DEFAULT_TRANSACTION_TIMEOUT_MS, MAX_TRANSACTION_TIMEOUT_MS
from sparklog.log.journal.documents import INT32_MAX
from sparklog.log.write.append_target import MAX_BUFFER_BYTES

PartitionFunction: TypeAlias = Callable[[bytes | None, Sequence[int], Sequence[int]], int]
"""A function that returns the partition of a record, as in kafka-python. Its arguments are the key, all partitions, and
the available partitions, which are also all partitions.
"""
_MILLISECONDS = number("a non-negative number of milliseconds", lambda value: 0 <= value < 1e12)
_BYTES = int64(1, MAX_BUFFER_BYTES)
_FUNCTION = ValueType("a function of a key and two lists of partitions", callable)
_ALL = ValueType(
    "'all', because a future completes only after its record is durable",
    lambda value: value == "all" or (is_integer(value) and value == -1),
)
_RETRIES = replace(int64(INT32_MAX, INT32_MAX), valid=f"{INT32_MAX}, because the store decides how often to retry")
_IDEMPOTENT = ValueType("True, because no retry writes a record twice", lambda value: value is True, BOOLEAN.parse)


class ProducerOptions(TypedDict, total=False):
    """The options of `sparklog.producer`."""

    # fmt: off
    linger_ms: Annotated[float, option(20,
        "Time in milliseconds for which records of a topic are collected before they are committed together.",
        _MILLISECONDS)]
    batch_size: Annotated[int, option(1 << 20,
        "Size in bytes of the collected records of a topic at which the records are committed without further delay.",
        _BYTES)]
    buffer_memory: Annotated[int, option(32 << 20,
        "Memory in bytes for records that are not yet committed, with an overhead of 200 bytes per record of `send`.",
        _BYTES)]
    max_block_ms: Annotated[int, option(60_000,
        "Time in milliseconds for which `send` waits for free `buffer_memory`. After this time, `send` raises "
        "`Unavailable`.", int64(0))]
    compression_type: Annotated[Codec, option("zstd",
        "Compression codec. If the topic config `compression.type` is set to a codec, this option is ignored.")]
    partitioner: Annotated[PartitionFunction | None, option(None,
        "Function that returns the partition of a record. Its arguments are the key (bytes or None), the list of all "
        "partitions, and the list of available partitions, which always contains all partitions. If None, a record "
        "with a key goes to the partition of the key's murmur2 hash, as in Kafka, and records without a key go to a "
        "different partition in each commit.", _FUNCTION)]
    client_id: Annotated[str, option("sparklog-producer",
        "Name of the producer in thread names and messages.")]
    key_serializer: Annotated[Serializer | None, option(None,
        "Serializer of keys: a function, `str`, `bytes`, a format name from `formats.FORMATS`, or the name and the "
        'schema of a format such as `("avro", schema)`. The schema may be a `Subject` of a schema registry. '
        "If None, keys must be bytes or strings. The key None is not serialized, and is written as null.",
        ANY)]
    value_serializer: Annotated[Serializer | None, option(None,
        "Serializer of values, with the same choices as `key_serializer`. The value None is written as null (a "
        "tombstone).", ANY)]
    producer_id: Annotated[str | None, option(None,
        "Id with which the producer avoids duplicate records across restarts. If it is set, each `send` requires a "
        "`sequence`.")]
    transactional_id: Annotated[str | None, option(None,
        "Transactional id to use for transactions. See `Producer.begin_transaction`.")]
    transaction_timeout_ms: Annotated[int, option(DEFAULT_TRANSACTION_TIMEOUT_MS,
        "Time in milliseconds after which other processes may abort an open transaction.",
        int64(1, MAX_TRANSACTION_TIMEOUT_MS))]
    acks: Annotated[str | int, option("all",
        "Acknowledgements that are required before a future completes.", _ALL)]
    retries: Annotated[int, option(INT32_MAX,
        "Number of retries. The store decides how often to retry a request.", _RETRIES)]
    max_in_flight_requests_per_connection: Annotated[int, option(5,
        "Has no effect. A topic has at most one commit in flight, so the records of a partition are never reordered.",
        int64(1, 5))]
    enable_idempotence: Annotated[bool, option(True,
        "Whether the producer writes exactly one copy of each record.", _IDEMPOTENT)]
    # fmt: on


def producer_options(given: ProducerOptions) -> ProducerOptions:
    """Add the defaults to options. Raises `BadRequest` if the options contradict each other."""
    options = with_defaults(ProducerOptions, given)
    if options["producer_id"] is not None and options["transactional_id"] is not None:
        raise BadRequest(
            "specify producer_id or transactional_id, not both: records of a transaction do not have sequence numbers"
        )
    return options
