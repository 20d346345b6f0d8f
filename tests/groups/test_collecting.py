"""Maintenance of groups: it expires offsets, records outcomes, and deletes entries that are no longer needed."""

from __future__ import annotations

import json

import pytest

from sparklog.errors import Corrupt, Fenced, SparklogError
from sparklog.groups.collecting import collect_groups
from sparklog.groups.group import Group
from sparklog.groups.group_state import CommittedOffset
from sparklog.groups.lag import Groups
from sparklog.limits import Limits
from sparklog.log.journal.names import commit_key, groups_prefix
from sparklog.maintenance.properties import settings_of
from sparklog.maintenance.report import document
from sparklog.maintenance.work_items import Settings
from sparklog.retention.retain import retain_root, summary
from sparklog.storage.retries import SETTLE_MS
from sparklog.testing.world import START_MS
from sparklog.transactions.completion import collect, prune_recorded
from tests.support.hiding_store import HidingStore
from tests.support.records import rows
from tests.support.topics_world import TopicsWorld

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
WEEK_MS = 7 * DAY_MS


def group(world: TopicsWorld, name: str = "g") -> Group:
    return Groups(world.root()).group(name)


def offsets(world: TopicsWorld, name: str = "g") -> dict[tuple[str, int], int]:
    return {topic_partition: item.offset for topic_partition, item in group(world, name).committed().items()}


def test_offsets_expire_a_week_after_the_group_became_empty() -> None:
    world = TopicsWorld()
    member = group(world).join("one", session_timeout_ms=60_000)
    member.commit({"a": {0: 5}})
    group(world, "left").join("one", session_timeout_ms=60_000).leave()
    group(world, "reset").alter({"a": {0: 7}})
    world.now_ms += WEEK_MS - 1
    assert collect_groups(world.root(), retention_ms=WEEK_MS).expired == ()
    world.now_ms += 1
    assert collect_groups(world.root(), retention_ms=WEEK_MS, dry_run=True).expired == ("left", "reset")
    assert offsets(world, "reset") == {("a", 0): 7}
    assert collect_groups(world.root(), retention_ms=WEEK_MS).expired == ("left", "reset")
    assert Groups(world.root()).names() == ["g"]
    world.now_ms += 59_999
    assert collect_groups(world.root(), retention_ms=WEEK_MS).expired == ()
    world.now_ms += 1
    assert collect_groups(world.root(), retention_ms=WEEK_MS).expired == ("g",)
    assert (offsets(world), Groups(world.root()).names()) == ({}, [])
    assert collect_groups(world.root(), retention_ms=WEEK_MS).expired == ()
    # The member had only been suspended for a week.
    with pytest.raises(Fenced, match="the group was deleted"):
        member.commit({"a": {0: 6}})


def test_heartbeats_keep_offsets_and_retention_can_be_set() -> None:
    world = TopicsWorld()
    member = group(world).join("one", session_timeout_ms=1)
    member.commit({"a": {0: 5}})
    for _ in range(3):
        world.now_ms += WEEK_MS - 2
        member.heartbeat()
        assert collect_groups(world.root(), retention_ms=WEEK_MS).expired == ()
    world.now_ms += DAY_MS
    assert collect_groups(world.root(), retention_ms=DAY_MS).expired == ()
    world.now_ms += 1
    assert collect_groups(world.root(), retention_ms=DAY_MS).expired == ("g",)


def test_restored_old_offsets_are_kept_for_a_week() -> None:
    world = TopicsWorld()
    topic_id = world.topic("a").log.state().topic_id
    group(world).restore([CommittedOffset("a", topic_id, 0, 5, None, "", START_MS - 90 * DAY_MS)])
    world.now_ms += DAY_MS
    assert collect_groups(world.root(), retention_ms=WEEK_MS).expired == ()
    assert offsets(world) == {("a", 0): 5}


def test_offsets_of_deleted_topics_expire_immediately_and_of_unknown_topics_are_kept() -> None:
    world = TopicsWorld()
    member = group(world).join("one")
    member.commit({"a": {0: 5}, "b": {0: 6}, "c": {0: 7}})
    group(world).restore([CommittedOffset("imported-later", "some-id", 0, 9, None, "", START_MS)])
    world.root().delete_topic("a")
    world.root().delete_topic("b")
    world.root().create_topic("b")
    world.now_ms += SETTLE_MS
    assert collect_groups(world.root(), retention_ms=WEEK_MS).expired == ("g",)
    left = [(item.topic, item.offset) for item in group(world).log.refresh().offsets]
    assert left == [("c", (7,)), ("imported-later", (9,))]
    member.commit({"c": {0: 8}})
    assert collect_groups(world.root(), retention_ms=WEEK_MS).expired == ()


