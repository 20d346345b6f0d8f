"""A week in which jobs fail, crash, hang or are disabled: `sparklog doctor` and the alerts report each within an hour.

The jobs, the leases, the recorded runs and the rules of conf/alerts.yml are those of production. Cron starts both jobs
every three hours; the seed determines when and how each job fails. Nothing may be reported about a job that works.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pytest
from prometheus_client.parser import text_string_to_metric_families

from sparklog.compaction.run import compact_root
from sparklog.doctor.checks import OK
from sparklog.doctor.job_checks import check_jobs
from sparklog.errors import Unavailable
from sparklog.limits import Limits
from sparklog.log.topic.root import Root, RootView
from sparklog.maintenance.job_history import COMPACT, RETAIN, RunRecorder
from sparklog.maintenance.leases import JobLease
from sparklog.maintenance.report import RunReport
from sparklog.maintenance.work_items import InProcess, Settings
from sparklog.retention.retain import retain_root
from sparklog.testing.faulty_store import Call, Crash, Fault, FaultKind, FaultyStore
from sparklog.testing.world import HOUR_MS, MINUTE_MS, World
from sparklog.tools.report.gather import gather
from sparklog.tools.report.metrics import exposition
from tests.support.seeds import WEEKS

ALERTS = Path(__file__).parents[3] / "conf" / "alerts.yml"
SIMPLE = re.compile(r"(?:max by \((?P<by>[\w, ]+)\) \()?(?P<metric>sparklog_job_\w+)\)? > (?P<bound>[\d.]+)")
TURN_MS = 3 * HOUR_MS
TURNS = 7 * 24 // 3
WITHIN_MS = 59 * MINUTE_MS
KINDS = FAILS, DIES, HANGS, FORGOTTEN = "fails", "dies", "hangs", "forgotten"
BEGIN = {COMPACT: 7 * MINUTE_MS, RETAIN: 37 * MINUTE_MS}
WORK: Mapping[str, Callable[[Root, Settings], list[RunReport]]] = {
    COMPACT: lambda root, settings: [*compact_root(root, settings, InProcess())],
    RETAIN: lambda root, settings: [*retain_root(root, settings)],
}


@dataclass(frozen=True)
class Misfortune:
    """A failure of a job in the turns of cron from `start` to `until`, exclusive."""

    job: str
    kind: str
    first: int
    until: int


def misfortunes(seed: int) -> list[Misfortune]:
    """Draw one failure of each kind, separated by turns without failures."""
    source = random.Random(seed)
    kinds = [*KINDS]
    source.shuffle(kinds)
    drawn, turn = [], 3
    for kind in kinds:
        first = turn + source.randrange(5)
        drawn.append(Misfortune(source.choice([COMPACT, RETAIN]), kind, first, first + source.randrange(1, 5)))
        turn = drawn[-1].until + 5
    return drawn


def unavailable(call: Call) -> Fault | None:
    """Return a store that rejects all writes of a run to the topic."""
    return Fault(FaultKind.ERROR_BEFORE) if call.key.startswith("orders/") else None


def deadly(call: Call) -> Fault | None:
    return Fault(FaultKind.CRASH_BEFORE) if call.key.startswith("orders/") else None


@dataclass
class Cron:
    """Starts the jobs; a run that fails has a process of its own."""

    world: World
    well: Root
    hanging: JobLease | None = None

    def start(self, job: str, kind: str | None) -> None:
        if kind == FORGOTTEN:
            return
        faults = {FAILS: unavailable, DIES: deadly}
        root = self.well
        if kind in faults:
            root = self.world.root(FaultyStore(self.world.store, faults[kind], lambda seconds: None))
        lease = JobLease(root, job)
        lease.acquire()
        if lease.is_blocked:
            return
        if kind == HANGS:
            self.hanging = lease
            return
        try:
            settings = Settings(self.world.now_ms)
            RunRecorder(root, job, settings).run(lambda: WORK[job](root, settings))
        except (Unavailable, Crash):
            if kind == DIES:
                return
        lease.release()


@dataclass
class Week:
    """The week of one seed."""

    seed: int

    def __post_init__(self) -> None:
        self.world = World(limits=Limits(checkpoint_commits=8, checkpoint_entries=8))
        configs = {"retention.ms": 12 * HOUR_MS, "segment.ms": 6 * HOUR_MS}
        self.root = self.world.root()
        self.topic = self.root.create_topic("orders", configs=configs)
        self.cron = Cron(self.world, self.world.root())
        self.troubles = misfortunes(self.seed)
        self.named: set[str] = set()

    def live(self) -> None:
        start_ms = self.world.now_ms
        for turn in range(TURNS):
            turn_ms = start_ms + turn * TURN_MS
            if turn % 4 == 3:
                # Just before the next run, the last run of a job has its maximum age.
                self.world.now_ms = turn_ms
                self.renew(turn - 1)
                for job in BEGIN:
                    self.check_result(job, turn - 1)
            self.topic.append(pa.table({"value": [b"x"], "timestamp": [self.world.now_ms]}))
            for job, minutes in BEGIN.items():
                self.world.now_ms = turn_ms + minutes
                self.cron.start(job, self.trouble_of(job, turn))
                self.renew(turn)
            for job, minutes in BEGIN.items():
                self.world.now_ms = turn_ms + minutes + WITHIN_MS
                self.renew(turn)
                self.check_result(job, turn)

    def trouble_of(self, job: str, turn: int) -> str | None:
        return next((item.kind for item in self.troubles if item.job == job and item.first <= turn < item.until), None)

    def renew(self, turn: int) -> None:
        """Renew the lease of a process that hangs, until it is killed."""
        if self.cron.hanging is None:
            return
        if HANGS in {self.trouble_of(job, turn) for job in BEGIN}:
            self.cron.hanging.renew()
        else:
            self.cron.hanging = None

    def check_result(self, job: str, turn: int) -> None:
        """Check that a failure has been reported 59 minutes after the run, and that a job which works has not."""
        findings = [check for check in check_jobs(self.root) if check.status != OK]
        doctor = {check.check for check in findings}
        alerts = alarms(self.root, self.world.now_ms)
        story = f"turn {turn} of {self.troubles}: doctor names {doctor}, alerts {alerts}"
        kind = self.trouble_of(job, turn)
        if kind is not None:
            assert job in doctor, story
            assert job in alerts, story
            failed = f"the last run of {job} failed on orders: "
            assert kind != FAILS or any(check.found.startswith(failed) for check in findings), findings
            self.named.add(kind)
        elif turn == 0 or self.trouble_of(job, turn - 1) is None:
            assert job not in doctor, (story, findings)
            assert job not in alerts, story


def alarms(root: Root, now_ms: int) -> set[str]:
    """Return the jobs for which the alerts would fire in Prometheus."""
    figures = exposition(gather(RootView(root), Settings(now_ms), maintenance=False))
    samples = [sample for family in text_string_to_metric_families(figures) for sample in family.samples]
    named = set()
    for metric, bound in RULES:
        named |= {s.labels["maintenance"] for s in samples if s.name == metric and s.value > bound}
    return named


def rules() -> list[tuple[str, float]]:
    yaml = pytest.importorskip("yaml", reason="needs PyYAML")
    matches = []
    for rule in yaml.safe_load(ALERTS.read_text())["groups"][0]["rules"]:
        if "sparklog_job_" in rule["expr"]:
            match = SIMPLE.fullmatch(rule["expr"])
            assert match is not None, rule["expr"]
            assert rule.get("for", "0m") in ("0m", "5m"), "longer, and an hour would not be enough"
            matches.append((match["metric"], float(match["bound"])))
    return matches


RULES = rules()


def check(seed: int) -> None:
    week = Week(seed)
    week.live()
    assert week.named == {*KINDS}, week.troubles


@pytest.mark.parametrize("seeds", WEEKS.few())
def test_job_problems_are_reported_within_an_hour(seeds: range) -> None:
    for seed in seeds:
        check(seed)


@pytest.mark.slow
@pytest.mark.parametrize("seeds", WEEKS.many())
def test_job_problems_of_many_weeks(seeds: range) -> None:
    for seed in seeds:
        check(seed)
