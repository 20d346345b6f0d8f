"""A root and its topics as engines use them: `root.engine` and `topic.log`.

The command line, Spark, transactions, maintenance, import and export commit intents and publish files by `TopicLog`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar, cast

from sparklog.errors import BadRequest, Conflict, NotFound, SparklogError
from sparklog.log.decisions.decision_log import DecisionLogs, read_snapshot
from sparklog.log.journal.clocks import ClockReading, Env
from sparklog.log.journal.combined_writes import CombinedWrites
from sparklog.log.journal.entry_log import EntryKind, EntryLog, StateEntry
from sparklog.log.journal.names import topic_names
from sparklog.log.journal.seen_state import RootAccess
from sparklog.log.state.commit import Commit, Txn
from sparklog.log.state.commit_log import CommitLog, CommitOutcome
from sparklog.log.state.configs import TopicConfigs
from sparklog.log.state.slice_table import Snapshot
from sparklog.log.state.slices import FileSlices
from sparklog.log.state.topic_state import TopicState
from sparklog.log.state.writer_runs import KafkaWriterKey, WriterKey
from sparklog.log.topic.defaults import METADATA_MAX_AGE_MS, DefaultsLog
from sparklog.log.topic.expiring import CREATED_TOPIC
from sparklog.storage.fork_safety import ForkLock
from sparklog.storage.parallel_reads import map_requests, read_each
from sparklog.storage.store import Store

if TYPE_CHECKING:
    from sparklog.log.state.commit_intents import Intent
    from sparklog.log.topic.commit_queue import CommitQueue, PreparedAppend
    from sparklog.log.write.append_target import AppendOutcome, AppendTarget, WriteOptions
    from sparklog.log.write.arrow_data import ArrowData

E = TypeVar("E", bound=StateEntry)
HANDLES_PER_SWEEP = 4_096
_FIRST_APPEND = ForkLock()
_LOG = logging.getLogger("sparklog.log")


class RootEngine:
    """The logs of a root: one handle for each in this process, so that its state is cached."""

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
        self._made = 0

    def ensure_probed(self) -> None:
        """Check, once a day in each process that commits, that the store keeps its promises."""
        from sparklog.log.journal.probe_results import ensure_probed

        ensure_probed(self.store, self.env.wall_ms)

    def by_store_clock(self, wall_ms: int) -> int:
        """Return a time of this machine's clock by the store's. `Unavailable` if this clock is far ahead."""
        self._access.guard.check()
        return self._access.guard.store_ms(wall_ms)

    def log(self, topic: str) -> TopicLog:
        """Return the log of a topic, which may not exist."""
        log = self._logs.get(topic)
        if log is None:
            self._make_room()
            log = self._logs.setdefault(topic, TopicLog(self, topic, self._access))
        return log

    def entries(self, kind: EntryKind[E], id_: str) -> EntryLog[E]:
        """Return the log of an id, which may have no entries."""
        prefix = kind.prefix(id_)
        log = self._entries.get(prefix)
        if log is None:
            self._make_room()
            log = self._entries.setdefault(prefix, EntryLog(self._access, kind, id_))
        return log

    def _make_room(self) -> None:
        """Now and then forget the names under which nothing is: clients of a server may ask for any number of them."""
        self._made += 1
        if self._made % HANDLES_PER_SWEEP:
            return
        for handles in (self._logs, self._entries):
            for name, log in list(handles.items()):
                state = log.known()
                if state is None or state.number < 0:
                    handles.pop(name, None)
                    self._combined.pop(name, None)

    def combined(self, log: EntryLog[E]) -> CombinedWrites[E]:
        """Return what writes entries of a log for all threads of this process."""
        writes = self._combined.get(log.prefix)
        return self._combined.setdefault(log.prefix, CombinedWrites(log)) if writes is None else writes

    def folders(self) -> Iterator[str]:
        """Yield the names of topics, those of deleted ones too."""
        return topic_names(self.store)

    def topics(
        self, failures: list[SparklogError] | None = None, wanted: Callable[[str], bool] | None = None
    ) -> list[str]:
        """List the topics, or those of wanted names: a listing, and a request for each. `failures`: as `read_each`."""
        exists = read_each(self.store, self.exists, sorted(filter(wanted, self.folders())), failures)
        return [name for name in exists if exists[name]]

    def exists(self, topic: str) -> bool:
        return self.log(topic).refresh().topic_state.exists

    def create(self, topic: str, intent: Intent) -> TopicLog:
        """Commit an intent that creates a topic. `Conflict` if it exists or only case tells it from another."""
        self._refuse_same_but_case(topic)
        log = self.log(topic)
        log.refresh()
        created = log.commit(intent).commit
        try:
            # Of two that were created at once, each sees the other here, or one of them above.
            self._refuse_same_but_case(topic)
        except Conflict as clash:
            if created is None or log.take_back(created):
                raise
            _LOG.warning("%s; another process uses '%s' already, so it stays", clash, topic)
        count, location = log.state(refresh=False).partitions, self.store.location
        CREATED_TOPIC.info("created topic %s with %d partition%s in %s", topic, count, "s" * (count > 1), location)
        return log

    def _refuse_same_but_case(self, topic: str) -> None:
        folders = list(self.folders())
        for other in folders:
            if other == topic or other.lower() != topic.lower():
                continue
            # On a file system that ignores case both would be one folder: the name of a deleted topic counts as well.
            if topic not in folders or self.exists(other):
                raise Conflict(
                    f"topic '{topic}' differs only in case from '{other}', which exists or existed; choose another name"
                )


class TopicLog(CommitLog):
    """The log of a topic: what is committed to it, and how."""

    def __init__(self, engine: RootEngine, topic: str, access: RootAccess) -> None:
        super().__init__(access, topic, engine.decisions.resolve)
        self.engine = engine
        self._queue: CommitQueue | None = None

    def state(self, refresh: bool = True) -> TopicState:
        """Return the state without slices. `NotFound` if the topic was deleted."""
        return self.existing(refresh).topic_state

    def read_snapshot(self) -> Snapshot:
        """Return the newest state as readers see it."""
        return read_snapshot(self.engine.decisions, self)

    def commit(
        self, intent: Intent, origin: TopicState | None = None, *, root_checked: ClockReading | None = None
    ) -> CommitOutcome:
        """Commit an intent (see `sparklog.log.state.commit_intents`), made when the topic was at `origin`."""
        self.engine.ensure_probed()
        return super().commit(intent, origin, root_checked=root_checked)

    def take_back(self, created: Commit) -> bool:
        """Delete a topic just created, if it is still there; False if it has another commit: then it stays."""
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
        """What publishes the appends of all threads of this process."""
        if self._queue is None:
            from sparklog.log.topic.commit_queue import CommitQueue

            with _FIRST_APPEND:
                self._queue = self._queue or CommitQueue(self, self.engine.root_id)
        return self._queue

    def append_target(self, refresh: bool = True) -> AppendTarget:
        return self._target(self.refresh_checking_root() if refresh else None)

    def append(self, data: ArrowData, options: WriteOptions | None, writer: WriterKey | None) -> AppendOutcome:
        """Write rows and publish them."""
        return self.queue.publish(self._prepared(data, options, writer, at_once=True))

    def write(
        self, data: ArrowData, options: WriteOptions | None, writer: WriterKey | None
    ) -> tuple[Sequence[FileSlices], AppendTarget]:
        """Write rows as files that no commit names yet."""
        (append,) = self._prepared(data, options, writer, at_once=False)
        return append.files, append.target

    def _prepared(
        self, data: ArrowData, options: WriteOptions | None, writer: WriterKey | None, *, at_once: bool
    ) -> Iterator[PreparedAppend]:
        """Write rows, with `at_once` by the state known here first if that may do, and then by the latest state.

        On a store with round trips, a table is written by the state known here while the latest one is read. If the
        topic takes rows otherwise by now (partitions, configs), they are written again, and the vacuum deletes the
        first files.
        """
        from sparklog.log.topic.commit_queue import PreparedAppend
        from sparklog.log.write.arrow_data import is_table, write_files

        def written(target: AppendTarget, is_optimistic: bool = False) -> PreparedAppend:
            files = write_files(data, target, self.env, options=options, writer=writer)
            return PreparedAppend(files, target, writer, is_optimistic=is_optimistic)

        if writer is not None:
            writer.check()
        if not is_table(data) or (known := self._known_target()) is None:
            yield written(self.append_target())
            return
        unlooked = self.queue.optimistic_target(known) if at_once and data.nbytes <= known.inline_bytes // 2 else None
        if unlooked is not None:
            with suppress(BadRequest, Conflict):
                yield written(unlooked, is_optimistic=True)
        yield self._written_while_looking(written, known)

    def _written_while_looking(
        self, written: Callable[[AppendTarget], PreparedAppend], known: AppendTarget
    ) -> PreparedAppend:
        def early() -> PreparedAppend | SparklogError:
            try:
                return written(replace(known, root_checked=self.env.now()))
            except SparklogError as error:
                return error

        both: tuple[Callable[[], Any], ...] = self.refresh_checking_root, early
        root_checked, append = cast(
            "tuple[ClockReading | None, PreparedAppend | SparklogError]",
            map_requests(self.store, lambda ask: ask(), both),
        )
        latest = self._target(root_checked)
        if self.state(refresh=False).floor > known.read_version or not latest.takes_rows_as(known):
            return written(self.append_target())
        if isinstance(append, SparklogError):
            raise append
        return append._replace(target=replace(known, root_checked=root_checked))

    def _known_target(self) -> AppendTarget | None:
        """Return the target by the state known here, on a store with round trips and if that state is not old."""
        known, seen = self.known(), self.known_since()
        if self.store.parallel_reads == 1 or known is None or seen is None or not known.topic_state.exists:
            return None
        return self._target(None) if self.env.elapsed_ms(seen) < METADATA_MAX_AGE_MS else None

    def _target(self, root_checked: ClockReading | None) -> AppendTarget:
        from sparklog.log.write.append_target import AppendTarget

        state = self.existing(refresh=False)
        topic_state, configs = state.topic_state, self.engine.defaults.of_topic(self.topic, state.topic_state.configs)
        if state.checkpoint is not None and state.checkpoint.table.unsealed > self.store.limits.many_unsealed:
            many = state.checkpoint.table.unsealed
            _LOG.warning("topic %s holds %d unsealed slices: run sparklog compact, which merges them", self.topic, many)
        return AppendTarget(
            store=self.store,
            root_id=self.engine.root_id,
            topic=self.topic,
            topic_id=topic_state.topic_id,
            partitions=topic_state.partitions,
            configs=configs,
            read_version=topic_state.version,
            leader_epoch=topic_state.leader_epoch,
            inline_bytes=topic_state.inline_bytes(configs),
            root_checked=root_checked,
        )

    def read_configs(self) -> TopicConfigs:
        """Return the configs in the state known here, over the root's newest defaults."""
        return self.engine.defaults.of_topic(self.topic, self.state(refresh=False).configs, latest=True)

    def commit_append(
        self,
        files: Sequence[FileSlices],
        target: AppendTarget,
        *,
        writer: WriterKey | None = None,
        txn: Txn | None = None,
        kafka_writers: tuple[KafkaWriterKey, ...] = (),
        inline: bool = True,
        unless_changed: bool = False,
    ) -> AppendOutcome:
        """Publish files that tasks wrote for `target`: all of them, at once, or none.

        Those that are not written go into the commit if they are small together and `inline` allows it, else into an
        append file. `unless_changed`: `Conflict` if the topic has other configs or partitions than `target` by now.

        `Conflict`: the topic was created again, a file is below the upload floor, or the writer's checkpoint is older
        than the log, or one of `kafka_writers` has written meanwhile; `Fenced`: another run of the writer took over;
        `BadRequest`: a null key on a compacted topic; `NotFound`: the topic was deleted. Transactions of Kafka's that
        an import left open are ended first: see `sparklog.log.write.kafka_markers`.
        """
        from sparklog.log.topic.commit_queue import PreparedAppend

        append = PreparedAppend(files, target, writer, txn, kafka_writers, inline, unless_changed)
        return self.queue.publish([append])
