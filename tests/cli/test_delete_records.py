"""`sparklog delete-records` with Kafka's offset file and for one partition."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest

import sparklog as library
from sparklog.log.topic.root import Root
from tests.cli.conftest import Sparklog


@pytest.fixture
def log(root: Path) -> Root:
    """Topics a and b with ten records each in partition 0, and the compacted topic c."""
    opened = library.open(root, create=True)
    for name in ("a", "b"):
        rows = pa.table({"value": [str(n).encode() for n in range(10)], "partition": [0] * 10})
        opened.create_topic(name, partitions=2).append(rows)
    opened.create_topic("c", configs={"cleanup.policy": "compact"})
    return opened


def starts(log: Root, name: str) -> list[int]:
    return list(log.topic(name).log.state().log_start.tolist())


def offsets_file(tmp_path: Path, document: object) -> Path:
    file = tmp_path / "offsets.json"
    file.write_text(document if isinstance(document, str) else json.dumps(document))
    return file


def entry(topic: str, partition: int, offset: int) -> dict[str, object]:
    return {"topic": topic, "partition": partition, "offset": offset}


def test_kafka_offset_file_is_applied_to_all_partitions(sparklog: Sparklog, log: Root, tmp_path: Path) -> None:
    file = offsets_file(tmp_path, {"partitions": [entry("b", 0, -1), entry("a", 0, 4)], "version": 1})
    dry = sparklog("delete-records", "--offset-json-file", file, "--dry-run").lines
    assert dry[1:] == ["partition: a-0\tlow_watermark: 4", "partition: b-0\tlow_watermark: 10"]
    assert (starts(log, "a"), starts(log, "b")) == ([0, 0], [0, 0])
    done = sparklog("delete-records", "--offset-json-file", file).lines
    assert done == ["Records delete operation completed:", *dry[1:]]
    assert (starts(log, "a"), starts(log, "b")) == ([4, 0], [10, 0])
    assert sparklog("consume", "a").lines == ["4", "5", "6", "7", "8", "9"]


def test_delete_records_never_moves_the_log_start_back(sparklog: Sparklog, log: Root) -> None:
    short = ("delete-records", "--topic", "a", "--partition", 0, "--offset")
    assert sparklog(*short, 6).lines[-1] == "partition: a-0\tlow_watermark: 6"
    version = log.topic("a").log.state().version
    found = json.loads(sparklog(*short, 2, "--json").out)
    assert found == {"dryRun": False, "partitions": [{"topic": "a", "partition": 0, "lowWatermark": 6}]}
    assert log.topic("a").log.state().version == version


@pytest.mark.parametrize(
    ("entries", "says"),
    [
        ([entry("a", 0, 4), entry("b", 0, 11)], "offset 11 of partition 0 of topic 'b' is out of range"),
        ([entry("a", 0, 4), entry("b", 0, -2)], "offset -2 of partition 0 of topic 'b' is out of range"),
        ([entry("a", 0, 4), entry("b", 7, 0)], "partitions 0 to 1, found partition 7"),
        ([entry("a", 0, 4), entry("c", 0, 0)], "its cleanup.policy is 'compact'; add delete"),
        ([entry("a", 0, 4), entry("d", 0, 0)], "topic 'd' does not exist"),
        ([entry("a", 0, 4), entry("a", 0, 5)], "contains a-0 twice"),
        ([{"topic": "a", "partition": 0}], "must have entries"),
        ([entry("a", 0, True)], "must have entries"),
        ([], "contains no partitions"),
    ],
)
def test_invalid_offsets_change_nothing(
    sparklog: Sparklog, log: Root, tmp_path: Path, entries: list[object], says: str
) -> None:
    file = offsets_file(tmp_path, {"partitions": entries, "version": 1})
    for more in ((), ("--dry-run",)):
        outcome = sparklog("delete-records", "--offset-json-file", file, *more, code=1)
        assert says in outcome.err
        assert len(outcome.err.splitlines()) == 1
    assert starts(log, "a") == [0, 0]


@pytest.mark.usefixtures("log")
def test_invalid_files_and_options_are_errors(sparklog: Sparklog, tmp_path: Path) -> None:
    for document, says in (
        ("{", "must contain JSON"),
        ("[]", "no list"),
        ({"partitions": [], "version": 2}, "version 1"),
    ):
        file = offsets_file(tmp_path, document)
        assert says in sparklog("delete-records", "--offset-json-file", file, code=1).err
    assert "cannot be read" in sparklog("delete-records", "--offset-json-file", tmp_path / "none", code=1).err
    assert "a topic, --partition and --offset" in sparklog("delete-records", "--topic", "a", code=2).err
    assert "not both" in sparklog("delete-records", "--offset-json-file", file, "--topic", "a", code=2).err
    assert "sparklog delete-records" in sparklog("delete-records", "--help").out.split("Example:")[1]
