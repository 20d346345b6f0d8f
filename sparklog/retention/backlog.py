"""Plan which segments of a topic expire, and predict the work of a run of `retain` on the topic.

Both are computed from the slice table. Only two cases require further requests: the age of a segment without timestamps
is the modification time of its file, and a record whose timestamp is in the future is looked up in its partition.
"""

from __future__ import annotations

from collections.abc import Callable

from sparklog.common.units import size_text
from sparklog.log.journal.names import file_key
from sparklog.log.state.commit import RETAIN
from sparklog.log.state.segments import RollRule, Segment, segments_of
from sparklog.log.state.slice_table import Slices, Snapshot
from sparklog.maintenance.report import Backlog, Due, FutureRecord, allowed_wait_ms
from sparklog.maintenance.work_items import Settings
from sparklog.retention.expiry_plan import SIZE, START, TIME, Expiry, plan_expiry

AHEAD_MS = 3_600_000
"""Tolerated clock skew of producers, which is Kafka's default of `message.timestamp.after.max.ms`."""


def plan_topic(snapshot: Snapshot, settings: Settings) -> list[tuple[Expiry, list[Segment]]]:
    """Plan the expiry of each partition. Return the plan together with all segments of the partition."""
    state = snapshot.state
    configs = settings.configs_of(snapshot.topic, state.configs)
    rule = RollRule.of(configs, state.topic_id)
    table_rows = snapshot.slices.all()
    planned = []
    for partition in range(state.partitions):
        log_end = int(state.log_end[partition])
        slices = table_rows[table_rows.partition_rows(partition)]
        segments = segments_of(slices, partition, log_end, rule)
        expiry = plan_expiry(
            segments,
            partition=partition,
            log_start=int(state.log_start[partition]),
            log_end=log_end,
            # Committed records are durable, and there are no replicas to wait for.
            high_watermark=log_end,
            configs=configs,
            now_ms=settings.now_ms,
            modified_ms=_file_times(snapshot, slices),
        )
        planned.append((expiry, segments))
    return planned


def future_records(snapshot: Snapshot, settings: Settings) -> tuple[FutureRecord, ...]:
    """Return the first record of each partition whose timestamp is so far in the future that it delays retention."""
    configs = settings.configs_of(snapshot.topic, snapshot.state.configs)
    if not configs.is_deleting or configs.retention_ms < 0:
        return ()
    rows, after = snapshot.slices.all(), settings.now_ms + AHEAD_MS + 1
    late = {int(partition): after for partition in rows.partition[rows.max_ts >= after]}
    if not late:
        return ()
    from sparklog.log.read.time_lookup import offsets_for_timestamps

    found = offsets_for_timestamps(snapshot, late, newer=lambda: snapshot)
    return tuple(
        FutureRecord(partition, record.offset, record.timestamp, record.timestamp + configs.retention_ms)
        for partition, record in found.items()
        if record is not None
    )


def _file_times(snapshot: Snapshot, slices: Slices) -> Callable[[Segment], int]:
    """Return a function that returns the modification time of a segment's file. The segment of a missing file never
    expires because of its age.
    """

    def modified_ms(segment: Segment) -> int:
        info = None
        if segment.rows:
            path = slices.path(segment.first_row + segment.rows - 1)
            info = snapshot.store.stat(file_key(snapshot.topic, path))
        return 2**63 - 1 if info is None else info.modified_ms

    return modified_ms


def expiry_backlog(snapshot: Snapshot, settings: Settings) -> Backlog:
    """Return the pending work of `retain` as of `settings.now_ms`, except files to delete."""
    configs, rows = settings.configs_of(snapshot.topic, snapshot.state.configs), snapshot.slices.all()
    oldest_ms, expired_ms, excess = list[int](), list[int](), 0
    for expiry, _ in plan_topic(snapshot, settings):
        for item in expiry.expired:
            if item.reason == TIME and item.segment.max_ts >= 0:
                expired_ms.append(item.segment.max_ts + configs.retention_ms)
            excess += item.segment.size if item.reason == SIZE else 0
        if any(item.reason != START for item in expiry.expired):
            span = rows.partition_rows(expiry.partition)
            times = rows.min_ts[span][rows.end[span] <= expiry.log_start]
            oldest_ms += times[times >= 0].tolist()
    due = []
    if expired_ms:
        why = "records older than retention.ms"
        due.append(Due(RETAIN, why, min(expired_ms), allowed_wait_ms(configs.retention_ms)))
    if excess:
        due.append(Due(RETAIN, f"{size_text(excess)} above retention.bytes"))
    future = future_records(snapshot, settings)
    return Backlog(oldest_expired_ms=min(oldest_ms, default=None), due=tuple(due), future=future)
