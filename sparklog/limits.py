"""Sizes, counts and periods that decide how a root is written, read and kept, in one value: `Limits`.

A store carries them (`Store.limits`), as everything that works on a root holds its store: topics, journals, readers,
pieces of work. They are pickled with it, so a task has the limits of its driver. `open_root(..., limits=...)` sets
them. The defaults are what the formats' documents and the figures of costs speak of; tests make them small.

No promise rests on them: processes with other limits may share a root.
"""

from __future__ import annotations

from dataclasses import dataclass

# Timeouts that programs set. They are here because a process that only plans a stream must not import groups.
SESSION_TIMEOUT_MS = 45_000
MAX_SESSION_TIMEOUT_MS = 86_400_000
DEFAULT_TRANSACTION_TIMEOUT_MS = 60_000
MAX_TRANSACTION_TIMEOUT_MS = 86_400_000
"""A day: commits and decisions are kept for seven, so an open transaction never outlives its decision."""


@dataclass(frozen=True)
class Limits:
    """Limits of a root. Sizes are in bytes, decoded records not counted unless a comment says so."""

    # Journals and decisions.
    checkpoint_commits: int = 128
    """Commits of a topic between two checkpoints, which are at the ends of blocks of so many numbers."""
    checkpoint_entries: int = 64
    """Entries of any other journal between two checkpoints."""
    checkpoint_bytes: int = 1 << 20
    """A checkpoint is due after this many bytes of entries, however few they are."""
    kept_tails: int = 256
    """Commits whose records stay in memory after they were read, for readers that follow the log; of all topics."""
    kept_tail_bytes: int = 4 << 20
    """The same, in bytes."""
    tail_commits: int = 4096
    """Commits kept in memory for a slice table that is not loaded; beyond, it is loaded."""
    decision_logs: int = 1_024
    """Decision logs of a root that a process keeps open."""
    reused_ms: int = 3_600_000
    """How long after a write without an id the next one may use its id: far less than the week it is kept."""

    # Reads.
    span_bytes: int = 8 << 20
    """A slice up to this size is fetched whole, several side by side in one request; a larger one in windows of it."""
    index_min_bytes: int = 1 << 20
    """A slice above this size is entered by its index where not all of it is wanted; smaller ones have none."""
    ahead_bytes: int = 32 << 20
    """Under way or waiting to be taken, where each request costs a round trip."""
    first_ahead_bytes: int = 2 << 20
    """So much of `ahead_bytes` at first, and twice what was taken on top: many readers want a few records."""
    fetch_bytes: int = 4 << 20
    """A consumer reads about this of each partition before the next one's turn."""
    range_bytes: int = 4 << 20
    """A request for a part of a file of Kafka's that is read where it is."""

    # Compaction: merging, sealing, cleaning.
    filter_min_bytes: int = 1 << 20
    """A slice or segment from this size on gets a filter of its keys; a smaller one is read as fast as its filter."""
    own_file_bytes: int = 8 << 20
    """A merged slice of this size gets a file of its own, so that it dies alone when it is sealed."""
    load_bytes: int = 128 << 20
    """Inputs of a merge that are held in memory at once."""
    request_bytes: int = 16 << 20
    """A request of a merge, for neighbours; where each costs a round trip, all that are under way."""
    merge_bytes: int = 128 << 20
    """What one piece of merging reads, unless a single output is larger."""
    merge_slices: int = 100_000
    """Inputs of one piece of merging: what its plan, pickled, and its commit have to carry."""
    held_bytes: int = 512 << 10
    """Small slices of a partition are sealed together: what a header costs would be paid for each of them."""
    seal_bytes: int = 256 << 20
    """What one piece of sealing reads, unless a single segment is larger."""
    seal_slices: int = 100_000
    """A task needs some 0.7 KB of memory for each slice. A segment with more slices is not cut."""
    seal_partitions: int = 128
    """Each partition of a piece of sealing may have a file open."""
    seal_segments: int = 500
    """Each segment is an edit, and a commit compares its edits with its files."""

    # Import of Kafka's files.
    import_piece_bytes: int = 1 << 30
    """A piece of a partition is ended by the first segment that takes it to this."""
    import_commit_bytes: int = 1 << 30
    """A commit is made once this much was copied for it."""
    import_commit_slices: int = 10_000
    """The same, in segments."""

    # Maintenance.
    local_chunks: int = 20
    """Up to this many chunks of keys the vacuum deletes without Spark: two seconds on a local disk."""
    renew_seconds: float = 60.0
    """Between two renewals of a lease, which lasts five minutes."""
    verify_piece_bytes: int = 256 << 20
    """One piece of a verification: a second or two of one core's work, far more than a task costs."""
    verify_piece_files: int = 1_000
    """The same, in files."""
    verify_tries: int = 6
    """A log whose objects are deleted while it is verified is read so often."""
    backup_tries: int = 5
    """A backup whose source loses files meanwhile is begun so often."""
    many_unsealed: int = 300_000
    """Unsealed slices of a topic from which on writers warn: state and checkpoints grow with them."""
    never_compacted_slices: int = 1_000
    """Unsealed slices of a topic that no run has ever merged or sealed, from which on `sparklog doctor` warns."""


DEFAULTS = Limits()
