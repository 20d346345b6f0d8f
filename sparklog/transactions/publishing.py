"""A whole batch over several topics as one transaction: what a Spark write with a `topic` column does."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from sparklog.log.decisions.decision import init
from sparklog.log.decisions.decision_logs import DEFAULT_TIMEOUT_MS
from sparklog.log.state.content import content_of
from sparklog.log.state.registry import WriterKey, decide
from sparklog.log.state.slices import FileSlices
from sparklog.log.topic.root import Root
from sparklog.log.write.append_target import AppendTarget
from sparklog.transactions.completion import ONE_WRITE, check_not_one_write
from sparklog.transactions.producer import Committed, TransactionalProducer

__all__ = ["publish"]

Written = tuple[AppendTarget, Sequence[FileSlices]]


def publish(
    root: Root,
    transactional_id: str | None,
    written: Sequence[Written],
    *,
    key: WriterKey | None = None,
    timeout_ms: int = DEFAULT_TIMEOUT_MS,
) -> Committed:
    """Commit files that tasks wrote for topics, all of them or none. With `key`, a batch at most once.

    The replay rule (`sparklog.log.state.registry`) is asked before an earlier instance is fenced, so that a batch
    which it refuses stops nobody else. Without an id, and so without a key, the write gets an id of its own, which
    maintenance clears away when it is done with. Raises what it raises, and what `Transaction.commit` does.
    """
    if key is not None:
        key.check()
        key = replace(
            key, content=content_of({target.topic: [file.counts for file in files] for target, files in written})
        )
    name = ONE_WRITE + root.env.new_id() if transactional_id is None else check_not_one_write(transactional_id)
    run, epoch = (None, None) if key is None else (key.run, key.epoch)
    producer = TransactionalProducer(root, name, timeout_ms=timeout_ms, instance=run, epoch=epoch)
    if key is not None:
        count = sum(sum(file.records) for _, files in written for file in files)
        now_ms = root.env.wall_ms()
        verdict = decide(producer.log.refresh().entry(), key, count, f"transactional id '{name}'", now_ms)
        if not verdict.write:
            if verdict.take_over and run is not None:
                producer.log.write(lambda base: init(base, run, epoch, now_ms))
            return Committed(None, skipped=True, note=verdict.note)
    if not any(len(file) for _, files in written for file in files):
        return Committed(None)
    # With a key the decisions were looked at above, a moment ago.
    transaction = producer.begin() if key is None else producer.begin_at_known()
    for target, files in written:
        transaction.add(target, files)
    done = transaction.commit(key=key)
    if transactional_id is None:
        root.decisions.drop(name)
    return done
