"""Numbered objects: create-if-absent of the next number, and reading forward to the first missing one.

The one mechanism under topics, consumer groups and transaction decisions. An object's number is its place in one
total order; whoever creates it has won that place, and nobody changes it any more. This module knows nothing of what
the objects say.

A process may outlive its root: the folder is moved away and restored, or removed and made again at the same path. Its
next number would then lie beyond the end of another log. So a create is acknowledged only where the root has the id
with which it was opened (looked at before, so that nothing is written), and where the object before it still is the
one that it was made after (looked at afterwards; if it is not, the new object is taken back, for it is part of no log).
"""

from __future__ import annotations

import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from enum import Enum
from typing import NoReturn

import crc32c

from sparklog.errors import Corrupt, Fenced, NotFound, Unavailable
from sparklog.log.journal import documents as json_fields
from sparklog.log.journal.env import Env, Moment
from sparklog.log.journal.names import ROOT_KEY, commit_key
from sparklog.log.journal.root_id import read_root_id
from sparklog.storage.store import Store

READ_AHEAD = 16
STALE_MS = 3_600_000
"""After this long without a sight of the newest number, what a number means is no longer known: open afresh."""
SETTLE_MS = 90_000
"""How long "exists, then absent" and failures are retried: caches of network file systems last a minute."""

MAX_TRIES = 200
"""More than fit into that time; a bound for clocks that stand still."""
SURE_TRIES = 3
"""So often in a row an object must be read as damaged, or as another one, before that is believed."""
REOPEN = "stop this process, and open the root again"


class Answer(Enum):
    """What became of a create."""

    OURS = "ours"
    LOST = "lost"
    STALLED = "stalled"
    """It may be ours, but so much time has passed that the number may have been used and collected before."""


