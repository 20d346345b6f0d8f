"""The public functions that copy topics to tables. They correspond to the commands with the same names."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, closing, nullcontext
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypedDict

from sparklog.arguments import NAME, NAMES, OFFSETS, checked
from sparklog.common.lazy import install_command
from sparklog.common.settings import ValueType, int64, is_integer, one_of, option
from sparklog.errors import BadRequest
from sparklog.log.journal.clocks import Env
from sparklog.log.read.topic_scan import EARLIEST, LATEST, Position
from sparklog.log.state.view import LogView
from sparklog.log.topic.root import ROOT, Root, RootView, open_root
from sparklog.opening import open_view, resolve
from sparklog.storage.store import Store
from sparklog.tables.copy import IN_PROCESS, CopyReport, TableCopy, TableCopyOptions
from sparklog.tables.iceberg_catalog import open_catalog, table_identifier
from sparklog.tables.option_names import option_value
from sparklog.tables.root_watermark import RootWatermarkTable, check_not_in_root
from sparklog.tables.rows import RowOptions
from sparklog.tables.slices import BadRecords, SliceRunner
from sparklog.tables.target import TargetTable, parse_partition_by
from sparklog.tables.watermark import NewTopic

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from typing_extensions import Unpack

    from sparklog.tables.delta import DeltaLakeTable
    from sparklog.tables.iceberg import IcebergTable

RootLike = Root | Store | str | os.PathLike[str]
WatermarkLocation = Literal["table", "root"]
_ANY = ValueType("any value", lambda value: True)
_WATERMARK = one_of("table", "root")


def _is_offset(value: object) -> bool:
    return is_integer(value) or value in (EARLIEST, LATEST)


_POSITION = ValueType(
    "earliest, latest, an offset, or offsets by partition such as {0: 23}",
    lambda value: (
        all(map(is_integer, value)) and all(map(_is_offset, value.values()))
        if isinstance(value, Mapping)
        else _is_offset(value)
    ),
)


class TableKeywords(TypedDict, total=False):
    """Options of a copy to a table (see `to_iceberg` and `to_delta`)."""

    # fmt: off
    mode: Annotated[Literal["append", "upsert"], option("append",
        "`append` adds one row per record, `upsert` retains the latest record of each key, and tombstones delete rows.",
        one_of("append", "upsert"))]
    payload: Annotated[str, option("raw",
        "`raw` stores keys and values as bytes, `string` as strings. Other formats such as `json` and `avro` store the "
        "fields of a value as columns.")]
    schema: Annotated[Any, option(None,
        "Columns of JSON values such as `id BIGINT, name STRING`, or the schema of the format as in `formats.decode`.",
        _ANY)]
    message: Annotated[str | None, option(None,
        "Full name of the Protobuf message type of the values. Default: the first type in the schema.",
        NAME.or_none())]
    key_columns: Annotated[Sequence[str], option((),
        "Columns of the record key. A single column contains the key as text, several columns are the fields of a JSON "
        "object.", NAMES)]
    headers: Annotated[bool, option(True, "Store the headers of raw and string records.")]
    bad_records: Annotated[BadRecords, option("fail",
        "Action for a record that does not match the schema: `fail`, `skip`, or `quarantine` it in TABLE_quarantine.",
        one_of("fail", "skip", "quarantine"))]
    grow_schema: Annotated[bool, option(False, "Add missing columns to the table, and widen columns.")]
    partition_by: Annotated[str | None, option(None,
        "Partitioning of a new table: `day(COLUMN)`, `bucket(N, COLUMN)` or `none`. Default: `day(_timestamp)`, or "
        "`bucket(16, KEY)` for upserts.", NAME.or_none())]
    starting_offsets: Annotated[Position | None, option(None,
        "Offsets to start at if the table contains no copied records, as `start` of `Topic.scan`.",
        _POSITION.or_none())]
    max_offsets: Annotated[int, option(1_000_000, "Approximate maximum number of records per commit.", int64(1))]
    fail_on_data_loss: Annotated[bool, option(True,
        "False continues if records were deleted from the topic before they were copied.")]
    new_topic: Annotated[NewTopic, option("fail",
        "`continue` adds the records of a topic that was deleted and created again, `replace` deletes all rows first.",
        one_of("fail", "continue", "replace"))]
    # fmt: on


@checked(
    TableKeywords,
    root=ROOT,
    topic=NAME,
    table=NAME,
    watermark=_WATERMARK,
    resume_offsets=OFFSETS.or_none(),
    quarantine_resume_offsets=OFFSETS.or_none(),
)
def to_iceberg(
    root: RootLike,
    topic: str,
    table: str,
    *,
    catalog: Catalog | Mapping[str, str] | str | None = None,
    spark: Any = None,
    watermark: WatermarkLocation = "table",
    resume_offsets: Mapping[int, int] | None = None,
    quarantine_resume_offsets: Mapping[int, int] | None = None,
    **options: Unpack[TableKeywords],
) -> CopyReport:
    """Copy the current records of a topic to an Iceberg table, exactly once.

    The table contains the offsets up to which the topic was copied. The next call, on any host, continues from there.

    Args:
        root: An open root, or the location of a root or a Kafka log directory.
        topic: The name of the topic.
        table: The namespace and the name of the table. The table is created if it does not exist.
        catalog: A pyiceberg catalog, its properties, or its name in pyiceberg's configuration.
        spark: A Spark session whose tasks read the topic and write the files. Default: this process does the work.
        watermark: `root` stores the copied offsets in the root instead of in the properties of the table, for catalogs
            that do not store these properties.
        resume_offsets: The offsets at which to continue if `watermark` is `root` and it is unknown whether the table
            contains the last commit.
        quarantine_resume_offsets: The offsets at which the table of bad records continues in the same cases.

    Returns:
        A report with the numbers of copied records, rows, bad records and commits, and the next offsets.

    Raises:
        NotFound: If the topic does not exist.
        BadRequest: If an option is invalid, a record does not match the schema, or the table contains another topic.
        Conflict: If other programs prevented a commit for ten minutes.
        Unavailable: If the catalog or the storage is not available.

    Example:
        catalog = {"type": "sql", "uri": "sqlite:////data/catalog.db", "warehouse": "file:///data/warehouse"}
        report = sparklog.to_iceberg("/data/log", "orders", "shop.orders", catalog=catalog)
        print(report.records, report.next_offsets)
    """
    identifier, view = table_identifier(table), _view(root)
    with _opened(catalog) as opened:
        _, target, quarantine = iceberg_tables(
            opened, identifier, view, watermark, resume_offsets, quarantine_resume_offsets
        )
        return copy_topic("to-iceberg", view, topic, target, quarantine, options, spark)


def _opened(catalog: Catalog | Mapping[str, str] | str | None) -> AbstractContextManager[Catalog]:
    """Open a catalog, and close it at the end of the block. If the caller has opened the catalog, it remains open."""
    if catalog is None or isinstance(catalog, str):
        return closing(open_catalog(catalog, {}))
    return closing(open_catalog(None, catalog)) if isinstance(catalog, Mapping) else nullcontext(catalog)


def iceberg_tables(
    catalog: Catalog,
    identifier: tuple[str, ...],
    view: LogView,
    watermark: WatermarkLocation,
    resume_offsets: Mapping[int, int] | None,
    quarantine_resume_offsets: Mapping[int, int] | None,
) -> tuple[IcebergTable, TargetTable, TargetTable]:
    """Return an Iceberg table, and the targets of its rows and of bad records.

    Raises `BadRequest` if the watermark of the table is in another location.
    """
    from sparklog.tables.iceberg import IcebergTable

    *namespace, name = identifier
    table, quarantine = (
        IcebergTable(catalog, (*namespace, name), view.env.new_id, has_properties=watermark == "table")
        for name in (name, f"{name}_quarantine")
    )
    if watermark == "table":
        if isinstance(view, RootView):
            check_not_in_root(table, view.root)
        return table, table, quarantine
    if not isinstance(view, RootView):
        raise BadRequest(f"{option_value('watermark', 'root')} requires a root, not a Kafka log directory")
    return (
        table,
        RootWatermarkTable(table, view.root, resume_offsets),
        RootWatermarkTable(quarantine, view.root, quarantine_resume_offsets, "quarantine_resume_offsets"),
    )


@checked(TableKeywords, root=ROOT, topic=NAME, location=NAME)
def to_delta(
    root: RootLike,
    topic: str,
    location: str,
    *,
    storage_options: Mapping[str, str] | None = None,
    spark: Any = None,
    **options: Unpack[TableKeywords],
) -> CopyReport:
    """Copy the current records of a topic to a Delta table, exactly once and without Spark.

    The table contains the offsets up to which the topic was copied. The next call, on any host, continues from there.

    Args:
        root: An open root, or the location of a root or a Kafka log directory.
        topic: The name of the topic.
        location: The directory or URL of the table. The table is created if it does not exist.
        storage_options: Settings of the object store, as in deltalake.
        spark: A Spark session whose tasks read the topic and write the files. Default: this process does the work.

    Returns:
        A report with the numbers of copied records, rows, bad records and commits, and the next offsets.

    Raises:
        NotFound: If the topic does not exist.
        BadRequest: If an option is invalid, a record does not match the schema, or the table contains another topic.
        Conflict: If other programs prevented a commit for ten minutes.
        Unavailable: If the storage is not available.

    Example:
        report = sparklog.to_delta("/data/log", "orders", "/data/tables/orders")
        print(report.records, report.next_offsets)
    """
    view = _view(root)
    target, quarantine = delta_tables(location, storage_options or {}, view.env)
    return copy_topic("to-delta", view, topic, target, quarantine, options, spark)


def delta_tables(location: str, storage_options: Mapping[str, str], env: Env) -> tuple[DeltaLakeTable, DeltaLakeTable]:
    """Return the table at a location and its table of bad records. Raises `BadRequest` if deltalake is missing."""
    try:
        from sparklog.tables.delta import DeltaLakeTable
    except ModuleNotFoundError as error:
        if str(error.name).partition(".")[0] != "deltalake":
            raise
        raise BadRequest(f"Delta tables without Spark require deltalake: {install_command('deltalake')}") from None
    path = (location if "://" in location else os.path.abspath(location)).rstrip("/")
    return (
        DeltaLakeTable(path, storage_options, env),
        DeltaLakeTable(f"{path}_quarantine", storage_options, env),
    )


def copy_topic(
    job: str,
    view: LogView,
    topic: str,
    target: TargetTable,
    quarantine: TargetTable,
    options: TableKeywords,
    spark: Any,
) -> CopyReport:
    """Copy the current records of a topic to a table, and record the run as a run of a job.

    The records are read and written in this process, or in the tasks of a Spark session.
    """
    rows = RowOptions(
        options.get("payload", "raw"),
        options.get("mode", "append") == "upsert",
        options.get("schema"),
        tuple(options.get("key_columns", ())),
        options.get("headers", True),
        message=options.get("message"),
    )
    copy_options = TableCopyOptions(
        rows=rows,
        bad_records=options.get("bad_records", "fail"),
        grow_schema=options.get("grow_schema", False),
        starting_offsets=options.get("starting_offsets"),
        partition_by=parse_partition_by(options.get("partition_by")),
        max_offsets=options.get("max_offsets", 1_000_000),
        fail_on_data_loss=options.get("fail_on_data_loss", True),
        new_topic=options.get("new_topic", "fail"),
    )
    runner: SliceRunner = IN_PROCESS
    if spark is not None:
        from sparklog.maintenance.spark_runner import SparkRunner

        runner = SparkRunner(spark)
    # Do not record a run of a topic that does not exist.
    view.bounds(topic)
    copy = TableCopy(view, topic, target, copy_options, quarantine, runner=runner)
    with copy.recorder(job):
        return copy.copy_existing()


def _view(root: RootLike) -> LogView:
    if isinstance(root, Root):
        return RootView(root)
    if isinstance(root, Store):
        return RootView(open_root(root))
    return open_view(resolve(os.fspath(root)), tailing=False)
