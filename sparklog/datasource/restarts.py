"""Restarts of streaming queries for which a Python process of Spark fails to start in time.

Spark gives some Python processes 10 seconds to start and connect, and this timeout is not configurable. On a busy host,
the timeout can be too short, and the query fails with "Python worker failed to connect back" before any code of
sparklog has run. It is safe to restart the query, because it continues from its checkpoint. docs/design/connect-back.md
contains measurements.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from sparklog.common.settings import ValueType, int64
from sparklog.datasource.session import check_pyspark

if TYPE_CHECKING:
    from pyspark.sql.streaming import StreamingQuery

LOST_WORKER = "Python worker failed to connect back"
MAX_RESTARTS = 10
_FUNCTION = ValueType("a function that starts the query", callable)


def run_query(start: Callable[[], StreamingQuery], *, max_restarts: int = MAX_RESTARTS) -> StreamingQuery:
    """Start a streaming query and wait until it ends. Restart the query if a Python process of Spark fails to start in
    time.

    Only the error "Python worker failed to connect back" restarts the query. All other errors are raised. This error is
    also raised after `max_restarts` consecutive restarts without a micro-batch in between.

    Args:
        start: A function that creates the reader and the writer, with a `checkpointLocation`, and starts the query. The
            function is called for each start. The function must also create the reader, because `load` may fail with
            the same error.
        max_restarts: The maximum number of consecutive restarts without progress.

    Returns:
        The query, which ended with `availableNow` or was stopped.

    Example:
        def copy():
            records = spark.readStream.format("sparklog").load("/data/log/orders")
            writer = records.writeStream.format("sparklog").option("topic", "copy").trigger(availableNow=True)
            return writer.option("checkpointLocation", "/data/checkpoints/copy").start("/data/log")

        sparklog.run_query(copy)
    """
    check_pyspark("sparklog.run_query")
    _FUNCTION.check("start", start)
    int64(0).check("max_restarts", max_restarts)
    return restart_lost(start, lambda query: query.awaitTermination(), max_restarts)


def restart_lost(
    start: Callable[[], StreamingQuery], wait: Callable[[StreamingQuery], object], max_restarts: int = MAX_RESTARTS
) -> StreamingQuery:
    """Run a query as `run_query` does. `wait` waits until the query ends, and raises its error."""
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import PySparkException

    from sparklog.datasource.spark_workers import warn

    restarts = 0
    while True:
        query: StreamingQuery | None = None
        try:
            query = start()
            wait(query)
            return query
        except (PySparkException, Py4JJavaError) as error:
            if LOST_WORKER not in str(error):
                raise
            restarts = 1 if query is not None and query.lastProgress is not None else restarts + 1
            if restarts > max_restarts:
                raise
            warn(f"{LOST_WORKER}: restarting the query ({restarts} of {max_restarts} consecutive restarts)")
