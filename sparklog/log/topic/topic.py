"""A topic of a root: `Topic`, which users hold, and `topic.log`, its log as engines use it.

The command line, Spark, transactions, maintenance, import and export commit intents and publish files by `TopicLog`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

import pyarrow as pa

from sparklog.errors import BadRequest, NotFound, SparklogError
from sparklog.log.decisions.decision_log import DecisionLogs, read_snapshot
from sparklog.log.journal.arguments import (
    CONFIGS,
    KEY,
    NUMBER,
    NUMBERS,
    OFFSETS,
    TIME,
    checked,
    instance,
    whole,
)
from sparklog.log.journal.clocks import Env, Moment, warn_of_seconds
from sparklog.log.journal.journal import RootAccess
from sparklog.log.read.counting import RecordCount, count_of
from sparklog.log.read.key_lookup import latest_record
from sparklog.log.read.table_plan import AsOf
from sparklog.log.read.time_lookup import offsets_for_timestamps
from sparklog.log.read.topic_scan import Position, Scan, SnapshotView, record_at, scan
from sparklog.log.read.topic_table import TopicTable, open_table
from sparklog.log.state.commit import COMMIT, KafkaOpen, Txn
from sparklog.log.state.commit_intents import AlterIntent, AppendIntent, DeleteIntent, Intent, LogStartIntent, Nothing
from sparklog.log.state.commit_log import CommitLog, CommitOutcome, Resolver
from sparklog.log.state.configs import check_delete_delay
from sparklog.log.state.description import TopicDescription, describe
from sparklog.log.state.slice_table import Snapshot
from sparklog.log.state.slices import FileSlices, content_of
from sparklog.log.state.topic_state import Head
from sparklog.log.state.view import COLUMNS, READ_COMMITTED, IsolationLevel, LogView, TimestampOffset
from sparklog.log.state.writer_runs import WriterKey
from sparklog.log.topic.expiring import count_older, expires_before, warn_of_older, warn_of_seconds_in
from sparklog.log.write.append_writer import AppendOutcome, AppendTarget, ArrowData, WriteOptions, appended, write_files
from sparklog.log.write.kafka_markers import end_kafka_transactions
from sparklog.storage.parallel_reads import ask_each
from sparklog.storage.store import Store

MANY_UNSEALED = 300_000
METADATA_MAX_AGE_MS = 300_000
"""Kafka's `metadata.max.age.ms`."""
WRITE_OPTIONS = instance("WriteOptions", WriteOptions).or_none()
WRITER = instance("a WriterKey", WriterKey).or_none()
_LOG = logging.getLogger("sparklog.log")


class RootContext(Protocol):
    """The root of a topic, as far as a topic asks it: its store, clock, decisions and other topics."""

    store: Store
    id: str
    env: Env
    decisions: DecisionLogs

    @property
    def location(self) -> str: ...
    def ensure_probed(self) -> None: ...
    def topic_handle(self, name: str) -> Any: ...
    def log_view(self) -> LogView: ...


