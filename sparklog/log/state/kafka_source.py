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
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

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
