"""Opening and following a log, checkpoints, damage."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace

import pytest

from sparklog.errors import BadRequest, Corrupt
from sparklog.log.journal.documents import encode
from sparklog.log.journal.names import checkpoint_key, checkpoint_prefix, commit_key
from sparklog.log.state.commit import decode_commit, encode_commit
from sparklog.storage.memory import MemoryStore
from sparklog.storage.store import Store
from sparklog.testing.faulty_store import Crash, Fault, FaultKind
from sparklog.testing.wrapper_stores import CountingStore, HookedStore
from tests.log.protocol import collect, faulty, other, publish, setup, topic_records
from tests.log.topics import file_of


def checkpoints(store: Store) -> list[str]:
    return [info.key.rsplit("/", 1)[-1] for info in store.list(checkpoint_prefix("t"))]


def test_a_checkpoint_every_128_commits() -> None:
    _, store, _, topic = setup()
    for _ in range(260):
        publish(topic, 1)
    heads = [name for name in checkpoints(store) if name.endswith(".json")]
    assert heads == [f"{127:020d}.json", f"{255:020d}.json"]
    assert len(checkpoints(store)) == 4


def test_a_checkpoint_after_a_mebibyte_of_commits() -> None:
    _, store, _, topic = setup()
    target = topic.log.append_target()
    for number in range(3):
        many = file_of([(0, 1)] * 12_000, name=f"n{number}")
        topic.log.commit_append([many], target)
    assert [name for name in checkpoints(store) if name.endswith(".json")] == [f"{3:020d}.json"]


def test_opening_costs_two_listings_a_checkpoint_and_the_tail() -> None:
    world, store, _, topic = setup()
    for _ in range(135):
        publish(topic, 1)
    counting = CountingStore(store)
    root = world.root(counting)
    counting.reset()
    opened = root.topic("t")
    # The checkpoints, the head of that at 127, commits 128 to 135, 136 that is missing, and that none is above it.
    assert counting.counts == {"list": 2, "get": 10}
    counting.reset()
    assert opened.log.state() == topic.log.state()
    assert counting.counts == {"get": 1}
    counting.reset()
    snapshot = opened.log.snapshot()
    assert counting.counts == {"get": 2}
    assert snapshot.slices.all().base.tolist() == list(range(135))


def test_a_store_with_round_trips_is_asked_for_16_numbers_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a list that begins after a key costs what is before it as well."""
    monkeypatch.setattr(MemoryStore, "lists_after", False)
    world, store, _, topic = setup()
    for _ in range(40):
        publish(topic, 1)
    counting = CountingStore(store)
    store.parallel_reads = 16  # type: ignore[attr-defined]
    root = world.root(counting)
    counting.reset()
    opened = root.topic("t")
    assert opened.log.state(refresh=False) == topic.log.state()
    # Asked at once, some of the last 16 are not begun any more when the first missing one is known.
    assert counting.counts["list"] == 2
    assert 42 <= counting.counts["get"] <= 48
    for _ in range(20):
        publish(topic, 1)
    counting.reset()
    assert opened.log.state().version == 60
    assert 21 <= counting.counts["get"] <= 33
    counting.reset()
    assert opened.log.state().version == 60
    assert counting.counts == {"get": 1}


def test_a_commit_in_steady_state_costs_one_create_and_two_looks() -> None:
    world, store, _, _ = setup()
    counting = CountingStore(store)
    topic = world.root(counting).topic("t")
    publish(topic)
    counting.reset()
    publish(topic)
    # Is the root the one that was opened, and the commit before still there?
    assert counting.by_kind == {("get", "root"): 1, ("create", "commit"): 1, ("get", "commit"): 1}
    counting.reset()
    topic.log.append_target()
    assert counting.counts == {"get": 1}


def test_a_commit_on_a_store_with_round_trips_looks_at_the_root_while_it_looks_for_the_next_number() -> None:
    world, store, _, _ = setup()
    counting = CountingStore(store)
    store.parallel_reads = 16  # type: ignore[attr-defined]
    topic = world.root(counting).topic("t")
    publish(topic)
    counting.reset()
    target = topic.log.append_target()
    assert counting.by_kind == {("get", "root"): 1, ("get", "commit"): 1}
    file = file_of([(0, 1)], read_version=target.read_version, name="y")
    topic.log.commit_append([file], target)
    assert counting.by_kind == {("get", "root"): 1, ("create", "commit"): 1, ("get", "commit"): 2}
    counting.reset()
    # Without a look of its own, or with one of more than a second ago, the commit has one, and then also looks at the
    # number after its own.
    world.advance(1_001)
    file = file_of([(0, 1)], read_version=target.read_version, name="z")
    topic.log.commit_append([file], target)
    assert counting.by_kind == {("get", "root"): 1, ("create", "commit"): 1, ("get", "commit"): 3}


def test_a_loser_on_a_store_with_round_trips_reads_all_it_needs_at_once() -> None:
    world, store, _, _ = setup()
    hooked = HookedStore(store)
    counting = CountingStore(hooked)
    store.parallel_reads = 16  # type: ignore[attr-defined]
    topic = world.root(counting).topic("t")
    winner = other(world, store)
    publish(topic)
    target = topic.log.append_target()
    file = file_of([(0, 1)], read_version=target.read_version, name="y")
    counting.reset()
    hooked.before_next("create:commit", lambda: publish(winner, name="w"))
    assert topic.log.commit_append([file], target).version == 3
    # The number, the two behind it and the one before, the root; then that ours follows what was there.
    assert counting.by_kind == {("create", "commit"): 2, ("get", "commit"): 6, ("get", "root"): 1}


