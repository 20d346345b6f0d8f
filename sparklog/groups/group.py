"""A consumer group of a root: its committed offsets, and every way to change them.

Every change is an entry in the group's journal (`group_state`). As a commit of a topic does, each entry also
settles pending offsets of decided transactions, and aborts transactions past their timeout. Readers ask the decisions
themselves and wait for no entry.

There are no heartbeats to a broker: a group is active while the newest entry of its member is younger than the
member's session timeout, by the store's clock.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from sparklog.arguments import NAME, PARTITIONS, POSITIONS, checked
from sparklog.common.settings import as_whole
from sparklog.errors import BadRequest, Conflict, NotFound, SparklogError, Unavailable, shortened
from sparklog.format.checkpoint_files import TopicPartition
from sparklog.groups import group_steps as steps
from sparklog.groups.group_members import GroupMember
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
from sparklog.groups.group_steps import settled
from sparklog.limits import MAX_SESSION_TIMEOUT_MS, SESSION_TIMEOUT_MS
from sparklog.log.decisions.decision import BY_NEWER_GENERATION, BY_TIMEOUT
from sparklog.log.journal.clocks import ClockReading, reading_clock_ms
from sparklog.log.journal.documents import INT64_MAX
from sparklog.log.journal.entry_log import EntryLog, Step
from sparklog.log.journal.names import check_id
from sparklog.log.topic.root import Root
from sparklog.storage.parallel_reads import read_each
from sparklog.storage.retries import Backoff

_LOG = logging.getLogger("sparklog.groups")
EMPTY, STABLE, RECONCILING, DEAD = "Empty", "Stable", "Reconciling", "Dead"
"""Kafka's words: the group has no member; it has some; partitions move between them; it does not exist."""
HEARTBEATS = 3
"""Signs of life per session timeout, from a member that has nothing to commit."""
MAX_METADATA = 4096
"""Kafka's `offset.metadata.max.bytes`."""
STABLE_WAIT_MS = 60_000
MAX_ROUNDS = 50


Offsets = Mapping[str, Mapping[int, int | OffsetAndMetadata | CommittedOffset]]
"""Topic to partition to the next offset to read."""


@dataclass(frozen=True, slots=True)
class GroupDescription:
    """The state of a group, in Kafka's words."""

    id: str
    state: str
    generation: int
    instance: str | None  # the member that owns all partitions, of an active group
    session_timeout_ms: int | None
    time_ms: int  # of its newest entry (ms since the epoch), 0: none
    # (transactional id, n, topic, partition, offset) of offsets that an undecided transaction has prepared
    pending: tuple[tuple[str, int, str, int, int], ...] = ()
    members: tuple[GroupMember, ...] = ()  # those that share the partitions, of an active group

    @property
    def is_active(self) -> bool:
        return self.state in (STABLE, RECONCILING)

    def owner(self, topic: str, partition: int) -> str | None:
        """Return the id of the member that owns a partition; None: no member does."""
        owners = (member.id for member in self.members if (topic, partition) in member.owned)
        return next(owners, self.instance)