@dataclass(frozen=True, slots=True)
class Numbered:
    """The numbered objects under `prefix`; of the root `root_id`, if that is known here."""

    store: Store
    prefix: str
    env: Env
    root_id: str | None = None
    _unsettled: set[str] = field(default_factory=set, compare=False, repr=False)
    """Objects of others that were read here, and whose names a power loss might still take."""

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
        found = self._read_forward(number, ahead)
        if found:
            # Names in one directory: the newest stands for all.
            self._unsettled.add(self.key(number + len(found) - 1))
        return found

    def make_durable(self) -> None:
        """Make durable what was read here, before an object elsewhere says what rests on it.

        A name can be read before its writer has made it durable, and file systems need not keep the order of two
        fsyncs: what was written later, in another folder, may outlive it.
        """
        for key in tuple(self._unsettled):
            self.store.settle(key)
            self._unsettled.discard(key)

    def _read_forward(self, number: int, ahead: bool) -> list[bytes]:
        found: list[bytes] = []
        parallel = self.store.parallel_reads > 1
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
        self,
        number: int,
        data: bytes,
        ours: str,
        owner: Callable[[bytes], str | None],
        seen: Moment,
        before: int | None,
    ) -> tuple[Answer, bytes | None]:
        """Create a number; `seen` is when the newest number was last seen to be `number - 1`. Also what lies there now.

        A lost answer is looked up: `owner` reads an object's id (None: the bytes are no whole object), `ours` is the id
        in `data`. If nothing whole is there, the same number is tried again. `before` is the CRC-32C of `number - 1`.

        `Unavailable` if that stays unclear for 90 s: the outcome is unknown then. `Fenced` if the root is another one
        than was opened, or `number - 1` is another object than this one was made after: nothing is written then.
        """
        begun = self.env.now()
        tries = 0
        failure = "it exists and cannot be read"
        while True:
            try:
                self._check_root(number, unknown=tries > 0)
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
                self._check_root(number, unknown=True)
                return Answer.STALLED, found
            if found is not None and (id_found is not None or settled):
                answer = Answer.OURS if id_found == ours else Answer.LOST
                return self._confirm(answer, number, ours, owner, seen, before), found
            if settled:
                raise self._unknown(number, failure)
            self.env.sleep(pause(self.env.random, tries))

    def _unknown(self, number: int, failure: object) -> Unavailable:
        return Unavailable(
            f"creating {self.key(number)} has an unknown outcome: {failure}; look before you write again"
        )

    # -- the root that was opened

    def _check_root(self, number: int, *, unknown: bool) -> None:
        """`Fenced` if this is no longer the root that was opened; `Unavailable` if `number` may have been written."""
        now = self._root_id() if self.root_id is not None else None
        if now == self.root_id:
            return
        state = "no root any more" if now is None else f"another root (id {now}) than this process opened"
        message = f"{self.store.location} is {state} ({self.root_id})"
        if unknown:
            raise self._unknown(number, message)
        raise Fenced(f"{message}: {self.key(number)} was not written; {REOPEN}")

    def drop_unless_here(self, key: str, number: int, crc: int | None) -> None:
        """Delete the copy of `number` under `key`, just written, unless `number` with this CRC-32C is here: `Fenced`.

        A copy only saves time, so it may go in doubt; one of another log would be taken for the newest state.
        """
        for tries in range(SURE_TRIES):
            try:
                data = self.read(number)
                if data is not None and crc32c.crc32c(data) == crc and self.root_id in (None, self._root_id()):
                    return
                break
            except Corrupt:
                break
            except Unavailable:
                self.env.sleep(pause(self.env.random, tries))
        self.store.delete(key)
        raise Fenced(f"{self.key(number)} in {self.store.location} is not what this process has seen; {REOPEN}")

    def _root_id(self) -> str | None:
        """The id of the root that lies here now; None if there is none, which a listing must confirm."""
        for tries in range(SURE_TRIES):
            try:
                return read_root_id(self.store)
            except NotFound:
                if not any(info.key == ROOT_KEY for info in self.store.list(ROOT_KEY)):
                    return None
                # A cache hides for a while what exists.
                self.env.sleep(pause(self.env.random, tries))
            except Corrupt:
                if tries == SURE_TRIES - 1:
                    raise
        raise Unavailable(f"{ROOT_KEY} of {self.store.location} is listed and cannot be read; try again later")

    # -- the object that was there before

    def _confirm(
        self,
        answer: Answer,
        number: int,
        ours: str,
        owner: Callable[[bytes], str | None],
        seen: Moment,
        before: int | None,
    ) -> Answer:
        """The answer, once it is seen that the object before `number` is there; else `Fenced`, and ours is taken back.

        Who lost looks as well: the winner may be another process that has outlived the root, and takes it back.
        """
        if before is None:
            return answer
        begun = self.env.now()
        failure = f"{self.key(number - 1)}, which lies before it, cannot be read"
        tries = others = 0
        while True:
            data, gap = None, False
            try:
                data = self.read(number - 1)
                gap = data is None and self._is_gap(number)
            except Unavailable as error:
                failure = str(error)
            if data is not None and crc32c.crc32c(data) == before:
                return answer
            if self.env.now().elapsed_ms(seen) > STALE_MS:
                # It may have been collected since.
                self._check_root(number, unknown=True)
                return Answer.STALLED
            tries += 1
            others += data is not None
            if gap or others >= SURE_TRIES:
                if data is not None and not self._is_sound(data, number - 1):
                    # It is there; that it is damaged is for its readers to say.
                    return answer
                self._refuse(number, ours, owner)
            if self.env.now().elapsed_ms(begun) > SETTLE_MS or tries >= MAX_TRIES:
                raise self._unknown(number, failure)
            self.env.sleep(pause(self.env.random, tries))

    def _is_gap(self, number: int) -> bool:
        """Whether a listing that shows `number` does not show the one before: no cache can hide it so."""
        listed = {info.key for info in self.store.list(f"{self.prefix}/_log/0")}
        return self.key(number) in listed and self.key(number - 1) not in listed

    def _is_sound(self, data: bytes, number: int) -> bool:
        try:
            json_fields.decode(data, self.key(number), "entry")
        except Corrupt:
            return False
        return True

    def _refuse(self, number: int, ours: str, owner: Callable[[bytes], str | None]) -> NoReturn:
        """Raise `Fenced`: `number` follows nothing that is here. If it is ours, delete it.

        It names the CRC of an object that is not here, so nobody has taken it for a part of this log.
        """
        key, before = self.key(number), self.key(number - 1)
        message = (
            f"{before} in {self.store.location} is not what this process has seen: the root was moved away and "
            "restored, or removed and made again"
        )
        begun = self.env.now()
        for tries in range(MAX_TRIES):
            try:
                data = self.read(number)
                if data is not None and owner(data) != ours:
                    raise Fenced(f"{message}; {REOPEN}")
                self.store.delete(key)
                raise Fenced(f"{message}; {key} was taken back; {REOPEN}")
            except Unavailable as error:
                failure = error
            if self.env.now().elapsed_ms(begun) > SETTLE_MS:
                break
            self.env.sleep(pause(self.env.random, tries))
        raise Unavailable(f"{message}; {key}, which follows nothing, cannot be taken back: {failure}; delete it")

    def _look(self, number: int) -> bytes | None:
        try:
            return self.read(number)
        except Unavailable:
            return None


def pause(rng: random.Random, tries: int) -> float:
    """Seconds to wait before try number `tries` + 1: random, up to a bound that doubles from 20 ms to 2 s."""
    bound: float = min(0.02 * 2 ** min(tries, 10), 2.0)
    return rng.uniform(0.2, 1.0) * bound
