"""Objects that are created once, regardless of the responses of the store; including all of these in a root and a
backup repository.
"""

from __future__ import annotations

import pytest

from sparklog.errors import Unavailable
from sparklog.log.journal.create_object import create_or_read
from sparklog.log.topic.root import open_root
from sparklog.testing.faulty_store import Call, Fault, FaultKind, FaultyStore, Script
from sparklog.testing.world import World

TWICE, NOTHING = Fault(FaultKind.TWICE), Fault(FaultKind.FALSE_EXISTS)


@pytest.mark.parametrize(
    ("there", "answers", "expected", "tries"),
    [
        (None, [], None, 1),
        (None, [TWICE], b"ours", 1),
        (None, [NOTHING], None, 2),
        (None, [NOTHING, NOTHING, TWICE], b"ours", 3),
        (b"theirs", [], b"theirs", 1),
        (b"theirs", [NOTHING], b"theirs", 1),
    ],
)
def test_create_or_read_returns_the_existing_object(
    there: bytes | None, answers: list[Fault], expected: bytes | None, tries: int
) -> None:
    world = World()
    if there is not None:
        world.store.create("k", there)
    store = FaultyStore(world.store, Script({("create:other", nth): fault for nth, fault in enumerate(answers)}))
    assert create_or_read(store, "k", b"ours", world.env()) == expected
    assert world.store.get("k") == (there or b"ours")
    assert store.calls["create:other"] == tries


def test_create_or_read_fails_if_the_object_stays_unreadable() -> None:
    world = World()
    store = FaultyStore(world.store, Script({"create:other": NOTHING}))
    with pytest.raises(Unavailable, match="k in memory:test exists, but cannot be read; try again later"):
        create_or_read(store, "k", b"ours", world.env())


@pytest.mark.parametrize("kind", [FaultKind.TWICE, FaultKind.FALSE_EXISTS])
def test_a_root_is_created_regardless_of_the_first_responses(kind: FaultKind) -> None:
    world = World()
    seen: set[str] = set()

    def decide(call: Call) -> Fault | None:
        first = call.verb == "create" and call.key not in seen
        seen.add(call.key)
        return Fault(kind) if first else None

    root = open_root(FaultyStore(world.store, decide, world.sleep), create=True, env=world.env())
    assert root.id == open_root(world.store, env=world.env()).id
    root.create_topic("t")
    assert list(open_root(world.store, env=world.env()).topics()) == ["t"]
