"""Copying one partition folder of Kafka's into a root: segment boundaries kept, the last segment active (it is closed
if it holds messages of formats v0 or v1).

Kafka's bounds hold (see `sparklog.kafka.in_place.view`): the log starts at `log-start-offset-checkpoint` or at the
first segment and ends behind the last one's last batch. Segments of 0 bytes, which Kafka's cleaner leaves behind, and
segments that lie wholly below the log start have no counterpart here.

A partition is taken in pieces, so that what was copied counts although the rest may take hours: a piece ends where a
segment does. What the topic has already is not looked at again. The first segment above that may begin below it (it was
active, or the cleaner has grouped segments since): its batches from there on go to an append file.

A closed segment may become a link to Kafka's file: a broker replaces and deletes such files by their names and does not
touch their bytes. It cuts one only to give up records, so those alone are linked that lie below the high watermark
that the broker last wrote down.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from sparklog.errors import Corrupt, Unavailable
from sparklog.format import transaction_index
from sparklog.format.checkpoint_files import TopicPartition
from sparklog.format.checksums import index_crc
from sparklog.format.control import ABORT, COMMIT, AbortMarker, fits, united
from sparklog.format.transaction_index import AbortedTransactions
from sparklog.kafka.importing.endings import Endings
from sparklog.kafka.importing.segment import (
    CopiedSegment,
    OldMessages,
    Progress,
    copy_segment,
    offset_index_of,
    silent,
    time_index_of,
)
from sparklog.kafka.in_place.damage import FAIL, SKIP, TRUNCATE, OnSkipped, Skipped, log_skipped
from sparklog.kafka.in_place.directory import SegmentName, file_bytes, leader_epochs, settled_segments
from sparklog.kafka.in_place.file_names import companion
from sparklog.kafka.in_place.segment_file import SegmentFile
from sparklog.kafka.in_place.transaction_state import TransactionEvents, TransactionState
from sparklog.log.journal.env import Env
from sparklog.log.journal.names import append_path, file_key, is_sealed, sealed_path
from sparklog.log.state.imports import ImportedPartition
from sparklog.log.state.kafka_source import ImportedEnd, KafkaEnded, KafkaOpen
from sparklog.log.state.slices import FileSlices
from sparklog.storage.store import ObjectWriter, Store

_LeftOut: TypeAlias = tuple[int | None, int, int, int | None, str]
"""Position, bytes, first offset, offset behind it, reason: as in `Skipped`."""
PIECE_BYTES = 1 << 30
"""A piece is ended by the first segment that takes it to this."""


@dataclass(frozen=True, slots=True)
class PartitionSource:
    """A partition folder and what the log dir's checkpoints say of it (None: nothing)."""

    number: int
    folder: str
    log_start: int | None
    cleaned_through: int | None
    high_watermark: int | None = None


@dataclass(frozen=True, slots=True)
class Known:
    """What the root has of a partition: all below `imported.end`; `open`: Kafka's transactions that are open there."""

    imported: ImportedEnd
    open: tuple[KafkaOpen, ...] = ()

    @property
    def end(self) -> int:
        return self.imported.end


FRESH = Known(ImportedEnd(0))


@dataclass(frozen=True, slots=True)
class CoordinatorEntry:
    """What Kafka's transaction coordinator knows of a producer id; fields that are not named here as in `KafkaOpen`.

    * `decided`: `commit`, `abort`, or None while it is not decided; `partitions`: those that are in the transaction
    * `record`: partition and offset of the record in `__transaction_state` that says so
    """

    transactional_id: str
    timeout_ms: int | None
    start_ms: int | None
    decided: str | None
    partitions: frozenset[TopicPartition]
    record: tuple[int, int]


