"""`run_query`: which errors restart a query, and how often."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("pyspark", reason="queries need Spark: install sparklog[spark]")

from pyspark.errors import PySparkException

import sparklog

LOST = "[STREAM_FAILED] org.apache.spark.SparkException: Python worker failed to connect back."
OTHER = "[STREAM_FAILED] [SPARKLOG_NOT_FOUND]: There is no topic 'orders'"


class Query:
    """A query that ends, or fails with `error`, with or without a micro-batch."""

    def __init__(self, error: str | None, progress: bool = False) -> None:
        self.error = error
        self.lastProgress = {"batchId": 7} if progress else None

    def awaitTermination(self) -> None:  # noqa: N802
        if self.error is not None:
            raise PySparkException(self.error)


def run(*queries: Query | str, max_restarts: int = 2) -> tuple[Any, int]:
    """Run with these starts. A string is the error of a start. Return the query or error, and the remaining starts."""
    left = list(queries)

    def start() -> Any:
        query = left.pop(0)
        if isinstance(query, str):
            raise PySparkException(query)
        return query

    try:
        return sparklog.run_query(start, max_restarts=max_restarts), len(left)
    except PySparkException as error:
        return str(error), len(left)


def test_a_lost_worker_restarts_the_query_up_to_a_limit() -> None:
    done = Query(None)
    assert run(done) == (done, 0)
    assert run(Query(LOST), LOST, done) == (done, 0)
    assert run(Query(LOST), LOST, Query(LOST), done) == (LOST, 1)
    # Progress resets the count.
    assert run(Query(LOST), Query(LOST), Query(LOST, progress=True), LOST, done) == (done, 0)
    assert run(LOST, done, max_restarts=0) == (LOST, 1)


def test_jobs_restart_their_queries(capsys: pytest.CaptureFixture[str]) -> None:
    from sparklog.jobs.stream import to_end

    queries: list[Any] = [Query(LOST), Query(None)]
    statuses = []

    def follow(status: object, query: Any) -> None:
        statuses.append(status)
        query.awaitTermination()

    assert to_end("stream", lambda: queries.pop(0), "root", follow) == 0
    assert (queries, len(statuses), len(set(map(id, statuses)))) == ([], 2, 1)
    assert capsys.readouterr().out == "written to root: no new records\n"
    with pytest.raises(PySparkException, match="There is no topic"):
        to_end("stream", lambda: Query(OTHER), "root", follow)


@pytest.mark.parametrize("first", [Query(OTHER), OTHER])
def test_every_other_error_is_raised(first: Query | str) -> None:
    assert run(first, Query(None)) == (OTHER, 1)


def test_a_negative_number_of_restarts_is_rejected() -> None:
    with pytest.raises(sparklog.BadRequest, match="max_restarts must be an integer of at least 0, found -1"):
        run(Query(None), max_restarts=-1)
