"""Import topics of a Kafka log dir into a root.

Kept are offsets and log starts, batches byte for byte (closed segments whole, with their indexes, as hard links where
possible), the cleaner's checkpoint, leader epochs (later appends get the next one) and Kafka's topic id. A new topic
gets its configs in Kafka where the log dir has the metadata log, and over them those that the caller gives.

A topic is created first, with the id of Kafka's topic. Then pieces of its partitions are copied, checked and committed,
each from the end of the one before. So a second import completes one that was killed, and copies no committed piece
twice. An import of a log that has grown takes the new part (`sparklog.kafka.importing.plan` has the conditions).
Readers see the beginning of a partition meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TypeAlias

from sparklog.errors import BadRequest, Conflict, SparklogError
from sparklog.kafka.importing.coordinators import (
    GroupTopic,
    ImportedGroup,
    KafkaGroup,
    LogDir,
    import_groups,
    kafka_groups,
    kafka_transactions,
    note_decisions,
)
from sparklog.kafka.importing.partition import CoordinatorEntry, ImportedPart, PartitionSource, Target, copy_partition
from sparklog.kafka.importing.plan import (
    NAMES,
    TakenConfigs,
    TopicPlan,
    TopicSource,
    configs_to_take,
    expected_size,
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
"""Choices for transactions that are open in Kafka."""
AUTO, NEVER = LINK_CHOICES = ("auto", "never")
"""Choices for hard links from closed segments to Kafka's files on the same disk."""

OnProgress: TypeAlias = Callable[[str, int, int, int], None]
"""Called with the progress since the last call: topic, partition, records, bytes."""


@dataclass(frozen=True, slots=True)
class PartitionReport:
    """The import of one partition, or with a dry run the plan of it, by names and sizes of files alone.

    * `log_start`, `log_end`: as they are now; `since`: the first offset that was not there before
    * `records`: imported now; `copied`, `linked`: bytes copied (the most that would be), and shared by hard links
    * `skipped`: places where damage was left out; `open`: transactions that no marker ends
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
    """The import of one topic, which it `created` or went on with.

    `kafka_configs`: what a topic that was created got of its configs in Kafka; None: they are not in the log dir.
    """

    topic: str
    kafka_topic_id: str
    created: bool
    partitions: tuple[PartitionReport, ...]
    kafka_configs: TakenConfigs | None = None


@dataclass(frozen=True, slots=True)
class ImportReport:
    """The imported topics, by name, and the consumer groups with offsets in them, by id."""

    topics: tuple[ImportedTopic, ...]
    groups: tuple[ImportedGroup, ...] = ()

    @property
    def names(self) -> list[str]:
        return [topic.topic for topic in self.topics]


@dataclass(frozen=True, slots=True)
class ImportOptions:
    """Options of an import, as of `sparklog.import_kafka`; `force` as in `Root.create_topic`.

    `open_transactions`: `keep`: they hold back the last stable offset until a later import brings their markers, or
    they are ended here. `abort`: they end as Kafka's coordinator has decided, else by ABORT, and no import can go on
    with these topics. `refuse`: `Conflict`.
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
        checked = TopicConfigs.of(configs)
        check_delete_delay(dict(checked.explicit), self.force)
        return checked


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
    """Import topics of the log dir at `path`, or the new part of topics that were imported before.

    * `dry_run`: change nothing and report what would be done; `root` may be None then: it does not exist yet
    * `on_skipped`: called with what is not imported, bytes after the log's end included (default: log a warning)
    * `on_planned`: called with the number of bytes to import, before the first topic; finding it out reads more
    * `on_progress`: called with what was copied, see `OnProgress`

    `NotFound` if there is no log dir or no such topic; `Conflict` if a topic exists and was not imported from this one,
    was written to since, or was cut in Kafka; `BadRequest` for partitions that are missing in the log dir, a config or
    a name that is not valid: nothing is changed then. `Corrupt` with file, position and offset for damage. A topic of
    which nothing could be imported is not created; what was committed before an error stays, and the next import goes
    on from there.
    """
    options.check()
    if root is None and not dry_run:
        raise BadRequest("expected a root to import into, found none: only a dry run can do without")
    log_dir = LogDir(file_path(path), SYSTEM if root is None else root.env, options.corrupt_records, on_skipped)
    plan = _planned(root, log_dir, options)
    if root is None or dry_run:
        return plan.report()
    if on_planned is not None:
        on_planned(sum(part.copied for topic in plan.report().topics for part in topic.partitions))
    return _import(root, plan, options, on_progress)


@dataclass(frozen=True, slots=True)
class _ImportPlan:
    """The topics to import, the configs that new ones get from Kafka, and all groups of the log dir."""

    log_dir: LogDir
    topics: Sequence[TopicPlan]
    configs: Mapping[str, TakenConfigs]
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


def _planned(root: Root | None, log_dir: LogDir, options: ImportOptions) -> _ImportPlan:
    sources = topic_sources(log_dir.path, options.topics)
    topics = plan_import(root, sources, log_dir.policy, last=options.open_transactions == ABORT)
    configs = _kafka_configs([topic.source for topic in topics if not topic.exists], log_dir, options)
    groups = kafka_groups(log_dir, log_dir.env.wall_ms()) if options.groups else {}
    return _ImportPlan(log_dir, topics, configs, groups)


