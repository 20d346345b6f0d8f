"""Validate produced batches like Kafka's `LogValidator`, and check the sequences of idempotent producers.

The server reads records to validate them, to determine their timestamps, and to detect missing keys, but does not
change records. Like a broker, it writes the largest timestamp to the batch header and clears the LogAppendTime bit. If
this changes the batch, it computes a new checksum. If the topic uses LogAppendTime, the server sets the bit, and the
commit defines the timestamp. The server also clears the transactional bit, because the topic's state describes which
slices belong to open and aborted transactions. Batches keep the codec of the producer: a topic's `compression.type` has
no effect.

The topic's registry has an entry for each idempotent producer and partition: the number of the last committed record.
The registry depends only on the commits, so all servers validate a batch in the same way. A retried batch is written
only once, even if another server receives the retry. The high bits of a record number are the producer epoch. The low
47 bits are the sequence of the record, which continues after 2^31 - 1, where Kafka's sequences wrap around to 0.
"""

from __future__ import annotations

from dataclasses import dataclass

from sparklog.errors import Corrupt
from sparklog.format.batch_scan import MAX_OFFSET, scan_headers
from sparklog.format.crc32c import crc32c
from sparklog.format.payloads import check_batch
from sparklog.format.record_batch import (
    CODEC_MASK,
    CODECS,
    CONTROL_BIT,
    CRC_START,
    DELETE_HORIZON_BIT,
    HEADER_BYTES,
    HEADER_STRUCT,
    LOG_APPEND_TIME_BIT,
    LOG_OVERHEAD,
    MAGIC,
    MAGIC_POSITION,
    MAX_SEQUENCE,
    NO_PRODUCER_ID,
    NO_TIMESTAMP,
    TRANSACTIONAL_BIT,
    BatchHeader,
    Codec,
)
from sparklog.log.state.configs import TopicConfigs
from sparklog.log.state.slices import SliceFlag
from sparklog.log.state.writer_runs import KAFKA_WRITER
from sparklog.serve.codes import Code, CodeError

ZSTD, ZSTD_SINCE = CODECS.index("zstd"), 7
"""The first version of Produce that supports zstd. Clients with older versions could not read zstd batches."""
_ATTRIBUTES, _CRC, _MAX_TIMESTAMP, _KNOWN_CODECS = 22, slice(17, 21), slice(35, 43), range(len(CODECS))
_PRODUCERS, _NULL_KEYS = int(SliceFlag.KAFKA_PRODUCERS), int(SliceFlag.HAS_NULL_KEYS)
_APPEND_TIME = int(SliceFlag.LOG_APPEND_TIME)
EPOCH_SHIFT = 47
_WRITTEN = (1 << EPOCH_SHIFT) - 1
_HALF = 1 << 30
"""Maximum number of sequences between a duplicate batch and the last record. Batches that are further behind are out of
order.
"""


@dataclass(slots=True, eq=False)
class CheckedBatch:
    """A valid batch, with its bytes, its sequence, and the properties that are stored in its slice.

    * `min_ts`, `max_ts`: the smallest and largest non-negative record timestamp (ms), or -1 if no record has a
      timestamp
    * `flags`: bits of `SliceFlag`
    """

    data: memoryview
    count: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    min_ts: int
    max_ts: int
    flags: int = 0


