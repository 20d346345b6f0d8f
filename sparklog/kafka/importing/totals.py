"""Totals of a segment, counted window by window during a copy: sizes, times, flags, columns of its indexes."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from sparklog.format.record_batch import NO_PRODUCER_ID, BatchHeaders
from sparklog.kafka.in_place.segment_file import SegmentFile, Window
from sparklog.kafka.in_place.transaction_state import TransactionEvents
from sparklog.log.state.slices import SliceFlag

Int64s = npt.NDArray[np.int64]


class Ending(Window):
    """Markers that are not in the file; `start` is the position of the damage."""


@dataclass(frozen=True, slots=True)
class Batches:
    """The batches of a segment for its indexes, in file order; int64[n] each, offsets absolute, times in ms."""

    position: Int64s
    base_offset: Int64s
    last_offset: Int64s
    max_timestamp: Int64s


@dataclass(frozen=True, slots=True)
class LastBatch:
    """The identity of a batch: its last offset, the checksum in its header, its leader epoch."""

    last: int
    crc: int
    epoch: int


@dataclass
class SegmentTotals:
    """The totals of a segment after the batches added so far."""

    next_offset: int
    nbytes: int = 0
    records: int = 0
    min_ts: int = -1
    max_ts: int = -1
    crc: int = 0
    flags: int = 0
    leader_epoch: int = -1
    columns: list[tuple[Int64s, Int64s, Int64s, Int64s]] = field(default_factory=list)
    events: TransactionEvents = field(default_factory=TransactionEvents)
    epochs: dict[int, int] = field(default_factory=dict)
    last: LastBatch | None = None

    def batches(self) -> Batches:
        parts = list(zip(*self.columns, strict=True)) or [(np.empty(0, np.int64),)] * 4
        return Batches(*(np.concatenate(part) for part in parts))

    def add(self, window: Window, file: SegmentFile) -> memoryview:
        """Check the batches of a window and add them; return their bytes."""
        from crc32c import crc32c

        headers = window.headers
        nbytes = int(headers.position[-1] + headers.size[-1])
        data = memoryview(window.data)[:nbytes]
        self.events.add(window)
        self._add_records(window, file)
        # Positions in the copy, which has not the damaged parts of the source.
        position = headers.position + self.nbytes
        self.columns.append((position, headers.base_offset, headers.last_offset, headers.max_timestamp))
        self.next_offset = int(headers.next_offset[-1])
        if not isinstance(window, Ending):
            self.last = LastBatch(int(headers.last_offset[-1]), int(headers.crc[-1]), int(headers.leader_epoch[-1]))
        self.nbytes += nbytes
        self.crc = crc32c(data, self.crc)
        self.max_ts = max(self.max_ts, int(headers.max_timestamp.max()))
        self.leader_epoch = max(self.leader_epoch, int(headers.leader_epoch.max()))
        if (headers.is_control | (headers.producer_id != NO_PRODUCER_ID)).any():
            self.flags |= SliceFlag.KAFKA_PRODUCERS
            self._add_epochs(headers)
        if headers.is_log_append_time.any():
            self.flags |= SliceFlag.LOG_APPEND_TIME | SliceFlag.TIMES_IN_BATCHES
        return data

    def _add_epochs(self, headers: BatchHeaders) -> None:
        rows = np.flatnonzero(headers.is_transactional)[::-1]
        producers, last = np.unique(headers.producer_id[rows], return_index=True)
        epochs = headers.producer_epoch[rows][last]
        self.epochs.update(zip(producers.tolist(), epochs.tolist(), strict=True))

    def _add_records(self, window: Window, file: SegmentFile) -> None:
        headers = window.headers
        holds = ~headers.is_control & (headers.count > 0)
        records = window.decode(("offset", "timestamp", "key"), file.path, holds)
        self.records += len(records)
        if records.key is not None and records.key.null_count:
            self.flags |= SliceFlag.HAS_NULL_KEYS
        # A marker has one record; of a batch that the cleaner emptied only the greatest time is left.
        times = np.concatenate((records.timestamp, headers.max_timestamp[~holds]))
        times = times[times >= 0]
        if len(times):
            least = int(times.min())
            self.min_ts = least if self.min_ts < 0 else min(self.min_ts, least)
