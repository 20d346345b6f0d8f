"""Members that share a group, each in its own process, with their requests to one store."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from sparklog.errors import BadRequest, Conflict, Fenced
from sparklog.groups.group import Group
from sparklog.groups.lag import Groups, lag
from sparklog.groups.membership import JoinRequest, Membership
from sparklog.log.topic.root import Root
from sparklog.testing.world import START_MS
from sparklog.testing.wrapper_stores import CountingStore
from sparklog.transactions.producer import transactional
from tests.support.counted_root import Bucket
from tests.support.topics_world import TopicsWorld

SESSION_MS = 9_000


def join(
    world: TopicsWorld, name: str = "m", *, root: Root | None = None, topics: Sequence[str] = ("a",), **how: object
) -> Membership:
    subscription = JoinRequest(topics=tuple(topics), session_timeout_ms=SESSION_MS, client_id=name, **how)  # type: ignore[arg-type]
    opened = world.root() if root is None else root
    return Group(opened, "g").share(
        subscription, {topic: opened.topic(topic).log.state().partitions for topic in topics}
    )


def settle(*members: Membership) -> None:
    """Let members refresh and revoke until the assignment of the latest generation is complete."""
    for _ in range(4):
        for member in members:
            member.refresh()
            if member.revoking():
                member.revoke()


def partitions(member: Membership) -> list[int]:
    return sorted(partition for _, partition in member.assigned())


def test_two_members_share_a_topic_and_a_leaving_member_releases_immediately() -> None:
    world = TopicsWorld(partitions=4)
    one = join(world, "one")
    assert partitions(one) == [0, 1, 2, 3]
    two = join(world, "two")
    assert partitions(two) == []
    # The member continues to read revoked partitions until two refreshes have the same result.
    assert one.refresh()
    assert (partitions(one), one.revoking()) == ([0, 1, 2, 3], frozenset())
    assert one.refresh()
    assert len(one.revoking()) == 2
    settle(one, two)
    assert (len(partitions(one)), len(partitions(two))) == (2, 2)
    assert sorted(partitions(one) + partitions(two)) == [0, 1, 2, 3]
    first = partitions(two)[0]
    two.commit({"a": {first: 7}})
    with pytest.raises(Fenced, match="no longer owns"):
        one.commit({"a": {first: 1}})
    two.leave()
    two.leave()
    assert one.refresh()
    assert partitions(one) == [0, 1, 2, 3]
    with pytest.raises(Fenced, match="join again"):
        two.refresh()
    with pytest.raises(Fenced):
        two.commit({"a": {first: 9}})
    assert Groups(world.root()).group("g").committed()["a", first].offset == 7


def test_a_stopped_member_is_replaced_only_after_its_session_timeout() -> None:
    world = TopicsWorld(partitions=4)
    one, two = join(world, "one"), join(world, "two")
    settle(one, two)
    for _ in range(2):
        world.now_ms += SESSION_MS // 3
        one.heartbeat_if_due()
    one.refresh()
    assert len(partitions(one)) == 2
    world.now_ms += SESSION_MS // 3
    one.heartbeat_if_due()
    one.refresh()
    assert partitions(one) == [0, 1, 2, 3]
    with pytest.raises(Fenced):
        two.heartbeat_if_due()
    # A new member reads the store immediately, so a stopped member delays it at most by its session timeout.
    world.now_ms += SESSION_MS
    three = join(world, "three")
    assert partitions(three) == [0, 1, 2, 3]


def test_a_clock_that_jumps_ahead_does_not_remove_members() -> None:
    world = TopicsWorld(partitions=4)
    one, two = join(world, "one"), join(world, "two")
    settle(one, two)
    world.set_wall_clock(10 * SESSION_MS)
    one.heartbeat_if_due()
    two.heartbeat_if_due()
    assert len(two.state.members) == 2
    world.now_ms += SESSION_MS // 3 + 1
    one.heartbeat_if_due()
    two.heartbeat_if_due()
    assert not two.refresh() or len(two.state.members) == 2


def test_an_idle_member_writes_an_entry_per_third_of_its_session_and_polls_with_one_request() -> None:
    world = TopicsWorld(partitions=4)
    store = CountingStore(world.store)
    one = join(world, "one", root=world.root(store))
    store.reset()
    for _ in range(9):
        world.now_ms += SESSION_MS // 9 + 1
        one.heartbeat_if_due()
        one.refresh()
    assert store.counts["create"] == 3
    assert store.counts["stat"] == 0
    # An entry takes three additional requests, which check that the root is the opened root, that the previous entry
    # exists, and (because the last poll is older than a second) that there is no later entry.
    assert store.counts["get"] == 9 + 3 * 3
    assert store.counts["list"] == 0


def test_requests_of_a_member_in_a_bucket() -> None:
    """docs/reference/cost.md contains these numbers."""
    world = TopicsWorld(partitions=4, store=Bucket(lambda: START_MS))
    store = CountingStore(world.store)
    one = join(world, "one", root=world.root(store))
    for action, requests in (
        (one.refresh, {"get": 1}),
        (one.heartbeat, {"get": 3, "create": 1}),
        (lambda: one.commit({"a": {0: 1}}), {"get": 4, "create": 1}),
    ):
        store.reset()
        action()
        assert dict(store.counts) == requests


def test_one_heartbeat_covers_all_members_of_a_process() -> None:
    world = TopicsWorld(partitions=4)
    store = CountingStore(world.store)
    root = world.root(store)
    members = [join(world, name, root=root) for name in ("one", "two", "three")]
    settle(*members)
    store.reset()
    for _ in range(9):
        world.now_ms += SESSION_MS // 9 + 1
        for member in members:
            member.heartbeat_if_due()
    assert store.counts["create"] == 3
    # Heartbeats of other members do not cover a member that no longer does anything.
    for _ in range(15):
        world.now_ms += SESSION_MS // 9
        for member in members[:2]:
            member.heartbeat_if_due()
    assert len(members[0].group.log.refresh().members) == 2
    with pytest.raises(Fenced):
        members[2].refresh()


def test_transactions_of_stopped_members_are_aborted_and_of_members_that_left_are_not() -> None:
    world = TopicsWorld(partitions=2)
    for leaves in (False, True):
        one = join(world, "one")
        transaction = transactional(one.group.root, "t").begin()
        transaction.send_offsets(one, {"a": {0: 5}})
        transaction.prepare()
        if leaves:
            one.leave()
            transaction.commit()
        else:
            world.now_ms += SESSION_MS
        two = join(world, "two")
        state = two.group.stable(0, two.assigned())
        assert [item.offset for item in state.offsets] == ([(5,)] if leaves else [])
        two.leave()


def test_a_query_and_sharing_members_exclude_each_other_while_active() -> None:
    world = TopicsWorld(partitions=4)
    query = Group(world.root(), "g").join("query", session_timeout_ms=SESSION_MS)
    with pytest.raises(Conflict, match=r"member query\): stop its consumer, or wait 9 s"):
        join(world)
    query.leave()
    member = join(world)
    with pytest.raises(Conflict, match=r"active \(Stable, 1 members\)"):
        Group(world.root(), "g").join("query")
    with pytest.raises(Fenced):
        query.heartbeat()
    world.now_ms += SESSION_MS
    taken = Group(world.root(), "g").join("query", session_timeout_ms=SESSION_MS)
    with pytest.raises(Fenced, match="generation 3"):
        member.refresh()
    world.now_ms += SESSION_MS
    assert partitions(join(world)) == [0, 1, 2, 3]
    with pytest.raises(Fenced):
        taken.heartbeat()


def test_administrators_see_members_and_wait_for_them() -> None:
    world = TopicsWorld(partitions=4)
    one, two = join(world, "one"), join(world, "two")
    group = Group(world.root(), "g")
    assert group.description().state == "Reconciling"
    settle(one, two)
    description = group.description()
    assert (description.state, [item.client_id for item in description.members]) == ("Stable", ["one", "two"])
    one.commit({"a": {partitions(one)[0]: 0}})
    owners = {row.partition: row.member for row in lag(world.root(), ["g"], all_partitions=True)}
    assert owners == {partition: member.metadata.member_id for member in (one, two) for partition in partitions(member)}
    with pytest.raises(Conflict, match="2 members"):
        group.delete()
    world.now_ms += SESSION_MS
    assert (group.description().state, group.description().members) == ("Empty", ())
    group.delete()
    with pytest.raises(Fenced, match="the group was deleted"):
        one.refresh()


def test_wrong_subscriptions_are_rejected_in_one_line() -> None:
    for wrong, text in (
        ({"assignors": ("odd", "range")}, "partition_assignment_strategy must be one or more of range.*found odd"),
        ({"assignors": ()}, "found none"),
        ({"session_timeout_ms": 0}, "session.timeout.ms must be 1 to 86400000"),
        ({"instance_id": ""}, "group.instance.id"),
    ):
        with pytest.raises(BadRequest, match=text):
            JoinRequest(topics=("a",), **wrong)  # type: ignore[arg-type]
