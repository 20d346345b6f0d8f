"""Report of a retention run, as tables for people and as JSON for scripts."""

from __future__ import annotations

from collections.abc import Sequence

from sparklog.maintenance.output import megabytes, table
from sparklog.retention.expiry import REASONS
from sparklog.retention.retain import PartitionExpiry, RetainReport
from sparklog.retention.vacuum import VacuumReport


def summary(reports: Sequence[RetainReport], *, dry_run: bool = False) -> str:
    """Partitions that lost something, then files by kind and reason, then notes; a dry run says what would go."""
    parts = [_expired(reports, dry_run), _removed(reports, dry_run)]
    parts += [f"{report.topic}: {note}" for report in reports for note in _notes(report)]
    topics = f"{len(reports)} topic{'' if len(reports) == 1 else 's'}"
    lines = [part for part in parts if part]
    if not any(report.expired or (report.vacuum and report.vacuum.removed) for report in reports):
        lines.append(f"{topics}: nothing {'would go' if dry_run else 'went'}")
    return "\n".join(lines)


def progress(report: RetainReport) -> str:
    """One line when a topic is finished."""
    segments = sum(item.segments_gone for item in report.expired)
    files = 0 if report.vacuum is None else report.vacuum.objects
    nbytes = 0 if report.vacuum is None else report.vacuum.nbytes
    went = "would go" if report.vacuum is not None and report.vacuum.dry_run else "went"
    return (
        f"retain {report.topic}: {segments:,} segments and {files:,} files ({megabytes(nbytes)}) {went} "
        f"in {report.seconds:.1f} s"
    )


def _expired(reports: Sequence[RetainReport], dry_run: bool) -> str:
    rows = [
        (
            f"{report.topic}-{item.partition}",
            REASONS[reason],
            f"{segments:,} of {item.segments:,}",
            megabytes(nbytes),
            f"{item.log_start_before:,} -> {item.log_start:,}",
        )
        for report in reports
        for item in report.expired
        for reason, segments, nbytes in item.reasons
    ]
    headings = ("PARTITION", "WOULD EXPIRE BY" if dry_run else "EXPIRED BY", "SEGMENTS", "BYTES", "LOG START")
    return table(headings, rows, (0, 1)) if rows else ""


def _removed(reports: Sequence[RetainReport], dry_run: bool) -> str:
    rows = [
        (report.topic, item.kind, f"{item.objects:,}", megabytes(item.nbytes), item.reason)
        for report in reports
        if report.vacuum is not None
        for item in report.vacuum.removed
    ]
    if not rows:
        return ""
    objects = sum(report.vacuum.objects for report in reports if report.vacuum is not None)
    nbytes = sum(report.vacuum.nbytes for report in reports if report.vacuum is not None)
    rows.append(("all", "", f"{objects:,}", megabytes(nbytes), ""))
    return table(("TOPIC", "WOULD GO" if dry_run else "GONE", "FILES", "BYTES", "WHY"), rows, (0, 1, 4))


def _notes(report: RetainReport) -> list[str]:
    notes = []
    if report.resolved:
        plural = "" if report.resolved == 1 else "s"
        notes.append(f"the outcome of {report.resolved:,} transaction{plural} was recorded")
    vacuumed = report.vacuum
    if vacuumed is None:
        return notes
    would = "would be" if vacuumed.dry_run else "were"
    if vacuumed.held:
        notes.append(f"{vacuumed.held:,} files are kept by holds")
    if vacuumed.foreign:
        notes.append(f"{vacuumed.foreign:,} objects in its data folders are not sparklog's and stay")
    if vacuumed.ended_holds:
        notes.append(f"expired holds {would} released: {', '.join(vacuumed.ended_holds)}")
    if vacuumed.expired_groups:
        names = ", ".join(vacuumed.expired_groups)
        notes.append(f"expired offsets of {len(vacuumed.expired_groups):,} groups {would} dropped: {names}")
    if vacuumed.idle_writers:
        notes.append(f"{len(vacuumed.idle_writers):,} writers idle for 90 days {would} forgotten")
    return notes


def document(reports: Sequence[RetainReport], *, root: str, now_ms: int, dry_run: bool) -> dict[str, object]:
    """Return the report as one JSON object; bytes and counts are exact."""
    return {
        "root": root,
        "nowMs": now_ms,
        "dryRun": dry_run,
        "failed": any(report.failed for report in reports),
        "topics": [_topic(report) for report in reports],
    }


def _topic(report: RetainReport) -> dict[str, object]:
    return {
        "topic": report.topic,
        "deleted": report.deleted,
        "partitions": report.partitions,
        "resolvedTransactions": report.resolved,
        "seconds": round(report.seconds, 3),
        "expired": [_partition(item) for item in report.expired],
        "vacuum": None if report.vacuum is None else _vacuum(report.vacuum),
        "failures": [{"what": item.title, "code": item.code, "message": item.message} for item in report.failures],
    }


def _partition(item: PartitionExpiry) -> dict[str, object]:
    return {
        "partition": item.partition,
        "logStartBefore": item.log_start_before,
        "logStart": item.log_start,
        "logEnd": item.log_end,
        "segments": item.segments,
        "bytes": item.nbytes,
        "gone": [
            {"reason": reason, "segments": segments, "bytes": nbytes} for reason, segments, nbytes in item.reasons
        ],
    }


def _vacuum(vacuumed: VacuumReport) -> dict[str, object]:
    return {
        "floorBefore": vacuumed.floor_before,
        "floor": vacuumed.floor,
        "removed": [
            {"kind": item.kind, "reason": item.reason, "files": item.objects, "bytes": item.nbytes}
            for item in vacuumed.removed
        ],
        "held": vacuumed.held,
        "foreign": vacuumed.foreign,
        "endedHolds": list(vacuumed.ended_holds),
        "idleWriters": list(vacuumed.idle_writers),
        "expiredGroups": list(vacuumed.expired_groups),
    }
