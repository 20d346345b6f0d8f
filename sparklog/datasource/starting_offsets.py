"""Resolution of the bounds of a read to offsets, according to the rules of Spark's Kafka connector.

If a stream is restarted on another host, its checkpoint contains offsets that the first host has seen. Network file
systems cache names, so the new host may not see the latest commits, or the decision of a transaction, for some time. If
the visible end of the log were treated as the actual end, data loss would be reported. Therefore, if offsets are beyond
the visible end, the view is refreshed until caches have expired (`SETTLE_MS`), unless the topic was deleted or created
again.

A read can start at the committed offsets of its group (`startingOffsets=group`). If the group has no offset for a
partition, or if the offset is out of range, `kafka.auto.offset.reset` applies, as for Kafka consumers. If this option
is not set, a partition without a committed offset starts at the default of `startingOffsets`, and an offset that is out
of range is reported as data loss.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

from sparklog.common.times import iso_time
from sparklog.datasource.offsets import EARLIEST, LATEST, StreamOffset, describe
from sparklog.datasource.options import GROUP, Bound, ReadOptions
from sparklog.datasource.spark_workers import warn
from sparklog.datasource.subscription import Subscriber
from sparklog.errors import BadRequest, NotFound
from sparklog.format.checkpoint_files import TopicPartition
from sparklog.log.state.view import Bounds, LogView, OffsetRange
from sparklog.storage.retries import SETTLE_MS, Backoff, Clock

Partitions = Mapping[str, Mapping[int, Bounds]]
"""The bounds of the partitions to read in a snapshot, by topic and partition."""


OTHER_ROOT = ", or the checkpoint belongs to another root. In this case, give this query a separate checkpointLocation"


class DataLoss:
    """Reports records that can no longer be read. An error is raised or, if `failOnDataLoss=false`, a single warning is
    logged.
    """

    def __init__(self, fail: bool) -> None:
        self.fail = fail
        self._warned: set[str] = set()

    def report(self, what: str, otherwise: str, *, hint: str = "", remedy: str = "") -> None:
        """Raise NotFound, or log a warning if `failOnDataLoss=false`.

        Args:
            what: The sentence that describes the loss.
            otherwise: The action of the query if failOnDataLoss=false, such as "skips it".
            hint: Another possible reason, which is appended to the sentence.
            remedy: The action to take if no records were lost, for example because an option contains a wrong offset.
        """
        if self.fail and remedy:
            raise NotFound(f"{what}: {remedy}")
        if self.fail:
            raise NotFound(
                f"{what}{hint}. If this loss is acceptable, set failOnDataLoss=false, so that the query {otherwise}"
            )
        if what not in self._warned:
            self._warned.add(what)
            warn(f"{what}; because failOnDataLoss=false, the query {otherwise}")

    def check_start(self, topic: str, partition: int, start: int, end: int, limits: Bounds) -> int:
        """Return the start of a range. If the start is below the log start offset, report data loss and return the log
        start offset.
        """
        if start >= limits.log_start:
            return start
        stop = min(end, limits.log_start)
        self.report(
            f"Offsets {start} to {stop - 1} of {topic}-{partition} were deleted: the log starts at {limits.log_start} "
            "(retention or delete-records)",
            "continues at the log start",
        )
        return stop

    def check_end(self, topic: str, partition: int, end: int, limits: Bounds, option: str = "") -> int:
        """Return an offset. If the offset is above the log end offset, report data loss and return the log end offset.
        `option` is the option that set the offset.
        """
        if end > limits.log_end:
            what = f"Offset {end} of {topic}-{partition} is out of range: the log ends at {limits.log_end}"
            valid = f"{option} accepts {limits.log_start} to {limits.log_end}" if option else ""
            self.report(what, "ends there", hint=f"; it was restored from an older copy{OTHER_ROOT}", remedy=valid)
        return min(end, limits.log_end)


def resolve_bound(
    view: LogView, partitions: Partitions, bound: Bound, isolation: str, *, no_match_is_latest: bool
) -> dict[str, dict[int, int]]:
    """Return the offset of each partition for a bound. Raises BadRequest as described in `check_listed`."""
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
    """Raise BadRequest unless a bound lists exactly the partitions that are read, as Kafka's connector requires."""
    listed = bound.offsets if bound.kind == "offsets" else bound.timestamps
    if listed is None:
        return
    missing = {t: {p: 0 for p in offsets if p not in listed.get(t, {})} for t, offsets in partitions.items()}
    unknown = {t: {p: 0 for p in offsets if p not in partitions.get(t, {})} for t, offsets in listed.items()}
    if any(unknown.values()):
        raise BadRequest(
            f"{bound.option} contains partitions that are not read: {describe(unknown)}; remove these partitions"
        )
    if any(missing.values()):
        hint = "; -2 is the earliest, -1 the latest offset" if bound.kind == "offsets" else ""
        raise BadRequest(f"{bound.option} must contain each partition that is read; missing: {describe(missing)}{hint}")


