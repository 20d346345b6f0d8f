"""Copy a Kafka partition directory into a root. Segment boundaries are preserved, and the last segment remains active.

The start and end of the log are the same as in Kafka (see `sparklog.kafka.in_place.view`). The log starts at the offset
in `log-start-offset-checkpoint`, or at the first segment, and ends after the last batch of the last segment. Empty
segments, which the log cleaner may create, and segments below the log start offset are not copied.

Copying a large partition takes hours, so the partition is copied in chunks of segments, and each chunk is committed
before the next one. Segments that the topic already contains are not read again. The first new segment may start below
the end of the last import, because the segment was active at that time, or because the cleaner has merged segments
since then. The new batches of this segment are written to an append file.

A closed segment may become a hard link to Kafka's file, because a broker never changes the bytes of closed segments: it
replaces and deletes the files by name. A broker truncates a segment only to remove records above the high watermark, so
only segments below the checkpointed high watermark are linked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

from sparklog.errors import Corrupt, Unavailable
from sparklog.format import transaction_index
from sparklog.format.checkpoint_files import TopicPartition
from sparklog.format.checksums import index_crc
from sparklog.format.transaction_index import AbortedTransactions, matches_markers, merge_markers
from sparklog.kafka.importing.segment import (
    CopiedSegment,
    LegacyMessages,
    Progress,
    SegmentCopy,
    SkippedRange,
    copy_segment,
    offset_index_of,
    time_index_of,
)
from sparklog.kafka.in_place.directory import SegmentName, leader_epochs, list_segments
from sparklog.kafka.in_place.files import FilePath
from sparklog.kafka.in_place.segment_file import SegmentFile, aborted_by_index, companion
from sparklog.kafka.in_place.segment_recovery import AFTER_TRUNCATION, SKIP, TRUNCATE
from sparklog.kafka.in_place.transaction_state import TransactionEvents, TransactionState
from sparklog.log.journal.clocks import Env
from sparklog.log.journal.create_object import create_or_read
from sparklog.log.journal.names import append_path, file_key, is_sealed, sealed_path
from sparklog.log.read.skipped import OnSkipped, Skipped
from sparklog.log.state.commit_intents import ImportedPartition
from sparklog.log.state.kafka_source import ImportedEnd, KafkaEnded, KafkaOpen
from sparklog.log.state.slices import FileSlices
from sparklog.storage.store import Store


@dataclass(frozen=True, slots=True)
class PartitionSource:
    """A partition directory with its entries in the checkpoint files of the log directory. A missing entry is None."""

    number: int
    partition_dir: FilePath
    log_start: int | None
    first_dirty_offset: int | None
    high_watermark: int | None = None


@dataclass(frozen=True, slots=True)
class ImportedPart:
    """The part of a partition that has been imported (up to `imported.end`), and Kafka's open transactions in this
    part.
    """

    imported: ImportedEnd
    open: tuple[KafkaOpen, ...] = ()

    @property
    def end(self) -> int:
        return self.imported.end


NOTHING_IMPORTED = ImportedPart(ImportedEnd(0))


@dataclass(frozen=True, slots=True)
class CoordinatorEntry:
    """The entry of the transaction coordinator for a producer id. The other fields are those of `KafkaOpen`.

    * `decided`: the decision, `commit` or `abort`, or None if the coordinator has not decided the transaction yet
    * `partitions`: the partitions in the transaction
    * `record`: partition and offset of the record in `__transaction_state`
    """

    transactional_id: str
    timeout_ms: int | None
    start_ms: int | None
    decided: str | None
    partitions: frozenset[TopicPartition]
    record: tuple[int, int]


@dataclass(slots=True)
class CopyTarget:
    """The topic that the segments are copied to.

    * `read_version`: version of the topic, which is part of the names of new files
    * `new_keys`: keys of all new files, which are deleted if the import fails
    * `policy`: the policy for damaged batches (see `segment_recovery`)
    * `on_skipped`: function that is called for each skipped range
    * `coordinator`: entries of the transaction coordinator by producer id
    * `copied`, `linked`: number of bytes that were copied and linked so far
    * `records`: number of imported records so far
    """

    store: Store
    topic: str
    read_version: int
    index_interval: int
    env: Env
    new_keys: list[str]
    policy: str
    on_skipped: OnSkipped
    link: bool
    coordinator: Mapping[int, CoordinatorEntry]
    progress: Progress
    copied: int = 0
    linked: int = 0
    records: int = 0

    def add_file(self, path: str) -> str:
        """Return the key of a new file, and record it in `new_keys`."""
        self.new_keys.append(file_key(self.topic, path))
        return self.new_keys[-1]


@dataclass(slots=True)
class _LinkedFile:
    """A writer for a file that already exists as a hard link, so that nothing has to be written."""

    store: Store
    key: str

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Do nothing, because the object already contains these bytes."""

    def close(self) -> None:
        """Do nothing, because the object is already complete."""

    def discard(self) -> None:
        self.store.delete(self.key)


