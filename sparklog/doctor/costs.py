"""The monthly costs of a topic in a bucket: the number of requests of each operation, multiplied by a price list.

The numbers of requests are budgets. Tests check each operation against its budget, and a simulated month against the
bill. Prices depend on the provider and change over time. The prices in `prices.csv` are of November 2026 for regions in
the United States, without transfer out of the region.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from importlib import resources
from math import ceil

from sparklog.errors import BadRequest
from sparklog.limits import DEFAULTS
from sparklog.log.journal.entry_log import KEEP_MS
from sparklog.log.journal.journal import LIST_AFTER_REMOTE_MS
from sparklog.log.journal.numbered_objects import READ_AHEAD
from sparklog.log.state.configs import TopicConfigs
from sparklog.log.state.embedded_commits import BLOCK_COMMITS, commits_to_read
from sparklog.log.topic.root import REMOTE_POLL_MS, poll_pause_ms
from sparklog.log.write.append_output import inline_file_bytes, task_inline_bytes

PUT_BYTES = 8 << 20
"""A data object up to this size is written with one PUT, a larger object with a multipart upload with parts of this
size.
"""
LISTED = 1000
"""Number of keys per LIST request."""
MERGE_BYTES = 1 << 20
"""Number of bytes per GET request of a merge, unless a slice is larger."""
SEGMENT_BYTES = 1 << 30
ROUND_TRIP_MS = 20
"""Duration of a poll."""
HOUR_S = 3_600
DAY_S = 86_400
MONTH_DAYS = 30
GB = 1e9


@dataclass(frozen=True, slots=True)
class Requests:
    """Numbers of requests as they are billed by stores. A HEAD request is billed as a GET, and deletes are free."""

    puts: float = 0
    gets: float = 0
    lists: float = 0

    def __add__(self, other: Requests) -> Requests:
        return Requests(self.puts + other.puts, self.gets + other.gets, self.lists + other.lists)

    def __mul__(self, times: float) -> Requests:
        return Requests(self.puts * times, self.gets * times, self.lists * times)


IDLE_POLL = Requests(gets=1)
"""A poll of a topic that does not find new records."""
LATE_POLL = Requests(lists=1)
"""The additional LIST request if the last poll was over `LIST_AFTER_REMOTE_MS` ago, because a commit may be lost."""
NEW_COMMIT = Requests(gets=3)
"""A poll that finds one commit. It requests this commit and the next two commits, which do not exist."""
OPENING = Requests(gets=4, lists=2)
"""Opening a topic: the root id, the list of checkpoints, the latest checkpoint document and table, and commits
(`TAIL`).
"""


def objects_after_checkpoint(commits: int) -> int:
    """Return the number of objects to read for `commits` commits after a checkpoint, including requests for the next
    commit.
    """
    last = BLOCK_COMMITS + commits - 1
    return len({*commits_to_read(BLOCK_COMMITS, last), *range(max(BLOCK_COMMITS, last - 1), last + 2)})


TAIL = Requests(gets=max(map(objects_after_checkpoint, range(BLOCK_COMMITS))))
"""Maximum number of requests for the commits after the latest checkpoint."""
AVERAGE_TAIL = Requests(gets=sum(map(objects_after_checkpoint, range(BLOCK_COMMITS))) / BLOCK_COMMITS)
OPENED = Requests(gets=1, lists=2)
"""Opening a journal: list and read the latest checkpoint, and list the numbers of later entries (`tail`)."""


def tail(entries: int) -> Requests:
    """Return the average number of requests for the entries after a checkpoint, with `entries` per checkpoint."""
    return Requests(gets=sum(READ_AHEAD * ceil((after + 1) / READ_AHEAD) for after in range(entries)) / entries)


CHECKPOINT = Requests(puts=2, gets=2, lists=1)
"""Writing a checkpoint, every `checkpoint_commits` of `Limits`."""
RECORD_RUN = Requests(puts=2, gets=21, lists=2)
"""Recording a job run: open the journal, create an entry and, every eight runs, a checkpoint."""
JOB_HISTORY_ENTRIES = 8
"""Number of entries per checkpoint of the job history."""
READ_JOB_HISTORY = Requests(gets=3, lists=2)
"""Reading the job history: read the latest entry, and request the next entry twice."""
CLOCK = Requests(puts=1, gets=1)
"""Comparing the writer's clock with the store's clock, every ten minutes."""
CLOCK_S = 600
DEFAULTS_POLL = Requests(gets=1)
"""Polling the root defaults by a writer, every five minutes."""
DEFAULTS_S = 300
COMMIT = Requests(puts=1, gets=3)
"""A commit by a writer that has the latest commit: create the commit, and read the root and the previous commit.

