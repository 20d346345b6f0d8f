"""Kernels from record bytes to Arrow buffers.

Bounds: every read lies in `[start, stop)` of its batch, which the caller has checked against the buffer; every write
lies in what `room` in decode.py has provided: at most `count` rows and `stop - start` bytes per batch. A varint that
runs over its record yields position `BAD`, which no later check passes, so one comparison per record catches all of
them before anything is copied.
"""

from __future__ import annotations

from typing import Any

from sparklog.format.kernels.kernel_choice import kernel
from sparklog.format.kernels.kernel_memory import (
    BYTES,
    BYTES_IN,
    INT,
    INT32,
    INT64,
    INT64_IN,
    VOID,
    address,
    copy,
    helper,
    load_u8,
    store_i32,
    store_i64,
    store_u8,
    wrap,
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
def read_varint(at: int, end: int) -> tuple[int, int]:
    """Zig-zag int32 and the address after it; `BAD` if it is cut off or has a sixth byte."""
    if at >= end:
        return 0, BAD
    byte = load_u8(at)
    at += 1
    value = byte & 0x7F
    shift = 7
    while byte >= 0x80:
        if at >= end or shift > 28:
            return 0, BAD
        byte = load_u8(at)
        at += 1
        value |= (byte & 0x7F) << shift
        shift += 7
    value &= 0xFFFFFFFF
    return (value >> 1) ^ -(value & 1), at


@helper
def read_varlong(at: int, end: int) -> tuple[int, int]:
    """Zig-zag int64 and the address after it; `BAD` if it is cut off or has an eleventh byte."""
    if at >= end:
        return 0, BAD
    byte = load_u8(at)
    at += 1
    value = byte & 0x7F
    shift = 7
    while byte >= 0x80:
        if at >= end or shift > 63:
            return 0, BAD
        byte = load_u8(at)
        at += 1
        value |= (byte & 0x7F) << shift
        shift += 7
    return ((value >> 1) & 0x7FFFFFFFFFFFFFFF) ^ -(value & 1), at


@helper
def clear_bit(bitmap: int, index: int) -> None:
    """Mark a row as null."""
    place = bitmap + (index >> 3)
    store_u8(place, load_u8(place) & ~(1 << (index & 7)))


@helper
def skip_headers(at: int, end: int, count: int) -> tuple[int, int, int]:
    """Address after `count` headers (`BAD` if they do not fit), and the bytes of their keys and of their values."""
    key_bytes = value_bytes = 0
    if count < 0 or count > end - at:
        return BAD, 0, 0
    for _ in range(count):
        length, at = read_varint(at, end)
        if length < 0 or length > end - at:
            return BAD, 0, 0
        key_bytes += length
        length, at = read_varint(at + length, end)
        if length > 0:
            if length > end - at:
                return BAD, 0, 0
            value_bytes += length
            at += length
    return at, key_bytes, value_bytes


@helper
def put(source: int, length: int, source_end: int, row: int, filled: int, offsets: int, to: int, valid: int) -> int:
    """Append one binary cell (null if `length` < 0) and return the bytes filled."""
    if length > 0:
        copy(to + filled, source, length, source_end)
        filled += length
    elif length < 0:
        clear_bit(valid, row)
    store_i32(offsets + 4 * row + 4, filled)
    return filled


@helper
def read_record(at: int, end: int) -> tuple[int, int, int, int, int, int, int, int]:
    """Fields of the record that ends at `end`: time delta, offset delta, key length and address, value length and
    address, header count and address. The latter may lie beyond `end`: then the record is invalid."""
    time, at = read_varlong(at + 1, end)
    delta, at = read_varint(at, end)
    key_length, key_at = read_varint(at, end)
    value_length, value_at = read_varint(key_at + max(key_length, 0), end)
    headers, headers_at = read_varint(value_at + max(value_length, 0), end)
    return time, delta, key_length, key_at, value_length, value_at, headers, headers_at


@helper
def fail(state: Any, batch: int, position: int, offset: int, code: int) -> int:
    """Note where it happened."""
    state[ERROR_BATCH] = batch
    state[ERROR_POSITION] = position
    state[ERROR_OFFSET] = wrap(offset)
    return code


@kernel(
    INT(
        BYTES_IN, INT64_IN, INT64_IN, INT64_IN, INT64_IN, INT64_IN, INT64_IN, INT64_IN, INT, INT,
        INT, INT64, INT64, INT32, BYTES, BYTES, INT32, BYTES, BYTES, INT32, BYTES, INT64, INT64, INT64,
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
    data_at, offsets_at, times_at = address(data), address(offsets), address(times)
    data_end = data_at + len(data)
    key_offsets_at, keys_at, key_valid_at = address(key_offsets), address(keys), address(key_valid)
    value_offsets_at, values_at, value_valid_at = address(value_offsets), address(values), address(value_valid)
    list_offsets_at, list_valid_at = address(list_offsets), address(list_valid)
    list_position_at = address(list_position)
    row = first_row = state[ROWS]
    key_bytes, value_bytes, header_rows = state[KEY_BYTES], state[VALUE_BYTES], state[HEADER_ROWS]
    for batch in range(len(start)):
        at, end, previous, row_before = data_at + start[batch], data_at + stop[batch], -1, row
        base, base_t, fixed, last = base_offset[batch], base_time[batch], fixed_time[batch], last_delta[batch]
        for _ in range(count[batch]):
            record_at = at
            length, at = read_varint(at, end)
            if length < 0 or length > end - at:
                return fail(state, batch, record_at - data_at, base + previous + 1, LENGTH)
            record_end = at + length
            time, delta, key_length, key_at, value_length, value_at, headers, headers_at = read_record(at, record_end)
            at = headers_at
            if headers != 0:
                at, header_keys, header_values = skip_headers(headers_at, record_end, headers)
            if at != record_end:
                return fail(state, batch, record_at - data_at, base + previous + 1, FIELDS)
            if delta <= previous or delta > last:
                return fail(state, batch, record_at - data_at, base + previous + 1, ORDER)
            previous = delta
            if base + delta < first or base + delta >= limit:
                continue
            if key_length > INT32_MAX - key_bytes or value_length > INT32_MAX - value_bytes:
                return fail(state, batch, record_at - data_at, base + delta, TOO_LARGE)
            store_i64(offsets_at + 8 * row, base + delta)
            store_i64(times_at + 8 * row, base_t + time if fixed == -2 else fixed)
            if wanted & 1:
                state[KEY_NULLS] += key_length < 0
                key_bytes = put(key_at, key_length, data_end, row, key_bytes, key_offsets_at, keys_at, key_valid_at)
            if wanted & 2:
                state[VALUE_NULLS] += value_length < 0
                value_bytes = put(
                    value_at, value_length, data_end, row, value_bytes, value_offsets_at, values_at, value_valid_at
                )
            if wanted & 4:
                header_rows += headers
                store_i32(list_offsets_at + 4 * row + 4, header_rows)
                store_i64(list_position_at + 8 * (row - first_row), headers_at - data_at)
                if headers == 0:
                    clear_bit(list_valid_at, row)
                    state[HEADER_NULLS] += 1
                else:
                    state[HEADER_KEY_BYTES] += header_keys
                    state[HEADER_VALUE_BYTES] += header_values
            row += 1
        if at != end and count[batch] > 0:
            return fail(state, batch, at - data_at, base + previous + 1, REMAINING)
        emitted[batch] = row - row_before
    state[ROWS], state[KEY_BYTES], state[VALUE_BYTES], state[HEADER_ROWS] = row, key_bytes, value_bytes, header_rows
    return OK


@kernel(
    VOID(
        BYTES_IN, INT, INT, INT32, INT64, INT32, BYTES, INT32, BYTES, BYTES, INT, INT,
        INT64,
    )
)  # fmt: skip
def decode_headers(
    data: Any, first_row: int, rows: int, list_offsets: Any, list_position: Any, key_offsets: Any, keys: Any,
    value_offsets: Any, values: Any, value_valid: Any, key_bytes: int, value_bytes: int, state: Any,
) -> None:  # fmt: skip
    """Append the headers of rows `[first_row, rows)`, which `decode_records` has checked, to the header columns."""
    data_at, keys_at, values_at = address(data), address(keys), address(values)
    end = data_at + len(data)
    key_offsets_at, value_offsets_at = address(key_offsets), address(value_offsets)
    value_valid_at = address(value_valid)
    for row in range(first_row, rows):
        at = data_at + list_position[row - first_row]
        for entry in range(list_offsets[row], list_offsets[row + 1]):
            length, at = read_varint(at, end)
            copy(keys_at + key_bytes, at, length, end)
            key_bytes += length
            store_i32(key_offsets_at + 4 * entry + 4, key_bytes)
            length, at = read_varint(at + length, end)
            value_bytes = put(at, length, end, entry, value_bytes, value_offsets_at, values_at, value_valid_at)
            state[HEADER_VALUE_NULLS] += length < 0
            at += max(length, 0)
