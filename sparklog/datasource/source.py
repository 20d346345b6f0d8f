"""The data source `sparklog`, as Spark's registry knows it."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

from sparklog.datasource.location import KAFKA_DIRECTORY, KAFKA_PARTITION, NOTHING, Location, missing, resolve
from sparklog.datasource.options import ReadOptions, parse_options
from sparklog.datasource.schema import projection, read_schema
from sparklog.datasource.user_errors import user_errors, warn_once
from sparklog.errors import BadRequest, NotFound, SparklogError
from sparklog.log.journal.env import SYSTEM

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from sparklog.datasource.batch_reader import SparklogBatchReader
    from sparklog.datasource.stream_reader import FailingStreamReader, SparklogStreamReader
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


class SparklogDataSource(DataSource):  # type: ignore[misc]
    """`spark.read.format("sparklog")`, `df.write`, `spark.readStream` and `df.writeStream`.

    Options are parsed and checked here, so that a mistake shows at `load` or `save` (a streaming sink's at its first
    micro-batch: nothing of ours runs earlier).
    """

    @user_errors
    def __init__(self, options: Mapping[str, str]) -> None:
        super().__init__(options)
        self._options = parse_options(options)
        # Spark makes one for the commits of a streaming query when a run of it first commits, and keeps it: what orders
        # the runs. In another place it says nothing.
        self._made_ms = SYSTEM.wall_ms()

    @classmethod
    def name(cls) -> str:
        return "sparklog"

    @user_errors
    def schema(self) -> str:
        self._options.check_read()
        self._location_to_read()
        return read_schema(self._options.read.include_headers)

    @user_errors
    def reader(self, schema: StructType) -> SparklogBatchReader:
        from sparklog.datasource.batch_reader import SparklogBatchReader

        self._options.check_read()
        self._options.check_batch_read()
        warn_once(self._options.warnings)
        return SparklogBatchReader(self._location_to_read(), self._options, projection(schema))

    def streamReader(self, schema: StructType) -> SparklogStreamReader | FailingStreamReader:  # noqa: N802
        from sparklog.datasource.stream_reader import FailingStreamReader, SparklogStreamReader

        try:
            self._options.check_read()
            self._options.check_stream_read()
            location = self._location_to_read()
            check_group_place(self._options.read, location)
            warn_once(self._options.warnings)
            return SparklogStreamReader(location, self._options, projection(schema))
        except SparklogError as error:
            # Raised here, Spark 4.2 would hide it behind an UnboundLocalError of its own.
            return FailingStreamReader(error)

    @user_errors
    def writer(self, schema: StructType, overwrite: bool) -> SparklogBatchWriter:
        from sparklog.datasource.writer import SparklogBatchWriter, plan_write

        if overwrite:
            raise BadRequest("A log is append-only: write with mode('append'); to start afresh delete the topic")
        self._options.check_write()
        self._options.check_batch_write()
        warn_once(self._options.warnings)
        return SparklogBatchWriter(plan_write(resolve(self._options.path), self._options, schema))

    @user_errors
    def streamWriter(self, schema: StructType, overwrite: bool) -> SparklogStreamWriter:  # noqa: N802
        from sparklog.datasource.writer import SparklogStreamWriter, plan_commit, plan_write

        # `overwrite` is output mode complete: each micro-batch appends the whole result, as with Kafka's sink.
        self._options.check_write()
        self._options.check_stream_write()
        location = resolve(self._options.path)
        if COMMITS in sys.modules:
            return SparklogStreamWriter(plan_commit(location, self._options), self._made_ms)
        warn_once(self._options.warnings)
        return SparklogStreamWriter(plan_write(location, self._options, schema))

    def _location_to_read(self) -> Location:
        location = resolve(self._options.path)
        if location.kind == NOTHING:
            raise NotFound(missing(location))
        return location
