"""Convert the rows of an append to the few Arrow types that the encoder accepts, and assign their partitions.

The following columns are accepted. Only `value` is required:

| column      | types                                                      | becomes                               |
|-------------|------------------------------------------------------------|---------------------------------------|
| `key`       | binary, string: any kind of both; null                     | binary or large_binary; None: all null|
| `value`     | the same                                                   | the same                              |
| `headers`   | list or large_list of struct<key: string, value: binary>   | `HEADERS_TYPE`; None: all null        |
| `timestamp` | timestamp of any unit and zone (none: UTC), int64 ms, null | int64[n] ms, floored; null: the clock |
| `partition` | any integer, null                                          | the same; None: all null              |

Only types are compared, not schemas, because Spark adds its session time zone and nested `not null`s. The code uses
Arrow's buffers, because Arrow's functions would load `pyarrow.compute`, and with it pandas, into each task.

Partitions are assigned as in Kafka's producer: by the explicit partition, or else by the key (murmur2; an empty key is
a key). Rows without a key are assigned to the *sticky* partition, which changes after about one record batch of such
rows. The first sticky partition depends on a seed. If all tasks started with partition 0, all small micro-batches would
be written to partition 0.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from sparklog.errors import BadRequest
from sparklog.format.arrow_numpy import fixed_values, valid_rows
from sparklog.log.state.record_schema import HEADERS_TYPE

Int32s = npt.NDArray[np.int32]
Int64s = npt.NDArray[np.int64]

ROW_COLUMNS = ("key", "value", "headers", "timestamp", "partition")
JOINED_BYTES = 1 << 20
"""Consecutive batches are joined until they have this size."""
_PER_UNIT = {"us": 1_000, "ns": 1_000_000}


@dataclass(frozen=True, slots=True)
class Rows:
    """`n` rows to encode. A column that is None consists of nulls."""

    n: int
    key: pa.Array | None
    value: pa.Array | None
    headers: pa.Array | None
    timestamp: Int64s
    partition: pa.Array | None


def check_columns(schema: pa.Schema) -> list[str]:
    """Return the accepted columns in `schema`.

    Raises `BadRequest` if the value column is missing, a column is duplicate, or a type is wrong.
    """
    names = [name for name in ROW_COLUMNS if name in schema.names]
    if "value" not in names:
        raise BadRequest(f"expected a column value (binary or string), found {', '.join(schema.names) or 'none'}")
    for name in names:
        count = len(schema.get_all_field_indices(name))
        if count > 1:
            raise BadRequest(f"expected one column {name}, found {count}; rename the other columns")
        kind, (is_accepted, expected) = schema.field(name).type, _ACCEPTED[name]
        if not is_accepted(kind):
            raise BadRequest(f"expected column {name} to be {expected}, found {kind}; cast the column")
    return names


def checked_chunks(batch: pa.RecordBatch, max_bytes: int) -> Iterator[pa.RecordBatch]:
    """Split a batch into chunks of up to `max_bytes`, or of one row. Raises `BadRequest` like `check_columns`."""
    batch = batch.select(check_columns(batch.schema))
    return halved(batch, max_bytes) if batch.num_rows else iter(())


def halved(batch: pa.RecordBatch, max_bytes: int) -> Iterator[pa.RecordBatch]:
    """Split a batch into halves repeatedly, until each part has up to `max_bytes` or one row."""
    if batch.nbytes <= max_bytes or batch.num_rows == 1:
        yield batch
        return
    half = batch.num_rows // 2
    yield from halved(batch.slice(0, half), max_bytes)
    yield from halved(batch.slice(half), max_bytes)


def rows_of(batches: Sequence[pa.RecordBatch], now_ms: int, *, allow_negative_timestamps: bool = False) -> Rows:
    """Return the rows of checked batches. Null timestamps become `now_ms`.

    Raises `BadRequest` if a header key is null, or if a timestamp is negative and `allow_negative_timestamps` is false.
    """
    key, value, headers, timestamp, partition = ([_column(batch, name) for batch in batches] for name in ROW_COLUMNS)
    times = [_milliseconds(array, now_ms, allow_negative=allow_negative_timestamps) for array in timestamp]
    return Rows(
        n=sum(batch.num_rows for batch in batches),
        key=_joined([_as_binary(array) for array in key], pa.large_binary()),
        value=_joined([_as_binary(array) for array in value], pa.large_binary()),
        headers=_joined([_as_headers(array) for array in headers], HEADERS_TYPE),
        timestamp=times[0] if len(times) == 1 else np.concatenate(times),
        partition=_joined(partition, pa.int64()),
    )


def _is_bytes(kind: pa.DataType) -> bool:
    types = pa.types
    plain = (types.is_binary, types.is_string, types.is_large_binary, types.is_large_string, types.is_null)
    other = (types.is_fixed_size_binary, types.is_binary_view, types.is_string_view)
    return any(is_type(kind) for is_type in (*plain, *other))


def _is_headers(kind: pa.DataType) -> bool:
    if pa.types.is_null(kind):
        return True
    if not (pa.types.is_list(kind) or pa.types.is_large_list(kind)) or not pa.types.is_struct(kind.value_type):
        return False
    item = kind.value_type
    names = [item.field(i).name for i in range(item.num_fields)]
    return bool(names == ["key", "value"] and all(_is_bytes(item.field(i).type) for i in range(2)))


_ACCEPTED: dict[str, tuple[Callable[[pa.DataType], bool], str]] = {
    "key": (_is_bytes, "binary or string"),
    "value": (_is_bytes, "binary or string"),
    "headers": (_is_headers, "array<struct<key string, value binary>>"),
    "timestamp": (
        lambda kind: pa.types.is_timestamp(kind) or pa.types.is_int64(kind) or pa.types.is_null(kind),
        "a timestamp or int64 milliseconds",
    ),
    "partition": (lambda kind: pa.types.is_integer(kind) or pa.types.is_null(kind), "an integer"),
}


def _column(batch: pa.RecordBatch, name: str) -> pa.Array:
    column = batch.schema.get_field_index(name)
    return pa.nulls(batch.num_rows) if column < 0 else batch.column(column)


def _joined(arrays: list[pa.Array], common: pa.DataType) -> pa.Array | None:
    """Join arrays.

    If all arrays have the same type, the type does not change. Otherwise, the arrays are cast to `common`. Return None
    if every row is null.
    """
    if all(array.null_count == len(array) for array in arrays):
        return None
    if len({array.type for array in arrays}) > 1:
        arrays = [array.cast(common) for array in arrays]
    return arrays[0] if len(arrays) == 1 else pa.concat_arrays(arrays)


def _as_binary(array: pa.Array) -> pa.Array:
    # A string array is viewed as its UTF-8 bytes, without a copy.
    if pa.types.is_string(array.type):
        return array.view(pa.binary())
    if pa.types.is_large_string(array.type):
        return array.view(pa.large_binary())
    binary = pa.types.is_binary(array.type) or pa.types.is_large_binary(array.type) or pa.types.is_null(array.type)
    return array if binary else array.cast(pa.large_binary())


def _as_headers(array: pa.Array) -> pa.Array:
    """Convert to `HEADERS_TYPE`, and check for null header keys. Null lists remain null."""
    if pa.types.is_null(array.type) or array.null_count == len(array):
        return array
    wide = pa.types.is_large_list(array.type)
    edges = np.frombuffer(array.buffers()[1], np.int64 if wide else np.int32)[array.offset :][: len(array) + 1]
    valid = valid_rows(array)
    counts = np.where(valid, np.diff(edges), 0)
    first, last = int(edges[0]), int(edges[-1])
    # A null list may still have items, which `flatten` excludes.
    items = array.values.slice(first, last - first) if counts.sum() == last - first else array.flatten()
    keys, values = items.field(0), items.field(1)
    if items.null_count or keys.null_count:
        raise BadRequest(
            "expected every header to have a key, found a null header key; remove the header or set its key"
        )
    if array.type == HEADERS_TYPE:
        return array
    # Build a new array, because casts between nested types are restrictive about nullability.
    offsets = np.zeros(len(array) + 1, np.int32)
    np.cumsum(counts, out=offsets[1:])
    flat = pa.StructArray.from_arrays([_text(keys), _narrow(values)], fields=list(HEADERS_TYPE.value_type))
    bits = pa.py_buffer(np.packbits(valid, bitorder="little")) if array.null_count else None
    return pa.ListArray.from_buffers(HEADERS_TYPE, len(array), [bits, pa.py_buffer(offsets)], children=[flat])


def _text(keys: pa.Array) -> pa.Array:
    narrow = _narrow(keys)
    return narrow if pa.types.is_string(narrow.type) else narrow.cast(pa.string())


def _narrow(array: pa.Array) -> pa.Array:
    if pa.types.is_binary(array.type) or pa.types.is_string(array.type):
        return array
    return array.cast(pa.string() if pa.types.is_large_string(array.type) else pa.binary())


def _milliseconds(array: pa.Array, now_ms: int, *, allow_negative: bool) -> Int64s:
    if array.null_count == len(array):
        return np.full(len(array), now_ms, np.int64)
    unit = array.type.unit if pa.types.is_timestamp(array.type) else "ms"
    valid = valid_rows(array) if array.null_count else None
    values: Int64s = fixed_values(array, np.int64)
    if valid is not None:
        values = np.where(valid, values, 0)
    if len(values) and int(values.min()) < 0 and not allow_negative:
        raise BadRequest(
            f"expected timestamps of 1970 or later, found {int(values.min())} ({array.type}); correct the timestamp"
        )
    if unit == "s":
        if int(values.max()) > np.iinfo(np.int64).max // 1_000:
            raise BadRequest(
                f"timestamp {int(values.max())} s exceeds the range of 64-bit milliseconds; correct the timestamp"
            )
        values = values * 1_000
    elif unit in _PER_UNIT:
        values = values // _PER_UNIT[unit]
    return values if valid is None else np.where(valid, values, now_ms)


def sizes_of(column: pa.Array | None, n: int) -> npt.NDArray[np.int64]:
    """Return the size of each item in bytes, as int64[n]. The size of a null item is 0."""
    if column is None or n == 0 or column.null_count == n:
        return np.zeros(n, np.int64)
    kind = column.type
    wide = pa.types.is_large_binary(kind) or pa.types.is_large_string(kind)
    if not wide and not pa.types.is_binary(kind) and not pa.types.is_string(kind):
        return sizes_of(column.cast(pa.large_binary()), n)
    offsets = np.frombuffer(column.buffers()[1], np.int64 if wide else np.int32)
    sizes = np.diff(offsets[column.offset : column.offset + n + 1]).astype(np.int64)
    return np.where(valid_rows(column), sizes, 0) if column.null_count else sizes


STICKY_BYTES = 512 << 10
ROW_OVERHEAD_BYTES = 16
"""The number of bytes that is added to the size of each row when the sticky partition is chosen, so that rows with
empty values are also distributed.
"""


def sticky_seed(*parts: object) -> int:
    """Return a seed from values that identify a task's write, such as the batch id and the task id."""
    text = "\0".join(str(part) for part in parts).encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big") >> 1


