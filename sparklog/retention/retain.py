"""Which segments of a partition expire: Kafka's retention rules (kafka-format.md, section 6), as a pure function.

Three rules, each with a scan of its own over what the ones before have left, from the oldest segment on, up to the
first that stays:

| reason | a segment goes if                                                     | applies              |
|--------|-----------------------------------------------------------------------|----------------------|
| start  | the next one begins at or below the log start (delete-records)        | always               |
| size   | what is left without it is at least `retention.bytes`                 | policy with `delete` |
| time   | its largest timestamp is more than `retention.ms` ago                 | policy with `delete` |

No scan passes the high watermark, and an empty last segment stays. The active segment goes like any other once all
of it has expired: the log then starts at its end. A timestamp from the future keeps its segment and all behind it.

A run of retention: expire what Kafka's rules expire, then vacuum, over one topic or all of a root.

What is decided of transactions is recorded first, and what is past its timeout aborted, so that a topic to which nobody
writes is not held back. Offsets of consumer groups expire by `offsets.retention.minutes`
(`sparklog.groups.collecting`).

Expiry is one commit per topic that carries new log starts and nothing else, applied as a maximum: runs at once, writers
and delete-records in between commute with it. It counts in Kafka's segments, sealed or not: where nobody seals, the
roll rule cuts the unsealed slices. What it takes is out of sight at once, and its files go with a vacuum once they
have been unnamed for `file.delete.delay.ms`. Deleted topics are vacuumed too.

A topic that fails is reported and the others are done.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from sparklog.errors import Conflict, NotFound, SparklogError
from sparklog.groups.collecting import collect_groups, kept_entries_ms
from sparklog.log.journal.names import GROUPS_FOLDER, TRANSACTIONS_FOLDER, file_key, is_topic_name
from sparklog.log.state.commit import RETAIN
from sparklog.log.state.configs import LEAST_DELETE_DELAY_MS, TopicConfigs
from sparklog.log.state.intents import LogStartIntent
from sparklog.log.state.segments import RollRule, Segment, segments_of
from sparklog.log.state.slice_table import Slices
from sparklog.log.state.snapshot import Snapshot
from sparklog.log.topic.root import Root
from sparklog.log.topic.topic import Topic
from sparklog.maintenance.report import Failure
from sparklog.maintenance.work import Runner, Settings, store_clock_ms
from sparklog.retention.vacuum import Removed, VacuumReport, remove_temporaries, vacuum
from sparklog.transactions.completion import collect, resolve_topic

START, SIZE, TIME = "start", "size", "time"
REASONS = {
    START: "below the log start offset",
    SIZE: "retention.bytes",
    TIME: "retention.ms",
}


@dataclass(frozen=True, slots=True)
class Expired:
    """A segment that goes, and the rule that takes it: one of `REASONS`."""

    segment: Segment
    reason: str


@dataclass(frozen=True, slots=True)
class Expiry:
    """What retention does to one partition: its new log start (never below the old one) and the segments that go."""

    partition: int
    log_start: int
    gone: tuple[Expired, ...]

    @property
    def nbytes(self) -> int:
        """Bytes of the segments that go."""
        return sum(item.segment.size for item in self.gone)


def plan_expiry(
    segments: Sequence[Segment],
    *,
    partition: int,
    log_start: int,
    log_end: int,
    high_watermark: int,
    configs: TopicConfigs,
    now_ms: int,
    modified_ms: Callable[[Segment], int] | None = None,
) -> Expiry:
    """What expires of one partition's segments (in offset order, the last one active) at `now_ms`.

    `modified_ms` gives the time of a segment that has no timestamp, as Kafka takes its file's; without it such a
    segment stays.
    """

    def stamp(segment: Segment) -> int | None:
        if segment.max_ts >= 0:
            return segment.max_ts
        return None if modified_ms is None else modified_ms(segment)

    def breached(segment: Segment, following: Segment | None) -> bool:
        return following is not None and following.base <= log_start

    def too_old(segment: Segment, following: Segment | None) -> bool:
        time = stamp(segment)
        return time is not None and now_ms - time > configs.retention_ms

    left = list(segments)
    gone: list[Expired] = []

    def scan(reason: str, goes: Callable[[Segment, Segment | None], bool]) -> None:
        nonlocal log_start
        count = _deletable(left, log_end, high_watermark, goes)
        if count == 0:
            return
        gone.extend(Expired(segment, reason) for segment in left[:count])
        del left[:count]
        # With none left the log is rolled first: a new segment at its end is the one that survives.
        survivor = left[0].base if left else log_end
        log_start = max(log_start, min(survivor, high_watermark))

    scan(START, breached)
    if configs.is_deleting:
        excess = sum(segment.size for segment in left) - configs.retention_bytes
        if configs.retention_bytes >= 0 and excess >= 0:
            scan(SIZE, _Excess(excess))
        if configs.retention_ms >= 0:
            scan(TIME, too_old)
    return Expiry(partition, log_start, tuple(gone))


class _Excess:
    """The size rule: takes segments as long as the rest of the log stays at or above `retention.bytes`."""

    def __init__(self, nbytes: int) -> None:
        self._left = nbytes

    def __call__(self, segment: Segment, following: Segment | None) -> bool:
        if self._left < segment.size:
            return False
        self._left -= segment.size
        return True


def _deletable(
    segments: Sequence[Segment], log_end: int, high_watermark: int, goes: Callable[[Segment, Segment | None], bool]
) -> int:
    """How many of the oldest segments a rule takes."""
    for count, segment in enumerate(segments):
        following = segments[count + 1] if count + 1 < len(segments) else None
        bound = log_end if following is None else following.base
        empty = following is None and segment.size == 0
        if high_watermark < bound or empty or not goes(segment, following):
            return count
    return len(segments)


ROOT_FILES = "(root)"
"""Stands for a topic in the report of what lies in the root's own folder."""
OLD_DECISION = "older than 7 days, and a checkpoint has what is left of it"
OLD_OFFSETS = "replaced more than {hours:,} hours ago, and a checkpoint has what is left of it"


