"""Pieces of work: a plan hands them to tasks, and tasks hand back `Done`, to be committed.

A plan is made on the driver from a snapshot alone. A `Work` carries all that its task needs, so that a task opens
nothing; it writes files that no commit names yet. Each `Done` is committed as one rewrite: a piece of work is done
whole or not at all, and a task that is run twice leaves an orphan, which the vacuum removes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from sparklog.errors import SparklogError
from sparklog.groups.collecting import OFFSETS_RETENTION_MS
from sparklog.log.journal.clocks import Env, reading_clock_ms
from sparklog.log.state.configs import TopicConfigs
from sparklog.log.state.rewrites import Rewrite
from sparklog.log.state.root_defaults import ID, RootDefaults
from sparklog.log.state.slices import FileSlices
from sparklog.log.topic.root import Root
from sparklog.maintenance.throttle import UNLIMITED
from sparklog.storage.store import Store


def store_clock_ms(store: Store, env: Env, *, dry_run: bool) -> int:
    """Return milliseconds since 1970 by the store, by which maintenance tells what is old.

    Where no file can be made for it (a backup mounted read-only) a dry run takes this machine's clock.
    """
    return reading_clock_ms(store, env) if dry_run else store.now_ms()


Progress = Callable[[int, int], None]
"""Called by a task now and then with records and bytes read since the last call."""


def silent(records: int, nbytes: int) -> None:
    """Print no progress."""


@dataclass(frozen=True)
class Settings:
    """Settings of a run of maintenance, without each topic's configs.

    `now_ms`: the clock that decides (ages, delete horizons); commits keep their own. `defaults`: topic config name ->
    text, for topics that do not set it. `root`: the root's defaults, which count after these. The others are broker
    configs: see `sparklog.maintenance.properties`.
    """

    now_ms: int
    defaults: Mapping[str, str] = field(default_factory=dict)
    dedupe_buffer_bytes: int = 128 << 20
    dedupe_load_factor: float = 0.9
    producer_expiration_ms: int = 86_400_000
    offsets_retention_ms: int = OFFSETS_RETENTION_MS
    io_bytes_per_second: float = UNLIMITED
    root: RootDefaults = field(default_factory=lambda: RootDefaults(ID))

    def of_root(self, root: Root) -> Settings:
        """Return these with the newest defaults of a root."""
        return replace(self, root=root.defaults())

    def configs_of(self, topic: str, configs: TopicConfigs) -> TopicConfigs:
        """Return the topic's configs over this run's defaults, over the root's, over Kafka's."""
        return TopicConfigs({**self.defaults, **configs.explicit}, self.root.of_topic(topic))


@dataclass(frozen=True, slots=True)
class PieceReport:
    """Result of one piece of work on one partition; sizes in bytes. `dirty_ratio` None: it was no compaction."""

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
class Done:
    """Files that a task has written: to be committed as one rewrite, `files` with their slices' bases."""

    rewrites: tuple[Rewrite, ...]
    files: tuple[FileSlices, ...]
    reports: tuple[PieceReport, ...]


class Work(Protocol):
    """One piece of work. Picklable. `op` of `sparklog.log.state.commit` (MERGE, SEAL, COMPACT)."""

    @property
    def op(self) -> str: ...
    @property
    def topic(self) -> str: ...
    @property
    def topic_id(self) -> str: ...
    @property
    def title(self) -> str:
        """For progress and errors: `compact orders-3`."""

    @property
    def partitions(self) -> tuple[int, ...]: ...
    @property
    def nbytes(self) -> int:
        """Bytes to read: larger pieces are begun first."""

    def run(self, progress: Progress = silent) -> Done:
        """Read, write files, return what was written. Raises `SparklogError`; then no commit names what it wrote."""


class Runner(Protocol):
    """Runs work: in this process, or in Spark tasks."""

    def run(self, works: Sequence[Work]) -> Iterator[tuple[Work, Done | SparklogError]]:
        """Run all, begun in the order given, several at once; each with its result as it is finished."""


class InProcess:
    """Runs work in this thread, one piece after the other: tests, small roots, no Spark."""

    def __init__(self, progress: Callable[[str], Progress] = lambda title: silent) -> None:
        self._progress = progress

    def run(self, works: Sequence[Work]) -> Iterator[tuple[Work, Done | SparklogError]]:
        for work in works:
            try:
                yield work, work.run(self._progress(work.title))
            except SparklogError as error:
                yield work, error
