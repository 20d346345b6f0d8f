"""Print files in the format of Kafka's DumpLogSegments tool or as JSON objects, for `dump-log`.

    for line in dump(find(["/data/log/orders-0"]), DumpOptions()):
        print(line.text)

For intact files, the output is the same as the output of Kafka's tool. The contents are printed to standard output, and
then the findings of all files are printed to standard error. The output for a corrupt file ends at the first byte that
cannot be read. The other files are still printed, and the error is raised at the end. The following files are not
supported by Kafka's tool:

| file                                    | lines                                                              |
|-----------------------------------------|--------------------------------------------------------------------|
| `.json` (commits and journal entries)   | one line with simple fields and the validity of the checksum, one  |
|                                         | line per element of other fields, and the inline records of a      |
|                                         | commit in the format of a `.slices` file                           |
| `.arrow` (slice table of a checkpoint)  | one line per slice                                                 |
| `.slices` (append file)                 | one line per slice, followed by its batches in the format of a     |
|                                         | `.log` file; offsets are relative to the start of the slice        |
| `*-checkpoint`, `partition.metadata`,   | one line per entry                                                 |
| `meta.properties`                       |                                                                    |
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

from sparklog.errors import Corrupt
from sparklog.format import checkpoint_files
from sparklog.format.append_file import WrittenSlice, read_footer
from sparklog.log.journal.documents import checksum_holds, document_of
from sparklog.log.state.commit_object import has_inline_records
from sparklog.tools.inspection import dump_index
from sparklog.tools.inspection.dump_batches import LogOptions, OffsetGaps, log_rows
from sparklog.tools.inspection.dump_index import GAP, Findings, IndexOptions
from sparklog.tools.inspection.dump_source import TEXT_FILES, DumpFile, Row, check_name, plain_text

CHUNK_BYTES = 4 << 20


def json_rows(source: DumpFile) -> Iterator[Row]:
    """Yield the lines of a commit, a checkpoint document, a journal entry or `_root.json`."""
    data = document_of(source.read())
    try:
        document = json.loads(data)
    except (ValueError, RecursionError):
        document = None
    if not isinstance(document, dict):
        raise Corrupt("expected a JSON object", file=source.shown)
    valid = checksum_holds(data)
    plain = {name: _text(value) for name, value in document.items() if not value or not isinstance(value, (list, dict))}
    yield Row(_with_validity(plain, valid), {"type": "object", "valid": valid, "content": document})
    for name, value in document.items():
        if isinstance(value, list):
            yield from (Row(f"| {name}: {_text(element)}", {}) for element in value)
        elif isinstance(value, dict):
            yield from (Row(f"| {name}: {member}: {_text(element)}", {}) for member, element in value.items())


def _with_validity(fields: dict[str, Any], valid: bool) -> str:
    return f"{plain_text(fields)} isvalid: {'true' if valid else 'false'}"


def _text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def table_rows(source: DumpFile) -> Iterator[Row]:
    """Yield the lines of a checkpoint's slice table."""
    import pyarrow as pa

    try:
        table = pa.ipc.open_file(pa.BufferReader(source.read())).read_all()
    except (pa.ArrowException, OSError) as error:
        raise Corrupt(f"expected an Arrow file ({error})", file=source.shown) from None
    for batch in table.to_batches():
        for row in batch.to_pylist():
            text = plain_text({name: _text(value) for name, value in row.items()})
            yield Row(text, {"type": "slice", **row})


def _slice_row(source: DumpFile, number: int, entry: WrittenSlice) -> Row:
    from sparklog.format.crc32c import crc32c

    crc, end = 0, entry.position + entry.nbytes
    for start in range(entry.position, end, CHUNK_BYTES):
        crc = crc32c(source.read(start, min(CHUNK_BYTES, end - start)), crc)
    fields = {
        "slice": number,
        "partition": entry.partition,
        "position": entry.position,
        "size": entry.nbytes,
        "offsets": entry.offsets,
        "records": entry.records,
        "minTimestamp": entry.min_ts,
        "maxTimestamp": entry.max_ts,
        "flags": entry.flags,
        "crc": entry.crc,
    }
    valid = crc == entry.crc
    return Row(_with_validity(fields, valid), {"type": "slice", **fields, "valid": valid})


