"""Describe the transactional ids and producers in a Kafka log directory. Fields and states have Kafka's names.

`__transaction_state` contains the latest state of each transactional id, as shown by `kafka-transactions.sh list` and
`describe`. The coordinator of a transactional id is the broker that leads the `__transaction_state` partition of the
id. The files do not contain this broker.

The latest `.snapshot` of a partition contains the producer state up to an offset, as shown by `describe-producers`. A
broker writes a snapshot when it shuts down and when it rolls a segment.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from sparklog.errors import BadRequest, Corrupt, NotFound, SparklogError, did_you_mean
from sparklog.format.producer_snapshot import parse_snapshot
from sparklog.kafka.importing.coordinators import OPEN_STATUSES, LogDir, StoredValue, read_latest
from sparklog.kafka.in_place.directory import TRANSACTION_STATE, partition_dirs
from sparklog.kafka.in_place.view import KafkaView
from sparklog.kafka.messages.coordinator_records import decode_transaction_key, decode_transaction_value
from sparklog.log.journal.clocks import SYSTEM

SNAPSHOT = ".snapshot"


@dataclass(frozen=True, slots=True)
class KafkaTransactionalId:
    """A transactional id, as stored in the log of its coordinator. Times are in ms.

    * `coordinator`: the partition of `__transaction_state` that stores the id
    * `start_ms`: the start of the transaction, or None if no transaction has started
    * `partitions`: the partitions of the open transaction, such as `topic-0`
    """

    transactional_id: str
    coordinator: str
    producer_id: int
    producer_epoch: int
    transaction_state: str
    transaction_timeout_ms: int
    start_ms: int | None
    last_update_ms: int
    partitions: tuple[str, ...]
    is_open: bool


@dataclass(frozen=True, slots=True)
class KafkaProducerState:
    """A producer in the latest snapshot of a partition. `snapshot` is the offset of the snapshot.

    The coordinator epoch is None if the producer has not ended a transaction. The start offset is None if the producer
    does not have an open transaction.
    """

    partition: str
    snapshot: int
    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_timestamp_ms: int
    coordinator_epoch: int | None
    current_transaction_start_offset: int | None


def kafka_transactional_ids(view: KafkaView) -> list[KafkaTransactionalId]:
    """Return all transactional ids of a log directory, in order.

    Raises `BadRequest` if the path is a partition directory, `NotFound` if `__transaction_state` does not exist, and
    `Corrupt` if `__transaction_state` is damaged.
    """
    if view.layout != "log-dir":
        raise BadRequest(
            f"{view.location} is a partition directory: open its log directory, which contains {TRANSACTION_STATE}"
        )
    if TRANSACTION_STATE not in {topic for topic, _ in partition_dirs(view.path)}:
        raise NotFound(
            f"{view.location} has no partition of {TRANSACTION_STATE}, where Kafka stores transactional ids: open the"
            " log directory of a broker that has a partition of this topic"
        )
    ids: list[KafkaTransactionalId] = []

    def add(key: bytes, stored: StoredValue) -> None:
        name, value = decode_transaction_key(key), decode_transaction_value(stored.value)
        if name is not None and value is not None:
            ids.append(
                KafkaTransactionalId(
                    transactional_id=name,
                    coordinator=f"{TRANSACTION_STATE}-{stored.partition}",
                    producer_id=value.producer_id,
                    producer_epoch=value.producer_epoch,
                    transaction_state=value.status.label,
                    transaction_timeout_ms=value.timeout_ms,
                    start_ms=value.start_ms,
                    last_update_ms=value.last_update_ms,
                    partitions=tuple(f"{topic}-{partition}" for topic, partition in sorted(value.partitions or ())),
                    is_open=value.status in OPEN_STATUSES,
                )
            )

    read_latest(LogDir(view.path, SYSTEM), TRANSACTION_STATE, add)
    return sorted(ids, key=lambda item: item.transactional_id)


def find_transactional_id(view: KafkaView, name: str) -> KafkaTransactionalId:
    ids = {item.transactional_id: item for item in kafka_transactional_ids(view)}
    if name not in ids:
        hint = did_you_mean(name, list(ids))
        raise NotFound(f"transactional id '{name}' does not exist in {view.location}{hint}; list the transactional ids")
    return ids[name]


def producer_states(view: KafkaView, failures: list[SparklogError]) -> Iterator[KafkaProducerState]:
    """Yield the producers in the latest snapshot of each partition. The errors for damaged snapshots are added to
    `failures`.
    """
    for (topic, partition), partition_dir in sorted(partition_dirs(view.path).items()):
        names = [
            name for name in partition_dir.names() if name.endswith(SNAPSHOT) and name.removesuffix(SNAPSHOT).isdigit()
        ]
        if not names:
            continue
        latest = max(names)
        try:
            entries = parse_snapshot(partition_dir.child(latest).data() or b"", file=str(partition_dir.child(latest)))
        except Corrupt as error:
            failures.append(error)
            continue
        for entry in sorted(entries, key=lambda entry: entry.producer_id):
            yield KafkaProducerState(
                partition=f"{topic}-{partition}",
                snapshot=int(latest.removesuffix(SNAPSHOT)),
                producer_id=entry.producer_id,
                producer_epoch=entry.producer_epoch,
                last_sequence=entry.last_sequence,
                last_timestamp_ms=entry.timestamp,
                coordinator_epoch=None if entry.coordinator_epoch < 0 else entry.coordinator_epoch,
                current_transaction_start_offset=None if entry.open_since < 0 else entry.open_since,
            )
