"""Each rule of members that share, broken on purpose: some seed must show it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from sparklog.groups import group_members, group_steps
from sparklog.groups.group import Group
from sparklog.groups.group_members import GroupMember
from sparklog.groups.group_state import GroupMetadata, GroupState
from sparklog.groups.membership import MemberLeases
from tests.groups.simulation.seeds import run_seed
from tests.support.seeds import thinned
from tests.support.simulation.scheduler import SimulationError

pytestmark = pytest.mark.sweep
Patch = pytest.MonkeyPatch


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
    patch.setattr(MemberLeases, "expired", lambda self, state, ask=False: {})


@pytest.mark.parametrize(
    ("mutate", "profile", "seeds"),
    [
        (partitions_move_at_once, "calm", range(30, 60)),
        (members_do_not_fence, "stalls", 50),
        (giving_up_is_no_generation, "calm", 50),
        (nobody_waits_for_what_is_pending, "calm", range(25, 80)),
        (nobody_times_out, "crashes", 40),
    ],
)
def test_a_broken_rule_is_found(
    mutate: Callable[[Patch], None], profile: str, seeds: int | range, monkeypatch: Patch
) -> None:
    """`seeds`: how many from 0 on or, of a rule that few seeds need, from shortly before one that found it once."""
    mutate(monkeypatch)
    failed = None
    for seed in range(seeds) if isinstance(seeds, int) else seeds:
        try:
            run_seed(seed, profile=profile)
        except (SimulationError, Exception) as error:  # noqa: BLE001
            failed = seed, error
            break
    assert failed is not None, f"{seeds} seeds passed without this rule: {mutate.__doc__}"


@pytest.mark.parametrize("step", thinned(3))
@pytest.mark.parametrize("profile", ["answers", "calm", "crashes", "stalls"])
def test_with_all_rules_the_same_seeds_pass(profile: str, step: int) -> None:
    for seed in range(0, 8, step):
        assert run_seed(seed, profile=profile).world.failure is None
