"""Topics of a Kafka log dir become topics of a root, with all that Kafka's files say of them.

Kept: offsets and log starts, batches byte for byte (closed segments as they are, with their indexes, as links where
that can be), the cleaner's checkpoint, leader epochs (what is appended later has the next one), Kafka's topic id. Not
in the files and so given by the caller: topic configs.

A topic is created first, naming the topic of Kafka's that it is filled from; then pieces of its partitions are copied,
checked and committed, each from where the one before it ended. So an import that was killed is completed by another
one, which copies nothing twice that was committed, and an import of a log that has grown takes what is new
(`sparklog.kafka.importing.plan` says when that may be). What is seen meanwhile of a partition is the beginning of
Kafka's.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeAlias

from sparklog.errors import BadRequest, Conflict, SparklogError
from sparklog.kafka.importing.coordinators import (
    ImportedGroup,
    KafkaGroup,
    import_groups,
    kafka_groups,
    kafka_transactions,
    note_decisions,
)
from sparklog.kafka.importing.partition import CoordinatorEntry, Known, PartitionSource, Target, copy_partition
from sparklog.kafka.importing.plan import TopicPlan, foreseen, plan_import, topic_sources
from sparklog.kafka.in_place.damage import FAIL, OnSkipped, Skipped, check_policy, log_skipped
from sparklog.log.journal.env import SYSTEM, Env
from sparklog.log.state.configs import TopicConfigs, check_delete_delay
from sparklog.log.state.imports import ImportedPartition, ImportIntent
from sparklog.log.state.intents import CreateIntent
from sparklog.log.state.kafka_source import KafkaSource
from sparklog.log.topic.root import Root
from sparklog.log.topic.topic import Topic

INTERNAL_SEGMENT_BYTES = "internal.segment.bytes"
"""Kafka's own override of `segment.bytes`, which it lets nobody set below 1 MiB."""
SLICES_PER_COMMIT = 10_000
BYTES_PER_COMMIT = 1 << 30
"""A commit is made once this much was copied for it (see also `import_partition.PIECE_BYTES`)."""
KEEP, ABORT, REFUSE = OPEN_CHOICES = ("keep", "abort", "refuse")
"""What an import does with transactions that are open in Kafka."""
AUTO, NEVER = LINK_CHOICES = ("auto", "never")
"""Whether closed segments become links to Kafka's files where both lie on one disk."""

OnProgress: TypeAlias = Callable[[str, int, int, int], None]
"""Told what was done since it was told last: topic, partition, records, bytes."""


