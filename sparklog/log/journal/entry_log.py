"""A chain of entries, each carrying the whole state after it: opening it, following it, taking the next step in it.

Decisions of transactional ids and offsets of consumer groups are kept so. The protocol is that of a topic's commits
(`sparklog.log.state.commit_log`): the next number is created if absent, a loser reads forward and judges its step anew
on the state it finds, a lost answer is known by its id, and an hour without a sight of the newest entry makes a number
mean nothing. As an entry says everything, a checkpoint is a copy of one under `_log/checkpoints/`, which saves who
opens the log from reading all the entries before.

What every entry begins with, whatever it is about, and what it ends with:

| member        | meaning                                                                                            |
|---------------|----------------------------------------------------------------------------------------------------|
| format        | 1                                                                                                  |
| readFeatures  | features a reader must know from here on                                                           |
| writeFeatures | features a writer must know from here on                                                           |
| number        | the number in its name, from 0                                                                     |
| id            | whose log it is: the id itself (the folder may be encoded or a hash)                               |
| commitId      | random, the same for all tries: after a lost answer it says "this is mine"                         |
| prevCrc       | CRC-32C of all bytes of the entry before; null at 0                                                |
| timeMs        | max(the writer's clock, the entry before)                                                          |
| clockMs       | when it was made, if a clock that was wrong has left `timeMs` ahead of that (`clock`)              |
| clockSince    | the newest entry since which the times when entries were made go on; left out where there is none  |
| ...           | what it is about                                                                                   |
| crc           | CRC-32C of the bytes before this member                                                            |
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Generic, TypeVar

import crc32c

from sparklog.errors import BadRequest, Corrupt, NotFound, SparklogError, Unavailable
from sparklog.log.journal.clock import ClockGuard, next_times
from sparklog.log.journal.documents import (
    KNOWN_WRITE_FEATURES,
    TEXT,
    TEXTS,
    UINT32_MAX,
    Member,
    StoredDocument,
    peek_commit_id,
    whole,
)
from sparklog.log.journal.env import Env, Moment
from sparklog.log.journal.names import checkpoint_key, checkpoint_prefix, checkpoint_version
from sparklog.log.journal.numbered_objects import STALE_MS, Answer, Numbered, pause
from sparklog.storage.store import Store

ENTRY_MEMBERS = (
    Member("readFeatures", TEXTS),
    Member("writeFeatures", TEXTS),
    Member("number", whole(0)),
    Member("id", TEXT),
    Member("commitId", TEXT),
    Member("prevCrc", whole(0, UINT32_MAX), nullable=True),
    Member("timeMs", whole(0)),
    Member("clockMs", whole(0), optional=True),
    Member("clockSince", whole(0), optional=True),
)
"""The members that every entry begins with."""
CHECKPOINT_ENTRIES = 64
CHECKPOINT_BYTES = 1 << 20
WAIT_AFTER_LOSSES = 3
OPEN_TRIES = 3
_LOG = logging.getLogger("sparklog.log")


@dataclass(frozen=True, slots=True)
class Entry:
    """The newest entry of an id, and so its state; `number` -1 is an id without entries. `nbytes` of the entry."""

    id: str
    number: int = -1
    commit_id: str = ""
    prev_crc: int | None = None
    time_ms: int = 0
    read_features: tuple[str, ...] = ()
    write_features: tuple[str, ...] = ()
    clock_ms: int | None = None
    clock_since: int | None = None
    crc: int | None = field(default=None, compare=False)
    nbytes: int = field(default=0, compare=False)

    @property
    def made_ms(self) -> int:
        """When it was made."""
        return self.time_ms if self.clock_ms is None else self.clock_ms


E = TypeVar("E", bound=Entry)
Step = Callable[[E], E | None]
"""The state after one more entry, None if there is nothing to write; raises where the state does not allow it."""


@dataclass(frozen=True, slots=True)
class EntryKind(Generic[E]):
    """What a log's entries are about. Logs lie below `folder`, that of an id under `prefix(id)`.

    `owner` and `what` are for messages: "transactional id", "decisions". `decode(data, key, number)` raises
    `BadRequest` if the entry needs a newer sparklog, `Corrupt` naming `key` if it is damaged or another entry.
    """

    folder: str
    prefix: Callable[[str], str]
    owner: str
    what: str
    empty: Callable[[str], E]
    encode: Callable[[E], bytes]
    decode: Callable[[bytes, str, int], E]

    def title(self, id_: str) -> str:
        """What messages call the owner of a log."""
        return f"{self.owner} '{id_}'"


def decode_entry(table: StoredDocument[E], data: bytes, key: str, number: int) -> E:
    """The entry in `data`, which lay under `key` as `number`.

    `BadRequest` if it needs a newer sparklog; `Corrupt` naming `key` if it is damaged or is another entry.
    """
    item = table.fields(data, key)
    if (stored := item.integer("number", 0)) != number:
        raise Corrupt(f"entry {number} should lie here, found entry {stored}; restore it", file=key)
    return table.from_json(item, crc=crc32c.crc32c(data), nbytes=len(data))


@dataclass(frozen=True, slots=True)
class _Known(Generic[E]):
    """A state, when it was seen to be the newest, the newest checkpoint known by then, bytes of the entries since."""

    state: E
    seen: Moment
    checkpoint: int
    behind: int


class EntryLog(Generic[E]):
    """The entries of one id, with the newest state this process knows. Threads may share it."""

    def __init__(
        self, store: Store, kind: EntryKind[E], id_: str, env: Env, guard: ClockGuard, root_id: str | None = None
    ) -> None:
        self.store = store
        self.kind = kind
        self.id = id_
        self.prefix = kind.prefix(id_)
        self._env = env
        self._guard = guard
        self._numbered = Numbered(store, self.prefix, env, root_id)
        self._known: _Known[E] | None = None

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.id!r}, {self.store.location!r})"

    def key(self, number: int) -> str:
        """The key of an entry."""
        return self._numbered.key(number)

    def known(self) -> E | None:
        """The newest state this process has seen, however old: no request."""
        return None if self._known is None else self._known.state

    def current(self) -> E:
        """The newest state known, without a request where it is younger than an hour."""
        return self._current().state

    def refresh(self) -> E:
        """The newest state there is: one request that finds nothing when nothing changed."""
        known = self._known
        return (self._open() if known is None or self._is_stale(known.seen) else self._forward(known)).state

    def make_durable(self) -> None:
        """Make durable what was read here, before something that rests on it is written elsewhere."""
        self._numbered.make_durable()

    def _current(self) -> _Known[E]:
        known = self._known
        return self._open() if known is None or self._is_stale(known.seen) else known

    def _is_stale(self, seen: Moment) -> bool:
        return self._env.now().elapsed_ms(seen) > STALE_MS

    def _publish(self, found: _Known[E]) -> _Known[E]:
        known = self._known
        if known is None or found.state.number >= known.state.number or self._is_stale(known.seen):
            self._known = found
        return found

    def _forward(self, known: _Known[E], data: bytes | None = None) -> _Known[E]:
        """Read on from a state; `data` is the next entry, if it was read already."""
        seen = self._env.now()
        first = known.state.number + 1
        found = [] if data is None else [data]
        found += self._numbered.read_forward(first + len(found))
        if self._is_stale(known.seen):
            return self._open()
        behind = known.behind + sum(map(len, found))
        return self._publish(_Known(self._followed(known.state, found), seen, known.checkpoint, behind))

    def _followed(self, state: E, found: list[bytes]) -> E:
        for data in found:
            number = state.number + 1
            entry = self._decode(data, number)
            if entry.prev_crc != state.crc:
                raise Corrupt(
                    f"the chain of {self.kind.what} is broken: entry {number} was made after an entry with CRC-32C "
                    f"{entry.prev_crc}, entry {state.number} has {state.crc}; one of the two is not what was written",
                    file=self.key(number),
                )
            state = entry
        return state

    def _decode(self, data: bytes, number: int) -> E:
        key = self.key(number)
        try:
            entry = self.kind.decode(data, key, number)
        except Corrupt:
            # A bit that flipped on the way: read again before calling it damaged.
            entry = self.kind.decode(self.store.get(key), key, number)
        if entry.id != self.id:
            raise Corrupt(f"{self.kind.what} of '{self.id}' should lie here, found those of '{entry.id}'", file=key)
        return entry

    # -- opening

    def _open(self) -> _Known[E]:
        """Open afresh: one listing, one checkpoint, the entries after it."""
        for tries in range(OPEN_TRIES):
            seen = self._env.now()
            versions = self.checkpoints()
            state = self.kind.empty(self.id)
            for number in reversed(versions):
                copy = self.checkpoint(number)
                if copy is not None:
                    state = copy
                    break
            at = state.number
            found = self._numbered.read_forward(at + 1, ahead=True)
            state = self._followed(state, found)
            missing = bool(versions) and state.number < versions[-1]
            backward = self._known is not None and state.number < self._known.state.number
            if not missing and not backward and not self._is_stale(seen):
                return self._publish(_Known(state, seen, at, sum(map(len, found))))
            # A directory cache may hide for a while what exists: look again before calling it lost.
            self._env.sleep(pause(self._env.random, tries))
        if missing:
            key = self.key(state.number + 1)
            raise Corrupt(
                f"entry {state.number + 1} of {self.kind.title(self.id)} is missing; restore it",
                file=key,
            )
        raise Unavailable(
            f"the {self.kind.what} of '{self.id}' show entry {state.number}, newer ones were seen; try later"
        )

    def checkpoints(self) -> list[int]:
        """Numbers of the entries that were copied as checkpoints, in order."""
        found = (checkpoint_version(info.key) for info in self.store.list(checkpoint_prefix(self.prefix)))
        return sorted(number for number in found if number is not None)

    def checkpoint(self, number: int) -> E | None:
        """The entry in a checkpoint; None if it is damaged or gone: the one before will do."""
        key = checkpoint_key(self.prefix, number)
        try:
            found = self.kind.decode(self.store.get(key), key, number)
            return found if found.id == self.id else None
        except (Corrupt, NotFound) as error:
            _LOG.warning("passing over checkpoint %s of %s: %s", number, self.kind.title(self.id), error)
            return None

    # -- writing

    def write(self, step: Step[E]) -> E:
        """Take a step: create the entry it makes of the newest state; the state after it (or found, if None).

        Raises what the step raises on the newest state, and `Unavailable` if the outcome stays unknown.
        """
        self._guard.check()
        commit_id = self._env.new_id()
        known, looked, tries = self._current(), False, 0
        while True:
            try:
                draft = step(known.state)
            except SparklogError:
                if looked:
                    raise
                # Judged on the newest state known here; see whether the newest there is says the same.
                known, looked = self._reread(), True
                continue
            looked = True
            if draft is None:
                return known.state
            tries += 1
            entry, data = self._drawn_up(draft, known.state, commit_id)
            mine, known = self._attempt(known, entry, data)
            if mine is not None:
                self._checkpoint_if_due(known)
                return known.state
            if tries >= WAIT_AFTER_LOSSES:
                self._env.sleep(pause(self._env.random, tries - WAIT_AFTER_LOSSES))
                known = self._reread(known)

    def _reread(self, known: _Known[E] | None = None) -> _Known[E]:
        known = self._known if known is None else known
        return self._open() if known is None or self._is_stale(known.seen) else self._forward(known)

    def _drawn_up(self, draft: E, base: E, commit_id: str) -> tuple[E, bytes]:
        unknown = sorted(set(base.write_features) - KNOWN_WRITE_FEATURES)
        if unknown:
            raise BadRequest(
                f"{self.kind.title(self.id)} needs the sparklog features {', '.join(unknown)}; upgrade sparklog"
            )
        times = next_times(base, base.number + 1, self._env.wall_ms(), self._guard.store_ms())
        entry = replace(
            draft,
            number=base.number + 1,
            commit_id=commit_id,
            prev_crc=base.crc,
            time_ms=times.time_ms,
            clock_ms=times.clock_ms,
            clock_since=times.clock_since,
        )
        data = self.kind.encode(entry)
        # Read back before it is written: what no reader would take must never lie in the log.
        return self.kind.decode(data, self.key(entry.number), entry.number), data

    def _attempt(self, known: _Known[E], entry: E, data: bytes) -> tuple[E | None, _Known[E]]:
        """Try one number: our entry as it stands in the log, or None, and the newest state."""
        seen = self._env.now()
        answer, found = self._numbered.create(
            entry.number, data, entry.commit_id, peek_commit_id, known.seen, entry.prev_crc
        )
        if answer is Answer.STALLED or found is None:
            return self._trace(entry)
        if answer is Answer.OURS:
            state = entry if found == data else self._decode(found, entry.number)
            return state, self._publish(_Known(state, seen, known.checkpoint, known.behind + len(found)))
        # Ours cannot lie behind it: nobody goes on to a number before the one below is somebody's.
        return None, self._forward(known, found)

    def _trace(self, entry: E) -> tuple[E | None, _Known[E]]:
        """After a stall: open afresh and find out whether our entry is in the log."""
        known = self._open()
        if entry.number > known.state.number:
            return None, known
        state = self.kind.empty(self.id) if known.checkpoint < 0 else self.checkpoint(known.checkpoint)
        if state is None or entry.number < state.number:
            raise Unavailable(
                f"entry {entry.number} of {self.kind.title(self.id)} stalled for over an hour and its outcome is "
                "unknown; look before you write again"
            )
        while state.number < entry.number:
            state = self._followed(state, [self.store.get(self.key(state.number + 1))])
        return (entry if state.commit_id == entry.commit_id else None), known

    def _checkpoint_if_due(self, known: _Known[E]) -> None:
        state = known.state
        if state.number - known.checkpoint < CHECKPOINT_ENTRIES and known.behind < CHECKPOINT_BYTES:
            return
        key = checkpoint_key(self.prefix, state.number)
        try:
            if self.store.create(key, self.kind.encode(state)):
                self._numbered.drop_unless_here(key, state.number, state.crc)
        except (SparklogError, OSError) as error:
            title = self.kind.title(self.id)
            _LOG.warning("no checkpoint of %s at entry %s: %s", title, state.number, error)
            return
        self._publish(replace(known, checkpoint=state.number, behind=0))
