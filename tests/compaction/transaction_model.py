"""A simple model of the records that Kafka's consumer returns at each isolation level, based on the batches alone."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

from tests.compaction.plain_cleaner import ABORT, COMMIT, PlainBatch

Seen = tuple[int, bytes | None, bytes | None]
"""The offset, key and value of a record."""


@dataclass(frozen=True)
class Visible:
    """All records, the committed and non-transactional records below the last stable offset, and that offset."""

    uncommitted: list[Seen]
    committed: list[Seen]
    last_stable: int


def visible(batches: Sequence[PlainBatch], log_end: int) -> Visible:
    """A marker of a producer decides on all records that the producer has written since its previous marker."""
    undecided: dict[int, list[PlainBatch]] = {}
    aborted: set[int] = set()
    for batch in batches:
        if batch.control and batch.records:
            kind = struct.unpack(">hh", batch.records[0].key or b"")[1]
            assert kind in (ABORT, COMMIT)
            ended = undecided.pop(batch.producer_id, [])
            if kind == ABORT:
                aborted.update(each.base for each in ended)
        elif batch.transactional and not batch.control:
            undecided.setdefault(batch.producer_id, []).append(batch)
    stable = min((each[0].base for each in undecided.values()), default=log_end)
    data = [batch for batch in batches if not batch.control]
    return Visible(
        [seen for batch in data for seen in _records(batch)],
        [seen for batch in data if batch.base not in aborted and batch.base < stable for seen in _records(batch)],
        stable,
    )


def _records(batch: PlainBatch) -> list[Seen]:
    return [(record.offset, record.key, record.value) for record in batch.records]