def test_offsets_of_a_topic_that_a_cache_hides_are_kept() -> None:
    """The caches of the host lack the new topic, but it reads the offsets that the group has committed since."""
    world = TopicsWorld()
    member = group(world).join("one")
    member.commit({"a": {0: 5}, "b": {0: 6}})
    last = world.topic("b").log.state().version
    world.root().delete_topic("b")
    world.root().create_topic("b")
    new = group(world).join("two")
    new.commit({"b": {0: 0}})
    for seen in (last, last + 1):
        hidden = {commit_key("b", version) for version in range(seen + 1, seen + 9)}
        stale = HidingStore(world.store, hidden, lambda seconds: None)
        assert collect_groups(world.root(stale), retention_ms=WEEK_MS).expired == (() if seen == last else ("g",))
        assert offsets(world) == {("a", 0): 5, ("b", 0): 0}
    world.now_ms += SETTLE_MS
    collect_groups(world.root(), retention_ms=WEEK_MS)
    assert offsets(world) == {("a", 0): 5, ("b", 0): 0}
    assert len(group(world).log.refresh().offsets) == 2


def test_outcomes_are_recorded_in_idle_groups_and_the_decisions_pruned() -> None:
    world = TopicsWorld()
    producer = world.producer()
    for n in range(3):
        with producer.begin() as transaction:
            transaction.send_offsets(f"g{n}", {"a": {0: n}})
    lost = world.producer("lost").begin()
    lost.send_offsets("g0", {"a": {0: 99}})
    lost._prepare()
    # Preparing another transaction has recorded the outcome of the first one.
    assert [[item.txn for item in group(world, f"g{n}").log.refresh().pending] for n in range(3)] == [
        ["lost"],
        ["job"],
        ["job"],
    ]
    world.now_ms += 60_001
    root = world.root()
    assert collect_groups(root, retention_ms=WEEK_MS).groups == 3
    assert [len(group(world, f"g{n}").log.refresh().pending) for n in range(3)] == [0, 0, 0]
    assert [offsets(world, f"g{n}") for n in range(3)] == [{("a", 0): n} for n in range(3)]
    assert [item.n for item in producer.log.refresh().commits] == [0, 1, 2]
    assert collect(root).forgotten == 2
    assert [offsets(world, f"g{n}") for n in range(3)] == [{("a", 0): n} for n in range(3)]


def test_a_commit_is_kept_until_its_groups_have_recorded_it() -> None:
    world = TopicsWorld()
    producer = world.producer()
    with producer.begin() as transaction:
        transaction.send_offsets("g", {"a": {0: 5}})
        transaction.append("b", rows("1"))
    with producer.begin() as transaction:
        transaction.append("b", rows("2"))
    world.topic("b").append(rows("3"))
    assert prune_recorded(world.root(), world.root().engine.decisions.log("job")) == 0
    group(world).resolve_pending()
    assert prune_recorded(world.root(), world.root().engine.decisions.log("job")) == 1
    assert offsets(world) == {("a", 0): 5}


def entries(world: TopicsWorld, name: str = "g") -> list[int]:
    """Return the numbers of the existing entries."""
    return [int(info.key[-25:-5]) for info in world.store.list(f"{groups_prefix(name)}/_log/0")]


def test_entries_below_the_second_latest_checkpoint_are_deleted_after_a_day() -> None:
    world = TopicsWorld(limits=Limits(checkpoint_entries=4))
    member = group(world).join("one")
    for offset in range(13):
        member.commit({"a": {0: offset}})
    assert group(world).log.checkpoints() == [3, 7, 11]
    world.now_ms += DAY_MS + HOUR_MS - 1
    assert collect_groups(world.root(), retention_ms=WEEK_MS).objects == 0
    world.now_ms += 1
    member.commit({"a": {0: 99}})
    dry = collect_groups(world.root(), retention_ms=WEEK_MS, dry_run=True)
    found = collect_groups(world.root(), retention_ms=WEEK_MS)
    assert (found.objects, found.nbytes) == (dry.objects, dry.nbytes) == (8, found.nbytes)
    assert entries(world) == list(range(7, 15))
    assert group(world).log.checkpoints() == [7, 11]
    assert offsets(world) == {("a", 0): 99}
    member.commit({"a": {0: 100}})
    assert offsets(world) == {("a", 0): 100}


