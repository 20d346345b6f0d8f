"""The journal of a consumer group: reading its state, and adding entries.

Every change of a group is an entry of its journal (`group_state`). Like a commit of a topic, each entry also records
the decisions of transactions that have pending offsets in the group, and aborts transactions that exceeded their
timeout. Readers read the decisions themselves, so they do not wait for an entry.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping, Sequence

from sparklog.common.settings import as_integer
from sparklog.errors import BadRequest, Conflict, SparklogError, Unavailable
from sparklog.format.checkpoint_files import TopicPartition
from sparklog.groups import group_steps as steps
from sparklog.groups.group_state import (
    GROUPS,
    MAX_INT,
    NO_EPOCH,
    CommittedOffset,
    GroupMetadata,
    GroupState,
    OffsetAndMetadata,
    Pending,
    Row,
    TopicOffsets,
    topic_offsets,
)
from sparklog.groups.group_steps import resolved
from sparklog.log.decisions.decision import BY_NEWER_GENERATION, BY_TIMEOUT
from sparklog.log.journal.clocks import reading_clock_ms
from sparklog.log.journal.documents import INT64_MAX
from sparklog.log.journal.entry_log import EntryLog, Step
from sparklog.log.journal.names import check_id
from sparklog.log.topic.root import Root
from sparklog.storage.parallel_reads import read_each
from sparklog.storage.retries import Backoff

_LOG = logging.getLogger("sparklog.groups")
MAX_METADATA = 4096
"""Kafka's `offset.metadata.max.bytes`."""
STABLE_WAIT_MS = 60_000
MAX_ROUNDS = 50

Offsets = Mapping[str, Mapping[int, int | OffsetAndMetadata | CommittedOffset]]
"""The next offset to read, by topic and partition."""


