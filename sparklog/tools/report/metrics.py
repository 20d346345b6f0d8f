"""A report's figures as Prometheus reads them: the text exposition format, version 0.0.4.

    # HELP sparklog_group_lag Offsets between the committed offset and the log end.
    # TYPE sparklog_group_lag gauge
    sparklog_group_lag{group="billing",topic="orders",partition="0"} 12

A file of these lines is what the node exporter's textfile collector takes in. Those of a report are gauges: offsets go
back when a topic is created again. An unknown figure (the record counts of a Kafka directory) has no line.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from sparklog.maintenance.overdue import JobState
from sparklog.maintenance.report import Backlog
from sparklog.tools.report.report_data import ATTENTION, GroupPartition, PartitionFacts, RootReport

Labels = Mapping[str, object]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Metric:
    """One name, and a value (None: not known) for each set of labels."""

    name: str
    help: str
    values: Iterable[tuple[Labels, float | None]]
    kind: str = "gauge"


def exposition(report: RootReport) -> str:
    """Return the lines, each metric's together, labels in a fixed order; ends with a line feed."""
    now = Metric("sparklog_metrics_timestamp_seconds", "When these figures were taken.", [({}, report.now_ms / 1000)])
    return text_of([now, *_of_partitions(report), *_of_topics(report), *_of_jobs(report), *_of_groups(report)])


def text_of(metrics: Iterable[Metric]) -> str:
    """Return the lines of any metrics."""
    return "".join(line + "\n" for metric in metrics for line in _lines(metric))


def _metrics(
    prefix: str, rows: Sequence[tuple[Labels, T]], columns: Iterable[tuple[str, str, Callable[[T], float | None]]]
) -> Iterator[Metric]:
    for name, text, value in columns:
        yield Metric(f"sparklog_{prefix}_{name}", text, [(labels, value(row)) for labels, row in rows])


def _of_partitions(report: RootReport) -> Iterator[Metric]:
    parts = [(topic.topic, part) for topic in report.topics for part in topic.partitions]
    rows = [({"topic": name, "partition": part.partition}, part) for name, part in parts]
    columns: tuple[tuple[str, str, Callable[[PartitionFacts], float | None]], ...] = (
        ("log_start_offset", "First offset that can be read.", lambda part: part.log_start),
        ("last_stable_offset", "Where read_committed readers stop.", lambda part: part.last_stable),
        ("log_end_offset", "Offset that the next record will get.", lambda part: part.log_end),
        ("records", "Records that batches hold.", lambda part: part.records),
        ("bytes", "Bytes of record batches.", lambda part: part.bytes),
        ("unsealed_slices", "Slices that no job has sealed yet.", lambda part: part.unsealed),
        ("newest_timestamp_seconds", "Greatest record time.", lambda part: _seconds(part.newest_ms)),
    )
    return _metrics("partition", rows, columns)


def _of_topics(report: RootReport) -> Iterator[Metric]:
    active = [({"topic": topic.topic}, topic.activity) for topic in report.topics if topic.activity is not None]
    versions = [(labels, activity.version) for labels, activity in active]
    yield Metric("sparklog_topic_version", "Number of the newest commit.", versions)
    times = [(labels, _seconds(activity.newest_ms)) for labels, activity in active]
    yield Metric("sparklog_topic_commit_timestamp_seconds", "When the newest commit was made.", times)
    owners: dict[str, set[str]] = {topic.topic: set() for topic in report.topics}
    ages = []
    for item in report.held_back:
        owners[item.topic].add(item.owner)
        labels = {"topic": item.topic, "partition": item.partition, "owner": item.owner, "first_offset": item.first}
        ages.append((labels, _seconds(item.age_ms)))
    yield Metric("sparklog_open_transaction_age_seconds", "Age of what holds back the last stable offset.", ages)
    open_now = [({"topic": topic}, len(ids)) for topic, ids in owners.items()]
    yield Metric("sparklog_topic_open_transactions", "Open transactions, by their owners.", open_now)
    counts: dict[str, int] = {topic.topic: 0 for topic in report.topics} | {"": 0}
    for note in report.notes:
        counts[note.topic] = counts.get(note.topic, 0) + (note.level == ATTENTION)
    notes = [({"topic": topic}, count) for topic, count in counts.items()]
    yield Metric("sparklog_attention_notes", "Notes of `sparklog report` that need attention.", notes)


def _of_jobs(report: RootReport) -> Iterator[Metric]:
    backlogs = [({"topic": topic.topic}, topic.backlog) for topic in report.topics if topic.backlog is not None]
    waiting: tuple[tuple[str, str, Callable[[Backlog], float | None]], ...] = (
        ("unsealed_bytes", "Bytes that no job has sealed yet.", lambda backlog: backlog.unsealed_bytes),
        ("dirty_ratio", "Dirty ratio of the dirtiest partition.", lambda backlog: backlog.dirty_ratio),
        (
            "oldest_expired_timestamp_seconds",
            "Time of the oldest record that the next run of retain takes.",
            lambda backlog: _seconds(backlog.oldest_expired_ms),
        ),
    )
    yield from _metrics("topic", backlogs, waiting)
    # Not `job`: that is the label of what Prometheus scrapes.
    rows = [({"maintenance": state.job, "topic": state.topic}, state) for state in report.jobs or ()]
    columns: tuple[tuple[str, str, Callable[[JobState], float | None]], ...] = (
        ("last_run_timestamp_seconds", "When the last run began.", lambda state: _seconds(state.last_run_ms)),
        (
            "last_success_timestamp_seconds",
            "When the last run began that did not fail.",
            lambda state: _seconds(state.last_success_ms),
        ),
        ("last_run_seconds", "How long the last run worked on the topic.", lambda state: state.seconds),
        ("interval_seconds", "Time between two runs, as they came.", lambda state: _seconds(state.interval_ms)),
        ("failed", "1 if the last run failed.", lambda state: int(bool(state.failure))),
        ("overdue_seconds", "For how long a run is overdue, 0 while it is not.", lambda state: state.overdue_ms / 1000),
    )
    yield from _metrics("job", rows, columns)


def _of_groups(report: RootReport) -> Iterator[Metric]:
    groups = report.groups or ()
    active = [({"group": group.group}, int(group.member is not None)) for group in groups]
    yield Metric("sparklog_group_active", "1 while the group has a member.", active)
    members = [({"group": group.group}, group.members) for group in groups]
    yield Metric("sparklog_group_members", "Members that share the group's partitions, or 1 that owns them.", members)
    rows = [
        ({"group": group.group, "topic": part.topic, "partition": part.partition}, part)
        for group in groups
        for part in group.partitions
    ]
    columns: tuple[tuple[str, str, Callable[[GroupPartition], float | None]], ...] = (
        ("current_offset", "Committed offset: the next to read.", lambda part: part.offset),
        ("lag", "Offsets between the committed offset and the log end.", lambda part: part.lag),
        ("lag_seconds", "How long the first unread record has waited.", lambda part: part.seconds_behind),
    )
    yield from _metrics("group", rows, columns)


def _seconds(ms: int | None) -> float | None:
    return None if ms is None else ms / 1000


def _lines(metric: Metric) -> Iterator[str]:
    values = [(labels, value) for labels, value in metric.values if value is not None]
    if values:
        yield f"# HELP {metric.name} {metric.help}"
        yield f"# TYPE {metric.name} {metric.kind}"
    for labels, value in values:
        inside = ",".join(f'{name}="{_escaped(str(text))}"' for name, text in labels.items())
        yield f"{metric.name}{{{inside}}} {value!r}" if inside else f"{metric.name} {value!r}"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
