"""The commit queue of a topic, which publishes appended files in commits.

All appends use this queue: `Topic.append`, producers, the server, Spark's writer and transactions. A process has one
commit in flight at a time. Appends that arrive during a commit share the next commit (`group_commit` describes the
steps). A writer's batch, an append to a transaction, and batches of Kafka producers each need their own commit.

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

* `next`: try to read the commit after the latest cached commit, which does not exist if the cache is current
* `file`: write an append file; if the rows become inline records (`inline.records.bytes`), `[root, file]` is skipped
* `root`: read the root's id, and check that the root has not been replaced since it was opened
* `create`: create the commit, with the offsets of all its slices
* `before`: read the previous commit, and check that the new commit follows it

If another process has created this commit, the process reads it, validates the append against the new state, and
creates the next commit (`sparklog.log.journal.journal`). If an append fails, the error indicates whether the append was
written. If the error is `Unavailable` with `is_unknown`, it is unknown for all appends in the commit.

An optimistic append in a bucket, by Writer A:

1. A commits version 7 directly after the state in its cache, and has checked the root for this commit.
2. Less than a second later, A encodes a small table for the state at version 7 and creates commit 8.
3. If commit 8 did not exist, the append is complete, without a request for the latest state.
4. If Writer B has created commit 8, A reads it. If B has changed configs or partitions, or the topic rejects the rows,
   A encodes the table again for the latest state and appends it like any other table.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from sparklog.common.warned import is_first_warning
from sparklog.errors import BadRequest, Conflict, NotFound
from sparklog.log.journal.clocks import ClockReading
from sparklog.log.journal.group_commit import GroupCommit
from sparklog.log.journal.names import append_path
from sparklog.log.state.append_offsets import AppendIntent
from sparklog.log.state.commit_intents import Nothing
from sparklog.log.state.commit_log import CommitLog, CommitResult
from sparklog.log.state.configs import TopicConfigs
from sparklog.log.state.slices import FileSlices, content_of
from sparklog.log.state.topic_state import TopicState
from sparklog.log.state.writer_runs import TXN, WriterKey
from sparklog.log.topic.expiring import warn_of_times
from sparklog.log.topic.prepared_appends import AppendGroup, PreparedAppend, append_groups
from sparklog.log.write.append_output import place_inline_records
from sparklog.log.write.append_target import AppendOutcome, AppendTarget

_LOG = logging.getLogger("sparklog.log")


class _LastCommit(NamedTuple):
    """A commit of this process that directly followed the cached state, and the time of its root check."""

    version: int
    root_checked_at: ClockReading


class CommitQueue:
    """Publishes the appends of one topic (see the module docstring). Threads share an instance."""

    def __init__(self, log: CommitLog, root_id: str) -> None:
        self._log = log
        self._root_id = root_id
        self._group: GroupCommit[PreparedAppend, AppendOutcome] = GroupCommit(log.title, self._commit_all)
        self._last: _LastCommit | None = None
        """The last commit, or None if it raced with another writer's commit."""
        self._epochs: dict[tuple[str, str], int] = {}
        """The epoch of each (writer, run) in this topic. Earlier runs of a writer are not removed, so that they remain
        fenced.
        """

    def publish(self, append: PreparedAppend) -> AppendOutcome:
        """Commit an append, together with the appends of waiting threads if possible."""
        append.target.check_belongs_to(self._root_id, self._log.topic)
        if append.writer is not None:
            append.writer.check()
        return self._group.submit(append)

    def optimistic_target(self, known: AppendTarget) -> AppendTarget | None:
        """Return the target of the cached state if rows may be published without reading the latest state.

        This requires that the last commit was written by this process, did not race with another writer's commit, and
        checked the root less than a second ago.
        """
        last = self._last
        if last is None or last.version != known.read_version:
            return None
        is_fresh = self._log.env.now().is_soon_after(last.root_checked_at)
        return replace(known, root_checked_at=last.root_checked_at) if is_fresh else None

    def _commit_all(self, appends: Sequence[PreparedAppend]) -> list[AppendOutcome | Exception]:
        """Commit appends in order and in as few commits as possible. Return the result of each append."""
        return [outcome for group in append_groups(appends) for outcome in self._commit_valid(group)]

    def _commit_valid(self, group: AppendGroup) -> Sequence[AppendOutcome | Exception]:
        """Commit a group. If the topic rejects it, commit each append alone, so that only invalid appends fail."""
        appends = group.appends
        try:
            return self._commit(group)
        except (BadRequest, Conflict, NotFound) as error:
            # Nothing was written.
            if len(appends) == 1:
                return [error]
        except Exception as error:  # noqa: BLE001 - the appends of earlier groups are committed
            return [error] * len(appends)
        return [outcome for append in appends for outcome in self._commit_valid(AppendGroup((append,)))]

    def _commit(self, group: AppendGroup) -> list[AppendOutcome]:
        """Commit a group, and return the outcome of each append."""
        append = group.joined()
        result = self._commit_append(append)
        if result.commit is None:
            # The append is alone, because an append that may not need a commit has its own group.
            assert result.nothing is not None
            return [_skipped(result.nothing, append.writer)]
        return group.outcomes(result.commit)

    def _commit_append(self, append: PreparedAppend) -> CommitResult:
        """Commit an append, and remember what the next appends need to know about the commit."""
        log, target = self._log, append.target
        state = self._state_without_kafka_transactions()
        files = place_inline_records(
            log.store,
            log.topic,
            append.files,
            max_inline_bytes=target.inline_bytes if append.may_inline else 0,
            new_path=lambda: append_path(state.version, log.env.new_id()),
        )
        now_ms = log.env.wall_ms()
        intent = AppendIntent(
            target.topic_id,
            tuple(files),
            now_ms,
            key=self._completed_key(append),
            txn=append.txn,
            kafka_writers=append.kafka_writers,
            written_for=(target.partitions, target.configs) if append.is_optimistic else None,
        )
        result = log.commit(intent, state, root_checked_at=target.root_checked_at)
        self._remember_commit(result, state, target.root_checked_at)
        self._remember_epoch(result, append.writer)
        if result.commit is not None:
            self._warn(target.configs, files, now_ms)
        return result

    def _state_without_kafka_transactions(self) -> TopicState:
        """End transactions that Kafka left open in an imported topic, and return the cached state."""
        state = self._log.current().topic_state
        if state.kafka_open:
            from sparklog.log.write.kafka_markers import end_before_append

            end_before_append(self._log)
            state = self._log.current().topic_state
        return state

    def _completed_key(self, append: PreparedAppend) -> WriterKey | None:
        """Return the writer key of a batch with the content of the batch and the run's epoch in this topic."""
        key = append.writer
        if key is None:
            return None
        epoch = key.epoch
        if epoch is None and key.run is not None:
            epoch = self._epochs.get((key.id, key.run))
        return replace(key, epoch=epoch, content=content_of({self._log.topic: [file.counts for file in append.files]}))

    def _remember_commit(self, result: CommitResult, before: TopicState, root_checked_at: ClockReading | None) -> None:
        """Remember whether this process has committed directly after the cached state."""
        commit, self._last = result.commit, None
        if commit is not None and commit.version == before.version + 1 and root_checked_at is not None:
            self._last = _LastCommit(commit.version, root_checked_at)

    def _remember_epoch(self, result: CommitResult, writer: WriterKey | None) -> None:
        """Remember the epoch of a writer's run, which its next batches must have."""
        if writer is None or writer.run is None:
            return
        entry = result.state.registry.get(writer.id)
        if entry is not None and entry.run == writer.run:
            self._epochs[writer.id, writer.run] = entry.epoch or 0

    def _warn(self, configs: TopicConfigs, files: Sequence[FileSlices], now_ms: int) -> None:
        """Log a warning about records that expire. Once per checkpoint, also log a warning if there are many unsealed
        slices.
        """
        log = self._log
        if not configs.log_append_time:
            warn_of_times(self._root_id, log.topic, configs, files, now_ms)
        known = log.known()
        checkpoint = None if known is None else known.checkpoint
        if checkpoint is None or checkpoint.table.unsealed <= log.store.limits.many_unsealed:
            return
        if is_first_warning("unsealed slices", self._root_id, log.topic, checkpoint.state.version):
            count = checkpoint.table.unsealed
            _LOG.warning("topic %s has %d unsealed slices; run sparklog compact to merge them", log.topic, count)


def _skipped(nothing: Nothing, writer: WriterKey | None) -> AppendOutcome:
    """Return the outcome of an append that needed no commit. Log the reason if it is a batch of a transaction."""
    if nothing.skipped and writer is not None and writer.mode == TXN:
        _LOG.warning("%s", nothing.note)
    return AppendOutcome(nothing.version, {}, {}, 0, nothing.skipped, nothing.note)
