"""A whole batch over several topics as one transaction: a Spark write with a `topic` column.

A streaming sink may name its topic by an option before a restart, and by a column after it, or the reverse. A batch for
the topic of an option is entered in the registry of that topic, a batch whose rows name their topics in the decisions
of the query's id. A restarted query may send a committed batch once more, in the other way. So the first batch of each
run is looked for in the other place too. The run takes over there, which fences an older run that may still write so.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import ClassVar
from weakref import WeakKeyDictionary

from sparklog.errors import NotFound, SparklogError
from sparklog.limits import DEFAULT_TRANSACTION_TIMEOUT_MS
from sparklog.log.decisions.decision import init
from sparklog.log.decisions.expired_ids import ONE_WRITE
from sparklog.log.journal.clocks import ClockReading
from sparklog.log.state.commit import TAKEOVER, Writer
from sparklog.log.state.commit_intents import Draft, Nothing, check_topic
from sparklog.log.state.slice_table import SliceTable
from sparklog.log.state.slices import content_of
from sparklog.log.state.topic_state import TopicState
from sparklog.log.state.writer_runs import WriterKey, decide, next_epoch
from sparklog.log.topic.root import Root
from sparklog.log.write.append_target import TopicFiles
from sparklog.transactions.completion import check_not_one_write
from sparklog.transactions.producer import CommittedTransaction, TransactionalProducer


@dataclass(frozen=True, slots=True)
class Spare:
    """The id of a write without an id, free for the next one. It must not hold its root."""

    id: str
    instance: str
    epoch: int | None
    committed: ClockReading


_spares: WeakKeyDictionary[Root, list[Spare]] = WeakKeyDictionary()
if hasattr(os, "register_at_fork"):
    # Parent and child would write under one id as one instance.
    os.register_at_fork(after_in_child=_spares.clear)


def _without_id(root: Root, timeout_ms: int) -> TransactionalProducer:
    """Return the producer of a write without an id: a spare one, as maintenance reads the folder of each id."""
    spares = _spares.setdefault(root, [])
    while spares:
        try:
            spare = spares.pop()
        except IndexError:
            break
        if root.env.elapsed_ms(spare.committed) < root.store.limits.reused_ms:
            return TransactionalProducer(
                root, spare.id, timeout_ms=timeout_ms, instance=spare.instance, epoch=spare.epoch
            )
        root.engine.decisions.drop(spare.id)
    return TransactionalProducer(root, ONE_WRITE + root.env.new_id(), timeout_ms=timeout_ms)


def publish(
    root: Root,
    transactional_id: str | None,
    written: Sequence[TopicFiles],
    *,
    key: WriterKey | None = None,
    timeout_ms: int = DEFAULT_TRANSACTION_TIMEOUT_MS,
) -> CommittedTransaction:
    """Commit files that tasks wrote for topics, all of them or none. With `key`, a batch at most once.

    The replay rule (`sparklog.log.state.writer_runs`) is asked before an earlier instance is fenced: a batch that it
    refuses stops no other run. Raises its errors and those of `Transaction.commit`.
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
        verdict = decide(producer.log.refresh().entry(), key, count, f"transactional id '{producer.id}'", now_ms)
        if not verdict.write:
            if verdict.take_over and key.run is not None:
                run, epoch = key.run, key.epoch
                producer.log.write(lambda base: init(base, run, epoch, now_ms))
            return CommittedTransaction(None, skipped=True, note=verdict.note)
    if not any(len(file) for part in written for file in part.files):
        return CommittedTransaction(None)
    # With a key the decisions were looked at above, a moment ago.
    transaction = producer.begin() if key is None else producer._begin()
    for part in written:
        transaction.add(part.target, part.files)
    done = transaction.commit(key=key)
    if transactional_id is None:
        _spares[root].append(Spare(producer.id, producer.instance, producer.epoch, root.env.now()))
    return done


@dataclass(frozen=True, slots=True)
class TakeOverIntent:
    """Record the run of `key` in a topic that knows its writer; a batch of `count` records is judged, not written."""

    topic_id: str
    key: WriterKey
    count: int
    now_ms: int
    needs_table: ClassVar[bool] = False
    repeatable: ClassVar[bool] = True

    def draft(self, topic: str, state: TopicState, origin: TopicState, table: SliceTable | None) -> Draft | Nothing:
        check_topic(topic, state, self.topic_id)
        key, entry = self.key, state.registry.get(self.key.id)
        if entry is None or key.run is None:
            return Nothing("the writer is not known here", state.version)
        decide(entry, key, self.count, f"topic '{topic}'", self.now_ms)
        if entry.run == key.run:
            return Nothing("the run is known here", state.version)
        epoch = next_epoch(entry, key.run, key.epoch)
        return Draft(TAKEOVER, writer=Writer(key.mode, key.id, entry.batch, key.run, entry.count, epoch))


def in_decisions(root: Root, topic: str, key: WriterKey, count: int) -> bool:
    """True if this batch for a topic of an option was published as a transaction. Errors of the replay rule."""
    entry = root.engine.log(topic).current().topic_state.registry.get(key.id)
    if key.run is None or (entry is not None and entry.run == key.run):
        return False
    run, now_ms = key.run, root.env.wall_ms()
    log = root.engine.decisions.log(key.id)
    if log.refresh().batch is None:
        return False
    decide(log.current().entry(), _of_any_layout(key), count, f"transactional id '{key.id}'", now_ms)
    return log.write(lambda base: init(base, run, key.epoch, now_ms)).batch == key.batch


def in_topics(root: Root, key: WriterKey, count: int, names: Iterable[str] | None = None) -> bool:
    """True if this batch, whose rows name their topics, was published to the topic of an option."""
    if key.run is None or root.engine.decisions.log(key.id).current().run == key.run:
        return False
    unread: list[SparklogError] = []
    now_ms = root.env.wall_ms()
    judged = _of_any_layout(key)
    intents: dict[str, TakeOverIntent] = {}
    for name in root.topics(unread) if names is None else names:
        state = root.engine.log(name).current().topic_state
        entry = state.registry.get(key.id)
        if entry is not None:
            # All are asked before one is written: a batch that is refused stops no other run.
            decide(entry, judged, count, f"topic '{name}'", now_ms)
            intents[name] = TakeOverIntent(state.topic_id, judged, count, now_ms)
    published = False
    for name, intent in intents.items():
        with suppress(NotFound):
            after = root.engine.log(name).commit(intent).state.registry.get(key.id)
            published |= after is not None and after.batch == key.batch
    return published


def _of_any_layout(key: WriterKey) -> WriterKey:
    """Return the key with a content that is compared by its bytes alone: in the other way rows are in other topics."""
    return key if key.content is None else replace(key, content=replace(key.content, layout=""))
