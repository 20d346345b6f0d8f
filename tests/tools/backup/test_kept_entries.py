"""Entries of consumer groups go after a day: what backups and restores as of a time make of that."""

from __future__ import annotations

import pytest

from sparklog.errors import NotFound
from sparklog.groups import Groups
from sparklog.log.journal import entry_log
from sparklog.log.journal.names import groups_prefix
from sparklog.tools.backup.restore_point import Wanted
from sparklog.tools.verification.run import verify_root
from tests.tools.backup.lab import DAY, HOUR, MINUTE, batch, contents
from tests.tools.backup.test_restoring import House


@pytest.fixture(autouse=True)
def _few_entries_between_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(entry_log, "CHECKPOINT_ENTRIES", 4)


def offsets(root: object, group: str = "g") -> dict[tuple[str, int], int]:
    return {place: item.offset for place, item in Groups(root).group(group).committed().items()}  # type: ignore[arg-type]


def busy(house: House) -> list[tuple[int, int]]:
    """A group that reads topic `a` for two days, beside writers that nobody compacts: (time, offset) of each step."""
    member = Groups(house.root).group("g").join("one")
    found = []
    for offset in range(1, 17):
        house.root.topic("a").append(batch([b"v"], keys=[b"k"]))
        member.commit({"a": {0: offset}})
        found.append((house.lab.now_ms, offset))
        house.lab.now_ms += 3 * HOUR
    house.lab.retain()
    return found


def quiet_house() -> House:
    house = House()
    house.fill("a", configs={"retention.ms": "-1"})
    house.fill("b", configs={"retention.ms": "-1"})
    return house


def test_a_root_is_restored_as_of_the_last_day_and_says_from_when_on() -> None:
    house = quiet_house()
    before = len(contents(house.root)["a"])
    steps = busy(house)
    left = [info.key for info in house.lab.store.list(f"{groups_prefix('g')}/_log/0")]
    assert int(left[0][-25:-5]) == 8
    for time_ms, offset in steps[7:]:
        root = house.restore(house.lab.store, Wanted(time_ms=time_ms))
        assert offsets(root)["a", 0] == offset
        assert len(contents(root)["a"]) == before + offset
    # The topics of then are all there. With the offsets that are, they would be of a day later.
    with pytest.raises(NotFound, match=r"group 'g' can be restored as of .* and later, not of .*; choose a later time"):
        house.restore(house.lab.store, Wanted(time_ms=steps[2][0]))
    assert contents(house.restore(house.lab.store, Wanted(time_ms=steps[2][0], topics=("b",))))["b"]
    assert contents(house.restore(house.lab.store, Wanted(version=3, topics=("a",))))["a"]
    assert not verify_root(house.lab.store, env=house.lab.env()).findings


def test_daily_backups_have_all_offsets_and_rarer_ones_say_from_when_on() -> None:
    house = quiet_house()
    assert house.back_up().from_ms == 0
    first = busy(house)
    gap = house.back_up()
    kept_ms = gap.groups[0].since_ms
    assert kept_ms in [time_ms for time_ms, _ in first]
    assert gap.from_ms == kept_ms
    with pytest.raises(NotFound, match="group 'g' can be restored as of"):
        house.restore(wanted=Wanted(time_ms=kept_ms - 1))
    house.lab.now_ms += MINUTE
    member = Groups(house.root).group("g").join("two")
    second = []
    for offset in range(20, 28):
        member.commit({"a": {0: offset}})
        second.append((house.lab.now_ms, offset))
        house.lab.now_ms += 3 * HOUR
        house.lab.retain()
    # Later than a day after the one before.
    house.lab.now_ms += HOUR - 2 * MINUTE
    house.lab.retain()
    whole = house.back_up()
    assert whole.groups[0].since_ms == 0
    for time_ms, offset in [each for each in first if each[0] >= kept_ms] + second:
        assert offsets(house.restore(wanted=Wanted(time_ms=time_ms)))["a", 0] == offset


def test_a_backup_and_a_restore_that_take_days() -> None:
    house = quiet_house()
    busy(house)
    member = Groups(house.root).group("g").join("other")

    def slow(*_: int) -> None:
        for _ in range(2):
            house.lab.now_ms += HOUR
            member.commit({"a": {0: 17}})
        house.lab.retain()

    begun_ms = house.lab.now_ms
    house.back_up(progress=slow)
    assert house.lab.now_ms > begun_ms + DAY + HOUR
    assert offsets(house.root)["a", 0] == 17
    assert offsets(house.restore())["a", 0] == 16
    begun_ms, before = house.lab.now_ms, Groups(house.root).group("g").log.refresh().number
    root = house.restore(house.lab.store, progress=slow)
    assert house.lab.now_ms > begun_ms + DAY + HOUR
    assert Groups(root).group("g").log.refresh().number == before
