"""Logs against one another: prepares that a COMMIT names must exist, outcomes that a topic records must be decided.

Logs are read one after the other while others write, so a log is read again where something seems to be missing: a
newer state has more, never less.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from sparklog.groups.group_state import GroupState
from sparklog.log.decisions.decision import Decisions
from sparklog.log.journal.names import commit_key, groups_prefix, transactions_prefix
from sparklog.log.state.history import History
from sparklog.storage.store import Store
from sparklog.tools.verification.findings import TRANSACTION, Finding
from sparklog.tools.verification.topic_log import TopicLog

TOGETHER = "topics that share transactions are restored together: restore the one that is behind"


StateOf = Callable[[str, int], Decisions | None]
"""The decisions of an id, read again where those known have not decided transaction `n`."""


def check_transactions(
    topics: Mapping[str, TopicLog], states: Mapping[str, Decisions], state_of: StateOf
) -> Iterator[Finding]:
    """Compare decisions with the topics they name, and open and recorded transactions of topics with the decisions.

    `states`: newest entry by id, read before the topics.
    """
    for state in states.values():
        yield from _named(state, topics)
    for topic in topics.values():
        if topic.head is None:
            continue
        for item in topic.head.open:
            decided = state_of(item.txn.id, item.txn.n - 1)
            newest = -1 if decided is None else decided.newest
            if item.txn.n > newest + 1:
                message = (
                    f"slices of transaction {item.txn.n} of '{item.txn.id}' are open since version {item.version}; its "
                    f"decisions end at {newest}"
                )
                yield Finding(TRANSACTION, commit_key(topic.name, item.version), message, TOGETHER)
        yield from _recorded(topic, state_of)


def check_groups(
    groups: Mapping[str, GroupState], states: Mapping[str, Decisions], state_of: StateOf
) -> Iterator[Finding]:
    """Compare decisions with the groups that they name, and pending offsets of groups with the decisions.

    `groups`: newest entry by id, read after `states`, which are as in `check_transactions`.
    """
    for state in states.values():
        file = commit_key(transactions_prefix(state.id), state.number)
        for item in state.commits:
            for each in item.groups:
                newest = groups[each.group].number if each.group in groups else -1
                if each.number > newest:
                    message = (
                        f"transaction {item.n} of '{state.id}' commits entry {each.number} of group '{each.group}', "
                        f"which ends at {newest}"
                    )
                    yield Finding(TRANSACTION, file, message, TOGETHER)
    for group in groups.values():
        for waiting in group.pending:
            decided = state_of(waiting.txn, waiting.n - 1)
            ended = -1 if decided is None else decided.newest
            if waiting.n > ended + 1:
                message = (
                    f"offsets of transaction {waiting.n} of '{waiting.txn}' are pending since entry {waiting.number}; "
                    f"its decisions end at {ended}"
                )
                yield Finding(TRANSACTION, commit_key(groups_prefix(group.id), group.number), message, TOGETHER)


def _named(state: Decisions, topics: Mapping[str, TopicLog]) -> Iterator[Finding]:
    """Check the prepares that a COMMIT names, as far as the topics' logs go back."""
    file = commit_key(transactions_prefix(state.id), state.number)
    for item in state.commits:
        for each in item.prepares:
            topic = topics.get(each.topic)
            if topic is None or topic.head is None or topic.head.topic_id != each.topic_id:
                continue
            what = f"transaction {item.n} of '{state.id}' commits version {each.version} of topic '{each.topic}'"
            if each.version > topic.newest:
                yield Finding(TRANSACTION, file, f"{what}, which ends at {topic.newest}", TOGETHER)
                continue
            prepared, key = topic.prepares.get(each.version), commit_key(each.topic, each.version)
            damaged = prepared is None and any(finding.file == key for finding in topic.findings)
            if each.version >= topic.first and not damaged and prepared != (each.commit_id, state.id, item.n):
                yield Finding(TRANSACTION, key, f"{what}; that commit is another one", TOGETHER)


def _recorded(topic: TopicLog, state_of: StateOf) -> Iterator[Finding]:
    """Compare outcomes in the topic's commits with the decisions, as far as these still have them."""
    topic_id = None if topic.head is None else topic.head.topic_id
    for version, item in topic.resolved:
        state = state_of(item.id, item.n)
        if state is None or topic_id is None:
            continue
        key = commit_key(topic.name, version)
        what = f"version {version} records an outcome of transaction {item.n} of '{item.id}'"
        if not state.decided(item.n):
            yield Finding(TRANSACTION, key, f"{what}; its decisions end at {state.newest}", TOGETHER)
            continue
        decided = state.commit_of(item.n)
        if decided is None:
            if item.committed and state.surely_aborted(item.n):
                yield Finding(TRANSACTION, key, f"{what} as committed; it was aborted", TOGETHER)
            continue
        named = {each.version for each in decided.prepares if (each.topic, each.topic_id) == (topic.name, topic_id)}
        open_here = sorted(set(item.committed) - named)
        if open_here:
            yield Finding(TRANSACTION, key, f"{what}: versions {open_here} are not among its prepares", TOGETHER)


def check_siblings(store: Store, topics: Mapping[str, TopicLog]) -> Iterator[Finding]:
    """Check that no topic is behind the version that a transaction with another topic has seen."""
    for topic in topics.values():
        for name, version in {} if topic.head is None else topic.head.siblings.items():
            other = topics.get(name)
            if other is None or version <= other.newest:
                continue
            versions = History(store, name).commits.version
            newest = int(versions[-1]) if len(versions) else -1
            if version > newest:
                message = (
                    f"topic '{name}' ends at version {newest}; a transaction with topic '{topic.name}' has seen "
                    f"version {version}"
                )
                yield Finding(TRANSACTION, commit_key(name, version), message, TOGETHER)
