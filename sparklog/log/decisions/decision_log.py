"""The decision log of one transactional id: a log of entries (`sparklog.log.journal.entry_log`) that decisions are
asked of.

The newest entry forgets a COMMIT once every topic and group that it names has recorded it. That is enough for who has
seen them record it. A reader whose host still believes that "commit v + 1 of the topic is not there", because a cache
of a network file system says so, has not: to it a forgotten COMMIT looks like an ABORT. So it asks the entry that
decided, which stays for a week. Where that entry is gone, or hidden as well, the outcome is unclear, and what is
unclear counts as open until it has been unclear for longer than any cache lasts (`SETTLE_MS`).
"""

from __future__ import annotations

import logging
from collections import OrderedDict

from sparklog.errors import BadRequest, Corrupt, SparklogError
from sparklog.log.decisions.decision import DECISIONS, Decisions, abort
from sparklog.log.journal.clock import ClockGuard
from sparklog.log.journal.entry_log import EntryLog
from sparklog.log.journal.env import Env
from sparklog.log.journal.numbered_objects import SETTLE_MS
from sparklog.storage.store import Store


_LOG = logging.getLogger("sparklog.log")
REMEMBERED = 256
"""Outcomes of old transactions kept in memory: of those that some topic or group still shows open."""


class DecisionLog(EntryLog[Decisions]):
    """The decisions of one transactional id, with the newest state this process knows. Threads may share it."""

    def __init__(
        self, store: Store, transactional_id: str, env: Env, guard: ClockGuard, root_id: str | None = None
    ) -> None:
        super().__init__(store, DECISIONS, transactional_id, env, guard, root_id)
        self._outcomes: OrderedDict[int, Decisions] = OrderedDict()

    def deciding(self, n: int) -> Decisions:
        """The newest state, looked for only where the one that is known does not decide `n`."""
        state = self.current()
        return state if state.decided(n) else self.refresh()

    def outcome(self, n: int) -> Decisions | None:
        """A state that tells what became of a decided `n`: the newest, or the one that decided it.

        None while that is unclear: the newest has forgotten it and the entry that decided it is not to be seen.
        """
        state = self.current()
        if not state.decided(n) or state.is_clear(n):
            return state
        known = self._outcomes.get(n)
        if known is None:
            known = self._search(n)[0]
            if known is not None:
                self._outcomes[n] = known
                while len(self._outcomes) > REMEMBERED:
                    self._outcomes.popitem(last=False)
        return known

    def is_over(self, n: int) -> bool:
        """Whether a decided `n` has been unclear for longer than caches last: then it is recorded, or was aborted.

        By the store's clock, from the oldest entry that knows nothing of it any more. Whoever still sees it open in a
        look that began after this was asked knows that it was aborted there. False where the store cannot tell the
        time (a mount that is read-only).
        """
        info = self.store.stat(self.key(self._search(n)[1]))
        if info is None:
            return False
        try:
            return self.store.now_ms() - info.modified_ms > SETTLE_MS
        except (SparklogError, OSError):
            return False

    def abort(self, n: int, reason: str) -> Decisions:
        """ABORT `n` unless it is decided; the state says what it is now."""
        return self.write(lambda base: abort(base, n, reason))

    def _search(self, n: int) -> tuple[Decisions | None, int]:
        """The entry that decided `n`, if it can be seen, and the number of the oldest seen that decides `n` or more.

        `newest` grows along the log, so a few entries are read: in steps that double, then between two of them.
        """
        above, low, step = self.current(), 0, 1
        while low < above.number:
            at = max((low + above.number) // 2, above.number - step)
            entry, step = self._entry(at), step * 2
            if entry is None or not entry.decided(n):
                low = at + 1
                continue
            if entry.is_clear(n):
                after = above if above.number == at + 1 else self._entry(at + 1)
                if after is not None and after.prev_crc == entry.crc:
                    return entry, at
                # Not of this log: a sleeper has used a number again that was collected.
                low = at + 1
                continue
            above = entry
        return None, above.number

    def _entry(self, number: int) -> Decisions | None:
        """An entry as it lies in the store; None if it is collected, hidden or damaged."""
        data = self._numbered.read(number)
        if data is None:
            return None
        try:
            found = self.kind.decode(data, self.key(number), number)
        except (Corrupt, BadRequest) as error:
            _LOG.warning("passing over entry %s of %s: %s", number, self.kind.title(self.id), error)
            return None
        return found if found.id == self.id else None
