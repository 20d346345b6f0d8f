"""Groups of a root: members and fencing, operations of administrators, deleted topics, and offsets of transactions."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import sparklog
from sparklog.errors import BadRequest, Conflict, Corrupt, Fenced, NotFound, Unavailable
from sparklog.groups.group import Group
from sparklog.groups.group_state import CommittedOffset, OffsetAndMetadata
from sparklog.groups.lag import Groups
from sparklog.log.journal.names import checkpoint_key, commit_key, groups_prefix
from sparklog.testing.faulty_store import Fault, FaultKind, FaultyStore, Script
from sparklog.testing.world import START_MS
from sparklog.testing.wrapper_stores import CountingStore
from sparklog.transactions.completion import prune_recorded
from sparklog.transactions.listing import describe_transaction
from sparklog.transactions.producer import TransactionalProducer
from tests.support.name_caching_store import NameCachingStore
from tests.support.read_only import read_only
from tests.support.records import rows
from tests.support.topics_world import TopicsWorld


def group(world: TopicsWorld, name: str = "g") -> Group:
    """Return the group as another process sees it."""
    return Groups(world.root()).group(name)


def offsets(found: Group) -> dict[tuple[str, int], int]:
    return {topic_partition: item.offset for topic_partition, item in found.committed().items()}


def test_committed_offsets_are_visible_to_other_processes() -> None:
    world = TopicsWorld(partitions=3)
    member = group(world).join("one")
    member.commit({"a": {0: 5, 2: OffsetAndMetadata(7, "note", 3)}, "b": {}})
    member.commit({"b": {1: 9}, "a": {2: 8}})
    found = group(world).committed()
    assert {topic_partition: item.offset for topic_partition, item in found.items()} == {
        ("a", 0): 5,
        ("a", 2): 8,
        ("b", 1): 9,
    }
    assert found["a", 0] == CommittedOffset("a", world.topic("a").log.state().topic_id, 0, 5, None, "", START_MS)
    member.commit({"a": {2: OffsetAndMetadata(8, "note", 3)}})
    assert (group(world).committed()["a", 2].metadata, group(world).committed()["a", 2].leader_epoch) == ("note", 3)
    member.commit({"a": {2: found["a", 2]}})
    assert group(world).committed()["a", 2] == found["a", 2]


def test_groups_are_listed_and_described() -> None:
    world = TopicsWorld()
    assert Groups(world.root()).names() == []
    assert group(world).description().state == "Dead"
    for name in ("z", "a/b", "x" * 300):
        group(world, name).join("one", session_timeout_ms=10_000).commit({"a": {0: 1}})
    group(world, "a/b").join("two").leave()
    assert Groups(world.root()).names() == ["a/b", "x" * 300, "z"]
    found = group(world, "z").description()
    assert (found.state, found.generation, found.instance, found.session_timeout_ms) == ("Stable", 1, "one", 10_000)
    world.now_ms += 10_000
    assert (group(world, "z").description().state, group(world, "z").description().instance) == ("Empty", None)
    assert (group(world, "a/b").description().state, group(world, "a/b").description().generation) == ("Empty", 2)
    group(world, "z").delete()
    assert Groups(world.root()).names() == ["a/b", "x" * 300]
    assert (group(world, "z").description().state, offsets(group(world, "z"))) == ("Dead", {})


def test_a_newer_member_fences_the_older_member() -> None:
    world = TopicsWorld()
    old = group(world).join("one")
    old.commit({"a": {0: 5}})
    new = group(world).join("two")
    for late in (lambda: old.commit({"a": {0: 9}}), old.heartbeat):
        with pytest.raises(Fenced, match=r"generation 1 \(one\) of group 'g' was superseded"):
            late()
    old.leave()
    new.heartbeat()
    assert (new.generation, offsets(group(world))) == (2, {("a", 0): 5})


def test_an_owner_continues_its_generation_only_if_no_other_owner_has_joined_since() -> None:
    """A fenced server must not continue its assignment, because committed offsets would decrease."""
    world = TopicsWorld()
    first = group(world).own("server")
    second = group(world).own("server", previous=first.metadata)
    assert second.generation == 2
    group(world).join("query")
    before = world.store.snapshot()
    with pytest.raises(Fenced, match=r"generation 2 \(server\) of group 'g' was superseded"):
        group(world).own("server", previous=second.metadata)
    assert world.store.snapshot() == before
    assert group(world).own("server").generation == 4


def test_a_member_with_the_same_name_gets_a_new_generation() -> None:
    world = TopicsWorld()
    old, new = group(world).join("one"), group(world).join("one")
    new.commit({"a": {0: 5}})
    with pytest.raises(Fenced):
        old.commit({"a": {0: 1}})


def test_administrators_cannot_change_an_active_group() -> None:
    world = TopicsWorld(partitions=2)
    member = group(world).join("one", session_timeout_ms=10_000)
    member.commit({"a": {0: 5, 1: 5}})
    world.now_ms += 9_000
    member.heartbeat()
    world.now_ms += 9_000
    for refused in (
        lambda: group(world).alter({"a": {0: 0}}),
        lambda: group(world).alter({"a": {0: 0}}, dry_run=True),
        lambda: group(world).delete_offsets({"a": {0}}),
        lambda: group(world).delete(),
        lambda: group(world).delete(dry_run=True),
    ):
        with pytest.raises(
            Conflict, match=r"is active \(Stable, member one\): stop its consumer, or wait 1 s if it has"
        ):
            refused()
    assert offsets(group(world)) == {("a", 0): 5, ("a", 1): 5}
    world.now_ms += 1_000
    changed = group(world).alter({"a": {0: 0}}, dry_run=True)
    assert {topic_partition: item.offset for topic_partition, item in changed.items()} == {("a", 0): 0}
    assert offsets(group(world)) == {("a", 0): 5, ("a", 1): 5}
    group(world).alter({"a": {0: 0}})
    assert offsets(group(world)) == {("a", 0): 0, ("a", 1): 5}
    # The consumer had only been suspended.
    with pytest.raises(Fenced, match="the group is at generation 2; stop"):
        member.commit({"a": {0: 6}})
    group(world).delete_offsets({"a": {1}}, dry_run=True)
    group(world).delete_offsets({"a": {1}})
    assert offsets(group(world)) == {("a", 0): 0}


def test_a_forced_reset_fences_the_active_member_and_empties_the_group() -> None:
    world = TopicsWorld()
    member = group(world).join("one", session_timeout_ms=300_000)
    member.commit({"a": {0: 5}})
    world.now_ms += 48_500
    with pytest.raises(Conflict, match="or wait 252 s if it has already stopped; `sparklog groups reset --force`"):
        group(world).alter({"a": {0: 0}})
    group(world).alter({"a": {0: 0}}, force=True, dry_run=True)
    member.heartbeat()
    group(world).alter({"a": {0: 0}}, force=True)
    assert (offsets(group(world)), group(world).description().state) == ({("a", 0): 0}, "Empty")
    with pytest.raises(Fenced, match="the group is at generation 2; stop"):
        member.commit({"a": {0: 6}})
    group(world).delete()


def test_leaving_empties_the_group_immediately() -> None:
    world = TopicsWorld()
    member = group(world).join("one")
    member.commit({"a": {0: 5}})
    member.leave()
    assert group(world).description().state == "Empty"
    group(world).alter({"a": {0: 1}})
    assert offsets(group(world)) == {("a", 0): 1}


def test_wrong_input_changes_nothing() -> None:
    world = TopicsWorld(partitions=2)
    member = group(world).join("one")
    for wrong, says in (
        ({"a": {2: 0}}, "expected offsets of partitions 0 to 1 of topic 'a', found 0 of partition 2"),
        ({"a": {0: -1}}, "found -1 of partition 0"),
        ({"a": {0: True}}, "found True of partition 0"),
        ({"a": {0: 2**63}}, "expected offsets"),
        ({"a": {0: OffsetAndMetadata(1, "ö" * 2100)}}, "has 4200 bytes; the maximum is 4096"),
        ({"a": {0: "1"}}, "found '1' of partition 0"),
        ({"a": {0: None}}, "found None of partition 0"),
        ({"a": {"0": 1}}, "found 1 of partition '0'"),
        ({"a": {True: 1}}, "found 1 of partition True"),
        (
            {"a": {0: OffsetAndMetadata(1, leader_epoch=-5)}},
            "leader epoch of a-0 must be 0 to 2147483647 or None, found -5",
        ),
        ({"a": {0: OffsetAndMetadata(1, "\ud800")}}, "metadata of a-0 must be a string that can be encoded as UTF-8"),
        ({"a": {0: OffsetAndMetadata(1, 7)}}, "metadata of a-0 must be a string"),  # type: ignore[arg-type]
        ({"a": [1]}, "offsets"),
        (["a"], "offsets"),
    ):
        with pytest.raises(BadRequest, match=says):
            member.commit(wrong)  # type: ignore[arg-type]
        with pytest.raises(BadRequest, match=says):
            group(world, "h").alter(wrong)  # type: ignore[arg-type]
    with pytest.raises(NotFound, match="topic 'nope' does not exist"):
        member.commit({"a": {0: 1}, "nope": {0: 1}})
    assert offsets(group(world)) == {}
    for nobody in (lambda: group(world, "h").delete(), lambda: group(world, "h").delete_offsets({"a": {0}})):
        with pytest.raises(NotFound, match="group 'h' does not exist"):
            nobody()
    for timeout in (0, 86_400_001, True):
        with pytest.raises(BadRequest, match=r"session.timeout.ms must be 1 to 86400000"):
            group(world, "h").join(session_timeout_ms=timeout)
    with pytest.raises(BadRequest, match="a group id must have 1 to 1024 characters"):
        group(world, "")
    assert Groups(world.root()).names() == ["g"]


def test_offsets_may_be_numpy_integers() -> None:
    world = TopicsWorld(partitions=2)
    at = np.array([3, 4])
    group(world).join("one").commit({"a": {np.int32(1): at[0], 0: OffsetAndMetadata(at[1])}})  # type: ignore[dict-item]
    assert offsets(group(world)) == {("a", 0): 4, ("a", 1): 3}


def test_offsets_of_a_recreated_topic_are_ignored() -> None:
    world = TopicsWorld()
    member = group(world).join("one")
    member.topic_ids["a"] = world.topic("a").log.state().topic_id
    member.commit({"a": {0: 5}, "b": {0: 6}})
    world.root().delete_topic("a")
    assert offsets(group(world)) == {("b", 0): 6}
    world.root().create_topic("a")
    assert offsets(group(world)) == {("b", 0): 6}
    # The member read the deleted topic, so its offsets are invalid in the new topic.
    with pytest.raises(Conflict, match="topic a was deleted and recreated, so offsets of the old topic are invalid"):
        member.commit({"a": {0: 9}})
    assert offsets(group(world)) == {("b", 0): 6}
    group(world).join("two").commit({"a": {0: 1}})
    assert offsets(group(world)) == {("a", 0): 1, ("b", 0): 6}


def test_restoring_keeps_times_and_is_idempotent() -> None:
    world = TopicsWorld()
    topic_id = world.topic("a").log.state().topic_id
    old = CommittedOffset("a", topic_id, 0, 5, 2, "m", START_MS - 99)
    group(world).restore([old], generation=4)
    group(world).restore([old], generation=4)
    assert group(world).committed() == {("a", 0): old}
    assert group(world).log.current().number == 0
    member = group(world).join("one")
    assert member.generation == 5
    member.commit({"a": {0: 7}})
    group(world).restore([replace(old, offset=1)])
    assert offsets(group(world)) == {("a", 0): 7}
    member.commit({"a": {0: 8}})


def test_races_lost_answers_and_damage() -> None:
    world = TopicsWorld()
    first, second = group(world), group(world)
    one = first.join("one")
    second.state()
    one.commit({"a": {0: 1}})
    two = second.join("two")
    with pytest.raises(Fenced):
        one.commit({"a": {0: 2}})
    store = FaultyStore(world.store, Script({("create:commit", 0): Fault(FaultKind.ERROR_AFTER)}), lambda seconds: None)
    three = Groups(world.root(store)).group("g").join("three")
    assert three.generation == 3
    assert group(world).log.refresh().number == 3
    with pytest.raises(Fenced):
        two.heartbeat()
    key = commit_key(groups_prefix("g"), 2)
    world.store.replace(key, world.store.get(key).replace(b"two", b"owt"))  # type: ignore[union-attr]
    with pytest.raises(Corrupt, match="does not match its CRC-32C"):
        group(world).committed()


def test_requests_of_an_offset_commit() -> None:
    world = TopicsWorld()
    store = CountingStore(world.store)
    member = Groups(world.root(store)).group("g").join("one")
    member.commit({"a": {0: 1}})
    store.reset()
    member.commit({"a": {0: 2}})
    # These requests check the topic, the root and the previous entry, and create the entry.
    store.expect(get_root=1, get_commit=2, create=1)
    assert store.by_kind["create", "commit"] == 1
    store.reset()
    assert member.group.committed()["a", 0].offset == 2
    # A poll for a newer entry, and a poll of the topic.
    store.expect(get=2, create=0, list=0, stat=0)
    root = world.root(store)
    Groups(root).group("g").committed()
    store.reset()
    member.heartbeat()
    store.expect(get_root=1, get_commit=1, create=1)


def test_many_threads_join_and_commit(tmp_path: Path) -> None:
    sparklog.open(tmp_path / "log", create=True).create_topic("a")
    done: list[tuple[int, int]] = []
    fenced: list[int] = []

    def work(worker: int) -> None:
        found = Groups(str(tmp_path / "log")).group("g")
        for n in range(8):
            member = found.join(f"{worker}")
            try:
                for step in range(2):
                    member.commit({"a": {0: 1000 * worker + 10 * n + step}})
                    done.append((member.generation, 1000 * worker + 10 * n + step))
            except Fenced:
                fenced.append(member.generation)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))
    state = Groups(str(tmp_path / "log")).group("g").state()
    assert state.generation == 32
    # Generations end in order: the writer that was acknowledged last had the highest generation of all writers.
    assert state.offsets[0].offset == (max(done)[1],)
    assert len({generation for generation, _ in done} | set(fenced)) == 32
    assert state.number + 1 == 32 + len(done)


# -- offsets of transactions


def begun(world: TopicsWorld, name: str = "job") -> TransactionalProducer:
    return world.producer(name)


def test_offsets_are_committed_exactly_if_the_transaction_is_committed() -> None:
    world = TopicsWorld()
    member = group(world).join("one")
    producer = begun(world)
    with producer.begin() as transaction:
        transaction.append("b", rows("1"))
        transaction.send_offsets(member, {"a": {0: 41}})
        transaction.send_offsets(member, {"a": {0: 42}, "c": {0: 1}})
        assert offsets(group(world)) == {}
    assert (offsets(group(world)), world.values("b")) == ({("a", 0): 42, ("c", 0): 1}, ["1"])
    aborted = producer.begin()
    aborted.send_offsets(member, {"a": {0: 99}})
    aborted._prepare()
    assert group(world).description().pending == (("job", 1, "a", 0, 99),)
    assert offsets(group(world))["a", 0] == 42
    aborted.abort()
    assert (group(world).description().pending, offsets(group(world))["a", 0]) == ((), 42)
    only = producer.begin()
    only.send_offsets(member.metadata, {"a": {0: 43}})
    assert only.commit().n == 2
    assert offsets(group(world))["a", 0] == 43
    for wrong in ({"a": {5: 1}}, {"a": {0: -1}}):
        with pytest.raises(BadRequest, match="expected offsets of partitions 0 to 0 of topic 'a'"):
            producer.begin().send_offsets("g", wrong)
        assert producer._open is not None
        producer._open.abort()


def test_sending_no_offsets_creates_no_group() -> None:
    world = TopicsWorld()
    transaction = world.producer().begin()
    for nothing in ({}, {"a": {}}):
        transaction.send_offsets("g", nothing)
    assert transaction.commit().n is None
    assert Groups(world.root()).names() == []


def test_later_entries_record_outcomes_and_the_commit_is_pruned() -> None:
    world = TopicsWorld()
    root = world.root()
    member = Groups(root).group("g").join("one")
    producer = sparklog.transactional(root, "job")
    for n in range(3):
        transaction = producer.begin()
        transaction.send_offsets(member, {"a": {0: n}})
        transaction.commit()
        assert [item.n for item in member.group.log.current().pending] == [n]
        # The entry that prepared this transaction recorded the outcome of the previous one.
        assert [item.n for item in producer.log.current().commits] == [n]
    member.heartbeat()
    assert member.group.log.current().pending == ()
    assert offsets(group(world)) == {("a", 0): 2}
    with producer.begin() as transaction:
        transaction.append("b", rows("1"))
    assert [item.n for item in producer.log.current().commits] == [3]


def test_a_pruned_commit_is_not_an_abort() -> None:
    world = TopicsWorld()
    member = group(world).join("one")
    sleeper = group(world)
    producer = begun(world)
    with producer.begin() as transaction:
        transaction.send_offsets(member, {"a": {0: 5}})
    assert [item.n for item in sleeper.log.refresh().pending] == [0]
    member.heartbeat()
    with producer.begin() as transaction:
        transaction.append("b", rows("1"))
    root = producer.root
    Groups(root).group("g").state()
    prune_recorded(root, producer.log)
    assert [item.n for item in producer.log.current().commits] == [1]
    # The state of the suspended process is older than the decisions that it reads.
    real = sleeper.log.refresh
    stale = [sleeper.log.current()]
    sleeper.log.refresh = lambda: stale.pop() if stale else real()  # type: ignore[method-assign]
    assert offsets(sleeper) == {("a", 0): 5}


def test_offsets_with_an_unclear_outcome_are_pending_while_a_cache_may_hide_it() -> None:
    """This host does not see that the group has recorded the COMMIT, and no other entry refers to the COMMIT."""
    world = TopicsWorld()
    member = group(world).join("one")
    sleeper = Groups(world.root(NameCachingStore(world.store, lambda: world.now_ms, name_ms=60_000))).group("g")
    producer = begun(world)
    with producer.begin() as transaction:
        transaction.send_offsets(member, {"a": {0: 5}})
    assert sleeper.state().offsets[0].offset == (5,)
    member.heartbeat()
    for value in ("1", "2"):
        with producer.begin() as transaction:
            transaction.append("b", rows(value))
    prune_recorded(producer.root, producer.log)
    assert [item.n for item in producer.log.current().commits] == [2]
    newest = producer.log.current().number
    world.store.create(checkpoint_key(producer.log.prefix, newest), world.store.get(producer.log.key(newest)))
    for number in range(newest):
        world.store.delete(producer.log.key(number))
    sleeper.root.engine.decisions.drop(producer.id)
    assert [item.n for item in sleeper.state().pending] == [0]
    world.now_ms += 59_999
    assert [item.n for item in sleeper.state().pending] == [0]
    world.now_ms += 1
    assert (sleeper.state().pending, sleeper.state().offsets[0].offset) == ((), (5,))


def test_a_newer_member_aborts_the_prepares_of_the_older_member() -> None:
    world = TopicsWorld()
    old = group(world).join("one")
    producer = begun(world)
    transaction = producer.begin()
    transaction.append("b", rows("1"))
    transaction.send_offsets(old, {"a": {0: 5}})
    transaction._prepare()
    new = group(world).join("two")
    assert new.group.stable().offsets == ()
    with pytest.raises(Fenced, match="aborted by a newer member of its consumer group"):
        transaction.commit()
    assert (offsets(group(world)), world.values("b")) == ({}, [])
    late = producer.begin()
    late.append("b", rows("2"))
    late.send_offsets(old, {"a": {0: 6}})
    with pytest.raises(Fenced, match=r"generation 1 \(one\) of group 'g' was superseded"):
        late.commit()
    assert (offsets(group(world)), world.values("b"), world.undecided("b")) == ({}, [], [0])
    mixed = producer.begin()
    mixed.send_offsets(old, {"a": {0: 6}})
    mixed.send_offsets("g", {"b": {0: 1}})
    with pytest.raises(Fenced, match=r"generation 1 \(one\) of group 'g' was superseded"):
        mixed.commit()


def test_readers_wait_for_offsets_that_no_member_sent() -> None:
    world = TopicsWorld()
    transaction = begun(world).begin()
    transaction.send_offsets("g", {"a": {0: 5}})
    transaction._prepare()
    member = group(world).join("one")
    assert member.group.log.current().pending
    with pytest.raises(Unavailable, match="are pending in the undecided transaction 0 of 'job'"):
        Group(world.root(), "g").stable(timeout_ms=-1)
    transaction.commit()
    assert offsets(group(world)) == {("a", 0): 5}
    assert group(world).stable().pending == ()
    lost = begun(world, "lost").begin()
    lost.send_offsets("g", {"a": {0: 9}})
    lost._prepare()
    world.now_ms += 60_001
    assert group(world).stable().offsets[0].offset == (5,)
    with pytest.raises(Conflict, match=r"transaction.timeout.ms passed"):
        lost.commit()


def test_a_reset_after_a_prepare_takes_precedence() -> None:
    world = TopicsWorld(partitions=2)
    transaction = begun(world).begin()
    transaction.send_offsets("g", {"a": {0: 5, 1: 5}})
    transaction._prepare()
    group(world).alter({"a": {0: 1}})
    transaction.commit()
    assert offsets(group(world)) == {("a", 0): 1, ("a", 1): 5}


def test_jobs_that_share_a_transaction_can_send_offsets() -> None:
    world = TopicsWorld()
    owner = begun(world).begin()
    owner.append("b", rows("owner"))
    for offset in (4, 5):
        joined = begun(world).join(owner.n, "part-1")
        joined.send_offsets("g", {"a": {0: offset}})
        joined.prepare()
    owner.send_offsets("h", {"c": {0: 9}})
    owner.commit()
    assert (offsets(group(world)), offsets(group(world, "h"))) == ({("a", 0): 5}, {("c", 0): 9})


def test_damaged_decisions_leave_offsets_pending() -> None:
    world = TopicsWorld()
    with begun(world).begin() as transaction:
        transaction.send_offsets("g", {"a": {0: 5}})
    key = commit_key("_transactions/job", 1)
    data = world.store.get(key)
    world.store.replace(key, data.replace(b"commit", b"c0mmit"))  # type: ignore[union-attr]
    assert (offsets(group(world)), len(group(world).description().pending)) == ({}, 1)
    group(world).join("one").heartbeat()
    world.store.replace(key, data)  # type: ignore[union-attr]
    assert offsets(group(world)) == {("a", 0): 5}


def test_on_a_local_disk(tmp_path: Path) -> None:
    root = sparklog.open(tmp_path / "log", create=True)
    root.create_topic("a", partitions=2)
    member = Groups(root).group("team/one").join()
    member.commit({"a": {0: 5, 1: 7}})
    assert offsets(Groups(str(tmp_path / "log")).group("team/one")) == {("a", 0): 5, ("a", 1): 7}
    assert Groups(root).names() == ["team/one"]
    assert (tmp_path / "log/_groups/team%2Fone/_log/00000000000000000001.json").exists()
    assert root.topics() == ["a"]


def test_groups_can_be_described_but_not_changed_on_a_read_only_mount() -> None:
    world = TopicsWorld()
    member = group(world).join("one", session_timeout_ms=10_000)
    member.commit({"a": {0: 1}})
    transaction = world.producer("job").begin()
    transaction.send_offsets("h", {"a": {0: 2}})
    transaction.prepare()
    world.now_ms += 9_000
    root = world.root(read_only(world.store))
    found = Groups(root).group("g")
    assert (found.description().state, found.description().instance) == ("Stable", "one")
    assert [item.state for item in Groups(root).descriptions(["g"], None).values()] == ["Stable"]
    standing = describe_transaction(root, "job", [])
    assert [item.age_ms for item in standing.pending] == [9_000]
    with pytest.raises(Conflict, match="is active"):
        found.delete(dry_run=True)
    with pytest.raises(Unavailable):
        found.delete()
    world.now_ms += 1_000
    assert found.description().state == "Empty"
