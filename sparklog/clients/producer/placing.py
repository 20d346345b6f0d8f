"""Batches as Arrow rows with a partition for each, and the offset of each record from the outcome of their commit."""

from __future__ import annotations

from collections.abc import MutableMapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from sparklog.clients.producer.accumulator import Records
from sparklog.clients.producer.futures import Places
from sparklog.errors import BadRequest
from sparklog.format.arrow_numpy import bytes_array, fixed_array, fixed_values
from sparklog.log.journal.clocks import Env
from sparklog.log.write.append_target import AppendOutcome, AppendTarget, WriteOptions
from sparklog.log.write.arrow_data import write_files
from sparklog.log.write.python_rows import headers_array
from sparklog.log.write.rows import Partitioner
from sparklog.storage.memory import MemoryStore


def rows_of(records: Records, count: int, seed: int, sticky_bytes: int) -> pa.RecordBatch:
    """Return the rows of records for a topic of `count` partitions, the partition of each in a column (int32).

    Records without key and partition go to one partition, which `seed` names, and to the next after each
    `sticky_bytes`. `BadRequest` for a partition that the topic does not have.
    """
    n = len(records)
    columns: dict[str, pa.Array] = {"value": bytes_array(records.values)}
    if records.keys.count(None) < n:
        columns["key"] = bytes_array(records.keys)
    if records.headers.count(None) < n:
        columns["headers"] = headers_array(records.headers)
    columns["timestamp"] = fixed_array(np.array(records.timestamps, np.int64), pa.int64())
    partitioner = Partitioner(count, seed=seed, sticky_bytes=sticky_bytes)
    key, value, explicit = columns.get("key"), columns["value"], _explicit(records.partitions)
    place = partitioner.assign(n, key=key, value=value, partition=explicit)
    columns["partition"] = fixed_array(place, pa.int32())
    return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))


def _explicit(partitions: Sequence[int | None]) -> pa.Array | None:
    if partitions.count(None) == len(partitions):
        return None
    valid = np.array([partition is not None for partition in partitions], np.bool_)
    return fixed_array(np.array([partition or 0 for partition in partitions], np.int64), pa.int64(), valid)


@dataclass(frozen=True, slots=True)
class PlacedRows:
    """Partition (int32[n]) and timestamp (int64[n], ms) of records that are written; under LogAppendTime that of the
    commit counts. `numbers`: their rows in a batch of `count`."""

    partition: npt.NDArray[np.int32]
    timestamp: npt.NDArray[np.int64]
    log_append_time: bool
    numbers: Sequence[int]
    count: int

    @classmethod
    def of(cls, rows: pa.RecordBatch, target: AppendTarget, records: Records, count: int) -> PlacedRows:
        columns = rows.column("partition"), rows.column("timestamp")
        partition, timestamp = fixed_values(columns[0], np.int32), fixed_values(columns[1], np.int64)
        return cls(partition, timestamp, target.configs.log_append_time, records.numbers, count)

    def places(self, outcome: AppendOutcome, base: MutableMapping[int, int]) -> Places:
        """Return where the records are. `base`: partition to the next offset, which moves on over these records."""
        order = np.argsort(self.partition, kind="stable")
        counts = np.bincount(self.partition)
        starts = np.cumsum(counts) - counts
        first = np.array([base.get(partition, 0) for partition in range(len(counts))], np.int64)
        offsets = np.empty(len(self.partition), np.int64)
        offsets[order] = np.arange(len(offsets)) + np.repeat(first - starts, counts)
        for partition in np.flatnonzero(counts).tolist():
            base[partition] += int(counts[partition])
        times = np.full_like(self.timestamp, outcome.time_ms) if self.log_append_time else self.timestamp
        if len(offsets) == self.count:
            return Places(self.partition, offsets, times)
        places, rows = no_places(self.count), list(self.numbers)
        places.partition[rows], places.offset[rows], places.timestamp[rows] = self.partition, offsets, times
        return places


def no_places(count: int) -> Places:
    """Return the places of records that all came before."""
    return Places(np.full(count, -1, np.int32), np.full(count, -1, np.int64), np.full(count, -1, np.int64))


def refused_rows(
    records: Records, target: AppendTarget, env: Env, options: WriteOptions, seed: int
) -> dict[int, BadRequest]:
    """Return why the topic refuses records, by row: only a writer knows all reasons, so halves are tried in memory."""
    trial = AppendTarget(
        *(MemoryStore(env.wall_ms), target.root_id, target.topic, target.topic_id, target.partitions),
        *(target.configs, target.read_version, target.leader_epoch),
        root_checked=env.now(),
    )
    refused: dict[int, BadRequest] = {}
    spans = [(0, len(records))]
    while spans:
        low, high = spans.pop()
        try:
            rows = rows_of(records.select(range(low, high)), target.partitions, seed, options.batch_bytes)
            write_files(rows, trial, env, options=options, writer=None)
        except BadRequest as error:
            if high - low == 1:
                refused[low] = error
            else:
                middle = (low + high) // 2
                spans += [(low, middle), (middle, high)]
    return refused
