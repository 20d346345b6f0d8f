"""The compaction job: its effects on topics, its output and its exit codes, in this process and in Spark tasks."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import pyarrow as pa
import pytest

import sparklog
from sparklog.errors import Conflict, Corrupt, SparklogError, Unavailable
from sparklog.jobs import compact
from sparklog.log.topic.topic import Topic
from sparklog.maintenance.spark_runner import SparkIfNeeded, SparkRunner
from sparklog.maintenance.work_items import InProcess, Progress, Runner, Settings, WorkReport, WorkResult, silent
from tests.datasource import spark_session
from tests.datasource.standard_error import StandardError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

REPOSITORY = Path(__file__).resolve().parents[2]
KEYS = 40
ROUNDS = 6
PER_ROUND = 100
COMPACTED = {"cleanup.policy": "compact", "segment.bytes": 4000, "compression.type": "uncompressed"}


def filled(root: Path, name: str, configs: dict[str, object], *, nulls: bool = False) -> Topic:
    """A topic with two partitions. Every key occurs `ROUNDS` times or more, and the last value of the last key is a
    tombstone.
    """
    topic = sparklog.open(root, create=True).create_topic(name, partitions=2, configs=configs)
    if nulls:
        # An append without partitions writes all of its records without a key to one random partition.
        topic.append([{"partition": partition, "key": None, "value": b"no key"} for partition in range(2)])
    for n in range(ROUNDS):
        keys = [None if nulls and i == 0 else b"k%d" % (i % KEYS) for i in range(PER_ROUND)]
        values = [b"%s-%d-%d" % (name.encode(), n, i) + b"." * 40 for i in range(PER_ROUND)]
        cells: list[bytes | None] = [*values[:-1], None if n == ROUNDS - 1 else values[-1]]
        topic.append(pa.table({"key": pa.array(keys, pa.binary()), "value": pa.array(cells, pa.binary())}))
    return topic


def records(topic: Topic) -> list[dict[str, object]]:
    found = topic.scan(columns=("partition", "offset", "key", "value", "timestamp")).to_table()
    return sorted(found.to_pylist(), key=lambda row: (row["partition"], row["offset"]))


def latest(rows: list[dict[str, object]]) -> list[dict[str, object]]:
    """Return the last record of each key, including tombstones, in order."""
    last = {(row["partition"], row["key"]): row["offset"] for row in rows}
    return [row for row in rows if last[row["partition"], row["key"]] == row["offset"]]


def job(runner: Runner, root: Path, *more: str) -> int:
    return compact.run(runner, compact.arguments(["--root", str(root), *more]))


def damage(topic: Topic, partition: int, row: int = 0) -> str:
    """Flip a bit in the middle of a slice of a partition, and return the key of the file."""
    found = topic.log.snapshot().slices.select(partition)
    file = Path(topic.store.location) / topic.name / found.path(row)
    data = bytearray(file.read_bytes())
    data[int(found.position[row]) + int(found.size[row]) // 2] ^= 1
    file.write_bytes(data)
    return f"{topic.name}/{found.path(row)}"


def test_spark_tasks_seal_merge_and_clean(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    orders, clicks = filled(tmp_path, "orders", COMPACTED), filled(tmp_path, "clicks", {"segment.bytes": 4000})
    before, kept = records(orders), records(clicks)
    assert job(SparkRunner(spark), tmp_path, "--roll") == 0
    assert records(orders) == latest(before)
    assert records(clicks) == kept
    for topic in (orders, clicks):
        assert topic.log.snapshot().slices.all().sealed().all()
    said = capsys.readouterr()
    table = said.out.splitlines()
    assert [line.split()[0] for line in table] == ["PARTITION", "clicks-0", "clicks-1", "orders-0", "orders-1", "all"]
    assert "compact" in table[-2]
    assert "compact orders-1: done in" in said.err
    assert job(SparkRunner(spark), tmp_path, "--roll") == 0
    assert "4 partitions needed nothing" in capsys.readouterr().out
    assert records(orders) == latest(before)


@pytest.mark.usefixtures("records_in_files")
def test_a_corrupt_partition_is_a_one_line_error(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    orders, clicks = filled(tmp_path, "orders", COMPACTED), filled(tmp_path, "clicks", {})
    expected = [row for row in latest(records(orders)) if row["partition"] == 0]
    file = damage(orders, 1)
    left = orders.log.snapshot().slices.select(1)
    assert job(SparkRunner(spark), tmp_path, "--roll") == 1
    assert orders_of(orders, 0) == expected
    after = orders.log.snapshot().slices.select(1)
    assert (after.base.tolist(), after.size.tolist()) == (left.base.tolist(), left.size.tolist())
    assert clicks.log.snapshot().slices.all().sealed().all()
    said = capsys.readouterr()
    lines = [line for line in said.err.splitlines() if line.startswith("sparklog compact:")]
    assert len(lines) == 1
    assert f"file {file}" in lines[0]
    assert lines[0].endswith("[SPARKLOG_CORRUPT]")
    assert "orders-1   FAILED" in said.out


@pytest.mark.usefixtures("records_in_files")
def test_a_corrupt_segment_in_the_middle_leaves_its_partition_as_it_was(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    orders = filled(tmp_path, "orders", COMPACTED)
    assert job(InProcess(), tmp_path, "--seal-only", "--roll") == 0
    expected = [row for row in latest(records(orders)) if row["partition"] == 0]
    segments = orders.log.snapshot().slices.select(1)
    assert len(segments) >= 3
    file = damage(orders, 1, len(segments) // 2)
    for _ in range(2):
        assert job(InProcess(), tmp_path) == 1
        assert orders_of(orders, 0) == expected
        left = orders.log.snapshot().slices.select(1)
        assert [left.path(row) for row in range(len(left))] == [segments.path(row) for row in range(len(segments))]
        assert orders.log.state().first_dirty_offset[1] == 0
        lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("sparklog compact:")]
        assert len(lines) == 1
        assert f"file {file}" in lines[0]


def orders_of(topic: Topic, partition: int) -> list[dict[str, object]]:
    found = topic.scan(partitions=[partition], columns=("partition", "offset", "key", "value", "timestamp")).to_table()
    return found.to_pylist()  # type: ignore[no-any-return]


def test_a_dry_run_prints_reasons_and_changes_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    orders = filled(tmp_path, "orders", COMPACTED)
    before = orders.log.state().version, sorted(tmp_path.rglob("*"))
    assert job(InProcess(), tmp_path, "--dry-run") == 0
    assert (orders.log.state().version, sorted(tmp_path.rglob("*"))) == before
    said = capsys.readouterr()
    lines = [line.split(None, 4) for line in said.out.splitlines()]
    assert lines[0] == ["PARTITION", "WOULD", "BYTES", "WHY"]
    for partition in (0, 1):
        found = {line[1]: line[4] for line in lines[1:] if line[0] == f"orders-{partition}"}
        assert "full (4,000 bytes)" in found["seal"]
        assert found["compact"] == "dirty ratio 1.00 > 0.50, from offset 0"
    assert job(InProcess(), tmp_path) == 0
    capsys.readouterr()
    assert job(InProcess(), tmp_path, "--dry-run", "--json") == 0
    planned = json.loads(capsys.readouterr().out)["topics"][0]["planned"]
    assert {(item["action"], item["bytes"], item["why"]) for item in planned} == {
        ("compact", 0, "not due: dirty ratio 0.00, not above 0.50")
    }


@pytest.mark.parametrize("more", [(), ("--roll",), ("--seal-only",)])
def test_a_dry_run_predicts_the_run(tmp_path: Path, more: Sequence[str], capsys: pytest.CaptureFixture[str]) -> None:
    filled(tmp_path, "orders", COMPACTED)
    filled(tmp_path, "clicks", {"segment.bytes": 1000})
    assert job(InProcess(), tmp_path, "--dry-run", "--json", *more) == 0
    foretold = json.loads(capsys.readouterr().out)["topics"]
    assert job(InProcess(), tmp_path, "--json", *more) == 0
    done = json.loads(capsys.readouterr().out)["topics"]
    assert len(foretold) == len(done) == 2
    for before, after in zip(foretold, done, strict=True):
        would = {(item["partition"], item["action"]) for item in before["planned"] if item["bytes"]}
        assert would == {(item["partition"], action) for item in after["partitions"] for action in item["actions"]}
        assert would


def test_a_dry_run_reports_overdue_and_not_due_partitions(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    configs = {**COMPACTED, "min.cleanable.dirty.ratio": 1.0, "max.compaction.lag.ms": 3_600_000}
    filled(tmp_path, "orders", configs)
    now = int(time.time() * 1000)
    for later, why in (
        (0, "not due: dirty ratio 1.00, not above 1.00"),
        (7_200_000, "older than max.compaction.lag.ms"),
    ):
        assert job(InProcess(), tmp_path, "--dry-run", "--now-ms", str(now + later)) == 0
        lines = [line for line in capsys.readouterr().out.splitlines() if " compact " in line]
        assert len(lines) == 2
        assert all(why in line for line in lines)
    assert job(InProcess(), tmp_path, "--now-ms", str(now)) == 0
    capsys.readouterr()
    assert job(InProcess(), tmp_path, "--dry-run", "--now-ms", str(now + 7_200_000)) == 0
    assert capsys.readouterr().out.count("but older than max.compaction.lag.ms") == 2, "read from the sealed segments"


def test_json_is_one_document_on_stdout(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    orders = filled(tmp_path, "orders", COMPACTED)
    before = records(orders)
    assert job(InProcess(), tmp_path, "--json", "--now-ms", str(int(time.time() * 1000) + 5), "--roll") == 0
    said = capsys.readouterr()
    found = json.loads(said.out)
    assert len(said.out.splitlines()) == 1
    assert (found["root"], found["failed"], found["dryRun"]) == (str(tmp_path), False, False)
    partitions = found["topics"][0]["partitions"]
    assert sum(item["recordsBefore"] for item in partitions) == len(before)
    assert sum(item["recordsAfter"] for item in partitions) == len(latest(before))
    assert sum(item["tombstonesKept"] for item in partitions) == 1
    assert {item["dirtyRatio"] for item in partitions} == {1.0}
    assert "compact orders-0: done" in said.err


def test_now_ms_closes_old_segments_and_drops_tombstones(tmp_path: Path) -> None:
    """`--now-ms` alone determines the age of the same records, a week or a day later."""
    configs = {**COMPACTED, "segment.bytes": 1 << 20, "min.cleanable.dirty.ratio": 0.0}
    orders = filled(tmp_path, "orders", configs)
    now = int(time.time() * 1000)
    assert job(InProcess(), tmp_path, "--now-ms", str(now)) == 0
    assert not orders.log.snapshot().slices.all().sealed().any()
    later = now + 8 * 86_400_000
    assert job(InProcess(), tmp_path, "--now-ms", str(later)) == 0
    assert orders.log.snapshot().slices.all().sealed().all()
    assert [row["value"] for row in records(orders)].count(None) == 1
    orders.append(pa.table({"key": [b"new%d" % i for i in range(9)], "value": [b"x"] * 9}))
    assert job(InProcess(), tmp_path, "--now-ms", str(later + 86_400_001), "--roll") == 0
    assert [row["value"] for row in records(orders)].count(None) == 0


def test_properties_are_the_defaults_of_topics(tmp_path: Path) -> None:
    file = tmp_path / "p.properties"
    file.write_text("log.segment.bytes=1000\nlog.cleanup.policy=compact\n")
    root = tmp_path / "root"
    clicks, own = filled(root, "clicks", {}), filled(root, "own", {"cleanup.policy": "delete"})
    before, kept = records(clicks), records(own)
    assert job(InProcess(), root, "--properties", str(file), "--roll") == 0
    assert records(clicks) == latest(before)
    assert records(own) == kept
    assert len(own.log.snapshot().slices.all()) > 2, "its segments are of the file's size"


def test_a_default_in_a_file_drops_no_records_without_a_key(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Writers do not read the file, so they would continue to write such records without a warning."""
    file = tmp_path / "p.properties"
    file.write_text("log.cleanup.policy=compact\n")
    root = tmp_path / "root"
    logs, clicks = filled(root, "logs", {}, nulls=True), filled(root, "clicks", {})
    before, others = records(logs), records(clicks)
    given = ("--properties", str(file), "--roll")
    assert job(InProcess(), root, *given, "--dry-run") == 0
    said = capsys.readouterr().out
    assert "rejected: topic 'logs' contains records without a key" in said
    assert "rejected: topic 'clicks'" not in said
    assert job(InProcess(), root, *given) == 1
    assert records(logs) == before
    assert records(clicks) == latest(others)
    assert logs.log.snapshot().slices.all().sealed().all(), "all else is done"
    (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("sparklog compact: ")]
    assert "log.cleanup.policy" in line
    assert "set cleanup.policy=delete on the topic" in line
    logs.alter(configs={"cleanup.policy": "compact"}, force=True)
    assert job(InProcess(), root, *given) == 0
    assert records(logs) == [row for row in latest(before) if row["key"] is not None]


