"""The decision log of one transactional id: a log of entries (`sparklog.log.entry_log`) that decisions are asked of."""

from __future__ import annotations

from sparklog.log.clock import ClockGuard
from sparklog.log.decision import DECISIONS, Decisions, abort
from sparklog.log.entry_log import EntryLog
from sparklog.log.env import Env
from sparklog.storage.store import Store

__all__ = ["DecisionLog"]


class DecisionLog(EntryLog[Decisions]):
    """The decisions of one transactional id, with the newest state this process knows. Threads may share it."""

    def __init__(
        self, store: Store, transactional_id: str, env: Env, guard: ClockGuard, root_id: str | None = None
    ) -> None:
        super().__init__(store, DECISIONS, transactional_id, env, guard, root_id)

    def deciding(self, n: int) -> Decisions:
        """The newest state, looked for only where the one that is known does not decide `n`."""
        state = self.current()
        return state if state.decided(n) else self.refresh()

    def abort(self, n: int, reason: str) -> Decisions:
        """ABORT `n` unless it is decided; the state says what it is now."""
        return self.write(lambda base: abort(base, n, reason))
