"""Final offsets, leader epochs and append times in batches that were written without them, in place.

Base offset and leader epoch lie before what the CRC covers. The append time (max timestamp of a LogAppendTime batch)
lies within: the CRC is then corrected by the bits that change, without reading the batch, so that a batch whose CRC was
wrong before has a wrong one after it: damage does not become valid.

Values may differ from batch to batch: what comes from a hundred thousand slices is written in one go.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from sparklog.errors import BadRequest
from sparklog.format.batch_checks import MAX_OFFSET
from sparklog.format.record_batch import HEADER_BYTES, BatchHeaders, BytesLike, Int64Array, as_bytes_array

_LEADER_EPOCH = 12
_CRC = 17
_MAX_TIMESTAMP = 35
_MAX_LEADER_EPOCH = 2**31 - 1
_INT64_MAX = 2**63 - 1


def rewrite_headers(
    data: BytesLike,
    headers: BatchHeaders,
    *,
    offset_shift: int | Int64Array = 0,
    leader_epoch: int | Int64Array | None = None,
    append_time: int | Int64Array | None = None,
) -> BatchHeaders:
    """Change the batches of `data` (writable) that `headers` (of a scan of it) names; returns their headers after it.

    `offset_shift` is added to base offsets; `leader_epoch` is set where given; so is `append_time` (ms), as the max
    timestamp of LogAppendTime batches, whose CRCs follow. Each is one number for all batches or an int64 array with one
    for each batch; -1 in an array of epochs or times leaves that batch's own, while the number -1 sets it to "none".

    Raises `BadRequest`, with nothing changed: data that cannot be written to, batches outside it, an offset, epoch or
    time out of range, an array that has not one value for each batch.
    """
    source = as_bytes_array(data)
    if not source.flags.writeable and len(source):
        raise BadRequest("headers are rewritten in place: expected writable data, found read-only")
    shift = _column("an offset shift", offset_shift, len(headers), -_INT64_MAX, _INT64_MAX)
    epochs = _column("a leader epoch", leader_epoch, len(headers), -1, _MAX_LEADER_EPOCH)
    times = _column("an append time", append_time, len(headers), -1, _INT64_MAX)
    if not len(headers):
        return headers
    if bool(((headers.position < 0) | (headers.position + headers.size > len(source))).any()):
        raise BadRequest(f"a batch lies outside the {len(source)} bytes of data")
    after = replace(headers, base_offset=_shifted(headers, shift))
    windows = np.lib.stride_tricks.sliding_window_view(source, HEADER_BYTES, writeable=True)
    if shift.any():
        windows[headers.position, :8] = after.base_offset.astype(">i8").view(np.uint8).reshape(-1, 8)
    if leader_epoch is not None:
        rows = _rows(leader_epoch, epochs)
        after = replace(after, leader_epoch=_with(after.leader_epoch, rows, epochs))
        epoch = epochs[rows].astype(">i4").view(np.uint8).reshape(-1, 4)
        windows[headers.position[rows], _LEADER_EPOCH : _LEADER_EPOCH + 4] = epoch
    if append_time is not None:
        after = _with_append_time(windows, after, times, _rows(append_time, times))
    return after


def _column(name: str, given: int | Int64Array | None, n: int, low: int, high: int) -> Int64Array:
    """One value per batch, each of them in range."""
    if given is None or isinstance(given, int):
        value = -1 if given is None else given
        if not low <= value <= high:
            raise BadRequest(f"{name} is {low} to {high}, found {value}")
        return np.full(n, value, np.int64)
    if given.shape != (n,) or given.dtype != np.int64:
        raise BadRequest(f"expected int64[{n}], {name} for each batch, found {given.dtype}{list(given.shape)}")
    if n and not low <= (least := int(given.min())) <= int(given.max()) <= high:
        raise BadRequest(f"{name} is {low} to {high}, found {least} to {int(given.max())}")
    return given


def _rows(given: int | Int64Array, values: Int64Array) -> Int64Array:
    """Which batches get their value: all of them where one was given for all."""
    return np.arange(len(values)) if isinstance(given, int) else np.flatnonzero(values >= 0)


def _with(column: Int64Array, rows: Int64Array, values: Int64Array) -> Int64Array:
    changed: Int64Array = column.copy()
    changed[rows] = values[rows]
    return changed


def _shifted(headers: BatchHeaders, shift: Int64Array) -> Int64Array:
    """Base offsets after the shift. A sum that leaves the int64s shows as negative, but for two negative terms."""
    base = headers.base_offset
    moved: Int64Array = base + shift
    beyond = moved > MAX_OFFSET - np.maximum(headers.last_offset_delta, 0)
    wrong = (moved < 0) | ((base < 0) & (shift <= 0)) | beyond
    if wrong.any():
        first = int(np.argmax(wrong))
        by = int(shift[first])
        low = int(base[first]) + by
        high = low + int(headers.last_offset_delta[first])
        raise BadRequest(f"offsets are 0 to {MAX_OFFSET}, found {low} to {high} after a shift by {by}")
    return moved


def _with_append_time(
    windows: npt.NDArray[np.uint8], headers: BatchHeaders, times: Int64Array, rows: Int64Array
) -> BatchHeaders:
    if not len(rows):
        return headers
    rows = rows[headers.is_log_append_time[rows] & (headers.max_timestamp[rows] != times[rows])]
    if not len(rows):
        return headers
    from sparklog.format.kernels.hash_kernels import change_crcs

    position = headers.position[rows]
    behind = headers.size[rows] - (_MAX_TIMESTAMP + 8)
    changed: Int64Array = headers.max_timestamp[rows] ^ times[rows]
    crc = headers.crc.copy()
    crc[rows] = change_crcs(crc[rows], changed, behind)
    windows[position, _MAX_TIMESTAMP : _MAX_TIMESTAMP + 8] = times[rows].astype(">i8").view(np.uint8).reshape(-1, 8)
    windows[position, _CRC : _CRC + 4] = crc[rows].astype(">u4").view(np.uint8).reshape(-1, 4)
    return replace(headers, crc=crc, max_timestamp=_with(headers.max_timestamp, rows, times))
