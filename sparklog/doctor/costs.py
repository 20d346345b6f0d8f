"""Costs of a topic in a bucket: requests by operation, times a price list.

The counts of requests are budgets: tests hold every operation to them, and a simulated month to the bill. Prices are a
provider's and change; those in `prices.csv` were noted in November 2026, for regions in the United States, without
transfer out of the region.
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
from sparklog.log.journal.journal import UNSEEN_REMOTE_MS
from sparklog.log.journal.numbered_objects import READ_AHEAD
from sparklog.log.state.configs import TopicConfigs
from sparklog.log.state.embedded_commits import BLOCK_COMMITS, commits_to_read
from sparklog.log.topic.root import REMOTE_POLL_MS, poll_pause_ms
from sparklog.log.write.append_output import inline_file_bytes, task_inline_bytes

PUT_BYTES = 8 << 20
"""A data object up to this size is one PUT, a larger one a multipart upload in parts of it."""
LISTED = 1000
"""Keys of one LIST."""
MERGE_BYTES = 1 << 20
"""What one GET of a merge asks for, unless a slice is larger."""
SEGMENT_BYTES = 1 << 30
ROUND_TRIP_MS = 20
"""Time that a look itself takes."""
HOUR_S = 3_600
DAY_S = 86_400
MONTH_DAYS = 30
GB = 1e9


@dataclass(frozen=True, slots=True)
class Requests:
    """Requests as stores bill them: a HEAD is a GET, a delete is free."""

    puts: float = 0
    gets: float = 0
    lists: float = 0

    def __add__(self, other: Requests) -> Requests:
        return Requests(self.puts + other.puts, self.gets + other.gets, self.lists + other.lists)

    def __mul__(self, times: float) -> Requests:
        return Requests(self.puts * times, self.gets * times, self.lists * times)


IDLE_POLL = Requests(gets=1)
"""A look for new records that meets none, of one topic."""
LATER_LOOK = Requests(lists=1)
"""A process whose last poll of a topic is older than `UNSEEN_REMOTE_MS` lists later commits: the next may be lost."""
NEW_COMMIT = Requests(gets=3)
"""A look that meets one commit: it, and the next two numbers at once, which are missing."""
OPENING = Requests(gets=4, lists=2)
"""The root's id, the checkpoints, the newest one's head and table, the commits, nothing new; without `TAIL`."""


def carried_tail(commits: int) -> int:
    """Return the objects that are read for so many commits after a checkpoint, and to see that there is no other."""
    last = BLOCK_COMMITS + commits - 1
    return len({*commits_to_read(BLOCK_COMMITS, last), *range(max(BLOCK_COMMITS, last - 1), last + 2)})


TAIL = Requests(gets=max(map(carried_tail, range(BLOCK_COMMITS))))
"""Commits after the newest checkpoint, at most."""
TAIL_ON_AVERAGE = Requests(gets=sum(map(carried_tail, range(BLOCK_COMMITS))) / BLOCK_COMMITS)
OPENED = Requests(gets=1, lists=2)
"""Open a journal: list and read the latest checkpoint, list numbers above the latest entry; without `tail`."""


def tail(entries: int) -> Requests:
    """Entries after the newest checkpoint of a journal that has one after so many, on average: 16 at a time."""
    return Requests(gets=sum(READ_AHEAD * ceil((after + 1) / READ_AHEAD) for after in range(entries)) / entries)


CHECKPOINT = Requests(puts=2, gets=2, lists=1)
"""Written every `checkpoint_commits` of `Limits`."""
OUTCOME = Requests(puts=2, gets=21, lists=2)
"""A run of a job records its outcome: it opens the journal, creates an entry, and every eight runs a copy of one."""
OUTCOME_ENTRIES = 8
"""Between two of its checkpoints."""
OUTCOMES_LOOK = Requests(gets=3, lists=2)
"""What the jobs have recorded: the newest entry, and two looks for the next."""
CLOCK = Requests(puts=1, gets=1)
"""A writer compares its clock with the store's every ten minutes."""
CLOCK_S = 600
DEFAULTS_LOOK = Requests(gets=1)
"""A writer looks at the defaults of the root every five minutes."""
DEFAULTS_S = 300
COMMIT = Requests(puts=1, gets=3)
"""By a writer that knows the newest commit: the next number and the root, then the commit before.

If it has not looked for a second, there is one more GET: for the number after its own.
"""


