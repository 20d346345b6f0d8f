"""Kernels that find records in batches and write some of them again.

Bounds: `find_records` reads within `[start, end)` of each batch, which the caller has checked against the data, and
writes `count` rows per batch. `write_batches` trusts nothing that it is handed: sources and the room in `out` are
checked before each copy.
"""

from __future__ import annotations

from typing import Any

from sparklog.format.kernels.decode_kernels import (
    BAD,
    ERROR_BATCH,
    ERROR_OFFSET,
    ERROR_POSITION,
    FIELDS,
    LENGTH,
    OK,
    ORDER,
    REMAINING,
    STATE_SIZE,
    fail,
    read_record,
    read_varint,
    read_varlong,
    skip_headers,
)
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
    address,
    copy,
    helper,
    load_i64,
    load_u8,
    store_i32,
    store_i64,
    store_u8,
)

__all__ = ["ERROR_BATCH", "ERROR_OFFSET", "ERROR_POSITION", "OK", "STATE_SIZE", "find_records", "write_batches"]

# Columns of the survey: what is kept of each batch.
KEPT = 0
KEPT_BYTES = 1
MIN_TIME = 2
MAX_TIME = 3
FIRST_TIME = 4
SURVEY_FIELDS = 5

# Columns of the plan: what becomes of each batch. `write_batches` fills in the last two.
ACTION = 0
FIRST_ROW = 1
ROWS = 2
BASE_TIME = 3
FIXED = 4
FIXED_TIME = 5
FROM = 6
FROM_AT = 7
FROM_SIZE = 8
BASE_DELTA = 9
"""By how much the base offset rises: offset deltas sink by it."""
OUT_AT = 10
OUT_SIZE = 11
PLAN_FIELDS = 12

NOTHING = 0
COPY = 1
EMPTY = 2
REBUILD = 3

RECORD_GROWTH = 16
"""A record grows by 13 bytes at most: 4 in its length, 9 in its timestamp delta."""
MISMATCH = 10
"""Error code: the arrays do not belong together."""


@kernel(
    INT(
        BYTES_IN, INT64_IN, INT64_IN, INT64_IN, INT64_IN, INT64_IN, INT64_IN, INT32, INT64, INT64, INT64, INT64, BYTES,
        BYTES, INT64, INT32, INT64,
    )
)  # fmt: skip
def find_records(
    data: Any, start: Any, stop: Any, count: Any, base_offset: Any, base_time: Any, last_delta: Any, batches: Any,
    offsets: Any, times: Any, starts: Any, ends: Any, has_key: Any, has_value: Any, key_starts: Any, key_lengths: Any,
    state: Any,
) -> int:  # fmt: skip
    """Fill the columns with the records of all batches; the error code, `OK` if none."""
    data_at = address(data)
    batches_at, offsets_at, times_at = address(batches), address(offsets), address(times)
    starts_at, ends_at, has_key_at, has_value_at = address(starts), address(ends), address(has_key), address(has_value)
    key_starts_at, key_lengths_at = address(key_starts), address(key_lengths)
    row = 0
    for batch in range(len(start)):
        at, end, previous = data_at + start[batch], data_at + stop[batch], -1
        base, base_t, last = base_offset[batch], base_time[batch], last_delta[batch]
        for _ in range(count[batch]):
            record_at = at
            length, at = read_varint(at, end)
            if length < 0 or length > end - at:
                return fail(state, batch, record_at - data_at, base + previous + 1, LENGTH)
            record_end = at + length
            time, delta, key_length, key_at, value_length, _, headers, headers_at = read_record(at, record_end)
            at = headers_at
            if headers != 0:
                at, _, _ = skip_headers(headers_at, record_end, headers)
            if at != record_end:
                return fail(state, batch, record_at - data_at, base + previous + 1, FIELDS)
            if delta <= previous or delta > last:
                return fail(state, batch, record_at - data_at, base + previous + 1, ORDER)
            previous = delta
            store_i32(batches_at + 4 * row, batch)
            store_i64(offsets_at + 8 * row, base + delta)
            store_i64(times_at + 8 * row, base_t + time)
            store_i64(starts_at + 8 * row, record_at - data_at)
            store_i64(ends_at + 8 * row, at - data_at)
            store_u8(has_key_at + row, 1 if key_length >= 0 else 0)
            store_u8(has_value_at + row, 1 if value_length >= 0 else 0)
            store_i64(key_starts_at + 8 * row, key_at - data_at)
            store_i32(key_lengths_at + 4 * row, max(key_length, -1))
            row += 1
        if at != end and count[batch] > 0:
            return fail(state, batch, at - data_at, base + previous + 1, REMAINING)
    return OK


