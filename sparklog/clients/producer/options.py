"""Options of a producer, with the names of Kafka's producer configs and underscores."""

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
"""Takes the key, all partitions, and the available partitions (again all), as in kafka-python."""
_MILLISECONDS = number("a number of milliseconds from 0", lambda value: 0 <= value < 1e12)
_BYTES = int64(1, MAX_BUFFER_BYTES)
_FUNCTION = ValueType("a function of key and partitions", callable)
_ALL = ValueType(
    "'all', because a future resolves only once its record is durable",
    lambda value: value == "all" or (is_integer(value) and value == -1),
)
_RETRIES = replace(int64(INT32_MAX, INT32_MAX), valid=f"{INT32_MAX}, because the store decides about retries")
_IDEMPOTENT = ValueType("True, because no retry writes a record twice", lambda value: value is True, BOOLEAN.parse)


class ProducerOptions(TypedDict, total=False):
    """Options of a producer: see `producer`."""

    # fmt: off
    linger_ms: Annotated[float, option(20,
        "Time for which records of a topic accumulate before they are committed together.", _MILLISECONDS)]
    batch_size: Annotated[int, option(1 << 20,
        "Bytes of records of one topic that are committed without further waiting.", _BYTES)]
    buffer_memory: Annotated[int, option(32 << 20,
        "Memory for records that are not committed yet, with 200 bytes of overhead per record.", _BYTES)]
    max_block_ms: Annotated[int, option(60_000,
        "Time for which `send` waits for free `buffer_memory` before it raises `Unavailable`.", int64(0))]
    compression_type: Annotated[Codec, option("zstd", "Codec, unless the topic sets one.")]
    partitioner: Annotated[PartitionFunction | None, option(None,
        "Function that takes key (bytes or None), all partitions, and all partitions again, and returns one of them; "
        "None: murmur2 of the key as in Kafka, and without a key another partition for each commit.", _FUNCTION)]
    client_id: Annotated[str, option("sparklog-producer", "Name of the producer in thread names and messages.")]
    key_serializer: Annotated[Serializer | None, option(None,
        'Function, `str`, `bytes`, a name of `formats.FORMATS`, or `("avro", schema)`; None: keys are bytes or text. '
        "It is not called for None, which becomes null.", ANY)]
    value_serializer: Annotated[Serializer | None, option(None, "The same for values, where null is a tombstone.", ANY)]
    producer_id: Annotated[str | None, option(None,
        "Publish no record twice, even across restarts: `send` then takes a `sequence`.")]
    transactional_id: Annotated[str | None, option(None,
        "Id for writing transactions: see `Producer.begin_transaction`.")]
    transaction_timeout_ms: Annotated[int, option(DEFAULT_TRANSACTION_TIMEOUT_MS,
        "Time after which others may abort an open transaction.", int64(1, MAX_TRANSACTION_TIMEOUT_MS))]
    acks: Annotated[str | int, option("all", "Acknowledgements for which a future waits.", _ALL)]
    retries: Annotated[int, option(INT32_MAX, "Number of retries.", _RETRIES)]
    max_in_flight_requests_per_connection: Annotated[int, option(5,
        "Has no effect: a topic has one commit in flight, so records of a partition stay in order.", int64(1, 5))]
    enable_idempotence: Annotated[bool, option(True, "Whether the producer is idempotent.", _IDEMPOTENT)]
    # fmt: on


def producer_options(given: ProducerOptions) -> ProducerOptions:
    """Add the defaults to options. Raises `BadRequest` if options contradict each other."""
    options = with_defaults(ProducerOptions, given)
    if options["producer_id"] is not None and options["transactional_id"] is not None:
        raise BadRequest("give producer_id or transactional_id, not both: transactions have no sequences")
    return options
