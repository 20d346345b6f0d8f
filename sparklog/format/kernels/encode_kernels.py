"""Kernels that encode rows of Arrow buffers as records.

Rows are written directly from the Arrow buffers as records. Before the records of each batch, 61 bytes are reserved for
its header. Each row has a *lane* (its partition, or a single lane for all rows), and each lane fills its own region of
the output. Therefore rows of many partitions are read in their order in memory, which is three times as fast as
gathering the rows of one partition after another. Bounds: `measure` computes the maximum size of each lane, and the
caller allocates the memory.

A column is described by a row of 6 integers. The caller keeps the buffers alive:

| index | meaning                                                          |
|------:|------------------------------------------------------------------|
|     0 | address of the offsets, 0 for a missing column (all cells null)  |
|     1 | 1 if offsets are int64, 0 if int32                               |
|     2 | address of the data                                              |
|     3 | address after the data                                           |
|     4 | address of the validity bits, 0 if there are no nulls            |
|     5 | the array's own offset in elements                               |
"""

from __future__ import annotations

from typing import Any

from sparklog.format.kernels.kernel_choice import kernel
from sparklog.format.kernels.kernel_memory import (
    BYTES,
    BYTES_IN,
    INT,
    INT32_IN,
    INT64,
    INT64_IN,
    TABLE,
    address,
    bit_length,
    copy,
    helper,
    load_i32,
    load_i64,
    load_u8,
    prefetch,
    store_i16,
    store_i64,
    store_u8,
    wrap,
)

HEADER_BYTES = 61
KEY, VALUE, LIST, HEADER_KEY, HEADER_VALUE, STRUCT = range(6)
"""Row numbers in the column table."""
MAX_RECORD = 2**31 - 1 - HEADER_BYTES
MAX_EXTRA = 5 + 1 + 10 + 4 * 5
"""Maximum size of all fields of a record except its key, value and headers: the length, the attributes, the time delta,
and the offset delta, the lengths of key and value, and the header count.
"""
NO_TIMESTAMP = -1
AHEAD = 12
"""Number of rows by which the prefetch is ahead if `order` is given. Prefetching is required because the hardware
cannot predict the order.
"""
AHEAD_BYTES = 512
"""Number of bytes by which the prefetch of the output of a lane is ahead of its records."""

BATCHES, ERROR_ROW, STATE_SIZE = range(3)
"""Indices in the state array."""
OK, NULL_HEADER, TOO_LARGE = range(3)
"""Error codes of the kernels."""

# Columns of the lane table: the totals that `measure` computes, followed by the state of each lane.
LANE_ROWS, LANE_BYTES, LANE_NULL_KEYS, LANE_MIN_TIME, LANE_CONTENT, LANE_FREE_ROWS, LANE_FREE_CONTENT = range(7)
LANE_AT, LANE_BATCH_START, LANE_BATCH, LANE_COUNT, LANE_BASE, LANE_MAX_TIME, LANE_FIELDS = range(7, 14)
LANE_SIZE = 8 * LANE_FIELDS
"""Size of a row of the lane table in bytes. The kernels access the table by address, which takes less time than numba's
checks for negative indices.
"""
BATCH_LANE, BATCH_AT, BATCH_SIZE, BATCH_ROWS, BATCH_BASE_TIME, BATCH_MAX_TIME, BATCH_FIELDS = range(7)
"""Columns of the batch table."""


@helper
def cell(offsets: int, wide: int, data: int, validity: int, index: int) -> tuple[int, int]:
    """Return the length of a cell (-1 for null) and the address of the cell.

    `index` includes the offset of the array.
    """
    if offsets == 0 or (validity != 0 and not (load_u8(validity + (index >> 3)) >> (index & 7)) & 1):
        return -1, 0
    if wide:
        start = load_i64(offsets + 8 * index)
        return load_i64(offsets + 8 * index + 8) - start, data + start
    start = load_i32(offsets + 4 * index)
    return load_i32(offsets + 4 * index + 4) - start, data + start


