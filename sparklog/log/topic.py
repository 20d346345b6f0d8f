"""A topic: what is done with one, as plain Python. Reading and appending records build on this."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sparklog.errors import BadRequest, NotFound
from sparklog.log.commit import Commit, Txn
from sparklog.log.commit_log import CommitLog, LogState, Outcome
from sparklog.log.configs import CONFIGS, LEAST_DELETE_DELAY_MS, TopicConfigs, canonical
from sparklog.log.conflicts import AlterIntent, AppendIntent, DeleteIntent, Intent, LogStartIntent
from sparklog.log.head import Head
from sparklog.log.registry import WriterKey
from sparklog.log.slice_table import SliceTable
from sparklog.log.slices import FileSlices
from sparklog.log.view import COLUMNS, READ_COMMITTED, TimestampOffset
from sparklog.storage.store import Store

if TYPE_CHECKING:
    import pyarrow as pa

    from sparklog.log.append_writer import WriteOptions
    from sparklog.log.appending import ArrowData
    from sparklog.log.root import Root
    from sparklog.log.topic_scan import Position, Scan

MANY_UNSEALED = 300_000
_LOG = logging.getLogger("sparklog.log")


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A topic at one version: its head and all its slices."""

    topic: str
    store: Store
    head: Head
    slices: SliceTable

    @property
    def version(self) -> int:
        return self.head.version


@dataclass(frozen=True, slots=True)
class AppendTarget:
    """All that a task needs to write files for a topic: picklable, carried from the driver to the tasks."""

    store: Store
    root_id: str
    topic: str
    topic_id: str
    partitions: int
    configs: TopicConfigs
    read_version: int
    leader_epoch: int


@dataclass(frozen=True, slots=True)
class AppendOutcome:
    """Of an append: first and next offsets per partition that got records. `skipped`: a replay (see `note`)."""

    version: int
    base: Mapping[int, int]
    end: Mapping[int, int]
    records: int
    skipped: bool = False
    note: str = ""
    commit_id: str = ""


@dataclass(frozen=True, slots=True)
class PartitionDescription:
    """One partition: log start, log end and last stable offset; slices and stored bytes that some commit names."""

    partition: int
    log_start: int
    log_end: int
    last_stable: int
    slices: int
    bytes: int


@dataclass(frozen=True, slots=True)
class ConfigDescription:
    """One config: its value as text, and whether it was set on the topic or is the default."""

    name: str
    value: str
    source: str
    doc: str


@dataclass(frozen=True, slots=True)
class TopicDescription:
    """What there is to know of a topic."""

    name: str
    topic_id: str
    version: int
    time_ms: int
    leader_epoch: int
    partitions: tuple[PartitionDescription, ...]
    configs: tuple[ConfigDescription, ...]
    slices: int
    bytes: int
    open_transactions: tuple[tuple[str, int], ...]


