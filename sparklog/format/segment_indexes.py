"""`.index` and `.timeindex` files: the sparse indexes by offset and by timestamp that Kafka maintains for each segment.

An `.index` file consists of entries of 8 bytes, without a header or checksum. Integers are big-endian. Offsets and
positions strictly increase:

| bytes | field          | meaning                                                                    |
|------:|----------------|----------------------------------------------------------------------------|
|     4 | relativeOffset | last offset of the indexed batch - base offset of the segment, 0..2^31-1   |
|     4 | position       | where that batch **starts** in the `.log`                                  |

An entry contains the *last* offset of its batch, so that the batch of the greatest entry <= target never begins after
the target. A batch gets an entry if it starts more than `index.interval.bytes` after the previous indexed batch, or
after position 0 if there is none. Therefore the first batch of a segment never has an entry, and no entry has position
0. A running broker preallocates the file, so zeros mark the end of its entries.

A `.timeindex` file consists of entries of 12 bytes. Timestamps strictly increase, because a batch that does not raise
the maximum does not add an entry. Offsets do not decrease:

| bytes | field          | meaning                                                                                     |
|------:|----------------|---------------------------------------------------------------------------------------------|
|     8 | timestamp      | greatest timestamp in the segment up to the batch that got an index entry (ms)              |
|     4 | relativeOffset | last offset of the **earliest** batch with that timestamp - base offset of the segment      |

Kafka attempts to add an entry whenever the offset index gets an entry, and again when the segment is closed. As a
result, the last entry contains the greatest timestamp of the segment. Retention and lookups by timestamp rely on this
property. Records without timestamps (-1) do not add entries. This file may also be preallocated.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from sparklog.errors import BadRequest, Corrupt
from sparklog.format.record_batch import NO_TIMESTAMP, BoolArray, BytesLike, Int64Array

REMEDY = "run sparklog repair on the root or Kafka directory, which rebuilds the index"
"""Advice for error messages about a corrupt index file."""
FOLLOWER_FETCH_BYTES = 1 << 20
"""Default of Kafka's `replica.fetch.max.bytes`. A follower adds at most one index entry per fetch."""
MAX_RELATIVE_OFFSET = 2**31 - 1
_OFFSET_ENTRY = np.dtype([("relative", ">i4"), ("position", ">i4")])
_TIME_ENTRY = np.dtype([("timestamp", ">i8"), ("relative", ">i4")])


@dataclass(frozen=True, slots=True)
class OffsetIndex:
    """The `.index` entries of a segment: `offsets` (absolute, the last offsets of batches) and `positions`, int64[n]
    each.
    """

    ENTRY_BYTES: ClassVar = _OFFSET_ENTRY.itemsize

    base: int
    offsets: Int64Array
    positions: Int64Array

    def __len__(self) -> int:
        return len(self.offsets)

    @classmethod
    def parse(cls, data: BytesLike, base: int, *, file: str | None = None) -> OffsetIndex:
        """Return the entries of an `.index` file of the segment that starts at offset `base`.

        Raises `Corrupt` if the length is not a multiple of 8 or the entries do not increase. The caller must verify
        that the entries match the batches of the `.log` file.
        """
        if len(data) % cls.ENTRY_BYTES:
            raise Corrupt(
                f"the size of an offset index must be a multiple of 8 bytes, found {len(data)}; {REMEDY}", file=file
            )
        entries = np.frombuffer(data, _OFFSET_ENTRY)
        positions = entries["position"].astype(np.int64)
        used = np.flatnonzero(positions)
        count = int(used[-1]) + 1 if len(used) else 0
        offsets, positions = entries["relative"][:count].astype(np.int64) + base, positions[:count]
        if count:
            ascending = (np.diff(offsets) > 0) & (np.diff(positions) > 0)
            is_first_valid = bool(offsets[0] >= base and positions[0] > 0)
            rule = "an offset index must increase in offset and position"
            _check_order(is_first_valid, ascending, rule, cls.ENTRY_BYTES, file)
        return cls(base, offsets, positions)

    @classmethod
    def build(cls, base: int, positions: Int64Array, last_offsets: Int64Array, interval: int) -> OffsetIndex:
        """Return the index of a segment from the positions and last offsets of its batches, in file order."""
        batches = _choose_batches(positions, interval)
        return cls(base, last_offsets[batches], positions[batches])

    @classmethod
    def max_entries(cls, segment_index_bytes: int) -> int:
        """Return the number of entries at which a segment must roll because of `segment.index.bytes`."""
        return segment_index_bytes // cls.ENTRY_BYTES

    def lookup(self, offset: int) -> tuple[int, int]:
        """Return the greatest entry with offset <= `offset`, or `(base, 0)`, like Kafka's `OffsetIndex.lookup`."""
        entry = int(np.searchsorted(self.offsets, offset, side="right")) - 1
        return (self.base, 0) if entry < 0 else (int(self.offsets[entry]), int(self.positions[entry]))

    def covers(self, positions: Int64Array, interval: int) -> bool:
        """Return True if the entries cover the entire segment, whose batches start at `positions`.

        The distance between two entries is at most `interval` bytes plus one batch. If a follower wrote the index, it
        is at most `interval` bytes plus one fetch. An empty index passes Kafka's sanity check, but then every lookup
        reads the segment from its start.
        """
        if len(positions) < 2:
            return True
        allowed = interval + FOLLOWER_FETCH_BYTES + int(np.diff(positions).max())
        return int(np.diff(np.concatenate(([0], self.positions, positions[-1:]))).max()) <= allowed

    def to_bytes(self) -> bytes:
        """Return the bytes of the file. Raises `BadRequest` if an offset or a position does not fit into 31 bits."""
        relative = self.offsets - self.base
        for name, values in (("offset", relative), ("position", self.positions)):
            if _beyond_31_bits(values):
                raise BadRequest(f"the relative {name}s of an offset index must be 0..2^31-1; roll the segment earlier")
        entries = np.empty(len(relative), _OFFSET_ENTRY)
        entries["relative"], entries["position"] = relative, self.positions
        return entries.tobytes()


