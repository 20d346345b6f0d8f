"""Decode all batches in the fixtures of Kafka and its clients, compare them with Kafka's consumer, and encode them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from sparklog.format.batch_scan import crc_failures, scan_headers
from sparklog.format.decode import decode
from sparklog.format.record_batch import BatchHeaders
from tests.fixture_data import expected_records
from tests.format.batch_samples import ALL, rows
from tests.format.plain_encoder import encode_batch, with_create_time
from tests.support.seeds import thinned

NAMES = ("codecs", "timestamps", "segments", "transactions", "transactions-tv0", "preallocated-running")


def logs(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.log"))


def valid_batches(folder: Path) -> Iterator[tuple[Path, bytes, BatchHeaders]]:
    """Yield the batches of magic 2 of each log file, up to the first corrupt batch."""
    for path in logs(folder):
        data = path.read_bytes()
        headers = scan_headers(data, whole=False)
        wrong = crc_failures(data, headers)
        yield path, data, headers[: int(wrong[0])] if len(wrong) else headers


@pytest.mark.parametrize("name", NAMES)
def test_records_match_kafkas_consumer(fixtures: Path, name: str) -> None:
    compared = 0
    for folder in sorted({path.parent for path in logs(fixtures / name / "data")}):
        if folder.name.startswith("__"):  # The expected records of Kafka's internal topics have another form.
            continue
        found = []
        for path in logs(folder):
            data = path.read_bytes()
            headers = scan_headers(data, whole=False)
            assert headers.stop in ("end", "zeros")
            columns = decode(data, headers, columns=ALL, select=~headers.is_control)
            epochs = headers.leader_epoch[columns.batch].tolist()
            kinds = columns.timestamp_type.tolist()
            found += [(*row, kind, epoch) for row, kind, epoch in zip(rows(columns), kinds, epochs, strict=True)]
        expected = [
            (r.offset, r.timestamp, r.key, r.value, list(r.headers) or None, r.timestamp_type, r.leader_epoch)
            for r in expected_records(fixtures / name, folder.name)
        ]
        assert found == expected
        compared += len(found)
    assert compared >= 90


@pytest.mark.parametrize("step", thinned(4))
def test_uncompressed_batches_encode_to_the_same_bytes(fixtures: Path, step: int) -> None:
    batches = records = 0
    for path, data, headers in valid_batches(fixtures):
        if not len(headers):
            continue
        columns = decode(data, with_create_time(headers), columns=ALL)
        ends = np.cumsum(columns.batch_rows).tolist()
        for index in np.flatnonzero((headers.codec == 0) & ~headers.is_legacy)[::step].tolist():
            end, count = ends[index], int(columns.batch_rows[index])
            one = decode(data, with_create_time(headers[index : index + 1]), columns=ALL)
            position, size = int(headers.position[index]), int(headers.size[index])
            assert encode_batch(one, headers.row(index)) == data[position : position + size], f"{path} {position}"
            assert columns.offset[end - count : end].tolist() == one.offset.tolist()
            batches += 1
            records += count
    assert batches > 1000 // step
    assert records > batches


def test_recompressed_batches_have_the_same_records(fixtures: Path) -> None:
    batches = 0
    for _, data, headers in valid_batches(fixtures / "codecs"):
        for index in np.flatnonzero(headers.codec != 0).tolist():
            one = decode(data, with_create_time(headers[index : index + 1]), columns=ALL)
            again = encode_batch(one, headers.row(index))
            found = scan_headers(again)
            assert (found.attributes[0], found.count[0]) == (headers.attributes[index], headers.count[index])
            assert rows(decode(again, with_create_time(found), columns=ALL)) == rows(one)
            batches += 1
    assert batches > 50


def test_file_and_single_batches_decode_to_the_same_records(fixtures: Path) -> None:
    files = 0
    for _, data, headers in valid_batches(fixtures / "codecs"):
        together = rows(decode(data, headers, columns=ALL))
        parts = [rows(decode(data, headers[index : index + 1], columns=ALL)) for index in range(len(headers))]
        assert together == [row for part in parts for row in part]
        files += 1
    assert files >= 10
