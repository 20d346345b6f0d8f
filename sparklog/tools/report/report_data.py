"""Facts of a report: gathered once, judged, shown as a page or as JSON. Times are ms since the epoch, sizes bytes."""

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
    """Return the sum; None if one of them is not known."""
    terms = list(numbers)
    return None if None in terms else sum(number for number in terms if number is not None)


@dataclass(frozen=True, slots=True)
class PartitionFacts:
    """One partition. Offsets as Kafka counts them; None what Kafka's directories do not tell without reading."""

    COMPUTED: ClassVar = ("offsets",)

    partition: int
    log_start: int
    last_stable: int
    log_end: int
    records: int | None
    bytes: int
    oldest_ms: int | None  # smallest record time, of a Kafka directory the first record's; None without times
    newest_ms: int | None
    slices: int | None
    unsealed: int | None  # slices that are not sealed yet
    expiring: int | None = None  # records that the next run of retention deletes; None in Kafka's directories
    next_log_start: int | None = None  # after that run
    expires_ms: int | None = None  # when its first segment is older than retention.ms; None: never by time

    @property
    def offsets(self) -> int:
        """Offsets between log start and log end: at least as many as there are records."""
        return self.log_end - self.log_start


@dataclass(frozen=True, slots=True)
class Activity:
    """Activity of a topic's commit log: its version, when that was committed, commits of the last hour and day that are
    kept, and the number of commits after its newest checkpoint (None: it has none). `commits_by_hour`: of the last
    `HOURS` hours by the clock, the current one last."""

    version: int
    newest_ms: int
    last_hour: int
    last_day: int
    since_checkpoint: int | None
    commits_by_hour: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class TopicFacts:
    """One topic. `cleanup_policy`, `configs` (those that were set), `activity`: None in Kafka's directories.

    `bytes_by_hour`: stored bytes by the times of their records, of the last `HOURS` hours by the clock; of slices that
    span several hours evenly.
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
    unreferenced_bytes: int | None = None  # of files that only wait for the vacuum; None: not looked at
    backlog: Backlog | None = None  # what waits for the jobs; None: not looked at

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
        """Offsets that read_committed readers cannot reach yet."""
        return sum(part.log_end - part.last_stable for part in self.partitions)

    @property
    def skew(self) -> float | None:
        """The largest partition's bytes over the mean; None where there is nothing to compare."""
        if len(self.partitions) < 2 or not self.bytes:
            return None
        return max(part.bytes for part in self.partitions) * len(self.partitions) / self.bytes


@dataclass(frozen=True, slots=True)
class GroupPartition:
    """Consumer lag in one partition. `offset`, `lag`: None where none is committed; a negative lag is of committed
    offsets that the log does not have. `seconds_behind`: how long the first record that it has not read has been
    waiting; None where that record has no time, or cannot be read."""

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
        """Offsets that were gone before the group read them."""
        return 0 if self.offset is None else max(0, self.log_start - self.offset)


@dataclass(frozen=True, slots=True)
class GroupFacts:
    """One consumer group; `state` in Kafka's words, `member`: names of its `members` while it is active."""

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
class HeldBack:
    """An open transaction: read_committed readers of the partition stop at `first`. `owner`: a transactional id, or
    one of Kafka's producers; `age_ms`, `timeout_ms`: None where the files do not say."""

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
        """True if any writer may abort it by now; the next commit or maintenance run does."""
        return self.age_ms is not None and self.timeout_ms is not None and self.age_ms > self.timeout_ms


@dataclass(frozen=True, slots=True)
class Doing:
    """Work of the next maintenance run on a partition: `action` is seal, merge, compact or expire. Where it
    is not `due`, `why` says why not."""

    topic: str
    partition: int
    action: str
    bytes: int
    due: bool
    why: str


@dataclass(frozen=True, slots=True)
class Waste:
    """Files of a topic that the next vacuum would delete."""

    topic: str
    kind: str
    why: str
    files: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Disk:
    """The disk of a root, in bytes."""

    total: int
    free: int


@dataclass(frozen=True, slots=True)
class Note:
    """A note: `level` is `attention` or `information`; `topic` is empty where it is about the whole root."""

    level: str
    topic: str
    text: str


