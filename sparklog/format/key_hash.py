"""Hashes of record keys: SipHash for compaction, and Kafka's murmur2 for partitions.

**SipHash-2-4** with 128 bits of output (Aumasson and Bernstein) is keyed. Compaction by hash relies on different keys
having different hashes. 128 bits make an accidental collision unlikely beyond any count of keys; a secret hash key,
chosen again for every run, keeps the authors of record keys from making one on purpose.

**murmur2** with Kafka's seed gives `partition = (murmur2(key) & 0x7fffffff) mod partitions`, as in Kafka's
default partitioner, for keys that are not null (an empty key counts as a key). It is not `abs`, and not Spark's `hash`,
which is murmur3.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from sparklog.errors import BadRequest
from sparklog.format.arrow_input import KernelColumns
from sparklog.format.kernels.hash_kernels import murmur2_cells, siphash_runs
from sparklog.format.record_batch import ByteArray, Int64Array, as_bytes_array

_WORDS = struct.Struct("<qq")


@dataclass(frozen=True, slots=True)
class HashKey:
    """The secret: 128 bits as two words (each an int64, the bits of an unsigned one)."""

    low: int = field(repr=False)
    high: int = field(repr=False)

    @classmethod
    def of(cls, secret: bytes) -> HashKey:
        """Make a key of 16 bytes, little-endian as in the algorithm. `BadRequest` for another length."""
        if len(secret) != _WORDS.size:
            raise BadRequest(f"a hash key has 16 bytes, found {len(secret)}")
        return cls(*_WORDS.unpack(secret))


def key_hashes(
    data: ByteArray, key_start: Int64Array, key_length: npt.NDArray[np.int32], hash_key: HashKey
) -> npt.NDArray[np.uint64]:
    """Return SipHash of the runs `data[key_start : key_start + key_length]`, two words each (uint64[n, 2]).

    Zeros where the length is negative (no key). `BadRequest` for a run outside the data.
    """
    if len(key_start) != len(key_length):
        raise BadRequest(f"{len(key_start)} positions of keys are given with {len(key_length)} lengths")
    hashes = np.empty((len(key_start), 2), np.uint64)
    starts, lengths = np.ascontiguousarray(key_start, np.int64), np.ascontiguousarray(key_length, np.int32)
    words = hashes.reshape(-1).view(np.int64)
    wrong = siphash_runs(as_bytes_array(data), starts, lengths, hash_key.low, hash_key.high, words)
    if wrong >= 0:
        place = f"{int(key_length[wrong])} bytes at {int(key_start[wrong])}"
        raise BadRequest(f"key {wrong} is not within the {len(data)} bytes of data: found {place}")
    return hashes


def partition_for_key(array: pa.Array | pa.ChunkedArray, partitions: int) -> npt.NDArray[np.int32]:
    """Return Kafka's partition of each key, int32[n], -1 for a null key."""
    if partitions <= 0:
        raise BadRequest(f"a topic has at least one partition, found {partitions}")
    out = np.empty(len(array), np.int32)
    columns = KernelColumns(array)  # keeps the array alive
    murmur2_cells.sized(len(out))(columns.table[0], partitions, out)
    return out
