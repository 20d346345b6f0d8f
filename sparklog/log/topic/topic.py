"""A topic: what is done with one, as plain Python. Reading and appending records build on this."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

from sparklog.errors import BadRequest, NotFound
from sparklog.log.decisions.decision_log import DecisionLogs, read_snapshot
from sparklog.log.journal.env import Env
from sparklog.log.read.key_lookup import latest_record
from sparklog.log.read.time_lookup import offsets_for_timestamps
from sparklog.log.read.topic_scan import Position, Scan, SnapshotView, record_at, scan
from sparklog.log.state.commit import Txn
from sparklog.log.state.commit_log import CommitLog, Outcome
from sparklog.log.state.configs import check_delete_delay
from sparklog.log.state.description import TopicDescription, describe
from sparklog.log.state.intents import AlterIntent, AppendIntent, DeleteIntent, Intent, LogStartIntent, Nothing
from sparklog.log.state.kafka_source import COMMIT, KafkaOpen
from sparklog.log.state.registry import WriterKey
from sparklog.log.state.slices import FileSlices, content_of
from sparklog.log.state.snapshot import Snapshot
from sparklog.log.state.topic_state import Head
from sparklog.log.state.view import COLUMNS, READ_COMMITTED, TimestampOffset
from sparklog.log.write.append_writer import AppendOutcome, AppendTarget, appended
from sparklog.log.write.kafka_end import end_kafka_transactions
from sparklog.storage.store import Store

if TYPE_CHECKING:
    import pyarrow as pa

    from sparklog.log.write.append_writer import WriteOptions
    from sparklog.log.write.appending import ArrowData

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

    def topic_handle(self, name: str) -> Topic:
        """Return the handle of a topic, without looking whether it exists."""


class Topic:
    """A topic of a root, by name. Methods see the newest version unless told `refresh=False`."""

    def __init__(self, root: RootContext, name: str, log: CommitLog) -> None:
        self.root = root
        self.name = name
        self.log = log
        self._epochs: dict[tuple[str, str], int] = {}

    def __repr__(self) -> str:
        return f"Topic({self.name!r}, {self.root.location!r})"

    def __reduce__(self) -> tuple[object, ...]:
        return _reopen, (self.root, self.name)

    @property
    def store(self) -> Store:
        return self.root.store

    def head(self, refresh: bool = True) -> Head:
        """The state without slices; costs one request when nothing changed. `NotFound` if the topic was deleted."""
        return self.log.existing(refresh).head

    def snapshot(self, refresh: bool = True) -> Snapshot:
        """The state with all slices. `NotFound` if the topic was deleted."""
        return self.log.snapshot(refresh)

    def read_snapshot(self) -> Snapshot:
        """The newest state as readers see it: also what is decided of transactions and not recorded here yet."""
        return read_snapshot(self.root.decisions, self.log)

    def describe(self) -> TopicDescription:
        """Partitions, configs with their sources, sizes, open transactions."""
        return describe(self.read_snapshot())

    # -- changing the topic

    def commit(self, intent: Intent, origin: Head | None = None) -> Outcome:
        """Commit what an intent says (see `sparklog.log.state.intents`)."""
        self.root.ensure_probed()
        return self.log.commit(intent, origin)

    def alter(
        self,
        *,
        configs: Mapping[str, object | None] | None = None,
        partitions: int | None = None,
        force: bool = False,
        since: Head | None = None,
    ) -> Head:
        """Set configs (None: back to the default) and add partitions; the head after it.

        `Conflict` if somebody changed the same meanwhile (since the head that is given), `BadRequest` for a wrong name
        or value, fewer partitions, a `file.delete.delay.ms` below one hour or `compact` on records without a key, each
        without `force`.
        """
        head = self.head()
        return self.commit(self._alteration(head, configs, partitions, force), since or head).head

    def plan_alter(
        self, *, configs: Mapping[str, object | None] | None = None, partitions: int | None = None, force: bool = False
    ) -> dict[str, str | None]:
        """What `alter` with the same arguments would change now: configs by name, None: back to the default.

        Everything is checked as `alter` checks it, and raises as there; nothing is written.
        """
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

    def delete_records(self, before: Mapping[int, int]) -> Mapping[int, int]:
        """Delete the records below an offset, per partition (-1: all there are); the log starts after it.

        The log starts then: Kafka's low watermarks. `NotFound` if an offset is beyond the log end, `BadRequest` if the
        topic's cleanup.policy has no delete (as Kafka).
        """
        head = self.head()
        intent = self._new_log_starts(head, before)
        after = self.commit(intent, head).head
        # The commit may be found only after a stall, and the topic may be gone by then.
        there = after.log_start if after.topic_id == head.topic_id and after.exists else head.log_start
        return {partition: max(offset, int(there[partition])) for partition, offset in intent.log_starts.items()}

    def plan_delete_records(self, before: Mapping[int, int]) -> Mapping[int, int]:
        """Where the log would start after `delete_records` with the same arguments, which raises as this does."""
        head = self.head()
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

    def delete(self, *, version: int | None = None) -> None:
        """Delete the topic; its files go with the next vacuum. With `version` only if that is its newest: `Conflict`
        if somebody has committed to it since."""
        head = self.head()
        self.commit(DeleteIntent(head.topic_id, version), head)

    # -- records

    def append(
        self, data: ArrowData, *, options: WriteOptions | None = None, writer: WriterKey | None = None
    ) -> AppendOutcome:
        """Append rows as one commit: whatever has `__arrow_c_stream__` or `__arrow_c_array__` (a table, a record batch,
        a scan, a data frame of Polars or pandas, a relation of DuckDB), or an iterable of these.

        Columns `value` and, if wanted, `key` (binary or string), `headers` (list<struct<key: string, value: binary>>),
        `timestamp` (any timestamp type, or int64 ms; null: now), `partition` (null: by the key). With `writer` a batch
        that was published before is skipped. `BadRequest` for rows that the topic refuses: then nothing is published.
        """
        from sparklog.log.write.appending import write_files

        target = self.append_target()
        files = write_files(data, target, self.root.env, options=options, writer=writer)
        return self.commit_append(files, target, writer=writer)

    def scan(
        self,
        *,
        partitions: Sequence[int] | None = None,
        start: Position = "earliest",
        end: Position = "latest",
        isolation: str = READ_COMMITTED,
        columns: Sequence[str] = COLUMNS,
        batch_bytes: int = 4 << 20,
    ) -> Scan:
        """The records of a range: to iterate as record batches, for `to_table()`, or for what takes Arrow streams.

        `start` (inclusive) and `end` (exclusive): `earliest`, `latest`, an offset, or these per partition. `columns` of
        `view.COLUMNS`. `NotFound` for a partition or an offset that is not there.
        """
        return scan(
            self.read_snapshot(),
            partitions=partitions,
            start=start,
            end=end,
            isolation=isolation,
            columns=columns,
            batch_bytes=batch_bytes,
        )

    def offset_for_timestamp(
        self, timestamp_ms: int, partition: int | None = None, isolation: str = READ_COMMITTED
    ) -> dict[int, TimestampOffset | None]:
        """Per partition (or of one), the first record at or after a time (ms): its offset and time, or None."""
        snapshot = self.read_snapshot()
        chosen = range(snapshot.head.partitions) if partition is None else (partition,)
        targets = dict.fromkeys(chosen, timestamp_ms)
        return offsets_for_timestamps(snapshot, targets, isolation, newer=self.read_snapshot)

    def record_at(self, partition: int, offset: int, isolation: str = READ_COMMITTED) -> pa.RecordBatch:
        """The record at exactly this offset: one row with all columns.

        `NotFound` if the offset is out of range or holds no record (compacted away, a marker, aborted).
        """
        return record_at(self.read_snapshot(), partition, offset, isolation)

    def get(
        self,
        key: bytes | str,
        *,
        partition: int | None = None,
        all_partitions: bool = False,
        isolation: str = READ_COMMITTED,
    ) -> pa.RecordBatch | None:
        """The latest record of a key: one row with all columns, its value null if the key was deleted; None without
        any. See `sparklog.log.read.key_lookup`.

        It is looked for where Kafka's default partitioner puts the key, or put it before partitions were added, unless
        `partition` or `all_partitions` is given.
        """
        view = SnapshotView(self.root.location, {self.name: self.read_snapshot()})
        chosen = sorted(view.bounds(self.name)) if all_partitions else None if partition is None else [partition]
        wanted = key.encode() if isinstance(key, str) else key
        return latest_record(view, self.name, wanted, partitions=chosen, isolation=isolation)

    # -- appending

    def append_target(self, refresh: bool = True) -> AppendTarget:
        """What tasks need to write files for this topic."""
        state = self.log.existing(refresh)
        head = state.head
        if state.checkpoint is not None and state.checkpoint.table.unsealed > MANY_UNSEALED:
            _LOG.warning(
                "topic %s holds %d unsealed slices: run `sparklog compact`, which merges them",
                self.name,
                state.checkpoint.table.unsealed,
            )
        return AppendTarget(
            store=self.store,
            root_id=self.root.id,
            topic=self.name,
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
        `sparklog.log.write.kafka_end`.
        """
        if writer is not None:
            writer.check()
            writer = self._known(writer, files)
        if target.root_id != self.root.id or target.topic != self.name:
            raise BadRequest(
                f"files were written for topic '{target.topic}' of root {target.root_id}, not for "
                f"'{self.name}' of {self.root.id}"
            )
        if self.log.current().head.kafka_open:
            for each in self.end_kafka_transactions():
                how = "committed" if each.decided == COMMIT else "aborted"
                _LOG.warning("topic %s is appended to now: %s %s", self.name, how, each)
        intent = AppendIntent(target.topic_id, tuple(files), writer, txn, self.root.env.wall_ms())
        outcome = self.commit(intent)
        self._remember(outcome.head, writer)
        if outcome.nothing is not None:
            if outcome.nothing.skipped and writer is not None and writer.mode == "txn":
                _LOG.warning("%s", outcome.nothing.note)
            return AppendOutcome(outcome.nothing.version, {}, {}, 0, outcome.nothing.skipped, outcome.nothing.note)
        return appended(outcome.commit, intent.count)

    def _known(self, writer: WriterKey, files: Sequence[FileSlices]) -> WriterKey:
        """The key with the content of its batch, and the epoch that its run has here."""
        epoch = self._epochs.get((writer.id, writer.run or "")) if writer.epoch is None else writer.epoch
        return replace(writer, epoch=epoch, content=content_of({self.name: [file.counts for file in files]}))

    def _remember(self, head: Head, writer: WriterKey | None) -> None:
        entry = None if writer is None else head.registry.get(writer.id)
        if writer is not None and writer.run is not None and entry is not None and entry.run == writer.run:
            self._epochs[writer.id, writer.run] = entry.epoch or 0

    def end_kafka_transactions(
        self, *, producers: Collection[int] | None = None, commit: bool = False
    ) -> tuple[KafkaOpen, ...]:
        """End transactions that Kafka left open in imported partitions, of these producer ids (None: all), by ABORT
        markers or, with `commit`, by COMMIT markers; those that were ended. See `sparklog.log.write.kafka_end`.
        """
        self.root.ensure_probed()
        return end_kafka_transactions(self.log, producers=producers, commit=commit)


def _reopen(root: RootContext, name: str) -> Topic:
    return root.topic_handle(name)
