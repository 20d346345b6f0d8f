"""One simulated run: its seed and settings, the world of its actors, and counters of what happened.

A protocol's model is a subclass of `SimulatedRun`. All that a run decides at random comes from its seed, so a seed with
the same settings is the same run.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, ClassVar
from unittest import mock

from sparklog.errors import BadRequest, Fenced
from sparklog.log.journal.clocks import Env
from sparklog.log.state.configs import TopicConfigs
from sparklog.log.topic.root import Root, open_root
from sparklog.storage.store import Store
from sparklog.testing.faulty_store import Crash, Decide, FaultKind, FaultyStore, Seeded
from tests.support.name_caching_store import NameCachingStore
from tests.support.simulation.faults import LOST, Stalls, bucket_faults
from tests.support.simulation.losses import Losses
from tests.support.simulation.scheduler import Actor, SimulatedWorld
from tests.support.small_limits import small_limits

Body = Callable[[Actor], None]


def no_faults(call: object) -> None:
    """Let each request succeed."""


@dataclass
class SimulatedRun:
    """A run of one seed. Subclasses create `world`, spawn actors in `draw`, and check the outcome in `check_result`."""

    seed: int
    profile: str | None = None
    """Which faults happen; None: drawn by the seed."""
    bucket: bool = False
    inline: int | None = 0
    """Bytes of records that go into a commit (`inline.records.bytes`); None: the default."""
    counters: Counter[str] = field(default_factory=Counter)
    losses: Losses | None = None
    """Journal objects that disappeared in this run; None outside the profile `lost`."""
    name_ms: int = 0
    folder_ms: int = 0
    """How long each machine caches names (`NameCachingStore`); 0: not at all."""
    machines: dict[str, NameCachingStore] = field(default_factory=dict)
    world: SimulatedWorld = field(init=False)
    source: random.Random = field(init=False)
    """Draws the actors and their faults."""

    PROFILES: ClassVar[tuple[str, ...]] = ("calm",)
    STREAM: ClassVar[str] = "draw"
    """Distinguishes the draws of this model from those of others with the same seed."""
    RESTARTS: ClassVar[int] = 20
    RESTART_PAUSE_S: ClassVar[float] = 5.0

    def __post_init__(self) -> None:
        self.source = random.Random(f"{self.STREAM} {self.seed}")
        self.create_world()
        if self.bucket:
            self.world.as_bucket()

    # -- what a model defines

    def create_world(self) -> None:
        """Create `world` and the topics that exist from the start."""
        self.world = SimulatedWorld(self.seed)

    def draw(self) -> None:
        """Spawn the actors that the seed draws, with their faults."""

    def limits(self) -> dict[str, float]:
        """Return the limits of the run's stores that differ from the defaults."""
        return {}

    def check_result(self) -> None:
        """Check the final state."""

    # -- running

    def play(self) -> None:
        """Run all actors to their end, and check the outcome. Raises the first failure."""
        inline: AbstractContextManager[Any] = nullcontext()
        if self.inline is not None:
            inline = mock.patch.object(TopicConfigs, "inline_records_bytes", self.inline)
        self.draw()
        with inline, small_limits(**self.limits()):
            self.world.run()
            if self.losses is not None:
                self.counters["lost"] = len(self.losses.lost)
                self.losses.put_back()
            self.check_result()

    def count(self, what: str, times: int = 1) -> None:
        self.counters[what] += times

    # -- drawing

    def draw_profile(self) -> str:
        """Return the run's profile, drawn unless it is given."""
        if self.profile is None:
            self.profile = self.source.choice(self.PROFILES)
        self.count(f"profile {self.profile}")
        if self.profile == LOST:
            self.losses = Losses(self.world)
        return self.profile

    def possible(self, kinds: tuple[FaultKind, ...]) -> tuple[FaultKind, ...]:
        """Return those of these fault kinds that the run's store can show."""
        return bucket_faults(kinds) if self.world.is_bucket else kinds

    def seeded_faults(self, name: str, rates: list[float], kinds: tuple[FaultKind, ...]) -> Seeded:
        """Return the faults of one process: a rate that the seed draws, and the process' own source of chances."""
        return Seeded(
            random.Random(f"{self.seed}/faults/{name}"), self.source.choice(rates) if kinds else 0.0, kinds, 5.0
        )

    def stalling_faults(
        self, name: str, rates: list[float], kinds: tuple[FaultKind, ...], stall_rate: float, longest_ms: int
    ) -> Stalls:
        """Return `seeded_faults` with stalls of up to `longest_ms` at this rate."""
        plan = self.seeded_faults(name, rates, kinds)
        return Stalls(plan, plan.source, stall_rate, longest_ms)

    def spawn(self, name: str, body: Body, *, skews: list[int] | None = None, within_ms: int = 2_000) -> None:
        """Add an actor that starts within this time, and whose clock is off by one of `skews` (default: none)."""
        skew_ms = 0 if skews is None else self.source.choice(skews)
        self.world.spawn(name, body, skew_ms=skew_ms, start_ms=self.source.randint(0, within_ms))

    def lose_objects(self, count: int, pause_s: float) -> None:
        """Spawn an actor that removes this many journal objects, with a pause of up to `pause_s` before each."""
        assert self.losses is not None
        self.world.spawn("loser", self.losses.loser(count, pause_s))

    # -- processes

    def root(self, actor: Actor, decide: Decide = no_faults, host: str | None = None) -> Root:
        """Open the root as a new process of an actor, on the machine `host`: by default one per actor."""
        return open_root(self.client(actor.store(decide), host or actor.name), env=actor.env)

    def client(self, store: Store, host: str) -> Store:
        """Return a connection of a machine, which shares what the machine caches of names."""
        if not self.name_ms and not self.folder_ms:
            return store
        if host not in self.machines:
            times = {"name_ms": self.name_ms, "folder_ms": self.folder_ms}
            self.machines[host] = NameCachingStore(store, self.world.clock, **times)
        return self.machines[host].through(store)

    def outsider(self, name: object = "", decide: Decide | None = None, store: Store | None = None) -> Root:
        """Open the root outside the schedule: its requests switch to no actor, and its sleep moves the clock."""

        def sleep(seconds: float) -> None:
            self.world.now_ms += round(seconds * 1000)

        env = Env(self.world.clock, self.world.clock, sleep, random.Random(f"{self.seed}/outsider {name}"))
        store = self.world.store if store is None else store
        return open_root(store if decide is None else FaultyStore(store, decide, sleep), create=True, env=env)

    def land_late_requests(self) -> None:
        """Let each request that is still on its way take effect."""
        self.world.landing = True
        for store in self.world.stores:
            store.land()
        self.world.landing = False


def restarted(run: SimulatedRun, actor: Actor, life: Callable[[], None], restarts: int | None = None) -> None:
    """Run `life` as a process that is restarted when it dies, without its memory."""
    for _ in range(restarts or run.RESTARTS):
        try:
            life()
            return
        except Crash as crash:
            run.count("crashes")
            actor.note(f"dies ({crash}) and starts again")
            actor.sleep(actor.random.random() * run.RESTART_PAUSE_S)
        except Fenced as error:
            # This process had read its entry before the entry was lost.
            if run.losses is None:
                raise
            actor.note(f"stops: {error}")
            actor.sleep(actor.random.random() * run.RESTART_PAUSE_S)
        except BadRequest as error:
            # A flipped bit in a format's number: readers must believe nothing else of such bytes.
            if "upgrade sparklog" not in str(error):
                raise
            actor.sleep(actor.random.random())
