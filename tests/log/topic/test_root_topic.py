"""Roots and topics: creating, finding, altering and deleting them."""

from __future__ import annotations

import gc
import json
import pickle
from collections.abc import Callable
from pathlib import Path
from weakref import ref

import pytest

from sparklog.errors import BadRequest, Conflict, Corrupt, NotFound
from sparklog.groups.group import Group
from sparklog.groups.group_state import GROUPS
from sparklog.limits import Limits
from sparklog.log.journal.clocks import SYSTEM
from sparklog.log.journal.documents import Fields, decode, encode
from sparklog.log.journal.names import ROOT_JSON, ROOT_KEY, read_root_id
from sparklog.log.state.commit_intents import CreateIntent
from sparklog.log.state.configs import TopicConfigs
from sparklog.log.state.slices import SliceFlag
from sparklog.log.state.topic_state import TOPIC_STATE_JSON
from sparklog.log.state.writer_runs import WriterKey
from sparklog.log.topic import engine as engine_module
from sparklog.log.topic.root import Root, open_root
from sparklog.storage.local import LocalStore
from sparklog.testing.faulty_store import Crash, Fault, FaultKind, FaultyStore, Script
from sparklog.testing.world import World
from sparklog.testing.wrapper_stores import CountingStore
from tests.log.topics import append, file_of


@pytest.fixture
def world() -> World:
    return World()


# -- roots


def test_a_root_is_created_once(world: World) -> None:
    store = world.store
    with pytest.raises(NotFound, match=r"memory:test is not a sparklog root: it has no _root.json"):
        open_root(store, env=world.env())
    first, second = world.root(store), world.root(store)
    assert first.id == second.id == read_root_id(store)
    assert open_root(store, env=world.env()).id == first.id
    assert set(json.loads(store.get(ROOT_KEY))) == set(ROOT_JSON.names)
    assert decode(store.get(ROOT_KEY), ROOT_KEY, "root").integer("createdMs") == world.now_ms


def test_two_concurrent_creators_get_the_same_root_id(world: World) -> None:
    store = world.store
    hidden = FaultyStore(store, Script({("get:root", 0): Fault(FaultKind.ABSENT)}))
    winner = world.root(store)
    assert world.root(hidden).id == winner.id


def test_a_root_of_a_newer_release_is_rejected(world: World) -> None:
    store = world.store
    world.root(store)
    store.replace(ROOT_KEY, encode({"format": 3, "readFeatures": [], "rootId": "A", "createdMs": 0}))
    with pytest.raises(
        BadRequest, match=r"root _root.json has format 3, but this release reads format 1; upgrade sparklog"
    ):
        world.root(store)


def test_a_damaged_root_object_is_corrupt(world: World) -> None:
    store = world.store
    world.root(store)
    store.replace(ROOT_KEY, store.get(ROOT_KEY)[:-9])
    with pytest.raises(Corrupt, match=r"_root.json"):
        world.root(store)


def test_opening_a_path(tmp_path: Path) -> None:
    place = tmp_path / "logs" / "here"
    with pytest.raises(NotFound, match="is not a sparklog root"):
        open_root(place)
    assert not place.exists()
    root = open_root(place, create=True)
    assert root.location == str(place)
    assert open_root(str(place)).id == root.id
    assert open_root(f"file://{place}").id == root.id


