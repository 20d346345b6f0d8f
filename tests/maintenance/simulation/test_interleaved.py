"""Readers of several topics see all records of a transaction or none, with any seed and crash of maintenance."""

from __future__ import annotations

import contextlib
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
from tests.maintenance.simulation.interleaved import INTERLEAVED, Run, finish
from tests.support.crash_points import changes
from tests.support.records import rows
from tests.support.seeds import INTERLEAVED as INTERLEAVED_SEEDS
from tests.support.simulation.sweeps import BrokenRule, Patch, Sweep, broken_rules, sweeps

WHAT_HAPPENS = ("committed", "shared", "aborted", "pieces seal", "pieces merge", "pieces compact")


@sweeps(Sweep("disk", INTERLEAVED_SEEDS, at_least=dict.fromkeys(WHAT_HAPPENS, 3), per_seed={"looks": 30}))
def test_readers_see_transactions_atomically(sweep: Sweep, seeds: range) -> None:
    assert INTERLEAVED.sweep(sweep, seeds)


def test_one_seed() -> None:
    assert INTERLEAVED.run_one() > 0


# -- tests that fail without a rule


def hidden_here_alone(patch: Patch) -> None:
    """Make compaction read the recorded outcomes of other topics, but not the decisions."""

    def snapshot(topic: Topic) -> Snapshot:
        snapshots = {topic.name: topic.log.snapshot()}
        waiting = list(snapshots[topic.name].state.siblings)
        while waiting:
            name = waiting.pop()
            if name not in snapshots:
                snapshots[name] = topic.root.engine.log(name).snapshot()
                waiting += snapshots[name].state.siblings
        return limited_to(snapshots[topic.name], consistent_ends(snapshots)[topic.name])

    patch.setattr(compaction, "visible_snapshot", snapshot)


def own_topic_alone(patch: Patch) -> None:
    """Make compaction read no other topics."""
    patch.setattr(compaction, "visible_snapshot", lambda topic: topic.log.snapshot())


@broken_rules(
    *(
        BrokenRule(rule, None, INTERLEAVED_SEEDS.every_range(), message="see ('producer-")
        for rule in (hidden_here_alone, own_topic_alone)
    )
)
def test_some_seed_fails_without_the_rule_in_every_run(rule: BrokenRule, monkeypatch: Patch) -> None:
    INTERLEAVED.assert_fails(rule, monkeypatch)


# -- crashes at each step


def shared(run: Run, name: str, *topics: str) -> Transaction:
    """Return a prepared transaction with one job per topic."""
    owner = transactional(run.outsider(), name, timeout_ms=3_600_000).begin()
    for topic in topics:
        job = transactional(run.outsider(), name, timeout_ms=3_600_000).join(owner.n, topic)
        table = rows(f"{name}:{topic}", partition=0)
        job.append(topic, table.append_column("key", table["value"]))
        job.prepare()
    return owner


def story() -> tuple[Run, Transaction]:
    """Return a root where `first` is committed: visible in u and w, and not recorded in v, behind `open`."""
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
    root = run.outsider(decide=decide)
    settings = Settings(now_ms=run.world.now_ms)
    reports = compact_root(root, settings, InProcess(), CompactOptions(["u", "w"], roll=True))
    return [failure for report in reports for failure in report.failures]


def struck(call: Call | None, kind: FaultKind) -> None:
    """Compact with a fault at this request, compact again, end all transactions and compact all topics."""
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


def test_maintenance_crash_between_two_changes() -> None:
    struck(None, FaultKind.CRASH_AFTER)
    calls = requests(changes)
    commits = [call for call in calls if call.label == "create:commit"]
    assert len(commits) >= 2
    for call in [*commits, *(call for call in calls if call.nth == 0 and call not in commits)]:
        struck(call, FaultKind.CRASH_AFTER)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [FaultKind.CRASH_BEFORE, FaultKind.ERROR_BEFORE, FaultKind.ERROR_AFTER])
def test_maintenance_crash_at_any_request(kind: FaultKind) -> None:
    for call in requests(lambda label: True):
        struck(call, kind)