def text_file_rows(source: DumpFile) -> Iterator[Row]:
    name, data = source.name, source.read()
    if name == checkpoint_files.LEADER_EPOCHS_FILE:
        for entry in checkpoint_files.parse_leader_epochs(data, file=source.shown):
            yield _row("leader-epoch", {"epoch": entry.epoch, "startOffset": entry.start_offset})
    elif name.endswith("-checkpoint"):
        for (topic, partition), offset in checkpoint_files.parse_offsets(data, file=source.shown).items():
            yield _row("checkpoint", {"topic": topic, "partition": partition, "offset": offset})
    else:
        separator = ":" if name == checkpoint_files.PARTITION_METADATA_FILE else "="
        for line in data.decode("utf-8", "replace").splitlines():
            member, sign, value = line.partition(separator)
            if sign and not line.startswith("#"):
                yield _row("property", {member.strip(): value.strip()})


def _row(kind: str, fields: dict[str, Any]) -> Row:
    return Row(plain_text(fields), {"type": kind, **fields})


_METADATA_SNAPSHOT = re.compile(r"(\d{20})-(\d{10})\.checkpoint")


@dataclass(frozen=True, slots=True)
class DumpOptions:
    log: LogOptions = field(default_factory=LogOptions)
    index: IndexOptions = field(default_factory=IndexOptions)


@dataclass(frozen=True, slots=True)
class Line:
    """A line for standard output or, if `error` is True, for standard error."""

    text: str
    error: bool = False


def dump(sources: Iterable[DumpFile], options: DumpOptions) -> Iterator[Line]:
    """Yield the lines of the files in the given order.

    Raises:
        Corrupt: If a file could not be read completely. The error is raised after all lines.
        NotFound: If a file does not exist.
        BadRequest: If a file name is not supported. The error is raised before the first line.
    """
    files, as_json = list(sources), options.log.json
    for source in files:
        check_name(source)
    findings, corrupt = Findings(), list[Corrupt]()
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
            corrupt.append(Corrupt(error.message, file=file, position=error.position, offset=error.offset))
            if as_json:
                yield _object({"type": "error", "file": source.shown, "message": str(corrupt[-1])})
            elif len(files) > 1:
                yield Line(str(corrupt[-1]), error=True)
    if as_json:
        yield from map(_object, findings.objects())
    else:
        yield from (Line(text, error=True) for text in findings.lines())
    if corrupt:
        summary = Corrupt(f"{len(corrupt)} of {len(files)} files could not be read completely")
        raise corrupt[0] if len(files) == 1 else summary


def _object(fields: dict[str, Any]) -> Line:
    return Line(json.dumps(fields, ensure_ascii=False, separators=(",", ":")))


def _rows(source: DumpFile, options: DumpOptions, findings: Findings) -> Iterator[Row]:
    if source.name in TEXT_FILES:
        return text_file_rows(source)
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
            inline_rows = _slice_rows(source, options.log) if has_inline_records(source.read()) else ()
            return chain(json_rows(source), inline_rows)
        case "arrow":
            return table_rows(source)
        case "slices":
            return _slice_rows(source, options.log)
        case _:
            return _log_rows(source, options.log, findings)


def _log_rows(source: DumpFile, options: LogOptions, findings: Findings) -> Iterator[Row]:
    if source.name.endswith(".log"):
        header = f"Log starting offset: {source.base_offset}"
    elif source.name == "bootstrap.checkpoint":
        header = "KRaft bootstrap snapshot"
    elif snapshot := _METADATA_SNAPSHOT.fullmatch(source.name):
        header = f"Snapshot end offset: {int(snapshot[1])}, epoch: {int(snapshot[2])}"
    else:
        raise Corrupt("the name of a metadata log snapshot must have the form <offset>-<epoch>.checkpoint")
    yield Row(header, {})
    gaps = OffsetGaps()
    try:
        yield from log_rows(source, options, gaps)
    finally:
        findings.add(GAP, source.absolute, *gaps.gaps)


def _slice_rows(source: DumpFile, options: LogOptions) -> Iterator[Row]:
    footer = read_footer(source.read, source.size(), file=source.shown)
    for number, entry in enumerate(footer.slices):
        yield _slice_row(source, number, entry)
        for row in log_rows(source, options, OffsetGaps(), entry.position, entry.position + entry.nbytes):
            yield Row(row.text, {**row.fields, "slice": number} if row.fields else {})
