"""Gather the report of a sparklog root or a Kafka log directory. No files are changed.

A report lists the log and data files of each topic, and performs a dry run of maintenance, which only reads metadata.
If a topic cannot be read, a note is added and the other topics are reported. Records are only read for their
timestamps: the first unread record of each group, and, in a Kafka log directory, the first record of each open
transaction.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from sparklog.common.units import HOUR_MS
from sparklog.compaction.run import CompactOptions, compact_root
from sparklog.errors import BadRequest, SparklogError
from sparklog.groups.group import DEAD
from sparklog.groups.lag import Groups, Lag, lag
from sparklog.kafka.importing.coordinators import UNKNOWN, KafkaGroups, has_groups
from sparklog.kafka.in_place.directory import CONSUMER_OFFSETS, is_internal
from sparklog.kafka.in_place.partition_state import PartitionState
from sparklog.kafka.in_place.view import KafkaView
from sparklog.log.decisions.decision_log import timeout_of
from sparklog.log.journal.names import topic_names
from sparklog.log.state.history import History
from sparklog.log.state.slice_table import Slices, Snapshot
from sparklog.log.state.view import LogView, OffsetRange
from sparklog.log.topic.root import Root, RootView
from sparklog.maintenance.report import TopicReport
from sparklog.maintenance.work_items import InProcess, Settings
from sparklog.retention.backlog import plan_topic
from sparklog.retention.expiry_plan import REASONS
from sparklog.retention.retain import RetainReport, retain_root
from sparklog.retention.vacuum import unreferenced
from sparklog.tools.report.job_states import JobStatus, has_jobs
from sparklog.tools.report.report_data import (
    ATTENTION,
    HOURS,
    Activity,
    Disk,
    GroupFacts,
    GroupPartition,
    Note,
    OpenTransaction,
    PartitionFacts,
    PlannedWork,
    Removal,
    RootReport,
    TopicFacts,
    health,
)

CHUNK_SLICES = 4096
"""Number of slices per step of the computation of bytes by hour."""
Times = npt.NDArray[np.int64]


def gather(
    view: LogView,
    settings: Settings,
    *,
    topics: Sequence[str] = (),
    made_by: str = "sparklog",
    maintenance: bool = True,
) -> RootReport:
    """Gather a report as of `settings.now_ms`.

    Args:
        topics: names of the topics to report. If empty, all topics are reported.
        made_by: the program and its version, for the footer of the report.
        maintenance: True to plan the next maintenance run.

    Raises:
        NotFound: If a topic does not exist.
        BadRequest: If the view is neither a root nor a Kafka log directory.
    """
    if isinstance(view, RootView):
        report = _gather_root(view, settings, tuple(dict.fromkeys(topics)), maintenance)
    elif isinstance(view, KafkaView):
        report = _gather_kafka(view, settings, tuple(dict.fromkeys(topics)))
    else:
        raise BadRequest(f"expected a sparklog root or a Kafka log directory, found a {type(view).__name__}")
    usage = shutil.disk_usage(view.location) if os.path.isdir(view.location) else None
    return health(replace(report, made_by=made_by, disk=None if usage is None else Disk(usage.total, usage.free)))


# -- a sparklog root


def _gather_root(view: RootView, settings: Settings, topics: tuple[str, ...], maintenance: bool) -> RootReport:
    root, notes = view.root, list[Note]()
    settings = settings.of_root(root)
    for name in topics:
        root.topic(name)
    jobs = _jobs(root, settings, notes)
    facts: list[TopicFacts] = []
    transactions: list[OpenTransaction] = []
    for name in topics or sorted(topic_names(root.store)):
        try:
            if root.engine.log(name).refresh().topic_state.exists:
                snapshot = root.topic(name).log.read_snapshot()
                unreferenced_bytes = unreferenced(root.topic(name))[1] if maintenance else None
                topic = _topic(root, snapshot, settings)
                open_transactions = _open_transactions(root, snapshot, settings.now_ms)
                # The job states contain the topic only if the topic can be read.
                backlog = None if jobs is None else jobs.add(snapshot)
                facts.append(replace(topic, unreferenced_bytes=unreferenced_bytes, backlog=backlog))
                transactions += open_transactions
        except SparklogError as error:
            notes.append(Note(ATTENTION, name, f"the topic cannot be read: {error} [{error.code}]"))
    planned, removals = _plan_maintenance(root, settings, topics, facts, notes) if maintenance else (None, None)
    groups = _groups(root, settings.now_ms, topics, notes)
    return RootReport(
        location=view.location,
        kind="root",
        now_ms=settings.now_ms,
        topics=tuple(facts),
        groups=groups,
        held_back=tuple(transactions),
        doing=planned,
        removals=removals,
        notes=tuple(notes),
        jobs=None if jobs is None else jobs.states(),
    )


def _jobs(root: Root, settings: Settings, notes: list[Note]) -> JobStatus | None:
    try:
        return JobStatus(root, settings) if has_jobs(root) else None
    except SparklogError as error:
        notes.append(Note(ATTENTION, "", f"the recorded runs of jobs cannot be read: {error} [{error.code}]"))
        return None


def _plan_maintenance(
    root: Root, settings: Settings, topics: tuple[str, ...], facts: Sequence[TopicFacts], notes: list[Note]
) -> tuple[tuple[PlannedWork, ...], tuple[Removal, ...]]:
    """Return the work of the next maintenance run and the files to delete. Add notes about expected failures."""
    compaction: Sequence[TopicReport] = ()
    if facts:
        options = CompactOptions(topics=[topic.topic for topic in facts], dry_run=True)
        compaction = compact_root(root, settings, InProcess(), options)
    retention = retain_root(root, settings, topics=topics, dry_run=True)
    for run in (*compaction, *retention):
        notes += [Note(ATTENTION, fail.topic, f"maintenance would fail: {fail.line()}") for fail in run.failures]
    vacuums = [(run.topic, files) for run in retention if run.vacuum is not None for files in run.vacuum.removed]
    removals = tuple(Removal(name, files.kind, files.reason, files.objects, files.nbytes) for name, files in vacuums)
    return tuple(_planned_work(compaction, retention)), removals


def _topic(root: Root, snapshot: Snapshot, settings: Settings) -> TopicFacts:
    name, state = snapshot.topic, snapshot.state
    policy = ",".join(settings.configs_of(name, state.configs).cleanup_policy)
    configs = dict(sorted(state.configs.explicit.items()))
    activity = _activity(root, name, snapshot, settings.now_ms)
    partitions, bytes_by_hour = _partitions(snapshot, settings), _slices_by_hour(snapshot.slices.all(), settings.now_ms)
    return TopicFacts(
        topic=name,
        topic_id=state.topic_id,
        internal=is_internal(name),
        cleanup_policy=policy,
        configs=configs,
        partitions=partitions,
        activity=activity,
        bytes_by_hour=bytes_by_hour,
    )


def _partitions(snapshot: Snapshot, settings: Settings) -> tuple[PartitionFacts, ...]:
    state, rows = snapshot.state, snapshot.slices.all()
    stable, sealed = state.last_stable(), rows.sealed()
    configs = settings.configs_of(snapshot.topic, state.configs)
    has_time_limit = configs.is_deleting and configs.retention_ms >= 0
    partitions = []
    for expiry, segments in plan_topic(snapshot, settings):
        partition = expiry.partition
        span = rows.partition_rows(partition)
        log_start = int(state.log_start[partition])
        expiring = int(rows.records[span][rows.end[span] <= expiry.log_start].sum())
        first_ms = segments[0].max_ts
        min_ts, max_ts = rows.min_ts[span], rows.max_ts[span]
        has_times = min_ts >= 0
        partitions.append(
            PartitionFacts(
                partition=partition,
                log_start=log_start,
                last_stable=int(stable[partition]),
                log_end=int(state.log_end[partition]),
                records=int(rows.records[span].sum()),
                bytes=int(rows.size[span].sum()),
                oldest_ms=int(min_ts[has_times].min()) if has_times.any() else None,
                newest_ms=int(max_ts[has_times].max()) if has_times.any() else None,
                slices=span.stop - span.start,
                unsealed=int((~sealed[span]).sum()),
                # delete-records may already have removed part of the first slice.
                expiring=min(expiring, expiry.log_start - log_start),
                next_log_start=expiry.log_start,
                expires_ms=first_ms + configs.retention_ms if has_time_limit and first_ms >= 0 else None,
            )
        )
    return tuple(partitions)


def _activity(root: Root, name: str, snapshot: Snapshot, now_ms: int) -> Activity:
    history = History(root.store, name)
    modified = history.commits.modified_ms
    age = now_ms - modified[modified <= now_ms]
    checkpoint = max(history.checkpoints, default=None)
    return Activity(
        version=snapshot.version,
        newest_ms=snapshot.state.created_ms,
        last_hour=int((age < HOUR_MS).sum()),
        last_day=int((age < 24 * HOUR_MS).sum()),
        since_checkpoint=None if checkpoint is None else max(0, snapshot.version - checkpoint),
        commits_by_hour=_count_by_hour(modified[modified <= now_ms], None, now_ms),
    )


def _open_transactions(root: Root, snapshot: Snapshot, now_ms: int) -> list[OpenTransaction]:
    """Return the open transactions of a snapshot. The ages are determined with the store's clock."""
    name, transactions = snapshot.topic, list[OpenTransaction]()
    for prepare in snapshot.state.open:
        age = max(0, now_ms - root.engine.decisions.prepared_ms(name, prepare))
        owner = f"{prepare.txn.id} #{prepare.txn.n}"
        transactions += [
            OpenTransaction(name, partition, owner, first, prepare.end[partition], age, timeout_of(prepare))
            for partition, first in prepare.first.items()
        ]
    for imported in snapshot.state.kafka_open:
        # Imported transactions do not have a timeout in sparklog, because only Kafka or an operator can end these
        # transactions.
        owner = f"Kafka's {imported.transactional_id or f'producer {imported.producer}'}"
        since = None if imported.start_ms is None else max(0, now_ms - imported.start_ms)
        transactions.append(OpenTransaction(name, imported.partition, owner, imported.first, imported.end, since, None))
    return sorted(transactions, key=lambda transaction: (transaction.partition, transaction.first))


