"""Write ABORT markers in place of lost markers, in a copy that leaves damage out.

A transaction whose marker is lost must not be ended by a later marker of the same producer: a COMMIT would show records
that may have been aborted. So the copy must hold a marker. The offsets of the damage are free, and so is the gap in
front of them. There each transaction that may have ended in the damage gets an ABORT marker with the next epoch, as
Kafka's coordinator ends a transaction that has timed out. A marker that can be read, but lies at a wrong offset, is
written as it was.

Readers of the directory in place leave out the same records (`sparklog.kafka.in_place.partition_state`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from sparklog.errors import Corrupt
from sparklog.format.batch_scan import scan_headers
from sparklog.format.control import end_txn_marker
from sparklog.kafka.importing.totals import Ending, SegmentTotals
from sparklog.kafka.in_place.segment_file import SegmentFile, Window
from sparklog.kafka.in_place.transaction_state import ANYBODY, TransactionEvents, lost_markers
from sparklog.log.write.kafka_markers import MAX_EPOCH

LeftOut: TypeAlias = Callable[[int, int, int, int | None, str], None]
"""Called with damage that is not copied: position, bytes, first offset, offset behind it or None, reason."""


@dataclass(slots=True)
class Endings:
    """The ends of transactions in the copy of one segment.

    * `open_after`: producer id -> first offset of the transactions that are open after these events of the segment
    * `epochs`: of transactional producers before the segment; `leader_epoch`: the greatest before it
    * `undecided`: called with a transaction that is left out because its outcome is lost: first offset, offset behind,
      reason
    """

    open_after: Callable[[TransactionEvents], Mapping[int, int]]
    epochs: Mapping[int, int]
    leader_epoch: int
    undecided: Callable[[int, int, str], None]
    _gaps: list[tuple[int, int, int]] = field(default_factory=list)
    """Bytes `[position, until)` that were left out; the next batch begins at offset `end`."""

    def noting(self, left_out: LeftOut) -> LeftOut:
        """Return a function that calls `left_out`, and notes the gaps of the copy."""

        def noted(position: int, nbytes: int, start: int, end: int | None, reason: str) -> None:
            left_out(position, nbytes, start, end, reason)
            if end is not None:
                self._gaps.append((position, position + nbytes, end))

        return noted

    def around(self, windows: Iterator[Window], totals: SegmentTotals, file: SegmentFile) -> Iterator[Window]:
        """Yield the windows, and markers at the gaps between them. `totals` are of the windows yielded so far."""
        for window in windows:
            yield from self._endings(totals, file)
            yield window
        yield from self._endings(totals, file)

    def _endings(self, totals: SegmentTotals, file: SegmentFile) -> Iterator[Window]:
        gaps, self._gaps = self._gaps, []
        for position, until, end in gaps:
            ended: dict[int, bool | None] = {}
            opened = self.open_after(totals.events)
            for lost in lost_markers(file, position, until):
                if lost.producer == ANYBODY:
                    ended.update(dict.fromkeys(opened))
                elif lost.producer in opened:
                    ended[lost.producer] = lost.commit
            if ended and end > totals.next_offset:
                yield self._markers(ended, opened, totals, (position, end), file)

    def _markers(
        self,
        ended: Mapping[int, bool | None],
        opened: Mapping[int, int],
        totals: SegmentTotals,
        gap: tuple[int, int],
        file: SegmentFile,
    ) -> Ending:
        position, end = gap
        first = end - len(ended)
        if first < totals.next_offset:
            raise Corrupt(
                f"{len(ended)} transactions were open where damage may have taken their markers, with room for"
                f" {end - totals.next_offset} others: restore the file, or import with corrupt_records truncate",
                file=file.path,
                position=position,
                offset=totals.next_offset,
            )
        data = b""
        for offset, (producer, commit) in enumerate(sorted(ended.items()), first):
            epoch = totals.epochs.get(producer, self.epochs.get(producer, 0))
            data += end_txn_marker(
                commit=bool(commit),
                offset=offset,
                timestamp=max(totals.max_ts, 0),
                producer_id=producer,
                producer_epoch=min(epoch + 1, MAX_EPOCH),
                coordinator_epoch=0,
                leader_epoch=max(totals.leader_epoch, self.leader_epoch),
            )
            if commit is None:
                self.undecided(
                    opened[producer],
                    offset + 1,
                    f"records of producer {producer}, the marker that ended its transaction is damaged",
                )
        return Ending(data, position, scan_headers(data))
