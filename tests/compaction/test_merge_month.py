"""A month with one commit per second, simulated with slice metadata: the number of slices, the lifetime of files, and
the cost.

No data is read or written. Appended files are rows of a slice table. Each maintenance run seals the segments that the
roll rule closes, plans the merges with the real planner, and replaces the inputs with the outputs. The commits between
two runs are combined into a few commits (the slow test has all of them).
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from sparklog.compaction.merge_plan import FAN_IN, plan_merges
from sparklog.compaction.merge_work import MergeWork
from sparklog.format.slice_columns import COLUMN_TYPES
from sparklog.limits import DEFAULTS
from sparklog.log.state.configs import TopicConfigs
from sparklog.log.state.segments import RollRule, is_roll_due, segments_of
from sparklog.log.state.slice_table import Slices, SliceTable, Snapshot, Texts
from sparklog.log.state.slices import with_tier
from sparklog.log.state.topic_state import TopicState
from sparklog.maintenance.work_items import Settings
from sparklog.storage.memory import MemoryStore
from tests.support.compaction import merge_tier
from tests.support.seeds import first_of

pytestmark = pytest.mark.sweep

Int64s = npt.NDArray[np.int64]
Rates = Callable[[float], list[float]]
"""Maps the seconds since the start to the bytes per second of each partition."""

DAY = 86_400
RECORD_BYTES = 200
FOOTER = 100
KIB, MIB = 1 << 10, 1 << 20
STORE = MemoryStore(lambda: 0)
MANY = 32
"""The maximum number of slices of a partition after a run."""


@dataclass
class Measured:
    """Measurements of a simulation over all runs."""

    slices: list[list[int]] = field(default_factory=list)
    """The number of unsealed slices per partition after each run."""
    appended: int = 0
    rewritten: int = 0
    lone: int = 0
    """The number of runs after which an appended file remained, because merging it would have no benefit."""
    lives: list[list[int]] = field(default_factory=list)
    """For each sealed segment of each partition, the time (ms) from its first append until it was sealed."""
    pinned: int = 0
    """The maximum size of files whose slices were sealed or merged, but that other slices kept alive."""

    def most(self) -> list[int]:
        return np.max(np.array(self.slices), axis=0).tolist()


class Month:
    """A topic with the time `now` in seconds, and rows of unsealed slices as columns."""

    def __init__(
        self,
        rates: Rates,
        *,
        tasks: int = 2,
        commits: int = 3,
        late: bool = False,
        configs: dict[str, object] | None = None,
    ):
        """If `late` is True, each append contains a record that is as old as possible."""
        self.late = late
        self.rates, self.tasks, self.commits = rates, tasks, commits
        self.partitions = len(rates(0.0))
        self.now = 0.0
        self.version = 0
        self.configs = TopicConfigs.of(configs)
        self.rule = RollRule.of(self.configs, "month")
        self.parts = [{name: np.zeros(0, dtype) for name, dtype in COLUMN_TYPES.items()}]
        self.end = np.zeros(self.partitions, np.int64)
        self.owed = np.zeros(self.partitions)
        self.measured = Measured(lives=[[] for _ in range(self.partitions)])
        self.sealed_ts = [-1] * self.partitions
        """The largest timestamp of the latest sealed segment."""
        self.names: list[str] = []

    def run(self, seconds: float) -> None:
        """Append for some time, run maintenance, and measure."""
        self.append(seconds)
        self.seal()
        self.merge()
        self.look()

    # -- writers

    def append(self, seconds: float) -> None:
        """Append commits of `tasks` files each, with a slice for each partition that has a record by then."""
        step = seconds / self.commits
        times = self.now + step * np.arange(1, self.commits + 1)
        arrived = np.repeat(
            np.array([self.rates(now) for now in times.tolist()]) * step / self.tasks, self.tasks, axis=0
        )
        come = self.owed + np.cumsum(arrived, axis=0)
        total = (come // RECORD_BYTES).astype(np.int64)
        records = np.diff(total, axis=0, prepend=0)
        self.owed = come[-1] - total[-1] * RECORD_BYTES
        sizes = records * RECORD_BYTES
        self.measured.appended += int(sizes.sum())
        file, partition = np.nonzero(records)
        base = self.end[partition] + (total - records)[file, partition]
        stamps = (times * 1000).astype(np.int64)[file // self.tasks]
        self.put(
            files=len(records),
            file=file,
            file_size=sizes.sum(axis=1)[file] + FOOTER,
            read_version=self.version + file // self.tasks,
            position=(np.cumsum(sizes, axis=1) - sizes)[file, partition],
            size=sizes[file, partition],
            partition=partition,
            base=base,
            end=base + records[file, partition],
            min_ts=stamps * (not self.late),
            max_ts=stamps,
        )
        self.end = self.end + total[-1]
        self.now += seconds
        self.version += self.commits

    def put(self, *, files: int, file: Int64s, **values: int | Int64s) -> None:
        """Add rows of new files, which are numbered from 0."""
        values = {"footer_length": FOOTER, "append_time": -1, "txn": -1, **values, "file": file + len(self.names)}
        values["shift"], values["records"] = values["base"], np.subtract(values["end"], values["base"])
        self.names += [f"append/{self.version:020d}-f{len(self.names) + i}.slices" for i in range(files)]
        n = len(file)
        self.parts.append(
            {name: np.full(n, values.get(name, 0), np.int64).astype(dtype) for name, dtype in COLUMN_TYPES.items()}
        )

    @property
    def columns(self) -> dict[str, npt.NDArray[Any]]:
        if len(self.parts) > 1:
            self.columns = {name: np.concatenate([part[name] for part in self.parts]) for name in COLUMN_TYPES}
        return self.parts[0]

    @columns.setter
    def columns(self, columns: dict[str, npt.NDArray[Any]]) -> None:
        self.parts = [columns]

    # -- maintenance

    def snapshot(self) -> Snapshot:
        """Return the table as a reader sees it: sorted, with codes for the referenced files."""
        columns = self.columns
        order = np.lexsort((columns["base"], columns["partition"]))
        used, codes = np.unique(columns["file"], return_inverse=True)
        self.names = [self.names[i] for i in used.tolist()]
        columns = {name: column[order] for name, column in columns.items()}
        columns["file"] = codes.astype(np.int32)[order]
        self.columns = columns
        slices = Slices(columns, Texts.of(self.names), Texts())
        starts = np.zeros(self.partitions, np.int64)
        state = TopicState(
            version=self.version,
            topic_id="month",
            deleted=False,
            configs=self.configs,
            log_start=starts,
            log_end=self.end.copy(),
            first_dirty_offset=starts,
        )
        table = SliceTable(self.version, (slices,) if len(slices) else (), slices.paths, slices.txn_ids)
        return Snapshot("month", STORE, state, table)

    def seal(self) -> None:
        """Remove closed segments from the table, because sealed segments do not affect merging."""
        rows = self.snapshot().slices.all()
        keep = np.ones(len(rows), np.bool_)
        for partition in range(self.partitions):
            span = rows.partition_rows(partition)
            behind = behind_sealed(rows[span], self.sealed_ts[partition])
            for segment in segments_of(behind, partition, int(self.end[partition]), self.rule)[1:]:
                closed = not segment.active or is_roll_due(segment, self.rule, int(self.now * 1000))
                if closed and segment.rows:
                    first = span.start + segment.first_row - 1
                    keep[first : first + segment.rows] = False
                    self.sealed_ts[partition] = segment.max_ts
                    self.measured.lives[partition].append(int(self.now * 1000) - int(rows.min_ts[first]))
        self.columns = {name: column[keep] for name, column in self.columns.items()}

    def merge(self) -> None:
        """Plan merges, and replace the inputs with the outputs."""
        snapshot = self.snapshot()
        works = plan_merges(STORE, snapshot, Settings(int(self.now * 1000)))
        rows = snapshot.slices.all()
        gone = np.zeros(len(rows), np.bool_)
        for work in works:
            for source in work.sources:
                first = rows.partition_rows(source.partition).start
                at = first + np.searchsorted(rows.base[rows.partition_rows(source.partition)], source.base)
                assert (rows.end[at] == source.end).all()
                assert not gone[at].any()
                gone[at] = True
        self.columns = {name: column[~gone] for name, column in self.columns.items()}
        for work in works:
            self.write(work)
        self.version += 1

    def write(self, work: MergeWork) -> None:
        """Return the files that the task would write: a file per large slice, and one for the others."""
        self.measured.rewritten += work.nbytes
        outputs = np.array(
            [
                (
                    source.partition,
                    source.base[0],
                    source.end[-1],
                    source.nbytes,
                    source.min_ts.min(),
                    source.max_ts.max(),
                )
                for source in work.sources
            ],
            np.int64,
        )
        large = outputs[:, 3] >= DEFAULTS.own_file_bytes
        for group in (outputs[~large], *(outputs[i : i + 1] for i in np.flatnonzero(large))):
            if not len(group):
                continue
            partition, base, end, size, min_ts, max_ts = group.T
            self.put(
                files=1,
                file=np.zeros(len(group), np.int64),
                file_size=int(size.sum()) + FOOTER,
                read_version=work.read_version,
                position=np.cumsum(size) - size,
                size=size,
                partition=partition,
                base=base,
                end=end,
                min_ts=min_ts,
                max_ts=max_ts,
                flags=with_tier(0, work.tier),
            )

    # -- invariants

    def look(self) -> None:
        columns = self.columns
        self.measured.slices.append(np.bincount(columns["partition"], minlength=self.partitions).tolist())
        tiers = np.array([merge_tier(flags) for flags in columns["flags"].tolist()])
        grown = columns["size"] >= max(DEFAULTS.own_file_bytes, self.configs.segment_bytes // FAN_IN)
        left = (tiers == 0) & ~grown
        # An appended file exists for one run, unless it is the only file.
        assert len(np.unique(columns["file"][left])) <= 1
        self.measured.lone += int(left.any())
        files, first = np.unique(columns["file"], return_index=True)
        held = int(columns["file_size"][first].sum()) - FOOTER * len(files)
        self.measured.pinned = max(self.measured.pinned, held - int(columns["size"].sum()))


def behind_sealed(rows: Slices, max_ts: int) -> Slices:
    """Return the rows, preceded by the latest sealed segment, as in the real table."""
    values = {"max_ts": max_ts}
    columns = {
        name: np.concatenate((np.array([values.get(name, 0)], column.dtype), column))
        for name, column in rows.columns.items()
    }
    return Slices(columns, rows.paths, rows.txn_ids)


def simulated(rates: Rates, *, every: float = 900, days: float = 30, **options: object) -> Measured:
    month = Month(rates, **options)  # type: ignore[arg-type]
    for _ in range(int(days * DAY / every)):
        month.run(every)
    return month.measured


def steady(*rates: float) -> Rates:
    return lambda now: list(rates)


@pytest.mark.slow
def test_a_month_at_rates_from_a_byte_to_a_megabyte_a_second() -> None:
    found = simulated(steady(1, 30, KIB, 10 * KIB, 100 * KIB, MIB), commits=2)
    assert max(found.most()) <= MANY, found.most()
    # The fast partitions, which have nearly all bytes, are sealed from their own files.
    assert found.rewritten < 1.5 * found.appended
    # A slow partition keeps only a few bytes of a fast partition alive, because large slices have their own files.
    assert found.pinned < 8 * DEFAULTS.own_file_bytes
    assert found.lone == 0


@pytest.mark.parametrize("rate", first_of([20 * KIB, 5 * KIB, 100.0], 1))
def test_each_byte_is_rewritten_a_few_times(rate: float) -> None:
    """For a partition at rates at which no slice is large, the number of tiers limits the cost."""
    found = simulated(steady(rate), days=14, commits=2, tasks=1)
    assert max(found.most()) <= MANY, found.most()
    assert found.rewritten <= 4.2 * found.appended


@pytest.mark.parametrize("every", first_of([3600.0, 300.0, 120.0], 1))
def test_merging_at_different_intervals(every: float) -> None:
    found = simulated(steady(10, 2 * KIB, 200 * KIB), every=every, days=min(20.0, every / 60), commits=1)
    assert max(found.most()) <= MANY, found.most()


def bursts(now: float) -> list[float]:
    """Return partitions that are idle for hours and then fast, at different times. One partition alternates around 8
    MiB per run.
    """
    source = random.Random(int(now // 900))
    burst = [4 * MIB if source.random() < 0.03 else 0.0 for _ in range(3)]
    return [*burst, source.choice([7.0, 9.0]) * MIB / 900, source.choice([1.0, 7 * MIB / 900, 200 * KIB]), 20.0]


@pytest.mark.slow
def test_irregular_rates() -> None:
    found = simulated(bursts, days=12, commits=2)
    assert max(found.most()) <= MANY, found.most()
    assert found.rewritten < 2 * found.appended


def test_seven_large_slices_and_one_small_one_over_and_over() -> None:
    """The slices of a partition alternate between large and small, next to a partition with only small slices."""

    def rates(now: float) -> list[float]:
        return [(1.0 if int(now // 900) % FAN_IN == 0 else 9.0) * MIB / 900, 50.0]

    found = simulated(rates, days=6, commits=2)
    assert max(found.most()) <= MANY, found.most()


def test_irregular_runs() -> None:
    source = random.Random(5)
    month = Month(steady(5, 3 * KIB, 60 * KIB, 600 * KIB))
    for _ in range(600):
        month.run(source.choice([30, 300, 900, 900, 3600, 6 * 3600]))
    assert max(month.measured.most()) <= MANY, month.measured.most()


WEEK_MS = 7 * DAY * 1000
QUARTER_MS = 900_000


@pytest.mark.slow
def test_slow_partitions_are_sealed_once_a_week() -> None:
    """Regardless of how often its slices were merged, a segment spans `segment.ms`, and not that plus the time before
    the merge.
    """
    rates = [0.2, 30.0, KIB]
    found = simulated(steady(*rates, 50 * KIB), commits=1)
    for rate, lives in zip(rates, found.lives[:3], strict=True):
        longest = WEEK_MS + QUARTER_MS + int(RECORD_BYTES / rate * 1000)
        assert len(lives) == 4
        assert all(WEEK_MS < life <= longest for life in lives), lives


def test_late_records_do_not_seal_in_every_run() -> None:
    found = simulated(steady(30.0, KIB), days=15, commits=1, late=True)
    assert [len(lives) for lives in found.lives] == [2, 2]


@pytest.mark.parametrize("segment_bytes", first_of([14, 10 * MIB, 100 * MIB], 2))
def test_small_segments(segment_bytes: int) -> None:
    found = simulated(steady(10, KIB, 100 * KIB), days=5, commits=2, configs={"segment.bytes": segment_bytes})
    assert max(found.most()) <= MANY, found.most()


@pytest.mark.slow
def test_a_topic_that_is_never_sealed() -> None:
    """The topic is not sealed by time or size, so only the tiers limit the number of slices."""
    never = {"segment.bytes": 2**31 - 1, "segment.ms": 2**62}
    found = simulated(steady(1, 100, KIB), configs=never, commits=1)
    assert max(found.most()) <= MANY, found.most()
    assert found.rewritten < 4.2 * found.appended


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_a_month_commit_by_commit() -> None:
    found = simulated(steady(100, KIB, 10 * KIB, 100 * KIB, MIB, 5 * MIB), commits=900)
    assert max(found.most()) <= MANY, found.most()
    assert found.rewritten < 1.5 * found.appended
