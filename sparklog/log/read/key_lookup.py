"""The latest record of a key, looked for backwards from the end of the log. Works on every view.

Kafka's default partitioner tells the partition. The keys of its offsets are read in runs from the log end down, a few
MiB first and more each time, up to one that has the key. Slices that cannot hold it, by their filters, are left out.

Adding partitions moves keys to others, so the partitions that the key had under earlier numbers are searched, too, the
newest first. What is in a partition that did not exist before is newer than all that came before it; of other answers
the one with the greatest timestamp is given.

The same tells which partitions and slices a scan of some keys reads (`KeySet`). It says nothing of records that were
written to a partition by number: with `anywhere`, all partitions are read that were asked for.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from sparklog.arguments import KEY, KEYS
from sparklog.errors import BadRequest, NotFound
from sparklog.format.arrow_numpy import bytes_array, bytes_scalar
from sparklog.log.state.view import COLUMNS, READ_COMMITTED, OffsetRange, PinnedView, ReadPart

FIRST_RUN_BYTES = 4 << 20
LARGEST_RUN_BYTES = 256 << 20
"""Stored bytes that one run reads; records go through memory a few MiB at a time."""


def latest_record(
    view: PinnedView,
    topic: str,
    key: bytes,
    *,
    partitions: Sequence[int] | None = None,
    isolation: str = READ_COMMITTED,
) -> pa.RecordBatch | None:
    """Return the latest record of a key, or its tombstone; None without one. `partitions` None: Kafka's for the key."""
    bounds = view.bounds(topic)
    partitions_to_search = partitions_of_key(view, topic, key) if partitions is None else dict.fromkeys(partitions, 0)
    newest: pa.RecordBatch | None = None
    for partition, earlier in partitions_to_search.items():
        if partition not in bounds:
            few = len(bounds) <= 8
            names = ", ".join(map(str, sorted(bounds))) if few else f"{min(bounds)} to {max(bounds)}"
            raise NotFound(f"expected a partition of topic {topic} at {view.location} ({names}), found {partition!r}")
        offset = _newest_offset(view, topic, partition, key, isolation)
        if offset is None:
            continue
        missing = f"the record at offset {offset} of {topic}-{partition} went while it was read: ask again"
        record = record_at(view, topic, partition, offset, isolation, missing)
        if newest is None or _timestamp(record) > _timestamp(newest):
            newest = record
        if 0 < earlier <= partition:
            break
    return newest


def partitions_of_key(view: PinnedView, topic: str, key: bytes) -> dict[int, int]:
    """Return the partitions of a key by Kafka's default partitioner, for the numbers of partitions now and before.

    The newest comes first, each with the number of partitions before it was the key's, 0: none is known. A place that
    holds a single partition is that partition. `BadRequest` where partitions are missing (a directory of one of several
    brokers): their number is not known there.
    """
    placed = partitions_of_keys(view, topic, [key])
    numbers_before = [*(count for count, _ in placed[1:]), 0]
    partitions: dict[int, int] = {}
    for (_, numbers), before in zip(placed, numbers_before, strict=True):
        partitions.setdefault(int(numbers[0]), before)
    return partitions


def partitions_of_keys(view: PinnedView, topic: str, keys: Sequence[bytes]) -> list[tuple[int, npt.NDArray[np.int32]]]:
    """Return the keys' partitions under each number of partitions, the newest first. Raises as `partitions_of_key`."""
    listed = sorted(view.bounds(topic))
    if len(listed) == 1:
        return [(1, np.full(len(keys), listed[0], np.int32))]
    if listed != list(range(len(listed))):
        raise BadRequest(
            f"{view.location} holds partitions {', '.join(map(str, listed))} of topic {topic}, not how many there are:"
            " name the partition, or search all of them"
        )
    from sparklog.format.key_hash import partition_for_key

    hashed = bytes_array(keys)
    return [
        (count, partition_for_key(hashed, count))
        for count in (len(listed), *reversed(view.previous_partition_counts(topic)))
    ]


def _newest_offset(view: PinnedView, topic: str, partition: int, key: bytes, isolation: str) -> int | None:
    from sparklog.log.read.key_filters import without_absent

    bounds = view.bounds(topic)[partition]
    end, run_bytes = bounds.end(isolation), FIRST_RUN_BYTES
    while end > bounds.log_start:
        start = _start_of_run(view, OffsetRange(topic, partition, bounds.log_start, end), run_bytes)
        parts = without_absent(view.plan([OffsetRange(topic, partition, start, end)], isolation), [key])
        offset = _last_match(parts, key)
        if offset is not None:
            return offset
        # A run of which nothing is read may be as long as it likes.
        end, run_bytes = start, min(run_bytes * 4, LARGEST_RUN_BYTES) if parts else run_bytes * 4
    return None


def _start_of_run(view: PinnedView, rest: OffsetRange, run_bytes: int) -> int:
    stored = view.stored([rest])[0]
    if stored.nbytes <= run_bytes:
        return rest.start
    last = stored.at_records(max(stored.records - 1, 0))
    return min(*stored.at_bytes(stored.nbytes - run_bytes), *last, rest.end - 1)


def _last_match(parts: Sequence[ReadPart], key: bytes) -> int | None:
    import pyarrow.compute as pc

    sought = bytes_scalar(key)
    newest = None
    for part in parts:
        for batch in part.read(("key", "offset")):
            rows = pc.indices_nonzero(pc.equal(batch.column("key"), sought))
            if len(rows):
                newest = batch.column("offset")[rows[-1].as_py()].as_py()
    return newest


def record_at(
    view: PinnedView, topic: str, partition: int, offset: int, isolation: str, missing: str
) -> pa.RecordBatch:
    """Return the record at this offset, one row of all `COLUMNS`. `NotFound` with the text `missing` without one."""
    for part in view.plan([OffsetRange(topic, partition, offset, offset + 1)], isolation):
        for batch in part.read(COLUMNS):
            if batch.num_rows:
                return batch
    raise NotFound(missing)


def _timestamp(record: pa.RecordBatch) -> int:
    return int(record.column("timestamp").cast(pa.int64())[0].as_py())


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

    def partitions(self, view: PinnedView, topic: str) -> set[int]:
        """Return the partitions of a topic that can hold the keys."""
        if not self.keys or self.anywhere:
            return set(view.bounds(topic)) if self.keys else set()
        return {number for _, numbers in partitions_of_keys(view, topic, self.keys) for number in numbers.tolist()}

    def ranges(self, view: PinnedView, ranges: Sequence[OffsetRange]) -> list[OffsetRange]:
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