def test_more_keys_than_the_buffer_holds_take_several_passes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "p.properties"
    file.write_text("log.cleaner.dedupe.buffer.size=1048576\nlog.cleaner.min.cleanable.ratio=0\n")
    orders = sparklog.open(tmp_path / "root", create=True).create_topic("orders", configs={"cleanup.policy": "compact"})
    keys = pa.array(range(100_000)).cast(pa.string())
    for n in range(2):
        orders.append(pa.table({"key": keys, "value": pa.array([b"%d" % n] * len(keys))}))
    assert job(InProcess(), tmp_path / "root", "--properties", str(file), "--roll", "--json") == 0
    found = orders.scan(columns=("offset", "value")).to_table()
    assert found["offset"].to_pylist() == list(range(100_000, 200_000))
    (partition,) = json.loads(capsys.readouterr().out)["topics"][0]["partitions"]
    # The map has 43,690 slots, 90 % of which can be used, so each pass covers at least 39,321 of the 200,000 records.
    assert partition["actions"]["compact"] >= 3
    assert orders.log.state().first_dirty_offset.tolist() == [200_000]


def test_keyless_records_of_a_topic_that_was_switched_to_compact(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    orders = filled(tmp_path, "orders", {}, nulls=True)
    orders.alter(configs={"cleanup.policy": "compact"}, force=True)
    before = records(orders)
    assert job(InProcess(), tmp_path, "--roll") == 0
    assert records(orders) == [row for row in latest(before) if row["key"] is not None]
    said = capsys.readouterr().out
    assert "records without a key were dropped" in said


def test_seal_only_neither_merges_nor_cleans(tmp_path: Path) -> None:
    orders = filled(tmp_path, "orders", COMPACTED)
    before = records(orders)
    assert job(InProcess(), tmp_path, "--seal-only") == 0
    found = orders.log.snapshot().slices.all()
    assert found.sealed().any()
    assert not found.sealed().all()
    assert records(orders) == before
    assert orders.log.state().first_dirty_offset.tolist() == [0, 0]


def test_topics_may_be_repeated_or_joined_by_commas(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("a", "b", "c", "d"):
        filled(tmp_path, name, {})
    assert job(InProcess(), tmp_path, "--topic", "a,b", "--topic", "d", "--json") == 0
    assert [topic["topic"] for topic in json.loads(capsys.readouterr().out)["topics"]] == ["a", "b", "d"]


def test_a_root_without_topics_prints_one_message(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sparklog.open(tmp_path, create=True)
    assert job(InProcess(), tmp_path) == 0
    said = capsys.readouterr()
    assert (said.out, said.err) == ("", f"sparklog compact: nothing to do, because there are no topics in {tmp_path}\n")


@pytest.mark.parametrize(("more", "words"), [((), "nowhere"), (("--topic", "ordres"), "did you mean 'orders'?")])
def test_a_missing_topic_is_one_line_and_exit_code_1(
    tmp_path: Path, more: tuple[str, ...], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    if more:
        filled(tmp_path, "orders", {})
    assert job(InProcess(), tmp_path if more else tmp_path / "nowhere", *more) == 1
    said = capsys.readouterr()
    assert len(said.err.splitlines()) == 1
    assert words in said.err


def test_concurrent_runs_are_safe(tmp_path: Path) -> None:
    """Each work item of one run meets a complete other run. Records that both runs rewrote are unchanged."""
    orders = filled(tmp_path, "orders", COMPACTED)
    before = records(orders)

    class Meanwhile(InProcess):
        def __init__(self) -> None:
            super().__init__()
            self.left = 3

        def run(self, works: Sequence) -> object:  # type: ignore[type-arg, override]
            for work, result in super().run(works):
                if self.left:
                    self.left -= 1
                    assert job(InProcess(), tmp_path, "--roll") == 0
                yield work, result

    assert job(Meanwhile(), tmp_path, "--roll") == 0
    assert records(orders) == latest(before)


def test_the_script_runs_by_itself(tmp_path: Path) -> None:
    filled(tmp_path, "orders", COMPACTED)
    done = subprocess.run(
        [sys.executable, REPOSITORY / "jobs" / "compact.py", "--dry-run", "--json"],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY), "SPARKLOG_ROOT": str(tmp_path)},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["topics"][0]["topic"] == "orders"
    assert done.stderr == ""


@pytest.mark.slow
@pytest.mark.usefixtures("spark_folder")
def test_under_spark_submit_the_document_is_the_last_line_and_progress_can_be_read(tmp_path: Path) -> None:
    """spark-submit joins stdout and stderr of a script, and would log each task around the line with the error."""
    orders = filled(tmp_path, "orders", COMPACTED)
    before = records(orders)
    submit = Path(sys.executable).with_name("spark-submit")
    done = subprocess.run(
        [submit, "--master", "local[1]", REPOSITORY / "jobs" / "compact.py", "--root", tmp_path, "--roll", "--json"],
        capture_output=True,
        text=True,
        env={**os.environ, **spark_session.environment()},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    *progress, document = done.stdout.splitlines()
    assert json.loads(document)["topics"][0]["topic"] == "orders"
    assert any(re.fullmatch(r"\d{4}-\d\d-\d\dT[\d:.]{12}Z compact orders-0: done.*", line) for line in progress)
    assert "Scheduler" not in done.stdout + done.stderr
    assert records(orders) == latest(before)


def test_an_interrupted_run_ends_with_130(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*args: object, **options: object) -> int:
        raise KeyboardInterrupt

    sparklog.open(tmp_path / "root", create=True)
    monkeypatch.setattr(compact, "compact_root", interrupted)
    assert compact.main(["--root", str(tmp_path / "root")]) == 130
    stays = "committed work is kept, and the next run does the remaining work"
    assert capsys.readouterr().err == f"sparklog compact: interrupted; {stays}\n"


def test_an_interrupted_run_reports_completed_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Stopped(InProcess):
        def run(self, works: Sequence) -> object:  # type: ignore[type-arg, override]
            yield from list(super().run(works))[:1]
            raise KeyboardInterrupt

    filled(tmp_path, "orders", {})
    assert job(Stopped(), tmp_path, "--roll", "--seal-only") == 130
    said = capsys.readouterr().err
    assert re.search(r"sparklog compact: interrupted: 1 of \d+ work items?, .* of .*; committed work", said)


@dataclass(frozen=True)
class Small:
    """A work item that waits for a file (forever if it is never created), and raises the given error."""

    title: str
    waits_for: Path | None = None
    error: Exception | None = None
    op: str = "merge"
    topic: str = "t"
    topic_id: str = ""
    partitions: tuple[int, ...] = (0,)
    nbytes: int = 1
    file_count: int = 1

    def run(self, progress: Progress = silent) -> WorkResult:
        while self.waits_for is not None and not self.waits_for.exists():
            time.sleep(0.05)
        progress(1, 1)
        if self.error is not None:
            raise self.error
        return WorkResult((), (), (WorkReport(self.title, "t", os.getpid(), 1, 1, 1, 1),))


def test_results_come_as_they_are_finished(spark: SparkSession, tmp_path: Path) -> None:
    last = tmp_path / "last"
    works = [Small("slow", last), Small("quick 0"), Small("quick 1"), Small("quick 2")]
    found = []
    for work, result in SparkRunner(spark, parallelism=2).run(works):
        found.append((work, result))
        if work.title == "quick 2":
            last.touch()
    assert [work.title for work, _ in found] == ["quick 0", "quick 1", "quick 2", "slow"]
    for work, result in found:
        assert isinstance(result, WorkResult)
        assert result.reports[0].action == work.title
        assert result.reports[0].partition != os.getpid(), "in a worker"


def test_a_worker_runs_one_work_item_at_a_time(spark: SparkSession) -> None:
    """A new worker loads the kernels again, which takes longer than most work items."""
    works = [Small(f"piece {n}", error=None if n % 2 else Conflict("plan again")) for n in range(6)]
    works += [Small(f"later piece {n}") for n in range(12)]
    found = [result for _, result in SparkRunner(spark, parallelism=1).run(works)]
    workers = [result.reports[0].partition for result in found if isinstance(result, WorkResult)]
    assert len(workers) == 15
    assert len(set(workers)) < 8, "as many as were idle before, at most"


def test_a_task_error_keeps_its_type(spark: SparkSession, standard_error: StandardError) -> None:
    errors = (
        Corrupt("bad CRC", file="t/x.log", position=5, offset=7),
        Conflict("plan again"),
        Unavailable("the disk is away"),
    )
    works = [Small(f"piece {n}", error=error) for n, error in enumerate(errors)]
    found = dict(SparkRunner(spark).run(works))
    for work, error in zip(works, errors, strict=True):
        result = found[work]
        assert isinstance(result, SparklogError)
        assert (type(result), str(result)) == (type(error), str(error))
    corrupt = found[works[0]]
    assert isinstance(corrupt, Corrupt)
    assert (corrupt.file, corrupt.position, corrupt.offset) == ("t/x.log", 5, 7)
    # All workers write to the same pipe, so earlier output has arrived before this line.
    spark.sparkContext.parallelize([0], 1).foreach(lambda _: print("all was said", file=sys.stderr))
    assert standard_error.shows("all was said")
    # There is no traceback of these tasks, but a Spark process that ends at this time may write a traceback.
    assert [error for error in errors if standard_error.shows(str(error), seconds=0)] == []


def test_a_killed_task_is_a_one_line_error(spark: SparkSession) -> None:
    works = [
        Small("faulty", error=ZeroDivisionError("a fault of ours")),
        Small("sound"),
        Small("big", error=MemoryError()),
    ]
    found = {work.title: result for work, result in SparkRunner(spark).run(works)}
    assert isinstance(found["sound"], WorkResult)
    assert isinstance(found["faulty"], Unavailable)
    assert "faulty" in str(found["faulty"])
    assert "ZeroDivisionError: a fault of ours" in str(found["faulty"])
    assert "\n" not in str(found["faulty"])
    assert "log.cleaner.dedupe.buffer.size" in str(found["big"])


def test_an_abandoned_run_cancels_its_tasks(spark: SparkSession, tmp_path: Path) -> None:
    never = tmp_path / "never"
    works = [Small("quick"), Small("endless", never), Small("begun as the first ends", never)]
    running = SparkRunner(spark, parallelism=2).run(works)
    assert next(running)[0].title == "quick"
    running.close()  # type: ignore[attr-defined]
    end = time.monotonic() + 300
    status = spark.sparkContext.statusTracker()
    while status.getActiveJobsIds() and time.monotonic() < end:
        time.sleep(0.1)
    assert not status.getActiveJobsIds()


def test_a_running_spark_session_is_reused(spark: SparkSession) -> None:
    runner = SparkIfNeeded("tests", sparklog.configure, Settings(0))
    (found,) = runner.run([Small("piece")])
    assert isinstance(found[1], WorkResult)
    assert found[1].reports[0].partition != os.getpid()
    runner.close()
    assert spark.sparkContext.parallelize(range(3), 1).count() == 3


def test_without_pyspark_the_work_runs_in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyspark.sql", None)
    runner = SparkIfNeeded("tests", sparklog.configure, Settings(0, spark_min_bytes=0))
    assert list(runner.run([])) == []
    (found,) = runner.run([Small("piece")])
    assert isinstance(found[1], WorkResult)
    assert found[1].reports[0].partition == os.getpid()
    runner.close()


@pytest.mark.parametrize(
    ("sizes", "reason"),
    [
        ([], None),
        ([(1, 1)], None),
        ([(99, 1)], None),
        ([(99, 1), (1, 1)], "100 B to read, with spark.min.bytes=100"),
        ([(1, 9)], None),
        ([(1, 5), (1, 5)], "10 files to read, with spark.min.files=10"),
    ],
)
def test_little_work_does_not_start_spark(
    sizes: list[tuple[int, int]], reason: str | None, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def configure(builder: object) -> NoReturn:
        raise InterruptedError

    monkeypatch.setattr("pyspark.sql.SparkSession.getActiveSession", lambda: None)
    runner = SparkIfNeeded("sparklog tests", configure, Settings(0, spark_min_bytes=100, spark_min_files=10))
    works = [Small("piece", nbytes=nbytes, file_count=files) for nbytes, files in sizes]
    if reason is None:
        assert [result.reports[0].partition for _, result in runner.run(works) if isinstance(result, WorkResult)] == [
            os.getpid() for _ in works
        ]
        return
    with pytest.raises(InterruptedError):
        runner.run(works)
    assert f"sparklog tests: starting Spark ({reason})" in capfd.readouterr().err


def test_without_java_the_work_runs_in_this_process(tmp_path: Path) -> None:
    """PySpark is installed and Java is not, which a cron job would only detect at night."""
    filled(tmp_path / "root", "orders", COMPACTED)
    given = [sys.executable, str(REPOSITORY / "jobs" / "compact.py"), "--root", str(tmp_path / "root"), "--json"]
    (tmp_path / "settings").write_text("spark.min.bytes=0")
    given += ["--properties", str(tmp_path / "settings")]
    (tmp_path / "bin").mkdir()
    for tool in ("bash", "env", "dirname", "ps"):
        found = shutil.which(tool)
        if found is not None:
            (tmp_path / "bin" / tool).symlink_to(found)
    environment = {name: value for name, value in os.environ.items() if name not in ("JAVA_HOME", "SPARK_HOME")}
    answer = subprocess.run(
        given,
        cwd=REPOSITORY,
        env={**environment, "PATH": str(tmp_path / "bin")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert answer.returncode == 0, answer.stderr
    assert "Traceback" not in answer.stderr
    assert "failed to start Spark" in answer.stderr
    assert json.loads(answer.stdout)["topics"][0]["partitions"][0]["actions"]["seal"] == 1


def test_no_work_does_not_start_a_job(spark: SparkSession) -> None:
    assert list(SparkRunner(spark).run([])) == []
