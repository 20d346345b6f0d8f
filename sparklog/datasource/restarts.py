"""Streaming queries that start again if Spark loses a Python process at its start.

Spark gives a Python process 10 seconds to start and connect, which no setting changes. On a busy machine that is too
short now and then, and the query fails with "Python worker failed to connect back" before sparklog has run. Starting
it again is safe: it continues from its checkpoint. docs/design/connect-back.md has figures.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from sparklog.datasource.session import check_pyspark
from sparklog.errors import BadRequest

if TYPE_CHECKING:
    from pyspark.sql.streaming import StreamingQuery

LOST_WORKER = "Python worker failed to connect back"


def run_query(start: Callable[[], StreamingQuery], *, max_restarts: int = 10) -> StreamingQuery:
    """Start a streaming query and wait for its end; start it again if Spark lost a Python process at its start.

    Only the error "Python worker failed to connect back" starts it again. Every other error is raised, and so is this
    one after `max_restarts` restarts in a row without a micro-batch in between.

    Args:
        start: reads, writes and starts the query, with a `checkpointLocation`; called for each start. It makes the
            reader, too, because `load` may meet the same error.
        max_restarts: restarts in a row without progress.

    Returns:
        The query that ended, by `availableNow` or because it was stopped.

    Example:
        def copy():
            records = spark.readStream.format("sparklog").load("/data/log/orders")
            writer = records.writeStream.format("sparklog").option("topic", "copy")
            return writer.option("checkpointLocation", "/data/checkpoints/copy").start("/data/log")

        sparklog.run_query(copy)
    """
    check_pyspark("sparklog.run_query")
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import PySparkException

    from sparklog.datasource.spark_workers import warn

    if max_restarts < 0:
        raise BadRequest(f"max_restarts must be 0 or more, found {max_restarts!r}")
    restarts = 0
    while True:
        query: StreamingQuery | None = None
        try:
            query = start()
            query.awaitTermination()
            return query
        except (PySparkException, Py4JJavaError) as error:
            if LOST_WORKER not in str(error):
                raise
            restarts = 1 if query is not None and query.lastProgress is not None else restarts + 1
            if restarts > max_restarts:
                raise
            warn(f"{LOST_WORKER}: starting the query again ({restarts} of {max_restarts} restarts in a row)")
