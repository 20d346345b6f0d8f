"""A report as Prometheus metrics, in version 0.0.4 of the text exposition format.

    # HELP sparklog_group_lag Offsets between the committed offset and the log end.
    # TYPE sparklog_group_lag gauge
    sparklog_group_lag{group="billing",topic="orders",partition="0"} 12

The textfile collector of the node exporter can read a file in this format. All metrics of a report are gauges, because
offsets restart when a topic is created again. Unknown values, such as the record counts of a Kafka directory, are
omitted.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sparklog.tools.report.report_data import ATTENTION, RootReport

Labels = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Metric:
    """A metric with a value for each set of labels. Unknown values are None."""

    name: str
    help: str
    values: Iterable[tuple[Labels, float | None]]
    kind: str = "gauge"


def exposition(report: RootReport) -> str:
    """Return the report as text. The lines of a metric are contiguous, and its labels have a fixed order."""
    now = Metric(
        "sparklog_metrics_timestamp_seconds",
        "Time at which these metrics were collected.",
        [({}, report.now_ms / 1000)],
    )
    return text_of([now, *_of_partitions(report), *_of_topics(report), *_of_jobs(report), *_of_groups(report)])


def text_of(metrics: Iterable[Metric]) -> str:
    return "".join(line + "\n" for metric in metrics for line in _lines(metric))


def _metrics(prefix: str, rows: Sequence[tuple[Labels, Any]], columns: Iterable[Sequence[str]]) -> Iterator[Metric]:
    """Yield a metric for each column (name, help and attribute of a row). Attributes in ms are converted to seconds."""
    for name, text, attribute in columns:
        values = ((labels, getattr(row, attribute)) for labels, row in rows)
        converted = [(labels, _seconds(value) if attribute.endswith("_ms") else value) for labels, value in values]
        yield Metric(f"sparklog_{prefix}_{name}", text, converted)


def _of_partitions(report: RootReport) -> Iterator[Metric]:
    parts = [(topic.topic, part) for topic in report.topics for part in topic.partitions]
    rows = [({"topic": name, "partition": part.partition}, part) for name, part in parts]
    columns = (
        ("log_start_offset", "Log start offset.", "log_start"),
        ("last_stable_offset", "Last stable offset, at which read_committed readers stop.", "last_stable"),
        ("log_end_offset", "Log end offset, which the next record gets.", "log_end"),
        ("records", "Number of records.", "records"),
        ("bytes", "Size of record batches in bytes.", "bytes"),
        ("unsealed_slices", "Number of unsealed slices.", "unsealed"),
        ("newest_timestamp_seconds", "Maximum record timestamp.", "newest_ms"),
    )
    return _metrics("partition", rows, columns)


def _of_topics(report: RootReport) -> Iterator[Metric]:
    active = [({"topic": topic.topic}, topic.activity) for topic in report.topics if topic.activity is not None]
    versions = [(labels, activity.version) for labels, activity in active]
    yield Metric("sparklog_topic_version", "Version of the latest commit.", versions)
    times = [(labels, _seconds(activity.newest_ms)) for labels, activity in active]
    yield Metric("sparklog_topic_commit_timestamp_seconds", "Time of the latest commit.", times)
    owners: dict[str, set[str]] = {topic.topic: set() for topic in report.topics}
    ages = []
    for txn in report.held_back:
        owners[txn.topic].add(txn.owner)
        labels = {"topic": txn.topic, "partition": txn.partition, "owner": txn.owner, "first_offset": txn.first}
        ages.append((labels, _seconds(txn.age_ms)))
    help_text = "Age of a transaction that holds back the last stable offset."
    yield Metric("sparklog_open_transaction_age_seconds", help_text, ages)
    open_transactions = [({"topic": topic}, len(ids)) for topic, ids in owners.items()]
    yield Metric("sparklog_topic_open_transactions", "Number of owners with open transactions.", open_transactions)
    counts: dict[str, int] = {topic.topic: 0 for topic in report.topics} | {"": 0}
    for note in report.notes:
        counts[note.topic] = counts.get(note.topic, 0) + (note.level == ATTENTION)
    notes = [({"topic": topic}, count) for topic, count in counts.items()]
    yield Metric("sparklog_attention_notes", "Number of notes of `sparklog report` that need attention.", notes)


def _of_jobs(report: RootReport) -> Iterator[Metric]:
    backlogs = [({"topic": topic.topic}, topic.backlog) for topic in report.topics if topic.backlog is not None]
    expired = "Timestamp of the oldest record that the next retain run deletes."
    backlog_columns = (
        ("unsealed_bytes", "Unsealed bytes.", "unsealed_bytes"),
        ("dirty_ratio", "Dirty ratio of the dirtiest partition.", "dirty_ratio"),
        ("oldest_expired_timestamp_seconds", expired, "oldest_expired_ms"),
    )
    yield from _metrics("topic", backlogs, backlog_columns)
    # Prometheus uses the label `job` for scrape jobs.
    rows = [({"maintenance": state.job, "topic": state.topic}, state) for state in report.jobs or ()]
    columns = (
        ("last_run_timestamp_seconds", "Start time of the last run.", "last_run_ms"),
        ("last_success_timestamp_seconds", "Start time of the last successful run.", "last_success_ms"),
        ("last_run_seconds", "Duration of the last run on the topic.", "seconds"),
        ("interval_seconds", "Observed interval between runs.", "interval_ms"),
    )
    yield from _metrics("job", rows, columns)
    failed = [(labels, int(bool(state.failure))) for labels, state in rows]
    yield Metric("sparklog_job_failed", "1 if the last run failed.", failed)
    overdue = ("overdue_seconds", "Time since the next run became overdue, 0 if it is not overdue.", "overdue_ms")
    yield from _metrics("job", rows, [overdue])


def _of_groups(report: RootReport) -> Iterator[Metric]:
    groups = report.groups or ()
    active = [({"group": group.group}, int(group.member is not None)) for group in groups]
    yield Metric("sparklog_group_active", "1 if the group has a member.", active)
    members = [({"group": group.group}, group.members) for group in groups]
    yield Metric(
        "sparklog_group_members",
        "Number of members that share the group's partitions, or 1 for an exclusive member.",
        members,
    )
    rows = [
        ({"group": group.group, "topic": part.topic, "partition": part.partition}, part)
        for group in groups
        for part in group.partitions
    ]
    columns = (
        ("current_offset", "Committed offset.", "offset"),
        ("lag", "Offsets between the committed offset and the log end.", "lag"),
        ("lag_seconds", "Age of the first unread record.", "seconds_behind"),
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
