"""Facts of a report, as data: gathered once, shown as a page or as JSON. Times are ms since the epoch, sizes bytes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import ClassVar

from sparklog.maintenance.overdue import JobState
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
