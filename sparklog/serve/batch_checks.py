"""The checks of produced batches, as Kafka's `LogValidator` makes them, what a slice says of each, and sequences.

The server reads records to validate them, to get their timestamps, and to find missing keys; it does not change them.
Like a broker, it writes the largest timestamp into the header and clears the LogAppendTime bit, and computes a new
checksum if that changes the batch. Under LogAppendTime it sets the bit instead; the commit sets the timestamp.
The producer's codec is kept: a topic's `compression.type` has no effect here.

Of an idempotent producer the topic's registry has an entry for each partition: the number of the last record that
landed. It is of the commits alone, so every server says the same of a batch, and a retry is written once, whichever
server it meets. A number is the epoch, then how many records the producer has written under it (47 bits), the last of
them counted: a sequence itself begins again after 2^31 - 1.
"""

from __future__ import annotations

from collections.abc import Mapping
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
    BatchHeader,
    Codec,
)
from sparklog.log.state.configs import TopicConfigs
from sparklog.log.state.slices import SliceFlag
from sparklog.log.state.writer_runs import KAFKA_WRITER, WriterEntry
from sparklog.serve.codes import Code, CodeError

ZSTD, ZSTD_SINCE = CODECS.index("zstd"), 7
"""Older versions of Produce are of clients that cannot read what they send."""
_ATTRIBUTES, _CRC, _MAX_TIMESTAMP, _KNOWN_CODECS = 22, slice(17, 21), slice(35, 43), range(len(CODECS))
_PRODUCERS, _NULL_KEYS = int(SliceFlag.KAFKA_PRODUCERS), int(SliceFlag.HAS_NULL_KEYS)
_APPEND_TIME = int(SliceFlag.LOG_APPEND_TIME)
EPOCH_SHIFT = 47
_WRITTEN = (1 << EPOCH_SHIFT) - 1
_HALF = 1 << 30


@dataclass(slots=True, eq=False)
class ProducedBatch:
    """A batch of a producer, checked: its bytes, its place in the producer's numbers, and what a slice says of it.

    * `min_ts`, `max_ts`: the smallest and largest non-negative timestamp of its records in ms; -1 without any
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


def checked_batch(records: memoryview | None, version: int, configs: TopicConfigs, now_ms: int) -> ProducedBatch:
    """Return what was sent in this version of Produce as it is written: one batch.

    Raises `CodeError`, which says why a topic with these configs does not take it.
    """
    data = memoryview(bytearray(records or b""))
    size, most = data.nbytes, configs.max_message_bytes
    if size < HEADER_BYTES:
        raise _frame_problem(data)
    header = HEADER_STRUCT.unpack_from(data)
    base, length, _, magic, crc, attributes, delta, base_ms, max_ms, producer, epoch, sequence, count = header
    if magic != MAGIC or length != size - LOG_OVERHEAD:
        raise _frame_problem(data)
    if crc32c(data[CRC_START:]) != crc:
        raise CodeError(Code.CORRUPT_MESSAGE, "the batch's CRC-32C does not match its bytes")
    if size > most:
        raise CodeError(Code.MESSAGE_TOO_LARGE, f"{size} bytes, max.message.bytes is {most}")
    if attributes & (CONTROL_BIT | DELETE_HORIZON_BIT):
        raise _invalid("control batches are a coordinator's")
    if count < 1 or count != delta + 1:
        raise _invalid(f"{count} records have {delta + 1} offsets")
    codec = attributes & CODEC_MASK
    if codec == ZSTD and version < ZSTD_SINCE:
        raise CodeError(Code.UNSUPPORTED_COMPRESSION_TYPE, f"zstd in Produce {version}")
    if codec not in _KNOWN_CODECS:
        raise _invalid("the batch names an unknown compression codec (5 to 7)")
    if base < 0:
        raise _invalid("the batch has a negative base offset")
    if base > MAX_OFFSET - delta:
        raise _invalid(f"the batch's offsets go beyond {MAX_OFFSET}")
    batch = ProducedBatch(data, count, producer, epoch, sequence, base_ms, max_ms)
    _check_records(batch, CODECS[codec], configs, now_ms)
    return batch


def _check_records(batch: ProducedBatch, codec: Codec, configs: TopicConfigs, now_ms: int) -> None:
    """Check the records of a batch, correct its header, and set its timestamps and flags.

    `min_ts` and `max_ts` of the batch are the timestamps of its header before the call. The broker sets the largest
    timestamp of the header and the LogAppendTime bit, whatever a producer sends: Sarama before 1.45.1 sends a largest
    timestamp of -1. A negative record timestamp means none; -1 is exempt from `message.timestamp.before.max.ms`.
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
        data[_ATTRIBUTES] |= LOG_APPEND_TIME_BIT
        data[_CRC] = crc32c(data[CRC_START:]).to_bytes(4, "big")
        return
    batch.min_ts, batch.max_ts = low, high
    if high != sent_ms or data[_ATTRIBUTES] & LOG_APPEND_TIME_BIT:
        data[_MAX_TIMESTAMP] = high.to_bytes(8, "big", signed=True)
        data[_ATTRIBUTES] &= ~LOG_APPEND_TIME_BIT
        data[_CRC] = crc32c(data[CRC_START:]).to_bytes(4, "big")


