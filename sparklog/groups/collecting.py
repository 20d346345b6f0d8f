"""Maintenance of groups: resolve pending offsets, expire offsets, delete old entries.

Offsets expire as in Kafka, all of a group at once, `offsets.retention.minutes` (default: a week) after the group became
empty. A group becomes empty one session timeout after the latest entry of a member or an operator, by the store's
clock. Offsets of a deleted topic expire immediately. Offsets of a topic that never existed in this root stay, because
the topic may be imported later. Offsets expire with an entry, never by a reader's clock.

If a topic has another id than its offsets, the offsets may be newer than the topic as it is seen here, because a cache
may hide the end of the topic's journal. They expire after the group has had them for longer than caches last.
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

LEAST_ENTRIES_MS = 86_400_000
"""A day: no session and no open transaction lasts longer, so the age of an older entry does not matter."""
MARGIN_MS = 3_600_000
"""For a daily backup that starts later than the one before it."""


@dataclass
class CollectedGroups(Collected):
    """The result of a collection: the groups, and groups whose offsets expired (in a dry run: would expire)."""

    groups: int = 0
    expired: tuple[str, ...] = ()


def kept_entries_ms(delay_ms: int) -> int:
    """Return how long entries stay, so that a group can be restored to any time to which its topics can be."""
    return max(LEAST_ENTRIES_MS, delay_ms) + MARGIN_MS


def collect_groups(
    root: Root,
    *,
    retention_ms: int,
    keep_ms: int = LEAST_ENTRIES_MS + MARGIN_MS,
    now_ms: int | None = None,
    dry_run: bool = False,
) -> CollectedGroups:
    """Maintain all groups; `collect_entries` says which entries stay. `now_ms`: the store's time (None: read it)."""
    now_ms = root.store.now_ms() if now_ms is None else now_ms
    done = CollectedGroups()
    heads: dict[str, TopicState] = {}

    def collect(name: str) -> None:
        group = Group(root, name)
        if not dry_run:
            group.settle()
        if _expire(group, retention_ms, now_ms, heads, dry_run):
            done.expired = (*done.expired, name)
        needed = group.log.current().touched
        done.add(collect_entries(group.log, now_ms, keep_ms=keep_ms, needed=needed, dry_run=dry_run))

    names = ids_of(root.store, GROUPS, done.failures)
    done.collect_each(names, collect)
    done.groups, done.expired = len(names), tuple(sorted(done.expired))
    return done


def _expire(group: Group, retention_ms: int, now_ms: int, heads: dict[str, TopicState], dry_run: bool) -> bool:
    """Expire offsets; True if there were some. `heads`: of topics that were looked at since `now_ms`."""
    state = group.log.refresh()
    for item in state.offsets:
        if item.topic not in heads:
            heads[item.topic] = group.root.engine.log(item.topic).refresh().topic_state
    deleted = _deleted_topics(group, state, heads, now_ms)
    everything = state.exists and now_ms - _empty_since_ms(group, state) >= retention_ms

    def step(base: GroupState) -> GroupState | None:
        return steps.expire(base, everything=everything and base.touched == state.touched, gone=deleted)

    planned = step(state)
    if planned is not None and not dry_run:
        group.log.write(step)
    return planned is not None


def _deleted_topics(
    group: Group, state: GroupState, heads: Mapping[str, TopicState], now_ms: int
) -> AbstractSet[tuple[str, str]]:
    ids = {item.place: heads[item.topic] for item in state.offsets}
    deleted = {place for place, topic_state in ids.items() if topic_state.deleted and topic_state.topic_id == place[1]}
    others = {
        place for place, topic_state in ids.items() if topic_state.version >= 0 and topic_state.topic_id != place[1]
    }
    if not others:
        return deleted
    chain = EntryChain(group.root.store, GROUPS, state.id, group.root.env)
    number = chain.latest_number_before(now_ms - SETTLE_MS)
    before = None if number is None else chain.state_at(number)
    return deleted if before is None else deleted | others & {item.place for item in before.offsets}


def _empty_since_ms(group: Group, state: GroupState) -> int:
    """Return when the group became empty by the store's clock, or by its latest offset if the entry was deleted."""
    written = None if state.touched is None else group.written_ms(state.touched)
    if written is None:
        written = max((time_ms for item in state.offsets for time_ms in item.time_ms), default=0)
    return written + (0 if state.active is None else state.session_timeout_ms or 0)
