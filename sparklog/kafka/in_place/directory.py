"""List the contents of a Kafka log directory or partition directory: segments, checkpoints and topic ids.

A log directory contains a directory `<topic>-<partition>` for each partition and small text files. If a topic name
contains dashes, the last dash separates the topic from the partition. A partition directory contains segments: `<base
offset, 20 digits>.log` with `.index`, `.timeindex` and, if transactions were aborted, `.txnindex`. A second suffix
marks a temporary state: `.cleaned` (the log cleaner is writing the file), `.swap` (the file will be renamed) or
`.deleted` (the file was replaced or has expired, and will be deleted). Directories whose names end with `-delete`,
`-future` or `-stray` are not partitions.

The cleaner replaces segments in these steps. Steps 2 and 3 take milliseconds:

1. The cleaner writes `<base>.log.cleaned`, and renames the file to `.swap` when it is complete and durable.
2. The cleaner renames the old segments to `.deleted`.
3. The cleaner renames the `.swap` file to its final name.

To split a segment that is too large, the cleaner runs the same steps with several new segments, from the last to the
first. Between the renames, a listing has a gap. Therefore a listing is used only if the next listing is equal and
neither listing contains a `.swap` file. If a `.swap` file remains, the broker died during the swap. In this case, the
segments are determined by the same rules as in Kafka's LogLoader:

1. `.deleted` and `.cleaned` files are ignored.
2. A `.swap` file whose base offset is not below the lowest base offset of the `.cleaned` files is ignored, because its
   group is incomplete.
3. The `.log.swap` files replace the segments from their lowest base offset up to their highest next offset.
4. All other `.swap` files get their final names.

As a result, a reader sees either all old records or only the records that the cleaner retained, at any time during a
swap. `.cleaned` files can be ignored if there is no `.swap` file, because the old segments exist until the first
`.cleaned` file becomes a `.swap` file. A tailing reader must not wait until the `.cleaned` files are removed, because a
cleaner may write them for minutes, and they remain in the directory after a crash.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Callable, Container, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from sparklog.errors import Corrupt, NotFound, Unavailable
from sparklog.format import checkpoint_files
from sparklog.format.batch_walk import BatchWalk
from sparklog.format.checkpoint_files import LeaderEpoch, TopicPartition
from sparklog.kafka.in_place.files import AnyPath, FilePath, StorePath, file_path
from sparklog.kafka.in_place.segment_file import CLEANED, SWAP, SegmentFile, seek
from sparklog.log.journal.clocks import SYSTEM, Env

CONSUMER_OFFSETS = "__consumer_offsets"
TRANSACTION_STATE = "__transaction_state"
CLUSTER_METADATA = "__cluster_metadata"
OTHER_INTERNAL_TOPICS = ("__share_group_state", CLUSTER_METADATA, "__remote_log_metadata")
GROUPS_FILE = "consumer-groups.csv"
"""The file that contains the committed offsets in an export."""
PROPERTIES = ".properties"
MAX_FILE_NAME = 255
"""Maximum length of a file name in bytes on all common file systems. A topic name may have 249 bytes."""
_SEGMENT = re.compile(r"^(\d{20})\.log$")
_SWAPPED_SEGMENT = re.compile(r"^(\d{20})\.log\.swap$")
_CLEANED_FILE = re.compile(r"^(\d{20})\..*\.cleaned$")
_PARTITION = re.compile(r"^([a-zA-Z0-9._-]{1,249})-(\d{1,10})$")
_LAST_SEGMENT = "9" * 20 + ".log"
LIST_ATTEMPTS = 20
LIST_PAUSE_SECONDS = 0.05
ABANDONED_MS = 10_000
"""If a directory with `.swap` files has not changed for this time, the broker is assumed to be dead."""


def properties_name(topic: str) -> str:
    """Return the name of the file that contains the configs of a topic in an export.

    If the topic name is too long, the file name consists of the first 180 characters of the topic name and a hash.
    """
    if len(topic) + len(PROPERTIES) > MAX_FILE_NAME:
        topic = f"{topic[:180]}-{hashlib.sha256(topic.encode()).hexdigest()[:32]}"
    return topic + PROPERTIES


@dataclass(frozen=True, slots=True, order=True)
class SegmentName:
    """A `.log` file in a listing. The inode distinguishes the file from a new file that has the same name.

    `size` (bytes) and `modified` (ns) are the values in the listing. They are not compared, because a file may be
    appended to between listings.
    """

    base: int
    path: FilePath
    inode: int
    size: int = field(default=0, compare=False)
    modified: int = field(default=0, compare=False)


def segments_after_startup(
    logs: Sequence[SegmentName],
    swaps: Sequence[SegmentName],
    lowest_cleaned: int | None,
    next_offset: Callable[[SegmentName], int],
) -> list[SegmentName]:
    """Return the segments that Kafka would retain at startup, sorted by base offset (see the module docstring)."""
    valid = [swap for swap in swaps if lowest_cleaned is None or swap.base < lowest_cleaned]
    if not valid:
        return sorted(logs)
    low, high = min(valid).base, max(next_offset(swap) for swap in valid)
    bases = {swap.base for swap in valid}
    return sorted([*valid, *(log for log in logs if not low <= log.base < high and log.base not in bases)])


def next_offset_of(segment: SegmentName) -> int:
    """Return the offset after the last batch of a segment, or the base offset of an empty segment.

    Raises `FileNotFoundError` if the file does not exist.
    """
    next_offset = segment.base
    with SegmentFile(segment.path) as file:
        for window in BatchWalk(file, seek(file, segment.base, 2**63 - 1)):
            next_offset = max(next_offset, int(window.headers.next_offset[-1]))
    return next_offset


def is_internal(topic: str) -> bool:
    """Return True if the topic is an internal topic of Kafka. Internal topics are excluded when all topics are
    selected.
    """
    return topic in (CONSUMER_OFFSETS, TRANSACTION_STATE, *OTHER_INTERNAL_TOPICS)


Layout: TypeAlias = Literal["log-dir", "partition"]


def kafka_layout(path: AnyPath) -> Layout | None:
    """Return the layout of a directory: a partition directory, which contains `.log` files with 20 digits, or a log
    directory.

    Returns None if the path is neither a partition directory nor a log directory.
    """
    directory = file_path(path)
    if not directory.is_directory():
        return None
    if _has_segments(directory):
        return "partition"
    return "log-dir" if partition_dirs(directory) else None


_LAYOUT_KEYS = 1000
_LAYOUT_DIRECTORIES = 10


def bucket_layout(directory: FilePath) -> Layout | None:
    """Return the `kafka_layout` of a directory in a bucket. One request is usually sufficient, and at most twelve
    requests are sent.

    The first keys of a listing usually identify a Kafka directory. If the listing starts with other objects, the first
    directories with partition names are checked for segments. Almost all partition directories contain a segment, even
    if only a part of a log directory was copied.
    """
    if not isinstance(directory, StorePath):
        return kafka_layout(directory)
    layout: Layout | None = None
    for key in directory.first_keys(_LAYOUT_KEYS):
        above, _, name = key.rpartition("/")
        if layout is not None and key > _LAST_SEGMENT:
            break
        if _SEGMENT.match(name) or _SWAPPED_SEGMENT.match(name):
            if not above:
                return "partition"
            layout = "log-dir" if _PARTITION.match(above) else layout
    if layout is not None:
        return layout
    partitions = [name for name in directory.directories() if _PARTITION.match(name)]
    keys = (key for name in partitions[:_LAYOUT_DIRECTORIES] for key in directory.child(name).first_keys(_LAYOUT_KEYS))
    return "log-dir" if any(map(_SEGMENT.match, keys)) else None


def partition_dirs(log_dir: FilePath, known: Container[FilePath] = ()) -> dict[TopicPartition, FilePath]:
    """Return the partition directories of a log directory. Directories in `known` are not checked for segments."""
    dirs: dict[TopicPartition, FilePath] = {}
    try:
        for name in log_dir.names():
            match = _PARTITION.match(name)
            if match is not None and ((partition_dir := log_dir.child(name)) in known or _has_segments(partition_dir)):
                dirs[match[1], int(match[2])] = partition_dir
    except FileNotFoundError:
        raise NotFound(f"directory {log_dir} does not exist: check the path") from None
    return dirs


def parse_topic_partition(partition_dir: FilePath) -> TopicPartition:
    """Return the topic and partition of a partition directory.

    A directory with another name is read as partition 0 of a topic with that name.
    """
    name = partition_dir.real.name
    match = _PARTITION.match(name)
    return (match[1], int(match[2])) if match else (name, 0)


@dataclass(frozen=True, slots=True)
class _DirectoryListing:
    """A single listing of a partition directory.

    `has_swaps` is True if the directory contains a `.swap` file of a log or an index.
    """

    segments: tuple[SegmentName, ...]
    swaps: tuple[SegmentName, ...]
    has_swaps: bool
    lowest_cleaned: int | None


def list_segments(partition_dir: FilePath, *, env: Env = SYSTEM) -> tuple[SegmentName, ...]:
    """Return the segments of a partition directory in offset order. If a broker is replacing files, wait until the
    files are replaced.

    Raises `NotFound` if the directory does not exist, and `Unavailable` if it changes continuously.
    """
    for attempts_left in reversed(range(LIST_ATTEMPTS)):
        listing = _list_twice(partition_dir)
        if listing is not None and not listing.has_swaps:
            return listing.segments
        if listing is not None and (not attempts_left or _is_abandoned(partition_dir, env)):
            # If a file is missing, a broker is still running.
            with suppress(FileNotFoundError):
                names = segments_after_startup(listing.segments, listing.swaps, listing.lowest_cleaned, next_offset_of)
                return tuple(names)
        env.sleep(LIST_PAUSE_SECONDS)
    raise Unavailable(f"{partition_dir} is changing continuously: expected two equal consecutive listings; retry")


def try_list_segments(partition_dir: FilePath) -> tuple[SegmentName, ...] | None:
    """Return the segments like `list_segments`, but return None instead of waiting if a broker is replacing files."""
    listing = _list_twice(partition_dir)
    return None if listing is None or listing.has_swaps else listing.segments


def missing_partition_dir(partition_dir: FilePath) -> NotFound:
    return NotFound(f"directory {partition_dir} no longer exists: check whether the topic was deleted")


def missing_segment(error: FileNotFoundError) -> Unavailable:
    """Return the error for a segment that is listed but cannot be opened."""
    path = str(error.filename).removesuffix(".deleted")
    return Unavailable(f"{path} is listed in its directory, but did not exist when it was opened: retry")


def _list_twice(partition_dir: FilePath) -> _DirectoryListing | None:
    before = _listing(partition_dir)
    return before if before == _listing(partition_dir) else None


def _is_abandoned(partition_dir: FilePath, env: Env) -> bool:
    if not partition_dir.is_local:
        return True  # A broker never writes to a bucket.
    try:
        changed_ms = partition_dir.stat().st_mtime_ns // 1_000_000
    except FileNotFoundError:
        return False
    return env.wall_ms() - changed_ms > ABANDONED_MS


def _listing(partition_dir: FilePath) -> _DirectoryListing:
    segments: list[SegmentName] = []
    swaps: list[SegmentName] = []
    cleaned: list[int] = []
    has_swaps = False
    try:
        for name in partition_dir.names():
            has_swaps |= name.endswith(SWAP)
            if match := _SEGMENT.match(name):
                segments.append(_segment(int(match[1]), partition_dir.child(name)))
            elif match := _SWAPPED_SEGMENT.match(name):
                swaps.append(_segment(int(match[1]), partition_dir.child(name)))
            elif name.endswith(CLEANED) and (match := _CLEANED_FILE.match(name)):
                cleaned.append(int(match[1]))
    except FileNotFoundError:
        raise missing_partition_dir(partition_dir) from None
    return _DirectoryListing(tuple(sorted(segments)), tuple(sorted(swaps)), has_swaps, min(cleaned, default=None))


def _segment(base: int, path: FilePath) -> SegmentName:
    try:
        stat = path.stat()
    except FileNotFoundError:
        return SegmentName(base, path, -1)
    return SegmentName(base, path, stat.st_ino, stat.st_size, stat.st_mtime_ns)


def _has_segments(partition_dir: FilePath) -> bool:
    try:
        return any(_SEGMENT.match(name) or _SWAPPED_SEGMENT.match(name) for name in partition_dir.names())
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return False


def offset_checkpoint(log_dir: FilePath, name: str) -> dict[TopicPartition, int]:
    """Read an `*-offset-checkpoint` file, which Kafka replaces atomically.

    Return an empty dict if the file does not exist.
    """
    file = log_dir.child(name)
    data = file.data()
    return {} if data is None else checkpoint_files.parse_offsets(data, file=str(file))


def topic_id(partition_dir: FilePath, topic: str) -> str:
    """Return the topic id in `partition.metadata`, or a derived id if the file is missing or invalid.

    Brokers before version 2.8 did not write the file. The derived id depends on the path of the directory, so the id
    does not change if the topic is deleted and recreated.
    """
    return kafka_topic_id(partition_dir) or derived_topic_id(partition_dir, topic)


def derived_topic_id(partition_dir: FilePath, topic: str) -> str:
    """Return the topic id that is derived from the topic name and the path of the log directory."""
    location = f"{partition_dir.real.parent}\n{topic}".encode()
    return base64.urlsafe_b64encode(hashlib.sha256(location).digest()[:16]).decode().rstrip("=")


def kafka_topic_id(partition_dir: FilePath) -> str:
    """Return the topic id in `partition.metadata`, or an empty string if the file is missing or invalid."""
    try:
        return checkpoint_files.parse_partition_metadata(partition_metadata(partition_dir))
    except Corrupt:
        return ""


def leader_epochs(partition_dir: FilePath) -> tuple[LeaderEpoch, ...]:
    """Return the entries of `leader-epoch-checkpoint`, or an empty tuple if the file is missing or invalid."""
    data = partition_dir.child(checkpoint_files.LEADER_EPOCHS_FILE).data()
    try:
        return () if data is None else tuple(checkpoint_files.parse_leader_epochs(data))
    except Corrupt:
        return ()


def partition_metadata(partition_dir: FilePath) -> bytes:
    """Return the bytes of `partition.metadata`, or empty bytes if the file does not exist."""
    return partition_dir.child(checkpoint_files.PARTITION_METADATA_FILE).data() or b""
