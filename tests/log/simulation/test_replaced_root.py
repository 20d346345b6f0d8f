"""Roots that are restored, or removed and made again, while processes live that know the one before.

Whatever is acknowledged after the last replacement is in the log, no log has a gap, and whoever opens the root then can
go on writing; whatever the processes of the root before were about to do at that moment.
"""

from __future__ import annotations

import json
import random
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import crc32c

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
from tests.log.simulation.workload import upload
from tests.support.root_ids import replace_root_id
from tests.support.seeds import REPLACED_ROOTS
from tests.support.simulation.runs import SimulatedRun
from tests.support.simulation.scheduler import Actor, SimulatedWorld, expect
from tests.support.simulation.sweeps import BrokenRule, Patch, Simulation, Sweep, broken_rules, sweeps

STEPS = 12
KINDS = (FaultKind.ERROR_BEFORE, FaultKind.ERROR_AFTER, FaultKind.TWICE, FaultKind.FALSE_EXISTS, FaultKind.ABSENT)
_NUMBERED = re.compile(r"(.+)/_log/([0-9]{20})\.json\Z")
_CHECKPOINT = re.compile(r"(.+)/_log/checkpoints/([0-9]{20})\.json\Z")
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
class ReplacedRun(SimulatedRun):
    """Writers of a topic, a group and decisions, while an operator replaces the root."""

    acked: list[tuple[str, int, str]] = field(default_factory=list)

    STREAM = "replaced"

    def create_world(self) -> None:
        self.store = ReplacedStore(lambda: self.world.now_ms, f"seed-{self.seed}")
        self.world = SimulatedWorld(self.seed, store=self.store)

    def draw(self) -> None:
        source = self.source
        env = self.world.spawn("operator", operator(self)).env
        open_root(self.store, create=True, env=env).create_topic("t", partitions=3)
        for number in range(source.randint(2, 5)):
            chances = random.Random(f"{self.seed}/{number}")
            decide = Seeded(chances, source.choice([0.0, 0.05]), self.possible(KINDS), 2.0)
            begin = source.choice([appending, consuming, deciding])
            self.spawn(f"{begin.__name__}-{number}", writer(self, begin, decide), within_ms=1000)

    def check_result(self) -> None:
        """Nothing acknowledged in the last root is missing, nothing is outside the logs, and the root works."""
        numbers, broken = logs(self.store.snapshot())
        expect(not broken, f"broken chains: {broken}")
        for prefix, number, commit_id in self.acked:
            if self.store.created[commit_id][0] == self.store.replaced:
                expect(number < len(numbers.get(prefix, ())), f"acknowledged {prefix} {number} is gone")
                found = peek_commit_id(self.store.get(commit_key(prefix, number)))
                expect(found == commit_id, f"acknowledged {prefix} {number} is {found}, not {commit_id}")

        def fresh(actor: Actor) -> None:
            root = self.root(actor)
            for begin in (appending, consuming, deciding):
                write = begin(root, actor)
                for _ in range(3):
                    write()
            root.topic("t").log.snapshot()

        world = SimulatedWorld(self.seed, store=self.store)
        world.now_ms = self.world.now_ms
        world.spawn("fresh", fresh)
        world.run()


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


def writer(run: ReplacedRun, begin: Callable[[Root, Actor], Write], decide: Decide) -> Callable[[Actor], None]:
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
                run.count("acked")
            except SparklogError as error:
                actor.note(f"{error.code} {error}")
                refused = isinstance(error, Fenced)
                run.count("refused" if refused else "failed")
                run.count("withdrawn", refused and "was withdrawn" in str(error))
                if actor.random.random() < (0.3 if refused else 0.6):
                    root = None
            actor.sleep(actor.random.random() * 2)

    return body


def operator(run: ReplacedRun) -> Callable[[Actor], None]:
    """Replaces the root a few times: by files of a while ago, the same under another id, or by a new one."""

    def body(actor: Actor) -> None:
        kept: list[Snapshot] = [run.store.snapshot()]
        for _ in range(actor.random.randint(1, 4)):
            for _ in range(actor.random.randint(1, 3)):
                actor.sleep(actor.random.random() * 5)
                # A copy with an entry or a checkpoint that a process is about to take back would never lose it.
                numbers, broken = logs(copy := run.store.snapshot())
                if not broken and not _early_checkpoints(copy, numbers):
                    kept.append(copy)
            actor.sleep(actor.random.random() * 3)
            how = actor.random.choice(["files", "files", "another id", "anew"])
            actor.note(f"replaces the root: {how}")
            run.count(how)
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


def _early_checkpoints(objects: Snapshot, numbers: Mapping[str, Sequence[int]]) -> list[str]:
    """Return the checkpoints of entries that do not exist: a process that outlived its root has just created them."""
    found = (match for match in map(_CHECKPOINT.match, objects) if match)
    return [match[0] for match in found if int(match[2]) not in numbers.get(match[1], ())]


REPLACED = Simulation(ReplacedRun, "tests/log/simulation/test_replaced_root.py")
IN_ANY_STORE = ("acked", "refused", "withdrawn", "files")
ON_DISK = Sweep("disk", REPLACED_ROOTS, at_least=dict.fromkeys((*IN_ANY_STORE, "another id", "anew"), 1))


@sweeps(
    ON_DISK,
    Sweep("bucket", REPLACED_ROOTS, settings=lambda seed: {"bucket": True}, at_least=dict.fromkeys(IN_ANY_STORE, 1)),
)
def test_no_acknowledged_write_is_lost_when_a_root_is_replaced(sweep: Sweep, seeds: range) -> None:
    assert REPLACED.sweep(sweep, seeds)


def test_one_seed() -> None:
    assert REPLACED.run_one() > 0


def root_is_not_checked(patch: Patch) -> None:
    """A writer does not check that its root is still there."""
    patch.setattr(NumberedObjects, "_check_root", lambda *given, **named: None)


def creates_are_not_confirmed(patch: Patch) -> None:
    """A writer does not check what precedes the object that it created."""
    patch.setattr(NumberedObjects, "_confirm", lambda *given, **named: CreateResult.CREATED)


@broken_rules(BrokenRule(root_is_not_checked, None, range(15)), BrokenRule(creates_are_not_confirmed, None, range(15)))
def test_some_seed_fails_without_the_rule(rule: BrokenRule, monkeypatch: Patch) -> None:
    REPLACED.assert_fails(rule, monkeypatch)