class Group:
    """See the module. Methods read the newest entry. `Groups(root).group(id)` returns one; it may not exist yet."""

    def __init__(self, root: Root, group: str) -> None:
        self.root = root
        self.id = check_id(group, "group id")
        self.log: EntryLog[GroupState] = root.engine.entries(GROUPS, self.id)
        self._combined = root.engine.combined(self.log)

    def __repr__(self) -> str:
        return f"Group({self.id!r}, {self.root.location!r})"

    # -- reading

    def state(self) -> GroupState:
        """Return the newest state as readers see it: with decisions of transactions that are not recorded here yet."""
        state = self.log.refresh()
        for _ in range(MAX_ROUNDS):
            outcomes, unclear = self._outcomes(state)
            if not unclear:
                return settled(state, outcomes)
            # Aborted, or recorded here by an entry that a cache hides: pending, until no cache can hide it any more.
            decisions = self.root.engine.decisions
            aborted = {item.number: False for item in unclear if decisions.log(item.txn).is_over(item.n)}
            newer = self.log.refresh()
            if newer.number == state.number:
                return settled(state, {**outcomes, **aborted})
            state = newer
        raise Unavailable(f"group '{self.id}' changes faster than it can be read; try later")

    def offsets(self, failures: list[SparklogError] | None = None) -> tuple[TopicOffsets, ...]:
        """Return the committed offsets of topics that exist. Errors of topics are put into `failures`, or raised."""
        offsets = self.state().offsets
        ids = self.topic_ids((item.topic for item in offsets), failures)
        return tuple(item for item in offsets if ids.get(item.topic) == item.topic_id)

    def committed(self) -> Mapping[TopicPartition, CommittedOffset]:
        """Return the committed offset by (topic, partition). Those of a deleted topic are gone, as in Kafka."""
        return _by_place(self.offsets())

    def description(self, *, state: GroupState | None = None) -> GroupDescription:
        state = self.state() if state is None else state
        active = self._active_ms(state, self._reading_clock_ms) > 0
        instance, members = (state.instance, state.members) if active else (None, ())
        name = DEAD if not state.exists else EMPTY if not active else STABLE
        if not all(member.is_settled for member in members):
            name = RECONCILING
        pending = tuple(
            (item.txn, item.n, *position)
            for item in state.pending
            for offsets in item.offsets
            for position in offsets.positions()
        )
        timeout_ms = state.session_timeout_ms
        return GroupDescription(
            self.id, name, state.generation, instance, timeout_ms, max(0, state.made_ms), pending, members
        )

    def topic_ids(self, topics: Iterable[str], failures: list[SparklogError] | None = None) -> dict[str, str]:
        names = sorted(set(topics))
        heads = read_each(
            self.root.store, lambda name: self.root.engine.log(name).refresh().topic_state, names, failures
        )
        return {name: state.topic_id for name, state in heads.items() if state.exists}

    def _outcomes(self, state: GroupState, *, decide: bool = False) -> tuple[dict[int, bool], list[Pending]]:
        """Return whether COMMIT names them, of the decided prepares by number; and the prepares that are unclear.

        `decide`: abort transactions past their timeout, and those of a member that is one no more. Where that
        fails, a later entry settles these prepares.
        """
        outcomes, unclear = dict[int, bool](), list[Pending]()
        for item in state.pending:
            try:
                log = self.root.engine.decisions.log(item.txn)
                decisions = log.deciding(item.n)
                if decide and not decisions.decided(item.n):
                    if state.is_superseded(item):
                        decisions = log.abort(item.n, BY_NEWER_GENERATION)
                    elif self._pending_since_ms(item) + item.timeout_ms < self.root.store.now_ms():
                        decisions = log.abort(item.n, BY_TIMEOUT)
                outcome = log.outcome(item.n)
                if decide and decisions.decided(item.n):
                    log.make_durable()
            except (SparklogError, OSError) as error:
                _LOG.warning("transaction %s of '%s' stays open in group %s: %s", item.n, item.txn, self.id, error)
                continue
            if outcome is None:
                unclear.append(item)
            elif outcome.decided(item.n):
                outcomes[item.number] = outcome.commits_group(item.n, self.id, item.number)
        return outcomes, unclear

    def pending_ms(self, item: Pending) -> int:
        return max(0, self._reading_clock_ms() - self._pending_since_ms(item))

    def _reading_clock_ms(self) -> int:
        return reading_clock_ms(self.root.store, self.root.env)

    def _pending_since_ms(self, item: Pending) -> int:
        written = self.written_ms(item.number)
        return max(max(offsets.time_ms) for offsets in item.offsets) if written is None else written

    def written_ms(self, number: int) -> int | None:
        info = self.root.store.stat(self.log.key(number))
        return None if info is None else info.modified_ms

    def settle(self) -> GroupState:
        """Record the decisions of pending transactions, and abort those past their timeout or fenced."""
        if not self.log.refresh().pending:
            return self.log.current()
        self.root.engine.ensure_probed()

        def step(base: GroupState) -> GroupState | None:
            after = self._settled(base)
            return None if after is base else after

        return self.log.write(step)

    def _settled(self, base: GroupState) -> GroupState:
        # An entry made of a base that is not the newest loses its number: what is unclear here was aborted.
        outcomes, unclear = self._outcomes(base, decide=True)
        return settled(base, {**outcomes, **{item.number: False for item in unclear}})

    def write(self, step: Step[GroupState]) -> GroupState:
        """Write the entry that a step makes of the newest state, with what transactions have decided meanwhile."""
        self.root.engine.ensure_probed()
        return self._combined.write(lambda base: step(self._settled(base)))

    def stable(
        self, timeout_ms: int = STABLE_WAIT_MS, partitions: Collection[TopicPartition] | None = None
    ) -> GroupState:
        """Return the state once no offsets of these partitions (None: any) are pending. `Unavailable`: not in time."""
        backoff = Backoff(self.root.env, timeout_ms)
        while True:
            state = self.state()
            pending = [item for item in state.pending if partitions is None or item.has_any(partitions)]
            if not pending:
                return state
            if backoff.is_over():
                names = ", ".join(sorted({f"{item.n} of '{item.txn}'" for item in pending}))
                raise Unavailable(
                    f"offsets of group '{self.id}' wait for transaction {names} to be decided; try later, or abort it"
                )
            self.settle()
            backoff.sleep()

    # -- members

    @checked(instance=NAME.or_none())
    def join(self, instance: str | None = None, *, session_timeout_ms: int = SESSION_TIMEOUT_MS) -> Membership:
        """Become the group's one member, as a new generation: every older one is fenced from here on.

        Transactions that an older member has prepared and not committed are aborted.

        Args:
            instance: a name for messages and listings (None: a random one).

        Raises:
            Conflict: members share the group, and are active.
        """
        name = self.root.env.new_id() if instance is None else check_id(instance, "instance")
        timeout_ms = checked_session_timeout(session_timeout_ms)
        joined = [0]

        def step(base: GroupState) -> GroupState:
            if base.members:
                # As in Kafka, where the protocols of all members must fit: none of them takes over from the others.
                self.refuse_active(base, self.root.store.now_ms)
            after = steps.join(base, name, timeout_ms)
            joined[0] = after.generation
            return after

        self.write(step)
        self.settle()
        return Membership(self, GroupMetadata(self.id, joined[0], name), timeout_ms, self.root.env.now())

    def prepare(
        self, member: GroupMetadata | None, txn: str, n: int, timeout_ms: int, offsets: Sequence[TopicOffsets]
    ) -> int:
        """Hold offsets pending for transaction `n`; return the number of the entry, which the COMMIT is to name."""
        number = [0]

        def step(base: GroupState) -> GroupState:
            number[0] = base.number + 1
            return steps.prepare(base, member, txn, n, min(timeout_ms, MAX_INT), offsets)

        self.write(step)
        return number[0]

    # -- operators

    @checked(offsets=POSITIONS)
    def alter(
        self, offsets: Offsets, *, dry_run: bool = False, force: bool = False
    ) -> Mapping[TopicPartition, CommittedOffset]:
        """Set offsets by hand, and fence the member; return those that are (or, with `dry_run`, would be) set.

        Args:
            force: also of an active group: its consumer stops with `Fenced` at its next commit.

        Raises:
            Conflict: the group is active.
            NotFound: a topic does not exist.
            BadRequest: a partition or an offset that cannot be.
        """
        checked = self.checked(offsets)
        self._act(lambda base: steps.alter(base, checked), dry_run, force)
        return _by_place(checked)

    @checked(gone=PARTITIONS)
    def delete_offsets(self, gone: Mapping[str, Collection[int]], *, dry_run: bool = False) -> None:
        """Drop the offsets of these partitions by topic. `Conflict` while the group is active; `NotFound`: no group."""
        self._check_exists()
        self._act(lambda base: steps.delete_offsets(base, gone), dry_run)

    @checked()
    def delete(self, *, dry_run: bool = False) -> None:
        """Delete the group. `Conflict` while it is active, `NotFound` if there is none."""
        self._check_exists()
        self._act(steps.delete, dry_run)

    def restore(self, offsets: Sequence[CommittedOffset], *, generation: int = 0) -> None:
        """Write offsets of another root where there are none or older ones; generations go on from the higher one."""
        rows: dict[tuple[str, str], dict[int, Row]] = {}
        for item in offsets:
            epoch = NO_EPOCH if item.leader_epoch is None else item.leader_epoch
            row = item.offset, item.time_ms, epoch, item.metadata
            rows.setdefault((item.topic, item.topic_id), {})[item.partition] = row
        tables = [topic_offsets(*place, by_partition) for place, by_partition in rows.items()]
        self.write(lambda base: steps.restore(base, tables, generation))

    def _check_exists(self) -> None:
        if not self.log.refresh().exists:
            raise NotFound(f"group '{self.id}' does not exist in {self.root.location}")

    def _act(self, step: Step[GroupState], dry_run: bool, force: bool = False) -> None:
        def guarded(base: GroupState) -> GroupState | None:
            if not force:
                self.refuse_active(base, self.root.store.now_ms)
            return step(base)

        if not dry_run:
            self.write(guarded)
        elif not force:
            self.refuse_active(self.log.refresh(), self._reading_clock_ms)

    def refuse_active(self, state: GroupState, clock_ms: Callable[[], int]) -> None:
        """Raise `Conflict` if the group has members that are alive."""
        left_ms = self._active_ms(state, clock_ms)
        if left_ms > 0:
            members = f"{len(state.members)} members" if state.members else f"member {state.instance}"
            raise Conflict(
                f"group '{self.id}' is active ({STABLE}, {members}): stop its consumer, or wait "
                f"{-(-left_ms // 1000)} s if it has stopped already; `sparklog groups reset --force` stops it"
            )

    def _active_ms(self, state: GroupState, clock_ms: Callable[[], int]) -> int:
        """Return how long the group stays active if nothing more is heard of its member; 0: it is not active."""
        if not state.exists or state.active is None or state.session_timeout_ms is None:
            return 0
        written = self.written_ms(state.active)
        return 0 if written is None else max(0, written + state.session_timeout_ms - clock_ms())

    def checked(
        self, offsets: Offsets, ids: Mapping[str, str] | None = None, *, refresh: bool = True
    ) -> tuple[TopicOffsets, ...]:
        """Return offsets to be committed as columns, with the time of now.

        `ids`: topic ids as the consumer knows them; `refresh`: a request per topic, else topics as last seen here.
        `NotFound`: a topic does not exist; `Conflict`: one was created again; `BadRequest`: a partition, an offset or
        metadata that cannot be.
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
            state = log.state(refresh=False)
            # The offsets must not outlive the records that they are about.
            log.make_durable()
            if ids is not None and ids.get(topic, state.topic_id) != state.topic_id:
                raise Conflict(
                    f"topic {topic} was deleted and created again: its offsets mean nothing now; start again"
                )
            rows = dict(_row(topic, state.partitions, *item, now_ms) for item in offsets[topic].items())
            tables.append(topic_offsets(topic, state.topic_id, rows))
        return tuple(tables)


def _by_place(offsets: Iterable[TopicOffsets]) -> dict[TopicPartition, CommittedOffset]:
    return {(item.topic, item.partition): item for of_topic in offsets for item in of_topic.committed()}


def checked_session_timeout(session_timeout_ms: object) -> int:
    timeout_ms = as_whole(session_timeout_ms)
    if timeout_ms is None or not 1 <= timeout_ms <= MAX_SESSION_TIMEOUT_MS:
        found = shortened(session_timeout_ms)
        raise BadRequest(f"session.timeout.ms is 1 to {MAX_SESSION_TIMEOUT_MS} (a day), found {found}")
    return timeout_ms


def _row(topic: str, partitions: int, partition: object, position: object, now_ms: int) -> tuple[int, Row]:
    """Return a partition and its row; whole numbers may be numpy's. `BadRequest` as `Group.checked`."""
    number, offset = as_whole(partition), as_whole(getattr(position, "offset", position))
    epoch, metadata = getattr(position, "leader_epoch", None), getattr(position, "metadata", None) or ""
    if number is None or not 0 <= number < partitions or offset is None or not 0 <= offset <= INT64_MAX:
        raise BadRequest(
            f"expected offsets of partitions 0 to {partitions - 1} of topic '{topic}', found "
            f"{getattr(position, 'offset', position)!r} of partition {partition!r}"
        )
    leader_epoch = NO_EPOCH if epoch is None else as_whole(epoch)
    if leader_epoch is None or not NO_EPOCH <= leader_epoch <= MAX_INT:
        raise BadRequest(f"the leader epoch of {topic}-{number} is 0 to {MAX_INT}, or None; found {epoch!r}")
    try:
        size = len(metadata.encode())
    except (AttributeError, UnicodeEncodeError):
        raise BadRequest(f"metadata of {topic}-{number} is a text that UTF-8 can hold, found {metadata!r}") from None
    if size > MAX_METADATA:
        raise BadRequest(
            f"metadata of {topic}-{number} has {size} bytes, at most {MAX_METADATA} are kept beside an offset; "
            "shorten it"
        )
    return number, (offset, now_ms, leader_epoch, metadata)


