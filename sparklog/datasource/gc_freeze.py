"""Spark's worker daemon runs `gc.collect()` after every task: 28 ms over the objects of pyspark, numpy and pyarrow, and
several times that once numba is loaded.

Frozen objects are not visited. Done once everything that a kind of work needs is imported, that is after its first
use in a worker, this takes the Python CPU time of a small micro-batch from 250 to 48 ms.
"""

from __future__ import annotations

import gc

_done: set[str] = set()


def freeze_gc(after: str) -> None:
    """Collect, then exempt all objects alive now from garbage collection; once per process for each kind of work."""
    if after not in _done:
        _done.add(after)
        gc.collect()
        gc.freeze()
