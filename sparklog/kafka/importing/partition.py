"""Copy one partition folder of Kafka's into a root, with its segment boundaries and an active last segment.

Kafka's bounds hold (see `sparklog.kafka.in_place.view`): the log starts at `log-start-offset-checkpoint` or at the
first segment, and ends after the last batch of the last one. Segments of 0 bytes, which Kafka's cleaner leaves behind,
and segments below the log start are not copied.

A partition is copied in pieces, which are committed one by one, because a large one takes hours. A piece ends with a
segment. Segments that the topic has already are not read again. The first new segment may begin below the end of the
last import (it was active, or the cleaner has grouped segments since): its new batches go to an append file.

A closed segment may become a hard link to Kafka's file: a broker replaces and deletes such files by name, and does not
change their bytes. It truncates one only to drop records above the high watermark, so only segments below the
checkpointed high watermark are linked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

from sparklog.errors import Corrupt, Unavailable
from sparklog.format import transaction_index
from sparklog.format.checkpoint_files import TopicPartition
from sparklog.format.checksums import index_crc
from sparklog.format.transaction_index import AbortedTransactions, agrees, unite
from sparklog.kafka.importing.segment import (
    CopiedSegment,
    Lost,
    OldMessages,
    Progress,
    SegmentCopy,
    copy_segment,
    offset_index_of,
    time_index_of,
)
from sparklog.kafka.in_place.directory import SegmentName, leader_epochs, settled_segments
from sparklog.kafka.in_place.files import FilePath
from sparklog.kafka.in_place.segment_file import SegmentFile, aborted_by_index, companion
from sparklog.kafka.in_place.segment_recovery import SKIP, TRUNCATE
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
    """A partition folder, and its entries in the log dir's checkpoints (None: no entry)."""

    number: int
    folder: FilePath
    log_start: int | None
    first_dirty_offset: int | None
    high_watermark: int | None = None


@dataclass(frozen=True, slots=True)
class ImportedPart:
    """The imported part of a partition: all below `imported.end`; `open`: Kafka's open transactions in it."""

    imported: ImportedEnd
    open: tuple[KafkaOpen, ...] = ()

    @property
    def end(self) -> int:
        return self.imported.end


FRESH = ImportedPart(ImportedEnd(0))


@dataclass(frozen=True, slots=True)
class CoordinatorEntry:
    """The transaction coordinator's entry for a producer id; fields that are not named here as in `KafkaOpen`.

    * `decided`: `commit`, `abort`, or None while it is not decided; `partitions`: those that are in the transaction
    * `record`: partition and offset of its record in `__transaction_state`
    """

    transactional_id: str
    timeout_ms: int | None
    start_ms: int | None
    decided: str | None
    partitions: frozenset[TopicPartition]
    record: tuple[int, int]


@dataclass(slots=True)
class Target:
    """The folder of `topic` in `store` that copies go to. `read_version`: of the topic, for the names of new files.

    * `written`: keys of all files that were begun, which are deleted if the import fails
    * `policy`: what to do with damage (see `segment_recovery`); `on_skipped` gets what was left out
    * `coordinator`: producer id -> entry of the transaction coordinator
    * `copied`, `linked`: bytes of segments so far; `records` in them
    """

    store: Store
    topic: str
    read_version: int
    index_interval: int
    env: Env
    written: list[str]
    policy: str
    on_skipped: OnSkipped
    link: bool
    coordinator: Mapping[int, CoordinatorEntry]
    progress: Progress
    copied: int = 0
    linked: int = 0
    records: int = 0

    def begin(self, path: str) -> str:
        """Return the key of a file that is written now."""
        self.written.append(file_key(self.topic, path))
        return self.written[-1]