def _groups(root: Root, now_ms: int, topics: tuple[str, ...], notes: list[Note]) -> tuple[GroupFacts, ...]:
    """Return all groups, or the groups that read one of `topics`. Add a note about each group that cannot be read."""
    damaged, lag_failures = list[SparklogError](), list[SparklogError]()
    groups = Groups(root)
    described = groups.descriptions(groups.names(damaged), damaged)
    existing = {name: group for name, group in described.items() if group.state != DEAD}
    partitions: dict[str, list[GroupPartition]] = {name: [] for name in existing}
    # A single call for all groups reads each topic only once.
    for row in lag(root, existing, now_ms=now_ms, failures=lag_failures):
        if not topics or row.topic in topics:
            partitions[row.group].append(_group_partition(row))
    facts = []
    for name, group in existing.items():
        if partitions[name] or not topics:
            owners = ", ".join(member.instance_id or member.id for member in group.members) or None
            facts.append(GroupFacts(name, group.state, owners, tuple(partitions[name]), len(group.members)))
    notes += [Note(ATTENTION, "", f"a consumer group cannot be read: {error} [{error.code}]") for error in damaged]
    notes += _lag_notes(lag_failures)
    return tuple(facts)


def _lag_notes(failures: Sequence[SparklogError]) -> list[Note]:
    messages = dict.fromkeys(f"the lag of some groups is unknown: {error} [{error.code}]" for error in failures)
    return [Note(ATTENTION, "", message) for message in messages]


