"""Append files: the slices that one task appended to a topic or that one merge wrote, and a footer that describes the
slices.

    | bytes                     | content                                                                     |
    |---------------------------|-----------------------------------------------------------------------------|
    | [0, size - footer length) | slices back to back: record batches of magic 2 whose base offsets count     |
    |                           | from 0 in each slice                                                        |
    | [size - footer length, size) | the footer                                                               |

The footer (all integers are big-endian, as in Kafka's files):

    | part           | size   | fields                                                                          |
    |----------------|--------|---------------------------------------------------------------------------------|
    | header         | 16     | magic 4, format version u32, slices u32, index entries of all slices u32        |
    |                | 4      | version 2 only: entries of aborted transactions u32                             |
    | slice table    | 56 each| partition i32, flags u32, bytes i64, offsets i64, records i64, minTs i64,       |
    |                |        | maxTs i64, crc u32, index entries u32                                           |
    | index entries  | 24 each| position i64 (in the slice), offset i64 (in the slice), max timestamp before i64|
    | aborted        | 28 each| version 2 only: slice u32, producer id i64, first offset i64 (of the log), last |
    |                |        | offset i64 (in the slice)                                                       |
    | trailer        | 12     | CRC-32C u32 of all footer bytes before it, footer length u32, magic 4           |

A commit contains a copy of the slice table, so readers need the footer only to seek inside a slice. The commit also
contains the length of the footer, so a single ranged read returns the footer, without a request for the size of the
file. The trailer allows tools to read a file that no commit references.

Two kinds of files contain the document of a commit before their first slice: a commit with inline records
(`_log/<version>.json`), and the copy of such a commit that a restore made (`append/<read
version>-commit<version>.slices`).

Index: a slice of at most `INDEX_MIN_BYTES` has no index entries and is read completely. A larger slice has an entry for
its first batch, and an entry for each batch that is the first to begin `INDEX_INTERVAL_BYTES` or more after the
previous entry. `offset` is the base offset of the batch. `max timestamp before` is the greatest maxTimestamp of all
*earlier* batches of the slice, or -1 if there is none. The first record at or after a timestamp is therefore between
the last entry whose value is below the timestamp and the next entry. The same entries serve lookups by offset and by
timestamp.

Aborted transactions exist only in imported Kafka partitions. The entries are the same as in the `.txnindex` of a Kafka
segment. `last offset` is the offset of the ABORT marker. `first offset` is the start of the transaction, which may be
in another file, far below the slice. A footer without such entries has version 1.

The file name ends with `.slices` instead of `.log`, because the footer would break Kafka's tools.
"""

from __future__ import annotations

import re
import struct
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from sparklog.errors import BadRequest, Corrupt
from sparklog.format import transaction_index
from sparklog.format.crc32c import crc32c
from sparklog.format.record_batch import Int64Array
from sparklog.format.slice_columns import FOOTER_FIELDS, WRITTEN, written_values
from sparklog.format.transaction_index import AbortedTransactions
from sparklog.limits import DEFAULTS

MAGIC = b"SLFT"
FORMAT_VERSION = 1
ABORTED_VERSION = 2
"""Format version of footers that contain aborted transactions."""
HEADER = struct.Struct(">4sIII")
ABORTED_COUNT = struct.Struct(">I")
TRAILER = struct.Struct(">II4s")
HEADER_BYTES = HEADER.size
TRAILER_BYTES = TRAILER.size

SLICE_DTYPE = np.dtype([*FOOTER_FIELDS, ("entries", ">u4")])
INDEX_DTYPE = np.dtype([("position", ">i8"), ("offset", ">i8"), ("max_ts", ">i8")])
ABORTED_DTYPE = np.dtype([("slice", ">u4"), ("producer", ">i8"), ("first", ">i8"), ("last", ">i8")])
SLICE_BYTES = SLICE_DTYPE.itemsize
ABORTED_BYTES = ABORTED_DTYPE.itemsize
INDEX_BYTES = INDEX_DTYPE.itemsize

