"""Bounds of a read as offsets, by the rules of Spark's Kafka connector, and the wait until a log reaches them.

A stream that is started again on another machine knows offsets that the machine before has seen. Network file systems
cache names: this machine may not see the newest commits for a while. Taken for the end of the log, that would be data
loss. The same holds for a decision of a transaction. So offsets beyond the end are looked for again, as long as caches
last (`SETTLE_MS`), but not those of a topic that was deleted or created again.

A read may begin at the committed offsets of its group (`startingOffsets=group`). Where the group has no offset, or one
out of range, `kafka.auto.offset.reset` says where a partition begins, as for Kafka's consumer. Where that is not given,
a partition without an offset begins where a read without `startingOffsets` would, and one out of range is data loss.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from operator import attrgetter

from sparklog.common.times import iso_time
from sparklog.datasource.offsets import EARLIEST, LATEST, StreamOffset, describe
from sparklog.datasource.options import GROUP, Bound, ReadOptions
from sparklog.datasource.spark_workers import warn
from sparklog.datasource.subscription import Subscriber
from sparklog.errors import BadRequest, NotFound
from sparklog.log.state.view import Bounds, LogView, OffsetRange
from sparklog.storage.retries import SETTLE_MS, Backoff, Clock

Partitions = Mapping[str, Mapping[int, Bounds]]
"""Topic -> partition -> bounds: what is read, with the snapshot it is read from."""


OTHER_ROOT = ", or the checkpoint is of another root: then give this query a checkpointLocation of its own"


class DataLoss:
    """Report records that are not there to read: by an error, or with `failOnDataLoss=false` by one warning."""

    def __init__(self, fail: bool) -> None:
        self.fail = fail
        self._said: set[str] = set()

    def report(self, what: str, otherwise: str, *, hint: str = "", remedy: str = "") -> None:
        """Raise NotFound, or warn. `hint`: what else it may be; `remedy`: what to do where no records are lost."""
        if self.fail and remedy:
            raise NotFound(f"{what}: {remedy}")
        if self.fail:
            raise NotFound(f"{what}{hint}. To go on without them set failOnDataLoss=false: reading then {otherwise}")
        if what not in self._said:
            self._said.add(what)
            warn(f"{what}; failOnDataLoss=false: reading {otherwise}")

    def check_start(self, topic: str, partition: int, start: int, end: int, limits: Bounds) -> int:
        """Return the start of a range: at or after the log start, else data loss."""
        if start >= limits.log_start:
            return start
        stop = min(end, limits.log_start)
        self.report(
            f"Offsets {start} to {stop - 1} of {topic}-{partition} are gone: the log starts at {limits.log_start} "
            "(retention or delete-records)",
            "goes on from the log start",
        )
        return stop

    def check_end(self, topic: str, partition: int, end: int, limits: Bounds, option: str = "") -> int:
        """Return an offset at or before the log end, else data loss; `option`: which names the offset, if one does."""
        if end > limits.log_end:
            what = f"Offset {end} of {topic}-{partition} is out of range: the log ends at {limits.log_end}"
            takes = f"{option} takes {limits.log_start} to {limits.log_end} there" if option else ""
            self.report(what, "ends there", hint=f"; it was restored from an older copy{OTHER_ROOT}", remedy=takes)
        return min(end, limits.log_end)


def resolve_bound(
    view: LogView, partitions: Partitions, bound: Bound, isolation: str, *, no_match_is_latest: bool
) -> dict[str, dict[int, int]]:
    """Return the offset of every partition for a bound. Raises BadRequest if other partitions are listed than read."""
    check_listed(partitions, bound)
    result: dict[str, dict[int, int]] = {}
    special_offset = {"earliest": EARLIEST, "latest": LATEST}.get(bound.kind)
    for topic, bounds in partitions.items():
        if bound.kind == "timestamp":
            result[topic] = _by_timestamp(view, topic, bounds, bound, isolation, no_match_is_latest)
            continue
        result[topic] = {}
        for partition, limits in bounds.items():
            offset = bound.offsets[topic][partition] if special_offset is None else special_offset
            special = {EARLIEST: limits.log_start, LATEST: limits.end(isolation)}
            result[topic][partition] = special.get(offset, offset)
    return result


def check_listed(partitions: Partitions, bound: Bound) -> None:
    """Offsets by partition must be given for exactly the partitions that are read, as in Kafka's connector."""
    listed = bound.offsets if bound.kind == "offsets" else bound.timestamps
    if listed is None:
        return
    left_out = {t: {p: 0 for p in offsets if p not in listed.get(t, {})} for t, offsets in partitions.items()}
    unknown = {t: {p: 0 for p in offsets if p not in partitions.get(t, {})} for t, offsets in listed.items()}
    if any(unknown.values()):
        raise BadRequest(f"{bound.option} names partitions that are not read: {describe(unknown)}; leave them out")
    if any(left_out.values()):
        hint = "; -2 is the earliest, -1 the latest offset" if bound.kind == "offsets" else ""
        raise BadRequest(f"{bound.option} must name every partition that is read; missing: {describe(left_out)}{hint}")


