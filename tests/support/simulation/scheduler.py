"""A deterministic world: actors as threads of which one runs at a time, a virtual clock, and a shared memory store.

An actor runs until it calls its store or sleeps; there it hands the baton to an actor that the seed picks. So a seed
names one interleaving of requests, faults and pauses, and running it again gives the same run. Nothing waits in real
time.
"""

from __future__ import annotations

import _thread
import random
import threading
from collections.abc import Callable, Iterator
from contextlib import nullcontext

from sparklog.log.journal.clocks import Env
from sparklog.storage.memory import MemoryStore
from sparklog.storage.store import ObjectInfo, ObjectWriter, Store
from sparklog.storage.wrapper_store import T
from sparklog.testing.bucket_store import BucketStore
from sparklog.testing.faulty_store import Crash, Decide, FaultyStore
from sparklog.testing.world import START_MS, World
from sparklog.testing.wrapper_stores import WrapperStore
from tests.support.simulation.request_order import no_threads


class SimulationError(AssertionError):
    """The code under test broke a promise (or never came to an end)."""


def expect(condition: bool, message: str) -> None:
    """Raise `SimulationError` with the message unless the condition holds."""
    if not condition:
        raise SimulationError(message)


class _Stop(BaseException):
    """The run is over: actors leave at once."""


class SimulatedWorld(World):
    """Clock, store and scheduler of one run.

    `spawn` adds actors, `run` runs them until all have ended. `latency_ms` is the most a request takes; `max_steps`
    bounds the run, and passing it is a failure of liveness.
    """

    def __init__(
        self, seed: int, *, store: MemoryStore | None = None, latency_ms: int = 20, max_steps: int = 20_000
    ) -> None:
        super().__init__(store)
        self.seed = seed
        self.random = random.Random(seed)
        if store is None:
            self.store = MemoryStore(self.clock, f"seed-{seed}")
        self.shared: Store = self.store
        """The store as actors reach it: itself, or a bucket around it (`as_bucket`)."""
        self.latency_ms = latency_ms
        self.max_steps = max_steps
        self.steps = 0
        self.actors: list[Actor] = []
        self.stores: list[FaultyStore] = []
        self.failure: BaseException | None = None
        self.trace: list[str] = []
        self.landing = False
        self._done = _thread.allocate_lock()
        self._done.acquire()

    def as_bucket(self) -> None:
        """Let actors have the store as a bucket, at its worst."""
        self.shared = self.bucket(self.store)

    def bucket(self, store: Store, **how: int) -> BucketStore:
        """A bucket around a store that actors share, who make requests to it at once (`at_once`)."""
        return BucketStore(store, random.Random(f"bucket {self.seed}"), self.clock, parallel_reads=16, **how)

    @property
    def is_bucket(self) -> bool:
        return self.shared is not self.store

    def spawn(self, name: str, body: Callable[[Actor], None], *, skew_ms: int = 0, start_ms: int = 0) -> Actor:
        """An actor that runs `body`; its clocks are off by `skew_ms`, and it begins `start_ms` from now."""
        actor = Actor(self, name, body, skew_ms, self.now_ms + start_ms)
        self.actors.append(actor)
        return actor

    def run(self) -> None:
        """Run all actors to their end; raises what broke, if anything did."""
        with no_threads() if self.is_bucket else nullcontext():
            self._run()

    def _run(self) -> None:
        for actor in self.actors:
            actor.start()
        first = self._pick()
        if first is not None:
            first.baton.release()
            self._done.acquire()
        for actor in self.actors:
            actor.thread.join(20)
        if self.failure is not None:
            raise self.failure

    def fail(self, error: BaseException) -> None:
        """Record the first failure and make every actor leave."""
        if self.failure is None:
            self.failure = error

    def note(self, text: str) -> None:
        """A line of the run's story, for who looks at a failing seed."""
        if len(self.trace) < 5_000:
            self.trace.append(f"{self.now_ms - START_MS:>12} {text}")

    def _pick(self) -> Actor | None:
        """Who runs next: any that is awake, by the seed; the clock jumps when all sleep."""
        living = [actor for actor in self.actors if not actor.ended]
        if not living:
            return None
        if self.failure is not None:
            return living[0]
        awake = [actor for actor in living if actor.wake_ms <= self.now_ms]
        if not awake:
            self.now_ms = min(actor.wake_ms for actor in living)
            awake = [actor for actor in living if actor.wake_ms <= self.now_ms]
        return awake[0] if len(awake) == 1 else self.random.choice(awake)

    def _step(self) -> None:
        self.steps += 1
        if self.steps > self.max_steps:
            waiting = ", ".join(actor.name for actor in self.actors if not actor.ended)
            self.fail(SimulationError(f"no end after {self.max_steps} requests; still at work: {waiting}"))
        self.now_ms += self.random.randint(0, self.latency_ms)
        for store in self.stores:
            if store.has_late and self.random.random() < 0.02:
                self.landing = True
                store.land()
                self.landing = False

    def switch(self, actor: Actor) -> None:
        """Called by the running actor: somebody (perhaps the same) goes on."""
        if self.failure is None:
            self._step()
        following = self._pick()
        if following is not actor and following is not None:
            following.baton.release()
            actor.baton.acquire()
        if self.failure is not None:
            raise _Stop

    def _ended(self, actor: Actor) -> None:
        actor.ended = True
        following = self._pick()
        if following is not None:
            following.baton.release()
        else:
            self._done.release()


