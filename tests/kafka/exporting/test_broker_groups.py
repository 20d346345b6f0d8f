"""Test that a broker opens an export with its groups, and that Kafka's tools and consumers see the same offsets."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from sparklog.groups.group_state import CommittedOffset
from sparklog.groups.lag import Groups
from sparklog.kafka.exporting import export_topics
from sparklog.kafka.exporting.plan import OFFSETS_CONFIGS
from sparklog.kafka.exporting.run import ExportOptions
from sparklog.kafka.importing.run import ImportOptions, import_log_dir
from sparklog.kafka.in_place.directory import CONSUMER_OFFSETS, GROUPS_FILE
from sparklog.log.journal.clocks import SYSTEM
from sparklog.log.topic.root import Root, open_root
from tests.fixture_data import split_partition
from tests.kafka_broker import Broker
from tests.kafka_tools import Missing

pytestmark = [pytest.mark.slow, pytest.mark.java]

DAY_MS = 86_400_000

Expected = dict[tuple[str, str, int], tuple[int, int | None, str]]
"""Maps (group, topic, partition) to offset, leader epoch and metadata."""


def expected_groups(fixture: Path) -> Expected:
    """Return the output of `kafka-consumer-groups` for the cluster that wrote the fixture."""
    told = json.loads((fixture / "expected" / "consumer-group-offsets.json").read_text())
    return {
        (group, *split_partition(name)): (item["offset"], item["leaderEpoch"], item["metadata"])
        for group, partitions in told.items()
        for name, item in partitions.items()
    }


def kept(root: Root) -> Expected:
    """Return the offsets in the root."""
    return {
        (group, *topic_partition): (item.offset, item.leader_epoch, item.metadata)
        for group in Groups(root).names()
        for topic_partition, item in Groups(root).group(group).committed().items()
    }


def described(broker: Broker) -> dict[tuple[str, str, int], int]:
    """Return the current offsets in the output of `kafka-consumer-groups --describe --all-groups`."""
    lines = [line.split() for line in broker.groups("--describe", "--all-groups")]
    rows = [line for line in lines if line[0] != "GROUP"]
    return {(group, topic, int(partition)): int(offset) for group, topic, partition, offset, *_ in rows}


@pytest.mark.parametrize("fixture", ["transactions", "transactions-tv0"])
def test_exported_groups_match_kafkas_clusters(fixtures: Path, tmp_path: Path, fixture: str) -> None:
    expected = expected_groups(fixtures / fixture)
    assert len(expected) > 10
    root = open_root(str(tmp_path / "root"), create=True)
    report = import_log_dir(root, fixtures / fixture / "data", ImportOptions(configs={"retention.ms": -1}))
    topics = report.names
    assert kept(root) == expected
    # The offsets were committed long ago. They are retained only because the export states that the group is empty
    # since now.
    old = CommittedOffset(
        "txn-a", root.topic("txn-a").log.state().topic_id, 1, 5, 0, "", SYSTEM.wall_ms() - 400 * DAY_MS
    )
    Groups(root).group("of-old").restore([old])
    expected["of-old", "txn-a", 1] = (5, 0, "")
    try:
        broker = Broker(tmp_path / "broker", "offsets.retention.check.interval.ms=500\n")
    except Missing as missing:
        pytest.skip(str(missing))
    with broker:
        ids = {
            name: broker.create(name, root.topic(name).log.state().partitions, {"retention.ms": "-1"})
            for name in topics
        }
        ids[CONSUMER_OFFSETS] = broker.create(CONSUMER_OFFSETS, 50, {k: str(v) for k, v in OFFSETS_CONFIGS.items()})
    exported = export_topics(root, tmp_path / "out", topics, ExportOptions(topic_id=ids, groups="all"))
    for name in ids:
        broker.replace(tmp_path / "out", name)
    with broker:
        offsets = {topic_partition: item[0] for topic_partition, item in expected.items()}
        assert described(broker) == offsets
        states = [line.split() for line in broker.groups("--describe", "--all-groups", "--state")]
        assert {line[0] for line in states if line[-2:] == ["Empty", "0"]} == {group for group, _, _ in expected}
        time.sleep(2)
        assert asked(broker, expected) == {
            topic_partition: (offset, None if epoch is None else 0, metadata)
            for topic_partition, (offset, epoch, metadata) in expected.items()
        }
        consumed_from(broker, expected)
        # The second way: restore groups that do not exist in the cluster from the file.
        broker.groups("--delete", "--all-groups")
        assert described(broker) == {}
        names = [word for group, _, _ in expected for word in ("--group", group)]
        broker.groups("--reset-offsets", "--from-file", str(tmp_path / "out" / GROUPS_FILE), *names, "--execute")
        # The tool rejects offsets beyond a log end, and the fixtures contain one such offset.
        ends = {(each.topic, part.partition): part.log_end for each in exported for part in each.partitions}
        assert described(broker) == {
            topic_partition: min(offset, ends[topic_partition[1:]]) for topic_partition, offset in offsets.items()
        }
        said = broker.said().rpartition("STARTING THE BROKER")[2]
    for trouble in ("Corrupt", "orrupted", " ERROR ", "stray", "Unknown record"):
        assert trouble not in said, [line for line in said.splitlines() if trouble in line][:5]


def asked(broker: Broker, expected: Expected) -> Expected:
    """Return the offsets that an admin client gets."""
    from kafka.admin import KafkaAdminClient

    admin: Any = KafkaAdminClient(bootstrap_servers=broker.address)
    found: Expected = {}
    try:
        for group in {group for group, _, _ in expected}:
            answer = admin.list_group_offsets({group: None})[group]
            for topic_partition, item in answer.items():
                epoch = None if item.leader_epoch in (None, -1) else item.leader_epoch
                found[group, topic_partition.topic, topic_partition.partition] = (item.offset, epoch, item.metadata)
    finally:
        admin.close()
    return found


def consumed_from(broker: Broker, expected: Expected) -> None:
    """Check that a consumer of a group continues at its committed offset."""
    from kafka import KafkaConsumer, TopicPartition

    (group, topic, partition), (offset, _, _) = next(item for item in expected.items() if item[0][0] == "g-classic")
    consumer: Any = KafkaConsumer(bootstrap_servers=broker.address, group_id=group, enable_auto_commit=False)
    try:
        consumer.assign([TopicPartition(topic, partition)])
        assert consumer.position(TopicPartition(topic, partition)) == offset
    finally:
        consumer.close()
