"""Older versions of a topic are rebuilt from the remaining objects in the log, or rejected."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator

import pytest

from sparklog.errors import Corrupt, NotFound
from sparklog.log.journal.names import checkpoint_key, commit_key
from sparklog.log.state.commit_intents import LogStartIntent
from sparklog.log.state.history import History
from sparklog.log.state.topic_state import TopicState
from sparklog.log.topic.topic import Topic
from sparklog.storage.memory import MemoryStore
from sparklog.storage.store import ObjectInfo
from sparklog.testing.faulty_store import Call, Fault, FaultKind, FaultyStore
from sparklog.testing.world import World
from sparklog.testing.wrapper_stores import HookedStore
from tests.log.protocol import setup
from tests.log.topics import append
from tests.support.small_limits import small_limits


@pytest.fixture(autouse=True)
def few_commits_per_checkpoint() -> Iterator[None]:
    with small_limits(checkpoint_commits=4):
        yield


def story() -> tuple[World, MemoryStore, Topic, list[tuple[object, ...]]]:
    """Return a topic with 14 versions (checkpoints at 3, 7, 11), and each state when it was the latest."""
    world, store, _, topic = setup()
    seen = [state(topic)]
    for number in range(1, 14):
        if number == 6:
            topic.log.commit(LogStartIntent(topic.log.state().topic_id, {0: 4}))
        else:
            append(topic, (0, number), (1, 1))
        world.now_ms += 1000
        seen.append(state(topic))
    assert list(History(store, "t").checkpoints) == [3, 7, 11]
    return world, store, topic, seen


def state(topic: Topic) -> tuple[object, ...]:
    snapshot = topic.log.snapshot()
    rows = snapshot.slices.all()
    return snapshot.state, rows.partition.tolist(), rows.base.tolist(), rows.end.tolist(), snapshot.slices.paths()


def at(store: MemoryStore, version: int) -> tuple[object, ...]:
    found = History(store, "t").at(version)
    rows = found.slices.all()
    return found.state, rows.partition.tolist(), rows.base.tolist(), rows.end.tolist(), found.slices.paths()


def test_every_version_can_be_rebuilt() -> None:
    _, store, _, seen = story()
    for version, expected in enumerate(seen):
        assert at(store, version) == expected


def test_listed_commits_and_checkpoints() -> None:
    world, store, _, _ = story()
    history = History(store, "t")
    assert history.commits.version.tolist() == list(range(14))
    assert history.commits.modified_ms[0] < history.commits.modified_ms[-1] <= world.now_ms
    assert (history.commits.size > 100).all()
    assert history.commits.has(0, 13)
    assert history.commits.has(5, 4)
    assert not history.commits.has(0, 14)
    assert len(history.tables) == 3


def test_a_log_without_the_commits_below_a_checkpoint() -> None:
    _, store, _, seen = story()
    for version in range(7):
        store.delete(commit_key("t", version))
    for version in range(7, 14):
        assert at(store, version) == seen[version]
    assert at(store, 3) == seen[3]
    for version in (0, 2, 4, 6):
        with pytest.raises(NotFound, match=f"version {version} of topic 't' cannot be rebuilt"):
            at(store, version)
    assert not History(store, "t").commits.has(6, 7)


@pytest.mark.parametrize("part", [".json", ".arrow"])
def test_a_damaged_checkpoint_falls_back_to_the_previous_one(part: str) -> None:
    _, store, _, seen = story()
    for info in list(store.list(f"t/_log/checkpoints/{7:020d}")):
        if info.key.endswith(part):
            store.replace(info.key, store.get(info.key)[:-2] + b"??")
    history = History(store, "t")
    assert history.checkpoint(7) is None
    assert history.base_of(8) == 3
    assert list(history.checkpoints_below(11)) == [11, 3]
    assert at(store, 8) == seen[8]


def test_a_version_above_the_latest_cannot_be_rebuilt() -> None:
    _, store, _, _ = story()
    with pytest.raises(NotFound):
        at(store, 14)


@pytest.mark.parametrize("carried", [0, 127])
def test_a_commit_that_breaks_the_chain_is_detected(carried: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A commit that a stalled process creates under a deleted number has the correct predecessor, but no successor."""
    monkeypatch.setattr(TopicState, "carried_commits", carried)
    world, store, _, seen = story()
    _, other, _, again = setup()
    world.now_ms += 7
    for _ in range(9):
        append(again, (0, 1))
    store.replace(commit_key("t", 4), other.get(commit_key("t", 4)))
    if carried:
        # Commit 5 was created after the copy that commit 5 embeds.
        assert at(store, 5) == seen[5]
    for version in (4, 5)[: 1 if carried else 2]:
        with pytest.raises(Corrupt, match="chain of commits is broken"):
            at(store, version)


