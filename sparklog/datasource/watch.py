"""The lag of Spark's streaming queries, seen in the driver: `lags = sparklog.watch(spark)`.

Spark's progress of a Python source has two sets of offsets and no figures: where the newest micro-batch ended, and what
was there when it was planned. Between them is `offsetsBehindLatest` of Spark's Kafka source. Offsets are those that
a query can read, to the last stable ones under read_committed; the lag of a consumer group counts to the log end.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from dataclasses import dataclass
from threading import Thread
from typing import TYPE_CHECKING, Any

from sparklog.datasource.offsets import StreamOffset, parse_partition_numbers
from sparklog.datasource.session import SESSION, check_pyspark
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
except ImportError:  # `help(sparklog)` works without Spark, `watch` does not
    StreamingQueryListener = object

_LOG = logging.getLogger("sparklog.lag")


@dataclass(frozen=True, slots=True)
class QueryLag:
    """One topic of a query's source: offsets between the end of its newest micro-batch and what was there to read.

    `query`: its name, or its id where it has none. `source` counts the sources of the query from 0. `behind` is the sum
    over `partitions` partitions, `max_behind` the most of one.
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
    """Watch how far all streaming queries of a session are behind.

    Args:
        spark: the session.
        tell: takes a line per micro-batch, such as `print`; default: the logger `sparklog.lag`, at level INFO.
        metrics_file: written again with each micro-batch, for the node exporter's textfile collector. Give each driver
            a file of its own.

    Returns:
        A listener: call it for the figures, `stop()` it to end.

    Example:
        lags = sparklog.watch(spark, tell=print)
        print(lags())
        lags.stop()
    """
    check_pyspark("sparklog.watch")
    SESSION.check("spark", spark)
    lags = QueryLags(spark, tell or _LOG.info, None if metrics_file is None else str(metrics_file))
    if type(spark).__module__.startswith("pyspark.sql.connect"):
        _add_from_daemon(spark, lags)
    else:
        spark.streams.addListener(lags)
    return lags


def _add_from_daemon(spark: SparkSession, lags: QueryLags) -> None:
    """Add a listener of Spark Connect, which waits for events in a thread like the one that adds it.

    It would keep the process from ending, unless that is a daemon. An error of it is raised here.
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
    """See `watch`. Spark calls it in a thread of its own, one event after the other."""

    def __init__(self, spark: SparkSession, tell: Callable[[str], None], metrics_file: str | None) -> None:
        self._spark = spark
        self._tell = tell
        self._metrics_file = metrics_file
        self._lock = ForkLock()
        self._found: dict[str, tuple[QueryLag, ...]] = {}

    def __call__(self) -> list[QueryLag]:
        """The figures of all running queries, in the order of queries, sources and topics."""
        with self._lock:
            lags = [item for items in self._found.values() for item in items]
        return sorted(lags, key=lambda item: (item.query, item.run_id, item.source, item.topic))

    def stop(self) -> None:
        """Watch no more."""
        self._spark.streams.removeListener(self)

    def onQueryStarted(self, event: object) -> None:  # noqa: N802
        """There is no figure before the first micro-batch."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802
        progress = event.progress
        query = progress.name or str(progress.id)
        lags: list[QueryLag] = []
        for number, source in enumerate(progress.sources):
            lags += source_lags(query, str(progress.runId), progress.batchId, number, source)
        if lags:
            with self._lock:
                self._found[str(progress.runId)] = tuple(lags)
            parts = ", ".join(f"{item.topic} {item.behind}" for item in lags)
            total = sum(item.behind for item in lags)
            self._tell(f"query {query}, batch {progress.batchId}: {total} offsets behind latest ({parts})")
            self._write()

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802
        with self._lock:
            gone = self._found.pop(str(event.runId), None)
        if gone is not None:
            self._write()

    def _write(self) -> None:
        if self._metrics_file is None:
            return
        try:
            write_output(self._metrics_file, text_of(_metrics(self())), "metrics_file")
        except BadRequest as error:
            _LOG.warning("%s", error)


def source_lags(query: str, run_id: str, batch_id: int, number: int, source: Any) -> list[QueryLag]:
    """Return one item per topic of a `SourceProgress`; none if it is no source of sparklog's or was not planned."""
    try:
        # JSON as text, or what it says.
        end, latest = (json.loads(x) if isinstance(x, str) else x for x in (source.endOffset, source.latestOffset))
        if not isinstance(end, dict) or "$ids" not in end:
            return []
        positions = StreamOffset.from_json(end).positions
        newest = parse_partition_numbers(latest, "offset", lowest=0)
    except (BadRequest, ValueError):
        return []
    lags = []
    for topic, ends in sorted(newest.items()):
        read = positions.get(topic, {})
        behind = [max(0, offset - read[partition]) for partition, offset in ends.items() if partition in read]
        if behind:
            lags.append(QueryLag(query, run_id, batch_id, number, topic, len(behind), sum(behind), max(behind)))
    return lags


def _metrics(lags: list[QueryLag]) -> list[Metric]:
    labels = [{"query": e.query, "run_id": e.run_id, "source": e.source, "topic": e.topic} for e in lags]
    return [
        Metric(f"sparklog_query_{name}", text, list(zip(labels, values, strict=True)))
        for name, text, values in (
            ("offsets_behind_latest", "Offsets that a query had not read.", [item.behind for item in lags]),
            ("max_offsets_behind_latest", "The most of one partition.", [item.max_behind for item in lags]),
            ("batch_id", "The newest micro-batch.", [item.batch_id for item in lags]),
        )
    ]
