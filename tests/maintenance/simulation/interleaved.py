"""A simulation of concurrent transactions of several producers over the same topics during maintenance of these topics.

After each created object, readers of one, two and all topics read again. Each reader must see either all records of a
transaction in its topics or none, no records of aborted transactions, and all records that it has seen before. The
`Ledger` derives the expected records from the created commits and decisions; it shares no code with the readers.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any

import numpy as np

from sparklog.compaction.run import CompactOptions, compact_root
from sparklog.errors import SparklogError
from sparklog.log.read.read_plan import read_parts
from sparklog.log.state.slice_table import COMMITTED, PLAIN
from sparklog.log.state.view import READ_COMMITTED, OffsetRange
from sparklog.log.topic.root import RootView
from sparklog.maintenance.work_items import InProcess, Settings
from sparklog.retention.retain import retain_root
from sparklog.storage.memory import MemoryStore
from sparklog.testing.faulty_store import Decide
from sparklog.transactions.producer import TransactionalProducer, transactional
from tests.maintenance.simulation.workload import RACES, Shuffled
from tests.support.records import rows
from tests.support.simulation.faults import ANSWERS, CRASHES, ERRORS
from tests.support.simulation.runs import Body, SimulatedRun, restarted
from tests.support.simulation.scheduler import Actor, SimulatedWorld, expect
from tests.support.simulation.sweeps import Simulation
from tests.support.small_limits import small_limits

TOPICS = ("u", "v", "w")
CONFIGS = {"segment.bytes": "200", "retention.ms": "-1", "min.cleanable.dirty.ratio": "0.0"}
TIMEOUT_MS = 60_000
_COMMIT = re.compile(r"([uvw])/_log/([0-9]{20})\.json\Z")
_DECISION = re.compile(r"_transactions/[^/]+/_log/([0-9]{20})\.json\Z")
Transaction = tuple[str, int]
Place = tuple[str, int, int]
"""Topic, partition, offset."""


@dataclass
class Ledger:
    """The records at each offset and the outcome of each transaction."""

    prepared: dict[Transaction, list[tuple[str, int, set[Place]]]] = field(default_factory=dict)
    """The prepared topics, versions and offsets of each transaction."""
    plain: set[Place] = field(default_factory=set)
    decided: dict[Transaction, dict[str, set[int]] | None] = field(default_factory=dict)
    """The versions by topic in the COMMIT of a transaction; None is an ABORT."""
    newest: dict[str, int] = field(default_factory=dict)

    def created(self, key: str, data: bytes) -> bool:
        """Add an object; return False if it does not change the visible records."""
        commit, decision = _COMMIT.match(key), _DECISION.match(key)
        if commit is None and decision is None:
            return False
        document = json.loads(data.split(b"\n", 1)[0])
        if commit is not None:
            self._appended(commit[1], int(commit[2]), document)
        elif document["newest"] > self.newest.get(document["id"], -1):
            self.newest[document["id"]] = document["newest"]
            self._decided(document)
        return True

    def _appended(self, topic: str, version: int, document: dict[str, Any]) -> None:
        places = set()
        for file in () if document.get("edits") else document.get("files", ()):
            for p, base, count in zip(file["partition"], file["base"], file["offsets"], strict=True):
                places |= {(topic, p, offset) for offset in range(base, base + count)}
        if "txn" in document:
            transaction = document["txn"]["id"], document["txn"]["n"]
            self.prepared.setdefault(transaction, []).append((topic, version, places))
        else:
            self.plain |= places

    def _decided(self, document: dict[str, Any]) -> None:
        named: dict[str, set[int]] | None = None
        for item in document["commits"]:
            if item["n"] == document["newest"]:
                named = {}
                for prepare in item["prepares"]:
                    named.setdefault(prepare["topic"], set()).add(prepare["version"])
        self.decided[document["id"], document["newest"]] = named

    def committed(self) -> dict[Transaction, set[Place]]:
        """Return the offsets of each committed transaction."""
        return {
            each: {
                place for topic, version, places in self.prepared[each] for place in places if version in named[topic]
            }
            for each, named in self.decided.items()
            if named
        }


class ObservedStore(MemoryStore):
    """A store in memory whose readers read again after each object that changes the visible records."""

    def __init__(self, run: Run, name: str) -> None:
        super().__init__(lambda: run.world.now_ms, name)
        self._run = run

    def create(self, key: str, data: bytes) -> bool:
        created = super().create(key, data)
        if created and self._run.ledger.created(key, data):
            try:
                self._run.look()
            except BaseException as error:
                self._run.world.fail(error)
                raise
        return created


@dataclass
class Run(SimulatedRun):
    """Producers, jobs and readers of three topics."""

    inline: int | None = None
    partitions: int = 1
    clean: bool = True
    """No faults are injected, so only conflicts may fail."""
    ledger: Ledger = field(default_factory=Ledger)
    views: dict[tuple[str, ...], tuple[RootView, set[Place]]] = field(default_factory=dict)
    """Readers by their topics, with the offsets that each has seen."""

    PROFILES = ("calm", "calm", "names", "errors", "crashes", "stalls", "everything")

    def create_world(self) -> None:
        store = ObservedStore(self, f"seed-{self.seed}")
        self.world = SimulatedWorld(self.seed, store=store, max_steps=60_000)
        for name, policy in zip(TOPICS, ("delete", "delete", "compact"), strict=True):
            configs = {**CONFIGS, "cleanup.policy": policy}
            self.outsider().create_topic(name, partitions=self.partitions, configs=configs)
        for count in (1, 2, 3):
            for names in combinations(TOPICS, count):
                self.views[names] = RootView(self.outsider()), set()

    def look(self) -> None:
        """Check the records that each reader sees now."""
        committed = self.ledger.committed()
        others = {
            place
            for transaction, prepares in self.ledger.prepared.items()
            for _, _, places in prepares
            for place in places - committed.get(transaction, set())
        }
        for names, (view, before) in self.views.items():
            view.refresh(names)
            seen = visible(view, names)
            expect(before <= seen | others, f"readers of {names} saw {sorted(before - seen)[:5]}, and do so no longer")
            before |= seen
            for transaction, places in committed.items():
                here = {place for place in places if place[0] in names}
                shown = here & seen
                hidden = sorted(here - seen)
                expect(not shown or not hidden, f"readers of {names} see {transaction} but for {hidden[:5]}")
        self.count("looks")


def visible(view: RootView, names: Sequence[str]) -> set[Place]:
    """Return the offsets that a read_committed reader gets, including the gaps of rewritten slices."""
    seen = set()
    for name in names:
        rows = view.snapshot(name).slices.all()
        shown = np.flatnonzero(np.isin(rows.status, (PLAIN, COMMITTED))).tolist()
        ends = {partition: bounds.end(READ_COMMITTED) for partition, bounds in view.bounds(name).items()}
        for row in shown:
            partition = int(rows.partition[row])
            end = min(int(rows.end[row]), ends[partition])
            seen |= {(name, partition, offset) for offset in range(int(rows.base[row]), end)}
    return seen


# -- actors


def produce(run: Run, actor: Actor, producer: TransactionalProducer, keys: list[int]) -> None:
    """Write one transaction to some topics in random order, by one process or by one job per topic."""
    names = actor.random.sample(TOPICS, actor.random.choice([2, 2, 2, 3]))
    pause = actor.random.choice([0.1, 3.0, 25.0])
    owner = producer.begin()
    shared = actor.random.random() < 0.6
    for part, name in enumerate(names):
        keys[0] += 1
        key = f"{producer.id}:{keys[0]}"
        table = rows(key, partition=actor.random.randrange(run.partitions))
        table = table.append_column("key", table["value"])
        job = (
            transactional(producer.root, producer.id, timeout_ms=TIMEOUT_MS).join(owner.n, f"{part}")
            if shared
            else owner
        )
        job.append(name, table)
        if shared:
            job.prepare()
        actor.sleep(actor.random.random() * pause)
    if actor.random.random() < 0.2:
        owner.abort()
        run.count("aborted")
    else:
        owner.commit()
        run.count("shared" if shared else "committed")


def producer(run: Run, decide: Decide, rounds: int) -> Callable[[Actor], None]:
    keys = [0]

    def body(actor: Actor) -> None:
        def turn() -> None:
            root = run.root(actor, decide)
            produce(run, actor, transactional(root, actor.name, timeout_ms=TIMEOUT_MS), keys)

        lives(run, actor, rounds, turn, 3.0)

    return body


def appender(run: Run, decide: Decide, rounds: int) -> Callable[[Actor], None]:
    """Append without a transaction; each append records the outcomes of prepared transactions."""
    keys = [0]

    def body(actor: Actor) -> None:
        def turn() -> None:
            keys[0] += 1
            table = rows(f"{actor.name}:{keys[0]}", partition=actor.random.randrange(run.partitions))
            topic = run.root(actor, decide).topic(actor.random.choice(TOPICS))
            topic.append(table.append_column("key", table["value"]))

        lives(run, actor, rounds, turn, 10.0)

    return body


def compactor(run: Run, decide: Decide, rounds: int) -> Callable[[Actor], None]:
    """Seal, merge and clean one topic, some or all."""

    def body(actor: Actor) -> None:
        def turn() -> None:
            names = actor.random.sample(TOPICS, actor.random.choice([1, 1, 1, 3]))
            options = CompactOptions(names, seal_only=actor.random.random() < 0.2, roll=actor.random.random() < 0.8)
            settings = Settings(now_ms=run.world.store.now_ms())
            for report in compact_root(run.root(actor, decide), settings, Shuffled(actor.random), options):
                for piece in report.work:
                    run.count(f"pieces {piece.action}")
                for failure in report.failures:
                    expect(not run.clean or failure.code in RACES, f"nothing was injected, and yet: {failure}")

        lives(run, actor, rounds, turn, 5.0)

    return body


def retainer(run: Run, decide: Decide, rounds: int) -> Callable[[Actor], None]:
    """Record outcomes, abort overdue transactions and delete old decisions; no records expire."""

    def body(actor: Actor) -> None:
        def turn() -> None:
            retain_root(run.root(actor, decide), Settings(now_ms=run.world.store.now_ms()))

        lives(run, actor, rounds, turn, 20.0)

    return body


def lives(run: Run, actor: Actor, turns: int, turn: Callable[[], None], pause_s: float) -> None:
    """Run `turns` turns in processes that are restarted after a crash; count the injected faults."""
    left = iter(range(turns))

    def life() -> None:
        for _ in left:
            try:
                turn()
            except SparklogError as error:
                actor.note(f"{error.code} {error}")
                run.count(type(error).__name__)
            actor.sleep(actor.random.random() * pause_s)

    restarted(run, actor, life)


# -- final checks


def finish(run: Run) -> None:
    """End all transactions, rewrite all topics and check that the records are those of the committed transactions."""
    run.land_late_requests()
    run.world.now_ms += 10 * TIMEOUT_MS
    root = run.outsider()
    retain_root(root, Settings(now_ms=run.world.now_ms))
    reports = compact_root(root, Settings(now_ms=run.world.now_ms), InProcess(), CompactOptions(roll=True))
    expect(not any(report.failures for report in reports), f"undisturbed, and yet: {reports}")
    run.look()
    everything = run.ledger.plain.union(*run.ledger.committed().values())
    view = RootView(run.outsider())
    view.refresh(TOPICS)
    expect(records_of(view) == everything, "the records are not those that were committed")
    for name in TOPICS:
        expect(
            bool(view.snapshot(name).slices.all().sealed().all()), f"{name} has unsealed slices after all was rolled"
        )


def records_of(view: RootView) -> set[Place]:
    found = []
    for name in TOPICS:
        ranges = [OffsetRange(name, p, each.log_start, each.last_stable) for p, each in view.bounds(name).items()]
        for batch in read_parts(view.plan(ranges, READ_COMMITTED), ("partition", "offset", "value")):
            places = zip(batch["partition"].to_pylist(), batch["offset"].to_pylist(), strict=True)
            found += [(name, partition, offset) for partition, offset in places]
    expect(len(set(found)) == len(found), "a record is there twice")
    return set(found)


class InterleavedRun(Run):
    """A run whose actors and faults are drawn by the seed."""

    def __post_init__(self) -> None:
        self.partitions = 1 + self.seed % 2
        super().__post_init__()

    def play(self) -> None:
        with small_limits(checkpoint_commits=9, checkpoint_entries=5):
            super().play()

    def draw(self) -> None:
        source = self.source
        profile = self.draw_profile()
        faults = {"errors": ERRORS + ANSWERS[:2], "crashes": CRASHES, "everything": ERRORS + ANSWERS[:2] + CRASHES}
        kinds = faults.get(profile, ())
        self.clean = profile == "calm"
        if profile == "names":
            longest = source.choice([2_000, 20_000, 60_000])
            self.name_ms, self.folder_ms = source.choice([(longest, 0), (0, longest)])

        def spawn(name: str, make: Callable[[Run, Decide, int], Body], turns: int) -> None:
            stall_rate = 0.1 if profile in ("stalls", "everything") else 0.0
            decide = self.stalling_faults(name, [0.01, 0.04], kinds, stall_rate, 2 * TIMEOUT_MS)
            self.spawn(name, make(self, decide, turns), within_ms=3_000)

        for number in range(source.choice([2, 2, 3])):
            spawn(f"producer-{number}", producer, source.randint(2, 4))
        for number in range(source.randint(1, 2)):
            spawn(f"compactor-{number}", compactor, source.randint(4, 8))
        spawn("appender", appender, source.choice([0, 0, 2]))
        spawn("retainer", retainer, source.randint(0, 2))

    def check_result(self) -> None:
        finish(self)


INTERLEAVED = Simulation(InterleavedRun, "tests/maintenance/simulation/test_interleaved.py")