def _rejected(batch: ProducedBatch, configs: TopicConfigs, accepted_ms: tuple[int, int] | None) -> CodeError:
    """Return the error for a batch, with its invalid records, as a broker does (KIP-467).

    Invalid records have a timestamp outside `accepted_ms` or, in a compacted topic, no key.
    """
    from sparklog.format.arrow_numpy import valid_rows
    from sparklog.format.decode import decode

    # If the bit is set, `decode` returns the header's timestamp for all records.
    batch.data[_ATTRIBUTES] &= ~LOG_APPEND_TIME_BIT
    records = decode(batch.data, scan_headers(batch.data), columns=("timestamp", "key"), check_crc=False)
    code, reasons = Code.INVALID_RECORD, dict[int, str]()
    if accepted_ms is not None:
        code, times, (before, after) = Code.INVALID_TIMESTAMP, records.timestamp, accepted_ms
        untimely = (times != NO_TIMESTAMP) & ((times < before) | (times > after))
        for index in untimely.nonzero()[0].tolist():
            reasons[index] = f"its timestamp is {times[index]}, the topic accepts {before} to {after}"
    if configs.is_compacted and records.key is not None:
        keyless = (~valid_rows(records.key)).nonzero()[0].tolist()
        reasons |= dict.fromkeys(keyless, "it has no key, and the topic is compacted")
    rows = [{"batchIndex": index, "batchIndexErrorMessage": reason} for index, reason in sorted(reasons.items())]
    first = min(reasons)
    message = f"{len(rows)} of {batch.count} records cannot be accepted; record {first}: {reasons[first]}"
    return CodeError(code, message, recordErrors=rows)


def _invalid(message: str) -> CodeError:
    return CodeError(Code.INVALID_RECORD, message)


def _frame_problem(data: memoryview) -> CodeError:
    """Return why these bytes are not one whole batch of magic 2."""
    magic = data[MAGIC_POSITION] if len(data) > MAGIC_POSITION else MAGIC
    if magic > MAGIC:
        return CodeError(Code.CORRUPT_MESSAGE, f"messages of format v{magic} are not known")
    if magic < MAGIC:
        return CodeError(Code.UNSUPPORTED_FOR_MESSAGE_FORMAT, "messages of formats v0 and v1 are not taken")
    headers = scan_headers(data, whole=False)
    return _invalid(f"expected one record batch, found {len(headers)}: {headers.reason}")


def writer_id(producer: int, partition: int) -> str:
    return f"{KAFKA_WRITER}{producer}-{partition}"


def last_number(registry: Mapping[str, WriterEntry], writer: str) -> int | None:
    """Return the number of the last record of a producer that landed; None: it is not known."""
    return registry[writer].batch if writer in registry else None


def next_number(last: int | None, batch: BatchHeader | ProducedBatch) -> int:
    """Return the number of a batch's last record, by Kafka's rules: a producer that is not known may begin anywhere.

    `CodeError` for a batch that is not the next one after number `last`; DUPLICATE_SEQUENCE_NUMBER: it landed.
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
    landed = epoch == last_epoch and behind <= _HALF and count <= behind
    raise CodeError(Code.DUPLICATE_SEQUENCE_NUMBER if landed else Code.OUT_OF_ORDER_SEQUENCE_NUMBER)
