"""Plan an import: the topics of a log directory, their configs, and the start offset of each partition.

If the topic already exists in the root, the import continues where the last import ended. This requires that the topic
was imported from the same Kafka topic, and that no other writer has changed the topic in the root since the last
import. The Kafka topic is the same if

* the topic ids are equal, or one of the ids is unknown;
* the log in Kafka does not end before the end of the last import. A shorter log was truncated, for example after an
  unclean leader election, so the imported records beyond its end no longer exist in Kafka;
* the last imported batch still exists with the same checksum and leader epoch. The checksum does not cover the epoch.
  After a change of leader, producers send unacknowledged records again, possibly in another order. If the batch is
  below the cleaner's checkpoint, the cleaner may have removed or rewritten the batch. In this case,
  `leader-epoch-checkpoint` must contain the same epoch for the offset of the batch. If retention has removed the batch,
  only the topic id is compared.

All topics are checked before the first topic is imported.

**Configs** come from the cluster metadata, which a KRaft broker stores as `__cluster_metadata-0` in one of its log
directories. The metadata consists of a log of records and of occasional snapshots of the current state. A snapshot
(`<offset>-<epoch>.checkpoint`) is also a log, but its records have no offsets of the metadata log. The current state is
the state in the latest snapshot, updated by the records that follow the snapshot's offset. The value of a record is
three uvarints (version of the frame, record type, version of the record) and the record. These record types are read:

| type | record            | fields                                                                          |
|------|-------------------|---------------------------------------------------------------------------------|
| 2    | TopicRecord       | name, topic id                                                                  |
| 4    | ConfigRecord      | type of the resource (2: a topic), its name, a config's name, its value or null |
| 9    | RemoveTopicRecord | topic id; also removes its configs                                              |

The metadata does not contain the defaults of brokers, such as `log.retention.ms`, which are in their properties files.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from sparklog.errors import BadRequest, Conflict, Corrupt, NotFound, did_you_mean
from sparklog.format.batch_walk import BatchWalk, Window
from sparklog.format.checkpoint_files import CLEANER_OFFSETS_FILE, HIGH_WATERMARKS_FILE, LOG_STARTS_FILE, TopicPartition
from sparklog.kafka.importing.coordinators import LogDir, LogReading
from sparklog.kafka.importing.partition import NOTHING_IMPORTED, ImportedPart, PartitionSource
from sparklog.kafka.in_place import directory
from sparklog.kafka.in_place.directory import (
    CLUSTER_METADATA,
    SegmentName,
    leader_epochs,
    list_segments,
    next_offset_of,
)
from sparklog.kafka.in_place.files import FilePath
from sparklog.kafka.in_place.segment_file import SegmentFile, seek
from sparklog.kafka.in_place.segment_recovery import FAIL, SKIP
from sparklog.kafka.messages.message_codec import decode, uvarints
from sparklog.kafka.messages.message_schema import Field, Struct
from sparklog.log.journal.clocks import Env
from sparklog.log.journal.names import MAX_PARTITIONS, ROOT_KEY, check_topic_name
from sparklog.log.read.skipped import Skipped
from sparklog.log.state.configs import CONFIGS, TopicConfigs, check_delete_delay
from sparklog.log.state.kafka_source import ImportedEnd
from sparklog.log.state.topic_state import TopicState
from sparklog.log.topic.root import Root

TOPIC, CONFIG, REMOVE_TOPIC = 2, 4, 9
OF_A_TOPIC = 2
_RECORDS: Mapping[int, Struct] = {
    TOPIC: Struct("TopicRecord", (Field("name", "string"), Field("topicId", "uuid")), flexible=0),
    CONFIG: Struct(
        "ConfigRecord",
        (
            Field("resourceType", "int8"),
            Field("resourceName", "string"),
            Field("name", "string"),
            Field("value", "string", nullable=True),
        ),
        flexible=0,
    ),
    REMOVE_TOPIC: Struct("RemoveTopicRecord", (Field("topicId", "uuid"),), flexible=0),
}
_SNAPSHOT = re.compile(r"\d{20}-\d{10}\.checkpoint")
INTERNAL_SEGMENT_BYTES = "internal.segment.bytes"
"""The internal topic config that overrides `segment.bytes`, because the minimum of `segment.bytes` is 1 MiB."""
NAMES = {INTERNAL_SEGMENT_BYTES: "segment.bytes"}


@dataclass(frozen=True, slots=True)
class KafkaConfigs:
    """The configs of a topic in Kafka.

    * `taken`: the configs that are imported
    * `left_out`: the names of the configs that are not imported, and the reason for each config
    """

    taken: Mapping[str, str]
    left_out: Mapping[str, str]


@dataclass(slots=True)
class MetadataLog(LogReading):
    """The topic ids and configs (by topic name) after applying the records that have been read so far."""

    ids: dict[str, str] = field(default_factory=dict)
    configs: dict[str, dict[str, str]] = field(default_factory=dict)
    since: int = 0

    def add(self, window: Window) -> None:
        records = window.decode(("value",), ~window.headers.is_control & (window.headers.count > 0))
        if records.value is None:
            return
        for offset, value in zip(records.offset.tolist(), records.value.to_pylist(), strict=True):
            if value and offset >= self.since:
                try:
                    self._apply(value)
                except Corrupt as error:
                    self._report(window.file, offset, error)

    def _apply(self, value: bytes) -> None:
        (_, kind, version), body = uvarints(value, 3)
        if kind not in _RECORDS:
            return
        if version > _RECORDS[kind].highest:
            raise Corrupt(f"expected a {_RECORDS[kind].name} of version 0, found {version}")
        fields = decode(_RECORDS[kind], version, body)
        if kind == TOPIC:
            self.ids[fields["name"]] = fields["topicId"]
        elif kind == REMOVE_TOPIC:
            for name in [name for name, topic_id in self.ids.items() if topic_id == fields["topicId"]]:
                del self.ids[name]
                self.configs.pop(name, None)
        elif fields["resourceType"] == OF_A_TOPIC:
            configs = self.configs.setdefault(fields["resourceName"], {})
            if fields["value"] is None:
                configs.pop(fields["name"], None)
            else:
                configs[fields["name"]] = fields["value"]

    def _report(self, path: str, offset: int, error: Corrupt) -> None:
        if self.log_dir.policy == FAIL:
            raise Corrupt(
                f"cannot decode a record of Kafka's metadata log: {error.message}; pass the topic configs, and import"
                " with corrupt_records=skip",
                file=path,
                offset=offset,
            ) from None
        why = f"the record cannot be decoded: {error.message}"
        self.log_dir.on_skipped(Skipped(self.topic, self.partition, path, None, 0, offset, offset + 1, why))


def read_metadata(log_dir: LogDir) -> MetadataLog | None:
    """Read the metadata log of a log directory. Return None if it does not exist."""
    partition_dir = directory.partition_dirs(log_dir.path).get((CLUSTER_METADATA, 0))
    if partition_dir is None:
        return None
    metadata = MetadataLog(log_dir, CLUSTER_METADATA, 0)
    snapshots = sorted(filter(_SNAPSHOT.fullmatch, partition_dir.names()))
    segments = list_segments(partition_dir, env=log_dir.env)
    if snapshots:
        file = partition_dir.child(snapshots[-1])
        metadata.load((SegmentName(0, file, file.stat().st_ino),))
        metadata.since = int(snapshots[-1].partition("-")[0])
    metadata.load(segments)
    return metadata


def importable_configs(metadata: MetadataLog, topic: str, topic_id: str, *, force: bool) -> KafkaConfigs | None:
    """Return the configs of a topic, or None if the metadata log does not contain a topic with this name and id."""
    metadata_id = metadata.ids.get(topic)
    if metadata_id is None or (topic_id and metadata_id != topic_id):
        return None
    imported: dict[str, str] = {}
    rejected: dict[str, str] = {}
    for name, value in sorted(metadata.configs.get(topic, {}).items()):
        here = NAMES.get(name, name)
        try:
            if here not in CONFIGS:
                raise BadRequest(f"sparklog does not support the config {name}")
            explicit = TopicConfigs.of({here: value}).explicit
            check_delete_delay(dict(explicit), force)
            imported.update(explicit)
        except BadRequest as error:
            rejected[name] = str(error)
    return KafkaConfigs(imported, rejected)


@dataclass(frozen=True, slots=True)
class TopicSource:
    """A topic in a log directory. `topic_id` is the id in `partition.metadata`, or an empty string."""

    name: str
    topic_id: str
    partitions: tuple[PartitionSource, ...]


@dataclass(frozen=True, slots=True)
class TopicPlan:
    """The import of a topic.

    * `before`: the part of each partition that the root already contains
    * `exists`: True if the topic exists in the root
    * `finished`: True if the root already contains all records and the open transactions have been ended, so that
      nothing has to be imported
    """

    source: TopicSource
    before: tuple[ImportedPart, ...]
    exists: bool
    finished: bool = False


def plan_import(
    root: Root | None, sources: Sequence[TopicSource], policy: str, *, last: bool = False
) -> list[TopicPlan]:
    """Plan the import of each source into the root. `root` is None if the root does not exist yet.

    If `last` is True, this import ends Kafka's open transactions, so a later import cannot continue. If an import with
    `last` was killed while it ended transactions, it may have already written markers to the topics. In this case, a
    topic is `finished` if the log directory does not contain new records.

    Raises `BadRequest` if a topic name is invalid, and `Conflict` if the import of an existing topic cannot continue.
    """
    plans = []
    for source in sources:
        check_topic_name(source.name)
        state = root.engine.log(source.name).refresh().topic_state if root else None
        if root is None or state is None or not state.exists:
            plans.append(TopicPlan(source, (NOTHING_IMPORTED,) * len(source.partitions), exists=False))
            continue
        ends = state.kafka_source.ends if state.kafka_source else {}
        before = tuple(
            ImportedPart(
                ends.get(number, NOTHING_IMPORTED.imported),
                tuple(transaction for transaction in state.kafka_open if transaction.partition == number),
            )
            for number in range(len(source.partitions))
        )
        finished = _check_topic(root, source, state, before, last)
        for part, imported in zip(source.partitions, before, strict=True):
            _check_same_log(source, part, imported.imported, policy, root.env)
        plans.append(TopicPlan(source, before, exists=True, finished=finished))
    return plans


def _check_topic(
    root: Root, source: TopicSource, state: TopicState, before: Sequence[ImportedPart], last: bool
) -> bool:
    """Raise `Conflict` unless the topic was imported from this Kafka topic and has not been changed since the import.

    If `last` is True, the topic has been changed and the log directory does not contain new records, return True
    instead of raising `Conflict`.
    """
    name, imported = source.name, state.kafka_source
    if imported is None:
        raise Conflict(
            f"topic '{name}' exists in {root.location} and was not imported: delete the topic first, or import into"
            " another root"
        )
    if imported.topic_id and source.topic_id and imported.topic_id != source.topic_id:
        raise Conflict(
            f"topic '{name}' in {root.location} was imported from a topic with id {imported.topic_id}, but the topic "
            f"in the log directory has id {source.topic_id}, because the topic was recreated in Kafka: delete the "
            "topic in the root first, or import into another root"
        )
    if state.partitions > len(source.partitions):
        raise Conflict(
            f"topic '{name}' in {root.location} has {state.partitions} partitions, but the log directory has only"
            f" {len(source.partitions)}: copy the directories of all partitions into one log directory first"
        )
    written = [partition for partition, end in enumerate(state.log_end.tolist()) if end != before[partition].end]
    if not written:
        return False
    ends = (_read_bounds(part, list_segments(part.partition_dir, env=root.env))[1] for part in source.partitions)
    if last and all(end <= part.end for end, part in zip(ends, before, strict=True)):
        return True
    raise Conflict(
        f"topic '{name}' in {root.location} was written to since it was imported: partition {written[0]} ends at"
        f" {state.log_end[written[0]]}, but the import ended at {before[written[0]].end}. The offsets no longer match"
        " the offsets in Kafka: import into another root"
    )


def _read_bounds(part: PartitionSource, names: Sequence[SegmentName]) -> tuple[int, int]:
    """Scan the last segment, and return the log start offset and log end offset."""
    log_start = max(names[0].base if names else 0, part.log_start or 0)
    return log_start, max(log_start, next_offset_of(names[-1]) if names else 0)


def _check_same_log(source: TopicSource, part: PartitionSource, imported: ImportedEnd, policy: str, env: Env) -> None:
    """Raise `Conflict` unless the log of the partition still contains the imported batches up to `imported`."""
    if imported.end == 0:
        return
    where = f"{source.name}-{part.number}"
    names = list_segments(part.partition_dir, env=env)
    try:
        log_start, log_end = _read_bounds(part, names)
        # If damaged batches are skipped, the log may contain imported records after the log end that this scan returns.
        if log_end < imported.end and policy != SKIP:
            raise Conflict(
                f"{where} ends at {log_end}, but was imported up to {imported.end}: the log was truncated, for example"
                " after an unclean leader election; delete the topic in the root, and import it again"
            )
        if imported.last < 0 or (imported.last < log_start and source.topic_id):
            return
        last_batch = _read_batch_at(names, imported.last) if imported.last >= log_start else None
    except FileNotFoundError:
        last_batch = None
    if last_batch == (imported.crc, imported.epoch):
        return
    if part.first_dirty_offset is not None and imported.last < part.first_dirty_offset:
        epochs = reversed(leader_epochs(part.partition_dir))
        epoch = next((entry.epoch for entry in epochs if entry.start_offset <= imported.last), None)
        if epoch is None or imported.epoch < 0 or epoch == imported.epoch:
            return
    raise Conflict(
        f"the last imported batch of {where}, up to offset {imported.last}, differs from the batch in the log"
        " directory: import from the same log (with its cleaner-offset-checkpoint, if the topic is compacted), delete"
        " the topic in the root and import it again, or import into another root"
    )


class ExpectedSize(NamedTuple):
    """The log start and log end offset of a partition after an import, and the maximum number of bytes to read."""

    log_start: int
    log_end: int
    nbytes: int


def expected_size(part: PartitionSource, before: ImportedPart, env: Env) -> ExpectedSize:
    names = list_segments(part.partition_dir, env=env)
    log_start, log_end = _read_bounds(part, names)
    nbytes = 0
    for name, after in zip(names, [*names[1:], None], strict=True):
        if log_end > before.end and (after is None or after.base > max(log_start, before.end)):
            with SegmentFile(name.path) as file:
                nbytes += file.size - (seek(file, name.base, before.end) if name.base < before.end else 0)
    return ExpectedSize(log_start, max(log_end, before.end), nbytes)


def _read_batch_at(names: Sequence[SegmentName], last: int) -> tuple[int, int] | None:
    """Return the checksum and leader epoch of the batch whose last offset is `last`, or None if the batch does not
    exist.
    """
    name = next((name for name in reversed(names) if name.base <= last), None)
    if name is None:
        return None
    with SegmentFile(name.path) as file:
        for window in BatchWalk(file, seek(file, name.base, last)):
            ends = window.headers.last_offset
            for row in (ends == last).nonzero()[0].tolist():
                return int(window.headers.crc[row]), int(window.headers.leader_epoch[row])
            if ends[-1] > last:
                return None
    return None


def topic_sources(path: FilePath, topics: Sequence[str] | None) -> list[TopicSource]:
    """Return the topics of the log directory at `path`, sorted by name.

    If `topics` is None, all topics except Kafka's internal topics are returned.

    Raises `NotFound` if the log directory or a topic does not exist, and `BadRequest` if a partition is missing.
    """
    layout = directory.kafka_layout(path)
    if layout is None and not path.is_directory():
        raise NotFound(f"{path} does not exist: expected a directory of a broker's log.dirs")
    if layout is None and path.child(ROOT_KEY).is_file():
        raise BadRequest(f"{path} is already a sparklog root: copy it with `sparklog backup` or `sparklog clone`")
    if layout is None:
        raise NotFound(
            f"{path} is not a Kafka log directory: expected partition directories such as orders-0, which contain"
            " files such as 00000000000000000000.log"
        )
    if layout == "partition":
        raise BadRequest(f"{path} is a partition directory: import its log directory, {path.parent}")
    partition_dirs = directory.partition_dirs(path)
    names = sorted({topic for topic, _ in partition_dirs})
    topics_to_import = (
        sorted(set(topics)) if topics is not None else [name for name in names if not directory.is_internal(name)]
    )
    unknown = next((name for name in topics_to_import if name not in names), None)
    if unknown is not None:
        raise NotFound(f"topic '{unknown}' does not exist in {path}{did_you_mean(unknown, names)}")
    if not topics_to_import:
        raise NotFound(f"{path} contains only internal Kafka topics: specify topics to import from {', '.join(names)}")
    starts = directory.offset_checkpoint(path, LOG_STARTS_FILE)
    cleaned = directory.offset_checkpoint(path, CLEANER_OFFSETS_FILE)
    # If this file does not exist, the high watermarks are unknown. If the file is damaged or an entry is missing, the
    # high watermark is 0.
    try:
        watermarks: dict[TopicPartition, int] | None = directory.offset_checkpoint(path, HIGH_WATERMARKS_FILE) or None
    except Corrupt:
        watermarks = {}
    sources = []
    for name in topics_to_import:
        partitions = tuple(
            PartitionSource(
                number=key[1],
                partition_dir=partition_dirs[key],
                log_start=starts.get(key),
                first_dirty_offset=cleaned.get(key),
                high_watermark=None if watermarks is None else watermarks.get(key, 0),
            )
            for key in sorted(partition_dirs)
            if key[0] == name
        )
        sources.append(TopicSource(name, _read_id(path, name, partitions), partitions))
    return sources


def _read_id(path: FilePath, name: str, partitions: Sequence[PartitionSource]) -> str:
    """Return the topic id. Raises `BadRequest` if a partition is missing, or if the partitions have different topic
    ids.
    """
    numbers = [part.number for part in partitions]
    missing = next((expected for expected, number in enumerate(numbers) if expected != number), None)
    if missing is not None:
        raise BadRequest(
            f"expected partitions 0 to {numbers[-1]} of {name} in {path}, found no {name}-{missing}: copy the"
            " directories of all partitions from their brokers into one log directory first"
        )
    if len(numbers) > MAX_PARTITIONS:
        raise BadRequest(f"a topic has at most {MAX_PARTITIONS} partitions, found {len(numbers)} of {name} in {path}")
    ids = set(path.map_files(lambda part: directory.kafka_topic_id(part.partition_dir), partitions)) - {""}
    if len(ids) > 1:
        raise BadRequest(
            f"the partition directories of {name} in {path} belong to topics with different ids,"
            f" {' and '.join(sorted(ids))}: keep only the directories of one topic"
        )
    return next(iter(ids), "")