@dataclass(frozen=True, slots=True)
class PartitionExpiry:
    """What expired of one partition, or would: `reasons` is (reason, segments, bytes) for each rule that took some.

    `segments` and `nbytes` are those before; records and bytes that go are whole slices below the new log start.
    """

    partition: int
    log_start_before: int
    log_start: int
    log_end: int
    segments: int
    nbytes: int
    reasons: tuple[tuple[str, int, int], ...]

    @property
    def segments_gone(self) -> int:
        return sum(count for _, count, _ in self.reasons)

    @property
    def nbytes_gone(self) -> int:
        return sum(nbytes for _, _, nbytes in self.reasons)


@dataclass(frozen=True, slots=True)
class RetainReport:
    """One topic: its partitions that lose something, how many there are, what the vacuum did, what failed.

    `resolved`: transactions whose outcome was recorded.
    """

    topic: str
    deleted: bool = False
    partitions: int = 0
    resolved: int = 0
    expired: tuple[PartitionExpiry, ...] = ()
    vacuum: VacuumReport | None = None
    failures: tuple[Failure, ...] = ()
    seconds: float = 0.0

    @property
    def failed(self) -> bool:
        """Whether anything could not be done."""
        return bool(self.failures)


def plan_topic(snapshot: Snapshot, settings: Settings) -> list[tuple[Expiry, list[Segment]]]:
    """Per partition what expires of it, with the segments it was judged by."""
    head = snapshot.head
    configs = settings.configs_of(head.configs)
    rule = RollRule.of(configs, head.topic_id)
    whole = snapshot.slices.all()
    planned = []
    for partition in range(head.partitions):
        log_end = int(head.log_end[partition])
        slices = whole[whole.partition_rows(partition)]
        segments = segments_of(slices, partition, log_end, rule)
        expiry = plan_expiry(
            segments,
            partition=partition,
            log_start=int(head.log_start[partition]),
            log_end=log_end,
            # What is committed is as durable as it becomes: there are no replicas to wait for.
            high_watermark=log_end,
            configs=configs,
            now_ms=settings.now_ms,
            modified_ms=_FileTimes(snapshot, slices, configs),
        )
        planned.append((expiry, segments))
    return planned