@dataclass(frozen=True, slots=True)
class RootReport:
    """All facts. `kind` is `root` or `kafka`; `doing`, `removals`, `groups` and `jobs` are None where they do not
    apply."""

    COMPUTED: ClassVar = ("bytes",)

    location: str
    kind: str
    now_ms: int
    topics: tuple[TopicFacts, ...]
    groups: tuple[GroupFacts, ...] | None
    held_back: tuple[HeldBack, ...]
    doing: tuple[Doing, ...] | None
    removals: tuple[Waste, ...] | None
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


MANY_UNSEALED = 500  # slices of one partition: after a run of `sparklog compact` there are some 32
MANY_COMMITS = 1_000  # after the newest checkpoint; writers make one every 128
SOME_SKEW, MUCH_SKEW = 3.0, 4.0  # the largest partition over the mean
SKEW_BYTES = 64 << 20  # below that skew is chance
LONG_OPEN_MS = HOUR_MS
LONG_BEHIND_MS = 24 * HOUR_MS
LEAST_FREE = 0.05  # of the disk


def health(report: RootReport) -> RootReport:
    """Return the report with the notes that follow from it, those that need attention first."""
    notes = [*report.notes, *_transactions(report), *_space(report), *_jobs(report)]
    for group in report.groups or ():
        notes += _group(report, group)
    for topic in report.topics:
        notes += [*_expiry(report, topic), *_layout(report, topic)]
    order = (ATTENTION, INFORMATION)
    return replace(report, notes=tuple(sorted(notes, key=lambda note: (order.index(note.level), note.topic))))


def _transactions(report: RootReport) -> Iterator[Note]:
    late: dict[str, list[HeldBack]] = {}
    long: dict[tuple[str, bool], list[HeldBack]] = {}
    for transaction in report.held_back:
        if transaction.overdue:
            late.setdefault(transaction.topic, []).append(transaction)
        elif transaction.age_ms is not None and transaction.age_ms > LONG_OPEN_MS:
            long.setdefault((transaction.topic, transaction.timeout_ms is None), []).append(transaction)
    for topic, mine in sorted(late.items()):
        hold = f"transactions past their timeout hold readers back ({_owners(mine)})"
        yield Note(ATTENTION, topic, f"{hold}: the next commit or maintenance run aborts them")
    for (topic, kafkas), mine in sorted(long.items()):
        oldest = max(mine, key=lambda transaction: transaction.age_ms or 0)
        where = f"partition {oldest.partition} from offset {oldest.first:,}"
        since = f"open for {duration(oldest.age_ms)} ({_owners(mine)}): readers of committed records wait in {where}"
        if report.kind == "kafka":
            arguments = f"--topic {quote(topic)} --partition {oldest.partition} --start-offset {oldest.first}"
            remedy = f"if its producer is gone, `kafka-transactions.sh --bootstrap-server … abort {arguments}`"
        elif kafkas:
            remedy = "no timeout ends it: import again once Kafka has, or `sparklog transactions abort`"
        else:
            remedy = f"if its producer is gone, `sparklog transactions abort {quote(oldest.owner.rsplit(' #', 1)[0])}`"
        yield Note(ATTENTION, topic, f"a transaction is {since}; {remedy}")


def _owners(mine: list[HeldBack]) -> str:
    owners = list(dict.fromkeys(transaction.owner for transaction in mine))
    return ", ".join(owners[:5]) + (f" and {len(owners) - 5:,} more" if len(owners) > 5 else "")


def _space(report: RootReport) -> Iterator[Note]:
    gone = sum(removal.bytes for removal in report.removals or ())
    if gone > max(report.bytes, 1 << 20):
        waste = f"unreferenced files take {size_text(gone)}, more than the log itself"
        yield Note(ATTENTION, "", f"{waste}, and wait only for the vacuum: run `sparklog retain`")
    disk = report.disk
    if disk is not None and disk.free < LEAST_FREE * disk.total:
        left = f"the disk is almost full: {size_text(disk.free)} of {size_text(disk.total)} are free"
        frees = (
            f"run `sparklog retain`, which frees {size_text(gone)} now" if gone else "shorten retention or add space"
        )
        yield Note(ATTENTION, "", f"{left}; {frees}")


