"""Dumps of the fixtures: the same lines and findings as Kafka's DumpLogSegments for all valid files.

For a damaged file on which Kafka's tool crashes, the lines before the damage are equal, and an error reports the
position.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from sparklog.errors import Corrupt
from sparklog.storage import open_store
from sparklog.tools.inspection import dump_decoders
from sparklog.tools.inspection.dump import DumpOptions, dump
from sparklog.tools.inspection.dump_batches import LogOptions
from sparklog.tools.inspection.dump_source import DumpFile

GROUPS = (
    *("codecs", "compaction", "compaction-by-broker", "damaged", "legacy", "preallocated-running", "retention"),
    *("segments", "timestamps", "transactions", "transactions-tv0"),
)
DAMAGED = {
    "bit-flipped": "the batch cannot be decompressed",
    "empty-segment-last": "no batch starts at position 605 of the entry",
    "empty-segment-middle": "no batch starts at position 970 of the entry",
    "indexes-wrong": "no batch starts at position ",
    "length-field-huge": "no batch starts at position 605 of the entry",
    "killed-broker": "expected a record batch: only zeros follow",
    "preallocated-running": "expected a record batch: only zeros follow",
    "snapshots-damaged": "producer snapshot",
    "zeros-appended": "expected a record batch: only zeros follow",
}
"""The error of a damaged fixture's files."""


def expectations(group: Path) -> Iterator[tuple[Path, str, str]]:
    """Return the fixture, the path of a file in it, and the lines of Kafka's tool after the first line."""
    for file in sorted(group.rglob("*.dump.txt.gz")):
        fixture = next(parent for parent in file.parents if parent.name == "expected").parent
        first, _, rest = gzip.decompress(file.read_bytes()).decode().partition("\n")
        yield fixture, first.removeprefix("Dumping "), rest.rstrip("\n")


def options_for(path: str, expected: str) -> DumpOptions:
    """Return the options of the dump: contents for text files, and decoders for internal topics."""
    contents = " key: " in expected or " payload: " in expected
    decoders: dump_decoders.Decoders = dump_decoders.plain()
    if "__consumer_offsets" in path:
        decoders = dump_decoders.coordinator("groups")
    elif "__transaction_state" in path:
        decoders = dump_decoders.coordinator("transactions")
    return DumpOptions(LogOptions(deep=True, contents=contents, decoders=decoders))


def dumped(source: DumpFile, options: DumpOptions) -> tuple[list[str], Corrupt | None]:
    lines: list[str] = []
    try:
        for line in dump([source], options):
            lines.append(line.text)  # noqa: PERF401 - lines before an error count
    except Corrupt as error:
        return lines[1:], error
    return lines[1:], None


@pytest.mark.parametrize("name", GROUPS)
def test_lines_equal_those_of_kafkas_tool(fixtures: Path, name: str) -> None:
    compared = 0
    for fixture, path, expected in expectations(fixtures / name):
        lines, error = dumped(DumpFile(open_store(fixture), path, path, path), options_for(path, expected))
        theirs = expected.splitlines()
        if error is not None:
            assert DAMAGED[fixture.name] in str(error), f"{fixture} {path}"
            assert Path(path).stem in str(error)
            theirs = [line for line in theirs if not line.startswith(("EXCEPTION ", "Snapshot "))]
        if not expected.startswith("EXCEPTION "):
            assert lines == theirs, f"{fixture} {path}"
        compared += 1
    assert compared >= 9


def test_json_objects_agree_with_the_lines(fixtures: Path) -> None:
    """Compare offsets, keys and values of a partition in JSON objects with those in lines."""
    for fixture, path, expected in expectations(fixtures / "transactions"):
        options = options_for(path, expected)
        as_json = DumpOptions(replace(options.log, json=True))
        rows = [json.loads(line.text) for line in dump([DumpFile(open_store(fixture), path, path, path)], as_json)]
        lines = [line for line in expected.splitlines() if not line.startswith(("Log starting", "  "))]
        lines = [line for line in lines if not line.startswith(("Non-consecutive", "Found timestamp", path))]
        assert len([row for row in rows if row["type"] in DATA]) == len(lines), path
        for row, line in zip(rows, lines, strict=False):
            if row["type"] == "batch":
                assert f"baseOffset: {row['baseOffset']} lastOffset: {row['lastOffset']} count: {row['count']}" in line
                assert f"position: {row['position']} " in line
            elif row["type"] == "record":
                assert f"| offset: {row['offset']} {row['timestampType']}: {row['timestamp']} " in line
                assert ("key" in row) == (options.log.contents and "control" not in row)
                assert ("endTxnMarker" in line) == ("control" in row)


DATA = ("batch", "record", "index", "timeindex", "txnindex", "producer")
