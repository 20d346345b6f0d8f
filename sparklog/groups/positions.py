"""Positions of a consumer: the partitions that it reads, which of them are paused, and the next offset of each.

A position moves when records are handed out, never when they are read ahead. So it is what a commit commits.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from sparklog.errors import NotFound
from sparklog.format.arrow_numpy import fixed_values
from sparklog.format.checkpoint_files import TopicPartition
from sparklog.log.journal.arguments import NAME, NUMBER, PARTITIONS, ArgumentKind

Partitions: TypeAlias = Mapping[str, Collection[int]] | Iterable[TopicPartition]
"""A mapping of topics to lists of partitions, or pairs of a topic and a partition."""


def _is_pair(value: Any) -> bool:
    return isinstance(value, tuple) and len(value) == 2 and NAME.accepts(value[0]) and NUMBER.accepts(value[1])


def _is_pairs(value: Any) -> bool:
    return (
        isinstance(value, (Collection, Iterable)) and not isinstance(value, (str, bytes)) and all(map(_is_pair, value))
    )


PAIRS = ArgumentKind("pairs of a topic and a partition", _is_pairs)
PLACES = ArgumentKind(
    "a mapping of topics to lists of partitions, or a list of pairs",
    lambda value: PARTITIONS.accepts(value) if isinstance(value, Mapping) else _is_pairs(value),
)


def places_of(partitions: Partitions) -> list[TopicPartition]:
    """Return pairs of a topic and a partition, each once, in the order given."""
    if isinstance(partitions, Mapping):
        partitions = ((topic, number) for topic, numbers in partitions.items() for number in numbers)
    return list(dict.fromkeys((topic, int(number)) for topic, number in partitions))


class Positions:
    """See the module. `next`: the offset to read next, of each partition that has begun.

    `committed`: what the group has committed, as far as this consumer knows.
    """

    def __init__(self) -> None:
        self.assigned: frozenset[TopicPartition] = frozenset()
        self.paused: set[TopicPartition] = set()
        self.next: dict[TopicPartition, int] = {}
        self.committed: dict[TopicPartition, int] = {}

    def topics(self) -> list[str]:
        return sorted({topic for topic, _ in self.assigned})

    def read(self) -> list[TopicPartition]:
        """Return the partitions that are read: assigned, not paused, and begun."""
        return sorted(place for place in self.next if place not in self.paused)

    def begin(self, starts: Mapping[TopicPartition, int]) -> None:
        self.assigned = self.assigned | starts.keys()
        self.next.update(starts)

    def drop(self, places: Collection[TopicPartition]) -> None:
        self.assigned = self.assigned - frozenset(places)
        self.paused.difference_update(places)
        for place in places:
            self.next.pop(place, None)
            self.committed.pop(place, None)

    def check(self, places: Iterable[TopicPartition], reader: object) -> list[TopicPartition]:
        """Return these partitions, all if there are none; `NotFound` if one is not read here."""
        chosen = list(places)
        for topic, partition in chosen:
            if (topic, partition) not in self.next:
                raise NotFound(f"{reader!r} does not read partition {partition} of topic {topic}")
        return chosen or list(self.next)

    def move_after(self, batch: pa.RecordBatch) -> None:
        """Move after the records of a batch: of one topic, in offset order within each partition."""
        topic = batch.column("topic")[0].as_py()
        # Arrow's own way to numpy imports pandas.
        partitions = fixed_values(batch.column("partition"), np.int32)
        offsets = fixed_values(batch.column("offset"), np.int64)
        # Offsets of a partition go up: its last row is the newest.
        last, first = np.unique(partitions[::-1], return_index=True)
        for partition, offset in zip(last.tolist(), offsets[::-1][first].tolist(), strict=True):
            self.next[topic, partition] = offset + 1

    def by_topic(self) -> dict[str, dict[int, int]]:
        """Return topic to partition to the next offset."""
        return _by_topic(self.next)

    def uncommitted(self) -> dict[str, dict[int, int]]:
        """Return the positions that the group has not committed, as far as is known."""
        return _by_topic({place: offset for place, offset in self.next.items() if self.committed.get(place) != offset})


def _by_topic(offsets: Mapping[TopicPartition, int]) -> dict[str, dict[int, int]]:
    positions: dict[str, dict[int, int]] = {}
    for (topic, partition), offset in offsets.items():
        positions.setdefault(topic, {})[partition] = offset
    return positions
