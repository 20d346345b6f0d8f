"""The options of jobs that copy a topic to a table, and the run of those without a checkpoint."""

# Do not import annotations from __future__: `parse` evaluates the annotations of a base class in the module of the
# subclass.
import json
import re
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from sparklog.common.parsing import INT32_MAX, is_digits
from sparklog.common.units import count
from sparklog.console.options import SourceOption, comma_separated, integer_option, parse_age
from sparklog.console.parameters import JsonOption, Option
from sparklog.console.schema_registry import (
    RegistryCacheOption,
    RegistryConfigOption,
    RegistryOption,
    open_registry,
)
from sparklog.console.terminal import read_text
from sparklog.datasource.options import parse_options
from sparklog.errors import BadRequest, Conflict, Unavailable, shortened
from sparklog.format.values import SCHEMA_FORMATS
from sparklog.jobs.common import DONE, tasks_if_submitted
from sparklog.jobs.stop_signals import StopSignals
from sparklog.log.journal.names import check_topic_name
from sparklog.log.read.topic_scan import OffsetSpec, Position
from sparklog.log.state.view import LogView
from sparklog.maintenance.table_runs import UPDATE_MS, TableRunRecorder
from sparklog.opening import open_view, resolve
from sparklog.output import StatusLine, log
from sparklog.tables.copy import CopyReport, TableCopy, TableCopyOptions
from sparklog.tables.maintenance import MaintainedTable, MaintenanceReport, merge_small_files
from sparklog.tables.rows import RowOptions
from sparklog.tables.target import TargetTable, parse_partition_by

_SPARK_PERIOD = re.compile(r"(\d+) (second|minute|hour)s?")
SCHEMA_OF = {
    "json": "columns such as 'id BIGINT, name STRING'",
    "avro": "the file of the Avro schema",
    "json-schema": "the file of the JSON Schema",
    "protobuf": "the file of the Protobuf schema",
}
MERGE_INTERVAL_MS = 60_000
"""The minimum time between two merges of small files."""


def parse_period(text: str, option: str) -> int:
    """Convert a period such as `30s`, or `30 seconds` as in Spark, to milliseconds."""
    match = _SPARK_PERIOD.fullmatch(text)
    return parse_age(text if match is None else f"{match[1]}{match[2][0]}", option)


@dataclass(kw_only=True)
class RowsJob:
    """The options that copies of a topic to a table have with and without a checkpoint."""

    topic: Annotated[str, Option(help="Topic to read.")]
    root: SourceOption
    mode: Annotated[
        Literal["append", "upsert"],
        Option(help="Write one row per record (append), or one row per key with its latest record (upsert)."),
    ] = "append"
    payload: Annotated[
        Literal["raw", "string", "json", "avro", "json-schema", "protobuf"],
        Option(help="Write values as bytes (raw) or strings, or parse values in the other formats."),
    ] = "raw"
    schema: Annotated[
        str | None,
        Option(
            metavar="DDL|[ID=]FILE",
            help="Columns of JSON values in DDL format, or the schema file of another format. If a schema registry was"
            " used, specify ID=FILE, or --schema-registry instead.",
        ),
    ] = None
    message: Annotated[
        str | None,
        Option(
            metavar="NAME",
            help="Full name of the Protobuf message type of the values.",
            show_default="the first type in the schema",
        ),
    ] = None
    schema_registry: RegistryOption = None
    registry_config: RegistryConfigOption = None
    registry_cache: RegistryCacheOption = None
    value_subject: Annotated[
        str | None,
        Option(
            metavar="NAME",
            help="Subject of the schema registry whose latest version is the schema of the values.",
            show_default="<topic>-value",
        ),
    ] = None
    key_column_list: Annotated[
        str | None,
        Option(
            "--key-columns",
            metavar="A[,B]",
            help="Columns for the record key. A single column contains the key as text; several columns are"
            " parsed from a JSON object.",
        ),
    ] = None
    headers: Annotated[bool, Option(help="Write the headers of raw and string records to the table.")] = True
    bad_records: Annotated[
        Literal["fail", "skip", "quarantine"],
        Option(
            help="Action for a record that does not match the schema: fail, skip the record, or write the record to"
            " TABLE_quarantine."
        ),
    ] = "fail"
    grow_schema: Annotated[bool, Option(help="Add missing columns to the table, and widen columns if possible.")] = (
        False
    )
    max_offsets_per_trigger: Annotated[
        int, integer_option(low=1, text="Approximate maximum number of records per commit.")
    ] = 1_000_000
    no_fail_on_data_loss: Annotated[
        bool, Option(help="Continue if records were deleted from the topic before they were written to the table.")
    ] = False
    follow: Annotated[bool, Option("--follow", help="Keep copying new records until stopped.")] = False

    def row_options(self, *, metadata: bool = True) -> RowOptions:
        """Return the conversion of records to rows. Raises `BadRequest` if the options are invalid."""
        check_topic_name(self.topic)
        keys, schema, upsert = comma_separated([self.key_column_list or ""]), self._schema(), self.mode == "upsert"
        return RowOptions(self.payload, upsert, schema, keys, self.headers, metadata, message=self.message)

    def _schema(self) -> Any:
        """Return the schema of the values, or their subject if there is a schema registry."""
        registry = open_registry(self.schema_registry, self.registry_config, self.registry_cache)
        if registry is not None:
            if self.payload not in SCHEMA_FORMATS:
                names = ", ".join(SCHEMA_FORMATS)
                raise BadRequest(f"a schema registry requires --payload with one of {names}")
            if self.schema is not None:
                raise BadRequest("omit --schema, because the schema registry contains the schemas")
            return registry.subject(self.value_subject or f"{self.topic}-value")
        if self.value_subject is not None:
            raise BadRequest("--value-subject requires --schema-registry or --registry-cache")
        if self.payload in SCHEMA_OF and self.schema is None:
            raise BadRequest(f"--payload {self.payload} requires --schema: {SCHEMA_OF[self.payload]}")
        return _read_schema(self.schema) if self.payload in SCHEMA_FORMATS and self.schema else self.schema


