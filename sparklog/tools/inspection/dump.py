"""`dump-log`: what files hold, line by line, as Kafka's DumpLogSegments prints it or as JSON.

    for line in dump(find(["/data/log/orders-0"]), DumpOptions()):
        print(line.text)

Kafka's tool prints what it finds on standard output, and behind all files what does not agree on standard error; it
dies of the first file it cannot read. Here the other files are dumped all the same, and the error comes at the end.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from sparklog.errors import BadRequest, Corrupt
from sparklog.tools.inspection import dump_index, dump_own
from sparklog.tools.inspection.dump_halt import Halt
from sparklog.tools.inspection.dump_index import Findings, Row
from sparklog.tools.inspection.dump_log import LogOptions, LogRun, json_line, json_lines, text_lines
from sparklog.tools.inspection.dump_source import Source

MAX_MESSAGE_SIZE = 5 * 1024 * 1024
_METADATA_SNAPSHOT = re.compile(r"(\d{20})-(\d{10})\.checkpoint")
_OF_SEGMENTS = ("log", "index", "timeindex", "txnindex")
_SUFFIXES = ("log", "checkpoint", "index", "timeindex", "txnindex", "snapshot", "slices", "json", "arrow")


@dataclass(frozen=True, slots=True)
class DumpOptions:
    """What is shown; names as of Kafka's options. `json`: objects instead of Kafka's lines."""

    log: LogOptions = field(default_factory=LogOptions)
    verify_index_only: bool = False
    index_sanity_check: bool = False
    max_message_size: int = MAX_MESSAGE_SIZE
    json: bool = False


@dataclass(frozen=True, slots=True)
class Line:
    """A line for standard output or, `error`, for standard error."""

    text: str
    error: bool = False


def is_known(name: str) -> bool:
    """Whether a file of this name can be dumped."""
    return name in dump_own.TEXT_FILES or ("." in name and name.rpartition(".")[2] in _SUFFIXES)


def dump(sources: Iterable[Source], options: DumpOptions) -> Iterator[Line]:
    """Everything there is to say of these files, in order.

    Raises `Corrupt` at the end if one of them could not be read to its end, `NotFound` for one that is gone,
    `BadRequest` before anything for a name that says nothing.
    """
    files = list(sources)
    for source in files:
        if not is_known(source.name):
            raise BadRequest(
                f"{source.shown} is no file that can be dumped: expected one that ends in {', '.join(_SUFFIXES)}"
            )
        if source.name.rpartition(".")[2] in _OF_SEGMENTS:
            dump_index.base_of(source)
    findings, failures = Findings(), 0
    first: Corrupt | None = None
    for source in files:
        if not options.json:
            yield Line(f"Dumping {source.shown}")
        try:
            yield from _file(source, options, findings)
        except Corrupt as error:
            if isinstance(error, Halt) and error.printed and not options.json:
                yield Line(error.printed)
            failures += 1
            first = first or _named(source, error)
            if options.json or len(files) > 1:
                yield _failure(source, error, options.json)
    if options.json:
        yield from (Line(json_line(row)) for row in findings.rows())
    else:
        yield from (Line(text, error=True) for text in findings.lines())
    if first is not None:
        raise first if len(files) == 1 else Corrupt(f"{failures} of {len(files)} files could not be read to their end")


def _named(source: Source, error: Corrupt) -> Corrupt:
    return Corrupt(error.message, file=source.shown, position=error.position, offset=error.offset)


def _failure(source: Source, error: Corrupt, as_json: bool) -> Line:
    if not as_json:
        return Line(f"{source.shown}: {error.java if isinstance(error, Halt) else error.message}", error=True)
    exception = error.exception if isinstance(error, Halt) else None
    row = {"type": "error", "file": source.shown, "exception": exception, "message": error.message}
    return Line(json_line(row))


def _file(source: Source, options: DumpOptions, findings: Findings) -> Iterator[Line]:
    suffix = source.name.rpartition(".")[2]
    if source.name not in dump_own.TEXT_FILES and suffix in ("log", "checkpoint"):
        yield from _log(source, options, findings)
        return
    if suffix == "slices":
        yield from _slices(source, options)
        return
    rows: Callable[[], Iterator[Row]] = {
        "index": lambda: dump_index.index_rows(
            source,
            findings,
            sanity=options.index_sanity_check,
            verify=options.verify_index_only,
            max_message_size=options.max_message_size,
        ),
        "timeindex": lambda: dump_index.time_index_rows(
            source, findings, sanity=options.index_sanity_check, verify=options.verify_index_only
        ),
        "txnindex": lambda: dump_index.transaction_index_rows(source),
        "snapshot": lambda: _snapshot(source),
        "json": lambda: dump_own.json_rows(source),
        "arrow": lambda: dump_own.table_rows(source),
    }.get(suffix, lambda: dump_own.text_file_rows(source))
    for row in rows():
        if not options.json:
            yield Line(row.text, error=row.fields.get("type") == "corrupt-snapshot")
        elif row.fields:
            yield _json(source, row.fields)


def _json(source: Source, fields: dict[str, Any]) -> Line:
    return Line(json_line({"file": source.shown, **fields}))


def _snapshot(source: Source) -> Iterator[Row]:
    try:
        yield from dump_index.snapshot_rows(source)
    except Halt:
        raise
    except Corrupt as error:
        # Kafka's tool says so and goes on: a broker that finds one reads its log instead.
        yield Row(error.message, {"type": "corrupt-snapshot", "message": error.message})


def _log(source: Source, options: DumpOptions, findings: Findings) -> Iterator[Line]:
    run = LogRun()
    try:
        if options.json:
            yield from (_json(source, row) for row in json_lines(source, options.log, run))
            return
        yield Line(_first_line(source))
        yield from (Line(text) for text in text_lines(source, options.log, run))
    finally:
        if run.gaps:
            findings.gaps[source.absolute] = run.gaps


def _first_line(source: Source) -> str:
    if source.name.endswith(".log"):
        return f"Log starting offset: {dump_index.base_of(source)}"
    if source.name == "bootstrap.checkpoint":
        return "KRaft bootstrap snapshot"
    snapshot = _METADATA_SNAPSHOT.fullmatch(source.name)
    if snapshot is None:
        raise Corrupt("expected the name of a snapshot of Kafka's metadata log, <offset>-<epoch>.checkpoint")
    return f"Snapshot end offset: {int(snapshot[1])}, epoch: {int(snapshot[2])}"


def _slices(source: Source, options: DumpOptions) -> Iterator[Line]:
    for number, entry in enumerate(dump_own.slice_entries(source)):
        row = dump_own.slice_row(source, number, entry)
        part = (entry.position, entry.position + entry.nbytes)
        if options.json:
            yield _json(source, row.fields)
            yield from (
                _json(source, {**each, "slice": number}) for each in json_lines(source, options.log, LogRun(), part)
            )
        else:
            yield Line(row.text)
            yield from (Line(text) for text in text_lines(source, options.log, LogRun(), part))
