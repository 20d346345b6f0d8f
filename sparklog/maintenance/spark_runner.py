"""Run work items in Spark. Each work item is a Spark job with one task, and several jobs run in parallel.

A result can therefore be committed as soon as it is available, and a failed work item does not affect other work items.
Work items start in the given order. On a single host, the number of parallel jobs is the number of task slots. On a
cluster, more jobs run in parallel, because Spark requests executors for pending tasks.

A task returns its error as a value. For Spark, the task has succeeded, so Spark does not retry work that would fail
again, and the driver gets the error object instead of the text of two stack traces. If a task ends for another reason,
for example a lost executor or a defect, Spark's failure is returned as `Unavailable` with the title of the work item.

The runner requires a session with a SparkContext, so it works with `spark-submit` but not with Spark Connect. pyspark
is imported on first use.
"""

from __future__ import annotations

import logging
import os
import queue
import re
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, NamedTuple

from sparklog.common.units import size_text
from sparklog.errors import SparklogError, Unavailable
from sparklog.log.journal.clocks import SYSTEM, Env
from sparklog.maintenance.work_items import (
    InProcess,
    Meter,
    Progress,
    Runner,
    Settings,
    T,
    Work,
    WorkItem,
    WorkResult,
    silent,
)
from sparklog.output import log
from sparklog.storage.fork_safety import ForkLock, freeze_gc

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


SUBMITTED = "PYSPARK_GATEWAY_PORT"
"""An environment variable that is set by spark-submit."""
HEARTBEAT_MS = 30_000
STOP_SECONDS = 60
CLUSTER_JOBS = 64
"""Minimum number of parallel jobs on a cluster. Each job has a thread in the driver and may wait for an executor."""
MAX_LISTED = 8
"""Maximum number of running work items that a progress line lists."""


class _Failure(NamedTuple):
    """An unexpected error of a thread that starts jobs."""

    error: BaseException


def hide_interrupts() -> None:
    """Do not log the stack trace of an interrupt, which Py4J logs to the root logger."""
    logging.getLogger().addFilter(_no_interrupt)


def _no_interrupt(record: logging.LogRecord) -> bool:
    return record.exc_info is None or record.exc_info[0] is not KeyboardInterrupt


def quiet_session(builder: SparkSession.Builder, name: str, log_level: str = "WARN") -> SparkSession:
    """Start Spark with fewer log lines and with Python's handler for Ctrl-C.

    Spark's own signal handler would cancel all jobs through the JVM, while another call waits for a response of the
    JVM. If Ctrl-C is pressed while the JVM starts, the interrupt is deferred, because it would leave the JVM running.
    """
    # spark-submit logs every step of every task and shows a progress bar, which would hide the lines of the job.
    quiet = {"spark.log.level": log_level, "spark.ui.showConsoleProgress": "false"}
    hide_interrupts()
    builder = builder.appName(name).config(map=quiet)
    if threading.current_thread() is not threading.main_thread():
        return builder.getOrCreate()
    interrupts: list[int] = []
    signal.signal(signal.SIGINT, lambda number, frame: interrupts.append(number))
    try:
        spark = builder.getOrCreate()
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if interrupts:
        spark.stop()
        raise KeyboardInterrupt
    return spark


class SparkRunner:
    """A `Runner` that uses a Spark session.

    Args:
        spark: the session.
        parallelism: the number of parallel jobs; see `_parallelism` for the default.
        quiet: do not log the progress of work items.
        env: the clocks for progress lines.
    """

    def __init__(
        self, spark: SparkSession, *, parallelism: int | None = None, quiet: bool = False, env: Env = SYSTEM
    ) -> None:
        self._context: Any = spark.sparkContext
        self.parallelism = parallelism or _parallelism(self._context)
        self._quiet = quiet
        self._env = env

    def run(self, works: Sequence[T]) -> Iterator[tuple[T, Any]]:
        """Run the work items. If the caller closes the generator early, cancel the running jobs."""
        if not works:
            return
        batch = _SparkJobs(self._context, works, self._quiet, self._env)
        try:
            batch.start(min(self.parallelism, len(works)))
            for _ in works:
                yield batch.next()
        finally:
            batch.stop()