def _planned_work(compaction: Sequence[TopicReport], retention: Sequence[RetainReport]) -> list[PlannedWork]:
    planned = [
        PlannedWork(work.topic, work.partition, work.action, work.nbytes, work.is_due, work.why)
        for report in compaction
        for work in report.planned
    ]
    for report in retention:
        for expired in report.expired:
            for deleted in expired.gone:
                segments = f"{deleted.segments:,} of {expired.segments:,} segments"
                why = f"{segments} by {REASONS[deleted.reason]}, to offset {expired.log_start:,}"
                planned.append(PlannedWork(report.topic, expired.partition, "expire", deleted.nbytes, True, why))
    return sorted(planned, key=lambda work: (not work.due, work.topic, work.partition))


# -- a Kafka log directory


def _gather_kafka(view: KafkaView, settings: Settings, topics: tuple[str, ...]) -> RootReport:
    notes: list[Note] = []
    facts: list[TopicFacts] = []
    transactions: list[OpenTransaction] = []
    for name in topics or view.topics():
        try:
            view.refresh([name])
            topic = _kafka_topic(view, name, settings.now_ms)
            open_transactions = _kafka_transactions(view, name, settings.now_ms)
            corruption = list(_kafka_corruption(view, name))
            facts.append(topic)
            transactions += open_transactions
            notes += corruption
        except SparklogError as error:
            if topics:
                raise
            notes.append(Note(ATTENTION, name, f"the topic cannot be read: {error} [{error.code}]"))
    groups = _kafka_groups(view, facts, settings.now_ms, topics, notes)
    return RootReport(
        location=view.location,
        kind="kafka",
        now_ms=settings.now_ms,
        topics=tuple(facts),
        groups=groups,
        held_back=tuple(transactions),
        doing=None,
        removals=None,
        notes=tuple(notes),
    )


