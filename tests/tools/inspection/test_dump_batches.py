"""Batches and records of a `.log`: large batches in parts, and damaged ones up to the damage."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from sparklog.errors import Corrupt
from sparklog.format.encode import EncodeOptions, encode
from sparklog.format.record_batch import HEADER_BYTES
from sparklog.storage import open_store
from sparklog.tools.inspection.dump import DumpOptions, dump
from sparklog.tools.inspection.dump_batches import CHUNK_RECORDS, LogOptions, LogWalk, OffsetGaps, chunks, log_rows
from sparklog.tools.inspection.dump_source import DumpFile


def source(folder: Path, data: bytes, suffix: str = "log") -> DumpFile:
    path = folder / f"00000000000000000000.{suffix}"
    path.write_bytes(data)
    return DumpFile(open_store(folder), path.name, str(path), str(path))


def batch(count: int, codec: str = "none", batch_bytes: int = 1 << 20) -> bytes:
    values = pa.array([b"v"] * count, pa.binary())
    return encode(values, values, None, np.full(count, 7), options=EncodeOptions(codec, batch_bytes=batch_bytes)).data


def read(file: DumpFile, options: DumpOptions) -> tuple[list[str], Corrupt | None]:
    """Return the lines after the first line, and the error at the end."""
    lines: list[str] = []
    try:
        for line in dump([file], options):
            lines.append(line.text)  # noqa: PERF401 - lines before an error count
    except Corrupt as error:
        return lines[1:], error
    return lines[1:], None


DEEP = DumpOptions(LogOptions(deep=True))


def test_large_windows_are_read_in_parts(tmp_path: Path) -> None:
    count = 3 * CHUNK_RECORDS
    file = source(tmp_path, batch(count, "zstd", 20_000))
    (window,) = LogWalk(file)
    parts = list(chunks(window))
    assert len(parts) >= 3
    assert sum(len(part.headers) for part in parts) == len(window.headers)
    gaps = OffsetGaps()
    lines = [row.text for row in log_rows(file, LogOptions(deep=True), gaps) if row.text.startswith("|")]
    assert [int(line.split()[2]) for line in lines] == list(range(count))
    assert gaps.gaps == []


def test_batch_larger_than_a_window_is_read_entirely(tmp_path: Path) -> None:
    value = pa.array([b"x" * 3_000_000], pa.binary())
    large = encode(None, value, None, np.full(1, 7), options=EncodeOptions("none", max_message_bytes=1 << 22)).data
    lines, error = read(source(tmp_path, batch(2) + large + batch(3)), DEEP)
    assert error is None
    assert [line.split()[5] for line in lines if line.startswith("base")] == ["2", "1", "3"]
    assert all(line.endswith("isvalid: true") for line in lines if line.startswith("base"))


@pytest.mark.parametrize(
    ("position", "byte", "message"),
    [
        (61, 0x7E, "the length of a record exceeds its batch"),
        (60, 9, "the batch has more records than offsets"),
        (60, 1, "the batch continues after its last record"),
        (65, 0x7F, "the fields of a record do not match its length"),
        (57, 0xFF, "the batch has a negative record count"),
    ],
)
def test_dump_stops_at_a_damaged_batch_with_its_position(
    tmp_path: Path, position: int, byte: int, message: str
) -> None:
    sound = batch(3)
    damaged = bytearray(sound)
    damaged[position] = byte
    lines, error = read(source(tmp_path, sound + bytes(damaged) + sound), DEEP)
    assert [line.startswith("|") for line in lines] == [False, False, True, True, True, False]
    assert lines[1].endswith("isvalid: true")
    assert lines[-1].endswith("isvalid: false")
    assert error is not None
    assert message in error.message
    assert error.position is not None
    assert len(sound) <= error.position < len(sound) + HEADER_BYTES + 30


def test_dump_stops_at_invalid_bytes_with_their_position(tmp_path: Path) -> None:
    sound = batch(3)
    for data, message in (
        (b"\0" * 12, "Found 12 invalid bytes at the end of 00000000000000000000.log"),
        (sound[:-1], f"Found {len(sound) - 1} invalid bytes at the end of 00000000000000000000.log"),
    ):
        lines, error = read(source(tmp_path, sound + data), DEEP)
        assert (lines[-1], error) == (message, None)
    for data, message in (
        (bytes(40), "only zeros follow"),
        (sound[:16] + b"\x07" + sound[17:], "magic is 7, expected 0, 1 or 2"),
        (sound[:8] + struct.pack(">i", 5) + sound[12:], "batch length 5 is invalid"),
        (sound[:22] + b"\x06" + sound[23:], "expected a codec of 0 to 4, found 6"),
    ):
        lines, error = read(source(tmp_path, sound + data), DEEP)
        assert len(lines) == 5
        assert error is not None
        assert message in error.message
        assert (error.file, error.position) == (str(tmp_path / "00000000000000000000.log"), len(sound))


def test_transaction_index_is_printed_up_to_the_damage(tmp_path: Path) -> None:
    entry = struct.pack(">hqqqq", 0, 6, 5, 7, 8)
    line = "version: 0 producerId: 6 firstOffset: 5 lastOffset: 7 lastStableOffset: 8"
    assert read(source(tmp_path, entry * 2, "txnindex"), DEEP) == ([line, line], None)
    for data, message in (
        (entry * 2 + entry[:20], "found 20 extra bytes after the last entry"),
        (entry * 2 + b"\0\1" + entry[2:], "expected an aborted transaction of version 0, found 1"),
    ):
        lines, error = read(source(tmp_path, data, "txnindex"), DEEP)
        assert lines == [line, line]
        assert error is not None
        assert message in error.message
        assert error.position == 2 * len(entry)
