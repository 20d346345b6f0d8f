"""Stream the topics of a Kafka directory, or of a sparklog root, into a sparklog root, exactly once.

A run with the same checkpoint resumes where the last run stopped. Records keep their key, value, headers and timestamp.
If a record does not have a timestamp, the time of the write is used. Topics keep their names, unless `--topic` writes
all records to one topic. Without `--follow`, the job ends when it has written the records that existed at its start.
"""

from __future__ import annotations

import math
import os
import re
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from itertools import repeat
from typing import Annotated, ParamSpec

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import Column, SparkSession
from pyspark.sql.functions import col, lit, timestamp_millis, when
from pyspark.sql.streaming import StreamingQuery

import sparklog
from sparklog.common.units import count
from sparklog.console.options import RootOption, integer_option
from sparklog.console.parameters import Option
from sparklog.datasource.options import parse_options
from sparklog.datasource.restarts import restart_lost
from sparklog.datasource.spark_versions import READ_LIMITS
from sparklog.datasource.subscription import Subscriber
from sparklog.errors import BadRequest, Unavailable
from sparklog.jobs.common import DONE, job, parse
from sparklog.log.journal.names import check_id, check_topic_name
from sparklog.maintenance.spark_runner import quiet_session
from sparklog.maintenance.table_runs import CopiedRecords
from sparklog.opening import NOTHING, ROOT, TOPIC, open_log, open_view, reject_inside, resolve
from sparklog.output import StatusLine

P = ParamSpec("P")
PACKAGES = "spark.jars.packages"
COLUMNS = ("key", "value", "headers", "timestamp")


@contextmanager
def streaming_session(
    name: str, log_level: str = "WARN", settings: Mapping[str, str] | None = None
) -> Iterator[SparkSession]:
    """Start Spark with the settings for streaming to a root, and stop it at the end."""
    settings = settings or {}
    builder = sparklog.configure(SparkSession.builder).config(map=dict(settings))
    spark = (
        _fetching_session(builder, name, log_level) if PACKAGES in settings else quiet_session(builder, name, log_level)
    )
    try:
        yield spark
    finally:
        spark.stop()


def _fetching_session(builder: SparkSession.Builder, name: str, log_level: str) -> SparkSession:
    """Start Spark, which first downloads packages. Raises `Unavailable` with Ivy's error if the download fails."""
    reasons: list[str] = []
    try:
        with without_ivy(reasons):
            return quiet_session(builder, name, log_level)
    except PySparkException as error:
        if error.getCondition() != "JAVA_GATEWAY_EXITED":
            raise
    raise Unavailable(fetch_problem(reasons))


_NOT_FETCHED = re.compile(r"(?:download failed|unresolved dependency): ([\w.-]+)#([\w.-]+);")


def fetch_problem(reasons: Sequence[str]) -> str:
    """Return the error message for a JVM that failed to fetch packages. `reasons` are the lines about failures."""
    reason = reasons[-1].partition("RuntimeException: ")[2] or reasons[-1] if reasons else "unknown cause"
    remove = "remove incomplete files below ~/.m2/repository and ~/.ivy2"
    if (package := _NOT_FETCHED.search(reason)) is not None:
        remove = f"remove ~/.m2/repository/{package[1].replace('.', '/')}/{package[2]} if it is incomplete"
    return (
        f"Spark failed to fetch its packages ({reason}); check network and proxy, {remove}, or start this job with "
        "spark-submit and --jars or --packages"
    )


def streaming_job(name: str) -> Callable[[Callable[P, int]], Callable[P, int]]:
    """Return the decorator `job` for a job with a streaming query, which also handles Spark errors."""
    again = "the next run with this checkpoint resumes where this run stopped"
    return job(name, after_interrupt=again, foreign=(PySparkException,), reason=reason)


_RAISED = re.compile(r"^pyspark\.errors\.\S+: (.+?)(?: SQLSTATE: \w+)?$", re.MULTILINE)
"""The line of a Python traceback that contains the Spark error."""


def reason(text: str) -> str:
    """Return the line of a Spark error that contains the cause.

    If `foreachBatch` failed, return the innermost cause.
    """
    first = text.splitlines()[0]
    if "FOREACH_BATCH_USER_FUNCTION_ERROR" not in first:
        return first
    causes = [line.removeprefix("Caused by: ") for line in text.splitlines() if line.startswith("Caused by: ")]
    return (causes or _RAISED.findall(text) or [first])[-1]


def check_source(path: str, **options: str | None) -> list[str]:
    """Raise an error if a log cannot be read or options are invalid. The check runs before Spark starts, which takes
    seconds. Return the topics to read.
    """
    read = parse_options({name: value for name, value in options.items() if value is not None}).read
    location = resolve(path)
    return Subscriber(open_view(location, tailing=False), location, read.subscription).topics()


