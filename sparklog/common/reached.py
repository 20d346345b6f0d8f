"""Counters of named situations: guards, retries and rare branches of the protocols that simulations must reach.

    if expired:
        reached("groups: a member whose session timed out is removed")

Only tests count (`count_reached`); elsewhere, a call does nothing. The names are string literals, so that a report can
list those that no simulation ever reached: such a branch is dead or untested.
"""

from __future__ import annotations

from collections import Counter

_counts: Counter[str] | None = None


def reached(situation: str) -> None:
    """Count a situation if counting is on."""
    if _counts is not None:
        _counts[situation] += 1


def count_reached(counts: Counter[str] | None) -> None:
    """Count into `counts` from now on; None turns counting off."""
    global _counts
    _counts = counts
