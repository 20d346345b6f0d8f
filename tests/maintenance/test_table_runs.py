"""Records of runs that copy topics to tables: their contents, states and number, and failures to write them."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

import sparklog
from sparklog.errors import NotFound, SparklogError
from sparklog.log.topic.root import Root
from sparklog.maintenance import table_runs
from sparklog.maintenance.job_history import MAX_EQUAL_RUNS
from sparklog.maintenance.table_runs import TABLE_RUNS, UPDATE_MS, CopiedRecords, TableRunRecorder, read_table_runs
from sparklog.maintenance.work_items import Settings
from sparklog.retention.retain import retain_root
from sparklog.testing.faulty_store import Call, Fault, FaultKind, FaultyStore
from sparklog.testing.world import DAY_MS, HOUR_MS, World
from sparklog.tools.verification.run import verify_root

COPIED = CopiedRecords(3, 1, 2)


@pytest.fixture
def world() -> World:
    world = World()
    world.root().create_topic("a").append(pa.table({"value": ["1"]}))
    return world


def recorder(root: Root, table: str = "s.t", copied: Callable[[], CopiedRecords] = lambda: COPIED) -> TableRunRecorder:
    return TableRunRecorder(root, "a", "to-iceberg", table, copied)


def runs(world: World) -> list[table_runs.TableRun]:
    failures: list[SparklogError] = []
    recorded = read_table_runs(world.root(), ["a", "b"], failures)
    assert not failures
    return list(recorded["a"].runs) if recorded else []


def test_run_records_its_result(world: World) -> None:
    begun_ms = world.now_ms
    with recorder(world.root()):
        world.now_ms += 5000
    [run] = runs(world)
    assert (run.job, run.table, run.process, run.copied) == ("to-iceberg", "s.t", os.getpid(), COPIED)
    assert begun_ms <= run.start_ms <= world.now_ms - 5000
    assert (run.took_ms >= 5000, run.has_ended, run.failure) == (True, True, "")
    assert run.succeeded_ms == run.start_ms
    assert run.state_at(world.now_ms + DAY_MS) == "ok"
    entry = table_runs.TableRuns("a", 0, runs=(run,))
    assert TABLE_RUNS.table.decode(TABLE_RUNS.table.encode(entry), "key").runs == (run,)


@pytest.mark.parametrize(
    ("error", "failure", "state"),
    [
        (NotFound("no topic"), "no topic [SPARKLOG_NOT_FOUND]", "failed"),
        (KeyboardInterrupt(), "interrupted", "interrupted"),
        (ZeroDivisionError(), "ZeroDivisionError", "failed"),
    ],
)
def test_failed_run_keeps_the_last_success(world: World, error: BaseException, failure: str, state: str) -> None:
    with recorder(world.root()):
        pass
    succeeded_ms = runs(world)[0].succeeded_ms
    world.now_ms += HOUR_MS
    with recorder(world.root(), "s.other"):
        pass
    with pytest.raises(type(error)), recorder(world.root()):
        raise error
    run = runs(world)[-1]
    assert (run.failure, run.state_at(world.now_ms), run.succeeded_ms) == (failure, state, succeeded_ms)


def test_run_that_follows_is_recorded_every_ten_minutes(world: World) -> None:
    copied = [CopiedRecords()]
    run = recorder(world.root(), copied=lambda: copied[0])
    with run:
        for minute in range(25):
            copied[0] = CopiedRecords(minute, 0, minute)
            run.update()
            world.now_ms += 60_000
        [recorded] = runs(world)
        assert recorded.copied == CopiedRecords(20, 0, 20)
        assert recorded.succeeded_ms == recorded.start_ms + recorded.took_ms
        assert recorded.state_at(world.now_ms) == "running"
        assert recorded.state_at(world.now_ms + 3 * UPDATE_MS) == "killed"
        entries = len(list(world.store.list("_tables/a/_log/")))
        assert entries == 3
    [recorded] = runs(world)
    assert (recorded.has_ended, recorded.copied) == (True, CopiedRecords(24, 0, 24))


def test_number_of_runs_is_bounded(world: World) -> None:
    for number in range(MAX_EQUAL_RUNS + 3):
        world.now_ms += HOUR_MS
        with recorder(world.root(), copied=lambda number=number: CopiedRecords(number)):
            pass
    with recorder(world.root(), "s.other"):
        pass
    tables = [run.table for run in runs(world)]
    assert (tables.count("s.t"), tables.count("s.other")) == (MAX_EQUAL_RUNS, 1)
    assert runs(world)[0].copied.records == 3
    world.now_ms += 91 * DAY_MS
    with recorder(world.root()):
        pass
    assert len(runs(world)) == 1


def test_retain_deletes_old_entries_and_journals_of_deleted_topics(world: World) -> None:
    for _ in range(40):
        world.now_ms += HOUR_MS
        with recorder(world.root()):
            pass
    before = len(list(world.store.list("_tables/")))
    retained(world)
    assert len(list(world.store.list("_tables/"))) < before
    assert len(runs(world)) == MAX_EQUAL_RUNS
    world.root().create_topic("b")
    world.root().delete_topic("a")
    retained(world)
    assert len(runs(world)) == MAX_EQUAL_RUNS
    world.now_ms += 8 * DAY_MS
    retained(world)
    assert not list(world.store.list("_tables/"))


def retained(world: World) -> None:
    assert not any(report.failures for report in retain_root(world.root(), Settings(world.now_ms)))
    assert verify_root(world.store).sound


def test_failure_to_record_a_run_is_one_warning(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    def decide(call: Call) -> Fault | None:
        return Fault(FaultKind.ERROR_BEFORE) if call.key.startswith("_tables/") and call.verb == "create" else None

    run = recorder(world.root(FaultyStore(world.store, decide, lambda seconds: None)))
    with run:
        for _ in range(3):
            run.update()
            world.now_ms += UPDATE_MS
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "to-iceberg: failed to record this run: " in error
    assert runs(world) == []


def test_root_that_is_read_only_is_one_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    root = sparklog.open(tmp_path / "log", create=True)
    root.create_topic("a")
    monkeypatch.setattr(type(root.store), "writable", False)
    run = recorder(root)
    with run:
        run.update()
        run.update()
    error = capsys.readouterr().err
    assert error.endswith("to-iceberg: failed to record this run: the root is read-only [SPARKLOG_UNAVAILABLE]\n")
    assert error.count("\n") == 1
    assert not (tmp_path / "log" / "_tables").exists()


def test_backups_and_kafka_directories_have_no_records(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = sparklog.open(tmp_path / "log", create=True)
    root.create_topic("a")
    sparklog.backup(root, tmp_path / "backups")
    for source in (sparklog.open(tmp_path / "backups"), None):
        with TableRunRecorder(source, "a", "to-iceberg", "s.t", lambda: COPIED) as run:
            run.update()
    assert capsys.readouterr().err == ""


def test_damaged_record_is_reported(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    with recorder(world.root()):
        pass
    [entry] = world.store.list("_tables/")
    world.store.delete(entry.key)
    world.store.create(entry.key, b"{}")
    failures: list[SparklogError] = []
    assert read_table_runs(world.root(), ["a"], failures) == {}
    assert [error.code for error in failures] == ["SPARKLOG_CORRUPT"]
    assert [finding.kind for finding in verify_root(world.store).findings] == ["table run"]
    with recorder(world.root()):
        pass
    assert "failed to record this run" in capsys.readouterr().err
