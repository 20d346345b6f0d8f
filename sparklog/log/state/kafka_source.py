"""The fields of commits and states that describe the Kafka topic of an imported topic.

* `KafkaSource`: Kafka's topic id and, for each partition, the last imported batch and the log end. The next import uses
  them to check that it continues the same log, and that the topic has not been written to since the last import.
* `KafkaOpen`: the transactions that have no marker in Kafka's log. As in Kafka, the last stable offset does not advance
  past these transactions until a commit appends the marker that Kafka would have written (see
  `sparklog.log.write.kafka_markers`). Like the open slices of a sparklog transaction, a transaction is dropped when the
  log start passes all its records. A producer has at most one open transaction in a partition.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from sparklog.log.journal.documents import INT32_MAX, TEXT, UINT32_MAX, Document, Member, members, one_of, whole, wholes
from sparklog.log.journal.names import MAX_PARTITIONS

COMMIT, ABORT = DECISIONS = ("commit", "abort")
"""The possible decisions on a transaction without a marker."""


@dataclass(frozen=True, slots=True)
class ImportedEnd:
    """The end of an imported partition. It consists of the log end offset, and the last offset, checksum and leader
    epoch of the last batch.
    """

    end: int
    last: int = -1
    crc: int = 0
    epoch: int = -1


@dataclass(frozen=True, slots=True)
class KafkaSource:
    """The Kafka topic from which a topic was imported: its topic id, and the end of each imported partition."""

    topic_id: str
    ends: Mapping[int, ImportedEnd] = field(default_factory=dict)

    def after(self, newer: KafkaSource) -> KafkaSource:
        """Merge two sources. The ends in `newer` take precedence. The topic id may be unknown in the first import."""
        return KafkaSource(newer.topic_id or self.topic_id, {**self.ends, **newer.ends})


@dataclass(frozen=True, slots=True)
class KafkaOpen:
    """A producer's open Kafka transaction in one partition. `decided` is the decision, or None if the decision is
    unknown.
    """

    partition: int
    producer: int
    epoch: int
    first: int
    end: int
    transactional_id: str | None = None
    timeout_ms: int | None = None
    start_ms: int | None = None
    decided: str | None = None

    def __str__(self) -> str:
        owner = "" if self.transactional_id is None else f" ('{self.transactional_id}')"
        decided = "" if self.decided is None else f", decided: {self.decided}"
        where = f"in partition {self.partition}, from offset {self.first}"
        return f"the open Kafka transaction of producer {self.producer}{owner} {where}{decided}"

    @property
    def ended(self) -> KafkaEnded:
        return KafkaEnded(self.partition, self.producer)


@dataclass(frozen=True, slots=True, order=True)
class KafkaEnded:
    """A transaction that a commit ends by appending the producer's marker to the partition."""

    partition: int
    producer: int


PARTITION = whole(0, MAX_PARTITIONS - 1)
PARTITIONS = wholes(0, MAX_PARTITIONS - 1)
KAFKA_OPEN_JSON = Document(
    KafkaOpen,
    Member("partition", PARTITION),
    Member("producer", whole(0)),
    Member("epoch", whole(0, 2**15 - 1)),
    Member("first", whole(0)),
    Member("end", whole(1)),
    Member("transactionalId", TEXT, optional=True),
    *members(whole(0), "timeoutMs", "startMs", optional=True),
    Member("decided", one_of(*DECISIONS), optional=True),
    check=lambda item, transaction: item.integer("end", transaction.first + 1),
)
KAFKA_ENDED_JSON = Document(KafkaEnded, Member("partition", PARTITION), Member("producer", whole(0)))


def _columns_of(source: KafkaSource) -> tuple[object, ...]:
    """Return the topic id, the partitions, and one column per field of `ImportedEnd`."""
    rows = [(partition, end.end, end.last, end.crc, end.epoch) for partition, end in sorted(source.ends.items())]
    return source.topic_id, *(zip(*rows, strict=True) if rows else [()] * 5)


def _of_columns(topic_id: str, partition: Sequence[int], **columns: Sequence[int]) -> KafkaSource:
    rows = zip(*columns.values(), strict=True)
    return KafkaSource(topic_id, {number: ImportedEnd(*row) for number, row in zip(partition, rows, strict=True)})


KAFKA_SOURCE_JSON = Document(
    _of_columns,
    Member("topicId", TEXT),
    Member("partition", PARTITIONS),
    Member("end", wholes(0, like="partition")),
    Member("last", wholes(-1, like="partition")),
    Member("crc", wholes(0, UINT32_MAX, like="partition")),
    Member("epoch", wholes(-1, INT32_MAX, like="partition")),
    parts=_columns_of,
)
