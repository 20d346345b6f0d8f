"""Checks of `sparklog doctor` of the maintenance jobs of a root."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

import sparklog
from sparklog.compaction.run import compact_root
from sparklog.doctor.checks import FAIL, OK, WARN, Check
from sparklog.doctor.job_checks import check_jobs
from sparklog.errors import NotFound
from sparklog.log.topic.root import RootView
from sparklog.maintenance.job_history import COMPACT, RETAIN, RunRecorder
from sparklog.maintenance.leases import LEASE_MS, JobLease
from sparklog.maintenance.report import RunReport
from sparklog.maintenance.table_runs import UPDATE_MS, CopiedRecords, TableRunRecorder
from sparklog.maintenance.work_items import InProcess, Settings
from sparklog.retention.retain import retain_root
from sparklog.testing.world import DAY_MS, HOUR_MS, MINUTE_MS, World
from sparklog.tools.report.gather import gather


def filled() -> World:
    world = World()
    world.root().create_topic("orders").append(pa.table({"value": ["a"]}))
    return world


def maintain(world: World, *jobs: str) -> None:
    root, settings = world.root(), Settings(world.now_ms)
    if COMPACT in jobs:
        RunRecorder[RunReport](root, COMPACT, settings).run(lambda: compact_root(root, settings, InProcess()))
    if RETAIN in jobs:
        RunRecorder[RunReport](root, RETAIN, settings).run(lambda: retain_root(root, settings))


def said(checks: list[Check], job: str) -> list[tuple[str, str]]:
    return [(check.status, check.found) for check in checks if check.check == job]


def test_root_without_recorded_runs() -> None:
    assert check_jobs(World().root()) == [], "without topics there is nothing to do"
    world = filled()
    young = said(check_jobs(world.root()), RETAIN)
    assert young == [(OK, "retain has never run on this root (no run is recorded); it is not overdue yet")]
    world.now_ms += 26 * HOUR_MS
    maintain(world, COMPACT)
    checks = check_jobs(world.root())
    ((status, found),) = said(checks, RETAIN)
    assert (status, found.startswith("retain has never run on this root")) == (WARN, True)
    assert said(checks, COMPACT)[0][0] == OK
    assert [check.fix.startswith("sparklog retain --root ") for check in checks if check.check == RETAIN] == [True]


def test_successful_jobs_are_ok() -> None:
    world = filled()
    for _ in range(3):
        maintain(world, COMPACT, RETAIN)
        world.now_ms += HOUR_MS
    message = "succeeded on 1 topic, every 60 min; the oldest successful run started 60 min ago"
    checks = check_jobs(world.root())
    assert [(check.check, check.status, check.found) for check in checks] == [
        (COMPACT, OK, message),
        (RETAIN, OK, message),
    ]


def test_max_age_turns_an_old_success_into_a_failure() -> None:
    world = filled()
    maintain(world, COMPACT)
    world.now_ms += 3 * HOUR_MS
    checks = check_jobs(world.root(), 3 * HOUR_MS)
    assert [check.check for check in checks if check.status == FAIL] == [RETAIN]
    assert said(checks, RETAIN)[-1][1] == "has not succeeded for 3 h on 1 topic; last success on orders: never"
    world.now_ms += MINUTE_MS
    checks = check_jobs(world.root(), 3 * HOUR_MS)
    assert [check.check for check in checks if check.status == FAIL] == [COMPACT, RETAIN]


def test_hanging_and_dead_runs_are_reported() -> None:
    world = filled()
    for _ in range(3):
        maintain(world, COMPACT, RETAIN)
        world.now_ms += HOUR_MS
    hanging = JobLease(world.root(), RETAIN)
    hanging.acquire()
    assert all(check.status == OK for check in check_jobs(world.root())), "a run that works is no trouble"
    world.now_ms += 2 * HOUR_MS
    hanging.renew()
    checks = check_jobs(world.root())
    assert "is still active, so other runs skip its topics" in said(checks, RETAIN)[-1][1]
    world.now_ms += LEASE_MS
    checks = check_jobs(world.root())
    assert "ended without a recorded result" in said(checks, RETAIN)[-1][1]
    maintain(world, RETAIN)
    JobLease(world.root(), RETAIN).acquire()
    assert [status for status, _ in said(check_jobs(world.root()), RETAIN)] == [OK]


def test_defaults_of_the_last_run_are_used() -> None:
    """Doctor cannot read a properties file of another machine, which may keep records longer."""
    world = filled()
    longer = Settings(world.now_ms, {"retention.ms": str(60 * DAY_MS)})
    for _ in range(3):
        root = world.root()
        RunRecorder[RunReport](root, RETAIN, longer).run(lambda root=root: retain_root(root, longer))  # type: ignore[misc]
        world.now_ms += 10 * DAY_MS
    assert [status for status, _ in said(check_jobs(world.root()), RETAIN)] == [OK]


def test_unreadable_run_records_are_a_warning() -> None:
    world = filled()
    maintain(world, RETAIN)
    (entry,) = world.store.list("_jobs/")
    world.store.delete(entry.key)
    world.store.create(entry.key, b"{}")
    (check,) = check_jobs(world.root())
    assert (check.check, check.status) == ("jobs", WARN)
    assert "sparklog verify" in check.fix
    (check,) = check_jobs(world.root(), HOUR_MS)
    assert (check.check, check.status) == ("jobs", FAIL), "with a maximum age, the state must be known"
    report = gather(RootView(world.root()), Settings(world.now_ms), maintenance=False)
    assert [note.text.startswith("the recorded runs of jobs cannot be read: ") for note in report.notes] == [True]
    assert (report.jobs, len(report.topics)) == (None, 1)


def test_maximum_age_requires_a_root_instead_of_a_backup(tmp_path: Path) -> None:
    sparklog.open(tmp_path / "root", create=True).create_topic("orders")
    sparklog.backup(str(tmp_path / "root"), str(tmp_path / "backups"))
    backup = sparklog.open(tmp_path / "backups")
    assert check_jobs(backup) == []
    assert [(check.check, check.status) for check in check_jobs(backup, HOUR_MS)] == [("jobs", FAIL)]


def test_failed_copies_of_topics_to_tables_are_warnings() -> None:
    world = filled()
    maintain(world, COMPACT, RETAIN)

    def recorder(table: str) -> TableRunRecorder:
        return TableRunRecorder(world.root(), "orders", "to-delta", table, CopiedRecords)

    with recorder("/good"):
        pass
    with pytest.raises(NotFound), recorder("/failed"):
        raise NotFound("no such bucket")
    killed = recorder("/killed")
    killed.__enter__()
    killed.update()
    [(status, failed)] = said(check_jobs(world.root()), "to-delta")
    assert status == WARN
    assert failed.startswith("the last run for topic orders and table /failed, on ")
    assert failed.endswith(" failed: no such bucket [SPARKLOG_NOT_FOUND]")
    world.now_ms += 3 * UPDATE_MS
    [_, (status, found)] = said(check_jobs(world.root()), "to-delta")
    assert (status, found.endswith("ended without a recorded result")) == (WARN, True)
