"""Break each rule of members that share a group. At least one seed must fail."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from sparklog.groups import group_members, group_steps
from sparklog.groups.classic_member import ClassicMember
from sparklog.groups.consumer_member import ConsumerGroupMember
from sparklog.groups.group import Group
from sparklog.groups.group_members import GroupMember, Partitions
from sparklog.groups.group_state import GroupMetadata, GroupState
from sparklog.groups.member_leases import MemberLeases
from tests.groups.simulation.seeds import CONSUMERS, MEMBERS, MIXED
from tests.support.simulation.sweeps import BrokenRule, Patch, broken_rules

pytestmark = pytest.mark.sweep


def partitions_move_at_once(patch: Patch) -> None:
    """A member owns its target immediately, even if another member still reads the partition."""

    def assign_free_partitions(members: Sequence[GroupMember]) -> tuple[GroupMember, ...]:
        return tuple(
            replace(item, owned=(item.owned - item.revoked) | item.awaited, revoked=frozenset(), awaited=frozenset())
            for item in sorted(members, key=lambda item: item.id)
        )

    for module in (group_members, group_steps):
        patch.setattr(module, "assign_free_partitions", assign_free_partitions)


def members_do_not_fence(patch: Patch) -> None:
    """A removed member, or a member of an older generation, can still commit."""
    patch.setattr(group_steps, "check_member", lambda state, member, offsets=(): None)
    patch.setattr(GroupState, "is_superseded", lambda state, pending: False)


def giving_up_is_no_generation(patch: Patch) -> None:
    """A commit from before a member released a partition is accepted after it owns the partition again."""

    def is_member(state: GroupState, member: GroupMetadata) -> bool:
        return state.member(member.member_id) is not None

    patch.setattr(group_steps, "is_member", is_member)
    real = group_steps.check_member
    patch.setattr(group_steps, "check_member", lambda state, member, offsets=(): real(state, member))


def nobody_waits_for_what_is_pending(patch: Patch) -> None:
    """The next owner starts at the committed offset, even if a transaction of the previous owner is pending."""
    patch.setattr(Group, "stable", lambda self, timeout_ms=0, partitions=None: self.state())


def nobody_times_out(patch: Patch) -> None:
    """A stopped member keeps its partitions."""
    patch.setattr(MemberLeases, "expired", lambda self, state, **how: {})


def partitions_are_owned_beside_an_exclusive_owner(patch: Patch) -> None:
    """A member that joins while a server owns the group owns its target immediately."""

    def assign_free_partitions(members: Sequence[GroupMember]) -> tuple[GroupMember, ...]:
        owners = [item for item in members if item.is_exclusive]
        others = real([item for item in members if not item.is_exclusive])
        return tuple(sorted([*owners, *others], key=lambda item: item.id))

    real = group_members.assign_free_partitions
    for module in (group_members, group_steps):
        patch.setattr(module, "assign_free_partitions", assign_free_partitions)
    patch.setattr(group_members, "are_consistent", lambda members: True)


def a_fenced_owner_is_replaced_by_its_clients(patch: Patch) -> None:
    """The clients of a fenced server become members with the partitions that it has assigned to them."""
    real = group_steps.join

    def join(state, joining, partitions, expired, owner=None):  # type: ignore[no-untyped-def]
        return real(state, joining, partitions, expired, owner if owner and is_member(state, owner) else None)

    is_member = group_steps.is_member
    patch.setattr(group_steps, "join", join)
    patch.setattr(group_members, "are_consistent", lambda members: True)


def a_server_goes_on_after_another_owner(patch: Patch) -> None:
    """A fenced server starts its next generation with the partitions that its clients have read."""
    real = Group.own
    patch.setattr(Group, "own", lambda self, *instance, previous=None, **how: real(self, *instance, **how))


def cooperative_clients_give_up_what_they_read(patch: Patch) -> None:
    """JoinGroup releases all revoked partitions, even those that the client continues to read."""
    real = ClassicMember.rejoin
    patch.setattr(
        ClassicMember,
        "rejoin",
        lambda self, topics, assignors, owned, counts: real(self, topics, assignors, frozenset(), counts),
    )


def commits_of_clients_name_no_generation(patch: Patch) -> None:
    """A commit that a client sent before its latest JoinGroup is accepted."""
    patch.setattr(ClassicMember, "check_generation", lambda self, generation: None)


def clients_are_never_told_to_rejoin(patch: Patch) -> None:
    """Heartbeats of clients do not report rebalances."""
    patch.setattr(ClassicMember, "must_rejoin", lambda self: False)


def partitions_are_released_before_the_client_revokes_them(patch: Patch) -> None:
    """A heartbeat of the consumer protocol releases partitions that the client has not revoked yet."""
    patch.setattr(ConsumerGroupMember, "may_release", lambda self, owned: bool(self.membership.member.revoked))


def partitions_without_a_response_are_read(patch: Patch) -> None:
    """A server forgets which partitions its responses have contained."""
    real = ConsumerGroupMember.respond

    def respond(self: ConsumerGroupMember, epoch: int) -> Partitions:
        assigned = real(self, epoch)
        self._offered = frozenset()
        return assigned

    patch.setattr(ConsumerGroupMember, "respond", respond)


def a_new_epoch_is_sent_before_partitions_are_revoked(patch: Patch) -> None:
    """The response to a heartbeat has the epoch of the assignment, although the client must revoke partitions."""
    real = ConsumerGroupMember.respond

    def respond(self: ConsumerGroupMember, epoch: int) -> Partitions:
        assigned = real(self, epoch)
        self.epoch = self.membership.state.generation
        return assigned

    patch.setattr(ConsumerGroupMember, "respond", respond)


def commits_of_consumers_name_no_epoch(patch: Patch) -> None:
    """A commit that a client sent before its latest heartbeat is accepted."""
    patch.setattr(ConsumerGroupMember, "check_commit_epoch", lambda self, epoch: None)


def a_moved_consumer_is_not_fenced(patch: Patch) -> None:
    """A client that changes the server keeps its generation, so the previous server may still commit for it."""
    real = group_steps.move

    def move(state, member_id, epoch, owned):  # type: ignore[no-untyped-def]
        before = state.member(member_id)
        after = real(state, member_id, epoch, owned)
        members = [replace(one, generation=before.generation) if one.id == member_id else one for one in after.members]
        return replace(after, members=tuple(members))

    patch.setattr(group_steps, "move", move)


def a_member_that_has_left_temporarily_commits(patch: Patch) -> None:
    """A commit that a static member sent before it left temporarily is accepted."""

    def is_member(state: GroupState, member: GroupMetadata) -> bool:
        item = state.member(member.member_id)
        return item is not None and item.generation == member.generation

    patch.setattr(group_steps, "is_member", is_member)


@broken_rules(
    BrokenRule(partitions_are_released_before_the_client_revokes_them, "calm", range(40)),
    BrokenRule(partitions_without_a_response_are_read, "calm", range(40)),
    BrokenRule(a_new_epoch_is_sent_before_partitions_are_revoked, "calm", range(40)),
    BrokenRule(commits_of_consumers_name_no_epoch, "calm", range(40)),
    BrokenRule(a_moved_consumer_is_not_fenced, "calm", range(40)),
    BrokenRule(a_member_that_has_left_temporarily_commits, "calm", range(40, 80), first=49),
    BrokenRule(nobody_times_out, "crashes", range(40)),
    BrokenRule(partitions_move_at_once, "calm", range(40)),
)
def test_a_seed_with_consumers_fails_without_the_rule(rule: BrokenRule, monkeypatch: Patch) -> None:
    CONSUMERS.assert_fails(rule, monkeypatch)


@broken_rules(
    BrokenRule(a_fenced_owner_is_replaced_by_its_clients, "stalls", range(150, 180), first=153),
    BrokenRule(a_server_goes_on_after_another_owner, "folders", range(300558, 300559)),
    BrokenRule(cooperative_clients_give_up_what_they_read, "calm", range(40)),
    BrokenRule(commits_of_clients_name_no_generation, "calm", range(40)),
    BrokenRule(clients_are_never_told_to_rejoin, "calm", range(5)),
    BrokenRule(partitions_are_owned_beside_an_exclusive_owner, "calm", range(40)),
)
def test_a_seed_of_a_mixed_group_fails_without_the_rule(rule: BrokenRule, monkeypatch: Patch) -> None:
    MIXED.assert_fails(rule, monkeypatch)


@broken_rules(
    BrokenRule(partitions_move_at_once, "calm", range(30, 60)),
    BrokenRule(members_do_not_fence, "stalls", range(50)),
    BrokenRule(giving_up_is_no_generation, "calm", range(50)),
    BrokenRule(nobody_waits_for_what_is_pending, "calm", range(25, 80)),
    BrokenRule(nobody_times_out, "crashes", range(40)),
)
def test_a_seed_fails_without_the_rule(rule: BrokenRule, monkeypatch: Patch) -> None:
    MEMBERS.assert_fails(rule, monkeypatch)