class TopicLog(CommitLog):
    def __init__(self, root: RootContext, name: str, access: RootAccess, resolver: Resolver) -> None:
        super().__init__(access, name, resolver)
        self.root = root
        self._epochs: dict[tuple[str, str], int] = {}

    def head(self, refresh: bool = True) -> Head:
        """Return the state without slices. `NotFound` if the topic was deleted."""
        return self.existing(refresh).head

    def read_snapshot(self) -> Snapshot:
        return read_snapshot(self.root.decisions, self)

    def commit(self, intent: Intent, origin: Head | None = None, *, looked: Moment | None = None) -> CommitOutcome:
        """Commit an intent (see `sparklog.log.state.commit_intents`), made when the topic was at `origin`."""
        self.root.ensure_probed()
        return super().commit(intent, origin, looked=looked)

    def append_target(self, refresh: bool = True) -> AppendTarget:
        return self._target(self.look() if refresh else None)

    def write(
        self, data: ArrowData, options: WriteOptions | None, writer: WriterKey | None
    ) -> tuple[list[FileSlices], AppendTarget]:
        """Write rows as files that no commit names yet.

        Where each request costs a round trip, a table is written by the state that this process knows, and the newest
        one is looked for meanwhile. If the topic takes rows otherwise by now (partitions, configs), they are written
        again, and the first files are left to the vacuum.
        """
        env = self.root.env
        known = self._recent_target() if isinstance(data, pa.Table | pa.RecordBatch) else None
        if known is not None:
            early = replace(known, looked=env.now())

            def write() -> list[FileSlices] | SparklogError:
                try:
                    return write_files(data, early, env, options=options, writer=writer)
                except SparklogError as error:
                    return error

            both: tuple[Callable[[], Any], ...] = self.look, write
            looked, files = ask_each(self.store, lambda ask: ask(), both)
            target = self._target(looked)
            floor = self.existing(refresh=False).head.floor
            if floor <= known.read_version and replace(target, read_version=known.read_version) == known:
                if isinstance(files, SparklogError):
                    raise files
                return files, replace(known, looked=target.looked)
        target = self.append_target()
        return write_files(data, target, env, options=options, writer=writer), target

    def _recent_target(self) -> AppendTarget | None:
        """Return the target by the state known here, on a store with round trips and if that state is not old."""
        known, seen = self.known(), self.known_since()
        if self.store.parallel_reads == 1 or known is None or seen is None or not known.head.exists:
            return None
        return self._target(None) if self.root.env.now().elapsed_ms(seen) < METADATA_MAX_AGE_MS else None

    def _target(self, looked: Moment | None) -> AppendTarget:
        state = self.existing(refresh=False)
        head = state.head
        if state.checkpoint is not None and state.checkpoint.table.unsealed > MANY_UNSEALED:
            many = state.checkpoint.table.unsealed
            _LOG.warning("topic %s holds %d unsealed slices: run sparklog compact, which merges them", self.topic, many)
        names = self.store, self.root.id, self.topic, head.topic_id
        return AppendTarget(*names, head.partitions, head.configs, head.version, head.leader_epoch, looked)

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
            # With the content of the batch, and the epoch that its run has here.
            epoch = self._epochs.get((writer.id, writer.run or "")) if writer.epoch is None else writer.epoch
            writer = replace(writer, epoch=epoch, content=content_of({self.topic: [file.counts for file in files]}))
        if target.root_id != self.root.id or target.topic != self.topic:
            raise BadRequest(
                f"files were written for topic '{target.topic}' of root {target.root_id}, not for "
                f"'{self.topic}' of {self.root.id}"
            )
        if self.current().head.kafka_open:
            for each in self.end_kafka_transactions():
                how = "committed" if each.decided == COMMIT else "aborted"
                _LOG.warning("topic %s is appended to now: %s %s", self.topic, how, each)
        intent = AppendIntent(target.topic_id, tuple(files), self.root.env.wall_ms(), writer, txn)
        outcome = self.commit(intent, looked=target.looked)
        if writer is not None and writer.run is not None:
            entry = outcome.head.registry.get(writer.id)
            if entry is not None and entry.run == writer.run:
                self._epochs[writer.id, writer.run] = entry.epoch or 0
        nothing = outcome.nothing
        if nothing is not None:
            if nothing.skipped and writer is not None and writer.mode == "txn":
                _LOG.warning("%s", nothing.note)
            return AppendOutcome(nothing.version, {}, {}, 0, nothing.skipped, nothing.note)
        self.warn_of_older(files, outcome.head, now=target.configs.log_append_time)
        return appended(outcome.commit, intent.count)

    def warn_of_older(self, files: Sequence[FileSlices], head: Head, *, now: bool = False) -> None:
        """Warn of old records in new files, which retention deletes; `now`: all got the commit's time."""
        if now:
            return
        warn_of_seconds_in(self.root.id, self.topic, files)
        before_ms = expires_before(head.configs, self.root.env.wall_ms())
        if before_ms is not None:
            warn_of_older(self.root.id, self.topic, head.configs, count_older(files, before_ms))

    def end_kafka_transactions(
        self, *, producers: Collection[int] | None = None, commit: bool = False
    ) -> tuple[KafkaOpen, ...]:
        self.root.ensure_probed()
        return end_kafka_transactions(self, producers=producers, commit=commit)


