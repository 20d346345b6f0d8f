"""The data source `sparklog`, as Spark's registry knows it, and `sparklog.partitioned`."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource

from sparklog.datasource import catalog
from sparklog.datasource.options import Options, ReadOptions, parse_options
from sparklog.datasource.schema import Projection, check_chosen, projection, read_schema
from sparklog.datasource.spark_versions import stream_reader
from sparklog.datasource.spark_workers import user_errors, warn_once
from sparklog.datasource.table_view import check_table, refuse_table
from sparklog.errors import BadRequest, NotFound, SparklogError
from sparklog.log.journal.clocks import SYSTEM
from sparklog.opening import (
    KAFKA_DIRECTORY,
    KAFKA_PARTITION,
    NOTHING,
    ROOT,
    TOPIC,
    Location,
    missing,
    open_view,
    resolve,
)

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from sparklog.datasource.reader import SparklogBatchReader
    from sparklog.datasource.writer import SparklogBatchWriter, SparklogStreamWriter

COMMITS = "pyspark.sql.worker.python_streaming_sink_runner"
"""Loaded in the process where Spark builds a streaming writer for its `commit` alone, which plans nothing."""


def check_group_place(read: ReadOptions, location: Location) -> None:
    """Raises BadRequest for a stream that is to publish its progress where nothing can be written."""
    if read.group_id is not None and location.kind in (KAFKA_DIRECTORY, KAFKA_PARTITION):
        raise BadRequest(
            f"A stream with kafka.group.id publishes its progress, and {location.path} is a {location.kind}, which is "
            "read-only: leave kafka.group.id out, or import it (`sparklog import`) and read the root"
        )


WITHOUT_CHECKPOINT = (
    "Option 'checkpointLocation' has no effect in a batch write: txnAppId and txnVersion make the write idempotent"
)


class SparklogDataSource(DataSource):  # type: ignore[misc]
    """`spark.read.format("sparklog")`, `df.write`, `spark.readStream` and `df.writeStream`.

    Options are checked here, so that a mistake shows at `load` or `save` (a streaming sink's at its first micro-batch).
    """

    @user_errors()
    def __init__(self, options: Mapping[str, str]) -> None:
        super().__init__(options)
        self._created = catalog.of_create(options)
        self._options = parse_options(options) if self._created is None else _of_table(self._created)
        # Spark makes one for the commits of a streaming query when a run first commits, and keeps it: this orders runs.
        self._made_ms = SYSTEM.wall_ms()

    @classmethod
    def name(cls) -> str:
        return "sparklog"

    @user_errors()
    def schema(self) -> str | StructType:
        self._options.check_read()
        location = self._location_to_read()
        headers, columns = self._options.read.include_headers, self._options.read.columns
        if self._created is None:
            self._check_topics(location)
            return read_schema(headers, columns)
        catalog.check_create(self._options, location)
        return catalog.columns_with_options(headers, self._created)

    @user_errors()
    def reader(self, schema: StructType) -> SparklogBatchReader:
        from sparklog.datasource.reader import SparklogBatchReader

        self._take_options_of(schema)
        self._options.check_read()
        self._options.check_batch_read()
        check_table(self._options)
        warn_once((*self._options.warnings, *self._options.idle("batch")))
        return SparklogBatchReader(self._location_to_read(), self._options, self._projection(schema))

    def streamReader(self, schema: StructType) -> Any:  # noqa: N802
        from sparklog.datasource.reader import FailingStreamReader, SparklogStreamReader

        try:
            self._take_options_of(schema)
            self._options.check_read()
            self._options.check_stream_read()
            refuse_table(self._options)
            location = self._location_to_read()
            check_group_place(self._options.read, location)
            warn_once(self._options.warnings)
            reader = SparklogStreamReader(location, self._options, self._projection(schema))
            return stream_reader(reader, self._options.read)
        except SparklogError as error:
            # Raised here, Spark would show an UnboundLocalError of its own in its place.
            return stream_reader(FailingStreamReader(error))

    @user_errors()
    def writer(self, schema: StructType, overwrite: bool) -> SparklogBatchWriter:
        from sparklog.datasource.writer import SparklogBatchWriter, plan_write

        if overwrite:
            raise BadRequest("A log is append-only: write with mode('append'); to start afresh delete the topic")
        self._take_options_of(schema)
        self._options.check_write()
        self._options.check_batch_write()
        warn_once((*self._options.warnings, *self._options.idle("write")))
        if "checkpointlocation" in map(str.lower, self.options):
            warn_once([WITHOUT_CHECKPOINT])
        return SparklogBatchWriter(plan_write(resolve(self._options.path), self._options, schema))

    @user_errors()
    def streamWriter(self, schema: StructType, overwrite: bool) -> SparklogStreamWriter:  # noqa: N802
        from sparklog.datasource.writer import SparklogStreamWriter, plan_commit, plan_write

        # `overwrite` is output mode complete: each micro-batch appends the whole result, as with Kafka's sink.
        self._take_options_of(schema)
        self._options.check_write()
        self._options.check_stream_write()
        location = resolve(self._options.path)
        if COMMITS in sys.modules:
            return SparklogStreamWriter(plan_commit(location, self._options), self._made_ms)
        warn_once((*self._options.warnings, *self._options.idle("write")))
        return SparklogStreamWriter(plan_write(location, self._options, schema))

    def _take_options_of(self, schema: StructType) -> None:
        """Take the options of a table, which come with its columns. Raises BadRequest where no path is known."""
        if self._options.path is None:
            options = catalog.of_columns(schema, self.options)
            if not options:
                raise BadRequest(catalog.NO_OPTIONS)
            self._options = _of_table(options)

    def _projection(self, schema: StructType) -> Projection:
        check_chosen(schema, self._options.read.columns, self._options.read.include_headers)
        return projection(schema)

    def _check_topics(self, location: Location) -> None:
        """Raises BadRequest at `load` for a root without names of topics, and a topic's folder with those of others."""
        subscription = self._options.read.subscription
        if location.kind == (ROOT if subscription is None else TOPIC):
            from sparklog.datasource.subscription import Subscriber

            view = open_view(location, tailing=False, corrupt_records=self._options.read.corrupt_records)
            Subscriber(view, location, subscription).topics()

    def _location_to_read(self) -> Location:
        location = resolve(self._options.path)
        if location.kind == NOTHING:
            raise NotFound(missing(location))
        return location


def _of_table(options: Mapping[str, str]) -> Options:
    return parse_options(catalog.with_both_sides(options), table=True)
