"""Final offsets, leader epochs and append times in batches that were written without them, in place.

Base offset and leader epoch lie before what the CRC covers. The append time (max timestamp of a LogAppendTime batch)
lies within: the CRC is then corrected by the bits that change, without reading the batch, so that a batch whose CRC was
wrong before has a wrong one after it: damage does not become valid.
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


def rewrite_headers(
    data: BytesLike,
    headers: BatchHeaders,
    *,
    offset_shift: int = 0,
    leader_epoch: int | None = None,
    append_time: int | None = None,
) -> BatchHeaders:
    """Change the batches of `data` (writable) that `headers` (of a scan of it) names; returns their headers after it.

    `offset_shift` is added to base offsets; `leader_epoch` is set where given; so is `append_time` (ms), as the max
    timestamp of LogAppendTime batches, whose CRCs follow.

    Raises `BadRequest`: data that cannot be written to, batches outside it, an offset, epoch or time out of range.
    """
    source = as_bytes_array(data)
    if not source.flags.writeable and len(source):
        raise BadRequest("headers are rewritten in place: expected writable data, found read-only")
    if not len(headers):
        return headers
    if bool(((headers.position < 0) | (headers.position + headers.size > len(source))).any()):
        raise BadRequest(f"a batch lies outside the {len(source)} bytes of data")
    if leader_epoch is not None and not -1 <= leader_epoch < 2**31:
        raise BadRequest(f"a leader epoch is -1 to {2**31 - 1}, found {leader_epoch}")
    if append_time is not None and not -1 <= append_time <= MAX_OFFSET:
        raise BadRequest(f"an append time is -1 (none) or more, found {append_time}")
    last = int(np.argmax(headers.base_offset))
    low = int(headers.base_offset.min()) + offset_shift
    high = int(headers.base_offset[last]) + int(headers.last_offset_delta[last]) + offset_shift
    if low < 0 or high > MAX_OFFSET:
        raise BadRequest(f"offsets are 0 to {MAX_OFFSET}, found {low} to {high} after a shift by {offset_shift}")
    windows = np.lib.stride_tricks.sliding_window_view(source, HEADER_BYTES, writeable=True)
    after = headers
    if offset_shift:
        after = replace(after, base_offset=headers.base_offset + offset_shift)
        windows[headers.position, :8] = after.base_offset.astype(">i8").view(np.uint8).reshape(-1, 8)
    if leader_epoch is not None:
        after = replace(after, leader_epoch=np.full(len(headers), leader_epoch, np.int64))
        epoch = np.frombuffer(leader_epoch.to_bytes(4, "big", signed=True), np.uint8)
        windows[headers.position, _LEADER_EPOCH : _LEADER_EPOCH + 4] = epoch
    if append_time is not None:
        after = _with_append_time(windows, after, append_time)
    return after


def _with_append_time(windows: npt.NDArray[np.uint8], headers: BatchHeaders, append_time: int) -> BatchHeaders:
    rows = np.flatnonzero(headers.is_log_append_time & (headers.max_timestamp != append_time))
    if not len(rows):
        return headers
    from sparklog.format._kernels_crc import change_crcs

    position = headers.position[rows]
    behind = headers.size[rows] - (_MAX_TIMESTAMP + 8)
    changed: Int64Array = headers.max_timestamp[rows] ^ append_time
    crc, max_timestamp = headers.crc.copy(), headers.max_timestamp.copy()
    crc[rows] = change_crcs(crc[rows], changed, behind)
    max_timestamp[rows] = append_time
    time = np.frombuffer(append_time.to_bytes(8, "big", signed=True), np.uint8)
    windows[position, _MAX_TIMESTAMP : _MAX_TIMESTAMP + 8] = time
    windows[position, _CRC : _CRC + 4] = crc[rows].astype(">u4").view(np.uint8).reshape(-1, 4)
    return replace(headers, crc=crc, max_timestamp=max_timestamp)
