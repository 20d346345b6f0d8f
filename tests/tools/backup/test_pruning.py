"""Pruning deletes old backups and the files that only they reference; prunes and backups conflict."""

from __future__ import annotations

from collections import Counter

import pytest

from sparklog.errors import BadRequest, Conflict, NotFound, Unavailable
from sparklog.log.journal.names import RESTORE_KEY, ROOT_KEY
from sparklog.testing.faulty_store import Call, Crash, FaultyStore
from sparklog.testing.world import DAY_MS, HOUR_MS
from sparklog.testing.wrapper_stores import HookedStore
from sparklog.tools.backup.backing_up import back_up
from sparklog.tools.backup.repository import BACKUP, PRUNE, RUNNING_FOLDER, Mark, Repository, needed_keys, prune
from sparklog.tools.backup.restore_point import RestorePoint
from sparklog.tools.backup.restoring import restore
from tests.tools.backup.backup_world import Dying, RestoringWorld, Rows, batch, contents


def five_days(world: RestoringWorld) -> list[Rows]:
    """Back up a topic that is rewritten every day; return its rows at each backup."""
    world.fill()
    found = []
    for day in range(5):
        world.now_ms += DAY_MS
        world.topic("a").append(batch([b"%d" % day], keys=[b"k0"]))
        world.compact("a")
        world.retain()
        world.now_ms += 1
        world.back_up()
        found.append(contents(world.root())["a"])
    return found


def test_kept_backups_remain_complete() -> None:
    world = RestoringWorld()
    rows = five_days(world)
    before = len(list(world.repository.list("")))
    found = prune(world.repository, keep=2, env=world.env())
    assert (found.kept, found.dropped) == ((4, 5), (1, 2, 3))
    assert len(list(world.repository.list(""))) == before - found.objects
    for number in (4, 5):
        assert contents(world.restore(wanted=RestorePoint(number=number)))["a"] == rows[number - 1]
    with pytest.raises(NotFound, match="existing backups: 4, 5"):
        world.restore(wanted=RestorePoint(number=3))
    named = set().union(
        *(needed_keys(world.repository, item) for item in Repository.open(world.repository).manifests())
    )
    left = {info.key for info in world.repository.list("") if not info.key.startswith("_backup")}
    assert left <= named
    world.now_ms += DAY_MS
    assert world.back_up().number == 6
    assert contents(world.restore())["a"] == rows[-1]


def test_prune_by_age_keeps_the_latest_backup() -> None:
    world = RestoringWorld()
    rows = five_days(world)
    env = world.env()
    assert prune(world.repository, keep_ms=2 * DAY_MS + HOUR_MS, dry_run=True, env=env).dropped == (1, 2)
    assert prune(world.repository, keep=1, keep_ms=2 * DAY_MS + HOUR_MS, env=env).kept == (3, 4, 5)
    world.now_ms += 100 * DAY_MS
    assert prune(world.repository, keep_ms=0, env=env).kept == (5,)
    assert contents(world.restore())["a"] == rows[-1]
    for wrong in ({}, {"keep": 0}, {"keep_ms": -1}):
        with pytest.raises(BadRequest):
            prune(world.repository, env=env, **wrong)  # type: ignore[arg-type]


def test_partial_backup_does_not_replace_a_full_backup() -> None:
    world = RestoringWorld()
    for name in ("a", "b"):
        world.fill(name, 2, {})
    for topics in (None, None, ["a"], ["b"], ["a"], ["a", "b"], ["a"]):
        world.now_ms += DAY_MS
        world.back_up(topics=topics)
    env = world.env()
    assert prune(world.repository, keep=2, dry_run=True, env=env).kept == (1, 2, 4, 6, 7)
    assert prune(world.repository, keep_ms=0, env=env).kept == (2, 6, 7)
    assert list(contents(world.restore())) == ["a", "b"]
    world.back_up()
    assert prune(world.repository, keep=1, env=env).kept == (8,)


def test_prune_deletes_files_of_dead_runs() -> None:
    world = RestoringWorld()
    world.fill()
    world.back_up()
    world.topic("a").append(batch([b"x"], keys=[b"x"]))
    dead = Dying(lambda call: call.verb == "create" and call.key.startswith("_backups/0"))
    with pytest.raises(Crash):
        back_up(world.root(), FaultyStore(world.repository, dead), at_once=1)
    with pytest.raises(Conflict, match="a backup or another prune is running"):
        prune(world.repository, keep=1, env=world.env())
    world.now_ms += DAY_MS + HOUR_MS
    found = prune(world.repository, keep=1, env=world.env())
    assert found.dropped == ()
    assert found.objects > 0
    assert contents(world.restore())["a"]


