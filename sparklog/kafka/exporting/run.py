"""Export topics to a directory that has the layout of a Kafka log directory.

    <path>/orders-0/00000000000000000000.log .index .timeindex [.txnindex]     segments, the last one active
                    <log end, 20 digits>.snapshot                               the state of producers at the log end
                    leader-epoch-checkpoint, partition.metadata
    <path>/orders.properties                                                    the topic's configs
    <path>/__consumer_offsets-0 ..., consumer-groups.csv                        offsets of groups, if requested
    <path>/recovery-point-, replication-, log-start-, cleaner-offset-checkpoint

The directory is created atomically. All files are written durably to a temporary directory next to the target
directory, and the temporary directory is renamed at the end. The rename fails if the target directory has been created
and filled in the meantime. `.kafka_cleanshutdown` and `meta.properties` are not written, because only a broker may
create these files. If `.kafka_cleanshutdown` is missing, a broker checks the files when it starts.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from sparklog.errors import BadRequest, Conflict, Corrupt
from sparklog.format import checkpoint_files
from sparklog.kafka.exporting.plan import (
    DEFAULT_OFFSETS_PARTITIONS,
    GroupOffsets,
    PartitionPlan,
    committed_offsets,
    exported_offsets,
    groups_csv,
    offsets_topic,
    plan_export,
    properties_file,
    stable_ends,
)
from sparklog.kafka.in_place.directory import CONSUMER_OFFSETS, GROUPS_FILE, properties_name
from sparklog.log.decisions.decision_log import consistent_ends, consistent_snapshots, limited_to
from sparklog.log.journal.clocks import Env
from sparklog.log.journal.names import check_topic_name
from sparklog.log.state.commit_log import no_topic
from sparklog.log.state.configs import TopicConfigs
from sparklog.log.state.history import History
from sparklog.log.state.slice_table import Snapshot
from sparklog.log.state.view import READ_UNCOMMITTED
from sparklog.log.topic.root import Root
from sparklog.maintenance.work_items import Progress, silent
from sparklog.storage import local_path
from sparklog.storage.durable_files import sync_folder
from sparklog.storage.local import LocalStore
from sparklog.storage.locations import is_url, without_settings
from sparklog.storage.system_errors import store_error

PARALLEL_PARTITIONS = 128
"""The maximum number of partitions that are exported in parallel. Each partition may have an open file."""


@dataclass(frozen=True, slots=True)
class ExportedPartition:
    """An exported partition.

    * `last_stable`: the last stable offset, which is below the log end if a Kafka transaction is open
    * `segments`: number of segments, including empty segments
    * `nbytes`: size of the `.log` files
    * `linked`: size of the `.log` files that are hard links to files of the root
    """

    partition: int
    log_start: int
    log_end: int
    last_stable: int
    segments: int
    nbytes: int
    linked: int


@dataclass(frozen=True, slots=True)
class ExportedTopic:
    """An exported topic, with the `version` of the source topic, the `topic_id` in the exported files, and the explicit
    `configs`.

    The generated topic `__consumer_offsets` does not have a `version`. Its `groups` are the groups whose offsets it
    contains.
    """

    topic: str
    version: int | None
    topic_id: str
    partition_count: int
    configs: Mapping[str, str]
    partitions: tuple[ExportedPartition, ...]
    groups: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ExportOptions:
    """Options of an export, as in `sparklog.export_kafka`. The ranges apply to each topic.

    * `starts`: start offsets by partition (inclusive)
    * `ends`: end offsets by partition (exclusive); the batch with the last offset is exported completely
    * `topic_id`: the topic id in the files, or a dict of ids by topic. By default, the id of an imported topic is its
      id in Kafka, and the id of any other topic is its id in the root
    * `groups`: groups whose offsets are exported in `__consumer_offsets`, which is the last topic in the result
    * `offsets_partitions`: number of partitions of `__consumer_offsets`
    * `durable`: False to skip all fsync calls
    """

    partitions: Sequence[int] | None = None
    starts: Mapping[int, int] | None = None
    ends: Mapping[int, int] | None = None
    start_ms: int | None = None
    end_ms: int | None = None
    version: int | None = None
    time_ms: int | None = None
    topic_id: str | Mapping[str, str] | None = None
    groups: Sequence[str] | str | None = None
    offsets_partitions: int = DEFAULT_OFFSETS_PARTITIONS
    link: bool = False
    keep_leader_epochs: bool = False
    durable: bool = True

    def check(self) -> None:
        if self.version is not None and self.time_ms is not None:
            raise BadRequest("expected either a version or a time to export, found both")
        if (self.starts and self.start_ms is not None) or (self.ends and self.end_ms is not None):
            raise BadRequest("expected either offsets or a time for the start and the end of an export, found both")
        if self.start_ms is not None and self.end_ms is not None and self.end_ms < self.start_ms:
            raise BadRequest(
                f"the export ends at {self.end_ms} ms, before its start at {self.start_ms} ms: swap the two times"
            )


def export_topics(
    root: Root,
    path: str | os.PathLike[str],
    topics: Sequence[str],
    options: ExportOptions = ExportOptions(),
    progress: Progress = silent,
    on_planned: Callable[[int], object] = lambda nbytes: None,
) -> list[ExportedTopic]:
    """Export topics to the directory `path`, which must be empty or must not exist.

    Return the exported topics in order.

    `on_planned` is called once with the number of bytes to export. `progress` is then called with numbers of exported
    records and bytes.

    Raises `NotFound` for a missing topic, partition, offset, version, time or group. Raises `Conflict` if the directory
    is not empty, or if a file was replaced during the export. Raises `BadRequest` if the directory or an id is invalid,
    and `Corrupt` if a file is damaged. If an exception is raised, the directory is not created.
    """
    options.check()
    if not topics or len(set(topics)) < len(topics):
        raise BadRequest(f"expected one or more different topics to export, found {', '.join(topics) or 'none'}")
    topic_ids = _topic_ids(options.topic_id, topics, options.groups is not None)
    if is_url(path):
        raise BadRequest(
            f"{without_settings(os.fspath(path))} is in a bucket, but an export is atomic only on a disk: export to a "
            "path, and upload the directory, for example with `aws s3 sync`"
        )
    directory = _check_directory(root, local_path(path))
    offsets: list[GroupOffsets] | None = None
    if options.groups is not None:
        # Read the committed offsets before the snapshots, because an offset that is committed after the snapshots may
        # be beyond the end of the export.
        ids = {name: root.topic(name).log.state(refresh=False).topic_id for name in topics}
        offsets = committed_offsets(root, options.groups, ids)
    snapshots = _read_snapshots(root, topics, options.version, options.time_ms)
    plans = [plan_export(shot, options.partitions, *_range(root, shot, options)) for shot in snapshots]
    on_planned(sum(plan.nbytes for of_topic in plans for plan in of_topic))
    stage = _Stage(directory, root.env, options.durable)
    try:
        export = _Export(root, stage.store, topic_ids, options, progress)
        exported = [export.topic(*arguments) for arguments in zip(snapshots, plans, strict=True)]
        if offsets is not None:
            exported.append(export.groups(offsets, options.offsets_partitions))
        export.finish()
        stage.publish()
    except BaseException:
        stage.discard()
        raise
    return exported


def _range(root: Root, snapshot: Snapshot, options: ExportOptions) -> tuple[Mapping[int, int], Mapping[int, int]]:
    """Return the start and end offsets by partition.

    Times are converted to offsets. A time after the last record is converted to the end offset.
    """
    stable = stable_ends(snapshot)
    partitions = [p for p in options.partitions or range(len(stable)) if p < len(stable)]

    def offsets(time_ms: int | None, by_partition: Mapping[int, int] | None) -> Mapping[int, int]:
        if time_ms is None:
            return by_partition or {}
        from sparklog.log.read.time_lookup import offsets_for_timestamps

        newer = root.engine.log(snapshot.topic).read_snapshot
        first = offsets_for_timestamps(snapshot, dict.fromkeys(partitions, time_ms), READ_UNCOMMITTED, newer=newer)
        return {p: stable[p] if record is None else min(record.offset, stable[p]) for p, record in first.items()}

    return offsets(options.start_ms, options.starts), offsets(options.end_ms, options.ends)


def _topic_ids(topic_ids: str | Mapping[str, str] | None, topics: Sequence[str], groups: bool) -> Mapping[str, str]:
    if groups and CONSUMER_OFFSETS in topics:
        raise BadRequest(f"expected either the topic {CONSUMER_OFFSETS} or groups to export, found both")
    if isinstance(topic_ids, str):
        if len(topics) > 1:
            raise BadRequest(f"expected one topic for a topic id, found {len(topics)}: pass a mapping of topics to ids")
        topic_ids = {topics[0]: topic_ids}
    for topic, topic_id in (topic_ids or {}).items():
        if topic not in topics and not (groups and topic == CONSUMER_OFFSETS):
            raise BadRequest(f"topic '{topic}' has a topic id, but is not exported")
        try:
            checkpoint_files.checked_topic_id(topic_id)
        except Corrupt as error:
            raise BadRequest(f"{error.message}: use the id in the output of kafka-topics.sh --describe") from None
    return topic_ids or {}


def _check_directory(root: Root, path: str) -> str:
    """Return the real path.

    Raises `BadRequest` if the path is a file or overlaps the root, and `Conflict` if the directory is not empty.
    """
    real = os.path.realpath(path)
    store = root.store
    if isinstance(store, LocalStore):
        inside = os.path.realpath(store.location)
        if os.path.commonpath([real, inside]) in (inside, real):
            raise BadRequest(f"{path} is inside the root {store.location} or contains it: choose another directory")
    if os.path.lexists(real) and not os.path.isdir(real):
        raise BadRequest(f"{path} is a file: expected an empty or new directory")
    if os.path.isdir(real) and os.listdir(real):
        raise _not_empty(path)
    return real


def _not_empty(path: str) -> Conflict:
    return Conflict(f"{path} is not empty: choose an empty or new directory for the export")


def _read_snapshots(root: Root, topics: Sequence[str], version: int | None, time_ms: int | None) -> list[Snapshot]:
    """Return snapshots that do not contain a part of a transaction, so that no transaction is exported partially.

    The configs in the snapshots include the root defaults.
    """
    if version is None and time_ms is None:
        raw = {name: root.topic(name).log.snapshot() for name in topics}
        visible, deleted = consistent_snapshots(
            root.engine.decisions, raw, lambda name: root.topic(name).log.snapshot()
        )
        for name in deleted:
            raise no_topic(name, root.location)
    else:
        visible = {name: _read_older(root, name, version, time_ms) for name in topics}
    # The export may contain open Kafka transactions, because a broker can end these transactions.
    native = {name: replace(shot, state=replace(shot.state, kafka_open=())) for name, shot in visible.items()}
    limited = [limited_to(native[name], ends) for name, ends in consistent_ends(native).items()]
    defaults = root.engine.defaults.read(latest=True)

    def complete(shot: Snapshot) -> Snapshot:
        configs = TopicConfigs(shot.state.configs.explicit, defaults.of_topic(shot.topic))
        kafka_open = visible[shot.topic].state.kafka_open
        return replace(shot, state=replace(shot.state, kafka_open=kafka_open, configs=configs))

    return [complete(shot) for shot in limited]


def _read_older(root: Root, name: str, version: int | None, time_ms: int | None) -> Snapshot:
    check_topic_name(name)
    history = History(root.store, name, root.env)
    if not len(history.commits):
        root.topic(name)
    version = version if version is not None else history.version_at(time_ms or 0)
    latest = int(history.commits.version[-1]) if len(history.commits) else -1
    if not 0 <= version <= latest:
        raise BadRequest(f"topic '{name}' has versions up to {latest}, found {version}")
    snapshot = history.at(version)
    if not snapshot.state.exists:
        raise BadRequest(f"topic '{name}' was deleted at version {version}: choose an earlier version")
    return snapshot


@dataclass(slots=True)
class _Export:
    """Writes the files of the exported topics, and the checkpoint files of the directory.

    * `topic_ids`: topic ids to write instead of the ids in the root
    * `ends`: the end offset of each partition that was exported only in part, and None for the other partitions
    """

    root: Root
    target: LocalStore
    topic_ids: Mapping[str, str]
    options: ExportOptions
    progress: Progress
    log_ends: dict[checkpoint_files.TopicPartition, int] = field(default_factory=dict)
    log_starts: dict[checkpoint_files.TopicPartition, int] = field(default_factory=dict)
    cleaned: dict[checkpoint_files.TopicPartition, int] = field(default_factory=dict)
    ends: dict[checkpoint_files.TopicPartition, int | None] = field(default_factory=dict)

    def topic(self, snapshot: Snapshot, plans: Sequence[PartitionPlan]) -> ExportedTopic:
        state = snapshot.state
        kafka_id = state.kafka_source.topic_id if state.kafka_source else ""
        topic_id = self.topic_ids.get(snapshot.topic) or kafka_id or state.topic_id
        exported = [
            partition
            for first in range(0, len(plans), PARALLEL_PARTITIONS)
            for partition in self._partitions(snapshot, plans[first : first + PARALLEL_PARTITIONS], topic_id)
        ]
        file = properties_file(snapshot.topic, state.partitions, state.configs)
        self.target.create(properties_name(snapshot.topic), file)
        configs = dict(state.configs.explicit)
        return ExportedTopic(snapshot.topic, snapshot.version, topic_id, state.partitions, configs, tuple(exported))

    def groups(self, offsets: Sequence[GroupOffsets], partitions: int) -> ExportedTopic:
        """Write the committed offsets of groups. This method must be called after all topics are written."""
        exportable = exported_offsets(offsets, self.ends, self.options.keep_leader_epochs)
        topic = offsets_topic(exportable, partitions, self.root.env)
        snapshot = topic.log.snapshot()
        exported = self.topic(snapshot, plan_export(snapshot, None, {}, {}))
        self.target.create(GROUPS_FILE, groups_csv(exportable))
        return replace(exported, version=None, groups=tuple(group.group for group in exportable))

    def finish(self) -> None:
        self.target.create(checkpoint_files.LOG_STARTS_FILE, checkpoint_files.offsets_to_bytes(self.log_starts))
        self.target.create(checkpoint_files.CLEANER_OFFSETS_FILE, checkpoint_files.offsets_to_bytes(self.cleaned))
        self.target.create(checkpoint_files.RECOVERY_POINTS_FILE, checkpoint_files.offsets_to_bytes(self.log_ends))
        self.target.create(checkpoint_files.HIGH_WATERMARKS_FILE, checkpoint_files.offsets_to_bytes(self.log_ends))

    def _partitions(
        self, snapshot: Snapshot, plans: Sequence[PartitionPlan], topic_id: str
    ) -> Iterator[ExportedPartition]:
        from sparklog.compaction.seal_work import write_segments
        from sparklog.kafka.exporting.partition_files import PartitionFiles

        topic, configs = snapshot.topic, snapshot.state.configs
        rules = self.options.link, self.options.keep_leader_epochs
        files = [
            PartitionFiles(plan, snapshot.store, topic, configs, self.target, f"{topic}-{plan.partition}", *rules)
            for plan in plans
        ]
        outputs = write_segments([part.output() for part in files], self.progress)
        for part, written in zip(files, outputs, strict=True):
            plan = part.plan
            part.copy(self.progress)
            log_end = part.finish(written)
            self.target.create(
                f"{part.partition_dir}/{checkpoint_files.LEADER_EPOCHS_FILE}",
                checkpoint_files.leader_epochs_to_bytes(part.epochs()),
            )
            self.target.create(
                f"{part.partition_dir}/{checkpoint_files.PARTITION_METADATA_FILE}",
                checkpoint_files.partition_metadata_to_bytes(topic_id),
            )
            key = (topic, plan.partition)
            self.log_ends[key] = log_end
            is_old = self.options.version is not None or self.options.time_ms is not None
            is_complete = log_end >= snapshot.state.log_end[plan.partition] and not is_old
            self.ends[key] = None if is_complete else log_end
            if plan.log_start > part.first_base:
                self.log_starts[key] = plan.log_start
            if plan.first_dirty_offset is not None:
                self.cleaned[key] = plan.first_dirty_offset
            yield ExportedPartition(
                partition=plan.partition,
                log_start=plan.log_start,
                log_end=log_end,
                last_stable=part.last_stable(log_end),
                segments=part.segments,
                nbytes=part.nbytes,
                linked=part.linked,
            )


class _Stage:
    """The temporary directory next to `path` in which an export is written."""

    def __init__(self, path: str, env: Env, durable: bool) -> None:
        self._path = path
        self._parent, name = os.path.split(path)
        self._temporary_dir = os.path.join(self._parent, f".{name}.partial-{env.new_id()}")
        try:
            os.makedirs(self._temporary_dir)
        except OSError as error:
            raise store_error(error, "create", "", self._temporary_dir) from None
        self.store = LocalStore(self._temporary_dir, durable=durable)
        self._durable = durable

    def publish(self) -> None:
        """Atomically rename the temporary directory to `path`. Raises `Conflict` if the path is in use."""
        try:
            # The rename atomically replaces an empty directory, and fails if the directory is not empty.
            os.rename(self._temporary_dir, self._path)
        except OSError as error:
            if error.errno in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
                raise _not_empty(self._path) from None
            if error.errno in (errno.EBUSY, errno.EXDEV, errno.EPERM):
                raise BadRequest(
                    f"cannot replace {self._path}, which is a mount point or in use: choose a new directory below it"
                ) from None
            raise store_error(error, "create", "", self._path) from None
        if self._durable:
            sync_folder(self._parent)

    def discard(self) -> None:
        shutil.rmtree(self._temporary_dir, ignore_errors=True)