@helper
def header_cell(columns: Any, which: int, entry: int) -> tuple[int, int]:
    return cell(columns[which, 0], columns[which, 1], columns[which, 2], columns[which, 4], columns[which, 5] + entry)


@helper
def column(table: Any, row: int) -> tuple[int, int, int, int, int, int]:
    return table[row, 0], table[row, 1], table[row, 2], table[row, 3], table[row, 4], table[row, 5]


@helper
def zigzag(value: int) -> int:
    value = wrap(value)
    return wrap(value << 1) ^ (value >> 63)


@helper
def varint_size(unsigned: int) -> int:
    """Return the size of a varint, which has one byte per seven bits."""
    bits: int = bit_length(unsigned | 1)
    return (9 * bits + 64) >> 6


@helper
def write_varint(cursor: int, unsigned: int) -> int:
    """Write a zig-zag encoded value as a varint, and return the address after it."""
    if unsigned & -0x80 == 0:
        store_u8(cursor, unsigned)
        return cursor + 1
    if unsigned & -0x4000 == 0:
        store_i16(cursor, (unsigned & 0x7F) | 0x80 | (unsigned >> 7 << 8))
        return cursor + 2
    while unsigned < 0 or unsigned >= 0x80:
        store_u8(cursor, (unsigned & 0x7F) | 0x80)
        unsigned = (unsigned >> 7) & 0x01FFFFFFFFFFFFFF
        cursor += 1
    store_u8(cursor, unsigned)
    return cursor + 1


@helper
def write_bytes(cursor: int, source: int, length: int, source_end: int) -> int:
    cursor = write_varint(cursor, zigzag(length))
    if length > 0:
        copy(cursor, source, length, source_end)
        cursor += length
    return cursor


@helper
def cell_size(length: int) -> int:
    return varint_size(zigzag(length)) + max(length, 0)


@helper
def headers_size(columns: Any, first: int, count: int) -> int:
    """Return the encoded size of `count` headers, starting at entry `first` and excluding the header count. Return -1
    if a header or its key is null.
    """
    size = 0
    for entry in range(first, first + count):
        key_length, _ = header_cell(columns, HEADER_KEY, entry)
        validity, index = columns[STRUCT, 4], columns[STRUCT, 5] + entry
        if key_length < 0 or (validity != 0 and not (load_u8(validity + (index >> 3)) >> (index & 7)) & 1):
            return -1
        value_length, _ = header_cell(columns, HEADER_VALUE, entry)
        size += cell_size(key_length) + cell_size(value_length)
    return size


@helper
def headers_content(columns: Any, first: int, count: int) -> int:
    """Return the size of the keys and values of `count` headers, starting at entry `first`."""
    content = 0
    for entry in range(first, first + count):
        key_length, _ = header_cell(columns, HEADER_KEY, entry)
        value_length, _ = header_cell(columns, HEADER_VALUE, entry)
        content += key_length + max(value_length, 0)
    return content


@helper
def write_headers(columns: Any, cursor: int, first: int, count: int) -> int:
    for entry in range(first, first + count):
        length, source = header_cell(columns, HEADER_KEY, entry)
        cursor = write_bytes(cursor, source, length, columns[HEADER_KEY, 3])
        length, source = header_cell(columns, HEADER_VALUE, entry)
        cursor = write_bytes(cursor, source, length, columns[HEADER_VALUE, 3])
    return cursor


@helper
def prefetch_record(pointer: int) -> None:
    prefetch(pointer)
    prefetch(pointer + 64)


@helper
def fail(state: Any, row: int, code: int) -> int:
    state[ERROR_ROW] = row
    return code


@helper
def add(pointer: int, value: int) -> None:
    store_i64(pointer, load_i64(pointer) + value)


