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

from sparklog.log.journal.documents import INT64_MAX, Fields
from sparklog.log.state.commit import MAX_PARTITIONS

OFFSETS_FIELDS = ("topic", "topicId", "partition", "offset", "timeMs", "leaderEpoch", "metadata")
NO_EPOCH = -1
MAX_INT = 2**31 - 1
"""Generations, leader epochs and timeouts are 32 bit in Kafka."""

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

    def __len__(self) -> int:
        return len(self.partition)

    @property
    def place(self) -> tuple[str, str]:
        """Topic and id."""
        return self.topic, self.topic_id

    def positions(self) -> Iterator[tuple[str, int, int]]:
        """Yield (topic, partition, offset)."""
        return ((self.topic, *pair) for pair in zip(self.partition, self.offset, strict=True))

    def rows(self) -> dict[int, Row]:
        """Return the rows by partition."""
        return dict(
            zip(
                self.partition,
                zip(self.offset, self.time_ms, self.leader_epoch, self.metadata, strict=True),
                strict=True,
            )
        )

    def committed(self) -> list[CommittedOffset]:
        """Return the offsets one by one."""
        return [
            CommittedOffset(
                self.topic, self.topic_id, partition, offset, None if epoch == NO_EPOCH else epoch, metadata, time_ms
            )
            for partition, (offset, time_ms, epoch, metadata) in self.rows().items()
        ]


def topic_offsets(topic: str, topic_id: str, rows: Mapping[int, Row]) -> TopicOffsets:
    """Return rows by partition, in any order, as parallel tuples."""
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
    """Return `base` without these partitions, by topic and id."""
    left = []
    for item in base:
        lost = gone.get(item.place, ())
        if not lost:
            left.append(item)
            continue
        rows = {partition: row for partition, row in item.rows().items() if partition not in lost}
        if rows:
            left.append(topic_offsets(item.topic, item.topic_id, rows))
    return tuple(left)


# -- JSON


def offsets_document(item: TopicOffsets) -> dict[str, object]:
    """One topic as a JSON object."""
    return {
        "topic": item.topic,
        "topicId": item.topic_id,
        "partition": item.partition,
        "offset": item.offset,
        "timeMs": _packed(item.time_ms),
        "leaderEpoch": _packed(item.leader_epoch),
        "metadata": _packed(item.metadata),
    }


def _packed(values: tuple[object, ...]) -> tuple[object, ...]:
    return values[:1] if values.count(values[0]) == len(values) else values


def decode_offsets(doc: Fields) -> tuple[TopicOffsets, ...]:
    """Member `offsets` of an object; `Corrupt` unless topics and partitions are in order, each once."""
    found = tuple(_offsets(item) for item in doc.objects("offsets"))
    places = [item.place for item in found]
    if places != sorted(set(places)):
        raise doc.bad("offsets", "in the order of topics, each once")
    return found


def _offsets(item: Fields) -> TopicOffsets:
    item.only(frozenset(OFFSETS_FIELDS))
    partition = item.integers("partition", None, 0, MAX_PARTITIONS - 1)
    n = len(partition)
    if not n or any(left >= right for left, right in pairwise(partition)):
        raise item.bad("partition", "partitions in order, each once")
    metadata = item.texts("metadata")
    if len(metadata) not in (1, n):
        raise item.bad("metadata", f"a list of 1 or {n} texts")
    return TopicOffsets(
        item.text("topic"),
        item.text("topicId"),
        partition,
        item.integers("offset", n, 0),
        _unpacked(item, "timeMs", n, 0, INT64_MAX),
        _unpacked(item, "leaderEpoch", n, NO_EPOCH, MAX_INT),
        metadata if len(metadata) == n else metadata * n,
    )


def _unpacked(item: Fields, name: str, n: int, low: int, high: int) -> tuple[int, ...]:
    values = item.integers(name, None, low, high)
    if len(values) not in (1, n):
        raise item.bad(name, f"a list of 1 or {n} whole numbers")
    return values if len(values) == n else values * n
