"""Copying one partition folder of Kafka's into a root: segment boundaries kept, the last segment active (it is closed
if it holds messages of formats v0 or v1).

Kafka's bounds hold (see `sparklog.kafka.view`): the log starts at `log-start-offset-checkpoint` or at the first segment
and ends behind the last one's last batch. Segments of 0 bytes, which Kafka's cleaner leaves behind, and segments that
lie wholly below the log start have no counterpart here.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from sparklog.errors import Corrupt, Unavailable
from sparklog.format import transaction_index
from sparklog.format.abort_markers import AbortMarker, fits, united
from sparklog.format.checkpoint_files import LEADER_EPOCHS_FILE, parse_leader_epochs
from sparklog.format.control import ABORT, COMMIT
from sparklog.format.index_crc import index_crc
from sparklog.format.transaction_index import AbortedTransactions
from sparklog.kafka.damage import FAIL, TRUNCATE, OnSkipped, Skipped, log_skipped
from sparklog.kafka.directory import SegmentName, settled_segments
from sparklog.kafka.file_names import companion
from sparklog.kafka.import_segment import CopiedSegment, OldMessages, copy_segment, offset_index_of, time_index_of
from sparklog.kafka.segment_file import SegmentFile
from sparklog.kafka.transaction_state import TransactionEvents, TransactionState
from sparklog.log.env import Env
from sparklog.log.imports import ImportedPartition
from sparklog.log.kafka_open import KafkaOpen
from sparklog.log.names import append_path, file_key, is_sealed, sealed_path
from sparklog.storage.store import ObjectWriter, Store

__all__ = ["PartitionSource", "Target", "copy_partition"]


@dataclass(frozen=True, slots=True)
class PartitionSource:
    """A partition folder and what the log dir's checkpoints say of it (None: nothing)."""

    number: int
    folder: str
    log_start: int | None
    cleaned_through: int | None


@dataclass(slots=True)
class Target:
    """Where copies go: the folder of `topic` in `store`, written by somebody who has read `read_version`.

    `index_interval`: the topic's `index.interval.bytes`. `written`: keys of all files begun, for who has to give up.
    `policy`: what damage does (see `sparklog.kafka.damage`); `on_skipped` is told what it cost.
    """

    store: Store
    topic: str
    read_version: int
    index_interval: int
    env: Env
    written: list[str]
    policy: str = FAIL
    on_skipped: OnSkipped = log_skipped

    def writer(self, path: str) -> ObjectWriter:
        key = file_key(self.topic, path)
        self.written.append(key)
        return self.store.writer(key)

    def create(self, path: str, data: bytes) -> None:
        key = file_key(self.topic, path)
        self.written.append(key)
        self.store.create(key, data)


def copy_partition(source: PartitionSource, target: Target) -> ImportedPartition:
    """Copy all segments of a partition; nothing names them yet.

    `Corrupt` with file, position and offset for damage in front of the log's end that is not left out, `Unavailable` if
    a broker replaces the folder's files meanwhile.
    """
    names = settled_segments(source.folder, env=target.env)
    log_start = max(names[0].base if names else 0, source.log_start or 0)
    copies = _Copies(source.number, target, log_start)
    for name, after in zip(names, [*names[1:], None], strict=True):
        if copies.truncated:
            copies.leave_out(
                name, 0, name.size, copies.next_offset, None, "it lies behind damage, where the log was cut"
            )
        elif after is None or after.base > log_start:
            copies.add(name, after)
    log_end = max(log_start, copies.next_offset)
    return ImportedPartition(
        partition=source.number,
        log_start=log_start,
        log_end=log_end,
        cleaned_through=source.cleaned_through,
        leader_epoch=max(copies.leader_epoch, _last_epoch(source.folder)),
        files=tuple(copy.file for copy in copies.copied if copy.file is not None),
        open=copies.open(log_end),
    )


