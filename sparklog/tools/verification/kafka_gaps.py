"""Gaps between the batches of a Kafka log: what is lost, and what a cleaner may have removed.

No file of a log dir tells how far a log has been cleaned. `cleaner-offset-checkpoint` is written after a pass, so a
broker that dies before leaves gaps above it; a replica that fetches a compacted log gets its gaps, and its own cleaner
has not run yet. So above that checkpoint the batches beside a gap decide. A pass leaves no record without a key and no
key twice, on either side of what it removed: where both batches, the one before and the one behind, hold such records,
no cleaner has been there and records are lost, unless the leader changed in between: a replica that cuts its log in the
middle of a batch leaves a gap. All other gaps are undecided.

Messages of formats v0 and v1 are left out: their gaps may be as old as their compression.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from sparklog.format.decode import RecordColumns
from sparklog.format.record_batch import NO_LEADER_EPOCH
from sparklog.kafka.in_place.segment_file import Window

MOST_LOST = 3
"""Gaps of one segment that are reported one by one."""


@dataclass(frozen=True, slots=True)
class Gap:
    """Offsets `[start, end)` that are not there; the batch behind them stands at byte `position`."""

    start: int
    end: int
    position: int


@dataclass(slots=True)
class Gaps:
    """The gaps of one segment. `uncleaned`: the last data batch so far shows that no cleaner has been there;
    `leader_epoch`: of the last batch.

    `offsets`: in gaps of all kinds; `lost`: the first gaps that no cleaner made; `first`, `open`, `open_offsets`: of
    those above the cleaner's checkpoint that are undecided.
    """

    uncleaned: bool = False
    leader_epoch: int = NO_LEADER_EPOCH
    offsets: int = 0
    lost: list[Gap] = field(default_factory=list)
    first: Gap | None = None
    open: int = 0
    open_offsets: int = 0

    def add(self, window: Window, records: RecordColumns | None, end: int, cleaned: int) -> None:
        """Take in a window: `records` with keys (None: they cannot be read), `end`: the offset before it.

        `cleaned`: below this offset a cleaner has been.
        """
        headers = window.headers
        before = np.concatenate(([end], headers.next_offset[:-1]))
        gaps = headers.base_offset > before
        self.offsets += int((headers.base_offset - before)[gaps].sum())
        data = _DataBatches(records, self.uncleaned)
        epochs = np.concatenate(([self.leader_epoch], headers.leader_epoch))
        for row in np.flatnonzero(gaps & (before >= cleaned) & ~headers.is_legacy).tolist():
            gap = Gap(int(before[row]), int(headers.base_offset[row]), window.start + int(headers.position[row]))
            one_leader = epochs[row] == epochs[row + 1] or NO_LEADER_EPOCH in epochs[row : row + 2]
            if one_leader and data.uncleaned_from(row) and data.uncleaned_before(row):
                self.lost += [gap] if len(self.lost) < MOST_LOST else []
            else:
                self.first = self.first or gap
                self.open += 1
                self.open_offsets += gap.end - gap.start
        self.uncleaned = data.uncleaned_before(len(headers))
        self.leader_epoch = int(epochs[-1])


class _DataBatches:
    """Which batches of a window that hold records were never cleaned; `before`: of the last one before the window."""

    def __init__(self, records: RecordColumns | None, before: bool) -> None:
        self._before = before
        self._keys: pa.BinaryArray | None = None if records is None else records.key
        counts: npt.NDArray[np.int64] = np.empty(0, np.int64) if records is None else records.batch_rows
        self._counts = counts
        self._rows = np.flatnonzero(counts)
        self._starts = np.cumsum(counts) - counts

    def uncleaned_from(self, row: int) -> bool:
        """The first one from `row` on."""
        at = int(np.searchsorted(self._rows, row))
        return at < len(self._rows) and self._uncleaned(int(self._rows[at]))

    def uncleaned_before(self, row: int) -> bool:
        """The last one before `row`."""
        at = int(np.searchsorted(self._rows, row)) - 1
        return self._before if at < 0 else self._uncleaned(int(self._rows[at]))

    def _uncleaned(self, row: int) -> bool:
        if self._keys is None:
            return False
        keys = self._keys.slice(int(self._starts[row]), int(self._counts[row]))
        return bool(keys.null_count) or len(set(keys.to_pylist())) < len(keys)