class _FileTimes:
    """When a segment without timestamps was written, by its file; one that is gone meanwhile never expires by time."""

    def __init__(self, snapshot: Snapshot, slices: Slices, configs: TopicConfigs) -> None:
        self._snapshot = snapshot
        self._slices = slices
        self._forever = configs.retention_ms < 0

    def __call__(self, segment: Segment) -> int:
        if self._forever or segment.rows == 0:
            return 2**63 - 1
        path = self._slices.path(segment.first_row + segment.rows - 1)
        info = self._snapshot.store.stat(file_key(self._snapshot.topic, path))
        return 2**63 - 1 if info is None else info.modified_ms


def expire(topic: Topic, settings: Settings, *, dry_run: bool = False) -> list[PartitionExpiry]:
    """Commit the log starts that retention moves, all partitions at once; those that lose something.

    `NotFound` or `Conflict` if the topic was deleted or created again meanwhile.
    """
    snapshot = topic.snapshot()
    head = snapshot.head
    planned = plan_topic(snapshot, settings)
    moved = {e.partition: e.log_start for e, _ in planned if e.log_start > head.log_start[e.partition]}
    if moved and not dry_run:
        topic.commit(LogStartIntent(head.topic_id, moved, op=RETAIN), head)
    found = []
    for expiry, segments in planned:
        if expiry.partition not in moved:
            continue
        count = Counter(item.reason for item in expiry.gone)
        sizes = Counter[str]()
        for item in expiry.gone:
            sizes[item.reason] += item.segment.size
        found.append(
            PartitionExpiry(
                expiry.partition,
                int(head.log_start[expiry.partition]),
                expiry.log_start,
                int(head.log_end[expiry.partition]),
                sum(1 for segment in segments if segment.rows),
                sum(segment.size for segment in segments),
                tuple((reason, count[reason], sizes[reason]) for reason in count),
            )
        )
    return found


def retain_topic(
    topic: Topic, settings: Settings, *, runner: Runner | None = None, dry_run: bool = False
) -> RetainReport:
    """Expire and vacuum one topic, which may be deleted. What fails is in the report, not raised."""
    begun = topic.root.env.boot_ms()
    report = RetainReport(topic.name)
    failures: list[Failure] = []
    topic_id = None
    try:
        head = topic.log.refresh().head
        report = replace(report, deleted=head.deleted, partitions=head.partitions)
        topic_id = head.topic_id
        if head.exists:
            resolved = 0 if dry_run else len(resolve_topic(topic))
            report = replace(report, resolved=resolved)
            report = replace(report, expired=tuple(expire(topic, settings, dry_run=dry_run)))
    except SparklogError as error:
        # Deleted, or deleted and created again, while we looked: there is nothing of it to expire any more.
        if not isinstance(error, (NotFound, Conflict)) or _still_there(topic, topic_id):
            failures.append(Failure.of(topic.name, (), f"expire {topic.name}", error))
    try:
        found = vacuum(topic, settings, runner=runner, dry_run=dry_run)
        failures += _failures(topic.name, found)
        report = replace(report, vacuum=found)
    except SparklogError as error:
        failures.append(Failure.of(topic.name, (), f"vacuum {topic.name}", error))
    seconds = (topic.root.env.boot_ms() - begun) / 1000
    return replace(report, failures=tuple(failures), seconds=seconds)


def _failures(name: str, found: VacuumReport) -> tuple[Failure, ...]:
    return tuple(Failure.of(name, (), f"vacuum {name}", error) for error in found.failures)


def _still_there(topic: Topic, topic_id: str | None) -> bool:
    try:
        head = topic.log.refresh().head
    except SparklogError:
        return True
    return head.exists and head.topic_id == topic_id