def copy_partition(
    source: PartitionSource, target: CopyTarget, before: ImportedPart = NOTHING_IMPORTED
) -> Iterator[ImportedPartition]:
    """Copy the segments of a partition that have not been imported yet, and yield chunks to commit.

    At least one chunk is yielded.

    Raises `Corrupt` with the file, position and offset if a batch before the log end is damaged and is not skipped,
    `Unavailable` if a broker replaces files during the copy, and `Conflict` if the imported part ends inside a batch.
    """
    names, limits = list_segments(source.partition_dir, env=target.env), target.store.limits
    log_start = max(names[0].base if names else 0, source.log_start or 0)
    copies = _Copies(source, target, log_start, before)
    for name, after in zip(names, [*names[1:], None], strict=True):
        if copies.truncated:
            copies.skip(name, SkippedRange(0, name.size, copies.next_offset, None, AFTER_TRUNCATION))
        elif after is None or after.base > max(log_start, before.end):
            copies.add(name, after)
            if after is not None and copies.nbytes >= limits.import_piece_bytes and not copies.truncated:
                yield copies.chunk(after.base, None)
    cleaned = source.first_dirty_offset if before.end == 0 else None
    # The checkpoint may contain a later epoch than the batches.
    last_epoch = next((entry.epoch for entry in reversed(leader_epochs(source.partition_dir))), -1)
    yield copies.chunk(max(log_start, copies.next_offset), cleaned, last_epoch)


