"""Export topics to a directory with the files that a Kafka broker keeps in a log dir.

    <path>/orders-0/00000000000000000000.log .index .timeindex [.txnindex]     segments, the last one active
                    <log end, 20 digits>.snapshot                               what producers did up to there
                    leader-epoch-checkpoint, partition.metadata
    <path>/orders.properties                                                    the topic's configs
    <path>/__consumer_offsets-0 ..., consumer-groups.csv                        offsets of groups, if asked for
    <path>/recovery-point-, replication-, log-start-, cleaner-offset-checkpoint

The directory is there whole or not at all: all is written, durably, into a folder next to it, which takes its name in
the end, and only if nothing has come to be there meanwhile. `.kafka_cleanshutdown` and `meta.properties` are not
written: they belong to a broker, and without the first one it looks at the files before it believes them.
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

PARTITIONS_AT_ONCE = 128
"""Each may have a file open."""


@dataclass(frozen=True, slots=True)
class ExportedPartition:
    """One partition as it was exported.

    `last_stable`: below the log end where a transaction of Kafka's is open; `segments`: how many, empty ones included;
    `nbytes`: of their `.log` files; `linked`: of those that are hard links to files of the root.
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
    """One topic as it was exported: `version` of its log, `topic_id` in its files, `configs` that were set on it.

    `__consumer_offsets`, which is made for an export, has no `version`; `groups` are those whose offsets are in it.
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
    """Options of an export, as of `sparklog.export_kafka`; ranges apply to each topic.

    * `starts` (inclusive) and `ends` (exclusive; the batch that holds the last offset goes out whole)
    * `topic_id`: the broker's id of the topic, by topic if there are several; default: the id that Kafka gave an
      imported topic, else the id in the root
    * `groups`: `__consumer_offsets` has `offsets_partitions` partitions, and comes last in the result
    * `durable`: False skips every fsync
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
            raise BadRequest("an export is of a version or of a time: give one of both")
        if (self.starts and self.start_ms is not None) or (self.ends and self.end_ms is not None):
            raise BadRequest("an export begins, and ends, at offsets or at a time: give one of both")
        if self.start_ms is not None and self.end_ms is not None and self.end_ms < self.start_ms:
            times = f"from {self.start_ms} ms to {self.end_ms} ms"
            raise BadRequest(f"an export {times} ends before it begins: exchange them")


def export_topics(
    root: Root,
    path: str | os.PathLike[str],
    topics: Sequence[str],
    options: ExportOptions = ExportOptions(),
    progress: Progress = silent,
    planned: Callable[[int], object] = lambda nbytes: None,
) -> list[ExportedTopic]:
    """Export topics to the directory `path`, which must be empty or new; return them in the order given.

    `planned` is called with the number of bytes to export, then `progress` with records and bytes.

    `NotFound` for a topic, partition, offset, version, time or group that does not exist; `Conflict` if the directory
    is not empty or a file was replaced meanwhile; `BadRequest` for a directory or an id that is not valid; `Corrupt`
    for damage. Nothing is left at `path` then.
    """
    options.check()
    if not topics or len(set(topics)) < len(topics):
        raise BadRequest(f"expected one or more different topics to export, found {', '.join(topics) or 'none'}")
    topic_ids = _topic_ids(options.topic_id, topics, options.groups is not None)
    if is_url(path):
        raise BadRequest(
            f"{without_settings(os.fspath(path))} is a bucket, and an export goes to a disk, where it appears whole: "
            "give a path and copy that, as with `aws s3 sync`"
        )
    directory = _check_directory(root, local_path(path))
    offsets: list[GroupOffsets] | None = None
    if options.groups is not None:
        # Before the snapshots: an offset that is committed later could be beyond the end of the export.
        ids = {name: root.topic(name).log.state(refresh=False).topic_id for name in topics}
        offsets = committed_offsets(root, options.groups, ids)
    snapshots = _read_snapshots(root, topics, options.version, options.time_ms)
    plans = [plan_export(shot, options.partitions, *_range(root, shot, options)) for shot in snapshots]
    planned(sum(plan.nbytes for of_topic in plans for plan in of_topic))
    stage = _Stage(directory, root.env, options.durable)
    try:
        run = _Export(root, stage.store, topic_ids, options, progress)
        exported = [run.topic(*planned) for planned in zip(snapshots, plans, strict=True)]
        if offsets is not None:
            exported.append(run.groups(offsets, options.offsets_partitions))
        run.finish()
        stage.publish()
    except BaseException:
        stage.discard()
        raise
    return exported


def _range(root: Root, snapshot: Snapshot, options: ExportOptions) -> tuple[Mapping[int, int], Mapping[int, int]]:
    """Return starts and ends of this topic's partitions, times as offsets. A time after the last record is the end."""
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


def _topic_ids(given: str | Mapping[str, str] | None, topics: Sequence[str], groups: bool) -> Mapping[str, str]:
    if groups and CONSUMER_OFFSETS in topics:
        raise BadRequest(f"{CONSUMER_OFFSETS} is exported as a topic or made from groups: give one of both")
    if isinstance(given, str):
        if len(topics) > 1:
            raise BadRequest(f"a topic id is of one topic, found {len(topics)}: give them by topic")
        given = {topics[0]: given}
    for topic, topic_id in (given or {}).items():
        if topic not in topics and not (groups and topic == CONSUMER_OFFSETS):
            raise BadRequest(f"a topic id is given for '{topic}', which is not among those to export")
        try:
            checkpoint_files.checked_topic_id(topic_id)
        except Corrupt as error:
            raise BadRequest(f"{error.message}: give the id that kafka-topics.sh --describe shows") from None
    return given or {}


