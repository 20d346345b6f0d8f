"""Where an imported topic comes from and how far it was taken: what the next import of it goes on from.

The topic's state keeps it. An import that goes on must know that the log it finds is the one it had begun, and that
nothing was written here since: by Kafka's topic id, by the last batch that was taken, and by the log end. It is kept as
long as the topic is, however old; a batch that somebody appends ends the succession, not this memory.

| member      | meaning                                                                                       |
|-------------|-----------------------------------------------------------------------------------------------|
| topicId     | the topic's id in Kafka, by `partition.metadata`; empty where there is none (before Kafka 2.8) |
| partition   | partitions that were taken, one entry each; as in the next four                               |
| end         | where the log ended here after it: what lies at or above it has not been taken                |
| last        | last offset of the last batch that was taken; -1: there was none                              |
| crc         | the checksum in that batch's header                                                           |
| epoch       | its leader epoch, -1: it has none                                                             |

Transactions of Kafka's that an import found open: no marker ends them in the log.

The topic's state keeps them, so that its last stable offset stands where Kafka's stood, for readers, for sealing and
for compaction, without a look into any file. Their records stay out of sight of `read_committed` readers, and all that
lies behind them, until a commit ends them: it appends the marker that Kafka would have written (see
`sparklog.log.write.kafka_end`). Retention that passes all that Kafka wrote forgets them, as it forgets open slices.

| member      | meaning                                                                  |
|-------------|--------------------------------------------------------------------------|
| partition   |                                                                          |
| producer    | the producer id                                                          |
| epoch       | its epoch in its last batch                                              |
| first       | offset of its first batch                                                |
| end         | offset behind the last that Kafka wrote: nothing of it lies there        |

A producer has at most one open transaction in a partition. What Kafka's coordinator knew of it, by
`__transaction_state`, is left out where it is not known:

| member          | meaning                                                                                    |
|-----------------|--------------------------------------------------------------------------------------------|
| transactionalId | whose transaction it is                                                                    |
| timeoutMs       | `transaction.timeout.ms` of that producer                                                  |
| startMs         | when it began, ms since the epoch                                                          |
| decided         | `commit` or `abort`: the coordinator has decided, its marker is not in this partition yet  |

A decided one ends as it was decided, whoever ends it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from sparklog.log.journal.documents import Fields

KAFKA_SOURCE_FIELDS = ("topicId", "partition", "end", "last", "crc", "epoch")


@dataclass(frozen=True, slots=True)
class ImportedEnd:
    """How far one partition was taken; fields as in the module's table."""

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

    def to_json(self) -> dict[str, object]:
        ends = sorted(self.ends.items())
        return {
            "topicId": self.topic_id,
            "partition": [partition for partition, _ in ends],
            "end": [each.end for _, each in ends],
            "last": [each.last for _, each in ends],
            "crc": [each.crc for _, each in ends],
            "epoch": [each.epoch for _, each in ends],
        }

    @classmethod
    def from_json(cls, item: Fields, partitions: int) -> KafkaSource:
        """`Corrupt` if a member is missing or out of range."""
        item.only(frozenset(KAFKA_SOURCE_FIELDS))
        partition = item.integers("partition", None, 0, partitions - 1)
        n = len(partition)
        columns = (
            item.integers("end", n, 0),
            item.integers("last", n, -1),
            item.integers("crc", n, 0, 2**32 - 1),
            item.integers("epoch", n, -1, 2**31 - 1),
        )
        ends = {number: ImportedEnd(*row) for number, *row in zip(partition, *columns, strict=True)}
        return cls(item.text("topicId"), ends)


KAFKA_OPEN_FIELDS = ("partition", "producer", "epoch", "first", "end")
KAFKA_OPEN_OPTIONAL_FIELDS = ("transactionalId", "timeoutMs", "startMs", "decided")
COMMIT, ABORT = DECISIONS = ("commit", "abort")
KAFKA_ENDED_FIELDS = ("partition", "producer")


@dataclass(frozen=True, slots=True)
class KafkaOpen:
    """One open transaction of one producer in one partition; fields as in the module's tables."""

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

    def to_json(self) -> dict[str, object]:
        known = (self.transactional_id, self.timeout_ms, self.start_ms, self.decided)
        optional = zip(KAFKA_OPEN_OPTIONAL_FIELDS, known, strict=True)
        return {
            **{name: getattr(self, name) for name in KAFKA_OPEN_FIELDS},
            **{name: value for name, value in optional if value is not None},
        }

    @classmethod
    def from_json(cls, item: Fields, partitions: int) -> KafkaOpen:
        """`Corrupt` if a member is missing or out of range."""
        item.only(frozenset(KAFKA_OPEN_FIELDS + KAFKA_OPEN_OPTIONAL_FIELDS))
        first = item.integer("first", 0)
        decided = item.optional_text("decided")
        if decided not in (None, *DECISIONS):
            raise item.bad("decided", f"one of {', '.join(DECISIONS)}")
        return cls(
            item.integer("partition", 0, partitions - 1),
            item.integer("producer", 0),
            item.integer("epoch", 0, 2**15 - 1),
            first,
            item.integer("end", first + 1),
            item.optional_text("transactionalId"),
            item.optional("timeoutMs", 0),
            item.optional("startMs", 0),
            decided,
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

    def to_json(self) -> dict[str, object]:
        return {name: getattr(self, name) for name in KAFKA_ENDED_FIELDS}

    @classmethod
    def from_json(cls, item: Fields, partitions: int) -> KafkaEnded:
        """`Corrupt` if a member is missing or out of range."""
        item.only(frozenset(KAFKA_ENDED_FIELDS))
        return cls(item.integer("partition", 0, partitions - 1), item.integer("producer", 0))


def forgotten(open_: Sequence[KafkaOpen], log_start: npt.NDArray[np.int64]) -> tuple[KafkaOpen, ...]:
    """Those of which something is left above the log starts."""
    return tuple(each for each in open_ if each.end > log_start[each.partition])
