"""The data source `sparklog` that is registered with Spark."""

from __future__ import annotations

import sys
from collections.abc import Container, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource

from sparklog.datasource import catalog
from sparklog.datasource.options import Options, ReadOptions, parse_options
from sparklog.datasource.schema import check_selected, projection, read_columns, read_schema
from sparklog.datasource.spark_versions import stream_reader
from sparklog.datasource.spark_workers import user_errors, warn_once
from sparklog.datasource.table_view import check_table, reject_table
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

    from sparklog.datasource.decoded_columns import DecodedColumn
    from sparklog.datasource.read_task import ReadTask
    from sparklog.datasource.reader import SparklogBatchReader
    from sparklog.datasource.writer import SparklogBatchWriter, SparklogStreamWriter

COMMIT_RUNNER = "pyspark.sql.worker.python_streaming_sink_runner"
"""Name of a module that is loaded only in the process in which Spark creates a streaming writer to call `commit`."""


def check_group_location(read: ReadOptions, location: Location) -> None:
    """Raise BadRequest for a stream with a consumer group if the location is read-only."""
    if read.group_id is not None and location.kind in (KAFKA_DIRECTORY, KAFKA_PARTITION):
        raise BadRequest(
            f"A stream with kafka.group.id commits its offsets to the group, but {location.path} is a {location.kind}, "
            "which is read-only: remove kafka.group.id, or import the directory (`sparklog import`) and read the root"
        )


WITHOUT_CHECKPOINT = (
    "Option 'checkpointLocation' has no effect in a batch write: txnAppId and txnVersion make the write idempotent"
)


class SparklogDataSource(DataSource):  # type: ignore[misc]
    """The data source behind `spark.read.format("sparklog")`, `df.write`, `spark.readStream` and `df.writeStream`.

    The constructor checks the options, so that errors are raised by `load` or `save`, or by the first micro-batch of a
    sink.
    """

    @user_errors()
    def __init__(self, options: Mapping[str, str]) -> None:
        super().__init__(options)
        self._created = catalog.of_create(options)
        self._options = parse_options(options) if self._created is None else _of_table(self._created)
        # Spark creates one instance for the commits of a streaming run at the first commit, and reuses it. The creation
        # times therefore order the runs of a query.
        self._created_ms = SYSTEM.wall_ms()

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
        else:
            catalog.check_create(self._options, location)
        names = read_columns(headers, columns)
        types = {name: column.spark_type for name, column in self._decoded_columns(location, names).items()}
        if self._created is not None:
            return catalog.columns_with_options(names, self._created, types)
        return catalog.columns_of_types(names, types) if types else read_schema(headers, columns)

    @user_errors()
    def reader(self, schema: StructType) -> SparklogBatchReader:
        from sparklog.datasource.reader import SparklogBatchReader

        self._load_table_options(schema)
        self._options.check_read()
        self._options.check_batch_read()
        check_table(self._options)
        warn_once((*self._options.warnings, *self._options.idle("batch")))
        return SparklogBatchReader(self._task(self._location_to_read(), schema))

    def streamReader(self, schema: StructType) -> Any:  # noqa: N802
        from sparklog.datasource.reader import SparklogStreamReader, failing_stream_reader, open_source

        try:
            self._load_table_options(schema)
            self._options.check_read()
            self._options.check_stream_read()
            reject_table(self._options)
            location = self._location_to_read()
            check_group_location(self._options.read, location)
            warn_once(self._options.warnings)
            task = self._task(location, schema)
            return stream_reader(SparklogStreamReader(task, partial(open_source, task)), self._options.read)
        except SparklogError as error:
            return stream_reader(failing_stream_reader(error))

    @user_errors()
    def writer(self, schema: StructType, overwrite: bool) -> SparklogBatchWriter:
        from sparklog.datasource.writer import SparklogBatchWriter, plan_write

        if overwrite:
            raise BadRequest("A log is append-only: use mode('append'), or delete the topic to start over")
        self._load_table_options(schema)
        self._options.check_write()
        self._options.check_batch_write()
        warn_once((*self._options.warnings, *self._options.idle("write")))
        if "checkpointlocation" in map(str.lower, self.options):
            warn_once([WITHOUT_CHECKPOINT])
        return SparklogBatchWriter(plan_write(resolve(self._options.path), self._options, schema))

    @user_errors()
    def streamWriter(self, schema: StructType, overwrite: bool) -> SparklogStreamWriter:  # noqa: N802
        from sparklog.datasource.writer import SparklogStreamWriter, plan_commit, plan_write

        # `overwrite` corresponds to the output mode `complete`. Each micro-batch appends the entire result, as Kafka's
        # sink does.
        self._load_table_options(schema)
        self._options.check_write()
        self._options.check_stream_write()
        location = resolve(self._options.path)
        if COMMIT_RUNNER in sys.modules:
            return SparklogStreamWriter(plan_commit(location, self._options), self._created_ms)
        warn_once((*self._options.warnings, *self._options.idle("write")))
        return SparklogStreamWriter(plan_write(location, self._options, schema))

    def _load_table_options(self, schema: StructType) -> None:
        """Use the options of a table, which are stored in its columns. Raises BadRequest if there is no path."""
        if self._options.path is None:
            options = catalog.of_columns(schema, self.options)
            if not options:
                raise BadRequest(catalog.NO_OPTIONS)
            self._options = _of_table(options)

    def _task(self, location: Location, schema: StructType) -> ReadTask:
        from sparklog.datasource.read_task import ReadTask

        read = self._options.read
        check_selected(schema, read.columns, read.include_headers)
        return ReadTask(location, read, projection(schema, self._decoded_columns(location, schema.fieldNames())))

    def _decoded_columns(self, location: Location, names: Container[str]) -> dict[str, DecodedColumn]:
        if not self._options.read.decoded:
            return {}
        from sparklog.datasource.decoded_opening import decoded_columns

        return decoded_columns(self._options.read, location, names)

    def _check_topics(self, location: Location) -> None:
        """Raise BadRequest in `load` for a root without topic names, or a topic directory with other topic names."""
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
    return parse_options(catalog.complete_topic_options(options), table=True)
