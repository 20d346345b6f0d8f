"""Test the groups of a Kafka directory in place, against Kafka's admin client and against an import."""

from __future__ import annotations

import json
import logging
import shutil
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from sparklog.errors import BadRequest, Corrupt, NotFound
from sparklog.groups.lag import Groups, Lag, lag
from sparklog.kafka.importing.coordinators import UNKNOWN, KafkaGroups, has_groups
from sparklog.kafka.importing.run import import_log_dir
from sparklog.kafka.in_place.view import KafkaView
from sparklog.log.topic.root import RootView, open_root
from sparklog.maintenance.work_items import Settings
from sparklog.tools.report.gather import gather
from tests.kafka.logs import HOUR_MS, batch, write_partition
from tests.kafka.test_import_coordinators import key, messages, value, write_groups
from tests.support.command_line import invoke

NOW_MS = 1_900_000_000_000


@pytest.mark.parametrize("fixture", ["transactions", "transactions-tv0"])
def test_lag_matches_kafka(fixtures: Path, fixture: str) -> None:
    expected = json.loads((fixtures / fixture / "expected/consumer-group-offsets.json").read_text())
    groups = KafkaGroups(KafkaView(str(fixtures / fixture / "data")), NOW_MS)
    found: dict[str, dict[str, int]] = {}
    for row in groups.lag(seconds=False):
        found.setdefault(row.group, {})[f"{row.topic}-{row.partition}"] = row.current_offset or 0
    assert found == {
        group: {topic_partition: offset["offset"] for topic_partition, offset in offsets.items()}
        for group, offsets in expected.items()
        if offsets
    }
    assert groups.names() == sorted(found)


def test_imported_groups_have_the_same_lag(fixtures: Path, tmp_path: Path) -> None:
    data = fixtures / "transactions" / "data"
    root = open_root(str(tmp_path / "root"), create=True)
    import_log_dir(root, str(data))
    expected = [replace(row, member=None) for row in lag(root, now_ms=NOW_MS)]
    groups = KafkaGroups(KafkaView(str(data)), NOW_MS)
    # An import ends at the log end, so offsets that a transaction has committed beyond the log end are not imported.
    rows = [row for row in groups.lag() if (row.lag or 0) >= 0]
    assert rows == [row for row in expected if (row.group, row.topic, row.partition) in {_place(each) for each in rows}]
    assert len(rows) > 8
    assert {row.seconds for row in rows if row.lag} > {row.seconds for row in rows if not row.lag} - {0.0}


def _place(row: Lag) -> tuple[str, str, int]:
    return row.group, row.topic, row.partition


def test_lag_of_selected_groups_and_topics(fixtures: Path) -> None:
    view = KafkaView(str(fixtures / "transactions" / "data"))
    groups = KafkaGroups(view, NOW_MS)
    assert {row.group for row in groups.lag(["g-tx", "nobody"], seconds=False)} == {"g-tx"}
    view.refresh(["txn-b"])
    assert {row.topic for row in groups.lag(topics=["txn-b"])} == {"txn-b"}
    described, nobody = groups.descriptions(["g-tx", "nobody"])
    assert (described.state, described.generation, described.instance) == (UNKNOWN, 2, None)
    assert described.time_ms > 1_600_000_000_000
    assert (nobody.id, nobody.state) == ("nobody", "Dead")


@pytest.mark.usefixtures("records_in_files")
def test_damaged_record_does_not_hide_groups(tmp_path: Path) -> None:
    write_partition(tmp_path, "t-0", {0: batch(0, [b"fine"])})
    damaged = bytearray(batch(0, [b"damaged"]))
    damaged[-3] ^= 1
    write_partition(tmp_path, "damaged-0", {0: bytes(damaged), 1: batch(1, [b"fine"])})
    write_groups(tmp_path, messages(0, [(key(topic), value(0)) for topic in ("damaged", "t")]))
    groups = KafkaGroups(KafkaView(str(tmp_path)), HOUR_MS + 5_000)
    rows = groups.lag()
    assert [(row.topic, row.lag, row.seconds) for row in rows] == [("damaged", 2, None), ("t", 1, 5.0)]
    assert [type(error) for error in groups.failures] == [Corrupt]
    shown = invoke(["groups", "describe", "g", "--root", tmp_path])
    assert [line.split()[1] for line in shown.stdout.splitlines()] == ["TOPIC", "damaged", "t"]
    assert (shown.exit_code, shown.stderr.count("CRC-32C does not match")) == (1, 1)
    # A report of a root also contains the group.
    root = open_root(str(tmp_path / "root"), create=True)
    root.create_topic("t").append(pa.table({"value": ["damaged"]}))
    Groups(root).group("g").alter({"t": {0: 0}})
    (file,) = (tmp_path / "root" / "t" / "append").iterdir()
    file.chmod(0o600)
    data = bytearray(file.read_bytes())
    data[30] ^= 1
    file.write_bytes(data)
    report = gather(RootView(open_root(str(tmp_path / "root"))), Settings(now_ms=HOUR_MS))
    assert [(each.group, each.lag, each.seconds_behind) for each in report.groups or ()] == [("g", 1, None)]
    assert [each.text.count("CRC-32C") for each in report.notes if "lag of some groups is unknown" in each.text] == [1]


def test_partitions_of_other_brokers_are_skipped(fixtures: Path, tmp_path: Path) -> None:
    data = tmp_path / "data"
    shutil.copytree(fixtures / "transactions" / "data", data, copy_function=shutil.copy)
    shutil.rmtree(data / "txn-a-1")
    shutil.rmtree(data / "txn-b-0")
    shutil.rmtree(data / "txn-b-1")
    rows = KafkaGroups(KafkaView(str(data)), NOW_MS).lag(["g-classic"])
    assert [(row.topic, row.partition) for row in rows] == [("txn-a", 0)]


def test_directory_without_groups(fixtures: Path, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(NotFound, match="has no partition of __consumer_offsets, where Kafka stores consumer groups"):
        KafkaGroups(KafkaView(str(fixtures / "codecs" / "data")))
    partition = KafkaView(str(fixtures / "transactions" / "data" / "txn-a-0"))
    assert not has_groups(partition)
    with (
        caplog.at_level(logging.WARNING),
        pytest.raises(BadRequest, match="is a partition directory: open its log directory"),
    ):
        KafkaGroups(partition)


def test_record_without_timestamp_has_no_waiting_time(fixtures: Path, tmp_path: Path) -> None:
    shutil.copytree(fixtures / "legacy/builder-v0/data", tmp_path / "data")
    write_groups(tmp_path / "data", messages(0, {key("built"): value(1)}))
    (row,) = KafkaGroups(KafkaView(str(tmp_path / "data")), HOUR_MS).lag()
    assert (row.current_offset, row.lag, row.seconds) == (1, row.log_end - 1, None)
