"""A root and its topics as engines use them: `root.engine` and `topic.log`.

The command line, Spark, transactions, maintenance, import and export commit intents and publish files by `TopicLog`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from sparklog.errors import BadRequest, Conflict, NotFound, SparklogError
from sparklog.log.decisions.decision_log import DecisionLogs, read_snapshot
from sparklog.log.journal.clocks import Env, Moment
from sparklog.log.journal.combined_writes import CombinedWrites
from sparklog.log.journal.entry_log import EntryKind, EntryLog, StateEntry
from sparklog.log.journal.names import append_path, topic_names
from sparklog.log.journal.seen_state import RootAccess
from sparklog.log.state.commit import Commit, Txn
from sparklog.log.state.commit_log import CommitLog, CommitOutcome
from sparklog.log.state.configs import TopicConfigs
from sparklog.log.state.kafka_source import COMMIT
from sparklog.log.state.slice_table import Snapshot
from sparklog.log.state.slices import FileSlices, content_of
from sparklog.log.state.topic_state import Head
from sparklog.log.state.writer_runs import KafkaWriterKey, WriterKey
from sparklog.log.topic.defaults import METADATA_MAX_AGE_MS, DefaultsLog
from sparklog.log.topic.expiring import CREATED_TOPIC, count_older, expires_before, warn_of_older, warn_of_seconds_in
from sparklog.storage.parallel_reads import ask_each, read_each
from sparklog.storage.store import Store

if TYPE_CHECKING:
    from sparklog.log.state.commit_intents import Intent
    from sparklog.log.write.append_target import AppendOutcome, AppendTarget, WriteOptions
    from sparklog.log.write.append_writer import ArrowData

E = TypeVar("E", bound=StateEntry)
HANDLES_PER_SWEEP = 4_096
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
        from sparklog.log.journal.probe_verdict import ensure_probed

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
        return self.log(topic).refresh().head.exists

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
        count, location = log.head(refresh=False).partitions, self.store.location
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
        self._epochs: dict[tuple[str, str], int] = {}
        self._alone: tuple[int, Moment] | None = None
        """The version that `append` made last without meeting another writer, and when the root was looked at."""

    def head(self, refresh: bool = True) -> Head:
        """Return the state without slices. `NotFound` if the topic was deleted."""
        return self.existing(refresh).head

    def read_snapshot(self) -> Snapshot:
        """Return the newest state as readers see it."""
        return read_snapshot(self.engine.decisions, self)

    def commit(self, intent: Intent, origin: Head | None = None, *, looked: Moment | None = None) -> CommitOutcome:
        """Commit an intent (see `sparklog.log.state.commit_intents`), made when the topic was at `origin`."""
        self.engine.ensure_probed()
        return super().commit(intent, origin, looked=looked)

    def take_back(self, created: Commit) -> bool:
        """Delete a topic just created, if it is still there; False if it has another commit: then it stays."""
        from sparklog.log.state.commit_intents import DeleteIntent

        try:
            self.commit(DeleteIntent(created.topic_id, created.version))
        except NotFound:
            return True
        except Conflict:
            return self.current().head.topic_id != created.topic_id
        return True

    def append_target(self, refresh: bool = True) -> AppendTarget:
        return self._target(self.look() if refresh else None)

    def append(self, data: ArrowData, options: WriteOptions | None, writer: WriterKey | None) -> AppendOutcome:
        """Write rows and publish them."""
        outcome = self._append_at_once(data, options, writer)
        if outcome is None:
            files, target = self.write(data, options, writer)
            outcome = self._noted(self.commit_append(files, target, writer=writer), target)
        return outcome

    def _append_at_once(
        self, data: ArrowData, options: WriteOptions | None, writer: WriterKey | None
    ) -> AppendOutcome | None:
        """Append a few rows by the state that is known here, without a look at the newest one; None: look first.

        For rows that go into the commit, on a store with round trips, where the last commit is this process's and the
        root was looked at a moment ago. Where another process has written since, the create of the commit is lost, and
        what it was to be is judged by the newest state; unless the topic takes rows otherwise by then.
        """
        from sparklog.log.write.append_writer import is_table, write_files

        if self._alone is None or not is_table(data):
            return None
        recent, (version, looked) = self._recent_target(), self._alone
        if recent is None or data.nbytes > recent.inline_bytes // 2:
            return None
        if version != recent.read_version or not self.env.now().is_soon_after(looked):
            return None
        target = replace(recent, looked=looked)
        try:
            files = write_files(data, target, self.env, options=options, writer=writer)
            return self._noted(self.commit_append(files, target, writer=writer, unless_changed=True), target)
        except (BadRequest, Conflict):
            return None

    def _noted(self, outcome: AppendOutcome, target: AppendTarget) -> AppendOutcome:
        """Return the outcome of an append; note whether another process has written meanwhile."""
        is_alone = target.looked is not None and outcome.version == target.read_version + 1
        self._alone = (outcome.version, target.looked) if is_alone and target.looked is not None else None
        return outcome

    def write(
        self, data: ArrowData, options: WriteOptions | None, writer: WriterKey | None
    ) -> tuple[list[FileSlices], AppendTarget]:
        """Write rows as files that no commit names yet.

        Where each request costs a round trip, a table is written by the state that this process knows, and the newest
        one is looked for meanwhile. If the topic takes rows otherwise by now (partitions, configs), they are written
        again, and the first files are left to the vacuum.
        """
        from sparklog.log.write.append_writer import is_table, write_files

        if writer is not None:
            writer.check()
        env = self.env
        recent = self._recent_target() if is_table(data) else None
        if recent is not None:
            early = replace(recent, looked=env.now())

            def write() -> list[FileSlices] | SparklogError:
                try:
                    return write_files(data, early, env, options=options, writer=writer)
                except SparklogError as error:
                    return error

            both: tuple[Callable[[], Any], ...] = self.look, write
            looked, files = ask_each(self.store, lambda ask: ask(), both)
            target = self._target(looked)
            floor = self.existing(refresh=False).head.floor
            if floor <= recent.read_version and replace(target, read_version=recent.read_version) == recent:
                if isinstance(files, SparklogError):
                    raise files
                return files, replace(recent, looked=target.looked)
        target = self.append_target()
        return write_files(data, target, env, options=options, writer=writer), target

    def _recent_target(self) -> AppendTarget | None:
        """Return the target by the state known here, on a store with round trips and if that state is not old."""
        recent, seen = self.known(), self.known_since()
        if self.store.parallel_reads == 1 or recent is None or seen is None or not recent.head.exists:
            return None
        return self._target(None) if self.env.elapsed_ms(seen) < METADATA_MAX_AGE_MS else None

    def _target(self, looked: Moment | None) -> AppendTarget:
        from sparklog.log.write.append_target import AppendTarget

        state = self.existing(refresh=False)
        head, configs = state.head, self.engine.defaults.of_topic(self.topic, state.head.configs)
        if state.checkpoint is not None and state.checkpoint.table.unsealed > self.store.limits.many_unsealed:
            many = state.checkpoint.table.unsealed
            _LOG.warning("topic %s holds %d unsealed slices: run sparklog compact, which merges them", self.topic, many)
        names = self.store, self.engine.root_id, self.topic, head.topic_id
        newest = head.version, head.leader_epoch, head.inline_bytes(configs)
        return AppendTarget(*names, head.partitions, configs, *newest, looked)

    def read_configs(self) -> TopicConfigs:
        """Return the configs in the state known here, over the root's newest defaults."""
        return self.engine.defaults.of_topic(self.topic, self.head(refresh=False).configs, newest=True)

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
        from sparklog.log.state.append_offsets import AppendIntent
        from sparklog.log.write.append_target import AppendOutcome, appended

        if writer is not None:
            writer.check()
            # With the content of the batch, and the epoch that its run has here.
            epoch = self._epochs.get((writer.id, writer.run or "")) if writer.epoch is None else writer.epoch
            writer = replace(writer, epoch=epoch, content=content_of({self.topic: [file.counts for file in files]}))
        if target.root_id != self.engine.root_id or target.topic != self.topic:
            raise BadRequest(
                f"files were written for topic '{target.topic}' of root {target.root_id}, not for "
                f"'{self.topic}' of {self.engine.root_id}"
            )
        head = self.current().head
        if head.kafka_open:
            from sparklog.log.write.kafka_markers import end_kafka_transactions

            for transaction in end_kafka_transactions(self):
                how = "committed" if transaction.decided == COMMIT else "aborted"
                _LOG.warning("topic %s is appended to now: %s %s", self.topic, how, transaction)
        files = self._placed(files, target.inline_bytes if inline else 0)
        written_for = (target.partitions, target.configs) if unless_changed else None
        now_ms = self.env.wall_ms()
        intent = AppendIntent(target.topic_id, tuple(files), now_ms, writer, txn, kafka_writers, written_for)
        outcome = self.commit(intent, head, looked=target.looked)
        if writer is not None and writer.run is not None:
            entry = outcome.head.registry.get(writer.id)
            if entry is not None and entry.run == writer.run:
                self._epochs[writer.id, writer.run] = entry.epoch or 0
        nothing = outcome.nothing
        if nothing is not None:
            if nothing.skipped and writer is not None and writer.mode == "txn":
                _LOG.warning("%s", nothing.note)
            return AppendOutcome(nothing.version, {}, {}, 0, nothing.skipped, nothing.note)
        if not target.configs.log_append_time:
            self.warn_of_older(files, target.configs, now_ms)
        return appended(outcome.commit, intent.count)

    def _placed(self, files: Sequence[FileSlices], most_bytes: int) -> list[FileSlices]:
        """Return the files with those that are not written as one of at most so many bytes, or one that is written."""
        from sparklog.log.write.append_output import is_unwritten, joined, write_out

        small = [number for number, file in enumerate(files) if is_unwritten(file)]
        if not small:
            return list(files)
        one = joined([files[number] for number in small])
        if one.size > most_bytes:
            path = append_path(self.current().head.version, self.env.new_id())
            one = write_out(self.store, self.topic, path, one)
        first = small[0]
        return [one if number == first else file for number, file in enumerate(files) if number == first or file.path]

    def warn_of_older(self, files: Sequence[FileSlices], configs: TopicConfigs, now_ms: int) -> None:
        """Warn of old records in new files, which retention deletes."""
        warn_of_seconds_in(self.engine.root_id, self.topic, files)
        before_ms = expires_before(configs, now_ms)
        if before_ms is not None:
            warn_of_older(self.engine.root_id, self.topic, configs, count_older(files, before_ms))
