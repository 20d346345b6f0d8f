"""One seed is one story: writers, movers of transactions, a consumer, maintenance, and a backup that comes again.

What must be true is asked of the source itself, not of the code under test: records never change, so what a restored
root holds must be what the source holds up to the same log ends, transactions aside, which are there whole or not at
all; whatever was acknowledged before a backup began is in it.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from unittest import mock

from sparklog.compaction.clean_plan import plan_cleaning
from sparklog.compaction.merge_plan import plan_merges
from sparklog.compaction.run import CompactOptions, Plans
from sparklog.compaction.seal_plan import plan_sealing
from sparklog.errors import NotFound, SparklogError
from sparklog.groups.lag import Groups
from sparklog.log.journal.clocks import Env
from sparklog.log.state.configs import TopicConfigs
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
from sparklog.tools.backup.restore_point import Wanted
from sparklog.tools.backup.restoring import restore
from sparklog.transactions.producer import transactional
from tests.log.simulation.model import expect
from tests.log.simulation.simulated_world import Actor, SimulatedWorld, _BatonStore
from tests.support.compaction import compact_topic
from tests.support.name_caching_store import NameCachingStore
from tests.support.small_limits import small_limits
from tests.tools.backup.backup_world import batch, end_what_is_open, rows_of

TOPICS = ("a", "b")
LONGEST_CACHE_MS = 60_000
ERRORS = (FaultKind.ERROR_BEFORE, FaultKind.ERROR_AFTER, FaultKind.TWICE, FaultKind.DELAY, FaultKind.DELAY_AFTER)
Rows = dict[tuple[int, int], tuple[bytes | None, bytes | None, int]]


@dataclass
class Story:
    """A run: the world with the source's store, the place of backups, and who was told what."""

    seed: int
    world: SimulatedWorld = field(init=False)
    place: MemoryStore = field(init=False)
    shared_place: Store = field(init=False)
    """The place as processes reach it: itself, or a bucket around it."""
    acknowledged: list[tuple[int, bytes]] = field(default_factory=list)
    """When a writer was told that its value is in the log."""
    counters: dict[str, int] = field(default_factory=dict)
    name_ms: int = 0
    folder_ms: int = 0
    """How long the machine that makes backups remembers names (`NameCachingStore`); 0: not at all."""
    machine: NameCachingStore | None = None

    def __post_init__(self) -> None:
        self.world = SimulatedWorld(self.seed, max_steps=200_000)
        self.place = MemoryStore(lambda: self.world.now_ms, f"place-{self.seed}")
        self.shared_place = self.place
        root = self.outsider()
        for name in TOPICS:
            root.create_topic(name, configs={"file.delete.delay.ms": str(HOUR_MS), "segment.bytes": "500"})

    def count(self, what: str) -> None:
        self.counters[what] = self.counters.get(what, 0) + 1

    def client(self, store: Store) -> Store:
        """A connection of the machine that makes backups."""
        if not self.name_ms and not self.folder_ms:
            return store
        if self.machine is None:
            now = lambda: self.world.now_ms  # noqa: E731
            self.machine = NameCachingStore(store, now, name_ms=self.name_ms, folder_ms=self.folder_ms)
        return self.machine.through(store)

    def outsider(self, store: MemoryStore | None = None) -> Root:
        """Somebody whose requests let nobody go first."""
        world = self.world
        env = Env(
            wall_ms=lambda: world.now_ms,
            boot_ms=lambda: world.now_ms,
            sleep=lambda seconds: None,
            random=random.Random(f"{self.seed}/{len(self.counters)}"),
        )
        return open_root(world.store if store is None else store, create=True, env=env)


class Life:
    """One process: faults by chance, and death at one of its requests, after which it makes none."""

    def __init__(self, story: Story, name: str, rate: float, dies_at: int | None = None) -> None:
        kinds = (*BUCKET_FAULTS, *ERRORS[-2:]) if story.world.is_bucket else ERRORS
        self.chances = Seeded(random.Random(f"{story.seed}/{name}"), rate, kinds if rate else (), 600.0)
        self.dies_at = dies_at
        self.calls = 0

    def __call__(self, call: Call) -> Fault | None:
        self.calls += 1
        if self.dies_at is not None and self.calls > self.dies_at:
            return Fault(FaultKind.CRASH_BEFORE)
        return self.chances(call)


