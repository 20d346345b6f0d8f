"""Apply retention to the topics of a root: expire segments by Kafka's rules, vacuum, and report the results.

First, the outcomes of decided transactions are recorded and timed-out transactions are aborted, so that they do not
block topics without writers. The offsets of consumer groups expire according to `offsets.retention.minutes`.

Segments of a topic expire in one commit. The commit only contains new log starts, and the maximum of log starts is
applied, so it commutes with concurrent runs, writers and delete-records. Kafka segments expire as a whole; unsealed
slices are divided into segments by the roll rule. Expired records become invisible immediately. A vacuum deletes their
files, `file.delete.delay.ms` after the last version that references them. Deleted topics are also vacuumed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from sparklog.common.times import seconds_warning
from sparklog.common.units import count, size_text
from sparklog.errors import Conflict, NotFound, SparklogError
from sparklog.groups.collecting import collect_groups, entries_retention_ms
from sparklog.groups.group_state import GROUPS
from sparklog.log.decisions.decision import DECISIONS
from sparklog.log.journal.entry_log import Collected
from sparklog.log.journal.names import topic_names
from sparklog.log.state.commit import RETAIN
from sparklog.log.state.commit_intents import LogStartIntent
from sparklog.log.state.configs import MIN_DELETE_DELAY_MS
from sparklog.log.state.slice_table import Snapshot
from sparklog.log.topic.root import Root, topic_of
from sparklog.log.topic.topic import Topic
from sparklog.maintenance.journals import JOURNALS, collect_journals
from sparklog.maintenance.report import Backlog, Failure, FutureRecord, RunReport, RunStatistics
from sparklog.maintenance.table_runs import TABLE_RUNS, collect_table_runs
from sparklog.maintenance.work_items import Runner, Settings, store_clock_ms
from sparklog.output import json_value, table
from sparklog.retention.backlog import expiry_backlog, future_records, plan_topic
from sparklog.retention.expiry_plan import REASONS, TIME, Expired, Expiry
from sparklog.retention.vacuum import Removed, VacuumReport, remove_temporaries, vacuum
from sparklog.transactions.completion import collect, resolve_topic

_LOG = logging.getLogger("sparklog.retention")


def summary(reports: Sequence[RetainReport], *, dry_run: bool = False) -> str:
    """Return a table of expired segments and a table of deleted files by kind and reason, followed by notes."""
    tables = [_expired(reports, dry_run), _removed(reports, dry_run)]
    lines = [text for text in tables if text]
    lines += [f"{report.topic}: {note}" for report in reports for note in _notes(report)]
    if not any(tables):
        topics = f"{len(reports)} topic{'' if len(reports) == 1 else 's'}"
        lines.append(f"{topics}: nothing {'would be' if dry_run else 'was'} deleted")
    return "\n".join(lines)


def progress(report: RetainReport) -> str | None:
    """Return a line for the log of the job, or None if nothing was deleted from the topic."""
    segments = sum(item.expired_segments for item in report.expired)
    vacuumed = report.vacuum or VacuumReport(report.topic, False, 0, 0)
    if not segments and not vacuumed.objects and not report.failures:
        return None
    deleted = "would be deleted" if vacuumed.dry_run else "deleted"
    return (
        f"retain {report.topic}: {count(segments, 'segment')} and {count(vacuumed.objects, 'file')} "
        f"({size_text(vacuumed.nbytes)}) {deleted} in {report.seconds:.1f} s"
    )


def _expired(reports: Sequence[RetainReport], dry_run: bool) -> str:
    rows = [
        (
            f"{report.topic}-{item.partition}",
            REASONS[gone.reason],
            f"{gone.segments:,} of {item.segments:,}",
            size_text(gone.nbytes),
            f"{item.log_start_before:,} -> {item.log_start:,}",
        )
        for report in reports
        for item in report.expired
        for gone in item.gone
    ]
    headings = ("PARTITION", "WOULD EXPIRE BY" if dry_run else "EXPIRED BY", "SEGMENTS", "BYTES", "LOG START")
    return table(headings, rows, (0, 1)) if rows else ""


def _removed(reports: Sequence[RetainReport], dry_run: bool) -> str:
    removed = [(report.topic, item) for report in reports if report.vacuum for item in report.vacuum.removed]
    if not removed:
        return ""
    rows = [(topic, item.kind, f"{item.objects:,}", size_text(item.nbytes), item.reason) for topic, item in removed]
    objects, nbytes = sum(item.objects for _, item in removed), sum(item.nbytes for _, item in removed)
    rows.append(("all", "", f"{objects:,}", size_text(nbytes), ""))
    return table(("TOPIC", "WOULD DELETE" if dry_run else "DELETED", "FILES", "BYTES", "WHY"), rows, (0, 1, 4))


def _notes(report: RetainReport) -> list[str]:
    notes = [str(record) for record in report.future]
    if report.resolved:
        plural = "" if report.resolved == 1 else "s"
        notes.append(f"the outcome of {report.resolved:,} transaction{plural} was recorded")
    vacuumed = report.vacuum or VacuumReport(report.topic, False, 0, 0)
    would = "would be" if vacuumed.dry_run else "were"
    if vacuumed.held:
        notes.append(f"{vacuumed.held:,} files are kept because of leases")
    if vacuumed.foreign:
        notes.append(f"{vacuumed.foreign:,} unrecognized objects in the data directories are kept")
    if vacuumed.ended_leases:
        notes.append(f"expired leases {would} removed: {', '.join(vacuumed.ended_leases)}")
    if vacuumed.expired_groups:
        names = ", ".join(vacuumed.expired_groups)
        notes.append(f"expired offsets of {len(vacuumed.expired_groups):,} groups {would} deleted: {names}")
    if vacuumed.idle_writers:
        notes.append(f"{len(vacuumed.idle_writers):,} idle writers {would} removed")
    return notes


def _vacuum(vacuumed: VacuumReport) -> dict[str, object]:
    values = {
        name: value for name, value in json_value(vacuumed).items() if name not in ("topic", "dryRun", "failures")
    }
    values["removed"] = [
        {"kind": item.kind, "reason": item.reason, "files": item.objects, "bytes": item.nbytes}
        for item in vacuumed.removed
    ]
    return values


ROOT_FILES = "(root)"
"""The name that is used in reports for files that do not belong to a topic."""
OLD_DECISION = "older than 7 days and covered by a checkpoint"
OLD_ENTRY = "replaced more than {hours:,} hours ago and covered by a checkpoint"


@dataclass(frozen=True, slots=True)
class ExpiredSegments:
    """The number and the bytes of the segments that expired for one of `REASONS`."""

    reason: str
    segments: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class PartitionExpiry:
    """The expiry of a partition.

    It contains the partition's previous size, and the segments that expired by each rule.
    """

    partition: int
    log_start_before: int
    log_start: int
    log_end: int
    segments: int
    nbytes: int
    gone: tuple[ExpiredSegments, ...]
    records: int = 0
    records_gone: int = 0

    @property
    def expired_segments(self) -> int:
        return sum(item.segments for item in self.gone)

    @property
    def expired_bytes(self) -> int:
        return sum(item.nbytes for item in self.gone)


@dataclass(frozen=True, slots=True)
class RetainReport(RunReport):
    """The report of `retain` on a topic: the partitions with expired segments, and the number of recorded outcomes."""

    partitions: int = 0
    resolved: int = 0
    expired: tuple[PartitionExpiry, ...] = ()
    future: tuple[FutureRecord, ...] = ()
    vacuum: VacuumReport | None = None

    def statistics(self) -> RunStatistics:
        records, nbytes = sum(item.records for item in self.expired), sum(item.nbytes for item in self.expired)
        return RunStatistics(
            records,
            records - sum(item.records_gone for item in self.expired),
            nbytes,
            nbytes - sum(item.expired_bytes for item in self.expired),
            0 if self.vacuum is None else self.vacuum.nbytes,
        )

    def document(self) -> dict[str, object]:
        return {
            "topic": self.topic,
            "deleted": self.deleted,
            "partitions": self.partitions,
            "resolvedTransactions": self.resolved,
            "seconds": round(self.seconds, 3),
            "expired": json_value(self.expired),
            "future": json_value(self.future),
            "vacuum": None if self.vacuum is None else _vacuum(self.vacuum),
            "failures": [{"what": item.title, "code": item.code, "message": item.message} for item in self.failures],
        }


def expire(topic: Topic, settings: Settings, *, dry_run: bool = False) -> list[PartitionExpiry]:
    """Commit new log starts. Return the partitions with expired segments.

    Raises `NotFound` or `Conflict` if the topic was deleted.
    """
    snapshot = topic.log.snapshot()
    state = snapshot.state
    planned = plan_topic(snapshot, settings)
    moved = {plan.partition: plan.log_start for plan, _ in planned if plan.log_start > state.log_start[plan.partition]}
    _warn_of_seconds(topic, state.version, [item for expiry, _ in planned for item in expiry.expired])
    if moved and not dry_run:
        topic.log.commit(LogStartIntent(state.topic_id, moved, op=RETAIN), state)
    expired = []
    for expiry, all_segments in planned:
        if expiry.partition not in moved:
            continue
        sizes: dict[str, list[int]] = {}
        for item in expiry.expired:
            sizes.setdefault(item.reason, []).append(item.segment.size)
        expired.append(
            PartitionExpiry(
                expiry.partition,
                int(state.log_start[expiry.partition]),
                expiry.log_start,
                int(state.log_end[expiry.partition]),
                sum(1 for segment in all_segments if segment.rows),
                sum(segment.size for segment in all_segments),
                tuple(ExpiredSegments(reason, len(nbytes), sum(nbytes)) for reason, nbytes in sizes.items()),
                *_records(snapshot, expiry),
            )
        )
    return expired


def _records(snapshot: Snapshot, expiry: Expiry) -> tuple[int, int]:
    """Return the number of records in a partition, and the number of records that expire."""
    table_rows = snapshot.slices.all()
    span = table_rows.partition_rows(expiry.partition)
    records = table_rows.records[span]
    return int(records.sum()), int(records[table_rows.end[span] <= expiry.log_start].sum())


def _warn_of_seconds(topic: Topic, version: int, gone: Sequence[Expired]) -> None:
    """Warn if records expire because their timestamps seem to be in seconds instead of milliseconds."""
    times = [item.segment.max_ts for item in gone if item.reason == TIME]
    warnings = (seconds_warning(f"a timestamp that expires in topic {topic.name}", time_ms) for time_ms in times)
    warning = next(filter(None, warnings), None)
    if warning is not None:
        _LOG.warning(
            "%s; set retention.ms=-1 to keep such records; until their files are deleted (file.delete.delay.ms), "
            "sparklog clone %s NAME --as-of %d restores the records that expire now",
            *(warning, topic.name, version),
        )


def retain_topic(
    topic: Topic, settings: Settings, *, runner: Runner | None = None, dry_run: bool = False
) -> RetainReport:
    """Expire and vacuum a topic, which may be deleted. Failures are reported and not raised."""
    started_ms = topic.root.env.boot_ms()
    report = RetainReport(topic.name)
    backlog = Backlog()
    failures: list[Failure] = []
    topic_id = None
    try:
        state = topic.log.refresh().topic_state
        report = replace(report, deleted=state.deleted, partitions=state.partitions)
        topic_id = state.topic_id
        if state.exists:
            report = replace(report, resolved=0 if dry_run else len(resolve_topic(topic)))
            report = replace(report, expired=tuple(expire(topic, settings, dry_run=dry_run)))
            report = replace(report, future=future_records(topic.log.snapshot(), settings))
    except SparklogError as error:
        # If the topic was deleted and possibly created again in the meantime, nothing remains to expire.
        if not isinstance(error, (NotFound, Conflict)) or _exists(topic, topic_id):
            failures.append(Failure.of(topic.name, (), f"expire {topic.name}", error))
            with suppress(SparklogError):
                backlog = expiry_backlog(topic.log.snapshot(refresh=False), settings)
    try:
        vacuumed = vacuum(topic, settings, runner=runner, dry_run=dry_run)
        failures += vacuumed.failed()
        report = replace(report, vacuum=vacuumed)
    except SparklogError as error:
        failures.append(Failure.of(topic.name, (), f"vacuum {topic.name}", error))
    seconds = (topic.root.env.boot_ms() - started_ms) / 1000
    return replace(report, failures=tuple(failures), seconds=seconds, backlog=backlog)


def _exists(topic: Topic, topic_id: str | None) -> bool:
    try:
        state = topic.log.refresh().topic_state
    except SparklogError:
        return True
    return state.exists and state.topic_id == topic_id


def retain_root(
    root: Root,
    settings: Settings,
    *,
    topics: Sequence[str] = (),
    runner: Runner | None = None,
    dry_run: bool = False,
    on_done: Callable[[RetainReport, int], object] = lambda report, topics: None,
) -> list[RetainReport]:
    """Expire and vacuum these topics, or all topics of the root including deleted topics. Return a report for each
    topic.

    `on_done` is called after each topic with its report and the number of topics. A failure of a topic is reported and
    does not affect other topics. Raises `NotFound`, before any change, if a name in `topics` has never been a topic.
    """
    settings = settings.of_root(root)
    existing: list[Topic] = []
    reports: list[RetainReport] = []
    for name in topics or sorted(topic_names(root.store)):
        topic = topic_of(root, name)
        try:
            if topic.log.refresh().topic_state.version >= 0:
                existing.append(topic)
            elif topics:
                root.topic(name)
        except SparklogError as error:
            if topics and isinstance(error, NotFound):
                raise
            reports.append(RetainReport(name, failures=(Failure.of(name, (), f"open {name}", error),)))
    for topic in existing:
        report = retain_topic(topic, settings, runner=runner, dry_run=dry_run)
        reports.append(report)
        on_done(report, len(existing))
    if existing and not topics:
        heads = {topic.name: state.topic_state for topic in existing if (state := topic.log.known()) is not None}
        configs = [
            settings.configs_of(name, topic_state.configs) for name, topic_state in heads.items() if topic_state.exists
        ]
        keep_ms = entries_retention_ms(max((config.file_delete_delay_ms for config in configs), default=0))
        reports += _retain_root_files(root, settings, keep_ms, dry_run)
    return sorted(reports, key=lambda report: report.topic)


def _retain_root_files(root: Root, settings: Settings, keep_ms: int, dry_run: bool) -> list[RetainReport]:
    """Delete objects that do not belong to a topic: temporary files, expired group offsets and old journal entries."""
    try:
        store_ms = store_clock_ms(root.store, root.env, dry_run=dry_run)
        limit_ms = store_ms - 24 * MIN_DELETE_DELAY_MS
        temporary = remove_temporaries(root.store, ROOT_FILES, limit_ms, dry_run=dry_run)
        removed, failures = [*temporary.removed], [*temporary.failures]
        expired_groups: tuple[str, ...] = ()
        # Process groups before transactions, because a decision can be deleted after the groups have recorded it.
        for kind in (GROUPS, *(other for other in JOURNALS if other is not GROUPS)):
            folder = f"{kind.folder}/"
            if kind.old_entry is None or not any(True for _ in root.store.list_folders(folder)):
                continue
            temporary = remove_temporaries(root.store, ROOT_FILES, limit_ms, folder=folder, dry_run=dry_run)
            removed += temporary.removed
            failures += temporary.failures
            reason = OLD_ENTRY.format(hours=keep_ms // 3_600_000)
            collected: Collected
            if kind is GROUPS:
                collected = groups = collect_groups(
                    root, retention_ms=settings.offsets_retention_ms, keep_ms=keep_ms, now_ms=store_ms, dry_run=dry_run
                )
                expired_groups = groups.expired
            elif kind is DECISIONS:
                reason, expiration_ms = OLD_DECISION, root.defaults().expiration_ms()
                collected = collect(root, now_ms=store_ms, expiration_ms=expiration_ms, dry_run=dry_run)
            elif kind is TABLE_RUNS:
                collected = collect_table_runs(root, keep_ms=keep_ms, now_ms=store_ms, dry_run=dry_run)
            else:
                collected = collect_journals(root, kind, keep_ms=keep_ms, now_ms=store_ms, dry_run=dry_run)
            removed.append(Removed(kind.old_entry, reason, collected.objects, collected.nbytes))
            failures += collected.failures
    except SparklogError as error:
        return [RetainReport(ROOT_FILES, failures=(Failure.of(ROOT_FILES, (), f"vacuum {root.location}", error),))]
    removed = [item for item in removed if item.objects]
    if not removed and not expired_groups and not failures:
        return []
    vacuumed = VacuumReport(
        ROOT_FILES, dry_run, 0, 0, tuple(removed), expired_groups=expired_groups, failures=tuple(failures)
    )
    return [RetainReport(ROOT_FILES, vacuum=vacuumed, failures=vacuumed.failed())]
