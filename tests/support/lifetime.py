"""The life of a topic by a clock that is moved: one writer, one reader, both jobs by the schedule of conf/crontab.

The log and the jobs are the real ones. The store is memory with the ways of a bucket, and counts requests; nothing but
appends, polls and jobs happens. Figures are taken by spells, of an hour by default.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from sparklog.compaction.run import compact_root
from sparklog.doctor.costs import Requests
from sparklog.groups.consumer import consumer
from sparklog.limits import Limits
from sparklog.log.topic.root import Root
from sparklog.maintenance.outcomes import COMPACT, RETAIN, Recording
from sparklog.maintenance.work_items import InProcess, Settings
from sparklog.retention.retain import retain_root
from sparklog.storage.memory import MemoryStore
from sparklog.storage.store import key_kind
from sparklog.testing.world import DAY_MS, HOUR_MS, MINUTE_MS, World
from sparklog.testing.wrapper_stores import CountingStore
from tests.support.counted_root import Bucket

JOBS: dict[str, tuple[int, Callable[[Root, Settings], Any]]] = {
    COMPACT: (7 * MINUTE_MS, lambda root, settings: compact_root(root, settings, InProcess())),
    RETAIN: (37 * MINUTE_MS, lambda root, settings: retain_root(root, settings)),
}
BILLED = {"create": "puts", "overwrite": "puts", "writer": "puts", "get": "gets", "stat": "gets"}


@dataclass
class Spell:
    """Figures of a spell. Times are CPU milliseconds of the thread; `bytes` by `metadata` and `data`.

    Of a commit with records in it the document is metadata. `resident_mib` is without the objects of the store.
    """

    appends: list[float] = field(default_factory=list)
    polls: list[float] = field(default_factory=list)
    requests: Counter[str] = field(default_factory=Counter)
    by_work: dict[str, Requests] = field(default_factory=dict)
    objects: int = 0
    bytes: dict[str, int] = field(default_factory=dict)
    resident_mib: float = 0.0

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
    configs: dict[str, object] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.world = World(sleep_takes_time=False, limits=self.limits)
        self.memory: MemoryStore = Bucket(self.world.clock)
        if self.limits is not None:
            self.memory.limits = self.limits
        self.store = CountingStore(self.memory)
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

    def _poll(self, reader: Any) -> None:
        self.read += sum(batch.num_rows for batch in reader.poll(0))

    def _jobs(self, before_ms: int) -> None:
        """Run what is due by cron between two moments, each as a process of its own."""
        for job, (offset_ms, run) in JOBS.items():
            offset_ms = offset_ms * self.job_ms // HOUR_MS
            turns = [(now - self._start_ms - offset_ms) // self.job_ms for now in (before_ms, self.world.now_ms)]
            if turns[0] < turns[1]:
                self._counted(job, [], lambda job=job, run=run: self._run(job, run))  # type: ignore[misc]

    def _run(self, job: str, run: Callable[[Root, Settings], Any]) -> None:
        root = self.world.root(self.store)
        settings = Settings(self.world.now_ms)
        reports = Recording[Any](root, job, settings).run(lambda: run(root, settings))
        failures = [failure for report in reports for failure in report.failures]
        if failures:
            raise AssertionError(f"{job}: {failures}")

    def _counted(self, work: str, spent: list[float], action: Callable[[], object]) -> None:
        self.store.reset()
        begun = time.thread_time()
        action()
        spent.append((time.thread_time() - begun) * 1000)
        self.spell.requests.update(self.store.counts)
        self.spell.by_work[work] = self.spell.by_work.get(work, Requests()) + billed(self.store)

    def _end_of_spell(self) -> Spell:
        ended, self.spell = self.spell, Spell()
        sizes = Counter({"metadata": 0, "data": 0})
        for item in self.memory.list(""):
            ended.objects += 1
            documents = len(self.memory.get(item.key).partition(b"\n")[0]) if key_kind(item.key) == "commit" else 0
            is_data = "/append/" in item.key or "/sealed/" in item.key
            metadata = documents or (0 if is_data else item.size)
            sizes.update(metadata=metadata, data=item.size - metadata)
        ended.bytes = dict(sizes)
        ended.resident_mib = int(Path("/proc/self/statm").read_text().split()[1]) * 4096 / 2**20
        ended.resident_mib -= sizes.total() / 2**20
        return ended

    def opening(self) -> tuple[Requests, int, float]:
        """Open the topic as a new process, and load its slices.

        Returns requests, round trips (commits come 16 at once), CPU milliseconds.
        """
        root_store = CountingStore(self.memory)
        begun = time.thread_time()
        snapshot = self.world.root(root_store).topic("events").log.snapshot()
        len(snapshot.slices)
        spent = (time.thread_time() - begun) * 1000
        commits = root_store.by_kind["get", "commit"]
        trips = sum(root_store.counts.values()) - commits + -(-commits // 16)
        return billed(root_store), trips, spent


def billed(store: CountingStore) -> Requests:
    """Requests since the last reset as a store bills them; a listing counts one for each 1,000 keys elsewhere."""
    counts = Counter[str]()
    for verb, made in store.counts.items():
        counts[BILLED.get(verb, "lists" if verb.startswith("list") else "free")] += made
    return Requests(counts["puts"], counts["gets"], counts["lists"])
