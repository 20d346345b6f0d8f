"""Leases: runs of a job never share a topic, a crashed run frees it after five minutes, and old entries are deleted."""

from __future__ import annotations

import json
import os
import random
import re
import threading
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import sparklog
from sparklog.errors import Fenced, SparklogError, Unavailable
from sparklog.jobs import compact, retain
from sparklog.limits import Limits
from sparklog.log.topic.root import Root, open_root
from sparklog.maintenance.leases import LEASE_MS, LEASES, JobLease
from sparklog.maintenance.work_items import InProcess, Settings, Work, WorkResult
from sparklog.retention.retain import retain_root
from sparklog.storage.object_store import ObjectStore
from sparklog.testing.faulty_store import Call, Crash, Fault, FaultKind, FaultyStore, Seeded
from sparklog.testing.world import DAY_MS, HOUR_MS, MINUTE_MS, START_MS, World
from sparklog.tools.verification.run import verify_root
from tests.support import seeds
from tests.support.failing_threads import Panic
from tests.support.small_limits import small_limits

ALL: tuple[str, ...] = ()


def taken(world: World, *topics: str, root: Root | None = None) -> JobLease:
    lease = JobLease(root or world.root(), "compact", topics)
    lease.acquire()
    return lease


def claims(world: World) -> list[tuple[str, ...]]:
    return [claim.topics for claim in world.root().engine.entries(LEASES, "compact").refresh().claims]


@pytest.mark.parametrize(
    ("others", "wanted", "left"),
    [
        ([], ALL, ALL),
        ([], ("a", "b"), ("a", "b")),
        ([ALL], ALL, None),
        ([ALL], ("a",), None),
        ([("a",)], ALL, ("b", "c")),
        ([("a",)], ("a",), None),
        ([("a",)], ("a", "b"), ("b",)),
        ([("a",)], ("b",), ("b",)),
        ([("a",), ("b",)], ("a", "b"), None),
        ([("a",), ALL], ("b",), None),
        ([("a", "b"), ("c",)], ALL, None),
    ],
)
def test_run_skips_topics_that_others_have_claimed(
    others: list[tuple[str, ...]], wanted: tuple[str, ...], left: tuple[str, ...] | None
) -> None:
    world = World()
    for name in ("a", "b", "c"):
        world.root().create_topic(name)
    for topics in others:
        taken(world, *topics)
    lease = taken(world, *wanted)
    assert (lease.is_blocked, lease.topics) == (left is None, left if left is not None else lease.topics)
    assert bool(lease.other_claims) == (left != wanted)


def test_claim_is_valid_while_it_is_renewed() -> None:
    world = World()
    first = taken(world)
    for _ in range(3):
        world.now_ms += LEASE_MS - 1
        assert taken(world).is_blocked
        first.renew()
    first.release()
    second = taken(world)
    assert not second.is_blocked
    world.now_ms += LEASE_MS
    third = taken(world)
    assert not third.is_blocked
    with pytest.raises(Fenced, match="has expired, and another run has started"):
        second.renew()
    second.release()
    assert taken(world).is_blocked, "a fenced run takes back nothing that is another's"


def test_suspended_run_continues_if_no_other_run_has_started() -> None:
    world = World()
    lease = taken(world)
    world.now_ms += HOUR_MS
    lease.renew()
    assert taken(world).is_blocked


def test_leases_in_a_bucket(bucket: str) -> None:
    root = open_root(ObjectStore(bucket), create=True)
    first, second = JobLease(root, "compact"), JobLease(open_root(ObjectStore(bucket)), "compact")
    first.acquire()
    first.renew()
    second.acquire()
    assert (first.is_blocked, second.is_blocked) == (False, True)
    first.release()
    second.acquire()
    assert not second.is_blocked


def test_leases_of_different_jobs_and_roots_are_independent() -> None:
    world = World()
    taken(world)
    other = JobLease(world.root(), "retain")
    other.acquire()
    assert not other.is_blocked
    assert not taken(World()).is_blocked


