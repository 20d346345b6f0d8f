"""A repair that is killed at each request: the root is not worse than before, and the next repair completes it."""

from __future__ import annotations

import contextlib
from dataclasses import replace

import pytest

from sparklog.testing.faulty_store import Call, Crash, Fault, FaultKind, FaultyStore
from sparklog.testing.world import World
from sparklog.tools.repair.fixes import Fix, Repairer
from sparklog.tools.repair.run import repair_root
from sparklog.tools.verification.run import verify_root
from tests.support.crash_points import changes
from tests.support.seeds import thinned
from tests.tools.repair.small_root import small_root
from tests.tools.verification.damage import by_kind, flip

DAMAGED = ("index", "timeindex", "bloom", "arrow checkpoint", "_groups checkpoint", "_groups", "slices")


def damaged_root() -> World:
    """Return a root with several damaged files that a repair can rebuild."""
    world = small_root()
    keys = by_kind(world)
    for kind in DAMAGED:
        # The oldest entry has no copy, and the latest entry must be valid.
        key = keys[kind][3 if kind == "_groups" else -1]
        data = world.store.get(key)
        middle = len(data) - 20
        world.store.replace(
            key, flip(data, middle, 3) if kind == "slices" else data[:middle] + b"damaged!" + data[-12:]
        )
    return world


def calls_of(world: World) -> list[Call]:
    before, calls = world.store.snapshot(), list[Call]()

    def watch(call: Call) -> None:
        calls.append(call)

    assert repair_root(FaultyStore(world.store, watch), execute=True, env=world.env()).sound
    world.store.restore(before)
    return calls


def die(world: World, number: int, kind: FaultKind) -> None:
    """Crash at a request; then verify, repair again and verify."""
    before, damage = world.store.snapshot(), {finding.file for finding in verify_root(world.store).findings}

    def decide(call: Call) -> Fault | None:
        return Fault(kind) if call.number == number else None

    with contextlib.suppress(Crash):
        repair_root(FaultyStore(world.store, decide), execute=True, env=world.env())
        raise AssertionError(f"nothing died at request {number}")
    after = verify_root(world.store)
    assert {finding.file for finding in after.findings} <= damage
    assert len(after.findings) <= len(damage) * 3
    again = repair_root(world.store, execute=True, env=world.env())
    assert again.sound
    assert verify_root(world.store).sound
    world.store.restore(before)


def assert_no_worse(world: World, calls: list[Call], kind: FaultKind, step: int = 1) -> None:
    for call in [call for call in calls if changes(call.label) or call.label.startswith("write")][::step]:
        die(world, call.number, kind)


@pytest.fixture(scope="module")
def world() -> World:
    return damaged_root()


@pytest.fixture(scope="module")
def calls(world: World) -> list[Call]:
    return calls_of(world)


def test_repair_makes_few_changes(world: World, calls: list[Call]) -> None:
    changing = [call for call in calls if changes(call.label)]
    assert len(DAMAGED) <= len(changing) < 4 * len(DAMAGED)
    for call in changing[::7]:
        die(world, call.number, FaultKind.CRASH_AFTER)


@pytest.mark.sweep
@pytest.mark.parametrize("step", thinned(3))
@pytest.mark.parametrize("kind", [FaultKind.CRASH_BEFORE, pytest.param(FaultKind.CRASH_AFTER, marks=pytest.mark.slow)])
def test_repair_killed_at_every_change(world: World, calls: list[Call], kind: FaultKind, step: int) -> None:
    assert_no_worse(world, calls, kind, step)


@pytest.mark.slow
def test_repair_after_a_failed_request_can_be_repeated(world: World, calls: list[Call]) -> None:
    before = world.store.snapshot()
    for call in calls:
        if not changes(call.label):
            continue
        for kind in (FaultKind.ERROR_BEFORE, FaultKind.ERROR_AFTER):

            def decide(met: Call, call: Call = call, kind: FaultKind = kind) -> Fault | None:
                return Fault(kind) if met.number == call.number else None

            with contextlib.suppress(Exception):
                repair_root(FaultyStore(world.store, decide), execute=True, env=world.env())
            assert repair_root(world.store, execute=True, env=world.env()).sound
            world.store.restore(before)


@pytest.mark.sweep
def test_fails_if_a_checkpoint_is_created_before_its_table(
    world: World, calls: list[Call], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mutation creates a document before the objects that it references."""

    def apply(repairer: Repairer, fix: Fix) -> None:
        right(repairer, replace(fix, creates=()))
        right(repairer, replace(fix, size=None, drops=()))

    right = Repairer.apply
    monkeypatch.setattr(Repairer, "apply", apply)
    before = world.store.snapshot()
    with pytest.raises(AssertionError):
        assert_no_worse(world, [call for call in calls if "/checkpoints/" in call.key], FaultKind.CRASH_AFTER)
    world.store.restore(before)