def checked_batch(records: memoryview | None, version: int, configs: TopicConfigs, now_ms: int) -> CheckedBatch:
    """Return the batch to write for the records of one partition in a Produce request of this version.

    Raises `CodeError` with a broker's error code if a topic with these configs rejects the records.
    """
    data = memoryview(bytearray(records or b""))
    size = data.nbytes
    if size < HEADER_BYTES:
        raise _frame_problem(data)
    header = HEADER_STRUCT.unpack_from(data)
    base, length, _, magic, crc, attributes, delta, base_ms, max_ms, producer, epoch, sequence, count = header
    if magic != MAGIC or length != size - LOG_OVERHEAD:
        raise _frame_problem(data)
    if crc32c(data[CRC_START:]) != crc:
        raise CodeError(Code.CORRUPT_MESSAGE, "the batch's CRC-32C does not match its bytes")
    if size > configs.max_message_bytes:
        message = f"the batch size {size} exceeds max.message.bytes ({configs.max_message_bytes})"
        raise CodeError(Code.MESSAGE_TOO_LARGE, message)
    if attributes & (CONTROL_BIT | DELETE_HORIZON_BIT):
        raise _invalid("only a transaction coordinator may write control batches")
    if count < 1 or count != delta + 1:
        raise _invalid(f"expected one offset per record, found {count} records and {delta + 1} offsets")
    codec = attributes & CODEC_MASK
    if codec == ZSTD and version < ZSTD_SINCE:
        raise CodeError(
            Code.UNSUPPORTED_COMPRESSION_TYPE,
            f"zstd compression requires Produce version {ZSTD_SINCE} or later; the request has version {version}",
        )
    if codec not in _KNOWN_CODECS:
        raise _invalid(f"expected a compression codec from 0 to 4, found {codec}")
    if base < 0:
        raise _invalid(f"expected a base offset of 0 or more, found {base}")
    if base > MAX_OFFSET - delta:
        raise _invalid(f"expected offsets up to {MAX_OFFSET}, found {base + delta}")
    batch = CheckedBatch(data, count, producer, epoch, sequence, base_ms, max_ms)
    _check_records(batch, CODECS[codec], configs, now_ms)
    return batch


def _check_records(batch: CheckedBatch, codec: Codec, configs: TopicConfigs, now_ms: int) -> None:
    """Check the records of a batch, correct its header, and set its timestamps and flags.

    When this function is called, `min_ts` and `max_ts` of the batch are the timestamps in its header. The largest
    timestamp and the LogAppendTime bit in the header are set in the same way as by a broker, regardless of the values
    that the producer has sent. For example, Sarama before 1.45.1 sends a largest timestamp of -1. A record with a
    negative timestamp is treated as a record without a timestamp. The timestamp -1 is exempt from
    `message.timestamp.before.max.ms`.
    """
    data, base_ms, sent_ms = batch.data, batch.min_ts, batch.max_ts
    try:
        low, high, earliest, keyless = check_batch(data[HEADER_BYTES:], codec, batch.count, base_ms).tolist()
    except Corrupt as error:
        raise _invalid(error.message) from None
    before, after = now_ms - configs.timestamp_before_max_ms, now_ms + configs.timestamp_after_max_ms
    is_untimely = (earliest < before or high > after) and not configs.log_append_time
    if is_untimely or (keyless and configs.is_compacted):
        raise _rejected(batch, configs, (before, after) if is_untimely else None)
    batch.flags = (_NULL_KEYS if keyless else 0) | (0 if batch.producer_id == NO_PRODUCER_ID else _PRODUCERS)
    if configs.log_append_time:
        batch.min_ts = batch.max_ts = NO_TIMESTAMP
        batch.flags |= _APPEND_TIME
        data[_ATTRIBUTES] = data[_ATTRIBUTES] & ~TRANSACTIONAL_BIT | LOG_APPEND_TIME_BIT
        data[_CRC] = crc32c(data[CRC_START:]).to_bytes(4, "big")
        return
    batch.min_ts, batch.max_ts = low, high
    if high != sent_ms or data[_ATTRIBUTES] & (LOG_APPEND_TIME_BIT | TRANSACTIONAL_BIT):
        data[_MAX_TIMESTAMP] = high.to_bytes(8, "big", signed=True)
        data[_ATTRIBUTES] &= ~(LOG_APPEND_TIME_BIT | TRANSACTIONAL_BIT)
        data[_CRC] = crc32c(data[CRC_START:]).to_bytes(4, "big")


