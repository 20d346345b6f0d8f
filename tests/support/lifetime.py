"""The life of a topic by a clock that is moved: one writer, one reader, both jobs by the schedule of conf/crontab.

The log and the jobs are the real ones. The store is memory with the ways of a bucket, and counts requests; nothing but
appends, polls and jobs happens. Figures are taken by spells, of an hour by default. With a folder `disk` objects are
files there and each job is a process, so that what this process holds is what a writer and a reader hold.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import resource
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa

from sparklog.clients.consumer.consumer import consumer
from sparklog.compaction.run import compact_root
from sparklog.doctor.costs import CLOCK, COMMIT, INLINE_BATCH, MONTH_DAYS, Requests, Workload
from sparklog.limits import Limits
from sparklog.log.topic.root import Root
from sparklog.maintenance.job_history import COMPACT, RETAIN, RunRecorder
from sparklog.maintenance.leases import job_lease
from sparklog.maintenance.work_items import InProcess, Settings, store_clock_ms
from sparklog.retention.retain import retain_root
from sparklog.storage.local import LocalStore
from sparklog.storage.store import Store, key_kind
from sparklog.testing.world import DAY_MS, HOUR_MS, MINUTE_MS, World
from sparklog.testing.wrapper_stores import CountingStore
from tests.support.counted_root import Bucket
from tests.support.inline_bytes import inline_records_of

JOBS: dict[str, tuple[int, Callable[[Root, Settings], Any]]] = {
    COMPACT: (7 * MINUTE_MS, lambda root, settings: compact_root(root, settings, InProcess())),
    RETAIN: (37 * MINUTE_MS, lambda root, settings: retain_root(root, settings)),
}
T = TypeVar("T")
LINES = {"append": ("append",), "poll": ("poll",), "maintain": (COMPACT, RETAIN)}
"""Lines of the bill, and the work of each."""
BILLED = {"create": "puts", "overwrite": "puts", "writer": "puts", "get": "gets", "stat": "gets"}


class DiskBucket(LocalStore):
    """A bucket's ways, with objects as files that a clock of one's own stamps: no process holds them."""

    parallel_reads = 16

    def __init__(self, path: str, clock: Callable[[], int]) -> None:
        super().__init__(path, durable=False)
        self._clock = clock

    def now_ms(self) -> int:
        return self._clock()

    def _publish(self, temporary: str, path: str, key: str) -> bool:
        seconds = self._clock() / 1000
        os.utime(temporary, (seconds, seconds))
        return super()._publish(temporary, path, key)

    def delete_many(self, keys: Iterable[str]) -> None:
        for key in keys:
            self.delete(key)


def apart(action: Callable[[], T]) -> T:
    """Return what `action` returns in a process of its own, forked from this one."""
    fork = multiprocessing.get_context("fork")
    ours, theirs = fork.Pipe(duplex=False)
    child = fork.Process(target=lambda: theirs.send(action()))
    child.start()
    # One that dies closes its end, the last one: an error here.
    theirs.close()
    answer: T = ours.recv()
    child.join()
    return answer


@dataclass
class Spell:
    """Figures of a spell. Times are CPU milliseconds of the thread; `bytes` by `metadata` and `data`.

    Of a commit all but its records is metadata. `resident_mib` is without the objects of the store,
    `job_mib` what a job took besides, at most, where it is a process.
    """

    appends: list[float] = field(default_factory=list)
    polls: list[float] = field(default_factory=list)
    requests: Counter[str] = field(default_factory=Counter)
    by_work: dict[str, Requests] = field(default_factory=dict)
    objects: int = 0
    bytes: dict[str, int] = field(default_factory=dict)
    resident_mib: float = 0.0
    job_mib: dict[str, float] = field(default_factory=dict)

    def p95(self, what: str) -> float:
        return float(np.quantile(getattr(self, what), 0.95))


@dataclass
class Lifetime:
    """A topic `events`.

    `records` a commit; `interval_ms` between commits; the reader polls after `poll_every` of them; `job_ms`: between
    two runs of a job.
    """

    partitions: int = 16
    interval_ms: int = 1_000
    records: int = 64
    poll_every: int = 1
    job_ms: int = HOUR_MS
    retention_ms: int = 7 * DAY_MS
    limits: Limits | None = None
    disk: str = ""
    configs: dict[str, object] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.world = World(limits=self.limits)
        self.inner: Store = DiskBucket(self.disk, self.world.clock) if self.disk else Bucket(self.world.clock)
        if self.limits is not None:
            self.inner.limits = self.limits
        self.store = CountingStore(self.inner)
        self.root = self.world.root(self.store)
        configs = {"retention.ms": self.retention_ms, **self.configs}
        self.topic = self.root.create_topic("events", partitions=self.partitions, configs=configs)
        self.spell = Spell()
        self.read = self.written = 0
        self._start_ms = self.world.now_ms
        self._table = pa.table(
            {"key": [b"key-%08d" % n for n in range(self.records)], "value": [b"v" * 100] * self.records}
        )

    def live(self, commits: int, spell_commits: int) -> Iterator[Spell]:
        """Make so many commits; yield after each spell of them."""
        reader = consumer(self.world.root(self.store), topics="events", auto_offset_reset="earliest")
        with closing(reader):
            for number in range(1, commits + 1):
                self._counted("append", self.spell.appends, lambda: self.topic.append(self._table))
                self.written += self.records
                if number % self.poll_every == 0:
                    self._counted("poll", self.spell.polls, lambda: self._poll(reader))
                before_ms = self.world.now_ms
                self.world.advance(self.interval_ms)
                self._jobs(before_ms)
                if number % spell_commits == 0:
                    yield self._end_of_spell()

    def workload(self) -> Workload:
        """Return what `doctor --cost` is asked for such a life; the newest commit is as large as all."""
        newest = max(item.key for item in self.inner.list("events/_log/0"))
        stored = len(inline_records_of(self.inner.get(newest)))
        seconds = self.interval_ms / 1000
        return Workload(
            rate=max(stored, 1) / seconds / 1e6, interval=seconds, partitions=self.partitions, tasks=1, readers=1,
            poll=self.interval_ms * self.poll_every, retention=self.retention_ms / DAY_MS,
            jobs=self.job_ms / HOUR_MS,
        )  # fmt: skip

    def counted_month(self, day: Spell) -> dict[str, Requests]:
        """Return the requests of a month of such days, by line of the bill.

        The bill is for micro-batches of Spark, whose driver looks for what a writer of Python knows.
        """
        month = {name: _sum(day.by_work, works) * MONTH_DAYS for name, works in LINES.items()}
        looks = INLINE_BATCH + COMMIT * -1
        return {**month, "append": month["append"] + looks * (len(day.appends) * MONTH_DAYS)}

    def _poll(self, reader: Any) -> None:
        self.read += sum(batch.num_rows for batch in reader.poll(0))

    def _jobs(self, before_ms: int) -> None:
        """Run what is due by cron between two moments, each as a process of its own."""
        for job, (offset_ms, run) in JOBS.items():
            offset_ms = offset_ms * self.job_ms // HOUR_MS
            turns = [(now - self._start_ms - offset_ms) // self.job_ms for now in (before_ms, self.world.now_ms)]
            if turns[0] < turns[1]:
                do = self._run_apart if self.disk else self._run
                self._counted(job, [], lambda do=do, job=job, run=run: do(job, run))  # type: ignore[misc]

    def _run(self, job: str, run: Callable[[Root, Settings], Any]) -> None:
        root = self.world.root(self.store)
        settings = Settings(store_clock_ms(self.store, root.env, dry_run=False))
        with job_lease(root, job, (), enabled=True):
            reports = RunRecorder[Any](root, job, settings).run(lambda: run(root, settings))
        failures = [failure for report in reports for failure in report.failures]
        if failures:
            raise AssertionError(f"{job}: {failures}")

    def _run_apart(self, job: str, run: Callable[[Root, Settings], Any]) -> None:
        """Run a job in a process of its own; what it asked of the store counts here."""

        def process() -> tuple[Counter[str], int, float]:
            before_mib = memory_mib()
            self._run(job, run)
            most_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
            return self.store.counts, self.world.processes, most_mib - before_mib

        counts, self.world.processes, most_mib = apart(process)
        self.store.counts.update(counts)
        self.spell.job_mib[job] = max(most_mib, self.spell.job_mib.get(job, 0))

    def _counted(self, work: str, spent: list[float], action: Callable[[], object]) -> None:
        self.store.reset()
        begun = time.thread_time()
        action()
        spent.append((time.thread_time() - begun) * 1000)
        self.spell.requests.update(self.store.counts)
        self.spell.by_work[work] = self.spell.by_work.get(work, Requests()) + billed(self.store)

    def _end_of_spell(self) -> Spell:
        ended, self.spell = self.spell, Spell()
        sizes, ended.objects = apart(self._sizes) if self.disk else self._sizes()
        ended.bytes = dict(sizes)
        gc.collect()
        ended.resident_mib = memory_mib() - (0 if self.disk else sizes.total() / 2**20)
        return ended

    def _sizes(self) -> tuple[Counter[str], int]:
        """Return bytes by kind, and the number of objects."""
        sizes, objects = Counter({"metadata": 0, "data": 0}), 0
        for item in self.inner.list(""):
            objects += 1
            is_data = "/append/" in item.key or "/sealed/" in item.key
            metadata = 0 if is_data else item.size
            if key_kind(item.key) == "commit":
                metadata -= len(inline_records_of(self.inner.get(item.key)))
            sizes.update(metadata=metadata, data=item.size - metadata)
        return sizes, objects

    def opening(self) -> tuple[Requests, int, float]:
        """Open the topic as a new process, and load its slices.

        Returns requests, round trips (commits come 16 at once), CPU milliseconds.
        """
        root_store = CountingStore(self.inner)
        begun = time.thread_time()
        snapshot = self.world.root(root_store).topic("events").log.snapshot()
        len(snapshot.slices)
        spent = (time.thread_time() - begun) * 1000
        commits = root_store.by_kind["get", "commit"]
        trips = sum(root_store.counts.values()) - commits + -(-commits // 16)
        return billed(root_store), trips, spent


def _sum(by_work: Mapping[str, Requests], works: Iterable[str]) -> Requests:
    return sum((by_work.get(work, Requests()) for work in works), Requests())


def memory_mib() -> float:
    """Return the memory of this process that is in use."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() / 2**20


def billed(store: CountingStore) -> Requests:
    """Requests since the last reset as a store bills them; a listing counts one for each 1,000 keys elsewhere."""
    counts = Counter[str]()
    for verb, made in store.counts.items():
        counts[BILLED.get(verb, "lists" if verb.startswith("list") else "free")] += made
    # A bucket has no clock to ask: an object is written, and its time read.
    return Requests(counts["puts"], counts["gets"], counts["lists"]) + CLOCK * store.counts["now_ms"]
