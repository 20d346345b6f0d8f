"""What a run of maintenance did, as data, as a table for people and as JSON for scripts.

Sizes before and after are those of whole partitions: before is what the run found, after is that with what its pieces
took away, so that records appended meanwhile do not blur the picture.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from sparklog.errors import SparklogError
from sparklog.maintenance.progress import megabytes, say
from sparklog.maintenance.work import PieceReport


@dataclass(frozen=True, slots=True)
class Size:
    """Records and stored bytes of a partition."""

    records: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class Failure:
    """What could not be done, to which partitions (none: to the whole topic), and why. They are as they were."""

    topic: str
    partitions: tuple[int, ...]
    title: str
    code: str
    message: str

    @classmethod
    def of(cls, topic: str, partitions: Sequence[int], title: str, error: SparklogError) -> Failure:
        """From the error that a task or a commit ended with."""
        return cls(topic, tuple(partitions), title, error.code, str(error))

    def line(self) -> str:
        """For stderr."""
        return f"{self.title}: {self.message} [{self.code}]"


def say_failures(program: str, failures: Sequence[Failure], place: str, topics: int) -> bool:
    """Say on stderr what failed, or that a root has no topics, as every job does; whether anything failed."""
    for failure in failures:
        say(f"{program}: {failure.line()}")
    if not topics:
        say(f"{program}: there are no topics in {place}: nothing to do")
    return bool(failures)


@dataclass(frozen=True, slots=True)
class Planned:
    """What a run would do to a partition, or why it would not (`nbytes` 0); for `--dry-run`."""

    topic: str
    partition: int
    action: str
    nbytes: int
    why: str


@dataclass(frozen=True, slots=True)
class PartitionTotal:
    """All that a run did to one partition. `actions`: each kind of piece with its number.

    `tombstones_kept` of the last pass, `dirty_ratio` before the first (None: not compacted), `seconds` of all tasks.
    """

    topic: str
    partition: int
    actions: tuple[tuple[str, int], ...]
    before: Size
    after: Size
    tombstones_kept: int
    tombstones_dropped: int
    keyless_dropped: int
    dirty_ratio: float | None
    seconds: float
    failed: bool


@dataclass(frozen=True, slots=True)
class TopicReport:
    """A run over one topic. `before`: size of each partition as the run began; `pieces` only what was committed."""

    topic: str
    before: Mapping[int, Size] = field(default_factory=dict)
    pieces: tuple[PieceReport, ...] = ()
    failures: tuple[Failure, ...] = ()
    planned: tuple[Planned, ...] = ()
    notes: tuple[str, ...] = ()
    seconds: float = 0.0

    @property
    def failed(self) -> bool:
        """Whether anything could not be done."""
        return bool(self.failures)

    def totals(self) -> list[PartitionTotal]:
        """Partitions that something was done to, or tried on, in order."""
        failed = {partition for failure in self.failures for partition in failure.partitions}
        by_partition: dict[int, list[PieceReport]] = {partition: [] for partition in failed}
        for piece in self.pieces:
            by_partition.setdefault(piece.partition, []).append(piece)
        return [
            self._total(partition, by_partition[partition], partition in failed) for partition in sorted(by_partition)
        ]

    def _total(self, partition: int, pieces: Sequence[PieceReport], failed: bool) -> PartitionTotal:
        actions: dict[str, int] = {}
        for piece in pieces:
            actions[piece.action] = actions.get(piece.action, 0) + 1
        before = self.before.get(partition, Size(0, 0))
        passes = [piece for piece in pieces if piece.dirty_ratio is not None]
        return PartitionTotal(
            topic=self.topic,
            partition=partition,
            actions=tuple(actions.items()),
            before=before,
            after=Size(
                before.records + sum(piece.records_after - piece.records_before for piece in pieces),
                before.nbytes + sum(piece.bytes_after - piece.bytes_before for piece in pieces),
            ),
            tombstones_kept=passes[-1].tombstones_kept if passes else 0,
            tombstones_dropped=sum(piece.tombstones_dropped for piece in pieces),
            keyless_dropped=sum(piece.keyless_dropped for piece in pieces),
            dirty_ratio=passes[0].dirty_ratio if passes else None,
            seconds=sum(piece.seconds for piece in pieces),
            failed=failed,
        )


def table(headings: Sequence[str], rows: Sequence[Sequence[str]], left: Sequence[int] = (0,)) -> str:
    """Columns two blanks apart, numbers to the right, those in `left` to the left. Plain text, any width."""
    widths = [max(len(row[column]) for row in [headings, *rows]) for column in range(len(headings))]
    lines = []
    for row in [headings, *rows]:
        cells = [
            text.ljust(width) if column in left else text.rjust(width)
            for column, (text, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


_HEADINGS = (
    *("PARTITION", "DONE", "RECORDS", "AFTER", "BYTES", "AFTER", "TOMBSTONES KEPT", "DROPPED", "DIRTY", "SECONDS"),
)


def summary(reports: Sequence[TopicReport], *, dry_run: bool = False) -> str:
    """The table at the end of a run, with notes below it; for a dry run what would be done and why."""
    lines = [_planned(reports) if dry_run else _done(reports)]
    for report in reports:
        lines += [f"{report.topic}: {note}" for note in report.notes]
        lines += [
            f"{total.topic}-{total.partition}: {total.keyless_dropped:,} records without a key were dropped, as "
            "Kafka's cleaner does"
            for total in report.totals()
            if total.keyless_dropped
        ]
    return "\n".join(line for line in lines if line)


def _done(reports: Sequence[TopicReport]) -> str:
    rows = []
    for total in (total for report in reports for total in report.totals()):
        cleaned = total.dirty_ratio is not None
        done = [f"{action} x{count}" if count > 1 else action for action, count in total.actions]
        rows.append(
            (
                f"{total.topic}-{total.partition}",
                ", ".join([*done, *(["FAILED"] if total.failed else [])]),
                f"{total.before.records:,}",
                f"{total.after.records:,}",
                megabytes(total.before.nbytes),
                megabytes(total.after.nbytes),
                f"{total.tombstones_kept:,}" if cleaned else "-",
                f"{total.tombstones_dropped:,}" if cleaned else "-",
                f"{total.dirty_ratio:.2f}" if total.dirty_ratio is not None else "-",
                f"{total.seconds:.1f}",
            )
        )
    shown = table(_HEADINGS, rows, (0, 1)) if rows else ""
    idle = _idle(sum(len(report.before) for report in reports) - len(rows), "partition needed", "partitions needed")
    return "\n".join(filter(None, (shown, idle)))


def _planned(reports: Sequence[TopicReport]) -> str:
    planned = [item for report in reports for item in report.planned]
    rows = [(f"{item.topic}-{item.partition}", item.action, megabytes(item.nbytes), item.why) for item in planned]
    named = {(item.topic, item.partition) for item in planned}
    shown = table(("PARTITION", "WOULD", "BYTES", "WHY"), rows, (0, 1, 3)) if rows else ""
    idle = _idle(sum(len(report.before) for report in reports) - len(named), "partition needs", "partitions need")
    return "\n".join(filter(None, (shown, idle)))


def _idle(count: int, one: str, many: str) -> str:
    """A line for the partitions that have no row."""
    return f"{count:,} {one if count == 1 else many} nothing" if count > 0 else ""


def document(reports: Sequence[TopicReport], *, root: str, now_ms: int, dry_run: bool) -> dict[str, object]:
    """The same as one JSON object. Bytes and records are exact, ratios and seconds are numbers."""
    return {
        "root": root,
        "nowMs": now_ms,
        "dryRun": dry_run,
        "failed": any(report.failed for report in reports),
        "topics": [
            {
                "topic": report.topic,
                "seconds": round(report.seconds, 3),
                "partitions": [_total_document(total) for total in report.totals()],
                "planned": [
                    {"partition": item.partition, "action": item.action, "bytes": item.nbytes, "why": item.why}
                    for item in report.planned
                ],
                "failures": [
                    {
                        "partitions": list(item.partitions),
                        "what": item.title,
                        "code": item.code,
                        "message": item.message,
                    }
                    for item in report.failures
                ],
                "notes": list(report.notes),
            }
            for report in reports
        ],
    }


def _total_document(total: PartitionTotal) -> dict[str, object]:
    return {
        "partition": total.partition,
        "actions": dict(total.actions),
        "recordsBefore": total.before.records,
        "recordsAfter": total.after.records,
        "bytesBefore": total.before.nbytes,
        "bytesAfter": total.after.nbytes,
        "tombstonesKept": total.tombstones_kept,
        "tombstonesDropped": total.tombstones_dropped,
        "keylessDropped": total.keyless_dropped,
        "dirtyRatio": total.dirty_ratio,
        "seconds": round(total.seconds, 3),
        "failed": total.failed,
    }
