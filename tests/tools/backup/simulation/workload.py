"""One simulated run per seed: writers, transactions, a consumer, maintenance and repeated backups.

The checks use the source itself: records never change, so a restored root must contain the records of the source up to
the same log ends, each transaction must be complete or missing, and records that were acknowledged before a backup
started must be present.
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
    """Writers, jobs and backups of one root, in the store of the world. `repository` is the store of the backups.

    Profiles: with `names` and `folders`, the machine that makes backups has caches, and no requests fail; `faults`
    injects faults.
    """

    acknowledged: list[tuple[int, bytes]] = field(default_factory=list)
    """The times when a writer was told that its value is in the log."""

    STREAM = "backup"

    def create_world(self) -> None:
        self.world = SimulatedWorld(self.seed, max_steps=200_000)
        self.repository = MemoryStore(lambda: self.world.now_ms, f"place-{self.seed}")
        self.shared_repository: Store = self.repository
        """The repository as processes access it, directly or as a bucket."""
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
            # A prune requires complete listings of the repository, which S3, Azure and Google provide.
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

    def check_result(self) -> None:
        for store in self.world.stores:
            store.land()
        check(self, self.source)


class Life:
    """One process with random faults that crashes at one of its requests."""

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
    """Also let every tenth create in a bucket report falsely that the object exists."""
    if not run.world.is_bucket:
        return life
    answers = Seeded(random.Random(f"{run.seed}/answers/{name}"), 0.1, (FaultKind.TWICE, FaultKind.FALSE_EXISTS))
    return lambda call: life(call) or answers(call)


def nap(actor: Actor, longest_ms: int) -> None:
    actor.sleep(actor.random.random() * longest_ms / 1000)


def writer(run: BackupRun, rate: float, turns: int) -> Callable[[Actor], None]:
    """Append a value to one topic at a time."""

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
    """Write to both topics and commit the offset of a group in one transaction; some are aborted or left open."""

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
    """Commit the log ends as group offsets."""

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
    """Return planners whose ids are drawn by the seed."""
    return Plans(
        seal=lambda snapshot, settings, roll: plan_sealing(snapshot.store, snapshot, settings, roll=roll, env=env),
        merge=lambda snapshot, settings: plan_merges(snapshot.store, snapshot, settings, env=env),
        clean=lambda snapshot, settings: plan_cleaning(snapshot.store, snapshot, settings, env=env),
    )


def keeper(run: BackupRun, turns: int) -> Callable[[Actor], None]:
    """Run compaction and retention of all topics, and sometimes clone a topic."""

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
    """Back up, crash during a backup, repeat it, and sometimes prune old backups."""

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
            # In a bucket, requests shortly afterwards meet delayed listings.
            nap(actor, 20_000 if run.world.is_bucket and actor.random.random() < 0.5 else 3 * HOUR_MS)

    return body


def pruner(run: BackupRun, turns: int) -> Callable[[Actor], None]:
    """Prune old backups from another machine, concurrently with backups."""

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
    """Follow some logs in another process on the backup machine, until shortly before the backup."""
    groups = Groups(root)
    for _ in range(actor.random.randint(1, 4)):
        for name in actor.random.sample(TOPICS, actor.random.randint(0, 2)):
            root.engine.log(name).refresh()
        if actor.random.random() < 0.5:
            groups.group(f"mover-{actor.random.randint(0, 1)}").log.refresh()
        nap(actor, 20_000)


BACKUPS = Simulation(BackupRun, "tests/tools/backup/simulation/test_simulation.py")


def check(run: BackupRun, source: random.Random) -> None:
    """Check that each backup, and states between backups, can be restored."""
    # The mark of a crashed run in the repository is valid for some hours.
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
            expect(any(text in str(error) for text in ("cannot be restored as of", "are known only from")), str(error))
            run.count("times lost")
            continue
        check_root(run, restored, held, time_ms)
        run.count("times restored")


def restored_root(run: BackupRun, wanted: RestorePoint) -> Root:
    target = MemoryStore(lambda: run.world.now_ms, f"restored-{run.seed}")
    restore(run.repository, target, wanted, at_once=1, env=run.outsider().env)
    return run.outsider(store=target)


def check_root(run: BackupRun, root: Root, held: dict[str, Rows], since_ms: int) -> None:
    """Check a restored root, regardless of concurrent actions."""
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
    # A backup may lack objects that the machine could not see yet.
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