@helper
def begin(batches: Any, batch: int, lane: int, lane_at: int, position: int, time: int) -> None:
    batches[batch, BATCH_LANE], batches[batch, BATCH_AT], batches[batch, BATCH_BASE_TIME] = lane, position, time
    store_i64(lane_at + 8 * LANE_BATCH, batch)
    store_i64(lane_at + 8 * LANE_BATCH_START, position)
    store_i64(lane_at + 8 * LANE_BASE, time)
    store_i64(lane_at + 8 * LANE_MAX_TIME, NO_TIMESTAMP)


@helper
def close(batches: Any, lane_at: int) -> None:
    """Write the size, the record count and the maximum time of a lane's open batch."""
    batch = load_i64(lane_at + 8 * LANE_BATCH)
    batches[batch, BATCH_SIZE] = load_i64(lane_at + 8 * LANE_AT) - load_i64(lane_at + 8 * LANE_BATCH_START)
    batches[batch, BATCH_ROWS] = load_i64(lane_at + 8 * LANE_COUNT)
    batches[batch, BATCH_MAX_TIME] = load_i64(lane_at + 8 * LANE_MAX_TIME)


@kernel(INT(INT64_IN, INT32_IN, BYTES_IN, INT, INT64_IN, TABLE, TABLE, INT64))
def measure(
    order: Any, lane_of: Any, explicit: Any, rows: int, times: Any, columns: Any, lanes: Any, state: Any
) -> int:
    """Compute the statistics of each lane: row count, maximum size, null keys, minimum time and content size.

    The maximum size does not include batch headers. The content consists of keys, values and headers. Rows that could
    be in any lane, because they have no key and no explicit lane, are also counted separately, with their content size.

    * `order`: rows to encode, or empty for all rows
    * `lane_of`: lane of each encoded row, or empty for a single lane 0
    * `explicit`: 1 for rows whose lane the caller specified, or empty if there are none

    The minimum times in `lanes` must be preset. Times below 0 are ignored.
    """
    order_at = address(order) if len(order) else 0
    numbers_at = address(lane_of) if len(lane_of) else 0
    explicit_at = address(explicit) if len(explicit) else 0
    times_at, lanes_at = address(times), address(lanes)
    k_off, k_wide, _, _, k_valid, k_at = column(columns, KEY)
    v_off, v_wide, _, _, v_valid, v_at = column(columns, VALUE)
    has_headers = columns[LIST, 0] != 0
    for i in range(rows):
        row = load_i64(order_at + 8 * i) if order_at else i
        lane_at = lanes_at + LANE_SIZE * (load_i32(numbers_at + 4 * i) if numbers_at else 0)
        key_length, _ = cell(k_off, k_wide, 0, k_valid, k_at + row)
        value_length, _ = cell(v_off, v_wide, 0, v_valid, v_at + row)
        content = max(key_length, 0) + max(value_length, 0)
        size = MAX_EXTRA + content
        if has_headers:
            count, first = cell(columns[LIST, 0], columns[LIST, 1], 0, columns[LIST, 4], columns[LIST, 5] + row)
            if count > 0:
                headers_bytes = headers_size(columns, first, count)
                if headers_bytes < 0:
                    return fail(state, row, NULL_HEADER)
                size += headers_bytes
                content += headers_content(columns, first, count)
        if size > MAX_RECORD:
            return fail(state, row, TOO_LARGE)
        time = load_i64(times_at + 8 * row)
        add(lane_at + 8 * LANE_ROWS, 1)
        add(lane_at + 8 * LANE_BYTES, size)
        add(lane_at + 8 * LANE_CONTENT, content)
        if 0 <= time < load_i64(lane_at + 8 * LANE_MIN_TIME):
            store_i64(lane_at + 8 * LANE_MIN_TIME, time)
        if key_length < 0:
            add(lane_at + 8 * LANE_NULL_KEYS, 1)
            if explicit_at == 0 or load_u8(explicit_at + row) == 0:
                add(lane_at + 8 * LANE_FREE_ROWS, 1)
                add(lane_at + 8 * LANE_FREE_CONTENT, content)
    return OK


