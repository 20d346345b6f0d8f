"""Sizes, counts and periods that decide how a root is written, read and kept, in one value: `Limits`.

A store carries them (`Store.limits`), as everything that works on a root holds its store: topics, journals, readers,
pieces of work. They are pickled with it, so a task has the limits of its driver. `open_root(..., limits=...)` sets
them. The defaults are what the formats' documents and the figures of costs speak of; tests make them small.

No promise rests on them: processes with other limits may share a root.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """Limits of a root. Sizes are in bytes, decoded records not counted unless a comment says so."""

    # Journals and decisions.
    checkpoint_commits: int = 128
    """Commits of a topic between two checkpoints."""
    checkpoint_entries: int = 64
    """Entries of any other journal between two checkpoints."""
    checkpoint_bytes: int = 1 << 20
    """A checkpoint is due after this many bytes of entries, however few they are."""
    tail_commits: int = 4096
    """Commits kept in memory for a slice table that is not loaded; beyond, it is loaded."""
    decision_logs: int = 1_024
    """Decision logs of a root that a process keeps open."""
    reused_ms: int = 3_600_000
    """How long after a write without an id the next one may use its id: far less than the week it is kept."""

    # Maintenance.
    many_unsealed: int = 300_000
    """Unsealed slices of a topic from which on writers warn: state and checkpoints grow with them."""
    never_compacted_slices: int = 1_000
    """Unsealed slices of a topic that no run has ever merged or sealed, from which on `sparklog doctor` warns."""


DEFAULTS = Limits()
