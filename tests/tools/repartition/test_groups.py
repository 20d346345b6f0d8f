"""Groups of a copied topic: their new offsets, the number of repeated records, and groups that are not moved."""

from __future__ import annotations

import pytest

from sparklog.errors import Conflict
from sparklog.groups.lag import Groups
from sparklog.log.topic.root import Root
from sparklog.testing.world import DAY_MS
from sparklog.tools import repartition
from sparklog.tools.repartition import MovedGroup
from sparklog.transactions.producer import transactional
from tests.tools.repartition.repartition_world import RepartitionWorld, check_group


def committed(world: RepartitionWorld, group: str, topic: str) -> dict[int, int]:
    offsets = Groups(world.root()).group(group).committed()
    return {partition: item.offset for (name, partition), item in offsets.items() if name == topic}


def log_ends(world: RepartitionWorld, topic: str) -> dict[int, int]:
    return {partition: bounds.log_end for partition, bounds in world.topic(topic).bounds().items()}


def filled(partitions: int = 3) -> RepartitionWorld:
    world = RepartitionWorld(partitions)
    for _ in range(6):
        world.append()
    return world


def moved(world: RepartitionWorld, root: Root | None = None) -> dict[str, MovedGroup]:
    return {item.group: item for item in world.copy(root=root, groups=True).groups}


def test_moved_group_skips_no_record() -> None:
    world = filled()
    ends = log_ends(world, "old")
    offsets = {
        "end": ends,
        "start": dict.fromkeys(ends, 0),
        "half": {partition: end // 2 for partition, end in ends.items()},
        "late": {partition: end - 1 for partition, end in ends.items()},
        "uneven": {0: ends[0], 1: 3, 2: ends[2] // 3},
        "some": {1: ends[1]},
    }
    for name, of_group in offsets.items():
        world.group(name, old=of_group)
    world.root().create_topic("other")
    world.group("elsewhere", other={0: 0})
    groups = moved(world)
    assert set(groups) == set(offsets)
    for name, item in groups.items():
        check_group(world.root(), offsets[name], item)
        assert committed(world, name, "new") == item.offsets
        assert committed(world, name, "old") == offsets[name]
    assert groups["end"].offsets == log_ends(world, "new")
    assert groups["end"].again == groups["start"].again == 0
    assert set(groups["start"].offsets.values()) == {0}
    # The steps copy the same share of each partition, so a group repeats little more than one step.
    assert 0 < groups["half"].again < 60
    assert groups["late"].again < 60 < groups["uneven"].again


@pytest.mark.parametrize("step_bytes", [900, 1 << 20])
def test_multiple_of_the_partitions_has_exact_offsets(step_bytes: int) -> None:
    world = filled(4)
    world.append(60)
    ends = log_ends(world, "old")
    read = {0: ends[0] - 5, 1: 3, 2: ends[2], 3: ends[3] // 2}
    world.group("g", old=read)
    (item,) = world.copy(12, groups=True, step_bytes=step_bytes).groups
    unread = check_group(world.root(), read, item)
    assert item.again == 0
    new = log_ends(world, "new")
    assert sum(new[partition] - offset for partition, offset in item.offsets.items()) == unread


def test_number_of_commits_to_count_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    world, offsets = filled(4), {0: 70, 1: 3, 2: 40, 3: 30}
    world.group("exact", old=offsets)
    exact = moved(world)["exact"]
    world.group("bounded", old=offsets)
    monkeypatch.setattr(repartition, "MAX_COUNTED", 1)
    bounded = moved(world)["bounded"]
    for item in (exact, bounded):
        check_group(world.root(), offsets, item)
    assert exact.again < bounded.again


def test_records_deleted_from_the_old_topic_are_not_counted() -> None:
    world = filled(4)
    root = world.root()
    world.copy(root=root, step_bytes=1 << 20)
    read = {0: 20, 1: 20, 2: 20, 3: 20}
    world.group("g", old=read)
    root.topic("old").delete_records({0: 5})
    (item,) = world.copy(root=root, groups=True).groups
    assert set(item.offsets.values()) == {0}
    assert item.again == sum(log_ends(world, "new").values())


def test_records_appended_after_the_copy_are_not_skipped() -> None:
    world = filled()
    world.group("end", old=log_ends(world, "old"))
    world.copy()
    ends = log_ends(world, "new")
    world.append(topic="new")
    assert moved(world)["end"].offsets == ends != log_ends(world, "new")


def test_gap_at_the_log_end_repeats_no_records() -> None:
    world = filled(1)
    transaction = transactional(world.root(), "job").begin()
    transaction.append("old", world.rows([b"key 1"] * 5))
    transaction._prepare_topics()
    transaction.abort()
    world.group("end", old={0: 240})
    assert log_ends(world, "old") == {0: 245}
    item = moved(world)["end"]
    assert (item.again, item.offsets) == (0, log_ends(world, "new"))


def test_group_offsets_never_move_backwards() -> None:
    world = filled()
    world.copy()
    ends = log_ends(world, "new")
    before = {0: ends[0], 1: 1}
    world.group("g", old={0: 10, 1: 10, 2: 10}, new=before)
    item = moved(world)["g"]
    assert item.offsets[0] == ends[0]
    assert item.offsets[1] >= 1
    assert committed(world, "g", "new") == item.offsets
    assert moved(world)["g"] == item


def test_active_group_is_not_moved() -> None:
    world = filled()
    group = world.group("g", old={0: 10})
    group.join("consumer-1")
    item = moved(world)["g"]
    assert item.problem.startswith("group 'g' is active (Stable, member consumer-1): stop its consumer")
    assert committed(world, "g", "new") == item.offsets == {}
    world.now_ms += DAY_MS
    assert not moved(world)["g"].problem


def test_group_is_not_moved_if_its_commits_have_been_deleted() -> None:
    world = filled()
    root = world.root()
    world.copy(root=root)
    world.append()
    world.copy(root=root)
    world.group("far", old={0: 10, 1: 10, 2: 10})
    world.group("end", old=log_ends(world, "old"))
    ends = log_ends(world, "new")
    world.store.delete("new/_log/00000000000000000002.json")
    groups = moved(world, root)
    assert "the commits that copied the unread records of the group have been deleted" in groups["far"].problem
    assert "sparklog groups reset far --topic new --to-datetime" in groups["far"].problem
    assert groups["end"].offsets == ends


def test_copy_fails_after_appends_of_other_writers() -> None:
    world = filled()
    world.copy()
    world.append(5, topic="new")
    world.group("g", old={0: 10})
    assert moved(world)["g"].offsets
    world.append(5)
    with pytest.raises(Conflict, match="5 records of other writers"):
        world.copy(groups=True)
