"""Entries of consumer groups are deleted after a day: the effect on backups and on restores of a time."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from sparklog.errors import NotFound
from sparklog.groups.lag import Groups
from sparklog.log.journal.names import groups_prefix
from sparklog.testing.world import DAY_MS, HOUR_MS, MINUTE_MS
from sparklog.tools.backup.restore_point import RestorePoint
from sparklog.tools.verification.run import verify_root
from tests.support.small_limits import small_limits
from tests.tools.backup.backup_world import RestoringWorld, batch, contents


@pytest.fixture(autouse=True)
def _few_entries_between_copies() -> Iterator[None]:
    with small_limits(checkpoint_entries=4):
        yield


def offsets(root: object, group: str = "g") -> dict[tuple[str, int], int]:
    return {topic_partition: item.offset for topic_partition, item in Groups(root).group(group).committed().items()}  # type: ignore[arg-type]


def busy(world: RestoringWorld) -> list[tuple[int, int]]:
    """A group reads topic `a` for two days, with uncompacted writes; return (time, offset) of each step."""
    member = Groups(world.root()).group("g").join("one")
    found = []
    for offset in range(1, 17):
        world.topic("a").append(batch([b"v"], keys=[b"k"]))
        member.commit({"a": {0: offset}})
        found.append((world.now_ms, offset))
        world.now_ms += 3 * HOUR_MS
    world.retain()
    return found


def quiet_world() -> RestoringWorld:
    world = RestoringWorld()
    world.fill("a", configs={"retention.ms": "-1"})
    world.fill("b", configs={"retention.ms": "-1"})
    return world


def test_restore_as_of_a_time_within_the_last_day() -> None:
    world = quiet_world()
    before = len(contents(world.root())["a"])
    steps = busy(world)
    left = [info.key for info in world.store.list(f"{groups_prefix('g')}/_log/0")]
    assert int(left[0][-25:-5]) == 8
    for time_ms, offset in steps[7:]:
        root = world.restore(world.store, RestorePoint(time_ms=time_ms))
        assert offsets(root)["a", 0] == offset
        assert len(contents(root)["a"]) == before + offset
    # The topics of that time can be restored, but the existing offsets would be a day newer.
    with pytest.raises(NotFound, match=r"offsets of group 'g' are known only from .* on, not as of .*; choose a later"):
        world.restore(world.store, RestorePoint(time_ms=steps[2][0]))
    assert contents(world.restore(world.store, RestorePoint(time_ms=steps[2][0], topics=("b",))))["b"]
    assert contents(world.restore(world.store, RestorePoint(version=3, topics=("a",))))["a"]
    assert not verify_root(world.store, env=world.env()).findings


def test_daily_backups_contain_all_offsets() -> None:
    world = quiet_world()
    assert world.back_up().from_ms == 0
    first = busy(world)
    gap = world.back_up()
    kept_ms = gap.groups[0].since_ms
    assert kept_ms in [time_ms for time_ms, _ in first]
    assert gap.from_ms == kept_ms
    with pytest.raises(NotFound, match="offsets of group 'g' are known only from"):
        world.restore(wanted=RestorePoint(time_ms=kept_ms - 1))
    world.now_ms += MINUTE_MS
    member = Groups(world.root()).group("g").join("two")
    second = []
    for offset in range(20, 28):
        member.commit({"a": {0: offset}})
        second.append((world.now_ms, offset))
        world.now_ms += 3 * HOUR_MS
        world.retain()
    # More than a day after the previous backup.
    world.now_ms += HOUR_MS - 2 * MINUTE_MS
    world.retain()
    whole = world.back_up()
    assert whole.groups[0].since_ms == 0
    for time_ms, offset in [each for each in first if each[0] >= kept_ms] + second:
        assert offsets(world.restore(wanted=RestorePoint(time_ms=time_ms)))["a", 0] == offset


def test_backup_and_restore_that_take_days() -> None:
    world = quiet_world()
    busy(world)
    member = Groups(world.root()).group("g").join("other")

    def slow(*_: int) -> None:
        for _ in range(2):
            world.now_ms += HOUR_MS
            member.commit({"a": {0: 17}})
        world.retain()

    begun_ms = world.now_ms
    world.back_up(progress=slow)
    assert world.now_ms > begun_ms + DAY_MS + HOUR_MS
    assert offsets(world.root())["a", 0] == 17
    assert offsets(world.restore())["a", 0] == 16
    begun_ms, before = world.now_ms, Groups(world.root()).group("g").log.refresh().number
    root = world.restore(world.store, progress=slow)
    assert world.now_ms > begun_ms + DAY_MS + HOUR_MS
    assert Groups(root).group("g").log.refresh().number == before
