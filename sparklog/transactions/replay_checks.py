"""Detect that a batch was already published with a topic option instead of a topic column, or vice versa.

Every micro-batch of a stream is checked, so this module does not import transactional producers.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

from sparklog.errors import NotFound, SparklogError
from sparklog.log.decisions.decision import init
from sparklog.log.state.commit import TAKEOVER, WriterBatch
from sparklog.log.state.commit_intents import Draft, Nothing, check_topic
from sparklog.log.state.writer_runs import WriterKey, decide, next_epoch

if TYPE_CHECKING:
    from sparklog.log.state.slice_table import SliceTable
    from sparklog.log.state.topic_state import TopicState
    from sparklog.log.topic.root import Root


@dataclass(frozen=True, slots=True)
class TakeOverIntent:
    """Record the run of `key` in a topic that has recorded its writer. The batch of `count` records is only checked."""

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
            return Nothing("the topic has not recorded the writer", state.version)
        decide(entry, key, self.count, f"topic '{topic}'", self.now_ms)
        if entry.run == key.run:
            return Nothing("the topic has recorded the run", state.version)
        epoch = next_epoch(entry, key.run, key.epoch)
        return Draft(TAKEOVER, writer=WriterBatch(key.mode, key.id, entry.batch, key.run, entry.count, epoch))


def in_decisions(root: Root, topic: str, key: WriterKey, count: int) -> bool:
    """Return True if this batch, which has a topic option, was published as a transaction.

    Raises the errors of the replay check.
    """
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
    """Return True if this batch, which has a topic column, was published to the topic in an option."""
    if key.run is None or root.engine.decisions.log(key.id).current().run == key.run:
        return False
    unread: list[SparklogError] = []
    now_ms = root.env.wall_ms()
    checked_key = _of_any_layout(key)
    intents: dict[str, TakeOverIntent] = {}
    for name in root.topics(unread) if names is None else names:
        state = root.engine.log(name).current().topic_state
        entry = state.registry.get(key.id)
        if entry is not None:
            # Check all topics before writing to one, so that a rejected batch does not stop another run.
            decide(entry, checked_key, count, f"topic '{name}'", now_ms)
            intents[name] = TakeOverIntent(state.topic_id, checked_key, count, now_ms)
    published = False
    for name, intent in intents.items():
        with suppress(NotFound):
            after = root.engine.log(name).commit(intent).state.registry.get(key.id)
            published |= after is not None and after.batch == key.batch
    return published


def _of_any_layout(key: WriterKey) -> WriterKey:
    """Return the key without the content layout, because the layout depends on the topics of the rows."""
    return key if key.content is None else replace(key, content=replace(key.content, layout=""))
