"""The data of a report, and the notes that follow from it. Times are ms since the epoch, sizes are in bytes.

The dataclasses define the JSON of a report: their fields, and the properties that `COMPUTED` lists.
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
    """Return the sum, or None if one of the numbers is unknown."""
    terms = list(numbers)
    return None if None in terms else sum(number for number in terms if number is not None)


@dataclass(frozen=True, slots=True)
class PartitionFacts:
    """One partition. In a Kafka log directory, values that would require reading records are None.

    Attributes:
        oldest_ms: the minimum record timestamp, or that of the first record in a Kafka log directory; None without
            timestamps.
        unsealed: slices that are not sealed yet.
        expiring: records that the next run of retention deletes; None in a Kafka log directory.
        next_log_start: the log start after that run.
        expires_ms: when the first segment becomes older than retention.ms; None if it never does.
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
    """Activity of a topic's commit log.

    Attributes:
        newest_ms: when the latest version was committed.
        last_hour: commits of the last hour, as far as they are kept.
        last_day: commits of the last 24 hours, as far as they are kept.
        since_checkpoint: commits after the latest checkpoint; None without a checkpoint.
        commits_by_hour: commits in each of the last `HOURS` clock hours, the current hour last.
    """

    version: int
    newest_ms: int
    last_hour: int
    last_day: int
    since_checkpoint: int | None
    commits_by_hour: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class TopicFacts:
    """One topic. `cleanup_policy`, `configs` and `activity` are None in a Kafka log directory.

    Attributes:
        configs: the configs that are set for this topic.
        bytes_by_hour: stored bytes by record timestamp, for each of the last `HOURS` clock hours. The bytes of a slice
            that spans several hours are spread evenly.
        unreferenced_bytes: bytes of files that the vacuum will delete; None if not requested.
        backlog: work that waits for the jobs; None if not requested.
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
        """Records that the next run of retention deletes."""
        return total(part.expiring for part in self.partitions) if self.partitions else None

    @property
    def expires_ms(self) -> int | None:
        return min((part.expires_ms for part in self.partitions if part.expires_ms is not None), default=None)

    @property
    def held_back(self) -> int:
        """The number of offsets that read_committed readers cannot reach yet."""
        return sum(part.log_end - part.last_stable for part in self.partitions)

    @property
    def skew(self) -> float | None:
        """The bytes of the largest partition divided by the mean; None with fewer than two partitions or no data."""
        if len(self.partitions) < 2 or not self.bytes:
            return None
        return max(part.bytes for part in self.partitions) * len(self.partitions) / self.bytes


@dataclass(frozen=True, slots=True)
class GroupPartition:
    """Consumer lag in one partition.

    Attributes:
        offset: the committed offset, None if there is none.
        lag: log end minus committed offset, None without one; negative if the log does not reach that offset.
        seconds_behind: the age of the first unread record; None if it has no timestamp or cannot be read.
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
    """One consumer group.

    Attributes:
        state: the state under Kafka's name.
        member: the ids of its members, None without members.
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
    """An open transaction in one partition, where read_committed readers stop at offset `first`.

    Attributes:
        owner: the transactional id, or a producer of Kafka.
        age_ms: how long it has been open, None if unknown.
        timeout_ms: its timeout, None if unknown.
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
        """True if its timeout has passed, so that the next commit or maintenance run aborts it."""
        return self.age_ms is not None and self.timeout_ms is not None and self.age_ms > self.timeout_ms


@dataclass(frozen=True, slots=True)
class PlannedWork:
    """Work on a partition in the next maintenance run.

    Attributes:
        action: seal, merge, compact or expire.
        due: False if the work is not done yet, for the reason `why`.
    """

    topic: str
    partition: int
    action: str
    bytes: int
    due: bool
    why: str


@dataclass(frozen=True, slots=True)
class Removal:
    """Files of a topic that the next vacuum would delete."""

    topic: str
    kind: str
    why: str
    files: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Disk:
    """Size and free space of the disk of a root."""

    total: int
    free: int


@dataclass(frozen=True, slots=True)
class Note:
    """A note about a topic, or about the entire root if `topic` is empty; `level` is attention or information."""

    level: str
    topic: str
    text: str


