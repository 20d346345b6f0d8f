"""`.index`: the sparse map from offsets to positions that Kafka keeps beside each segment.

| bytes | field          | meaning                                                                    |
|------:|----------------|----------------------------------------------------------------------------|
|     4 | relativeOffset | last offset of the indexed batch - base offset of the segment, 0..2^31-1   |
|     4 | position       | where that batch **starts** in the `.log`                                  |

Entries of 8 bytes, big-endian, offsets and positions strictly increasing, no header, no checksum. An entry names a
batch by its *last* offset, so that the batch found by "greatest entry <= target" never begins behind the target. The
first batch of a segment is never indexed: a batch gets an entry if it starts more than `index.interval.bytes` after the
batch indexed before it (after position 0 at first). A file that a running broker preallocated is zero behind its
entries; position 0 never occurs in an entry, so zeros end it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sparklog.errors import BadRequest, Corrupt

ENTRY_BYTES = 8
REMEDY = "restore it from a backup; a broker writes a deleted one anew when it starts"
"""For a damaged index file."""
MAX_RELATIVE_OFFSET = 2**31 - 1

Int64Array = npt.NDArray[np.int64]

_ENTRY = np.dtype([("relative", ">i4"), ("position", ">i4")])


@dataclass(frozen=True, slots=True)
class OffsetIndex:
    """Entries of one segment: `offsets` (absolute, each the last offset of a batch) and `positions`, both int64[n]."""

    base: int
    offsets: Int64Array
    positions: Int64Array

    def __len__(self) -> int:
        return len(self.offsets)

    def lookup(self, offset: int) -> tuple[int, int]:
        """The greatest entry with offset <= `offset`; `(base, 0)` if there is none (Kafka: OffsetIndex.lookup)."""
        entry = int(np.searchsorted(self.offsets, offset, side="right")) - 1
        return (self.base, 0) if entry < 0 else (int(self.offsets[entry]), int(self.positions[entry]))

    def to_bytes(self) -> bytes:
        """Kafka's bytes. `BadRequest` if an offset or a position does not fit into 31 bits."""
        relative = self.offsets - self.base
        for name, values in (("offset", relative), ("position", self.positions)):
            if len(values) and (int(values.min()) < 0 or int(values.max()) > MAX_RELATIVE_OFFSET):
                raise BadRequest(f"an offset index holds relative {name}s of 0..2^31-1; roll the segment earlier")
        entries = np.empty(len(relative), _ENTRY)
        entries["relative"] = relative
        entries["position"] = self.positions
        return entries.tobytes()


def max_entries(segment_index_bytes: int) -> int:
    """Return the entries that a segment's index takes before the segment must roll (`segment.index.bytes`)."""
    return segment_index_bytes // ENTRY_BYTES


def parse(data: bytes | bytearray | memoryview, base: int, *, file: str | None = None) -> OffsetIndex:
    """Entries of an `.index` file of the segment that starts at offset `base`.

    `Corrupt` if the length is no multiple of 8 or entries do not increase. That they name batches of the `.log`
    beside them is for the caller to verify: nothing in the file says so.
    """
    if len(data) % ENTRY_BYTES:
        raise Corrupt(f"an offset index has a multiple of 8 bytes, this one has {len(data)}; {REMEDY}", file=file)
    entries = np.frombuffer(data, _ENTRY)
    positions = entries["position"].astype(np.int64)
    used = np.flatnonzero(positions)
    count = int(used[-1]) + 1 if len(used) else 0
    offsets, positions = entries["relative"][:count].astype(np.int64) + base, positions[:count]
    rising = (np.diff(offsets) > 0) & (np.diff(positions) > 0)
    if count and (offsets[0] < base or positions[0] <= 0 or not rising.all()):
        wrong = int(np.argmin(rising)) + 1 if len(rising) and not rising.all() else 0
        raise Corrupt(
            f"entries of an offset index increase in offset and position; {REMEDY}",
            file=file,
            position=wrong * ENTRY_BYTES,
        )
    return OffsetIndex(base, offsets, positions)


def choose_batches(positions: Int64Array, interval: int) -> Int64Array:
    """Which batches of a segment get an index entry: indices into `positions` (where each batch starts, ascending).

    Kafka's rule, per batch: the batch starts more than `interval` (`index.interval.bytes`) bytes after the one
    indexed before it. This is what recovery does, and what appending does as long as the broker is not restarted in
    between.
    """
    chosen: list[int] = []
    last = int(positions[0]) if len(positions) else 0
    while True:
        index = int(np.searchsorted(positions, last + interval, side="right"))
        if index >= len(positions):
            return np.array(chosen, np.int64)
        chosen.append(index)
        last = int(positions[index])


def build(base: int, positions: Int64Array, last_offsets: Int64Array, interval: int) -> OffsetIndex:
    """The index of a segment from its batches: where each starts and its last offset, in file order."""
    chosen = choose_batches(positions, interval)
    return OffsetIndex(base, last_offsets[chosen], positions[chosen])