def test_claim_that_ends_too_late_is_ignored() -> None:
    """A clock of a disk that jumps a year ahead and back must not stop maintenance for a year."""
    world = World()
    world.now_ms += 365 * DAY_MS
    taken(world)
    world.now_ms = START_MS
    assert not taken(world).is_blocked


def test_claims_use_the_stores_clock() -> None:
    world = World()
    behind = JobLease(world.root(skew_ms=-2 * HOUR_MS), "compact")
    behind.acquire()
    assert taken(world).is_blocked
    world.now_ms += LEASE_MS
    assert not taken(world).is_blocked


@pytest.mark.parametrize("kind", [MemoryError, RuntimeError, Panic])
def test_failed_renewal_is_retried(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], kind: type[BaseException]
) -> None:
    world = World(limits=Limits(renew_seconds=0))
    lease, ended, turns = taken(world), threading.Event(), iter([kind("struck"), Fenced("enough")])

    def renew() -> None:
        raise next(turns)

    monkeypatch.setattr(lease, "renew", renew)
    lease.keep_renewed(ended)
    assert f"failed to renew the lease: {kind.__name__}" in capsys.readouterr().err
    with pytest.raises(Fenced, match="enough"):
        lease.check()


class Struck:
    """A store that fails one request of a process."""

    def __init__(self, number: int, kind: FaultKind) -> None:
        self.number = number
        self.fault = Fault(kind)
        self.armed = False
        self.calls = 0
        self.struck = False

    def __call__(self, call: Call) -> Fault | None:
        if not self.armed:
            return None
        self.calls += 1
        if self.calls - 1 != self.number:
            return None
        self.struck = True
        return self.fault


@pytest.mark.parametrize(
    "kind",
    [kind for kind in FaultKind if kind not in (FaultKind.LATE, FaultKind.SHORT, FaultKind.FLIP)],
)
def test_topics_are_available_five_minutes_after_any_failure(kind: FaultKind) -> None:
    """A run acquires, renews and releases a lease; one request fails, or the process crashes there."""
    for number in range(200):
        world = World()
        strike = Struck(number, kind)
        root = world.root(FaultyStore(world.store, strike, world.sleep))
        strike.armed = True
        ended = ""
        try:
            lease = taken(world, root=root)
            assert not lease.is_blocked
            world.now_ms += MINUTE_MS
            assert taken(world).is_blocked, "it holds while its run works"
            lease.renew()
            lease.release()
        except Crash:
            ended = "died"
        except Unavailable:
            ended = "gave up"
        if not strike.struck:
            assert number > 8
            return
        if not ended:
            assert not taken(world).is_blocked, f"given back, although {kind} struck request {number}"
        world.now_ms += LEASE_MS
        assert not taken(world).is_blocked, f"{kind} at request {number}"
    raise AssertionError("no end")


