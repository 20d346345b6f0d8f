"""Write rows to files and append them to a topic, for `Topic.append` and producers.

The files of an append depend on the topic's partitions and configs. There are three ways to obtain them:

* Optimistic append: a small table is written for the cached state and published without reading the latest state. This
  requires that this process has just written the last commit; see `sparklog.log.topic.commit_queue`.
* A table for a remote store is written for the cached state while the latest state is read in parallel. If the
  partitions or configs have changed, the table is written again, and the vacuum deletes the first files.
* Otherwise, the rows are written after the latest state was read. Data that is not a table can be read only once, and
  reading the latest state of a local topic takes almost no time.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial

from sparklog.errors import BadRequest, Conflict, SparklogError
from sparklog.log.state.writer_runs import WriterKey
from sparklog.log.topic.defaults import METADATA_MAX_AGE_MS
from sparklog.log.topic.engine import TopicLog
from sparklog.log.topic.prepared_appends import PreparedAppend
from sparklog.log.write.append_target import AppendOutcome, AppendTarget, WriteOptions
from sparklog.log.write.arrow_data import ArrowData, is_table, write_files
from sparklog.storage.parallel_reads import request_both


def append_rows(
    log: TopicLog, data: ArrowData, options: WriteOptions | None, writer: WriterKey | None
) -> AppendOutcome:
    """Write rows and publish them, optimistically if possible."""
    if writer is not None:
        writer.check()
    rows = _Rows(log, data, options, writer)
    target = rows.optimistic_target()
    if target is not None:
        # If the cached state or the commit rejects the rows, the latest state may still accept them.
        with suppress(BadRequest, Conflict):
            return log.queue.publish(replace(rows.write(target), is_optimistic=True))
    return log.queue.publish(rows.write_for_latest_state())


def write_rows(log: TopicLog, data: ArrowData, options: WriteOptions | None = None) -> PreparedAppend:
    """Write rows to files that no commit references yet, for the latest state."""
    return _Rows(log, data, options, None).write_for_latest_state()


@dataclass(frozen=True, slots=True)
class _Rows:
    """The rows of one append. `writer` is the batch that consists of the rows."""

    log: TopicLog
    data: ArrowData
    options: WriteOptions | None
    writer: WriterKey | None

    def write(self, target: AppendTarget, *, is_root_checked: bool = False) -> PreparedAppend:
        """Write the rows to files for a target."""
        log, options, writer = self.log, self.options, self.writer
        files = write_files(self.data, target, log.env, options=options, writer=writer, is_root_checked=is_root_checked)
        return PreparedAppend(files, target, writer)

    def optimistic_target(self) -> AppendTarget | None:
        """Return the target for an optimistic append, or None if an optimistic append is not possible."""
        cached = self._cached_target()
        # Encoded rows can be larger than Arrow data. With half of the limit, the rows almost always become inline
        # records, so a rejected optimistic append does not leave an unreferenced file.
        if cached is None or not is_table(self.data) or self.data.nbytes > cached.inline_bytes // 2:
            return None
        return self.log.queue.optimistic_target(cached)

    def write_for_latest_state(self) -> PreparedAppend:
        """Write the rows to files for the latest state, in parallel with reading it if possible."""
        cached = self._cached_target()
        if cached is None:
            return self.write(self.log.append_target())
        log = self.log
        latest, append = request_both(log.store, log.append_target, partial(self._write_early, cached))
        if log.state(refresh=False).floor > cached.read_version or not latest.accepts_files_for(cached):
            return self.write(log.append_target())
        if isinstance(append, SparklogError):
            raise append
        return replace(append, target=latest)

    def _write_early(self, cached: AppendTarget) -> PreparedAppend | SparklogError:
        """Write the rows for the cached state. Return an error instead of raising it, because the latest state may
        accept the rows.
        """
        try:
            # The root is checked in parallel, when the latest state is read.
            return self.write(cached, is_root_checked=True)
        except SparklogError as error:
            return error

    def _cached_target(self) -> AppendTarget | None:
        """Return the target of the cached state, or None if the rows must be written for the latest state."""
        log = self.log
        if log.store.parallel_reads == 1 or not is_table(self.data):
            return None
        known, seen = log.known(), log.known_since()
        is_recent = seen is not None and log.env.elapsed_ms(seen) < METADATA_MAX_AGE_MS
        if known is None or not known.topic_state.exists or not is_recent:
            return None
        return log.append_target(refresh=False)
