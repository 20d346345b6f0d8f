"""A consumer group of a root: its committed offsets, its members, and operations for administrators.

Heartbeats are entries of the journal, because no broker receives them. A group is active if the age of the latest entry
of a member, according to the store's clock, is less than the session timeout of the member.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from sparklog.arguments import NAME, PARTITIONS, POSITIONS, checked
from sparklog.errors import Conflict, NotFound, SparklogError
from sparklog.format.checkpoint_files import TopicPartition
from sparklog.groups import group_steps as steps
from sparklog.groups.assignors import ALL
from sparklog.groups.group_journal import GroupJournal, Offsets
from sparklog.groups.group_members import GroupMember, Partitions, server_of
from sparklog.groups.group_state import (
    NO_EPOCH,
    CommittedOffset,
    GroupMetadata,
    GroupState,
    Row,
    TopicOffsets,
    topic_offsets,
)
from sparklog.groups.member_leases import MemberLeases
from sparklog.groups.membership import JoinRequest, Membership, checked_session_timeout
from sparklog.limits import SESSION_TIMEOUT_MS
from sparklog.log.journal.entry_log import Step
from sparklog.log.journal.names import check_id

EMPTY, STABLE, RECONCILING, DEAD = "Empty", "Stable", "Reconciling", "Dead"
"""Kafka's names of group states.

Empty: no members. Stable: members. Reconciling: partitions are moving between members. Dead: the group does not exist.
"""
CLASSIC, CONSUMER = "classic", "consumer"
"""Kafka's names of group types."""


@dataclass(frozen=True, slots=True)
class GroupDescription:
    """The description of a group. `state` is Kafka's name of the group's state."""

    id: str
    state: str
    generation: int
    instance: str | None
    """The id of the exclusive owner, if the group is active and has an exclusive owner."""
    session_timeout_ms: int | None
    time_ms: int
    """The time of the latest entry, in milliseconds since the epoch; 0 if there are no entries."""
    pending: tuple[tuple[str, int, str, int, int], ...] = ()
    """Offsets that undecided transactions have prepared: (transactional id, n, topic, partition, offset)."""
    members: tuple[GroupMember, ...] = ()
    """The members of the group, if it is active."""

    @property
    def type(self) -> str:
        """Kafka's type of the group. The type is "consumer" if the group has members of the consumer protocol, and
        otherwise "classic".
        """
        return CONSUMER if any(member.consumer is not None for member in self.members) else CLASSIC

    @property
    def is_active(self) -> bool:
        return self.state in (STABLE, RECONCILING)

    @property
    def server(self) -> str | None:
        """The address of the server whose clients are the members, if the exclusive owner is a server."""
        return server_of(self.instance)

    def owner(self, topic: str, partition: int) -> str | None:
        """Return the id of the member that owns a partition, or None if no member owns the partition."""
        owners = (member.id for member in self.members if (topic, partition) in member.owned)
        return next(owners, self.instance)


