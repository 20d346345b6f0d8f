"""Work items, which the driver sends to tasks. Each task returns a `WorkResult`, which the driver commits.

The driver plans work items from a snapshot. A `Work` contains everything that its task needs, so the task does not open
the root. The files that a task writes are not referenced by commits yet. The driver commits each `WorkResult` as one
rewrite, so a work item is applied atomically. If a task runs twice, it leaves unreferenced files, which the vacuum
deletes.

Tasks print their progress every few seconds, and the driver prints a line for each finished work item. With a local
master, the lines of tasks are printed to the console; on a cluster, they are in the executor logs.

    2026-01-31T12:00:00.000Z compact orders-3: 1,204,224 records, 153.1 MB so far (1.20 M records/s, 152.6 MB/s)
    2026-01-31T12:00:03.000Z compact orders-3: done in 4.1 s: 5,000,000 -> 500,000 records, 630.0 MB -> 63.0 MB (...)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from sparklog.common.units import rates, size_text
from sparklog.errors import SparklogError
from sparklog.log.journal.clocks import SYSTEM, Env, reading_clock_ms
from sparklog.log.state.commit import Op
from sparklog.log.state.configs import TopicConfigs
from sparklog.log.state.rewrites import Rewrite
from sparklog.log.state.root_defaults import ID, RootDefaults
from sparklog.log.state.slices import FileSlices
from sparklog.maintenance.throttle import UNLIMITED
from sparklog.output import log
from sparklog.storage.store import Store

if TYPE_CHECKING:
    from sparklog.log.topic.root import Root  # only for type checkers, because tasks do not open a root


def store_clock_ms(store: Store, env: Env, *, dry_run: bool) -> int:
    """Return the time of the store's clock in ms since the epoch. If a dry run cannot write to the store, return the
    time of this host's clock.
    """
    return reading_clock_ms(store, env) if dry_run else store.now_ms()


Progress = Callable[[int, int], None]
"""A function that a task calls periodically with the records and bytes read since the last call."""


def silent(records: int, nbytes: int) -> None:
    """Do nothing. This is a `Progress` that prints nothing."""


@dataclass(frozen=True)
class Settings:
    """Settings of a maintenance run, except topic configs. See `sparklog.maintenance.properties`."""

    now_ms: int  # reference time for ages and delete horizons
    defaults: Mapping[str, str] = field(default_factory=dict)  # topic configs for topics that do not set them
    dedupe_buffer_bytes: int = 128 << 20
    dedupe_load_factor: float = 0.9
    producer_expiration_ms: int = 86_400_000
    offsets_retention_ms: int = 7 * 86_400_000
    io_bytes_per_second: float = UNLIMITED
    spark_min_bytes: int = 256 << 20
    spark_min_files: int = 10_000
    root: RootDefaults = field(default_factory=lambda: RootDefaults(ID))  # root defaults, which `defaults` override

    def of_root(self, root: Root) -> Settings:
        """Return these settings with the latest root defaults. Also copy defaults that releases up to 0.12 have
        written.
        """
        return replace(self, root=root.engine.defaults.read_for_job())

    def configs_of(self, topic: str, configs: TopicConfigs) -> TopicConfigs:
        """Return the configs of a topic.

        Configs that the topic does not set are taken from the defaults of the run, the root defaults or Kafka's
        defaults, in this order.
        """
        return TopicConfigs({**self.defaults, **configs.explicit}, self.root.of_topic(topic))


@dataclass(frozen=True, slots=True)
class WorkReport:
    """The changes by a work item to a partition. Sizes are in bytes. `dirty_ratio` is None for work other than
    compaction.
    """

    action: str
    topic: str
    partition: int
    records_before: int
    records_after: int
    bytes_before: int
    bytes_after: int
    tombstones_kept: int = 0
    tombstones_dropped: int = 0
    keyless_dropped: int = 0
    dirty_ratio: float | None = None
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class WorkResult:
    """Files that a task has written, to be committed as one rewrite. `files` contain base offsets."""

    rewrites: tuple[Rewrite, ...]
    files: tuple[FileSlices, ...]
    reports: tuple[WorkReport, ...]


class WorkItem(Protocol):
    """A picklable work item with a result of any type."""

    @property
    def title(self) -> str:
        """The name in progress lines and errors, for example `compact orders-3`."""

    @property
    def nbytes(self) -> int:
        """The number of bytes to read. Larger work items start first."""

    @property
    def file_count(self) -> int:
        """The number of files to read or delete."""

    def run(self, progress: Progress = silent) -> Any:
        """Do the work and return the result. If a `SparklogError` is raised, it is the result."""


T = TypeVar("T", bound=WorkItem)


class Work(WorkItem, Protocol):
    """A work item that changes a topic. `op` is the operation of its commit: MERGE, SEAL or COMPACT."""

    @property
    def op(self) -> Op: ...
    @property
    def topic(self) -> str: ...
    @property
    def topic_id(self) -> str: ...
    @property
    def partitions(self) -> tuple[int, ...]: ...

    def run(self, progress: Progress = silent) -> WorkResult:
        """Read the inputs, write files and return them. If an error is raised, no commit references the files."""


class Runner(Protocol):
    """Runs work items in this process or in Spark tasks."""

    def run(self, works: Sequence[Work]) -> Iterator[tuple[Work, WorkResult | SparklogError]]:
        """Start the work items in order, several of them in parallel, and yield each work item with its result."""


class InProcess:
    """Runs work items in this thread, one at a time. Used for small roots, in tests, and if Spark is not installed."""

    parallelism = 1

    def __init__(self, progress: Callable[[str], Progress] = lambda title: silent) -> None:
        self._progress = progress

    def run(self, works: Sequence[T]) -> Iterator[tuple[T, Any]]:
        for work in works:
            try:
                yield work, work.run(self._progress(work.title))
            except SparklogError as error:
                yield work, error


class CountingRunner:
    """A `Runner` that delegates to another runner and reports progress.

    `report` is called with the numbers of finished and planned work items and with their bytes.
    """

    def __init__(self, runner: Runner, report: Callable[[int, int, int, int], object]) -> None:
        self._runner = runner
        self._report = report
        self._finished = self._planned = self._finished_bytes = self._planned_bytes = 0

    def run(self, works: Sequence[Work]) -> Iterator[tuple[Work, WorkResult | SparklogError]]:
        self._planned += len(works)
        self._planned_bytes += sum(work.nbytes for work in works)
        self._report_progress()
        for work, result in self._runner.run(works):
            yield work, result
            # The caller has committed the result before it requests the next result.
            self._finished += 1
            self._finished_bytes += work.nbytes
            self._report_progress()

    def _report_progress(self) -> None:
        self._report(self._finished, self._planned, self._finished_bytes, self._planned_bytes)


PRINT_INTERVAL_MS = 5_000


class Meter:
    """A `Progress` that prints totals every few seconds. Each task creates a `Meter` for its work item."""

    def __init__(self, title: str, env: Env = SYSTEM) -> None:
        self._title = title
        self._env = env
        self._started = self._printed = env.boot_ms()
        self.records = 0
        self.nbytes = 0

    def __call__(self, records: int, nbytes: int) -> None:
        self.records += records
        self.nbytes += nbytes
        now = self._env.boot_ms()
        if now - self._printed >= PRINT_INTERVAL_MS:
            self._printed = now
            speed = rates(self.records, self.nbytes, (now - self._started) / 1000)
            log(
                f"{self._title}: {self.records:,} records, {size_text(self.nbytes)} so far ({speed})",
                self._env.wall_ms(),
            )


def log_result(work: Work, result: WorkResult | SparklogError) -> None:
    """Log the result of a work item on the driver."""
    if isinstance(result, SparklogError):
        log(f"{work.title}: failed: {result} [{result.code}]")
    elif not result.reports:
        log(f"{work.title}: nothing to do")
    else:
        reports = result.reports
        records = sum(report.records_before for report in reports)
        nbytes = sum(report.bytes_before for report in reports)
        sizes = f"{size_text(nbytes)} -> {size_text(sum(report.bytes_after for report in reports))}"
        change = f"{records:,} -> {sum(report.records_after for report in reports):,} records, {sizes}"
        seconds = sum(report.seconds for report in reports)
        log(f"{work.title}: done in {seconds:.1f} s: {change} ({rates(records, nbytes, seconds)})")
