"""Find the latest record of a key by searching backwards from the log end. The search supports every `LogView`.

Kafka's default partitioner determines the partition. The search reads the keys in chunks, starting at the log end
offset: a few MiB first, then larger chunks, until a chunk contains the key. Slices whose filters exclude the key are
skipped.

If partitions are added, keys move to other partitions. Therefore, the search also includes the partitions of the key
for earlier partition counts, starting with the latest count. A record in a partition that did not exist earlier is
later than all records in the key's earlier partitions. If both partitions existed, the record with the maximum
timestamp is returned.

`KeySet` uses the same rules to select the partitions and slices for a scan of certain keys. The rules do not apply to
records that were written to an explicit partition. If `anywhere` is True, all requested partitions are read.
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
from sparklog.log.state.view import COLUMNS, READ_COMMITTED, LogView, OffsetRange, ReadPart

FIRST_CHUNK_BYTES = 4 << 20
MAX_CHUNK_BYTES = 256 << 20
"""Maximum stored bytes of a chunk. The records of a chunk are read into memory a few MiB at a time."""


def latest_record(
    view: LogView,
    topic: str,
    key: bytes,
    *,
    partitions: Sequence[int] | None = None,
    isolation: str = READ_COMMITTED,
) -> pa.RecordBatch | None:
    """Return the latest record of a key, which may be a tombstone. Return None if there is no record.

    If `partitions` is None, the partitions that Kafka's default partitioner selects are searched.
    """
    bounds = view.bounds(topic)
    partitions_to_search = partitions_of_key(view, topic, key) if partitions is None else dict.fromkeys(partitions, 0)
    latest: pa.RecordBatch | None = None
    for partition, previous_count in partitions_to_search.items():
        if partition not in bounds:
            few = len(bounds) <= 8
            names = ", ".join(map(str, sorted(bounds))) if few else f"{min(bounds)} to {max(bounds)}"
            raise NotFound(f"topic {topic} at {view.location} has partitions {names}, found partition {partition!r}")
        offset = _latest_offset(view, topic, partition, key, isolation)
        if offset is None:
            continue
        missing = f"the record at offset {offset} of {topic}-{partition} was deleted during the read; retry"
        record = record_at(view, topic, partition, offset, isolation, missing)
        if latest is None or _timestamp(record) > _timestamp(latest):
            latest = record
        if 0 < previous_count <= partition:
            break
    return latest


def partitions_of_key(view: LogView, topic: str, key: bytes) -> dict[int, int]:
    """Return the partitions that Kafka's default partitioner selects for a key, for the current and previous partition
    counts.

    The result maps each partition, latest first, to the previous partition count, or to 0 if this count is unknown. If
    the view has a single partition, this partition is returned. Raises `BadRequest` if partitions are missing, for
    example in the log directory of one of several brokers, because the partition count is then unknown.
    """
    by_count = partitions_of_keys(view, topic, [key])
    previous_counts = [*(count for count, _ in by_count[1:]), 0]
    partitions: dict[int, int] = {}
    for (_, numbers), before in zip(by_count, previous_counts, strict=True):
        partitions.setdefault(int(numbers[0]), before)
    return partitions


def partitions_of_keys(view: LogView, topic: str, keys: Sequence[bytes]) -> list[tuple[int, npt.NDArray[np.int32]]]:
    """Return the partitions of the keys for each partition count, latest first. Raises the errors of
    `partitions_of_key`.
    """
    listed = sorted(view.bounds(topic))
    if len(listed) == 1:
        return [(1, np.full(len(keys), listed[0], np.int32))]
    if listed != list(range(len(listed))):
        raise BadRequest(
            f"{view.location} contains only partitions {', '.join(map(str, listed))} of topic {topic}, so the"
            " partition of a key is unknown: specify the partition, or search all partitions"
        )
    from sparklog.format.key_hash import partition_for_key

    hashed = bytes_array(keys)
    return [
        (count, partition_for_key(hashed, count))
        for count in (len(listed), *reversed(view.previous_partition_counts(topic)))
    ]


def _latest_offset(view: LogView, topic: str, partition: int, key: bytes, isolation: str) -> int | None:
    from sparklog.log.read.key_filters import parts_with_keys

    bounds = view.bounds(topic)[partition]
    end, chunk_bytes = bounds.end(isolation), FIRST_CHUNK_BYTES
    while end > bounds.log_start:
        start = _start_of_chunk(view, OffsetRange(topic, partition, bounds.log_start, end), chunk_bytes)
        parts = parts_with_keys(view.plan([OffsetRange(topic, partition, start, end)], isolation), [key])
        offset = _last_match(parts, key)
        if offset is not None:
            return offset
        # If all slices of a chunk are excluded, the chunk does not count towards the limit.
        end, chunk_bytes = start, min(chunk_bytes * 4, MAX_CHUNK_BYTES) if parts else chunk_bytes * 4
    return None


def _start_of_chunk(view: LogView, remaining: OffsetRange, chunk_bytes: int) -> int:
    stored = view.stored([remaining])[0]
    if stored.nbytes <= chunk_bytes:
        return remaining.start
    last = stored.at_records(max(stored.records - 1, 0))
    return min(*stored.at_bytes(stored.nbytes - chunk_bytes), *last, remaining.end - 1)


def _last_match(parts: Sequence[ReadPart], key: bytes) -> int | None:
    import pyarrow.compute as pc

    requested_key = bytes_scalar(key)
    latest = None
    for part in parts:
        for batch in part.read(("key", "offset")):
            rows = pc.indices_nonzero(pc.equal(batch.column("key"), requested_key))
            if len(rows):
                latest = batch.column("offset")[rows[-1].as_py()].as_py()
    return latest


def record_at(view: LogView, topic: str, partition: int, offset: int, isolation: str, missing: str) -> pa.RecordBatch:
    """Return the record at an offset, as a row with all `COLUMNS`. Raises `NotFound` with the message `missing` if
    there is no record.
    """
    for part in view.plan([OffsetRange(topic, partition, offset, offset + 1)], isolation):
        for batch in part.read(COLUMNS):
            if batch.num_rows:
                return batch
    raise NotFound(missing)


def _timestamp(record: pa.RecordBatch) -> int:
    return int(record.column("timestamp").cast(pa.int64())[0].as_py())


@dataclass(frozen=True)
class KeySet:
    """A set of keys to search for. If `anywhere` is True, the keys may be in any partition."""

    keys: tuple[bytes, ...]
    anywhere: bool = False

    @classmethod
    def of(cls, keys: Iterable[bytes | str], anywhere: bool = False) -> KeySet:
        """Return a set of keys. Strings are encoded as UTF-8. Raises `BadRequest` for values of other types."""
        KEYS.check("keys", keys)
        listed = list(keys)
        for key in listed:
            KEY.check("a key", key)
        return cls(tuple(dict.fromkeys(key.encode() if isinstance(key, str) else key for key in listed)), anywhere)

    def partitions(self, view: LogView, topic: str) -> set[int]:
        """Return the partitions of a topic that can contain the keys."""
        if not self.keys or self.anywhere:
            return set(view.bounds(topic)) if self.keys else set()
        return {number for _, numbers in partitions_of_keys(view, topic, self.keys) for number in numbers.tolist()}

    def ranges(self, view: LogView, ranges: Sequence[OffsetRange]) -> list[OffsetRange]:
        """Return the ranges of partitions that can contain the keys."""
        partitions_by_topic = {
            topic: self.partitions(view, topic) for topic in dict.fromkeys(offsets.topic for offsets in ranges)
        }
        return [offsets for offsets in ranges if offsets.partition in partitions_by_topic[offsets.topic]]

    def parts(self, parts: Sequence[ReadPart]) -> list[ReadPart]:
        """Remove slices that contain none of the keys from the parts. Empty parts are also removed."""
        from sparklog.log.read.key_filters import parts_with_keys

        return parts_with_keys(parts, self.keys)

    def columns(self, columns: Sequence[str]) -> tuple[str, ...]:
        """Return the columns that `rows` requires."""
        return tuple(dict.fromkeys((*columns, "key")))

    def rows(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the rows that have one of the keys, from batches with the column `key`. Empty batches are skipped."""
        import pyarrow.compute as pc

        keys = bytes_array(self.keys)
        for batch in batches:
            matches = batch.filter(pc.is_in(batch.column("key"), value_set=keys))
            if matches.num_rows:
                yield matches
