"""`sparklog report` on the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest

import sparklog as library
from tests.cli.conftest import Sparklog

KAFKA = Path(__file__).parents[2] / "examples" / "data" / "kafka-log-dir"


@pytest.fixture
def page(tmp_path: Path) -> Path:
    return tmp_path / "page.html"


def test_report_writes_a_page_and_the_same_json(sparklog: Sparklog, root: Path, page: Path) -> None:
    log = library.open(root, create=True)
    log.create_topic("orders", partitions=2).append(pa.table({"value": [b"a", b"b", b"c"]}))
    log.create_topic("empty")
    assert sparklog("report", "--html", page).out == f"Wrote {page}.\n"
    assert page.read_text().startswith("<!DOCTYPE html>")
    assert [path.name for path in page.parent.iterdir() if path.is_file()] == [page.name]
    found = json.loads(sparklog("report", "--json", "--html", page).out)
    assert [topic["topic"] for topic in found["topics"]] == ["empty", "orders"]
    described = json.loads(sparklog("topics", "describe", "orders", "--json").out)[0]
    for mine, theirs in zip(found["topics"][1]["partitions"], described["partitions"], strict=True):
        assert {name: mine[name] for name in ("partition", "logStart", "lastStable", "logEnd", "bytes")} == theirs
    assert sum(part["records"] for part in found["topics"][1]["partitions"]) == 3


def test_a_dash_writes_to_standard_output(sparklog: Sparklog, root: Path) -> None:
    library.open(root, create=True).create_topic("orders")
    page = sparklog("report", "--html", "-").out
    assert page.startswith("<!DOCTYPE html>")
    assert page.rstrip().endswith("</html>")
    assert sparklog("metrics", "--output", "-").out.startswith("# HELP sparklog_")
    assert not Path("-").exists()
    assert (
        "--html - and --json both print to standard output" in sparklog("report", "--html", "-", "--json", code=2).err
    )


def test_the_time_of_the_report_and_its_topics_can_be_given(sparklog: Sparklog, root: Path, page: Path) -> None:
    log = library.open(root, create=True)
    for name in ("a", "b"):
        log.create_topic(name)
    arguments = ("report", "--html", page, "--now", "2030-01-31T12:00:00", "--topic", "b")
    sparklog(*arguments)
    first = page.read_text()
    assert "2030-01-31 12:00:00" in first
    assert 'id="topic-1" data-name="b"' in first
    assert 'data-name="a"' not in first
    sparklog(*arguments)
    assert page.read_text() == first
    found = json.loads(sparklog("report", "--root", root / "a", "--json").out)
    assert [topic["topic"] for topic in found["topics"]] == ["a"]


def test_report_uses_the_properties_of_the_jobs(sparklog: Sparklog, root: Path, tmp_path: Path) -> None:
    topic = library.open(root, create=True).create_topic("orders")
    topic.append(pa.table({"value": [b"a"], "timestamp": pa.array([1_000_000_000_000], pa.int64())}))
    (tmp_path / "jobs.properties").write_text("log.retention.ms=1000\n")
    now = ("--now", "2001-09-10T00:00:00")
    assert json.loads(sparklog("report", "--json", *now).out)["doing"] == []
    given = json.loads(sparklog("report", "--json", *now, "--properties", tmp_path / "jobs.properties").out)["doing"]
    assert [(item["topic"], item["action"], item["due"]) for item in given] == [("orders", "expire", True)]


def test_report_of_a_kafka_directory(sparklog: Sparklog, page: Path) -> None:
    before = sorted((path, path.stat().st_mtime_ns) for path in KAFKA.rglob("*"))
    sparklog("report", "--root", KAFKA, "--html", page)
    assert "A Kafka broker's log directory" in page.read_text()
    found = json.loads(sparklog("report", "--root", KAFKA / "txn-a-0", "--json").out)
    assert [topic["topic"] for topic in found["topics"]] == ["txn-a"]
    assert sorted((path, path.stat().st_mtime_ns) for path in KAFKA.rglob("*")) == before


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        ((), 2, "expected an output: specify --html FILE or --json"),
        (("--json", "--topic", "ordres"), 1, "orders"),
        (("--json", "--now", "noon"), 2, "'--now'"),
        (
            ("--json", "--properties", "nowhere.properties"),
            1,
            "failed to read the properties file 'nowhere.properties'",
        ),
        (("--html", "nowhere/page.html"), 1, "choose another --html"),
        (("--json", "--root", "nowhere"), 1, "There is no log at"),
    ],
)
def test_invalid_input_is_a_clear_one_line_error(
    sparklog: Sparklog, root: Path, arguments: tuple[str, ...], code: int, says: str
) -> None:
    library.open(root, create=True).create_topic("orders")
    outcome = sparklog("report", *arguments, code=code)
    assert says in outcome.err
    assert outcome.err.count("\n") == 1
    assert not outcome.out


def test_a_failed_write_keeps_the_old_page(sparklog: Sparklog, root: Path, tmp_path: Path) -> None:
    library.open(root, create=True)
    folder = tmp_path / "folder"
    folder.mkdir()
    assert "Is a directory" in sparklog("report", "--html", folder, code=1).err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["folder", "root"]