@pytest.mark.parametrize("what", ["head", "table", "head gone", "table gone"])
def test_a_damaged_checkpoint_costs_the_one_before(what: str, caplog: pytest.LogCaptureFixture) -> None:
    world, store, _, topic = setup()
    for _ in range(260):
        publish(topic, 1)
    expected = topic.log.state()
    name = next(
        n for n in checkpoints(store) if n.startswith(f"{255:020d}") and n.endswith("json" if "head" in what else "w")
    )
    key = checkpoint_prefix("t") + name
    if "gone" in what:
        store.delete(key)
    else:
        data = bytearray(store.get(key))
        data[len(data) // 2] ^= 1
        store.replace(key, bytes(data))
    with caplog.at_level(logging.WARNING, "sparklog.log"):
        if what == "table gone":
            store.delete(checkpoint_key("t", 255))
        opened = other(world, store)
        assert opened.log.state() == expected
        assert opened.log.snapshot().slices.all().base.tolist() == list(range(260))
    assert ("checkpoint" in caplog.text) == ("gone" not in what)


def test_without_a_readable_checkpoint_and_without_commits_the_topic_is_corrupt() -> None:
    world, store, _, topic = setup()
    for _ in range(130):
        publish(topic, 1)
    collect(store, 128)
    assert other(world, store).log.state().version == 130
    key = checkpoint_key("t", 127)
    store.replace(key, store.get(key)[:-5])
    with pytest.raises(Corrupt, match=r"commit 0 of topic 't' is missing, and no checkpoint up to version 127"):
        other(world, store)


def test_a_checkpoint_from_a_newer_release_is_not_passed_over() -> None:
    world, store, _, topic = setup()
    for _ in range(130):
        publish(topic, 1)
    key = checkpoint_key("t", 127)
    store.replace(key, encode({"format": 9}))
    with pytest.raises(BadRequest, match="has format 9, this sparklog reads format 1"):
        other(world, store)


@pytest.mark.parametrize("label", ["create:checkpoint", "list:other"])
@pytest.mark.parametrize("kind", [FaultKind.ERROR_BEFORE, FaultKind.ERROR_AFTER])
def test_failing_to_write_a_checkpoint_does_not_fail_the_commit(label: str, kind: FaultKind) -> None:
    world, store, _, topic = setup()
    for _ in range(126):
        publish(topic, 1)
    failing = faulty(world, store, {label: Fault(kind)})
    assert publish(failing, 1).version == 127
    assert publish(failing, 1).version == 128
    assert topic_records(world, store) == 128


def test_a_table_written_and_its_head_lost_is_only_an_orphan() -> None:
    world, store, _, topic = setup()
    for _ in range(126):
        publish(topic, 1)
    failing = faulty(world, store, {("create:checkpoint", 1): Fault(FaultKind.CRASH_BEFORE)})
    with pytest.raises(Crash):
        publish(failing, 1)
    assert [name[-6:] for name in checkpoints(store)] == [".arrow"]
    survivor = other(world, store)
    assert publish(survivor, 1).version == 128
    assert len(checkpoints(store)) == 3
    assert other(world, store).log.snapshot().slices.all().base.tolist() == list(range(128))


def test_two_committers_write_one_checkpoint() -> None:
    world, store, _, topic = setup()
    for _ in range(120):
        publish(topic, 1)
    one, two = other(world, store), other(world, store)
    for _ in range(10):
        publish(one, 1)
        publish(two, 1)
    assert len([name for name in checkpoints(store) if name.endswith(".json")]) == 1
    assert one.log.state() == two.log.state()
    assert two.log.snapshot().slices.all().base.tolist() == list(range(140))


def test_a_reader_whose_checkpoint_was_removed_opens_afresh() -> None:
    world, store, _, topic = setup()
    for _ in range(130):
        publish(topic, 1)
    reader = other(world, store)
    for _ in range(130):
        publish(topic, 1)
    for name in checkpoints(store):
        if name.startswith(f"{127:020d}"):
            store.delete(checkpoint_prefix("t") + name)
    collect(store, 200)
    assert reader.log.state(refresh=False).version == 130
    assert reader.log.snapshot().slices.all().base.tolist() == list(range(260))


# -- damage


def damage(store: MemoryStore, version: int, change: Callable[[bytes], bytes]) -> str:
    key = commit_key("t", version)
    store.replace(key, change(store.get(key)))
    return key


@pytest.mark.parametrize("version", [0, 2, 3])
def test_a_damaged_commit_names_its_key(version: int) -> None:
    world, store, _, topic = setup()
    for _ in range(3):
        publish(topic)
    key = damage(store, version, lambda data: data.replace(b'"timeMs":1', b'"timeMs":2'))
    with pytest.raises(Corrupt, match="does not match its own CRC-32C; restore it") as error:
        other(world, store)
    assert error.value.file == key


def test_a_replaced_commit_breaks_the_chain() -> None:
    world, store, _, topic = setup()
    for _ in range(3):
        publish(topic)
    forged = replace(decode_commit(store.get(commit_key("t", 2)), "k", 2), commit_id="forged")
    damage(store, 2, lambda data: encode_commit(forged))
    with pytest.raises(Corrupt, match=r"the chain of commits is broken: commit 3 .*\(file t/_log"):
        other(world, store)


def test_a_commit_from_a_newer_release() -> None:
    _, store, _, topic = setup()
    publish(topic)
    store.create(commit_key("t", 2), encode({"format": 2}))
    with pytest.raises(BadRequest, match="has format 2"):
        topic.log.state()
    with pytest.raises(BadRequest, match="has format 2"):
        publish(topic)
