"""Records of a consumer one by one, as objects of Python: for programs that take a record at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import Any

import pyarrow as pa

CHUNK_RECORDS = 500
"""Records that are made at once, between two looks at the group: Kafka's `max.poll.records`."""


@dataclass(slots=True)
class ConsumerRecord:
    """A record, with the fields that kafka-python's has.

    Columns that the consumer does not read are None. `timestamp` is ms since 1970; `timestamp_type` 0 is of the
    producer, 1 of the log; `headers` are pairs of a text and bytes.
    """

    topic: str
    partition: int
    offset: int
    timestamp: int | None
    timestamp_type: int | None
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes | None]] | None


def records_of(batch: pa.RecordBatch) -> Iterator[ConsumerRecord]:
    """Yield the rows of a batch. Its columns are converted at once."""
    return map(
        ConsumerRecord,
        *(_values(batch, name) for name in ("topic", "partition", "offset", "timestamp", "timestampType")),
        *(_values(batch, name) for name in ("key", "value", "headers")),
    )


def _values(batch: pa.RecordBatch, name: str) -> Iterator[Any]:
    if name not in batch.schema.names:
        return repeat(None, batch.num_rows)
    column = batch.column(name)
    if name == "timestamp":
        column = column.cast(pa.int64())
    elif name == "headers":
        if column.null_count == len(column):
            return repeat((), batch.num_rows)
        return ([(header["key"], header["value"]) for header in row or ()] for row in column.to_pylist())
    return iter(column.to_pylist())
