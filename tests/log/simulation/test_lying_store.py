"""A store that keeps its promise while it is probed, and breaks it later: no acknowledged commit is lost in silence.

From some moment on it tells all who create a number that they have. The object stays as it was, or the last one wins.
Who goes on after a commit that is lost is stopped at once, and says so; what is lost otherwise `verify` names. The last
commit of a process that does not come back is known to nobody, and may be lost.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from typing import Any
from unittest import mock

from sparklog.errors import BadRequest, Corrupt, Fenced, NotFound, SparklogError
from sparklog.log.journal import probe_results
from sparklog.log.journal.documents import peek_commit_id
from sparklog.log.journal.names import commit_key
from sparklog.log.journal.numbered_objects import NumberedObjects
from sparklog.log.topic.root import Root, open_root
from sparklog.storage.probe import Clock, ProbeReport
from sparklog.storage.store import Store
from sparklog.testing.world import START_MS
from sparklog.testing.wrapper_stores import WrapperStore
from sparklog.tools.verification.findings import CHAIN, CHECKPOINT, GUARANTEE
from sparklog.tools.verification.run import verify_root
from tests.log.simulation.test_replaced_root import Write, appending, consuming, deciding
from tests.support.seeds import LYING_STORES
from tests.support.simulation import scheduler
from tests.support.simulation.runs import SimulatedRun
from tests.support.simulation.scheduler import Actor, SimulatedWorld, expect
from tests.support.simulation.sweeps import BrokenRule, Patch, Simulation, Sweep, broken_rules, sweeps

STEPS = 12
PROBES = 12
LIES = "does not create objects exclusively"


class LyingStore(WrapperStore):
    """Knows who was told that they had created a commit, and since when it is lost."""

    needs_probe = True

    def __init__(self, inner: Store, clock: Callable[[], int], seed: int, last_ms: int) -> None:
        super().__init__(inner)
        self.clock = clock
        self.source = random.Random(f"lies {seed}")
        self.lies_from_ms = START_MS + self.source.randint(0, last_ms)
        # Without round trips a writer creates before it looks: a run of commits could be overwritten unseen. There the
        # system decides, which puts nothing in the place of a file by link().
        self.last_wins = inner.parallel_reads > 1 and self.source.random() < 0.5
        self.chance = self.source.choice([1.0, 0.6])
        self.told: dict[str, str] = {}
        self.lost: dict[str, int] = {}

    def create(self, key: str, data: bytes) -> bool:
        created = self.inner.create(key, data)
        if not created and self.clock() >= self.lies_from_ms and self.source.random() < self.chance:
            created = self._lie(key, data)
        if created:
            self.told[str(peek_commit_id(data))] = threading.current_thread().name
        return created

    def _lie(self, key: str, data: bytes) -> bool:
        try:
            before = self.inner.get(key)
        except NotFound:
            return False
        if self.last_wins:
            self.inner.delete(key)
            self.inner.create(key, data)
        self.lost[str(peek_commit_id(before if self.last_wins else data))] = self.clock()
        return True


class PerActor(dict[Any, Any]):
    """What a process remembers: each actor is one."""

    def get(self, key: Any, default: Any = None) -> Any:
        return super().get((threading.current_thread().name, key), default)

    def __setitem__(self, key: Any, value: Any) -> None:
        super().__setitem__((threading.current_thread().name, key), value)

    def pop(self, key: Any, default: Any = None) -> Any:
        return super().pop((threading.current_thread().name, key), default)


def probe_in_turn(store: Store, wall_ms: Clock) -> ProbeReport:
    """Probe without threads, which would not be actors."""
    keys = [f"_probe/{threading.current_thread().name}/{number}" for number in range(PROBES)]
    answers = [[store.create(key, b"first"), store.create(key, b"second")] for key in keys]
    for key in keys:
        store.delete(key)
    if any(answer != [True, False] for answer in answers):
        raise BadRequest(f"{store.location} cannot hold a sparklog root: both creators succeeded; expected 1")
    return ProbeReport(store.location, PROBES, 0, store.now_ms(), 0.0)


@contextmanager
def probing() -> Iterator[None]:
    """Actors probe their store, and none waits for another one's lock."""
    patches: dict[str, object] = {
        "_probed": PerActor(), "_reverified": PerActor(), "_lock": nullcontext(), "probe": probe_in_turn
    }  # fmt: skip
    with (
        mock.patch.multiple(probe_results, **patches),
        mock.patch.object(scheduler.ActorStore, "needs_probe", True),
    ):
        yield


@dataclass
class Ack:
    """A commit as its writer knows it: it `began_ms` before it was acknowledged."""

    prefix: str
    number: int
    commit_id: str
    began_ms: int


@dataclass
class Process:
    """One life of a writer: what was acknowledged to it, and the error that it ended with."""

    acked: list[Ack] = field(default_factory=list)
    error: SparklogError | None = None

    @property
    def names_the_store(self) -> bool:
        return isinstance(self.error, Fenced) and LIES in str(self.error)


@dataclass
class LyingRun(SimulatedRun):
    """Writers over a store that starts to lie."""

    lives: list[Process] = field(default_factory=list)

    STREAM = "lying"

    def create_world(self) -> None:
        # In a bucket writers read before they create, so they collide only if they hurry.
        self.pace_s = 0.1 if self.bucket else 2.0
        self.world = SimulatedWorld(self.seed)

    def play(self) -> None:
        with probing():
            super().play()

    def draw(self) -> None:
        # S3 does not limit the requests for one key.
        inner = self.world.bucket(self.world.store, quick_ms=0) if self.bucket else self.world.store
        self.store = LyingStore(inner, self.world.clock, self.seed, 1_500 if self.bucket else 12_000)
        self.world.shared = self.store
        begins = [
            self.source.choice([appending, appending, consuming, deciding]) for _ in range(self.source.randint(2, 5))
        ]
        for number, begin in enumerate(begins):
            self.spawn(f"{begin.__name__}-{number}", writer(self, begin), within_ms=1000)
        open_root(self.world.store, create=True, env=self.world.env()).create_topic("t", partitions=3)

    def check_result(self) -> None:
        check_result(self)