@dataclass(kw_only=True)
class TableJob(RowsJob):
    """The options that all table formats share.

    Attributes:
        options: the options of the copy.
        interval_ms: the minimum time between two commits.
    """

    partition_by: Annotated[
        str | None,
        Option(
            metavar="PARTITIONING",
            help="Partitioning of a new table: day(COLUMN), bucket(N, COLUMN) or none.",
            show_default="day(_timestamp), or bucket(16, KEY) with --mode upsert",
        ),
    ] = None
    starting_offsets: Annotated[
        str | None,
        Option(
            metavar="OFFSETS",
            help="Offsets to start at if the table contains no copied records: earliest, latest, or JSON such as"
            ' {"topic":{"0":23}}.',
            show_default="earliest",
        ),
    ] = None
    max_files_per_partition: Annotated[
        int,
        integer_option(
            text="Merge the small files of a partition if it has more of them than this number. 0 never merges them."
        ),
    ] = 64
    new_topic: Annotated[
        Literal["fail", "continue", "replace"],
        Option(
            help="Action if the topic was deleted and created again: fail, add the records of the new topic (continue),"
            " or delete all rows of the table before adding them (replace)."
        ),
    ] = "fail"
    interval: Annotated[
        str,
        Option(
            metavar="PERIOD",
            needs="--follow",
            why="without --follow, the job ends when it has written the existing records",
            help="Minimum time between commits, such as 30s or 5m. Requires --follow.",
        ),
    ] = "1m"
    as_json: JsonOption = False
    options: TableCopyOptions = field(init=False)
    interval_ms: int = field(init=False)

    def __post_init__(self) -> None:
        rows = self.row_options()
        self.interval_ms = parse_period(self.interval, "--interval")
        self.options = TableCopyOptions(
            rows=rows,
            bad_records=self.bad_records,
            grow_schema=self.grow_schema,
            starting_offsets=_position(self.topic, self.starting_offsets),
            partition_by=parse_partition_by(self.partition_by),
            max_offsets=self.max_offsets_per_trigger,
            fail_on_data_loss=not self.no_fail_on_data_loss,
            new_topic=self.new_topic,
        )

    def open(self) -> LogView:
        """Open the source. Raises `NotFound` if it or the topic does not exist."""
        view = open_view(resolve(self.root), tailing=self.follow)
        view.bounds(self.topic)
        return view

    def run(
        self,
        name: str,
        view: LogView,
        target: TargetTable,
        quarantine: TargetTable,
        maintain: Callable[[CopyReport], dict[str, Any]],
    ) -> int:
        """Copy the topic, print the report, and return the exit code. If spark-submit has started the job, Spark tasks
        read the topic and write the files.

        Args:
            name: the name of the job.
            view: the source.
            target: the table.
            quarantine: the table of bad records. It is created for the first bad record.
            maintain: a function that maintains the table after commits, and returns its results for the report.
        """
        notice = f"sparklog {name}: stopping after the current commit; press Ctrl-C again to stop at once"
        with tasks_if_submitted(name) as runner, StatusLine(name) as status, StopSignals(notice) as signals:
            copy = TableCopy(view, self.topic, target, self.options, quarantine, log, runner)
            with copy.recorder(name) as recorder:
                while self.follow:
                    self._follow(copy, view, status, signals, recorder, maintain)
                ends = {partition: bounds.last_stable for partition, bounds in view.bounds(self.topic).items()}
                while copy.copy_interval(ends):
                    status(_progress(copy.report))
                    signals.check()
                maintenance = maintain(copy.report)
        if self.as_json:
            print(json.dumps({**asdict(copy.report), **maintenance}))
        else:
            print(f"written to {target.name}: {_progress(copy.report)}")
        return DONE

    def _follow(
        self,
        copy: TableCopy,
        view: LogView,
        status: StatusLine,
        signals: StopSignals,
        recorder: TableRunRecorder,
        maintain: Callable[[CopyReport], dict[str, Any]],
    ) -> None:
        elapsed_ms, commits = view.env.stopwatch(), copy.report.commits
        if copy.copy_interval():
            status(_progress(copy.report))
            signals.check()
            maintain(copy.report)
        pause_ms = self.interval_ms
        if copy.report.commits == commits:
            # There were no records, their changes did not fit in memory, or another run committed first. Each of these
            # steps is a poll: after the commit of another run, it reads only the records that remain.
            pause_ms = min(pause_ms, view.poll_interval_ms)
        remaining_ms = pause_ms - elapsed_ms()
        while True:
            # The record of a run is updated during a long pause, too.
            recorder.update()
            signals.sleep(view.env.sleep, max(0.0, min(remaining_ms, UPDATE_MS) / 1000))
            remaining_ms -= UPDATE_MS
            if remaining_ms <= 0:
                return