def test_a_path_that_is_a_file_is_rejected(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("x")
    for create in (True, False):
        with pytest.raises(BadRequest, match="is a file"):
            open_root(file, create=create)


def test_roots_and_topics_survive_pickling(tmp_path: Path) -> None:
    root = open_root(LocalStore(tmp_path, durable=False), create=True)
    topic = root.create_topic("t", partitions=2)
    append(topic, (0, 3))
    copy = pickle.loads(pickle.dumps(root))
    assert (copy.id, copy.env) == (root.id, SYSTEM)
    again = pickle.loads(pickle.dumps(topic))
    assert again.log.state() == topic.log.state()
    target = pickle.loads(pickle.dumps(topic.log.append_target()))
    assert target.topic_id == topic.log.state().topic_id
    assert (target.root_id, target.partitions, target.read_version, target.leader_epoch) == (root.id, 2, 1, 0)


# -- creating and finding


def test_topics_are_created_with_partitions_and_configs(world: World) -> None:
    root = world.root()
    topic = root.create_topic("orders", partitions=3, configs={"retention.ms": -1})
    state = topic.log.state()
    assert (state.version, state.partitions, state.configs.retention_ms) == (0, 3, -1)
    assert len(state.topic_id) == 22
    for name in ("a", "a.b", "a-b"):
        root.create_topic(name)
    assert root.topics() == ["a", "a-b", "a.b", "orders"]
    assert root.topic("orders").log.state() == state
    assert world.root(root.store).topics() == root.topics()


def test_creating_an_existing_topic_is_a_conflict(world: World) -> None:
    root = world.root()
    root.create_topic("t", partitions=2)
    with pytest.raises(Conflict, match="topic 't' already exists, with 2 partitions"):
        root.create_topic("t")
    with pytest.raises(Conflict, match="already exists"):
        world.root(root.store).create_topic("t", partitions=2)


def test_a_lost_response_to_create_is_not_a_conflict(world: World) -> None:
    store = world.store
    world.root(store)
    for name, kind in (("a", FaultKind.ERROR_AFTER), ("b", FaultKind.TWICE), ("c", FaultKind.LATE)):
        root = world.root(FaultyStore(store, Script({("create:commit", 0): Fault(kind)}), world.sleep))
        assert root.create_topic(name, partitions=2).log.state().partitions == 2
    assert world.root(store).topics() == ["a", "b", "c"]


def test_ensure_topic_opens_a_concurrently_created_topic(world: World) -> None:
    store = world.store
    world.root(store).create_topic("t", partitions=5)
    hidden = FaultyStore(
        store, Script({("get:commit", 0): Fault(FaultKind.ABSENT), ("get:commit", 1): Fault(FaultKind.ABSENT)})
    )
    topic = open_root(hidden, env=world.env()).ensure_topic("t", partitions=2, configs={"retention.ms": 1})
    assert topic.log.state().partitions == 5
    assert not topic.log.state().configs.explicit
    assert world.root(store).ensure_topic("new", partitions=2).log.state().partitions == 2


def test_an_error_for_an_unknown_topic_suggests_similar_names(world: World) -> None:
    root = world.root()
    for name in ("orders", "orders2", "payments", "order"):
        root.create_topic(name)
    root.delete_topic("order")
    with pytest.raises(
        NotFound, match=r"topic 'ordres' does not exist in memory:test; did you mean 'orders' or 'orders2'\?"
    ):
        root.topic("ordres")
    with pytest.raises(NotFound, match=r"topics are orders, orders2, payments; root.ensure_topic\('zzzz'\) creates"):
        root.topic("zzzz")
    with pytest.raises(BadRequest, match="may contain only"):
        root.topic("../orders")


def test_handles_of_missing_topics_are_evicted(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_module, "HANDLES_PER_SWEEP", 8)
    root = world.root()
    engine, topic = root.engine, root.create_topic("t").log
    Group(root, "g").alter({"t": {0: 0}})
    group, empty = engine.entries(GROUPS, "g"), engine.log("empty")
    combined = ref(engine.combined(engine.entries(GROUPS, "empty")))
    assert not engine.exists("empty")
    for number in range(8):
        assert not engine.exists(f"empty-{number}")
        assert Group(root, f"empty-{number}").committed() == {}
    assert engine.log("t") is topic
    assert engine.entries(GROUPS, "g") is group
    assert engine.log("empty") is not empty, "a client may ask for any number of names: none of them stays in memory"
    gc.collect()
    assert combined() is None
    assert not engine.exists("empty")


@pytest.mark.parametrize("partitions", [0, -1, 100_001, 1.5, True, "3"])
def test_invalid_partition_counts_are_rejected(world: World, partitions: int) -> None:
    with pytest.raises(BadRequest, match="the number of partitions must be 1 to 100000, found"):
        world.root().create_topic("t", partitions=partitions)


def test_invalid_configs_do_not_create_a_topic(world: World) -> None:
    root = world.root()
    with pytest.raises(BadRequest, match=r"retention.ms must be an integer of at least -1, found 'abc'"):
        root.create_topic("t", configs={"retention.ms": "abc"})
    with pytest.raises(BadRequest, match="a value below 3600000"):
        root.create_topic("t", configs={"file.delete.delay.ms": 60000})
    assert root.topics() == []
    assert list(root.store.list("t/")) == []
    root.create_topic("t", configs={"file.delete.delay.ms": 60000}, force=True)
    assert root.topic("t").log.state().configs.file_delete_delay_ms == 60000


def test_names_that_differ_only_in_case_are_rejected(world: World) -> None:
    root = world.root()
    root.create_topic("Orders")
    with pytest.raises(Conflict, match="topic 'orders' differs only in case from 'Orders'"):
        root.create_topic("orders")
    root.delete_topic("Orders")
    with pytest.raises(Conflict, match="differs only in case"):
        root.create_topic("orders")
    root.create_topic("Orders")
    assert root.topics() == ["Orders"]


def test_names_that_differ_only_in_case_created_concurrently(world: World) -> None:
    store = world.store
    first, second = world.root(store), world.root(store)
    list_folders = store.list_folders

    class Meanwhile:
        calls = 0

        def __call__(self, prefix: str) -> list[str]:
            found = list(list_folders(prefix))
            self.calls += 1
            if self.calls == 1:
                second.create_topic("T")
            return found

    store.list_folders = Meanwhile()  # type: ignore[method-assign, assignment]
    with pytest.raises(Conflict, match="differs only in case"):
        first.create_topic("t")
    store.list_folders = list_folders  # type: ignore[method-assign]
    assert len(world.root(store).topics()) <= 1


def test_a_name_collision_does_not_delete_another_writers_topic(world: World) -> None:
    """Between the creation and the second check for a collision, another process uses or replaces the topic."""
    store = world.store
    list_folders = store.list_folders

    def clash(name: str, meanwhile: Callable[[Root], object]) -> None:
        other = world.root(store)
        calls = 0

        def slowly(prefix: str) -> list[str]:
            nonlocal calls
            calls += 1
            if calls == 2:
                store.list_folders = list_folders  # type: ignore[method-assign]
                meanwhile(other)
            names = list(list_folders(prefix))
            # The other topic was created after the first check.
            return [each for each in names if each != name.upper()] if calls == 1 else names

        if name.upper() not in other.topics():
            other.create_topic(name.upper())
        store.list_folders = slowly  # type: ignore[method-assign, assignment]
        world.root(store).create_topic(name)

    clash("used", lambda other: append(other.topic("used"), (0, 3)))
    assert world.root(store).topic("used").log.state().log_end.tolist() == [3]

    def replace(other: Root) -> None:
        other.delete_topic("again")
        other.engine.log("again").commit(CreateIntent("other", 2, TopicConfigs()))

    with pytest.raises(Conflict, match="topic 'again' differs only in case from 'AGAIN'"):
        clash("again", replace)
    assert world.root(store).topic("again").log.state().topic_id == "other"
    with pytest.raises(Conflict, match="differs only in case"):
        clash("gone", lambda other: other.delete_topic("gone"))
    with pytest.raises(Conflict, match="differs only in case"):
        clash("mine", lambda other: None)
    assert not {"gone", "mine"} & set(world.root(store).topics())


def test_other_directories_are_not_topics(world: World) -> None:
    store = world.store
    root = world.root(store)
    root.create_topic("t")
    for key in ("_groups/g/_log/00000000000000000000.json", "other/file", "_tmp/x"):
        store.create(key, b"x")
    assert root.topics() == ["t"]


# -- deleting


def test_a_deleted_topic_is_not_found_and_its_name_can_be_reused(world: World) -> None:
    root = world.root()
    topic = root.create_topic("t", partitions=3)
    append(topic, (0, 5))
    old = topic.log.state().topic_id
    root.delete_topic("t")
    assert root.topics() == []
    for look in (
        topic.log.state,
        topic.log.snapshot,
        topic.describe,
        lambda: root.topic("t"),
        lambda: root.delete_topic("t"),
    ):
        with pytest.raises(NotFound, match="topic 't' does not exist in memory:test"):
            look()
    state = root.create_topic("t").log.state()
    assert state.version == 3
    assert state.topic_id != old
    assert state.log_end.tolist() == [0]
    assert world.root(root.store).topic("t").log.state() == state


def test_a_topic_created_again_has_an_empty_registry(world: World) -> None:
    root = world.root()
    topic = root.create_topic("t")
    target = topic.log.append_target()
    topic.log.commit_append([file_of([(0, 3)])], target, writer=WriterKey("q", 5, "r"))
    root.delete_topic("t")
    topic = root.create_topic("t")
    outcome = topic.log.commit_append(
        [file_of([(0, 3)], name="b")], topic.log.append_target(), writer=WriterKey("q", 5, "r")
    )
    assert not outcome.skipped
    assert outcome.base == {0: 0}


# -- altering


def test_altering_configs_and_partitions(world: World) -> None:
    root = world.root()
    topic = root.create_topic("t", partitions=2, configs={"retention.ms": 7})
    state = topic.alter(configs={"retention.ms": None, "segment.ms": "9"}, partitions=4)
    assert (state.partitions, dict(state.configs.explicit), state.version) == (4, {"segment.ms": "9"}, 1)
    assert topic.alter(configs={"segment.ms": 9}).version == 1
    with pytest.raises(BadRequest, match="can only increase"):
        topic.alter(partitions=4)
    with pytest.raises(BadRequest, match=r"did you mean 'retention.ms'"):
        topic.alter(configs={"retention.m": 4})
    with pytest.raises(BadRequest, match="a value below 3600000"):
        topic.alter(configs={"file.delete.delay.ms": 10})
    assert topic.alter(configs={"file.delete.delay.ms": 10}, force=True).configs.file_delete_delay_ms == 10
    assert topic.log.state().version == 2


def test_earlier_partition_counts_are_kept(world: World) -> None:
    """This applies to processes that open the topic from its commits, and from a checkpoint."""
    root = world.root()
    topic = root.create_topic("t", partitions=2)
    assert topic.log.state().previous_partition_counts == ()
    topic.alter(partitions=3)
    topic.alter(configs={"segment.ms": "9"})
    state = topic.alter(partitions=7)
    assert state.previous_partition_counts == (2, 3)
    assert world.root(root.store).topic("t").log.state().previous_partition_counts == (2, 3)
    document = json.loads(json.dumps(TOPIC_STATE_JSON.to_json(state)))
    assert TOPIC_STATE_JSON.from_json(Fields(document, "k", "checkpoint")).previous_partition_counts == (2, 3)
    root.delete_topic("t")
    assert root.create_topic("t", partitions=9).log.state().previous_partition_counts == ()


def test_a_topic_with_keyless_records_becomes_compacted_only_with_force(world: World) -> None:
    topic = world.root().create_topic("t", partitions=2)
    append(topic, (0, 10))
    append(topic, (1, 4), flags=int(SliceFlag.HAS_NULL_KEYS))
    with pytest.raises(BadRequest, match=r"without keys \(in 1 of 2 slices, first in partition 1, offsets 0"):
        topic.alter(configs={"cleanup.policy": "compact"})
    assert not topic.log.state().configs.is_compacted
    assert topic.alter(configs={"cleanup.policy": "compact,delete"}, force=True).configs.is_compacted
    # A topic that is already compacted can still be altered.
    assert topic.alter(configs={"cleanup.policy": "compact"}).configs.cleanup_policy == ("compact",)


def test_delete_records_advances_the_log_start(world: World) -> None:
    root = world.root()
    topic = root.create_topic("t", partitions=2)
    append(topic, (0, 10), (1, 4))
    assert topic.delete_records({0: 4}) == {0: 4}
    assert topic.delete_records({0: 2, 1: -1}) == {0: 4, 1: 4}
    assert topic.delete_records({0: 2}) == {0: 4}
    assert topic.log.state().version == 3
    assert topic.log.snapshot().slices.all().partition.tolist() == [0]
    with pytest.raises(NotFound, match="offset 11 of partition 0 of topic 't' is out of range: expected 0 to 10"):
        topic.delete_records({0: 11})
    with pytest.raises(NotFound, match="has partitions 0 to 1, found partition 2"):
        topic.delete_records({2: -1})
    topic.alter(configs={"cleanup.policy": "compact"})
    with pytest.raises(BadRequest, match=r"cleanup.policy is 'compact'; add delete"):
        topic.delete_records({0: 5})


# -- describing and appending


def test_describe(world: World) -> None:
    root = world.root()
    topic = root.create_topic("t", partitions=2, configs={"retention.ms": 7})
    append(topic, (0, 10), (1, 4), (0, 1))
    topic.delete_records({0: 3})
    found = topic.describe()
    assert (found.name, found.version, found.slices, found.bytes) == ("t", 2, 3, 300)
    assert [(p.partition, p.log_start, p.log_end, p.last_stable, p.slices, p.bytes) for p in found.partitions] == [
        (0, 3, 11, 11, 2, 200),
        (1, 0, 4, 4, 1, 100),
    ]
    configs = {config.name: (config.value, config.source) for config in found.configs}
    assert configs["retention.ms"] == ("7", "DYNAMIC_TOPIC_CONFIG")
    assert configs["segment.ms"] == ("604800000", "DEFAULT_CONFIG")
    assert found.topic_id == topic.log.state().topic_id


def test_results_of_appends(world: World) -> None:
    root = world.root()
    topic = root.create_topic("t", partitions=3)
    target = topic.log.append_target()
    files = [file_of([(2, 3), (0, 2)]), file_of([(2, 4)], name="b"), file_of([], name="c")]
    outcome = topic.log.commit_append(files, target)
    assert (outcome.version, outcome.base, outcome.end, outcome.records) == (1, {2: 0, 0: 0}, {2: 7, 0: 2}, 9)
    empty = topic.log.commit_append([], target, writer=WriterKey("q", 0))
    assert (empty.version, empty.records, empty.skipped, topic.log.state().version) == (1, 0, False, 1)


def test_txn_versions_are_skipped_with_a_warning(world: World, caplog: pytest.LogCaptureFixture) -> None:
    root = world.root()
    topic = root.create_topic("t")
    target = topic.log.append_target()
    for version, skipped in ((5, False), (5, True), (3, True), (6, False)):
        key = WriterKey("job", version, mode="txn")
        caplog.clear()
        outcome = topic.log.commit_append([file_of([(0, 3)], name=f"n{version}")], target, writer=key)
        assert outcome.skipped is skipped
        assert ("already committed to topic 't'" in caplog.text) is skipped
    assert topic.log.state().log_end.tolist() == [6]


def test_files_for_another_root_or_topic_are_rejected(world: World) -> None:
    root, other = world.root(), World(seed=50).root()
    topic, stranger = root.create_topic("t"), other.create_topic("t")
    with pytest.raises(BadRequest, match="files were written for topic 't' of root"):
        topic.log.commit_append([file_of([(0, 1)])], stranger.log.append_target())


def test_topic_states_are_cached_and_polled(world: World) -> None:
    counting = CountingStore(world.store)
    root = world.root(counting)
    topic = root.create_topic("t")
    append(topic, (0, 1))
    counting.reset()
    first = topic.log.state()
    assert topic.log.state() is first
    assert counting.counts == {"get": 2}
    counting.reset()
    assert topic.log.state(refresh=False) is first
    assert counting.counts == {}


def test_a_crash_during_root_creation(world: World) -> None:
    store = world.store
    with pytest.raises(Crash):
        world.root(FaultyStore(store, Script({("create:root", 0): Fault(FaultKind.CRASH_AFTER)})))
    assert world.root(store).id == read_root_id(store)


def test_deleting_a_missing_topic_does_not_advise_to_create_it(world: World) -> None:
    root = world.root(world.store)
    with pytest.raises(NotFound) as raised:
        root.delete_topic("nosuch")
    assert str(raised.value).endswith("topic 'nosuch' does not exist in memory:test; root.topics() lists the topics")


def test_a_warning_about_unsealed_slices_is_logged_once_per_checkpoint(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    world.root().create_topic("t")
    for expected in (3, 7):
        root = world.root()
        root.store.limits = Limits(many_unsealed=2)
        topic = root.topic("t")
        while topic.log.state().version < expected:
            topic.append({"value": ["a"]})
        topic.log.write_checkpoint()
        topic = world.root(root.store).topic("t")
        caplog.clear()
        for _ in range(3):
            topic.append({"value": ["a"]})
        assert [record.getMessage() for record in caplog.records if "unsealed" in record.getMessage()] == [
            f"topic t has {expected} unsealed slices; run sparklog compact to merge them"
        ]
