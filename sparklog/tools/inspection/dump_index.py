"""`.index`, `.timeindex`, `.txnindex` and `.snapshot` files as lines, and findings about them.

Every entry of an index is looked up in the `.log` beside it. What does not agree is collected, and printed behind all
files' lines as Kafka's tool does.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from sparklog.errors import BadRequest, Corrupt, NotFound
from sparklog.format import transaction_index
from sparklog.format.coordinators.producer_snapshot import ProducerEntry, parse_snapshot
from sparklog.format.decode import decode
from sparklog.format.record_batch import Int64Array
from sparklog.format.segment_indexes import OffsetIndex, TimeIndex
from sparklog.tools.inspection.dump_batches import LogWalk, Window
from sparklog.tools.inspection.dump_source import MAX_INT, Row, Source

_OFFSET_ENTRY = np.dtype([("relative", ">i4"), ("value", ">i4")])
_TIME_ENTRY = np.dtype([("value", ">i8"), ("relative", ">i4")])
_TRANSACTION_ENTRY = struct.Struct(">hqqqq")


@dataclass(frozen=True, slots=True)
class _Kind:
    """A kind of finding: Kafka's title for a file, its line for a pair of numbers, and their names in JSON."""

    title: str
    line: str
    names: tuple[str, str]
    newest_first: bool = False


OFFSET_MISMATCH, TIMESTAMP_MISMATCH, TIMESTAMP_ORDER, NOT_FOUND, GAP = (
    *("offset-mismatch", "timestamp-mismatch", "timestamp-order", "offset-not-found", "offset-gap"),
)
_KINDS = {
    OFFSET_MISMATCH: _Kind(
        "Mismatches in :{}", "  Index offset: {}, log offset: {}", ("indexOffset", "logOffset"), newest_first=True
    ),
    TIMESTAMP_MISMATCH: _Kind(
        "Found timestamp mismatch in :{}",
        "  Index timestamp: {}, log timestamp: {}",
        ("indexTimestamp", "logTimestamp"),
    ),
    TIMESTAMP_ORDER: _Kind(
        "Found out of order timestamp in :{}",
        "  Index timestamp: {}, Previously indexed timestamp: {}",
        ("indexTimestamp", "previousTimestamp"),
    ),
    NOT_FOUND: _Kind(
        "The following indexed offsets are not found in the log.",
        "Indexed offset: {}, found log offset: {}",
        ("indexOffset", "logOffset"),
    ),
    GAP: _Kind("Non-consecutive offsets in {}", "  {} is followed by {}", ("offset", "nextOffset"), newest_first=True),
}


@dataclass(slots=True)
class Findings:
    """Pairs of numbers that do not agree, by kind and file, in file order."""

    pairs: dict[tuple[str, str], list[tuple[int, int]]] = field(default_factory=dict)

    def add(self, kind: str, file: str, *pairs: tuple[int, int]) -> None:
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
        names = {id(kind): name for name, kind in _KINDS.items()}
        for kind, file, pairs in self._each():
            for pair in pairs:
                yield {"type": names[id(kind)], "file": file, **dict(zip(kind.names, pair, strict=True))}

    def _each(self) -> Iterator[tuple[_Kind, str, list[tuple[int, int]]]]:
        for name, kind in _KINDS.items():
            for (suffix, file), pairs in self.pairs.items():
                if suffix == name:
                    yield kind, file, pairs


@dataclass(frozen=True, slots=True)
class IndexOptions:
    """As Kafka's tool: `sanity`, only the check of a broker that starts; `verify`, only findings, no entries.

    `max_message_size`: the largest batch that an entry of an `.index` may name.
    """

    sanity: bool = False
    verify: bool = False
    max_message_size: int = 5 * 1024 * 1024


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
        yield Row(" ".join(f"{name}: {value}" for name, value in fields.items()), {"type": "txnindex", **fields})
    if whole < len(data):
        message = f"expected entries of {_TRANSACTION_ENTRY.size} bytes, found {len(data) - whole} bytes behind them"
        raise Corrupt(message, file=source.shown, position=whole)


def snapshot_rows(source: Source) -> Iterator[Row]:
    """Give the lines of a producer snapshot. `Corrupt` if it is damaged: then none of it can be trusted."""
    for entry in parse_snapshot(source.read(), file=source.shown):
        open_since = entry.open_since
        text = (
            f"producerId: {entry.producer_id} producerEpoch: {entry.producer_epoch}"
            f" coordinatorEpoch: {entry.coordinator_epoch} currentTxnFirstOffset: "
            f"{f'OptionalLong[{open_since}]' if open_since >= 0 else 'OptionalLong.empty'}"
            f" lastTimestamp: {entry.timestamp} "
        )
        fields: dict[str, Any] = {
            "type": "producer",
            "producerId": entry.producer_id,
            "producerEpoch": entry.producer_epoch,
            "coordinatorEpoch": entry.coordinator_epoch,
            "currentTxnFirstOffset": open_since if open_since >= 0 else None,
            "lastTimestamp": entry.timestamp,
        }
        if entry.last_offset >= 0:
            batch = {
                "firstSequence": _first_sequence(entry),
                "lastSequence": entry.last_sequence,
                "lastOffset": entry.last_offset,
                "offsetDelta": entry.offset_delta,
                "timestamp": entry.timestamp,
            }
            text += " ".join(f"{name}: {value}" for name, value in batch.items())
            fields["lastBatch"] = batch
        yield Row(text, fields)


def _first_sequence(entry: ProducerEntry) -> int:
    """Return the first sequence of a producer's last batch; before 0 comes 2^31 - 1."""
    return (entry.last_sequence - entry.offset_delta) & MAX_INT if entry.offset_delta else entry.last_sequence


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
        chosen = replace(window, headers=window.headers[rows], valid=window.valid[rows])
        try:
            latest = _latest(chosen)
        except (Corrupt, BadRequest):
            return
        self._latest.update(zip((chosen.headers.position + window.start).tolist(), latest.tolist(), strict=True))


def _latest(window: Window) -> Int64Array:
    """Return the greatest timestamp of each batch's records, -1 without records."""
    file, start = window.source.shown, window.start
    records = decode(window.data, window.headers, columns=(), check_crc=False, file=file, file_position=start)
    latest = np.full(len(window.headers), -1, np.int64)
    filled = records.batch_rows > 0
    if filled.any():
        starts = np.cumsum(records.batch_rows) - records.batch_rows
        latest[filled] = np.maximum.reduceat(records.timestamp, starts[filled])
    return latest
