"""Keys that are wanted of a scan: the partitions and slices that can hold them, and their records.

Kafka's default partitioner tells the partitions, for the number of partitions now and for those before. It says nothing
of records that were written to a partition by number: with `anywhere`, all partitions are read that were asked for.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa

from sparklog.format.arrow_numpy import bytes_array
from sparklog.log.journal.arguments import KEY, KEYS
from sparklog.log.read.key_lookup import partitions_of_keys
from sparklog.log.state.view import OffsetRange, ReadPart, TakenView


@dataclass(frozen=True)
class KeySet:
    """Some keys, distinct. `anywhere`: they may be in any partition."""

    keys: tuple[bytes, ...]
    anywhere: bool = False

    @classmethod
    def of(cls, keys: Iterable[bytes | str], anywhere: bool = False) -> KeySet:
        """Take a list of keys, texts as UTF-8. `BadRequest` for anything else."""
        KEYS.check("keys", keys)
        listed = list(keys)
        for key in listed:
            KEY.check("a key", key)
        return cls(tuple(dict.fromkeys(key.encode() if isinstance(key, str) else key for key in listed)), anywhere)

    def partitions(self, view: TakenView, topic: str) -> set[int]:
        """Return the partitions of a topic that can hold the keys."""
        if not self.keys or self.anywhere:
            return set(view.bounds(topic)) if self.keys else set()
        return {number for _, numbers in partitions_of_keys(view, topic, self.keys) for number in numbers.tolist()}

    def ranges(self, view: TakenView, ranges: Sequence[OffsetRange]) -> list[OffsetRange]:
        """Return the ranges of partitions that can hold the keys."""
        partitions_by_topic = {
            topic: self.partitions(view, topic) for topic in dict.fromkeys(offsets.topic for offsets in ranges)
        }
        return [offsets for offsets in ranges if offsets.partition in partitions_by_topic[offsets.topic]]

    def parts(self, parts: Sequence[ReadPart]) -> list[ReadPart]:
        """Return parts without the slices that hold none of the keys; empty parts go."""
        from sparklog.log.read.key_filters import without_absent

        return without_absent(parts, self.keys)

    def columns(self, columns: Sequence[str]) -> tuple[str, ...]:
        """Return the columns to read for `rows`."""
        return tuple(dict.fromkeys((*columns, "key")))

    def rows(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the rows with one of the keys, of batches that have the column `key`; batches without any go."""
        import pyarrow.compute as pc

        keys = bytes_array(self.keys)
        for batch in batches:
            matches = batch.filter(pc.is_in(batch.column("key"), value_set=keys))
            if matches.num_rows:
                yield matches