def retain_root(
    root: Root,
    settings: Settings,
    *,
    topics: Sequence[str] = (),
    runner: Runner | None = None,
    dry_run: bool = False,
    on_done: Callable[[RetainReport], None] | None = None,
) -> list[RetainReport]:
    """The same over these topics, existing or deleted (none given: all there are or were), one report each.

    None if the root never had a topic. `NotFound` if a name that is given never was one: nothing is done then.
    """
    names = list(topics) if topics else sorted(n for n in root.store.list_folders("") if is_topic_name(n))
    chosen: list[Topic] = []
    reports: list[RetainReport] = []
    for name in names:
        topic = root.topic_handle(name)
        try:
            if topic.log.refresh().head.version >= 0:
                chosen.append(topic)
            elif topics:
                root.topic(name)
        except SparklogError as error:
            if topics and isinstance(error, NotFound):
                raise
            failure = Failure.of(name, (), f"open {name}", error)
            reports.append(RetainReport(name, failures=(failure,)))
    for topic in chosen:
        report = retain_topic(topic, settings, runner=runner, dry_run=dry_run)
        reports.append(report)
        if on_done is not None:
            on_done(report)
    if chosen and not topics:
        heads = [topic.log.known() for topic in chosen]
        configs = [settings.configs_of(head.configs) for head in heads if head is not None and head.exists]
        keep_ms = kept_entries_ms(max((each.file_delete_delay_ms for each in configs), default=0))
        reports += _own_folder(root, settings, keep_ms, dry_run)
    return sorted(reports, key=lambda report: report.topic)


def _own_folder(root: Root, settings: Settings, keep_ms: int, dry_run: bool) -> list[RetainReport]:
    """What is no topic's: temporary files in the root's own folder, offsets of groups and decisions nobody needs.

    `keep_ms`: how long entries of groups stay at least.
    """
    try:
        store_ms = store_clock_ms(root.store, root.env, dry_run=dry_run)
        limit_ms = store_ms - 24 * LEAST_DELETE_DELAY_MS
        own = [remove_temporaries(root.store, ROOT_FILES, limit_ms, dry_run=dry_run)]
        # Groups first: a decision is forgotten once they have recorded it.
        for name in (GROUPS_FOLDER, TRANSACTIONS_FOLDER):
            folder = f"{name}/"
            if any(True for _ in root.store.list_folders(folder)):
                own.append(remove_temporaries(root.store, ROOT_FILES, limit_ms, folder=folder, dry_run=dry_run))
                own.append(
                    _decisions(root, store_ms, dry_run)
                    if name == TRANSACTIONS_FOLDER
                    else _groups(root, settings.offsets_retention_ms, keep_ms, store_ms, dry_run)
                )
    except SparklogError as error:
        return [RetainReport(ROOT_FILES, failures=(Failure.of(ROOT_FILES, (), f"vacuum {root.location}", error),))]
    found = replace(
        own[0],
        removed=tuple(item for report in own for item in report.removed),
        expired_groups=tuple(name for report in own for name in report.expired_groups),
        failures=tuple(error for report in own for error in report.failures),
    )
    if not found.removed and not found.expired_groups and not found.failures:
        return []
    return [RetainReport(ROOT_FILES, vacuum=found, failures=_failures(ROOT_FILES, found))]


def _groups(root: Root, retention_ms: int, keep_ms: int, store_ms: int, dry_run: bool) -> VacuumReport:
    found = collect_groups(root, retention_ms=retention_ms, keep_ms=keep_ms, now_ms=store_ms, dry_run=dry_run)
    reason = OLD_OFFSETS.format(hours=keep_ms // 3_600_000)
    gone = Removed("group entry", reason, found.objects, found.nbytes)
    removed = (gone,) if found.objects else ()
    return VacuumReport(ROOT_FILES, dry_run, 0, 0, removed, expired_groups=found.expired, failures=found.failures)


def _decisions(root: Root, store_ms: int, dry_run: bool) -> VacuumReport:
    found = collect(root, now_ms=store_ms, dry_run=dry_run)
    gone = Removed("decision", OLD_DECISION, found.objects, found.nbytes)
    removed = (gone,) if found.objects else ()
    return VacuumReport(ROOT_FILES, dry_run, 0, 0, removed, failures=found.failures)
