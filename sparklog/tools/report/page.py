"""A report as one HTML page that needs nothing else: no network, styles, charts and a few lines of script inside.

Everything that comes from outside (names of topics, groups and transactions, errors) goes through the template's
escaping. The script sorts and filters tables; the page says the same without it.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, NamedTuple

from sparklog.log.journal.env import EPOCH, LAST_MS
from sparklog.tools.report.facts import Doing, GroupFacts, GroupPartition, PartitionFacts, Report, TopicFacts, total

if TYPE_CHECKING:
    from jinja2 import Environment


MOST_PARTITIONS = 200  # of a topic on the page, the largest
MOST_BARS = 100
LARGEST_TOPICS = 12


def as_html(report: Report) -> str:
    """Return the page. The same report gives the same text."""
    template = _environment(report).get_template("report.html")
    largest = sorted(report.topics, key=lambda topic: -topic.bytes)[:LARGEST_TOPICS]
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
    )
    return text


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


def _environment(report: Report) -> Environment:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("sparklog.tools.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    filters = {"count": count, "size": size, "numbers": numbers, "time": time, "duration": duration}
    environment.filters.update(filters, ago=lambda ms: ago(ms, report.now_ms))
    return environment


def count(number: float | None) -> str:
    """Return `1,234,567`; a dash for an unknown number."""
    return "–" if number is None else f"{number:,.0f}"


def size(nbytes: float | None) -> str:
    """Return bytes in the unit that suits them, as disks are sold: `1.5 MB` are 1,500,000."""
    if nbytes is None:
        return "–"
    for unit, scale in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if nbytes >= scale:
            return f"{nbytes / scale:,.1f} {unit}"
    return f"{nbytes:,.0f} B"


def time(ms: int | None) -> str:
    """Return `2026-01-31 12:00:00`, in UTC."""
    if ms is None:
        return "–"
    if not 0 <= ms <= LAST_MS:
        return f"{ms:,} ms"
    return (EPOCH + timedelta(milliseconds=ms)).strftime("%Y-%m-%d %H:%M:%S")


def duration(ms: float | None) -> str:
    """Return `3 h`: one unit, the largest that fits."""
    if ms is None:
        return "–"
    for unit, scale in (("years", 365.25 * 86_400_000), ("days", 86_400_000), ("h", 3_600_000), ("min", 60_000)):
        if abs(ms) >= 2 * scale:
            return f"{ms / scale:,.0f} {unit}"
    return f"{ms / 1000:,.0f} s"


def ago(ms: int | None, now_ms: int) -> str:
    """Return `3 h ago`, `in 3 h`; a dash without a time."""
    if ms is None:
        return "–"
    return f"{duration(now_ms - ms)} ago" if ms <= now_ms else f"in {duration(ms - now_ms)}"


def shown_partitions(topic: TopicFacts) -> list[PartitionFacts]:
    """Return partitions in order; of very many the largest."""
    if len(topic.partitions) <= MOST_PARTITIONS:
        return list(topic.partitions)
    largest = sorted(topic.partitions, key=lambda part: -part.bytes)[:MOST_PARTITIONS]
    return sorted(largest, key=lambda part: part.partition)


def bars(topic: TopicFacts) -> list[tuple[int, float, int]]:
    """Return (partition, height from 0 to 1, bytes) of the first partitions: bytes over those of the largest."""
    most = max((part.bytes for part in topic.partitions), default=0) or 1
    return [(part.partition, part.bytes / most, part.bytes) for part in topic.partitions[:MOST_BARS]]
