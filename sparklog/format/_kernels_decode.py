"""Kernels from record bytes to Arrow buffers.

Bounds: every read lies in `[start, stop)` of its batch, which the caller has checked against the buffer; every write
lies in what `room` in decode.py has provided: at most `count` rows and `stop - start` bytes per batch. A varint that
runs over its record yields position `BAD`, which no later check passes, so one comparison per record catches all of
them before anything is copied.
"""

from __future__ import annotations

from typing import Any

from numba import types

from sparklog.format._kernels_memory import (
    BYTES,
    BYTES_IN,
    INT32,
    INT64,
    INT64_IN,
    copy,
    helper,
    kernel,
    load_u8,
    store_u8,
)

BAD = 1 << 62
INT32_MAX = 2**31 - 1

# Places in the int64 state array that kernels and decode.py share.
ROWS = 0
KEY_BYTES = 1
VALUE_BYTES = 2
KEY_NULLS = 3
VALUE_NULLS = 4
HEADER_ROWS = 5
HEADER_KEY_BYTES = 6
HEADER_VALUE_BYTES = 7
HEADER_NULLS = 8
"""Records without headers: null lists."""
HEADER_VALUE_NULLS = 9
ERROR_BATCH = 10
ERROR_POSITION = 11
ERROR_OFFSET = 12
STATE_SIZE = 13

OK = 0
LENGTH = 1
FIELDS = 2
ORDER = 3
REMAINING = 4
TOO_LARGE = 5


@helper
def read_varint(data: Any, position: int, end: int) -> tuple[int, int]:
    """Zig-zag int32 and the position after it; `BAD` if it is cut off or has a sixth byte."""
    if position >= end:
        return 0, BAD
    byte = load_u8(data, position)
    position += 1
    value = byte & 0x7F
    shift = 7
    while byte >= 0x80:
        if position >= end or shift > 28:
            return 0, BAD
        byte = load_u8(data, position)
        position += 1
        value |= (byte & 0x7F) << shift
        shift += 7
    value &= 0xFFFFFFFF
    return (value >> 1) ^ -(value & 1), position


@helper
def read_varlong(data: Any, position: int, end: int) -> tuple[int, int]:
    """Zig-zag int64 and the position after it; `BAD` if it is cut off or has an eleventh byte."""
    if position >= end:
        return 0, BAD
    byte = load_u8(data, position)
    position += 1
    value = byte & 0x7F
    shift = 7
    while byte >= 0x80:
        if position >= end or shift > 63:
            return 0, BAD
        byte = load_u8(data, position)
        position += 1
        value |= (byte & 0x7F) << shift
        shift += 7
    return ((value >> 1) & 0x7FFFFFFFFFFFFFFF) ^ -(value & 1), position


@helper
def clear_bit(bitmap: Any, index: int) -> None:
    """Mark a row as null."""
    store_u8(bitmap, index >> 3, load_u8(bitmap, index >> 3) & ~(1 << (index & 7)))


@helper
def skip_headers(data: Any, position: int, end: int, count: int, totals: Any) -> int:
    """Position after `count` headers, `BAD` if they do not fit; adds their key and value bytes to `totals`."""
    if count < 0 or count > end - position:
        return BAD
    for _ in range(count):
        length, position = read_varint(data, position, end)
        if length < 0 or length > end - position:
            return BAD
        totals[HEADER_KEY_BYTES] += length
        position += length
        length, position = read_varint(data, position, end)
        if length > 0:
            if length > end - position:
                return BAD
            totals[HEADER_VALUE_BYTES] += length
            position += length
    return position


@helper
def put(
    data: Any,
    position: int,
    length: int,
    row: int,
    filled: int,
    offsets: Any,
    to: Any,
    valid: Any,
    nulls: Any,
    which: int,
) -> int:
    """Append one binary cell (null if `length` < 0) and return the bytes filled."""
    if length > 0:
        copy(to, filled, data, position, length)
        filled += length
    elif length < 0:
        clear_bit(valid, row)
        nulls[which] += 1
    offsets[row + 1] = filled
    return filled


@helper
def read_record(data: Any, position: int, end: int, totals: Any) -> tuple[int, int, int, int, int, int, int, int, int]:
    """The fields of one record that ends at `end`: time delta, offset delta, key length and place, value length and
    place, headers and their place, and where the fields end (anything but `end` is an error)."""
    time, position = read_varlong(data, position + 1, end)
    delta, position = read_varint(data, position, end)
    key_length, position = read_varint(data, position, end)
    key_at = position
    position += max(key_length, 0)
    value_length, position = read_varint(data, position, end)
    value_at = position
    position += max(value_length, 0)
    headers, position = read_varint(data, position, end)
    headers_at = position
    if headers != 0:
        position = skip_headers(data, position, end, headers, totals)
    return time, delta, key_length, key_at, value_length, value_at, headers, headers_at, position


