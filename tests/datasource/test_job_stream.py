"""The job that streams a Kafka directory or a root to a root, in the shared session."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

import sparklog
from sparklog.groups.lag import Groups
from sparklog.jobs import stream
from sparklog.output import StatusLine
from tests.datasource.streams import READ_LIMITS, feed
from tests.kafka.logs import HOUR_MS, batch, write_partition

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TOPICS = ("txn-a", "txn-b")


def copied(tmp_path: Path, fixtures: Path, *more: str) -> stream.Copy:
    given = ["--source", str(fixtures / "transactions" / "data"), "--subscribe", ",".join(TOPICS)]
    given += ["--root", str(tmp_path / "root"), "--checkpoint", str(tmp_path / "checkpoint"), *more]
    return stream.arguments(given)


def test_topics_keep_their_names_and_records_and_a_second_run_writes_nothing(
    spark: SparkSession, tmp_path: Path, fixtures: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = copied(tmp_path, fixtures)
    for _ in range(2):
        assert stream.run(spark, copy) == 0
        assert f"written to {copy.root}" in capsys.readouterr().out
        for topic in TOPICS:
            read = (
                spark.read.format("sparklog")
                .option("includeHeaders", True)
                .schema("key binary, value binary, timestamp timestamp, headers array<struct<key:string,value:binary>>")
            )
            source = read.option("subscribe", topic).load(copy.source).collect()
            target = read.option("subscribe", topic).load(copy.root).collect()
            assert sorted(map(str, target)) == sorted(map(str, source))
            assert len(source) > 0


def test_all_records_can_be_written_to_one_topic(spark: SparkSession, tmp_path: Path, fixtures: Path) -> None:
    copy = copied(tmp_path, fixtures, "--topic", "archive", "--num-partitions", "3", "--max-offsets-per-trigger", "50")
    assert stream.run(spark, copy) == 0
    root = sparklog.open(copy.root)
    assert root.topics() == ["archive"]
    expected = spark.read.format("sparklog").option("subscribe", ",".join(TOPICS)).load(copy.source).count()
    assert root.topic("archive").scan().to_table().num_rows == expected
    assert root.topic("archive").log.state().partitions == 3


def test_progress_is_committed_to_a_group_of_the_source(spark: SparkSession, tmp_path: Path) -> None:
    source = tmp_path / "source"
    feed(source, "t", range(10), partitions=1)
    given = ["--source", str(source), "--subscribe", "t", "--group", "archive"]
    given += ["--root", str(tmp_path / "root"), "--checkpoint", str(tmp_path / "c")]
    for _ in range(1 if READ_LIMITS else 2):
        assert stream.run(spark, stream.arguments(given)) == 0
    committed = Groups(str(source)).group("archive").committed()
    assert {topic_partition: item.offset for topic_partition, item in committed.items()} == {("t", 0): 10}


def test_a_record_without_a_timestamp_gets_the_write_time(spark: SparkSession, tmp_path: Path) -> None:
    write_partition(tmp_path / "kafka", "t-0", {0: batch(0, [b"timed"]) + batch(1, [b"timeless"], timestamp=-1)})
    given = ["--source", str(tmp_path / "kafka"), "--root", str(tmp_path / "root"), "--checkpoint", str(tmp_path / "c")]
    begun = int(time.time() * 1000)
    assert stream.run(spark, stream.arguments(given)) == 0
    rows = sparklog.open(tmp_path / "root").topic("t").scan(columns=("value", "timestamp")).to_table()
    times = dict(zip(rows["value"].to_pylist(), rows["timestamp"].cast("int64").to_pylist(), strict=True))
    assert times[b"timed"] == HOUR_MS
    assert times[b"timeless"] >= begun


def test_a_failing_query_is_one_line_and_exit_code_1(
    spark: SparkSession, tmp_path: Path, fixtures: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ["--source", str(tmp_path / "nowhere"), "--root", str(tmp_path / "root"), "--checkpoint", str(tmp_path)]
    assert stream.run(spark, stream.arguments(given)) == 1
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 1
    assert "nowhere" in said[0]


@pytest.mark.parametrize("more", [(), ("--topic", "t")])
@pytest.mark.parametrize("path", ["", "/t"])
def test_a_topic_is_not_copied_to_itself(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], path: str, more: tuple[str, ...]
) -> None:
    root = str(tmp_path / "root")
    feed(root, "t", range(3))
    given = ["--source", root + path, "--subscribe", "t", "--root", root, "--checkpoint", str(tmp_path / "c"), *more]
    assert stream.main(given) == 1
    assert "a topic cannot be copied to itself" in capsys.readouterr().err
    copy = stream.arguments(given)
    stream.check_not_itself(replace(copy, topic="other"), ["t"])
    stream.check_not_itself(replace(copy, root=str(tmp_path / "other")), ["t"])


def test_wrong_usage_ends_with_2(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("SPARKLOG_ROOT", raising=False)
    with pytest.raises(SystemExit) as stopped:
        stream.arguments(["--source", str(tmp_path), "--checkpoint", str(tmp_path)])
    assert stopped.value.code == 2
    assert "--root" in capsys.readouterr().err


@pytest.mark.parametrize("when", ["Spark starts", "the query starts", "the query runs"])
def test_an_interrupt_stops_spark_and_is_one_line(
    when: str, tmp_path: Path, fixtures: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class FakeSpark:
        stopped = False

        def stop(self) -> None:
            self.stopped = True

    class Builder:
        _options: dict[str, object] = {}  # noqa: RUF012

        def appName(self, name: str) -> Builder:  # noqa: N802 - Spark's name
            return self

        def config(self, name: str = "", value: str = "", **more: object) -> Builder:
            return self

        def getOrCreate(self) -> FakeSpark:  # noqa: N802 - Spark's name
            if when == "Spark starts":
                raise KeyboardInterrupt
            return fake

    class Query:
        recentProgress = ({"batchId": 7, "numInputRows": 3},)  # noqa: N815

        def stop(self) -> None:
            pass

        def awaitTermination(self, seconds: float | None) -> None:  # noqa: N802
            raise KeyboardInterrupt

    def start(spark: object, copy: stream.Copy) -> Query:
        if when == "the query starts":
            raise KeyboardInterrupt
        return Query()

    fake = FakeSpark()
    monkeypatch.setattr(stream, "SparkSession", type("FakeSession", (), {"builder": Builder()}))
    # Tests that ran before may have started a session.
    monkeypatch.setattr(stream.sparklog, "configure", lambda builder: builder)
    monkeypatch.setattr(stream.sparklog, "register", lambda spark: None)
    monkeypatch.setattr(stream, "start", start)
    source = ["--source", str(fixtures / "transactions" / "data")]
    assert stream.main([*source, "--root", str(tmp_path / "root"), "--checkpoint", "c"]) == 130
    assert fake.stopped == (when != "Spark starts")
    done = ": up to micro-batch 7" if when == "the query runs" else ""
    said = capsys.readouterr().err
    assert (
        said
        == f"sparklog stream: interrupted{done}; the next run with this checkpoint resumes where this run stopped\n"
    )


def test_a_terminal_shows_the_progress_of_a_query(monkeypatch: pytest.MonkeyPatch) -> None:
    class Query:
        looks = iter((False, False, True))
        recentProgress: list[dict[str, int]] = []  # noqa: N815, RUF012

        def awaitTermination(self, seconds: float) -> bool:  # noqa: N802
            batch = len(self.recentProgress)
            # The trigger that found no records reports the later batch.
            self.recentProgress += [{"batchId": batch, "numInputRows": 0}, {"batchId": batch, "numInputRows": 5}]
            return next(self.looks)

    stages = {3: SimpleNamespace(numCompletedTasks=12, numTasks=40), 4: None}
    tracker = SimpleNamespace(getActiveStageIds=lambda: [3, 4], getStageInfo=stages.get)
    session = SimpleNamespace(sparkContext=SimpleNamespace(statusTracker=lambda: tracker))
    monkeypatch.setattr(stream, "SparkSession", SimpleNamespace(getActiveSession=lambda: session))
    monkeypatch.setattr("sparklog.output.on_terminal", lambda: True)
    line = StatusLine("mirror")
    status = stream.QueryStatus(line)
    assert not status.wait(Query(), 1.5)
    assert line.text == "10 records in 2 micro-batches, now 12 of 40 tasks"
    assert status.wait(Query())
    assert status.last_batch == 4
