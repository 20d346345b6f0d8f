"""Gather a report from a sparklog root, or from a Kafka directory read in place. Nothing is changed.

Costs a listing of each topic's log and data files and the dry runs of maintenance: metadata only. A topic that cannot
be read is a note, and the rest is reported. Records are read for their times only: the first one that a group has not
read, and in a Kafka directory the first one of each open transaction.
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
from sparklog.retention.expiry_plan import REASONS
from sparklog.retention.retain import RetainReport, plan_topic, retain_root
from sparklog.retention.vacuum import unreferenced
from sparklog.tools.report.job_states import JobLook, has_jobs
from sparklog.tools.report.report_data import (
    ATTENTION,
    HOURS,
    Activity,
    Disk,
    Doing,
    GroupFacts,
    GroupPartition,
    HeldBack,
    Note,
    PartitionFacts,
    RootReport,
    TopicFacts,
    Waste,
    health,
)

BLOCK = 4096
Times = npt.NDArray[np.int64]


def gather(
    view: LogView,
    settings: Settings,
    *,
    topics: Sequence[str] = (),
    made_by: str = "sparklog",
    maintenance: bool = True,
) -> RootReport:
    """Gather a report of these topics (none given: all), as of `settings.now_ms`, which decides ages and what is due.

    `made_by`: the program and its version, for the report's foot. `maintenance`: also plan what its next run would do.

    `NotFound` if a topic that is named does not exist; `BadRequest` for a view of another kind.
    """
    if isinstance(view, RootView):
        report = _root(view, settings, tuple(dict.fromkeys(topics)), maintenance)
    elif isinstance(view, KafkaView):
        report = _kafka(view, settings, tuple(dict.fromkeys(topics)))
    else:
        raise BadRequest(f"expected a sparklog root or a Kafka directory to report on, found {type(view).__name__}")
    usage = shutil.disk_usage(view.location) if os.path.isdir(view.location) else None
    return health(replace(report, made_by=made_by, disk=None if usage is None else Disk(usage.total, usage.free)))


# -- a sparklog root


def _root(view: RootView, settings: Settings, topics: tuple[str, ...], maintenance: bool) -> RootReport:
    root, notes = view.root, list[Note]()
    settings = settings.of_root(root)
    for name in topics:
        root.topic(name)
    jobs = _jobs(root, settings, notes)
    facts: list[TopicFacts] = []
    held_back: list[HeldBack] = []
    for name in topics or sorted(topic_names(root.store)):
        try:
            if root.engine.log(name).refresh().topic_state.exists:
                snapshot = root.topic(name).log.read_snapshot()
                waiting = unreferenced(root.topic(name))[1] if maintenance else None
                backlog = None if jobs is None else jobs.add(snapshot)
                topic = _topic(root, snapshot, settings)
                facts.append(replace(topic, unreferenced_bytes=waiting, backlog=backlog))
                held_back += _held_back(root, snapshot, settings.now_ms)
        except SparklogError as error:
            notes.append(Note(ATTENTION, name, f"cannot be read: {error} [{error.code}]"))
    doing, removals = _next_run(root, settings, topics, facts, notes) if maintenance else (None, None)
    return RootReport(
        location=view.location,
        kind="root",
        now_ms=settings.now_ms,
        topics=tuple(facts),
        groups=tuple(_groups(root, settings.now_ms, topics, notes)),
        held_back=tuple(held_back),
        doing=doing,
        removals=removals,
        notes=tuple(notes),
        jobs=None if jobs is None else jobs.states(),
    )


def _jobs(root: Root, settings: Settings, notes: list[Note]) -> JobLook | None:
    try:
        return JobLook(root, settings) if has_jobs(root) else None
    except SparklogError as error:
        notes.append(Note(ATTENTION, "", f"what the jobs have recorded cannot be read: {error} [{error.code}]"))
        return None


def _next_run(
    root: Root, settings: Settings, topics: tuple[str, ...], facts: Sequence[TopicFacts], notes: list[Note]
) -> tuple[tuple[Doing, ...], tuple[Waste, ...]]:
    """Plan the next run of maintenance: what it would do, and the files it would remove; what would fail is a note."""
    compaction: Sequence[TopicReport] = ()
    if facts:
        options = CompactOptions(topics=[topic.topic for topic in facts], dry_run=True)
        compaction = compact_root(root, settings, InProcess(), options)
    retention = retain_root(root, settings, topics=topics, dry_run=True)
    for run in (*compaction, *retention):
        notes += [Note(ATTENTION, item.topic, f"maintenance would fail: {item.line()}") for item in run.failures]
    vacuums = [(run.topic, item) for run in retention if run.vacuum is not None for item in run.vacuum.removed]
    waste = tuple(Waste(name, item.kind, item.reason, item.objects, item.nbytes) for name, item in vacuums)
    return tuple(_doing(compaction, retention)), waste


def _topic(root: Root, snapshot: Snapshot, settings: Settings) -> TopicFacts:
    name, state = snapshot.topic, snapshot.state
    policy = ",".join(settings.configs_of(name, state.configs).cleanup_policy)
    configs = dict(sorted(state.configs.explicit.items()))
    activity = _activity(root, name, snapshot, settings.now_ms)
    partitions, bytes_by_hour = _partitions(snapshot, settings), _slices_by_hour(snapshot.slices.all(), settings.now_ms)
    internal = is_internal(name)
    return TopicFacts(name, state.topic_id, internal, policy, configs, partitions, activity, bytes_by_hour)


def _partitions(snapshot: Snapshot, settings: Settings) -> tuple[PartitionFacts, ...]:
    state, rows = snapshot.state, snapshot.slices.all()
    stable, sealed = state.last_stable(), rows.sealed()
    configs = settings.configs_of(snapshot.topic, state.configs)
    timed_out = configs.is_deleting and configs.retention_ms >= 0
    partitions = []
    for expiry, segments in plan_topic(snapshot, settings):
        partition = expiry.partition
        span = rows.partition_rows(partition)
        log_start = int(state.log_start[partition])
        gone = int(rows.records[span][rows.end[span] <= expiry.log_start].sum())
        first_ms = segments[0].max_ts
        oldest, newest = rows.min_ts[span], rows.max_ts[span]
        timed = oldest >= 0
        partitions.append(
            PartitionFacts(
                partition=partition,
                log_start=log_start,
                last_stable=int(stable[partition]),
                log_end=int(state.log_end[partition]),
                records=int(rows.records[span].sum()),
                bytes=int(rows.size[span].sum()),
                oldest_ms=int(oldest[timed].min()) if timed.any() else None,
                newest_ms=int(newest[timed].max()) if timed.any() else None,
                slices=span.stop - span.start,
                unsealed=int((~sealed[span]).sum()),
                # Of the first slice, records may have gone before (delete-records).
                expiring=min(gone, expiry.log_start - log_start),
                next_log_start=expiry.log_start,
                expires_ms=first_ms + configs.retention_ms if timed_out and first_ms >= 0 else None,
            )
        )
    return tuple(partitions)


def _activity(root: Root, name: str, snapshot: Snapshot, now_ms: int) -> Activity:
    history = History(root.store, name)
    modified = history.commits.modified_ms
    age = now_ms - modified[modified <= now_ms]
    newest = max(history.checkpoints, default=None)
    return Activity(
        version=snapshot.version,
        newest_ms=snapshot.state.made_ms,
        last_hour=int((age < HOUR_MS).sum()),
        last_day=int((age < 24 * HOUR_MS).sum()),
        since_checkpoint=None if newest is None else max(0, snapshot.version - newest),
        commits_by_hour=_counted(modified[modified <= now_ms], None, now_ms),
    )


def _held_back(root: Root, snapshot: Snapshot, now_ms: int) -> list[HeldBack]:
    """Return the open transactions of this snapshot, which knows the decided ones. Ages are by the store's clock."""
    name, held_back = snapshot.topic, list[HeldBack]()
    for prepare in snapshot.state.open:
        age = max(0, now_ms - root.engine.decisions.prepared_ms(name, prepare))
        owner = f"{prepare.txn.id} #{prepare.txn.n}"
        held_back += [
            HeldBack(name, partition, owner, first, prepare.end[partition], age, timeout_of(prepare))
            for partition, first in prepare.first.items()
        ]
    for kafkas in snapshot.state.kafka_open:
        # No timeout here: only Kafka, or an operator, ends these.
        owner = f"Kafka's {kafkas.transactional_id or f'producer {kafkas.producer}'}"
        since = None if kafkas.start_ms is None else max(0, now_ms - kafkas.start_ms)
        held_back.append(HeldBack(name, kafkas.partition, owner, kafkas.first, kafkas.end, since, None))
    return sorted(held_back, key=lambda held: (held.partition, held.first))