If the last poll was more than a second ago, there is an additional GET for the next commit.
"""


COPY = Requests(puts=1, gets=2)
"""Copying an entry as a checkpoint, and checking that the entry exists."""
LEASE = OPENED + tail(DEFAULTS.checkpoint_entries) + COMMIT * 2 + COPY * (2 / DEFAULTS.checkpoint_entries)
"""A job lease: open the journal of leases, acquire the lease and release it."""
RECORD = OPENED + tail(JOB_HISTORY_ENTRIES) + Requests(puts=1, gets=2) + COPY * (1 / JOB_HISTORY_ENTRIES)
"""Average number of requests of `RECORD_RUN`."""
RUN = CLOCK * 2 + LEASE + OPENED + Requests(lists=2) + OPENING + AVERAGE_TAIL + RECORD
"""A run of either job that finds no work: clock, lease, root defaults, list of topics, the topic, and the run record.
"""
MERGE = Requests(puts=2, gets=5)
"""A run of `compact` that writes one file and one commit."""
VACUUM = CLOCK * 2 + Requests(gets=21, lists=22)
"""A run of `retain` on the latest checkpoints, data files and journals, except the commits that it reads."""
UPKEEP = 1 / 8
"""Average number of commits per run of `retain`, in addition to one commit for each checkpoint."""


def micro_batch(tasks: int) -> Requests:
    """Return the requests of a micro-batch: the planning, one object of up to `PUT_BYTES` per task, and the commit."""
    return Requests(puts=tasks + 1, gets=tasks + 6)


INLINE_BATCH = micro_batch(0)
"""A micro-batch with inline records, in which tasks do not make requests."""


def upload(nbytes: float) -> Requests:
    """Return the requests to write a data object. A multipart upload is also started, completed and checked."""
    return Requests(puts=1) if nbytes <= PUT_BYTES else Requests(puts=2 + ceil(nbytes / PUT_BYTES), gets=2)


@dataclass(frozen=True, slots=True)
class Prices:
    """Prices in US dollars: per 1,000 requests, per GB-month of storage, and per GB written or read."""

    store: str
    put: float
    get: float
    list: float
    gb_month: float
    gb_in: float
    gb_out: float


def read_prices() -> tuple[Prices, ...]:
    """Read `prices.csv`, which contains one line per store."""
    _, *rows = csv.reader((resources.files("sparklog.doctor") / "prices.csv").read_text().splitlines())
    return tuple(Prices(store, *map(float, numbers)) for store, *numbers in rows)


PRICES = read_prices()


RANGES = {
    "rate": (1e-9, 1e6),
    "interval": (1e-3, MONTH_DAYS * DAY_S),
    "partitions": (1, 1e5),
    "tasks": (1, 1e5),
    "readers": (0, 1e5),
    "poll": (1, 1000 * DAY_S),
    "retention": (1e-3, 1e5),
    "jobs": (1e-3, 1e9),
}
"""The range of each parameter for which this model is meaningful."""


@dataclass(frozen=True, slots=True)
class Workload:
    """The workload of a topic.

    Attributes:
        rate: stored MB per second.
        interval: seconds between commits.
        poll: the poll interval of readers in ms, or None for the default.
        retention: retention in days.
        jobs: hours between runs of each job.
    """

    rate: float = 10.0
    interval: float = 10.0
    partitions: int = 16
    tasks: int = 2
    readers: int = 3
    poll: float | None = None
    retention: float = 7.0
    jobs: float = 1.0

    def __post_init__(self) -> None:
        for name, (low, high) in RANGES.items():
            value = getattr(self, name)
            if value is not None and not low <= value <= high:
                raise BadRequest(f"--{name} must be between {low:g} and {high:g}, found {value:g}")

    @property
    def batches(self) -> float:
        return MONTH_DAYS * DAY_S / self.interval

    @property
    def runs(self) -> float:
        """The number of runs of each job per month."""
        return MONTH_DAYS * DAY_S / HOUR_S / self.jobs

    @property
    def file_bytes(self) -> float:
        return self.rate * 1e6 * self.interval / self.tasks

    @property
    def is_inline(self) -> bool:
        """True if records are stored inline with the default of `inline.records.bytes`."""
        nbytes = ceil(self.rate * 1e6 * self.interval)
        slices = self.tasks * self.partitions
        max_bytes = TopicConfigs().inline_records_bytes
        task_bytes = inline_file_bytes(self.partitions, ceil(nbytes / self.tasks))
        return inline_file_bytes(slices, nbytes) <= max_bytes and task_bytes <= task_inline_bytes(max_bytes)

    @property
    def gb(self) -> float:
        return self.rate * 1e6 * MONTH_DAYS * DAY_S / GB


@dataclass(frozen=True, slots=True)
class Item:
    """An item of the monthly bill: requests, GB written and read, and GB stored."""

    name: str
    requests: Requests
    gb_in: float = 0.0
    gb_out: float = 0.0
    gb_stored: float = 0.0

    def dollars(self, prices: Prices) -> float:
        requests = self.requests
        by_thousand = requests.puts * prices.put + requests.gets * prices.get + requests.lists * prices.list
        by_gb = self.gb_in * prices.gb_in + self.gb_out * prices.gb_out + self.gb_stored * prices.gb_month
        return by_thousand / 1000 + by_gb


def bill(work: Workload) -> list[Item]:
    return [_append(work), _poll(work), _read(work), _maintain(work), _store(work)]


def _append(work: Workload) -> Item:
    files = (upload(work.file_bytes) + Requests(puts=-1)) * work.tasks
    batch = INLINE_BATCH if work.is_inline else micro_batch(work.tasks) + files
    # Each run of a job also writes a commit.
    checkpoints = CHECKPOINT * ((work.batches + 2 * work.runs) / DEFAULTS.checkpoint_commits)
    periodic = CLOCK * _times(CLOCK_S, work) + DEFAULTS_POLL * _times(DEFAULTS_S, work)
    if work.interval * 1000 > LIST_AFTER_REMOTE_MS:
        batch += LATE_POLL
    return Item("append", batch * work.batches + checkpoints + periodic, gb_in=work.gb)


def _times(seconds: float, work: Workload) -> float:
    """Return the monthly number of actions of a writer that are due every `seconds` and are done at the next commit."""
    return MONTH_DAYS * DAY_S / (ceil(seconds / work.interval) * work.interval)


def polls(seconds: float, poll_ms: float | None = None) -> float:
    """Return the maximum number of polls by a reader in a period of `seconds` without new records."""
    if poll_ms is not None:
        return seconds * 1000 / poll_ms
    count, idle_ms = 0, 0
    while idle_ms < seconds * 1000:
        pause_ms = poll_pause_ms(idle_ms)
        if pause_ms >= REMOTE_POLL_MS:
            return count + (seconds * 1000 - idle_ms) / pause_ms
        count, idle_ms = count + 1, idle_ms + pause_ms + ROUND_TRIP_MS
    return count


def _poll(work: Workload) -> Item:
    commits_per_poll = 0.0 if work.poll is None else work.poll / 1000 / work.interval
    if commits_per_poll >= 1:
        # Each poll finds commits, and requests 1, 2, 4 and so on of them at a time.
        gets, requested, step = 0, 0.0, 1
        while requested <= commits_per_poll:
            gets, requested, step = gets + step, requested + step, min(2 * step, READ_AHEAD)
        return Item("poll", Requests(gets=gets) * (work.batches / commits_per_poll * work.readers))
    idle = IDLE_POLL if work.poll is None or work.poll <= LIST_AFTER_REMOTE_MS else IDLE_POLL + LATE_POLL
    per_commit = idle * polls(work.interval, work.poll) + NEW_COMMIT
    return Item("poll", per_commit * (work.batches * work.readers))


def _read(work: Workload) -> Item:
    """Return the costs of reading each slice once. If several tasks read a file, they make separate requests.

    Inline records are read with the commit.
    """
    if work.is_inline:
        return Item("read", Requests(), gb_out=work.gb * work.readers)
    spans = ceil(work.file_bytes / DEFAULTS.span_bytes)
    tasks = ceil(work.file_bytes * work.tasks / (2 * DEFAULTS.span_bytes))
    gets_per_file = min(spans + tasks - 1, work.partitions * spans)
    gets = work.tasks * gets_per_file * work.batches * work.readers
    return Item("read", Requests(gets=gets), gb_out=work.gb * work.readers)


def _maintain(work: Workload) -> Item:
    """Return the costs of maintenance. Each byte is merged once and sealed once."""
    nbytes = work.gb * GB
    files = 1 if work.is_inline else work.tasks
    merged = files * min(work.partitions, ceil(work.file_bytes / MERGE_BYTES)) * work.batches
    segments = nbytes / SEGMENT_BYTES
    written = upload(SEGMENT_BYTES) * (2 * segments) + Requests(puts=3) * segments
    read = Requests(gets=merged + nbytes / DEFAULTS.span_bytes)
    commits = KEEP_MS / 1000 / work.interval
    appended = 0 if work.is_inline else DAY_S / work.interval * work.tasks
    stored = appended + 4 * segments * work.retention / MONTH_DAYS
    # The vacuum lists commits and data files. It also reads the commits of the last day, because an earlier version
    # may reference a file that the latest version does not reference. Compaction only reads the latest state.
    since = DAY_S + work.jobs * HOUR_S
    walked = (since / work.interval + since / HOUR_S / work.jobs * 2) / BLOCK_COMMITS + AVERAGE_TAIL.gets
    upkeep = COMMIT * min(1, (work.jobs * HOUR_S / work.interval + 2) / DEFAULTS.checkpoint_commits + UPKEEP)
    vacuum = VACUUM + upkeep + Requests(gets=walked, lists=(commits + stored) / LISTED)
    runs = (RUN + MERGE + RUN + vacuum) * work.runs
    return Item("maintain", read + written + runs, gb_in=2 * work.gb, gb_out=2 * work.gb)


def _store(work: Workload) -> Item:
    """Return the costs of storage. Merged and sealed files, and expired segments, are kept for an additional day."""
    return Item("store", Requests(), gb_stored=work.gb / MONTH_DAYS * (work.retention + 1 + 2))


def lines(work: Workload) -> list[str]:
    items = bill(work)
    text = [_line("month", ["PUT", "GET", "LIST", "GB"], [prices.store for prices in PRICES])]
    for item in items:
        counts = item.requests.puts, item.requests.gets, item.requests.lists, item.gb_stored
        text.append(_line(item.name, map(_short, counts), [_money(item.dollars(prices)) for prices in PRICES]))
    totals = [_money(sum(item.dollars(prices) for item in items)) for prices in PRICES]
    text.append(_line("all", [""] * 4, totals))
    idle = polls(DAY_S, work.poll or REMOTE_POLL_MS)
    dollars, store = idle * MONTH_DAYS * PRICES[0].get / 1000, PRICES[0].store
    return [
        *text,
        f"An idle reader sends {idle:,.0f} GET requests per day and topic: {_money(dollars)} per month on {store}.",
        "Prices of November 2026 for the United States, without transfer out of the region; check your provider's.",
    ]


def _line(name: str, counts: Iterable[str], dollars: Iterable[str]) -> str:
    amounts = [f"{text:>{max(len(prices.store), 9)}}" for prices, text in zip(PRICES, dollars, strict=True)]
    return "  ".join([f"{name:8}", *(f"{count:>7}" for count in counts), *amounts])


def document(work: Workload) -> dict[str, object]:
    items = [(item, {prices.store: round(item.dollars(prices), 2) for prices in PRICES}) for item in bill(work)]
    return {"workload": asdict(work), "items": [{**asdict(item), "dollars": dollars} for item, dollars in items]}


def _short(count: float) -> str:
    for limit, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if count >= limit:
            return f"{count / limit:.1f} {unit}"
    return f"{count:.0f}" if count else ""


def _money(dollars: float) -> str:
    return f"${dollars:,.2f}"
