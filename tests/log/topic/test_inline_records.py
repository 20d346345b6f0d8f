"""Inline records: how they are written and read, and which readers and writers reject them."""

from __future__ import annotations

import json
import random
from collections.abc import Callable

import pyarrow as pa
import pytest

from sparklog.compaction import run
from sparklog.compaction.merge_plan import plan_merges
from sparklog.errors import BadRequest, Corrupt
from sparklog.limits import Limits
from sparklog.log.journal import documents
from sparklog.log.journal.documents import CARRIED_COMMITS, INLINE_RECORDS, document_of, peek_commit_id
from sparklog.log.journal.names import (
    append_path,
    commit_key,
    commit_path,
    copied_path,
    is_commit,
    path_read_version,
)
from sparklog.log.state import commit_intents, commit_object
from sparklog.log.state.commit_object import decode_commit
from sparklog.log.state.configs import TopicConfigs
from sparklog.log.state.embedded_commits import RECENT_RECORDS, RecentRecords
from sparklog.log.topic.appending import write_rows
from sparklog.log.topic.topic import Topic
from sparklog.log.write.append_output import (
    inline_file_bytes,
    is_inline,
    join_inline,
    place_inline_records,
    slice_bytes,
    task_inline_bytes,
    written_slices,
)
from sparklog.log.write.append_writer import AppendWriter
from sparklog.maintenance.work_items import InProcess, Settings
from sparklog.testing.world import World
from sparklog.testing.wrapper_stores import CountingStore
from sparklog.tools.verification.run import verify_root
from sparklog.transactions.producer import transactional
from tests.support.compaction import compact_topic
from tests.support.inline_bytes import inline_records_of

BOUND = 4096


def inline_topic(world: World, name: str = "t", *, partitions: int = 2, bound: int = BOUND) -> Topic:
    configs = {"inline.records.bytes": bound, "carried.commits": 0}
    return world.root().create_topic(name, partitions=partitions, configs=configs)


def rows(count: int, first: int = 0) -> pa.Table:
    return pa.table(
        {
            "value": [f"value {number}".encode() for number in range(first, first + count)],
            "partition": pa.array([number % 2 for number in range(count)], pa.int32()),
        }
    )


def values(topic: Topic) -> list[bytes]:
    return sorted(topic.scan(columns=["value"]).to_table()["value"].to_pylist())


def data_files(world: World, name: str = "t") -> list[str]:
    return [info.key for info in world.store.list(f"{name}/") if "/_log/" not in info.key]


@pytest.fixture
def world() -> World:
    return World()


def test_small_records_are_inline_and_large_records_are_in_a_file(world: World) -> None:
    topic = inline_topic(world)
    assert topic.append(rows(4)).version == 1
    assert data_files(world) == []
    large = pa.table({"value": [bytes(range(256)) * 40], "partition": pa.array([0], pa.int32())})
    topic.append(large)
    topic.append(rows(2, 4))
    decoded = decode_commit(world.store.get(commit_key("t", 1)), commit_key("t", 1), 1)
    assert [file.path for file in decoded.files] == [commit_path(1)]
    assert decoded.read_features == decoded.write_features == (INLINE_RECORDS,)
    assert values(topic) == sorted([*(f"value {number}".encode() for number in range(6)), large["value"][0].as_py()])
    assert verify_root(world.store).findings == ()


def test_a_topic_without_the_config_has_unchanged_bytes(world: World) -> None:
    topic = world.root().create_topic("t", partitions=2, configs={"inline.records.bytes": 0, "carried.commits": 0})
    topic.append(rows(4))
    decoded = decode_commit(world.store.get(commit_key("t", 1)), commit_key("t", 1), 1)
    assert (decoded.inline, decoded.read_features) == (None, ())
    assert len(data_files(world)) == 1
    assert INLINE_RECORDS not in topic.log.state().read_features