def _parallelism(context: Any) -> int:
    """Return the number of parallel jobs: the number of task slots or, on a cluster, at least `CLUSTER_JOBS`."""
    slots: int = max(1, context.defaultParallelism)
    on_one_machine = re.fullmatch(r"local(\[.*\])?", context.master)
    return slots if on_one_machine else max(slots, CLUSTER_JOBS)


class SparkIfNeeded:
    """A `Runner` that starts Spark if there is enough work. Otherwise, or if pyspark is missing, it uses this process.

    Args:
        name: the name of the application.
        configure: configures the builder of the session, as `sparklog.configure` does.
        settings: settings with the thresholds `spark_min_bytes` and `spark_min_files`.
        quiet: do not log the progress of work items.
    """

    def __init__(
        self,
        name: str,
        configure: Callable[[SparkSession.Builder], SparkSession.Builder],
        settings: Settings,
        *,
        quiet: bool = False,
    ) -> None:
        self._name = name
        self._configure = configure
        self._settings = settings
        self._quiet = quiet
        self._runner: Runner | None = None
        self._started: SparkSession | None = None

    def run(self, works: Sequence[Work]) -> Iterator[tuple[Work, WorkResult | SparklogError]]:
        if not works:
            return iter(())
        if self._runner is None and (reason := self._reason(works)):
            self._runner = self._start(reason)
        return (self._runner or self._in_process()).run(works)

    def _reason(self, works: Sequence[Work]) -> str:
        """Return the reason to start Spark for these work items. The reason is empty if there is not enough work."""
        if _active_session() is not None:
            return "a session is running"
        nbytes, files = sum(work.nbytes for work in works), sum(work.file_count for work in works)
        if nbytes >= self._settings.spark_min_bytes:
            return f"{size_text(nbytes)} to read, with spark.min.bytes={self._settings.spark_min_bytes}"
        if files >= self._settings.spark_min_files:
            return f"{files:,} files to read, with spark.min.files={self._settings.spark_min_files}"
        return ""

    def close(self) -> None:
        """Stop the session if this runner has started it."""
        if self._started is not None:
            self._started.stop()

    def _start(self, reason: str) -> Runner:
        try:
            from pyspark.errors import PySparkException
            from pyspark.sql import SparkSession
        except ImportError:
            return self._in_process()
        running = SparkSession.getActiveSession()
        if running is not None:
            return SparkRunner(running, quiet=self._quiet)
        log(f"{self._name}: starting Spark ({reason})")
        try:
            self._started = quiet_session(self._configure(SparkSession.builder), self._name)
        except PySparkException as error:
            # In most cases, Java is missing, which the work items do not need.
            log(f"failed to start Spark ({_cause(str(error))}); running one work item at a time in this process")
            return self._in_process()
        return SparkRunner(self._started, quiet=self._quiet)

    def _in_process(self) -> Runner:
        return InProcess() if self._quiet else InProcess(Meter)


@contextmanager
def tasks_if_submitted(
    name: str, configure: Callable[[SparkSession.Builder], SparkSession.Builder], *, quiet: bool = False
) -> Iterator[InProcess | SparkRunner]:
    """Yield a runner of Spark tasks if spark-submit has started this process. Otherwise, yield a runner that does the
    work in this process, without Java.

    A session that is started here is stopped at the end. The arguments are those of `SparkIfNeeded`.
    """
    if SUBMITTED not in os.environ:
        yield InProcess()
        return
    from pyspark.sql import SparkSession

    running = _active_session()
    spark = running or quiet_session(configure(SparkSession.builder), name)
    try:
        yield SparkRunner(spark, quiet=quiet)
    finally:
        if running is None:
            spark.stop()


def _active_session() -> SparkSession | None:
    pyspark: Any = sys.modules.get("pyspark.sql")
    return None if pyspark is None else pyspark.SparkSession.getActiveSession()


