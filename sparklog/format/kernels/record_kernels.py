"""Kernels that decode records to Arrow buffers, locate records in batches, and write some of the records again.

Bounds: every read is within `[start, stop)` of its batch, which the caller has checked against the buffer. Every write
is within the memory that decode.py has reserved, or within memory that has a row per record. If a varint extends beyond
its record, its end position is `BAD`, which fails all later checks. Therefore a single comparison per record detects
such a varint before any bytes are copied. `write_batches` does not trust its arguments: it checks sources and the space
in `out` before each copy.

Parameters per batch: `data[start : stop]` contains its `count` records. `base_offset`, `base_time` and `last_delta`
(last offset delta) are from its header. A binary column consists of three buffers as in Arrow, such as `key_offsets`,
`keys` (the bytes) and `key_valid` (bits). The indices of `state` are defined below.
"""

from __future__ import annotations

from typing import Any

from sparklog.format.kernels.encode_kernels import HEADER_BYTES, varint_size, write_varint, zigzag
from sparklog.format.kernels.kernel_choice import kernel
from sparklog.format.kernels.kernel_memory import (
    BYTES,
    BYTES_IN,
    INT,
    INT32,
    INT64,
    INT64_IN,
    SLACK,
    TABLE,
    VOID,
    address,
    copy,
    helper,
    load_i64,
    load_u8,
    store_i32,
    store_i64,
    store_u8,
    wrap,
)

BAD = 1 << 62
INT32_MAX = 2**31 - 1
NO_TIME = -1
LAST_TIME = 2**63 - 1

# Indices in the int64 state array, which kernels and decode.py share. HEADER_NULLS is the number of records without
# headers.
ROWS, KEY_BYTES, VALUE_BYTES, KEY_NULLS, VALUE_NULLS, HEADER_ROWS, HEADER_KEY_BYTES, HEADER_VALUE_BYTES = range(8)
HEADER_NULLS, HEADER_VALUE_NULLS, ERROR_BATCH, ERROR_POSITION, ERROR_OFFSET, STATE_SIZE = range(8, 14)

OK, LENGTH, FIELDS, ORDER, REMAINING, TOO_LARGE = range(6)
"""Error codes of the kernels."""

KEPT_RECORDS, KEPT_BYTES, MIN_TIME, MAX_TIME, FIRST_TIME, SURVEY_FIELDS = range(6)
"""Columns of the table that `survey` fills with totals of the retained records of each batch."""

# Columns of the plan, which has a row for each batch. `write_batches` sets OUT_AT and OUT_SIZE.
ACTION, FIRST_ROW, RECORDS, BASE_TIME, FIXED, FIXED_TIME, FROM, FROM_AT, FROM_SIZE = range(9)
BASE_DELTA, OUT_AT, OUT_SIZE, PLAN_FIELDS = range(9, 13)
"""BASE_DELTA is added to the base offset and subtracted from offset deltas."""
NOTHING, COPY, EMPTY, REBUILD = range(4)
"""Actions of a plan for a batch."""

RECORD_GROWTH = 16
"""A record grows by at most 13 bytes: 4 bytes in its length, and 9 bytes in its timestamp delta."""
MISMATCH = 10
"""Error code for arrays that do not belong together."""


@helper
def read_varint(cursor: int, end: int) -> tuple[int, int]:
    """Decode a zig-zag encoded int32. Return the value and the address after it.

    The address is `BAD` if the varint is truncated or has a sixth byte.
    """
    if cursor >= end:
        return 0, BAD
    byte = load_u8(cursor)
    cursor += 1
    value = byte & 0x7F
    shift = 7
    while byte >= 0x80:
        if cursor >= end or shift > 28:
            return 0, BAD
        byte = load_u8(cursor)
        cursor += 1
        value |= (byte & 0x7F) << shift
        shift += 7
    value &= 0xFFFFFFFF
    return (value >> 1) ^ -(value & 1), cursor


@helper
def read_varlong(cursor: int, end: int) -> tuple[int, int]:
    """Decode a zig-zag encoded int64. Return the value and the address after it.

    The address is `BAD` if the varint is truncated or has an eleventh byte.
    """
    if cursor >= end:
        return 0, BAD
    byte = load_u8(cursor)
    cursor += 1
    value = byte & 0x7F
    shift = 7
    while byte >= 0x80:
        if cursor >= end or shift > 63:
            return 0, BAD
        byte = load_u8(cursor)
        cursor += 1
        value |= (byte & 0x7F) << shift
        shift += 7
    return ((value >> 1) & 0x7FFFFFFFFFFFFFFF) ^ -(value & 1), cursor


