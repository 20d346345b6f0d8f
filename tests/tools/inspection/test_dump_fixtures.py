"""Every dump that Kafka's DumpLogSegments made of the fixtures: the same lines, the same findings, the same ends."""

from __future__ import annotations

import gzip
import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from sparklog.errors import Corrupt
from sparklog.storage import open_store
from sparklog.tools.inspection import dump_decoders
from sparklog.tools.inspection.dump import DumpOptions, dump
from sparklog.tools.inspection.dump_log import LogOptions
from sparklog.tools.inspection.dump_source import Source

GROUPS = (
    *("codecs", "compaction", "compaction-by-broker", "damaged", "legacy", "preallocated-running", "retention"),
    *("segments", "timestamps", "transactions", "transactions-tv0"),
)
NO_INDEX = "EXCEPTION java.lang.IllegalArgumentException: Invalid max index size: -1"


def expectations(group: Path) -> Iterator[tuple[Path, str, str]]:
    """The fixture, a file's path in it, and what Kafka's tool printed behind the first line."""
    for file in sorted(group.rglob("*.dump.txt.gz")):
        fixture = next(parent for parent in file.parents if parent.name == "expected").parent
        first, _, rest = gzip.decompress(file.read_bytes()).decode().partition("\n")
        yield fixture, first.removeprefix("Dumping "), rest.rstrip("\n")


def options_for(path: str, expected: str) -> DumpOptions:
    """As the dump was made: with contents where these are text, internal topics by their decoders."""
    contents = " key: " in expected or " payload: " in expected
    parser: dump_decoders.Parser = dump_decoders.plain()
    if "__consumer_offsets" in path:
        parser = dump_decoders.group_parser()
    elif "__transaction_state" in path:
        parser = dump_decoders.transaction_parser()
    return DumpOptions(LogOptions(deep=True, contents=contents, parser=parser))


def dumped(source: Source, options: DumpOptions) -> str:
    lines: list[str] = []
    try:
        for line in dump([source], options):
            lines.append(line.text)  # noqa: PERF401 - what came before an error counts
    except Corrupt as error:
        lines.append(f"EXCEPTION {error.message}")
    return "\n".join(lines[1:])


@pytest.mark.parametrize("name", GROUPS)
def test_lines_are_those_of_kafkas_tool(fixtures: Path, tmp_path: Path, name: str) -> None:
    compared = 0
    for fixture, path, expected in expectations(fixtures / name):
        store, key = open_store(fixture), path
        if expected == NO_INDEX:
            # Kafka's tool died for want of the .index, and left an empty one behind.
            folder = tmp_path / str(compared)
            shutil.copytree((fixture / path).parent, folder)
            (folder / Path(path).with_suffix(".index").name).unlink()
            store, key = open_store(folder), Path(path).name
        # The message of an exception that has none is its class.
        ends = re.sub(r"EXCEPTION (\S+): (.*)$", r"EXCEPTION \2", expected)
        assert dumped(Source(store, key, path, path), options_for(path, expected)) == ends, f"{fixture} {path}"
        compared += 1
    assert compared >= 9


def test_json_tells_the_same_as_the_lines(fixtures: Path) -> None:
    """Offsets, keys and values of a partition, from objects instead of lines."""
    for fixture, path, expected in expectations(fixtures / "transactions"):
        options = options_for(path, expected)
        told = DumpOptions(options.log, json=True)
        rows = [json.loads(line.text) for line in dump([Source(open_store(fixture), path, path, path)], told)]
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
