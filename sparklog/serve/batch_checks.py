"""The checks of a produced batch, as Kafka's `LogValidator` makes them, and what a slice says of it.

Records are read to see that they fit, for their least time and for keys that are missing; they stay as they came. Under
LogAppendTime the batch is given its bit and another checksum; the time itself comes with the commit. The codec stays
the producer's: a topic's `compression.type` changes nothing here.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from crc32c import crc32c

from sparklog.errors import Corrupt
from sparklog.format.batch_scan import crc_failures, scan_headers
from sparklog.format.payloads import payloads, record_fields
from sparklog.format.record_batch import (
    CODECS,
    CRC_START,
    LOG_APPEND_TIME_BIT,
    NO_PRODUCER_ID,
    BatchHeader,
)
from sparklog.log.state.configs import TopicConfigs
from sparklog.log.state.slices import SliceFlag
from sparklog.serve.codes import Code

ZSTD, ZSTD_SINCE = CODECS.index("zstd"), 7
"""Older versions of Produce are of clients that cannot read what they send."""
_ATTRIBUTES, _CRC = slice(21, 23), slice(17, 21)


class Rejected(Exception):  # noqa: N818
    """A batch that is not taken, with the code that says so."""

    def __init__(self, code: Code, message: str) -> None:
        super().__init__(message)
        self.code = code


@dataclass(slots=True, eq=False)
class ProducedBatch:
    """A batch of a producer, checked: its bytes, and what a slice says of it. `min_ts`, `max_ts`: ms."""

    partition: int
    data: bytearray
    header: BatchHeader
    min_ts: int
    max_ts: int
    flags: SliceFlag

    @property
    def is_idempotent(self) -> bool:
        return self.header.producer_id != NO_PRODUCER_ID


def checked_batch(
    partition: int, records: memoryview | None, configs: TopicConfigs, now_ms: int, version: int
) -> ProducedBatch:
    """Return the one batch that a producer sent for a partition. Raises `Rejected`."""
    data = bytearray(records or b"")
    headers = scan_headers(data, whole=False)
    if headers.stop != "end" or len(headers) != 1:
        raise Rejected(Code.INVALID_RECORD, f"expected one record batch, found {len(headers)}: {headers.reason}")
    if headers.magic is not None:
        raise Rejected(Code.UNSUPPORTED_FOR_MESSAGE_FORMAT, "messages of formats v0 and v1 are not taken")
    header = headers.row(0)
    if len(crc_failures(data, headers)):
        raise Rejected(Code.CORRUPT_MESSAGE, "the batch's CRC-32C does not match its bytes")
    if len(data) > configs.max_message_bytes:
        raise Rejected(Code.MESSAGE_TOO_LARGE, f"{len(data)} bytes, max.message.bytes is {configs.max_message_bytes}")
    if headers.is_control[0] or headers.has_delete_horizon[0]:
        raise Rejected(Code.INVALID_RECORD, "control batches are a coordinator's")
    if header.count < 1 or header.count != header.last_offset_delta + 1:
        raise Rejected(Code.INVALID_RECORD, f"{header.count} records have {header.last_offset_delta + 1} offsets")
    if (header.attributes & 7) == ZSTD and version < ZSTD_SINCE:
        raise Rejected(Code.UNSUPPORTED_COMPRESSION_TYPE, f"zstd in Produce {version}")
    if headers.is_log_append_time[0]:
        raise Rejected(Code.INVALID_TIMESTAMP, "a producer gives no LogAppendTime")
    return _described(partition, data, header, configs, now_ms)


def _described(
    partition: int, data: bytearray, header: BatchHeader, configs: TopicConfigs, now_ms: int
) -> ProducedBatch:
    headers = scan_headers(data)
    try:
        fields = record_fields(payloads(data, headers, check_crc=False), headers)
    except Corrupt as error:
        raise Rejected(Code.INVALID_RECORD, error.message) from None
    if len(fields) != header.count or not np.array_equal(
        fields.offset - header.base_offset, np.arange(header.count, dtype=np.int64)
    ):
        raise Rejected(Code.INVALID_RECORD, "offsets in a batch count from 0")
    flags = SliceFlag.NONE if header.producer_id == NO_PRODUCER_ID else SliceFlag.KAFKA_PRODUCERS
    if not fields.has_key.all():
        if configs.is_compacted:
            raise Rejected(Code.INVALID_RECORD, "the topic is compacted: every record needs a key")
        flags |= SliceFlag.HAS_NULL_KEYS
    if configs.log_append_time:
        stamped = data[_ATTRIBUTES]
        stamped[1] |= LOG_APPEND_TIME_BIT
        data[_ATTRIBUTES] = stamped
        data[_CRC] = crc32c(memoryview(data)[CRC_START:]).to_bytes(4, "big")
        return ProducedBatch(partition, data, header, -1, -1, flags | SliceFlag.LOG_APPEND_TIME)
    low, high = int(fields.timestamp.min()), int(fields.timestamp.max())
    before, after = now_ms - configs.timestamp_before_max_ms, now_ms + configs.timestamp_after_max_ms
    if low < max(before, 0) or high > after:
        raise Rejected(Code.INVALID_TIMESTAMP, f"times are {low} to {high}, the topic takes {before} to {after}")
    if high != header.max_timestamp:
        raise Rejected(Code.INVALID_TIMESTAMP, f"the greatest time is {high}, the batch says {header.max_timestamp}")
    return ProducedBatch(partition, data, header, low, high, flags)
