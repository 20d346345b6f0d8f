"""The lag of Spark's streaming queries, measured in the driver: `lags = sparklog.watch(spark)`.

If the source is a Python data source, Spark's query progress does not contain metrics, but contains two sets of
offsets: the end of the latest micro-batch, and the end of the log when the micro-batch was planned. The difference
between these offsets corresponds to `offsetsBehindLatest` in Spark's Kafka source. The lag includes only offsets that
the query can read. If the isolation level is read_committed, these offsets end at the last stable offset. In contrast,
the lag of a consumer group is computed from the log end offset.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from dataclasses import dataclass
from threading import Thread
from typing import TYPE_CHECKING, Any

from sparklog.datasource.offsets import StreamOffset, parse_partition_numbers
from sparklog.datasource.session import SESSION, check_pyspark, is_connect
from sparklog.errors import BadRequest
from sparklog.output import write_output
from sparklog.storage.fork_safety import ForkLock
from sparklog.tools.report.metrics import Metric, text_of

if TYPE_CHECKING:
    import os

    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.listener import QueryProgressEvent, QueryTerminatedEvent

try:
    from pyspark.sql.streaming.listener import StreamingQueryListener
except ImportError:  # `help(sparklog)` must work without Spark.
    StreamingQueryListener = object

_LOG = logging.getLogger("sparklog.lag")


@dataclass(frozen=True, slots=True)
class QueryLag:
    """The lag of one topic of a query: the number of offsets between the latest micro-batch and the log end.

    Attributes:
        query: The name of the query, or its id if it has no name.
        run_id: The id of the run.
        batch_id: The latest micro-batch.
        source: The number of the source of the query, starting at 0.
        topic: The name of the topic.
        partitions: The number of partitions.
        behind: The lag, summed over the partitions.
        max_behind: The largest lag of a partition.
    """

    query: str
    run_id: str
    batch_id: int
    source: int
    topic: str
    partitions: int
    behind: int
    max_behind: int


def watch(
    spark: SparkSession,
    *,
    tell: Callable[[str], None] | None = None,
    metrics_file: str | os.PathLike[str] | None = None,
) -> QueryLags:
    """Measure the lag of all streaming queries of a session.

    Args:
        spark: The session.
        tell: A function that is called with a line per micro-batch, such as `print`. By default, lines are logged to
            the logger `sparklog.lag` at level INFO.
        metrics_file: A file for the textfile collector of the node exporter, which is rewritten after each micro-batch.
            Each driver must use its own file.

    Returns:
        A listener. Call it to get the current lags, and call `stop()` at the end.

    Example:
        lags = sparklog.watch(spark, tell=print)
        print(lags())
        lags.stop()
    """
    check_pyspark("sparklog.watch")
    SESSION.check("spark", spark)
    lags = QueryLags(spark, tell or _LOG.info, None if metrics_file is None else str(metrics_file))
    if is_connect(spark):
        _add_from_daemon(spark, lags)
    else:
        spark.streams.addListener(lags)
    return lags


def _add_from_daemon(spark: SparkSession, lags: QueryLags) -> None:
    """Add a listener to Spark Connect in a daemon thread, and raise the errors of that thread here.

    Spark Connect waits for events in a thread, which is a daemon thread only if the calling thread is a daemon thread.
    If it is not a daemon thread, the process does not exit.
    """
    failures: list[BaseException] = []

    def add() -> None:
        try:
            spark.streams.addListener(lags)
        except BaseException as error:  # noqa: BLE001 - raised below
            failures.append(error)

    adding = Thread(target=add, daemon=True)
    adding.start()
    adding.join()
    if failures:
        raise failures[0]


class QueryLags(StreamingQueryListener):  # type: ignore[misc]
    """The listener of `watch`. Spark calls it in a separate thread, one event after the other."""

    def __init__(self, spark: SparkSession, tell: Callable[[str], None], metrics_file: str | None) -> None:
        self._spark = spark
        self._tell = tell
        self._metrics_file = metrics_file
        self._lock = ForkLock()
        self._lags: dict[str, tuple[QueryLag, ...]] = {}

    def __call__(self) -> list[QueryLag]:
        """Return the lags of all running queries, sorted by query, source and topic."""
        with self._lock:
            lags = [item for items in self._lags.values() for item in items]
        return sorted(lags, key=lambda item: (item.query, item.run_id, item.source, item.topic))

    def stop(self) -> None:
        """Stop measuring."""
        self._spark.streams.removeListener(self)

    def onQueryStarted(self, event: object) -> None:  # noqa: N802
        """Do nothing, because there is no lag before the first micro-batch."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802
        progress = event.progress
        query = progress.name or str(progress.id)
        lags: list[QueryLag] = []
        for index, source in enumerate(progress.sources):
            lags += source_lags(query, str(progress.runId), progress.batchId, index, source)
        if lags:
            with self._lock:
                self._lags[str(progress.runId)] = tuple(lags)
            parts = ", ".join(f"{item.topic} {item.behind}" for item in lags)
            total = sum(item.behind for item in lags)
            self._tell(f"query {query}, batch {progress.batchId}: {total} offsets behind latest ({parts})")
            self._write()

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802
        with self._lock:
            removed = self._lags.pop(str(event.runId), None)
        if removed is not None:
            self._write()

    def _write(self) -> None:
        if self._metrics_file is None:
            return
        try:
            write_output(self._metrics_file, text_of(_metrics(self())), "metrics_file")
        except BadRequest as error:
            _LOG.warning("%s", error)


def source_lags(query: str, run_id: str, batch_id: int, index: int, source: Any) -> list[QueryLag]:
    """Return the lag of each topic of a `SourceProgress`. The result is empty for other sources, and for a source that
    was not planned.
    """
    try:
        # The offsets are either a JSON string or parsed JSON.
        end, latest = (json.loads(x) if isinstance(x, str) else x for x in (source.endOffset, source.latestOffset))
        if not isinstance(end, dict) or "$ids" not in end:
            return []
        positions = StreamOffset.from_json(end).positions
        log_ends = parse_partition_numbers(latest, "offset", lowest=0)
    except (BadRequest, ValueError):
        return []
    lags = []
    for topic, ends in sorted(log_ends.items()):
        read = positions.get(topic, {})
        behind = [max(0, offset - read[partition]) for partition, offset in ends.items() if partition in read]
        if behind:
            lags.append(QueryLag(query, run_id, batch_id, index, topic, len(behind), sum(behind), max(behind)))
    return lags


def _metrics(lags: list[QueryLag]) -> list[Metric]:
    labels = [{"query": e.query, "run_id": e.run_id, "source": e.source, "topic": e.topic} for e in lags]
    return [
        Metric(f"sparklog_query_{name}", text, list(zip(labels, values, strict=True)))
        for name, text, values in (
            ("offsets_behind_latest", "Number of offsets that the query has not read.", [item.behind for item in lags]),
            (
                "max_offsets_behind_latest",
                "Maximum number of unread offsets in a partition.",
                [item.max_behind for item in lags],
            ),
            ("batch_id", "Id of the latest micro-batch.", [item.batch_id for item in lags]),
        )
    ]
