"""Kafka's partition hash: murmur2 with Kafka's seed, of every cell of a column at once.

`partition = (murmur2(key) & 0x7fffffff) mod partitions`, as Kafka's default partitioner has it for keys that are not
null (an empty key counts as a key). It is not `abs`, and not Spark's `hash`, which is murmur3.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from sparklog.errors import BadRequest
from sparklog.format.arrow_input import KernelColumns


def murmur2(array: pa.Array | pa.ChunkedArray) -> npt.NDArray[np.int32]:
    """int32[n]: signed murmur2 of each cell of a binary-like column, 0 for null."""
    return _hash(array, 0)


def partition_for_key(array: pa.Array | pa.ChunkedArray, partitions: int) -> npt.NDArray[np.int32]:
    """int32[n]: Kafka's partition of each key, -1 for a null key. Raises `BadRequest` if `partitions` is not
    positive.
    """
    if partitions <= 0:
        raise BadRequest(f"a topic has at least one partition, found {partitions}")
    return _hash(array, partitions)


def _hash(array: pa.Array | pa.ChunkedArray, partitions: int) -> npt.NDArray[np.int32]:
    from sparklog.format.kernels.hash_kernels import murmur2_cells

    out = np.empty(len(array), np.int32)
    columns = KernelColumns(array)
    murmur2_cells.sized(len(out))(columns.table[0], partitions, out)
    return out
