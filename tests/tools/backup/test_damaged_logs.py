"""Backups of selected topics with damaged journals of transactional ids and groups: skipped journals, and failures."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from sparklog.errors import BadRequest, Corrupt, SparklogError
from sparklog.groups.group_state import GROUPS
from sparklog.groups.lag import Groups
from sparklog.log.journal.names import commit_key, groups_prefix, transactions_prefix
from sparklog.log.topic.root import Root
from sparklog.storage.memory import MemoryStore
from sparklog.testing.world import HOUR_MS
from sparklog.tools.backup.backing_up import back_up, plan_backup
from sparklog.tools.backup.restore_point import RestorePoint
from sparklog.tools.backup.restoring import plan_restore
from sparklog.tools.verification.run import verify_root
from sparklog.transactions.completion import collect
from sparklog.transactions.listing import list_transactions
from sparklog.transactions.producer import transactional
from tests.tools.backup.backup_world import RestoringWorld, batch, contents, rows_of

ID, GROUP = "writer of z/1", "readers of z"


def newest_key(store: MemoryStore, prefix: str) -> str:
    """Return the latest entry of a journal."""
    return max(info.key for info in store.list(f"{prefix}/_log/0"))


def flip(store: MemoryStore, key: str, position: int = 30, bit: int = 4) -> None:
    data = bytearray(store.get(key))
    data[position] ^= bit
    store.replace(key, bytes(data))


def move(root: Root, id_: str, topics: tuple[str, ...], offsets: dict[str, dict[str, dict[int, int]]]) -> None:
    """Commit one transaction."""
    writing = transactional(root, id_).begin()
    for name in topics:
        writing.append(name, batch([b"moved"]))
    for group, of_topics in offsets.items():
        writing.send_offsets(group, of_topics)
    writing.commit()


@pytest.fixture
def world() -> RestoringWorld:
    """Return a root with topics a and z, each with a transactional id and a group."""
    made = RestoringWorld()
    for name in ("a", "z"):
        made.fill(name, 2, {})
    root = made.root()
    for _ in range(2):
        move(root, "writer of a", ("a",), {"readers of a": {"a": {0: 1}}})
        move(root, ID, ("z",), {GROUP: {"z": {0: 2}}})
    return made


def damaged(world: RestoringWorld) -> list[str]:
    """Damage the latest entries of the group and the id of z; return their keys."""
    keys = [newest_key(world.store, prefix) for prefix in (groups_prefix(GROUP), transactions_prefix(ID))]
    for key in keys:
        flip(world.store, key)
    return keys


def check_restored(world: RestoringWorld, restored: Root) -> None:
    """Check topic a with its id and group, and that the skipped journals are missing."""
    assert contents(restored) == {"a": rows_of(world.topic("a"))}
    assert Groups(restored).names() == ["readers of a"]
    assert Groups(restored).group("readers of a").committed()["a", 0].offset == 1
    assert [item.id for item in list_transactions(restored)] == ["writer of a"]
    assert not verify_root(restored.store, env=world.env()).findings
    for id_ in ("writer of a", ID):
        move(restored, id_, ("a",), {})


def test_damaged_journals_of_other_topics_are_skipped_and_reported(world: RestoringWorld) -> None:
    keys = damaged(world)
    manifest = world.back_up(topics=["a"])
    assert [(item.folder, item.id) for item in manifest.left_out] == [
        (groups_prefix(GROUP), GROUP),
        (transactions_prefix(ID), ID),
    ]
    assert [key in item.damage for key, item in zip(keys, manifest.left_out, strict=True)] == [True, True]
    assert manifest.only == ("a",)
    assert plan_backup(world.root(), world.repository, topics=["a"]).left_out == manifest.left_out
    assert plan_restore(world.repository, env=world.env()).left_out == manifest.left_out
    check_restored(world, world.restore())


def test_backup_of_all_topics_rejects_damaged_journals(world: RestoringWorld) -> None:
    world.back_up()
    before = world.repository.snapshot()
    for key in reversed(damaged(world)):
        for attempt in (world.back_up, lambda: plan_backup(world.root(), world.repository)):
            with pytest.raises(Corrupt, match=key):
                attempt()
        assert world.repository.snapshot() == before
        # From here on, the other object is damaged.
        world.store.replace(key, world.repository.get(key))
    assert world.back_up().left_out == ()


def test_any_damaged_byte(world: RestoringWorld) -> None:
    whole = world.store.snapshot()
    for prefix in (groups_prefix(GROUP), transactions_prefix(ID)):
        key = newest_key(world.store, prefix)
        for position in range(0, len(whole[key]), 11):
            world.store.restore(whole)
            flip(world.store, key, position, 1 << position % 8)
            with pytest.raises((Corrupt, BadRequest), match=key):
                back_up(world.root(), world.another("whole"), at_once=1)
            assert [item.folder for item in world.back_up(topics=["a"]).left_out] == [prefix]
            for topics in (["z"], ["a", "z"]):
                with pytest.raises((Corrupt, BadRequest), match="the journal cannot be skipped, because"):
                    world.back_up(topics=topics)


def test_damaged_older_entry(world: RestoringWorld) -> None:
    whole = world.store.snapshot()
    for prefix in (groups_prefix(GROUP), transactions_prefix(ID)):
        for number in (0, 1):
            world.store.restore(whole)
            flip(world.store, commit_key(prefix, number))
            repository = world.another(f"place-{number}")
            assert [item.folder for item in back_up(world.root(), repository, topics=["a"], at_once=1).left_out] == [
                prefix
            ]
            left = {"readers of a", GROUP} - ({GROUP} if prefix == groups_prefix(GROUP) else set())
            assert set(Groups(world.restore(repository)).names()) == left
            with pytest.raises(Corrupt, match=commit_key(prefix, number)):
                back_up(world.root(), world.another("other"), topics=["z"], at_once=1)


def test_unreadable_entry(world: RestoringWorld) -> None:
    """The topics record which ids they have transactions of, but no topic records its groups."""
    store = world.store
    for left in (b"", bytes(600), store.get(newest_key(store, transactions_prefix(ID)))[:100]):
        before = store.snapshot()
        store.replace(newest_key(store, transactions_prefix(ID)), left)
        assert [item.id for item in world.back_up(topics=["a"]).left_out] == [ID]
        store.restore(before)
        store.replace(newest_key(store, groups_prefix(GROUP)), left)
        with pytest.raises(
            Corrupt, match="the journal cannot be skipped, because it is unreadable and may concern 'a'"
        ):
            world.back_up(topics=["a"])
        store.restore(before)


def prepared(root: Root) -> None:
    writing = transactional(root, ID).begin()
    writing.append("a", batch([b"held"]))
    writing.prepare()


def pending(root: Root) -> None:
    writing = transactional(root, ID).begin()
    writing.append("z", batch([b"held"]))
    writing.send_offsets("readers of a", {"a": {0: 2}})
    writing.prepare()


def recorded_and_forgotten(root: Root) -> None:
    """Return a root where only slices and entries older than the damage reference the id."""
    move(root, ID, ("a",), {})
    root.topic("a").append(batch([b"records"]))
    collect(root)
    move(root, ID, ("z",), {})


def collected(root: Root) -> None:
    """Return a root where only slices reference the id, because a week has passed."""
    recorded_and_forgotten(root)
    for info in list(root.store.list(f"{transactions_prefix(ID)}/_log/")):
        if b'"topic":"a"' in root.store.get(info.key):
            root.store.delete(info.key)


@pytest.mark.parametrize("act", [prepared, pending, recorded_and_forgotten, collected])
def test_journal_that_concerns_a_selected_topic_is_not_skipped(
    world: RestoringWorld, act: Callable[[Root], None]
) -> None:
    act(world.root())
    key = newest_key(world.store, transactions_prefix(ID))
    for damage in (lambda: flip(world.store, key), lambda: world.store.replace(key, b"")):
        damage()
        with pytest.raises(Corrupt, match=f"the journal cannot be skipped, because .*{key}"):
            world.back_up(topics=["a"])
    assert not list(world.repository.list("_backups/0"))


def test_pending_offsets_of_a_skipped_id_are_removed(world: RestoringWorld) -> None:
    """Without the id, no process could end the transaction."""
    root = world.root()
    move(root, "writer of a", ("a",), {GROUP: {"z": {0: 2}}})
    writing = transactional(root, ID).begin()
    writing.append("z", batch([b"held"]))
    writing.send_offsets(GROUP, {"z": {0: 4}})
    writing.prepare()
    flip(world.store, newest_key(world.store, transactions_prefix(ID)))
    world.back_up(topics=["a"])
    restored = world.restore()
    assert not verify_root(restored.store, env=world.env()).findings
    state = restored.engine.entries(GROUPS, GROUP).refresh()
    assert [item.offset for item in state.offsets] == [(2,)]
    assert not state.pending


def test_transaction_of_a_selected_topic_and_a_skipped_group(world: RestoringWorld) -> None:
    """The transaction is complete, and its COMMIT can be deleted when the topic has recorded it, without the group."""
    root = world.root()
    move(root, "writer of a", ("a", "z"), {GROUP: {"z": {0: 3}}})
    flip(world.store, newest_key(world.store, groups_prefix(GROUP)))
    manifest = world.back_up(topics=["a"])
    assert [item.id for item in manifest.left_out] == [GROUP]
    world.now_ms += 1
    world.topic("a").append(batch([b"later"]))
    world.now_ms += 1
    world.back_up(topics=["a"])
    as_of = RestorePoint(time_ms=world.now_ms - 2)
    for wanted in (
        RestorePoint(number=1),
        RestorePoint(),
        as_of,
        RestorePoint(topics=("a",), version=manifest.topics[0].version),
    ):
        restored = world.restore(wanted=wanted)
        assert [value for _, value, _ in rows_of(restored.topic("a")).values()].count(b"moved") == 3
        assert not verify_root(restored.store, env=world.env()).findings
        assert Groups(restored).names() == ["readers of a"]
        restored.topic("a").append(batch([b"records"]))
        collect(restored)
        writer = next(item for item in list_transactions(restored) if item.id == "writer of a")
        assert not writer.is_open


def test_restore_from_a_root_with_damaged_journals(world: RestoringWorld) -> None:
    version, time_ms = world.topic("a").log.state().version, world.now_ms
    world.now_ms += HOUR_MS
    damaged(world)
    for wanted in (
        RestorePoint(topics=("a",)),
        RestorePoint(topics=("a",), version=version),
        RestorePoint(topics=("a",), time_ms=time_ms),
    ):
        assert len(plan_restore(world.store, wanted, env=world.env()).left_out) == 2
        check_restored(world, world.restore(world.store, wanted))
    for wanted in (
        RestorePoint(),
        RestorePoint(time_ms=time_ms),
        RestorePoint(topics=("z",)),
        RestorePoint(topics=("z",), version=1),
    ):
        with pytest.raises(SparklogError, match="restore it"):
            world.restore(world.store, wanted)


class TestBackupsOfSomeTopicsAmongOthers:
    def test_restore_of_all_topics_uses_a_backup_of_all_topics(self) -> None:
        world = RestoringWorld()
        for name in ("a", "b"):
            world.fill(name, 2, {})
        world.back_up()
        world.now_ms += HOUR_MS
        world.topic("a").append(batch([b"x"]))
        time_ms = world.now_ms
        world.now_ms += 1
        world.back_up(topics=["a"])
        world.now_ms += HOUR_MS
        world.topic("b").append(batch([b"y"]))
        assert list(contents(world.restore())) == ["a", "b"]
        world.now_ms += 1
        world.back_up()
        before = contents(world.root())
        assert contents(world.restore(wanted=RestorePoint(number=2))) == {"a": before["a"]}
        between = contents(world.restore(wanted=RestorePoint(time_ms=time_ms)))
        assert between["a"] == before["a"]
        assert len(before["b"]) == len(between["b"]) + 1
        assert contents(world.restore(wanted=RestorePoint(topics=("b",), time_ms=time_ms))) == {"b": between["b"]}

    def test_restore_uses_the_latest_backup_with_the_requested_topics(self) -> None:
        world = RestoringWorld()
        for name in ("a", "b"):
            world.fill(name, 2, {})
            world.back_up(topics=[name])
        assert list(contents(world.restore(wanted=RestorePoint(topics=("a",))))) == ["a"]
        assert list(contents(world.restore())) == ["b"]