def check_target(path: str) -> None:
    """Raise an error if a root cannot be written. The check runs before Spark starts. The root may not exist yet."""
    location = resolve(path)
    if location.kind == NOTHING:
        reject_inside(location.root)
    else:
        open_log(location)


def check_not_itself(copy: Copy, topics: Sequence[str]) -> None:
    """Raise `BadRequest` if records of `topics` would be written to the topic from which they are read."""
    source = resolve(copy.source)
    is_same_root = source.kind in (ROOT, TOPIC) and source.root == resolve(copy.root).root
    if is_same_root and (copy.topic is None or copy.topic in topics):
        raise BadRequest(
            "a topic cannot be copied to itself; specify another topic with --topic, or another root with --root"
        )


def known_timestamp() -> Column:
    """Return the timestamp column with null instead of -1, so that the time of the write is used for records without a
    timestamp.
    """
    return when(col("timestamp") >= timestamp_millis(lit(0)), col("timestamp"))


def follow_to_end(name: str, start: Callable[[], StreamingQuery], target: str) -> int:
    """Run the query of job `name`, print the target and the last micro-batch, and return the exit code."""
    return to_end(name, start, target, QueryStatus.wait)


def to_end(
    name: str,
    start: Callable[[], StreamingQuery],
    target: str,
    follow: Callable[[QueryStatus, StreamingQuery], object],
) -> int:
    """Start the query, call `follow` to wait for it, print the target and the last micro-batch, and return the exit
    code. The query is restarted if a Python process of Spark fails to start in time.
    """
    with StatusLine(name) as line:
        status = QueryStatus(line)
        restart_lost(start, partial(follow, status))
    line.total(f"{name}: {status.amount()}")
    last = status.last_batch
    print(f"written to {target}" + (": no new records" if last is None else f", up to micro-batch {last}"))
    return DONE


class QueryStatus:
    """The progress of one or more consecutive queries of a job, for a status line.

    `last_batch` is the latest micro-batch that Spark has reported, or None if no micro-batch has been reported.
    """

    def __init__(self, line: StatusLine) -> None:
        self._line = line
        self._records: dict[int, int] = {}
        self.last_batch: int | None = None

    def wait(self, query: StreamingQuery, seconds: float | None = None) -> bool:
        """Wait up to `seconds` for the end of a query and show its progress. Return True if the query has ended."""
        try:
            if self._line.is_shown:
                has_ended = self._watch(query, seconds)
            else:
                # Without a timeout, Spark returns None at the end of the query.
                has_ended = query.awaitTermination(seconds) is not False
        except KeyboardInterrupt:
            with suppress(Py4JError, OSError):
                query.stop()
                self.update(query)
                self._line("" if self.last_batch is None else f"up to micro-batch {self.last_batch}")
            raise
        if has_ended:
            self.update(query)
        return has_ended

    def update(self, query: StreamingQuery) -> None:
        """Record the progress that Spark reports for the latest micro-batches of a query."""
        for progress in query.recentProgress:
            # If a trigger finds no new data, Spark reports the next micro-batch with 0 records.
            batch = progress["batchId"]
            self._records[batch] = max(self._records.get(batch, 0), progress["numInputRows"])
            self.last_batch = batch

    def amount(self) -> str:
        copied = self.copied()
        return f"{count(copied.records, 'record')} in {count(copied.commits, 'micro-batch', 'micro-batches')}"

    def copied(self) -> CopiedRecords:
        """Return the number of records, and of micro-batches with records."""
        written = [records for records in self._records.values() if records]
        return CopiedRecords(sum(written), commits=len(written))

    def _watch(self, query: StreamingQuery, seconds: float | None) -> bool:
        for _ in repeat(None) if seconds is None else range(math.ceil(seconds / UPDATE_SECONDS)):
            if query.awaitTermination(UPDATE_SECONDS):
                return True
            self.update(query)
            self._line(self._text())
        return False

    def _text(self) -> str:
        finished, tasks = _tasks()
        running = f", now {finished:,} of {count(tasks, 'task')}" if tasks else ""
        return f"{self.amount()}{running}"


UPDATE_SECONDS = 1.0
"""Time between updates of the status line."""


def _tasks() -> tuple[int, int]:
    """Return the number of finished tasks and of all tasks in running stages."""
    session = SparkSession.getActiveSession()
    if session is None:
        return 0, 0
    tracker = session.sparkContext.statusTracker()
    stages = [stage for id_ in tracker.getActiveStageIds() if (stage := tracker.getStageInfo(id_)) is not None]
    return sum(stage.numCompletedTasks for stage in stages), sum(stage.numTasks for stage in stages)


