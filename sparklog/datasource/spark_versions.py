"""Fallbacks for features missing in PySpark 4.0 and 4.1, in one place; all other code is written for 4.2 and later.

| missing                                   | in       | instead                                                      |
|-------------------------------------------|----------|--------------------------------------------------------------|
| read limits, `Trigger.AvailableNow`       | 4.0, 4.1 | `LimitsInside` determines the latest offset without a start |
| `DataSourceStreamArrowWriter`             | 4.0      | a stream writer that is a `DataSourceArrowWriter` as well    |
| `arrow_udf`, `DataFrame.repartitionById`  | 4.0      | a plain function of each row, and a shuffle by hash          |

A stream on 4.0 and 4.1 runs one micro-batch with `availableNow`, as with `once`. The rows are the same everywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from copy import copy
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamReader, DataSourceStreamWriter, InputPartition

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
        """No limit."""

    class ReadMaxRows(ReadLimit):  # type: ignore[no-redef,misc]
        """At most `max_rows` rows."""

        def __init__(self, max_rows: int) -> None:
            self.max_rows = max_rows

    class SupportsTriggerAvailableNow:  # type: ignore[no-redef]
        """Spark 4.2 fixes the end of an AvailableNow run with such a reader."""


try:
    from pyspark.sql.datasource import DataSourceStreamArrowWriter
except ImportError:

    class DataSourceStreamArrowWriter(DataSourceStreamWriter, DataSourceArrowWriter):  # type: ignore[no-redef,misc]
        """A stream writer of Arrow batches; 4.0 only checks for a `DataSourceArrowWriter`, even in a stream."""


__all__ = [
    "DataSourceStreamArrowWriter",
    "ReadAllAvailable",
    "ReadLimit",
    "ReadMaxRows",
    "SupportsTriggerAvailableNow",
]

Document = dict[str, object]

TRIGGER_UNKNOWN = (
    "this Spark does not report the trigger of a query (4.2 does): with availableNow or once, a run reads at most "
    "maxOffsetsPerTrigger or maxBytesPerTrigger; remove these options for such triggers"
)


def stream_reader(reader: Any, read: ReadOptions | None = None) -> Any:
    """Return a stream reader for this Spark; `read` has its options, None for one that always fails."""
    return reader if READ_LIMITS else LimitsInside(reader, read)


class LimitsInside(DataSourceStreamReader):  # type: ignore[misc]
    """A stream reader for a Spark that requests the latest offset without passing a start and a limit.

    A result that differs from the previous one is the end of the next micro-batch, and the start of the one after it. A
    restarted query first plans from the latest offset of its checkpoint to the same offset, or repeats an unfinished
    micro-batch. Otherwise the query is new.
    """

    def __init__(self, reader: Any, read: ReadOptions | None) -> None:
        self._reader = reader
        self._limited = read is not None and (read.max_offsets_per_trigger or read.max_bytes_per_trigger) is not None
        self._at: Document | None = None

    def __reduce__(self) -> Any:
        # A task gets the pickled form of the reader, because it does not plan offsets.
        return copy, (self._reader,)

    def initialOffset(self) -> Document:  # noqa: N802
        offset: Document = self._reader.initialOffset()
        return offset

    def latestOffset(self) -> Document:  # noqa: N802
        start = self.initialOffset() if self._at is None else self._at
        if self._limited:
            warn_once([TRIGGER_UNKNOWN])
        self._at = self._reader.latestOffset(start, self._reader.getDefaultReadLimit())
        return self._at

    def partitions(self, start: Document, end: Document) -> list[InputPartition]:
        self._at = end
        if "$initial" not in start and start != end:
            # This is not the first micro-batch of the query, because Spark's wrapper for AvailableNow requests an end
            # before it plans the checkpoint's.
            end = {key: value for key, value in end.items() if key != "$start"}
        planned: list[InputPartition] = self._reader.partitions(start, end)
        return planned

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        batches: Iterator[pa.RecordBatch] = self._reader.read(partition)
        return batches

    def stop(self) -> None:
        self._reader.stop()


def udf_of_keys(function: Callable[[pa.Array], pa.Array]) -> Any:
    """Return an `arrow_udf` from binary values to integers; on 4.0, a UDF that is called with single values."""
    from pyspark.sql import functions as F  # noqa: N812
    from pyspark.sql.types import IntegerType

    if hasattr(F, "arrow_udf"):
        return F.arrow_udf(function, IntegerType())

    def one(value: bytearray | None) -> object:
        import pyarrow as pa

        return function(pa.array([value], pa.binary()))[0].as_py()

    one.__annotations__.clear()  # Spark would try to evaluate them, and warn
    return F.udf(one, IntegerType(), useArrow=False)


def repartition_by_id(df: DataFrame, n: int, column: str) -> DataFrame:
    """Shuffle into n tasks by a column of task numbers; on 4.0 a task may get the rows of several or no numbers."""
    shuffled: DataFrame
    if hasattr(df, "repartitionById"):
        shuffled = df.repartitionById(n, column)
    else:
        shuffled = df.repartition(n, column)
    return shuffled
