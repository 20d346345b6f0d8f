"""`Limits`: sizes, counts and periods that control how a root is written, read and maintained.

A store carries its limits (`Store.limits`), because everything that works on a root has its store: topics, journals,
readers, work items. They are pickled with the store, so a task has the limits of its driver. `open_root(...,
limits=...)` sets them. The format documents and cost figures assume the defaults; tests use small values.

Correctness does not depend on limits: processes with different limits may share a root.
"""

from __future__ import annotations

from dataclasses import dataclass

# Timeouts that programs set. They are here because a process that only plans a stream must not import groups.
SESSION_TIMEOUT_MS = 45_000
MAX_SESSION_TIMEOUT_MS = 86_400_000
GROUP_SESSION_TIMEOUTS_MS = 6_000, 1_800_000
"""The default minimum and maximum of group members' session timeouts in `sparklog serve`, as in a broker."""
MAX_CONNECTIONS_PER_IP = 500
"""The default maximum number of connections from one address in `sparklog serve`."""
DEFAULT_TRANSACTION_TIMEOUT_MS = 60_000
MAX_TRANSACTION_TIMEOUT_MS = 86_400_000
"""One day: commits and decisions are kept for seven, so an open transaction never outlives its decision."""


@dataclass(frozen=True)
class Limits:
    """Limits of a root. Sizes are in bytes, without decoded records unless the comment says otherwise."""

    # Journals and decisions.
    checkpoint_commits: int = 128
    """Commits of a topic between two checkpoints, which are at the end of each block of this many numbers."""
    checkpoint_entries: int = 64
    """Entries of any other journal between two checkpoints."""
    checkpoint_bytes: int = 1 << 20
    """Bytes of entries after which a checkpoint is due, regardless of their number."""
    cached_inline_commits: int = 256
    """Commits, across all topics, whose records are cached after they were read, for readers that follow the log."""
    cached_inline_bytes: int = 4 << 20
    """Maximum size of these cached records."""
    tail_commits: int = 4096
    """Commits kept in memory for a slice table that is not loaded; after more commits, the table is loaded."""
    decision_logs: int = 1_024
    """Decision logs of a root that a process keeps open."""
    reused_ms: int = 3_600_000
    """Period in which the next write without an id may reuse the id of the last: far less than the week it is kept."""

    # Reads.
    span_bytes: int = 8 << 20
    """Maximum size of a slice that is fetched whole, and of the windows in which larger slices are fetched.

    Adjacent slices are fetched in one request.
    """
    index_min_bytes: int = 1 << 20
    """Minimum size of a slice with an index, which a partial read uses to find its start."""
    ahead_bytes: int = 32 << 20
    """Maximum size of read-ahead, in flight and buffered, on stores where each request costs a round trip."""
    first_ahead_bytes: int = 2 << 20
    """Initial size of read-ahead, which grows by twice the consumed bytes: many readers need only a few records."""
    fetch_bytes: int = 4 << 20
    """Approximate bytes that a consumer reads from a partition before it turns to the next."""
    range_bytes: int = 4 << 20
    """Size of a request for a part of a Kafka file that is read in place."""

    # Compaction: merging, sealing, cleaning.
    filter_min_bytes: int = 1 << 20
    """Minimum size of a slice or segment with a key filter; a smaller one is read as fast as its filter."""
    own_file_bytes: int = 8 << 20
    """Minimum size of a merged slice that gets a file of its own, which can be deleted as soon as it is sealed."""
    load_bytes: int = 128 << 20
    """Inputs of a merge that are in memory at the same time."""
    request_bytes: int = 16 << 20
    """Size of a request for adjacent inputs of a merge; on stores with round trips, of all its requests in flight."""
    merge_bytes: int = 128 << 20
    """Input of one merge work item, unless a single output is larger."""
    merge_slices: int = 100_000
    """Input slices of one merge work item: its pickled plan and its commit list them."""
    held_bytes: int = 512 << 10
    """Small slices of a partition are buffered up to this size and sealed together, which saves overhead per slice."""
    seal_bytes: int = 256 << 20
    """Input of one sealing work item, unless a single segment is larger."""
    seal_slices: int = 100_000
    """Input slices of one sealing work item, unless a single segment has more. A task needs about 0.7 KB for each."""
    seal_partitions: int = 128
    """Partitions of one sealing work item: a file may be open for each."""
    seal_segments: int = 500
    """Segments of one sealing work item: each is an edit, and a commit compares its edits with its files."""

    # Import of Kafka's files.
    import_piece_bytes: int = 1 << 30
    """Size of an import work item of a partition: the first segment that reaches it is the last."""
    import_commit_bytes: int = 1 << 30
    """Copied bytes after which an import commits."""
    import_commit_slices: int = 10_000
    """Copied segments after which an import commits."""

    # Maintenance.
    local_chunks: int = 20
    """Chunks of keys that the vacuum deletes without Spark: two seconds on a local disk."""
    renew_seconds: float = 60.0
    """Time between two renewals of a lease, which lasts five minutes."""
    verify_piece_bytes: int = 256 << 20
    """Size of a verification work item: one to two seconds of one core, far more than a task costs."""
    verify_piece_files: int = 1_000
    """Files of a verification work item."""
    verify_tries: int = 6
    """Attempts to read a log whose objects are deleted during its verification."""
    backup_tries: int = 5
    """Attempts to make a backup whose source loses files in the meantime."""
    many_unsealed: int = 300_000
    """Unsealed slices of a topic at which writers warn: its state and checkpoints grow with them."""
    never_compacted_slices: int = 1_000
    """Unsealed slices of a topic without any merge or seal at which `sparklog doctor` warns."""


DEFAULTS = Limits()
