"""`.index` and `.timeindex`: the sparse maps from offsets and timestamps that Kafka keeps beside each segment.

Entries of `.index`, 8 bytes, big-endian, offsets and positions strictly increasing, no header, no checksum:

| bytes | field          | meaning                                                                    |
|------:|----------------|----------------------------------------------------------------------------|
|     4 | relativeOffset | last offset of the indexed batch - base offset of the segment, 0..2^31-1   |
|     4 | position       | where that batch **starts** in the `.log`                                  |

An entry names a batch by its *last* offset, so that the batch found by "greatest entry <= target" never begins after
the target. The first batch of a segment is never indexed: a batch gets an entry if it starts more than
`index.interval.bytes` after the batch indexed before it (after position 0 at first). Position 0 never occurs in an
entry, so the zeros of a file that a running broker preallocated end it.

Entries of `.timeindex`, 12 bytes, big-endian; timestamps strictly increase (an equal or smaller maximum adds nothing),
offsets do not decrease:

| bytes | field          | meaning                                                                                     |
|------:|----------------|---------------------------------------------------------------------------------------------|
|     8 | timestamp      | greatest timestamp in the segment up to the batch that got an index entry (ms)              |
|     4 | relativeOffset | last offset of the **earliest** batch with that timestamp - base offset of the segment      |

An entry is tried whenever the offset index gets one, and once more when the segment is closed, so that the last entry
is the segment's greatest timestamp: retention and time lookup rely on it. Records without timestamps (-1) leave the
index empty. It may be preallocated, too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from sparklog.errors import BadRequest, Corrupt
from sparklog.format.record_batch import NO_TIMESTAMP, BoolArray, BytesLike, Int64Array

REMEDY = "run sparklog repair on its root or directory, which rebuilds it"
"""For a damaged index file."""
FOLLOWER_FETCH_BYTES = 1 << 20
"""Kafka's `replica.fetch.max.bytes`: a follower adds one index entry for all batches of a fetch."""
MAX_RELATIVE_OFFSET = 2**31 - 1
_OFFSET_ENTRY = np.dtype([("relative", ">i4"), ("position", ">i4")])
_TIME_ENTRY = np.dtype([("timestamp", ">i8"), ("relative", ">i4")])


@dataclass(frozen=True, slots=True)
class OffsetIndex:
    """Entries of one segment: `offsets` (absolute, each the last offset of a batch) and `positions`, both int64[n]."""

    ENTRY_BYTES: ClassVar = _OFFSET_ENTRY.itemsize

    base: int
    offsets: Int64Array
    positions: Int64Array

    def __len__(self) -> int:
        return len(self.offsets)

    @classmethod
    def parse(cls, data: BytesLike, base: int, *, file: str | None = None) -> OffsetIndex:
        """Return the entries of an `.index` file of the segment that starts at offset `base`.

        `Corrupt` if the length is no multiple of 8 or entries do not increase. That they name batches of the `.log`
        beside them is for the caller to verify: nothing in the file says so.
        """
        if len(data) % cls.ENTRY_BYTES:
            raise Corrupt(f"an offset index has a multiple of 8 bytes, this one has {len(data)}; {REMEDY}", file=file)
        entries = np.frombuffer(data, _OFFSET_ENTRY)
        positions = entries["position"].astype(np.int64)
        used = np.flatnonzero(positions)
        count = int(used[-1]) + 1 if len(used) else 0
        offsets, positions = entries["relative"][:count].astype(np.int64) + base, positions[:count]
        if count:
            rising = (np.diff(offsets) > 0) & (np.diff(positions) > 0)
            sound = bool(offsets[0] >= base and positions[0] > 0)
            _check_order(sound, rising, "an offset index increase in offset and position", cls.ENTRY_BYTES, file)
        return cls(base, offsets, positions)

    @classmethod
    def build(cls, base: int, positions: Int64Array, last_offsets: Int64Array, interval: int) -> OffsetIndex:
        """Return a segment's index from its batches: where each starts and its last offset, in file order."""
        batches = _choose_batches(positions, interval)
        return cls(base, last_offsets[batches], positions[batches])

    @classmethod
    def max_entries(cls, segment_index_bytes: int) -> int:
        """Return the entries that a segment's index takes before the segment must roll (`segment.index.bytes`)."""
        return segment_index_bytes // cls.ENTRY_BYTES

    def lookup(self, offset: int) -> tuple[int, int]:
        """The greatest entry with offset <= `offset`; `(base, 0)` if there is none (Kafka: OffsetIndex.lookup)."""
        entry = int(np.searchsorted(self.offsets, offset, side="right")) - 1
        return (self.base, 0) if entry < 0 else (int(self.offsets[entry]), int(self.positions[entry]))

    def covers(self, positions: Int64Array, interval: int) -> bool:
        """Return True if the entries cover the entire segment, whose batches start at `positions`.

        Between two entries there are at most `interval` bytes plus one batch or, if a follower wrote the index, one
        fetch. An empty index passes Kafka's sanity check, but then every lookup reads the segment from its start.
        """
        if len(positions) < 2:
            return True
        allowed = interval + FOLLOWER_FETCH_BYTES + int(np.diff(positions).max())
        return int(np.diff(np.concatenate(([0], self.positions, positions[-1:]))).max()) <= allowed

    def to_bytes(self) -> bytes:
        """Kafka's bytes. `BadRequest` if an offset or a position does not fit into 31 bits."""
        relative = self.offsets - self.base
        for name, values in (("offset", relative), ("position", self.positions)):
            if _beyond_31_bits(values):
                raise BadRequest(f"an offset index holds relative {name}s of 0..2^31-1; roll the segment earlier")
        entries = np.empty(len(relative), _OFFSET_ENTRY)
        entries["relative"], entries["position"] = relative, self.positions
        return entries.tobytes()


