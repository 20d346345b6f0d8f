"""Consumers of one group: assignments, calls of listeners, and members that stop."""

from __future__ import annotations

import gc
import logging
import multiprocessing
import os
import random
import threading
import time
import weakref
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import sparklog
from sparklog.clients.consumer import heartbeat_thread
from sparklog.clients.consumer.consumer import Consumer
from sparklog.clients.consumer.heartbeat_thread import HeartbeatThread
from sparklog.errors import BadRequest, Fenced, Unavailable
from sparklog.format.checkpoint_files import TopicPartition
from sparklog.groups.group import Group
from sparklog.groups.lag import Groups
from sparklog.groups.membership import Membership
from sparklog.testing.world import World
from sparklog.testing.wrapper_stores import HookedStore
from tests.support.consumers import ConsumerWorld, append, everything, settle, values
from tests.support.forked import in_child
from tests.support.records import rows
from tests.support.seeds import CONSUMERS

A0, A1, A2, A3 = (("a", number) for number in range(4))


class Noted(sparklog.RebalanceListener):
    """A listener that records its calls, as partition numbers."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, list[int]]] = []

    def _note(self, name: str, partitions: frozenset[TopicPartition]) -> None:
        self.calls.append((name, sorted(number for _, number in partitions)))

    def on_assigned(self, partitions: frozenset[TopicPartition]) -> None:
        self._note("assigned", partitions)

    def on_revoked(self, partitions: frozenset[TopicPartition]) -> None:
        self._note("revoked", partitions)

    def on_lost(self, partitions: frozenset[TopicPartition]) -> None:
        self._note("lost", partitions)

    def take(self) -> list[tuple[str, list[int]]]:
        calls, self.calls = self.calls, []
        return calls


@pytest.fixture
def world() -> ConsumerWorld:
    return ConsumerWorld(partitions=4, sleep_takes_time=True)


def numbers(consumer: Consumer) -> list[int]:
    return sorted(number for _, number in consumer.assignment())


def fill(world: ConsumerWorld, count: int = 1) -> None:
    for partition in range(4):
        append(world, "a", partition, *(f"{partition}-{number}" for number in range(count)))


def test_queued_commits_of_a_removed_member_fail(world: ConsumerWorld) -> None:
    fill(world, 3)
    one = world.consumer(enable_auto_commit=False)
    settle(world, one)
    errors: list[object] = []
    one.commit_async({"a": {0: 1}}, lambda offsets, error: errors.append(type(error)))
    two = world.consumer(enable_auto_commit=False)
    for _ in range(16):
        world.now_ms += 3_000
        two.poll()
    two.commit({"a": {0: 3}})
    two.close()
    one.poll()
    assert (world.committed()[A0], errors) == (3, [Fenced])
    assert numbers(one) == [0, 1, 2, 3]


def test_unsubscribe_after_a_failed_rejoin(world: ConsumerWorld) -> None:
    consumer = world.consumer(enable_auto_commit=False)
    errors: list[object] = []
    consumer.commit_async({"a": {0: 1}}, lambda offsets, error: errors.append(type(error)))
    world.now_ms += 60_000
    Groups(world.root()).group("g").join("owner")
    with pytest.raises(sparklog.Conflict):
        consumer.poll()
    assert consumer.subscription() == {"a"}
    consumer.unsubscribe()
    assert (consumer.subscription(), errors) == (frozenset(), [Fenced])


def test_partitions_of_a_closed_member_are_reassigned_immediately(world: ConsumerWorld) -> None:
    fill(world, 3)
    noted = [Noted(), Noted()]
    one = world.consumer(listener=noted[0], max_poll_records=1)
    assert len(values(one.poll())) == 1
    assert noted[0].take() == [("assigned", [0, 1, 2, 3])]
    two = world.consumer(listener=noted[1])
    assert two.poll() == []
    assert noted[1].take() == []
    read = settle(world, one, two)
    kept, moved = numbers(one), numbers(two)
    assert (len(kept), sorted(kept + moved)) == (2, [0, 1, 2, 3])
    # Only the revoked and the added partitions are reported, and the read records were committed before.
    assert noted[0].take() == [("revoked", moved)]
    assert noted[1].take() == [("assigned", moved)]
    read += everything(one) + everything(two)
    assert len(read) == len(set(read)) == 11
    two.close()
    assert noted[1].take() == [("revoked", moved)]
    world.now_ms += 3_000
    assert everything(one) == []
    assert noted[0].take() == [("assigned", moved)]
    assert numbers(one) == [0, 1, 2, 3]
    assert {world for world, offset in world.committed().items() if offset == 3} >= {("a", part) for part in moved}


@pytest.mark.parametrize("strategy", ["range", "roundrobin", "sticky"])
def test_eager_members_revoke_all_before_assignment(world: ConsumerWorld, strategy: str) -> None:
    noted = [Noted(), Noted(), Noted()]
    one = world.consumer(listener=noted[0], partition_assignment_strategy=(strategy,))
    one.poll()
    two = world.consumer(listener=noted[1], partition_assignment_strategy=(strategy,))
    settle(world, one, two)
    assert noted[0].take() == [("assigned", [0, 1, 2, 3]), ("revoked", [0, 1, 2, 3]), ("assigned", numbers(one))]
    assert noted[1].take() == [("assigned", numbers(two))]
    before = numbers(one), numbers(two)
    assert sorted(before[0] + before[1]) == [0, 1, 2, 3]
    three = world.consumer(listener=noted[2], partition_assignment_strategy=(strategy,))
    settle(world, one, two, three)
    # As in Kafka, a member that keeps its partitions is also notified.
    for consumer, calls, owned in zip((one, two), noted, before, strict=False):
        assert calls.take() == [("revoked", owned), ("assigned", numbers(consumer))]
    assert noted[2].take() == [("assigned", numbers(three))]
    assert sorted(numbers(one) + numbers(two) + numbers(three)) == [0, 1, 2, 3]


def test_mixed_assignors_are_eager(world: ConsumerWorld) -> None:
    noted = Noted()
    world.consumer(listener=noted, partition_assignment_strategy=("cooperative-sticky", "range")).poll()
    two = world.consumer("b", partition_assignment_strategy=("range",))
    assert noted.take() == [("assigned", [0, 1, 2, 3])]
    with pytest.raises(sparklog.Conflict, match="must have a common assignor"):
        world.consumer(partition_assignment_strategy=("roundrobin",))
    two.close()


def test_an_eager_member_without_partitions_is_notified(world: ConsumerWorld) -> None:
    noted = [Noted(), Noted()]
    world.root().create_topic("one")
    members = [
        world.consumer("one", listener=item, partition_assignment_strategy=("range",), client_id=name)
        for name, item in zip("xy", noted, strict=True)
    ]
    settle(world, *members)
    assert sorted(map(numbers, members)) == [[], [0]]
    assert ("assigned", []) in noted[1].calls + noted[0].calls


def test_a_stopped_member_is_replaced_after_the_session_timeout(world: ConsumerWorld) -> None:
    fill(world)
    noted = Noted()
    one, two = world.consumer(listener=noted), world.consumer()
    settle(world, one, two)
    owned = numbers(one)
    noted.take()
    for _ in range(16):
        world.now_ms += 3_000
        two.poll()
    assert numbers(two) == [0, 1, 2, 3]
    append(world, "a", owned[0], "new")
    assert everything(two) == ["new"]
    two.commit()
    with pytest.raises(Fenced, match=r"was superseded: .* join again"):
        one.commit({"a": {owned[0]: 0}})
    # The member rejoins at the committed offsets of the group.
    assert one.poll() == []
    assert noted.take()[0] == ("lost", owned)
    settle(world, one, two)
    assert noted.take() == [("assigned", numbers(one))]
    assert sorted(numbers(one) + numbers(two)) == [0, 1, 2, 3]
    assert everything(one) == []


def test_a_member_leaves_after_max_poll_interval(world: ConsumerWorld, caplog: pytest.LogCaptureFixture) -> None:
    noted = Noted()
    one = world.consumer(listener=noted, max_poll_interval_ms=20_000)
    one.poll()
    world.now_ms += 20_000
    with caplog.at_level(logging.WARNING):
        one.poll()
    (line,) = (record.getMessage() for record in caplog.records if "max_poll_interval_ms" in record.getMessage())
    assert "leaves group 'g', because it has not polled for 20 s" in line
    one.poll()
    assert noted.take() == [("assigned", [0, 1, 2, 3]), ("lost", [0, 1, 2, 3]), ("assigned", [0, 1, 2, 3])]


def test_a_failed_leave_after_max_poll_interval_is_retried(
    world: ConsumerWorld, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    noted = Noted()
    one = world.consumer(listener=noted, max_poll_interval_ms=20_000)
    one.poll()
    world.now_ms += 20_000
    with caplog.at_level(logging.WARNING):
        with monkeypatch.context() as broken:
            broken.setattr(one.membership, "leave", fail)
            one.poll()
        assert "leaves group" not in caplog.text
        one.poll()
    assert caplog.text.count("leaves group 'g', because it has not polled for 20 s") == 1
    one.poll()
    assert noted.take() == [("assigned", [0, 1, 2, 3]), ("lost", [0, 1, 2, 3]), ("assigned", [0, 1, 2, 3])]


def test_a_member_that_polls_while_the_group_cannot_be_written_does_not_leave(
    world: ConsumerWorld, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    noted = Noted()
    one = world.consumer(listener=noted, max_poll_interval_ms=60_000, session_timeout_ms=45_000)
    one.poll()
    with caplog.at_level(logging.WARNING):
        with monkeypatch.context() as broken:
            broken.setattr(one.membership.group, "write", fail)
            for _ in range(30):
                world.now_ms += 3_000
                one.poll()
        one.poll()
        one.poll()
    assert "could not commit to or read its group" in caplog.text
    assert "leaves group" not in caplog.text
    assert noted.take() == [("assigned", [0, 1, 2, 3])]


def test_poll_logs_that_the_group_cannot_be_read_once_per_minute(
    world: ConsumerWorld, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = world.consumer(session_timeout_ms=600_000)
    one.poll()
    append(world, "a", 0, "1")
    with caplog.at_level(logging.WARNING), monkeypatch.context() as broken:
        broken.setattr(one.membership, "refresh", fail)
        world.now_ms += 3_000
        assert everything(one) == ["1"]
        append(world, "a", 0, "2")
        assert everything(one) == ["2"]
        assert caplog.text.count("could not commit to or read its group") == 1
        world.now_ms += 60_000
        one.poll()
        assert caplog.text.count("could not commit to or read its group") == 2


def test_new_partitions_are_read_although_the_group_cannot_be_written_at_first(
    world: ConsumerWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = world.consumer(enable_auto_commit=False)
    one.poll()
    world.topic("a").alter(partitions=5)
    append(world, "a", 4, "new")
    with monkeypatch.context() as broken:
        broken.setattr(one.membership.group, "write", fail)
        assert one.poll() == []
    assert everything(one) == ["new"]


def test_a_failed_automatic_commit_is_retried(world: ConsumerWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    append(world, "a", 0, "1")
    one = world.consumer()
    assert everything(one) == ["1"]
    world.now_ms += 5_000
    with monkeypatch.context() as broken:
        broken.setattr(one.membership.group, "write", fail)
        one.poll()
    assert world.committed() == {}
    one.poll()
    assert world.committed()[A0] == 1


def test_a_failed_start_of_new_partitions_is_retried(world: ConsumerWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    one, two = world.consumer(), world.consumer()
    settle(world, one, two)
    two.close()
    world.now_ms += 3_000
    with monkeypatch.context() as broken:
        broken.setattr(one.group, "stable", fail)
        one.poll()
        assert len(numbers(one)) == 2
    one.poll()
    assert numbers(one) == [0, 1, 2, 3]


@pytest.mark.parametrize("failing", ["follow", "plan"])
def test_poll_raises_if_records_cannot_be_read_and_continues_at_the_same_positions(
    world: ConsumerWorld, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    """An empty result would look like the end of the topic."""
    one = world.consumer()
    one.poll()
    fill(world, 2)
    with monkeypatch.context() as broken:
        broken.setattr(one._view, failing, fail)
        with pytest.raises(Unavailable, match="the store is unavailable"):
            one.poll()
    assert sorted(everything(one)) == sorted(f"{partition}-{number}" for partition in range(4) for number in range(2))


def test_an_automatic_commit_contains_the_other_topics_if_one_topic_was_deleted(
    world: ConsumerWorld, caplog: pytest.LogCaptureFixture
) -> None:
    """As in Kafka, a topic that is rejected does not affect the others."""
    for topic in ("a", "b", "c"):
        append(world, topic, 0, topic)
    one = world.consumer(["a", "b", "c"])
    assert len(everything(one)) == 3
    world.root().delete_topic("b")
    with pytest.raises(sparklog.NotFound, match="topic 'b'"):
        one.commit()
    assert world.committed() == {}
    world.now_ms += 5_000
    with pytest.raises(sparklog.NotFound, match="topic 'b'"):
        one.poll()
    assert {place for place, offset in world.committed().items() if offset == 1} == {("a", 0), ("c", 0)}
    with caplog.at_level(logging.WARNING):
        one.close()
    assert "failed to commit before leaving its group" in caplog.text


def test_a_member_that_polls_while_a_heartbeat_waits_for_the_lock_does_not_leave(world: ConsumerWorld) -> None:
    one = world.consumer(max_poll_interval_ms=20_000)
    one.poll()
    world.now_ms += 20_000
    member: Any = one._member

    class PolledMeanwhile:
        """A lock that another thread holds until it has recorded a poll."""

        def __enter__(self) -> None:
            member._polled_ms = member._env.boot_ms()

        def __exit__(self, *error: object) -> None:
            pass

    member._lock = PolledMeanwhile()
    member.heartbeat()
    assert len(one.group.state().members) == 1


def test_a_failed_subscribe_clears_the_subscription_even_if_leaving_fails(
    world: ConsumerWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = world.consumer()
    one.unsubscribe()
    with monkeypatch.context() as broken:
        broken.setattr(one._rebalances, "follow", fail)
        broken.setattr(Membership, "leave", fail)
        with pytest.raises(Unavailable):
            one.subscribe("a")
    with pytest.raises(BadRequest, match="has nothing to read"):
        one.poll()


def fail(*given: object, **options: object) -> None:
    raise Unavailable("the store is unavailable")


def test_a_static_member_keeps_its_partitions_after_a_restart(world: ConsumerWorld) -> None:
    noted = [Noted(), Noted()]
    one = world.consumer(listener=noted[0])
    two = world.consumer(group_instance_id="shop-2", listener=noted[1])
    settle(world, one, two)
    owned = numbers(two)
    noted[0].take()
    again = world.consumer(group_instance_id="shop-2")
    assert numbers(again) == owned
    world.now_ms += 3_000
    assert one.poll() == []
    assert noted[0].take() == []
    # The earlier process must stop, because it would otherwise fence the newer process.
    with pytest.raises(Fenced, match="was superseded"):
        two.poll()
    assert noted[1].take() == [("assigned", owned), ("lost", owned)]
    with pytest.raises(BadRequest, match="has nothing to read"):
        two.poll()
    two.close()
    world.now_ms += 3_000
    again.poll()
    assert numbers(again) == owned


def test_the_next_owner_starts_at_offsets_committed_by_on_revoked(world: ConsumerWorld) -> None:
    fill(world, 4)

    class Commits(sparklog.RebalanceListener):
        def on_revoked(self, partitions: frozenset[TopicPartition]) -> None:
            one.commit({"a": {number: 2 for _, number in partitions}})

    one = world.consumer(listener=Commits(), enable_auto_commit=False)
    assert len(everything(one)) == 16
    two = world.consumer()
    read = settle(world, one, two)
    assert sorted(read + everything(two)) == sorted(f"{p}-{n}" for p in numbers(two) for n in (2, 3))
    with pytest.raises(Fenced, match=r"no longer owns .*; call poll to get the new assignment"):
        one.commit({"a": {numbers(two)[0]: 4}})
    # The member must not leave for this reason.
    world.now_ms += 3_000
    assert (one.poll(), len(numbers(one))) == ([], 2)


def test_new_partitions_and_topics_are_assigned(world: ConsumerWorld) -> None:
    one, two = world.consumer("a"), world.consumer(["a", "b"])
    settle(world, one, two)
    world.topic("a").alter(partitions=6)
    append(world, "a", 5, "new")
    read = settle(world, one, two)
    assert read == ["new"]
    both = one.assignment() | two.assignment()
    assert {number for topic, number in both if topic == "a"} == set(range(6))
    assert {number for topic, number in both if topic == "b"} == set(range(4))
    assert all(topic == "a" for topic, _ in one.assignment())
    one.subscribe("c")
    settle(world, one, two)
    assert {topic for topic, _ in one.assignment()} == {"c"}
    assert {number for topic, number in two.assignment() if topic == "a"} == set(range(6))


def test_members_with_a_pattern_are_assigned_new_topics(world: ConsumerWorld) -> None:
    one, two = (world.consumer(None, pattern="x.*", metadata_max_age_ms=60_000) for _ in range(2))
    settle(world, one, two)
    world.root().create_topic("x1", partitions=2)
    append(world, "x1", 0, "first")
    append(world, "x1", 1, "second")
    for _ in range(16):
        world.now_ms += 4_000
        two.poll()
    # `one` has not checked for topics, and its session has expired.
    assert sorted(two.assignment()) == [("x1", 0), ("x1", 1)]
    read = settle(world, one, two)
    assert (len(one.assignment()), len(two.assignment())) == (1, 1)
    assert read == []


def pattern_consumer(world: ConsumerWorld, **how: Any) -> Consumer:
    """Return a consumer of the topics `a` and `ab`, which has read a record of each topic."""
    world.root().create_topic("ab", partitions=1)
    for topic in ("a", "ab"):
        append(world, topic, 0, topic)
    consumer = world.consumer(None, pattern="a.*", **how)
    assert sorted(everything(consumer)) == ["a", "ab"]
    return consumer


def test_a_deleted_topic_of_a_pattern_is_removed_although_its_positions_are_not_committed(world: ConsumerWorld) -> None:
    noted = Noted()
    one = pattern_consumer(world, listener=noted)
    noted.take()
    world.root().delete_topic("ab")
    # An automatic commit is due.
    world.now_ms += 6_000
    append(world, "a", 1, "more")
    assert everything(one) == ["more"]
    assert one.positions() == {"a": {0: 1, 1: 1, 2: 0, 3: 0}}
    world.now_ms += 6_000
    assert everything(one) == []
    assert one.assignment() == {A0, A1, A2, A3}
    assert noted.take() == [("revoked", [0])]
    assert world.committed()[A0] == 1
    # A topic that is created again is read from its start.
    world.root().create_topic("ab", partitions=1)
    append(world, "ab", 0, "new")
    world.now_ms += 300_000
    assert everything(one) == ["new"]
    assert one.positions()["ab"] == {0: 1}


def test_a_failed_write_of_a_changed_subscription_is_retried(
    world: ConsumerWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = pattern_consumer(world, enable_auto_commit=False)
    world.root().delete_topic("ab")
    with monkeypatch.context() as broken:
        broken.setattr(one.membership.group, "write", fail)
        assert one.poll() == []
    assert one.membership.member.topics == ("a", "ab")
    assert everything(one) == []
    assert one.membership.member.topics == ("a",)
    assert one.assignment() == {A0, A1, A2, A3}


def test_a_member_that_rejoins_does_not_subscribe_to_a_deleted_topic(world: ConsumerWorld) -> None:
    one = pattern_consumer(world)
    world.root().delete_topic("ab")
    one.membership.leave()
    world.now_ms += 6_000
    # The record was not committed before the member was removed.
    assert everything(one) == ["a"]
    assert one.assignment() == {A0, A1, A2, A3}
    assert one.membership.member.topics == ("a",)


def test_polling_the_group_costs_a_request_per_heartbeat_interval(world: ConsumerWorld) -> None:
    consumer = world.consumer(heartbeat_interval_ms=5_000, enable_auto_commit=False)
    consumer.poll()
    looks: list[int] = []
    refresh = consumer.group.log.refresh
    consumer.membership.group.log.refresh = lambda: (looks.append(world.now_ms), refresh())[1]  # type: ignore[method-assign]
    consumer.poll(timeout=16)
    assert len(looks) == 3


@pytest.mark.parametrize("seeds", CONSUMERS.few())
def test_records_are_read_once_during_rebalances(seeds: range) -> None:
    for seed in seeds:
        come_and_go(seed)


@pytest.mark.slow
@pytest.mark.parametrize("seeds", CONSUMERS.many())
def test_many_members_join_and_leave(seeds: range) -> None:
    for seed in seeds:
        come_and_go(seed)


def come_and_go(seed: int) -> None:
    chance = random.Random(seed)
    world = ConsumerWorld(partitions=4, sleep_takes_time=True)
    strategy = chance.choice(["cooperative-sticky", "range", "sticky"])
    members: list[Consumer] = []
    sent, read = 0, Counter[str]()
    for _ in range(60):
        world.now_ms += chance.choice((10, 1_000, 3_000))
        action = chance.random()
        if action < 0.12 and len(members) < 4:
            members.append(world.consumer(partition_assignment_strategy=(strategy,), max_poll_records=2))
        elif action < 0.2 and len(members) > 1:
            members.pop(chance.randrange(len(members))).close()
        elif action < 0.5:
            append(world, "a", chance.randrange(4), str(sent))
            sent += 1
        for member in chance.sample(members, len(members)):
            read.update(values(member.poll()))
    if not members:
        members.append(world.consumer(partition_assignment_strategy=(strategy,)))
    for _ in range(8):
        read.update(settle(world, *members))
    assert read == Counter(map(str, range(sent)))
    owned = Counter(part for member in members for part in member.assignment())
    assert owned == Counter({("a", number): 1 for number in range(4)})


class Outages:
    """Makes requests of a process fail while `rate` is not 0. The responses of some of these requests are lost."""

    def __init__(self, world: ConsumerWorld, chance: random.Random) -> None:
        self.rate = 0.0
        self.failed = 0
        self._chance = chance
        self.store = HookedStore(world.store, before=self._fail, after=self._lose)

    def _fail(self, verb: str, key: str) -> None:
        if self._chance.random() < self.rate:
            self.failed += 1
            raise Unavailable(f"{verb} {key}: the store is unavailable")

    def _lose(self, verb: str, key: str, result: object) -> object:
        if self._chance.random() < self.rate / 4:
            self.failed += 1
            raise Unavailable(f"{verb} {key}: the response is lost", is_unknown=True)
        return result


@pytest.mark.parametrize("seeds", CONSUMERS.few())
def test_no_record_is_lost_during_outages(seeds: range) -> None:
    for seed in seeds:
        poll_during_outages(seed)


@pytest.mark.slow
@pytest.mark.parametrize("seeds", CONSUMERS.many())
def test_no_record_is_lost_during_many_outages(seeds: range) -> None:
    for seed in seeds:
        poll_during_outages(seed)


def poll_during_outages(seed: int) -> None:
    """Poll with three members, one of which eventually leaves, and whose stores fail at different times."""
    chance = random.Random(seed)
    world = ConsumerWorld(partitions=4, sleep_takes_time=True)
    strategy = chance.choice(["cooperative-sticky", "range", "sticky"])
    outages = [Outages(world, chance) for _ in range(3)]
    members = [
        world.consumer(store=item.store, partition_assignment_strategy=(strategy,), max_poll_records=2)
        for item in outages
    ]
    sent, read = 0, Counter[str]()
    for step in range(60):
        world.now_ms += chance.choice((10, 1_000, 3_000))
        for item in outages:
            if chance.random() < 0.2:
                item.rate = chance.choice((0.0, 0.05, 0.5, 1.0))
        if step < 40:
            append(world, "a", chance.randrange(4), str(sent))
            sent += 1
        for member in chance.sample(members, len(members)):
            with suppress(Unavailable):
                read.update(values(member.poll()))
    for item in outages:
        item.rate = 0.0
    assert all(item.failed for item in outages)
    members.pop().close()
    for _ in range(8):
        read.update(settle(world, *members))
        for member in members:
            read.update(everything(member))
    assert set(read) == set(map(str, range(sent)))
    owned = Counter(part for member in members for part in member.assignment())
    assert owned == Counter({("a", number): 1 for number in range(4)})
    for member in members:
        member.close()
    ends = world.topic("a").log.read_snapshot().state.log_end.tolist()
    assert world.committed() == {("a", number): end for number, end in enumerate(ends)}


# -- in real time, with the heartbeat thread


@pytest.fixture
def local(tmp_path: Path) -> Iterator[str]:
    root = sparklog.open(tmp_path / "log", create=True)
    root.create_topic("a", partitions=2).append(rows("1", "2"))
    yield str(tmp_path / "log")
    assert not [thread for thread in threading.enumerate() if thread.name == "beats" and not ended(thread)]


def ended(thread: threading.Thread) -> bool:
    thread.join(10)
    return not thread.is_alive()


def until(condition: object, seconds: float = 20) -> None:
    deadline = time.monotonic() + seconds
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_busy_consumer_is_a_member_until_max_poll_interval(local: str) -> None:
    noted = Noted()
    consumer = sparklog.consumer(
        local, "g", topics="a", listener=noted, client_id="beats",
        session_timeout_ms=300, heartbeat_interval_ms=50, max_poll_interval_ms=1_500,
    )  # fmt: skip
    consumer.poll()
    group = Groups(local).group("g")
    begun = time.monotonic()
    until(lambda: group.log.refresh().number > consumer.membership.state.number + 3)
    assert len(group.state().members) == 1
    # The heartbeat thread does this without a call of the program.
    until(lambda: group.state().members == ())
    assert time.monotonic() - begun >= 1.4
    consumer.poll()
    until(lambda: consumer.poll() == [] and consumer.assignment())
    assert noted.take()[-2:] == [("lost", [0, 1]), ("assigned", [0, 1])]
    consumer.close()


def test_the_heartbeat_thread_retries_a_failed_leave(local: str, caplog: pytest.LogCaptureFixture) -> None:
    consumer = sparklog.consumer(
        local, "g", topics="a", client_id="beats",
        session_timeout_ms=300_000, heartbeat_interval_ms=50, max_poll_interval_ms=200,
    )  # fmt: skip
    leave, tries = consumer.membership.leave, 0

    def leave_at_the_second_try() -> None:
        nonlocal tries
        tries += 1
        if tries == 1:
            fail()
        leave()

    consumer.membership.leave = leave_at_the_second_try  # type: ignore[method-assign]
    group = Groups(local).group("g")
    with caplog.at_level(logging.WARNING):
        until(lambda: group.state().members == ())
    assert "a heartbeat failed and will be retried" in caplog.text
    consumer.close()


def test_an_unexpected_error_of_a_heartbeat_is_logged(local: str, caplog: pytest.LogCaptureFixture) -> None:
    consumer = sparklog.consumer(local, "g", topics="a", client_id="beats", heartbeat_interval_ms=20)

    def fail_unexpectedly() -> None:
        raise ZeroDivisionError("a defect")

    with caplog.at_level(logging.ERROR):
        consumer.membership.heartbeat_if_due = fail_unexpectedly  # type: ignore[method-assign]
        until(lambda: not [thread for thread in threading.enumerate() if thread.name == "beats"])
    assert "heartbeats were stopped by an unexpected error" in caplog.text
    # The text of the log depends on the formatter, which Spark replaces.
    assert any(record.exc_info and record.exc_info[0] is ZeroDivisionError for record in caplog.records)
    # `poll` also sends heartbeats, so it raises the error if the error persists.
    with pytest.raises(ZeroDivisionError):
        consumer.poll()
    del consumer.membership.heartbeat_if_due
    consumer.close()


def test_heartbeats_are_stopped_although_a_thread_starts_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    class Member:
        def heartbeat(self) -> None:
            pass

    members = [Member() for _ in range(3)]
    threads = [HeartbeatThread(member, "beats", 60) for member in members]
    started, late = threads[:2], threads[2]
    for thread in started:
        thread.start()
    is_alive = HeartbeatThread.is_alive

    def start_another(thread: HeartbeatThread) -> bool:
        if not is_alive(late):
            late.start()
        return is_alive(thread)

    monkeypatch.setattr(heartbeat_thread, "_STARTED", weakref.WeakSet(started))
    monkeypatch.setattr(HeartbeatThread, "is_alive", start_another)
    heartbeat_thread._stop_all()
    assert [is_alive(thread) for thread in threads] == [False, False, True]
    late.stop()
    late.join(10)


def test_the_exit_timeout_applies_to_all_threads_together(monkeypatch: pytest.MonkeyPatch) -> None:
    now_ms = [100_000]
    timeouts = list[float]()

    def join(thread: HeartbeatThread, timeout_s: float) -> None:
        timeouts.append(timeout_s)
        now_ms[0] += 3_000

    class Member:
        def heartbeat(self) -> None:
            pass

    members = [Member() for _ in range(3)]
    threads = [HeartbeatThread(member, "beats", 60) for member in members]
    monkeypatch.setattr(heartbeat_thread, "_STARTED", weakref.WeakSet(threads))
    monkeypatch.setattr(heartbeat_thread, "SYSTEM", SimpleNamespace(boot_ms=lambda: now_ms[0]))
    monkeypatch.setattr(HeartbeatThread, "is_alive", lambda thread: True)
    monkeypatch.setattr(HeartbeatThread, "join", join)
    heartbeat_thread._stop_all()
    assert timeouts == [5.0, 2.0, 0.0]


def test_a_garbage_collected_consumer_stops_its_thread(local: str) -> None:
    consumer = sparklog.consumer(local, "g", topics="a", client_id="beats", heartbeat_interval_ms=20)
    assert [thread for thread in threading.enumerate() if thread.name == "beats"]
    del consumer


def test_a_forked_process_drops_a_consumer_whose_heartbeat_thread_held_a_lock(local: str) -> None:
    # The child process must not finalize the objects of other tests, because not all libraries support forks.
    gc.collect()
    gc.freeze()
    consumers = [sparklog.consumer(local, "g", topics="a", client_id="beats")]
    member: Any = weakref.ref(consumers[0]._member)

    def drop() -> None:
        consumers.clear()
        gc.collect()
        assert member() is None

    with member()._thread._stopped._cond:
        if (child := os.fork()) == 0:
            in_child(drop, seconds=20)
        status = os.waitpid(child, 0)[1]
    gc.unfreeze()
    assert os.waitstatus_to_exitcode(status) == 0
    consumers[0].close()


def test_a_consumer_cannot_be_used_in_a_forked_process(local: str) -> None:
    consumer = sparklog.consumer(local, "g", topics="a", client_id="beats")

    def work(answers: multiprocessing.SimpleQueue[str]) -> None:
        try:
            consumer.poll()
        except BadRequest as error:
            answers.put(str(error))
        consumer.close()

    context = multiprocessing.get_context("fork")
    answers = context.SimpleQueue()
    process = context.Process(target=work, args=(answers,))
    process.start()
    process.join(60)
    assert "create a new consumer in the forked process" in answers.get()
    assert len(Groups(local).group("g").state().members) == 1
    consumer.close()


def test_a_wall_clock_that_is_set_ahead_does_not_remove_an_active_member() -> None:
    world = World()
    world.root().create_topic("t")
    consumer = sparklog.consumer(world.root(), "g", topics="t")
    consumer.poll(timeout=0)
    world.set_wall_clock(301_000)
    consumer._member.heartbeat()
    assert [member.id for member in Group(world.root(), "g").log.refresh().members] == [
        consumer.group_metadata().member_id
    ]
