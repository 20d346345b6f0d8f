"""Convert views to plain records, and write small logs byte by byte."""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from sparklog.format.control import end_txn_marker
from sparklog.format.record_batch import TRANSACTIONAL_BIT, BatchHeader
from sparklog.kafka.in_place import KafkaView
from sparklog.log.state.view import COLUMNS, READ_UNCOMMITTED, OffsetRange, ReadPart
from sparklog.log.topic.topic import Topic
from tests.fixture_data import ExpectedRecord

HOUR_MS = 1_704_153_600_000


def read(
    view: KafkaView,
    topic: str,
    partition: int = 0,
    isolation: str = READ_UNCOMMITTED,
    start: int | None = None,
    end: int | None = None,
    batch_bytes: int = 4 << 20,
) -> list[ExpectedRecord]:
    """Return the records of a partition through a plan. By default, all records that the isolation level allows.

    Parts are pickled, as if they were sent to a task.
    """
    bounds = view.bounds(topic)[partition]
    first = bounds.log_start if start is None else start
    last = bounds.end(isolation) if end is None else end
    found: list[ExpectedRecord] = []
    for part in view.plan([OffsetRange(topic, partition, first, last)], isolation):
        for batch in pickle.loads(pickle.dumps(part)).read(COLUMNS, batch_bytes=batch_bytes):
            found += records(batch)
    return found


def read_topic(topic: Topic, partition: int = 0, isolation: str = READ_UNCOMMITTED) -> list[ExpectedRecord]:
    """Return the records of a partition of a sparklog topic. By default, aborted records are included."""
    scan = topic.scan(partitions=[partition], isolation_level=isolation, columns=COLUMNS)
    return [record for found in scan for record in records(found)]


def records(batch: pa.RecordBatch) -> list[ExpectedRecord]:
    """Return a batch of all columns as records without leader epochs."""
    timestamps = batch.column("timestamp").cast(pa.int64()).to_pylist()
    rows = batch.drop_columns(["timestamp"]).to_pylist()
    return [_record(row, timestamp) for row, timestamp in zip(rows, timestamps, strict=True)]


def _record(row: dict[str, Any], timestamp: int) -> ExpectedRecord:
    headers = tuple((header["key"], header["value"]) for header in row["headers"] or ())
    return ExpectedRecord(
        row["partition"], row["offset"], timestamp, row["timestampType"], row["key"], row["value"], headers, None
    )


def without_epochs(expected: Iterable[ExpectedRecord]) -> list[ExpectedRecord]:
    """Remove leader epochs, which are not a column of the view."""
    return [replace(record, leader_epoch=None) for record in expected]


def offsets(found: Sequence[ExpectedRecord]) -> list[int]:
    return [record.offset for record in found]


def batch(base: int, values: Sequence[bytes], *, producer: int = -1, timestamp: int = HOUR_MS) -> bytes:
    """Return a batch of uncompressed records without keys. The batch is transactional if it has a producer."""
    return keyed_batch(base, [(None, value) for value in values], producer=producer, timestamp=timestamp)


def keyed_batch(
    base: int,
    items: Sequence[tuple[bytes | None, bytes | None]],
    *,
    producer: int = -1,
    timestamp: int = HOUR_MS,
) -> bytes:
    """Return a batch of records with these keys and values."""

    def field(data: bytes | None) -> bytes:
        return varint(-1) if data is None else varint(len(data)) + data

    body = b""
    for delta, (key, value) in enumerate(items):
        record = bytes((0, 0)) + varint(delta) + field(key) + field(value) + varint(0)
        body += varint(len(record)) + record
    header = BatchHeader(
        base_offset=base,
        last_offset_delta=len(items) - 1,
        count=len(items),
        base_timestamp=timestamp,
        max_timestamp=timestamp,
        attributes=TRANSACTIONAL_BIT if producer >= 0 else 0,
        leader_epoch=0,
        producer_id=producer,
        producer_epoch=0 if producer >= 0 else -1,
        base_sequence=0 if producer >= 0 else -1,
    )
    return header.pack(body)


def marker(offset: int, producer: int, *, commit: bool) -> bytes:
    """Return an end-of-transaction marker."""
    return end_txn_marker(
        commit=commit, offset=offset, timestamp=HOUR_MS, producer_id=producer, producer_epoch=0, coordinator_epoch=0
    )


def varint(number: int) -> bytes:
    value = (number << 1) ^ (number >> 31)
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def write_partition(log_dir: Path, name: str, segments: dict[int, bytes]) -> Path:
    """Write a partition directory with these segments (base offset -> bytes of the `.log`)."""
    folder = log_dir / name
    folder.mkdir(parents=True, exist_ok=True)
    for base, data in segments.items():
        (folder / f"{base:020}.log").write_bytes(data)
    return folder


def segment(folder: Path, base: int) -> Path:
    return folder / f"{base:020}.log"


FIRST = batch(0, [b"a", b"b"]) + batch(2, [b"c"])
SECOND = batch(3, [b"d", b"e", b"f"])


def append_to(file: Path, data: bytes) -> None:
    with file.open("ab") as out:
        out.write(data)


def end_of(view: KafkaView, topic: str = "t") -> int:
    """Return the log end of partition 0 after a refresh."""
    view.refresh([topic])
    return view.bounds(topic)[0].log_end


def plan(view: KafkaView, start: int, end: int, isolation: str = READ_UNCOMMITTED) -> ReadPart:
    """Return a part of t-0."""
    (part,) = view.plan([OffsetRange("t", 0, start, end)], isolation)
    return part


def offsets_of(part: ReadPart) -> list[int]:
    return offsets([record for found in part.read(COLUMNS) for record in records(found)])