class Runs:
    """Runs of a job in concurrent processes whose requests are interleaved, checked by a model."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.world = World(seed=seed * 1000)
        for name in ("a", "b"):
            self.world.root().create_topic(name)
        self.model: dict[JobLease, int] = {}
        """The time until which each run believes to own its topics."""
        self.took = self.fenced = self.waited = 0
        self.inside = False
        faults = (FaultKind.ERROR_BEFORE, FaultKind.ERROR_AFTER, FaultKind.TWICE, FaultKind.FALSE_EXISTS)
        faults += (FaultKind.LATE, FaultKind.CRASH_BEFORE, FaultKind.CRASH_AFTER, FaultKind.DELAY, FaultKind.ABSENT)
        self.faults = Seeded(self.random, self.random.choice([0.0, 0.02, 0.1]), faults, MINUTE_MS / 1000)
        self.processes: list[Generator[None]] = [self.process() for _ in range(3)]

    def decide(self, call: Call) -> Fault | None:
        if not self.inside and self.random.random() < 0.1:
            self.inside = True
            next(self.random.choice([each for each in self.processes if not each.gi_running]))
            self.inside = False
        return self.faults(call)

    def process(self) -> Generator[None]:
        """Repeat runs that acquire a lease, sometimes renew it, release it, or crash."""
        while True:
            store = FaultyStore(self.world.store, self.decide, self.world.sleep)
            root = Root(store, self.world.root().id, self.world.env())
            lease = JobLease(root, "compact", self.random.choice([(), ("a",), ("a", "b"), ("b",)]))
            try:
                begun = self.world.now_ms
                lease.acquire()
                if lease.is_blocked:
                    self.waited += 1
                    yield
                    continue
                self.check_result(lease, begun)
                for _ in range(self.random.randrange(5)):
                    yield
                    begun = self.world.now_ms
                    lease.renew()
                    self.model[lease] = begun + LEASE_MS
                yield
                self.model.pop(lease, None)
                lease.release()
            except Fenced:
                assert self.model.pop(lease) <= self.world.now_ms, "fenced before its end"
                self.fenced += 1
            except (SparklogError, Crash):
                self.model.pop(lease, None)
            yield

    def check_result(self, lease: JobLease, begun: int) -> None:
        self.took += 1
        for other, until in self.model.items():
            both = {*(lease.topics or "ab")} & {*(other.topics or "ab")}
            if both and until > self.world.now_ms:
                raise AssertionError(f"two hold {both}: one of them until {until}, the other since {begun}")
        self.model[lease] = begun + LEASE_MS

    def run(self) -> None:
        for _ in range(25):
            self.world.now_ms += self.random.choice([1_000, MINUTE_MS, MINUTE_MS, LEASE_MS])
            self.inside = False
            next(self.random.choice(self.processes))


def simulated(seeds: range) -> tuple[int, int, int]:
    took = fenced = waited = 0
    for seed in seeds:
        runs = Runs(seed)
        try:
            runs.run()
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error
        took, fenced, waited = took + runs.took, fenced + runs.fenced, waited + runs.waited
    return took, fenced, waited


@pytest.mark.parametrize("seeds", seeds.LEASES.few())
def test_two_runs_never_claim_the_same_topic(seeds: range) -> None:
    assert min(simulated(seeds)) > 5, "the simulation reaches what it is about"


@pytest.mark.slow
@pytest.mark.parametrize("seeds", seeds.LEASES.many())
def test_two_runs_never_claim_the_same_topic_with_many_seeds(seeds: range) -> None:
    assert simulated(seeds)


class Working:
    """A runner that checks during its work what a run of another scheduler would do."""

    def __init__(self, meanwhile: Callable[[], object]) -> None:
        self.meanwhile = meanwhile
        self.inner = InProcess()

    def run(self, works: Sequence[Work]) -> Iterator[tuple[Work, WorkResult | SparklogError]]:
        self.meanwhile()
        yield from self.inner.run(works)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    root = sparklog.open(tmp_path / "root", create=True)
    for name in ("a", "b"):
        topic = root.create_topic(name, configs={"segment.ms": 1})
        topic.append(pa.table({"value": pa.array([b"x"] * 5), "timestamp": np.full(5, START_MS, np.int64)}))
    return tmp_path / "root"


def compacted(directory: Path, *more: str, meanwhile: Callable[[], object] = lambda: None) -> int:
    return compact.run(Working(meanwhile), compact.arguments(["--root", str(directory), "--roll", *more]))


def sealed(directory: Path) -> set[str]:
    return {path.relative_to(directory).parts[0] for path in directory.rglob("*.log")}


def entries(directory: Path, job: str = "compact") -> int:
    return len(list(directory.glob(f"_maintenance/{job}/_log/*.json")))


def test_second_scheduler_prints_one_line_and_succeeds(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    codes = []

    def second() -> None:
        codes.append((compacted(directory), compacted(directory, "--topic", "a", "--json")))
        capsys.readouterr()
        codes.append((compacted(directory), entries(directory)))

    assert compacted(directory, meanwhile=lambda: codes or second()) == 0
    assert codes[0] == (0, 0)
    assert codes[1][0] == 0
    assert sealed(directory) == {"a", "b"}
    assert compacted(directory) == 0
    assert entries(directory) == codes[1][1] + 3, (
        "one that waits writes nothing; then one gives back, one takes and gives"
    )


def test_skip_message_reports_the_other_run(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lease = JobLease(sparklog.open(directory), "compact")
    lease.acquire()
    assert compacted(directory, "--json") == 0
    shown = capsys.readouterr()
    (line,) = shown.err.splitlines()
    assert re.fullmatch(
        r"\S+Z compact: skipping the root, because another run on \S+ \(process \d+, since \S+Z\) has a lease; "
        r"use --no-lease to ignore the lease",
        line,
    )
    assert json.loads(shown.out)["topics"] == []
    assert sealed(directory) == set()
    assert compacted(directory, "--no-lease") == 0
    assert sealed(directory) == {"a", "b"}


def test_hosts_share_a_root_with_topic_options(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    JobLease(sparklog.open(directory), "compact", ["a"]).acquire()
    assert compacted(directory) == 0
    assert sealed(directory) == {"b"}
    assert "compact: skipping a, because another run" in capsys.readouterr().err


def test_fenced_run_stops_after_the_current_work_item(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:

    def steal() -> None:
        log = sparklog.open(directory).engine.entries(LEASES, "compact")
        log.write(lambda base: replace(base, claims=()))
        end = time.monotonic() + 60
        while any(thread.name == "sparklog-lease" for thread in threading.enumerate()) and time.monotonic() < end:
            time.sleep(0.01)

    with small_limits(renew_seconds=0.01):
        assert compacted(directory, meanwhile=steal) == 1
    assert len(sealed(directory)) == 1
    assert "This run stops; committed work is kept [SPARKLOG_FENCED]" in capsys.readouterr().err


@pytest.mark.parametrize("given", [["--dry-run"], ["--no-lease"]])
def test_no_lease_option_and_dry_runs_acquire_no_lease(directory: Path, given: list[str]) -> None:
    assert compacted(directory, *given) == 0
    assert retain.run(retain.arguments(["--root", str(directory), *given])) == 0
    assert not (directory / "_maintenance").exists()


def test_jobs_run_if_leases_are_damaged(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert compacted(directory, "--topic", "a") == 0
    next(directory.glob("_maintenance/compact/_log/*0.json")).write_text("{}")
    assert compacted(directory) == 0
    assert sealed(directory) == {"a", "b"}
    assert WITHOUT in capsys.readouterr().err
    (finding,) = verify_root(sparklog.open(directory).store).findings
    assert finding.kind == "lease"


WITHOUT = "compact: RUNS WITHOUT A LEASE, so another run may do the same work: "


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir, lambda path: os.symlink("/dev/null", path)])
def test_obstacle_of_the_next_entry_is_reported_by_runs_and_verify(
    directory: Path, capsys: pytest.CaptureFixture[str], make: Callable[[Path], None]
) -> None:
    assert compacted(directory, "--topic", "a") == 0
    in_the_way = directory / "_maintenance/compact/_log" / f"{2:020d}.json"
    make(in_the_way)
    for _ in range(2):
        assert compacted(directory) == 0
        err = capsys.readouterr().err
        assert WITHOUT in err
        assert f"{in_the_way.name} in {directory}: the path exists, but is not a regular file; move it away" in err
    assert sealed(directory) == {"a", "b"}
    (finding,) = verify_root(sparklog.open(directory).store).findings
    assert (finding.kind, finding.file, finding.remedy) == (
        "lease",
        f"{in_the_way.relative_to(directory)}",
        "move the file away",
    )


def test_retain_deletes_old_lease_entries_and_keeps_the_state() -> None:
    world = World()
    world.root().create_topic("t")
    lease = taken(world)
    for _ in range(300):
        world.now_ms += MINUTE_MS
        lease.renew()
    before = len(list(world.store.list("_maintenance/")))
    (report,) = retain_root(world.root(), Settings(world.now_ms))
    assert report.topic == "t", "nothing is old yet"
    world.now_ms += 2 * DAY_MS
    root_files = retain_root(world.root(), Settings(world.now_ms))[0]
    assert root_files.vacuum is not None
    (removed,) = root_files.vacuum.removed
    assert removed.kind == "lease"
    left = list(world.store.list("_maintenance/"))
    assert len(left) == before - removed.objects < 130
    lease.renew()
    assert taken(world).is_blocked
    assert verify_root(world.store).sound
