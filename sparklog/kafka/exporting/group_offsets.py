"""Export committed offsets: records of `__consumer_offsets` for a broker, and a file for Kafka's own tool.

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

from sparklog.errors import NotFound, did_you_mean
from sparklog.format.checkpoint_files import TopicPartition
from sparklog.format.coordinators.coordinator_records import (
    GroupKey,
    GroupValue,
    OffsetKey,
    OffsetValue,
    encode_group_key,
    encode_group_value,
    encode_offset_key,
    encode_offset_value,
)
from sparklog.groups.assignors import string_hash
from sparklog.kafka.in_place.directory import CONSUMER_OFFSETS
from sparklog.log.topic.root import Root, open_root
from sparklog.storage.memory import MemoryStore

if TYPE_CHECKING:
    from sparklog.groups.group_state import CommittedOffset
    from sparklog.log.journal.clocks import Env
    from sparklog.log.topic.topic import Topic


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
