"""Valid logs that do not match: a group and the decisions of its transactions."""

from __future__ import annotations

import pyarrow as pa
import pytest

from sparklog.log.journal.names import ROOT_KEY, groups_prefix, transactions_prefix
from sparklog.log.topic.root import open_root
from sparklog.storage.memory import MemoryStore
from sparklog.testing.world import World
from sparklog.tools.repair.run import repair_root
from sparklog.tools.verification.findings import TRANSACTION
from sparklog.tools.verification.run import verify_root
from sparklog.transactions.producer import transactional
from tests.support.read_only import read_only
from tests.support.records import rows
from tests.support.topics_world import TopicsWorld

ID, GROUP = "mover", "readers"


@pytest.fixture
def store() -> MemoryStore:
    """A root with two transactions that commit offsets of a group, and an open third one."""
    world = World()
    store = world.store
    root = world.root()
    root.create_topic("a").append(pa.table({"value": [b"1", b"2", b"3"]}))
    for n in range(3):
        writing = transactional(root, ID).begin()
        writing.send_offsets(GROUP, {"a": {0: n + 1}})
        if n < 2:
            writing.commit()
    assert verify_root(store, env=world.env()).sound
    return store


def entries(store: MemoryStore, prefix: str) -> list[str]:
    return sorted(info.key for info in store.list(f"{prefix}/_log/0"))


def findings(store: MemoryStore) -> list[tuple[str, str]]:
    return [(each.kind, each.message) for each in verify_root(store, env=World().env()).findings]


def test_group_offsets_of_an_unknown_transaction_are_reported(store: MemoryStore) -> None:
    for key in entries(store, transactions_prefix(ID))[1:]:
        store.delete(key)
    found = findings(store)
    assert [kind for kind, _ in found] == [TRANSACTION]
    assert f"offsets of transaction 2 of '{ID}' have been pending" in found[0][1]


@pytest.mark.parametrize("left", [0, 1])
def test_group_that_ends_before_a_committed_transaction_is_reported(store: MemoryStore, left: int) -> None:
    for key in entries(store, groups_prefix(GROUP))[left:]:
        store.delete(key)
    found = findings(store)
    assert {kind for kind, _ in found} == {TRANSACTION}
    assert f"of group '{GROUP}', but the group ends at entry {left - 1}" in found[0][1]


def test_verify_rejects_a_backup_repository(store: MemoryStore) -> None:
    from sparklog.errors import BadRequest
    from sparklog.tools.backup.backing_up import back_up

    place = MemoryStore(World().clock, "memory:place")
    back_up(open_root(store, env=World().env()), place, at_once=1)
    assert place.stat(ROOT_KEY) is None
    with pytest.raises(BadRequest, match="is a backup repository, not a root"):
        verify_root(place, env=World().env())


def test_root_on_a_read_only_mount_is_verified() -> None:
    world = TopicsWorld()
    world.topic("a").append(rows("1"))
    assert verify_root(read_only(world.store), env=world.env()).sound


def test_outcomes_of_a_recreated_topic() -> None:
    """The decisions contain the id of the deleted topic that recorded them, not the id of the recreated one."""
    world = World()
    root = world.root()
    for name in ("a", "b"):
        root.create_topic(name)
    for id_ in (ID, "other"):
        with transactional(root, id_).begin() as transaction:
            for name in ("a", "b"):
                transaction.append(name, rows("1"))
    for name in ("a", "b"):
        root.topic(name).append(rows("2"))
    for step in (lambda: root.delete_topic("a"), lambda: root.create_topic("a")):
        step()
        assert findings(world.store) == []
    with transactional(root, ID).begin() as transaction:
        transaction.append("a", rows("3"))
    root.topic("a").append(rows("4"))
    assert findings(world.store) == []
    assert repair_root(world.store, env=world.env()).sound
