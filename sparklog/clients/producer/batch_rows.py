"""Batches as Arrow rows with a partition for each row, and the offsets of the records after the commit."""

from __future__ import annotations

from collections.abc import MutableMapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from sparklog.clients.producer.accumulator import Records
from sparklog.clients.producer.futures import RecordPositions
from sparklog.errors import BadRequest
from sparklog.format.arrow_numpy import bytes_array, fixed_array, fixed_values
from sparklog.log.journal.clocks import Env
from sparklog.log.write.append_target import AppendOutcome, AppendTarget, WriteOptions
from sparklog.log.write.arrow_data import write_files
from sparklog.log.write.python_rows import headers_array
from sparklog.log.write.rows import Partitioner
from sparklog.storage.memory import MemoryStore


def rows_of(records: Records, partitions: int, seed: int, sticky_bytes: int) -> pa.RecordBatch:
    """Return the rows of records for a topic with this number of partitions. The rows include a partition column
    (int32).

    Records that have neither a key nor a partition are written to the partition that `seed` selects. After each
    `sticky_bytes`, the next partition is used. Raises `BadRequest` if the topic does not have a partition.
    """
    n = len(records)
    columns: dict[str, pa.Array] = {"value": bytes_array(records.values)}
    if records.keys.count(None) < n:
        columns["key"] = bytes_array(records.keys)
    if records.headers.count(None) < n:
        columns["headers"] = headers_array(records.headers)
    columns["timestamp"] = fixed_array(np.array(records.timestamps, np.int64), pa.int64())
    partitioner = Partitioner(partitions, seed=seed, sticky_bytes=sticky_bytes)
    explicit = _explicit_partitions(records.partitions)
    partition = partitioner.assign(n, key=columns.get("key"), value=columns["value"], partition=explicit)
    columns["partition"] = fixed_array(partition, pa.int32())
    return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))


def _explicit_partitions(partitions: Sequence[int | None]) -> pa.Array | None:
    if partitions.count(None) == len(partitions):
        return None
    valid = np.array([partition is not None for partition in partitions], np.bool_)
    return fixed_array(np.array([partition or 0 for partition in partitions], np.int64), pa.int64(), valid)


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
    def of(cls, rows: pa.RecordBatch, target: AppendTarget, records: Records, count: int) -> PartitionedRows:
        partition = fixed_values(rows.column("partition"), np.int32)
        timestamp = fixed_values(rows.column("timestamp"), np.int64)
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
            rows = rows_of(records.select(range(low, high)), target.partitions, seed, options.batch_bytes)
            write_files(rows, in_memory, env, options=options, writer=None)
        except BadRequest as error:
            if high - low == 1:
                rejected[low] = error
            else:
                middle = (low + high) // 2
                spans += [(low, middle), (middle, high)]
    return rejected
