"""The root and topic handles that other sparklog packages use: `root.engine` and `topic.log`.

The command line, Spark, transactions, maintenance, import and export use `TopicLog` to commit intents and publish
files. Planners and readers also import this module, so the modules that only writers need are imported by the methods
that use them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from sparklog.errors import Conflict, NotFound, SparklogError
from sparklog.log.decisions.decision_log import DecisionLogs, read_snapshot
from sparklog.log.journal.clocks import Env
from sparklog.log.journal.combined_writes import CombinedWrites
from sparklog.log.journal.entry_log import EntryKind, EntryLog, StateEntry
from sparklog.log.journal.names import topic_names
from sparklog.log.journal.seen_state import RootAccess
from sparklog.log.state.commit import Commit, Txn
from sparklog.log.state.commit_log import CommitLog
from sparklog.log.state.configs import TopicConfigs
from sparklog.log.state.slice_table import Snapshot
from sparklog.log.state.slices import FileSlices
from sparklog.log.state.topic_state import TopicState
from sparklog.log.state.writer_runs import KafkaWriterKey, WriterKey
from sparklog.log.topic.defaults import DefaultsLog
from sparklog.log.topic.expiring import CREATED_TOPIC
from sparklog.storage.fork_safety import ForkLock
from sparklog.storage.parallel_reads import read_each
from sparklog.storage.store import Store

if TYPE_CHECKING:
    from sparklog.log.state.commit_intents import Intent
    from sparklog.log.topic.commit_queue import CommitQueue
    from sparklog.log.write.append_target import AppendOutcome, AppendTarget

E = TypeVar("E", bound=StateEntry)
HANDLES_PER_SWEEP = 4_096
"""The number of new handles after which handles that are no longer needed are evicted."""
_NEW_QUEUE = ForkLock()
"""A lock that is held while the commit queue of a topic is created, so that all threads share one queue."""
_LOG = logging.getLogger("sparklog.log")


class RootEngine:
    """The journals of a root. Each process has one handle per journal, which caches the journal's state."""

    def __init__(self, store: Store, root_id: str, env: Env) -> None:
        self.store = store
        self.root_id = root_id
        self.env = env
        self._access = RootAccess(store, env, root_id)
        self.decisions = DecisionLogs(self._access)
        self.defaults = DefaultsLog(self._access)
        self._logs: dict[str, TopicLog] = {}
        self._entries: dict[str, EntryLog[Any]] = {}
        self._combined: dict[str, CombinedWrites[Any]] = {}
        self._handles_created = 0

    def ensure_probed(self) -> None:
        """Check that the store provides the guarantees that commits need, once per day and process."""
        self._access.ensure_probed()

    def to_store_clock(self, wall_ms: int) -> int:
        """Convert a time of this host's clock to the store's clock.

        Raises `Unavailable` if this host's clock is far ahead.
        """
        self._access.guard.check()
        return self._access.guard.store_ms(wall_ms)

    def log(self, topic: str) -> TopicLog:
        """Return the log of a topic. The topic may not exist."""
        log = self._logs.get(topic)
        if log is None:
            self._evict_missing()
            log = self._logs.setdefault(topic, TopicLog(self, topic, self._access))
        return log

    def entries(self, kind: EntryKind[E], id_: str) -> EntryLog[E]:
        """Return the log of an id. The log may have no entries."""
        prefix = kind.prefix(id_)
        log = self._entries.get(prefix)
        if log is None:
            self._evict_missing()
            log = self._entries.setdefault(prefix, EntryLog(self._access, kind, id_))
        return log

    def _evict_missing(self) -> None:
        """Periodically evict the handles of topics and ids that do not exist, because server clients may request any
        number of names.
        """
        self._handles_created += 1
        if self._handles_created % HANDLES_PER_SWEEP:
            return
        # A thread may still use an evicted handle, for example to create the topic. Writes through two handles of one
        # journal are safe: each write creates the next entry, and only one of them can succeed, as if the writes came
        # from two processes.
        for handles in (self._logs, self._entries):
            for name, log in list(handles.items()):
                state = log.known()
                if state is None or state.number < 0:
                    handles.pop(name, None)
                    self._combined.pop(log.prefix, None)

    def combined(self, log: EntryLog[E]) -> CombinedWrites[E]:
        """Return the writer that combines the entries of all threads of this process for a log."""
        writes = self._combined.get(log.prefix)
        if writes is None:
            writes = self._combined.setdefault(log.prefix, CombinedWrites(log))
        return writes

    def all_topics(self) -> Iterator[str]:
        """Yield the names of all topics, including deleted topics."""
        return topic_names(self.store)

    def topics(
        self, failures: list[SparklogError] | None = None, name_filter: Callable[[str], bool] | None = None
    ) -> list[str]:
        """List the topics whose names `name_filter` accepts. One listing is sent, and one request per name.

        If a topic cannot be read, its error is added to `failures`, or raised if `failures` is None.
        """
        exists = read_each(self.store, self.exists, sorted(filter(name_filter, self.all_topics())), failures)
        return [name for name in exists if exists[name]]

    def exists(self, topic: str) -> bool:
        return self.log(topic).refresh().topic_state.exists

    def create(self, topic: str, intent: Intent) -> TopicLog:
        """Commit an intent that creates a topic.

        Raises `Conflict` if the name differs from another topic's name only in case.
        """
        self._check_differs_in_more_than_case(topic)
        log = self.log(topic)
        log.refresh()
        created = log.commit(intent).commit
        try:
            # If two such topics are created concurrently, at least one of the creators finds the other topic, above or
            # here.
            self._check_differs_in_more_than_case(topic)
        except Conflict as clash:
            if created is None or log.withdraw(created):
                raise
            _LOG.warning("%s; topic '%s' is kept, because another process already uses it", clash, topic)
        count = log.state(refresh=False).partitions
        partitions = "1 partition" if count == 1 else f"{count} partitions"
        CREATED_TOPIC.info("created topic %s with %s in %s", topic, partitions, self.store.location)
        return log

    def _check_differs_in_more_than_case(self, topic: str) -> None:
        folders = list(self.all_topics())
        for other in folders:
            if other == topic or other.lower() != topic.lower():
                continue
            # On a file system that ignores case, both topics would be the same directory, so deleted topics also
            # conflict.
            if topic not in folders or self.exists(other):
                raise Conflict(
                    f"topic '{topic}' differs only in case from '{other}', which exists or existed; choose another name"
                )


