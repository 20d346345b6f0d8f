"""Kafka's part of the state of an imported topic: how far each partition was taken, and which transactions are open.

docs/reference/format-commits.md says what the members mean.

**KafkaSource.** The next import of a topic must know that the log it meets is the one it had begun, and that nothing
was written here since. It knows both by Kafka's topic id, by the last batch that was taken, and by the log end. The
topic's state keeps them as long as the topic is.

**KafkaOpen.** Transactions that no marker ends in the log of Kafka. The topic's state keeps them, so that its last
stable offset stands where Kafka's stood, for readers, for sealing and for compaction, without a look into any file.
`read_committed` readers see neither their records nor what lies behind them, until a commit appends the marker that
Kafka would have written (see `sparklog.log.write.kafka_markers`). Retention that passes all that Kafka wrote of a
transaction forgets it, as it forgets open slices. A producer has at most one open transaction in a partition.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from sparklog.log.journal.documents import INT32_MAX, TEXT, UINT32_MAX, Document, Member, one_of, whole, wholes
from sparklog.log.journal.names import MAX_PARTITIONS

COMMIT, ABORT = DECISIONS = ("commit", "abort")


@dataclass(frozen=True, slots=True)
class ImportedEnd:
    """End of an imported partition: the log end here; last offset, checksum and leader epoch of its last batch."""

    end: int
    last: int = -1
    crc: int = 0
    epoch: int = -1


@dataclass(frozen=True, slots=True)
class KafkaSource:
    """A topic of Kafka's: its id there, and how far each partition was taken (those of which anything was)."""

    topic_id: str
    ends: Mapping[int, ImportedEnd] = field(default_factory=dict)

    def after(self, newer: KafkaSource) -> KafkaSource:
        """Both, the newer one's ends over these; an id that was not known at first may come later."""
        return KafkaSource(newer.topic_id or self.topic_id, {**self.ends, **newer.ends})


def _columns_of(source: KafkaSource) -> tuple[object, ...]:
    """The topic's id, the partitions, and a column for each field of `ImportedEnd`."""
    rows = [(partition, end.end, end.last, end.crc, end.epoch) for partition, end in sorted(source.ends.items())]
    return source.topic_id, *(zip(*rows, strict=True) if rows else [()] * 5)


def _of_columns(topic_id: str, partition: Sequence[int], **columns: Sequence[int]) -> KafkaSource:
    rows = zip(*columns.values(), strict=True)
    return KafkaSource(topic_id, {number: ImportedEnd(*row) for number, row in zip(partition, rows, strict=True)})


KAFKA_SOURCE_JSON = Document(
    _of_columns,
    Member("topicId", TEXT),
    Member("partition", wholes(0, MAX_PARTITIONS - 1)),
    Member("end", wholes(0, like="partition")),
    Member("last", wholes(-1, like="partition")),
    Member("crc", wholes(0, UINT32_MAX, like="partition")),
    Member("epoch", wholes(-1, INT32_MAX, like="partition")),
    parts=_columns_of,
)


@dataclass(frozen=True, slots=True)
class KafkaOpen:
    """One open transaction of one producer in one partition; the last four as far as Kafka's coordinator knew them.

    `decided` (`commit` or `abort`): the marker is missing in this partition, and the transaction can only end so.
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
        return (
            f"Kafka's open transaction of producer {self.producer}{owner} in partition {self.partition}, from "
            f"{self.first}{decided}"
        )

    @property
    def ended(self) -> KafkaEnded:
        """As the commit names it whose marker ends it."""
        return KafkaEnded(self.partition, self.producer)


@dataclass(frozen=True, slots=True, order=True)
class KafkaEnded:
    """A transaction that a commit ends: it appends the producer's marker to the partition."""

    partition: int
    producer: int


KAFKA_OPEN_JSON = Document(
    KafkaOpen,
    Member("partition", whole(0, MAX_PARTITIONS - 1)),
    Member("producer", whole(0)),
    Member("epoch", whole(0, 2**15 - 1)),
    Member("first", whole(0)),
    Member("end", whole(1)),
    Member("transactionalId", TEXT, optional=True),
    Member("timeoutMs", whole(0), optional=True),
    Member("startMs", whole(0), optional=True),
    Member("decided", one_of(*DECISIONS), optional=True),
    check=lambda item, each: item.integer("end", each.first + 1),
)
KAFKA_ENDED_JSON = Document(KafkaEnded, Member("partition", whole(0, MAX_PARTITIONS - 1)), Member("producer", whole(0)))


def forgotten(open_: Sequence[KafkaOpen], log_start: npt.NDArray[np.int64]) -> tuple[KafkaOpen, ...]:
    """Those of which something is left above the log starts."""
    return tuple(each for each in open_ if each.end > log_start[each.partition])
