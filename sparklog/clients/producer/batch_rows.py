"""Batches as Arrow rows with a partition for each row, and the offsets of the records after the commit."""

from __future__ import annotations

from collections.abc import MutableMapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from sparklog.clients.producer.accumulator import Batch, Cells
from sparklog.clients.producer.futures import RecordPositions
from sparklog.errors import BadRequest
from sparklog.format.arrow_numpy import bytes_array, fixed_array, fixed_values, valid_rows
from sparklog.log.journal.clocks import Env
from sparklog.log.journal.documents import INT32_MAX
from sparklog.log.state.record_schema import HEADERS_TYPE
from sparklog.log.write.append_target import AppendOutcome, AppendTarget, WriteOptions
from sparklog.log.write.arrow_data import write_files
from sparklog.log.write.python_rows import headers_array
from sparklog.log.write.rows import Partitioner
from sparklog.log.write.rows import rows_of as row_columns
from sparklog.storage.memory import MemoryStore

T = TypeVar("T")
COLUMNS = pa.schema(
    [
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("headers", HEADERS_TYPE),
        pa.field("timestamp", pa.int64()),
        pa.field("partition", pa.int32()),
    ]
)
"""The columns of records. `timestamp` is in ms. If `partition` is null, the key or the sticky partition is used."""


@dataclass(frozen=True, slots=True)
class Records:
    """Records as columns.

    `sequences` contains the sequence of each record, or is empty if the records do not have sequences. `numbers`
    contains the row numbers of the records in the batch.
    """

    columns: pa.Table
    sequences: Sequence[int | None]
    numbers: Sequence[int]

    @classmethod
    def of(cls, batch: Batch) -> Records:
        """Return all records of a batch."""
        parts = [part for part in (*batch.parts, batch.cells) if len(part)]
        columns = [_columns(part) if isinstance(part, Cells) else part for part in parts]
        # Only records of `send` have sequences.
        sequences = [sequence for *_, sequence in batch.cells.details] if len(batch.cells.details) == batch.rows else []
        # Joining many small parts takes less time than the calls for each part.
        table = pa.Table.from_batches(columns, COLUMNS).combine_chunks()
        return cls(table, sequences, range(batch.rows))

    def __len__(self) -> int:
        return len(self.numbers)

    def slice(self, low: int, high: int) -> Records:
        columns = self.columns.slice(low, high - low)
        return Records(columns, self.sequences[low:high], self.numbers[low:high])

    def select(self, rows: Sequence[int]) -> Records:
        if len(rows) == len(self):
            return self
        columns = self.columns.take(fixed_array(np.array(rows, np.int64), pa.int64()))
        sequences = [self.sequences[row] for row in rows] if self.sequences else []
        return Records(columns, sequences, [self.numbers[row] for row in rows])


def _columns(cells: Cells) -> pa.RecordBatch:
    """Return the columns of records."""
    n = len(cells)
    timestamps = np.array(cells.times_ns, np.int64) // 1_000_000
    headers, partitions = pa.nulls(n, HEADERS_TYPE), pa.nulls(n, pa.int32())
    if cells.details:
        given_headers, given_timestamps, given_partitions, _ = zip(*cells.details, strict=True)
        rows = np.array(cells.detail_rows)
        has_timestamp = [timestamp is not None for timestamp in given_timestamps]
        timestamps[rows[has_timestamp]] = [timestamp for timestamp in given_timestamps if timestamp is not None]
        if any(given_headers):
            headers = headers_array(_spread(given_headers, cells.detail_rows, n))
        if given_partitions.count(None) < len(rows):
            has_partition = np.zeros(n, np.bool_)
            has_partition[rows] = [partition is not None for partition in given_partitions]
            numbers = np.zeros(n, np.int32)
            numbers[rows] = [partition or 0 for partition in given_partitions]
            partitions = fixed_array(numbers, pa.int32(), has_partition)
    arrays = [
        bytes_array(_spread(cells.keys, cells.key_rows, n)) if cells.keys else pa.nulls(n, pa.binary()),
        bytes_array(cells.values),
        headers,
        fixed_array(timestamps, pa.int64()),
        partitions,
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=COLUMNS)


def _spread(cells: Sequence[T], rows: Sequence[int], n: int) -> Sequence[T | None]:
    """Return a list of `n` cells that contains `cells` at `rows`, and None at other rows."""
    if len(cells) == n:
        return cells
    spread: list[T | None] = [None] * n
    for row, cell in zip(rows, cells, strict=True):
        spread[row] = cell
    return spread


def columns_of(batch: pa.RecordBatch, now_ms: int) -> pa.RecordBatch:
    """Return the columns of a batch that a program sends. Null timestamps become `now_ms`.

    Raises `BadRequest` if a column has a wrong type, or if a row has no key, value or headers.
    """
    n, rows = batch.num_rows, row_columns([batch], now_ms)
    arrays = [
        pa.nulls(n, field.type) if array is None else array if array.type == field.type else array.cast(field.type)
        for field, array in zip(COLUMNS, (rows.key, rows.value, rows.headers, None, None), strict=True)
    ]
    arrays[3] = fixed_array(rows.timestamp, pa.int64())
    if rows.partition is not None:
        arrays[4] = _int32(rows.partition)
    empty = np.flatnonzero(~np.logical_or.reduce([valid_rows(array) for array in arrays[:3]]))
    if len(empty):
        raise BadRequest(f"row {int(empty[0])} requires a key or a value: set a key to write a tombstone")
    return pa.RecordBatch.from_arrays(arrays, schema=COLUMNS)