def writer(run: LyingRun, begin: Callable[[Root, Actor], Write]) -> Callable[[Actor], None]:
    """Writes until it is told that the store lies; after any other error another process goes on."""

    def life(actor: Actor, steps: list[int]) -> Process:
        process = Process()
        try:
            root = open_root(actor.store(), env=actor.env)
            write = begin(root, actor)
            while steps:
                steps.pop()
                began_ms = actor.world.now_ms
                root.engine.ensure_probed()
                prefix, number, commit_id = write()
                again = bool(process.acked) and process.acked[-1].commit_id == commit_id
                if run.store.told.get(commit_id) == actor.name and not again:
                    process.acked.append(Ack(prefix, number, commit_id, began_ms))
                actor.sleep(actor.random.random() * run.pace_s)
        except SparklogError as error:
            actor.note(f"{error.code} {error}")
            process.error = error
        return process

    def body(actor: Actor) -> None:
        steps = list(range(STEPS))
        while steps:
            steps.pop()
            process = life(actor, steps)
            run.lives.append(process)
            if process.names_the_store or isinstance(process.error, BadRequest):
                return
            actor.sleep(actor.random.random())

    return body


def check_result(run: LyingRun) -> None:
    """Nobody goes on after a lost commit, and each loss but the last of a life has a name."""
    findings = verify_root(run.world.store, quick=True).findings
    named = [each.file for each in findings if each.kind in (GUARANTEE, CHAIN, CHECKPOINT)]
    for process in run.lives:
        run.count("acked", len(process.acked))
        run.count("stopped", process.names_the_store)
        for ack, following in zip_longest(process.acked, process.acked[1:]):
            if _is_there(run.world.store, ack):
                continue
            lost_ms = run.store.lost.get(ack.commit_id, 0)
            in_time = following is None or following.began_ms <= lost_ms
            expect(in_time, f"{ack} is lost since {lost_ms}, and its writer went on: {following}")
            has_name = process.names_the_store or any(_tells(file, ack) for file in named)
            run.count("lost and named" if has_name else "last and lost")
            # That a chain is broken says nothing of the commit that its writer has lost.
            in_silence = following is None and not isinstance(process.error, Corrupt)
            expect(has_name or in_silence, f"nobody names {ack}, which is lost; verify names {sorted(named)}")
    if any(process.names_the_store for process in run.lives):
        run.count("distrusted")
        expect(not _passes(run), "who comes next trusts the store")


def _tells(file: str, ack: Ack) -> bool:
    """True for a finding in this log at this number or, where one after the other was overwritten, behind it."""
    prefix, slash, name = file.rpartition("/_log/")
    return slash != "" and prefix == ack.prefix and int(name.removeprefix("checkpoints/")[:20]) >= ack.number - 1


def _passes(run: LyingRun) -> bool:
    """True if a new process trusts the store; one that lies now and then may pass a probe."""
    try:
        for _ in range(20):
            probe_results._probed.clear()
            probe_results.ensure_probed(run.store, run.world.clock)
    except BadRequest as error:
        return "expected 1" not in str(error)
    return True


def _is_there(store: Store, ack: Ack) -> bool:
    try:
        return peek_commit_id(store.get(commit_key(ack.prefix, ack.number))) == ack.commit_id
    except NotFound:
        return False


LYING = Simulation(LyingRun, "tests/log/simulation/test_lying_store.py")
WHAT_HAPPENS = dict.fromkeys(("acked", "stopped", "lost and named", "distrusted"), 1)


@sweeps(
    Sweep("disk", LYING_STORES, at_least=WHAT_HAPPENS),
    Sweep(
        "bucket",
        replace(LYING_STORES, every_run=30, chunk=30),
        settings=lambda seed: {"bucket": True},
        at_least=WHAT_HAPPENS,
    ),
)
def test_no_acknowledged_commit_is_lost_silently(sweep: Sweep, seeds: range) -> None:
    reached = LYING.sweep(sweep, seeds)
    if sweep.name == "disk":
        assert reached["lost and named"] > reached["last and lost"], reached


def test_one_seed() -> None:
    assert LYING.run_one() > 0


def no_doubt(patch: Patch) -> None:
    """A verdict lasts for ever."""
    patch.setattr(probe_results, "reverify", lambda store, wall_ms: None)
    patch.setattr(probe_results, "invalidate", lambda store, wall_ms: None)


def no_look_back(patch: Patch) -> None:
    """A new commit is acknowledged whatever lies before it."""
    patch.setattr(NumberedObjects, "_confirm", lambda *given: given[1])


def no_memory(patch: Patch) -> None:
    """What was created here is forgotten."""
    for name in ("_remember", "check_created", "check_followed"):
        patch.setattr(NumberedObjects, name, lambda *given: None)


@broken_rules(
    *(BrokenRule(rule, None, range(60), settings={"bucket": True}) for rule in (no_doubt, no_look_back, no_memory))
)
def test_some_seed_fails_without_the_rule(rule: BrokenRule, monkeypatch: Patch) -> None:
    LYING.assert_fails(rule, monkeypatch)
