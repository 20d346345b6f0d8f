"""A process dies before and after each of its requests, one by one; another takes over: all is there, once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from sparklog.errors import Conflict
from sparklog.log.state.writer_runs import WriterKey
from sparklog.testing.faulty_store import Call, Crash, Fault, FaultKind
from tests.log.simulation.watched_world import HookedProcess, WatchedWorld
from tests.support.crash_points import changes
from tests.support.small_limits import small_limits

pytestmark = pytest.mark.sweep

BATCHES = 7
CONFIG = {"retention.ms": "123456"}


@pytest.fixture(autouse=True)
def _few_commits_per_checkpoint() -> Iterator[None]:
    with small_limits(checkpoint_commits=3):
        yield


@dataclass
class Job:
    """Steps that are each done once; `done` is what the job itself has written down, as a streaming checkpoint is."""

    world: WatchedWorld = field(default_factory=WatchedWorld)
    done: int = 0
    runs: int = 0

    def run(self, process: HookedProcess) -> None:
        self.runs += 1
        run_id = f"run-{self.runs}"
        steps = [lambda batch=batch: self.batch(process, batch, run_id) for batch in range(BATCHES)]
        steps.insert(3, lambda: self.configure(process))
        steps.insert(5, lambda: self.expire(process))
        steps.append(lambda: self.create_again(process))
        for number, step in enumerate(steps):
            if number == self.done:
                step()
                self.done += 1

    def batch(self, process: HookedProcess, batch: int, run_id: str) -> None:
        process.append({0: batch + 1, 1: 1}, process.target(), WriterKey("q", batch, run_id))

    def configure(self, process: HookedProcess) -> None:
        process.topic().alter(configs=CONFIG)

    def expire(self, process: HookedProcess) -> None:
        process.topic().delete_records({1: 2})

    def create_again(self, process: HookedProcess) -> None:
        process.root.ensure_topic("other", partitions=4)

    def check(self) -> None:
        state = self.world.log.state
        batches = sorted((batch, version) for (_, _, batch), version in self.world.log.batch_versions.items())
        assert [batch for batch, _ in batches] == list(range(BATCHES))
        assert [version for _, version in batches] == sorted(version for _, version in batches)
        assert state.log_end == (sum(range(1, BATCHES + 1)), BATCHES)
        assert state.log_start == (0, 2)
        assert dict(state.configs) == CONFIG
        assert len(self.world.model.topic("other").state.log_end) == 4
        snapshot = self.world.process().topic().log.snapshot()
        rows = snapshot.slices.all()
        assert snapshot.version == state.version
        assert list(zip(rows.partition.tolist(), rows.base.tolist(), rows.end.tolist(), strict=True)) == [
            (piece.partition, piece.base, piece.end) for piece in state.slices
        ]


def labels_of_a_whole_run() -> list[str]:
    """Every request of the job when nothing fails."""
    job = Job()
    process = job.world.process()
    labels: list[str] = []

    def watch(call: Call) -> Fault | None:
        labels.append(call.label)
        return None

    process.store.decide = watch
    job.run(process)
    job.check()
    return labels


@pytest.fixture(scope="module")
def labels() -> list[str]:
    with small_limits(checkpoint_commits=3):
        return labels_of_a_whole_run()


def test_nothing_is_lost_or_doubled_whatever_was_written_last(labels: list[str]) -> None:
    assert len(labels) > 40
    assert {"create:commit", "get:commit", "create:checkpoint"} <= set(labels)
    crash_at(0, FaultKind.CRASH_BEFORE)
    for point, label in enumerate(labels):
        if changes(label):
            for kind in (FaultKind.CRASH_AFTER, FaultKind.ERROR_BEFORE, FaultKind.ERROR_AFTER):
                crash_at(point, kind)


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind", [FaultKind.CRASH_BEFORE, FaultKind.CRASH_AFTER, FaultKind.ERROR_BEFORE, FaultKind.ERROR_AFTER]
)
def test_nothing_is_lost_or_doubled_at_any_crash_point(labels: list[str], kind: FaultKind) -> None:
    for point in range(len(labels)):
        crash_at(point, kind)


def crash_at(point: int, kind: FaultKind) -> None:
    job = Job()
    process = job.world.process()
    first = process.store._number
    struck: list[str] = []

    def strike(call: Call) -> Fault | None:
        if call.number - first == point:
            struck.append(call.label)
            return Fault(kind)
        return None

    process.store.decide = strike
    try:
        job.run(process)
    except (Crash, OSError, Conflict):
        # Died, or gave up with an error: started again, as a scheduler does.
        job.run(job.world.process())
    assert struck, f"no request number {point}"
    job.check()
