"""Transactions of Kafka's that an import found open: no marker ends them in the log.

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

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sparklog.log.journal.documents import Fields


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
