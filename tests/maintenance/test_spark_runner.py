"""The number of concurrent Spark jobs and the progress line of running work items, without Spark."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
import time
from types import SimpleNamespace
from typing import Any

import pytest

from sparklog.errors import Unavailable
from sparklog.maintenance import spark_runner
from sparklog.maintenance.spark_runner import CLUSTER_JOBS, MAX_LISTED, SparkRunner, _parallelism, _SparkJobs, _task
from sparklog.maintenance.work_items import WorkResult
from sparklog.storage import fork_safety
from sparklog.testing.world import World


@pytest.mark.parametrize(
    ("master", "slots", "jobs"),
    [
        ("local", 1, 1),
        ("local[2]", 2, 2),
        ("local[*, 4]", 8, 8),
        ("local-cluster[2,1,1024]", 2, CLUSTER_JOBS),
        ("spark://host:7077", 2, CLUSTER_JOBS),
        ("k8s://https://host", 400, 400),
        ("yarn", 0, CLUSTER_JOBS),
    ],
)
def test_parallelism_on_a_cluster_exceeds_its_first_slots(master: str, slots: int, jobs: int) -> None:
    assert _parallelism(SimpleNamespace(master=master, defaultParallelism=slots)) == jobs


@pytest.mark.parametrize(("running", "more"), [(MAX_LISTED, ""), (MAX_LISTED + 5, ", 5 more")])
def test_progress_line_lists_a_limited_number_of_work_items(running: int, more: str) -> None:
    works: Any = [SimpleNamespace(title=f"seal t-{number}") for number in range(running)]
    batch = _SparkJobs(None, works, False, World().env())
    for _ in works:
        batch._next_index()
    names = ", ".join(f"seal t-{number} (0 s)" for number in range(MAX_LISTED))
    assert batch._heartbeat() == f"0 of {running} work items finished, running: {names}{more}"


def runner_of(works: int) -> tuple[SparkRunner, Any]:
    context = SimpleNamespace(master="local[2]", defaultParallelism=2, cancelJobGroup=lambda group: None)
    pieces: Any = [SimpleNamespace(title=f"seal t-{number}") for number in range(works)]
    return SparkRunner(SimpleNamespace(sparkContext=context), quiet=True), pieces  # type: ignore[arg-type]


def test_runner_fails_if_its_threads_end_early(monkeypatch: pytest.MonkeyPatch) -> None:
    def take(batch: _SparkJobs) -> int | None:
        raise MemoryError("struck")

    monkeypatch.setattr(spark_runner, "HEARTBEAT_MS", 10)
    monkeypatch.setattr(_SparkJobs, "_next_index", take)
    monkeypatch.setattr(threading, "excepthook", lambda arguments: None)
    runner, works = runner_of(2)
    with pytest.raises(Unavailable, match="have ended unexpectedly"):
        list(runner.run(works))


def test_failure_to_start_a_thread_stops_the_other_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    start, batches, first = threading.Thread.start, list[_SparkJobs](), iter([True])

    def limited(thread: threading.Thread) -> None:
        if not next(first, False):
            raise RuntimeError("can't start new thread")
        start(thread)

    def work(batch: _SparkJobs) -> None:
        batches.append(batch)
        while not batch._stopped:
            time.sleep(0.001)

    monkeypatch.setattr(threading.Thread, "start", limited)
    monkeypatch.setattr(_SparkJobs, "_work", work)
    runner, works = runner_of(3)
    with pytest.raises(RuntimeError, match="can't start new thread"):
        list(runner.run(works))
    assert [batch._stopped for batch in batches] == [True]


def test_objects_are_frozen_after_imports(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    modules = {"a": gc}
    monkeypatch.setattr(fork_safety, "_frozen_modules", 0)
    monkeypatch.setattr(fork_safety, "sys", SimpleNamespace(modules=modules))
    monkeypatch.setattr(gc, "collect", lambda: calls.append("collect"))
    monkeypatch.setattr(gc, "freeze", lambda: calls.append("freeze"))
    for _ in range(2):
        fork_safety.freeze_gc()
    assert calls == ["freeze"], "imports leave nothing to collect, and looking takes as long as they do"
    modules["pandas"] = gc
    for _ in range(2):
        fork_safety.freeze_gc()
    assert calls == ["freeze"] * 2
    modules["numba"] = gc
    fork_safety.freeze_gc()
    assert calls[2:] == ["collect", "freeze"]


def test_work_item_leaves_few_objects_for_garbage_collection(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    monkeypatch.setattr(spark_runner, "freeze_gc", lambda: calls.append("frozen"))
    done = WorkResult((), (), ())
    work: Any = SimpleNamespace(run=lambda progress: done)
    assert _task(work, True, 0) is done
    assert calls == ["frozen"]


def test_task_does_not_import_topics_or_groups() -> None:
    """A worker imports only what its work item needs, because the work item contains all data."""
    program = """
import sys
import sparklog.maintenance.spark_runner, sparklog.compaction.clean_work, sparklog.compaction.merge_work
heavy = ("sparklog.groups", "sparklog.transactions", "sparklog.log.decisions", "sparklog.log.topic", "numba")
print([name for name in sorted(sys.modules) if name.startswith(heavy)])
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
