"""The appends of one topic, from files to commits.

All appends use this queue: `Topic.append`, producers, the server, Spark's writer and transactions. A process has one
commit in flight at a time. Appends that arrive during a commit share the next commit (`group_commit` describes the
steps). A batch of a writer, an append to a transaction, and batches of Kafka producers need their own commit.

An append sends the following requests. On a disk, they are sent one after the other. In a bucket, the requests in
parentheses are sent in parallel.

| append                                                   | on a disk                 | in a bucket                  |
|----------------------------------------------------------|---------------------------|------------------------------|
| `Topic.append` of a table                                | next, [root, file], root, | (next, root, file), create,  |
|                                                          | create, before            | before                       |
| `Topic.append` of other data                             | the same                  | (next, root), file, create,  |
|                                                          |                           | before                       |
| optimistic: `Topic.append` of a small table, less than a | the same                  | create, before               |
| second after a commit of this process that did not race  |                           |                              |
| files of Spark and transactions, batches of the server   | root, create, before      | (next, root), create, before |

* `next`: try to read the commit after the latest cached commit; it does not exist
* `file`: write an append file; if the rows become inline records (`inline.records.bytes`), `[root, file]` is skipped
* `root`: read the root's id, and check that the root has not been replaced since it was opened
* `create`: create the commit, with the offsets of all its slices
* `before`: read the previous commit, and check that the new commit follows it

If another process has created this commit, the process reads it, validates the append against the new state, and
creates the next commit (`sparklog.log.journal.journal`). If an append fails, the error indicates whether the append was
written. For `Unavailable` with `is_unknown`, this is unknown for all appends of the commit.

An optimistic append in a bucket, by Writer A:

1. A commits version 7 directly after the state in its cache, and has checked the root for this commit.
2. Less than a second later, A encodes a small table for the state at version 7 and creates commit 8.
3. If commit 8 did not exist, the append is complete, without a request for the latest state.
4. If Writer B has created commit 8, A reads it. If B has changed configs or partitions, or the topic rejects the rows,
   A encodes the table again for the latest state and appends it like any other table.
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
from sparklog.log.state.commit_log import CommitLog, CommitResult
from sparklog.log.state.slices import FileSlices, content_of
from sparklog.log.state.topic_state import TopicState
from sparklog.log.state.writer_runs import TXN, KafkaWriterKey, WriterKey
from sparklog.log.topic.expiring import warn_of_times
from sparklog.log.write.append_output import place_inline_records
from sparklog.log.write.append_target import AppendOutcome, AppendTarget, appended, appended_each

_LOG = logging.getLogger("sparklog.log")


class PreparedAppend(NamedTuple):
    """Files that tasks wrote for `target` and that no commit references yet. They are published atomically.

    * `writer`: the batch that consists of the files, which is published once
    * `txn`: the transaction that the files belong to
    * `kafka_writers`: the Kafka producers whose batches are in the files
    * `inline`: whether small files may become inline records of the commit
    * `is_optimistic`: whether the files were prepared for the cached state; raises `Conflict` if the topic's configs or
      partitions have changed
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
        return not needs_own and self.target.accepts_files_for(other.target)

    @property
    def _needs_own_commit(self) -> bool:
        is_plain = self.writer is None and self.txn is None and not self.kafka_writers and self.inline
        return not is_plain or not self.records

    @property
    def records(self) -> int:
        return sum([sum(file.records) for file in self.files])


class _LastCommit(NamedTuple):
    """A commit of this process that directly followed the cached state, and the time of its root check."""

    version: int
    root_checked: ClockReading


