"""Old backups go, and only what they alone named; a prune and a backup do not meet."""

from __future__ import annotations

from collections import Counter

import pytest

from sparklog.errors import BadRequest, Conflict, NotFound
from sparklog.log.journal.names import RESTORE_KEY, ROOT_KEY
from sparklog.storage.faulty import Call, Crash, FaultyStore
from sparklog.tools.backup.backing_up import back_up
from sparklog.tools.backup.pruning import named_keys, prune
from sparklog.tools.backup.repository import BACKUP, PRUNE, Mark, Place
from sparklog.tools.backup.restore_point import Wanted
from sparklog.tools.backup.restoring import restore
from tests.tools.backup.lab import DAY, HOUR, Dying, Rows, batch, contents
from tests.tools.backup.test_restoring import House


def five_days(house: House) -> list[Rows]:
    """A backup a day of a topic that is rewritten each day; its rows at each backup."""
    house.fill()
    found = []
    for day in range(5):
        house.lab.now_ms += DAY
        house.root.topic("a").append(batch([b"%d" % day], keys=[b"k0"]))
        house.lab.compact("a")
        house.lab.retain()
        house.lab.now_ms += 1
        house.back_up()
        found.append(contents(house.root)["a"])
    return found


def test_backups_that_are_kept_stay_whole() -> None:
    house = House()
    rows = five_days(house)
    before = len(list(house.place.list("")))
    found = prune(house.place, keep=2, env=house.lab.env())
    assert (found.kept, found.dropped) == ((4, 5), (1, 2, 3))
    assert len(list(house.place.list(""))) == before - found.objects
    for number in (4, 5):
        assert contents(house.restore(wanted=Wanted(number=number)))["a"] == rows[number - 1]
    with pytest.raises(NotFound, match="there are 4, 5"):
        house.restore(wanted=Wanted(number=3))
    named = set().union(*(named_keys(house.place, item) for item in Place.open(house.place).manifests()))
    left = {info.key for info in house.place.list("") if not info.key.startswith("_backup")}
    assert left <= named
    house.lab.now_ms += DAY
    assert house.back_up().number == 6
    assert contents(house.restore())["a"] == rows[-1]


def test_by_age_and_never_the_last_one() -> None:
    house = House()
    rows = five_days(house)
    env = house.lab.env()
    assert prune(house.place, keep_ms=2 * DAY + HOUR, dry_run=True, env=env).dropped == (1, 2)
    assert prune(house.place, keep=1, keep_ms=2 * DAY + HOUR, env=env).kept == (3, 4, 5)
    house.lab.now_ms += 100 * DAY
    assert prune(house.place, keep_ms=0, env=env).kept == (5,)
    assert contents(house.restore())["a"] == rows[-1]
    for wrong in ({}, {"keep": 0}, {"keep_ms": -1}):
        with pytest.raises(BadRequest):
            prune(house.place, env=env, **wrong)  # type: ignore[arg-type]


def test_a_backup_of_some_topics_stands_in_for_none_of_all() -> None:
    house = House()
    for name in ("a", "b"):
        house.fill(name, 2, {})
    for topics in (None, None, ["a"], ["b"], ["a"], ["a", "b"], ["a"]):
        house.lab.now_ms += DAY
        house.back_up(topics=topics)
    env = house.lab.env()
    assert prune(house.place, keep=2, dry_run=True, env=env).kept == (1, 2, 4, 6, 7)
    assert prune(house.place, keep_ms=0, env=env).kept == (2, 6, 7)
    assert list(contents(house.restore())) == ["a", "b"]
    house.back_up()
    assert prune(house.place, keep=1, env=env).kept == (8,)


