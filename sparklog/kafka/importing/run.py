"""Import topics of a Kafka log directory into a root.

An import preserves offsets, log starts, the bytes of all batches, the cleaner's checkpoint, leader epochs and Kafka's
topic id. Closed segments are imported completely with their indexes, as hard links if possible. Later appends use the
next leader epoch. The configs of a new topic come from the caller and, if the log directory contains a metadata log,
from the metadata log.

1. Create the topic with the topic id that it has in Kafka.
2. Copy, check and commit each partition in chunks. Each chunk starts at the end of the previous chunk.

If an import is killed, the next import continues after the last committed chunk. If records have been appended to the
log, the next import copies these records (see `sparklog.kafka.importing.plan` for the conditions). During an import,
readers see only the chunks that are already committed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TypeAlias

from sparklog.common.units import count
from sparklog.errors import BadRequest, Conflict, SparklogError
from sparklog.kafka.importing.coordinators import (
    GroupTopic,
    ImportedGroup,
    KafkaGroup,
    LogDir,
    commit_decisions,
    import_groups,
    kafka_groups,
    kafka_transactions,
)
from sparklog.kafka.importing.partition import (
    CoordinatorEntry,
    CopyTarget,
    ImportedPart,
    PartitionSource,
    copy_partition,
)
from sparklog.kafka.importing.plan import (
    NAMES,
    KafkaConfigs,
    TopicPlan,
    TopicSource,
    expected_size,
    importable_configs,
    plan_import,
    read_metadata,
    topic_sources,
)
from sparklog.kafka.in_place.files import AnyPath, file_path
from sparklog.kafka.in_place.segment_recovery import FAIL, check_policy, log_skipped
from sparklog.log.journal.clocks import SYSTEM, Env
from sparklog.log.read.skipped import OnSkipped, Skipped
from sparklog.log.state.commit_intents import CreateIntent, ImportedPartition, ImportIntent
from sparklog.log.state.configs import TopicConfigs, check_delete_delay
from sparklog.log.state.kafka_source import KafkaSource
from sparklog.log.state.slices import FileSlices
from sparklog.log.topic.expiring import warn_of_times
from sparklog.log.topic.root import Root, topic_of
from sparklog.log.topic.topic import Topic

KEEP, ABORT, REFUSE = OPEN_CHOICES = ("keep", "abort", "refuse")
"""Values of the option `open_transactions`, which determines how transactions that are open in Kafka are imported."""
AUTO, NEVER = LINK_CHOICES = ("auto", "never")
"""Values of the option `link`, which determines whether closed segments on the same disk are imported as hard links."""

OnProgress: TypeAlias = Callable[[str, int, int, int], None]
"""Function that is called with the progress since its last call: topic, partition, records, bytes."""


@dataclass(frozen=True, slots=True)
class PartitionReport:
    """The result of importing a partition. In a dry run, the values are estimated from the names and sizes of files.

    * `log_start`, `log_end`: log start offset and log end offset after the import
    * `since`: the first offset that this import adds
    * `records`: number of imported records
    * `copied`: number of copied bytes; in a dry run, the maximum number of bytes to copy
    * `linked`: number of bytes in hard-linked files
    * `skipped`: number of skipped ranges
    * `open`: number of open transactions
    """

    partition: int
    log_start: int
    log_end: int
    since: int
    records: int
    copied: int
    linked: int
    skipped: int
    open: int


@dataclass(frozen=True, slots=True)
class ImportedTopic:
    """The result of importing a topic. `created` is True if the import created the topic.

    `kafka_configs` contains the configs of a created topic in Kafka, or is None if the log directory does not contain
    configs.
    """

    topic: str
    kafka_topic_id: str
    created: bool
    partitions: tuple[PartitionReport, ...]
    kafka_configs: KafkaConfigs | None = None


@dataclass(frozen=True, slots=True)
class ImportReport:
    """The imported topics, sorted by name, and the consumer groups with offsets in these topics, sorted by id."""

    topics: tuple[ImportedTopic, ...]
    groups: tuple[ImportedGroup, ...] = ()

    @property
    def names(self) -> list[str]:
        return [topic.topic for topic in self.topics]


@dataclass(frozen=True, slots=True)
class ImportOptions:
    """Options of an import, as in `sparklog.import_kafka`. `force` is the argument of `Root.create_topic`.

    Values of `open_transactions`:

    * `keep`: open transactions hold back the last stable offset until a later import contains their markers, or until
      they are ended in the root
    * `abort`: open transactions that Kafka's coordinator has decided to commit are committed, and all other open
      transactions are aborted; later imports of the topics will fail
    * `refuse`: raise `Conflict` if a transaction is open
    """

    topics: Sequence[str] | None = None
    configs: Mapping[str, object] | None = None
    force: bool = False
    corrupt_records: str = FAIL
    open_transactions: str = KEEP
    link: str = AUTO
    groups: bool = True
    transactions: bool = True

    def check(self) -> None:
        check_policy(self.corrupt_records)
        choices_by_name = ("open transactions", self.open_transactions, OPEN_CHOICES), ("link", self.link, LINK_CHOICES)
        for name, value, choices in choices_by_name:
            if value not in choices:
                raise BadRequest(f"expected {name} to be one of {', '.join(choices)}, found {value!r}")
        self.topic_configs()

    def topic_configs(self) -> TopicConfigs:
        configs = {NAMES.get(name, name): value for name, value in (self.configs or {}).items()}
        topic_configs = TopicConfigs.of(configs)
        check_delete_delay(dict(topic_configs.explicit), self.force)
        return topic_configs


def import_log_dir(
    root: Root | None,
    path: AnyPath,
    options: ImportOptions = ImportOptions(),
    *,
    dry_run: bool = False,
    on_skipped: OnSkipped = log_skipped,
    on_progress: OnProgress = lambda topic, partition, records, nbytes: None,
    on_planned: Callable[[int], object] | None = None,
) -> ImportReport:
    """Import topics of the log directory at `path`, or the new records of topics that were imported before.

    Args:
        root: the target root. It may be None for a dry run if the root does not exist yet.
        path: the log directory.
        options: the options of the import.
        dry_run: True to only report what the import would do.
        on_skipped: function that is called for each skipped range, including bytes after the log end. By default, a
            warning is logged.
        on_progress: function that is called with the progress (see `OnProgress`).
        on_planned: function that is called with the number of bytes to import before the first topic is imported.
            Additional reads are required to compute this number.

    Raises `NotFound` if the log directory or a topic does not exist. Raises `Conflict` if a topic exists and was not
    imported from this log directory, was written to since its import, or was truncated in Kafka. Raises `BadRequest` if
    a partition is missing, or if a config or name is invalid. In all these cases, the root is not changed.

    Raises `Corrupt` with the file, position and offset if a batch is damaged. If no records of a new topic could be
    imported, the topic is not created. Chunks that were committed before an error are retained, and the next import
    continues after these chunks.
    """
    options.check()
    if root is None and not dry_run:
        raise BadRequest("expected a root to import into, found None: only a dry run works without a root")
    log_dir = LogDir(file_path(path), SYSTEM if root is None else root.env, options.corrupt_records, on_skipped)
    plan = _plan(root, log_dir, options)
    if root is None or dry_run:
        return plan.report()
    if on_planned is not None:
        on_planned(sum(part.copied for topic in plan.report().topics for part in topic.partitions))
    return _import(root, plan, options, on_progress)


@dataclass(frozen=True, slots=True)
class _ImportPlan:
    """The topics to import, the configs of new topics in Kafka, and all groups of the log directory."""

    log_dir: LogDir
    topics: Sequence[TopicPlan]
    configs: Mapping[str, KafkaConfigs]
    groups: Mapping[str, KafkaGroup]

    @property
    def names(self) -> list[str]:
        return [topic.source.name for topic in self.topics]

    def report(self) -> ImportReport:
        env = self.log_dir.env
        topics = tuple(_plan_report(topic, env, self.configs.get(topic.source.name)) for topic in self.topics)
        groups = []
        for group in self.groups.values():
            count = sum(topic in self.names for topic, _ in group.offsets)
            if count:
                groups.append(ImportedGroup(group.id, count, len(group.offsets) - count))
        return ImportReport(topics, tuple(groups))


def _plan(root: Root | None, log_dir: LogDir, options: ImportOptions) -> _ImportPlan:
    sources = topic_sources(log_dir.path, options.topics)
    topics = plan_import(root, sources, log_dir.policy, last=options.open_transactions == ABORT)
    configs = _kafka_configs([topic.source for topic in topics if not topic.exists], log_dir, options)
    groups = kafka_groups(log_dir, log_dir.env.wall_ms()) if options.groups else {}
    return _ImportPlan(log_dir, topics, configs, groups)


def _kafka_configs(sources: Sequence[TopicSource], log_dir: LogDir, options: ImportOptions) -> dict[str, KafkaConfigs]:
    """Return the known Kafka configs of new topics. Validate these configs together with the configs in the options."""
    metadata = read_metadata(log_dir) if sources else None
    if metadata is None:
        return {}
    configs: dict[str, KafkaConfigs] = {}
    for source in sources:
        of_topic = importable_configs(metadata, source.name, source.topic_id, force=options.force)
        if of_topic is not None:
            configs[source.name] = of_topic
            options.topic_configs().over(of_topic.taken)
    return configs


def _import(root: Root, plan: _ImportPlan, options: ImportOptions, on_progress: OnProgress) -> ImportReport:
    log_dir = plan.log_dir
    root.engine.ensure_probed()
    coordinator = kafka_transactions(log_dir) if options.transactions else {}
    topics = tuple(
        _plan_report(topic, root.env)
        if topic.finished
        else _TopicImport(root, topic, options, coordinator, log_dir.on_skipped, on_progress, plan.configs).run()
        for topic in plan.topics
    )
    open_topics = [topic for name in plan.names if (topic := root.topic(name)).log.state(refresh=False).kafka_open]
    if open_topics and coordinator:
        log_dir.path.refresh()
        after = kafka_transactions(log_dir)
        for topic in open_topics:
            commit_decisions(topic, coordinator, after)
    states = {topic.source: root.topic(topic.source.name).log.state(refresh=False) for topic in plan.topics}
    imported = {
        source.name: GroupTopic(state.topic_id, source.topic_id, state.partitions) for source, state in states.items()
    }
    report = ImportReport(topics, import_groups(root, plan.groups, imported))
    if options.open_transactions == ABORT:
        for topic in open_topics:
            topic.end_kafka_transactions()
    return report


@dataclass(slots=True)
class _TopicImport:
    """The import of a topic.

    The topic is created if it does not exist, and its partitions are copied and committed in chunks.
    """

    root: Root
    plan: TopicPlan
    options: ImportOptions
    coordinator: Mapping[int, CoordinatorEntry]
    on_skipped: OnSkipped
    on_progress: OnProgress
    kafka_configs: Mapping[str, KafkaConfigs]
    pending: list[ImportedPartition] = field(default_factory=list)
    files: int = 0
    nbytes: int = 0
    new_keys: list[str] = field(default_factory=list)
    has_attempted_commit: bool = False
    new_files: list[FileSlices] = field(default_factory=list)
    created: int = -1
    reports: dict[int, PartitionReport] = field(default_factory=dict)

    def run(self) -> ImportedTopic:
        source = self.plan.source
        topic = self._topic()
        try:
            for part, before in zip(source.partitions, self.plan.before, strict=True):
                self._partition(topic, part, before)
            if self.options.open_transactions == REFUSE:
                self._reject_open_transactions(topic)
            self._commit(topic)
        except BaseException:
            # Raise the first error rather than an error from the cleanup.
            with suppress(SparklogError):
                self._delete_files(topic)
            raise
        warn_of_times(self.root.id, topic.name, topic.log.read_configs(), self.new_files, self.root.env.wall_ms())
        reports = tuple(self.reports[part.number] for part in source.partitions)
        configs = self.kafka_configs.get(source.name)
        return ImportedTopic(source.name, source.topic_id, not self.plan.exists, reports, configs)

    def _topic(self) -> Topic:
        """Create the topic, or add its new partitions and configs to the existing topic."""
        source, configs = self.plan.source, self.options.topic_configs()
        count = len(source.partitions)
        if not self.plan.exists:
            if source.name in self.kafka_configs:
                configs = configs.over(self.kafka_configs[source.name].taken)
            intent = CreateIntent(self.root.env.new_id(), count, configs, kafka_source=KafkaSource(source.topic_id))
            self.created = self.root.engine.create(source.name, intent).state(refresh=False).version
            return topic_of(self.root, source.name)
        topic = self.root.topic(source.name)
        state = topic.log.state(refresh=False)
        changed = {name: text for name, text in configs.explicit.items() if state.configs.explicit.get(name) != text}
        if changed or count > state.partitions:
            more = count if count > state.partitions else None
            topic.alter(configs=changed, partitions=more, force=self.options.force)
        return topic

    def _partition(self, topic: Topic, part: PartitionSource, before: ImportedPart) -> None:
        name = self.plan.source.name
        skipped: list[Skipped] = []

        def on_skipped(damage: Skipped) -> None:
            skipped.append(damage)
            self.on_skipped(damage)

        target = CopyTarget(
            store=self.root.store,
            topic=name,
            read_version=max(topic.log.state(refresh=False).version, 0),
            index_interval=topic.log.append_target(refresh=False).configs.index_interval_bytes,
            env=self.root.env,
            new_keys=self.new_keys,
            policy=self.options.corrupt_records,
            on_skipped=on_skipped,
            link=self.options.link == AUTO,
            coordinator=self.coordinator,
            progress=lambda records, nbytes: self.on_progress(name, part.number, records, nbytes),
        )
        limits = self.root.store.limits
        for chunk in copy_partition(part, target, before):
            self.pending.append(chunk)
            self.new_files += chunk.files
            self.files += len(chunk.files)
            self.nbytes += sum(file.size for file in chunk.files)
            is_full = self.files >= limits.import_commit_slices or self.nbytes >= limits.import_commit_bytes
            # If `open_transactions` is `refuse`, use a single commit, because only the end of the log shows which
            # transactions are open.
            if is_full and self.options.open_transactions != REFUSE:
                self._commit(topic)
                target.read_version = max(topic.log.state(refresh=False).version, 0)
        self.reports[part.number] = PartitionReport(
            partition=part.number,
            log_start=chunk.log_start,
            log_end=chunk.log_end,
            since=before.end,
            records=target.records,
            copied=target.copied,
            linked=target.linked,
            skipped=len(skipped),
            open=len(chunk.still_open()),
        )

    def _commit(self, topic: Topic) -> None:
        """Commit the pending chunks. Each commit contains at most one chunk per partition."""
        # From now on, a commit may refer to these files, even if an error is raised. If no commit refers to the files,
        # the vacuum deletes them.
        self.has_attempted_commit |= bool(self.pending)
        self.new_keys.clear()
        while self.pending:
            first: dict[int, ImportedPartition] = {}
            for chunk in self.pending:
                first.setdefault(chunk.partition, chunk)
            state = topic.log.state(refresh=False)
            topic.log.commit(ImportIntent(state.topic_id, tuple(first.values()), self.plan.source.topic_id), state)
            self.pending = [chunk for chunk in self.pending if first[chunk.partition] is not chunk]
        self.files = self.nbytes = 0

    def _reject_open_transactions(self, topic: Topic) -> None:
        last = {chunk.partition: chunk for chunk in self.pending}
        open_transactions = [transaction for chunk in last.values() for transaction in chunk.still_open()]
        if open_transactions:
            raise Conflict(
                f"topic {topic.name} has {count(len(open_transactions), 'open transaction')} (first: "
                f"{open_transactions[0]}): end them in Kafka, or import with open_transactions set to keep or abort"
            )

    def _delete_files(self, topic: Topic) -> None:
        """Delete files that no commit can refer to.

        Delete the topic if this import created it and committed no chunk.
        """
        if not self.plan.exists and not self.has_attempted_commit:
            with suppress(Conflict):
                topic.delete(version=self.created)
        for key in self.new_keys:
            self.root.store.delete(key)


def _plan_report(plan: TopicPlan, env: Env, configs: KafkaConfigs | None = None) -> ImportedTopic:
    source = plan.source
    reports = []
    for part, before in zip(source.partitions, plan.before, strict=True):
        size = expected_size(part, before, env)
        reports.append(PartitionReport(part.number, size.log_start, size.log_end, before.end, 0, size.nbytes, 0, 0, 0))
    return ImportedTopic(source.name, source.topic_id, not plan.exists, tuple(reports), configs)