COPY = Requests(puts=1, gets=2)
"""A checkpoint of a journal whose entries hold all: a copy, and a look whether its original is there."""
LEASE = OPENED + tail(DEFAULTS.checkpoint_entries) + COMMIT * 2 + COPY * (2 / DEFAULTS.checkpoint_entries)
"""A run opens the journal of leases, takes one and gives it back."""
RECORD = OPENED + tail(OUTCOME_ENTRIES) + Requests(puts=1, gets=2) + COPY * (1 / OUTCOME_ENTRIES)
"""`OUTCOME` on average."""
RUN = CLOCK * 2 + LEASE + OPENED + Requests(lists=2) + OPENING + TAIL_ON_AVERAGE + RECORD
"""A run of either job, whatever it finds: clocks, lease, the root's defaults, its topics, the topic, the outcome."""
MERGE = Requests(puts=2, gets=5)
"""A run of `compact` writes a file and a commit."""
VACUUM = CLOCK * 2 + Requests(gets=21, lists=22)
"""A run of `retain`, besides the commits that it walks over: the newest checkpoints, data files, other journals."""
UPKEEP = 1 / 8
"""Commits of a run of `retain`, besides one for each checkpoint."""


def micro_batch(tasks: int) -> Requests:
    """Plan, an object of up to `PUT_BYTES` for each task, and the commit."""
    return Requests(puts=tasks + 1, gets=tasks + 6)


INLINE_BATCH = micro_batch(0)
"""The same where the records are in the commit: no task makes a request."""


def upload(nbytes: float) -> Requests:
    """A data object; of a multipart upload also its begin, its end, and a look before and after: free, and whole?"""
    return Requests(puts=1) if nbytes <= PUT_BYTES else Requests(puts=2 + ceil(nbytes / PUT_BYTES), gets=2)


@dataclass(frozen=True, slots=True)
class Prices:
    """US dollars for 1,000 requests, a GB-month, and a GB written or read."""

    store: str
    put: float
    get: float
    list: float
    gb_month: float
    gb_in: float
    gb_out: float


def read_prices() -> tuple[Prices, ...]:
    """Read `prices.csv`, one store a line."""
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
"""The least and the most of each figure for which the sums of this module mean something."""


