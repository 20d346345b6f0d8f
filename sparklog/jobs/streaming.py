"""Parts of the jobs that run a streaming query to its end: the session, its errors, the last line."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import ParamSpec

from pyspark.errors import PySparkException
from pyspark.sql import Column, SparkSession
from pyspark.sql.functions import col, lit, timestamp_millis, when
from pyspark.sql.streaming import StreamingQuery

import sparklog
from sparklog.jobs.program import job

P = ParamSpec("P")


@contextmanager
def streaming_session(name: str) -> Iterator[SparkSession]:
    """Start Spark with the settings that streaming into a root needs, and stop it at the end."""
    spark = sparklog.configure(SparkSession.builder.appName(name)).getOrCreate()
    try:
        yield spark
    finally:
        spark.stop()


def streaming_job(name: str) -> Callable[[Callable[P, int]], Callable[P, int]]:
    """Make a job with a query answer with an exit code: errors, Spark's too, and Ctrl-C become one line on stderr."""
    again = "the next run with this checkpoint goes on where it was"
    return job(name, after_interrupt=again, foreign=(PySparkException,), reason=lambda error: reason(str(error)))


def reason(text: str) -> str:
    """Return the line of a Spark error that says why.

    Where a function of `foreachBatch` failed the first line only says so, and the innermost cause is what to know.
    """
    lines = text.splitlines()
    causes = [line.removeprefix("Caused by: ") for line in lines if line.startswith("Caused by: ")]
    return causes[-1] if causes and "FOREACH_BATCH_USER_FUNCTION_ERROR" in lines[0] else lines[0]


def known_timestamp() -> Column:
    """Return the timestamp column with nulls for -1, Kafka's "no time": such a record gets the time of its writing."""
    return when(col("timestamp") >= timestamp_millis(lit(0)), col("timestamp"))


def print_end(query: StreamingQuery, target: str) -> None:
    """Print where a query wrote to, and how far it came."""
    last = query.lastProgress
    print(f"written to {target}" + (f", up to micro-batch {last['batchId']}" if last else ": nothing new"))
