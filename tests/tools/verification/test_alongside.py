"""Verify runs concurrently with writers, transactions, compaction, retention and the vacuum, and reports no damage.

Verifiers are added to the simulation of maintenance. Processes are interleaved at each request, so files, commits and
checkpoints are deleted between a listing and a read, and crashed processes leave unreferenced files.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from sparklog.compaction.run import CompactOptions
from sparklog.log.journal.names import commit_key, transactions_prefix
from sparklog.log.topic.topic import Topic
from sparklog.maintenance.work_items import InProcess, Settings
from sparklog.retention.vacuum import vacuum
from sparklog.storage.memory import MemoryStore
from sparklog.storage.retries import SETTLE_MS
from sparklog.storage.store import Store
from sparklog.testing.faulty_store import Call
from sparklog.testing.world import DAY_MS, HOUR_MS, World
from sparklog.tools.repair.run import repair_root
from sparklog.tools.verification import run as run_module
from sparklog.tools.verification.findings import Report
from sparklog.tools.verification.run import verify_root
from sparklog.tools.verification.topic_log import CheckedTopic, read_topic
from sparklog.transactions.producer import transactional
from tests.maintenance.simulation.seeds import MaintenanceRun
from tests.maintenance.simulation.workload import TOPIC, Run
from tests.support.built_once import built_once
from tests.support.compaction import compact_topic
from tests.support.name_caching_store import NameCachingStore
from tests.support.seeds import VERIFICATION as VERIFICATION_SEEDS
from tests.support.simulation.scheduler import Actor, expect
from tests.support.simulation.sweeps import Simulation, Sweep, sweeps
from tests.support.small_limits import small_limits
from tests.tools.verification.whole_root import rows


def healthy(call: Call) -> None:
    """A store without faults for verifiers."""


def verifier(run: Run, met: Counter[str]) -> Callable[[Actor], None]:
    """Verify the topic repeatedly."""

    def body(actor: Actor) -> None:
        source = random.Random(f"{run.seed}/{actor.name}")
        for _ in range(6):
            actor.env.sleep(source.choice([1, HOUR_MS, 6 * HOUR_MS, 20 * HOUR_MS]) / 1000)
            report = verify_root(actor.store(healthy), topics=[TOPIC], env=actor.env)
            expect(report.sound, f"seed {run.seed}: {'; '.join(map(str, report.findings))}")
            met["looks"] += 1
            met["files"] += report.counts.files
            met["unreferenced"] += len(report.unreferenced)
            met["gaps"] += report.counts.gaps

    return body


@dataclass
class VerifiedRun(MaintenanceRun):
    """The simulation of maintenance with two verifiers."""

    PROFILES = (
        "calm",
        "slow",
        "rush",
        "answers",
        "errors",
        "crashes",
        "stalls",
        "everything",
    )

    def __post_init__(self) -> None:
        self.profile = self.PROFILES[self.seed % len(self.PROFILES)]
        super().__post_init__()

    def draw(self) -> None:
        super().draw()
        for number in range(2):
            self.world.spawn(f"verifier-{number}", verifier(self, self.counters), start_ms=number * HOUR_MS)

    def check_result(self) -> None:
        report = verify_root(self.store, topics=[TOPIC], env=self.outsider("verify").env)
        expect(report.sound, "; ".join(map(str, report.findings)))


VERIFICATION = Simulation(VerifiedRun, "tests/tools/verification/test_alongside.py")


@sweeps(Sweep("disk", VERIFICATION_SEEDS, per_seed={"looks": 1, "files": 1, "unreferenced": 1}))
def test_concurrent_changes_are_not_damage(sweep: Sweep, seeds: range) -> None:
    assert VERIFICATION.sweep(sweep, seeds)


def test_one_seed() -> None:
    assert VERIFICATION.run_one() > 0


class Interrupted:
    """A store that runs an action before one of the reader's requests."""

    def __init__(self, store: MemoryStore, at: int, action: Callable[[], None]) -> None:
        self._store = store
        self._at = at
        self._action = action
        self.requests = 0

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._store, name)
        if name not in ("get", "list", "list_folders", "stat", "now_ms"):
            return found

        def request(*given: Any, **named: Any) -> Any:
            self.requests += 1
            if self.requests == self._at:
                self._action()
            return found(*given, **named)

        return request


