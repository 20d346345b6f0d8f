"""Commit produced batches: validate them, write the valid batches to a file, and return a response for each batch.

1. A `ReceivedBatch` contains the bytes of a Produce request.
2. The records of the batch are validated, which results in a `CheckedBatch` (`sparklog.serve.batch_checks`).
3. The sequence of the batch is compared with the producer's entry in the topic's registry (`_Producers`). If the batch
   was already committed, its response contains the offset that it has in the log.
4. All accepted batches are written to one file, one slice per partition (`sparklog.serve.batch_file`), and committed.

Batches are validated against the state that the commit is based on. The first attempt uses the cached state. If the
cached state is outdated or rejects a batch, the batches are validated again against the latest state. If the result of
a commit is unknown, the client retries, and the sequences in the log show which batches were written.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sparklog.errors import BadRequest, Conflict, SparklogError, Unavailable
from sparklog.format.record_batch import LOG_APPEND_TIME_BIT, NO_PRODUCER_ID
from sparklog.log.state.append_offsets import check_offsets
from sparklog.log.state.commit import Txn
from sparklog.log.state.configs import TopicConfigs
from sparklog.log.state.writer_runs import KafkaWriterKey, WriterEntry
from sparklog.log.topic.engine import TopicLog
from sparklog.log.write.append_target import AppendOutcome, AppendTarget
from sparklog.serve.batch_checks import CheckedBatch, checked_batch, next_number, writer_id
from sparklog.serve.batch_file import write_batches
from sparklog.serve.codes import DATA_CODES, FAILURES, Code, CodeError, ProduceResponse, code_of, errors_as, known_code
from sparklog.serve.repeated_batches import find_repeated, is_committed

if TYPE_CHECKING:
    from sparklog.serve.recent_batches import RecentBatches
    from sparklog.serve.transactions import ClientTransaction

MAX_ATTEMPTS = 8
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
AcceptedBatches = dict[int, list[tuple[ReceivedBatch, CheckedBatch]]]
"""The batches of a commit by partition, in the order of their offsets."""


def commit_batches(log: TopicLog, batches: Sequence[ReceivedBatch], recent: RecentBatches | None = None) -> Responses:
    """Commit the valid batches, and return the response to each batch. The batches of each transaction are committed
    separately, so that an error only affects the batches of one transaction.

    Committed batches without a transaction are added to `recent`.
    """
    by_transaction: dict[ClientTransaction | None, list[ReceivedBatch]] = {}
    for batch in batches:
        by_transaction.setdefault(batch.transaction, []).append(batch)
    responses: Responses = {}
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
        return dict.fromkeys(batches, _internal_error(log))


def _commit_group(
    log: TopicLog, batches: Sequence[ReceivedBatch], txn: Txn | None = None, recent: RecentBatches | None = None
) -> Responses:
    """Commit the valid batches of one transaction, or the batches without a transaction."""
    group = _BatchGroup(log, batches, txn, recent)
    try:
        group.commit()
        return group.responses
    except SparklogError as error:
        failure = ProduceResponse(_code(log, error), message=str(error))
    except Exception:  # noqa: BLE001 - the other batches must be committed, or their responses returned
        failure = _internal_error(log)
    return dict.fromkeys(batches, failure) | group.responses


def _code(log: TopicLog, error: SparklogError | CodeError) -> Code:
    return code_of(error, DATA_CODES, f"cannot commit to topic '{log.topic}'")


def _internal_error(log: TopicLog) -> ProduceResponse:
    """Log the exception that is being handled, and return the response to batches without another response."""
    _LOG.exception("internal error while appending to topic '%s'", log.topic)
    return INTERNAL_ERROR


class _OutdatedStateError(Exception):
    """The cached state is outdated or rejects a batch, so the batches must be validated against the latest state."""


class _RepeatedBatchError(CodeError):
    """A batch that precedes the registry entry of its producer, and was probably already committed.

    If `entry` is None, the batch repeats another batch of the same commit.
    """

    def __init__(self, batch: CheckedBatch, entry: WriterEntry | None) -> None:
        super().__init__(Code.DUPLICATE_SEQUENCE_NUMBER)
        self.batch = batch
        self.entry = entry


class _Producers:
    """The registry entries of idempotent producers after a commit, given the registry before the commit."""

    def __init__(self, registry: Mapping[str, WriterEntry]) -> None:
        self._registry = registry
        self._added: dict[str, KafkaWriterKey] = {}

    @property
    def writers(self) -> tuple[KafkaWriterKey, ...]:
        return tuple(self._added.values())

    def add(self, partition: int, batch: CheckedBatch) -> None:
        """Add a batch to the commit.

        Raises `CodeError` if the batch does not follow its producer's previous batch. If the batch was already added
        or committed, the error is a `_RepeatedBatchError`.
        """
        id_ = writer_id(batch.producer_id, partition)
        added, entry = self._added.get(id_), self._registry.get(id_)
        follows = None if entry is None else entry.batch
        try:
            number = next_number(follows if added is None else added.batch, batch)
        except CodeError as error:
            if error.code is Code.DUPLICATE_SEQUENCE_NUMBER:
                raise _RepeatedBatchError(batch, entry if added is None else None) from None
            raise
        count = batch.count + (0 if added is None else added.count)
        self._added[id_] = KafkaWriterKey(id_, number, follows, count)


class _BatchGroup:
    """The batches of one transaction, or the batches without a transaction. They share commits.

    `responses` contains the response to each batch that was rejected or committed. Batches without a response are
    pending.
    """

    def __init__(
        self, log: TopicLog, batches: Sequence[ReceivedBatch], txn: Txn | None, recent: RecentBatches | None
    ) -> None:
        self.responses: Responses = {}
        self._log = log
        self._batches = batches
        self._txn = txn
        self._recent = recent
        self._checked: dict[ReceivedBatch, CheckedBatch] = {}
        """The batches whose records are valid for `_configs`, so that the next attempt does not check them again."""
        self._configs: TopicConfigs | None = None

    def commit(self) -> None:
        """Commit the valid batches. Raises `Unavailable` if the last attempt leaves pending batches."""
        known = self._log.known()
        has_cached_state = known is not None and known.topic_state.exists
        for is_optimistic in (has_cached_state, *[False] * MAX_ATTEMPTS):
            with suppress(_OutdatedStateError):
                self._commit_pending(is_optimistic)
            if len(self.responses) == len(self._batches):
                return
        raise Unavailable(
            f"topic '{self._log.topic}' has changed during each attempt to append batches, for example because "
            "producers write to it through several servers; retry later"
        )

    def _commit_pending(self, is_optimistic: bool) -> None:
        """Validate the pending batches, and commit the accepted batches.

        If `is_optimistic` is true, the batches are validated against the cached state, without reading the latest
        state. Raises `_OutdatedStateError` if the batches must be validated again.
        """
        log = self._log
        target = log.append_target(refresh=not is_optimistic)
        producers = _Producers(log.state(refresh=False).registry)
        accepted = self._validate(target, producers, is_optimistic)
        if not accepted:
            return
        checked = {partition: [batch for _, batch in batches] for partition, batches in accepted.items()}
        file = write_batches(checked, target, log.env)
        try:
            # Every commit is optimistic, because another process may change the topic after the validation.
            outcome = log.commit_append(
                [file], target, txn=self._txn, kafka_writers=producers.writers, is_optimistic=True
            )
        except Conflict:
            raise _OutdatedStateError from None
        self._respond(accepted, outcome, target)
        if self._recent is not None:
            self._cache(self._recent, accepted, outcome, target)

    def _validate(self, target: AppendTarget, producers: _Producers, is_optimistic: bool) -> AcceptedBatches:
        """Validate the pending batches in order, add them to `producers`, and respond to rejected batches."""
        if target.configs != self._configs:
            self._configs, self._checked = target.configs, {}
        accepted: AcceptedBatches = {}
        ends: dict[int, int] = {}
        log_end, now_ms = self._log.state(refresh=False).log_end, self._log.env.wall_ms()
        for received in self._batches:
            if received in self.responses:
                continue
            try:
                checked = self._check(received, target, now_ms)
                end = ends.get(received.partition)
                end = int(log_end[received.partition]) if end is None else end
                with errors_as(BadRequest, Code.INVALID_REQUEST):
                    check_offsets(self._log.topic, received.partition, end, checked.count)
                if checked.producer_id != NO_PRODUCER_ID:
                    producers.add(received.partition, checked)
            except CodeError as error:
                if is_optimistic:
                    raise _OutdatedStateError from None
                response = self._rejection(received, error)
                if response is not None:
                    self.responses[received] = response
            else:
                ends[received.partition] = end + checked.count
                accepted.setdefault(received.partition, []).append((received, checked))
        return accepted

    def _check(self, received: ReceivedBatch, target: AppendTarget, now_ms: int) -> CheckedBatch:
        """Return a batch without checking its sequence. Raises `CodeError` if the topic rejects the batch."""
        if received.topic_id not in (None, target.topic_id):
            raise CodeError(Code.UNKNOWN_TOPIC_ID)
        if not 0 <= received.partition < target.partitions:
            raise CodeError(Code.UNKNOWN_TOPIC_OR_PARTITION)
        checked = self._checked.get(received)
        if checked is None:
            checked = checked_batch(received.records, received.api_version, target.configs, now_ms)
            self._checked[received] = checked
        return checked

    def _rejection(self, received: ReceivedBatch, error: CodeError) -> ProduceResponse | None:
        """Return the response to a batch that is not added to the commit.

        If the batch repeats another batch of the commit, return None. It is validated again after the commit.
        """
        if not isinstance(error, _RepeatedBatchError):
            return ProduceResponse(error.code, message=error.message, record_errors=error.record_errors)
        return None if error.entry is None else _repeated(self._log, received.partition, error.batch, error.entry)

    def _respond(self, accepted: AcceptedBatches, outcome: AppendOutcome, target: AppendTarget) -> None:
        """Respond to committed batches."""
        time_ms = outcome.time_ms if target.configs.log_append_time else -1
        log_starts = self._log.state(refresh=False).log_start
        for partition, batches in accepted.items():
            offset, log_start = outcome.base[partition], int(log_starts[partition])
            for received, checked in batches:
                self.responses[received] = ProduceResponse(Code.NONE, offset, time_ms, log_start)
                offset += checked.count

    def _cache(
        self, recent: RecentBatches, accepted: AcceptedBatches, outcome: AppendOutcome, target: AppendTarget
    ) -> None:
        """Add committed batches to `recent`, unless the topic uses LogAppendTime."""
        state = self._log.state(refresh=False)
        # The batches have the leader epoch of their commit, so they are only cached if the state is the state after it.
        if target.configs.log_append_time or state.version != outcome.version:
            return
        for partition, batches in accepted.items():
            data = [(checked.data, checked.count) for _, checked in batches]
            recent.add(target.topic_id, partition, outcome.base[partition], state.leader_epoch, data)


def _repeated(log: TopicLog, partition: int, batch: CheckedBatch, entry: WriterEntry) -> ProduceResponse:
    """Return the response to a batch that precedes the registry entry of its producer.

    If the batch was committed, the response contains its offset, unless the log no longer contains the batch.
    """
    if not is_committed(log, partition, batch, entry):
        return ProduceResponse(Code.OUT_OF_ORDER_SEQUENCE_NUMBER)
    stored = find_repeated(log, partition, batch, entry)
    if stored is None:
        return ProduceResponse(Code.DUPLICATE_SEQUENCE_NUMBER)
    time_ms = stored.max_timestamp if stored.attributes & LOG_APPEND_TIME_BIT else -1
    log_start = int(log.state(refresh=False).log_start[partition])
    return ProduceResponse(Code.NONE, stored.base_offset, time_ms, log_start)
