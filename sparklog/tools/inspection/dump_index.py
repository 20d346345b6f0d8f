"""Print `.index`, `.timeindex`, `.txnindex` and `.snapshot` files as lines, and report mismatches.

Each index entry is compared with the batch at its position in the `.log` file of the segment, even if earlier bytes are
corrupt. Mismatches are printed after the lines of all files, as in Kafka's tool.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from sparklog.errors import BadRequest, Corrupt, NotFound
from sparklog.format import transaction_index
from sparklog.format.batch_scan import begins_with_header
from sparklog.format.producer_snapshot import parse_snapshot
from sparklog.format.record_batch import HEADER_BYTES, Int64Array
from sparklog.format.segment_indexes import OffsetIndex, TimeIndex
from sparklog.tools.inspection.columns import per_batch
from sparklog.tools.inspection.dump_batches import DumpWindow, LogWalk
from sparklog.tools.inspection.dump_source import MAX_INT, DumpFile, Row, plain_text

_OFFSET_ENTRY = np.dtype([("relative", ">i4"), ("value", ">i4")])
_TIME_ENTRY = np.dtype([("value", ">i8"), ("relative", ">i4")])


class FindingKind(NamedTuple):
    """A kind of mismatch.

    Attributes:
        name: the name of the kind in JSON.
        title: the heading that Kafka's tool prints for a file.
        line: the line that Kafka's tool prints for a pair of numbers.
        members: the names of the two numbers in JSON.
    """

    name: str
    title: str
    line: str
    members: tuple[str, str]
    latest_first: bool = False


OFFSET_MISMATCH = FindingKind(
    "offset-mismatch", "Mismatches in :{}", "  Index offset: {}, log offset: {}", ("indexOffset", "logOffset"), True
)
TIMESTAMP_MISMATCH = FindingKind(
    "timestamp-mismatch",
    "Found timestamp mismatch in :{}",
    "  Index timestamp: {}, log timestamp: {}",
    ("indexTimestamp", "logTimestamp"),
)
TIMESTAMP_ORDER = FindingKind(
    "timestamp-order",
    "Found out of order timestamp in :{}",
    "  Index timestamp: {}, Previously indexed timestamp: {}",
    ("indexTimestamp", "previousTimestamp"),
)
NOT_FOUND = FindingKind(
    "offset-not-found",
    "The following indexed offsets are not found in the log.",
    "Indexed offset: {}, found log offset: {}",
    ("indexOffset", "logOffset"),
)
GAP = FindingKind(
    "offset-gap", "Non-consecutive offsets in {}", "  {} is followed by {}", ("offset", "nextOffset"), True
)
_KINDS = (OFFSET_MISMATCH, TIMESTAMP_MISMATCH, TIMESTAMP_ORDER, NOT_FOUND, GAP)


@dataclass(slots=True)
class Findings:
    """Collects pairs of mismatching numbers by kind and file, in file order."""

    pairs: dict[tuple[FindingKind, str], list[tuple[int, int]]] = field(default_factory=dict)

    def add(self, kind: FindingKind, file: str, *pairs: tuple[int, int]) -> None:
        if pairs:
            self.pairs.setdefault((kind, file), []).extend(pairs)

    def lines(self) -> Iterator[str]:
        """Yield the findings in the format of Kafka's tool."""
        for kind, file, pairs in self._each():
            yield kind.title.format(file)
            for pair in reversed(pairs) if kind.latest_first else pairs:
                yield kind.line.format(*pair)

    def objects(self) -> Iterator[dict[str, Any]]:
        """Yield the findings as JSON objects, one object per pair."""
        for kind, file, pairs in self._each():
            for pair in pairs:
                yield {"type": kind.name, "file": file, **dict(zip(kind.members, pair, strict=True))}

    def _each(self) -> list[tuple[FindingKind, str, list[tuple[int, int]]]]:
        by_kind = sorted(self.pairs.items(), key=lambda entry: _KINDS.index(entry[0][0]))
        return [(kind, file, pairs) for (kind, file), pairs in by_kind]