def _int32(partition: pa.Array) -> pa.Array:
    """Return partitions as int32. Raises `BadRequest` if a partition is negative or too large."""
    valid = valid_rows(partition)
    values = np.where(valid, fixed_values(partition, str(partition.type)), 0)
    wrong = values[(values < 0) | (values > INT32_MAX)]
    if len(wrong):
        raise BadRequest(f"partition must be an integer from 0 to {INT32_MAX}, found {int(wrong[0])}")
    return fixed_array(values.astype(np.int32), pa.int32(), valid)


def rows_of(records: Records, partitions: int, seed: int, sticky_bytes: int) -> pa.Table:
    """Return the rows of records for a topic with this number of partitions. Each row has a partition.

    Records that have neither a key nor a partition are written to the partition that `seed` selects. After each
    `sticky_bytes`, the next partition is used. Raises `BadRequest` if the topic does not have a partition.
    """
    partitioner = Partitioner(partitions, seed=seed, sticky_bytes=sticky_bytes)
    return pa.Table.from_batches([_partitioned(part, partitioner) for part in records.columns.to_batches()], COLUMNS)


def _partitioned(columns: pa.RecordBatch, partitioner: Partitioner) -> pa.RecordBatch:
    key, value, *others, explicit = columns.columns
    partition = partitioner.assign(columns.num_rows, key=key, value=value, partition=explicit)
    return pa.RecordBatch.from_arrays([key, value, *others, fixed_array(partition, pa.int32())], schema=COLUMNS)


@dataclass(frozen=True, slots=True)
class PartitionedRows:
    """The partitions (int32[n]) and timestamps (int64[n], ms) of written records.

    If `log_append_time` is True, the commit determines the timestamps. `numbers` contains the row numbers of the
    records in a batch of `count` records.
    """

    partition: npt.NDArray[np.int32]
    timestamp: npt.NDArray[np.int64]
    log_append_time: bool
    numbers: Sequence[int]
    count: int

    @classmethod
    def of(cls, rows: pa.Table, target: AppendTarget, records: Records, count: int) -> PartitionedRows:
        partition, timestamp = (
            np.concatenate([fixed_values(chunk, dtype) for chunk in rows.column(name).chunks])
            for name, dtype in (("partition", np.int32), ("timestamp", np.int64))
        )
        return cls(partition, timestamp, target.configs.log_append_time, records.numbers, count)

    def positions(self, outcome: AppendOutcome, next_offsets: MutableMapping[int, int]) -> RecordPositions:
        """Return the positions of the records. Advance the offsets in `next_offsets`, by partition."""
        order = np.argsort(self.partition, kind="stable")
        counts = np.bincount(self.partition)
        starts = np.cumsum(counts) - counts
        first = np.array([next_offsets.get(partition, 0) for partition in range(len(counts))], np.int64)
        offsets = np.empty(len(self.partition), np.int64)
        offsets[order] = np.arange(len(offsets)) + np.repeat(first - starts, counts)
        for partition in np.flatnonzero(counts).tolist():
            next_offsets[partition] += int(counts[partition])
        times = np.full_like(self.timestamp, outcome.time_ms) if self.log_append_time else self.timestamp
        if len(offsets) == self.count:
            return RecordPositions(self.partition, offsets, times)
        positions, rows = no_positions(self.count), list(self.numbers)
        positions.partition[rows], positions.offset[rows], positions.timestamp[rows] = self.partition, offsets, times
        return positions


def no_positions(count: int) -> RecordPositions:
    """Return the positions of records that were all published earlier."""
    return RecordPositions(np.full(count, -1, np.int32), np.full(count, -1, np.int64), np.full(count, -1, np.int64))


def rejected_rows(
    records: Records, target: AppendTarget, env: Env, options: WriteOptions, seed: int
) -> dict[int, BadRequest]:
    """Return the errors of the records that the topic rejects, by row.

    The reasons for a rejection are implemented in the writer. Therefore this function repeatedly writes halves of the
    records to memory until each rejected record is found.
    """
    in_memory = replace(target, store=MemoryStore(env.wall_ms), inline_bytes=0, root_checked_at=env.now())
    rejected: dict[int, BadRequest] = {}
    spans = [(0, len(records))]
    while spans:
        low, high = spans.pop()
        try:
            rows = rows_of(records.slice(low, high), target.partitions, seed, options.batch_bytes)
            write_files(rows, in_memory, env, options=options, writer=None)
        except BadRequest as error:
            if high - low == 1:
                rejected[low] = error
            else:
                middle = (low + high) // 2
                spans += [(low, middle), (middle, high)]
    return rejected
