"""Overdue jobs by the observed schedule and by the configs of a topic, and the messages about them."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from sparklog.maintenance.job_history import COMPACT, RETAIN, SEAL, JobHistory, JobRun, TopicRun
from sparklog.maintenance.overdue import MAX_DELAY_MS, JobState, job_problems, job_states
from sparklog.maintenance.report import MAX_WAIT_MS, MIN_WAIT_MS, Backlog, Due, allowed_wait_ms
from sparklog.testing.world import DAY_MS, HOUR_MS, MINUTE_MS, START_MS

NOW = START_MS + 100 * DAY_MS


def run(job: str, hours_ago: float, *topics: str, failure: str = "") -> JobRun:
    return JobRun(job, "r", "host", 1, NOW - round(hours_ago * HOUR_MS), 5_000, topics, failure=failure)


def row(job: str, hours_ago: float, *, success: float | None = None, failure: str = "", topic: str = "t") -> TopicRun:
    start_ms = NOW - round(hours_ago * HOUR_MS)
    good_ms = start_ms if success is None else NOW - round(success * HOUR_MS)
    return TopicRun(job, topic, start_ms, 2_000, good_ms, failure)


def state(
    runs: Sequence[JobRun],
    rows: Sequence[TopicRun] = (),
    *,
    job: str = RETAIN,
    due: Sequence[Due] = (),
    age: float = 1000,
) -> JobState:
    """Return the state of a job for topic t of a root that is `age` hours old."""
    outcomes = JobHistory("outcomes", runs=tuple(runs), topics=tuple(rows))
    judged = job_states(outcomes, {"t": Backlog(due=tuple(due))}, NOW - round(age * HOUR_MS), NOW)
    return next(item for item in judged if item.job == job)


def hours(*starts: float) -> list[JobRun]:
    return [run(RETAIN, start) for start in starts]


@pytest.mark.parametrize(
    ("runs", "interval", "overdue"),
    [
        ([], None, 1000 - 24.75),
        (hours(3), None, 0),
        (hours(30), None, 30 - 24.75),
        (hours(3, 2, 1), 1, 0),
        (hours(4, 3, 1.8), 1.2, 0),
        (hours(4, 3, 2), 1, 0.5),
        (hours(10, 9), 1, 9 - 1.5),
        (hours(14, 8, 2), 6, 0),
        (hours(18, 13, 7), 6, 0.25),
        # Three manual runs do not set the schedule to minutes, unless no other runs are recorded.
        (hours(4, 3, 2, 1.9, 1.8), 1, 0.3),
        # After an outage, a long interval is one of the last three.
        (hours(100, 52, 51), 48, 51 - 48.75),
        (hours(100, 52, 51, 50, 49), 1, 49 - 1.5),
    ],
)
def test_schedule_is_derived_from_observed_runs(runs: list[JobRun], interval: float | None, overdue: float) -> None:
    judged = state(runs, [row(RETAIN, (NOW - item.start_ms) / HOUR_MS) for item in runs[-1:]])
    assert judged.interval_ms == (None if interval is None else pytest.approx(interval * HOUR_MS, abs=1))
    assert judged.overdue_ms == pytest.approx(overdue * HOUR_MS, abs=1)
    assert bool(judged.why) == bool(overdue)
    assert judged.state == ("overdue" if overdue else "never" if not runs else "ok")


def test_topic_is_new_until_a_run_processes_it() -> None:
    """It is not "ok", because no run has processed it, but its schedule starts at the last run over all topics."""
    found = state(hours(3))
    assert (found.state, found.visited, found.overdue_ms) == ("new", False, 0)
    assert state(hours(30)).state == "overdue"
    assert state([run(RETAIN, 3, failure="interrupted")], age=4).state == "failed"
    assert state([*hours(3), run(RETAIN, 1, "t")], [row(RETAIN, 1)]).state == "ok"
    assert state([run(SEAL, 2)], [row(SEAL, 2)], job=COMPACT).state == "ok"


def test_new_root_is_not_overdue() -> None:
    assert state([], age=24.5).state == "never"
    assert state([], age=25).state == "overdue"


def test_runs_over_other_topics_are_ignored() -> None:
    runs = [run(RETAIN, 5, "t"), run(RETAIN, 4, "t"), run(RETAIN, 1, "u"), run(COMPACT, 0.5)]
    judged = state(runs, [row(RETAIN, 4)])
    assert (judged.last_success_ms, judged.interval_ms) == (NOW - 4 * HOUR_MS, HOUR_MS)
    assert judged.overdue_ms == 3 * HOUR_MS - MINUTE_MS * 30


def test_failed_runs_count_for_the_schedule_but_not_as_success() -> None:
    runs = [run(RETAIN, number) for number in (5, 4, 3, 2, 1)]
    judged = state(runs, [row(RETAIN, 1, success=4, failure="expire t: no [SPARKLOG_CORRUPT]")])
    assert (judged.failure, judged.interval_ms) == ("expire t: no [SPARKLOG_CORRUPT]", HOUR_MS)
    assert (judged.last_run_ms, judged.last_success_ms) == (NOW - HOUR_MS, NOW - 4 * HOUR_MS)
    assert judged.overdue_ms == 2.5 * HOUR_MS


def test_run_that_ended_early_has_no_row() -> None:
    runs = [run(RETAIN, 1.4), run(RETAIN, 0.4, failure="interrupted")]
    judged = state(runs, [row(RETAIN, 1.4)])
    assert (judged.failure, judged.seconds, judged.state) == ("interrupted", 5.0, "failed")
    later = state([*runs, run(RETAIN, 0.2)], [row(RETAIN, 0.2)])
    assert (later.failure, later.seconds, later.state) == ("", 2.0, "ok")


def test_seal_only_run_counts_as_part_of_compact() -> None:
    """Such a run is up to date for sealing, but a dirty log waits for a full run."""
    runs, rows = [run(SEAL, number) for number in (3, 2, 1)], [row(SEAL, 1)]
    assert state(runs, rows, job=COMPACT).state == "ok"
    sealing = Due(COMPACT, "not sealed", NOW - 40 * HOUR_MS, sealing=True)
    assert state(runs, rows, job=COMPACT, due=[sealing]).state == "ok"
    dirty = state(runs, [*rows, row(COMPACT, 30)], job=COMPACT, due=[Due(COMPACT, "dirty")])
    assert (dirty.overdue_ms, dirty.why) == (5 * HOUR_MS, "dirty")


@pytest.mark.parametrize(
    ("since", "success", "overdue"),
    [(40, 20, 0), (40, 30, 10), (26, 30, 6), (None, 30, 10), (3, 30, 0)],
)
def test_delay_starts_when_work_is_due_or_at_the_last_success(
    since: float | None, success: float, overdue: float
) -> None:
    """For a job that runs twice a week, 20 hours are allowed."""
    runs = [run(RETAIN, number) for number in (success + 120, success + 60, success)]
    since_ms = -1 if since is None else NOW - round(since * HOUR_MS)
    judged = state(runs, [row(RETAIN, success)], due=[Due(RETAIN, "old records", since_ms, 20 * HOUR_MS)])
    assert (judged.overdue_ms, judged.why) == (overdue * HOUR_MS, "old records" if overdue else "")


def test_configs_determine_the_allowed_wait_within_bounds() -> None:
    assert [allowed_wait_ms(hours * HOUR_MS) for hours in (0, 1, 5, 24, 168)] == [
        *(MIN_WAIT_MS, MIN_WAIT_MS, 5 * HOUR_MS, 24 * HOUR_MS, MAX_WAIT_MS),
    ]
    assert MAX_DELAY_MS < HOUR_MS


def test_problems_are_reported_together_for_each_job() -> None:
    outcomes = JobHistory(
        "outcomes",
        runs=tuple(run(RETAIN, number) for number in (5, 4, 3)),
        topics=(
            row(RETAIN, 3, success=4, failure="expire b: no", topic="b"),
            row(RETAIN, 3, failure="x", topic="(root)"),
        ),
    )
    states = job_states(outcomes, {name: Backlog() for name in "abcd"}, NOW - 2 * HOUR_MS, NOW)
    texts = [(problem.job, problem.topics, problem.text) for problem in job_problems(states)]
    assert texts == [
        (RETAIN, ("b", "(root)"), "the last run of retain failed on b, (root): expire b: no"),
        (
            RETAIN,
            ("b", "a", "c", "d", "(root)"),
            (
                "retain is overdue for 2 h on b, a, c and 2 more: no run has succeeded for 4 h, although it ran every "
                "60 min"
            ),
        ),
    ]
    (never,) = job_problems(job_states(JobHistory("outcomes"), {"a": Backlog()}, NOW - 25 * HOUR_MS, NOW))[:1]
    assert never.text.startswith("compact has never run on this root (no run is recorded); compact is overdue")