@dataclass(slots=True)
class _Linked:
    """A writer of an object that exists already, as a hard link to the file that is being read."""

    store: Store
    key: str

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Do nothing: the object has these bytes."""

    def close(self) -> None:
        """Do nothing: the object exists."""

    def discard(self) -> None:
        self.store.delete(self.key)


def copy_partition(
    source: PartitionSource, target: Target, before: ImportedPart = FRESH
) -> Iterator[ImportedPartition]:
    """Copy the segments of a partition after what was imported before; yield pieces, at least one, to commit.

    `Corrupt` with file, position and offset for damage in front of the log's end that is not left out, `Unavailable` if
    a broker replaces the folder's files meanwhile, `Conflict` if a batch goes across its end.
    """
    names, limits = settled_segments(source.folder, env=target.env), target.store.limits
    log_start = max(names[0].base if names else 0, source.log_start or 0)
    copies = _Copies(source, target, log_start, before)
    for name, after in zip(names, [*names[1:], None], strict=True):
        if copies.truncated:
            reason = "it is after damage, where the log was cut"
            copies.leave_out(name, Lost(0, name.size, copies.next_offset, None, reason))
        elif after is None or after.base > max(log_start, before.end):
            copies.add(name, after)
            if after is not None and copies.nbytes >= limits.import_piece_bytes and not copies.truncated:
                yield copies.piece(after.base, None)
    cleaned = source.first_dirty_offset if before.end == 0 else None
    # Batches have epochs as well.
    last_epoch = next((entry.epoch for entry in reversed(leader_epochs(source.folder))), -1)
    yield copies.piece(max(log_start, copies.next_offset), cleaned, last_epoch)


class _Copies:
    def __init__(self, source: PartitionSource, target: Target, log_start: int, before: ImportedPart) -> None:
        self.next_offset = before.end
        self.leader_epoch = -1
        self.truncated = False
        self.nbytes = 0
        """Bytes of the current piece."""
        self._source = source
        self._partition = source.number
        self._target = target
        self._log_start = log_start
        self._imported_end = before.end
        self._since = before.end
        self._last = before.imported
        self._files: list[FileSlices] = []
        self._run = target.env.new_id()
        # If the log now starts above the imported part, its open transactions are gone with their records.
        self._reported = before.open if log_start <= before.end else ()
        self._transactions = TransactionState(
            {transaction.producer: transaction.first for transaction in self._reported}
        )
        self._epochs = {transaction.producer: transaction.epoch for transaction in self._reported}

    def piece(self, log_end: int, first_dirty_offset: int | None, leader_epoch: int = -1) -> ImportedPartition:
        """End the current piece, and with it the log, at `log_end`."""
        was = {transaction.producer: transaction.first for transaction in self._reported}
        now = self._transactions.open
        ended = tuple(
            KafkaEnded(self._partition, producer) for producer in sorted(was) if now.get(producer) != was[producer]
        )
        opened = self._open(log_end)
        self._last = replace(self._last, end=log_end)
        piece = ImportedPartition(
            partition=self._partition,
            log_start=min(self._log_start, log_end),
            log_end=log_end,
            first_dirty_offset=first_dirty_offset,
            leader_epoch=max(self.leader_epoch, leader_epoch),
            files=tuple(self._files),
            open=opened,
            since=self._since,
            ended=ended,
            imported=self._last,
        )
        self._files, self.nbytes, self._since, self._reported = [], 0, log_end, opened
        return piece

    def _open(self, log_end: int) -> tuple[KafkaOpen, ...]:
        reported = {(transaction.producer, transaction.first): transaction for transaction in self._reported}
        opened = []
        for producer, first in sorted(self._transactions.open.items(), key=lambda item: (item[1], item[0])):
            new = KafkaOpen(self._partition, producer, self._epochs[producer], first, log_end)
            transaction = replace(reported.get((producer, first), new), epoch=new.epoch, end=log_end)
            entry = self._target.coordinator.get(producer)
            if entry is not None:
                here = (self._target.topic, self._partition) in entry.partitions
                transaction = replace(
                    transaction,
                    transactional_id=entry.transactional_id,
                    timeout_ms=entry.timeout_ms,
                    start_ms=entry.start_ms if here else None,
                )
            opened.append(transaction)
        return tuple(opened)

    def add(self, name: SegmentName, after: SegmentName | None) -> None:
        """Copy the next segment, which `after` follows; None: it is the active one.

        Where damage truncates the log, the damaged segment becomes the active one.
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

    def leave_out(self, name: SegmentName, damage: Lost) -> None:
        target, end = self._target, damage.end
        # What reading in place leaves out has its offsets there, at the log's end as well.
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
            left_out=[],
            open=self._transactions.open,
            epochs=self._epochs,
            leader_epoch=self.leader_epoch,
        )
        if copy.last or copy.since is not None:
            copy.path = append_path(target.read_version, target.env.new_id())
            try:
                return self._copy_to(copy, name)
            except OldMessages:
                pass
        copy.path = sealed_path(self._partition, target.read_version, self._run, copy.begin)
        return self._copy_to(copy, name)

    def _copy_to(self, copy: SegmentCopy, name: SegmentName) -> CopiedSegment:
        target = self._target
        try:
            with SegmentFile(name.path) as file:
                key = target.begin(copy.path)
                linked = file.place.is_local and self._may_link(copy) and target.store.link(file.path, file.inode, key)
                writer = _Linked(target.store, key) if linked else target.store.writer(key)
                copied = copy_segment(file, writer, copy, lambda events: self._aborted(name, events), target.progress)
        except FileNotFoundError:
            raise Unavailable(
                f"{name.path} is gone: expected a log that no broker cleans or expires during the import; try again,"
                " or stop the broker first"
            ) from None
        except OldMessages:
            copy.left_out.clear()  # The second copy reports damage again.
            raise
        finally:
            for damage in copy.left_out:
                self.leave_out(name, damage)
        if copied.file is not None:
            target.copied += 0 if linked else copied.nbytes
            target.linked += copied.nbytes if linked else 0
        return copied

    def _may_link(self, copy: SegmentCopy) -> bool:
        """Return True if the whole segment is copied as it is, and no broker will truncate it."""
        if copy.last or copy.limit is None or copy.since is not None or copy.policy == SKIP:
            return False
        watermark = self._source.high_watermark
        return self._target.link and (watermark is None or copy.limit <= watermark)

    def _aborted(self, name: SegmentName, events: TransactionEvents) -> AbortedTransactions:
        """Return the transactions that the segment's ABORT markers end, by the log and by `.txnindex` where it fits.

        Kafka's index also has the beginning of those whose first data the cleaner removed.
        """
        markers = list(self._transactions.abort_markers(events))
        if not markers:
            return transaction_index.none()
        index = aborted_by_index(name.path, name.base)
        index = index.select(index.last_offsets >= self._imported_end)
        return unite([index] if agrees(index, markers) else [], markers)

    def _add_indexes(self, name: SegmentName, copied: CopiedSegment, path: str) -> int:
        """Write the index files beside a sealed segment; return their `index_crc`."""
        interval, batches = self._target.index_interval, copied.batches()
        made: tuple[tuple[str, Callable[[bytes | None], bytes]], ...] = (
            ("index", lambda raw: offset_index_of(raw, copied.base, batches, interval)),
            ("timeindex", lambda raw: time_index_of(raw, copied.base, batches, interval)),
            ("txnindex", lambda _: copied.aborted.to_bytes()),
        )
        indexes = []
        for suffix, make in made:
            data = make(companion(name.path, suffix).data() if copied.base == name.base else None)
            indexes.append(data)
            if data or suffix != "txnindex":
                key = self._target.begin(f"{path.removesuffix('log')}{suffix}")
                create_or_read(self._target.store, key, data, self._target.env)
        return index_crc(*indexes)