class _Copies:
    def __init__(self, source: PartitionSource, target: CopyTarget, log_start: int, before: ImportedPart) -> None:
        self.next_offset = before.end
        self.leader_epoch = -1
        self.truncated = False
        self.nbytes = 0
        """Number of bytes in the current chunk."""
        self._source = source
        self._partition = source.number
        self._target = target
        self._log_start = log_start
        self._imported_end = before.end
        self._since = before.end
        self._last = before.imported
        self._files: list[FileSlices] = []
        self._import_id = target.env.new_id()
        # If the log start offset is now above the imported part, the records of the open transactions have been
        # deleted.
        self._open_transactions = before.open if log_start <= before.end else ()
        self._transactions = TransactionState(
            {transaction.producer: transaction.first for transaction in self._open_transactions}
        )
        self._epochs = {transaction.producer: transaction.epoch for transaction in self._open_transactions}

    def chunk(self, log_end: int, first_dirty_offset: int | None, leader_epoch: int = -1) -> ImportedPartition:
        """Return the current chunk, which ends at `log_end`, and start the next chunk."""
        reported = {transaction.producer: transaction.first for transaction in self._open_transactions}
        is_open = self._transactions.open.items()
        ended = tuple(KafkaEnded(self._partition, row[0]) for row in sorted(reported.items()) if row not in is_open)
        open_transactions = self._open(log_end)
        self._last = replace(self._last, end=log_end)
        chunk = ImportedPartition(
            partition=self._partition,
            log_start=min(self._log_start, log_end),
            log_end=log_end,
            first_dirty_offset=first_dirty_offset,
            leader_epoch=max(self.leader_epoch, leader_epoch),
            files=tuple(self._files),
            open=open_transactions,
            since=self._since,
            ended=ended,
            imported=self._last,
        )
        self._files, self.nbytes, self._since, self._open_transactions = [], 0, log_end, open_transactions
        return chunk

    def _open(self, log_end: int) -> tuple[KafkaOpen, ...]:
        reported = {(transaction.producer, transaction.first): transaction for transaction in self._open_transactions}
        open_transactions = []
        for producer, first in sorted(self._transactions.open.items(), key=lambda item: (item[1], item[0])):
            new = KafkaOpen(self._partition, producer, self._epochs[producer], first, log_end)
            transaction = replace(reported.get((producer, first), new), epoch=new.epoch, end=log_end)
            entry = self._target.coordinator.get(producer)
            if entry is not None:
                is_participant = (self._target.topic, self._partition) in entry.partitions
                transaction = replace(
                    transaction,
                    transactional_id=entry.transactional_id,
                    timeout_ms=entry.timeout_ms,
                    start_ms=entry.start_ms if is_participant else None,
                )
            open_transactions.append(transaction)
        return tuple(open_transactions)

    def add(self, name: SegmentName, after: SegmentName | None) -> None:
        """Copy the next segment. `after` is the segment after it, or None if the segment is active.

        If the policy is `truncate`, a damaged segment becomes the active segment.
        """
        try:
            copied = self._copy(name, after)
        except Corrupt:
            if self._target.policy != TRUNCATE or after is None:
                raise
            self.truncated = True
            copied = self._copy(name, after)
        self._epochs.update(copied.epochs)
        file = copied.file
        if file is not None:
            if is_sealed(file.path):
                file = replace(file, index_crc=(self._add_indexes(name, copied, file.path),))
            self._files.append(file)
            self.nbytes += file.size
            self._target.records += copied.records
        self._last = self._last if copied.last is None else copied.last
        self.next_offset = max(self.next_offset, copied.next_offset)
        self.leader_epoch = max(self.leader_epoch, copied.leader_epoch)

    def skip(self, name: SegmentName, damage: SkippedRange) -> None:
        target, end = self._target, damage.end
        # As with reads in place, skipped records retain their offsets, even at the log end.
        self.next_offset = max(self.next_offset, 0 if end is None else end)
        target.on_skipped(Skipped(target.topic, self._partition, str(name.path), *damage))

    def _copy(self, name: SegmentName, after: SegmentName | None) -> CopiedSegment:
        target = self._target
        copy = SegmentCopy(
            path="",
            base=name.base,
            partition=self._partition,
            last=after is None or self.truncated,
            log_start=self._log_start,
            since=self._imported_end if name.base < self._imported_end else None,
            limit=None if after is None else after.base,
            policy=target.policy,
            skipped=[],
            open=self._transactions.open,
            epochs=self._epochs,
            leader_epoch=self.leader_epoch,
        )
        if copy.last or copy.since is not None:
            copy.path = append_path(target.read_version, target.env.new_id())
            try:
                return self._copy_to(copy, name)
            except LegacyMessages:
                pass
        copy.path = sealed_path(self._partition, target.read_version, self._import_id, copy.begin)
        return self._copy_to(copy, name)

    def _copy_to(self, copy: SegmentCopy, name: SegmentName) -> CopiedSegment:
        target = self._target
        try:
            with SegmentFile(name.path) as file:
                key = target.add_file(copy.path)
                can_link = file.location.is_local and self._may_link(copy)
                linked = can_link and target.store.link(file.path, file.inode, key)
                writer = _LinkedFile(target.store, key) if linked else target.store.writer(key)
                copied = copy_segment(file, writer, copy, lambda events: self._aborted(name, events), target.progress)
        except FileNotFoundError:
            raise Unavailable(
                f"{name.path} was replaced or deleted by a broker during the import: retry, or stop the broker first"
            ) from None
        except LegacyMessages:
            copy.skipped.clear()  # The second attempt reports the damage again.
            raise
        finally:
            for damage in copy.skipped:
                self.skip(name, damage)
        if copied.file is not None:
            target.copied += 0 if linked else copied.nbytes
            target.linked += copied.nbytes if linked else 0
        return copied

    def _may_link(self, copy: SegmentCopy) -> bool:
        """Return True if the entire segment is copied unchanged, and no broker can truncate the segment."""
        if copy.last or copy.limit is None or copy.since is not None or copy.policy == SKIP:
            return False
        watermark = self._source.high_watermark
        return self._target.link and (watermark is None or copy.limit <= watermark)

    def _aborted(self, name: SegmentName, events: TransactionEvents) -> AbortedTransactions:
        """Return the transactions that are aborted by a marker in the segment, according to the log and to a matching
        `.txnindex`.

        The index is also read, because it contains the first offset of a transaction even if the cleaner has removed
        its first records.
        """
        markers = list(self._transactions.abort_markers(events))
        if not markers:
            return transaction_index.none()
        index = aborted_by_index(name.path, name.base)
        index = index.select(index.last_offsets >= self._imported_end)
        return merge_markers([index] if matches_markers(index, markers) else [], markers)

    def _add_indexes(self, name: SegmentName, copied: CopiedSegment, path: str) -> int:
        """Write the index files of a sealed segment, and return their `index_crc`."""
        interval, batches = self._target.index_interval, copied.batches()
        builders: tuple[tuple[str, Callable[[bytes | None], bytes]], ...] = (
            ("index", lambda raw: offset_index_of(raw, copied.base, batches, interval)),
            ("timeindex", lambda raw: time_index_of(raw, copied.base, batches, interval)),
            ("txnindex", lambda _: copied.aborted.to_bytes()),
        )
        indexes = []
        for suffix, make in builders:
            data = make(companion(name.path, suffix).data() if copied.base == name.base else None)
            indexes.append(data)
            if data or suffix != "txnindex":
                key = self._target.add_file(f"{path.removesuffix('log')}{suffix}")
                create_or_read(self._target.store, key, data, self._target.env)
        return index_crc(*indexes)