def _groups(root: Root, now_ms: int, topics: tuple[str, ...], notes: list[Note]) -> Iterator[GroupFacts]:
    """Return all groups, or those that read a chosen topic; a group that cannot be read becomes a note."""
    damaged, hidden = list[SparklogError](), list[SparklogError]()
    groups = Groups(root)
    described = groups.descriptions(groups.names(damaged), damaged)
    alive = {name: group for name, group in described.items() if group.state != DEAD}
    behind: dict[str, list[GroupPartition]] = {name: [] for name in alive}
    # All at once: each topic is looked at once, however many groups read it.
    for row in lag(root, alive, now_ms=now_ms, failures=hidden):
        if not topics or row.topic in topics:
            behind[row.group].append(_group_partition(row))
    for name, group in alive.items():
        if behind[name] or not topics:
            owners = ", ".join(member.instance_id or member.id for member in group.members) or None
            yield GroupFacts(name, group.state, owners, tuple(behind[name]), len(group.members))
    notes += [Note(ATTENTION, "", f"a consumer group cannot be read: {error} [{error.code}]") for error in damaged]
    notes += _hidden(hidden)


def _hidden(failures: Sequence[SparklogError]) -> list[Note]:
    what = "how far groups are behind is not known everywhere"
    return [Note(ATTENTION, "", message) for message in dict.fromkeys(f"{what}: {e} [{e.code}]" for e in failures)]