class GroupJournal:
    """The journal of a consumer group, which may not exist yet. Methods read the latest entry."""

    def __init__(self, root: Root, group: str) -> None:
        self.root = root
        self.id = check_id(group, "group id")
        self.log: EntryLog[GroupState] = root.engine.entries(GROUPS, self.id)
        self._combined = root.engine.combined(self.log)

    def __repr__(self) -> str:
        return f"Group({self.id!r}, {self.root.location!r})"

    def state(self) -> GroupState:
        """Return the latest state, including decisions that the group has not recorded yet."""
        state = self.log.refresh()
        for _ in range(MAX_ROUNDS):
            outcomes, unclear = self._outcomes(state)
            if not unclear:
                return resolved(state, outcomes)
            # Either the transaction was aborted, or a cache hides the entry that records its commit. The offsets stay
            # pending until no cache can hide the entry.
            decisions = self.root.engine.decisions
            aborted = {item.number: False for item in unclear if decisions.log(item.txn).has_expired(item.n)}
            newer = self.log.refresh()
            if newer.number == state.number:
                return resolved(state, {**outcomes, **aborted})
            state = newer
        raise Unavailable(f"group '{self.id}' changes faster than it can be read; try again later")

    def topic_ids(self, topics: Iterable[str], failures: list[SparklogError] | None = None) -> dict[str, str]:
        names = sorted(set(topics))
        topic_states = read_each(
            self.root.store, lambda name: self.root.engine.log(name).refresh().topic_state, names, failures
        )
        return {name: topic_state.topic_id for name, topic_state in topic_states.items() if topic_state.exists}

    def _outcomes(self, state: GroupState, *, decide: bool = False) -> tuple[dict[int, bool], list[Pending]]:
        """Return the outcomes of decided prepares by entry number, and the prepares with an unclear outcome.

        Args:
            decide: Abort transactions that exceeded their timeout, and transactions of removed members. If an abort
                fails, a later entry resolves the prepares.

        Returns:
            The outcomes (True if the prepare is committed), and the prepares with an unclear outcome.
        """
        outcomes, unclear = dict[int, bool](), list[Pending]()
        for item in state.pending:
            try:
                log = self.root.engine.decisions.log(item.txn)
                decisions = log.deciding(item.n)
                if decide and not decisions.is_decided(item.n):
                    if state.is_superseded(item):
                        decisions = log.abort(item.n, BY_NEWER_GENERATION)
                    elif self._pending_since_ms(item) + item.timeout_ms < self.root.store.now_ms():
                        decisions = log.abort(item.n, BY_TIMEOUT)
                outcome = log.outcome(item.n)
                if decide and decisions.is_decided(item.n):
                    log.make_durable()
            except (SparklogError, OSError) as error:
                _LOG.warning("cannot resolve transaction %s of '%s' in group %s: %s", item.n, item.txn, self.id, error)
                continue
            if outcome is None:
                unclear.append(item)
            elif outcome.is_decided(item.n):
                outcomes[item.number] = outcome.commits_group(item.n, self.id, item.number)
        return outcomes, unclear

    def pending_ms(self, item: Pending) -> int:
        return max(0, self.reading_clock_ms() - self._pending_since_ms(item))

    def reading_clock_ms(self) -> int:
        return reading_clock_ms(self.root.store, self.root.env)

    def _pending_since_ms(self, item: Pending) -> int:
        written = self.written_ms(item.number)
        return max(max(offsets.time_ms) for offsets in item.offsets) if written is None else written

    def written_ms(self, number: int) -> int | None:
        info = self.root.store.stat(self.log.key(number))
        return None if info is None else info.modified_ms

    def resolve_pending(self) -> GroupState:
        """Record the decisions of pending transactions.

        Abort transactions that exceeded their timeout or whose member was fenced.
        """
        if not self.log.refresh().pending:
            return self.log.current()
        self.root.engine.ensure_probed()

        def step(base: GroupState) -> GroupState | None:
            after = self._resolved(base)
            return None if after is base else after

        return self.log.write(step)

    def _resolved(self, base: GroupState) -> GroupState:
        # An entry can be written only if it is based on the latest entry. Therefore a prepare with an unclear outcome
        # was aborted.
        outcomes, unclear = self._outcomes(base, decide=True)
        return resolved(base, {**outcomes, **{item.number: False for item in unclear}})

    def write(self, step: Step[GroupState]) -> GroupState:
        """Apply the decisions of transactions to the latest state, and write the entry that `step` returns for it."""
        self.root.engine.ensure_probed()
        return self._combined.write(lambda base: step(self._resolved(base)))

    def stable(
        self, timeout_ms: int = STABLE_WAIT_MS, partitions: Collection[TopicPartition] | None = None
    ) -> GroupState:
        """Wait until the given partitions do not have pending offsets, and return the state. If `partitions` is None,
        wait for all partitions.

        Raises `Unavailable` if offsets are still pending after `timeout_ms`.
        """
        backoff = Backoff(self.root.env, timeout_ms)
        while True:
            state = self.state()
            pending = [item for item in state.pending if partitions is None or item.has_any(partitions)]
            if not pending:
                return state
            if backoff.is_over():
                names = ", ".join(sorted({f"{item.n} of '{item.txn}'" for item in pending}))
                raise Unavailable(
                    f"offsets of group '{self.id}' are pending in the undecided transaction {names}; try again later, "
                    "or abort the transaction"
                )
            self.resolve_pending()
            backoff.sleep()

    def prepare(
        self, member: GroupMetadata | None, txn: str, n: int, timeout_ms: int, offsets: Sequence[TopicOffsets]
    ) -> int:
        """Add pending offsets of transaction `n`. Return the number of the entry, which the COMMIT must reference."""
        number = [0]

        def step(base: GroupState) -> GroupState:
            number[0] = base.number + 1
            return steps.prepare(base, member, txn, n, min(timeout_ms, MAX_INT), offsets)

        self.write(step)
        return number[0]

    def checked(
        self, offsets: Offsets, ids: Mapping[str, str] | None = None, *, refresh: bool = True
    ) -> tuple[TopicOffsets, ...]:
        """Validate offsets to commit, and return them as columns with the current time.

        Args:
            ids: The topic ids that the consumer has read from.
            refresh: If True, refresh the topics, which requires one request per topic. If False, use the cached topic
                states.

        Raises:
            NotFound: If a topic does not exist.
            Conflict: If a topic was deleted and recreated.
            BadRequest: If a partition, an offset or its metadata is invalid.
        """
        now_ms = self.root.env.wall_ms()
        tables = []
        if not isinstance(offsets, Mapping) or not all(
            isinstance(by_partition, Mapping) for by_partition in offsets.values()
        ):
            raise BadRequest(f"expected offsets as {{topic: {{partition: offset}}}}, found {offsets!r}")
        for topic in sorted(offsets, key=str):
            if not offsets[topic]:
                continue
            log = self.root.topic(topic).log if refresh else self.root.engine.log(topic)
            topic_state = log.state(refresh=False)
            # Offsets must not be more durable than the records that they refer to.
            log.make_durable()
            if ids is not None and ids.get(topic, topic_state.topic_id) != topic_state.topic_id:
                raise Conflict(
                    f"topic {topic} was deleted and recreated, so offsets of the old topic are invalid; read "
                    "the new topic from the start"
                )
            rows = dict(_row(topic, topic_state.partitions, *item, now_ms) for item in offsets[topic].items())
            tables.append(topic_offsets(topic, topic_state.topic_id, rows))
        return tuple(tables)


def _row(topic: str, partitions: int, partition: object, position: object, now_ms: int) -> tuple[int, Row]:
    """Return a partition and its row. Integers may be numpy integers. Raises `BadRequest` for invalid values."""
    number, offset = as_integer(partition), as_integer(getattr(position, "offset", position))
    epoch, metadata = getattr(position, "leader_epoch", None), getattr(position, "metadata", None) or ""
    if number is None or not 0 <= number < partitions or offset is None or not 0 <= offset <= INT64_MAX:
        raise BadRequest(
            f"expected offsets of partitions 0 to {partitions - 1} of topic '{topic}', found "
            f"{getattr(position, 'offset', position)!r} of partition {partition!r}"
        )
    leader_epoch = NO_EPOCH if epoch is None else as_integer(epoch)
    if leader_epoch is None or not NO_EPOCH <= leader_epoch <= MAX_INT:
        raise BadRequest(f"the leader epoch of {topic}-{number} must be 0 to {MAX_INT} or None, found {epoch!r}")
    try:
        size = len(metadata.encode())
    except (AttributeError, UnicodeEncodeError):
        raise BadRequest(
            f"metadata of {topic}-{number} must be a string that can be encoded as UTF-8, found {metadata!r}"
        ) from None
    if size > MAX_METADATA:
        raise BadRequest(f"metadata of {topic}-{number} has {size} bytes; the maximum is {MAX_METADATA}")
    return number, (offset, now_ms, leader_epoch, metadata)