def _by_timestamp(
    view: LogView, topic: str, bounds: Mapping[int, Bounds], bound: Bound, isolation: str, no_match_is_latest: bool
) -> dict[int, int]:
    timestamps = bound.timestamps
    targets = {p: bound.timestamp or 0 if timestamps is None else timestamps[topic][p] for p in bounds}
    answers = view.offsets_for_timestamps(topic, targets, isolation)
    result: dict[int, int] = {}
    for partition, limits in bounds.items():
        answer = answers[partition]
        if answer is None and not no_match_is_latest:
            raise NotFound(
                f"{bound.option}: {topic}-{partition} has no record at or after {targets[partition]} ms "
                f"({iso_time(targets[partition])}); give an "
                "earlier time, or startingOffsetsByTimestampStrategy=latest to start at its end"
            )
        result[partition] = limits.end(isolation) if answer is None else answer.offset
    return result


def wait_until_reached(
    view: LogView,
    named: StreamOffset,
    present: Collection[str],
    look: Callable[[], Collection[str]],
    clock: Clock,
    end_of: Callable[[Bounds], int] = attrgetter("log_end"),
) -> list[str]:
    """Look again until the view reaches these offsets, or longer has passed than caches last.

    `look` takes a new snapshot and returns the topics that exist; `present`: those in the snapshot taken before.
    `end_of` says which end of a partition counts. Returns the partitions that end before these offsets even so.
    """
    backoff = Backoff(clock)
    while beyond := _beyond(view, present, named, end_of):
        if backoff.is_over():
            return beyond
        if not backoff.tries:
            warn(
                f"offsets known from before are beyond the end of {', '.join(beyond)} as it is seen here; looking "
                f"again for {SETTLE_MS // 1000} s"
            )
        backoff.sleep()
        present = look()
    return []


def _beyond(view: LogView, present: Collection[str], named: StreamOffset, end_of: Callable[[Bounds], int]) -> list[str]:
    beyond = []
    for topic, offsets in sorted(named.positions.items()):
        if topic not in present:
            hidden = topic in named.ids and is_unseen(view, topic)
            beyond += [f"{topic}-{partition}" for partition in sorted(offsets) if hidden]
            continue
        if named.ids.get(topic) not in (None, view.topic_id(topic)):
            continue
        bounds = view.bounds(topic)
        beyond += [
            f"{topic}-{partition}"
            for partition, offset in sorted(offsets.items())
            if partition not in bounds or end_of(bounds[partition]) < offset
        ]
    return beyond


def is_unseen(view: LogView, topic: str) -> bool:
    """Return whether nothing of a topic can be seen here: a deleted one leaves its commits, which say so."""
    from sparklog.log.topic.root import RootView

    return isinstance(view, RootView) and view.root.engine.log(topic).refresh().topic_state.version < 0


RESET_IT = "reset the group, or set kafka.auto.offset.reset to earliest or latest"

GroupOffsets = dict[tuple[str, str], dict[int, int]]
"""Committed offsets of a group by topic and topic id."""


