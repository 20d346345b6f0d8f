"""`.index`, `.timeindex`, `.txnindex` and `.snapshot` files as lines, and findings about them.

Every entry of an index is looked up in the `.log` beside it. What does not agree is collected, and printed behind all
files' lines as Kafka's tool does.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from sparklog.errors import BadRequest, Corrupt, NotFound
from sparklog.format import transaction_index
from sparklog.format.coordinators.producer_snapshot import parse_snapshot
from sparklog.format.decode import decode
from sparklog.format.record_batch import Int64Array
from sparklog.format.segment_indexes import OffsetIndex, TimeIndex
from sparklog.tools.inspection.dump_batches import LogWalk, Window, per_batch
from sparklog.tools.inspection.dump_source import MAX_INT, Row, Source, plain_text

_OFFSET_ENTRY = np.dtype([("relative", ">i4"), ("value", ">i4")])
_TIME_ENTRY = np.dtype([("value", ">i8"), ("relative", ">i4")])
_TRANSACTION_ENTRY = struct.Struct(">hqqqq")


class Kind(NamedTuple):
    """A kind of finding: its name in JSON, Kafka's title for a file and line for a pair of numbers, and their names."""

    name: str
    title: str
    line: str
    members: tuple[str, str]
    newest_first: bool = False


OFFSET_MISMATCH = Kind(
    "offset-mismatch", "Mismatches in :{}", "  Index offset: {}, log offset: {}", ("indexOffset", "logOffset"), True
)
TIMESTAMP_MISMATCH = Kind(
    "timestamp-mismatch",
    "Found timestamp mismatch in :{}",
    "  Index timestamp: {}, log timestamp: {}",
    ("indexTimestamp", "logTimestamp"),
)
TIMESTAMP_ORDER = Kind(
    "timestamp-order",
    "Found out of order timestamp in :{}",
    "  Index timestamp: {}, Previously indexed timestamp: {}",
    ("indexTimestamp", "previousTimestamp"),
)
NOT_FOUND = Kind(
    "offset-not-found",
    "The following indexed offsets are not found in the log.",
    "Indexed offset: {}, found log offset: {}",
    ("indexOffset", "logOffset"),
)
GAP = Kind("offset-gap", "Non-consecutive offsets in {}", "  {} is followed by {}", ("offset", "nextOffset"), True)
_KINDS = (OFFSET_MISMATCH, TIMESTAMP_MISMATCH, TIMESTAMP_ORDER, NOT_FOUND, GAP)


@dataclass(slots=True)
class Findings:
    """Pairs of numbers that do not agree, by kind and file, in file order."""

    pairs: dict[tuple[Kind, str], list[tuple[int, int]]] = field(default_factory=dict)

    def add(self, kind: Kind, file: str, *pairs: tuple[int, int]) -> None:
        if pairs:
            self.pairs.setdefault((kind, file), []).extend(pairs)

    def lines(self) -> Iterator[str]:
        """Give the findings as Kafka's tool prints them."""
        for kind, file, pairs in self._each():
            yield kind.title.format(file)
            for pair in reversed(pairs) if kind.newest_first else pairs:
                yield kind.line.format(*pair)

    def objects(self) -> Iterator[dict[str, Any]]:
        """Give the same as objects, one for each pair."""
        for kind, file, pairs in self._each():
            for pair in pairs:
                yield {"type": kind.name, "file": file, **dict(zip(kind.members, pair, strict=True))}

    def _each(self) -> list[tuple[Kind, str, list[tuple[int, int]]]]:
        by_kind = sorted(self.pairs.items(), key=lambda item: _KINDS.index(item[0][0]))
        return [(kind, file, pairs) for (kind, file), pairs in by_kind]


@dataclass(frozen=True, slots=True)
class IndexOptions:
    sanity: bool = False  # only the check of a broker that starts
    verify: bool = False  # only findings, no entries
    max_message_size: int = 5 * 1024 * 1024  # of a batch that an entry of an `.index` may name