@dataclass(frozen=True, slots=True)
class PartitionReport:
    """What an import did to one partition (a dry run: would do).

    * `log_start`, `log_end`: as they are now; `since`: the first offset that was not there before
    * `records`: imported now; `copied`, `linked`: bytes copied, and bytes shared with Kafka's files by hard links
    * `skipped`: places where damage was left out; `open`: transactions that no marker ends

    A dry run looks at names and sizes only: `copied` is the most that would be read, `records` and `open` are 0.
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
    """What an import did to one topic: `created` it, or went on with it."""

    topic: str
    kafka_topic_id: str
    created: bool
    partitions: tuple[PartitionReport, ...]


@dataclass(frozen=True, slots=True)
class ImportReport:
    """What an import did: its topics, by name, and the consumer groups that have offsets in them, by id."""

    topics: tuple[ImportedTopic, ...]
    groups: tuple[ImportedGroup, ...] = ()

    @property
    def names(self) -> list[str]:
        """Names of the topics."""
        return [each.topic for each in self.topics]


@dataclass(frozen=True, slots=True)
class _Choices:
    """What the caller has chosen, checked."""

    configs: TopicConfigs
    force: bool
    policy: str
    on_skipped: OnSkipped
    open_transactions: str
    link: bool
    on_progress: OnProgress


def unwatched(topic: str, partition: int, records: int, nbytes: int) -> None:
    """Progress that nobody watches."""


def import_log_dir(
    root: Root | None,
    path: str | os.PathLike[str],
    *,
    topics: Sequence[str] | None = None,
    configs: Mapping[str, object] | None = None,
    force: bool = False,
    corrupt_records: str = FAIL,
    on_skipped: OnSkipped = log_skipped,
    open_transactions: str = KEEP,
    link: str = AUTO,
    groups: bool = True,
    transactions: bool = True,
    dry_run: bool = False,
    on_progress: OnProgress = unwatched,
) -> ImportReport:
    """Import topics of the log dir at `path`, or what is new of those that were imported before.

    * `topics`: names (None: all but Kafka's internal ones); `configs`: set on each; `force` as in `Root.create_topic`
    * `corrupt_records`: what damage does: `fail`, `skip` (what is damaged is left out), or `truncate` (a partition ends
      in front of its first damage, as after Kafka's recovery from recovery point 0)
    * `on_skipped`: told what is not imported, bytes behind the log's end included (default: a warning is logged)
    * `open_transactions`: what becomes of transactions that Kafka has not ended: `keep` (they hold back the last stable
      offset until a later import brings their markers, or they are ended here), `abort` (they end as Kafka's
      coordinator has decided, else by ABORT, and no import can go on with these topics), or `refuse` (`Conflict`)
    * `link`: `auto` (closed segments become hard links where both lie on one disk) or `never`
    * `groups`: take offsets of consumer groups from `__consumer_offsets`; `transactions`: take ids, timeouts and
      decisions of open transactions from `__transaction_state` (see `sparklog.kafka.importing.coordinators`)
    * `dry_run`: change nothing and report what would be done; `root` may be None then: it is not there yet
    * `on_progress`: told what was copied, see `OnProgress`

    `NotFound` if there is no log dir or no such topic; `Conflict` if a topic exists and was not imported from this one,
    was written to since, or was cut in Kafka; `BadRequest` for partitions that are missing in the log dir, a config or
    a name that is not valid: nothing is changed then. `Corrupt` with file, position and offset for damage. A topic of
    which nothing could be imported is not created; what was committed before an error stays, and the next import goes
    on from there.
    """
    check_policy(corrupt_records)
    for value, choices, what in (
        (open_transactions, OPEN_CHOICES, "open transactions"),
        (link, LINK_CHOICES, "link"),
    ):
        if value not in choices:
            raise BadRequest(f"expected {what} to be one of {', '.join(choices)}, found {value!r}")
    checked = _configs(configs, force)
    chosen = _Choices(checked, force, corrupt_records, on_skipped, open_transactions, link == AUTO, on_progress)
    place = os.path.abspath(os.fspath(path))
    if root is None and not dry_run:
        raise BadRequest("expected a root to import into, found none: only a dry run can do without")
    plans = plan_import(root, topic_sources(place, topics), corrupt_records, last=open_transactions == ABORT)
    env = SYSTEM if root is None else root.env
    names = [plan.source.name for plan in plans]
    found = _groups(place, env, chosen) if groups else {}
    if root is None or dry_run:
        return ImportReport(tuple(_foreseen(plan, env) for plan in plans), _foreseen_groups(found, names))
    root.ensure_probed()
    coordinator = _transactions(place, root.env, chosen) if transactions else {}
    done = tuple(
        _foreseen(plan, env) if plan.finished else _TopicImport(root, plan, chosen, coordinator).run() for plan in plans
    )
    held = [topic for name in names if (topic := root.topic(name)).head(refresh=False).kafka_open]
    if held and coordinator:
        after = _transactions(place, root.env, chosen)
        for topic in held:
            note_decisions(topic, coordinator, after)
    report = ImportReport(done, import_groups(root, found, _heads(root, plans)))
    if open_transactions == ABORT:
        for topic in held:
            topic.end_kafka_transactions()
    return report


def _groups(path: str, env: Env, chosen: _Choices) -> dict[str, KafkaGroup]:
    return kafka_groups(path, env=env, now_ms=env.wall_ms(), policy=chosen.policy, on_skipped=chosen.on_skipped)


def _transactions(path: str, env: Env, chosen: _Choices) -> dict[int, CoordinatorEntry]:
    return kafka_transactions(path, env=env, policy=chosen.policy, on_skipped=chosen.on_skipped)


def _heads(root: Root, plans: Sequence[TopicPlan]) -> dict[str, tuple[str, str, int]]:
    """Topic -> its id here, its id in Kafka, its number of partitions."""
    heads = {plan.source: root.topic(plan.source.name).head(refresh=False) for plan in plans}
    return {source.name: (head.topic_id, source.topic_id, head.partitions) for source, head in heads.items()}


def _configs(given: Mapping[str, object] | None, force: bool) -> TopicConfigs:
    configs = dict(given or {})
    if INTERNAL_SEGMENT_BYTES in configs:
        configs["segment.bytes"] = configs.pop(INTERNAL_SEGMENT_BYTES)
    checked = TopicConfigs.of(configs)
    check_delete_delay(dict(checked.explicit), force)
    return checked


class _TopicImport:
    """Imports one topic: creates it or goes on with it, and commits pieces of its partitions as they are copied."""

    def __init__(
        self, root: Root, plan: TopicPlan, chosen: _Choices, coordinator: Mapping[int, CoordinatorEntry]
    ) -> None:
        self._root = root
        self._plan = plan
        self._chosen = chosen
        self._coordinator = coordinator
        self._pending: list[ImportedPartition] = []
        self._waiting = (0, 0)
        """Files and bytes of what is pending."""
        self._written: list[str] = []
        self._attempted = False
        self._created = -1
        self._reports: dict[int, PartitionReport] = {}

    def run(self) -> ImportedTopic:
        source, chosen = self._plan.source, self._chosen
        topic = self._topic()
        try:
            for part, known in zip(source.partitions, self._plan.known, strict=True):
                self._partition(topic, part, known)
            if chosen.open_transactions == REFUSE:
                self._refuse_open(topic)
            self._commit(topic)
        except BaseException:
            # What failed first is what there is to say.
            with suppress(SparklogError):
                self._give_up(topic)
            raise
        reports = tuple(self._reports[part.number] for part in source.partitions)
        return ImportedTopic(source.name, source.topic_id, not self._plan.exists, reports)

    def _topic(self) -> Topic:
        """The topic, created or with what is new of partitions and configs."""
        source, configs = self._plan.source, self._chosen.configs
        count = len(source.partitions)
        if not self._plan.exists:
            intent = CreateIntent(self._root.env.new_id(), count, configs, kafka_source=KafkaSource(source.topic_id))
            created = self._root.begin_topic(source.name, intent)
            self._created = created.head(refresh=False).version
            return created
        topic = self._root.topic(source.name)
        head = topic.head(refresh=False)
        changed = {name: text for name, text in configs.explicit.items() if head.configs.explicit.get(name) != text}
        if changed or count > head.partitions:
            topic.alter(
                configs=changed, partitions=count if count > head.partitions else None, force=self._chosen.force
            )
        return topic

    def _partition(self, topic: Topic, part: PartitionSource, known: Known) -> None:
        """Copy what is new of a partition, and commit pieces on the way."""
        chosen, name = self._chosen, self._plan.source.name
        damages: list[Skipped] = []

        def skipped(damage: Skipped) -> None:
            damages.append(damage)
            chosen.on_skipped(damage)

        target = Target(
            store=self._root.store,
            topic=name,
            read_version=max(topic.head(refresh=False).version, 0),
            index_interval=topic.head(refresh=False).configs.index_interval_bytes,
            env=self._root.env,
            written=self._written,
            policy=chosen.policy,
            on_skipped=skipped,
            link=chosen.link,
            coordinator=self._coordinator,
            progress=lambda records, nbytes: chosen.on_progress(name, part.number, records, nbytes),
        )
        for piece in copy_partition(part, target, known):
            last = piece
            self._pending.append(piece)
            files, nbytes = self._waiting
            self._waiting = (files + len(piece.files), nbytes + sum(file.size for file in piece.files))
            if self._full():
                self._commit(topic)
                target.read_version = max(topic.head(refresh=False).version, 0)
        self._reports[part.number] = PartitionReport(
            partition=part.number,
            log_start=last.log_start,
            log_end=last.log_end,
            since=known.end,
            records=target.records,
            copied=target.copied,
            linked=target.linked,
            skipped=len(damages),
            open=len(last.stands()),
        )

    def _full(self) -> bool:
        """Whether enough waits for a commit. With `refuse` all is one commit: only the end tells what is open."""
        files, nbytes = self._waiting
        return self._chosen.open_transactions != REFUSE and (files >= SLICES_PER_COMMIT or nbytes >= BYTES_PER_COMMIT)

    def _commit(self, topic: Topic) -> None:
        """Commit what waits, one piece of each partition at a time."""
        # From here on nobody can say that no commit names these files: what comes to be of no use is the vacuum's.
        self._attempted |= bool(self._pending)
        self._written.clear()
        while self._pending:
            group: dict[int, ImportedPartition] = {}
            for piece in self._pending:
                group.setdefault(piece.partition, piece)
            head = topic.head(refresh=False)
            topic.commit(ImportIntent(head.topic_id, tuple(group.values()), self._plan.source.topic_id), head)
            self._pending = [piece for piece in self._pending if group[piece.partition] is not piece]
        self._waiting = (0, 0)

    def _refuse_open(self, topic: Topic) -> None:
        last = {piece.partition: piece for piece in self._pending}
        found = [each for piece in last.values() for each in piece.stands()]
        if found:
            raise Conflict(
                f"expected no open transactions in {topic.name}, found {len(found)}, the first is {found[0]}: end it in"
                " Kafka, or import with another choice for open transactions"
            )

    def _give_up(self, topic: Topic) -> None:
        """Delete the files that no commit can name, and the topic if this created it and committed nothing to it."""
        if not self._plan.exists and not self._attempted:
            with suppress(Conflict):
                topic.delete(version=self._created)
        for key in self._written:
            self._root.store.delete(key)


def _foreseen_groups(groups: Mapping[str, KafkaGroup], topics: Collection[str]) -> tuple[ImportedGroup, ...]:
    """What an import would do to groups, by the names of topics alone."""
    found = []
    for group in groups.values():
        inside = sum(topic in topics for topic, _ in group.offsets)
        if inside:
            found.append(ImportedGroup(group.id, inside, len(group.offsets) - inside))
    return tuple(found)


def _foreseen(plan: TopicPlan, env: Env) -> ImportedTopic:
    """What an import would do, by names and sizes of files."""
    source = plan.source
    reports = []
    for part, known in zip(source.partitions, plan.known, strict=True):
        log_start, log_end, nbytes = foreseen(part, known, env)
        reports.append(
            PartitionReport(
                partition=part.number,
                log_start=log_start,
                log_end=max(log_end, known.end),
                since=known.end,
                records=0,
                copied=nbytes,
                linked=0,
                skipped=0,
                open=0,
            )
        )
    return ImportedTopic(source.name, source.topic_id, not plan.exists, tuple(reports))
