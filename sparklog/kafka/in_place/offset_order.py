"""The order of batches by their offsets, which no checksum covers, and which of two batches out of order is wrong.

Two batches are out of order if the second begins below the end of the first. Either the offset of one was damaged, or
one is stale: bytes of an older batch. Kafka looks at neither and takes the last batch of a log for its end.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sparklog.format.batch_checks import MAX_OFFSET
from sparklog.format.record_batch import BatchHeaders


_BITS = 63


@dataclass(frozen=True, slots=True)
class Span:
    """Offsets `[start, end)` as a batch claims them."""

    start: int
    end: int

    def flips_into(self, low: int, high: int | None) -> int:
        """How well one flipped bit of its offset explains that it belongs between `low` and `high` (None: anywhere).

        3: it touches a neighbour there, 2: it fits, 0: it does not.
        """
        best, length = 0, self.end - self.start
        for bit in range(_BITS):
            start = self.start ^ (1 << bit)
            if start == low or start + length == high:
                best = max(best, 3 if high is None or low <= start <= high - length else 0)
            elif high is not None and low <= start <= high - length:
                best = max(best, 2)
        return best


def first_is_wrong(before: int, first: Span, second: Span, after: int | None) -> bool:
    """Blame one of two batches out of order: True for the first, False for the second.

    `before`: where the batch in front of the first ends; `after`: where the one behind the second begins, None if there
    is none. The first is right if it follows directly. Else that batch is wrong without which the rest is in order; if
    either will do, the one that a flipped bit explains or that fits into the hole it would leave.
    """
    if first.start == before or second.start < before:
        return False
    hole = second.start - before
    blame_first = first.flips_into(before, second.start) + 2 * (hole == first.end - first.start) + (hole == 0)
    if after is None:
        return blame_first > second.flips_into(first.end, None)
    if (first.end <= after) != (second.end <= after):
        return second.end <= after
    hole = after - first.end
    blame_second = second.flips_into(first.end, after) + 2 * (hole == second.end - second.start) + (hole == 0)
    return blame_first >= blame_second


@dataclass(slots=True)
class OffsetOrder:
    """Follows a log batch by batch: `end` is where its offsets end, without batches that are out of order."""

    end: int
    _before: int = 0
    _last: Span | None = None
    _position: int = -1

    def take(self, headers: BatchHeaders, start: int, holds: Callable[[int], bool]) -> npt.NDArray[np.bool_]:
        """Take in the next batches, whose positions count from `start`; True for those in order.

        `holds`: does the checksum of the batch at this position match? Asked only of batches out of order.
        """
        starts, deltas = headers.base_offset, headers.last_offset_delta
        # An offset beyond what a log can hold ends it there, and whoever reads the batch gets an error.
        ends = np.minimum(starts, MAX_OFFSET - np.maximum(deltas, 0)) + deltas + 1
        positions = headers.position + start
        ordered = np.ones(len(starts), np.bool_)
        if not len(starts):
            return ordered
        if starts[0] >= self.end and (starts[1:] >= ends[:-1]).all():
            self._before = int(ends[-2]) if len(ends) > 1 else self.end
            self._follow(Span(int(starts[-1]), int(ends[-1])), int(positions[-1]))
            return ordered
        newest = -1
        for row, span in enumerate(map(Span, starts.tolist(), ends.tolist())):
            position = int(positions[row])
            if span.start >= self.end:
                self._before = self.end
            elif self._takes_over(span, position, int(starts[row + 1]) if row + 1 < len(starts) else None, holds):
                if newest >= 0:
                    ordered[newest] = False
            else:
                ordered[row] = False
                continue
            self._follow(span, position)
            newest = row
        return ordered

    def _follow(self, span: Span, position: int) -> None:
        self._last, self._position, self.end = span, position, span.end

    def _takes_over(self, span: Span, position: int, after: int | None, holds: Callable[[int], bool]) -> bool:
        """True if the batch before this one is out of order, and not this one."""
        if self._last is None or span.start < self._before or not holds(position):
            return False
        return not holds(self._position) or first_is_wrong(self._before, self._last, span, after)