@dataclass(frozen=True, slots=True)
class _Entries:
    """Entries of an index file: absolute `offsets`, and `values` (positions or timestamps), int64[n] each."""

    source: Source
    offsets: Int64Array
    values: Int64Array
    nbytes: int

    @classmethod
    def read(cls, source: Source, entry: npt.DTypeLike) -> _Entries:
        data, size = source.read(), np.dtype(entry).itemsize
        rows = np.frombuffer(data, entry, len(data) // size)
        offsets = rows["relative"].astype(np.int64) + source.base_offset
        return cls(source, offsets, rows["value"].astype(np.int64), len(data))

    def used(self) -> _Entries:
        """Return the entries before the zeros of a preallocated file; an entry in front of them may be zero itself."""
        zeros = np.flatnonzero(self.offsets[1:] == self.source.base_offset)
        count = int(zeros[0]) + 1 if len(zeros) else len(self.offsets)
        return _Entries(self.source, self.offsets[:count], self.values[:count], self.nbytes)

    def check(self, entry_bytes: int) -> Row:
        """Check what a starting broker checks. `Corrupt` if it would rebuild the index."""
        file, base = self.source.shown, self.source.base_offset
        if self.nbytes % entry_bytes:
            raise Corrupt(f"expected a multiple of {entry_bytes} bytes, found {self.nbytes}: rebuild it", file=file)
        if len(self.offsets) and self.offsets[-1] < base:
            last = int(self.offsets[-1])
            raise Corrupt(f"expected a last offset of {base} or more, found {last}: rebuild it", file=file)
        return Row(f"{file} passed sanity check.", {"type": "sane"})


def index_rows(source: Source, findings: Findings, options: IndexOptions) -> Iterator[Row]:
    """Give the lines of an `.index`. `Corrupt` at an entry that leads to no batch."""
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


def time_index_rows(source: Source, findings: Findings, options: IndexOptions) -> Iterator[Row]:
    """Give the lines of a `.timeindex`. `Corrupt` at an entry whose batch cannot be decoded."""
    entries = _Entries.read(source, _TIME_ENTRY)
    if options.sanity:
        if len(entries.values) and entries.values[-1] < entries.values[0]:
            first, last = int(entries.values[0]), int(entries.values[-1])
            raise Corrupt(f"expected a last timestamp of {first} or more, found {last}: rebuild it", file=source.shown)
        yield entries.check(TimeIndex.ENTRY_BYTES)
        return
    before = -1
    entries = entries.used()
    log = _Log(source, entries.offsets)
    for offset, timestamp in zip(entries.offsets.tolist(), entries.values.tolist(), strict=True):
        log_offset, latest = log.batch_of(offset)
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


def transaction_index_rows(source: Source) -> Iterator[Row]:
    """Give the lines of a `.txnindex`. `Corrupt` at an entry of another version, and for bytes behind the last one."""
    data = source.read()
    names = ("version", "producerId", "firstOffset", "lastOffset", "lastStableOffset")
    whole = len(data) - len(data) % _TRANSACTION_ENTRY.size
    for number, values in enumerate(_TRANSACTION_ENTRY.iter_unpack(data[:whole])):
        if values[0] != transaction_index.VERSION:
            position = number * _TRANSACTION_ENTRY.size
            message = f"expected an aborted transaction of version {transaction_index.VERSION}, found {values[0]}"
            raise Corrupt(message, file=source.shown, position=position)
        fields = dict(zip(names, values, strict=True))
        yield Row(plain_text(fields), {"type": "txnindex", **fields})
    if whole < len(data):
        message = f"expected entries of {_TRANSACTION_ENTRY.size} bytes, found {len(data) - whole} bytes behind them"
        raise Corrupt(message, file=source.shown, position=whole)


def snapshot_rows(source: Source) -> Iterator[Row]:
    """Give the lines of a producer snapshot. `Corrupt` if it is damaged: then none of it can be trusted."""
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
                # Before sequence 0 comes 2^31 - 1.
                "firstSequence": (last - entry.offset_delta) & MAX_INT if entry.offset_delta else last,
                "lastSequence": last,
                "lastOffset": entry.last_offset,
                "offsetDelta": entry.offset_delta,
                "timestamp": entry.timestamp,
            }
            text += plain_text(batch)
            fields["lastBatch"] = batch
        yield Row(text, {"type": "producer", **fields})


class _Log:
    """The batches of the `.log` beside an index."""

    def __init__(self, index: Source, offsets: Int64Array | None = None) -> None:
        """Walk over the log. `offsets`: last offsets of batches whose timestamps will be asked for."""
        self.source = index.beside("log")
        if self.source.store.stat(self.source.key) is None:
            raise NotFound(f"{index.shown} is an index of {self.source.shown}, which is missing")
        columns: list[list[Int64Array]] = [[np.empty(0, np.int64)] for _ in range(3)]
        self._latest: dict[int, int] = {}
        self._damage = ""
        try:
            for window in LogWalk(self.source):
                headers = window.headers
                parts = (headers.position + window.start, headers.size, headers.last_offset)
                for column, part in zip(columns, parts, strict=True):
                    column.append(part)
                if offsets is not None:
                    self._add_latest(window, np.flatnonzero(np.isin(headers.last_offset, offsets)))
        except Corrupt as error:
            self._damage = f" ({self.source.shown}: {error.message})"
        self._start, self._size, self._last = (np.concatenate(column) for column in columns)
        self._end = np.maximum.accumulate(self._last)

    def last_offset_at(self, position: int, max_size: int) -> int:
        """Return the last offset of the batch at a position. `Corrupt` where none begins."""
        row = int(np.searchsorted(self._start, position))
        if row == len(self._start) or self._start[row] != position:
            raise Corrupt(f"expected the position of a batch, found {position}, where none begins{self._damage}")
        if self._size[row] > max_size:
            raise Corrupt(f"the batch at {position} has {int(self._size[row])} bytes: raise --max-message-size")
        return int(self._last[row])

    def batch_of(self, offset: int) -> tuple[int, int]:
        """Return the last offset of the batch that ends at or behind an offset, and the greatest of its timestamps.

        -1 stands for no such batch, and for a batch without records. `Corrupt` if the records cannot be decoded.
        """
        row = int(np.searchsorted(self._end, offset))
        if row == len(self._end):
            return -1, -1
        last, start = int(self._last[row]), int(self._start[row])
        if last == offset and start not in self._latest:
            (window,) = LogWalk(self.source, start, limit=start + int(self._size[row]))
            self._latest[start] = int(_latest(window)[0])
        return last, self._latest[start] if last == offset else -1

    def _add_latest(self, window: Window, rows: Int64Array) -> None:
        """Decode many batches at once; those of a window that cannot be decoded are tried one by one when asked for."""
        chosen = window.rows(rows)
        try:
            latest = _latest(chosen)
        except (Corrupt, BadRequest):
            return
        self._latest.update(zip((chosen.headers.position + window.start).tolist(), latest.tolist(), strict=True))


def _latest(window: Window) -> Int64Array:
    """Return the greatest timestamp of each batch's records, -1 without records."""
    file, start = window.source.shown, window.start
    records = decode(window.data, window.headers, columns=(), check_crc=False, file=file, file_position=start)
    return per_batch(np.maximum, records.timestamp, records.batch_rows, -1)
