"""Whatever the seed, and wherever maintenance dies: readers of several topics see all of a transaction or none."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable

import pytest

from sparklog.compaction import run as compaction
from sparklog.compaction.run import CompactOptions, compact_root
from sparklog.errors import SparklogError
from sparklog.log.decisions.decision_log import consistent_ends, limited_to
from sparklog.log.state.slice_table import Snapshot
from sparklog.log.topic.topic import Topic
from sparklog.maintenance.work_items import InProcess, Settings
from sparklog.testing.faulty_store import Call, Crash, Decide, Fault, FaultKind, Script
from sparklog.transactions.producer import Transaction, transactional
from tests.log.simulation.simulated_world import SimulationError
from tests.maintenance.simulation.interleaved import Run, finish, run_seed
from tests.support.crash_points import changes
from tests.support.records import rows
from tests.support.replay import repeat_one_seed, replayable
from tests.support.seeds import INTERLEAVED


def check(seed: int) -> Run:
    """Run a seed; a failure names the seed, how to replay it, and the end of its story."""
    runs: list[Run] = []

    def story() -> list[str]:
        return runs[0].world.trace[-40:] if runs else []

    with replayable(seed, "tests/maintenance/simulation/test_interleaved.py", story):
        return run_seed(seed, runs)


@pytest.mark.sweep
@pytest.mark.parametrize("seeds", INTERLEAVED.few())
def test_seeds(seeds: range) -> None:
    met: Counter[str] = Counter()
    for seed in seeds:
        met.update(check(seed).counters)
    for what in ("committed", "shared", "aborted", "pieces seal", "pieces merge", "pieces compact"):
        assert met[what] > 2, f"the runs did too little to show anything: {met}"
    assert met["looks"] > 30 * len(seeds)


def test_one_seed() -> None:
    assert repeat_one_seed(check) > 0


@pytest.mark.slow
@pytest.mark.parametrize("seeds", INTERLEAVED.many())
def test_many_seeds(seeds: range) -> None:
    for seed in seeds:
        assert check(seed).world.failure is None


# -- is a broken rule noticed?


def hidden_here_alone(topic: Topic) -> Snapshot:
    """Ask other topics for what they have recorded, not for what is decided."""
    snapshots = {topic.name: topic.log.snapshot()}
    waiting = list(snapshots[topic.name].state.siblings)
    while waiting:
        name = waiting.pop()
        if name not in snapshots:
            snapshots[name] = topic.root.engine.log(name).snapshot()
            waiting += snapshots[name].state.siblings
    return limited_to(snapshots[topic.name], consistent_ends(snapshots)[topic.name])


def own_topic_alone(topic: Topic) -> Snapshot:
    """Do not ask other topics."""
    return topic.log.snapshot()


@pytest.mark.parametrize("rule", [hidden_here_alone, own_topic_alone])
def test_a_broken_rule_is_found_by_the_seeds_of_every_run(
    rule: Callable[[Topic], Snapshot], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compaction, "visible_snapshot", rule)
    for seed in range(INTERLEAVED.every_run):
        try:
            run_seed(seed)
        except SimulationError as error:
            assert "see ('producer-" in str(error)  # noqa: PT017
            return
    pytest.fail(f"{INTERLEAVED.every_run} seeds passed without this rule: {rule.__doc__}")


# -- a crash at every step


def shared(run: Run, name: str, *topics: str) -> Transaction:
    """A transaction with a job for each topic, all prepared."""
    owner = transactional(run.outsider(), name, timeout_ms=3_600_000).begin()
    for topic in topics:
        job = transactional(run.outsider(), name, timeout_ms=3_600_000).join(owner.n, topic)
        table = rows(f"{name}:{topic}", partition=0)
        job.append(topic, table.append_column("key", table["value"]))
        job.prepare()
    return owner


def story() -> tuple[Run, Transaction]:
    """`first` is committed, visible in u and w, hidden behind `open` in v, which has not recorded it."""
    run = Run(0)
    for name in ("below", "too"):
        shared(run, name, "u", "v", "w").commit()
    blocker = shared(run, "open", "v")
    shared(run, "first", "u", "v", "w").commit()
    shared(run, "aborted", "u", "w").abort()
    for topic in "uw":
        table = rows(f"plain:{topic}", partition=0)
        run.outsider().topic(topic).append(table.append_column("key", table["value"]))
    return run, blocker


def compact(run: Run, decide: Decide) -> list[object]:
    root = run.outsider(decide)
    settings = Settings(now_ms=run.world.now_ms)
    reports = compact_root(root, settings, InProcess(), CompactOptions(["u", "w"], roll=True))
    return [failure for report in reports for failure in report.failures]


def struck(call: Call | None, kind: FaultKind) -> None:
    """Compact and fail at this request, compact again, decide what was open, compact all."""
    run, blocker = story()
    script = Script({} if call is None else {(call.label, call.nth): Fault(kind)})
    with contextlib.suppress(Crash, SparklogError):
        compact(run, script)
    assert script.struck or call is None
    run.look()
    assert not compact(run, lambda call: None)
    assert run.outsider().topic("u").log.snapshot().slices.all().sealed().any(), "nothing was sealed below"
    blocker.commit()
    finish(run)


def requests(kinds: Callable[[str], bool]) -> list[Call]:
    calls: list[Call] = []

    def watch(call: Call) -> None:
        calls.append(call)

    run, _ = story()
    assert not compact(run, watch)
    return [call for call in calls if kinds(call.label)]


def test_wherever_maintenance_dies_between_two_changes() -> None:
    struck(None, FaultKind.CRASH_AFTER)
    calls = requests(changes)
    commits = [call for call in calls if call.label == "create:commit"]
    assert len(commits) >= 2
    for call in [*commits, *(call for call in calls if call.nth == 0 and call not in commits)]:
        struck(call, FaultKind.CRASH_AFTER)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [FaultKind.CRASH_BEFORE, FaultKind.ERROR_BEFORE, FaultKind.ERROR_AFTER])
def test_whatever_request_of_maintenance_fails(kind: FaultKind) -> None:
    for call in requests(lambda label: True):
        struck(call, kind)