def false_answers(story: Story, life: Life, name: str) -> Decide:
    """Also let every tenth create in a bucket say falsely that its object exists."""
    if not story.world.is_bucket:
        return life
    answers = Seeded(random.Random(f"{story.seed}/answers/{name}"), 0.1, (FaultKind.TWICE, FaultKind.FALSE_EXISTS))
    return lambda call: life(call) or answers(call)


def nap(actor: Actor, longest_ms: int) -> None:
    actor.sleep(actor.random.random() * longest_ms / 1000)


def writer(story: Story, rate: float, turns: int) -> Callable[[Actor], None]:
    """Appends a value to one topic at a time."""

    def body(actor: Actor) -> None:
        store, root = actor.store(Life(story, actor.name, rate)), None
        for turn in range(turns):
            name, value = actor.random.choice(TOPICS), b"%s.%d" % (actor.name.encode(), turn)
            try:
                root = root or open_root(store, env=actor.env)
                root.topic(name).append(batch([value]))
                story.acknowledged.append((story.world.now_ms, value))
            except SparklogError as error:
                actor.note(str(error))
            nap(actor, actor.random.choice([1000, 20 * 60_000]))

    return body


def mover(story: Story, rate: float, turns: int) -> Callable[[Actor], None]:
    """Writes a value to both topics, with the offset of a group, in one transaction; some it aborts or leaves."""

    def body(actor: Actor) -> None:
        store = actor.store(Life(story, actor.name, rate))
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
                    story.acknowledged.append((story.world.now_ms, b"%s.%d" % (name, turn)))
                    story.count("transactions")
                elif fate < 0.9:
                    writing.prepare()
                    writing.abort()
            except SparklogError as error:
                actor.note(str(error))
            nap(actor, actor.random.choice([1000, 20 * 60_000]))

    return body


def consumer(story: Story, turns: int) -> Callable[[Actor], None]:
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


def keeper(story: Story, turns: int) -> Callable[[Actor], None]:
    """Compaction and retention of all topics, and a clone now and then."""

    def body(actor: Actor) -> None:
        for turn in range(turns):
            root = open_root(actor.store(), env=actor.env)
            settings, planners = Settings(now_ms=story.world.shared.now_ms()), plans(actor.env)
            for name in root.topics():
                compact_topic(
                    root.topic(name), settings, InProcess(), CompactOptions(roll=turn % 2 == 0), plans=planners
                )
            for report in retain_root(root, Settings(now_ms=story.world.shared.now_ms())):
                if report.vacuum is not None and report.vacuum.objects:
                    story.count("vacuums that deleted")
            if actor.random.random() < 0.3:
                try:
                    clone_topic(root, actor.random.choice(TOPICS), f"clone-{turn}")
                    story.count("clones")
                except SparklogError as error:
                    actor.note(str(error))
            nap(actor, 2 * HOUR_MS)

    return body


def keeper_of_backups(story: Story, rate: float, turns: int) -> Callable[[Actor], None]:
    """Backs up, dies in the middle, tries again; sometimes drops what is old."""

    def body(actor: Actor) -> None:
        for turn in range(turns):
            dies_at = actor.random.randrange(5, 250) if actor.random.random() < 0.5 else None
            life = Life(story, f"{actor.name}/{turn}", rate, dies_at)
            store = story.client(actor.store(life))
            inner = _BatonStore(actor)
            inner.inner = story.shared_place
            there = FaultyStore(inner, false_answers(story, life, f"{actor.name}/{turn}"), actor.sleep)
            try:
                root = open_root(store, env=actor.env)
                if story.machine is not None:
                    look(root, actor)
                back_up(root, there, at_once=1)
                story.count("backups")
                if actor.random.random() < (0.6 if story.world.is_bucket else 0.2):
                    prune(there, keep=1 if story.world.is_bucket else 3, env=actor.env)
                    story.count("prunes")
            except Crash:
                story.count("deaths")
            except SparklogError as error:
                actor.note(f"backup: {error.code} {error}")
                story.count(f"backup {error.code}")
            # In a bucket what comes soon after meets listings that are late.
            nap(actor, 20_000 if story.world.is_bucket and actor.random.random() < 0.5 else 3 * HOUR_MS)

    return body


