"""Numbered objects: create-if-absent of the next number, and reading forward to the first missing one.

The one mechanism under topics, consumer groups and transaction decisions. An object's number is its place in one
total order; whoever creates it has won that place, and nobody changes it any more. This module knows nothing of what
the objects say.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from enum import Enum

from sparklog.errors import NotFound, Unavailable
from sparklog.log.env import Env, Moment
from sparklog.log.names import commit_key
from sparklog.storage.store import Store

READ_AHEAD = 16
STALE_MS = 3_600_000
"""After this long without a sight of the newest number, what a number means is no longer known: open afresh."""
SETTLE_MS = 90_000
"""How long "exists, then absent" and failures are retried: caches of network file systems last a minute."""

MAX_TRIES = 200
"""More than fit into that time; a bound for clocks that stand still."""


class Answer(Enum):
    """What became of a create."""

    OURS = "ours"
    LOST = "lost"
    STALLED = "stalled"
    """It may be ours, but so much time has passed that the number may have been used and collected before."""


@dataclass(frozen=True, slots=True)
class Numbered:
    """The numbered objects under `prefix`."""

    store: Store
    prefix: str
    env: Env

    def key(self, number: int) -> str:
        """The key of a number."""
        return commit_key(self.prefix, number)

    def read(self, number: int) -> bytes | None:
        """The object of this number, None if there is none."""
        try:
            return self.store.get(self.key(number))
        except NotFound:
            return None

    def read_forward(self, number: int, ahead: bool = False) -> list[bytes]:
        """All objects from `number` on, up to the first missing one.

        One request per object and one that finds nothing. A store that says `parallel_reads` is asked for 16 numbers
        at a time once there is something (`ahead`: from the start), for there each answer costs a round trip.
        """
        found: list[bytes] = []
        parallel = getattr(self.store, "parallel_reads", 1) > 1
        if not (parallel and ahead):
            first = self.read(number)
            if first is None:
                return found
            found.append(first)
        if not parallel:
            while (data := self.read(number + len(found))) is not None:
                found.append(data)
            return found
        with ThreadPoolExecutor(READ_AHEAD, thread_name_prefix="sparklog-read") as pool:
            while True:
                start = number + len(found)
                for data in pool.map(self.read, range(start, start + READ_AHEAD)):
                    if data is None:
                        return found
                    found.append(data)

    def create(
        self, number: int, data: bytes, ours: str, owner: Callable[[bytes], str | None], seen: Moment
    ) -> tuple[Answer, bytes | None]:
        """Create a number; `seen` is when the newest number was last seen to be `number - 1`. Also what lies there now.

        A lost answer is looked up: `owner` reads an object's id (None: the bytes are no whole object), `ours` is the id
        in `data`. If nothing whole is there, the same number is tried again. `Unavailable` if that stays unclear for
        90 s: the outcome is unknown then.
        """
        begun = self.env.now()
        tries = 0
        failure = "it exists and cannot be read"
        while True:
            try:
                created = self.store.create(self.key(number), data)
                found = data if created else self.read(number)
            except Unavailable as error:
                failure = str(error)
                found = self._look(number)
            now = self.env.now()
            tries += 1
            settled = now.elapsed_ms(begun) > SETTLE_MS or tries >= MAX_TRIES
            id_found = None if found is None else owner(found)
            if now.elapsed_ms(seen) > STALE_MS:
                # Whoever lies there: ours may have come first and been collected, and another sleeper's come after.
                return Answer.STALLED, found
            if found is not None and (id_found is not None or settled):
                return Answer.OURS if id_found == ours else Answer.LOST, found
            if settled:
                raise Unavailable(
                    f"creating {self.key(number)} has an unknown outcome: {failure}; look before you write again"
                )
            self.env.sleep(pause(self.env.random, tries))

    def _look(self, number: int) -> bytes | None:
        try:
            return self.read(number)
        except Unavailable:
            return None


def pause(rng: random.Random, tries: int) -> float:
    """Seconds to wait before try number `tries` + 1: random, up to a bound that doubles from 20 ms to 2 s."""
    bound: float = min(0.02 * 2 ** min(tries, 10), 2.0)
    return rng.uniform(0.2, 1.0) * bound