def _by_timestamp(
    view: LogView, topic: str, bounds: Mapping[int, Bounds], bound: Bound, isolation: str, no_match_is_latest: bool
) -> dict[int, int]:
    timestamps = bound.timestamps
    targets = {p: bound.timestamp or 0 if timestamps is None else timestamps[topic][p] for p in bounds}
    found = view.offsets_for_timestamps(topic, targets, isolation)
    result: dict[int, int] = {}
    for partition, limits in bounds.items():
        record = found[partition]
        if record is None and not no_match_is_latest:
            raise NotFound(
                f"{bound.option}: {topic}-{partition} has no record at or after {targets[partition]} ms "
                f"({iso_time(targets[partition])}); set an earlier time, or startingOffsetsByTimestampStrategy=latest "
                "to start at the log end"
            )
        result[partition] = limits.end(isolation) if record is None else record.offset
    return result


def log_end_of(bounds: Bounds) -> int:
    return bounds.log_end


def last_stable_of(bounds: Bounds) -> int:
    return bounds.last_stable


def partition_names(partitions: Sequence[TopicPartition]) -> str:
    """Return the names of partitions for a message, such as `orders-0, orders-1`."""
    return ", ".join(f"{topic}-{partition}" for topic, partition in partitions)


def wait_until_reached(
    view: LogView,
    named: StreamOffset,
    present: Collection[str],
    refresh: Callable[[], Collection[str]],
    clock: Clock,
    end_of: Callable[[Bounds], int] = log_end_of,
) -> list[TopicPartition]:
    """Refresh the view until it reaches these offsets, or until caches have expired.

    Args:
        view: The view.
        named: Offsets that have existed.
        present: The topics that exist in the current snapshot.
        refresh: A function that takes a new snapshot and returns the topics that exist.
        clock: The clock.
        end_of: A function that returns the end of a partition, which must reach the offset.

    Returns:
        The partitions that still end before these offsets.
    """
    backoff = Backoff(clock)
    while beyond := _beyond(view, present, named, end_of):
        if backoff.is_over():
            return beyond
        if not backoff.tries:
            warn(
                f"known offsets are beyond the end of {partition_names(beyond)} as seen from this host; retrying for "
                f"{SETTLE_MS // 1000} s"
            )
        backoff.sleep()
        present = refresh()
    return []


def _beyond(
    view: LogView, present: Collection[str], named: StreamOffset, end_of: Callable[[Bounds], int]
) -> list[TopicPartition]:
    beyond: list[TopicPartition] = []
    for topic, offsets in sorted(named.positions.items()):
        if topic not in present:
            hidden = topic in named.ids and is_unseen(view, topic)
            beyond += [(topic, partition) for partition in sorted(offsets) if hidden]
            continue
        if named.ids.get(topic) not in (None, view.topic_id(topic)):
            continue
        bounds = view.bounds(topic)
        beyond += [
            (topic, partition)
            for partition, offset in sorted(offsets.items())
            if partition not in bounds or end_of(bounds[partition]) < offset
        ]
    return beyond


def is_unseen(view: LogView, topic: str) -> bool:
    """Return True if no commit of a topic is visible on this host. The commits of a deleted topic are still visible."""
    from sparklog.log.topic.root import RootView

    return isinstance(view, RootView) and view.root.engine.log(topic).refresh().topic_state.version < 0


RESET_IT = "reset the group, or set kafka.auto.offset.reset to earliest or latest"