def start_positions(
    view: LogView, partitions: Partitions, read: ReadOptions, default: str, loss: DataLoss, committed: GroupOffsets
) -> dict[str, dict[int, int]]:
    """Return the starting offset of every partition; `default`: earliest or latest, where no option says.

    `known`: `group_offsets`, read before the snapshot of `partitions` was taken: what is committed after it would seem
    to be beyond the end, and be reset. Raises BadRequest where listed partitions are not those read, and NotFound.
    """
    bound = read.start or Bound(default, "startingOffsets")
    if bound.kind != GROUP:
        return resolve_bound(view, partitions, bound, read.isolation, no_match_is_latest=read.no_match_is_latest)
    result: dict[str, dict[int, int]] = {}
    missing: dict[str, dict[int, int]] = {}
    outside: list[str] = []
    for topic, bounds in partitions.items():
        offsets = committed.get((topic, view.topic_id(topic)), {})
        result[topic] = {}
        for partition, limits in bounds.items():
            position = offsets.get(partition)
            if position is None:
                missing.setdefault(topic, {})[partition] = 0
            elif not limits.log_start <= position <= limits.log_end:
                what = f"offset {position} of {topic}-{partition}, which has {limits.log_start} to {limits.log_end}"
                outside.append(what)
                if read.group_reset is None:
                    loss.report(
                        f"Group '{read.group_id}' is at {what}",
                        "begins at the nearest offset that is there",
                        remedy=RESET_IT if position > limits.log_end else "",
                    )
                    result[topic][partition] = min(max(position, limits.log_start), limits.log_end)
                    continue
            else:
                result[topic][partition] = position
                continue
            is_latest = (read.group_reset or default) == "latest"
            result[topic][partition] = limits.end(read.isolation) if is_latest else limits.log_start
    if read.group_reset == "none" and (missing or outside):
        problems = [f"no offset committed for {describe(missing)}"] if missing else []
        raise NotFound(f"Group '{read.group_id}' has {'; '.join(problems + outside[:8])}: {RESET_IT}")
    if read.group_reset is not None:
        for what in outside:
            warn(f"group '{read.group_id}' is at {what}; it begins at the {read.group_reset} offset")
    return result


def group_offsets(view: LogView, read: ReadOptions) -> GroupOffsets:
    """Return the committed offsets that a read begins at, once no transaction has any pending; else nothing.

    Raises BadRequest for a view that is no root, Unavailable if a transaction is not decided within a minute.
    """
    if read.start is None or read.start.kind != GROUP:
        return {}
    from sparklog.groups.group import Group
    from sparklog.log.topic.root import RootView

    if not isinstance(view, RootView):
        raise BadRequest(
            f"{view.location} is a Kafka directory, which keeps no groups of ours: leave startingOffsets=group out, "
            "or import it (`sparklog import`) with its groups and read the root"
        )
    offsets = Group(view.root, read.group_id or "").stable().offsets
    return {item.place: dict(zip(item.partition, item.offset, strict=True)) for item in offsets}


def offsets_now(view: LogView, topics: Sequence[str], committed: GroupOffsets) -> StreamOffset:
    """Return the committed offsets of these topics, as they are in the snapshot."""
    ids = {topic: view.topic_id(topic) for topic in topics} if committed else {}
    return StreamOffset({topic: committed.get((topic, ids[topic]), {}) for topic in ids}, ids)


def batch_ranges(
    view: LogView, subscriber: Subscriber, read: ReadOptions, clock: Clock | None = None
) -> list[OffsetRange]:
    """Return the ranges of a batch read, from one snapshot. Raises BadRequest and NotFound for wrong bounds."""
    committed = group_offsets(view, read)
    topics = subscriber.take()
    present = list(topics)

    def look() -> list[str]:
        present[:] = subscriber.existing(topics)
        return present

    wait_until_reached(view, offsets_now(view, present, committed), present, look, clock or Clock())
    partitions = {topic: subscriber.partitions(topic) for topic in present}
    loss = DataLoss(read.fail_on_data_loss)
    end_bound = read.end or Bound("latest", "endingOffsets")
    starts = start_positions(view, partitions, read, "earliest", loss, committed)
    ends = resolve_bound(view, partitions, end_bound, read.isolation, no_match_is_latest=True)
    ranges: list[OffsetRange] = []
    for topic, bounds in partitions.items():
        for partition, limits in sorted(bounds.items()):
            start, end = starts[topic][partition], ends[topic][partition]
            # A time range without records is no mistake.
            if read.start is not None and start > end and read.start.kind == end_bound.kind == "offsets":
                raise BadRequest(
                    f"{topic}-{partition}: {read.start.option} {start} is after {end_bound.option} {end}: swap or "
                    "correct them"
                )
            end = loss.check_end(topic, partition, end, limits, end_bound.option)
            end = min(end, max(start, limits.end(read.isolation)))
            start = loss.check_end(topic, partition, start, limits, "startingOffsets")
            start = loss.check_start(topic, partition, start, end, limits) if start < end else end
            ranges.append(OffsetRange(topic, partition, start, end))
    return ranges
