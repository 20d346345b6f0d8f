"""Read the latest record of each key of a partition in one pass, from the latest record to the first record. This
module loads the kernels.

A record is the latest record of its key if no later record has the same key. Therefore, the pass starts at the log end
offset and returns each record whose key has not occurred yet. Offsets are read in chunks of a few MiB, and each chunk
is decoded in one call. Only the keys are kept in memory. They are stored as hashes in the cleaner's map
(`sparklog.format.offset_map`). If the log is so small that loading the kernels is not worthwhile, they are stored as
bytes.

A tombstone hides earlier records of its key and is not returned. Records without a key are skipped, because a table has
no rows for them. Kafka's cleaner also removes such records.

This order makes the pass safe during compaction. If the cleaner removes a record before the pass reads it, a chunk that
the pass has already read contains a later record of the same key.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from sparklog.format.arrow_numpy import bytes_array, fixed_array, fixed_values, valid_rows
from sparklog.format.kernels import kernel_choice
from sparklog.format.key_hash import HashKey, key_hashes
from sparklog.format.offset_map import Hashes, OffsetMap
from sparklog.log.journal.clocks import SYSTEM
from sparklog.log.read.read_plan import BATCH_BYTES, NativeReadPart
from sparklog.log.read.table_plan import PartitionTable
from sparklog.log.state.view import ReadPart
from sparklog.storage.parallel_reads import work_ahead

Int64s = npt.NDArray[np.int64]
Read = Callable[[ReadPart, tuple[str, ...]], Iterator[pa.RecordBatch]]

MAX_CHUNK_BYTES = 256 << 20
"""Maximum decoded bytes of a chunk. A larger chunk is read in two parts."""
FIRST_SLOTS = 1 << 14
LOAD_FACTOR = 0.6


class SeenKeys:
    """The keys that have occurred in a pass."""

    def __init__(self) -> None:
        self._small: set[bytes] = set()
        self._map: OffsetMap | None = None
        self._hash_key = HashKey.of(SYSTEM.random.getrandbits(128).to_bytes(16, "little"))

    def new_key_rows(self, keys: pa.BinaryArray) -> Int64s:
        """Return the indexes of the rows with new keys, in ascending order.

        If several rows have the same key, the last row is returned.
        """
        rows = np.flatnonzero(valid_rows(keys))
        if self._map is None and not kernel_choice.choice.compiled(len(rows)):
            return self._new_in_small(keys, rows)
        if self._map is None:
            self._map = OffsetMap(FIRST_SLOTS, LOAD_FACTOR)
            few = bytes_array(list(self._small))
            self._put(self._hashes(few, np.arange(len(few))), np.arange(len(few)))
        hashes = self._hashes(keys, rows)
        is_new = self._map.get(hashes) < 0
        if not is_new.all():
            rows, hashes = rows[is_new], hashes[is_new]
        latest: Int64s = rows[self._put(hashes, rows).get(hashes) == rows]
        return latest

    def _new_in_small(self, keys: pa.BinaryArray, rows: Int64s) -> Int64s:
        latest = dict(zip(keys.to_pylist(), range(len(keys)), strict=True))
        latest.pop(None, None)
        new_keys = latest.keys() - self._small
        self._small |= new_keys
        return np.array(sorted(latest[key] for key in new_keys), np.int64)

    def _put(self, hashes: Hashes, rows: Int64s) -> OffsetMap:
        assert self._map is not None
        if len(self._map) + len(rows) > self._map.limit:
            self._map = self._map.grown(len(rows))
        self._map.put(hashes, rows)
        return self._map

    def _hashes(self, keys: pa.BinaryArray, rows: Int64s) -> Hashes:
        _, offsets, data = keys.buffers()
        ends = np.frombuffer(offsets, np.int32, len(keys) + 1, keys.offset * 4) if len(keys) else np.zeros(1, np.int32)
        content = np.frombuffer(data if data is not None else b"", np.uint8)
        every = len(rows) == len(keys)
        lengths = np.diff(ends) if every else np.diff(ends)[rows]
        starts = ends[:-1] if every else ends[:-1][rows]
        return key_hashes(content, starts.astype(np.int64), lengths, self._hash_key)


def read_part(part: ReadPart, columns: tuple[str, ...]) -> Iterator[pa.RecordBatch]:
    return part.read(columns, batch_bytes=BATCH_BYTES)


def latest_records(
    tables: Sequence[PartitionTable], columns: Sequence[str], *, threads: int = 1, read: Read = read_part
) -> Iterator[pa.RecordBatch]:
    """Yield the latest records of each partition, from the latest record to the first.

    `threads` is the number of chunks that are read in parallel. `read` is a function that reads a part.
    """
    reader = _ChunkReader(tuple(dict.fromkeys((*columns, "key", "value", "offset"))), read)
    chunks = ((table, low, high) for table in tables for low, high in reversed(list(pairwise(table.cuts))))
    current, seen = None, SeenKeys()
    for chunk, result in reader.ahead(chunks, threads):
        table, low, high = chunk
        if table is not current:
            current, seen = table, SeenKeys()
        for batch in reader.descending(table.part, low, high, result):
            rows = seen.new_key_rows(batch.column("key"))
            rows = rows[valid_rows(batch.column("value"))[rows]]
            if len(rows):
                yield batch.select(list(columns)).take(fixed_array(rows[::-1], pa.int64()))


Chunk = tuple[PartitionTable, int, int]
ChunkResult = list[pa.RecordBatch] | int
"""The records of a chunk, or the offset at which to divide the chunk if it is too large."""


@dataclass(frozen=True)
class _ChunkReader:
    columns: tuple[str, ...]
    read: Read

    def ahead(self, chunks: Iterator[Chunk], threads: int) -> Iterator[tuple[Chunk, ChunkResult]]:
        """Read chunks in parallel, and yield each chunk with its records, in order. `threads` is the number of chunks
        that are read in parallel.
        """

        def with_records(chunk: Chunk) -> tuple[Chunk, ChunkResult]:
            return chunk, self._records(chunk[0].part, *chunk[1:])

        return map(with_records, chunks) if threads == 1 else work_ahead(with_records, chunks, threads)

    def descending(self, part: ReadPart, low: int, high: int, result: ChunkResult) -> Iterator[pa.RecordBatch]:
        """Yield the batches of a chunk in reverse order."""
        if isinstance(result, list):
            yield from reversed(result)
            return
        for start, end in ((result, high), (low, result)):
            yield from self.descending(part, start, end, self._records(part, start, end))

    def _records(self, part: ReadPart, low: int, high: int) -> ChunkResult:
        batches, nbytes = [], 0
        for batch in self.read(narrowed(part, low, high), self.columns):
            batches.append(batch)
            nbytes += batch.nbytes
            if nbytes > MAX_CHUNK_BYTES:
                reached = int(fixed_values(batch.column("offset"), np.int64)[-1]) + 1
                if low < reached < high:
                    return reached
        return batches


def narrowed(part: ReadPart, start: int, end: int) -> ReadPart:
    """Return the part, restricted to offsets `[start, end)`."""
    changes: dict[str, Any] = {"range": replace(part.range, start=start, end=end)}
    if isinstance(part, NativeReadPart):
        slices = part.slices
        first, last = np.searchsorted(slices.end, start, "right"), np.searchsorted(slices.base, end, "left")
        changes["slices"] = slices[first:last]
    return replace(part, **changes)  # type: ignore[type-var]
