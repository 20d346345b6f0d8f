"""Corrupt ranges of a log that a reader skips (`corruptRecords=skip`)."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

_LOG = logging.getLogger("sparklog.log")


@dataclass(frozen=True, slots=True)
class Skipped:
    """A corrupt range of a log that a reader skipped.

    * `file`, `position`, `nbytes`: the skipped bytes. `position` is None if records were skipped without skipping
      bytes.
    * `start`, `end`: the skipped offsets `[start, end)`. No record in this range was read. `end` is None if it is
      unknown.
    """

    topic: str
    partition: int
    file: str
    position: int | None
    nbytes: int
    start: int
    end: int | None
    reason: str

    def __str__(self) -> str:
        last = "and later" if self.end is None else f"to {max(self.end - 1, self.start)}"
        location = "" if self.position is None else f", {self.nbytes} bytes from position {self.position}"
        return (
            f"skipped corrupt offsets {self.start} {last} of {self.topic}-{self.partition}: {self.reason}"
            f" (file {self.file}{location})"
        )


OnSkipped: TypeAlias = Callable[[Skipped], None]


def log_skipped(skipped: Skipped) -> None:
    _LOG.warning("sparklog: %s", skipped)


class SkippedLog:
    """Logs each corrupt range once, even if it is read several times, and counts the ranges."""

    def __init__(self) -> None:
        self._logged: set[tuple[str, int | None]] = set()

    def __call__(self, skipped: Skipped) -> None:
        if (range_start := (skipped.file, skipped.position)) not in self._logged:
            self._logged.add(range_start)
            log_skipped(skipped)

    def __len__(self) -> int:
        return len(self._logged)
