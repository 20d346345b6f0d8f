"""Plan an export from a snapshot: per partition the segments to copy, the slices to write, and the topic's configs.

A sealed slice is a Kafka segment already and is copied, up to the wanted end. All other slices are cut into segments by
the rule of sealing (`sparklog.log.state.segments`) and written by the same code. Records at or above the last stable
offset are not exported: in Kafka's files an open transaction of sparklog's would be committed records. Slices of
aborted transactions are left out, which leaves a gap in the offsets.

An export may begin at any offset: the first file stays whole, and the log start says where records begin. It ends with
the batch that holds the last wanted offset, because batches are not taken apart.

Configs go out as a properties file for Kafka's tools. A config that a broker refuses (removed in Kafka 4, or a
`segment.bytes` below its least) is a comment there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from sparklog.compaction.seal_work import SealPart
from sparklog.errors import NotFound
from sparklog.kafka.in_place.directory import properties_name
from sparklog.log.read.planned_slices import PlannedSlice, PlannedSlices, planned_slices
from sparklog.log.state.configs import TopicConfigs
from sparklog.log.state.segments import RollRule, segments_of
from sparklog.log.state.slice_table import ABORTED, Snapshot
from sparklog.log.state.slices import SliceFlag

GONE = frozenset({"message.format.version", "message.downconversion.enable", "message.timestamp.difference.max.ms"})
"""Removed in Kafka 4.0."""
OURS = frozenset({"inline.records.bytes", "carried.commits"})
LEAST_SEGMENT_BYTES = 1 << 20


def broker_configs(configs: TopicConfigs) -> tuple[dict[str, str], dict[str, str]]:
    """Part the explicit configs into those that a broker takes, and those that it refuses, with the reason."""
    taken: dict[str, str] = {}
    refused: dict[str, str] = {}
    for name, value in sorted(configs.explicit.items()):
        if name in OURS:
            refused[name] = "Kafka has no such config"
        elif name in GONE:
            refused[name] = "Kafka 4 has no such config"
        elif name == "segment.bytes" and int(value) < LEAST_SEGMENT_BYTES:
            refused[name] = f"Kafka takes no less than {LEAST_SEGMENT_BYTES}"
        else:
            taken[name] = value
    return taken, refused


def properties_file(topic: str, partitions: int, configs: TopicConfigs) -> bytes:
    taken, refused = broker_configs(configs)
    options = "".join(f" --config {name}={value}" for name, value in taken.items())
    file = properties_name(topic)
    lines = [
        f"# kafka-topics.sh --create --topic {topic} --partitions {partitions}{options}",
        f"# kafka-configs.sh --alter --entity-type topics --entity-name {topic} --add-config-file {file}",
        *(f"# {name}={configs.explicit[name]}  ({reason})" for name, reason in refused.items()),
        *(f"{name}={value}" for name, value in taken.items()),
    ]
    return "".join(f"{line}\n" for line in lines).encode()


@dataclass(frozen=True, slots=True)
class PartitionPlan:
    """One partition of an export.

    * `log_start`, `log_end`: the offsets that go out; `cut`: the last slice goes on after them, and is not taken whole
    * `copied`: sealed segments to copy; `written`: slices to write as segments, by segment; its `history`: all slices
      up to `log_end` where some hold batches of Kafka's producers, else None
    * `cleaned_through`: Kafka's cleaner checkpoint, None for topics that are not compacted
    """

    partition: int
    log_start: int
    log_end: int
    cut: bool
    copied: tuple[PlannedSlice, ...]
    written: SealPart
    cleaned_through: int | None


def plan_export(
    snapshot: Snapshot, partitions: Sequence[int] | None, starts: Mapping[int, int], ends: Mapping[int, int]
) -> list[PartitionPlan]:
    """Plan the export of partitions (None: all) from `starts` (default: log start) to `ends` (last stable offset).

    `NotFound` for a partition or an offset that is not there, or that is not stable.
    """
    every = range(snapshot.head.partitions)
    named = every if partitions is None else sorted({*partitions})
    for partition in {*named, *starts, *ends}:
        if partition not in every:
            raise NotFound(f"topic '{snapshot.topic}' has partitions 0 to {len(every) - 1}, found {partition}")
        if partition not in named:
            raise NotFound(f"offsets are given for partition {partition}, which is not among those to export")
    stable = stable_ends(snapshot)
    return [_planned(snapshot, number, starts.get(number), ends.get(number), stable[number]) for number in named]


def stable_ends(snapshot: Snapshot) -> list[int]:
    """Return by partition the offset after what may go out."""
    # Transactions of Kafka's producers may stay open: a broker knows what to do with them.
    return [int(offset) for offset in replace(snapshot.head, kafka_open=()).last_stable()]


def _planned(snapshot: Snapshot, partition: int, first: int | None, last: int | None, stable: int) -> PartitionPlan:
    topic, head, configs = snapshot.topic, snapshot.head, snapshot.head.configs
    log_start = int(head.log_start[partition])
    start, end = log_start if first is None else first, stable if last is None else last
    if not log_start <= start <= end <= stable:
        held = f", held back by an open transaction below {int(head.log_end[partition])}"
        raise NotFound(
            f"offsets {start} to {end} of {topic}-{partition} are out of range: expected a part of "
            f"{log_start} to {stable}{held if stable < head.log_end[partition] else ''}"
        )
    below = snapshot.slices.select(partition, 0, end)
    below = below[below.status != ABORTED]
    rows = below[below.end > start]
    copied: list[PlannedSlice] = []
    segments: list[PlannedSlices] = []
    for segment in segments_of(rows, partition, end, RollRule.of(configs, head.topic_id)):
        if segment.rows == 0:
            continue
        sources = planned_slices(topic, partition, rows[segment.first_row : segment.first_row + segment.rows])
        row = sources.row(0)
        if segment.sealed and row.position == 0 and row.size == row.file_size:
            copied.append(row)
        else:
            segments.append(sources)
    cleaned = min(int(head.cleaned_through[partition]), end)
    kafkas = bool((below.flags & int(SliceFlag.KAFKA_PRODUCERS)).any())
    history = planned_slices(topic, partition, below) if kafkas else None
    return PartitionPlan(
        partition=partition,
        log_start=start,
        log_end=end,
        cut=len(rows) > 0 and int(rows.end[-1]) > end,
        copied=tuple(copied),
        written=SealPart(partition, tuple(segments), history, end),
        cleaned_through=cleaned if configs.is_compacted and cleaned > 0 else None,
    )