def _check_directory(root: Root, path: str) -> str:
    """Return the real path. `BadRequest` for a file, or within or around the root; `Conflict` if not empty."""
    real = os.path.realpath(path)
    store = root.store
    if isinstance(store, LocalStore):
        inside = os.path.realpath(store.location)
        if os.path.commonpath([real, inside]) in (inside, real):
            raise BadRequest(f"{path} lies within the root {store.location} or around it: choose another directory")
    if os.path.lexists(real) and not os.path.isdir(real):
        raise BadRequest(f"{path} is a file; expected a directory that is empty or new")
    if os.path.isdir(real) and os.listdir(real):
        raise _not_empty(path)
    return real


def _not_empty(path: str) -> Conflict:
    return Conflict(f"{path} is not empty: an export goes to a directory of its own; choose another or empty it")


def _read_snapshots(root: Root, topics: Sequence[str], version: int | None, time_ms: int | None) -> list[Snapshot]:
    """Return snapshots that end, in all topics, before a transaction that is hidden in one: none goes out in part."""
    if version is None and time_ms is None:
        raw = {name: root.topic(name).log.snapshot() for name in topics}
        shown, gone = consistent_snapshots(root.engine.decisions, raw, lambda name: root.topic(name).log.snapshot())
        for name in gone:
            raise no_topic(name, root.location)
    else:
        shown = {name: _read_older(root, name, version, time_ms) for name in topics}
    # Transactions of Kafka's producers may stay open: a broker knows what to do with them.
    native = {name: replace(shot, state=replace(shot.state, kafka_open=())) for name, shot in shown.items()}
    held = [limited_to(native[name], ends) for name, ends in consistent_ends(native).items()]
    return [replace(shot, state=replace(shot.state, kafka_open=shown[shot.topic].state.kafka_open)) for shot in held]


def _read_older(root: Root, name: str, version: int | None, time_ms: int | None) -> Snapshot:
    check_topic_name(name)
    history = History(root.store, name, root.env)
    if not len(history.commits):
        root.topic(name)
    version = version if version is not None else history.version_at(time_ms or 0)
    newest = int(history.commits.version[-1]) if len(history.commits) else -1
    if not 0 <= version <= newest:
        raise BadRequest(f"topic '{name}' has versions up to {newest}, found {version}")
    snapshot = history.at(version)
    if not snapshot.state.exists:
        raise BadRequest(f"topic '{name}' was deleted at version {version}: name an earlier one")
    return snapshot


@dataclass(slots=True)
class _Export:
    """The export of several topics: their files, and the checkpoints of the whole directory.

    `topic_ids`: written instead of those in the root; `ends`: end of each partition that was exported in part, None for
    whole ones.
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
        kafkas = state.kafka_source.topic_id if state.kafka_source else ""
        topic_id = self.topic_ids.get(snapshot.topic) or kafkas or state.topic_id
        exported = [
            partition
            for first in range(0, len(plans), PARTITIONS_AT_ONCE)
            for partition in self._partitions(snapshot, plans[first : first + PARTITIONS_AT_ONCE], topic_id)
        ]
        file = properties_file(snapshot.topic, state.partitions, state.configs)
        self.target.create(properties_name(snapshot.topic), file)
        configs = dict(state.configs.explicit)
        return ExportedTopic(snapshot.topic, snapshot.version, topic_id, state.partitions, configs, tuple(exported))

    def groups(self, offsets: Sequence[GroupOffsets], partitions: int) -> ExportedTopic:
        """Write the committed offsets of groups, after all topics."""
        kept = exported_offsets(offsets, self.ends, self.options.keep_leader_epochs)
        topic = offsets_topic(kept, partitions, self.root.env)
        snapshot = topic.log.snapshot()
        exported = self.topic(snapshot, plan_export(snapshot, None, {}, {}))
        self.target.create(GROUPS_FILE, groups_csv(kept))
        return replace(exported, version=None, groups=tuple(group.group for group in kept))

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
                f"{part.folder}/{checkpoint_files.LEADER_EPOCHS_FILE}",
                checkpoint_files.leader_epochs_to_bytes(part.epochs()),
            )
            self.target.create(
                f"{part.folder}/{checkpoint_files.PARTITION_METADATA_FILE}",
                checkpoint_files.partition_metadata_to_bytes(topic_id),
            )
            key = (topic, plan.partition)
            self.log_ends[key] = log_end
            older = self.options.version is not None or self.options.time_ms is not None
            whole = log_end >= snapshot.state.log_end[plan.partition] and not older
            self.ends[key] = None if whole else log_end
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
    """The temporary folder next to `place` that an export is written to."""

    def __init__(self, place: str, env: Env, durable: bool) -> None:
        self._place = place
        self._parent, name = os.path.split(place)
        self._path = os.path.join(self._parent, f".{name}.partial-{env.new_id()}")
        try:
            os.makedirs(self._path)
        except OSError as error:
            raise store_error(error, "create", "", self._path) from None
        self.store = LocalStore(self._path, durable=durable)
        self._durable = durable

    def publish(self) -> None:
        """Rename the folder to its name, atomically; `Conflict` if the name is taken by now."""
        try:
            # Onto an empty directory this is atomic, too; one that is not empty stays as it is.
            os.rename(self._path, self._place)
        except OSError as error:
            if error.errno in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
                raise _not_empty(self._place) from None
            if error.errno in (errno.EBUSY, errno.EXDEV, errno.EPERM):
                raise BadRequest(
                    f"{self._place} cannot be replaced, it is a mount point or kept otherwise: name a new directory"
                    " below it"
                ) from None
            raise store_error(error, "create", "", self._place) from None
        if self._durable:
            sync_folder(self._parent)

    def discard(self) -> None:
        shutil.rmtree(self._path, ignore_errors=True)