@dataclass(frozen=True, slots=True)
class IndexOptions:
    """Options that determine which parts of an index are printed.

    Attributes:
        sanity: only perform the sanity check of a starting broker.
        verify: print only findings.
        max_message_size: the maximum size of a batch that an entry of an `.index` file refers to.
    """

    sanity: bool = False
    verify: bool = False
    max_message_size: int = 5 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class _Entries:
    """The entries of an index file: absolute offsets and values (positions or timestamps) as int64 arrays."""

    source: DumpFile
    offsets: Int64Array
    values: Int64Array
    nbytes: int

    @classmethod
    def read(cls, source: DumpFile, entry: npt.DTypeLike) -> _Entries:
        data, size = source.read(), np.dtype(entry).itemsize
        rows = np.frombuffer(data, entry, len(data) // size)
        offsets = rows["relative"].astype(np.int64) + source.base_offset
        return cls(source, offsets, rows["value"].astype(np.int64), len(data))

    def used(self) -> _Entries:
        """Return the entries before the zeros of a preallocated file. The first entry may be zero."""
        zeros = np.flatnonzero(self.offsets[1:] == self.source.base_offset)
        count = int(zeros[0]) + 1 if len(zeros) else len(self.offsets)
        return _Entries(self.source, self.offsets[:count], self.values[:count], self.nbytes)

    def check(self, entry_bytes: int) -> Row:
        """Perform the sanity check of a starting broker. Raises `Corrupt` if the broker would rebuild the index."""
        file, base = self.source.shown, self.source.base_offset
        if self.nbytes % entry_bytes:
            found = f"expected a multiple of {entry_bytes} bytes, found {self.nbytes}"
            raise Corrupt(f"{found}; run sparklog repair", file=file)
        if len(self.offsets) and self.offsets[-1] < base:
            last = int(self.offsets[-1])
            raise Corrupt(f"expected a last offset of {base} or more, found {last}; run sparklog repair", file=file)
        return Row(f"{file} passed sanity check.", {"type": "sane"})


def index_rows(source: DumpFile, findings: Findings, options: IndexOptions) -> Iterator[Row]:
    """Yield the lines of an `.index` file. Raises `Corrupt` if no batch starts at the position of an entry."""
    log = _Log(source)
    entries = _Entries.read(source, _OFFSET_ENTRY)
    if not len(entries.offsets):
        yield Row(f"{source.shown} is empty.", {"type": "empty"})
        return
    if options.sanity:
        yield entries.check(OffsetIndex.ENTRY_BYTES)
        return
    entries = entries.used()
    pairs = zip(entries.offsets.tolist(), entries.values.tolist(), strict=True)
    for number, (offset, position) in enumerate(pairs):
        try:
            log_offset = log.last_offset_at(position, options.max_message_size)
        except Corrupt as error:
            raise Corrupt(error.message, file=source.shown, position=number * OffsetIndex.ENTRY_BYTES) from None
        if log_offset != offset:
            findings.add(OFFSET_MISMATCH, source.absolute, (offset, log_offset))
        if not options.verify:
            fields = {"type": "index", "offset": offset, "position": position, "logOffset": log_offset}
            yield Row(f"offset: {offset} position: {position}", fields)


def time_index_rows(source: DumpFile, findings: Findings, options: IndexOptions) -> Iterator[Row]:
    """Yield the lines of a `.timeindex` file. Raises `Corrupt` if the batch of an entry cannot be decoded."""
    entries = _Entries.read(source, _TIME_ENTRY)
    if options.sanity:
        if len(entries.values) and entries.values[-1] < entries.values[0]:
            first, last = int(entries.values[0]), int(entries.values[-1])
            found = f"expected a last timestamp of {first} or more, found {last}"
            raise Corrupt(f"{found}; run sparklog repair", file=source.shown)
        yield entries.check(TimeIndex.ENTRY_BYTES)
        return
    before = -1
    entries = entries.used()
    log = _Log(source, entries.offsets)
    starts = _positions(source.with_suffix("index"), entries.offsets)
    for offset, timestamp, start in zip(entries.offsets.tolist(), entries.values.tolist(), starts, strict=True):
        log_offset, latest = log.batch_of(offset, start)
        if log_offset != offset:
            findings.add(NOT_FOUND, source.absolute, (offset, log_offset))
        else:
            if latest != timestamp:
                findings.add(TIMESTAMP_MISMATCH, source.absolute, (timestamp, latest))
            if before >= timestamp:
                findings.add(TIMESTAMP_ORDER, source.absolute, (timestamp, before))
        if not options.verify:
            fields = {"type": "timeindex", "timestamp": timestamp, "offset": offset}
            yield Row(f"timestamp: {timestamp} offset: {offset}", fields)
        before = timestamp


def _positions(index: DumpFile, offsets: Int64Array) -> list[int]:
    """Return the position in the last index entry at or before each offset, or 0 if no entry precedes the offset."""
    if index.store.stat(index.key) is None:
        return [0] * len(offsets)
    entries = _Entries.read(index, _OFFSET_ENTRY).used()
    rows = np.searchsorted(entries.offsets, offsets, "right")
    starts: list[int] = np.concatenate(([0], entries.values))[rows].tolist()
    return starts


def transaction_index_rows(source: DumpFile) -> Iterator[Row]:
    """Yield the lines of a `.txnindex` file.

    Raises `Corrupt` if an entry has an unsupported version, or if the last entry is followed by extra bytes.
    """
    data = source.read()
    names = ("version", "producerId", "firstOffset", "lastOffset", "lastStableOffset")
    size = transaction_index.ENTRY_BYTES
    end = len(data) - len(data) % size
    for number, values in enumerate(np.frombuffer(data[:end], transaction_index.ENTRY).tolist()):
        if values[0] != transaction_index.VERSION:
            message = f"expected an aborted transaction of version {transaction_index.VERSION}, found {values[0]}"
            raise Corrupt(message, file=source.shown, position=number * size)
        fields = dict(zip(names, values, strict=True))
        yield Row(plain_text(fields), {"type": "txnindex", **fields})
    if end < len(data):
        message = f"expected entries of {size} bytes, found {len(data) - end} extra bytes after the last entry"
        raise Corrupt(message, file=source.shown, position=end)


def snapshot_rows(source: DumpFile) -> Iterator[Row]:
    """Yield the lines of a producer snapshot. Raises `Corrupt` before the first line if the snapshot is damaged."""
    for entry in parse_snapshot(source.read(), file=source.shown):
        open_since, last = entry.open_since, entry.last_sequence
        fields: dict[str, Any] = {
            "producerId": entry.producer_id,
            "producerEpoch": entry.producer_epoch,
            "coordinatorEpoch": entry.coordinator_epoch,
            "currentTxnFirstOffset": f"OptionalLong[{open_since}]" if open_since >= 0 else "OptionalLong.empty",
            "lastTimestamp": entry.timestamp,
        }
        text = plain_text(fields) + " "
        fields["currentTxnFirstOffset"] = open_since if open_since >= 0 else None
        if entry.last_offset >= 0:
            batch = {
                # Sequence number 0 follows 2^31 - 1.
                "firstSequence": (last - entry.offset_delta) & MAX_INT if entry.offset_delta else last,
                "lastSequence": last,
                "lastOffset": entry.last_offset,
                "offsetDelta": entry.offset_delta,
                "timestamp": entry.timestamp,
            }
            text += plain_text(batch)
            fields["lastBatch"] = batch
        yield Row(text, {"type": "producer", **fields})


@dataclass(frozen=True, slots=True)
class _BatchRange:
    """Adjacent batches in a `.log` file.

    Attributes:
        starts: the position of each batch, int64[n].
        sizes: the size of each batch, int64[n].
        lasts: the last offset of each batch, int64[n].
        ends: the maximum last offset up to each batch, int64[n].
        damage: the reason why the range ends, as part of an error message; empty if the range ends at the end of the
            log.
        latest: the maximum timestamp of requested batches by position.
    """

    starts: Int64Array
    sizes: Int64Array
    lasts: Int64Array
    ends: Int64Array
    damage: str
    latest: dict[int, int]

    @classmethod
    def read(cls, log: DumpFile, start: int, requested: Int64Array | None) -> _BatchRange:
        """Read batches from byte `start` up to corrupt bytes or the end of the log.

        `requested` contains the last offsets of batches whose timestamps are needed.
        """
        columns: list[list[Int64Array]] = [[np.empty(0, np.int64)] for _ in range(3)]
        latest: dict[int, int] = {}
        damage = ""
        try:
            for window in LogWalk(log, start):
                headers = window.headers
                values = (headers.position + window.start, headers.size, headers.last_offset)
                for column, of_window in zip(columns, values, strict=True):
                    column.append(of_window)
                if requested is not None:
                    _add_latest(latest, window, np.flatnonzero(np.isin(headers.last_offset, requested)))
        except Corrupt as error:
            damage = f" ({log.shown}: {error.message})"
        starts, sizes, lasts = (np.concatenate(column) for column in columns)
        return cls(starts, sizes, lasts, np.maximum.accumulate(lasts), damage, latest)

    def row_at(self, position: int) -> int | None:
        row = int(np.searchsorted(self.starts, position))
        return row if row < len(self.starts) and self.starts[row] == position else None


class _Log:
    """The `.log` file of a segment. Batches are read from the start of the file. After corrupt bytes, batches are read
    from the positions in the index.
    """

    def __init__(self, index: DumpFile, requested: Int64Array | None = None) -> None:
        """Read the log. `requested` contains the last offsets of batches whose timestamps are needed."""
        self.source = index.with_suffix("log")
        info = self.source.store.stat(self.source.key)
        if info is None:
            raise NotFound(f"{self.source.shown}, the log file of {index.shown}, does not exist")
        self._size, self._requested = info.size, requested
        self._ranges = [_BatchRange.read(self.source, 0, requested)]

    def last_offset_at(self, position: int, max_size: int) -> int:
        """Return the last offset of the batch at a position. Raises `Corrupt` if no batch starts at this position."""
        batches, row = self._find(position)
        if row is None:
            raise Corrupt(f"no batch starts at position {position} of the entry{batches.damage}")
        if batches.sizes[row] > max_size:
            raise Corrupt(
                f"the batch at position {position} has {int(batches.sizes[row])} bytes; increase --max-message-size"
            )
        return int(batches.lasts[row])

    def batch_of(self, offset: int, position: int) -> tuple[int, int]:
        """Find the first batch after a position whose last offset is at least the given offset. Return the last offset
        and the maximum timestamp of this batch.

        Both values are -1 if no batch is found. The timestamp is -1 if the batch does not have records. Raises
        `Corrupt` if the records cannot be decoded.
        """
        batches, first = self._find(position)
        row = len(batches.lasts) if first is None else max(first, int(np.searchsorted(batches.ends, offset)))
        while row < len(batches.lasts) and batches.lasts[row] < offset:
            row += 1
        if row == len(batches.lasts):
            return -1, -1
        last, start = int(batches.lasts[row]), int(batches.starts[row])
        if last == offset and start not in batches.latest:
            (window,) = LogWalk(self.source, start, limit=start + int(batches.sizes[row]))
            batches.latest[start] = int(_latest(window)[0])
        return last, batches.latest[start] if last == offset else -1

    def _find(self, position: int) -> tuple[_BatchRange, int | None]:
        """Return the range and the row of the batch at a position.

        The row is None if no batch starts at the position.
        """
        for batches in self._ranges:
            row = batches.row_at(position)
            if row is not None:
                return batches, row
        is_inside = 0 <= position < self._size
        if is_inside and begins_with_header(self.source.read(position, HEADER_BYTES)):
            batches = _BatchRange.read(self.source, position, self._requested)
            if len(batches.starts):
                self._ranges.insert(0, batches)
                return batches, 0
        return self._ranges[-1], None


def _add_latest(latest: dict[int, int], window: DumpWindow, rows: Int64Array) -> None:
    """Decode several batches together. If this fails, they are decoded individually when they are needed."""
    batches = window.select(rows)
    try:
        times = _latest(batches)
    except (Corrupt, BadRequest):
        return
    latest.update(zip((batches.headers.position + window.start).tolist(), times.tolist(), strict=True))


def _latest(window: DumpWindow) -> Int64Array:
    """Return the maximum record timestamp of each batch, or -1 for a batch without records."""
    records = window.decode(())
    return per_batch(np.maximum, records.timestamp, records.batch_rows, -1)