@kernel(
    INT(
        BYTES_IN, INT64_IN, INT64_IN, INT64_IN, INT64_IN, INT64_IN, INT64_IN, INT, TABLE
    )
)  # fmt: skip
def survey(
    keep: Any, rows: Any, times: Any, starts: Any, ends: Any, fixed: Any, fixed_time: Any, nbytes: int, totals: Any
) -> int:  # fmt: skip
    """Per batch of `rows` records (in all as many as `keep` has): how many are kept, their bytes, their least, largest
    and first time (-1 if none is kept). Where `fixed`, all records have the time `fixed_time`. `MISMATCH` if a record
    that is kept does not lie in `nbytes` bytes of data."""
    keep_at, times_at, starts_at, ends_at = address(keep), address(times), address(starts), address(ends)
    row = 0
    for batch in range(len(rows)):
        kept = kept_bytes = 0
        low = high = first = -1
        for _ in range(rows[batch]):
            if load_u8(keep_at + row):
                time = load_i64(times_at + 8 * row)
                start, end = load_i64(starts_at + 8 * row), load_i64(ends_at + 8 * row)
                if start < 0 or end > nbytes or start > end:
                    return MISMATCH
                low = min(low, time) if kept else time
                high = max(high, time) if kept else time
                first = first if kept else time
                kept += 1
                kept_bytes += end - start
            row += 1
        if fixed[batch] and kept:
            low = high = first = fixed_time[batch]
        totals[batch, KEPT], totals[batch, KEPT_BYTES] = kept, kept_bytes
        totals[batch, MIN_TIME], totals[batch, MAX_TIME], totals[batch, FIRST_TIME] = low, high, first
    return OK


@helper
def rewrite_record(to: int, room: int, start: int, end: int, delta: int, base_delta: int, data_end: int) -> int:
    """Write the record at `[start, end)` with another timestamp delta, its offset delta less `base_delta`; the address
    behind it, `BAD` if it is no record or does not fit before `room`. Kafka writes 0 as a record's attributes."""
    _, at = read_varint(start, end)
    _, rest = read_varlong(at + 1, end)
    if rest > end or to + (end - start) + RECORD_GROWTH > room:
        return BAD
    bits = zigzag(delta)
    size, offset_bits = 1 + varint_size(bits), 0
    if base_delta != 0:
        offset_delta, rest = read_varint(rest, end)
        if rest > end or offset_delta < base_delta:
            return BAD
        offset_bits = zigzag(offset_delta - base_delta)
        size += varint_size(offset_bits)
    to = write_varint(to, zigzag(size + end - rest))
    store_u8(to, 0)
    to = write_varint(to + 1, bits)
    if base_delta != 0:
        to = write_varint(to, offset_bits)
    copy(to, rest, end - rest, data_end)
    return to + end - rest


@kernel(
    INT(
        TABLE, BYTES_IN, BYTES_IN, BYTES_IN, INT64_IN, INT64_IN, INT64_IN, BYTES_IN, BYTES,
    )
)  # fmt: skip
def write_batches(
    plan: Any, source: Any, packed: Any, data: Any, times: Any, starts: Any, ends: Any, keep: Any, out: Any
) -> int:
    """Write batches back to back as the plan says: copied from `source` (FROM 0) or `packed` (1), empty, or rebuilt
    from the records in `data`, with room for a header before them. The bytes written, `-MISMATCH` if something does
    not fit. `out` needs `SLACK` bytes more than are written.
    """
    source_at, packed_at, data_at, out_at = address(source), address(packed), address(data), address(out)
    source_bytes, packed_bytes = len(source), len(packed)
    data_end, room = data_at + len(data), out_at + len(out) - SLACK
    times_at, starts_at, ends_at, keep_at = address(times), address(starts), address(ends), address(keep)
    to = out_at
    for batch in range(len(plan)):
        action, begin = plan[batch, ACTION], to
        if action == COPY:
            whole = packed_bytes if plan[batch, FROM] else source_bytes
            origin = packed_at if plan[batch, FROM] else source_at
            at, size = plan[batch, FROM_AT], plan[batch, FROM_SIZE]
            if at < 0 or size < 0 or size > whole - at or size > room - to:
                return -MISMATCH
            copy(to, origin + at, size, origin + whole)
            to += size
        elif action != NOTHING:
            to += HEADER_BYTES
            if to > room:
                return -MISMATCH
        if action == REBUILD:
            first, base = plan[batch, FIRST_ROW], plan[batch, BASE_TIME]
            fixed, fixed_time = plan[batch, FIXED], plan[batch, FIXED_TIME]
            for row in range(first, first + plan[batch, ROWS]):
                if load_u8(keep_at + row) == 0:
                    continue
                start, end = data_at + load_i64(starts_at + 8 * row), data_at + load_i64(ends_at + 8 * row)
                if start < data_at or end > data_end or start > end:
                    return -MISMATCH
                time = fixed_time if fixed != 0 else load_i64(times_at + 8 * row)
                to = rewrite_record(to, room, start, end, time - base, plan[batch, BASE_DELTA], data_end)
                if to == BAD:
                    return -MISMATCH
        plan[batch, OUT_AT], plan[batch, OUT_SIZE] = begin - out_at, to - begin
    written: int = to - out_at
    return written