class CommitQueue:
    """Publishes the appends of one topic (see the module docstring). Threads share an instance."""

    def __init__(self, log: CommitLog, root_id: str) -> None:
        self._log = log
        self._root_id = root_id
        self._group: GroupCommit[PreparedAppend, AppendOutcome] = GroupCommit(log.title, self._commit_all)
        self._last: _LastCommit | None = None
        """None if the last commit raced with another writer's commit."""
        self._epochs: dict[tuple[str, str], int] = {}
        """The epoch of each (writer, run) in this topic."""

    def publish(self, attempts: Iterable[PreparedAppend]) -> AppendOutcome:
        """Publish the first of several preparations of the same rows that the topic accepts.

        If the topic rejects an optimistic preparation, the next one is used, because the latest state may accept the
        rows.
        """
        rejection: SparklogError | None = None
        for append in attempts:
            append.target.check_belongs_to(self._root_id, self._log.topic)
            if append.writer is not None:
                append.writer.check()
            try:
                return self._group.submit(append)
            except (BadRequest, Conflict) as error:
                if not append.is_optimistic:
                    raise
                rejection = error
        assert rejection is not None
        raise rejection

    def optimistic_target(self, known: AppendTarget) -> AppendTarget | None:
        """Return the target of the cached state if rows may be published without reading the latest state.

        This requires that the last commit was written by this process, did not race with another writer's commit, and
        checked the root less than a second ago.
        """
        last = self._last
        if last is None or last.version != known.read_version:
            return None
        is_fresh = self._log.env.now().is_soon_after(last.root_checked)
        return replace(known, root_checked=last.root_checked) if is_fresh else None

    def _commit_all(self, appends: Sequence[PreparedAppend]) -> list[AppendOutcome | SparklogError]:
        """Commit appends in order and in as few commits as possible. Return the result of each append."""
        groups = [[appends[0]]]
        for append in appends[1:]:
            if append.shares_commit_with(groups[-1][0]):
                groups[-1].append(append)
            else:
                groups.append([append])
        outcomes: list[AppendOutcome | SparklogError] = []
        for group in groups:
            outcomes += self._outcomes(group)
        return outcomes

    def _outcomes(self, appends: Sequence[PreparedAppend]) -> Sequence[AppendOutcome | SparklogError]:
        """Commit appends together. If the topic rejects them, commit each one alone, so that only invalid ones fail."""
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
        """Commit appends together. Only an append that needs its own commit has a writer, `txn` or `kafka_writers`."""
        append, target, log = appends[0], appends[0].target, self._log
        state = self._state_without_kafka_transactions()
        files = self._placed_files(appends, state)
        now_ms = log.env.wall_ms()
        is_optimistic = True in [append.is_optimistic for append in appends]
        intent = AppendIntent(
            target.topic_id,
            tuple(files),
            now_ms,
            key=self._completed_key(append),
            txn=append.txn,
            kafka_writers=append.kafka_writers,
            written_for=(target.partitions, target.configs) if is_optimistic else None,
        )
        root_checked = appends[-1].target.root_checked
        # The journal checks the root, unless the writer has checked it within the last second.
        outcome = log.commit(intent, state, root_checked=root_checked)
        self._remember_commit(outcome, state, root_checked)
        self._remember_epoch(outcome, append.writer)
        if outcome.nothing is not None:
            return [_skipped(outcome, append.writer)]
        if not target.configs.log_append_time:
            warn_of_times(self._root_id, log.topic, target.configs, files, now_ms)
        if len(appends) == 1:
            return [appended(outcome.commit, intent.count)]
        return appended_each(outcome.commit, [append.files for append in appends])

    def _state_without_kafka_transactions(self) -> TopicState:
        """End transactions that Kafka left open in an imported topic, and return the cached state."""
        state = self._log.current().topic_state
        if state.kafka_open:
            from sparklog.log.write.kafka_markers import end_before_append

            end_before_append(self._log)
            state = self._log.current().topic_state
        return state

    def _placed_files(self, appends: Sequence[PreparedAppend], state: TopicState) -> list[FileSlices]:
        """Return the files of all appends. Inline files are joined, and are written if they are too large together."""
        log, append = self._log, appends[0]
        return place_inline_records(
            log.store,
            log.topic,
            append.files if len(appends) == 1 else [file for each in appends for file in each.files],
            max_inline_bytes=append.target.inline_bytes if append.inline else 0,
            new_path=lambda: append_path(state.version, log.env.new_id()),
        )

    def _completed_key(self, append: PreparedAppend) -> WriterKey | None:
        """Return the key of a writer's batch with the content of the batch and the epoch of the run in this topic."""
        key = append.writer
        if key is None:
            return None
        epoch = self._epochs.get((key.id, key.run or "")) if key.epoch is None else key.epoch
        return replace(key, epoch=epoch, content=content_of({self._log.topic: [file.counts for file in append.files]}))

    def _remember_commit(self, outcome: CommitResult, before: TopicState, root_checked: ClockReading | None) -> None:
        """Remember whether this process has committed directly after the cached state."""
        is_next = outcome.commit is not None and outcome.commit.version == before.version + 1
        self._last = _LastCommit(before.version + 1, root_checked) if is_next and root_checked is not None else None

    def _remember_epoch(self, outcome: CommitResult, writer: WriterKey | None) -> None:
        if writer is None or writer.run is None:
            return
        entry = outcome.state.registry.get(writer.id)
        if entry is not None and entry.run == writer.run:
            self._epochs[writer.id, writer.run] = entry.epoch or 0


def _skipped(outcome: CommitResult, writer: WriterKey | None) -> AppendOutcome:
    nothing = outcome.nothing
    assert nothing is not None
    if nothing.skipped and writer is not None and writer.mode == TXN:
        _LOG.warning("%s", nothing.note)
    return AppendOutcome(nothing.version, {}, {}, 0, nothing.skipped, nothing.note)
