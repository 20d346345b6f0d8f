"""Judge whole batches in a cleaning pass, before their records are read (docs/reference/kafka-format.md).

Aborted data goes in the first pass that reads it. A marker stays while the same pass reads a batch of its transaction,
even an emptied one. The first pass without such a batch stamps a delete horizon on the marker, and a pass after that
horizon drops it. A live producer's last batch, and the last batch of the range, are emptied instead of dropped.

Kafka feeds a tracker with the aborted transactions of each segment in turn. Here all are known from the start: a data
batch is aborted if it lies between an aborted transaction's first offset and its marker.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sparklog.compaction.producer_state import PartitionProducers, active, turns
from sparklog.errors import Corrupt
from sparklog.format import transaction_index
from sparklog.format.control import ABORT, COMMIT, control_types
from sparklog.format.record_batch import NO_PRODUCER_ID, BatchHeaders, BytesLike
from sparklog.format.transaction_index import AbortedTransactions

Bools = npt.NDArray[np.bool_]
_COMMITTED, _ABORTED, _CONTROL = 0, 1, 2


@dataclass(frozen=True, slots=True, eq=False)
class Verdicts:
    """Verdicts on m batches, one bool each.

    * `discard_data`: aborted data, no record survives
    * `drop_control`: a control batch whose delete horizon has passed, its record does not survive
    * `stamp_control`: a control batch that gets a delete horizon now; its record survives
    * `retain_empty`: if no record survives, the empty batch stays; otherwise the batch goes altogether
    * `aborted`: entries that the new `.txnindex` gets, for those ABORT markers among the batches that stay because
      something of their transaction was met

    Control batches that are in none of these keep their record, without a horizon or with the one they have.
    """

    discard_data: Bools
    drop_control: Bools
    stamp_control: Bools
    retain_empty: Bools
    aborted: AbortedTransactions


class AbortedFilter:
    """Select aborted data batches: they are left out of the offset map, as control batches are."""

    def __init__(self, state: PartitionProducers | None) -> None:
        """`state` None: no batch of the partition carries a producer id."""
        self._known = state is not None
        self._aborted = transaction_index.none() if state is None else state.aborted

    def aborted(self, data: BytesLike, headers: BatchHeaders) -> Bools:
        """Return bool[m]: True for batches of aborted transactions, False for control batches.

        `Corrupt` if the state knows of no producers, and a batch has one.
        """
        aborted = np.zeros(len(headers), np.bool_)
        if not self._known:
            _check_no_producers(headers)
            return aborted
        rows = np.flatnonzero(headers.is_transactional & ~headers.is_control)
        aborted[rows] = self._aborted.covers(headers.producer_id[rows], headers.base_offset[rows])
        return aborted


class BatchJudge:
    """Judge the batches of one pass, in log order from the partition's first batch on. Keeps state of transactions."""

    def __init__(
        self, state: PartitionProducers | None, *, now_ms: int, expiration_ms: int, first_uncleanable: int
    ) -> None:
        """`state` None: no batch of the partition carries a producer id. `now_ms`: the pass's clock."""
        self._state = state
        self._filter = AbortedFilter(state)
        self._now_ms = now_ms
        self._first_uncleanable = first_uncleanable
        live = {} if state is None else active(state.producers, now_ms, expiration_ms)
        ids = sorted(live)
        self._ids = np.array(ids, np.int64)
        self._last_data = np.array([live[each].last_data_offset for each in ids], np.int64)
        self._epochs = np.array([live[each].epoch for each in ids], np.int64)
        self._observed: set[int] = set()
        """Producers whose aborted data was met since their last ABORT marker."""
        self._committed: set[int] = set()
        """Producers whose other transactional data was met since their last COMMIT marker."""

    def judge(
        self, data: BytesLike, headers: BatchHeaders, *, file: str | None = None, file_position: int = 0
    ) -> Verdicts:
        """Judge the next batches: `headers` (absolute offsets) of a scan of `data`, byte `file_position` of `file`.

        `Corrupt` for a marker that cannot be read, and for a producer where the state knows of none.
        """
        discard = self._filter.aborted(data, headers)
        retain = headers.next_offset == self._first_uncleanable
        if self._state is None:
            none = np.zeros(len(headers), np.bool_)
            return Verdicts(discard, none, none, retain, transaction_index.none())
        gone, entries = self._control(data, headers, discard, file, file_position)
        horizon = headers.has_delete_horizon
        return Verdicts(
            discard_data=discard,
            drop_control=gone & horizon & (headers.base_timestamp <= self._now_ms),
            stamp_control=gone & ~horizon & (headers.count > 0),
            retain_empty=retain | self._last_of_producer(headers),
            aborted=entries,
        )

    def _last_of_producer(self, headers: BatchHeaders) -> Bools:
        """Return True for the last data batch of each live producer, or its last marker if it wrote no data."""
        if not len(self._ids):
            return np.zeros(len(headers), np.bool_)
        at = np.minimum(np.searchsorted(self._ids, headers.producer_id), len(self._ids) - 1)
        last_data = self._last_data[at]
        last_marker = (last_data < 0) & headers.is_control & (headers.producer_epoch == self._epochs[at])
        last_batch = (last_data >= 0) & (headers.last_offset == last_data)
        last: Bools = (self._ids[at] == headers.producer_id) & (last_batch | last_marker)
        return last

    def _control(
        self, data: BytesLike, headers: BatchHeaders, aborted: Bools, file: str | None, file_position: int
    ) -> tuple[Bools, AbortedTransactions]:
        """Return markers without batches of their transaction (bool[m]), and the transactions of ABORTs that stay."""
        control = headers.is_control
        gone = np.zeros(len(headers), np.bool_)
        rows = np.flatnonzero(headers.is_transactional | control)
        kinds = np.where(control[rows], _CONTROL, aborted[rows].astype(np.int64))
        chosen = turns(headers.producer_id[rows], kinds) | control[rows]
        rows, kinds = rows[chosen], kinds[chosen]
        types = control_types(data, headers[rows], file=file, file_position=file_position)
        staying: list[int] = []
        columns = (rows, headers.producer_id[rows], headers.last_offset[rows], headers.count[rows], kinds, types)
        for row, producer, offset, count, kind, type_ in zip(*(each.tolist() for each in columns), strict=True):
            if kind == _ABORTED:
                self._observed.add(producer)
            elif kind == _COMMITTED:
                self._committed.add(producer)
            elif count == 0:
                gone[row] = True
            elif type_ == ABORT:
                gone[row] = producer not in self._observed
                if producer in self._observed:
                    staying.append(offset)
                self._observed.discard(producer)
            elif type_ == COMMIT:
                gone[row] = producer not in self._committed
                self._committed.discard(producer)
        return gone, self._entries(staying)

    def _entries(self, markers: list[int]) -> AbortedTransactions:
        """Return the aborted transactions that these ABORT markers end."""
        if self._state is None or not markers:
            return transaction_index.none()
        known = self._state.aborted
        return known.select(np.searchsorted(known.last_offsets, np.array(markers, np.int64)))


def _check_no_producers(headers: BatchHeaders) -> None:
    wrong = np.flatnonzero(headers.is_control | headers.is_transactional | (headers.producer_id != NO_PRODUCER_ID))
    if len(wrong):
        raise Corrupt(
            "expected batches without producers, as the log says of these slices, found a producer id or a control"
            " batch: restore the file",
            offset=int(headers.base_offset[wrong[0]]),
        )
