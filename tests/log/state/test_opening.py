"""Opening and following a log, checkpoints, and damage."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace

import pytest

from sparklog.errors import BadRequest, Corrupt
from sparklog.log.journal.documents import encode
from sparklog.log.journal.names import checkpoint_key, checkpoint_prefix, commit_key
from sparklog.log.state.commit_object import decode_commit, encode_commit
from sparklog.storage.memory import MemoryStore
from sparklog.storage.store import Store
from sparklog.testing.faulty_store import Crash, Fault, FaultKind
from sparklog.testing.wrapper_stores import CountingStore, HookedStore
from tests.log.protocol import collect, faulty, other, publish, setup, topic_records
from tests.log.topics import file_of


def checkpoints(store: Store) -> list[str]:
    return [info.key.rsplit("/", 1)[-1] for info in store.list(checkpoint_prefix("t"))]


def test_a_checkpoint_is_written_every_128_commits() -> None:
    _, store, _, topic = setup()
    for _ in range(260):
        publish(topic, 1)
    heads = [name for name in checkpoints(store) if name.endswith(".json")]
    assert heads == [f"{127:020d}.json", f"{255:020d}.json"]
    assert len(checkpoints(store)) == 4


def test_a_checkpoint_is_written_after_one_mebibyte_of_commits() -> None:
    _, store, _, topic = setup()
    target = topic.log.append_target()
    for number in range(3):
        many = file_of([(0, 1)] * 12_000, name=f"n{number}")
        topic.log.commit_append([many], target)
    assert [name for name in checkpoints(store) if name.endswith(".json")] == [f"{3:020d}.json"]


def test_opening_reads_two_listings_a_checkpoint_and_later_commits() -> None:
    world, store, _, topic = setup()
    for _ in range(135):
        publish(topic, 1)
    counting = CountingStore(store)
    root = world.root(counting)
    counting.reset()
    opened = root.topic("t")
    # The checkpoints, the checkpoint object of version 127, commits 128 to 135, the missing commit 136, and a listing
    # that shows no later commits.
    assert counting.counts == {"list": 2, "get": 10}
    counting.reset()
    assert opened.log.state() == topic.log.state()
    assert counting.counts == {"get": 1}
    counting.reset()
    snapshot = opened.log.snapshot()
    assert counting.counts == {"get": 2}
    assert snapshot.slices.all().base.tolist() == list(range(135))


def test_a_remote_store_gets_16_requests_in_parallel(monkeypatch: pytest.MonkeyPatch) -> None:
    """On this store, a listing that begins after a key takes as long as a full listing."""
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
    # The requests are parallel, so some of the last 16 are not sent if the first missing commit is found early.
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


def test_a_commit_in_steady_state_takes_one_create_and_two_reads() -> None:
    world, store, _, _ = setup()
    counting = CountingStore(store)
    topic = world.root(counting).topic("t")
    publish(topic)
    counting.reset()
    publish(topic)
    # Check that the root has not been replaced, and that the previous commit still exists.
    assert counting.by_kind == {("get", "root"): 1, ("create", "commit"): 1, ("get", "commit"): 1}
    counting.reset()
    topic.log.append_target()
    assert counting.counts == {"get": 1}


def test_a_commit_on_a_remote_store_checks_the_root_in_parallel() -> None:
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
    # If the writer has not checked the root within the last second, the commit checks it, and also requests the next
    # commit.
    world.advance(1_001)
    file = file_of([(0, 1)], read_version=target.read_version, name="z")
    topic.log.commit_append([file], target)
    assert counting.by_kind == {("get", "root"): 1, ("create", "commit"): 1, ("get", "commit"): 3}


def test_a_lost_race_on_a_remote_store_reads_commits_in_parallel() -> None:
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
    # The next commit, the two commits after it, the previous commit and the root. After the commit, the previous commit
    # again.
    assert counting.by_kind == {("create", "commit"): 2, ("get", "commit"): 6, ("get", "root"): 1}


@pytest.mark.parametrize("what", ["head", "table", "head gone", "table gone"])
def test_a_damaged_checkpoint_falls_back_to_the_previous_one(what: str, caplog: pytest.LogCaptureFixture) -> None:
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


def test_a_topic_without_a_readable_checkpoint_and_without_commits_is_corrupt() -> None:
    world, store, _, topic = setup()
    for _ in range(130):
        publish(topic, 1)
    collect(store, 128)
    assert other(world, store).log.state().version == 130
    key = checkpoint_key("t", 127)
    store.replace(key, store.get(key)[:-5])
    with pytest.raises(Corrupt, match=r"commit 0 of topic 't' is missing, and no checkpoint up to version 127"):
        other(world, store)


def test_a_checkpoint_of_a_newer_release_is_not_skipped() -> None:
    world, store, _, topic = setup()
    for _ in range(130):
        publish(topic, 1)
    key = checkpoint_key("t", 127)
    store.replace(key, encode({"format": 9}))
    with pytest.raises(BadRequest, match="has format 9, but this release reads format 1"):
        other(world, store)


@pytest.mark.parametrize("label", ["create:checkpoint", "list:other"])
@pytest.mark.parametrize("kind", [FaultKind.ERROR_BEFORE, FaultKind.ERROR_AFTER])
def test_a_failed_checkpoint_does_not_fail_the_commit(label: str, kind: FaultKind) -> None:
    world, store, _, topic = setup()
    for _ in range(126):
        publish(topic, 1)
    failing = faulty(world, store, {label: Fault(kind)})
    assert publish(failing, 1).version == 127
    assert publish(failing, 1).version == 128
    assert topic_records(world, store) == 128


def test_a_table_without_its_checkpoint_object_is_only_unreferenced() -> None:
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


def test_two_writers_write_one_checkpoint() -> None:
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


def test_a_reader_whose_checkpoint_was_deleted_opens_the_log_again() -> None:
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
def test_an_error_for_a_damaged_commit_reports_its_key(version: int) -> None:
    world, store, _, topic = setup()
    for _ in range(3):
        publish(topic)
    key = damage(store, version, lambda data: data.replace(b'"timeMs":1', b'"timeMs":2'))
    with pytest.raises(Corrupt, match="does not match its CRC-32C; restore it") as error:
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


def test_a_commit_of_a_newer_release_is_rejected() -> None:
    _, store, _, topic = setup()
    publish(topic)
    store.create(commit_key("t", 2), encode({"format": 2}))
    with pytest.raises(BadRequest, match="has format 2"):
        topic.log.state()
    with pytest.raises(BadRequest, match="has format 2"):
        publish(topic)
