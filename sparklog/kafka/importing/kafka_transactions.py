"""Transactional ids of a Kafka log directory, in Kafka's words: what its coordinators and partitions have written down.

`__transaction_state` has the newest state of each id, as `kafka-transactions.sh list` and `describe` tell it. No file
says which broker the coordinator is: it is the one that leads the id's partition of that topic.

The newest `.snapshot` of a partition has its producers up to an offset, as `describe-producers` tells them. A broker
writes one when it stops or rolls.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from sparklog.errors import BadRequest, Corrupt, NotFound, SparklogError, did_you_mean
from sparklog.format.producer_snapshot import parse_snapshot
from sparklog.kafka.importing.coordinators import BEGUN, Kept, LogDir, read_newest
from sparklog.kafka.in_place.directory import TRANSACTION_STATE, partition_folders
from sparklog.kafka.in_place.view import KafkaView
from sparklog.kafka.messages.coordinator_records import decode_transaction_key, decode_transaction_value
from sparklog.log.journal.clocks import SYSTEM

SNAPSHOT = ".snapshot"


@dataclass(frozen=True, slots=True)
class KafkaTransactionalId:
    """An id as in its coordinator's log; times in ms. `coordinator`: its partition of `__transaction_state`.

    `partitions`: those of an open transaction, `topic-0`; `start_ms` None: none was begun.
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
    """A producer in one partition, as of the partition's newest snapshot, which is of offset `snapshot`.

    None for a last coordinator epoch or a first offset of an open transaction that there is not.
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
    """Read all ids of a log directory, in order. `BadRequest`, `NotFound` where none can be; `Corrupt` for damage."""
    if view.layout != "log-dir":
        raise BadRequest(f"{view.location} is one partition: give the log directory, which has {TRANSACTION_STATE}")
    if TRANSACTION_STATE not in {topic for topic, _ in partition_folders(view.place)}:
        raise NotFound(
            f"{view.location} holds no partition of {TRANSACTION_STATE}, where Kafka keeps transactional ids: give the "
            "log directory of a broker that does"
        )
    ids: list[KafkaTransactionalId] = []

    def take(key: bytes, kept: Kept) -> None:
        name, value = decode_transaction_key(key), decode_transaction_value(kept.value)
        if name is not None and value is not None:
            ids.append(
                KafkaTransactionalId(
                    transactional_id=name,
                    coordinator=f"{TRANSACTION_STATE}-{kept.partition}",
                    producer_id=value.producer_id,
                    producer_epoch=value.producer_epoch,
                    transaction_state=value.status.name.title().replace("_", ""),
                    transaction_timeout_ms=value.timeout_ms,
                    start_ms=value.start_ms,
                    last_update_ms=value.last_update_ms,
                    partitions=tuple(f"{topic}-{partition}" for topic, partition in sorted(value.partitions or ())),
                    is_open=value.status in BEGUN,
                )
            )

    read_newest(LogDir(view.place, SYSTEM), TRANSACTION_STATE, take)
    return sorted(ids, key=lambda item: item.transactional_id)


def find_transactional_id(view: KafkaView, name: str) -> KafkaTransactionalId:
    ids = {item.transactional_id: item for item in kafka_transactional_ids(view)}
    if name not in ids:
        hint = did_you_mean(name, list(ids))
        raise NotFound(f"transactional id '{name}' is not in {view.location}{hint}; list them")
    return ids[name]


def producer_states(view: KafkaView, failures: list[SparklogError]) -> Iterator[KafkaProducerState]:
    """Yield the producers in the newest snapshot of each partition. Damaged ones are put into `failures`."""
    for (topic, partition), folder in sorted(partition_folders(view.place).items()):
        names = [name for name in folder.names() if name.endswith(SNAPSHOT) and name.removesuffix(SNAPSHOT).isdigit()]
        if not names:
            continue
        newest = max(names)
        try:
            entries = parse_snapshot(folder.child(newest).data() or b"", file=str(folder.child(newest)))
        except Corrupt as error:
            failures.append(error)
            continue
        for entry in sorted(entries, key=lambda entry: entry.producer_id):
            yield KafkaProducerState(
                partition=f"{topic}-{partition}",
                snapshot=int(newest.removesuffix(SNAPSHOT)),
                producer_id=entry.producer_id,
                producer_epoch=entry.producer_epoch,
                last_sequence=entry.last_sequence,
                last_timestamp_ms=entry.timestamp,
                coordinator_epoch=None if entry.coordinator_epoch < 0 else entry.coordinator_epoch,
                current_transaction_start_offset=None if entry.open_since < 0 else entry.open_since,
            )
