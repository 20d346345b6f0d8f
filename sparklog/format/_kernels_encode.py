"""Kernels from Arrow buffers to record bytes.

Rows are gathered in `order` straight from the Arrow buffers into finished records; the 61 bytes before each batch's
records are left free for its header. Bounds: `upper_bound` has measured the same rows before, and the caller has
allocated that.

A column is five arguments: offsets (bytes of int32 or int64), `wide` (1: int64), data, validity bits (empty: no nulls)
and the array's own offset in elements. A missing column has no offsets: all its cells are null.
"""

from __future__ import annotations

from typing import Any

from numba import types

from sparklog.format._kernels_memory import (
    BYTES,
    BYTES_IN,
    INT64,
    INT64_IN,
    copy,
    helper,
    kernel,
    load_i32,
    load_i64,
    load_u8,
    prefetch,
    store_u8,
)

HEADER_BYTES = 61
MAX_OVERHEAD = 36
"""Bytes of one record besides key, value and headers, all varints at their longest."""
MAX_HEADER_OVERHEAD = 10
AHEAD = 8
"""Rows to prefetch: rows of one partition lie apart, so the hardware does not foresee them."""

# Places in the state array.
BATCHES = 0
BYTES_WRITTEN = 1
NULL_KEYS = 2
ERROR_ROW = 3
LARGEST_RECORD = 4
STATE_SIZE = 5

OK = 0
NULL_HEADER = 1
TOO_LARGE = 2

COLUMN = (BYTES_IN, types.int64, BYTES_IN, BYTES_IN, types.int64)
INT32_MAX = 2**31 - 1


@helper
def is_valid(validity: Any, index: int) -> bool:
    return len(validity) == 0 or (load_u8(validity, index >> 3) >> (index & 7)) & 1 == 1


@helper
def cell(offsets: Any, wide: int, validity: Any, index: int) -> tuple[int, int]:
    """Length (-1: null) and start of a cell; `index` counts the array's own offset in."""
    if len(offsets) == 0 or not is_valid(validity, index):
        return -1, 0
    if wide:
        start = load_i64(offsets, 8 * index)
        return load_i64(offsets, 8 * index + 8) - start, start
    start = load_i32(offsets, 4 * index)
    return load_i32(offsets, 4 * index + 4) - start, start


@helper
def zigzag(value: int) -> int:
    return (value << 1) ^ (value >> 63)


@helper
def varint_size(unsigned: int) -> int:
    """Bytes of a zig-zag encoded value (as int64 bits: negative ones have the top bit set)."""
    if unsigned < 0:
        return 10
    size = 1
    while unsigned >= 0x80:
        unsigned >>= 7
        size += 1
    return size


@helper
def write_varint(out: Any, position: int, unsigned: int) -> int:
    """Write zig-zag encoded bits and return the position after them."""
    while unsigned < 0 or unsigned >= 0x80:
        store_u8(out, position, (unsigned & 0x7F) | 0x80)
        unsigned = (unsigned >> 7) & 0x01FFFFFFFFFFFFFF
        position += 1
    store_u8(out, position, unsigned)
    return position + 1


@helper
def write_bytes(out: Any, position: int, data: Any, start: int, length: int) -> int:
    """Length (-1: null) and bytes of a cell."""
    position = write_varint(out, position, zigzag(length))
    if length > 0:
        copy(out, position, data, start, length)
        position += length
    return position


@helper
def cell_size(length: int) -> int:
    return varint_size(zigzag(length)) + max(length, 0)


@helper
def headers_size(
    first: int, count: int, key_offsets: Any, key_wide: int, key_valid: Any, key_at: int, value_offsets: Any,
    value_wide: int, value_valid: Any, value_at: int, struct_valid: Any, struct_at: int,
) -> int:  # fmt: skip
    """Bytes of `count` headers from entry `first`, without the count; -1 if a header or its key is null."""
    size = 0
    for entry in range(first, first + count):
        key_length, _ = cell(key_offsets, key_wide, key_valid, key_at + entry)
        if key_length < 0 or not is_valid(struct_valid, struct_at + entry):
            return -1
        value_length, _ = cell(value_offsets, value_wide, value_valid, value_at + entry)
        size += cell_size(key_length) + cell_size(value_length)
    return size


@helper
def record_size(time: int, delta: int, key_length: int, value_length: int, headers: int, headers_bytes: int) -> int:
    """Bytes of a record without its length."""
    return (
        1
        + varint_size(zigzag(time))
        + varint_size(zigzag(delta))
        + cell_size(key_length)
        + cell_size(value_length)
        + varint_size(zigzag(headers))
        + headers_bytes
    )


