"""Consumer groups of Spark queries: their visible state, starting offsets and fencing."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.sql import functions

import sparklog
from sparklog.errors import Conflict
from sparklog.groups.group import Group
from sparklog.groups.lag import Groups, lag
from tests.datasource.streams import (
    READ_LIMITS,
    copy,
    failure,
    feed,
    finish,
    forget_commit,
    needs_read_limits,
    source,
    values,
    wait_for,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

GROUP = {"kafka.group.id": "g"}


def group(root: str) -> Group:
    return Groups(root).group("g")


def committed(root: str) -> dict[tuple[str, int], int]:
    return {topic_partition: item.offset for topic_partition, item in group(root).committed().items()}


def behind(root: str) -> int:
    return sum(row.lag or 0 for row in lag(sparklog.open(root), ["g"]))


def test_the_group_of_a_running_query_cannot_be_reset(spark: SparkSession, root: str, tmp_path: Path) -> None:
    feed(root, "in", range(20), partitions=1)
    stream = source(spark, f"{root}/in", **GROUP, **{"kafka.group.instance.id": "copier"})
    query = copy(stream, root, tmp_path / "c").trigger(processingTime="0 seconds").start()
    try:
        assert wait_for(lambda: committed(root) == {("in", 0): 20})
        feed(root, "in", range(20, 25))
        # There is no later batch. Planning the next batch commits the offsets.
        assert wait_for(lambda: committed(root) == {("in", 0): 25})
        assert behind(root) == 0
        description = group(root).description()
        assert (description.state, description.instance, description.generation) == ("Stable", "copier", 1)
        with pytest.raises(Conflict, match="is active"):
            group(root).alter({"in": {0: 0}})
        assert query.exception() is None
    finally:
        query.stop()
    # Spark stops the planning process with a signal, and the process leaves the group.
    assert wait_for(lambda: group(root).description().state == "Empty", 60)


def test_lag_is_right_within_one_batch(spark: SparkSession, root: str, tmp_path: Path) -> None:
    feed(root, "in", range(40), partitions=1)
    seen: list[tuple[int, dict[tuple[str, int], int], int]] = []

    def look(_: object, batch: int) -> None:
        seen.append((batch, committed(root), behind(root)))

    stream = source(spark, f"{root}/in", maxOffsetsPerTrigger=10, **GROUP)
    query = stream.writeStream.foreachBatch(look).option("checkpointLocation", str(tmp_path / "c"))
    finish(query)
    # During batch n, the offsets of earlier batches are committed, but not the offsets of batch n.
    assert seen == [(0, {}, 0), *((n, {("in", 0): 10 * n}, 40 - 10 * n) for n in (1, 2, 3))]
    assert (committed(root), behind(root)) == ({("in", 0): 40}, 0)
    # The query has read all records, and has left the group.
    assert group(root).description().state == "Empty"
    group(root).alter({"in": {0: 5}}, dry_run=True)


def test_lag_of_a_query_that_goes_on_is_right_within_one_batch(spark: SparkSession, root: str, tmp_path: Path) -> None:
    """During a batch, the lag consists of the batch and the records after it, even if records are appended
    concurrently.
    """
    feed(root, "in", range(25), partitions=1)
    seen: list[tuple[int, int, int]] = []

    def look(rows: DataFrame, batch: int) -> None:
        if batch == 1:
            feed(root, "in", range(25, 40), partitions=1)
        done = committed(root).get(("in", 0), 0)
        first = rows.agg(functions.min("offset")).head()
        seen.append((done, first[0], behind(root) if done else -1))

    stream = source(spark, f"{root}/in", maxOffsetsPerTrigger=10, **GROUP).writeStream.foreachBatch(look)
    query = stream.option("checkpointLocation", str(tmp_path / "c")).trigger(processingTime="0 seconds").start()
    try:
        assert wait_for(lambda: committed(root) == {("in", 0): 40} or query.exception() is not None)
        assert seen == [(0, 0, -1), (10, 10, 30), (20, 20, 20), (30, 30, 10)]
        # While idle, the lag consists of new records that the query has not read yet.
        assert (behind(root), query.isActive) == (0, True)
        feed(root, "in", range(40, 47), partitions=1)
        assert wait_for(lambda: behind(root) == 0)
        assert (committed(root), seen[4:]) == ({("in", 0): 47}, [(40, 40, 7)])
    finally:
        query.stop()


@needs_read_limits
def test_the_driver_reports_the_lag_of_queries(spark: SparkSession, root: str, tmp_path: Path) -> None:
    feed(root, "in", range(40), partitions=1)
    lines: list[str] = []
    lags = sparklog.watch(spark, tell=lines.append, metrics_file=tmp_path / "lag.prom")
    stream = source(spark, f"{root}/in", maxOffsetsPerTrigger=15).writeStream.queryName("behind").format("noop")
    query = stream.option("checkpointLocation", str(tmp_path / "c")).trigger(processingTime="0 seconds").start()
    try:
        assert wait_for(lambda: len(lines) == 3)
        assert [(item.query, item.topic, item.batch_id, item.behind) for item in lags()] == [("behind", "in", 2, 0)]
        assert 'sparklog_query_offsets_behind_latest{query="behind"' in (tmp_path / "lag.prom").read_text()
    finally:
        query.stop()
    assert [line.partition(":")[2] for line in lines] == [
        f" {behind} offsets behind latest (in {behind})" for behind in (25, 10, 0)
    ]
    assert wait_for(lambda: lags() == [])
    lags.stop()


def test_a_batch_that_is_replayed_counts_once_it_is_done(spark: SparkSession, root: str, tmp_path: Path) -> None:
    feed(root, "in", range(20), partitions=1)
    finish(copy(source(spark, f"{root}/in", maxOffsetsPerTrigger=10, **GROUP), root, tmp_path / "c"))
    assert committed(root) == {("in", 0): 20}
    # As if the driver had died before it recorded the second batch. The group is then ahead of the checkpoint.
    forget_commit(tmp_path / "c", 1)
    finish(copy(source(spark, f"{root}/in", **GROUP), root, tmp_path / "c"))
    assert (values(root, "out"), committed(root)) == (list(range(20)), {("in", 0): 20})
    assert group(root).description().generation == 2 or not READ_LIMITS


def test_a_later_query_fences_the_earlier_one(spark: SparkSession, root: str, tmp_path: Path) -> None:
    feed(root, "in", range(10), partitions=1)
    old = copy(source(spark, f"{root}/in", **GROUP), root, tmp_path / "c").trigger(processingTime="0 seconds").start()
    try:
        assert wait_for(lambda: committed(root) == {("in", 0): 10})
        finish(copy(source(spark, f"{root}/in", **GROUP), root, tmp_path / "c2", topic="out2"))
        feed(root, "in", range(10, 12))
        assert wait_for(lambda: old.exception() is not None)
        assert "[SPARKLOG_FENCED]: generation 1 (spark-" in str(old.exception())
        assert "set a different group for each" in str(old.exception())
    finally:
        old.stop()


def test_reads_start_at_the_committed_offsets(spark: SparkSession, root: str, tmp_path: Path) -> None:
    feed(root, "in", range(10), partitions=1)
    sparklog.open(root).topic("in").alter(partitions=2)
    group(root).alter({"in": {0: 4}})

    def batch(**options: str) -> list[int]:
        reader = spark.read.format("sparklog").option("startingOffsets", "group").options(**GROUP, **options)
        return [row.offset for row in reader.load(f"{root}/in").sort("offset").collect()]

    assert batch() == list(range(4, 10))
    assert batch(**{"kafka.auto.offset.reset": "latest"}) == list(range(4, 10))
    with pytest.raises(Exception, match=r"\[SPARKLOG_NOT_FOUND\]: Group 'g' has no offset committed for in-1"):
        batch(**{"kafka.auto.offset.reset": "none"})
    stream = source(spark, f"{root}/in", startingOffsets="group", **GROUP)
    finish(copy(stream, root, tmp_path / "c"))
    assert values(root, "out") == list(range(4, 10))
    assert committed(root) == {("in", 0): 10, ("in", 1): 0}
    assert batch() == []
    # A batch does not commit offsets by itself, as docs/guides/consumer-groups.md describes.
    feed(root, "in", range(10, 12))
    options = {"startingOffsets": "group"} | GROUP
    df = spark.read.format("sparklog").options(**options).load(f"{root}/in")
    rows = df.groupBy("partition").agg((functions.max("offset") + 1).alias("next")).collect()
    group(root).alter({"in": {row.partition: row.next for row in rows}})
    assert (batch(), sum(committed(root).values())) == ([], 12)
    expected = committed(root)
    # A reset affects new queries. A query with a checkpoint resumes from the checkpoint, and commits its offsets to the
    # group.
    group(root).alter({"in": {0: 8}})
    assert batch()[:2] == [8, 9]
    finish(copy(stream, root, tmp_path / "c"))
    assert values(root, "out") == list(range(4, 12))
    assert committed(root) == expected


def test_unsupported_options_are_one_line_errors(spark: SparkSession, root: str, tmp_path: Path) -> None:
    feed(root, "in", range(3), partitions=1)
    none = {"startingOffsets": "group", "kafka.auto.offset.reset": "none"}
    message = failure(copy(source(spark, f"{root}/in", **GROUP, **none), root, tmp_path / "c"))
    assert "[SPARKLOG_NOT_FOUND]: Group 'g' has no offset committed for in-0: reset the group" in message
    kafka = Path(__file__).parents[2] / "examples" / "data" / "kafka-log-dir"
    message = failure(copy(source(spark, kafka, **GROUP), root, tmp_path / "c2"))
    assert "[SPARKLOG_BAD_REQUEST]: A stream with kafka.group.id commits its offsets to the group, but" in message
