"""The checks of produced batches, as Kafka's `LogValidator` makes them, what a slice says of each, and sequences.

All batches of a commit are checked together, as one run of batches: a call costs as much for one batch as for many.
Records are read to see that they fit, for their least time and for keys that are missing; they stay as they came. Under
LogAppendTime the batch is given its bit and another checksum; the time itself comes with the commit. The codec stays
the producer's: a topic's `compression.type` changes nothing here.

Of an idempotent producer the topic's registry has an entry for each partition: the number of the last record that
landed. It is of the commits alone, so every server says the same of a batch, and a retry is written once, whichever
server it meets. A number is the epoch, then how many records the producer has written under it (47 bits), the last of
them counted: a sequence itself begins again after 2^31 - 1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from sparklog.errors import BadRequest, Corrupt
from sparklog.format.batch_scan import crc_failures, scan_headers
from sparklog.format.crc32c import crc32c
from sparklog.format.payloads import payloads, record_fields
from sparklog.format.record_batch import (
    CODECS,
    CRC_START,
    HEADER_BYTES,
    LOG_APPEND_TIME_BIT,
    LOG_OVERHEAD,
    MAGIC,
    MAGIC_POSITION,
    MAX_SEQUENCE,
    NO_PRODUCER_ID,
    BatchHeader,
    BatchHeaders,
    BoolArray,
    Int64Array,
)
from sparklog.log.state.configs import TopicConfigs
from sparklog.log.state.slices import SliceFlag
from sparklog.log.state.writer_runs import KAFKA_WRITER, WriterEntry
from sparklog.serve.codes import Code, CodeError

ZSTD, ZSTD_SINCE = CODECS.index("zstd"), 7
"""Older versions of Produce are of clients that cannot read what they send."""
GROUP_BYTES = 1 << 20
"""Stored bytes of batches that are decompressed at once."""
_ATTRIBUTES, _CRC = 22, slice(17, 21)
_PRODUCERS, _NULL_KEYS = int(SliceFlag.KAFKA_PRODUCERS), int(SliceFlag.HAS_NULL_KEYS)
_APPEND_TIME = int(SliceFlag.LOG_APPEND_TIME)
EPOCH_SHIFT = 47
_WRITTEN = (1 << EPOCH_SHIFT) - 1
_HALF = 1 << 30


@dataclass(slots=True, eq=False)
class SentBatch:
    """Bytes that a producer sent for a partition, in this version of Produce: one batch, if they are right."""

    partition: int
    records: memoryview | None
    version: int


@dataclass(slots=True, eq=False)
class ProducedBatch:
    """A batch of a producer, checked: its bytes, its place in the producer's numbers, and what a slice says of it.

    `min_ts`, `max_ts`: ms; `flags`: of `SliceFlag`.
    """

    data: memoryview
    count: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    min_ts: int
    max_ts: int
    flags: int


def check_batches(sent: Sequence[SentBatch], configs: TopicConfigs, now_ms: int) -> list[ProducedBatch | CodeError]:
    """Return each batch as it is written, or why it is not taken."""
    results: list[ProducedBatch | CodeError | None] = [_frame_problem(batch.records) for batch in sent]
    rows = [row for row, result in enumerate(results) if result is None]
    data = bytearray().join(sent[row].records or b"" for row in rows)
    headers = scan_headers(data)
    versions = np.array([sent[row].version for row in rows], np.int64)
    rejected = _header_problems(data, headers, versions, configs)
    for row, problem in rejected.items():
        results[rows[row]] = problem
    sound, group, size = [row for row in range(len(rows)) if row not in rejected], list[int](), 0
    sizes = headers.size.tolist()
    for row in sound:
        group.append(row)
        size += sizes[row]
        if size < GROUP_BYTES and row != sound[-1]:
            continue
        some = headers if len(group) == len(headers) else headers[group]
        for place, result in zip(group, _checked(data, some, configs, now_ms), strict=True):
            results[rows[place]] = result
        group, size = [], 0
    return [result for result in results if result is not None]


def _frame_problem(records: memoryview | None) -> CodeError | None:
    """Return what is wrong if these bytes are not one whole batch of magic 2."""
    data = memoryview(records or b"")
    if len(data) > MAGIC_POSITION and data[MAGIC_POSITION] < MAGIC:
        return CodeError(Code.UNSUPPORTED_FOR_MESSAGE_FORMAT, "messages of formats v0 and v1 are not taken")
    whole = len(data) >= HEADER_BYTES and data[MAGIC_POSITION] == MAGIC
    if whole and int.from_bytes(data[8:12], "big", signed=True) == len(data) - LOG_OVERHEAD:
        return None
    headers = scan_headers(data, whole=False)
    return CodeError(Code.INVALID_RECORD, f"expected one record batch, found {len(headers)}: {headers.reason}")


def _header_problems(
    data: bytearray, headers: BatchHeaders, versions: Int64Array, configs: TopicConfigs
) -> dict[int, CodeError]:
    """Return the first rule that a batch breaks, by row."""
    count, offsets, size, most = headers.count, headers.last_offset_delta + 1, headers.size, configs.max_message_bytes
    wrong_crc = np.zeros(len(headers), np.bool_)
    wrong_crc[crc_failures(data, headers)] = True
    is_control = headers.is_control | headers.has_delete_horizon
    old_zstd = (headers.codec == ZSTD) & (versions < ZSTD_SINCE)
    return _first_problems(
        {"count": count, "offsets": offsets, "size": size, "version": versions},
        (wrong_crc, Code.CORRUPT_MESSAGE, "the batch's CRC-32C does not match its bytes"),
        (size > most, Code.MESSAGE_TOO_LARGE, f"{{size}} bytes, max.message.bytes is {most}"),
        (is_control, Code.INVALID_RECORD, "control batches are a coordinator's"),
        ((count < 1) | (count != offsets), Code.INVALID_RECORD, "{count} records have {offsets} offsets"),
        (old_zstd, Code.UNSUPPORTED_COMPRESSION_TYPE, "zstd in Produce {version}"),
        (headers.is_log_append_time, Code.INVALID_TIMESTAMP, "a producer gives no LogAppendTime"),
    )


def _first_problems(columns: Mapping[str, Int64Array], *rules: tuple[BoolArray, Code, str]) -> dict[int, CodeError]:
    """Return the first rule that a batch breaks, by row.

    `rules`: the rows that break it, its code, and its message, which takes values of `columns`.
    """
    problems: dict[int, CodeError] = {}
    for broken, code, message in rules:
        for row in broken.nonzero()[0].tolist():
            values = {name: column[row] for name, column in columns.items()}
            problems.setdefault(row, CodeError(code, message.format(**values)))
    return problems


def _checked(
    data: bytearray, headers: BatchHeaders, configs: TopicConfigs, now_ms: int
) -> list[ProducedBatch | CodeError]:
    """Check the records of batches. Where one of several cannot be read, each is read by itself."""
    try:
        fields = record_fields(payloads(data, headers, check_crc=False), headers)
    except (Corrupt, BadRequest) as error:
        if len(headers) == 1:
            reason = error.message if isinstance(error, Corrupt) else str(error)
            return [CodeError(Code.INVALID_RECORD, reason)]
        return [_checked(data, headers[row : row + 1], configs, now_ms)[0] for row in range(len(headers))]
    # That offsets count from 0 is known: there are as many as records, and they rise within them.
    starts = np.cumsum(fields.batch_rows) - fields.batch_rows
    null_keys = ~np.logical_and.reduceat(fields.has_key, starts)
    low, high = np.minimum.reduceat(fields.timestamp, starts), np.maximum.reduceat(fields.timestamp, starts)
    before, after = now_ms - configs.timestamp_before_max_ms, now_ms + configs.timestamp_after_max_ms
    timed = not configs.log_append_time
    problems = _first_problems(
        {"low": low, "high": high, "header": headers.max_timestamp},
        (null_keys & configs.is_compacted, Code.INVALID_RECORD, "the topic is compacted: every record needs a key"),
        (
            timed & ((low < max(before, 0)) | (high > after)),
            Code.INVALID_TIMESTAMP,
            f"times are {{low}} to {{high}}, the topic takes {before} to {after}",
        ),
        (
            timed & (high != headers.max_timestamp),
            Code.INVALID_TIMESTAMP,
            "the greatest time is {high}, the batch says {header}",
        ),
    )
    batches = _produced(data, headers, null_keys, (low, high) if timed else None)
    return [problems.get(row) or batch for row, batch in enumerate(batches)]


def _produced(
    data: bytearray, headers: BatchHeaders, null_keys: BoolArray, times: tuple[Int64Array, Int64Array] | None
) -> list[ProducedBatch]:
    """Return sound batches. `times`: the least and the greatest of each; None: they have that of the commit."""
    view, sealed = memoryview(data), np.full(len(headers), -1, np.int64)
    flags = np.where(null_keys, _NULL_KEYS, 0) + np.where(headers.producer_id == NO_PRODUCER_ID, 0, _PRODUCERS)
    flags = flags if times is not None else flags + _APPEND_TIME
    numbers = headers.count, headers.producer_id, headers.producer_epoch, headers.base_sequence
    columns = headers.position, headers.position + headers.size, *numbers, *(times or (sealed, sealed)), flags
    batches = [
        ProducedBatch(view[start:end], *values)
        for start, end, *values in zip(*(column.tolist() for column in columns), strict=True)
    ]
    for batch in batches if times is None else ():
        batch.data[_ATTRIBUTES] |= LOG_APPEND_TIME_BIT
        batch.data[_CRC] = crc32c(batch.data[CRC_START:]).to_bytes(4, "big")
    return batches


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
    if epoch < 0 or first < 0:
        raise CodeError(Code.OUT_OF_ORDER_SEQUENCE_NUMBER)
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
