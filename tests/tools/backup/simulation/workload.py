"""One seed is one story: writers, movers of transactions, a consumer, maintenance, and a backup that comes again.

What must be true is asked of the source itself, not of the code under test: records never change, so what a restored
root holds must be what the source holds up to the same log ends, transactions aside, which are there whole or not at
all; whatever was acknowledged before a backup began is in it.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

from sparklog.compaction.clean_plan import plan_cleaning
from sparklog.compaction.merge_plan import plan_merges
from sparklog.compaction.run import CompactOptions, Plans
from sparklog.compaction.seal_plan import plan_sealing
from sparklog.errors import NotFound, SparklogError
from sparklog.groups.lag import Groups
from sparklog.log.journal.clocks import Env
from sparklog.log.topic.cloning import clone_topic
from sparklog.log.topic.root import Root, open_root
from sparklog.maintenance.work_items import InProcess, Settings
from sparklog.retention.retain import retain_root
from sparklog.storage.memory import MemoryStore
from sparklog.storage.store import Store
from sparklog.testing.bucket_store import BUCKET_FAULTS
from sparklog.testing.faulty_store import Call, Crash, Decide, Fault, FaultKind, FaultyStore, Seeded
from sparklog.testing.world import HOUR_MS
from sparklog.tools.backup.backing_up import back_up
from sparklog.tools.backup.repository import Repository, prune
from sparklog.tools.backup.restore_point import RestorePoint
from sparklog.tools.backup.restoring import restore
from sparklog.transactions.producer import transactional
from tests.support.compaction import compact_topic
from tests.support.simulation.faults import CACHES
from tests.support.simulation.runs import SimulatedRun
from tests.support.simulation.scheduler import Actor, ActorStore, SimulatedWorld, expect
from tests.support.simulation.sweeps import Simulation
from tests.tools.backup.backup_world import batch, end_what_is_open, rows_of

TOPICS = ("a", "b")
LONGEST_CACHE_MS = 60_000
ERRORS = (FaultKind.ERROR_BEFORE, FaultKind.ERROR_AFTER, FaultKind.TWICE, FaultKind.DELAY, FaultKind.DELAY_AFTER)
Rows = dict[tuple[int, int], tuple[bytes | None, bytes | None, int]]


@dataclass
class BackupRun(SimulatedRun):
    """Writers, jobs and backups of one root: the world has its store, `repository` is the store of the backups.

    Profiles: `names` and `folders` are caches of the machine that makes backups, and no requests fail; `faults`.
    """

    acknowledged: list[tuple[int, bytes]] = field(default_factory=list)
    """When a writer was told that its value is in the log."""

    STREAM = "backup"

    def create_world(self) -> None:
        self.world = SimulatedWorld(self.seed, max_steps=200_000)
        self.repository = MemoryStore(lambda: self.world.now_ms, f"place-{self.seed}")
        self.shared_repository: Store = self.repository
        """The repository as processes reach it: itself, or a bucket around it."""
        root = self.outsider()
        for name in TOPICS:
            root.create_topic(name, configs={"file.delete.delay.ms": str(HOUR_MS), "segment.bytes": "500"})

    def limits(self) -> dict[str, float]:
        return {"checkpoint_commits": 7}

    def draw(self) -> None:
        source = self.source
        if self.profile in CACHES:
            names = self.profile == "names"
            self.name_ms, self.folder_ms = (LONGEST_CACHE_MS, 0) if names else (0, LONGEST_CACHE_MS)
        if self.bucket:
            # A prune needs listings of the repository that are not late: S3, Azure and Google have them.
            self.shared_repository = self.world.bucket(self.repository, late_ms=0)
        rates = [0.0, 0.001, 0.003, 0.01] if self.bucket else [0.0, 0.0, 0.003, 0.01]
        rate = 0.0 if self.profile in CACHES else source.choice(rates)
        spawn = self.world.spawn
        for number in range(2):
            spawn(f"writer-{number}", writer(self, rate, source.randint(5, 15)))
            spawn(f"mover-{number}", mover(self, rate, source.randint(4, 10)))
        spawn("consumer", consumer(self, source.randint(2, 6)))
        spawn("keeper", keeper(self, source.randint(2, 5)))
        if self.bucket:
            spawn("pruner", pruner(self, source.randint(3, 9)))
        spawn("backup", keeper_of_backups(self, rate, source.randint(3, 6)))

    def judge(self) -> None:
        for store in self.world.stores:
            store.land()
        check(self, self.source)


class Life:
    """One process: faults by chance, and death at one of its requests, after which it makes none."""

    def __init__(self, run: BackupRun, name: str, rate: float, dies_at: int | None = None) -> None:
        kinds = (*BUCKET_FAULTS, *ERRORS[-2:]) if run.world.is_bucket else ERRORS
        self.chances = Seeded(random.Random(f"{run.seed}/{name}"), rate, kinds if rate else (), 600.0)
        self.dies_at = dies_at
        self.calls = 0

    def __call__(self, call: Call) -> Fault | None:
        self.calls += 1
        if self.dies_at is not None and self.calls > self.dies_at:
            return Fault(FaultKind.CRASH_BEFORE)
        return self.chances(call)


def false_answers(run: BackupRun, life: Life, name: str) -> Decide:
    """Also let every tenth create in a bucket say falsely that its object exists."""
    if not run.world.is_bucket:
        return life
    answers = Seeded(random.Random(f"{run.seed}/answers/{name}"), 0.1, (FaultKind.TWICE, FaultKind.FALSE_EXISTS))
    return lambda call: life(call) or answers(call)


def nap(actor: Actor, longest_ms: int) -> None:
    actor.sleep(actor.random.random() * longest_ms / 1000)


def writer(run: BackupRun, rate: float, turns: int) -> Callable[[Actor], None]:
    """Appends a value to one topic at a time."""

    def body(actor: Actor) -> None:
        store, root = actor.store(Life(run, actor.name, rate)), None
        for turn in range(turns):
            name, value = actor.random.choice(TOPICS), b"%s.%d" % (actor.name.encode(), turn)
            try:
                root = root or open_root(store, env=actor.env)
                root.topic(name).append(batch([value]))
                run.acknowledged.append((run.world.now_ms, value))
            except SparklogError as error:
                actor.note(str(error))
            nap(actor, actor.random.choice([1000, 20 * 60_000]))

    return body


def mover(run: BackupRun, rate: float, turns: int) -> Callable[[Actor], None]:
    """Writes a value to both topics, with the offset of a group, in one transaction; some it aborts or leaves."""

    def body(actor: Actor) -> None:
        store = actor.store(Life(run, actor.name, rate))
        name = actor.name.encode()
        for turn in range(turns):
            try:
                root = open_root(store, env=actor.env)
                writing = transactional(root, actor.name).begin()
                for topic in actor.random.sample(TOPICS, 2):
                    writing.append(topic, batch([b"%s.%d" % (name, turn)]))
                writing.send_offsets(actor.name, {"a": {0: turn}})
                fate = actor.random.random()
                if fate < 0.8:
                    writing.commit()
                    run.acknowledged.append((run.world.now_ms, b"%s.%d" % (name, turn)))
                    run.count("transactions")
                elif fate < 0.9:
                    writing.prepare()
                    writing.abort()
            except SparklogError as error:
                actor.note(str(error))
            nap(actor, actor.random.choice([1000, 20 * 60_000]))

    return body


def consumer(run: BackupRun, turns: int) -> Callable[[Actor], None]:
    """Commits the ends of the topics as what it has read."""

    def body(actor: Actor) -> None:
        root = open_root(actor.store(), env=actor.env)
        for _ in range(turns):
            try:
                ends = {name: {0: int(root.topic(name).log.state().log_end[0])} for name in TOPICS}
                Groups(root).group("readers").join(actor.name).commit(ends)
            except SparklogError as error:
                actor.note(str(error))
            nap(actor, 30 * 60_000)

    return body


def plans(env: Env) -> Plans:
    """The planners of a story: ids of what they write are the seed's, too."""
    return Plans(
        seal=lambda snapshot, settings, roll: plan_sealing(snapshot.store, snapshot, settings, roll=roll, env=env),
        merge=lambda snapshot, settings: plan_merges(snapshot.store, snapshot, settings, env=env),
        clean=lambda snapshot, settings: plan_cleaning(snapshot.store, snapshot, settings, env=env),
    )