@dataclass(slots=True)
class Target:
    """Where copies go: the folder of `topic` in `store`. `read_version`: of the topic, for the names of new files.

    * `index_interval`: the topic's `index.interval.bytes`
    * `written`: keys of all files that were begun, which are deleted if the import fails
    * `policy`: what damage does (see `sparklog.kafka.in_place.damage`); `on_skipped` is told what it cost
    * `link`: closed segments become links where that can be
    * `coordinator`: producer id -> what is known of its transaction
    * `copied`, `linked`: bytes of segments so far; `records` in them
    """

    store: Store
    topic: str
    read_version: int
    index_interval: int
    env: Env
    written: list[str]
    policy: str = FAIL
    on_skipped: OnSkipped = log_skipped
    link: bool = False
    coordinator: Mapping[int, CoordinatorEntry] = field(default_factory=dict)
    progress: Progress = silent
    copied: int = 0
    linked: int = 0
    records: int = 0

    def writer(self, path: str) -> ObjectWriter:
        key = file_key(self.topic, path)
        self.written.append(key)
        return self.store.writer(key)

    def linked_writer(self, file: SegmentFile, path: str) -> ObjectWriter | None:
        """The file as an object under a second name, None where that cannot be."""
        link = getattr(self.store, "link", None)
        key = file_key(self.topic, path)
        if not self.link or link is None or not link(file.path, file.inode, key):
            return None
        self.written.append(key)
        return _Linked(self.store, key)

    def create(self, path: str, data: bytes) -> None:
        key = file_key(self.topic, path)
        self.written.append(key)
        self.store.create(key, data)


class _Linked:
    """Takes the place of a writer where the object is there already, as a link to the file that is being read."""

    def __init__(self, store: Store, key: str) -> None:
        self._store = store
        self._key = key

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """It holds these bytes."""

    def close(self) -> None:
        """It is there."""

    def discard(self) -> None:
        self._store.delete(self._key)


def copy_partition(source: PartitionSource, target: Target, known: Known = FRESH) -> Iterator[ImportedPartition]:
    """Copy all segments of a partition behind what is `known`, piece by piece; nothing names the files of a piece
    before it is yielded. There is at least one piece.

    `Corrupt` with file, position and offset for damage in front of the log's end that is not left out, `Unavailable` if
    a broker replaces the folder's files meanwhile, `Conflict` if a batch lies across the end of what is known.
    """
    names = settled_segments(source.folder, env=target.env)
    log_start = max(names[0].base if names else 0, source.log_start or 0)
    copies = _Copies(source, target, log_start, known)
    for name, after in zip(names, [*names[1:], None], strict=True):
        if copies.truncated:
            copies.leave_out(
                name, 0, name.size, copies.next_offset, None, "it lies behind damage, where the log was cut"
            )
        elif after is None or after.base > max(log_start, known.end):
            copies.add(name, after)
            if after is not None and copies.nbytes >= PIECE_BYTES and not copies.truncated:
                yield copies.piece(after.base, None)
    cleaned = source.cleaned_through if known.end == 0 else None
    yield copies.piece(max(log_start, copies.next_offset), cleaned, _last_epoch(source.folder))