def pruner(story: Story, turns: int) -> Callable[[Actor], None]:
    """Drops old backups from another machine, whatever the other does at that moment."""

    def body(actor: Actor) -> None:
        inner = _BatonStore(actor)
        inner.inner = story.shared_place
        there = FaultyStore(inner, false_answers(story, Life(story, actor.name, 0.0), actor.name), actor.sleep)
        for _ in range(turns):
            nap(actor, actor.random.choice([20_000, HOUR_MS]))
            try:
                prune(there, keep=1, env=actor.env)
                story.count("prunes")
            except SparklogError as error:
                actor.note(f"prune: {error.code} {error}")
                story.count(f"prune {error.code}")

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


def run(seed: int, caches: str | None = None, *, bucket: bool = False, inline: int = 0) -> Story:
    """One seed, from the first request to the verdict. Raises what broke.

    `caches`: the machine that makes backups remembers names, one by one ("names") or by folder ("folders"), and no
    requests fail. `inline`: records of so many bytes are in commits.
    """
    source = random.Random(f"backup {seed}")
    small = mock.patch.object(TopicConfigs, "inline_records_bytes", inline)
    with small, small_limits(checkpoint_commits=7):
        story = Story(seed)
        if caches is not None:
            story.name_ms, story.folder_ms = (LONGEST_CACHE_MS, 0) if caches == "names" else (0, LONGEST_CACHE_MS)
        if bucket:
            story.world.as_bucket()
            # A prune needs listings of the place that are not late: S3, Azure and Google have them.
            story.shared_place = story.world.bucket(story.place, late_ms=0)
        rate = (
            source.choice([0.0, 0.001, 0.003, 0.01] if bucket else [0.0, 0.0, 0.003, 0.01]) if caches is None else 0.0
        )
        for number in range(2):
            story.world.spawn(f"writer-{number}", writer(story, rate, source.randint(5, 15)))
            story.world.spawn(f"mover-{number}", mover(story, rate, source.randint(4, 10)))
        story.world.spawn("consumer", consumer(story, source.randint(2, 6)))
        story.world.spawn("keeper", keeper(story, source.randint(2, 5)))
        if bucket:
            story.world.spawn("pruner", pruner(story, source.randint(3, 9)))
        story.world.spawn("backup", keeper_of_backups(story, rate, source.randint(3, 6)))
        story.world.run()
        for store in story.world.stores:
            store.land()
        check(story, source)
    return story


def check(story: Story, source: random.Random) -> None:
    """Every backup can be restored, and so can what lies between."""
    # What a dead run left in the place counts for some hours.
    story.world.now_ms += 7 * HOUR_MS
    root = story.outsider()
    end_what_is_open(root)
    last = back_up(root, story.place, at_once=1)
    held = {name: rows_of(root.topic(name)) for name in root.topics()}
    manifests = Repository.open(story.place).manifests()
    for manifest in manifests:
        restored = restored_root(story, Wanted(number=manifest.number))
        found = {name: rows_of(restored.topic(name)) for name in restored.topics()}
        check_root(story, restored, held, manifest.started_ms)
        if manifest.number == last.number:
            expect(found == held, f"backup {manifest.number} holds something else than the source")
    for _ in range(3):
        time_ms = source.randint(manifests[0].started_ms, manifests[-1].started_ms)
        try:
            restored = restored_root(story, Wanted(time_ms=time_ms))
        except NotFound as error:
            expect("can be restored as of" in str(error), str(error))
            story.count("times lost")
            continue
        check_root(story, restored, held, time_ms)
        story.count("times restored")


def restored_root(story: Story, wanted: Wanted) -> Root:
    target = MemoryStore(lambda: story.world.now_ms, f"restored-{story.seed}")
    restore(story.place, target, wanted, at_once=1, env=story.outsider().env)
    return story.outsider(target)


def check_root(story: Story, root: Root, held: dict[str, Rows], since_ms: int) -> None:
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
    seen_ms = since_ms - max(story.name_ms, story.folder_ms)
    lost = [value for time_ms, value in story.acknowledged if time_ms < seen_ms and value not in there]
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