def test_what_a_dead_run_has_copied_goes() -> None:
    house = House()
    house.fill()
    house.back_up()
    house.root.topic("a").append(batch([b"x"], keys=[b"x"]))
    dead = Dying(lambda call: call.verb == "create" and call.key.startswith("_backups/0"))
    with pytest.raises(Crash):
        back_up(house.root, FaultyStore(house.place, dead), at_once=1)
    with pytest.raises(Conflict, match="a backup or another prune is at work"):
        prune(house.place, keep=1, env=house.lab.env())
    house.lab.now_ms += DAY + HOUR
    found = prune(house.place, keep=1, env=house.lab.env())
    assert found.dropped == ()
    assert found.objects > 0
    assert contents(house.restore())["a"]


def test_a_backup_gives_way_to_a_prune_and_stops_when_it_was_taken_for_dead() -> None:
    house = House()
    house.fill()
    house.back_up()
    env = house.lab.env()
    with Mark(Place.open(house.place), env, PRUNE), pytest.raises(Conflict, match="a prune is at work"):
        house.back_up()
    with Mark(Place.open(house.place), env, BACKUP) as mark:
        house.back_up()
        house.lab.now_ms += DAY + HOUR
        prune(house.place, keep=1, env=env)
        with pytest.raises(Conflict, match="stood still for too long"):
            mark.check()


def test_killed_at_any_request_a_prune_leaves_whole_backups() -> None:
    house = House()
    rows = five_days(house)
    full = house.place.snapshot()
    counted = FaultyStore(house.place, lambda call: None)
    prune(counted, keep=2, env=house.lab.env())
    for number in range(0, sum(counted.calls.values()), 7):
        house.place.restore(full)
        with pytest.raises(Crash):
            prune(
                FaultyStore(house.place, Dying(lambda call, at=number: call.number >= at)), keep=2, env=house.lab.env()
            )
        for manifest in Place.open(house.place).manifests():
            assert contents(house.restore(wanted=Wanted(number=manifest.number)))["a"] == rows[manifest.number - 1]
    house.lab.now_ms += DAY + HOUR
    assert prune(house.place, keep=2, env=house.lab.env()).kept == (4, 5)


def test_backups_that_are_dropped_while_one_is_restored() -> None:
    """At whatever moment: it is whole, or there is no root, and it is said what happened."""
    house = House()
    rows = five_days(house)
    full = house.place.snapshot()
    counted = FaultyStore(house.place, lambda call: None)
    restore(counted, house.lab.another("counted"), Wanted(number=1), at_once=1, env=house.lab.env())
    outcomes = Counter[str]()
    for moment in range(0, sum(counted.calls.values()), 3):
        house.place.restore(full)
        target = house.lab.another("target")

        def drop(call: Call, at: int = moment) -> None:
            if call.number == at:
                prune(house.place, keep=1, env=house.lab.env())

        try:
            restore(FaultyStore(house.place, drop), target, Wanted(number=1), at_once=1, env=house.lab.env())
        except NotFound as error:
            outcomes[str(error).partition(" in memory")[0].partition(" from memory")[0]] += 1
            assert ROOT_KEY not in target.snapshot()
            if RESTORE_KEY in target.snapshot():
                with pytest.raises(NotFound, match=r"dropped from .* \(1\); empty"):
                    house.said(None, target, Wanted(number=1))
        else:
            outcomes["restored"] += 1
            assert contents(house.lab.root(target))["a"] == rows[0]
    assert outcomes.keys() == {"restored", "backups were dropped", "there is no backup 1"}
    assert contents(house.restore())["a"] == rows[-1]


def test_what_no_backup_has_written_stays() -> None:
    """A root that somebody restored below the place, notes, a probe that is at work."""
    house = House()
    five_days(house)
    kept = {
        "notes.txt": b"ours",
        "new/_root.json": b"{}",
        "new/a/_log/00000000000000000003.json": b"{}",
        "new/a/append/00000000000000000003-abc.slices": b"x",
        "new/_groups/g/_log/00000000000000000000.json": b"{}",
        "_probe/1/race": b"",
    }
    for key, data in kept.items():
        house.place.create(key, data)
    assert prune(house.place, keep=1, env=house.lab.env()).dropped == (1, 2, 3, 4)
    assert {key: house.place.get(key) for key in kept} == kept
