"""The data of a report, and the notes that are derived from the data. Times are in ms since the epoch, and sizes are in
bytes.

The dataclasses define the JSON format of a report. The JSON contains all fields of the dataclasses and the properties
in `COMPUTED`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from shlex import quote
from typing import ClassVar

from sparklog.common.units import HOUR_MS, count, duration, size_text
from sparklog.maintenance.overdue import JobState, job_problems
from sparklog.maintenance.report import Backlog

ATTENTION, INFORMATION = "attention", "information"
HOURS = 72


def total(numbers: Iterable[int | None]) -> int | None:
    """Return the sum of the numbers, or None if one of the numbers is unknown."""
    terms = list(numbers)
    return None if None in terms else sum(number for number in terms if number is not None)


@dataclass(frozen=True, slots=True)
class PartitionFacts:
    """A partition. Values that would require reading records are None for a Kafka log directory.

    Attributes:
        oldest_ms: the minimum record timestamp, or, in a Kafka log directory, the timestamp of the first record; None
            if there are no timestamps.
        unsealed: the number of unsealed slices.
        expiring: the number of records that the next retention run deletes; None for a Kafka log directory.
        next_log_start: the log start after the next retention run.
        expires_ms: the time at which the first segment becomes older than retention.ms, or None if the segment never
            expires.
    """

    COMPUTED: ClassVar = ("offsets",)

    partition: int
    log_start: int
    last_stable: int
    log_end: int
    records: int | None
    bytes: int
    oldest_ms: int | None
    newest_ms: int | None
    slices: int | None
    unsealed: int | None
    expiring: int | None = None
    next_log_start: int | None = None
    expires_ms: int | None = None

    @property
    def offsets(self) -> int:
        """The number of offsets from log start to log end, which is at least the number of records."""
        return self.log_end - self.log_start


@dataclass(frozen=True, slots=True)
class Activity:
    """The activity of a topic's commit log.

    Attributes:
        newest_ms: the time of the latest commit.
        last_hour: the number of retained commits of the last hour.
        last_day: the number of retained commits of the last 24 hours.
        since_checkpoint: the number of commits after the latest checkpoint, or None if there is no checkpoint.
        commits_by_hour: the number of commits in each of the last `HOURS` clock hours; the current hour is last.
    """

    version: int
    newest_ms: int
    last_hour: int
    last_day: int
    since_checkpoint: int | None
    commits_by_hour: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class TopicFacts:
    """A topic. `cleanup_policy`, `configs` and `activity` are None for a Kafka log directory.

    Attributes:
        configs: the configs that are set on this topic.
        bytes_by_hour: stored bytes by record timestamp in each of the last `HOURS` clock hours. The bytes of a slice
            that spans several hours are distributed evenly.
        unreferenced_bytes: bytes of files that the vacuum will delete, or None if the caller did not request this
            value.
        backlog: pending work of the jobs, or None if the caller did not request the backlog.
    """

    COMPUTED: ClassVar = (
        "bytes", "offsets", "records", "oldest_ms", "newest_ms", "unsealed", "held_back", "skew", "expiring",
        "expires_ms",
    )  # fmt: skip

    topic: str
    topic_id: str
    internal: bool
    cleanup_policy: str | None
    configs: Mapping[str, str] | None
    partitions: tuple[PartitionFacts, ...]
    activity: Activity | None
    bytes_by_hour: tuple[int, ...] = ()
    unreferenced_bytes: int | None = None
    backlog: Backlog | None = None

    @property
    def bytes(self) -> int:
        return sum(part.bytes for part in self.partitions)

    @property
    def offsets(self) -> int:
        return sum(part.offsets for part in self.partitions)

    @property
    def records(self) -> int | None:
        return total(part.records for part in self.partitions)

    @property
    def oldest_ms(self) -> int | None:
        return min((part.oldest_ms for part in self.partitions if part.oldest_ms is not None), default=None)

    @property
    def newest_ms(self) -> int | None:
        return max((part.newest_ms for part in self.partitions if part.newest_ms is not None), default=None)

    @property
    def unsealed(self) -> int | None:
        return total(part.unsealed for part in self.partitions) if self.partitions else None

    @property
    def expiring(self) -> int | None:
        """The number of records that the next retention run deletes."""
        return total(part.expiring for part in self.partitions) if self.partitions else None

    @property
    def expires_ms(self) -> int | None:
        return min((part.expires_ms for part in self.partitions if part.expires_ms is not None), default=None)

    @property
    def held_back(self) -> int:
        """The number of offsets that read_committed consumers cannot read yet."""
        return sum(part.log_end - part.last_stable for part in self.partitions)

    @property
    def skew(self) -> float | None:
        """The size of the largest partition divided by the mean size, or None if there are fewer than two partitions or
        no data.
        """
        if len(self.partitions) < 2 or not self.bytes:
            return None
        return max(part.bytes for part in self.partitions) * len(self.partitions) / self.bytes


@dataclass(frozen=True, slots=True)
class GroupPartition:
    """The consumer lag in a partition.

    Attributes:
        offset: the committed offset, or None if there is no committed offset.
        lag: log end minus committed offset, or None if there is no committed offset; negative if the offset is beyond
            the log end.
        seconds_behind: the age of the first unread record, or None if the record has no timestamp or cannot be read.
    """

    COMPUTED: ClassVar = ("lost",)

    topic: str
    partition: int
    offset: int | None
    log_start: int
    log_end: int
    lag: int | None
    seconds_behind: float | None

    @property
    def lost(self) -> int:
        """The number of offsets that were deleted before the group read them."""
        return 0 if self.offset is None else max(0, self.log_start - self.offset)


@dataclass(frozen=True, slots=True)
class GroupFacts:
    """A consumer group.

    Attributes:
        state: the name of the group state in Kafka.
        member: the ids of the members, or None if there are no members.
    """

    COMPUTED: ClassVar = ("lag", "seconds_behind")

    group: str
    state: str
    member: str | None
    partitions: tuple[GroupPartition, ...]
    members: int = 0

    @property
    def lag(self) -> int:
        return sum(part.lag or 0 for part in self.partitions)

    @property
    def seconds_behind(self) -> float | None:
        return max((part.seconds_behind for part in self.partitions if part.seconds_behind is not None), default=None)


@dataclass(frozen=True, slots=True)
class OpenTransaction:
    """An open transaction in a partition. read_committed consumers stop at offset `first`.

    Attributes:
        owner: the transactional id, or a Kafka producer.
        age_ms: the time since the transaction started, or None if unknown.
        timeout_ms: the transaction timeout, or None if unknown.
    """

    COMPUTED: ClassVar = ("overdue",)

    topic: str
    partition: int
    owner: str
    first: int
    end: int
    age_ms: int | None
    timeout_ms: int | None

    @property
    def overdue(self) -> bool:
        """True if the timeout has passed, so that the next commit or maintenance run aborts the transaction."""
        return self.age_ms is not None and self.timeout_ms is not None and self.age_ms > self.timeout_ms


@dataclass(frozen=True, slots=True)
class PlannedWork:
    """Work on a partition in the next maintenance run.

    Attributes:
        action: seal, merge, compact or expire.
        due: False if the work is not due yet; `why` is the reason.
    """

    topic: str
    partition: int
    action: str
    bytes: int
    due: bool
    why: str


@dataclass(frozen=True, slots=True)
class Removal:
    """Files of a topic that the next vacuum will delete."""

    topic: str
    kind: str
    why: str
    files: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Disk:
    """The size and the free space of the disk that contains a root."""

    total: int
    free: int


@dataclass(frozen=True, slots=True)
class Note:
    """A note about a topic, or about the entire root if `topic` is empty. `level` is attention or information."""

    level: str
    topic: str
    text: str


@dataclass(frozen=True, slots=True)
class RootReport:
    """The report of a root or a Kafka log directory.

    Attributes:
        kind: root or kafka.
        doing: the work of the next maintenance run, or None if the run was not planned.
        removals: the files that the next vacuum will delete, or None if the vacuum was not planned.
    """

    COMPUTED: ClassVar = ("bytes",)

    location: str
    kind: str
    now_ms: int
    topics: tuple[TopicFacts, ...]
    groups: tuple[GroupFacts, ...] | None
    held_back: tuple[OpenTransaction, ...]
    doing: tuple[PlannedWork, ...] | None
    removals: tuple[Removal, ...] | None
    notes: tuple[Note, ...]
    made_by: str = "sparklog"
    disk: Disk | None = None
    jobs: tuple[JobState, ...] | None = None

    @property
    def bytes(self) -> int:
        return sum(topic.bytes for topic in self.topics)

    @property
    def unreferenced_bytes(self) -> int | None:
        return total(topic.unreferenced_bytes for topic in self.topics)

    @property
    def partitions(self) -> int:
        return sum(len(topic.partitions) for topic in self.topics)


MANY_UNSEALED = 500
"""Report a partition if it has more than this number of unsealed slices. After a run of `sparklog compact`, about 32
slices remain.
"""
MANY_COMMITS = 1_000
"""Report a topic if more than this number of commits follow the latest checkpoint. Writers write a checkpoint every 128
commits.
"""
SOME_SKEW, MUCH_SKEW = 3.0, 4.0
MIN_SKEW_BYTES = 64 << 20
"""Topics below this size are not checked for skew, because the skew of a small topic is random."""
LONG_OPEN_MS = HOUR_MS
LONG_BEHIND_MS = 24 * HOUR_MS
MIN_FREE_SHARE = 0.05


def health(report: RootReport) -> RootReport:
    """Return the report with notes about its data. Notes that require attention are returned first."""
    notes = [*report.notes, *_transactions(report), *_space(report), *_jobs(report)]
    for group in report.groups or ():
        notes += _group(report, group)
    for topic in report.topics:
        notes += [*_expiry(topic), *_layout(report, topic)]
    order = (ATTENTION, INFORMATION)
    return replace(report, notes=tuple(sorted(notes, key=lambda note: (order.index(note.level), note.topic))))


def _transactions(report: RootReport) -> Iterator[Note]:
    late: dict[str, list[OpenTransaction]] = {}
    long: dict[tuple[str, bool], list[OpenTransaction]] = {}
    for transaction in report.held_back:
        if transaction.overdue:
            late.setdefault(transaction.topic, []).append(transaction)
        elif transaction.age_ms is not None and transaction.age_ms > LONG_OPEN_MS:
            long.setdefault((transaction.topic, transaction.timeout_ms is None), []).append(transaction)
    for topic, transactions in sorted(late.items()):
        what = f"timed-out transactions hold back read_committed readers ({_owners(transactions)})"
        yield Note(ATTENTION, topic, f"{what}; the next commit or maintenance run aborts them")
    for (topic, is_imported), transactions in sorted(long.items()):
        oldest = max(transactions, key=lambda transaction: transaction.age_ms or 0)
        what = f"a transaction has been open for {duration(oldest.age_ms)} ({_owners(transactions)})"
        where = f"partition {oldest.partition} at offset {oldest.first:,}"
        if report.kind == "kafka":
            arguments = f"--topic {quote(topic)} --partition {oldest.partition} --start-offset {oldest.first}"
            remedy = f"if its producer is dead, run `kafka-transactions.sh --bootstrap-server … abort {arguments}`"
        elif is_imported:
            remedy = (
                "imported transactions do not time out; end the transaction in Kafka and import again, or run "
                "`sparklog transactions abort`"
            )
        else:
            id_ = quote(oldest.owner.rsplit(" #", 1)[0])
            remedy = f"if its producer is dead, run `sparklog transactions abort {id_}`"
        yield Note(ATTENTION, topic, f"{what}; read_committed readers wait in {where}; {remedy}")


def _owners(transactions: list[OpenTransaction]) -> str:
    owners = list(dict.fromkeys(transaction.owner for transaction in transactions))
    return ", ".join(owners[:5]) + (f" and {len(owners) - 5:,} more" if len(owners) > 5 else "")


def _space(report: RootReport) -> Iterator[Note]:
    unreferenced = sum(removal.bytes for removal in report.removals or ())
    if unreferenced > max(report.bytes, 1 << 20):
        what = f"the size of unreferenced files is {size_text(unreferenced)}, more than the log itself"
        yield Note(ATTENTION, "", f"{what}; run `sparklog retain` to delete them")
    disk = report.disk
    if disk is not None and disk.free < MIN_FREE_SHARE * disk.total:
        what = f"the disk is almost full: {size_text(disk.free)} of {size_text(disk.total)} are free"
        remedy = "shorten retention or add space"
        if unreferenced:
            remedy = f"run `sparklog retain`, which frees {size_text(unreferenced)} now"
        yield Note(ATTENTION, "", f"{what}; {remedy}")


def _jobs(report: RootReport) -> Iterator[Note]:
    for problem in job_problems(report.jobs or ()):
        topic = problem.topics[0] if len(problem.topics) == 1 else ""
        yield Note(ATTENTION, topic, f"{problem.text}; check `sparklog jobs` and the log of the scheduler")


def _group(report: RootReport, group: GroupFacts) -> Iterator[Note]:
    lost = [part for part in group.partitions if part.lost]
    if lost:
        first, where = lost[0], count(len(lost), "partition")
        what = f"records expired in {where} before group {group.group} read them"
        remedy = "increase retention.ms, or run its consumer more often"
        yield Note(ATTENTION, first.topic, f"{what} (partition {first.partition}: {first.lost:,} offsets); {remedy}")
    starts = {
        (topic.topic, part.partition): part.next_log_start
        for topic in report.topics
        for part in topic.partitions
        if part.expiring
    }
    for topic in dict.fromkeys(part.topic for part in group.partitions):
        mine = [part for part in group.partitions if part.topic == topic and part.offset is not None]
        behind = max((part.seconds_behind or 0 for part in mine), default=0) * 1000
        if behind > LONG_BEHIND_MS:
            lag = f"group {group.group} is behind: its first unread record is {duration(behind)} old"
            remedy = "start its consumer, or delete the group if it is no longer used"
            yield Note(ATTENTION, topic, f"{lag}; {remedy}")
        losing = [p.partition for p in mine if (p.offset or 0) < (starts.get((topic, p.partition)) or 0)]
        if losing:
            where = f"{count(len(losing), 'partition')}, such as {losing[0]}"
            what = f"the next run of `sparklog retain` deletes records that group {group.group} has not read ({where})"
            yield Note(ATTENTION, topic, f"{what}; run its consumer first, or increase retention.ms")


def _expiry(topic: TopicFacts) -> Iterator[Note]:
    if topic.expiring:
        records = f"{topic.expiring:,} of {count(topic.records or 0, 'record')}"
        text = f"the next run of `sparklog retain` deletes {records} because of retention.ms or retention.bytes"
        if 2 * topic.expiring < (topic.records or 0):
            yield Note(INFORMATION, topic.topic, text)
        else:
            remedy = f"to keep them, run `sparklog configs alter {quote(topic.topic)} --add-config retention.ms=-1`"
            yield Note(ATTENTION, topic.topic, f"{text}; {remedy}")


def _layout(report: RootReport, topic: TopicFacts) -> Iterator[Note]:
    unsealed = max((part.unsealed or 0 for part in topic.partitions), default=0)
    if unsealed > MANY_UNSEALED:
        small = f"a partition has {unsealed:,} small slices"
        yield Note(ATTENTION, topic.topic, f"{small}, which slows down reads; run `sparklog compact` every hour")
    if topic.activity is not None:
        behind = topic.activity.since_checkpoint
        if behind is None and topic.activity.version >= MANY_COMMITS:
            what = "the topic has no checkpoint, so opening the topic reads all commits"
            yield Note(ATTENTION, topic.topic, f"{what}; run `sparklog verify`")
        elif behind is not None and behind > MANY_COMMITS:
            what = f"the topic has {behind:,} commits since its last checkpoint, which slows down opening it"
            yield Note(ATTENTION, topic.topic, f"{what}; run `sparklog verify`")
    if topic.backlog is not None and topic.backlog.future:
        for record in topic.backlog.future:
            yield Note(ATTENTION, topic.topic, f"{record}; check the clocks of the producers")
    elif topic.newest_ms is not None and topic.newest_ms > report.now_ms + HOUR_MS:
        effect = "retention.ms keeps their segments until then; check the clocks of the producers"
        yield Note(ATTENTION, topic.topic, f"some records have timestamps in the future, and {effect}")
    if topic.skew is not None and topic.skew >= SOME_SKEW and topic.bytes > MIN_SKEW_BYTES:
        largest = max(topic.partitions, key=lambda part: part.bytes)
        skew = f"partition {largest.partition} has {topic.skew:.1f} times the mean size ({size_text(largest.bytes)})"
        remedy = "keys are distributed unevenly; use more distinct keys, or set the partition of each row"
        yield Note(ATTENTION if topic.skew >= MUCH_SKEW else INFORMATION, topic.topic, f"{skew}; {remedy}")
