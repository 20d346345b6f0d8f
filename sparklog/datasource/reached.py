"""Waiting until a view reaches offsets that are known from elsewhere: a checkpoint, or a consumer group.

A stream that is started again on another machine knows offsets that the machine before has seen. Where names are
cached, as network file systems do, this one may believe for a while that the newest commits do not exist. Taken for the
end of the log that would be data loss. The same holds for a decision of a transaction: a batch that was planned when it
was known must not be read again where it is not. So what lies beyond the end is looked for again, as long as caches
last (`SETTLE_MS`).

Offsets of a topic that is gone, or was created again, are not waited for.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from operator import attrgetter

from sparklog.datasource.offsets import StreamOffset
from sparklog.datasource.user_errors import warn
from sparklog.log.journal.numbered_objects import MAX_TRIES, SETTLE_MS
from sparklog.log.state.view import Bounds, LogView


FIRST_WAIT_S = 0.02
LONGEST_WAIT_S = 1.0


@dataclass(frozen=True)
class Clock:
    """Monotonic seconds and sleep, so that tests need not wait."""

    now: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep


def wait_until_reached(
    view: LogView,
    named: StreamOffset,
    look: Callable[[], Collection[str]],
    clock: Clock,
    end_of: Callable[[Bounds], int] = attrgetter("log_end"),
) -> list[str]:
    """Look again until the view reaches these offsets, or longer has passed than caches last.

    `look` takes a new snapshot and returns the topics that exist; one has been taken before, of all that are named.
    `end_of` says which end of a partition counts. Returns the partitions that end before these offsets even so.
    """
    begun, tries = clock.now(), 0
    present: Collection[str] = named.positions.keys()
    while beyond := _beyond(view, present, named, end_of):
        if tries >= MAX_TRIES or clock.now() - begun > SETTLE_MS / 1000:
            return beyond
        if not tries:
            warn(
                f"offsets known from before lie beyond the end of {', '.join(beyond)} as it is seen here; looking "
                f"again for {SETTLE_MS // 1000} s"
            )
        clock.sleep(min(FIRST_WAIT_S * 2**tries, LONGEST_WAIT_S))
        present = look()
        tries += 1
    return []


def _beyond(view: LogView, present: Collection[str], named: StreamOffset, end_of: Callable[[Bounds], int]) -> list[str]:
    """Partitions that end before these offsets, or do not exist, in topics that do."""
    found = []
    for topic, offsets in sorted(named.positions.items()):
        if topic not in present or named.ids.get(topic) not in (None, view.topic_id(topic)):
            continue
        bounds = view.bounds(topic)
        found += [
            f"{topic}-{partition}"
            for partition, offset in sorted(offsets.items())
            if partition not in bounds or end_of(bounds[partition]) < offset
        ]
    return found
