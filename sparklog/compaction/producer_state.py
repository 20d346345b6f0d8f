"""The state of Kafka's producers in a partition, which is replayed from the log, and the resulting actions on batches.

Kafka stores producer state in `.snapshot` and `.txnindex` files. Batch headers and markers contain the same information
(see "producers and markers" in docs/reference/kafka-format.md), so the state is computed by replaying the batches that
Kafka producers wrote to the partition. A cleaned log yields the same state, because the cleaner retains the last batch
of each live producer, even if the batch becomes empty. Two rules differ from Kafka's rules:

* In Kafka, an empty marker (a control batch without records) is not a marker, and the producer is known from a
  snapshot. Here, the producer remains known, with its epoch, because of the empty marker. Otherwise, the next pass
  would not detect that the batch is the producer's last batch.
* The last timestamp of a producer is the timestamp of its last batch in its current form. If the batch was rebuilt
  without its latest records, the producer expires earlier than in Kafka, which stores the original timestamp.

A cleaning pass decides on entire batches before it reads their records:

* The first pass that reads aborted data drops the data.
* A marker is retained while the same pass reads a batch of its transaction, even an empty batch. The first pass without
  such a batch sets a delete horizon on the marker, and a pass after that horizon drops the marker.
* The last batch of a live producer and the last batch of the range are emptied instead of dropped.

Kafka passes the aborted transactions to a tracker segment by segment. Here, all aborted transactions are known from the
start.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from sparklog.errors import Corrupt, NotFound
from sparklog.format import transaction_index
from sparklog.format.batch_walk import Window
from sparklog.format.control import ABORT, COMMIT, control_types, coordinator_epochs
from sparklog.format.producer_snapshot import ProducerEntry
from sparklog.format.record_batch import NO_PRODUCER_ID, BatchHeaders
from sparklog.format.transaction_index import AbortedTransactions, AbortMarker, matches_markers, merge_markers
from sparklog.log.read.planned_slices import PlannedSlice, PlannedSlices
from sparklog.log.read.slice_files import MissingFile, SliceFile, check_slice, read_range, read_windows, whole_batches
from sparklog.log.state.slices import SliceFlag
from sparklog.storage.store import Store

NONE = -1


@dataclass(slots=True)
class ReplayedProducer:
    """The state of a producer after its last batch. A field is -1 if it has no value. Fields that are not compared are
    used for Kafka's snapshots.
    """

    epoch: int = NONE  # epoch of the last batch or marker
    last_data_offset: int = NONE  # last offset of the last data batch
    last_timestamp: int = NONE  # timestamp (ms) of the last batch or marker
    open_since: int = NONE  # first offset of the open transaction
    last_sequence: int = field(default=NONE, compare=False)  # last sequence of the last data batch
    offset_delta: int = field(default=0, compare=False)  # offset delta of the last data batch
    coordinator_epoch: int = field(default=NONE, compare=False)  # epoch of the last marker
    last_marker: int = field(default=NONE, compare=False)  # offset of the last marker

    def at_epoch(self, epoch: int) -> None:
        if self.epoch != epoch:
            self.epoch, self.last_data_offset, self.last_sequence, self.offset_delta = epoch, NONE, NONE, 0

    def entry(self, producer_id: int) -> ProducerEntry:
        return ProducerEntry(
            producer_id,
            self.epoch,
            self.last_sequence,
            self.last_data_offset,
            self.offset_delta,
            self.last_timestamp,
            self.coordinator_epoch,
            self.open_since,
        )


@dataclass(frozen=True, slots=True, eq=False)
class PartitionProducers:
    """The producers and transactions of a partition at its log end.

    A `.txnindex` file is trusted if each of its entries belongs to an ABORT marker in the log. The replay adds the
    other transactions.
    """

    last_stable: int  # first offset of the earliest open transaction, or the log end
    aborted: AbortedTransactions  # in the order of their markers, as in `.txnindex` files
    producers: Mapping[int, ReplayedProducer]  # by producer id, including expired producers (see `active`)


def active(
    producers: Mapping[int, ReplayedProducer], now_ms: int, expiration_ms: int
) -> Mapping[int, ReplayedProducer]:
    """Return the producers that Kafka would still know, because they have an open transaction or were active within
    `expiration_ms`.
    """
    return {
        producer_id: producer
        for producer_id, producer in producers.items()
        if producer.open_since != NONE or now_ms - producer.last_timestamp < expiration_ms
    }


def replay(
    store: Store, sources: PlannedSlices, log_end: int, log_start: int = 0, *, indexes: bool = True
) -> PartitionProducers:
    """Replay all slices of a partition, given in offset order, and read the `.txnindex` files of sealed slices.

    A transaction without a batch at or after `log_start` is not open, because its marker may have been deleted, and no
    reader needs the transaction. Each slice with `KAFKA_PRODUCERS` is read once, in windows of `span_bytes`. Slices
    without that flag and slices of aborted sparklog transactions are skipped. If `indexes` is False, `.txnindex` files
    are ignored.

    Raises:
        Corrupt: If a slice is damaged or a marker cannot be read. The error contains the position.
        NotFound: If a file is missing.
    """
    state = _State()
    indexed: list[AbortedTransactions] = []
    for source in sources.rows():
        if source.aborted or not source.flags & SliceFlag.KAFKA_PRODUCERS:
            continue
        before = len(state.aborts)
        for window in _windows(store, source):
            state.add(window, source.shift)
        markers = state.aborts[before:]
        if markers and source.sealed and indexes:
            indexed.append(_transaction_index(store, source, markers))
    for producer in state.producers.values():
        if producer.last_data_offset < log_start:
            producer.open_since = NONE
    open_since = [producer.open_since for producer in state.producers.values() if producer.open_since != NONE]
    return PartitionProducers(
        last_stable=min(open_since, default=log_end),
        aborted=merge_markers(indexed, state.aborts),
        producers=state.producers,
    )


def run_boundaries(producer_ids: npt.NDArray[np.int64], kinds: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    """Return the batches (bool[n]) at which a run of batches of the same producer and kind starts or ends."""
    order = np.argsort(producer_ids, kind="stable")
    ids, sorted_kinds = producer_ids[order], kinds[order]
    edge = np.ones(len(order) + 1, np.bool_)
    edge[1:-1] = (ids[1:] != ids[:-1]) | (sorted_kinds[1:] != sorted_kinds[:-1])
    turning = np.empty(len(order), np.bool_)
    turning[order] = edge[:-1] | edge[1:]
    return turning


@dataclass(slots=True)
class _State:
    producers: dict[int, ReplayedProducer] = field(default_factory=dict)
    aborts: list[AbortMarker] = field(default_factory=list)
    _open: dict[int, int] = field(default_factory=dict)
    """Maps a producer id to the first offset of its open transaction, in the order of the offsets."""

    def add(self, window: Window, shift: int) -> None:
        headers = window.headers
        rows = np.flatnonzero(headers.producer_id != NO_PRODUCER_ID)
        if not len(rows):
            return
        control = headers.is_control[rows]
        kinds = np.where(control, 2, headers.is_transactional[rows].astype(np.int64))
        kept = run_boundaries(headers.producer_id[rows], kinds) | control
        selection = headers[rows[kept]]
        columns = (
            selection.producer_id,
            selection.producer_epoch,
            selection.base_offset + shift,
            selection.last_offset + shift,
            selection.max_timestamp,
            control[kept],
            selection.is_transactional,
            selection.count,
            selection.base_sequence,
            control_types(window.data, selection, file=window.file, file_position=window.start),
            coordinator_epochs(window.data, selection, file=window.file, file_position=window.start),
        )
        for batch in zip(*(column.tolist() for column in columns), strict=True):
            producer_id, epoch, base, last, timestamp, is_control, transactional, count, sequence, kind, by = batch
            if not is_control:
                self._data(producer_id, epoch, base, last, timestamp, transactional, sequence)
            elif kind in (ABORT, COMMIT) or count == 0:
                self._marker(producer_id, epoch, last, timestamp, kind == ABORT, by)

    def _data(
        self, producer_id: int, epoch: int, base: int, last: int, timestamp: int, transactional: bool, sequence: int
    ) -> None:
        producer = self.producers.setdefault(producer_id, ReplayedProducer())
        producer.at_epoch(epoch)
        producer.last_data_offset, producer.last_timestamp, producer.offset_delta = last, timestamp, last - base
        # Sequence numbers wrap around to 0 after the largest int32.
        producer.last_sequence = (sequence + last - base) % 2**31 if sequence >= 0 else NONE
        if transactional and producer.open_since == NONE:
            producer.open_since = self._open[producer_id] = base

    def _marker(self, producer_id: int, epoch: int, last: int, timestamp: int, abort: bool, coordinator: int) -> None:
        producer = self.producers.setdefault(producer_id, ReplayedProducer())
        producer.at_epoch(epoch)
        self._open.pop(producer_id, None)
        if abort:
            # Transactions are in offset order, so the first remaining transaction is the earliest.
            stable = next(iter(self._open.values()), last + 1)
            self.aborts.append(AbortMarker(producer_id, producer.open_since, last, stable, producer.last_marker))
        producer.last_timestamp, producer.open_since, producer.last_marker = timestamp, NONE, last
        # An empty marker has lost its coordinator epoch, which was at least the previous epoch.
        producer.coordinator_epoch = max(producer.coordinator_epoch, coordinator)


def _windows(store: Store, planned: PlannedSlice) -> Iterator[Window]:
    """Yield the batches of a slice. Raises `Corrupt` if its CRC-32C does not match, and `NotFound` if the file is
    missing.
    """
    try:
        if planned.size <= store.limits.span_bytes:
            data = read_range(store, planned.file, planned.position, planned.size)
            check_slice(data, planned)
            yield from whole_batches(SliceFile(planned, data), planned.position)
        else:
            yield from read_windows(store, planned)
    except MissingFile:
        raise NotFound(
            f"data file '{planned.file}' does not exist: run the compaction again, or restore the file"
        ) from None


def _transaction_index(store: Store, source: PlannedSlice, markers: list[AbortMarker]) -> AbortedTransactions:
    """Return the `.txnindex` of a segment. It is empty if it is missing, or if an entry does not match the ABORT
    markers.
    """
    key = f"{source.file.removesuffix('.log')}.txnindex"
    try:
        index = transaction_index.parse(store.get(key), source.base, file=key)
    except (NotFound, Corrupt):
        return transaction_index.none()
    return index if matches_markers(index, markers) else transaction_index.none()


Bools = npt.NDArray[np.bool_]
_COMMITTED, _ABORTED, _CONTROL = 0, 1, 2


@dataclass(frozen=True, slots=True, eq=False)
class BatchActions:
    """The actions on m batches, with one bool per batch. A control batch without an action retains its record and its
    delete horizon.
    """

    discard_data: Bools  # aborted data, of which no record is retained
    drop_control: Bools  # a control batch past its delete horizon, whose record is dropped
    stamp_control: Bools  # a control batch that gets a delete horizon now, whose record is retained
    retain_empty: Bools  # retain the batch even if none of its records is retained
    aborted: AbortedTransactions  # entries of the new `.txnindex` whose ABORT markers are retained because of a batch

    @property
    def dropped(self) -> Bools:
        """The batches of which no record is retained."""
        return self.discard_data | self.drop_control

    def select(self, rows: slice | npt.NDArray[np.int64]) -> BatchActions:
        """Return the actions on some of the batches. `aborted` is unchanged."""
        masks = self.discard_data, self.drop_control, self.stamp_control, self.retain_empty
        discard, drop, stamp, retain = (mask[rows] for mask in masks)
        return BatchActions(discard, drop, stamp, retain, self.aborted)


def aborted_batches(state: PartitionProducers | None, headers: BatchHeaders) -> Bools:
    """Return the batches (bool[m]) of aborted transactions. Raises `Corrupt` for a producer id if `state` is None."""
    aborted = np.zeros(len(headers), np.bool_)
    if state is None:
        wrong = np.flatnonzero(headers.is_control | headers.is_transactional | (headers.producer_id != NO_PRODUCER_ID))
        if len(wrong):
            raise Corrupt(
                "the slice contains a producer id or a control batch, but the log does not list any for the "
                "slice: restore the file",
                offset=int(headers.base_offset[wrong[0]]),
            )
        return aborted
    rows = np.flatnonzero(headers.is_transactional & ~headers.is_control)
    aborted[rows] = state.aborted.covers(headers.producer_id[rows], headers.base_offset[rows])
    return aborted


class BatchFilter:
    """Decides on the batches of a pass, in log order, starting with the first batch of the partition."""

    def __init__(
        self, state: PartitionProducers | None, *, now_ms: int, expiration_ms: int, first_uncleanable: int
    ) -> None:
        """Create the filter. `state` is None if no batch of the partition has a producer id."""
        self._state = state
        self._now_ms = now_ms
        self._first_uncleanable = first_uncleanable
        live = {} if state is None else active(state.producers, now_ms, expiration_ms)
        ids = sorted(live)
        self._ids = np.array(ids, np.int64)
        self._last_data = np.array([live[producer_id].last_data_offset for producer_id in ids], np.int64)
        self._epochs = np.array([live[producer_id].epoch for producer_id in ids], np.int64)
        self._observed: set[int] = set()
        """The producers with aborted data since their last ABORT marker."""
        self._committed: set[int] = set()
        """The producers with other transactional data since their last COMMIT marker."""

    def actions(self, window: Window) -> BatchActions:
        """Return the actions on the next batches. Raises `Corrupt` for an unreadable marker or an unknown producer."""
        headers = window.headers
        discard = aborted_batches(self._state, headers)
        retain = headers.next_offset == self._first_uncleanable
        if self._state is None:
            none = np.zeros(len(headers), np.bool_)
            return BatchActions(discard, none, none, retain, transaction_index.none())
        unneeded, ended = self._control(window, discard)
        aborted = self._state.aborted
        horizon = headers.has_delete_horizon
        return BatchActions(
            discard_data=discard,
            drop_control=unneeded & horizon & (headers.base_timestamp <= self._now_ms),
            stamp_control=unneeded & ~horizon & (headers.count > 0),
            retain_empty=retain | self._last_of_producer(headers),
            aborted=aborted.select(np.searchsorted(aborted.last_offsets, np.array(ended, np.int64))),
        )

    def _last_of_producer(self, headers: BatchHeaders) -> Bools:
        """Return True for the last data batch of each live producer, or for its last marker if the producer wrote no
        data.
        """
        if not len(self._ids):
            return np.zeros(len(headers), np.bool_)
        rows = np.minimum(np.searchsorted(self._ids, headers.producer_id), len(self._ids) - 1)
        last_data = self._last_data[rows]
        last_marker = (last_data < 0) & headers.is_control & (headers.producer_epoch == self._epochs[rows])
        last_batch = (last_data >= 0) & (headers.last_offset == last_data)
        last: Bools = (self._ids[rows] == headers.producer_id) & (last_batch | last_marker)
        return last

    def _control(self, window: Window, aborted: Bools) -> tuple[Bools, list[int]]:
        """Return the markers without batches of their transaction (bool[m]), and the offsets of kept ABORT markers."""
        headers = window.headers
        control = headers.is_control
        unneeded = np.zeros(len(headers), np.bool_)
        rows = np.flatnonzero(headers.is_transactional | control)
        kinds = np.where(control[rows], _CONTROL, aborted[rows].astype(np.int64))
        mask = run_boundaries(headers.producer_id[rows], kinds) | control[rows]
        rows, kinds = rows[mask], kinds[mask]
        types = control_types(window.data, headers[rows], file=window.file, file_position=window.start)
        kept_aborts: list[int] = []
        columns = (rows, headers.producer_id[rows], headers.last_offset[rows], headers.count[rows], kinds, types)
        for row, producer, offset, count, kind, type_ in zip(*(column.tolist() for column in columns), strict=True):
            if kind == _ABORTED:
                self._observed.add(producer)
            elif kind == _COMMITTED:
                self._committed.add(producer)
            elif count == 0:
                unneeded[row] = True
            elif type_ == ABORT:
                unneeded[row] = producer not in self._observed
                if producer in self._observed:
                    kept_aborts.append(offset)
                self._observed.discard(producer)
            elif type_ == COMMIT:
                unneeded[row] = producer not in self._committed
                self._committed.discard(producer)
        return unneeded, kept_aborts
