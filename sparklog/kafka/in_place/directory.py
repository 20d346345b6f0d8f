"""List a Kafka log dir or partition folder: segments, checkpoints, topic ids.

A log dir holds one folder `<topic>-<partition>` for each partition (split at the last dash) and small text files. A
partition folder holds segments: `<base offset, 20 digits>.log` with `.index`, `.timeindex` and, if transactions were
aborted, `.txnindex`. A suffix after the extension marks a file that changes: `.cleaned` (the log cleaner is writing
it), `.swap` (about to be renamed), `.deleted` (replaced or expired, removed later). Folders that end in `-delete`,
`-future` or `-stray` are no partitions.

The cleaner writes `<base>.log.cleaned`, renames it to `.swap` when it is whole and durable, renames the old segments to
`.deleted`, then the `.swap` to its name. (The split of an overflowing segment does the same with several new segments,
from the last to the first.) Between the renames a listing shows a hole. So a listing counts only if two in a row agree
and show no `.swap`. A swap lasts milliseconds. If one stays, the broker died in it, and the folder is read as Kafka's
next start-up (LogLoader) would leave it:

1. `.deleted` and `.cleaned` do not count.
2. A `.swap` at or above the lowest `.cleaned` does not count: its group was not complete.
3. The `.log.swap` files replace the segments from their lowest base up to their greatest next offset.
4. Every other `.swap` takes its name.

So at every moment of a swap a reader sees the old records, or those that the cleaner kept. (`.cleaned` files alone do
no harm: their origins are in place until the first of them becomes a `.swap`. A cleaner writes them for minutes, and a
crashed one leaves them behind, so a tail must not wait for them.)
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
"""Committed offsets, beside the partitions of an export."""
PROPERTIES = ".properties"
MAX_FILE_NAME = 255
"""Bytes, on all file systems in use; a topic's name may have 249."""
_SEGMENT = re.compile(r"^(\d{20})\.log$")
_SWAPPED_SEGMENT = re.compile(r"^(\d{20})\.log\.swap$")
_CLEANED_FILE = re.compile(r"^(\d{20})\..*\.cleaned$")
_PARTITION = re.compile(r"^([a-zA-Z0-9._-]{1,249})-(\d{1,10})$")
_LAST_SEGMENT = "9" * 20 + ".log"
SETTLE_TRIES = 20
SETTLE_PAUSE_SECONDS = 0.05
ABANDONED_MS = 10_000
"""A swap in a folder that did not change for so long is not waited for: its broker is dead."""


def properties_name(topic: str) -> str:
    """Return the name of an export's file of configs: the topic's, or 180 letters and a hash of it if that is longer
    than a file name may be."""
    if len(topic) + len(PROPERTIES) > MAX_FILE_NAME:
        topic = f"{topic[:180]}-{hashlib.sha256(topic.encode()).hexdigest()[:32]}"
    return topic + PROPERTIES


@dataclass(frozen=True, slots=True, order=True)
class SegmentName:
    """A `.log` file in a listing; the inode tells a replaced file from its namesake.

    `size` (bytes) and `modified` (ns) are what they were then: files that grow between two listings are still equal.
    """

    base: int
    path: FilePath
    inode: int
    size: int = field(default=0, compare=False)
    modified: int = field(default=0, compare=False)


def after_start_up(
    logs: Sequence[SegmentName],
    swaps: Sequence[SegmentName],
    lowest_cleaned: int | None,
    next_offset: Callable[[SegmentName], int],
) -> list[SegmentName]:
    """The segments that count, by base: of `.log` files, `.log.swap` files and the lowest base of a `.cleaned`."""
    valid = [swap for swap in swaps if lowest_cleaned is None or swap.base < lowest_cleaned]
    if not valid:
        return sorted(logs)
    low, high = min(valid).base, max(next_offset(swap) for swap in valid)
    bases = {swap.base for swap in valid}
    return sorted([*valid, *(log for log in logs if not low <= log.base < high and log.base not in bases)])


def next_offset_of(segment: SegmentName) -> int:
    """Return the offset after a segment's last batch, its base without one. `FileNotFoundError` if it is gone."""
    next_offset = segment.base
    with SegmentFile(segment.path) as file:
        for window in BatchWalk(file, seek(file, segment.base, 2**63 - 1)):
            next_offset = max(next_offset, int(window.headers.next_offset[-1]))
    return next_offset


