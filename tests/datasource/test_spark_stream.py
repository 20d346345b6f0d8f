"""The streaming source through Spark."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import sparklog
from tests.datasource.standard_error import StandardError
from tests.datasource.streams import (
    READ_LIMITS,
    SPARK,
    WAIT_SECONDS,
    copy,
    failure,
    feed,
    finish,
    needs_read_limits,
    run,
    source,
    stored_offset,
    values,
    wait_for,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

CHECKPOINTS = "org.apache.spark.sql.execution.streaming.checkpointing"


@needs_read_limits
def test_rate_limits_offsets_and_restarts(spark: SparkSession, root: str, tmp_path: Path) -> None:
    feed(root, "in", range(100))
    stream = source(spark, f"{root}/in", maxOffsetsPerTrigger=40, minPartitions=3)
    query = finish(copy(stream, root, tmp_path / "c"))
    rows = [progress["numInputRows"] for progress in query.recentProgress]
    assert sum(rows) == 100
    assert max(rows) <= 40
    assert values(root, "out") == list(range(100))
    first = stored_offset(tmp_path / "c", 0)
    assert first["$start"] == {"in": {"0": 0, "1": 0}}
    assert first["$ids"] == {"in": sparklog.open(root).topic("in").log.state().topic_id}
    assert "$start" not in stored_offset(tmp_path / "c", 1)
    feed(root, "in", range(100, 110))
    finish(copy(source(spark, f"{root}/in"), root, tmp_path / "c"))
    assert values(root, "out") == list(range(110))


def test_checkpoint_without_commands_is_exactly_once_over_restarts(
    spark: SparkSession, root: str, tmp_path: Path
) -> None:
    """docs/guides/cluster.md contains the setting."""
    name = "spark.sql.streaming.checkpointFileManagerClass"
    package = "org.apache.spark.sql.execution.streaming" if SPARK == (4, 0) else CHECKPOINTS
    before = spark.conf.get(name, None)
    spark.conf.set(name, f"{package}.FileSystemBasedCheckpointFileManager")
    try:
        for number, commit in enumerate((True, False, True)):
            feed(root, "in", range(number * 10, number * 10 + 10))
            finish(copy(source(spark, f"{root}/in"), root, tmp_path / "c"))
            assert {path.name for path in (tmp_path / "c" / "commits").glob("[0-9]*")} >= {str(number)}
            if not commit:  # The query ended between the commit of the sink and the commit of the checkpoint.
                for path in (tmp_path / "c" / "commits").glob(f"*{number}*"):
                    path.unlink()
            assert values(root, "out") == list(range(number * 10 + 10))
    finally:
        if before is None:
            spark.conf.unset(name)
        else:
            spark.conf.set(name, before)
    finish(copy(source(spark, f"{root}/in"), root, tmp_path / "c"))
    assert values(root, "out") == list(range(30))


def test_the_first_batch_keeps_its_start_over_a_crash(spark: SparkSession, root: str, tmp_path: Path) -> None:
    """The batch was planned with an initial offset of 10 and failed. At the restart, "latest" is a later offset."""
    feed(root, "in", range(10), partitions=1)
    seen: list[list[int]] = []

    def broken(df: DataFrame, batch: int) -> None:
        raise RuntimeError("boom")

    def collect(df: DataFrame, batch: int) -> None:
        seen.append(sorted(int(row.value) for row in df.collect()))

    def query(function: Any) -> Any:
        stream = source(spark, f"{root}/in", startingOffsets="latest")
        return stream.writeStream.foreachBatch(function).option("checkpointLocation", str(tmp_path / "c"))

    running = query(broken).trigger(processingTime="300 milliseconds").start()
    try:
        assert wait_for(lambda: (tmp_path / "c" / "offsets" / "0").exists() or running.exception() is not None)
        wait_for(lambda: running.exception() is not None)
    finally:
        running.stop()
    planned = stored_offset(tmp_path / "c", 0)
    assert planned["$start"] == {"in": {"0": 10}}
    feed(root, "in", range(10, 15), partitions=1)
    finish(query(collect))
    assert sorted(value for batch in seen for value in batch) == list(range(10, 15))


def test_a_stream_reads_new_records_partitions_and_topics(spark: SparkSession, root: str, tmp_path: Path) -> None:
    feed(root, "in-a", range(5), partitions=1)
    stream = source(spark, root, subscribePattern="in-.*", **{"metadata.max.age.ms": 100})
    query = copy(stream, root, tmp_path / "c").trigger(processingTime="0 seconds").start()
    try:
        assert wait_for(lambda: sparklog.open(root).topics() == ["in-a", "out"] and len(values(root, "out")) == 5)
        feed(root, "in-b", range(5, 9), partitions=3)
        sparklog.open(root).topic("in-a").alter(partitions=2)
        feed(root, "in-a", range(9, 30))
        assert wait_for(lambda: len(values(root, "out")) == 30)
        assert values(root, "out") == list(range(30))
        query.processAllAvailable()
        batches = len(list((tmp_path / "c" / "offsets").glob("[0-9]*")))
        time.sleep(1.5)
        assert len(list((tmp_path / "c" / "offsets").glob("[0-9]*"))) == batches
        assert query.lastProgress["sources"][0]["latestOffset"] is not None
        assert query.exception() is None
    finally:
        query.stop()


def test_a_topic_created_again_under_a_running_query_is_an_error(
    spark: SparkSession, root: str, tmp_path: Path
) -> None:
    feed(root, "in", range(5))
    query = copy(source(spark, f"{root}/in"), root, tmp_path / "c").trigger(processingTime="0 seconds").start()
    try:
        query.processAllAvailable()
        sparklog.open(root).delete_topic("in")
        sparklog.open(root).create_topic("in", partitions=2)
        feed(root, "in", range(5, 50))
        assert wait_for(lambda: query.exception() is not None)
        assert "[SPARKLOG_NOT_FOUND]: The topic 'in' was deleted" in str(query.exception())
    finally:
        query.stop()
    assert values(root, "out") == list(range(5))
    message = failure(copy(source(spark, f"{root}/in"), root, tmp_path / "c"))
    assert "was deleted and recreated while a stream was reading it" in message
    finish(copy(source(spark, f"{root}/in", failOnDataLoss=False), root, tmp_path / "c"))
    assert values(root, "out") == list(range(50))


def test_a_start_deleted_by_retention(
    spark: SparkSession, root: str, tmp_path: Path, standard_error: StandardError
) -> None:
    feed(root, "in", range(10), partitions=1)
    finish(copy(source(spark, f"{root}/in"), root, tmp_path / "c"))
    feed(root, "in", range(10, 20), partitions=1)
    sparklog.open(root).topic("in").delete_records({0: 15})
    message = failure(copy(source(spark, f"{root}/in"), root, tmp_path / "c"))
    assert "[SPARKLOG_NOT_FOUND]: Offsets 10 to 14 of in-0 were deleted: the log starts at 15" in message
    assert "set failOnDataLoss=false" in message
    finish(copy(source(spark, f"{root}/in", failOnDataLoss=False), root, tmp_path / "c"))
    assert values(root, "out") == [*range(10), *range(15, 20)]
    assert standard_error.shows("Offsets 10 to 14 of in-0 were deleted")


def test_once_and_starting_timestamp(spark: SparkSession, root: str, tmp_path: Path) -> None:
    feed(root, "in", range(10))
    stream = source(spark, root, subscribe="in", maxOffsetsPerTrigger=1)
    query = copy(stream, root, tmp_path / "c").trigger(once=True).start()
    assert query.awaitTermination(WAIT_SECONDS)
    copied = values(root, "out")
    # the limit, or one record per partition
    assert copied == list(range(10)) or (not READ_LIMITS and 1 <= len(copied) <= 2)
    late = spark.readStream.format("sparklog").option("startingTimestamp", str(int(time.time() * 1000) + 60_000))
    late = late.option("startingOffsetsByTimestampStrategy", "latest")
    finish(copy(late.load(f"{root}/in"), root, tmp_path / "c2", topic="none"))
    assert sparklog.open(root).topic("none").log.state().version == 0


def test_a_stream_with_a_projection(spark: SparkSession, root: str, tmp_path: Path) -> None:
    feed(root, "in", range(10))
    stream = spark.readStream.format("sparklog").option("columns", "offset,topic").option("startingOffsets", "earliest")
    writer = stream.load(f"{root}/in").writeStream.format("memory").queryName("projected")
    run(writer.option("checkpointLocation", str(tmp_path / "c")))
    rows = spark.table("projected").collect()
    assert len(rows) == 10
    assert {row.topic for row in rows} == {"in"}
