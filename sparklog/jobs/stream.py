"""Stream the topics of a Kafka directory, or of a sparklog root, into a sparklog root, exactly once.

Run again with the same checkpoint it goes on where it was. Records keep key, value, headers and timestamp (else the
time of writing). A topic keeps its name unless `--topic` sends all records to one. Without `--follow` the job ends when
it has written what was there as it began.
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
from sparklog.console.options import RootOption, whole_number
from sparklog.console.parameters import Option
from sparklog.datasource.options import parse_options
from sparklog.datasource.spark_versions import READ_LIMITS
from sparklog.datasource.subscription import Subscriber
from sparklog.errors import Unavailable
from sparklog.jobs.common import DONE, job, parse
from sparklog.log.journal.names import check_id, check_topic_name
from sparklog.maintenance.spark_runner import quiet_session
from sparklog.opening import NOTHING, open_log, open_view, refuse_inside, resolve
from sparklog.output import StatusLine

P = ParamSpec("P")
PACKAGES = "spark.jars.packages"
COLUMNS = ("key", "value", "headers", "timestamp")


@contextmanager
def streaming_session(
    name: str, log_level: str = "WARN", settings: Mapping[str, str] | None = None
) -> Iterator[SparkSession]:
    """Start Spark with the settings that streaming into a root needs, and stop it at the end."""
    settings = settings or {}
    builder = sparklog.configure(SparkSession.builder).config(map=dict(settings))
    spark = _fetching(builder, name, log_level) if PACKAGES in settings else quiet_session(builder, name, log_level)
    try:
        yield spark
    finally:
        spark.stop()


def _fetching(builder: SparkSession.Builder, name: str, log_level: str) -> SparkSession:
    """Start Spark, which fetches packages first. Raises Unavailable with Ivy's reason if that fails."""
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
    """Return the error message for a JVM that failed to fetch packages; `reasons`: its lines about failures."""
    reason = reasons[-1].partition("RuntimeException: ")[2] or reasons[-1] if reasons else "no reason given"
    remove = "remove incomplete files below ~/.m2/repository and ~/.ivy2"
    if (package := _NOT_FETCHED.search(reason)) is not None:
        remove = f"remove ~/.m2/repository/{package[1].replace('.', '/')}/{package[2]} if it is incomplete"
    return (
        f"Spark could not fetch its packages ({reason}): check network and proxy, {remove}, or start this job with "
        "spark-submit and --jars or --packages"
    )


def streaming_job(name: str) -> Callable[[Callable[P, int]], Callable[P, int]]:
    """Make a job with a query answer with an exit code: errors, Spark's too, and Ctrl-C become one line on stderr."""
    again = "the next run with this checkpoint goes on where it was"
    return job(name, after_interrupt=again, foreign=(PySparkException,), reason=reason)


_RAISED = re.compile(r"^pyspark\.errors\.\S+: (.+?)(?: SQLSTATE: \w+)?$", re.MULTILINE)
"""The line of a Python traceback that has Spark's own error."""


def reason(text: str) -> str:
    """Return the line of a Spark error that says why: where `foreachBatch` failed, that of the innermost cause."""
    first = text.splitlines()[0]
    if "FOREACH_BATCH_USER_FUNCTION_ERROR" not in first:
        return first
    causes = [line.removeprefix("Caused by: ") for line in text.splitlines() if line.startswith("Caused by: ")]
    return (causes or _RAISED.findall(text) or [first])[-1]


def check_source(path: str, **options: str | None) -> None:
    """Raise what is wrong with a log to read, or with these options of its read: Spark takes seconds to start."""
    read = parse_options({name: value for name, value in options.items() if value is not None}).read
    location = resolve(path)
    Subscriber(open_view(location, tailing=False), location, read.subscription).topics()


def check_target(path: str) -> None:
    """Raise what is wrong with a root to write, which may not exist yet, before Spark starts."""
    location = resolve(path)
    if location.kind == NOTHING:
        refuse_inside(location.root)
    else:
        open_log(location)


def known_timestamp() -> Column:
    """Return the timestamp column with nulls for -1, Kafka's "no time": such a record gets the time of its writing."""
    return when(col("timestamp") >= timestamp_millis(lit(0)), col("timestamp"))


def follow_to_end(name: str, query: StreamingQuery, target: str) -> int:
    """Wait for the query of job `name`, print where it wrote to, and how far it came. Returns the exit code."""
    return to_end(name, query, target, QueryStatus.wait)


def to_end(
    name: str, query: StreamingQuery, target: str, follow: Callable[[QueryStatus, StreamingQuery], object]
) -> int:
    """Do what `follow_to_end` does, with another way to wait."""
    with StatusLine(name) as line:
        status = QueryStatus(line)
        follow(status, query)
    line.total(f"{name}: {status.amount()}")
    last = status.last_batch
    print(f"written to {target}" + (": nothing new" if last is None else f", up to micro-batch {last}"))
    return DONE


