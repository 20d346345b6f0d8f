"""A `.snapshot` read as Kafka reads it: with its words for what is wrong, and leniently where it is lenient.

`sparklog.format.coordinators.producer_snapshot` has the byte table. Kafka looks at the version, reads the entries,
then compares the checksum, which covers all bytes behind it, also those behind the last entry.

`.index`, `.timeindex`, `.txnindex` and `.snapshot` files as lines, and what Kafka's tool has against them.

An index is read as Kafka reads it: whole entries of its length, whatever they say. Every entry is looked up in the
`.log` beside it; what does not agree is collected, and printed behind all files' lines as Kafka's tool does.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from sparklog.errors import BadRequest, Corrupt, NotFound
from sparklog.format import offset_index, time_index, transaction_index
from sparklog.format.coordinators.producer_snapshot import ENTRY, VERSION, ProducerEntry
from sparklog.format.record_batch import Int64Array
from sparklog.tools.inspection.dump_halt import (
    CORRUPT_INDEX,
    ILLEGAL_ARGUMENT,
    KAFKA,
    NO_SUCH_ELEMENT,
    Halt,
)
from sparklog.tools.inspection.dump_records import records_of
from sparklog.tools.inspection.dump_source import MAX_INT, Source
from sparklog.tools.inspection.dump_walk import LogWalk, Window

_VERSION = struct.Struct(">h")
_HEAD = struct.Struct(">Ii")
_COVERED_FROM = 6


def first_sequence(entry: ProducerEntry) -> int:
    """Of a producer's last batch; before 0 comes 2^31 - 1."""
    return (entry.last_sequence - entry.offset_delta) & 0x7FFFFFFF if entry.offset_delta else entry.last_sequence


def snapshot_entries(data: bytes) -> list[ProducerEntry]:
    """The entries in file order. `Corrupt` where Kafka calls it corrupt."""
    from crc32c import crc32c

    if len(data) < _VERSION.size:
        raise Corrupt("Snapshot failed schema validation: null")
    version = int(_VERSION.unpack_from(data)[0])
    if version != VERSION:
        raise Corrupt(f"Snapshot failed schema validation: Snapshot contained an unknown file version {version}")
    try:
        crc, count = _HEAD.unpack_from(data, _VERSION.size)
        start = _VERSION.size + _HEAD.size
        if count < 0:
            raise Corrupt(
                "Snapshot failed schema validation: non-nullable field producerEntries was serialized as null"
            )
        if count > len(data) - start:
            said = f"Tried to allocate a collection of size {count}, but there are only {len(data) - start} bytes"
            raise Corrupt(f"Snapshot failed schema validation: {said} remaining.")
        rows = [ENTRY.unpack_from(data, start + number * ENTRY.size) for number in range(count)]
    except struct.error:
        raise Corrupt("Snapshot failed schema validation: null") from None
    computed = crc32c(data[_COVERED_FROM:])
    if crc != computed:
        said = f"Stored crc: {crc}. Computed crc: {computed}"
        raise Corrupt(f"Snapshot is corrupt (CRC is no longer valid). {said}")
    return [ProducerEntry(*row) for row in rows]


_WARM_BYTES = 8192
_OFFSET_ENTRY = np.dtype([("relative", ">i4"), ("position", ">i4")])
_TIME_ENTRY = np.dtype([("timestamp", ">i8"), ("relative", ">i4")])


@dataclass(frozen=True, slots=True)
class Row:
    """A line of Kafka's tool, and the same as an object."""

    text: str
    fields: dict[str, Any]


@dataclass(slots=True)
class Findings:
    """What does not agree, by file as Kafka names it; pairs of an index's value and the log's, in file order."""

    offsets: dict[str, list[tuple[int, int]]] = field(default_factory=dict)
    timestamps: dict[str, list[tuple[int, int]]] = field(default_factory=dict)
    order: dict[str, list[tuple[int, int]]] = field(default_factory=dict)
    missing: dict[str, list[tuple[int, int]]] = field(default_factory=dict)
    gaps: dict[str, list[tuple[int, int]]] = field(default_factory=dict)

    def lines(self) -> Iterator[str]:
        """As Kafka's tool prints them: mismatches and gaps newest first."""
        for file, pairs in self.offsets.items():
            yield f"Mismatches in :{file}"
            yield from (f"  Index offset: {ours}, log offset: {theirs}" for ours, theirs in reversed(pairs))
        for file, pairs in self.timestamps.items():
            yield f"Found timestamp mismatch in :{file}"
            yield from (f"  Index timestamp: {ours}, log timestamp: {theirs}" for ours, theirs in pairs)
        for file, pairs in self.order.items():
            yield f"Found out of order timestamp in :{file}"
            yield from (f"  Index timestamp: {ours}, Previously indexed timestamp: {before}" for ours, before in pairs)
        for pairs in self.missing.values():
            yield "The following indexed offsets are not found in the log."
            yield from (f"Indexed offset: {ours}, found log offset: {theirs}" for ours, theirs in pairs)
        for file, pairs in self.gaps.items():
            yield f"Non-consecutive offsets in {file}"
            yield from (f"  {first} is followed by {second}" for first, second in reversed(pairs))

    def rows(self) -> Iterator[dict[str, Any]]:
        """The same as objects, one for each finding."""
        for kind, found, names in (
            ("offset-mismatch", self.offsets, ("indexOffset", "logOffset")),
            ("timestamp-mismatch", self.timestamps, ("indexTimestamp", "logTimestamp")),
            ("timestamp-order", self.order, ("indexTimestamp", "previousTimestamp")),
            ("offset-not-found", self.missing, ("indexOffset", "logOffset")),
            ("offset-gap", self.gaps, ("offset", "nextOffset")),
        ):
            for file, pairs in found.items():
                for pair in pairs:
                    yield {"type": kind, "file": file, **dict(zip(names, pair, strict=True))}