_BEGINS_WITH_DOCUMENT = re.compile(
    r"(?:.*/)?(?:_log/[0-9]{20}\.json|append/[0-9]{20}-commit[0-9]{20}(?:-[0-9a-f]{16})?\.slices)\Z"
)
INDEX_MIN_BYTES = DEFAULTS.index_min_bytes
INDEX_INTERVAL_BYTES = 256 << 10
MAX_FOOTER_BYTES = 256 << 20
"""Maximum length of a footer. No writer produces a longer footer, so a larger length is corrupt. For example, a 1 GiB
file of 512 KiB batches has a 50 KB footer.
"""


@dataclass(frozen=True, slots=True)
class SliceIndex:
    """The index entries of a slice, which are batches at which a reader can start. int64[n] each.

    `position` and `offset` are relative to the slice. `max_ts[i]` (ms) is the greatest timestamp before entry i, or -1
    if there is none.
    """

    position: Int64Array
    offset: Int64Array
    max_ts: Int64Array

    def __len__(self) -> int:
        return len(self.position)

    def entry_for_offset(self, offset: int) -> int:
        """Return the last entry at or before `offset` (in the slice), or 0 if there is none."""
        return max(0, int(np.searchsorted(self.offset, offset, side="right")) - 1)

    def entry_for_timestamp(self, target: int) -> int:
        """Return the entry at which to start reading to find the first record with a timestamp of at least `target`
        (ms).
        """
        return max(0, int(np.searchsorted(self.max_ts, target, side="left")) - 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenSlice:
    """A slice, as described by its writer. The fields are columns of `sparklog.log.state.slices.FileSlices`.

    * `aborted`: the aborted transactions of imported data whose ABORT marker is in the slice. Their `last_offsets` are
      relative to the slice, as in its batch headers, and their `last_stable_offsets` are unknown (-1)
    * `position`: the position of the slice in its file, which `decode_footer` sets
    """

    partition: int
    nbytes: int
    offsets: int
    records: int
    min_ts: int
    max_ts: int
    crc: int
    flags: int
    index: SliceIndex | None = None
    aborted: AbortedTransactions = field(default_factory=transaction_index.none)
    position: int = 0


@dataclass(frozen=True, slots=True)
class Footer:
    """A decoded footer: its slices in file order, and its length in bytes."""

    slices: tuple[WrittenSlice, ...]
    footer_length: int

    def at(self, position: int) -> WrittenSlice | None:
        return next((entry for entry in self.slices if entry.position == position), None)


def build_index(
    position: Int64Array,
    offset: Int64Array,
    max_ts: Int64Array,
    nbytes: int,
    *,
    interval: int = INDEX_INTERVAL_BYTES,
    min_bytes: int = INDEX_MIN_BYTES,
) -> SliceIndex | None:
    """Return the sparse index of a slice of `nbytes` bytes, or None if the slice is small enough to be read completely.

    `position` (in the slice), `offset` (base offset in the slice) and `max_ts` (maxTimestamp, ms) describe the batches
    of the slice in file order, int64[batches] each.
    """
    if nbytes <= min_bytes or len(position) == 0:
        return None
    indexed_rows, positions = [0], position.tolist()
    # Search for the next entry, which is faster than iterating over all batches.
    while (following := bisect_left(positions, positions[indexed_rows[-1]] + interval)) < len(positions):
        indexed_rows.append(following)
    rows = np.asarray(indexed_rows, np.int64)
    running_max = np.maximum.accumulate(max_ts)
    before = np.where(rows > 0, running_max[np.maximum(rows, 1) - 1], -1)
    return SliceIndex(position[rows].astype(np.int64), offset[rows].astype(np.int64), before.astype(np.int64))


def encode_footer(slices: Sequence[WrittenSlice]) -> bytes:
    indexes = [entry.index for entry in slices]
    entries = [0 if index is None else len(index) for index in indexes]
    rows = [(*written_values(entry), count) for entry, count in zip(slices, entries, strict=True)]
    table = np.array(rows, SLICE_DTYPE)
    aborted = _aborted_rows(slices)
    version, count, aborted_bytes = FORMAT_VERSION, b"", b""
    if aborted is not None:
        version, count, aborted_bytes = ABORTED_VERSION, ABORTED_COUNT.pack(len(aborted)), aborted.tobytes()
    parts = [HEADER.pack(MAGIC, version, len(slices), sum(entries)), count, table.tobytes()]
    parts += [_rows(INDEX_DTYPE, index.position, index.offset, index.max_ts).tobytes() for index in indexes if index]
    parts.append(aborted_bytes)
    body = b"".join(parts)
    return body + TRAILER.pack(crc32c(body), len(body) + TRAILER_BYTES, MAGIC)


def _rows(kind: np.dtype[np.void], *columns: Int64Array) -> npt.NDArray[np.void]:
    rows = np.zeros(len(columns[0]), kind)
    for name, column in zip(kind.names or (), columns, strict=True):
        rows[name] = column
    return rows


def _aborted_rows(slices: Sequence[WrittenSlice]) -> npt.NDArray[np.void] | None:
    if not any(len(entry.aborted) for entry in slices):
        return None
    transactions = transaction_index.concatenate([entry.aborted for entry in slices])
    number = np.repeat(np.arange(len(slices)), np.array([len(entry.aborted) for entry in slices], np.int64))
    names = ("producer_ids", "first_offsets", "last_offsets")
    return _rows(ABORTED_DTYPE, number, *(getattr(transactions, name) for name in names))


def footer_length(trailer: bytes, *, file: str | None = None) -> int:
    """Return the length of the footer, given the last `TRAILER_BYTES` bytes of a file.

    Raises `Corrupt` if the bytes are not a valid trailer.
    """
    if len(trailer) != TRAILER_BYTES:
        raise Corrupt(f"expected the last {TRAILER_BYTES} bytes of an append file, found {len(trailer)}", file=file)
    _, length, magic = TRAILER.unpack(trailer)
    if magic != MAGIC or not HEADER_BYTES + TRAILER_BYTES <= length <= MAX_FOOTER_BYTES:
        raise Corrupt(f"expected an append file's footer, found magic {magic!r} and length {length}", file=file)
    return int(length)


def read_footer(read: Callable[[int, int], bytes], size: int, *, file: str | None = None) -> Footer:
    """Read the footer of a file that no commit references.

    The file has `size` bytes and is read with `read(position, length)`.

    Raises the errors of `footer_length` and `decode_footer`.
    """
    length = footer_length(read(max(0, size - TRAILER_BYTES), TRAILER_BYTES), file=file)
    if length > size:
        raise Corrupt(f"the footer has a length of {length} bytes in a file of {size} bytes", file=file)
    return decode_footer(read(size - length, length), file_size=size, file=file)


def decode_footer(data: bytes, *, file_size: int, file: str | None = None) -> Footer:
    """Decode a footer, and check it against its CRC and against `file_size`, the size of the file in bytes.

    Depending on its name (`file`, a path or key), a file may begin with the document of a commit. The positions of the
    slices include the document.

    Raises `Corrupt` if bytes are damaged, and `BadRequest` if the format version is unknown.
    """
    data_bytes = file_size - len(data)
    if len(data) < HEADER_BYTES + TRAILER_BYTES or data_bytes < 0:
        raise Corrupt(
            f"expected an append file's footer, found {len(data)} bytes", file=file, position=max(data_bytes, 0)
        )
    if footer_length(data[-TRAILER_BYTES:], file=file) != len(data):
        raise Corrupt(
            f"expected a footer of {len(data)} bytes, but its length field has a different value",
            file=file,
            position=data_bytes,
        )
    crc, _, _ = TRAILER.unpack(data[-TRAILER_BYTES:])
    if crc != crc32c(data[:-TRAILER_BYTES]):
        raise Corrupt("the footer's CRC-32C does not match its bytes: restore the file", file=file, position=data_bytes)
    magic, version, count, entries = HEADER.unpack(data[:HEADER_BYTES])
    if magic != MAGIC:
        raise Corrupt(f"expected the footer to begin with {MAGIC!r}, found {magic!r}", file=file, position=data_bytes)
    if version not in (FORMAT_VERSION, ABORTED_VERSION):
        raise BadRequest(
            f"append file {file} has format version {version}, but the latest supported version is {ABORTED_VERSION}:"
            " upgrade sparklog"
        )
    table_at, markers = HEADER_BYTES, 0
    if version == ABORTED_VERSION:
        markers = int.from_bytes(data[table_at : table_at + ABORTED_COUNT.size], "big")
        table_at += ABORTED_COUNT.size
    index_at = table_at + count * SLICE_BYTES
    aborted_at = index_at + entries * INDEX_BYTES
    if aborted_at + markers * ABORTED_BYTES + TRAILER_BYTES != len(data):
        raise Corrupt(
            f"{count} slices and {entries} index entries do not fill the footer", file=file, position=data_bytes
        )
    table = np.frombuffer(data, SLICE_DTYPE, count, table_at)
    rows = np.frombuffer(data, INDEX_DTYPE, entries, index_at)
    aborted = np.frombuffer(data, ABORTED_DTYPE, markers, aborted_at)
    return Footer(_slices(table, rows, aborted, data_bytes, file), len(data))


def _slices(
    table: npt.NDArray[np.void],
    index_rows: npt.NDArray[np.void],
    aborted: npt.NDArray[np.void],
    data_bytes: int,
    file: str | None,
) -> tuple[WrittenSlice, ...]:
    """Return the slices of a footer with a correct checksum.

    Raises `Corrupt` if the footer is inconsistent, which means that its writer has an error.
    """
    nbytes = table["nbytes"].astype(np.int64)
    ends = np.cumsum(nbytes)
    first = np.cumsum(table["entries"].astype(np.int64))
    start = data_bytes - (int(ends[-1]) if len(ends) else 0)
    if (nbytes <= 0).any() or start < 0 or (start > 0 and _BEGINS_WITH_DOCUMENT.match(file or "") is None):
        raise Corrupt(f"the slices in the footer do not fill the {data_bytes} bytes before the footer", file=file)
    if (int(first[-1]) if len(first) else 0) != len(index_rows):
        raise Corrupt(
            f"the footer has {len(index_rows)} index entries, but its slices refer to a different number of index "
            "entries",
            file=file,
        )
    if len(aborted) and int(aborted["slice"].max()) >= len(table):
        raise Corrupt(
            f"the footer has {len(table)} slices, but an aborted transaction refers to another slice",
            file=file,
        )
    producer, first_offset, last_offset = (aborted[name].astype(np.int64) for name in ("producer", "first", "last"))
    transactions = AbortedTransactions(producer, first_offset, last_offset, np.full(len(aborted), -1, np.int64))
    slices = []
    for i, row in enumerate(table):
        size, entries = int(nbytes[i]), int(row["entries"])
        position = start + int(ends[i]) - size
        part = index_rows[int(first[i]) - entries : int(first[i])]
        slices.append(
            WrittenSlice(
                **{name: int(row[name]) for name in WRITTEN},
                index=_index(part, size, int(row["offsets"]), file, position) if entries else None,
                aborted=transactions.select(aborted["slice"] == i) if len(aborted) else transactions,
                position=position,
            )
        )
    return tuple(slices)


def _index(rows: npt.NDArray[np.void], nbytes: int, offsets: int, file: str | None, position: int) -> SliceIndex:
    index = SliceIndex(*(rows[name].astype(np.int64) for name in ("position", "offset", "max_ts")))
    is_ordered = (
        index.position[0] == 0
        and index.offset[0] >= 0
        and int(index.position[-1]) < nbytes
        and int(index.offset[-1]) < offsets
        and (np.diff(index.position) > 0).all()
        and (np.diff(index.offset) > 0).all()
        and (np.diff(index.max_ts) >= 0).all()
    )
    if not is_ordered:
        raise Corrupt("the index entries of a slice are not in ascending order", file=file, position=position)
    return index