@dataclass
class Copy:
    """Options of the job."""

    source: Annotated[
        str,
        Option(help="Location to read: a Kafka log directory or partition directory, a root, or a topic directory."),
    ]
    root: RootOption
    checkpoint: Annotated[
        str,
        Option(help="Checkpoint location of the query. A query that restarts from it writes each record exactly once."),
    ]
    subscribe: Annotated[str | None, Option(help="Topics to read, separated by commas.")] = None
    subscribe_pattern: Annotated[
        str | None, Option(excludes="--subscribe", help="Regular expression that matches the topics to read.")
    ] = None
    topic: Annotated[
        str | None,
        Option(
            help="Topic to write all records to. By default, each record is written to the topic with the same name."
        ),
    ] = None
    num_partitions: Annotated[
        int | None,
        integer_option(low=1, text="Number of partitions of each topic that the job creates.", default="the root's"),
    ] = None
    max_offsets_per_trigger: Annotated[
        int | None, integer_option(low=1, text="Approximate maximum number of records per micro-batch.")
    ] = None
    group: Annotated[
        str | None, Option(help="Consumer group to which the query commits its offsets. The source must be a root.")
    ] = None
    follow: Annotated[bool, Option(help="Keep copying new records until stopped.")] = False

    def __post_init__(self) -> None:
        if self.topic is not None:
            check_topic_name(self.topic)
        if self.group is not None:
            check_id(self.group, "group id")


def start(spark: SparkSession, copy: Copy) -> StreamingQuery:
    options = {
        "subscribe": copy.subscribe,
        "subscribePattern": copy.subscribe_pattern,
        "maxOffsetsPerTrigger": copy.max_offsets_per_trigger if copy.follow or READ_LIMITS else None,
        "kafka.group.id": copy.group,
    }
    reader = spark.readStream.format("sparklog").option("startingOffsets", "earliest").option("includeHeaders", True)
    for name, value in options.items():
        if value is not None:
            reader = reader.option(name, value)
    columns = COLUMNS if copy.topic is not None else (*COLUMNS, "topic")
    records = reader.load(copy.source).select(*columns).withColumn("timestamp", known_timestamp())
    writer = records.writeStream.format("sparklog")
    if copy.topic is not None:
        writer = writer.option("topic", copy.topic)
    if copy.num_partitions is not None:
        writer = writer.option("num.partitions", copy.num_partitions)
    writer = writer.option("checkpointLocation", copy.checkpoint)
    return (writer if copy.follow else writer.trigger(availableNow=True)).start(copy.root)


arguments = partial(parse, "stream", Copy, __doc__)


@streaming_job("stream")
def run(spark: SparkSession, copy: Copy) -> int:
    sparklog.register(spark)
    return follow_to_end("stream", partial(start, spark, copy), copy.root)


@streaming_job("stream")
def main(words: Sequence[str]) -> int:
    copy = arguments(words)
    topics = check_source(copy.source, subscribe=copy.subscribe, subscribepattern=copy.subscribe_pattern)
    check_target(copy.root)
    check_not_itself(copy, topics)
    # Otherwise, Spark would log the stack trace of a failed query, although the job's last line contains the reason.
    with streaming_session("sparklog stream", "FATAL") as spark:
        return run(spark, copy)


# Ivy prints 130 to 290 lines per jar, and no Spark setting disables this. The JVM of a session inherits the standard
# error of this process. The session is therefore started with a pipe as standard error, whose lines are filtered.
FIRST, LAST = b":: loading settings ::", b" artifacts copied, "
"""The start of the first line of a report, and text in the last line of a report if all packages were found."""
REASON = b"Exception in thread"
"""The start of the line with the name of a package that was not found."""


def without_report(lines: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the lines that do not belong to Ivy's report, and the line with the reason if packages were not found."""
    inside = False
    for line in lines:
        if line.startswith(FIRST):
            inside = True
        elif inside and LAST in line:
            inside = False
        elif not inside or line.startswith(REASON):
            yield line


@contextmanager
def without_ivy(reasons: list[str]) -> Iterator[None]:
    """Filter the standard error of processes that are started in this block. Add lines about failures to `reasons`."""
    reading, writing = os.pipe()
    before = os.dup(2)
    sys.stderr.flush()
    os.dup2(writing, 2)
    os.close(writing)
    arguments = (reading, os.dup(before), reasons)
    filtering = threading.Thread(target=_filter_lines, args=arguments, name="sparklog-ivy", daemon=True)
    filtering.start()
    try:
        yield
    except BaseException:
        _restore(before)
        # The JVM has ended, so its output ends as well.
        filtering.join(10)
        raise
    _restore(before)


def _restore(before: int) -> None:
    sys.stderr.flush()
    os.dup2(before, 2)
    os.close(before)


def _filter_lines(reading: int, target: int, reasons: list[str]) -> None:
    with os.fdopen(reading, "rb") as lines, os.fdopen(target, "wb", buffering=0) as shown:
        for line in without_report(lines):
            if line.startswith(REASON):
                reasons.append(line.decode(errors="replace").strip())
            shown.write(line)