class Topic:
    """A topic of a root, by name. Methods see the newest version unless told `refresh=False`."""

    def __init__(self, root: Root, name: str, log: CommitLog) -> None:
        self.root = root
        self.name = name
        self.log = log

    def __repr__(self) -> str:
        return f"Topic({self.name!r}, {self.root.location!r})"

    def __reduce__(self) -> tuple[object, ...]:
        return _reopen, (self.root, self.name)

    @property
    def store(self) -> Store:
        return self.root.store

    def _state(self, refresh: bool) -> LogState:
        state = self.log.refresh() if refresh else self.log.current()
        if state.head.deleted:
            raise NotFound(f"topic '{self.name}' does not exist in {self.root.location}; create it")
        return state

    def head(self, refresh: bool = True) -> Head:
        """The state without slices; costs one request when nothing changed. `NotFound` if the topic was deleted."""
        return self._state(refresh).head

    def snapshot(self, refresh: bool = True) -> Snapshot:
        """The state with all slices. `NotFound` if the topic was deleted."""
        state = self.log.with_table(self._state(refresh))
        if state.table is None or state.head.deleted:
            raise NotFound(f"topic '{self.name}' does not exist in {self.root.location}; create it")
        return Snapshot(self.name, self.store, state.head, state.table)

    def describe(self, refresh: bool = True) -> TopicDescription:
        """Partitions, configs with their sources, sizes."""
        snapshot = self.snapshot(refresh)
        head, rows = snapshot.head, snapshot.slices.all()
        stable = head.last_stable()
        partitions = []
        for partition in range(head.partitions):
            span = rows.partition_rows(partition)
            partitions.append(
                PartitionDescription(
                    partition,
                    int(head.log_start[partition]),
                    int(head.log_end[partition]),
                    int(stable[partition]),
                    span.stop - span.start,
                    int(rows.size[span].sum()),
                )
            )
        configs = tuple(
            ConfigDescription(name, head.configs.text(name), head.configs.source(name), CONFIGS[name].doc)
            for name in CONFIGS
        )
        return TopicDescription(
            name=self.name,
            topic_id=head.topic_id,
            version=head.version,
            time_ms=head.time_ms,
            leader_epoch=head.leader_epoch,
            partitions=tuple(partitions),
            configs=configs,
            slices=len(rows),
            bytes=int(rows.size.sum()),
            open_transactions=tuple(dict.fromkeys((item.txn.id, item.txn.n) for item in head.open)),
        )

    # -- changing the topic

    def commit(self, intent: Intent, origin: Head | None = None) -> Outcome:
        """Commit what an intent says (see `sparklog.log.conflicts`)."""
        self.root.ensure_probed()
        return self.log.commit(intent, origin)

    def alter(
        self, *, configs: Mapping[str, object | None] | None = None, partitions: int | None = None, force: bool = False
    ) -> Head:
        """Set configs (None: back to the default) and add partitions; the head after it.

        `Conflict` if somebody changed the same meanwhile, `BadRequest` for a wrong name or value, fewer partitions,
        or a `file.delete.delay.ms` below one hour without `force`.
        """
        head = self.head()
        changes = dict(configs or {})
        head.configs.changed(changes)
        check_delete_delay(changes, force)
        return self.commit(AlterIntent(head.topic_id, changes, partitions), head).head

    def delete_records(self, before: Mapping[int, int]) -> Mapping[int, int]:
        """Delete the records below an offset, per partition (-1: all there are); the log starts after it.

        `NotFound` if an offset is beyond the log end, `BadRequest` if the topic's cleanup.policy is not delete (as
        Kafka).
        """
        head = self.head()
        if not head.configs.is_deleting:
            raise BadRequest(
                f"records of topic '{self.name}' cannot be deleted: its cleanup.policy is "
                f"'{','.join(head.configs.cleanup_policy)}'; add delete"
            )
        for partition in before:
            if not 0 <= partition < head.partitions:
                raise NotFound(f"topic '{self.name}' has partitions 0 to {head.partitions - 1}, found {partition}")
        log_starts = {p: int(head.log_end[p]) if offset == -1 else offset for p, offset in before.items()}
        after = self.commit(LogStartIntent(head.topic_id, log_starts), head).head
        return {partition: int(after.log_start[partition]) for partition in before}

    def delete(self) -> None:
        """Delete the topic; its files go with the next vacuum."""
        head = self.head()
        self.commit(DeleteIntent(head.topic_id), head)

    # -- records

    def append(
        self, data: ArrowData, *, options: WriteOptions | None = None, writer: WriterKey | None = None
    ) -> AppendOutcome:
        """Append rows as one commit: a table, a record batch, or an iterable of these (a reader, a generator).

        Columns `value` and, if wanted, `key` (binary or string), `headers` (list<struct<key: string, value: binary>>),
        `timestamp` (any timestamp type, or int64 ms; null: now), `partition` (null: by the key). With `writer` a batch
        that was published before is skipped. `BadRequest` for rows that the topic refuses: then nothing is published.
        """
        from sparklog.log.appending import append

        return append(self, data, options=options, writer=writer)

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
        """The records of a range, to iterate as record batches or `to_table()`.

        `start` (inclusive) and `end` (exclusive): `earliest`, `latest`, an offset, or these per partition. `columns` of
        `view.COLUMNS`. `NotFound` for a partition or an offset that is not there.
        """
        from sparklog.log.topic_scan import scan

        return scan(
            self,
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
        from sparklog.log.lookup import offsets_for_timestamps

        snapshot = self.snapshot()
        chosen = range(snapshot.head.partitions) if partition is None else (partition,)
        return offsets_for_timestamps(self, snapshot, dict.fromkeys(chosen, timestamp_ms), isolation)

    def record_at(self, partition: int, offset: int, isolation: str = READ_COMMITTED) -> pa.RecordBatch:
        """The record at exactly this offset: one row with all columns.

        `NotFound` if the offset is out of range or holds no record (compacted away, a marker, aborted).
        """
        from sparklog.log.topic_scan import record_at

        return record_at(self, partition, offset, isolation)

    # -- appending

    def append_target(self, refresh: bool = True) -> AppendTarget:
        """What tasks need to write files for this topic."""
        state = self._state(refresh)
        head = state.head
        if state.checkpoint is not None and state.checkpoint.table.unsealed > MANY_UNSEALED:
            _LOG.warning(
                "topic %s holds %d unsealed slices: run jobs/compact.py, which merges them",
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
        `NotFound`: the topic was deleted.
        """
        if writer is not None:
            writer.check()
        if target.root_id != self.root.id or target.topic != self.name:
            raise BadRequest(
                f"files were written for topic '{target.topic}' of root {target.root_id}, not for "
                f"'{self.name}' of {self.root.id}"
            )
        intent = AppendIntent(target.topic_id, tuple(files), writer, txn)
        outcome = self.commit(intent)
        if outcome.nothing is not None:
            if outcome.nothing.skipped and writer is not None and writer.mode == "txn":
                _LOG.warning("%s", outcome.nothing.note)
            return AppendOutcome(outcome.nothing.version, {}, {}, 0, outcome.nothing.skipped, outcome.nothing.note)
        return _appended(outcome.commit, intent.count)


def check_delete_delay(changes: Mapping[str, object | None], force: bool) -> None:
    """`BadRequest` for a `file.delete.delay.ms` below one hour, unless forced."""
    value = changes.get("file.delete.delay.ms")
    if value is not None and not force and int(canonical("file.delete.delay.ms", value)) < LEAST_DELETE_DELAY_MS:
        raise BadRequest(
            f"file.delete.delay.ms below {LEAST_DELETE_DELAY_MS} (one hour) takes files away from "
            "jobs that planned to read "
            f"them, found {value}; raise it, or force it"
        )


def _appended(commit: Commit | None, records: int) -> AppendOutcome:
    if commit is None or not commit.files:
        version = -1 if commit is None else commit.version
        return AppendOutcome(
            version, {}, {}, 0, True, "a replay: only the new run was recorded", commit.commit_id if commit else ""
        )
    base: dict[int, int] = {}
    end: dict[int, int] = {}
    for file in commit.files:
        for partition, first, offsets in zip(file.partition, file.base, file.offsets, strict=True):
            base.setdefault(partition, first)
            end[partition] = first + offsets
    return AppendOutcome(commit.version, base, end, records, commit_id=commit.commit_id)


def _reopen(root: Root, name: str) -> Topic:
    return root.topic_handle(name)