def keeper(run: BackupRun, turns: int) -> Callable[[Actor], None]:
    """Compaction and retention of all topics, and a clone now and then."""

    def body(actor: Actor) -> None:
        for turn in range(turns):
            root = open_root(actor.store(), env=actor.env)
            settings, planners = Settings(now_ms=run.world.shared.now_ms()), plans(actor.env)
            for name in root.topics():
                compact_topic(
                    root.topic(name), settings, InProcess(), CompactOptions(roll=turn % 2 == 0), plans=planners
                )
            for report in retain_root(root, Settings(now_ms=run.world.shared.now_ms())):
                if report.vacuum is not None and report.vacuum.objects:
                    run.count("vacuums that deleted")
            if actor.random.random() < 0.3:
                try:
                    clone_topic(root, actor.random.choice(TOPICS), f"clone-{turn}")
                    run.count("clones")
                except SparklogError as error:
                    actor.note(str(error))
            nap(actor, 2 * HOUR_MS)

    return body


def keeper_of_backups(run: BackupRun, rate: float, turns: int) -> Callable[[Actor], None]:
    """Backs up, dies in the middle, tries again; sometimes drops what is old."""

    def body(actor: Actor) -> None:
        for turn in range(turns):
            dies_at = actor.random.randrange(5, 250) if actor.random.random() < 0.5 else None
            life = Life(run, f"{actor.name}/{turn}", rate, dies_at)
            store = run.client(actor.store(life), actor.name)
            inner = ActorStore(actor)
            inner.inner = run.shared_repository
            there = FaultyStore(inner, false_answers(run, life, f"{actor.name}/{turn}"), actor.sleep)
            try:
                root = open_root(store, env=actor.env)
                if run.machines:
                    look(root, actor)
                back_up(root, there, at_once=1)
                run.count("backups")
                if actor.random.random() < (0.6 if run.world.is_bucket else 0.2):
                    prune(there, keep=1 if run.world.is_bucket else 3, env=actor.env)
                    run.count("prunes")
            except Crash:
                run.count("deaths")
            except SparklogError as error:
                actor.note(f"backup: {error.code} {error}")
                run.count(f"backup {error.code}")
            # In a bucket what comes soon after meets listings that are late.
            nap(actor, 20_000 if run.world.is_bucket and actor.random.random() < 0.5 else 3 * HOUR_MS)

    return body


