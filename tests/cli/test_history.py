"""`sparklog history`: one line per commit, latest commit first."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest

import sparklog as library
from sparklog.compaction.run import CompactOptions
from sparklog.maintenance.work_items import InProcess, Settings
from tests.cli.conftest import Sparklog
from tests.support.compaction import compact_topic

ROWS = pa.table({"key": [b"k"] * 3, "value": [b"v" * 100] * 3})


@pytest.fixture
def topic(root: Path) -> library.Topic:
    """Create versions 0 to 5: created, three kinds of appends, altered, sealed."""
    log = library.open(root, create=True)
    topic = log.create_topic("t")
    topic.append(ROWS)
    topic.append(ROWS, writer=library.WriterKey("daily", 7, mode="txn"))
    topic.append(ROWS.slice(1), writer=library.WriterKey("q", 0, run="r"))
    topic.alter(configs={"retention.ms": -1})
    transaction = library.transactional(log, "job").begin()
    transaction.append("t", ROWS.slice(2))
    transaction.commit()
    return topic


def test_each_commit_is_a_line(sparklog: Sparklog, topic: library.Topic) -> None:
    heading, *lines = sparklog("history", "t").lines
    assert heading.split() == ["VERSION", "TIME", "OPERATION", "RECORDS", "BYTES", "WRITER", "CHANGES"]
    cells = [line.split(maxsplit=2) for line in lines]
    assert [int(version) for version, *_ in cells] == [5, 4, 3, 2, 1, 0]
    assert all(moment.endswith("Z") for _, moment, _ in cells)
    rest = [" ".join(text.split()) for *_, text in cells]
    assert [text.partition(" ")[0] for text in rest] == ["append", "alter", *["append"] * 3, "create"]
    assert rest[0].startswith("append 1 ")
    assert rest[0].endswith("B transaction job #0 -")
    assert rest[2].endswith("B query q, batch 0 -")
    assert rest[3].endswith("B txnAppId daily, txnVersion 7 -")
    assert rest[1] == "alter 0 0 B - retention.ms=-1"
    assert rest[5] == "create 0 0 B - partitions=1"


def test_history_limits_the_commits_and_prints_json(sparklog: Sparklog, topic: library.Topic) -> None:
    lines = sparklog("history", "t", "--limit", 2).lines
    assert len(lines) == 4
    assert lines[-1] == "4 older commits are not shown; increase --limit to show more"
    found = json.loads(sparklog("history", "t", "--limit", 2, "--json").out)
    assert (found["topic"], found["oldestVersion"]) == ("t", 0)
    assert [each["version"] for each in found["commits"]] == [5, 4]
    assert found["commits"][0]["records"] == 1
    assert found["commits"][1]["changes"] == {"retention.ms": "-1"}


def test_history_shows_no_added_records_for_a_rewrite(sparklog: Sparklog, topic: library.Topic) -> None:
    topic.log.snapshot()
    compact_topic(topic, Settings(topic.store.now_ms()), InProcess(), CompactOptions(roll=True))
    newest = json.loads(sparklog("history", "t", "--limit", 1, "--json").out)["commits"][0]
    assert (newest["operation"], newest["records"], newest["bytes"]) == ("seal", None, None)


def test_history_reports_deleted_commits_and_versions_below_a_gap(
    sparklog: Sparklog, root: Path, topic: library.Topic
) -> None:
    topic.log.write_checkpoint()
    for version in (0, 2):
        (root / "t" / "_log" / f"{version:020}.json").unlink()
    lines = sparklog("history", "t").lines
    assert [line.split()[0] for line in lines[1:-1]] == ["5", "4", "3"]
    assert lines[-1] == "commits before version 3 are no longer retained"


def test_history_of_a_deleted_topic(sparklog: Sparklog, topic: library.Topic) -> None:
    sparklog("topics", "delete", "t")
    assert sparklog("history", "t").lines[1].split()[2] == "delete"


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (("tt",), 1, "topic 'tt' does not exist"),
        (("a/b",), 1, "a/b"),
        (("t", "--limit", 0), 2, "--limit"),
    ],
)
def test_invalid_input_is_a_clear_one_line_error(
    sparklog: Sparklog, topic: library.Topic, arguments: tuple[object, ...], code: int, says: str
) -> None:
    said = sparklog("history", *arguments, code=code)
    assert says in said.err
    assert said.err.count("\n") == 1
