"""Concurrent backups are numbered in the order of their cuts, and a run considered dead publishes none."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from sparklog.errors import Conflict, NotFound, Unavailable
from sparklog.log.topic.backup_manifest import backup_key
from sparklog.storage.store import Store
from sparklog.testing.faulty_store import Call, Crash, Fault, FaultyStore
from sparklog.testing.world import DAY_MS, HOUR_MS
from sparklog.tools.backup.backing_up import back_up
from sparklog.tools.backup.repository import Repository, claim_key, claim_number, latest_number, prune
from sparklog.tools.backup.restore_point import RestorePoint
from tests.tools.backup.backup_world import Dying, RestoringWorld, batch, contents


def before(store: Store, verb: str, key: str, act: Callable[[], object]) -> FaultyStore:
    """Return a store in which other actions run before the first matching request."""
    left = [act]

    def decide(call: Call) -> Fault | None:
        if left and call.verb == verb and call.key == key:
            left.pop()()
        return None

    return FaultyStore(store, decide)


def versions(world: RestoringWorld) -> dict[int, int]:
    """Return the version of topic a in each backup, by backup number."""
    return {each.number: each.topics[0].version for each in Repository.open(world.repository).manifests()}


def begun(world: RestoringWorld) -> list[str]:
    return [info.key for info in world.repository.list("_backups/begun/")]


def test_backups_are_numbered_in_the_order_of_their_cuts() -> None:
    world = RestoringWorld()
    world.fill(appends=1)
    newer: list[int] = []

    def begin_and_end_another() -> None:
        world.topic("a").append(batch([b"newer"], keys=[b"n"]))
        newer.append(world.back_up().number)

    older = back_up(world.root(), before(world.repository, "create", backup_key(1), begin_and_end_another), at_once=1)
    assert (older.number, newer) == (1, [2])
    found = versions(world)
    assert found[1] < found[2]
    assert begun(world) == []
    values = [row[1] for row in contents(world.restore())["a"].values()]
    assert b"newer" in values
    assert prune(world.repository, keep=1, env=world.env()).kept == (2,)
    assert contents(world.restore())["a"]


def test_overtaken_cut_is_taken_again() -> None:
    world = RestoringWorld()
    world.fill(appends=1)

    def another() -> None:
        world.topic("a").append(batch([b"newer"], keys=[b"n"]))
        world.now_ms += HOUR_MS
        world.back_up()
        world.topic("a").append(batch([b"newest"], keys=[b"n"]))

    later = back_up(world.root(), before(world.repository, "create", claim_key(1), another), at_once=1)
    assert later.number == 2
    found = versions(world)
    assert found[1] < found[2]
    first, second = Repository.open(world.repository).manifests()
    assert first.started_ms <= second.started_ms
    assert not any(world.topic("a").log.state().leases)


def test_backup_fails_after_too_many_overtaken_cuts() -> None:
    world = RestoringWorld()
    world.fill(appends=1)

    def overtaken(call: Call) -> Fault | None:
        if call.verb == "create" and call.key.startswith("_backups/begun/"):
            world.repository.create(call.key, b"another's")
        return None

    with pytest.raises(Conflict, match=r"concurrent backups to .* claimed all numbers"):
        back_up(world.root(), FaultyStore(world.repository, overtaken), at_once=1)
    assert versions(world) == {}


@pytest.mark.parametrize("keep", [1, 5])
def test_backup_paused_until_a_prune_is_not_published(keep: int) -> None:
    world = RestoringWorld()
    world.fill(appends=1)
    world.back_up()
    before_it = contents(world.root())["a"]
    world.topic("a").append(batch([b"x", b"y"], keys=[b"x", b"y"]))

    def stand_still() -> None:
        world.now_ms += 7 * HOUR_MS
        assert prune(world.repository, keep=keep, env=world.env()).objects > 0

    with pytest.raises(
        Conflict, match=r"was paused for too long, and a prune has abandoned backup 2 .*; run the backup again"
    ):
        back_up(world.root(), before(world.repository, "create", backup_key(2), stand_still), at_once=1)
    assert sorted(versions(world)) == [1]
    with pytest.raises(NotFound, match=r"backup 2 does not exist in .*; existing backups: 1"):
        world.restore(wanted=RestorePoint(number=2))
    assert contents(world.restore())["a"] == before_it
    assert begun(world) == []
    assert world.back_up().number == 3
    assert contents(world.restore())["a"] == contents(world.root())["a"]
    assert prune(world.repository, keep=1, env=world.env()).kept == (3,)


def test_delayed_manifest_after_a_prune_is_rejected() -> None:
    world = RestoringWorld()
    world.fill(appends=1)
    world.back_up()
    world.topic("a").append(batch([b"x"], keys=[b"x"]))
    held: list[tuple[str, bytes]] = []

    class Late(FaultyStore):
        """A store whose connection breaks while the manifest is being sent."""

        def create(self, key: str, data: bytes) -> bool:
            if key == backup_key(2):
                held.append((key, data))
                raise Unavailable("no answer")
            return super().create(key, data)

    with pytest.raises(Unavailable):
        back_up(world.root(), Late(world.repository, lambda call: None), at_once=1)
    assert begun(world) == [claim_key(2)]
    assert prune(world.repository, keep=5, env=world.env()).objects > 0
    assert world.repository.create(*held[0]) is False
    assert sorted(versions(world)) == [1]


def test_number_of_a_killed_backup_is_never_reused() -> None:
    world = RestoringWorld()
    world.fill(appends=1)
    world.back_up()
    world.topic("a").append(batch([b"x"], keys=[b"x"]))
    source, repository = world.store.snapshot(), world.repository.snapshot()
    counted = FaultyStore(world.repository, lambda call: None)
    back_up(world.root(), counted, at_once=1)
    for number in range(sum(counted.calls.values())):
        world.store.restore(source)
        world.repository.restore(repository)
        with pytest.raises(Crash):
            back_up(
                world.root(), FaultyStore(world.repository, Dying(lambda call, at=number: call.number >= at)), at_once=1
            )
        taken = latest_number(world.repository)
        world.now_ms += DAY_MS
        prune(world.repository, keep=5, env=world.env())
        assert begun(world) == []
        assert world.back_up().number == taken + 1
        assert contents(world.restore())["a"] == contents(world.root())["a"]


def test_number_is_claimed_once_despite_lost_responses() -> None:
    world = RestoringWorld()
    world.fill(appends=1)
    world.back_up()
    assert claim_number(world.repository, 2, "one", world.env())
    assert claim_number(world.repository, 2, "one", world.env())
    assert not claim_number(world.repository, 2, "two", world.env())
    assert not claim_number(world.repository, 1, "two", world.env())
    assert world.back_up().number == 3
