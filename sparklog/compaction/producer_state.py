"""Producer state of a partition: which transactions are open or were aborted, and each producer's last batch.

Kafka keeps this in `.snapshot` and `.txnindex` files. Headers and markers say the same (docs/reference/kafka-format.md,
producers and markers), so it is found by a replay of the partition's log, of which only slices that Kafka's producers
wrote count: sparklog's own batches carry no producer ids. That the replay of a cleaned log ends in the same state as
Kafka's snapshots is the cleaner's doing: it keeps each live producer's last batch, if need be an empty one. Two rules
of its own follow:

* An emptied marker (a control batch without records) is no marker for Kafka, which knows its producer from a snapshot.
  Here it keeps the producer known, with its epoch, or the next pass would take the batch for nobody's last.
* A producer's last timestamp is that of its last batch as it stands: if the batch was rebuilt without its youngest
  records, the producer expires earlier than with Kafka, which remembers the time from before.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from sparklog.errors import Corrupt, NotFound
from sparklog.format import transaction_index
from sparklog.format.batch_scan import scan_headers
from sparklog.format.control import ABORT, COMMIT, control_types, coordinator_epochs
from sparklog.format.coordinators.producer_snapshot import ProducerEntry
from sparklog.format.record_batch import NO_PRODUCER_ID, BatchHeaders
from sparklog.format.transaction_index import AbortedTransactions, AbortMarker, agrees, unite
from sparklog.log.read.fetch import SPAN_BYTES, MissingFile, check_slice, read_range, read_window
from sparklog.log.read.read_plan import PlannedSlice, PlannedSlices
from sparklog.log.state.slices import SliceFlag
from sparklog.storage.store import Store

NONE = -1


@dataclass(frozen=True, slots=True)
class Producer:
    """A producer after its last batch; offsets are -1 where there is none.

    * `epoch` of the last batch or marker; a new one forgets the data of the old (`last_data_offset` -1)
    * `last_data_offset`: last offset of its last data batch; `last_timestamp`: ms, of its last batch or marker
    * `open_since`: base offset of the first batch of its open transaction
    * `last_sequence`, `offset_delta` of its last data batch: -1 and 0 without one; `coordinator_epoch` of its last
      marker (left out where producers are compared: only Kafka's snapshots need them)
    """

    epoch: int
    last_data_offset: int
    last_timestamp: int
    open_since: int
    last_sequence: int = field(default=NONE, compare=False)
    offset_delta: int = field(default=0, compare=False)
    coordinator_epoch: int = field(default=NONE, compare=False)

    def entry(self, producer_id: int) -> ProducerEntry:
        """As a `.snapshot` file holds it."""
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
    """Producers and transactions of a partition at its log end.

    * `last_stable`: first offset of the earliest open transaction, or the log end
    * `aborted`: aborted transactions in the order of their markers, as `.txnindex` files hold them. Those files are
      believed where each entry belongs to an ABORT marker that is there; what they lack the replay adds.
    * `producers`: by producer id, expired ones included (see `active`)
    """

    last_stable: int
    aborted: AbortedTransactions
    producers: Mapping[int, Producer]


def active(producers: Mapping[int, Producer], now_ms: int, expiration_ms: int) -> Mapping[int, Producer]:
    """Those that Kafka would still know (8.7): with an open transaction, or heard of since `expiration_ms` ago."""
    return {
        producer_id: producer
        for producer_id, producer in producers.items()
        if producer.open_since != NONE or now_ms - producer.last_timestamp < expiration_ms
    }


def replay(store: Store, sources: PlannedSlices, log_end: int) -> PartitionProducers:
    """Replay all slices of a partition, given in offset order, and read the `.txnindex` files beside sealed ones.

    Reads each slice with `KAFKA_PRODUCERS` once, in windows of `SPAN_BYTES`; slices of aborted sparklog transactions
    and those without that flag are passed over. Raises `Corrupt`, naming the place, if a slice is not what was written
    or a marker cannot be read; `NotFound` if a file is gone.
    """
    state = _State()
    indexed: list[AbortedTransactions] = []
    for source in sources.rows():
        if source.aborted or not source.flags & SliceFlag.KAFKA_PRODUCERS:
            continue
        before = len(state.aborts)
        for data, headers, position in _windows(store, source):
            state.add(data, headers, source.shift, source.file, position)
        markers = state.aborts[before:]
        if markers and source.sealed:
            indexed.append(_transaction_index(store, source, markers))
    open_since = [each.open_since for each in state.producers.values() if each.open_since != NONE]
    return PartitionProducers(
        last_stable=min(open_since, default=log_end),
        aborted=unite(indexed, state.aborts),
        producers={key: running.producer() for key, running in state.producers.items()},
    )


def turns(producer_ids: npt.NDArray[np.int64], kinds: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    """bool[n]: the batches that begin or end a run of the same kind among their producer's batches.

    What a producer's batches add up to is decided there; a long transaction needs no look at each of its batches.
    """
    order = np.argsort(producer_ids, kind="stable")
    ids, sorted_kinds = producer_ids[order], kinds[order]
    edge = np.ones(len(order) + 1, np.bool_)
    edge[1:-1] = (ids[1:] != ids[:-1]) | (sorted_kinds[1:] != sorted_kinds[:-1])
    turning = np.empty(len(order), np.bool_)
    turning[order] = edge[:-1] | edge[1:]
    return turning


@dataclass(slots=True)
class _Running:
    """A producer during the replay."""

    epoch: int = NONE
    last_data: int = NONE
    timestamp: int = NONE
    open_since: int = NONE
    marker: int = NONE
    sequence: int = NONE
    delta: int = 0
    coordinator: int = NONE

    def at_epoch(self, epoch: int) -> None:
        if self.epoch != epoch:
            self.epoch, self.last_data, self.sequence, self.delta = epoch, NONE, NONE, 0

    def producer(self) -> Producer:
        return Producer(
            self.epoch, self.last_data, self.timestamp, self.open_since, self.sequence, self.delta, self.coordinator
        )


@dataclass(slots=True)
class _State:
    producers: dict[int, _Running] = field(default_factory=dict)
    aborts: list[AbortMarker] = field(default_factory=list)
    _open: dict[int, int] = field(default_factory=dict)
    """Producer id -> first offset of its open transaction, in the order they began."""

    def add(self, data: memoryview, headers: BatchHeaders, shift: int, file: str, position: int) -> None:
        """The next batches of the log; `data[0]` is byte `position` of `file`."""
        rows = np.flatnonzero(headers.producer_id != NO_PRODUCER_ID)
        if not len(rows):
            return
        control = headers.is_control[rows]
        kinds = np.where(control, 2, headers.is_transactional[rows].astype(np.int64))
        kept = turns(headers.producer_id[rows], kinds) | control
        chosen = headers[rows[kept]]
        types = control_types(data, chosen, file=file, file_position=position).tolist()
        columns = (
            chosen.producer_id,
            chosen.producer_epoch,
            chosen.base_offset + shift,
            chosen.last_offset + shift,
            chosen.max_timestamp,
            control[kept],
            chosen.is_transactional,
            chosen.count,
            chosen.base_sequence,
        )
        coordinators = coordinator_epochs(data, chosen, file=file, file_position=position).tolist()
        batches = zip(*(column.tolist() for column in columns), types, coordinators, strict=True)
        for batch in batches:
            producer_id, epoch, base, last, timestamp, is_control, transactional, count, sequence, kind, by = batch
            if not is_control:
                self._data(producer_id, epoch, base, last, timestamp, transactional, sequence)
            elif kind in (ABORT, COMMIT) or count == 0:
                self._marker(producer_id, epoch, last, timestamp, kind == ABORT, by)

    def _data(
        self, producer_id: int, epoch: int, base: int, last: int, timestamp: int, transactional: bool, sequence: int
    ) -> None:
        producer = self.producers.setdefault(producer_id, _Running())
        producer.at_epoch(epoch)
        producer.last_data, producer.timestamp, producer.delta = last, timestamp, last - base
        # Sequences begin again at 0 behind the greatest int32.
        producer.sequence = (sequence + last - base) % 2**31 if sequence >= 0 else NONE
        if transactional and producer.open_since == NONE:
            producer.open_since = self._open[producer_id] = base

    def _marker(self, producer_id: int, epoch: int, last: int, timestamp: int, abort: bool, coordinator: int) -> None:
        producer = self.producers.setdefault(producer_id, _Running())
        producer.at_epoch(epoch)
        self._open.pop(producer_id, None)
        if abort:
            # Transactions begin in offset order, so the first one left is the earliest.
            stable = next(iter(self._open.values()), last + 1)
            self.aborts.append(AbortMarker(producer_id, producer.open_since, last, stable, producer.marker))
        producer.timestamp, producer.open_since, producer.marker = timestamp, NONE, last
        # Of an emptied marker the epoch is gone; the one before was no greater.
        producer.coordinator = max(producer.coordinator, coordinator)


def _windows(store: Store, planned: PlannedSlice) -> Iterator[tuple[memoryview, BatchHeaders, int]]:
    """The slice's batches in whole windows, their headers, and where each window lies in the file; CRC-32C checked."""
    from crc32c import crc32c

    try:
        if planned.size <= SPAN_BYTES:
            data = memoryview(read_range(store, planned.file, planned.position, planned.size))
            check_slice(data, planned)
            yield data, scan_headers(data, file=planned.file, file_position=planned.position), planned.position
            return
        low = crc = 0
        while low < planned.size:
            data, headers = read_window(store, planned, low, planned.size)
            crc = crc32c(data, crc)
            yield data, headers, planned.position + low
            low += len(data)
    except MissingFile:
        raise NotFound(f"expected data file '{planned.file}', found none: plan anew, or restore it") from None
    if crc != planned.crc:
        raise Corrupt("the slice's CRC-32C is wrong: restore it", file=planned.file, position=planned.position)


def _transaction_index(store: Store, source: PlannedSlice, markers: list[AbortMarker]) -> AbortedTransactions:
    """The segment's `.txnindex`, empty where it is missing or does not fit the ABORT markers in the segment.

    One entry that is wrong condemns the file.
    """
    key = f"{source.file.removesuffix('.log')}.txnindex"
    try:
        index = transaction_index.parse(store.get(key), source.base, file=key)
    except (NotFound, Corrupt):
        return transaction_index.none()
    return index if agrees(index, markers) else transaction_index.none()