class Group(GroupJournal):
    """A consumer group, as returned by `Groups(root).group(id)`. The group may not exist yet."""

    def offsets(self, failures: list[SparklogError] | None = None) -> tuple[TopicOffsets, ...]:
        """Return the committed offsets of existing topics.

        Args:
            failures: A list to which the errors of unreadable topics are added. If None, the first error is raised.
        """
        offsets = self.state().offsets
        ids = self.topic_ids((item.topic for item in offsets), failures)
        return tuple(item for item in offsets if ids.get(item.topic) == item.topic_id)

    def committed(self) -> Mapping[TopicPartition, CommittedOffset]:
        """Return the committed offset of each (topic, partition).

        As in Kafka, offsets of deleted topics are not returned.
        """
        return _by_partition(self.offsets())

    def description(self, *, state: GroupState | None = None) -> GroupDescription:
        state = self.state() if state is None else state
        active = self._active_ms(state, self.reading_clock_ms) > 0
        members = state.members if active else ()
        instance = state.owner.id if active and state.owner is not None else None
        name = DEAD if not state.exists else EMPTY if not active else STABLE
        if not all(member.is_stable and not member.has_left for member in members):
            name = RECONCILING
        pending = tuple(
            (item.txn, item.n, *position)
            for item in state.pending
            for offsets in item.offsets
            for position in offsets.positions()
        )
        timeout_ms = state.session_timeout_ms
        return GroupDescription(
            self.id, name, state.generation, instance, timeout_ms, max(0, state.created_ms), pending, members
        )

    # -- members

    @checked(instance=NAME.or_none())
    def join(self, instance: str | None = None, *, session_timeout_ms: int = SESSION_TIMEOUT_MS) -> Membership:
        """Become the exclusive owner of the group, and fence the previous owner.

        Transactions that the previous owner has prepared but not committed are aborted.

        Args:
            instance: An instance name for messages and listings, or None for a random id.
            session_timeout_ms: The time since the owner's latest entry after which other members may join.

        Raises:
            Conflict: If the group has active members that share its partitions.
        """
        return self.own(instance, session_timeout_ms=session_timeout_ms)

    def own(
        self,
        instance: str | None = None,
        *,
        session_timeout_ms: int = SESSION_TIMEOUT_MS,
        assignors: Sequence[str] = (),
        previous: GroupMetadata | None = None,
    ) -> Membership:
        """Become the exclusive owner of the group, like `join`.

        Args:
            assignors: The assignors with which the owner can share the group (see `group_members`).
            previous: The owner's earlier generation, if it continues with records that it read in that generation.

        Raises:
            Conflict: If the group has active members that share its partitions.
            Fenced: If another owner or other members have joined since `previous`.
        """
        name = self.root.env.new_id() if instance is None else check_id(instance, "instance")
        timeout_ms = checked_session_timeout(session_timeout_ms)
        # An owner without other assignors is stored as an instance name only.
        client_id, host = (name, socket.gethostname()) if assignors else ("", "")
        owner = GroupMember(name, None, client_id, host, timeout_ms, (ALL, *assignors), ())
        return self._join([owner], {}, {}, previous)[0]

    def share(self, request: JoinRequest, partitions: Mapping[str, int]) -> Membership:
        """Become a member that shares the partitions of the group with other members.

        Args:
            request: The properties of the new member.
            partitions: The number of partitions of each topic.

        Raises:
            Conflict: If the group has an exclusive owner, or if the members have no common assignor.
        """
        member = request.member(f"{request.client_id}-{self.root.env.new_id()}", socket.gethostname())
        return self.share_as([member], partitions)[0]

    def share_as(
        self, members: Sequence[GroupMember], partitions: Mapping[str, int], owner: GroupMetadata | None = None
    ) -> list[Membership]:
        """Add members with a single entry, and return their memberships.

        Args:
            members: The new members.
            partitions: The number of partitions of each topic.
            owner: The exclusive owner that the members replace. The owner has assigned the members' `owned` partitions.

        Raises:
            Conflict: If the group has another exclusive owner, or if the members have no common assignor.
        """
        state = self.log.refresh()
        expired = {} if owner is not None else MemberLeases(self).expired(state, read_store=True)
        return self._join(members, partitions, expired, owner)

    def move(self, member_id: str, epoch: int, owned: Partitions | None) -> Membership:
        """Continue a member of the consumer protocol that another process has added. See `group_steps.move`."""
        state = self.write(lambda base: steps.move(base, member_id, epoch, owned))
        return self._membership(state, member_id)

    def _join(
        self,
        members: Sequence[GroupMember],
        partitions: Mapping[str, int],
        expired: steps.Expired,
        owner: GroupMetadata | None,
    ) -> list[Membership]:
        def step(base: GroupState) -> GroupState:
            removed = expired
            if owner is None and any(steps.is_excluded(base, member, expired) for member in members):
                # As in Kafka, the members must have a common protocol.
                self.check_inactive(base, self.root.store.now_ms)
                removed = {item.id: item.seen for item in base.members}
            return steps.join(base, members, partitions, removed, owner)

        state = self.write(step)
        self.resolve_pending()
        return [self._membership(state, member.id) for member in members]

    def _membership(self, state: GroupState, member_id: str) -> Membership:
        """Return the membership of a member that this process has just added."""
        joined = state.member(member_id)
        if joined is None:
            # Another thread of this process has changed the group in the same entry.
            steps.check_member(state, GroupMetadata(self.id, state.generation, member_id))
        assert joined is not None
        metadata = GroupMetadata(self.id, joined.generation, joined.id)
        now = self.root.env.now()
        return Membership(self, metadata, joined.instance_id, joined.session_timeout_ms, now, state)

    # -- operations of administrators

    @checked(offsets=POSITIONS)
    def alter(
        self, offsets: Offsets, *, dry_run: bool = False, force: bool = False
    ) -> Mapping[TopicPartition, CommittedOffset]:
        """Set offsets and fence the members.

        Args:
            offsets: The new offsets, by topic and partition.
            dry_run: Validate the request without changing offsets.
            force: Also set the offsets of an active group. The members of the group are fenced at their next commit.

        Returns:
            The new offset of each (topic, partition).

        Raises:
            Conflict: If the group is active.
            NotFound: If a topic does not exist.
            BadRequest: If a partition or an offset is invalid.
        """
        checked = self.checked(offsets)
        self._act(lambda base: steps.alter(base, checked), dry_run, force)
        return _by_partition(checked)

    @checked(gone=PARTITIONS)
    def delete_offsets(self, gone: Mapping[str, Collection[int]], *, dry_run: bool = False) -> None:
        """Delete the offsets of partitions.

        Args:
            gone: The partitions of each topic for which to delete the offsets.
            dry_run: Validate the request without deleting offsets.

        Raises:
            Conflict: If the group is active.
            NotFound: If the group does not exist.
        """
        self._check_exists()
        self._act(lambda base: steps.delete_offsets(base, gone), dry_run)

    @checked()
    def delete(self, *, dry_run: bool = False) -> None:
        """Delete the group.

        Args:
            dry_run: Validate the request without deleting the group.

        Raises:
            Conflict: If the group is active.
            NotFound: If the group does not exist.
        """
        self._check_exists()
        self._act(steps.delete, dry_run)

    def restore(self, offsets: Sequence[CommittedOffset], *, generation: int = 0) -> None:
        """Import offsets of another root if they are missing in this root or newer, and continue from the higher
        generation.
        """
        rows: dict[tuple[str, str], dict[int, Row]] = {}
        for item in offsets:
            epoch = NO_EPOCH if item.leader_epoch is None else item.leader_epoch
            row = item.offset, item.time_ms, epoch, item.metadata
            rows.setdefault((item.topic, item.topic_id), {})[item.partition] = row
        tables = [topic_offsets(topic, topic_id, by_partition) for (topic, topic_id), by_partition in rows.items()]
        self.write(lambda base: steps.restore(base, tables, generation))

    def _check_exists(self) -> None:
        if not self.log.refresh().exists:
            raise NotFound(f"group '{self.id}' does not exist in {self.root.location}")

    def _act(self, step: Step[GroupState], dry_run: bool, force: bool = False) -> None:
        def guarded(base: GroupState) -> GroupState | None:
            if not force:
                self.check_inactive(base, self.root.store.now_ms)
            return step(base)

        if not dry_run:
            self.write(guarded)
        elif not force:
            self.check_inactive(self.log.refresh(), self.reading_clock_ms)

    def check_inactive(self, state: GroupState, clock_ms: Callable[[], int]) -> None:
        """Raise `Conflict` if the group has active members."""
        remaining_ms = self._active_ms(state, clock_ms)
        if remaining_ms > 0:
            members = f"{len(state.members)} members" if state.owner is None else f"member {state.owner.id}"
            who, stopped, effect = "its consumer", "it has", "fences it"
            if state.owner is not None and (server := server_of(state.owner.id)) is not None:
                members = f"Kafka clients of server {server}"
                who, stopped, effect = "these clients", "they have", "makes them rejoin"
            raise Conflict(
                f"group '{self.id}' is active ({STABLE}, {members}): stop {who}, or wait {-(-remaining_ms // 1000)} s "
                f"if {stopped} already stopped; `sparklog groups reset --force` {effect}"
            )

    def _active_ms(self, state: GroupState, clock_ms: Callable[[], int]) -> int:
        """Return the remaining time for which the group is active if members do not write further entries, or 0 if the
        group is inactive.
        """
        if not state.exists or state.active is None or state.session_timeout_ms is None:
            return 0
        written = self.written_ms(state.active)
        return 0 if written is None else max(0, written + state.session_timeout_ms - clock_ms())


def _by_partition(offsets: Iterable[TopicOffsets]) -> dict[TopicPartition, CommittedOffset]:
    return {(item.topic, item.partition): item for of_topic in offsets for item in of_topic.committed()}