class Partitioner:
    """Assigns rows of successive batches to `partitions` partitions, and remembers the sticky partition."""

    def __init__(self, partitions: int, *, seed: int, sticky_bytes: int = STICKY_BYTES) -> None:
        if partitions < 1:
            raise BadRequest(f"expected at least one partition, found {partitions}")
        self._partitions = partitions
        self._sticky = seed % partitions
        self._sticky_bytes = max(1, sticky_bytes)
        self._filled = 0

    def assign(self, rows: int, *, key: pa.Array | None, value: pa.Array | None, partition: pa.Array | None) -> Int32s:
        """Return the partitions of the rows as int32[rows]. A column that is None consists of nulls.

        Raises `BadRequest` if an explicit partition does not exist.
        """
        explicit = None if partition is None else self._explicit(partition)
        if explicit is not None and partition is not None and partition.null_count == 0:
            return explicit
        if self._partitions == 1:
            return np.zeros(rows, np.int32)
        out = self._keyed(rows, key, value)
        if explicit is None or partition is None:
            return out
        return np.where(valid_rows(partition), explicit, out)

    def _explicit(self, partition: pa.Array) -> Int32s | None:
        if pa.types.is_null(partition.type) or partition.null_count == len(partition):
            return None
        if not pa.types.is_integer(partition.type):
            raise BadRequest(f"expected an integer partition column, found {partition.type}; cast the column to int")
        values = fixed_values(partition, str(partition.type))
        if partition.null_count:
            values = np.where(valid_rows(partition), values, 0)
        if len(values) and (int(values.min()) < 0 or int(values.max()) >= self._partitions):
            wrong = int(values.min()) if int(values.min()) < 0 else int(values.max())
            last = self._partitions - 1
            raise BadRequest(
                f"expected partitions 0 to {last}, found partition {wrong}; correct the column or add partitions"
            )
        narrow: Int32s = values.astype(np.int32)
        return narrow

    def _keyed(self, rows: int, key: pa.Array | None, value: pa.Array | None) -> Int32s:
        from sparklog.format.key_hash import partition_for_key

        if key is None or key.null_count == rows:
            return self._sticky_rows(sizes_of(value, rows))
        out: Int32s = partition_for_key(key, self._partitions)
        if key.null_count:
            keyless = ~valid_rows(key)
            out = np.array(out)
            out[keyless] = self._sticky_rows(sizes_of(value, rows)[keyless])
        return out

    def _sticky_rows(self, lengths: Int64s) -> Int32s:
        """Return the partitions of the next rows without a key. `lengths` contains the sizes of these rows.

        Each chunk goes to one partition.
        """
        ends = np.cumsum(lengths + ROW_OVERHEAD_BYTES) + self._filled
        begins = np.concatenate([[self._filled], ends[:-1]])
        # A row belongs to the chunk in which it starts, so the row that fills a chunk is its last row, as in Kafka's
        # batches.
        chunk = begins // self._sticky_bytes
        out = ((self._sticky + chunk) % self._partitions).astype(np.int32)
        if len(ends):
            moved, self._filled = divmod(int(ends[-1]), self._sticky_bytes)
            self._sticky = (self._sticky + moved) % self._partitions
        return out
