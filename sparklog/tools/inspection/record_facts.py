"""Figures of each batch's records: keys, tombstones, times, order in time. One row of numbers per batch.

Records are looked at by the kernels and by numpy, window by window; of each only a hash of its key is kept, so that
keys can be counted over a whole partition.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from sparklog.errors import BadRequest, Corrupt
from sparklog.format.key_hash import HashKey, key_hashes
from sparklog.format.payloads import RecordFields, payloads, record_fields
from sparklog.format.record_batch import BatchHeaders, BytesLike, Int64Array

COLUMNS = (
    "uncompressed_bytes",
    "keys_null",
    "keys_distinct",
    "key_bytes",
    "tombstones",
    "min_timestamp",
    "late_records",
    "latest_by_ms",
)
"""Numbers per batch, int64: see `sparklog.tools.inspection.batches.SCHEMA`."""
NO_TIMESTAMP = -1
# Keys are counted, never compacted, by this hash: a collision made on purpose does no harm.
_HASH_KEY = HashKey(0, 0)


@dataclass
class BatchFacts:
    """`COLUMNS` of m batches, int64[m] each, -1 where a batch could not be opened; `damage`: the reason, by batch."""

    columns: dict[str, Int64Array]
    damage: dict[int, str]

    @classmethod
    def unknown(cls, batches: int) -> BatchFacts:
        return cls({name: np.full(batches, -1, np.int64) for name in COLUMNS}, {})


@dataclass
class RecordFacts:
    """Walks over the batches of one partition in offset order.

    `hashes`, `batches`: of every data record with a key, a hash of it and the number of its batch in the partition.
    """

    seen: int = 0
    newest: int = NO_TIMESTAMP
    hashes: list[npt.NDArray[np.uint64]] = field(default_factory=list)
    batches: list[Int64Array] = field(default_factory=list)

    def add(self, data: BytesLike, headers: BatchHeaders, sound: npt.NDArray[np.bool_], append_time: int) -> BatchFacts:
        """Add the next batches; only those that are `sound` (bool[m]) are opened. `append_time` as in `runs.Run`."""
        facts = BatchFacts.unknown(len(headers))
        self._open(data, headers, np.flatnonzero(sound), append_time, facts)
        self.seen += len(headers)
        return facts

    def _open(
        self, data: BytesLike, headers: BatchHeaders, rows: Int64Array, append_time: int, facts: BatchFacts
    ) -> None:
        """Open these rows; where some cannot be opened, or are too much at once, halves of them."""
        if not len(rows):
            return
        chosen = headers[rows]
        try:
            body = payloads(data, chosen, check_crc=False)
            records = record_fields(body, chosen)
        except (Corrupt, BadRequest) as error:
            if len(rows) == 1:
                facts.damage[int(rows[0])] = error.message if isinstance(error, Corrupt) else str(error)
                return
            middle = len(rows) // 2
            self._open(data, headers, rows[:middle], append_time, facts)
            self._open(data, headers, rows[middle:], append_time, facts)
            return
        hashes = key_hashes(body.data, records.key_start, records.key_length, _HASH_KEY)[:, 0]
        columns = self._columns(chosen, records, hashes, append_time)
        columns["uncompressed_bytes"] = body.stop - body.start
        for name, values in columns.items():
            facts.columns[name][rows] = values
        keyed = records.has_key & ~chosen.is_control[records.batch]
        self.hashes.append(hashes[keyed])
        self.batches.append(self.seen + rows[records.batch[keyed]])

    def _columns(
        self, headers: BatchHeaders, records: RecordFields, hashes: npt.NDArray[np.uint64], append_time: int
    ) -> dict[str, Int64Array]:
        batches, batch = len(headers), records.batch
        data = ~headers.is_control[batch]
        keyed = records.has_key & data

        def count(mask: npt.NDArray[np.bool_]) -> Int64Array:
            return np.bincount(batch[mask], minlength=batches).astype(np.int64)

        stamped = headers.is_log_append_time[batch]
        batch_time = headers.max_timestamp if append_time < 0 else np.full(batches, append_time)
        times = np.where(stamped, batch_time[batch], records.timestamp)
        behind = self._behind(np.where(data, times, NO_TIMESTAMP))
        return {
            "keys_null": count(data & ~records.has_key),
            "keys_distinct": _distinct(batch[keyed], hashes[keyed], batches),
            "key_bytes": np.bincount(batch[keyed], records.key_length[keyed], batches).astype(np.int64),
            "tombstones": count(data & ~records.has_value),
            "min_timestamp": _per_batch(np.minimum, times, records.batch_rows, NO_TIMESTAMP),
            "late_records": count(behind > 0),
            "latest_by_ms": _per_batch(np.maximum, behind, records.batch_rows, 0),
        }

    def _behind(self, times: Int64Array) -> Int64Array:
        """Return by how many ms each record is older than the newest one before it in the partition."""
        if not len(times):
            return times
        running = np.maximum(np.maximum.accumulate(times), self.newest)
        self.newest = int(running[-1])
        return np.where(times > NO_TIMESTAMP, running - times, 0)

    def key_counts(self, ignored: npt.NDArray[np.bool_]) -> KeyCounts:
        """Count keys over the whole partition; `ignored`: bool of all batches, whose records are not visible."""
        hashes = np.concatenate([*self.hashes, np.zeros(0, np.uint64)])
        batch = np.concatenate([*self.batches, np.zeros(0, np.int64)])
        shown = ~ignored[batch]
        hashes, batch = hashes[shown], batch[shown]
        order = np.argsort(hashes, kind="stable")
        ordered = hashes[order]
        first = np.ones(len(order), np.bool_)
        first[1:] = ordered[1:] != ordered[:-1]
        last = np.ones(len(order), np.bool_)
        last[:-1] = first[1:]
        new = np.bincount(batch[order[first]], minlength=len(ignored)).astype(np.int64)
        latest = np.bincount(batch[order[last]], minlength=len(ignored)).astype(np.int64)
        return KeyCounts(new, latest)


@dataclass(frozen=True, slots=True)
class KeyCounts:
    """Per batch, int64[m]: keys that no record before it has, and records whose key no later record has."""

    new: Int64Array
    latest: Int64Array


def _distinct(batch: npt.NDArray[np.int32], hashes: npt.NDArray[np.uint64], batches: int) -> Int64Array:
    """Count the different hashes in each batch."""
    order = np.lexsort((hashes, batch))
    batch, hashes = batch[order], hashes[order]
    new = np.ones(len(order), np.bool_)
    new[1:] = (batch[1:] != batch[:-1]) | (hashes[1:] != hashes[:-1])
    return np.bincount(batch[new], minlength=batches).astype(np.int64)


def _per_batch(ufunc: np.ufunc, values: Int64Array, rows: Int64Array, none: int) -> Int64Array:
    """Reduce the values of each batch, which has `rows` of them; `none` where it has none."""
    reduced = np.full(len(rows), none, np.int64)
    filled = rows > 0
    if filled.any():
        starts = np.cumsum(rows) - rows
        reduced[filled] = ufunc.reduceat(values, starts[filled])
    return reduced