class Busy:
    """A topic whose versions, files and checkpoints a vacuum deletes after a few days."""

    def __init__(self) -> None:
        self.world = World()
        self.store = self.world.store
        self.world.root().create_topic("t", configs={"file.delete.delay.ms": HOUR_MS, "retention.ms": -1})
        self.first = 0
        self.append(7)
        self.seal()
        self.append(5)
        self.vacuum()
        self.append(3)

    @property
    def topic(self) -> Topic:
        """Return the topic as opened by another process."""
        return self.world.topic("t")

    def append(self, times: int) -> None:
        topic = self.topic
        for _ in range(times):
            topic.append(rows(self.first, 5, 1))
            self.first += 5
            self.world.now_ms += HOUR_MS

    def seal(self) -> None:
        assert not compact_topic(
            self.topic, Settings(self.world.now_ms + 3650 * DAY_MS), InProcess(), CompactOptions(roll=True)
        ).failures

    def vacuum(self) -> None:
        self.world.now_ms += 30 * DAY_MS
        assert not vacuum(self.topic, Settings(self.world.now_ms)).failures

    def commotion(self) -> None:
        """Rewrite and delete all files, including commits and checkpoints."""
        self.append(6)
        self.seal()
        self.append(6)
        self.vacuum()
        self.append(2)
        self.vacuum()

    def verify(self, at: int) -> tuple[Report, int]:
        store = Interrupted(self.store, at, self.commotion)
        return verify_root(store, env=self.world.env()), store.requests  # type: ignore[arg-type]


@built_once
def busy() -> Busy:
    return Busy()


def looks(every: int) -> Iterator[Report]:
    """Yield a report for each run of the commotion before one request of verify, in steps of `every` requests."""
    with small_limits(checkpoint_commits=4):
        requests = busy().verify(0)[1]
        assert requests > 50
        for at in range(1, requests + 1, every):
            yield busy().verify(at)[0]


@pytest.mark.sweep
@pytest.mark.parametrize("every", [9, pytest.param(1, marks=pytest.mark.slow)])
def test_vacuum_between_any_two_requests_is_not_damage(every: int) -> None:
    for number, report in enumerate(looks(every)):
        assert report.sound, f"before request {1 + number * every}: {'; '.join(map(str, report.findings))}"


def test_fails_if_verify_does_not_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    with small_limits(verify_tries=1):
        assert not all(report.sound for report in looks(5))
    _first_answers(monkeypatch)
    assert not all(report.sound for report in looks(5))


def _first_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Read the log of a topic only once, so that the first result is final."""
    seen: dict[str, tuple[Store, CheckedTopic]] = {}

    def once(store: Store, name: str, now_ms: int) -> CheckedTopic:
        if (known := seen.get(name)) is None or known[0] is not store:
            seen[name] = store, read_topic(store, name, now_ms)
        return seen[name][1]

    monkeypatch.setattr(run_module, "read_topic", once)


@pytest.mark.parametrize("name", ["topic", "group", "decisions"])
def test_objects_hidden_by_a_name_cache_are_not_missing(name: str) -> None:
    world = World()
    root = world.root()
    topic = root.create_topic("t")

    def write() -> None:
        topic.append([{"value": "x"}])
        with transactional(root, "id").begin() as transaction:
            transaction.append("t", [{"value": "y"}])
            transaction.send_offsets("g", {"t": {0: 1}})

    write()
    prefix = {"topic": "t", "group": "_groups/g", "decisions": transactions_prefix("id")}[name]
    number = len(list(world.store.list(f"{prefix}/_log/0")))
    store = NameCachingStore(world.store, lambda: world.now_ms, name_ms=60_000)
    assert store.stat(commit_key(prefix, number)) is None
    for _ in range(3):
        write()
    begun = world.now_ms
    report = repair_root(store, execute=True, env=world.env())
    assert (report.before, report.repaired, report.left) == (0, (), ())
    assert world.now_ms - begun < SETTLE_MS
    # Lost objects are reported after the lifetime of cache entries.
    world.store.delete(commit_key(prefix, number))
    begun = world.now_ms
    assert not verify_root(store, env=world.env()).sound
    assert world.now_ms - begun >= SETTLE_MS
    confirmed = verify_root(world.store, env=world.env()).findings
    begun = world.now_ms
    assert verify_root(store, env=world.env(), confirmed=confirmed).findings == confirmed
    assert world.now_ms - begun < SETTLE_MS