def _kafka_configs(sources: Sequence[TopicSource], log_dir: LogDir, options: ImportOptions) -> dict[str, TakenConfigs]:
    """Read the configs in Kafka of the topics to create, as far as they are known; check them with those given."""
    metadata = read_metadata(log_dir) if sources else None
    if metadata is None:
        return {}
    configs: dict[str, TakenConfigs] = {}
    for source in sources:
        taken = configs_to_take(metadata, source.name, source.topic_id, force=options.force)
        if taken is not None:
            configs[source.name] = taken
            options.topic_configs().over(taken.taken)
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
        log_dir.path.renew()
        after = kafka_transactions(log_dir)
        for topic in open_topics:
            note_decisions(topic, coordinator, after)
    heads = {topic.source: root.topic(topic.source.name).log.state(refresh=False) for topic in plan.topics}
    imported = {
        source.name: GroupTopic(state.topic_id, source.topic_id, state.partitions) for source, state in heads.items()
    }
    report = ImportReport(topics, import_groups(root, plan.groups, imported))
    if options.open_transactions == ABORT:
        for topic in open_topics:
            topic.end_kafka_transactions()
    return report


@dataclass(slots=True)
class _TopicImport:
    """The import of one topic: create it or go on with it, and commit pieces of its partitions as they are copied."""

    root: Root
    plan: TopicPlan
    options: ImportOptions
    coordinator: Mapping[int, CoordinatorEntry]
    on_skipped: OnSkipped
    on_progress: OnProgress
    kafka_configs: Mapping[str, TakenConfigs]
    pending: list[ImportedPartition] = field(default_factory=list)
    files: int = 0
    nbytes: int = 0
    written: list[str] = field(default_factory=list)
    attempted: bool = False
    new: list[FileSlices] = field(default_factory=list)
    created: int = -1
    reports: dict[int, PartitionReport] = field(default_factory=dict)

    def run(self) -> ImportedTopic:
        source = self.plan.source
        topic = self._topic()
        try:
            for part, before in zip(source.partitions, self.plan.before, strict=True):
                self._partition(topic, part, before)
            if self.options.open_transactions == REFUSE:
                self._refuse_open(topic)
            self._commit(topic)
        except BaseException:
            # The first error is the one to report.
            with suppress(SparklogError):
                self._delete_files(topic)
            raise
        warn_of_times(self.root.id, topic.name, topic.log.read_configs(), self.new, self.root.env.wall_ms())
        reports = tuple(self.reports[part.number] for part in source.partitions)
        configs = self.kafka_configs.get(source.name)
        return ImportedTopic(source.name, source.topic_id, not self.plan.exists, reports, configs)

    def _topic(self) -> Topic:
        """Return the topic, created or with new partitions and configs."""
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
        damages: list[Skipped] = []

        def skipped(damage: Skipped) -> None:
            damages.append(damage)
            self.on_skipped(damage)

        target = Target(
            store=self.root.store,
            topic=name,
            read_version=max(topic.log.state(refresh=False).version, 0),
            index_interval=topic.log.append_target(refresh=False).configs.index_interval_bytes,
            env=self.root.env,
            written=self.written,
            policy=self.options.corrupt_records,
            on_skipped=skipped,
            link=self.options.link == AUTO,
            coordinator=self.coordinator,
            progress=lambda records, nbytes: self.on_progress(name, part.number, records, nbytes),
        )
        limits = self.root.store.limits
        for piece in copy_partition(part, target, before):
            last = piece
            self.pending.append(piece)
            self.new += piece.files
            self.files += len(piece.files)
            self.nbytes += sum(file.size for file in piece.files)
            full = self.files >= limits.import_commit_slices or self.nbytes >= limits.import_commit_bytes
            # With `refuse` all is one commit: only the end shows what is open.
            if full and self.options.open_transactions != REFUSE:
                self._commit(topic)
                target.read_version = max(topic.log.state(refresh=False).version, 0)
        self.reports[part.number] = PartitionReport(
            partition=part.number,
            log_start=last.log_start,
            log_end=last.log_end,
            since=before.end,
            records=target.records,
            copied=target.copied,
            linked=target.linked,
            skipped=len(damages),
            open=len(last.still_open()),
        )

    def _commit(self, topic: Topic) -> None:
        """Commit the pending pieces, one of each partition at a time."""
        # From here on a commit may name these files, whatever fails. Unreferenced ones are left to the vacuum.
        self.attempted |= bool(self.pending)
        self.written.clear()
        while self.pending:
            group: dict[int, ImportedPartition] = {}
            for piece in self.pending:
                group.setdefault(piece.partition, piece)
            state = topic.log.state(refresh=False)
            topic.log.commit(ImportIntent(state.topic_id, tuple(group.values()), self.plan.source.topic_id), state)
            self.pending = [piece for piece in self.pending if group[piece.partition] is not piece]
        self.files = self.nbytes = 0

    def _refuse_open(self, topic: Topic) -> None:
        last = {piece.partition: piece for piece in self.pending}
        opened = [transaction for piece in last.values() for transaction in piece.still_open()]
        if opened:
            raise Conflict(
                f"expected no open transactions in {topic.name}, found {len(opened)}, the first is {opened[0]}: end it"
                " in Kafka, or import with another choice for open transactions"
            )

    def _delete_files(self, topic: Topic) -> None:
        """Delete the files that no commit can name, and the topic if this import created it and committed nothing."""
        if not self.plan.exists and not self.attempted:
            with suppress(Conflict):
                topic.delete(version=self.created)
        for key in self.written:
            self.root.store.delete(key)


def _plan_report(plan: TopicPlan, env: Env, configs: TakenConfigs | None = None) -> ImportedTopic:
    source = plan.source
    reports = []
    for part, before in zip(source.partitions, plan.before, strict=True):
        size = expected_size(part, before, env)
        reports.append(PartitionReport(part.number, size.log_start, size.log_end, before.end, 0, size.nbytes, 0, 0, 0))
    return ImportedTopic(source.name, source.topic_id, not plan.exists, tuple(reports), configs)