class _Copies:
    """The segments of a partition copied so far."""

    def __init__(self, partition: int, target: Target, log_start: int) -> None:
        self.copied: list[CopiedSegment] = []
        self.next_offset = 0
        self.leader_epoch = -1
        self.truncated = False
        self._partition = partition
        self._target = target
        self._log_start = log_start
        self._run = target.env.new_id()
        self._transactions = TransactionState()
        self._markers: dict[int, int] = {}
        """Producer id -> offset of its last marker."""
        self._epochs: dict[int, int] = {}

    def open(self, log_end: int) -> tuple[KafkaOpen, ...]:
        """The transactions that nothing has ended so far."""
        found = sorted(self._transactions.open.items(), key=lambda item: (item[1], item[0]))
        return tuple(
            KafkaOpen(self._partition, producer, self._epochs[producer], first, log_end) for producer, first in found
        )

    def add(self, name: SegmentName, after: SegmentName | None) -> None:
        """Copy the next segment; `after` comes behind it, None: it is the active one. Where damage truncates the log,
        a damaged segment becomes that.
        """
        try:
            copied = self._copy(name, after)
        except Corrupt:
            if self._target.policy != TRUNCATE or after is None:
                raise
            self.truncated, after = True, None
            copied = self._copy(name, after)
        self._epochs.update(copied.epochs)
        if copied.file is not None and is_sealed(copied.file.path):
            file = replace(copied.file, index_crc=(self._add_indexes(name, copied),))
            copied = replace(copied, file=file)
        self.copied.append(copied)
        self.next_offset = max(self.next_offset, copied.next_offset)
        self.leader_epoch = max(self.leader_epoch, copied.leader_epoch)

    def leave_out(self, name: SegmentName, position: int, nbytes: int, start: int, end: int | None, why: str) -> None:
        """Report damage that was not copied."""
        target = self._target
        target.on_skipped(Skipped(target.topic, self._partition, name.path, position, nbytes, start, end, why))

    def _copy(self, name: SegmentName, after: SegmentName | None) -> CopiedSegment:
        target = self._target
        closed = sealed_path(self._partition, target.read_version, self._run, name.base)
        if after is None:
            try:
                return self._copy_to(append_path(target.read_version, target.env.new_id()), name, after)
            except OldMessages:
                pass
        return self._copy_to(closed, name, after)

    def _copy_to(self, path: str, name: SegmentName, after: SegmentName | None) -> CopiedSegment:
        target, base = self._target, name.base
        try:
            with SegmentFile(name.path) as file:
                return copy_segment(
                    file,
                    base,
                    path,
                    target.writer(path),
                    partition=self._partition,
                    last=after is None,
                    log_start=self._log_start,
                    limit=None if after is None else after.base,
                    policy=target.policy,
                    left_out=partial(self.leave_out, name),
                    aborted_by=lambda events: self._aborted(name, events),
                )
        except FileNotFoundError:
            raise Unavailable(
                f"{name.path} is gone: expected a log that nobody cleans or expires while it is imported; try again,"
                " or stop the broker first"
            ) from None

    def _aborted(self, name: SegmentName, events: TransactionEvents) -> AbortedTransactions:
        """The transactions that the next segment's ABORT markers end: as Kafka's own `.txnindex` says, where that can
        be right, and as the log says. (Kafka's also knows where those began whose first data the cleaner removed.)
        """
        markers = self._abort_markers(events)
        raw = _beside(name.path, "txnindex") if markers else None
        indexed = []
        if raw is not None:
            try:
                found = transaction_index.parse(raw, name.base)
            except Corrupt:
                found = transaction_index.none()
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

    def _add_indexes(self, name: SegmentName, copied: CopiedSegment) -> int:
        """Write the index files beside a sealed segment; their `index_crc`."""
        interval, batches = self._target.index_interval, copied.batches
        made: tuple[tuple[str, Callable[[bytes | None], bytes]], ...] = (
            ("index", lambda raw: offset_index_of(raw, name.base, batches, interval)),
            ("timeindex", lambda raw: time_index_of(raw, name.base, batches, interval)),
            ("txnindex", lambda _: copied.aborted.to_bytes()),
        )
        path = sealed_path(self._partition, self._target.read_version, self._run, name.base)
        found = []
        for suffix, make in made:
            data = make(_beside(name.path, suffix))
            found.append(data)
            if data or suffix != "txnindex":
                self._target.create(f"{path.removesuffix('log')}{suffix}", data)
        return index_crc(*found)


def _beside(log: str, suffix: str) -> bytes | None:
    """The bytes of an index file, None if there is none."""
    try:
        with open(companion(log, suffix), "rb") as source:
            return source.read()
    except FileNotFoundError:
        return None


def _last_epoch(folder: str) -> int:
    """The newest epoch of `leader-epoch-checkpoint`, -1 if the file says none: the batches have theirs as well."""
    file = os.path.join(folder, LEADER_EPOCHS_FILE)
    try:
        with open(file, "rb") as source:
            epochs = parse_leader_epochs(source.read(), file=file)
    except (FileNotFoundError, Corrupt):
        return -1
    return epochs[-1].epoch if epochs else -1