def _jobs(report: RootReport) -> Iterator[Note]:
    for trouble in job_problems(report.jobs or ()):
        topic = trouble.topics[0] if len(trouble.topics) == 1 else ""
        yield Note(ATTENTION, topic, f"{trouble.text}; look at `sparklog jobs`, and at the schedule's own log")


def _group(report: RootReport, group: GroupFacts) -> Iterator[Note]:
    lost = [part for part in group.partitions if part.lost]
    if lost:
        first, where = lost[0], count(len(lost), "partition")
        expired = f"records expired before group {group.group} had read them, in {where}"
        remedy = "keep records longer (retention.ms), or run its consumer more often"
        yield Note(ATTENTION, first.topic, f"{expired} (partition {first.partition}: {first.lost:,} offsets); {remedy}")
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
            lag = f"group {group.group} is behind: its oldest unread record has waited for {duration(behind)}"
            remedy = "start its consumer, or delete the group if it is no longer used"
            yield Note(ATTENTION, topic, f"{lag}; {remedy}")
        losing = [p.partition for p in mine if (p.offset or 0) < (starts.get((topic, p.partition)) or 0)]
        if losing:
            where = f"{count(len(losing), 'partition')}, such as {losing[0]}"
            unread = (
                f"the next run of `sparklog retain` deletes records that group {group.group} has not read ({where})"
            )
            yield Note(ATTENTION, topic, f"{unread}: run its consumer before, or raise retention.ms")


def _expiry(report: RootReport, topic: TopicFacts) -> Iterator[Note]:
    if topic.expiring:
        much = 2 * topic.expiring >= (topic.records or 0)
        of = f"{topic.expiring:,} of {count(topic.records or 0, 'record')}"
        keep = f"`sparklog configs alter {quote(topic.topic)} --add-config retention.ms=-1` keeps them" if much else ""
        text = f"the next run of `sparklog retain` deletes {of}, by retention.ms or retention.bytes"
        yield Note(ATTENTION if much else INFORMATION, topic.topic, f"{text}{'; ' if keep else ''}{keep}")


def _layout(report: RootReport, topic: TopicFacts) -> Iterator[Note]:
    worst = max((part.unsealed or 0 for part in topic.partitions), default=0)
    if worst > MANY_UNSEALED:
        small = f"{worst:,} small slices in one partition"
        yield Note(ATTENTION, topic.topic, f"{small}: reads get slower; run `sparklog compact`, hourly")
    if topic.activity is not None:
        behind = topic.activity.since_checkpoint
        if behind is None and topic.activity.version >= MANY_COMMITS:
            yield Note(ATTENTION, topic.topic, "no checkpoint: every start reads the whole log of commits; run verify")
        elif behind is not None and behind > MANY_COMMITS:
            slow = f"{behind:,} commits since the last checkpoint: starts get slower"
            yield Note(ATTENTION, topic.topic, f"{slow}; run `sparklog verify`")
    if topic.backlog is not None and topic.backlog.future:
        yield from (
            Note(ATTENTION, topic.topic, f"{record}; look at the producers' clocks") for record in topic.backlog.future
        )
    elif topic.newest_ms is not None and topic.newest_ms > report.now_ms + HOUR_MS:
        kept = "retention.ms keeps their segments until that time has passed; look at the producers' clocks"
        yield Note(ATTENTION, topic.topic, f"records are stamped in the future: {kept}")
    if topic.skew is not None and topic.skew >= SOME_SKEW and topic.bytes > SKEW_BYTES:
        largest = max(topic.partitions, key=lambda part: part.bytes)
        skew = f"partition {largest.partition} holds {topic.skew:.1f} times the mean ({size_text(largest.bytes)})"
        remedy = "keys are spread unevenly: use finer keys, or give the partition with each row"
        yield Note(ATTENTION if topic.skew >= MUCH_SKEW else INFORMATION, topic.topic, f"{skew}; {remedy}")
