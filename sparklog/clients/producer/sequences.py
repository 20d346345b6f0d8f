"""Sequences: what makes a producer with a `producer_id` publish no record twice, over restarts as well.

The registry of a topic's writers (`sparklog.log.state.writer_runs`) keeps the number of each writer's newest batch.
Here it is the last sequence of a commit, so that what landed is known exactly: a commit is whole or not there. Before
its first commit to a topic a producer enters its run. From then on no commit of an older run lands, not even one that
was on its way, and the number that the registry has is the last one. The same is done after a commit failed, when its
outcome may be unknown.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from sparklog.common.settings import as_whole
from sparklog.errors import BadRequest, Conflict, Fenced, SparklogError, shortened
from sparklog.log.journal.documents import INT64_MAX
from sparklog.log.state.commit import TAKEOVER, Writer
from sparklog.log.state.commit_intents import Draft, Nothing, check_topic
from sparklog.log.state.slice_table import SliceTable
from sparklog.log.state.topic_state import TopicState
from sparklog.log.state.writer_runs import TXN, WriterKey, next_epoch
from sparklog.log.topic.engine import TopicLog
from sparklog.storage.fork_safety import ForkLock


@dataclass(frozen=True, slots=True)
class EnterRunIntent:
    """Enter a run of a writer in the registry of a topic, which may not know the writer: then its batch is 0."""

    topic_id: str
    writer_id: str
    run: str
    needs_table: ClassVar[bool] = False
    repeatable: ClassVar[bool] = True

    def draft(self, topic: str, state: TopicState, origin: TopicState, table: SliceTable | None) -> Draft | Nothing:
        check_topic(topic, state, self.topic_id)
        entry = state.registry.get(self.writer_id)
        if entry is not None and entry.run == self.run:
            return Nothing("the run is entered here", state.version)
        batch, count = (0, 0) if entry is None else (entry.batch, entry.count)
        epoch = next_epoch(entry, self.run, None)
        return Draft(TAKEOVER, writer=Writer(TXN, self.writer_id, batch, self.run, count, epoch))


class TopicSequences:
    """The sequences of a producer in one topic. Hold `lock` from `begin` to the end of a commit."""

    def __init__(self, log: TopicLog, producer_id: str) -> None:
        self.lock = ForkLock()
        self._log = log
        self._producer_id = producer_id
        self._run: str | None = None
        self._epoch = 0
        self._failure: SparklogError | None = None
        self.last = 0

    def begin(self) -> None:
        """Enter the run, if that was not done. `Conflict` after a commit that failed, `Fenced` after a newer run."""
        if isinstance(self._failure, Fenced):
            raise self._failure
        if self._failure is not None:
            raise Conflict(
                f"not published: an earlier commit of producer '{self._producer_id}' to topic '{self._log.topic}' "
                f"failed; ask last_sequence('{self._log.topic}') and send from there on again ({self._failure})"
            )
        if self._run is not None:
            return
        run = self._log.env.new_id()
        state = self._log.state()
        outcome = self._log.commit(EnterRunIntent(state.topic_id, self._producer_id, run), state)
        entry = outcome.state.registry[self._producer_id]
        if entry.run != run:
            raise Fenced(f"another producer '{self._producer_id}' took over topic '{self._log.topic}': stop this one")
        self._run, self._epoch, self.last = run, entry.epoch or 0, entry.batch

    def new_rows(self, sequences: Sequence[int | None]) -> list[int]:
        """Return the rows whose sequence is higher than all before."""
        last, rows = self.last, []
        for row, sequence in enumerate(sequences):
            if sequence is not None and sequence > last:
                last = sequence
                rows.append(row)
        return rows

    def key(self, last: int) -> WriterKey:
        """Return what makes a commit the batch up to this sequence."""
        return WriterKey(self._producer_id, last, run=self._run, mode="txn", epoch=self._epoch)

    def failed(self, error: SparklogError) -> None:
        """Note that a commit failed: what landed must be asked before another one is tried."""
        if self._failure is None:
            self._failure = error

    def ask(self) -> int:
        """Return the last sequence that landed; commits go on from there."""
        if self._failure is not None and not isinstance(self._failure, Fenced):
            # A new run: what the failed commit may still do cannot land after this one is entered.
            self._failure, self._run = None, None
        self.begin()
        return self.last


def checked_sequence(sequence: object, producer_id: str | None) -> int | None:
    """Return a sequence. `BadRequest` for one that no producer can have, or one too many or too few."""
    if producer_id is None:
        if sequence is not None:
            raise BadRequest(
                f"sequence={shortened(sequence)} needs a producer_id, under which the topic keeps the last sequence"
            )
        return None
    number = as_whole(sequence)
    if number is None or not 1 <= number <= INT64_MAX:
        raise BadRequest(
            f"producer '{producer_id}' sends with sequence=, a whole number from 1 on that grows; "
            f"found {shortened(sequence)}"
        )
    return number
