"""A world with roots to back up and restore, and helpers that append, rewrite, expire and read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pyarrow as pa

from sparklog.compaction.run import CompactOptions
from sparklog.log.state.view import READ_UNCOMMITTED
from sparklog.log.topic.backup_manifest import Manifest
from sparklog.log.topic.root import Root
from sparklog.log.topic.topic import Topic
from sparklog.maintenance.work_items import InProcess, Settings
from sparklog.retention.retain import RetainReport, retain_root
from sparklog.storage.memory import MemoryStore
from sparklog.storage.store import Store
from sparklog.testing.faulty_store import Call, Fault, FaultKind
from sparklog.testing.world import MINUTE_MS, START_MS, World
from sparklog.tools.backup.backing_up import back_up
from sparklog.tools.backup.restore_point import RestorePoint
from sparklog.tools.backup.restoring import Restored, restore
from sparklog.transactions.completion import resolve_topic
from sparklog.transactions.listing import abort_transaction, describe_transaction, list_transactions
from tests.support.compaction import compact_topic

COLUMNS = ("partition", "offset", "key", "value", "timestamp")
CONFIGS = {
    "cleanup.policy": "compact,delete",
    "min.cleanable.dirty.ratio": "0.0",
    "segment.bytes": "300",
    "retention.ms": "-1",
}
Rows = dict[tuple[int, int], tuple[bytes | None, bytes | None, int]]


class BackupWorld(World):
    """Stores with one clock, and roots that are opened as in new processes."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__(seed=1_000_000 * seed)
        self.seed = seed
        self.store: MemoryStore = self.another("source")

    def another(self, name: str) -> MemoryStore:
        """Return another store."""
        return MemoryStore(self.clock, f"memory://{name}-{self.seed}")

    def retain(self, store: Store | None = None) -> list[RetainReport]:
        """Run retention and the vacuum over all topics without failures."""
        reports = retain_root(self.root(store), Settings(now_ms=self.now_ms))
        assert not [failure for report in reports for failure in report.failures]
        return reports

    def compact(self, name: str, store: Store | None = None, *, roll: bool = True) -> None:
        """Seal, merge and clean a topic without failures."""
        report = compact_topic(
            self.root(store).topic(name), Settings(now_ms=self.now_ms), InProcess(), CompactOptions(roll=roll)
        )
        assert not report.failures


class RestoringWorld(BackupWorld):
    """A source, a backup repository, and roots restored from it."""

    def __init__(self) -> None:
        super().__init__()
        self.repository = self.another("place")
        self.restored = 0

    def back_up(self, **more: object) -> Manifest:
        return back_up(self.root(), self.repository, at_once=1, **more)  # type: ignore[arg-type]

    def restore(self, source: MemoryStore | None = None, wanted: RestorePoint | None = None, **more: object) -> Root:
        self.restored += 1
        target = self.another(f"restored-{self.restored}")
        self.restore_into(source, target, wanted, **more)
        return self.root(target)

    def restore_into(
        self, source: MemoryStore | None, target: MemoryStore, wanted: RestorePoint | None = None, **more: object
    ) -> Restored:
        source = self.repository if source is None else source
        return restore(source, target, wanted, at_once=1, env=self.env(), **more)  # type: ignore[arg-type]

    def fill(self, name: str = "a", appends: int = 5, configs: dict[str, str] | None = None) -> None:
        topic = self.root().create_topic(name, partitions=2, configs=CONFIGS if configs is None else configs)
        for i in range(appends):
            keys = [b"k%d" % (i % 2), b"k2", b"own%d" % i]
            topic.append(batch([b"v%d-%d" % (i, j) for j in range(3)], keys=keys, partition=i % 2))
            self.now_ms += MINUTE_MS


def batch(
    values: Sequence[bytes | None], *, keys: Sequence[bytes | None] | None = None, partition: int = 0
) -> pa.Table:
    """Return rows for one partition."""
    return pa.table(
        {
            "key": pa.array([None] * len(values) if keys is None else list(keys), pa.binary()),
            "value": pa.array(list(values), pa.binary()),
            "partition": pa.array([partition] * len(values), pa.int32()),
            "timestamp": pa.array([START_MS] * len(values), pa.int64()),
        }
    )


def rows_of(topic: Topic, *, uncommitted: bool = False) -> Rows:
    """Return (partition, offset) -> key, value and timestamp of all visible records."""
    found: Rows = {}
    scan = topic.scan(columns=COLUMNS, **({"isolation_level": READ_UNCOMMITTED} if uncommitted else {}))
    for part in scan:
        stamps = part.column("timestamp").cast(pa.int64()).to_pylist()
        columns = [part.column(name).to_pylist() for name in ("partition", "offset", "key", "value")]
        for p, offset, key, value, stamp in zip(*columns, stamps, strict=True):
            found[p, offset] = (key, value, stamp)
    return found


def contents(root: Root) -> Mapping[str, Rows]:
    """Return the records of all topics of a root."""
    return {name: rows_of(root.topic(name)) for name in root.topics()}


def end_what_is_open(root: Root) -> None:
    """Abort all open transactions, because they delay later committed records of only some topics."""
    for standing in list_transactions(root):
        # Ending the transaction of one topic may also abort expired transactions of other topics.
        if describe_transaction(root, standing.id, []).is_open:
            abort_transaction(root, standing.id)
    for name in root.topics():
        if root.topic(name).log.state().open:
            # The transaction was decided before the request arrived, because lost requests may take effect late.
            resolve_topic(root.topic(name))
        assert not root.topic(name).log.state().open


class Dying:
    """A process that crashes at the first matching request and makes no further requests."""

    def __init__(self, fits: object) -> None:
        self.fits = fits
        self.dead = False

    def __call__(self, call: Call) -> Fault | None:
        self.dead = self.dead or self.fits(call)  # type: ignore[operator]
        return Fault(FaultKind.CRASH_BEFORE) if self.dead else None