def test_a_bit_flipped_in_transit_is_read_again() -> None:
    _, store, _, seen = story()
    flips = [0]

    def decide(call: Call) -> Fault | None:
        if call.label == "get:commit" and flips[0] == 0:
            flips[0] = 1
            return Fault(FaultKind.FLIP, 900)
        return None

    store.delete(checkpoint_key("t", 11))
    found = History(FaultyStore(store, decide), "t")
    found._valid[7] = History(store, "t").checkpoint(7)
    assert found.at(10).state == seen[10][0]
    assert flips == [1]


def test_commits_are_read_in_parallel() -> None:
    _, store, _, seen = story()
    for version in (3, 7, 11):
        store.delete(checkpoint_key("t", version))
    found = History(HookedStore(store, parallel_reads=8), "t").at(13)
    assert found.state == seen[13][0]


def test_a_missing_log() -> None:
    history = History(MemoryStore(lambda: 0), "t")
    assert len(history.commits) == 0
    with pytest.raises(NotFound):
        history.at(0)


def test_reading_one_commit() -> None:
    _, store, _, _ = story()
    history = History(store, "t")
    assert history.commit(6).op == "delete-records"
    with pytest.raises(NotFound):
        history.commit(99)


def test_a_checkpoint_without_its_table_falls_back_to_the_previous_one() -> None:
    """If a store reports that a missing object exists, or a file was lost, readers and writers continue."""
    world, store, topic, seen = story()
    for info in list(store.list(f"t/_log/checkpoints/{11:020d}-")):
        store.delete(info.key)
    again = world.root(store).topic("t")
    assert state(again) == seen[13]
    for _ in range(4):
        append(again, (0, 1))
    assert max(History(store, "t").checkpoints) > 13
    assert state(world.root(store).topic("t")) == state(again) == state(topic)


def test_a_checkpoint_never_references_a_missing_table() -> None:
    world, store, _, _ = story()

    def decide(call: Call) -> Fault | None:
        return Fault(FaultKind.FALSE_EXISTS) if call.verb == "create" and call.key.endswith(".arrow") else None

    broken = world.root(FaultyStore(store, decide)).topic("t")
    for _ in range(4):
        append(broken, (0, 1))
    assert max(History(store, "t").checkpoints) == 11

    def twice(call: Call) -> Fault | None:
        return Fault(FaultKind.TWICE) if call.verb == "create" and call.key.endswith(".arrow") else None

    retried = world.root(FaultyStore(store, twice)).topic("t")
    append(retried, (0, 1))
    history = History(store, "t")
    assert max(history.checkpoints) == 18
    assert history.checkpoint(18) is not None


def test_listing_many_commits_uses_little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run of `retain` reads the commits of a week: 600,000 with one commit per second."""
    _, store, _, _ = setup()
    count = 10_000

    def listed(prefix: str, after: str = "") -> Iterator[ObjectInfo]:
        commits = (ObjectInfo(commit_key("t", number), 4000 + number, 10**12 + number) for number in range(count))
        return commits if prefix == "t/_log/0" else iter(())

    monkeypatch.setattr(store, "list", listed)
    tracemalloc.start()
    try:
        history = History(store, "t")
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert (len(history.commits), history.commits.size[-1]) == (count, 3999 + count)
    assert peak < 100 * count
