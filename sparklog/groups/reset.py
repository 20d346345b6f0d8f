"""Plan offset resets, with the scenarios of `kafka-consumer-groups --reset-offsets`.

| scenario      | new offset                                                                                       |
|---------------|--------------------------------------------------------------------------------------------------|
| to-earliest   | the log start offset                                                                             |
| to-latest     | the log end offset; as in Kafka, open transactions are ignored                                   |
| to-current    | the committed offset, or the log end offset if no offset is committed                            |
| to-offset     | the given offset                                                                                 |
| shift-by      | the committed offset plus the given number; an error if no offset is committed                   |
| to-datetime   | the first record with this or a later timestamp, or the log end offset if there is none          |
| by-duration   | like to-datetime, with the current time minus the duration                                       |
| from-file     | the offset in the file                                                                           |

As in Kafka, an offset that is out of range is replaced by the log start offset or the log end offset, with a warning.
Planning a reset does not change offsets. To set the planned offsets, pass them to `Group.alter`.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum

from sparklog.errors import BadRequest
from sparklog.format.checkpoint_files import TopicPartition
from sparklog.groups.group import Group
from sparklog.groups.group_members import by_topic
from sparklog.log.journal.documents import INT32_MAX, INT64_MAX
from sparklog.log.read.time_lookup import offsets_for_timestamps
from sparklog.log.state.topic_state import TopicState
from sparklog.log.state.view import READ_UNCOMMITTED

_DURATION = re.compile(
    r"(-?)P(?:(\d{1,9})D)?(?:T(?:(\d{1,9})H)?(?:(\d{1,9})M)?(?:(\d{1,12}(?:\.\d{1,3})?)S)?)?", re.ASCII
)


class To(Enum):
    """The scenarios, with Kafka's names."""

    EARLIEST = "to-earliest"
    LATEST = "to-latest"
    CURRENT = "to-current"
    OFFSET = "to-offset"
    SHIFT = "shift-by"
    DATETIME = "to-datetime"
    DURATION = "by-duration"
    FILE = "from-file"


@dataclass(frozen=True, slots=True)
class Scenario:
    """A scenario with its value: an offset, a shift, or a time or duration in ms. `from-file` has `offsets`."""

    to: To
    value: int = 0
    offsets: Mapping[TopicPartition, int] | None = None


@dataclass(frozen=True, slots=True)
class NewOffset:
    """The reset of one partition. `old` is None if no offset is committed."""

    topic: str
    partition: int
    old: int | None
    new: int
    warning: str | None = None


def plan_reset(
    group: Group, scenario: Scenario, topics: Mapping[str, Collection[int] | None] | None, *, now_ms: int
) -> list[NewOffset]:
    """Plan a reset, sorted by topic and partition.

    Args:
        topics: The partitions to reset of each topic, where None stands for all partitions of the topic. If `topics` is
            None, the partitions in the file are reset, or, like Kafka's `--all-topics`, all partitions for which the
            group has offsets.
        now_ms: The current time, for `by-duration`.

    Raises:
        NotFound: If a topic does not exist.
        BadRequest: If a partition does not exist, or if there is nothing to reset.
    """
    current = {partition: item.offset for partition, item in group.committed().items()}
    if scenario.offsets is not None:
        topics = by_topic(scenario.offsets)
    elif topics is None:
        if not current:
            raise BadRequest(f"group '{group.id}' has no offsets, so there is nothing to reset; specify topics")
        topics = by_topic(current)
    if scenario.to is To.DURATION:
        scenario = Scenario(To.DATETIME, now_ms - scenario.value)
    plan = []
    for topic, partitions in sorted(topics.items()):
        state = group.root.topic(topic).log.state(refresh=False)
        numbers = sorted(range(state.partitions) if partitions is None else set(partitions))
        outside = [partition for partition in numbers if not 0 <= partition < state.partitions]
        if outside:
            raise BadRequest(
                f"topic '{topic}' has partitions 0 to {state.partitions - 1}, found partition "
                f"{', '.join(map(str, outside))}"
            )
        old = {partition: offset for (name, partition), offset in current.items() if name == topic}
        targets = _targets(group, scenario, topic, numbers, state, old)
        plan += [_clamped(topic, partition, targets[partition], old.get(partition), state) for partition in numbers]
    return plan