def _kafka_topic(view: KafkaView, name: str, now_ms: int) -> TopicFacts:
    bounds = sorted(view.bounds(name).items())
    stored = view.stored([OffsetRange(name, partition, bound.log_start, bound.log_end) for partition, bound in bounds])
    firsts = view.offsets_for_timestamps(name, {partition: 0 for partition, _ in bounds})
    states = view.partition_states(name)
    partitions = []
    for (partition, bound), contents in zip(bounds, stored, strict=True):
        first = firsts[partition]
        max_timestamp = max((segment.max_timestamp for segment in states[partition].segments), default=-1)
        partitions.append(
            PartitionFacts(
                partition=partition,
                log_start=bound.log_start,
                last_stable=bound.last_stable,
                log_end=bound.log_end,
                records=None,
                bytes=contents.nbytes,
                oldest_ms=None if first is None else first.timestamp,
                newest_ms=max_timestamp if max_timestamp >= 0 and bound.log_end > bound.log_start else None,
                slices=None,
                unsealed=None,
            )
        )
    return TopicFacts(
        topic=name,
        topic_id=view.topic_id(name),
        internal=is_internal(name),
        cleanup_policy=None,
        configs=None,
        partitions=tuple(partitions),
        activity=None,
        bytes_by_hour=_blocks_by_hour(states.values(), now_ms),
    )


def _kafka_transactions(view: KafkaView, name: str, now_ms: int) -> list[OpenTransaction]:
    bounds, transactions = view.bounds(name), list[OpenTransaction]()
    for partition, state in sorted(view.partition_states(name).items()):
        bound = bounds[partition]
        if bound.last_stable == bound.log_end:
            continue
        for producer, first in sorted(state.transactions.open.items(), key=lambda item: item[1]):
            started_ms = None
            with suppress(SparklogError):
                started_ms = view.first_time(OffsetRange(name, partition, max(first, bound.log_start), bound.log_end))
            age = None if started_ms is None or started_ms < 0 else max(0, now_ms - started_ms)
            owner = f"Kafka's producer {producer}"
            transactions.append(OpenTransaction(name, partition, owner, first, bound.log_end, age, None))
    return transactions


