"""Records of job runs: their contents, also after failures, their maximum number, and their failures."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pytest

import sparklog
from sparklog.compaction.run import CompactOptions, compact_root
from sparklog.doctor import costs
from sparklog.errors import Corrupt, Unavailable
from sparklog.jobs import retain
from sparklog.log.topic.root import Root
from sparklog.maintenance.job_history import (
    COMPACT,
    JOB_HISTORY,
    MAX_EQUAL_RUNS,
    RETAIN,
    SEAL,
    RunRecorder,
    read_job_history,
)
from sparklog.maintenance.report import RunReport, RunStatistics
from sparklog.maintenance.work_items import InProcess, Settings
from sparklog.retention.retain import retain_root
from sparklog.testing.faulty_store import Call, Crash, Fault, FaultKind, FaultyStore
from sparklog.testing.world import DAY_MS, HOUR_MS, World
from sparklog.tools.verification.run import verify_root
from tests.log.topic.test_request_budget import within
from tests.support.counted_root import KINDS_AND_BUCKET, CountedRoot

ROWS = pa.table({"key": ["a", "b", "a"], "value": ["1", "2", "3"]})


@pytest.fixture
def world() -> World:
    world = World()
    for name in ("a", "b"):
        world.root().create_topic(name, configs={"cleanup.policy": "compact"}).append(ROWS)
    return world


def compacted(root: Root, topics: Sequence[str] = (), **options: bool) -> Sequence[RunReport]:
    settings = Settings(root.store.now_ms())
    recording = RunRecorder[RunReport](root, SEAL if options.get("seal_only") else COMPACT, settings, topics)
    return recording.run(lambda: compact_root(root, settings, InProcess(), CompactOptions(topics, **options)))


def retained(root: Root) -> Sequence[RunReport]:
    settings = Settings(root.store.now_ms())
    return RunRecorder[RunReport](root, RETAIN, settings).run(lambda: retain_root(root, settings))


def test_run_records_its_results_and_the_backlog(world: World) -> None:
    begun_ms = world.now_ms
    compacted(world.root(), roll=True)
    outcomes = read_job_history(world.root())
    (run,) = outcomes.runs
    assert (run.job, run.topics, run.failure, run.failed_topics) == (COMPACT, (), "", 0)
    assert begun_ms <= run.start_ms <= world.now_ms
    # The runs cover both topics: the first is sealed, and the second is compacted to the latest record of each key.
    assert (run.amounts.records_in, run.amounts.records_out) == (12, 10)
    assert run.amounts.bytes_in > run.amounts.bytes_out > 0
    row = outcomes.rows()[COMPACT, "a"]
    assert row.amounts is not None
    assert row.amounts.records_out == 5
    assert (row.succeeded_ms, row.unsealed_bytes, row.dirty_permille) == (run.start_ms, 0, 0)
    assert JOB_HISTORY.table.decode(JOB_HISTORY.table.encode(outcomes), "key") == outcomes


def test_retention_records_expired_and_deleted_bytes(world: World) -> None:
    world.root().create_topic("old", configs={"retention.ms": HOUR_MS}).append(ROWS)
    world.now_ms += DAY_MS
    retained(world.root())
    row = read_job_history(world.root()).rows()[RETAIN, "old"]
    assert row.amounts is not None
    assert (row.amounts.records_in, row.amounts.records_out, row.amounts.bytes_out) == (3, 0, 0)
    world.now_ms += 10 * DAY_MS
    retained(world.root())
    (first, second) = read_job_history(world.root()).runs
    assert first.amounts.bytes_deleted == 0
    assert second.amounts == RunStatistics(bytes_deleted=second.amounts.bytes_deleted)


def broken_files(call: Call) -> Fault | None:
    return (
        Fault(FaultKind.ERROR_BEFORE)
        if call.key.startswith("b/") and call.verb in ("create", "writer", "close")
        else None
    )


def test_failed_run_keeps_the_last_success(world: World) -> None:
    compacted(world.root())
    good_ms = read_job_history(world.root()).runs[0].start_ms
    world.now_ms += HOUR_MS
    world.topic("b").append(ROWS)
    compacted(world.root(FaultyStore(world.store, broken_files, lambda seconds: None)), roll=True)
    outcomes = read_job_history(world.root())
    failed, fine = outcomes.rows()[COMPACT, "b"], outcomes.rows()[COMPACT, "a"]
    assert "SPARKLOG_UNAVAILABLE" in failed.failure
    assert (failed.succeeded_ms, failed.start_ms) == (good_ms, outcomes.runs[-1].start_ms)
    assert failed.unsealed_bytes, "what a failed run left is recorded, too"
    assert (fine.failure, fine.succeeded_ms) == ("", outcomes.runs[-1].start_ms)
    assert (outcomes.runs[-1].failed_topics, outcomes.runs[-1].failure) == (1, "")
    assert outcomes.whole_run_ms(COMPACT) == outcomes.runs[-1].start_ms


@pytest.mark.parametrize(
    ("error", "text"),
    [(Unavailable("no store"), "no store [SPARKLOG_UNAVAILABLE]"), (KeyboardInterrupt(), "interrupted")],
)
def test_run_that_raises_is_recorded_with_the_error(world: World, error: BaseException, text: str) -> None:
    root = world.root()

    def work() -> list[RunReport]:
        raise error

    with pytest.raises(type(error)):
        RunRecorder[RunReport](root, RETAIN, Settings(0)).run(work)
    outcomes = read_job_history(root)
    assert [run.failure for run in outcomes.runs] == [text]
    assert outcomes.whole_run_ms(RETAIN) == -1


def test_number_of_runs_and_rows_is_bounded(world: World) -> None:
    root = world.root()
    for number in range(MAX_EQUAL_RUNS + 3):
        world.now_ms += HOUR_MS
        RunRecorder[RunReport](root, RETAIN, Settings(0)).run(list)
        if number % 4 == 0:
            compacted(root, ("a",), seal_only=True)
    outcomes = read_job_history(root)
    assert [run.job for run in outcomes.runs].count(RETAIN) == MAX_EQUAL_RUNS
    assert [run.topics for run in outcomes.runs if run.job == SEAL] == [("a",)] * 3
    starts = [run.start_ms for run in outcomes.runs]
    assert starts == sorted(starts)
    world.now_ms += 91 * DAY_MS
    RunRecorder[RunReport](root, RETAIN, Settings(0)).run(list)
    assert read_job_history(root).topics == ()


def test_rows_of_a_deleted_topic_are_removed(world: World) -> None:
    root = world.root()
    compacted(root)
    retained(root)
    root.delete_topic("b")
    retained(root)
    assert {row.topic for row in read_job_history(root).topics} == {"a"}


def test_retain_deletes_old_entries_of_run_records(world: World) -> None:
    root = world.root()
    for _ in range(40):
        world.now_ms += HOUR_MS
        RunRecorder[RunReport](root, RETAIN, Settings(0)).run(list)
    before = len(list(world.store.list("_jobs/")))
    assert not any(report.failures for report in retained(root))
    assert len(list(world.store.list("_jobs/"))) < before - 8
    assert len(read_job_history(world.root()).runs) == MAX_EQUAL_RUNS


@pytest.mark.parametrize("kind", [FaultKind.CRASH_BEFORE, FaultKind.CRASH_AFTER, FaultKind.ERROR_BEFORE])
def test_crash_at_any_request_does_not_affect_the_work(world: World, kind: FaultKind) -> None:
    """The work is completed regardless of the record, and the next run is recorded."""
    for step in range(12):
        calls = iter(range(10**6))

        def decide(call: Call, step: int = step, calls: object = calls) -> Fault | None:
            mine = call.key.startswith("_jobs/")
            return Fault(kind) if mine and next(calls) == step else None  # type: ignore[call-overload]

        root = world.root(FaultyStore(world.store, decide, lambda seconds: None))
        root.topic("a").append(ROWS)
        try:
            reports = compacted(root)
            assert not any(report.failed for report in reports)
        except Crash:
            assert kind != FaultKind.ERROR_BEFORE
        world.now_ms += HOUR_MS
        compacted(world.root())
        outcomes = read_job_history(world.root())
        assert world.now_ms - HOUR_MS < outcomes.runs[-1].start_ms <= world.now_ms
    assert verify_root(world.store).sound


def test_failure_to_record_a_run_is_logged(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    compacted(world.root())
    (entry,) = world.store.list("_jobs/")
    world.store.delete(entry.key)
    world.store.create(entry.key, b"{}")
    assert not any(report.failed for report in compacted(world.root()))
    assert "compact: failed to record this run: " in capsys.readouterr().err
    with pytest.raises(Corrupt):
        read_job_history(world.root())
    assert [finding.kind for finding in verify_root(world.store).findings] == ["run record"]


def test_jobs_record_their_runs_except_dry_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = sparklog.open(tmp_path / "log", create=True)
    root.create_topic("a").append(ROWS)
    properties = tmp_path / "sparklog.properties"
    properties.write_text("log.retention.hours=1\n")
    words = ["--root", root.location, "--properties", str(properties)]
    assert retain.run(retain.arguments([*words, "--dry-run"])) == 0
    sparklog.retain(root, dry_run=True)
    sparklog.compact(root, dry_run=True)
    assert read_job_history(root).runs == ()
    assert retain.run(retain.arguments(words)) == 0
    sparklog.retain(root)
    sparklog.compact(root, topics=["a"], seal_only=True)
    runs = read_job_history(root).runs
    assert [(run.job, run.topics) for run in runs] == [(RETAIN, ()), (RETAIN, ()), (SEAL, ("a",))]
    assert [dict(run.defaults) for run in runs] == [{"retention.ms": str(HOUR_MS)}, {}, {}]


@pytest.mark.parametrize("kind", KINDS_AND_BUCKET)
def test_requests_to_record_a_run_and_to_read_the_history(kind: str, tmp_path: Path) -> None:
    counted_root = CountedRoot(kind, tmp_path)
    root = counted_root.root
    RunRecorder[RunReport](root, RETAIN, Settings(0)).run(list)
    for _ in range(10):
        other = counted_root.world.root(counted_root.store)
        other.engine.ensure_probed()
        counted_root.store.reset()
        RunRecorder[RunReport](other, RETAIN, Settings(0)).run(list)
        within(counted_root, costs.RECORD_RUN)
        counted_root.store.reset()
        assert read_job_history(other).runs
        within(counted_root, costs.READ_JOB_HISTORY)
