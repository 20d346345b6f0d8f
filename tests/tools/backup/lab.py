"""A root in memory with a clock that stands still, and what is done with it: append, rewrite, retain, read it all."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

import pyarrow as pa

from sparklog.compaction.run import compact_topic
from sparklog.log.journal.env import Env
from sparklog.log.state.view import READ_UNCOMMITTED
from sparklog.log.topic.root import Root, open_root
from sparklog.log.topic.topic import Topic
from sparklog.maintenance.work import InProcess, Settings
from sparklog.retention.retain import RetainReport, retain_root
from sparklog.storage.faulty import Call, Fault, FaultKind
from sparklog.storage.memory import MemoryStore
from sparklog.storage.store import Store
from sparklog.transactions.listing import abort_transaction, list_transactions

MINUTE = 60_000
HOUR = 60 * MINUTE
DAY = 24 * HOUR
EPOCH_MS = 1_700_000_000_000
COLUMNS = ("partition", "offset", "key", "value", "timestamp")
Rows = dict[tuple[int, int], tuple[bytes | None, bytes | None, int]]


class Lab:
    """Stores that share one clock, and roots opened in them as new processes do."""

    def __init__(self, seed: int = 0) -> None:
        self.now_ms = EPOCH_MS
        self.seed = seed
        self.opened = 0
        self.store = self.another("source")

    def another(self, name: str) -> MemoryStore:
        """One more place."""
        return MemoryStore(lambda: self.now_ms, f"memory://{name}-{self.seed}")

    def env(self) -> Env:
        """A process of its own."""
        self.opened += 1
        return Env(
            wall_ms=lambda: self.now_ms,
            boot_ms=lambda: self.now_ms,
            sleep=self.sleep,
            random=random.Random(f"{self.seed}/{self.opened}"),
        )

    def sleep(self, seconds: float) -> None:
        self.now_ms += round(seconds * 1000)

    def root(self, store: Store | None = None) -> Root:
        """A new process' view of the root."""
        return open_root(self.store if store is None else store, create=True, env=self.env())

    def retain(self, store: Store | None = None) -> list[RetainReport]:
        """Retention and vacuum over all topics; nothing may fail."""
        reports = retain_root(self.root(store), Settings(now_ms=self.now_ms))
        assert not [failure for report in reports for failure in report.failures]
        return reports

    def compact(self, name: str, store: Store | None = None, *, roll: bool = True) -> None:
        """Seal, merge and clean a topic; nothing may fail."""
        report = compact_topic(self.root(store).topic(name), Settings(now_ms=self.now_ms), InProcess(), roll=roll)
        assert not report.failures


def batch(
    values: Sequence[bytes | None], *, keys: Sequence[bytes | None] | None = None, partition: int = 0
) -> pa.Table:
    """Rows for one partition."""
    return pa.table(
        {
            "key": pa.array([None] * len(values) if keys is None else list(keys), pa.binary()),
            "value": pa.array(list(values), pa.binary()),
            "partition": pa.array([partition] * len(values), pa.int32()),
            "timestamp": pa.array([EPOCH_MS] * len(values), pa.int64()),
        }
    )


def rows_of(topic: Topic, *, uncommitted: bool = False) -> Rows:
    """(partition, offset) -> key, value, timestamp of all a reader sees."""
    found: Rows = {}
    scan = topic.scan(columns=COLUMNS, **({"isolation": READ_UNCOMMITTED} if uncommitted else {}))
    for part in scan:
        stamps = part.column("timestamp").cast(pa.int64()).to_pylist()
        columns = [part.column(name).to_pylist() for name in ("partition", "offset", "key", "value")]
        for p, offset, key, value, stamp in zip(*columns, stamps, strict=True):
            found[p, offset] = (key, value, stamp)
    return found


def contents(root: Root) -> Mapping[str, Rows]:
    """All topics of a root."""
    return {name: rows_of(root.topic(name)) for name in root.topics()}


def end_what_is_open(root: Root) -> None:
    """Abort what is undecided: in one topic and not in another it holds back what was committed later."""
    for standing in list_transactions(root):
        if standing.is_open:
            abort_transaction(root, standing.id)
    for name in root.topics():
        assert not root.topic(name).head().open


class Dying:
    """The process dies at the first call that fits, and makes none after it."""

    def __init__(self, fits: object) -> None:
        self.fits = fits
        self.dead = False

    def __call__(self, call: Call) -> Fault | None:
        self.dead = self.dead or self.fits(call)  # type: ignore[operator]
        return Fault(FaultKind.CRASH_BEFORE) if self.dead else None