def _rejected(batch: CheckedBatch, configs: TopicConfigs, accepted_ms: tuple[int, int] | None) -> CodeError:
    """Return the error for a batch. Like a broker, include the invalid records (KIP-467). A record is invalid if its
    timestamp is outside `accepted_ms`, or if it does not have a key and the topic is compacted.
    """
    from sparklog.format.arrow_numpy import valid_rows
    from sparklog.format.decode import decode

    # If this bit is set, `decode` returns the timestamp of the header for all records.
    batch.data[_ATTRIBUTES] &= ~LOG_APPEND_TIME_BIT
    records = decode(batch.data, scan_headers(batch.data), columns=("timestamp", "key"), check_crc=False)
    code, reasons = Code.INVALID_RECORD, dict[int, str]()
    if accepted_ms is not None:
        code, times, (before, after) = Code.INVALID_TIMESTAMP, records.timestamp, accepted_ms
        untimely = (times != NO_TIMESTAMP) & ((times < before) | (times > after))
        for index in untimely.nonzero()[0].tolist():
            reasons[index] = f"the timestamp {times[index]} is out of range; the topic accepts {before} to {after}"
    if configs.is_compacted and records.key is not None:
        keyless = (~valid_rows(records.key)).nonzero()[0].tolist()
        reasons |= dict.fromkeys(keyless, "the record has no key, but the topic is compacted")
    rows = [{"batchIndex": index, "batchIndexErrorMessage": reason} for index, reason in sorted(reasons.items())]
    first = min(reasons)
    message = f"{len(rows)} of {batch.count} records are invalid; record {first}: {reasons[first]}"
    return CodeError(code, message, record_errors=rows)


def _invalid(message: str) -> CodeError:
    return CodeError(Code.INVALID_RECORD, message)


def _frame_problem(data: memoryview) -> CodeError:
    """Return the error for bytes that are not exactly one batch of format v2."""
    magic = data[MAGIC_POSITION] if len(data) > MAGIC_POSITION else MAGIC
    if magic > MAGIC:
        return CodeError(Code.CORRUPT_MESSAGE, f"unknown message format v{magic}")
    if magic < MAGIC:
        return CodeError(
            Code.UNSUPPORTED_FOR_MESSAGE_FORMAT, "message formats v0 and v1 are not supported; use format v2"
        )
    headers = scan_headers(data, whole=False)
    return _invalid(f"expected one record batch, found {len(headers)}: {headers.reason}")


def writer_id(producer: int, partition: int) -> str:
    return f"{KAFKA_WRITER}{producer}-{partition}"


def next_number(last: int | None, batch: BatchHeader | CheckedBatch) -> int:
    """Return the number of the last record in a batch, using Kafka's rules.

    `last` is the number of the producer's last record. If it is None, the producer is unknown and may start at any
    sequence. Raises `CodeError` if the batch does not follow `last`. The code is DUPLICATE_SEQUENCE_NUMBER if the batch
    ends at or before `last`, so that it was probably already committed.
    """
    epoch, first, count = batch.producer_epoch, batch.base_sequence, batch.count
    if epoch < 0:
        raise CodeError(Code.INVALID_PRODUCER_EPOCH)
    if first < 0:
        raise CodeError(Code.INVALID_RECORD)
    begin = epoch << EPOCH_SHIFT
    if last is None:
        return begin + first + count - 1
    last_epoch, written = last >> EPOCH_SHIFT, last & _WRITTEN
    if epoch < last_epoch:
        raise CodeError(Code.INVALID_PRODUCER_EPOCH)
    if epoch > last_epoch and first == 0:
        return begin + count - 1
    ahead = (first - (written + 1)) & MAX_SEQUENCE
    if epoch == last_epoch and ahead == 0:
        return last + count
    behind = MAX_SEQUENCE + 1 - ahead
    is_committed = epoch == last_epoch and behind <= _HALF and count <= behind
    raise CodeError(Code.DUPLICATE_SEQUENCE_NUMBER if is_committed else Code.OUT_OF_ORDER_SEQUENCE_NUMBER)
