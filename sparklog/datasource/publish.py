"""The commit of a Spark write, at most once per batch.

Rows for the topic that an option or the path names are one commit. Where a column names the topics, also when its rows
happen to name a single one, the write is a transaction over them: its id is the query's (or `txnAppId`), or one of its
own for a batch write that has no name. The replay rule is then asked in the decisions of that id, which know all topics
of a batch, and not topic by topic.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from sparklog.datasource.handles import root_at
from sparklog.datasource.write_task import SinkPlan, SparklogCommitMessage, TopicFiles
from sparklog.errors import Conflict

if TYPE_CHECKING:
    from sparklog.log.state.registry import WriterKey
    from sparklog.log.state.slices import FileSlices
    from sparklog.log.topic.root import Root
    from sparklog.log.write.append_target import AppendTarget

_LOG = logging.getLogger("sparklog.datasource")


@dataclass(frozen=True)
class BatchKey:
    """`txnAppId` and `txnVersion` of a batch write: a version at or below the newest is skipped, as Delta does."""

    writer: str
    version: int


@dataclass(frozen=True)
class StreamKey:
    """A micro-batch: the query's id (or `txnAppId`), the batch id, and the run, so that a superseded run is stopped.

    `epoch` is higher in each later run: when it first committed, ms. None where that is not known.
    """

    writer: str
    batch: int
    run: str | None
    epoch: int | None = None


def publish(plan: SinkPlan, messages: Sequence[SparklogCommitMessage], key: BatchKey | StreamKey | None) -> None:
    """Commit what the tasks wrote: to one topic at once, to several as a transaction."""
    root = root_at(plan.location)
    _check_root(root, plan, messages)
    writer = _writer_key(root, plan, key)
    topics = collect(messages)
    if isinstance(key, StreamKey) and writer is not None and _published_otherwise(root, plan, topics, writer):
        return
    if plan.topic is None:
        _transaction(root, topics, writer, plan.options.transaction_timeout_ms)
        return
    for name, written in topics.items():
        _commit(root, name, written, writer)


def _check_root(root: Root, plan: SinkPlan, messages: Iterable[SparklogCommitMessage]) -> None:
    """Raises Conflict unless the root is the one that this write was planned for, and its tasks wrote to."""
    expected = {part.target.root_id for message in messages for part in message.topics}
    if plan.root_id is not None:
        expected.add(plan.root_id)
    for found in sorted(expected - {root.id}):
        raise Conflict(
            f"The root at {root.location} changed its id from {found} to {root.id} while this write ran: write again"
        )


@dataclass(frozen=True)
class Written:
    """What all tasks wrote for one topic, in the order of the tasks."""

    target: AppendTarget
    files: tuple[FileSlices, ...]


def collect(messages: Iterable[SparklogCommitMessage]) -> dict[str, Written]:
    """Topic -> what was written for it, topics sorted. Raises Conflict if a topic was re-created under the tasks."""
    found: dict[str, list[TopicFiles]] = {}
    for message in messages:
        for part in message.topics:
            found.setdefault(part.target.topic, []).append(part)
    return {name: _together(name, found[name]) for name in sorted(found)}


def _together(name: str, parts: Sequence[TopicFiles]) -> Written:
    ids = {part.target.topic_id for part in parts}
    if len(ids) > 1:
        raise Conflict(f"The topic {name!r} was deleted and created again while this write ran: write again")
    target = min((part.target for part in parts), key=lambda target: target.read_version)
    return Written(target, tuple(file for part in parts for file in part.files))


def _writer_key(root: Root, plan: SinkPlan, key: BatchKey | StreamKey | None) -> WriterKey | None:
    from sparklog.log.state.registry import WriterKey

    if key is None:
        return None
    if isinstance(key, BatchKey):
        return WriterKey(key.writer, key.version, mode="txn")
    return WriterKey(
        key.writer,
        key.batch,
        run=key.run,
        mode="stream",
        replay_mismatch="accept" if plan.options.replay_mismatch == "accept" else "error",
        # Machines' clocks differ, and the next run may be on another one.
        epoch=None if key.epoch is None else max(0, root.by_store_clock(key.epoch)),
    )


def _published_otherwise(root: Root, plan: SinkPlan, topics: dict[str, Written], writer: WriterKey) -> bool:
    """True if an earlier run of the query has published this batch, and named topics in the other way."""
    from sparklog.log.state.content import content_of
    from sparklog.transactions.switching import in_decisions, in_topics

    counts = {name: [file.counts for file in written.files] for name, written in topics.items()}
    writer = replace(writer, content=content_of(counts))
    count = sum(sum(file.records) for written in topics.values() for file in written.files)
    if plan.topic is None:
        return in_topics(root, writer, count, None if plan.options.txn_app_id is None else topics)
    return in_decisions(root, plan.topic, writer, count)


def _commit(root: Root, name: str, written: Written, writer: WriterKey | None) -> None:
    if not written.files and writer is None:
        return
    root.topic_handle(name).commit_append(written.files, written.target, writer=writer)


def _transaction(root: Root, topics: dict[str, Written], writer: WriterKey | None, timeout_ms: int) -> None:
    """All topics or none, in the order of their names."""
    from sparklog.transactions.publishing import publish as commit_together

    written = [(item.target, item.files) for item in topics.values()]
    done = commit_together(root, None if writer is None else writer.id, written, key=writer, timeout_ms=timeout_ms)
    if done.skipped and writer is not None and writer.mode == "txn":
        _LOG.warning("%s", done.note)
