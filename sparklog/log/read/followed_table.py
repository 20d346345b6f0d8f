"""A table that grows: the latest record of each key in memory, by a first pass over the log and a tail after it.

It holds what `Topic.table` would give at the same moment, whatever maintenance does to the log: a tombstone takes its
key away, and so does a log start that passes its record. Where compaction has gone further than the table had read,
tombstones may be gone that it has not seen: that partition is read again.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping
from itertools import chain

import numpy as np
import pyarrow as pa

from sparklog.arguments import KEY, SECONDS, checked
from sparklog.format.arrow_numpy import fixed_array, fixed_values, valid_rows
from sparklog.log.read.latest_by_key import latest_records
from sparklog.log.read.record_batches import schema_of
from sparklog.log.read.table_plan import TablePlan, plan_table
from sparklog.log.read.topic_scan import Tail
from sparklog.log.state.view import COLUMNS, READ_COMMITTED, LogView

NEEDED = ("key", "value", "partition", "offset", "timestamp")
SPARE_ROWS = 10_000
"""Rows that newer ones have replaced, which are held beyond as many as there are keys."""


class _PartitionRows:
    """The rows of one partition by key: batches as they were read, and of each key the number of its row in them."""

    def __init__(self) -> None:
        self.numbers: dict[bytes, int] = {}
        self._batches: list[pa.RecordBatch] = []
        self._firsts: list[int] = []
        self._following = 0
        self._held = 0
        self._log_start = 0

    def put(self, batch: pa.RecordBatch) -> None:
        """Take in records in offset order; tombstones delete, records without a key do nothing."""
        keyed = valid_rows(batch.column("key"))
        if not keyed.all():
            batch = batch.take(fixed_array(np.flatnonzero(keyed), pa.int64()))
        if not batch.num_rows:
            return
        keys, first = batch.column("key").to_pylist(), self._following
        self._following += len(keys)
        self.numbers.update(zip(keys, range(first, self._following), strict=True))
        for row in np.flatnonzero(~valid_rows(batch.column("value"))).tolist():
            self._forget(keys[row], first + row)
        self._batches.append(batch)
        self._firsts.append(first)
        self._held += len(keys)
        if self._held > 2 * len(self.numbers) + SPARE_ROWS:
            self._rewrite()

    def drop_below(self, log_start: int) -> int:
        """Take away the rows below a new log start; returns how many."""
        if log_start <= self._log_start:
            return 0
        self._log_start = log_start
        before = len(self.numbers)
        for first, batch in zip(self._firsts, self._batches, strict=True):
            rows = np.flatnonzero(fixed_values(batch.column("offset"), np.int64) < log_start)
            keys = batch.column("key").take(fixed_array(rows, pa.int64())).to_pylist()
            for row, key in zip(rows.tolist(), keys, strict=True):
                self._forget(key, first + row)
        if before > len(self.numbers):
            self._rewrite()
        return before - len(self.numbers)

    def row(self, key: bytes) -> pa.RecordBatch | None:
        number = self.numbers.get(key)
        if number is None:
            return None
        batch = bisect_right(self._firsts, number) - 1
        return self._batches[batch].slice(number - self._firsts[batch], 1)

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows that count."""
        numbers = np.sort(np.fromiter(self.numbers.values(), np.int64, len(self.numbers)))
        ends = np.searchsorted(numbers, np.asarray([*self._firsts, self._following][1:], np.int64))
        low = 0
        for first, batch, high in zip(self._firsts, self._batches, ends.tolist(), strict=True):
            if high > low:
                yield batch.take(fixed_array(numbers[low:high] - first, pa.int64()))
            low = high

    def _forget(self, key: bytes, number: int) -> None:
        if self.numbers.get(key) == number:
            del self.numbers[key]

    def _rewrite(self) -> None:
        """Hold nothing but the rows that count."""
        kept = pa.Table.from_batches(list(self.batches()), self._batches[0].schema).combine_chunks().to_batches()
        self.numbers, self._batches, self._firsts, self._following, self._held = {}, [], [], 0, 0
        for batch in kept:
            self.put(batch)


