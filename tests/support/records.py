"""Records to append, and records that were read."""

from __future__ import annotations

import random

import numpy as np
import pyarrow as pa

from sparklog.log.state.record_schema import RECORD_SCHEMA
from sparklog.log.write.append_target import WriteOptions
from sparklog.testing.world import START_MS


def rows(*values: str | bytes, partition: int | None = None) -> pa.Table:
    """Records with these values, and no keys."""
    table = pa.table({"value": [value.encode() if isinstance(value, str) else value for value in values]})
    if partition is not None:
        table = table.append_column("partition", pa.array([partition] * len(values), pa.int32()))
    return table


def keyed_rows(*pairs: tuple[str | bytes | None, str | bytes | None], partition: int | None = None) -> pa.Table:
    """Records with these keys and values; None: null."""
    keys, values = zip(*pairs, strict=True)
    columns = {"key": pa.array(keys).cast(pa.binary()), "value": pa.array(values).cast(pa.binary())}
    if partition is not None:
        columns["partition"] = pa.array([partition] * len(pairs), pa.int32())
    return pa.table(columns)


def random_rows(
    n: int, *, keys: int | None = 50, value_bytes: int = 40, seed: int = 0, first: int = 0, times: bool = True
) -> pa.Table:
    """`n` rows whose values are distinct and random enough not to be compressed away; `keys` None: all keys null."""
    rng = random.Random(seed)
    body = rng.randbytes(n * value_bytes)
    values = [b"%08d-" % (first + i) + body[i * value_bytes : (i + 1) * value_bytes] for i in range(n)]
    key = [None if keys is None else b"k%d" % rng.randrange(keys) for _ in range(n)]
    columns = {"key": pa.array(key, pa.binary()), "value": pa.array(values, pa.binary())}
    if times:
        columns["timestamp"] = pa.array(np.arange(n, dtype=np.int64) + START_MS + first, pa.timestamp("ms", tz="UTC"))
    return pa.table(columns)


def by_partition(table: pa.Table, column: str = "value") -> dict[int, list[object]]:
    """Column values of each partition, in the order they were read."""
    found: dict[int, list[object]] = {}
    for partition, value in zip(table["partition"].to_pylist(), table[column].to_pylist(), strict=True):
        found.setdefault(partition, []).append(value)
    return found


def small(codec: str = "none", **changes: int) -> WriteOptions:
    """Options that make small batches, buffers or files."""
    return WriteOptions(codec=codec, **changes)


def check_schema(table: pa.Table, columns: tuple[str, ...]) -> None:
    assert table.schema == pa.schema([RECORD_SCHEMA.field(name) for name in columns])
    table.validate(full=True)
