"""An in-memory table that follows its topic. The table contains the latest record of each key. The records are first
read by a pass over the log, and then by a tail.

The table has the rows that `Topic.table` would return at the same time, regardless of maintenance. A tombstone deletes
its key. If the log start offset passes the record of a key, the key is also deleted. If compaction has passed the
position of the table in a partition, it may have removed tombstones that the table has not read, so the partition is
read again.
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
"""Number of replaced rows to keep in memory, in addition to one row per key."""


class _PartitionRows:
    """The rows of one partition by key. `_PartitionRows` keeps the record batches that were read, and the row number of
    each key.
    """

    def __init__(self) -> None:
        self.numbers: dict[bytes, int] = {}
        self._batches: list[pa.RecordBatch] = []
        self._firsts: list[int] = []
        self._following = 0
        self._stored_rows = 0
        self._log_start = 0

    def put(self, batch: pa.RecordBatch) -> None:
        """Add records in offset order. Tombstones delete keys; records without a key are ignored."""
        keyed = valid_rows(batch.column("key"))
        if not keyed.all():
            batch = batch.take(fixed_array(np.flatnonzero(keyed), pa.int64()))
        if not batch.num_rows:
            return
        keys, first = batch.column("key").to_pylist(), self._following
        self._following += len(keys)
        self.numbers.update(zip(keys, range(first, self._following), strict=True))
        for row in np.flatnonzero(~valid_rows(batch.column("value"))).tolist():
            self._remove(keys[row], first + row)
        self._batches.append(batch)
        self._firsts.append(first)
        self._stored_rows += len(keys)
        if self._stored_rows > 2 * len(self.numbers) + SPARE_ROWS:
            self._rewrite()

    def drop_below(self, log_start: int) -> int:
        """Remove the rows below a new log start offset, and return their number."""
        if log_start <= self._log_start:
            return 0
        self._log_start = log_start
        before = len(self.numbers)
        for first, batch in zip(self._firsts, self._batches, strict=True):
            rows = np.flatnonzero(fixed_values(batch.column("offset"), np.int64) < log_start)
            keys = batch.column("key").take(fixed_array(rows, pa.int64())).to_pylist()
            for row, key in zip(rows.tolist(), keys, strict=True):
                self._remove(key, first + row)
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
        """Yield the current rows."""
        numbers = np.sort(np.fromiter(self.numbers.values(), np.int64, len(self.numbers)))
        ends = np.searchsorted(numbers, np.asarray([*self._firsts, self._following][1:], np.int64))
        low = 0
        for first, batch, high in zip(self._firsts, self._batches, ends.tolist(), strict=True):
            if high > low:
                yield batch.take(fixed_array(numbers[low:high] - first, pa.int64()))
            low = high

    def _remove(self, key: bytes, number: int) -> None:
        if self.numbers.get(key) == number:
            del self.numbers[key]

    def _rewrite(self) -> None:
        """Rewrite the batches so that they contain only the current rows."""
        current = pa.Table.from_batches(list(self.batches()), self._batches[0].schema).combine_chunks().to_batches()
        self.numbers, self._batches, self._firsts, self._following, self._stored_rows = {}, [], [], 0, 0
        for batch in current:
            self.put(batch)


class FollowedTable(Mapping[bytes, pa.RecordBatch]):
    """An in-memory table that follows its topic.

    The table is a mapping of keys to rows. Each value is a record batch with one row.

    `get`, `[]` and `in` accept bytes or strings. Not thread-safe.

    If several partitions contain a key, the row with the maximum timestamp is returned. Several partitions can contain
    a key if partitions were added, or if records were written to an explicit partition.
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
        self._polled_ms = self._view.env.boot_ms()

    def __repr__(self) -> str:
        return f"FollowedTable({self.topic!r}, {self._view.location!r})"

    def refresh(self) -> bool:
        """Apply the changes since the last refresh.

        Returns:
            True if the table changed.

        Raises:
            Conflict: If the topic was deleted and recreated.
        """
        self._tail.refresh()
        self._polled_ms = self._view.env.boot_ms()
        changed = False
        cleaned = self._view.first_dirty_offsets(self.topic)
        for partition, bounds in self._view.bounds(self.topic).items():
            if self._tail.positions.get(partition, bounds.log_start) < cleaned.get(partition, 0):
                self._reread(partition, bounds.end(READ_COMMITTED))
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
            timeout_s: Maximum time to wait, in seconds, or None for no limit.

        Returns:
            True if the table changed, False if the timeout expired.

        Raises:
            Conflict: If the topic was deleted and recreated.
        """
        started_ms = self._view.env.boot_ms()
        while not self.refresh():
            pause_s = self._view.poll_interval_ms / 1000
            if timeout_s is not None:
                remaining_s = timeout_s - (self._view.env.boot_ms() - started_ms) / 1000
                if remaining_s <= 0:
                    return False
                pause_s = min(pause_s, remaining_s)
            self._view.env.sleep(pause_s)
        return True

    def __getitem__(self, key: bytes | str) -> pa.RecordBatch:
        """Return the row of a key, with the columns of the table."""
        KEY.check("key", key)
        self._refresh_if_due()
        key_bytes = key.encode() if isinstance(key, str) else key
        rows = [row for partition in self._rows.values() if (row := partition.row(key_bytes)) is not None]
        if not rows:
            raise KeyError(key)
        latest = max(rows, key=lambda row: int(fixed_values(row.column("timestamp"), np.int64)[0]))
        return latest.select(list(self.columns))

    def __iter__(self) -> Iterator[bytes]:
        """Yield the keys."""
        self._refresh_if_due()
        return iter(self._all_keys())

    def __len__(self) -> int:
        self._refresh_if_due()
        return len(self._all_keys())

    def to_table(self) -> pa.Table:
        """Return all rows. If several partitions contain a key, the result has a row for each partition."""
        self._refresh_if_due()
        batches = chain.from_iterable(partition.batches() for partition in self._rows.values())
        return pa.Table.from_batches([batch.select(list(self.columns)) for batch in batches], schema_of(self.columns))

    def _all_keys(self) -> dict[bytes, None]:
        return dict.fromkeys(chain.from_iterable(partition.numbers for partition in self._rows.values()))

    def _refresh_if_due(self) -> None:
        if self._poll_ms is not None and self._view.env.boot_ms() - self._polled_ms >= self._poll_ms:
            self.refresh()

    def _rows_of(self, batch: pa.RecordBatch) -> _PartitionRows:
        return self._rows.setdefault(int(fixed_values(batch.column("partition"), np.int32)[0]), _PartitionRows())

    def _reread(self, partition: int, end: int) -> None:
        rows = _PartitionRows()
        for batch in latest_records(plan_table(self._view, self.topic, {partition: end}, [partition]), self._read):
            rows.put(batch)
        # Replace the rows only now, so that the table keeps its rows if the read fails.
        self._rows[partition] = rows
        self._tail.positions[partition] = end