def test_backup_conflicts_with_a_prune() -> None:
    world = RestoringWorld()
    world.fill()
    world.back_up()
    env = world.env()
    with Mark(Repository.open(world.repository), env, PRUNE), pytest.raises(Conflict, match="a prune is running"):
        world.back_up()
    with Mark(Repository.open(world.repository), env, BACKUP) as mark:
        world.back_up()
        world.now_ms += DAY_MS + HOUR_MS
        prune(world.repository, keep=1, env=env)
        with pytest.raises(Conflict, match="was paused for too long"):
            mark.check()


@pytest.mark.parametrize("failing", ["create", "list"])
def test_failed_start_of_a_run_leaves_no_mark(failing: str) -> None:
    def fail(verb: str, key: str, result: object) -> object:
        if verb == failing and key.startswith(f"{RUNNING_FOLDER}/"):
            raise Unavailable("injected")
        return result

    world = RestoringWorld()
    world.fill()
    world.back_up()
    repository = Repository.open(HookedStore(world.repository, after=fail))
    with pytest.raises(Unavailable, match="injected"), Mark(repository, world.env(), BACKUP):
        pass
    assert prune(world.repository, keep=1, env=world.env()).kept == (1,)


def test_prune_killed_at_any_request_leaves_complete_backups() -> None:
    world = RestoringWorld()
    rows = five_days(world)
    full = world.repository.snapshot()
    counted = FaultyStore(world.repository, lambda call: None)
    prune(counted, keep=2, env=world.env())
    for number in range(0, sum(counted.calls.values()), 7):
        world.repository.restore(full)
        with pytest.raises(Crash):
            prune(
                FaultyStore(world.repository, Dying(lambda call, at=number: call.number >= at)), keep=2, env=world.env()
            )
        for manifest in Repository.open(world.repository).manifests():
            assert (
                contents(world.restore(wanted=RestorePoint(number=manifest.number)))["a"] == rows[manifest.number - 1]
            )
    world.now_ms += DAY_MS + HOUR_MS
    assert prune(world.repository, keep=2, env=world.env()).kept == (4, 5)


def test_prune_during_a_restore() -> None:
    """At each request, the restored root is either complete, or missing with an error message."""
    world = RestoringWorld()
    rows = five_days(world)
    full = world.repository.snapshot()
    counted = FaultyStore(world.repository, lambda call: None)
    restore(counted, world.another("counted"), RestorePoint(number=1), at_once=1, env=world.env())
    outcomes = Counter[str]()
    for moment in range(0, sum(counted.calls.values()), 3):
        world.repository.restore(full)
        target = world.another("target")

        def drop(call: Call, at: int = moment) -> None:
            if call.number == at:
                prune(world.repository, keep=1, env=world.env())

        try:
            restore(FaultyStore(world.repository, drop), target, RestorePoint(number=1), at_once=1, env=world.env())
        except NotFound as error:
            outcomes[str(error).partition(" in memory")[0].partition(" from memory")[0]] += 1
            assert ROOT_KEY not in target.snapshot()
            if RESTORE_KEY in target.snapshot():
                with pytest.raises(NotFound, match=r"backup 1 was pruned from .*; empty"):
                    world.restore_into(None, target, RestorePoint(number=1))
        else:
            outcomes["restored"] += 1
            assert contents(world.root(target))["a"] == rows[0]
    assert outcomes.keys() == {"restored", "backups 1, 2, 3, 4 were pruned", "backup 1 does not exist"}
    assert contents(world.restore())["a"] == rows[-1]


def test_prune_keeps_other_files() -> None:
    """A restored root below the repository, notes, and the objects of a running probe."""
    world = RestoringWorld()
    five_days(world)
    kept = {
        "notes.txt": b"ours",
        "new/_root.json": b"{}",
        "new/a/_log/00000000000000000003.json": b"{}",
        "new/a/append/00000000000000000003-abc.slices": b"x",
        "new/_groups/g/_log/00000000000000000000.json": b"{}",
        "_probe/1/race": b"",
    }
    for key, data in kept.items():
        world.repository.create(key, data)
    assert prune(world.repository, keep=1, env=world.env()).dropped == (1, 2, 3, 4)
    assert {key: world.repository.get(key) for key in kept} == kept