@kernel(INT(
    INT64_IN, INT32_IN, INT, INT64_IN, TABLE, INT,
    BYTES, TABLE, TABLE, INT64
))  # fmt: skip
def encode_records(
    order: Any, lane_of: Any, rows: int, times: Any, columns: Any, target: int, out: Any, lanes: Any, batches: Any,
    state: Any,
) -> int:  # fmt: skip
    """Write rows to the regions of their lanes, as batches of at most `target` bytes.

    A larger record gets its own batch.

    The base time of a batch is the time of its first record. Offset deltas start at 0 in each batch. `LANE_AT` of each
    lane must be preset to the start of its region, and `LANE_COUNT` to 0. `batches` receives a row for each batch, in
    the order in which the batches begin. Further calls with the same lanes, batches and state continue with the next
    rows.
    """
    out_at, times_at, lanes_at = address(out), address(times), address(lanes)
    order_at = address(order) if len(order) else 0
    numbers_at = address(lane_of) if len(lane_of) else 0
    k_off, k_wide, k_data, k_end, k_valid, k_at = column(columns, KEY)
    v_off, v_wide, v_data, v_end, v_valid, v_at = column(columns, VALUE)
    has_headers = columns[LIST, 0] != 0
    used = state[BATCHES]
    for i in range(rows):
        row = load_i64(order_at + 8 * i) if order_at else i
        if order_at and i + AHEAD < rows and v_off:
            _, ahead = cell(v_off, v_wide, v_data, 0, v_at + load_i64(order_at + 8 * (i + AHEAD)))
            prefetch_record(ahead)
        lane = load_i32(numbers_at + 4 * i) if numbers_at else 0
        lane_at = lanes_at + LANE_SIZE * lane
        time = load_i64(times_at + 8 * row)
        key_length, key_from = cell(k_off, k_wide, k_data, k_valid, k_at + row)
        value_length, value_from = cell(v_off, v_wide, v_data, v_valid, v_at + row)
        headers = first = headers_bytes = 0
        if has_headers:
            headers, first = cell(columns[LIST, 0], columns[LIST, 1], 0, columns[LIST, 4], columns[LIST, 5] + row)
            headers = max(headers, 0)
            headers_bytes = headers_size(columns, first, headers)
        fixed = 1 + cell_size(key_length) + cell_size(value_length) + varint_size(2 * headers) + headers_bytes
        count, position = load_i64(lane_at + 8 * LANE_COUNT), load_i64(lane_at + 8 * LANE_AT)
        base = load_i64(lane_at + 8 * LANE_BASE)
        size = fixed + varint_size(zigzag(time - base)) + varint_size(2 * count)
        after = position - load_i64(lane_at + 8 * LANE_BATCH_START) + varint_size(2 * size) + size
        if count == 0 or after > target:
            if count > 0:
                close(batches, lane_at)
            begin(batches, used, lane, lane_at, position, time)
            used += 1
            base = time
            position += HEADER_BYTES
            count = 0
            size = fixed + 2  # Both deltas are 0.
        if time > load_i64(lane_at + 8 * LANE_MAX_TIME):
            store_i64(lane_at + 8 * LANE_MAX_TIME, time)
        store_i64(lane_at + 8 * LANE_COUNT, count + 1)
        to = write_varint(out_at + position, 2 * size)
        store_u8(to, 0)
        to = write_varint(to + 1, zigzag(time - base))
        to = write_varint(to, 2 * count)
        to = write_bytes(to, key_from, key_length, k_end)
        to = write_bytes(to, value_from, value_length, v_end)
        to = write_varint(to, 2 * headers)
        if headers > 0:
            to = write_headers(columns, to, first, headers)
        store_i64(lane_at + 8 * LANE_AT, to - out_at)
        # The processor does not detect as many sequential streams as there may be lanes.
        prefetch_record(to + AHEAD_BYTES)
    for lane in range(len(lanes)):
        lane_at = lanes_at + LANE_SIZE * lane
        if load_i64(lane_at + 8 * LANE_COUNT) > 0:
            close(batches, lane_at)
    state[BATCHES] = used
    return OK
