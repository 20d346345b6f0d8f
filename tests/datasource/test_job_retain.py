"""The retention job: on the command line without Spark, and in Spark tasks for large roots."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pytest

import sparklog
from sparklog.errors import SparklogError
from sparklog.jobs import retain
from sparklog.log.journal.names import append_path
from sparklog.log.topic.topic import Topic
from sparklog.maintenance.spark_runner import SparkRunner
from sparklog.maintenance.work_items import Work, WorkResult
from sparklog.retention.retain import RetainReport
from sparklog.retention.vacuum import CHUNK
from sparklog.testing.world import START_MS
from tests.support.small_limits import small_limits

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

REPOSITORY = Path(__file__).parents[2]
HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS


def hourly(topic: Topic, hours: int) -> None:
    for hour in range(hours):
        times = np.full(5, START_MS + hour * HOUR_MS, np.int64)
        topic.append(pa.table({"value": pa.array([bytes(100)] * 5), "timestamp": times}))


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A root with a topic that has 24 segments of one hour each, and retains five hours."""
    root = sparklog.open(tmp_path / "root", create=True)
    hourly(root.create_topic("orders", configs={"retention.ms": 5 * HOUR_MS, "segment.ms": 1}), 24)
    return tmp_path / "root"


def clock(now_ms: int) -> list[str]:
    return ["--now-ms", str(now_ms)]


def tree(directory: Path) -> dict[str, int]:
    return {str(path.relative_to(directory)): path.stat().st_size for path in directory.rglob("*") if path.is_file()}


def chosen(directory: Path, *more: str) -> retain.Maintenance:
    return retain.arguments([*(() if "--root" in more else ("--root", str(directory))), *more])


