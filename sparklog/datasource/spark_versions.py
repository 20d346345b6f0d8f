"""Fallbacks for features that are missing in PySpark 4.0 and 4.1. All other code is written for 4.2 and later.

| missing                                   | in       | instead                                                      |
|-------------------------------------------|----------|--------------------------------------------------------------|
| read limits, `Trigger.AvailableNow`       | 4.0, 4.1 | `LimitsInside` determines the latest offset without a start |
| `DataSourceStreamArrowWriter`             | 4.0      | a stream writer that is also a `DataSourceArrowWriter`       |
| `arrow_udf`, `DataFrame.repartitionById`  | 4.0      | a plain function of each row, and a shuffle by hash          |

With PySpark 4.0 and 4.1, a stream with `availableNow` runs one micro-batch, as with `once`. The rows are the same in
all releases.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from copy import copy
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamReader, DataSourceStreamWriter, InputPartition

from sparklog.datasource.offsets import OffsetJson
from sparklog.datasource.options import ReadOptions
from sparklog.datasource.spark_workers import warn_once

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

try:
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadLimit,
        ReadMaxRows,
        SupportsTriggerAvailableNow,
    )

    READ_LIMITS = True
except ImportError:
    READ_LIMITS = False

    class ReadLimit:  # type: ignore[no-redef]
        """A limit of a micro-batch, which Spark 4.2 passes to `latestOffset`."""

    class ReadAllAvailable(ReadLimit):  # type: ignore[no-redef,misc]
        """A limit that allows all available rows."""

    class ReadMaxRows(ReadLimit):  # type: ignore[no-redef,misc]
        """A limit of at most `max_rows` rows."""

        def __init__(self, max_rows: int) -> None:
            self.max_rows = max_rows

    class SupportsTriggerAvailableNow:  # type: ignore[no-redef]
        """A reader for which Spark 4.2 determines the end of an AvailableNow run at the start of the run."""


try:
    from pyspark.sql.datasource import DataSourceStreamArrowWriter
except ImportError:

    class DataSourceStreamArrowWriter(DataSourceStreamWriter, DataSourceArrowWriter):  # type: ignore[no-redef,misc]
        """A stream writer of Arrow batches. PySpark 4.0 only checks for a `DataSourceArrowWriter`, even in a stream."""


__all__ = [
    "DataSourceStreamArrowWriter",
    "ReadAllAvailable",
    "ReadLimit",
    "ReadMaxRows",
    "SupportsTriggerAvailableNow",
]

TRIGGER_UNKNOWN = (
    "this Spark does not report the trigger of a query (4.2 does): with availableNow or once, a run reads at most "
    "maxOffsetsPerTrigger or maxBytesPerTrigger; remove these options for such triggers"
)


def stream_reader(reader: Any, read: ReadOptions | None = None) -> Any:
    """Return a stream reader for this Spark release. `read` contains the options of the reader, or is None if the
    reader always fails.
    """
    return reader if READ_LIMITS else LimitsInside(reader, read)


class LimitsInside(DataSourceStreamReader):  # type: ignore[misc]
    """A stream reader for Spark releases that request the latest offset without passing a start and a limit.

    A result that differs from the previous result is the end of the next micro-batch, and the start of the micro-batch
    after it. A restarted query first plans from the latest offset of its checkpoint to the same offset, or repeats an
    unfinished micro-batch. Otherwise, the query is new.
    """

    def __init__(self, reader: Any, read: ReadOptions | None) -> None:
        self._reader = reader
        self._limited = read is not None and (read.max_offsets_per_trigger or read.max_bytes_per_trigger) is not None
        self._at: OffsetJson | None = None

    def __reduce__(self) -> Any:
        # A task receives the pickled form of the reader, because the task does not plan offsets.
        return copy, (self._reader,)

    def initialOffset(self) -> OffsetJson:  # noqa: N802
        offset: OffsetJson = self._reader.initialOffset()
        return offset

    def latestOffset(self) -> OffsetJson:  # noqa: N802
        start = self.initialOffset() if self._at is None else self._at
        if self._limited:
            warn_once([TRIGGER_UNKNOWN])
        self._at = self._reader.latestOffset(start, self._reader.getDefaultReadLimit())
        return self._at

    def partitions(self, start: OffsetJson, end: OffsetJson) -> list[InputPartition]:
        self._at = end
        if "$initial" not in start and start != end:
            # This is not the first micro-batch of the query, because Spark's wrapper for AvailableNow requests an end
            # before it plans the micro-batch of the checkpoint.
            end = {key: value for key, value in end.items() if key != "$start"}
        planned: list[InputPartition] = self._reader.partitions(start, end)
        return planned

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        batches: Iterator[pa.RecordBatch] = self._reader.read(partition)
        return batches

    def stop(self) -> None:
        self._reader.stop()


def udf_of_keys(function: Callable[[pa.Array], pa.Array]) -> Any:
    """Return an `arrow_udf` from binary values to integers. In PySpark 4.0, return a UDF that is called with single
    values.
    """
    from pyspark.sql import functions as F  # noqa: N812
    from pyspark.sql.types import IntegerType

    if hasattr(F, "arrow_udf"):
        return F.arrow_udf(function, IntegerType())

    def one(value: bytearray | None) -> object:
        import pyarrow as pa

        return function(pa.array([value], pa.binary()))[0].as_py()

    one.__annotations__.clear()  # Spark cannot evaluate the annotations, and would log a warning.
    return F.udf(one, IntegerType(), useArrow=False)


def repartition_by_id(df: DataFrame, n: int, column: str) -> DataFrame:
    """Shuffle rows into n tasks by a column of task numbers. In PySpark 4.0, a task may receive the rows of several
    task numbers or no rows.
    """
    shuffled: DataFrame
    if hasattr(df, "repartitionById"):
        shuffled = df.repartitionById(n, column)
    else:
        shuffled = df.repartition(n, column)
    return shuffled
