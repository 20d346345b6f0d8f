"""Plan an export from a snapshot: the segments to copy and the slices to rewrite in each partition, the configs and the
committed offsets.

A sealed slice is already a Kafka segment, and is copied up to the end of the export. Other slices are rewritten into
segments in the same way as slices are sealed (see `sparklog.log.state.segments`). Records at or above the last stable
offset are not exported, because Kafka would treat the records of an open sparklog transaction as committed. Slices of
aborted transactions are skipped, which leaves gaps in the offsets.

An export can start at any offset. The first file is exported completely, and the log start offset determines which
record is the first one. The export ends with the batch that contains the last offset, because batches are not split.

Configs are exported to a properties file for Kafka's tools. Configs that a broker rejects (configs that were removed in
Kafka 4, or a `segment.bytes` below the minimum) are written as comments. Committed offsets are exported as records for
a broker, and as a file for Kafka's tools:

    __consumer_offsets-<n>    n = abs(hashCode of the group's name) mod the number of partitions, as for the
                              coordinator; a GroupMetadata record per group, and an OffsetCommit per partition
    consumer-groups.csv       group,topic,partition,offset: for `kafka-consumer-groups --reset-offsets --from-file`

The GroupMetadata record states that the group has been empty since the time of the export. Without this record, a
broker would apply the retention of offsets (`offsets.retention.minutes`, seven days) from the time of each commit, and
would delete older offsets as soon as it has loaded them.
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


REMOVED = frozenset({"message.format.version", "message.downconversion.enable", "message.timestamp.difference.max.ms"})
"""Configs that were removed in Kafka 4.0."""
SPARKLOG_ONLY = frozenset({"inline.records.bytes", "carried.commits"})
MIN_SEGMENT_BYTES = 1 << 20


def broker_configs(configs: TopicConfigs) -> tuple[dict[str, str], dict[str, str]]:
    """Return the explicit configs that a broker accepts, and the other configs with the reason why a broker rejects
    them.
    """
    accepted: dict[str, str] = {}
    rejected: dict[str, str] = {}
    for name, value in sorted(configs.explicit.items()):
        if name in SPARKLOG_ONLY:
            rejected[name] = "not a Kafka config"
        elif name in REMOVED:
            rejected[name] = "removed in Kafka 4.0"
        elif name == "segment.bytes" and int(value) < MIN_SEGMENT_BYTES:
            rejected[name] = f"Kafka requires at least {MIN_SEGMENT_BYTES}"
        else:
            accepted[name] = value
    return accepted, rejected


def properties_file(topic: str, partitions: int, configs: TopicConfigs) -> bytes:
    accepted, rejected = broker_configs(configs)
    options = "".join(f" --config {name}={value}" for name, value in accepted.items())
    file = properties_name(topic)
    lines = [
        f"# kafka-topics.sh --create --topic {topic} --partitions {partitions}{options}",
        f"# kafka-configs.sh --alter --entity-type topics --entity-name {topic} --add-config-file {file}",
        *(f"# {name}={configs.explicit[name]}  ({reason})" for name, reason in rejected.items()),
        *(f"{name}={value}" for name, value in accepted.items()),
    ]
    return "".join(f"{line}\n" for line in lines).encode()


@dataclass(frozen=True, slots=True)
class PartitionPlan:
    """The export of one partition.

    * `log_start`, `log_end`: the log start offset and log end offset of the exported partition
    * `is_cut`: True if only a part of the last slice is exported
    * `copied`: sealed segments to copy
    * `written`: slices to write, by segment. If the slices up to `log_end` contain batches of Kafka producers,
      `written.history` contains these slices; otherwise it is None
    * `first_dirty_offset`: the offset in Kafka's cleaner checkpoint, or None for topics that are not compacted
    """

    partition: int
    log_start: int
    log_end: int
    is_cut: bool
    copied: tuple[PlannedSlice, ...]
    written: SealPart
    first_dirty_offset: int | None

    @property
    def nbytes(self) -> int:
        """The number of bytes to read."""
        written = sum(int(sources.size.sum()) for sources in self.written.segments)
        return sum(row.size for row in self.copied) + written


def plan_export(
    snapshot: Snapshot, partitions: Sequence[int] | None, starts: Mapping[int, int], ends: Mapping[int, int]
) -> list[PartitionPlan]:
    """Plan the export of partitions from `starts` to `ends`.

    * `partitions`: the partitions, or None for all partitions
    * `starts`: start offsets by partition; default: the log start
    * `ends`: end offsets by partition; default: the last stable offset

    Raises `NotFound` if a partition does not exist, or if an offset does not exist or is not stable.
    """
    existing = range(snapshot.state.partitions)
    requested = existing if partitions is None else sorted({*partitions})
    for partition in {*requested, *starts, *ends}:
        if partition not in existing:
            raise NotFound(
                f"topic '{snapshot.topic}' has partitions 0 to {len(existing) - 1}, found partition {partition}"
            )
        if partition not in requested:
            raise NotFound(f"partition {partition} has a start or end offset, but is not exported")
    stable = stable_ends(snapshot)
    return [
        _plan_partition(snapshot, number, starts.get(number), ends.get(number), stable[number]) for number in requested
    ]


def stable_ends(snapshot: Snapshot) -> list[int]:
    """Return the offset at which the export of each partition must end."""
    # The export may contain open Kafka transactions, because a broker can end these transactions.
    return [int(offset) for offset in replace(snapshot.state, kafka_open=()).last_stable()]


def _plan_partition(
    snapshot: Snapshot, partition: int, first: int | None, last: int | None, stable: int
) -> PartitionPlan:
    topic, state, configs = snapshot.topic, snapshot.state, snapshot.state.configs
    log_start = int(state.log_start[partition])
    start, end = log_start if first is None else first, stable if last is None else last
    if not log_start <= start <= end <= stable:
        reason = f" (the log end is {int(state.log_end[partition])}, but a transaction is open)"
        raise NotFound(
            f"offsets {start} to {end} of {topic}-{partition} are out of range: expected a range within "
            f"{log_start} to {stable}{reason if stable < state.log_end[partition] else ''}"
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
    has_kafka_producers = bool((below.flags & int(SliceFlag.KAFKA_PRODUCERS)).any())
    history = planned_slices(topic, partition, below) if has_kafka_producers else None
    return PartitionPlan(
        partition=partition,
        log_start=start,
        log_end=end,
        is_cut=len(rows) > 0 and int(rows.end[-1]) > end,
        copied=tuple(copied),
        written=SealPart(partition, tuple(segments), history, end),
        first_dirty_offset=cleaned if configs.is_compacted and cleaned > 0 else None,
    )


ALL_GROUPS = "all"
DEFAULT_OFFSETS_PARTITIONS = 50
"""Kafka's `offsets.topic.num.partitions`."""
OFFSETS_CONFIGS = {"cleanup.policy": "compact", "compression.type": "producer", "segment.bytes": 100 << 20}
"""The configs with which a group coordinator creates the topic `__consumer_offsets`."""
PROTOCOL_TYPE = "consumer"


