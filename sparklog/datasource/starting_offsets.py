"""Resolution of the bounds of a read to offsets, according to the rules of Spark's Kafka connector.

A read can start at the committed offsets of its group (`startingOffsets=group`). If the group has no offset for a
partition, or if the offset is out of range, `kafka.auto.offset.reset` applies, as for Kafka consumers. If this option
is not set, a partition without a committed offset starts at the default of `startingOffsets`, and an offset that is out
of range is reported as data loss.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sparklog.common.times import iso_time
from sparklog.datasource.data_loss import DataLoss
from sparklog.datasource.hidden_offsets import wait_until_reached
from sparklog.datasource.offsets import EARLIEST, LATEST, StreamOffset, describe
from sparklog.datasource.options import GROUP, Bound, ReadOptions
from sparklog.datasource.spark_workers import warn
from sparklog.datasource.subscription import Subscriber
from sparklog.errors import BadRequest, NotFound
from sparklog.log.state.view import Bounds, LogView, OffsetRange
from sparklog.storage.retries import Clock

PartitionBounds = Mapping[str, Mapping[int, Bounds]]
"""The bounds of the partitions to read in a snapshot, by topic and partition."""


def resolve_bound(
    view: LogView, partitions: PartitionBounds, bound: Bound, isolation: str, *, no_match_is_latest: bool
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


def check_listed(partitions: PartitionBounds, bound: Bound) -> None:
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


RESET_IT = "reset the group, or set kafka.auto.offset.reset to earliest or latest"

GroupOffsets = dict[tuple[str, str], dict[int, int]]
"""The committed offsets of a group, by topic and topic id."""


def start_positions(
    view: LogView, partitions: PartitionBounds, read: ReadOptions, default: str, loss: DataLoss, committed: GroupOffsets
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
    topics = subscriber.take_snapshot()
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
            end = loss.check_end(topic, partition, end, limits, "ends at the log end", end_bound.option)
            end = min(end, max(start, limits.end(read.isolation)))
            start = loss.check_end(topic, partition, start, limits, "starts at the log end", "startingOffsets")
            start = loss.check_start(topic, partition, start, end, limits) if start < end else end
            ranges.append(OffsetRange(topic, partition, start, end))
    return ranges
