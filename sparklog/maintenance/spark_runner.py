"""Runs work in Spark tasks: one Spark job of one task per piece, several jobs at once.

So each result can be committed as soon as it is finished, and a piece that fails takes nothing else with it. They are
begun in the order given: on one machine as many at once as it has task slots. On a cluster more: by what waits there
Spark asks for executors.

A task answers with its error as a value: Spark sees a task that succeeded, tries nothing again that would fail again,
and the driver has the error itself, not the text of two stack traces. What kills a task (a lost executor, memory, a
fault of ours) is Spark's failure, which comes as `Unavailable` naming the piece.

Needs a session with a SparkContext: `spark-submit`, not Spark Connect. pyspark is imported when it is first used.
"""

from __future__ import annotations

import logging
import queue
import re
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from sparklog.common.units import size_text
from sparklog.errors import SparklogError, Unavailable
from sparklog.format.kernels.kernel_choice import choice
from sparklog.log.journal.clocks import SYSTEM, Env
from sparklog.maintenance.work_items import InProcess, Meter, Progress, Runner, Settings, Work, WorkResult, silent
from sparklog.output import log
from sparklog.storage.fork_safety import ForkLock, freeze_gc

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


HEARTBEAT_MS = 30_000
STOP_SECONDS = 60
CLUSTER_JOBS = 64
"""So many wait for executors that are still to come, each with a thread of the driver."""
NAMED = 8
"""Pieces that a line names while they run."""
_Answer = tuple[int, "WorkResult | SparklogError | BaseException"]


def hide_interrupts() -> None:
    """Keep the stack of an interrupt out of the log: Py4J writes it, by the root logger."""
    logging.getLogger().addFilter(_no_interrupt)


def _no_interrupt(record: logging.LogRecord) -> bool:
    return record.exc_info is None or record.exc_info[0] is not KeyboardInterrupt


def quiet_session(builder: SparkSession.Builder, name: str, log_level: str = "WARN") -> SparkSession:
    """Start Spark without its log of each step, and with Python's own Ctrl-C.

    Spark's handler would ask the JVM to cancel all jobs, in the middle of a call that waits for the JVM's answer. And a
    Ctrl-C while the JVM starts would leave it behind, and nothing would end it: so it counts once Spark runs.
    """
    # spark-submit logs every step of every task, and draws a bar over it: our own lines could not be found in that.
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
    """A `Runner` over a Spark session. `parallelism`: how many jobs at once; None: see `_at_once`."""

    def __init__(
        self, spark: SparkSession, *, parallelism: int | None = None, quiet: bool = False, env: Env = SYSTEM
    ) -> None:
        self._context: Any = spark.sparkContext
        self._parallelism = parallelism
        self._quiet = quiet
        self._env = env

    def run(self, works: Sequence[Work]) -> Iterator[tuple[Work, WorkResult | SparklogError]]:
        """Run all. Closed early, it cancels what still runs."""
        if not works:
            return
        batch = _SparkJobs(self._context, works, self._quiet, self._env)
        try:
            batch.start(min(self._parallelism or _at_once(self._context), len(works)))
            for _ in works:
                yield batch.next()
        finally:
            batch.stop()


def _at_once(context: Any) -> int:
    """Return how many jobs to begin at once: as many as there are slots, and on a cluster at least `CLUSTER_JOBS`."""
    slots: int = max(1, context.defaultParallelism)
    on_one_machine = re.fullmatch(r"local(\[.*\])?", context.master)
    return slots if on_one_machine else max(slots, CLUSTER_JOBS)


