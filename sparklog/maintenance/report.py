"""Reports of maintenance runs as data, tables and JSON, and the backlog after a run.

Configs determine how long work may be pending: at least two hours, because jobs run every hour, and at most 25 hours,
which allows for a daily schedule that starts late.

The reported size of a partition after a run is its size before the run plus the changes by the work items of the run.
Concurrent appends are not included.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, field
from operator import add

from sparklog.common.times import iso_time
from sparklog.common.units import HOUR_MS, count, size_text
from sparklog.errors import SparklogError
from sparklog.maintenance.work_items import WorkReport
from sparklog.output import json_value, say, table

MIN_WAIT_MS, MAX_WAIT_MS = 2 * HOUR_MS, 25 * HOUR_MS


def allowed_wait_ms(config_ms: int) -> int:
    """Return the maximum time for which work may be pending. `config_ms` is the value of the config that requires the
    work.
    """
    return min(max(config_ms, MIN_WAIT_MS), MAX_WAIT_MS)


@dataclass(frozen=True, slots=True)
class Due:
    """Pending work that a config requires.

    Attributes:
        since_ms: the time at which the work fell due according to record timestamps, or -1 if unknown.
        sealing: True if sealing is sufficient.
    """

    job: str
    why: str
    since_ms: int = -1
    allowed_ms: int = MAX_WAIT_MS
    sealing: bool = False


@dataclass(frozen=True, slots=True)
class FutureRecord:
    """The first record of a partition with a timestamp in the future. Its segment expires at `until_ms`."""

    partition: int
    offset: int
    time_ms: int
    until_ms: int

    def __str__(self) -> str:
        return (
            f"partition {self.partition} has a record with a future timestamp (offset {self.offset:,}, "
            f"{iso_time(self.time_ms)}): retention.ms keeps its segment and all later segments until "
            f"{iso_time(self.until_ms)}; to delete these segments earlier, run sparklog delete-records"
        )


@dataclass(frozen=True, slots=True)
class Backlog:
    """The pending work of the jobs on a topic. A field is None if no work is pending or the work was not measured."""

    unsealed_bytes: int | None = None
    dirty_ratio: float | None = None  # dirty ratio of the dirtiest partition, as if unsealed slices had been sealed
    oldest_expired_ms: int | None = None  # timestamp of the oldest record that the next retention run deletes
    due: tuple[Due, ...] = ()
    future: tuple[FutureRecord, ...] = ()


@dataclass(frozen=True, slots=True)
class Size:
    """The number of records and the stored bytes of a partition."""

    records: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class Failure:
    """Failed work that did not change anything. `partitions` contains the partitions of the work, or is empty if the
    work is for all partitions.
    """

    topic: str
    partitions: tuple[int, ...]
    title: str
    code: str
    message: str

    @classmethod
    def of(cls, topic: str, partitions: Sequence[int], title: str, error: SparklogError) -> Failure:
        return cls(topic, tuple(partitions), title, error.code, str(error))

    def line(self) -> str:
        return f"{self.title}: {self.message} [{self.code}]"


def print_failures(program: str, failures: Sequence[Failure], location: str, topics: int) -> bool:
    """Print failures to stderr, or a message if the root has no topics. Return True if there are failures."""
    for failure in failures:
        say(f"{program}: {failure.line()}")
    if not topics:
        say(f"{program}: nothing to do, because there are no topics in {location}")
    return bool(failures)


@dataclass(frozen=True, slots=True)
class Planned:
    """Planned work on a partition with the reason, for `--dry-run`. `nbytes` is 0 if no work is planned.

    Attributes:
        is_due: False if a run skips the work. In this case, `why` contains the reason.
    """

    topic: str
    partition: int
    action: str
    nbytes: int
    why: str
    is_due: bool = True


@dataclass(frozen=True, slots=True)
class PartitionTotal:
    """The work of a run on a partition."""

    partition: int
    actions: Mapping[str, int]  # number of work items by kind
    records_before: int
    records_after: int
    bytes_before: int
    bytes_after: int
    tombstones_kept: int  # number of tombstones kept by the last pass
    tombstones_dropped: int
    keyless_dropped: int
    aborted_dropped: int  # number of records dropped by work items other than compaction
    dirty_ratio: float | None  # dirty ratio before the first pass, or None if the partition was not compacted
    seconds: float  # total duration of all tasks
    failed: bool


@dataclass(frozen=True, slots=True)
class RunStatistics:
    """Records and bytes that a run has read, written and deleted. For `retain`, only partitions with expired records
    count.
    """

    records_in: int = 0
    records_out: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    bytes_deleted: int = 0

    def __add__(self, other: RunStatistics) -> RunStatistics:
        return RunStatistics(*map(add, astuple(self), astuple(other)))


@dataclass(frozen=True, slots=True)
class RunReport(ABC):
    """The report of a job on a topic, which may be deleted. `backlog` is the pending work that the run has found."""

    topic: str
    failures: tuple[Failure, ...] = field(default=(), kw_only=True)
    seconds: float = field(default=0.0, kw_only=True)
    deleted: bool = field(default=False, kw_only=True)
    backlog: Backlog = field(default=Backlog(), kw_only=True)

    @property
    def failed(self) -> bool:
        return bool(self.failures)

    @abstractmethod
    def statistics(self) -> RunStatistics:
        """Return the numbers of records and bytes that the run has read, written and deleted."""

    @abstractmethod
    def document(self) -> dict[str, object]:
        """Return the report as a JSON object."""


def document(reports: Sequence[RunReport], *, root: str, now_ms: int, dry_run: bool) -> dict[str, object]:
    """Return the reports of a run as a JSON object."""
    return {
        "root": root,
        "nowMs": now_ms,
        "dryRun": dry_run,
        "failed": any(report.failed for report in reports),
        "topics": [report.document() for report in reports],
    }


@dataclass(frozen=True, slots=True)
class TopicReport(RunReport):
    """The report of `compact` on a topic: the size of each partition before the run, and the committed work items."""

    before: Mapping[int, Size] = field(default_factory=dict)
    work: tuple[WorkReport, ...] = ()
    planned: tuple[Planned, ...] = ()
    notes: tuple[str, ...] = ()

    def document(self) -> dict[str, object]:
        return {
            "topic": self.topic,
            "seconds": round(self.seconds, 3),
            "partitions": json_value(self.totals()),
            "planned": [
                {"partition": item.partition, "action": item.action, "bytes": item.nbytes, "why": item.why}
                for item in self.planned
            ],
            "failures": [
                {"partitions": list(item.partitions), "what": item.title, "code": item.code, "message": item.message}
                for item in self.failures
            ],
            "notes": list(self.notes),
        }

    def statistics(self) -> RunStatistics:
        return RunStatistics(
            sum(item.records_before for item in self.work),
            sum(item.records_after for item in self.work),
            sum(item.bytes_before for item in self.work),
            sum(item.bytes_after for item in self.work),
        )

    def totals(self) -> list[PartitionTotal]:
        """Return the partitions on which work was done or has failed, in order."""
        failed = {partition for failure in self.failures for partition in failure.partitions}
        by_partition: dict[int, list[WorkReport]] = {partition: [] for partition in failed}
        for item in self.work:
            by_partition.setdefault(item.partition, []).append(item)
        return [self._total(partition, work, partition in failed) for partition, work in sorted(by_partition.items())]

    def _total(self, partition: int, work: Sequence[WorkReport], failed: bool) -> PartitionTotal:
        before = self.before.get(partition, Size(0, 0))
        passes = [item for item in work if item.dirty_ratio is not None]
        return PartitionTotal(
            partition,
            dict(Counter(item.action for item in work)),
            before.records,
            before.records + sum(item.records_after - item.records_before for item in work),
            before.nbytes,
            before.nbytes + sum(item.bytes_after - item.bytes_before for item in work),
            tombstones_kept=passes[-1].tombstones_kept if passes else 0,
            tombstones_dropped=sum(item.tombstones_dropped for item in work),
            keyless_dropped=sum(item.keyless_dropped for item in work),
            aborted_dropped=sum(item.records_before - item.records_after for item in work if item.dirty_ratio is None),
            dirty_ratio=passes[0].dirty_ratio if passes else None,
            seconds=round(sum(item.seconds for item in work), 3),
            failed=failed,
        )


HEADINGS = [
    *("PARTITION", "DONE", "RECORDS", "RECORDS AFTER", "BYTES", "BYTES AFTER"),
    *("TOMBSTONES KEPT", "TOMBSTONES DROPPED", "DIRTY", "SECONDS"),
]


def summary(reports: Sequence[TopicReport], *, dry_run: bool = False) -> str:
    """Return the table for the end of a run, or the planned work for a dry run, followed by notes."""
    lines = [_planned(reports) if dry_run else _done(reports)]
    for report in reports:
        lines += [f"{report.topic}: {note}" for note in report.notes]
        lines += [
            f"{report.topic}-{total.partition}: {total.keyless_dropped:,} records without a key were dropped, as "
            "Kafka's cleaner does"
            for total in report.totals()
            if total.keyless_dropped
        ]
        lines += [
            f"{report.topic}-{total.partition}: {count(total.aborted_dropped, 'record')} of aborted transactions were "
            "dropped"
            for total in report.totals()
            if total.aborted_dropped
        ]
    return "\n".join(filter(None, lines))


def _done(reports: Sequence[TopicReport]) -> str:
    totals = [(f"{report.topic}-{total.partition}", total) for report in reports for total in report.totals()]
    rows = [_row(name, _done_on(total), total) for name, total in totals]
    all_rows = [*rows, _row("all", "", _sum([total for _, total in totals]))] if len(rows) > 1 else rows
    shown = [table(HEADINGS, all_rows, (0, 1))] if rows else []
    idle = sum(len(report.before) for report in reports) - len(rows)
    if idle > 0:
        shown.append(f"{count(idle, 'partition needed', 'partitions needed')} nothing")
    return "\n".join(shown)


def _sum(totals: Sequence[PartitionTotal]) -> PartitionTotal:
    """Return the sums over several partitions, and the maximum dirty ratio."""
    ratios = [total.dirty_ratio for total in totals if total.dirty_ratio is not None]
    return PartitionTotal(
        -1,
        {},
        sum(total.records_before for total in totals),
        sum(total.records_after for total in totals),
        sum(total.bytes_before for total in totals),
        sum(total.bytes_after for total in totals),
        sum(total.tombstones_kept for total in totals),
        sum(total.tombstones_dropped for total in totals),
        sum(total.keyless_dropped for total in totals),
        sum(total.aborted_dropped for total in totals),
        max(ratios, default=None),
        sum(total.seconds for total in totals),
        any(total.failed for total in totals),
    )


def _done_on(total: PartitionTotal) -> str:
    done = [f"{action} x{times}" if times > 1 else action for action, times in total.actions.items()]
    return ", ".join([*done, *(["FAILED"] if total.failed else [])])


def _row(name: str, done: str, total: PartitionTotal) -> tuple[str, ...]:
    cleaned = ("-", "-", "-")
    if total.dirty_ratio is not None:
        cleaned = (f"{total.tombstones_kept:,}", f"{total.tombstones_dropped:,}", f"{total.dirty_ratio:.2f}")
    return (
        name,
        done,
        f"{total.records_before:,}",
        f"{total.records_after:,}",
        size_text(total.bytes_before),
        size_text(total.bytes_after),
        *cleaned,
        f"{total.seconds:.1f}",
    )


def _planned(reports: Sequence[TopicReport]) -> str:
    planned = [item for report in reports for item in report.planned]
    rows = [(f"{item.topic}-{item.partition}", item.action, size_text(item.nbytes), item.why) for item in planned]
    shown = [table(("PARTITION", "WOULD", "BYTES", "WHY"), rows, (0, 1, 3))] if rows else []
    idle = sum(len(report.before) for report in reports) - len({(item.topic, item.partition) for item in planned})
    if idle > 0:
        shown.append(f"{count(idle, 'partition needs', 'partitions need')} nothing")
    return "\n".join(shown)
