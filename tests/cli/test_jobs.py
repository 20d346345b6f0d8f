"""`sparklog jobs`, and the exit codes of `doctor --max-age` and `groups describe --max-lag` for cron and probes."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest

import sparklog as library
from sparklog.doctor.job_checks import check_jobs
from sparklog.groups.lag import Groups
from sparklog.maintenance.leases import JobLease
from sparklog.maintenance.table_runs import CopiedRecords, TableRunRecorder
from tests.cli.conftest import Sparklog

KAFKA = Path(__file__).parents[2] / "examples" / "data" / "kafka-log-dir"


@pytest.fixture
def filled(root: Path) -> Path:
    opened = library.open(root, create=True)
    for name in ("orders", "clicks"):
        opened.create_topic(name).append(pa.table({"value": [b"x"] * 3}))
    return root


def test_jobs_shows_states_and_runs(sparklog: Sparklog, filled: Path) -> None:
    assert [line.split()[:4] for line in sparklog("jobs").lines[1:]] == [
        ["clicks", "compact", "never", "never"],
        ["clicks", "retain", "never", "never"],
        ["orders", "compact", "never", "never"],
        ["orders", "retain", "never", "never"],
    ]
    library.retain(library.open(filled), topics=["orders"])
    library.compact(library.open(filled), roll=True)
    heading, row = sparklog("jobs", "--topic", "orders").lines[0], sparklog("jobs", "--topic", "orders").lines[2]
    assert heading.split() == ["TOPIC", "JOB", "STATE", "LAST-SUCCESS", "SECONDS", "EVERY", "OVERDUE", "WHY"]
    assert row.split()[:3] == ["orders", "retain", "ok"]
    newest, oldest = sparklog("jobs", "--runs").lines[1:]
    assert [newest.split()[1], newest.split()[3], newest.split()[5]] == ["compact", "all", "6"]
    assert [oldest.split()[1], oldest.split()[3]] == ["retain", "orders"]
    document = json.loads(sparklog("jobs", "--json").out)
    assert [(run["job"], run["topics"]) for run in document["runs"]] == [("compact", []), ("retain", ["orders"])]
    states = {(state["topic"], state["job"]): state for state in document["topics"]}
    assert states["clicks", "retain"]["lastSuccessMs"] is None
    assert states["clicks", "compact"]["lastSuccessMs"] == document["runs"][0]["startMs"]
    assert document["running"] == []
    library.open(filled).create_topic("fresh")
    row = sparklog("jobs", "--topic", "fresh").lines[1]
    assert row.split()[:4] == ["fresh", "compact", "new", "never"], "no run has visited it yet"
    assert row.endswith("newer than the last run")


def test_jobs_shows_runs_in_progress(sparklog: Sparklog, filled: Path) -> None:
    JobLease(library.open(filled), "retain", ["orders"]).acquire()
    assert "is working on orders" in sparklog("jobs").lines[-1]
    (running,) = json.loads(sparklog("jobs", "--json").out)["running"]
    assert (running["job"], running["topics"], running["alive"]) == ("retain", ["orders"], True)


def test_jobs_shows_runs_that_copy_topics_to_tables(sparklog: Sparklog, filled: Path) -> None:
    root = library.open(filled)
    assert "TABLE" not in sparklog("jobs").out

    def recorder(table: str) -> TableRunRecorder:
        return TableRunRecorder(root, "orders", "to-iceberg", table, lambda: CopiedRecords(1234, 1, 2))

    for _ in range(2):
        with recorder("s.good"):
            pass
    with pytest.raises(library.NotFound), recorder("s.bad"):
        raise library.NotFound("no catalog")
    heading, bad, good = sparklog("jobs").lines[-3:]
    assert heading.split() == ["TOPIC", "JOB", "TABLE", "STATE", "LAST-SUCCESS", "SECONDS", "RECORDS", "WHY"]
    assert bad.split()[:5] == ["orders", "to-iceberg", "s.bad", "failed", "never"]
    assert bad.endswith("1,234  no catalog [SPARKLOG_NOT_FOUND]")
    assert good.split()[:4] == ["orders", "to-iceberg", "s.good", "ok"]
    assert "s.good" not in sparklog("jobs", "--topic", "clicks").out
    heading, *runs = sparklog("jobs", "--runs").lines[-4:]
    assert heading.split()[-5:] == ["RECORDS", "BAD-RECORDS", "COMMITS", "STATE", "WHY"]
    assert [line.split()[4] for line in runs] == ["s.bad", "s.good", "s.good"]
    document = json.loads(sparklog("jobs", "--json").out)
    assert [(table["run"]["table"], table["state"]) for table in document["tables"]] == [
        ("s.bad", "failed"),
        ("s.good", "ok"),
    ]
    assert document["tables"][1]["run"]["copied"] == {"records": 1234, "badRecords": 1, "commits": 2}
    assert len(document["tableRuns"]) == 3


def test_jobs_rejects_kafka_directories_and_backups(sparklog: Sparklog, filled: Path, tmp_path: Path) -> None:
    backups = tmp_path / "backups"
    library.backup(filled, backups)
    assert "which has no sparklog jobs: specify a root" in sparklog("jobs", "--root", backups, code=1).err
    assert "sparklog_job_" not in sparklog("metrics", "--root", backups).out
    assert check_jobs(library.open(backups)) == []
    assert "which has no sparklog jobs: specify a root" in sparklog("jobs", "--root", KAFKA, code=1).err
    assert "topic 'none' does not exist" in sparklog("jobs", "--topic", "none", code=1).err


@pytest.mark.java
def test_doctor_fails_if_a_job_is_overdue(sparklog: Sparklog, filled: Path) -> None:
    outcome = sparklog("doctor", "--root", filled, "--max-age", "3h", code=1)
    wrong = [line for line in outcome.lines if line.startswith("fail") and " has not succeeded for 3 h" in line]
    assert [line.split()[1] for line in wrong] == ["compact", "retain"]
    library.retain(library.open(filled))
    library.compact(library.open(filled))
    lines = sparklog("doctor", "--root", filled, "--max-age", "3h", "--json").out
    assert {item["check"]: item["status"] for item in json.loads(lines)}["retain"] == "ok"


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["--max-age", "3"], "expected a period such as 90s, 45m, 3h or 2d, found '3'"),
        (["--max-age", "h"], "found 'h'"),
        (["--max-age", "-3h"], "found '-3h'"),
        (["--max-age", "3h", "--cost"], "specify --cost or --max-age, not both"),
        (["--max-age", "3h", "--store", "/tmp"], "specify --max-age or --store, not both"),
    ],
)
def test_invalid_ages_are_errors(sparklog: Sparklog, words: list[str], line: str) -> None:
    assert line in sparklog("doctor", *words, code=2).err


def test_describe_fails_if_the_lag_exceeds_the_maximum(sparklog: Sparklog, filled: Path) -> None:
    Groups(library.open(filled)).group("billing").join("one").commit({"orders": {0: 1}})
    fine = sparklog("groups", "describe", "billing", "--max-lag", 2)
    late = sparklog("groups", "describe", "billing", "--max-lag", 1, code=1)
    assert late.lines[0] == fine.lines[0]
    assert "group billing lags by 2 records in orders-0; the maximum is 1" in late.err
    as_json = sparklog("groups", "describe", "--all-groups", "--max-lag", 1, "--json", code=1)
    assert json.loads(as_json.out)[0]["lag"] == 2
    wrong = sparklog("groups", "describe", "billing", "--state", "--max-lag", 1, code=2)
    assert "specify --max-lag or --state, not both" in wrong.err
