"""Publish a batch with rows of several topics as one transaction, for Spark writes with a `topic` column.

A streaming sink may specify its topic in an option before a restart, and in a column after the restart, or the reverse.
A batch with a topic option is recorded in the idempotency registry of the topic. A batch with a topic column is
recorded in the decisions of the query's id. After this restart, the query may write a committed batch again with the
other method. Therefore, the first batch of each run is also looked up in the record of the other method. The run also
takes over in this record, which fences an older run that may still write with the other method.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from weakref import WeakKeyDictionary

from sparklog.limits import DEFAULT_TRANSACTION_TIMEOUT_MS
from sparklog.log.decisions.decision import init
from sparklog.log.decisions.expired_ids import ONE_WRITE
from sparklog.log.journal.clocks import ClockReading
from sparklog.log.state.slices import content_of
from sparklog.log.state.writer_runs import WriterKey, decide
from sparklog.log.topic.root import Root
from sparklog.log.write.append_target import TopicFiles
from sparklog.transactions.completion import check_not_one_write
from sparklog.transactions.producer import CommittedTransaction, TransactionalProducer


@dataclass(frozen=True, slots=True)
class ReusableId:
    """The generated id of a finished write, which the next write can reuse. It must not reference its root."""

    id: str
    instance: str
    epoch: int | None
    committed: ClockReading


_reusable_ids: WeakKeyDictionary[Root, list[ReusableId]] = WeakKeyDictionary()
if hasattr(os, "register_at_fork"):
    # Without this, parent and child would write with the same id, as the same instance.
    os.register_at_fork(after_in_child=_reusable_ids.clear)


def _without_id(root: Root, timeout_ms: int) -> TransactionalProducer:
    """Return the producer for a write without a transactional id.

    Generated ids are reused, because maintenance reads the directory of each id.
    """
    reusable = _reusable_ids.setdefault(root, [])
    while reusable:
        try:
            last = reusable.pop()
        except IndexError:
            break
        if root.env.elapsed_ms(last.committed) < root.store.limits.reused_ms:
            return TransactionalProducer(root, last.id, timeout_ms=timeout_ms, instance=last.instance, epoch=last.epoch)
        root.engine.decisions.drop(last.id)
    return TransactionalProducer(root, ONE_WRITE + root.env.new_id(), timeout_ms=timeout_ms)


def publish(
    root: Root,
    transactional_id: str | None,
    written: Sequence[TopicFiles],
    *,
    key: WriterKey | None = None,
    timeout_ms: int = DEFAULT_TRANSACTION_TIMEOUT_MS,
) -> CommittedTransaction:
    """Commit files that tasks wrote for several topics, atomically. A batch with a `key` is committed at most once.

    The batch is checked (`sparklog.log.state.writer_runs`) before an earlier instance is fenced, so that a rejected
    batch does not stop another run. Raises the errors of this check and of `Transaction.commit`.
    """
    if key is not None:
        key.check()
        counts = {part.target.topic: [file.counts for file in part.files] for part in written}
        key = replace(key, content=content_of(counts))
    if transactional_id is None:
        producer = _without_id(root, timeout_ms)
    else:
        run, epoch = (None, None) if key is None else (key.run, key.epoch)
        name = check_not_one_write(transactional_id)
        producer = TransactionalProducer(root, name, timeout_ms=timeout_ms, instance=run, epoch=epoch)
    if key is not None:
        count = sum(part.records for part in written)
        now_ms = root.env.wall_ms()
        decision = decide(producer.log.refresh().entry(), key, count, f"transactional id '{producer.id}'", now_ms)
        if not decision.write:
            if decision.take_over and key.run is not None:
                run, epoch = key.run, key.epoch
                producer.log.write(lambda base: init(base, run, epoch, now_ms))
            return CommittedTransaction(None, skipped=True, note=decision.note)
    if not any(len(file) for part in written for file in part.files):
        return CommittedTransaction(None)
    # If there is a key, the decisions have just been refreshed above.
    transaction = producer.begin() if key is None else producer._begin()
    for part in written:
        transaction.add(part.target, part.files)
    done = transaction.commit(key=key)
    if transactional_id is None:
        _reusable_ids[root].append(ReusableId(producer.id, producer.instance, producer.epoch, root.env.now()))
    return done
