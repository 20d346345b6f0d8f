"""The participants of a random run across several topics, and the checks of their results."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from sparklog.errors import BadRequest, Conflict, Corrupt, Fenced, NotFound, SparklogError, Unavailable
from sparklog.groups.collecting import collect_groups
from sparklog.groups.lag import Groups
from sparklog.log.journal.names import append_path
from sparklog.log.state.slice_table import COMMITTED, PLAIN, Snapshot
from sparklog.log.state.slices import FileSlices
from sparklog.log.state.writer_runs import WriterKey
from sparklog.log.topic.root import Root, RootView, open_root
from sparklog.log.write.append_output import inline_file, written_slices
from sparklog.log.write.append_target import AppendTarget, TopicFiles
from sparklog.testing.faulty_store import Decide, FaultKind
from sparklog.testing.world import DAY_MS
from sparklog.transactions.completion import collect, resolve_topic
from sparklog.transactions.producer import Transaction, transactional
from sparklog.transactions.publishing import publish
from tests.support.simulation.runs import SimulatedRun, restarted
from tests.support.simulation.scheduler import Actor, SimulatedWorld, expect
from tests.transactions.simulation.ledger import WRITTEN_CRC, Ledger, LedgerStore, label

if TYPE_CHECKING:
    from tests.transactions.simulation.followers import Followed

TOPICS = ("a", "b", "c")
TIMEOUT_MS = 20_000


@dataclass
class Attempt:
    """One transaction as its writer saw it: files by topic, and the reported outcome."""

    files: dict[str, list[str]] = field(default_factory=dict)
    outcome: str = "unknown"
    batch: tuple[str, int] | None = None
    txn: tuple[str, int] | None = None
    """The transaction of another job that this one is a part of, once it is recorded."""
    span: tuple[str, int, int] | None = None
    """The group, and the offsets `[start, end)` of its source from which the files were made."""
    span_txn: tuple[str, int] = ("", -1)
    """The transaction that sends the offsets."""


@dataclass
class Run(SimulatedRun):
    """A run across three topics: the ledger, and the outcomes that were reported to each writer."""

    ledger: Ledger = field(default_factory=Ledger)
    attempts: list[Attempt] = field(default_factory=list)
    progress: dict[str, int] = field(default_factory=dict)
    board: dict[str, tuple[int, list[str]]] = field(default_factory=dict)
    """Shared transactions: id -> its number, and the jobs that have prepared."""
    followed: list[Followed] = field(default_factory=list)

    RESTARTS = 4
    RESTART_PAUSE_S = 3.0

    def create_world(self) -> None:
        store = LedgerStore(lambda: self.world.now_ms, self.ledger, f"seed-{self.seed}")
        self.world = SimulatedWorld(self.seed, store=store, max_steps=40_000)
        root = self.outsider("setup")
        for name in TOPICS:
            root.create_topic(name, partitions=2)

    def check_result(self) -> None:
        """Check the end of a run: acknowledged transactions are visible once in all topics, and none is open."""
        files = (file for topic in self.ledger.files.values() for file in topic)
        self.count("in memory", sum(file.path.startswith("in memory") for file in files))
        self.world.now_ms += 10 * TIMEOUT_MS
        checker = Actor(self.world, "judge", lambda actor: None, 0, 0)
        root = open_root(self.world.store, env=checker.env)
        for name in TOPICS:
            resolve_topic(root.topic(name))
        seen = {}
        for name in TOPICS:
            topic = root.topic(name)
            state = topic.log.state()
            expect(
                state.last_stable().tolist() == state.log_end.tolist(), f"{name} is held back for ever: {state.open}"
            )
            seen[name] = visible(topic.log.read_snapshot())
            expect(sorted(seen[name]) == sorted(self.ledger.visible(name)), f"{name} shows what its decisions do not")
        self._check_groups(root, seen)
        from tests.transactions.simulation.followers import check_followers

        check_followers(self, lambda name: root.topic(name).log.read_snapshot().slices.all())
        batches: dict[tuple[str, int], int] = {}
        for attempt in self.attempts:
            shown = {name: [path in seen[name] for path in paths] for name, paths in attempt.files.items()}
            every = [item for items in shown.values() for item in items]
            expect(all(every) or not any(every), f"torn: {attempt} shows {shown}")
            if attempt.txn is not None:
                decided = self.ledger.decided.get(attempt.txn) is not None
                expect(all(every) == decided, f"{attempt} was recorded in a transaction, COMMIT {decided}")
            if attempt.outcome == "committed":
                expect(all(every), f"lost: {attempt} was acknowledged")
            elif attempt.outcome == "aborted":
                expect(not any(every), f"{attempt} is visible")
            if attempt.batch is not None and any(every):
                batches[attempt.batch] = batches.get(attempt.batch, 0) + 1
        for batch, times in batches.items():
            expect(times == 1, f"batch {batch} is there {times} times")
        for query, newest in self.progress.items():
            for batch in range(newest + 1):
                expect((query, batch) in batches, f"batch {batch} of {query} was acknowledged and is not there")

    def _check_groups(self, root: Root, seen: dict[str, list[str]]) -> None:
        from tests.transactions.simulation.loops import check_spans, offset_of

        for name in Groups(root).names():
            group = Groups(root).group(name)
            shown = offset_of(group.state())
            expect(not group.resolve_pending().pending, f"group {name} waits for ever: {group.log.current().pending}")
            expect(offset_of(group.state()) == shown, f"group {name} showed {shown} before it was recorded")
        check_spans(
            self,
            lambda name: offset_of(Groups(root).group(name).state()),
            lambda attempt: any(path in seen[name] for name, paths in attempt.files.items() for path in paths),
        )


def visible(snapshot: Snapshot) -> list[str]:
    """Return the files whose records a read_committed reader sees, in the order of partitions and offsets."""
    rows, stable = snapshot.slices.all(), snapshot.state.last_stable()
    found: dict[str, None] = {}
    for row in range(len(rows)):
        below = rows.end[row] <= stable[rows.partition[row]]
        if below and rows.status[row] in (PLAIN, COMMITTED):
            found[label(rows.path(row), int(rows.crc[row]))] = None
    return list(found)


def upload(actor: Actor, root: Root, attempt: Attempt, target: AppendTarget) -> list[FileSlices]:
    """Write a file of generated slices. A failed upload is repeated with a new name."""
    parts: tuple[int, ...]
    if target.inline_bytes and actor.random.random() < 0.6:
        parts, crc = actor.random.choice([(0,), (1,), (0, 1)]), actor.random.randint(100, 2**31)
        small = inline_file(written_slices(made_up("", parts, crc)), actor.random.randbytes(100 * len(parts)))
        attempt.files.setdefault(target.topic, []).append(label("", crc))
        return [small]
    while True:
        path = append_path(target.read_version, actor.env.new_id())
        try:
            writer = root.store.writer(f"{target.topic}/{path}")
            writer.write(b"data")
            writer.close()
            break
        except Unavailable:
            continue
    attempt.files.setdefault(target.topic, []).append(path)
    return [made_up(path, actor.random.choice([(0,), (1,), (0, 1)]), WRITTEN_CRC)]


def made_up(path: str, parts: tuple[int, ...], crc: int) -> FileSlices:
    n = len(parts)
    return FileSlices(
        path=path,
        size=100 * n + 10,
        footer_length=10,
        partition=parts,
        nbytes=(100,) * n,
        offsets=(2,) * n,
        records=(2,) * n,
        min_ts=(1,) * n,
        max_ts=(2,) * n,
        crc=(crc,) * n,
        flags=(0,) * n,
    )


def fill(run: Run, actor: Actor, root: Root, transaction: Transaction, attempt: Attempt, topics: Sequence[str]) -> None:
    for name in topics:
        target = root.topic(name).log.append_target(refresh=False)
        transaction.add(target, upload(actor, root, attempt, target))


def writer(run: Run, decide: Decide, name: str, rounds: int, pace_s: float) -> Callable[[Actor], None]:
    """Consecutive transactions of one id. Several such actors are instances that fence each other."""

    def body(actor: Actor) -> None:
        left = iter(range(rounds))

        def life() -> None:
            producer = None
            for _ in left:
                attempt = Attempt()
                try:
                    root = run.root(actor, decide) if producer is None else producer.root
                    if producer is None:
                        producer = transactional(root, name, timeout_ms=TIMEOUT_MS)
                    transaction = producer.begin()
                    run.attempts.append(attempt)
                    topics = actor.random.sample(TOPICS, actor.random.randint(1, 3))
                    fill(run, actor, root, transaction, attempt, topics)
                    actor.sleep(actor.random.random() * pace_s)
                    if actor.random.random() < 0.2:
                        attempt.outcome = "aborted"
                        transaction.abort()
                    else:
                        transaction.commit()
                        attempt.outcome = "committed"
                    run.count(attempt.outcome)
                except (Fenced, Conflict, NotFound) as error:
                    actor.note(f"{error.code} {error}")
                    attempt.outcome = "aborted"
                    run.count(type(error).__name__)
                    producer = None
                except (Unavailable, Corrupt, BadRequest) as error:
                    actor.note(f"{error.code} {error}")
                    attempt.outcome = "aborted" if "is aborted" in str(error) else attempt.outcome
                    run.count(type(error).__name__)
                    if actor.random.random() < 0.5:
                        producer = None

        restarted(run, actor, life)

    return body


def driver(run: Run, decide: Decide, query: str, batches: int, pace_s: float) -> Callable[[Actor], None]:
    """The driver of a streaming query across three topics. Several drivers replay and fence each other."""

    def body(actor: Actor) -> None:
        def life() -> None:
            run_id, root, failures = actor.env.new_id(), None, 0
            while run.progress.get(query, -1) < batches - 1 and failures < 8:
                batch = run.progress.get(query, -1) + 1
                attempt = Attempt(batch=(query, batch))
                try:
                    root = root or run.root(actor, decide)
                    written = []
                    for name in TOPICS:
                        target = root.topic(name).log.append_target(refresh=False)
                        written.append(TopicFiles(target, tuple(upload(actor, root, attempt, target))))
                    run.attempts.append(attempt)
                    key = WriterKey(query, batch, run_id, replay_mismatch="accept")
                    done = publish(root, query, written, key=key, timeout_ms=TIMEOUT_MS)
                    attempt.outcome = "aborted" if done.skipped else "committed"
                    run.count("replays skipped" if done.skipped else "batches")
                    actor.sleep(actor.random.random() * pace_s)
                    run.progress[query] = max(run.progress.get(query, -1), batch)
                except Fenced:
                    attempt.outcome = "aborted"
                    run.count("fenced")
                    return
                except Conflict as error:
                    attempt.outcome = "aborted"
                    run.count("driver Conflict")
                    if "checkpoint is older" in str(error):
                        return
                    failures += 1
                except (Unavailable, NotFound, Corrupt, BadRequest) as error:
                    actor.note(f"{error.code} {error}")
                    run.count(f"driver {type(error).__name__}")
                    failures, root = failures + 1, None
                    actor.sleep(actor.random.random())

        restarted(run, actor, life)

    return body


def sharer(run: Run, decide: Decide, name: str, rounds: int) -> Callable[[Actor], None]:
    """Begins transactions that another job joins, waits for that job for a while, and commits."""

    def body(actor: Actor) -> None:
        left = iter(range(rounds))

        def life() -> None:
            for _ in left:
                attempt = Attempt()
                try:
                    root = run.root(actor, decide)
                    transaction = transactional(root, name, timeout_ms=TIMEOUT_MS).begin()
                    run.attempts.append(attempt)
                    jobs: list[str] = []
                    run.board[name] = transaction.n, jobs
                    fill(run, actor, root, transaction, attempt, TOPICS[:2])
                    for _ in range(6):
                        actor.sleep(actor.random.random() * 4)
                        if jobs:
                            break
                    transaction.commit()
                    attempt.outcome = "committed"
                    run.count("shared committed" if jobs else "shared committed alone")
                except (Fenced, Conflict, NotFound):
                    attempt.outcome = "aborted"
                except (Unavailable, Corrupt, BadRequest) as error:
                    attempt.outcome = "aborted" if "is aborted" in str(error) else attempt.outcome

        restarted(run, actor, life)

    return body


def joiner(run: Run, decide: Decide, name: str, looks: int) -> Callable[[Actor], None]:
    """Joins the transactions of a sharer."""

    def body(actor: Actor) -> None:
        left = iter(range(looks))

        def life() -> None:
            for _ in left:
                actor.sleep(actor.random.random() * 4)
                if name not in run.board or run.board[name][1]:
                    continue
                n, jobs = run.board[name]
                attempt = Attempt()
                try:
                    root = run.root(actor, decide)
                    transaction = transactional(root, name, timeout_ms=TIMEOUT_MS).join(n, "job")
                    run.attempts.append(attempt)
                    fill(run, actor, root, transaction, attempt, TOPICS[1:])
                    transaction.prepare()
                    attempt.txn = name, n
                    jobs.append(actor.name)
                    run.count("joined")
                except (SparklogError, OSError) as error:
                    actor.note(f"join: {error}")
                    run.count(f"join {type(error).__name__}")

        restarted(run, actor, life)

    return body


def appender(run: Run, decide: Decide, rounds: int) -> Callable[[Actor], None]:
    """Plain appends, which record the decisions of open transactions."""

    def body(actor: Actor) -> None:
        def life() -> None:
            root = None
            for _ in range(rounds):
                try:
                    root = root or run.root(actor, decide)
                    topic = root.topic(actor.random.choice(TOPICS))
                    target = topic.log.append_target()
                    topic.log.commit_append(upload(actor, root, Attempt(), target), target)
                except (Unavailable, NotFound, Corrupt, BadRequest) as error:
                    actor.note(f"{error.code} {error}")
                    root = None
                actor.sleep(actor.random.random() * 5)

        restarted(run, actor, life)

    return body


def keeper(run: Run, decide: Decide, rounds: int) -> Callable[[Actor], None]:
    """Maintenance: records decisions, aborts transactions after their timeout, prunes and deletes entries."""

    def body(actor: Actor) -> None:
        def life() -> None:
            for _ in range(rounds):
                try:
                    root = run.root(actor, decide)
                    for name in TOPICS:
                        run.count(f"resolved {bool(resolve_topic(root.topic(name)))}")
                    collect_groups(root, retention_ms=7 * DAY_MS)
                    collect(root)
                except (SparklogError, OSError) as error:
                    actor.note(f"keeper: {error}")
                actor.sleep(actor.random.random() * 10)

        restarted(run, actor, life)

    return body


def reader(run: Run, decide: Decide, polls: int) -> Callable[[Actor], None]:
    """Repeatedly reads all topics.

    Each transaction is visible completely or not at all, never disappears, and is never late.
    """
    stale_reads = FaultKind.ABSENT in getattr(decide, "kinds", ())

    def body(actor: Actor) -> None:
        left = iter(range(polls))

        def life() -> None:
            view = None
            read: dict[tuple[str, int], list[str]] = {}
            stable: dict[tuple[str, int], int] = {}
            for _ in left:
                try:
                    view = view or RootView(run.root(actor, decide))
                    view.refresh(actor.random.sample(TOPICS, 3))
                    look(view, read, stable)
                    run.count("polls")
                except (Unavailable, Corrupt, NotFound, BadRequest) as error:
                    actor.note(f"reader: {error.code} {error}")
                    run.count(f"reader {type(error).__name__}")
                    view = None
                    if stale_reads:
                        # A new reader with such a cache may see less than an earlier reader.
                        read, stable = {}, {}
                actor.sleep(actor.random.random() * 3)

        def look(view: RootView, read: dict[tuple[str, int], list[str]], stable: dict[tuple[str, int], int]) -> None:
            shown: dict[str, set[str]] = {}
            hidden: dict[str, set[str]] = {}
            for name in TOPICS:
                snapshot = view.snapshot(name)
                committed = set(run.ledger.visible(name))
                rows = snapshot.slices.all()
                shown[name] = set()
                hidden[name] = set()
                for partition, bounds in view.bounds(name).items():
                    end = bounds.last_stable
                    pair = name, partition
                    expect(end >= stable.get(pair, 0), f"the last stable offset of {pair} went back to {end}")
                    stable[pair] = end
                    paths = [
                        label(rows.path(row), int(rows.crc[row]))
                        for row in range(len(rows))
                        if rows.partition[row] == partition
                        and rows.end[row] <= end
                        and rows.status[row] in (PLAIN, COMMITTED)
                    ]
                    before = read.get(pair, [])
                    expect(paths[: len(before)] == before, f"{pair} showed {before}, now {paths}")
                    read[pair] = paths
                    expect(set(paths) <= committed, f"{pair} shows what nobody committed")
                    shown[name] |= set(paths)
                    hidden[name] |= {
                        label(rows.path(row), int(rows.crc[row]))
                        for row in range(len(rows))
                        if rows.partition[row] == partition
                    } - set(paths)
            for attempt in run.attempts:
                every = [path in shown[name] for name, paths in attempt.files.items() for path in paths]
                part = any(
                    path in shown[name] & hidden[name] for name, paths in attempt.files.items() for path in paths
                )
                expect((all(every) and not part) or not any(every), f"torn for a reader: {attempt}")

        restarted(run, actor, life)

    return body
