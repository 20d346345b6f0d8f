"""A `.log` (or a snapshot of Kafka's metadata log) as lines, of Kafka's DumpLogSegments or of JSON.

| mode          | lines                                                                                         |
|---------------|-----------------------------------------------------------------------------------------------|
| shallow       | one per batch                                                                                 |
| deep          | and one per record                                                                            |
| with contents | its keys and values, too, through a decoder                                                   |

Whole windows of batches are read and checked at once; a line is one f-string.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np

from sparklog.errors import Corrupt
from sparklog.format import control
from sparklog.format.record_batch import CODECS, MAGIC
from sparklog.tools.inspection.dump_control import control_text
from sparklog.tools.inspection.dump_decoders import Parser, plain
from sparklog.tools.inspection.dump_halt import Halt
from sparklog.tools.inspection.dump_records import Records, records_of
from sparklog.tools.inspection.dump_source import MAX_INT, Source
from sparklog.tools.inspection.dump_walk import LogWalk, Window, batch_starts, pieces

Row = TypeVar("Row")
TIME_TYPES = {-1: "NoTimestampType", 0: "CreateTime", 1: "LogAppendTime"}


@dataclass(frozen=True, slots=True)
class LogOptions:
    """How much is shown: `deep`, records; `contents`, keys and values through `parser`; `metadata`, the rest of a
    record. `max_bytes`: of each file.
    """

    deep: bool = False
    contents: bool = False
    metadata: bool = True
    max_bytes: int = MAX_INT
    parser: Parser = field(default_factory=plain)


@dataclass(slots=True)
class LogRun:
    """What one pass over a file found beside its lines: `gaps` are neighbouring offsets that are none, in order."""

    gaps: list[tuple[int, int]] = field(default_factory=list)
    last: int = -1

    def see(self, offsets: list[int]) -> None:
        """Take in the offsets of the next records."""
        if not offsets:
            return
        array = np.array([self.last, *offsets], np.int64)
        for index in np.flatnonzero(np.diff(array) != 1).tolist():
            first, second = int(array[index]), int(array[index + 1])
            if first != -1:
                self.gaps.append((first, second))
        self.last = offsets[-1]


def text_lines(source: Source, options: LogOptions, run: LogRun, part: tuple[int, int] | None = None) -> Iterator[str]:
    """The lines of Kafka's tool. Ends with a `Halt` where that dies. `part`: only these bytes, from batch to batch."""
    walk = _walk(source, options, part)
    yield from _each(walk, options, run, _batch_lines, _record_lines)
    if _trailing(walk, options):
        yield f"Found {walk.stop - walk.end} invalid bytes at the end of {source.name}"


def json_lines(
    source: Source, options: LogOptions, run: LogRun, part: tuple[int, int] | None = None
) -> Iterator[dict[str, Any]]:
    """The same as objects: `batch`, `record` and `trailing` ones. Ends with a `Halt` likewise."""
    walk = _walk(source, options, part)
    yield from _each(walk, options, run, batch_json, _record_json)
    if _trailing(walk, options):
        yield {"type": "trailing", "position": walk.end, "bytes": walk.stop - walk.end}


def _each(
    walk: LogWalk,
    options: LogOptions,
    run: LogRun,
    of_batches: Callable[[Window], list[Row]],
    of_records: Callable[[Window, Records, LogOptions], Iterator[Row]],
) -> Iterator[Row]:
    """What is shown of each batch, where asked for with what is shown of its records behind it."""
    for window in _windows(walk, options):
        batches = of_batches(window)
        if not options.deep:
            yield from batches
        else:
            records = records_of(window)
            run.see(records.offset)
            rows = of_records(window, records, options)
            for batch, count in zip(batches, records.rows, strict=False):
                yield batch
                for _ in range(count):
                    yield next(rows)
            if records.halt is not None:
                records.halt.printed = ""
                raise records.halt
        if window.halt is not None:
            raise window.halt


def _trailing(walk: LogWalk, options: LogOptions) -> bool:
    return walk.stop > walk.end and options.max_bytes == MAX_INT


def _walk(source: Source, options: LogOptions, part: tuple[int, int] | None) -> LogWalk:
    if part is None:
        return LogWalk(source, limit=options.max_bytes)
    start, end = part
    return LogWalk(source, start, limit=min(end, start + options.max_bytes))


def _windows(walk: LogWalk, options: LogOptions) -> Iterator[Window]:
    for window in walk:
        if options.deep and len(window.headers):
            yield from pieces(window)
        else:
            yield window


def _batch_lines(window: Window) -> list[str]:
    headers = window.headers
    columns = (
        headers.position + window.start,
        headers.timestamp_type,
        headers.max_timestamp,
        headers.size,
        headers.codec,
        headers.crc,
        window.valid,
    )
    rows = zip(batch_starts(headers, window.magic), window.magic, *(each.tolist() for each in columns), strict=True)
    return [
        f"{start} position: {position} {TIME_TYPES[kind]}: {time} size: {size} magic: {magic}"
        f" compresscodec: {CODECS[codec]} crc: {crc} isvalid: {'true' if valid else 'false'}"
        for start, magic, position, kind, time, size, codec, crc, valid in rows
    ]


