"""Bloom filters of keys: which slices of a data file cannot hold a key, so that a look-up need not read them.

A filter file is next to its data file under the same name with the suffix `.bloom`: of a sealed segment, or an
append file that a merge wrote. It is optional: flag 32 of a slice says that its filter was written. Without the file,
or with a damaged one, a reader reads the slice. Integers are big-endian:

    | part    | size    | fields                                                                                |
    |---------|---------|---------------------------------------------------------------------------------------|
    | head    | 12      | magic `SLBF`, format version u32, filters u32                                         |
    | table   | 28 each | position i64 and bytes i64 of the slice in its file, crc u32 (of the slice's bytes),  |
    |         |         | blocks u32, filter crc u32 (CRC-32C of the filter's blocks)                           |
    | crc     | 4       | CRC-32C of head and table                                                             |
    | filters | 32 each | blocks, filter after filter: eight words of 32 bits, little-endian                    |

A filter is a split block Bloom filter, as in Parquet. The hash is the first word, unsigned, of SipHash-2-4 (128)
of the key under a secret of 16 zero bytes. Its upper 32 bits, times `blocks`, shifted right by 32, are the block. In
word i of the block one bit is set: the highest five bits of (lower 32 bits times `SALTS[i]`) mod 2^32.

Kafka's murmur2 would not do: it chooses the partition, so within one partition its values are few. A key's records all
count, aborted and superseded ones too; records without a key and control records do not. There are ten bits to a
distinct key, or up to twice as many; about one absent key in a hundred is taken for present.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sparklog.errors import BadRequest, Corrupt
from sparklog.format.crc32c import crc32c
from sparklog.format.kernels.hash_kernels import SALTS, add_to_filter
from sparklog.format.key_hash import HashKey, key_hashes
from sparklog.format.payloads import payload_groups, record_fields
from sparklog.format.record_batch import BatchHeaders, BytesLike, Place, as_bytes_array

MAGIC = b"SLBF"
FORMAT_VERSION = 1
HEAD = struct.Struct(">4sII")
CRC = struct.Struct(">I")
TABLE_DTYPE = np.dtype(
    [("position", ">i8"), ("nbytes", ">i8"), ("crc", ">u4"), ("blocks", ">u4"), ("filter_crc", ">u4")]
)
BLOCK_BYTES = 32
BITS_PER_KEY = 10
FULL = 0.55
"""Share of the bits that about `BITS_PER_KEY` bits to a key set: 1 - (31/32)^25.6."""
RECORDS_AT_ONCE = 1 << 18
TRIED_RECORDS = 10_000
"""A slice that begins with so many records without a key gets no filter."""

HASH_KEY = HashKey(0, 0)
Words = npt.NDArray[np.uint32]
Hashes = npt.NDArray[np.uint64]
"""One word for each key."""


@dataclass(frozen=True, slots=True, eq=False)
class KeyFilter:
    """The filter of the slice of `nbytes` bytes with this CRC-32C at `position` of its file; `words`: uint32[n, 8]."""

    position: int
    nbytes: int
    crc: int
    words: Words

    def may_hold(self, hashes: Hashes) -> bool:
        """False if no record of the slice has any of these keys."""
        block = ((hashes >> np.uint64(32)) * np.uint64(len(self.words)) >> np.uint64(32)).astype(np.int64)
        low = (hashes & np.uint64(0xFFFFFFFF)).astype(np.uint32)
        bits = np.uint32(1) << ((low[:, None] * _SALTS) >> np.uint32(27))
        return bool(((self.words[block] & bits) == bits).all(axis=1).any())


_SALTS = np.array(SALTS, np.uint32)


def hashes_of(keys: Sequence[bytes]) -> Hashes:
    lengths = np.array([len(key) for key in keys], np.int32)
    data = np.frombuffer(b"".join(keys), np.uint8)
    words = key_hashes(data, np.cumsum(lengths, dtype=np.int64) - lengths, lengths, HASH_KEY)
    return np.ascontiguousarray(words[:, 0])


class FilterBuilder:
    """The filter of one slice, from its batches as they are written."""

    def __init__(self, records: int, *, blocks: int = 0) -> None:
        """`records`: the slice has no more of them. `blocks`: as many as that, for `within`."""
        wanted = -(-max(records, 1) * BITS_PER_KEY // (8 * BLOCK_BYTES))
        # A multiple of a power of two, at most an eighth larger: `finish` halves it where keys repeat.
        step = 1 << max(0, wanted.bit_length() - 4)
        self._words = np.zeros((blocks or -(-wanted // step) * step, 8), np.uint32)
        self._keys = self._records = 0
        self._failed = False

    def add(self, data: BytesLike, headers: BatchHeaders) -> None:
        """Add the keys of the batches of `headers`, which are in `data` where their positions say.

        Records that cannot be read are none of a writer's business that only copies batches: there is no filter then.
        """
        if self._failed:
            return
        plain = headers if not headers.is_control.any() else headers[~headers.is_control]
        before = np.cumsum(plain.count) - plain.count
        edges = np.flatnonzero(np.diff(before // RECORDS_AT_ONCE)) + 1
        try:
            for low, high in zip([0, *edges.tolist()], [*edges.tolist(), len(plain)], strict=True):
                self._add(data, plain[low:high])
        except (Corrupt, BadRequest):
            self._failed = True
        self._failed |= self._keys == 0 and self._records >= TRIED_RECORDS

    def _add(self, data: BytesLike, headers: BatchHeaders) -> None:
        for group in payload_groups(as_bytes_array(data), headers, Place(None, 0)):
            fields = record_fields(group, headers[group.first : group.last])
            starts, lengths = fields.key_start, fields.key_length
            if not fields.has_key.all():
                starts, lengths = starts[fields.has_key], lengths[fields.has_key]
            hashes = key_hashes(group.data, starts, lengths, HASH_KEY)
            add_to_filter.sized(len(hashes))(
                hashes.reshape(-1).view(np.int64), len(self._words), self._words.view(np.uint8).reshape(-1)
            )
            self._keys += len(hashes)
            self._records += len(fields)

    def finish(self, position: int, nbytes: int, crc: int) -> KeyFilter | None:
        """Return the filter of the slice, as small as its distinct keys allow; None if there is none."""
        if self._failed or not self._keys:
            return None
        words = self._words
        while len(words) % 2 == 0:
            half = words[::2] | words[1::2]
            if np.unpackbits(half.view(np.uint8)).mean() > FULL:
                break
            words = half
        return KeyFilter(position, nbytes, crc, words)

    def within(self, other: KeyFilter) -> bool:
        """True if a filter of as many blocks holds all keys, as far as they could be read."""
        return self._failed or not (self._words & ~other.words).any()


def encode_filters(filters: Sequence[KeyFilter]) -> bytes:
    table = np.zeros(len(filters), TABLE_DTYPE)
    blocks = [np.ascontiguousarray(item.words, "<u4").tobytes() for item in filters]
    for name in ("position", "nbytes", "crc"):
        table[name] = [getattr(item, name) for item in filters]
    table["blocks"] = [len(item.words) for item in filters]
    table["filter_crc"] = [crc32c(words) for words in blocks]
    head = HEAD.pack(MAGIC, FORMAT_VERSION, len(filters)) + table.tobytes()
    return b"".join([head, CRC.pack(crc32c(head)), *blocks])


def decode_filters(data: bytes, *, file: str | None = None) -> tuple[KeyFilter, ...]:
    """Return the filters of a file. `Corrupt` where bytes are damaged, `BadRequest` for a version not known."""
    if len(data) < HEAD.size + CRC.size:
        raise Corrupt(f"expected a filter file, found {len(data)} bytes", file=file, position=0)
    magic, version, count = HEAD.unpack_from(data)
    start = HEAD.size + count * TABLE_DTYPE.itemsize
    if magic != MAGIC or start + CRC.size > len(data) or CRC.unpack_from(data, start)[0] != crc32c(data[:start]):
        raise Corrupt("the head of the filter file is damaged", file=file, position=0)
    if version != FORMAT_VERSION:
        raise BadRequest(f"filter file {file} has format {version}, this sparklog reads {FORMAT_VERSION}: upgrade")
    filters, end = [], start + CRC.size
    for row in np.frombuffer(data, TABLE_DTYPE, count, HEAD.size):
        blocks = data[end : end + int(row["blocks"]) * BLOCK_BYTES]
        if not blocks or len(blocks) != int(row["blocks"]) * BLOCK_BYTES or crc32c(blocks) != int(row["filter_crc"]):
            raise Corrupt("the filter's CRC-32C does not match its bytes", file=file, position=end)
        words = np.frombuffer(blocks, "<u4").reshape(-1, 8)
        filters.append(KeyFilter(int(row["position"]), int(row["nbytes"]), int(row["crc"]), words))
        end += len(blocks)
    if end != len(data):
        raise Corrupt(f"expected {end} bytes in the filter file, found {len(data)}", file=file, position=end)
    return tuple(filters)
