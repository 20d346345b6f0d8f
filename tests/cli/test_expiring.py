"""Messages about records that expire, and about configs that an import reads from Kafka."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pyarrow as pa
import pytest

import sparklog as package
from tests.cli.conftest import Sparklog
from tests.kafka.logs import batch as kafka_batch
from tests.kafka.logs import write_partition

SEVEN_DAYS = "expire seven days after their"
DAY_MS = 86_400_000
BOTH = {"cleanup.policy": "compact,delete", "retention.ms": "-1"}
IDS = {"keep": "40c2729b400a48609dadb66421d4575200", "gone": "c488b591d39641099006870a5778b41f00"}
# Values of records as written by a broker of Kafka 4.1.
TOPIC_KEEP = bytes.fromhex("010200056b656570" + IDS["keep"])
POLICY = bytes.fromhex("01040002056b6565700f636c65616e75702e706f6c6963790f636f6d706163742c64656c65746500")
DELAY = bytes.fromhex("01040002056b6565701566696c652e64656c6574652e64656c61792e6d7306363030303000")
FOREVER = bytes.fromhex("01040002056b6565700d726574656e74696f6e2e6d73032d3100")
NO_POLICY = POLICY.removesuffix(b"\x0fcompact,delete\x00") + bytes(2)
OF_A_BROKER = bytes.fromhex("0104000401146d696e2e696e73796e632e7265706c69636173023100")
TOPIC_GONE = bytes.fromhex("01020005676f6e65" + IDS["gone"])
GONE_CONFIG = bytes.fromhex("0104000205676f6e650d726574656e74696f6e2e6d73023500")
REMOVE_GONE = bytes.fromhex("010900" + IDS["gone"])
OF_TOMORROW = b"\x01\x04\x07\x02"


@pytest.fixture
def log_dir(tmp_path: Path) -> Path:
    place = tmp_path / "kafka"
    place.mkdir()
    for name in ("keep-0", "gone-0"):
        write_partition(place, name, {0: kafka_batch(0, [b"a", b"b"])})
    return place


@pytest.mark.parametrize(
    ("configs", "told"),
    [
        ((), True),
        (("cleanup.policy=compact,delete",), True),
        (("retention.ms=-1",), False),
        (("retention.ms=3600000",), False),
        (("cleanup.policy=compact",), False),
    ],
)
def test_create_reports_when_records_expire(
    root: Path, sparklog: Sparklog, configs: tuple[str, ...], told: bool
) -> None:
    """The message is printed once, on stderr, and only if no retention is set."""
    package.open(root, create=True)
    created = sparklog("topics", "create", "t", *(word for text in configs for word in ("-c", text)))
    assert created.err.count(SEVEN_DAYS) == len(created.err.splitlines()) == int(told)
    assert sparklog("topics", "create", "t", "--if-not-exists").err == ""


@pytest.mark.parametrize(
    ("configs", "ages", "line"),
    [
        ({}, [8, 9, 1], "topic t: up to 3 records are older than retention.ms=604800000 and may be deleted"),
        ({}, [8, 9], "topic t: 2 records are older"),
        ({}, [8], "topic t: a record is older"),
        ({}, [1, 6], None),
        ({"retention.ms": 3 * DAY_MS}, [4], "topic t: a record is older than retention.ms=259200000"),
        ({"retention.ms": -1}, [8], None),
        ({"cleanup.policy": "compact"}, [8], None),
        ({"message.timestamp.type": "LogAppendTime"}, [8], None),
    ],
)
def test_appending_old_records_warns_once(
    root: Path, caplog: pytest.LogCaptureFixture, configs: dict[str, object], ages: list[int], line: str | None
) -> None:
    topic = package.open(root, create=True).create_topic("t", configs=configs)
    now = time.time_ns() // 1_000_000
    rows = pa.table(
        {"key": ["k"] * len(ages), "value": ["v"] * len(ages), "timestamp": [now - age * DAY_MS for age in ages]}
    )
    for _ in range(2):
        topic.append(rows)
    warnings = [each.getMessage() for each in caplog.records if "older than" in each.getMessage()]
    assert len(warnings) == (0 if line is None else 1)
    if line is not None:
        assert warnings[0].startswith(line)
        assert warnings[0].endswith("sparklog configs alter t --add-config retention.ms=-1")


def test_import_reports_assumed_retention_and_expiring_records(log_dir: Path, root: Path, sparklog: Sparklog) -> None:
    lines = sparklog("import", log_dir, "-q").err.splitlines()
    assert lines[0] == f"sparklog: created root {root}"
    assert "topic gone: 2 records are older than retention.ms=604800000" in lines[1]
    assert "topic keep: 2 records are older" in lines[2]
    assert lines[3].startswith("sparklog: topics gone, keep: assuming Kafka's default retention.ms=604800000")
    assert len(lines) == 4
    assert sparklog("import", log_dir, "-q").err == ""


@pytest.mark.parametrize(
    ("snapshot", "records", "given", "configs"),
    [
        (None, [OF_A_BROKER, TOPIC_KEEP, POLICY, DELAY, FOREVER], (), BOTH),
        (None, [TOPIC_KEEP, POLICY, NO_POLICY, FOREVER], (), {"retention.ms": "-1"}),
        (None, [TOPIC_KEEP, FOREVER], ("-c", "retention.ms=5"), {"retention.ms": "5"}),
        (None, [POLICY, FOREVER], (), {}),
        ([TOPIC_KEEP, FOREVER], [NO_POLICY, POLICY, NO_POLICY], (), {"retention.ms": "-1"}),
        ([TOPIC_KEEP, POLICY], [FOREVER, FOREVER, FOREVER], (), BOTH),
        ([TOPIC_KEEP, POLICY], [FOREVER, FOREVER], (), {"cleanup.policy": "compact,delete"}),
    ],
)  # fmt: skip
def test_import_reads_configs_from_the_metadata_log(
    log_dir: Path,
    root: Path,
    sparklog: Sparklog,
    snapshot: list[bytes] | None,
    records: list[bytes],
    given: tuple[str, ...],
    configs: dict[str, str],
) -> None:
    """The snapshot replaces the log below its offset, 2."""
    folder = write_partition(log_dir, "__cluster_metadata-0", {0: kafka_batch(0, records)})
    if snapshot is not None:
        (folder / "00000000000000000000-0000000000.checkpoint").write_bytes(kafka_batch(0, [TOPIC_GONE]))
        (folder / "00000000000000000002-0000000001.checkpoint").write_bytes(kafka_batch(0, snapshot))
    err = sparklog("import", log_dir, "-t", "keep", "-q", *given).err
    assert package.open(root).topic("keep").log.state().configs.explicit == configs
    taken = {name: value for name, value in configs.items() if (*given, "") != ("-c", f"{name}={value}", "")}
    if taken:
        shown = ", ".join(f"{name}={value}" for name, value in taken.items())
        assert f"topic keep: configs from Kafka's metadata log: {shown}" in err
    assert ("file.delete.delay.ms was not imported from Kafka" in err) == (DELAY in records)
    assert ("assuming Kafka's default" in err) == ("retention.ms" not in configs)


def test_import_ignores_configs_of_a_removed_topic(log_dir: Path, root: Path, sparklog: Sparklog) -> None:
    records = [TOPIC_GONE, GONE_CONFIG, REMOVE_GONE, TOPIC_GONE]
    write_partition(log_dir, "__cluster_metadata-0", {0: kafka_batch(0, records)})
    (topic,) = json.loads(sparklog("import", log_dir, "-t", "gone", "-q", "--dry-run", "--json").out)["topics"]
    assert topic["kafkaConfigs"] == {"taken": {}, "leftOut": {}}
    assert not root.exists()


def test_import_ignores_configs_of_an_earlier_topic_with_the_same_name(
    log_dir: Path, root: Path, sparklog: Sparklog
) -> None:
    write_partition(log_dir, "__cluster_metadata-0", {0: kafka_batch(0, [TOPIC_KEEP, FOREVER])})
    (log_dir / "keep-0" / "partition.metadata").write_text("version: 0\ntopic_id: SaNtnC8GQW-nBMqCh3EBVA\n")
    (topic,) = json.loads(sparklog("import", log_dir, "-t", "keep", "-q", "--json").out)["topics"]
    assert topic["kafkaConfigs"] is None


def test_a_record_of_a_later_kafka_is_a_one_line_error(log_dir: Path, root: Path, sparklog: Sparklog) -> None:
    write_partition(log_dir, "__cluster_metadata-0", {0: kafka_batch(0, [TOPIC_KEEP, OF_TOMORROW, FOREVER])})
    failed = sparklog("import", log_dir, "-t", "keep", code=1)
    (line,) = failed.err.splitlines()
    assert "expected a ConfigRecord of version 0, found 7" in line
    assert "corrupt_records=skip" in line
    assert not root.exists()
    sparklog("import", log_dir, "-t", "keep", "--corrupt-records", "skip")
    assert package.open(root).topic("keep").log.state().configs.explicit == {"retention.ms": "-1"}
