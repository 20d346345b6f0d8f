"""Copies a topic to a table, exactly once.

A copy repeats these steps:

1. Load the table with its watermark. If the table does not exist, decode the records of the first interval, and create
   the table if no record is rejected. The next interval of offsets begins at the watermark and ends at the last stable
   offset of each partition, or earlier if it contains too many records.
2. Read the committed records of the interval and convert them to rows. In append mode, write the rows to files. In
   upsert mode, retain the latest record of each key. Spark tasks or this process do this for slices of the interval
   (see `sparklog.tables.slices`).
3. Commit the rows together with the watermark at the end of the interval.

`sparklog.tables.commits` describes how a commit succeeds exactly once if other programs write to the table, if several
copies run at the same time, and if responses are lost.

**Crashes.** A file that no commit contains is never read. The watermark is in the table, so the next run continues from
the last commit on any host.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

import pyarrow as pa

from sparklog.errors import BadRequest, Conflict, NotFound, SparklogError, advice
from sparklog.format.values import SCHEMA_FORMATS
from sparklog.log.read.read_plan import BATCH_BYTES, TaskParts
from sparklog.log.read.topic_scan import Position, scan_ranges
from sparklog.log.state.view import READ_COMMITTED, LogView, OffsetRange
from sparklog.log.topic.root import RootView
from sparklog.maintenance.table_runs import CopiedRecords, TableRunRecorder
from sparklog.maintenance.work_items import InProcess
from sparklog.storage.retries import SETTLE_MS, Backoff
from sparklog.tables.commits import commit_interval, load_again, load_when_available
from sparklog.tables.ddl import type_name
from sparklog.tables.latest import LatestRows, TooManyChanges
from sparklog.tables.option_names import option_name, option_value
from sparklog.tables.quarantine import Quarantine
from sparklog.tables.rows import NewColumns, RowOptions, missing_columns, row_decoder
from sparklog.tables.slices import (
    BAD_RECORD_BYTES,
    MIN_SLICE_RECORDS,
    BadRecord,
    BadRecords,
    MissingRecords,
    SliceCheck,
    SliceRead,
    SliceRows,
    SliceRunner,
    SliceWork,
    divide,
)
from sparklog.tables.target import (
    ChangeSet,
    PartitionBy,
    Partitioning,
    TableLayout,
    TableState,
    TargetTable,
    depends_on_keys,
)
from sparklog.tables.watermark import Mode, NewTopic, TopicSnapshot, Watermark, check_watermark

UPSERT_BYTES = 96 << 20
"""Maximum size in memory of the changes that are merged together."""
IN_PROCESS = InProcess()
_LOG = logging.getLogger("sparklog.tables")


@dataclass(frozen=True)
class TableCopyOptions:
    """Options of a copy.

    Attributes:
        rows: The conversion of records to rows.
        bad_records: The action for a record that does not match the schema.
        grow_schema: True to add missing columns to the table.
        starting_offsets: The first offsets to copy. None starts at the log start, and is an error if the table was not
            created by a copy. It has no effect if the table has a watermark.
        partition_by: The partitioning of a new table. "default" is the day of `_timestamp` in append mode, and hash
            buckets of the first key column in upsert mode.
        max_offsets: The approximate maximum number of records per commit.
        fail_on_data_loss: False to continue if records were deleted from the topic before they were copied.
        new_topic: "continue" to add the records of a topic that was deleted and created again, or "replace" to delete
            all rows of the table first.
    """

    rows: RowOptions = field(default_factory=RowOptions)
    bad_records: BadRecords = "fail"
    grow_schema: bool = False
    starting_offsets: Position | None = None
    partition_by: Partitioning = "default"
    max_offsets: int = 1_000_000
    fail_on_data_loss: bool = True
    new_topic: NewTopic = "fail"

    @property
    def mode(self) -> Mode:
        return "upsert" if self.rows.upsert else "append"

    def fingerprint(self, columns: pa.Schema) -> str:
        """Return a short hash of the options and the columns, which determine which records are bad.

        The columns change if a subject of a schema registry gets a new version.
        """
        return hashlib.sha256(f"{self.rows!r} {columns}".encode()).hexdigest()[:16]


@dataclass
class CopyReport:
    """The results of a run.

    Attributes:
        table: The name of the table.
        records: The number of records that were read.
        rows: The number of rows that were added, or replaced in upsert mode.
        deleted: The number of rows that were deleted in upsert mode.
        bad_records: The number of bad records that were skipped or quarantined.
        commits: The number of commits.
        files: The number of data files in these commits.
        file_bytes: The size of these files.
        changed_columns: The names of the columns that were added or widened.
        next_offsets: The first offset of each partition that the table does not contain.
    """

    table: str
    records: int = 0
    rows: int = 0
    deleted: int = 0
    bad_records: int = 0
    commits: int = 0
    files: int = 0
    file_bytes: int = 0
    changed_columns: list[str] = field(default_factory=list)
    next_offsets: Mapping[int, int] = field(default_factory=dict)

    def add(self, other: CopyReport) -> None:
        """Add the counts of an interval."""
        for name in ("records", "rows", "deleted", "bad_records", "files", "file_bytes"):
            setattr(self, name, getattr(self, name) + getattr(other, name))


@dataclass(frozen=True)
class OffsetInterval:
    """The offsets of one commit, and the watermarks before and after it."""

    ranges: Sequence[OffsetRange]
    before: Watermark
    after: Watermark


class TableCopy:
    """Copies the records of a topic to a table.

    Args:
        view: The view of the root or Kafka log directory.
        topic: The name of the topic.
        target: The table.
        options: The options.
        quarantine: The table of bad records. Required if bad records are quarantined.
        warn: A function that is called with each warning.
        runner: Reads and writes the slices of an interval, in this process or in Spark tasks.
    """

    batch_bytes = BATCH_BYTES
    min_slice_records = MIN_SLICE_RECORDS

    def __init__(
        self,
        view: LogView,
        topic: str,
        target: TargetTable,
        options: TableCopyOptions,
        quarantine: TargetTable | None = None,
        warn: Callable[[str], None] = _LOG.warning,
        runner: SliceRunner = IN_PROCESS,
    ) -> None:
        if options.bad_records == "quarantine" and quarantine is None:
            raise BadRequest("bad records can only be quarantined if there is a table for them")
        self._view = view
        self._env = view.env
        self._topic = topic
        self._target = target
        self._options = options
        self._quarantine = quarantine if options.bad_records == "quarantine" else None
        self._warn = warn
        self._runner = runner
        self._decoder = row_decoder(options.rows, topic)
        self._max_offsets = options.max_offsets
        self._is_loaded = False
        self.report = CopyReport(target.name)

    def recorder(self, job: str) -> TableRunRecorder:
        """Return a context manager that records a run of this copy in the root.

        Args:
            job: The name of the command.
        """

        def copied() -> CopiedRecords:
            return CopiedRecords(self.report.records, self.report.bad_records, self.report.commits)

        root = self._view.root if isinstance(self._view, RootView) else None
        return TableRunRecorder(root, self._topic, job, self._target.name, copied)

    def copy_existing(self) -> CopyReport:
        """Copy the records that exist now, and return the report."""
        ends = {partition: bounds.last_stable for partition, bounds in self._refresh().bounds.items()}
        while self.copy_interval(ends):
            pass
        return self.report

    def copy_interval(self, ends: Mapping[int, int] | None = None) -> bool:
        """Copy at most one interval. Return False if no records remain.

        Args:
            ends: Offsets at which the copy ends. Partitions that are not included are not copied. If None, all
                partitions are copied to their last stable offset.
        """
        state = self._load()
        if state is None:
            source = self._refresh()
            try:
                self._check_first_interval(source, ends)
            except MissingRecords as error:
                self._check_changed(source, error)
                return True
            state = self._create()
        if state.watermark is None and self._options.starting_offsets is None:
            raise BadRequest(
                f"table {self._target.name} exists, but was not created by copying a topic: use another table, or set "
                f"{option_name('starting_offsets')} to add the records from these offsets on"
            )
        state = self._grown(state, self._decoder.schema)
        source = self._refresh(state.watermark)
        interval = self._next_interval(state, source, ends)
        if interval is None:
            return False
        try:
            if self._options.new_topic == "replace" and _is_new_topic(state.watermark, interval.after):
                self._clear(state, interval)
            elif self._options.rows.upsert:
                self._upsert(state, interval)
            else:
                self._append(state, interval)
        except MissingRecords as error:
            self._check_changed(source, error)
        except NewColumns as error:
            self._grown(state, error.schema)
        except TooManyChanges as error:
            records = sum(stored.records for stored in self._view.stored(interval.ranges))
            fitting = min(records, self._max_offsets, error.records * self._runner.parallelism)
            self._max_offsets = max(1, fitting * 3 // 4)
        return True

    # -- the topic

    def _refresh(self, watermark: Watermark | None = None) -> TopicSnapshot:
        """Read the latest state of the topic. It is read after the watermark, so that it contains all copied records.

        Network file systems cache names, so the topic is read again until it contains all copied records, or until
        caches have expired.
        """
        self._view.refresh([self._topic])
        backoff = Backoff(self._env, SETTLE_MS if self._hides_names else 0)
        while watermark is not None and self._is_behind(watermark) and backoff.wait():
            self._view.refresh([self._topic])
        return self._snapshot()

    def _is_behind(self, watermark: Watermark) -> bool:
        bounds = self._view.bounds(self._topic)
        return self._view.topic_id(self._topic) != watermark.topic_id or any(
            partition not in bounds or bounds[partition].log_end < offset
            for partition, offset in watermark.next_offsets.items()
        )

    @property
    def _hides_names(self) -> bool:
        return isinstance(self._view, RootView) and self._view.root.store.hides_names

    def _check_changed(self, source: TopicSnapshot, error: MissingRecords) -> None:
        """Raise the error of a read, unless the topic has changed since `source`.

        The log start may have passed the start of the interval. In this case, the checks of the next interval report
        it.
        """
        if self._refresh().bounds == source.bounds:
            raise error.cause from None

    def _snapshot(self) -> TopicSnapshot:
        view, topic = self._view, self._topic
        root_id = view.root.engine.root_id if isinstance(view, RootView) else ""
        return TopicSnapshot(root_id, topic, view.topic_id(topic), view.bounds(topic))

    def _next_interval(
        self, state: TableState, source: TopicSnapshot, ends: Mapping[int, int] | None
    ) -> OffsetInterval | None:
        """Return the next interval, or None if no records remain.

        If the watermark of the table has another topic id, the interval is empty: see `TargetTable.append`.
        """
        watermark = state.watermark or self._starting_watermark(source, self._options.mode)
        start = check_watermark(
            self._target.name,
            watermark,
            source,
            self._options.mode,
            new_topic=self._options.new_topic,
            fail_on_data_loss=self._options.fail_on_data_loss,
        )
        self._warn_of_gaps(watermark, start)
        self.report.next_offsets = start.next_offsets
        commit_id = self._env.new_id()
        if state.watermark is None or state.watermark.source != start.source:
            return OffsetInterval((), start, start.advanced({}, commit_id))
        ranges = self._ranges(start, source, ends)
        if not ranges:
            return None
        return OffsetInterval(ranges, start, start.advanced({part.partition: part.end for part in ranges}, commit_id))

    def _ranges(self, start: Watermark, source: TopicSnapshot, ends: Mapping[int, int] | None) -> list[OffsetRange]:
        """Return the offsets of the interval that begins at a watermark. The list is empty if no records remain."""
        ranges = []
        for partition, offset in start.next_offsets.items():
            end = source.bounds[partition].last_stable
            end = end if ends is None else min(end, ends.get(partition, offset))
            if end > offset:
                ranges.append(OffsetRange(self._topic, partition, offset, end))
        return self._limited(ranges) if ranges else []

    def _warn_of_gaps(self, watermark: Watermark, start: Watermark) -> None:
        if watermark.topic_id != start.topic_id:
            action = "replacing the rows with" if self._options.new_topic == "replace" else "adding"
            self._warn(
                f"topic '{self._topic}' was deleted and recreated since it was copied to table {self._target.name}: "
                f"{action} the records of the new topic"
            )
            return
        for partition, offset in watermark.next_offsets.items():
            if start.next_offsets[partition] > offset:
                self._warn(
                    f"offsets {offset} to {start.next_offsets[partition] - 1} of {self._topic}-{partition} were "
                    f"deleted before they were copied to table {self._target.name}: skipping them"
                )

    def _limited(self, ranges: Sequence[OffsetRange]) -> list[OffsetRange]:
        """Return ranges with at most `_max_offsets` records: the same share of each partition, at least one record.

        If the changes of fewer records do not fit in memory, some partitions are omitted.
        """
        if self._max_offsets < self._options.max_offsets:
            ranges = ranges[: self._max_offsets]
        stored = self._view.stored(ranges)
        total = sum(part.records for part in stored)
        if total <= self._max_offsets:
            return list(ranges)
        return [
            replace(offsets, end=max(offsets.start + 1, part.at_records(self._share(part.records, total))[0]))
            for offsets, part in zip(ranges, stored, strict=True)
        ]

    def _share(self, records: int, total: int) -> int:
        """Return the share of a partition, rounded up. Otherwise, a few records would remain for another interval."""
        return max(1, -(-records * self._max_offsets // total))

    # -- the table

    def _load(self) -> TableState | None:
        """Load the current version of the table. If its catalog is unavailable at the start, its configuration may be
        wrong. Later, wait for it.
        """
        state = load_when_available(self._target, self._env) if self._is_loaded else self._target.load()
        self._is_loaded = True
        return state

    def _create(self) -> TableState:
        options, decoder = self._options, self._decoder
        partition_by = options.partition_by
        if partition_by == "default":
            partition_by = None
            if options.rows.upsert:
                partition_by = PartitionBy("bucket", decoder.keys[:1], 16)
            elif options.rows.metadata:
                partition_by = PartitionBy("day", ("_timestamp",))
        if partition_by is not None:
            partition_by.check(decoder.schema)
        layout = TableLayout(decoder.schema, options.mode, partition_by, decoder.keys)
        return self._target.create(layout, self._starting_watermark(self._refresh(), options.mode))

    def _check_first_interval(self, source: TopicSnapshot, ends: Mapping[int, int] | None) -> None:
        """Raise `BadRequest` if the copy would reject a record of the first interval.

        The check precedes the creation of the table. Otherwise, a copy with wrong options would leave an empty table
        whose mode and columns do not match the corrected options.
        """
        options = self._options
        has_bad_records = options.bad_records == "fail" and (options.rows.payload != "raw" or options.rows.upsert)
        has_other_columns = options.rows.payload in SCHEMA_FORMATS and not options.grow_schema
        if not (has_bad_records or has_other_columns):
            return
        plans = self._plans(self._ranges(self._starting_watermark(source, options.mode), source, ends))
        works = [
            SliceCheck(
                title=f"check of slice {number} of {len(plans)} of topic {self._topic}",
                nbytes=sum(part.nbytes for part in parts),
                parts=parts,
                decoder=self._decoder,
                bad_records="fail" if options.bad_records == "fail" else "skip",
                max_bad=BAD_RECORD_BYTES,
                batch_bytes=self.batch_bytes,
                grow_schema=options.grow_schema,
            )
            for number, parts in enumerate(plans, 1)
        ]
        try:
            self._run(works, [])
        except NewColumns as error:
            self._missing(self._decoder.schema, error.schema)

    def _starting_watermark(self, source: TopicSnapshot, mode: Mode) -> Watermark:
        """Return the watermark of a table without copied rows."""
        start = "earliest" if self._options.starting_offsets is None else self._options.starting_offsets
        ranges = scan_ranges(self._view, self._topic, None, start, "latest", READ_COMMITTED)
        offsets = {part.partition: part.start for part in ranges}
        return Watermark(source.root_id, source.topic, source.topic_id, offsets, "", mode)

    def _grown(self, state: TableState, schema: pa.Schema) -> TableState:
        """Return a version of the table that has all columns of the rows."""
        while missing := self._missing(state.schema, schema):
            columns = ", ".join(_column_change(item, state.schema) for item in missing)
            self._warn(f"changing the columns of table {self._target.name}: {columns}")
            try:
                state = self._target.add_columns(state, missing)
            except Conflict:
                state = load_again(self._target, self._env)
            else:
                self.report.changed_columns += [item.name for item in missing]
                break
        return state

    def _missing(self, existing: pa.Schema, rows: pa.Schema) -> list[pa.Field]:
        """Return the columns of the rows that the table lacks or that are wider than in the table.

        Raises `BadRequest` if there are such columns and `grow_schema` is not set.
        """
        name = self._target.name
        missing = missing_columns(name, existing, rows)
        if missing and not self._options.grow_schema:
            columns = ", ".join(_column_change(item, existing) for item in missing)
            raise BadRequest(
                f"table {name} does not have the columns of the records: {columns}; use "
                f"{advice(python='grow_schema=True', shell='--grow-schema')} to change the table"
            )
        return missing

    # -- the rows

    def _clear(self, state: TableState, interval: OffsetInterval) -> None:
        def commit(current: TableState) -> None:
            self._target.clear(current, interval.after)

        self._commit(state, interval, commit, lambda: None, CopyReport(self._target.name))

    def _append(self, state: TableState, interval: OffsetInterval) -> None:
        after, target = interval.after, self._target
        slices = self._run_slices(state, interval)
        if slices is None:
            return
        files = [file for part in slices for file in part.files]
        counted = self._counts(slices)
        counted.files, counted.file_bytes = len(files), sum(file.nbytes for file in files)
        self._commit(
            state,
            interval,
            lambda current: target.append(current, files, after),
            lambda: self._discard(slices),
            counted,
        )

    def _upsert(self, state: TableState, interval: OffsetInterval) -> None:
        slices = self._run_slices(state, interval)
        if slices is None:
            return
        with self._latest(slices, state) as latest:
            changes = ChangeSet(latest.changes())

            def commit(current: TableState) -> None:
                self._target.upsert(current, changes, interval.after)

            self._commit(state, interval, commit, lambda: None, self._counts(slices), changes)

    def _latest(self, slices: Sequence[SliceRows], state: TableState) -> LatestRows:
        latest, *others = [part.latest for part in slices if part.latest is not None] or [
            LatestRows(self._decoder.keys, state.schema, UPSERT_BYTES)
        ]
        for other in others:
            latest.extend(other)
        return latest

    def _run_slices(self, state: TableState, interval: OffsetInterval) -> list[SliceRows] | None:
        """Return the rows of all slices of an interval, after quarantining its bad records. Return None if another run
        has quarantined them, so the interval must be copied again.
        """
        slices: list[SliceRows] = []
        try:
            self._run(self._slices(state, interval), slices)
            is_quarantined = self._add_to_quarantine(slices, interval)
        except Exception:
            with suppress(SparklogError, OSError):
                self._discard(slices)
            raise
        if not is_quarantined:
            self._discard(slices)
            return None
        if all(part.usage < 0.5 for part in slices):
            # An earlier interval with larger records may have reduced the size of intervals.
            self._max_offsets = min(2 * self._max_offsets, self._options.max_offsets)
        return slices

    def _run(self, works: Sequence[SliceRead], slices: list[SliceRows]) -> None:
        """Run work items and add their results to `slices`. Raises the first problem."""
        for _, result in self._runner.run(works):
            if isinstance(result, BadRecord):
                raise self._error_of(result)
            if isinstance(result, Exception):
                raise result
            slices.append(result)

    def _plans(self, ranges: Sequence[OffsetRange]) -> list[TaskParts]:
        """Divide an interval into slices, and plan the read of each slice."""
        if not ranges:
            return []
        divided = divide(ranges, self._view.stored(ranges), self._runner.parallelism, self.min_slice_records)
        try:
            return [TaskParts(self._view.plan(part, READ_COMMITTED)) for part in divided]
        except NotFound as error:
            raise MissingRecords(error) from error

    def _slices(self, state: TableState, interval: OffsetInterval) -> list[SliceWork]:
        """Return the work of the tasks of an interval."""
        if not interval.ranges:
            return []
        target, version = self._target.for_tasks(state)
        # The driver can only read a temporary file of its own process.
        is_split = isinstance(self._runner, InProcess) and depends_on_keys(self._target, state, self._decoder.keys)
        plans = self._plans(interval.ranges)
        return [
            SliceWork(
                title=f"slice {number} of {len(plans)} of topic {self._topic}",
                nbytes=sum(part.nbytes for part in parts),
                parts=parts,
                decoder=self._decoder,
                bad_records=self._options.bad_records,
                target=target,
                state=version,
                topic_id=interval.after.topic_id,
                max_changes=UPSERT_BYTES // len(plans),
                is_split=is_split,
                max_bad=BAD_RECORD_BYTES // len(plans),
                batch_bytes=self.batch_bytes,
                env=self._env,
            )
            for number, parts in enumerate(plans, 1)
        ]

    def _discard(self, slices: Sequence[SliceRows]) -> None:
        """Delete the files of slices, which no commit contains."""
        for part in slices:
            if part.latest is not None:
                part.latest.close()
        if paths := [file.path for part in slices for file in part.files]:
            self._target.delete_files(paths)

    def _add_to_quarantine(self, slices: Sequence[SliceRows], interval: OffsetInterval) -> bool:
        """Quarantine the bad records of an interval. Return False if the interval must be copied again."""
        if self._quarantine is None:
            return True
        fingerprint = self._options.fingerprint(self._decoder.schema)
        with Quarantine(self._quarantine, interval.before, interval.after, fingerprint, self._env) as quarantine:
            for part in slices:
                for bad in part.bad:
                    quarantine.add(bad)
                part.bad = []
            return quarantine.commit()

    def _counts(self, slices: Sequence[SliceRows]) -> CopyReport:
        counted = CopyReport(self._target.name)
        for part in slices:
            counted.records += part.records
            counted.rows += part.rows
            counted.bad_records += part.bad_count
        return counted

    def _error_of(self, bad: BadRecord) -> BadRequest:
        return BadRequest(
            f"{self._topic}-{bad.partition} offset {bad.offset}: {bad.reason}; use "
            f"{option_value('bad_records', 'quarantine')} or skip to continue without it"
        )

    def _commit(
        self,
        state: TableState,
        interval: OffsetInterval,
        commit: Callable[[TableState], None],
        discard: Callable[[], None],
        counted: CopyReport,
        changes: ChangeSet | None = None,
    ) -> None:
        if commit_interval(self._target, state, interval.after, commit, discard, self._env):
            if changes is not None:
                effect = changes.effect
                counted.rows, counted.deleted = effect.rows, effect.deleted
                counted.files, counted.file_bytes = effect.files, effect.file_bytes
            self.report.add(counted)
            self.report.commits += 1
            self.report.next_offsets = interval.after.next_offsets


def _column_change(column: pa.Field, table: pa.Schema) -> str:
    """Describe a column that a table does not have, or that has a narrower type in the table."""
    index = table.get_field_index(column.name)
    narrower = f" instead of {type_name(table.field(index).type)}" if index >= 0 else ""
    return f"{column.name} {type_name(column.type)}{narrower}"


def _is_new_topic(before: Watermark | None, after: Watermark) -> bool:
    """Return True if the topic was deleted and created again between two watermarks."""
    return before is not None and before.topic_id != after.topic_id
