"""Render a report as a self-contained HTML page with styles, charts and a short script. The page does not require
network access.

The template escapes all external text, such as names of topics, groups and transactions, and errors. The script sorts
and filters tables. If scripts are disabled, the page shows the same data, and CSS is used to expand the partitions of a
topic.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache
from heapq import nlargest
from typing import TYPE_CHECKING, NamedTuple

from sparklog.common.units import HOUR_MS, UNKNOWN, ago, day_text, duration, number_text, size_text, time_text
from sparklog.tools.report.report_data import (
    ATTENTION,
    HOURS,
    GroupFacts,
    GroupPartition,
    Note,
    PartitionFacts,
    PlannedWork,
    RootReport,
    TopicFacts,
    total,
)

if TYPE_CHECKING:
    from jinja2 import Environment
    from jinja2.runtime import Context


MAX_PARTITIONS = 200
"""Maximum number of partitions to show per topic. If a topic has more partitions, the largest partitions are shown."""
MAX_BARS = 100
LARGEST_TOPICS = 12


def as_html(report: RootReport) -> str:
    """Return the report as an HTML page. The result depends only on the report."""
    template = _environment().get_template("report.html")
    largest = nlargest(LARGEST_TOPICS, report.topics, key=lambda topic: topic.bytes)
    text: str = template.render(
        report=report,
        largest=[topic for topic in largest if topic.bytes],
        due=by_topic([work for work in report.doing or () if work.due]),
        waiting=by_topic([work for work in report.doing or () if not work.due]),
        records=total(topic.records for topic in report.topics),
        progress=progress(report.groups or ()),
        newest_ms=max((topic.newest_ms for topic in report.topics if topic.newest_ms is not None), default=None),
        shown=shown_partitions,
        bars=bars,
        never_expires=never_expires,
        count=number_text,
        size=size_text,
        attention=boxes([note for note in report.notes if note.level == ATTENTION]),
        information=boxes([note for note in report.notes if note.level != ATTENTION]),
        anchors={topic.topic: f"topic-{number}" for number, topic in enumerate(report.topics, 1)},
        commits=summed(topic.activity.commits_by_hour for topic in report.topics if topic.activity is not None),
        bytes_by_hour=summed(topic.bytes_by_hour for topic in report.topics),
        chart=lambda values: chart(values, report.now_ms),
    )
    return text


class NoteBox(NamedTuple):
    """The notes about a topic, or about the root if `topic` is empty."""

    level: str
    topic: str
    texts: list[str]


def boxes(notes: Sequence[Note]) -> list[NoteBox]:
    """Return the notes of each topic, ordered by the first note of the topic."""
    by_topic: dict[str, NoteBox] = {}
    for note in notes:
        by_topic.setdefault(note.topic, NoteBox(note.level, note.topic, [])).texts.append(note.text)
    return list(by_topic.values())


class Chart(NamedTuple):
    """A bar chart with one bar per hour.

    Attributes:
        path: the bars as an SVG path; each bar is 10 units wide and up to 60 units high.
        max: the largest value.
        max_ms: the start of the hour with the largest value.
        days: the start time of each day, and its distance from the left edge in percent.
    """

    path: str
    total: int
    max: int
    max_ms: int
    days: list[tuple[float, int]]


def chart(values: Sequence[int], now_ms: int) -> Chart | None:
    """Draw the values of the last hours. The last value belongs to the current hour.

    Return None if all values are 0.
    """
    if not any(values):
        return None
    largest = max(values)
    first_ms = (now_ms // HOUR_MS + 1 - len(values)) * HOUR_MS
    heights = [(hour, max(1.0, 60 * value / largest)) for hour, value in enumerate(values) if value > 0]
    path = "".join(f"M{10 * hour + 1} 60v-{height:.1f}h8v{height:.1f}z" for hour, height in heights)
    times = [(100 * hour / len(values), first_ms + hour * HOUR_MS) for hour in range(len(values))]
    days = [(percent, ms) for percent, ms in times if ms % (24 * HOUR_MS) == 0]
    return Chart(path, sum(values), largest, first_ms + list(values).index(largest) * HOUR_MS, days)


def summed(rows: Iterable[Sequence[int]]) -> list[int]:
    """Return the sum of each hour over all rows that have a value for each hour."""
    complete = [row for row in rows if len(row) == HOURS]
    return [sum(column) for column in zip(*complete, strict=True)]


class PlannedRow(NamedTuple):
    """A table row: an action of the next run on partitions of a topic."""

    topic: str
    action: str
    partitions: tuple[int, ...]
    bytes: int
    why: str


def by_topic(planned: Sequence[PlannedWork]) -> list[PlannedRow]:
    """Return one row per topic and action. If the partitions have different reasons, use the reason of the largest
    partition.
    """
    groups: dict[tuple[str, str], list[PlannedWork]] = {}
    for work in planned:
        groups.setdefault((work.topic, work.action), []).append(work)
    rows = []
    for (topic, action), works in groups.items():
        largest = max(works, key=lambda work: work.bytes)
        same_reason = all(work.why == largest.why for work in works)
        where = "" if same_reason else f"partition {largest.partition}: "
        partitions = tuple(sorted({work.partition for work in works}))
        rows.append(PlannedRow(topic, action, partitions, sum(work.bytes for work in works), where + largest.why))
    return sorted(rows, key=lambda row: (row.topic, row.action))


class GroupRow(NamedTuple):
    """A table row: the consumer lag of a group in a topic. `topic` is empty if the group has no committed offsets.

    `ms_behind` is the lag in time of the partition with the largest lag.
    """

    group: GroupFacts
    topic: str
    partitions: Sequence[GroupPartition]
    lag: int | None
    largest_lag: int | None
    ms_behind: float | None


def progress(groups: Sequence[GroupFacts]) -> list[GroupRow]:
    """Return one row for each group and topic."""
    rows = []
    for group in groups:
        partitions: dict[str, list[GroupPartition]] = {}
        for part in group.partitions:
            partitions.setdefault(part.topic, []).append(part)
        for topic, parts in (partitions or {"": []}).items():
            lags = [part.lag for part in parts if part.lag is not None]
            behind = [1000 * part.seconds_behind for part in parts if part.seconds_behind is not None]
            total_lag = sum(lags) if lags else None
            rows.append(GroupRow(group, topic, parts, total_lag, max(lags, default=None), max(behind, default=None)))
    return rows


def numbers(partitions: Sequence[int]) -> str:
    """Return partitions as text, for example `0-3, 7`."""
    ranges: list[list[int]] = []
    for partition in partitions:
        if ranges and partition == ranges[-1][-1] + 1:
            ranges[-1][1:] = [partition]
        else:
            ranges.append([partition])
    return ", ".join("-".join(map(str, limits)) for limits in ranges)


@cache
def _environment() -> Environment:
    """Return the template environment, which is cached because compiling the templates is slow."""
    from jinja2 import Environment, PackageLoader, StrictUndefined, pass_context

    @pass_context
    def since(context: Context, ms: int | None) -> str:
        return ago(ms, context["report"].now_ms)

    environment = Environment(
        loader=PackageLoader("sparklog.tools.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    filters = {"count": number_text, "size": size_text, "numbers": numbers, "time": time_text}
    environment.filters.update(filters, seconds=seconds_text, duration=duration, day=day_text, ago=since)
    return environment


def seconds_text(seconds: float | None) -> str:
    """Return seconds as text, for example `1,234.5`."""
    return UNKNOWN if seconds is None else f"{seconds:,.1f}"


def shown_partitions(topic: TopicFacts) -> list[PartitionFacts]:
    """Return the largest partitions of a topic, ordered by partition number."""
    largest = nlargest(MAX_PARTITIONS, topic.partitions, key=lambda part: part.bytes)
    return sorted(largest, key=lambda part: part.partition)


def never_expires(topic: TopicFacts) -> bool:
    configs = topic.configs or {}
    has_no_limits = configs.get("retention.ms") == "-1" and configs.get("retention.bytes", "-1") == "-1"
    return has_no_limits or "delete" not in (topic.cleanup_policy or "")


class Bar(NamedTuple):
    """The bar of a partition. `height` is the size of the partition relative to the largest partition."""

    partition: int
    height: float
    bytes: int


def bars(topic: TopicFacts) -> list[Bar]:
    """Return the bars of the first partitions."""
    largest = max((part.bytes for part in topic.partitions), default=0) or 1
    return [Bar(part.partition, part.bytes / largest, part.bytes) for part in topic.partitions[:MAX_BARS]]