@dataclass(frozen=True, slots=True)
class GroupOffsets:
    """The committed offsets of a group, sorted by topic and partition.

    `generation` is 0 if the group has had no members.
    """

    group: str
    generation: int
    committed: tuple[CommittedOffset, ...]


def group_partition(group: str, partitions: int) -> int:
    """Return the partition of `__consumer_offsets` for a group, which is computed from Java's `String.hashCode`."""
    code = string_hash(group)
    signed = code - (1 << 32) if code >= 1 << 31 else code
    # Kafka's Utils.abs returns 0 for the smallest int, which has no positive counterpart.
    return 0 if signed == -(1 << 31) else abs(signed) % partitions


def committed_offsets(root: Root, groups: Sequence[str] | str, topic_ids: Mapping[str, str]) -> list[GroupOffsets]:
    """Return the committed offsets of groups in `topics` (topic ids by name). If `groups` is `"all"`, groups that have
    not committed offsets in these topics are skipped.

    Raises `NotFound` if a group does not exist or has not committed offsets in these topics, and `Corrupt` if a group
    is damaged.
    """
    from sparklog.groups.lag import Groups

    all_groups = Groups(root)
    is_all = isinstance(groups, str) and groups == ALL_GROUPS
    names = all_groups.names(None if is_all else [])
    group_names = names if is_all else [groups] if isinstance(groups, str) else list(dict.fromkeys(groups))
    offsets = []
    for name in group_names:
        if name not in names and not all_groups.group(name).log.refresh().exists:
            raise NotFound(f"group '{name}' does not exist in {root.location}{did_you_mean(name, names)}")
        group = all_groups.group(name)
        committed = [row for row in group.committed().values() if topic_ids.get(row.topic) == row.topic_id]
        if committed:
            committed.sort(key=lambda offset: (offset.topic, offset.partition))
            offsets.append(GroupOffsets(name, max(group.description().generation, 0), tuple(committed)))
        elif not is_all:
            raise NotFound(f"group '{name}' has no committed offsets for {', '.join(topic_ids)}: omit the group")
    return offsets


def exported_offsets(
    groups: Sequence[GroupOffsets], ends: Mapping[TopicPartition, int | None], keep_epochs: bool
) -> list[GroupOffsets]:
    """Return the committed offsets of exported partitions, limited to `ends`.

    If an end is None, the entire partition was exported. If an offset were not limited, it would be out of range in the
    export, and the consumer would apply its `auto.offset.reset`. If `keep_epochs` is False, leader epochs become 0, as
    in the exported batches.
    """
    exported = []
    for group in groups:
        rows = []
        for committed in group.committed:
            if (committed.topic, committed.partition) in ends:
                end = ends[committed.topic, committed.partition]
                offset = committed.offset if end is None else min(committed.offset, end)
                epoch = committed.leader_epoch if keep_epochs or committed.leader_epoch is None else 0
                rows.append(replace(committed, offset=offset, leader_epoch=epoch))
        if rows:
            exported.append(replace(group, committed=tuple(rows)))
    return exported


def offsets_topic(groups: Sequence[GroupOffsets], partitions: int, env: Env) -> Topic:
    """Return an in-memory topic `__consumer_offsets` that contains these offsets.

    Raises `BadRequest` if the number of partitions is too large.
    """
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
    """Return the lines `group,topic,partition,offset` in UTF-8. Names that contain commas or quotes are quoted."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    for group in groups:
        writer.writerows((group.group, row.topic, row.partition, row.offset) for row in group.committed)
    return text.getvalue().encode()
