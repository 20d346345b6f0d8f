"""Test exported consumer groups: the topic that a coordinator would write, and the file for Kafka's tool."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sparklog.errors import BadRequest, Corrupt, NotFound
from sparklog.groups.group_state import CommittedOffset, OffsetAndMetadata
from sparklog.groups.lag import Groups
from sparklog.kafka.exporting import ExportedTopic, export_topics
from sparklog.kafka.exporting import run as exporting
from sparklog.kafka.exporting.plan import (
    GroupOffsets,
    group_partition,
    group_records,
)
from sparklog.kafka.exporting.run import ExportOptions
from sparklog.kafka.in_place import KafkaView
from sparklog.kafka.in_place.directory import CONSUMER_OFFSETS, GROUPS_FILE
from sparklog.kafka.messages.coordinator_records import (
    GroupKey,
    GroupValue,
    OffsetKey,
    OffsetValue,
    decode_group_key,
    decode_group_value,
    decode_offset_value,
)
from sparklog.log.journal.names import commit_key, groups_prefix
from sparklog.log.state.slice_table import Snapshot
from sparklog.log.topic.root import Root, open_root
from sparklog.testing.world import START_MS
from sparklog.tools.verification.kafka_directory import verify_log_dir
from tests.fixture_data import ExpectedRecord
from tests.kafka.logs import read
from tests.kafka_tools import KafkaTools
from tests.support.records import rows
from tests.support.topics_world import TopicsWorld

OLD_MS = START_MS - 400 * 86_400_000


@pytest.fixture
def root() -> Root:
    """Create topics a, b and c with three partitions and records, and groups with different offsets."""
    world = TopicsWorld(partitions=3)
    root = world.root()
    for name, count in (("a", 10), ("b", 5)):
        for partition in range(3):
            root.topic(name).append(rows(*map(str, range(count)), partition=partition))
    groups = Groups(root)
    ids = {name: root.topic(name).log.state().topic_id for name in "abc"}
    member = groups.group("billing").join("one")
    member.commit({"a": {0: 3, 2: OffsetAndMetadata(4, "métadonnées", 7)}, "b": {1: 5}})
    groups.group('odd, "name"').alter({"a": {1: 10}})
    groups.group("old").restore([CommittedOffset("b", ids["b"], 0, 2, None, "", OLD_MS)], generation=12)
    groups.group("elsewhere").alter({"c": {0: 0}})
    return root


def exported(root: Root, path: Path, *topics: str, **options: Any) -> ExportedTopic:
    """Return the exported offsets of the groups."""
    found = export_topics(root, path, topics, ExportOptions(durable=False, **options))
    assert [each.topic for each in found] == [*topics, CONSUMER_OFFSETS]
    return found[-1]


def records_in(path: Path, partitions: int) -> Iterator[tuple[int, ExpectedRecord]]:
    view = KafkaView(path)
    for partition in range(partitions):
        for record in read(view, CONSUMER_OFFSETS, partition):
            yield partition, record


def offsets_in(path: Path, partitions: int = 50) -> dict[tuple[str, str, int], OffsetValue]:
    """Return the committed offset by (group, topic, partition).

    The records of a group are in its partition, state first.
    """
    found: dict[tuple[str, str, int], OffsetValue] = {}
    states: dict[str, GroupValue] = {}
    for partition, record in records_in(path, partitions):
        key = decode_group_key(record.key)
        assert isinstance(key, GroupKey | OffsetKey)
        assert partition == group_partition(key.group, partitions)
        assert record.timestamp == START_MS
        if isinstance(key, GroupKey):
            state = decode_group_value(record.value)
            assert state is not None
            states[key.group] = state
            continue
        value = decode_offset_value(record.value)
        assert value is not None
        assert key.group in states
        found[key.group, key.topic, key.partition] = value
    generations = {"billing": 1, 'odd, "name"': 0, "old": 12, "elsewhere": 0}
    for name, state in states.items():
        assert state == GroupValue("consumer", state.generation, None, None, START_MS)
        assert state.generation >= generations[name]
    return found


def test_verify_accepts_all_files_of_an_export(root: Root, tmp_path: Path) -> None:
    long = root.create_topic("l" * 249).name
    exported(root, tmp_path / "out", "a", "b", "c", long, groups=["billing"])
    (tmp_path / "out" / "gone.properties").write_bytes(b"of a topic that is not here")
    report = verify_log_dir(tmp_path / "out", topics=["a"])
    assert report.sound
    assert [each.file for each in report.foreign] == ["gone.properties"]


def test_group_partition_matches_kafka(fixtures: Path) -> None:
    assert group_partition("my-group", 50) == 12
    assert group_partition("", 50) == 0
    assert group_partition("polygenelubricants", 50) == 0, "its hash is the smallest int, which has no absolute value"
    found = 0
    for fixture in ("transactions", "transactions-tv0"):
        view = KafkaView(fixtures / fixture / "data")
        assert len(view.bounds(CONSUMER_OFFSETS)) == 2
        for partition in (0, 1):
            for record in read(view, CONSUMER_OFFSETS, partition):
                key = decode_group_key(record.key)
                if isinstance(key, GroupKey | OffsetKey):
                    assert group_partition(key.group, 2) == partition
                    found += 1
    assert found > 20
    assert {group_partition(name, 7) for name in ("\U0001f600", "é" * 9, "日本")} <= set(range(7))


def test_records_match_kafkas_coordinator(fixtures: Path) -> None:
    """Compare states and keys byte for byte.

    Kafka 4.1 writes offsets in version 4. The export writes all fields of version 3, which older brokers can also read.
    """
    view, states, offsets = KafkaView(fixtures / "transactions" / "data"), 0, 0
    for partition in (0, 1):
        for record in read(view, CONSUMER_OFFSETS, partition):
            key = decode_group_key(record.key)
            if record.value is None or not isinstance(key, GroupKey | OffsetKey):
                continue
            if isinstance(key, GroupKey):
                state = decode_group_value(record.value)
                assert state is not None
                if state.protocol_type == "consumer" and state.leader is None:
                    (mine,) = group_records(GroupOffsets(key.group, state.generation, ()), state.state_timestamp or 0)
                    assert mine == (record.key, record.value)
                    states += 1
                continue
            value = decode_offset_value(record.value)
            assert value is not None
            place = (key.topic, "id", key.partition, value.offset, value.leader_epoch, value.metadata)
            committed = CommittedOffset(*place, value.commit_timestamp)
            (_, mine) = group_records(GroupOffsets(key.group, 0, (committed,)), START_MS)
            assert mine[0] == record.key
            assert mine[1][:2] == b"\0\3"
            assert decode_offset_value(mine[1]) == replace(value, topic_id=None)
            offsets += 1
    assert (states, offsets) >= (1, 20)


def test_exported_groups_can_be_read_by_kafkas_tool(root: Root, tmp_path: Path, kafka_tools: KafkaTools) -> None:
    found = exported(root, tmp_path / "out", "a", "b", groups="all")
    assert (found.version, found.partition_count, found.groups) == (None, 50, ("billing", 'odd, "name"', "old"))
    assert offsets_in(tmp_path / "out") == {
        ("billing", "a", 0): OffsetValue(3, None, "", START_MS),
        ("billing", "a", 2): OffsetValue(4, 0, "métadonnées", START_MS),
        ("billing", "b", 1): OffsetValue(5, None, "", START_MS),
        ('odd, "name"', "a", 1): OffsetValue(10, None, "", START_MS),
        ("old", "b", 0): OffsetValue(2, None, "", OLD_MS),
    }
    with (tmp_path / "out" / GROUPS_FILE).open(newline="", encoding="utf-8") as file:
        assert list(csv.reader(file)) == [
            ["billing", "a", "0", "3"],
            ["billing", "a", "2", "4"],
            ["billing", "b", "1", "5"],
            ['odd, "name"', "a", "1", "10"],
            ["old", "b", "0", "2"],
        ]
    properties = (tmp_path / "out" / f"{CONSUMER_OFFSETS}.properties").read_text()
    assert properties.startswith(
        "# kafka-topics.sh --create --topic __consumer_offsets --partitions 50 --config cleanup.policy=compact"
        " --config compression.type=producer --config segment.bytes=104857600\n"
    )
    folders = sorted(path.name for path in (tmp_path / "out").glob("__consumer_offsets-*"))
    assert folders == sorted(f"__consumer_offsets-{n}" for n in range(50))
    assert kafka_tools.complaints(sorted((tmp_path / "out").glob("__consumer_offsets-*/*.log")), emptied=True) == []


def test_leader_epochs_of_committed_offsets_are_preserved_if_requested(root: Root, tmp_path: Path) -> None:
    exported(root, tmp_path / "kept", "a", groups="billing", keep_leader_epochs=True)
    assert {place: each.leader_epoch for place, each in offsets_in(tmp_path / "kept").items()} == {
        ("billing", "a", 0): None,
        ("billing", "a", 2): 7,
    }


def test_selected_groups_partitions_and_ids(root: Root, tmp_path: Path) -> None:
    ids = {"a": "kphX_vFrTMuzYXwDXyxQYA", CONSUMER_OFFSETS: "4tyc2Pe2TcCyvwdtz1mXkA"}
    options: dict[str, Any] = {"groups": ["billing", "billing"], "offsets_partitions": 3, "topic_id": ids}
    found = exported(root, tmp_path / "out", "a", **options)
    assert (found.topic_id, found.partition_count, found.groups) == (ids[CONSUMER_OFFSETS], 3, ("billing",))
    assert set(offsets_in(tmp_path / "out", 3)) == {("billing", "a", 0), ("billing", "a", 2)}
    for topic, identity in ids.items():
        assert f"topic_id: {identity}" in (tmp_path / "out" / f"{topic}-0" / "partition.metadata").read_text()


def test_offsets_are_limited_to_the_exported_range(root: Root, tmp_path: Path) -> None:
    root.topic("b").append(rows("more", partition=0))
    Groups(root).group("ahead").alter({"b": {0: 6, 1: 5}})
    exported(root, tmp_path / "part", "a", "b", groups="all", partitions=[0], ends={0: 5})
    found = offsets_in_part(tmp_path / "part")
    assert found == {("ahead", "b", 0): 5, ("billing", "a", 0): 3, ("old", "b", 0): 2}
    Groups(root).group("beyond").alter({"b": {0: 99}})
    exported(root, tmp_path / "whole", "b", groups=["ahead", "beyond"])
    assert offsets_in_part(tmp_path / "whole") == {("ahead", "b", 0): 6, ("ahead", "b", 1): 5, ("beyond", "b", 0): 99}
    exported(root, tmp_path / "before", "b", groups="beyond", version=root.topic("b").log.state().version - 1)
    assert offsets_in_part(tmp_path / "before") == {("beyond", "b", 0): 5}


def offsets_in_part(path: Path) -> dict[tuple[str, str, int], int]:
    with (path / GROUPS_FILE).open(newline="", encoding="utf-8") as file:
        return {(group, topic, int(partition)): int(offset) for group, topic, partition, offset in csv.reader(file)}


def test_offsets_of_a_deleted_topic_are_not_exported(root: Root, tmp_path: Path) -> None:
    root.delete_topic("b")
    root.create_topic("b", partitions=3)
    exported(root, tmp_path / "out", "b", groups="all")
    assert offsets_in(tmp_path / "out") == {}
    assert (tmp_path / "out" / GROUPS_FILE).read_bytes() == b""


@pytest.mark.parametrize(
    ("options", "kind", "says"),
    [
        ({"groups": ["biling"]}, NotFound, "group 'biling' does not exist in .*did you mean 'billing'"),
        ({"groups": "nobody"}, NotFound, "group 'nobody' does not exist"),
        (
            {"groups": ["billing", "elsewhere"]},
            NotFound,
            "group 'elsewhere' has no committed offsets for a, b: omit the group",
        ),
        ({"groups": "all", "offsets_partitions": 0}, BadRequest, "the number of partitions must be 1 to .*, found 0"),
        ({"groups": "all", "topic_id": "kphX_vFrTMuzYXwDXyxQYA"}, BadRequest, "pass a mapping of topics to ids"),
        (
            {"groups": "all", "topic_id": {"c": "kphX_vFrTMuzYXwDXyxQYA"}},
            BadRequest,
            "'c' has a topic id",
        ),
        ({"topic_id": {CONSUMER_OFFSETS: "kphX_vFrTMuzYXwDXyxQYA"}}, BadRequest, "has a topic id, but is not exported"),
        ({"groups": "all", "topic_id": {CONSUMER_OFFSETS: "x"}}, BadRequest, "output of kafka-topics.sh --describe"),
    ],
)
def test_rejected_export_leaves_no_files(
    root: Root, tmp_path: Path, options: dict[str, Any], kind: type[Exception], says: str
) -> None:
    with pytest.raises(kind, match=says) as error:
        export_topics(root, tmp_path / "out", ["a", "b"], ExportOptions(durable=False, **options))
    assert "\n" not in str(error.value)
    assert list(tmp_path.iterdir()) == []


def test_topic_consumer_offsets_and_groups_are_mutually_exclusive(root: Root, tmp_path: Path) -> None:
    root.create_topic(CONSUMER_OFFSETS)
    with pytest.raises(BadRequest, match="expected either the topic __consumer_offsets or groups to export"):
        export_topics(root, tmp_path / "out", ["a", CONSUMER_OFFSETS], ExportOptions(groups="all", durable=False))
    (found,) = export_topics(root, tmp_path / "out", [CONSUMER_OFFSETS], ExportOptions(durable=False))
    assert found.groups == ()


def test_offsets_committed_during_an_export_do_not_exceed_its_end(
    root: Root, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    end = int(root.topic("b").log.state().log_end[0])
    Groups(root).group("busy").alter({"b": {0: end}})
    take = exporting._read_snapshots

    def busy(root: Root, topics: Sequence[str], version: int | None, time_ms: int | None) -> list[Snapshot]:
        found = take(root, topics, version, time_ms)
        root.topic("b").append(rows("late", partition=0))
        Groups(root).group("busy").alter({"b": {0: end + 1}})
        return found

    monkeypatch.setattr(exporting, "_read_snapshots", busy)
    exported(root, tmp_path / "busy", "b", groups="busy")
    assert offsets_in_part(tmp_path / "busy") == {("busy", "b", 0): end}


def test_damaged_group_fails_the_export(root: Root, tmp_path: Path) -> None:
    key = commit_key(groups_prefix("elsewhere"), 0)
    root.store.replace(key, b"damaged")  # type: ignore[attr-defined]
    fresh = open_root(root.store, env=root.env)
    for wanted in ("all", "elsewhere", ["billing", "elsewhere"]):
        with pytest.raises(Corrupt, match="elsewhere"):
            export_topics(fresh, tmp_path / "no", ["a"], ExportOptions(groups=wanted, durable=False))
    assert exported(fresh, tmp_path / "out", "a", groups=["billing"]).topic == CONSUMER_OFFSETS