def _kafka_corruption(view: KafkaView, name: str) -> Iterator[Note]:
    """Yield a note for each partition with corrupt bytes. A partially written end of the log is not corrupt."""
    for partition, state in sorted(view.partition_states(name).items()):
        corrupt = (
            segment
            for segment in state.segments
            if segment.stop == "corrupt" or (segment.closed and segment.stop != "end")
        )
        if (first := next(corrupt, None)) is not None:
            where = f"partition {partition} is corrupt in {first.name.path.name} at byte {first.end:,}"
            remedy = "run `sparklog verify` to find all corruption, and restore the file from a replica or a backup"
            yield Note(ATTENTION, name, f"{where}: {first.reason}; {remedy}")


def _kafka_groups(
    view: KafkaView, topics: Sequence[TopicFacts], now_ms: int, names: tuple[str, ...], notes: list[Note]
) -> tuple[GroupFacts, ...] | None:
    """Return the groups in the local partitions of `__consumer_offsets`, or None if the directory does not contain any
    of these partitions.
    """
    if not has_groups(view):
        return None
    try:
        groups = KafkaGroups(view, now_ms)
        rows = groups.lag(topics={topic.topic for topic in topics})
    except SparklogError as error:
        notes.append(Note(ATTENTION, CONSUMER_OFFSETS, f"consumer groups cannot be read: {error} [{error.code}]"))
        return None
    notes += _lag_notes(groups.failures)
    partitions: dict[str, list[GroupPartition]] = {name: [] for name in groups.names()}
    for row in rows:
        partitions[row.group].append(_group_partition(row))
    return tuple(GroupFacts(name, UNKNOWN, None, tuple(mine)) for name, mine in partitions.items() if mine or not names)


def _group_partition(row: Lag) -> GroupPartition:
    return GroupPartition(
        row.topic, row.partition, row.current_offset, row.log_start, row.log_end, row.lag, row.seconds
    )


# -- counts by hour: commits, and stored bytes by record timestamp, which are computed without reading records


def _hour_limits(now_ms: int) -> Times:
    """Return the start of each of the last `HOURS` clock hours, including the current hour, and the end of the current
    hour.
    """
    end = (now_ms // HOUR_MS + 1) * HOUR_MS
    return end - HOUR_MS * np.arange(HOURS, -1, -1, dtype=np.int64)


def _slices_by_hour(slices: Slices, now_ms: int) -> tuple[int, ...]:
    """Return stored bytes by hour. The bytes of a slice are distributed evenly from its first to its last timestamp."""
    limits = _hour_limits(now_ms)
    recent = (slices.max_ts >= limits[0]) & (slices.min_ts >= 0)
    first, size = slices.min_ts[recent], slices.size[recent]
    span = slices.max_ts[recent] - first + 1
    before = np.zeros(len(limits))
    for row in range(0, len(first), CHUNK_SLICES):
        chunk = slice(row, row + CHUNK_SLICES)
        before += np.clip((limits[:, None] - first[chunk]) / span[chunk], 0, 1) @ size[chunk]
    return tuple(np.diff(before).round().astype(np.int64).tolist())


def _blocks_by_hour(states: Iterable[PartitionState], now_ms: int) -> tuple[int, ...]:
    """Return the number of bytes stored in a Kafka log directory for each hour. The bytes of a block count for the hour
    of the maximum timestamp of the block.
    """
    times, sizes = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    for segment in (segment for state in states for segment in state.segments):
        times.append(np.array(segment.block_timestamp, np.int64))
        starts = np.array([*segment.block_position, segment.end], np.int64)
        sizes.append(starts[1:] - starts[:-1])
    return _count_by_hour(np.concatenate(times), np.concatenate(sizes), now_ms)


def _count_by_hour(times: Times, weights: Times | None, now_ms: int) -> tuple[int, ...]:
    counts, _ = np.histogram(times, _hour_limits(now_ms), weights=weights)
    return tuple(int(number) for number in counts)