def _record_lines(window: Window, records: Records, options: LogOptions) -> Iterator[str]:
    headers = window.headers
    rows = np.array(records.rows, np.int64)
    kinds = [TIME_TYPES[kind] for kind in headers.timestamp_type.tolist()]
    new = [magic >= MAGIC for magic in window.magic]
    is_control = headers.is_control & np.array(new, np.bool_)
    batch = np.repeat(np.arange(len(rows)), rows).tolist()
    shown = options.metadata
    columns = (records.offset, records.timestamp, records.sequence, records.key, records.value)
    extras: Any = zip(records.headers, records.old, strict=True)
    for row, (offset, time, sequence, key, value), (names, old) in zip(
        batch, zip(*columns, strict=True), extras, strict=True
    ):
        line = ""
        if shown:
            line = (
                f"| offset: {offset} {kinds[row]}: {time} keySize: {-1 if key is None else len(key)}"
                f" valueSize: {-1 if value is None else len(value)}"
            )
            if new[row]:
                line += f" sequence: {sequence} headerKeys: [{','.join([name for name, _ in names])}]"
            if old is not None:
                line += f" isValid: {'true' if old[0] else 'false'} crc: {old[1]}}}"
        if is_control[row]:
            yield _with_control(line, key, value) if shown else line
        elif options.contents:
            yield _with_contents(line, offset, key, value, options)
        else:
            yield line


def _with_control(line: str, key: bytes | None, value: bytes | None) -> str:
    try:
        return line + control_text(key, value)
    except Halt as halt:
        halt.printed = line
        raise


def _with_contents(line: str, offset: int, key: bytes | None, value: bytes | None, options: LogOptions) -> str:
    try:
        shown_key, payload = options.parser(offset, key, value)
    except Halt as halt:
        halt.printed = line
        raise
    if shown_key is not None:
        line += f"{' ' if options.metadata else '| '}key: {shown_key[0]}"
    return line if payload is None else f"{line} payload: {payload[0]}"


def batch_json(window: Window) -> list[dict[str, Any]]:
    """An object for each batch of a window."""
    headers = window.headers
    found = []
    columns: dict[str, list[Any]] = {
        "baseOffset": headers.base_offset.tolist(),
        "lastOffset": headers.last_offset.tolist(),
        "count": headers.count.tolist(),
        "baseSequence": headers.base_sequence.tolist(),
        "lastSequence": headers.last_sequence.tolist(),
        "producerId": headers.producer_id.tolist(),
        "producerEpoch": headers.producer_epoch.tolist(),
        "partitionLeaderEpoch": headers.leader_epoch.tolist(),
        "isTransactional": headers.is_transactional.tolist(),
        "isControl": headers.is_control.tolist(),
        "deleteHorizonMs": np.where(headers.has_delete_horizon, headers.base_timestamp, -1).tolist(),
        "position": (headers.position + window.start).tolist(),
        "timestampType": [TIME_TYPES[kind] for kind in headers.timestamp_type.tolist()],
        "maxTimestamp": headers.max_timestamp.tolist(),
        "size": headers.size.tolist(),
        "magic": window.magic,
        "codec": [CODECS[codec] for codec in headers.codec.tolist()],
        "crc": headers.crc.tolist(),
        "valid": window.valid.tolist(),
    }
    for values in zip(*columns.values(), strict=True):
        row = {"type": "batch", **dict(zip(columns, values, strict=True))}
        if row["magic"] < MAGIC:
            for name in ("baseOffset", "count"):
                row[name] = None
        if row["deleteHorizonMs"] == -1:
            row["deleteHorizonMs"] = None
        found.append(row)
    return found


def _record_json(window: Window, records: Records, options: LogOptions) -> Iterator[dict[str, Any]]:
    headers = window.headers
    batch = np.repeat(np.arange(len(records.rows)), np.array(records.rows, np.int64)).tolist()
    kinds = [TIME_TYPES[kind] for kind in headers.timestamp_type.tolist()]
    is_control = (headers.is_control & (np.array(window.magic) >= MAGIC)).tolist()
    columns = (records.offset, records.timestamp, records.sequence, records.key, records.value)
    for row, fields, names, old in zip(batch, zip(*columns, strict=True), records.headers, records.old, strict=True):
        offset, time, sequence, key, value = fields
        found: dict[str, Any] = {
            "type": "record",
            "offset": offset,
            "timestampType": kinds[row],
            "timestamp": time,
            "keySize": None if key is None else len(key),
            "valueSize": None if value is None else len(value),
            "sequence": sequence,
            "headers": [
                [name, None if each is None else base64.b64encode(each).decode("ascii")] for name, each in names
            ],
        }
        if old is not None:
            found.update(valid=old[0], crc=old[1])
        if is_control[row]:
            found["control"] = control_json(key, value)
        elif options.contents:
            shown_key, payload = options.parser(offset, key, value)
            found.update(key=shown_key and shown_key[1], value=payload and payload[1])
        yield found


def control_json(key: bytes | None, value: bytes | None) -> dict[str, Any]:
    """What a control record says."""
    try:
        record = control.parse_control_record(key, value)
    except Corrupt as error:
        raise Halt(error.message) from None
    return {"kind": control_text(key, value).strip(), "coordinatorEpoch": record.coordinator_epoch}


def json_line(row: dict[str, Any]) -> str:
    """One object on one line."""
    return json.dumps(row, ensure_ascii=False, separators=(",", ":"))
