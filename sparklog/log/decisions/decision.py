"""Entries of a transactional id's journal, `_transactions/<id>/_log`, and the steps from one state to the next.

Each entry contains the complete state of the id. docs/reference/format-transactions.md describes the fields of an
entry. The state remains small because a COMMIT is pruned when all its participants (topics and groups) have recorded
it. `newest` is the number of the latest decision. All transactions up to this number are decided, and all later
transactions are undecided. If a decided transaction is not in `commits`, it was aborted, or it was committed and all
its participants have recorded the COMMIT.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from sparklog.errors import Conflict, Fenced
from sparklog.log.journal.documents import (
    ESCAPED_TOPICS,
    EXPIRED_IDS,
    TEXT,
    TEXTS,
    Document,
    Fields,
    Member,
    StoredDocument,
    members,
    objects_of,
    one_of,
    texts_by_text,
    whole,
)
from sparklog.log.journal.entry_log import ENTRY_MEMBERS, EntryKind, StateEntry
from sparklog.log.journal.names import MAX_VERSION, TRANSACTIONS_FOLDER, topic_folder
from sparklog.log.state.commit import TxnDecision
from sparklog.log.state.commit_json import CONTENT_JSON
from sparklog.log.state.slices import Content
from sparklog.log.state.writer_runs import WriterEntry, WriterKey, decide, earlier_runs, is_superseded, next_epoch

DECISION_OPS = INIT, PREPARE, COMMIT, ABORT, FORGET, EXPIRE, KEEP = (
    "init", "prepare", "commit", "abort", "forget", "expire", "keep",
)  # fmt: skip
REASONS = BY_OWNER, BY_NEWER_INSTANCE, BY_TIMEOUT, BY_OPERATOR, BY_NEWER_GENERATION, BY_EXPIRY = (
    "abort", "fenced", "timeout", "operator", "generation", "expired",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Prepared:
    """A prepare, which is one commit of a topic. `part` is the job that wrote it, or None if there is only one job."""

    topic: str
    topic_id: str
    version: int
    commit_id: str
    part: str | None = None


@dataclass(frozen=True, slots=True)
class PreparedGroup:
    """The prepared offsets of a consumer group, which are one entry of the group's journal."""

    group: str
    number: int
    part: str | None = None


@dataclass(frozen=True, slots=True)
class CommitDecision:
    """A COMMIT, with the prepares in topics and consumer groups that it commits."""

    n: int
    time_ms: int
    prepares: tuple[Prepared, ...]
    groups: tuple[PreparedGroup, ...] = ()

    def versions(self) -> dict[str, int]:
        """Return the highest prepared version of each topic."""
        versions: dict[str, int] = {}
        for item in self.prepares:
            versions[item.topic] = max(item.version, versions.get(item.topic, item.version))
        return versions


@dataclass(frozen=True, slots=True)
class Decisions(StateEntry):
    """The state of a transactional id, which its latest entry contains."""

    op: str = ""
    n: int | None = None
    reason: str | None = None
    newest: int = -1
    run: str | None = None
    earlier_runs: tuple[str, ...] = ()
    batch: int | None = None
    count: int = 0
    prepared: tuple[Prepared, ...] = ()
    prepared_groups: tuple[PreparedGroup, ...] = ()
    commits: tuple[CommitDecision, ...] = ()
    epoch: int | None = None
    content: Content | None = None
    expired: Mapping[str, str] = field(default_factory=dict)
    """In an archive (`expired_ids`), the latest entry of each expired id, as it was written."""

    def is_decided(self, n: int) -> bool:
        """Return True if transaction `n` is decided. A decision never changes."""
        return n <= self.newest

    def commit_of(self, n: int) -> CommitDecision | None:
        """Return the COMMIT of transaction `n`, or None if `n` is undecided or aborted, or if its COMMIT was pruned."""
        return next((item for item in self.commits if item.n == n), None)

    def is_known_aborted(self, n: int) -> bool:
        """Return True if transaction `n` is known to be aborted. The COMMIT of an older transaction may have been
        pruned.
        """
        return n == self.newest and self.commit_of(n) is None

    def is_clear(self, n: int) -> bool:
        """Return True if this entry contains the outcome of `n`, and False if a COMMIT of `n` may have been pruned."""
        return n == self.newest or self.commit_of(n) is not None

    def resolved(self, topic: str, topic_id: str, n: int) -> TxnDecision:
        """Return the outcome of a decided transaction `n`, in the form in which a topic records an outcome."""
        committed = self.commit_of(n)
        if committed is None:
            return TxnDecision(self.id, n)
        here = [item.version for item in committed.prepares if (item.topic, item.topic_id) == (topic, topic_id)]
        siblings = {name: version for name, version in sorted(committed.versions().items()) if name != topic}
        return TxnDecision(self.id, n, tuple(sorted(here)), siblings)

    def commits_group(self, n: int, group: str, number: int) -> bool:
        """Return True if the decided transaction `n` commits the offsets that entry `number` of a group prepared."""
        committed = self.commit_of(n)
        return committed is not None and any((item.group, item.number) == (group, number) for item in committed.groups)

    def entry(self) -> WriterEntry | None:
        """Return the registry entry that is used to detect replayed batches, or None if there is no batch yet."""
        if self.batch is None:
            return None
        return WriterEntry(
            self.batch, self.count, self.number, self.time_ms, self.run, self.earlier_runs, self.epoch, self.content
        )


