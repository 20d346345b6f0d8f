"""Cross-checks of a root: decisions, topics and groups must agree about transactions.

Decisions are read before the topics and groups that they reference, so every referenced commit and entry must exist.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping

from sparklog.groups.group_state import GroupState
from sparklog.log.decisions.decision import Decisions
from sparklog.log.journal import names as naming
from sparklog.log.journal.probe_results import lost_commits
from sparklog.log.state.history import History
from sparklog.storage.store import Store
from sparklog.tools.verification.findings import GUARANTEE, TRANSACTION, TWO_WINNERS, Finding
from sparklog.tools.verification.topic_log import CheckedTopic

REWRITE = "check the store with sparklog doctor, write the lost records again, and then delete"
RESTORE_TOGETHER = "topics that share transactions must be restored together; restore the topic that is behind"
StateOf = Callable[[str, int], Decisions | None]
"""A function that returns the decisions of a transactional id. If transaction `n` was undecided when the decisions were
read, the function reads them again.
"""


def check_transactions(
    topics: Mapping[str, CheckedTopic], states: Mapping[str, Decisions], state_of: StateOf
) -> Iterator[Finding]:
    """Compare decisions with the topics that they reference, and transactions in topics with their decisions."""
    for state in states.values():
        yield from _check_prepares(state, topics)
    for topic in topics.values():
        if topic.state is None:
            continue
        for prepare in topic.state.open:
            txn = prepare.txn
            what = f"slices of transaction {txn.n} of '{txn.id}' have been open since version {prepare.version}"
            key = naming.commit_key(topic.name, prepare.version)
            yield from _check_previous_decided(key, what, txn.n, state_of(txn.id, txn.n - 1))
        yield from _check_outcomes(topic, state_of)


def check_groups(
    groups: Mapping[str, GroupState], states: Mapping[str, Decisions], state_of: StateOf
) -> Iterator[Finding]:
    """Compare decisions with the groups that they reference, and pending offsets of groups with their decisions."""
    for state in states.values():
        for n, named in ((commit.n, named) for commit in state.commits for named in commit.groups):
            latest = groups[named.group].number if named.group in groups else -1
            if named.number > latest:
                what = f"transaction {n} of '{state.id}' commits entry {named.number} of group '{named.group}'"
                yield _finding(_latest_entry(state), f"{what}, but the group ends at entry {latest}")
    for group in groups.values():
        for pending in group.pending:
            pending_offsets = f"offsets of transaction {pending.n} of '{pending.txn}'"
            what = f"{pending_offsets} have been pending since entry {pending.number}"
            key = naming.commit_key(naming.groups_prefix(group.id), group.number)
            yield from _check_previous_decided(key, what, pending.n, state_of(pending.txn, pending.n - 1))


def _finding(key: str, message: str, remedy: str = RESTORE_TOGETHER) -> Finding:
    return Finding(TRANSACTION, key, message, remedy)


def _latest_entry(state: Decisions) -> str:
    return naming.commit_key(naming.transactions_prefix(state.id), state.number)


def _check_previous_decided(key: str, what: str, n: int, before: Decisions | None) -> Iterator[Finding]:
    """Check that the previous transaction was decided. A writer decides the previous transaction before it starts
    transaction `n`.
    """
    latest = -1 if before is None else before.newest
    if n > latest + 1:
        yield _finding(key, f"{what}, but the decisions end at transaction {latest}")


def _check_prepares(state: Decisions, topics: Mapping[str, CheckedTopic]) -> Iterator[Finding]:
    """Check that the prepares of each COMMIT exist, unless the topic no longer has the commits."""
    for n, named in ((commit.n, named) for commit in state.commits for named in commit.prepares):
        topic = topics.get(named.topic)
        if topic is None or topic.state is None or topic.state.topic_id != named.topic_id:
            continue
        what = f"transaction {n} of '{state.id}' commits version {named.version} of topic '{named.topic}'"
        if named.version > topic.latest:
            yield _finding(_latest_entry(state), f"{what}, but the topic ends at version {topic.latest}")
            continue
        prepared, key = topic.prepares.get(named.version), naming.commit_key(named.topic, named.version)
        is_damaged = prepared is None and any(finding.file == key for finding in topic.findings)
        if named.version >= topic.first and not is_damaged and prepared != (named.commit_id, state.id, n):
            yield _finding(key, f"{what}, but this version is a different commit", f"{RESTORE_TOGETHER}; {TWO_WINNERS}")


def _check_outcomes(topic: CheckedTopic, state_of: StateOf) -> Iterator[Finding]:
    """Compare the outcomes in a topic's commits with the decisions, unless the decisions have been deleted."""
    for version, topic_id, resolved in topic.outcomes:
        state = state_of(resolved.id, resolved.n)
        if state is None:
            continue
        key = naming.commit_key(topic.name, version)
        what = f"version {version} records the outcome of transaction {resolved.n} of '{resolved.id}'"
        decided = state.commit_of(resolved.n)
        if not state.is_decided(resolved.n):
            yield _finding(key, f"{what}, but the decisions end at transaction {state.newest}")
        elif decided is not None:
            here = (topic.name, topic_id)
            named = {prepare.version for prepare in decided.prepares if (prepare.topic, prepare.topic_id) == here}
            if others := sorted(set(resolved.committed) - named):
                yield _finding(key, f"{what}, but versions {others} are not prepares of the transaction")
        elif resolved.committed and state.is_known_aborted(resolved.n):
            yield _finding(key, f"{what} as committed, but the transaction was aborted")


def check_participants(store: Store, topics: Mapping[str, CheckedTopic]) -> Iterator[Finding]:
    """Check that no topic is behind the version that a committed transaction has recorded in another topic."""
    for topic in topics.values():
        for name, version in {} if topic.state is None else topic.state.siblings.items():
            other = topics.get(name)
            if other is None or version <= other.latest:
                continue
            versions = History(store, name).commits.version
            latest = int(versions[-1]) if len(versions) else -1
            if version > latest:
                recorded = f"topic '{topic.name}' has recorded a transaction that includes version {version}"
                yield _finding(naming.commit_key(name, version), f"topic '{name}' ends at version {latest}; {recorded}")


def find_lost_commits(store: Store, topics: Collection[str]) -> Iterator[Finding]:
    """Report lost commits that writers have recorded in these topics, or in all logs if `topics` is empty."""
    for note, commit in lost_commits(store):
        if not topics or naming.key_topic(commit.key) in topics:
            message = f"commit {commit.commit_id} was acknowledged to its writer but does not exist"
            yield Finding(
                GUARANTEE,
                commit.key,
                f"{message}, because the store did not create objects exclusively",
                f"{REWRITE} {note}",
            )
