"""Plan an export from a snapshot: per partition the segments to copy, the slices to write, and the topic's configs.

A sealed slice is a Kafka segment already and is copied, up to the wanted end. All other slices are cut into segments by
the rule of sealing (`sparklog.log.state.segments`) and written by the same code. Records at or above the last stable
offset are not exported: in Kafka's files an open transaction of sparklog's would be committed records. Slices of
aborted transactions are left out, which leaves a gap in the offsets.

An export may begin at any offset: the first file stays whole, and the log start says where records begin. It ends with
the batch that holds the last wanted offset, because batches are not taken apart.

Configs go out as a properties file for Kafka's tools. A config that a broker refuses (removed in Kafka 4, or a
`segment.bytes` below its least) is a comment there. Committed offsets go out as records for a broker, and as a file for
Kafka's own tool:

    __consumer_offsets-<n>    n = abs(hashCode of the group's name) mod the number of partitions, as the coordinator
                              chooses it: of each group GroupMetadata, then an OffsetCommit for each partition it reads
    consumer-groups.csv       group,topic,partition,offset: for `kafka-consumer-groups --reset-offsets --from-file`

GroupMetadata says that the group is Empty, since the time of the export. Without it a broker would count the retention
of offsets (`offsets.retention.minutes`, seven days) from each one's commit, and drop those that are older as soon as it
has loaded them.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from sparklog.compaction.seal_work import SealPart
from sparklog.errors import NotFound, did_you_mean
from sparklog.format.checkpoint_files import TopicPartition
from sparklog.groups.assignors import string_hash
from sparklog.kafka.in_place.directory import CONSUMER_OFFSETS, properties_name
from sparklog.kafka.messages.coordinator_records import (
    GroupKey,
    GroupValue,
    OffsetKey,
    OffsetValue,
    encode_group_key,
    encode_group_value,
    encode_offset_key,
    encode_offset_value,
)
from sparklog.log.read.planned_slices import PlannedSlice, PlannedSlices, planned_slices
from sparklog.log.state.configs import TopicConfigs
from sparklog.log.state.segments import RollRule, segments_of
from sparklog.log.state.slice_table import ABORTED, Snapshot
from sparklog.log.state.slices import SliceFlag
from sparklog.log.topic.root import Root, open_root
from sparklog.storage.memory import MemoryStore

if TYPE_CHECKING:
    from sparklog.groups.group_state import CommittedOffset
    from sparklog.log.journal.clocks import Env
    from sparklog.log.topic.topic import Topic


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
    * `first_dirty_offset`: Kafka's cleaner checkpoint, None for topics that are not compacted
    """

    partition: int
    log_start: int
    log_end: int
    cut: bool
    copied: tuple[PlannedSlice, ...]
    written: SealPart
    first_dirty_offset: int | None

    @property
    def nbytes(self) -> int:
        """Bytes to read."""
        written = sum(int(sources.size.sum()) for sources in self.written.segments)
        return sum(row.size for row in self.copied) + written


def plan_export(
    snapshot: Snapshot, partitions: Sequence[int] | None, starts: Mapping[int, int], ends: Mapping[int, int]
) -> list[PartitionPlan]:
    """Plan the export of partitions (None: all) from `starts` (default: log start) to `ends` (last stable offset).

    `NotFound` for a partition or an offset that is not there, or that is not stable.
    """
    every = range(snapshot.state.partitions)
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
    return [int(offset) for offset in replace(snapshot.state, kafka_open=()).last_stable()]


def _planned(snapshot: Snapshot, partition: int, first: int | None, last: int | None, stable: int) -> PartitionPlan:
    topic, state, configs = snapshot.topic, snapshot.state, snapshot.state.configs
    log_start = int(state.log_start[partition])
    start, end = log_start if first is None else first, stable if last is None else last
    if not log_start <= start <= end <= stable:
        held = f", held back by an open transaction below {int(state.log_end[partition])}"
        raise NotFound(
            f"offsets {start} to {end} of {topic}-{partition} are out of range: expected a part of "
            f"{log_start} to {stable}{held if stable < state.log_end[partition] else ''}"
        )
    below = snapshot.slices.select(partition, 0, end)
    below = below[below.status != ABORTED]
    rows = below[below.end > start]
    copied: list[PlannedSlice] = []
    segments: list[PlannedSlices] = []
    for segment in segments_of(rows, partition, end, RollRule.of(configs, state.topic_id)):
        if segment.rows == 0:
            continue
        sources = planned_slices(topic, partition, rows[segment.first_row : segment.first_row + segment.rows])
        row = sources.row(0)
        if segment.sealed and row.position == 0 and row.size == row.file_size:
            copied.append(row)
        else:
            segments.append(sources)
    cleaned = min(int(state.first_dirty_offset[partition]), end)
    kafkas = bool((below.flags & int(SliceFlag.KAFKA_PRODUCERS)).any())
    history = planned_slices(topic, partition, below) if kafkas else None
    return PartitionPlan(
        partition=partition,
        log_start=start,
        log_end=end,
        cut=len(rows) > 0 and int(rows.end[-1]) > end,
        copied=tuple(copied),
        written=SealPart(partition, tuple(segments), history, end),
        first_dirty_offset=cleaned if configs.is_compacted and cleaned > 0 else None,
    )


