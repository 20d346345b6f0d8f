"""Columns of record batches that both `dump-log` and `inspect` use."""

from __future__ import annotations

import numpy as np

from sparklog.format.batch_walk import Window
from sparklog.format.record_batch import MAGIC, Int64Array


def header_columns(window: Window) -> dict[str, Int64Array]:
    """Return the fields of the batch headers in a window as int64 arrays. `delete_horizon` is -1 if it is not set.

    The arrays may be views of the headers and must not be modified.
    """
    headers = window.headers
    columns = {
        "base_offset": headers.base_offset,
        "last_offset": headers.last_offset,
        "records": headers.count,
        "base_sequence": headers.base_sequence,
        "last_sequence": headers.last_sequence,
        "producer_id": headers.producer_id,
        "producer_epoch": headers.producer_epoch,
        "leader_epoch": headers.leader_epoch,
        "transactional": headers.is_transactional,
        "control": headers.is_control,
        "delete_horizon": np.where(headers.has_delete_horizon, headers.base_timestamp, -1),
        "position": headers.position + window.start,
        "timestamp_type": headers.timestamp_type,
        "max_timestamp": headers.max_timestamp,
        "size": headers.size,
        "magic": np.full(len(headers), MAGIC) if headers.magic is None else headers.magic,
        "codec": headers.codec,
        "crc": headers.crc,
    }
    return {name: np.asarray(values, np.int64) for name, values in columns.items()}


def per_batch(ufunc: np.ufunc, values: Int64Array, rows: Int64Array, none: int) -> Int64Array:
    """Reduce the values of each batch to one value. `rows` contains the number of values in each batch. If a batch does
    not have values, the result is `none`.
    """
    reduced = np.full(len(rows), none, np.int64)
    has_values = rows > 0
    if has_values.any():
        starts = np.cumsum(rows) - rows
        reduced[has_values] = ufunc.reduceat(values, starts[has_values])
    return reduced
