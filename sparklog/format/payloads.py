"""The records of a run of batches as plain bytes: compressed batches are decompressed, plain ones stay where they are.

This is the first step of everything that looks into records without making columns of them (a cleaner, above all):
`record_fields` then finds the records, `filter_batches` writes some of them again, both straight from these bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from sparklog.errors import BadRequest, Corrupt
from sparklog.format import compression
from sparklog.format.batch_checks import Place, check_crcs, check_headers
from sparklog.format.record_batch import CODECS, HEADER_BYTES, BatchHeaders, BytesLike, Int64Array, as_bytes_array

CALL_LIMIT = 1 << 30
"""Bytes that the compressed batches of one call may become."""


@dataclass(frozen=True, slots=True, eq=False)
class Payloads:
    """Uncompressed records of m batches: those of batch i are `data[start[i] : end[i]]` (uint8; int64[m]).

    A batch without records has none, whatever stands behind its header. `data` is the input itself where no batch is
    compressed: do not write into it.
    """

    data: npt.NDArray[np.uint8]
    start: Int64Array
    end: Int64Array

    def __len__(self) -> int:
        return len(self.start)


def payloads(
    data: BytesLike,
    headers: BatchHeaders,
    *,
    check_crc: bool = True,
    file: str | None = None,
    file_position: int = 0,
) -> Payloads:
    """The records of the batches that `headers` (of a scan of `data`, or some rows of one) names.

    Raises `Corrupt` with the place in `file`, whose byte `file_position` is `data[0]`: header fields that nobody
    writes, a wrong CRC (unless `check_crc` is off), a payload that cannot be decompressed or goes beyond its limit
    (`compression.decompressed_limit`). `BadRequest` where all of them together become more than 1 GiB: pass fewer
    batches.
    """
    source = as_bytes_array(data)
    place = Place(file, file_position)
    check_headers(headers, place, len(source))
    if check_crc:
        check_crcs(data, headers, place)
    start = headers.position + HEADER_BYTES
    end = np.where(headers.count == 0, start, headers.position + headers.size)
    packed = (headers.codec != 0) & (headers.count > 0)
    if headers.magic is not None:
        return _mixed(source, headers, packed, start, end, place)
    if not packed.any():
        return Payloads(source, start, end)
    return _unpacked(source, headers, packed, start, end, place)


def _unpacked(
    source: npt.NDArray[np.uint8],
    headers: BatchHeaders,
    packed: npt.NDArray[np.bool_],
    start: Int64Array,
    end: Int64Array,
    place: Place,
) -> Payloads:
    """Decompress batch by batch; neighbouring plain batches are copied in one piece, headers included."""
    view = source.data
    first = np.ones(len(headers), np.bool_)
    first[1:] = packed[1:] | packed[:-1] | (headers.position[1:] != headers.position[:-1] + headers.size[:-1])
    runs = np.flatnonzero(first).tolist()
    parts: list[BytesLike] = []
    shift = np.zeros(len(headers), np.int64)
    filled = inflated = 0
    for low, high in zip(runs, [*runs[1:], len(headers)], strict=True):
        if packed[low]:
            part: BytesLike = _decompressed(view[int(start[low]) : int(end[low])], headers, low, place)
            inflated += len(part)
            if inflated > CALL_LIMIT:
                raise BadRequest(f"the batches hold more than {CALL_LIMIT} bytes: pass fewer batches at a time")
            start[low], end[low] = filled, filled + len(part)
        else:
            begin = int(headers.position[low])
            part = view[begin : int(headers.position[high - 1] + headers.size[high - 1])]
            shift[low:high] = filled - begin
        parts.append(part)
        filled += len(part)
    return Payloads(as_bytes_array(b"".join(parts)), start + shift, end + shift)


def _mixed(
    source: npt.NDArray[np.uint8],
    headers: BatchHeaders,
    packed: npt.NDArray[np.bool_],
    start: Int64Array,
    end: Int64Array,
    place: Place,
) -> Payloads:
    """The same where messages of formats v0 and v1 lie among the batches: their records are those of format v2."""
    from sparklog.format.legacy import old_messages

    old = headers.is_legacy
    edges = [0, *(np.flatnonzero(np.diff(old)) + 1).tolist(), len(headers)]
    parts: list[npt.NDArray[np.uint8]] = []
    filled = 0
    for low, high in pairwise(edges):
        if low < high and old[low]:
            for found in old_messages.records(source, headers, low, high, place):
                rows = slice(found.first, found.last)
                start[rows], end[rows] = found.start + filled, found.stop + filled
                parts.append(found.data[: int(found.stop[-1])])
                filled += len(parts[-1])
        elif low < high:
            run = slice(low, high)
            body = _unpacked(source, headers[run], packed[run], start[run].copy(), end[run].copy(), place)
            start[run], end[run] = body.start + filled, body.end + filled
            parts.append(body.data)
            filled += len(body.data)
    return Payloads(np.concatenate(parts) if parts else source, start, end)


def _decompressed(payload: memoryview, headers: BatchHeaders, batch: int, place: Place) -> bytes:
    try:
        return compression.decompress(CODECS[int(headers.codec[batch])], payload)
    except Corrupt as error:
        message = f"the batch cannot be decompressed: {error.message}"
        raise place.corrupt(headers, batch, message) from None