@helper
def clear_bit(bitmap: int, index: int) -> None:
    pointer = bitmap + (index >> 3)
    store_u8(pointer, load_u8(pointer) & ~(1 << (index & 7)))


@helper
def skip_headers(cursor: int, end: int, count: int) -> tuple[int, int, int]:
    """Return the address after `count` headers (`BAD` if they do not fit), and the total sizes of their keys and
    values.
    """
    key_bytes = value_bytes = 0
    if count < 0 or count > end - cursor:
        return BAD, 0, 0
    for _ in range(count):
        length, cursor = read_varint(cursor, end)
        if length < 0 or length > end - cursor:
            return BAD, 0, 0
        key_bytes += length
        length, cursor = read_varint(cursor + length, end)
        if length > 0:
            if length > end - cursor:
                return BAD, 0, 0
            value_bytes += length
            cursor += length
    return cursor, key_bytes, value_bytes


@helper
def put(source: int, length: int, source_end: int, row: int, filled: int, offsets: int, to: int, valid: int) -> int:
    """Append a binary cell, which is null if `length` is negative. Return the number of bytes that are now filled."""
    if length > 0:
        copy(to + filled, source, length, source_end)
        filled += length
    elif length < 0:
        clear_bit(valid, row)
    store_i32(offsets + 4 * row + 4, filled)
    return filled


@helper
def read_record(cursor: int, end: int) -> tuple[int, int, int, int, int, int, int, int]:
    """Return the fields of the record that ends at `end`.

    The fields are the time delta, the offset delta, the length and address of the key, the length and address of the
    value, and the number and address of the headers. If the address of the headers is beyond `end`, the record is
    invalid.
    """
    time, cursor = read_varlong(cursor + 1, end)
    delta, cursor = read_varint(cursor, end)
    key_length, key_at = read_varint(cursor, end)
    value_length, value_at = read_varint(key_at + max(key_length, 0), end)
    headers, headers_at = read_varint(value_at + max(value_length, 0), end)
    return time, delta, key_length, key_at, value_length, value_at, headers, headers_at


@helper
def fail(state: Any, batch: int, position: int, offset: int, code: int) -> int:
    state[ERROR_BATCH] = batch
    state[ERROR_POSITION] = position
    state[ERROR_OFFSET] = wrap(offset)
    return code


