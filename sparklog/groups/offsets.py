"""Offsets of a consumer group as tables: per topic and topic id, parallel columns in the order of partitions.

| member      | meaning                                                                     |
|-------------|-----------------------------------------------------------------------------|
| topic       | its name                                                                    |
| topicId     | a topic created again under this name has nothing to do with it             |
| partition   | in order                                                                    |
| offset      | next offset to read, one per partition                                      |
| timeMs      | when it was committed, ms since the epoch                                   |
| leaderEpoch | of the record before it, -1: not known                                      |
| metadata    | what the consumer wrote beside it                                           |

`timeMs`, `leaderEpoch` and `metadata` are lists of one item where it is the same for all partitions: thousands that are
committed together take little more room than their offsets.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeVar

from sparklog.log.journal.documents import INT32_MAX, INT64_MAX, TEXT, Document, Fields, Kind, Member, wholes
from sparklog.log.journal.names import MAX_PARTITIONS

NO_EPOCH = -1
MAX_INT = 2**31 - 1
"""Generations, leader epochs and timeouts are 32 bit in Kafka."""

T = TypeVar("T")
Row = tuple[int, int, int, str]
"""Offset, time in ms, leader epoch, metadata of one partition."""


@dataclass(frozen=True, slots=True)
class GroupMetadata:
    """The member that commits, as Kafka's ConsumerGroupMetadata: a group, its generation, and the instance."""

    group: str
    generation: int
    instance: str


@dataclass(frozen=True, slots=True)
class OffsetAndMetadata:
    """An offset (next to read) to be committed, with what Kafka keeps beside it."""

    offset: int
    metadata: str = ""
    leader_epoch: int | None = None


@dataclass(frozen=True, slots=True)
class CommittedOffset:
    """An offset (next to read) of a group in one partition, and when it was committed (ms since the epoch)."""

    topic: str
    topic_id: str
    partition: int
    offset: int
    leader_epoch: int | None
    metadata: str
    time_ms: int


@dataclass(frozen=True, slots=True)
class TopicOffsets:
    """Offsets of one topic, by its id: parallel tuples in the order of partitions. `leader_epoch` -1 is none."""

    topic: str
    topic_id: str
    partition: tuple[int, ...]
    offset: tuple[int, ...]
    time_ms: tuple[int, ...]
    leader_epoch: tuple[int, ...]
    metadata: tuple[str, ...]

    @property
    def place(self) -> tuple[str, str]:
        return self.topic, self.topic_id

    def positions(self) -> Iterator[tuple[str, int, int]]:
        return ((self.topic, *pair) for pair in zip(self.partition, self.offset, strict=True))

    def rows(self) -> dict[int, Row]:
        rows = zip(self.offset, self.time_ms, self.leader_epoch, self.metadata, strict=True)
        return dict(zip(self.partition, rows, strict=True))

    def committed(self) -> list[CommittedOffset]:
        return [
            CommittedOffset(*self.place, partition, offset, None if epoch == NO_EPOCH else epoch, metadata, time_ms)
            for partition, (offset, time_ms, epoch, metadata) in self.rows().items()
        ]


def topic_offsets(topic: str, topic_id: str, rows: Mapping[int, Row]) -> TopicOffsets:
    partitions = sorted(rows)
    offset, time_ms, epoch, metadata = zip(*(rows[partition] for partition in partitions), strict=True)
    return TopicOffsets(topic, topic_id, tuple(partitions), offset, time_ms, epoch, metadata)


def merged(base: Sequence[TopicOffsets], newer: Sequence[TopicOffsets]) -> tuple[TopicOffsets, ...]:
    """Return `base` with the partitions of `newer` replaced, in the order of topics."""
    tables = {item.place: item for item in base}
    for item in newer:
        known = tables.get(item.place)
        if known is None or known.partition == item.partition:
            tables[item.place] = item
        else:
            tables[item.place] = topic_offsets(item.topic, item.topic_id, {**known.rows(), **item.rows()})
    return tuple(tables[place] for place in sorted(tables))


def without(base: Sequence[TopicOffsets], gone: Mapping[tuple[str, str], Collection[int]]) -> tuple[TopicOffsets, ...]:
    left = []
    for item in base:
        lost = gone.get(item.place, ())
        rows = {partition: row for partition, row in item.rows().items() if partition not in lost}
        if rows:
            left.append(topic_offsets(item.topic, item.topic_id, rows))
    return tuple(left)


def _packed(values: tuple[object, ...]) -> tuple[object, ...]:
    return values[:1] if values.count(values[0]) == len(values) else values


def _unpacked(item: Fields, name: str, values: tuple[T, ...], what: str) -> tuple[T, ...]:
    n = len(item.document["partition"])
    if len(values) not in (1, n):
        raise item.bad(name, f"a list of 1 or {n} {what}")
    return values if len(values) == n else values * n


def _packed_wholes(low: int, high: int) -> Kind:
    return Kind(
        lambda item, name: _unpacked(item, name, item.integers(name, None, low, high), "whole numbers"), _packed
    )


def _check_partitions(item: Fields, offsets: TopicOffsets) -> None:
    if not offsets.partition or any(left >= right for left, right in pairwise(offsets.partition)):
        raise item.bad("partition", "partitions in order, each once")


OFFSETS_JSON = Document(
    TopicOffsets,
    Member("topic", TEXT),
    Member("topicId", TEXT),
    Member("partition", wholes(0, MAX_PARTITIONS - 1)),
    Member("offset", wholes(0, like="partition")),
    Member("timeMs", _packed_wholes(0, INT64_MAX)),
    Member("leaderEpoch", _packed_wholes(NO_EPOCH, INT32_MAX)),
    Member("metadata", Kind(lambda item, name: _unpacked(item, name, item.texts(name), "texts"), _packed)),
    check=_check_partitions,
)


def _in_order(item: Fields, name: str) -> tuple[TopicOffsets, ...]:
    offsets = tuple(map(OFFSETS_JSON.from_json, item.objects(name)))
    places = [each.place for each in offsets]
    if places != sorted(set(places)):
        raise item.bad(name, "in the order of topics, each once")
    return offsets


OFFSETS_BY_TOPIC = Kind(_in_order, lambda offsets: list(map(OFFSETS_JSON.to_json, offsets)))
"""A list of objects in the order of topics, each topic once."""
