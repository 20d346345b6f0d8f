"""Print a `.log` file or a snapshot of Kafka's metadata log in the format of Kafka's DumpLogSegments tool or as JSON
objects.

| mode          | lines                                                       |
|---------------|-------------------------------------------------------------|
| shallow       | one line per batch                                          |
| deep          | one line per batch and one line per record                  |
| with contents | as deep, with the decoded key and value of each record      |

Checksums are printed but not enforced. The records of a batch with a wrong checksum are printed if they can be decoded.
If bytes are not a batch, or if records cannot be decoded, a `Corrupt` error is raised after the last line.

For speed, batches are read and decoded in windows, and each line is formatted with a single f-string.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import islice, pairwise
from typing import Any, TypeAlias

import numpy as np

from sparklog.errors import Corrupt
from sparklog.format.batch_scan import MIN_SCAN_BYTES, crc_failures
from sparklog.format.batch_walk import BatchWalk, Window
from sparklog.format.legacy import old_messages
from sparklog.format.record_batch import (
    CODECS,
    MAGIC,
    MAX_SEQUENCE,
    NO_SEQUENCE,
    BoolArray,
    Int64Array,
)
from sparklog.tools.inspection.columns import header_columns
from sparklog.tools.inspection.dump_decoders import Decoders, control_object, control_text, plain
from sparklog.tools.inspection.dump_source import MAX_INT, DumpFile, ObjectBatches, Row

WINDOW_BYTES = 1 << 20
CHUNK_RECORDS = 20_000
TIME_TYPES = {-1: "NoTimestampType", 0: "CreateTime", 1: "LogAppendTime"}


@dataclass(frozen=True, slots=True)
class LogOptions:
    """Options that determine which parts of a log are printed.

    Attributes:
        deep: print records.
        contents: print the keys and values of records.
        metadata: print the other fields of records.
        max_bytes: the maximum number of bytes to read from each file.
        json: print JSON objects instead of lines.
    """

    deep: bool = False
    contents: bool = False
    metadata: bool = True
    max_bytes: int = MAX_INT
    decoders: Decoders = field(default_factory=plain)
    json: bool = False


@dataclass(slots=True)
class OffsetGaps:
    """Collects pairs of adjacent records in a file whose offsets are not consecutive."""

    gaps: list[tuple[int, int]] = field(default_factory=list)
    last: int = -1

    def add(self, offsets: list[int]) -> None:
        if not offsets:
            return
        before = [self.last, *offsets[:-1]]
        self.gaps += [pair for pair in zip(before, offsets, strict=True) if pair[1] - pair[0] != 1 and pair[0] != -1]
        self.last = offsets[-1]


@dataclass(frozen=True, slots=True, eq=False)
class DumpWindow(Window):
    """Batches of a file to print. `valid` is True for each batch with a valid checksum."""

    valid: BoolArray

    def select(self, rows: slice | Int64Array | BoolArray) -> DumpWindow:
        return replace(self, headers=self.headers[rows], valid=self.valid[rows])


class LogWalk:
    """An iterator over the batches of a file in windows. After the iteration, `end` is the position at which it
    stopped.
    """

    def __init__(self, source: DumpFile, start: int = 0, *, limit: int = MAX_INT, contents: bool = True) -> None:
        """Iterate over bytes `[start, limit)`. If `contents` is False, messages of formats v0 and v1 are not
        decompressed.
        """
        self.source = source
        self.stop = min(source.size(), limit)
        self._walk = BatchWalk(ObjectBatches(source, self.stop), start, contents=contents)

    @property
    def end(self) -> int:
        return self._walk.end

    def __iter__(self) -> Iterator[DumpWindow]:
        """Yield windows. Raises `Corrupt` after the last window, unless the file ends after this window or with an
        incomplete batch.
        """
        for window in self._walk:
            yield from self._known_codecs(window)
        if self._walk.stop not in ("end", "partial") and self.stop - self.end >= MIN_SCAN_BYTES:
            raise self._corrupt(f"expected a record batch: {self._walk.reason}", self.end)

    def _known_codecs(self, window: Window) -> Iterator[DumpWindow]:
        data, start, headers = window.data, window.start, window.headers
        unknown = np.flatnonzero(headers.codec >= len(CODECS))
        readable = headers[: int(unknown[0])] if len(unknown) else headers
        valid = np.ones(len(readable), np.bool_)
        valid[crc_failures(data, readable)] = False
        yield DumpWindow(data, start, readable, self.source.shown, valid)
        if len(unknown):
            row = int(unknown[0])
            codec, position = int(headers.codec[row]), start + int(headers.position[row])
            raise self._corrupt(f"expected a codec of 0 to {len(CODECS) - 1}, found {codec}", position)

    def _corrupt(self, message: str, position: int) -> Corrupt:
        return Corrupt(message, file=self.source.shown, position=position)


def log_rows(
    source: DumpFile, options: LogOptions, gaps: OffsetGaps, start: int = 0, end: int = MAX_INT
) -> Iterator[Row]:
    """Yield the lines of the batches in bytes `[start, end)` of a log. Raises `Corrupt` if bytes cannot be read."""
    walk = LogWalk(source, start, limit=min(end, start + options.max_bytes), contents=options.deep)
    for window in walk:
        if not options.deep:
            yield from _batch_rows(window, options.json)
            continue
        for chunk in chunks(window):
            yield from _deep_rows(chunk, options, gaps)
    remaining = walk.stop - walk.end
    if remaining > 0 and options.max_bytes == MAX_INT:
        text = f"Found {remaining} invalid bytes at the end of {source.name}"
        yield Row(text, {"type": "trailing", "position": walk.end, "bytes": remaining})


def chunks(window: DumpWindow, records: int = CHUNK_RECORDS) -> Iterator[DumpWindow]:
    """Divide a window into chunks of about `records` records to limit the memory for decompressed batches."""
    chunk = np.cumsum(window.headers.count.clip(0)) // records
    cuts = [0, *(np.flatnonzero(np.diff(chunk)) + 1).tolist(), len(window.headers)]
    for first, last in pairwise(cuts):
        if first < last:
            yield window.select(slice(first, last))


_Records: TypeAlias = Iterable[tuple[Any, ...]]
"""The records in log order. Each record is a tuple of the batch (a row of the window's headers), offset, timestamp,
sequence, key, value, headers, and the CRC, which is None in format v2.
"""


def _deep_rows(window: DumpWindow, options: LogOptions, gaps: OffsetGaps) -> Iterator[Row]:
    try:
        counts, offsets, records = _decoded(window)
    except Corrupt:
        if len(window.headers) == 1:
            yield from _batch_rows(window, options.json)
            raise
        for row in range(len(window.headers)):
            yield from _deep_rows(window.select(slice(row, row + 1)), options, gaps)
        return
    gaps.add(offsets)
    rows = _record_objects(window, records, options) if options.json else _record_lines(window, records, options)
    batches = zip(_batch_rows(window, options.json), counts, window.headers.position.tolist(), strict=True)
    for batch, count, position in batches:
        yield batch
        try:
            yield from islice(rows, count)
        except Corrupt as error:
            at = window.start + position
            raise Corrupt(error.message, file=window.file, position=at, offset=error.offset) from None


def _decoded(window: DumpWindow) -> tuple[list[int], list[int], _Records]:
    """Return the number of records in each batch, the offsets of all records, and the records."""
    headers = window.headers
    columns = window.decode(("key", "value", "headers"))
    assert columns.key is not None
    assert columns.value is not None
    assert columns.headers is not None
    batch = np.repeat(np.arange(len(headers)), columns.batch_rows)
    base, delta = headers.base_sequence[batch], columns.offset - headers.base_offset[batch]
    offsets, count = columns.offset.tolist(), len(columns)
    records = zip(
        batch.tolist(),
        offsets,
        columns.timestamp.tolist(),
        np.where(base < 0, NO_SEQUENCE, (base + delta) & MAX_SEQUENCE).tolist(),
        columns.key.to_pylist(),
        columns.value.to_pylist(),
        [None] * count if columns.headers.null_count == count else columns.headers.to_pylist(),
        [None] * count if headers.magic is None else _message_crcs(window, columns.batch_rows),
        strict=True,
    )
    return columns.batch_rows.tolist(), offsets, records


def _message_crcs(window: DumpWindow, rows: Int64Array) -> list[int | None]:
    crcs: list[int | None] = []
    for row, (legacy, count) in enumerate(zip(window.headers.is_legacy.tolist(), rows.tolist(), strict=True)):
        crcs += old_messages.message_crcs(window.data, window.headers, row) if legacy else [None] * count
    return crcs


_NAMES = (
    *("baseOffset", "lastOffset", "count", "baseSequence", "lastSequence", "producerId", "producerEpoch"),
    *("partitionLeaderEpoch", "isTransactional", "isControl", "deleteHorizonMs", "position", "timestampType"),
    *("maxTimestamp", "size", "magic", "codec", "crc"),
)
"""Kafka's names of the fields in `header_columns`, in the same order."""


def _batch_rows(window: DumpWindow, as_json: bool) -> Iterator[Row]:
    columns: dict[str, list[Any]] = {
        name: column.tolist() for name, column in zip(_NAMES, header_columns(window).values(), strict=True)
    }
    for name in ("isTransactional", "isControl"):
        columns[name] = list(map(bool, columns[name]))
    columns["timestampType"] = [TIME_TYPES[kind] for kind in columns["timestampType"]]
    columns["codec"] = [CODECS[codec] for codec in columns["codec"]]
    columns["valid"] = window.valid.tolist()
    for values in zip(*columns.values(), strict=True):
        yield Row("", _batch_object(columns, values)) if as_json else Row(_batch_line(values), {})


def _batch_object(names: dict[str, list[Any]], values: tuple[Any, ...]) -> dict[str, Any]:
    row = {"type": "batch", **dict(zip(names, values, strict=True))}
    if row["magic"] < MAGIC:
        row.update(baseOffset=None, count=None)
    if row["deleteHorizonMs"] == -1:
        row["deleteHorizonMs"] = None
    return row


def _batch_line(values: tuple[Any, ...]) -> str:
    base, last, count, sequence, last_sequence, producer, epoch, leader, *rest = values
    transactional, control, horizon, position, kind, time, size, magic, codec, crc, valid = rest
    start = (
        f"baseOffset: {base} lastOffset: {last} count: {count} baseSequence: {sequence} lastSequence: {last_sequence}"
        f" producerId: {producer} producerEpoch: {epoch} partitionLeaderEpoch: {leader}"
        f" isTransactional: {_java(transactional)} isControl: {_java(control)}"
        f" deleteHorizonMs: {'OptionalLong.empty' if horizon == -1 else f'OptionalLong[{horizon}]'}"
        if magic >= MAGIC
        else f"offset: {last}"
    )
    return (
        f"{start} position: {position} {kind}: {time} size: {size} magic: {magic}"
        f" compresscodec: {codec} crc: {crc} isvalid: {_java(valid)}"
    )


def _java(value: bool) -> str:
    return "true" if value else "false"


def _record_lines(window: DumpWindow, records: _Records, options: LogOptions) -> Iterator[Row]:
    headers = window.headers
    kinds = [TIME_TYPES[kind] for kind in headers.timestamp_type.tolist()]
    is_control = headers.is_control.tolist()
    for row, offset, time, sequence, key, value, names, crc in records:
        line = ""
        if options.metadata:
            line = (
                f"| offset: {offset} {kinds[row]}: {time} keySize: {-1 if key is None else len(key)}"
                f" valueSize: {-1 if value is None else len(value)}"
            )
            if crc is None:
                line += f" sequence: {sequence} headerKeys: [{','.join(entry['key'] for entry in names or ())}]"
            else:
                line += f" isValid: {_java(bool(window.valid[row]))} crc: {crc}}}"
        if is_control[row]:
            # Kafka's tool prints an empty line for a control record without metadata.
            line = f"{line} {control_text(key, value)}" if options.metadata else line
        elif options.contents:
            shown_key, payload = options.decoders(offset, key, value)
            if shown_key is not None:
                line += f"{' ' if options.metadata else '| '}key: {shown_key[0]}"
            line = line if payload is None else f"{line} payload: {payload[0]}"
        yield Row(line, {})


def _record_objects(window: DumpWindow, records: _Records, options: LogOptions) -> Iterator[Row]:
    headers = window.headers
    kinds = [TIME_TYPES[kind] for kind in headers.timestamp_type.tolist()]
    is_control = headers.is_control.tolist()
    for row, offset, time, sequence, key, value, names, crc in records:
        fields: dict[str, Any] = {
            "type": "record",
            "offset": offset,
            "timestampType": kinds[row],
            "timestamp": time,
            "keySize": None if key is None else len(key),
            "valueSize": None if value is None else len(value),
            "sequence": sequence,
            "headers": [
                [entry["key"], None if entry["value"] is None else base64.b64encode(entry["value"]).decode()]
                for entry in names or ()
            ],
        }
        if crc is not None:
            fields.update(valid=bool(window.valid[row]), crc=crc)
        if is_control[row]:
            fields["control"] = control_object(key, value)
        elif options.contents:
            shown_key, payload = options.decoders(offset, key, value)
            fields.update(key=shown_key and shown_key[1], value=payload and payload[1])
        yield Row("", fields)