class FollowedTable(Mapping[bytes, pa.RecordBatch]):
    """A table in memory that follows its topic: a mapping of keys to rows, each a record batch of one.

    `get`, `[]` and `in` take bytes or text. Not safe to share between threads.

    A key that several partitions hold (partitions were added, or records were written to one by number) has the row
    with the greatest timestamp.
    """

    def __init__(self, plan: TablePlan, view: LogView, poll: float | None) -> None:
        self.topic = plan.topic
        self.columns = plan.columns
        self._poll_ms = None if poll is None else int(1000 * poll)
        self._view = view
        self._read = tuple(name for name in COLUMNS if name in plan.columns or name in NEEDED)
        ends = {offsets.partition: offsets.end for offsets in plan.ranges}
        self._tail = Tail(view, plan.topic, READ_COMMITTED, positions=ends, topic_id=plan.topic_id)
        self._rows: dict[int, _PartitionRows] = {offsets.partition: _PartitionRows() for offsets in plan.ranges}
        for batch in latest_records(plan.partitions, self._read, threads=plan.threads):
            self._rows_of(batch).put(batch)
        self._looked_ms = self._view.env.boot_ms()

    def __repr__(self) -> str:
        return f"FollowedTable({self.topic!r}, {self._view.location!r})"

    def refresh(self) -> bool:
        """Take in what was appended since, and what was deleted.

        Returns:
            True if anything was.

        Raises:
            Conflict: the topic was deleted and created again.
        """
        self._tail.refresh()
        self._looked_ms = self._view.env.boot_ms()
        changed = False
        cleaned = self._view.first_dirty_offsets(self.topic)
        for partition, bounds in self._view.bounds(self.topic).items():
            if self._tail.positions.get(partition, bounds.log_start) < cleaned.get(partition, 0):
                self._read_again(partition, bounds.end(READ_COMMITTED))
                changed = True
            changed |= self._rows.setdefault(partition, _PartitionRows()).drop_below(bounds.log_start) > 0
        for batch in self._tail.poll(self._read):
            changed |= batch.num_rows > 0
            self._rows_of(batch).put(batch)
        return changed

    @checked(timeout_s=SECONDS.or_none())
    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until the table has changed.

        Args:
            timeout_s: seconds to wait at most; None: for ever.

        Returns:
            False if nothing came.

        Raises:
            Conflict: the topic was deleted and created again.
        """
        begun = self._view.env.boot_ms()
        while not self.refresh():
            pause_s = self._view.poll_interval_ms / 1000
            if timeout_s is not None:
                left_s = timeout_s - (self._view.env.boot_ms() - begun) / 1000
                if left_s <= 0:
                    return False
                pause_s = min(pause_s, left_s)
            self._view.env.sleep(pause_s)
        return True

    def __getitem__(self, key: bytes | str) -> pa.RecordBatch:
        """Return the row of a key: one row with the table's columns."""
        KEY.check("key", key)
        self._look()
        key_bytes = key.encode() if isinstance(key, str) else key
        rows = [row for partition in self._rows.values() if (row := partition.row(key_bytes)) is not None]
        if not rows:
            raise KeyError(key)
        newest = max(rows, key=lambda row: int(fixed_values(row.column("timestamp"), np.int64)[0]))
        return newest.select(list(self.columns))

    def __iter__(self) -> Iterator[bytes]:
        """Yield the keys."""
        self._look()
        return iter(self._keys())

    def __len__(self) -> int:
        self._look()
        return len(self._keys())

    def to_table(self) -> pa.Table:
        """Return all rows, those of a key that several partitions hold, too."""
        self._look()
        batches = chain.from_iterable(partition.batches() for partition in self._rows.values())
        return pa.Table.from_batches([batch.select(list(self.columns)) for batch in batches], schema_of(self.columns))

    def _keys(self) -> dict[bytes, None]:
        return dict.fromkeys(chain.from_iterable(partition.numbers for partition in self._rows.values()))

    def _look(self) -> None:
        if self._poll_ms is not None and self._view.env.boot_ms() - self._looked_ms >= self._poll_ms:
            self.refresh()

    def _rows_of(self, batch: pa.RecordBatch) -> _PartitionRows:
        return self._rows.setdefault(int(fixed_values(batch.column("partition"), np.int32)[0]), _PartitionRows())

    def _read_again(self, partition: int, end: int) -> None:
        rows = self._rows[partition] = _PartitionRows()
        for batch in latest_records(plan_table(self._view, self.topic, {partition: end}, [partition]), self._read):
            rows.put(batch)
        self._tail.positions[partition] = end
