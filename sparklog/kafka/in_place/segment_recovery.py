"""Policies for damaged batches in a Kafka directory, and detection of out-of-order batches.

| policy     | effect of a damaged batch before the end of the log                                                     |
|------------|---------------------------------------------------------------------------------------------------------|
| `fail`     | reading its offsets raises `Corrupt` with file, position and offset; all other offsets can be read      |
| `skip`     | the batch is skipped and reported; reading continues with the next valid batch                          |
| `truncate` | the log ends before the batch, as after Kafka's recovery from an unclean shutdown with recovery point 0 |

If the policy is `fail`, the log ends after its last complete batch, as after Kafka's recovery of the last segment. The
bytes after the last complete batch (an incomplete batch, zeros or garbage) were never completely written, so they are
not treated as damage. If the policy is `skip`, reading continues after these bytes if valid batches follow.

`sparklog.format.batch_walk` defines which batches are valid, and finds the next valid batch after a corrupt one. If a
batch is out of order, Kafka's recovery truncates the log before this batch. sparklog determines whether this batch or
the previous batch is invalid.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
import numpy.typing as npt

from sparklog.common.warned import is_first_warning
from sparklog.errors import BadRequest
from sparklog.format.batch_scan import MAX_OFFSET
from sparklog.format.batch_walk import Span, first_is_wrong
from sparklog.format.record_batch import BatchHeaders
from sparklog.log.read.skipped import Skipped

CorruptRecords = Literal["fail", "skip", "truncate"]
FAIL: Final = "fail"
SKIP: Final = "skip"
TRUNCATE: Final = "truncate"
POLICIES = (FAIL, SKIP, TRUNCATE)
AFTER_TRUNCATION = "the log was truncated at earlier damage"

_LOG = logging.getLogger("sparklog.kafka")


def log_skipped(skipped: Skipped) -> None:
    _LOG.warning("sparklog: %s", skipped)


def warn_once(message: str) -> None:
    """Log a warning only once per process, because the same problem may be found repeatedly."""
    if is_first_warning("in-place reads", message):
        _LOG.warning("sparklog: %s", message)


def check_policy(policy: str) -> str:
    if policy not in POLICIES:
        raise BadRequest(f"unknown corrupt_records {policy!r}: expected one of {', '.join(POLICIES)}")
    return policy


@dataclass(slots=True)
class OffsetOrder:
    """Finds out-of-order batches.

    * `end`: the end offset of the batches that have been added, excluding out-of-order batches
    * `is_ordered`: True if no batch was out of order
    """

    end: int
    is_ordered: bool = True
    _before: int = 0
    _last: Span | None = None
    _position: int = -1

    def add(self, headers: BatchHeaders, start: int, is_valid: Callable[[int], bool]) -> npt.NDArray[np.bool_]:
        """Add the next batches, whose positions are relative to `start`. Return True for each batch that is in order.

        `is_valid` returns True if the batch at a position matches its checksum. `is_valid` is called only if batches
        are out of order.
        """
        starts, deltas = headers.base_offset, headers.last_offset_delta
        # If the offset of a batch exceeds the maximum, the log ends at the maximum, and reading the batch is an error.
        ends = np.minimum(starts, MAX_OFFSET - np.maximum(deltas, 0)) + deltas + 1
        positions = headers.position + start
        ordered = np.ones(len(starts), np.bool_)
        if starts[0] >= self.end and (starts[1:] >= ends[:-1]).all():
            self._before = int(ends[-2]) if len(ends) > 1 else self.end
            self._follow(Span(int(starts[-1]), int(ends[-1])), int(positions[-1]))
            return ordered
        self.is_ordered = False
        latest = -1
        for row, span in enumerate(map(Span, starts.tolist(), ends.tolist())):
            position = int(positions[row])
            if span.start >= self.end:
                self._before = self.end
            elif self._replaces_previous(
                span, position, int(starts[row + 1]) if row + 1 < len(starts) else None, is_valid
            ):
                if latest >= 0:
                    ordered[latest] = False
            else:
                ordered[row] = False
                continue
            self._follow(span, position)
            latest = row
        return ordered

    def _follow(self, span: Span, position: int) -> None:
        self._last, self._position, self.end = span, position, span.end

    def _replaces_previous(self, span: Span, position: int, after: int | None, is_valid: Callable[[int], bool]) -> bool:
        """Return True if the previous batch is out of order, rather than the current batch."""
        if self._last is None or span.start < self._before or not is_valid(position):
            return False
        return not is_valid(self._position) or first_is_wrong(self._before, self._last, span, after)