@kernel(types.int64(INT64_IN, types.int64, *COLUMN, *COLUMN, *COLUMN, *COLUMN, *COLUMN, BYTES_IN, types.int64, INT64))
def upper_bound(
    order: Any, rows: int,
    key_offsets: Any, key_wide: int, key_data: Any, key_valid: Any, key_at: int,
    value_offsets: Any, value_wide: int, value_data: Any, value_valid: Any, value_at: int,
    list_offsets: Any, list_wide: int, list_data: Any, list_valid: Any, list_at: int,
    hkey_offsets: Any, hkey_wide: int, hkey_data: Any, hkey_valid: Any, hkey_at: int,
    hvalue_offsets: Any, hvalue_wide: int, hvalue_data: Any, hvalue_valid: Any, hvalue_at: int,
    struct_valid: Any, struct_at: int, state: Any,
) -> int:  # fmt: skip
    """Bytes that the records of these rows can take at most, batch headers left out; -1 for a null header key."""
    total = 0
    for i in range(rows):
        row = order[i] if len(order) else i
        key_length, _ = cell(key_offsets, key_wide, key_valid, key_at + row)
        value_length, _ = cell(value_offsets, value_wide, value_valid, value_at + row)
        size = MAX_OVERHEAD + max(key_length, 0) + max(value_length, 0)
        count, first = cell(list_offsets, list_wide, list_valid, list_at + row)
        if count > 0:
            headers_bytes = headers_size(
                first, count, hkey_offsets, hkey_wide, hkey_valid, hkey_at, hvalue_offsets, hvalue_wide, hvalue_valid,
                hvalue_at, struct_valid, struct_at,
            )  # fmt: skip
            if headers_bytes < 0:
                state[ERROR_ROW] = row
                return -1
            size += headers_bytes
        total += size
        if size > state[LARGEST_RECORD]:
            state[LARGEST_RECORD] = size
            state[ERROR_ROW] = row
    return total


@kernel(
    types.int64(
        INT64_IN, types.int64, INT64_IN, *COLUMN, *COLUMN, *COLUMN, *COLUMN, *COLUMN, BYTES_IN, types.int64,
        types.int64, types.int64, types.int64, INT64_IN, BYTES, INT64, INT64, INT64, INT64, INT64, INT64,
    )
)  # fmt: skip
def encode_records(
    order: Any, rows: int, times: Any,
    key_offsets: Any, key_wide: int, key_data: Any, key_valid: Any, key_at: int,
    value_offsets: Any, value_wide: int, value_data: Any, value_valid: Any, value_at: int,
    list_offsets: Any, list_wide: int, list_data: Any, list_valid: Any, list_at: int,
    hkey_offsets: Any, hkey_wide: int, hkey_data: Any, hkey_valid: Any, hkey_at: int,
    hvalue_offsets: Any, hvalue_wide: int, hvalue_data: Any, hvalue_valid: Any, hvalue_at: int,
    struct_valid: Any, struct_at: int, target: int, given_base: int, base_time: int, deltas: Any,
    out: Any, batch_at: Any, batch_size: Any, batch_rows: Any, batch_base: Any, batch_max: Any, state: Any,
) -> int:  # fmt: skip
    """Write the rows as batches of at most `target` bytes (a larger record has its own batch); returns the bytes
    written.

    Each batch's base time is its first record's, unless `given_base` (then it is `base_time`). `deltas`: offset deltas
    of the rows; empty: counted from 0 in each batch. The batch arrays receive place, size, rows, base and largest time.
    """
    batch = -1
    position = batch_start = count = base = largest = 0
    for i in range(rows):
        if len(order):
            row = order[i]
            if i + AHEAD < rows:
                _, ahead = cell(value_offsets, value_wide, value_valid, value_at + order[i + AHEAD])
                prefetch(value_data, ahead)
                prefetch(value_data, ahead + 64)
        else:
            row = i
        time = times[row]
        key_length, key_start = cell(key_offsets, key_wide, key_valid, key_at + row)
        value_length, value_start = cell(value_offsets, value_wide, value_valid, value_at + row)
        headers, first = cell(list_offsets, list_wide, list_valid, list_at + row)
        headers = max(headers, 0)
        headers_bytes = 0
        if headers > 0:
            headers_bytes = headers_size(
                first, headers, hkey_offsets, hkey_wide, hkey_valid, hkey_at, hvalue_offsets, hvalue_wide, hvalue_valid,
                hvalue_at, struct_valid, struct_at,
            )  # fmt: skip
        delta = deltas[i] if len(deltas) else count
        size = record_size(time - base, delta, key_length, value_length, headers, headers_bytes)
        if batch < 0 or (position - batch_start + varint_size(zigzag(size)) + size > target and count > 0):
            if batch >= 0:
                batch_size[batch], batch_rows[batch], batch_max[batch] = position - batch_start, count, largest
            batch += 1
            base = base_time if given_base else time
            batch_at[batch], batch_base[batch] = position, base
            batch_start = position
            position += HEADER_BYTES
            count, largest = 0, time
            delta = deltas[i] if len(deltas) else 0
            size = record_size(time - base, delta, key_length, value_length, headers, headers_bytes)
        largest = max(largest, time)
        count += 1
        if key_length < 0:
            state[NULL_KEYS] += 1
        position = write_varint(out, position, zigzag(size))
        store_u8(out, position, 0)
        position = write_varint(out, position + 1, zigzag(time - base))
        position = write_varint(out, position, zigzag(delta))
        position = write_bytes(out, position, key_data, key_start, key_length)
        position = write_bytes(out, position, value_data, value_start, value_length)
        position = write_varint(out, position, zigzag(headers))
        for entry in range(first, first + headers):
            length, start = cell(hkey_offsets, hkey_wide, hkey_valid, hkey_at + entry)
            position = write_bytes(out, position, hkey_data, start, length)
            length, start = cell(hvalue_offsets, hvalue_wide, hvalue_valid, hvalue_at + entry)
            position = write_bytes(out, position, hvalue_data, start, length)
    if batch >= 0:
        batch_size[batch], batch_rows[batch], batch_max[batch] = position - batch_start, count, largest
    state[BATCHES] = batch + 1
    state[BYTES_WRITTEN] = position
    return position