@dataclass(frozen=True, slots=True)
class RootReport:
    """The report of a root or a Kafka log directory.

    Attributes:
        kind: root or kafka.
        doing: the work of the next maintenance run; None if it was not planned.
        removals: the files that the next vacuum deletes; None if it was not planned.
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
"""Unsealed slices in a partition that get a note; a run of `sparklog compact` leaves about 32."""
MANY_COMMITS = 1_000
"""Commits since the latest checkpoint that get a note; writers write a checkpoint every 128 commits."""
SOME_SKEW, MUCH_SKEW = 3.0, 4.0
MIN_SKEW_BYTES = 64 << 20
"""Skew of smaller topics is random."""
LONG_OPEN_MS = HOUR_MS
LONG_BEHIND_MS = 24 * HOUR_MS
MIN_FREE_SHARE = 0.05


def health(report: RootReport) -> RootReport:
    """Return the report with notes about its data, sorted so that notes that need attention come first."""
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
        what = f"transactions past their timeout hold readers back ({_owners(transactions)})"
        yield Note(ATTENTION, topic, f"{what}: the next commit or maintenance run aborts them")
    for (topic, is_imported), transactions in sorted(long.items()):
        oldest = max(transactions, key=lambda transaction: transaction.age_ms or 0)
        what = f"a transaction has been open for {duration(oldest.age_ms)} ({_owners(transactions)})"
        where = f"partition {oldest.partition} at offset {oldest.first:,}"
        if report.kind == "kafka":
            arguments = f"--topic {quote(topic)} --partition {oldest.partition} --start-offset {oldest.first}"
            remedy = f"if its producer is dead, run `kafka-transactions.sh --bootstrap-server … abort {arguments}`"
        elif is_imported:
            remedy = "it has no timeout here: end it in Kafka and import again, or run `sparklog transactions abort`"
        else:
            id_ = quote(oldest.owner.rsplit(" #", 1)[0])
            remedy = f"if its producer is dead, run `sparklog transactions abort {id_}`"
        yield Note(ATTENTION, topic, f"{what}: read_committed readers wait in {where}; {remedy}")


def _owners(transactions: list[OpenTransaction]) -> str:
    owners = list(dict.fromkeys(transaction.owner for transaction in transactions))
    return ", ".join(owners[:5]) + (f" and {len(owners) - 5:,} more" if len(owners) > 5 else "")


def _space(report: RootReport) -> Iterator[Note]:
    unreferenced = sum(removal.bytes for removal in report.removals or ())
    if unreferenced > max(report.bytes, 1 << 20):
        what = f"unreferenced files take {size_text(unreferenced)}, more than the log itself"
        yield Note(ATTENTION, "", f"{what}: run `sparklog retain`, whose vacuum deletes them")
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
        remedy = "keep records longer (retention.ms), or run its consumer more often"
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
            yield Note(ATTENTION, topic, f"{what}: run its consumer first, or raise retention.ms")


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
        small = f"one partition has {unsealed:,} small slices"
        yield Note(ATTENTION, topic.topic, f"{small}, which makes reads slower: run `sparklog compact` every hour")
    if topic.activity is not None:
        behind = topic.activity.since_checkpoint
        if behind is None and topic.activity.version >= MANY_COMMITS:
            what = "the topic has no checkpoint, so opening it reads all of its commits"
            yield Note(ATTENTION, topic.topic, f"{what}: run `sparklog verify`")
        elif behind is not None and behind > MANY_COMMITS:
            what = f"the topic has {behind:,} commits since its last checkpoint, which makes opening it slower"
            yield Note(ATTENTION, topic.topic, f"{what}: run `sparklog verify`")
    if topic.backlog is not None and topic.backlog.future:
        for record in topic.backlog.future:
            yield Note(ATTENTION, topic.topic, f"{record}; check the clocks of the producers")
    elif topic.newest_ms is not None and topic.newest_ms > report.now_ms + HOUR_MS:
        effect = "retention.ms keeps their segments until that time has passed; check the clocks of the producers"
        yield Note(ATTENTION, topic.topic, f"some records have timestamps in the future: {effect}")
    if topic.skew is not None and topic.skew >= SOME_SKEW and topic.bytes > MIN_SKEW_BYTES:
        largest = max(topic.partitions, key=lambda part: part.bytes)
        skew = f"partition {largest.partition} has {topic.skew:.1f} times the mean size ({size_text(largest.bytes)})"
        remedy = "keys are distributed unevenly: use finer keys, or set the partition of each row"
        yield Note(ATTENTION if topic.skew >= MUCH_SKEW else INFORMATION, topic.topic, f"{skew}; {remedy}")