class SparkIfNeeded:
    """A `Runner` that starts Spark once it gets enough work; before that, and without pyspark, it uses this process.

    Args:
        name: name of the application.
        configure: configures the session's builder, as `sparklog.configure` does.
        settings: settings, with the thresholds `spark_min_bytes` and `spark_min_files`.
        quiet: print no log lines about work in progress.
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
        """Return the reason to start Spark for these work items; empty if there is not enough work."""
        pyspark = sys.modules.get("pyspark.sql")
        if pyspark is not None and pyspark.SparkSession.getActiveSession() is not None:
            return "a session is running"
        nbytes, files = sum(work.nbytes for work in works), sum(work.file_count for work in works)
        if nbytes >= self._settings.spark_min_bytes:
            return f"{size_text(nbytes)} to read, and spark.min.bytes={self._settings.spark_min_bytes}"
        if files >= self._settings.spark_min_files:
            return f"{files:,} files, and spark.min.files={self._settings.spark_min_files}"
        return ""

    def close(self) -> None:
        """Stop the session, if it was started here."""
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
        log(f"{self._name}: starting Spark: {reason}")
        try:
            self._started = quiet_session(self._configure(SparkSession.builder), self._name)
        except PySparkException as error:
            # No Java, most of the time. What is to be done needs none.
            log(f"Spark cannot be started ({_cause(str(error))}): working in this process, one piece after the other")
            return self._in_process()
        return SparkRunner(self._started, quiet=self._quiet)

    def _in_process(self) -> Runner:
        return InProcess() if self._quiet else InProcess(Meter)


class _SparkJobs:
    """The pieces of one call of `run`: threads that take them in order, and a queue of answers."""

    def __init__(self, context: Any, works: Sequence[Work], quiet: bool, env: Env) -> None:
        self._context = context
        self._works = works
        self._quiet = quiet
        self._env = env
        self._group = f"sparklog-{env.new_id()}"
        self._lock = ForkLock()
        self._waiting = iter(range(len(works)))
        self._finished = 0
        self._stopped = False
        self._running: dict[int, int] = {}
        self._threads: list[threading.Thread] = []
        self._answers: queue.SimpleQueue[_Answer] = queue.SimpleQueue()

    def start(self, threads: int) -> None:
        from pyspark import InheritableThread

        for number in range(threads):
            # Spark keeps a job's group and description per thread, and only for threads of this kind.
            thread = InheritableThread(target=self._work, name=f"{self._group}-{number}", daemon=True)
            thread.start()
            self._threads.append(thread)

    def next(self) -> tuple[Work, WorkResult | SparklogError]:
        """Return the next piece that is finished; while none is, a line now and then names those that run."""
        while True:
            try:
                index, answer = self._answers.get(timeout=HEARTBEAT_MS / 1000)
                break
            except queue.Empty:
                if not any(thread.is_alive() for thread in self._threads) and self._answers.empty():
                    raise Unavailable("the threads that start Spark's jobs ended before the work: try again") from None
                if not self._quiet:
                    log(self._heartbeat(), self._env.wall_ms())
        self._finished += 1
        if not isinstance(answer, (WorkResult, SparklogError)):
            raise answer
        return self._works[index], answer

    def stop(self) -> None:
        """Begin nothing more, cancel what runs; returns once no thread is left, or after `STOP_SECONDS`."""
        self._stopped = True
        for _ in range(STOP_SECONDS * 5):
            alive = [thread for thread in self._threads if thread.is_alive()]
            if not alive:
                return
            if self._running:
                # Again and again: a job that a thread was just about to begin is not there to be cancelled yet.
                self._context.cancelJobGroup(self._group)
            alive[0].join(0.2)

    def _heartbeat(self) -> str:
        with self._lock:
            running = sorted(self._running.items())
        now = self._env.boot_ms()
        names = [f"{self._works[index].title} ({(now - begun) // 1000} s)" for index, begun in running[:NAMED]]
        names += [f"{len(running) - NAMED} more"] if len(running) > NAMED else []
        return f"{self._finished} of {len(self._works)} pieces finished, running: {', '.join(names)}"

    def _take(self) -> int | None:
        with self._lock:
            index = None if self._stopped else next(self._waiting, None)
            if index is not None:
                self._running[index] = self._env.boot_ms()
            return index

    def _work(self) -> None:
        while (index := self._take()) is not None:
            answer: WorkResult | SparklogError | BaseException
            try:
                answer = self._job(self._works[index])
            except BaseException as error:  # noqa: BLE001 - the driver's thread raises it
                answer = error
            with self._lock:
                del self._running[index]
            self._answers.put((index, answer))

    def _job(self, work: Work) -> WorkResult | SparklogError:
        from py4j.protocol import Py4JError
        from pyspark.errors import PySparkException

        self._context.setJobGroup(self._group, work.title)
        try:
            rows = self._context.parallelize((0,), 1)
            # `map` reads the row. Spark ends a worker that leaves one unread, and the next piece would wait for another
            # to start, to import everything and to load the kernels.
            answer = rows.map(partial(_task, work, self._quiet)).collect()[0]
        except (Py4JError, PySparkException) as error:
            return Unavailable(f"the Spark task of '{work.title}' failed: {_cause(str(error))}; run it again")
        return cast("WorkResult | SparklogError", answer)


def _task(work: Work, quiet: bool, _row: int) -> WorkResult | SparklogError:
    progress: Progress = silent if quiet else Meter(work.title)
    try:
        done = work.run(progress)
        freeze_gc("work", choice.loaded)
        return done
    except SparklogError as error:
        return error
    except MemoryError:
        return Unavailable(
            f"'{work.title}' ran out of memory; lower log.cleaner.dedupe.buffer.size, or give Spark's executors more "
            "spark.executor.memoryOverhead"
        )


def _cause(text: str) -> str:
    """Return the line of a Spark failure that says why: the last above the JVM's stack, in Python's trace its last."""
    cause = "no reason given"
    for line in text.splitlines():
        if line.lstrip().startswith("at ") or line.startswith("Driver stacktrace"):
            break
        cause = line.strip() or cause
    return cause if len(cause) <= 500 else cause[:497] + "..."
