"""Counters of named situations: guards, retries and rare branches of the protocols that simulations must reach.

    if expired:
        reached("groups: a member whose session timed out is removed")

Only tests enable the counters (`count_reached`). In other processes, a call has no effect. The names are string
literals, so that a report can list the situations that no simulation has reached. Such a branch is dead or untested.
"""

from __future__ import annotations

from collections import Counter

_counts: Counter[str] | None = None


def reached(situation: str) -> None:
    """Count a situation if counting is enabled."""
    if _counts is not None:
        _counts[situation] += 1


def count_reached(counts: Counter[str] | None) -> None:
    """Use `counts` to count situations from now on. None disables counting."""
    global _counts
    _counts = counts