class Topic:
    """A topic of a root, by name: `root.topic(name)`. Methods see its newest version.

    Example:
        topic = sparklog.open("/data/log").topic("orders")
        topic.append(pa.table({"key": ["anna", "carl"], "value": ["book", "sofa"]}))
        print(topic.scan(columns=["key", "value"]).to_table().num_rows)
    """

    def __init__(self, root: RootContext, name: str, log: TopicLog) -> None:
        self.root = root
        self.store = root.store
        self.name = name
        self.log = log

    def __repr__(self) -> str:
        return f"Topic({self.name!r}, {self.root.location!r})"

    def __reduce__(self) -> tuple[object, ...]:
        return self.root.topic_handle, (self.name,)

    def snapshot(self, refresh: bool = True) -> Snapshot:
        """Return the state with all slices. `NotFound` if the topic was deleted."""
        return self.log.snapshot(refresh)

    def read_snapshot(self) -> Snapshot:
        """Return the newest state as readers see it."""
        return self.log.read_snapshot()

    def describe(self) -> TopicDescription:
        """Return partitions, configs with their sources, sizes and open transactions."""
        return describe(self.read_snapshot())

    # -- changing the topic

    @checked(configs=CONFIGS.or_none(), partitions=NUMBER.or_none())
    def alter(
        self,
        *,
        configs: Mapping[str, object | None] | None = None,
        partitions: int | None = None,
        force: bool = False,
        since: Head | None = None,
    ) -> Head:
        """Set configs and add partitions.

        Args:
            configs: by name; None: back to the default.
            partitions: the new number; there may be no fewer than now.
            force: allow a `file.delete.delay.ms` below one hour, and `compact` where records have no key.
            since: the state that the change rests on; default: the newest one.

        Returns:
            The state after it.

        Raises:
            Conflict: another process changed the same since then.
            BadRequest: a wrong name or value, fewer partitions, or what needs `force`.

        Example:
            topic.alter(configs={"retention.ms": 86_400_000}, partitions=8)
        """
        head = self.log.head()
        return self.log.commit(self._alteration(head, configs, partitions, force), since or head).head

    @checked(configs=CONFIGS.or_none(), partitions=NUMBER.or_none())
    def plan_alter(
        self, *, configs: Mapping[str, object | None] | None = None, partitions: int | None = None, force: bool = False
    ) -> dict[str, str | None]:
        """Return what `alter` would change: configs by name, None: back to the default. Raises what `alter` raises."""
        snapshot = self.snapshot()
        head = snapshot.head
        draft = self._alteration(head, configs, partitions, force).draft(self.name, head, head, snapshot.slices)
        return {} if isinstance(draft, Nothing) else dict(draft.configs)

    def _alteration(
        self, head: Head, configs: Mapping[str, object | None] | None, partitions: int | None, force: bool
    ) -> AlterIntent:
        changes = dict(configs or {})
        head.configs.changed(changes)
        check_delete_delay(changes, force)
        return AlterIntent(head.topic_id, changes, partitions, drop_keyless=force)

    @checked(before=OFFSETS)
    def delete_records(self, before: Mapping[int, int]) -> Mapping[int, int]:
        """Delete the records below an offset, per partition.

        Args:
            before: partition to the first offset that stays; -1: delete all there are.

        Returns:
            Where the log of each partition starts then: Kafka's low watermark.

        Raises:
            NotFound: an offset is beyond the log end, or there is no such partition.
            BadRequest: the `cleanup.policy` has no `delete`, as in Kafka.

        Example:
            topic.delete_records({0: 1})
        """
        head = self.log.head()
        intent = self._new_log_starts(head, before)
        after = self.log.commit(intent, head).head
        # The commit may be found only after a stall, and the topic may be gone by then.
        starts = after.log_start if after.topic_id == head.topic_id and after.exists else head.log_start
        return {partition: max(offset, int(starts[partition])) for partition, offset in intent.log_starts.items()}

    @checked(before=OFFSETS)
    def plan_delete_records(self, before: Mapping[int, int]) -> Mapping[int, int]:
        """Return where the log would start after `delete_records`. Raises what `delete_records` raises."""
        head = self.log.head()
        intent = self._new_log_starts(head, before)
        intent.draft(self.name, head, head, None)
        return {p: max(offset, int(head.log_start[p])) for p, offset in intent.log_starts.items()}

    def _new_log_starts(self, head: Head, before: Mapping[int, int]) -> LogStartIntent:
        if not head.configs.is_deleting:
            raise BadRequest(
                f"records of topic '{self.name}' cannot be deleted: its cleanup.policy is "
                f"'{','.join(head.configs.cleanup_policy)}'; add delete"
            )
        for partition in before:
            if not 0 <= partition < head.partitions:
                raise NotFound(f"topic '{self.name}' has partitions 0 to {head.partitions - 1}, found {partition}")
        log_starts = {p: int(head.log_end[p]) if offset == -1 else offset for p, offset in before.items()}
        return LogStartIntent(head.topic_id, log_starts)

    @checked(version=NUMBER.or_none())
    def delete(self, *, version: int | None = None) -> None:
        """Delete the topic; `retain` deletes its files later.

        Args:
            version: delete only if this is the newest version.

        Raises:
            Conflict: there is a newer version.
        """
        head = self.log.head()
        self.log.commit(DeleteIntent(head.topic_id, version), head)

    # -- records

    @checked(options=WRITE_OPTIONS, writer=WRITER)
    def append(
        self, data: ArrowData, *, options: WriteOptions | None = None, writer: WriterKey | None = None
    ) -> AppendOutcome:
        """Append rows as one commit: readers see all of them or none.

        Args:
            data: whatever has `__arrow_c_stream__` or `__arrow_c_array__` (a table, a record batch, a scan, a data
                frame of Polars or pandas, a relation of DuckDB), or an iterable of these. Columns: `value` and, if
                wanted, `key` (binary or string), `headers` (list<struct<key: string, value: binary>>), `timestamp` (any
                timestamp type, or int64 ms; null: now), `partition` (null: by the key).
            options: codec and sizes.
            writer: id and number of a batch: a batch that was published before is skipped.

        Returns:
            The version, the base offset and number of records of each partition.

        Raises:
            BadRequest: the topic refuses a row: then nothing is published.
            Fenced: another run of the writer took over.
            NotFound: the topic was deleted.

        Example:
            outcome = topic.append(pa.table({"value": ["lamp", "desk"]}), options=WriteOptions(codec="lz4"))
            print(outcome.version)
        """
        files, target = self.log.write(data, options, writer)
        return self.log.commit_append(files, target, writer=writer)

    @checked(partitions=NUMBERS.or_none(), batch_bytes=whole(1))
    def scan(
        self,
        *,
        partitions: Sequence[int] | None = None,
        start: Position = "earliest",
        end: Position = "latest",
        isolation_level: IsolationLevel = READ_COMMITTED,
        columns: Sequence[str] = COLUMNS,
        batch_bytes: int = 4 << 20,
        threads: int = 1,
        keys: Iterable[bytes | str] | None = None,
    ) -> Scan:
        """Plan a read of a range of records: iterate the scan, take its `to_table()`, or hand it to an Arrow library.

        Args:
            partitions: numbers; None: all, or with `keys` those where Kafka's partitioner puts them.
            start: the first offset: `earliest`, `latest`, an offset, or one of these per partition.
            end: the offset behind the last one, in the same forms.
            isolation_level: `read_committed` leaves out what is aborted or open, `read_uncommitted` does not.
            columns: of key, value, topic, partition, offset, timestamp, timestampType, headers; none: only rows.
            batch_bytes: about the size of one record batch.
            threads: how many decode at once; the order of the records stays the same.
            keys: read only records with one of these keys.

        Raises:
            NotFound: a partition or an offset does not exist.

        Example:
            for batch in topic.scan(partitions=[0], start=1, columns=["offset", "value"]):
                print(batch.num_rows)
        """
        view = SnapshotView(self.root.location, {self.name: self.read_snapshot()})
        return scan(
            view,
            self.name,
            partitions=partitions,
            start=start,
            end=end,
            isolation=isolation_level,
            columns=columns,
            batch_bytes=batch_bytes,
            threads=threads,
            keys=keys,
        )

    @checked()
    def table(self, *, as_of: AsOf = None, columns: Sequence[str] = COLUMNS, threads: int = 1) -> TopicTable:
        """Plan a read of the latest record of each key: arguments and errors are those of `sparklog.table`."""
        warn_of_seconds(as_of=as_of)
        return open_table(self.root.log_view(), self.name, self.root.log_view, as_of, columns, threads)

    @checked()
    def count(self, *, isolation_level: IsolationLevel = READ_COMMITTED) -> RecordCount:
        """Count records of a scan by metadata: `records`, `is_exact` (false: at most), `earliest_ms`, `latest_ms`."""
        snapshot = self.read_snapshot()
        bounds = SnapshotView(self.root.location, {self.name: snapshot}).bounds(self.name)
        return count_of(snapshot, bounds, isolation_level)

    @checked(timestamp_ms=TIME, partition=NUMBER.or_none())
    def offset_for_timestamp(
        self, timestamp_ms: int, partition: int | None = None, isolation_level: IsolationLevel = READ_COMMITTED
    ) -> dict[int, TimestampOffset | None]:
        """Return, per partition or for one, the first record at or after a time (ms): its offset and time, or None."""
        warn_of_seconds(timestamp_ms=timestamp_ms)
        snapshot = self.read_snapshot()
        chosen = range(snapshot.head.partitions) if partition is None else (partition,)
        targets = dict.fromkeys(chosen, timestamp_ms)
        return offsets_for_timestamps(snapshot, targets, isolation_level, newer=self.read_snapshot)

    @checked(partition=NUMBER, offset=NUMBER)
    def record_at(
        self, partition: int, offset: int, isolation_level: IsolationLevel = READ_COMMITTED
    ) -> pa.RecordBatch:
        """Return the record at exactly this offset: one row with all columns.

        Raises:
            NotFound: the offset is out of range, or holds no record (compacted away, a marker, aborted).
        """
        return record_at(self.read_snapshot(), partition, offset, isolation_level)

    @checked(key=KEY, partition=NUMBER.or_none())
    def get(
        self,
        key: bytes | str,
        *,
        partition: int | None = None,
        all_partitions: bool = False,
        isolation_level: IsolationLevel = READ_COMMITTED,
    ) -> pa.RecordBatch | None:
        """Look up the latest record of a key.

        Args:
            key: as it was written.
            partition: look only there; default: where Kafka's partitioner puts the key, and put it before.
            all_partitions: look everywhere, for records that were written to a partition by number.
            isolation_level: as for `scan`.

        Returns:
            One row with all columns, its value null if the key was deleted; None if there is no record.

        Example:
            record = topic.get("anna")
            print(record["value"][0])
        """
        view = SnapshotView(self.root.location, {self.name: self.read_snapshot()})
        chosen = sorted(view.bounds(self.name)) if all_partitions else None if partition is None else [partition]
        wanted = key.encode() if isinstance(key, str) else key
        return latest_record(view, self.name, wanted, partitions=chosen, isolation=isolation_level)

    @checked(producers=NUMBERS.or_none())
    def end_kafka_transactions(
        self, *, producers: Collection[int] | None = None, commit: bool = False
    ) -> tuple[KafkaOpen, ...]:
        """End transactions that Kafka left open in imported partitions.

        Args:
            producers: producer ids; None: all.
            commit: end them by COMMIT markers; default: by ABORT markers.

        Returns:
            The transactions that were ended.
        """
        return self.log.end_kafka_transactions(producers=producers, commit=commit)