def test_every_damaged_byte_and_every_length_is_detected(world: World) -> None:
    inline_topic(world).append(rows(4))
    key = commit_key("t", 1)
    data = world.store.get(key)
    start = len(document_of(data))
    places = [*range(0, start, 7), start - 1, *range(start, len(data), 3)]
    for place in places:
        flipped = bytearray(data)
        flipped[place] ^= 4
        with pytest.raises((Corrupt, BadRequest)):
            decode_commit(bytes(flipped), key, 1)
    for wrong in (data[:-1], data + b"\0", data[:start], data[: start - 1], data + data):
        with pytest.raises(Corrupt):
            decode_commit(wrong, key, 1)
    assert peek_commit_id(data) is not None
    assert peek_commit_id(data[:-1]) is None


def test_unchecked_inline_records_may_be_damaged(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    inline_topic(world).append(rows(4))
    key = commit_key("t", 1)
    data = world.store.get(key)
    monkeypatch.setattr(commit_object, "_check_sections", lambda *given: None)
    assert decode_commit(data[:-1] + bytes([data[-1] ^ 1]), key, 1).version == 1


def test_verify_reports_a_damaged_bit_in_inline_records(world: World) -> None:
    topic = inline_topic(world)
    topic.append(rows(4))
    key = commit_key("t", 1)
    data = bytearray(world.store.get(key))
    place = len(document_of(bytes(data))) + 9
    data[place] ^= 1
    world.store.delete(key)
    assert world.store.create(key, bytes(data))
    findings = verify_root(world.store).findings
    assert (key, place) in [(finding.file, finding.position) for finding in findings]


def test_an_older_release_rejects_the_feature_in_one_line(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    inline_topic(world).append(rows(4))
    world.topic("t").log.write_checkpoint()
    monkeypatch.setattr(documents, "KNOWN_READ_FEATURES", frozenset())
    with pytest.raises(BadRequest, match="requires the sparklog features inlineRecords") as raised:
        World(world.store).root().topic("t").scan().to_table()
    assert "\n" not in str(raised.value)
    monkeypatch.undo()
    monkeypatch.setattr(commit_intents, "KNOWN_WRITE_FEATURES", frozenset())
    with pytest.raises(BadRequest, match="writing to this topic requires the sparklog features inlineRecords"):
        World(world.store).root().topic("t").append(rows(1))


def test_an_older_release_finds_the_feature_in_a_readable_commit(world: World) -> None:
    """The feature is recorded when the topic is created, or with the config. Release 0.3 reads the entire object as one
    document.
    """

    def features(name: str) -> list[object]:
        objects = [world.store.get(info.key) for info in world.store.list(f"{name}/_log/0")]
        return [None if inline_records_of(data) else json.loads(data)["readFeatures"] for data in objects]

    topic = world.root().create_topic("new", partitions=2)
    topic.append(rows(2))
    assert features("new") == [[CARRIED_COMMITS, INLINE_RECORDS], None]
    old = world.root().create_topic("old", partitions=2, configs={"inline.records.bytes": 0, "carried.commits": 0})
    old.alter(configs={"retention.ms": 1})
    old.append(rows(2))
    assert features("old") == [[], [], []]
    old.alter(configs={"inline.records.bytes": BOUND})
    old.append(rows(2))
    old.alter(configs={"inline.records.bytes": None})
    old.append(rows(2))
    assert features("old")[3:] == [[INLINE_RECORDS], None, [INLINE_RECORDS], None]
    assert old.log.state().read_features == old.log.state().write_features == (INLINE_RECORDS,)


@pytest.mark.parametrize("value", [None, 131072])
def test_a_reset_config_has_its_default(world: World, value: int | None) -> None:
    topic = world.root().create_topic("t", partitions=2, configs={"inline.records.bytes": 0})
    topic.append(rows(2))
    topic.alter(configs={"inline.records.bytes": value})
    topic.append(rows(2))
    configs = {config.name: config.value for config in topic.describe().configs}
    assert configs["inline.records.bytes"] == "131072"
    assert [inline_records_of(world.store.get(commit_key("t", number))) != b"" for number in (1, 3)] == [False, True]


def test_resetting_a_config_that_is_not_set_does_not_add_its_feature(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(commit_intents, "features_of", lambda changes, op: ())
        old = world.root().create_topic("old")
    old.alter(configs={"inline.records.bytes": None, "carried.commits": None, "retention.ms": 1})
    assert old.log.state().write_features == ()


def test_a_topic_of_an_older_release_describes_no_inline_records(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def shown(topic: Topic) -> str:
        (config,) = [config for config in topic.describe().configs if config.name == "inline.records.bytes"]
        assert config.source == "DEFAULT_CONFIG"
        return config.value

    assert shown(world.root().create_topic("new")) == "131072"
    monkeypatch.setattr(commit_intents, "features_of", lambda changes, op: ())
    assert shown(world.root().create_topic("old")) == "0"


def test_a_lost_race_changes_offsets_path_and_positions(world: World) -> None:
    topic = inline_topic(world)
    append = write_rows(topic.log, rows(4))
    files, target = append.files, append.target
    World(world.store).root().topic("t").append(rows(20, 100))
    outcome = topic.log.commit_append(files, target)
    assert (outcome.version, outcome.base) == (2, {0: 10, 1: 10})
    decoded = decode_commit(world.store.get(commit_key("t", 2)), commit_key("t", 2), 2)
    assert [file.path for file in decoded.files] == [commit_path(2)]
    assert len(values(topic)) == 24


def test_tasks_share_one_commit_or_one_file(world: World) -> None:
    topic = inline_topic(world)

    def of_tasks(count: int) -> None:
        target = topic.log.append_target()
        files = []
        for task in range(count):
            writer = AppendWriter(target, None, world.env(), seed=task)
            for batch in rows(8, task * 8).to_batches():
                writer.write(batch)
            files += writer.finish()
        assert {file.path for file in files} == {""}
        assert topic.log.commit_append(files, target).records == 8 * count

    of_tasks(3)
    assert data_files(world) == []
    of_tasks(30)
    assert len(data_files(world)) == 1
    assert len(values(topic)) == 8 * 33
    assert verify_root(world.store).findings == ()


def test_prepares_have_inline_records_except_those_of_joined_jobs(world: World) -> None:
    topic = inline_topic(world)
    begun = transactional(world.root(), "etl").begin()
    joined_one = transactional(world.root(), "etl").join(begun.n, "part")
    joined_one.append("t", rows(2))
    joined_one.prepare()
    assert len(data_files(world)) == 1
    begun.append("t", rows(2, 2))
    assert values(topic) == []
    begun.commit()
    assert len(data_files(world)) == 1
    assert len(values(topic)) == 4


def test_a_follower_sends_no_request_for_cached_records(world: World) -> None:
    topic = inline_topic(world)
    topic.append(rows(4))
    store = CountingStore(world.store)
    reader = World(store).root().topic("t")
    assert len(values(reader)) == 4
    topic.append(rows(4))
    store.reset()
    assert len(values(reader)) == 8
    # The new commit, and the missing commit after it.
    assert [key for verb, key in store.keys if verb == "get"].count(commit_key("t", 2)) == 1
    assert [key for verb, key in store.keys if verb == "get"].count(commit_key("t", 1)) == 0


def test_cached_inline_records_are_limited_and_verified(world: World) -> None:
    tails = RecentRecords()
    for number in range(600):
        tails.add(world.store, f"t/_log/{number:020d}.json", 10, bytes(16 << 10))
    assert tails._bytes <= world.store.limits.cached_inline_bytes
    assert len(tails._cached) <= 256
    topic = inline_topic(world)
    topic.append(rows(4))
    key, data = commit_key("t", 1), world.store.get(commit_key("t", 1))
    start = len(document_of(data))
    RECENT_RECORDS.add(topic.store, key, start, bytes(len(data) - start))
    assert len(values(topic)) == 4
    assert not RECENT_RECORDS.evict(topic.store, key)


def test_merging_moves_inline_records_to_files(world: World) -> None:
    topic = inline_topic(world)
    for first in range(0, 40, 4):
        topic.append(rows(4, first))
    compact_topic(topic, Settings(now_ms=world.now_ms), InProcess())
    paths = topic.log.snapshot().slices.paths()
    assert not [path for path in paths if path.startswith("_log/")]
    assert len(values(topic)) == 40


def test_a_run_leaves_at_most_one_commit_with_referenced_inline_records(world: World) -> None:
    """This also applies if no slice is merged: each commit has the only slice of its partition."""
    topic = inline_topic(world, partitions=8)

    def commits_after_a_run() -> int:
        compact_topic(topic, Settings(now_ms=world.now_ms), InProcess())
        return sum(is_commit(path) for path in topic.log.snapshot().slices.paths())

    for partition in range(8):
        topic.append(pa.table({"value": [b"v"], "partition": pa.array([partition], pa.int32())}))
        if partition == 0:
            assert commits_after_a_run() == 1
    assert commits_after_a_run() == 0
    assert len(values(topic)) == 8


def test_inline_records_are_merged_before_larger_files(world: World) -> None:
    topic = inline_topic(world)
    for number in range(4):
        for partition, size in ((0, 3 * BOUND), (1, 10)):
            value = random.Random(number).randbytes(size)
            topic.append(pa.table({"value": [value], "partition": pa.array([partition], pa.int32())}))
    world.store.limits = Limits(merge_slices=4)
    works = plan_merges(world.store, topic.log.snapshot(), Settings(world.now_ms), env=world.env())
    assert [(work.partitions, work.of_commits) for work in works] == [((1,), True), ((0,), False)]
    assert works[0].nbytes < works[1].nbytes
    assert run._ordered(reversed(works)) == works


def test_a_task_returns_an_eighth_of_the_inline_limit_but_at_least_16_kib() -> None:
    """A driver holds the inline files of thousands of tasks. By default, they are not larger than before the limit was
    128 KiB.
    """
    kib = 1024
    bounds = (0, kib, 16 * kib, TopicConfigs().inline_records_bytes, 1 << 20)
    assert [task_inline_bytes(bound) for bound in bounds] == [0, kib, 16 * kib, 16 * kib, 128 * kib]


def test_inline_files_are_joined_and_written_if_they_are_too_large(world: World) -> None:
    topic = inline_topic(world)
    one, two = (write_rows(topic.log, rows(4, first)).files[0] for first in (0, 4))
    assert is_inline(one)
    both = join_inline([one, two])
    assert both.data == slice_bytes(one) + slice_bytes(two) + both.data[-both.footer_length :]
    assert both.size == inline_file_bytes(4, len(slice_bytes(one)) + len(slice_bytes(two))) == len(both.data)
    assert [item.crc for item in written_slices(both)] == [*one.crc, *two.crc]
    (written,) = place_inline_records(world.store, "t", [one, two], both.size - 1, lambda: append_path(0, "x"))
    assert world.store.get(f"t/{written.path}") == both.data
    assert (written.size, written.crc) == (both.size, both.crc)


def test_paths_of_inline_files(world: World) -> None:
    assert path_read_version("_log/00000000000000000007.json") == 6
    assert path_read_version("/other/_log/00000000000000000007.json") == 6
    assert path_read_version("_log/00000000000000000000.json") is None
    assert path_read_version("_log/7.json") is None
    own = copied_path("_log/00000000000000000007.json", 99)
    other = copied_path("/other/_log/00000000000000000007.json", 3)
    assert own == "append/00000000000000000006-commit00000000000000000007.slices"
    assert path_read_version(other) == 3
    assert other != copied_path("/third/_log/00000000000000000007.json", 3)


def test_a_document_describes_its_inline_records(world: World) -> None:
    inline_topic(world).append(rows(4))
    key = commit_key("t", 1)
    data = world.store.get(key)
    document = json.loads(document_of(data))
    assert document["inline"]["bytes"] == len(data) - len(document_of(data)) == document["files"][0]["size"]

    def sealed(change: Callable[[dict[str, object]], object]) -> bytes:
        body = {name: value for name, value in json.loads(document_of(data)).items() if name != "crc"}
        change(body)
        return documents.encode(body) + data[len(document_of(data)) :]

    wrong: tuple[Callable[[dict[str, object]], object], ...] = (
        lambda body: body.pop("inline"),
        lambda body: body.pop("files"),
        lambda body: body["files"][0].update(path=commit_path(1)),  # type: ignore[index]
        lambda body: body["files"][0].update(position=[0, 9]),  # type: ignore[index]
        lambda body: body["files"].append(body["files"][0]),  # type: ignore[attr-defined,index]
    )
    decode_commit(sealed(lambda body: None), key, 1)
    for change in wrong:
        with pytest.raises(Corrupt):
            decode_commit(sealed(change), key, 1)
