"""Where a read starts and ends: `earliest`, `latest`, offsets and timestamps as numbers, by the Kafka connector's
rules.

Waiting until a view reaches offsets that are known from elsewhere: a checkpoint, or a consumer group.

A stream that is started again on another machine knows offsets that the machine before has seen. Where names are
cached, as network file systems do, this one may believe for a while that the newest commits do not exist. Taken for the
end of the log that would be data loss. The same holds for a decision of a transaction: a batch that was planned when it
was known must not be read again where it is not. So what lies beyond the end is looked for again, as long as caches
last (`SETTLE_MS`).

Offsets of a topic that is gone, or was created again, are not waited for.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from operator import attrgetter

from sparklog.datasource.offsets import EARLIEST, LATEST, StreamOffset, describe
from sparklog.datasource.options import Bound
from sparklog.datasource.user_errors import warn
from sparklog.errors import BadRequest, NotFound
from sparklog.log.journal.env import MAX_TRIES, SETTLE_MS
from sparklog.log.state.view import Bounds, LogView

Partitions = Mapping[str, Mapping[int, Bounds]]
"""Topic -> partition -> bounds: what is read, with the snapshot it is read from."""


class DataLoss:
    """What to do about records that cannot be read any more: an error, or with `failOnDataLoss=false` a warning,
    once."""

    def __init__(self, fail: bool) -> None:
        self.fail = fail
        self._said: set[str] = set()

    def report(self, what: str, otherwise: str) -> None:
        """`what` was lost; `otherwise` says how reading goes on. Raises NotFound unless the user allows it."""
        if self.fail:
            raise NotFound(f"{what}. To go on without them set failOnDataLoss=false: reading then {otherwise}")
        if what not in self._said:
            self._said.add(what)
            warn(f"{what}; failOnDataLoss=false: reading {otherwise}")


def resolve_bound(
    view: LogView, partitions: Partitions, bound: Bound, isolation: str, *, no_match_is_latest: bool
) -> dict[str, dict[int, int]]:
    """The offset of every partition for one bound. Raises BadRequest where the listed partitions are not those read."""
    _check_listed(partitions, bound)
    result: dict[str, dict[int, int]] = {}
    for topic, found in partitions.items():
        if bound.kind == "timestamp":
            result[topic] = _by_timestamp(view, topic, found, bound, isolation, no_match_is_latest)
            continue
        result[topic] = {}
        for partition, limits in found.items():
            wanted = {"earliest": EARLIEST, "latest": LATEST}.get(bound.kind)
            offset = bound.offsets[topic][partition] if wanted is None else wanted
            special = {EARLIEST: limits.log_start, LATEST: limits.end(isolation)}
            result[topic][partition] = special.get(offset, offset)
    return result


def _check_listed(partitions: Partitions, bound: Bound) -> None:
    """Offsets given one by one must be given for exactly the partitions that are read, as Kafka's connector wants
    it."""
    listed = bound.partitions()
    if listed is None:
        return
    left_out = {t: {p: 0 for p in found if p not in listed.get(t, {})} for t, found in partitions.items()}
    unknown = {t: {p: 0 for p in found if p not in partitions.get(t, {})} for t, found in listed.items()}
    if any(unknown.values()):
        raise BadRequest(f"{bound.option} names partitions that are not read: {describe(unknown)}; leave them out")
    if any(left_out.values()):
        hint = "; -2 is the earliest, -1 the latest offset" if bound.kind == "offsets" else ""
        raise BadRequest(f"{bound.option} must name every partition that is read; missing: {describe(left_out)}{hint}")


def _by_timestamp(
    view: LogView, topic: str, found: Mapping[int, Bounds], bound: Bound, isolation: str, no_match_is_latest: bool
) -> dict[int, int]:
    each = bound.timestamps[topic] if bound.timestamps is not None else {}
    targets = {p: bound.timestamp if bound.timestamp is not None else each[p] for p in found}
    answers = view.offsets_for_timestamps(topic, targets, isolation)
    result: dict[int, int] = {}
    for partition, limits in found.items():
        answer = answers[partition]
        if answer is None and not no_match_is_latest:
            raise NotFound(
                f"{bound.option}: {topic}-{partition} has no record at or after {targets[partition]} ms; give an "
                "earlier time, or startingOffsetsByTimestampStrategy=latest to start at its end"
            )
        result[partition] = limits.end(isolation) if answer is None else answer.offset
    return result


def check_start(topic: str, partition: int, start: int, end: int, limits: Bounds, loss: DataLoss) -> int:
    """The start of a range in the snapshot: at or after the log start, else data loss. Returns where to start."""
    if start < limits.log_start:
        stop = min(end, limits.log_start)
        loss.report(
            f"Offsets {start} to {stop - 1} of {topic}-{partition} are gone: the log starts at {limits.log_start} "
            "(retention or delete-records)",
            "goes on from the log start",
        )
        return stop
    return start


def check_end(topic: str, partition: int, end: int, limits: Bounds, loss: DataLoss) -> int:
    """The end of a range in the snapshot: at or before the log end, else data loss. Returns where to end."""
    if end > limits.log_end:
        loss.report(
            f"Offset {end} of {topic}-{partition} is out of range: the log ends at {limits.log_end}",
            "ends there",
        )
        return limits.log_end
    return end


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