@kernel(INT(
    BYTES_IN, INT64_IN, INT64_IN, INT64_IN, INT64_IN, INT64_IN, INT64_IN, INT64_IN, INT, INT,
    INT, INT64, INT64, INT32, BYTES, BYTES, INT32, BYTES, BYTES, INT32, BYTES, INT64, INT64, INT64
))  # fmt: skip
def decode_records(
    data: Any, start: Any, stop: Any, count: Any, base_offset: Any, base_time: Any, fixed_time: Any, last_delta: Any,
    first: int, limit: int, columns: int, offsets: Any, times: Any, key_offsets: Any, keys: Any, key_valid: Any,
    value_offsets: Any, values: Any, value_valid: Any, list_offsets: Any, list_valid: Any, list_position: Any,
    emitted: Any, state: Any,
) -> int:  # fmt: skip
    """Append the records with `first <= offset < limit` to the columns, and return an error code or `OK`.

    Bits 0, 1 and 2 of `columns` select keys, values and headers. `fixed_time` is the time of all records of a batch, or
    -2 if base time and deltas apply. `list_offsets` and `list_valid` are the buffers of the header lists,
    `list_position` receives the header position of each row, and `emitted` receives the number of rows of each batch.
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
        cursor, end, previous, row_before = data_at + start[batch], data_at + stop[batch], -1, row
        base, base_t, fixed, last = base_offset[batch], base_time[batch], fixed_time[batch], last_delta[batch]
        for _ in range(count[batch]):
            record_at = cursor
            length, cursor = read_varint(cursor, end)
            if length < 0 or length > end - cursor:
                return fail(state, batch, record_at - data_at, base + previous + 1, LENGTH)
            record_end = cursor + length
            time, delta, key_length, key_at, value_length, value_at, headers, headers_at = read_record(
                cursor, record_end
            )
            cursor = headers_at
            if headers != 0:
                cursor, header_keys, header_values = skip_headers(headers_at, record_end, headers)
            if cursor != record_end:
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
            if columns & 1:
                state[KEY_NULLS] += key_length < 0
                key_bytes = put(key_at, key_length, data_end, row, key_bytes, key_offsets_at, keys_at, key_valid_at)
            if columns & 2:
                state[VALUE_NULLS] += value_length < 0
                value_bytes = put(
                    value_at, value_length, data_end, row, value_bytes, value_offsets_at, values_at, value_valid_at
                )
            if columns & 4:
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
        if cursor != end and count[batch] > 0:
            return fail(state, batch, cursor - data_at, base + previous + 1, REMAINING)
        emitted[batch] = row - row_before
    state[ROWS], state[KEY_BYTES], state[VALUE_BYTES], state[HEADER_ROWS] = row, key_bytes, value_bytes, header_rows
    return OK


@kernel(VOID(
    BYTES_IN, INT, INT, INT32, INT64, INT32, BYTES, INT32, BYTES, BYTES, INT, INT,
    INT64
))  # fmt: skip
def decode_headers(
    data: Any, first_row: int, rows: int, list_offsets: Any, list_position: Any, key_offsets: Any, keys: Any,
    value_offsets: Any, values: Any, value_valid: Any, key_bytes: int, value_bytes: int, state: Any,
) -> None:  # fmt: skip
    """Append the headers of rows `[first_row, rows)`, which `decode_records` has checked, to the header columns.

    `list_offsets` and `list_position` are the output of `decode_records`. `key_offsets`, `keys`, `value_offsets`,
    `values` and `value_valid` are the buffers of the two columns. The buffers already contain `key_bytes` and
    `value_bytes` bytes.
    """
    data_at, keys_at, values_at = address(data), address(keys), address(values)
    end = data_at + len(data)
    key_offsets_at, value_offsets_at = address(key_offsets), address(value_offsets)
    value_valid_at = address(value_valid)
    for row in range(first_row, rows):
        cursor = data_at + list_position[row - first_row]
        for entry in range(list_offsets[row], list_offsets[row + 1]):
            length, cursor = read_varint(cursor, end)
            copy(keys_at + key_bytes, cursor, length, end)
            key_bytes += length
            store_i32(key_offsets_at + 4 * entry + 4, key_bytes)
            length, cursor = read_varint(cursor + length, end)
            value_bytes = put(cursor, length, end, entry, value_bytes, value_offsets_at, values_at, value_valid_at)
            state[HEADER_VALUE_NULLS] += length < 0
            cursor += max(length, 0)


@kernel(INT(
    BYTES_IN, INT64_IN, INT64_IN, INT64_IN, INT64_IN, INT64_IN, INT64_IN, INT32, INT64, INT64, INT64, INT64, BYTES,
    BYTES, INT64, INT32, INT64
))  # fmt: skip
def find_records(
    data: Any, start: Any, stop: Any, count: Any, base_offset: Any, base_time: Any, last_delta: Any, batches: Any,
    offsets: Any, times: Any, starts: Any, ends: Any, has_key: Any, has_value: Any, key_starts: Any, key_lengths: Any,
    state: Any,
) -> int:  # fmt: skip
    """Write the fields of all records (`sparklog.format.payloads.RecordFields`), and return an error code or `OK`.

    The arguments per batch are those of `decode_records`. For each record, `batches` receives its batch, and `starts`
    and `ends` receive its range in `data`.
    """
    data_at = address(data)
    batches_at, offsets_at, times_at = address(batches), address(offsets), address(times)
    starts_at, ends_at, has_key_at, has_value_at = address(starts), address(ends), address(has_key), address(has_value)
    key_starts_at, key_lengths_at = address(key_starts), address(key_lengths)
    row = 0
    for batch in range(len(start)):
        cursor, end, previous = data_at + start[batch], data_at + stop[batch], -1
        base, base_t, last = base_offset[batch], base_time[batch], last_delta[batch]
        for _ in range(count[batch]):
            record_at = cursor
            length, cursor = read_varint(cursor, end)
            if length < 0 or length > end - cursor:
                return fail(state, batch, record_at - data_at, base + previous + 1, LENGTH)
            record_end = cursor + length
            time, delta, key_length, key_at, value_length, _, headers, headers_at = read_record(cursor, record_end)
            cursor = headers_at
            if headers != 0:
                cursor, _, _ = skip_headers(headers_at, record_end, headers)
            if cursor != record_end:
                return fail(state, batch, record_at - data_at, base + previous + 1, FIELDS)
            if delta <= previous or delta > last:
                return fail(state, batch, record_at - data_at, base + previous + 1, ORDER)
            previous = delta
            store_i32(batches_at + 4 * row, batch)
            store_i64(offsets_at + 8 * row, base + delta)
            store_i64(times_at + 8 * row, base_t + time)
            store_i64(starts_at + 8 * row, record_at - data_at)
            store_i64(ends_at + 8 * row, cursor - data_at)
            store_u8(has_key_at + row, 1 if key_length >= 0 else 0)
            store_u8(has_value_at + row, 1 if value_length >= 0 else 0)
            store_i64(key_starts_at + 8 * row, key_at - data_at)
            store_i32(key_lengths_at + 4 * row, max(key_length, -1))
            row += 1
        if cursor != end and count[batch] > 0:
            return fail(state, batch, cursor - data_at, base + previous + 1, REMAINING)
    return OK


@kernel(INT(BYTES_IN, INT, INT, INT64))
def check_records(data: Any, count: int, base_time: int, totals: Any) -> int:
    """Check the records of one batch, whose offsets start at 0, and return an error code or `OK`.

    `totals` receives the smallest and the largest non-negative time (-1 if there is none), the smallest time other than
    -1 (2^63 - 1 if there is none), and the number of records without a key.
    """
    cursor = address(data)
    end, previous, keyless = cursor + len(data), -1, 0
    low, high, negative = LAST_TIME, NO_TIME, LAST_TIME
    for _ in range(count):
        length, cursor = read_varint(cursor, end)
        if length < 0 or length > end - cursor:
            return LENGTH
        record_end = cursor + length
        time, delta, key_length, _, _, _, headers, cursor = read_record(cursor, record_end)
        if headers != 0:
            cursor, _, _ = skip_headers(cursor, record_end, headers)
        if cursor != record_end:
            return FIELDS
        if delta <= previous or delta >= count:
            return ORDER
        time = wrap(base_time + time)
        if time >= 0:
            low, high = min(low, time), max(high, time)
        elif time != NO_TIME:
            negative = min(negative, time)
        previous = delta
        keyless += key_length < 0
    totals[0], totals[1] = low if high >= 0 else NO_TIME, high
    totals[2], totals[3] = min(low, negative), keyless
    return OK if cursor == end else REMAINING


@kernel(INT(
    BYTES_IN, INT64_IN, INT64_IN, INT64_IN, INT64_IN, INT64_IN, INT64_IN, INT, TABLE
))  # fmt: skip
def survey(
    keep: Any, rows: Any, times: Any, starts: Any, ends: Any, fixed: Any, fixed_time: Any, nbytes: int, totals: Any
) -> int:  # fmt: skip
    """Compute totals of the retained records of each batch, and return `OK`.

    `rows` is the number of records per batch. The sum of `rows` is the length of `keep`. For each batch, `totals`
    receives the number of retained records, their size, their smallest and largest non-negative time (-1 if there is
    none), and the time of the first retained record (-1 if there is none). If `fixed` is set, all records of the batch
    have the time `fixed_time`. Returns `MISMATCH` if a retained record is not within `nbytes` bytes of data.
    """
    keep_at, times_at, starts_at, ends_at = address(keep), address(times), address(starts), address(ends)
    row = 0
    for batch in range(len(rows)):
        kept_records = kept_bytes = 0
        low, high, first = LAST_TIME, NO_TIME, NO_TIME
        for _ in range(rows[batch]):
            if load_u8(keep_at + row):
                time = load_i64(times_at + 8 * row)
                start, end = load_i64(starts_at + 8 * row), load_i64(ends_at + 8 * row)
                if start < 0 or end > nbytes or start > end:
                    return MISMATCH
                if time >= 0:
                    low, high = min(low, time), max(high, time)
                first = first if kept_records else time
                kept_records += 1
                kept_bytes += end - start
            row += 1
        if fixed[batch] and kept_records:
            low = high = first = fixed_time[batch]
        totals[batch, KEPT_RECORDS], totals[batch, KEPT_BYTES] = kept_records, kept_bytes
        totals[batch, MIN_TIME], totals[batch, MAX_TIME] = low if high >= 0 else NO_TIME, high
        totals[batch, FIRST_TIME] = first
    return OK


@helper
def rewrite_record(to: int, out_end: int, start: int, end: int, delta: int, base_delta: int, data_end: int) -> int:
    """Write the record at `[start, end)` with a new timestamp delta. Its offset delta is reduced by `base_delta`.

    Returns the address after the record, or `BAD` if the bytes are not a record or do not fit before `out_end`. The
    attributes of a record are always 0, as in Kafka.
    """
    _, cursor = read_varint(start, end)
    _, fields_at = read_varlong(cursor + 1, end)
    if fields_at > end or to + (end - start) + RECORD_GROWTH > out_end:
        return BAD
    bits = zigzag(delta)
    size, offset_bits = 1 + varint_size(bits), 0
    if base_delta != 0:
        offset_delta, fields_at = read_varint(fields_at, end)
        if fields_at > end or offset_delta < base_delta:
            return BAD
        offset_bits = zigzag(offset_delta - base_delta)
        size += varint_size(offset_bits)
    to = write_varint(to, zigzag(size + end - fields_at))
    store_u8(to, 0)
    to = write_varint(to + 1, bits)
    if base_delta != 0:
        to = write_varint(to, offset_bits)
    copy(to, fields_at, end - fields_at, data_end)
    return to + end - fields_at


@kernel(INT(
    TABLE, BYTES_IN, BYTES_IN, BYTES_IN, INT64_IN, INT64_IN, INT64_IN, BYTES_IN, BYTES
))  # fmt: skip
def write_batches(
    plan: Any, source: Any, packed: Any, data: Any, times: Any, starts: Any, ends: Any, keep: Any, out: Any
) -> int:
    """Write the batches of a plan back to back. Return the number of bytes, or `-MISMATCH` if a batch does not fit.

    Batches are copied from `source` (FROM 0) or from `packed` (FROM 1), empty, or rebuilt from the records in `data`.
    Empty and rebuilt batches begin with a gap for the header. `out` needs `SLACK` bytes more than are written.
    """
    source_at, packed_at, data_at, out_at = address(source), address(packed), address(data), address(out)
    source_bytes, packed_bytes = len(source), len(packed)
    data_end, out_end = data_at + len(data), out_at + len(out) - SLACK
    times_at, starts_at, ends_at, keep_at = address(times), address(starts), address(ends), address(keep)
    to = out_at
    for batch in range(len(plan)):
        action, begin = plan[batch, ACTION], to
        if action == COPY:
            available = packed_bytes if plan[batch, FROM] else source_bytes
            origin = packed_at if plan[batch, FROM] else source_at
            cursor, size = plan[batch, FROM_AT], plan[batch, FROM_SIZE]
            if cursor < 0 or size < 0 or size > available - cursor or size > out_end - to:
                return -MISMATCH
            copy(to, origin + cursor, size, origin + available)
            to += size
        elif action != NOTHING:
            to += HEADER_BYTES
            if to > out_end:
                return -MISMATCH
        if action == REBUILD:
            first, base = plan[batch, FIRST_ROW], plan[batch, BASE_TIME]
            fixed, fixed_time = plan[batch, FIXED], plan[batch, FIXED_TIME]
            for row in range(first, first + plan[batch, RECORDS]):
                if load_u8(keep_at + row) == 0:
                    continue
                start, end = data_at + load_i64(starts_at + 8 * row), data_at + load_i64(ends_at + 8 * row)
                if start < data_at or end > data_end or start > end:
                    return -MISMATCH
                time = fixed_time if fixed != 0 else load_i64(times_at + 8 * row)
                to = rewrite_record(to, out_end, start, end, time - base, plan[batch, BASE_DELTA], data_end)
                if to == BAD:
                    return -MISMATCH
        plan[batch, OUT_AT], plan[batch, OUT_SIZE] = begin - out_at, to - begin
    written: int = to - out_at
    return written
