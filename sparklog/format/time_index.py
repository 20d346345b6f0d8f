"""`.timeindex`: the sparse map from timestamps to offsets that Kafka keeps beside each segment.

| bytes | field          | meaning                                                                                     |
|------:|----------------|---------------------------------------------------------------------------------------------|
|     8 | timestamp      | greatest timestamp in the segment up to the batch that got an index entry (ms)              |
|     4 | relativeOffset | last offset of the **earliest** batch with that timestamp - base offset of the segment      |

Entries of 12 bytes, big-endian; timestamps strictly increase (an equal or smaller maximum adds nothing), offsets do
not decrease. An entry is tried whenever the offset index gets one, and once more when the segment is closed, so that
the last entry is the segment's greatest timestamp: retention and time lookup rely on it. Records without timestamps
(-1) leave the index empty. A file that a running broker preallocated is zero behind its entries.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sparklog.errors import BadRequest, Corrupt
from sparklog.format.offset_index import MAX_RELATIVE_OFFSET, REMEDY, choose_batches

ENTRY_BYTES = 12
NO_TIMESTAMP = -1

Int64Array = npt.NDArray[np.int64]

_ENTRY = np.dtype([("timestamp", ">i8"), ("relative", ">i4")])


@dataclass(frozen=True, slots=True)
class TimeIndex:
    """Entries of one segment: `timestamps` (ms) and `offsets` (absolute), both int64[n]."""

    base: int
    timestamps: Int64Array
    offsets: Int64Array

    def __len__(self) -> int:
        return len(self.timestamps)

    def lookup(self, timestamp: int) -> tuple[int, int]:
        """The greatest entry with timestamp <= `timestamp`, as (timestamp, offset); `(-1, base)` if there is none.

        Every record before that offset has a timestamp <= the entry's (Kafka: TimeIndex.lookup).
        """
        entry = int(np.searchsorted(self.timestamps, timestamp, side="right")) - 1
        return (NO_TIMESTAMP, self.base) if entry < 0 else (int(self.timestamps[entry]), int(self.offsets[entry]))

    def to_bytes(self) -> bytes:
        """Kafka's bytes. `BadRequest` if an offset does not fit into 31 bits."""
        relative = self.offsets - self.base
        if len(relative) and (int(relative.min()) < 0 or int(relative.max()) > MAX_RELATIVE_OFFSET):
            raise BadRequest("a time index holds relative offsets of 0..2^31-1; roll the segment earlier")
        entries = np.empty(len(relative), _ENTRY)
        entries["timestamp"] = self.timestamps
        entries["relative"] = relative
        return entries.tobytes()


def max_entries(segment_index_bytes: int) -> int:
    """Return the entries that a segment's time index takes before the segment must roll; one more is for closing."""
    return segment_index_bytes // ENTRY_BYTES - 1


def parse(data: bytes | bytearray | memoryview, base: int, *, file: str | None = None) -> TimeIndex:
    """Entries of a `.timeindex` file of the segment that starts at offset `base`.

    `Corrupt` if the length is no multiple of 12, timestamps do not increase or offsets decrease. All-zero entries
    behind the first are unused slots; a first entry of zeros is one (timestamp 0 at the base offset) only where it
    stands alone.
    """
    if len(data) % ENTRY_BYTES:
        raise Corrupt(f"a time index has a multiple of 12 bytes, this one has {len(data)}; {REMEDY}", file=file)
    entries = np.frombuffer(data, _ENTRY)
    used = np.flatnonzero((entries["timestamp"] != 0) | (entries["relative"] != 0))
    count = int(used[-1]) + 1 if len(used) else int(len(entries) == 1)
    timestamps = entries["timestamp"][:count].astype(np.int64)
    offsets = entries["relative"][:count].astype(np.int64) + base
    rising = (np.diff(timestamps) > 0) & (np.diff(offsets) >= 0)
    if count and (timestamps[0] < 0 or offsets[0] < base or not rising.all()):
        wrong = int(np.argmin(rising)) + 1 if len(rising) and not rising.all() else 0
        raise Corrupt(
            f"entries of a time index increase in timestamp and do not decrease in offset; {REMEDY}",
            file=file,
            position=wrong * ENTRY_BYTES,
        )
    return TimeIndex(base, timestamps, offsets)


def build(
    base: int,
    positions: Int64Array,
    last_offsets: Int64Array,
    max_timestamps: Int64Array,
    interval: int,
    *,
    closed: bool = True,
) -> TimeIndex:
    """The index of a segment from its batches: where each starts, its last offset and its maxTimestamp, in file order.

    `closed` adds the entry that rolling, a clean close and recovery add at the end.
    """
    if not len(positions):
        return TimeIndex(base, np.empty(0, np.int64), np.empty(0, np.int64))
    running = np.maximum.accumulate(max_timestamps)
    # The earliest batch that holds the running maximum: the batch where the maximum last rose.
    rises = np.flatnonzero(np.concatenate(([True], running[1:] > running[:-1])))
    tried = choose_batches(positions, interval)
    if closed:
        tried = np.append(tried, len(positions) - 1)
    timestamps = running[tried]
    holders = rises[np.searchsorted(rises, tried, side="right") - 1]
    kept = timestamps > np.concatenate(([NO_TIMESTAMP], timestamps[:-1]))
    return TimeIndex(base, timestamps[kept], last_offsets[holders][kept])
