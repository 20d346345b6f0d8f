"""Sound batches of a segment, the next sound batch after damage, and the policies for damage.

| policy     | effect of a damaged batch in front of the log's end                                               |
|------------|---------------------------------------------------------------------------------------------------|
| `fail`     | reading its offsets is `Corrupt`, naming file, position and offset; all other offsets can be read |
| `skip`     | it is left out and reported; reading goes on with the next whole batch                            |
| `truncate` | the log ends in front of it, as after Kafka's recovery from an unclean shutdown (recovery point 0) |

The log's end is the same for `fail` and for Kafka's recovery of the last segment: after the last whole batch. Bytes
after it (half a batch, zeros, garbage) are not written yet or never will be, and are no damage. `skip` goes on after
them if whole batches follow.

`sparklog.format.batch_walk` defines valid batches and finds the next one after a corrupt batch. If batches are out of
order, Kafka's recovery ends the log at the last one. sparklog chooses the invalid one of the two.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
import numpy.typing as npt

from sparklog.errors import BadRequest
from sparklog.format.batch_scan import MAX_OFFSET
from sparklog.format.batch_walk import Span, first_is_wrong
from sparklog.format.record_batch import (
    BatchHeaders,
)
from sparklog.log.read.skipped import Skipped

CorruptRecords = Literal["fail", "skip", "truncate"]
FAIL: Final = "fail"
SKIP: Final = "skip"
TRUNCATE: Final = "truncate"
POLICIES = (FAIL, SKIP, TRUNCATE)

_LOG = logging.getLogger("sparklog.kafka")


def log_skipped(skipped: Skipped) -> None:
    _LOG.warning("sparklog: %s", skipped)


_said: set[str] = set()


def warn_once(message: str) -> None:
    """A warning of that logger, once in this process: views look again and again."""
    if message not in _said:
        _said.add(message)
        _LOG.warning("sparklog: %s", message)


def check_policy(policy: str) -> str:
    if policy not in POLICIES:
        raise BadRequest(f"unknown corrupt_records {policy!r}: expected one of {', '.join(POLICIES)}")
    return policy


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
        # An offset beyond what a log can hold ends it there, and a reader of the batch gets an error.
        ends = np.minimum(starts, MAX_OFFSET - np.maximum(deltas, 0)) + deltas + 1
        positions = headers.position + start
        ordered = np.ones(len(starts), np.bool_)
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
