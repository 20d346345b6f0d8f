"""Sequences of a producer with a `producer_id`. Sequences ensure that a record is never published twice, even if the
producer is restarted.

The idempotency registry of a topic (`sparklog.log.state.writer_runs`) contains the number of each writer's latest
batch. For a producer, this number is the last sequence of a commit. Commits are atomic, so the number determines
exactly which records were published. Before its first commit to a topic, a producer registers its run. After the
registration, a commit of an older run cannot succeed, even if the commit was delayed, so the number in the registry is
final. The producer also registers a new run after a failed commit, whose result may be unknown.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from sparklog.common.settings import as_integer
from sparklog.errors import BadRequest, Conflict, Fenced, SparklogError, shortened
from sparklog.log.journal.documents import INT64_MAX
from sparklog.log.state.commit import TAKEOVER, WriterBatch
from sparklog.log.state.commit_intents import Draft, Nothing, check_topic
from sparklog.log.state.slice_table import SliceTable
from sparklog.log.state.topic_state import TopicState
from sparklog.log.state.writer_runs import TXN, WriterKey, next_epoch
from sparklog.log.topic.engine import TopicLog
from sparklog.storage.fork_safety import ForkLock


@dataclass(frozen=True, slots=True)
class StartRunIntent:
    """Registers a run of a writer in a topic. A writer that is unknown to the topic starts at batch 0."""

    topic_id: str
    writer_id: str
    run: str
    needs_table: ClassVar[bool] = False
    repeatable: ClassVar[bool] = True

    def draft(self, topic: str, state: TopicState, origin: TopicState, table: SliceTable | None) -> Draft | Nothing:
        check_topic(topic, state, self.topic_id)
        entry = state.registry.get(self.writer_id)
        if entry is not None and entry.run == self.run:
            return Nothing("the run is already registered", state.version)
        batch, count = (0, 0) if entry is None else (entry.batch, entry.count)
        epoch = next_epoch(entry, self.run, None)
        return Draft(TAKEOVER, writer=WriterBatch(TXN, self.writer_id, batch, self.run, count, epoch))


class TopicSequences:
    """The sequences of a producer in one topic. Callers hold `lock` from `start_run` until the commit has ended."""

    def __init__(self, log: TopicLog, producer_id: str) -> None:
        self.lock = ForkLock()
        self._log = log
        self._producer_id = producer_id
        self._run: str | None = None
        self._epoch = 0
        self._failure: SparklogError | None = None
        self.last = 0

    def start_run(self) -> None:
        """Register the run if it is not registered.

        Raises `Conflict` after a failed commit, and `Fenced` if a newer run has started.
        """
        if isinstance(self._failure, Fenced):
            raise self._failure
        if self._failure is not None:
            raise Conflict(
                f"not published: an earlier commit of producer '{self._producer_id}' to topic '{self._log.topic}' "
                f"failed; call last_sequence('{self._log.topic}') and resend the records after this sequence "
                f"({self._failure})"
            )
        if self._run is not None:
            return
        run = self._log.env.new_id()
        state = self._log.state()
        outcome = self._log.commit(StartRunIntent(state.topic_id, self._producer_id, run), state)
        entry = outcome.state.registry[self._producer_id]
        if entry.run != run:
            raise Fenced(
                f"another producer '{self._producer_id}' is writing to topic '{self._log.topic}': stop this producer"
            )
        self._run, self._epoch, self.last = run, entry.epoch or 0, entry.batch

    def new_rows(self, sequences: Sequence[int | None]) -> list[int]:
        """Return the rows whose sequence is higher than all earlier sequences."""
        last, rows = self.last, []
        for row, sequence in enumerate(sequences):
            if sequence is not None and sequence > last:
                last = sequence
                rows.append(row)
        return rows

    def writer_key(self, last: int) -> WriterKey:
        """Return the writer key of a commit whose last sequence is `last`."""
        return WriterKey(self._producer_id, last, run=self._run, mode="txn", epoch=self._epoch)

    def failed(self, error: SparklogError) -> None:
        """Record that a commit failed. `read_last` must be called before the next commit."""
        if self._failure is None:
            self._failure = error

    def read_last(self) -> int:
        """Return the last published sequence, from which commits continue."""
        if self._failure is not None and not isinstance(self._failure, Fenced):
            # The new run fences the failed commit, which may still be in flight.
            self._failure, self._run = None, None
        self.start_run()
        return self.last


def checked_sequence(sequence: object, producer_id: str | None) -> int | None:
    """Validate a sequence. Raises `BadRequest` if the sequence is invalid, missing or not allowed."""
    if producer_id is None:
        if sequence is not None:
            raise BadRequest(
                f"sequence={shortened(sequence)} requires a producer_id, because sequences belong to a producer id"
            )
        return None
    number = as_integer(sequence)
    if number is None or not 1 <= number <= INT64_MAX:
        raise BadRequest(
            f"producer '{producer_id}' requires a sequence= for each record, an integer from 1 that increases with "
            f"each record; found {shortened(sequence)}"
        )
    return number