class QueryStatus:
    """What a job's query, or several after each other, have written, for a status line.

    `last_batch`: the latest micro-batch that Spark reports, None without any.
    """

    def __init__(self, line: StatusLine) -> None:
        self._line = line
        self._records: dict[int, int] = {}
        self.last_batch: int | None = None

    def wait(self, query: StreamingQuery, seconds: float | None = None) -> bool:
        """Wait for the end of a query, at most so long; return True if it ended. Its progress is shown meanwhile."""
        try:
            if self._line.is_shown:
                is_over = self._watch(query, seconds)
            else:
                # Without a limit Spark returns nothing at the end.
                is_over = query.awaitTermination(seconds) is not False
        except KeyboardInterrupt:
            with suppress(Py4JError, OSError):
                query.stop()
                self.look(query)
                self._line("" if self.last_batch is None else f"up to micro-batch {self.last_batch}")
            raise
        if is_over:
            self.look(query)
        return is_over

    def look(self, query: StreamingQuery) -> None:
        """Note what Spark reports of the latest micro-batches of a query."""
        for progress in query.recentProgress:
            # A trigger without new data reports the next micro-batch, without records.
            batch = progress["batchId"]
            self._records[batch] = max(self._records.get(batch, 0), progress["numInputRows"])
            self.last_batch = batch

    def amount(self) -> str:
        written = {batch: records for batch, records in self._records.items() if records}
        return f"{count(sum(written.values()), 'record')} in {count(len(written), 'micro-batch', 'micro-batches')}"

    def _watch(self, query: StreamingQuery, seconds: float | None) -> bool:
        for _ in repeat(None) if seconds is None else range(math.ceil(seconds / LOOK_SECONDS)):
            if query.awaitTermination(LOOK_SECONDS):
                return True
            self.look(query)
            self._line(self._text())
        return False

    def _text(self) -> str:
        finished, tasks = _tasks()
        running = f", now {finished:,} of {count(tasks, 'task')}" if tasks else ""
        return f"{self.amount()}{running}"


LOOK_SECONDS = 1.0
"""Time between two looks at a query's progress."""


def _tasks() -> tuple[int, int]:
    """Return how many tasks of the stages that run are finished, and how many there are."""
    session = SparkSession.getActiveSession()
    if session is None:
        return 0, 0
    tracker = session.sparkContext.statusTracker()
    stages = [stage for number in tracker.getActiveStageIds() if (stage := tracker.getStageInfo(number)) is not None]
    return sum(stage.numCompletedTasks for stage in stages), sum(stage.numTasks for stage in stages)


@dataclass
class Copy:
    source: Annotated[str, Option(help="Kafka log directory, its partition folder, root or topic folder.")]
    root: RootOption
    checkpoint: Annotated[str, Option(help="The query's checkpoint: with it nothing is lost or written twice.")]
    subscribe: Annotated[str | None, Option(help="Topics, with commas between them.")] = None
    subscribe_pattern: Annotated[str | None, Option(excludes="--subscribe", help="Regular expression of topics.")] = (
        None
    )
    topic: Annotated[str | None, Option(help="One topic for all records; else each keeps its topic.")] = None
    num_partitions: Annotated[
        int | None, whole_number(low=1, text="Of topics that do not exist yet.", default="the root's")
    ] = None
    max_offsets_per_trigger: Annotated[
        int | None, whole_number(low=1, text="About so many records in one micro-batch.")
    ] = None
    group: Annotated[str | None, Option(help="Consumer group that commits the query's offsets; of a root.")] = None
    follow: Annotated[bool, Option(help="Go on with what comes later.")] = False

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
    return follow_to_end("stream", start(spark, copy), copy.root)


@streaming_job("stream")
def main(words: Sequence[str]) -> int:
    copy = arguments(words)
    check_source(copy.source, subscribe=copy.subscribe, subscribepattern=copy.subscribe_pattern)
    check_target(copy.root)
    # Spark logs the stack of a query's failure, whose reason is the job's last line.
    with streaming_session("sparklog stream", "FATAL") as spark:
        return run(spark, copy)


# Spark's Ivy reports 130 to 290 lines for a jar, which no setting of Spark silences. The JVM that a session starts has
# the standard error of this process. So it is started with a pipe in its place, and the rest of its lines is passed on.
FIRST, LAST = b":: loading settings ::", b" artifacts copied, "
"""The first line of a report begins so, and the last one holds this, if all was found."""
REASON = b"Exception in thread"
"""The line that says what was not found begins so."""


def without_report(lines: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the lines that are not of a report of Ivy's, and of one that failed the reason."""
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
    """Filter the standard error of processes started in this block; add lines about failures to `reasons`."""
    reading, writing = os.pipe()
    before = os.dup(2)
    sys.stderr.flush()
    os.dup2(writing, 2)
    os.close(writing)
    given = (reading, os.dup(before), reasons)
    passing = threading.Thread(target=_pass_on, args=given, name="sparklog-ivy", daemon=True)
    passing.start()
    try:
        yield
    except BaseException:
        _restore(before)
        # The JVM has ended, so its output will end, too.
        passing.join(10)
        raise
    _restore(before)


def _restore(before: int) -> None:
    sys.stderr.flush()
    os.dup2(before, 2)
    os.close(before)


def _pass_on(reading: int, target: int, reasons: list[str]) -> None:
    with os.fdopen(reading, "rb") as lines, os.fdopen(target, "wb", buffering=0) as shown:
        for line in without_report(lines):
            if line.startswith(REASON):
                reasons.append(line.decode(errors="replace").strip())
            shown.write(line)
