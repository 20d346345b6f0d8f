"""`sparklog export`: written files, output, and rejected options."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import sparklog as package
from sparklog.groups.lag import Groups
from sparklog.kafka.exporting.plan import group_partition
from sparklog.kafka.in_place import KafkaView
from sparklog.testing.world import START_MS
from tests.cli.conftest import Sparklog
from tests.compaction.test_kafka_tools import some_rows
from tests.kafka.logs import read


@pytest.fixture
def orders(root: Path) -> Path:
    """A topic with three partitions and three appends."""
    topic = package.open(root, create=True).create_topic(
        "orders", partitions=3, configs={"retention.ms": -1, "segment.bytes": 5000}
    )
    for seed in range(3):
        topic.append(some_rows(120, seed))
    return root


def test_export_writes_a_topic_and_prints_a_table(orders: Path, sparklog: Sparklog, tmp_path: Path) -> None:
    said = sparklog("export", "orders", "--to", tmp_path / "out")
    topic = package.open(orders).topic("orders")
    assert said.lines[0] == (
        f"Topic: orders\tTopicId: {topic.log.state().topic_id}\tPartitionCount: 3\tConfigs: retention.ms=-1"
    )
    assert said.lines[1] == "Not for a broker: segment.bytes=5000 (Kafka requires at least 1048576)"
    assert said.lines[2].split() == ["PARTITION", "LOG-START", "LAST-STABLE", "LOG-END", "SEGMENTS", "BYTES", "LINKED"]
    assert [line.split()[:4] for line in said.lines[3:]] == [
        [str(n), "0", str(end), str(end)] for n, end in enumerate(topic.log.state().log_end.tolist())
    ]
    view = KafkaView(tmp_path / "out")
    assert sum(len(read(view, "orders", n)) for n in range(3)) == 360
    assert "retention.ms=-1\n" in (tmp_path / "out" / "orders.properties").read_text()


def test_export_of_some_partitions_as_json(orders: Path, sparklog: Sparklog, tmp_path: Path) -> None:
    identity = "kphX_vFrTMuzYXwDXyxQYA"
    arguments = ("--partitions", "0,2", "--start", "0:5,2:7", "--topic-id", identity, "--link", "--json")
    (said,) = json.loads(sparklog("export", "orders", "--to", tmp_path / "out", *arguments).out)
    assert said["topicId"] == identity
    assert [(part["partition"], part["logStart"]) for part in said["partitions"]] == [(0, 5), (2, 7)]
    assert f"topic_id: {identity}" in (tmp_path / "out" / "orders-2" / "partition.metadata").read_text()
    (said,) = json.loads(sparklog("export", "orders", "--to", tmp_path / "every", "--start", "3", "--json").out)
    assert [part["logStart"] for part in said["partitions"]] == [3, 3, 3]
    times = ("--from-timestamp", str(START_MS + 2000), "--to-timestamp", "2100-01-01T00:00:00Z")
    (said,) = json.loads(sparklog("export", "orders", "--to", tmp_path / "late", *times, "--json").out)
    topic = package.open(orders).topic("orders")
    found = topic.offset_for_timestamp(START_MS + 2000).values()
    assert [part["logStart"] for part in said["partitions"]] == [at.offset for at in found if at is not None]
    assert [part["logEnd"] for part in said["partitions"]] == topic.log.state().log_end.tolist()


def test_export_writes_groups_as_offsets_topic_and_csv(orders: Path, sparklog: Sparklog, tmp_path: Path) -> None:
    package.open(orders).create_topic("clicks")
    groups = Groups(package.open(orders))
    groups.group("billing").alter({"orders": {0: 5, 2: 7}})
    groups.group("audit").alter({"orders": {1: 9}, "clicks": {0: 0}})
    said = sparklog("export", "orders", "clicks", "--to", tmp_path / "out", "--groups", "all")
    found = said.lines.index("Groups: audit, billing")
    assert said.lines[found - 1].startswith("Topic: __consumer_offsets\tTopicId: ")
    assert "\tPartitionCount: 50\tConfigs: cleanup.policy=compact,compression.type=producer," in said.lines[found - 1]
    # Each group has its state and two offsets in the partition of its name. The other partitions are empty.
    assert [line.split()[:4] for line in said.lines[found + 2 :]] == [
        [str(number), "0", "3", "3"] for number in sorted(group_partition(name, 50) for name in ("audit", "billing"))
    ]
    assert (tmp_path / "out" / "consumer-groups.csv").read_text().splitlines() == [
        "audit,clicks,0,0",
        "audit,orders,1,9",
        "billing,orders,0,5",
        "billing,orders,2,7",
    ]
    ids = ("--topic-id", "orders=kphX_vFrTMuzYXwDXyxQYA", "--topic-id", "__consumer_offsets=4tyc2Pe2TcCyvwdtz1mXkA")
    more = ("--groups", "billing,audit", "--offsets-topic-num-partitions", "1", "--json")
    topic, offsets = json.loads(sparklog("export", "orders", "--to", tmp_path / "one", *ids, *more).out)
    assert (topic["topicId"], offsets["topicId"]) == ("kphX_vFrTMuzYXwDXyxQYA", "4tyc2Pe2TcCyvwdtz1mXkA")
    assert (offsets["groups"], offsets["version"]) == (["billing", "audit"], None)
    assert [part["logEnd"] for part in offsets["partitions"]] == [5]


def test_export_of_older_versions(orders: Path, sparklog: Sparklog, tmp_path: Path) -> None:
    sparklog("export", "orders", "--to", tmp_path / "one", "--as-of", "1")
    view = KafkaView(tmp_path / "one")
    assert sum(len(read(view, "orders", n)) for n in range(3)) == 120
    said = sparklog("export", "orders", "--to", tmp_path / "none", "--as-of", "2001-01-01", code=1)
    assert "created later" in said.err
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("orders", "--partitions", "x"), 2, "expected numbers such as 0,2-4, found 'x'"),
        (("orders", "--end", "a:b"), 2, "PARTITION:OFFSET"),
        (("orders", "--as-of", "yesterday"), 2, "2026-01-31T12:00:00"),
        (("orders", "other", "--start", "1"), 2, "specify partitions as P:N,..."),
        (("orders", "--groups", "nobody"), 1, "group 'nobody' does not exist"),
        (("orders", "--groups", ","), 2, "expected a value, found ','"),
        (("orders", "other", "--topic-id", "x"), 2, "specify TOPIC=x"),
        (("ordres",), 1, "did you mean 'orders'?"),
        (("orders", "--partitions", "1-3"), 1, "partitions 0 to 2, found partition 3"),
        (("orders", "--end", "0:100000"), 1, "out of range"),
    ],
)
def test_export_rejects_invalid_options(
    orders: Path, sparklog: Sparklog, tmp_path: Path, arguments: tuple[str, ...], code: int, words: str
) -> None:
    assert words in sparklog("export", *arguments, "--to", tmp_path / "out", code=code).err
    assert not (tmp_path / "out").exists()


def test_export_rejects_a_nonempty_directory(orders: Path, sparklog: Sparklog, tmp_path: Path) -> None:
    sparklog("export", "orders", "--to", tmp_path / "out")
    before = {path: path.read_bytes() for path in (tmp_path / "out").rglob("*") if path.is_file()}
    said = sparklog("export", "orders", "--to", tmp_path / "out", code=1)
    assert said.err.endswith("is not empty: choose an empty or new directory for the export [SPARKLOG_CONFLICT]\n")
    assert {path: path.read_bytes() for path in (tmp_path / "out").rglob("*") if path.is_file()} == before
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []
