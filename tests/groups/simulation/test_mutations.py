"""Each rule of members that share, broken on purpose: some seed must show it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from sparklog.groups import group_members, group_steps
from sparklog.groups.group import Group
from sparklog.groups.group_members import GroupMember
from sparklog.groups.group_state import GroupMetadata, GroupState
from sparklog.groups.membership import MemberLeases
from tests.groups.simulation.seeds import MEMBERS
from tests.support.simulation.sweeps import BrokenRule, Patch, broken_rules

pytestmark = pytest.mark.sweep


def partitions_move_at_once(patch: Patch) -> None:
    """A target is owned in the generation that gives it, whoever still reads the partition."""

    def handed_out(members: Sequence[GroupMember]) -> tuple[GroupMember, ...]:
        return tuple(
            replace(item, owned=(item.owned - item.revoked) | item.awaited, revoked=frozenset(), awaited=frozenset())
            for item in sorted(members, key=lambda item: item.id)
        )

    for module in (group_members, group_steps):
        patch.setattr(module, "handed_out", handed_out)


def members_do_not_fence(patch: Patch) -> None:
    """A member that was taken out, or whose generation is older, commits all the same."""
    patch.setattr(group_steps, "check_member", lambda state, member, offsets=(): None)
    patch.setattr(GroupState, "is_superseded", lambda state, pending: False)


def giving_up_is_no_generation(patch: Patch) -> None:
    """A commit of before a member gave up a partition counts after it got it back."""

    def is_member(state: GroupState, member: GroupMetadata) -> bool:
        return state.member(member.member_id) is not None

    patch.setattr(group_steps, "is_member", is_member)
    real = group_steps.check_member
    patch.setattr(group_steps, "check_member", lambda state, member, offsets=(): real(state, member))


def nobody_waits_for_what_is_pending(patch: Patch) -> None:
    """The next owner begins at the committed offset, whatever a transaction of the one before has pending."""
    patch.setattr(Group, "stable", lambda self, timeout_ms=0, partitions=None: self.state())


def nobody_times_out(patch: Patch) -> None:
    """A member that stopped keeps its partitions."""
    patch.setattr(MemberLeases, "expired", lambda self, state, **how: {})


@broken_rules(
    BrokenRule(partitions_move_at_once, "calm", range(30, 60)),
    BrokenRule(members_do_not_fence, "stalls", range(50)),
    BrokenRule(giving_up_is_no_generation, "calm", range(50)),
    BrokenRule(nobody_waits_for_what_is_pending, "calm", range(25, 80)),
    BrokenRule(nobody_times_out, "crashes", range(40)),
)
def test_some_seed_fails_without_the_rule(rule: BrokenRule, monkeypatch: Patch) -> None:
    MEMBERS.assert_fails(rule, monkeypatch)