def _doing(compaction: Sequence[TopicReport], retention: Sequence[RetainReport]) -> list[Doing]:
    doing = []
    for item in (item for report in compaction for item in report.planned):
        left = item.why.startswith(("not due:", "refused:"))
        doing.append(Doing(item.topic, item.partition, item.action, item.nbytes, not left, item.why))
    for report in retention:
        for part in report.expired:
            for gone in part.gone:
                of_all = f"{gone.segments:,} of {part.segments:,} segments"
                why = f"{of_all} by {REASONS[gone.reason]}, to offset {part.log_start:,}"
                doing.append(Doing(report.topic, part.partition, "expire", gone.nbytes, True, why))
    return sorted(doing, key=lambda item: (not item.due, item.topic, item.partition))


# -- a Kafka directory


def _kafka(view: KafkaView, settings: Settings, topics: tuple[str, ...]) -> RootReport:
    notes: list[Note] = []
    facts: list[TopicFacts] = []
    held_back: list[HeldBack] = []
    for name in topics or view.topics():
        try:
            view.refresh([name])
            facts.append(_kafka_topic(view, name, settings.now_ms))
            held_back += _kafka_open(view, name, settings.now_ms)
            notes += _kafka_damage(view, name)
        except SparklogError as error:
            if topics:
                raise
            notes.append(Note(ATTENTION, name, f"cannot be read: {error} [{error.code}]"))
    groups, now_ms = _kafka_groups(view, facts, settings.now_ms, topics, notes), settings.now_ms
    return RootReport(
        location=view.location,
        kind="kafka",
        now_ms=now_ms,
        topics=tuple(facts),
        groups=groups,
        held_back=tuple(held_back),
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
        newest = max((segment.max_timestamp for segment in states[partition].segments), default=-1)
        partitions.append(
            PartitionFacts(
                partition=partition,
                log_start=bound.log_start,
                last_stable=bound.last_stable,
                log_end=bound.log_end,
                records=None,
                bytes=contents.nbytes,
                oldest_ms=None if first is None else first.timestamp,
                newest_ms=newest if newest >= 0 and bound.log_end > bound.log_start else None,
                slices=None,
                unsealed=None,
            )
        )
    bytes_by_hour = _blocks_by_hour(states.values(), now_ms)
    return TopicFacts(name, view.topic_id(name), is_internal(name), None, None, tuple(partitions), None, bytes_by_hour)


def _kafka_open(view: KafkaView, name: str, now_ms: int) -> list[HeldBack]:
    bounds, opened = view.bounds(name), list[HeldBack]()
    for partition, state in sorted(view.partition_states(name).items()):
        bound = bounds[partition]
        if bound.last_stable == bound.log_end:
            continue
        for producer, first in sorted(state.transactions.open.items(), key=lambda item: item[1]):
            begun = None
            with suppress(SparklogError):
                begun = view.first_time(OffsetRange(name, partition, max(first, bound.log_start), bound.log_end))
            age = None if begun is None or begun < 0 else max(0, now_ms - begun)
            opened.append(HeldBack(name, partition, f"Kafka's producer {producer}", first, bound.log_end, age, None))
    return opened


def _kafka_damage(view: KafkaView, name: str) -> Iterator[Note]:
    """Yield a note for each partition with bytes that are no batch. What the broker has begun to write is no damage."""
    for partition, state in sorted(view.partition_states(name).items()):
        damaged = (item for item in state.segments if item.stop == "corrupt" or (item.closed and item.stop != "end"))
        if (first := next(damaged, None)) is not None:
            where = f"partition {partition} is damaged in {first.name.path.name} at byte {first.end:,}"
            remedy = "`sparklog verify` lists all damage; a replica of the partition, or a backup, has its records"
            yield Note(ATTENTION, name, f"{where}: {first.reason}; {remedy}")


def _kafka_groups(
    view: KafkaView, topics: Sequence[TopicFacts], now_ms: int, names: tuple[str, ...], notes: list[Note]
) -> tuple[GroupFacts, ...] | None:
    """Return the groups of the coordinator's topic, in the partitions that are here; None where that topic is not."""
    if not has_groups(view):
        return None
    try:
        groups = KafkaGroups(view, now_ms)
        rows = groups.lag(topics={topic.topic for topic in topics})
    except SparklogError as error:
        notes.append(Note(ATTENTION, CONSUMER_OFFSETS, f"consumer groups cannot be read: {error} [{error.code}]"))
        return None
    notes += _hidden(groups.failures)
    parts: dict[str, list[GroupPartition]] = {name: [] for name in groups.names()}
    for row in rows:
        parts[row.group].append(_group_partition(row))
    return tuple(GroupFacts(name, UNKNOWN, None, tuple(rows)) for name, rows in parts.items() if rows or not names)


def _group_partition(row: Lag) -> GroupPartition:
    return GroupPartition(
        row.topic, row.partition, row.current_offset, row.log_start, row.log_end, row.lag, row.seconds
    )


# -- counts by the hour: commits, and stored bytes by the times of their records; no record is read for it


def _edges(now_ms: int) -> Times:
    """Return where the last `HOURS` hours by the clock begin, and where the last of them, the current one, ends."""
    end = (now_ms // HOUR_MS + 1) * HOUR_MS
    return end - HOUR_MS * np.arange(HOURS, -1, -1, dtype=np.int64)


def _slices_by_hour(slices: Slices, now_ms: int) -> tuple[int, ...]:
    """Return bytes, those of a slice spread evenly over the times of its records."""
    limits = _edges(now_ms)
    near = (slices.max_ts >= limits[0]) & (slices.min_ts >= 0)
    first, size = slices.min_ts[near], slices.size[near]
    span = slices.max_ts[near] - first + 1
    before = np.zeros(len(limits))
    for row in range(0, len(first), BLOCK):
        part = slice(row, row + BLOCK)
        before += np.clip((limits[:, None] - first[part]) / span[part], 0, 1) @ size[part]
    return tuple(np.diff(before).round().astype(np.int64).tolist())


def _blocks_by_hour(states: Iterable[PartitionState], now_ms: int) -> tuple[int, ...]:
    """Return bytes of a Kafka directory, those of a block by the time of its newest record."""
    times, sizes = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    for segment in (segment for state in states for segment in state.segments):
        times.append(np.array(segment.block_timestamp, np.int64))
        starts = np.array([*segment.block_position, segment.end], np.int64)
        sizes.append(starts[1:] - starts[:-1])
    return _counted(np.concatenate(times), np.concatenate(sizes), now_ms)


def _counted(times: Times, weights: Times | None, now_ms: int) -> tuple[int, ...]:
    counts, _ = np.histogram(times, _edges(now_ms), weights=weights)
    return tuple(int(number) for number in counts)
