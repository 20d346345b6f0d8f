"""Steps of members of the consumer protocol (KIP-848): epochs, assignors, static members, and moves between servers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import sparklog
from sparklog.errors import Conflict, Fenced
from sparklog.groups import group_steps as steps
from sparklog.groups.assignors import ALL, MemberSubscription, assign
from sparklog.groups.consumer_member import ConsumerGroupMember
from sparklog.groups.group import Group
from sparklog.groups.group_members import ConsumerProtocol, GroupMember, group_assignor
from sparklog.groups.group_state import GROUP_JSON, GROUPS, GroupState
from sparklog.groups.group_steps import EpochMismatch, UnreleasedInstance
from sparklog.log.journal.documents import CONSUMER_PROTOCOL, GROUP_MEMBERS
from tests.groups.test_members import FOUR, member, metadata, owned, targets
from tests.groups.test_state import after, at


def consumer(name: str, *assignors: str, instance_id: str | None = None) -> GroupMember:
    protocol = ConsumerProtocol(("a",), None, 60_000)
    return replace(member(name, instance_id=instance_id), assignors=assignors, consumer=protocol)


def joined(*members: GroupMember, state: GroupState | None = None) -> GroupState:
    state = state or GroupState("g")
    for item in members:
        state = after(steps.join(state, [item], FOUR, {}))
    return state


def has_left(state: GroupState, name: str) -> bool:
    item = state.member(name)
    assert item is not None
    assert item.consumer is not None
    return item.consumer.has_left


def test_a_released_partition_does_not_start_a_generation() -> None:
    two = joined(consumer("one"), consumer("two"))
    revoked = two.members[0].revoked
    assert (two.generation, two.members[0].generation, len(revoked)) == (2, 1, 2)
    released = after(steps.revoke(two, metadata(two, "one"), revoked, 1))
    assert (released.generation, released.members[0].generation) == (2, 2)
    assert owned(released) == targets(released) == {"one": [0, 1], "two": [2, 3]}
    # A commit from before the revocation is rejected, also for partitions that the member kept.
    with pytest.raises(Fenced):
        steps.commit(released, metadata(two, "one"), [at("a", {0: 5})])


def test_a_member_that_has_moved_starts_a_generation_when_it_releases_partitions() -> None:
    """Its generation is that of the group already, so a commit from before the release would have the same one."""
    moved = after(steps.move(joined(consumer("one"), consumer("two")), "one", 1, None))
    before = metadata(moved, "one")
    released = after(steps.revoke(moved, before, moved.members[0].revoked, 1))
    assert metadata(released, "one").generation == released.generation == moved.generation + 1
    with pytest.raises(Fenced):
        steps.commit(released, before, [at("a", {0: 5})])


def test_the_assignor_of_most_consumers_assigns_all_partitions() -> None:
    assert group_assignor([consumer("a")]) == "uniform"
    assert group_assignor([consumer("a"), consumer("b", "range"), member("c", "sticky")]) == "range"
    assert group_assignor([consumer("a", "uniform"), consumer("b", "range"), consumer("c", "uniform")]) == "uniform"
    assert group_assignor([member("c", "sticky")]) == "sticky"


def test_other_members_still_need_a_common_assignor() -> None:
    state = joined(consumer("one"), member("two", "sticky"))
    with pytest.raises(Conflict, match="must have a common assignor, found range; sticky"):
        steps.join(state, [member("three", "range")], FOUR, {})
    left = steps.leave(state, metadata(state, "one"))
    assert left is not None
    assert owned(after(left)) == {"two": [0, 1, 2, 3]}


def test_entries_have_a_feature_while_consumers_are_members() -> None:
    state = joined(member("two"), consumer("one"))
    assert state.read_features == state.write_features == (GROUP_MEMBERS, CONSUMER_PROTOCOL)
    assert GROUPS.decode(GROUP_JSON.encode(state), "key", state.number) == state
    left = steps.leave(state, metadata(state, "one"))
    assert left is not None
    assert left.read_features == (GROUP_MEMBERS,)


def test_a_static_member_is_replaced_only_after_it_has_left() -> None:
    state = joined(consumer("one", instance_id="i"))
    with pytest.raises(UnreleasedInstance, match=r"set another group\.instance\.id"):
        steps.join(state, [consumer("two", instance_id="i")], FOUR, {})
    left = steps.leave_temporarily(state, metadata(state, "one"))
    assert left is not None
    assert has_left(left, "one")
    assert owned(left) == {"one": [0, 1, 2, 3]}
    returned = joined(consumer("two", instance_id="i"), state=after(left))
    assert owned(returned) == {"two": [0, 1, 2, 3]}
    # A member whose session has timed out is replaced like one that has left.
    expired = {"one": state.members[0].seen}
    assert owned(steps.join(state, [consumer("two", instance_id="i")], FOUR, expired)) == {"two": [0, 1, 2, 3]}
    # A member of the classic protocol replaces it as well, as in Kafka.
    assert owned(joined(member("two", instance_id="i"), state=state)) == {"two": [0, 1, 2, 3]}


def test_a_static_member_that_restarts_does_not_move_partitions() -> None:
    """With the new member id, `uniform` would assign the extra partition to the other member."""
    topics = {"a": 3}
    state = after(steps.join(GroupState("g"), [consumer("one", instance_id="i")], topics, {}))
    state = after(steps.join(state, [consumer("two")], topics, {}))
    state = after(steps.revoke(state, metadata(state, "one"), state.members[0].revoked, 1))
    assert owned(state) == {"one": [0, 1], "two": [2]}
    left = after(steps.leave_temporarily(state, metadata(state, "one")))
    restarted = consumer("three", instance_id="i")
    returned = after(steps.join(left, [restarted], topics, {}))
    assert owned(returned) == targets(returned) == {"three": [0, 1], "two": [2]}
    # The assignor runs if the subscription or the number of partitions has changed.
    other = replace(restarted, topics=("b",))
    assert targets(steps.join(left, [other], topics, {})) == {"three": [], "two": [0, 1, 2]}
    assert sorted(map(len, targets(steps.join(left, [restarted], FOUR, {})).values())) == [2, 2]


def test_a_static_member_that_restarts_during_a_rebalance_still_awaits_its_partitions() -> None:
    topics = {"a": 5}
    state = after(steps.join(GroupState("g"), [consumer("one")], topics, {}))
    state = after(steps.join(state, [consumer("two", instance_id="i")], topics, {}))
    before = targets(state)
    left = after(steps.leave_temporarily(state, metadata(state, "two")))
    returned = after(steps.join(left, [consumer("six", instance_id="i")], topics, {}))
    assert targets(returned) == {"one": before["one"], "six": before["two"]}
    assert owned(returned) == {"one": [0, 1, 2, 3, 4], "six": []}


def test_a_member_that_leaves_temporarily_releases_what_it_must_revoke() -> None:
    state = joined(consumer("one", instance_id="i"), consumer("two"))
    left = steps.leave_temporarily(state, metadata(state, "one"))
    assert left is not None
    assert owned(left) == {"one": [0, 1], "two": [2, 3]}


def test_a_commit_from_before_a_member_left_temporarily_is_rejected() -> None:
    """Another member may have committed a later offset of a partition that is assigned to the first member again."""
    state = joined(consumer("one", instance_id="i"), consumer("two"))
    before = metadata(state, "one")
    left = after(steps.leave_temporarily(state, before))
    committed = after(steps.commit(left, metadata(left, "two"), [at("a", {2: 9})]))
    returned = after(steps.leave(committed, metadata(committed, "two")))
    assert owned(returned) == {"one": [0, 1, 2, 3]}
    with pytest.raises(Fenced, match="has left temporarily"):
        steps.commit(returned, before, [at("a", {2: 5})])
    with pytest.raises(Fenced, match="has left temporarily"):
        steps.prepare(returned, before, "t", 1, 1000, [at("a", {2: 5})])
    assert steps.leave_temporarily(returned, before) is None


def test_only_a_member_with_a_valid_epoch_moves_to_another_server() -> None:
    state = joined(consumer("one"), consumer("two"))
    assert (state.generation, state.members[0].generation) == (2, 1)
    for epoch in (0, 1, 2):
        moved = after(steps.move(state, "one", epoch, None))
        assert metadata(moved, "one").generation == moved.generation == 3
        assert owned(moved) == owned(state)
        with pytest.raises(Fenced):
            steps.commit(moved, metadata(state, "one"), [at("a", {0: 5})])
    with pytest.raises(EpochMismatch):
        steps.move(state, "one", 3, None)
    # The response was lost, so the client repeats its epoch with its partitions.
    moved = after(steps.move(state, "one", 2, None))
    again = after(steps.move(moved, "one", 2, frozenset({("a", 0)})))
    assert metadata(again, "one").generation == 4
    for owned_partitions in (None, frozenset({("b", 0)})):
        with pytest.raises(EpochMismatch):
            steps.move(moved, "one", 2, owned_partitions)
    with pytest.raises(Fenced, match="join again"):
        steps.move(state, "three", 1, None)
    with pytest.raises(Fenced, match="join again"):
        steps.move(joined(member("native")), "native", 1, None)


def test_a_member_that_has_left_temporarily_moves_only_if_it_joins() -> None:
    state = joined(consumer("one", instance_id="i"))
    left = steps.leave_temporarily(state, metadata(state, "one"))
    assert left is not None
    with pytest.raises(EpochMismatch):
        steps.move(after(left), "one", 1, frozenset())
    assert not has_left(steps.move(after(left), "one", 0, frozenset()), "one")
    # A heartbeat that was sent before the member left has the previous epoch of the member.
    moved = after(steps.move(state, "one", 1, None))
    left = steps.leave_temporarily(moved, metadata(moved, "one"))
    assert left is not None
    with pytest.raises(EpochMismatch):
        steps.move(after(left), "one", 1, frozenset())


def test_a_consumer_does_not_join_an_exclusive_owner_without_other_assignors() -> None:
    query = GroupMember("query", None, "", "", 9_000, (ALL,), ())
    state = joined(query)
    assert steps.is_excluded(state, consumer("one"), {})
    server = GroupMember("serve@a:1", None, "serve@a:1", "host", 9_000, (ALL, "range"), ())
    shared = joined(server, consumer("one"))
    assert owned(shared) == {"one": [], "serve@a:1": []}


def test_uniform_keeps_partitions_within_quotas() -> None:
    def subscription(name: str, *numbers: int) -> MemberSubscription:
        return MemberSubscription(name, None, ("t",), tuple(("t", number) for number in numbers))

    assert assign("uniform", [subscription("a"), subscription("b")], {"t": 5}) == {
        "a": (("t", 0), ("t", 1), ("t", 2)),
        "b": (("t", 3), ("t", 4)),
    }
    kept = assign("uniform", [subscription("a", 0, 1, 2, 3, 4), subscription("b"), subscription("c")], {"t": 5})
    assert kept == {"a": (("t", 0), ("t", 1)), "b": (("t", 2), ("t", 3)), "c": (("t", 4),)}
    different = [subscription("a"), MemberSubscription("b", None, ("t", "u"))]
    shares = assign("uniform", different, {"t": 2, "u": 2})
    assert sorted(map(len, shares.values())) == [2, 2]


def test_a_response_to_a_join_has_an_epoch_even_if_another_member_has_joined_since(tmp_path: Path) -> None:
    root = sparklog.open(tmp_path, create=True)
    root.create_topic("a", partitions=4)
    group = Group(root, "g")
    one = ConsumerGroupMember.join(group, consumer("one"), FOUR)
    two = ConsumerGroupMember.join(group, consumer("two"), FOUR)
    one.membership.refresh()
    # The client has not got the partitions that it would have to revoke.
    assert one.respond(0) == {("a", 0), ("a", 1)}
    assert one.epoch == 2
    assert one.may_release(None)
    one.release(one.epoch)
    two.membership.refresh()
    assert (two.respond(0), two.epoch) == ({("a", 2), ("a", 3)}, one.respond(2) and one.epoch)
