"""Write the files of an exported partition: copied segments, new segments, and an empty segment at the log end.

All exported batches are checked. The bytes of a copied segment are verified against the CRC-32C of the slice, and the
batch headers are read to find the leader epochs. Indexes have no checksum, and a broker trusts them. Therefore an index
is copied only if all of its entries are valid, and is rebuilt otherwise.

All leader epochs become 0. The epochs of another cluster may be higher than those of the new broker, and a Kafka
consumer ignores a leader whose epoch is lower than the epochs that the consumer has seen in batches or committed
offsets. A batch checksum does not cover the leader epoch.

A broker appends to the last segment, so the last segment must not be a copied segment, which may be a hard link to a
file of the root. Therefore an empty segment at the log end follows a copied segment, as if a broker had rolled a new
segment. An empty segment is also written if the log end offset is above the last batch.

If the first batch is above the log start offset, the first segment is named after the log start offset. If the first
batch is too far above the log start offset for relative offsets, an empty segment is added at the log start offset. The
modification time of this segment is before the timestamps of all records. Kafka uses the modification time of an empty
segment as its largest timestamp, and a lookup by timestamp reads only the first segment whose largest timestamp is not
below the target timestamp.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from sparklog.compaction.producer_state import PartitionProducers, replay
from sparklog.compaction.seal_work import SegmentOutput
from sparklog.compaction.segment_writer import SegmentWriter
from sparklog.errors import Conflict, Corrupt
from sparklog.format import transaction_index
from sparklog.format.batch_scan import crc_failures
from sparklog.format.checkpoint_files import LeaderEpoch
from sparklog.format.checksums import SUFFIXES as INDEXES
from sparklog.format.filter_batches import rewrite_headers
from sparklog.format.producer_snapshot import snapshot_to_bytes
from sparklog.format.record_batch import NO_LEADER_EPOCH, BatchHeaders, BytesLike
from sparklog.format.segment_indexes import MAX_RELATIVE_OFFSET
from sparklog.kafka.exporting.plan import PartitionPlan
from sparklog.kafka.importing.segment import IndexedBatches, offset_index_of, time_index_of
from sparklog.kafka.in_place.view import KafkaView
from sparklog.log.journal.create_object import read_if_there
from sparklog.log.read.planned_slices import PlannedSlice
from sparklog.log.read.slice_files import MissingFile, read_windows
from sparklog.log.state.configs import TopicConfigs
from sparklog.log.state.slices import FileSlices
from sparklog.maintenance.work_items import Progress
from sparklog.storage.local import LocalStore
from sparklog.storage.store import Store

SUFFIXES = ("log", "index", "timeindex")
BEFORE_ALL_TIMES = -1
"""A modification time (seconds since the epoch) that is before all timestamps that a lookup can use."""


@dataclass(slots=True)
class PartitionFiles:
    """Writes the files of an exported partition to the directory `partition_dir` of `target`.

    * `source`, `topic`: the store and the topic to read
    * `link`: True to create hard links instead of copies if possible
    * `keep_epochs`: True to preserve leader epochs

    The methods must be called in this order: `output` (for `write_segments`), `copy`, `finish`.
    """

    plan: PartitionPlan
    source: Store
    topic: str
    configs: TopicConfigs
    target: LocalStore
    partition_dir: str
    link: bool
    keep_epochs: bool
    segments: int = 0
    nbytes: int = 0
    linked: int = 0
    _epochs: list[tuple[int, int]] = field(default_factory=list)
    _producers: PartitionProducers | None = None
    _bases: list[int] = field(default_factory=list)
    _copied_end: int = 0
    _lowest: int | None = None

    def output(self) -> SegmentOutput:
        plan = self.plan
        writer = _OutgoingWriter(self.target, self.partition_dir, plan.partition, 0, "", self.configs)
        writer.files = self
        end = plan.log_end if plan.is_cut else None
        return SegmentOutput(self.source, self.topic, plan.written, writer, lambda: self.producers().aborted, end)

    def copy(self, progress: Progress) -> None:
        for row in self.plan.copied:
            self._copy(row)
            progress(row.records, row.size)

    def finish(self, written: Iterable[FileSlices]) -> int:
        """Write the empty segments and the producer snapshot after all other files. Return the log end offset."""
        plan, log_end, has_active = self.plan, max(self.plan.log_end, self._copied_end), False
        for file in written:
            end = file.base[0] + file.offsets[0]
            log_end = max(log_end, end)
            has_active = end == log_end
            self._bases.append(file.base[0])
            self.segments += 1
            self.nbytes += file.size
        if not has_active:
            self._write_empty(log_end)
        if min(self._bases) > plan.log_start:
            self._write_empty(plan.log_start)
            path = os.path.join(self.target.location, self.partition_dir, f"{plan.log_start:020d}.log")
            os.utime(path, (BEFORE_ALL_TIMES, BEFORE_ALL_TIMES))
        if not plan.is_cut and log_end > plan.log_start:
            entries = [producer.entry(number) for number, producer in self.producers().producers.items()]
            self.target.create(f"{self.partition_dir}/{log_end:020d}.snapshot", snapshot_to_bytes(entries))
        return log_end

    def epochs(self) -> list[LeaderEpoch]:
        return leader_epochs(self._epochs, self.plan.log_start)

    @property
    def first_base(self) -> int:
        return min(self._bases)

    def last_stable(self, log_end: int) -> int:
        """Return the last stable offset of the exported partition, which is below the log end offset if a Kafka
        transaction is open.
        """
        plan = self.plan
        if plan.written.history is None:
            return log_end
        if not plan.is_cut:
            return min(max(self.producers().last_stable, plan.log_start), log_end)
        # The replay contains all of the last slice, so read only the exported part of the slice.
        view = KafkaView(os.path.join(self.target.location, self.partition_dir))
        return max(view.bounds(self.topic)[plan.partition].last_stable, plan.log_start)

    def producers(self) -> PartitionProducers:
        """Replay the batches of Kafka producers, and return the producer state at the log end offset."""
        if self._producers is None:
            history, end = self.plan.written.history, self.plan.log_end
            no_producers = PartitionProducers(end, transaction_index.none(), {})
            self._producers = (
                no_producers if history is None else replay(self.source, history, end, self.plan.log_start)
            )
        return self._producers

    def base_for(self, base: int, last: int) -> int:
        """Return the base offset for the name of a segment that contains offsets `base` to `last`.

        The first segment is named after the log start offset if the relative offsets in the segment do not become too
        large.
        """
        if self._lowest is None:
            copied = [int(_stem(row.path)) for row in self.plan.copied]
            self._lowest = min(copied + [int(sources.base[0]) for sources in self.plan.written.segments])
        start = self.plan.log_start
        return start if start < base == self._lowest and last - start <= MAX_RELATIVE_OFFSET else base

    def _write_empty(self, base: int) -> None:
        for suffix in SUFFIXES:
            self.target.create(f"{self.partition_dir}/{base:020d}.{suffix}", b"")
        self._bases.append(base)
        self.segments += 1

    def _copy(self, row: PlannedSlice) -> None:
        original_base = int(_stem(row.path))
        base = self.base_for(original_base, row.end - 1)
        stem = f"{self.partition_dir}/{base:020d}"
        is_complete = row.end <= self.plan.log_end
        linked = self.link and is_complete and _link(self.source, row.file, self.target, f"{stem}.log")
        try:
            try:
                copied = self._copy_log(row, is_complete, None if linked else f"{stem}.log")
            except _EpochsToReset:
                self.target.delete(f"{stem}.log")
                linked = False
                copied = self._copy_log(row, is_complete, f"{stem}.log")
        except MissingFile as missing:
            raise Conflict(f"{missing.file} was replaced and deleted during the export: run the export again") from None
        if copied is None:
            return
        interval, (batches, nbytes) = self.configs.index_interval_bytes, copied
        raw = {suffix: read_if_there(self.source, row.file.removesuffix("log") + suffix) for suffix in INDEXES}
        if not is_complete or base != original_base:
            # The last entry of the time index may be beyond the exported part, and index offsets are relative to the
            # base offset.
            raw["index"] = raw["timeindex"] = None
        self.target.create(f"{stem}.index", offset_index_of(raw["index"], base, batches, interval))
        self.target.create(f"{stem}.timeindex", time_index_of(raw["timeindex"], base, batches, interval))
        aborted = raw["txnindex"]
        if aborted and not is_complete:
            index = transaction_index.parse(aborted, base, file=row.file)
            aborted = index.select(index.last_offsets <= batches.last_offset[-1]).to_bytes()
        if aborted:
            self.target.create(f"{stem}.txnindex", aborted)
        self._bases.append(base)
        self._copied_end = int(batches.last_offset[-1]) + 1
        self.segments += 1
        self.nbytes += nbytes
        self.linked += nbytes if linked else 0

    def _copy_log(self, row: PlannedSlice, is_complete: bool, key: str | None) -> tuple[IndexedBatches, int] | None:
        """Read and check a sealed segment, or its exported part, and write it to `key`.

        If `key` is None, the target is already a hard link, so nothing is written.

        Returns the batches and the number of bytes, or None if no batch is exported. Raises `_EpochsToReset` if a
        hard-linked segment contains epochs that must change.
        """
        writer = self.target.writer(key) if key is not None else None
        columns: list[tuple[npt.NDArray[np.int64], ...]] = []
        low = 0
        try:
            for window in read_windows(self.source, row):
                data, headers = window.data, window.headers
                batches = headers if is_complete else headers[: _count_below(headers, self.plan.log_end)]
                if len(batches) < len(headers):
                    data = data[: int(batches.position[-1] + batches.size[-1]) if len(batches) else 0]
                for invalid in () if is_complete else crc_failures(data, batches).tolist():
                    reason = "the checksum of the batch does not match its bytes: restore the file"
                    position, offset = low + int(batches.position[invalid]), int(batches.base_offset[invalid])
                    raise Corrupt(reason, file=row.file, position=position, offset=offset)
                columns.append(
                    (batches.position + low, batches.base_offset, batches.last_offset, batches.max_timestamp)
                )
                low += len(data)
                outgoing = self.prepare(data, batches)
                if writer is not None:
                    writer.write(outgoing)
                elif outgoing is not data:
                    raise _EpochsToReset
                if len(batches) < len(headers):
                    break
        except BaseException:
            if writer is not None:
                writer.discard()
            raise
        if writer is not None and low:
            writer.close()
        elif writer is not None:
            writer.discard()
        return (
            (IndexedBatches(*(np.concatenate(column) for column in zip(*columns, strict=True))), low) if low else None
        )

    def prepare(self, data: BytesLike, headers: BatchHeaders) -> BytesLike:
        """Return the exported bytes of batches, and record their leader epochs. A bytearray is modified in place."""
        is_reset = headers.leader_epoch > 0
        if not self.keep_epochs and is_reset.any():
            data = data if isinstance(data, bytearray) else bytearray(data)
            headers = rewrite_headers(data, headers, leader_epoch=np.where(is_reset, 0, NO_LEADER_EPOCH))
        # Add one entry for each batch whose epoch differs from the epoch of the previous batch.
        changes = np.flatnonzero(np.diff(headers.leader_epoch, prepend=NO_LEADER_EPOCH - 1))
        epochs = headers.leader_epoch[changes].tolist()
        self._epochs += zip(headers.base_offset[changes].tolist(), epochs, strict=True)
        return data


class _EpochsToReset(Exception):  # noqa: N818
    """Raised if a hard-linked segment contains leader epochs above 0."""


class _OutgoingWriter(SegmentWriter):
    files: PartitionFiles

    def path(self, base: int) -> str:
        return f"{base:020d}.log"

    def key(self, path: str) -> str:
        # The names of partition directories in Kafka are not escaped.
        return f"{self.files.partition_dir}/{path}"

    def begin(self, base: int, keyed: bool | None = None) -> None:
        ends = (int(rows.end[-1]) for rows in self.files.plan.written.segments if rows.base[0] == base)
        super().begin(self.files.base_for(base, next(ends, base) - 1), keyed)

    def append(self, data: BytesLike, headers: BatchHeaders, **facts: Any) -> None:
        super().append(self.files.prepare(data, headers), headers, **facts)


def leader_epochs(epochs: Iterable[tuple[int, int]], log_start: int) -> list[LeaderEpoch]:
    """Return the entries of the `leader-epoch-checkpoint` for batches, which are given as (base offset, epoch) pairs in
    any order.

    As in Kafka, a batch with a new epoch adds an entry, and removes all entries whose epoch is equal or higher. The
    first entry starts at the log start offset, even if the first batches of its epoch have been deleted. Messages of
    formats v0 and v1 have no epoch.
    """
    entries: list[LeaderEpoch] = []
    batches = sorted(epochs)
    for offset, epoch in batches:
        if epoch <= NO_LEADER_EPOCH or (entries and entries[-1].epoch == epoch):
            continue
        while entries and (entries[-1].epoch >= epoch or entries[-1].start_offset >= offset):
            entries.pop()
        entries.append(LeaderEpoch(epoch, offset))
    below = [entry for entry in entries if entry.start_offset <= log_start]
    if not below and batches and batches[0][1] > NO_LEADER_EPOCH:
        below = entries[:1]
    return [LeaderEpoch(entry.epoch, log_start) for entry in below[-1:]] + entries[len(below) :]


def _count_below(headers: BatchHeaders, end: int) -> int:
    """Return the number of batches that may contain offsets below `end`.

    The header of a wrapper message of format v0 or v1 does not contain the first offset, so the first offset is the
    offset after the previous batch.
    """
    previous_end = np.append(headers.base_offset[:1], headers.next_offset[:-1])
    return int(np.searchsorted(np.where(headers.is_legacy, previous_end, headers.base_offset), end))


def _stem(path: str) -> str:
    return path.rsplit("/", 1)[-1].removesuffix(".log")


def _link(source: Store, file: str, target: LocalStore, key: str) -> bool:
    """Create a hard link to a file of the source. Return False if the file cannot be linked, for example because it is
    on another disk.
    """
    if not isinstance(source, LocalStore):
        return False
    path = os.path.join(target.location, key)
    try:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        os.link(os.path.join(source.location, file), path)
    except OSError:
        return False
    return True
