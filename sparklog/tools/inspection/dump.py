"""`dump-log`: files line by line, as Kafka's DumpLogSegments prints them, or as JSON objects.

    for line in dump(find(["/data/log/orders-0"]), DumpOptions()):
        print(line.text)

Lines of sound files are those of Kafka's tool: files on standard output, and behind all files the findings (what does
not agree) on standard error. A damaged file's lines end where it cannot be read. The other files are printed all the
same, and the error comes at the end.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from sparklog.errors import Corrupt
from sparklog.tools.inspection import dump_index, dump_other_files
from sparklog.tools.inspection.dump_batches import LogOptions, OffsetGaps, log_rows
from sparklog.tools.inspection.dump_index import GAP, Findings, IndexOptions
from sparklog.tools.inspection.dump_source import TEXT_FILES, Row, Source, check_name

_METADATA_SNAPSHOT = re.compile(r"(\d{20})-(\d{10})\.checkpoint")


@dataclass(frozen=True, slots=True)
class DumpOptions:
    """Options for logs and for indexes."""

    log: LogOptions = field(default_factory=LogOptions)
    index: IndexOptions = field(default_factory=IndexOptions)


@dataclass(frozen=True, slots=True)
class Line:
    """A line for standard output or, with `error`, for standard error."""

    text: str
    error: bool = False


def dump(sources: Iterable[Source], options: DumpOptions) -> Iterator[Line]:
    """Give the lines of these files, in order.

    Raises `Corrupt` at the end if one of them could not be read to its end, `NotFound` for one that is gone,
    `BadRequest` before the first line for a name that tells no kind of file.
    """
    files, as_json = list(sources), options.log.json
    for source in files:
        check_name(source)
    findings, damaged = Findings(), list[Corrupt]()
    for source in files:
        if not as_json:
            yield Line(f"Dumping {source.shown}")
        try:
            for row in _rows(source, options, findings):
                if not as_json:
                    yield Line(row.text)
                elif row.fields:
                    yield _object({"file": source.shown, **row.fields})
        except Corrupt as error:
            file = error.file or source.shown
            damaged.append(Corrupt(error.message, file=file, position=error.position, offset=error.offset))
            if as_json:
                yield _object({"type": "error", "file": source.shown, "message": str(damaged[-1])})
            elif len(files) > 1:
                yield Line(str(damaged[-1]), error=True)
    if as_json:
        yield from (_object(each) for each in findings.objects())
    else:
        yield from (Line(text, error=True) for text in findings.lines())
    if damaged:
        summary = Corrupt(f"{len(damaged)} of {len(files)} files could not be read to their end")
        raise damaged[0] if len(files) == 1 else summary


def _object(fields: dict[str, Any]) -> Line:
    return Line(json.dumps(fields, ensure_ascii=False, separators=(",", ":")))


def _rows(source: Source, options: DumpOptions, findings: Findings) -> Iterator[Row]:
    if source.name in TEXT_FILES:
        return dump_other_files.text_file_rows(source)
    match source.suffix:
        case "index":
            return dump_index.index_rows(source, findings, options.index)
        case "timeindex":
            return dump_index.time_index_rows(source, findings, options.index)
        case "txnindex":
            return dump_index.transaction_index_rows(source)
        case "snapshot":
            return dump_index.snapshot_rows(source)
        case "json":
            return dump_other_files.json_rows(source)
        case "arrow":
            return dump_other_files.table_rows(source)
        case "slices":
            return _slice_rows(source, options.log)
        case _:
            return _log_rows(source, options.log, findings)


def _log_rows(source: Source, options: LogOptions, findings: Findings) -> Iterator[Row]:
    if source.name.endswith(".log"):
        first = f"Log starting offset: {source.base_offset}"
    elif source.name == "bootstrap.checkpoint":
        first = "KRaft bootstrap snapshot"
    elif snapshot := _METADATA_SNAPSHOT.fullmatch(source.name):
        first = f"Snapshot end offset: {int(snapshot[1])}, epoch: {int(snapshot[2])}"
    else:
        raise Corrupt("expected the name of a snapshot of Kafka's metadata log, <offset>-<epoch>.checkpoint")
    yield Row(first, {})
    gaps = OffsetGaps()
    try:
        yield from log_rows(source, options, gaps)
    finally:
        findings.add(GAP, source.absolute, *gaps.gaps)


def _slice_rows(source: Source, options: LogOptions) -> Iterator[Row]:
    for number, entry in enumerate(dump_other_files.slice_entries(source)):
        yield dump_other_files.slice_row(source, number, entry)
        part = (entry.position, entry.position + entry.nbytes)
        for row in log_rows(source, options, OffsetGaps(), part):
            yield Row(row.text, {**row.fields, "slice": number} if row.fields else {})
