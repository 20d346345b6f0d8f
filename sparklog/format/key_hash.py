"""A 128-bit keyed hash of record keys: SipHash-2-4 with 128 bits of output (Aumasson and Bernstein).

Who compacts by hash trusts that different keys have different hashes. 128 bits make an accidental collision unlikely
beyond any count of keys; a secret hash key, chosen anew for every run, keeps whoever chooses the record keys from
making one on purpose.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from sparklog.errors import BadRequest
from sparklog.format.record_batch import Int64Array, as_bytes_array

_WORDS = struct.Struct("<qq")


@dataclass(frozen=True, slots=True)
class HashKey:
    """The secret: 128 bits as two words (each an int64, the bits of an unsigned one)."""

    low: int = field(repr=False)
    high: int = field(repr=False)

    @classmethod
    def of(cls, secret: bytes) -> HashKey:
        """Of 16 bytes, little-endian as the algorithm has it. Raises `BadRequest` for another length."""
        if len(secret) != _WORDS.size:
            raise BadRequest(f"a hash key has 16 bytes, found {len(secret)}")
        return cls(*_WORDS.unpack(secret))


def key_hashes(
    data: npt.NDArray[np.uint8], key_start: Int64Array, key_length: npt.NDArray[np.int32], hash_key: HashKey
) -> npt.NDArray[np.uint64]:
    """uint64[n, 2] (words of the 16 output bytes, little-endian) of the runs `data[key_start : key_start +
    key_length]`; zeros where the length is negative (no key).

    Raises `BadRequest` for a run outside the data.
    """
    from sparklog.format.kernels.siphash_kernels import siphash_runs

    if len(key_start) != len(key_length):
        raise BadRequest(f"{len(key_start)} positions of keys are given with {len(key_length)} lengths")
    hashes = np.empty((len(key_start), 2), np.uint64)
    wrong = siphash_runs(
        as_bytes_array(data),
        np.ascontiguousarray(key_start, np.int64),
        np.ascontiguousarray(key_length, np.int32),
        hash_key.low,
        hash_key.high,
        hashes.reshape(-1).view(np.int64),
    )
    if wrong >= 0:
        found = f"{int(key_length[wrong])} bytes at {int(key_start[wrong])}"
        raise BadRequest(f"key {wrong} does not lie in the {len(data)} bytes of data: found {found}")
    return hashes