def _targets(
    group: Group, scenario: Scenario, topic: str, partitions: Collection[int], state: TopicState, old: Mapping[int, int]
) -> dict[int, int]:
    ends = {partition: int(state.log_end[partition]) for partition in partitions}
    if scenario.to is To.EARLIEST:
        return {partition: int(state.log_start[partition]) for partition in partitions}
    if scenario.to is To.LATEST:
        return ends
    if scenario.to is To.CURRENT:
        return {partition: old.get(partition, end) for partition, end in ends.items()}
    if scenario.to is To.OFFSET:
        return dict.fromkeys(partitions, scenario.value)
    if scenario.to is To.FILE:
        return {partition: (scenario.offsets or {})[topic, partition] for partition in partitions}
    if scenario.to is To.SHIFT:
        unknown = [partition for partition in partitions if partition not in old]
        if unknown:
            raise BadRequest(
                f"offsets of topic '{topic}' cannot be shifted in partitions {', '.join(map(str, unknown))}: group "
                f"'{group.id}' has not committed offsets for them; specify other partitions or choose another scenario"
            )
        return {partition: old[partition] + scenario.value for partition in partitions}
    log = group.root.engine.log(topic)
    times = dict.fromkeys(partitions, max(0, scenario.value))
    found = offsets_for_timestamps(log.read_snapshot(), times, READ_UNCOMMITTED, newer=log.read_snapshot)
    return {**ends, **{partition: record.offset for partition, record in found.items() if record is not None}}


def _clamped(topic: str, partition: int, requested: int, old: int | None, state: TopicState) -> NewOffset:
    start, end = int(state.log_start[partition]), int(state.log_end[partition])
    new = min(max(requested, start), end)
    warning = None
    if requested != new:
        which = "lower than the earliest" if requested < start else "higher than the latest"
        warning = (
            f"New offset ({requested}) is {which} offset for topic partition {topic}-{partition}. It will be {new}."
        )
    return NewOffset(topic, partition, old, new, warning)


def with_offsets(plan: Iterable[NewOffset]) -> dict[str, dict[int, int]]:
    """Return the new offsets of a plan by topic and partition, as `Group.alter` expects them."""
    offsets: dict[str, dict[int, int]] = {}
    for item in plan:
        offsets.setdefault(item.topic, {})[item.partition] = item.new
    return offsets


def parse_duration(text: str) -> int:
    """Parse an ISO 8601 duration as Java does, for example `P1DT2H30M` or `PT10S`, and return milliseconds.

    Raises:
        BadRequest: If `text` is not a valid duration.
    """
    match = _DURATION.fullmatch(text.strip().upper())
    if match is None or not any(match.groups()[1:]):
        raise BadRequest(f"expected a duration such as P1DT2H30M or PT10S, found {text!r}")
    sign, days, hours, minutes, seconds = match.groups()
    whole = (int(days or 0) * 24 + int(hours or 0)) * 60 + int(minutes or 0)
    ms = whole * 60_000 + round(float(seconds or 0) * 1000)
    return -ms if sign else ms


def parse_offsets_file(text: str, name: str) -> dict[str | None, dict[TopicPartition, int]]:
    """Parse the lines `[group,]topic,partition,offset` of Kafka's CSV format, and return the offsets by group.

    Lines without a group are returned under None. `name` is the name of the file, for error messages.
    """
    groups: dict[str | None, dict[TopicPartition, int]] = {}
    try:
        rows = list(csv.reader(io.StringIO(text)))
    except csv.Error as error:
        raise BadRequest(
            f"{name} is not a valid CSV file ({error}); expected lines of [group,]topic,partition,offset"
        ) from None
    for number, row in enumerate(rows, 1):
        cells = [cell.strip() for cell in row]
        if not any(cells):
            continue
        if len(cells) not in (3, 4) or not all(cell.isdecimal() and len(cell) < 20 for cell in cells[-2:]):
            raise BadRequest(f"{name}, line {number}: expected [group,]topic,partition,offset, found {','.join(row)!r}")
        group, topic = (cells[0] if len(cells) == 4 else None), cells[-3]
        partition, offset = int(cells[-2]), int(cells[-1])
        if partition > INT32_MAX or offset > INT64_MAX:
            raise BadRequest(f"{name}, line {number}: partition {partition} or offset {offset} is too large for Kafka")
        offsets = groups.setdefault(group, {})
        if (topic, partition) in offsets:
            raise BadRequest(f"{name}, line {number}: {topic}-{partition} occurs more than once")
        offsets[topic, partition] = offset
    if not groups:
        raise BadRequest(f"{name} contains no offsets; expected lines of [group,]topic,partition,offset")
    return groups