@dataclass(frozen=True, slots=True)
class Entries:
    """An index file's entries as Kafka maps them: absolute `offsets` and `values` (positions or times, int64[n])."""

    base: int
    offsets: Int64Array
    values: Int64Array
    nbytes: int

    def __len__(self) -> int:
        return len(self.offsets)

    def used(self) -> int:
        """How many come before the first (but one) that is zero, as behind the entries of a preallocated file."""
        zeros = np.flatnonzero(self.offsets[1:] == self.base)
        return int(zeros[0]) + 1 if len(zeros) else len(self)

    def position_of(self, offset: int) -> int:
        """Where Kafka's lookup of an offset leads: its binary search, also over entries in no order."""
        count = len(self)
        if not count:
            return 0
        offsets, hot = self.offsets, max(0, count - 1 - _WARM_BYTES // offset_index.ENTRY_BYTES)
        low, high = hot, count - 1
        if int(offsets[hot]) >= offset:
            if int(offsets[0]) > offset:
                return 0
            low, high = 0, hot
        while low < high:
            middle = (low + high + 1) >> 1
            found = int(offsets[middle])
            if found == offset:
                return int(self.values[middle])
            low, high = (low, middle - 1) if found > offset else (middle, high)
        return int(self.values[low])


def index_rows(
    source: Source, findings: Findings, *, sanity: bool = False, verify: bool = False, max_message_size: int = MAX_INT
) -> Iterator[Row]:
    """Of an `.index`. `sanity`: only Kafka's check at start-up; `verify`: no entries, only findings."""
    entries = _offset_entries(source)
    log = _Log(source)
    if not len(entries):
        yield Row(f"{source.shown} is empty.", {"type": "empty"})
        return
    if sanity:
        yield _sane_offsets(source, entries)
        return
    count = entries.used()
    known = log.last_offsets_at(entries.values[:count], max_message_size)
    for index in range(count):
        offset, position = int(entries.offsets[index]), int(entries.values[index])
        found = int(known[index])
        if found < 0:
            found = log.first_last_offset(position, max_message_size)
        if found != offset:
            findings.offsets.setdefault(source.absolute, []).append((offset, found))
        if not verify:
            fields = {"type": "index", "offset": offset, "position": position, "logOffset": found}
            yield Row(f"offset: {offset} position: {position}", fields)


def time_index_rows(source: Source, findings: Findings, *, sanity: bool = False, verify: bool = False) -> Iterator[Row]:
    """Of a `.timeindex`, whose entries are looked up through the `.index` beside it."""
    log = _Log(source)
    index_file = source.beside("index")
    if not index_file.exists():
        raise Halt(ILLEGAL_ARGUMENT, "Invalid max index size: -1")
    index, entries = _offset_entries(index_file), _time_entries(source)
    if sanity:
        yield _sane_times(source, entries)
        return
    count = entries.used()
    maxima = log.max_timestamps(index, entries.offsets[:count])
    before = -1
    for number in range(count):
        offset, timestamp = int(entries.offsets[number]), int(entries.values[number])
        found, latest = maxima.get(offset) or log.batch_of(index, offset)
        if found != offset:
            findings.missing.setdefault(source.absolute, []).append((offset, found))
        else:
            if latest != timestamp:
                findings.timestamps.setdefault(source.absolute, []).append((timestamp, latest))
            if before >= timestamp:
                findings.order.setdefault(source.absolute, []).append((timestamp, before))
        if not verify:
            fields = {"type": "timeindex", "timestamp": timestamp, "offset": offset}
            yield Row(f"timestamp: {timestamp} offset: {offset}", fields)
        before = timestamp


def transaction_index_rows(source: Source) -> Iterator[Row]:
    """Of a `.txnindex`. Kafka reads all of it before it prints the first entry."""
    data = source.read()
    rows: list[Row] = []
    for position in range(0, len(data) - transaction_index.ENTRY_BYTES + 1, transaction_index.ENTRY_BYTES):
        # Kafka's tool looks at the first of the version's two bytes.
        version, producer, first, last, stable = struct.unpack_from(">bxqqqq", data, position)
        if version > transaction_index.VERSION:
            said = f"Unexpected aborted transaction version {version} in transaction index {source.absolute}"
            raise Halt(KAFKA, f"{said}, current version is {transaction_index.VERSION}")
        fields = {
            "version": version,
            "producerId": producer,
            "firstOffset": first,
            "lastOffset": last,
            "lastStableOffset": stable,
        }
        rows.append(Row(" ".join(f"{name}: {value}" for name, value in fields.items()), {"type": "txnindex", **fields}))
    yield from rows


def snapshot_rows(source: Source) -> Iterator[Row]:
    """Of a `.snapshot`. `Corrupt` with Kafka's words, which its tool prints on standard error and goes on."""

    for entry in snapshot_entries(source.read()):
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
                "firstSequence": first_sequence(entry),
                "lastSequence": entry.last_sequence,
                "lastOffset": entry.last_offset,
                "offsetDelta": entry.offset_delta,
                "timestamp": entry.timestamp,
            }
            text += " ".join(f"{name}: {value}" for name, value in batch.items())
            fields["lastBatch"] = batch
        yield Row(text, fields)


