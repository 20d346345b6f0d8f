"""Crashes at each request of a process that seals, merges, cleans, expires or vacuums; another process continues.

The final state must equal the one without a crash, and the vacuum deletes all unreferenced files of the crashed
process.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import pytest

from sparklog.compaction.run import CompactOptions, Plans
from sparklog.errors import SparklogError
from sparklog.log.state.commit import Txn, TxnDecision
from sparklog.log.topic.root import Root, topic_of
from sparklog.log.write.append_target import WriteOptions
from sparklog.log.write.append_writer import AppendWriter
from sparklog.maintenance.work_items import InProcess, Settings
from sparklog.retention.retain import retain_topic
from sparklog.testing.faulty_store import Call, Crash, Fault, FaultKind, Script
from sparklog.testing.world import DAY_MS, HOUR_MS
from tests.maintenance.simulation.records import Written
from tests.maintenance.simulation.seeds import check_data_files
from tests.maintenance.simulation.workload import COLUMNS, TOPIC, Rows, Run, batch_of, plans, rows_of
from tests.support.compaction import compact_topic
from tests.support.crash_points import changes
from tests.support.maintaining import maintain
from tests.support.small_limits import small_limits

pytestmark = pytest.mark.sweep

CONFIGS = {
    "cleanup.policy": "compact,delete",
    "segment.bytes": "600",
    "segment.ms": str(12 * HOUR_MS),
    "retention.ms": str(3 * DAY_MS),
    "delete.retention.ms": "0",
    "min.cleanable.dirty.ratio": "0.0",
    "index.interval.bytes": "100",
    "inline.records.bytes": "0",
}
Step = Callable[[Run, Root], Sequence[object]]
"""A step works with the root of its process and returns its failures."""


def compaction(seal: bool = False, merge: bool = False, clean: bool = False, roll: bool = False) -> Step:
    """Run the main parts of `jobs/compact.py`."""

    def step(run: Run, root: Root) -> Sequence[object]:
        whole = plans(run, root.env)
        chosen = Plans(
            whole.seal if seal else lambda snapshot, settings, roll: (),
            whole.merge if merge else lambda snapshot, settings: (),
            whole.clean if clean else lambda snapshot, settings: (),
        )
        settings = Settings(now_ms=run.world.now_ms)
        return compact_topic(root.topic(TOPIC), settings, InProcess(), CompactOptions(roll=roll), plans=chosen).failures

    return step


def retention(run: Run, root: Root) -> Sequence[object]:
    """Run `jobs/retain.py`."""
    return retain_topic(topic_of(root, TOPIC), Settings(now_ms=run.world.now_ms)).failures


@dataclass(frozen=True)
class Point:
    """A step, its initial state, and the number of its requests."""

    name: str
    before: Run
    step: Step
    calls: tuple[Call, ...]
    after: tuple[object, ...]


def append(run: Run, root: Root, source: random.Random, txn: Txn | None = None) -> int:
    topic = root.topic(TOPIC)
    target = topic.log.append_target()
    writer = AppendWriter(target, WriteOptions("none"), root.env)
    parts = {
        p: [
            Written(b"k%d" % source.randrange(4), source.choice([None, b"v" * 20, b"w" * 60]), run.world.now_ms)
            for _ in range(4)
        ]
        for p in range(2)
    }
    writer.write(batch_of(parts))
    files = writer.finish()
    for file in files:
        run.model.uploads[file.path] = parts
    return topic.log.commit_append(files, target, txn=txn).version


def story() -> Run:
    """Return a topic with closed and open segments, a committed and an aborted transaction."""
    run = Run(0, inline=None, configs=CONFIGS)
    root, source = run.outsider("story"), random.Random(5)
    for n in range(5):
        append(run, root, source)
        run.world.now_ms += HOUR_MS
        if n in (1, 2):
            version = append(run, root, source, Txn("x", n))
            maintain(root.topic(TOPIC), resolved=(TxnDecision("x", n, (version,) if n == 1 else ()),))
    return run


def points() -> list[Point]:
    """Return the steps of the life of a topic, each with the state after the previous step."""
    found = []
    run = story()
    later = 2 * DAY_MS
    steps: list[tuple[str, int, Step]] = [
        ("seal", 0, compaction(seal=True)),
        ("merge", 0, compaction(merge=True)),
        ("clean", 0, compaction(clean=True)),
        ("vacuum", later, retention),
        ("clean again", 0, compaction(seal=True, clean=True, roll=True)),
        ("expire and vacuum", later, retention),
        ("vacuum the log", 9 * DAY_MS, retention),
    ]
    for name, wait_ms, step in steps:
        run.world.now_ms += wait_ms
        append(run, run.outsider(f"before {name}"), random.Random(name))
        before = run.fork()
        calls: list[Call] = []

        def watch(call: Call, calls: list[Call] = calls) -> Fault | None:
            calls.append(call)
            return None

        left = step(run, run.outsider(f"{name}, undisturbed", watch))
        assert not left, left
        run.check()
        found.append(Point(name, before, step, tuple(calls), picture(run)))
    return found


def picture(run: Run) -> tuple[object, ...]:
    """Return the visible state of a topic, including the bytes of its slices, without file names."""
    snapshot = run.outsider("looks").topic(TOPIC).log.snapshot()
    rows, state = snapshot.slices.all(), snapshot.state
    slices = [
        (
            *(int(getattr(rows, name)[row]) for name in ("partition", "base", "end", "records", "flags", "status")),
            run.store.get(f"{TOPIC}/{rows.path(row)}", int(rows.position[row]), int(rows.size[row])),
        )
        for row in range(len(rows))
    ]
    ends = (
        state.log_start.tolist(),
        state.log_end.tolist(),
        state.first_dirty_offset.tolist(),
        state.last_stable().tolist(),
    )
    records: Rows = rows_of(run.outsider("looks").topic(TOPIC).scan(columns=COLUMNS))
    return slices, ends, records


def strike(point: Point, call: Call, kind: FaultKind) -> None:
    """Fail at this request, continue with another process, and check the final state."""
    run = point.before.fork()
    script = Script({(call.label, call.nth): Fault(kind)})
    with contextlib.suppress(Crash, SparklogError):
        point.step(run, run.outsider("who dies", script))
    where = f"{point.name}: {kind.value} at {call.label} {call.nth} ({call.key})"
    assert script.struck, where
    run.check()
    left = point.step(run, run.outsider("who takes over"))
    assert not left, f"{where}: {left}"
    assert picture(run) == point.after, where
    append(run, run.outsider("appender"), random.Random(1))
    for number in range(2):
        run.world.now_ms += 9 * DAY_MS
        assert not retention(run, run.outsider(f"cron {number}"))
    run.check()
    check_data_files(run)


@pytest.fixture(scope="module")
def life() -> list[Point]:
    with small_limits(checkpoint_commits=5):
        return points()


@pytest.fixture(autouse=True)
def _few_commits_per_checkpoint() -> Iterator[None]:
    with small_limits(checkpoint_commits=5):
        yield


NAMES = ("seal", "merge", "clean", "vacuum", "clean again", "expire and vacuum", "vacuum the log")


def turning_points(point: Point) -> list[Call]:
    """Return the numbers of all commit requests of a step, and of the first and last of each other kind of change."""
    changing = [call for call in point.calls if changes(call.label)]
    last = {call.label: call for call in changing}
    return [call for call in changing if call.label == "create:commit" or call.nth == 0 or call is last[call.label]]


@pytest.mark.parametrize("name", NAMES)
def test_crash_between_commits_loses_nothing(life: list[Point], name: str) -> None:
    (point,) = [each for each in life if each.name == name]
    assert any(call.label == "create:commit" for call in turning_points(point))
    strike(point, point.calls[0], FaultKind.CRASH_BEFORE)
    for call in turning_points(point):
        strike(point, call, FaultKind.CRASH_AFTER)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [FaultKind.CRASH_BEFORE, FaultKind.ERROR_BEFORE, FaultKind.ERROR_AFTER])
@pytest.mark.parametrize("name", NAMES)
def test_crash_at_any_request_loses_nothing(life: list[Point], name: str, kind: FaultKind) -> None:
    (point,) = [each for each in life if each.name == name]
    assert point.calls
    for call in point.calls:
        strike(point, call, kind)
