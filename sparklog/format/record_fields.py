"""Positions of records in their batches, with offset, time, key and tombstone mark: all that cleaning decides by.

The counterpart of `decode` for code that keeps or drops records but does not look at their values: nothing is copied,
each record costs 50 bytes of columns. The rules that are checked are those of `decode`, headers of records included.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sparklog.errors import BadRequest
from sparklog.format.arrow_input import new_array
from sparklog.format.batch_checks import Place, record_message
from sparklog.format.payloads import Payloads
from sparklog.format.record_batch import HEADER_BYTES, MIN_RECORD_BYTES, BatchHeaders, BoolArray, Int64Array


@dataclass(frozen=True, slots=True, eq=False)
class RecordFields:
    """n records of m batches, in log order, one array per field.

    * `batch`: int32[n], row of the record's batch in the headers; `batch_rows`: int64[m], records of each batch
    * `offset`: int64[n]
    * `timestamp`: int64[n], ms, as written (base + delta): under LogAppendTime the batch's max timestamp holds instead
    * `start`, `end`: int64[n], the whole record with its length, in `Payloads.data`
    * `has_key`, `has_value`: bool[n]
    * `key_start`: int64[n], in `Payloads.data`; `key_length`: int32[n], -1 without a key
    """

    batch: npt.NDArray[np.int32]
    offset: Int64Array
    timestamp: Int64Array
    start: Int64Array
    end: Int64Array
    has_key: BoolArray
    has_value: BoolArray
    key_start: Int64Array
    key_length: npt.NDArray[np.int32]
    batch_rows: Int64Array

    def __len__(self) -> int:
        return len(self.offset)


def record_fields(
    payloads: Payloads, headers: BatchHeaders, *, file: str | None = None, file_position: int = 0
) -> RecordFields:
    """Return the records of all batches. `payloads` is of the same `headers`.

    Raises `Corrupt` with the place in `file`, whose byte `file_position` is the first one of the data that the headers
    were scanned in: records that do not fit, whose fields do not end at their length, whose offsets do not increase or
    leave their batch, or behind which the batch goes on.
    """
    from sparklog.format.kernels import record_kernels as kernels

    if len(payloads) != len(headers):
        raise BadRequest(f"payloads of {len(payloads)} batches are given for {len(headers)} headers")
    if bool(((payloads.start < 0) | (payloads.end > len(payloads.data))).any()):
        raise BadRequest(f"payloads lie outside their {len(payloads.data)} bytes of data")
    place = Place(file, file_position)
    count = np.ascontiguousarray(headers.count)
    crowded = count * MIN_RECORD_BYTES > payloads.end - payloads.start
    if crowded.any():
        batch = int(np.argmax(crowded))
        raise place.corrupt(headers, batch, f"{int(count[batch])} records do not fit into the batch")
    n = int(count.sum())
    fields = RecordFields(
        batch=new_array(n, np.int32),
        offset=new_array(n, np.int64),
        timestamp=new_array(n, np.int64),
        start=new_array(n, np.int64),
        end=new_array(n, np.int64),
        has_key=new_array(n, np.bool_),
        has_value=new_array(n, np.bool_),
        key_start=new_array(n, np.int64),
        key_length=new_array(n, np.int32),
        batch_rows=count,
    )
    state = np.zeros(kernels.STATE_SIZE, np.int64)
    code = kernels.find_records.sized(n)(
        payloads.data, np.ascontiguousarray(payloads.start), np.ascontiguousarray(payloads.end), count,
        np.ascontiguousarray(headers.base_offset), np.ascontiguousarray(headers.base_timestamp),
        np.ascontiguousarray(headers.last_offset_delta), fields.batch, fields.offset, fields.timestamp, fields.start,
        fields.end, fields.has_key.view(np.uint8), fields.has_value.view(np.uint8), fields.key_start,
        fields.key_length, state
    )  # fmt: skip
    if code != kernels.OK:
        batch = int(state[kernels.ERROR_BATCH])
        plain = int(headers.codec[batch]) == 0
        at = HEADER_BYTES + int(state[kernels.ERROR_POSITION]) - int(payloads.start[batch]) if plain else 0
        raise place.corrupt(headers, batch, record_message(code), int(state[kernels.ERROR_OFFSET]), at)
    return fields