@helper
def fail(state: Any, batch: int, position: int, offset: int, code: int) -> int:
    """Note where it happened."""
    state[ERROR_BATCH] = batch
    state[ERROR_POSITION] = position
    state[ERROR_OFFSET] = offset
    return code


@kernel(
    types.int64(
        BYTES_IN, INT64_IN, INT64_IN, INT64_IN, INT64_IN, INT64_IN, INT64_IN, INT64_IN, types.int64, types.int64,
        types.int64, INT64, INT64, INT32, BYTES, BYTES, INT32, BYTES, BYTES, INT32, BYTES, INT64, INT64, INT64,
    )
)  # fmt: skip
def decode_records(
    data: Any, start: Any, stop: Any, count: Any, base_offset: Any, base_time: Any, fixed_time: Any, last_delta: Any,
    first: int, limit: int, wanted: int, offsets: Any, times: Any, key_offsets: Any, keys: Any, key_valid: Any,
    value_offsets: Any, values: Any, value_valid: Any, list_offsets: Any, list_valid: Any, list_position: Any,
    emitted: Any, state: Any,
) -> int:  # fmt: skip
    """Append the records of all batches with `first <= offset < limit` to the columns; the error code, `OK` if none.

    `wanted`: bit 0 keys, 1 values, 2 headers. `fixed_time` is each record's time, or -2: base time and delta count.
    `list_position` receives, per row, where its headers start. `emitted`: rows per batch.
    """
    row = first_row = state[ROWS]
    key_bytes, value_bytes, header_rows = state[KEY_BYTES], state[VALUE_BYTES], state[HEADER_ROWS]
    for batch in range(len(start)):
        position, end, previous, row_before = start[batch], stop[batch], -1, row
        base, base_t, fixed, last = base_offset[batch], base_time[batch], fixed_time[batch], last_delta[batch]
        for _ in range(count[batch]):
            at = position
            length, position = read_varint(data, position, end)
            if length < 0 or length > end - position:
                return fail(state, batch, at, base + previous + 1, LENGTH)
            record_end = position + length
            time, delta, key_length, key_at, value_length, value_at, headers, headers_at, position = read_record(
                data, position, record_end, state
            )
            if position != record_end:
                return fail(state, batch, at, base + previous + 1, FIELDS)
            if delta <= previous or delta > last:
                return fail(state, batch, at, base + previous + 1, ORDER)
            previous = delta
            if base + delta < first or base + delta >= limit:
                continue
            if key_length > INT32_MAX - key_bytes or value_length > INT32_MAX - value_bytes:
                return fail(state, batch, at, base + delta, TOO_LARGE)
            offsets[row] = base + delta
            times[row] = base_t + time if fixed == -2 else fixed
            if wanted & 1:
                key_bytes = put(
                    data, key_at, key_length, row, key_bytes, key_offsets, keys, key_valid, state, KEY_NULLS
                )
            if wanted & 2:
                value_bytes = put(
                    data,
                    value_at,
                    value_length,
                    row,
                    value_bytes,
                    value_offsets,
                    values,
                    value_valid,
                    state,
                    VALUE_NULLS,
                )
            if wanted & 4:
                header_rows += headers
                list_offsets[row + 1] = header_rows
                list_position[row - first_row] = headers_at
                if headers == 0:
                    clear_bit(list_valid, row)
                    state[HEADER_NULLS] += 1
            row += 1
        if position != end and count[batch] > 0:
            return fail(state, batch, position, base + previous + 1, REMAINING)
        emitted[batch] = row - row_before
    state[ROWS], state[KEY_BYTES], state[VALUE_BYTES], state[HEADER_ROWS] = row, key_bytes, value_bytes, header_rows
    return OK


@kernel(
    types.void(
        BYTES_IN,
        types.int64,
        types.int64,
        INT32,
        INT64,
        INT32,
        BYTES,
        INT32,
        BYTES,
        BYTES,
        types.int64,
        types.int64,
        INT64,
    )
)
def decode_headers(
    data: Any, first_row: int, rows: int, list_offsets: Any, list_position: Any, key_offsets: Any, keys: Any,
    value_offsets: Any, values: Any, value_valid: Any, key_bytes: int, value_bytes: int, state: Any,
) -> None:  # fmt: skip
    """Append the headers of rows `[first_row, rows)`, which `decode_records` has checked, to the header columns."""
    end = len(data)
    for row in range(first_row, rows):
        position = list_position[row - first_row]
        for entry in range(list_offsets[row], list_offsets[row + 1]):
            length, position = read_varint(data, position, end)
            copy(keys, key_bytes, data, position, length)
            key_bytes += length
            key_offsets[entry + 1] = key_bytes
            position += length
            length, position = read_varint(data, position, end)
            value_bytes = put(
                data,
                position,
                length,
                entry,
                value_bytes,
                value_offsets,
                values,
                value_valid,
                state,
                HEADER_VALUE_NULLS,
            )
            if length > 0:
                position += length