def pruner(run: BackupRun, turns: int) -> Callable[[Actor], None]:
    """Drops old backups from another machine, whatever the other does at that moment."""

    def body(actor: Actor) -> None:
        inner = ActorStore(actor)
        inner.inner = run.shared_repository
        there = FaultyStore(inner, false_answers(run, Life(run, actor.name, 0.0), actor.name), actor.sleep)
        for _ in range(turns):
            nap(actor, actor.random.choice([20_000, HOUR_MS]))
            try:
                prune(there, keep=1, env=actor.env)
                run.count("prunes")
            except SparklogError as error:
                actor.note(f"prune: {error.code} {error}")
                run.count(f"prune {error.code}")

    return body


def look(root: Root, actor: Actor) -> None:
    """Somebody else on the machine that makes backups follows some logs, until a moment before the backup."""
    groups = Groups(root)
    for _ in range(actor.random.randint(1, 4)):
        for name in actor.random.sample(TOPICS, actor.random.randint(0, 2)):
            root.engine.log(name).refresh()
        if actor.random.random() < 0.5:
            groups.group(f"mover-{actor.random.randint(0, 1)}").log.refresh()
        nap(actor, 20_000)


BACKUPS = Simulation(BackupRun, "tests/tools/backup/simulation/test_simulation.py")


