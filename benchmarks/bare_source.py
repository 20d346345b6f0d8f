"""The ceiling: a Python data source and sink that do no format work at all.

`bare` reads by yielding one prepared Arrow batch again and again and writes by counting rows. What Spark needs to move
records between the JVM and Python is all that is left, so a real source is measured as a share of it.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from sparklog.storage.fork_safety import freeze_gc

SCHEMA = "key binary, value binary, topic string, partition int, offset long, timestamp timestamp"


@functools.cache
def prepared_batch(rows: int, value_bytes: int) -> pa.RecordBatch:
    """`rows` records of a 16-byte key and a value of `value_bytes`, once in each worker; columns as in `SCHEMA`."""
    keys = [b"key-%012d" % i for i in range(rows)]
    values = [(b"%08d" % i).ljust(value_bytes, b"x") for i in range(rows)]
    return pa.RecordBatch.from_arrays(
        [
            pa.array(keys, pa.binary()),
            pa.array(values, pa.binary()),
            pa.array(["events"] * rows, pa.string()),
            pa.array([0] * rows, pa.int32()),
            pa.array(range(rows), pa.int64()),
            pa.array([1_700_000_000_000_000] * rows, pa.timestamp("us", tz="UTC")),
        ],
        names=["key", "value", "topic", "partition", "offset", "timestamp"],
    )


@dataclass
class Counted(WriterCommitMessage):  # type: ignore[misc]
    """Rows one task received."""

    rows: int


class Part(InputPartition):  # type: ignore[misc]
    """Number of times that one task repeats the batch."""

    def __init__(self, repeats: int) -> None:
        super().__init__(repeats)


class BareReader(DataSourceReader):  # type: ignore[misc]
    """Options: `rows` in all, `tasks`, `valueBytes`, `batchRows`."""

    def __init__(self, options: dict[str, str], schema: StructType) -> None:
        self.rows = int(options.get("rows", "1000"))
        self.tasks = int(options.get("tasks", "2"))
        self.value_bytes = int(options.get("valuebytes", "104"))
        self.batch_rows = int(options.get("batchrows", "10000"))
        self.names = schema.fieldNames()

    def partitions(self) -> list[InputPartition]:
        batches = -(-self.rows // self.batch_rows)
        return [Part(batches // self.tasks + (i < batches % self.tasks)) for i in range(self.tasks)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        batch = prepared_batch(self.batch_rows, self.value_bytes).select(self.names)
        for _ in range(partition.value):
            freeze_gc()
            yield batch


class BareStreamReader(DataSourceStreamReader):  # type: ignore[misc]
    """A micro-batch is one batch a task: what is measured is the way, not the load. With `rows`, one has them all."""

    def __init__(self, options: dict[str, str], schema: StructType) -> None:
        self.once = "rows" in options
        self.reader = BareReader({**options, "batchrows": options.get("batchrows", "100")}, schema)
        self.at = 0

    def initialOffset(self) -> dict[str, int]:  # noqa: N802 (Spark's name)
        return {"at": 0}

    def latestOffset(self) -> dict[str, int]:  # noqa: N802 (Spark's name)
        self.at = 1 if self.once else self.at + 1
        return {"at": self.at}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        return self.reader.partitions() if self.once else [Part(1) for _ in range(self.reader.tasks)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return self.reader.read(partition)


class BareWriter(DataSourceArrowWriter):  # type: ignore[misc]
    """Takes rows and drops them."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        freeze_gc()
        return Counted(sum(batch.num_rows for batch in iterator))

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        pass

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        pass


class BareStreamWriter(DataSourceStreamArrowWriter):  # type: ignore[misc]
    """Writer of a stream that drops its rows."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        freeze_gc()
        return Counted(sum(batch.num_rows for batch in iterator))

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 (Spark's name)
        pass

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 (Spark's name)
        pass


class BareSource(DataSource):  # type: ignore[misc]
    """`spark.read.format("bare")`."""

    @classmethod
    def name(cls) -> str:
        return "bare"

    def schema(self) -> str:
        return SCHEMA

    def reader(self, schema: StructType) -> DataSourceReader:
        return BareReader(self.options, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 (Spark's name)
        return BareStreamReader(self.options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> BareWriter:
        return BareWriter()

    def streamWriter(self, schema: StructType, overwrite: bool) -> BareStreamWriter:  # noqa: N802 (Spark's name)
        return BareStreamWriter()