@dataclass(frozen=True, slots=True)
class TimeIndex:
    """Entries of one segment: `timestamps` (ms) and `offsets` (absolute), both int64[n]."""

    ENTRY_BYTES: ClassVar = _TIME_ENTRY.itemsize

    base: int
    timestamps: Int64Array
    offsets: Int64Array

    def __len__(self) -> int:
        return len(self.timestamps)

    @classmethod
    def parse(cls, data: BytesLike, base: int, *, file: str | None = None) -> TimeIndex:
        """Return the entries of a `.timeindex` file of the segment that starts at offset `base`.

        `Corrupt` if the length is no multiple of 12, timestamps do not increase or offsets decrease. All-zero entries
        after the first are unused slots; a first entry of zeros is one (timestamp 0 at the base offset) only if it is
        the only one.
        """
        if len(data) % cls.ENTRY_BYTES:
            raise Corrupt(f"a time index has a multiple of 12 bytes, this one has {len(data)}; {REMEDY}", file=file)
        entries = np.frombuffer(data, _TIME_ENTRY)
        used = np.flatnonzero((entries["timestamp"] != 0) | (entries["relative"] != 0))
        count = int(used[-1]) + 1 if len(used) else int(len(entries) == 1)
        timestamps = entries["timestamp"][:count].astype(np.int64)
        offsets = entries["relative"][:count].astype(np.int64) + base
        if count:
            rising = (np.diff(timestamps) > 0) & (np.diff(offsets) >= 0)
            rule = "a time index increase in timestamp and do not decrease in offset"
            _check_order(bool(timestamps[0] >= 0 and offsets[0] >= base), rising, rule, cls.ENTRY_BYTES, file)
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
        """Return a segment's index from its batches: where each starts, its last offset and maxTimestamp.

        `closed` adds the entry that rolling, a clean close and recovery add at the end.
        """
        if not len(positions):
            return cls(base, np.empty(0, np.int64), np.empty(0, np.int64))
        running = np.maximum.accumulate(max_timestamps)
        # The earliest batch that holds the running maximum: the batch where the maximum last rose.
        rises = np.flatnonzero(np.concatenate(([True], running[1:] > running[:-1])))
        tried = _choose_batches(positions, interval)
        if closed:
            tried = np.append(tried, len(positions) - 1)
        timestamps = running[tried]
        holders = rises[np.searchsorted(rises, tried, side="right") - 1]
        kept = timestamps > np.concatenate(([NO_TIMESTAMP], timestamps[:-1]))
        return cls(base, timestamps[kept], last_offsets[holders][kept])

    @classmethod
    def max_entries(cls, segment_index_bytes: int) -> int:
        """Return the entries that an index takes before the segment must roll; one more is for closing."""
        return segment_index_bytes // cls.ENTRY_BYTES - 1

    def lookup(self, timestamp: int) -> tuple[int, int]:
        """The greatest entry with timestamp <= `timestamp`, as (timestamp, offset); `(-1, base)` if there is none.

        Every record before that offset has a timestamp <= the entry's (Kafka: TimeIndex.lookup).
        """
        entry = int(np.searchsorted(self.timestamps, timestamp, side="right")) - 1
        return (NO_TIMESTAMP, self.base) if entry < 0 else (int(self.timestamps[entry]), int(self.offsets[entry]))

    def to_bytes(self) -> bytes:
        """Kafka's bytes. `BadRequest` if an offset does not fit into 31 bits."""
        relative = self.offsets - self.base
        if _beyond_31_bits(relative):
            raise BadRequest("a time index holds relative offsets of 0..2^31-1; roll the segment earlier")
        entries = np.empty(len(relative), _TIME_ENTRY)
        entries["timestamp"], entries["relative"] = self.timestamps, relative
        return entries.tobytes()


def _beyond_31_bits(values: Int64Array) -> bool:
    return bool(len(values)) and (int(values.min()) < 0 or int(values.max()) > MAX_RELATIVE_OFFSET)


def _check_order(sound: bool, rising: BoolArray, rule: str, entry_bytes: int, file: str | None) -> None:
    if not (sound and rising.all()):
        wrong = 0 if rising.all() else int(np.argmin(rising)) + 1
        raise Corrupt(f"entries of {rule}; {REMEDY}", file=file, position=wrong * entry_bytes)


def _choose_batches(positions: Int64Array, interval: int) -> Int64Array:
    """Which batches of a segment get an index entry: indices into `positions` (where each batch starts, ascending).

    Kafka's rule, per batch: the batch starts more than `interval` (`index.interval.bytes`) bytes after the one
    indexed before it. This is what recovery does, and what appending does as long as the broker is not restarted in
    between.
    """
    batches: list[int] = []
    last = int(positions[0]) if len(positions) else 0
    while True:
        index = int(np.searchsorted(positions, last + interval, side="right"))
        if index >= len(positions):
            return np.array(batches, np.int64)
        batches.append(index)
        last = int(positions[index])