# -- Steps. Each step returns the state after the next entry, or None if there is nothing to write. The journal sets the
#    number of the entry and the CRC-32C of the previous entry.


def init(state: Decisions, run: str, epoch: int | None = None, now_ms: int = 0) -> Decisions | None:
    """Make `run` the instance of the id, and abort the open transaction of an earlier instance.

    Raises `Fenced` if another instance has taken over from `run`.
    """
    if state.run == run:
        return None
    if is_superseded(state, run, epoch, now_ms):
        raise fenced(state, run)
    after = replace(state, op=INIT, run=run, earlier_runs=earlier_runs(state, run), epoch=next_epoch(state, run, epoch))
    return replace(after, n=None) if state.number < 0 else _aborted(after, state.newest + 1, BY_NEWER_INSTANCE)


def prepare(
    state: Decisions,
    n: int,
    prepares: Sequence[Prepared],
    part: str | None = None,
    groups: Sequence[PreparedGroup] = (),
) -> Decisions | None:
    """Record the prepares of a job for transaction `n`. These prepares replace the prepares of an earlier failed
    attempt of the same part.
    """
    check_undecided(state, n)
    others = tuple(item for item in state.prepared if part is None or item.part != part)
    other_groups = tuple(item for item in state.prepared_groups if part is None or item.part != part)
    prepared = (*others, *(item for item in prepares if item not in others))
    prepared_groups = (*other_groups, *(item for item in groups if item not in other_groups))
    if (set(prepared), set(prepared_groups)) == (set(state.prepared), set(state.prepared_groups)):
        return None
    after = replace(state, op=PREPARE, n=n, prepared=prepared, prepared_groups=prepared_groups)
    return _with_escaped_topics(after, prepared)


def commit(
    state: Decisions,
    n: int,
    prepares: Sequence[Prepared],
    *,
    time_ms: int,
    groups: Sequence[PreparedGroup] = (),
    key: WriterKey | None = None,
    count: int = 0,
    run: str | None = None,
    resolved: Collection[int] = (),
) -> Decisions | None:
    """Commit transaction `n` with these prepares and the recorded prepares of jobs. Return None if `n` is already
    committed.

    `resolved` contains the COMMITs that have been recorded by all of their participants. Raises `Fenced` or `Conflict`
    if `n` was aborted.
    """
    decided = state.commit_of(n)
    if decided is not None and set(prepares) <= set(decided.prepares) and set(groups) <= set(decided.groups):
        return None
    check_undecided(state, n, run)
    decision = CommitDecision(
        n, max(time_ms, state.time_ms), (*state.prepared, *prepares), (*state.prepared_groups, *groups)
    )
    commits = (*_unresolved(state, n, resolved), decision)
    state = replace(state, prepared=(), prepared_groups=())
    after = replace(state, op=COMMIT, n=n, newest=n, reason=None, commits=commits)
    after = _with_escaped_topics(after, decision.prepares)
    if key is None:
        return after
    if not decide(state.entry(), key, count, f"transactional id '{state.id}'", time_ms).write:
        raise Conflict(f"batch {key.batch} of '{key.id}' was committed by another run in the meantime; retry")
    return replace(after, batch=key.batch, count=count, content=key.content)


def abort(state: Decisions, n: int, reason: str) -> Decisions | None:
    """Abort transaction `n` unless it is already decided."""
    return None if state.is_decided(n) else _aborted(replace(state, op=ABORT), n, reason)


def _aborted(state: Decisions, n: int, reason: str) -> Decisions:
    return replace(state, n=n, newest=n, reason=reason, prepared=(), prepared_groups=())


def prune(state: Decisions, resolved: Collection[int]) -> Decisions | None:
    """Prune the COMMITs that have been recorded by all of their participants, except the latest decision."""
    commits = _unresolved(state, state.newest, resolved)
    return None if commits == state.commits else replace(state, op=FORGET, n=None, commits=commits)


def expire(state: Decisions, number: int, resolved: Collection[int]) -> Decisions | None:
    """Expire an idle id if its latest entry is `number`, it has no prepares, and all COMMITs are recorded."""
    n = state.newest + 1
    if state.number != number or state.prepared or state.prepared_groups or _unresolved(state, n, resolved):
        return None
    return _aborted(_with_feature(replace(state, op=EXPIRE, commits=()), EXPIRED_IDS), n, BY_EXPIRY)


