"""The costs of a topic in a bucket: the documented bill, invalid workloads, and the assumptions of the calculation."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from sparklog.cli.app import app
from sparklog.doctor import costs
from sparklog.doctor.costs import PRICES, Requests, Workload, bill, lines
from sparklog.errors import BadRequest
from sparklog.limits import DEFAULTS
from sparklog.log.state.embedded_commits import BLOCK_COMMITS
from sparklog.log.topic.root import REMOTE_POLL_MS

PAGE = (Path(__file__).parents[2] / "docs/reference/cost.md").read_text()


def rows(page: str) -> dict[str, list[str]]:
    """Return the cells of all table rows by the first cell."""
    found = [[cell.strip() for cell in line.strip("|").split("|")] for line in page.split("\n") if line.startswith("|")]
    return {row[0]: row[1:] for row in found}


def cells(requests: Requests) -> list[str]:
    return [f"{count:.0f}" for count in (requests.puts, requests.gets, requests.lists)]


@pytest.mark.parametrize(
    ("operation", "budget"),
    [
        ("a micro-batch of 2 tasks, up to 8 MiB each, with any number of partitions", costs.micro_batch(2)),
        ("the same micro-batch with 16 tasks", costs.micro_batch(16)),
        ("a micro-batch with inline records (`inline.records.bytes`) and any number of tasks", costs.INLINE_BATCH),
        ("the multipart upload of a data object of 64 MiB (for objects above 8 MiB)", costs.upload(64 << 20)),
        ("a poll of a topic that finds no new records", costs.IDLE_POLL),
        ("a poll that finds one commit", costs.NEW_COMMIT),
        ("opening a topic", costs.OPENING),
        ("reading the commits since the latest checkpoint (maximum)", costs.TAIL),
        ("a checkpoint, every 128 commits", costs.CHECKPOINT),
        ("recording the result of a job run (maximum)", costs.RECORD_RUN),
        ("reading the results of all job runs", costs.READ_JOB_HISTORY),
        ("a run of `compact` or `retain` without work to do (average)", costs.RUN),
        ("additional requests of `compact` for each file and its commit", costs.MERGE),
        ("additional requests of `retain`, without the commits that it reads", costs.VACUUM),
        ("reading the bucket's clock by a writer, every ten minutes", costs.CLOCK),
        ("a poll of the root defaults by a writer, every five minutes", costs.DEFAULTS_POLL),
    ],
)
def test_cost_page_lists_the_request_budgets(operation: str, budget: Requests) -> None:
    assert rows(PAGE)[operation] == cells(budget)


def test_cost_page_lists_the_prices() -> None:
    for prices in PRICES:
        listed = [float(cell) for cell in rows(PAGE)[prices.store]]
        assert listed == [prices.put, prices.get, prices.list, prices.gb_month, prices.gb_in, prices.gb_out]


def test_cost_page_shows_the_bill_that_the_command_prints() -> None:
    command = re.search(r"^\$ sparklog (.*)$", PAGE, re.MULTILINE)
    assert command is not None
    printed = CliRunner().invoke(app, command.group(1).split())
    assert printed.exit_code == 0
    assert printed.output.strip() in PAGE
    assert printed.output.strip().split("\n") == lines(Workload())


def test_constants_match_the_log() -> None:
    assert Requests(gets=11, lists=2) == costs.OPENING + costs.TAIL
    assert DEFAULTS.checkpoint_commits == BLOCK_COMMITS


def test_each_store_has_all_prices() -> None:
    assert [prices.store for prices in PRICES] == [
        "S3 Standard",
        "S3 Express One Zone",
        "Azure Blob hot",
        "GCS Standard",
    ]
    assert all(0 < price < 1 for prices in PRICES for price in (prices.put, prices.get, prices.list, prices.gb_month))


def test_json_contains_workload_and_costs() -> None:
    printed = CliRunner().invoke(app, ["doctor", "--cost", "--json", "--readers", "0"])
    document = json.loads(printed.output)
    assert document["workload"]["readers"] == 0
    items = {item["name"]: item for item in document["items"]}
    assert list(items) == ["append", "poll", "read", "maintain", "store"]
    assert items["read"]["dollars"] == {prices.store: 0 for prices in PRICES}
    assert items["store"]["dollars"]["S3 Standard"] > 0


@pytest.mark.parametrize("other", [["--store", "/tmp"], ["--spark"], ["--conf-file", "x"]])
def test_cost_option_excludes_other_options(other: list[str]) -> None:
    refused = CliRunner().invoke(app, ["doctor", "--cost", *other])
    assert refused.exit_code == 2


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("rate", value) for value in (0, -1, float("nan"), float("inf"))),
        *(("interval", 0), ("partitions", 0), ("tasks", 0), ("retention", -7), ("retention", float("inf"))),
        *(("readers", -1), ("poll", 0), ("poll", float("nan")), ("jobs", 0)),
    ],
)
def test_workload_rejects_values_out_of_range(name: str, value: float) -> None:
    with pytest.raises(BadRequest, match=f"--{name} must be "):
        replace(Workload(), **{name: value})


def test_costs_increase_with_the_workload() -> None:
    def dollars(name: str, **changes: float) -> float:
        (item,) = [item for item in bill(replace(Workload(), **changes)) if item.name == name]
        return item.dollars(PRICES[0])

    for name, changes in (
        ("append", {"interval": 1}),
        ("append", {"tasks": 32}),
        ("poll", {"readers": 4}),
        ("poll", {"poll": 10}),
        ("read", {"readers": 4}),
        ("maintain", {"rate": 20}),
        ("store", {"retention": 30}),
    ):
        assert dollars(name, **changes) > 1.2 * dollars(name), (name, changes)
    # A query with a trigger of ten seconds polls every ten seconds, and each poll finds a commit.
    assert dollars("poll", poll=10_000) < dollars("poll") / 10


def test_job_costs_depend_on_the_commits_of_a_day() -> None:
    """Each run of `retain` reads the commits of the last day, 128 per request."""

    def maintain(**changes: float) -> Requests:
        return bill(replace(Workload(rate=0.004, interval=1, tasks=1), **changes))[3].requests

    never = maintain(jobs=1e6).gets
    assert 720 * 703 < maintain().gets - never < 720 * 1_000
    assert maintain(jobs=6).gets - never < (maintain().gets - never) / 4
    for interval in (60, 600):
        assert maintain(rate=1e-5, interval=interval).puts == pytest.approx(15 * 720, rel=0.05)


def test_small_commits_store_records_inline() -> None:
    """A commit is one PUT, and a polling reader makes no other requests, regardless of the number of tasks."""
    small = Workload(rate=0.001, interval=1, readers=3)
    assert small.is_inline
    items = {item.name: item.requests for item in bill(small)}
    assert items["read"] == Requests()
    checkpoints = (small.batches + 2 * small.runs) / DEFAULTS.checkpoint_commits
    clock = costs.MONTH_DAYS * costs.DAY_S / costs.CLOCK_S
    assert items["append"].puts == pytest.approx(small.batches + 2 * checkpoints + clock)
    assert bill(replace(small, tasks=4))[0].requests == items["append"]
    large = {item.name: item.requests for item in bill(replace(small, rate=0.2))}
    assert not replace(small, rate=0.2).is_inline
    assert large["append"].puts > 2.9 * items["append"].puts
    assert large["maintain"].gets > items["maintain"].gets + 2e6


@pytest.mark.parametrize(
    ("commits", "seconds", "poll_ms"),
    [
        *(("1 second", 1, None), ("10 seconds", 10, None), ("1 minute", 60, None)),
        *(("no commits", costs.DAY_S, REMOTE_POLL_MS), ("no commits, `poll.interval.ms` 1000", costs.DAY_S, 1000)),
    ],
)
def test_cost_page_lists_the_costs_of_polling(commits: str, seconds: float, poll_ms: float | None) -> None:
    looks = costs.polls(seconds, poll_ms) * costs.DAY_S / seconds
    dollars = [f"${looks * costs.MONTH_DAYS * prices.get / 1000:.2f}" for prices in PRICES[:2]]
    assert rows(PAGE)[commits] == [f"{looks:,.0f}", *dollars]


def test_readers_poll_idle_topics_less_often() -> None:
    quick = costs.polls(0.1)
    assert quick * costs.DAY_S * 10 == 3_456_000
    assert costs.polls(costs.DAY_S) < 1.001 * costs.polls(costs.DAY_S, REMOTE_POLL_MS)
    assert costs.polls(1) < 10 * quick


def test_bill_reports_the_daily_requests_of_an_idle_reader() -> None:
    assert "345,600 GET requests per day" in lines(Workload(poll=250))[-2]
    assert "$4.15 per month on S3 Standard" in lines(Workload(poll=250))[-2]