class Upkeep:
    """Maintains the table of a job after commits.

    Args:
        table: The table.
        max_files: The number of small files per partition above which they are merged. 0 never merges them.
        view: The view of the source, for its clock and random ids.
    """

    def __init__(self, table: MaintainedTable, max_files: int, view: LogView) -> None:
        self._table = table
        self._max_files = max_files
        self._env = view.env
        self._due_ms: dict[str, int] = {}
        self.report = MaintenanceReport()

    def __call__(self, report: CopyReport) -> dict[str, Any]:
        """Do the maintenance that is due. If it fails, the next call repeats it, because the records are copied."""
        try:
            self.maintain(report)
        except (Conflict, Unavailable) as error:
            log(f"maintenance of table {self._table.name} failed: {error}")
        return self.results()

    def maintain(self, report: CopyReport) -> None:
        if not (self._max_files and report.commits and self.is_due("merge", MERGE_INTERVAL_MS)):
            return
        try:
            merge_small_files(self._table, self._max_files, self._env.new_id, self.report)
        except BadRequest as error:
            # The library of the table format does not support all features of tables that appends support.
            log(f"the small files of table {self._table.name} are not merged: {error}")

    def results(self) -> dict[str, Any]:
        return {"merged_files": self.report.merged_files}

    def is_due(self, task: str, interval_ms: int) -> bool:
        now_ms = self._env.boot_ms()
        if now_ms < self._due_ms.get(task, 0):
            return False
        self._due_ms[task] = now_ms + interval_ms
        return True


def _progress(report: CopyReport) -> str:
    parts = [f"{count(report.records, 'record')} in {count(report.commits, 'commit')}"]
    if not report.commits:
        parts = ["no new records"]
    if report.deleted:
        parts.append(f"{count(report.deleted, 'row')} deleted")
    if report.bad_records:
        parts.append(count(report.bad_records, "bad record"))
    if report.changed_columns:
        parts.append(f"{count(len(report.changed_columns), 'column')} added or widened")
    return ", ".join(parts)


def _read_schema(text: str) -> Any:
    """Read a schema file, or `ID=FILE` for values with the id of a schema registry."""
    number, equals, file = text.partition("=")
    framed = bool(equals) and is_digits(number) and int(number) <= INT32_MAX
    schema = read_text(Path(file if framed else text), "--schema")
    return {int(number): schema} if framed else schema


def _position(topic: str, text: str | None) -> Position | None:
    """Parse the starting offsets, as the option `startingOffsets` of the data source."""
    if text is None:
        return None
    expected = f'--starting-offsets must be earliest, latest or JSON such as {{"{topic}":{{"0":23}}}}'
    try:
        start = parse_options({"subscribe": topic, "startingoffsets": text}).read.start
    except BadRequest:
        raise BadRequest(f"{expected}, found {shortened(text)}") from None
    assert start is not None
    if start.kind not in ("earliest", "latest", "offsets"):
        raise BadRequest(f"{expected}, found {shortened(text)}")
    if start.kind == "offsets":
        if list(start.offsets) != [topic]:
            raise BadRequest(f"{expected}, with the topic of --topic, found {shortened(text)}")
        return {partition: _SPECIAL.get(offset, offset) for partition, offset in start.offsets[topic].items()}
    return "latest" if start.kind == "latest" else "earliest"


_SPECIAL: dict[int, OffsetSpec] = {-2: "earliest", -1: "latest"}
"""Offsets in JSON that represent the start and the end of a partition."""