def add_expired(state: Decisions, entries: Mapping[str, str]) -> Decisions | None:
    """Add the latest entries of expired ids to an archive."""
    expired = dict(sorted({**state.expired, **entries}.items()))
    if expired == state.expired:
        return None
    return replace(_with_feature(state, EXPIRED_IDS), op=KEEP, n=None, expired=expired)


def _with_feature(state: Decisions, feature: str) -> Decisions:
    read, write = ({*features, feature} for features in (state.read_features, state.write_features))
    return replace(state, read_features=tuple(sorted(read)), write_features=tuple(sorted(write)))


def _with_escaped_topics(state: Decisions, prepares: Sequence[Prepared]) -> Decisions:
    """Add the feature `escapedTopics` if a topic name is escaped. Older releases would treat an escaped topic as
    deleted.
    """
    is_escaped = any(topic_folder(item.topic) != item.topic for item in prepares)
    return _with_feature(state, ESCAPED_TOPICS) if is_escaped else state


def _unresolved(state: Decisions, latest: int, resolved: Collection[int]) -> tuple[CommitDecision, ...]:
    return tuple(item for item in state.commits if item.n == latest or item.n not in resolved)


def check_undecided(state: Decisions, n: int, run: str | None = None) -> None:
    """Raise `Fenced` if a newer instance aborted `n`, and `Conflict` if `n` is otherwise decided or does not exist."""
    if n > state.newest + 1:
        raise Conflict(
            f"transaction {n} of '{state.id}' does not exist, because the next transaction is {state.newest + 1}; "
            "begin a new transaction"
        )
    if not state.is_decided(n):
        return
    if run is not None and state.run != run:
        raise fenced(state, run)
    if state.commit_of(n) is not None:
        raise Conflict(f"transaction {n} of '{state.id}' was committed without this part; use a new transaction")
    if n == state.newest and state.reason == BY_NEWER_INSTANCE:
        raise Fenced(
            f"transaction {n} of '{state.id}' was aborted by a newer instance ({state.run}); stop this instance"
        )
    if n == state.newest and state.reason == BY_NEWER_GENERATION:
        raise Fenced(
            f"transaction {n} of '{state.id}' was aborted by a newer member of its consumer group; stop this instance"
        )
    why = _WHY.get(state.reason or "", "") if n == state.newest else ""
    raise Conflict(
        f"transaction {n} of '{state.id}' is already decided{why}, so these records were not published; "
        "begin a new transaction"
    )


_WHY = {
    BY_TIMEOUT: " (transaction.timeout.ms passed)",
    BY_OPERATOR: " (by an operator)",
    BY_EXPIRY: " (the id expired after it was idle for transactional.id.expiration.ms)",
}


def fenced(state: Decisions, run: str) -> Fenced:
    return Fenced(
        f"instance {run} of transactional id '{state.id}' was superseded by instance {state.run}; stop this instance"
    )


PREPARED_JSON = Document(
    Prepared,
    Member("part", TEXT, nullable=True),
    *members(TEXT, "topic", "topicId"),
    Member("version", whole(0, MAX_VERSION)),
    Member("commitId", TEXT),
)
PREPARED_GROUP_JSON = Document(
    PreparedGroup, Member("part", TEXT, nullable=True), Member("group", TEXT), Member("number", whole(0, MAX_VERSION))
)
COMMITTED_JSON = Document(
    CommitDecision,
    Member("n", whole(0, MAX_VERSION)),
    Member("timeMs", whole(0)),
    Member("prepares", objects_of(PREPARED_JSON)),
    Member("groups", objects_of(PREPARED_GROUP_JSON)),
)


def _check_order(item: Fields, entry: Decisions) -> None:
    numbers = [committed.n for committed in entry.commits]
    if numbers != sorted(set(numbers)) or (numbers and numbers[-1] > entry.newest):
        raise item.bad("commits", f"ordered by number, with numbers up to {entry.newest}")


DECISION_JSON = StoredDocument(
    "entry",
    Decisions,
    *ENTRY_MEMBERS,
    Member("op", one_of(*DECISION_OPS)),
    Member("n", whole(0, MAX_VERSION), nullable=True),
    Member("reason", one_of(*REASONS, nullable=True), nullable=True),
    Member("newest", whole(-1, MAX_VERSION)),
    Member("run", TEXT, nullable=True),
    Member("earlierRuns", TEXTS),
    Member("batch", whole(0), nullable=True),
    Member("count", whole(0)),
    Member("prepared", objects_of(PREPARED_JSON)),
    Member("preparedGroups", objects_of(PREPARED_GROUP_JSON)),
    Member("commits", objects_of(COMMITTED_JSON)),
    Member("epoch", whole(0), optional=True),
    Member("expired", texts_by_text(), optional=True),
    inline={"content": CONTENT_JSON},
    check=_check_order,
)
DECISIONS = EntryKind(
    folder=TRANSACTIONS_FOLDER,
    owner="transactional id",
    what="decisions",
    noun="decision",
    empty=Decisions,
    table=DECISION_JSON,
    old_entry="decision",
)