class Actor:
    """One process: a thread with clocks of its own, and stores that hand over the baton at every request."""

    def __init__(
        self, world: SimulatedWorld, name: str, body: Callable[[Actor], None], skew_ms: int, wake_ms: int
    ) -> None:
        self.world = world
        self.name = name
        self.random = random.Random(f"{world.seed}/{name}")
        self.skew_ms = skew_ms
        self.wake_ms = wake_ms
        self.ended = False
        self.baton = _thread.allocate_lock()
        self.baton.acquire()
        self.env = Env(
            wall_ms=lambda: world.now_ms + self.skew_ms,
            boot_ms=lambda: world.now_ms - START_MS,
            sleep=self.sleep,
            random=self.random,
        )
        self._body = body
        self.thread = threading.Thread(target=self._run, name=name, daemon=True)
        self.thread.source = random.Random(f"{world.seed}/{name}/at once")  # type: ignore[attr-defined]

    def start(self) -> None:
        self.thread.start()

    def store(self, decide: Decide = lambda call: None) -> FaultyStore:
        """A connection of this actor to the shared store, failing as `decide` says."""
        store = FaultyStore(ActorStore(self), decide, self.sleep)
        self.world.stores.append(store)
        return store

    def sleep(self, seconds: float) -> None:
        """Let virtual time pass for this actor; the others go on."""
        self.wake_ms = self.world.now_ms + max(0, round(seconds * 1000))
        self.world.switch(self)

    def yield_(self) -> None:
        """Let somebody else run."""
        self.world.switch(self)

    def note(self, text: str) -> None:
        self.world.note(f"{self.name}: {text}")

    def _run(self) -> None:
        self.baton.acquire()
        try:
            if self.world.failure is None:
                self._body(self)
        except _Stop:
            pass
        except Crash as crash:
            self.note(f"dead ({crash})")
        except BaseException as error:  # noqa: BLE001
            self.note(f"failed: {type(error).__name__}: {error}")
            self.world.fail(error)
        finally:
            self.world._ended(self)


class ActorStore(WrapperStore):
    """The shared store as one actor sees it: every request lets the others go first."""

    needs_probe = False

    def __init__(self, actor: Actor) -> None:
        super().__init__(actor.world.shared)
        self._actor = actor

    def _turn(self) -> None:
        if self._actor.world.landing:
            return  # a request made long ago arrives: nobody is waiting for it
        if threading.current_thread() is not self._actor.thread:
            raise SimulationError("a request came from a thread that is no actor: the run would not be deterministic")
        self._actor.yield_()

    def request(self, verb: str, key: str, send: Callable[[], T]) -> T:
        if verb == "delete_many":
            self._turn()
            self._actor.note(f"deletes {key} and others")
        return send()

    def get(self, key: str, start: int = 0, length: int | None = None) -> bytes:
        self._turn()
        return self.inner.get(key, start, length)

    def create(self, key: str, data: bytes) -> bool:
        self._turn()
        created = self.inner.create(key, data)
        self._actor.note(f"create {key}: {created}")
        return created

    def writer(self, key: str) -> ObjectWriter:
        self._turn()
        return self.inner.writer(key)

    def list(self, prefix: str, after: str = "") -> Iterator[ObjectInfo]:
        self._turn()
        return self.inner.list(prefix, after)

    def list_folders(self, prefix: str) -> Iterator[str]:
        self._turn()
        return self.inner.list_folders(prefix)

    def stat(self, key: str) -> ObjectInfo | None:
        self._turn()
        return self.inner.stat(key)

    def delete(self, key: str) -> None:
        self._turn()
        self._actor.note(f"delete {key}")
        self.inner.delete(key)

    # No hand-over in `now_ms`: reading the store's clock changes nothing that another actor could see.
