"""Roots that are restored, or removed and made again, while processes live that know the one before.

Whatever is acknowledged after the last replacement is in the log, no log has a gap, and whoever opens the root then can
go on writing; whatever the processes of the root before were about to do at that moment.
"""

from __future__ import annotations

import json
import random
import re
import threading
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import crc32c
import pytest

from sparklog.errors import Fenced, SparklogError
from sparklog.groups.lag import Groups
from sparklog.log.decisions.decision import BY_OWNER
from sparklog.log.journal.documents import document_of, peek_commit_id
from sparklog.log.journal.entry_log import StateEntry
from sparklog.log.journal.names import commit_key, groups_prefix, read_root_id, transactions_prefix
from sparklog.log.journal.numbered_objects import CreateResult, NumberedObjects
from sparklog.log.topic.root import Root, open_root
from sparklog.storage.memory import MemoryStore, Snapshot
from sparklog.testing.faulty_store import Decide, FaultKind, Seeded
from tests.log.simulation.model import expect
from tests.log.simulation.seeds import of_bucket
from tests.log.simulation.simulated_world import Actor, SimulatedWorld
from tests.log.simulation.workload import upload
from tests.support.root_ids import replace_root_id
from tests.support.seeds import REPLACED_ROOTS

STEPS = 12
KINDS = (FaultKind.ERROR_BEFORE, FaultKind.ERROR_AFTER, FaultKind.TWICE, FaultKind.FALSE_EXISTS, FaultKind.ABSENT)
_NUMBERED = re.compile(r"(.+)/_log/([0-9]{20})\.json\Z")
PREFIXES = ("t", groups_prefix("g"), transactions_prefix("job"))

Write = Callable[[], tuple[str, int, str]]
"""One commit; its log, number and id."""


class ReplacedStore(MemoryStore):
    """Knows in which root, counted by replacements, each commit was created, and by whom."""

    def __init__(self, clock: Callable[[], int], name: str) -> None:
        super().__init__(clock, name)
        self.replaced = 0
        self.created: dict[str, tuple[int, str]] = {}

    def create(self, key: str, data: bytes) -> bool:
        made = super().create(key, data)
        if made and _NUMBERED.match(key):
            self.created[str(peek_commit_id(data))] = self.replaced, threading.current_thread().name
        return made