class _SparkJobs(Generic[T]):
    """The work items of a call of `run`: the threads that start them in order, and the queue of results."""

    def __init__(self, context: Any, works: Sequence[T], quiet: bool, env: Env) -> None:
        self._context = context
        self._works = works
        self._quiet = quiet
        self._env = env
        self._group = f"sparklog-{env.new_id()}"
        self._lock = ForkLock()
        self._pending = iter(range(len(works)))
        self._finished = 0
        self._stopped = False
        self._running: dict[int, int] = {}
        self._threads: list[threading.Thread] = []
        self._results: queue.SimpleQueue[tuple[int, Any]] = queue.SimpleQueue()

    def start(self, threads: int) -> None:
        from pyspark import InheritableThread

        for number in range(threads):
            # Spark stores the group and the description of a job per thread, but only for threads of this class.
            thread = InheritableThread(target=self._work, name=f"{self._group}-{number}", daemon=True)
            thread.start()
            self._threads.append(thread)

    def next(self) -> tuple[T, Any]:
        """Return the next finished work item. While waiting, log a line every `HEARTBEAT_MS`."""
        while True:
            try:
                index, result = self._results.get(timeout=HEARTBEAT_MS / 1000)
                break
            except queue.Empty:
                if not any(thread.is_alive() for thread in self._threads) and self._results.empty():
                    raise Unavailable(
                        "the threads that start Spark jobs have ended unexpectedly; run the job again"
                    ) from None
                if not self._quiet:
                    log(self._heartbeat(), self._env.wall_ms())
        self._finished += 1
        if isinstance(result, _Failure):
            raise result.error
        return self._works[index], result

    def stop(self) -> None:
        """Stop starting jobs and cancel running jobs. Wait up to `STOP_SECONDS` for the threads."""
        self._stopped = True
        for _ in range(STOP_SECONDS * 5):
            alive = [thread for thread in self._threads if thread.is_alive()]
            if not alive:
                return
            if self._running:
                # Cancel repeatedly, because a thread may be about to start a job that cannot be cancelled yet.
                self._context.cancelJobGroup(self._group)
            alive[0].join(0.2)

    def _heartbeat(self) -> str:
        with self._lock:
            running = sorted(self._running.items())
        now = self._env.boot_ms()
        names = [f"{self._works[index].title} ({(now - started) // 1000} s)" for index, started in running[:MAX_LISTED]]
        names += [f"{len(running) - MAX_LISTED} more"] if len(running) > MAX_LISTED else []
        return f"{self._finished} of {len(self._works)} work items finished, running: {', '.join(names)}"

    def _next_index(self) -> int | None:
        with self._lock:
            index = None if self._stopped else next(self._pending, None)
            if index is not None:
                self._running[index] = self._env.boot_ms()
            return index

    def _work(self) -> None:
        while (index := self._next_index()) is not None:
            try:
                result = self._run_job(self._works[index])
            except BaseException as error:  # noqa: BLE001 - the driver's thread raises it
                result = _Failure(error)
            with self._lock:
                del self._running[index]
            self._results.put((index, result))

    def _run_job(self, work: T) -> Any:
        from py4j.protocol import Py4JError
        from pyspark.errors import PySparkException

        self._context.setJobGroup(self._group, work.title)
        try:
            rows = self._context.parallelize((0,), 1)
            # `map` reads the row. If a row is not read, Spark ends the worker, and the next work item has to wait until
            # another worker has started, imported all modules and loaded the kernels.
            return rows.map(partial(_task, work, self._quiet)).collect()[0]
        except (Py4JError, PySparkException) as error:
            return Unavailable(f"the Spark task of '{work.title}' failed: {_cause(str(error))}; run the job again")


def _task(work: WorkItem, quiet: bool, _row: int) -> Any:
    progress: Progress = silent if quiet else Meter(work.title)
    try:
        done = work.run(progress)
        freeze_gc()
        return done
    except SparklogError as error:
        return error
    except MemoryError:
        return Unavailable(
            f"'{work.title}' ran out of memory; decrease log.cleaner.dedupe.buffer.size or increase "
            "spark.executor.memoryOverhead"
        )


def _cause(text: str) -> str:
    """Return the cause of a Spark failure, which is the last line before the stack trace of the JVM."""
    cause = "unknown cause"
    for line in text.splitlines():
        if line.lstrip().startswith("at ") or line.startswith("Driver stacktrace"):
            break
        cause = line.strip() or cause
    return cause if len(cause) <= 500 else cause[:497] + "..."