@pytest.mark.usefixtures("records_in_files")
def test_a_dry_run_then_a_run_then_the_files_a_day_later(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    now = START_MS + 24 * HOUR_MS
    before = tree(directory)
    assert retain.run(chosen(directory, "--dry-run", *clock(now))) == 0
    said = capsys.readouterr().out
    assert "WOULD EXPIRE BY" in said
    assert "retention.ms" in said
    assert "0 -> 95" in said
    assert tree(directory) == before
    assert retain.run(chosen(directory, *clock(now))) == 0
    assert "EXPIRED BY" in capsys.readouterr().out
    topic = sparklog.open(directory).topic("orders")
    assert topic.log.state().log_start.tolist() == [95]
    assert topic.scan().to_table().num_rows == 25
    files = [name for name in tree(directory) if name.startswith("orders/append/")]
    assert len(files) == 24
    later = topic.root.store.now_ms() + DAY_MS + 1
    topic.alter(configs={"retention.ms": -1})
    assert retain.run(chosen(directory, "--dry-run", *clock(later))) == 0
    said = capsys.readouterr().out
    assert "append file" in said
    assert "replaced or expired before version" in said
    assert retain.run(chosen(directory, *clock(later))) == 0
    assert len([name for name in tree(directory) if name.startswith("orders/append/")]) == 5
    assert topic.scan().to_table().num_rows == 25
    capsys.readouterr()
    assert retain.run(chosen(directory, *clock(later))) == 0
    assert capsys.readouterr().out == "1 topic: nothing was deleted\n"


def test_idle_topics_are_not_logged(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("a", "b"):
        sparklog.open(directory).create_topic(name)
    assert retain.run(chosen(directory, *clock(START_MS + 24 * HOUR_MS))) == 0
    lines = [line.split(" ", 1) for line in capsys.readouterr().err.splitlines()]
    assert all(re.fullmatch(r"\d{4}-\d\d-\d\dT[\d:.]{12}Z", moment) for moment, _ in lines)
    assert [line.partition(": ")[0] for _, line in lines] == ["retain orders", "retain"]
    assert lines[-1][1] == "retain: 2 topics had nothing to delete"


def test_an_interrupt_reports_the_processed_topics(
    directory: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def retain_root(*args: object, on_done: Callable[[object, int], None], **options: object) -> None:
        on_done(RetainReport("a"), 3)
        on_done(RetainReport("b"), 3)
        raise KeyboardInterrupt

    monkeypatch.setattr(retain, "retain_root", retain_root)
    assert retain.run(chosen(directory)) == 130
    said = capsys.readouterr().err
    done = "interrupted: 2 of 3 topics, 0 B deleted"
    assert said == f"sparklog retain: {done}; deleted files remain deleted, and the next run does the remaining work\n"


def test_json_has_exact_numbers(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    now = START_MS + 24 * HOUR_MS
    assert retain.run(chosen(directory, "--json", *clock(now))) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["nowMs"], document["dryRun"], document["failed"]) == (now, False, False)
    (topic,) = document["topics"]
    (partition,) = topic["expired"]
    assert (partition["logStart"], partition["logEnd"], partition["segments"]) == (95, 120, 24)
    (gone,) = partition["gone"]
    assert (gone["reason"], gone["segments"]) == ("time", 19)
    assert 0 < gone["bytes"] < partition["bytes"]
    assert topic["vacuum"]["removed"] == []


def test_a_properties_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = sparklog.open(tmp_path / "root", create=True)
    hourly(root.create_topic("plain", configs={"segment.ms": 1}), 24)
    file = tmp_path / "sparklog.properties"
    file.write_text("log.retention.hours=5\nlog.retention.minutes=120\n")
    given = ["--properties", str(file), *clock(START_MS + 24 * HOUR_MS)]
    assert retain.run(chosen(tmp_path / "root", *given)) == 0
    assert root.topic("plain").log.state().log_start.tolist() == [110]
    file.write_text("log.retention.ms=0\n")
    with pytest.raises(SystemExit) as stopped:
        chosen(tmp_path / "root", *given)
    assert stopped.value.code == 2
    assert "log.retention.ms" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (["--topic", "order"], "did you mean 'orders'"),
        (["--root", "nowhere"], "nowhere"),
    ],
)
def test_a_missing_topic_is_one_line_and_exit_code_1(
    directory: Path, given: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert retain.run(chosen(directory, *given)) == 1
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert says in lines[0]
    assert "SPARKLOG_NOT_FOUND" in lines[0]


def test_a_root_without_topics_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sparklog.open(tmp_path / "root", create=True)
    assert retain.run(chosen(tmp_path / "root")) == 0
    said = capsys.readouterr()
    assert (said.out, said.err) == (
        "",
        f"sparklog retain: nothing to do, because there are no topics in {tmp_path / 'root'}\n",
    )


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (["--now-ms", "-5"], "--now-ms"),
        (["--topic", "a/b"], "a/b"),
        (["--retention-ms", "5"], "No such option"),
        (["--properties", "no-such-file"], "no-such-file"),
    ],
)
def test_wrong_usage_ends_with_2(
    tmp_path: Path, given: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        chosen(tmp_path, *given)
    assert stopped.value.code == 2
    assert says in capsys.readouterr().err


def test_a_failed_topic_is_reported_and_others_are_processed(
    directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hourly(sparklog.open(directory).create_topic("other", configs={"retention.ms": 1, "segment.ms": 1}), 3)
    (directory / "orders" / "_log" / f"{24:020d}.json").write_text("{}")
    assert retain.run(chosen(directory, *clock(START_MS + 24 * HOUR_MS))) == 1
    said = capsys.readouterr()
    assert "orders" in said.err
    assert "SPARKLOG_CORRUPT" in said.err
    assert sparklog.open(directory).topic("other").log.state().log_start.tolist() == [15]


@pytest.mark.usefixtures("records_in_files")
def test_many_deletions_are_spread_over_tasks(
    spark: SparkSession, directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = sparklog.open(directory)
    topic = root.topic("orders")
    folder = directory / "orders" / "append"
    for number in range(2 * CHUNK):
        (directory / "orders" / append_path(3, f"orphan{number}")).write_bytes(b"never committed")
    before = len(list(folder.iterdir()))
    later = root.store.now_ms() + DAY_MS + 1
    topic.alter(configs={"retention.ms": -1})
    with small_limits(local_chunks=1):
        assert retain.run(chosen(directory, *clock(later)), SparkRunner(spark, quiet=True)) == 0
    assert before - len(list(folder.iterdir())) == 2 * CHUNK
    said = capsys.readouterr().out
    assert "unreferenced" in said
    assert topic.scan().to_table().num_rows == 120


@pytest.mark.usefixtures("records_in_files")
def test_a_few_deletions_do_not_start_spark(directory: Path) -> None:
    """As the crontab describes, one commit per second creates 3,600 append files per hour."""

    class Nobody:
        def run(self, works: Sequence[Work]) -> Iterator[tuple[Work, WorkResult | SparklogError]]:
            raise AssertionError("asked to start Spark")

    folder = directory / "orders" / "append"
    for number in range(4 * CHUNK):
        (directory / "orders" / append_path(3, f"orphan{number}")).write_bytes(b"")
    root = sparklog.open(directory)
    later = root.store.now_ms() + DAY_MS + 1
    root.topic("orders").alter(configs={"retention.ms": -1})
    assert retain.run(chosen(directory, *clock(later)), Nobody()) == 0
    assert not list(folder.glob("*orphan*"))


def test_little_work_starts_no_spark_session(directory: Path) -> None:
    given = [str(REPOSITORY / "jobs" / "retain.py"), "--root", str(directory), *clock(START_MS + 24 * HOUR_MS)]
    code = (
        "import runpy, sys; sys.argv = sys.argv[1:]\n"
        "try: runpy.run_path(sys.argv[0], run_name='__main__')\n"
        "except SystemExit as left: assert left.code == 0, left.code\n"
        "assert 'pyspark' not in sys.modules\n"
    )
    answer = subprocess.run(
        [sys.executable, "-c", code, *given], cwd=REPOSITORY, capture_output=True, text=True, check=False
    )
    assert answer.returncode == 0, answer.stderr
    assert "EXPIRED BY" in answer.stdout
