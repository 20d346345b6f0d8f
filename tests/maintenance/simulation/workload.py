"""Actors of the simulation of maintenance, and the checks of their results.

The actors append, prepare and end transactions, delete records, read old plans, seal, merge, clean, expire and vacuum.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from sparklog.compaction.clean_plan import plan_cleaning
from sparklog.compaction.merge_plan import plan_merges
from sparklog.compaction.run import CompactOptions, Plans
from sparklog.compaction.seal_plan import plan_sealing
from sparklog.errors import BadRequest, Conflict, Corrupt, Fenced, NotFound, SparklogError, Unavailable
from sparklog.log.journal.clocks import Env
from sparklog.log.read.topic_scan import Scan, scan_ranges
from sparklog.log.state.commit import Txn, TxnDecision, VersionLease
from sparklog.log.state.invariants import check_state
from sparklog.log.state.slice_table import Snapshot
from sparklog.log.state.slices import FileSlices
from sparklog.log.state.view import READ_COMMITTED, READ_UNCOMMITTED
from sparklog.log.topic.root import RootView, topic_of
from sparklog.log.topic.topic import Topic
from sparklog.log.write.append_target import AppendOutcome, AppendTarget, WriteOptions
from sparklog.log.write.append_writer import AppendWriter
from sparklog.maintenance.work_items import InProcess, Progress, Settings, Work, WorkResult, silent
from sparklog.retention.retain import retain_topic
from sparklog.testing.faulty_store import Decide
from sparklog.testing.world import DAY_MS, HOUR_MS
from tests.log.simulation.model import State
from tests.maintenance.simulation.records import RecordModel, Records, RecordStore, Written
from tests.support.compaction import compact_topic
from tests.support.maintaining import maintain
from tests.support.simulation.runs import SimulatedRun, restarted
from tests.support.simulation.scheduler import Actor, SimulatedWorld, expect

TOPIC = "t"
COLUMNS = ("partition", "offset", "key", "value", "timestamp")
CRON_MS = 6 * HOUR_MS
RACES = (Conflict.code, NotFound.code)
Rows = dict[tuple[int, int], Written]


@dataclass
class Run(SimulatedRun):
    """A run over one topic: the model, and the values drawn by the seed for all actors."""

    configs: Mapping[str, str] = field(default_factory=dict)
    partitions: int = 2
    slots: int | None = None
    """The slots of the offset map of the cleaner; with few slots it makes several passes."""
    keys: int = 6
    clean: bool = True
    """No faults are injected, so only conflicts may fail."""
    stalling: bool = False
    """Requests may take days."""
    recreating: bool = False
    """An actor deletes and recreates the topic."""
    stale: bool = False
    """Caches may hide existing objects."""
    slow: float = 0.2
    """The probability that a writer commits long after it wrote its files."""
    cron: float = 0.5
    """The probability that an actor wakes at the full hour, together with others."""
    model: RecordModel = field(init=False)
    store: RecordStore = field(init=False)
    _checked: int = -1

    def create_world(self) -> None:
        self._set_model(RecordModel(self._clock))
        self.outsider("creator").create_topic(TOPIC, partitions=self.partitions, configs=self.configs)

    def _set_model(self, model: RecordModel) -> None:
        self.model = model
        self.store = RecordStore(self._clock, model, f"seed-{self.seed}")
        self.world = SimulatedWorld(self.seed, store=self.store, max_steps=60_000)

    def _clock(self) -> int:
        return self.world.now_ms

    def fork(self) -> Run:
        """Return another run with the same past."""
        other = copy(self)
        other.counters = Counter()
        other._set_model(self.model.copy(other._clock))
        other.store.restore(self.store.snapshot())
        other.world.now_ms = self.world.now_ms
        return other

    @property
    def state(self) -> State:
        return self.model.topic(TOPIC).state

    @property
    def records(self) -> Records:
        return self.model.newest(TOPIC)

    def check(self) -> None:
        """Check that the contents of the store equal the model, byte for byte, and that the invariants are met."""
        if self._checked == self.state.version or self.state.deleted:
            return
        self._checked = self.state.version
        snapshot = self.outsider("observer").topic(TOPIC).log.snapshot()
        check_state(snapshot.state, snapshot.slices)
        same(self, snapshot)
        expect(snapshot.version == self.state.version, f"version {snapshot.version} is not {self.state.version}")
        topic = self.outsider("observer").topic(TOPIC)
        committed = self.records.rows()
        where = f"version {snapshot.version}"
        expect_rows(rows_of(topic.scan(columns=COLUMNS)), committed, where)
        if snapshot.version % 3 == 0:
            found = rows_of(topic.scan(columns=COLUMNS, isolation_level=READ_UNCOMMITTED))
            undecided = self.records.undecided()
            more = set(found.keys() - committed.keys() - undecided.keys())
            aborted = self.records.aborted_rows()
            expect(all(aborted.get(place) == found[place] for place in more), f"{where}: strange {sorted(more)[:8]}")
            expect_rows({place: found[place] for place in found.keys() - more}, committed | undecided, where)


def same(run: Run, snapshot: Snapshot) -> None:
    """Check that a snapshot equals the model at its version."""
    topic_state = snapshot.state
    state = run.model.topic(TOPIC).states[topic_state.version]
    records = run.model.log(TOPIC).versions[topic_state.version]
    where = f"snapshot at version {topic_state.version}"
    pairs: list[tuple[str, object, object]] = [
        ("log start", tuple(topic_state.log_start.tolist()), state.log_start),
        ("log end", tuple(topic_state.log_end.tolist()), state.log_end),
        ("cleaned through", tuple(topic_state.first_dirty_offset.tolist()), records.cleaned),
        (
            "last stable",
            tuple(topic_state.last_stable().tolist()),
            tuple(map(records.stable, range(topic_state.partitions))),
        ),
        ("floor", topic_state.floor, state.floor),
        (
            "holds",
            {name: (hold.version, hold.expires_ms) for name, hold in topic_state.leases.items()},
            dict(records.leases),
        ),
    ]
    rows = snapshot.slices.all()
    columns = [getattr(rows, name).tolist() for name in ("partition", "base", "end", "position", "records")]
    slices = [(*numbers, rows.path(row)) for row, numbers in enumerate(zip(*columns, strict=True))]
    pairs.append(
        ("slices", slices, [(s.partition, s.base, s.end, s.position, s.records, s.path) for s in state.slices])
    )
    for what, found, right in pairs:
        expect(found == right, f"{where}: {what} {found}, expected {right}")


def rows_of(scan: Scan) -> Rows:
    """Read a scan, and check that the records of each partition are in offset order without duplicates."""
    return _rows(list(scan))


def _rows(batches: Sequence[pa.RecordBatch]) -> Rows:
    found: Rows = {}
    last: dict[int, int] = {}
    for batch in batches:
        columns = {name: batch.column(name) for name in COLUMNS}
        stamps = columns["timestamp"].cast(pa.int64()).to_pylist()
        values = (columns[name].to_pylist() for name in COLUMNS[:-1])
        for p, offset, key, value, stamp in zip(*values, stamps, strict=True):
            expect(offset > last.get(p, -1), f"record {offset} of {p} was read after {last.get(p)}")
            last[p] = offset
            found[p, offset] = Written(key, value, stamp)
    return found


def expect_rows(found: Rows, expected: Rows, where: str) -> None:
    """Check that a scan returns exactly these records with their offsets."""
    if found == expected:
        return
    missing = sorted(expected.keys() - found.keys())
    extra = sorted(found.keys() - expected.keys())
    other = [place for place in found.keys() & expected.keys() if found[place] != expected[place]]
    expect(False, f"{where}: missing {missing[:8]}, not expected {extra[:8]}, different {sorted(other)[:8]}")


def nap(run: Run, actor: Actor, longest_ms: int = 3 * DAY_MS) -> None:
    """Sleep for a short time, sometimes for days, or until the next start of cron."""
    if actor.random.random() < run.cron:
        now_ms = actor.world.now_ms
        wait_ms = CRON_MS - now_ms % CRON_MS + actor.random.choice([0, 0, 0, 0, CRON_MS, 4 * CRON_MS])
        actor.sleep(wait_ms / 1000 + actor.random.random() * actor.random.choice([0.1, 1.0]))
        return
    bound = actor.random.choice([60_000, 20 * 60_000, 6 * HOUR_MS, DAY_MS, longest_ms])
    actor.sleep(actor.random.random() * bound / 1000)


def lives(run: Run, actor: Actor, turns: int, turn: Callable[[], None], what: str) -> None:
    """Run `turns` turns in processes that are restarted after a crash; count the injected faults."""
    left = iter(range(turns))

    def life() -> None:
        for _ in left:
            try:
                turn()
            except (Unavailable, Conflict, NotFound, Corrupt, Fenced) as error:
                if isinstance(error, Fenced) and run.losses is None:
                    raise
                actor.note(f"{what}: {error.code} {error}")
                run.count(f"{what} {type(error).__name__}")
            nap(run, actor)

    restarted(run, actor, life)


# -- writing


def upload(run: Run, env: Env, target: AppendTarget) -> list[FileSlices]:
    """Write one or two append files of a few records, and pass their contents to the model."""
    compacted = "compact" in run.configs["cleanup.policy"]
    files: list[FileSlices] = []
    rng = env.random
    for _ in range(rng.choice([1, 1, 1, 2])):
        options = WriteOptions(rng.choice(["none", "none", "zstd", "lz4"]), batch_bytes=rng.choice([60, 200, 1 << 19]))
        writer = AppendWriter(target, options, env)
        parts: dict[int, list[Written]] = {}
        for _ in range(rng.choice([1, 2, 3, 5, 9])):
            parts.setdefault(rng.randrange(target.partitions), []).append(_record(run, rng, compacted))
        try:
            writer.write(batch_of(parts))
            written = writer.finish()
        except BaseException:
            writer.discard()
            raise
        for file in written:
            if file.path:
                run.model.uploads[file.path] = parts
                continue
            for p, crc in zip(file.partition, file.crc, strict=True):
                run.model.in_memory[p, crc] = parts[p]
            run.count("files in memory")
        files += written
    return files


def _record(run: Run, rng: random.Random, compacted: bool) -> Written:
    key = None if not compacted and rng.random() < 0.3 else b"k%d" % rng.randrange(run.keys)
    value = None if key is not None and rng.random() < 0.25 else rng.randbytes(rng.choice([0, 3, 30, 80]))
    return Written(key, value, run.world.now_ms - rng.choice([0, 0, 5, HOUR_MS]))


def batch_of(parts: Mapping[int, Sequence[Written]]) -> pa.RecordBatch:
    rows = [(p, *record) for p, records in parts.items() for record in records]
    columns = list(zip(*rows, strict=True))
    types = {"partition": pa.int32(), "key": pa.binary(), "value": pa.binary(), "timestamp": pa.int64()}
    return pa.record_batch({name: pa.array(columns[i], kind) for i, (name, kind) in enumerate(types.items())})


def acknowledged(run: Run, files: Sequence[FileSlices], outcome: AppendOutcome) -> None:
    """Check that files which were reported as committed are in the log at the reported version."""
    topic = run.model.topic(TOPIC)
    for file in files:
        if not file.path:
            expect(outcome.version in topic.file_versions.values(), f"version {outcome.version} names no file")
            continue
        named = topic.file_versions.get(file.path)
        expect(named == outcome.version, f"{file.path} acknowledged at {outcome.version}, the log has it at {named}")
    ends = topic.states[outcome.version].log_end
    for partition, end in outcome.end.items():
        expect(end == ends[partition], f"partition {partition} acknowledged up to {end}, the log ends at {ends}")


def appender(run: Run, decide: Decide, appends: int) -> Callable[[Actor], None]:
    """Append records; a slow appender commits long after its upload, which the floor of the vacuum may reject."""

    def body(actor: Actor) -> None:
        def turn() -> None:
            topic = run.root(actor, decide).topic(TOPIC)
            for _ in range(actor.random.choice([1, 1, 2, 4])):
                target = topic.log.append_target()
                files = upload(run, actor.env, target)
                slow = actor.random.random() < run.slow
                if slow:
                    nap(run, actor, 5 * DAY_MS)
                try:
                    outcome = topic.log.commit_append(files, target)
                except Conflict as error:
                    if run.recreating and "recreated" in str(error):
                        raise
                    expect(slow or run.stalling, f"a quick append was refused: {error}")
                    expect("retention floor" in str(error), str(error))
                    run.count("stalled writer refused")
                    continue
                acknowledged(run, files, outcome)
                run.count("appends")

        lives(run, actor, appends, turn, "append")

    return body


def transactor(run: Run, decide: Decide, transactions: int) -> Callable[[Actor], None]:
    """Prepare slices, wait and record the outcome; transactions of crashed processes are aborted."""

    def body(actor: Actor) -> None:
        number = [0]

        def turn() -> None:
            topic = run.root(actor, decide).topic(TOPIC)
            left = [item for item in topic.log.state().open if item.txn.id == actor.name]
            resolved = [TxnDecision(actor.name, item.txn.n) for item in left]
            if resolved:
                maintain(topic, resolved=tuple(resolved))
                run.count("transactions left aborted")
            number[0] += 1
            # The transaction has no decision log, so no other process may abort it after a timeout.
            txn = Txn(actor.name, number[0], timeout_ms=1000 * DAY_MS)
            versions = []
            for _ in range(actor.random.choice([1, 1, 2])):
                target = topic.log.append_target()
                outcome = topic.log.commit_append(upload(run, actor.env, target), target, txn=txn)
                versions.append(outcome.version)
                nap(run, actor, DAY_MS)
            committed = actor.random.random() < 0.6
            decision = TxnDecision(txn.id, txn.n, tuple(versions) if committed else ())
            maintain(topic, resolved=(decision,))
            run.count("transactions committed" if committed else "transactions aborted")

        lives(run, actor, transactions, turn, "transaction")

    return body


def deleter(run: Run, decide: Decide, deletions: int) -> Callable[[Actor], None]:
    """Delete records, and sometimes add a partition."""

    def body(actor: Actor) -> None:
        def turn() -> None:
            topic = run.root(actor, decide).topic(TOPIC)
            state = topic.log.state()
            if state.partitions < 4 and actor.random.random() < 0.2:
                try:
                    topic.alter(partitions=state.partitions + 1)
                except BadRequest as error:
                    expect("can only increase" in str(error), str(error))
                run.count("partitions added")
                return
            if "delete" in run.configs["cleanup.policy"]:
                p = actor.random.randrange(state.partitions)
                start, end = int(state.log_start[p]), int(state.log_end[p])
                topic.delete_records({p: actor.random.randint(start, start + (end - start) // 2)})
                run.count("records deleted")

        lives(run, actor, deletions, turn, "deleter")

    return body


def recreator(run: Run, decide: Decide, turns: int) -> Callable[[Actor], None]:
    """Delete the topic and create another one with the same name."""

    def body(actor: Actor) -> None:
        def turn() -> None:
            root = run.root(actor, decide)
            if root.engine.log(TOPIC).refresh().topic_state.exists:
                root.delete_topic(TOPIC)
                run.count("topics deleted")
                nap(run, actor, DAY_MS)
            root.create_topic(TOPIC, partitions=run.partitions, configs=run.configs)
            run.count("topics created again")

        lives(run, actor, turns, turn, "recreator")

    return body


# -- reading


def reader(run: Run, decide: Decide, plans: int, *, holding: bool = False) -> Callable[[Actor], None]:
    """Plan a scan and read it later.

    Within the delay or under a lease, it returns exactly the planned records; after that, all of them that still exist.
    """

    def body(actor: Actor) -> None:
        def turn() -> None:
            root = run.root(actor, decide)
            topic = root.topic(TOPIC)
            if holding:
                maintain(topic, leases={actor.name: VersionLease(topic.log.state().version)})
            snapshot = topic.log.snapshot()
            same(run, snapshot)
            view = RootView(root)
            ranges = scan_ranges(view, TOPIC, None, "earliest", "latest", READ_COMMITTED)
            planned = Scan(tuple(view.plan(ranges, READ_COMMITTED)), COLUMNS)
            version = view.snapshot(TOPIC).version
            held = holding and _paths(run, version) <= _paths(run, run.records.leases[actor.name][0])
            nap(run, actor, 4 * DAY_MS)
            _read(run, actor, planned, version, held)
            if holding and actor.random.random() < 0.5:
                maintain(topic, leases={actor.name: None})

        lives(run, actor, plans, turn, "reader")

    return body


def _paths(run: Run, version: int) -> set[str]:
    return {piece.path for piece in run.model.topic(TOPIC).states[version].slices}


def _read(run: Run, actor: Actor, planned: Scan, version: int, held: bool) -> None:
    """Read an old plan of `version`."""
    log = run.model.log(TOPIC)
    wanted = log.versions[version].rows()
    began = run.model.superseded_ms(TOPIC, version)
    try:
        found = rows_of(planned)
    except NotFound as error:
        another = run.state.deleted or run.state.topic_id != run.model.topic(TOPIC).states[version].topic_id
        if another or (run.stale and "deleted before" not in str(error)):
            expect(not _young(run, began) or run.stale, f"a plan of version {version} within the delay: {error}")
            raise
        starts = run.records.log_start
        moved = any(starts[part.partition] > part.start for part in planned.ranges)
        expect(moved and "deleted before" in str(error), f"reading version {version}: {error}")
        # The commit that contained them may also have been lost before they were deleted.
        early = (held or _young(run, began)) and run.losses is None
        expect(not early, f"a plan of version {version} within the delay: {error}")
        run.count("reads overtaken by retention")
        return
    where = f"{actor.name} reads version {version}"
    # Records that were deleted since the plan are skipped if the commit that contained them is lost.
    if (held or _young(run, began)) and run.losses is None:
        expect_rows(found, wanted, where)
        run.count("held plans read" if held else "young plans read")
        return
    strange = [place for place, record in found.items() if wanted.get(place) != record]
    expect(not strange, f"{where}: not planned {strange[:8]}")
    if run.state.topic_id != run.model.topic(TOPIC).states[version].topic_id:
        return
    there = run.records.rows()
    lost = [place for place in wanted if place not in found and there.get(place) == wanted[place]]
    expect(not lost, f"{where}: lost {sorted(lost)[:8]}")
    run.count("old plans read")


def _young(run: Run, superseded_ms: int | None) -> bool:
    """Return True if the files that this version references must still exist."""
    delay = run.model.delay_ms(TOPIC)
    return superseded_ms is None or run.world.now_ms - superseded_ms < delay


# -- maintenance


@dataclass(frozen=True)
class Watched:
    """A work item that reports to the model which time each cleaning pass used."""

    work: Any
    run_: Run

    def __getattr__(self, name: str) -> Any:
        return getattr(self.work, name)

    def run(self, progress: Progress = silent) -> WorkResult:
        done: WorkResult = self.work.run(progress)
        model, now_ms = self.run_.model, self.work.settings.now_ms
        for file in done.files:
            model.passes[file.path] = now_ms
        for rewrite in done.rewrites:
            edit = rewrite.edit
            model.empty_passes[edit.partition, edit.start, edit.end, edit.first_dirty_offset] = now_ms
        return done


def plans(run: Run, env: Env) -> Plans:
    """The planners of a run, with the ids and clocks of the simulation."""

    def clean(snapshot: Snapshot, settings: Settings) -> Sequence[Work]:
        found = plan_cleaning(snapshot.store, snapshot, settings, slots=run.slots, env=env)
        return [Watched(work, run) for work in found]

    return Plans(
        seal=lambda snapshot, settings, roll: plan_sealing(snapshot.store, snapshot, settings, roll=roll, env=env),
        merge=lambda snapshot, settings: plan_merges(snapshot.store, snapshot, settings, env=env),
        clean=clean,
    )


class Shuffled:
    """Runs work items in random order; some runs commit each result immediately, others all results at the end."""

    def __init__(self, source: random.Random) -> None:
        self._random = source

    def run(self, works: Sequence[Work]) -> Iterator[tuple[Work, WorkResult | SparklogError]]:
        chosen = list(works)
        self._random.shuffle(chosen)
        results = InProcess().run(chosen)
        if self._random.random() < 0.5:
            yield from results
            return
        found = list(results)
        self._random.shuffle(found)
        yield from found


def compactor(run: Run, decide: Decide, rounds: int) -> Callable[[Actor], None]:
    """Run `jobs/compact.py` from cron, with or without rolling."""

    def shown(work: Work, result: WorkResult | SparklogError) -> None:
        if isinstance(result, (Conflict, NotFound)):
            run.count("races lost")

    def body(actor: Actor) -> None:
        def turn() -> None:
            topic = run.root(actor, decide).topic(TOPIC)
            report = compact_topic(
                topic,
                Settings(now_ms=run.world.shared.now_ms()),
                Shuffled(actor.random),
                CompactOptions(seal_only=actor.random.random() < 0.1, roll=actor.random.random() < 0.6),
                on_done=shown,
                plans=plans(run, actor.env),
            )
            for piece in report.work:
                run.count(f"pieces {piece.action}")
            for failure in report.failures:
                actor.note(f"compaction: {failure}")
                raced = failure.code in RACES
                expect(raced or not run.clean, f"nothing was injected, and yet: {failure}")
                run.count(f"compaction {failure.code}")
            run.check()

        lives(run, actor, rounds, turn, "compactor")

    return body


def retainer(run: Run, decide: Decide, rounds: int) -> Callable[[Actor], None]:
    """Run `jobs/retain.py` from cron."""

    def body(actor: Actor) -> None:
        def turn() -> None:
            handle = topic_of(run.root(actor, decide), TOPIC)
            retained(run, actor, handle)
            run.check()

        lives(run, actor, rounds, turn, "retainer")

    return body


def retained(run: Run, actor: Actor, handle: Topic) -> None:
    """Run retention and the vacuum once."""
    before = run.store.deletions
    report = retain_topic(handle, Settings(now_ms=run.world.shared.now_ms()))
    if run.store.deletions > before:
        run.count("vacuums that deleted")
    if report.expired:
        run.count("expired")
    for failure in report.failures:
        actor.note(f"retention: {failure}")
        raced = failure.code in RACES
        expect(raced or not run.clean, f"nothing was injected, and yet: {failure}")
        run.count(f"retention {failure.code}")
