"""Bloom filters of keys, which allow a lookup to skip the pieces of a slice that do not contain a key.

A filter file is next to its data file (a sealed segment, or an append file that a merge wrote) and has the same name
with the suffix `.bloom`. Filter files are optional. Flag 32 of a slice means that a filter was written for the slice.
If the filter file is missing or corrupt, readers read the slice. A slice is divided into pieces. A piece consists of
complete batches with at most `PIECE_BYTES` bytes in total, or of a single larger batch. Each piece has its own filter.
Integers are big-endian:

    | part    | size    | fields                                                                                |
    |---------|---------|---------------------------------------------------------------------------------------|
    | header  | 12      | magic `SLBF`, format version u32 (2), slices u32                                      |
    | table   | 28 each | position i64 and bytes i64 of the slice in its file, crc u32 (of the slice's bytes),  |
    |         |         | pieces u32, pieces crc u32 (CRC-32C of the slice's rows of pieces)                    |
    | crc     | 4       | CRC-32C of header and table                                                             |
    | pieces  | 24 each | offset i64 (base offset of its first batch, as the batch says), bytes u32, crc u32    |
    |         |         | (of the piece's bytes), blocks u32, filter crc u32 (CRC-32C of the filter's blocks)   |
    | filters | 32 each | blocks, filter after filter: eight words of 32 bits, little-endian                    |

Format version 1 has one filter per slice and no pieces. Its table contains the blocks and the CRC of the filter instead
of the last two fields.

A filter is a split block Bloom filter, as in Parquet. The hash is the first word, unsigned, of SipHash-2-4 (128 bits)
of the key with a secret of 16 zero bytes. The block number is the upper 32 bits of the hash, multiplied by `blocks` and
shifted right by 32. One bit is set in each word of the block. In word i, the number of this bit is the highest five
bits of (the lower 32 bits of the hash times `SALTS[i]`) mod 2^32.

Kafka's murmur2 is not suitable, because it determines the partition, so it has few values within a partition. A filter
contains the keys of all records, including aborted and superseded records. Control records and records without a key
are not included. A filter has 16 to 32 bits per distinct key of the piece. The rate of false positives is about one per
thousand absent keys.
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
from sparklog.format.record_batch import BatchHeaders, BytesLike, DataLocation, Int64Array, as_bytes_array

MAGIC = b"SLBF"
FORMAT_VERSION = 2
HEADER = struct.Struct(">4sII")
CRC = struct.Struct(">I")
TABLE_DTYPE = np.dtype(
    [("position", ">i8"), ("nbytes", ">i8"), ("crc", ">u4"), ("pieces", ">u4"), ("pieces_crc", ">u4")]
)
PIECE_DTYPE = np.dtype([("offset", ">i8"), ("nbytes", ">u4"), ("crc", ">u4"), ("blocks", ">u4"), ("filter_crc", ">u4")])
BLOCK_BYTES = 32
PIECE_BYTES = 1 << 20
BITS_PER_KEY = 16
MAX_FILL = 0.4
"""Fraction of the bits that are set in a filter with about `BITS_PER_KEY` bits per key, which is 1 - (31/32)^16."""
RECORDS_PER_STEP = 1 << 18
SAMPLED_RECORDS = 10_000
"""Number of records at the beginning of a slice that are checked for keys. If none of these records has a key, no
filter is created for the slice.
"""
HASHES_PER_STEP = 256

HASH_KEY = HashKey(0, 0)
Words = npt.NDArray[np.uint32]
Hashes = npt.NDArray[np.uint64]
"""Hashes of keys, as uint64[n] with one word per key."""
Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True, eq=False)
class FilterPiece:
    """A piece of a slice and its filter.

    * `offset`: base offset in the header of the first batch, or -1 if unknown (format version 1)
    * `nbytes`, `crc`: size in bytes and CRC-32C of the batches
    * `words`: the blocks of the filter, uint32[blocks, 8]
    """

    offset: int
    nbytes: int
    crc: int
    words: Words

    def may_contain(self, hashes: Hashes) -> bool:
        """Return False if no record of the piece has any of these keys."""
        for start in range(0, len(hashes) if len(self.words) else 0, HASHES_PER_STEP):
            chunk = hashes[start : start + HASHES_PER_STEP]
            block = ((chunk >> np.uint64(32)) * np.uint64(len(self.words)) >> np.uint64(32)).astype(np.int64)
            low = (chunk & np.uint64(0xFFFFFFFF)).astype(np.uint32)
            bits = np.uint32(1) << ((low[:, None] * _SALTS) >> np.uint32(27))
            if ((self.words[block] & bits) == bits).all(axis=1).any():
                return True
        return False

    def is_contained_in(self, other: FilterPiece) -> bool:
        """Return True if `other` describes the same bytes, and its filter has the same size and contains all keys of
        this filter.
        """
        same = (self.nbytes, self.crc) == (other.nbytes, other.crc) and other.offset in (-1, self.offset)
        return same and not (self.words & ~other.words).any()


@dataclass(frozen=True, slots=True, eq=False)
class KeyFilter:
    """The filters of all pieces of a slice.

    The position in the file, the size in bytes and the CRC-32C identify the slice.
    """

    position: int
    nbytes: int
    crc: int
    pieces: tuple[FilterPiece, ...]

    def may_contain(self, hashes: Hashes) -> Bools:
        """Return bool[pieces], which is False for each piece in which no record has any of these keys."""
        return np.array([piece.may_contain(hashes) for piece in self.pieces], np.bool_)


_SALTS = np.array(SALTS, np.uint32)


def hashes_of(keys: Sequence[bytes]) -> Hashes:
    lengths = np.array([len(key) for key in keys], np.int32)
    data = np.frombuffer(b"".join(keys), np.uint8)
    words = key_hashes(data, np.cumsum(lengths, dtype=np.int64) - lengths, lengths, HASH_KEY)
    return np.ascontiguousarray(words[:, 0])


@dataclass(frozen=True, slots=True, eq=False)
class BatchKeys:
    """The keys of m batches. They are stored as hashes with `HASH_KEY`, uint64[n, 2], and the number of keys per batch,
    int64[m].
    """

    hashes: npt.NDArray[np.uint64]
    counts: Int64Array

    def select(self, first: int, last: int) -> BatchKeys:
        """Return the keys of batches `[first, last)`."""
        low, high = int(self.counts[:first].sum()), int(self.counts[:last].sum())
        return BatchKeys(self.hashes[low:high], self.counts[first:last])


class FilterBuilder:
    """Builds the filters of one slice while its batches are written."""

    def __init__(self, like: KeyFilter | None = None) -> None:
        """Create a builder.

        If `like` is given, the builder uses the same pieces and filter sizes, so that `is_contained_in` can compare the
        filters.
        """
        self._template = () if like is None else like.pieces
        self._pieces: list[FilterPiece] = []
        self._offset = self._nbytes = self._crc = 0
        """Offset, size and CRC-32C of the current piece."""
        self._hashes: list[npt.NDArray[np.uint64]] = []
        self._words: Words | None = None
        """The filter of the current piece if its size is known in advance. Otherwise `_hashes` collects the keys."""
        self._keys = self._records = 0
        self._failed = False

    def add(self, data: BytesLike, headers: BatchHeaders, keys: BatchKeys | None = None) -> None:
        """Add batches, which must be adjacent in `data`. `keys` contains their keys, if they are already known.

        If the records cannot be read, no filter is created for the slice. No error is raised, because the writer only
        copies the batches.
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
        self._failed = self._keys == 0 and self._records >= SAMPLED_RECORDS
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
            self._add_hashes(keys.hashes[key_ends[first] : key_ends[last]])
            first = last

    def _keys_of(self, data: BytesLike, headers: BatchHeaders) -> BatchKeys:
        counts = np.zeros(len(headers), np.int64)
        plain = np.flatnonzero(~headers.is_control)
        before = np.cumsum(headers.count[plain]) - headers.count[plain]
        edges = np.flatnonzero(np.diff(before // RECORDS_PER_STEP)) + 1
        hashes = [np.empty((0, 2), np.uint64)]
        for rows in np.split(plain, edges):
            chunk = headers[rows]
            for group in payload_groups(as_bytes_array(data), chunk, DataLocation(None, 0)):
                fields = record_fields(group, chunk[group.first : group.last])
                starts, lengths, batch, keyed = fields.key_start, fields.key_length, fields.batch, fields.has_key
                if not keyed.all():
                    starts, lengths, batch = starts[keyed], lengths[keyed], batch[keyed]
                hashes.append(key_hashes(group.data, starts, lengths, HASH_KEY))
                group_rows = rows[group.first : group.last]
                counts[group_rows] = np.bincount(batch, minlength=len(group_rows))
        return BatchKeys(np.concatenate(hashes), counts)

    def _room(self) -> int:
        """Return the remaining space in the current piece, in bytes."""
        row = len(self._pieces)
        return (self._template[row].nbytes if row < len(self._template) else PIECE_BYTES) - self._nbytes

    def _add_hashes(self, hashes: npt.NDArray[np.uint64]) -> None:
        row = len(self._pieces)
        if row >= len(self._template):
            self._hashes.append(hashes)
            return
        if self._words is None:
            self._words = np.zeros((len(self._template[row].words), 8), np.uint32)
        _fill(self._words, hashes)

    def _end_piece(self) -> None:
        words, self._words = self._words, None
        if words is None:
            hashes, self._hashes = np.concatenate(self._hashes), []
            blocks = -(-len(hashes) * BITS_PER_KEY // (8 * BLOCK_BYTES))
            # Round up to a multiple of a power of two, by at most an eighth, so that the filter can be halved if keys
            # repeat.
            step = 1 << max(0, blocks.bit_length() - 4)
            words = np.zeros((-(-blocks // step) * step, 8), np.uint32)
            _fill(words, hashes)
            words = _fold(words)
        self._pieces.append(FilterPiece(self._offset, self._nbytes, self._crc, words))
        self._nbytes = self._crc = 0

    def finish(self, position: int, nbytes: int, crc: int) -> KeyFilter | None:
        """Return the filters of the slice at `position` of its file, or None if the slice has no keys or cannot be
        read.
        """
        if self._nbytes and not self._failed:
            self._end_piece()
        if self._failed or not self._keys:
            return None
        return KeyFilter(position, nbytes, crc, tuple(self._pieces))

    def is_contained_in(self, other: KeyFilter) -> bool:
        """Return True if `other` has the same pieces and contains all keys, or if the records cannot be read."""
        if self._nbytes and not self._failed:
            self._end_piece()
        return self._failed or (
            len(self._pieces) == len(other.pieces)
            and all(piece.is_contained_in(stored) for piece, stored in zip(self._pieces, other.pieces, strict=True))
        )


def _fill(words: Words, hashes: npt.NDArray[np.uint64]) -> None:
    if len(words):
        flat = np.ascontiguousarray(hashes).reshape(-1).view(np.int64)
        add_to_filter.sized(len(hashes))(flat, len(words), words.view(np.uint8).reshape(-1))


def _fold(words: Words) -> Words:
    while len(words) and len(words) % 2 == 0:
        half = words[::2] | words[1::2]
        if np.unpackbits(half.view(np.uint8)).mean() > MAX_FILL:
            break
        words = half
    return words


def encode_filters(filters: Sequence[KeyFilter]) -> bytes:
    table = np.zeros(len(filters), TABLE_DTYPE)
    for name in ("position", "nbytes", "crc"):
        table[name] = [getattr(key_filter, name) for key_filter in filters]
    piece_table, blocks = [], []
    for row, key_filter in zip(table, filters, strict=True):
        pieces = np.zeros(len(key_filter.pieces), PIECE_DTYPE)
        for name in ("offset", "nbytes", "crc"):
            pieces[name] = [getattr(piece, name) for piece in key_filter.pieces]
        words = [np.ascontiguousarray(piece.words, "<u4").tobytes() for piece in key_filter.pieces]
        pieces["blocks"] = [len(piece.words) for piece in key_filter.pieces]
        pieces["filter_crc"] = [crc32c(data) for data in words]
        row["pieces"], row["pieces_crc"] = len(pieces), crc32c(pieces.tobytes())
        piece_table.append(pieces.tobytes())
        blocks += words
    header = HEADER.pack(MAGIC, FORMAT_VERSION, len(filters)) + table.tobytes()
    return b"".join([header, CRC.pack(crc32c(header)), *piece_table, *blocks])


def decode_filters(data: bytes, *, file: str | None = None) -> tuple[KeyFilter, ...]:
    """Return the filters of a file.

    Raises `Corrupt` if the file is damaged, and `BadRequest` if its version is unknown.
    """
    if len(data) < HEADER.size + CRC.size:
        raise Corrupt(f"expected a filter file, found {len(data)} bytes", file=file, position=0)
    magic, version, count = HEADER.unpack_from(data)
    start = HEADER.size + count * TABLE_DTYPE.itemsize
    if magic != MAGIC or start + CRC.size > len(data) or CRC.unpack_from(data, start)[0] != crc32c(data[:start]):
        raise Corrupt("the header of the filter file is corrupt", file=file, position=0)
    if version not in (1, FORMAT_VERSION):
        raise BadRequest(
            f"filter file {file} has format version {version}, but the latest supported version is {FORMAT_VERSION}:"
            " upgrade sparklog"
        )
    table, end = np.frombuffer(data, TABLE_DTYPE, count, HEADER.size), start + CRC.size
    rows = []
    for entry in table:
        if version == 1:
            rows.append(np.array([(-1, *entry.tolist()[1:])], PIECE_DTYPE))
            continue
        piece_table = data[end : end + int(entry["pieces"]) * PIECE_DTYPE.itemsize]
        is_complete = len(piece_table) == int(entry["pieces"]) * PIECE_DTYPE.itemsize
        if not is_complete or crc32c(piece_table) != int(entry["pieces_crc"]):
            raise Corrupt("the pieces of a slice in the filter file are corrupt", file=file, position=end)
        rows.append(np.frombuffer(piece_table, PIECE_DTYPE))
        if not len(rows[-1]) or int(rows[-1]["nbytes"].sum(dtype=np.int64)) != int(entry["nbytes"]):
            raise Corrupt("the pieces in the filter file do not have the size of their slice", file=file, position=end)
        end += len(piece_table)
    filters = []
    for entry, pieces in zip(table, rows, strict=True):
        decoded = []
        for offset, nbytes, crc, count, filter_crc in pieces.tolist():
            blocks = data[end : end + count * BLOCK_BYTES]
            if len(blocks) != count * BLOCK_BYTES or crc32c(blocks) != filter_crc:
                raise Corrupt("the filter's CRC-32C does not match its bytes", file=file, position=end)
            decoded.append(FilterPiece(offset, nbytes, crc, np.frombuffer(blocks, "<u4").reshape(-1, 8)))
            end += len(blocks)
        position, nbytes, crc = (int(entry[name]) for name in ("position", "nbytes", "crc"))
        filters.append(KeyFilter(position, nbytes, crc, tuple(decoded)))
    if end != len(data):
        raise Corrupt(f"expected {end} bytes in the filter file, found {len(data)}", file=file, position=end)
    return tuple(filters)
