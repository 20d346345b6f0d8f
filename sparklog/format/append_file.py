"""Append files: what one task appended to a topic, or one merge wrote. Slices, then a footer that says what they are.

    | bytes                     | what                                                                        |
    |---------------------------|-----------------------------------------------------------------------------|
    | [0, size - footer length) | slices back to back: record batches of magic 2 whose base offsets count     |
    |                           | from 0 within their slice                                                   |
    | [size - footer length, size) | the footer                                                               |

Footer, all integers big-endian as everywhere in Kafka's files:

    | part           | size   | fields                                                                          |
    |----------------|--------|---------------------------------------------------------------------------------|
    | head           | 16     | magic 4, format version u32, slices u32, index entries of all slices u32        |
    |                | 4      | version 2 only: entries of aborted transactions u32                             |
    | slice table    | 56 each| partition i32, flags u32, bytes i64, offsets i64, records i64, minTs i64,       |
    |                |        | maxTs i64, crc u32, index entries u32                                           |
    | index entries  | 24 each| position i64 (in the slice), offset i64 (in the slice), max timestamp before i64|
    | aborted        | 28 each| version 2 only: slice u32, producer id i64, first offset i64 (of the log), last |
    |                |        | offset i64 (in the slice)                                                       |
    | tail           | 12     | CRC-32C u32 of all footer bytes before it, footer length u32, magic 4           |

A commit repeats the slice table, so readers need the footer only to seek inside a slice: its length is in the
commit, hence one ranged read and no request for the file's size. The tail lets tools read a file that no commit
names.

Two kinds of files have the document of a commit before their first slice: a commit with records in it
(`_log/<version>.json`) and the copy of one that a restore made (`append/<read version>-commit<version>.slices`).

Index: a slice of up to `INDEX_MIN_BYTES` has no entries and is read whole. A larger one has an entry for its first
batch and then for each first batch that begins `INDEX_INTERVAL_BYTES` or more after the last entry. `offset` is
that batch's base offset; `max timestamp before` is the greatest maxTimestamp of all batches of the slice *before*
it (-1: none), so the first record at or after a time is after the last entry whose value is below that time,
and before the next entry. One kind of entry serves both seeks.

Aborted transactions are those of Kafka's, which slices made from imported data hold: what a `.txnindex` says of a
segment. `last offset` is the ABORT marker's, `first offset` where the transaction began, which may be in another file
or far below the slice. A footer without such entries has version 1.

The name ends in `.slices`, not `.log`: Kafka's tools would trip over the footer.
"""

from __future__ import annotations

import re
import struct
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
"""Of footers that say which of Kafka's transactions were aborted."""
HEAD = struct.Struct(">4sIII")
ABORTED_COUNT = struct.Struct(">I")
TAIL = struct.Struct(">II4s")
HEAD_BYTES = HEAD.size
TAIL_BYTES = TAIL.size

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
"""More than any writer makes (a 1 GiB file of 512 KiB batches has 50 KB); a longer one is damage."""


