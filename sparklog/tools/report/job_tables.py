"""Outcomes of jobs as rows of tables and as JSON, for `sparklog jobs`."""

from __future__ import annotations

from collections.abc import Sequence

from sparklog.maintenance.outcomes import JobRun, Outcomes
from sparklog.maintenance.overdue import JobState
from sparklog.output import json_value
from sparklog.times import iso_time
from sparklog.tools.report.job_states import Running
from sparklog.units import ago, duration, number_text, size_text

STATES = ("TOPIC", "JOB", "STATE", "LAST-SUCCESS", "SECONDS", "EVERY", "OVERDUE", "WHY")
RUNS = (
    *("BEGAN", "JOB", "HOST", "TOPICS", "SECONDS", "RECORDS-IN", "RECORDS-OUT", "BYTES-IN", "BYTES-OUT", "DELETED"),
    "FAILED",
)


def state_cells(state: JobState, now_ms: int) -> tuple[str | None, ...]:
    return (
        state.topic,
        state.job,
        state.state,
        "never" if state.last_success_ms is None else ago(state.last_success_ms, now_ms),
        None if state.seconds is None else f"{state.seconds:.1f}",
        None if state.interval_ms is None else duration(state.interval_ms),
        duration(state.overdue_ms) if state.overdue_ms else None,
        state.failure or state.why or None,
    )


def run_cells(run: JobRun) -> tuple[str | None, ...]:
    amounts = run.amounts
    return (
        iso_time(run.start_ms),
        run.job,
        run.host,
        ",".join(run.topics) or "all",
        f"{run.took_ms / 1000:.1f}",
        number_text(amounts.records_in),
        number_text(amounts.records_out),
        size_text(amounts.bytes_in),
        size_text(amounts.bytes_out),
        size_text(amounts.bytes_deleted),
        run.failure or (f"{run.failed_topics:,} topics" if run.failed_topics else None),
    )


def running_line(run: Running, now_ms: int) -> str:
    """Return a line on a run that has not ended."""
    topics = ", ".join(run.topics) or "all topics"
    how = "works on" if run.alive else "ended without an outcome; it had"
    return (
        f"{run.job}: the run on {run.host} (process {run.process}), begun {ago(run.since_ms, now_ms)}, {how} {topics}"
    )


def jobs_document(outcomes: Outcomes, states: Sequence[JobState], running: Sequence[Running]) -> dict[str, object]:
    """Return what `--json` prints: `topics`, `running`, and `runs`, the newest first."""
    return {
        "topics": json_value(tuple(states)),
        "running": json_value(tuple(running)),
        "runs": json_value(tuple(reversed(outcomes.runs))),
    }
