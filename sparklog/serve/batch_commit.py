"""Commit produced batches: validate them, write the valid batches to a file, and return a response for each batch.

Batches are validated against the state that the commit is based on. The first attempt uses the cached state. If the
cached state is outdated or rejects a batch, the batches are validated again against the latest state. If the result of
a commit is unknown, the client retries, and the sequences in the log show which batches were written.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from sparklog.errors import Conflict, SparklogError, Unavailable
from sparklog.format.append_file import INDEX_MIN_BYTES, WrittenSlice, build_index
from sparklog.format.crc32c import crc32c
from sparklog.format.record_batch import LOG_APPEND_TIME_BIT, NO_PRODUCER_ID, NO_TIMESTAMP
from sparklog.log.journal.names import append_path
from sparklog.log.state.commit import Txn
from sparklog.log.state.slices import FileSlices
from sparklog.log.state.topic_state import TopicState
from sparklog.log.state.writer_runs import KafkaWriterKey, SequenceConflict, WriterEntry
from sparklog.log.topic.engine import TopicLog
from sparklog.log.write.append_output import inline_file, inline_file_bytes, write_file
from sparklog.log.write.append_target import AppendOutcome, AppendTarget
from sparklog.serve.batch_checks import ProducedBatch, checked_batch, next_number, writer_id
from sparklog.serve.codes import DATA_CODES, FAILURES, Code, CodeError, ProduceResponse, code_of, known_code

if TYPE_CHECKING:
    from sparklog.serve.recent_batches import RecentBatches
    from sparklog.serve.transactions import ClientTransaction

MAX_ATTEMPTS = 8
BASE_OFFSET_BYTES = 8
INTERNAL_ERROR = ProduceResponse(Code.UNKNOWN_SERVER_ERROR)
_LOG = logging.getLogger("sparklog.serve")
_WRITTEN = (Code.NONE, Code.DUPLICATE_SEQUENCE_NUMBER)
"""Response codes for batches that are in the log."""


@dataclass(slots=True, eq=False)
class ReceivedBatch:
    """The records of one partition in a Produce request.

    * `api_version`: the version of the request
    * `topic_id`: None if the request has no topic ids
    """

    partition: int
    records: memoryview | None
    api_version: int
    transaction: ClientTransaction | None
    topic_id: str | None


Responses = dict[ReceivedBatch, ProduceResponse]
AcceptedByPartition = Mapping[int, Mapping[ReceivedBatch, ProducedBatch]]
"""The valid batches of a commit by partition, in the order of their offsets."""


class CheckedBatches(NamedTuple):
    """The valid batches, the registry entries of their producers for the commit, and the responses to the other
    batches.
    """

    accepted: dict[ReceivedBatch, ProducedBatch]
    writers: tuple[KafkaWriterKey, ...]
    responses: Responses


def commit_batches(log: TopicLog, batches: Sequence[ReceivedBatch], recent: RecentBatches | None = None) -> Responses:
    """Commit the valid batches, and return the response to each batch. The batches of each transaction are committed
    separately, so that an error only affects the batches of one transaction.

    Committed batches without a transaction are added to `recent`.
    """
    by_transaction: dict[ClientTransaction | None, list[ReceivedBatch]] = {}
    for batch in batches:
        by_transaction.setdefault(batch.transaction, []).append(batch)
    responses = Responses()
    for transaction, group in by_transaction.items():
        if transaction is None:
            responses |= _commit_group(log, group, recent=recent)
        else:
            responses |= _commit_transactional(log, group, transaction)
    return responses


def _commit_transactional(log: TopicLog, batches: Sequence[ReceivedBatch], transaction: ClientTransaction) -> Responses:
    """Commit batches as a part of the open transaction of their producer."""
    try:
        txn = transaction.open(log.topic)
        responses = _commit_group(log, batches, txn)
        if any(response.code in _WRITTEN for response in responses.values()):
            transaction.add_topic(txn, log)
        return responses
    except FAILURES as error:
        code, message = _code(log, error), str(error)
        return {
            batch: ProduceResponse(known_code(code, "Produce", batch.api_version), message=message) for batch in batches
        }
    except Exception:  # noqa: BLE001 - the other batches must be committed, or their responses returned
        return _internal_errors(log, batches)


def _commit_group(
    log: TopicLog, batches: Sequence[ReceivedBatch], txn: Txn | None = None, recent: RecentBatches | None = None
) -> Responses:
    """Commit the valid batches of one transaction, or the batches without a transaction. After a conflict, the batches
    are validated again.
    """
    responses = Responses()
    try:
        known = log.known()
        for is_optimistic in (known is not None and known.topic_state.exists, *[False] * MAX_ATTEMPTS):
            pending = [batch for batch in batches if batch not in responses]
            target = log.append_target(refresh=not is_optimistic)
            checked = _checked(log, target, pending)
            if is_optimistic and len(checked.accepted) < len(pending):
                continue
            responses |= checked.responses
            accepted = _by_partition(checked.accepted)
            outcome = _append(log, target, accepted, checked.writers, txn, is_optimistic) if accepted else None
            if outcome is not None:
                state = log.state(refresh=False)
                responses |= _responses(accepted, outcome, target, state)
                if recent is not None:
                    _cache(recent, accepted, outcome, target, state)
            if len(responses) == len(batches):
                return responses
        raise Unavailable(
            f"producers write to topic '{log.topic}' through several servers at the same time; retry later"
        )
    except SparklogError as error:
        return dict.fromkeys(batches, ProduceResponse(_code(log, error), message=str(error))) | responses
    except Exception:  # noqa: BLE001 - the other batches must be committed, or their responses returned
        return _internal_errors(log, batches) | responses


def _code(log: TopicLog, error: SparklogError | CodeError) -> Code:
    return code_of(error, DATA_CODES, f"cannot commit to topic '{log.topic}'")


def _internal_errors(log: TopicLog, batches: Sequence[ReceivedBatch]) -> Responses:
    """Log the exception that is being handled, and return the responses to batches whose commit it may have
    prevented.
    """
    _LOG.exception("internal error while appending to topic '%s'", log.topic)
    return dict.fromkeys(batches, INTERNAL_ERROR)


def _checked(log: TopicLog, target: AppendTarget, batches: Sequence[ReceivedBatch]) -> CheckedBatches:
    """Validate the batches in order, against the cached state."""
    state, now_ms = log.state(refresh=False), log.env.wall_ms()
    accepted: dict[ReceivedBatch, ProducedBatch] = {}
    writers: dict[str, KafkaWriterKey] = {}
    responses: Responses = {}
    for batch in batches:
        if batch.topic_id not in (None, state.topic_id):
            responses[batch] = ProduceResponse(Code.UNKNOWN_TOPIC_ID)
            continue
        if not 0 <= batch.partition < target.partitions:
            responses[batch] = ProduceResponse(Code.UNKNOWN_TOPIC_OR_PARTITION)
            continue
        try:
            produced = checked_batch(batch.records, batch.api_version, target.configs, now_ms)
        except CodeError as problem:
            rows: Any = problem.fields.get("recordErrors", ())
            responses[batch] = ProduceResponse(problem.code, message=str(problem), record_errors=rows)
            continue
        if produced.producer_id != NO_PRODUCER_ID:
            id_ = writer_id(produced.producer_id, batch.partition)
            before = writers.get(id_)
            try:
                writers[id_] = _next_writer(id_, produced, before, state.registry)
            except CodeError as problem:
                if problem.code is not Code.DUPLICATE_SEQUENCE_NUMBER:
                    responses[batch] = ProduceResponse(problem.code)
                elif before is None:
                    responses[batch] = _repeated(log, batch, produced, state.registry[id_])
                # If the code is different, the batch is a duplicate of a batch in this commit, and is validated again
                # after the commit.
                continue
        accepted[batch] = produced
    return CheckedBatches(accepted, tuple(writers.values()), responses)


def _next_writer(
    id_: str, batch: ProducedBatch, before: KafkaWriterKey | None, registry: Mapping[str, WriterEntry]
) -> KafkaWriterKey:
    """Return a producer's registry entry after this batch is added to the batches in `before`.

    Raises `CodeError` if the batch does not follow the producer's previous batch.
    """
    last = registry[id_].batch if id_ in registry else None
    follows = last if before is None else before.follows
    number = next_number(follows if before is None else before.batch, batch)
    return KafkaWriterKey(id_, number, follows, batch.count + (0 if before is None else before.count))


def _repeated(log: TopicLog, received: ReceivedBatch, batch: ProducedBatch, entry: WriterEntry) -> ProduceResponse:
    """Return the response to a retry of a committed batch.

    The response contains the offset of the batch if the log still contains the batch.
    """
    from sparklog.serve.repeated_batches import find_repeated

    stored = find_repeated(log, received.partition, batch, entry)
    if stored is None:
        return ProduceResponse(Code.DUPLICATE_SEQUENCE_NUMBER)
    time_ms = stored.max_timestamp if stored.attributes & LOG_APPEND_TIME_BIT else -1
    log_start = int(log.state(refresh=False).log_start[received.partition])
    return ProduceResponse(Code.NONE, stored.base_offset, time_ms, log_start)


def _by_partition(accepted: Mapping[ReceivedBatch, ProducedBatch]) -> AcceptedByPartition:
    by_partition: dict[int, dict[ReceivedBatch, ProducedBatch]] = {}
    for received, produced in accepted.items():
        by_partition.setdefault(received.partition, {})[received] = produced
    return by_partition


def _append(
    log: TopicLog,
    target: AppendTarget,
    accepted: AcceptedByPartition,
    writers: tuple[KafkaWriterKey, ...],
    txn: Txn | None,
    is_optimistic: bool,
) -> AppendOutcome | None:
    """Commit valid batches. Return None if the batches must be validated again, because the topic or the sequences of
    a producer have changed.
    """
    file = _file(log, target, {partition: list(batches.values()) for partition, batches in accepted.items()})
    try:
        return log.commit_append([file], target, txn=txn, kafka_writers=writers, is_optimistic=is_optimistic)
    except Conflict as error:
        if is_optimistic or isinstance(error, SequenceConflict):
            return None
        raise


def _responses(
    accepted: AcceptedByPartition, outcome: AppendOutcome, target: AppendTarget, state: TopicState
) -> Responses:
    """Return the responses to committed batches."""
    time_ms = outcome.time_ms if target.configs.log_append_time else -1
    responses = Responses()
    for partition, batches in accepted.items():
        offset, log_start = outcome.base[partition], int(state.log_start[partition])
        for received, produced in batches.items():
            responses[received] = ProduceResponse(Code.NONE, offset, time_ms, log_start)
            offset += produced.count
    return responses


def _cache(
    recent: RecentBatches,
    accepted: AcceptedByPartition,
    outcome: AppendOutcome,
    target: AppendTarget,
    state: TopicState,
) -> None:
    """Add committed batches to `recent`, unless the topic uses LogAppendTime."""
    # The batches have the leader epoch of their commit, so they are only cached if the state is the state after it.
    if target.configs.log_append_time or state.version != outcome.version:
        return
    for partition, batches in accepted.items():
        data = [(batch.data, batch.count) for batch in batches.values()]
        recent.add(target.topic_id, partition, outcome.base[partition], state.leader_epoch, data)


def _offsets(batches: Sequence[ProducedBatch]) -> list[int]:
    """Return the offset of each batch relative to its slice, and the end offset of the last batch."""
    return list(accumulate([batch.count for batch in batches], initial=0))


def _file(log: TopicLog, target: AppendTarget, by_partition: Mapping[int, Sequence[ProducedBatch]]) -> FileSlices:
    """Return a file with one slice per partition. A small file becomes inline records."""
    slices: list[WrittenSlice] = []
    parts: list[bytes | memoryview] = []
    for partition in sorted(by_partition):
        data = _slice_parts(by_partition[partition])
        slices.append(_slice(partition, by_partition[partition], data))
        parts += data
    if min([slice_.max_ts for slice_ in slices]) < 0 and not target.configs.log_append_time:
        # Retention uses the append time if a record has no timestamp, as a broker uses the modification time of the
        # segment.
        now_ms = log.env.wall_ms()
        slices = [replace(slice_, max_ts=now_ms) if slice_.max_ts < 0 else slice_ for slice_ in slices]
    is_small = all(slice_.index is None for slice_ in slices)
    if is_small and inline_file_bytes(len(slices), sum([slice_.nbytes for slice_ in slices])) <= target.inline_bytes:
        return inline_file(slices, b"".join(parts))
    return write_file(target.store, target.topic, append_path(target.read_version, log.env.new_id()), slices, parts)


def _slice_parts(batches: Sequence[ProducedBatch]) -> list[bytes | memoryview]:
    """Return the concatenated bytes of the batches. The base offset of each batch is its offset in the slice."""
    parts: list[bytes | memoryview] = []
    for batch, offset in zip(batches, _offsets(batches), strict=False):
        parts += (offset.to_bytes(BASE_OFFSET_BYTES, "big"), batch.data[BASE_OFFSET_BYTES:])
    return parts


def _slice(partition: int, batches: Sequence[ProducedBatch], parts: Sequence[bytes | memoryview]) -> WrittenSlice:
    crc, flags, index, sizes, offsets = 0, 0, None, [len(batch.data) for batch in batches], _offsets(batches)
    for part in parts:
        crc = crc32c(part, crc)
    for batch in batches:
        flags |= batch.flags
    if sum(sizes) > INDEX_MIN_BYTES:
        columns = np.array([sizes, offsets[:-1], [batch.max_ts for batch in batches]], np.int64)
        index = build_index(np.cumsum(columns[0]) - columns[0], columns[1], columns[2], sum(sizes))
    return WrittenSlice(
        partition=partition,
        nbytes=sum(sizes),
        offsets=offsets[-1],
        records=offsets[-1],
        min_ts=min([batch.min_ts for batch in batches if batch.min_ts >= 0], default=NO_TIMESTAMP),
        max_ts=max([batch.max_ts for batch in batches]),
        crc=crc,
        flags=flags,
        index=index,
    )
