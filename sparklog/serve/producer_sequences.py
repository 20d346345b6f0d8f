"""Sequences of Kafka's idempotent producers: which batch is the next, which one landed before.

The topic's registry has an entry for each producer and partition: the number of the last record that landed. It is of
the commits alone, so every server says the same of a batch, and a retry is written once, whichever server it meets.

A number is the epoch, then how many records the producer has written under it (47 bits), the last of them counted: a
sequence itself begins again after 2^31 - 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sparklog.format.record_batch import MAX_SEQUENCE, BatchHeader
from sparklog.log.state.writer_runs import KAFKA_WRITER, WriterEntry

EPOCH_SHIFT = 47
_WRITTEN = (1 << EPOCH_SHIFT) - 1
_HALF = 1 << 30
NEXT, LANDED, OUT_OF_ORDER, OLD_EPOCH = "next", "landed", "out of order", "old epoch"


@dataclass(frozen=True, slots=True)
class SequenceVerdict:
    """The verdict on a batch, and the number of its last record if it is the next one."""

    kind: str
    number: int = -1


def writer_id(producer: int, partition: int) -> str:
    return f"{KAFKA_WRITER}{producer}-{partition}"


def last_number(registry: Mapping[str, WriterEntry], producer: int, partition: int) -> int | None:
    """Return the number of the last record of a producer that landed in a partition; None: it is not known."""
    entry = registry.get(writer_id(producer, partition))
    return None if entry is None else entry.batch


def judge(last: int | None, header: BatchHeader) -> SequenceVerdict:
    """Judge a batch after the last number, by Kafka's rules: a producer that is not known may begin anywhere."""
    epoch, first, count = header.producer_epoch, header.base_sequence, header.count
    if epoch < 0 or first < 0:
        return SequenceVerdict(OUT_OF_ORDER)
    begin = epoch << EPOCH_SHIFT
    if last is None:
        return SequenceVerdict(NEXT, begin + first + count - 1)
    last_epoch, written = last >> EPOCH_SHIFT, last & _WRITTEN
    if epoch != last_epoch:
        if epoch < last_epoch:
            return SequenceVerdict(OLD_EPOCH)
        return SequenceVerdict(NEXT, begin + count - 1) if first == 0 else SequenceVerdict(OUT_OF_ORDER)
    ahead = (first - (written + 1)) & MAX_SEQUENCE
    if ahead == 0:
        return SequenceVerdict(NEXT, last + count)
    behind = MAX_SEQUENCE + 1 - ahead
    landed = behind <= _HALF and count <= behind
    return SequenceVerdict(LANDED if landed else OUT_OF_ORDER)