def test_an_entry_that_was_the_latest_within_the_day_is_kept() -> None:
    world = TopicsWorld(limits=Limits(checkpoint_entries=4))
    member = group(world).join("one")
    for offset in range(10):
        member.commit({"a": {0: offset}})
    world.now_ms += 2 * DAY_MS
    for offset in range(10):
        member.commit({"a": {0: offset}})
    assert group(world).log.checkpoints() == [3, 7, 11, 15, 19]
    # Ten seconds ago, entry 10 was the latest entry of the group, although it is two days old.
    world.now_ms += 10_000
    collect_groups(world.root(), retention_ms=WEEK_MS)
    assert entries(world)[0] == 10
    world.now_ms += DAY_MS + HOUR_MS
    collect_groups(world.root(), retention_ms=WEEK_MS)
    assert entries(world)[0] == 15


def test_the_entry_that_determines_expiry_is_kept() -> None:
    """Only maintenance has written entries since. Based on the age of the offsets, they would expire too early."""
    world = TopicsWorld(limits=Limits(checkpoint_entries=2))
    member = group(world).join("one", session_timeout_ms=1)
    names = [f"old{number}" for number in range(6)]
    for name in names:
        world.root().create_topic(name)
    member.commit({name: {0: 0} for name in ["a", *names]})
    world.now_ms += 5 * DAY_MS
    member.heartbeat()
    for name in names:
        world.root().delete_topic(name)
        assert collect_groups(world.root(), retention_ms=WEEK_MS).expired == ("g",)
    assert group(world).log.checkpoints() == [1, 3, 5, 7]
    for _ in range(6):
        world.now_ms += DAY_MS
        assert collect_groups(world.root(), retention_ms=WEEK_MS).expired == ()
    assert entries(world)[0] == 2
    assert offsets(world) == {("a", 0): 0}
    world.now_ms += DAY_MS + 1
    assert collect_groups(world.root(), retention_ms=WEEK_MS).expired == ("g",)


def test_entries_are_kept_as_long_as_versions_of_topics() -> None:
    world = TopicsWorld(limits=Limits(checkpoint_entries=4))
    member = group(world).join("one")
    for offset in range(13):
        member.commit({"a": {0: offset}})
    world.topic("b").alter(configs={"file.delete.delay.ms": str(3 * DAY_MS)})
    world.now_ms += 3 * DAY_MS
    retain_root(world.root(), Settings(world.now_ms))
    assert entries(world)[0] == 0
    world.now_ms += HOUR_MS
    said = summary(retain_root(world.root(), Settings(world.now_ms)))
    assert entries(world)[0] == 7
    assert "group entry" in said
    assert "replaced more than 73 hours ago" in said


def test_a_damaged_group_is_reported_and_other_groups_are_maintained() -> None:
    world = TopicsWorld()
    for name in ("bad", "good"):
        group(world, name).alter({"a": {0: 1}})
    key = commit_key(groups_prefix("bad"), 0)
    world.store.replace(key, b"nonsense")  # type: ignore[union-attr]
    world.now_ms += WEEK_MS
    found = collect_groups(world.root(), retention_ms=WEEK_MS)
    assert (found.expired, len(found.failures)) == (("good",), 1)
    failures: list[SparklogError] = []
    assert (Groups(world.root()).names(failures), len(failures)) == ([], 1)
    with pytest.raises(Corrupt, match="_groups/bad"):
        Groups(world.root()).names()


def test_the_retain_job_maintains_groups() -> None:
    world = TopicsWorld()
    group(world).alter({"a": {0: 1}})
    begun = world.producer().begin()
    begun.send_offsets("h", {"a": {0: 9}})
    begun.commit()
    world.now_ms += DAY_MS
    minute = settings_of("offsets.retention.minutes=1440", "f")
    week = retain_root(world.root(), Settings(world.now_ms))
    assert all(report.vacuum is None or not report.vacuum.expired_groups for report in week)
    assert group(world, "h").log.refresh().pending == ()
    dry = retain_root(world.root(), minute, dry_run=True)
    assert "(root): expired offsets of 2 groups would be deleted: g, h" in summary(dry, dry_run=True)
    done = retain_root(world.root(), minute)
    assert "(root): expired offsets of 2 groups were deleted: g, h" in summary(done)
    found = document(done, root="r", now_ms=0, dry_run=False)
    assert [topic["vacuum"]["expiredGroups"] for topic in json.loads(json.dumps(found))["topics"]] == [
        ["g", "h"],
        [],
        [],
        [],
    ]
    assert Groups(world.root()).names() == []
