"""The commit of produced batches: which of them a topic accepts, the file that they become, and their responses.

A batch of an idempotent producer is judged by the state that the commit is based on (`batch_checks`). The first attempt
is made by the state known here. If that is not the latest one, or does not accept all batches, they are judged again by
the latest state. After an unknown outcome the client tries again, and the sequences in the log show what was written.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np

from sparklog.errors import Conflict, SparklogError, Unavailable
from sparklog.format.append_file import INDEX_MIN_BYTES, WrittenSlice, build_index
from sparklog.format.crc32c import crc32c
from sparklog.format.record_batch import LOG_APPEND_TIME_BIT, NO_PRODUCER_ID, NO_TIMESTAMP
from sparklog.log.journal.names import append_path
from sparklog.log.state.slices import FileSlices
from sparklog.log.state.writer_runs import KafkaWriterKey, SequenceConflict, WriterEntry
from sparklog.log.topic.engine import TopicLog
from sparklog.log.write.append_output import tail_bytes, unwritten, write_file
from sparklog.log.write.append_target import AppendTarget
from sparklog.serve.batch_checks import ProducedBatch, checked_batch, last_number, next_number, writer_id
from sparklog.serve.codes import Code, CodeError, ProduceResponse, code_of

MAX_TRIES = 8
BASE_OFFSET_BYTES = 8


@dataclass(slots=True, eq=False)
class ReceivedBatch:
    """The records of a partition in a Produce request of this version."""

    partition: int
    records: memoryview | None
    version: int


Responses = dict[ReceivedBatch, ProduceResponse]


class CheckedBatches(NamedTuple):
    """The batches that a topic accepts in one commit, what the commit says of their producers, and other responses."""

    accepted: dict[ReceivedBatch, ProducedBatch]
    writers: tuple[KafkaWriterKey, ...]
    responses: Responses


def commit_batches(log: TopicLog, batches: Sequence[ReceivedBatch]) -> Responses:
    """Commit the batches that the topic accepts, and return the response to each."""
    known, responses = log.known(), Responses()
    try:
        for is_optimistic in (known is not None and known.head.exists, *[False] * MAX_TRIES):
            pending = [batch for batch in batches if batch not in responses]
            target = log.append_target(refresh=not is_optimistic)
            judgement = _judged(log, target, pending)
            if is_optimistic and len(judgement.accepted) < len(pending):
                continue
            responses |= judgement.responses
            if judgement.accepted:
                responses |= _committed(log, target, judgement, is_optimistic)
            if len(responses) == len(batches):
                return responses
        raise Unavailable(f"producers of topic '{log.topic}' write by several servers at once: try again")
    except SparklogError as error:
        return failed(batches, error) | responses


def failed(batches: Sequence[ReceivedBatch], error: SparklogError) -> Responses:
    """Return the responses to batches whose commit has failed."""
    return dict.fromkeys(batches, ProduceResponse(code_of(error), message=str(error)))


def _judged(log: TopicLog, target: AppendTarget, batches: Sequence[ReceivedBatch]) -> CheckedBatches:
    """Judge batches by the state known here, each after those before it."""
    registry, now_ms = log.head(refresh=False).registry, log.env.wall_ms()
    accepted: dict[ReceivedBatch, ProducedBatch] = {}
    writers: dict[str, KafkaWriterKey] = {}
    responses: Responses = {}
    for batch in batches:
        if not 0 <= batch.partition < target.partitions:
            responses[batch] = ProduceResponse(Code.UNKNOWN_TOPIC_OR_PARTITION)
            continue
        try:
            produced = checked_batch(batch.records, batch.version, target.configs, now_ms)
        except CodeError as problem:
            rows: Any = problem.fields.get("recordErrors", ())
            responses[batch] = ProduceResponse(problem.code, message=str(problem), record_errors=rows)
            continue
        if produced.producer_id != NO_PRODUCER_ID:
            id_ = writer_id(produced.producer_id, batch.partition)
            before = writers.get(id_)
            try:
                writers[id_] = _next_writer(id_, produced, before, registry)
            except CodeError as problem:
                if problem.code is not Code.DUPLICATE_SEQUENCE_NUMBER:
                    responses[batch] = ProduceResponse(problem.code)
                elif before is None:
                    responses[batch] = _repeated(log, batch, produced, registry[id_])
                # Otherwise it is a retry of a batch in this same commit, and is judged again after it.
                continue
        accepted[batch] = produced
    return CheckedBatches(accepted, tuple(writers.values()), responses)


def _next_writer(
    id_: str, batch: ProducedBatch, before: KafkaWriterKey | None, registry: Mapping[str, WriterEntry]
) -> KafkaWriterKey:
    """Return what a commit says of a producer whose batch follows those `before` in it. `CodeError` if it does not."""
    follows = last_number(registry, id_) if before is None else before.follows
    number = next_number(follows if before is None else before.batch, batch)
    return KafkaWriterKey(id_, number, follows, batch.count + (0 if before is None else before.count))


def _repeated(log: TopicLog, received: ReceivedBatch, batch: ProducedBatch, entry: WriterEntry) -> ProduceResponse:
    """Return the response to a retry of a committed batch: its offset, if it can still be found in the log."""
    from sparklog.serve.repeated_batches import find_repeated

    stored = find_repeated(log, received.partition, batch, entry)
    if stored is None:
        return ProduceResponse(Code.DUPLICATE_SEQUENCE_NUMBER)
    time_ms = stored.max_timestamp if stored.attributes & LOG_APPEND_TIME_BIT else -1
    log_start = int(log.head(refresh=False).log_start[received.partition])
    return ProduceResponse(Code.NONE, stored.base_offset, time_ms, log_start)


def _committed(log: TopicLog, target: AppendTarget, judgement: CheckedBatches, is_optimistic: bool) -> Responses:
    """Commit the accepted batches, and return their responses; none if they must be judged by a later state."""
    by_partition: dict[int, list[ReceivedBatch]] = {}
    for batch in judgement.accepted:
        by_partition.setdefault(batch.partition, []).append(batch)
    produced = {partition: [judgement.accepted[one] for one in by_partition[partition]] for partition in by_partition}
    file = _file(log, target, produced)
    try:
        outcome = log.commit_append([file], target, kafka_writers=judgement.writers, unless_changed=is_optimistic)
    except Conflict as error:
        if is_optimistic or isinstance(error, SequenceConflict):
            return {}
        raise
    starts = log.head(refresh=False).log_start
    time_ms = outcome.time_ms if target.configs.log_append_time else -1
    return {
        batch: ProduceResponse(Code.NONE, outcome.base[partition] + offset, time_ms, int(starts[partition]))
        for partition, received in by_partition.items()
        for batch, offset in zip(received, _offsets(produced[partition]), strict=False)
    }


def _offsets(batches: Sequence[ProducedBatch]) -> list[int]:
    """Return the offset of each batch relative to its slice, and the end of the last one."""
    return list(accumulate([batch.count for batch in batches], initial=0))


def _file(log: TopicLog, target: AppendTarget, by_partition: Mapping[int, Sequence[ProducedBatch]]) -> FileSlices:
    """Return the batches as a file with a slice for each partition: not written if it can go into the commit."""
    slices: list[WrittenSlice] = []
    parts: list[bytes | memoryview] = []
    for partition in sorted(by_partition):
        data = _slice_parts(by_partition[partition])
        slices.append(_slice(partition, by_partition[partition], data))
        parts += data
    if min([one.max_ts for one in slices]) < 0 and not target.configs.log_append_time:
        # Without timestamps, retention counts from the append, as a broker uses the segment's modification time.
        now_ms = log.env.wall_ms()
        slices = [replace(one, max_ts=now_ms) if one.max_ts < 0 else one for one in slices]
    is_small = all(one.index is None for one in slices)
    if is_small and tail_bytes(len(slices), sum([one.nbytes for one in slices])) <= target.inline_bytes:
        return unwritten(slices, b"".join(parts))
    return write_file(target.store, target.topic, append_path(target.read_version, log.env.new_id()), slices, parts)


def _slice_parts(batches: Sequence[ProducedBatch]) -> list[bytes | memoryview]:
    """Return the bytes of batches, back to back, with their offsets in the slice as base offsets."""
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
