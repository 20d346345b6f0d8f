"""The commit of a Spark write: one commit per topic, each at most once per batch."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sparklog.datasource.handles import root_at
from sparklog.datasource.write_task import SinkPlan, SparklogCommitMessage, TopicFiles
from sparklog.errors import Conflict

if TYPE_CHECKING:
    from sparklog.log.append_target import AppendTarget
    from sparklog.log.registry import WriterKey
    from sparklog.log.root import Root
    from sparklog.log.slices import FileSlices

MAX_SEEN_RUNS = 1000


@dataclass(frozen=True)
class BatchKey:
    """`txnAppId` and `txnVersion` of a batch write: a version at or below the newest is skipped, as Delta does."""

    writer: str
    version: int


@dataclass(frozen=True)
class StreamKey:
    """A micro-batch: the query's id (or `txnAppId`), the batch id, and the run, so that a superseded run is stopped."""

    writer: str
    batch: int
    run: str | None


_seen_runs: dict[tuple[str, str, str | None], None] = {}
"""Runs whose first commit has been through this process: only the first can be a replay."""


def publish(plan: SinkPlan, messages: Sequence[SparklogCommitMessage], key: BatchKey | StreamKey | None) -> None:
    """Commit what the tasks wrote, topic by topic in the order of names."""
    root = root_at(plan.location)
    if root.id != plan.root_id:
        raise Conflict(
            f"The root at {root.location} changed its id from {plan.root_id} to {root.id} while this write ran: "
            "write again"
        )
    writer = _writer_key(plan, key)
    topics = collect(messages)
    for name, written in topics.items():
        _commit(root, name, written, writer)
    if isinstance(key, StreamKey) and writer is not None and plan.topic is None:
        _check_first_of_run(root, plan, key, topics, writer)


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


def _writer_key(plan: SinkPlan, key: BatchKey | StreamKey | None) -> WriterKey | None:
    from sparklog.log.registry import WriterKey

    if key is None:
        return None
    if isinstance(key, BatchKey):
        return WriterKey(key.writer, key.version, mode="txn")
    accept = plan.options.replay_mismatch == "accept"
    return WriterKey(key.writer, key.batch, run=key.run, mode="stream", replay_mismatch="accept" if accept else "error")


def _commit(root: Root, name: str, written: Written, writer: WriterKey | None) -> None:
    if not written.files and writer is None:
        return
    root.topic_handle(name).commit_append(written.files, written.target, writer=writer)


def _check_first_of_run(
    root: Root, plan: SinkPlan, key: StreamKey, topics: dict[str, Written], writer: WriterKey
) -> None:
    """A replay that has no rows for a topic which the first attempt wrote to is not the same batch: look at all
    topics."""
    run = (plan.root_id, key.writer, key.run)
    if run in _seen_runs:
        return
    for name in root.topics():
        topic = root.topic_handle(name)
        if name not in topics and key.writer in topic.head(refresh=False).registry:
            topic.commit_append((), topic.append_target(refresh=False), writer=writer)
    while len(_seen_runs) >= MAX_SEEN_RUNS:
        del _seen_runs[next(iter(_seen_runs))]
    _seen_runs[run] = None
