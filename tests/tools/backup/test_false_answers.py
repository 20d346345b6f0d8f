"""Repositories and restored roots in a store that falsely reports existing objects (a 409 or a lost response)."""

from __future__ import annotations

import pytest

from sparklog.log.topic.backup_manifest import backup_key
from sparklog.testing.faulty_store import Call, Fault, FaultKind, FaultyStore
from sparklog.tools.backup.backing_up import back_up
from sparklog.tools.backup.repository import Repository, claim_key, claim_number, prune
from sparklog.tools.backup.restoring import restore
from tests.tools.backup.backup_world import RestoringWorld, contents

KINDS = pytest.mark.parametrize("kind", [FaultKind.TWICE, FaultKind.FALSE_EXISTS])


class FirstAnswers:
    """Fail the first create of each key."""

    def __init__(self, kind: FaultKind) -> None:
        self.kind = kind
        self.seen: set[str] = set()

    def __call__(self, call: Call) -> Fault | None:
        first = call.verb == "create" and call.key not in self.seen
        self.seen.add(call.key)
        return Fault(self.kind) if first else None


@KINDS
def test_backups_and_restores_are_complete_despite_false_responses(kind: FaultKind) -> None:
    world = RestoringWorld()
    world.fill("a")
    world.fill("b", appends=2)
    world.compact("a")
    repository = FaultyStore(world.repository, FirstAnswers(kind), world.sleep)
    assert back_up(world.root(), repository, at_once=1).number == 1
    assert contents(world.restore()) == contents(world.root())
    world.fill("c", appends=1)
    assert back_up(world.root(), repository, at_once=1).number == 2
    assert prune(repository, keep=1, env=world.env()).dropped == (1,)
    target = world.another("target")
    restore(world.repository, FaultyStore(target, FirstAnswers(kind), world.sleep), at_once=1, env=world.env())
    assert contents(world.root(target)) == contents(world.root())


def test_number_abandoned_by_a_prune_remains_abandoned() -> None:
    """Otherwise, the run with this number could publish a backup whose files the prune deletes."""
    world = RestoringWorld()
    world.fill(appends=1)
    world.back_up()
    assert claim_number(world.repository, 2, "a run that is slow", world.env())
    prune(FaultyStore(world.repository, FirstAnswers(FaultKind.FALSE_EXISTS), world.sleep), keep=1, env=world.env())
    assert world.repository.stat(claim_key(2)) is None
    assert b"givenUpMs" in world.repository.get(backup_key(2))
    assert [item.number for item in Repository.open(world.repository).manifests()] == [1]
