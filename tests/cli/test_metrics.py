"""`sparklog metrics`: the output is parsed with Prometheus' parser and compared with the output of other commands."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from prometheus_client.parser import text_string_to_metric_families

import sparklog as library
from sparklog.groups.lag import Groups
from sparklog.transactions.producer import transactional
from tests.cli.conftest import Sparklog

KAFKA = Path(__file__).parents[2] / "examples" / "data" / "kafka-log-dir"
HOSTILE = 'a "quoted" \\ group\nof two lines'
Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def samples(text: str) -> Samples:
    """Return the value of each sample by name and labels. Each sample must be unique."""
    found: Samples = {}
    for family in text_string_to_metric_families(text):
        assert family.type == "gauge"
        assert family.documentation
        for sample in family.samples:
            key = sample.name, tuple(sample.labels.items())
            assert key not in found
            found[key] = sample.value
    return found


@pytest.fixture
def filled(root: Path) -> Path:
    """Topic a with 3 and 1 records and two open records, and an active group at offset 2 of partition 0."""
    opened = library.open(root, create=True)
    opened.create_topic("empty")
    topic = opened.create_topic("a", partitions=2)
    topic.append(pa.table({"value": [b"x"] * 4, "partition": pa.array([0, 0, 0, 1], pa.int32())}))
    transaction = transactional(opened, "etl").begin()
    transaction.append("a", pa.table({"value": [b"y", b"y"], "partition": pa.array([0, 0], pa.int32())}))
    transaction.prepare()
    Groups(opened).group(HOSTILE).join("one").commit({"a": {0: 2}})
    return root


def test_metrics_are_those_of_the_root(sparklog: Sparklog, filled: Path) -> None:
    found = samples(sparklog("metrics").out)

    def value(name: str, **labels: object) -> float:
        return found[f"sparklog_{name}", tuple((label, str(text)) for label, text in labels.items())]

    first = {"topic": "a", "partition": 0}
    assert [value(f"partition_{name}", **first) for name in ("log_start_offset", "last_stable_offset")] == [0, 3]
    assert value("partition_log_end_offset", **first) == 5
    assert value("partition_records", **first) == 5
    assert value("partition_unsealed_slices", **first) == 2
    sizes = library.open(filled).topic("a").log.read_snapshot().slices.all()
    assert value("partition_bytes", topic="a", partition=1) == sizes.size[sizes.partition_rows(1)].sum()
    assert value("topic_version", topic="a") == library.open(filled).topic("a").log.state().version
    assert value("topic_open_transactions", topic="a") == 1
    assert value("topic_open_transactions", topic="empty") == 0
    assert value("open_transaction_age_seconds", **first, owner="etl #0", first_offset=3) >= 0
    group = {"group": HOSTILE, **first}
    assert (value("group_current_offset", **group), value("group_lag", **group)) == (2, 3)
    assert 0 <= value("group_lag_seconds", **group) < 3600
    assert value("group_active", group=HOSTILE) == 1
    assert value("group_members", group=HOSTILE) == 1
    # The store's clock is the clock of file timestamps, which may be some milliseconds late.
    assert value("metrics_timestamp_seconds") >= value("topic_commit_timestamp_seconds", topic="a") - 0.02
    # If no offset is committed in partition 1, there is no lag metric instead of a lag of 0.
    assert ("sparklog_group_lag", (("group", HOSTILE), ("topic", "a"), ("partition", "1"))) not in found


def test_the_output_file_is_replaced_atomically(sparklog: Sparklog, filled: Path, tmp_path: Path) -> None:
    file = tmp_path / "sparklog.prom"
    file.write_text("old")
    assert sparklog("metrics", "--output", file, "--topic", "empty").out == ""
    labels = {dict(labels).get("topic") for name, labels in samples(file.read_text()) if "partition" in name}
    assert labels == {"empty"}
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == [file.name]
    outcome = sparklog("metrics", "--output", tmp_path / "no" / "such", code=1)
    assert "cannot be written: No such file or directory; choose another --output" in outcome.err
    assert "topic 'none' does not exist" in sparklog("metrics", "--topic", "none", code=1).err


def test_a_kafka_directory_is_read_in_place(sparklog: Sparklog) -> None:
    found = samples(sparklog("metrics", "--root", KAFKA).out)
    names = {name for name, _ in found}
    assert "sparklog_partition_log_end_offset" in names
    assert "sparklog_partition_records" not in names
    topics = {dict(labels)["topic"] for name, labels in found if name == "sparklog_partition_bytes"}
    assert topics == set(sparklog("topics", "list", "--root", KAFKA).lines)
