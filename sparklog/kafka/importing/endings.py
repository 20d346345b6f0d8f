"""What a copy that leaves damage out puts in place of lost markers: ABORT markers of its own.

A transaction whose marker is lost must not be ended by a marker that its producer wrote later for another one: a COMMIT
would show what may have been aborted. So the log itself has to say that it ended. The offsets that were left out are
free, and so is every gap in front of them; there each transaction that may have ended in the damage gets its marker,
with the epoch after its own, as Kafka's coordinator ends what has timed out. Where a marker can still be read and only
lies at a wrong offset, it is written as it was.

Readers of the same directory where it lies leave out the same records (`sparklog.kafka.in_place.partition_state`).
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
from sparklog.log.write.kafka_end import MAX_EPOCH

LeftOut: TypeAlias = Callable[[int, int, int, int | None, str], None]
"""Told of damage that is not copied: position, bytes, first offset, offset behind it or None, what was found."""


@dataclass(slots=True)
class Endings:
    """Ends transactions in the copy of one segment.

    * `open_after`: producer id -> first offset of the transactions that are open after these events of the segment
    * `epochs`: of transactional producers before the segment; `leader_epoch`: the greatest before it
    * `told`: of a transaction that is left out because nothing says how it ended: first offset, offset behind, reason
    """

    open_after: Callable[[TransactionEvents], Mapping[int, int]]
    epochs: Mapping[int, int]
    leader_epoch: int
    told: Callable[[int, int, str], None]
    _gaps: list[tuple[int, int, int]] = field(default_factory=list)
    """Bytes `[position, until)` that were left out; what follows them begins at offset `end`."""

    def noting(self, left_out: LeftOut) -> LeftOut:
        """What tells `left_out`, and notes where the copy has gaps."""

        def noted(position: int, nbytes: int, start: int, end: int | None, reason: str) -> None:
            left_out(position, nbytes, start, end, reason)
            if end is not None:
                self._gaps.append((position, position + nbytes, end))

        return noted

    def around(self, windows: Iterator[Window], totals: SegmentTotals, file: SegmentFile) -> Iterator[Window]:
        """The windows, and markers where something was left out. `totals` are of what was yielded so far."""
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
                self.told(
                    opened[producer],
                    offset + 1,
                    f"records of producer {producer}, the marker that ended its transaction is damaged",
                )
        return Ending(data, position, scan_headers(data))