def check(run: BackupRun, source: random.Random) -> None:
    """Every backup can be restored, and so can what lies between."""
    # What a dead run left in the place counts for some hours.
    run.world.now_ms += 7 * HOUR_MS
    root = run.outsider()
    end_what_is_open(root)
    last = back_up(root, run.repository, at_once=1)
    held = {name: rows_of(root.topic(name)) for name in root.topics()}
    manifests = Repository.open(run.repository).manifests()
    for manifest in manifests:
        restored = restored_root(run, RestorePoint(number=manifest.number))
        found = {name: rows_of(restored.topic(name)) for name in restored.topics()}
        check_root(run, restored, held, manifest.started_ms)
        if manifest.number == last.number:
            expect(found == held, f"backup {manifest.number} holds something else than the source")
    for _ in range(3):
        time_ms = source.randint(manifests[0].started_ms, manifests[-1].started_ms)
        try:
            restored = restored_root(run, RestorePoint(time_ms=time_ms))
        except NotFound as error:
            expect(any(text in str(error) for text in ("cannot be restored as of", "are known from")), str(error))
            run.count("times lost")
            continue
        check_root(run, restored, held, time_ms)
        run.count("times restored")


def restored_root(run: BackupRun, wanted: RestorePoint) -> Root:
    target = MemoryStore(lambda: run.world.now_ms, f"restored-{run.seed}")
    restore(run.repository, target, wanted, at_once=1, env=run.outsider().env)
    return run.outsider(store=target)


def check_root(run: BackupRun, root: Root, held: dict[str, Rows], since_ms: int) -> None:
    """What a restored root must be whatever came between."""
    where = f"restored as of {since_ms}"
    end_what_is_open(root)
    found = {name: rows_of(root.topic(name)) for name in root.topics()}
    moved: dict[str, set[bytes]] = {}
    for name in TOPICS:
        rows = found[name]
        end = int(root.topic(name).log.state().log_end[0])
        expect(all(held[name].get(place) == row for place, row in rows.items()), f"{where}: {name} has other records")
        plain = {place for place, row in held[name].items() if (row[1] or b"").startswith(b"writer") and place[1] < end}
        expect(plain <= rows.keys(), f"{where}: {name} lost {sorted(plain - rows.keys())[:5]}")
        moved[name] = {value for _, value, _ in rows.values() if value is not None and value.startswith(b"mover")}
    expect(moved["a"] == moved["b"], f"{where}: torn {sorted(moved['a'] ^ moved['b'])[:5]}")
    there = {row[1] for name in TOPICS for row in found[name].values()}
    # A backup may lack what the machine that made it did not see yet.
    seen_ms = since_ms - max(run.name_ms, run.folder_ms)
    lost = [value for time_ms, value in run.acknowledged if time_ms < seen_ms and value not in there]
    expect(not lost, f"{where}: lost {lost[:5]}, acknowledged before")
    for number in range(2):
        own = f"mover-{number}"
        newest = max(
            (int(value.split(b".")[1]) for value in moved["a"] if value.startswith(own.encode())), default=None
        )
        committed = Groups(root).group(own).committed()
        offset = committed["a", 0].offset if committed else None
        expect(offset == newest, f"{where}: group {own} is at {offset}, its transactions at {newest}")
    for item in Groups(root).group("readers").committed().values():
        expect(
            item.offset <= int(root.topic(item.topic).log.state().log_end[0]),
            f"{where}: readers are beyond {item.topic}",
        )
    root.topic("a").append(batch([b"goes on"]))
