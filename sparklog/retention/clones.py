"""Which holds of clones a vacuum must respect: those of clones that still name the topic's files.

See `sparklog.log.state.clone_holds`. A version of the clone counts as long as somebody may read it: for
`file.delete.delay.ms` after a newer one came, or while a hold in the clone keeps it.
"""

from __future__ import annotations

import logging

from sparklog.errors import Corrupt, NotFound, SparklogError
from sparklog.log.state.clone_holds import GiveUpIntent, clone_of_hold, is_given_up, still_names
from sparklog.log.state.commit import DELETE
from sparklog.log.state.history import History
from sparklog.log.state.intents import DeleteIntent
from sparklog.log.state.topic_state import Head
from sparklog.log.topic.topic import RootContext, Topic
from sparklog.maintenance.work import Settings
from sparklog.retention import vacuum_plan as plan


_LOG = logging.getLogger("sparklog.retention")


def delete_delay_ms(history: History, head: Head, settings: Settings) -> int:
    """`file.delete.delay.ms`; of a deleted topic what it was, as far as that can still be found out."""
    configs = head.configs
    if head.deleted:
        try:
            # After a delete only maintenance commits, and few of them.
            version = head.version
            while version > 0 and history.commit(version).op != DELETE:
                version -= 1
            configs = history.at(version - 1).head.configs
        except (Corrupt, NotFound):
            configs = head.configs
    return settings.configs_of(configs).file_delete_delay_ms


def give_up_clones(topic: Topic, head: Head, now_ms: int) -> frozenset[str]:
    """Give up the clones whose holds have run out by `now_ms` and that are not there: none can be created any more.

    Returns the names of holds that must stay, for that failed. A clone under the topic's own name asks for its hold in
    the same log.
    """
    failed = set()
    for name, hold in head.holds.items():
        clone = clone_of_hold(name)
        if clone is None or clone[0] == topic.name or hold.expires_ms is None or hold.expires_ms > now_ms:
            continue
        try:
            _give_up(topic.root.topic_handle(clone[0]), clone[1], now_ms)
        except (SparklogError, OSError) as error:
            _LOG.warning("hold %s of topic %s stays: %s", name, topic.name, error)
            failed.add(name)
    return frozenset(failed)


def _give_up(clone: Topic, topic_id: str, now_ms: int) -> None:
    head = clone.log.refresh().head
    if not is_given_up(head, topic_id):
        head = clone.commit(GiveUpIntent(topic_id, now_ms)).head
    if is_given_up(head, topic_id) and head.exists and head.topic_id == topic_id:
        clone.commit(DeleteIntent(topic_id, head.version))


def needed_by_clones(topic: Topic, head: Head, settings: Settings, now_ms: int) -> frozenset[str]:
    """Names of the topic's holds that have run out by `now_ms`, and whose clones still name its files.

    A clone that cannot be read counts as one that does.
    """
    needed = set()
    for name, hold in head.holds.items():
        clone = clone_of_hold(name)
        if clone is None or hold.expires_ms is None or hold.expires_ms > now_ms:
            continue
        try:
            still = _still_named(topic.root, clone[0], clone[1], topic.name, settings, now_ms)
        except (SparklogError, OSError) as error:
            _LOG.warning("hold %s of topic %s stays: %s", name, topic.name, error)
            still = True
        if still:
            needed.add(name)
    return frozenset(needed)


def _still_named(root: RootContext, clone: str, topic_id: str, owner: str, settings: Settings, now_ms: int) -> bool:
    history = History(root.store, clone)
    head = root.topic_handle(clone).log.refresh().head
    if head.version < 0 or (is_given_up(head, topic_id) and clone != owner):
        return False
    since = plan.floor_version(history.commits, head.version, now_ms, delete_delay_ms(history, head, settings))
    held = {hold.version for hold in head.holds.values() if hold.expires_ms is None or hold.expires_ms > now_ms}
    if since < 0:
        # Too young to tell what nobody reads any more.
        return True
    return still_names(history, topic_id, owner, since, held, head.version)