@dataclass(frozen=True, slots=True)
class Workload:
    """One topic: stored MB/s, seconds between commits, readers that poll, each `poll_ms` (None: as they do), days.

    `jobs`: hours between two runs of each job.
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
                raise BadRequest(f"--{name} must be from {low:g} to {high:g}, found {value:g}")

    @property
    def batches(self) -> float:
        return MONTH_DAYS * DAY_S / self.interval

    @property
    def runs(self) -> float:
        """Runs of each job in the month."""
        return MONTH_DAYS * DAY_S / HOUR_S / self.jobs

    @property
    def file_bytes(self) -> float:
        return self.rate * 1e6 * self.interval / self.tasks

    @property
    def is_inline(self) -> bool:
        """True if the records of a commit are in it, by the default of `inline.records.bytes`."""
        nbytes = ceil(self.rate * 1e6 * self.interval)
        slices = self.tasks * self.partitions
        most = TopicConfigs().inline_records_bytes
        of_task = inline_file_bytes(self.partitions, ceil(nbytes / self.tasks))
        return inline_file_bytes(slices, nbytes) <= most and of_task <= task_inline_bytes(most)

    @property
    def gb(self) -> float:
        return self.rate * 1e6 * MONTH_DAYS * DAY_S / GB


@dataclass(frozen=True, slots=True)
class Item:
    """A line of the bill: requests of a month, GB written and read, GB stored."""

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
    # Each run of a job makes a commit, too.
    checkpoints = CHECKPOINT * ((work.batches + 2 * work.runs) / DEFAULTS.checkpoint_commits)
    looked = CLOCK * _times(CLOCK_S, work) + DEFAULTS_LOOK * _times(DEFAULTS_S, work)
    if work.interval * 1000 > UNSEEN_REMOTE_MS:
        batch += LATER_LOOK
    return Item("append", batch * work.batches + checkpoints + looked, gb_in=work.gb)


def _times(seconds: float, work: Workload) -> float:
    """Return how often in a month a writer does what is due so often, and is done with a commit."""
    return MONTH_DAYS * DAY_S / (ceil(seconds / work.interval) * work.interval)


def looks(seconds: float, poll_ms: float | None = None) -> float:
    """Return how often a reader looks for new records after it met some, in a time in which none come: at most."""
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
    met = 0.0 if work.poll is None else work.poll / 1000 / work.interval
    if met >= 1:
        # Each look meets commits. Numbers are asked for in growing steps: 1, 2, 4 and so on.
        of_look, asked, step = 0, 0.0, 1
        while asked <= met:
            of_look, asked, step = of_look + step, asked + step, min(2 * step, READ_AHEAD)
        return Item("poll", Requests(gets=of_look) * (work.batches / met * work.readers))
    idle = IDLE_POLL if work.poll is None or work.poll <= UNSEEN_REMOTE_MS else IDLE_POLL + LATER_LOOK
    of_commit = idle * looks(work.interval, work.poll) + NEW_COMMIT
    return Item("poll", of_commit * (work.batches * work.readers))


def _read(work: Workload) -> Item:
    """Each slice's bytes once; where several tasks read a file, each begins with a request of its own.

    Readers that poll have records in commits with the commit.
    """
    if work.is_inline:
        return Item("read", Requests(), gb_out=work.gb * work.readers)
    spans = ceil(work.file_bytes / DEFAULTS.span_bytes)
    tasks = ceil(work.file_bytes * work.tasks / (2 * DEFAULTS.span_bytes))
    of_file = min(spans + tasks - 1, work.partitions * spans)
    gets = work.tasks * of_file * work.batches * work.readers
    return Item("read", Requests(gets=gets), gb_out=work.gb * work.readers)


def _maintain(work: Workload) -> Item:
    """Each byte is merged once and sealed once, by a `compact` and a `retain` every hour or so."""
    nbytes = work.gb * GB
    files = 1 if work.is_inline else work.tasks
    merged = files * min(work.partitions, ceil(work.file_bytes / MERGE_BYTES)) * work.batches
    segments = nbytes / SEGMENT_BYTES
    written = upload(SEGMENT_BYTES) * (2 * segments) + Requests(puts=3) * segments
    read = Requests(gets=merged + nbytes / DEFAULTS.span_bytes)
    commits = KEEP_MS / 1000 / work.interval
    appended = 0 if work.is_inline else DAY_S / work.interval * work.tasks
    stored = appended + 4 * segments * work.retention / MONTH_DAYS
    # The vacuum lists commits and data files, and goes through those of the last day, and the jobs' own: a version may
    # name a file that the newest does not. Compaction finds all it needs in the newest state.
    since = DAY_S + work.jobs * HOUR_S
    walked = (since / work.interval + since / HOUR_S / work.jobs * 2) / BLOCK_COMMITS + TAIL_ON_AVERAGE.gets
    upkeep = COMMIT * min(1, (work.jobs * HOUR_S / work.interval + 2) / DEFAULTS.checkpoint_commits + UPKEEP)
    vacuum = VACUUM + upkeep + Requests(gets=walked, lists=(commits + stored) / LISTED)
    runs = (RUN + MERGE + RUN + vacuum) * work.runs
    return Item("maintain", read + written + runs, gb_in=2 * work.gb, gb_out=2 * work.gb)


def _store(work: Workload) -> Item:
    """Files that were merged or sealed stay for another day, and so do expired segments."""
    return Item("store", Requests(), gb_stored=work.gb / MONTH_DAYS * (work.retention + 1 + 2))


def lines(work: Workload) -> list[str]:
    items = bill(work)
    text = [_line("a month", ["PUT", "GET", "LIST", "GB"], [prices.store for prices in PRICES])]
    for item in items:
        counts = item.requests.puts, item.requests.gets, item.requests.lists, item.gb_stored
        text.append(_line(item.name, map(_short, counts), [_money(item.dollars(prices)) for prices in PRICES]))
    totals = [_money(sum(item.dollars(prices) for item in items)) for prices in PRICES]
    text.append(_line("all", [""] * 4, totals))
    idle = looks(DAY_S, work.poll or REMOTE_POLL_MS)
    dollars = idle * MONTH_DAYS * PRICES[0].get / 1000
    return [
        *text,
        f"An idle reader: {idle:,.0f} GETs a day and topic, {_money(dollars)} a month on {PRICES[0].store}.",
        "Prices of November 2026, United States: check your provider's. Transfer out of the region is not in them.",
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
