"""Where a read starts and ends: `earliest`, `latest`, offsets and timestamps as numbers, by the Kafka connector's
rules."""

from __future__ import annotations

from collections.abc import Mapping

from sparklog.datasource.offsets import EARLIEST, LATEST, describe
from sparklog.datasource.options import Bound
from sparklog.datasource.user_errors import warn
from sparklog.errors import BadRequest, NotFound
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
