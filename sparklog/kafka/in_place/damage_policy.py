"""Policies for damage in a Kafka log, and the report of records that were left out.

| policy     | effect of a damaged batch in front of the log's end                                               |
|------------|---------------------------------------------------------------------------------------------------|
| `fail`     | reading its offsets is `Corrupt`, naming file, position and offset; all other offsets can be read |
| `skip`     | it is left out and reported; reading goes on with the next whole batch                            |
| `truncate` | the log ends in front of it, as after Kafka's recovery from an unclean shutdown (recovery point 0) |

The log's end is the same for `fail` and for Kafka's recovery of the last segment: behind the last whole batch. Bytes
behind it (half a batch, zeros, garbage) are not written yet or never will be, and are no damage. `skip` goes on behind
them if whole batches follow.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from sparklog.errors import BadRequest

CorruptRecords = Literal["fail", "skip", "truncate"]
FAIL: Final = "fail"
SKIP: Final = "skip"
TRUNCATE: Final = "truncate"
POLICIES = (FAIL, SKIP, TRUNCATE)

_LOG = logging.getLogger("sparklog.kafka")


@dataclass(frozen=True, slots=True)
class Skipped:
    """A stretch of a log that was left out because it is damaged.

    * `file`, `position`, `nbytes`: the bytes; `position` is None if it is records that are left out and not bytes
    * `start`, `end`: no record of offsets `[start, end)` was read in it; `end` is None where nothing says how far the
      damage reaches
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
        last = "on" if self.end is None else f"to {max(self.end - 1, self.start)}"
        place = "" if self.position is None else f", {self.nbytes} bytes from position {self.position}"
        return (
            f"left out offsets {self.start} {last} of {self.topic}-{self.partition} as damaged: {self.reason}"
            f" (file {self.file}{place})"
        )


OnSkipped: TypeAlias = Callable[[Skipped], None]


def log_skipped(skipped: Skipped) -> None:
    """The default report: a warning of the logger `sparklog.kafka`."""
    _LOG.warning("sparklog: %s", skipped)


_said: set[str] = set()


def warn_once(message: str) -> None:
    """A warning of that logger, once in this process: views look again and again."""
    if message not in _said:
        _said.add(message)
        _LOG.warning("sparklog: %s", message)


def check_policy(policy: str) -> str:
    """`BadRequest` for anything but the policies above."""
    if policy not in POLICIES:
        raise BadRequest(f"unknown corrupt_records {policy!r}: expected one of {', '.join(POLICIES)}")
    return policy
