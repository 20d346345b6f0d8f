"""Kernels that find messages of formats v0 and v1, compute their CRC-32, and convert them to records of format v2.

Bounds: `find_messages` compares the size of each message with the number of remaining bytes before it advances, and
fills at most the columns that `table` has. `translate` reads within `[start, stop)` of each row, which the caller has
checked against the data. It compares the position in `out` with the end of `out` before it writes a record.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from sparklog.format.kernels.encode_kernels import varint_size, write_bytes, write_varint, zigzag
from sparklog.format.kernels.kernel_choice import kernel
from sparklog.format.kernels.kernel_memory import (
    BYTES,
    BYTES_IN,
    INT,
    INT64,
    INT64_IN,
    SLACK,
    TABLE,
    VOID,
    address,
    crc32,
    helper,
    load_u8,
    store_i64,
    store_u8,
    wrap,
)

POSITION, SIZE, OFFSET, CRC, ATTRIBUTES, TIMESTAMP, MAGIC, TABLE_ROWS = range(8)
"""Rows of the table that `find_messages` fills."""
END = 0
"""Index in the state array of `find_messages`."""
ERROR_ROW, ERROR_POSITION, ERROR_OFFSET, STATE_SIZE = range(4)
"""Indices in the state array of `translate`."""
OK, SHORT, FIELDS, ORDER, FORMAT, COMPRESSED, CHECKSUM, COUNT = range(8)
"""Error codes of `translate`."""

LOG_OVERHEAD = 12
V0_BYTES = 14
V1_BYTES = 22
"""Minimum sizes of a message, without its offset and size fields."""
CRC_START = 16
"""Position in an entry at which the data of the CRC-32 starts. The CRC-32 covers all bytes after the CRC field."""
RECORD_GROWTH = 6
"""Maximum growth of a record. A record of format v2 has at most 32 bytes in addition to key and value, and an entry of
format v0 has 26 bytes.
"""
_POLYNOMIAL = 0xEDB88320
_NO_TIMESTAMP = -1


def _crc_table() -> Any:
    """Return int64[8 * 256], which is used to compute a CRC-32 eight bytes at a time.

    Row k of the table applies to a byte that is followed by k bytes.
    """
    state = np.arange(256, dtype=np.int64)
    for _ in range(8):
        state = np.where(state & 1, (state >> 1) ^ _POLYNOMIAL, state >> 1)
    rows = [state]
    for _ in range(7):
        rows.append((rows[-1] >> 8) ^ state[rows[-1] & 0xFF])
    return np.concatenate(rows)


CRC_TABLE = _crc_table()


@helper
def big_u32(pointer: int) -> int:
    value: int = (
        (load_u8(pointer) << 24) | (load_u8(pointer + 1) << 16) | (load_u8(pointer + 2) << 8) | load_u8(pointer + 3)
    )
    return value


@helper
def big_i32(pointer: int) -> int:
    value = big_u32(pointer)
    return value - (1 << 32) if value >= (1 << 31) else value


@helper
def big_i64(pointer: int) -> int:
    return wrap((big_u32(pointer) << 32) | big_u32(pointer + 4))


@kernel(INT(BYTES_IN, INT, TABLE, INT64))
def find_messages(data: Any, start: int, table: Any, state: Any) -> int:
    """Fill a column of `table` for each message of format v0 or v1, starting at position `start`. Return the number of
    messages.

    Stops at the first message that is incomplete, has an invalid size or has another format. `state[END]` receives the
    position of this message.
    """
    origin = address(data)
    end, count = len(data), 0
    room = table.shape[1]
    cursor = start
    while end - cursor >= LOG_OVERHEAD + V0_BYTES and count < room:
        length, magic = big_i32(origin + cursor + 8), load_u8(origin + cursor + 16)
        if magic > 1 or length < (V1_BYTES if magic == 1 else V0_BYTES) or length > end - cursor - LOG_OVERHEAD:
            break
        attributes = load_u8(origin + cursor + 17)
        table[POSITION, count] = cursor
        table[SIZE, count] = length + LOG_OVERHEAD
        table[OFFSET, count] = big_i64(origin + cursor)
        table[CRC, count] = big_u32(origin + cursor + 12)
        table[ATTRIBUTES, count] = attributes & (0x0F if magic == 1 else 0x07)
        table[TIMESTAMP, count] = big_i64(origin + cursor + 18) if magic == 1 else _NO_TIMESTAMP
        table[MAGIC, count] = magic
        count += 1
        cursor += length + LOG_OVERHEAD
    state[END] = cursor
    return count


@kernel(VOID(BYTES_IN, INT64_IN, INT64_IN, INT64_IN, INT64))
def message_crcs(data: Any, position: Any, size: Any, table: Any, out: Any) -> None:
    """Write the expected CRC-32 of each message to `out`. `position` is the position where its entry begins."""
    origin, table_at = address(data), address(table)
    for row in range(len(position)):
        out[row] = crc32(origin + position[row] + CRC_START, size[row] - CRC_START, table_at)


@helper
def fail(state: int, row: int, position: int, offset: int, code: int) -> int:
    store_i64(state + 8 * ERROR_ROW, row)
    store_i64(state + 8 * ERROR_POSITION, position)
    store_i64(state + 8 * ERROR_OFFSET, offset)
    return code


@kernel(INT(
    BYTES_IN, INT64_IN, INT64_IN, INT64_IN, INT64_IN, INT64_IN, INT64_IN, INT64_IN, INT, INT64_IN, BYTES,
    INT64, INT64, INT64
))  # fmt: skip
def translate(
    data: Any, start: Any, stop: Any, count: Any, base_offset: Any, shift: Any, base_time: Any, last_delta: Any,
    inner: int, table: Any, out: Any, out_start: Any, out_stop: Any, state: Any,
) -> int:  # fmt: skip
    """Convert the messages at `[start, stop)` of each row to records of format v2, and return an error code or `OK`.

    `shift` is added to the offset fields of the messages. If `inner` is set, the messages are from compressed messages,
    and their CRC-32s are verified here. `out` needs `SLACK` bytes more than are written. `out_start` and `out_stop`
    receive the range of the records of each row in `out`. `table` is `CRC_TABLE`.
    """
    origin, table_at, out_at, state_at = address(data), address(table), address(out), address(state)
    data_end, room = origin + len(data), out_at + len(out) - SLACK
    to = out_at
    for row in range(len(start)):
        cursor, end, previous, messages = origin + start[row], origin + stop[row], -1, 0
        base, time_base, last, moved = base_offset[row], base_time[row], last_delta[row], shift[row]
        out_start[row] = to - out_at
        while cursor < end:
            offset = base + previous + 1
            if end - cursor < LOG_OVERHEAD + V0_BYTES:
                return fail(state_at, row, cursor - origin, offset, SHORT)
            length, magic = big_i32(cursor + 8), load_u8(cursor + 16)
            if length < V0_BYTES or length > end - cursor - LOG_OVERHEAD:
                return fail(state_at, row, cursor - origin, offset, SHORT)
            if magic > 1:
                return fail(state_at, row, cursor - origin, offset, FORMAT)
            message_end = cursor + LOG_OVERHEAD + length
            if inner != 0:
                if load_u8(cursor + 17) & 0x07:
                    return fail(state_at, row, cursor - origin, offset, COMPRESSED)
                if crc32(cursor + CRC_START, length + LOG_OVERHEAD - CRC_START, table_at) != big_u32(cursor + 12):
                    return fail(state_at, row, cursor - origin, offset, CHECKSUM)
            delta = wrap(big_i64(cursor) + moved - base)
            if delta <= previous or delta > last:
                return fail(state_at, row, cursor - origin, offset, ORDER)
            time, key_at = _NO_TIMESTAMP, cursor + 18
            if magic == 1:
                if length < V1_BYTES:
                    return fail(state_at, row, cursor - origin, base + delta, SHORT)
                time, key_at = big_i64(cursor + 18), cursor + 26
            key_length = max(big_i32(key_at), -1)
            key_at += 4
            value_at = key_at + max(key_length, 0)
            if value_at > message_end - 4:
                return fail(state_at, row, cursor - origin, base + delta, FIELDS)
            value_length = max(big_i32(value_at), -1)
            value_at += 4
            if max(value_length, 0) > message_end - value_at:
                return fail(state_at, row, cursor - origin, base + delta, FIELDS)
            time_bits, offset_bits = zigzag(time - time_base), zigzag(delta)
            cells = max(key_length, 0) + max(value_length, 0)
            size = 2 + varint_size(time_bits) + varint_size(offset_bits) + cells
            size += varint_size(zigzag(key_length)) + varint_size(zigzag(value_length))
            if size + 5 > room - to:
                return fail(state_at, row, cursor - origin, base + delta, COUNT)
            to = write_varint(to, zigzag(size))
            store_u8(to, 0)
            to = write_varint(to + 1, time_bits)
            to = write_varint(to, offset_bits)
            to = write_bytes(to, key_at, key_length, data_end)
            to = write_bytes(to, value_at, value_length, data_end)
            store_u8(to, 0)
            to += 1
            previous = delta
            messages += 1
            cursor = message_end
        if messages != count[row]:
            return fail(state_at, row, start[row], base, COUNT)
        out_stop[row] = to - out_at
    return OK
