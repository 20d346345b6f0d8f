"""`sparklog log-dirs`: sizes of partitions in roots and Kafka directories."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest

import sparklog as library
from sparklog.common.units import size_text
from sparklog.compaction.run import CompactOptions
from sparklog.kafka.importing.run import ImportOptions, import_log_dir
from sparklog.maintenance.work_items import InProcess, Settings
from sparklog.opening import open_view, resolve
from tests.cli.conftest import REPOSITORY, Sparklog
from tests.support.compaction import compact_topic

KAFKA = REPOSITORY / "examples" / "data" / "kafka-log-dir"


def partitions(text: str) -> dict[str, dict[str, object]]:
    document = json.loads(text)
    assert document["version"] == 1
    (broker,) = document["brokers"]
    (log_dir,) = broker["logDirs"]
    assert (broker["broker"], log_dir["error"]) == (-1, None)
    return {each["partition"]: each for each in log_dir["partitions"]}


@pytest.mark.usefixtures("records_in_files")
def test_append_files_and_sealed_segments(sparklog: Sparklog, root: Path) -> None:
    log = library.open(root, create=True)
    topic = log.create_topic("t", partitions=2)
    table = pa.table({"value": [b"x" * 100] * 20, "partition": [0] * 15 + [1] * 5})
    topic.append(table)
    files = list((root / "t" / "append").iterdir())
    before = partitions(sparklog("log-dirs", "--json").out)
    assert {name: (each["records"], each["slices"], each["sealedBytes"]) for name, each in before.items()} == {
        "t-0": (15, 1, 0),
        "t-1": (5, 1, 0),
    }
    assert 0 < sum(int(str(each["size"])) for each in before.values()) < files[0].stat().st_size
    now = log.store.now_ms() + 30 * 86_400_000
    compact_topic(topic, Settings(now), InProcess(), CompactOptions(roll=True))
    topic.append(table.slice(0, 15))
    after = partitions(sparklog("log-dirs", "--json").out)
    segments = sum(file.stat().st_size for file in root.glob("t/sealed/0/*/*.log"))
    assert after["t-0"]["sealedBytes"] == segments
    assert after["t-0"]["size"] == segments + int(str(after["t-0"]["appendBytes"]))
    assert (after["t-0"]["records"], after["t-0"]["slices"], after["t-1"]["appendBytes"]) == (30, 2, 0)
    # After sealing, the first append file is unreferenced, and a lease protects it from the vacuum.
    waiting = f"In addition, `sparklog retain` will delete {files[0].stat().st_size} bytes in 1 unreferenced file."
    assert sparklog("log-dirs").lines[-1] == waiting
    assert '"unreferencedFiles": 1' in sparklog("log-dirs", "--json").out
    (reported,) = json.loads(sparklog("report", "--json").out)["topics"]
    assert reported["unreferencedBytes"] == files[0].stat().st_size
    sparklog("report", "--html", root.parent / "page.html")
    page = (root.parent / "page.html").read_text()
    assert f"Unreferenced</dt><dd>{size_text(files[0].stat().st_size)}</dd>" in page
    sparklog("clone", "t", "u", "--as-of", 1)
    assert '"unreferencedFiles": 0, "unreferencedBytes": 0' in sparklog("log-dirs", "--json").out


def test_the_table_and_the_topic_list(sparklog: Sparklog, root: Path) -> None:
    log = library.open(root, create=True)
    for name in ("a", "b", "c"):
        log.create_topic(name).append(pa.table({"value": [b"1", b"2"]}))
    heading, first, second, total = sparklog("log-dirs", "--topic-list", "a,b").lines
    assert heading.split() == ["TOPIC", "PARTITION", "APPEND", "SEALED", "TOTAL", "RECORDS", "SLICES"]
    assert [line.split()[0] for line in (first, second, total)] == ["a", "b", "all"]
    assert total.split()[-2:] == ["4", "2"]
    assert int(total.split()[1]) == int(first.split()[2]) + int(second.split()[2])
    assert "did you mean 'a'" in sparklog("log-dirs", "--topic-list", "aa", code=1).err
    assert "sparklog log-dirs" in sparklog("log-dirs", "--help").out.split("Example:")[1]


def test_a_kafka_directory(sparklog: Sparklog) -> None:
    """The sizes are the sizes of the `.log` files, as in kafka-log-dirs."""
    found = partitions(sparklog("log-dirs", "--root", KAFKA, "--json").out)
    for name, each in found.items():
        logs = sorted((KAFKA / name).glob("*.log"))
        assert each["size"] == sum(file.stat().st_size for file in logs)
        assert each["appendBytes"] == logs[-1].stat().st_size
        assert each["slices"] == len(logs)
    assert len(found) == len(list(KAFKA.glob("*-[0-9]")))


def test_an_imported_directory_has_the_same_bytes_and_records(root: Path) -> None:
    log = library.open(root, create=True)
    import_log_dir(log, KAFKA, ImportOptions(topics=["txn-b"]))
    there, here = (open_view(resolve(str(place)), tailing=False).partition_sizes("txn-b") for place in (KAFKA, root))
    assert [size.total_bytes for size in here] == [size.total_bytes for size in there]
    assert [size.records for size in here] == [size.records for size in there]
