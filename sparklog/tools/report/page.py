"""A report as one HTML page that needs nothing else: no network, styles, charts and a few lines of script inside.

Everything that comes from outside (names of topics, groups and transactions, errors) goes through the template's
escaping. The script sorts and filters tables; the page says the same without it, and opens a topic's partitions by CSS.
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
    Doing,
    GroupFacts,
    GroupPartition,
    Note,
    PartitionFacts,
    RootReport,
    TopicFacts,
    total,
)

if TYPE_CHECKING:
    from jinja2 import Environment
    from jinja2.runtime import Context


MOST_PARTITIONS = 200  # of a topic on the page, the largest
MOST_BARS = 100
LARGEST_TOPICS = 12


def as_html(report: RootReport) -> str:
    """Return the page. The same report gives the same text."""
    template = _environment().get_template("report.html")
    largest = nlargest(LARGEST_TOPICS, report.topics, key=lambda topic: topic.bytes)
    text: str = template.render(
        report=report,
        largest=[topic for topic in largest if topic.bytes],
        due=by_topic([item for item in report.doing or () if item.due]),
        waiting=by_topic([item for item in report.doing or () if not item.due]),
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
    """The notes about one topic, or about the root."""

    level: str
    topic: str
    texts: list[str]


def boxes(notes: Sequence[Note]) -> list[NoteBox]:
    """Return a box for each topic, in the order of its first note."""
    by_topic: dict[str, NoteBox] = {}
    for note in notes:
        by_topic.setdefault(note.topic, NoteBox(note.level, note.topic, [])).texts.append(note.text)
    return list(by_topic.values())


class Chart(NamedTuple):
    """Bars of one height for each hour, 10 wide and up to 60 high, as an SVG path; `days`: (percent from the left, when
    the day begins)."""

    path: str
    total: int
    most: int
    most_ms: int
    days: list[tuple[float, int]]


def chart(values: Sequence[int], now_ms: int) -> Chart | None:
    """Draw numbers of the last hours, the current one last; None without any."""
    if not any(values):
        return None
    most = max(values)
    first_ms = (now_ms // HOUR_MS + 1 - len(values)) * HOUR_MS
    heights = [(hour, max(1.0, 60 * number / most)) for hour, number in enumerate(values) if number > 0]
    path = "".join(f"M{10 * hour + 1} 60v-{height:.1f}h8v{height:.1f}z" for hour, height in heights)
    times = [(100 * hour / len(values), first_ms + hour * HOUR_MS) for hour in range(len(values))]
    days = [(percent, ms) for percent, ms in times if ms % (24 * HOUR_MS) == 0]
    return Chart(path, sum(values), most, first_ms + list(values).index(most) * HOUR_MS, days)


def summed(rows: Iterable[Sequence[int]]) -> list[int]:
    """Return the sum of each hour, of rows that have one."""
    whole = [row for row in rows if len(row) == HOURS]
    return [sum(column) for column in zip(*whole, strict=True)]


class PlannedRow(NamedTuple):
    """Work of a run on some partitions of one topic, as one row."""

    topic: str
    action: str
    partitions: tuple[int, ...]
    bytes: int
    why: str


def by_topic(items: Sequence[Doing]) -> list[PlannedRow]:
    """Return one row for each topic and action; where reasons differ, that of the partition with the most bytes."""
    groups: dict[tuple[str, str], list[Doing]] = {}
    for item in items:
        groups.setdefault((item.topic, item.action), []).append(item)
    rows = []
    for (topic, action), mine in groups.items():
        largest = max(mine, key=lambda item: item.bytes)
        alike = all(item.why == largest.why for item in mine)
        where = "" if alike else f"partition {largest.partition}: "
        partitions = tuple(sorted({item.partition for item in mine}))
        rows.append(PlannedRow(topic, action, partitions, sum(item.bytes for item in mine), where + largest.why))
    return sorted(rows, key=lambda row: (row.topic, row.action))


class GroupRow(NamedTuple):
    """Consumer lag of a group in one topic, as one row; None where nothing is committed."""

    group: GroupFacts
    topic: str  # empty for a group without offsets
    partitions: Sequence[GroupPartition]
    lag: int | None
    largest_lag: int | None
    ms_behind: float | None  # of the partition that is furthest behind


def progress(groups: Sequence[GroupFacts]) -> list[GroupRow]:
    """Return one row for each group and topic."""
    rows = []
    for group in groups:
        parts_of: dict[str, list[GroupPartition]] = {}
        for part in group.partitions:
            parts_of.setdefault(part.topic, []).append(part)
        for topic, parts in (parts_of or {"": []}).items():
            lags = [part.lag for part in parts if part.lag is not None]
            behind = [1000 * part.seconds_behind for part in parts if part.seconds_behind is not None]
            total = sum(lags) if lags else None
            rows.append(GroupRow(group, topic, parts, total, max(lags, default=None), max(behind, default=None)))
    return rows


def numbers(partitions: Sequence[int]) -> str:
    """Return `0-3, 7`."""
    runs: list[list[int]] = []
    for number in partitions:
        if runs and number == runs[-1][-1] + 1:
            runs[-1][1:] = [number]
        else:
            runs.append([number])
    return ", ".join("-".join(map(str, run)) for run in runs)


@cache
def _environment() -> Environment:
    """Return the environment of all reports: compiling the templates takes longer than a small page."""
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
    """Return `1,234.5`."""
    return UNKNOWN if seconds is None else f"{seconds:,.1f}"


def shown_partitions(topic: TopicFacts) -> list[PartitionFacts]:
    """Return partitions in order; of very many the largest."""
    largest = nlargest(MOST_PARTITIONS, topic.partitions, key=lambda part: part.bytes)
    return sorted(largest, key=lambda part: part.partition)


def never_expires(topic: TopicFacts) -> bool:
    configs = topic.configs or {}
    kept = all(
        configs.get(name, default) == "-1" for name, default in (("retention.ms", ""), ("retention.bytes", "-1"))
    )
    return kept or "delete" not in (topic.cleanup_policy or "")


class Bar(NamedTuple):
    """The bytes of a partition; `height`: over those of the largest."""

    partition: int
    height: float
    bytes: int


def bars(topic: TopicFacts) -> list[Bar]:
    """Return the bars of the first partitions."""
    most = max((part.bytes for part in topic.partitions), default=0) or 1
    return [Bar(part.partition, part.bytes / most, part.bytes) for part in topic.partitions[:MOST_BARS]]
