"""Batches and records of a `.log` as Kafka iterates over them: large ones in parts, broken ones by Kafka's rules."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from sparklog.format.encode import EncodeOptions, encode
from sparklog.format.record_batch import BatchHeader
from sparklog.storage import open_store
from sparklog.tools.inspection.dump_halt import Halt
from sparklog.tools.inspection.dump_index import transaction_index_rows
from sparklog.tools.inspection.dump_log import LogOptions, LogRun, text_lines
from sparklog.tools.inspection.dump_source import Source
from sparklog.tools.inspection.dump_walk import PIECE_RECORDS, LogWalk, pieces


def source(folder: Path, data: bytes) -> Source:
    path = folder / "00000000000000000000.log"
    path.write_bytes(data)
    return Source(open_store(folder), path.name, str(path), str(path))


def batch(count: int, codec: str = "none", batch_bytes: int = 1 << 20) -> bytes:
    values = pa.array([b"v"] * count, pa.binary())
    return encode(values, values, None, np.full(count, 7), options=EncodeOptions(codec, batch_bytes=batch_bytes)).data


def test_large_windows_are_read_in_parts(tmp_path: Path) -> None:
    count = 3 * PIECE_RECORDS
    file = source(tmp_path, batch(count, "zstd", 20_000))
    (window,) = LogWalk(file)
    parts = list(pieces(window))
    assert len(parts) >= 3
    assert sum(len(part.headers) for part in parts) == len(window.headers)
    run = LogRun()
    lines = [line for line in text_lines(file, LogOptions(deep=True), run) if line.startswith("|")]
    assert [int(line.split()[2]) for line in lines] == list(range(count))
    assert run.gaps == []


def test_a_batch_larger_than_a_window_is_read_whole(tmp_path: Path) -> None:
    value = pa.array([b"x" * 3_000_000], pa.binary())
    large = encode(None, value, None, np.full(1, 7), options=EncodeOptions("none", max_message_bytes=1 << 22)).data
    file = source(tmp_path, batch(2) + large + batch(3))
    lines = list(text_lines(file, LogOptions(deep=True), LogRun()))
    assert [line.split()[5] for line in lines if line.startswith("base")] == ["2", "1", "3"]
    assert all(line.endswith("isvalid: true") for line in lines if line.startswith("base"))


@pytest.mark.parametrize(
    ("position", "byte", "records", "said"),
    [
        (61, 0x7E, 0, "expected 63 bytes in record payload, but instead the buffer has only"),
        (60, 9, 3, "premature EOF"),
        (60, 1, 0, "records still remaining"),
        (65, 0x7F, 0, "Found invalid record structure"),
        (57, 0xFF, 0, "Found invalid record count"),
    ],
)
def test_kafka_prints_what_it_can_before_it_dies(
    tmp_path: Path, position: int, byte: int, records: int, said: str
) -> None:
    data = bytearray(batch(3))
    data[position] = byte
    found: list[str] = []
    with pytest.raises(Halt, match=said):
        collect(source(tmp_path, bytes(data)), found)
    assert found[0].endswith("isvalid: false")
    assert sum(line.startswith("| offset: ") for line in found) == records


def collect(file: Source, found: list[str]) -> None:
    """Lines as they come: what came before an error counts."""
    for line in text_lines(file, LogOptions(deep=True), LogRun()):
        found.append(line)  # noqa: PERF402


def test_a_transaction_index_is_read_whole_before_it_is_printed(tmp_path: Path) -> None:
    """Kafka's tool dies of a later entry's version before it prints the first."""
    path = tmp_path / "00000000000000000000.txnindex"
    entry = struct.pack(">hqqqq", 0, 6, 5, 7, 8)
    file = Source(open_store(tmp_path), path.name, str(path), str(path))
    path.write_bytes(entry * 2 + entry[:20])
    line = "version: 0 producerId: 6 firstOffset: 5 lastOffset: 7 lastStableOffset: 8"
    assert [row.text for row in transaction_index_rows(file)] == [line, line]
    path.write_bytes(entry + b"\x01" + entry[1:])
    with pytest.raises(Halt, match="Unexpected aborted transaction version 1 in transaction index"):
        next(transaction_index_rows(file))


@pytest.mark.parametrize(
    ("base", "delta", "last"),
    [(0, 2, 2), (-1, 5, -1), (2**31 - 1, 1, 0), (-65536, 0, -65536), (0, -721420288, 1426063360)],
)
def test_last_sequences_are_counted_as_in_java(tmp_path: Path, base: int, delta: int, last: int) -> None:
    header = BatchHeader(0, delta, 0, -1, -1, base_sequence=base)
    (line,) = text_lines(source(tmp_path, header.pack()), LogOptions(), LogRun())
    assert f" baseSequence: {base} lastSequence: {last} " in line
