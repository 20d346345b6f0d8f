"""Maintain groups: resolve pending offsets, expire offsets, and delete old entries.

As in Kafka, all offsets of a group expire together, `offsets.retention.minutes` (default: a week) after the group
became empty. A group becomes empty one session timeout after the latest entry of a member or an operator, by the
store's clock. If a topic is deleted, its offsets expire immediately. If a topic never existed in this root, its offsets
are retained, because the topic may be imported later. Offsets expire only when maintenance writes an entry, so they do
not depend on the clocks of readers.

If the current id of a topic differs from the topic id of the offsets, the offsets may be newer than the topic state
that was read, because a cache may hide the latest entries of the topic's journal. In this case, the offsets expire only
if they were committed longer ago than the lifetime of caches.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from sparklog.groups import group_steps as steps
from sparklog.groups.group import Group
from sparklog.groups.group_state import GROUPS, GroupState
from sparklog.log.journal.chain import EntryChain, ids_of
from sparklog.log.journal.entry_log import Collected, collect_entries
from sparklog.log.state.topic_state import TopicState
from sparklog.log.topic.root import Root
from sparklog.storage.retries import SETTLE_MS

MIN_ENTRIES_MS = 86_400_000
"""The minimum retention time of entries, which is one day. Sessions and open transactions are not longer than one day,
so the exact age of older entries is irrelevant.
"""
MARGIN_MS = 3_600_000
"""Additional retention time. It is required because a daily backup may start later than on the previous day."""


@dataclass
class CollectedGroups(Collected):
    """The result of maintaining groups: the number of groups, and the groups whose offsets expired or would expire."""

    groups: int = 0
    expired: tuple[str, ...] = ()


def entries_retention_ms(delay_ms: int) -> int:
    """Return the retention time of entries. A group can then be restored to the same points in time as its topics."""
    return max(MIN_ENTRIES_MS, delay_ms) + MARGIN_MS


def collect_groups(
    root: Root,
    *,
    retention_ms: int,
    keep_ms: int = MIN_ENTRIES_MS + MARGIN_MS,
    now_ms: int | None = None,
    dry_run: bool = False,
) -> CollectedGroups:
    """Maintain all groups.

    Args:
        retention_ms: The time after which the offsets of an empty group expire.
        keep_ms: The minimum time to keep entries, as in `collect_entries`.
        now_ms: The time by the store's clock. If None, the clock is read.
    """
    now_ms = root.store.now_ms() if now_ms is None else now_ms
    result = CollectedGroups()
    topic_states: dict[str, TopicState] = {}

    def collect(name: str) -> None:
        group = Group(root, name)
        if not dry_run:
            group.resolve_pending()
        if _expire(group, retention_ms, now_ms, topic_states, dry_run):
            result.expired = (*result.expired, name)
        needed = group.log.current().touched
        result.add(collect_entries(group.log, now_ms, keep_ms=keep_ms, needed=needed, dry_run=dry_run))

    names = ids_of(root.store, GROUPS, result.failures)
    result.collect_each(names, collect)
    result.groups, result.expired = len(names), tuple(sorted(result.expired))
    return result


def _expire(group: Group, retention_ms: int, now_ms: int, topic_states: dict[str, TopicState], dry_run: bool) -> bool:
    """Expire offsets. Return True if any offsets expired, or would expire in a dry run.

    `topic_states` caches the states of topics for all groups of a run. The states are read after `now_ms`.
    """
    state = group.log.refresh()
    for item in state.offsets:
        if item.topic not in topic_states:
            topic_states[item.topic] = group.root.engine.log(item.topic).refresh().topic_state
    deleted = _deleted_topics(group, state, topic_states, now_ms)
    everything = state.exists and now_ms - _empty_since_ms(group, state) >= retention_ms

    def step(base: GroupState) -> GroupState | None:
        return steps.expire(base, everything=everything and base.touched == state.touched, deleted=deleted)

    planned = step(state)
    if planned is not None and not dry_run:
        group.log.write(step)
    return planned is not None


def _deleted_topics(
    group: Group, state: GroupState, topic_states: Mapping[str, TopicState], now_ms: int
) -> AbstractSet[tuple[str, str]]:
    """Return the deleted topics for which the group has offsets, as (name, id) pairs."""
    states = {item.topic_and_id: topic_states[item.topic] for item in state.offsets}
    deleted = {topic for topic, current in states.items() if current.deleted and current.topic_id == topic[1]}
    replaced = {topic for topic, current in states.items() if current.version >= 0 and current.topic_id != topic[1]}
    if not replaced:
        return deleted
    chain = EntryChain(group.root.store, GROUPS, state.id, group.root.env)
    number = chain.latest_number_before(now_ms - SETTLE_MS)
    before = None if number is None else chain.state_at(number)
    return deleted if before is None else deleted | replaced & {item.topic_and_id for item in before.offsets}


def _empty_since_ms(group: Group, state: GroupState) -> int:
    """Return the time at which the group became empty, by the store's clock.

    If the latest entry of a member or an operator was deleted, the result is the time of the latest offset.
    """
    written = None if state.touched is None else group.written_ms(state.touched)
    if written is None:
        written = max((time_ms for item in state.offsets for time_ms in item.time_ms), default=0)
    return written + (0 if state.active is None else state.session_timeout_ms or 0)
