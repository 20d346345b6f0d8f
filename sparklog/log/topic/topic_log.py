"""The log of a topic as engines use it: its state, commits of intents, and the publishing of appended files.

`Topic` is what users hold; `topic.log` is for the command line, Spark, transactions, maintenance, import and export.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any, Protocol

from sparklog.errors import BadRequest
from sparklog.log.decisions.decision_log import DecisionLogs, read_snapshot
from sparklog.log.journal.env import Env
from sparklog.log.journal.journal import RootAccess
from sparklog.log.state.commit import COMMIT, KafkaOpen, Txn
from sparklog.log.state.commit_intents import AppendIntent, Intent
from sparklog.log.state.commit_log import CommitLog, Outcome, Resolver
from sparklog.log.state.registry import WriterKey
from sparklog.log.state.slice_table import Snapshot
from sparklog.log.state.slices import FileSlices, content_of
from sparklog.log.state.topic_state import Head
from sparklog.log.write.append_writer import AppendOutcome, AppendTarget, appended
from sparklog.log.write.kafka_markers import end_kafka_transactions
from sparklog.storage.store import Store

MANY_UNSEALED = 300_000
_LOG = logging.getLogger("sparklog.log")


class RootContext(Protocol):
    """The root of a topic, as far as a topic asks it: its store, clock, decisions and other topics."""

    store: Store
    id: str
    env: Env
    decisions: DecisionLogs

    @property
    def location(self) -> str:
        """The path or URL of the root."""

    def ensure_probed(self) -> None:
        """Check once in each process that commits that the store keeps its promises."""

    def topic_handle(self, name: str) -> Any:
        """Return the handle of a topic, without looking whether it exists."""


class TopicLog(CommitLog):
    """The commit log of a topic of a root."""

    def __init__(self, root: RootContext, name: str, access: RootAccess, resolver: Resolver) -> None:
        super().__init__(access, name, resolver)
        self.root = root
        self._epochs: dict[tuple[str, str], int] = {}

    def head(self, refresh: bool = True) -> Head:
        """Return the state without slices; one request when nothing changed. `NotFound` if the topic was deleted."""
        return self.existing(refresh).head

    def read_snapshot(self) -> Snapshot:
        """Return the newest state as readers see it: with decisions of transactions that are not recorded here yet."""
        return read_snapshot(self.root.decisions, self)

    def commit(self, intent: Intent, origin: Head | None = None) -> Outcome:
        """Commit an intent (see `sparklog.log.state.commit_intents`), made when the topic was at `origin`."""
        self.root.ensure_probed()
        return super().commit(intent, origin)

    def append_target(self, refresh: bool = True) -> AppendTarget:
        """Return what tasks need to write files for this topic."""
        state = self.existing(refresh)
        head = state.head
        if state.checkpoint is not None and state.checkpoint.table.unsealed > MANY_UNSEALED:
            _LOG.warning(
                "topic %s holds %d unsealed slices: run sparklog compact, which merges them",
                self.topic,
                state.checkpoint.table.unsealed,
            )
        return AppendTarget(
            store=self.store,
            root_id=self.root.id,
            topic=self.topic,
            topic_id=head.topic_id,
            partitions=head.partitions,
            configs=head.configs,
            read_version=head.version,
            leader_epoch=head.leader_epoch,
        )

    def commit_append(
        self,
        files: Sequence[FileSlices],
        target: AppendTarget,
        *,
        writer: WriterKey | None = None,
        txn: Txn | None = None,
    ) -> AppendOutcome:
        """Publish files that tasks wrote for `target`: all of them, at once, or none.

        `Conflict`: the topic was created again, a file is below the upload floor, or the writer's checkpoint is older
        than the log; `Fenced`: another run of the writer took over; `BadRequest`: a null key on a compacted topic;
        `NotFound`: the topic was deleted. Transactions of Kafka's that an import left open are ended first: see
        `sparklog.log.write.kafka_markers`.
        """
        if writer is not None:
            writer.check()
            writer = self._known_writer(writer, files)
        if target.root_id != self.root.id or target.topic != self.topic:
            raise BadRequest(
                f"files were written for topic '{target.topic}' of root {target.root_id}, not for "
                f"'{self.topic}' of {self.root.id}"
            )
        if self.current().head.kafka_open:
            for each in self.end_kafka_transactions():
                how = "committed" if each.decided == COMMIT else "aborted"
                _LOG.warning("topic %s is appended to now: %s %s", self.topic, how, each)
        intent = AppendIntent(target.topic_id, tuple(files), writer, txn, self.root.env.wall_ms())
        outcome = self.commit(intent)
        self._remember(outcome.head, writer)
        if outcome.nothing is not None:
            if outcome.nothing.skipped and writer is not None and writer.mode == "txn":
                _LOG.warning("%s", outcome.nothing.note)
            return AppendOutcome(outcome.nothing.version, {}, {}, 0, outcome.nothing.skipped, outcome.nothing.note)
        return appended(outcome.commit, intent.count)

    def _known_writer(self, writer: WriterKey, files: Sequence[FileSlices]) -> WriterKey:
        """Add the content of the batch to the key, and the epoch that its run has here."""
        epoch = self._epochs.get((writer.id, writer.run or "")) if writer.epoch is None else writer.epoch
        return replace(writer, epoch=epoch, content=content_of({self.topic: [file.counts for file in files]}))

    def _remember(self, head: Head, writer: WriterKey | None) -> None:
        entry = None if writer is None else head.registry.get(writer.id)
        if writer is not None and writer.run is not None and entry is not None and entry.run == writer.run:
            self._epochs[writer.id, writer.run] = entry.epoch or 0

    def end_kafka_transactions(
        self, *, producers: Collection[int] | None = None, commit: bool = False
    ) -> tuple[KafkaOpen, ...]:
        """End transactions that Kafka left open, of these producer ids (None: all): see `Topic`."""
        self.root.ensure_probed()
        return end_kafka_transactions(self, producers=producers, commit=commit)