@dataclass(frozen=True, slots=True)
class SliceIndex:
    """Entries of a slice: places to begin reading at, int64[n] each.

    `max_ts[i]` (ms) is the greatest timestamp before entry i, -1 if none.
    """

    position: Int64Array
    offset: Int64Array
    max_ts: Int64Array

    def __len__(self) -> int:
        return len(self.position)

    def entry_for_offset(self, offset: int) -> int:
        """The last entry at or before `offset` (in the slice); 0 if there is none."""
        return max(0, int(np.searchsorted(self.offset, offset, side="right")) - 1)

    def entry_for_timestamp(self, target: int) -> int:
        """The entry after which the first record with timestamp >= `target` is, if the slice has one."""
        return max(0, int(np.searchsorted(self.max_ts, target, side="left")) - 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenSlice:
    """One slice as its writer describes it. Columns as in `sparklog.log.state.slices.FileSlices`.

    `aborted`: transactions of Kafka's with their ABORT marker in the slice; `last_offsets` count as its batch headers
    do, `last_stable_offsets` are not known (-1). `position`: in the file, from a decoded footer.
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
    """A decoded footer: its slices in file order and how many bytes it took."""

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
    """The sparse index of a slice of `nbytes` from its batches: position and base offset in it, maxTimestamp (ms).

    int64[batches] each, in file order. None for a slice that is read whole.
    """
    if nbytes <= min_bytes or len(position) == 0:
        return None
    taken = [0]
    last = int(position[0])
    # Jumps from entry to entry, not from batch to batch.
    while (following := int(np.searchsorted(position, last + interval))) < len(position):
        taken.append(following)
        last = int(position[following])
    rows = np.asarray(taken, np.int64)
    running = np.maximum.accumulate(max_ts)
    before = np.where(rows > 0, running[np.maximum(rows, 1) - 1], -1)
    return SliceIndex(position[rows].astype(np.int64), offset[rows].astype(np.int64), before.astype(np.int64))


def encode_footer(slices: Sequence[WrittenSlice]) -> bytes:
    indexes = [entry.index for entry in slices]
    entries = [0 if index is None else len(index) for index in indexes]
    rows = [(*written_values(entry), count) for entry, count in zip(slices, entries, strict=True)]
    table = np.array(rows, SLICE_DTYPE)
    aborted = _aborted_rows(slices)
    version, count, rest = FORMAT_VERSION, b"", b""
    if aborted is not None:
        version, count, rest = ABORTED_VERSION, ABORTED_COUNT.pack(len(aborted)), aborted.tobytes()
    parts = [HEAD.pack(MAGIC, version, len(slices), sum(entries)), count, table.tobytes()]
    parts += [_rows(INDEX_DTYPE, index.position, index.offset, index.max_ts).tobytes() for index in indexes if index]
    parts.append(rest)
    body = b"".join(parts)
    return body + TAIL.pack(crc32c(body), len(body) + TAIL_BYTES, MAGIC)


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


def footer_length(tail: bytes, *, file: str | None = None) -> int:
    """The footer's length from the last `TAIL_BYTES` bytes of a file. `Corrupt` if they are no tail."""
    if len(tail) != TAIL_BYTES:
        raise Corrupt(f"expected the last {TAIL_BYTES} bytes of an append file, found {len(tail)}", file=file)
    _, length, magic = TAIL.unpack(tail)
    if magic != MAGIC or not HEAD_BYTES + TAIL_BYTES <= length <= MAX_FOOTER_BYTES:
        raise Corrupt(f"expected an append file's footer, found magic {magic!r} and length {length}", file=file)
    return int(length)


def read_footer(read: Callable[[int, int], bytes], size: int, *, file: str | None = None) -> Footer:
    """The footer of a file of `size` bytes that no commit names, by `read(position, length)`. Raises as the two above
    and below do."""
    length = footer_length(read(max(0, size - TAIL_BYTES), TAIL_BYTES), file=file)
    if length > size:
        raise Corrupt(f"the footer claims {length} bytes of a file of {size}", file=file)
    return decode_footer(read(size - length, length), file_size=size, file=file)


def decode_footer(data: bytes, *, file_size: int, file: str | None = None) -> Footer:
    """The footer from its bytes, checked against its CRC and against `file_size` (bytes of slices and footer together).

    By its name (`file`, a path or key) a file may begin with the document of a commit, which positions count.
    Raises `Corrupt` where bytes are damaged, `BadRequest` for a format version this code does not know.
    """
    data_bytes = file_size - len(data)
    if len(data) < HEAD_BYTES + TAIL_BYTES or data_bytes < 0:
        raise Corrupt(
            f"expected an append file's footer, found {len(data)} bytes", file=file, position=max(data_bytes, 0)
        )
    if footer_length(data[-TAIL_BYTES:], file=file) != len(data):
        raise Corrupt(
            f"expected a footer of {len(data)} bytes, found another length in it", file=file, position=data_bytes
        )
    crc, _, _ = TAIL.unpack(data[-TAIL_BYTES:])
    if crc != crc32c(data[:-TAIL_BYTES]):
        raise Corrupt("the footer's checksum is wrong: restore the file", file=file, position=data_bytes)
    magic, version, count, entries = HEAD.unpack(data[:HEAD_BYTES])
    if magic != MAGIC:
        raise Corrupt(f"expected the footer to begin with {MAGIC!r}, found {magic!r}", file=file, position=data_bytes)
    if version not in (FORMAT_VERSION, ABORTED_VERSION):
        raise BadRequest(f"append file {file} has format {version}, this sparklog reads {ABORTED_VERSION}: upgrade")
    head, markers = HEAD_BYTES, 0
    if version == ABORTED_VERSION:
        markers = int.from_bytes(data[head : head + ABORTED_COUNT.size], "big")
        head += ABORTED_COUNT.size
    index_at = head + count * SLICE_BYTES
    aborted_at = index_at + entries * INDEX_BYTES
    if aborted_at + markers * ABORTED_BYTES + TAIL_BYTES != len(data):
        raise Corrupt(
            f"{count} slices and {entries} index entries do not fill the footer", file=file, position=data_bytes
        )
    table = np.frombuffer(data, SLICE_DTYPE, count, head)
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
    """Slices of a footer whose checksum is right; what contradicts itself all the same is a writer's fault."""
    nbytes = table["nbytes"].astype(np.int64)
    ends = np.cumsum(nbytes)
    first = np.cumsum(table["entries"].astype(np.int64))
    start = data_bytes - (int(ends[-1]) if len(ends) else 0)
    if (nbytes <= 0).any() or start < 0 or (start > 0 and _BEGINS_WITH_DOCUMENT.match(file or "") is None):
        raise Corrupt(f"the footer's slices do not fill the {data_bytes} bytes before it", file=file)
    if (int(first[-1]) if len(first) else 0) != len(index_rows):
        raise Corrupt(f"the footer has {len(index_rows)} index entries, its slices claim another number", file=file)
    if len(aborted) and int(aborted["slice"].max()) >= len(table):
        raise Corrupt(f"the footer names an aborted transaction of a slice beyond its {len(table)}", file=file)
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
    sound = (
        index.position[0] == 0
        and index.offset[0] >= 0
        and int(index.position[-1]) < nbytes
        and int(index.offset[-1]) < offsets
        and (np.diff(index.position) > 0).all()
        and (np.diff(index.offset) > 0).all()
        and (np.diff(index.max_ts) >= 0).all()
    )
    if not sound:
        raise Corrupt("the index of a slice is not in order", file=file, position=position)
    return index