@dataclass
class Run:
    """One seed: the world, and what was acknowledged."""

    seed: int
    met: Counter[str] = field(default_factory=Counter)
    acked: list[tuple[str, int, str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.store = ReplacedStore(lambda: self.world.now_ms, f"seed-{self.seed}")
        self.world = SimulatedWorld(self.seed, store=self.store)

    def root(self, actor: Actor, decide: Decide) -> Root:
        return open_root(actor.store(decide), env=actor.env)


def appending(root: Root, actor: Actor) -> Write:
    topic = root.topic("t")

    def write() -> tuple[str, int, str]:
        target = topic.log.append_target()
        outcome = topic.log.commit_append(upload(topic.store, actor, target, 2), target)
        return "t", outcome.version, outcome.commit_id

    return write


def _stamp(prefix: str, entry: StateEntry) -> tuple[str, int, str]:
    return prefix, entry.number, entry.commit_id


def consuming(root: Root, actor: Actor) -> Write:
    group = Groups(root).group("g")
    member = group.join(actor.name)

    def write() -> tuple[str, int, str]:
        member.heartbeat()
        return _stamp(PREFIXES[1], group.log.current())

    return write


def deciding(root: Root, actor: Actor) -> Write:
    log = root.engine.decisions.log("job")
    return lambda: _stamp(PREFIXES[2], log.abort(log.current().newest + 1, BY_OWNER))


def writer(run: Run, begin: Callable[[Root, Actor], Write], decide: Decide) -> Callable[[Actor], None]:
    """Writes on, whatever it is told; opens the root again now and then, as another process would."""

    def body(actor: Actor) -> None:
        root: Root | None = None
        write: Write | None = None
        for _ in range(STEPS):
            try:
                if root is None or write is None:
                    root = run.root(actor, decide)
                    write = begin(root, actor)
                outlived = read_root_id(run.store) != root.id
                prefix, number, commit_id = write()
                if run.store.created.get(commit_id, (0, ""))[1] != actor.name:
                    continue  # somebody else had done it: nothing was written
                expect(not outlived, f"{actor.name} wrote into a root that it has not opened")
                run.acked.append((prefix, number, commit_id))
                run.met["acked"] += 1
            except SparklogError as error:
                actor.note(f"{error.code} {error}")
                refused = isinstance(error, Fenced)
                run.met["refused" if refused else "failed"] += 1
                run.met["taken back"] += refused and "was taken back" in str(error)
                if actor.random.random() < (0.3 if refused else 0.6):
                    root = None
            actor.sleep(actor.random.random() * 2)

    return body


def operator(run: Run) -> Callable[[Actor], None]:
    """Replaces the root a few times: by files of a while ago, the same under another id, or by a new one."""

    def body(actor: Actor) -> None:
        kept: list[Snapshot] = [run.store.snapshot()]
        for _ in range(actor.random.randint(1, 4)):
            for _ in range(actor.random.randint(1, 3)):
                actor.sleep(actor.random.random() * 5)
                if not logs(run.store.snapshot())[1]:
                    kept.append(run.store.snapshot())  # else it holds what somebody is about to take back
            actor.sleep(actor.random.random() * 3)
            how = actor.random.choice(["files", "files", "another id", "anew"])
            actor.note(f"replaces the root: {how}")
            run.met[how] += 1
            run.store.replaced += 1
            found = actor.random.choice(kept[-4:])
            run.store.restore({} if how == "anew" else found)
            if how != "files":
                if how != "anew":
                    replace_root_id(run.store, actor.env)
                root = open_root(run.store, create=True, env=actor.env)
                if how == "anew":
                    root.create_topic("t", partitions=3)
            kept = [dict(run.store.snapshot())]

    return body


def logs(objects: Snapshot) -> tuple[dict[str, list[int]], list[str]]:
    """Numbers in each log, and the keys of those that do not follow the one before."""
    numbers: dict[str, list[int]] = {}
    broken = []
    for key, (data, _) in sorted(objects.items()):
        match = _NUMBERED.match(key)
        if match:
            prefix, number = match[1], int(match[2])
            before = objects.get(commit_key(prefix, number - 1)) if number else None
            if json.loads(document_of(data))["prevCrc"] != (crc32c.crc32c(before[0]) if before else None) or (
                number and not before
            ):
                broken.append(key)
            numbers.setdefault(prefix, []).append(number)
    return numbers, broken


def judge(run: Run) -> None:
    """Nothing acknowledged in the last root is missing, nothing is where no log goes, and the root works."""
    lying, broken = logs(run.store.snapshot())
    expect(not broken, f"broken chains: {broken}")
    for prefix, number, commit_id in run.acked:
        if run.store.created[commit_id][0] == run.store.replaced:
            expect(number < len(lying.get(prefix, ())), f"acknowledged {prefix} {number} is gone")
            there = peek_commit_id(run.store.get(commit_key(prefix, number)))
            expect(there == commit_id, f"acknowledged {prefix} {number} is {there}, not {commit_id}")

    def fresh(actor: Actor) -> None:
        root = run.root(actor, lambda call: None)
        for begin in (appending, consuming, deciding):
            write = begin(root, actor)
            for _ in range(3):
                write()
        root.topic("t").log.snapshot()

    world = SimulatedWorld(run.seed, store=run.store)
    world.now_ms = run.world.now_ms
    world.spawn("fresh", fresh)
    world.run()


def run_seed(seed: int, *, bucket: bool = False) -> Run:
    run = Run(seed)
    if bucket:
        run.world.as_bucket()
    source = random.Random(f"replaced {seed}")
    env = run.world.spawn("operator", operator(run)).env
    open_root(run.store, create=True, env=env).create_topic("t", partitions=3)
    for number in range(source.randint(2, 5)):
        chances = random.Random(f"{seed}/{number}")
        decide = Seeded(chances, source.choice([0.0, 0.05]), of_bucket(KINDS) if bucket else KINDS, 2.0)
        begin = source.choice([appending, consuming, deciding])
        run.world.spawn(f"{begin.__name__}-{number}", writer(run, begin, decide), start_ms=source.randint(0, 1000))
    try:
        run.world.run()
        judge(run)
    except BaseException as error:
        story = "\n".join(run.world.trace[-40:])
        raise AssertionError(f"seed {seed}: {type(error).__name__}: {error}\n{story}") from error
    return run


def sweep(seeds: Iterable[int], *, bucket: bool = False) -> Counter[str]:
    met: Counter[str] = Counter()
    for seed in seeds:
        met.update(run_seed(seed, bucket=bucket).met)
    return met


@pytest.mark.parametrize("seeds", REPLACED_ROOTS.few())
def test_seeds(seeds: range) -> None:
    met = sweep(seeds)
    assert min(met[what] for what in ("acked", "refused", "taken back", "files", "another id", "anew")) > 0, dict(met)


def test_seeds_in_a_bucket() -> None:
    met = sweep(range(15), bucket=True)
    assert min(met[what] for what in ("acked", "refused", "taken back", "files")) > 0, dict(met)


@pytest.mark.slow
@pytest.mark.parametrize("bucket", [False, True])
@pytest.mark.parametrize("seeds", REPLACED_ROOTS.many())
def test_many_seeds(seeds: range, bucket: bool) -> None:
    assert sweep(seeds, bucket=bucket)["taken back"] > len(seeds) // 10


@pytest.mark.parametrize(("look", "unseen"), [("_check_root", None), ("_confirm", CreateResult.CREATED)])
def test_without_either_look_some_seed_fails(look: str, unseen: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(NumberedObjects, look, lambda *given, **named: unseen)
    with pytest.raises(AssertionError, match="seed"):
        sweep(range(max(10, REPLACED_ROOTS.every_run)))