class TopicLog(CommitLog):
    """The log of a topic, which commits intents and publishes appends."""

    def __init__(self, engine: RootEngine, topic: str, access: RootAccess) -> None:
        super().__init__(access, topic, engine.decisions.resolve)
        self.engine = engine
        self._queue: CommitQueue | None = None

    def state(self, refresh: bool = True) -> TopicState:
        """Return the state without slices. Raises `NotFound` if the topic was deleted."""
        return self.existing(refresh).topic_state

    def read_snapshot(self) -> Snapshot:
        """Return the latest state as readers see it."""
        return read_snapshot(self.engine.decisions, self)

    def withdraw(self, created: Commit) -> bool:
        """Delete a topic that was just created. Return False if the topic has another commit and was not deleted.

        If another process has deleted the topic, or has also created it again, return True.
        """
        from sparklog.log.state.commit_intents import DeleteIntent

        try:
            self.commit(DeleteIntent(created.topic_id, created.version))
        except NotFound:
            return True
        except Conflict:
            return self.current().topic_state.topic_id != created.topic_id
        return True

    @property
    def queue(self) -> CommitQueue:
        """The queue that publishes the appends of all threads of this process."""
        if self._queue is None:
            from sparklog.log.topic.commit_queue import CommitQueue

            with _NEW_QUEUE:
                self._queue = self._queue or CommitQueue(self, self.engine.root_id)
        return self._queue

    def append_target(self, refresh: bool = True) -> AppendTarget:
        """Return the target of the latest state, or of the cached state if `refresh` is false."""
        from sparklog.log.write.append_target import AppendTarget

        root_checked_at = self.refresh_checking_root() if refresh else None
        state = self.state(refresh=False)
        configs = self.engine.defaults.of_topic(self.topic, state.configs)
        return AppendTarget(
            store=self.store,
            root_id=self.engine.root_id,
            topic=self.topic,
            topic_id=state.topic_id,
            partitions=state.partitions,
            configs=configs,
            read_version=state.version,
            leader_epoch=state.leader_epoch,
            inline_bytes=state.inline_bytes(configs),
            root_checked_at=root_checked_at,
        )

    def read_configs(self) -> TopicConfigs:
        """Return the configs in the cached state, combined with the latest root defaults."""
        return self.engine.defaults.of_topic(self.topic, self.state(refresh=False).configs, latest=True)

    def commit_append(
        self,
        files: Sequence[FileSlices],
        target: AppendTarget,
        *,
        writer: WriterKey | None = None,
        txn: Txn | None = None,
        kafka_writers: tuple[KafkaWriterKey, ...] = (),
        may_inline: bool = True,
        is_optimistic: bool = False,
    ) -> AppendOutcome:
        """Publish files that tasks wrote for `target`, atomically. `PreparedAppend` describes the parameters.

        Raises:
            Conflict: the topic was created again, a file is older than the retention floor, the writer's checkpoint is
                older than the log, or one of `kafka_writers` has written in the meantime. If `is_optimistic` is true,
                also if the topic's configs or partitions differ from those of `target`.
            Fenced: another run of the writer took over.
            BadRequest: a record without a key was appended to a compacted topic.
            NotFound: the topic was deleted.
            Unavailable: the store failed. If `is_unknown` is true, the files may have been published.
        """
        from sparklog.log.topic.prepared_appends import PreparedAppend

        return self.queue.publish(
            PreparedAppend(
                files,
                target,
                writer=writer,
                txn=txn,
                kafka_writers=kafka_writers,
                may_inline=may_inline,
                is_optimistic=is_optimistic,
            )
        )
