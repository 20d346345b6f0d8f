"""Partitions of rows, a whole batch at a time, by the rules of Kafka's producer.

An explicit partition wins; else the key decides (murmur2, an empty key is a key); a row without a key goes to the
*sticky* partition, which changes each time about one record batch of such rows has gone to it. Sticky rows start at a
partition drawn from a seed: started from 0 in each task, every small micro-batch would land in partition 0.
"""

from __future__ import annotations

import hashlib

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from sparklog.errors import BadRequest
from sparklog.log.journal.arrow_numpy import fixed_values, valid_rows
from sparklog.log.write.rows import sizes_of

Int32s = npt.NDArray[np.int32]
Int64s = npt.NDArray[np.int64]

STICKY_BYTES = 512 << 10
ROW_OVERHEAD_BYTES = 16
"""What a row counts towards the sticky chunk beside its value, so that rows of empty values spread too."""


def sticky_seed(*parts: object) -> int:
    """Return a seed from what tells one task's writing from another's (batch id, task id)."""
    text = "\0".join(str(part) for part in parts).encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big") >> 1


class Partitioner:
    """Assigns rows of successive batches to `partitions` partitions; remembers where sticky rows go on."""

    def __init__(self, partitions: int, *, seed: int, sticky_bytes: int = STICKY_BYTES) -> None:
        if partitions < 1:
            raise BadRequest(f"expected at least one partition, found {partitions}")
        self._partitions = partitions
        self._sticky = seed % partitions
        self._sticky_bytes = max(1, sticky_bytes)
        self._filled = 0

    def assign(self, rows: int, *, key: pa.Array | None, value: pa.Array | None, partition: pa.Array | None) -> Int32s:
        """Return int32[rows]: the partition of each row. Columns that are None are all null.

        `BadRequest` for an explicit partition that the topic does not have.
        """
        explicit = None if partition is None else self._explicit(partition)
        if explicit is not None and partition is not None and partition.null_count == 0:
            return explicit
        if self._partitions == 1:
            return np.zeros(rows, np.int32)
        out = self._keyed(rows, key, value)
        if explicit is None or partition is None:
            return out
        return np.where(valid_rows(partition), explicit, out)

    def _explicit(self, partition: pa.Array) -> Int32s | None:
        if pa.types.is_null(partition.type) or partition.null_count == len(partition):
            return None
        if not pa.types.is_integer(partition.type):
            raise BadRequest(f"expected an integer partition column, found {partition.type}: cast it to int")
        values = fixed_values(partition, str(partition.type))
        if partition.null_count:
            values = np.where(valid_rows(partition), values, 0)
        if len(values) and (int(values.min()) < 0 or int(values.max()) >= self._partitions):
            wrong = int(values.min()) if int(values.min()) < 0 else int(values.max())
            last = self._partitions - 1
            raise BadRequest(f"expected partitions 0 to {last}, found {wrong}: correct the column or add partitions")
        narrow: Int32s = values.astype(np.int32)
        return narrow

    def _keyed(self, rows: int, key: pa.Array | None, value: pa.Array | None) -> Int32s:
        from sparklog.format.key_hash import partition_for_key

        if key is None or key.null_count == rows:
            return self._sticky_rows(sizes_of(value, rows))
        out: Int32s = partition_for_key(key, self._partitions)
        if key.null_count:
            keyless = ~valid_rows(key)
            out = np.array(out)
            out[keyless] = self._sticky_rows(sizes_of(value, rows)[keyless])
        return out

    def _sticky_rows(self, lengths: Int64s) -> Int32s:
        """The partitions of the next rows without a key, `lengths` their bytes: a chunk each, then the next."""
        ends = np.cumsum(lengths + ROW_OVERHEAD_BYTES) + self._filled
        begins = np.concatenate([[self._filled], ends[:-1]])
        # A row goes where it begins: chunks end with the first row that fills them, as Kafka's batches do.
        chunk = begins // self._sticky_bytes
        out = ((self._sticky + chunk) % self._partitions).astype(np.int32)
        if len(ends):
            moved, self._filled = divmod(int(ends[-1]), self._sticky_bytes)
            self._sticky = (self._sticky + moved) % self._partitions
        return out
