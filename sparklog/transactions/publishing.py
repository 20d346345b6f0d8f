"""A whole batch over several topics as one transaction: what a Spark write with a `topic` column does."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from weakref import WeakKeyDictionary

from sparklog.log.decisions.decision import init
from sparklog.log.decisions.decision_logs import DEFAULT_TIMEOUT_MS
from sparklog.log.journal.env import Moment
from sparklog.log.state.content import content_of
from sparklog.log.state.registry import WriterKey, decide
from sparklog.log.state.slices import FileSlices
from sparklog.log.topic.root import Root
from sparklog.log.write.append_target import AppendTarget
from sparklog.transactions.completion import ONE_WRITE, check_not_one_write
from sparklog.transactions.producer import Committed, TransactionalProducer


Written = tuple[AppendTarget, Sequence[FileSlices]]

REUSED_MS = 3_600_000
"""How long after a write without an id the next one may use its id: far less than the week after which it goes."""


@dataclass(frozen=True, slots=True)
class Spare:
    """The id of a write without one, its instance and epoch, and when it was committed. It must not hold its root."""

    id: str
    instance: str
    epoch: int | None
    committed: Moment


_spares: WeakKeyDictionary[Root, list[Spare]] = WeakKeyDictionary()
if hasattr(os, "register_at_fork"):
    # Parent and child would write under one id as one instance.
    os.register_at_fork(after_in_child=_spares.clear)


def _without_id(root: Root, timeout_ms: int) -> TransactionalProducer:
    """The producer of a write without an id: one that is at rest, or a new one.

    Each id has a folder, which maintenance looks into until it goes: a process that writes often needs one for each of
    its threads.
    """
    spares = _spares.setdefault(root, [])
    while spares:
        try:
            spare = spares.pop()
        except IndexError:
            break
        if root.env.now().elapsed_ms(spare.committed) < REUSED_MS:
            return TransactionalProducer(
                root, spare.id, timeout_ms=timeout_ms, instance=spare.instance, epoch=spare.epoch
            )
        root.decisions.drop(spare.id)
    return TransactionalProducer(root, ONE_WRITE + root.env.new_id(), timeout_ms=timeout_ms)


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
    which it refuses stops nobody else. Without an id, and so without a key, the write gets one that no other process
    uses, which maintenance clears away when it is done with. Raises what it raises, and what `Transaction.commit` does.
    """
    if key is not None:
        key.check()
        key = replace(
            key, content=content_of({target.topic: [file.counts for file in files] for target, files in written})
        )
    if transactional_id is None:
        producer = _without_id(root, timeout_ms)
    else:
        run, epoch = (None, None) if key is None else (key.run, key.epoch)
        name = check_not_one_write(transactional_id)
        producer = TransactionalProducer(root, name, timeout_ms=timeout_ms, instance=run, epoch=epoch)
    if key is not None:
        count = sum(sum(file.records) for _, files in written for file in files)
        now_ms = root.env.wall_ms()
        verdict = decide(producer.log.refresh().entry(), key, count, f"transactional id '{producer.id}'", now_ms)
        if not verdict.write:
            if verdict.take_over and key.run is not None:
                run, epoch = key.run, key.epoch
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
        _spares[root].append(Spare(producer.id, producer.instance, producer.epoch, root.env.now()))
    return done
