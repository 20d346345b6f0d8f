"""Conversion of records to rows in Python tasks of `to-delta`, for formats that Spark's functions do not decode."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from sparklog.datasource.decoded_columns import spark_kind
from sparklog.tables.rows import RowDecoder

TYPES = {"key": pa.binary(), "value": pa.binary(), "timestamp": pa.timestamp("ms", "UTC")}
"""The types that a decoder expects, of columns that Spark represents in several ways."""


def row_type(decoder: RowDecoder) -> pa.StructType:
    """Return the type of a row, which corresponds to a type of Spark."""
    return spark_kind(pa.struct(list(decoder.schema)))


def decode_batches(
    decoder: RowDecoder, record: tuple[str, ...], batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Yield the columns `record`, `row`, `deleted` and `reason` for batches of records. `record` contains the names of
    the columns of the struct `record`.
    """
    kind = row_type(decoder)
    for batch in batches:
        records = pa.RecordBatch.from_pydict(
            {name: batch[name].cast(TYPES.get(name, batch[name].type), safe=False) for name in decoder.columns}
        )
        decoded = decoder.decode(records)
        is_bad = np.zeros(batch.num_rows, np.bool_)
        is_bad[list(decoded.reasons)] = True
        rows = [decoded.rows[field.name].cast(field.type, safe=False) for field in kind]
        deleted = pa.repeat(pa.scalar(False), batch.num_rows) if decoded.deleted is None else decoded.deleted
        yield pa.RecordBatch.from_pydict(
            {
                "record": pa.StructArray.from_arrays([batch[name] for name in record], list(record)),
                "row": pa.StructArray.from_arrays(rows, fields=list(kind), mask=pa.array(is_bad)),
                "deleted": deleted,
                "reason": pa.array([decoded.reasons.get(row) for row in range(batch.num_rows)], pa.string()),
            }
        )
