"""Options of a producer, by the names that Kafka's producers have, with underscores."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias, TypedDict

from sparklog.arguments import NAME, ArgumentKind, instance, one_of, whole
from sparklog.clients.producer.serializers import Serializer
from sparklog.errors import BadRequest
from sparklog.format.record_batch import CODECS, Codec
from sparklog.log.decisions.decision import DEFAULT_TRANSACTION_TIMEOUT_MS, MAX_TRANSACTION_TIMEOUT_MS
from sparklog.log.journal.documents import INT32_MAX
from sparklog.log.write.append_target import MAX_BUFFER_BYTES

PartitionFunction: TypeAlias = Callable[[bytes | None, Sequence[int], Sequence[int]], int]
"""Takes the key, all partitions, and those that can be written, which are all: as kafka-python's."""


@dataclass(frozen=True, kw_only=True)
class ProducerOptions:
    """Options of a producer: see `producer`."""

    linger_ms: float = 20
    batch_size: int = 1 << 20
    buffer_memory: int = 32 << 20
    max_block_ms: int = 60_000
    compression_type: Codec = "zstd"
    partitioner: PartitionFunction | None = None
    client_id: str = "sparklog-producer"
    key_serializer: Serializer | None = None
    value_serializer: Serializer | None = None
    producer_id: str | None = None
    transactional_id: str | None = None
    transaction_timeout_ms: int = DEFAULT_TRANSACTION_TIMEOUT_MS
    acks: str | int = "all"
    retries: int = INT32_MAX
    max_in_flight_requests_per_connection: int = 5
    enable_idempotence: bool = True

    def __post_init__(self) -> None:
        if self.producer_id is not None and self.transactional_id is not None:
            raise BadRequest("give producer_id or transactional_id, not both: a transaction has no sequences")
        if self.partitioner is not None and not callable(self.partitioner):
            raise BadRequest(f"partitioner is a function of key and partitions, found {self.partitioner!r:.80}")
        if self.acks not in ("all", -1) or isinstance(self.acks, bool):
            raise BadRequest(f"acks is 'all': a future resolves once its record is durable; found {self.acks!r}")
        if self.retries != INT32_MAX:
            raise BadRequest(
                f"retries is {INT32_MAX}: requests are tried again by their store's rules; found {self.retries!r}"
            )
        if self.max_in_flight_requests_per_connection not in range(1, 6):
            raise BadRequest(
                "max_in_flight_requests_per_connection is 1 to 5: records of a partition stay in order; found "
                f"{self.max_in_flight_requests_per_connection!r}"
            )
        if self.enable_idempotence is not True:
            raise BadRequest(
                "enable_idempotence is True: no retry of the producer writes a record twice; found "
                f"{self.enable_idempotence!r}"
            )


class ProducerKeywords(TypedDict, total=False):
    """The fields of `ProducerOptions`, as keyword arguments."""

    linger_ms: float
    batch_size: int
    buffer_memory: int
    max_block_ms: int
    compression_type: Codec
    partitioner: PartitionFunction | None
    client_id: str
    key_serializer: Serializer | None
    value_serializer: Serializer | None
    producer_id: str | None
    transactional_id: str | None
    transaction_timeout_ms: int
    acks: str | int
    retries: int
    max_in_flight_requests_per_connection: int
    enable_idempotence: bool


MILLISECONDS = ArgumentKind(
    "a number of milliseconds from 0",
    lambda value: isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < 1e12,
)
KINDS = {
    "linger_ms": MILLISECONDS,
    "batch_size": whole(1, MAX_BUFFER_BYTES),
    "buffer_memory": whole(1, MAX_BUFFER_BYTES),
    "max_block_ms": whole(0),
    "compression_type": one_of(*CODECS),
    "client_id": NAME,
    "producer_id": NAME.or_none(),
    "transactional_id": NAME.or_none(),
    "transaction_timeout_ms": whole(1, MAX_TRANSACTION_TIMEOUT_MS),
    "enable_idempotence": instance("True", bool),
}
"""What values of options must be, for `checked`."""
