"""Pauses that take no time: a clock that only they move, for what waits and goes on within a budget."""

from __future__ import annotations

from sparklog.storage.retries import BUSY_BUDGET_S, Clock, RetryPolicy


class Pauses:
    """A clock in seconds; `made`: the pauses so far."""

    def __init__(self) -> None:
        self.made: list[float] = []

    @property
    def seconds(self) -> float:
        return sum(self.made)

    def policy(self, budget_s: float = BUSY_BUDGET_S) -> RetryPolicy:
        return RetryPolicy(budget_s, Clock(lambda: self.seconds, self.made.append, lambda: 0.5))
