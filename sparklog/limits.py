"""`Limits`: sizes, counts and periods that determine how a root is written, read and maintained.

A store contains its limits (`Store.limits`), because all code that works on a root has access to its store: topics,
journals, readers and work items. The limits are pickled with the store, so a task has the same limits as its driver.
`open_root(..., limits=...)` sets the limits. The format documentation and the cost figures assume the defaults. Tests
use small values.

Correctness does not depend on limits. Processes with different limits may share a root.
"""

from __future__ import annotations

from dataclasses import dataclass

# Timeouts that programs set. They are defined here, because a process that only plans a stream must not import groups.
SESSION_TIMEOUT_MS = 45_000
MAX_SESSION_TIMEOUT_MS = 86_400_000
GROUP_SESSION_TIMEOUTS_MS = 6_000, 1_800_000
"""The default minimum and maximum session timeout of group members in `sparklog serve`, as in a broker."""
CONSUMER_HEARTBEAT_INTERVAL_MS = 5_000
"""The heartbeat interval of members of the consumer protocol in `sparklog serve`, as in a broker."""
MAX_CONNECTIONS_PER_IP = 500
"""The default maximum number of connections from one address in `sparklog serve`."""
DEFAULT_TRANSACTION_TIMEOUT_MS = 60_000
MAX_TRANSACTION_TIMEOUT_MS = 86_400_000
"""One day. Commits and decisions are retained for seven days, so an open transaction never outlives its decision."""


@dataclass(frozen=True)
class Limits:
    """Limits of a root. Sizes are in bytes, and do not include decoded records unless the description says so."""

    # Journals and decisions
    checkpoint_commits: int = 128
    """Number of commits of a topic between two checkpoints. A checkpoint is at the end of each block of this many
    versions.
    """
    checkpoint_entries: int = 64
    """Number of entries of any other journal between two checkpoints."""
    checkpoint_bytes: int = 1 << 20
    """Size of entries after which a checkpoint is written, regardless of the number of entries."""
    cached_inline_commits: int = 256
    """Maximum number of commits, across all topics, whose records are cached after a read, for readers that follow the
    log.
    """
    cached_inline_bytes: int = 4 << 20
    """Maximum size of the records that are cached after a read."""
    tail_commits: int = 4096
    """Maximum number of commits that are retained in memory before the slice table is loaded."""
    decision_logs: int = 1_024
    """Maximum number of decision logs of a root that a process keeps open."""
    reused_ms: int = 3_600_000
    """Period in which the next write without an id may reuse the id of the last write. This period is far shorter than
    the week for which the id is retained.
    """

    # Reads
    span_bytes: int = 8 << 20
    """Maximum size of a slice that is fetched completely, and of the windows in which larger slices are fetched.

    Adjacent slices are fetched in one request.
    """
    index_min_bytes: int = 1 << 20
    """Minimum size of a slice with an index. A partial read uses the index to find its start."""
    ahead_bytes: int = 32 << 20
    """Maximum number of bytes that are read ahead (in flight and buffered) if each request requires a round trip."""
    first_ahead_bytes: int = 2 << 20
    """Initial number of bytes that are read ahead. The number is small, because many readers read only a few records.
    It increases by twice the number of consumed bytes.
    """
    fetch_bytes: int = 4 << 20
    """Approximate number of bytes that a consumer reads from a partition before it reads from the next partition."""
    range_bytes: int = 4 << 20
    """Size of a request for a part of a Kafka file that is read in place."""

    # Compaction: merging, sealing and cleaning
    filter_min_bytes: int = 1 << 20
    """Minimum size of a slice or segment with a key filter. Reading a smaller slice takes no longer than reading its
    filter.
    """
    own_file_bytes: int = 8 << 20
    """Minimum size of a merged slice that is written to a separate file, which can be deleted when the slice is sealed.
    """
    load_bytes: int = 128 << 20
    """Maximum size of the inputs of a merge that are in memory at the same time."""
    request_bytes: int = 16 << 20
    """Size of a request for adjacent inputs of a merge. If requests require a round trip, this is the total size of all
    in-flight requests.
    """
    merge_bytes: int = 128 << 20
    """Size of the input of a merge work item, unless a single output is larger."""
    merge_slices: int = 100_000
    """Maximum number of input slices of a merge work item, because its pickled plan and its commit list the slices."""
    held_bytes: int = 512 << 10
    """Small slices of a partition are buffered up to this size and sealed together, which reduces the overhead per
    slice.
    """
    seal_bytes: int = 256 << 20
    """Size of the input of a sealing work item, unless a single segment is larger."""
    seal_slices: int = 100_000
    """Maximum number of input slices of a sealing work item, unless a single segment has more slices. A task requires
    about 0.7 KB per slice.
    """
    seal_partitions: int = 128
    """Maximum number of partitions of a sealing work item, because a file may be open for each partition."""
    seal_segments: int = 500
    """Maximum number of segments of a sealing work item. Each segment is an edit, and a commit compares its edits with
    its files.
    """

    # Import of Kafka's files
    import_piece_bytes: int = 1 << 30
    """Size of an import work item of a partition. The first segment that reaches this size is the last segment of the
    item.
    """
    import_commit_bytes: int = 1 << 30
    """Number of copied bytes after which an import commits."""
    import_commit_slices: int = 10_000
    """Number of copied segments after which an import commits."""

    # Maintenance
    local_chunks: int = 20
    """Number of chunks of keys that the vacuum deletes without Spark, which takes two seconds on a local disk."""
    renew_seconds: float = 60.0
    """Time in seconds between two renewals of a lease, which expires after five minutes."""
    verify_piece_bytes: int = 256 << 20
    """Size of a verification work item. Verifying it takes one to two seconds of one core, far more than the overhead
    of a task.
    """
    verify_piece_files: int = 1_000
    """Maximum number of files of a verification work item."""
    verify_tries: int = 6
    """Number of attempts to read a log if objects are deleted during its verification."""
    backup_tries: int = 5
    """Number of attempts to make a backup if files of the source are deleted during the backup."""
    many_unsealed: int = 300_000
    """Number of unsealed slices of a topic above which writers log a warning, because the size of the topic's state and
    checkpoints increases with the number of slices.
    """
    never_compacted_slices: int = 1_000
    """Number of unsealed slices above which `sparklog doctor` warns if a topic has never been merged or sealed."""


DEFAULTS = Limits()