def base_of(source: Source) -> int:
    """The base offset that a file's name begins with. `BadRequest` for another name."""
    if not (source.stem.isascii() and source.stem.isdigit()):
        raise BadRequest(f"{source.shown} is no segment's file: its name should begin with a base offset of 20 digits")
    return int(source.stem)


def _offset_entries(source: Source) -> Entries:
    data, base = source.read(), base_of(source)
    rows = np.frombuffer(data, _OFFSET_ENTRY, len(data) // offset_index.ENTRY_BYTES)
    return Entries(base, rows["relative"].astype(np.int64) + base, rows["position"].astype(np.int64), len(data))


def _time_entries(source: Source) -> Entries:
    data, base = source.read(), base_of(source)
    rows = np.frombuffer(data, _TIME_ENTRY, len(data) // time_index.ENTRY_BYTES)
    return Entries(base, rows["relative"].astype(np.int64) + base, rows["timestamp"].astype(np.int64), len(data))


def _sane_offsets(source: Source, entries: Entries) -> Row:
    last, path = int(entries.offsets[-1]), source.absolute
    if last < entries.base:
        said = f"Corrupt index found, index file {path} has non-zero size but the last offset is {last}"
        raise Halt(CORRUPT_INDEX, f"{said} which is less than the base offset {entries.base}")
    if entries.nbytes % offset_index.ENTRY_BYTES:
        said = f"Index file {path} is corrupt, found {entries.nbytes} bytes which is neither positive nor a multiple of"
        raise Halt(CORRUPT_INDEX, f"{said} {offset_index.ENTRY_BYTES}")
    return Row(f"{source.shown} passed sanity check.", {"type": "sane"})


def _sane_times(source: Source, entries: Entries) -> Row:
    path, size = source.absolute, time_index.ENTRY_BYTES
    corrupt = f"Corrupt time index found, time index file ({path}) has non-zero size but the last"
    if len(entries):
        first, last, offset = int(entries.values[0]), int(entries.values[-1]), int(entries.offsets[-1])
        if last < first:
            raise Halt(CORRUPT_INDEX, f"{corrupt} timestamp is {last} which is less than the first timestamp {first}")
        if offset < entries.base:
            raise Halt(
                CORRUPT_INDEX, f"{corrupt} offset is {offset} which is less than the first offset {entries.base}"
            )
    if entries.nbytes % size:
        said = f"Time index file {path} is corrupt, found {entries.nbytes} bytes which is neither positive nor a"
        raise Halt(CORRUPT_INDEX, f"{said} multiple of {size}")
    return Row(f"{source.shown} passed sanity check.", {"type": "sane"})


class _Log:
    """The `.log` beside an index."""

    def __init__(self, index: Source) -> None:
        self.source = index.beside("log")
        if not self.source.exists():
            raise NotFound(f"{index.shown} is an index of {self.source.shown}, which is missing")
        self.size = self.source.size()
        self._positions: Int64Array | None = None
        self._last: Int64Array = np.empty(0, np.int64)
        self._sizes: Int64Array = np.empty(0, np.int64)

    def _scan(self) -> Int64Array:
        """Where the batches start that a walk from the file's start meets, with their last offsets beside."""
        if self._positions is None:
            columns: tuple[list[Int64Array], ...] = tuple([np.empty(0, np.int64)] for _ in range(3))
            for window in LogWalk(self.source, check=False):
                headers = window.headers
                for column, part in zip(
                    columns, (headers.position + window.start, headers.last_offset, headers.size), strict=True
                ):
                    column.append(part)
            self._positions, self._last, self._sizes = (np.concatenate(column) for column in columns)
        return self._positions

    def last_offsets_at(self, positions: Int64Array, max_size: int) -> Int64Array:
        """Last offsets of the batches at these positions, -1 where a walk meets none of at most `max_size` there."""
        starts = self._scan()
        row = np.searchsorted(starts, positions)
        known = (positions >= 0) & (np.append(starts, -1)[row] == positions)
        known &= np.append(self._sizes, 0)[row] <= max_size
        return np.where(known, np.append(self._last, -1)[row], -1)

    def first_last_offset(self, position: int, length: int) -> int:
        """The last offset of what begins at a position, whatever it is, as Kafka's tool reads it."""
        self._check(position)
        for window in LogWalk(self.source, position, limit=min(self.size, position + length), check=False):
            if len(window.headers):
                return int(window.headers.last_offset[0])
            if window.halt is not None:
                raise window.halt
        raise Halt(NO_SUCH_ELEMENT)

    def batch_of(self, index: Entries, offset: int) -> tuple[int, int]:
        """Last offset of the batch that ends at or behind an offset, -1 if there is none, and its greatest
        timestamp if it ends there.
        """
        position = index.position_of(offset)
        self._check(position)
        for window in LogWalk(self.source, position, check=False):
            behind = np.flatnonzero(window.headers.last_offset >= offset)
            if len(behind):
                row = int(behind[0])
                found = int(window.headers.last_offset[row])
                return found, _latest(window, row) if found == offset else -1
            if window.halt is not None:
                raise window.halt
        return -1, -1

    def max_timestamps(self, index: Entries, offsets: Int64Array) -> dict[int, tuple[int, int]]:
        """What `batch_of` says of these offsets, as far as the `.index` leads to sound batches."""
        starts = self._scan()
        if not len(starts) or not len(offsets) or bool((np.diff(self._last) <= 0).any()):
            return {}
        position = np.array([index.position_of(offset) for offset in offsets.tolist()], np.int64)
        row = np.searchsorted(self._last, offsets)
        right = (row < len(starts)) & np.isin(position, starts)
        right &= np.append(self._last, -1)[np.minimum(row, len(starts))] == offsets
        right &= np.append(starts, -1)[np.minimum(row, len(starts))] >= position
        wanted = set(offsets[right].tolist())
        found: dict[int, tuple[int, int]] = {}
        for window in LogWalk(self.source, check=False):
            rows = np.flatnonzero(np.isin(window.headers.last_offset, offsets[right]))
            latest = _latest_of(window, rows)
            for each, time in zip(window.headers.last_offset[rows].tolist(), latest, strict=False):
                if each in wanted:
                    found.setdefault(each, (each, time))
        return found

    def _check(self, position: int) -> None:
        whole = self.source.as_records(self.size)
        if position < 0:
            raise Halt(ILLEGAL_ARGUMENT, f"Invalid position: {position} in read from {whole}")
        if position > self.size:
            raise Halt(ILLEGAL_ARGUMENT, f"Slice from position {position} exceeds end position of {whole}")


def _latest(window: Window, row: int) -> int:
    """The greatest timestamp of a batch's records, -1 without any. `Halt` where they cannot be read."""
    records = records_of(_part(window, np.array([row])))
    if records.halt is not None:
        raise records.halt
    return max(records.timestamp, default=-1)


def _latest_of(window: Window, rows: Int64Array) -> list[int]:
    """The same for several, up to the first that cannot be read."""
    if not len(rows):
        return []
    from sparklog.format.decode import decode

    chosen = window.headers[rows]
    if not chosen.is_legacy.any():
        plain = replace(chosen, magic=None)
        try:
            columns = decode(window.data, plain, columns=(), check_crc=False)
        except Corrupt:
            return []
        ends = np.cumsum(columns.batch_rows)
        latest = np.full(len(rows), -1, np.int64)
        some = columns.batch_rows > 0
        if some.any():
            latest[some] = np.maximum.reduceat(columns.timestamp, (ends - columns.batch_rows)[some])
        found: list[int] = np.maximum(latest, -1).tolist()
        return found
    return []


def _part(window: Window, rows: Int64Array) -> Window:
    chosen = rows.tolist()
    return Window(
        window.data, window.start, window.headers[rows], window.valid[rows], [window.magic[row] for row in chosen]
    )