def is_internal(topic: str) -> bool:
    """True for one of Kafka's internal topics, which "all topics" leaves out."""
    return topic in (CONSUMER_OFFSETS, TRANSACTION_STATE, *OTHER_INTERNAL_TOPICS)


Layout: TypeAlias = Literal["log-dir", "partition"]


def kafka_layout(path: AnyPath) -> Layout | None:
    """Return the kind of a folder: a partition (with 20-digit `.log` files), a log dir (with such folders), None."""
    folder = file_path(path)
    if not folder.is_folder():
        return None
    if _holds_segments(folder):
        return "partition"
    return "log-dir" if partition_folders(folder) else None


_LAYOUT_KEYS = 1000
_LAYOUT_TRIES = 10


def bucket_layout(folder: FilePath) -> Layout | None:
    """Return `kafka_layout` of a folder in a bucket of any size: one request as a rule, at most a dozen.

    The first keys of a listing tell a Kafka directory. Where other things come first, the folders that are named like
    partitions tell it: all but a few hold a segment, even in half a copy.
    """
    if not isinstance(folder, StorePath):
        return kafka_layout(folder)
    layout: Layout | None = None
    for key in folder.first_keys(_LAYOUT_KEYS):
        above, _, name = key.rpartition("/")
        if layout is not None and key > _LAST_SEGMENT:
            break
        if _SEGMENT.match(name) or _SWAPPED_SEGMENT.match(name):
            if not above:
                return "partition"
            layout = "log-dir" if _PARTITION.match(above) else layout
    if layout is not None:
        return layout
    partitions = [name for name in folder.folders() if _PARTITION.match(name)]
    tries = partitions[:_LAYOUT_TRIES]
    holds = any(_SEGMENT.match(key) for name in tries for key in folder.child(name).first_keys(_LAYOUT_KEYS))
    return "log-dir" if holds else None


def partition_folders(log_dir: FilePath, seen: Container[FilePath] = ()) -> dict[TopicPartition, FilePath]:
    """List the partition folders of a log dir: (topic, partition) -> folder. Those `seen` are not opened again."""
    folders: dict[TopicPartition, FilePath] = {}
    try:
        for name in log_dir.names():
            match = _PARTITION.match(name)
            if match is not None and ((folder := log_dir.child(name)) in seen or _holds_segments(folder)):
                folders[match[1], int(match[2])] = folder
    except FileNotFoundError:
        raise NotFound(f"there is no folder {log_dir}: check the path") from None
    return folders


def split_folder_name(folder: FilePath) -> TopicPartition:
    """Topic and partition of a partition folder; a folder of another name is partition 0 of a topic of that name."""
    name = folder.real.name
    match = _PARTITION.match(name)
    return (match[1], int(match[2])) if match else (name, 0)


@dataclass(frozen=True, slots=True)
class _FolderListing:
    """One look at a folder. `swapping`: there are `.swap` files, of indexes perhaps."""

    segments: tuple[SegmentName, ...]
    swaps: tuple[SegmentName, ...]
    swapping: bool
    lowest_cleaned: int | None


def settled_segments(folder: FilePath, *, env: Env = SYSTEM) -> tuple[SegmentName, ...]:
    """The segments of a partition folder in offset order, from a listing that counts (see above).

    `NotFound` if the folder is gone, `Unavailable` if it never holds still.
    """
    for tries_left in reversed(range(SETTLE_TRIES)):
        listing = _list_twice(folder)
        if listing is not None and not listing.swapping:
            return listing.segments
        if listing is not None and (not tries_left or _is_abandoned(folder, env)):
            # If a file is gone, a broker is at work after all.
            with suppress(FileNotFoundError):
                names = after_start_up(listing.segments, listing.swaps, listing.lowest_cleaned, next_offset_of)
                return tuple(names)
        env.sleep(SETTLE_PAUSE_SECONDS)
    raise Unavailable(f"{folder} keeps changing: expected two listings in a row that agree; try again")