@dataclass(frozen=True, slots=True)
class TimeIndex:
    """The `.timeindex` entries of a segment: `timestamps` (ms) and `offsets` (absolute), int64[n] each."""

    ENTRY_BYTES: ClassVar = _TIME_ENTRY.itemsize

    base: int
    timestamps: Int64Array
    offsets: Int64Array

    def __len__(self) -> int:
        return len(self.timestamps)

    @classmethod
    def parse(cls, data: BytesLike, base: int, *, file: str | None = None) -> TimeIndex:
        """Return the entries of a `.timeindex` file of the segment that starts at offset `base`.

        Raises `Corrupt` if the length is not a multiple of 12, timestamps do not increase, or offsets decrease.
        Trailing entries of zeros are preallocated space. If the only entry is zero, it is a valid entry (timestamp 0 at
        the base offset).
        """
        if len(data) % cls.ENTRY_BYTES:
            raise Corrupt(
                f"the size of a time index must be a multiple of 12 bytes, found {len(data)}; {REMEDY}", file=file
            )
        entries = np.frombuffer(data, _TIME_ENTRY)
        used = np.flatnonzero((entries["timestamp"] != 0) | (entries["relative"] != 0))
        count = int(used[-1]) + 1 if len(used) else int(len(entries) == 1)
        timestamps = entries["timestamp"][:count].astype(np.int64)
        offsets = entries["relative"][:count].astype(np.int64) + base
        if count:
            ascending = (np.diff(timestamps) > 0) & (np.diff(offsets) >= 0)
            rule = "a time index must increase in timestamp and must not decrease in offset"
            _check_order(bool(timestamps[0] >= 0 and offsets[0] >= base), ascending, rule, cls.ENTRY_BYTES, file)
        return cls(base, timestamps, offsets)

    @classmethod
    def build(
        cls,
        base: int,
        positions: Int64Array,
        last_offsets: Int64Array,
        max_timestamps: Int64Array,
        interval: int,
        *,
        closed: bool = True,
    ) -> TimeIndex:
        """Return the index of a segment, given the positions, last offsets and maxTimestamps (ms) of its batches.

        If `closed` is True, the final entry is added, which Kafka adds when it rolls, closes or recovers a segment.
        """
        if not len(positions):
            return cls(base, np.empty(0, np.int64), np.empty(0, np.int64))
        running = np.maximum.accumulate(max_timestamps)
        # The earliest batch with the running maximum is the last batch that increased the maximum.
        rises = np.flatnonzero(np.concatenate(([True], running[1:] > running[:-1])))
        candidates = _choose_batches(positions, interval)
        if closed:
            candidates = np.append(candidates, len(positions) - 1)
        timestamps = running[candidates]
        holders = rises[np.searchsorted(rises, candidates, side="right") - 1]
        is_entry = timestamps > np.concatenate(([NO_TIMESTAMP], timestamps[:-1]))
        return cls(base, timestamps[is_entry], last_offsets[holders][is_entry])

    @classmethod
    def max_entries(cls, segment_index_bytes: int) -> int:
        """Return the number of entries at which a segment must roll.

        The result is reduced by one, because one entry is reserved for closing the segment.
        """
        return segment_index_bytes // cls.ENTRY_BYTES - 1

    def lookup(self, timestamp: int) -> tuple[int, int]:
        """Return the greatest entry with timestamp <= `timestamp` as (timestamp, offset), or `(-1, base)`.

        No record before the offset has a timestamp above the timestamp of the entry (Kafka: TimeIndex.lookup).
        """
        entry = int(np.searchsorted(self.timestamps, timestamp, side="right")) - 1
        return (NO_TIMESTAMP, self.base) if entry < 0 else (int(self.timestamps[entry]), int(self.offsets[entry]))

    def to_bytes(self) -> bytes:
        """Return the bytes of the file. Raises `BadRequest` if an offset does not fit into 31 bits."""
        relative = self.offsets - self.base
        if _beyond_31_bits(relative):
            raise BadRequest("the relative offsets of a time index must be 0..2^31-1; roll the segment earlier")
        entries = np.empty(len(relative), _TIME_ENTRY)
        entries["timestamp"], entries["relative"] = self.timestamps, relative
        return entries.tobytes()


def _beyond_31_bits(values: Int64Array) -> bool:
    return bool(len(values)) and (int(values.min()) < 0 or int(values.max()) > MAX_RELATIVE_OFFSET)


def _check_order(is_first_valid: bool, ascending: BoolArray, rule: str, entry_bytes: int, file: str | None) -> None:
    if not (is_first_valid and ascending.all()):
        wrong = 0 if ascending.all() else int(np.argmin(ascending)) + 1
        raise Corrupt(f"entries of {rule}; {REMEDY}", file=file, position=wrong * entry_bytes)


def _choose_batches(positions: Int64Array, interval: int) -> Int64Array:
    """Return the batches that get an index entry, as indices into `positions` (the ascending positions of batches).

    In Kafka, a batch gets an entry if it starts more than `interval` (`index.interval.bytes`) bytes after the previous
    indexed batch. Recovery follows this rule, and appends follow it unless the broker restarts in between.
    """
    batches: list[int] = []
    last = int(positions[0]) if len(positions) else 0
    while True:
        index = int(np.searchsorted(positions, last + interval, side="right"))
        if index >= len(positions):
            return np.array(batches, np.int64)
        batches.append(index)
        last = int(positions[index])
