"""Starting offsets of a read: by its options, or the committed offsets of its group (`startingOffsets=group`).

The rules for a partition of which the group has no offset, or one that is out of range, are those of Kafka's consumer:
`kafka.auto.offset.reset` says where it begins. Where that is not given, a partition without an offset begins where a
read without `startingOffsets` would, and an offset out of range is data loss.
"""

from __future__ import annotations

from collections.abc import Sequence

from sparklog.datasource.bounds import DataLoss, Partitions, resolve_bound
from sparklog.datasource.offsets import StreamOffset, describe
from sparklog.datasource.options import GROUP, Bound, ReadOptions
from sparklog.datasource.user_errors import warn
from sparklog.errors import BadRequest, NotFound
from sparklog.log.state.view import Bounds, LogView

Place = tuple[str, str]
"""Topic and topic id."""


GroupOffsets = dict[Place, dict[int, int]]
"""What a group has committed, by topic and id."""


def start_positions(
    view: LogView, partitions: Partitions, read: ReadOptions, default: str, loss: DataLoss, known: GroupOffsets
) -> dict[str, dict[int, int]]:
    """Return the starting offset of every partition; `default`: earliest or latest, where no option says.

    `known`: `group_offsets`, read before the snapshot of `partitions` was taken. What is committed after it would seem
    to lie beyond the end, and be reset.

    Raises BadRequest where listed partitions are not those read, NotFound for `kafka.auto.offset.reset=none`, and what
    `loss` raises.
    """
    bound = read.start or Bound(default, "startingOffsets")
    if bound.kind != GROUP:
        return resolve_bound(view, partitions, bound, read.isolation, no_match_is_latest=read.no_match_is_latest)
    result: dict[str, dict[int, int]] = {}
    missing: dict[str, dict[int, int]] = {}
    outside: list[str] = []
    for topic, bounds in partitions.items():
        offsets = known.get((topic, view.topic_id(topic)), {})
        result[topic] = {}
        for partition, limits in bounds.items():
            at = offsets.get(partition)
            if at is None:
                missing.setdefault(topic, {})[partition] = 0
            elif not limits.log_start <= at <= limits.log_end:
                what = f"offset {at} of {topic}-{partition}, which has {limits.log_start} to {limits.log_end}"
                outside.append(what)
                if read.group_reset is None:
                    loss.report(f"Group '{read.group_id}' is at {what}", "begins at the nearest offset that is there")
                    result[topic][partition] = min(max(at, limits.log_start), limits.log_end)
                    continue
            else:
                result[topic][partition] = at
                continue
            result[topic][partition] = _reset(limits, read.group_reset or default, read.isolation)
    _say(read, missing, outside)
    return result


def group_offsets(view: LogView, read: ReadOptions) -> GroupOffsets:
    """Return the committed offsets that a read begins at, once no transaction has any pending; else nothing.

    Raises BadRequest for a view that is no root, Unavailable if a transaction is not decided within a minute.
    """
    from sparklog.groups.group import Group
    from sparklog.log.topic.root_view import RootView

    if read.start is None or read.start.kind != GROUP:
        return {}
    if not isinstance(view, RootView):
        raise BadRequest(
            f"{view.location} is a Kafka directory, which keeps no groups of ours: leave startingOffsets=group out, "
            "or import it (`sparklog import`) with its groups and read the root"
        )
    offsets = Group(view.root, read.group_id or "").stable().offsets
    return {each.place: dict(zip(each.partition, each.offset, strict=True)) for each in offsets}


def offsets_now(view: LogView, topics: Sequence[str], known: GroupOffsets) -> StreamOffset:
    """Return the committed offsets of these topics, as they are in the snapshot."""
    ids = {topic: view.topic_id(topic) for topic in topics} if known else {}
    return StreamOffset({topic: known.get((topic, ids[topic]), {}) for topic in ids}, ids)


def _reset(limits: Bounds, where: str, isolation: str) -> int:
    return limits.end(isolation) if where == "latest" else limits.log_start


def _say(read: ReadOptions, missing: dict[str, dict[int, int]], outside: list[str]) -> None:
    """Raise NotFound under `none` for what the group does not know; else warn of offsets out of range."""
    if read.group_reset == "none" and (missing or outside):
        problems = [f"no offset committed for {describe(missing)}"] if missing else []
        problems += outside[:8]
        raise NotFound(
            f"Group '{read.group_id}' has {'; '.join(problems)}: reset the group, or set kafka.auto.offset.reset to "
            "earliest or latest"
        )
    if read.group_reset is not None:
        for what in outside:
            warn(f"group '{read.group_id}' is at {what}; it begins at the {read.group_reset} offset")