ALL_GROUPS = "all"
DEFAULT_OFFSETS_PARTITIONS = 50
"""Kafka's `offsets.topic.num.partitions`."""
OFFSETS_CONFIGS = {"cleanup.policy": "compact", "compression.type": "producer", "segment.bytes": 100 << 20}
"""With which a coordinator creates the topic."""
PROTOCOL_TYPE = "consumer"


@dataclass(frozen=True, slots=True)
class GroupOffsets:
    """Committed offsets of a group, ordered by topic and partition; `generation`: of its members, 0 without any."""

    group: str
    generation: int
    committed: tuple[CommittedOffset, ...]


def group_partition(group: str, partitions: int) -> int:
    """The partition of the offsets topic that keeps a group: Java's `String.hashCode`, its sign dropped."""
    code = string_hash(group)
    signed = code - (1 << 32) if code >= 1 << 31 else code
    # Kafka's Utils.abs: the smallest int has no positive counterpart, and counts as 0.
    return 0 if signed == -(1 << 31) else abs(signed) % partitions


def committed_offsets(root: Root, groups: Sequence[str] | str, topic_ids: Mapping[str, str]) -> list[GroupOffsets]:
    """Return the committed offsets of groups for topics (name -> id); `"all"` leaves out groups without any.

    `NotFound` for a group that does not exist, or has no offset of these topics; `Corrupt` for a damaged one.
    """
    from sparklog.groups.lag import Groups

    opened = Groups(root)
    everyone = isinstance(groups, str) and groups == ALL_GROUPS
    names = opened.names(None if everyone else [])
    group_names = names if everyone else [groups] if isinstance(groups, str) else list(dict.fromkeys(groups))
    offsets = []
    for name in group_names:
        if name not in names and not opened.group(name).log.refresh().exists:
            raise NotFound(f"there is no group '{name}' in {root.location}{did_you_mean(name, names)}")
        group = opened.group(name)
        mine = [offset for offset in group.committed().values() if topic_ids.get(offset.topic) == offset.topic_id]
        if mine:
            mine.sort(key=lambda offset: (offset.topic, offset.partition))
            offsets.append(GroupOffsets(name, max(group.description().generation, 0), tuple(mine)))
        elif not everyone:
            raise NotFound(f"group '{name}' has no offset of {', '.join(topic_ids)}: leave it out")
    return offsets


def exported_offsets(
    groups: Sequence[GroupOffsets], ends: Mapping[TopicPartition, int | None], keep_epochs: bool
) -> list[GroupOffsets]:
    """Return the offsets of exported partitions, cut at `ends` (None: the whole partition was exported).

    With an offset above the end a consumer's position would be out of range, and its `auto.offset.reset` would apply.
    Without `keep_epochs` leader epochs become 0, as in the exported batches.
    """
    exported = []
    for group in groups:
        kept = []
        for committed in group.committed:
            if (committed.topic, committed.partition) in ends:
                end = ends[committed.topic, committed.partition]
                offset = committed.offset if end is None else min(committed.offset, end)
                epoch = committed.leader_epoch if keep_epochs or committed.leader_epoch is None else 0
                kept.append(replace(committed, offset=offset, leader_epoch=epoch))
        if kept:
            exported.append(replace(group, committed=tuple(kept)))
    return exported


def offsets_topic(groups: Sequence[GroupOffsets], partitions: int, env: Env) -> Topic:
    """Make the topic `__consumer_offsets` with these offsets, in memory. `BadRequest` for too many partitions."""
    import pyarrow as pa

    from sparklog.log.write.append_target import WriteOptions

    now_ms = env.wall_ms()
    root = open_root(MemoryStore(lambda: now_ms), create=True, env=env)
    topic = root.create_topic(CONSUMER_OFFSETS, partitions=partitions, configs=OFFSETS_CONFIGS)
    records = [
        (group_partition(group.group, partitions), *record)
        for group in groups
        for record in group_records(group, now_ms)
    ]
    if records:
        numbers, keys, values = zip(*records, strict=True)
        rows = {
            "key": pa.array(keys, pa.binary()),
            "value": pa.array(values, pa.binary()),
            "partition": pa.array(numbers, pa.int32()),
            "timestamp": pa.array([now_ms] * len(keys), pa.int64()),
        }
        topic.append(pa.table(rows), options=WriteOptions(codec="none"))
    return topic


def group_records(group: GroupOffsets, now_ms: int) -> Iterator[tuple[bytes, bytes]]:
    state = GroupValue(PROTOCOL_TYPE, group.generation, None, None, now_ms)
    yield encode_group_key(GroupKey(group.group)), encode_group_value(state)
    for offset in group.committed:
        value = OffsetValue(offset.offset, offset.leader_epoch, offset.metadata, offset.time_ms)
        yield encode_offset_key(OffsetKey(group.group, offset.topic, offset.partition)), encode_offset_value(value)


def groups_csv(groups: Sequence[GroupOffsets]) -> bytes:
    """Lines `group,topic,partition,offset` (UTF-8; names with commas or quotes in quotes)."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    for group in groups:
        writer.writerows((group.group, row.topic, row.partition, row.offset) for row in group.committed)
    return text.getvalue().encode()
