"""Read a Kafka log directory or partition directory in place as a `LogView`, even while a broker is running.

No files are written. Batch readers see complete batches up to the end of the log. A tailing reader (`tailing=True`)
stops at the broker's last high watermark in `replication-offset-checkpoint`, because records above the high watermark
can still be replaced.

A damaged log is read as Kafka would recover it after an unclean shutdown with the recovery point in the last segment.
The log ends after its last complete batch, and reading damage before the end is an error. Unlike Kafka, sparklog never
trusts indexes. A wrong checksum in the last segment is an error, but later batches can still be read. `corrupt_records`
selects another policy (see `segment_recovery`): skip damaged batches, or end the log before the first damaged batch, as
Kafka does if the recovery point is 0.

A lookup by timestamp returns the first record in offset order, at or above the log start, whose timestamp is not below
the target. Markers and aborted records are included. Only batches whose maxTimestamp is not below the target are
decoded. Kafka searches only the first segment that may contain the record, so Kafka may not find the record.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from sparklog.errors import BadRequest, Corrupt, NotFound, did_you_mean
from sparklog.format.batch_walk import HEADER_WINDOW_BYTES, Window, checked_batches
from sparklog.format.checkpoint_files import CLEANER_OFFSETS_FILE, HIGH_WATERMARKS_FILE, LOG_STARTS_FILE, TopicPartition
from sparklog.kafka.in_place import directory
from sparklog.kafka.in_place import segment_recovery as recovery
from sparklog.kafka.in_place.files import AnyPath, FilePath, file_path
from sparklog.kafka.in_place.partition_state import PartitionState, SegmentState
from sparklog.kafka.in_place.read_part import REMEDY, KafkaReadPart
from sparklog.kafka.in_place.segment_file import SegmentFile
from sparklog.log.journal.clocks import SYSTEM, Env
from sparklog.log.read.skipped import OnSkipped, Skipped
from sparklog.log.state.view import (
    READ_COMMITTED,
    READ_UNCOMMITTED,
    Bounds,
    OffsetRange,
    PartitionSize,
    ReadPart,
    Stored,
    TimestampOffset,
    refresh_existing,
)


def first_at_or_after(state: PartitionState, timestamp: int, log_start: int) -> TimestampOffset | None:
    """Return the first record of a partition whose timestamp (ms) is at least `timestamp` (see the module docstring).

    Raises `Corrupt` if a damaged batch may contain the record, unless the policy is `skip`.
    """
    skipping = state.policy == recovery.SKIP
    for segment in state.segments:
        is_late = segment.max_timestamp >= timestamp
        if segment.next_offset <= log_start or not (is_late or segment.is_incomplete):
            continue
        with SegmentFile(segment.name.path) as file:
            for start, end in segment.blocks_with(timestamp):
                windows = _windows(segment, file, start, end, skipping)
                records = (_in_window(window, end, timestamp, log_start, skipping) for window in windows)
                if (record := next(filter(None, records), None)) is not None:
                    return record
        if segment.is_incomplete and state.policy == recovery.FAIL:
            message = f"{segment.reason}; {REMEDY}"
            raise Corrupt(message, file=file.path, position=segment.end, offset=segment.next_offset)
    return None


def _windows(segment: SegmentState, file: SegmentFile, start: int, end: int, skipping: bool) -> Iterator[Window]:
    """Yield windows of valid batches up to position `end`.

    Raises `Corrupt` if a batch is damaged and is not skipped.
    """

    def window(position: int) -> bytes:
        return file.read(position, HEADER_WINDOW_BYTES)

    for found in checked_batches(file, start, segment.name.base, limit=segment.limit, window=window):
        if isinstance(found, Window):
            yield found
            if found.end >= end:
                return
        elif found.position >= end:
            return
        elif not skipping:
            message = f"{found.reason}; {REMEDY}"
            raise Corrupt(message, file=file.path, position=found.position, offset=found.offset)


def _in_window(window: Window, end: int, timestamp: int, log_start: int, skipping: bool) -> TimestampOffset | None:
    headers = window.headers
    candidates = (headers.max_timestamp >= timestamp) & (headers.last_offset >= log_start) & (headers.count > 0)
    candidates &= window.start + headers.position < end
    for row in np.flatnonzero(candidates).tolist():
        try:
            batch = window.select(slice(row, row + 1))
            records = batch.decode(("offset", "timestamp"), check_crc=True, start_offset=log_start)
        except Corrupt:
            if not skipping:
                raise
            continue
        late = np.flatnonzero(records.timestamp >= timestamp)
        if len(late):
            return TimestampOffset(int(records.offset[late[0]]), int(records.timestamp[late[0]]))
    return None


LOCAL_POLL_MS = 10
BUCKET_POLL_MS = 1000
"""Poll interval for a directory in a bucket. The interval is long because the directory changes only when it is copied
again, and a listing requires one request per 1,000 files.
"""
FRESH_MS = 1000


@dataclass(slots=True)
class _Partition:
    state: PartitionState
    bounds: Bounds


class KafkaView:
    """Implements `sparklog.log.state.view.LogView` for Kafka files on a disk or in a bucket."""

    def __init__(
        self,
        path: AnyPath,
        *,
        tailing: bool = False,
        corrupt_records: str = recovery.FAIL,
        on_skipped: OnSkipped = recovery.log_skipped,
        env: Env = SYSTEM,
    ) -> None:
        """Open a log directory or a partition directory.

        Args:
            path: a path or URL.
            tailing: read only records that the broker can no longer replace.
            corrupt_records: the policy for damaged batches: `fail`, `skip` or `truncate`.
            on_skipped: function that is called for each skipped range, in the process that plans or reads.

        Raises `NotFound` if `path` is neither a Kafka log directory nor a partition directory.
        """
        self._corrupt_records = recovery.check_policy(corrupt_records)
        self._on_skipped = on_skipped
        self._reported: set[Skipped] = set()
        self.path = file_path(path)
        self.location = str(self.path)
        self._tailing = tailing
        self.env = env
        self._opened_ms: int | None = env.boot_ms()
        self.layout = directory.kafka_layout(self.path)
        if self.layout is None:
            raise NotFound(
                f"{self.location} is not a Kafka directory: expected partition directories such as orders-0, which"
                " contain"
                " files such as 00000000000000000000.log, or a single partition directory"
            )
        self._single = directory.parse_topic_partition(self.path) if self.layout == "partition" else None
        self._log_dir = self.path.real.parent if self._single else self.path
        self._partitions: dict[str, dict[int, _Partition]] = {}
        self._compared: set[str] = set()
        """The topics whose ids were compared when `_shared_ids` was computed."""
        self._shared_ids: set[str] = set()

    @property
    def poll_interval_ms(self) -> int:
        return LOCAL_POLL_MS if self.path.is_local else BUCKET_POLL_MS

    def topics(self, name_filter: Callable[[str], bool] | None = None) -> list[str]:
        self._refresh_listing()
        return sorted(filter(name_filter, {topic for topic, _ in self._partition_dirs()}))

    def refresh_all(self, name_filter: Callable[[str], bool] | None = None) -> list[str]:
        return refresh_existing(self, self.topics(name_filter))

    def topic_id(self, topic: str) -> str:
        partition_dirs = self._of_topic(self._partition_dirs(), topic)
        return directory.topic_id(partition_dirs[min(partition_dirs)], topic)

    def unique_topic_id(self, topic: str) -> str:
        """Return the topic id. If another topic has the same id because a directory was copied, return a derived id.

        The first call reads the `partition.metadata` of all topics. A later call reads these files again if topics were
        added or removed.
        """
        partition_dirs = self._partition_dirs()
        of_topic = self._of_topic(partition_dirs, topic)
        names = {name for name, _ in partition_dirs}
        if names != self._compared:
            first = {name: partition_dir for (name, _), partition_dir in sorted(partition_dirs.items(), reverse=True)}
            counts = Counter(self.path.map_files(directory.kafka_topic_id, list(first.values())))
            self._compared, self._shared_ids = names, {topic_id for topic_id, count in counts.items() if count > 1}
        partition_dir = of_topic[min(of_topic)]
        topic_id = directory.topic_id(partition_dir, topic)
        return directory.derived_topic_id(partition_dir, topic) if topic_id in self._shared_ids else topic_id

    def refresh(self, topics: Sequence[str]) -> None:
        """Take a new snapshot of topics.

        The first refresh reads the headers of all batches. Later refreshes read only appended batches.
        """
        self._refresh_listing()
        starts = self._checkpoint(LOG_STARTS_FILE)
        watermarks = self._checkpoint(HIGH_WATERMARKS_FILE) if self._tailing else {}
        partition_dirs = self._partition_dirs()
        dirs_by_topic = {topic: sorted(self._of_topic(partition_dirs, topic).items()) for topic in topics}

        def refresh_partition(part: tuple[str, int, FilePath]) -> _Partition:
            topic, number, partition_dir = part
            before, key = self._partitions.get(topic, {}).get(number), (topic, number)
            policy = self._corrupt_records
            state = PartitionState(partition_dir, topic, number, self.env, policy) if before is None else before.state
            state.refresh()
            return _Partition(state, _bounds(state, starts.get(key), watermarks.get(key)))

        parts = [
            (topic, number, partition_dir) for topic in dirs_by_topic for number, partition_dir in dirs_by_topic[topic]
        ]
        partitions = self.path.map_files(refresh_partition, parts)
        for topic in dirs_by_topic:
            after: dict[int, _Partition] = {}
            for number, _ in dirs_by_topic[topic]:
                partition = next(partitions)
                for skipped in partition.state.skipped:
                    self._report(skipped)
                if partition.state.segments:
                    after[number] = partition
            self._partitions[topic] = after

    def bounds(self, topic: str) -> Mapping[int, Bounds]:
        return {number: partition.bounds for number, partition in self._snapshot(topic).items()}

    def previous_partition_counts(self, topic: str) -> Sequence[int]:
        return ()  # A Kafka directory does not contain earlier partition counts.

    def first_dirty_offsets(self, topic: str) -> Mapping[int, int]:
        cleaned = self._checkpoint(CLEANER_OFFSETS_FILE)
        return {number: cleaned.get((topic, number), 0) for number in self._snapshot(topic)}

    def partition_states(self, topic: str) -> dict[int, PartitionState]:
        return {number: partition.state for number, partition in self._snapshot(topic).items()}

    def offsets_for_timestamps(
        self, topic: str, targets: Mapping[int, int], isolation: str = READ_UNCOMMITTED
    ) -> dict[int, TimestampOffset | None]:
        records: dict[int, TimestampOffset | None] = {}
        for number, target in targets.items():
            partition = self._partition(topic, number)
            record = first_at_or_after(partition.state, target, partition.bounds.log_start)
            is_visible = record is not None and record.offset < partition.bounds.end(isolation)
            records[number] = record if is_visible else None
        return records

    def stored(self, ranges: Sequence[OffsetRange]) -> list[Stored]:
        return [self._partition(part.topic, part.partition).state.stored(part.start, part.end) for part in ranges]

    def partition_sizes(self, topic: str) -> list[PartitionSize]:
        sizes = []
        for number, partition in self._snapshot(topic).items():
            *closed, active = partition.state.segments
            sealed_bytes = sum(segment.end for segment in closed)
            records = sum(segment.records for segment in partition.state.segments)
            sizes.append(PartitionSize(topic, number, active.end, sealed_bytes, records, len(closed) + 1))
        return sizes

    def plan(self, ranges: Sequence[OffsetRange], isolation: str) -> list[ReadPart]:
        """Return one part per non-empty range, in order.

        Raises `NotFound` if an offset is out of range, and `Corrupt` if the aborted records cannot be determined
        because of a damaged batch.
        """
        if isolation not in (READ_COMMITTED, READ_UNCOMMITTED):
            raise BadRequest(f"unknown isolation level {isolation!r}: expected {READ_COMMITTED} or {READ_UNCOMMITTED}")
        nonempty = [part for part in ranges if part.end > part.start]
        parts: list[ReadPart] = []
        for part, stored in zip(nonempty, self.stored(nonempty), strict=True):
            partition = self._partition(part.topic, part.partition)
            bounds = partition.bounds
            if part.start < bounds.log_start or part.end > bounds.log_end:
                raise NotFound(
                    f"offsets {part.start} to {part.end - 1} of {part.topic}-{part.partition} are out of range: the log"
                    f" contains {bounds.log_start} to {bounds.log_end - 1}"
                )
            committed = isolation == READ_COMMITTED
            aborted = partition.state.aborted(part.start, part.end) if committed else None
            for lost, file in partition.state.unknown(part.start, part.end) if committed else ():
                reason = f"the marker that ended the transaction of producer {lost.producer} is damaged"
                self._report(Skipped(part.topic, part.partition, file, None, 0, lost.first, lost.last + 1, reason))
            policy, partition_dir = self._corrupt_records, partition.state.partition_dir
            parts.append(
                KafkaReadPart(partition_dir, part, stored.records, stored.nbytes, aborted, policy, self._on_skipped)
            )
        return parts

    def first_time(self, offsets: OffsetRange) -> int | None:
        """Return the timestamp (ms) of the first record in a range of offsets.

        Returns -1 if the record does not have a timestamp, and None if the range does not contain a record.
        """
        for part in self.plan([offsets], READ_UNCOMMITTED):
            for batch in part.read(("timestamp",), batch_bytes=1):
                if batch.num_rows:
                    return max(int(batch.column(0)[0].value), -1)
        return None

    def _refresh_listing(self) -> None:
        """List the directory again, unless it was listed very recently because the view was opened."""
        opened_ms, self._opened_ms = self._opened_ms, None
        if opened_ms is None or self.env.boot_ms() - opened_ms > FRESH_MS:
            self.path.refresh()

    def _report(self, skipped: Skipped) -> None:
        if skipped not in self._reported:
            self._reported.add(skipped)
            self._on_skipped(skipped)

    def _checkpoint(self, name: str) -> dict[TopicPartition, int]:
        try:
            return directory.offset_checkpoint(self._log_dir, name)
        except Corrupt as error:
            # A single partition directory may have been copied to another parent directory, so the checkpoints in the
            # parent directory may belong to another log.
            if self._single:
                return {}
            if self._corrupt_records != recovery.FAIL and name == LOG_STARTS_FILE:
                # Kafka also ignores this file if the file is damaged. Kafka replaces the file with an atomic rename, so
                # the file cannot be incomplete because of a concurrent write.
                recovery.warn_once(f"{error}; all logs in {self.location} therefore start at their first segments")
                return {}
            raise

    def _partition_dirs(self) -> dict[TopicPartition, FilePath]:
        if self._single:
            return {self._single: self.path}
        open_dirs = {part.state.partition_dir for topic in self._partitions.values() for part in topic.values()}
        return directory.partition_dirs(self.path, open_dirs)

    def _of_topic(self, partition_dirs: Mapping[TopicPartition, FilePath], topic: str) -> dict[int, FilePath]:
        of_topic = {number: partition_dir for (name, number), partition_dir in partition_dirs.items() if name == topic}
        if not of_topic:
            names = sorted({name for name, _ in partition_dirs})
            hint = did_you_mean(topic, names) or (f"; existing topics: {', '.join(names[:10])}" if names else "")
            raise NotFound(f"topic {topic!r} does not exist in {self.location}{hint}")
        return of_topic

    def _snapshot(self, topic: str) -> dict[int, _Partition]:
        if topic not in self._partitions:
            self.refresh([topic])
        return self._partitions[topic]

    def _partition(self, topic: str, number: int) -> _Partition:
        partitions = self._snapshot(topic)
        if number not in partitions:
            raise NotFound(
                f"topic {topic} in {self.location} has no partition {number}; its partitions are {sorted(partitions)}"
            )
        return partitions[number]


def _bounds(state: PartitionState, start: int | None, watermark: int | None) -> Bounds:
    """Return the start and end offsets of a partition. As in Kafka, the log start offset may be inside a segment."""
    log_start = max(state.first_base, start or 0)
    log_end = max(state.log_end, log_start)
    high = log_end if watermark is None else min(max(watermark, log_start), log_end)
    first_open = state.transactions.first_open()
    stable = high if first_open is None else min(max(first_open, log_start), high)
    return Bounds(log_start, log_end, stable, high)
