"""What maintenance does for transactions: record decisions in quiet topics, time out, forget, collect.

A decided transaction needs nobody: readers ask its decision log, and every commit to a topic records what it finds open
there. Only a topic to which nobody writes any more waits for the pass here, and so does what timed out in it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from sparklog.errors import BadRequest, Conflict, SparklogError
from sparklog.groups.state import GROUPS, GroupState
from sparklog.log.decisions.atomic_bounds import held_back, whole_ends
from sparklog.log.decisions.decision import DECISIONS, Committed, Decisions, Prepared, PreparedGroup, forget
from sparklog.log.decisions.decision_log import DecisionLog
from sparklog.log.journal.journal_cleanup import collect_entries, collect_log, ids_of
from sparklog.log.state.commit import Resolved
from sparklog.log.state.intents import MaintainIntent
from sparklog.log.state.snapshot import Snapshot
from sparklog.log.state.topic_state import Head
from sparklog.log.topic.root import Root
from sparklog.log.topic.topic import Topic
from sparklog.storage.store import Store

ONE_WRITE = "one-write:"
"""Ids of writes without one begin so. A process uses one while it is at work; its log goes when it is done with."""
FEW_COMMITS = 8
"""So many COMMITs may wait before topics are asked whether they have recorded them."""


def check_not_one_write(transactional_id: str) -> str:
    """The id, if users may take it: `BadRequest` for one that is kept for single writes."""
    if isinstance(transactional_id, str) and transactional_id.startswith(ONE_WRITE):
        raise BadRequest(f"transactional ids that begin with '{ONE_WRITE}' are sparklog's own; choose another one")
    return transactional_id


def resolve_topic(topic: Topic) -> tuple[Resolved, ...]:
    """Record what is decided of the open transactions of a topic, aborting those past their timeout; what was recorded.

    `NotFound` if the topic was deleted.
    """
    head = topic.log.head()
    if not head.open:
        return ()
    resolved = tuple(topic.root.decisions.resolve(topic.name, head))
    if resolved:
        try:
            topic.log.commit(MaintainIntent(head.topic_id, resolved=resolved), head)
        except Conflict:
            # Deleted and created again meanwhile: what was decided of the old topic's slices means nothing here.
            return ()
    return resolved


def visible_snapshot(topic: Topic, snapshot: Snapshot) -> Snapshot:
    """A topic's snapshot in which all counts as open that an open transaction hides, here or in another topic.

    What is rewritten must end there: rewritten slices no longer say which transaction they are of, so one that is still
    hidden in another topic would be seen in this one. Costs a request per topic that shared a transaction with this
    one, directly or not.
    """
    found = {topic.name: snapshot}
    waiting = list(snapshot.head.siblings)
    while waiting:
        name = waiting.pop()
        log = topic.root.topic_handle(name).log
        if name not in found and log.refresh().head.exists:
            found[name] = topic.root.topic_handle(name).snapshot(refresh=False)
            waiting += found[name].head.siblings
    return held_back(snapshot, whole_ends(found)[topic.name])


# -- forgetting COMMITs


def recorded_everywhere(root: Root, state: Decisions, *, ask: bool | None = None) -> set[int]:
    """Numbers of the COMMITs that every topic and group they name has recorded, or is gone.

    `ask`: look at these anew, a request each; else only at what this process has read before. None: ask where many
    COMMITs wait.
    """
    ask = len(state.commits) > FEW_COMMITS if ask is None else ask
    return {item.n for item in state.commits if _all_recorded(root, state.id, item, ask)}


def _all_recorded(root: Root, transactional_id: str, item: Committed, ask: bool) -> bool:
    return all(_recorded(root, transactional_id, item.n, each, ask) for each in item.prepares) and all(
        _group_recorded(root, each, ask) for each in item.groups
    )


def _group_recorded(root: Root, prepare: PreparedGroup, ask: bool) -> bool:
    """Whether a group holds nothing pending of this prepare any more; any state from its number on can tell."""
    log = root.entries(GROUPS, prepare.group)
    known = log.known()
    settled = known is not None and _has_settled(known, prepare)
    if not ask and not settled:
        return False
    try:
        settled = settled or _has_settled(log.refresh(), prepare)
        if settled:
            log.make_durable()
        return settled
    except (SparklogError, OSError):
        return False


def _has_settled(state: GroupState, prepare: PreparedGroup) -> bool:
    return state.number >= prepare.number and all(item.number != prepare.number for item in state.pending)


def _recorded(root: Root, transactional_id: str, n: int, prepare: Prepared, ask: bool) -> bool:
    log = root.topic_handle(prepare.topic).log
    head = log.known()
    recorded = head is not None and is_recorded(head, transactional_id, n, prepare)
    if not ask and not recorded:
        return False
    try:
        recorded = recorded or is_recorded(log.refresh().head, transactional_id, n, prepare)
        if recorded:
            log.make_durable()
        return recorded
    except (SparklogError, OSError):
        return False


def is_recorded(head: Head, transactional_id: str, n: int, prepare: Prepared) -> bool:
    """Whether a topic holds nothing open of this prepare any more; any head from its version on can tell."""
    if head.version < prepare.version:
        return False
    if head.deleted or head.topic_id != prepare.topic_id:
        return True
    wanted = transactional_id, n, prepare.version
    return not any((item.txn.id, item.txn.n, item.version) == wanted for item in head.open)


def forget_recorded(root: Root, log: DecisionLog) -> int:
    """Drop the COMMITs of an id that every topic and group they name has recorded; how many."""
    state = log.refresh()
    recorded = recorded_everywhere(root, state, ask=True)
    if forget(state, recorded) is None:
        return 0
    return len(state.commits) - len(log.write(lambda base: forget(base, recorded)).commits)


# -- collecting


@dataclass(frozen=True, slots=True)
class Collected:
    """Of all transactional ids: COMMITs forgotten, entries and checkpoints deleted (or, dry, to be)."""

    ids: int = 0
    forgotten: int = 0
    objects: int = 0
    nbytes: int = 0
    failures: tuple[SparklogError, ...] = ()


def transactional_ids(store: Store, failures: list[SparklogError] | None = None) -> Iterator[str]:
    """The ids that have decisions. What cannot be read is put into `failures`, or raised."""
    return ids_of(store, DECISIONS, failures)


def collect(root: Root, *, now_ms: int | None = None, dry_run: bool = False) -> Collected:
    """Forget what all topics have recorded, then delete entries that nobody needs any more.

    `now_ms`: the store's clock, which is asked if it is not given.

    An entry goes when it lies below the second newest checkpoint that can be read, and the store has had it for seven
    days; checkpoints below that one go too. Of an id that was for one write everything goes, once its topics have
    recorded it and its newest entry is that old.
    """
    now_ms = root.store.now_ms() if now_ms is None else now_ms
    ids = forgotten = objects = nbytes = 0
    failures: list[SparklogError] = []
    for transactional_id in transactional_ids(root.store, failures):
        log = root.decisions.log(transactional_id)
        ids += 1
        try:
            forgotten += 0 if dry_run else forget_recorded(root, log)
            done_with = transactional_id.startswith(ONE_WRITE) and _done_with(root, log)
            gone = (collect_log if done_with else collect_entries)(log, now_ms, dry_run=dry_run)
            objects, nbytes = objects + gone[0], nbytes + gone[1]
        except SparklogError as error:
            failures.append(error)
    return Collected(ids, forgotten, objects, nbytes, tuple(failures))


def _done_with(root: Root, log: DecisionLog) -> bool:
    """Whether all that was ever committed under an id is recorded, the newest decision included."""
    state = log.refresh()
    undecided = state.prepared or state.prepared_groups
    return not undecided and all(_all_recorded(root, state.id, item, True) for item in state.commits)