def settled_now(folder: FilePath) -> tuple[SegmentName, ...] | None:
    """As `settled_segments`, without waiting: None if no listing counts at this moment."""
    listing = _list_twice(folder)
    return None if listing is None or listing.swapping else listing.segments


def gone_folder(folder: FilePath) -> NotFound:
    return NotFound(f"there is no folder {folder} any more: was the topic deleted?")


def never_there(error: FileNotFoundError) -> Unavailable:
    """Make the error for a segment that every listing shows, and that is gone at each open."""
    path = str(error.filename).removesuffix(".deleted")
    return Unavailable(f"expected to open {path}, which its folder lists, found it gone each time: try again")


def _list_twice(folder: FilePath) -> _FolderListing | None:
    before = _listing(folder)
    return before if before == _listing(folder) else None


def _is_abandoned(folder: FilePath, env: Env) -> bool:
    if not folder.is_local:
        return True  # No broker works in a bucket.
    try:
        changed_ms = folder.stat().st_mtime_ns // 1_000_000
    except FileNotFoundError:
        return False
    return env.wall_ms() - changed_ms > ABANDONED_MS


def _listing(folder: FilePath) -> _FolderListing:
    segments: list[SegmentName] = []
    swaps: list[SegmentName] = []
    cleaned: list[int] = []
    swapping = False
    try:
        for name in folder.names():
            swapping |= name.endswith(SWAP)
            if match := _SEGMENT.match(name):
                segments.append(_segment(int(match[1]), folder.child(name)))
            elif match := _SWAPPED_SEGMENT.match(name):
                swaps.append(_segment(int(match[1]), folder.child(name)))
            elif name.endswith(CLEANED) and (match := _CLEANED_FILE.match(name)):
                cleaned.append(int(match[1]))
    except FileNotFoundError:
        raise gone_folder(folder) from None
    return _FolderListing(tuple(sorted(segments)), tuple(sorted(swaps)), swapping, min(cleaned, default=None))


def _segment(base: int, path: FilePath) -> SegmentName:
    try:
        stat = path.stat()
    except FileNotFoundError:
        return SegmentName(base, path, -1)
    return SegmentName(base, path, stat.st_ino, stat.st_size, stat.st_mtime_ns)


def _holds_segments(folder: FilePath) -> bool:
    try:
        return any(_SEGMENT.match(name) or _SWAPPED_SEGMENT.match(name) for name in folder.names())
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return False


def offset_checkpoint(log_dir: FilePath, name: str) -> dict[TopicPartition, int]:
    """Read a `*-offset-checkpoint`, which Kafka replaces by rename, never half; empty if there is none."""
    file = log_dir.child(name)
    data = file.data()
    return {} if data is None else checkpoint_files.parse_offsets(data, file=str(file))


def topic_id(folder: FilePath, topic: str) -> str:
    """The topic's id by `partition.metadata` in one of its partition folders.

    Where that file is missing or damaged (brokers before 2.8 wrote none) it is derived from the folder's place and so
    stays the same as long as the folder does, but does not tell a re-created topic from its predecessor.
    """
    return kafka_topic_id(folder) or derived_topic_id(folder, topic)


def derived_topic_id(folder: FilePath, topic: str) -> str:
    """Return the id that a topic has by its name and the location of its folder."""
    location = f"{folder.real.parent}\n{topic}".encode()
    return base64.urlsafe_b64encode(hashlib.sha256(location).digest()[:16]).decode().rstrip("=")


def kafka_topic_id(folder: FilePath) -> str:
    """The topic's id by `partition.metadata`, empty where that is missing or damaged."""
    try:
        return checkpoint_files.parse_partition_metadata(partition_metadata(folder))
    except Corrupt:
        return ""


def leader_epochs(folder: FilePath) -> tuple[LeaderEpoch, ...]:
    """The entries of `leader-epoch-checkpoint`; none where there is no such file or it is damaged."""
    data = folder.child(checkpoint_files.LEADER_EPOCHS_FILE).data()
    try:
        return () if data is None else tuple(checkpoint_files.parse_leader_epochs(data))
    except Corrupt:
        return ()


def partition_metadata(folder: FilePath) -> bytes:
    """The bytes of `partition.metadata`, empty if there is none."""
    return folder.child(checkpoint_files.PARTITION_METADATA_FILE).data() or b""
