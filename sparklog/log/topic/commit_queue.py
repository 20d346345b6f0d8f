"""The appends of one topic, from files to commits.

Every append ends here: those of `Topic.append`, of producers, of the server, of Spark's writer and of transactions. One
commit of a process is in flight at a time, and appends that arrive meanwhile share the next one if nothing in it is an
append's own: a writer's batch, a transaction, sequences of Kafka's producers (`group_commit` has the steps).

An append makes these requests. On a disk they are made one after the other; in a bucket, those in parentheses at once.

| append                                                 | on a disk                   | in a bucket                  |
|--------------------------------------------------------|-----------------------------|------------------------------|
| `Topic.append` of a table                              | next, [root, file], root,   | (next, root, file), create,  |
|                                                        | create, before              | before                       |
| `Topic.append` of other data                           | the same                    | (next, root), file, create,  |
|                                                        |                             | before                       |
| `Topic.append` of a small table, within a second of a  | the same                    | create, before               |
| commit of this process that met no other writer        |                             |                              |
| files of Spark and transactions, batches of the server | root, create, before        | (next, root), create, before |

* `next`: read the commit after the latest known one; there is none
* `file`: write an append file; no `[root, file]` if the rows go into the commit (`inline.records.bytes`)
* `root`: read the root's id, is it the one that was opened?
* `create`: create the commit, with the offsets of all its slices
* `before`: read the commit before it, is it the one that it was made after?

If another process has created that commit, it is read, the append is judged again by the new state, and the next number
is created (`sparklog.log.journal.journal`). An error says whether anything was written: `Unavailable` with `is_unknown`
leaves that open, for all appends of the commit.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

from sparklog.errors import BadRequest, Conflict, NotFound, SparklogError
from sparklog.log.journal.clocks import ClockReading
from sparklog.log.journal.group_commit import GroupCommit
from sparklog.log.journal.names import append_path
from sparklog.log.state.append_offsets import AppendIntent
from sparklog.log.state.commit import Txn
from sparklog.log.state.commit_intents import Nothing
from sparklog.log.state.commit_log import CommitLog, CommitOutcome
from sparklog.log.state.slices import FileSlices, content_of
from sparklog.log.state.topic_state import TopicState
from sparklog.log.state.writer_runs import TXN, KafkaWriterKey, WriterKey
from sparklog.log.topic.expiring import warn_of_times
from sparklog.log.write.append_output import placed
from sparklog.log.write.append_target import AppendOutcome, AppendTarget, appended, appended_each

_LOG = logging.getLogger("sparklog.log")


class PreparedAppend(NamedTuple):
    """Files that tasks wrote for `target` and no commit names yet: all of them are published at once, or none.

    * `writer`: the batch of a writer that they are, which is published once
    * `txn`: the transaction that they are prepared for
    * `kafka_writers`: Kafka's producers whose batches are in them
    * `inline`: records that are not written may go into the commit
    * `is_optimistic`: prepared by the state known here; `Conflict` if the topic has other configs or partitions by now
    """

    files: Sequence[FileSlices]
    target: AppendTarget
    writer: WriterKey | None = None
    txn: Txn | None = None
    kafka_writers: tuple[KafkaWriterKey, ...] = ()
    inline: bool = True
    is_optimistic: bool = False

    def shares_commit_with(self, other: PreparedAppend) -> bool:
        needs_own = self._needs_own_commit or other._needs_own_commit
        return not needs_own and self.target.takes_rows_as(other.target)

    @property
    def _needs_own_commit(self) -> bool:
        is_plain = self.writer is None and self.txn is None and not self.kafka_writers and self.inline
        return not is_plain or not self.records

    @property
    def records(self) -> int:
        return sum([sum(file.records) for file in self.files])


class CommitQueue:
    """Publishes the appends of one topic: see the module. Threads share it."""

    def __init__(self, log: CommitLog, root_id: str) -> None:
        self._log = log
        self._root_id = root_id
        self._group: GroupCommit[PreparedAppend, AppendOutcome] = GroupCommit(log.title, self._commit_in_groups)
        self._epochs: dict[tuple[str, str], int] = {}
        """By writer and run: the epoch that the run has here."""
        self._last: tuple[int, ClockReading] | None = None
        """The version of the last commit, and when the root was looked at for it; None if it met another writer."""

    def publish(self, attempts: Iterable[PreparedAppend]) -> AppendOutcome:
        """Publish the first of several preparations of the same rows that the topic accepts.

        If an optimistic one is refused, the next is made: by a later state the topic may accept the rows.
        """
        refusal: SparklogError | None = None
        for append in attempts:
            append.target.check_belongs_to(self._root_id, self._log.topic)
            if append.writer is not None:
                append.writer.check()
            try:
                return self._group.submit(append)
            except (BadRequest, Conflict) as error:
                if not append.is_optimistic:
                    raise
                refusal = error
        assert refusal is not None
        raise refusal

    def optimistic_target(self, known: AppendTarget) -> AppendTarget | None:
        """Return the target of the state known here if rows may be published without a request for the latest state.

        That is so if the last commit is this process's own, met no other writer, and the root was looked at less than a
        second ago.
        """
        if self._last is None:
            return None
        version, root_checked = self._last
        is_fresh = version == known.read_version and self._log.env.now().is_soon_after(root_checked)
        return replace(known, root_checked=root_checked) if is_fresh else None

    def _commit_in_groups(self, appends: Sequence[PreparedAppend]) -> list[AppendOutcome | SparklogError]:
        groups = [[appends[0]]]
        for append in appends[1:]:
            if append.shares_commit_with(groups[-1][0]):
                groups[-1].append(append)
            else:
                groups.append([append])
        return [outcome for group in groups for outcome in self._outcomes(group)]

    def _outcomes(self, appends: Sequence[PreparedAppend]) -> Sequence[AppendOutcome | SparklogError]:
        """Commit appends together; if the topic refuses them, commit each alone, so that only the wrong ones fail."""
        try:
            return self._commit(appends)
        except (BadRequest, Conflict, NotFound) as error:
            # Nothing was written.
            if len(appends) == 1:
                return [error]
        except SparklogError as error:
            return [error] * len(appends)
        return [outcome for append in appends for outcome in self._outcomes([append])]

    def _commit(self, appends: Sequence[PreparedAppend]) -> list[AppendOutcome]:
        """Commit appends together; what is an append's own is that of the first."""
        append, log = appends[0], self._log
        target, state = append.target, self._head_to_append_to()
        writer = None if append.writer is None else self._known_writer(append.writer, append.files)
        files = placed(
            *(log.store, log.topic, [file for append in appends for file in append.files]),
            max_inline_bytes=target.inline_bytes if append.inline else 0,
            new_path=lambda: append_path(state.version, log.env.new_id()),
        )
        now_ms = log.env.wall_ms()
        is_optimistic = any(append.is_optimistic for append in appends)
        written_for = (target.partitions, target.configs) if is_optimistic else None
        intent = AppendIntent(
            target.topic_id, tuple(files), now_ms, writer, append.txn, append.kafka_writers, written_for
        )
        root_checked = appends[-1].target.root_checked
        outcome = log.commit(intent, state, root_checked=root_checked)
        self._remember(outcome, state, root_checked, writer)
        if outcome.nothing is not None:
            return [_outcome_of_nothing(outcome.nothing, writer)]
        if not target.configs.log_append_time:
            warn_of_times(self._root_id, log.topic, target.configs, files, now_ms)
        if len(appends) == 1:
            return [appended(outcome.commit, intent.count)]
        return appended_each(outcome.commit, [append.files for append in appends])

    def _head_to_append_to(self) -> TopicState:
        """Return the head known here, after ending transactions that Kafka left open in an imported topic."""
        state = self._log.current().topic_state
        if state.kafka_open:
            from sparklog.log.write.kafka_markers import end_before_append

            end_before_append(self._log)
            state = self._log.current().topic_state
        return state

    def _known_writer(self, writer: WriterKey, files: Sequence[FileSlices]) -> WriterKey:
        """Return a writer with the content of its batch, and the epoch that its run has here."""
        epoch = self._epochs.get((writer.id, writer.run or "")) if writer.epoch is None else writer.epoch
        return replace(writer, epoch=epoch, content=content_of({self._log.topic: [file.counts for file in files]}))

    def _remember(
        self, outcome: CommitOutcome, before: TopicState, root_checked: ClockReading | None, writer: WriterKey | None
    ) -> None:
        """Remember the epoch of a writer's run, and whether this process commits without meeting another writer."""
        commit = outcome.commit
        is_next = commit is not None and commit.version == before.version + 1
        self._last = (before.version + 1, root_checked) if is_next and root_checked is not None else None
        if writer is not None and writer.run is not None:
            entry = outcome.state.registry.get(writer.id)
            if entry is not None and entry.run == writer.run:
                self._epochs[writer.id, writer.run] = entry.epoch or 0


def _outcome_of_nothing(nothing: Nothing, writer: WriterKey | None) -> AppendOutcome:
    if nothing.skipped and writer is not None and writer.mode == TXN:
        _LOG.warning("%s", nothing.note)
    return AppendOutcome(nothing.version, {}, {}, 0, nothing.skipped, nothing.note)