class _Copies:
    """The segments of a partition copied so far."""

    def __init__(self, source: PartitionSource, target: Target, log_start: int, known: Known) -> None:
        self.next_offset = known.end
        self.leader_epoch = -1
        self.truncated = False
        self.nbytes = 0
        """Of the piece that is being put together, as its files."""
        self._source = source
        self._partition = source.number
        self._target = target
        self._log_start = log_start
        self._known_end = known.end
        self._since = known.end
        self._last = known.imported
        self._files: list[FileSlices] = []
        self._run = target.env.new_id()
        # What was open is as gone as its records where the log starts above all that was taken.
        self._reported = known.open if log_start <= known.end else ()
        self._transactions = TransactionState({each.producer: each.first for each in self._reported})
        self._markers: dict[int, int] = {}
        """Producer id -> offset of its last marker."""
        self._epochs = {each.producer: each.epoch for each in self._reported}

    def piece(self, log_end: int, cleaned_through: int | None, leader_epoch: int = -1) -> ImportedPartition:
        """What was copied since the last one, which ends the log at `log_end`."""
        was = {each.producer: each.first for each in self._reported}
        now = self._transactions.open
        ended = tuple(KafkaEnded(self._partition, each) for each in sorted(was) if now.get(each) != was[each])
        opened = self._open(log_end)
        self._last = replace(self._last, end=log_end)
        found = ImportedPartition(
            partition=self._partition,
            log_start=min(self._log_start, log_end),
            log_end=log_end,
            cleaned_through=cleaned_through,
            leader_epoch=max(self.leader_epoch, leader_epoch),
            files=tuple(self._files),
            open=opened,
            since=self._since,
            ended=ended,
            imported=self._last,
        )
        self._files, self.nbytes, self._since, self._reported = [], 0, log_end, opened
        return found

    def _open(self, log_end: int) -> tuple[KafkaOpen, ...]:
        """The transactions that nothing has ended so far."""
        found = sorted(self._transactions.open.items(), key=lambda item: (item[1], item[0]))
        before = {(each.producer, each.first): each for each in self._reported}
        opened = []
        for producer, first in found:
            each = KafkaOpen(self._partition, producer, self._epochs[producer], first, log_end)
            entry = self._target.coordinator.get(producer)
            known = before.get((producer, first))
            if entry is not None:
                here = (self._target.topic, self._partition) in entry.partitions
                each = replace(
                    each,
                    transactional_id=entry.transactional_id,
                    timeout_ms=entry.timeout_ms,
                    start_ms=entry.start_ms if here else None,
                    decided=known.decided if known is not None else None,
                )
            elif known is not None:
                each = replace(known, epoch=each.epoch, end=log_end)
            opened.append(each)
        return tuple(opened)

    def add(self, name: SegmentName, after: SegmentName | None) -> None:
        """Copy the next segment; `after` comes behind it, None: it is the active one. Where damage truncates the log,
        a damaged segment becomes that.
        """
        try:
            copied = self._copy(name, after)
        except Corrupt:
            if self._target.policy != TRUNCATE or after is None:
                raise
            self.truncated = True
            copied = self._copy(name, after)
        self._epochs.update(copied.epochs)
        if copied.file is not None:
            file = copied.file
            if is_sealed(file.path):
                file = replace(file, index_crc=(self._add_indexes(name, copied, file.path),))
            self._files.append(file)
            self.nbytes += file.size
            self._target.records += copied.records
        if copied.last is not None:
            last = copied.last
            self._last = ImportedEnd(self._last.end, last.last, last.crc, last.epoch)
        self.next_offset = max(self.next_offset, copied.next_offset)
        self.leader_epoch = max(self.leader_epoch, copied.leader_epoch)

    def leave_out(
        self, name: SegmentName, position: int | None, nbytes: int, start: int, end: int | None, why: str
    ) -> None:
        """Report damage that was not copied."""
        target = self._target
        target.on_skipped(Skipped(target.topic, self._partition, name.path, position, nbytes, start, end, why))

    def _copy(self, name: SegmentName, after: SegmentName | None) -> CopiedSegment:
        target = self._target
        since = self._since_in(name)
        if after is None or self.truncated or since is not None:
            try:
                return self._copy_to(append_path(target.read_version, target.env.new_id()), name, after)
            except OldMessages:
                pass
        base = name.base if since is None else since
        return self._copy_to(sealed_path(self._partition, target.read_version, self._run, base), name, after)

    def _since_in(self, name: SegmentName) -> int | None:
        """Where what is new of a segment begins; None: all of it is."""
        return self._known_end if name.base < self._known_end else None

    def _copy_to(self, path: str, name: SegmentName, after: SegmentName | None) -> CopiedSegment:
        target = self._target
        told: list[_LeftOut] = []
        try:
            with SegmentFile(name.path) as file:
                linked = target.linked_writer(file, path) if self._may_link(name, after, path) else None
                copied = copy_segment(
                    file,
                    name.base,
                    path,
                    linked or target.writer(path),
                    partition=self._partition,
                    last=after is None or self.truncated,
                    log_start=self._log_start,
                    aborted_by=lambda events: self._aborted(name, events),
                    since=self._since_in(name),
                    limit=None if after is None else after.base,
                    policy=target.policy,
                    left_out=lambda *what: told.append(what),
                    endings=self._endings(told) if target.policy == SKIP else None,
                    progress=target.progress,
                )
        except FileNotFoundError:
            raise Unavailable(
                f"{name.path} is gone: expected a log that nobody cleans or expires while it is imported; try again,"
                " or stop the broker first"
            ) from None
        except OldMessages:
            told.clear()  # What is copied again is told then.
            raise
        finally:
            for what in told:
                self.leave_out(name, *what)
        if copied.file is not None:
            target.copied += 0 if linked else copied.nbytes
            target.linked += copied.nbytes if linked else 0
        return copied

    def _endings(self, told: list[_LeftOut]) -> Endings:
        def open_after(events: TransactionEvents) -> dict[int, int]:
            state = TransactionState(dict(self._transactions.open))
            state.apply(events.triples)
            return state.open

        def tell(first: int, end: int, reason: str) -> None:
            told.append((None, 0, first, end, reason))

        return Endings(open_after, self._epochs, self.leader_epoch, tell)

    def _may_link(self, name: SegmentName, after: SegmentName | None, path: str) -> bool:
        """Whether the whole segment is taken as it is, and no broker will cut it off again."""
        whole = is_sealed(path) and self._since_in(name) is None and not self.truncated
        if after is None or not whole or self._target.policy == SKIP:
            return False
        return self._source.high_watermark is None or after.base <= self._source.high_watermark

    def _aborted(self, name: SegmentName, events: TransactionEvents) -> AbortedTransactions:
        """The transactions that the next segment's ABORT markers end: as Kafka's own `.txnindex` says, where that can
        be right, and as the log says. (Kafka's also knows where those began whose first data the cleaner removed.)
        """
        markers = self._abort_markers(events)
        raw = file_bytes(companion(name.path, "txnindex")) if markers else None
        indexed = []
        if raw is not None:
            try:
                found = transaction_index.parse(raw, name.base)
            except Corrupt:
                found = transaction_index.none()
            found = found.select(found.last_offsets >= self._known_end)
            indexed = [found] if fits(found, markers) else []
        return united(indexed, markers)

    def _abort_markers(self, events: TransactionEvents) -> list[AbortMarker]:
        """Those of a segment with these events; the state goes on behind it."""
        state, found = self._transactions, []
        for at in range(0, len(events.triples), 3):
            kind, producer, offset = events.triples[at : at + 3]
            first = state.open.get(producer, -1)
            state.apply(events.triples[at : at + 3])
            if kind == ABORT:
                stable = state.first_open()
                after = self._markers.get(producer, -1)
                found.append(AbortMarker(producer, first, offset, offset + 1 if stable is None else stable, after))
            if kind in (ABORT, COMMIT):
                self._markers[producer] = offset
        return found

    def _add_indexes(self, name: SegmentName, copied: CopiedSegment, path: str) -> int:
        """Write the index files beside a sealed segment; their `index_crc`."""
        interval, batches = self._target.index_interval, copied.batches
        made: tuple[tuple[str, Callable[[bytes | None], bytes]], ...] = (
            ("index", lambda raw: offset_index_of(raw, copied.base, batches, interval)),
            ("timeindex", lambda raw: time_index_of(raw, copied.base, batches, interval)),
            ("txnindex", lambda _: copied.aborted.to_bytes()),
        )
        found = []
        for suffix, make in made:
            data = make(file_bytes(companion(name.path, suffix)) if copied.base == name.base else None)
            found.append(data)
            if data or suffix != "txnindex":
                self._target.create(f"{path.removesuffix('log')}{suffix}", data)
        return index_crc(*found)


def _last_epoch(folder: str) -> int:
    """The newest epoch of `leader-epoch-checkpoint`, -1 if the file says none: the batches have theirs as well."""
    epochs = leader_epochs(folder)
    return epochs[-1].epoch if epochs else -1
