"""Hash record keys. Compaction uses SipHash, the choice of partitions uses Kafka's murmur2, and buckets of tables use
murmur3.

**SipHash-2-4** with 128 bits of output (Aumasson and Bernstein) is a keyed hash. Compaction requires that different
keys have different hashes. With 128 bits, an accidental collision is practically impossible for any number of keys.
Each run uses a new secret hash key. Without this secret, a client that chooses the record keys could cause a collision
on purpose.

**murmur2** with Kafka's seed determines the partition of a key that is not null, as in Kafka's default partitioner:
`partition = (murmur2(key) & 0x7fffffff) mod partitions`. An empty key is also hashed. Note that the mask does not
compute the absolute value, and that Spark's `hash` is murmur3.

**murmur3** with seed 0 determines the bucket of a value in an Iceberg table:
`bucket = (murmur3(value) & 0x7fffffff) mod buckets`.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from sparklog.errors import BadRequest
from sparklog.format.arrow_input import KernelColumns
from sparklog.format.kernels.hash_kernels import murmur2_cells, murmur3_buckets, siphash_keys
from sparklog.format.record_batch import ByteArray, Int64Array, as_bytes_array

_WORDS = struct.Struct("<qq")


@dataclass(frozen=True, slots=True)
class HashKey:
    """A secret hash key of 128 bits, which is stored as two 64-bit words in signed integers."""

    low: int = field(repr=False)
    high: int = field(repr=False)

    @classmethod
    def of(cls, secret: bytes) -> HashKey:
        """Create a hash key from 16 bytes, little-endian as in the algorithm.

        Raises `BadRequest` if `secret` has a different length.
        """
        if len(secret) != _WORDS.size:
            raise BadRequest(f"a hash key must have 16 bytes, found {len(secret)}")
        return cls(*_WORDS.unpack(secret))


def key_hashes(
    data: ByteArray, key_start: Int64Array, key_length: npt.NDArray[np.int32], hash_key: HashKey
) -> npt.NDArray[np.uint64]:
    """Return the SipHash of each key `data[key_start : key_start + key_length]` as two words, uint64[n, 2].

    The hash of a null key (negative length) is zero. Raises `BadRequest` if a key extends beyond the end of the data.
    """
    if len(key_start) != len(key_length):
        raise BadRequest(f"expected as many key lengths as positions, found {len(key_length)} and {len(key_start)}")
    hashes = np.empty((len(key_start), 2), np.uint64)
    starts, lengths = np.ascontiguousarray(key_start, np.int64), np.ascontiguousarray(key_length, np.int32)
    words = hashes.reshape(-1).view(np.int64)
    wrong = siphash_keys(as_bytes_array(data), starts, lengths, hash_key.low, hash_key.high, words)
    if wrong >= 0:
        found = f"{int(key_length[wrong])} bytes at {int(key_start[wrong])}"
        raise BadRequest(f"key {wrong} is not within the {len(data)} bytes of data: found {found}")
    return hashes


def partition_for_key(array: pa.Array | pa.ChunkedArray, partitions: int) -> npt.NDArray[np.int32]:
    """Return the partition of each key according to Kafka's default partitioner, int32[n], or -1 for a null key."""
    if partitions <= 0:
        raise BadRequest(f"a topic must have at least one partition, found {partitions}")
    out = np.empty(len(array), np.int32)
    columns = KernelColumns(array)  # This keeps the array alive.
    murmur2_cells.sized(len(out))(columns.table[0], partitions, out)
    return out


def bucket_for_value(array: pa.Array | pa.ChunkedArray, buckets: int) -> npt.NDArray[np.int32]:
    """Return the bucket of each binary-like value as in an Iceberg table, int32[n], or -1 for a null value."""
    if buckets <= 0:
        raise BadRequest(f"a table must have at least one bucket, found {buckets}")
    out = np.empty(len(array), np.int32)
    columns = KernelColumns(array)  # This keeps the array alive.
    murmur3_buckets.sized(len(out))(columns.table[0], buckets, out)
    return out
