"""Records of batches as uncompressed bytes of format v2, whatever the batches' codec and format.

This is the first step of everything that reads records: `decode` makes columns of them, `record_fields` finds where
they lie, `filter_batches` writes some of them again. Here alone are batches decompressed, and messages of formats v0
and v1 turned into records of format v2.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from sparklog.errors import BadRequest, Corrupt
from sparklog.format import compression
from sparklog.format.batch_checks import Place, check_crcs, check_headers
from sparklog.format.record_batch import (
    CODECS,
    HEADER_BYTES,
    BatchHeaders,
    BytesLike,
    Int64Array,
    as_bytes_array,
    joined,
)

GROUP_BYTES = 1 << 20
CALL_LIMIT = 1 << 30
"""Bytes that the compressed batches of one call may become."""
_LEGACY = 2


@dataclass(frozen=True, slots=True, eq=False)
class Payloads:
    """Uncompressed records of m batches: those of batch i are `data[start[i] : end[i]]` (uint8; int64[m]).

    A batch without records has none, whatever stands behind its header. `data` may be the input itself: do not write
    into it.
    """

    data: npt.NDArray[np.uint8]
    start: Int64Array
    end: Int64Array

    def __len__(self) -> int:
        return len(self.start)


@dataclass(frozen=True, slots=True, eq=False)
class PayloadGroup:
    """Records of batches `[first, last)`: those of batch `first + i` are `data[start[i] : stop[i]]`.

    `stored`: their bytes as stored; `plain`: `data` is the input itself.
    """

    data: npt.NDArray[np.uint8]
    start: Int64Array
    stop: Int64Array
    first: int
    last: int
    stored: int
    plain: bool = False


def payloads(
    data: BytesLike, headers: BatchHeaders, *, check_crc: bool = True, file: str | None = None, file_position: int = 0
) -> Payloads:
    """Return the records of the batches that `headers` (of a scan of `data`, or some rows of one) names.

    Raises `Corrupt` with the place in `file`, whose byte `file_position` is `data[0]`: header fields that no writer
    writes, a wrong CRC (unless `check_crc` is off), a payload that cannot be decompressed or goes beyond its limit
    (`compression.decompressed_limit`). `BadRequest` where all of them together become more than 1 GiB: pass fewer
    batches.
    """
    source = as_bytes_array(data)
    place = Place(file, file_position)
    check_headers(headers, place, len(source))
    if check_crc:
        check_crcs(data, headers, place)
    groups: list[PayloadGroup] = []
    inflated = 0
    for group in payload_groups(source, headers, place, group_bytes=CALL_LIMIT):
        groups.append(group)
        inflated += 0 if group.plain else len(group.data)
        if inflated > CALL_LIMIT:
            raise BadRequest(f"the batches hold more than {CALL_LIMIT} bytes: read fewer batches at a time")
    if len(groups) == 1:
        return Payloads(groups[0].data, groups[0].start, groups[0].stop)
    parts: list[npt.NDArray[np.uint8]] = [source[:0]]
    start, end = np.zeros(len(headers), np.int64), np.zeros(len(headers), np.int64)
    filled = 0
    for group in groups:
        low, high = int(group.start.min()), int(group.stop.max())
        rows = slice(group.first, group.last)
        start[rows], end[rows] = group.start + (filled - low), group.stop + (filled - low)
        parts.append(group.data[low:high])
        filled += high - low
    return Payloads(np.concatenate(parts), start, end)


def payload_groups(
    data: npt.NDArray[np.uint8], headers: BatchHeaders, place: Place, *, group_bytes: int = GROUP_BYTES
) -> Iterator[PayloadGroup]:
    """Give neighbouring batches of one kind at a time, compressed ones about `group_bytes` at a time.

    Payloads of batches without records are not looked at. Raises `Corrupt` and `BadRequest` as `payloads` does.
    """
    kind = ((headers.codec != 0) & (headers.count > 0)).astype(np.int8)
    kind[headers.is_legacy] = _LEGACY
    start = headers.position + HEADER_BYTES
    stop = np.where(headers.count == 0, start, headers.position + headers.size)
    edges = np.flatnonzero(np.diff(kind)) + 1
    for low, high in zip([0, *edges.tolist()], [*edges.tolist(), len(headers)], strict=True):
        if low == high:
            continue
        if kind[low] == _LEGACY:
            yield from _translated(data, headers, low, high, place)
        elif kind[low]:
            for group in _decompressed(data, headers[low:high], place, group_bytes):
                yield replace(group, first=low + group.first, last=low + group.last)
        else:
            stored = int((stop[low:high] - start[low:high]).sum())
            yield PayloadGroup(data, start[low:high], stop[low:high], low, high, stored, plain=True)


def _translated(
    data: npt.NDArray[np.uint8], headers: BatchHeaders, low: int, high: int, place: Place
) -> Iterator[PayloadGroup]:
    from sparklog.format.legacy import old_messages

    for part in old_messages.records(data, headers, low, high, place):
        stored = int((headers.size[part.first : part.last] - HEADER_BYTES).sum())
        yield PayloadGroup(part.data, part.start, part.stop, part.first, part.last, max(stored, 1))


def _decompressed(
    data: npt.NDArray[np.uint8], headers: BatchHeaders, place: Place, group_bytes: int
) -> Iterator[PayloadGroup]:
    view = data.data
    columns = (headers.position.tolist(), headers.size.tolist(), headers.codec.tolist())
    parts: list[bytes] = []
    filled = stored = total = first = 0
    for batch, (position, size, codec) in enumerate(zip(*columns, strict=True)):
        payload = view[position + HEADER_BYTES : position + size]
        try:
            part = compression.decompress(CODECS[codec], payload)
        except Corrupt as error:
            raise place.corrupt(headers, batch, f"the batch cannot be decompressed: {error.message}") from None
        parts.append(part)
        filled += len(part)
        total += len(part)
        if total > CALL_LIMIT:
            raise BadRequest(f"the batches hold more than {CALL_LIMIT} bytes: read fewer batches at a time")
        stored += payload.nbytes
        if filled >= group_bytes or batch == len(headers) - 1:
            whole, start, stop = joined(parts)
            yield PayloadGroup(whole, start, stop, first, batch + 1, stored)
            parts, filled, stored, first = [], 0, 0, batch + 1
