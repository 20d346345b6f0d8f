"""Bloom filters of keys: which pieces of a slice cannot hold a key, so that a look-up need not read them.

A filter file is next to its data file under the same name with the suffix `.bloom`: of a sealed segment, or an
append file that a merge wrote. It is optional: flag 32 of a slice says that its filter was written. Without the file,
or with a damaged one, a reader reads the slice. A slice is cut into pieces of whole batches, of `PIECE_BYTES` at most
unless one batch is larger; each has a filter of its own. Integers are big-endian:

    | part    | size    | fields                                                                                |
    |---------|---------|---------------------------------------------------------------------------------------|
    | head    | 12      | magic `SLBF`, format version u32 (2), slices u32                                      |
    | table   | 28 each | position i64 and bytes i64 of the slice in its file, crc u32 (of the slice's bytes),  |
    |         |         | pieces u32, pieces crc u32 (CRC-32C of the slice's rows of pieces)                    |
    | crc     | 4       | CRC-32C of head and table                                                             |
    | pieces  | 24 each | offset i64 (base offset of its first batch, as the batch says), bytes u32, crc u32    |
    |         |         | (of the piece's bytes), blocks u32, filter crc u32 (CRC-32C of the filter's blocks)   |
    | filters | 32 each | blocks, filter after filter: eight words of 32 bits, little-endian                    |

Format version 1 has one filter for a slice, and no pieces: its table has the filter's blocks and crc in place of these.

A filter is a split block Bloom filter, as in Parquet. The hash is the first word, unsigned, of SipHash-2-4 (128)
of the key under a secret of 16 zero bytes. Its upper 32 bits, times `blocks`, shifted right by 32, are the block. In
word i of the block one bit is set: the highest five bits of (lower 32 bits times `SALTS[i]`) mod 2^32.

Kafka's murmur2 would not do: it chooses the partition, so within one partition its values are few. A key's records all
count, aborted and superseded ones too; records without a key and control records do not. There are sixteen bits to a
distinct key of a piece, or up to twice as many; about one absent key in a thousand is taken for present in a piece.
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
from sparklog.format.record_batch import BatchHeaders, BytesLike, Int64Array, Place, as_bytes_array

MAGIC = b"SLBF"
FORMAT_VERSION = 2
HEAD = struct.Struct(">4sII")
CRC = struct.Struct(">I")
TABLE_DTYPE = np.dtype(
    [("position", ">i8"), ("nbytes", ">i8"), ("crc", ">u4"), ("pieces", ">u4"), ("pieces_crc", ">u4")]
)
PIECE_DTYPE = np.dtype([("offset", ">i8"), ("nbytes", ">u4"), ("crc", ">u4"), ("blocks", ">u4"), ("filter_crc", ">u4")])
BLOCK_BYTES = 32
PIECE_BYTES = 1 << 20
BITS_PER_KEY = 16
FULL = 0.4
"""Share of the bits that about `BITS_PER_KEY` bits to a key set: 1 - (31/32)^16."""
RECORDS_AT_ONCE = 1 << 18
TRIED_RECORDS = 10_000
"""A slice that begins with so many records without a key gets no filter."""
HASHES_AT_ONCE = 256

HASH_KEY = HashKey(0, 0)
Words = npt.NDArray[np.uint32]
Hashes = npt.NDArray[np.uint64]
"""One word for each key."""
Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True, eq=False)
class FilterPiece:
    """A piece of a slice, `nbytes` bytes of whole batches with this CRC-32C, and its filter; `words`: uint32[n, 8].

    `offset`: base offset of its first batch as the batch says, -1: not known, as in format version 1.
    """

    offset: int
    nbytes: int
    crc: int
    words: Words

    def may_hold(self, hashes: Hashes) -> bool:
        """False if no record of the piece has any of these keys."""
        for start in range(0, len(hashes) if len(self.words) else 0, HASHES_AT_ONCE):
            some = hashes[start : start + HASHES_AT_ONCE]
            block = ((some >> np.uint64(32)) * np.uint64(len(self.words)) >> np.uint64(32)).astype(np.int64)
            low = (some & np.uint64(0xFFFFFFFF)).astype(np.uint32)
            bits = np.uint32(1) << ((low[:, None] * _SALTS) >> np.uint32(27))
            if ((self.words[block] & bits) == bits).all(axis=1).any():
                return True
        return False

    def within(self, other: FilterPiece) -> bool:
        """True if the other one is of the same bytes, and its filter, of as many blocks, holds all keys of this one."""
        same = (self.nbytes, self.crc) == (other.nbytes, other.crc) and other.offset in (-1, self.offset)
        return same and not (self.words & ~other.words).any()


@dataclass(frozen=True, slots=True, eq=False)
class KeyFilter:
    """The filters of the slice of `nbytes` bytes with this CRC-32C at `position` of its file: of all its pieces."""

    position: int
    nbytes: int
    crc: int
    pieces: tuple[FilterPiece, ...]

    def may_hold(self, hashes: Hashes) -> Bools:
        """Return for each piece False if no record of it has any of these keys."""
        return np.array([piece.may_hold(hashes) for piece in self.pieces], np.bool_)


_SALTS = np.array(SALTS, np.uint32)


def hashes_of(keys: Sequence[bytes]) -> Hashes:
    lengths = np.array([len(key) for key in keys], np.int32)
    data = np.frombuffer(b"".join(keys), np.uint8)
    words = key_hashes(data, np.cumsum(lengths, dtype=np.int64) - lengths, lengths, HASH_KEY)
    return np.ascontiguousarray(words[:, 0])


@dataclass(frozen=True, slots=True, eq=False)
class BatchKeys:
    """The keys of m batches: their hashes under `HASH_KEY`, uint64[n, 2], and how many each batch has, int64[m]."""

    hashes: npt.NDArray[np.uint64]
    counts: Int64Array

    def select(self, first: int, last: int) -> BatchKeys:
        """Return the keys of the batches from row `first` to before row `last`."""
        low, high = int(self.counts[:first].sum()), int(self.counts[:last].sum())
        return BatchKeys(self.hashes[low:high], self.counts[first:last])


class FilterBuilder:
    """The filters of one slice, from its batches as they are written."""

    def __init__(self, like: KeyFilter | None = None) -> None:
        """`like`: with the pieces and blocks of these filters, for `within`."""
        self._like = () if like is None else like.pieces
        self._done: list[FilterPiece] = []
        self._offset = self._nbytes = self._crc = 0
        """The piece that is being filled, and its `_hashes`."""
        self._hashes: list[npt.NDArray[np.uint64]] = []
        self._words: Words | None = None
        """Its filter as far as it is filled, where the number of its blocks is known before."""
        self._keys = self._records = 0
        self._failed = False

    def add(self, data: BytesLike, headers: BatchHeaders, keys: BatchKeys | None = None) -> None:
        """Add the batches of `headers`, which are back to back in `data` where their positions say.

        `keys`: theirs, where they are at hand. Records that cannot be read are none of a writer's business that only
        copies batches: there is no filter then.
        """
        if self._failed:
            return
        try:
            keys = self._keys_of(data, headers) if keys is None else keys
        except (Corrupt, BadRequest):
            self._failed = True
            return
        self._keys += len(keys.hashes)
        self._records += int(headers.count[~headers.is_control].sum())
        self._failed = self._keys == 0 and self._records >= TRIED_RECORDS
        view, ends, first = memoryview(data).cast("B"), np.cumsum(headers.size), 0
        key_ends = np.concatenate((np.zeros(1, np.int64), np.cumsum(keys.counts)))
        while first < len(headers):
            start = int(ends[first] - headers.size[first])
            last = int(np.searchsorted(ends, start + self._room(), "right"))
            if last <= first and self._nbytes:
                self._end_piece()
                continue
            last = max(last, first + 1)
            if not self._nbytes:
                self._offset = int(headers.base_offset[first])
            low, size = int(headers.position[first]), int(ends[last - 1]) - start
            self._crc, self._nbytes = crc32c(view[low : low + size], self._crc), self._nbytes + size
            self._take(keys.hashes[key_ends[first] : key_ends[last]])
            first = last

    def _keys_of(self, data: BytesLike, headers: BatchHeaders) -> BatchKeys:
        counts = np.zeros(len(headers), np.int64)
        plain = np.flatnonzero(~headers.is_control)
        before = np.cumsum(headers.count[plain]) - headers.count[plain]
        edges = np.flatnonzero(np.diff(before // RECORDS_AT_ONCE)) + 1
        hashes = [np.empty((0, 2), np.uint64)]
        for rows in np.split(plain, edges):
            some = headers[rows]
            for group in payload_groups(as_bytes_array(data), some, Place(None, 0)):
                fields = record_fields(group, some[group.first : group.last])
                starts, lengths, batch, keyed = fields.key_start, fields.key_length, fields.batch, fields.has_key
                if not keyed.all():
                    starts, lengths, batch = starts[keyed], lengths[keyed], batch[keyed]
                hashes.append(key_hashes(group.data, starts, lengths, HASH_KEY))
                group_rows = rows[group.first : group.last]
                counts[group_rows] = np.bincount(batch, minlength=len(group_rows))
        return BatchKeys(np.concatenate(hashes), counts)

    def _room(self) -> int:
        """Return how many bytes the piece can take yet."""
        row = len(self._done)
        return (self._like[row].nbytes if row < len(self._like) else PIECE_BYTES) - self._nbytes

    def _take(self, hashes: npt.NDArray[np.uint64]) -> None:
        row = len(self._done)
        if row >= len(self._like):
            self._hashes.append(hashes)
            return
        if self._words is None:
            self._words = np.zeros((len(self._like[row].words), 8), np.uint32)
        _fill(self._words, hashes)

    def _end_piece(self) -> None:
        words, self._words = self._words, None
        if words is None:
            hashes, self._hashes = np.concatenate(self._hashes), []
            wanted = -(-len(hashes) * BITS_PER_KEY // (8 * BLOCK_BYTES))
            # A multiple of a power of two, at most an eighth larger: it is halved where keys repeat.
            step = 1 << max(0, wanted.bit_length() - 4)
            words = np.zeros((-(-wanted // step) * step, 8), np.uint32)
            _fill(words, hashes)
            words = _halved(words)
        self._done.append(FilterPiece(self._offset, self._nbytes, self._crc, words))
        self._nbytes = self._crc = 0

    def finish(self, position: int, nbytes: int, crc: int) -> KeyFilter | None:
        """Return the filters of the slice, as small as its distinct keys allow; None if there are none."""
        if self._nbytes and not self._failed:
            self._end_piece()
        if self._failed or not self._keys:
            return None
        return KeyFilter(position, nbytes, crc, tuple(self._done))

    def within(self, other: KeyFilter) -> bool:
        """True if the filters that these are like are of the same pieces and hold all keys, as far as can be read."""
        if self._nbytes and not self._failed:
            self._end_piece()
        return self._failed or (
            len(self._done) == len(other.pieces)
            and all(piece.within(stored) for piece, stored in zip(self._done, other.pieces, strict=True))
        )


def _fill(words: Words, hashes: npt.NDArray[np.uint64]) -> None:
    if len(words):
        flat = np.ascontiguousarray(hashes).reshape(-1).view(np.int64)
        add_to_filter.sized(len(hashes))(flat, len(words), words.view(np.uint8).reshape(-1))


def _halved(words: Words) -> Words:
    while len(words) and len(words) % 2 == 0:
        half = words[::2] | words[1::2]
        if np.unpackbits(half.view(np.uint8)).mean() > FULL:
            break
        words = half
    return words


def encode_filters(filters: Sequence[KeyFilter]) -> bytes:
    table = np.zeros(len(filters), TABLE_DTYPE)
    for name in ("position", "nbytes", "crc"):
        table[name] = [getattr(item, name) for item in filters]
    listed, blocks = [], []
    for row, item in zip(table, filters, strict=True):
        pieces = np.zeros(len(item.pieces), PIECE_DTYPE)
        for name in ("offset", "nbytes", "crc"):
            pieces[name] = [getattr(piece, name) for piece in item.pieces]
        words = [np.ascontiguousarray(piece.words, "<u4").tobytes() for piece in item.pieces]
        pieces["blocks"] = [len(piece.words) for piece in item.pieces]
        pieces["filter_crc"] = [crc32c(data) for data in words]
        row["pieces"], row["pieces_crc"] = len(pieces), crc32c(pieces.tobytes())
        listed.append(pieces.tobytes())
        blocks += words
    head = HEAD.pack(MAGIC, FORMAT_VERSION, len(filters)) + table.tobytes()
    return b"".join([head, CRC.pack(crc32c(head)), *listed, *blocks])


def decode_filters(data: bytes, *, file: str | None = None) -> tuple[KeyFilter, ...]:
    """Return the filters of a file. `Corrupt` where bytes are damaged, `BadRequest` for a version not known."""
    if len(data) < HEAD.size + CRC.size:
        raise Corrupt(f"expected a filter file, found {len(data)} bytes", file=file, position=0)
    magic, version, count = HEAD.unpack_from(data)
    start = HEAD.size + count * TABLE_DTYPE.itemsize
    if magic != MAGIC or start + CRC.size > len(data) or CRC.unpack_from(data, start)[0] != crc32c(data[:start]):
        raise Corrupt("the head of the filter file is damaged", file=file, position=0)
    if version not in (1, FORMAT_VERSION):
        raise BadRequest(f"filter file {file} has format {version}, this sparklog reads {FORMAT_VERSION}: upgrade")
    table, end = np.frombuffer(data, TABLE_DTYPE, count, HEAD.size), start + CRC.size
    rows = []
    for item in table:
        if version == 1:
            rows.append(np.array([(-1, *item.tolist()[1:])], PIECE_DTYPE))
            continue
        listed = data[end : end + int(item["pieces"]) * PIECE_DTYPE.itemsize]
        whole = len(listed) == int(item["pieces"]) * PIECE_DTYPE.itemsize
        if not whole or crc32c(listed) != int(item["pieces_crc"]):
            raise Corrupt("the pieces of a slice in the filter file are damaged", file=file, position=end)
        rows.append(np.frombuffer(listed, PIECE_DTYPE))
        if not len(rows[-1]) or int(rows[-1]["nbytes"].sum(dtype=np.int64)) != int(item["nbytes"]):
            raise Corrupt("the pieces in the filter file do not make up their slice", file=file, position=end)
        end += len(listed)
    filters = []
    for item, pieces in zip(table, rows, strict=True):
        decoded = []
        for offset, nbytes, crc, count, filter_crc in pieces.tolist():
            blocks = data[end : end + count * BLOCK_BYTES]
            if len(blocks) != count * BLOCK_BYTES or crc32c(blocks) != filter_crc:
                raise Corrupt("the filter's CRC-32C does not match its bytes", file=file, position=end)
            decoded.append(FilterPiece(offset, nbytes, crc, np.frombuffer(blocks, "<u4").reshape(-1, 8)))
            end += len(blocks)
        position, nbytes, crc = (int(item[name]) for name in ("position", "nbytes", "crc"))
        filters.append(KeyFilter(position, nbytes, crc, tuple(decoded)))
    if end != len(data):
        raise Corrupt(f"expected {end} bytes in the filter file, found {len(data)}", file=file, position=end)
    return tuple(filters)
