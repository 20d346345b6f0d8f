"""Seeds of the random simulations: a few of them in every run, many in the slow one.

Each simulation has its numbers here. SPARKLOG_SEEDS (`make test-slow SEEDS=1000`) replaces those of the slow run.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import settings

SLOW_FROM = 10_000
"""The slow run begins here: it tries other seeds than every run does."""


@dataclass(frozen=True)
class Seeds:
    """How many seeds of one simulation are tried, and how many of them by one test; `first`: the first of every run."""

    every_run: int
    slow_run: int
    chunk: int
    slow_chunk: int
    first: int = 0

    def every_range(self) -> range:
        """Return the seeds of every run."""
        return range(self.first, self.first + self.every_run)

    def few(self) -> list[Any]:
        """Return the ranges of every run, as parameters of a test."""
        return _chunks(self.first, self.every_run, self.chunk)

    def many(self) -> list[Any]:
        """Return the ranges of the slow run, as parameters of a test."""
        return _chunks(SLOW_FROM, int(os.environ.get("SPARKLOG_SEEDS") or self.slow_run), self.slow_chunk)


def _chunks(first: int, count: int, chunk: int) -> list[Any]:
    starts = range(first, first + count, chunk)
    ranges = [range(start, min(start + chunk, first + count)) for start in starts]
    return [pytest.param(each, id=f"{each[0]}-{each[-1]}") for each in ranges]


def thinned(step: int) -> list[Any]:
    """Return the parameters `step` of a test over many cases: each step-th in every run, all in the slow one."""
    return [step, pytest.param(1, id="all", marks=pytest.mark.slow)]


def first_of(cases: Sequence[Any], few: int) -> list[Any]:
    """Return all these cases as parameters of a test: the first few for every run, all others for the slow one."""
    rest = (case if isinstance(case, tuple) else (case,) for case in cases[few:])
    return [*cases[:few], *(pytest.param(*values, marks=pytest.mark.slow) for values in rest)]


def examples(every_run: int, slow_run: int) -> settings:
    """Return how many examples Hypothesis makes up: few where they are always the same, many in the slow run."""
    derandomized = settings.get_profile("sparklog").derandomize
    return settings(max_examples=every_run if derandomized else slow_run, deadline=None)


def seeds_of(parameters: Sequence[tuple[str, object]]) -> int:
    """Count the seeds that a test with these parameters tries."""
    return sum(
        len(value) if isinstance(value, range) else 1
        for name, value in parameters
        if (name == "seeds" and isinstance(value, range)) or name == "seed"
    )


LOG = Seeds(every_run=20, slow_run=20_000, chunk=20, slow_chunk=1_000)
LOG_INLINE = Seeds(every_run=10, slow_run=4_000, chunk=10, slow_chunk=500)
LOG_LOST = Seeds(every_run=20, slow_run=2_000, chunk=20, slow_chunk=500, first=24)
LOG_LATE = Seeds(every_run=2, slow_run=1_000, chunk=2, slow_chunk=500, first=6)
TRANSACTIONS_LOST = Seeds(every_run=8, slow_run=1_000, chunk=8, slow_chunk=200)
MEMBERS_LOST = Seeds(every_run=8, slow_run=1_000, chunk=8, slow_chunk=200)
REPLACED_ROOTS = Seeds(every_run=15, slow_run=500, chunk=15, slow_chunk=500)
LYING_STORES = Seeds(every_run=12, slow_run=600, chunk=12, slow_chunk=300)
TRANSACTIONS = Seeds(every_run=60, slow_run=10_000, chunk=60, slow_chunk=1_000)
TRANSACTIONS_INLINE = Seeds(every_run=40, slow_run=2_000, chunk=40, slow_chunk=500)
TRANSACTIONS_WITH_CACHES = Seeds(every_run=25, slow_run=600, chunk=25, slow_chunk=200)
TRANSACTIONS_WITH_DELETIONS = Seeds(every_run=6, slow_run=600, chunk=6, slow_chunk=200)
TRANSACTIONS_HIDDEN = Seeds(every_run=12, slow_run=600, chunk=12, slow_chunk=200)
EXPIRY = Seeds(every_run=8, slow_run=1_000, chunk=8, slow_chunk=200)
MEMBERS = Seeds(every_run=40, slow_run=4_000, chunk=40, slow_chunk=500)
MIXED_MEMBERS = Seeds(every_run=40, slow_run=4_000, chunk=40, slow_chunk=500)
CONSUMER_PROTOCOL = Seeds(every_run=40, slow_run=4_000, chunk=40, slow_chunk=500)
MEMBERS_WITH_CACHES = Seeds(every_run=8, slow_run=600, chunk=8, slow_chunk=200)
MEMBERS_IN_A_BUCKET = Seeds(every_run=8, slow_run=600, chunk=8, slow_chunk=200)
CONSUMERS = Seeds(every_run=2, slow_run=400, chunk=2, slow_chunk=50)
MAINTENANCE = Seeds(every_run=13, slow_run=2_000, chunk=13, slow_chunk=200, first=62)
MAINTENANCE_LOST = Seeds(every_run=2, slow_run=300, chunk=2, slow_chunk=50)
MAINTENANCE_INLINE = Seeds(every_run=6, slow_run=1_000, chunk=6, slow_chunk=100)
INTERLEAVED = Seeds(every_run=12, slow_run=1_000, chunk=12, slow_chunk=100, first=108)
LEASES = Seeds(every_run=4, slow_run=400, chunk=4, slow_chunk=100)
WEEKS = Seeds(every_run=1, slow_run=40, chunk=1, slow_chunk=10)
RETENTION = Seeds(every_run=4, slow_run=2_000, chunk=4, slow_chunk=100)
VERIFICATION = Seeds(every_run=4, slow_run=600, chunk=4, slow_chunk=100)
BACKUPS = Seeds(every_run=3, slow_run=390, chunk=3, slow_chunk=30)
BACKUPS_INLINE = Seeds(every_run=2, slow_run=200, chunk=2, slow_chunk=20)
REPARTITIONS = Seeds(every_run=3, slow_run=600, chunk=3, slow_chunk=100)
TABLE_COPIES = Seeds(every_run=15, slow_run=3_000, chunk=15, slow_chunk=300)
REJECTED_TABLE_COPIES = Seeds(every_run=3, slow_run=300, chunk=3, slow_chunk=300)
TABLE_COPIES_IN_ROOT = Seeds(every_run=10, slow_run=2_000, chunk=10, slow_chunk=250)
CONTENDED_TABLE_COPIES = Seeds(every_run=5, slow_run=1_000, chunk=5, slow_chunk=250)
TABLES = Seeds(every_run=2, slow_run=300, chunk=2, slow_chunk=50)
FAILING_THREADS = Seeds(every_run=20, slow_run=600, chunk=20, slow_chunk=100, first=30)
# Of a store that behaves like S3 (`sparklog.testing.BucketStore`).
LOG_IN_A_BUCKET = Seeds(every_run=18, slow_run=1_200, chunk=18, slow_chunk=400)
TRANSACTIONS_IN_A_BUCKET = Seeds(every_run=40, slow_run=600, chunk=40, slow_chunk=200)
MAINTENANCE_IN_A_BUCKET = Seeds(every_run=3, slow_run=200, chunk=3, slow_chunk=50)
RETENTION_IN_A_BUCKET = Seeds(every_run=1, slow_run=40, chunk=1, slow_chunk=20)
BACKUPS_IN_A_BUCKET = Seeds(every_run=2, slow_run=100, chunk=2, slow_chunk=25)
BACKUPS_WITH_CACHES = Seeds(every_run=0, slow_run=250, chunk=25, slow_chunk=25)