GroupOffsets = dict[tuple[str, str], dict[int, int]]
"""The committed offsets of a group, by topic and topic id."""


def start_positions(
    view: LogView, partitions: Partitions, read: ReadOptions, default: str, loss: DataLoss, committed: GroupOffsets
) -> dict[str, dict[int, int]]:
    """Return the starting offset of each partition. If no option is set, `default` applies, which is earliest or
    latest.

    `committed` is the result of `group_offsets`, which was called before the snapshot of `partitions` was taken.
    Offsets that were committed later could be beyond the end of the snapshot and would be reset. Raises BadRequest if
    the partitions in the options are not the partitions that are read, and NotFound if an offset does not exist.
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
                bounds_text = f"{limits.log_start} to {limits.log_end}"
                what = f"offset {position} of {topic}-{partition}, which has offsets {bounds_text}"
                outside.append(what)
                if read.group_reset is None:
                    loss.report(
                        f"Group '{read.group_id}' is at {what}",
                        "starts at the nearest offset in the log",
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
            warn(f"group '{read.group_id}' is at {what}; the read starts at the {read.group_reset} offset")
    return result


def group_offsets(view: LogView, read: ReadOptions) -> GroupOffsets:
    """Return the committed offsets at which a read starts, or an empty dict if the read does not start at committed
    offsets.

    Waits until no transaction has pending offsets. Raises Unavailable if a transaction is still undecided after a
    minute, and BadRequest if the view is not the view of a root.
    """
    if read.start is None or read.start.kind != GROUP:
        return {}
    from sparklog.groups.group import Group
    from sparklog.log.topic.root import RootView

    if not isinstance(view, RootView):
        raise BadRequest(
            f"{view.location} is a Kafka directory, which has no sparklog groups: remove startingOffsets=group, or "
            "import the directory with its groups (`sparklog import`) and read the root"
        )
    offsets = Group(view.root, read.group_id or "").stable().offsets
    return {item.topic_and_id: dict(zip(item.partition, item.offset, strict=True)) for item in offsets}


def offsets_now(view: LogView, topics: Sequence[str], committed: GroupOffsets) -> StreamOffset:
    """Return the committed offsets of these topics. The ids of the topics must be the ids in the snapshot."""
    ids = {topic: view.topic_id(topic) for topic in topics} if committed else {}
    return StreamOffset({topic: committed.get((topic, ids[topic]), {}) for topic in ids}, ids)


def batch_ranges(
    view: LogView, subscriber: Subscriber, read: ReadOptions, clock: Clock | None = None
) -> list[OffsetRange]:
    """Return the ranges of a batch read, which are all based on one snapshot. Raises BadRequest or NotFound if a bound
    is invalid.
    """
    committed = group_offsets(view, read)
    topics = subscriber.take()
    present = list(topics)

    def refresh() -> list[str]:
        present[:] = subscriber.existing(topics)
        return present

    wait_until_reached(view, offsets_now(view, present, committed), present, refresh, clock or Clock())
    partitions = {topic: subscriber.partitions(topic) for topic in present}
    loss = DataLoss(read.fail_on_data_loss)
    end_bound = read.end or Bound("latest", "endingOffsets")
    starts = start_positions(view, partitions, read, "earliest", loss, committed)
    ends = resolve_bound(view, partitions, end_bound, read.isolation, no_match_is_latest=True)
    ranges: list[OffsetRange] = []
    for topic, bounds in partitions.items():
        for partition, limits in sorted(bounds.items()):
            start, end = starts[topic][partition], ends[topic][partition]
            # A time range may be empty, so only offsets are compared.
            if read.start is not None and start > end and read.start.kind == end_bound.kind == "offsets":
                raise BadRequest(
                    f"{topic}-{partition}: {read.start.option} {start} is after {end_bound.option} {end}: swap or "
                    "correct the offsets"
                )
            end = loss.check_end(topic, partition, end, limits, end_bound.option)
            end = min(end, max(start, limits.end(read.isolation)))
            start = loss.check_end(topic, partition, start, limits, "startingOffsets")
            start = loss.check_start(topic, partition, start, end, limits) if start < end else end
            ranges.append(OffsetRange(topic, partition, start, end))
    return ranges
