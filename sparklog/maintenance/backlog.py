"""Work that waits for a job on a topic: since when, by which config, and how long that may last.

How long work may wait is what the config itself says, within bounds: two hours at least, as jobs run every hour, and 25
hours at most, a day and a late start.
"""

from __future__ import annotations

from dataclasses import dataclass

from sparklog.units import HOUR_MS

LEAST_WAIT_MS, MOST_WAIT_MS = 2 * HOUR_MS, 25 * HOUR_MS


def allowed_wait_ms(config_ms: int) -> int:
    """Return how long work may wait that a config of so many ms asks for."""
    return min(max(config_ms, LEAST_WAIT_MS), MOST_WAIT_MS)


@dataclass(frozen=True, slots=True)
class Due:
    """Work that a config asks for. `since_ms`: by times of records, -1: not known; `sealing`: sealing alone does it."""

    job: str
    why: str
    since_ms: int = -1
    allowed_ms: int = MOST_WAIT_MS
    sealing: bool = False


@dataclass(frozen=True, slots=True)
class Backlog:
    """Work that a topic holds for the jobs; None where a job did not look, or there is none.

    `dirty_ratio`: of the dirtiest partition, with what a run would seal first; `oldest_expired_ms`: the time of the
    oldest record that retention would take.
    """

    unsealed_bytes: int | None = None
    dirty_ratio: float | None = None
    oldest_expired_ms: int | None = None
    due: tuple[Due, ...] = ()
