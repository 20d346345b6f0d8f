"""The decision log of one transactional id: opening it, following it, and taking the next step in it.

The protocol is that of a topic's commits (`sparklog.log.commit_log`): the next number is created if absent, a loser
reads forward and judges its step anew on the state it finds, a lost answer is known by its id, and an hour without a
sight of the newest entry makes a number mean nothing. An entry carries the whole state, so a checkpoint is a copy of
one under `_log/checkpoints/`, which saves who opens the log from reading all the entries before.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace

from sparklog.errors import BadRequest, Corrupt, NotFound, SparklogError, Unavailable
from sparklog.log.clock import ClockGuard
from sparklog.log.commit import peek_commit_id
from sparklog.log.decision import Decisions, abort, decode_decisions, encode_decisions
from sparklog.log.env import Env, Moment
from sparklog.log.fields import KNOWN_WRITE_FEATURES
from sparklog.log.names import checkpoint_key, checkpoint_prefix, checkpoint_version, transactions_prefix
from sparklog.log.numbered import STALE_MS, Answer, Numbered, pause
from sparklog.storage.store import Store

CHECKPOINT_ENTRIES = 64
WAIT_AFTER_LOSSES = 3
OPEN_TRIES = 3
_LOG = logging.getLogger("sparklog.log")

Step = Callable[[Decisions], Decisions | None]
"""The state after one more entry, None if there is nothing to write; raises where the state does not allow it."""


@dataclass(frozen=True, slots=True)
class _Known:
    """A state, when it was seen to be the newest, and the newest checkpoint known by then."""

    state: Decisions
    seen: Moment
    checkpoint: int


class DecisionLog:
    """The decisions of one transactional id, with the newest state this process knows. Threads may share it."""

    def __init__(self, store: Store, transactional_id: str, env: Env, guard: ClockGuard) -> None:
        self.store = store
        self.id = transactional_id
        self.prefix = transactions_prefix(transactional_id)
        self._env = env
        self._guard = guard
        self._numbered = Numbered(store, self.prefix, env)
        self._known: _Known | None = None

    def current(self) -> Decisions:
        """The newest state known, without a request where it is younger than an hour."""
        return self._current().state

    def refresh(self) -> Decisions:
        """The newest state there is: one request that finds nothing when nothing changed."""
        known = self._known
        return (self._open() if known is None or self._is_stale(known.seen) else self._forward(known)).state

    def deciding(self, n: int) -> Decisions:
        """The newest state, looked for only where the one that is known does not decide `n`."""
        state = self.current()
        return state if state.decided(n) else self.refresh()

    def _current(self) -> _Known:
        known = self._known
        return self._open() if known is None or self._is_stale(known.seen) else known

    def _is_stale(self, seen: Moment) -> bool:
        return self._env.now().elapsed_ms(seen) > STALE_MS

    def _publish(self, found: _Known) -> _Known:
        known = self._known
        if known is None or found.state.number >= known.state.number or self._is_stale(known.seen):
            self._known = found
        return found

    def _forward(self, known: _Known, data: bytes | None = None) -> _Known:
        """Read on from a state; `data` is the next entry, if it was read already."""
        seen = self._env.now()
        first = known.state.number + 1
        found = [] if data is None else [data]
        found += self._numbered.read_forward(first + len(found))
        if self._is_stale(known.seen):
            return self._open()
        return self._publish(_Known(self._followed(known.state, found), seen, known.checkpoint))

    def _followed(self, state: Decisions, found: list[bytes]) -> Decisions:
        for data in found:
            number = state.number + 1
            entry = self._decode(data, number)
            if entry.prev_crc != state.crc:
                raise Corrupt(
                    f"the chain of decisions is broken: entry {number} was made after an entry with CRC-32C "
                    f"{entry.prev_crc}, entry {state.number} has {state.crc}; one of the two is not what was written",
                    file=self._numbered.key(number),
                )
            state = entry
        return state

    def _decode(self, data: bytes, number: int) -> Decisions:
        key = self._numbered.key(number)
        try:
            entry = decode_decisions(data, key, number)
        except Corrupt:
            # A bit that flipped on the way: read again before calling it damaged.
            entry = decode_decisions(self.store.get(key), key, number)
        if entry.id != self.id:
            raise Corrupt(f"decisions of '{self.id}' should lie here, found those of '{entry.id}'", file=key)
        return entry

    # -- opening

    def _open(self) -> _Known:
        """Open afresh: one listing, one checkpoint, the entries after it."""
        for tries in range(OPEN_TRIES):
            seen = self._env.now()
            versions = self.checkpoints()
            state = Decisions(self.id)
            for number in reversed(versions):
                found = self.checkpoint(number)
                if found is not None:
                    state = found
                    break
            at = state.number
            state = self._followed(state, self._numbered.read_forward(at + 1, ahead=True))
            missing = bool(versions) and state.number < versions[-1]
            backward = self._known is not None and state.number < self._known.state.number
            if not missing and not backward and not self._is_stale(seen):
                return self._publish(_Known(state, seen, at))
            # A directory cache may hide for a while what exists: look again before calling it lost.
            self._env.sleep(pause(self._env.random, tries))
        if missing:
            key = self._numbered.key(state.number + 1)
            raise Corrupt(f"entry {state.number + 1} of transactional id '{self.id}' is missing; restore it", file=key)
        raise Unavailable(f"the decisions of '{self.id}' show entry {state.number}, newer ones were seen; try later")

    def checkpoints(self) -> list[int]:
        """Numbers of the entries that were copied as checkpoints, in order."""
        found = (checkpoint_version(info.key) for info in self.store.list(checkpoint_prefix(self.prefix)))
        return sorted(number for number in found if number is not None)

    def checkpoint(self, number: int) -> Decisions | None:
        """The entry in a checkpoint; None if it is damaged or gone: the one before will do."""
        key = checkpoint_key(self.prefix, number)
        try:
            found = decode_decisions(self.store.get(key), key, number)
            return found if found.id == self.id else None
        except (Corrupt, NotFound) as error:
            _LOG.warning("passing over checkpoint %s of transactional id %s: %s", number, self.id, error)
            return None

    # -- writing

    def write(self, step: Step) -> Decisions:
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

    def abort(self, n: int, reason: str) -> Decisions:
        """ABORT `n` unless it is decided; the state says what it is now."""
        return self.write(lambda base: abort(base, n, reason))

    def _reread(self, known: _Known | None = None) -> _Known:
        known = self._known if known is None else known
        return self._open() if known is None or self._is_stale(known.seen) else self._forward(known)

    def _drawn_up(self, draft: Decisions, base: Decisions, commit_id: str) -> tuple[Decisions, bytes]:
        unknown = sorted(set(base.write_features) - KNOWN_WRITE_FEATURES)
        if unknown:
            raise BadRequest(
                f"transactional id '{self.id}' needs the sparklog features {', '.join(unknown)}; upgrade sparklog"
            )
        entry = replace(
            draft,
            number=base.number + 1,
            commit_id=commit_id,
            prev_crc=base.crc,
            time_ms=max(self._env.wall_ms(), base.time_ms),
        )
        data = encode_decisions(entry)
        # Read back before it is written: what no reader would take must never lie in the log.
        return decode_decisions(data, self._numbered.key(entry.number), entry.number), data

    def _attempt(self, known: _Known, entry: Decisions, data: bytes) -> tuple[Decisions | None, _Known]:
        """Try one number: our entry as it stands in the log, or None, and the newest state."""
        seen = self._env.now()
        answer, found = self._numbered.create(entry.number, data, entry.commit_id, peek_commit_id, known.seen)
        if answer is Answer.STALLED or found is None:
            return self._trace(entry)
        if answer is Answer.OURS:
            state = entry if found == data else self._decode(found, entry.number)
            return state, self._publish(_Known(state, seen, known.checkpoint))
        # Ours cannot lie behind it: nobody goes on to a number before the one below is somebody's.
        return None, self._forward(known, found)

    def _trace(self, entry: Decisions) -> tuple[Decisions | None, _Known]:
        """After a stall: open afresh and find out whether our entry is in the log."""
        known = self._open()
        if entry.number > known.state.number:
            return None, known
        state = Decisions(self.id) if known.checkpoint < 0 else self.checkpoint(known.checkpoint)
        if state is None or entry.number < state.number:
            raise Unavailable(
                f"entry {entry.number} of transactional id '{self.id}' stalled for over an hour and its outcome is "
                "unknown; look before you write again"
            )
        while state.number < entry.number:
            state = self._followed(state, [self.store.get(self._numbered.key(state.number + 1))])
        return (entry if state.commit_id == entry.commit_id else None), known

    def _checkpoint_if_due(self, known: _Known) -> None:
        state = known.state
        if state.number - known.checkpoint < CHECKPOINT_ENTRIES:
            return
        try:
            self.store.create(checkpoint_key(self.prefix, state.number), encode_decisions(state))
        except (SparklogError, OSError) as error:
            _LOG.warning("no checkpoint of transactional id %s at entry %s: %s", self.id, state.number, error)
            return
        self._publish(replace(known, checkpoint=state.number))