@dataclass(slots=True)
class Membership:
    """The right to commit for a group, until a newer generation takes over (`Fenced` from then on)."""

    group: Group
    metadata: GroupMetadata
    session_timeout_ms: int
    written: ClockReading  # when it last gave a sign of life
    topic_ids: dict[str, str] = field(default_factory=dict)  # a topic created again takes no offsets from it

    @property
    def generation(self) -> int:
        return self.metadata.generation

    @property
    def heartbeat_ms(self) -> int:
        """The time without an entry of its own after which a heartbeat is due."""
        return self.session_timeout_ms // HEARTBEATS

    def commit(self, offsets: Offsets, *, refresh: bool = True) -> None:
        """Commit offsets (next to read) by topic and partition. `Fenced` if a newer member took over."""
        checked = self.group.checked(offsets, self.topic_ids, refresh=refresh)
        self._write(lambda base: steps.commit(base, self.metadata, checked))

    def heartbeat(self) -> None:
        self._write(lambda base: steps.heartbeat(base, self.metadata))

    def keep_alive(self) -> None:
        """Send a heartbeat if one is due."""
        if self.group.root.env.elapsed_ms(self.written) >= self.heartbeat_ms:
            self.heartbeat()

    def _write(self, step: Step[GroupState]) -> GroupState:
        state = self.group.write(step)
        self.written = self.group.root.env.now()
        return state

    def leave(self) -> None:
        """Leave: the group is empty at once. No effect if a newer member took over."""
        self.group.write(lambda base: steps.leave(base, self.metadata))


class GroupConsumer(ABC):
    """A consumer whose positions a transaction can commit to its group."""

    auto_commit_interval_ms: int | None
    """None: the consumer commits only when it is asked to."""

    @property
    @abstractmethod
    def membership(self) -> Membership: ...

    @abstractmethod
    def positions(self) -> Offsets:
        """Return topic to partition to the next offset to read."""
